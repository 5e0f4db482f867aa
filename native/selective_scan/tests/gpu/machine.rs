//! What a measurement was made on, and when.

/// Today, as year-month-day (days to civil date: H. Hinnant, "chrono-compatible low-level date algorithms").
pub fn date() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let days = now.expect("a clock after 1970").as_secs() as i64 / 86_400 + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{}-{month:02}-{day:02}", year + era * 400 + i64::from(month <= 2))
}

/// The processor of the host.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} ({threads} threads)", model.unwrap_or("unknown processor"))
}

/// The version of the NVIDIA driver.
pub fn driver() -> String {
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number =
        version.split_whitespace().find(|word| word.contains('.') && word.as_bytes()[0].is_ascii_digit());
    number.unwrap_or("unknown").to_owned()
}

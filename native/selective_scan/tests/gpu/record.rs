//! The record of a run.

use crate::device;
use crate::sources::hash;
use crate::timing::Figure;

/// The record, as JSON.
pub fn record(tests: &[&str], figures: &[Figure]) -> String {
    let lines = |lines: Vec<String>| lines.join(",\n    ");
    let tests = lines(tests.iter().map(|name| format!("{name:?}")).collect());
    let figures = lines(figures.iter().map(Figure::json).collect());
    let info = device().info();
    let (major, minor) = info.compute_capability;
    format!(
        "{{\n  \"date\": {:?},\n  \"machine\": {:?},\n  \"gpu\": {:?},\n  \"compute_capability\": \"{major}.{minor}\",\n  \
         \"driver\": {:?},\n  \"sha256\": {:?},\n  \"tests\": [\n    {tests}\n  ],\n  \"figures\": [\n    {figures}\n  ]\n}}\n",
        date(),
        machine(),
        info.name,
        driver(),
        hash(),
    )
}

/// Today, as year-month-day (days to civil date: H. Hinnant, "chrono-compatible low-level date algorithms").
fn date() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let days = now.expect("a clock after 1970").as_secs() as i64 / 86_400 + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{}-{month:02}-{day:02}", year + era * 400 + i64::from(month <= 2))
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} ({threads} threads)", model.unwrap_or("unknown processor"))
}

fn driver() -> String {
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number =
        version.split_whitespace().find(|word| word.contains('.') && word.as_bytes()[0].is_ascii_digit());
    number.unwrap_or("unknown").to_owned()
}

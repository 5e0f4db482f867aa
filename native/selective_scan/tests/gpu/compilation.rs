//! The first call of a problem: its kernels compiled, from the disk, or packed; each in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use selective_scan::Problem;
use selective_scan::cuda::Pass;

use crate::correctness::check;
use crate::device;
use crate::shapes::{bf16, block, problem};
use crate::support::random;
use crate::support::registry::Registry;

/// Allowed for all kernels of a pass on two cores, whether NVRTC compiles them or the driver translates packed ones.
const COMPILED_MS: f64 = 1000.0;
const FROM_DISK_MS: f64 = 30.0;

/// What the test and the figures both want to know, and takes most of a minute.
static COMPILED: OnceLock<Vec<f64>> = OnceLock::new();

fn problems() -> [(&'static str, Problem); 3] {
    let step = Problem { seq: 1, initial_state: true, ..block(1, 1, 512, 16) };
    [("realtime", block(32, 60, 512, 16)), ("vision", bf16(problem(4, 197, 768, 16))), ("step", step)]
}

/// Leaves this process, and all threads that it starts, two of its processors.
fn on_two_cores() {
    // SAFETY: a set of processors is bits, all of which may be zero; the system reads and writes one of that size.
    unsafe {
        let [mut ours, mut two]: [libc::cpu_set_t; 2] = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&ours), &raw mut ours), 0);
        let all = (0..libc::CPU_SETSIZE as usize).filter(|&number| libc::CPU_ISSET(number, &ours));
        all.take(2).for_each(|number| libc::CPU_SET(number, &mut two));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&two), &raw const two), 0);
    }
}

/// What the other process does: a problem is prepared for, with the time that takes, and scanned.
pub fn first_calls() {
    on_two_cores();
    // The context is not the kernels' affair.
    device().host_buffer(1).unwrap();
    for (_, problem) in problems() {
        for pass in [Pass::Forward, Pass::Backward] {
            let started = Instant::now();
            device().prepare(&problem, pass).unwrap_or_else(|error| panic!("{error}"));
            println!("{pass:?} {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
        }
        check(&random::case(problem, 1)).unwrap();
    }
}

/// The environment of a process that has no packed kernels.
fn no_pack() -> (&'static str, &'static Path) {
    ("EXPHIL_KERNELS", Path::new("none"))
}

/// The times that a process with this environment needed, or what it died of.
fn times(environment: &[(&str, &Path)]) -> Result<Vec<f64>, String> {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.arg("--first-calls").envs(environment.iter().copied());
    let output = process.output().unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let time = |line: &str| line.strip_suffix(" ms")?.rsplit(' ').next()?.parse().ok();
    let times: Vec<f64> = words.lines().filter_map(time).collect();
    assert_eq!(times.len(), 6, "{words}");
    Ok(times)
}

/// In milliseconds, for each problem and pass, with no pack and nothing on disk: neither our machine code nor what NVRTC and
/// the driver keep for themselves. The least of three processes that have a folder each: what others do on a host that they share only
/// adds to it, up to a half.
fn compiled(folders: &[PathBuf; 3]) -> Vec<f64> {
    let runs = folders.each_ref().map(|folder| {
        let own = folder.join("driver");
        times(&[("XDG_CACHE_HOME", folder), ("CUDA_CACHE_PATH", &own), no_pack()]).unwrap()
    });
    println!("compiled, in ms: {runs:.0?}");
    let least = |at: usize| runs.iter().map(|run| run[at]).fold(f64::INFINITY, f64::min);
    (0..runs[0].len()).map(least).collect()
}

/// Runs something in folders of its own.
fn in_folders<T>(run: impl FnOnce(&[PathBuf; 3]) -> T) -> T {
    let all = std::env::temp_dir().join(format!("exphil_native_first_{}", std::process::id()));
    let result = run(&["0", "1", "2"].map(|name| all.join(name)));
    std::fs::remove_dir_all(&all).unwrap();
    result
}

/// How long a first call takes where its kernels are compiled on two cores.
pub fn figures() -> Vec<(String, &'static str, f64)> {
    let compiled = COMPILED.get_or_init(|| in_folders(compiled));
    let passes = problems().into_iter().flat_map(|(name, _)| [(name, "forward"), (name, "backward")]);
    passes.zip(compiled).map(|((name, pass), ms)| (format!("first call, {pass}"), name, ms * 1e3)).collect()
}

fn most(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// The pack that EXPHIL_KERNELS names, else the repository's.
fn pack() -> PathBuf {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../priv/kernels.pack");
    std::env::var_os("EXPHIL_KERNELS").map_or_else(|| own.into(), PathBuf::from)
}

pub fn first_calls_in_time(_: bool) {
    in_folders(first_calls_with);
}

fn first_calls_with(folders: &[PathBuf; 3]) {
    let pack = pack();
    assert!(pack.exists(), "{} is not there: `make ptx` packs it, EXPHIL_KERNELS names it", pack.display());
    let [folder, ..] = folders;
    let [unpacked, translated, empty] = ["unpacked", "translated", "empty"].map(|name| folder.join(name));
    let on_disk = ("XDG_CACHE_HOME", folder.as_path());
    let hidden = ("EXPHIL_NVRTC", Path::new("none"));
    let from_pack = [
        ("XDG_CACHE_HOME", unpacked.as_path()),
        ("CUDA_CACHE_PATH", &translated),
        ("EXPHIL_KERNELS", &pack),
        hidden,
    ];

    // Here at any rate, because it fills the folders.
    let compiled = compiled(folders);
    let _ = COMPILED.set(compiled.clone());
    let packed = times(&from_pack).unwrap();
    let again = [times(&[on_disk, no_pack()]), times(&[on_disk, no_pack(), hidden]), times(&from_pack)];
    let again = again.map(Result::unwrap);
    println!(
        "kernels of a pass in ms: compiled {compiled:.0?}, packed {packed:.0?}; from the disk {again:.1?}"
    );

    let words = times(&[("XDG_CACHE_HOME", &empty), no_pack(), hidden]).unwrap_err();
    assert!(
        words.contains("EXPHIL_NVRTC=none") && words.contains("there are no packed kernels at none"),
        "{words}"
    );

    for first in [compiled, packed] {
        assert!(most(&first) < COMPILED_MS, "{first:?}");
    }
    for again in again {
        assert!(most(&again) < FROM_DISK_MS, "{again:?}");
    }
}

/// No kernel spills of the shapes and variants that are measured.
pub fn no_spills(_: bool) {
    for (shape, variant, problem) in Registry::read().problems() {
        for pass in [Pass::Forward, Pass::Backward, Pass::BackwardFromBoundaryStates] {
            let spilled = device().local_bytes(&problem, pass).unwrap();
            assert_eq!(spilled, 0, "bytes that {pass:?} spills: {}, {}", shape.name, variant.name);
        }
    }
}

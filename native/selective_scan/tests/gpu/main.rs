//! What can only be shown on a GPU: one binary that also runs on a machine with no Rust.
//!
//! It reads the golden cases from the file that EXPHIL_GOLDEN names, else from the repository, and writes its record
//! to the file that EXPHIL_GPU_RECORD names; a run that is to leave one ends with the first test that fails. `--quick`
//! leaves out what takes long, for a run under a sanitizer; `--figures` leaves out the tests; words run what has one of them
//! in its name. Without a GPU it says so and passes, unless EXPHIL_EMULATED_GPU says that one is emulated
//! (native/cuda_emulator).

#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod compilation;
mod correctness;
mod figures;
mod machine;
mod on_device;
mod record;
mod robustness;
mod shapes;
mod sources;
mod timing;
mod unusual;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use selective_scan::cuda::{self, Device};
use selective_scan::{Error, Gradients, Inputs, OutputGradients, Outputs, Problem};

/// The device under test.
fn device() -> &'static Device {
    cuda::device(0).expect("the device was there at the start")
}

/// The backend's forward pass, as the shared tests call it.
fn forward(problem: &Problem, inputs: Inputs<&[u8]>, outputs: Outputs<&mut [u8]>) -> Result<(), Error> {
    device().forward(problem, inputs, outputs)
}

/// The backend's backward pass, as the shared tests call it.
fn backward(
    problem: &Problem,
    inputs: Inputs<&[u8]>,
    output_gradients: OutputGradients<&[u8]>,
    gradients: Gradients<&mut [u8]>,
) -> Result<(), Error> {
    device().backward(problem, inputs, output_gradients, gradients)
}

/// A test: its name, whether a quick run has it, what it does.
type Test = (&'static str, bool, fn(bool));

/// Those that compile more than they do anything else. NVRTC compiles one kernel after the other in a process, so each of them has one of its
/// own, where several are to run.
const COMPILING: &[&str] = &[
    "golden forward",
    "golden backward",
    "random problems",
    "unusual shapes",
    "copied tiles",
    "relays",
    "checkpoints",
    "a sequence cut in two",
    "packed rows",
];

/// Runs tests side by side, each in a process; says of each whether it has passed.
fn side_by_side(names: &[&'static str]) -> Vec<(&'static str, bool)> {
    let start = |&name: &&'static str| {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.arg(name).env_remove("EXPHIL_GPU_RECORD").stdout(Stdio::piped());
        (name, process.spawn().unwrap())
    };
    let running: Vec<_> = names.iter().map(start).collect();
    let end = |(name, process): (&'static str, Child)| {
        let output = process.wait_with_output().unwrap();
        let words = String::from_utf8_lossy(&output.stdout);
        words.lines().filter(|line| line.contains(name)).for_each(|line| println!("{line}"));
        (name, output.status.success())
    };
    running.into_iter().map(end).collect()
}

const TESTS: &[Test] = &[
    // First: afterwards the device's pools may hold enough for what is to fail.
    ("failure and recovery", true, robustness::recovery),
    // Soon: on a host that is busy with something else it fails, and the minutes after it would be lost.
    ("first calls", false, compilation::first_calls_in_time),
    ("golden forward", true, correctness::golden_forward),
    ("golden backward", true, correctness::golden_backward),
    ("random problems", false, correctness::random),
    ("softplus", true, correctness::softplus),
    ("unusual shapes", false, unusual::shapes),
    ("copied tiles", true, unusual::copied_tiles),
    ("relays", true, unusual::relays),
    ("checkpoints", true, correctness::checkpoints),
    ("a sequence cut in two", true, correctness::cut_in_two),
    ("steps", true, correctness::steps),
    ("packed rows", true, correctness::packed),
    ("reverse", true, correctness::reverse),
    ("slices of a batch", false, correctness::slices),
    ("same bits twice", false, robustness::same_bits),
    ("in place", true, robustness::in_place),
    ("steady state", true, robustness::steady_state),
    ("many threads", false, robustness::many_threads),
    ("not a number", true, robustness::not_a_number),
    ("infinite rates", true, robustness::infinite_rates),
    ("memory of the backward pass", true, robustness::memory),
    // Last: its kernels are those of the figures.
    ("spills", false, compilation::no_spills),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return;
    }
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let words: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    if let Err(error) = cuda::devices().and_then(|_| cuda::device(0)) {
        assert!(!on_device::is_emulated(), "{error}");
        println!("SKIPPED: the GPU tests need a GPU: {error}");
        return;
    }
    if arguments.iter().any(|argument| argument == "--first-calls") {
        return compilation::first_calls();
    }
    println!("{:?}", device().info());
    let named = std::env::var("EXPHIL_EMULATED_GPU");
    assert!(named.is_err() || named.as_deref() == Ok(&device().info().name), "{named:?} is not there");

    if arguments.iter().any(|argument| argument == "--figures") {
        figures::figures(wanted);
        return;
    }

    let whole = !quick && words.is_empty();
    let record_file = std::env::var_os("EXPHIL_GPU_RECORD").filter(|_| whole);
    let is_test =
        |word: &&str| TESTS.iter().any(|(name, in_quick, _)| (!quick || *in_quick) && name.contains(word));
    if let Some(word) = words.iter().find(|word| !is_test(word)) {
        panic!("no test has {word:?} in its name");
    }
    let compiling: Vec<_> = COMPILING.iter().copied().filter(|name| !quick && wanted(name)).collect();
    let mut passed = Vec::new();
    let mut failed = Vec::new();
    for &(name, in_quick, test) in TESTS {
        if quick && !in_quick || !wanted(name) || passed.contains(&name) || failed.contains(&name) {
            continue;
        }
        if compiling.len() > 1 && compiling.contains(&name) {
            for (name, has_passed) in side_by_side(&compiling) {
                if has_passed { passed.push(name) } else { failed.push(name) }
            }
            assert!(record_file.is_none() || failed.is_empty(), "no record, because this failed: {failed:?}");
            continue;
        }
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| test(quick)));
        println!(
            "{} {name} ({:.1} s)",
            if result.is_ok() { "ok    " } else { "FAILED" },
            start.elapsed().as_secs_f64()
        );
        match result {
            Ok(()) => passed.push(name),
            Err(_) => failed.push(name),
        }
        assert!(record_file.is_none() || failed.is_empty(), "no record, because this failed: {failed:?}");
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
    let write = |figures: &[figures::Figure]| {
        if let Some(file) = &record_file {
            std::fs::write(file, record::record(&passed, figures)).expect("the record can be written");
        }
    };
    // Before the figures too: a run that is cut off there has passed.
    write(&[]);
    if whole {
        write(&figures::figures(wanted));
    }
}

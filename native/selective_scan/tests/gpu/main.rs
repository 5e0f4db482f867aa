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
use std::thread::available_parallelism;
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

/// A test: its name, whether a quick run has it, whether it compiles more than it does anything else, what it does.
type Test = (&'static str, bool, bool, fn(bool));

const TESTS: &[Test] = &[
    // First: afterwards the device's pools may hold enough for what is to fail.
    ("failure and recovery", true, false, robustness::recovery),
    // Soon: on a host that is busy with something else it fails, and the minutes after it would be lost.
    ("first calls", false, false, compilation::first_calls_in_time),
    // One after the other, so that they run side by side.
    ("golden forward", true, true, correctness::golden_forward),
    ("golden backward", true, true, correctness::golden_backward),
    ("random problems", false, true, correctness::random),
    ("unusual shapes", false, true, unusual::shapes),
    ("copied tiles", true, true, unusual::copied_tiles),
    ("relays", true, true, unusual::relays),
    ("boundary states", true, true, correctness::boundary_states),
    ("odd addresses", true, true, correctness::odd_addresses),
    ("long padding", true, true, unusual::long_padding),
    ("a sequence cut in two", true, true, correctness::cut_in_two),
    ("packed rows", true, true, correctness::packed),
    ("softplus", true, false, correctness::softplus),
    ("roundings", true, false, correctness::roundings),
    ("steps", true, false, correctness::steps),
    ("reverse", true, false, correctness::reverse),
    ("slices of a batch", false, false, correctness::slices),
    ("small calls", true, false, correctness::small_calls),
    ("same bits twice", false, false, robustness::same_bits),
    ("in place", true, false, robustness::in_place),
    ("contexts of callers", true, false, robustness::contexts),
    ("wrong calls", true, false, robustness::wrong_calls),
    ("steady state", true, false, robustness::steady_state),
    ("idle memory", false, false, robustness::idle_memory),
    ("many threads", false, false, robustness::many_threads),
    ("not a number", true, false, robustness::not_a_number),
    ("what padding holds", true, false, robustness::what_padding_holds),
    ("infinite rates", true, false, robustness::infinite_rates),
    ("memory of the backward pass", true, false, robustness::memory),
    // Last: its kernels are those of the figures.
    ("spills", false, false, compilation::no_spills),
];

/// Runs a test in this process; whether it has passed.
fn passes(&(name, _, _, test): &Test, quick: bool) -> bool {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| test(quick)));
    println!(
        "{} {name} ({:.1} s)",
        if result.is_ok() { "ok    " } else { "FAILED" },
        start.elapsed().as_secs_f64()
    );
    result.is_ok()
}

/// Runs tests side by side, each in a process, because NVRTC compiles one kernel after the other in a process; whether each has passed.
fn pass_side_by_side(tests: &[Test]) -> Vec<bool> {
    // One compiles, others compute what is right: more would wait, by asking again and again, on the cores of those who work.
    let cores = available_parallelism().map_or(1, usize::from);
    let threads = (2 * cores).div_ceil(tests.len()).max(2);
    let start = |&(name, ..): &Test| {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.env("RAYON_NUM_THREADS", threads.to_string());
        process.arg(name).env_remove("EXPHIL_GPU_RECORD").stdout(Stdio::piped());
        process.spawn().unwrap()
    };
    let running: Vec<_> = tests.iter().map(start).collect();
    let end = |process: Child| {
        let output = process.wait_with_output().unwrap();
        // All but the device.
        String::from_utf8_lossy(&output.stdout).lines().skip(1).for_each(|line| println!("{line}"));
        output.status.success()
    };
    running.into_iter().map(end).collect()
}

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
    on_device::enter();
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
        |word: &&str| TESTS.iter().any(|(name, in_quick, ..)| (!quick || *in_quick) && name.contains(word));
    if let Some(word) = words.iter().find(|word| !is_test(word)) {
        panic!("no test has {word:?} in its name");
    }
    let tests = TESTS.iter().copied().filter(|&(name, in_quick, ..)| (!quick || in_quick) && wanted(name));
    let tests: Vec<Test> = tests.collect();
    let mut passed = Vec::new();
    let mut failed = Vec::new();
    for group in tests.chunk_by(|one, other| !quick && one.2 && other.2) {
        let results = match group {
            [test] => vec![passes(test, quick)],
            several => pass_side_by_side(several),
        };
        for (&(name, ..), has_passed) in group.iter().zip(results) {
            if has_passed { passed.push(name) } else { failed.push(name) }
        }
        assert!(record_file.is_none() || failed.is_empty(), "no record, because this failed: {failed:?}");
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
    let write = |figures: &[figures::Figure]| {
        if let Some(file) = &record_file {
            std::fs::write(file, format!("{:#}\n", record::record(&passed, figures)))
                .expect("the record can be written");
        }
    };
    // Before the figures too: a run that is cut off there has passed.
    write(&[]);
    if whole {
        write(&figures::figures(wanted));
    }
}

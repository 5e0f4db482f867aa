//! The same numbers as the references.

use std::cmp::Ordering;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rayon::prelude::*;
use selective_scan::{ElementType, Gradients, Inputs, Method, Outputs, Problem, Projection, naive};

use crate::on_device::{OnDevice, is_emulated};
use crate::shapes::{
    bf16, block, borrowing, both, by, ending_short, f64, joining, problem, reversed, summing, within_tiles,
};
use crate::support::laws::Scan;
use crate::support::{Case, ELEMENTS, Within, distance, golden, random, rounding, roundings, within};
use crate::{backward, device, forward};

type Named<'a> = Vec<(&'static str, &'a Vec<f64>)>;

fn compare(case: &Case, got: Named<'_>, expected: Named<'_>, tolerance: f64) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{}: {} tensors, expected {}", case.name, got.len(), expected.len()));
    }
    for ((name, got), (_, expected)) in got.into_iter().zip(expected) {
        let allowed = tolerance + rounding(case.problem.element.of(name));
        let distance = distance(got, expected);
        // A single element may be all there is of a tensor: a rounding of it is its whole distance.
        let allowed = if got.len() < 32 { 4.0 * allowed } else { allowed };
        if distance > allowed {
            return Err(format!("{name} is {distance:e} away, allowed {allowed:e}: {case:?}"));
        }
    }
    Ok(())
}

fn compare_outputs(case: &Case, got: &Outputs<Vec<f64>>, expected: &Outputs<Vec<f64>>) -> Result<(), String> {
    compare(case, got.iter().collect(), expected.iter().collect(), within(case.problem.element).outputs)
}

fn compare_gradients(
    case: &Case,
    got: &Gradients<Vec<f64>>,
    expected: &Gradients<Vec<f64>>,
) -> Result<(), String> {
    compare(case, got.iter().collect(), expected.iter().collect(), within(case.problem.element).gradients)
}

pub fn check_forward(case: &Case, got: &Outputs<Vec<f64>>) -> Result<(), String> {
    compare_outputs(case, got, &naive::forward(&case.problem, case.inputs()))
}

fn check_backward(case: &Case, got: &Gradients<Vec<f64>>) -> Result<(), String> {
    compare_gradients(case, got, &naive::backward(&case.problem, case.inputs(), case.output_gradients()))
}

fn check_both(
    case: &Case,
    outputs: &Outputs<Vec<f64>>,
    gradients: &Gradients<Vec<f64>>,
) -> Result<(), String> {
    let (expected, of_gradients) =
        naive::forward_and_backward(&case.problem, case.inputs(), case.output_gradients());
    compare_outputs(case, outputs, &expected)?;
    compare_gradients(case, gradients, &of_gradients)
}

/// Forward and backward against the naive twin.
pub fn check(case: &Case) -> Result<(), String> {
    check_both(case, &case.forward(forward), &case.backward(backward))
}

/// Runs a check over many cases, side by side, since most of the time is spent compiling, and panics with all that
/// failed.
pub fn all<T: Send>(cases: Vec<T>, check: impl Fn(T) -> Result<(), String> + Sync) {
    let failures: Vec<_> = cases.into_par_iter().filter_map(|case| check(case).err()).collect();
    let shown: Vec<_> = failures.iter().take(12).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), shown.join("\n"));
}

/// All cases in all element types; in single precision alone where it must be quick.
fn golden_cases(quick: bool) -> Vec<(golden::Golden, ElementType)> {
    let pairs = |&element| golden::load().into_iter().map(move |golden| (golden, element));
    ELEMENTS[..if quick { 1 } else { 4 }].iter().flat_map(pairs).collect()
}

pub fn golden_forward(quick: bool) {
    all(golden_cases(quick), |(golden, element)| {
        let case = golden.case(element);
        let got = case.forward(forward);
        check_forward(&case, &got)?;
        match element {
            // The inputs are the golden ones, not rounded: so are the outputs.
            ElementType::F64 => compare_outputs(&case, &got, &golden.outputs),
            _ => Ok(()),
        }
    });
}

pub fn golden_backward(quick: bool) {
    all(golden_cases(quick), |(golden, element)| {
        let case = golden.case(element);
        let got = case.backward(backward);
        check_backward(&case, &got)?;
        match element {
            ElementType::F64 => compare_gradients(&case, &got, &golden.gradients),
            _ => Ok(()),
        }
    });
}

/// Runs a check over random cases, in several runners side by side.
fn run_random(
    count: u32,
    strategy: impl Strategy<Value = Case> + Sync,
    check: impl Fn(&Case) -> Result<(), String> + Sync,
) {
    const RUNNERS: u32 = 8;
    let config = |runner| Config { max_shrink_iters: 20, ..random::config(count.div_ceil(RUNNERS), runner) };
    let checked = |case: Case| check(&case).map_err(TestCaseError::fail);
    let run = |runner| TestRunner::new(config(runner)).run(&strategy, checked).err();
    let failures: Vec<_> =
        (0..RUNNERS).into_par_iter().filter_map(run).map(|error| error.to_string()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

pub fn random(_: bool) {
    run_random(200, random::cases(&ELEMENTS, random::SMALL), check);
}

pub fn softplus(_: bool) {
    ON_DEVICE.softplus().unwrap_or_else(|words| panic!("{words}"));
}

/// Roundings that must not add up over the frames by more than the documentation says, nor cancel, nor overflow.
pub fn roundings(_: bool) {
    for case in roundings::long_rows() {
        // ex2.approx near 1 is not as often too large as too small; complex bilinear does without.
        let within = match (case.problem.complex, case.problem.method) {
            (true, Method::Bilinear) => 8e-6,
            (true, _) => 5e-5,
            (false, Method::Bilinear) => 1e-4,
            (false, _) => 1e-5,
        };
        let expected = naive::forward(&case.problem, case.inputs());
        let distance = distance(&case.forward(forward).y, &expected.y);
        assert!(distance < within, "y is {distance:e} away, allowed {within:e}: {}", case.name);
    }
    for case in [roundings::long_sums(), roundings::whole_turns(), roundings::growing()] {
        check(&case).unwrap_or_else(|words| panic!("{words}"));
    }
}

/// The backward pass from the states that the forward pass kept.
pub fn check_kept(case: &Case) -> Result<(), String> {
    check_kept_on(OnDevice::new(case.clone()), case)
}

fn check_kept_on(on_device: OnDevice, case: &Case) -> Result<(), String> {
    on_device.enqueue_forward(true).unwrap();
    on_device.enqueue_backward(true).unwrap();
    check_both(case, &on_device.outputs(), &on_device.gradients())
}

/// Forward where nobody wants the final state.
pub fn check_y(case: &Case) -> Result<(), String> {
    let on_device = OnDevice::new(case.clone()).without_final_state();
    on_device.enqueue_forward(false).unwrap();
    let expected = Outputs { final_state: None, ..naive::forward(&case.problem, case.inputs()) };
    compare_outputs(case, &on_device.outputs(), &expected)
}

pub fn boundary_states(quick: bool) {
    let limits = random::Limits { seq: 700, ..random::SMALL };
    run_random(if quick { 4 } else { 40 }, random::cases(&ELEMENTS, limits), check_kept);
    // Long enough for memory to be bounded, so with other distances between the states that are kept, and with segments that begin within
    // chunks (of bf16, both ways, in several sweeps).
    let long = block(1, 2500, 33, 16);
    // What chunks add to adjoints waits in the gradients, and just fits or does not: the last chunk is short.
    let ragged = problem(1, 1001, 64, 16);
    let problems = [
        bf16(ragged.clone()),
        bf16(Problem { complex: true, ..ragged.clone() }),
        Problem { complex: true, ..ragged.clone() },
        ragged,
        bf16(long.clone()),
        Problem { complex: true, bidirectional: true, ..long.clone() },
        f64(Problem { state: 40, ..long.clone() }),
        problem(1, 2500, 20, 16),
        long,
        // Several sweeps that walk several pieces together; the last segment ends before the first piece of the others.
        problem(1, 2400, 64, 40),
        bf16(problem(1, 2400, 64, 40)),
        f64(Problem { seq_idx: true, ..block(2, 2200, 64, 40) }),
        Problem { b: Projection::Constant, reverse: true, ..block(2, 2200, 64, 40) },
        // So many rows as nearly fill the device, each of which is one chunk.
        Problem { seq_idx: true, ..problem(270, 40, 24, 16) },
    ];
    // Sequences that no cache holds go past it. The emulated device has none, and would take long for the others.
    let large = [
        problem(22, 300, 512, 16),
        Problem { z: true, ..problem(2, 2200, 640, 8) },
        // Adjoint chunks that blocks join, and several pieces.
        f64(problem(12, 2000, 256, 16)),
        // Segments that begin within tiles, of several adjoint chunks each, and of many tiles.
        Problem { seq_idx: true, ..block(10, 200, 512, 16) },
        bf16(problem(8, 1000, 512, 16)),
    ];
    let large = large.into_iter().filter(|_| !is_emulated());
    let problems = problems
        .into_iter()
        .chain(borrowing())
        .chain(within_tiles())
        .chain(ending_short())
        .chain(joining())
        .chain(summing())
        .chain(large)
        .collect();
    all(problems, |problem| check_kept(&random::case(problem, 3)));
    // Where gradients lie less well, nothing else lies in them, and nothing is borrowed.
    let case = random::case(bf16(block(1, 2400, 64, 16)), 3);
    check_kept_on(OnDevice::shifted(case.clone(), 8, &["dx", "ddt"]), &case).unwrap();
}

/// Each tensor by itself where only single elements may be read and written, beside others where several may at a time.
pub fn odd_addresses(_: bool) {
    let case = random::case(Problem { initial_state: true, ..block(2, 60, 64, 16) }, 2);
    let read = ["x", "a", "b", "c", "initial_state", "dy", "dfinal_state"];
    let written = ["y", "final_state", "boundary_states", "dx", "dinitial_state"];
    all([&read[..], &written[..]].concat(), |name| {
        check_kept_on(OnDevice::shifted(case.clone(), 4, &[name]), &case)
    });
}

/// Problems in float64 without what the property at hand rules out.
fn exact_cases(
    count: u32,
    quick: bool,
    keep: fn(&mut Problem),
    check: impl Fn(&Case) -> Result<(), String> + Sync,
) {
    let strategy = (random::cases(&[ElementType::F64], random::SMALL), proptest::num::u64::ANY).prop_map(
        move |(case, seed)| {
            let mut problem = case.problem;
            keep(&mut problem);
            random::case(problem, seed)
        },
    );
    run_random(if quick { 3 } else { count }, strategy, check);
}

// Its laws are asked of cases in f64.
const ON_DEVICE: Scan = Scan { forward, backward, within: |_| Within { outputs: 1e-12, gradients: 1e-12 } };

/// Two halves, the state handed over forward and its gradient backward, equal the whole.
pub fn cut_in_two(quick: bool) {
    let causal = |p: &mut Problem| {
        (p.bidirectional, p.reverse, p.seq_idx, p.initial_state) = (false, false, false, true);
        p.seq = p.seq.max(2);
    };
    exact_cases(30, quick, causal, |case| ON_DEVICE.cut_in_two(case, case.problem.seq / 2));
}

/// A step a frame equals the scan.
pub fn steps(quick: bool) {
    let causal = |p: &mut Problem| {
        (p.bidirectional, p.reverse, p.seq_idx) = (false, false, false);
        p.seq = p.seq.min(9);
    };
    exact_cases(20, quick, causal, |case| ON_DEVICE.steps(case));
}

/// A packed row equals its sequences apart, forward and backward.
pub fn packed(quick: bool) {
    let plain = |p: &mut Problem| {
        (p.seq_idx, p.batch) = (true, 1);
        p.seq = p.seq.max(4);
    };
    exact_cases(30, quick, plain, |case| {
        // One sequence, a frame of padding, another sequence: kernels for two lengths.
        let seq = case.problem.seq;
        let mut case = case.clone();
        case.pack(|t| match t.cmp(&(seq / 3)) {
            Ordering::Less => 0.0,
            Ordering::Equal => -1.0,
            Ordering::Greater => 7.0,
        });
        ON_DEVICE.packed(&case)
    });
}

/// Scanning in reverse equals flipping time, scanning, and flipping back.
pub fn reverse(quick: bool) {
    exact_cases(30, quick, |p| p.reverse = true, |case| ON_DEVICE.reverse(case));
}

/// Batches that cross the bus in slices: of every kind of tensor, from and to either kind of memory.
pub fn slices(_: bool) {
    let packed = Problem { seq_idx: true, initial_state: true, ..block(8, 300, 256, 16) };
    let constant = Problem { b: Projection::Constant, bidirectional: true, ..block(6, 400, 128, 16) };
    let grouped =
        Problem { c: Projection::PerFrame { groups: 4 }, reverse: true, ..problem(32, 60, 512, 16) };
    // Rows that do not begin at whole packs stay in one slice.
    let odd = problem(8, 301, 255, 7);
    all_from_either_memory([packed, constant, grouped, bf16(block(4, 512, 512, 16)), odd]);
}

/// Small calls, whose inputs cross the bus together, and whose results the kernels write over it themselves if they lie in pinned memory
/// and no sweep adds to them: by each program.
pub fn small_calls(_: bool) {
    let step = Problem { initial_state: true, ..block(1, 1, 256, 16) };
    let two_sweeps = both(problem(2, 60, 64, 16));
    all_from_either_memory([
        step,
        problem(1, 60, 128, 16),
        Problem { seq_idx: true, ..block(4, 40, 80, 16) },
        bf16(reversed(block(1, 200, 64, 16))),
        block(64, 16, 64, 16),
        by(Method::Foh, problem(2, 100, 33, 5)),
        problem(2, 60, 64, 40),
        two_sweeps,
    ]);
}

fn all_from_either_memory<const COUNT: usize>(problems: [Problem; COUNT]) {
    let cases = problems.into_iter().enumerate().map(|(seed, problem)| random::case(problem, seed as u64));
    all(cases.collect(), |case| from_either_memory(&case));
}

/// A forward pass from and to pageable memory, and the same from and to pinned memory.
fn from_either_memory(case: &Case) -> Result<(), String> {
    let got = case.forward(forward);
    check_forward(case, &got)?;
    let pinned = |bytes: &[u8]| {
        let mut buffer = device().host_buffer(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    };
    let inputs = case.inputs().map(|_, bytes| pinned(bytes));
    // Some in pinned memory, and all.
    let some = Inputs { x: &inputs.x[..], b: &inputs.b[..], ..case.inputs() };
    for inputs in [case.inputs(), some, inputs.as_ref().map(|_, buffer| &buffer[..])] {
        let to_pinned = case.forward_with(|problem, _, outputs| {
            let mut results = outputs.as_ref().map(|_, bytes| pinned(bytes));
            forward(problem, inputs, results.as_mut().map(|_, buffer| &mut buffer[..]))?;
            outputs.y.copy_from_slice(&results.y);
            if let (Some(to), Some(from)) = (outputs.final_state, &results.final_state) {
                to.copy_from_slice(from);
            }
            Ok(())
        });
        if to_pinned != got {
            return Err(format!("pinned memory gives other numbers: {case:?}"));
        }
    }
    Ok(())
}

//! What must hold whatever happens: the same bits, many threads, failures, values that are not finite, memory.

use std::time::{Duration, Instant};

use cudarc::driver::result::ctx;
use selective_scan::cuda::{self, Pass};
use selective_scan::{
    ElementType, Error, Gradients, Inputs, Method, OutputGradients, Outputs, Problem, Projection, naive,
};

use crate::bounds;
use crate::correctness::check;
use crate::on_device::{Memory, OnDevice};
use crate::shapes::{bf16, block, by, packed, problem};
use crate::support::{Case, distance, random};
use crate::{backward, device, forward};

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn all_bits(case: &Case) -> Vec<Vec<u64>> {
    let outputs = case.forward(forward);
    let gradients = case.backward(backward);
    let tensors = outputs.iter().chain(gradients.iter());
    tensors.map(|(_, values)| bits(values)).collect()
}

pub fn same_bits(_: bool) {
    let constant = Problem { b: Projection::Constant, bidirectional: true, ..block(5, 300, 96, 33) };
    let problems = [block(32, 60, 512, 16), block(4, 2048, 256, 16), bf16(block(8, 700, 200, 16)), constant];
    for (seed, problem) in problems.into_iter().enumerate() {
        let case = random::case(problem, seed as u64);
        let first = all_bits(&case);
        for _ in 0..3 {
            assert!(first == all_bits(&case), "{:?}", case.problem);
        }
    }
}

pub fn many_threads(_: bool) {
    let cases: Vec<Case> = (0..16)
        .map(|seed| random::case(block(1 + seed % 3, 60 + 40 * seed, 64 + 8 * seed, 16), seed as u64))
        .collect();
    let expected: Vec<_> = cases.iter().map(all_bits).collect();
    std::thread::scope(|scope| {
        for (case, expected) in cases.iter().zip(&expected) {
            scope.spawn(move || {
                for _ in 0..5 {
                    assert!(&all_bits(case) == expected, "{:?}", case.problem);
                }
            });
        }
    });
}

/// A thread has the context after a call that it had before, none or another library's.
pub fn contexts(_: bool) {
    let case = random::case(block(2, 50, 64, 16), 3);
    let expected = case.forward(forward);
    let call = || {
        let before = ctx::get_current().unwrap();
        drop(device().host_buffer(1 << 20).unwrap());
        assert_eq!(case.forward(forward), expected);
        case.backward(backward);
        assert_eq!(ctx::get_current().unwrap(), before);
        before.is_some()
    };
    assert!(call(), "the tests have one");
    assert!(!std::thread::scope(|scope| scope.spawn(call).join().unwrap()), "a new thread has none");
}

/// The same bits as from host memory, and no address is followed that is not the device's.
pub fn in_place(_: bool) {
    let complex = Problem { complex: true, bidirectional: true, ..block(2, 100, 48, 8) };
    for (seed, problem) in
        [block(4, 60, 128, 16), bf16(block(3, 700, 64, 16)), complex].into_iter().enumerate()
    {
        let case = random::case(problem, seed as u64);
        let expected = all_bits(&case);
        let on_device = OnDevice::new(case);
        on_device.in_place().unwrap();
        let (outputs, gradients) = (on_device.outputs(), on_device.gradients());
        let tensors = outputs.iter().chain(gradients.iter());
        let got: Vec<_> = tensors.map(|(_, values)| bits(values)).collect();
        assert!(got == expected, "seed {seed}");

        // [start, start + 2⁴⁶) ends in memory of nobody.
        let memory = Memory::new(4096);
        assert_eq!([4096, 1 << 46].map(|len| cuda::owner(memory.address, len).unwrap()), [Some(0), None]);

        let host = [0u64; 4];
        let elsewhere: [fn(u64) -> u64; 4] =
            [|_| 0, |address| address + 4, |address| address + (1 << 44), |_| u64::MAX - 7];
        let pageable = host.as_ptr() as u64;
        for wrong in elsewhere.into_iter().map(Some).chain([None]) {
            for (pass, tensor, called) in [
                (Pass::Forward, "x", "x"),
                (Pass::Forward, "a", "a"),
                (Pass::Forward, "y", "y"),
                (Pass::Backward, "x", "x"),
                (Pass::Backward, "dy", "dy"),
                (Pass::Backward, "da", "a"),
            ] {
                let change = |name: &str, address| match (name == tensor, wrong) {
                    (true, Some(wrong)) => wrong(address),
                    (true, None) => pageable,
                    _ => address,
                };
                match on_device.in_place_with(pass, change) {
                    Err(Error::InvalidArgument { argument, expected, .. }) => {
                        assert_eq!(argument, called);
                        assert!(expected.contains("in memory of cuda:0"), "{expected}");
                    }
                    other => panic!("{tensor} elsewhere: {other:?}"),
                }
            }
        }
        on_device.in_place().unwrap();
    }
}

/// Calls from and to memory of the host, with results that the caller lets go of as the BEAM does, ask for no memory once there
/// were a few of them.
pub fn steady_state(_: bool) {
    let case = random::case(block(32, 60, 512, 16), 1);
    let call = || {
        let mut y = device().host_buffer(case.problem.bytes("y")).unwrap();
        let outputs = selective_scan::Outputs { y: &mut y[..], final_state: None };
        device().forward(&case.problem, case.inputs(), outputs).unwrap();
        case.backward(backward);
    };
    (0..5).for_each(|_| call());
    let warm = device().allocations();
    (0..50).for_each(|_| call());
    assert!(warm > 0, "the first calls asked for some");
    assert_eq!(device().allocations(), warm);
}

/// Pinned memory that is idle beyond the bound of buffers.rs is given back, and no more: of five buffers some are asked for again.
pub fn idle_memory(_: bool) {
    const BUFFERS: usize = 5;
    let take = || {
        let before = device().allocations();
        let all: Vec<_> = (0..BUFFERS).map(|_| device().host_buffer(512 << 20).unwrap()).collect();
        drop(all);
        device().allocations() - before
    };
    take();
    // A thread of its own gives it back, and takes its time.
    let deadline = Instant::now() + Duration::from_secs(20);
    let asked = loop {
        match take() {
            0 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            asked => break asked,
        }
    };
    assert!((1..BUFFERS).contains(&asked), "{asked} of {BUFFERS}");
}

pub fn recovery(_: bool) {
    let case = random::case(block(2, 50, 64, 16), 1);
    let expected = case.forward(forward);
    match device().host_buffer(1 << 50) {
        Err(Error::Failed { operation, reason, remedy }) => {
            assert!(operation.contains("cuda:0"), "{operation}");
            assert!(reason.starts_with("CUDA_ERROR"), "{reason}");
            assert!(!remedy.is_empty());
        }
        other => panic!("a buffer of 2^50 bytes: {other:?}"),
    }
    assert_eq!(case.forward(forward), expected);

    // The device is full: the call fails, and works when there is room again.
    let large = random::case(problem(8, 2048, 1024, 1), 2);
    let (free, _) = cudarc::driver::result::mem_get_info().unwrap();
    let hog = Memory::new(free - (64 << 20));
    let mut y = vec![0; large.problem.bytes("y")];
    let mut run = || {
        let outputs = selective_scan::Outputs { y: &mut y[..], final_state: None };
        device().forward(&large.problem, large.inputs(), outputs)
    };
    match run() {
        Err(Error::Failed { reason, .. }) => assert!(reason.contains("OUT_OF_MEMORY"), "{reason}"),
        other => panic!("a full device: {other:?}"),
    }
    drop(hog);
    run().unwrap();

    let wrong = device().forward(
        &case.problem,
        selective_scan::Inputs { x: &[0; 3], ..case.inputs() },
        selective_scan::Outputs { y: &mut [], final_state: None },
    );
    assert!(matches!(wrong, Err(Error::InvalidArgument { argument: "x", .. })), "{wrong:?}");
    assert_eq!(case.forward(forward), expected);

    // A tensor that the problem has and the call has not.
    let lacking = selective_scan::Inputs { d: None, ..case.inputs() };
    let mut y = vec![0; case.problem.bytes("y")];
    let outputs = selective_scan::Outputs { y: &mut y[..], final_state: None };
    let wrong = device().forward(&case.problem, lacking, outputs);
    assert!(matches!(wrong, Err(Error::InvalidArgument { argument: "d", .. })), "{wrong:?}");
    assert_eq!(case.forward(forward), expected);

    // A result in pinned memory is the same, also where kernels cannot write it.
    for at in [0, 2] {
        let mut buffer = device().host_buffer(at + case.problem.bytes("y")).unwrap();
        buffer.fill(0xff);
        let outputs = selective_scan::Outputs { y: &mut buffer[at..], final_state: None };
        device().forward(&case.problem, case.inputs(), outputs).unwrap();
        assert_eq!(naive::decode(ElementType::F32, &buffer[at..]), expected.y);
    }
}

/// A call with a tensor that is longer than its problem says, or there where it says none, or the other way round, is refused.
pub fn wrong_calls(_: bool) {
    type Length = fn(usize) -> Option<usize>;
    const LONGER: Length = |len| Some(len + 4);
    const ABSENT: Length = |_| None;
    let all = &packed(Problem { initial_state: true, ..block(1, 8, 16, 4) });
    // What the passes refuse of zeros for all tensors but one.
    let refused = |problem: &Problem, wrong: (&str, &str), length: Length| {
        let zeros = |role: &'static str| {
            move |name: &'static str| {
                let len = all.bytes(name);
                let len = if wrong == (role, name) { length(len) } else { Some(len) };
                Ok(len.map(|len| vec![0u8; len]))
            }
        };
        let none = |_| unreachable!("what is required is there");
        let inputs = Inputs::by_name(zeros("inputs"), none).unwrap();
        let mut outputs = Outputs::by_name(zeros("outputs"), none).unwrap();
        let output_gradients = OutputGradients::by_name(zeros("output gradients"), none).unwrap();
        let mut gradients = Gradients::by_name(zeros("gradients"), none).unwrap();
        let inputs = inputs.as_ref().map(|_, bytes| &bytes[..]);
        let output_gradients = output_gradients.as_ref().map(|_, bytes| &bytes[..]);
        let outputs = outputs.as_mut().map(|_, bytes| &mut bytes[..]);
        let gradients = gradients.as_mut().map(|_, bytes| &mut bytes[..]);
        let results =
            [forward(problem, inputs, outputs), backward(problem, inputs, output_gradients, gradients)];
        results.map(|result| match result {
            Ok(()) => None,
            Err(Error::InvalidArgument { argument, .. }) => Some(argument),
            Err(other) => panic!("{wrong:?}: {other:?}"),
        })
    };
    assert_eq!(refused(all, ("", ""), ABSENT), [None; 2]);
    const OPTIONAL: &[&str] = &["d", "z", "dt_bias", "initial_state", "seq_idx"];
    const DIFFERENTIABLE: &[&str] = &["x", "dt", "a", "b", "c", "d", "z", "dt_bias", "initial_state"];
    for (role, length, names, by) in [
        ("inputs", LONGER, DIFFERENTIABLE, [true, true]),
        ("inputs", LONGER, &["seq_idx"], [true, true]),
        ("inputs", ABSENT, OPTIONAL, [true, true]),
        ("outputs", LONGER, &["y", "final_state"], [true, false]),
        ("output gradients", LONGER, &["dy", "dfinal_state"], [false, true]),
        ("gradients", LONGER, DIFFERENTIABLE, [false, true]),
        ("gradients", ABSENT, &OPTIONAL[..3], [false, true]),
    ] {
        for &name in names {
            let expected = by.map(|refuses| refuses.then_some(name));
            assert_eq!(refused(all, (role, name), length), expected, "{name} of {role}");
        }
    }
    let without = [
        Problem { d: false, ..all.clone() },
        Problem { z: false, ..all.clone() },
        Problem { dt_bias: false, ..all.clone() },
        Problem { initial_state: false, ..all.clone() },
        Problem { seq_idx: false, ..all.clone() },
    ];
    for (problem, name) in without.iter().zip(OPTIONAL) {
        assert_eq!(refused(problem, ("", ""), ABSENT), [Some(*name); 2]);
    }
}

/// Where the twin is finite, so is the kernel, and close; elsewhere neither is.
pub fn not_a_number(_: bool) {
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for (seed, value) in values.into_iter().enumerate() {
        // With states that fill what threads hold of them, and with one that does not.
        for (name, state) in ["x", "dt", "b", "z"].into_iter().flat_map(|name| [(name, 4), (name, 5)]) {
            let mut case = random::case(block(2, 40, 33, state), seed as u64);
            let tensor = match name {
                "x" => &mut case.inputs.x,
                "dt" => &mut case.inputs.dt,
                "b" => &mut case.inputs.b,
                _ => case.inputs.z.as_mut().unwrap(),
            };
            let at = tensor.len() / 8 * 4;
            tensor[at..at + 4].copy_from_slice(&(value as f32).to_ne_bytes());
            let (outputs, gradients) = (case.forward(forward), case.backward(backward));
            let (expected, of_gradients) =
                naive::forward_and_backward(&case.problem, case.inputs(), case.output_gradients());
            let got = outputs.iter().chain(gradients.iter());
            for ((tensor, got), (_, expected)) in got.zip(expected.iter().chain(of_gradients.iter())) {
                for (got, expected) in got.iter().zip(expected) {
                    let words = format!("{name} {value}, {state} states: {tensor} is {got}, not {expected}");
                    assert_eq!(got.is_finite(), expected.is_finite(), "{words}");
                    assert!(
                        !got.is_finite() || (got - expected).abs() <= 1e-4 * (1.0 + expected.abs()),
                        "{words}"
                    );
                }
            }
        }
    }
    states_that_are_not_there_are_numbers();
    sequences_keep_it_to_themselves();
    nothing_comes_of_zero();
}

/// By an exact hold, outputs are finite where Δ is not, also of so many states as leave threads some that are not there. (The twin has
/// none: it multiplies an infinite Δ with a gain of zero.)
fn states_that_are_not_there_are_numbers() {
    for problem in [problem(1, 40, 3, 5), problem(20, 40, 512, 5), problem(1, 700, 33, 5)] {
        let mut case = random::case(by(Method::ZohExact, problem), 1);
        let row = case.problem.dim * 4;
        case.inputs.dt[20 * row..][..4].copy_from_slice(&f32::INFINITY.to_ne_bytes());
        let (got, expected) = (case.forward(forward), case.forward(selective_scan::cpu::forward));
        assert!(expected.y.iter().all(|y| y.is_finite()), "{:?}", case.problem);
        let distance = distance(&got.y, &expected.y);
        assert!(distance < 4e-6, "{distance} {:?}", case.problem);
    }
}

/// Where several sequences share a row, outputs after one that is not finite are as if it were, and so are gradients before it.
fn sequences_keep_it_to_themselves() {
    const FRAMES: usize = 7;
    // Rows in parts, in one tile, in segments that begin within tiles, in tiles, and in chunks of several tiles.
    for problem in [
        packed(problem(1, 40, 3, 1)),
        packed(problem(1, 60, 64, 16)),
        packed(by(Method::Bilinear, block(1, 60, 64, 16))),
        packed(problem(5, 58, 1024, 16)),
        packed(problem(8, 70, 192, 16)),
        bf16(packed(block(1, 700, 64, 16))),
        packed(problem(1, 2070, 64, 16)),
    ] {
        let mut case = random::case(problem, 1);
        let Problem { seq, dim, state, element, .. } = case.problem;
        case.pack_sequences_of(FRAMES);
        let (finite, outputs) = (case.backward(backward), case.forward(forward));
        // The last sequence of the first row.
        let before = (seq - 1) / FRAMES * FRAMES;
        let of_frames = |width: usize| before * width * element.size()..seq * width * element.size();
        case.output_gradients.dy[of_frames(dim)].fill(0xff);
        case.inputs.c[of_frames(state)].fill(0xff);
        let with_nan = case.backward(backward);
        let same = |with_nan: &[f64], finite: &[f64]| with_nan[..before * dim] == finite[..before * dim];
        assert!(with_nan.x[before * dim..seq * dim].iter().all(|dx| dx.is_nan()), "{:?}", case.problem);
        assert!(same(&with_nan.x, &finite.x) && same(&with_nan.dt, &finite.dt), "{:?}", case.problem);
        // The first sequence of the first row.
        case.inputs.x[..FRAMES * dim * element.size()].fill(0xff);
        let with_nan = case.forward(forward);
        let (own, others) = with_nan.y[..before * dim].split_at(FRAMES * dim);
        assert!(own.iter().all(|y| y.is_nan()), "{:?}", case.problem);
        assert!(others == &outputs.y[FRAMES * dim..before * dim], "{:?}", case.problem);
    }
}

/// Frames of padding may hold anything: what is no number there reaches nothing, and the gradients there are zero.
pub fn what_padding_holds(_: bool) {
    // Lanes over time and rows in parts, by both ways to the gradient of a decay, rows in one tile, segments that begin within tiles, warps
    // that hand the state on, several rounds, complex states, and chunks. Where Δ is limited, its slope is asked of dt.
    for problem in [
        packed(problem(1, 60, 64, 16)),
        packed(by(Method::Bilinear, block(1, 60, 64, 16))),
        packed(block(2, 58, 512, 16)),
        Problem { dt_limit: Some([0.01, 0.5]), ..packed(block(8, 70, 192, 16)) },
        packed(block(1, 333, 40, 16)),
        packed(by(Method::Foh, block(1, 70, 33, 40))),
        Problem { complex: true, ..packed(by(Method::Bilinear, block(1, 150, 33, 5))) },
        bf16(packed(block(1, 700, 64, 16))),
    ] {
        let mut case = random::case(problem, 1);
        let of = |case: &Case| (case.forward(forward), case.backward(backward));
        let expected = of(&case);
        let p = &case.problem;
        let indices = naive::decode(ElementType::S32, case.inputs.seq_idx.as_ref().unwrap());
        let padding: Vec<_> = (0..indices.len()).filter(|&frame| indices[frame] < 0.0).collect();
        assert!(!padding.is_empty(), "{p:?}");
        let of_frame = |name: &str| p.bytes(name) / indices.len();
        let widths = [of_frame("x"), of_frame("b")];
        let tensors = [&mut case.inputs.x, &mut case.inputs.dt, &mut case.output_gradients.dy];
        let wide = tensors.into_iter().chain(case.inputs.z.as_mut()).map(|tensor| (tensor, widths[0]));
        let narrow = [&mut case.inputs.b, &mut case.inputs.c].map(|tensor| (tensor, widths[1]));
        for (tensor, width) in wide.chain(narrow) {
            padding.iter().for_each(|frame| tensor[frame * width..][..width].fill(0xff));
        }
        assert!(of(&case) == expected, "{:?}", case.problem);
    }
}

/// Of zero nothing comes, even where decays grow beyond all numbers over a row.
fn nothing_comes_of_zero() {
    for problem in [problem(1, 60, 64, 16), problem(1, 333, 40, 16), problem(1, 1500, 384, 16)] {
        check(&random::growing_from_zero(problem, 12.0)).unwrap();
    }
}

/// An infinite rate forgets at every frame, and at none of a chunk that is all padding.
pub fn infinite_rates(_: bool) {
    let mut case = random::case(packed(problem(1, 2000, 8, 16)), 1);
    case.inputs.a[..64].copy_from_slice(&f32::NEG_INFINITY.to_ne_bytes().repeat(16));
    case.pack(|frame| if (500..1500).contains(&frame) { -1.0 } else { 0.0 });
    let (got, expected) = (case.forward(forward), naive::forward(&case.problem, case.inputs()));
    assert!(expected.y.iter().all(|y| y.is_finite()));
    let distance = distance(&got.y, &expected.y);
    assert!(distance < 2e-6, "{distance}");

    // Gradients by one that is infinite in the units of the exponential alone, so that the reference has them, too: of rows in parts, in
    // one tile, in tiles and in chunks, all of which walk frames that there are not.
    for problem in [
        problem(1, 60, 64, 16),
        problem(1, 28, 64, 16),
        packed(problem(1, 58, 64, 16)),
        problem(20, 58, 512, 16),
        packed(problem(20, 58, 512, 16)),
        problem(3, 201, 64, 16),
        problem(1, 2070, 64, 16),
        // Of more states than a thread holds at a time.
        problem(1, 61, 33, 40),
    ] {
        let mut case = random::case(problem, 1);
        case.inputs.a[..4 * 64].copy_from_slice(&(-3e38_f32).to_ne_bytes().repeat(64));
        check(&case).unwrap();
    }
}

/// From 2048 frames on, the backward pass needs less than a tenth of what flows into it.
pub fn memory(_: bool) {
    bounds::backward_takes_a_tenth(|problem| device().workspace_bytes(problem, Pass::Backward));
}

//! How long it takes: kernels by graph replay, whole calls from and to host memory. Microseconds, medians.

use std::time::Instant;

use cudarc::driver::result;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use selective_scan::naive::encode;
use selective_scan::{ElementType, Outputs, Problem};

use crate::device;
use crate::on_device::OnDevice;
use crate::support::{Case, random};

/// Graphs that are timed, and whole calls that are, after some that are not.
const REPLAYS: usize = 15;
const CALLS: usize = 300;

/// The kernels of every pass, without the launches of the host.
pub fn kernels(problem: &Problem) -> [(&'static str, f64); 3] {
    let calls = calls(problem);
    let case = OnDevice::new(long_case(problem));
    let forward = replay(&case, calls, || case.enqueue_forward(false).unwrap());
    let backward = replay(&case, calls, || case.enqueue_backward(false).unwrap());
    case.enqueue_forward(true).unwrap();
    let from_boundary_states = replay(&case, calls, || case.enqueue_backward(true).unwrap());
    [("forward", forward), ("backward", backward), ("backward from boundary states", from_boundary_states)]
}

/// A forward pass from and to host memory of either kind.
pub fn host_calls(problem: &Problem) -> [(&'static str, f64); 3] {
    let case = random::case(problem.clone(), 1);
    let mut pageable = vec![0; problem.bytes("y")];
    let mut pinned = device().host_buffer(problem.bytes("y")).unwrap();
    let inputs = case.inputs().map(|_, bytes| {
        let mut buffer = device().host_buffer(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    });
    let to_pageable = each(|| {
        device().forward(problem, case.inputs(), y_alone(&mut pageable)).unwrap();
    });
    let to_pinned = each(|| {
        device().forward(problem, case.inputs(), y_alone(&mut pinned)).unwrap();
    });
    let from_pinned = each(|| {
        let inputs = inputs.as_ref().map(|_, buffer| &buffer[..]);
        device().forward(problem, inputs, y_alone(&mut pinned)).unwrap();
    });
    [
        ("pageable to pageable", to_pageable),
        ("pageable to pinned", to_pinned),
        ("pinned to pinned", from_pinned),
    ]
}

fn each(mut run: impl FnMut()) -> f64 {
    (0..20).for_each(|_| run());
    let times = (0..CALLS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e6
    });
    median(times.collect())
}

fn y_alone(y: &mut [u8]) -> Outputs<&mut [u8]> {
    Outputs { y, final_state: None }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median time in microseconds of what `enqueue` puts on the stream, replayed as a graph.
fn replay(on_device: &OnDevice, calls: usize, enqueue: impl Fn()) -> f64 {
    let stream = on_device.stream;
    enqueue();
    on_device.wait();
    // SAFETY: the stream is alive; all that is captured uses memory that outlives the replays.
    unsafe {
        result::stream::begin_capture(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .unwrap();
        (0..calls).for_each(|_| enqueue());
        let graph = result::stream::end_capture(stream).unwrap();
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let replayed = result::graph::instantiate(graph, flags).unwrap();
        let event = || result::event::create(CUevent_flags::CU_EVENT_DEFAULT).unwrap();
        let (start, end) = (event(), event());
        let mut times = Vec::new();
        for repeat in 0..REPLAYS + 3 {
            result::event::record(start, stream).unwrap();
            result::graph::launch(replayed, stream).unwrap();
            result::event::record(end, stream).unwrap();
            result::event::synchronize(end).unwrap();
            if repeat >= 3 {
                times.push(f64::from(result::event::elapsed(start, end).unwrap()) * 1e3 / calls as f64);
            }
        }
        result::graph::exec_destroy(replayed).unwrap();
        result::graph::destroy(graph).unwrap();
        result::event::destroy(start).unwrap();
        result::event::destroy(end).unwrap();
        median(times)
    }
}

/// Calls in a graph: so many that short ones take as long as an event can measure.
fn calls(problem: &Problem) -> usize {
    if problem.batch * problem.seq * problem.dim < 2_000_000 { 20 } else { 2 }
}

/// A problem with random data that repeat, since billions of fresh ones take minutes.
fn long_case(problem: &Problem) -> Case {
    let few = random::case(Problem { batch: 1, seq: 64, dim: 1024, ..problem.clone() }, 7);
    let cycle =
        |name: &str, bytes: &Vec<u8>| bytes.iter().copied().cycle().take(problem.bytes(name)).collect();
    // Four sequences a row: the few frames' own packing has one in ten frames.
    let row = || (0..problem.seq).map(|i| (4 * i / problem.seq) as f64);
    let packing: Vec<f64> = (0..problem.batch).flat_map(|_| row()).collect();
    let mut inputs = few.inputs.as_ref().map(cycle);
    inputs.seq_idx = problem.seq_idx.then(|| encode(ElementType::S32, &packing));
    Case {
        name: few.name.clone(),
        inputs,
        output_gradients: few.output_gradients.as_ref().map(cycle),
        problem: problem.clone(),
    }
}

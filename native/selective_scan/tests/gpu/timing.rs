//! How long it takes: kernels by graph replay, whole calls from and to host memory.

use std::time::Instant;

use cudarc::driver::result;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use selective_scan::{ElementType, Outputs, Problem};

use crate::device;
use crate::on_device::OnDevice;
use crate::shapes::problem;
use crate::support::{Case, random};

/// One measured time.
pub struct Figure {
    what: String,
    shape: String,
    microseconds: f64,
}

impl Figure {
    /// As a JSON object.
    pub fn json(&self) -> String {
        let Self { what, shape, microseconds } = self;
        format!("{{\"what\": {what:?}, \"shape\": {shape:?}, \"microseconds\": {microseconds:.1}}}")
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median time in microseconds of what `enqueue` puts on the stream, replayed as a graph.
fn replay(on_device: &OnDevice, calls: usize, repeats: usize, enqueue: impl Fn()) -> f64 {
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
        for repeat in 0..repeats + 3 {
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

/// The shapes that are reported, by their names.
fn registry() -> Vec<(&'static str, Problem)> {
    vec![
        ("realtime", problem(32, 60, 512, 16)),
        ("one game", problem(1, 60, 512, 16)),
        ("profile", problem(8, 1024, 512, 16)),
        ("vision", problem(64, 197, 768, 16)),
        ("mamba-130m", problem(8, 2048, 1536, 16)),
        ("mamba-2.8b", problem(4, 4096, 5120, 16)),
        ("long", problem(1, 65_536, 1024, 16)),
        ("one prompt", problem(1, 1024, 1536, 16)),
    ]
}

/// A problem with random data that repeat, since billions of fresh ones take minutes.
fn long_case(problem: Problem) -> Case {
    let few = random::case(Problem { batch: 1, seq: 64, dim: 1024, ..problem.clone() }, 7);
    let cycle =
        |name: &str, bytes: &Vec<u8>| bytes.iter().copied().cycle().take(problem.bytes(name)).collect();
    Case {
        name: few.name.clone(),
        inputs: few.inputs.as_ref().map(cycle),
        gradients: few.gradients.as_ref().map(cycle),
        problem: problem.clone(),
    }
}

fn y_alone(y: &mut [u8]) -> Outputs<&mut [u8]> {
    Outputs { y, final_state: None }
}

fn describe(name: &str, problem: &Problem) -> String {
    let Problem { batch, seq, dim, state, element, .. } = problem;
    format!("{name} {batch}x{seq}x{dim}, state {state}, {element}")
}

/// All figures of shapes that have the word `only` in their description, printed as they come.
pub fn figures(only: &str) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |what: &str, shape: String, microseconds: f64| {
        println!("{microseconds:10.1} µs  {what:34} {shape}");
        figures.push(Figure { what: what.to_owned(), shape, microseconds });
    };
    for element in [ElementType::F32, ElementType::Bf16] {
        for (name, problem) in registry() {
            let problem = Problem { element, ..problem };
            let shape = describe(name, &problem);
            if !shape.contains(only) {
                continue;
            }
            let calls = if problem.batch * problem.seq * problem.dim < 2_000_000 { 20 } else { 2 };
            let case = OnDevice::new(long_case(problem));
            add(
                "forward kernels",
                shape.clone(),
                replay(&case, calls, 15, || case.enqueue_forward(false).unwrap()),
            );
            add(
                "backward kernels",
                shape.clone(),
                replay(&case, calls, 15, || case.enqueue_backward(false).unwrap()),
            );
            case.enqueue_forward(true).unwrap();
            let kept = replay(&case, calls, 15, || case.enqueue_backward(true).unwrap());
            add("backward kernels, from checkpoints", shape, kept);
        }
    }
    for (name, problem) in [("realtime", problem(32, 60, 512, 16)), ("one game", problem(1, 60, 512, 16))] {
        if !describe(name, &problem).contains(only) {
            continue;
        }
        let case = random::case(problem.clone(), 1);
        let mut pageable = vec![0; problem.bytes("y")];
        let mut pinned = device().host_buffer(problem.bytes("y")).unwrap();
        let inputs = case.inputs().map(|_, bytes| {
            let mut buffer = device().host_buffer(bytes.len()).unwrap();
            buffer.copy_from_slice(bytes);
            buffer
        });
        let mut time = |what: &str, run: &mut dyn FnMut()| {
            (0..20).for_each(|_| run());
            let times = (0..300).map(|_| {
                let start = Instant::now();
                run();
                start.elapsed().as_secs_f64() * 1e6
            });
            add(what, describe(name, &problem), median(times.collect()));
        };
        time("call, pageable to pageable", &mut || {
            device().forward(&problem, case.inputs(), y_alone(&mut pageable)).unwrap();
        });
        time("call, pageable to pinned", &mut || {
            device().forward(&problem, case.inputs(), y_alone(&mut pinned)).unwrap();
        });
        time("call, pinned to pinned", &mut || {
            let inputs = inputs.as_ref().map(|_, buffer| &buffer[..]);
            device().forward(&problem, inputs, y_alone(&mut pinned)).unwrap();
        });
    }
    figures
}

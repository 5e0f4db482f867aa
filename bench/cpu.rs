//! The CPU backend on the shapes that matter: `cargo bench --bench cpu` in native/.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use selective_scan::{Outputs, Problem, cpu};

#[path = "../native/selective_scan/tests/support/mod.rs"]
mod support;

use support::random;
use support::registry::Registry;

/// Of bench/shapes.json, those that a CPU scans often enough in the time of a benchmark.
/// cpu_beside_jax.py times the first two beside JAX.
const NAMES: [&str; 4] = ["realtime", "one game", "profile", "one prompt"];

/// What is played frame by frame. It is not in the registry, whose shapes are scanned backward too, on GPUs.
fn step() -> (String, Problem) {
    ("step".to_owned(), Problem { initial_state: true, ..random::zoh(1, 1, 512, 16) })
}

fn scans() -> impl Iterator<Item = (String, Problem)> {
    let shapes = Registry::read().shapes;
    NAMES.into_iter().map(move |name| {
        let shape = shapes.iter().find(|shape| shape.name == name).expect("a shape of bench/shapes.json");
        (name.to_owned(), shape.problem())
    })
}

/// What is scanned in a call.
fn elements(problem: &Problem) -> Throughput {
    Throughput::Elements((problem.batch * problem.seq * problem.dim) as u64)
}

fn forward(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("forward");
    for (name, problem) in scans().chain([step()]) {
        let case = random::case(problem, 0);
        let names = Outputs { y: (), final_state: case.problem.initial_state.then_some(()) };
        let mut outputs = names.map(|name, ()| vec![0u8; case.problem.bytes(name)]);
        group.throughput(elements(&case.problem));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                let outputs = outputs.as_mut().map(|_, bytes| &mut bytes[..]);
                cpu::forward(&case.problem, case.inputs(), outputs).unwrap()
            });
        });
    }
}

fn backward(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("backward");
    for (name, problem) in scans() {
        let case = random::case(problem, 0);
        let mut gradients = case.gradient_buffers(0);
        group.throughput(elements(&case.problem));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                let gradients = gradients.as_mut().map(|_, bytes| &mut bytes[..]);
                cpu::backward(&case.problem, case.inputs(), case.output_gradients(), gradients).unwrap()
            });
        });
    }
}

criterion_group!(benches, forward, backward);
criterion_main!(benches);

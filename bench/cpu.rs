//! The CPU backend on the shapes that matter: `cargo bench --bench cpu` in native/.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use selective_scan::{Outputs, cpu};

#[path = "../native/selective_scan/tests/support/mod.rs"]
mod support;

use support::{Case, random};

/// Name, batch, seq, dim, state. cpu_beside_jax.py times the first two beside JAX.
const SHAPES: [(&str, [usize; 4]); 5] = [
    ("window", [32, 60, 512, 16]),
    ("one game", [1, 60, 512, 16]),
    ("step", [1, 1, 512, 16]),
    ("profile", [8, 1024, 512, 16]),
    ("one prompt", [1, 1024, 1536, 16]),
];

fn case([batch, seq, dim, state]: [usize; 4]) -> Case {
    let mut problem = random::zoh(batch, seq, dim, state);
    problem.initial_state = seq == 1;
    random::case(problem, 0)
}

fn forward(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("forward");
    for (name, shape) in SHAPES {
        let case = case(shape);
        let names = Outputs { y: (), final_state: case.problem.initial_state.then_some(()) };
        let mut outputs = names.map(|name, ()| vec![0u8; case.problem.bytes(name)]);
        group.throughput(Throughput::Elements(shape[..3].iter().product::<usize>() as u64));
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
    for (name, shape) in SHAPES.into_iter().filter(|(_, [_, seq, ..])| *seq > 1) {
        let case = case(shape);
        let mut gradients = case.gradient_buffers(0);
        group.throughput(Throughput::Elements(shape[..3].iter().product::<usize>() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                let gradients = gradients.as_mut().map(|_, bytes| &mut bytes[..]);
                cpu::backward(&case.problem, case.inputs(), case.gradients(), gradients).unwrap()
            });
        });
    }
}

criterion_group!(benches, forward, backward);
criterion_main!(benches);

//! The CPU backend on the shapes that matter: `cargo bench --bench cpu`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use selective_scan::{Outputs, cpu};

#[path = "../tests/support/mod.rs"]
mod support;

/// Name, batch, seq, dim, state.
const SHAPES: [(&str, [usize; 4]); 4] = [
    ("window", [32, 60, 512, 16]),
    ("one game", [1, 60, 512, 16]),
    ("step", [1, 1, 512, 16]),
    ("profile", [8, 1024, 512, 16]),
];

fn forward(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group(format!("forward {}", cpu::instruction_set()));
    for (name, [batch, seq, dim, state]) in SHAPES {
        let mut problem = support::random::zoh(batch, seq, dim, state);
        problem.initial_state = seq == 1;
        let case = support::random::case(problem, 0);
        let names = Outputs { y: (), final_state: case.problem.initial_state.then_some(()) };
        let mut outputs = names.map(|name, ()| vec![0u8; case.problem.bytes(name)]);
        group.throughput(Throughput::Elements((batch * seq * dim) as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                cpu::forward(&case.problem, case.inputs(), outputs.as_mut().map(|_, bytes| &mut bytes[..]))
                    .unwrap()
            });
        });
    }
}

criterion_group!(benches, forward);
criterion_main!(benches);

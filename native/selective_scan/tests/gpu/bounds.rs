//! The bound on the memory of the backward pass.

use selective_scan::{Problem, Projection};

use crate::shapes::{bf16, block, f64, problem};

/// From 2048 frames on, the workspace is less than a tenth of the sequences and parameters that flow in.
pub fn backward_takes_a_tenth(workspace_bytes: impl Fn(&Problem) -> usize) {
    let problems = [
        problem(8, 2048, 1536, 16),
        problem(1, 2048, 512, 16),
        problem(4, 4096, 5120, 16),
        problem(1, 65_536, 1024, 16),
        problem(2, 2048, 1024, 64),
        problem(2, 2048, 1024, 128),
        block(8, 2048, 512, 16),
        bf16(problem(8, 2048, 1536, 16)),
        bf16(problem(1, 2048, 512, 16)),
        block(1, 4096, 1024, 16),
        bf16(block(2, 3000, 1024, 16)),
        f64(problem(2, 2048, 512, 16)),
        Problem { bidirectional: true, ..problem(2, 2048, 1024, 16) },
        Problem { seq_idx: true, ..problem(2, 2048, 1024, 16) },
        Problem { seq_idx: true, ..bf16(problem(1, 4798, 305, 16)) },
        Problem { b: Projection::Constant, c: Projection::Constant, ..problem(2, 2048, 1024, 16) },
        Problem { b: Projection::PerFrame { groups: 8 }, ..problem(2, 2048, 1024, 16) },
    ];
    for problem in problems {
        let optional = problem.z.then_some("z");
        let names = ["x", "dt", "a", "b", "c", "dy"].into_iter().chain(optional);
        let inputs: usize = names.map(|name| problem.bytes(name)).sum();
        let share = workspace_bytes(&problem) as f64 / inputs as f64;
        assert!(share < 0.1, "{:.1}% of the inputs: {problem:?}", 100.0 * share);
    }
}

//! Plain problems of a given shape.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use selective_scan::{Coefficients, ElementType, Method, Problem, Projection};

/// A plain problem of this shape.
pub fn problem(batch: usize, seq: usize, dim: usize, state: usize) -> Problem {
    Problem {
        batch,
        seq,
        dim,
        state,
        element: ElementType::F32,
        complex: false,
        b: Projection::PerFrame { groups: 1 },
        c: Projection::PerFrame { groups: 1 },
        d: false,
        z: false,
        dt_bias: false,
        initial_state: false,
        seq_idx: false,
        method: Method::Zoh,
        coefficients: Coefficients::Exact,
        bidirectional: false,
        reverse: false,
        dt_softplus: false,
        dt_limit: None,
    }
}

/// The same with what a Mamba block adds.
pub fn block(batch: usize, seq: usize, dim: usize, state: usize) -> Problem {
    Problem { d: true, z: true, dt_bias: true, dt_softplus: true, ..problem(batch, seq, dim, state) }
}

/// Problems in one sweep, whose sums of dA an H200 has in room that it borrows, over several pieces. Of some the last segment ends before
/// the piece of the others that is walked first.
pub fn borrowing() -> Vec<Problem> {
    vec![
        problem(1, 2056, 64, 8),
        bf16(reversed(block(1, 2400, 64, 16))),
        Problem { c: Projection::Constant, seq_idx: true, ..block(2, 2200, 64, 16) },
        f64(block(1, 2400, 64, 12)),
        Problem { complex: true, ..block(1, 2400, 64, 8) },
    ]
}

/// Problems that an H200 walks back in segments which begin and end within tiles.
pub fn within_tiles() -> Vec<Problem> {
    vec![
        problem(8, 70, 192, 16),
        bf16(reversed(block(3, 70, 500, 16))),
        packed(both(block(4, 70, 384, 16))),
        f64(packed(problem(2, 70, 768, 12))),
        Problem { complex: true, ..by(Method::Foh, block(6, 70, 256, 16)) },
        bf16(packed(block(1, 70, 768, 40))),
        // Long enough for memory to be bounded, of so few states that chunks are tiles; sums of dA borrow their room.
        block(1, 2100, 64, 2),
        Problem { b: Projection::Constant, ..problem(8, 70, 192, 16) },
        Problem { c: Projection::PerFrame { groups: 2 }, ..by(Method::Rk4, problem(8, 70, 192, 16)) },
    ]
}

/// Problems of which an H200's blocks join more adjoint chunks than they read at a time: of all orders of states, of a single channel in a
/// pair.
pub fn joining() -> Vec<Problem> {
    vec![
        problem(1, 480, 333, 16),
        bf16(reversed(block(2, 450, 33, 16))),
        packed(problem(1, 500, 101, 16)),
        by(Method::Bilinear, packed(problem(1, 400, 65, 12))),
        Problem { complex: true, ..problem(1, 350, 33, 8) },
        f64(block(1, 330, 50, 16)),
        // Channels that are none within dim, and slots beyond the last state.
        Problem { b: Projection::PerFrame { groups: 3 }, c: Projection::Constant, ..block(1, 300, 99, 16) },
        packed(problem(1, 300, 211, 3)),
    ]
}

/// Problems whose sums of dB and dC an H200 shares among all numbers of threads that there can be: of 4 to 128 parts, in groups.
pub fn summing() -> Vec<Problem> {
    vec![
        problem(2, 33, 72, 16),
        Problem { c: Projection::PerFrame { groups: 2 }, ..bf16(block(1, 40, 200, 16)) },
        packed(problem(1, 40, 512, 12)),
        f64(both(problem(1, 60, 1024, 16))),
        problem(1, 60, 1024, 16),
        Problem { b: Projection::Constant, ..problem(3, 90, 200, 16) },
    ]
}

/// Problems whose last segment an H200 walks back in shorter pieces than the others.
pub fn ending_short() -> Vec<Problem> {
    vec![
        problem(1, 2448, 32, 16),
        bf16(reversed(problem(1, 2928, 64, 16))),
        block(2, 2448, 16, 16),
        both(problem(1, 2472, 32, 16)),
        packed(block(1, 2352, 16, 16)),
        Problem { complex: true, ..problem(1, 2088, 16, 8) },
        f64(reversed(block(1, 2120, 32, 12))),
        Problem { reverse: true, ..problem(1, 2488, 32, 40) },
        Problem { b: Projection::Constant, ..block(1, 2448, 16, 16) },
        by(Method::Rk4, problem(2, 2448, 32, 16)),
        // In as many blocks as leave a few places, of few channels each.
        problem(1080, 80, 4, 16),
        // In several pieces where memory is not bounded, and in several passes: within tiles, and in one launch.
        problem(1080, 166, 3, 40),
        problem(80, 194, 3, 40),
        problem(1, 68, 3, 40),
        // In a launch that covers more of the last segment than of the others.
        f64(problem(2, 2931, 4, 8)),
        // In two launches, one of which leaves its sums in the gradients.
        problem(1, 2072, 16, 4),
    ]
}

/// The same by another method.
pub fn by(method: Method, problem: Problem) -> Problem {
    Problem { method, ..problem }
}

/// The same with rows packed.
pub fn packed(problem: Problem) -> Problem {
    Problem { seq_idx: true, ..problem }
}

/// The same against the order of its frames.
pub fn reversed(problem: Problem) -> Problem {
    Problem { reverse: true, ..problem }
}

/// The same both ways.
pub fn both(problem: Problem) -> Problem {
    Problem { bidirectional: true, ..problem }
}

/// The same in bfloat16.
pub fn bf16(problem: Problem) -> Problem {
    Problem { element: ElementType::Bf16, ..problem }
}

/// The same in double precision.
pub fn f64(problem: Problem) -> Problem {
    Problem { element: ElementType::F64, ..problem }
}

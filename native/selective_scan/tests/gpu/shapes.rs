//! Plain problems of a given shape.

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

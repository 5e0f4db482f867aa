//! The states before every chunk of frames, which the forward pass can keep for the backward pass.

use super::policy::boundary_interval;
use crate::Problem;

/// {directions, batch, chunks, dim, state}, with a trailing 2 where complex: the states that the forward pass can
/// keep for the backward pass. How many chunks there are depends on neither batch nor dim.
pub fn boundary_shape(problem: &Problem) -> Vec<usize> {
    problem.boundary_shape(problem.seq.div_ceil(boundary_interval(problem)))
}

/// The bytes of these states.
pub fn boundary_bytes(problem: &Problem) -> usize {
    boundary_shape(problem).iter().product::<usize>() * problem.element.state_type().size()
}

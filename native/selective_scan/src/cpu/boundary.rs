//! The states before every chunk of frames, which the forward pass can keep for the backward pass.

use super::forward::TILE;
use crate::check::check_length;
use crate::{Error, Problem};

/// Chunks have a multiple of so many frames.
const GRANULE: usize = 64;

// The forward pass comes to the states before a chunk where one of its tiles begins, and nowhere else.
const _: () = assert!(GRANULE.is_multiple_of(TILE), "chunks begin where tiles do");

/// Frames between the states that the backward pass starts from on the CPU. The longer, the less memory they
/// take, and the more of it a chunk: here they, and λ of a second direction, take a twenty-fourth of x, dt and dy
/// together. Of many states they take more, in proportion: a chunk does not grow beyond what 128 need, 64 in 16 bits, half of
/// that complex, a third both ways. Its b and c, which every thread has of its own, grow with it and with the states.
pub fn boundary_interval(problem: &Problem) -> usize {
    let state = problem.state * problem.components() * problem.element.state_type().size();
    let sets = if problem.bidirectional { 3 } else { 1 };
    (8 * sets * state / problem.element.size()).next_multiple_of(GRANULE).clamp(128, 1024)
}

/// How many chunks there are of a row, the last of which may be shorter.
pub fn chunks(problem: &Problem) -> usize {
    problem.seq.div_ceil(boundary_interval(problem))
}

/// {directions, batch, chunks, dim, state}, with a trailing 2 where complex.
pub fn boundary_shape(problem: &Problem) -> Vec<usize> {
    problem.boundary_shape(chunks(problem))
}

/// The bytes of these states.
pub fn boundary_bytes(problem: &Problem) -> usize {
    boundary_shape(problem).iter().product::<usize>() * problem.element.state_type().size()
}

/// Refuses memory that is not as long as these states.
pub fn check_boundary_length(problem: &Problem, got: usize) -> Result<(), Error> {
    check_length("boundary_states", boundary_bytes(problem), got)
}

/// Where the channels' states before a chunk begin among them, in channels.
pub fn boundary_place(problem: &Problem, second_sweep: bool, batch: usize, chunk: usize) -> usize {
    ((usize::from(second_sweep) * problem.batch + batch) * chunks(problem) + chunk) * problem.dim
}

//! What the backward pass carries from kernel to kernel, and the bound on it, from which the frames of a chunk follow.

use super::layout::{BACKWARD_TILE, LONGEST_ALONE, SPAN, backward_states, lanes_of, slots_of_sweep};
use crate::Problem;
use crate::cuda::arguments::sweep_count;
use crate::cuda::policy::{Layout, blocks, decay_by_sum, real_bytes, state_words, varying};

/// From here on the backward pass carries less than a tenth of its inputs from kernel to kernel.
pub(super) const BOUNDED_FROM: usize = 2048;
/// The share of the sequences among these that states at the boundaries of chunks take of it at most. Of 16 states in f32 by zoh one is
/// kept every 96 frames then, which leaves room for what segments carry (bench/NOTES.md).
const BOUNDARY_SHARE: f64 = 0.0595;

/// Bytes of the sequences that flow into the backward pass, a frame and channel.
fn inputs(problem: &Problem) -> usize {
    let sequences = if problem.z { 4 } else { 3 };
    sequences * problem.element.size()
}

/// Bytes of these sequences and of their gradients.
pub(in crate::cuda::policy) fn sequence_bytes(problem: &Problem) -> usize {
    let without_y = 2 * inputs(problem) - problem.element.size();
    without_y * problem.batch * problem.seq * problem.dim
}

/// Bytes that the backward pass may carry from kernel to kernel, where that is bounded: less than a tenth of what flows in.
pub(super) fn most_carried(problem: &Problem) -> usize {
    let names = ["x", "dt", "a", "b", "c", "dy"].into_iter().chain(problem.z.then_some("z"));
    (names.map(|name| problem.bytes(name)).sum::<usize>().saturating_sub(1)) / 10
}

/// Frames from one state that is kept to the next, which are those of a chunk of the backward pass: the same for any batch and
/// dim, so that a program may be cut over devices, or vectorized (docs/xla.md).
pub(in crate::cuda) fn boundary_interval(problem: &Problem) -> usize {
    let lanes = lanes_of(problem)[0];
    if problem.seq <= LONGEST_ALONE {
        return problem.seq.next_power_of_two().max(2 * SPAN);
    }
    if problem.seq < BOUNDED_FROM {
        return BACKWARD_TILE;
    }
    let boundary = lanes * backward_states(problem, lanes) * state_words(problem) * 4;
    let decay = if decay_by_sum(problem) { real_bytes(problem) } else { boundary };
    let shortest = (boundary + decay) as f64 / (BOUNDARY_SHARE * inputs(problem) as f64);
    (shortest.ceil() as usize).next_multiple_of(BACKWARD_TILE)
}

/// Whether the plan may depend on how sequences are aligned: where sums of dA may borrow. Later sweeps find the gradients written.
pub(in crate::cuda) fn depends_on_alignment(problem: &Problem) -> bool {
    let is_one_sweep = sweep_count(problem, slots_of_sweep(problem)) == 1;
    problem.seq >= BOUNDED_FROM && is_one_sweep && has_room_in_gradients(problem, true)
}

/// Whether what is wanted until the gradients of x and dt are written may lie in them.
pub(super) fn has_room_in_gradients(problem: &Problem, aligned: bool) -> bool {
    aligned && (problem.dim * problem.element.size()).is_multiple_of(16)
}

/// Whether what adjoint chunks of so many frames add to a channel fits where its row's gradient will be. The last chunk, which
/// may be short, needs as much as any.
pub(super) fn adjoints_fit(problem: &Problem, layout: &Layout, frames: usize) -> bool {
    problem.seq.div_ceil(frames) * layout.states_bytes(problem) <= problem.seq * problem.element.size()
}

/// Bytes of what a chunk comes to for a channel: its end, and the sum of Δ or the product of decays.
pub(super) fn summary_of_chunk(problem: &Problem, layout: &Layout) -> usize {
    let end = layout.states_bytes(problem);
    end + if decay_by_sum(problem) { real_bytes(problem) } else { end }
}

/// Bytes of the sums of dB and dC over each block's channels, of a frame of all rows.
pub(in crate::cuda::policy) fn sums_of_frame(problem: &Problem, layout: &Layout) -> usize {
    varying(problem) * problem.batch * blocks(problem, layout) * layout.states_bytes(problem)
}

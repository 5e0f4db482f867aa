//! Shared memory of the kernels of the backward pass.

use super::layout::{PAIR, SPAN};
use crate::cuda::policy::{Layout, Properties, is_constant, real_bytes, varying};
use crate::{Method, Problem};

/// What a block walks, in its shared memory.
const COURSE_BYTES: usize = 160;

/// What scan_backward declares beside the memory that is counted below, and what that is rounded up to.
const BESIDE_BYTES: usize = 16;

impl Properties {
    /// Whether a block of scan_backward has room.
    pub(super) fn has_room_back(&self, problem: &Problem, layout: &Layout, tiles: usize) -> bool {
        backward_bytes(problem, layout, tiles) + BESIDE_BYTES <= self.shared_per_block
    }
}

/// Whether threads of scan_backward have their sums of dA in registers (DA_IN_REGISTERS in pairs.cuh).
fn keeps_da_in_registers(problem: &Problem) -> bool {
    let is_short = problem.element.size() == 2;
    is_short && !problem.complex && problem.method == Method::Zoh && varying(problem) == 2
}

/// Of a chunk of many tiles, the state before its first is had from memory again: the shared memory that it leaves is that of one block
/// more.
pub(in crate::cuda) const fn tiles_not_kept(tiles: usize) -> usize {
    if tiles > 3 { 1 } else { 0 }
}

/// Shared memory of scan_backward, for chunks of so many tiles.
pub(in crate::cuda::policy) fn backward_bytes(problem: &Problem, layout: &Layout, tiles: usize) -> usize {
    let lane = layout.states * problem.components();
    let slots = layout.lanes * lane;
    let channels = layout.channels * layout.parts / layout.warps;
    let starts = PAIR * 32 * lane;
    // Parts have two spans of sources, and leave one another three sets of states.
    let (sources, ends) = if layout.parts > 1 { (2 * SPAN, 3 * starts) } else { (SPAN, 0) };
    let part = layout.tile / layout.parts;
    // The states before the tiles of a chunk but the last.
    let kept = tiles - 1 - tiles_not_kept(tiles);
    let frames = (2 * part + sources) * channels;
    let da = if keeps_da_in_registers(problem) { 0 } else { starts };
    let spans = part / SPAN * starts.max(2 * SPAN * slots) + da + ends;
    let of_channels = (usize::from(problem.d) + usize::from(problem.dt_bias)) * channels;
    let own =
        (2 * usize::from(problem.d) + usize::from(problem.z) + usize::from(problem.dt_bias)) * 32 * PAIR;
    let warp = frames + spans + own + of_channels + kept * starts;
    let projections = varying(problem) * layout.tile * layout.orders * slots;
    (layout.warps * warp + projections) * real_bytes(problem) + COURSE_BYTES
}

/// Shared memory of scan_summary.
pub(in crate::cuda::policy) fn summary_bytes(problem: &Problem, layout: &Layout) -> usize {
    let width = if is_constant(problem.c) { 0 } else { layout.slots() * problem.components() };
    let bias = if problem.dt_bias { layout.channels } else { 0 };
    (layout.tile * (2 * layout.channels + width) + bias) * real_bytes(problem) + COURSE_BYTES
}

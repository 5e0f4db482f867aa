//! Shared memory of the kernels of the forward pass.

use super::bulk::BULK_SLOTS;
use super::copied::swizzles_outputs;
use crate::cuda::policy::{Layout, changes_elements, decay_by_sum, real_bytes, state_words, varying};
use crate::{ElementType, Problem};

/// The place of a block of forward.cu or of bulk.cu.
const PLACE_BYTES: usize = 64;
/// Tiles of a warp of relay.cu.
pub(in crate::cuda) const OWN_TILES: usize = 2;
/// Tiles of bulk.cu and of chunks.cu, and as many of outputs where these do not lie in them.
pub(in crate::cuda) const STAGES: usize = 3;
/// Bytes of a barrier, of which a tile has two, and a third where its projections are widened.
const BARRIER_BYTES: usize = 8;
/// Bytes that the places of elements repeat after, where they are swizzled.
const SWIZZLED_BYTES: usize = 1024;
/// What parts of a tile are aligned to in shared memory.
const TILE_ALIGNMENT: usize = 128;

/// Frames of a row of rows.cuh: an odd number of 16 bytes.
fn pitch(tile: usize, real: usize) -> usize {
    let per_16_bytes = 16 / real;
    if (tile / per_16_bytes) % 2 == 1 { tile } else { tile + per_16_bytes }
}

/// Shared memory of forward.cu.
pub(in crate::cuda::policy) fn forward_bytes(problem: &Problem, layout: &Layout) -> usize {
    let real = real_bytes(problem);
    let (varying, width) = (varying(problem), layout.slots() * problem.components());
    let projection = match layout.time_lanes {
        1 => width * pitch(layout.tile, real) * real,
        lanes => layout.tile * width * real + lanes * 2 * 16,
    };
    let marks = if problem.seq_idx { layout.tile.next_multiple_of(16) } else { 0 };
    let sequences = 2 * layout.channels * pitch(layout.tile, real) * real;
    // What a thread has of each of several rounds: states and rates, products of decays, constant projections.
    let parked = match layout.rounds {
        1 => 0,
        rounds => {
            let kept = 2 + usize::from(!decay_by_sum(problem)) + 2 - varying;
            kept * rounds * layout.warps * 32 * layout.states * state_words(problem) * 4
        }
    };
    2 * (sequences + varying * projection + marks) + parked + PLACE_BYTES
}

/// Shared memory, a tile, of projections of which so many frames' states are widened to reals, and of its barriers.
const fn widened_bytes(element: ElementType, projections: usize, tile: usize) -> usize {
    match element.size() {
        2 => tile * projections * BULK_SLOTS * 4 + 3 * BARRIER_BYTES,
        _ => 2 * BARRIER_BYTES,
    }
}

/// Shared memory of bulk.cu.
pub(in crate::cuda::policy) fn bulk_bytes(problem: &Problem, layout: &Layout) -> usize {
    let Layout { channels, warps, tile, .. } = *layout;
    let size = problem.element.size();
    let alignment = if swizzles_outputs(problem, layout) { SWIZZLED_BYTES } else { TILE_ALIGNMENT };
    let (sequence, projections) = (tile * channels * size, tile * 2 * BULK_SLOTS * size);
    let (inputs, outputs) = if changes_elements(problem) {
        // Outputs lie where inputs were.
        let count = if problem.z { 3 } else { 2 };
        let sequences = count * sequence.next_multiple_of(alignment);
        let made = 2 * warps * 32 * 2 * 4;
        (STAGES * (sequences + projections).next_multiple_of(alignment) + made, 0)
    } else {
        let tiles = (STAGES * (2 * sequence + projections)).next_multiple_of(alignment);
        (tiles, STAGES * sequence.next_multiple_of(alignment))
    };
    let pairs = channels * 2 * BULK_SLOTS * 4;
    let marks = if problem.seq_idx { STAGES * tile } else { 0 };
    let widened = STAGES * widened_bytes(problem.element, 2, tile);
    (inputs + outputs + widened + pairs + marks + PLACE_BYTES).next_multiple_of(alignment)
}

/// Shared memory of relay.cu.
pub(in crate::cuda::policy) fn relay_bytes(problem: &Problem, layout: &Layout, shares_strips: bool) -> usize {
    let Layout { channels, warps, tile, .. } = *layout;
    let size = problem.element.size();
    let sequences = tile * channels * size * if problem.z { 3 } else { 2 };
    let tiles = OWN_TILES * (sequences + 2 * tile * BULK_SLOTS * size);
    let widened = if size == 2 { 2 * tile * BULK_SLOTS * 4 } else { 0 };
    let (made, states) =
        (tile * channels * 2 * 4, channels * BULK_SLOTS * 4 * if shares_strips { 2 } else { 1 });
    let barriers = (OWN_TILES + 1) * BARRIER_BYTES;
    (warps * (tiles + widened + made + states + barriers)).next_multiple_of(TILE_ALIGNMENT)
}

/// Shared memory of chunks.cu.
pub(super) fn chunks_bytes(element: ElementType, layout: &Layout) -> usize {
    let Layout { channels, tile, .. } = *layout;
    let elements = tile * (2 * channels + BULK_SLOTS);
    STAGES * (elements * element.size() + widened_bytes(element, 1, tile))
}

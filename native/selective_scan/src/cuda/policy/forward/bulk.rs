//! What bulk.cu walks, and chunks.cu, which is laid out alike. The numbers are measured on an H200 (bench/NOTES.md).

use super::copied::{may_gather, unit_fits};
use super::plan::{Beside, Bulk};
use super::shared::{bulk_bytes, chunks_bytes};
use crate::cuda::policy::backward::LONGEST_ALONE;
use crate::cuda::policy::{
    Chunks, Layout, Properties, blocks, changes_dt, changes_elements, decay_by_sum, has_several_sweeps,
    is_heavy_walk_forward, is_long_walk_forward, is_longest_walk_forward,
};
use crate::{ElementType, Method, Problem};

/// What bulk.cu is written for: states a channel, walking warps a block, and frames a tile for each lane, where rows are long: usually,
/// and where these would be more code than a multiprocessor has in its cache.
pub(super) const BULK_SLOTS: usize = 16;
const BULK_WARPS: usize = 4;
const BULK_FRAMES_PER_LANE: usize = 8;
const BULK_FRAMES_PER_LANE_OF_LONG_WALKS: usize = 4;
/// With four lanes, which is how chunks.cu is written, too.
pub(super) const BULK_LAYOUT: Layout = bulk_layout_of(4, BULK_FRAMES_PER_LANE);
/// Blocks of two lanes a channel that a multiprocessor should have: a warp of a scheduler alone waits for itself.
const BULK_BLOCKS_WITH_2_LANES: usize = 2;
/// So many of them in 16 bits are slower than four lanes through registers, in chunks of more frames than these.
const BULK_BLOCKS_THAT_LOSE: usize = 3;
const BULK_FRAMES_THAT_LOSE: usize = 256;
/// Frames of a chunk from which on bulk.cu is the faster, usually and where its start is little beside the walk, and of a row of one chunk:
/// in the usual tiles, and in those of short rows, which may have so many frames. The latter keep the state before a row alone, so no
/// row that has others to keep may be short.
const BULK_FRAMES: usize = 128;
const BULK_FRAMES_OF_HEAVY_WALKS: usize = 96;
pub(in crate::cuda::policy) const BULK_FRAMES_OF_ROW: usize = LONGEST_ALONE + 1;
const BULK_FRAMES_OF_SHORT_ROW: usize = 16;
const BULK_FRAMES_OF_SHORT_ROW_WITH_2_LANES: usize = 33;
const BULK_TILES_OF_SHORT_ROWS: [usize; 4] = [28, 24, 20, 16];
/// Blocks that a multiprocessor should have room for, or tiles through registers are faster.
const BULK_BLOCKS: usize = 3;

/// A layout of bulk.cu, of tiles of so many frames for each lane.
const fn bulk_layout_of(lanes: usize, frames: usize) -> Layout {
    Layout {
        lanes,
        time_lanes: 1,
        states: BULK_SLOTS / lanes,
        rounds: 1,
        orders: 1,
        parts: 1,
        channels: 32 / lanes * BULK_WARPS,
        warps: BULK_WARPS,
        tile: frames * lanes,
    }
}

/// That of long rows of a problem.
fn bulk_layout(problem: &Problem, lanes: usize) -> Layout {
    let is_long = is_long_walk_forward(problem);
    bulk_layout_of(lanes, if is_long { BULK_FRAMES_PER_LANE_OF_LONG_WALKS } else { BULK_FRAMES_PER_LANE })
}

/// Whether bulk.cu takes four lanes. Where each reads its channel's elements, and they have 16 bits, as many take them apart, and
/// forward.cu is the faster by 4% (H200).
fn takes_4_lanes(problem: &Problem) -> bool {
    problem.element == ElementType::F32 || changes_elements(problem)
}

/// Whether bulk.cu walks a row in tiles of its own.
pub(in crate::cuda::policy) fn is_short_row(problem: &Problem, layout: &Layout) -> bool {
    problem.seq < BULK_FRAMES_OF_ROW && layout.lanes == BULK_LAYOUT.lanes
}

/// Frames of a tile of a short row: the most of those of which whole ones leave fewest frames over.
fn bulk_tile_of(seq: usize) -> usize {
    BULK_TILES_OF_SHORT_ROWS.into_iter().min_by_key(|&tile| seq % tile).expect("there are some")
}

impl Properties {
    /// Whether that pays in the tiles of bulk.cu and of chunks.cu.
    fn copies_bulk(&self, problem: &Problem) -> bool {
        self.blocks_with_room(bulk_bytes(problem, &BULK_LAYOUT)) >= BULK_BLOCKS
            && self.copies_operands(problem, &BULK_LAYOUT)
    }

    /// Whether the device can copy the tiles of the forward scan by itself.
    pub(super) fn copies_tiles(&self, problem: &Problem) -> bool {
        self.copies_bulk(problem) && may_gather(problem)
    }

    /// The layout of chunks.cu, for which dt is Δ, and its shared memory, where it finds what is to be known of chunks of
    /// walks with so many states a pass. Adjoints want decays alone, whatever the method's gains are. Of a forward pass in 16 bits
    /// forward.cu finds it: a prompt takes 1% less by that, long rows the same (H200).
    pub(in crate::cuda::policy) fn copied_chunks(
        &self,
        problem: &Problem,
        slots: usize,
        chunks: Chunks,
    ) -> Option<(Layout, usize)> {
        let (needs_more, layout) = match chunks {
            Chunks::OfForward => (problem.element != ElementType::F32, bulk_layout(problem, 4)),
            Chunks::OfBackward => (false, bulk_layout(problem, 4)),
            Chunks::OfAdjoints => (problem.z, BULK_LAYOUT),
        };
        // Its kernel is that of one direction; a backward pass over both has one for all its sweeps.
        let needs_more = needs_more || (problem.bidirectional && chunks != Chunks::OfForward);
        let may = slots == BULK_SLOTS && decay_by_sum(problem) && !(changes_dt(problem) || problem.seq_idx);
        (may && !needs_more && self.copies_bulk(problem))
            .then(|| (layout, chunks_bytes(problem.element, &layout)))
    }

    /// What bulk.cu walks, where it is the faster for chunks of so many frames that are walked in this layout.
    pub(super) fn bulk(&self, problem: &Problem, layout: &Layout, chunk: usize) -> Option<Bulk> {
        let Layout { tile, .. } = *layout;
        if !(Layout { tile: BULK_LAYOUT.tile, ..*layout } == BULK_LAYOUT && self.copies_tiles(problem)) {
            return None;
        }
        let takes_4_lanes = takes_4_lanes(problem);
        let is_row = chunk == problem.seq;
        let is_longest = is_longest_walk_forward(problem);
        let is_long = match (is_row, is_heavy_walk_forward(problem) && !is_longest) {
            (true, _) => problem.seq >= BULK_FRAMES_OF_ROW,
            (false, true) => chunk >= BULK_FRAMES_OF_HEAVY_WALKS,
            (false, false) => chunk >= BULK_FRAMES,
        };
        if is_long {
            let with_2_lanes = self.bulk_with_2_lanes(problem, chunk);
            let with_4_lanes = || takes_4_lanes.then(|| Bulk::whole(bulk_layout(problem, 4)));
            return with_2_lanes.or_else(with_4_lanes).filter(|_| tile == BULK_LAYOUT.tile);
        }
        // States are kept before such a row alone, so tiles may be of any length. The longest walk is slower so where each element is
        // read by every lane (H200).
        let takes_any_tile = is_row && problem.seq >= BULK_FRAMES_OF_SHORT_ROW;
        let is_slower = is_longest && !changes_elements(problem);
        let tile = bulk_tile_of(problem.seq);
        if !(takes_any_tile && takes_4_lanes && !is_slower) || has_several_sweeps(problem, layout) {
            return None;
        }
        // What a tile leaves over is walked by spans, and of short ones there are many: two lanes are 5 to 14% faster there (H200).
        let gains = !is_heavy_walk_forward(problem)
            && problem.element == ElementType::F32
            && problem.seq >= BULK_FRAMES_OF_SHORT_ROW_WITH_2_LANES
            && (!problem.seq.is_multiple_of(tile) || BULK_TILES_OF_SHORT_ROWS.ends_with(&[tile]));
        let with_2_lanes = || self.bulk_with_2_lanes(problem, chunk).filter(|bulk| bulk.beside.is_none());
        let with_4_lanes = Bulk::whole(Layout { tile, ..*layout });
        Some(if gains { with_2_lanes().unwrap_or(with_4_lanes) } else { with_4_lanes })
    }

    /// What bulk.cu walks with two lanes, and beside that with four: as many blocks of two as multiprocessors can have each in the
    /// place of two blocks of four. It is 4 to 7% faster, from two blocks each on; in 16 bits, where all are of two lanes, 1 to 7%,
    /// but with three blocks each and long chunks up to 3% slower (H200). Where each element is made by one lane it brings nothing.
    fn bulk_with_2_lanes(&self, problem: &Problem, chunk: usize) -> Option<Bulk> {
        let layout = bulk_layout(problem, 2);
        let rows = problem.batch * problem.seq.div_ceil(chunk);
        let [of_4, of_2] = [&BULK_LAYOUT, &layout].map(|layout| blocks(problem, layout));
        let each = (rows * of_4).div_ceil(self.multiprocessors) / 2;
        // Marks are found a tile of four lanes at a time.
        let cannot = changes_elements(problem)
            || is_longest_walk_forward(problem)
            || problem.seq_idx
            || !unit_fits(problem, &layout);
        if each < BULK_BLOCKS_WITH_2_LANES || cannot {
            return None;
        }
        let is_f32 = problem.element == ElementType::F32;
        let (most, all) = (each * self.multiprocessors, rows * of_2);
        if all <= most {
            let loses =
                all.div_ceil(self.multiprocessors) == BULK_BLOCKS_THAT_LOSE && chunk > BULK_FRAMES_THAT_LOSE;
            return (is_f32 || !loses).then(|| Bulk::whole(layout));
        }
        let is_alone = chunk == problem.seq && !has_several_sweeps(problem, &layout);
        // The code of both has to lie in a multiprocessor's cache of instructions.
        let both_fit = matches!(problem.method, Method::Zoh | Method::Bilinear);
        (is_f32 && is_alone && both_fit && of_4 == 2 * of_2).then(|| Bulk {
            beside: Some(Beside { layout, blocks: most }),
            ..Bulk::whole(bulk_layout(problem, 4))
        })
    }
}

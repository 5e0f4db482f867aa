//! The plan of the forward pass.

use std::iter::successors;
use std::ops::Range;

use super::backward::{LONGEST_ALONE, boundary_interval};
use super::configurations::{MOST_JOINED, blocks_wanted};
use super::{
    Chunks, Layout, Properties, RESERVED_SHARED, blocks, changes_dt, changes_elements, decay_by_sum,
    has_several_passes, is_constant, is_heavy_walk_forward, is_long_walk_forward, is_longest_walk_forward,
    real_bytes, state_words, states_for, unit, varying,
};
use crate::cuda::arguments::passes;
use crate::cuda::compile::Program;
use crate::{ElementType, Method, Problem};

/// Channels of all rows, a multiprocessor, up to which the forward pass has lanes over time, in rows of these lengths; lanes
/// of states a channel beside them, frames of a tile, and the warps that a block has, a channel each: usually, and where
/// they need more registers. Measured on an H200 (bench/NOTES.md), as is what follows.
pub(super) const CHANNELS_FOR_TIME_LANES: usize = 8;
const ROWS_FOR_TIME_LANES: std::ops::RangeInclusive<usize> = 33..=64;
const LANES_BESIDE_TIME_LANES: usize = 4;
const TILE_OF_TIME_LANES: usize = 64;
const WARPS_OF_TIME_LANES: [usize; 2] = [8, 4];
/// States of a round of the forward pass, and rounds of a pass: more would leave shared memory for too few blocks.
const SLOTS_OF_ROUND: usize = 16;
pub(super) const MOST_ROUNDS: usize = 4;
/// Blocks of several rounds that a multiprocessor should have room for.
const BLOCKS_OF_ROUNDS: usize = 3;
/// Frames of a tile of the forward pass over states, at most.
const MOST_TILE: usize = 32;
/// Frames of a tile of several rounds of a heavy walk, where a multiprocessor is to have as many blocks: B and C of the next tile are
/// on their way in registers, all rounds' of them, and those of 32 frames would spill.
pub(super) const TILE_OF_HEAVY_ROUNDS: usize = 16;
/// Lanes of the forward pass over states, at most.
pub(super) const MOST_LANES: usize = 8;
/// Multiples of all blocks that run at a time which chunks may come to, beside as few as are joined without a launch. (Of long rows two
/// are up to 2% slower than three.)
const WAVES: [usize; 2] = [1, 3];
/// The place of a block, in its shared memory.
const PLACE_BYTES: usize = 64;
/// What bulk.cu is written for: states a channel, walking warps a block, and frames a tile for each lane, where rows are long: usually,
/// and where these would be more code than a multiprocessor has in its cache.
const BULK_SLOTS: usize = 16;
const BULK_WARPS: usize = 4;
const BULK_FRAMES_PER_LANE: usize = 8;
const BULK_FRAMES_PER_LANE_OF_LONG_WALKS: usize = 4;
/// With four lanes, which is how chunks.cu is written, too.
const BULK_LAYOUT: Layout = bulk_layout_of(4, BULK_FRAMES_PER_LANE);
/// Blocks of two lanes a channel that a multiprocessor should have: a warp of a scheduler alone waits for itself.
const BULK_BLOCKS_WITH_2_LANES: usize = 2;
/// So many of them in 16 bits are slower than four lanes through registers, in chunks of more frames than these.
const BULK_BLOCKS_THAT_LOSE: usize = 3;
const BULK_FRAMES_THAT_LOSE: usize = 256;
/// How relay.cu walks, but for its warps: they have tiles of the same channels, of as many frames as registers have room for the decays
/// of.
const RELAY_LAYOUT: Layout = Layout { channels: 32 / BULK_LAYOUT.lanes, tile: 16, ..BULK_LAYOUT };
/// Strips that the fullest multiprocessor would have of whole ones, at most, or other walks are faster; and warps that it has of all of its
/// blocks: usually, and of walks that want the registers of more.
const RELAY_STRIPS: usize = 3;
pub(super) const RELAY_WARPS: [usize; 2] = [16, 12];
/// Tiles of all strips, where blocks share these: they are counted by 32 bits with a sign.
const MOST_TILES: usize = i32::MAX as usize;
/// How many times as many tiles the fullest multiprocessor would have of whole strips, at least, where strips are shared: else whole ones
/// are as fast.
const GAIN_OF_PIECES: f64 = 1.05;
/// Tiles of a warp in shared memory.
const OWN_TILES: usize = 2;
/// Tiles in shared memory, and as many of outputs where these do not lie in them.
const BULK_STAGES: usize = 3;
/// Frames of a chunk from which on it is the faster, usually and where its start is little beside the walk, and of a row of one chunk:
/// in the usual tiles, and in those of short rows, which may have so many frames. The latter keep the state before a row alone, so no
/// row that has others to keep may be short.
const BULK_FRAMES: usize = 128;
const BULK_FRAMES_OF_HEAVY_WALKS: usize = 96;
pub(super) const BULK_FRAMES_OF_ROW: usize = LONGEST_ALONE + 1;
const BULK_FRAMES_OF_SHORT_ROW: usize = 16;
const BULK_FRAMES_OF_SHORT_ROW_WITH_2_LANES: usize = 33;
const BULK_TILES_OF_SHORT_ROWS: [usize; 4] = [28, 24, 20, 16];
/// Blocks that a multiprocessor should have room for, or tiles through registers are faster.
const BULK_BLOCKS: usize = 3;
/// Bytes of a barrier, of which a tile has two, and a third where its projections are widened.
const BARRIER_BYTES: usize = 8;
/// Bytes that the places of elements repeat after, where they are swizzled.
const SWIZZLED_BYTES: usize = 1024;
/// What parts of a tile are aligned to in shared memory.
const TILE_ALIGNMENT: usize = 128;
/// What the engine that copies tiles wants the rows of a tensor to be a multiple of, in bytes, and a tensor to be aligned to.
pub(super) const BULK_ALIGNMENT: usize = 16;

/// Places along an axis that the engine can be asked for, in 32 bits with a sign, tiles beyond the end included.
const MOST_PLACES: usize = 1 << 30;

/// The forward pass of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardPlan {
    /// The layout of all its kernels.
    pub layout: Layout,
    /// Frames a chunk.
    pub chunk: usize,
    /// Chunks a row.
    pub chunks: usize,
    /// What bulk.cu walks instead, if the operands are aligned.
    pub bulk: Option<Bulk>,
    /// What relay.cu walks instead, if the operands are aligned.
    pub relay: Option<Relay>,
}

/// What relay.cu walks: strips. A strip is a row's channels of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relay {
    /// Its layout.
    pub layout: Layout,
    /// Blocks that a multiprocessor has, at most.
    pub each: usize,
    /// What blocks walk that share strips; else each has its own.
    pub pieces: Option<Pieces>,
}

/// Pieces of the tiles of all strips in line, a block's each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pieces {
    /// How many there are.
    pub blocks: usize,
    /// Tiles of each, but of the last, which may have fewer.
    pub tiles_per_block: usize,
}

/// What bulk.cu walks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// Its layout: its tile may be another than that of forward.cu, and its lanes fewer.
    pub layout: Layout,
    /// What a launch of its own walks beside it. There is none where a kernel has to come before.
    pub beside: Option<Beside>,
}

/// Of fewer lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beside {
    /// Its layout.
    pub layout: Layout,
    /// Its blocks: all of the first rows, and some of the next.
    pub blocks: usize,
}

/// What a launch walks.
pub(in crate::cuda) struct Share {
    /// The layout of its blocks.
    pub layout: Layout,
    /// Which of them, if they lie in line, those of all rows or the pieces of relay.cu; or all.
    pub in_line: Option<Range<usize>>,
}

impl Share {
    /// What relay.cu walks.
    pub(in crate::cuda) fn of_relay(relay: Relay) -> Self {
        Self { layout: relay.layout, in_line: relay.pieces.map(|Pieces { blocks, .. }| 0..blocks) }
    }

    /// All blocks, by one launch.
    pub(in crate::cuda) fn all(layout: Layout) -> Self {
        Self { layout, in_line: None }
    }
}

impl Bulk {
    fn whole(layout: Layout) -> Self {
        Self { layout, beside: None }
    }

    /// What its launches walk, in this order.
    pub(in crate::cuda) fn shares(&self, problem: &Problem) -> Vec<Share> {
        let Self { layout, beside } = *self;
        let Some(first) = beside else {
            return vec![Share::all(layout)];
        };
        let all = problem.batch * blocks(problem, &layout);
        let rest = first.blocks * first.layout.channels / layout.channels..all;
        vec![
            Share { layout: first.layout, in_line: Some(0..first.blocks) },
            Share { layout, in_line: Some(rest) },
        ]
    }
}

/// Whether each output is written once and read by nobody: so many states are of one pass, whatever the plan.
pub(in crate::cuda) fn writes_outputs_once(problem: &Problem) -> bool {
    passes(problem, SLOTS_OF_ROUND) == 1
}

/// Frames of a row of rows.cuh: an odd number of 16 bytes.
fn pitch(tile: usize, real: usize) -> usize {
    let per_16_bytes = 16 / real;
    if (tile / per_16_bytes) % 2 == 1 { tile } else { tile + per_16_bytes }
}

/// Shared memory of forward.cu.
pub(super) fn forward_bytes(problem: &Problem, layout: &Layout) -> usize {
    let real = real_bytes(problem);
    let projections = [problem.b, problem.c].into_iter().filter(|&projection| !is_constant(projection));
    let width = layout.slots() * problem.components();
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
            let kept = 2 + usize::from(!decay_by_sum(problem)) + 2 - varying(problem);
            kept * rounds * layout.warps * 32 * layout.states * state_words(problem) * 4
        }
    };
    2 * (sequences + projections.count() * projection + marks) + parked + PLACE_BYTES
}

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

/// Shared memory, a tile, of projections of which so many frames' states are widened to reals, and of its barriers.
const fn widened_bytes(element: ElementType, projections: usize, tile: usize) -> usize {
    match element.size() {
        2 => tile * projections * BULK_SLOTS * 4 + 3 * BARRIER_BYTES,
        _ => 2 * BARRIER_BYTES,
    }
}

/// Shared memory of bulk.cu.
pub(super) fn bulk_bytes(problem: &Problem, layout: &Layout) -> usize {
    let Layout { channels, warps, tile, .. } = *layout;
    let size = problem.element.size();
    let alignment = if swizzles_outputs(problem, layout) { SWIZZLED_BYTES } else { TILE_ALIGNMENT };
    let (sequence, projections) = (tile * channels * size, tile * 2 * BULK_SLOTS * size);
    let (inputs, outputs) = if changes_elements(problem) {
        // Outputs lie where inputs were.
        let count = if problem.z { 3 } else { 2 };
        let sequences = count * sequence.next_multiple_of(alignment);
        let made = 2 * warps * 32 * 2 * 4;
        (BULK_STAGES * (sequences + projections).next_multiple_of(alignment) + made, 0)
    } else {
        let tiles = (BULK_STAGES * (2 * sequence + projections)).next_multiple_of(alignment);
        (tiles, BULK_STAGES * sequence.next_multiple_of(alignment))
    };
    let pairs = channels * 2 * BULK_SLOTS * 4;
    let marks = if problem.seq_idx { BULK_STAGES * tile } else { 0 };
    let widened = BULK_STAGES * widened_bytes(problem.element, 2, tile);
    (inputs + outputs + widened + pairs + marks + PLACE_BYTES).next_multiple_of(alignment)
}

/// Whether a walk finds sequences swizzled that it reads: bulk.cu wants those that one lane alone reads an element of, relay.cu none.
pub(in crate::cuda) fn swizzles_inputs(problem: &Problem, layout: &Layout) -> bool {
    changes_elements(problem) && layout.parts == 1
}

/// Whether the engine that takes its outputs away finds them so: it can do that to frames of up to 128 bytes.
pub(in crate::cuda) fn swizzles_outputs(problem: &Problem, layout: &Layout) -> bool {
    swizzles_inputs(problem, layout) || layout.channels * problem.element.size() == 128
}

/// Shared memory of relay.cu.
pub(super) fn relay_bytes(problem: &Problem, layout: &Layout, shares_strips: bool) -> usize {
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
fn chunks_bytes(element: ElementType, layout: &Layout) -> usize {
    let Layout { channels, tile, .. } = *layout;
    let elements = tile * (2 * channels + BULK_SLOTS);
    BULK_STAGES * (elements * element.size() + widened_bytes(element, 1, tile))
}

/// Whether bulk.cu takes four lanes. Where each reads its channel's elements, and they have 16 bits, as many take them apart, and
/// forward.cu is the faster by 4% (H200).
fn takes_4_lanes(problem: &Problem) -> bool {
    problem.element == ElementType::F32 || changes_elements(problem)
}

/// Whether walks in copied tiles may be of several passes, if they are: y gathers in its elements, which 16 bits would round each time,
/// and which nobody finishes after the last.
fn may_gather(problem: &Problem) -> bool {
    let gathers = problem.element == ElementType::F32 && !changes_elements(problem);
    gathers || passes(problem, BULK_SLOTS) == 1
}

/// Whether blocks of one group of channels do not share their last box with the next.
fn unit_fits(problem: &Problem, layout: &Layout) -> bool {
    unit(problem) == problem.dim || unit(problem).is_multiple_of(layout.channels)
}

/// Whether bulk.cu walks a row in tiles of its own.
pub(super) fn is_short_row(problem: &Problem, layout: &Layout) -> bool {
    problem.seq < BULK_FRAMES_OF_ROW && layout.lanes == BULK_LAYOUT.lanes
}

/// Frames of a tile of a short row: the most of those of which whole ones leave fewest frames over.
fn bulk_tile_of(seq: usize) -> usize {
    BULK_TILES_OF_SHORT_ROWS.into_iter().min_by_key(|&tile| seq % tile).expect("there are some")
}

/// Frames of a tile of the forward pass: a power of two, up to `most`, of which whole ones lie between states that are
/// kept.
fn forward_tile(seq: usize, interval: usize, lanes: usize, most: usize) -> usize {
    let mut tile = most.min(seq.next_power_of_two()).max(lanes).max(8);
    while interval < seq && !interval.is_multiple_of(tile) {
        tile /= 2;
    }
    tile
}

impl Properties {
    /// Whether the device can copy a problem's operands by itself, in tiles of this layout.
    fn copies_operands(&self, problem: &Problem, layout: &Layout) -> bool {
        let rows_fit = |elements: usize| (elements * problem.element.size()).is_multiple_of(BULK_ALIGNMENT);
        self.tensor_maps
            && real_bytes(problem) == 4
            && !problem.complex
            && varying(problem) == 2
            && rows_fit(problem.state)
            && rows_fit(problem.dim)
            && [problem.batch, problem.seq, problem.dim].iter().all(|&count| count <= MOST_PLACES)
            && unit_fits(problem, layout)
    }

    /// Whether that pays in the tiles of bulk.cu and of chunks.cu.
    fn copies_bulk(&self, problem: &Problem) -> bool {
        self.blocks_with_room(bulk_bytes(problem, &BULK_LAYOUT)) >= BULK_BLOCKS
            && self.copies_operands(problem, &BULK_LAYOUT)
    }

    /// Whether the device can copy the tiles of the forward scan by itself.
    fn copies_tiles(&self, problem: &Problem) -> bool {
        self.copies_bulk(problem) && may_gather(problem)
    }

    /// The layout of chunks.cu, for which dt is Δ, and its shared memory, where it finds what is to be known of chunks of
    /// walks with so many states a pass. Adjoints want decays alone, whatever the method's gains are. Of a forward pass in 16 bits
    /// forward.cu finds it: a prompt takes 1% less by that, long rows the same (H200).
    pub(super) fn copied_chunks(
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
        // Its kernel is that of one direction; a backward pass over both has one for all its passes.
        let needs_more = needs_more || (problem.bidirectional && chunks != Chunks::OfForward);
        let may = slots == BULK_SLOTS && decay_by_sum(problem) && !(changes_dt(problem) || problem.seq_idx);
        (may && !needs_more && self.copies_bulk(problem))
            .then(|| (layout, chunks_bytes(problem.element, &layout)))
    }

    /// What bulk.cu walks, where it is the faster for chunks of so many frames that are walked in this layout.
    fn bulk(&self, problem: &Problem, layout: &Layout, chunk: usize) -> Option<Bulk> {
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
        if !(takes_any_tile && takes_4_lanes && !is_slower) || has_several_passes(problem, layout) {
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
        let is_alone = chunk == problem.seq && !has_several_passes(problem, &layout);
        // The code of both has to lie in a multiprocessor's cache of instructions.
        let both_fit = matches!(problem.method, Method::Zoh | Method::Bilinear);
        (is_f32 && is_alone && both_fit && of_4 == 2 * of_2).then(|| Bulk {
            beside: Some(Beside { layout, blocks: most }),
            ..Bulk::whole(bulk_layout(problem, 4))
        })
    }

    /// What relay.cu may walk, with states that are kept every `interval` frames: a strip a block, or pieces of all.
    fn relays(&self, problem: &Problem, interval: usize) -> impl Iterator<Item = Relay> {
        let each = self.share(problem, &RELAY_LAYOUT);
        let against = problem.reverse || problem.bidirectional;
        let wants_more = (is_long_walk_forward(problem) && problem.method != Method::Foh)
            || (is_heavy_walk_forward(problem) && (problem.seq_idx || against))
            || (problem.method == Method::Bilinear && problem.seq_idx && against);
        // An even number: of an odd one, some schedulers would have more of a block than others.
        let layout_of = |each: usize, wants_more: bool| {
            let warps = RELAY_WARPS[usize::from(wants_more)] / each / 2 * 2;
            Layout { parts: warps, warps, ..RELAY_LAYOUT }
        };
        // Of half as many states, other walks have half as many in a thread.
        let is_full = problem.state > BULK_SLOTS / 2 || each == 1;
        let can = (1..=RELAY_STRIPS).contains(&each)
            && is_full
            && may_gather(problem)
            && (interval >= problem.seq || interval.is_multiple_of(RELAY_LAYOUT.tile))
            && self.copies_operands(problem, &RELAY_LAYOUT);

        let whole = || Relay { layout: layout_of(each, wants_more), each, pieces: None };
        let strips = problem.batch * blocks(problem, &RELAY_LAYOUT);
        let of_strip = problem.seq.div_ceil(RELAY_LAYOUT.tile);
        let tiles = strips * of_strip;
        let tiles_per_block = tiles.div_ceil(self.multiprocessors);
        let in_pieces = || {
            let pieces = Pieces { blocks: tiles.div_ceil(tiles_per_block), tiles_per_block };
            let wants_more = wants_more
                || (matches!(problem.method, Method::ZohExact | Method::Bilinear)
                    && changes_elements(problem));
            Relay { layout: layout_of(1, wants_more), each: 1, pieces: Some(pieces) }
        };
        let gains = strips > self.multiprocessors
            && tiles <= MOST_TILES
            && (each * of_strip) as f64 > GAIN_OF_PIECES * tiles_per_block as f64;
        [can.then(whole), (can && gains).then(in_pieces)].into_iter().flatten().filter(|relay| {
            self.blocks_with_room(relay_bytes(problem, &relay.layout, relay.pieces.is_some())) >= relay.each
        })
    }

    /// The layout of a forward scan that finds what chunks of so many frames come to.
    pub(super) fn summary_layout(&self, problem: &Problem, chunk: usize) -> Layout {
        self.forward_layout(problem, chunk, 1, true, MOST_ROUNDS)
    }

    /// The layout of a forward scan that keeps states every `interval` frames, with so many lanes at least, but no more than leave none
    /// idle, in as many rounds as shared memory has room for, up to `most_rounds`. `cut`: in chunks.
    fn forward_layout(
        &self,
        problem: &Problem,
        interval: usize,
        least_lanes: usize,
        cut: bool,
        most_rounds: usize,
    ) -> Layout {
        let words = state_words(problem);
        let rounds = problem.state.div_ceil(SLOTS_OF_ROUND);
        let passes = rounds.div_ceil(most_rounds);
        let rounds = rounds.div_ceil(passes);
        let count = problem.state.div_ceil(passes * rounds);
        let unit = unit(problem);

        // As few lanes as leave a thread four words of states, then more.
        let mut lanes = 1;
        while states_for(count, lanes, words) > (4 / words).max(1) && lanes < MOST_LANES {
            lanes *= 2;
        }
        while lanes < least_lanes.min(MOST_LANES)
            && lanes * 2 * states_for(count, lanes * 2, words) <= lanes * states_for(count, lanes, words)
        {
            lanes *= 2;
        }

        let channels_per_block = if lanes <= 4 { 32 } else { 128 / lanes };
        let channels_per_block = channels_per_block.min(unit.next_power_of_two()).max(32 / lanes);
        let mut layout = Layout {
            lanes,
            time_lanes: 1,
            states: states_for(count, lanes, words),
            rounds,
            orders: 1,
            parts: 1,
            channels: channels_per_block,
            warps: lanes * channels_per_block / 32,
            tile: 0,
        };
        let several = self.shared_per_multiprocessor / BLOCKS_OF_ROUNDS - RESERVED_SHARED;
        let room = if rounds > 1 { several.max(48 << 10) } else { 48 << 10 }.min(self.shared_per_block);
        // Two blocks each have registers for the usual tiles, if they make as few waves; chunks are as many as fill the device.
        let is_crowded = || cut || self.blocks_each(problem, &layout, BLOCKS_OF_ROUNDS) == BLOCKS_OF_ROUNDS;
        let has_heavy_rounds = rounds > 1 && lanes < MOST_LANES && is_heavy_walk_forward(problem);
        let mut most = if has_heavy_rounds && is_crowded() { TILE_OF_HEAVY_ROUNDS } else { MOST_TILE };
        loop {
            layout.tile = forward_tile(problem.seq, interval, lanes, most);
            if forward_bytes(problem, &layout) <= room || most <= lanes.max(8) {
                break;
            }
            most /= 2;
        }
        if rounds > 1 && forward_bytes(problem, &layout) > self.shared_per_block {
            return self.forward_layout(problem, interval, least_lanes, cut, most_rounds - 1);
        }
        layout
    }

    /// Blocks that a multiprocessor has of rows of one chunk, if all are walked in as few waves as with `most` of them each.
    fn blocks_each(&self, problem: &Problem, layout: &Layout, most: usize) -> usize {
        let all = problem.batch * blocks(problem, layout);
        let waves = all.div_ceil(most * self.multiprocessors);
        all.div_ceil(waves * self.multiprocessors)
    }

    /// The layout of a forward scan with lanes over time: for few and short rows, each of which is one tile. In longer ones
    /// the unit for shared memory would bind: a warp reads all of b and c for one channel.
    fn time_lanes(&self, problem: &Problem) -> Option<Layout> {
        let lanes = LANES_BESIDE_TIME_LANES;
        let states = states_for(problem.state, lanes, 1);
        if state_words(problem) > 1
            || states > 4
            || !ROWS_FOR_TIME_LANES.contains(&problem.seq)
            || problem.batch * problem.dim > CHANNELS_FOR_TIME_LANES * self.multiprocessors
        {
            return None;
        }
        let warps = WARPS_OF_TIME_LANES[usize::from(is_heavy_walk_forward(problem))];
        Some(Layout {
            lanes,
            time_lanes: 32 / lanes,
            states,
            rounds: 1,
            orders: 1,
            parts: 1,
            channels: warps,
            warps,
            tile: TILE_OF_TIME_LANES,
        })
    }

    /// Plans the forward pass.
    pub fn forward(&self, problem: &Problem) -> ForwardPlan {
        let interval = boundary_interval(problem);
        let in_rounds = || self.forward_keeping(problem, interval, MOST_ROUNDS);
        // Tiles that the device copies are walked once in a pass, which does not pay where those with marks are walked by many
        // operations (H200).
        let pays = problem.seq >= BULK_FRAMES_OF_ROW && !(problem.seq_idx && is_heavy_walk_forward(problem));
        if problem.state <= SLOTS_OF_ROUND || !pays || !self.copies_tiles(problem) {
            return in_rounds();
        }
        Some(self.forward_keeping(problem, interval, 1))
            .filter(|plan| plan.bulk.is_some())
            .unwrap_or_else(in_rounds)
    }

    /// Plans a forward pass that can keep states every `interval` frames, in passes of so many rounds at most.
    pub(super) fn forward_keeping(
        &self,
        problem: &Problem,
        interval: usize,
        most_rounds: usize,
    ) -> ForwardPlan {
        if let Some(layout) = self.time_lanes(problem) {
            return ForwardPlan { layout, chunk: problem.seq, chunks: 1, bulk: None, relay: None };
        }
        // With the fewest lanes, and with more, which are more warps for more operations; in chunks, these are warps enough.
        let with_lanes = |least| self.forward_layout(problem, interval, least, false, most_rounds);
        let whole = successors(Some(with_lanes(1)), |layout| {
            Some(with_lanes(2 * layout.lanes)).filter(|more| more.lanes > layout.lanes)
        });
        let whole = whole.map(|layout| self.in_chunks(problem, layout, problem.seq));
        let cut = self.forward_layout(problem, interval, 1, true, most_rounds);
        // As many as blocks join by themselves, or as the device runs at a time.
        let blocks = problem.batch * blocks(problem, &cut);
        let running = self.multiprocessors * blocks_wanted(problem, &cut, Program::Forward);
        let of_waves = |waves: usize| waves * running / blocks;
        let counts = (2..=MOST_JOINED).chain(WAVES.map(of_waves));
        let chunks = counts.filter(|&count| (2..=problem.seq / cut.tile).contains(&count)).map(|count| {
            let chunk = problem.seq.div_ceil(count).next_multiple_of(cut.tile);
            self.in_chunks(problem, cut, chunk)
        });
        let timed = whole.chain(chunks).map(|plan| (self.forward_clocks(problem, &plan), plan));
        let best = timed.min_by(|(one, _), (other, _)| one.total_cmp(other));
        let (clocks, plan) = best.expect("a row may be whole");
        let all = clocks * passes(problem, plan.layout.slots()) as f64;
        let relays = self.relays(problem, interval).map(|relay| (self.relay_clocks(problem, &relay), relay));
        let relay = relays.min_by(|(one, _), (other, _)| one.total_cmp(other));
        let relay = relay.filter(|&(clocks, _)| clocks < all).map(|(_, relay)| relay);
        ForwardPlan { relay, ..plan }
    }

    /// The pass in chunks of so many frames that are walked in this layout.
    fn in_chunks(&self, problem: &Problem, layout: Layout, chunk: usize) -> ForwardPlan {
        ForwardPlan {
            layout,
            chunk,
            chunks: problem.seq.div_ceil(chunk),
            bulk: self.bulk(problem, &layout, chunk),
            relay: None,
        }
    }
}

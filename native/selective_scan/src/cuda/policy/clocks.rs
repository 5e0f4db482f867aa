//! About how many clocks a plan takes, from which the fastest is chosen.
//!
//! A multiprocessor walks a frame of the warps that it has in the longer of two: in what each waits for by itself, and in what all of
//! them issue; of the shorter a half shows. What one warp waits for and issues, and what comes before and after a walk, is
//! fitted to the times of 900 problems forward and 500 backward, each by all plans that there are, on an H200: bench/NOTES.md, "What
//! plans are chosen by". Other devices have other clocks, but their ratios are those of the same code.

use std::ops::Range;

use super::backward::{BACKWARD_WARPS, SPAN, is_heavy_walk_back, sums_of_frame};
use super::configurations::{MOST_JOINED, blocks_of_bulk, blocks_wanted};
use super::forward::{BULK_FRAMES_OF_ROW, MOST_LANES, RELAY_WARPS, bulk_bytes, forward_bytes, is_short_row};
use super::{
    BackwardPlan, Bulk, ForwardPlan, Layout, Piece, Pieces, Properties, Relay, blocks, changes_elements,
    decay_by_sum, is_heavy_walk_forward, is_long_walk_forward, state_words,
};
use crate::cuda::arguments::sweep_count;
use crate::cuda::compile::Program;
use crate::cuda::launch::Pass;
use crate::{Coefficients, Method, Problem};

/// Schedulers of a multiprocessor.
const SCHEDULERS: usize = 4;
/// Of what is waited for and what is issued, the share of the shorter that the longer does not hide.
const SHOWS: f64 = 0.5;

/// Clocks that warps take for a frame.
#[derive(Debug, Clone, Copy)]
struct FrameClocks {
    /// Where each is alone on its scheduler.
    latency: f64,
    /// In which each alone issues.
    issue: f64,
}

impl FrameClocks {
    /// Of so many warps on a multiprocessor.
    fn side_by_side(self, warps: usize) -> f64 {
        let Self { latency, issue } = self;
        let all = issue * warps.div_ceil(SCHEDULERS) as f64;
        if warps == 0 { 0.0 } else { latency.max(all) + SHOWS * latency.min(all) }
    }

    /// Of walks that take so many times as long.
    fn times(self, factor: f64) -> Self {
        Self { latency: self.latency * factor, issue: self.issue * factor }
    }
}

/// Clocks of a walk forward by zoh.
#[derive(Debug, Clone, Copy)]
struct WalkClocks {
    /// Before and after it.
    start: f64,
    frame: FrameClocks,
}

impl WalkClocks {
    const fn new(start: f64, latency: f64, issue: f64) -> Self {
        Self { start, frame: FrameClocks { latency, issue } }
    }
}

/// Through registers, by threads that have so many words of states.
const WALKS_THROUGH_REGISTERS: [(usize, WalkClocks); 3] = [
    (4, WalkClocks::new(3700.0, 45.8, 41.8)),
    (2, WalkClocks::new(3540.0, 32.0, 26.0)),
    (1, WalkClocks::new(3070.0, 27.6, 17.3)),
];
/// Frames that such a walk goes on by.
const FRAMES_THROUGH_REGISTERS: usize = 8;
/// In tiles that the device copies, by lanes, and with four in those of short rows.
const WALK_WITH_4_LANES: WalkClocks = WalkClocks::new(4800.0, 32.7, 40.1);
const WALK_WITH_2_LANES: WalkClocks = WalkClocks::new(4610.0, 28.8, 75.5);
const WALK_OF_SHORT_ROW: WalkClocks = WalkClocks::new(3250.0, 44.3, 39.6);
/// Of the latter: how many times as long frames take that the tiles leave over, which are walked by spans of as many frames as there are
/// lanes; and what it takes to read a kernel's code, where that is long, for the first time.
const LEFT_OVER: f64 = 1.5;
const READING_LONG_CODE: f64 = 1400.0;
/// How many times as long these take: walks with a gain of their own, through registers by the most lanes, where rows are long; elements
/// of 16 bits that each lane takes apart; and, where a warp is alone on its scheduler, rk4's polynomials, and walks with a gain of
/// their own in tiles with marks.
const OF_GAINS_IN_MOST_LANES: f64 = 0.91;
const TAKING_APART: f64 = 1.2;
const CHAINED: f64 = 1.5;
const WITH_MARKS: f64 = 1.4;
/// A block more on a multiprocessor, before it walks.
const NEXT_BLOCK: f64 = 650.0;
/// What finds what chunks come to, and how many times as long where rows are packed; then a chunk, where each joins those before it, or
/// the launch of a scan over them.
const WALK_OF_SUMMARY: WalkClocks = WalkClocks::new(4060.0, 14.0, 36.8);
const SUMMARY_OF_PACKED: f64 = 1.7;
const JOIN: f64 = 245.0;
const PREFIX: f64 = 4020.0;

/// By relay.cu: before and after the tiles, and a tile of all that a multiprocessor has, by zoh. Of what other walks take more, the share
/// that is walked once; the products of decays, where they are not by ΣΔ; and how many times as long elements of 16 bits take, and
/// tiles of one block alone. The same of pieces, and how many times as long their tiles take with fewer warps than a block can have.
const RELAY_START: f64 = 6160.0;
const RELAY_TILE: f64 = 265.0;
const PIECES_START: f64 = 9_500.0;
const PIECES_TILE: f64 = 257.0;
const OF_WALK_FROM_ZERO: f64 = 0.68;
const OF_PRODUCTS: f64 = 0.17;
const OF_WIDENING: f64 = 1.03;
const OF_ONE_BLOCK: f64 = 0.91;
const OF_FEW_WARPS: f64 = 1.1;
/// Of packed rows: what their marks take before and after the tiles, and how many times as long a tile. Of the start, what sweeps after
/// the first take.
const RELAY_MARKS: f64 = 3000.0;
const OF_PACKED: f64 = 1.07;
const OF_LATER_START: f64 = 0.65;

/// Backward, of warps whose lanes have so many states.
const FRAME_BACK: [(usize, FrameClocks); 3] = [
    (4, FrameClocks { latency: 319.0, issue: 253.0 }),
    (2, FrameClocks { latency: 256.0, issue: 149.0 }),
    (1, FrameClocks { latency: 258.0, issue: 94.0 }),
];
/// The same where a lane has four states of a walk with a gain of its own: its chain of operations is what such a warp waits for.
const HEAVY_FRAME_BACK: FrameClocks = FrameClocks { latency: 610.0, issue: 45.0 };
/// So many times as long take four states of other walks that want nearly all registers; and in chunks of many tiles, which want more.
const MANY_TILES: usize = 3;
const OF_MANY_REGISTERS: [f64; 2] = [1.12, 1.25];
/// The walk of the states alone, as a share of the walk back; and how many times as long it takes where segments begin within chunks, some
/// sooner than others, for whose blocks the device waits; and within tiles, of which they then enter one more.
const STATES_SHARE: f64 = 0.287;
const OF_BEGINS: f64 = 1.3;
const OF_BEGINS_WITHIN_TILES: f64 = 2.0;
/// What warps of a block wait for one another, where they are more than usual, as a share of the time.
const WAITING_SHARE: f64 = 0.15;
/// What parts of a row walk, who walk from zero first, as a share of what they do of a row alone (of parts slower than they are now).
const OF_PARTS: f64 = 1.5;
/// How many times as long as it should a walk takes where blocks of a short last segment take turns beside it.
const OF_TURNS: f64 = 1.03;
/// A launch, with the reduction after it; and bytes of its sums that a multiprocessor writes and reads in a clock.
const LAUNCH: f64 = 5750.0;
const SUM_BYTES: f64 = 2.8;
/// The adjoints alone: their launch, where blocks join them, or with that of the scan over them; a chunk that is joined or scanned, a
/// frame of a chunk, and a frame of sixteen states that a multiprocessor has.
const ADJOINTS_LAUNCH: f64 = 3500.0;
const ADJOINTS_LAUNCHES: f64 = 7470.0;
const ADJOINTS_CHUNK: f64 = 285.0;
const ADJOINTS_FRAME: f64 = 34.0;
const ADJOINTS_OF_16_STATES: f64 = 0.98;

impl Properties {
    /// Clocks of a forward pass.
    pub(super) fn forward_clocks(&self, problem: &Problem, plan: &ForwardPlan) -> f64 {
        let ForwardPlan { layout, chunk, chunks, bulk, .. } = *plan;
        let factor = frame_factor(problem) * layout.rounds as f64;
        let (walk, walked, frames, resident) = match bulk {
            Some(Bulk { layout, .. }) => self.copied(problem, layout, chunk),
            None => self.through_registers(problem, layout, chunk),
        };
        let blocks_of = |layout: &Layout, chunks: usize| problem.batch * blocks(problem, layout) * chunks;
        let all = |layout: &Layout, chunks: usize, frame: FrameClocks| {
            self.frame_of_all(blocks_of(layout, chunks), layout.warps, resident, frame.times(factor))
        };
        let each = blocks_of(&walked, chunks).div_ceil(self.multiprocessors).min(resident);
        let own = walk.start + NEXT_BLOCK * each as f64 + all(&walked, chunks, walk.frame) * frames;
        if chunks == 1 {
            return own;
        }
        let WalkClocks { start, frame } = WALK_OF_SUMMARY;
        let frame = frame.times(if problem.seq_idx { SUMMARY_OF_PACKED } else { 1.0 });
        let summaries = start + all(&layout, chunks - 1, frame) * chunk as f64;
        let joins = if chunks <= MOST_JOINED { JOIN * chunks as f64 } else { PREFIX };
        own + summaries + joins
    }

    /// Clocks of a forward pass by relay.cu.
    pub(super) fn relay_clocks(&self, problem: &Problem, relay: &Relay) -> f64 {
        let of_products = if decay_by_sum(problem) { 0.0 } else { OF_PRODUCTS };
        let of_method = 1.0 + OF_WALK_FROM_ZERO * (frame_factor(problem) - 1.0) + of_products;
        let of_widening = if problem.element.size() == 2 { OF_WIDENING } else { 1.0 };
        let (marks, of_packed) = if problem.seq_idx { (RELAY_MARKS, OF_PACKED) } else { (0.0, 1.0) };
        let Relay { layout, each, pieces } = *relay;
        let (start, tile, tiles) = match pieces {
            Some(Pieces { tiles_per_block, .. }) => {
                let of_few = if layout.warps < RELAY_WARPS[0] { OF_FEW_WARPS } else { 1.0 };
                (PIECES_START, PIECES_TILE * of_few, tiles_per_block)
            }
            None => {
                let of_few = if each == 1 { OF_ONE_BLOCK } else { 1.0 };
                (RELAY_START, RELAY_TILE * of_few, each * problem.seq.div_ceil(layout.tile))
            }
        };
        let sweeps = sweep_count(problem, layout.slots()) as f64;
        let starts = start * (1.0 + OF_LATER_START * (sweeps - 1.0)) + marks * sweeps;
        starts + tile * of_method * of_widening * of_packed * tiles as f64 * sweeps
    }

    /// What a block of forward.cu takes, its layout, its frames, and how many a multiprocessor has at a time.
    fn through_registers(
        &self,
        problem: &Problem,
        layout: Layout,
        chunk: usize,
    ) -> (WalkClocks, Layout, f64, usize) {
        let words = layout.states * state_words(problem);
        let mut walks = WALKS_THROUGH_REGISTERS.into_iter();
        let (_, WalkClocks { start, frame }) =
            walks.find(|&(least, _)| least <= words).expect("a thread has a word of states");
        let is_faster =
            layout.lanes == MOST_LANES && is_heavy_walk_forward(problem) && problem.seq >= BULK_FRAMES_OF_ROW;
        let frame = frame.times(if is_faster { OF_GAINS_IN_MOST_LANES } else { 1.0 });
        let frames = chunk.next_multiple_of(FRAMES_THROUGH_REGISTERS) as f64;
        let registers = blocks_wanted(problem, &layout, Program::Forward);
        let resident = self.blocks_at_a_time(forward_bytes(problem, &layout), registers);
        (WalkClocks { start, frame }, layout, frames, resident)
    }

    /// The same of bulk.cu.
    fn copied(&self, problem: &Problem, layout: Layout, chunk: usize) -> (WalkClocks, Layout, f64, usize) {
        let is_short_row = is_short_row(problem, &layout);
        let WalkClocks { mut start, frame } = match layout.lanes {
            2 => WALK_WITH_2_LANES,
            _ if is_short_row => WALK_OF_SHORT_ROW,
            _ => WALK_WITH_4_LANES,
        };
        if is_short_row && is_long_walk_forward(problem) {
            start += READING_LONG_CODE;
        }
        let takes_apart = problem.element.size() == 2 && !changes_elements(problem);
        let mut frame = frame.times(if takes_apart { TAKING_APART } else { 1.0 });
        frame.latency *= match problem.method {
            Method::Rk4 => CHAINED,
            _ if problem.seq_idx && is_heavy_walk_forward(problem) => WITH_MARKS,
            _ => 1.0,
        };
        let over = if is_short_row { chunk % layout.tile } else { 0 };
        let frames = (chunk - over) as f64 + LEFT_OVER * over.next_multiple_of(layout.lanes) as f64;
        let registers = blocks_of_bulk(problem, &layout);
        let resident = self.blocks_at_a_time(bulk_bytes(problem, &layout), registers);
        (WalkClocks { start, frame }, layout, frames, resident)
    }

    /// Clocks of a backward pass: the mean of one from the states that the forward pass kept and of one from the inputs, but for
    /// what finds the states there. They differ where there are several sweeps. Sequences are taken to be aligned.
    pub(super) fn backward_clocks(&self, problem: &Problem, plan: &BackwardPlan) -> f64 {
        let sweeps = sweep_count(problem, plan.layout.slots());
        let first = self.walk_back(problem, plan, true);
        let later = if sweeps > 1 { self.walk_back(problem, plan, false) } else { 0.0 };
        let sums = (sums_of_frame(problem, &plan.layout) * problem.seq) as f64 / SUM_BYTES;
        let clocks = |together| {
            let each = self.adjoints(problem, plan, together) + sums / self.multiprocessors as f64;
            together as f64 * first + (sweeps - together) as f64 * later + sweeps as f64 * each
        };
        match plan.sweeps_together(problem, Pass::BackwardFromBoundaryStates) {
            1 => clocks(1),
            together => 0.5 * (clocks(1) + clocks(together)),
        }
    }

    /// Of its walk back by one of the sweeps, with the launches that its pieces are, of the `first` that walk or of later ones.
    fn walk_back(&self, problem: &Problem, plan: &BackwardPlan, first: bool) -> f64 {
        let BackwardPlan { layout, segment, segments, rows_per_block, .. } = *plan;
        let tiles = plan.tiles();
        let of_each = problem.batch.div_ceil(rows_per_block) * blocks(problem, &layout);
        let resident = self.resident(problem, &layout, tiles);
        let frame = frame_back(problem, &layout, tiles);
        let of_all = self.frame_of_all(of_each * segments, layout.warps, resident, frame);
        // Segments that begin within chunks do so alike after as many as a chunk has tiles, or spans.
        let (turns, of_begins) = match segments == 1 || segment.is_multiple_of(plan.chunk) {
            true => (1, 1.0),
            false if plan.begins_within_tiles() => (segments.min(plan.chunk / SPAN), OF_BEGINS_WITHIN_TILES),
            false => (segments.min(tiles), OF_BEGINS),
        };
        // Of so many frames of each of these segments from this one on.
        let walked = |of: Range<usize>, of_begins: f64, first: usize, frames: usize| {
            if frames == 0 {
                return 0.0;
            }
            // Of a chunk, or what the piece has of one, the states of all tiles but the last are walked alone, to find those before
            // each; and those before the piece.
            let tiles = tiles.min(frames.div_ceil(layout.tile)) as f64;
            let alone = STATES_SHARE * (tiles - 1.0) / tiles;
            let (count, begins) = (of.len() as f64, of.map(|number| (number * segment + first) % plan.chunk));
            let within_chunk = of_begins * STATES_SHARE * begins.sum::<usize>() as f64 / count;
            (1.0 + alone) * frames as f64 + within_chunk
        };
        // A short last segment is walked by several blocks in turn, in the places that the others leave; those that are left when these
        // end have the device to themselves.
        let last = segments - 1;
        let places = (self.multiprocessors * resident).saturating_sub(last * of_each);
        let takes_turns = plan.ends_short(problem) && places > 0;
        let of_full = frame.side_by_side(resident * layout.warps);
        let alone = frame.side_by_side(places.div_ceil(self.multiprocessors) * layout.warps);
        let of_piece = |piece: Piece| {
            let alike = of_all * walked(0..turns, of_begins, piece.first, piece.frames);
            if !takes_turns {
                return alike;
            }
            // They wait for nobody who begins later within a chunk.
            let of_begins = if plan.begins_within_tiles() { of_begins } else { 1.0 };
            let of_others = walked(0..last.min(turns), of_begins, piece.first, piece.frames);
            let of_last = walked(last..segments, of_begins, piece.last_first, piece.last_frames);
            let left = of_last * of_each as f64 / places as f64 - of_others;
            alike.min(OF_TURNS * (of_full * of_others + alone * left.max(0.0)))
        };
        let pieces = plan.pieces(problem, first, true);
        let (clocks, launches) =
            pieces.fold((0.0, 0.0), |(clocks, launches), piece| (clocks + of_piece(piece), launches + 1.0));
        let of_parts = if layout.parts > 1 { OF_PARTS / layout.parts as f64 } else { 1.0 };
        let waiting = if layout.warps > BACKWARD_WARPS[0] { WAITING_SHARE } else { 0.0 };
        clocks * rows_per_block as f64 * of_parts * (1.0 + waiting) + LAUNCH * launches
    }

    /// Of the adjoints alone, for one of the sweeps.
    fn adjoints(&self, problem: &Problem, plan: &BackwardPlan, together: usize) -> f64 {
        if plan.segments == 1 {
            return 0.0;
        }
        let chunk = plan.adjoint_frames(plan.adjoints_wait_in_gradients(problem, together, true));
        let chunks = problem.seq.div_ceil(chunk);
        // As the constants were fitted, segments that are alike count as equal, though the last may lack some frames.
        let of_others = (plan.segments - 1) * problem.seq / plan.segments;
        let frames = if plan.ends_short(problem) { problem.seq - plan.segment } else { of_others };
        let frames = problem.batch * problem.dim * frames;
        let of_16_states = (frames * plan.layout.slots()) as f64 / 16.0;
        let launches = if plan.joins_adjoints { ADJOINTS_LAUNCH } else { ADJOINTS_LAUNCHES };
        launches
            + ADJOINTS_CHUNK * chunks as f64
            + ADJOINTS_FRAME * chunk as f64
            + ADJOINTS_OF_16_STATES * of_16_states / self.multiprocessors as f64
    }

    /// Clocks that a frame takes of all blocks of so many warps, of which a multiprocessor has so many at a time.
    fn frame_of_all(&self, blocks: usize, warps: usize, resident: usize, clocks: FrameClocks) -> f64 {
        let full = resident * self.multiprocessors;
        let rest = (blocks % full).div_ceil(self.multiprocessors);
        (blocks / full) as f64 * clocks.side_by_side(resident * warps) + clocks.side_by_side(rest * warps)
    }
}

/// How many times as long as by zoh a frame takes forward, with what is done to its elements.
fn frame_factor(problem: &Problem) -> f64 {
    let of_method = match problem.method {
        Method::Zoh | Method::Bilinear => 1.0,
        Method::Rk4 => 1.25,
        _ if problem.coefficients == Coefficients::Taylor => 1.35,
        Method::ZohExact => 1.7,
        Method::Foh => 2.1,
        Method::Poly => 2.2,
        Method::Highorder => 2.6,
    };
    let of_elements = if changes_elements(problem) { 1.2 } else { 1.0 };
    let of_words = if state_words(problem) > 1 { 4.0 } else { 1.0 };
    of_method * of_elements * of_words
}

/// What a frame of the walk back takes.
fn frame_back(problem: &Problem, layout: &Layout, tiles: usize) -> FrameClocks {
    if layout.states == 4 && is_heavy_walk_forward(problem) {
        return HEAVY_FRAME_BACK;
    }
    let measured = FRAME_BACK.iter().find(|&&(states, _)| states == layout.states);
    let clocks = measured.expect("states that a lane may have").1;
    match is_heavy_walk_back(problem, layout) {
        true => clocks.times(OF_MANY_REGISTERS[usize::from(tiles >= MANY_TILES)]),
        false => clocks,
    }
}

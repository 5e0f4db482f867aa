//! The plan of the backward pass: by chunks, whose frames are those between states that are kept, layouts, segments, and pieces of
//! these.

mod layout;
mod memory;
mod plan;
mod segments;
mod shared;

use std::cell::RefCell;

use super::forward::{ForwardPlan, MOST_ROUNDS};
use super::{Layout, Properties, blocks, has_several_sweeps, unit};
use crate::Problem;
use crate::cuda::launch::Pass;
use crate::cuda::workspace::{Workplace, measure_backward};
use layout::{channels_of_warp, lanes_of};
use memory::{BOUNDED_FROM, adjoints_fit, most_carried, summary_of_chunk};
use segments::{is_short, most_segments, segments, segments_before_short};

pub(in crate::cuda) use layout::BACKWARD_TILE;
pub(super) use layout::{LONGEST_ALONE, PAIR, SPAN, is_heavy_walk_back, is_light_walk_back};
pub(in crate::cuda) use memory::{boundary_interval, depends_on_alignment};
pub(super) use memory::{sequence_bytes, sums_of_frame};
pub use plan::{BackwardPlan, Piece, StatesPlan};
pub(in crate::cuda) use shared::tiles_not_kept;
pub(super) use shared::{backward_bytes, summary_bytes};

/// Where memory is not bounded: sums of dB and dC of a launch at most. They stay in an H200's cache; where a cache is smaller they
/// pass through memory, which takes less time than so many more launches would.
const SUMS_BYTES: usize = 48 << 20;

/// Blocks that a multiprocessor has at least, one after the other, where each walks several rows.
const BLOCKS_OF_SEVERAL_ROWS: usize = 16;
/// Warps of a block of the backward pass: the usual, and, where memory is bounded, more, which keep fewer sums of dB and dC.
pub(super) const BACKWARD_WARPS: [usize; 3] = [4, 6, 12];
/// Warps of that walk that a multiprocessor should have, if its chunks are no shorter than this.
pub(super) const WARPS_OF_ADJOINTS: usize = 24;
const SHORTEST_OF_ADJOINTS: usize = 64;

/// Adjoint chunks up to which every block joins those after its segment, without a launch for that; and bytes that blocks then read of
/// them, for each multiprocessor, in no more time than the launch takes.
const MOST_JOINED_BACK: usize = 16;
const BYTES_JOINED_BACK: usize = 128 << 10;

thread_local! {
    /// The last plan of this thread for sequences that are not aligned, and for those that are: a call asks several times, and often
    /// the next call again. For rows of 65536 frames it takes 120 µs to find.
    static LAST: RefCell<[Option<(Properties, Problem, BackwardPlan)>; 2]> = const { RefCell::new([None, None]) };
}

impl Properties {
    /// Plans the backward pass: the layout, and the segments that are scanned side by side, which take the least time. `aligned`: so
    /// are all sequences, and the gradients of x and dt hold other values meanwhile, as far as there is room.
    ///
    /// Its extra memory is the states at the boundaries of the chunks, less with longer chunks; what each segment
    /// sums over time; and the sums of dB and dC that a launch leaves to be reduced, less with shorter pieces.
    pub fn backward(&self, problem: &Problem, aligned: bool) -> BackwardPlan {
        let place = usize::from(aligned);
        let is_it = |(device, of, _): &&(Properties, Problem, BackwardPlan)| device == self && of == problem;
        let known = LAST.with_borrow(|last| last[place].as_ref().filter(is_it).map(|&(_, _, plan)| plan));
        known.unwrap_or_else(|| {
            let plan = self.plan_backward(problem, aligned);
            LAST.with_borrow_mut(|last| last[place] = Some((*self, problem.clone(), plan)));
            plan
        })
    }

    fn plan_backward(&self, problem: &Problem, aligned: bool) -> BackwardPlan {
        let bounded = problem.seq >= BOUNDED_FROM;
        let warps = if bounded { &BACKWARD_WARPS[..] } else { &BACKWARD_WARPS[..1] };
        let chunk = boundary_interval(problem);

        // First what exceeds the bound on memory, then the time.
        let mut best: Option<((usize, f64), BackwardPlan)> = None;
        for &lanes in lanes_of(problem) {
            // Of counts that there are too few channels for, the first stands for all.
            let most = unit(problem).div_ceil(channels_of_warp(lanes));
            let enough = warps.iter().position(|&warps| warps >= most).unwrap_or(warps.len() - 1);
            let warps = warps[..=enough].iter().map(|&warps| warps.min(most));
            for layout in warps.filter_map(|warps| self.layout_back(problem, lanes, warps, chunk)) {
                let own = Problem { state: problem.state.min(layout.slots()), ..problem.clone() };
                let states = StatesPlan::Summaries(self.summary_layout(&own, chunk));
                let full = self.full(problem, &layout, chunk);
                let most = most_segments(problem, &layout, chunk, full);
                let may_borrow =
                    aligned && depends_on_alignment(problem) && !has_several_sweeps(problem, &layout);
                let before_short = segments_before_short(problem, &layout, chunk, full);
                for segment in segments(problem.seq, chunk, layout.tile, most).chain(before_short) {
                    let deal = |da_borrows| self.deal(problem, layout, states, chunk, segment, da_borrows);
                    let borrowing = may_borrow.then(|| deal(true));
                    let plan = borrowing
                        .filter(|plan| plan.leaves_room_for_da(problem))
                        .unwrap_or_else(|| deal(false));
                    if plan.begins_within_tiles() && plan.has_pieces() {
                        continue; // pieces are whole tiles
                    }
                    let carried = || measure_backward(problem, &plan, Pass::Backward, 1).carried;
                    let excess = if bounded { carried().saturating_sub(most_carried(problem)) } else { 0 };
                    if best.is_some_and(|((least, _), _)| excess > least) {
                        continue;
                    }
                    let cost = (excess, self.backward_clocks(problem, &plan));
                    if best.is_none_or(|(least, _)| cost < least) {
                        best = Some((cost, plan));
                    }
                }
            }
        }
        let (_, plan) = best.expect("there is a layout, and a segment");
        let forward = self.forward_for_states(problem, &plan);
        BackwardPlan { states: forward.unwrap_or(plan.states), ..plan }
    }

    /// Blocks of the walk back that the device has at a time.
    fn full(&self, problem: &Problem, layout: &Layout, chunk: usize) -> usize {
        self.multiprocessors * self.resident(problem, layout, chunk / layout.tile)
    }

    /// Frames of a segment, or of a part of it, for which a block walks the adjoints alone.
    fn adjoint_chunk(&self, problem: &Problem, layout: &Layout, segment: usize, segments: usize) -> usize {
        if segments == 1 {
            return segment;
        }
        let warps = problem.batch * blocks(problem, layout) * layout.warps;
        // Those of the first segment are not asked for.
        let wanted = match problem.seq - segment {
            // Of two segments, as many parts of the first as the last, which alone is walked, remains one chunk: blocks of a chunk that
            // leave so few places fill the device.
            last if is_short(last, segment) => segment / last.max(SHORTEST_OF_ADJOINTS),
            _ => (WARPS_OF_ADJOINTS * self.multiprocessors).div_ceil(warps * (segments - 1)),
        };
        let whole = |&parts: &usize| {
            let frames = segment / parts;
            segment.is_multiple_of(parts * SPAN)
                && frames >= SHORTEST_OF_ADJOINTS
                && adjoints_fit(problem, layout, frames)
        };
        segment / (1..=wanted).rev().find(whole).unwrap_or(1)
    }

    /// Deals frames to segments of so many, and to launches.
    fn deal(
        &self,
        problem: &Problem,
        layout: Layout,
        states: StatesPlan,
        chunk: usize,
        segment: usize,
        da_borrows: bool,
    ) -> BackwardPlan {
        let all_blocks = blocks(problem, &layout);
        let segments = problem.seq.div_ceil(segment);
        let per_segment = segment.div_ceil(chunk);
        let segment = segment.min(problem.seq);
        let adjoint_chunk = self.adjoint_chunk(problem, &layout, segment, segments);
        let joined = (problem.seq - segment).div_ceil(adjoint_chunk);
        let of_chunk = summary_of_chunk(problem, &layout);
        let bytes_joined = problem.batch * problem.dim * segments * joined / 2 * of_chunk;
        let without_sums = BackwardPlan {
            layout,
            states,
            chunk,
            chunks: problem.seq.div_ceil(chunk),
            segment,
            segments,
            adjoint_chunk,
            joins_adjoints: (1..=MOST_JOINED_BACK).contains(&joined)
                && bytes_joined <= BYTES_JOINED_BACK * self.multiprocessors
                && problem.seq < BOUNDED_FROM
                && !has_several_sweeps(problem, &layout),
            piece: 0,
            da_borrows,
            rows_per_block: 1,
        };

        // Frames of every segment whose sums have room: whole chunks, or, if it is less than one, whole tiles of a chunk, which
        // each launch walks to once more. Where sums of dA borrow, it is room for them as well.
        let room = match problem.seq >= BOUNDED_FROM {
            true => {
                let Workplace { carried, of_piece, .. } =
                    measure_backward(problem, &without_sums, Pass::Backward, 1);
                (most_carried(problem) + of_piece).saturating_sub(carried)
            }
            false => SUMS_BYTES,
        };
        let frames = match room.checked_div(sums_of_frame(problem, &layout)) {
            // Beside what pieces of the last are rounded up by.
            Some(frames) if without_sums.ends_short(problem) => {
                let rounding = without_sums.last_in_workspace(problem);
                frames.saturating_sub(rounding) * segment / problem.seq
            }
            Some(frames) => frames / segments,
            None => per_segment * chunk,
        };
        let pieces = per_segment.div_ceil((frames / chunk).max(1));
        let piece = match frames / layout.tile * layout.tile {
            tiles if tiles < chunk => tiles.max(layout.tile),
            _ => per_segment.div_ceil(pieces) * chunk,
        };

        let rows_per_block = match segments * pieces {
            1 if piece >= chunk => {
                let least = BLOCKS_OF_SEVERAL_ROWS * self.multiprocessors;
                (problem.batch * all_blocks / least).clamp(1, problem.batch)
            }
            _ => 1,
        };
        BackwardPlan { piece: piece.min(problem.seq), rows_per_block, ..without_sums }
    }

    /// The forward pass, where the backward pass from the inputs alone may as well run it to have the states: where chunks are
    /// short and many, it is faster than their summaries, and whoever comes from a forward pass has its kernel already.
    fn forward_for_states(&self, problem: &Problem, plan: &BackwardPlan) -> Option<StatesPlan> {
        if plan.chunks == 1 || problem.seq >= BOUNDED_FROM || has_several_sweeps(problem, &plan.layout) {
            return None;
        }
        let ForwardPlan { layout, chunks, relay, .. } =
            self.forward_keeping(problem, plan.chunk, MOST_ROUNDS);
        let is_one_sweep = |layout: &Layout| !has_several_sweeps(problem, layout);
        (chunks == 1 && is_one_sweep(&layout))
            .then(|| StatesPlan::Forward { layout, relay: relay.filter(|relay| is_one_sweep(&relay.layout)) })
    }
}

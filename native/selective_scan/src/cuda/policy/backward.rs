//! The plan of the backward pass.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::iter::successors;

use super::configurations::threads_wanted;
use super::forward::{ForwardPlan, MOST_ROUNDS, Relay};
use super::{
    Layout, Properties, blocks, decay_by_sum, has_several_passes, is_constant, is_plain, real_bytes,
    state_words, states_for, unit, varying,
};
use crate::cuda::arguments::passes;
use crate::cuda::compile::Program;
use crate::cuda::launch::Pass;
use crate::cuda::workspace::{Workplace, measure_backward};
use crate::{Method, Problem};

/// From here on the backward pass carries less than a tenth of its inputs from kernel to kernel.
const BOUNDED_FROM: usize = 2048;
/// The share of the sequences among these that states at the boundaries of chunks take of it at most.
const BOUNDARY_SHARE: f64 = 0.0595;
/// Where memory is not bounded: sums of dB and dC of a launch at most. They stay in an H200's cache; where a cache is smaller they
/// pass through memory, which takes less time than so many more launches would.
const SUMS_BYTES: usize = 48 << 20;

/// Frames of a tile of the backward pass, and frames and channels that a thread of it has in registers.
pub(super) const BACKWARD_TILE: usize = 32;
pub(super) const SPAN: usize = 4;
pub(super) const PAIR: usize = 2;
/// Frames up to which a row is one chunk.
pub(super) const LONGEST_ALONE: usize = 64;
/// Parts of such a row where channels are few, if it has so many frames; what they walk twice takes what they save of a shorter one.
const PARTS_OF_ROW: usize = 8;
const SHORTEST_IN_PARTS: usize = 25;
/// Warps of a block of the backward pass: the usual, and, where memory is bounded, more, which keep fewer sums of dB and dC.
pub(super) const BACKWARD_WARPS: [usize; 3] = [4, 6, 12];
/// Warps of that walk that a multiprocessor should have, if its chunks are no shorter than this.
pub(super) const WARPS_OF_ADJOINTS: usize = 24;
const SHORTEST_OF_ADJOINTS: usize = 64;

/// Adjoint chunks up to which every block joins those after its segment, without a launch for that; and bytes that blocks then read of
/// them, for each multiprocessor, in no more time than the launch takes.
const MOST_JOINED_BACK: usize = 16;
const BYTES_JOINED_BACK: usize = 128 << 10;

/// Registers of a multiprocessor, and of a thread at most.
const REGISTERS: usize = 65_536;
const MOST_REGISTERS: usize = 256;
/// What a block walks, in its shared memory.
const COURSE_BYTES: usize = 160;

/// What finds the states at the boundaries of chunks from the inputs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatesPlan {
    /// The forward pass, which keeps them, of whole rows: by forward.cu, or by relay.cu instead, if the operands are aligned.
    Forward {
        /// Of forward.cu.
        layout: Layout,
        /// Of relay.cu.
        relay: Option<Relay>,
    },
    /// Summaries of the chunks, by walks of this layout, and a scan over them.
    Summaries(Layout),
}

/// The backward pass of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackwardPlan {
    /// The layout of its walks.
    pub layout: Layout,
    /// What finds the states at the boundaries of chunks from the inputs alone.
    pub states: StatesPlan,
    /// Frames a chunk: from one state that is kept to the next.
    pub chunk: usize,
    /// Chunks a row.
    pub chunks: usize,
    /// Frames a segment: segments are scanned side by side. Whole tiles; where chunks are tiles, whole spans.
    pub segment: usize,
    /// Segments a row.
    pub segments: usize,
    /// Frames of an adjoint chunk, of which a segment is made of whole ones ([`BackwardPlan::adjoint_frames`]).
    pub adjoint_chunk: usize,
    /// Whether blocks join those after their segment: they are few, and memory is not bounded.
    pub joins_adjoints: bool,
    /// Frames of every segment but the last whose sums of dB and dC have room in the workspace ([`BackwardPlan::last_in_workspace`]).
    pub piece: usize,
    /// Whether sums of dA have no memory of their own, and are reduced with each piece. Those of the piece that is walked last lie where
    /// its blocks have read the gradients after it; those of the others in the workspace that the last leaves its sums of dB and dC in,
    /// as the others leave theirs in gradients.
    pub da_borrows: bool,
    /// Rows that a thread block walks in turn.
    pub rows_per_block: usize,
}

impl BackwardPlan {
    /// Tiles a chunk.
    pub const fn tiles(&self) -> usize {
        self.chunk / self.layout.tile
    }

    /// Blocks of channels of a row.
    pub fn contributions(&self, problem: &Problem) -> usize {
        blocks(problem, &self.layout)
    }

    /// Adjoint chunks a row.
    pub const fn adjoint_chunks(&self, problem: &Problem) -> usize {
        problem.seq.div_ceil(self.adjoint_chunk)
    }

    /// Frames of the last segment.
    pub const fn last_segment(&self, problem: &Problem) -> usize {
        problem.seq - (self.segments - 1) * self.segment
    }

    /// Whether that is short, so that several blocks may walk it one after the other while one walks another segment. All launches then
    /// cover as large a share of it as of the others.
    pub const fn ends_short(&self, problem: &Problem) -> bool {
        self.segments > 1 && is_short(self.last_segment(problem), self.segment)
    }

    /// Whether segments begin and end within tiles.
    pub const fn begins_within_tiles(&self) -> bool {
        self.segments > 1 && !self.segment.is_multiple_of(self.layout.tile)
    }

    /// Whether a segment is walked by several launches.
    pub const fn has_pieces(&self) -> bool {
        self.piece < self.segment
    }

    /// Whether what walks a segment, or a piece of one, is handed the gradient after it.
    pub const fn hands_on(&self) -> bool {
        self.has_pieces() || (self.segments > 1 && !self.joins_adjoints)
    }

    /// Frames for which a block walks the adjoints alone: whole segments, where what shorter chunks add may not wait in the gradients, and
    /// blocks do not join it.
    pub const fn adjoint_frames(&self, wait_in_gradients: bool) -> usize {
        if self.joins_adjoints || wait_in_gradients { self.adjoint_chunk } else { self.segment }
    }

    /// Whether there is what sums of dA may borrow.
    fn leaves_room_for_da(&self, problem: &Problem) -> bool {
        let leaves_workspace = |piece: Piece| piece.first == 0 || piece.in_gradients;
        self.hands_on() && self.pieces(problem, true, true).all(leaves_workspace)
    }

    /// How many passes walk a piece one after the other before any walks the next: all, where the forward pass has kept the
    /// states and what each pass carries from piece to piece is within the bound on memory; else one alone. Until the first
    /// that walk together come to a frame, its gradients are written by nobody.
    pub fn passes_together(&self, problem: &Problem, pass: Pass) -> usize {
        let states_kept = pass == Pass::BackwardFromBoundaryStates;
        let passes = passes(problem, self.layout.slots());
        let carried = || measure_backward(problem, self, pass, passes).carried;
        let fit = || problem.seq < BOUNDED_FROM || carried() <= most_carried(problem);
        if passes > 1 && states_kept && !problem.bidirectional && fit() { passes } else { 1 }
    }

    /// Whether what adjoint chunks add, and their decays or sums of Δ, may wait in the gradients of x and dt, whose addresses must be
    /// `aligned`: all passes walk `together`, and there is room enough.
    pub fn adjoints_wait_in_gradients(&self, problem: &Problem, together: usize, aligned: bool) -> bool {
        // Blocks that join them write gradients meanwhile.
        !self.joins_adjoints
            && together == passes(problem, self.layout.slots())
            && has_room_in_gradients(problem, aligned)
            && adjoints_fit(problem, &self.layout, self.adjoint_chunk)
    }

    /// The pieces of the segments, a launch each, from the last. The walk comes to earlier frames later: until then their dx
    /// and dΔ, where they are `aligned`, are room for a piece's sums of dB and dC of the `first` passes that walk together.
    pub fn pieces(&self, problem: &Problem, first: bool, aligned: bool) -> impl Iterator<Item = Piece> {
        let Self { segment, chunk, layout: Layout { tile, .. }, .. } = *self;
        let (frame, sums) = self.bytes_that_wait(problem);
        let room = first && has_room_in_gradients(problem, aligned);
        let in_workspace = self.piece;
        // As many are worth it where sums of dA borrow.
        let least_in_gradients = in_workspace + usize::from(!self.da_borrows);
        let (mut left, mut left_of_last) = (segment, self.last_segment(problem));
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            // Whole chunks; of the last, some tiles, which each launch walks to once more.
            let unit = if left > chunk { chunk } else { tile };
            let units = left.div_ceil(unit);
            let with_room = if room { units * frame / (frame + sums) } else { 0 };
            let in_gradients = with_room * unit >= least_in_gradients;
            let first = if in_gradients {
                (units - with_room) * unit
            } else if in_workspace >= chunk {
                units.saturating_sub(in_workspace.div_ceil(unit)) * unit
            } else {
                // Some tiles of the last chunk.
                (left - 1) / chunk * chunk + (left - 1) % chunk / in_workspace * in_workspace
            };
            let first_of_last = self.first_of_last(problem, first, left_of_last, in_gradients);
            let piece = Piece {
                first,
                frames: left - first,
                last_first: first_of_last,
                last_frames: left_of_last - first_of_last,
                in_gradients,
            };
            (left, left_of_last) = (first, first_of_last);
            Some(piece)
        })
    }

    /// Bytes of a frame in a sequence's gradient, and of its sums of dB or dC.
    fn bytes_that_wait(&self, problem: &Problem) -> (usize, usize) {
        let sums = self.contributions(problem) * self.layout.states_bytes(problem);
        (problem.dim * problem.element.size(), sums)
    }

    /// Where what a launch covers of the last segment begins, that of the others beginning with frame number `first`, and so many frames
    /// of it being `left`: it covers as large a share, to a tile, as far as that leaves room for what waits in gradients.
    fn first_of_last(&self, problem: &Problem, first: usize, left: usize, in_gradients: bool) -> usize {
        if !self.ends_short(problem) || first == 0 {
            return first.min(left);
        }
        let tile = self.layout.tile;
        let share =
            (first * self.last_segment(problem) + self.segment * tile / 2) / self.segment / tile * tile;
        let (frame, sums) = self.bytes_that_wait(problem);
        let room = if in_gradients { (left * sums).div_ceil(frame + sums).next_multiple_of(tile) } else { 0 };
        share.max(room).min(left)
    }

    /// Frames of the last segment that a piece in the workspace has at most. Its first frame is rounded by half a tile. Its end is the
    /// first frame of the launch before, which for want of room in gradients may lie behind its share: by less than a tile, and by s times
    /// what that launch's own end lies behind, with s = sums / (frame + sums) in bytes of a frame; in all by less than
    /// 1 + s + s² … = 1 + sums / frame tiles.
    pub fn last_in_workspace(&self, problem: &Problem) -> usize {
        if !self.ends_short(problem) {
            return self.piece;
        }
        let (last, tile) = (self.last_segment(problem), self.layout.tile);
        let (frame, sums) = self.bytes_that_wait(problem);
        let share = (self.piece * last).div_ceil(self.segment);
        (share + (2 + sums.div_ceil(frame)) * tile).next_multiple_of(tile).min(last)
    }
}

/// Frames of the segments that one launch walks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The first, by its number in its segment.
    pub first: usize,
    /// How many.
    pub frames: usize,
    /// The same of the last segment: the number of the first,
    pub last_first: usize,
    /// and how many, maybe none.
    pub last_frames: usize,
    /// Whether the sums of dB and dC wait in the gradients of the frames before it.
    pub in_gradients: bool,
}

/// Segments beyond which a device, which has so many blocks at a time, is full.
fn most_segments(problem: &Problem, layout: &Layout, chunk: usize, full: usize) -> usize {
    let blocks = problem.batch * blocks(problem, layout);
    (2 * full).div_ceil(blocks).min(problem.seq.div_ceil(chunk))
}

/// Frames that segments may have before a short one, whole tiles or chunks: as many as fill the device but for some places, in which
/// the short ones take turns, and end with the others. Adjoints are walked alone for fewer frames so, and no wave of blocks is nearly
/// empty.
fn segments_before_short(
    problem: &Problem,
    layout: &Layout,
    chunk: usize,
    full: usize,
) -> impl Iterator<Item = usize> {
    let (seq, tile, of_each) = (problem.seq, layout.tile, problem.batch * blocks(problem, layout));
    let (long, places) = (full / of_each, full % of_each);
    // Short ones that a place walks in turn: between the mean and the most.
    let share = of_each as f64 / places as f64;
    let of_turns = |turns: f64| (seq as f64 / (long as f64 + turns.recip())).ceil() as usize;
    let of_step = |step: f64| of_turns(share + (share.ceil() - share) * step / 3.0);
    let frames = [0.0, 1.0, 2.0, 3.0].map(of_step);
    let fits = move |segment: &usize| {
        let last = seq.saturating_sub(long * segment);
        last > 0 && is_short(last, *segment)
    };
    // No more segments than chunks, as where all are alike: a row of one chunk has no marks for several.
    let may = (1..seq.div_ceil(chunk)).contains(&long);
    let whole = |frames: usize| [tile, chunk].map(|unit| frames.next_multiple_of(unit));
    let all: BTreeSet<_> = frames.into_iter().flat_map(whole).filter(|_| may).filter(fits).collect();
    all.into_iter()
}

/// Bytes of the sequences that flow into the backward pass, a frame and channel.
fn inputs(problem: &Problem) -> usize {
    let sequences = if problem.z { 4 } else { 3 };
    sequences * problem.element.size()
}

/// Bytes of these sequences and of their gradients.
pub(super) fn sequence_bytes(problem: &Problem) -> usize {
    let without_y = 2 * inputs(problem) - problem.element.size();
    without_y * problem.batch * problem.seq * problem.dim
}

/// Whether threads of scan_backward have their sums of dA in registers (DA_IN_REGISTERS in pairs.cuh).
fn keeps_da_in_registers(problem: &Problem) -> bool {
    let is_short = problem.element.size() == 2;
    is_short && !problem.complex && problem.method == Method::Zoh && varying(problem) == 2
}

/// Shared memory of scan_backward, for chunks of so many tiles.
pub(super) fn backward_bytes(problem: &Problem, layout: &Layout, tiles: usize) -> usize {
    let lane = layout.states * problem.components();
    let slots = layout.lanes * lane;
    let channels = layout.channels * layout.parts / layout.warps;
    let starts = PAIR * 32 * lane;
    // Parts have two spans of sources, and leave one another three sets of states.
    let (sources, ends) = if layout.parts > 1 { (2 * SPAN, 3 * starts) } else { (SPAN, 0) };
    let part = layout.tile / layout.parts;
    // The states before the tiles of a chunk but the last, and, of many, the first.
    let kept = if tiles > 3 { tiles - 2 } else { tiles - 1 };
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
pub(super) fn summary_bytes(problem: &Problem, layout: &Layout) -> usize {
    let width = if is_constant(problem.c) { 0 } else { layout.slots() * problem.components() };
    let bias = if problem.dt_bias { layout.channels } else { 0 };
    (layout.tile * (2 * layout.channels + width) + bias) * real_bytes(problem) + COURSE_BYTES
}

thread_local! {
    /// The last plan of this thread for sequences that are not aligned, and for those that are: a call asks several times, and often
    /// the next call again. For rows of 65536 frames it takes 120 µs to find.
    static LAST: RefCell<[Option<(Properties, Problem, BackwardPlan)>; 2]> = const { RefCell::new([None, None]) };
}

impl Properties {
    /// Blocks of the backward pass that a multiprocessor has at a time.
    pub(super) fn resident(&self, problem: &Problem, layout: &Layout, tiles: usize) -> usize {
        let wanted = threads_wanted(problem, layout, Program::Backward) / 32;
        let registers = (wanted / layout.warps * layout.warps).max(REGISTERS / MOST_REGISTERS / 32);
        self.blocks_at_a_time(backward_bytes(problem, layout, tiles), registers / layout.warps)
    }

    /// The layout of a row that is one chunk in one tile, which spares a walk, where its shared memory leaves room for all blocks at a
    /// time.
    fn row_in_one_tile(&self, problem: &Problem, layout: Layout) -> Option<Layout> {
        if problem.seq <= layout.tile || problem.seq > LONGEST_ALONE {
            return None;
        }
        let layout = Layout { tile: problem.seq.next_multiple_of(SPAN), ..layout };
        let running = self.multiprocessors * self.resident(problem, &layout, 1);
        // In one order alone, sums over channels want registers that heavy walks do not have.
        let has_registers = !is_heavy_walk_back(problem, &layout) || self.orders(problem, &layout, 1) > 1;
        let fits = backward_bytes(problem, &layout, 1) <= self.shared_per_block
            && problem.batch * blocks(problem, &layout) <= running
            && has_registers;
        fits.then_some(layout)
    }

    /// The layout of such a row in parts, with the channels of one warp a block: for few blocks, each alone on its multiprocessor,
    /// whose walk takes as long as its chain of operations; of longer chains for two, one after the other. Each leaves sums of dB and dC
    /// to be reduced, which with more blocks takes the time that parts save.
    fn row_in_parts(&self, problem: &Problem, one_warp: Layout) -> Option<Layout> {
        let tile = problem.seq.next_power_of_two();
        let parts = PARTS_OF_ROW.min(tile / (2 * SPAN));
        let layout = Layout { parts, tile, warps: parts, ..one_warp };
        let each = if is_light_walk_back(problem) { 1 } else { 2 };
        let fits = parts > 1
            && !is_heavy_walk_back(problem, &layout)
            && (SHORTEST_IN_PARTS..=LONGEST_ALONE).contains(&problem.seq)
            && varying(problem) == 2
            && problem.batch * blocks(problem, &layout) <= each * self.multiprocessors
            && backward_bytes(problem, &layout, 1) <= self.shared_per_block;
        fits.then_some(layout)
    }

    /// The layout of a walk by blocks of up to so many warps, or, of one in parts, of its own; none where threads would have too few
    /// registers.
    fn layout_back(&self, problem: &Problem, lanes: usize, warps: usize, chunk: usize) -> Option<Layout> {
        let by_warps = |warps| Layout {
            lanes,
            time_lanes: 1,
            states: backward_states(problem, lanes),
            rounds: 1,
            orders: 1,
            parts: 1,
            channels: warps * channels_of_warp(lanes),
            warps,
            tile: BACKWARD_TILE.min(problem.seq.next_power_of_two()).max(2 * SPAN),
        };
        let tiles = |layout: &Layout| chunk / layout.tile;
        let fits = |layout: &Layout| backward_bytes(problem, layout, tiles(layout)) <= self.shared_per_block;
        let in_tiles = || (2..=warps).rev().map(by_warps).find(fits).unwrap_or(by_warps(1));
        let layout = self
            .row_in_parts(problem, by_warps(1))
            .or_else(|| self.row_in_one_tile(problem, by_warps(warps)))
            .unwrap_or_else(in_tiles);
        let has_registers = layout.warps * 32 <= threads_wanted(problem, &layout, Program::Backward);
        let orders = self.orders(problem, &layout, tiles(&layout));
        has_registers.then_some(Layout { orders, ..layout })
    }

    /// Orders in which channels hold the states of a lane: as many as there can be, if the rows of b and c in each of them leave
    /// room for as many blocks.
    fn orders(&self, problem: &Problem, layout: &Layout, tiles: usize) -> usize {
        let resident = |orders: usize| self.resident(problem, &Layout { orders, ..*layout }, tiles);
        let fits = |orders: usize| {
            let bytes = backward_bytes(problem, &Layout { orders, ..*layout }, tiles);
            bytes <= self.shared_per_block && resident(orders) == resident(1)
        };
        let most = layout.states.min(32 / layout.lanes);
        [4, 2].into_iter().find(|&orders| orders <= most && fits(orders)).unwrap_or(1)
    }

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
                    aligned && depends_on_alignment(problem) && !has_several_passes(problem, &layout);
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

    /// The forward pass, where the backward pass from the inputs alone may as well run it to have the states: where chunks are
    /// short and many, it is faster than their summaries, and whoever comes from a forward pass has its kernel already.
    fn forward_for_states(&self, problem: &Problem, plan: &BackwardPlan) -> Option<StatesPlan> {
        if plan.chunks == 1 || problem.seq >= BOUNDED_FROM || has_several_passes(problem, &plan.layout) {
            return None;
        }
        let ForwardPlan { layout, chunks, relay, .. } =
            self.forward_keeping(problem, plan.chunk, MOST_ROUNDS);
        let is_one_pass = |layout: &Layout| !has_several_passes(problem, layout);
        (chunks == 1 && is_one_pass(&layout))
            .then(|| StatesPlan::Forward { layout, relay: relay.filter(|relay| is_one_pass(&relay.layout)) })
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
                && !has_several_passes(problem, &layout),
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
                (problem.batch * all_blocks / (16 * self.multiprocessors)).clamp(1, problem.batch)
            }
            _ => 1,
        };
        BackwardPlan { piece: piece.min(problem.seq), rows_per_block, ..without_sums }
    }
}

/// Frames that a segment may have, of up to `most` segments that are alike but for the last: whole chunks; or, where that is less,
/// whole tiles, or, where chunks are tiles, whole spans, more than a tile. Then segments begin within a chunk, whose states before that
/// are walked once more by every launch.
fn segments(seq: usize, chunk: usize, tile: usize, most: usize) -> impl Iterator<Item = usize> {
    let (unit, least) = if chunk > tile { (chunk, tile) } else { (SPAN, SPAN) };
    segment_counts(seq.div_ceil(unit), most).flat_map(move |count| {
        let whole = seq.div_ceil(chunk).div_ceil(count) * chunk;
        let even = seq.div_ceil(count).next_multiple_of(least);
        let is_of_so_many = seq.div_ceil(whole) == count;
        let is_other = count > 1 && (tile + 1..whole).contains(&even);
        [is_of_so_many.then_some(whole), is_other.then_some(even)].into_iter().flatten()
    })
}

/// Whether a last segment of so many frames is short beside the others.
const fn is_short(last: usize, segment: usize) -> bool {
    2 * last <= segment
}

/// Numbers of segments up to `most` that so many chunks can be dealt to, all but the last alike.
fn segment_counts(chunks: usize, most: usize) -> impl Iterator<Item = usize> {
    // The fewest whose share is smaller than that of so many.
    let next = move |&segments: &usize| match chunks.div_ceil(segments) {
        1 => None,
        each => Some(chunks.div_ceil(each - 1)),
    };
    successors(Some(1), next).take_while(move |&segments| segments <= most)
}

/// Bytes that the backward pass may carry from kernel to kernel, where that is bounded: less than a tenth of what flows in.
fn most_carried(problem: &Problem) -> usize {
    let names = ["x", "dt", "a", "b", "c", "dy"].into_iter().chain(problem.z.then_some("z"));
    (names.map(|name| problem.bytes(name)).sum::<usize>().saturating_sub(1)) / 10
}

/// Channels of a warp of so many lanes.
fn channels_of_warp(lanes: usize) -> usize {
    32 / lanes * PAIR
}

/// Whether a lane walks four states back in as many registers as zoh: a state is a word, and nothing is kept of a frame but its
/// decay.
pub(super) fn is_light_walk_back(problem: &Problem) -> bool {
    state_words(problem) == 1 && matches!(problem.method, Method::Zoh | Method::Bilinear)
}

/// Whether the walk back takes nearly all registers that a thread can have.
pub(super) fn is_heavy_walk_back(problem: &Problem, layout: &Layout) -> bool {
    layout.states == 4 && !is_light_walk_back(problem)
}

/// States that a pass covers at most. 32 are two passes of 16 in one, over half as many channels a warp; but what is kept of
/// them takes twice as long chunks where memory is bounded, which for 16-bit elements are too long.
fn slots_of_pass(problem: &Problem) -> usize {
    let long_chunks = problem.seq >= BOUNDED_FROM && problem.element.size() == 2;
    if is_plain(problem) && !long_chunks { 32 } else { 16 }
}

/// States a thread of the backward pass.
fn backward_states(problem: &Problem, lanes: usize) -> usize {
    let words = state_words(problem);
    let most = (slots_of_pass(problem) / lanes).min(4 / words).max(1);
    states_for(problem.state, lanes, words).min(most)
}

/// Lanes that the walk back may have, the fewest first.
fn lanes_of(problem: &Problem) -> &'static [usize] {
    let has_wide_passes = problem.state.min(slots_of_pass(problem)) > 16;
    match is_light_walk_back(problem) {
        // Fewer lanes would keep fewer states, but chunks are as long for all.
        true if problem.seq >= BOUNDED_FROM && has_wide_passes => &[8, 16],
        true if has_wide_passes => &[4, 8, 16],
        // One state each, of sixteen lanes, is slower (H200).
        true => &[4, 8],
        false if state_words(problem) == 1 => &[4, 8],
        false => &[8],
    }
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

/// Whether the plan may depend on how sequences are aligned: where sums of dA may borrow. Later passes find the gradients written.
pub(in crate::cuda) fn depends_on_alignment(problem: &Problem) -> bool {
    let is_one_pass = passes(problem, slots_of_pass(problem)) == 1;
    problem.seq >= BOUNDED_FROM && is_one_pass && has_room_in_gradients(problem, true)
}

/// Whether what is wanted until the gradients of x and dt are written may lie in them.
fn has_room_in_gradients(problem: &Problem, aligned: bool) -> bool {
    aligned && (problem.dim * problem.element.size()).is_multiple_of(16)
}

/// Whether what adjoint chunks of so many frames add to a channel fits where its row's gradient will be. The last chunk, which
/// may be short, needs as much as any.
fn adjoints_fit(problem: &Problem, layout: &Layout, frames: usize) -> bool {
    problem.seq.div_ceil(frames) * layout.states_bytes(problem) <= problem.seq * problem.element.size()
}

/// Bytes of what a chunk comes to for a channel: its end, and the sum of Δ or the product of decays.
fn summary_of_chunk(problem: &Problem, layout: &Layout) -> usize {
    let end = layout.states_bytes(problem);
    end + if decay_by_sum(problem) { real_bytes(problem) } else { end }
}

/// Bytes of the sums of dB and dC over each block's channels, of a frame of all rows.
pub(super) fn sums_of_frame(problem: &Problem, layout: &Layout) -> usize {
    varying(problem) * problem.batch * blocks(problem, layout) * layout.states_bytes(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_chunks_or_fewer_tiles() {
        let tile = 32;
        for (seq, chunk) in [(2048_usize, 96_usize), (2050, 192), (65_536, 96), (60, 64)] {
            for most in 1..=seq.div_ceil(chunk) {
                let mut whole = seq.next_multiple_of(chunk);
                for segment in segments(seq, chunk, tile, most) {
                    let is_whole = segment.is_multiple_of(chunk);
                    assert!(
                        segment.is_multiple_of(tile) && seq.div_ceil(segment) <= most,
                        "{seq}, {chunk}: {segment}"
                    );
                    assert!(
                        is_whole || segment < whole && segment > whole - chunk,
                        "{seq}, {chunk}: {segment}"
                    );
                    whole = if is_whole { segment } else { whole };
                }
            }
        }
    }

    #[test]
    fn where_chunks_are_tiles_segments_are_whole_chunks_or_fewer_spans() {
        let chunk = 32;
        for seq in [70_usize, 197, 1000, 2047] {
            let most = seq.div_ceil(chunk);
            let all: Vec<_> = segments(seq, chunk, chunk, most).collect();
            for &segment in &all {
                let is_whole = segment.is_multiple_of(chunk);
                assert!(is_whole || segment.is_multiple_of(SPAN) && segment > chunk, "{seq}: {segment}");
                assert!(seq.div_ceil(segment) <= most, "{seq}: {segment}");
            }
            assert!(all.iter().any(|segment| !segment.is_multiple_of(chunk)), "{seq}: {all:?}");
        }
    }

    #[test]
    fn segments_are_counted_once_and_none_is_left_out() {
        for chunks in 1..80_usize {
            for most in 1..=chunks {
                let mut dealt: Vec<_> =
                    (1..=most).map(|count| chunks.div_ceil(chunks.div_ceil(count))).collect();
                dealt.dedup();
                let counts: Vec<_> = segment_counts(chunks, most).collect();
                assert_eq!(counts, dealt, "{chunks} chunks in {most} segments at most");
            }
        }
    }
}

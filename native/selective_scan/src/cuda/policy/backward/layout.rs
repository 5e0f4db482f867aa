//! How the backward pass is laid out: lanes and states, tiles, and rows that are one tile, or parts of one.

use super::memory::BOUNDED_FROM;
use super::shared::backward_bytes;
use crate::cuda::compile::Program;
use crate::cuda::policy::configurations::threads_wanted;
use crate::cuda::policy::{Layout, Properties, blocks, is_plain, state_words, states_for, varying};
use crate::{Method, Problem};

/// Frames of a tile of the backward pass, and frames and channels that a thread of it has in registers.
pub(in crate::cuda) const BACKWARD_TILE: usize = 32;
pub(in crate::cuda::policy) const SPAN: usize = 4;
pub(in crate::cuda::policy) const PAIR: usize = 2;
/// Frames up to which a row is one chunk.
pub(in crate::cuda::policy) const LONGEST_ALONE: usize = 64;
/// Parts of such a row where channels are few, if it has so many frames; what they walk twice takes what they save of a shorter one.
const PARTS_OF_ROW: usize = 8;
const SHORTEST_IN_PARTS: usize = 25;

/// Registers of a multiprocessor, and of a thread at most.
const REGISTERS: usize = 65_536;
const MOST_REGISTERS: usize = 256;

/// Channels of a warp of so many lanes.
pub(super) fn channels_of_warp(lanes: usize) -> usize {
    32 / lanes * PAIR
}

/// Whether a lane walks four states back in as many registers as zoh: a state is a word, and nothing is kept of a frame but its
/// decay.
pub(in crate::cuda::policy) fn is_light_walk_back(problem: &Problem) -> bool {
    state_words(problem) == 1 && matches!(problem.method, Method::Zoh | Method::Bilinear)
}

/// Whether the walk back takes nearly all registers that a thread can have.
pub(in crate::cuda::policy) fn is_heavy_walk_back(problem: &Problem, layout: &Layout) -> bool {
    layout.states == 4 && !is_light_walk_back(problem)
}

/// States that a sweep covers at most. 32 are two sweeps of 16 in one, over half as many channels a warp; but what is kept of
/// them takes twice as long chunks where memory is bounded, which for 16-bit elements are too long.
pub(super) fn slots_of_sweep(problem: &Problem) -> usize {
    let long_chunks = problem.seq >= BOUNDED_FROM && problem.element.size() == 2;
    if is_plain(problem) && !long_chunks { 32 } else { 16 }
}

/// States a thread of the backward pass.
pub(super) fn backward_states(problem: &Problem, lanes: usize) -> usize {
    let words = state_words(problem);
    let most = (slots_of_sweep(problem) / lanes).min(4 / words).max(1);
    states_for(problem.state, lanes, words).min(most)
}

/// Lanes that the walk back may have, the fewest first.
pub(super) fn lanes_of(problem: &Problem) -> &'static [usize] {
    let has_wide_sweeps = problem.state.min(slots_of_sweep(problem)) > 16;
    match is_light_walk_back(problem) {
        // Fewer lanes would keep fewer states, but chunks are as long for all.
        true if problem.seq >= BOUNDED_FROM && has_wide_sweeps => &[8, 16],
        true if has_wide_sweeps => &[4, 8, 16],
        // One state each, of sixteen lanes, is slower (H200).
        true => &[4, 8],
        false if state_words(problem) == 1 => &[4, 8],
        false => &[8],
    }
}

impl Properties {
    /// Blocks of the backward pass that a multiprocessor has at a time.
    pub(in crate::cuda::policy) fn resident(
        &self,
        problem: &Problem,
        layout: &Layout,
        tiles: usize,
    ) -> usize {
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
        let fits = self.has_room_back(problem, &layout, 1)
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
            && self.has_room_back(problem, &layout, 1);
        fits.then_some(layout)
    }

    /// The layout of a walk by blocks of up to so many warps, or, of one in parts, of its own; none where threads would have too few
    /// registers.
    pub(super) fn layout_back(
        &self,
        problem: &Problem,
        lanes: usize,
        warps: usize,
        chunk: usize,
    ) -> Option<Layout> {
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
        let fits = |layout: &Layout| self.has_room_back(problem, layout, tiles(layout));
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
            let has_room = self.has_room_back(problem, &Layout { orders, ..*layout }, tiles);
            has_room && resident(orders) == resident(1)
        };
        let most = layout.states.min(32 / layout.lanes);
        [4, 2].into_iter().find(|&orders| orders <= most && fits(orders)).unwrap_or(1)
    }
}

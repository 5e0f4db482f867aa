//! How forward.cu is laid out: lanes, states and rounds, channels and tiles.

use std::ops::RangeInclusive;

use super::shared::forward_bytes;
use crate::Problem;
use crate::cuda::arguments::sweep_count;
use crate::cuda::policy::{
    Layout, Properties, RESERVED_SHARED, blocks, is_heavy_walk_forward, state_words, states_for, unit,
};

/// Channels of all rows, a multiprocessor, up to which the forward pass has lanes over time, in rows of these lengths; lanes
/// of states a channel beside them, frames of a tile, and the warps that a block has, a channel each: usually, and where
/// they need more registers. Measured on an H200 (bench/NOTES.md), as is what follows.
pub(in crate::cuda::policy) const CHANNELS_FOR_TIME_LANES: usize = 8;
const ROWS_FOR_TIME_LANES: RangeInclusive<usize> = 33..=64;
const LANES_BESIDE_TIME_LANES: usize = 4;
const TILE_OF_TIME_LANES: usize = 64;
const WARPS_OF_TIME_LANES: [usize; 2] = [8, 4];
/// States of a round of the forward pass, and rounds of a pass: more would leave shared memory for too few blocks.
pub(super) const SLOTS_OF_ROUND: usize = 16;
pub(in crate::cuda::policy) const MOST_ROUNDS: usize = 4;
/// Blocks of several rounds that a multiprocessor should have room for.
const BLOCKS_OF_ROUNDS: usize = 3;
/// Shared memory that a block of one round may have, and one of several at least, in bytes: where it wants more, its tiles are shorter.
const BLOCK_BYTES: usize = 48 << 10;
/// Frames of a tile of the forward pass over states, at most.
const MOST_TILE: usize = 32;
/// Frames of a tile of several rounds of a heavy walk, where a multiprocessor is to have as many blocks: B and C of the next tile are
/// on their way in registers, all rounds' of them, and those of 32 frames would spill.
pub(in crate::cuda::policy) const TILE_OF_HEAVY_ROUNDS: usize = 16;
/// Lanes of the forward pass over states, at most.
pub(in crate::cuda::policy) const MOST_LANES: usize = 8;

/// Whether each output is written once and read by nobody: so many states are of one sweep, whatever the plan.
pub(in crate::cuda) fn writes_outputs_once(problem: &Problem) -> bool {
    sweep_count(problem, SLOTS_OF_ROUND) == 1
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
    /// The layout of a forward scan that finds what chunks of so many frames come to.
    pub(in crate::cuda::policy) fn summary_layout(&self, problem: &Problem, chunk: usize) -> Layout {
        self.forward_layout(problem, chunk, 1, true, MOST_ROUNDS)
    }

    /// The layout of a forward scan that keeps states every `interval` frames, with so many lanes at least, but no more than leave none
    /// idle, in as many rounds as shared memory has room for, up to `most_rounds`. `cut`: in chunks.
    pub(super) fn forward_layout(
        &self,
        problem: &Problem,
        interval: usize,
        least_lanes: usize,
        cut: bool,
        most_rounds: usize,
    ) -> Layout {
        let words = state_words(problem);
        let rounds = problem.state.div_ceil(SLOTS_OF_ROUND);
        let sweeps = rounds.div_ceil(most_rounds);
        let rounds = rounds.div_ceil(sweeps);
        let count = problem.state.div_ceil(sweeps * rounds);
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
        let room = if rounds > 1 { several.max(BLOCK_BYTES) } else { BLOCK_BYTES }.min(self.shared_per_block);
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
    pub(super) fn time_lanes(&self, problem: &Problem) -> Option<Layout> {
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
}

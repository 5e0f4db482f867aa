//! The plan of the forward pass: of layouts through registers, in copied tiles where these are the faster, in whole rows or in
//! chunks, the one that takes the least time; or strips that warps hand on.

mod bulk;
mod copied;
mod layout;
mod plan;
mod relay;
mod shared;

use std::iter::successors;

use super::backward::boundary_interval;
use super::configurations::{MOST_JOINED, blocks_wanted};
use super::{Layout, Properties, blocks, is_heavy_walk_forward};
use crate::Problem;
use crate::cuda::arguments::sweep_count;
use crate::cuda::compile::Program;
use layout::SLOTS_OF_ROUND;

pub(super) use bulk::{BULK_FRAMES_OF_ROW, is_short_row};
pub(super) use copied::BULK_ALIGNMENT;
pub(in crate::cuda) use copied::{swizzles_inputs, swizzles_outputs};
pub(in crate::cuda) use layout::writes_outputs_once;
pub(super) use layout::{CHANNELS_FOR_TIME_LANES, MOST_LANES, MOST_ROUNDS, TILE_OF_HEAVY_ROUNDS};
pub(in crate::cuda) use plan::Share;
pub use plan::{Bulk, ForwardPlan, Pieces, Relay};
pub(super) use relay::RELAY_WARPS;
pub(in crate::cuda) use shared::{OWN_TILES, STAGES};
pub(super) use shared::{bulk_bytes, forward_bytes, relay_bytes};

/// Multiples of all blocks that run at a time which chunks may come to, beside as few as are joined without a launch. (Of long rows two
/// are up to 2% slower than three.)
const WAVES: [usize; 2] = [1, 3];

impl Properties {
    /// Plans the forward pass.
    pub fn forward(&self, problem: &Problem) -> ForwardPlan {
        let interval = boundary_interval(problem);
        let in_rounds = || self.forward_keeping(problem, interval, MOST_ROUNDS);
        // Tiles that the device copies are walked once in a sweep, which does not pay where those with marks are walked by many
        // operations (H200).
        let pays = problem.seq >= BULK_FRAMES_OF_ROW && !(problem.seq_idx && is_heavy_walk_forward(problem));
        if problem.state <= SLOTS_OF_ROUND || !pays || !self.copies_tiles(problem) {
            return in_rounds();
        }
        Some(self.forward_keeping(problem, interval, 1))
            .filter(|plan| plan.bulk.is_some())
            .unwrap_or_else(in_rounds)
    }

    /// Plans a forward pass that can keep states every `interval` frames, in sweeps of so many rounds at most.
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
        let all = clocks * sweep_count(problem, plan.layout.slots()) as f64;
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

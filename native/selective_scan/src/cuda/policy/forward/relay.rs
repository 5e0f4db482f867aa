//! What relay.cu walks: strips, a block each, or pieces of all. The numbers are measured on an H200 (bench/NOTES.md).

use super::bulk::{BULK_LAYOUT, BULK_SLOTS};
use super::copied::may_gather;
use super::plan::{Pieces, Relay};
use super::shared::relay_bytes;
use crate::cuda::policy::{
    Layout, Properties, blocks, changes_elements, is_heavy_walk_forward, is_long_walk_forward,
};
use crate::{Method, Problem};

/// How relay.cu walks, but for its warps: they have tiles of the same channels, of as many frames as registers have room for the decays
/// of.
const RELAY_LAYOUT: Layout = Layout { channels: 32 / BULK_LAYOUT.lanes, tile: 16, ..BULK_LAYOUT };
/// Strips that the fullest multiprocessor would have of whole ones, at most, or other walks are faster; and warps that it has of all of its
/// blocks: usually, and of walks that want the registers of more.
const RELAY_STRIPS: usize = 3;
pub(in crate::cuda::policy) const RELAY_WARPS: [usize; 2] = [16, 12];
/// Tiles of all strips, where blocks share these: they are counted by 32 bits with a sign.
const MOST_TILES: usize = i32::MAX as usize;
/// How many times as many tiles the fullest multiprocessor would have of whole strips, at least, where strips are shared: else whole ones
/// are as fast.
const GAIN_OF_PIECES: f64 = 1.05;

impl Properties {
    /// What relay.cu may walk, with states that are kept every `interval` frames: a strip a block, or pieces of all.
    pub(super) fn relays(&self, problem: &Problem, interval: usize) -> impl Iterator<Item = Relay> {
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
}

//! What a plan says, and what follows from it: how many sweeps walk together, and the pieces that segments are launched in.

use super::memory::{BOUNDED_FROM, adjoints_fit, has_room_in_gradients, most_carried};
use super::segments::is_short;
use crate::Problem;
use crate::cuda::arguments::sweep_count;
use crate::cuda::launch::Pass;
use crate::cuda::policy::{Layout, Relay, blocks};
use crate::cuda::workspace::measure_backward;

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
    pub(super) fn leaves_room_for_da(&self, problem: &Problem) -> bool {
        let leaves_workspace = |piece: Piece| piece.first == 0 || piece.in_gradients;
        self.hands_on() && self.pieces(problem, true, true).all(leaves_workspace)
    }

    /// How many sweeps walk a piece one after the other before any walks the next: all, where the forward pass has kept the
    /// states and what each sweep carries from piece to piece is within the bound on memory; else one alone. Until the first
    /// that walk together come to a frame, its gradients are written by nobody.
    pub fn sweeps_together(&self, problem: &Problem, pass: Pass) -> usize {
        let states_kept = pass == Pass::BackwardFromBoundaryStates;
        let sweeps = sweep_count(problem, self.layout.slots());
        let carried = || measure_backward(problem, self, pass, sweeps).carried;
        let fit = || problem.seq < BOUNDED_FROM || carried() <= most_carried(problem);
        if sweeps > 1 && states_kept && !problem.bidirectional && fit() { sweeps } else { 1 }
    }

    /// Whether what adjoint chunks add, and their decays or sums of Δ, may wait in the gradients of x and dt, whose addresses must be
    /// `aligned`: all sweeps walk `together`, and there is room enough.
    pub fn adjoints_wait_in_gradients(&self, problem: &Problem, together: usize, aligned: bool) -> bool {
        // Blocks that join them write gradients meanwhile.
        !self.joins_adjoints
            && together == sweep_count(problem, self.layout.slots())
            && has_room_in_gradients(problem, aligned)
            && adjoints_fit(problem, &self.layout, self.adjoint_chunk)
    }

    /// The pieces of the segments, a launch each, from the last. The walk comes to earlier frames later: until then their dx
    /// and dΔ, where they are `aligned`, are room for a piece's sums of dB and dC of the `first` sweeps that walk together.
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

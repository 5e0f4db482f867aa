//! What a plan says, and the launches that follow from it.

use std::ops::Range;

use crate::Problem;
use crate::cuda::policy::{Layout, blocks};

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
    pub(super) fn whole(layout: Layout) -> Self {
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

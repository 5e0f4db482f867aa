//! The choice of lanes, channels, tiles and chunks, from the problem and the device's own properties: what a pass is planned
//! with, here; then the plans, and what the kernels are compiled for.

mod backward;
mod clocks;
mod configurations;
mod forward;

use super::arguments::sweep_count;
use crate::{Coefficients, Method, Problem, Projection};

pub(super) use backward::{BACKWARD_TILE, boundary_interval, depends_on_alignment, tiles_not_kept};
pub use backward::{BackwardPlan, Piece, StatesPlan};
pub use configurations::Configurations;
pub(super) use configurations::{PARTS_AT_ONCE, ROW_THREADS, whole_from};
pub use forward::{Bulk, ForwardPlan, Pieces, Relay};
pub(super) use forward::{OWN_TILES, STAGES, Share, swizzles_inputs, swizzles_outputs, writes_outputs_once};

/// Shared memory that a block costs beside its own.
pub(super) const RESERVED_SHARED: usize = 1 << 10;

/// What the choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// Compute capability, 90 for 9.0.
    pub architecture: i32,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Shared memory that a block may have, in bytes.
    pub shared_per_block: usize,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_per_multiprocessor: usize,
    /// The cache that all multiprocessors share (L2), in bytes.
    pub cache_bytes: usize,
    /// Whether it copies whole tiles by itself, as a tensor map describes them.
    pub tensor_maps: bool,
}

impl Properties {
    /// Blocks of so much shared memory that a multiprocessor has room for.
    fn blocks_with_room(&self, bytes: usize) -> usize {
        self.shared_per_multiprocessor / (bytes + RESERVED_SHARED)
    }

    /// Blocks of whole rows in this layout that the fullest multiprocessor has.
    fn share(&self, problem: &Problem, layout: &Layout) -> usize {
        (problem.batch * blocks(problem, layout)).div_ceil(self.multiprocessors)
    }

    /// Those that it has at a time, if its registers are shared out for so many.
    fn blocks_at_a_time(&self, bytes: usize, registers: usize) -> usize {
        self.blocks_with_room(bytes).min(registers).max(1)
    }
}

/// Alignment, in bytes, of the addresses that the kernels access in packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Of x, dt, z, y, dy and their gradients.
    pub sequences: usize,
    /// Of b.
    pub b: usize,
    /// Of c.
    pub c: usize,
    /// Of a, and of the states before and after a sequence, at the boundaries of chunks, and their gradients.
    pub states: usize,
}

impl Alignment {
    /// As memory comes from an allocator of the driver.
    pub const ALLOCATED: Self = Self { sequences: 16, b: 16, c: 16, states: 16 };
}

/// How a walk over frames is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Threads a channel, over its states.
    pub lanes: usize,
    /// Threads a channel, over time.
    pub time_lanes: usize,
    /// States a thread.
    pub states: usize,
    /// How often frames are walked, for other states each time.
    pub rounds: usize,
    /// Orders in which channels hold the states of a lane.
    pub orders: usize,
    /// Parts of a tile that are walked side by side, by warps of the same channels.
    pub parts: usize,
    /// Channels a block.
    pub channels: usize,
    /// Warps a block.
    pub warps: usize,
    /// Frames a tile.
    pub tile: usize,
}

impl Layout {
    /// States that a sweep covers.
    pub const fn slots(&self) -> usize {
        self.lanes * self.states * self.rounds
    }

    /// Their bytes.
    fn states_bytes(&self, problem: &Problem) -> usize {
        self.slots() * state_words(problem) * 4
    }
}

/// Whose chunks it is that something must be known of before they are walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunks {
    /// The forward pass's: the states that they end with.
    OfForward,
    /// The backward pass's, from the inputs alone: the same.
    OfBackward,
    /// Those of the adjoints: what they add to the gradients of the states before them.
    OfAdjoints,
}

/// Neighbouring channels that share their b and their c, and how they are dealt to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Units {
    /// Channels in a unit.
    pub unit: usize,
    /// Blocks of channels in a unit.
    pub blocks: usize,
}

impl Units {
    /// Those of a problem that is walked in this layout.
    pub(super) fn of(problem: &Problem, layout: &Layout) -> Self {
        let unit = unit(problem);
        Self { unit, blocks: unit.div_ceil(layout.channels) }
    }
}

/// Whether the kernels that walk packed rows of so many chunks find their marks by themselves; else marks.cu does.
pub(super) const fn finds_marks(chunks: usize) -> bool {
    chunks == 1
}

/// Bytes of a real.
fn real_bytes(problem: &Problem) -> usize {
    problem.element.state_type().size()
}

/// Words of 4 bytes of a state.
fn state_words(problem: &Problem) -> usize {
    problem.components() * real_bytes(problem) / 4
}

const fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn unit(problem: &Problem) -> usize {
    gcd(problem.channels_per_group(problem.b), problem.channels_per_group(problem.c))
}

pub(super) fn is_constant(projection: Projection) -> bool {
    projection == Projection::Constant
}

/// Whether the product of the decays over a chunk is had as exp(A ΣΔ). Not so where complex: the error of ΣΔ, times |Im A|, would turn
/// the phase, so there the product itself is taken.
pub(super) fn decay_by_sum(problem: &Problem) -> bool {
    decays_by_sum(problem.method, problem.complex)
}

pub(super) const fn decays_by_sum(method: Method, complex: bool) -> bool {
    !matches!(method, Method::Bilinear) && !complex
}

/// States a thread, so that `lanes` threads hold at least `count`: whole packs of up to 16 bytes.
fn states_for(count: usize, lanes: usize, words: usize) -> usize {
    let each = count.div_ceil(lanes);
    match words {
        1 if each > 2 => each.next_multiple_of(4),
        1 | 2 if each > 1 => each.next_multiple_of(2),
        _ => each,
    }
}

/// Whether forward.cu leaves the walk in a loop: so many operations wait for nothing there, and unrolled they would need
/// more registers than there are.
fn is_heavy_walk_forward(problem: &Problem) -> bool {
    let gain = !matches!(problem.method, Method::Zoh | Method::Bilinear | Method::Rk4);
    state_words(problem) > 1 || gain
}

/// Whether tiles of bulk.cu that are as long as usual would be more code than a multiprocessor has in its cache.
fn is_long_walk_forward(problem: &Problem) -> bool {
    let is_short = matches!(problem.method, Method::Zoh | Method::ZohExact | Method::Bilinear | Method::Rk4);
    !is_short && problem.coefficients == Coefficients::Exact
}

/// The longest of these, which wants the most registers.
fn is_longest_walk_forward(problem: &Problem) -> bool {
    problem.method == Method::Highorder && is_long_walk_forward(problem)
}

/// Whether a state is a word and its gain that of all the others.
fn is_plain(problem: &Problem) -> bool {
    state_words(problem) == 1 && problem.method == Method::Zoh
}

/// Whether something is done to dt before it is Δ.
fn changes_dt(problem: &Problem) -> bool {
    problem.dt_bias || problem.dt_softplus || problem.dt_limit.is_some()
}

/// Whether more is done to elements than the scan; the kernels call it HAS_OWNERS.
fn changes_elements(problem: &Problem) -> bool {
    changes_dt(problem) || problem.d || problem.z
}

/// Whether the states need several sweeps, or the directions.
fn has_several_sweeps(problem: &Problem, layout: &Layout) -> bool {
    sweep_count(problem, layout.slots()) > 1
}

/// The groups of those of B and C that vary with the frame.
pub(super) fn groups(problem: &Problem) -> impl Iterator<Item = usize> {
    [problem.b, problem.c].into_iter().filter_map(Projection::groups)
}

/// How many of B and C do.
fn varying(problem: &Problem) -> usize {
    groups(problem).count()
}

/// Blocks of channels of a row.
fn blocks(problem: &Problem, layout: &Layout) -> usize {
    let units = Units::of(problem, layout);
    problem.dim / units.unit * units.blocks
}

//! The choice of lanes, channels, tiles and chunks, from the problem and the device's own properties.

use super::arguments::passes;
use super::compile::{Configuration, Program};
use crate::{Coefficients, ElementType, Method, Problem, Projection};

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

/// Channels of all rows, a multiprocessor, below which the forward pass has lanes over time, in rows of these lengths; lanes
/// of states a channel beside them, frames of a tile, and the warps that a block has, a channel each: usually, and where
/// they need more registers. Measured on an H200 (bench/NOTES.md), as is what follows.
const CHANNELS_FOR_TIME_LANES: usize = 8;
const ROWS_FOR_TIME_LANES: std::ops::RangeInclusive<usize> = 33..=64;
const LANES_BESIDE_TIME_LANES: usize = 4;
const TILE_OF_TIME_LANES: usize = 64;
const WARPS_OF_TIME_LANES: [usize; 2] = [8, 4];
/// States of a round of the forward pass, and rounds of a pass: more would leave shared memory for too few blocks.
const SLOTS_OF_ROUND: usize = 16;
const MOST_ROUNDS: usize = 4;
/// Blocks of several rounds that a multiprocessor should have room for.
const BLOCKS_OF_ROUNDS: usize = 3;
/// Warps of the forward pass that a multiprocessor should have with four lanes a channel; else eight lanes give more.
const WARPS_WITH_4_LANES: usize = 6;
/// Below this many warps a multiprocessor, chunks are worth the second walk that they cost; then as many as the device runs
/// at a time, or so many times that.
const WARPS_TO_CUT: f64 = 3.2;
const MOST_WAVES: usize = 3;
/// Chunks up to which every block joins those before its own, without a launch for that.
const MOST_JOINED: usize = 16;
/// Frames of a chunk, at least, before they are made whole tiles.
const SHORTEST_CHUNK: usize = 80;
/// Sequences shorter than this are not cut for the sake of parallelism.
const SHORTEST_TO_CUT: usize = 192;
/// From here on the backward pass keeps its memory under a tenth of its inputs.
const BOUNDED_FROM: usize = 2048;
/// Shares of the inputs that states at the boundaries of chunks take at most, and all that the backward pass keeps.
const BOUNDARY_SHARE: f64 = 0.0595;
const EXTRA_SHARE: f64 = 0.096;
/// Where memory is not bounded: sums of dB and dC that stay in a cache.
const SUMS_BYTES: usize = 48 << 20;

/// Frames of a tile of the backward pass, and frames and channels that a thread of it has in registers.
const BACKWARD_TILE: usize = 32;
const SPAN: usize = 4;
const PAIR: usize = 2;
/// Frames up to which a row is one chunk.
const LONGEST_ALONE: usize = 64;
/// Parts of such a row where channels are few.
const PARTS_OF_ROW: usize = 8;
/// Warps of a block of the backward pass: the usual, and, where memory is bounded, more, which keep fewer sums of dB and
/// dC. They wait for one another: what each beyond the usual costs, as a share of the time.
const BACKWARD_WARPS: [usize; 3] = [4, 6, 12];
const WARP_SHARE: f64 = 0.035;
/// Clocks that a warp with 4, 8 or 16 lanes a channel takes for a frame when it is alone, and in which it alone issues.
const FRAME_CLOCKS: [(usize, f64, f64); 3] = [(4, 350.0, 220.0), (8, 300.0, 130.0), (16, 250.0, 80.0)];
/// What a launch costs, in frames; the walk of the adjoints alone, and that of the states, as shares of the walk back.
const LAUNCH_FRAMES: usize = 8;
const ADJOINTS_SHARE: f64 = 0.15;
const STATES_SHARE: f64 = 0.25;
/// Warps of that walk that a multiprocessor should have, if its chunks are no shorter than this.
const WARPS_OF_ADJOINTS: usize = 24;
const SHORTEST_OF_ADJOINTS: usize = 32;

/// Registers of a multiprocessor, and shared memory that a block costs beside its own.
const REGISTERS: usize = 65_536;
const MOST_REGISTERS: usize = 256;
const RESERVED_SHARED: usize = 1 << 10;
/// What a block of the backward pass walks, in its shared memory, and the place of one of the forward pass.
const COURSE_BYTES: usize = 160;
const PLACE_BYTES: usize = 64;

/// How a walk over frames is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// States that a pass covers.
    pub const fn slots(&self) -> usize {
        self.lanes * self.states * self.rounds
    }

    /// Their bytes.
    fn states_bytes(&self, problem: &Problem) -> usize {
        self.slots() * Sizes::of(problem).words * 4
    }
}

/// Neighbouring channels that share their b and their c, and how they are dealt to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Units {
    /// Channels in a unit.
    pub unit: usize,
    /// Blocks of channels in a unit.
    pub blocks: usize,
}

/// The forward pass of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardPlan {
    /// The layout of all its kernels.
    pub layout: Layout,
    /// Its blocks of channels.
    pub units: Units,
    /// Frames a chunk.
    pub chunk: usize,
    /// Chunks a row.
    pub chunks: usize,
    /// Frames from one state to the next that is kept for the backward pass.
    pub checkpoint_interval: usize,
}

/// What finds the states at the boundaries of chunks from the inputs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatesPlan {
    /// The forward pass, which keeps them.
    Forward(ForwardPlan),
    /// Summaries of the chunks, by walks of this layout and these blocks of channels, and a scan over them.
    Summaries(Layout, Units),
}

/// The backward pass of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackwardPlan {
    /// The layout of its walks.
    pub layout: Layout,
    /// Its blocks of channels.
    pub units: Units,
    /// What finds the states at the boundaries of chunks from the inputs alone.
    pub states: StatesPlan,
    /// Frames a chunk: from one state that is kept to the next.
    pub chunk: usize,
    /// Chunks a row.
    pub chunks: usize,
    /// Frames a segment: segments are scanned side by side.
    pub segment: usize,
    /// Segments a row.
    pub segments: usize,
    /// Frames for which a block walks the adjoints alone, where there are several segments and the gradients have room for
    /// what these add; a segment is made of whole ones.
    pub adjoint_chunk: usize,
    /// Frames of every segment whose sums of dB and dC have room in the workspace.
    pub piece: usize,
    /// Rows that a thread block walks in turn.
    pub rows_per_block: usize,
}

impl BackwardPlan {
    /// Tiles a chunk.
    pub const fn tiles(&self) -> usize {
        self.chunk / self.layout.tile
    }

    /// Blocks of channels of a row.
    pub const fn contributions(&self, problem: &Problem) -> usize {
        problem.dim / self.units.unit * self.units.blocks
    }

    /// Adjoint chunks a row.
    pub const fn adjoint_chunks(&self, problem: &Problem) -> usize {
        problem.seq.div_ceil(self.adjoint_chunk)
    }

    /// How many passes walk a piece one after the other before any walks the next: all, where the forward pass has kept the
    /// states and what each pass carries from piece to piece is within the bound on memory; else one alone. Until the first
    /// that walk together come to a frame, its gradients are written by nobody.
    pub fn passes_together(&self, problem: &Problem, states_kept: bool) -> usize {
        let passes = passes(problem, self.layout.slots());
        let bounded = problem.seq >= BOUNDED_FROM;
        let fit = !bounded || extra_share(problem, self, 0, passes) <= EXTRA_SHARE;
        if states_kept && fit && !problem.bidirectional { passes } else { 1 }
    }

    /// Whether what adjoint chunks add, and their decays, may wait in the gradients of x and dt, whose addresses must be
    /// `aligned`: all passes walk `together`, and there is room enough.
    pub fn adjoints_wait_in_gradients(&self, problem: &Problem, together: usize, aligned: bool) -> bool {
        together == passes(problem, self.layout.slots())
            && has_room_in_gradients(problem, aligned)
            && adjoints_fit(problem, &self.layout, self.adjoint_chunk)
    }

    /// The pieces of the segments, a launch each, from the last. The walk comes to earlier frames later: until then their dx
    /// and dΔ, where they are `aligned`, are room for a piece's sums of dB and dC of the `first` passes that walk together.
    pub fn pieces(&self, problem: &Problem, first: bool, aligned: bool) -> impl Iterator<Item = Piece> {
        let Self { segment, chunk, layout: Layout { tile, .. }, .. } = *self;
        let frame = problem.dim * problem.element.size();
        let sums = self.contributions(problem) * self.layout.states_bytes(problem);
        let room = first && has_room_in_gradients(problem, aligned);
        let in_workspace = self.piece;
        let mut left = segment;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            // Whole chunks; of the last, some tiles, which each launch walks to once more.
            let unit = if left > chunk { chunk } else { tile };
            let units = left.div_ceil(unit);
            let with_room = if room { units * frame / (frame + sums) } else { 0 };
            let in_gradients = with_room * unit > in_workspace;
            let first = if in_gradients {
                (units - with_room) * unit
            } else if in_workspace >= chunk {
                units.saturating_sub(in_workspace.div_ceil(unit)) * unit
            } else {
                // Some tiles of the last chunk.
                (left - 1) / chunk * chunk + (left - 1) % chunk / in_workspace * in_workspace
            };
            let frames = left - first;
            left = first;
            Some(Piece { first, frames, in_gradients })
        })
    }
}

/// Frames of every segment that one launch walks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The first.
    pub first: usize,
    /// How many.
    pub frames: usize,
    /// Whether the sums of dB and dC wait in the gradients of the frames before it.
    pub in_gradients: bool,
}

/// Bytes of a real and 4-byte words of a state.
struct Sizes {
    real: usize,
    words: usize,
}

impl Sizes {
    fn of(problem: &Problem) -> Self {
        let real = problem.element.state_type().size();
        Self { real, words: problem.components() * real / 4 }
    }
}

const fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn channels_per_group(problem: &Problem, projection: Projection) -> usize {
    match projection {
        Projection::PerFrame { groups } => problem.dim / groups,
        Projection::Constant => problem.dim,
    }
}

fn unit(problem: &Problem) -> usize {
    gcd(channels_per_group(problem, problem.b), channels_per_group(problem, problem.c))
}

fn is_constant(projection: Projection) -> bool {
    projection == Projection::Constant
}

/// Bytes of the sequences that flow into the backward pass, a frame and channel.
fn inputs(problem: &Problem) -> usize {
    let sequences = if problem.z { 4 } else { 3 };
    sequences * problem.element.size()
}

/// Whether the product of the decays over a chunk is had from the sum of Δ; discretize.cuh says why not always.
pub(super) fn decay_by_sum(problem: &Problem) -> bool {
    problem.method != Method::Bilinear && !problem.complex
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

/// Whether the walk forward is left in a loop: so many operations wait for nothing there, and unrolled they would need
/// more registers than there are.
fn is_heavy(problem: &Problem) -> bool {
    let gain = !matches!(problem.method, Method::Zoh | Method::Bilinear | Method::Rk4);
    Sizes::of(problem).words > 1 || gain
}

/// Threads that a multiprocessor is to hold at least, so that the compiler leaves them registers: as many as shared
/// memory allows where that spills nothing.
fn threads_wanted(problem: &Problem, layout: &Layout, program: Program) -> usize {
    let heavy = is_heavy(problem);
    match program {
        Program::Backward if layout.parts > 1 => layout.warps * 32,
        // Rows in one tile: their shared memory leaves no room for more.
        Program::Backward if layout.tile > BACKWARD_TILE => 256,
        Program::Backward if layout.states * Sizes::of(problem).words > 2 && !is_plain(problem) => 256,
        Program::Backward => 384,
        // A multiprocessor has no more channels than these.
        _ if layout.time_lanes > 1 => CHANNELS_FOR_TIME_LANES * 32,
        _ if Sizes::of(problem).words > 1 => 0,
        _ if heavy && layout.lanes < 4 => 256,
        _ if layout.rounds > 1 || (heavy && layout.lanes > 4) => 384,
        _ if problem.seq_idx && (problem.d || problem.z || problem.dt_bias || !is_plain(problem)) => 384,
        _ if problem.z && (layout.lanes > 4 || !is_plain(problem) || has_several_passes(problem, layout)) => {
            384
        }
        _ => 512,
    }
}

/// Whether the states need several passes, or the directions.
fn has_several_passes(problem: &Problem, layout: &Layout) -> bool {
    passes(problem, layout.slots()) > 1
}

/// Whether a state is a word and its gain that of all the others.
fn is_plain(problem: &Problem) -> bool {
    Sizes::of(problem).words == 1 && problem.method == Method::Zoh
}

/// Frames of a row of rows.cuh: an odd number of 16 bytes.
fn pitch(tile: usize, real: usize) -> usize {
    let per_16_bytes = 16 / real;
    if (tile / per_16_bytes) % 2 == 1 { tile } else { tile + per_16_bytes }
}

/// Shared memory of forward.cu.
fn forward_bytes(problem: &Problem, layout: &Layout) -> usize {
    let real = Sizes::of(problem).real;
    let projections = [problem.b, problem.c].into_iter().filter(|&projection| !is_constant(projection));
    let width = layout.slots() * problem.components();
    let projection = match layout.time_lanes {
        1 => width * pitch(layout.tile, real) * real,
        lanes => layout.tile * width * real + lanes * 2 * 16,
    };
    let marks = if problem.seq_idx { layout.tile.next_multiple_of(16) } else { 0 };
    let sequences = 2 * layout.channels * pitch(layout.tile, real) * real;
    // What a thread has of each of several rounds: states and rates, products of decays, constant projections.
    let parked = match layout.rounds {
        1 => 0,
        rounds => {
            let kept = 2 + usize::from(!decay_by_sum(problem)) + 2 - varying(problem);
            kept * rounds * layout.warps * 32 * layout.states * Sizes::of(problem).words * 4
        }
    };
    2 * (sequences + projections.count() * projection + marks) + parked + PLACE_BYTES
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

/// How many of B and C vary with the frame.
fn varying(problem: &Problem) -> usize {
    [problem.b, problem.c].into_iter().filter(|&projection| !is_constant(projection)).count()
}

/// Shared memory of scan_backward, for chunks of so many tiles.
fn backward_bytes(problem: &Problem, layout: &Layout, tiles: usize) -> usize {
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
    let spans = part / SPAN * starts.max(2 * SPAN * slots) + starts + ends;
    let of_channels = (usize::from(problem.d) + usize::from(problem.dt_bias)) * channels;
    let own =
        (2 * usize::from(problem.d) + usize::from(problem.z) + usize::from(problem.dt_bias)) * 32 * PAIR;
    let warp = frames + spans + own + of_channels + kept * starts;
    let projections = varying(problem) * layout.tile * layout.orders * slots;
    (layout.warps * warp + projections) * Sizes::of(problem).real + COURSE_BYTES
}

/// Shared memory of scan_summary.
fn summary_bytes(problem: &Problem, layout: &Layout) -> usize {
    let width = if is_constant(problem.c) { 0 } else { layout.slots() * problem.components() };
    let bias = if problem.dt_bias { layout.channels } else { 0 };
    (layout.tile * (2 * layout.channels + width) + bias) * Sizes::of(problem).real + COURSE_BYTES
}

impl Properties {
    /// The layout of a forward scan that keeps states every `interval` frames, with the fewest lanes or with enough warps, in
    /// as many rounds as shared memory has room for.
    fn forward_layout(&self, problem: &Problem, interval: usize, fewest: bool) -> (Layout, Units) {
        let layouts = (1..=MOST_ROUNDS).rev();
        let mut layouts = layouts.map(|rounds| self.layout_of_rounds(problem, interval, fewest, rounds));
        let fits = |(layout, _): &(Layout, Units)| forward_bytes(problem, layout) <= self.shared_per_block;
        layouts.find(fits).unwrap_or_else(|| self.layout_of_rounds(problem, interval, fewest, 1))
    }

    /// The same, in up to `most_rounds` rounds.
    fn layout_of_rounds(
        &self,
        problem: &Problem,
        interval: usize,
        fewest: bool,
        most_rounds: usize,
    ) -> (Layout, Units) {
        let words = Sizes::of(problem).words;
        let rounds = problem.state.div_ceil(SLOTS_OF_ROUND);
        let passes = rounds.div_ceil(most_rounds);
        let rounds = rounds.div_ceil(passes);
        let count = problem.state.div_ceil(passes * rounds);
        let unit = unit(problem);
        let channels = problem.batch * problem.dim;

        // As few lanes as leave a thread four words of states, then more until there are enough warps.
        let mut lanes = 1;
        while states_for(count, lanes, words) > (4 / words).max(1) && lanes < 8 {
            lanes *= 2;
        }
        while !fewest
            && lanes < 8
            && channels * lanes / 32 < WARPS_WITH_4_LANES * self.multiprocessors
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
        let room = if rounds > 1 { several.max(48 << 10) } else { 48 << 10 }.min(self.shared_per_block);
        let mut most = if lanes == 8 { 64 } else { 32 };
        loop {
            layout.tile = forward_tile(problem.seq, interval, lanes, most);
            if forward_bytes(problem, &layout) <= room || most <= lanes.max(8) {
                break;
            }
            most /= 2;
        }
        (layout, Units { unit, blocks: unit.div_ceil(layout.channels) })
    }

    /// The layout of a forward scan with lanes over time: for few and short rows, each of which is one tile. In longer ones
    /// the unit for shared memory would bind: a warp reads all of b and c for one channel.
    fn time_lanes(&self, problem: &Problem) -> Option<(Layout, Units)> {
        let lanes = LANES_BESIDE_TIME_LANES;
        let states = states_for(problem.state, lanes, 1);
        if Sizes::of(problem).words > 1
            || states > 4
            || !ROWS_FOR_TIME_LANES.contains(&problem.seq)
            || problem.batch * problem.dim > CHANNELS_FOR_TIME_LANES * self.multiprocessors
        {
            return None;
        }
        let warps = WARPS_OF_TIME_LANES[usize::from(is_heavy(problem))];
        let layout = Layout {
            lanes,
            time_lanes: 32 / lanes,
            states,
            rounds: 1,
            orders: 1,
            parts: 1,
            channels: warps,
            warps,
            tile: TILE_OF_TIME_LANES,
        };
        let unit = unit(problem);
        Some((layout, Units { unit, blocks: unit.div_ceil(warps) }))
    }

    /// Plans the forward pass.
    pub fn forward(&self, problem: &Problem) -> ForwardPlan {
        self.forward_keeping(problem, self.backward(problem).chunk)
    }

    /// Plans a forward pass that can keep states every `interval` frames.
    fn forward_keeping(&self, problem: &Problem, interval: usize) -> ForwardPlan {
        if let Some((layout, units)) = self.time_lanes(problem) {
            return ForwardPlan {
                layout,
                units,
                chunk: problem.seq,
                chunks: 1,
                checkpoint_interval: interval,
            };
        }
        let (mut layout, mut units) = self.forward_layout(problem, interval, false);
        let warps = |layout: &Layout| {
            (problem.batch * problem.dim * layout.lanes) as f64 / 32.0 / self.multiprocessors as f64
        };
        let mut chunk = problem.seq;
        if problem.seq >= SHORTEST_TO_CUT && warps(&layout) < WARPS_TO_CUT {
            // Chunks are warps enough: more lanes would only cost more operations.
            let cut = self.forward_layout(problem, interval, true);
            let blocks = problem.batch * blocks(problem, &cut.0);
            let running = threads_wanted(problem, &cut.0, Program::Forward) / (32 * cut.0.warps);
            let wave = |waves: usize| waves * self.multiprocessors * running.max(1) / blocks;
            let longest = problem.seq / SHORTEST_CHUNK;
            let whole = (1..=MOST_WAVES).rev().map(wave).find(|chunks| (2..=longest).contains(chunks));
            let chunks = whole.unwrap_or(longest);
            if chunks > 1 {
                (layout, units) = cut;
                chunk = problem.seq.div_ceil(chunks).next_multiple_of(layout.tile);
            }
        }
        ForwardPlan {
            layout,
            units,
            chunk,
            chunks: problem.seq.div_ceil(chunk),
            checkpoint_interval: interval,
        }
    }

    /// Blocks of the backward pass that a multiprocessor has at a time.
    fn resident(&self, problem: &Problem, layout: &Layout, tiles: usize) -> usize {
        let shared = backward_bytes(problem, layout, tiles) + RESERVED_SHARED;
        let wanted = threads_wanted(problem, layout, Program::Backward) / 32;
        let registers = (wanted / layout.warps * layout.warps).max(REGISTERS / MOST_REGISTERS / 32);
        (self.shared_per_multiprocessor / shared).min(registers / layout.warps).max(1)
    }

    /// The layout of a row that is one chunk in parts, with the channels of one warp a block: for few blocks, each alone on its
    /// multiprocessor, whose walk takes as long as its chain of operations. Each leaves sums of dB and dC to be reduced, which
    /// with more blocks takes the time that parts save.
    fn row_in_parts(&self, problem: &Problem, layout: Layout) -> Option<Layout> {
        let tile = problem.seq.next_power_of_two();
        let parts = PARTS_OF_ROW.min(tile / (2 * SPAN));
        let layout = Layout { parts, tile, warps: parts, ..layout };
        let fits = parts > 1
            && problem.seq <= LONGEST_ALONE
            && varying(problem) == 2
            && problem.batch * blocks(problem, &layout) * 2 <= self.multiprocessors
            && backward_bytes(problem, &layout, 1) <= self.shared_per_block;
        fits.then_some(layout)
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

    /// Plans the backward pass: the layout, and the segments that are scanned side by side, which take the least time.
    ///
    /// Its extra memory is the states at the boundaries of the chunks, less with longer chunks; what each segment
    /// sums over time; and the sums of dB and dC that a launch leaves to be reduced, less with shorter pieces.
    pub fn backward(&self, problem: &Problem) -> BackwardPlan {
        let bounded = problem.seq >= BOUNDED_FROM;
        let lanes: &[usize] = if is_plain(problem) { &[4, 8, 16] } else { &[8] };
        let warps = if bounded { &BACKWARD_WARPS[..] } else { &BACKWARD_WARPS[..1] };
        let chunk = chunk_frames(problem, lanes[0]);

        // First what exceeds the bound on memory, then the time.
        let mut best: Option<((f64, f64), BackwardPlan)> = None;
        for &lanes in lanes {
            let states = backward_states(problem, lanes);
            let each = 32 / lanes * PAIR;
            for &warps in warps {
                let warps = warps.min(unit(problem).div_ceil(each));
                let tile = BACKWARD_TILE.min(problem.seq.next_power_of_two()).max(2 * SPAN);
                let mut layout = Layout {
                    lanes,
                    time_lanes: 1,
                    states,
                    rounds: 1,
                    orders: 1,
                    parts: 1,
                    channels: warps * each,
                    warps,
                    tile,
                };
                if problem.seq > tile && problem.seq <= LONGEST_ALONE {
                    // One tile spares a walk, where its shared memory leaves room for all blocks at a time.
                    let whole = Layout { tile: problem.seq.next_multiple_of(SPAN), ..layout };
                    let running = self.multiprocessors * self.resident(problem, &whole, 1);
                    if backward_bytes(problem, &whole, 1) <= self.shared_per_block
                        && problem.batch * blocks(problem, &whole) <= running
                    {
                        layout = whole;
                    }
                }
                if let Some(in_parts) = self.row_in_parts(problem, Layout { channels: each, ..layout }) {
                    layout = in_parts;
                }
                while backward_bytes(problem, &layout, chunk / layout.tile) > self.shared_per_block
                    && layout.warps > 1
                {
                    layout.warps -= 1;
                    layout.channels -= each;
                }
                layout.orders = self.orders(problem, &layout, chunk / layout.tile);
                let own = Problem { state: problem.state.min(layout.slots()), ..problem.clone() };
                let (of_summaries, units) = self.forward_layout(&own, chunk, false);
                let states = StatesPlan::Summaries(of_summaries, units);
                for segments in 1..=self.most_segments(problem, &layout, chunk) {
                    let plan = self.deal(problem, layout, states, chunk, segments);
                    let excess = if bounded {
                        (extra_share(problem, &plan, plan.chunks, 1) - EXTRA_SHARE).max(0.0)
                    } else {
                        0.0
                    };
                    let cost = (excess, self.clocks(problem, &plan));
                    if best.is_none_or(|(least, _)| cost < least) {
                        best = Some((cost, plan));
                    }
                }
            }
        }
        let (_, plan) = best.expect("there is a layout, and a segment");
        let forward = self.forward_for_states(problem, &plan);
        BackwardPlan { states: forward.map_or(plan.states, StatesPlan::Forward), ..plan }
    }

    /// The forward pass, where the backward pass from the inputs alone may as well run it to have the states: where chunks are
    /// short and many, it is faster than their summaries, and whoever comes from a forward pass has its kernel already.
    fn forward_for_states(&self, problem: &Problem, plan: &BackwardPlan) -> Option<ForwardPlan> {
        let forward = self.forward_keeping(problem, plan.chunk);
        let one_pass =
            [plan.layout, forward.layout].iter().all(|layout| !has_several_passes(problem, layout));
        let short = plan.chunks > 1 && problem.seq < BOUNDED_FROM && forward.chunks == 1;
        (short && one_pass).then_some(forward)
    }

    /// Segments beyond which a device is full.
    fn most_segments(&self, problem: &Problem, layout: &Layout, chunk: usize) -> usize {
        let blocks = problem.batch * blocks(problem, layout);
        let full = self.multiprocessors * self.resident(problem, layout, chunk / layout.tile);
        (2 * full).div_ceil(blocks).min(problem.seq.div_ceil(chunk))
    }

    /// About how many clocks a plan takes.
    fn clocks(&self, problem: &Problem, plan: &BackwardPlan) -> f64 {
        let blocks =
            problem.batch.div_ceil(plan.rows_per_block) * blocks(problem, &plan.layout) * plan.segments;
        let resident = self.resident(problem, &plan.layout, plan.tiles());
        let &(_, latency, issue) = FRAME_CLOCKS
            .iter()
            .find(|&&(lanes, ..)| lanes == plan.layout.lanes)
            .expect("lanes that were measured");
        // A frame of so many blocks side by side, whose warps share four schedulers.
        let frame = |blocks: usize| match blocks {
            0 => 0.0,
            _ => latency + issue * (blocks * plan.layout.warps) as f64 / 4.0,
        };
        let full = resident * self.multiprocessors;
        let all =
            (blocks / full) as f64 * frame(resident) + frame((blocks % full).div_ceil(self.multiprocessors));
        let one_pass = !has_several_passes(problem, &plan.layout);
        let pieces = plan.pieces(problem, one_pass, true).map(|piece| {
            let within_chunk = STATES_SHARE * (piece.first % plan.chunk) as f64;
            (piece.frames + LAUNCH_FRAMES) as f64 + within_chunk
        });
        // Parts walk both ways once more, which is short.
        let of_parts = if plan.layout.parts > 1 { 1.5 / plan.layout.parts as f64 } else { 1.0 };
        let walk = pieces.sum::<f64>() * plan.rows_per_block as f64 * of_parts;
        let adjoints = match plan.segments {
            1 => 0.0,
            segments => {
                let share = ADJOINTS_SHARE * (segments - 1) as f64 / segments as f64;
                share * plan.segment as f64 + 2.0 * LAUNCH_FRAMES as f64
            }
        };
        let waiting = WARP_SHARE * plan.layout.warps.saturating_sub(BACKWARD_WARPS[0]) as f64;
        all * (walk + adjoints) * (1.0 + waiting)
    }

    /// Frames of a segment, or of a part of it, for which a block walks the adjoints alone.
    fn adjoint_chunk(&self, problem: &Problem, layout: &Layout, segment: usize, segments: usize) -> usize {
        if segments == 1 {
            return segment;
        }
        // Those of the first segment are not asked for.
        let warps = problem.batch * blocks(problem, layout) * layout.warps * (segments - 1);
        let wanted = (WARPS_OF_ADJOINTS * self.multiprocessors).div_ceil(warps);
        let whole = |&parts: &usize| {
            let frames = segment / parts;
            segment.is_multiple_of(parts * SPAN)
                && frames >= SHORTEST_OF_ADJOINTS
                && adjoints_fit(problem, layout, frames)
        };
        segment / (1..=wanted).rev().find(whole).unwrap_or(1)
    }

    /// Deals chunks to segments and launches.
    fn deal(
        &self,
        problem: &Problem,
        layout: Layout,
        states: StatesPlan,
        chunk: usize,
        segments: usize,
    ) -> BackwardPlan {
        let unit = unit(problem);
        let all_blocks = blocks(problem, &layout);
        let chunks = problem.seq.div_ceil(chunk);
        let per_segment = chunks.div_ceil(segments);
        let segments = chunks.div_ceil(per_segment);

        // Frames of every segment whose sums have room: whole chunks, or, if it is less than one, whole tiles of a chunk, which
        // each launch walks to once more.
        let room = match problem.seq >= BOUNDED_FROM {
            true => {
                let all = inputs(problem) * problem.batch * problem.seq * problem.dim;
                let kept =
                    boundary_bytes(problem, &layout, chunks) + segments * segment_bytes(problem, &layout);
                ((EXTRA_SHARE * all as f64) as usize).saturating_sub(kept)
            }
            false => SUMS_BYTES,
        };
        let sums = sums_of_frame(problem, &layout).max(1);
        let frames = room / sums / segments;
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
        let segment = (per_segment * chunk).min(problem.seq);
        BackwardPlan {
            layout,
            units: Units { unit, blocks: unit.div_ceil(layout.channels) },
            states,
            chunk,
            chunks,
            segment,
            segments,
            adjoint_chunk: self.adjoint_chunk(problem, &layout, segment, segments),
            piece: piece.min(problem.seq),
            rows_per_block,
        }
    }
}

/// What the backward pass keeps, as a share of what flows into it: the states at the boundaries of so many chunks, what so many
/// passes carry, and sums of dB and dC.
fn extra_share(problem: &Problem, plan: &BackwardPlan, chunks: usize, passes: usize) -> f64 {
    let edges = problem.batch * plan.segments * problem.dim;
    let extra = boundary_bytes(problem, &plan.layout, chunks)
        + plan.segments * segment_bytes(problem, &plan.layout)
        + (passes - 1) * edges * plan.layout.states_bytes(problem)
        + plan.piece * plan.segments * sums_of_frame(problem, &plan.layout);
    extra as f64 / (inputs(problem) * problem.batch * problem.seq * problem.dim) as f64
}

/// States a thread of the backward pass.
fn backward_states(problem: &Problem, lanes: usize) -> usize {
    let words = Sizes::of(problem).words;
    let most = (16 / lanes).min(4 / words).max(1);
    states_for(problem.state, lanes, words).min(most)
}

/// Frames from one state that is kept to the next, for layouts of so many lanes or more: the same for any batch and dim.
fn chunk_frames(problem: &Problem, lanes: usize) -> usize {
    if problem.seq <= LONGEST_ALONE {
        return problem.seq.next_power_of_two().max(2 * SPAN);
    }
    if problem.seq < BOUNDED_FROM {
        return BACKWARD_TILE;
    }
    let sizes = Sizes::of(problem);
    let boundary = lanes * backward_states(problem, lanes) * sizes.words * 4;
    let decay = if decay_by_sum(problem) { sizes.real } else { boundary };
    let shortest = (boundary + decay) as f64 / (BOUNDARY_SHARE * inputs(problem) as f64);
    (shortest.ceil() as usize).next_multiple_of(BACKWARD_TILE)
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

/// Blocks of channels of a row.
fn blocks(problem: &Problem, layout: &Layout) -> usize {
    let unit = unit(problem);
    problem.dim / unit * unit.div_ceil(layout.channels)
}

/// Bytes of the sums of dB and dC over each block's channels, of a frame of all rows.
fn sums_of_frame(problem: &Problem, layout: &Layout) -> usize {
    varying(problem) * problem.batch * blocks(problem, layout) * layout.states_bytes(problem)
}

/// Bytes of the states at the boundaries of chunks, and of the decays between them.
fn boundary_bytes(problem: &Problem, layout: &Layout, chunks: usize) -> usize {
    let states = layout.states_bytes(problem);
    let decay = if decay_by_sum(problem) { Sizes::of(problem).real } else { states };
    if chunks > 1 { problem.batch * chunks * problem.dim * (states + decay) } else { 0 }
}

/// Bytes of what a segment of every row carries and sums over time.
fn segment_bytes(problem: &Problem, layout: &Layout) -> usize {
    let sets = 2 + (2 - varying(problem));
    problem.batch * problem.dim * (sets * layout.states_bytes(problem) + 2 * Sizes::of(problem).real)
}

/// The widest access, in elements, that the facts allow.
fn vector(size: usize, alignment: usize, divides: &[usize]) -> usize {
    let fits = |count: usize| {
        (count * size <= 16 && alignment.is_multiple_of(count * size))
            && divides.iter().all(|width| width.is_multiple_of(count))
    };
    [8, 4, 2].into_iter().find(|&count| fits(count)).unwrap_or(1)
}

/// What the kernels of a plan are compiled for; what a kernel does not depend on is left at one value, so that
/// problems share kernels.
pub struct Configurations<'a> {
    /// The problem.
    pub problem: &'a Problem,
    /// The layout of the plan.
    pub layout: Layout,
    /// Channels that share b and c.
    pub unit: usize,
    /// How the operands lie in memory.
    pub alignment: Alignment,
    /// The device.
    pub properties: Properties,
}

impl Configurations<'_> {
    const NEUTRAL: Configuration = Configuration {
        program: Program::Marks,
        element: ElementType::F32,
        complex: false,
        method: Method::Zoh,
        coefficients: Coefficients::Exact,
        b_constant: false,
        c_constant: false,
        has_d: false,
        has_z: false,
        has_dt_bias: false,
        softplus: false,
        limit: false,
        seq_idx: false,
        finds_marks: false,
        adjoints: false,
        lanes: 1,
        time_lanes: 1,
        states: 1,
        rounds: 1,
        orders: 1,
        parts: 1,
        channels: 32,
        warps: 1,
        tile: 1,
        tiles: 1,
        vector: 1,
        vector_b: 1,
        vector_c: 1,
        vector_states: 1,
        summary: false,
        pipelined: false,
        joins: false,
        several_passes: false,
        min_blocks: 1,
        shared_bytes: 0,
    };

    /// marks.cu, where rows are packed.
    pub fn marks(&self) -> Option<Configuration> {
        self.problem.seq_idx.then_some(Self::NEUTRAL)
    }

    /// prefix.cu, over the states of chunks or over the adjoints of segments.
    pub fn prefix(&self, adjoints: bool) -> Configuration {
        Configuration {
            program: Program::Prefix,
            element: self.problem.element.state_type(),
            complex: self.problem.complex,
            method: match self.problem.method {
                Method::Bilinear => Method::Bilinear,
                _ => Method::Zoh,
            },
            seq_idx: self.problem.seq_idx,
            adjoints,
            lanes: self.layout.lanes,
            states: self.layout.states * self.layout.rounds,
            ..Self::NEUTRAL
        }
    }

    /// reduce.cu.
    pub fn reduce(&self) -> Configuration {
        let width = self.layout.slots() * self.problem.components();
        Configuration {
            program: Program::Reduce,
            element: self.problem.element,
            complex: self.problem.complex,
            lanes: self.layout.lanes,
            states: self.layout.states,
            vector: vector(Sizes::of(self.problem).real, 16, &[width]),
            ..Self::NEUTRAL
        }
    }

    /// What the kernels that walk over frames have in common.
    fn walking(&self, program: Program) -> Configuration {
        let p = self.problem;
        let size = p.element.size();
        let width = self.layout.slots() * p.components();
        let row = p.state * p.components();
        let threads = self.layout.warps * 32;
        // All threads bring a tile, if they can: accesses of a few would be wider, and want registers of all.
        let each = (self.layout.tile * width / threads).max(1);
        let projection = |constant, alignment| match constant {
            true => 1,
            false => vector(size, alignment, &[width, row]).min(1 << each.ilog2()),
        };
        Configuration {
            program,
            element: p.element,
            complex: p.complex,
            method: p.method,
            coefficients: p.coefficients,
            b_constant: is_constant(p.b),
            c_constant: is_constant(p.c),
            has_dt_bias: p.dt_bias,
            softplus: p.dt_softplus,
            limit: p.dt_limit.is_some(),
            seq_idx: p.seq_idx,
            has_z: p.z,
            lanes: self.layout.lanes,
            time_lanes: self.layout.time_lanes,
            states: self.layout.states,
            rounds: self.layout.rounds,
            orders: self.layout.orders,
            parts: self.layout.parts,
            channels: self.layout.channels,
            warps: self.layout.warps,
            tile: self.layout.tile,
            vector: vector(size, self.alignment.sequences, &[self.layout.channels, self.unit]),
            min_blocks: (threads_wanted(p, &self.layout, program) / threads).max(1),
            vector_b: projection(is_constant(p.b), self.alignment.b),
            vector_c: projection(is_constant(p.c), self.alignment.c),
            ..Self::NEUTRAL
        }
    }

    /// The same with registers for no more blocks than shared memory has room for.
    fn that_fit(&self, configuration: Configuration) -> Configuration {
        let room = self.properties.shared_per_multiprocessor / (configuration.shared_bytes + RESERVED_SHARED);
        Configuration { min_blocks: configuration.min_blocks.min(room).max(1), ..configuration }
    }

    /// States of a row that are accessed at once.
    fn vector_states(&self, orders: usize) -> usize {
        let size = Sizes::of(self.problem).real * self.problem.components();
        vector(size, self.alignment.states, &[self.layout.states / orders, self.problem.state])
    }

    /// forward.cu, where it finds what its chunks come to.
    pub fn chunk_states(&self) -> Configuration {
        let forward = self.forward(1);
        // Wider accesses of 16-bit elements, with what dt_bias needs, want registers that there are not.
        let most = if self.problem.dt_bias && self.problem.element.size() == 2 { 2 } else { forward.vector };
        Configuration {
            summary: true,
            vector: forward.vector.min(most),
            has_d: false,
            has_z: false,
            c_constant: true,
            vector_c: 1,
            several_passes: false,
            finds_marks: false,
            ..forward
        }
    }

    /// forward.cu, for so many chunks.
    pub fn forward(&self, chunks: usize) -> Configuration {
        let walking = self.walking(Program::Forward);
        // A thread has a unit of two frames at least, if it can: single frames are stored to rows word by word. With lanes
        // over time there are too few elements for that: every thread has a unit.
        let Layout { channels, warps, tile, time_lanes, rounds, .. } = self.layout;
        let elements = tile * channels / (warps * 32);
        let vector = walking.vector.min(if time_lanes > 1 { elements } else { elements / 2 }.max(1));
        self.that_fit(Configuration {
            has_d: self.problem.d,
            vector,
            // States in neighbouring registers would meet in their banks all through the walk of many frames; of several
            // rounds they come from shared memory in packs anyway.
            vector_states: if time_lanes > 1 || rounds > 1 { self.vector_states(1) } else { 1 },
            pipelined: !is_heavy(self.problem),
            finds_marks: self.problem.seq_idx && chunks == 1,
            joins: (2..=MOST_JOINED).contains(&chunks),
            several_passes: has_several_passes(self.problem, &self.layout),
            shared_bytes: forward_bytes(self.problem, &self.layout),
            ..walking
        })
    }

    /// What backward.cu is compiled for in either use.
    fn walking_back(&self) -> Configuration {
        let walking = self.walking(Program::Backward);
        Configuration {
            vector: walking.vector.min(PAIR),
            vector_states: self.vector_states(self.layout.orders),
            several_passes: has_several_passes(self.problem, &self.layout),
            ..walking
        }
    }

    /// backward.cu, where it finds what adjoint chunks add to the gradients before them.
    pub fn chunk_adjoints(&self) -> Configuration {
        let warps = WARPS_OF_ADJOINTS / Sizes::of(self.problem).words;
        self.that_fit(Configuration {
            summary: true,
            b_constant: true,
            vector_b: 1,
            orders: 1,
            vector_states: self.vector_states(1),
            min_blocks: (warps / self.layout.warps).max(1),
            shared_bytes: summary_bytes(self.problem, &self.layout),
            ..self.walking_back()
        })
    }

    /// backward.cu, for chunks of so many tiles.
    pub fn backward(&self, tiles: usize) -> Configuration {
        self.that_fit(Configuration {
            has_d: self.problem.d,
            tiles,
            shared_bytes: backward_bytes(self.problem, &self.layout, tiles),
            ..self.walking_back()
        })
    }
}

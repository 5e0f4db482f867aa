//! The choice of lanes, channels, tiles and chunks, from the problem and the device's own properties.

use super::arguments::walks;
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
}

impl Alignment {
    /// As memory comes from an allocator of the driver.
    pub const ALLOCATED: Self = Self { sequences: 16, b: 16, c: 16 };
}

/// Warps of the forward pass that a multiprocessor should have with four lanes a channel; else eight lanes give more.
/// Measured on an H200 (bench/NOTES.md), as is what follows.
const WARPS_WITH_4_LANES: usize = 6;
/// Below this many warps a multiprocessor, chunks are worth the second walk that they cost; then up to so many.
const WARPS_TO_CUT: f64 = 2.4;
const WARPS_WITH_CHUNKS: usize = 16;
/// Sequences shorter than this are not cut for the sake of parallelism.
const SHORTEST_TO_CUT: usize = 192;
/// Frames of a tile at most.
const LONGEST_TILE: usize = 64;
/// From here on the backward pass keeps its memory under a tenth of its inputs.
const BOUNDED_FROM: usize = 2048;

/// Shares of the inputs that lie at the boundaries of chunks, and in sums of dB and dC, at most.
const BOUNDARY_SHARE: f64 = 0.058;
const SUMS_SHARE: f64 = 0.036;
/// Where memory is not bounded: the shortest chunk that is worth its boundary, and sums that stay in a cache.
const SHORTEST_CHUNK: f64 = 96.0;
const SUMS_BYTES: usize = 24 << 20;
/// Registers of a multiprocessor, those of a thread of the backward pass, and shared memory that a block costs
/// beside its own.
const REGISTERS: usize = 65_536;
const BACKWARD_REGISTERS: usize = 168;
const RESERVED_SHARED: usize = 1 << 10;
/// Threads of a block of the backward pass at most.
const MOST_THREADS: usize = 256;

/// How a walk over frames is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Threads a channel.
    pub lanes: usize,
    /// States a thread.
    pub states: usize,
    /// Channels a block.
    pub channels: usize,
    /// Frames a tile.
    pub tile: usize,
}

impl Layout {
    /// States that a pass covers.
    pub const fn slots(&self) -> usize {
        self.lanes * self.states
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

/// The backward pass of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackwardPlan {
    /// The layout of all its kernels.
    pub layout: Layout,
    /// Its blocks of channels.
    pub units: Units,
    /// Frames a chunk.
    pub chunk: usize,
    /// Chunks a row.
    pub chunks: usize,
    /// Rows that a thread block walks in turn.
    pub rows_per_block: usize,
    /// Pairs of a row block and a chunk that a launch covers.
    pub piece: usize,
    /// All such pairs.
    pub pairs: usize,
}

/// Sizes in bytes and 4-byte words of what a problem is made of.
struct Sizes {
    element: usize,
    real: usize,
    /// 4-byte words of a state.
    words: usize,
}

impl Sizes {
    fn of(problem: &Problem) -> Self {
        let real = problem.element.state_type().size();
        Self { element: problem.element.size(), real, words: problem.components() * real / 4 }
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

/// Whether the gain of a method takes more than a handful of instructions.
fn is_heavy(problem: &Problem) -> bool {
    let plain = matches!(problem.method, Method::Zoh | Method::Bilinear | Method::Rk4);
    problem.complex || problem.element == ElementType::F64 || !plain
}

/// Frames that the loops unroll.
fn unroll(problem: &Problem, states: usize) -> usize {
    match (is_heavy(problem), states) {
        (false, 0..=8) => 4,
        (false, _) => 2,
        (true, 0..=2) => 2,
        (true, _) => 1,
    }
}

/// Threads that a multiprocessor is to hold at least, so that the compiler leaves them registers: as many as shared
/// memory allows where that spills nothing.
fn threads_wanted(problem: &Problem, layout: &Layout, program: Program) -> usize {
    let bare = !(problem.z || problem.seq_idx || problem.dt_limit.is_some());
    match (program, problem.method) {
        _ if is_heavy(problem) || layout.states > 8 => 0,
        (Program::Forward, _) if layout.states > 4 => 0,
        (Program::Forward, _) if problem.seq_idx || problem.z => 384,
        (Program::Forward, _) => 512,
        (Program::Backward, Method::Zoh) if bare => 512,
        (Program::Backward, Method::Zoh) => 384,
        _ => 0,
    }
}

/// Bytes of the arrays of a tile; each is aligned to 16.
fn array_bytes(tile: usize, width: usize, size: usize) -> usize {
    (tile * width * size).next_multiple_of(16)
}

impl Layout {
    /// Shared memory of `Tiles` in tiles.cuh. `gate`: whether silu(z), or its slope, has a place of its own.
    fn tiles_bytes(&self, problem: &Problem, uses: Uses) -> usize {
        let sizes = Sizes::of(problem);
        let sequence = |size| array_bytes(self.tile, self.channels, size);
        let width = self.slots() * problem.components();
        let projection = |constant| match constant {
            true => 0,
            false => array_bytes(self.tile, width, sizes.element) + array_bytes(self.tile, width, sizes.real),
        };
        let both = sequence(sizes.element) + sequence(sizes.real);
        let slope = problem.dt_softplus || problem.dt_limit.is_some();
        let optional = |used: bool, bytes: usize| if used { bytes } else { 0 };
        both + optional(uses.states, both + projection(is_constant(problem.b)))
            + optional(uses.outputs, projection(is_constant(problem.c)))
            + optional(uses.outputs && problem.z, sequence(sizes.element))
            + optional(uses.dy, both)
            + optional(uses.gate && problem.z, sequence(sizes.real))
            + optional(uses.slope && slope, sequence(sizes.real))
    }
}

/// The tensors that a kernel's tiles hold, beside dt.
#[derive(Clone, Copy)]
struct Uses {
    /// x and b.
    states: bool,
    /// c and z.
    outputs: bool,
    dy: bool,
    gate: bool,
    slope: bool,
}

impl Uses {
    const BACKWARD: Self = Self { states: true, outputs: true, dy: true, gate: true, slope: true };
    const fn summary(states: bool, adjoints: bool) -> Self {
        Self { states, outputs: adjoints, dy: adjoints, gate: false, slope: false }
    }
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
    let rows = 2 * layout.channels + projections.count() * layout.slots() * problem.components();
    let marks = if problem.seq_idx { layout.tile.next_multiple_of(16) } else { 0 };
    2 * (rows * pitch(layout.tile, real) * real + marks)
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

fn backward_bytes(problem: &Problem, layout: &Layout, tiles: usize) -> usize {
    let sizes = Sizes::of(problem);
    let threads = layout.lanes * layout.channels;
    let y = if problem.z { array_bytes(layout.tile, layout.channels, sizes.real) } else { 0 };
    layout.tiles_bytes(problem, Uses::BACKWARD)
        + y
        + (layout.tile + tiles - 1) * threads * layout.states * sizes.words * 4
}

impl Properties {
    /// Plans the forward pass.
    pub fn forward(&self, problem: &Problem) -> ForwardPlan {
        let words = Sizes::of(problem).words;
        let (most_lanes, most_states) = (16, (8 / words).max(1));
        let passes = problem.state.div_ceil(most_lanes * most_states);
        let count = problem.state.div_ceil(passes);
        let unit = unit(problem);
        let channels = problem.batch * problem.dim;

        // As few lanes as leave a thread four words of states, then more until there are enough warps.
        let mut lanes = 1;
        while states_for(count, lanes, words) > (4 / words).max(1) && lanes < 8 {
            lanes *= 2;
        }
        while states_for(count, lanes, words) > most_states && lanes < most_lanes {
            lanes *= 2;
        }
        while lanes < 8
            && channels * lanes / 32 < WARPS_WITH_4_LANES * self.multiprocessors
            && lanes * 2 * states_for(count, lanes * 2, words) <= lanes * states_for(count, lanes, words)
        {
            lanes *= 2;
        }

        let interval = self.backward(problem).chunk;
        let channels_per_block = if lanes <= 4 { 32 } else { 128 / lanes };
        let mut layout = Layout {
            lanes,
            states: states_for(count, lanes, words),
            channels: channels_per_block.min(unit.next_power_of_two()).max(32 / lanes),
            tile: 0,
        };
        let mut most = if lanes == 8 { 64 } else { 32 };
        loop {
            layout.tile = forward_tile(problem.seq, interval, lanes, most);
            if forward_bytes(problem, &layout) <= self.shared_per_block.min(48 << 10) || most <= lanes.max(8)
            {
                break;
            }
            most /= 2;
        }

        let warps = (channels * lanes) as f64 / 32.0 / self.multiprocessors as f64;
        let mut chunk = problem.seq;
        if problem.seq >= SHORTEST_TO_CUT && warps < WARPS_TO_CUT {
            let chunks = ((WARPS_WITH_CHUNKS as f64 / warps).round() as usize).min(problem.seq / 64);
            if chunks > 1 {
                chunk = problem.seq.div_ceil(chunks).next_multiple_of(layout.tile);
            }
        }
        ForwardPlan {
            layout,
            units: Units { unit, blocks: unit.div_ceil(layout.channels) },
            chunk,
            chunks: problem.seq.div_ceil(chunk),
            checkpoint_interval: interval,
        }
    }

    /// Blocks of the backward pass that run at a time.
    fn resident(&self, threads: usize, shared_bytes: usize) -> usize {
        let by_shared = self.shared_per_multiprocessor / (shared_bytes + RESERVED_SHARED);
        let by_registers = REGISTERS / (BACKWARD_REGISTERS * threads);
        self.multiprocessors * by_shared.min(by_registers).max(1)
    }

    /// Plans the backward pass.
    ///
    /// Its extra memory is what lies at the boundaries of the chunks, less with longer chunks, and the sums of dB
    /// and dC that a launch leaves to be reduced, less with shorter pieces.
    pub fn backward(&self, problem: &Problem) -> BackwardPlan {
        let sizes = Sizes::of(problem);
        let most = 16 / sizes.words;
        let count = problem.state.min(most);
        let states = count.min(4 / sizes.words).next_power_of_two();
        let lanes = count.div_ceil(states).next_power_of_two();
        let unit = unit(problem);
        let mut layout = Layout {
            lanes,
            states,
            channels: (128 / lanes).min(64).min(unit.next_power_of_two()).max(32 / lanes),
            tile: 16,
        };

        let boundary = layout.slots() * sizes.words * 4;
        let decay = if decay_by_sum(problem) { sizes.real } else { boundary };
        let shortest = match problem.seq >= BOUNDED_FROM {
            true => (2 * boundary + decay) as f64 / (BOUNDARY_SHARE * inputs(problem) as f64),
            false => SHORTEST_CHUNK,
        };
        // Whole tiles of the forward pass too, which keeps its states at the beginning of a tile.
        let mut chunk = (shortest.ceil() as usize).next_multiple_of(LONGEST_TILE);
        if problem.seq <= chunk * 3 / 2 {
            chunk = problem.seq.next_multiple_of(layout.tile);
        }
        let tiles = chunk / layout.tile;
        while backward_bytes(problem, &layout, tiles) > self.shared_per_block && layout.channels * lanes > 32
        {
            layout.channels /= 2;
        }

        // Where memory keeps a device from being filled, blocks of more channels have fewer sums to keep.
        let wide = Layout { channels: 2 * layout.channels, ..layout };
        let fits = wide.channels <= unit.next_power_of_two()
            && wide.channels * lanes <= MOST_THREADS
            && backward_bytes(problem, &wide, tiles) <= self.shared_per_block;
        let (plan, threads) = self.deal(problem, layout, chunk);
        let (wide, more) = self.deal(problem, wide, chunk);
        let crowded = plan.piece < plan.pairs && (more > threads || plan.piece == 1);
        if fits && crowded { wide } else { plan }
    }

    /// Deals the chunks to launches; with how many threads then run at a time.
    fn deal(&self, problem: &Problem, layout: Layout, chunk: usize) -> (BackwardPlan, usize) {
        let sizes = Sizes::of(problem);
        let unit = unit(problem);
        let blocks = unit.div_ceil(layout.channels);
        let all_blocks = problem.dim / unit * blocks;
        let chunks = problem.seq.div_ceil(chunk);
        let rows_per_block = match chunks {
            1 => (problem.batch * all_blocks / (16 * self.multiprocessors)).clamp(1, problem.batch),
            _ => 1,
        };
        let pairs = problem.batch.div_ceil(rows_per_block) * chunks;
        let varying = usize::from(!is_constant(problem.b)) + usize::from(!is_constant(problem.c));
        let sums_of_block = varying * rows_per_block * chunk * layout.slots() * sizes.words * 4;
        let sums_of_pair = sums_of_block * all_blocks;
        let threads = layout.lanes * layout.channels;
        let resident = self.resident(threads, backward_bytes(problem, &layout, chunk / layout.tile));
        let room = match problem.seq >= BOUNDED_FROM {
            true => {
                (SUMS_SHARE * (inputs(problem) * problem.batch * problem.seq * problem.dim) as f64) as usize
            }
            false => SUMS_BYTES.max(4 * resident * sums_of_block),
        };
        let most = (room / sums_of_pair.max(1)).clamp(1, pairs);
        // Whole waves of blocks.
        let waves = most * all_blocks / resident;
        let whole = if waves > 0 { waves * resident / all_blocks } else { most };
        let piece = if most >= pairs { pairs } else { whole.max(1) };
        let units = Units { unit, blocks };
        let plan = BackwardPlan { layout, units, chunk, chunks, rows_per_block, piece, pairs };
        (plan, resident.min(piece * all_blocks) * threads)
    }
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
        with_states: false,
        with_adjoints: false,
        lanes: 1,
        states: 1,
        channels: 32,
        tile: 1,
        tiles: 1,
        vector: 1,
        vector_b: 1,
        vector_c: 1,
        summary: false,
        pipelined: false,
        several_passes: false,
        unroll: 1,
        unroll_back: 1,
        min_blocks: 1,
        shared_bytes: 0,
    };

    /// marks.cu.
    pub fn marks(&self) -> Configuration {
        Self::NEUTRAL
    }

    /// prefix.cu.
    pub fn prefix(&self, with_states: bool, with_adjoints: bool) -> Configuration {
        Configuration {
            program: Program::Prefix,
            element: self.problem.element.state_type(),
            complex: self.problem.complex,
            method: match self.problem.method {
                Method::Bilinear => Method::Bilinear,
                _ => Method::Zoh,
            },
            seq_idx: self.problem.seq_idx,
            with_states,
            with_adjoints,
            lanes: self.layout.lanes,
            states: self.layout.states,
            ..Self::NEUTRAL
        }
    }

    /// reduce.cu.
    pub fn reduce(&self) -> Configuration {
        Configuration {
            program: Program::Reduce,
            element: self.problem.element,
            complex: self.problem.complex,
            lanes: self.layout.lanes,
            states: self.layout.states,
            ..Self::NEUTRAL
        }
    }

    /// What the kernels that walk over frames have in common.
    fn walking(&self, program: Program) -> Configuration {
        let p = self.problem;
        let size = p.element.size();
        let width = self.layout.slots() * p.components();
        let row = p.state * p.components();
        let threads = self.layout.lanes * self.layout.channels;
        let projection = |constant, alignment| match constant {
            true => 1,
            false => vector(size, alignment, &[width, row]),
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
            states: self.layout.states,
            channels: self.layout.channels,
            tile: self.layout.tile,
            vector: vector(size, self.alignment.sequences, &[self.layout.channels, self.unit]),
            min_blocks: (threads_wanted(p, &self.layout, program) / threads).max(1),
            vector_b: projection(is_constant(p.b), self.alignment.b),
            vector_c: projection(is_constant(p.c), self.alignment.c),
            unroll: unroll(p, self.layout.states),
            ..Self::NEUTRAL
        }
    }

    /// forward.cu, where it finds what its chunks come to.
    pub fn chunk_states(&self) -> Configuration {
        Configuration {
            summary: true,
            has_d: false,
            has_z: false,
            c_constant: true,
            vector_c: 1,
            several_passes: false,
            ..self.forward()
        }
    }

    /// forward.cu.
    pub fn forward(&self) -> Configuration {
        let walking = self.walking(Program::Forward);
        // A thread has a unit of two frames at least, if it can: single frames are stored to rows word by word.
        let Layout { lanes, tile, .. } = self.layout;
        let vector = walking.vector.min((tile / lanes / 2).max(1));
        Configuration {
            has_d: self.problem.d,
            vector,
            pipelined: !is_heavy(self.problem),
            several_passes: walks(self.problem, self.layout.slots()).len() > 1,
            unroll: 1,
            shared_bytes: forward_bytes(self.problem, &self.layout),
            ..walking
        }
    }

    /// summary.cu.
    pub fn summary(&self, with_states: bool, with_adjoints: bool) -> Configuration {
        let uses = Uses::summary(with_states, with_adjoints);
        let configuration = self.walking(Program::Summary);
        Configuration {
            has_z: with_adjoints && configuration.has_z,
            with_states,
            with_adjoints,
            shared_bytes: self.layout.tiles_bytes(self.problem, uses),
            ..configuration
        }
    }

    /// backward.cu, for chunks of so many tiles.
    pub fn backward(&self, tiles: usize) -> Configuration {
        Configuration {
            has_d: self.problem.d,
            tiles,
            unroll_back: if is_heavy(self.problem) { 1 } else { 2 },
            shared_bytes: backward_bytes(self.problem, &self.layout, tiles),
            ..self.walking(Program::Backward)
        }
    }
}

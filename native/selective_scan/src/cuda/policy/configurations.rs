//! What the kernels of a plan are compiled for.

use super::backward::{
    BACKWARD_TILE, BackwardPlan, PAIR, WARPS_OF_ADJOINTS, backward_bytes, is_heavy_walk_back,
    is_light_walk_back, sequence_bytes, summary_bytes,
};
use super::forward::{
    BULK_ALIGNMENT, CHANNELS_FOR_TIME_LANES, TILE_OF_HEAVY_ROUNDS, bulk_bytes, forward_bytes, is_short_row,
    relay_bytes,
};
use super::{
    Alignment, Chunks, Layout, Properties, Relay, blocks, finds_marks, groups, has_several_sweeps,
    is_constant, is_heavy_walk_forward, is_long_walk_forward, is_longest_walk_forward, is_plain, real_bytes,
    state_words, unit,
};
use crate::cuda::compile::{Configuration, Program};
use crate::{Coefficients, ElementType, Method, Problem};

/// Chunks up to which every block joins those before its own, without a launch for that.
pub(super) const MOST_JOINED: usize = 16;

/// Blocks of bulk.cu and of chunks.cu that a multiprocessor has, if it has room.
const BLOCKS_OF_BULK: usize = 4;
const BLOCKS_OF_CHUNKS: usize = 5;
const BLOCKS_OF_CHUNKS_OF_LONG_WALKS: usize = 4;

/// Warps of a block of the kernels that do not walk over frames.
const WARPS_OF_MARKS: usize = 8;
const WARPS_OF_PREFIX: usize = 4;
const WARPS_OF_REDUCE: usize = 8;
/// Blocks of reduce.cu that a multiprocessor has at a time, threads of one side by side over a row of parameters (others have other
/// rows), and parts of a pack of components of dB or dC that a thread has on their way at a time.
const BLOCKS_OF_REDUCE: usize = 4;
pub(in crate::cuda) const ROW_THREADS: usize = 32;
pub(in crate::cuda) const PARTS_AT_ONCE: usize = 8;
/// Threads that share a pack at most; and where even these cannot have all parts on their way.
const MOST_SHARERS: usize = 8;
const SHARERS_OF_MORE: usize = 4;

/// Bytes of a register.
const REGISTER_BYTES: usize = 4;

/// Tiles that a chunk has at least where one of them comes to be walked between two others, as `bring` of forward.cu wants them.
const WHOLE_TILES_FROM: usize = 3;
/// Tiles of a row up to which it is asked whether the last has its last group of frames.
const ENDS_EARLY_UP_TO: usize = 4;

/// Frames of a last tile from which on it is walked like a whole one, where those that are missing leave the states as they are.
pub(in crate::cuda) const fn whole_from(tile: usize) -> usize {
    (tile * 3).div_ceil(4)
}

/// Threads that a multiprocessor is to hold at least, so that the compiler leaves them registers: as many as shared
/// memory allows where that spills nothing. Of two, three or four blocks of four warps, 256, 384 or 512 threads, each has 255, 168 or 128
/// registers; what spills with so many is counted in bench/NOTES.md ("Spills").
pub(super) fn threads_wanted(problem: &Problem, layout: &Layout, program: Program) -> usize {
    let heavy = is_heavy_walk_forward(problem);
    match program {
        Program::Backward if layout.parts > 1 => layout.warps * 32,
        // Rows in one tile: their shared memory leaves no room for more.
        Program::Backward if layout.tile > BACKWARD_TILE => 256,
        Program::Backward if layout.states * state_words(problem) > 2 && !is_light_walk_back(problem) => 256,
        Program::Backward => 384,
        // A multiprocessor has no more channels than these.
        _ if layout.time_lanes > 1 => CHANNELS_FOR_TIME_LANES * 32,
        _ if state_words(problem) > 1 => 0,
        _ if heavy && layout.lanes < 4 => 256,
        // Tiles longer than these are planned for two blocks.
        _ if heavy && layout.rounds > 1 && layout.lanes < 8 && layout.tile > TILE_OF_HEAVY_ROUNDS => 256,
        _ if layout.rounds > 1 || (heavy && layout.lanes > 4) => 384,
        _ if problem.seq_idx && (problem.d || problem.z || problem.dt_bias || !is_plain(problem)) => 384,
        _ if problem.z && (layout.lanes > 4 || !is_plain(problem) || has_several_sweeps(problem, layout)) => {
            384
        }
        _ => 512,
    }
}

/// Blocks that a multiprocessor then has registers for.
pub(super) fn blocks_wanted(problem: &Problem, layout: &Layout, program: Program) -> usize {
    (threads_wanted(problem, layout, program) / (32 * layout.warps)).max(1)
}

/// Blocks of bulk.cu that a multiprocessor is to hold. Heavy walks want the registers of one more, and the longest of two in short rows;
/// else four of these are worth more, as a window is walked in one wave then (H200), but for packed rows of long walks, which would spill.
pub(super) fn blocks_of_bulk(problem: &Problem, layout: &Layout) -> usize {
    let is_short_row = is_short_row(problem, layout);
    let wants_more = !is_short_row || (problem.seq_idx && is_long_walk_forward(problem));
    let fewer = match (is_heavy_walk_forward(problem), is_longest_walk_forward(problem)) {
        (false, _) => 0,
        (true, false) => usize::from(wants_more),
        (true, true) => 1 + usize::from(is_short_row),
    };
    BLOCKS_OF_BULK - fewer
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
    problem: &'a Problem,
    layout: Layout,
    /// Channels that share b and c.
    unit: usize,
    alignment: Alignment,
    properties: Properties,
    /// Whether rows are walked against the order of their frames, where the kernel depends on it.
    reverse: bool,
}

impl<'a> Configurations<'a> {
    /// Of a problem that is walked in this layout on this device, with operands that lie so in memory.
    pub fn new(problem: &'a Problem, layout: Layout, alignment: Alignment, properties: Properties) -> Self {
        Self { problem, layout, unit: unit(problem), alignment, properties, reverse: problem.reverse }
    }

    /// The same of a walk in this direction of a problem.
    pub fn in_direction(self, direction: usize) -> Self {
        Self { reverse: self.problem.reverse != (direction == 1), ..self }
    }

    /// States that a sweep covers.
    pub fn slots(&self) -> usize {
        self.layout.slots()
    }

    const NEUTRAL_LAYOUT: Layout = Layout {
        lanes: 1,
        time_lanes: 1,
        states: 1,
        rounds: 1,
        orders: 1,
        parts: 1,
        channels: 32,
        warps: 1,
        tile: 1,
    };
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
        dt_softplus: false,
        dt_limit: false,
        seq_idx: false,
        finds_marks: false,
        adjoints: false,
        reverse: false,
        layout: Self::NEUTRAL_LAYOUT,
        tiles: 1,
        vector: 1,
        vector_b: 1,
        vector_c: 1,
        vector_states: 1,
        summary: false,
        pipelined: false,
        ends_early: false,
        cut: false,
        grouped: false,
        joins: false,
        shares: false,
        shares_strips: false,
        short_row: false,
        whole_tiles: false,
        within_tiles: false,
        several_sweeps: false,
        streams: false,
        sharers: 1,
        min_blocks: 1,
        shared_bytes: 0,
    };

    /// marks.cu, where rows of so many chunks are packed, and their marks wanted.
    pub fn marks(&self, chunks: usize) -> Option<Configuration> {
        let layout = Layout { warps: WARPS_OF_MARKS, ..Self::NEUTRAL_LAYOUT };
        (self.problem.seq_idx && !finds_marks(chunks)).then_some(Configuration { layout, ..Self::NEUTRAL })
    }

    /// A layout with as many states, all in one lane, for kernels that know nothing else of it.
    fn slots_alone(&self, warps: usize) -> Layout {
        Layout { states: self.slots(), warps, ..Self::NEUTRAL_LAYOUT }
    }

    /// A method with the same decays.
    fn method_of_decays(&self) -> Method {
        match self.problem.method {
            Method::Bilinear => Method::Bilinear,
            _ => Method::Zoh,
        }
    }

    /// prefix.cu, over the states of chunks or over the adjoints of segments.
    pub fn prefix(&self, adjoints: bool) -> Configuration {
        Configuration {
            program: Program::Prefix,
            element: self.problem.element.state_type(),
            complex: self.problem.complex,
            method: self.method_of_decays(),
            seq_idx: self.problem.seq_idx,
            adjoints,
            layout: self.slots_alone(WARPS_OF_PREFIX),
            ..Self::NEUTRAL
        }
    }

    /// reduce.cu.
    pub fn reduce(&self) -> Configuration {
        let width = self.layout.slots() * self.problem.components();
        let blocks = blocks(self.problem, &self.layout);
        let parts = groups(self.problem).map(|groups| blocks / groups).max().unwrap_or(1);
        let sharers = match parts.div_ceil(PARTS_AT_ONCE).next_power_of_two() {
            sharers if sharers > MOST_SHARERS => SHARERS_OF_MORE,
            sharers => sharers,
        };
        Configuration {
            program: Program::Reduce,
            element: self.problem.element,
            complex: self.problem.complex,
            layout: self.slots_alone(WARPS_OF_REDUCE),
            vector: vector(real_bytes(self.problem), 16, &[width]),
            sharers,
            min_blocks: BLOCKS_OF_REDUCE,
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
        let elements = self.layout.tile * width;
        let each = (elements / threads).max(1);
        let registers =
            |count: usize| (elements / count).div_ceil(threads) * (count * size).div_ceil(REGISTER_BYTES);
        let projection = |constant, alignment| {
            let widest = vector(size, alignment, &[width, row]).min(1 << each.ilog2());
            match constant {
                true => 1,
                // Threads that are no power of two have registers for more than there is.
                false if widest > 1 && registers(widest) > registers(widest / 2) + 1 => widest / 2,
                false => widest,
            }
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
            dt_softplus: p.dt_softplus,
            dt_limit: p.dt_limit.is_some(),
            seq_idx: p.seq_idx,
            grouped: self.unit < p.dim,
            has_z: p.z,
            layout: self.layout,
            vector: vector(size, self.alignment.sequences, &[self.layout.channels, self.unit]),
            min_blocks: blocks_wanted(p, &self.layout, program),
            vector_b: projection(is_constant(p.b), self.alignment.b),
            vector_c: projection(is_constant(p.c), self.alignment.c),
            ..Self::NEUTRAL
        }
    }

    /// The same with registers for no more blocks than shared memory has room for.
    fn that_fit(&self, configuration: Configuration) -> Configuration {
        let Configuration { shared_bytes, min_blocks, .. } = configuration;
        let min_blocks = self.properties.blocks_at_a_time(shared_bytes, min_blocks);
        Configuration { min_blocks, ..configuration }
    }

    /// States of a row that are accessed at once.
    fn vector_states(&self, orders: usize) -> usize {
        let size = real_bytes(self.problem) * self.problem.components();
        vector(size, self.alignment.states, &[self.layout.states / orders, self.problem.state])
    }

    /// forward.cu, where it finds what its chunks come to.
    pub fn chunk_states(&self) -> Configuration {
        let forward = self.forward(1);
        // Wider accesses of 16-bit elements, with what dt_bias needs, want registers that there are not.
        let most = if self.problem.dt_bias && self.problem.element.size() == 2 { 2 } else { forward.vector };
        Configuration {
            summary: true,
            cut: true,
            whole_tiles: false,
            vector: forward.vector.min(most),
            has_d: false,
            has_z: false,
            c_constant: true,
            vector_c: 1,
            several_sweeps: false,
            finds_marks: false,
            ..forward
        }
    }

    /// chunks.cu, where it finds what is to be known of chunks.
    pub fn copied_chunks(&self, chunks: Chunks) -> Option<Configuration> {
        if !self.aligned_for_bulk() {
            return None;
        }
        let (layout, shared_bytes) = self.properties.copied_chunks(self.problem, self.slots(), chunks)?;
        let walking = self.walking(Program::Chunks);
        let adjoints = chunks == Chunks::OfAdjoints;
        let (method, coefficients) = match adjoints {
            true => (self.method_of_decays(), Coefficients::Exact),
            false => (walking.method, walking.coefficients),
        };
        Some(self.that_fit(Configuration {
            method,
            coefficients,
            cut: true,
            adjoints,
            reverse: self.reverse,
            layout,
            vector: 1,
            vector_b: 1,
            vector_c: 1,
            vector_states: self.vector_states(1),
            min_blocks: match adjoints || !is_long_walk_forward(self.problem) {
                true => BLOCKS_OF_CHUNKS,
                false => BLOCKS_OF_CHUNKS_OF_LONG_WALKS,
            },
            shared_bytes,
            ..walking
        }))
    }

    /// forward.cu, for so many chunks.
    pub fn forward(&self, chunks: usize) -> Configuration {
        let Layout { lanes, tile, .. } = self.layout;
        let seq = self.problem.seq;
        self.that_fit(Configuration {
            // To ask costs a hundredth of every tile.
            ends_early: chunks == 1
                && seq <= ENDS_EARLY_UP_TO * tile
                && (whole_from(tile)..=tile - lanes.max(4)).contains(&(seq % tile)),
            ..self.walking_forward(chunks)
        })
    }

    /// What forward.cu, and bulk.cu after it, are compiled for.
    fn walking_forward(&self, chunks: usize) -> Configuration {
        let walking = self.walking(Program::Forward);
        // A thread has a unit of two frames at least, if it can: single frames are stored to rows word by word. With lanes
        // over time there are too few elements for that: every thread has a unit.
        let Layout { channels, warps, tile, time_lanes, rounds, .. } = self.layout;
        let elements = tile * channels / (warps * 32);
        let vector = walking.vector.min(if time_lanes > 1 { elements } else { elements / 2 }.max(1));
        Configuration {
            has_d: self.problem.d,
            vector,
            // States in neighbouring registers would meet in their banks all through the walk of many frames; of several
            // rounds they come from shared memory in packs anyway.
            vector_states: if time_lanes > 1 || rounds > 1 { self.vector_states(1) } else { 1 },
            pipelined: !is_heavy_walk_forward(self.problem),
            finds_marks: self.problem.seq_idx && finds_marks(chunks),
            cut: chunks > 1,
            joins: (2..=MOST_JOINED).contains(&chunks),
            // Elements that are read once more, to be finished, have half of all conditions: without them a walk takes 1 to
            // 8% less. A plain one takes 1% more (H200).
            whole_tiles: (self.problem.d || self.problem.z)
                && time_lanes == 1
                && self.problem.seq >= WHOLE_TILES_FROM * tile * chunks,
            several_sweeps: has_several_sweeps(self.problem, &self.layout),
            shared_bytes: forward_bytes(self.problem, &self.layout),
            ..walking
        }
    }

    /// Whether the operands are aligned as bulk.cu and relay.cu want them.
    pub fn aligned_for_bulk(&self) -> bool {
        let Alignment { sequences, b, c, states: _ } = self.alignment;
        [sequences, b, c].iter().all(|&alignment| alignment >= BULK_ALIGNMENT)
    }

    /// bulk.cu, for so many chunks. `shares`: a launch of it walks some of all blocks.
    pub fn bulk(&self, chunks: usize, shares: bool) -> Configuration {
        self.that_fit(Configuration {
            program: Program::Bulk,
            reverse: self.reverse,
            shares,
            short_row: is_short_row(self.problem, &self.layout),
            vector: 1,
            vector_b: 1,
            vector_c: 1,
            whole_tiles: false,
            // States change their registers before the walk (`pair_registers`), so they may come and go in packs. Heavy walks
            // take up to 4% longer so (H200).
            vector_states: if is_heavy_walk_forward(self.problem) { 1 } else { self.vector_states(1) },
            min_blocks: blocks_of_bulk(self.problem, &self.layout),
            shared_bytes: bulk_bytes(self.problem, &self.layout),
            ..self.walking_forward(chunks)
        })
    }

    /// relay.cu, as it is planned.
    pub fn relay(&self, relay: &Relay) -> Configuration {
        let shares_strips = relay.pieces.is_some();
        self.that_fit(Configuration {
            program: Program::Relay,
            reverse: self.reverse,
            several_sweeps: has_several_sweeps(self.problem, &self.layout),
            has_d: self.problem.d,
            vector: 1,
            vector_b: 1,
            vector_c: 1,
            vector_states: self.vector_states(1),
            shares_strips,
            min_blocks: relay.each,
            shared_bytes: relay_bytes(self.problem, &self.layout, shares_strips),
            ..self.walking(Program::Relay)
        })
    }

    /// What backward.cu and adjoints.cu are compiled for.
    fn walking_back(&self) -> Configuration {
        let walking = self.walking(Program::Backward);
        // Where nearly all registers are taken, wide accesses find no neighbouring ones.
        let narrow = is_heavy_walk_back(self.problem, &self.layout);
        let several_sweeps = has_several_sweeps(self.problem, &self.layout);
        // Sweeps read sequences again. Walks that take longer gain nothing, or lose a hundredth, and elements of 16 bits neither
        // (H200).
        let is_light = is_plain(self.problem) && self.problem.element.size() == 4 && !several_sweeps;
        Configuration {
            vector: walking.vector.min(PAIR),
            vector_states: if narrow { 1 } else { self.vector_states(self.layout.orders) },
            several_sweeps,
            streams: is_light && sequence_bytes(self.problem) > self.properties.cache_bytes,
            ..walking
        }
    }

    /// adjoints.cu, which finds what adjoint chunks add to the gradients before them.
    pub fn chunk_adjoints(&self) -> Configuration {
        let warps = WARPS_OF_ADJOINTS / state_words(self.problem);
        self.that_fit(Configuration {
            program: Program::Adjoints,
            summary: true,
            cut: true,
            method: self.method_of_decays(),
            coefficients: Coefficients::Exact,
            b_constant: true,
            vector_b: 1,
            layout: Layout { orders: 1, ..self.layout },
            vector_states: self.vector_states(1),
            min_blocks: (warps / self.layout.warps).max(1),
            shared_bytes: summary_bytes(self.problem, &self.layout),
            ..self.walking_back()
        })
    }

    /// backward.cu, as it is planned.
    pub fn backward(&self, plan: &BackwardPlan) -> Configuration {
        let tiles = plan.tiles();
        self.that_fit(Configuration {
            has_d: self.problem.d,
            tiles,
            cut: plan.segments > 1,
            within_tiles: plan.begins_within_tiles(),
            joins: plan.joins_adjoints,
            finds_marks: self.problem.seq_idx && finds_marks(plan.chunks),
            shared_bytes: backward_bytes(self.problem, &self.layout, tiles),
            ..self.walking_back()
        })
    }
}

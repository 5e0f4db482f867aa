//! Kernels: what a problem asks for becomes macros of a source.

use std::collections::HashSet;
use std::ffi::CStr;

use sha2::{Digest, Sha256};

use super::arguments::Arguments;
use super::policy::{
    BACKWARD_TILE, Layout, OWN_TILES, PARTS_AT_ONCE, ROW_THREADS, STAGES, decays_by_sum, tiles_not_kept,
    whole_from,
};
use crate::{Coefficients, ElementType, Method};

/// The kernels, one to a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// Resets and padding of packed rows.
    Marks,
    /// The states at the boundaries of the chunks, or the gradients at those of the segments.
    Prefix,
    /// The forward scan.
    Forward,
    /// The same where the device copies whole tiles by itself.
    Bulk,
    /// The same where warps hand the state on from tile to tile.
    Relay,
    /// What the chunks of such a scan come to, or its adjoint chunks.
    Chunks,
    /// What adjoint chunks come to where frames come through registers.
    Adjoints,
    /// The backward pass.
    Backward,
    /// The second stage of its sums.
    Reduce,
}

/// The name of a file of kernels/ and what is in it.
macro_rules! source {
    ($name:literal) => {
        (c_name(concat!($name, "\0")), include_str!(concat!("../../kernels/", $name)))
    };
}

const fn c_name(terminated: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(terminated.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name has no zero in it"),
    }
}

impl Program {
    pub(super) const fn source(self) -> (&'static CStr, &'static str) {
        match self {
            Self::Marks => source!("marks.cu"),
            Self::Prefix => source!("prefix.cu"),
            Self::Forward => source!("forward.cu"),
            Self::Bulk => source!("bulk.cu"),
            Self::Relay => source!("relay.cu"),
            Self::Chunks => source!("chunks.cu"),
            Self::Adjoints => source!("adjoints.cu"),
            Self::Backward => source!("backward.cu"),
            Self::Reduce => source!("reduce.cu"),
        }
    }
}

pub(super) const HEADERS: &[(&CStr, &str)] = &[
    source!("number.cuh"),
    source!("discretize.cuh"),
    source!("arguments.cuh"),
    source!("marks.cuh"),
    source!("block.cuh"),
    source!("rows.cuh"),
    source!("lanes.cuh"),
    source!("spans.cuh"),
    source!("rounds.cuh"),
    source!("staged.cuh"),
    source!("stretches.cuh"),
    source!("bulk.cuh"),
    source!("tiles.cuh"),
    source!("owners.cuh"),
    source!("relay_course.cuh"),
    source!("relay_hand_on.cuh"),
    source!("relay_marks.cuh"),
    source!("relay_tile.cuh"),
    source!("elements.cuh"),
    source!("time_lanes.cuh"),
    source!("pairs.cuh"),
    source!("frames.cuh"),
    source!("entry.cuh"),
    source!("edges.cuh"),
    source!("states.cuh"),
    source!("parts.cuh"),
    source!("gradients.cuh"),
    source!("sums.cuh"),
];

/// What a kernel is compiled for; the macros of the same names in the sources say what each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the kernels' sources document the macros")]
pub struct Configuration {
    pub program: Program,
    pub element: ElementType,
    pub complex: bool,
    pub method: Method,
    pub coefficients: Coefficients,
    pub b_constant: bool,
    pub c_constant: bool,
    pub has_d: bool,
    pub has_z: bool,
    pub has_dt_bias: bool,
    pub dt_softplus: bool,
    pub dt_limit: bool,
    pub seq_idx: bool,
    pub finds_marks: bool,
    pub adjoints: bool,
    pub reverse: bool,
    pub layout: Layout,
    pub tiles: usize,
    pub vector: usize,
    pub vector_b: usize,
    pub vector_c: usize,
    pub vector_states: usize,
    pub summary: bool,
    pub pipelined: bool,
    pub ends_early: bool,
    pub cut: bool,
    pub grouped: bool,
    pub joins: bool,
    pub shares: bool,
    pub shares_strips: bool,
    pub short_row: bool,
    pub whole_tiles: bool,
    pub within_tiles: bool,
    pub several_sweeps: bool,
    pub streams: bool,
    pub sharers: usize,
    pub min_blocks: usize,
    pub shared_bytes: usize,
}

impl Configuration {
    /// Threads of a block.
    pub const fn threads(&self) -> usize {
        let carrier = matches!(self.program, Program::Bulk | Program::Chunks) as usize;
        (self.layout.warps + carrier) * 32
    }

    fn macros(&self) -> Vec<String> {
        let element = match self.element {
            ElementType::F32 | ElementType::S32 => 0,
            ElementType::F64 => 1,
            ElementType::Bf16 => 2,
            ElementType::F16 => 3,
        };
        let method = Method::ALL.iter().position(|&method| method == self.method);
        let taylor = self.coefficients == Coefficients::Taylor;
        let Layout { lanes, time_lanes, states, rounds, orders, parts, channels, warps, tile } = self.layout;
        [
            ("ELEMENT", element),
            ("COMPLEX", usize::from(self.complex)),
            ("METHOD", method.unwrap_or_default()),
            ("TAYLOR", usize::from(taylor)),
            ("B_CONSTANT", usize::from(self.b_constant)),
            ("C_CONSTANT", usize::from(self.c_constant)),
            ("HAS_D", usize::from(self.has_d)),
            ("HAS_Z", usize::from(self.has_z)),
            ("HAS_DT_BIAS", usize::from(self.has_dt_bias)),
            ("DT_SOFTPLUS", usize::from(self.dt_softplus)),
            ("DT_LIMIT", usize::from(self.dt_limit)),
            ("SEQ_IDX", usize::from(self.seq_idx)),
            ("FINDS_MARKS", usize::from(self.finds_marks)),
            ("ADJOINTS", usize::from(self.adjoints)),
            ("REVERSE", usize::from(self.reverse)),
            ("LANES", lanes),
            ("TIME_LANES", time_lanes),
            ("STATES", states),
            ("ROUNDS", rounds),
            ("ORDERS", orders),
            ("PARTS", parts),
            ("CHANNELS", channels),
            ("WARPS", warps),
            ("TILE", tile),
            ("TILES", self.tiles),
            ("VECTOR", self.vector),
            ("VECTOR_B", self.vector_b),
            ("VECTOR_C", self.vector_c),
            ("VECTOR_STATES", self.vector_states),
            ("SUMMARY", usize::from(self.summary)),
            ("PIPELINED", usize::from(self.pipelined)),
            ("ENDS_EARLY", usize::from(self.ends_early)),
            ("CUT", usize::from(self.cut)),
            ("GROUPED", usize::from(self.grouped)),
            ("JOINS", usize::from(self.joins)),
            ("SHARES", usize::from(self.shares)),
            ("SHARES_STRIPS", usize::from(self.shares_strips)),
            ("SHORT_ROW", usize::from(self.short_row)),
            ("WHOLE_TILES", usize::from(self.whole_tiles)),
            ("WITHIN_TILES", usize::from(self.within_tiles)),
            ("SEVERAL_SWEEPS", usize::from(self.several_sweeps)),
            ("STREAMS", usize::from(self.streams)),
            ("SHARERS", self.sharers),
            ("MIN_BLOCKS", self.min_blocks),
            ("SHARED_BYTES", self.shared_bytes),
            ("ARGUMENTS_BYTES", size_of::<Arguments>()),
            ("ROW_THREADS", ROW_THREADS),
            ("PARTS_AT_ONCE", PARTS_AT_ONCE),
            ("STAGES", STAGES),
            ("OWN_TILES", OWN_TILES),
            ("BACKWARD_TILE", BACKWARD_TILE),
            ("TILES_NOT_KEPT", tiles_not_kept(self.tiles)),
            ("WHOLE_FROM", whole_from(tile)),
            ("DECAY_BY_SUM", usize::from(decays_by_sum(self.method, self.complex))),
        ]
        .iter()
        .map(|(name, value)| format!("-D{name}={value}"))
        .collect()
    }

    /// The options that NVRTC gets.
    pub(super) fn options(&self, target: Target) -> Vec<String> {
        let mut options = self.macros();
        options.push("--std=c++17".to_owned());
        options.push(match target {
            Target::Machine(architecture) => format!("--gpu-architecture=sm_{architecture}"),
            Target::Ptx(architecture) => format!("--gpu-architecture=compute_{architecture}"),
        });
        options
    }

    /// The hash of everything that a kernel depends on but the version of NVRTC: one that another version compiled does
    /// the same, and to look a kernel up without loading NVRTC takes a millisecond where loading it takes many.
    pub(super) fn key(&self, target: Target) -> Key {
        let mut hash = Sha256::new();
        let (name, source) = self.program.source();
        let sources = HEADERS.iter().copied().chain([(name, source)]);
        for part in sources.flat_map(|(name, text)| [name.to_bytes(), text.as_bytes()]) {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        hash.update(format!("{:?}", self.options(target)));
        hash.finalize().into()
    }
}

/// Each of them once, in their order.
pub(super) fn distinct(all: impl Iterator<Item = Configuration>) -> Vec<Configuration> {
    let mut seen = HashSet::new();
    all.filter(|configuration| seen.insert(*configuration)).collect()
}

/// What a kernel is found by.
pub(super) type Key = [u8; 32];

/// What NVRTC makes of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Machine code for this very architecture, 90 for 9.0.
    Machine(i32),
    /// PTX, which the driver translates: for a device newer than NVRTC knows, or a driver older than NVRTC.
    Ptx(i32),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block has as much shared memory as the policy has counted, up to all that there is: but for one flag, which the policy knows of,
    /// none is declared beside it.
    #[test]
    fn kernels_declare_no_shared_memory_beside_what_is_counted() {
        let programs = [
            Program::Forward,
            Program::Bulk,
            Program::Relay,
            Program::Chunks,
            Program::Adjoints,
            Program::Backward,
        ];
        for (name, source) in programs.map(Program::source).iter().chain(HEADERS) {
            let declared = source.lines().filter(|line| line.contains("__shared__"));
            let beside = Vec::from_iter(declared.filter(|line| !line.trim_start().starts_with("extern")));
            let known = if *name == c"backward.cu" { vec!["  __shared__ bool walks;"] } else { Vec::new() };
            assert_eq!(beside, known, "{name:?}");
        }
    }
}

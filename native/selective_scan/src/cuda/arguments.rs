//! What kernels are told.

use cudarc::driver::sys::CUdeviceptr;

use super::policy::{Layout, Units};
use super::workspace::Packing;
use crate::{ElementType, Inputs, Problem, Projection};

/// `Arguments` of arguments.cuh, field by field; addresses are 0 where there is none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arguments {
    pub(super) x: CUdeviceptr,
    pub(super) dt: CUdeviceptr,
    pub(super) a: CUdeviceptr,
    pub(super) b: CUdeviceptr,
    pub(super) c: CUdeviceptr,
    pub(super) d: CUdeviceptr,
    pub(super) z: CUdeviceptr,
    pub(super) dt_bias: CUdeviceptr,
    pub(super) initial_state: CUdeviceptr,
    pub(super) seq_idx: CUdeviceptr,
    pub(super) dy: CUdeviceptr,
    pub(super) dfinal_state: CUdeviceptr,

    pub(super) y: CUdeviceptr,
    pub(super) final_state: CUdeviceptr,
    pub(super) dx: CUdeviceptr,
    pub(super) ddt: CUdeviceptr,
    pub(super) dz: CUdeviceptr,
    pub(super) db: CUdeviceptr,
    pub(super) dc: CUdeviceptr,
    pub(super) da: CUdeviceptr,
    pub(super) dd: CUdeviceptr,
    pub(super) ddt_bias: CUdeviceptr,
    pub(super) dinitial_state: CUdeviceptr,

    pub(super) marks: CUdeviceptr,
    pub(super) chunk_resets: CUdeviceptr,
    pub(super) adjoint_resets: CUdeviceptr,
    pub(super) chunk_states: CUdeviceptr,
    pub(super) adjoint_ends: CUdeviceptr,
    pub(super) segment_adjoints: CUdeviceptr,
    pub(super) boundary_states: CUdeviceptr,
    pub(super) delta_sums: CUdeviceptr,
    pub(super) decays: CUdeviceptr,
    pub(super) y_sum: CUdeviceptr,
    pub(super) dx_sum: CUdeviceptr,
    pub(super) ddt_sum: CUdeviceptr,
    pub(super) dz_sum: CUdeviceptr,
    pub(super) db_parts: CUdeviceptr,
    pub(super) dc_parts: CUdeviceptr,
    pub(super) db_sum: CUdeviceptr,
    pub(super) dc_sum: CUdeviceptr,
    pub(super) da_parts: CUdeviceptr,
    pub(super) db_constant_parts: CUdeviceptr,
    pub(super) dc_constant_parts: CUdeviceptr,
    pub(super) dd_parts: CUdeviceptr,
    pub(super) ddt_bias_parts: CUdeviceptr,
    pub(super) db_constant: CUdeviceptr,
    pub(super) dc_constant: CUdeviceptr,

    pub(super) batch: i64,
    pub(super) seq: i64,
    pub(super) dim: i64,
    pub(super) state: i64,
    pub(super) groups_b: i64,
    pub(super) groups_c: i64,
    pub(super) unit: i64,
    pub(super) units: i64,
    pub(super) blocks_per_unit: i64,
    pub(super) first_block: i64,
    pub(super) rows_per_block: i64,
    pub(super) segment: i64,
    pub(super) segments: i64,
    pub(super) adjoint_chunk: i64,
    pub(super) adjoint_chunks: i64,
    pub(super) piece_first: i64,
    pub(super) piece_frames: i64,
    pub(super) parts_row: i64,
    pub(super) parts_segment: i64,
    pub(super) last_parts: i64,
    pub(super) first_state: i64,
    pub(super) chunk: i64,
    pub(super) chunks: i64,
    pub(super) chunk_states_width: i64,
    pub(super) chunk_states_first: i64,
    pub(super) boundary_interval: i64,
    pub(super) boundary_count: i64,

    pub(super) dt_limit_min: RealBits,
    pub(super) dt_limit_max: RealBits,
    pub(super) scale: f32,
    pub(super) reverse: i32,
    pub(super) first_sweep: i32,
    pub(super) last_sweep: i32,
    pub(super) accumulate: i32,
    pub(super) last_direction: i32,
    pub(super) first_direction: i32,
    pub(super) sums_go_on: i32,

    pub(super) tiles_per_block: i64,
    pub(super) handed_states: CUdeviceptr,
    pub(super) handed: CUdeviceptr,
    pub(super) token: u64,

    pub(super) last_piece_first: i64,
    pub(super) last_piece_frames: i64,
}

/// A real, in the first of 8 bytes.
type RealBits = u64;

/// A number as the kernels of a problem compute with it.
fn real_bits(problem: &Problem, value: f64) -> RealBits {
    match problem.element.state_type() {
        ElementType::F64 => value.to_bits(),
        _ => (value as f32).to_bits().into(),
    }
}

impl Arguments {
    pub(super) fn of(problem: &Problem, inputs: &Inputs<CUdeviceptr>) -> Self {
        let groups = |projection: Projection| projection.groups().unwrap_or(1) as i64;
        let limits = problem.dt_limit.unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
        let [dt_limit_min, dt_limit_max] = limits.map(|limit| real_bits(problem, limit));
        Self {
            x: inputs.x,
            dt: inputs.dt,
            a: inputs.a,
            b: inputs.b,
            c: inputs.c,
            d: inputs.d.unwrap_or(0),
            z: inputs.z.unwrap_or(0),
            dt_bias: inputs.dt_bias.unwrap_or(0),
            initial_state: inputs.initial_state.unwrap_or(0),
            seq_idx: inputs.seq_idx.unwrap_or(0),
            batch: problem.batch as i64,
            seq: problem.seq as i64,
            dim: problem.dim as i64,
            state: problem.state as i64,
            groups_b: groups(problem.b),
            groups_c: groups(problem.c),
            rows_per_block: 1,
            dt_limit_min,
            dt_limit_max,
            scale: if problem.bidirectional { 0.5 } else { 1.0 },
            ..Self::default()
        }
    }

    /// Sets what a plan decides for all its kernels; how each deals its channels is set by `deal`.
    pub(super) fn lay_out(&mut self, layout: &Layout, chunk: usize, chunks: usize) {
        self.chunk = chunk as i64;
        self.chunks = chunks as i64;
        self.chunk_states_width = layout.slots() as i64;
    }

    /// Sets how channels are dealt to the blocks of a walk in this layout.
    pub(super) fn deal(&mut self, problem: &Problem, layout: &Layout) {
        let Units { unit, blocks } = Units::of(problem, layout);
        self.unit = unit as i64;
        self.units = self.dim / self.unit;
        self.blocks_per_unit = blocks as i64;
    }
}

/// Shapes and sizes that both passes reckon with.
pub(super) struct Sizes {
    pub(super) real: usize,
    pub(super) state: usize,
    /// Whether sequences are stored in the type of computation: partial sums then lie in the output itself.
    pub(super) exact: bool,
}

impl Sizes {
    pub(super) fn of(problem: &Problem) -> Self {
        let real = problem.element.state_type().size();
        Self {
            real,
            state: real * problem.components(),
            exact: matches!(problem.element, ElementType::F32 | ElementType::F64),
        }
    }
}

/// One sweep over time: a direction and a range of states.
pub(super) struct Sweep {
    pub(super) direction: usize,
    pub(super) first_state: usize,
    /// Whether sums of this range of states have another direction in them already.
    pub(super) again: bool,
    pub(super) first: bool,
    pub(super) last: bool,
}

/// How many sweeps over a problem there are: one for each range of states in each direction.
pub(super) fn sweep_count(problem: &Problem, slots: usize) -> usize {
    problem.state.div_ceil(slots) * problem.directions()
}

/// What each of them walks over.
pub(super) fn sweeps(problem: &Problem, slots: usize) -> Vec<Sweep> {
    let directions = problem.directions();
    let count = sweep_count(problem, slots);
    let sweep = |k: usize| Sweep {
        direction: k % directions,
        first_state: k / directions * slots,
        again: !k.is_multiple_of(directions),
        first: k == 0,
        last: k + 1 == count,
    };
    (0..count).map(sweep).collect()
}

impl Arguments {
    /// Sets what a sweep decides. The final state is that of the first direction.
    pub(super) fn set_sweep(&mut self, problem: &Problem, sweep: &Sweep, packings: &[Packing; 2]) {
        self.reverse = i32::from(problem.reverse != (sweep.direction == 1));
        self.first_state = sweep.first_state as i64;
        self.first_sweep = i32::from(sweep.first);
        self.last_sweep = i32::from(sweep.last);
        self.accumulate = i32::from(sweep.again);
        self.last_direction = i32::from(sweep.direction + 1 == problem.directions());
        self.first_direction = i32::from(sweep.direction == 0);
        self.marks = packings[sweep.direction].marks;
        self.chunk_resets = packings[sweep.direction].chunk_resets;
        self.adjoint_resets = packings[sweep.direction].adjoint_resets;
    }

    /// The same with adjoint chunks for chunks.
    pub(super) fn over_adjoint_chunks(&self) -> Self {
        // As what they add is kept in a gradient, so are their decays, or the sums of Δ that say these.
        let (delta_sums, decays) = match self.adjoint_ends == self.dx {
            true => (self.ddt, self.ddt),
            false => (self.delta_sums, self.decays),
        };
        Self {
            chunk: self.adjoint_chunk,
            chunks: self.adjoint_chunks,
            chunk_resets: self.adjoint_resets,
            delta_sums,
            decays,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    #[test]
    fn arguments_are_those_of_the_kernels() {
        let source = include_str!("../../kernels/arguments.cuh");
        let fields = source.split("struct Arguments {").nth(1).and_then(|rest| rest.split("\n};").next());
        let code =
            |line: &str| line.split("//").next().unwrap_or_default().trim().trim_end_matches(';').to_owned();
        let lines = fields.expect("the struct").lines().map(code).filter(|line| !line.is_empty());
        let theirs: Vec<_> =
            lines.map(|line| line.rsplit([' ', '*']).next().unwrap_or_default().to_owned()).collect();
        let shown = format!("{:?}", Arguments::default());
        let ours: Vec<_> = shown
            .trim_start_matches("Arguments { ")
            .split(", ")
            .filter_map(|field| field.split(':').next())
            .collect();
        assert_eq!(ours, theirs);
    }
}

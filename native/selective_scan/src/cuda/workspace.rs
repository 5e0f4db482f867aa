//! What a pass carries from kernel to kernel: how much memory that is, and where in it each lies.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use cudarc::driver::sys::CUdeviceptr;

use super::arguments::{Arguments, Sizes, sweep_count};
use super::launch::Pass;
use super::policy::{
    BackwardPlan, ForwardPlan, Pieces, Relay, StatesPlan, decay_by_sum, finds_marks, is_constant,
};
use crate::{Problem, Projection};

/// Hands out a workspace piece by piece; from address 0, it only measures.
pub(super) struct Workspace {
    base: CUdeviceptr,
    used: usize,
}

impl Workspace {
    const ALIGNMENT: usize = 256;

    pub(super) fn new(base: CUdeviceptr) -> Self {
        Self { base, used: 0 }
    }

    /// Bytes handed out so far.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    fn take(&mut self, bytes: usize) -> CUdeviceptr {
        let address = self.base + self.used as CUdeviceptr;
        self.used += bytes.next_multiple_of(Self::ALIGNMENT);
        address
    }

    fn take_if(&mut self, wanted: bool, bytes: usize) -> CUdeviceptr {
        if wanted { self.take(bytes) } else { 0 }
    }

    /// Where sums gather that end in `output`: there, or in so many bytes of their own where it is rounded.
    fn gather(&mut self, sizes: &Sizes, output: CUdeviceptr, bytes: usize) -> CUdeviceptr {
        if sizes.exact { output } else { self.take_if(bytes > 0, bytes) }
    }
}

/// Marks of packed rows, for each direction of a problem.
#[derive(Clone, Copy, Default)]
pub(super) struct Packing {
    pub(super) marks: CUdeviceptr,
    pub(super) chunk_resets: CUdeviceptr,
    pub(super) adjoint_resets: CUdeviceptr,
}

/// Room for the marks of rows of so many chunks, where the kernels do not find them by themselves.
fn packings(problem: &Problem, chunks: usize, adjoint_chunks: usize, at: &mut Workspace) -> [Packing; 2] {
    let mut packing = |wanted: bool| Packing {
        marks: at.take_if(wanted, problem.batch * problem.seq),
        chunk_resets: at.take_if(wanted && chunks > 1, problem.batch * chunks),
        adjoint_resets: at.take_if(wanted && adjoint_chunks > 1, problem.batch * adjoint_chunks),
    };
    let wanted = problem.seq_idx && !finds_marks(chunks);
    [packing(wanted), packing(wanted && problem.bidirectional)]
}

impl Arguments {
    /// Takes memory for the states before so many chunks, each of so many slots, and for the decays of the chunks (ΣΔ, or products of a).
    /// Once the states have been found, the same memory serves the decays of so many adjoint chunks.
    fn lay_out_chunk_states(
        &mut self,
        problem: &Problem,
        (chunks, slots): (usize, usize),
        (adjoint_chunks, slots_of_adjoints): (usize, usize),
        at: &mut Workspace,
    ) {
        let sizes = Sizes::of(problem);
        let by_sum = decay_by_sum(problem);
        let (states, adjoints) = (chunks * slots, adjoint_chunks * slots_of_adjoints);
        self.chunk_states = at.take(states * sizes.state);
        self.delta_sums = at.take_if(by_sum, chunks.max(adjoint_chunks) * sizes.real);
        self.decays = at.take_if(!by_sum, states.max(adjoints) * sizes.state);
    }

    /// Sets what blocks of relay.cu that share strips walk, and where they hand states on.
    fn lay_out_relay(&mut self, problem: &Problem, relay: &Relay, at: &mut Workspace) {
        let Relay { layout, pieces, .. } = relay;
        if let Some(Pieces { blocks, tiles_per_block }) = *pieces {
            self.tiles_per_block = tiles_per_block as i64;
            self.handed_states =
                at.take(blocks * layout.channels * layout.slots() * Sizes::of(problem).state);
            self.handed = at.take(blocks * size_of::<u64>());
            self.token = *TOKEN;
        }
    }
}

/// What says of states that they have been handed on: never 0, and nothing that anybody else would write.
static TOKEN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()) | 1);

/// Bytes of the sums of a sequence over sweeps of so many states, if there are several.
fn sums_of_sequence(problem: &Problem, slots: usize) -> usize {
    let several = sweep_count(problem, slots) > 1;
    if several { problem.batch * problem.seq * problem.dim * Sizes::of(problem).real } else { 0 }
}

/// Sets the addresses of what the forward pass carries from kernel to kernel.
pub(super) fn lay_out_forward(
    problem: &Problem,
    plan: &ForwardPlan,
    at: &mut Workspace,
    arguments: &mut Arguments,
) -> [Packing; 2] {
    let sizes = Sizes::of(problem);
    let slots = plan.layout.slots();
    let chunks = if plan.chunks > 1 { problem.batch * plan.chunks * problem.dim } else { 0 };
    arguments.lay_out_chunk_states(problem, (chunks, slots), (0, 0), at);
    if let Some(relay) = &plan.relay {
        arguments.lay_out_relay(problem, relay, at);
    }
    arguments.y_sum = at.gather(&sizes, arguments.y, sums_of_sequence(problem, slots));
    packings(problem, plan.chunks, 1, at)
}

/// What lies in the workspace of the backward pass, beside what the arguments say.
pub(super) struct Workplace {
    pub(super) packings: [Packing; 2],
    /// Sweeps that walk a piece one after the other, each with so many bytes of gradients at the edges of its own.
    pub(super) together: usize,
    pub(super) bytes_each: usize,
    /// Bytes of all but what gathers over the sweeps; and, of these, of what a piece leaves to be reduced.
    pub(super) carried: usize,
    pub(super) of_piece: usize,
}

/// States of a row of those at the boundaries.
fn chunk_states_width(problem: &Problem, plan: &BackwardPlan) -> usize {
    match plan.states {
        StatesPlan::Forward { .. } => problem.state,
        StatesPlan::Summaries(layout) => layout.slots(),
    }
}

/// Sets the addresses of what the backward pass carries from kernel to kernel.
pub(super) fn lay_out_backward(
    problem: &Problem,
    plan: &BackwardPlan,
    pass: Pass,
    at: &mut Workspace,
    arguments: &mut Arguments,
) -> Workplace {
    lay_out_sweeps(problem, plan, pass, plan.sweeps_together(problem, pass), at, arguments)
}

/// What that comes to if so many sweeps walk `together`.
pub(super) fn measure_backward(
    problem: &Problem,
    plan: &BackwardPlan,
    pass: Pass,
    together: usize,
) -> Workplace {
    lay_out_sweeps(problem, plan, pass, together, &mut Workspace::new(0), &mut Arguments::default())
}

fn lay_out_sweeps(
    problem: &Problem,
    plan: &BackwardPlan,
    pass: Pass,
    together: usize,
    at: &mut Workspace,
    arguments: &mut Arguments,
) -> Workplace {
    let sizes = Sizes::of(problem);
    let slots = plan.layout.slots();
    let own_states = plan.chunks > 1 && pass == Pass::Backward;
    let chunks = if own_states { problem.batch * plan.chunks * problem.dim } else { 0 };
    let edges = problem.batch * plan.segments * problem.dim;
    let side_by_side = match plan.segments {
        1 => 0,
        _ if plan.joins_adjoints => problem.batch * plan.adjoint_chunks(problem) * problem.dim,
        _ => edges,
    };
    let width = chunk_states_width(problem, plan);
    arguments.chunk_states_width = width as i64;
    arguments.lay_out_chunk_states(problem, (chunks, width), (side_by_side, slots), at);
    if let StatesPlan::Forward { relay: Some(relay), .. } = &plan.states
        && own_states
    {
        arguments.lay_out_relay(problem, relay, at);
    }
    let bytes_each = edges * slots * sizes.state;
    arguments.segment_adjoints = at.take_if(plan.hands_on(), together * bytes_each);
    arguments.adjoint_ends = at.take_if(plan.joins_adjoints, side_by_side * slots * sizes.state);

    let parts = problem.batch.div_ceil(plan.rows_per_block) * plan.segments * problem.dim;
    let of_states = parts * slots * sizes.state;
    if !plan.da_borrows {
        arguments.da_parts = at.take(of_states);
    }
    arguments.dd_parts = at.take_if(problem.d, parts * sizes.real);
    arguments.ddt_bias_parts = at.take_if(problem.dt_bias, parts * sizes.real);
    let constants = problem.dim * problem.state * sizes.state;
    let mut sums = |projection: Projection, gradient| match is_constant(projection) {
        true => [at.take(of_states), at.gather(&sizes, gradient, constants)],
        false => [0, 0],
    };
    [arguments.db_constant_parts, arguments.db_constant] = sums(problem.b, arguments.db);
    [arguments.dc_constant_parts, arguments.dc_constant] = sums(problem.c, arguments.dc);

    let frames = (plan.segments - 1) * plan.piece + plan.last_in_workspace(problem);
    let of_frames = problem.batch * frames * plan.contributions(problem) * slots * sizes.state;
    let (before, sums_of_pieces) = (at.used, at.take(0));
    arguments.db_parts = at.take_if(!is_constant(problem.b), of_frames);
    arguments.dc_parts = at.take_if(!is_constant(problem.c), of_frames);
    if plan.da_borrows && plan.has_pieces() {
        arguments.da_parts = sums_of_pieces;
        at.take(of_states.saturating_sub(at.used - before));
    }
    let of_piece = at.used - before;
    let packings = packings(problem, plan.chunks, plan.adjoint_chunks(problem), at);
    let carried = at.used;

    let sequence = sums_of_sequence(problem, slots);
    arguments.dx_sum = at.gather(&sizes, arguments.dx, sequence);
    arguments.ddt_sum = at.gather(&sizes, arguments.ddt, sequence);
    arguments.dz_sum = at.gather(&sizes, arguments.dz, if problem.z { sequence } else { 0 });
    let frames = if problem.bidirectional { problem.batch * problem.seq } else { 0 };
    let mut sums = |projection: Projection, gradient| match projection.groups() {
        Some(groups) => at.gather(&sizes, gradient, groups * frames * problem.state * sizes.state),
        None => 0,
    };
    arguments.db_sum = sums(problem.b, arguments.db);
    arguments.dc_sum = sums(problem.c, arguments.dc);
    Workplace { packings, together, bytes_each, carried, of_piece }
}

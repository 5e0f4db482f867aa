//! The launches of the backward pass.

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::arguments::{Arguments, Sizes, Sweep, sweeps};
use super::device::Device;
use super::launch::{
    Blocks, Boundaries, Find, Kernel, Launcher, Pass, Wanted, alignment, blocks_of, boundary_states_of,
    check_inputs, check_presence, walking_blocks,
};
use super::policy::{
    Alignment, BackwardPlan, Chunks, Configurations, Layout, Piece, Properties, ROW_THREADS, Relay, Share,
    StatesPlan, groups,
};
use super::workspace::{Workplace, Workspace, lay_out_backward};
use crate::{Error, Gradients, Inputs, OutputGradients, Problem};

/// What finds the states at the boundaries of chunks from the inputs.
enum States<K> {
    /// The forward pass, which keeps them, by relay.cu or forward.cu; its outputs go where the gradient of x will be.
    Forward { relay: Option<Relay>, kernel: K },
    /// Summaries of the chunks.
    Summaries(Boundaries<K>),
}

pub(super) struct BackwardKernels<K> {
    backward: K,
    reduce: K,
    round_constants: K,
    marks: Option<K>,
    states: Option<States<K>>,
    adjoints: Option<Boundaries<K>>,
}

impl BackwardKernels<Wanted> {
    pub(super) fn wanted(
        properties: &Properties,
        problem: &Problem,
        plan: &BackwardPlan,
        pass: Pass,
        alignment: Alignment,
    ) -> Self {
        let of = |layout| Configurations::new(problem, layout, alignment, *properties);
        let configurations = of(plan.layout);
        let states = || match plan.states {
            StatesPlan::Forward { layout, relay } => {
                let relay = relay.filter(|_| configurations.aligned_for_bulk());
                let kernel = match relay {
                    Some(relay) => Wanted::new(of(relay.layout).relay(&relay), c"scan_relay"),
                    None => Wanted::new(of(layout).forward(1), c"scan_forward"),
                };
                States::Forward { relay, kernel }
            }
            StatesPlan::Summaries(layout) => {
                States::Summaries(Boundaries::of(&of(layout), Chunks::OfBackward, false))
            }
        };
        let reduce = configurations.reduce();
        let of_reduce = |name| Wanted::new(reduce, name);
        Self {
            backward: Wanted::new(configurations.backward(plan), c"scan_backward"),
            reduce: of_reduce(c"scan_reduce"),
            round_constants: of_reduce(c"scan_round_constants"),
            marks: Wanted::marks(&configurations, plan.chunks),
            states: (plan.chunks > 1 && pass == Pass::Backward).then(states),
            adjoints: (plan.segments > 1)
                .then(|| Boundaries::of(&configurations, Chunks::OfAdjoints, plan.joins_adjoints)),
        }
    }

    pub(super) fn try_map<K, E>(self, f: &mut Find<'_, K, E>) -> Result<BackwardKernels<K>, E> {
        Ok(BackwardKernels {
            backward: f(self.backward)?,
            reduce: f(self.reduce)?,
            round_constants: f(self.round_constants)?,
            marks: self.marks.map(&mut *f).transpose()?,
            states: match self.states {
                Some(States::Forward { relay, kernel }) => {
                    Some(States::Forward { relay, kernel: f(kernel)? })
                }
                Some(States::Summaries(states)) => Some(States::Summaries(states.try_map(f)?)),
                None => None,
            },
            adjoints: self.adjoints.map(|adjoints| adjoints.try_map(f)).transpose()?,
        })
    }
}

impl BackwardKernels<Kernel> {
    /// Finds the states at the boundaries of chunks, where they were not kept, and the gradients at those of segments.
    fn find_edges(
        &self,
        launcher: &Launcher<'_>,
        problem: &Problem,
        arguments: &Arguments,
    ) -> Result<(), Error> {
        match &self.states {
            Some(States::Forward { relay, kernel }) => {
                let arguments = arguments.keeping_states(problem, &kernel.configuration.layout);
                let blocks = match relay {
                    Some(relay) => blocks_of(&Share::of_relay(*relay), &arguments),
                    None => walking_blocks(&arguments),
                };
                launcher.launch("forward", *kernel, blocks, problem, &arguments)?;
            }
            Some(States::Summaries(states)) => states.find(launcher, problem, arguments)?,
            None => {}
        }
        match &self.adjoints {
            Some(adjoints) => adjoints.find(launcher, problem, &arguments.over_adjoint_chunks()),
            None => Ok(()),
        }
    }

    /// Walks a piece of every segment, and reduces the sums that it leaves.
    fn walk_piece(
        &self,
        launcher: &Launcher<'_>,
        problem: &Problem,
        plan: &BackwardPlan,
        piece: &Piece,
        mut arguments: Arguments,
    ) -> Result<(), Error> {
        arguments.lay_out_parts(problem, plan, piece);
        let blocks = Blocks {
            of_row: plan.segments * plan.contributions(problem),
            rows: problem.batch.div_ceil(plan.rows_per_block),
        };
        launcher.launch("backward", self.backward, blocks, problem, &arguments)?;

        let reduce = &self.reduce.configuration;
        let varying: Vec<_> = groups(problem).collect();
        let rows = problem.batch * plan.segments * piece.frames.max(piece.last_frames);
        let components = plan.layout.slots() * problem.components();
        let packs = rows * varying.iter().sum::<usize>() * components / reduce.vector;
        let of_states = [arguments.da_parts, arguments.db_constant_parts, arguments.dc_constant_parts];
        let of_channels = [arguments.dd_parts, arguments.ddt_bias_parts];
        let blocks_of = |parts: &[CUdeviceptr], columns: usize, each: usize| {
            let count = parts.iter().filter(|&&parts| parts != 0).count();
            count * columns.div_ceil(ROW_THREADS * each)
        };
        let of_parameters = blocks_of(&of_states, problem.dim * components, reduce.vector)
            + blocks_of(&of_channels, problem.dim, 1);
        let with_parameters = piece.first == 0 || arguments.sums_go_on == 0;
        let of_projections = (packs * reduce.sharers).div_ceil(reduce.threads());
        match of_projections + if with_parameters { of_parameters } else { 0 } {
            0 => Ok(()),
            blocks => launcher.launch("reduction", self.reduce, Blocks::in_line(blocks), problem, &arguments),
        }
    }
}

impl Arguments {
    /// Those of a forward pass over the same problem that keeps its states at the boundaries.
    fn keeping_states(&self, problem: &Problem, layout: &Layout) -> Self {
        let mut forward = Self { y: self.dx, boundary_states: self.chunk_states, final_state: 0, ..*self };
        forward.lay_out(layout, problem.seq, 1);
        forward.deal(problem, layout);
        forward.boundary_interval = self.chunk;
        forward.boundary_count = self.chunks;
        forward
    }

    /// Those of one of the sweeps that walk together: the gradients that it carries from piece to piece are its own.
    fn of_sweep(&self, sweep: usize, bytes_each: usize) -> Self {
        let own = |base| if base == 0 { 0 } else { base + (sweep * bytes_each) as CUdeviceptr };
        Self { segment_adjoints: own(self.segment_adjoints), ..*self }
    }

    /// Sets for how many frames the adjoints alone are walked, and where it is kept what these add: where blocks join it, in memory of
    /// its own; else in the gradient of x, which is written later, or with what segments carry, where it does for one of each.
    fn lay_out_adjoints(&mut self, problem: &Problem, plan: &BackwardPlan, in_gradients: bool) {
        let frames = plan.adjoint_frames(in_gradients);
        self.adjoint_chunk = frames as i64;
        self.adjoint_chunks = problem.seq.div_ceil(frames) as i64;
        if !plan.joins_adjoints {
            self.adjoint_ends = if in_gradients { self.dx } else { self.segment_adjoints };
        }
    }

    /// Sets what a launch covers, and where its sums wait: those of dB and dC in the workspace, where they are so far, or in the
    /// gradients of the frames of their own segment that are walked later; those of dA, if they borrow, as [`BackwardPlan`] says.
    fn lay_out_parts(&mut self, problem: &Problem, plan: &BackwardPlan, piece: &Piece) {
        self.piece_first = piece.first as i64;
        self.piece_frames = piece.frames as i64;
        self.last_piece_first = piece.last_first as i64;
        self.last_piece_frames = piece.last_frames as i64;
        if plan.da_borrows && piece.first == 0 {
            // Gradients that are handed on no more: a thread writes where it has read its own.
            self.da_parts = self.segment_adjoints;
        }
        let (size, real) = (problem.element.size(), Sizes::of(problem).real);
        if piece.in_gradients {
            let frame = (problem.dim * size / real) as i64;
            let (before_last, segment) = ((plan.segments - 1) * plan.segment, plan.segment as i64 * frame);
            self.parts_row = self.seq * frame;
            // Of frames seq − 1 − i, those with the lowest i are the last.
            let (step, last, start) = match self.reverse {
                0 => (segment, before_last as i64, 0),
                _ => {
                    let last = piece.first as i64 - (before_last + piece.last_first) as i64;
                    (-segment, last, (problem.seq - piece.first) * problem.dim * size)
                }
            };
            (self.parts_segment, self.last_parts) = (step, last * frame);
            let wait_in = |parts: &mut CUdeviceptr, gradient| {
                if *parts != 0 {
                    *parts = gradient + start as CUdeviceptr;
                }
            };
            wait_in(&mut self.db_parts, self.dx);
            wait_in(&mut self.dc_parts, self.ddt);
        } else {
            let frame = plan.contributions(problem) * plan.layout.slots() * problem.components();
            self.parts_segment = (piece.frames * frame) as i64;
            self.last_parts = (plan.segments as i64 - 1) * self.parts_segment;
            self.parts_row = self.last_parts + (piece.last_frames * frame) as i64;
        }
    }
}

impl Device {
    /// Enqueues the backward pass on a stream of this device's primary context, without waiting. `boundary_states` are
    /// those of the forward pass over the same problem and inputs, where it kept them.
    ///
    /// # Safety
    ///
    /// As for [`Device::enqueue_forward`]; each gradient has the size of the input of its name and overlaps nothing else:
    /// those of x and dt hold other values until the pass is over.
    #[allow(clippy::too_many_arguments, reason = "each is a tensor set of the operation")]
    pub unsafe fn enqueue_backward(
        &self,
        stream: CUstream,
        problem: &Problem,
        inputs: Inputs<CUdeviceptr>,
        output_gradients: OutputGradients<CUdeviceptr>,
        gradients: Gradients<CUdeviceptr>,
        boundary_states: Option<CUdeviceptr>,
        workspace: CUdeviceptr,
    ) -> Result<(), Error> {
        check_inputs(problem, &inputs)?;
        check_presence(&[
            ("d", problem.d, gradients.d.is_some()),
            ("z", problem.z, gradients.z.is_some()),
            ("dt_bias", problem.dt_bias, gradients.dt_bias.is_some()),
        ])?;
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        let launcher = unsafe { Launcher::new(self, stream) };
        let pass = match boundary_states {
            Some(_) => Pass::BackwardFromBoundaryStates,
            None => Pass::Backward,
        };
        let sequences = [output_gradients.dy, gradients.x, gradients.dt, gradients.z.unwrap_or(0)];
        let states = [output_gradients.dfinal_state, gradients.initial_state, boundary_states];
        let alignment = alignment(&inputs, &sequences, &states);
        let aligned = alignment.sequences == 16;
        let plan = self.properties().backward(problem, aligned);
        let kernels = BackwardKernels::wanted(&self.properties(), problem, &plan, pass, alignment)
            .try_map(&mut |wanted| self.kernel(wanted))?;
        let sizes = Sizes::of(problem);
        let slots = plan.layout.slots();

        let mut arguments = Arguments::of(problem, &inputs);
        arguments.lay_out(&plan.layout, plan.chunk, plan.chunks);
        arguments.deal(problem, &plan.layout);
        arguments.segment = plan.segment as i64;
        arguments.segments = plan.segments as i64;
        arguments.rows_per_block = plan.rows_per_block as i64;
        arguments.dy = output_gradients.dy;
        arguments.dfinal_state = output_gradients.dfinal_state.unwrap_or(0);
        arguments.dx = gradients.x;
        arguments.ddt = gradients.dt;
        arguments.da = gradients.a;
        arguments.db = gradients.b;
        arguments.dc = gradients.c;
        arguments.dd = gradients.d.unwrap_or(0);
        arguments.dz = gradients.z.unwrap_or(0);
        arguments.ddt_bias = gradients.dt_bias.unwrap_or(0);
        arguments.dinitial_state = gradients.initial_state.unwrap_or(0);
        let Workplace { packings, together, bytes_each, .. } =
            lay_out_backward(problem, &plan, pass, &mut Workspace::new(workspace), &mut arguments);
        arguments.sums_go_on = i32::from(together == 1 && !plan.da_borrows);
        let in_gradients = plan.adjoints_wait_in_gradients(problem, together, aligned);

        let of_each = |(k, sweep): (usize, &Sweep)| {
            let mut arguments = arguments.of_sweep(k % together, bytes_each);
            arguments.set_sweep(problem, sweep, &packings);
            arguments.lay_out_adjoints(problem, &plan, in_gradients);
            if let Some(base) = boundary_states {
                arguments.chunk_states = boundary_states_of(sweep, problem, base);
                arguments.chunk_states_width = problem.state as i64;
                arguments.chunk_states_first = sweep.first_state as i64;
            }
            arguments
        };
        let sweeps: Vec<_> = sweeps(problem, slots).iter().enumerate().map(of_each).collect();
        if let Some(marks) = kernels.marks {
            launcher.mark(problem, marks, &sweeps[0], &packings)?;
        }
        for (k, sweeps) in sweeps.chunks(together).enumerate() {
            for arguments in sweeps {
                kernels.find_edges(&launcher, problem, arguments)?;
            }
            for piece in plan.pieces(problem, k == 0, aligned) {
                for arguments in sweeps {
                    kernels.walk_piece(&launcher, problem, &plan, &piece, *arguments)?;
                }
            }
        }
        if !sizes.exact && (arguments.db_constant != 0 || arguments.dc_constant != 0) {
            let elements = problem.dim * problem.state * problem.components();
            launcher.launch(
                "rounding",
                kernels.round_constants,
                Blocks::in_line(elements.div_ceil(kernels.round_constants.configuration.threads())),
                problem,
                &arguments,
            )?;
        }
        Ok(())
    }
}

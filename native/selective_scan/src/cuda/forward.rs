//! The launches of the forward pass.

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::arguments::{Arguments, sweeps};
use super::device::Device;
use super::launch::{
    Boundaries, Find, Launcher, Wanted, alignment, blocks_of, boundary_states_of, check_inputs,
};
use super::policy::{
    Alignment, Chunks, Configurations, ForwardPlan, Properties, Relay, Share, boundary_interval,
};
use super::workspace::{Workspace, lay_out_forward};
use crate::{Error, Inputs, Outputs, Problem};

pub(super) struct ForwardKernels<K> {
    /// What walks in each direction.
    directions: Vec<Direction<K>>,
    /// States of a sweep.
    slots: usize,
    /// The frames of a chunk, and the chunks of a row.
    chunk: usize,
    chunks: usize,
    marks: Option<K>,
}

struct Direction<K> {
    /// What walks the rows, one share of all blocks beside the other.
    shares: Vec<(Share, K)>,
    boundaries: Option<Boundaries<K>>,
}

impl ForwardKernels<Wanted> {
    pub(super) fn wanted(
        properties: &Properties,
        problem: &Problem,
        plan: &ForwardPlan,
        alignment: Alignment,
    ) -> Self {
        let of = |layout| Configurations::new(problem, layout, alignment, *properties);
        let configurations = of(plan.layout);
        let is_aligned = configurations.aligned_for_bulk();
        let relay = plan.relay.filter(|_| is_aligned);
        let bulk = plan.bulk.filter(|_| is_aligned && relay.is_none());
        let (slots, chunk, chunks) = match relay {
            Some(relay) => (relay.layout.slots(), problem.seq, 1),
            None => (plan.layout.slots(), plan.chunk, plan.chunks),
        };
        let direction = |direction: usize| {
            let of = |layout| of(layout).in_direction(direction);
            let relayed = |relay: Relay| {
                let configuration = of(relay.layout).relay(&relay);
                (Share::of_relay(relay), Wanted::new(configuration, c"scan_relay"))
            };
            let copied = |share: Share| {
                let bulk = of(share.layout).bulk(chunks, share.in_line.is_some());
                (share, Wanted::new(bulk, c"scan_bulk"))
            };
            let forward = of(plan.layout).forward(chunks);
            Direction {
                shares: match (relay, bulk) {
                    (Some(relay), _) => vec![relayed(relay)],
                    (None, Some(bulk)) => bulk.shares(problem).into_iter().map(copied).collect(),
                    (None, None) => vec![(Share::all(plan.layout), Wanted::new(forward, c"scan_forward"))],
                },
                boundaries: (chunks > 1)
                    .then(|| Boundaries::of(&of(plan.layout), Chunks::OfForward, forward.joins)),
            }
        };
        Self {
            directions: (0..problem.directions()).map(direction).collect(),
            slots,
            chunk,
            chunks,
            marks: if relay.is_some() { None } else { Wanted::marks(&configurations, chunks) },
        }
    }

    pub(super) fn try_map<K, E>(self, f: &mut Find<'_, K, E>) -> Result<ForwardKernels<K>, E> {
        Ok(ForwardKernels {
            directions: self
                .directions
                .into_iter()
                .map(|direction| direction.try_map(f))
                .collect::<Result<_, E>>()?,
            slots: self.slots,
            chunk: self.chunk,
            chunks: self.chunks,
            marks: self.marks.map(f).transpose()?,
        })
    }
}

impl Direction<Wanted> {
    fn try_map<K, E>(self, f: &mut Find<'_, K, E>) -> Result<Direction<K>, E> {
        Ok(Direction {
            shares: self
                .shares
                .into_iter()
                .map(|(share, kernel)| Ok((share, f(kernel)?)))
                .collect::<Result<_, E>>()?,
            boundaries: self.boundaries.map(|boundaries| boundaries.try_map(f)).transpose()?,
        })
    }
}

impl Device {
    /// Enqueues the forward pass on a stream of this device's primary context, without waiting.
    ///
    /// With `boundary_states`, the states that the backward pass begins its chunks with are kept there.
    ///
    /// # Safety
    ///
    /// Each address stands for device memory of [`Problem::bytes`] of its name, aligned to its element type;
    /// `workspace` for [`Device::workspace_bytes`], aligned to 256, and `boundary_states` for
    /// [`boundary_bytes`](super::boundary_bytes). All stay valid until the stream has run what
    /// is enqueued. Nothing else overlaps what is written (outputs, `boundary_states` and workspace), inputs least of all, which are
    /// read ahead and more than once, and nobody else uses it until then. Optional inputs are present where the problem says so.
    pub unsafe fn enqueue_forward(
        &self,
        stream: CUstream,
        problem: &Problem,
        inputs: Inputs<CUdeviceptr>,
        outputs: Outputs<CUdeviceptr>,
        boundary_states: Option<CUdeviceptr>,
        workspace: CUdeviceptr,
    ) -> Result<(), Error> {
        check_inputs(problem, &inputs)?;
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        let launcher = unsafe { Launcher::new(self, stream) };
        let plan = self.properties().forward(problem);
        let alignment = alignment(&inputs, &[outputs.y], &[outputs.final_state, boundary_states]);
        let kernels = ForwardKernels::wanted(&self.properties(), problem, &plan, alignment)
            .try_map(&mut |wanted| self.kernel(wanted))?;
        let mut arguments = Arguments::of(problem, &inputs);
        arguments.lay_out(&plan.layout, kernels.chunk, kernels.chunks);
        arguments.y = outputs.y;
        arguments.final_state = outputs.final_state.unwrap_or(0);
        let interval = boundary_interval(problem);
        arguments.boundary_interval = interval as i64;
        arguments.boundary_count = problem.seq.div_ceil(interval) as i64;
        let packings = lay_out_forward(problem, &plan, &mut Workspace::new(workspace), &mut arguments);

        if let Some(marks) = kernels.marks {
            launcher.mark(problem, marks, &arguments, &packings)?;
        }
        for sweep in sweeps(problem, kernels.slots) {
            arguments.set_sweep(problem, &sweep, &packings);
            arguments.boundary_states =
                boundary_states.map_or(0, |base| boundary_states_of(&sweep, problem, base));
            let Direction { shares, boundaries } = &kernels.directions[sweep.direction];
            if let Some(boundaries) = boundaries {
                boundaries.find(&launcher, problem, &arguments)?;
            }
            for (share, kernel) in shares {
                let mut of_share = arguments;
                of_share.deal(problem, &share.layout);
                of_share.first_block = share.in_line.as_ref().map_or(0, |blocks| blocks.start as i64);
                launcher.launch("forward", *kernel, blocks_of(share, &of_share), problem, &of_share)?;
            }
        }
        Ok(())
    }
}

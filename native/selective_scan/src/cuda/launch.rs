//! From a problem to launches on a stream: which kernels, in which order, over which memory.
//!
//! Nothing here waits and nothing allocates: what is carried from kernel to kernel lies in a workspace whose size
//! is asked beforehand.

use std::ffi::c_void;

use cudarc::driver::result;
use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUstream};

use super::compile::Configuration;
use super::device::Device;
use super::driver::During;
use super::policy::{Alignment, BackwardPlan, Configurations, ForwardPlan, Layout, Properties, Units};
use crate::{ElementType, Error, Gradients, Inputs, Method, OutputGradients, Outputs, Problem, Projection};

/// What is to be run, as far as memory and kernels depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The forward pass.
    Forward,
    /// The backward pass from the inputs alone.
    Backward,
    /// The backward pass with the states that the forward pass kept.
    BackwardFromCheckpoints,
}

/// `Arguments` of arguments.cuh, field by field; addresses are 0 where there is none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Arguments {
    x: CUdeviceptr,
    dt: CUdeviceptr,
    a: CUdeviceptr,
    b: CUdeviceptr,
    c: CUdeviceptr,
    d: CUdeviceptr,
    z: CUdeviceptr,
    dt_bias: CUdeviceptr,
    initial_state: CUdeviceptr,
    seq_idx: CUdeviceptr,
    dy: CUdeviceptr,
    dfinal_state: CUdeviceptr,

    y: CUdeviceptr,
    final_state: CUdeviceptr,
    dx: CUdeviceptr,
    ddt: CUdeviceptr,
    dz: CUdeviceptr,
    db: CUdeviceptr,
    dc: CUdeviceptr,
    da: CUdeviceptr,
    dd: CUdeviceptr,
    ddt_bias: CUdeviceptr,
    dinitial_state: CUdeviceptr,

    marks: CUdeviceptr,
    chunk_resets: CUdeviceptr,
    boundary_states: CUdeviceptr,
    boundary_adjoints: CUdeviceptr,
    checkpoints: CUdeviceptr,
    delta_sums: CUdeviceptr,
    decays: CUdeviceptr,
    y_sum: CUdeviceptr,
    dx_sum: CUdeviceptr,
    ddt_sum: CUdeviceptr,
    dz_sum: CUdeviceptr,
    db_parts: CUdeviceptr,
    dc_parts: CUdeviceptr,
    db_sum: CUdeviceptr,
    dc_sum: CUdeviceptr,
    da_parts: CUdeviceptr,
    db_constant_parts: CUdeviceptr,
    dc_constant_parts: CUdeviceptr,
    dd_parts: CUdeviceptr,
    ddt_bias_parts: CUdeviceptr,
    db_constant: CUdeviceptr,
    dc_constant: CUdeviceptr,

    batch: i64,
    seq: i64,
    dim: i64,
    state: i64,
    groups_b: i64,
    groups_c: i64,
    unit: i64,
    blocks_per_unit: i64,
    rows_per_block: i64,
    piece_first: i64,
    piece_count: i64,
    first_state: i64,
    chunk: i64,
    chunks: i64,
    boundary_width: i64,
    boundary_first: i64,
    checkpoint_interval: i64,
    checkpoint_count: i64,

    limit_min: f64,
    limit_max: f64,
    scale: f64,
    reverse: i32,
    first_pass: i32,
    last_pass: i32,
    accumulate: i32,
    last_direction: i32,
    write_final: i32,
}

impl Arguments {
    fn of(problem: &Problem, inputs: &Inputs<CUdeviceptr>) -> Self {
        let groups = |projection| match projection {
            Projection::PerFrame { groups } => groups as i64,
            Projection::Constant => 1,
        };
        let [limit_min, limit_max] = problem.dt_limit.unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
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
            limit_min,
            limit_max,
            scale: if problem.bidirectional { 0.5 } else { 1.0 },
            ..Self::default()
        }
    }

    /// Sets what a plan decides.
    fn lay_out(&mut self, units: Units, layout: Layout, chunk: usize, chunks: usize) {
        self.unit = units.unit as i64;
        self.blocks_per_unit = units.blocks as i64;
        self.chunk = chunk as i64;
        self.chunks = chunks as i64;
        self.boundary_width = layout.slots() as i64;
    }
}

/// Hands out a workspace piece by piece; from address 0, it only measures.
struct Workspace {
    base: CUdeviceptr,
    used: usize,
}

impl Workspace {
    const ALIGNMENT: usize = 256;

    fn new(base: CUdeviceptr) -> Self {
        Self { base, used: 0 }
    }

    fn take(&mut self, bytes: usize) -> CUdeviceptr {
        let address = self.base + self.used as CUdeviceptr;
        self.used += bytes.next_multiple_of(Self::ALIGNMENT);
        address
    }

    fn take_if(&mut self, wanted: bool, bytes: usize) -> CUdeviceptr {
        if wanted { self.take(bytes) } else { 0 }
    }
}

/// Marks of packed rows, for each direction of a problem.
#[derive(Clone, Copy, Default)]
struct Packing {
    marks: CUdeviceptr,
    chunk_resets: CUdeviceptr,
}

/// Shapes and sizes that both passes reckon with.
struct Sizes {
    real: usize,
    state: usize,
    directions: usize,
    /// Whether sequences are stored in the type of computation: partial sums then lie in the output itself.
    exact: bool,
}

impl Sizes {
    fn of(problem: &Problem) -> Self {
        let real = problem.element.state_type().size();
        Self {
            real,
            state: real * problem.components(),
            directions: if problem.bidirectional { 2 } else { 1 },
            exact: matches!(problem.element, ElementType::F32 | ElementType::F64),
        }
    }
}

fn packings(problem: &Problem, chunks: usize, at: &mut Workspace) -> [Packing; 2] {
    let mut packing = |wanted: bool| Packing {
        marks: at.take_if(wanted, problem.batch * problem.seq),
        chunk_resets: at.take_if(wanted, problem.batch * chunks),
    };
    [packing(problem.seq_idx), packing(problem.seq_idx && problem.bidirectional)]
}

/// One walk over time: a direction and a range of states.
struct Walk {
    direction: usize,
    first_state: usize,
    /// Whether sums of this range of states have another direction in them already.
    again: bool,
    first: bool,
    last: bool,
}

/// All walks of a problem: each range of states in each direction.
fn walks(problem: &Problem, slots: usize) -> Vec<Walk> {
    let directions = Sizes::of(problem).directions;
    let ranges = problem.state.div_ceil(slots);
    let count = ranges * directions;
    let walk = |k: usize| Walk {
        direction: k % directions,
        first_state: k / directions * slots,
        again: !k.is_multiple_of(directions),
        first: k == 0,
        last: k + 1 == count,
    };
    (0..count).map(walk).collect()
}

impl Arguments {
    /// Sets what a walk decides. The final state is that of the first direction.
    fn walk(&mut self, problem: &Problem, walk: &Walk, packings: &[Packing; 2]) {
        self.reverse = i32::from(problem.reverse != (walk.direction == 1));
        self.first_state = walk.first_state as i64;
        self.first_pass = i32::from(walk.first);
        self.last_pass = i32::from(walk.last);
        self.accumulate = i32::from(walk.again);
        self.last_direction = i32::from(walk.direction + 1 == Sizes::of(problem).directions);
        self.write_final = i32::from(walk.direction == 0);
        self.marks = packings[walk.direction].marks;
        self.chunk_resets = packings[walk.direction].chunk_resets;
    }
}

/// A kernel and how it is launched.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub(super) function: CUfunction,
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
}

/// Threads that sum a component of dB or dC.
const REDUCTION_SLICES: usize = 4;
const REDUCE_PROJECTIONS: &std::ffi::CStr = c"scan_reduce_projections";
const REDUCE_PARAMETERS: &std::ffi::CStr = c"scan_reduce_parameters";
const ROUND_CONSTANTS: &std::ffi::CStr = c"scan_round_constants";

/// Launches on one stream of one device.
struct Launcher<'a> {
    device: &'a Device,
    stream: CUstream,
}

impl Launcher<'_> {
    /// Launches as many blocks as asked for, folded into two axes where one is too short, times `jobs`.
    fn launch(&self, what: &str, kernel: Kernel, blocks: usize, arguments: &Arguments) -> Result<(), Error> {
        const LONGEST: usize = i32::MAX as usize;
        let x = blocks.min(LONGEST);
        self.launch_grid(what, kernel, (x as u32, blocks.div_ceil(x) as u32), arguments)
    }

    fn launch_grid(
        &self,
        what: &str,
        kernel: Kernel,
        (x, y): (u32, u32),
        arguments: &Arguments,
    ) -> Result<(), Error> {
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: the function belongs to a module of this device that is never unloaded; its one parameter is an
        // `Arguments`, which the driver copies before it returns; the addresses in it are the caller's promise.
        unsafe {
            result::launch_kernel(
                kernel.function,
                (x, y, 1),
                (kernel.threads, 1, 1),
                kernel.shared_bytes,
                self.stream,
                &mut parameters,
            )
        }
        .during(|| format!("launching the {what} kernel on {}", self.device))
    }

    fn clear(&self, address: CUdeviceptr, bytes: usize) -> Result<(), Error> {
        // SAFETY: the range lies in the caller's workspace.
        unsafe { result::memset_d8_async(address, 0, bytes, self.stream) }
            .during(|| format!("clearing {bytes} bytes on {}", self.device))
    }

    /// Marks the packed rows for each direction.
    fn mark(
        &self,
        problem: &Problem,
        kernel: Kernel,
        arguments: &Arguments,
        packings: &[Packing; 2],
    ) -> Result<(), Error> {
        for walk in walks(problem, problem.state) {
            let mut arguments = *arguments;
            arguments.walk(problem, &walk, packings);
            self.clear(arguments.chunk_resets, problem.batch * arguments.chunks as usize)?;
            let tiles = problem.seq.div_ceil(kernel.threads as usize);
            self.launch("marks", kernel, problem.batch * tiles, &arguments)?;
        }
        Ok(())
    }
}

/// Kernels that more than one pass uses.
struct Shared {
    marks: Option<Kernel>,
    boundaries: Option<Boundaries>,
}

/// The kernels that find the states at the boundaries of chunks.
struct Boundaries {
    summary: Kernel,
    prefix: Kernel,
}

impl Shared {
    fn find(
        device: &Device,
        configurations: &Configurations<'_>,
        chunks: usize,
        (with_states, with_adjoints): (bool, bool),
    ) -> Result<Self, Error> {
        let marks = || device.kernel(configurations.marks(), c"scan_marks", 256);
        let boundaries = || {
            let summary = configurations.summary(with_states, with_adjoints);
            Ok::<_, Error>(Boundaries {
                summary: device.walking_kernel(summary, c"scan_summary")?,
                prefix: device.kernel(
                    configurations.prefix(with_states, with_adjoints),
                    c"scan_prefix",
                    128,
                )?,
            })
        };
        Ok(Self {
            marks: configurations.problem.seq_idx.then(marks).transpose()?,
            boundaries: (chunks > 1).then(boundaries).transpose()?,
        })
    }

    /// Finds the states, and their gradients, at the boundaries of the chunks.
    fn find_boundaries(
        &self,
        launcher: &Launcher<'_>,
        problem: &Problem,
        slots: usize,
        arguments: &Arguments,
    ) -> Result<(), Error> {
        let Some(boundaries) = &self.boundaries else {
            return Ok(());
        };
        launcher.launch("summary", boundaries.summary, walking_blocks(arguments), arguments)?;
        let states = problem.batch * problem.dim * slots;
        let blocks = states.div_ceil(boundaries.prefix.threads as usize);
        launcher.launch("prefix", boundaries.prefix, blocks, arguments)
    }
}

/// Blocks of the kernels that have one for each chunk of each block of channels of each row.
fn walking_blocks(a: &Arguments) -> usize {
    (a.batch * a.chunks * (a.dim / a.unit) * a.blocks_per_unit) as usize
}

fn alignment_of(address: CUdeviceptr) -> usize {
    1 << address.trailing_zeros().min(4)
}

fn alignment(inputs: &Inputs<CUdeviceptr>, others: &[CUdeviceptr]) -> Alignment {
    let sequences = [Some(inputs.x), Some(inputs.dt), inputs.z];
    let all = sequences.iter().flatten().chain(others);
    Alignment {
        sequences: alignment_of(all.fold(0, |all, address| all | address)),
        b: alignment_of(inputs.b),
        c: alignment_of(inputs.c),
    }
}

// --- The forward pass ---------------------------------------------------------------------------------------

struct ForwardKernels {
    shared: Shared,
    forward: Kernel,
}

impl ForwardKernels {
    fn find(
        device: &Device,
        problem: &Problem,
        plan: &ForwardPlan,
        alignment: Alignment,
    ) -> Result<Self, Error> {
        let configurations =
            Configurations { problem, layout: plan.layout, unit: plan.units.unit, alignment };
        Ok(Self {
            shared: Shared::find(device, &configurations, plan.chunks, (true, false))?,
            forward: device.walking_kernel(configurations.forward(), c"scan_forward")?,
        })
    }
}

/// Sets the addresses of what the forward pass carries from kernel to kernel.
fn lay_out_forward(
    problem: &Problem,
    plan: &ForwardPlan,
    at: &mut Workspace,
    arguments: &mut Arguments,
) -> [Packing; 2] {
    let sizes = Sizes::of(problem);
    let boundaries = problem.batch * plan.chunks * problem.dim;
    let slots = plan.layout.slots();
    let cut = plan.chunks > 1;
    let exponential = problem.method != Method::Bilinear;
    arguments.boundary_states = at.take_if(cut, boundaries * slots * sizes.state);
    arguments.delta_sums = at.take_if(cut && exponential, boundaries * sizes.real);
    arguments.decays = at.take_if(cut && !exponential, boundaries * slots * sizes.state);
    let several = walks(problem, slots).len() > 1;
    arguments.y_sum = match sizes.exact {
        true => arguments.y,
        false => at.take_if(several, problem.batch * problem.seq * problem.dim * sizes.real),
    };
    packings(problem, plan.chunks, at)
}

impl Properties {
    /// Bytes of device memory that a pass over a problem needs beside its operands.
    pub fn workspace_bytes(&self, problem: &Problem, pass: Pass) -> usize {
        let mut at = Workspace::new(0);
        let mut arguments = Arguments::default();
        match pass {
            Pass::Forward => {
                lay_out_forward(problem, &self.forward(problem), &mut at, &mut arguments);
            }
            _ => {
                lay_out_backward(problem, &self.backward(problem), pass, &mut at, &mut arguments);
            }
        }
        at.used
    }

    /// {directions, batch, chunks, dim, state}, with a trailing 2 where complex: the states that the forward pass can
    /// keep for the backward pass. How many chunks there are depends on neither batch nor dim.
    pub fn boundary_shape(&self, problem: &Problem) -> Vec<usize> {
        let mut shape = problem.boundary_shape();
        shape[2] = self.backward(problem).chunks;
        shape
    }
}

impl Device {
    /// [`Properties::workspace_bytes`] of this device.
    pub fn workspace_bytes(&self, problem: &Problem, pass: Pass) -> usize {
        self.properties().workspace_bytes(problem, pass)
    }

    /// Bytes of the states that the forward pass can keep for the backward pass.
    pub fn checkpoint_bytes(&self, problem: &Problem) -> usize {
        let plan = self.properties().backward(problem);
        let sizes = Sizes::of(problem);
        sizes.directions * problem.batch * plan.chunks * problem.dim * problem.state * sizes.state
    }

    /// Compiles and loads what a pass over a problem needs, for operands as an allocator of the driver aligns
    /// them, so that enqueueing it does neither.
    pub fn prepare(&self, problem: &Problem, pass: Pass) -> Result<(), Error> {
        self.make_current()?;
        match pass {
            Pass::Forward => {
                let plan = self.properties().forward(problem);
                ForwardKernels::find(self, problem, &plan, Alignment::ALLOCATED).map(|_| ())
            }
            _ => {
                let plan = self.properties().backward(problem);
                BackwardKernels::find(self, problem, &plan, pass, Alignment::ALLOCATED).map(|_| ())
            }
        }
    }

    /// Enqueues the forward pass on a stream of this device's primary context, without waiting.
    ///
    /// With `checkpoints`, the states that the backward pass begins its chunks with are kept there.
    ///
    /// # Safety
    ///
    /// Each address stands for device memory of [`Problem::bytes`] of its name, aligned to its element type;
    /// `workspace` for [`Device::workspace_bytes`], aligned to 256, and `checkpoints` for
    /// [`Device::checkpoint_bytes`]. All stay valid, and outputs and workspace unused by others, until the stream
    /// has run what is enqueued. Optional inputs are present where the problem says so.
    pub unsafe fn enqueue_forward(
        &self,
        stream: CUstream,
        problem: &Problem,
        inputs: Inputs<CUdeviceptr>,
        outputs: Outputs<CUdeviceptr>,
        checkpoints: Option<CUdeviceptr>,
        workspace: CUdeviceptr,
    ) -> Result<(), Error> {
        self.make_current()?;
        let launcher = Launcher { device: self, stream };
        let plan = self.properties().forward(problem);
        let kernels = ForwardKernels::find(self, problem, &plan, alignment(&inputs, &[outputs.y]))?;
        let sizes = Sizes::of(problem);

        let mut arguments = Arguments::of(problem, &inputs);
        arguments.lay_out(plan.units, plan.layout, plan.chunk, plan.chunks);
        arguments.y = outputs.y;
        arguments.final_state = outputs.final_state.unwrap_or(0);
        arguments.checkpoint_interval = plan.checkpoint_interval as i64;
        arguments.checkpoint_count = problem.seq.div_ceil(plan.checkpoint_interval) as i64;
        let packings = lay_out_forward(problem, &plan, &mut Workspace::new(workspace), &mut arguments);

        if let Some(marks) = kernels.shared.marks {
            launcher.mark(problem, marks, &arguments, &packings)?;
        }
        let slots = plan.layout.slots();
        for walk in walks(problem, slots) {
            arguments.walk(problem, &walk, &packings);
            let kept = problem.batch * arguments.checkpoint_count as usize * problem.dim * problem.state;
            arguments.checkpoints =
                checkpoints.map_or(0, |base| base + (walk.direction * kept * sizes.state) as CUdeviceptr);
            kernels.shared.find_boundaries(&launcher, problem, slots, &arguments)?;
            launcher.launch("forward", kernels.forward, walking_blocks(&arguments), &arguments)?;
        }
        Ok(())
    }
}

// --- The backward pass --------------------------------------------------------------------------------------

struct BackwardKernels {
    shared: Shared,
    backward: Kernel,
    reduce_projections: Kernel,
    reduce_parameters: Kernel,
    round_constants: Kernel,
}

impl BackwardKernels {
    fn find(
        device: &Device,
        problem: &Problem,
        plan: &BackwardPlan,
        pass: Pass,
        alignment: Alignment,
    ) -> Result<Self, Error> {
        let configurations =
            Configurations { problem, layout: plan.layout, unit: plan.units.unit, alignment };
        let with_states = pass != Pass::BackwardFromCheckpoints;
        let reduce = configurations.reduce();
        Ok(Self {
            shared: Shared::find(device, &configurations, plan.chunks, (with_states, true))?,
            backward: device.walking_kernel(
                configurations.backward(plan.chunk.div_ceil(plan.layout.tile)),
                c"scan_backward",
            )?,
            reduce_projections: device.kernel(reduce, REDUCE_PROJECTIONS, 256)?,
            reduce_parameters: device.kernel(reduce, REDUCE_PARAMETERS, 256)?,
            round_constants: device.kernel(reduce, ROUND_CONSTANTS, 256)?,
        })
    }
}

/// Groups of a projection that varies with the frame.
fn groups(projection: Projection) -> Option<usize> {
    match projection {
        Projection::PerFrame { groups } => Some(groups),
        Projection::Constant => None,
    }
}

/// Sets the addresses of what the backward pass carries from kernel to kernel. What is read for the last time
/// before something of the same shape is written, by the same thread, lends it its place.
fn lay_out_backward(
    problem: &Problem,
    plan: &BackwardPlan,
    pass: Pass,
    at: &mut Workspace,
    arguments: &mut Arguments,
) -> [Packing; 2] {
    let sizes = Sizes::of(problem);
    let slots = plan.layout.slots();
    let cut = plan.chunks > 1;
    let exponential = problem.method != Method::Bilinear;
    let sums = problem.batch.div_ceil(plan.rows_per_block) * plan.chunks * problem.dim;
    let of_states = sums * slots * sizes.state;

    let own_states = cut && pass == Pass::Backward;
    arguments.boundary_states = at.take_if(own_states, of_states);
    arguments.da_parts = at.take(of_states);
    arguments.boundary_adjoints = arguments.da_parts;
    arguments.delta_sums = at.take_if(cut && exponential, sums * sizes.real);
    arguments.decays = at.take_if(cut && !exponential, of_states);
    arguments.dd_parts = at.take_if(problem.d, sums * sizes.real);
    arguments.ddt_bias_parts = at.take_if(problem.dt_bias, sums * sizes.real);

    let several = walks(problem, slots).len() > 1;
    let sequence = problem.batch * problem.seq * problem.dim * sizes.real;
    if sizes.exact {
        arguments.dx_sum = arguments.dx;
        arguments.ddt_sum = arguments.ddt;
        arguments.dz_sum = arguments.dz;
    } else {
        arguments.dx_sum = at.take_if(several, sequence);
        arguments.ddt_sum = at.take_if(several, sequence);
        arguments.dz_sum = at.take_if(several && problem.z, sequence);
    }

    let contributions = problem.dim / plan.units.unit * plan.units.blocks;
    let rows = plan.piece * plan.rows_per_block * plan.chunk;
    let frames = problem.batch * problem.seq;
    let between = !sizes.exact && sizes.directions > 1;
    let mut sums = |projection, gradient| match groups(projection) {
        Some(groups) => {
            let parts = at.take(rows * contributions * slots * sizes.state);
            let sum = at.take_if(between, frames * groups * problem.state * sizes.state);
            (parts, if sizes.exact { gradient } else { sum })
        }
        None => (0, 0),
    };
    (arguments.db_parts, arguments.db_sum) = sums(problem.b, arguments.db);
    (arguments.dc_parts, arguments.dc_sum) = sums(problem.c, arguments.dc);

    let constants = problem.dim * problem.state * sizes.state;
    if groups(problem.b).is_none() {
        arguments.db_constant_parts = match own_states {
            true => arguments.boundary_states,
            false => at.take(of_states),
        };
        arguments.db_constant = match sizes.exact {
            true => arguments.db,
            false => at.take(constants),
        };
    }
    if groups(problem.c).is_none() {
        arguments.dc_constant_parts = at.take(of_states);
        arguments.dc_constant = match sizes.exact {
            true => arguments.dc,
            false => at.take(constants),
        };
    }
    packings(problem, plan.chunks, at)
}

impl Device {
    /// Enqueues the backward pass on a stream of this device's primary context, without waiting. `checkpoints` are
    /// those of the forward pass over the same problem and inputs, where it kept them.
    ///
    /// # Safety
    ///
    /// As for [`Device::enqueue_forward`]; each gradient has the size of the input of its name.
    #[allow(clippy::too_many_arguments, reason = "each is a tensor set of the operation")]
    pub unsafe fn enqueue_backward(
        &self,
        stream: CUstream,
        problem: &Problem,
        inputs: Inputs<CUdeviceptr>,
        output_gradients: OutputGradients<CUdeviceptr>,
        gradients: Gradients<CUdeviceptr>,
        checkpoints: Option<CUdeviceptr>,
        workspace: CUdeviceptr,
    ) -> Result<(), Error> {
        self.make_current()?;
        let launcher = Launcher { device: self, stream };
        let pass = match checkpoints {
            Some(_) => Pass::BackwardFromCheckpoints,
            None => Pass::Backward,
        };
        let plan = self.properties().backward(problem);
        let sequences = [output_gradients.dy, gradients.x, gradients.dt, gradients.z.unwrap_or(0)];
        let kernels = BackwardKernels::find(self, problem, &plan, pass, alignment(&inputs, &sequences))?;
        let sizes = Sizes::of(problem);
        let slots = plan.layout.slots();

        let mut arguments = Arguments::of(problem, &inputs);
        arguments.lay_out(plan.units, plan.layout, plan.chunk, plan.chunks);
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
        let packings = lay_out_backward(problem, &plan, pass, &mut Workspace::new(workspace), &mut arguments);

        if let Some(marks) = kernels.shared.marks {
            launcher.mark(problem, marks, &arguments, &packings)?;
        }
        let blocks_of_pair = problem.dim / plan.units.unit * plan.units.blocks;
        let groups_of = |projection| groups(projection).unwrap_or(0);
        let groups = groups_of(problem.b) + groups_of(problem.c);
        for walk in walks(problem, slots) {
            arguments.walk(problem, &walk, &packings);
            if let Some(base) = checkpoints {
                let kept = problem.batch * plan.chunks * problem.dim * problem.state;
                arguments.boundary_states = base + (walk.direction * kept * sizes.state) as CUdeviceptr;
                arguments.boundary_width = problem.state as i64;
                arguments.boundary_first = walk.first_state as i64;
            }
            kernels.shared.find_boundaries(&launcher, problem, slots, &arguments)?;
            for first in (0..plan.pairs).step_by(plan.piece) {
                let count = plan.piece.min(plan.pairs - first);
                (arguments.piece_first, arguments.piece_count) = (first as i64, count as i64);
                launcher.launch("backward", kernels.backward, count * blocks_of_pair, &arguments)?;
                if groups > 0 {
                    let rows = count * plan.rows_per_block * plan.chunk;
                    let elements = rows * groups * slots * problem.components();
                    let blocks = elements.div_ceil(256 / REDUCTION_SLICES);
                    launcher.launch("reduction", kernels.reduce_projections, blocks, &arguments)?;
                }
            }
            let columns = (problem.dim * slots * problem.components()).div_ceil(32);
            launcher.launch_grid("reduction", kernels.reduce_parameters, (columns as u32, 5), &arguments)?;
        }
        if !sizes.exact && (arguments.db_constant != 0 || arguments.dc_constant != 0) {
            let elements = problem.dim * problem.state * problem.components();
            launcher.launch("rounding", kernels.round_constants, elements.div_ceil(256), &arguments)?;
        }
        Ok(())
    }
}

/// The configurations of all kernels that a problem can ask for, to compile them without a device.
pub fn configurations(properties: &Properties, problem: &Problem) -> Vec<Configuration> {
    let forward = properties.forward(problem);
    let backward = properties.backward(problem);
    let of = |layout, unit| Configurations { problem, layout, unit, alignment: Alignment::ALLOCATED };
    let forwards = of(forward.layout, forward.units.unit);
    let backwards = of(backward.layout, backward.units.unit);
    let tiles = backward.chunk.div_ceil(backward.layout.tile);
    vec![
        forwards.marks(),
        forwards.forward(),
        forwards.summary(true, false),
        forwards.prefix(true, false),
        backwards.summary(true, true),
        backwards.summary(false, true),
        backwards.prefix(true, true),
        backwards.prefix(false, true),
        backwards.backward(tiles),
        backwards.reduce(),
    ]
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    #[test]
    fn arguments_are_those_of_the_kernels() {
        let source = include_str!("../../kernels/arguments.cuh");
        let fields = source.split("struct Arguments {").nth(1).and_then(|rest| rest.split("};").next());
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

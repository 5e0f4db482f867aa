//! From a problem to launches on a stream: what the passes have in common.
//!
//! Nothing here waits and nothing allocates memory of the device: what is carried from kernel to kernel lies in a workspace whose
//! size is asked beforehand. Kernels are compiled and loaded beforehand, too, but for operands that lie less well than an
//! allocator of the driver would place them.

use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::{CStr, c_void};

use cudarc::driver::result;
use cudarc::driver::sys::{
    CUdeviceptr, CUfunction, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
    CUstream, cuLaunchKernelEx,
};

use super::arguments::{Arguments, Sweep, sweeps};
use super::backward::BackwardKernels;
use super::boundary::boundary_bytes;
use super::compile::{Configuration, distinct};
use super::device::Device;
use super::driver::During;
use super::forward::ForwardKernels;
use super::policy::{
    Alignment, Chunks, Configurations, Properties, RESERVED_SHARED, Share, depends_on_alignment,
};
use super::tensor_maps::KernelMaps;
use super::workspace::{Packing, Workspace, lay_out_backward, lay_out_forward};
use crate::{Error, Inputs, Problem};

/// What is to be run, as far as memory and kernels depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The forward pass.
    Forward,
    /// The backward pass from the inputs alone.
    Backward,
    /// The backward pass with the states that the forward pass kept.
    BackwardFromBoundaryStates,
}

/// A kernel, what it was compiled for, and how it is launched.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub(super) function: CUfunction,
    pub(super) configuration: Configuration,
    /// Blocks of it that a multiprocessor has room for.
    pub(super) resident: usize,
    /// Local memory of a thread, where registers are spilled to.
    pub(super) local_bytes: usize,
    /// Whether it waits by itself for the kernels before it (`wait_for_kernels_before` in arguments.cuh): then it may
    /// begin while they end.
    pub(super) waits: bool,
}

/// A kernel that a pass wants: what it is compiled for, and its name.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) configuration: Configuration,
    pub(super) name: &'static CStr,
}

/// Makes of a kernel that is wanted what the pass has of it.
pub(super) type Find<'a, K, E> = dyn FnMut(Wanted) -> Result<K, E> + 'a;

impl Wanted {
    pub(super) fn new(configuration: Configuration, name: &'static CStr) -> Self {
        Self { configuration, name }
    }

    /// The kernel that marks packed rows of so many chunks, where there are any that want it.
    pub(super) fn marks(configurations: &Configurations<'_>, chunks: usize) -> Option<Self> {
        configurations.marks(chunks).map(|configuration| Self::new(configuration, c"scan_marks"))
    }
}

/// What shared memory of a block is at most rounded up by.
const ROUNDING: usize = 128;

impl Kernel {
    /// Shared memory of a block, with so much more that a multiprocessor has room for no more blocks than its share of these.
    fn shared_bytes_for_a_share(&self, blocks: Blocks, properties: &Properties) -> u32 {
        let own = self.configuration.shared_bytes;
        let share = (blocks.of_row * blocks.rows).div_ceil(properties.multiprocessors);
        if own == 0 || share >= self.resident {
            return own as u32;
        }
        let all = properties.shared_per_multiprocessor;
        let too_much = all / (share + 1);
        // Of many blocks, what each costs beside its own would leave no room for the share itself.
        let fits = share * (too_much + RESERVED_SHARED + ROUNDING) <= all;
        if fits { own.max(too_much) as u32 } else { own as u32 }
    }
}

/// Blocks of a launch: those of a row lie on the grid's first axis, rows on the others, of which one alone may be too short. (What they
/// walk is for the kernel to say: `find_course` of backward.cu.)
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) of_row: usize,
    pub(super) rows: usize,
}

impl Blocks {
    const LONGEST: usize = i32::MAX as usize;
    const MOST_ROWS: usize = u16::MAX as usize;

    /// Of a kernel that does not go by rows: they begin a second row where the first is full.
    pub(super) fn in_line(count: usize) -> Self {
        let of_row = count.clamp(1, Self::LONGEST);
        Self { of_row, rows: count.div_ceil(of_row) }
    }

    /// The axes of the grid; none where it has not room for so many.
    fn grid(self) -> Option<[u32; 3]> {
        let y = self.rows.clamp(1, Self::MOST_ROWS);
        let z = self.rows.div_ceil(y);
        let fits = self.of_row <= Self::LONGEST && z <= Self::MOST_ROWS;
        fits.then_some([self.of_row as u32, y as u32, z as u32])
    }
}

/// Launches of one pass on one stream of one device.
pub(super) struct Launcher<'a> {
    device: &'a Device,
    stream: CUstream,
    /// Whether what was enqueued last is a kernel of this pass.
    after_kernel: Cell<bool>,
}

impl<'a> Launcher<'a> {
    /// # Safety
    ///
    /// What it is given addresses of, as arguments or to be cleared, is as the kernels take it to be, stays valid, and is used by nobody
    /// else, until the stream has run what is enqueued.
    pub(super) unsafe fn new(device: &'a Device, stream: CUstream) -> Self {
        Self { device, stream, after_kernel: Cell::new(false) }
    }

    /// Launches a kernel. All but the first of a pass begin while the kernel before them ends, where they wait for it by
    /// themselves: what that saves is the time from kernel to kernel, 1 to 3 µs ("programmatic dependent launch" in the
    /// CUDA programming guide).
    ///
    /// Blocks that begin early go where there is room first, and fill some multiprocessors while others are still busy with
    /// the kernel before: then the first have more than their share to do, and the pass takes as long as they (packed rows
    /// of mamba-130m 203 µs where 156 are enough, on an H200). So they ask for shared memory that leaves no room for more, unless
    /// they are there to fill what the blocks before leave.
    pub(super) fn launch(
        &self,
        what: &str,
        kernel: Kernel,
        blocks: Blocks,
        problem: &Problem,
        arguments: &Arguments,
    ) -> Result<(), Error> {
        let maps = KernelMaps::of(&kernel.configuration, problem, arguments)?;
        let [x, y, z] = blocks.grid().ok_or_else(|| Error::Failed {
            operation: format!("launching the {what} kernel on {}", self.device),
            reason: format!(
                "{} rows of {} blocks are more than a launch can have",
                blocks.rows, blocks.of_row
            ),
            remedy: "split the batch or the channels, or use the cpu backend".to_owned(),
        })?;
        let is_early = self.after_kernel.replace(true) && kernel.waits;
        let mut early = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: kernel.configuration.threads() as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: match is_early && arguments.first_block == 0 {
                true => kernel.shared_bytes_for_a_share(blocks, &self.device.properties()),
                false => kernel.configuration.shared_bytes as u32,
            },
            hStream: self.stream,
            attrs: &mut early,
            numAttrs: u32::from(is_early),
        };
        let mut parameters =
            [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>(), maps.address().cast_mut()];
        // SAFETY: the function belongs to a module of this device that is never unloaded; its parameters are an `Arguments` and, where
        // it has a second one, the maps of its program, which the driver copies before it returns (as many parameters as the function
        // has); what the addresses in them stand for is the promise of who made this.
        unsafe {
            cuLaunchKernelEx(&config, kernel.function, parameters.as_mut_ptr(), std::ptr::null_mut()).result()
        }
        .during(|| format!("launching the {what} kernel on {}", self.device))
    }

    pub(super) fn clear(&self, address: CUdeviceptr, bytes: usize) -> Result<(), Error> {
        self.after_kernel.set(false);
        // SAFETY: the range is the promise of who made this.
        unsafe { result::memset_d8_async(address, 0, bytes, self.stream) }
            .during(|| format!("clearing {bytes} bytes on {}", self.device))
    }

    /// Marks the packed rows for each direction.
    pub(super) fn mark(
        &self,
        problem: &Problem,
        kernel: Kernel,
        arguments: &Arguments,
        packings: &[Packing; 2],
    ) -> Result<(), Error> {
        for sweep in sweeps(problem, problem.state) {
            let mut arguments = *arguments;
            arguments.set_sweep(problem, &sweep, packings);
            if arguments.chunk_resets != 0 {
                self.clear(arguments.chunk_resets, problem.batch * arguments.chunks as usize)?;
            }
            if arguments.adjoint_resets != 0 {
                self.clear(arguments.adjoint_resets, problem.batch * arguments.adjoint_chunks as usize)?;
            }
            let blocks =
                Blocks { of_row: problem.seq.div_ceil(kernel.configuration.threads()), rows: problem.batch };
            self.launch("marks", kernel, blocks, problem, &arguments)?;
        }
        Ok(())
    }
}

/// The kernels that find the states at the boundaries of chunks, or the gradients at those of adjoint chunks.
pub(super) struct Boundaries<K> {
    summary: K,
    /// None where the kernel that needs them joins the chunks.
    prefix: Option<K>,
    slots: usize,
}

impl Boundaries<Wanted> {
    /// Of chunks that are `joined` by the kernel that needs them, or not.
    pub(super) fn of(configurations: &Configurations<'_>, chunks: Chunks, joined: bool) -> Self {
        let adjoints = chunks == Chunks::OfAdjoints;
        let (configuration, name) = match configurations.copied_chunks(chunks) {
            Some(copied) => (copied, c"scan_chunks"),
            None if adjoints => (configurations.chunk_adjoints(), c"scan_summary"),
            None => (configurations.chunk_states(), c"scan_forward"),
        };
        Self {
            summary: Wanted::new(configuration, name),
            prefix: (!joined).then(|| Wanted::new(configurations.prefix(adjoints), c"scan_prefix")),
            slots: configurations.slots(),
        }
    }

    pub(super) fn try_map<K, E>(self, f: &mut Find<'_, K, E>) -> Result<Boundaries<K>, E> {
        Ok(Boundaries {
            summary: f(self.summary)?,
            prefix: self.prefix.map(f).transpose()?,
            slots: self.slots,
        })
    }
}

impl Boundaries<Kernel> {
    /// Finds them for the chunks of `arguments`, or what each chunk comes to.
    pub(super) fn find(
        &self,
        launcher: &Launcher<'_>,
        problem: &Problem,
        arguments: &Arguments,
    ) -> Result<(), Error> {
        let mut of_chunks = *arguments;
        of_chunks.deal(problem, &self.summary.configuration.layout);
        launcher.launch("summary", self.summary, walking_blocks(&of_chunks), problem, &of_chunks)?;
        let Some(prefix) = self.prefix else { return Ok(()) };
        let states = problem.dim * self.slots;
        let blocks = Blocks { of_row: states.div_ceil(prefix.configuration.threads()), rows: problem.batch };
        launcher.launch("prefix", prefix, blocks, problem, arguments)
    }
}

/// Blocks of the kernels that have one for each chunk of each block of channels of each row.
pub(super) fn walking_blocks(a: &Arguments) -> Blocks {
    Blocks { of_row: (a.chunks * a.units * a.blocks_per_unit) as usize, rows: a.batch as usize }
}

/// Those of a share of them.
pub(super) fn blocks_of(share: &Share, a: &Arguments) -> Blocks {
    match &share.in_line {
        Some(blocks) => Blocks::in_line(blocks.len()),
        None => walking_blocks(a),
    }
}

/// Refuses optional tensors that are not there where the problem says they are, or the other way round: a kernel
/// would follow an address that is none.
pub(super) fn check_presence(tensors: &[(&'static str, bool, bool)]) -> Result<(), Error> {
    for &(name, expected, present) in tensors {
        match (expected, present) {
            (true, false) => return Err(Error::invalid(name, "be given, as the problem says", "nothing")),
            (false, true) => return Err(Error::invalid(name, "be absent, as the problem says", "a tensor")),
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn check_inputs<T>(problem: &Problem, inputs: &Inputs<T>) -> Result<(), Error> {
    check_presence(&[
        ("d", problem.d, inputs.d.is_some()),
        ("z", problem.z, inputs.z.is_some()),
        ("dt_bias", problem.dt_bias, inputs.dt_bias.is_some()),
        ("initial_state", problem.initial_state, inputs.initial_state.is_some()),
        ("seq_idx", problem.seq_idx, inputs.seq_idx.is_some()),
    ])
}

pub(super) fn alignment_of(address: CUdeviceptr) -> usize {
    1 << address.trailing_zeros().min(4)
}

/// How operands lie in memory: the inputs, other sequences, and other states.
pub(super) fn alignment(
    inputs: &Inputs<CUdeviceptr>,
    sequences: &[CUdeviceptr],
    states: &[Option<CUdeviceptr>],
) -> Alignment {
    let of = |all: CUdeviceptr, address: &CUdeviceptr| all | address;
    Alignment {
        sequences: alignment_of(sequences.iter().chain(&inputs.z).fold(inputs.x | inputs.dt, of)),
        b: alignment_of(inputs.b),
        c: alignment_of(inputs.c),
        states: alignment_of(states.iter().flatten().chain(&inputs.initial_state).fold(inputs.a, of)),
    }
}

impl Properties {
    /// Bytes of device memory that a pass over a problem needs beside its operands.
    pub fn workspace_bytes(&self, problem: &Problem, pass: Pass) -> usize {
        let forward = || {
            let mut at = Workspace::new(0);
            lay_out_forward(problem, &self.forward(problem), &mut at, &mut Arguments::default());
            at.used()
        };
        let backward = |aligned| {
            let (mut at, plan) = (Workspace::new(0), self.backward(problem, aligned));
            lay_out_backward(problem, &plan, pass, &mut at, &mut Arguments::default());
            at.used()
        };
        match pass {
            Pass::Forward => forward(),
            _ if depends_on_alignment(problem) => backward(true).max(backward(false)),
            _ => backward(true),
        }
    }
}

/// Where the boundary states of a sweep's direction lie, if they begin at `base`.
pub(super) fn boundary_states_of(sweep: &Sweep, problem: &Problem, base: CUdeviceptr) -> CUdeviceptr {
    let each = boundary_bytes(problem) / problem.directions();
    base + (sweep.direction * each) as CUdeviceptr
}

impl Device {
    /// [`Properties::workspace_bytes`] of this device.
    pub fn workspace_bytes(&self, problem: &Problem, pass: Pass) -> usize {
        self.properties().workspace_bytes(problem, pass)
    }

    /// Enqueues zeros for a tensor that no pass writes.
    ///
    /// # Safety
    ///
    /// So many bytes of device memory lie at the address, unused by others until the stream has run what is enqueued.
    pub unsafe fn enqueue_zeros(
        &self,
        stream: CUstream,
        address: CUdeviceptr,
        bytes: usize,
    ) -> Result<(), Error> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { Launcher::new(self, stream) }.clear(address, bytes)
    }

    /// Compiles and loads what a pass over a problem needs, for operands as an allocator of the driver aligns
    /// them, so that enqueueing it does neither.
    pub fn prepare(&self, problem: &Problem, pass: Pass) -> Result<(), Error> {
        self.prepared(problem, pass).map(|_| ())
    }

    /// The same; the kernels.
    fn prepared(&self, problem: &Problem, pass: Pass) -> Result<Vec<Kernel>, Error> {
        let _current = self.enter()?;
        let wanted = wanted(&self.properties(), problem, pass);
        self.load_new(wanted.iter().map(|kernel| kernel.configuration))?;
        wanted.into_iter().map(|wanted| self.kernel(wanted)).collect()
    }

    /// Local memory, in bytes, that a thread of a pass over a problem has at most: what its kernels spill of their registers.
    pub fn local_bytes(&self, problem: &Problem, pass: Pass) -> Result<usize, Error> {
        let kernels = self.prepared(problem, pass)?;
        Ok(kernels.iter().map(|kernel| kernel.local_bytes).max().expect("a pass has a kernel"))
    }
}

/// All kernels of a pass, for operands as an allocator of the driver aligns them.
fn wanted(properties: &Properties, problem: &Problem, pass: Pass) -> Vec<Wanted> {
    let mut all = Vec::new();
    let mut add = |wanted| -> Result<(), Infallible> {
        all.push(wanted);
        Ok(())
    };
    let Ok(()) = match pass {
        Pass::Forward => {
            let plan = properties.forward(problem);
            ForwardKernels::wanted(properties, problem, &plan, Alignment::ALLOCATED)
                .try_map(&mut add)
                .map(|_| ())
        }
        _ => {
            let plan = properties.backward(problem, true);
            let kernels = BackwardKernels::wanted(properties, problem, &plan, pass, Alignment::ALLOCATED);
            kernels.try_map(&mut add).map(|_| ())
        }
    };
    all
}

/// The configurations of the kernels of a pass, to compile them beforehand, or without a device.
pub fn configurations(properties: &Properties, problem: &Problem, pass: Pass) -> Vec<Configuration> {
    distinct(wanted(properties, problem, pass).into_iter().map(|kernel| kernel.configuration))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_grid_has_no_room_for_is_no_grid() {
        let grid = |of_row, rows| Blocks { of_row, rows }.grid();
        assert_eq!(grid(3, 70_000), Some([3, 65_535, 2]));
        assert_eq!(grid(i32::MAX as usize, 1), Some([i32::MAX as u32, 1, 1]));
        assert_eq!(grid(1 << 31, 1), None);
        assert_eq!(grid((1 << 32) + 3, 1), None);
        assert_eq!(grid(1, 1 << 32), None);
    }
}

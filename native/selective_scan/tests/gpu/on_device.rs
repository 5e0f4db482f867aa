//! A case whose operands lie in device memory, for the layer that enqueues on a stream.

use cudarc::driver::result;
use selective_scan::cuda::{self, CUdeviceptr, CUstream, Pass};
use selective_scan::naive::decode;
use selective_scan::{Error, Gradients, Inputs, OutputGradients, Outputs};

use crate::device;
use crate::support::Case;

/// Whether native/cuda_emulator is to stand in for a GPU.
pub fn is_emulated() -> bool {
    std::env::var_os("EXPHIL_EMULATED_GPU").is_some()
}

/// Bytes behind each piece of memory in which nothing may be written. An emulated device sees for itself who goes beyond the
/// end, to read or to write.
fn guard() -> usize {
    if is_emulated() { 0 } else { 1 << 18 }
}

/// Device memory, freed when dropped.
pub struct Memory {
    pub address: CUdeviceptr,
    /// Where it was allocated.
    base: CUdeviceptr,
    len: usize,
}

impl Memory {
    /// Poisoned memory, so that what is not written shows.
    pub fn new(len: usize) -> Self {
        Self::shifted(len, 0)
    }

    /// The same, so many bytes after where the allocator would have it begin.
    fn shifted(len: usize, by: usize) -> Self {
        let whole = by + len + guard();
        // SAFETY: the context is current; the range is the one just allocated.
        unsafe {
            let base = result::malloc_sync(whole).unwrap();
            result::memset_d8_sync(base, 0xff, whole).unwrap();
            // A device that is busy may do that later, after what a stream of ours has written there.
            result::stream::synchronize(std::ptr::null_mut()).unwrap();
            Self { address: base + by as CUdeviceptr, base, len }
        }
    }

    fn of(bytes: &[u8]) -> Self {
        let memory = Self::new(bytes.len());
        // SAFETY: the memory has this length.
        unsafe { result::memcpy_htod_sync(memory.address, bytes).unwrap() };
        memory
    }

    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the memory has this length.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.address).unwrap() };
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut behind = vec![0u8; guard()];
        // SAFETY: the memory is ours, has the guard behind it, and is idle: tests wait for their streams.
        let copied = unsafe {
            let copied = result::memcpy_dtoh_sync(&mut behind, self.address + self.len as CUdeviceptr);
            result::free_sync(self.base).and(copied)
        };
        if std::thread::panicking() {
            return;
        }
        copied.unwrap();
        let written = behind.iter().position(|&byte| byte != 0xff);
        assert!(written.is_none(), "byte {written:?} behind memory of {} bytes was written", self.len);
    }
}

/// A case on the device.
pub struct OnDevice {
    case: Case,
    inputs: Inputs<Memory>,
    output_gradients: OutputGradients<Memory>,
    outputs: Outputs<Memory>,
    gradients: Gradients<Memory>,
    workspaces: [Memory; 3],
    boundary_states: Memory,
    pub stream: CUstream,
}

impl OnDevice {
    pub fn new(case: Case) -> Self {
        Self::shifted(case, 0)
    }

    /// With the gradients of x and dt so many bytes after where an allocator would have them begin.
    pub fn shifted(case: Case, by: usize) -> Self {
        // Makes the context current in this thread.
        device().host_buffer(1).unwrap();
        let problem = &case.problem;
        let bytes = |name: &str| Memory::new(problem.bytes(name));
        let shifted = |name: &str| Memory::shifted(problem.bytes(name), by);
        let workspace = |pass| Memory::new(device().workspace_bytes(problem, pass));
        Self {
            inputs: case.inputs().map(|_, bytes| Memory::of(bytes)),
            output_gradients: case.output_gradients().map(|_, bytes| Memory::of(bytes)),
            outputs: Outputs { y: bytes("y"), final_state: Some(bytes("final_state")) },
            gradients: case.inputs().differentiable().map(|name, _| match name {
                "x" | "dt" => shifted(name),
                _ => bytes(name),
            }),
            workspaces: [Pass::Forward, Pass::Backward, Pass::BackwardFromBoundaryStates].map(workspace),
            boundary_states: Memory::new(cuda::boundary_bytes(problem)),
            stream: result::stream::create(result::stream::StreamKind::NonBlocking).unwrap(),
            case,
        }
    }

    pub fn without_final_state(mut self) -> Self {
        self.outputs.final_state = None;
        self
    }

    /// What a forward pass has left in its workspace.
    pub fn workspace_of_forward(&self) -> Vec<u8> {
        self.workspaces[0].read()
    }

    pub fn enqueue_forward(&self, keep: bool) -> Result<(), Error> {
        let address = |_: &str, memory: &Memory| memory.address;
        // SAFETY: all memory has the sizes asked for and lives until the stream has been waited for.
        unsafe {
            device().enqueue_forward(
                self.stream,
                &self.case.problem,
                self.inputs.as_ref().map(address),
                self.outputs.as_ref().map(address),
                keep.then_some(self.boundary_states.address),
                self.workspaces[0].address,
            )
        }
    }

    pub fn enqueue_backward(&self, kept: bool) -> Result<(), Error> {
        let address = |_: &str, memory: &Memory| memory.address;
        // SAFETY: as above.
        unsafe {
            device().enqueue_backward(
                self.stream,
                &self.case.problem,
                self.inputs.as_ref().map(address),
                self.output_gradients.as_ref().map(address),
                self.gradients.as_ref().map(address),
                kept.then_some(self.boundary_states.address),
                self.workspaces[if kept { 2 } else { 1 }].address,
            )
        }
    }

    /// Both passes in place, which end when they have.
    pub fn in_place(&self) -> Result<(), Error> {
        let address = |_: &str, memory: &Memory| memory.address;
        let problem = &self.case.problem;
        let inputs = self.inputs.as_ref().map(address);
        let output_gradients = self.output_gradients.as_ref().map(address);
        // SAFETY: all memory has the sizes asked for and lives longer than the calls.
        unsafe {
            device().forward_in_place(problem, inputs, self.outputs.as_ref().map(address))?;
            device().backward_in_place(
                problem,
                inputs,
                output_gradients,
                self.gradients.as_ref().map(address),
            )
        }
    }

    /// The forward pass in place with other addresses, which are to be refused.
    pub fn in_place_with(&self, change: impl Fn(&str, CUdeviceptr) -> CUdeviceptr) -> Result<(), Error> {
        let address = |name: &str, memory: &Memory| change(name, memory.address);
        // SAFETY: a changed address is one that is refused before anything follows it.
        unsafe {
            device().forward_in_place(
                &self.case.problem,
                self.inputs.as_ref().map(address),
                self.outputs.as_ref().map(address),
            )
        }
    }

    pub fn wait(&self) {
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.stream).unwrap() };
    }

    pub fn outputs(&self) -> Outputs<Vec<f64>> {
        self.wait();
        let problem = &self.case.problem;
        self.outputs.as_ref().map(|name, memory| decode(problem.element.of(name), &memory.read()))
    }

    pub fn gradients(&self) -> Gradients<Vec<f64>> {
        self.wait();
        let problem = &self.case.problem;
        self.gradients.as_ref().map(|name, memory| decode(problem.element.of(name), &memory.read()))
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        self.wait();
        // SAFETY: the stream is ours and idle.
        unsafe { result::stream::destroy(self.stream).unwrap() };
    }
}

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

/// Makes the device's context current in this thread for good: memory and streams of the tests are of it.
pub fn enter() {
    // SAFETY: the device is there, as its context is; it is never released.
    let entered =
        unsafe { result::primary_ctx::retain(0).and_then(|context| result::ctx::set_current(context)) };
    entered.unwrap();
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

    fn holding(self, bytes: &[u8]) -> Self {
        assert_eq!(self.len, bytes.len());
        // SAFETY: the memory has this length.
        unsafe { result::memcpy_htod_sync(self.address, bytes).unwrap() };
        self
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
        Self::shifted(case, 0, &[])
    }

    /// With tensors of these names so many bytes after where an allocator would have them begin; the gradient of x is called dx.
    pub fn shifted(case: Case, by: usize, names: &[&str]) -> Self {
        // Cases are taken by several threads.
        enter();
        let problem = &case.problem;
        let memory = |name: &str, len| Memory::shifted(len, if names.contains(&name) { by } else { 0 });
        let holding = |name: &str, bytes: &[u8]| memory(name, bytes.len()).holding(bytes);
        let of_output = |name, ()| memory(name, problem.bytes(name));
        let workspace = |pass| Memory::new(device().workspace_bytes(problem, pass));
        Self {
            inputs: case.inputs().map(holding),
            output_gradients: case.output_gradients().map(holding),
            outputs: Outputs { y: (), final_state: Some(()) }.map(of_output),
            gradients: case
                .inputs()
                .differentiable()
                .map(|name, bytes| memory(&format!("d{name}"), bytes.len())),
            workspaces: [Pass::Forward, Pass::Backward, Pass::BackwardFromBoundaryStates].map(workspace),
            boundary_states: memory("boundary_states", cuda::boundary_bytes(problem)),
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
        [Pass::Forward, Pass::Backward]
            .into_iter()
            .try_for_each(|pass| self.in_place_with(pass, |_, address| address))
    }

    /// A pass in place with other addresses, which are to be refused; the gradient of x is called dx.
    pub fn in_place_with(
        &self,
        pass: Pass,
        change: impl Fn(&str, CUdeviceptr) -> CUdeviceptr,
    ) -> Result<(), Error> {
        let address = |name: &str, memory: &Memory| change(name, memory.address);
        let of_gradient = |name: &str, memory: &Memory| change(&format!("d{name}"), memory.address);
        let problem = &self.case.problem;
        let inputs = self.inputs.as_ref().map(address);
        // SAFETY: all memory has the sizes asked for and lives longer than the calls; a changed address is one that is refused before
        // anything follows it.
        unsafe {
            match pass {
                Pass::Forward => {
                    device().forward_in_place(problem, inputs, self.outputs.as_ref().map(address))
                }
                _ => device().backward_in_place(
                    problem,
                    inputs,
                    self.output_gradients.as_ref().map(address),
                    self.gradients.as_ref().map(of_gradient),
                ),
            }
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

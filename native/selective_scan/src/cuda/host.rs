//! Calls from and to host memory.
//!
//! Pageable memory crosses the bus at a third of the speed of pinned memory. So inputs are copied piece by piece,
//! by several threads, into pinned memory of the device's pool, each piece on its way while the next is copied;
//! outputs come back in the same way. What lies in a [`PinnedBuffer`] already is not copied at all.

use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;
use rayon::prelude::*;

use super::buffers::{LaneGuard, PinnedBuffer};
use super::device::Device;
use super::driver::{During, guarded};
use super::launch::Pass;
use crate::{Error, Gradients, Inputs, OutputGradients, Outputs, Problem};

/// Bytes that are on their way together.
const PIECE: usize = 1 << 20;
/// Bytes that a thread copies at a time.
const SLICE: usize = 128 << 10;
/// Alignment of the tensors in device and staging memory.
const ALIGNMENT: usize = 256;

/// Copies by several threads where it is worth it.
fn copy(to: &mut [u8], from: &[u8]) {
    if to.len() < 2 * SLICE {
        to.copy_from_slice(from);
    } else {
        let pairs = to.par_chunks_mut(SLICE).zip(from.par_chunks(SLICE));
        pairs.for_each(|(to, from)| to.copy_from_slice(from));
    }
}

/// Deals out a range of memory, tensor by tensor.
struct Dealer(usize);

impl Dealer {
    fn deal(&mut self, len: usize) -> usize {
        let at = self.0;
        self.0 += len.next_multiple_of(ALIGNMENT);
        at
    }
}

/// A tensor of the host with its place in device memory and, unless it is pinned, in staging memory.
struct Placed<T> {
    bytes: T,
    device: usize,
    staging: Option<usize>,
}

/// Places tensors in device and staging memory.
struct Placement<'a> {
    owner: &'a Device,
    device: Dealer,
    staging: Dealer,
}

impl Placement<'_> {
    fn place<T: AsRef<[u8]>>(&mut self, bytes: T) -> Placed<T> {
        let len = bytes.as_ref().len();
        Placed {
            device: self.device.deal(len),
            staging: (!self.owner.pools.is_pinned(bytes.as_ref())).then(|| self.staging.deal(len)),
            bytes,
        }
    }
}

/// A call under way.
struct Call<'a> {
    device: &'a Device,
    lane: LaneGuard<'a>,
    staging: PinnedBuffer,
}

impl<'a> Call<'a> {
    fn begin(device: &'a Device, placement: &Placement<'_>) -> Result<Self, Error> {
        Ok(Self {
            staging: device.pools.pinned(placement.staging.0)?,
            lane: device.pools.lane(placement.device.0)?,
            device,
        })
    }

    fn address(&self, at: usize) -> CUdeviceptr {
        self.lane.address() + at as CUdeviceptr
    }

    /// Starts an input on its way to the device.
    fn send(&mut self, input: &Placed<&[u8]>) -> Result<CUdeviceptr, Error> {
        let address = self.address(input.device);
        let doing = || format!("copying inputs to {}", self.device);
        match input.staging {
            // SAFETY: the source is pinned and borrowed until the call ends, which waits for the stream.
            None => {
                unsafe { result::memcpy_htod_async(address, input.bytes, self.lane.stream) }.during(doing)?
            }
            Some(at) => {
                for (number, piece) in input.bytes.chunks(PIECE).enumerate() {
                    let offset = number * PIECE;
                    let staged = &mut self.staging[at + offset..][..piece.len()];
                    copy(staged, piece);
                    let to = address + offset as CUdeviceptr;
                    // SAFETY: the staging memory is kept, and not written again, until the call has waited.
                    unsafe { result::memcpy_htod_async(to, staged, self.lane.stream) }
                        .during(|| format!("copying inputs to {}", self.device))?;
                }
            }
        }
        Ok(address)
    }

    /// Fetches the outputs and ends the call.
    fn finish(mut self, outputs: Vec<Placed<&mut [u8]>>) -> Result<(), Error> {
        let device = self.device;
        let doing = || format!("running the scan on {device}");
        let mut pieces = Vec::new();
        for output in outputs {
            let address = self.lane.address() + output.device as CUdeviceptr;
            match output.staging {
                None => {
                    // SAFETY: the target is pinned and borrowed until the stream has been waited for, below.
                    unsafe { result::memcpy_dtoh_async(output.bytes, address, self.lane.stream) }
                        .during(doing)?;
                }
                Some(at) => {
                    for (number, piece) in output.bytes.chunks_mut(PIECE).enumerate() {
                        let offset = number * PIECE;
                        let staged = &mut self.staging[at + offset..][..piece.len()];
                        let from = address + offset as CUdeviceptr;
                        // SAFETY: the staging memory is read only after the event below.
                        unsafe { result::memcpy_dtoh_async(staged, from, self.lane.stream) }.during(doing)?;
                        self.lane.record(pieces.len()).during(doing)?;
                        pieces.push((at + offset, piece));
                    }
                }
            }
        }
        for (number, (at, piece)) in pieces.into_iter().enumerate() {
            self.lane.wait(number).during(doing)?;
            copy(piece, &self.staging[at..][..piece.len()]);
        }
        self.lane.synchronize().during(doing)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // Before staging memory and borrowed memory go: whatever failed, nothing may still be on its way.
        let _ = self.lane.synchronize();
    }
}

impl Device {
    /// Pinned host memory: results handed to [`Device::forward`] or [`Device::backward`] in it are written without
    /// a copy in between.
    pub fn host_buffer(&self, len: usize) -> Result<PinnedBuffer, Error> {
        guarded(|| {
            self.make_current()?;
            self.pools.pinned(len)
        })
    }

    /// The forward pass, from and to host memory.
    pub fn forward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<(), Error> {
        for (name, bytes) in inputs.iter() {
            problem.check_length(name, bytes.len())?;
        }
        for (name, bytes) in outputs.iter() {
            problem.check_length(name, bytes.len())?;
        }
        guarded(|| {
            self.make_current()?;
            self.prepare(problem, Pass::Forward)?;
            let mut placement = self.placement();
            let inputs = inputs.map(|_, bytes| placement.place(bytes));
            let outputs = outputs.map(|_, bytes| placement.place(bytes));
            let workspace = placement.device.deal(self.workspace_bytes(problem, Pass::Forward));
            let mut call = Call::begin(self, &placement)?;
            let targets = outputs.as_ref().map(|_, output| call.address(output.device));
            let sources = inputs.as_ref().try_map(|_, input| call.send(input))?;
            let workspace = call.address(workspace);
            // SAFETY: the addresses lie in the lane's memory, with the lengths checked above, and the lane is ours
            // until the call has waited for its stream.
            unsafe { self.enqueue_forward(call.lane.stream, problem, sources, targets, None, workspace)? };
            let Outputs { y, final_state } = outputs;
            call.finish([Some(y), final_state].into_iter().flatten().collect())
        })
    }

    /// The backward pass, from and to host memory.
    pub fn backward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        output_gradients: OutputGradients<&[u8]>,
        gradients: Gradients<&mut [u8]>,
    ) -> Result<(), Error> {
        let given = inputs.iter().chain(output_gradients.iter());
        for (name, bytes) in given {
            problem.check_length(name, bytes.len())?;
        }
        for (name, bytes) in gradients.iter() {
            problem.check_length(name, bytes.len())?;
        }
        guarded(|| {
            self.make_current()?;
            self.prepare(problem, Pass::Backward)?;
            let mut placement = self.placement();
            let inputs = inputs.map(|_, bytes| placement.place(bytes));
            let output_gradients = output_gradients.map(|_, bytes| placement.place(bytes));
            let gradients = gradients.map(|_, bytes| placement.place(bytes));
            let workspace = placement.device.deal(self.workspace_bytes(problem, Pass::Backward));
            let mut call = Call::begin(self, &placement)?;
            let targets = gradients.as_ref().map(|_, gradient| call.address(gradient.device));
            let sources = inputs.as_ref().try_map(|_, input| call.send(input))?;
            let given = output_gradients.as_ref().try_map(|_, gradient| call.send(gradient))?;
            let workspace = call.address(workspace);
            let stream = call.lane.stream;
            // SAFETY: as in the forward pass.
            unsafe { self.enqueue_backward(stream, problem, sources, given, targets, None, workspace)? };
            let Gradients { x, dt, a, b, c, d, z, dt_bias, initial_state } = gradients;
            let outputs = [Some(x), Some(dt), Some(a), Some(b), Some(c), d, z, dt_bias, initial_state];
            call.finish(outputs.into_iter().flatten().collect())
        })
    }

    fn placement(&self) -> Placement<'_> {
        Placement { owner: self, device: Dealer(0), staging: Dealer(0) }
    }
}

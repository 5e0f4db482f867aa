//! Calls from and to host memory.
//!
//! Pageable memory crosses the bus at a third of the speed of pinned memory. So inputs are copied piece by piece,
//! by several threads, into pinned memory of the device's pool, each piece on its way while the next ones are
//! copied; outputs come back in the same way. What lies in a [`PinnedBuffer`] already is not copied at all.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;

use super::buffers::{LaneGuard, PinnedBuffer, lock};
use super::device::Device;
use super::driver::{During, guarded};
use super::launch::Pass;
use crate::{Error, Gradients, Inputs, OutputGradients, Outputs, Problem};

/// Bytes that are copied, and sent, at a time.
const PIECE: usize = 512 << 10;
/// Threads that help to copy at most: a few fill the memory's bandwidth.
const HELPERS: usize = 7;
/// Alignment of the tensors in device and staging memory.
const ALIGNMENT: usize = 256;

/// A copy from one place of the host's memory to another.
struct Copy<'a> {
    to: &'a mut [u8],
    from: &'a [u8],
}

/// Copies past the cache where the processor can: a device reads memory faster that no cache holds a newer copy of.
fn stage(to: &mut [u8], from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        // SAFETY: any bytes are a vector, and a vector is bytes.
        let (head, body, tail) = unsafe { to.align_to_mut::<__m128i>() };
        let (first, rest) = from.split_at(head.len());
        let (middle, last) = rest.split_at(size_of_val(body));
        head.copy_from_slice(first);
        for (to, from) in body.iter_mut().zip(middle.chunks_exact(size_of::<__m128i>())) {
            // SAFETY: both are 16 bytes, the target is aligned, and every x86-64 has these instructions.
            unsafe { _mm_stream_si128(to, _mm_loadu_si128(from.as_ptr().cast())) };
        }
        tail.copy_from_slice(last);
        // SAFETY: every x86-64 has the instruction. It orders the stores above before the device is told of them.
        unsafe { _mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

/// Runs copies by several threads. `arrived` is called with each, in order, as soon as it is done.
fn copy_in_order(
    copies: Vec<Copy<'_>>,
    mut arrived: impl FnMut(usize, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let count = copies.len();
    let done: Vec<AtomicBool> = (0..count).map(|_| AtomicBool::new(false)).collect();
    let copies: Vec<Mutex<Copy<'_>>> = copies.into_iter().map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    // Takes the next copy and runs it; false where none is left.
    let run_one = || {
        let k = next.fetch_add(1, Ordering::Relaxed);
        if k < count {
            let Copy { to, from } = &mut *lock(&copies[k]);
            stage(to, from);
            done[k].store(true, Ordering::Release);
        }
        k < count
    };
    rayon::in_place_scope(|scope| {
        let helpers = HELPERS.min(rayon::current_num_threads()).min(count.saturating_sub(1));
        for _ in 0..helpers {
            scope.spawn(|_| while run_one() {});
        }
        for (k, done) in done.iter().enumerate() {
            while !done.load(Ordering::Acquire) {
                if !run_one() {
                    std::hint::spin_loop();
                }
            }
            arrived(k, lock(&copies[k]).to)?;
        }
        Ok(())
    })
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

    /// Starts the inputs on their way to the device.
    fn send(&mut self, inputs: &[&Placed<&[u8]>]) -> Result<(), Error> {
        let device = self.device;
        let (stream, base) = (self.lane.stream, self.lane.address());
        let send = |to: CUdeviceptr, bytes: &[u8]| {
            // SAFETY: the bytes are pinned, and stay as they are until the call has waited for its stream.
            unsafe { result::memcpy_htod_async(to, bytes, stream) }
                .during(|| format!("copying inputs to {device}"))
        };
        let mut addresses = Vec::new();
        let mut copies = Vec::new();
        let mut staging = Carver::new(&mut self.staging);
        for input in inputs {
            let address = base + input.device as CUdeviceptr;
            let Some(at) = input.staging else {
                send(address, input.bytes)?;
                continue;
            };
            let staged = staging.carve(at, input.bytes.len());
            for (number, (to, from)) in staged.chunks_mut(PIECE).zip(input.bytes.chunks(PIECE)).enumerate() {
                addresses.push(address + (number * PIECE) as CUdeviceptr);
                copies.push(Copy { to, from });
            }
        }
        copy_in_order(copies, |k, bytes| send(addresses[k], bytes))
    }

    /// Fetches the outputs and ends the call.
    fn finish(mut self, outputs: Vec<Placed<&mut [u8]>>) -> Result<(), Error> {
        let device = self.device;
        let doing = || format!("running the scan on {device}");
        let mut copies = Vec::new();
        for output in outputs {
            let address = self.address(output.device);
            let Some(at) = output.staging else {
                // SAFETY: the target is pinned, and borrowed until the call has waited for its stream.
                unsafe { result::memcpy_dtoh_async(output.bytes, address, self.lane.stream) }
                    .during(doing)?;
                continue;
            };
            for (number, to) in output.bytes.chunks_mut(PIECE).enumerate() {
                let at = at + number * PIECE;
                let staged = &mut self.staging[at..][..to.len()];
                let from = address + (number * PIECE) as CUdeviceptr;
                // SAFETY: the staging memory is read only after the event below.
                unsafe { result::memcpy_dtoh_async(staged, from, self.lane.stream) }.during(doing)?;
                self.lane.record(copies.len()).during(doing)?;
                copies.push((at, to));
            }
        }
        let (lane, staging) = (&self.lane, &self.staging);
        let last = copies.len().saturating_sub(1);
        rayon::in_place_scope(|scope| {
            for (number, (at, to)) in copies.into_iter().enumerate() {
                lane.wait(number).during(doing)?;
                let from = &staging[at..][..to.len()];
                if number < last {
                    scope.spawn(move |_| to.copy_from_slice(from));
                } else {
                    to.copy_from_slice(from);
                }
            }
            Ok(())
        })?;
        self.lane.synchronize().during(doing)
    }
}

/// Carves pieces that follow one another out of a range of memory.
struct Carver<'a> {
    rest: &'a mut [u8],
    at: usize,
}

impl<'a> Carver<'a> {
    fn new(rest: &'a mut [u8]) -> Self {
        Self { rest, at: 0 }
    }

    /// `len` bytes from `at`, which lies behind all pieces carved before.
    fn carve(&mut self, at: usize, len: usize) -> &'a mut [u8] {
        let (_, rest) = std::mem::take(&mut self.rest).split_at_mut(at - self.at);
        let (piece, rest) = rest.split_at_mut(len);
        (self.rest, self.at) = (rest, at + len);
        piece
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
            call.send(&inputs.iter().map(|(_, input)| input).collect::<Vec<_>>())?;
            let sources = inputs.as_ref().map(|_, input| call.address(input.device));
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
            let given = inputs.iter().chain(output_gradients.iter()).map(|(_, input)| input);
            call.send(&given.collect::<Vec<_>>())?;
            let sources = inputs.as_ref().map(|_, input| call.address(input.device));
            let given = output_gradients.as_ref().map(|_, gradient| call.address(gradient.device));
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

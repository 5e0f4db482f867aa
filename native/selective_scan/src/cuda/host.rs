//! Calls from and to host memory.
//!
//! Pageable memory crosses the bus at a third of the speed of pinned memory. So inputs are copied by several threads
//! into pinned memory of the device's pool, as much as one transfer sends at a time, which is on its way while what the next ones
//! send is copied; outputs come back in the same way. What lies in a [`PinnedBuffer`] already is not copied at all. Of a small
//! call, tensors share a few transfers, for which this thread alone copies, and kernels write results to pinned memory themselves.
//!
//! Rows of the batch know nothing of one another in the forward pass. A large batch is cut in a few slices, and while
//! one is scanned and its results come back, the next one is on its way: the bus carries both directions at a time.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::available_parallelism;

use cudarc::driver::result;
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use rayon::{Scope, ThreadPool};

use super::buffers::{PinnedBuffer, lock};
use super::device::Device;
use super::driver::{During, guarded};
use super::launch::Pass;
use super::policy::writes_outputs_once;
use crate::threads::pool;
use crate::{Error, Gradients, Inputs, OutputGradients, Outputs, Problem, Projection};

/// Bytes of a transfer: usually, and in calls with few bytes of inputs, so that the first is on its way early.
const TRANSFER: usize = 512 << 10;
const SMALL_TRANSFER: usize = 256 << 10;
const SMALL_CALL: usize = 2 << 20;
/// Transfers from which on others help to copy what they send: to wake them takes as long as to copy for fewer.
const HELPED_FROM: usize = 4;
/// Bytes of a result in pinned memory that kernels write over the bus themselves, at most: a copy less, which takes 5 to 10 µs. Of larger
/// ones they would wait for the bus (bench/NOTES.md, "Calls from and to memory of the host").
const DIRECT: usize = 256 << 10;
/// Threads that help to copy at most: a few fill the memory's bandwidth.
const HELPERS: usize = 7;
/// Alignment of the tensors in device and staging memory.
const ALIGNMENT: usize = 256;
/// Slices of a batch at most, and bytes of x in the smallest: each costs launches and events, some ten microseconds.
const SLICES: usize = 4;
const SMALLEST_SLICE: usize = 256 << 10;

/// The threads that help to copy, if there are any. They are nobody else's: whoever is done waits for helpers that have not begun, and
/// among scans on the processor these would not begin before such a scan ends.
fn helpers() -> Option<&'static ThreadPool> {
    static HELPING: OnceLock<ThreadPool> = OnceLock::new();
    pool(&HELPING, HELPERS.min(available_parallelism().map_or(1, NonZero::get)))
}

/// What is sent at a time: what lies in staging memory when it has been copied there, part by part, or where it is.
enum Transfer<'a> {
    Staged { to: &'a mut [u8], parts: Vec<&'a [u8]> },
    Pinned(&'a [u8]),
}

impl Transfer<'_> {
    fn copy(&mut self) {
        let Self::Staged { to, parts } = self else { return };
        let mut to = &mut **to;
        for part in parts {
            let own = carve(&mut to, part.len());
            stage(own, part);
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Staged { to, .. } => to,
            Self::Pinned(bytes) => bytes,
        }
    }
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

/// Copies transfers by several threads. `arrived` is called with each, in order, as soon as it is copied.
fn copy_in_order(
    transfers: Vec<Transfer<'_>>,
    mut arrived: impl FnMut(usize, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let count = transfers.len();
    let staged = transfers.iter().filter(|transfer| matches!(transfer, Transfer::Staged { .. })).count();
    let done: Vec<AtomicBool> = (0..count).map(|_| AtomicBool::new(false)).collect();
    let transfers: Vec<Mutex<Transfer<'_>>> = transfers.into_iter().map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    // Takes the next transfer and copies it; false where none is left.
    let run_one = || {
        let k = next.fetch_add(1, Ordering::Relaxed);
        if k < count {
            lock(&transfers[k]).copy();
            done[k].store(true, Ordering::Release);
        }
        k < count
    };
    let mut in_order = || {
        for (k, done) in done.iter().enumerate() {
            while !done.load(Ordering::Acquire) {
                if !run_one() {
                    std::hint::spin_loop();
                }
            }
            arrived(k, lock(&transfers[k]).bytes())?;
        }
        Ok(())
    };
    match (staged >= HELPED_FROM).then(helpers).flatten() {
        None => in_order(),
        Some(helpers) => helpers.in_place_scope(|scope| {
            for _ in 0..helpers.current_num_threads().min(staged - 1) {
                scope.spawn(|_| while run_one() {});
            }
            in_order()
        }),
    }
}

/// Runs copies, each as soon as `wait` says that its event has passed: the last on this thread, as all where there is no scope.
fn copy_back<'a>(
    copies: Vec<(usize, &'a [u8], &'a mut [u8])>,
    wait: impl Fn(usize) -> Result<(), Error>,
    scope: Option<&Scope<'a>>,
) -> Result<(), Error> {
    let last = copies.len().saturating_sub(1);
    for (number, (event, from, to)) in copies.into_iter().enumerate() {
        wait(event)?;
        match scope {
            Some(scope) if number < last => scope.spawn(move |_| to.copy_from_slice(from)),
            _ => to.copy_from_slice(from),
        }
    }
    Ok(())
}

/// Takes the first bytes of staging memory.
fn carve<'a>(staging: &mut &'a mut [u8], len: usize) -> &'a mut [u8] {
    let whole = len.next_multiple_of(ALIGNMENT).min(staging.len());
    let (carved, rest) = std::mem::take(staging).split_at_mut(whole);
    *staging = rest;
    &mut carved[..len]
}

/// Where a tensor lies for the kernels: in the call's device memory, where it begins and how far it is from slice to slice; or in pinned
/// memory, which has the same address for them.
#[derive(Clone, Copy)]
enum Place {
    OnDevice { at: usize, stride: usize },
    OnHost(CUdeviceptr),
}

impl Place {
    /// The address of a slice, where device memory begins at `base`.
    fn address(self, base: CUdeviceptr, slice: usize) -> CUdeviceptr {
        match self {
            Self::OnDevice { at, stride } => base + (at + slice * stride) as CUdeviceptr,
            Self::OnHost(address) => address,
        }
    }
}

/// An input, or a slice of one, on its way to the device, or so much of it as is sent at a time; several that are neighbours there and
/// have to be copied are sent together.
struct Incoming<'a> {
    parts: Vec<&'a [u8]>,
    to: usize,
    len: usize,
    pinned: bool,
}

impl<'a> Incoming<'a> {
    fn new(bytes: &'a [u8], to: usize, pinned: bool) -> Self {
        Self { parts: vec![bytes], to, len: bytes.len(), pinned }
    }

    /// Whether the next one can be sent with it, in a transfer of so many bytes: nothing lies between them on the device but what
    /// rounds the former up ([`Call::deal`]), which takes whatever lies there in staging memory.
    fn is_joined_by(&self, next: &Self, transfer: usize) -> bool {
        !(self.pinned || next.pinned)
            && self.to + self.len.next_multiple_of(ALIGNMENT) == next.to
            && next.to + next.len <= self.to + transfer
    }

    fn join(&mut self, next: Self) {
        self.len = next.to + next.len - self.to;
        self.parts.extend(next.parts);
    }
}

/// An output, or a slice of one, on its way back.
struct Outgoing<'a> {
    bytes: &'a mut [u8],
    from: usize,
    pinned: bool,
}

/// What the kernels of a slice wait for, and what they leave.
#[derive(Default)]
struct Slice<'a> {
    incoming: Vec<Incoming<'a>>,
    outgoing: Vec<Outgoing<'a>>,
}

/// A call: what crosses the bus, and the memory that takes.
struct Call<'a> {
    slices: Vec<Slice<'a>>,
    /// Bytes of a transfer of inputs.
    transfer: usize,
    device_bytes: usize,
    staged_in: usize,
    staged_out: usize,
}

impl<'a> Call<'a> {
    /// With so many bytes of inputs.
    fn new(slices: usize, bytes: usize) -> Self {
        let slices = (0..slices).map(|_| Slice::default()).collect();
        let transfer = if bytes <= SMALL_CALL { SMALL_TRANSFER } else { TRANSFER };
        Self { slices, transfer, device_bytes: 0, staged_in: 0, staged_out: 0 }
    }

    /// Takes device memory for so many slices of a tensor, each aligned and rounded up: where the first lies, and how far one is from the
    /// next.
    fn deal(&mut self, slices: usize, width: usize) -> (usize, usize) {
        let (at, stride) = (self.device_bytes, width.next_multiple_of(ALIGNMENT));
        self.device_bytes += slices * stride;
        (at, stride)
    }

    /// An input, which lies in pinned memory or not; where it has no axis of the batch, the first slice brings it for all.
    fn input(&mut self, bytes: &'a [u8], by_rows: bool, pinned: bool) -> Place {
        let slices = if by_rows { self.slices.len() } else { 1 };
        let width = bytes.len() / slices;
        let (at, stride) = self.deal(slices, width);
        for (number, (slice, bytes)) in self.slices.iter_mut().zip(bytes.chunks(width)).enumerate() {
            self.staged_in += if pinned { 0 } else { stride };
            let to = at + number * stride;
            let width = if pinned { bytes.len() } else { self.transfer };
            for (number, bytes) in bytes.chunks(width).enumerate() {
                let next = Incoming::new(bytes, to + number * width, pinned);
                match slice.incoming.last_mut() {
                    Some(last) if last.is_joined_by(&next, self.transfer) => last.join(next),
                    _ => slice.incoming.push(next),
                }
            }
        }
        Place::OnDevice { at, stride: if by_rows { stride } else { 0 } }
    }

    /// An output, which has an axis of the batch wherever there are several slices. `direct`: kernels may write it over the bus.
    fn output(&mut self, bytes: &'a mut [u8], direct: bool, pinned: bool) -> Place {
        let is_small = self.slices.len() == 1 && bytes.len() <= DIRECT;
        if direct && pinned && is_small && bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            return Place::OnHost(bytes.as_mut_ptr().expose_provenance() as CUdeviceptr);
        }
        let width = bytes.len() / self.slices.len();
        let (at, stride) = self.deal(self.slices.len(), width);
        for (number, (slice, bytes)) in self.slices.iter_mut().zip(bytes.chunks_mut(width)).enumerate() {
            self.staged_out += if pinned { 0 } else { stride };
            slice.outgoing.push(Outgoing { bytes, from: at + number * stride, pinned });
        }
        Place::OnDevice { at, stride }
    }

    /// Carries the call out. `enqueue` puts the kernels of a slice on a stream; it is told where device memory begins.
    fn run(
        self,
        device: &Device,
        mut enqueue: impl FnMut(CUstream, CUdeviceptr, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Self { slices, device_bytes, staged_in, staged_out, .. } = self;
        let sending = || format!("copying inputs to {device}");
        let running = || format!("running the scan on {device}");
        // The queue is dropped first, and waits for its streams then: whatever fails, nothing is still on its way when
        // staging memory and what is borrowed go.
        let mut staging = device.pools.pinned(staged_in + staged_out)?;
        let mut queue = device.pools.queue(device_bytes)?;
        let (stream, base) = (queue.stream, queue.address());
        let overlapping = slices.len() > 1;
        let inward = if overlapping { queue.inward } else { stream };

        let (mut to_send, mut to_fetch) = staging.split_at_mut(staged_in);
        let (mut transfers, mut sent, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for Slice { incoming, outgoing } in slices {
            for Incoming { parts, to, len, pinned } in incoming {
                transfers.push(match pinned {
                    true => Transfer::Pinned(parts[0]),
                    false => Transfer::Staged { to: carve(&mut to_send, len), parts },
                });
                sent.push((base + to as CUdeviceptr, None));
            }
            // With the last of a slice, the slice is there.
            if let Some((_, completed)) = sent.last_mut() {
                *completed = Some(results.len());
            }
            results.push(outgoing);
        }

        let mut events = 0;
        let mut fetched = Vec::new();
        copy_in_order(transfers, |k, bytes| {
            let (address, completed) = sent[k];
            // SAFETY: the bytes are pinned, and stay as they are until the queue has waited for its streams.
            unsafe { result::memcpy_htod_async(address, bytes, inward) }.during(sending)?;
            let Some(slice) = completed else {
                return Ok(());
            };
            if overlapping {
                queue.record(events, inward).during(sending)?;
                queue.hold(events).during(sending)?;
                events += 1;
            }
            enqueue(stream, base, slice)?;
            for Outgoing { bytes, from, pinned } in results[slice].drain(..) {
                let width = if pinned { bytes.len() } else { TRANSFER };
                for (number, to) in bytes.chunks_mut(width).enumerate() {
                    let address = base + (from + number * width) as CUdeviceptr;
                    if pinned {
                        // SAFETY: the target is pinned, and borrowed until the queue has waited for its streams.
                        unsafe { result::memcpy_dtoh_async(to, address, stream) }.during(running)?;
                    } else {
                        let staged = carve(&mut to_fetch, to.len());
                        // SAFETY: the staging memory is read only after the event below.
                        unsafe { result::memcpy_dtoh_async(staged, address, stream) }.during(running)?;
                        queue.record(events, stream).during(running)?;
                        fetched.push((events, &*staged, to));
                        events += 1;
                    }
                }
            }
            Ok(())
        })?;

        let wait = |event| queue.wait(event).during(running);
        match (fetched.len() > 1).then(helpers).flatten() {
            None => copy_back(fetched, wait, None),
            Some(helpers) => helpers.in_place_scope(|scope| copy_back(fetched, wait, Some(scope))),
        }?;
        queue.synchronize().during(running)
    }
}

/// Bytes of tensors.
fn bytes_of<'a>(tensors: impl Iterator<Item = (&'static str, &'a &'a [u8])>) -> usize {
    tensors.map(|(_, bytes)| bytes.len()).sum()
}

/// Whether a tensor has an axis of the batch.
fn by_rows(problem: &Problem, name: &str) -> bool {
    match name {
        "a" | "d" | "dt_bias" => false,
        "b" => problem.b != Projection::Constant,
        "c" => problem.c != Projection::Constant,
        _ => true,
    }
}

/// Into how many slices the batch is cut: equal ones, so that they share kernels.
fn slices(problem: &Problem) -> usize {
    let fits =
        |count: &usize| problem.batch.is_multiple_of(*count) && problem.bytes("x") / count >= SMALLEST_SLICE;
    (2..=SLICES).rev().find(fits).unwrap_or(1)
}

impl Device {
    /// Pinned host memory: results handed to [`Device::forward`] or [`Device::backward`] in it are written without
    /// a copy in between.
    pub fn host_buffer(&self, len: usize) -> Result<PinnedBuffer, Error> {
        guarded(|| {
            let _current = self.enter()?;
            self.pools.pinned(len)
        })
    }

    /// How often this process has asked the driver for memory for the calls below and for their results. What was given back is
    /// used again, so that in a steady state this does not grow (within the bounds of buffers.rs).
    pub fn allocations(&self) -> usize {
        self.pools.allocations()
    }

    /// The forward pass, from and to host memory.
    pub fn forward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<(), Error> {
        problem.check_lengths(inputs.iter())?;
        problem.check_lengths(outputs.iter())?;
        guarded(|| {
            let _current = self.enter()?;
            let slices = slices(problem);
            let of_slice = Problem { batch: problem.batch / slices, ..problem.clone() };
            self.prepare(&of_slice, Pass::Forward)?;
            let is_pinned = |bytes: &[u8]| self.pools.is_pinned(bytes);
            let mut call = Call::new(slices, bytes_of(inputs.iter()));
            let inputs =
                inputs.map(|name, bytes| call.input(bytes, by_rows(problem, name), is_pinned(bytes)));
            let direct = writes_outputs_once(&of_slice);
            let outputs = outputs.map(|_, bytes| {
                let pinned = is_pinned(bytes);
                call.output(bytes, direct, pinned)
            });
            let (workspace, _) = call.deal(1, self.workspace_bytes(&of_slice, Pass::Forward));
            call.run(self, |stream, base, slice| {
                let address = |_: &str, place: &Place| place.address(base, slice);
                let (inputs, outputs) = (inputs.as_ref().map(address), outputs.as_ref().map(address));
                let workspace = base + workspace as CUdeviceptr;
                // SAFETY: the addresses lie in the queue's memory, or in pinned memory that is borrowed, with the lengths checked
                // above, and the queue is the call's until it has waited for its streams. Slices follow one another on the stream,
                // and so share the workspace.
                unsafe { self.enqueue_forward(stream, &of_slice, inputs, outputs, None, workspace) }
            })
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
        problem.check_lengths(inputs.iter().chain(output_gradients.iter()))?;
        problem.check_lengths(gradients.iter())?;
        guarded(|| {
            let _current = self.enter()?;
            self.prepare(problem, Pass::Backward)?;
            // One slice: the gradients of what all rows share are sums over them.
            let is_pinned = |bytes: &[u8]| self.pools.is_pinned(bytes);
            let mut call = Call::new(1, bytes_of(inputs.iter().chain(output_gradients.iter())));
            let mut input = |_: &str, bytes| call.input(bytes, true, is_pinned(bytes));
            let inputs = inputs.map(&mut input);
            let output_gradients = output_gradients.map(&mut input);
            let gradients = gradients.map(|_, bytes| {
                let pinned = is_pinned(bytes);
                // Those of x and dt hold other values until the pass is over.
                call.output(bytes, false, pinned)
            });
            let (workspace, _) = call.deal(1, self.workspace_bytes(problem, Pass::Backward));
            call.run(self, |stream, base, _| {
                let address = |_: &str, place: &Place| place.address(base, 0);
                let (inputs, gradients) = (inputs.as_ref().map(address), gradients.as_ref().map(address));
                let output_gradients = output_gradients.as_ref().map(address);
                let workspace = base + workspace as CUdeviceptr;
                // SAFETY: as in the forward pass.
                unsafe {
                    self.enqueue_backward(
                        stream,
                        problem,
                        inputs,
                        output_gradients,
                        gradients,
                        None,
                        workspace,
                    )
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While a slice is scanned, the next ones are sent: nothing of theirs may come to lie where that one's inputs are.
    #[test]
    fn transfers_of_a_slice_leave_the_others_alone() {
        for lengths in [[256, 256, 512], [1024, 64, 2048], [4, 1020, 36], [1 << 20, 12, 1 << 20]] {
            for slices in 1..=SLICES {
                let tensors = lengths.map(|len| vec![0; len * slices]);
                let mut call = Call::new(slices, tensors.iter().map(Vec::len).sum());
                let places = tensors.each_ref().map(|bytes| call.input(bytes, true, false));
                let of_slice = |slice| {
                    let address = |(place, len): (&Place, usize)| {
                        let at = place.address(0, slice) as usize;
                        at..at + len
                    };
                    Vec::from_iter(places.iter().zip(lengths).map(address))
                };
                for (number, slice) in call.slices.iter().enumerate() {
                    let others = (0..slices).filter(|&other| other != number).flat_map(of_slice);
                    for (own, other) in
                        others.flat_map(|other| slice.incoming.iter().map(move |own| (own, other.clone())))
                    {
                        let is_apart = own.to + own.len <= other.start || other.end <= own.to;
                        assert!(is_apart, "{lengths:?} in {slices}: {}..+{} over {other:?}", own.to, own.len);
                    }
                }
            }
        }
    }
}

//! Memory that is kept: pinned host memory, device memory, streams. A steady state allocates nothing, as long as what is idle
//! between calls is within the bounds below.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;

use cudarc::driver::result;
use cudarc::driver::sys::{CUdeviceptr, CUevent, CUevent_flags, CUevent_wait_flags, CUstream};

use super::context::Context;
use super::driver::{During, readable};
use crate::Error;

/// Idle pinned memory that a device keeps at most.
const IDLE_PINNED_BYTES: usize = 2 << 30;
/// Idle device memory that is kept at most: other libraries of the process have no way to it.
const IDLE_DEVICE_BYTES: usize = 4 << 30;
/// Idle queues that a device keeps at most.
const IDLE_QUEUES: usize = 16;
/// Sizes are rounded up to whole steps, so that calls of about the same size share memory.
const STEP: usize = 2 << 20;

/// The memory and the streams of a device that nobody uses at the moment.
pub(super) struct Pools {
    ordinal: usize,
    context: Context,
    pinned: Arc<PinnedPool>,
    queues: Mutex<Vec<Queue>>,
    allocations: AtomicUsize,
}

/// A lock that a panic elsewhere does not close.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Pools {
    pub(super) fn new(ordinal: usize, context: Context) -> Self {
        Self {
            ordinal,
            context,
            pinned: Arc::new(PinnedPool::new(context)),
            queues: Mutex::default(),
            allocations: AtomicUsize::new(0),
        }
    }

    /// How often memory, of the host or of the device, was asked of the driver.
    pub(super) fn allocations(&self) -> usize {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Pinned memory of at least this length. The context must be current.
    pub(super) fn pinned(&self, len: usize) -> Result<PinnedBuffer, Error> {
        self.pinned.take(len, &self.allocations).during_on_host(|| {
            format!("allocating {} of pinned memory for cuda:{}", readable(len), self.ordinal)
        })
    }

    /// Whether the bytes lie in pinned memory of this device.
    pub(super) fn is_pinned(&self, bytes: &[u8]) -> bool {
        self.pinned.holds(bytes)
    }

    /// A queue whose device memory has at least this length. The context must be current.
    pub(super) fn queue(&self, device_bytes: usize) -> Result<QueueGuard<'_>, Error> {
        let doing = || format!("allocating {} on cuda:{}", readable(device_bytes), self.ordinal);
        let idle = {
            let mut queues = lock(&self.queues);
            let fitting = queues
                .iter()
                .enumerate()
                .filter(|(_, queue)| queue.memory.len >= device_bytes)
                .min_by_key(|(_, queue)| queue.memory.len);
            match fitting.map(|(at, _)| at) {
                Some(at) => Some(queues.swap_remove(at)),
                None => queues.pop(),
            }
        };
        let mut queue = match idle {
            Some(queue) => queue,
            None => Queue::new(self.context).during(doing)?,
        };
        if queue.memory.len < device_bytes {
            self.allocations.fetch_add(1, Ordering::Relaxed);
            if queue.memory.grow(device_bytes).is_err() {
                // Other queues and other users of the device may come to terms: give back what is idle, once.
                let idle = std::mem::take(&mut *lock(&self.queues));
                drop(idle);
                self.pinned.trim(0);
                queue.memory.grow(device_bytes).during(doing)?;
            }
        }
        Ok(QueueGuard { pools: self, queue: Some(queue) })
    }
}

impl Pools {
    /// Takes a queue back whose streams are idle; what is beyond the bounds is freed, the largest first.
    fn keep(&self, queue: Queue) {
        let mut surplus = Vec::new();
        let mut queues = lock(&self.queues);
        queues.push(queue);
        while queues.len() > IDLE_QUEUES
            || queues.iter().map(|queue| queue.memory.len).sum::<usize>() > IDLE_DEVICE_BYTES
        {
            let largest = (0..queues.len()).max_by_key(|&at| queues[at].memory.len);
            surplus.extend(largest.map(|at| queues.swap_remove(at)));
        }
        drop(queues);
        drop(surplus); // others need not wait for the driver
    }
}

// --- Pinned memory ------------------------------------------------------------------------------------------

struct PinnedPool {
    context: Context,
    state: Mutex<PinnedState>,
    /// Held while memory is freed: who has none waits for what is on its way.
    freeing: Mutex<()>,
}

#[derive(Default)]
struct PinnedState {
    /// Memory that nobody uses, by its size.
    idle: BTreeMap<usize, Vec<Region>>,
    idle_bytes: usize,
    /// Whether a thread frees what is beyond the bound.
    is_trimmed: bool,
    /// Memory in use: start and length.
    used: BTreeMap<usize, usize>,
}

/// A region of pinned memory.
#[derive(Clone, Copy)]
struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is memory, and belongs to whoever holds it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl PinnedPool {
    fn new(context: Context) -> Self {
        Self { context, state: Mutex::default(), freeing: Mutex::default() }
    }

    /// Memory that is idle, or new, which is counted.
    fn take(
        self: &Arc<Self>,
        len: usize,
        allocations: &AtomicUsize,
    ) -> Result<PinnedBuffer, cudarc::driver::DriverError> {
        let rounded = len.max(1).checked_next_multiple_of(4096).unwrap_or(usize::MAX);
        let mut state = lock(&self.state);
        // Somewhat larger will do; much larger is kept for those who need it.
        let fitting = state.idle.range(rounded..=rounded.saturating_mul(2)).next().map(|(&size, _)| size);
        let region = match fitting.and_then(|size| state.pop(size)) {
            Some(region) => region,
            None => {
                drop(state);
                allocations.fetch_add(1, Ordering::Relaxed);
                let region = allocate(rounded).or_else(|_| {
                    self.trim(0);
                    allocate(rounded)
                })?;
                state = lock(&self.state);
                region
            }
        };
        state.used.insert(region.start.as_ptr() as usize, region.len);
        Ok(PinnedBuffer { region, len, pool: Arc::clone(self) })
    }

    fn give_back(self: &Arc<Self>, region: Region) {
        let mut state = lock(&self.state);
        state.used.remove(&(region.start.as_ptr() as usize));
        state.idle.entry(region.len).or_default().push(region);
        state.idle_bytes += region.len;
        if state.idle_bytes <= IDLE_PINNED_BYTES || state.is_trimmed {
            return;
        }
        state.is_trimmed = true;
        drop(state);
        // Who gives a result back may be a scheduler that must not wait as long as the driver takes. Where no thread can be had, the
        // next that is given back asks once more.
        let pool = Arc::clone(self);
        if Builder::new().spawn(move || pool.trim_to_the_bound()).is_err() {
            lock(&self.state).is_trimmed = false;
        }
    }

    /// Frees what is beyond the bound, and what others give back meanwhile.
    fn trim_to_the_bound(&self) {
        loop {
            self.trim(IDLE_PINNED_BYTES);
            let mut state = lock(&self.state);
            if state.idle_bytes <= IDLE_PINNED_BYTES {
                state.is_trimmed = false;
                return;
            }
        }
    }

    /// Frees idle memory, the largest first, until no more than this is left. Others need not wait for the driver.
    fn trim(&self, most: usize) {
        let _turn = lock(&self.freeing);
        let mut surplus = Vec::new();
        let mut state = lock(&self.state);
        while state.idle_bytes > most {
            let Some(region) = state.idle.keys().next_back().copied().and_then(|size| state.pop(size)) else {
                break;
            };
            surplus.push(region);
        }
        drop(state);
        for region in surplus {
            // After the driver has shut down there is none, and nothing to be freed.
            let _current = self.context.enter();
            // SAFETY: the region was allocated by the driver as pinned and nobody uses it.
            let _ = unsafe { result::free_host(region.start.as_ptr().cast()) };
        }
    }

    fn holds(&self, bytes: &[u8]) -> bool {
        let Range { start, end } = bytes.as_ptr_range();
        let state = lock(&self.state);
        let before = state.used.range(..=start as usize).next_back();
        before.is_some_and(|(&first, &len)| end as usize <= first + len)
    }
}

impl PinnedState {
    fn pop(&mut self, size: usize) -> Option<Region> {
        let regions = self.idle.get_mut(&size)?;
        let region = regions.pop();
        if regions.is_empty() {
            self.idle.remove(&size);
        }
        if region.is_some() {
            self.idle_bytes -= size;
        }
        region
    }
}

fn allocate(len: usize) -> Result<Region, cudarc::driver::DriverError> {
    // SAFETY: a context is current.
    let start = unsafe { result::malloc_host(len, 0) }?;
    let out_of_memory = cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let start = NonNull::new(start.cast()).ok_or(cudarc::driver::DriverError(out_of_memory))?;
    // Whatever was there: it becomes readable as bytes.
    // SAFETY: the memory is ours and has this length.
    unsafe { std::ptr::write_bytes(start.as_ptr(), 0, len) };
    Ok(Region { start, len })
}

/// Host memory that the device reads and writes directly. It goes back to the device's pool when dropped.
pub struct PinnedBuffer {
    region: Region,
    len: usize,
    pool: Arc<PinnedPool>,
}

impl std::fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the region is ours, initialized, and at least this long.
        unsafe { std::slice::from_raw_parts(self.region.start.as_ptr(), self.len) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.region.start.as_ptr(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        self.pool.give_back(self.region);
    }
}

// --- Queues -------------------------------------------------------------------------------------------------

/// Device memory that grows and is never divided.
struct DeviceMemory {
    address: CUdeviceptr,
    len: usize,
}

impl DeviceMemory {
    /// Makes room for this many bytes; what was there is lost.
    fn grow(&mut self, bytes: usize) -> Result<(), cudarc::driver::DriverError> {
        self.free();
        let len = bytes.checked_next_multiple_of(STEP).unwrap_or(bytes);
        // SAFETY: a context is current.
        self.address = unsafe { result::malloc_sync(len) }?;
        self.len = len;
        Ok(())
    }

    fn free(&mut self) {
        if self.len > 0 {
            // SAFETY: the memory is ours, and the queue's streams have run what used it.
            let _ = unsafe { result::free_sync(self.address) };
            self.len = 0;
        }
    }
}

/// What one call at a time works with: streams, device memory, events.
pub(super) struct Queue {
    context: Context,
    /// For kernels, and for all that follows one another.
    pub(super) stream: CUstream,
    /// For inputs, where they are on their way while kernels run.
    pub(super) inward: CUstream,
    memory: DeviceMemory,
    events: Vec<CUevent>,
}

// SAFETY: streams and events are handles that the driver lets every thread use; a queue belongs to one call.
unsafe impl Send for Queue {}

impl Queue {
    fn new(context: Context) -> Result<Self, cudarc::driver::DriverError> {
        let create = || result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = create()?;
        let inward = create().inspect_err(|_| {
            // SAFETY: the stream is ours and destroyed once.
            let _ = unsafe { result::stream::destroy(stream) };
        })?;
        Ok(Self { context, stream, inward, memory: DeviceMemory { address: 0, len: 0 }, events: Vec::new() })
    }

    /// Where the queue's device memory begins.
    pub(super) fn address(&self) -> CUdeviceptr {
        self.memory.address
    }

    /// Records the queue's event of this number on one of its streams.
    pub(super) fn record(
        &mut self,
        number: usize,
        stream: CUstream,
    ) -> Result<(), cudarc::driver::DriverError> {
        while self.events.len() <= number {
            self.events.push(result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?);
        }
        // SAFETY: the event and the stream are alive.
        unsafe { result::event::record(self.events[number], stream) }
    }

    /// Holds up the kernels until the queue's event of this number.
    pub(super) fn hold(&self, number: usize) -> Result<(), cudarc::driver::DriverError> {
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event is alive and was recorded; the stream is alive.
        unsafe { result::stream::wait_event(self.stream, self.events[number], flags) }
    }

    /// Waits for the queue's event of this number.
    pub(super) fn wait(&self, number: usize) -> Result<(), cudarc::driver::DriverError> {
        // SAFETY: the event is alive and was recorded.
        unsafe { result::event::synchronize(self.events[number]) }
    }

    /// Waits for all that was enqueued.
    pub(super) fn synchronize(&self) -> Result<(), cudarc::driver::DriverError> {
        // SAFETY: the streams are alive.
        unsafe {
            let inward = result::stream::synchronize(self.inward);
            result::stream::synchronize(self.stream).and(inward)
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // As where memory is trimmed.
        let _current = self.context.enter();
        self.memory.free();
        for event in self.events.drain(..) {
            // SAFETY: the event is ours and destroyed once.
            let _ = unsafe { result::event::destroy(event) };
        }
        for stream in [self.stream, self.inward] {
            // SAFETY: the stream is ours and destroyed once.
            let _ = unsafe { result::stream::destroy(stream) };
        }
    }
}

/// A queue on loan. It goes back once its streams are idle, whatever became of the call.
pub(super) struct QueueGuard<'a> {
    pools: &'a Pools,
    queue: Option<Queue>,
}

impl Deref for QueueGuard<'_> {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        self.queue.as_ref().expect("held until dropped")
    }
}

impl DerefMut for QueueGuard<'_> {
    fn deref_mut(&mut self) -> &mut Queue {
        self.queue.as_mut().expect("held until dropped")
    }
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        if queue.synchronize().is_err() {
            // The context is lost, and what belonged to it with it.
            std::mem::forget(queue);
            return;
        }
        self.pools.keep(queue);
    }
}

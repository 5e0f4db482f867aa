//! The driver as programs see it: the functions of libcuda that ours calls.
//!
//! Streams and events are names for nothing: whatever is enqueued has been done when the call returns. The device is one
//! of [`DEVICES`], named by EXPHIL_EMULATED_GPU.
#![allow(non_snake_case, reason = "they have the names that CUDA gives them")]
#![allow(clippy::missing_safety_doc, reason = "as CUDA's driver API says of each")]
#![allow(missing_docs, reason = "as CUDA's driver API says of each")]

use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute,
    CUlaunchConfig, CUmemorytype, CUmodule, CUpointer_attribute, CUresult, CUstream, CUtensorMap,
    CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};

use crate::engine::TensorMap;
use crate::global::{self, Home};
use crate::launch::Launch;
use crate::module::{Kernel, Module};
use crate::parse::parse;

/// A device.
struct Device {
    /// What EXPHIL_EMULATED_GPU calls it, and its name.
    name: &'static CStr,
    /// Its compute capability: one that no NVRTC has machine code for, so that it gives PTX for the one before.
    capability: (c_int, c_int),
    multiprocessors: c_int,
    /// Shared memory that a block and a multiprocessor can have, in KiB.
    shared: (c_int, c_int),
}

const fn device(
    name: &'static CStr,
    capability: (c_int, c_int),
    multiprocessors: c_int,
    shared: (c_int, c_int),
) -> Device {
    Device { name, capability, multiprocessors, shared }
}

/// One like the largest of each generation (CUDA C++ Programming Guide, technical specifications per compute capability).
const DEVICES: &[Device] = &[
    device(c"turing", (7, 6), 68, (64, 64)),
    device(c"ampere", (8, 1), 108, (163, 164)),
    device(c"ada", (8, 5), 128, (99, 100)),
    device(c"hopper", (9, 1), 132, (227, 228)),
    device(c"blackwell", (10, 9), 148, (227, 228)),
    device(c"blackwell-rtx", (12, 9), 170, (99, 100)),
];

/// Memory of every device: little, so that asking for too much fails here as it does there.
const MEMORY_BYTES: usize = 4 << 30;

/// What shared memory of a block costs a multiprocessor beside its length.
const RESERVED_SHARED: usize = 1 << 10;

const THREADS_OF_A_MULTIPROCESSOR: usize = 1024;

/// Threads of a block.
const MOST_THREADS: usize = 1024;

const OK: CUresult = CUresult::CUDA_SUCCESS;

/// A kernel of a module that has been loaded, and is never unloaded: what a handle points to. That of a module points to all
/// of its.
struct Loaded {
    module: &'static Module,
    kernel: &'static Kernel,
}

fn the_device() -> &'static Device {
    let named = std::env::var("EXPHIL_EMULATED_GPU").unwrap_or("hopper".to_owned());
    DEVICES.iter().find(|device| device.name.to_bytes() == named.as_bytes()).unwrap_or_else(|| {
        let names: Vec<_> = DEVICES.iter().map(|device| device.name.to_string_lossy()).collect();
        panic!("EXPHIL_EMULATED_GPU is {named}, none of {}", names.join(", "))
    })
}

/// Says why something failed: the numbers that the driver API answers with would not.
fn complain(reason: &str) {
    eprintln!("emulated GPU: {reason}");
}

// --- The device ---------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> CUresult {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    // SAFETY: the caller's.
    unsafe { *version = 13000 };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, name: *mut *const c_char) -> CUresult {
    let text = match error {
        OK => c"CUDA_SUCCESS",
        CUresult::CUDA_ERROR_INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        CUresult::CUDA_ERROR_INVALID_PTX => c"CUDA_ERROR_INVALID_PTX",
        CUresult::CUDA_ERROR_NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        CUresult::CUDA_ERROR_LAUNCH_FAILED => c"CUDA_ERROR_LAUNCH_FAILED",
        _ => c"CUDA_ERROR_UNKNOWN",
    };
    // SAFETY: the caller's.
    unsafe { *name = text.as_ptr() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(_error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's.
    unsafe { *text = c"of an emulated GPU".as_ptr() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    // SAFETY: the caller's.
    unsafe { *count = 1 };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    // SAFETY: the caller's.
    unsafe { *device = ordinal };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: CUdevice) -> CUresult {
    let text = the_device().name.to_bytes_with_nul();
    let length = text.len().min(length as usize);
    // SAFETY: the caller's; the text ends with a zero if there is room for one.
    unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), length) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: CUdevice) -> CUresult {
    // SAFETY: the caller's.
    unsafe { *bytes = MEMORY_BYTES };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    _device: CUdevice,
) -> CUresult {
    use CUdevice_attribute::*;
    let Device { capability: (major, minor), multiprocessors, shared: (of_block, of_all), .. } =
        *the_device();
    let known = match attribute {
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => major,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => minor,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => multiprocessors,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => of_block << 10,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => of_all << 10,
        // There is none: kernels are those for sequences that no cache holds.
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => 0,
        _ => return CUresult::CUDA_ERROR_INVALID_VALUE,
    };
    // SAFETY: the caller's.
    unsafe { *value = known };
    OK
}

// --- Contexts, streams, events ------------------------------------------------------------------------------

/// A handle that is not null and leads nowhere.
fn somewhere<T>() -> *mut T {
    std::ptr::dangling_mut::<u64>().cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, _device: CUdevice) -> CUresult {
    // SAFETY: the caller's.
    unsafe { *context = somewhere() };
    OK
}

thread_local! {
    /// The contexts that were made current in this thread, by their addresses, the last one on top; 0 is none.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn current() -> usize {
    CURRENT.with_borrow(|current| current.last().copied().unwrap_or(0))
}

/// Whether what belongs to a context may be made here.
fn has_context() -> bool {
    if current() == 0 {
        complain("no context is current in this thread");
    }
    current() != 0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    // SAFETY: the caller's.
    unsafe { *context = without_provenance_mut(current()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    CURRENT.with_borrow_mut(|current| {
        current.pop();
        current.push(context.addr());
    });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> CUresult {
    CURRENT.with_borrow_mut(|current| current.push(context.addr()));
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CUresult {
    let Some(popped) = CURRENT.with_borrow_mut(Vec::pop) else {
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    };
    // SAFETY: the caller's.
    unsafe { *context = without_provenance_mut(popped) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, _flags: c_uint) -> CUresult {
    if !has_context() {
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    }
    // SAFETY: the caller's.
    unsafe { *stream = somewhere() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(_stream: CUstream) -> CUresult {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(_stream: CUstream, _event: CUevent, _flags: c_uint) -> CUresult {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(_stream: CUstream) -> CUresult {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, _flags: c_uint) -> CUresult {
    // SAFETY: the caller's.
    unsafe { *event = somewhere() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(_event: CUevent, _stream: CUstream) -> CUresult {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(_event: CUevent) -> CUresult {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(_event: CUevent) -> CUresult {
    OK
}

// --- Memory -------------------------------------------------------------------------------------------------

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), 256).ok()
}

/// Memory whose bytes are no numbers until somebody writes some.
fn allocate(bytes: usize, home: Home) -> Option<*mut c_void> {
    let is_too_much = home == Home::Device && global::device_bytes().saturating_add(bytes) > MEMORY_BYTES;
    let layout = layout(bytes).filter(|_| !is_too_much)?;
    // SAFETY: the layout has a length.
    let start = unsafe { alloc(layout) };
    if start.is_null() {
        return None;
    }
    // SAFETY: the memory is ours and has this length.
    unsafe { start.write_bytes(0xff, layout.size()) };
    global::add(start.expose_provenance(), bytes, home);
    Some(start.cast())
}

/// # Safety
///
/// Nobody uses the memory from now on.
unsafe fn free(start: *mut c_void, home: Home) -> CUresult {
    match global::remove(start.addr(), home).and_then(layout) {
        // SAFETY: what is known and no variable was allocated with the layout of its length.
        Some(layout) => unsafe { dealloc(start.cast(), layout) },
        None => return CUresult::CUDA_ERROR_INVALID_VALUE,
    }
    OK
}

/// Whether so many bytes lie in one region.
fn is_allocated(address: CUdeviceptr, bytes: usize) -> bool {
    bytes == 0 || global::region(address as usize, bytes).is_some()
}

fn pointer(address: CUdeviceptr) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> CUresult {
    if !has_context() {
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    }
    match allocate(bytes, Home::Device) {
        // SAFETY: the caller's.
        Some(start) => unsafe { *address = start.expose_provenance() as CUdeviceptr },
        None => return CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the caller's.
    unsafe { (*free, *total) = (MEMORY_BYTES - global::device_bytes(), MEMORY_BYTES) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { free(pointer(address), Home::Device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(start: *mut *mut c_void, bytes: usize, _flags: c_uint) -> CUresult {
    if !has_context() {
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    }
    let allocated = allocate(bytes, Home::Host);
    // SAFETY: the caller's.
    unsafe { *start = allocated.unwrap_or(null_mut()) };
    if allocated.is_some() { OK } else { CUresult::CUDA_ERROR_OUT_OF_MEMORY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(start: *mut c_void) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { free(start, Home::Host) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) -> CUresult {
    if !is_allocated(to, bytes) {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(from, pointer(to), bytes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) -> CUresult {
    if !is_allocated(from, bytes) {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(pointer(from), to, bytes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    _stream: CUstream,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { cuMemcpyHtoD_v2(to, from, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    _stream: CUstream,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { cuMemcpyDtoH_v2(to, from, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(to: CUdeviceptr, value: u8, bytes: usize) -> CUresult {
    if !is_allocated(to, bytes) {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { pointer(to).cast::<u8>().write_bytes(value, bytes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: u8,
    bytes: usize,
    _stream: CUstream,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { cuMemsetD8_v2(to, value, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut CUpointer_attribute,
    values: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    use CUpointer_attribute::{CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    let kind = match global::region(address as usize, 1) {
        Some((_, _, Home::Device)) => CUmemorytype::CU_MEMORYTYPE_DEVICE as u32,
        Some((_, _, Home::Host)) => CUmemorytype::CU_MEMORYTYPE_HOST as u32,
        _ => 0,
    };
    for at in 0..count as usize {
        // SAFETY: the caller's arrays have so many.
        let (attribute, value) = unsafe { (*attributes.add(at), *values.add(at)) };
        let known = match attribute {
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE => kind,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => 0,
            _ => return CUresult::CUDA_ERROR_INVALID_VALUE,
        };
        // SAFETY: either attribute has 32 bits.
        unsafe { *value.cast::<u32>() = known };
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut CUtensorMap,
    element: CUtensorMapDataType,
    rank: c_uint,
    address: *mut c_void,
    shape: *const u64,
    strides: *const u64,
    tile: *const c_uint,
    steps: *const c_uint,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    _promotion: CUtensorMapL2promotion,
    fill: CUtensorMapFloatOOBfill,
) -> CUresult {
    let rank = rank as usize;
    let swizzled = match swizzle {
        CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE => None,
        CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B => Some(64),
        CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B => Some(128),
        _ => return CUresult::CUDA_ERROR_NOT_SUPPORTED,
    };
    let element = match element {
        CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32 => 4,
        CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
        | CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16 => 2,
        _ => return CUresult::CUDA_ERROR_NOT_SUPPORTED,
    };
    if interleave != CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE
        || fill != CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
        || !(3..=5).contains(&rank)
    {
        return CUresult::CUDA_ERROR_NOT_SUPPORTED;
    }
    // SAFETY: the caller's arrays have an element for each dimension, but that of the strides, which has one less.
    let (shape, strides, tile, steps) = unsafe {
        (
            std::slice::from_raw_parts(shape, rank),
            std::slice::from_raw_parts(strides, rank - 1),
            std::slice::from_raw_parts(tile, rank),
            std::slice::from_raw_parts(steps, rank),
        )
    };
    let described = TensorMap {
        address: address as u64,
        element,
        shape: shape.to_vec(),
        strides: strides.to_vec(),
        tile: tile.to_vec(),
        swizzled,
    };
    if steps.iter().any(|&step| step != 1) || !described.is_valid() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's.
    unsafe { (*map).opaque = described.words() };
    OK
}

// --- Kernels ------------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    if !has_context() {
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    }
    // SAFETY: PTX ends with a zero, and of machine code, an ELF file, one follows soon.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    if text.to_bytes().starts_with(b"\x7fELF") {
        return CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    match text.to_str().map_err(|error| error.to_string()).and_then(parse) {
        Ok(parsed) => {
            let (major, minor) = the_device().capability;
            if parsed.target > 10 * major + minor {
                return CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
            }
            for variable in &parsed.variables {
                global::add(variable.as_ptr().expose_provenance(), size_of_val(&**variable), Home::Variable);
            }
            let parsed: &'static Module = Box::leak(Box::new(parsed));
            let all: Vec<_> = parsed.kernels.iter().map(|kernel| Loaded { module: parsed, kernel }).collect();
            // SAFETY: the caller's.
            unsafe { *module = std::ptr::from_mut(Box::leak(Box::new(all))).cast() };
            OK
        }
        Err(reason) => {
            complain(&reason);
            CUresult::CUDA_ERROR_INVALID_PTX
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: a module is a handle of cuModuleLoadData, and the name ends with a zero.
    let (all, name) = unsafe { (&*module.cast::<Vec<Loaded>>(), CStr::from_ptr(name)) };
    match all.iter().find(|loaded| loaded.kernel.name.as_bytes() == name.to_bytes()) {
        // SAFETY: the caller's.
        Some(loaded) => unsafe { *function = std::ptr::from_ref(loaded).cast_mut().cast() },
        None => return CUresult::CUDA_ERROR_NOT_FOUND,
    }
    OK
}

/// The module and the kernel of a handle.
///
/// # Safety
///
/// It is one of cuModuleGetFunction.
unsafe fn kernel(function: CUfunction) -> (&'static Module, &'static Kernel) {
    // SAFETY: what a handle points to is never freed.
    let loaded = unsafe { &*function.cast::<Loaded>() };
    (loaded.module, loaded.kernel)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: CUfunction_attribute,
    function: CUfunction,
) -> CUresult {
    use CUfunction_attribute::*;
    // SAFETY: the caller's promise.
    let (module, _) = unsafe { kernel(function) };
    let known = match attribute {
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => module.shared_bytes as c_int,
        // Nothing spills: registers are as many as the text has.
        CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => module.local_bytes as c_int,
        CU_FUNC_ATTRIBUTE_PTX_VERSION => module.target,
        _ => return CUresult::CUDA_ERROR_INVALID_VALUE,
    };
    // SAFETY: the caller's.
    unsafe { *value = known };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(
    _function: CUfunction,
    attribute: CUfunction_attribute,
    value: c_int,
) -> CUresult {
    let most = the_device().shared.0 << 10;
    match attribute {
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES if value <= most => OK,
        _ => CUresult::CUDA_ERROR_INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: CUfunction,
    threads: c_int,
    shared_bytes: usize,
) -> CUresult {
    // SAFETY: the caller's promise.
    let (module, kernel) = unsafe { kernel(function) };
    let by_threads = THREADS_OF_A_MULTIPROCESSOR / threads as usize;
    let by_shared =
        ((the_device().shared.1 as usize) << 10) / (module.shared_bytes + shared_bytes + RESERVED_SHARED);
    // A kernel that wants room for so many blocks gets registers for no more.
    let by_registers = kernel.min_blocks.unwrap_or(by_threads);
    // SAFETY: the caller's.
    unsafe { *blocks = by_threads.min(by_shared).min(by_registers) as c_int };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    function: CUfunction,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> CUresult {
    if !has_context() {
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    }
    // SAFETY: the caller's.
    let (config, (module, kernel)) = unsafe { (&*config, kernel(function)) };
    let shared_bytes = config.sharedMemBytes as usize;
    let most = (the_device().shared.0 as usize) << 10;
    let blocks = [config.gridDimX, config.gridDimY, config.gridDimZ];
    if module.shared_bytes + shared_bytes > most
        || blocks.contains(&0)
        || blocks[1].max(blocks[2]) > u32::from(u16::MAX)
        || (config.blockDimY, config.blockDimZ) != (1, 1)
        || !(1..=kernel.most_threads.unwrap_or(MOST_THREADS) as u32).contains(&config.blockDimX)
    {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    let end = kernel.parameters.last().map_or(0, |&(at, bytes)| at + bytes);
    let mut bytes_of_all = vec![0; end];
    for (number, &(at, bytes)) in kernel.parameters.iter().enumerate() {
        // SAFETY: the caller's array points to all parameters, this one's of so many bytes.
        let parameter = unsafe { (*parameters.add(number)).cast::<u8>() };
        // SAFETY: as above.
        bytes_of_all[at..at + bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(parameter, bytes) });
    }
    let launch = Launch {
        module,
        kernel,
        grid: blocks,
        threads: config.blockDimX as usize,
        shared_bytes,
        parameters: &bytes_of_all,
    };
    match launch.run() {
        Ok(()) => OK,
        Err(reason) => {
            complain(&reason);
            CUresult::CUDA_ERROR_LAUNCH_FAILED
        }
    }
}

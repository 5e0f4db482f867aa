//! The custom calls of [`selective_scan::xla`] under names of C, for whoever runs XLA in a process without the BEAM:
//! the Python package `selective_scan_jax` beside this file.
//!
//! A library that lives inside the BEAM cannot be loaded outside of it; so this one is a second, thin one.

use std::ffi::{CStr, c_char};

use selective_scan::caught;
use selective_scan::xla::{self, CallFrame, Registration, Scratch, XlaError};

/// [`xla::forward_host`].
///
/// # Safety
///
/// Called by XLA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exphil_selective_scan_fwd_host(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: the frame is XLA's.
    unsafe { xla::forward_host(frame) }
}

/// [`xla::backward_host`].
///
/// # Safety
///
/// Called by XLA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exphil_selective_scan_bwd_host(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: the frame is XLA's.
    unsafe { xla::backward_host(frame) }
}

/// [`xla::forward_cuda`].
///
/// # Safety
///
/// Called by XLA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exphil_selective_scan_fwd_cuda(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: the frame is XLA's.
    unsafe { xla::forward_cuda(frame) }
}

/// [`xla::backward_cuda`].
///
/// # Safety
///
/// Called by XLA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exphil_selective_scan_bwd_cuda(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: the frame is XLA's.
    unsafe { xla::backward_cuda(frame) }
}

/// [`xla::register()`]: 1 where the handlers are registered now, 0 where there is no XLA, -1 with a message where XLA
/// has refused.
///
/// # Safety
///
/// `message` has room for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exphil_selective_scan_register(message: *mut c_char, capacity: usize) -> i32 {
    match caught(xla::register) {
        Ok(Registration::Registered) => 1,
        Ok(Registration::NoXla) => 0,
        Err(error) => {
            // SAFETY: the caller's promise.
            unsafe { write(&error.to_string(), message, capacity) };
            -1
        }
    }
}

/// [`xla::scratch()`] of a problem in words ([`xla::problem()`]) on `Host` or `CUDA`: 0, or -1 with a message.
///
/// # Safety
///
/// `platform` and `problem` are strings that end with a zero, `scratch` can be written to, and `message` has room for
/// `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exphil_selective_scan_scratch(
    platform: *const c_char,
    problem: *const c_char,
    scratch: *mut Scratch,
    message: *mut c_char,
    capacity: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    let (platform, problem) = unsafe { (CStr::from_ptr(platform), CStr::from_ptr(problem)) };
    let answer = caught(|| {
        let platform = platform.to_string_lossy().parse()?;
        let problem = xla::problem(&problem.to_string_lossy())?;
        xla::scratch(&problem, platform)
    });
    match answer {
        // SAFETY: the caller's promise.
        Ok(answer) => unsafe { scratch.write(answer) },
        Err(error) => {
            // SAFETY: the caller's promise.
            unsafe { write(&error.to_string(), message, capacity) };
            return -1;
        }
    }
    0
}

/// Writes as much of a text as there is room for, and a zero.
///
/// # Safety
///
/// `to` has room for `capacity` bytes.
unsafe fn write(text: &str, to: *mut c_char, capacity: usize) {
    let Some(room) = capacity.checked_sub(1) else { return };
    let len = text.len().min(room);
    // SAFETY: the caller's promise; a text of ours is not what we write to.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), len);
        to.add(len).write(0);
    }
}

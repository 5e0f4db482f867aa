//! The context of a device, in which the driver is called.

use std::marker::PhantomData;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{CUcontext, cuCtxPopCurrent_v2, cuCtxPushCurrent_v2};

/// The primary context of a device, held for the life of the process.
#[derive(Clone, Copy)]
pub(super) struct Context(pub(super) CUcontext);

// SAFETY: a context is a handle that the driver lets every thread make current.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// While this lives, the context is current in its thread; then the one is again that was before. Threads of the BEAM are shared with
/// other libraries, which may have set theirs once and for all.
#[must_use = "the context is current until this is dropped"]
pub(super) struct Entered {
    /// Not to be sent: what is current is so in one thread.
    of_thread: PhantomData<*const ()>,
}

impl Context {
    pub(super) fn enter(self) -> Result<Entered, DriverError> {
        // SAFETY: the context is never released.
        unsafe { cuCtxPushCurrent_v2(self.0) }.result()?;
        Ok(Entered { of_thread: PhantomData })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut left = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable. Nothing is left current that was pushed since, as all that are pushed are popped by
        // such guards, in the order of their scopes. After the driver has shut down there is none: errors do not matter.
        let _ = unsafe { cuCtxPopCurrent_v2(&mut left) };
    }
}

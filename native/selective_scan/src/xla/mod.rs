//! The scan as an XLA custom call: handlers for XLA's typed FFI, so that a compiled graph (of EXLA or of JAX) has the
//! scan as one operation, on the device where its tensors are.
//!
//! There are two targets, `exphil_selective_scan_fwd` and `exphil_selective_scan_bwd`, each for the platforms `Host` and
//! `CUDA`.
//!
//! | target | operands | results |
//! |---|---|---|
//! | `…_fwd` | x dt a b c, optional d z dt_bias initial_state seq_idx | y, optional final_state boundary_states workspace |
//! | `…_bwd` | those of the forward call, dy, optional dfinal_state boundary_states | the gradient of each operand of the forward call but seq_idx, by the name of the operand; optional workspace |
//!
//! | attribute | | default |
//! |---|---|---|
//! | `operands`, `results` | the names of the tensors in their order, with spaces between | |
//! | `shapes` | the shapes of the operands in their order, `2,60,512 2,60,512 512,16 …`; all tensors then have one axis | as the tensors have them |
//! | `method`, `coefficients` | strings, as everywhere | `"zoh"`, `"exact"` |
//! | `bidirectional`, `reverse`, `dt_softplus` | booleans, or integers 0 and 1 | as everywhere |
//! | `dt_limit_min`, `dt_limit_max` | numbers | no limit |
//!
//! Shapes and types are those of the operation; a complex tensor has XLA's complex type or a trailing 2. [`scratch()`]
//! says how long the results `workspace` (u8) and `boundary_states` are to be: the former is needed on CUDA, the latter
//! spares the backward pass the computation of what the forward pass had at hand. Boundary states that were laid out for
//! another platform do no harm: they are not used.
//!
//! The ABI lies in `abi.rs`, by hand; `frame.rs` makes a call safe to read, `request.rs` understands it,
//! `host.rs` and `cuda.rs` carry it out. What is wrong with a call comes back as `INVALID_ARGUMENT` with the words that
//! every caller of this crate gets, a panic, which would be a fault of ours, as `INTERNAL`.

mod abi;
mod cuda;
mod frame;
mod host;
mod register;
mod request;
mod scratch;

pub use abi::{CallFrame, Error as XlaError};
pub use register::{Registration, register};
pub use scratch::{Platform, Scratch, problem, scratch};

use crate::{Error, caught};
use abi::{ErrorCode, STAGE_EXECUTE, STAGE_INITIALIZE};
use frame::Frame;
use request::{Backward, Forward};

/// The name of the forward target.
pub const FORWARD: &str = "exphil_selective_scan_fwd";
/// The name of the backward target.
pub const BACKWARD: &str = "exphil_selective_scan_bwd";

/// The forward handler for Host, for the stage of execution.
///
/// # Safety
///
/// Called by XLA.
pub unsafe extern "C" fn forward_host(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: the frame is XLA's.
    unsafe { answer(frame, |frame| host::forward(Forward::read(frame)?.apart()?)) }
}

/// The backward handler for Host, for the stage of execution.
///
/// # Safety
///
/// Called by XLA.
pub unsafe extern "C" fn backward_host(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: the frame is XLA's.
    unsafe { answer(frame, |frame| host::backward(Backward::read(frame)?.apart()?)) }
}

/// The forward handler for CUDA, for the stages of initialization and execution.
///
/// # Safety
///
/// Called by XLA.
pub unsafe extern "C" fn forward_cuda(frame: *mut CallFrame) -> *mut XlaError {
    let handle = |frame: &Frame<'_>| match frame.stage() {
        STAGE_INITIALIZE => cuda::prepare_forward(frame),
        STAGE_EXECUTE => cuda::forward(frame, Forward::read(frame)?.apart()?),
        _ => Ok(()),
    };
    // SAFETY: the frame is XLA's.
    unsafe { answer(frame, handle) }
}

/// The backward handler for CUDA, for the stages of initialization and execution.
///
/// # Safety
///
/// Called by XLA.
pub unsafe extern "C" fn backward_cuda(frame: *mut CallFrame) -> *mut XlaError {
    let handle = |frame: &Frame<'_>| match frame.stage() {
        STAGE_INITIALIZE => cuda::prepare_backward(frame),
        STAGE_EXECUTE => cuda::backward(frame, Backward::read(frame)?.apart()?),
        _ => Ok(()),
    };
    // SAFETY: the frame is XLA's.
    unsafe { answer(frame, handle) }
}

/// Runs a handler; its errors become XLA's.
///
/// # Safety
///
/// The frame is one that XLA has just handed over.
unsafe fn answer(
    frame: *mut CallFrame,
    handle: impl FnOnce(&Frame<'_>) -> Result<(), Error>,
) -> *mut XlaError {
    // SAFETY: the caller's promise; the frame outlives the handler.
    let frame = unsafe { Frame::new(frame) };
    if frame.answers_metadata() {
        return std::ptr::null_mut();
    }
    match caught(|| handle(&frame)) {
        Ok(()) => std::ptr::null_mut(),
        Err(error) => frame.error(code(&error), &error.to_string()),
    }
}

fn code(error: &Error) -> ErrorCode {
    match error {
        Error::InvalidArgument { .. } => ErrorCode::InvalidArgument,
        Error::Unavailable { .. } => ErrorCode::Unavailable,
        Error::Failed { .. } => ErrorCode::Internal,
    }
}

//! The handlers' work on the platform CUDA: launches on the stream of the call.
//!
//! XLA may record a call in a CUDA graph and replay it without us. So nothing is allocated (memory that were freed
//! after the call would be another's when the graph runs again) and nothing waits; the kernels are loaded before, in
//! the stage that XLA has for it.

use std::collections::BTreeSet;
use std::sync::RwLock;

use crate::cuda::{self, CUdeviceptr, CUstream, Device, Pass, device};
use crate::{Error, Problem};

use super::frame::{Frame, Tensor};
use super::request::{Backward, Forward};

/// Bytes that a workspace begins on a multiple of; XLA's allocator promises half of it.
const ALIGNMENT: usize = 256;

/// Loads the kernels of a forward call.
pub fn prepare_forward(frame: &Frame<'_>) -> Result<(), Error> {
    once(frame, Pass::Forward, |device| device.prepare(&Forward::read(frame)?.problem, Pass::Forward))
}

/// Does what is to be done for the first of many calls that are the same. XLA comes to the stage of initialization
/// before every run of a program, also where it then replays a graph.
fn once(
    frame: &Frame<'_>,
    pass: Pass,
    prepare: impl FnOnce(&Device) -> Result<(), Error>,
) -> Result<(), Error> {
    static DONE: RwLock<BTreeSet<(usize, bool, u64)>> = RwLock::new(BTreeSet::new());
    let ordinal = frame.device_ordinal()?;
    let call = (ordinal, pass == Pass::Forward, frame.fingerprint());
    if DONE.read().unwrap_or_else(|poisoned| poisoned.into_inner()).contains(&call) {
        return Ok(());
    }
    prepare(device(ordinal)?)?;
    DONE.write().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(call);
    Ok(())
}

/// Enqueues a forward call.
pub fn forward(frame: &Frame<'_>, call: Forward) -> Result<(), Error> {
    let Forward { problem, inputs, outputs, boundary_states, workspace } = call;
    let device = device(frame.device_ordinal()?)?;
    let stream = frame.stream()? as CUstream;
    let workspace = workspace_of(device, &problem, Pass::Forward, workspace)?;
    let inputs = inputs.map(|_, tensor| address(&tensor));
    let outputs = outputs.map(|_, tensor| address(&tensor));
    let kept = match boundary_states {
        Some(states) if states.shape == cuda::boundary_shape(&problem) => Some(address(&states)),
        Some(states) => {
            // Cut for another backend: the backward pass will not read them here, but they are a result.
            // SAFETY: as below.
            unsafe { device.enqueue_zeros(stream, address(&states), states.len())? };
            None
        }
        None => None,
    };
    // SAFETY: XLA's memory on the device of the call, as long as the checked types and shapes say. It stays until the
    // stream has run what is enqueued.
    unsafe { device.enqueue_forward(stream, &problem, inputs, outputs, kept, workspace) }
}

/// Loads the kernels of a backward call.
pub fn prepare_backward(frame: &Frame<'_>) -> Result<(), Error> {
    once(frame, Pass::Backward, |device| {
        let call = Backward::read(frame)?;
        device.prepare(&call.problem, pass(&call))
    })
}

/// Enqueues a backward call.
pub fn backward(frame: &Frame<'_>, call: Backward) -> Result<(), Error> {
    let device = device(frame.device_ordinal()?)?;
    let stream = frame.stream()? as CUstream;
    let pass = pass(&call);
    let Backward { problem, inputs, output_gradients, boundary_states, gradients, workspace } = call;
    let workspace = workspace_of(device, &problem, pass, workspace)?;
    let inputs = inputs.map(|_, tensor| address(&tensor));
    let output_gradients = output_gradients.map(|_, tensor| address(&tensor));
    let gradients = gradients.map(|_, tensor| address(&tensor));
    let kept = boundary_states.as_ref().filter(|_| pass == Pass::BackwardFromBoundaryStates).map(address);
    // SAFETY: as in the forward pass.
    unsafe { device.enqueue_backward(stream, &problem, inputs, output_gradients, gradients, kept, workspace) }
}

/// Boundary states that were cut for another backend are not read.
fn pass(call: &Backward) -> Pass {
    let shape = cuda::boundary_shape(&call.problem);
    match &call.boundary_states {
        Some(states) if states.shape == shape => Pass::BackwardFromBoundaryStates,
        _ => Pass::Backward,
    }
}

/// Bytes that the workspace of a pass must have so that an aligned one lies in it; none where none is needed.
pub fn padded(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes + ALIGNMENT }
}

fn workspace_of(
    device: &Device,
    problem: &Problem,
    pass: Pass,
    given: Option<Tensor>,
) -> Result<CUdeviceptr, Error> {
    let needed = padded(device.workspace_bytes(problem, pass));
    let bytes = given.as_ref().map_or(0, Tensor::len);
    if bytes < needed {
        return Err(Error::invalid("workspace", format!("be a result of at least {needed} bytes"), bytes));
    }
    Ok(given.as_ref().map_or(0, address).next_multiple_of(ALIGNMENT as CUdeviceptr))
}

fn address(tensor: &Tensor) -> CUdeviceptr {
    tensor.data as CUdeviceptr
}

//! Calls on tensors that lie in a device's memory and stay there: those of another library of this process, as it
//! hands their addresses out.
//!
//! An address says nothing of whose it is or how long. So the driver is asked about the first and the last byte of
//! every tensor, and what is not memory of the device is refused before a kernel would follow it, which would cost
//! the process its context.

use std::ffi::c_void;

use cudarc::driver::result;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemorytype, CUpointer_attribute, CUresult, CUstream, cuPointerGetAttributes,
};

use super::device::Device;
use super::driver::{During, guarded, initialize};
use super::launch::Pass;
use crate::{Error, Gradients, Inputs, OutputGradients, Outputs, Problem};

/// What the address of every type of element is a multiple of.
const ALIGNMENT: CUdeviceptr = 8;

/// The number of the device that the first and the last of the `len` bytes at an address lie on; none where they are not memory of one
/// device. Whether all between them is one tensor's, the driver cannot say: a tensor may be mapped in pieces.
pub fn owner(address: CUdeviceptr, len: usize) -> Result<Option<usize>, Error> {
    guarded(|| {
        initialize()?;
        let Some(last) = address.checked_add(len.max(1) as CUdeviceptr - 1) else {
            return Ok(None);
        };
        let first = device_of(address);
        Ok(if first == device_of(last) { first } else { None })
    })
}

fn device_of(address: CUdeviceptr) -> Option<usize> {
    use CUpointer_attribute::{CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    let (mut kind, mut ordinal) = (0u32, 0i32);
    let mut attributes = [CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];
    let mut values = [(&raw mut kind).cast::<c_void>(), (&raw mut ordinal).cast()];
    // SAFETY: the driver writes 32 bits for either attribute, and looks the address up without following it. Of an
    // address that it does not know it says that it is of no kind.
    let answer = unsafe { cuPointerGetAttributes(2, attributes.as_mut_ptr(), values.as_mut_ptr(), address) };
    let known = answer == CUresult::CUDA_SUCCESS && kind == CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    known.then_some(ordinal as usize)
}

impl Device {
    /// The forward pass on tensors in memory of this device. It begins when everything is done that was enqueued on
    /// the device's primary context before, and has ended on return.
    ///
    /// # Safety
    ///
    /// Until this returns nobody frees the tensors, and nobody writes to inputs or uses outputs. Outputs overlap nothing else.
    pub unsafe fn forward_in_place(
        &self,
        problem: &Problem,
        inputs: Inputs<CUdeviceptr>,
        outputs: Outputs<CUdeviceptr>,
    ) -> Result<(), Error> {
        self.check_all(problem, inputs.iter().chain(outputs.iter()))?;
        self.run_in_place(problem, Pass::Forward, |stream, workspace| {
            // SAFETY: the caller's promise; the addresses are aligned, tensors of these lengths lie there, and the workspace is
            // ours until the stream has been waited for.
            unsafe { self.enqueue_forward(stream, problem, inputs, outputs, None, workspace) }
        })
    }

    /// The backward pass in the same way.
    ///
    /// # Safety
    ///
    /// As for [`Device::forward_in_place`].
    pub unsafe fn backward_in_place(
        &self,
        problem: &Problem,
        inputs: Inputs<CUdeviceptr>,
        output_gradients: OutputGradients<CUdeviceptr>,
        gradients: Gradients<CUdeviceptr>,
    ) -> Result<(), Error> {
        self.check_all(problem, inputs.iter().chain(output_gradients.iter()).chain(gradients.iter()))?;
        self.run_in_place(problem, Pass::Backward, |stream, workspace| {
            // SAFETY: as in the forward pass.
            unsafe {
                self.enqueue_backward(stream, problem, inputs, output_gradients, gradients, None, workspace)
            }
        })
    }

    fn check_all<'a>(
        &self,
        problem: &Problem,
        tensors: impl Iterator<Item = (&'static str, &'a CUdeviceptr)>,
    ) -> Result<(), Error> {
        for (name, &address) in tensors {
            let len = problem.bytes(name);
            let here = owner(address, len)? == Some(self.info().ordinal);
            if !here || !address.is_multiple_of(ALIGNMENT) {
                let expected = format!("have {len} bytes in memory of {self}, aligned to {ALIGNMENT}");
                return Err(Error::invalid(name, expected, format!("the address {address:#x}")));
            }
        }
        Ok(())
    }

    /// Runs what `enqueue` puts on a stream, with a workspace of the pass, which is the call's until the stream has been waited
    /// for: here or, after an error, where the queue is dropped.
    fn run_in_place(
        &self,
        problem: &Problem,
        pass: Pass,
        enqueue: impl FnOnce(CUstream, CUdeviceptr) -> Result<(), Error>,
    ) -> Result<(), Error> {
        guarded(|| {
            self.prepare(problem, pass)?;
            // The tensors may still be being written, on streams that nobody told us of.
            result::ctx::synchronize().during(|| format!("waiting for {self}"))?;
            let queue = self.pools.queue(self.workspace_bytes(problem, pass))?;
            enqueue(queue.stream, queue.address())?;
            queue.synchronize().during(|| format!("running the scan on {self}"))
        })
    }
}

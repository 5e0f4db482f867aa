//! Memory that a call works in. It may be many times that of its tensors: vectors have lanes for channels that are not there.
//! Where there is not enough, the call fails, and not the process.

use bytemuck::Zeroable;

use crate::Error;

/// So many zeros.
pub fn zeros<T: Zeroable>(len: usize) -> Result<Vec<T>, Error> {
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| Error::Failed {
        operation: format!("allocating {} bytes to work in", len.saturating_mul(size_of::<T>())),
        reason: "out of memory".into(),
        remedy: "use smaller batches".into(),
    })
}

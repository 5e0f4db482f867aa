//! Memory that a call works in. It may be many times that of its tensors: vectors have lanes for channels that are not there.
//! Where there is not enough, the call fails, and not the process.

use bytemuck::Zeroable;

use crate::Error;

/// No elements, and room for so many.
pub fn room<T>(len: usize) -> Result<Vec<T>, Error> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|_| {
        let bytes = len.saturating_mul(size_of::<T>());
        Error::out_of_memory(format!("allocating {bytes} bytes to work in"))
    })?;
    Ok(room)
}

/// So many zeros. They are written here: memory that comes as zeros may come anew from the system in every call, which takes a
/// third of a backward call (realtime, from the BEAM).
pub fn zeros<T: Zeroable + Clone>(len: usize) -> Result<Vec<T>, Error> {
    let mut zeros = room(len)?;
    zeros.resize(len, T::zeroed());
    Ok(zeros)
}

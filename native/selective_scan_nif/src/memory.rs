//! Memory for results: allocated here, written by a backend, handed to the BEAM as it is.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use rustler::sys::enif_alloc_binary;
use rustler::{Encoder, Env, OwnedBinary, Resource, ResourceArc, Term};
use selective_scan::Error;
use selective_scan::cuda::PinnedBuffer;

use crate::reply::reply;

rustler::atoms! { ok }

/// Memory that becomes a binary without being copied.
pub trait ResultMemory: DerefMut<Target = [u8]> {
    /// The binary.
    fn into_term(self, env: Env<'_>) -> Term<'_>;
}

impl ResultMemory for OwnedBinary {
    fn into_term(self, env: Env<'_>) -> Term<'_> {
        self.release(env).encode(env)
    }
}

/// Memory of the BEAM's own allocator: counted by `:erlang.memory/0`, and reused from call to call with its pages
/// already mapped. It is not initialized.
pub fn on_the_beam(len: usize) -> Result<OwnedBinary, Error> {
    let mut binary = MaybeUninit::uninit();
    // SAFETY: the call writes the descriptor wherever it answers other than 0, and it is read only then.
    // (`OwnedBinary::new` would abort the BEAM where memory is short.)
    unsafe {
        match enif_alloc_binary(len, binary.as_mut_ptr()) {
            0 => Err(Error::out_of_memory(format!("allocating {len} bytes"))),
            _ => Ok(OwnedBinary::from_raw(binary.assume_init())),
        }
    }
}

/// Page-locked memory, which a binary keeps alive.
pub struct Pinned(pub PinnedBuffer);

#[rustler::resource_impl]
impl Resource for Pinned {}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl ResultMemory for Pinned {
    fn into_term(self, env: Env<'_>) -> Term<'_> {
        ResourceArc::new(self).make_binary(env, |pinned| &pinned.0).encode(env)
    }
}

/// `{:ok, binary}` of as many zeros.
#[rustler::nif(schedule = "DirtyCpu")]
fn zeros(env: Env<'_>, size: usize) -> Term<'_> {
    reply(env, || {
        let mut binary = on_the_beam(size)?;
        binary.fill(0);
        Ok((ok(), binary.into_term(env)).encode(env))
    })
}

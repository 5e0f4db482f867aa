//! What this machine computes with.

use rustler::{Encoder, Env, Term};
use selective_scan::{cpu, cuda};

use crate::reply::reply;

rustler::atoms! { compute_capability, memory_bytes, multiprocessors, name, ok, ordinal }

/// `{:ok, name}` of the vector instructions that the CPU backend uses.
#[rustler::nif]
fn cpu_instruction_set(env: Env<'_>) -> Term<'_> {
    reply(env, || Ok((ok(), cpu::InstructionSet::best().name()).encode(env)))
}

/// `{:ok, devices}`: maps with what is known of every CUDA device. Loads the driver.
#[rustler::nif(schedule = "DirtyIo")]
fn cuda_devices(env: Env<'_>) -> Term<'_> {
    reply(env, || {
        let maps = cuda::devices()?.into_iter().map(|device| {
            rustler::term_map!(env, {
                ordinal() => device.ordinal,
                name() => device.name,
                memory_bytes() => device.memory_bytes,
                compute_capability() => device.compute_capability,
                multiprocessors() => device.multiprocessors,
            })
        });
        Ok((ok(), maps.collect::<Vec<_>>()).encode(env))
    })
}

//! The custom calls, for the XLA that lives in this BEAM: EXLA's.

use std::panic::catch_unwind;

use rustler::{Encoder, Env, Term};
use selective_scan::xla::{self, Registration, Scratch};

use crate::reply::reply;

rustler::atoms! { no_xla, ok, registered }

/// Registers with an XLA that was loaded before us. What XLA has against it is said when it is asked for by name.
pub fn register_at_load() {
    let _ = catch_unwind(xla::register);
}

/// `{:ok, :registered | :no_xla}`.
#[rustler::nif(schedule = "DirtyIo")]
fn xla_register(env: Env<'_>) -> Term<'_> {
    reply(env, || {
        let outcome = match xla::register()? {
            Registration::Registered => registered(),
            Registration::NoXla => no_xla(),
        };
        Ok((ok(), outcome).encode(env))
    })
}

/// `{:ok, {forward_workspace, backward_workspace, chunks}}` of a problem in words, on the platform "Host" or "CUDA".
#[rustler::nif(schedule = "DirtyIo")]
fn xla_scratch<'a>(env: Env<'a>, platform: &str, problem: &str) -> Term<'a> {
    reply(env, || {
        let Scratch { forward_workspace, backward_workspace, chunks } =
            xla::scratch(&xla::problem(problem)?, platform.parse()?)?;
        Ok((ok(), (forward_workspace, backward_workspace, chunks)).encode(env))
    })
}

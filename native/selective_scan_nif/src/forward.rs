//! The forward scan and the single step: `{:ok, y, final_state | nil}`.

use std::time::Instant;

use rustler::schedule::consume_timeslice;
use rustler::{Atom, Encoder, Env, Term};
use selective_scan::{Error, Outputs};

use crate::backend::{Backend, Cpu, Cuda};
use crate::memory::ResultMemory;
use crate::reply::reply;
use crate::request::Request;

rustler::atoms! { nil, ok }

/// On a normal scheduler: for calls shorter than about 100 µs.
#[rustler::nif]
fn forward_cpu<'a>(
    env: Env<'a>,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    with_state: bool,
) -> Term<'a> {
    let started = Instant::now();
    let answer =
        reply(env, || forward(env, Request::decode(form, tensors, options)?, with_state, || Ok(Cpu)));
    // A time slice is a millisecond. Whoever makes many short calls yields as often as others do.
    let percent = started.elapsed().as_micros() / 10;
    consume_timeslice(env, percent.clamp(1, 100) as i32);
    answer
}

/// On a dirty scheduler: for calls of any length.
#[rustler::nif(schedule = "DirtyCpu")]
fn forward_cpu_dirty<'a>(
    env: Env<'a>,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    with_state: bool,
) -> Term<'a> {
    reply(env, || forward(env, Request::decode(form, tensors, options)?, with_state, || Ok(Cpu)))
}

/// On a CUDA device; the scheduler waits for it.
#[rustler::nif(schedule = "DirtyIo")]
fn forward_cuda<'a>(
    env: Env<'a>,
    ordinal: usize,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    with_state: bool,
) -> Term<'a> {
    reply(env, || forward(env, Request::decode(form, tensors, options)?, with_state, || Cuda::find(ordinal)))
}

/// The backend is looked for when the request has turned out to make sense.
fn forward<'a, B: Backend>(
    env: Env<'a>,
    Request { problem, inputs }: Request<'a>,
    with_state: bool,
    backend: impl FnOnce() -> Result<B, Error>,
) -> Result<Term<'a>, Error> {
    let backend = backend()?;
    let final_state = with_state.then(|| backend.allocate(problem.bytes("final_state")));
    let mut outputs =
        Outputs { y: backend.allocate(problem.bytes("y"))?, final_state: final_state.transpose()? };
    backend.forward(&problem, inputs, outputs.as_mut().map(|_, memory| &mut **memory))?;
    let Outputs { y, final_state } = outputs.map(|_, memory| memory.into_term(env));
    Ok((ok(), y, final_state.unwrap_or_else(|| nil().to_term(env))).encode(env))
}

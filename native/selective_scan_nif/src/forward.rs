//! The forward scan and the single step.

use std::time::Instant;

use rustler::schedule::consume_timeslice;
use rustler::{Atom, Encoder, Env, Term};
use selective_scan::{Error, Inputs, Outputs, Problem, cpu};

use crate::memory::{ResultMemory, on_the_beam};
use crate::reply::reply;
use crate::request::Request;

rustler::atoms! { nil, ok }

/// `{:ok, y, final_state | nil}` on a normal scheduler: for calls shorter than about 100 µs.
#[rustler::nif]
fn forward_cpu<'a>(
    env: Env<'a>,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    with_state: bool,
) -> Term<'a> {
    let started = Instant::now();
    let answer = forward(
        env,
        form,
        tensors,
        options,
        with_state,
        on_the_beam,
        cpu::forward,
    );
    // A time slice is a millisecond: whoever makes many short calls yields as often as others do.
    let percent = started.elapsed().as_micros() / 10;
    consume_timeslice(env, percent.clamp(1, 100) as i32);
    answer
}

/// The same on a dirty scheduler: for calls of any length.
#[rustler::nif(schedule = "DirtyCpu")]
fn forward_cpu_dirty<'a>(
    env: Env<'a>,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    with_state: bool,
) -> Term<'a> {
    forward(
        env,
        form,
        tensors,
        options,
        with_state,
        on_the_beam,
        cpu::forward,
    )
}

fn forward<'a, M: ResultMemory>(
    env: Env<'a>,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    with_state: bool,
    allocate: impl Fn(usize) -> Result<M, Error>,
    run: impl FnOnce(&Problem, Inputs<&[u8]>, Outputs<&mut [u8]>) -> Result<(), Error>,
) -> Term<'a> {
    reply(env, || {
        let Request { problem, inputs } = Request::decode(form, tensors, options)?;
        let mut outputs = Outputs {
            y: allocate(problem.bytes("y"))?,
            final_state: with_state
                .then(|| allocate(problem.bytes("final_state")))
                .transpose()?,
        };
        run(
            &problem,
            inputs,
            outputs.as_mut().map(|_, memory| &mut **memory),
        )?;
        let Outputs { y, final_state } = outputs;
        let final_state =
            final_state.map_or_else(|| nil().to_term(env), |memory| memory.into_term(env));
        Ok((ok(), y.into_term(env), final_state).encode(env))
    })
}

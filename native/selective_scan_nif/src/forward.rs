//! The forward scan and the single step: `{:ok, y, final_state | nil, {shape, boundary_states} | nil}`.

use rustler::{Atom, Encoder, Env, NifUnitEnum, Term};
use selective_scan::{Error, Outputs, cpu};

use crate::backend::{Backend, Cpu, Cuda};
use crate::memory::ResultMemory;
use crate::reply::{reply, reply_in_slice};
use crate::request::Request;

rustler::atoms! { ok }

/// How much of the results is wanted; each with those before it.
#[derive(PartialEq, PartialOrd, NifUnitEnum)]
enum Wanted {
    Y,
    FinalState,
    BoundaryStates,
}

/// On a normal scheduler: for calls shorter than about 100 µs.
#[rustler::nif]
fn forward_cpu<'a>(
    env: Env<'a>,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    wanted: Wanted,
) -> Term<'a> {
    reply_in_slice(env, || forward(env, Request::decode(form, tensors, options)?, wanted, || Ok(Cpu)))
}

/// On a dirty scheduler: for calls of any length.
#[rustler::nif(schedule = "DirtyCpu")]
fn forward_cpu_dirty<'a>(
    env: Env<'a>,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    wanted: Wanted,
) -> Term<'a> {
    reply(env, || forward(env, Request::decode(form, tensors, options)?, wanted, || Ok(Cpu)))
}

/// On a CUDA device; the scheduler waits for it.
#[rustler::nif(schedule = "DirtyIo")]
fn forward_cuda<'a>(
    env: Env<'a>,
    ordinal: usize,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    wanted: Wanted,
) -> Term<'a> {
    reply(env, || forward(env, Request::decode(form, tensors, options)?, wanted, || Cuda::find(ordinal)))
}

/// The backend is looked for when the request has turned out to make sense.
fn forward<'a, B: Backend>(
    env: Env<'a>,
    Request { problem, inputs }: Request<&'a [u8]>,
    wanted: Wanted,
    backend: impl FnOnce() -> Result<B, Error>,
) -> Result<Term<'a>, Error> {
    // Before memory is made for the results.
    problem.check_lengths(inputs.iter())?;
    let backend = backend()?;
    let final_state = (wanted >= Wanted::FinalState).then(|| backend.allocate(problem.bytes("final_state")));
    let mut results =
        Outputs { y: backend.allocate(problem.bytes("y"))?, final_state: final_state.transpose()? };
    let outputs = results.as_mut().map(|_, memory| &mut **memory);
    let boundary_states = match wanted {
        Wanted::BoundaryStates => backend.forward_for_backward(&problem, inputs, outputs)?,
        Wanted::Y | Wanted::FinalState => {
            backend.forward(&problem, inputs, outputs)?;
            None
        }
    };
    let Outputs { y, final_state } = results.map(|_, memory| memory.into_term(env));
    let boundary_states =
        boundary_states.map(|memory| (cpu::boundary_shape(&problem), memory.into_term(env)));
    Ok((ok(), y, final_state, boundary_states).encode(env))
}

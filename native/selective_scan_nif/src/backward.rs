//! The backward scan: `{:ok, gradients}`, binaries by the names of the inputs that they belong to.

use rustler::{Atom, Encoder, Env, Term};
use selective_scan::{Error, cpu};

use crate::backend::{Backend, Cpu, Cuda};
use crate::memory::ResultMemory;
use crate::reply::{reply, reply_in_slice};
use crate::request::{BackwardRequest, Request};

rustler::atoms! { ok }

/// On a normal scheduler: for calls shorter than about 100 µs.
#[rustler::nif]
fn backward_cpu<'a>(env: Env<'a>, dy: Term<'a>, tensors: Term<'a>, options: Term<'a>) -> Term<'a> {
    reply_in_slice(env, || backward(env, BackwardRequest::decode(dy, tensors, options)?, || Ok(Cpu)))
}

/// On a dirty scheduler: for calls of any length.
#[rustler::nif(schedule = "DirtyCpu")]
fn backward_cpu_dirty<'a>(env: Env<'a>, dy: Term<'a>, tensors: Term<'a>, options: Term<'a>) -> Term<'a> {
    reply(env, || backward(env, BackwardRequest::decode(dy, tensors, options)?, || Ok(Cpu)))
}

/// On a CUDA device; the scheduler waits for it.
#[rustler::nif(schedule = "DirtyIo")]
fn backward_cuda<'a>(
    env: Env<'a>,
    ordinal: usize,
    dy: Term<'a>,
    tensors: Term<'a>,
    options: Term<'a>,
) -> Term<'a> {
    reply(env, || backward(env, BackwardRequest::decode(dy, tensors, options)?, || Cuda::find(ordinal)))
}

/// The backend is looked for when the request has turned out to make sense.
fn backward<'a, B: Backend>(
    env: Env<'a>,
    BackwardRequest { forward: Request { problem, inputs }, output_gradients, boundary_states }: BackwardRequest<
        &'a [u8],
    >,
    backend: impl FnOnce() -> Result<B, Error>,
) -> Result<Term<'a>, Error> {
    // Before memory is made for the results.
    problem.check_lengths(inputs.iter().chain(output_gradients.iter()))?;
    if let Some(states) = boundary_states {
        cpu::check_boundary_length(&problem, states.len())?;
    }
    let backend = backend()?;
    let mut results = inputs.differentiable().try_map(|name, _| backend.allocate(problem.bytes(name)))?;
    let gradients = results.as_mut().map(|_, memory| &mut **memory);
    backend.backward(&problem, inputs, boundary_states, output_gradients, gradients)?;
    let results = results.map(|_, memory| memory.into_term(env));
    let named = |(name, term): (_, &Term<'a>)| (Atom::from_str(env, name).expect("a short name"), *term);
    Ok((ok(), results.iter().map(named).collect::<Vec<_>>()).encode(env))
}

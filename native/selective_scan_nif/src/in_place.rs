//! Calls on tensors in a device's memory, which the backend that they belong to has given the addresses of. Results are
//! written where the caller says: `:ok`. What the addresses belong to comes along, so that it lives until the call ends.

use rustler::{Atom, Encoder, Env, Term};
use selective_scan::cuda::{self, CUdeviceptr};
use selective_scan::{Error, Gradients, Outputs};

use crate::reply::reply;
use crate::request::{BackwardRequest, Request};

rustler::atoms! { nil, ok }

/// `{:ok, ordinal}` of the device that all of these ranges, `{address, bytes}`, lie on, `{:ok, nil}` where there is none.
/// The driver takes its time, and its locks may be others'.
#[rustler::nif(schedule = "DirtyIo")]
fn cuda_owner<'a>(env: Env<'a>, ranges: Vec<(CUdeviceptr, usize)>) -> Term<'a> {
    reply(env, || {
        let mut owners = ranges.into_iter().map(|(address, len)| cuda::owner(address, len));
        let first = owners.next().transpose()?.flatten();
        for owner in owners {
            if owner? != first {
                return Ok((ok(), nil()).encode(env));
            }
        }
        Ok((ok(), first).encode(env))
    })
}

/// The forward scan and the single step; `outputs` are the addresses of y and of the final state, or nil.
#[rustler::nif(schedule = "DirtyIo")]
fn forward_in_place<'a>(
    env: Env<'a>,
    ordinal: usize,
    form: Atom,
    tensors: Term<'a>,
    options: Term<'a>,
    outputs: (CUdeviceptr, Option<CUdeviceptr>),
    _held: Term<'a>,
) -> Term<'a> {
    reply(env, || {
        let Request { problem, inputs } = Request::decode(form, tensors, options)?;
        let outputs = Outputs { y: outputs.0, final_state: outputs.1 };
        // SAFETY: an argument of this call holds the tensors, and nobody else has been told of the outputs.
        unsafe { cuda::device(ordinal)?.forward_in_place(&problem, inputs, outputs)? };
        Ok(ok().encode(env))
    })
}

/// The backward scan; `gradients` are addresses by the names of the inputs that they belong to.
#[rustler::nif(schedule = "DirtyIo")]
fn backward_in_place<'a>(
    env: Env<'a>,
    ordinal: usize,
    dy: Term<'a>,
    tensors: Term<'a>,
    options: Term<'a>,
    gradients: Vec<(String, CUdeviceptr)>,
    _held: Term<'a>,
) -> Term<'a> {
    reply(env, || {
        let BackwardRequest { forward: Request { problem, inputs }, output_gradients, boundary_states: _ } =
            BackwardRequest::decode(dy, tensors, options)?;
        let gradients: Gradients<CUdeviceptr> = inputs.differentiable().try_map(|name, _| {
            let given = gradients.iter().find(|(of, _)| of == name);
            given
                .map(|&(_, address)| address)
                .ok_or_else(|| Error::invalid(name, "have a gradient to write", "none"))
        })?;
        // SAFETY: as above.
        unsafe { cuda::device(ordinal)?.backward_in_place(&problem, inputs, output_gradients, gradients)? };
        Ok(ok().encode(env))
    })
}

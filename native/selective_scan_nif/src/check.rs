//! Whether a call makes sense, asked of types and shapes before there are numbers: `:ok`.

use rustler::{Atom, Encoder, Env, Term};

use crate::reply::reply;
use crate::request::Request;

rustler::atoms! { ok }

/// The tensors may be without their data.
#[rustler::nif]
fn check<'a>(env: Env<'a>, form: Atom, tensors: Term<'a>, options: Term<'a>) -> Term<'a> {
    reply(env, || Request::<&[u8]>::decode(form, tensors, options).map(|_| ok().encode(env)))
}

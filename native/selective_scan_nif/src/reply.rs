//! What goes back to Elixir where there is no result: `{:error, {kind, message}}`.

use std::time::Instant;

use rustler::schedule::consume_timeslice;
use rustler::{Encoder, Env, Term};
use selective_scan::{Error, caught};

rustler::atoms! { error, failed, invalid_argument, unavailable }

/// Runs a call. Its error keeps its kind; a panic, which would be a fault of ours, becomes one and goes no further.
pub fn reply<'a>(env: Env<'a>, call: impl FnOnce() -> Result<Term<'a>, Error>) -> Term<'a> {
    caught(call).unwrap_or_else(|reason| {
        let kind = match reason {
            Error::InvalidArgument { .. } => invalid_argument(),
            Error::Unavailable { .. } => unavailable(),
            Error::Failed { .. } => failed(),
        };
        (error(), (kind, reason.to_string())).encode(env)
    })
}

/// The same on a normal scheduler, for calls shorter than about 100 µs. A time slice is a millisecond: whoever makes
/// many short calls yields as often as others do.
pub fn reply_in_slice<'a>(env: Env<'a>, call: impl FnOnce() -> Result<Term<'a>, Error>) -> Term<'a> {
    let started = Instant::now();
    let answer = reply(env, call);
    let percent = started.elapsed().as_micros() / 10;
    consume_timeslice(env, percent.clamp(1, 100) as i32);
    answer
}

//! A call as Elixir makes it: five tensors and the struct of options.

use rustler::{Atom, NifResult, Term};
use selective_scan::{Error, Inputs, Options, Problem};

use crate::tensor::Tensor;

rustler::atoms! {
    bidirectional, coefficients, d, dt_bias, dt_limit, dt_softplus, infinity, initial_state, method, neg_infinity,
    nil, reverse, scan, seq_idx, z
}

/// A checked call: the problem, and the bytes of every tensor, whose lengths are right.
pub struct Request<'a> {
    pub problem: Problem,
    pub inputs: Inputs<&'a [u8]>,
}

impl<'a> Request<'a> {
    /// Reads `{x, dt, a, b, c}` and `%Options{}`; `form` is `:scan` or `:step`.
    pub fn decode(form: Atom, tensors: Term<'a>, options: Term<'a>) -> Result<Self, Error> {
        let malformed = |_| {
            Error::invalid(
                "options",
                "be those of SelectiveScan.Options",
                format!("{options:?}"),
            )
        };
        let field = |key: Atom| options.map_get(key.to_term(options.get_env()));
        let optional = |key: Atom| -> NifResult<Option<Term<'a>>> {
            field(key).map(|term| (nil() != term).then_some(term))
        };
        let (x, dt, a, b, c) = tensors.decode().map_err(malformed)?;
        let tensors = Inputs {
            x,
            dt,
            a,
            b,
            c,
            d: optional(d()).map_err(malformed)?,
            z: optional(z()).map_err(malformed)?,
            dt_bias: optional(dt_bias()).map_err(malformed)?,
            initial_state: optional(initial_state()).map_err(malformed)?,
            seq_idx: optional(seq_idx()).map_err(malformed)?,
        };
        let tensors = tensors.try_map(Tensor::decode)?;
        let options = Options {
            method: name(field(method()).map_err(malformed)?).parse()?,
            coefficients: name(field(coefficients()).map_err(malformed)?).parse()?,
            bidirectional: field(bidirectional())
                .and_then(|term| term.decode())
                .map_err(malformed)?,
            reverse: field(reverse())
                .and_then(|term| term.decode())
                .map_err(malformed)?,
            dt_softplus: field(dt_softplus())
                .and_then(|term| term.decode())
                .map_err(malformed)?,
            dt_limit: optional(dt_limit())
                .map_err(malformed)?
                .map(limits)
                .transpose()?,
        };
        let specs = tensors.as_ref().map(|_, tensor| tensor.spec());
        let problem = if form == scan() {
            Problem::scan(&specs, &options)
        } else {
            Problem::step(&specs, &options)
        }?;
        let inputs = tensors.try_map(|name, tensor| {
            problem.check_length(name, tensor.bytes.len())?;
            Ok(tensor.bytes)
        })?;
        Ok(Self { problem, inputs })
    }
}

/// The name of an atom; of anything else, what it looks like, which is no value of any option.
fn name(term: Term) -> String {
    term.atom_to_string()
        .unwrap_or_else(|_| format!("{term:?}"))
}

fn limits(term: Term) -> Result<[f64; 2], Error> {
    let malformed = || {
        Error::invalid(
            "dt_limit",
            "be {min, max}, two numbers",
            format!("{term:?}"),
        )
    };
    let (min, max) = term.decode().map_err(|_| malformed())?;
    Ok([
        number(min).ok_or_else(malformed)?,
        number(max).ok_or_else(malformed)?,
    ])
}

/// A number; Elixir has no literal for the infinities, so they come as Nx writes them.
fn number(term: Term) -> Option<f64> {
    if infinity() == term {
        return Some(f64::INFINITY);
    }
    if neg_infinity() == term {
        return Some(f64::NEG_INFINITY);
    }
    term.decode::<f64>()
        .ok()
        .or_else(|| term.decode::<i64>().ok().map(|integer| integer as f64))
}

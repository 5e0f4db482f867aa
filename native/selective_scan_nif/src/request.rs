//! A call as Elixir makes it: five tensors, for the backward pass dy before them, and the struct of options.

use rustler::{Atom, Decoder, Term};
use selective_scan::{Error, Inputs, Options, OutputGradients, Problem, Spec, cpu};

use crate::tensor::{Data, Tensor, shown};

rustler::atoms! {
    bidirectional, boundary_states, coefficients, d, dfinal_state, dt_bias, dt_limit, dt_softplus, infinity,
    initial_state, method, neg_infinity, nil, reverse, scan, seq_idx, z
}

/// A checked call. Whether the data is as long as its tensor is checked by who knows what data it is.
pub struct Request<D> {
    pub problem: Problem,
    pub inputs: Inputs<D>,
}

impl<'a, D: Data<'a>> Request<D> {
    /// Reads `{x, dt, a, b, c}` and `%Options{}`; `form` is `:scan` or `:step`.
    pub fn decode(form: Atom, tensors: Term<'a>, options: Term<'a>) -> Result<Self, Error> {
        if form == scan() {
            return Self::read(Problem::scan, tensors, options);
        }
        Self::read(Problem::step, tensors, options).map_err(|error| match error {
            // The state of a step is an argument of its own.
            Error::InvalidArgument { argument: "initial_state", expected, got } => {
                Error::InvalidArgument { argument: "state", expected, got }
            }
            other => other,
        })
    }

    fn read(
        check: fn(&Inputs<Spec>, &Options) -> Result<Problem, Error>,
        tensors: Term<'a>,
        options: Term<'a>,
    ) -> Result<Self, Error> {
        let (x, dt, a, b, c) = tensors.decode().map_err(|_| malformed(tensors))?;
        let fields = Fields(options);
        let tensors = Inputs {
            x,
            dt,
            a,
            b,
            c,
            d: fields.optional(d())?,
            z: fields.optional(z())?,
            dt_bias: fields.optional(dt_bias())?,
            initial_state: fields.optional(initial_state())?,
            seq_idx: fields.optional(seq_idx())?,
        };
        let tensors = tensors.try_map(Tensor::decode)?;
        let options = Options {
            method: fields.name(method())?.parse()?,
            coefficients: fields.name(coefficients())?.parse()?,
            bidirectional: fields.get(bidirectional())?,
            reverse: fields.get(reverse())?,
            dt_softplus: fields.get(dt_softplus())?,
            dt_limit: fields.optional(dt_limit())?.map(limits).transpose()?,
        };
        let specs = tensors.as_ref().map(|_, tensor| tensor.spec());
        let problem = check(&specs, &options)?;
        Ok(Self { problem, inputs: tensors.map(|_, tensor| tensor.data) })
    }
}

/// A checked call of the backward pass.
pub struct BackwardRequest<D> {
    pub forward: Request<D>,
    pub output_gradients: OutputGradients<D>,
    pub boundary_states: Option<D>,
}

impl<'a, D: Data<'a>> BackwardRequest<D> {
    /// Reads dy, `{x, dt, a, b, c}` and `%Options{}`.
    pub fn decode(dy: Term<'a>, tensors: Term<'a>, options: Term<'a>) -> Result<Self, Error> {
        let forward = Request::decode(scan(), tensors, options)?;
        let fields = Fields(options);
        let output_gradients = OutputGradients { dy, dfinal_state: fields.optional(dfinal_state())? };
        let output_gradients = output_gradients.try_map(Tensor::decode)?;
        forward.problem.check_output_gradients(&output_gradients.as_ref().map(|_, tensor| tensor.spec()))?;
        let boundary_states = fields.optional(boundary_states())?;
        let boundary_states =
            boundary_states.map(|term| Tensor::<D>::decode("boundary_states", term)).transpose()?;
        if let Some(states) = &boundary_states {
            forward.problem.check_boundary_states(states.spec(), &cpu::boundary_shape(&forward.problem))?;
        }
        Ok(Self {
            forward,
            output_gradients: output_gradients.map(|_, tensor| tensor.data),
            boundary_states: boundary_states.map(|tensor| tensor.data),
        })
    }
}

/// The fields of `%Options{}`, which Elixir has filled with values of the right kinds.
struct Fields<'a>(Term<'a>);

impl<'a> Fields<'a> {
    fn get<T: Decoder<'a>>(&self, key: Atom) -> Result<T, Error> {
        let value = self.0.map_get(key.to_term(self.0.get_env()));
        value.and_then(|term| term.decode()).map_err(|_| malformed(self.0))
    }

    fn optional(&self, key: Atom) -> Result<Option<Term<'a>>, Error> {
        self.get(key).map(|term: Term| (nil() != term).then_some(term))
    }

    fn name(&self, key: Atom) -> Result<String, Error> {
        self.get(key).and_then(|term: Term| term.atom_to_string().map_err(|_| malformed(self.0)))
    }
}

fn malformed(term: Term) -> Error {
    Error::invalid("the native call", "come from ExPhil.Native.SelectiveScan", shown(term))
}

fn limits(term: Term) -> Result<[f64; 2], Error> {
    let malformed = || Error::invalid("dt_limit", "be {min, max}, two numbers", shown(term));
    let (min, max) = term.decode().map_err(|_| malformed())?;
    Ok([number(min).ok_or_else(malformed)?, number(max).ok_or_else(malformed)?])
}

/// A number; Elixir has no literal for the infinities, so they come as Nx writes them.
fn number(term: Term) -> Option<f64> {
    if infinity() == term {
        return Some(f64::INFINITY);
    }
    if neg_infinity() == term {
        return Some(f64::NEG_INFINITY);
    }
    term.decode::<f64>().ok().or_else(|| term.decode::<i64>().ok().map(|integer| integer as f64))
}

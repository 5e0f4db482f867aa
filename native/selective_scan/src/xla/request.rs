//! What a custom call asks for: attributes and tensors become a [`Problem`] and the named tensors of the operation.
//!
//! The attributes `operands` and `results` say what the tensors are, by the names they have everywhere:
//! `operands = "x dt a b c z"`, `results = "y final_state"`. So an optional tensor is simply one that is not named, and
//! no order is right or wrong.

use std::ops::Range;

use super::frame::{Attribute, Frame, Tensor};
use crate::{ElementType, Error, Gradients, Inputs, Options, OutputGradients, Outputs, Problem, Spec};

/// A checked call of the forward handler.
pub struct Forward {
    /// What is asked.
    pub problem: Problem,
    /// What is read.
    pub inputs: Inputs<Tensor>,
    /// What is written.
    pub outputs: Outputs<Tensor>,
    /// The states between chunks, kept for the backward pass.
    pub boundary_states: Option<Tensor>,
    /// Memory to work in.
    pub workspace: Option<Tensor>,
}

/// A checked call of the backward handler.
pub struct Backward {
    /// What was asked.
    pub problem: Problem,
    /// What the forward pass has read.
    pub inputs: Inputs<Tensor>,
    /// What flows in.
    pub output_gradients: OutputGradients<Tensor>,
    /// What the forward pass has kept.
    pub boundary_states: Option<Tensor>,
    /// What is written.
    pub gradients: Gradients<Tensor>,
    /// Memory to work in.
    pub workspace: Option<Tensor>,
}

impl Forward {
    /// Reads and checks a call.
    pub fn read(frame: &Frame<'_>) -> Result<Self, Error> {
        let Opened { operands, mut results, flat, inputs, problem } = Opened::read(frame)?;
        let outputs = Outputs { y: results.required("y")?, final_state: results.optional("final_state") };
        let boundary_states = results.optional("boundary_states");
        let workspace = results.workspace()?;
        operands.finish()?;
        results.finish()?;

        let y = inputs.x.spec("x")?;
        let states = states(&problem);
        let outputs = outputs.try_map(|name, tensor| match name {
            "y" => checked(name, tensor, y.element, y.shape.to_vec(), flat),
            _ => checked(name, tensor, states, problem.state_shape(), flat),
        })?;
        let boundary_states = boundary_states.map(|tensor| checked_boundary_states(&problem, tensor, flat));
        Ok(Self { problem, inputs, outputs, boundary_states: boundary_states.transpose()?, workspace })
    }

    /// The same call, whose results may be written while operands are still read.
    pub fn apart(self) -> Result<Self, Error> {
        let read = self.inputs.iter().map(|(_, tensor)| tensor);
        let written = self.outputs.iter().map(|(_, tensor)| tensor);
        check_apart(read, written.chain(&self.boundary_states).chain(&self.workspace))?;
        Ok(self)
    }
}

impl Backward {
    /// Reads and checks a call.
    pub fn read(frame: &Frame<'_>) -> Result<Self, Error> {
        let Opened { mut operands, mut results, flat, inputs, problem } = Opened::read(frame)?;
        let output_gradients =
            OutputGradients { dy: operands.required("dy")?, dfinal_state: operands.optional("dfinal_state") };
        let boundary_states = operands.optional("boundary_states");
        let gradients = inputs.as_ref().differentiable();
        let gradients = gradients.try_map(|name, input| Ok((input, results.required(name)?)))?;
        let workspace = results.workspace()?;
        operands.finish()?;
        results.finish()?;

        problem
            .check_output_gradients(&output_gradients.as_ref().try_map(|name, tensor| tensor.spec(name))?)?;
        let gradients = gradients.try_map(|name, (input, gradient)| {
            let expected = input.spec(name)?;
            checked(name, gradient, expected.element, expected.shape.to_vec(), flat)
        })?;
        let boundary_states = boundary_states.map(|tensor| checked_boundary_states(&problem, tensor, false));
        let boundary_states = boundary_states.transpose()?;
        Ok(Self { problem, inputs, output_gradients, boundary_states, gradients, workspace })
    }

    /// As [`Forward::apart`].
    pub fn apart(self) -> Result<Self, Error> {
        let read = self.inputs.iter().chain(self.output_gradients.iter()).map(|(_, tensor)| tensor);
        let written = self.gradients.iter().map(|(_, tensor)| tensor);
        check_apart(read.chain(&self.boundary_states), written.chain(&self.workspace))?;
        Ok(self)
    }
}

/// What either call begins with.
struct Opened<'a> {
    operands: Named<'a>,
    results: Named<'a>,
    /// Whether all tensors of the call have one axis.
    flat: bool,
    inputs: Inputs<Tensor>,
    problem: Problem,
}

impl<'a> Opened<'a> {
    fn read(frame: &Frame<'a>) -> Result<Self, Error> {
        let call = Call::read(frame.attributes())?;
        let mut operands = Named::new("operands", call.operands, frame.operands()?)?;
        operands.shape(call.shapes)?;
        let results = Named::new("results", call.results, frame.results()?)?;
        let inputs = operands.inputs()?;
        let specs = inputs.as_ref().try_map(|name, tensor| tensor.spec(name))?;
        let problem = Problem::scan(&specs, &call.options)?;
        Ok(Self { operands, results, flat: call.shapes.is_some(), inputs, problem })
    }
}

/// The attributes of a call.
pub struct Call<'a> {
    operands: &'a str,
    results: &'a str,
    /// The shapes of the operands, where all tensors of the call have one axis.
    shapes: Option<&'a str>,
    /// The options of the operation.
    pub options: Options,
}

impl<'a> Call<'a> {
    /// Reads the attributes; one that is not known is refused.
    pub fn read(attributes: impl Iterator<Item = (&'a str, Attribute<'a>)>) -> Result<Self, Error> {
        let mut call = Self { operands: "", results: "", shapes: None, options: Options::default() };
        let (mut min, mut max) = (None, None);
        for (name, value) in attributes {
            match name {
                "operands" => call.operands = words("operands", value)?,
                "results" => call.results = words("results", value)?,
                "shapes" => call.shapes = Some(words("shapes", value)?),
                "method" => call.options.method = words("method", value)?.parse()?,
                "coefficients" => call.options.coefficients = words("coefficients", value)?.parse()?,
                "bidirectional" => call.options.bidirectional = Some(flag("bidirectional", value)?),
                "reverse" => call.options.reverse = flag("reverse", value)?,
                "dt_softplus" => call.options.dt_softplus = flag("dt_softplus", value)?,
                "dt_limit_min" => min = Some(number("dt_limit_min", value)?),
                "dt_limit_max" => max = Some(number("dt_limit_max", value)?),
                _ => {
                    let known = "be among operands, results, shapes, method, coefficients, bidirectional, reverse, \
                                 dt_softplus, dt_limit_min and dt_limit_max";
                    return Err(Error::invalid("the attributes", known, name));
                }
            }
        }
        if min.is_some() || max.is_some() {
            call.options.dt_limit = Some([min.unwrap_or(f64::NEG_INFINITY), max.unwrap_or(f64::INFINITY)]);
        }
        Ok(call)
    }
}

fn words<'a>(name: &'static str, value: Attribute<'a>) -> Result<&'a str, Error> {
    match value {
        Attribute::Text(text) => Ok(text),
        other => Err(Error::invalid(name, "be a string", format!("{other:?}"))),
    }
}

fn flag(name: &'static str, value: Attribute<'_>) -> Result<bool, Error> {
    match value {
        Attribute::Integer(0) => Ok(false),
        Attribute::Integer(1) => Ok(true),
        other => Err(Error::invalid(name, "be a boolean, or 0 or 1", format!("{other:?}"))),
    }
}

fn number(name: &'static str, value: Attribute<'_>) -> Result<f64, Error> {
    match value {
        Attribute::Real(number) => Ok(number),
        Attribute::Integer(number) => Ok(number as f64),
        other => Err(Error::invalid(name, "be a number", format!("{other:?}"))),
    }
}

/// Tensors by their names; each is taken once.
struct Named<'a> {
    role: &'static str,
    tensors: Vec<(&'a str, Tensor)>,
}

impl<'a> Named<'a> {
    fn new(role: &'static str, names: &'a str, tensors: Vec<Tensor>) -> Result<Self, Error> {
        let names: Vec<_> = names.split_whitespace().collect();
        if names.len() != tensors.len() {
            let expected = format!("name the {} tensors of the call", tensors.len());
            return Err(Error::invalid(role, expected, format!("{names:?}")));
        }
        Ok(Self { role, tensors: names.into_iter().zip(tensors).collect() })
    }

    /// Gives each tensor its shape of these: `2,60,512 2,60,512 512,16 …`.
    fn shape(&mut self, shapes: Option<&str>) -> Result<(), Error> {
        let Some(shapes) = shapes else { return Ok(()) };
        let malformed = || {
            Error::invalid("shapes", "be as many as operands, such as 2,60,512 512,16", format!("{shapes:?}"))
        };
        let axes =
            |shape: &str| shape.split(',').map(|axis| axis.parse().ok()).collect::<Option<Vec<usize>>>();
        let shapes: Vec<_> = shapes
            .split_whitespace()
            .map(|shape| axes(shape).ok_or_else(malformed))
            .collect::<Result<_, _>>()?;
        if shapes.len() != self.tensors.len() {
            return Err(malformed());
        }
        for ((_, tensor), shape) in self.tensors.iter_mut().zip(shapes) {
            let shape = tensor.with_components(shape.into_iter());
            *tensor = tensor.clone().shaped(self.role, shape)?;
        }
        Ok(())
    }

    fn optional(&mut self, name: &str) -> Option<Tensor> {
        let place = self.tensors.iter().position(|(given, _)| *given == name)?;
        Some(self.tensors.swap_remove(place).1)
    }

    fn workspace(&mut self) -> Result<Option<Tensor>, Error> {
        let workspace = self.optional("workspace");
        workspace.map(|tensor| tensor.of_bytes("workspace")).transpose()
    }

    fn required(&mut self, name: &'static str) -> Result<Tensor, Error> {
        self.optional(name).ok_or_else(|| not_named(self.role, name))
    }

    fn inputs(&mut self) -> Result<Inputs<Tensor>, Error> {
        let role = self.role;
        Inputs::by_name(|name| Ok(self.optional(name)), |name| not_named(role, name))
    }

    /// Refuses what nobody has taken.
    fn finish(self) -> Result<(), Error> {
        match self.tensors.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(Error::invalid(self.role, "name tensors of the operation, each of them once", *name))
            }
        }
    }
}

fn not_named(role: &'static str, name: &str) -> Error {
    Error::invalid(role, format!("name {name}"), "no such name")
}

/// The type of states.
fn states(problem: &Problem) -> ElementType {
    problem.element.state_type()
}

/// A tensor that must have this type and shape or, where a call has nothing but flat ones, as many elements.
fn checked(
    name: &'static str,
    tensor: Tensor,
    element: ElementType,
    shape: Vec<usize>,
    flat: bool,
) -> Result<Tensor, Error> {
    let tensor = if flat { tensor.shaped(name, shape.clone())? } else { tensor };
    let got = tensor.spec(name)?;
    if got == (Spec { element, shape: &shape }) {
        return Ok(tensor);
    }
    Err(Error::invalid(name, format!("be {element} {shape:?}"), format!("{} {:?}", got.element, got.shape)))
}

/// How many chunks there are is the backend's own affair; all else about boundary states is not.
fn checked_boundary_states(problem: &Problem, tensor: Tensor, flat: bool) -> Result<Tensor, Error> {
    let chunks = match flat {
        true => tensor.shape.iter().product::<usize>() / problem.boundary_shape(1).iter().product::<usize>(),
        false => tensor.shape.get(2).copied().unwrap_or(1),
    };
    checked("boundary_states", tensor, states(problem), problem.boundary_shape(chunks.max(1)), flat)
}

/// Refuses results that lie where something else does. XLA never does that unless a program declares it.
fn check_apart<'a>(
    read: impl Iterator<Item = &'a Tensor>,
    written: impl Iterator<Item = &'a Tensor>,
) -> Result<(), Error> {
    let place = |tensor: &Tensor| -> Range<usize> {
        let start = tensor.data as usize;
        start..start + tensor.len()
    };
    let mut taken: Vec<_> = read.map(place).collect();
    for result in written.map(place) {
        if taken.iter().any(|other| result.start < other.end && other.start < result.end) {
            return Err(Error::invalid(
                "the results",
                "lie apart from each other and from the operands",
                "an alias",
            ));
        }
        taken.push(result);
    }
    Ok(())
}

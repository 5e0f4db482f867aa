//! Shapes, element types, method and options, checked once and here. Whoever holds a [`Problem`] may trust it; backends
//! and shells check nothing again but the lengths of the memory that they are handed.

use std::cmp::Ordering;
use std::fmt;

use crate::operands::{Inputs, OutputGradients};
use crate::problem::with_complex;
use crate::{Coefficients, ElementType, Error, Options, Problem, Projection};

/// Shape and element type of a tensor that somebody wants scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec<'a> {
    /// The element type; of the components where the tensor is complex.
    pub element: ElementType,
    /// The axes, a trailing 2 included where the tensor is complex.
    pub shape: &'a [usize],
}

impl Problem {
    /// Checks a scan over sequences.
    pub fn scan(inputs: &Inputs<Spec<'_>>, options: &Options) -> Result<Self, Error> {
        let &[batch, seq, dim] = inputs.x.shape else {
            return Err(Error::invalid("x", "have shape {batch, seq, dim}", Shape(inputs.x.shape)));
        };
        Self::check(inputs, options, Frames { batch, seq: Some(seq), dim })
    }

    /// Checks a single step, whose tensors lack the axis of time. A `b` or `c` of rank 2 is {batch, state} where
    /// that fits, else constant {dim, state}; where batch and dim are the same, a constant one is given as
    /// {batch, groups, state} with dim groups.
    pub fn step(inputs: &Inputs<Spec<'_>>, options: &Options) -> Result<Self, Error> {
        let &[batch, dim] = inputs.x.shape else {
            return Err(Error::invalid("x", "have shape {batch, dim}", Shape(inputs.x.shape)));
        };
        let causal =
            Options { bidirectional: Some(options.bidirectional.unwrap_or(false)), ..options.clone() };
        if options.method.bidirectional_by_default() && options.bidirectional.is_none() {
            let expected = "be causal in a step (bidirectional: false says that the causal form is meant)";
            return Err(Error::invalid("method", expected, options.method));
        }
        if causal.bidirectional == Some(true) {
            return Err(Error::invalid("bidirectional", "be false in a step", true));
        }
        if options.reverse {
            return Err(Error::invalid("reverse", "be false in a step", true));
        }
        if let Some(seq_idx) = inputs.seq_idx {
            return Err(Error::invalid("seq_idx", "be absent in a step", Shape(seq_idx.shape)));
        }
        Self::check(inputs, &causal, Frames { batch, seq: None, dim })
    }

    fn check(inputs: &Inputs<Spec<'_>>, options: &Options, frames: Frames) -> Result<Self, Error> {
        for (name, spec) in inputs.iter() {
            if spec.shape.contains(&0) {
                return Err(Error::invalid(name, "have no empty axis", Shape(spec.shape)));
            }
        }
        let element = inputs.x.element;
        if element == ElementType::S32 {
            return Err(Error::wrong_type("x", element));
        }
        let (state, complex) = match *inputs.a.shape {
            [dim, state] if dim == frames.dim => (state, false),
            [dim, state, 2] if dim == frames.dim => (state, true),
            _ => {
                let expected =
                    format!("have shape {{{0}, state}}, or {{{0}, state, 2}} for complex", frames.dim);
                return Err(Error::invalid("a", expected, Shape(inputs.a.shape)));
            }
        };
        for (name, spec) in inputs.iter() {
            let expected = element.of(name);
            if spec.element != expected {
                if name == "seq_idx" {
                    return Err(Error::wrong_type(name, spec.element));
                }
                let expected = format!("have type {expected} where x has type {element}");
                return Err(Error::invalid(name, expected, spec.element));
            }
        }
        let sequence = frames.axes();
        for (name, spec) in inputs.iter() {
            let expected = match name {
                "dt" | "z" => sequence.clone(),
                "d" | "dt_bias" => vec![frames.dim],
                "initial_state" => with_complex(vec![frames.batch, frames.dim, state], complex),
                "seq_idx" => sequence[..sequence.len() - 1].to_vec(),
                _ => continue,
            };
            if *spec.shape != expected {
                let expected = format!("have shape {}", Shape(&expected));
                return Err(Error::invalid(name, expected, Shape(spec.shape)));
            }
        }
        let projection = |name, spec: Spec<'_>| frames.projection(name, spec.shape, state, complex);
        let bidirectional = options.bidirectional.unwrap_or(options.method.bidirectional_by_default());
        if options.coefficients == Coefficients::Taylor && !options.method.has_taylor() {
            let expected = format!("be :exact for method {}, which has no truncated series", options.method);
            return Err(Error::invalid("coefficients", expected, options.coefficients));
        }
        if let Some([min, max]) = options.dt_limit {
            // As the scan has them.
            let held = |limit: f64| match element.state_type() {
                ElementType::F64 => limit,
                _ => f64::from(limit as f32),
            };
            let expected = match min.partial_cmp(&max) {
                // No step is within these.
                Some(_) if held(min) == f64::INFINITY || held(max) == f64::NEG_INFINITY => Some(
                    "be {min, max} with min below :infinity and max above :neg_infinity, in the type of the scan",
                ),
                Some(Ordering::Less | Ordering::Equal) => None,
                _ => Some("be {min, max} with min not above max"),
            };
            if let Some(expected) = expected {
                return Err(Error::invalid("dt_limit", expected, format!("{{{min:?}, {max:?}}}")));
            }
        }
        let problem = Self {
            batch: frames.batch,
            seq: frames.seq.unwrap_or(1),
            dim: frames.dim,
            state,
            element,
            complex,
            b: projection("b", inputs.b)?,
            c: projection("c", inputs.c)?,
            d: inputs.d.is_some(),
            z: inputs.z.is_some(),
            dt_bias: inputs.dt_bias.is_some(),
            initial_state: inputs.initial_state.is_some(),
            seq_idx: inputs.seq_idx.is_some(),
            method: options.method,
            coefficients: options.coefficients,
            bidirectional,
            reverse: options.reverse,
            dt_softplus: options.dt_softplus,
            dt_limit: options.dt_limit,
        };
        problem.fits_in_memory()?;
        Ok(problem)
    }

    /// Sizes are computed without overflow checks from here on. None is greater than that of all states of all frames in each
    /// direction, as complex numbers of f64, with channels and states made whole vectors and blocks, which must fit an isize.
    fn fits_in_memory(&self) -> Result<(), Error> {
        let whole = |axis: usize, block| axis.checked_next_multiple_of(block).unwrap_or(usize::MAX);
        let (dim, state) = (whole(self.dim, 128), whole(self.state, 16));
        let axes = [self.directions(), self.batch, self.seq, dim, state, 2, size_of::<f64>()];
        match axes.iter().try_fold(1usize, |size, &axis| size.checked_mul(axis)) {
            Some(size) if isize::try_from(size).is_ok() => Ok(()),
            _ => {
                let got = format!("{} and {} states", Shape(&[self.batch, self.seq, self.dim]), self.state);
                Err(Error::invalid("x", "have states that can be counted", got))
            }
        }
    }

    /// Checks what flows into the backward pass.
    pub fn check_output_gradients(&self, output_gradients: &OutputGradients<Spec<'_>>) -> Result<(), Error> {
        for (name, &spec) in output_gradients.iter() {
            let shape = match name {
                "dy" => vec![self.batch, self.seq, self.dim],
                _ => self.state_shape(),
            };
            self.check_tensor(name, spec, self.element.of(name), &shape)?;
        }
        Ok(())
    }

    /// Checks the states that the forward pass has handed over to the backward pass: their shape is the backend's.
    pub fn check_boundary_states(&self, spec: Spec<'_>, shape: &[usize]) -> Result<(), Error> {
        self.check_tensor("boundary_states", spec, self.element.state_type(), shape)
    }

    fn check_tensor(
        &self,
        name: &'static str,
        spec: Spec<'_>,
        element: ElementType,
        shape: &[usize],
    ) -> Result<(), Error> {
        if spec.element != element {
            let expected = format!("have type {element} where x has type {}", self.element);
            return Err(Error::invalid(name, expected, spec.element));
        }
        if spec.shape != shape {
            let expected = format!("have shape {}", Shape(shape));
            return Err(Error::invalid(name, expected, Shape(spec.shape)));
        }
        Ok(())
    }

    /// Refuses tensors whose memory is not as long as they are.
    pub fn check_lengths<'a, T: AsRef<[u8]> + 'a>(
        &self,
        mut tensors: impl Iterator<Item = (&'static str, &'a T)>,
    ) -> Result<(), Error> {
        tensors.try_for_each(|(name, bytes)| self.check_length(name, bytes.as_ref().len()))
    }

    /// Refuses memory whose length is not that of the tensor it stands for.
    pub fn check_length(&self, name: &'static str, got: usize) -> Result<(), Error> {
        check_length(name, self.bytes(name), got)
    }
}

/// Refuses memory that is not as long as the tensor it stands for.
pub fn check_length(name: &'static str, expected: usize, got: usize) -> Result<(), Error> {
    match got == expected {
        true => Ok(()),
        false => Err(Error::invalid(name, format!("hold {expected} bytes"), format!("{got} bytes"))),
    }
}

/// The axes that all tensors of a call share.
struct Frames {
    batch: usize,
    /// `None` in a step.
    seq: Option<usize>,
    dim: usize,
}

impl Frames {
    fn axes(&self) -> Vec<usize> {
        [Some(self.batch), self.seq, Some(self.dim)].into_iter().flatten().collect()
    }

    fn projection(
        &self,
        name: &'static str,
        shape: &[usize],
        state: usize,
        complex: bool,
    ) -> Result<Projection, Error> {
        let lead: Vec<usize> = [Some(self.batch), self.seq].into_iter().flatten().collect();
        let per_frame = with_complex([&lead[..], &[state]].concat(), complex);
        if shape == per_frame {
            return Ok(Projection::PerFrame { groups: 1 });
        }
        let constant = with_complex(vec![self.dim, state], complex);
        if shape == constant {
            return Ok(Projection::Constant);
        }
        if let Some(&groups) = shape.get(lead.len())
            && self.dim.is_multiple_of(groups)
            && shape == with_complex([&lead[..], &[groups, state]].concat(), complex)
        {
            return Ok(Projection::PerFrame { groups });
        }
        let lead: String = lead.iter().map(|axis| format!("{axis}, ")).collect();
        let tail = if complex { format!("{state}, 2") } else { state.to_string() };
        let expected = format!(
            "have shape {}, {{{lead}groups, {tail}}} with groups a divisor of dim {}, or constant {}",
            Shape(&per_frame),
            self.dim,
            Shape(&constant),
        );
        Err(Error::invalid(name, expected, Shape(shape)))
    }
}

/// A shape as Elixir prints it: `{2, 60, 16}`.
struct Shape<'a>(&'a [usize]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<_> = self.0.iter().map(usize::to_string).collect();
        write!(f, "{{{}}}", axes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;

    fn spec(shape: &[usize]) -> Spec<'_> {
        Spec { element: ElementType::F32, shape }
    }

    fn inputs<'a>() -> Inputs<Spec<'a>> {
        Inputs {
            x: spec(&[2, 6, 4]),
            dt: spec(&[2, 6, 4]),
            a: spec(&[4, 3]),
            b: spec(&[2, 6, 3]),
            c: spec(&[4, 3]),
            ..Inputs::default()
        }
    }

    impl Default for Spec<'_> {
        fn default() -> Self {
            spec(&[])
        }
    }

    #[test]
    fn reads_shapes_and_layouts() {
        let problem = Problem::scan(&inputs(), &Options::default()).unwrap();
        assert_eq!((problem.batch, problem.seq, problem.dim, problem.state), (2, 6, 4, 3));
        assert_eq!((problem.b, problem.c), (Projection::PerFrame { groups: 1 }, Projection::Constant));

        let grouped = Inputs { b: spec(&[2, 6, 2, 3]), ..inputs() };
        let problem = Problem::scan(&grouped, &Options::default()).unwrap();
        assert_eq!(problem.b, Projection::PerFrame { groups: 2 });

        let complex = Inputs { a: spec(&[4, 3, 2]), b: spec(&[2, 6, 3, 2]), c: spec(&[4, 3, 2]), ..inputs() };
        let problem = Problem::scan(&complex, &Options::default()).unwrap();
        assert!(problem.complex);
        assert_eq!(problem.bytes("c"), 4 * 3 * 2 * 4);
    }

    #[test]
    fn says_what_was_expected_and_what_came() {
        let wrong = Inputs { b: spec(&[2, 6, 5]), ..inputs() };
        let message = Problem::scan(&wrong, &Options::default()).unwrap_err().to_string();
        assert_eq!(
            message,
            "expected b to have shape {2, 6, 3}, {2, 6, groups, 3} with groups a divisor of dim 4, \
             or constant {4, 3}, got: {2, 6, 5}"
        );
        let wrong = Inputs { dt_bias: Some(spec(&[5])), ..inputs() };
        let message = Problem::scan(&wrong, &Options::default()).unwrap_err().to_string();
        assert_eq!(message, "expected dt_bias to have shape {4}, got: {5}");
        let message = "zho".parse::<Method>().unwrap_err().to_string();
        assert!(message.starts_with("expected method to be one of :zoh, :zoh_exact, :foh"), "{message}");
    }

    #[test]
    fn refuses_what_cannot_be() {
        let empty = Inputs { x: spec(&[2, 0, 4]), dt: spec(&[2, 0, 4]), b: spec(&[2, 0, 3]), ..inputs() };
        let huge = [1 << 30, 1 << 30, 4];
        let huge = Inputs { x: spec(&huge), dt: spec(&huge), b: spec(&[4, 3]), ..inputs() };
        // Every tensor but b would have a length, and b 2⁶⁴ bytes, which is counted as none.
        let sequence = [1, 1 << 30, 1];
        let long = [1, 1 << 30, 1 << 30, 2];
        let wide = Inputs {
            x: spec(&sequence),
            dt: spec(&sequence),
            a: spec(&[1, 1 << 30, 2]),
            b: spec(&long),
            c: spec(&[1, 1 << 30, 2]),
            ..inputs()
        };
        for wrong in [empty, huge, wide] {
            assert!(Problem::scan(&wrong, &Options::default()).is_err());
        }
        let taylor = Options { coefficients: Coefficients::Taylor, ..Options::default() };
        assert!(Problem::scan(&inputs(), &taylor).is_err());
        let none = [[f64::INFINITY; 2], [f64::NEG_INFINITY; 2]];
        for limit in [[1.0, 0.0], [f64::NAN, 1.0]].into_iter().chain(none) {
            let options = Options { dt_limit: Some(limit), ..Options::default() };
            assert!(Problem::scan(&inputs(), &options).is_err());
        }
    }

    /// In half as many frames each is counted.
    #[test]
    fn states_that_cannot_be_counted_are_complex_ones_of_whole_blocks_both_ways() {
        let is_counted = |seq, dim, state, bidirectional| {
            let (x, a, b) = ([1, seq, dim], [dim, state], [1, seq, state]);
            let inputs =
                Inputs { x: spec(&x), dt: spec(&x), a: spec(&a), b: spec(&b), c: spec(&b), ..inputs() };
            let options = Options { bidirectional: Some(bidirectional), ..Options::default() };
            Problem::scan(&inputs, &options).is_ok()
        };
        for (dim, state) in [(1, 1), (1, 16), (128, 1), (128, 16)] {
            for (seq, bidirectional) in [(1 << 48, false), (1 << 47, true)] {
                let of = |seq| is_counted(seq, dim, state, bidirectional);
                assert!(!of(seq) && of(seq / 2), "{seq} frames, {dim} channels, {state} states");
            }
        }
    }

    #[test]
    fn a_step_is_causal() {
        let step = Inputs {
            x: spec(&[2, 4]),
            dt: spec(&[2, 4]),
            b: spec(&[2, 3]),
            c: spec(&[2, 2, 3]),
            initial_state: Some(spec(&[2, 4, 3])),
            ..inputs()
        };
        let problem = Problem::step(&step, &Options::default()).unwrap();
        assert_eq!((problem.seq, problem.c), (1, Projection::PerFrame { groups: 2 }));
        let poly = Options { method: Method::Poly, ..Options::default() };
        assert!(Problem::step(&step, &poly).is_err());
        let causal = Options { bidirectional: Some(false), ..poly };
        assert!(!Problem::step(&step, &causal).unwrap().bidirectional);
        let packed = Inputs { seq_idx: Some(spec(&[2])), ..step };
        let message = Problem::step(&packed, &causal).unwrap_err().to_string();
        assert_eq!(message, "expected seq_idx to be absent in a step, got: {2}");
    }

    #[test]
    fn of_as_many_rows_as_channels_b_and_c_of_a_step_are_those_of_rows() {
        let step =
            Inputs { x: spec(&[4, 4]), dt: spec(&[4, 4]), b: spec(&[4, 3]), c: spec(&[4, 4, 3]), ..inputs() };
        let problem = Problem::step(&step, &Options::default()).unwrap();
        let of_rows = |groups| Projection::PerFrame { groups };
        assert_eq!((problem.b, problem.c), (of_rows(1), of_rows(4)));
    }
}

//! What the tests share: golden cases, random problems, and how far apart two tensors are.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod devices;
pub mod golden;
pub mod laws;
pub mod nvrtc;
pub mod packing;
pub mod random;
pub mod registry;
pub mod roundings;
pub mod time;

use selective_scan::naive::{decode, encode};
use selective_scan::{ElementType, Error, Gradients, Inputs, OutputGradients, Outputs, Problem};

/// What sequences are stored in.
pub const ELEMENTS: [ElementType; 4] =
    [ElementType::F32, ElementType::F64, ElementType::Bf16, ElementType::F16];

/// How far tensors may be from those in float64, or from the same by another way, relative to the norm.
pub struct Within {
    pub outputs: f64,
    pub gradients: f64,
}

/// Of elements that are computed with, before they are rounded to what sequences are stored in (see [`rounding`]).
pub fn within(element: ElementType) -> Within {
    match element {
        ElementType::F64 => Within { outputs: 1e-12, gradients: 1e-10 },
        _ => Within { outputs: 2e-6, gradients: 1e-5 },
    }
}

/// What rounding to the nearest takes from an element at most, and so from a norm.
pub fn rounding(element: ElementType) -> f64 {
    match element {
        ElementType::Bf16 => 1.0 / 256.0,
        ElementType::F16 => 1.0 / 2048.0,
        _ => 0.0,
    }
}

/// A call of a backend's forward pass.
pub type Forward = fn(&Problem, Inputs<&[u8]>, Outputs<&mut [u8]>) -> Result<(), Error>;

/// A call of a backend's backward pass.
pub type Backward =
    fn(&Problem, Inputs<&[u8]>, OutputGradients<&[u8]>, Gradients<&mut [u8]>) -> Result<(), Error>;

/// A checked problem with the bytes of everything that flows into it.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub problem: Problem,
    pub inputs: Inputs<Vec<u8>>,
    pub output_gradients: OutputGradients<Vec<u8>>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Case {
    pub fn inputs(&self) -> Inputs<&[u8]> {
        self.inputs.as_ref().map(|_, bytes| &bytes[..])
    }

    pub fn output_gradients(&self) -> OutputGradients<&[u8]> {
        self.output_gradients.as_ref().map(|_, bytes| &bytes[..])
    }

    /// Packs its rows, each with the same sequences: a frame is of that of this index.
    pub fn pack(&mut self, index: impl Fn(usize) -> f64) {
        let Problem { batch, seq, .. } = self.problem;
        let index: Vec<f64> = (0..batch * seq).map(|frame| index(frame % seq)).collect();
        self.inputs.seq_idx = Some(encode(ElementType::S32, &index));
    }

    /// Packs its rows with sequences of so many frames; the last of a row may be shorter.
    pub fn pack_sequences_of(&mut self, frames: usize) {
        self.pack(|frame| (frame / frames) as f64);
    }

    /// The outputs of a backend; memory is poisoned before, so that what is not written shows.
    pub fn forward(&self, forward: Forward) -> Outputs<Vec<f64>> {
        self.forward_with(forward)
    }

    /// The outputs of any call of that form.
    pub fn forward_with(
        &self,
        forward: impl FnOnce(&Problem, Inputs<&[u8]>, Outputs<&mut [u8]>) -> Result<(), Error>,
    ) -> Outputs<Vec<f64>> {
        let names = Outputs { y: (), final_state: Some(()) };
        let mut outputs = names.map(|name, ()| vec![0xff; self.problem.bytes(name)]);
        forward(&self.problem, self.inputs(), outputs.as_mut().map(|_, bytes| &mut bytes[..])).unwrap();
        outputs.map(|name, bytes| decode(self.problem.element.of(name), &bytes))
    }

    /// The gradients of a backend.
    pub fn backward(&self, backward: Backward) -> Gradients<Vec<f64>> {
        self.backward_with(backward)
    }

    /// Room for the gradients of all inputs, filled with a byte.
    pub fn gradient_buffers(&self, byte: u8) -> Gradients<Vec<u8>> {
        self.inputs.as_ref().differentiable().map(|_, bytes| vec![byte; bytes.len()])
    }

    /// The gradients of any call of that form.
    pub fn backward_with(
        &self,
        backward: impl FnOnce(
            &Problem,
            Inputs<&[u8]>,
            OutputGradients<&[u8]>,
            Gradients<&mut [u8]>,
        ) -> Result<(), Error>,
    ) -> Gradients<Vec<f64>> {
        let mut gradients = self.gradient_buffers(0xff);
        backward(
            &self.problem,
            self.inputs(),
            self.output_gradients(),
            gradients.as_mut().map(|_, bytes| &mut bytes[..]),
        )
        .unwrap();
        gradients.map(|name, bytes| decode(self.problem.element.of(name), &bytes))
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// ‖got − expected‖.
fn difference(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    norm(got.iter().zip(expected).map(|(g, e)| g - e))
}

/// ‖got − expected‖ / ‖expected‖; infinite where either has what is not a finite number.
pub fn distance(got: &[f64], expected: &[f64]) -> f64 {
    let difference = difference(got, expected);
    if difference.is_finite() {
        difference / norm(expected.iter().copied()).max(1e-30)
    } else {
        f64::INFINITY
    }
}

/// [`assert_close`] of gradients, where that of dt_bias is measured by its terms: it sums those of dt over batch and
/// time, and of random terms it may happen that next to nothing is left.
pub fn assert_gradients_close(
    what: &str,
    got: &Gradients<Vec<f64>>,
    expected: &Gradients<Vec<f64>>,
    tolerance: f64,
) {
    if let (Some(got), Some(sums)) = (&got.dt_bias, &expected.dt_bias) {
        let difference = difference(got, sums);
        // Not as a quotient: where every frame is padding, terms and sums are all zero.
        let allowed = tolerance * norm(expected.dt.iter().copied()).max(norm(sums.iter().copied()));
        assert!(difference <= allowed, "{what}: dt_bias is {difference:e} away, allowed {allowed:e}");
    }
    let others = |name: &&'static str| *name != "dt_bias";
    let got = got.iter().filter(|(name, _)| others(name));
    assert_close(what, got, expected.iter().filter(|(name, _)| others(name)), tolerance);
}

/// Whether every tensor is within `tolerance` of the norm of what was expected, or which is not.
pub fn close<'a>(
    what: &str,
    got: impl Iterator<Item = (&'static str, &'a Vec<f64>)>,
    expected: impl Iterator<Item = (&'static str, &'a Vec<f64>)>,
    tolerance: f64,
) -> Result<(), String> {
    let (got, expected): (Vec<_>, Vec<_>) = (got.collect(), expected.collect());
    assert_eq!(got.len(), expected.len(), "{what}: tensors");
    for ((name, got), (other, expected)) in got.into_iter().zip(expected) {
        assert_eq!(name, other);
        let distance = distance(got, expected);
        if distance > tolerance {
            return Err(format!("{what}: {name} is {distance:e} away, allowed {tolerance:e}"));
        }
    }
    Ok(())
}

/// Panics unless they are.
pub fn assert_close<'a>(
    what: &str,
    got: impl Iterator<Item = (&'static str, &'a Vec<f64>)>,
    expected: impl Iterator<Item = (&'static str, &'a Vec<f64>)>,
    tolerance: f64,
) {
    close(what, got, expected, tolerance).unwrap_or_else(|words| panic!("{words}"));
}

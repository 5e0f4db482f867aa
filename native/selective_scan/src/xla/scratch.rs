//! What a program must give a call beside its tensors, before it is compiled.
//!
//! A custom call that XLA may record in a CUDA graph cannot allocate: what it works in, and what the forward pass
//! keeps for the backward pass, are results of the call, so that XLA places them like everything else.

use std::str::FromStr;

use super::cuda::padded;
use super::frame::Attribute;
use super::request::Call;
use crate::cuda::{self, Pass, properties};
use crate::{ElementType, Error, Inputs, Problem, Spec, cpu};

/// Who runs the custom call, by XLA's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// The CPU.
    Host,
    /// An NVIDIA GPU.
    Cuda,
}

impl FromStr for Platform {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "Host" => Ok(Self::Host),
            "CUDA" => Ok(Self::Cuda),
            _ => Err(Error::invalid("platform", "be Host or CUDA", name)),
        }
    }
}

/// The memory of a call beside its tensors.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scratch {
    /// Bytes of the result `workspace` of the forward handler.
    pub forward_workspace: u64,
    /// Bytes of the result `workspace` of the backward handler.
    pub backward_workspace: u64,
    /// The third axis of `boundary_states`: {directions, batch, chunks, dim, state}, with a trailing 2 where complex.
    /// 0 where the backward pass has no use for them.
    pub chunks: u64,
}

/// What a problem needs on a platform of this process: on all of its devices, where they differ.
pub fn scratch(problem: &Problem, platform: Platform) -> Result<Scratch, Error> {
    if platform == Platform::Host {
        return Ok(Scratch { chunks: cpu::boundary_shape(problem)[2] as u64, ..Scratch::default() });
    }
    let chunks = cuda::boundary_shape(problem)[2];
    let backward = if chunks > 1 { Pass::BackwardFromBoundaryStates } else { Pass::Backward };
    let mut most = Scratch { chunks: if chunks > 1 { chunks as u64 } else { 0 }, ..Scratch::default() };
    for properties in properties()? {
        let bytes = |pass| padded(properties.workspace_bytes(problem, pass)) as u64;
        most = Scratch {
            forward_workspace: most.forward_workspace.max(bytes(Pass::Forward)),
            backward_workspace: most.backward_workspace.max(bytes(backward)),
            ..most
        };
    }
    Ok(most)
}

/// A problem in words: `x=f32[2,60,512] dt=f32[2,60,512] a=f32[512,16] … method=foh reverse=1`. A complex tensor has
/// the trailing 2 of this crate.
pub fn problem(text: &str) -> Result<Problem, Error> {
    let mut tensors: Vec<(&str, Words)> = Vec::new();
    let mut attributes = Vec::new();
    for pair in text.split_whitespace() {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| Error::invalid("a word", "read name=value", pair))?;
        match value.ends_with(']') {
            true => tensors.push((name, Words::read(value)?)),
            false => attributes.push((name, attribute(value))),
        }
    }
    let words = Inputs::by_name(
        |name| {
            Ok(tensors.iter().position(|(given, _)| *given == name).map(|place| tensors.swap_remove(place).1))
        },
        |name| Error::invalid(name, "be given", "no such tensor"),
    )?;
    if let Some((name, _)) = tensors.first() {
        return Err(Error::invalid("the problem", "name tensors of the operation, each of them once", *name));
    }
    let inputs = words
        .as_ref()
        .try_map(|name, words| Ok(Spec { element: words.element(name)?, shape: &words.shape }))?;
    Problem::scan(&inputs, &Call::read(attributes.into_iter())?.options)
}

/// `f32[2,60,512]`.
struct Words<'a> {
    element: &'a str,
    shape: Vec<usize>,
}

impl<'a> Words<'a> {
    fn read(text: &'a str) -> Result<Self, Error> {
        let words = || {
            let (element, axes) = text.strip_suffix(']')?.split_once('[')?;
            let axes = axes.split(',').filter(|axis| !axis.is_empty());
            Some(Self { element, shape: axes.map(|axis| axis.parse().ok()).collect::<Option<_>>()? })
        };
        words().ok_or_else(|| Error::invalid("a tensor", "read like f32[2,60,512]", text))
    }

    fn element(&self, name: &'static str) -> Result<ElementType, Error> {
        use ElementType::*;
        let known =
            [F32, F64, Bf16, F16, S32].into_iter().find(|element| element.to_string() == self.element);
        known.ok_or_else(|| Error::wrong_type(name, self.element))
    }
}

fn attribute(text: &str) -> Attribute<'_> {
    match (text.parse(), text.parse()) {
        (Ok(integer), _) => Attribute::Integer(integer),
        (_, Ok(real)) => Attribute::Real(real),
        _ => Attribute::Text(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_problem_in_words() {
        let text = "x=bf16[2,60,8] dt=bf16[2,60,8] a=f32[8,4,2] b=bf16[2,60,4,2] c=bf16[8,4,2] d=f32[8] \
                    method=poly dt_limit_min=0.5 dt_softplus=1";
        let problem = problem(text).unwrap();
        assert!(problem.complex && problem.bidirectional && problem.dt_softplus && problem.d);
        assert_eq!(problem.dt_limit, Some([0.5, f64::INFINITY]));
        let host = scratch(&problem, Platform::Host).unwrap();
        assert_eq!(host, Scratch { chunks: 1, ..Scratch::default() });
    }

    #[test]
    fn says_what_is_wrong_with_it() {
        let cases = [
            ("x=f32[2,60,8] dt=f32[2,60,8] a=f32[8,4] b=f32[2,60,4]", "expected c to be given"),
            ("x=f32[2,60,8] dt=s8[2,60,8] a=f32[8,4] b=f32[8,4] c=f32[8,4]", "expected dt to have type"),
            ("x=f32[2] dt=f32[2] a=f32[8,4] b=f32[8,4] c=f32[8,4]", "expected x to have shape"),
            ("x", "expected a word to read name=value"),
            ("x=f32[2,-1]", "expected a tensor to read like f32[2,60,512], got: f32[2,-1]"),
            ("x=f32[99999999999999999999]", "expected a tensor to read like"),
            (
                "x=f32[2,60,8] dt=f32[2,60,8] a=f32[8,4] b=f32[8,4] c=f32[8,4] q=f32[3]",
                "expected the problem to name tensors of the operation, each of them once, got: q",
            ),
        ];
        for (text, words) in cases {
            let message = problem(text).unwrap_err().to_string();
            assert!(message.starts_with(words), "{message}");
        }
    }
}

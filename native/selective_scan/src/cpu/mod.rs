//! The CPU backend: vector instructions chosen at run time, threads over batch and channels.

mod backward;
mod blocks;
mod exponential;
mod forward;
mod frames;
mod sink;
mod step;
mod tile;
mod vector;
mod views;

use half::{bf16, f16};

use crate::{ElementType, Error, Gradients, Inputs, OutputGradients, Outputs, Problem};
use vector::{ComplexLanes, Isa, Lanes, with_isa};
use views::{Storage, Views};

/// State updates below which a call stays on the thread that makes it: waking others takes longer.
const SERIAL_WORK: usize = 1 << 16;

/// State updates of a problem, the measure of its time.
fn work(problem: &Problem) -> usize {
    problem.batch * problem.seq * problem.dim * problem.state * problem.components()
}

/// The instruction set that this machine's vectors are computed with: avx512, avx2, neon or plain.
pub fn instruction_set() -> &'static str {
    fn name<S: Isa>(_: S) -> &'static str {
        S::NAME
    }
    with_isa!(isa => name(isa))
}

/// Calls a generic function with the storage type of an element type.
macro_rules! with_storage {
    ($element:expr, $T:ident => $call:expr) => {{
        macro_rules! call {
            ($storage:ty) => {{
                type $T = $storage;
                $call
            }};
        }
        match $element {
            ElementType::F64 => call!(f64),
            ElementType::Bf16 => call!(bf16),
            ElementType::F16 => call!(f16),
            ElementType::F32 | ElementType::S32 => call!(f32),
        }
    }};
}

/// Scans: reads the inputs, writes y and, where it is asked for, the final state.
///
/// # Errors
/// [`Error::InvalidArgument`] where memory is not as long as its tensor, or an output is misaligned.
pub fn forward(problem: &Problem, inputs: Inputs<&[u8]>, outputs: Outputs<&mut [u8]>) -> Result<(), Error> {
    fn on<T: Storage, S: Isa>(
        isa: S,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<(), Error> {
        let views = &Views::<T>::new(problem, inputs)?;
        match problem.complex {
            true => forward::forward::<T, ComplexLanes<T::Real, S>>(isa, problem, views, outputs),
            false => forward::forward::<T, Lanes<T::Real, S>>(isa, problem, views, outputs),
        }
    }
    with_isa!(isa => with_storage!(problem.element, T => on::<T, _>(isa, problem, inputs, outputs)))
}

/// The gradients of Σ y·dy + Σ final_state·dfinal_state with respect to every input: writes those that `gradients`
/// has. Where the forward pass has handed over its boundary states, they are not computed again.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    problem: &Problem,
    inputs: Inputs<&[u8]>,
    upstream: OutputGradients<&[u8]>,
    gradients: Gradients<&mut [u8]>,
) -> Result<(), Error> {
    fn on<T: Storage, S: Isa>(
        isa: S,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        upstream: OutputGradients<&[u8]>,
        gradients: Gradients<&mut [u8]>,
    ) -> Result<(), Error> {
        let views = &Views::<T>::new(problem, inputs)?;
        match problem.complex {
            true => {
                backward::backward::<T, ComplexLanes<T::Real, S>>(isa, problem, views, upstream, gradients)
            }
            false => backward::backward::<T, Lanes<T::Real, S>>(isa, problem, views, upstream, gradients),
        }
    }
    with_isa!(isa => with_storage!(problem.element, T => on::<T, _>(isa, problem, inputs, upstream, gradients)))
}

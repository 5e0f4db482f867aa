//! The CPU backend: vector instructions chosen at run time, threads over batch and channels.

mod backward;
mod blocks;
mod boundary;
mod exponential;
mod forward;
mod frames;
mod memory;
mod step;
mod tile;
mod vector;
mod views;

use std::sync::OnceLock;

use half::{bf16, f16};
use pulp::Arch;
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::threads::pool;
use crate::{ElementType, Error, Gradients, Inputs, OutputGradients, Outputs, Problem};
pub use boundary::{boundary_bytes, boundary_shape, check_boundary_length};
use vector::{ComplexLanes, Isa, Lanes, VectorField, with_isa};
use views::{Storage, Views};

/// State updates below which a call stays on the thread that makes it: waking others takes longer.
const SERIAL_WORK: usize = 1 << 16;

/// States that walk time together and share the loads of a frame, where coefficients leave registers for them.
const TOGETHER: usize = 4;

/// Calls a task with every number below `tasks` and the memory that is its own until it ends: on this thread, or side by side where
/// the work is worth it.
fn for_each_task<S>(
    problem: &Problem,
    tasks: usize,
    scratch: impl Fn() -> Result<S, Error> + Sync,
    task: impl Fn(&mut S, usize) + Sync,
) -> Result<(), Error> {
    static THREADS: OnceLock<ThreadPool> = OnceLock::new();
    let is_worth_it = work(problem) > SERIAL_WORK;
    let Some(pool) = is_worth_it.then(|| pool(&THREADS, 0)).flatten() else {
        let mut scratch = scratch()?;
        (0..tasks).for_each(|index| task(&mut scratch, index));
        return Ok(());
    };
    let side_by_side = || {
        (0..tasks).into_par_iter().try_for_each_init(&scratch, |scratch, index| match scratch {
            Ok(scratch) => {
                task(scratch, index);
                Ok(())
            }
            Err(error) => Err(error.clone()),
        })
    };
    pool.install(side_by_side)
}

/// State updates of a problem, the measure of its time.
fn work(problem: &Problem) -> usize {
    problem.batch * problem.seq * problem.dim * problem.state * problem.components()
}

/// One of the instruction sets that this machine has.
#[derive(Debug, Clone, Copy)]
pub struct InstructionSet(Arch);

impl InstructionSet {
    /// The best, which calls take that name none.
    pub fn best() -> Self {
        Self(Arch::new())
    }

    /// All, from plain instructions to the best.
    pub fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let others = [pulp::x86::V3::try_new().map(Arch::V3), pulp::x86::V4::try_new().map(Arch::V4)];
        #[cfg(target_arch = "aarch64")]
        let others = [pulp::aarch64::Neon::try_new().map(Arch::Neon)];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let others = [];
        [Arch::Scalar].into_iter().chain(others.into_iter().flatten()).map(Self).collect()
    }

    /// avx512, avx2, neon or plain.
    pub fn name(self) -> &'static str {
        fn name<S: Isa>(_: S) -> &'static str {
            S::NAME
        }
        with_isa!(self.0, isa => name(isa))
    }

    /// [`forward`] with this instruction set.
    ///
    /// # Errors
    /// As there.
    pub fn forward(
        self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<(), Error> {
        self.run(problem, inputs, Forward { outputs, boundary_states: None })
    }

    /// [`backward`] with this instruction set.
    ///
    /// # Errors
    /// As there.
    pub fn backward(
        self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        output_gradients: OutputGradients<&[u8]>,
        gradients: Gradients<&mut [u8]>,
    ) -> Result<(), Error> {
        self.run(problem, inputs, Backward { boundary_states: None, output_gradients, gradients })
    }

    /// Runs a pass.
    fn run(self, problem: &Problem, inputs: Inputs<&[u8]>, pass: impl Pass) -> Result<(), Error> {
        with_isa!(self.0, isa => dispatch(isa, problem, inputs, pass))
    }
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
/// [`Error::InvalidArgument`] where memory is not as long as its tensor, or an output is misaligned; [`Error::Failed`] where
/// there is not enough memory to work in.
pub fn forward(problem: &Problem, inputs: Inputs<&[u8]>, outputs: Outputs<&mut [u8]>) -> Result<(), Error> {
    InstructionSet::best().forward(problem, inputs, outputs)
}

/// [`forward`], which also writes the states before every chunk of frames ([`boundary_shape`]), for
/// [`backward_from`].
///
/// # Errors
/// As [`forward`].
pub fn forward_for_backward(
    problem: &Problem,
    inputs: Inputs<&[u8]>,
    outputs: Outputs<&mut [u8]>,
    boundary_states: &mut [u8],
) -> Result<(), Error> {
    InstructionSet::best().run(problem, inputs, Forward { outputs, boundary_states: Some(boundary_states) })
}

/// The gradients of Σ y·dy + Σ final_state·dfinal_state with respect to every input.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    problem: &Problem,
    inputs: Inputs<&[u8]>,
    output_gradients: OutputGradients<&[u8]>,
    gradients: Gradients<&mut [u8]>,
) -> Result<(), Error> {
    InstructionSet::best().backward(problem, inputs, output_gradients, gradients)
}

/// [`backward`], from the boundary states that [`forward_for_backward`] has written for the same inputs: they are not
/// computed again.
///
/// # Errors
/// As [`forward`].
pub fn backward_from(
    problem: &Problem,
    inputs: Inputs<&[u8]>,
    boundary_states: &[u8],
    output_gradients: OutputGradients<&[u8]>,
    gradients: Gradients<&mut [u8]>,
) -> Result<(), Error> {
    let pass = Backward { boundary_states: Some(boundary_states), output_gradients, gradients };
    InstructionSet::best().run(problem, inputs, pass)
}

/// A pass, ready for an instruction set, a storage type and a field.
trait Pass {
    fn run<T: Storage, F: VectorField<Element = T::Real>>(
        self,
        isa: F::Isa,
        problem: &Problem,
        views: &Views<'_, T>,
    ) -> Result<(), Error>;
}

struct Forward<'a> {
    outputs: Outputs<&'a mut [u8]>,
    boundary_states: Option<&'a mut [u8]>,
}

impl Pass for Forward<'_> {
    fn run<T: Storage, F: VectorField<Element = T::Real>>(
        self,
        isa: F::Isa,
        problem: &Problem,
        views: &Views<'_, T>,
    ) -> Result<(), Error> {
        forward::forward::<T, F>(isa, problem, views, self.outputs, self.boundary_states)
    }
}

struct Backward<'a> {
    boundary_states: Option<&'a [u8]>,
    output_gradients: OutputGradients<&'a [u8]>,
    gradients: Gradients<&'a mut [u8]>,
}

impl Pass for Backward<'_> {
    fn run<T: Storage, F: VectorField<Element = T::Real>>(
        self,
        isa: F::Isa,
        problem: &Problem,
        views: &Views<'_, T>,
    ) -> Result<(), Error> {
        let Self { boundary_states, output_gradients, gradients } = self;
        backward::backward::<T, F>(isa, problem, views, boundary_states, output_gradients, gradients)
    }
}

/// Runs a pass with an instruction set, as the problem wants it.
fn dispatch<S: Isa>(isa: S, problem: &Problem, inputs: Inputs<&[u8]>, pass: impl Pass) -> Result<(), Error> {
    with_storage!(problem.element, T => {
        let views = &Views::<T>::new(problem, inputs)?;
        match problem.complex {
            true => pass.run::<T, ComplexLanes<<T as Storage>::Real, S>>(isa, problem, views),
            false => pass.run::<T, Lanes<<T as Storage>::Real, S>>(isa, problem, views),
        }
    })
}

#[cfg(test)]
mod tests;

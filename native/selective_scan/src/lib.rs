//! The Mamba selective scan as one operation: discretization, recurrence and output fused.
//!
//! A request becomes one checked [`Problem`]; a backend executes it on borrowed views of memory. Nothing here
//! knows who asks: shells (a NIF, an XLA custom call) translate their buffers and errors, and no more.

mod error;
mod operands;
mod problem;
mod threads;

pub mod discretize;
pub mod naive;

pub mod cpu;
pub mod cuda;

pub mod xla;

pub use error::{Error, caught};
pub use operands::{Gradients, Inputs, OutputGradients, Outputs};
pub use problem::{Coefficients, ElementType, Method, Options, Problem, Projection, Spec};

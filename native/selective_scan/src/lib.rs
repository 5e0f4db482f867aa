//! The Mamba selective scan as one operation: discretization, recurrence and output fused.
//!
//! A request becomes one checked [`Problem`]; a backend executes it on borrowed views of memory. Nothing here
//! knows who asks: shells (a NIF, an XLA custom call) translate their buffers and errors, and no more.

mod check;
mod element;
mod error;
mod operands;
mod options;
mod problem;
mod threads;

pub mod discretize;
pub mod naive;

pub mod cpu;
pub mod cuda;

pub mod xla;

pub use check::Spec;
pub use element::ElementType;
pub use error::{Error, caught};
pub use operands::{Gradients, Inputs, OutputGradients, Outputs};
pub use options::{Coefficients, Method, Options};
pub use problem::{Problem, Projection};

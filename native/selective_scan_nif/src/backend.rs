//! The backends, as a call sees them: where its results lie, and what computes them.

use rustler::OwnedBinary;
use selective_scan::cuda::{self, Device};
use selective_scan::{Error, Gradients, Inputs, OutputGradients, Outputs, Problem, cpu};

use crate::memory::{Pinned, ResultMemory, on_the_beam};

/// What carries out a checked request.
pub trait Backend {
    /// Where results lie.
    type Memory: ResultMemory;

    /// Memory for a result; its contents are undefined.
    fn allocate(&self, len: usize) -> Result<Self::Memory, Error>;

    /// Writes every byte of the outputs, or fails.
    fn forward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<(), Error>;

    /// The same, and the states at the boundaries of chunks where the backward pass is faster with them.
    fn forward_for_backward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<Option<Self::Memory>, Error>;

    /// Writes every byte of the gradients, or fails.
    fn backward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        boundary_states: Option<&[u8]>,
        output_gradients: OutputGradients<&[u8]>,
        gradients: Gradients<&mut [u8]>,
    ) -> Result<(), Error>;
}

/// The processor that the BEAM runs on.
pub struct Cpu;

impl Backend for Cpu {
    type Memory = OwnedBinary;

    fn allocate(&self, len: usize) -> Result<OwnedBinary, Error> {
        on_the_beam(len)
    }

    fn forward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<(), Error> {
        cpu::forward(problem, inputs, outputs)
    }

    fn forward_for_backward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<Option<OwnedBinary>, Error> {
        let mut boundary_states = self.allocate(cpu::boundary_bytes(problem))?;
        cpu::forward_for_backward(problem, inputs, outputs, &mut boundary_states)?;
        Ok(Some(boundary_states))
    }

    fn backward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        boundary_states: Option<&[u8]>,
        output_gradients: OutputGradients<&[u8]>,
        gradients: Gradients<&mut [u8]>,
    ) -> Result<(), Error> {
        match boundary_states {
            Some(states) => cpu::backward_from(problem, inputs, states, output_gradients, gradients),
            None => cpu::backward(problem, inputs, output_gradients, gradients),
        }
    }
}

/// A CUDA device. Its results lie in pinned memory, which it writes without a detour.
pub struct Cuda(&'static Device);

impl Cuda {
    pub fn find(ordinal: usize) -> Result<Self, Error> {
        cuda::device(ordinal).map(Self)
    }
}

impl Backend for Cuda {
    type Memory = Pinned;

    fn allocate(&self, len: usize) -> Result<Pinned, Error> {
        self.0.host_buffer(len).map(Pinned)
    }

    fn forward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<(), Error> {
        self.0.forward(problem, inputs, outputs)
    }

    /// Boundary states would cross the bus twice: the device computes them again in less time.
    fn forward_for_backward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        outputs: Outputs<&mut [u8]>,
    ) -> Result<Option<Pinned>, Error> {
        self.forward(problem, inputs, outputs)?;
        Ok(None)
    }

    fn backward(
        &self,
        problem: &Problem,
        inputs: Inputs<&[u8]>,
        _boundary_states: Option<&[u8]>,
        output_gradients: OutputGradients<&[u8]>,
        gradients: Gradients<&mut [u8]>,
    ) -> Result<(), Error> {
        self.0.backward(problem, inputs, output_gradients, gradients)
    }
}

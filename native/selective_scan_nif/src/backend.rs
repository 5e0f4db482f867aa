//! The backends, as a call sees them: where its results lie, and what computes them.

use rustler::OwnedBinary;
use selective_scan::cuda::{self, Device};
use selective_scan::{Error, Inputs, Outputs, Problem, cpu};

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
}

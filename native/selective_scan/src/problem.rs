//! What is asked, and how large its tensors are.

use crate::{Coefficients, ElementType, Method};

/// Where `b` or `c` varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Projection {
    /// With the frame, shared by `dim / groups` neighbouring channels.
    PerFrame {
        /// How many groups of channels have one of their own.
        groups: usize,
    },
    /// With the channel, the same in every frame.
    Constant,
}

impl Projection {
    /// The groups of one that varies with the frame.
    pub const fn groups(self) -> Option<usize> {
        match self {
            Self::PerFrame { groups } => Some(groups),
            Self::Constant => None,
        }
    }
}

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Independent sequences.
    pub batch: usize,
    /// Frames in each.
    pub seq: usize,
    /// Channels.
    pub dim: usize,
    /// States of each channel.
    pub state: usize,
    /// Type of x, dt, b, c, z and y.
    pub element: ElementType,
    /// Whether a, b, c and the states are complex.
    pub complex: bool,
    /// Where `b` varies.
    pub b: Projection,
    /// Where `c` varies.
    pub c: Projection,
    /// Whether there is a skip connection.
    pub d: bool,
    /// Whether there is a gate.
    pub z: bool,
    /// Whether there is a bias of dt.
    pub dt_bias: bool,
    /// Whether the states begin at something other than zero.
    pub initial_state: bool,
    /// Whether rows are packed with several sequences.
    pub seq_idx: bool,
    /// The discretization.
    pub method: Method,
    /// Closed forms or truncated series.
    pub coefficients: Coefficients,
    /// Average of a scan from each end.
    pub bidirectional: bool,
    /// Scan from the last frame to the first.
    pub reverse: bool,
    /// Whether `dt` passes through softplus.
    pub dt_softplus: bool,
    /// Least and greatest step size.
    pub dt_limit: Option<[f64; 2]>,
}

impl Problem {
    /// {batch, dim, state}, with a trailing 2 where complex.
    pub fn state_shape(&self) -> Vec<usize> {
        with_complex(vec![self.batch, self.dim, self.state], self.complex)
    }

    pub(crate) const fn directions(&self) -> usize {
        if self.bidirectional { 2 } else { 1 }
    }

    /// {directions, batch, chunks, dim, state}, with a trailing 2 where complex: the states before so many chunks of
    /// frames. How many there are is the backend's own affair.
    pub fn boundary_shape(&self, chunks: usize) -> Vec<usize> {
        with_complex(vec![self.directions(), self.batch, chunks, self.dim, self.state], self.complex)
    }

    /// Real components of a state, of an element of `a`, `b` or `c`: 2 where complex.
    pub const fn components(&self) -> usize {
        if self.complex { 2 } else { 1 }
    }

    /// The factor of Re(C h) in y: 2 where conjugate states are left out, halved where two scans are averaged.
    pub const fn weight(&self) -> f64 {
        self.components() as f64 * if self.bidirectional { 0.5 } else { 1.0 }
    }

    /// Neighbouring channels that share a group of a projection, `b` or `c` of this problem.
    pub fn channels_per_group(&self, projection: Projection) -> usize {
        self.dim / projection.groups().unwrap_or(1)
    }

    /// Length in bytes of every input and output, by its name.
    pub fn bytes(&self, name: &str) -> usize {
        let sequence = self.batch * self.seq * self.dim;
        let components = self.components();
        let projection = |projection| match projection {
            Projection::PerFrame { groups } => self.batch * self.seq * groups * self.state * components,
            Projection::Constant => self.dim * self.state * components,
        };
        let state = self.element.state_type().size();
        match name {
            "x" | "dt" | "z" | "y" | "dy" => sequence * self.element.size(),
            "a" => self.dim * self.state * components * state,
            "b" => projection(self.b) * self.element.size(),
            "c" => projection(self.c) * self.element.size(),
            "d" | "dt_bias" => self.dim * state,
            "initial_state" | "final_state" | "dfinal_state" => {
                self.batch * self.dim * self.state * components * state
            }
            "seq_idx" => self.batch * self.seq * ElementType::S32.size(),
            _ => unreachable!("no tensor is called {name}"),
        }
    }
}

/// The shape of numbers that may be complex: {…, 2} where they are.
pub fn with_complex(mut shape: Vec<usize>, complex: bool) -> Vec<usize> {
    if complex {
        shape.push(2);
    }
    shape
}

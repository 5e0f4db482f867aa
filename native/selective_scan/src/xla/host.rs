//! The handlers' work on the platform Host, by the CPU backend.

use std::slice;

use super::frame::Tensor;
use super::request::{Backward, Forward};
use crate::{Error, cpu};

/// Scans.
pub fn forward(call: Forward) -> Result<(), Error> {
    let Forward { problem, inputs, outputs, boundary_states, .. } = call;
    let inputs = inputs.map(|_, tensor| bytes(&tensor));
    let outputs = outputs.map(|_, tensor| bytes_mut(&tensor));
    match boundary_states {
        Some(states) if states.shape == cpu::boundary_shape(&problem) => {
            cpu::forward_for_backward(&problem, inputs, outputs, bytes_mut(&states))
        }
        Some(states) => {
            // Cut for another backend: the backward pass will not read them here, but they are a result.
            bytes_mut(&states).fill(0);
            cpu::forward(&problem, inputs, outputs)
        }
        None => cpu::forward(&problem, inputs, outputs),
    }
}

/// Computes the gradients.
pub fn backward(call: Backward) -> Result<(), Error> {
    let Backward { problem, inputs, output_gradients, boundary_states, gradients, .. } = call;
    let inputs = inputs.map(|_, tensor| bytes(&tensor));
    let output_gradients = output_gradients.map(|_, tensor| bytes(&tensor));
    let gradients = gradients.map(|_, tensor| bytes_mut(&tensor));
    match boundary_states {
        Some(states) if states.shape == cpu::boundary_shape(&problem) => {
            cpu::backward_from(&problem, inputs, bytes(&states), output_gradients, gradients)
        }
        _ => cpu::backward(&problem, inputs, output_gradients, gradients),
    }
}

/// The memory of an operand.
fn bytes<'a>(tensor: &Tensor) -> &'a [u8] {
    // SAFETY: XLA's memory, as long as its type and shape say, for as long as the handler runs. It is somewhere:
    // no tensor of a checked problem is empty.
    unsafe { slice::from_raw_parts(tensor.data.cast(), tensor.len()) }
}

/// The memory of a result.
fn bytes_mut<'a>(tensor: &Tensor) -> &'a mut [u8] {
    // SAFETY: as in `bytes`; nothing else lies there, which `apart` has made sure of.
    unsafe { slice::from_raw_parts_mut(tensor.data.cast(), tensor.len()) }
}

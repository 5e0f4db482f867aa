//! Cutting and reordering the frames of a case.

use selective_scan::{Problem, Projection};

use super::Case;

/// Whether a tensor has an axis of time.
pub fn has_frames(problem: &Problem, name: &str) -> bool {
    match name {
        "x" | "dt" | "z" | "y" | "dy" | "seq_idx" => true,
        "b" => problem.b != Projection::Constant,
        "c" => problem.c != Projection::Constant,
        _ => false,
    }
}

/// The frames of {batch, seq, …} in another order, or some of them.
pub fn select<T: Copy>(values: &[T], problem: &Problem, order: &[usize]) -> Vec<T> {
    let frame = values.len() / (problem.batch * problem.seq);
    let row = frame * problem.seq;
    values
        .chunks_exact(row)
        .flat_map(|row| order.iter().flat_map(move |t| row[t * frame..(t + 1) * frame].iter().copied()))
        .collect()
}

impl Case {
    /// The case with its frames in another order, or with some of them.
    pub fn frames(&self, order: &[usize]) -> Self {
        let pick = |name: &str, bytes: &Vec<u8>| match has_frames(&self.problem, name) {
            true => select(bytes, &self.problem, order),
            false => bytes.clone(),
        };
        Self {
            name: self.name.clone(),
            problem: Problem { seq: order.len(), ..self.problem.clone() },
            inputs: self.inputs.as_ref().map(pick),
            output_gradients: self.output_gradients.as_ref().map(pick),
        }
    }
}

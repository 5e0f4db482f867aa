//! Laws that a scan obeys, whoever computes it: passes over parts of a case, against one over all of it; softplus, element by element.

use selective_scan::naive::{self, decode, encode};
use selective_scan::{ElementType, Gradients, Outputs, Problem};

use super::random;
use super::time::{has_frames, select};
use super::{Backward, Case, Forward, Within, close};

/// The passes of a backend.
#[derive(Clone, Copy)]
pub struct Scan {
    pub forward: Forward,
    pub backward: Backward,
    /// How far the parts may be from the whole.
    pub within: fn(ElementType) -> Within,
}

impl Case {
    /// What a step can do: forward in time, and one sequence a row.
    pub fn causal(&mut self) {
        self.problem =
            Problem { bidirectional: false, reverse: false, seq_idx: false, ..self.problem.clone() };
        self.inputs.seq_idx = None;
    }
}

impl Scan {
    /// Frame by frame, a causal case gives what it gives as a whole.
    pub fn steps(self, case: &Case) -> Result<(), String> {
        let states = case.problem.element.state_type();
        let whole = case.forward(self.forward);
        let mut y = vec![0.0; whole.y.len()];
        let mut state = case.inputs.initial_state.clone();
        for t in 0..case.problem.seq {
            let mut step = case.frames(&[t]);
            step.problem.initial_state = state.is_some();
            step.inputs.initial_state = state;
            let Outputs { y: frame, final_state } = step.forward(self.forward);
            put(&mut y, &frame, &case.problem, t);
            state = Some(encode(states, &final_state.unwrap()));
        }
        let stepped = Outputs { y, final_state: state.map(|bytes| decode(states, &bytes)) };
        close(&case.name, stepped.iter(), whole.iter(), (self.within)(case.problem.element).outputs)
    }

    /// Two parts of a causal case, the second from frame `at` on, the state handed over forward and its gradient backward,
    /// give what all of it gives.
    pub fn cut_in_two(self, case: &Case, at: usize) -> Result<(), String> {
        let p = &case.problem;
        let (states, within) = (p.element.state_type(), (self.within)(p.element));
        let mut parts = [case.frames(&Vec::from_iter(0..at)), case.frames(&Vec::from_iter(at..p.seq))];

        let whole = case.forward(self.forward);
        let first = parts[0].forward(self.forward);
        parts[1].problem.initial_state = true;
        parts[1].inputs.initial_state = first.final_state.map(|state| encode(states, &state));
        let second = parts[1].forward(self.forward);
        let outputs = Outputs { y: joined(&first.y, &second.y, p), final_state: second.final_state };
        close(&case.name, outputs.iter(), whole.iter(), within.outputs)?;

        let whole = case.backward(self.backward);
        let second = parts[1].backward(self.backward);
        parts[0].output_gradients.dfinal_state =
            second.initial_state.as_ref().map(|state| encode(states, state));
        let first = parts[0].backward(self.backward);
        let added = both(first, second, |name, first, second| match name {
            "initial_state" => first.clone(),
            _ if has_frames(p, name) => joined(first, second, p),
            _ => first.iter().zip(second).map(|(first, second)| first + second).collect(),
        });
        // Without an initial state of the whole there is no gradient of one.
        let added = Gradients { initial_state: added.initial_state.filter(|_| p.initial_state), ..added };
        close(&case.name, added.iter(), whole.iter(), within.gradients)
    }

    /// In reverse, a case gives what it gives with its frames turned round.
    pub fn reverse(self, case: &Case) -> Result<(), String> {
        let order: Vec<usize> = (0..case.problem.seq).rev().collect();
        let mut flipped = case.frames(&order);
        flipped.problem.reverse = !case.problem.reverse;
        let again = |name: &str, values: Vec<f64>| match has_frames(&case.problem, name) {
            true => select(&values, &case.problem, &order),
            false => values,
        };
        // Tiles of frames are cut elsewhere, but each recurrence passes through the same numbers.
        let outputs = flipped.forward(self.forward).map(again);
        close(&case.name, outputs.iter(), case.forward(self.forward).iter(), 1e-12)?;
        let gradients = flipped.backward(self.backward).map(again);
        let whole = case.backward(self.backward);
        close(&case.name, gradients.iter(), whole.iter(), (self.within)(case.problem.element).gradients)
    }

    /// Softplus and its slope, from where it is next to nothing to where it is dt, each element by itself: of a norm small ones are no
    /// part.
    pub fn softplus(self) -> Result<(), String> {
        const CHANNELS: usize = 4096;
        let dt: Vec<f64> = (0..CHANNELS).map(|k| 64.0 * k as f64 / CHANNELS as f64 - 38.0).collect();
        for (element, within) in [(ElementType::F32, 2e-6), (ElementType::F64, 1e-13)] {
            let problem = Problem { element, dt_softplus: true, ..random::zoh(1, 1, CHANNELS, 1) };
            let mut case = random::case(problem, 1);
            case.inputs.dt = encode(element, &dt);
            let (y, ddt) = (case.forward(self.forward).y, case.backward(self.backward).dt);
            let (outputs, gradients) =
                naive::forward_and_backward(&case.problem, case.inputs(), case.output_gradients());
            for (name, got, expected) in [("y", y, outputs.y), ("ddt", ddt, gradients.dt)] {
                for ((got, expected), dt) in got.iter().zip(&expected).zip(&dt) {
                    let distance = (got - expected).abs() / expected.abs();
                    if distance.is_nan() || distance >= within {
                        return Err(format!("{name} of {element} is {distance:e} away where dt is {dt}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// A packed row gives what its sequences give apart.
    pub fn packed(self, case: &Case) -> Result<(), String> {
        let p = &case.problem;
        let runs = runs(&decode(ElementType::S32, case.inputs.seq_idx.as_ref().unwrap()));
        // Of nothing but padding there is nothing to compare.
        let Some(last) = runs.len().checked_sub(1) else { return Ok(()) };
        let (starts, ends) = if p.reverse { (last, 0) } else { (0, last) };
        let mut y = vec![0.0; case.inputs.x.len() / p.element.size()];
        let mut final_state = None;
        let mut gradients: Option<Gradients<Vec<f64>>> = None;
        for (i, run) in runs.iter().enumerate() {
            let mut alone = case.frames(run);
            alone.problem.seq_idx = false;
            alone.inputs.seq_idx = None;
            alone.problem.initial_state = i == starts && p.initial_state;
            alone.inputs.initial_state = alone.inputs.initial_state.filter(|_| i == starts);
            alone.output_gradients.dfinal_state = alone.output_gradients.dfinal_state.filter(|_| i == ends);
            let outputs = alone.forward(self.forward);
            for (frame, &t) in run.iter().enumerate() {
                put(&mut y, &select(&outputs.y, &alone.problem, &[frame]), p, t);
            }
            final_state = if i == ends { outputs.final_state } else { final_state };
            let own =
                alone.backward(self.backward).map(|name, own| spread(name, own, &alone.problem, p, run));
            gradients = Some(match gradients {
                None => own,
                Some(sum) => {
                    let initial_state = sum.initial_state.clone().or(own.initial_state.clone());
                    let sum = both(
                        Gradients { initial_state: None, ..sum },
                        Gradients { initial_state: None, ..own },
                        |_, sum, own| sum.iter().zip(own).map(|(sum, own)| sum + own).collect(),
                    );
                    Gradients { initial_state, ..sum }
                }
            });
        }
        let within = (self.within)(p.element);
        let (apart, gradients_apart) = (Outputs { y, final_state }, gradients.unwrap());
        let whole = case.backward(self.backward);
        close(&case.name, apart.iter(), case.forward(self.forward).iter(), within.outputs)?;
        close(&case.name, gradients_apart.iter(), whole.iter(), within.gradients)
    }
}

/// The frames of each sequence of a packed row.
fn runs(index: &[f64]) -> Vec<Vec<usize>> {
    let mut runs: Vec<(f64, Vec<usize>)> = Vec::new();
    for (t, &index) in index.iter().enumerate().filter(|(_, index)| **index >= 0.0) {
        match runs.last_mut().filter(|(current, _)| *current == index) {
            Some((_, run)) => run.push(t),
            None => runs.push((index, vec![t])),
        }
    }
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Writes a frame of every row of {batch, seq, …}.
fn put(values: &mut [f64], frame: &[f64], p: &Problem, t: usize) {
    let len = frame.len() / p.batch;
    for (row, frame) in values.chunks_exact_mut(len * p.seq).zip(frame.chunks_exact(len)) {
        row[t * len..(t + 1) * len].copy_from_slice(frame);
    }
}

/// Two parts of a sequence as one.
fn joined(first: &[f64], second: &[f64], p: &Problem) -> Vec<f64> {
    let rows = first.chunks_exact(first.len() / p.batch).zip(second.chunks_exact(second.len() / p.batch));
    rows.flat_map(|(first, second)| first.iter().chain(second).copied()).collect()
}

/// A gradient of some frames, with zeros in the others.
fn spread(name: &str, own: Vec<f64>, alone: &Problem, whole: &Problem, frames: &[usize]) -> Vec<f64> {
    if !has_frames(whole, name) {
        return own;
    }
    let mut spread = vec![0.0; own.len() / alone.seq * whole.seq];
    for (frame, &t) in frames.iter().enumerate() {
        put(&mut spread, &select(&own, alone, &[frame]), whole, t);
    }
    spread
}

/// Gradients from two calls, name by name.
fn both(
    first: Gradients<Vec<f64>>,
    second: Gradients<Vec<f64>>,
    join: impl Fn(&str, &Vec<f64>, &Vec<f64>) -> Vec<f64>,
) -> Gradients<Vec<f64>> {
    let second: std::collections::HashMap<_, _> =
        second.iter().map(|(name, values)| (name, values.clone())).collect();
    let empty = Vec::new();
    first.map(|name, first| join(name, &first, second.get(name).unwrap_or(&empty)))
}

//! The CPU backend against the naive twin, and the laws that a scan obeys, on random problems that mix all features.

mod support;

use proptest::prelude::*;
use selective_scan::naive::{self, encode};
use selective_scan::{ElementType, Gradients, Outputs, Problem, cpu};
use support::random::{Limits, config};
use support::time::{has_frames, select};
use support::{Case, assert_close, assert_gradients_close, random};

const EXACT: &[ElementType] = &[ElementType::F32, ElementType::F64];

/// Allowed distance of outputs, relative to the norm.
fn outputs_within(case: &Case) -> f64 {
    if case.problem.element == ElementType::F64 { 1e-12 } else { 2e-6 }
}

/// Allowed distance of gradients.
fn gradients_within(case: &Case) -> f64 {
    if case.problem.element == ElementType::F64 { 1e-10 } else { 1e-5 }
}

proptest! {
    #![proptest_config(config(600, 0))]

    #[test]
    fn forward_is_the_naive_twin(case in random::cases(EXACT, random::SMALL)) {
        let expected = naive::forward(&case.problem, case.inputs());
        assert_close(&case.name, case.forward(cpu::forward).iter(), expected.iter(), outputs_within(&case));
    }

    #[test]
    fn backward_is_the_naive_twin(case in random::cases(EXACT, random::SMALL)) {
        let expected = naive::backward(&case.problem, case.inputs(), case.gradients());
        assert_gradients_close(&case.name, &case.backward(cpu::backward), &expected, gradients_within(&case));
    }
}

#[test]
fn of_frames_that_are_all_padding_every_gradient_is_zero() {
    let mut case = random::case(Problem { dt_bias: true, seq_idx: true, ..random::zoh(2, 3, 5, 4) }, 1);
    case.inputs.seq_idx = Some(encode(ElementType::S32, &[-1.0; 6]));
    let expected = naive::backward(&case.problem, case.inputs(), case.gradients());
    let got = case.backward(cpu::backward);
    assert_gradients_close(&case.name, &got, &expected, gradients_within(&case));
    assert!(got.iter().all(|(_, gradient)| gradient.iter().all(|&value| value == 0.0)));
}

/// Several chunks of frames, several spans of channels.
const LONG: Limits = Limits { batch: 2, seq: 1500, groups: 2, channels_per_group: 40, state: 5 };

proptest! {
    #![proptest_config(config(60, 0))]

    #[test]
    fn long_sequences_too(case in random::cases(EXACT, LONG)) {
        let (outputs, gradients) = naive::forward_and_backward(&case.problem, case.inputs(), case.gradients());
        assert_close(&case.name, case.forward(cpu::forward).iter(), outputs.iter(), outputs_within(&case));
        assert_gradients_close(&case.name, &case.backward(cpu::backward), &gradients, gradients_within(&case));
    }

    #[test]
    fn boundary_states_may_be_handed_over(case in random::cases(EXACT, LONG)) {
        let problem = &case.problem;
        let mut boundary = vec![0xff; problem.bytes("boundary_states")];
        let mut y = vec![0; problem.bytes("y")];
        let outputs = Outputs { y: &mut y[..], final_state: None };
        cpu::forward_for_backward(problem, case.inputs(), outputs, &mut boundary).unwrap();
        let computed_again = case.backward(cpu::backward);
        let handed_over = case.backward_with(|problem, inputs, upstream, gradients| {
            cpu::backward_from(problem, inputs, &boundary, upstream, gradients)
        });
        prop_assert_eq!(handed_over, computed_again);
    }
}

/// For laws that cost many calls.
const TINY: Limits = Limits { batch: 2, seq: 40, groups: 2, channels_per_group: 9, state: 18 };

proptest! {
    #![proptest_config(config(200, 0))]

    #[test]
    fn steps_are_a_scan(mut case in random::cases(EXACT, TINY)) {
        case.causal();
        let whole = case.forward(cpu::forward);
        let mut y = vec![0.0; whole.y.len()];
        let mut state = case.inputs.initial_state.clone();
        for t in 0..case.problem.seq {
            let mut step = case.frames(&[t]);
            step.problem.initial_state = state.is_some();
            step.inputs.initial_state = state;
            let Outputs { y: frame, final_state } = step.forward(cpu::forward);
            put(&mut y, &frame, &case.problem, t);
            state = Some(encode(case.problem.element.state_type(), &final_state.unwrap()));
        }
        let stepped = Outputs { y, final_state: state.map(|bytes| naive::decode(case.problem.element.state_type(), &bytes)) };
        assert_close(&case.name, stepped.iter(), whole.iter(), outputs_within(&case));
    }

    #[test]
    fn a_sequence_may_be_cut_in_two(mut case in random::cases(EXACT, TINY), place in 0.0..1.0) {
        case.causal();
        prop_assume!(case.problem.seq > 1);
        let p = case.problem.clone();
        let at = 1 + (place * (p.seq - 1) as f64) as usize;
        let mut halves = [case.frames(&Vec::from_iter(0..at)), case.frames(&Vec::from_iter(at..p.seq))];
        let states = p.element.state_type();

        let whole = case.forward(cpu::forward);
        let first = halves[0].forward(cpu::forward);
        halves[1].problem.initial_state = true;
        halves[1].inputs.initial_state = first.final_state.map(|state| encode(states, &state));
        let second = halves[1].forward(cpu::forward);
        let y = joined(&first.y, &second.y, &p);
        let outputs = Outputs { y, final_state: second.final_state };
        assert_close(&case.name, outputs.iter(), whole.iter(), outputs_within(&case));

        let whole = case.backward(cpu::backward);
        let second = halves[1].backward(cpu::backward);
        halves[0].gradients.dfinal_state = second.initial_state.as_ref().map(|state| encode(states, state));
        let first = halves[0].backward(cpu::backward);
        let added = both(first, second, |name, first, second| match name {
            "initial_state" => first.clone(),
            _ if has_frames(&p, name) => joined(first, second, &p),
            _ => first.iter().zip(second).map(|(first, second)| first + second).collect(),
        });
        // Without an initial state of the whole there is no gradient of one.
        let added = Gradients { initial_state: added.initial_state.filter(|_| p.initial_state), ..added };
        assert_close(&case.name, added.iter(), whole.iter(), gradients_within(&case));
    }

    #[test]
    fn reverse_is_flipping(case in random::cases(EXACT, TINY)) {
        let order: Vec<usize> = (0..case.problem.seq).rev().collect();
        let mut flipped = case.frames(&order);
        flipped.problem.reverse = !case.problem.reverse;
        let again = |name: &str, values: Vec<f64>| match has_frames(&case.problem, name) {
            true => select(&values, &case.problem, &order),
            false => values,
        };
        // Tiles of frames are cut elsewhere, but each recurrence passes through the same numbers.
        let outputs = flipped.forward(cpu::forward).map(again);
        assert_close(&case.name, outputs.iter(), case.forward(cpu::forward).iter(), 1e-12);
        let gradients = flipped.backward(cpu::backward).map(again);
        assert_close(&case.name, gradients.iter(), case.backward(cpu::backward).iter(), gradients_within(&case));
    }

    #[test]
    fn a_packed_row_is_its_sequences_apart(mut case in random::cases(EXACT, Limits { batch: 1, ..TINY }), seed: u64) {
        let mut random = random::Random(seed);
        case.problem.seq_idx = true;
        let index = random.packing(case.problem.seq);
        case.inputs.seq_idx = Some(encode(ElementType::S32, &index));
        let p = case.problem.clone();
        let runs = runs(&index);
        prop_assume!(!runs.is_empty());
        let (starts, ends) = match p.reverse {
            false => (0, runs.len() - 1),
            true => (runs.len() - 1, 0),
        };
        let whole = case.forward(cpu::forward);
        let whole_gradients = case.backward(cpu::backward);
        let mut y = vec![0.0; whole.y.len()];
        let mut final_state = None;
        let mut gradients: Option<Gradients<Vec<f64>>> = None;
        for (i, run) in runs.iter().enumerate() {
            let mut alone = case.frames(run);
            alone.problem.seq_idx = false;
            alone.inputs.seq_idx = None;
            alone.problem.initial_state = i == starts && p.initial_state;
            alone.inputs.initial_state = alone.inputs.initial_state.filter(|_| i == starts);
            alone.gradients.dfinal_state = alone.gradients.dfinal_state.filter(|_| i == ends);
            let outputs = alone.forward(cpu::forward);
            for (frame, &t) in run.iter().enumerate() {
                put(&mut y, &select(&outputs.y, &alone.problem, &[frame]), &p, t);
            }
            final_state = if i == ends { outputs.final_state } else { final_state };
            let own = alone.backward(cpu::backward).map(|name, own| spread(name, own, &alone.problem, &p, run));
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
        assert_close(&case.name, Outputs { y, final_state }.iter(), whole.iter(), outputs_within(&case));
        assert_close(&case.name, gradients.unwrap().iter(), whole_gradients.iter(), gradients_within(&case));
    }

    #[test]
    fn threads_change_no_bit(case in random::cases(EXACT, Limits { batch: 3, seq: 300, ..LONG })) {
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| (case.forward(cpu::forward), case.backward(cpu::backward)))
        };
        let alone = run(1);
        for threads in [2, 3, 5] {
            prop_assert_eq!(&run(threads), &alone);
        }
    }

    #[test]
    fn the_naive_twin_has_the_gradients_of_finite_differences(
        case in random::cases(&[ElementType::F64], Limits { batch: 2, seq: 12, groups: 2, channels_per_group: 2, state: 3 }),
        seed: u64,
    ) {
        let gradients = naive::backward(&case.problem, case.inputs(), case.gradients());
        let mut random = random::Random(seed);
        for (name, gradient) in gradients.iter() {
            let scale = gradient.iter().map(|g| g * g).sum::<f64>().sqrt().max(1.0);
            for _ in 0..3 {
                let i = (random.uniform() * gradient.len() as f64) as usize;
                let slope = case.slope(name, i, 1e-6);
                let off = (slope - gradient[i]).abs() / scale;
                prop_assert!(off < 1e-6, "{}: {name}[{i}] is {}, differences say {slope}", case.name, gradient[i]);
            }
        }
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

impl Case {
    /// What a step can do: forward in time, and one sequence a row.
    fn causal(&mut self) {
        self.problem =
            Problem { bidirectional: false, reverse: false, seq_idx: false, ..self.problem.clone() };
        self.inputs.seq_idx = None;
    }

    /// The derivative of Σ y·dy + Σ final_state·dfinal_state by one element of an input, by central differences.
    fn slope(&self, name: &str, element: usize, step: f64) -> f64 {
        let loss =
            |shift: f64| {
                let inputs = self.inputs.as_ref().map(|input, bytes| {
                    let mut values = naive::decode(naive::element_of(&self.problem, input), bytes);
                    if input == name {
                        values[element] += shift;
                    }
                    encode(naive::element_of(&self.problem, input), &values)
                });
                let outputs = naive::forward(&self.problem, inputs.as_ref().map(|_, bytes| &bytes[..]));
                let weigh = |values: &[f64], weights: &Vec<u8>| {
                    let weights = naive::decode(ElementType::F64, weights);
                    values.iter().zip(weights).map(|(value, weight)| value * weight).sum::<f64>()
                };
                weigh(&outputs.y, &self.gradients.dy)
                    + self.gradients.dfinal_state.as_ref().map_or(0.0, |dfinal_state| {
                        weigh(outputs.final_state.as_deref().unwrap(), dfinal_state)
                    })
            };
        (loss(step) - loss(-step)) / (2.0 * step)
    }
}

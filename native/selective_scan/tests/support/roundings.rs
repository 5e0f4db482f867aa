//! Cases in which what is rounded in every frame must not add up, must not cancel, and must not overflow on the way.

use selective_scan::naive::encode;
use selective_scan::{ElementType, Inputs, Method, OutputGradients, Problem, Projection};

use super::Case;
use super::random::{Random, zoh};

/// A long row that hardly decays, with steps that vary, driven so that its states grow all along: a decay that is rounded the same way in
/// every frame shows by the number of frames. One channel for each rate.
fn slow(method: Method, rates: &[(f64, f64)], seq: usize) -> Case {
    let complex = rates.iter().any(|&(_, im)| im != 0.0);
    let dim = rates.len();
    let problem = Problem { method, complex, ..constant(seq, dim) };
    let mut random = Random(1);
    let (mut x, mut dt, mut phases) = (Vec::new(), Vec::new(), vec![0.0; dim]);
    for _ in 0..seq {
        for (phase, &(_, im)) in phases.iter_mut().zip(rates) {
            let delta = f64::from((0.001 * (0.5 + random.uniform())) as f32);
            *phase += im * delta;
            dt.push(delta);
            x.push(phase.cos());
        }
    }
    with(problem, &x, &dt, rates, (1.0, 0.0))
}

/// Channels of a state each, of whose constant b and c all frames have the same.
fn constant(seq: usize, dim: usize) -> Problem {
    Problem { b: Projection::Constant, c: Projection::Constant, ..zoh(1, seq, dim, 1) }
}

/// A case of f32 with these values, b of 1 and the same c for all channels; all of y counts alike.
fn with(problem: Problem, x: &[f64], dt: &[f64], rates: &[(f64, f64)], c: (f64, f64)) -> Case {
    let of = |values: &[f64]| encode(ElementType::F32, values);
    let numbers = |numbers: &[(f64, f64)]| {
        let parts = numbers.iter().flat_map(|&(re, im)| [re, im].into_iter().take(problem.components()));
        of(&Vec::from_iter(parts))
    };
    let inputs = Inputs {
        x: of(x),
        dt: of(dt),
        a: numbers(rates),
        b: numbers(&vec![(1.0, 0.0); rates.len()]),
        c: numbers(&vec![c; rates.len()]),
        d: None,
        z: None,
        dt_bias: None,
        initial_state: None,
        seq_idx: None,
    };
    let output_gradients = OutputGradients { dy: of(&vec![1.0; x.len()]), dfinal_state: None };
    Case { name: format!("{problem:?}, rates {rates:?}"), problem, inputs, output_gradients }
}

/// Long rows of either kind.
pub fn long_rows() -> impl Iterator<Item = Case> {
    Method::ALL.iter().map(|&method| turning(method)).chain([Method::Zoh, Method::Bilinear].map(fading))
}

/// Complex states that turn and hardly decay.
fn turning(method: Method) -> Case {
    slow(method, &[(-0.05, 20.0), (-0.1, 20.0), (-0.2, 10.0), (-0.5, 3.0)], 20_000)
}

/// Real states that hardly decay.
fn fading(method: Method) -> Case {
    slow(method, &[(-0.05, 0.0), (-0.1, 0.0), (-0.2, 0.0), (-0.4, 0.0)], 20_000)
}

/// Frames of whole turns, whose inputs all but cancel in the state, of which the output is that part alone.
pub fn whole_turns() -> Case {
    let rates = [-1e-2, -1e-3, -1e-4, -1e-5].map(|re| (re, std::f64::consts::TAU));
    let (seq, dim) = (50, rates.len());
    let problem = Problem { method: Method::ZohExact, complex: true, ..constant(seq, dim) };
    with(problem, &vec![1.0; seq * dim], &vec![1.0; seq * dim], &rates, (0.0, 1.0))
}

/// A frame in which states grow by more than what may be squared in their type.
pub fn growing() -> Case {
    let rates = [(45.0, 1.0), (60.0, 0.25), (50.0, -0.75), (80.0, 6.5)];
    let problem = Problem { method: Method::ZohExact, complex: true, ..constant(1, rates.len()) };
    with(problem, &[1.0; 4], &[1.0; 4], &rates, (1.0, 0.0))
}

/// Sums over as many frames as one would lose digits in that adds each by itself.
pub fn long_sums() -> Case {
    let (seq, dim) = (65_536, 3);
    let rates = [(-1.0, 0.0), (-0.7, 0.0), (-2.0, 0.0)];
    with(constant(seq, dim), &vec![0.75; seq * dim], &vec![1.0; seq * dim], &rates, (1.0, 0.0))
}

//! The CPU backend against the naive twin, and the laws that a scan obeys, on random problems that mix all features.

mod support;

use std::ops::Range;

use proptest::prelude::*;
use selective_scan::naive::{self, encode};
use selective_scan::{ElementType, Error, Outputs, Problem, cpu};
use support::laws::Scan;
use support::random::{Limits, config};
use support::{Case, assert_close, assert_gradients_close, random, roundings, within};

const EXACT: &[ElementType] = &[ElementType::F32, ElementType::F64];

const ON_CPU: Scan = Scan { forward: cpu::forward, backward: cpu::backward, within };

fn outputs_within(case: &Case) -> f64 {
    within(case.problem.element).outputs
}

fn gradients_within(case: &Case) -> f64 {
    within(case.problem.element).gradients
}

fn check(result: Result<(), String>) -> Result<(), TestCaseError> {
    result.map_err(TestCaseError::fail)
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
        let expected = naive::backward(&case.problem, case.inputs(), case.output_gradients());
        assert_gradients_close(&case.name, &case.backward(cpu::backward), &expected, gradients_within(&case));
    }
}

#[test]
fn of_frames_that_are_all_padding_every_gradient_is_zero() {
    let mut case = random::case(Problem { dt_bias: true, seq_idx: true, ..random::zoh(2, 3, 5, 4) }, 1);
    case.inputs.seq_idx = Some(encode(ElementType::S32, &[-1.0; 6]));
    let expected = naive::backward(&case.problem, case.inputs(), case.output_gradients());
    let got = case.backward(cpu::backward);
    assert_gradients_close(&case.name, &got, &expected, gradients_within(&case));
    assert!(got.iter().all(|(_, gradient)| gradient.iter().all(|&value| value == 0.0)));
}

#[test]
fn a_single_frame_may_be_padding() {
    let mut case = random::case(Problem { initial_state: true, seq_idx: true, ..random::zoh(2, 1, 5, 4) }, 2);
    case.inputs.seq_idx = Some(encode(ElementType::S32, &[-1.0, 3.0]));
    let expected = naive::forward(&case.problem, case.inputs());
    assert_close(&case.name, case.forward(cpu::forward).iter(), expected.iter(), outputs_within(&case));
}

#[test]
fn what_padding_holds_is_seen_by_nobody() {
    let problem = Problem {
        d: true,
        z: true,
        dt_bias: true,
        seq_idx: true,
        dt_softplus: true,
        ..random::zoh(1, 3, 5, 4)
    };
    let mut case = random::case(problem, 2);
    case.pack(|frame| if frame == 1 { -1.0 } else { 0.0 });
    let of = |case: &Case| (case.forward(cpu::forward), case.backward(cpu::backward));
    let expected = of(&case);
    for tensor in [
        &mut case.inputs.x,
        &mut case.inputs.dt,
        case.inputs.z.as_mut().unwrap(),
        &mut case.output_gradients.dy,
    ] {
        tensor[20..40].fill(0xff);
    }
    for tensor in [&mut case.inputs.b, &mut case.inputs.c] {
        tensor[16..32].fill(0xff);
    }
    assert_eq!(of(&case), expected);
}

#[test]
fn a_step_at_a_limit_has_the_slope_of_those_within() {
    let mut case = random::case(Problem { dt_limit: Some([0.25, 0.5]), ..random::zoh(1, 2, 3, 2) }, 1);
    case.inputs.dt = encode(ElementType::F32, &[0.25, 0.5, 0.375, 0.5, 0.25, 0.625]);
    let expected = naive::backward(&case.problem, case.inputs(), case.output_gradients());
    assert_gradients_close(&case.name, &case.backward(cpu::backward), &expected, gradients_within(&case));
    assert!(expected.dt[..5].iter().all(|&ddt| ddt != 0.0) && expected.dt[5] == 0.0);
}

#[test]
fn softplus_is_right_of_each_element() {
    ON_CPU.softplus().unwrap_or_else(|words| panic!("{words}"));
}

/// Also what is refused of a gradient that is written last, as sums over rows are.
#[test]
fn what_is_refused_leaves_all_gradients_as_they_were() {
    let problem =
        Problem { d: true, z: true, dt_bias: true, initial_state: true, ..random::zoh(2, 200, 3, 2) };
    let case = random::case(problem, 2);
    let longer: fn(usize) -> Range<usize> = |bytes| 0..bytes + 4;
    let misaligned: fn(usize) -> Range<usize> = |bytes| 1..bytes + 1;
    let gradients = case.gradient_buffers(0);
    let gradients = gradients.iter().flat_map(|(name, _)| [(name, longer), (name, misaligned)]);
    let given = ["dy", "dfinal_state", "boundary_states"].map(|name| (name, longer));
    for (wrong, place) in gradients.chain(given) {
        let of = |name: &str| {
            let bytes = match name {
                "boundary_states" => cpu::boundary_bytes(&case.problem),
                _ => case.problem.bytes(name),
            };
            if name == wrong { place(bytes) } else { 0..bytes }
        };
        let room = |bytes: usize| vec![0x55; bytes + 4];
        let boundary = room(cpu::boundary_bytes(&case.problem));
        let given = case.output_gradients.as_ref().map(|_, bytes| room(bytes.len()));
        let mut written = case.gradient_buffers(0).map(|_, bytes| room(bytes.len()));
        let result = cpu::backward_from(
            &case.problem,
            case.inputs(),
            &boundary[of("boundary_states")],
            given.as_ref().map(|name, bytes| &bytes[of(name)]),
            written.as_mut().map(|name, bytes| &mut bytes[of(name)]),
        );
        let is_named = matches!(&result, Err(Error::InvalidArgument { argument, .. }) if *argument == wrong);
        assert!(is_named, "{wrong}: {result:?}");
        assert!(written.iter().all(|(_, bytes)| bytes.iter().all(|&byte| byte == 0x55)), "{wrong}");
    }
}

#[test]
fn roundings_of_a_decay_do_not_add_up() {
    for case in roundings::long_rows() {
        let expected = naive::forward(&case.problem, case.inputs());
        assert_close(&case.name, case.forward(cpu::forward).iter(), expected.iter(), 8e-6);
    }
}

#[test]
fn nor_do_those_of_sums_over_time() {
    let case = roundings::long_sums();
    let expected = naive::backward(&case.problem, case.inputs(), case.output_gradients());
    assert_gradients_close(&case.name, &case.backward(cpu::backward), &expected, gradients_within(&case));
}

#[test]
fn nor_is_lost_what_whole_turns_leave_or_one_frame_makes() {
    for case in [roundings::whole_turns(), roundings::growing()] {
        let (outputs, gradients) =
            naive::forward_and_backward(&case.problem, case.inputs(), case.output_gradients());
        assert_close(&case.name, case.forward(cpu::forward).iter(), outputs.iter(), outputs_within(&case));
        assert_gradients_close(
            &case.name,
            &case.backward(cpu::backward),
            &gradients,
            gradients_within(&case),
        );
    }
}

/// Several chunks of frames, several spans of channels.
const LONG: Limits = Limits { batch: 2, seq: 1500, groups: 2, channels_per_group: 40, state: 5 };

proptest! {
    #![proptest_config(config(60, 0))]

    #[test]
    fn long_sequences_too(case in random::cases(EXACT, LONG)) {
        let (outputs, gradients) = naive::forward_and_backward(&case.problem, case.inputs(), case.output_gradients());
        assert_close(&case.name, case.forward(cpu::forward).iter(), outputs.iter(), outputs_within(&case));
        assert_gradients_close(&case.name, &case.backward(cpu::backward), &gradients, gradients_within(&case));
    }

    #[test]
    fn boundary_states_may_be_handed_over(case in random::cases(EXACT, LONG)) {
        let problem = &case.problem;
        let mut boundary = vec![0xff; cpu::boundary_bytes(problem)];
        let mut y = vec![0; problem.bytes("y")];
        let outputs = Outputs { y: &mut y[..], final_state: None };
        cpu::forward_for_backward(problem, case.inputs(), outputs, &mut boundary).unwrap();
        let computed_again = case.backward(cpu::backward);
        let handed_over = case.backward_with(|problem, inputs, output_gradients, gradients| {
            cpu::backward_from(problem, inputs, &boundary, output_gradients, gradients)
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
        check(ON_CPU.steps(&case))?;
    }

    #[test]
    fn a_sequence_may_be_cut_in_two(mut case in random::cases(EXACT, TINY), place in 0.0..1.0) {
        case.causal();
        prop_assume!(case.problem.seq > 1);
        check(ON_CPU.cut_in_two(&case, 1 + (place * (case.problem.seq - 1) as f64) as usize))?;
    }

    #[test]
    fn reverse_is_flipping(case in random::cases(EXACT, TINY)) {
        check(ON_CPU.reverse(&case))?;
    }

    #[test]
    fn a_packed_row_is_its_sequences_apart(case in random::cases(EXACT, Limits { batch: 1, ..TINY }), seed: u64) {
        check(ON_CPU.packed(&random::case(Problem { seq_idx: true, ..case.problem }, seed)))?;
    }

    #[test]
    fn the_naive_twin_has_the_gradients_of_finite_differences(
        case in random::cases(&[ElementType::F64], Limits { batch: 2, seq: 12, groups: 2, channels_per_group: 2, state: 3 }),
        seed: u64,
    ) {
        let gradients = naive::backward(&case.problem, case.inputs(), case.output_gradients());
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

impl Case {
    /// The derivative of Σ y·dy + Σ final_state·dfinal_state by one element of an input, by central differences.
    fn slope(&self, name: &str, element: usize, step: f64) -> f64 {
        let loss =
            |shift: f64| {
                let inputs = self.inputs.as_ref().map(|input, bytes| {
                    let mut values = naive::decode(self.problem.element.of(input), bytes);
                    if input == name {
                        values[element] += shift;
                    }
                    encode(self.problem.element.of(input), &values)
                });
                let outputs = naive::forward(&self.problem, inputs.as_ref().map(|_, bytes| &bytes[..]));
                let weigh = |values: &[f64], weights: &Vec<u8>| {
                    let weights = naive::decode(ElementType::F64, weights);
                    values.iter().zip(weights).map(|(value, weight)| value * weight).sum::<f64>()
                };
                weigh(&outputs.y, &self.output_gradients.dy)
                    + self.output_gradients.dfinal_state.as_ref().map_or(0.0, |dfinal_state| {
                        weigh(outputs.final_state.as_deref().unwrap(), dfinal_state)
                    })
            };
        (loss(step) - loss(-step)) / (2.0 * step)
    }
}

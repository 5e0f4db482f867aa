//! Passes with every instruction set that this machine has, not its best alone.

mod support;

use selective_scan::cpu::InstructionSet;
use selective_scan::{ElementType, Gradients, Inputs, OutputGradients, Outputs};
use support::{assert_close, golden, random, within};

#[test]
fn golden_cases() {
    for golden in golden::load() {
        for element in [ElementType::F32, ElementType::F64] {
            let within = within(element);
            let case = golden.case(element);
            for set in InstructionSet::all() {
                let name = format!("{} {}", set.name(), case.name);
                let outputs =
                    case.forward_with(|problem, inputs: Inputs<&[u8]>, outputs: Outputs<&mut [u8]>| {
                        set.forward(problem, inputs, outputs)
                    });
                assert_close(&name, outputs.iter(), golden.outputs.iter(), within.outputs);
                let gradients = case.backward_with(
                    |problem,
                     inputs: Inputs<&[u8]>,
                     output_gradients: OutputGradients<&[u8]>,
                     gradients: Gradients<&mut [u8]>| {
                        set.backward(problem, inputs, output_gradients, gradients)
                    },
                );
                assert_close(&name, gradients.iter(), golden.gradients.iter(), within.gradients);
            }
        }
    }
}

/// Registers have lanes for states that there are not.
#[test]
fn a_frame_is_infinite_with_any_number_of_states() {
    for state in [1, 3, 12, 16, 17] {
        let mut case = random::case(random::zoh(1, 1, 3, state), 1);
        let Inputs { x, dt, a, b, c, .. } = &mut case.inputs;
        for (tensor, value) in [(x, f32::MAX), (dt, 10.0), (a, -1.0), (b, 1.0), (c, 1.0)] {
            *tensor = value.to_ne_bytes().repeat(tensor.len() / 4);
        }
        for set in InstructionSet::all() {
            let mut y = [0; 12];
            let outputs = Outputs { y: &mut y[..], final_state: None };
            set.forward(&case.problem, case.inputs(), outputs).unwrap();
            let infinite = f32::INFINITY.to_ne_bytes().repeat(3);
            assert!(y[..] == infinite, "{}, {state} states: {y:?}", set.name());
        }
    }
}

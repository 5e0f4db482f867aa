//! Every golden case on the CPU, in every element type; and the naive twin itself against them in float64.

mod support;

use selective_scan::{ElementType, cpu, naive};
use support::{ELEMENTS, assert_close, golden, rounding, within};

#[test]
fn the_naive_twin_is_the_truth() {
    for golden in golden::load() {
        let case = golden.case(ElementType::F64);
        let (outputs, gradients) =
            naive::forward_and_backward(&case.problem, case.inputs(), case.output_gradients());
        let within = within(ElementType::F64);
        assert_close(&case.name, outputs.iter(), golden.outputs.iter(), within.outputs);
        assert_close(&case.name, gradients.iter(), golden.gradients.iter(), within.gradients);
    }
}

// f32 and f64 against the truth; bf16 and f16 against the naive twin on the same rounded inputs, within their rounding.

#[test]
fn forward_on_the_cpu() {
    for golden in golden::load() {
        for element in ELEMENTS {
            let case = golden.case(element);
            let expected = match element {
                ElementType::F64 | ElementType::F32 => golden.outputs.clone(),
                _ => naive::forward(&case.problem, case.inputs()),
            };
            let outputs = case.forward(cpu::forward);
            let tolerance = rounding(element).max(within(element).outputs);
            assert_close(&case.name, outputs.iter(), expected.iter(), tolerance);
        }
    }
}

#[test]
fn backward_on_the_cpu() {
    for golden in golden::load() {
        for element in ELEMENTS {
            let case = golden.case(element);
            let expected = match element {
                ElementType::F64 | ElementType::F32 => golden.gradients.clone(),
                _ => naive::backward(&case.problem, case.inputs(), case.output_gradients()),
            };
            let gradients = case.backward(cpu::backward);
            let tolerance = rounding(element).max(within(element).gradients);
            assert_close(&case.name, gradients.iter(), expected.iter(), tolerance);
        }
    }
}

//! Every golden case on the CPU, in every element type; and the naive twin itself against them in float64.

mod support;

use selective_scan::{ElementType, cpu, naive};
use support::{ELEMENTS, assert_close, golden};

#[test]
fn the_naive_twin_is_the_truth() {
    for golden in golden::load() {
        let case = golden.case(ElementType::F64);
        let (outputs, gradients) =
            naive::forward_and_backward(&case.problem, case.inputs(), case.gradients());
        assert_close(&case.name, outputs.iter(), golden.outputs.iter(), 1e-12);
        assert_close(&case.name, gradients.iter(), golden.gradients.iter(), 1e-10);
    }
}

/// How far f32 and f64 outputs may be from the truth; bf16 and f16, from the naive twin on the same rounded inputs:
/// half a unit in the last place of every element.
fn tolerance(element: ElementType) -> f64 {
    match element {
        ElementType::F64 => 1e-12,
        ElementType::F32 => 2e-6,
        ElementType::Bf16 => 2f64.powi(-8),
        _ => 2f64.powi(-11),
    }
}

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
            assert_close(&case.name, outputs.iter(), expected.iter(), tolerance(element));
        }
    }
}

#[test]
fn backward_on_the_cpu() {
    for golden in golden::load() {
        for element in ELEMENTS {
            let case = golden.case(element);
            let (expected, tolerance) = match element {
                ElementType::F64 => (golden.gradients.clone(), 1e-10),
                ElementType::F32 => (golden.gradients.clone(), 1e-5),
                _ => (naive::backward(&case.problem, case.inputs(), case.gradients()), tolerance(element)),
            };
            let gradients = case.backward(cpu::backward);
            assert_close(&case.name, gradients.iter(), expected.iter(), tolerance);
        }
    }
}

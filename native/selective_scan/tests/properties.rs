//! The CPU backend against the naive twin, and the laws that a scan obeys, on random problems that mix all features.

mod support;

use proptest::prelude::*;
use selective_scan::{ElementType, cpu, naive};
use support::{assert_close, random};

const EXACT: &[ElementType] = &[ElementType::F32, ElementType::F64];

/// Allowed distance from the naive twin, relative to the norm.
fn tolerance(element: ElementType) -> f64 {
    if element == ElementType::F64 { 1e-12 } else { 2e-6 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn forward_is_the_naive_twin(case in random::cases(EXACT, random::SMALL)) {
        let expected = naive::forward(&case.problem, case.inputs());
        let outputs = case.forward(cpu::forward);
        assert_close(&case.name, outputs.iter(), expected.iter(), tolerance(case.problem.element));
    }

    #[test]
    fn backward_is_the_naive_twin(case in random::cases(EXACT, random::SMALL)) {
        let expected = naive::backward(&case.problem, case.inputs(), case.gradients());
        let gradients = case.backward(cpu::backward);
        let tolerance = if case.problem.element == ElementType::F64 { 1e-10 } else { 1e-5 };
        assert_close(&case.name, gradients.iter(), expected.iter(), tolerance);
    }
}

//! Every golden case on the CPU, in every element type; and the naive twin itself against them in float64.

mod support;

use selective_scan::{ElementType, naive};
use support::{assert_close, golden};

#[test]
fn the_naive_twin_is_the_truth() {
    for golden in golden::load() {
        let case = golden.case(ElementType::F64);
        let outputs = naive::forward(&case.problem, case.inputs());
        assert_close(&case.name, outputs.iter(), golden.outputs.iter(), 1e-12);
        let gradients = naive::backward(&case.problem, case.inputs(), case.gradients());
        assert_close(&case.name, gradients.iter(), golden.gradients.iter(), 1e-10);
    }
}

//! The figures that a record has in it.

use selective_scan::Problem;
use serde_json::{Value, json};

use crate::compilation;
use crate::support::registry::Registry;
use crate::timing::{host_calls, kernels};

/// One measured time.
pub struct Figure {
    what: String,
    shape: String,
    microseconds: f64,
}

impl Figure {
    /// In JSON, to a tenth of a microsecond.
    pub fn json(&self) -> Value {
        let microseconds = (10.0 * self.microseconds).round() / 10.0;
        json!({ "what": self.what, "shape": self.shape, "microseconds": microseconds })
    }
}

fn describe(name: &str, problem: &Problem) -> String {
    let Problem { batch, seq, dim, state, element, .. } = problem;
    format!("{name} {batch}x{seq}x{dim}, state {state}, {element}")
}

/// All figures of shapes whose description is wanted, printed as they come: kernels of the variants
/// that every shape has, calls of the shapes that are played, and, among all of them, first calls.
pub fn figures(wanted: impl Fn(&str) -> bool) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |what: String, shape: &str, microseconds: f64| {
        println!("{microseconds:10.1} µs  {what:36} {shape}");
        figures.push(Figure { what, shape: shape.to_owned(), microseconds });
    };
    let registry = Registry::read();
    for (shape, variant, problem) in registry.problems() {
        let name = describe(&shape.name, &problem);
        if variant.shapes.is_none() && wanted(&name) {
            for (pass, microseconds) in kernels(&problem) {
                add(format!("kernels, {pass}"), &name, microseconds);
            }
        }
    }
    for shape in registry.shapes.iter().filter(|shape| shape.seq == 60) {
        let name = describe(&shape.name, &shape.problem());
        if wanted(&name) {
            for (way, microseconds) in host_calls(&shape.problem()) {
                add(format!("call, {way}"), &name, microseconds);
            }
        }
    }
    if wanted("first calls") {
        for (what, name, microseconds) in compilation::figures() {
            add(what, name, microseconds);
        }
    }
    figures
}

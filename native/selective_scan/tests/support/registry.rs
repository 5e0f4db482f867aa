//! bench/shapes.json: the shapes that are measured and packed, and the variants of them.

use selective_scan::{Method, Problem, Projection};
use serde::Deserialize;

use super::ELEMENTS;
use super::random::zoh;

#[derive(Deserialize)]
pub struct Registry {
    pub shapes: Vec<Shape>,
    pub variants: Vec<Variant>,
}

#[derive(Deserialize)]
pub struct Shape {
    pub name: String,
    pub batch: usize,
    pub seq: usize,
    pub dim: usize,
    pub state: usize,
}

/// How a problem differs from plain zoh in f32.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Variant {
    pub name: String,
    /// The shapes that have this variant; all where there is no list.
    pub shapes: Option<Vec<String>>,
    element: Option<String>,
    method: Option<String>,
    features: Vec<String>,
    groups: Option<usize>,
    state: Option<usize>,
}

impl Registry {
    pub fn read() -> Self {
        serde_json::from_str(include_str!("../../../../bench/shapes.json")).expect("bench/shapes.json")
    }

    /// Every shape in every variant that it has.
    pub fn problems(&self) -> impl Iterator<Item = (&Shape, &Variant, Problem)> {
        let wanted = |shape: &Shape, variant: &Variant| {
            variant.shapes.as_ref().is_none_or(|names| names.contains(&shape.name))
        };
        self.variants.iter().flat_map(move |variant| {
            let shapes = self.shapes.iter().filter(move |shape| wanted(shape, variant));
            shapes.map(move |shape| (shape, variant, variant.of(shape.problem())))
        })
    }
}

impl Shape {
    pub fn problem(&self) -> Problem {
        zoh(self.batch, self.seq, self.dim, self.state)
    }
}

impl Variant {
    fn of(&self, problem: Problem) -> Problem {
        let known = ["z", "d", "dt_bias", "dt_softplus", "seq_idx"];
        assert!(self.features.iter().all(|name| known.contains(&&name[..])), "features are of {known:?}");
        let has = |name: &str| self.features.iter().any(|feature| feature == name);
        let element = |name: &String| ELEMENTS.into_iter().find(|e| e.to_string() == *name).expect("a type");
        let projection = Projection::PerFrame { groups: self.groups.unwrap_or(1) };
        Problem {
            state: self.state.unwrap_or(problem.state),
            element: self.element.as_ref().map_or(problem.element, element),
            method: self.method.as_ref().map_or(Method::Zoh, |name| name.parse().expect("a method")),
            b: projection,
            c: projection,
            d: has("d"),
            z: has("z"),
            dt_bias: has("dt_bias"),
            dt_softplus: has("dt_softplus"),
            seq_idx: has("seq_idx"),
            ..problem
        }
    }
}

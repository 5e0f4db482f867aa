//! The record of a run.

use serde_json::{Value, json};

use crate::device;
use crate::figures::Figure;
use crate::machine::{date, driver, machine};
use crate::sources::hash;

/// The record, in JSON.
pub fn record(tests: &[&str], figures: &[Figure]) -> Value {
    let info = device().info();
    let (major, minor) = info.compute_capability;
    json!({
        "date": date(),
        "machine": machine(),
        "gpu": info.name,
        "compute_capability": format!("{major}.{minor}"),
        "driver": driver(),
        "sha256": hash(),
        "tests": tests,
        "figures": Vec::from_iter(figures.iter().map(Figure::json)),
    })
}

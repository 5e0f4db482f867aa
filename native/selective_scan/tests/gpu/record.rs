//! The record of a run.

use crate::device;
use crate::figures::Figure;
use crate::machine::{date, driver, machine};
use crate::sources::hash;

/// The record, as JSON.
pub fn record(tests: &[&str], figures: &[Figure]) -> String {
    let lines = |lines: Vec<String>| lines.join(",\n    ");
    let tests = lines(tests.iter().map(|name| format!("{name:?}")).collect());
    let figures = lines(figures.iter().map(Figure::json).collect());
    let info = device().info();
    let (major, minor) = info.compute_capability;
    format!(
        "{{\n  \"date\": {:?},\n  \"machine\": {:?},\n  \"gpu\": {:?},\n  \"compute_capability\": \"{major}.{minor}\",\n  \
         \"driver\": {:?},\n  \"sha256\": {:?},\n  \"tests\": [\n    {tests}\n  ],\n  \"figures\": [\n    {figures}\n  ]\n}}\n",
        date(),
        machine(),
        info.name,
        driver(),
        hash(),
    )
}

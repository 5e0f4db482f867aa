//! The CUDA backend on the problems of bench/shapes.json, for bench/report.py: `bin/bench-gpu` runs it beside the peers.
//!
//!     gpu FILE.json [WORD]     every problem that has the word in its names
//!
//! The record of the tests that it compares its own sources with is the repository's, or the one that EXPHIL_GPU_RECORD
//! names. Without a GPU it says so and passes.

#[path = "../native/selective_scan/tests/gpu/machine.rs"]
mod machine;
#[path = "../native/selective_scan/tests/gpu/on_device.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod on_device;
#[path = "../native/selective_scan/tests/gpu/sources.rs"]
mod sources;
#[path = "../native/selective_scan/tests/support/mod.rs"]
mod support;
#[path = "../native/selective_scan/tests/gpu/timing.rs"]
mod timing;

use cudarc::driver::result;
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE;
use selective_scan::cuda::{self, Device};
use serde_json::{Value, json};
use support::registry::Registry;

fn device() -> &'static Device {
    cuda::device(0).expect("the device was there at the start")
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let Some(file) = arguments.next() else {
        println!("SKIPPED: the benchmark on GPUs writes to a file, and none was named");
        return;
    };
    let word = arguments.next().unwrap_or_default();
    if let Err(error) = cuda::devices().and_then(|_| cuda::device(0)) {
        println!("SKIPPED: the benchmark on GPUs needs a GPU: {error}");
        return;
    }
    let results = json!({ "header": header(), "figures": figures(&word) });
    std::fs::write(&file, format!("{results:#}\n")).unwrap_or_else(|error| panic!("{file}: {error}"));
}

fn header() -> Value {
    let info = device().info();
    let (major, minor) = info.compute_capability;
    json!({
        "who": "ours",
        "version": option_env!("EXPHIL_COMMIT").unwrap_or("unknown"),
        "date": machine::date(),
        "machine": machine::machine(),
        "gpu": info.name,
        "compute_capability": format!("{major}.{minor}"),
        "multiprocessors": info.multiprocessors,
        "clock_mhz": clock(),
        "driver": machine::driver(),
        "sha256": sources::hash(),
        "tested": tested(),
    })
}

/// The highest clock of the multiprocessors.
fn clock() -> i32 {
    let device = result::device::get(0).expect("the device was there at the start");
    // SAFETY: the device is one that the driver just handed out.
    let kilohertz = unsafe { result::device::get_attribute(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE) };
    kilohertz.expect("every device has a clock") / 1000
}

/// Whether the GPU tests have passed on these very sources.
fn tested() -> bool {
    let record = match std::env::var_os("EXPHIL_GPU_RECORD") {
        Some(file) => std::fs::read_to_string(file).expect("the record that EXPHIL_GPU_RECORD names"),
        None => include_str!("../test/gpu/record.json").to_owned(),
    };
    record.contains(&sources::hash())
}

fn figures(word: &str) -> Vec<Value> {
    let registry = Registry::read();
    let mut figures = Vec::new();
    let mut add = |shape: &str, variant: &str, pass: &str, how: &str, microseconds: f64| {
        println!("{microseconds:10.1} µs  {shape:12} {variant:26} {pass}");
        figures.push(json!({
            "shape": shape, "variant": variant, "pass": pass, "how": how, "microseconds": microseconds
        }));
    };
    for (shape, variant, problem) in registry.problems() {
        if shape.name.contains(word) || variant.name.contains(word) {
            for (pass, microseconds) in timing::kernels(&problem) {
                add(&shape.name, &variant.name, pass, "graph replay", microseconds);
            }
        }
    }
    for shape in registry.shapes.iter().filter(|shape| shape.seq == 60) {
        if shape.name.contains(word) || "calls".contains(word) {
            for (way, microseconds) in timing::host_calls(&shape.problem()) {
                add(&shape.name, "f32", way, "call", microseconds);
            }
        }
    }
    figures
}

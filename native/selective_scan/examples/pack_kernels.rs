//! Packs the common kernels, for machines that have a driver and no NVRTC: `make ptx`.
//!
//!     pack_kernels FILE
//!
//! Common is what the shapes of bench/shapes.json, and windows as games play them, need in f32 and bf16 by zoh, forward,
//! backward and frame by frame, as a Mamba block scans and plain, on every generation of devices from 7.5 on. Layouts
//! follow from how much there is to do and how large a device is, so a few sizes of both have the kernels of all that
//! lie between.

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use rayon::prelude::*;
use selective_scan::cuda::compile::{Configuration, Target};
use selective_scan::cuda::nvrtc::Compiler;
use selective_scan::cuda::packed::{pack, target};
use selective_scan::{Error, Problem};
use support::devices::{devices, kernels};
use support::packing::compress;
use support::registry::Registry;

/// A window of frames is as long, and a model as wide, as a game wants it: these beside the registry's.
const WINDOWS: &[usize] = &[16, 32, 48, 64, 80, 96, 112, 128, 144];
const WIDTHS: &[usize] = &[128, 256, 512, 1024];

/// The problems, each in every batch up to its own.
fn problems() -> Vec<Problem> {
    let registry = Registry::read();
    let plain = registry.problems().filter(|(_, variant, _)| variant.shapes.is_none());
    let played = |problem: Problem| {
        let sizes = WINDOWS.iter().flat_map(|&seq| WIDTHS.iter().map(move |&dim| (seq, dim)));
        let sizes = sizes.filter(|_| problem.seq <= WINDOWS[WINDOWS.len() - 1]);
        let others: Vec<_> = sizes.map(|(seq, dim)| Problem { seq, dim, ..problem.clone() }).collect();
        others.into_iter().chain([problem])
    };
    let batches = |problem: Problem| {
        let powers = (0..).map(|power| 1 << power).take_while(move |&batch| batch <= problem.batch);
        powers.map(move |batch| Problem { batch, ..problem.clone() }).collect::<Vec<_>>()
    };
    let forms = |problem: Problem| {
        let block = Problem { d: true, z: true, dt_bias: true, dt_softplus: true, ..problem.clone() };
        let step = |scan: &Problem| Problem { seq: 1, initial_state: true, ..scan.clone() };
        [step(&problem), step(&block), problem, block]
    };
    plain.flat_map(|(_, _, problem)| played(problem)).flat_map(batches).flat_map(forms).collect()
}

fn main() -> Result<(), Error> {
    let file = std::env::args().nth(1).expect("the file to write");
    let started = Instant::now();
    let mut seen = HashSet::new();
    let mut all: Vec<(Configuration, Target)> = Vec::new();
    for problem in problems() {
        for device in devices() {
            let kernels = kernels(device, &problem).map(|kernel| (kernel, target(device.architecture)));
            all.extend(kernels.filter(|wanted| seen.insert(*wanted)));
        }
    }
    let compiler = Compiler::find()?;
    let done = Mutex::new(0);
    let compile = |&(configuration, target): &(Configuration, Target)| {
        let text = compiler.compile(&configuration, target)?;
        let mut done = done.lock().expect("no one panics with it");
        *done += 1;
        if *done % 50 == 0 {
            eprintln!("{done} of {} kernels", all.len());
        }
        Ok((configuration, target, text))
    };
    let texts = all.par_iter().map(compile).collect::<Result<Vec<_>, Error>>()?;
    pack(Path::new(&file), &texts, compress).unwrap_or_else(|error| panic!("{file}: {error}"));
    let sum: usize = texts.iter().map(|(.., text)| text.len()).sum();
    let length = std::fs::metadata(&file).map_or(0, |file| file.len());
    println!(
        "{file}: {} kernels by NVRTC {:?}, {} KiB of PTX in {} KiB; {:.0} s",
        texts.len(),
        compiler.version(),
        sum >> 10,
        length >> 10,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

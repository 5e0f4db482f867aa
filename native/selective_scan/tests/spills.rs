//! No kernel spills registers that is planned for the shapes and variants of bench/shapes.json, and for one that joins chunks in
//! few lanes, on the largest device of each architecture: what leaves registers for local memory in the loop over frames costs a
//! tenth of the time and more (bench/NOTES.md).

#[path = "gpu/shapes.rs"]
mod shapes;
mod support;

use std::collections::HashMap;

use rayon::prelude::*;
use selective_scan::cuda::compile::{Configuration, Program};
use selective_scan::cuda::{Pass, configurations};
use selective_scan::{Method, Problem};
use shapes::{bf16, block, both, by, packed, problem, reversed};
use support::devices::{architectures, device, kernels};
use support::nvrtc::compiler_of;
use support::registry::Registry;

/// The version of NVRTC that the kernels were written beside: others allocate registers in their own way.
const WRITTEN_BESIDE: (i32, i32) = (13, 0);

/// Bytes of local memory of a thread, the most that a kernel of a cubin has: what `cuobjdump -res-usage` calls its stack.
fn stack_bytes(cubin: &[u8]) -> u32 {
    // An ELF of 64 bits, little-endian; sections .nv.info hold attributes: format, number, and a value of so many bytes.
    const FRAME_SIZE: [u8; 4] = [4, 0x11, 8, 0];
    let number = |at: usize, bytes: usize| {
        cubin[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    let (sections, size, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    let bytes = |section: usize| &cubin[number(section + 0x18, 8)..][..number(section + 0x20, 8)];
    let section = |index: usize| sections + index * size;
    let names = bytes(section(number(0x3e, 2)));
    let infos = (0..count).map(section).filter(|&at| names[number(at, 4)..].starts_with(b".nv.info\0"));
    let words = infos.flat_map(|at| bytes(at).chunks_exact(4)).collect::<Vec<_>>();
    let frames = words.windows(3).filter(|words| *words[0] == FRAME_SIZE);
    let frames = frames.map(|words| u32::from_le_bytes(words[2].try_into().expect("four bytes")));
    frames.max().expect("every kernel has a frame")
}

#[test]
fn kernels_spill_nothing() {
    let Some(compiler) = compiler_of(WRITTEN_BESIDE) else { return };
    let stack_bytes = |architecture: i32, configuration: &Configuration| {
        stack_bytes(&compiler.compile(configuration, compiler.target(architecture)).unwrap())
    };
    let mut all = HashMap::new();
    let registry = Registry::read();
    let h200 = device(90);
    // A lane has eight states of so many chunks at a time, while it joins them.
    let joined = problem(1, 1500, 4352, 16);
    let joins = |kernel: &Configuration| kernel.joins && kernel.layout.lanes == 2;
    assert!(configurations(&h200, &joined, Pass::Forward).iter().any(joins));
    let named =
        registry.problems().map(|(shape, variant, of)| (format!("{}, {}", shape.name, variant.name), of));
    let problems: Vec<_> = named.chain([("joined chunks".to_owned(), joined)]).collect();
    for device in architectures() {
        for (name, problem) in &problems {
            for configuration in kernels(device, problem) {
                let of = || format!("{name}, {:?}", configuration.program);
                all.entry((device.architecture, configuration)).or_insert_with(of);
            }
        }
    }
    // Forward passes of the H200, all of whose kernels are as they are meant to be.
    let mut add = |problem: &Problem, is_meant: &dyn Fn(&Configuration) -> bool| {
        for configuration in configurations(&h200, problem, Pass::Forward) {
            assert!(is_meant(&configuration), "{problem:?}: {configuration:?}");
            all.insert((h200.architecture, configuration), format!("{problem:?}"));
        }
    };
    // Packed rows and limits in copied tiles, where elements are made.
    let limited = |problem| Problem { dt_limit: Some([0.0, 1.0]), ..problem };
    for problem in [
        packed(block(8, 2048, 1536, 16)),
        limited(block(8, 2048, 1536, 16)),
        bf16(limited(packed(block(8, 2048, 1536, 16)))),
        packed(by(Method::Rk4, block(8, 2048, 1536, 16))),
        by(Method::Foh, block(8, 2048, 1536, 16)),
        by(Method::Foh, packed(limited(block(8, 2048, 1536, 16)))),
        by(Method::Poly, block(32, 60, 512, 16)),
        by(Method::Poly, packed(block(32, 60, 512, 16))),
        by(Method::Poly, packed(problem(8, 2048, 1536, 16))),
        by(Method::Highorder, packed(block(8, 2048, 1536, 16))),
        by(Method::Highorder, block(32, 60, 512, 16)),
        by(Method::Poly, problem(64, 197, 768, 16)),
        by(Method::ZohExact, problem(64, 197, 768, 64)),
        by(Method::ZohExact, packed(block(8, 2048, 1536, 16))),
    ] {
        add(&problem, &|kernel| kernel.program == Program::Bulk);
    }
    // Where the state is handed on: of every method, without options and with them; packed, against the order of frames, in several sweeps.
    let (row, of_block) = (problem(1, 4096, 1024, 16), block(1, 4096, 1024, 16));
    for &method in Method::ALL {
        for problem in [
            bf16(row.clone()),
            bf16(of_block.clone()),
            packed(of_block.clone()),
            bf16(packed(reversed(of_block.clone()))),
            packed(both(problem(1, 4096, 1024, 64))),
            row.clone(),
            of_block.clone(),
        ] {
            let is_relay = |kernel: &Configuration| kernel.program == Program::Relay;
            let shared = Problem { dim: 1536, ..problem.clone() };
            add(&by(method, shared), &|kernel| is_relay(kernel) && kernel.shares_strips);
            add(&by(method, problem), &|kernel| is_relay(kernel) && !kernel.shares_strips);
        }
        let problem = by(method, reversed(block(8, 2048, 1536, 16)));
        add(&problem, &|kernel| kernel.program == Program::Bulk);
    }
    // Several rounds of heavy walks, in tiles of 16 frames, and of 32 where a multiprocessor has two blocks.
    for (tile, problem) in [
        (16, by(Method::ZohExact, packed(block(64, 197, 768, 64)))),
        (16, by(Method::Highorder, block(64, 60, 512, 64))),
        (16, by(Method::Foh, bf16(packed(block(8, 2048, 1536, 64))))),
        (32, by(Method::Poly, packed(block(32, 60, 512, 64)))),
        (32, by(Method::Highorder, block(32, 60, 512, 64))),
    ] {
        add(&problem, &|kernel| (kernel.program, kernel.layout.tile) == (Program::Forward, tile));
    }
    let spilling = all.par_iter().filter_map(|((architecture, configuration), of)| {
        let bytes = stack_bytes(*architecture, configuration);
        (bytes > 0).then(|| format!("{architecture}: {bytes} bytes, {of}"))
    });
    let spilling: Vec<_> = spilling.collect();
    assert!(spilling.is_empty(), "of {} kernels: {spilling:#?}", all.len());

    // What does not fit spills, and is seen.
    let problem = registry.shapes[0].problem();
    let walk = configurations(&h200, &problem, Pass::BackwardFromBoundaryStates)[0];
    let crowded = Configuration { min_blocks: 2048 / walk.threads(), ..walk };
    assert!(stack_bytes(h200.architecture, &crowded) > 0, "{crowded:?}");
}

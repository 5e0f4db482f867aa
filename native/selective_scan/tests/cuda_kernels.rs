//! What can be shown of the CUDA backend without a GPU: that kernels compile for every architecture, and that the
//! record of the last run on a GPU is of today's sources.

#[path = "gpu/shapes.rs"]
mod shapes;
#[path = "gpu/sources.rs"]
mod sources;

use std::path::Path;

use rayon::prelude::*;
use selective_scan::cuda::compile::Compiler;
use selective_scan::cuda::policy::Properties;
use selective_scan::cuda::{self, configurations};
use selective_scan::{Coefficients, ElementType, Error, Method, Problem, Projection};
use shapes::{block, problem};

fn properties(architecture: i32) -> Properties {
    let shared_per_block = match architecture {
        75 => 64 << 10,
        86 | 89 | 120 => 99 << 10,
        80 | 87 => 163 << 10,
        _ => 227 << 10,
    };
    Properties {
        architecture,
        multiprocessors: 64,
        shared_per_block,
        shared_per_multiprocessor: shared_per_block + 1024,
    }
}

/// Every method beside varying types, layouts and options.
fn problems() -> Vec<Problem> {
    let elements = [ElementType::F32, ElementType::Bf16, ElementType::F64, ElementType::F16];
    let taylor = |method: &Method| method.has_taylor();
    let exact = Method::ALL.iter().map(|&method| (method, Coefficients::Exact));
    let series = Method::ALL.iter().copied().filter(taylor).map(|method| (method, Coefficients::Taylor));
    let vary = |(k, (method, coefficients)): (usize, (Method, Coefficients))| Problem {
        method,
        coefficients,
        element: elements[k % 4],
        complex: k % 3 == 1,
        b: if k % 5 == 2 { Projection::Constant } else { Projection::PerFrame { groups: 1 + k % 2 } },
        c: if k % 5 == 3 { Projection::Constant } else { Projection::PerFrame { groups: 1 } },
        seq_idx: k % 2 == 1,
        dt_limit: (k % 3 == 0).then_some([0.0, 1.0]),
        ..block(2, 2500, 510 + 2 * (k % 2), 16 + k % 3)
    };
    exact.chain(series).enumerate().map(vary).collect()
}

#[test]
fn kernels_compile_for_every_architecture() {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) => {
            println!("SKIPPED: kernels are compiled by NVRTC: {error}");
            return;
        }
    };
    let architectures = [75, 80, 86, 90, 100, 120];
    let all: Vec<_> = problems().into_iter().enumerate().collect();
    all.par_iter().for_each(|(k, problem)| {
        let architecture = architectures[k % architectures.len()];
        for configuration in configurations(&properties(architecture), problem) {
            let target = compiler.target(architecture);
            compiler
                .image(&configuration, target)
                .unwrap_or_else(|error| panic!("{configuration:?}: {error}"));
        }
    });
}

#[test]
fn a_cache_that_is_torn_or_cannot_be_written_does_no_harm() {
    let Ok(compiler) = Compiler::find() else {
        println!("SKIPPED: there is no NVRTC");
        return;
    };
    let folder = std::env::temp_dir().join(format!("exphil_native_cache_{}", std::process::id()));
    let compiler = compiler.with_cache(Some(folder.clone()));
    let marks = configurations(&properties(90), &problem(1, 1, 1, 1))[0];
    let target = compiler.target(90);
    let image = compiler.image(&marks, target).unwrap();

    let files = || std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    let [file] = &files()[..] else { panic!("one kernel, one file: {:?}", files()) };
    let kept = std::fs::read(file).unwrap();
    for torn in [&kept[..kept.len() / 2], &[], &[&kept[..], b"more"].concat()[..]] {
        std::fs::write(file, torn).unwrap();
        assert!(compiler.image(&marks, target).unwrap() == image);
        assert!(std::fs::read(file).unwrap() == kept, "compiled anew and kept");
    }
    // A file stands where the folder should be.
    let compiler = compiler.with_cache(Some(file.join("nowhere")));
    assert!(compiler.image(&marks, target).unwrap() == image);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn without_a_device_the_reason_and_a_remedy_are_named() {
    match cuda::devices() {
        Ok(devices) => assert_eq!(cuda::device(0).is_ok(), !devices.is_empty()),
        Err(Error::Unavailable { backend: "cuda", reason, remedy }) => {
            assert!(!reason.is_empty() && !remedy.is_empty());
            assert!(matches!(cuda::device(0), Err(Error::Unavailable { .. })));
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn the_record_of_the_gpu_tests_is_of_todays_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed: Vec<_> = sources::SOURCES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut found = Vec::new();
    for directory in ["kernels", "src/cuda"] {
        let files = std::fs::read_dir(root.join(directory)).unwrap();
        found.extend(files.map(|file| format!("{directory}/{}", file.unwrap().file_name().display())));
    }
    found.sort();
    assert_eq!(found, listed, "tests/gpu/sources.rs lists all sources of the backend, sorted");

    let record = std::fs::read_to_string(root.join("../../test/gpu/record.json")).unwrap();
    assert!(
        record.contains(&sources::hash()),
        "kernels/ or src/cuda/ changed since the GPU tests were last run and recorded in test/gpu/record.json"
    );
}

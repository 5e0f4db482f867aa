//! The hash that ties a record to the sources it was made with.

use sha2::{Digest, Sha256};

/// Name and contents of every file of kernels/ and src/cuda/, in sorted order.
pub const SOURCES: &[(&str, &str)] = &[
    ("kernels/adjoints.cuh", include_str!("../../kernels/adjoints.cuh")),
    ("kernels/arguments.cuh", include_str!("../../kernels/arguments.cuh")),
    ("kernels/backward.cu", include_str!("../../kernels/backward.cu")),
    ("kernels/block.cuh", include_str!("../../kernels/block.cuh")),
    ("kernels/discretize.cuh", include_str!("../../kernels/discretize.cuh")),
    ("kernels/forward.cu", include_str!("../../kernels/forward.cu")),
    ("kernels/frames.cuh", include_str!("../../kernels/frames.cuh")),
    ("kernels/gradients.cuh", include_str!("../../kernels/gradients.cuh")),
    ("kernels/marks.cu", include_str!("../../kernels/marks.cu")),
    ("kernels/number.cuh", include_str!("../../kernels/number.cuh")),
    ("kernels/pairs.cuh", include_str!("../../kernels/pairs.cuh")),
    ("kernels/parts.cuh", include_str!("../../kernels/parts.cuh")),
    ("kernels/prefix.cu", include_str!("../../kernels/prefix.cu")),
    ("kernels/quads.cuh", include_str!("../../kernels/quads.cuh")),
    ("kernels/reduce.cu", include_str!("../../kernels/reduce.cu")),
    ("kernels/rounds.cuh", include_str!("../../kernels/rounds.cuh")),
    ("kernels/rows.cuh", include_str!("../../kernels/rows.cuh")),
    ("kernels/states.cuh", include_str!("../../kernels/states.cuh")),
    ("kernels/time_lanes.cuh", include_str!("../../kernels/time_lanes.cuh")),
    ("src/cuda/arguments.rs", include_str!("../../src/cuda/arguments.rs")),
    ("src/cuda/backward.rs", include_str!("../../src/cuda/backward.rs")),
    ("src/cuda/buffers.rs", include_str!("../../src/cuda/buffers.rs")),
    ("src/cuda/cache.rs", include_str!("../../src/cuda/cache.rs")),
    ("src/cuda/compile.rs", include_str!("../../src/cuda/compile.rs")),
    ("src/cuda/device.rs", include_str!("../../src/cuda/device.rs")),
    ("src/cuda/driver.rs", include_str!("../../src/cuda/driver.rs")),
    ("src/cuda/forward.rs", include_str!("../../src/cuda/forward.rs")),
    ("src/cuda/host.rs", include_str!("../../src/cuda/host.rs")),
    ("src/cuda/images.rs", include_str!("../../src/cuda/images.rs")),
    ("src/cuda/in_place.rs", include_str!("../../src/cuda/in_place.rs")),
    ("src/cuda/launch.rs", include_str!("../../src/cuda/launch.rs")),
    ("src/cuda/mod.rs", include_str!("../../src/cuda/mod.rs")),
    ("src/cuda/nvrtc.rs", include_str!("../../src/cuda/nvrtc.rs")),
    ("src/cuda/packed.rs", include_str!("../../src/cuda/packed.rs")),
    ("src/cuda/policy/backward.rs", include_str!("../../src/cuda/policy/backward.rs")),
    ("src/cuda/policy/configurations.rs", include_str!("../../src/cuda/policy/configurations.rs")),
    ("src/cuda/policy/forward.rs", include_str!("../../src/cuda/policy/forward.rs")),
    ("src/cuda/policy/mod.rs", include_str!("../../src/cuda/policy/mod.rs")),
];

/// SHA-256 of the contents of all sources, one after the other.
pub fn hash() -> String {
    let mut hash = Sha256::new();
    for (_, text) in SOURCES {
        hash.update(text);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

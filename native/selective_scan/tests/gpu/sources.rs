//! The hash that ties a record to the sources it was made with.

use sha2::{Digest, Sha256};

macro_rules! with_contents {
    ($($name:literal,)*) => { &[$(($name, include_str!(concat!("../../", $name))),)*] };
}

/// Name and contents of every file of kernels/ and src/cuda/, in sorted order.
pub const SOURCES: &[(&str, &str)] = with_contents![
    "kernels/adjoints.cu",
    "kernels/arguments.cuh",
    "kernels/backward.cu",
    "kernels/block.cuh",
    "kernels/bulk.cu",
    "kernels/bulk.cuh",
    "kernels/chunks.cu",
    "kernels/discretize.cuh",
    "kernels/edges.cuh",
    "kernels/elements.cuh",
    "kernels/entry.cuh",
    "kernels/forward.cu",
    "kernels/frames.cuh",
    "kernels/gradients.cuh",
    "kernels/lanes.cuh",
    "kernels/marks.cu",
    "kernels/marks.cuh",
    "kernels/number.cuh",
    "kernels/owners.cuh",
    "kernels/pairs.cuh",
    "kernels/parts.cuh",
    "kernels/prefix.cu",
    "kernels/reduce.cu",
    "kernels/relay.cu",
    "kernels/relay_course.cuh",
    "kernels/relay_hand_on.cuh",
    "kernels/relay_marks.cuh",
    "kernels/relay_tile.cuh",
    "kernels/rounds.cuh",
    "kernels/rows.cuh",
    "kernels/spans.cuh",
    "kernels/staged.cuh",
    "kernels/states.cuh",
    "kernels/stretches.cuh",
    "kernels/sums.cuh",
    "kernels/tiles.cuh",
    "kernels/time_lanes.cuh",
    "src/cuda/arguments.rs",
    "src/cuda/backward.rs",
    "src/cuda/boundary.rs",
    "src/cuda/buffers.rs",
    "src/cuda/cache.rs",
    "src/cuda/compile.rs",
    "src/cuda/context.rs",
    "src/cuda/device.rs",
    "src/cuda/driver.rs",
    "src/cuda/forward.rs",
    "src/cuda/host.rs",
    "src/cuda/images.rs",
    "src/cuda/in_place.rs",
    "src/cuda/launch.rs",
    "src/cuda/mod.rs",
    "src/cuda/nvrtc.rs",
    "src/cuda/packed.rs",
    "src/cuda/policy/backward/layout.rs",
    "src/cuda/policy/backward/memory.rs",
    "src/cuda/policy/backward/mod.rs",
    "src/cuda/policy/backward/plan.rs",
    "src/cuda/policy/backward/segments.rs",
    "src/cuda/policy/backward/shared.rs",
    "src/cuda/policy/clocks.rs",
    "src/cuda/policy/configurations.rs",
    "src/cuda/policy/forward/bulk.rs",
    "src/cuda/policy/forward/copied.rs",
    "src/cuda/policy/forward/layout.rs",
    "src/cuda/policy/forward/mod.rs",
    "src/cuda/policy/forward/plan.rs",
    "src/cuda/policy/forward/relay.rs",
    "src/cuda/policy/forward/shared.rs",
    "src/cuda/policy/mod.rs",
    "src/cuda/tensor_maps.rs",
    "src/cuda/workspace.rs",
];

/// SHA-256 of the contents of all sources, one after the other.
pub fn hash() -> String {
    let mut hash = Sha256::new();
    for (_, text) in SOURCES {
        hash.update(text);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

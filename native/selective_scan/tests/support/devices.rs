//! Devices that kernels are compiled for, of every generation from 7.5 on.

use selective_scan::Problem;
use selective_scan::cuda::compile::{Configuration, Program};
use selective_scan::cuda::policy::Properties;
use selective_scan::cuda::{Pass, configurations};

/// Compute capability, multiprocessors, and in KiB shared memory of a block and of a multiprocessor (CUDA C++ Programming
/// Guide, technical specifications per compute capability) and the L2 cache (NVIDIA's architecture whitepapers).
const DEVICES: &[(i32, usize, usize, usize, usize)] = &[
    (75, 40, 64, 64, 4096),       // T4
    (75, 68, 64, 64, 5632),       // RTX 2080 Ti
    (80, 108, 163, 164, 40960),   // A100
    (86, 28, 99, 100, 3072),      // RTX 3060
    (86, 46, 99, 100, 4096),      // RTX 3070
    (86, 82, 99, 100, 6144),      // RTX 3090
    (89, 24, 99, 100, 24576),     // RTX 4060
    (89, 58, 99, 100, 49152),     // L4
    (89, 76, 99, 100, 65536),     // RTX 4080
    (89, 128, 99, 100, 73728),    // RTX 4090
    (90, 114, 227, 228, 51200),   // H100 PCIe
    (90, 132, 227, 228, 51200),   // H100, H200
    (100, 148, 227, 228, 129024), // B200
    (120, 36, 99, 100, 32768),    // RTX 5060 Ti
    (120, 84, 99, 100, 65536),    // RTX 5080
    (120, 170, 99, 100, 98304),   // RTX 5090
];

/// All of them.
pub fn devices() -> impl Iterator<Item = Properties> {
    DEVICES.iter().map(|&(architecture, multiprocessors, of_block, of_all, cache)| Properties {
        architecture,
        multiprocessors,
        shared_per_block: of_block << 10,
        shared_per_multiprocessor: of_all << 10,
        cache_bytes: cache << 10,
        tensor_maps: architecture >= 90,
    })
}

/// The largest of an architecture.
pub fn device(architecture: i32) -> Properties {
    let of_it = devices().filter(|device| device.architecture == architecture);
    of_it.max_by_key(|device| device.multiprocessors).expect("a known architecture")
}

/// One of each architecture, the largest.
pub fn architectures() -> Vec<Properties> {
    let mut all: Vec<_> = devices().map(|device| device.architecture).collect();
    all.dedup();
    all.into_iter().map(device).collect()
}

/// Whether a pass over a problem has a kernel of this program on a device.
pub fn has_kernel(device: &Properties, problem: &Problem, pass: Pass, program: Program) -> bool {
    any_kernel(device, problem, pass, |kernel| kernel.program == program)
}

/// Whether blocks of it begin and end within strips of relay.cu.
pub fn shares_strips(device: &Properties, problem: &Problem, pass: Pass) -> bool {
    any_kernel(device, problem, pass, |kernel| kernel.shares_strips)
}

fn any_kernel(
    device: &Properties,
    problem: &Problem,
    pass: Pass,
    is_meant: impl Fn(&Configuration) -> bool,
) -> bool {
    configurations(device, problem, pass).iter().any(is_meant)
}

/// Whether this is what walks the rows of a problem's forward pass on a device.
pub fn walks_forward(device: &Properties, problem: &Problem, program: Program) -> bool {
    has_kernel(device, problem, Pass::Forward, program)
}

/// What a device wants compiled for a problem, for all its passes; some of it several times.
pub fn kernels(device: Properties, problem: &Problem) -> impl Iterator<Item = Configuration> {
    let passes = [Pass::Forward, Pass::Backward, Pass::BackwardFromBoundaryStates];
    passes.into_iter().flat_map(move |pass| configurations(&device, problem, pass))
}

//! What can be shown of the CUDA backend without a GPU: that kernels compile for every architecture, and that the
//! record of the last run on a GPU is of today's sources.

#[path = "gpu/bounds.rs"]
mod bounds;
#[path = "gpu/shapes.rs"]
mod shapes;
#[path = "gpu/sources.rs"]
mod sources;
mod support;

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rayon::prelude::*;
use selective_scan::cuda::compile::{Configuration, Program};
use selective_scan::cuda::images::Images;
use selective_scan::cuda::packed::{pack, target, unpack};
use selective_scan::cuda::policy::{BackwardPlan, Piece, Properties};
use selective_scan::cuda::{self, Pass, configurations};
use selective_scan::{Coefficients, ElementType, Error, Method, Problem, Projection, cpu};
use shapes::{
    bf16, block, borrowing, both, by, ending_short, f64, joining, packed, problem, reversed, summing,
    within_tiles,
};
use support::devices::{architectures, device, kernels, shares_strips, walks_forward};
use support::nvrtc::compiler;
use support::packing::compress;
use support::{ELEMENTS, random};

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
    // Accesses as wide as there are, where several sweeps gather in reals; and sweeps of 32 states.
    let wide = Problem { bidirectional: true, ..bf16(block(1, 65, 24, 1)) };
    let of_32_states = block(8, 2048, 1536, 64);
    // Tiles that the device copies, if it can.
    let copied = problem(8, 2048, 1536, 16);
    let made = bf16(Problem { seq_idx: true, dt_limit: Some([0.0, 1.0]), ..block(8, 2048, 1536, 16) });
    // Strips that blocks share.
    let shared = problem(1, 1024, 1536, 16);
    exact.chain(series).enumerate().map(vary).chain([wide, of_32_states, copied, made, shared]).collect()
}

/// Problems as the GPU tests draw them, whatever comes together: a few, because each is compiled.
fn drawn() -> Vec<Problem> {
    const COUNT: u32 = 12;
    let mut runner = TestRunner::new(random::config(COUNT, 0));
    let cases = random::cases(&ELEMENTS, random::SMALL);
    (0..COUNT).map(|_| cases.new_tree(&mut runner).unwrap().current().problem).collect()
}

#[test]
fn kernels_compile_for_every_architecture() {
    let Some(compiler) = compiler() else { return };
    let architectures = architectures();
    let each = |(k, problem)| (architectures[k % architectures.len()], problem);
    // From 9.0 on kernels have ways of their own.
    let newer = problems().into_iter().map(|problem| (device(90), problem));
    let mut all = HashSet::new();
    for (device, problem) in problems().into_iter().chain(drawn()).enumerate().map(each).chain(newer) {
        all.extend(kernels(device, &problem).map(|configuration| (device.architecture, configuration)));
    }
    all.par_iter().for_each(|(architecture, configuration)| {
        let compiled = compiler.compile(configuration, compiler.target(*architecture));
        assert!(compiled.is_ok(), "{configuration:?}: {compiled:?}");
    });
}

/// A layout whose blocks have no room for the states of a problem gives way to another.
#[test]
fn blocks_have_room_for_what_kernels_keep_in_shared_memory() {
    let shapes = [(1, 1, 8), (2, 28, 64), (1, 60, 512), (32, 60, 512), (1, 2500, 96), (4, 2500, 1024)];
    let of_shape =
        |(batch, seq, dim)| [1, 5, 16, 17, 33, 130, 1000].map(|state| packed(block(batch, seq, dim, state)));
    let of_element = |problem: Problem| ELEMENTS.map(|element| Problem { element, ..problem.clone() });
    let of_walk = |problem: Problem| {
        [(false, Method::Zoh), (true, Method::Zoh), (false, Method::Highorder)]
            .map(|(complex, method)| Problem { complex, method, ..problem.clone() })
    };
    // On 9.0 all that there is, but for a few bytes.
    let nearly_all = Problem {
        complex: true,
        b: Projection::Constant,
        c: Projection::Constant,
        dt_bias: true,
        ..bf16(problem(1, 16_384, 1536, 16))
    };
    let problems =
        shapes.into_iter().flat_map(of_shape).flat_map(of_element).flat_map(of_walk).chain([nearly_all]);
    for problem in problems {
        for device in architectures() {
            // scan_backward declares a flag beside (`walks`).
            let of = |kernel: Configuration| {
                kernel.shared_bytes + if kernel.program == Program::Backward { 16 } else { 0 }
            };
            let most = kernels(device, &problem).map(of).max();
            assert!(most <= Some(device.shared_per_block), "{most:?} of {device:?}: {problem:?}");
        }
    }
}

#[test]
fn tiles_are_copied_by_devices_that_can() {
    let copies = |device: &Properties, problem: &Problem| walks_forward(device, problem, Program::Bulk);
    let plain = problem(8, 2048, 1536, 16);
    for device in architectures() {
        // Those of 12.0 have room for one block of three.
        assert_eq!(copies(&device, &plain), [90, 100].contains(&device.architecture), "{device:?}");
    }
    let h200 = device(90);
    let older_driver = Properties { tensor_maps: false, ..h200 };
    assert!(!copies(&older_driver, &plain));
    let halves = |problem: &Problem| Problem { b: Projection::PerFrame { groups: 2 }, ..problem.clone() };
    for problem in [
        Problem { initial_state: true, ..plain.clone() },
        Problem { method: Method::Bilinear, ..plain.clone() },
        Problem { method: Method::Highorder, ..plain.clone() },
        Problem { method: Method::Poly, coefficients: Coefficients::Taylor, ..plain.clone() },
        Problem { method: Method::Foh, seq_idx: true, ..plain.clone() },
        Problem { state: 12, dim: 1532, ..plain.clone() },
        Problem { state: 100, ..plain.clone() },
        Problem { seq_idx: true, ..plain.clone() },
        reversed(plain.clone()),
        reversed(bf16(block(8, 2048, 1536, 16))),
        both(plain.clone()),
        both(Problem { state: 40, ..plain.clone() }),
        halves(&plain),
        problem(8, 1024, 512, 16),
        // In chunks.
        problem(1, 65536, 512, 16),
        // Short rows, where there are many.
        problem(32, 60, 512, 16),
        Problem { seq_idx: true, ..problem(32, 60, 512, 16) },
        Problem { method: Method::Foh, seq_idx: true, ..problem(32, 60, 512, 16) },
        bf16(Problem { seq_idx: true, ..block(32, 60, 512, 16) }),
        block(8, 2048, 1536, 16),
        bf16(block(32, 60, 512, 16)),
        Problem { method: Method::Highorder, ..block(32, 60, 512, 16) },
        problem(8, 60, 512, 16),
    ] {
        assert!(copies(&h200, &problem), "{problem:?}");
    }
    for problem in [
        bf16(plain.clone()),
        block(8, 2048, 1536, 24),
        // Both ways, what gathers would be rounded, or finished twice.
        both(bf16(block(8, 2048, 1536, 16))),
        both(block(8, 2048, 1536, 16)),
        Problem { c: Projection::Constant, ..plain.clone() },
        // Rows that are no multiple of 16 bytes, or that two groups share a box of.
        Problem { state: 14, ..plain.clone() },
        Problem { dim: 1534, ..plain.clone() },
        halves(&Problem { dim: 1544, ..plain.clone() }),
        // So few channels that eight lanes each are the faster.
        problem(4, 60, 512, 16),
        problem(4, 1024, 512, 16),
        problem(32, 60, 512, 64),
        Problem { method: Method::Highorder, ..problem(32, 60, 512, 16) },
        // More frames than the engine has places.
        problem(1, (1 << 30) + 16, 512, 16),
        // Marks that few warps walk by many operations.
        Problem { method: Method::ZohExact, seq_idx: true, ..problem(8, 1024, 512, 16) },
    ] {
        assert!(!copies(&h200, &problem), "{problem:?}");
    }
}

#[test]
fn the_state_is_handed_on_where_few_channels_have_long_rows() {
    let relays = |device: &Properties, problem: &Problem| walks_forward(device, problem, Program::Relay);
    let long = problem(1, 65536, 1024, 16);
    for device in architectures() {
        // Those of 12.0 have no room for so many warps.
        assert_eq!(relays(&device, &long), [90, 100].contains(&device.architecture), "{device:?}");
    }
    let h200 = device(90);
    assert!(!relays(&Properties { tensor_maps: false, ..h200 }, &long));
    for problem in [
        bf16(long.clone()),
        block(1, 65536, 1024, 16),
        Problem { initial_state: true, method: Method::Bilinear, ..long.clone() },
        Problem { b: Projection::PerFrame { groups: 128 }, ..long.clone() },
        Problem { state: 12, dim: 1020, ..long.clone() },
        // Prompts.
        problem(1, 1024, 1536, 16),
        Problem { method: Method::Highorder, ..block(1, 1024, 1536, 16) },
        problem(1, 100, 512, 16),
        Problem { method: Method::Foh, ..problem(3, 1024, 1024, 16) },
        // Packed, and against the order of frames.
        packed(long.clone()),
        reversed(bf16(block(1, 65536, 1024, 16))),
        packed(reversed(block(1, 1024, 1536, 16))),
        // In several sweeps.
        Problem { state: 64, ..long.clone() },
        both(long.clone()),
    ] {
        assert!(relays(&h200, &problem), "{problem:?}");
    }
    for problem in [
        // So few channels that chunks of a row keep more multiprocessors busy.
        problem(1, 65536, 512, 16),
        // So many that each has four blocks.
        problem(8, 1024, 512, 16),
        problem(32, 60, 512, 16),
        block(1, 65536, 1024, 17),
        both(block(1, 65536, 1024, 16)),
        Problem { b: Projection::Constant, ..long.clone() },
        // Blocks of two groups.
        Problem { b: Projection::PerFrame { groups: 256 }, ..long.clone() },
        Problem { dim: 1022, ..long.clone() },
        Problem { seq: (1 << 30) + 16, ..long.clone() },
        f64(long.clone()),
    ] {
        assert!(!relays(&h200, &problem), "{problem:?}");
    }
}

#[test]
fn strips_are_shared_where_multiprocessors_would_have_unequal_numbers() {
    let shares = |device: &Properties, problem: &Problem| shares_strips(device, problem, Pass::Forward);
    let h200 = device(90);
    for problem in [
        problem(1, 1024, 1536, 16),
        bf16(block(1, 4096, 1536, 16)),
        packed(reversed(problem(1, 2048, 1280, 16))),
        problem(2, 2048, 1152, 64),
    ] {
        assert!(shares(&h200, &problem), "{problem:?}");
        // Each has one.
        let few = Properties { multiprocessors: 400, ..h200 };
        assert!(!shares(&few, &problem), "{problem:?}");
    }
    for problem in [
        problem(1, 65536, 1024, 16),
        // Nearly all have as many.
        problem(1, 4096, 2048, 16),
        problem(1, 4096, 3168, 16),
        // A short row.
        problem(1, 200, 1536, 16),
    ] {
        assert!(!shares(&h200, &problem), "{problem:?}");
    }
}

/// Of which chunks a device finds in copied tiles what is to be known of them: a forward pass's, a backward pass's, and its
/// adjoints'.
fn copied_chunks(device: &Properties, problem: &Problem) -> [bool; 3] {
    let finds = |pass, adjoints| {
        configurations(device, problem, pass)
            .iter()
            .any(|kernel| kernel.program == Program::Chunks && kernel.adjoints == adjoints)
    };
    [finds(Pass::Forward, false), finds(Pass::Backward, false), finds(Pass::BackwardFromBoundaryStates, true)]
}

#[test]
fn what_chunks_come_to_is_found_in_copied_tiles_where_a_sum_gives_their_decays() {
    let h200 = device(90);
    let plain = problem(1, 65536, 512, 16);
    assert_eq!(copied_chunks(&h200, &plain), [true; 3]);
    assert_eq!(copied_chunks(&h200, &Problem { method: Method::Rk4, ..plain.clone() }), [true; 3]);
    assert_eq!(copied_chunks(&h200, &bf16(plain.clone())), [false, true, true]);
    assert_eq!(copied_chunks(&h200, &Problem { z: true, ..plain.clone() }), [true, true, false]);
    assert_eq!(copied_chunks(&h200, &Problem { method: Method::Foh, ..plain.clone() }), [true; 3]);
    assert_eq!(copied_chunks(&h200, &reversed(plain.clone())), [true; 3]);
    // A backward pass has one kernel for both ways.
    assert_eq!(copied_chunks(&h200, &both(plain.clone())), [true, false, false]);
    for problem in [
        Problem { method: Method::Bilinear, ..plain.clone() },
        Problem { seq_idx: true, ..plain.clone() },
        Problem { dt_softplus: true, ..plain.clone() },
        f64(plain.clone()),
    ] {
        assert_eq!(copied_chunks(&h200, &problem), [false; 3], "{problem:?}");
    }
    for device in architectures().into_iter().filter(|device| device.architecture < 90) {
        assert_eq!(copied_chunks(&device, &plain), [false; 3], "{device:?}");
    }
}

#[test]
fn channels_have_two_lanes_as_far_as_they_fill_the_device_evenly() {
    let h200 = device(90);
    // Lanes, and how many blocks have two lanes beside these.
    let dealt = |problem: &Problem| {
        let bulk = h200.forward(problem).bulk?;
        let beside = bulk.beside.map_or(0, |beside| {
            assert_eq!(beside.layout.lanes, 2, "{problem:?}");
            beside.blocks
        });
        Some((bulk.layout.lanes, beside))
    };
    let halves = |dim| Problem { b: Projection::PerFrame { groups: 2 }, ..problem(64, 197, dim, 16) };
    for problem in [
        problem(64, 197, 768, 16),
        problem(64, 197, 768, 64),
        problem(1, 65536, 512, 16),
        // Blocks of 64 channels: 384 and 640 for 132 multiprocessors.
        problem(16, 2048, 1536, 16),
        problem(8, 4096, 5120, 16),
        halves(768),
        bf16(problem(64, 197, 768, 16)),
        // In 16 bits three blocks each are worth it where rows are short.
        bf16(problem(33, 197, 768, 16)),
        bf16(problem(32, 2048, 1536, 16)),
        Problem { method: Method::Poly, ..problem(64, 197, 768, 16) },
    ] {
        assert_eq!(dealt(&problem), Some((2, 0)), "{problem:?}");
    }
    for problem in [
        bf16(problem(16, 2048, 1536, 16)),
        // Four lanes, or y in several sweeps.
        bf16(problem(8, 2048, 1536, 16)),
        bf16(problem(32, 60, 512, 16)),
        bf16(problem(64, 197, 768, 64)),
    ] {
        assert_eq!(dealt(&problem), None, "{problem:?}");
    }
    for problem in [
        // 192: a block for each multiprocessor would be a warp for each scheduler.
        problem(8, 2048, 1536, 16),
        problem(16, 197, 512, 16),
        problem(32, 60, 512, 16),
        Problem { seq_idx: true, ..problem(64, 197, 768, 16) },
        // More sweeps than one follow one another.
        problem(4, 4096, 5120, 64),
        // Units, and rows, that end within a block of two lanes.
        halves(832),
        problem(232, 130, 96, 16),
        // Each element is made by one lane.
        block(64, 197, 768, 16),
        bf16(block(64, 197, 768, 16)),
        // Eight states want more registers than there are.
        Problem { method: Method::Highorder, ..problem(64, 197, 768, 16) },
        // The code of two and of four lanes is more than a multiprocessor has in its cache.
        Problem { method: Method::Rk4, ..problem(4, 4096, 5120, 16) },
    ] {
        assert_eq!(dealt(&problem), Some((4, 0)), "{problem:?}");
    }
    // 320, 288, 576 and 960 would be more for some multiprocessors than 640, 576, 1152 and 1920 of four lanes.
    for (problem, beside) in [
        (problem(4, 4096, 5120, 16), 264),
        (problem(12, 2048, 1536, 16), 264),
        (problem(24, 2048, 1536, 16), 528),
        (problem(80, 197, 768, 16), 924),
        (Problem { method: Method::Bilinear, ..problem(80, 197, 768, 16) }, 924),
        (Problem { b: Projection::PerFrame { groups: 2 }, ..problem(133, 133, 128, 16) }, 264),
    ] {
        assert_eq!(dealt(&problem), Some((4, beside)), "{problem:?}");
    }
}

#[test]
fn tiles_of_long_walks_are_half_as_long() {
    let tile_of = |problem: &Problem| device(90).forward(problem).bulk.map(|bulk| bulk.layout.tile);
    let of = |method, coefficients| Problem { method, coefficients, ..problem(8, 2048, 1536, 16) };
    for &method in Method::ALL {
        let is_long = [Method::Foh, Method::Poly, Method::Highorder].contains(&method);
        assert_eq!(
            tile_of(&of(method, Coefficients::Exact)),
            Some(if is_long { 16 } else { 32 }),
            "{method:?}"
        );
        if method.has_taylor() {
            assert_eq!(tile_of(&of(method, Coefficients::Taylor)), Some(32), "{method:?}");
        }
    }
    assert_eq!(tile_of(&Problem { method: Method::Foh, ..problem(64, 197, 768, 16) }), Some(8));
}

#[test]
fn tiles_of_short_rows_are_whole_spans_and_leave_few_frames_over() {
    let h200 = device(90);
    let tile_of = |batch, seq| h200.forward(&problem(batch, seq, 512, 16)).bulk.map(|bulk| bulk.layout.tile);
    for seq in 1..128 {
        let tile = tile_of(13, seq);
        match seq {
            ..16 => assert_eq!(tile, None, "{seq} frames"),
            16..=64 => {
                assert!(tile.is_some_and(|tile| tile % 4 == 0 && seq % tile <= 7), "{seq} frames: {tile:?}")
            }
            _ => assert_eq!(tile, Some(32), "{seq} frames"),
        }
    }
    assert_eq!(tile_of(32, 60), Some(20));
}

#[test]
fn sequences_that_the_cache_has_no_room_for_go_past_it() {
    let streams = |device: &Properties, problem: &Problem| {
        let mut all = configurations(device, problem, Pass::Backward).into_iter();
        all.any(|kernel| kernel.streams)
    };
    let h200 = device(90);
    let (window, profile) = (problem(32, 60, 512, 16), problem(8, 1024, 512, 16));
    // 20 and 84 MB, of which the caches hold 50 and 5.5.
    assert!(streams(&h200, &profile) && !streams(&h200, &window));
    assert!(streams(&device(75), &window));
    for slower_so in [
        bf16(profile.clone()),
        Problem { method: Method::Rk4, ..profile.clone() },
        Problem { state: 64, ..profile.clone() },
        Problem { bidirectional: true, ..profile },
    ] {
        assert!(!streams(&h200, &slower_so), "{slower_so:?}");
    }
}

#[test]
fn the_backward_pass_takes_a_tenth_of_its_inputs() {
    for pass in [Pass::Backward, Pass::BackwardFromBoundaryStates] {
        bounds::backward_takes_a_tenth(|problem| device(90).workspace_bytes(problem, pass));
    }
}

/// backward.cu finds a tile's chunk by its number, and where it lies by that alone.
#[test]
fn backward_chunks_are_whole_tiles_and_pieces_begin_with_one() {
    let lengths = || (1..=130).chain([197, 1000, 1024, 2047, 2048, 2500, 4096, 65_536]);
    let of_lengths = |problem: Problem| lengths().map(move |seq| Problem { seq, ..problem.clone() });
    let (mut begins, mut within, mut joins, mut borrow) = ([0; 2], [0; 2], [0; 2], [0; 2]);
    for architecture in [75, 86, 90] {
        for problem in problems().into_iter().flat_map(of_lengths) {
            let seq = problem.seq;
            let plan = device(architecture).backward(&problem, true);
            let (tile, of_tiles) = (plan.layout.tile, plan.tiles() * plan.layout.tile);
            assert!(of_tiles == plan.chunk || plan.chunks == 1 && of_tiles >= seq, "{problem:?}: {plan:?}");
            let unit = if plan.chunk == tile && !plan.has_pieces() { 4 } else { tile };
            assert!(plan.segments == 1 || plan.segment.is_multiple_of(unit), "{problem:?}: {plan:?}");
            assert!(plan.segments <= plan.chunks, "{problem:?}: {plan:?}");
            begins[usize::from(plan.segments > 1 && !plan.segment.is_multiple_of(plan.chunk))] += 1;
            within[usize::from(plan.begins_within_tiles())] += 1;
            joins[usize::from(plan.joins_adjoints)] += usize::from(plan.segments > 1);
            borrow[usize::from(plan.da_borrows)] += 1;
            // What is borrowed lies as sums of dA do: one set for each row and segment.
            let is_alike = plan.rows_per_block == 1 && problem.state <= plan.layout.slots();
            assert!(!plan.da_borrows || is_alike && plan.hands_on(), "{problem:?}: {plan:?}");
            check_pieces(&problem, &plan, true);
            check_pieces(&problem, &plan, false);
            for piece in plan.pieces(&problem, true, true) {
                assert!(piece.first.is_multiple_of(tile), "{problem:?}: {piece:?} of {plan:?}");
                // Elsewhere sums of dB and dC lie where those of dA do.
                let apart = !plan.da_borrows || piece.in_gradients || piece.first == 0;
                assert!(apart, "{problem:?}: {piece:?} of {plan:?}");
            }
            assert!(!device(architecture).backward(&problem, false).da_borrows, "{problem:?}");
        }
    }
    assert!(!begins.contains(&0), "segments begin with chunks, or within some: {begins:?}");
    assert!(!within.contains(&0), "segments begin with tiles, or within some: {within:?}");
    assert!(!joins.contains(&0), "blocks join adjoint chunks, or these are scanned: {joins:?}");
    assert!(!borrow.contains(&0), "sums of dA borrow their room, or have their own: {borrow:?}");
}

/// Pieces cover each segment, from its end to its beginning, and there is room for what they leave.
fn check_pieces(problem: &Problem, plan: &BackwardPlan, aligned: bool) {
    let real = if problem.element == ElementType::F64 { 8 } else { 4 };
    let sums = plan.contributions(problem) * plan.layout.slots() * problem.components() * real;
    let frame = problem.dim * problem.element.size();
    let (mut left, mut left_of_last) = (plan.segment, plan.last_segment(problem));
    for piece in plan.pieces(problem, true, aligned) {
        let Piece { first, frames, last_first, last_frames, in_gradients } = piece;
        let covers = first + frames == left && last_first + last_frames == left_of_last && frames > 0;
        assert!(covers, "{problem:?}: {piece:?} of {plan:?}");
        let fits = match in_gradients {
            true => frames * sums <= first * frame && last_frames * sums <= last_first * frame,
            false => frames <= plan.piece && last_frames <= plan.last_in_workspace(problem),
        };
        let is_tile = last_first.is_multiple_of(plan.layout.tile) || last_frames == 0;
        assert!(fits && is_tile, "{problem:?}: {piece:?} of {plan:?}");
        (left, left_of_last) = (first, last_first);
    }
    assert!(left == 0 && left_of_last == 0, "{problem:?}: {plan:?}");
}

/// The kernels of such rows find marks of one chunk alone.
#[test]
fn rows_of_one_chunk_are_one_segment() {
    let h200 = device(90);
    for (batch, dim) in (1..200).flat_map(|batch| [(batch, 256), (batch, 1024)]).chain([(270, 24)]) {
        for seq in 33..=64 {
            let problem = packed(problem(batch, seq, dim, 16));
            let plan = h200.backward(&problem, true);
            assert!(plan.chunks == 1 && plan.segments == 1, "{problem:?}: {plan:?}");
        }
    }
}

#[test]
fn problems_whose_last_segment_is_to_be_short_have_such() {
    let (mut waits, mut has_none, mut has_more) = ([0; 2], [0; 2], [0; 2]);
    for problem in ending_short() {
        let plan = device(90).backward(&problem, true);
        assert!(plan.ends_short(&problem), "{problem:?}: {plan:?}");
        for piece in plan.pieces(&problem, true, true) {
            waits[usize::from(piece.in_gradients)] += 1;
            has_none[usize::from(piece.last_frames == 0)] += 1;
            has_more[usize::from(piece.last_frames > piece.frames)] += 1;
        }
    }
    assert!(!waits.contains(&0), "sums wait in gradients, or in the workspace: {waits:?}");
    assert!(!has_none.contains(&0), "launches cover some of the last segment, or nothing: {has_none:?}");
    assert!(!has_more.contains(&0), "and less of it than of the others, or more: {has_more:?}");
}

/// Where that is the faster (bench/NOTES.md, "A short last segment"): 320 blocks of 396, but not 80 on 76 places.
#[test]
fn the_last_segment_is_short_where_blocks_leave_places() {
    let segments = |batch, seq, dim| {
        let of = |problem: Problem| {
            let plan = device(90).backward(&problem, true);
            (plan.segments, plan.segment, plan.ends_short(&problem))
        };
        [problem(batch, seq, dim, 16), bf16(problem(batch, seq, dim, 16)), block(batch, seq, dim, 16)].map(of)
    };
    assert_eq!(segments(4, 4096, 5120), [(2, 3360, true); 3]);
    assert_eq!(segments(4, 1024, 5120), [(2, 832, true); 3]);
    assert_eq!(segments(2, 8192, 2560), [(8, 1024, false); 3]);
    assert_eq!(segments(8, 2048, 1536), [(2, 1024, false); 3]);
}

#[test]
fn problems_that_are_to_borrow_do() {
    let ends_early = borrowing().into_iter().map(|problem| {
        let plan = device(90).backward(&problem, true);
        assert!(plan.da_borrows && plan.has_pieces(), "{problem:?}: {plan:?}");
        let latest = plan.pieces(&problem, true, true).next().expect("a piece");
        plan.segment * (plan.segments - 1) + latest.first >= problem.seq
    });
    let ends_early: Vec<_> = ends_early.collect();
    assert!(ends_early.contains(&true) && ends_early.contains(&false), "{ends_early:?}");
}

#[test]
fn problems_whose_blocks_are_to_join_adjoint_chunks_have_more_than_they_read_at_a_time() {
    let orders = joining().into_iter().map(|problem| {
        let plan = device(90).backward(&problem, true);
        let joined = (problem.seq - plan.segment).div_ceil(plan.adjoint_chunk);
        assert!(plan.joins_adjoints && joined > 3, "{problem:?}: {plan:?}");
        plan.layout.orders
    });
    assert_eq!(orders.collect::<BTreeSet<_>>(), BTreeSet::from([1, 2, 4]));
    assert!(joining().iter().any(|problem| problem.dim % 2 == 1));
}

/// Where that is the faster (bench/NOTES.md, "What blocks join"): of 15 chunks each not where blocks are many, nor where products of
/// decays are as much again.
#[test]
fn blocks_join_adjoint_chunks_where_they_read_little() {
    let joins = |problem: Problem| device(90).backward(&problem, true).joins_adjoints;
    assert!(joins(problem(1, 1024, 1536, 16)));
    assert!(!joins(problem(5, 1024, 512, 16)) && !joins(by(Method::Bilinear, problem(1, 1024, 1536, 16))));
}

#[test]
fn sums_of_projections_are_shared_by_all_numbers_of_threads() {
    let sharers: BTreeSet<_> = summing()
        .iter()
        .flat_map(|problem| configurations(&device(90), problem, Pass::BackwardFromBoundaryStates))
        .filter(|kernel| kernel.program == Program::Reduce)
        .map(|kernel| kernel.sharers)
        .collect();
    assert_eq!(sharers, BTreeSet::from([1, 2, 4, 8]));
}

#[test]
fn problems_whose_segments_are_to_begin_within_tiles_do() {
    for problem in within_tiles() {
        let plan = device(90).backward(&problem, true);
        assert!(plan.begins_within_tiles() && !plan.has_pieces(), "{problem:?}: {plan:?}");
    }
    assert!(within_tiles().iter().any(|problem| device(90).backward(problem, true).da_borrows));
}

/// ROW_IS_TILE of backward.cu. All blocks of such rows run at a time, so that no other row is left for one.
#[test]
fn a_block_whose_row_is_one_tile_walks_no_other() {
    let (h200, mut counts) = (device(90), [0; 2]);
    for batch in [1, 4, 16, 32, 33, 64, 512, 4096] {
        for seq in [20, 32, 33, 60, 64] {
            let problem = problem(batch, seq, 512, 16);
            let plan = h200.backward(&problem, true);
            let row_is_tile = plan.layout.tile > 32 || plan.layout.parts > 1;
            let run_at_a_time = batch * plan.contributions(&problem) <= 2 * h200.multiprocessors;
            assert!(!row_is_tile || plan.rows_per_block == 1 && run_at_a_time, "{batch} × {seq}: {plan:?}");
            counts[usize::from(row_is_tile)] += 1;
        }
    }
    assert!(!counts.contains(&0), "rows are one tile, or not known to be: {counts:?}");
}

/// A program that is cut over devices, or vectorized, asks for a part what it was told of the whole, or the other way round
/// (`selective_scan_jax`, docs/xla.md).
#[test]
fn states_are_kept_as_often_for_any_batch_and_dim() {
    // By either backend.
    let kept = |problem: &Problem| [cuda::boundary_shape(problem)[2], cpu::boundary_shape(problem)[2]];
    for of_kind in problems() {
        for seq in [60, 65, 2047, 2048, 4096, 65_536] {
            let whole = Problem { seq, ..of_kind.clone() };
            let parts = [(1, 1), (1, 8), (2, 1), (8, 3), (64, 40)];
            for (rows, channels) in parts {
                let part = Problem { batch: rows, dim: channels * whole.dim, ..whole.clone() };
                assert_eq!(
                    kept(&part),
                    kept(&whole),
                    "{whole:?}: {rows} rows, {channels} times the channels"
                );
            }
        }
    }
}

/// As many as there are multiprocessors; by longer walks twice as many.
#[test]
fn rows_are_in_parts_where_blocks_are_few() {
    let parts = |games, method| {
        let problem = Problem { method, ..problem(games, 60, 512, 16) };
        device(90).backward(&problem, true).layout.parts
    };
    let of_games = |method| [3, 4, 5].map(|games| parts(games, method));
    assert_eq!(of_games(Method::Zoh), [8, 8, 1]);
    assert_eq!(of_games(Method::Foh), [8, 8, 1]);
    assert_eq!(parts(2, Method::Foh), 8);
}

/// The version of a driver of CUDA 13.0.
const DRIVER: i32 = 13000;

fn one_kernel() -> Configuration {
    configurations(&device(90), &problem(1, 1, 1, 1), Pass::Forward)[0]
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("exphil_native_{name}_{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_cache_that_is_torn_or_cannot_be_written_does_no_harm() {
    if compiler().is_none() {
        return;
    }
    let folder = folder("cache");
    let kernel = one_kernel();
    let load = |images: &Images| images.load(&kernel, |image| Ok(image.to_vec())).unwrap();
    let images = Images::at(90, DRIVER, Some(folder.clone()), None);
    let image = load(&images);

    let files = || std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    let [file] = &files()[..] else { panic!("one kernel, one file: {:?}", files()) };
    let kept = std::fs::read(file).unwrap();
    for torn in [&kept[..kept.len() / 2], &[], &[&kept[..], b"more"].concat()[..]] {
        std::fs::write(file, torn).unwrap();
        assert!(load(&images) == image);
        assert!(std::fs::read(file).unwrap() == kept, "compiled anew and kept");
    }
    // A file stands where the folder should be.
    let images = Images::at(90, DRIVER, Some(file.join("nowhere")), None);
    assert!(load(&images) == image);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn machine_code_that_the_driver_refuses_is_replaced_by_ptx_which_is_kept() {
    if compiler().is_none() {
        return;
    }
    let folder = folder("refused");
    let images = Images::at(90, DRIVER, Some(folder.clone()), None);
    let is_ptx = |image: &[u8]| image.starts_with(b"//");
    let refuse =
        || Error::Failed { operation: "loading".into(), reason: "too new".into(), remedy: "none".into() };
    let only_ptx = |image: &[u8]| if is_ptx(image) { Ok(image.to_vec()) } else { Err(refuse()) };
    images.load(&one_kernel(), |_| Err::<(), _>(refuse())).unwrap_err();
    let image = images.load(&one_kernel(), only_ptx).unwrap();
    // From the disk now, where the first image that comes is taken.
    assert!(images.load(&one_kernel(), |image| Ok(image.to_vec())).unwrap() == image);
    // Where that is refused, too, the kernel is compiled anew.
    let others = |other: &[u8]| if other == image { Err(refuse()) } else { Ok(other.to_vec()) };
    assert!(!is_ptx(&images.load(&one_kernel(), others).unwrap()));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn each_packed_kernel_has_a_text_of_its_own() {
    let folder = folder("texts");
    let file = folder.join("kernels.pack");
    let kernel = |tiles: usize| Configuration { tiles, ..one_kernel() };
    let text = |tiles: usize| format!("{}\0", format!("a text of {tiles} tiles").repeat(tiles)).into_bytes();
    let kernels: Vec<_> = (0..100).map(|tiles| (kernel(tiles), target(90), text(tiles))).collect();
    pack(&file, &kernels, compress).unwrap();
    for tiles in 0..100 {
        assert!(unpack(&file, &kernel(tiles), 90).unwrap() == text(tiles), "{tiles}");
    }
    assert!(unpack(&file, &kernel(100), 90).is_none() && unpack(&file, &kernel(0), 75).is_none());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn packed_kernels_go_before_nvrtc_where_they_are_as_fast() {
    let compiles = compiler().is_some();
    let folder = folder("order");
    let (file, kernel, text) = (folder.join("kernels.pack"), one_kernel(), b"text\0".to_vec());
    let kernels = [75, 90].map(|architecture| (kernel, target(architecture), text.clone()));
    pack(&file, &kernels, compress).unwrap();
    let load = |architecture, driver, refused: &[u8]| {
        let images = Images::at(architecture, driver, None, Some(file.clone()));
        let refuse = || Error::Failed { operation: "".into(), reason: "no text".into(), remedy: "".into() };
        let take = |image: &[u8]| if image == refused { Err(refuse()) } else { Ok(image.to_vec()) };
        images.load(&kernel, take)
    };
    assert!(load(90, DRIVER, b"").unwrap() == text);
    assert!(load(120, DRIVER, b"").unwrap() == text);
    // It is kept, so that the pack is not unpacked again.
    let cache = folder.join("cache");
    let bytes = |images: Images| images.load(&kernel, |image| Ok(image.to_vec()));
    bytes(Images::at(90, DRIVER, Some(cache.clone()), Some(file.clone()))).unwrap();
    assert!(bytes(Images::at(90, DRIVER, Some(cache), None)).unwrap() == text);
    // What the driver does not take is compiled after all.
    assert!(load(90, DRIVER, &text).is_ok_and(|image| image != text) == compiles);
    for (architecture, driver) in [(90, 12090), (89, DRIVER), (75, DRIVER)] {
        let image = load(architecture, driver, b"").unwrap();
        assert!((image != text) == compiles, "{architecture}, {driver}");
    }
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
    let mut left = vec!["kernels".to_owned(), "src/cuda".to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(root.join(&directory)).unwrap().map(Result::unwrap) {
            let name = format!("{directory}/{}", entry.file_name().display());
            let to = if entry.file_type().unwrap().is_dir() { &mut left } else { &mut found };
            to.push(name);
        }
    }
    found.sort();
    assert_eq!(found, listed, "tests/gpu/sources.rs lists all sources of the backend, sorted");

    let record = std::fs::read_to_string(root.join("../../test/gpu/record.json")).unwrap();
    assert!(
        record.contains(&sources::hash()),
        "kernels/ or src/cuda/ changed since the GPU tests were last run and recorded in test/gpu/record.json"
    );
}

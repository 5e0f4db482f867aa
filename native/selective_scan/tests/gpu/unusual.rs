//! Shapes at the ends of what is allowed.

use selective_scan::cuda::Pass;
use selective_scan::cuda::compile::Program;
use selective_scan::{Coefficients, ElementType, Method, Problem, Projection};

use crate::correctness::{all, check, check_forward, check_kept, check_y};
use crate::on_device::OnDevice;
use crate::shapes::{bf16, block, both, by, f64, packed, problem, reversed};
use crate::support::devices::{has_kernel, shares_strips};
use crate::support::random;
use crate::{device, forward};

fn grouped(b: usize, c: usize, problem: Problem) -> Problem {
    Problem { b: Projection::PerFrame { groups: b }, c: Projection::PerFrame { groups: c }, ..problem }
}

fn initial_state(problem: Problem) -> Problem {
    Problem { initial_state: true, ..problem }
}

/// A pass over any of these problems has this kernel or, where the device has no use for it, over none. Which devices have is said
/// without one (cuda_kernels.rs).
fn assert_all_or_none(problems: &[Problem], pass: Pass, program: Program) {
    let device = device().properties();
    let (with, without): (Vec<_>, Vec<_>) =
        problems.iter().partition(|problem| has_kernel(&device, problem, pass, program));
    assert!(with.is_empty() || without.is_empty(), "{program:?} is in {pass:?} over all but {without:?}");
}

/// Channels that forget at once, by such a rate, but over frames of zero Δ, as which the engine brings those that the last tile lacks.
fn check_forgetting(problem: Problem, rate: f32) {
    let mut case = random::case(problem, 1);
    case.inputs.a[..4 * 16 * 4].copy_from_slice(&rate.to_ne_bytes().repeat(4 * 16));
    check_forward(&case, &case.forward(forward)).unwrap();
}

/// What the device copies the tiles of by itself, if it can: large enough problems, with last tiles of all kinds.
pub fn copied_tiles(quick: bool) {
    let series = |problem| Problem { coefficients: Coefficients::Taylor, ..problem };
    let problems = [
        initial_state(problem(7, 50, 960, 16)),
        initial_state(block(7, 50, 960, 16)),
        problem(30, 128, 128, 16),
        reversed(initial_state(problem(4, 129, 960, 16))),
        reversed(initial_state(block(7, 50, 960, 16))),
        both(initial_state(problem(3, 133, 1280, 16))),
        problem(4, 129, 960, 16),
        initial_state(problem(4, 197, 960, 16)),
        packed(initial_state(problem(7, 200, 960, 16))),
        // Several sweeps, the last of which has few states.
        initial_state(problem(7, 133, 960, 36)),
        // Rows and blocks that end within a box.
        initial_state(problem(9, 157, 900, 12)),
        problem(180, 130, 36, 16),
        initial_state(grouped(4, 2, problem(4, 150, 1024, 16))),
        grouped(2, 8, problem(4, 188, 1024, 16)),
        by(Method::Bilinear, initial_state(problem(4, 151, 1000, 16))),
        by(Method::Rk4, problem(8, 140, 1000, 16)),
        packed(problem(1, 5000, 256, 16)),
        // Short rows: three whole tiles, and a last one that lacks frames, as in the first problem, too.
        problem(13, 60, 512, 16),
        problem(8, 33, 840, 12),
        grouped(2, 4, problem(7, 64, 1024, 16)),
        packed(problem(13, 60, 512, 16)),
        packed(block(8, 33, 840, 16)),
        bf16(packed(block(13, 60, 512, 16))),
        by(Method::Foh, packed(problem(13, 60, 512, 16))),
        by(Method::Highorder, bf16(packed(block(8, 63, 840, 16)))),
        // Those between them and the others, of several sweeps, too.
        problem(8, 100, 840, 12),
        packed(block(7, 66, 960, 16)),
        problem(7, 90, 960, 24),
        problem(264, 70, 36, 16),
        // Two lanes a channel, where channels fill the device evenly: blocks that end within a box, groups, several sweeps.
        initial_state(problem(264, 130, 36, 16)),
        grouped(2, 1, problem(132, 133, 128, 16)),
        by(Method::Rk4, problem(264, 140, 36, 24)),
        // In short rows, too, of which tiles of four lanes would leave frames over.
        initial_state(problem(32, 45, 512, 16)),
        by(Method::Bilinear, grouped(2, 1, problem(34, 50, 512, 16))),
        by(Method::Rk4, problem(22, 64, 768, 16)),
        // Two lanes beside four: one row is of both, or the last of four alone.
        initial_state(problem(9, 130, 1920, 16)),
        by(Method::Bilinear, grouped(2, 1, problem(133, 133, 128, 16))),
        // Two lanes of elements of 16 bits.
        bf16(initial_state(problem(264, 130, 56, 16))),
        Problem { element: ElementType::F16, ..grouped(2, 1, problem(132, 133, 128, 16)) },
        bf16(problem(1, 3800, 4352, 16)),
        // More is done to elements than the scan: all of it, and some; tiles of all kinds.
        block(30, 128, 128, 16),
        Problem { dt_limit: Some([0.01, 0.1]), ..block(4, 129, 960, 12) },
        grouped(4, 2, block(4, 197, 1024, 16)),
        packed(initial_state(block(7, 200, 960, 16))),
        Problem { d: true, ..problem(13, 60, 512, 16) },
        Problem { z: true, method: Method::Bilinear, ..problem(9, 157, 900, 16) },
        Problem { dt_softplus: true, method: Method::Rk4, ..packed(problem(9, 140, 1000, 16)) },
        Problem { dt_bias: true, ..problem(180, 130, 36, 16) },
        initial_state(block(1, 1500, 384, 16)),
        packed(block(1, 3800, 256, 16)),
        initial_state(block(4, 157, 960, 16)),
        Problem { dt_limit: Some([0.01, 0.5]), ..problem(13, 60, 512, 16) },
        bf16(block(1, 3800, 512, 16)),
        bf16(initial_state(block(8, 63, 840, 16))),
        bf16(Problem { d: true, ..problem(13, 64, 512, 16) }),
        bf16(packed(grouped(2, 8, block(7, 188, 1024, 16)))),
        Problem { element: ElementType::F16, dt_limit: Some([0.0, 0.05]), ..block(13, 60, 512, 16) },
        // Long walks, in tiles of half as many frames, whole ones and others: of all numbers of lanes and sweeps, packed, in short rows,
        // in chunks. And those of zoh_exact and of series, in tiles of the usual length.
        by(Method::Foh, initial_state(problem(7, 133, 960, 36))),
        by(Method::Highorder, initial_state(problem(4, 197, 960, 16))),
        by(Method::Highorder, packed(block(7, 200, 960, 16))),
        by(Method::Highorder, block(13, 60, 512, 16)),
        by(Method::Poly, packed(initial_state(problem(7, 205, 960, 12)))),
        by(Method::Foh, problem(13, 60, 512, 16)),
        by(Method::Poly, initial_state(block(8, 63, 840, 16))),
        by(Method::Foh, grouped(2, 1, problem(132, 133, 128, 16))),
        by(Method::Foh, bf16(initial_state(problem(264, 130, 56, 16)))),
        by(Method::Highorder, bf16(block(7, 157, 960, 16))),
        by(Method::Foh, initial_state(problem(1, 1500, 384, 16))),
        by(Method::Highorder, problem(1, 2301, 384, 16)),
        by(Method::Poly, problem(1, 1024, 384, 16)),
        by(Method::ZohExact, initial_state(problem(4, 197, 960, 16))),
        by(Method::ZohExact, packed(block(13, 60, 512, 16))),
        by(Method::ZohExact, initial_state(problem(264, 130, 36, 16))),
        by(Method::ZohExact, problem(1, 3800, 512, 16)),
        series(by(Method::Foh, initial_state(problem(4, 140, 1000, 16)))),
        series(by(Method::Highorder, block(4, 140, 1000, 16))),
        // Chunks that are joined, and chunks that prefix.cu joins.
        initial_state(problem(1, 1500, 384, 16)),
        initial_state(problem(1, 3800, 512, 16)),
        problem(1, 12000, 256, 32),
        initial_state(problem(1, 6000, 512, 16)),
        packed(problem(1, 6000, 512, 16)),
        // Against the order of frames, where the tile that lacks frames begins before the tensor: of all numbers of lanes and sweeps, with
        // swizzles of all kinds, in short rows, in chunks; and both ways.
        reversed(initial_state(problem(9, 157, 900, 12))),
        reversed(packed(initial_state(problem(7, 200, 960, 16)))),
        reversed(initial_state(problem(7, 133, 960, 36))),
        reversed(initial_state(problem(264, 130, 36, 16))),
        reversed(bf16(initial_state(problem(264, 130, 56, 16)))),
        reversed(problem(9, 130, 1920, 16)),
        reversed(initial_state(problem(7, 50, 960, 16))),
        reversed(packed(problem(13, 60, 512, 16))),
        reversed(grouped(4, 2, block(4, 197, 1024, 16))),
        reversed(packed(block(7, 66, 960, 16))),
        reversed(bf16(packed(block(8, 63, 840, 16)))),
        reversed(by(Method::Highorder, bf16(block(7, 157, 960, 16)))),
        reversed(by(Method::Foh, initial_state(problem(132, 133, 128, 16)))),
        reversed(initial_state(problem(1, 3800, 512, 16))),
        reversed(packed(problem(1, 6000, 512, 16))),
        reversed(bf16(block(1, 3800, 512, 16))),
        both(reversed(problem(7, 133, 960, 36))),
        both(packed(initial_state(problem(7, 200, 960, 16)))),
        both(by(Method::Poly, grouped(2, 1, problem(132, 133, 128, 16)))),
        both(problem(1, 3800, 512, 16)),
    ];
    assert_all_or_none(&problems, Pass::Forward, Program::Bulk);
    let some = if quick { 6 } else { problems.len() };
    all(problems.into_iter().take(some).enumerate().collect(), |(seed, problem)| {
        check_kept(&random::case(problem, seed as u64))
    });
    if !quick {
        // Where only what chunks come to is found in copied tiles: other gains beside the same decays, a gate, and, from the inputs
        // alone, elements of 16 bits in several sweeps.
        let kept = [
            by(Method::Highorder, problem(1, 1001, 1024, 16)),
            Problem { z: true, d: true, ..problem(1, 1500, 1664, 16) },
            // The last adjoint chunk lacks frames of a tile, and of a step.
            by(Method::Rk4, initial_state(problem(1, 1501, 1664, 16))),
            grouped(2, 4, problem(1, 1517, 1664, 12)),
            reversed(initial_state(problem(1, 1501, 1664, 16))),
            both(problem(1, 1501, 1664, 16)),
        ];
        all(kept.into(), |problem| check_kept(&random::case(problem, 1)));
        let from_inputs = [
            problem(1, 2300, 1024, 16),
            bf16(problem(1, 2310, 1024, 24)),
            by(Method::Highorder, bf16(problem(1, 2310, 1024, 16))),
            reversed(problem(1, 2310, 1024, 16)),
            both(problem(1, 2310, 1024, 16)),
        ];
        all(from_inputs.into(), |problem| check(&random::case(problem, 1)));
    }
    sequences_in_short_rows(quick);
    // A last tile that is walked whole, as nobody wants the states after it.
    let lacking = [block(7, 95, 960, 16), block(4, 157, 960, 16), bf16(block(8, 157, 840, 16))];
    all(lacking.into(), |problem| check_y(&random::case(problem, 1)));
    let with_d = Problem { d: true, ..problem(4, 157, 960, 16) };
    let plain = problem(4, 157, 960, 16);
    for problem in [reversed(plain.clone()), plain, with_d, packed(problem(7, 157, 960, 16))] {
        check_forgetting(problem, f32::NEG_INFINITY);
    }
}

/// Rows that warps hand the state on in, from tile to tile.
pub fn relays(quick: bool) {
    let problems = [
        initial_state(problem(1, 333, 40, 16)),
        initial_state(block(2, 420, 20, 12)),
        by(Method::Bilinear, initial_state(problem(1, 333, 40, 16))),
        bf16(initial_state(block(1, 333, 40, 16))),
        // Half of each direction is added to the other.
        both(packed(problem(1, 400, 40, 16))),
        // Last tiles of all kinds, and rows of fewer tiles than there are warps.
        problem(1, 400, 24, 8),
        problem(3, 193, 24, 4),
        problem(3, 97, 20, 16),
        problem(1, 2300, 1000, 16),
        grouped(2, 4, problem(2, 300, 64, 16)),
        grouped(4, 1, bf16(block(2, 300, 64, 16))),
        // Two and three blocks a multiprocessor.
        initial_state(problem(2, 401, 1024, 16)),
        initial_state(block(1, 350, 2304, 16)),
        problem(6, 330, 512, 16),
        by(Method::Foh, initial_state(problem(5, 399, 512, 16))),
        Problem { element: ElementType::F16, ..initial_state(block(5, 390, 512, 16)) },
        Problem { d: true, ..problem(1, 350, 48, 16) },
        Problem { z: true, method: Method::Rk4, ..problem(1, 350, 48, 16) },
        Problem { dt_limit: Some([0.01, 0.1]), ..initial_state(problem(1, 350, 48, 16)) },
        Problem { dt_softplus: true, ..bf16(problem(1, 350, 48, 16)) },
        by(Method::ZohExact, initial_state(block(1, 365, 48, 16))),
        by(Method::Poly, initial_state(problem(1, 365, 48, 16))),
        by(Method::Highorder, initial_state(block(1, 365, 48, 16))),
        by(Method::Highorder, bf16(initial_state(problem(2, 365, 1024, 16)))),
        by(Method::Rk4, initial_state(block(2, 365, 1024, 16))),
        Problem { coefficients: Coefficients::Taylor, ..by(Method::Foh, problem(1, 365, 48, 16)) },
        // Packed rows.
        packed(initial_state(problem(1, 333, 40, 16))),
        packed(initial_state(block(2, 420, 20, 12))),
        packed(bf16(initial_state(block(1, 420, 40, 16)))),
        packed(grouped(2, 4, problem(1, 500, 1024, 16))),
        packed(by(Method::Bilinear, initial_state(problem(1, 365, 48, 16)))),
        packed(by(Method::Highorder, block(1, 365, 48, 16))),
        // Against the order of frames, and both ways, and more states than a sweep has.
        reversed(initial_state(problem(1, 333, 40, 16))),
        reversed(block(1, 400, 20, 12)),
        reversed(packed(initial_state(problem(1, 403, 40, 16)))),
        reversed(packed(bf16(block(1, 333, 40, 16)))),
        reversed(by(Method::Poly, bf16(initial_state(block(1, 365, 48, 16))))),
        both(initial_state(problem(1, 333, 40, 16))),
        initial_state(problem(1, 333, 40, 36)),
        by(Method::Rk4, reversed(packed(initial_state(problem(1, 365, 48, 32))))),
        both(reversed(grouped(2, 1, problem(1, 400, 48, 40)))),
    ];
    assert_all_or_none(&problems, Pass::Forward, Program::Relay);
    let some = if quick { 5 } else { problems.len() };
    all(problems.into_iter().take(some).enumerate().collect(), |(seed, problem)| {
        check_kept(&random::case(problem, seed as u64))
    });
    // Where a backward pass has its states from the inputs by the same kernel.
    let from_inputs = [
        problem(1, 333, 40, 16),
        reversed(initial_state(block(1, 333, 40, 16))),
        bf16(packed(initial_state(block(1, 400, 40, 16)))),
    ];
    assert_all_or_none(&from_inputs, Pass::Backward, Program::Relay);
    // A backward pass of all its states at a time beside a forward pass of several.
    let from_inputs =
        from_inputs.into_iter().chain([problem(1, 128, 24, 32), packed(problem(1, 128, 24, 20))]);
    all(from_inputs.collect(), |problem| check(&random::case(problem, 1)));
    marked_tiles(quick);
    shared_strips(quick);
    // Nobody wants the state after the row, whose last tile lacks frames.
    check_y(&random::case(block(1, 333, 40, 16), 1)).unwrap();
    for rate in [f32::NEG_INFINITY, -3e38] {
        for problem in [problem(1, 333, 40, 16), block(1, 333, 40, 16), packed(problem(1, 333, 40, 16))] {
            check_forgetting(problem, rate);
        }
    }
    // States that would grow beyond all numbers, if there were any: here, and where chunks are joined by blocks and by prefix.cu.
    for problem in
        [problem(1, 333, 40, 16), problem(1, 60, 40, 16), problem(1, 1500, 384, 16), problem(1, 6000, 64, 16)]
    {
        let case = random::growing_from_zero(problem, 6.0);
        check_forward(&case, &case.forward(forward)).unwrap();
    }
}

/// Rows of so many channels that blocks of relay.cu begin and end within their strips.
fn shared_strips(quick: bool) {
    let problems = [
        initial_state(problem(1, 420, 1072, 16)),
        packed(bf16(initial_state(block(3, 600, 400, 16)))),
        // Of several rows, and of fewer tiles than a block has warps.
        initial_state(block(45, 470, 24, 12)),
        by(Method::Foh, initial_state(problem(1, 200, 1072, 16))),
        grouped(2, 4, problem(1, 700, 1536, 16)),
        // The last block has few tiles left.
        reversed(initial_state(problem(1, 790, 1100, 16))),
        packed(reversed(problem(2, 801, 600, 16))),
        both(initial_state(problem(1, 450, 1304, 16))),
        packed(initial_state(problem(1, 450, 1304, 36))),
        by(Method::Highorder, bf16(initial_state(block(1, 450, 1304, 16)))),
        by(Method::Bilinear, initial_state(problem(5, 450, 260, 16))),
        by(Method::Poly, packed(block(1, 450, 1304, 16))),
        Problem { element: ElementType::F16, ..by(Method::Foh, problem(1, 450, 2240, 16)) },
    ];
    // A backward pass that has its states from the inputs so.
    let from_inputs = problem(1, 450, 1304, 16);
    let device = device().properties();
    let shares = |problem: &Problem, pass| shares_strips(&device, problem, pass);
    if device.tensor_maps && device.multiprocessors == 132 {
        let without: Vec<_> = problems.iter().filter(|problem| !shares(problem, Pass::Forward)).collect();
        assert!(without.is_empty(), "no strips are shared in {without:#?}");
        assert!(shares(&from_inputs, Pass::Backward), "{from_inputs:?}");
    }
    let some = if quick { 4 } else { problems.len() };
    all(problems.into_iter().take(some).enumerate().collect(), |(seed, problem)| {
        check_kept(&random::case(problem, seed as u64))
    });
    check(&random::case(from_inputs, 1)).unwrap();
    // States that are infinitely fast.
    check_forgetting(problem(1, 423, 1072, 16), f32::NEG_INFINITY);
    check_no_token_is_left(problem(1, 420, 1072, 16));
}

/// A flag that outlives its launch would let a block of the next go on with old states. They are all the same number, neither zero nor
/// what memory is poisoned with, and nothing else in a workspace is.
fn check_no_token_is_left(problem: Problem) {
    let case = OnDevice::new(random::case(problem, 1));
    case.enqueue_forward(false).unwrap();
    case.wait();
    let workspace = case.workspace_of_forward();
    let words: Vec<_> =
        workspace.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    let is_left = |pair: &&[u64]| pair[0] == pair[1] && ![0, u64::MAX].contains(&pair[0]);
    assert_eq!(words.windows(2).find(is_left), None);
}

/// Packed rows whose warps find marks of all kinds in their tiles.
fn marked_tiles(quick: bool) {
    const FRAMES: usize = 420;
    type Index = fn(usize) -> f64;
    let indices: [Index; 6] = [
        // A sequence in every frame, in every tile, and in hardly any.
        |frame| frame as f64,
        |frame| (frame / 13) as f64,
        |frame| (frame / 151) as f64,
        // Padding within a tile, before a sequence goes on and before another.
        |frame| if frame % 50 > 47 { -1.0 } else { (frame / 100) as f64 },
        // Padding of several tiles, longer than what is looked for at a time; before the first sequence, too.
        |frame| if frame % 225 < 155 { -1.0 } else { (frame / 450) as f64 },
        |frame| if frame < 20 { 3.0 } else { -2.0 },
    ];
    let problems = [
        packed(initial_state(problem(1, FRAMES, 24, 16))),
        packed(reversed(initial_state(block(1, FRAMES, 24, 16)))),
        packed(by(Method::Bilinear, bf16(initial_state(block(1, FRAMES, 24, 16))))),
        packed(both(initial_state(problem(1, FRAMES, 24, 16)))),
    ];
    assert_all_or_none(&problems, Pass::Forward, Program::Relay);
    let some = if quick { 1 } else { problems.len() };
    let cases =
        problems.into_iter().take(some).flat_map(|problem| indices.map(|index| (problem.clone(), index)));
    all(cases.collect(), |(problem, index)| {
        let mut case = random::case(problem, 1);
        case.pack(index);
        check_kept(&case)
    });
}

/// Who looks for the last frame before the frames of a block of marks.cu finds only padding in the block before; and sequences that begin
/// with a block.
pub fn long_padding(_: bool) {
    let indices: [fn(usize) -> f64; 2] = [
        |frame| match frame {
            ..20 => 0.0,
            20..600 => -1.0,
            _ => 1.0,
        },
        |frame| (frame / 256) as f64,
    ];
    for index in indices {
        let mut case = random::case(packed(problem(1, 700, 24, 5)), 1);
        case.pack(index);
        check(&case).unwrap();
    }
}

/// Packed short rows without padding, whose sequences begin in tiles that are walked whole. What is not finite in one is not seen by
/// the next.
fn sequences_in_short_rows(quick: bool) {
    const FRAMES: usize = 7;
    let problems = [
        packed(problem(13, 60, 512, 16)),
        packed(block(8, 63, 840, 16)),
        packed(problem(8, 64, 840, 12)),
        packed(grouped(2, 4, problem(7, 24, 1024, 16))),
        bf16(packed(block(8, 33, 840, 16))),
        by(Method::Bilinear, packed(problem(13, 60, 512, 16))),
        by(Method::Rk4, packed(block(13, 60, 512, 16))),
        by(Method::ZohExact, packed(problem(13, 60, 512, 16))),
        by(Method::Foh, packed(problem(8, 56, 840, 16))),
        by(Method::Poly, packed(block(13, 60, 512, 16))),
        by(Method::Highorder, packed(block(8, 63, 840, 16))),
        by(Method::Foh, bf16(packed(block(13, 60, 512, 16)))),
    ];
    assert_all_or_none(&problems, Pass::Forward, Program::Bulk);
    let some = if quick { 2 } else { problems.len() };
    all(problems.into_iter().take(some).collect(), |problem| {
        let mut case = random::case(problem, 1);
        let Problem { dim, element, .. } = case.problem;
        case.pack_sequences_of(FRAMES);
        check_kept(&case)?;
        let y = case.forward(forward).y;
        case.inputs.x[..dim * element.size()].fill(0xff);
        let with_nan = case.forward(forward).y;
        let seen = with_nan.iter().zip(&y).rposition(|(with_nan, y)| with_nan != y);
        match seen {
            Some(last) if last / dim < FRAMES => Ok(()),
            last => Err(format!("a NaN is seen as far as element {last:?}: {case:?}")),
        }
    });
}

pub fn shapes(_: bool) {
    let problems = [
        problem(1, 1, 1, 1),
        problem(1, 1_000_000, 1, 1),
        problem(1, 1_000_003, 3, 2),
        problem(70_000, 1, 3, 2),
        problem(70_001, 3, 5, 4),
        problem(2, 20, 3, 1000),
        bf16(problem(1, 37, 2, 1000)),
        problem(1, 5, 2, 3000),
        f64(problem(1, 70, 3, 129)),
        problem(1, 33, 4099, 5),
        problem(1, 700, 31, 17),
        block(2, 3000, 33, 16),
        block(1, 2500, 512, 64),
        bf16(block(2, 2100, 70, 16)),
        bf16(block(1, 5000, 129, 16)),
        grouped(96, 96, problem(2, 40, 96, 16)),
        grouped(96, 1, problem(2, 300, 96, 4)),
        grouped(4, 6, block(1, 100, 120, 16)),
        bf16(grouped(2, 1, block(1, 2100, 128, 16))),
        Problem { bidirectional: true, ..block(2, 2100, 96, 16) },
        Problem { bidirectional: true, seq_idx: true, ..bf16(block(2, 2100, 96, 40)) },
        Problem { method: Method::Bilinear, seq_idx: true, ..block(1, 3000, 64, 16) },
        Problem { method: Method::Highorder, complex: true, ..block(1, 1500, 20, 20) },
        Problem { b: Projection::Constant, c: Projection::Constant, ..bf16(block(3, 2500, 40, 16)) },
        Problem { b: Projection::Constant, bidirectional: true, ..problem(3, 500, 40, 33) },
    ];
    // Enough channels that lanes need not lie over time, as they do in smaller problems.
    let wide = [
        problem(8, 150, 1024, 16),
        block(7, 197, 1000, 16),
        bf16(block(8, 70, 900, 16)),
        grouped(4, 4, problem(8, 65, 896, 5)),
        Problem { seq_idx: true, bidirectional: true, ..block(9, 140, 800, 16) },
        Problem { b: Projection::Constant, ..problem(8, 100, 900, 8) },
        // Several rounds of states, and several sweeps of rounds.
        block(8, 70, 900, 50),
        // Of heavy walks, too: three blocks for each multiprocessor of a large device, and two.
        by(Method::ZohExact, packed(block(9, 70, 1000, 40))),
        by(Method::Foh, bf16(block(7, 100, 960, 50))),
        // A row in parts for each multiprocessor of a large device; then chunks of a tile that are segments each.
        block(4, 60, 512, 16),
        by(Method::Bilinear, problem(8, 30, 256, 16)),
        block(2, 200, 384, 16),
        // So many channels that heavy walks go back in four lanes: packed, gated, a row in one tile or several.
        by(Method::Rk4, packed(problem(32, 20, 512, 16))),
        by(Method::Poly, packed(block(32, 33, 512, 16))),
        by(Method::ZohExact, packed(problem(22, 70, 768, 16))),
        by(Method::Highorder, block(32, 24, 512, 16)),
        Problem { seq_idx: true, method: Method::Bilinear, ..problem(7, 100, 1000, 130) },
        Problem { c: Projection::Constant, ..problem(1, 700, 200, 40) },
    ];
    let methods = Method::ALL.iter().map(|&method| Problem { method, ..block(8, 64, 900, 16) });
    let problems = problems.into_iter().chain(wide).chain(methods);
    all(problems.enumerate().collect(), |(seed, problem)| check(&random::case(problem, seed as u64)));
}

//! Random problems that mix all features.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use selective_scan::naive::{decode, encode};
use selective_scan::{
    Coefficients, ElementType, Inputs, Method, Options, OutputGradients, Problem, Projection, Spec,
};

use super::Case;

/// How large the shapes may get.
#[derive(Clone, Copy)]
pub struct Limits {
    pub batch: usize,
    pub seq: usize,
    pub groups: usize,
    pub channels_per_group: usize,
    pub state: usize,
}

/// Small enough for thousands of cases beside the naive twin.
pub const SMALL: Limits = Limits { batch: 3, seq: 150, groups: 3, channels_per_group: 24, state: 21 };

/// Numbers that f32 has too: frames at a limit all turn by the same angle, and were the limit rounded for one of two
/// scans, the difference would add up over the sequence.
const DT_LIMIT: [f64; 2] = [0.0625, 0.625];

/// The same problems at each run: a test's answer is of the code, not of the day. PROPTEST_RNG_SEED=number draws others;
/// of some ten thousand, one or two pass what is allowed without a fault, as their few sums cancel to next to nothing.
/// Runners side by side draw each its own.
pub fn config(cases: u32, runner: u32) -> ProptestConfig {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let seed = match config.rng_seed {
        RngSeed::Random => 1,
        RngSeed::Fixed(given) => given,
    };
    ProptestConfig { rng_seed: RngSeed::Fixed(seed ^ u64::from(runner) << 32), ..config }
}

/// Problems of the element types given, with every method, mode, layout and option.
pub fn cases(elements: &'static [ElementType], limits: Limits) -> impl Strategy<Value = Case> {
    let shape = (
        1..=limits.batch,
        1..=limits.seq,
        1..=limits.groups,
        1..=limits.channels_per_group,
        1..=limits.state,
    );
    let method = (
        proptest::sample::select(Method::ALL),
        any::<bool>(),
        proptest::sample::select(elements),
        any::<bool>(),
    );
    let projection = || prop_oneof![Just(Layout::Shared), Just(Layout::Grouped), Just(Layout::Constant)];
    let flags = proptest::array::uniform9(any::<bool>());
    (shape, method, projection(), projection(), flags, any::<u64>()).prop_map(
        |((batch, seq, groups, channels, state), (method, taylor, element, complex), b, c, flags, seed)| {
            let [bidirectional, reverse, dt_softplus, dt_limit, d, z, dt_bias, initial_state, seq_idx] =
                flags;
            let options = Options {
                method,
                coefficients: match taylor && method.has_taylor() {
                    true => Coefficients::Taylor,
                    false => Coefficients::Exact,
                },
                bidirectional: Some(bidirectional),
                reverse,
                dt_softplus,
                dt_limit: dt_limit.then_some(DT_LIMIT),
            };
            let layout = |layout: Layout| match layout {
                Layout::Shared => Projection::PerFrame { groups: 1 },
                Layout::Grouped => Projection::PerFrame { groups },
                Layout::Constant => Projection::Constant,
            };
            let problem = Problem {
                batch,
                seq,
                dim: groups * channels,
                state,
                element,
                complex,
                b: layout(b),
                c: layout(c),
                d,
                z,
                dt_bias,
                initial_state,
                seq_idx,
                method,
                coefficients: options.coefficients,
                bidirectional,
                reverse,
                dt_softplus,
                dt_limit: options.dt_limit,
            };
            case(problem, seed)
        },
    )
}

#[derive(Debug, Clone, Copy)]
enum Layout {
    Shared,
    Grouped,
    Constant,
}

/// A problem with fresh data in the ranges that trained models have.
pub fn case(problem: Problem, seed: u64) -> Case {
    let mut random = Random(seed);
    let p = &problem;
    let size = |name: &str| p.bytes(name) / p.element.of(name).size();
    let normal = |random: &mut Random, name: &str, scale: f64| {
        let values: Vec<f64> = (0..size(name)).map(|_| scale * random.normal()).collect();
        encode(p.element.of(name), &values)
    };
    let rounded =
        |name: &str, values: &[f64]| decode(p.element.of(name), &encode(p.element.of(name), values));
    let dt: Vec<f64> = (0..size("dt"))
        .map(|_| if p.dt_softplus { random.normal() - 1.0 } else { 0.001 + 0.5 * random.uniform() })
        .collect();
    let mut dt = rounded("dt", &dt);
    // Step sizes stay positive: with A negative, negative ones would let the states grow beyond all numbers.
    let dt_bias: Vec<f64> = (0..p.dim)
        .map(|_| if p.dt_softplus { 0.3 * random.normal() } else { 0.1 * random.uniform() })
        .collect();
    let dt_bias = rounded("dt_bias", &dt_bias);
    // And off the limits, where the gradient jumps: rounding must not decide on which side a frame is.
    for (i, dt) in dt.iter_mut().enumerate() {
        let delta = |dt: f64| {
            let sum = dt + if p.dt_bias { dt_bias[i % p.dim] } else { 0.0 };
            if p.dt_softplus { sum.exp().ln_1p() } else { sum }
        };
        while p.dt_limit.iter().flatten().any(|limit| (delta(*dt) - limit).abs() < 1e-5) {
            // A step that no element type rounds away.
            *dt = rounded("dt", &[*dt + 0.01 * dt.abs().max(1.0)])[0];
        }
    }
    let a: Vec<f64> = (0..size("a"))
        .map(|i| match p.complex && i % 2 == 1 {
            true => 3.0 * random.normal(),
            false => -(0.05 + 2.0 * random.uniform()),
        })
        .collect();
    let seq_idx: Vec<f64> = (0..p.batch).flat_map(|_| random.packing(p.seq)).collect();
    let inputs = Inputs {
        x: normal(&mut random, "x", 1.0),
        dt: encode(p.element, &dt),
        a: encode(p.element.of("a"), &a),
        b: normal(&mut random, "b", 1.0),
        c: normal(&mut random, "c", 1.0),
        d: p.d.then(|| normal(&mut random, "d", 1.0)),
        z: p.z.then(|| normal(&mut random, "z", 1.0)),
        dt_bias: p.dt_bias.then(|| encode(p.element.of("dt_bias"), &dt_bias)),
        initial_state: p.initial_state.then(|| normal(&mut random, "initial_state", 1.0)),
        seq_idx: p.seq_idx.then(|| encode(ElementType::S32, &seq_idx)),
    };
    let output_gradients = OutputGradients {
        dy: normal(&mut random, "dy", 1.0),
        dfinal_state: seed.is_multiple_of(2).then(|| normal(&mut random, "dfinal_state", 1.0)),
    };
    Case { name: format!("{problem:?} seed {seed}"), problem, inputs, output_gradients }
}

/// The same of f32, but all that flows into states and their gradients is zero; rates and steps are such that else both would grow
/// beyond all numbers.
pub fn growing_from_zero(problem: Problem, dt: f64) -> Case {
    let mut case = case(problem, 1);
    let of = |value: f64, bytes: &[u8]| encode(ElementType::F32, &vec![value; bytes.len() / 4]);
    case.inputs.a = of(1.0, &case.inputs.a);
    case.inputs.dt = of(dt, &case.inputs.dt);
    case.inputs.x.fill(0);
    case.output_gradients.dy.fill(0);
    if let Some(gradient) = &mut case.output_gradients.dfinal_state {
        gradient.fill(0);
    }
    case
}

/// A problem of plain zoh, to be changed where a test wants something else.
pub fn zoh(batch: usize, seq: usize, dim: usize, state: usize) -> Problem {
    let (sequence, a, b) = ([batch, seq, dim], [dim, state], [batch, seq, state]);
    let spec = |shape| Spec { element: ElementType::F32, shape };
    let inputs = Inputs {
        x: spec(&sequence[..]),
        dt: spec(&sequence[..]),
        a: spec(&a[..]),
        b: spec(&b[..]),
        c: spec(&b[..]),
        d: None,
        z: None,
        dt_bias: None,
        initial_state: None,
        seq_idx: None,
    };
    Problem::scan(&inputs, &Options::default()).unwrap()
}

/// SplitMix64 (Steele, Lea and Flood, 2014): a few lines, the same numbers everywhere.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// The seq_idx of a row: runs of frames, some of them padding.
    pub fn packing(&mut self, seq: usize) -> Vec<f64> {
        let mut index = 0.0;
        let mut padding = false;
        (0..seq)
            .map(|_| {
                if self.uniform() < 0.1 {
                    index += 1.0;
                }
                if self.uniform() < 0.2 {
                    padding = !padding && self.uniform() < 0.5;
                }
                if padding { -1.0 } else { index }
            })
            .collect()
    }
}

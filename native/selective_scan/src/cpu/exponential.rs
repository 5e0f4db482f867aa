//! Vector exponentials and their kin. Errors against correctly rounded values, tested in this file:
//!
//! | function | range | f32 | f64 |
//! |---|---|---|---|
//! | `exp2_product` | all products | 2e-7 relative | 3.1e-16 |
//! | `exp` | all x | 1.3e-7 relative | 4e-16 |
//! | `exp_m1` | all x | 3e-7 relative | 6e-16 |
//! | `ln_1p` | [0, 1] | 2e-7 relative | 5e-16 |
//! | `turn` | all products | 1e-7 absolute | 2.5e-16 |
//!
//! A product is rounded first where the machine has no fused multiply-add: that adds |ab|·2⁻²⁴ (f32) or |ab|·2⁻⁵³ (f64).
//!
//! Results below 2⁻¹²⁴ (f32) or 2⁻¹⁰²⁰ (f64) may be flushed to zero; AVX-512 gives them. The polynomials are
//! minimax (Remez) fits; those of 2ˣ keep the constant term at exactly 1, so that a frame with Δ = 0 leaves the
//! state as it is and slow decays lose nothing to a bias that thousands of frames would add up.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

use super::vector::{Isa, Lanes, Real};
use crate::discretize::Field;

/// Adding and taking away 1.5·2²³ rounds an f32 to an integer, which stands in the low bits of the sum.
const ROUND_F32: f32 = 12_582_912.0;
/// The same for f64: 1.5·2⁵².
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

/// The nearest integer, for |x| below 2²² (f32) or 2⁵¹ (f64); anything of that size beyond.
#[inline(always)]
fn round<R: Real, S: Isa>(x: Lanes<R, S>) -> Lanes<R, S> {
    let shift = rounding_shift(x);
    (x + shift) - shift
}

#[inline(always)]
fn rounding_shift<R: Real, S: Isa>(like: Lanes<R, S>) -> Lanes<R, S> {
    like.constant(if size_of::<R>() == 4 { ROUND_F32.into() } else { ROUND_F64 })
}

/// 2ʳ for |r| ≤ ½ to 9e-8.
#[inline(always)]
fn fraction_f32<S: Isa>(r: Lanes<f32, S>) -> Lanes<f32, S> {
    r.polynomial(&[
        1.0,
        6.931_469_775_025_206e-1,
        2.402_224_208_549_541e-1,
        5.550_733_737_246_337e-2,
        9.671_512_639_838_007e-3,
        1.326_472_909_586_166_4e-3,
    ])
}

/// 2ʳ for |r| ≤ ½ to 2e-9: the coefficients that φ functions are made of want every bit.
#[inline(always)]
fn fine_fraction_f32<S: Isa>(r: Lanes<f32, S>) -> Lanes<f32, S> {
    r.polynomial(&[
        1.0,
        6.931_472_028_549_826e-1,
        2.402_264_791_861_369_4e-1,
        5.550_332_471_257_187e-2,
        9.618_437_358_438_819e-3,
        1.339_887_437_822_543_7e-3,
        1.535_336_178_639_462_8e-4,
    ])
}

/// 2ʳ for |r| ≤ ½ to 4e-18.
#[inline(always)]
fn fraction_f64<S: Isa>(r: Lanes<f64, S>) -> Lanes<f64, S> {
    r.polynomial(&[
        1.0,
        std::f64::consts::LN_2,
        2.402_265_069_591_013e-1,
        5.550_410_866_482_008e-2,
        9.618_129_107_594_12e-3,
        1.333_355_814_677_464_9e-3,
        1.540_353_045_711_136_1e-4,
        1.525_273_349_309_593_9e-5,
        1.321_543_528_268_066_3e-6,
        1.017_819_958_664_790_8e-7,
        7.073_783_184_458_311e-9,
        4.434_768_928_626_335e-10,
    ])
}

/// ab = n + r: the nearest integer and what is left, from products that are not rounded (with fused hardware).
#[inline(always)]
fn reduce_product<R: Real, S: Isa>(a: Lanes<R, S>, b: Lanes<R, S>) -> [Lanes<R, S>; 2] {
    let shift = rounding_shift(a);
    let n = a.mul_add(b, shift) - shift;
    [n, R::remainder(a.mul_add(b, -n))]
}

#[inline(always)]
pub fn exp2_f32<S: Isa>(a: Lanes<f32, S>, b: Lanes<f32, S>) -> Lanes<f32, S> {
    let [n, r] = reduce_product(a, b);
    f32::scale(fraction_f32(r), n)
}

#[inline(always)]
pub fn exp2_f64<S: Isa>(a: Lanes<f64, S>, b: Lanes<f64, S>) -> Lanes<f64, S> {
    let [n, r] = reduce_product(a, b);
    f64::scale(fraction_f64(r), n)
}

/// ln 2 in two parts, the first short enough for exact products with the integers that occur (Cody and Waite).
const LN2_F32: [f64; 2] = [0.693_359_375, -2.121_944_400_546_905_8e-4];
const LN2_F64: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];

/// x = n ln 2 + r, and r in units of ln 2.
#[inline(always)]
fn reduce<R: Real, S: Isa>(x: Lanes<R, S>, ln2: [f64; 2]) -> [Lanes<R, S>; 2] {
    let n = round(x.scale(std::f64::consts::LOG2_E));
    let r = n.mul_add(x.constant(-ln2[0]), x);
    let r = n.mul_add(x.constant(-ln2[1]), r);
    [n, R::remainder(r.scale(std::f64::consts::LOG2_E))]
}

#[inline(always)]
pub fn exp_f32<S: Isa>(x: Lanes<f32, S>) -> Lanes<f32, S> {
    let [n, r] = reduce(x, LN2_F32);
    f32::scale(fine_fraction_f32(r), n)
}

#[inline(always)]
pub fn exp_f64<S: Isa>(x: Lanes<f64, S>) -> Lanes<f64, S> {
    let [n, r] = reduce(x, LN2_F64);
    f64::scale(fraction_f64(r), n)
}

/// Puts the exponent into the bits of a fraction in (0.7, 1.42); the last doubling overflows as it must.
#[inline(always)]
pub fn scale_f32<S: Isa>(isa: S, fraction: S::f32s, exponent: S::f32s) -> S::f32s {
    let n = Lanes::<f32, S>::new(isa, exponent);
    let bits = isa.transmute_u32s_f32s((n.plus(-1.0) + n.constant(ROUND_F32.into())).vector);
    let bits = isa.wrapping_dyn_shl_u32s(bits, isa.splat_u32s(23));
    let scaled = isa.add_u32s(isa.transmute_u32s_f32s(fraction), bits);
    let scaled = Lanes::<f32, S>::new(isa, isa.transmute_f32s_u32s(scaled));
    in_range(n, scaled + scaled, -124.0, 128.0).vector
}

/// The same for f64; a multiplication stands in for the shift, which `pulp` lacks for 64 bits.
#[inline(always)]
pub fn scale_f64<S: Isa>(isa: S, fraction: S::f64s, exponent: S::f64s) -> S::f64s {
    let n = Lanes::<f64, S>::new(isa, exponent);
    let bits = isa.transmute_u64s_f64s((n.plus(-1.0) + n.constant(ROUND_F64)).vector);
    let bits = isa.mul_u64s(bits, isa.splat_u64s(1 << 52));
    let scaled = isa.add_u64s(isa.transmute_u64s_f64s(fraction), bits);
    let scaled = Lanes::<f64, S>::new(isa, isa.transmute_f64s_u64s(scaled));
    in_range(n, scaled + scaled, -1020.0, 1024.0).vector
}

/// 0 below the least exponent, ∞ above the greatest, NaN where the exponent is.
#[inline(always)]
fn in_range<R: Real, S: Isa>(n: Lanes<R, S>, scaled: Lanes<R, S>, least: f64, greatest: f64) -> Lanes<R, S> {
    let infinite = n.constant(f64::INFINITY);
    let scaled = Lanes::select(n.less(infinite), scaled, n);
    let scaled = Lanes::select(n.less(n.constant(least)), n.constant(0.0), scaled);
    Lanes::select(n.constant(greatest).less(n), infinite, scaled)
}

/// 1/(k+1)!
const PHI1: [f64; 24] = {
    let (mut coefficients, mut k) = ([1.0; 24], 1);
    while k < coefficients.len() {
        coefficients[k] = coefficients[k - 1] / (k + 1) as f64;
        k += 1;
    }
    coefficients
};

/// eˣ − 1, by the series of φ₁ near zero.
#[inline(always)]
pub fn exp_m1<R: Real, S: Isa>(x: Lanes<R, S>) -> Lanes<R, S> {
    let near = x.polynomial(&PHI1[..=R::PHI_TERMS]) * x;
    Lanes::select(x.abs().less(x.constant(1.0)), near, R::exp(x).plus(-1.0))
}

/// 2 artanh(s) with s = t/(2+t) ≤ ⅓: 2s + 2s³·q(s²).
#[inline(always)]
fn ln_1p<R: Real, S: Isa>(t: Lanes<R, S>, q: &[f64]) -> Lanes<R, S> {
    let s = t / t.plus(2.0);
    let w = s * s;
    let twice = s + s;
    twice.mul_add(w * w.polynomial(q), twice)
}

#[inline(always)]
pub fn ln_1p_f32<S: Isa>(t: Lanes<f32, S>) -> Lanes<f32, S> {
    ln_1p(
        t,
        &[
            3.333_320_813_811_964e-1,
            2.001_076_393_023_765_5e-1,
            1.400_089_699_664_083_5e-1,
            1.400_602_365_366_927_4e-1,
        ],
    )
}

#[inline(always)]
pub fn ln_1p_f64<S: Isa>(t: Lanes<f64, S>) -> Lanes<f64, S> {
    ln_1p(
        t,
        &[
            3.333_333_333_333_315_5e-1,
            2.000_000_000_007_756_6e-1,
            1.428_571_427_405_797_7e-1,
            1.111_111_197_687_427_6e-1,
            9.090_872_237_241_993e-2,
            7.693_274_246_124_44e-2,
            6.650_560_022_587_969e-2,
            6.052_477_842_256_835e-2,
            4.172_461_674_849_482e-2,
            8.504_923_929_707_651e-2,
        ],
    )
}

/// A frequency a, and 2a/π in two parts: the quarter turns that it makes in a unit of time.
#[derive(Clone, Copy)]
pub struct QuarterTurns<R: Real, S: Isa> {
    high: Lanes<R, S>,
    low: Lanes<R, S>,
    a: Lanes<R, S>,
}

impl<R: Real, S: Isa> QuarterTurns<R, S> {
    #[inline(always)]
    pub fn new(a: Lanes<R, S>) -> Self {
        let unit = R::from_f64(FRAC_2_PI);
        let rest = (FRAC_2_PI - unit.to_f64()) + FRAC_2_PI_REST;
        let unit = Lanes::splat(a.isa, unit);
        let high = a * unit;
        Self { high, low: a.mul_add(a.constant(rest), a.mul_add(unit, -high)), a }
    }
}

/// 2/π − [`FRAC_2_PI`].
const FRAC_2_PI_REST: f64 = -3.935_735_335_036_497e-17;

/// A point of the unit circle.
pub struct Turn<R: Real, S: Isa> {
    pub sin: Lanes<R, S>,
    pub cos: Lanes<R, S>,
    /// cos − 1, without cancellation.
    pub cos_less_one: Lanes<R, S>,
}

/// e^(iab), from the quarter turns of a. These are had times b less the nearest whole number, and all of that is exact until what is
/// left is rounded: a phase is as good after many turns as before the first. Then polynomials of sin (x + x³q(x²)) and
/// cos (1 − x²/2 + x⁴q(x²)) on |x| ≤ π/4.
#[inline(always)]
fn turn<R: Real, S: Isa>(
    a: &QuarterTurns<R, S>,
    b: Lanes<R, S>,
    limit: f64,
    sin: &[f64],
    cos: &[f64],
) -> Turn<R, S> {
    if !S::FUSED {
        return far_turn(a.a, b);
    }
    let shift = rounding_shift(b);
    let k = a.high.mul_add(b, shift) - shift;
    let x = a.low.mul_add(b, a.high.mul_add(b, -k)).scale(FRAC_PI_2);
    let w = x * x;
    let s = (x * w).mul_add(w.polynomial(sin), x);
    // 1 − w/2 is rounded; what the rounding lost comes back with the rest.
    let one = b.constant(1.0);
    let half_w = w.scale(0.5);
    let rounded = one - half_w;
    let rest = w * w * w.polynomial(cos);
    let c = rounded + (rest + ((one - rounded) - half_w));
    // k mod 4, as −2..=1 or so: the quadrant says which is which, and the signs.
    let quadrant = k - round(k.scale(0.25)).scale(4.0);
    let odd = (quadrant.abs().plus(-1.0)).abs().less(b.constant(0.5));
    let (half, three_halves) = (b.constant(0.5), b.constant(1.5));
    let two = three_halves.less(quadrant.abs());
    // sin: k = 0 → s, 1 → c, ±2 → −s, −1 → −c. cos: 0 → c, 1 → −s, ±2 → −c, −1 → s.
    let (sin, cos) = (Lanes::select(odd, c, s), Lanes::select(odd, s, c));
    let sin = Lanes::select(two, -sin, Lanes::select(quadrant.less(-half), -sin, sin));
    let cos = Lanes::select(two, -cos, Lanes::select(half.less(quadrant), -cos, cos));
    let cos_less_one = Lanes::select(quadrant.abs().less(half), rest - half_w, cos - one);
    let mask = b.constant(limit).less(k.abs());
    let turn = Turn { sin, cos, cos_less_one };
    if Lanes::select(mask, one, b.constant(0.0)).sum().to_f64() == 0.0 {
        return turn;
    }
    let far = far_turn(a.a, b);
    Turn {
        sin: Lanes::select(mask, far.sin, turn.sin),
        cos: Lanes::select(mask, far.cos, turn.cos),
        cos_less_one: Lanes::select(mask, far.cos_less_one, turn.cos_less_one),
    }
}

/// Beyond the limit the reduction has too few bits, and without fused hardware everywhere: lanes are done one at a time.
#[cold]
#[inline(never)]
fn far_turn<R: Real, S: Isa>(a: Lanes<R, S>, b: Lanes<R, S>) -> Turn<R, S> {
    let count = Lanes::<R, S>::COUNT;
    let factors = [a.vector, b.vector];
    let factors: &[R] = bytemuck::cast_slice(&factors);
    let mut turn = [a.vector; 3];
    let parts: &mut [R] = bytemuck::cast_slice_mut(&mut turn);
    for i in 0..count {
        let (rate, delta) = (factors[i].to_f64(), factors[count + i].to_f64());
        let x = rate * delta;
        // What x was rounded by, of which the cosine is 1.
        let rest = rate.mul_add(delta, -x);
        let ((sin, cos), half) = (x.sin_cos(), (0.5 * x).sin());
        let of_rest = [rest * cos, -rest * sin, -rest * sin];
        for (part, value) in [sin, cos, -2.0 * half * half].into_iter().enumerate() {
            parts[part * count + i] = R::from_f64(value + of_rest[part]);
        }
    }
    let [sin, cos, cos_less_one] = turn.map(|vector| Lanes::new(b.isa, vector));
    Turn { sin, cos, cos_less_one }
}

#[inline(always)]
pub fn turn_f32<S: Isa>(a: &QuarterTurns<f32, S>, b: Lanes<f32, S>) -> Turn<f32, S> {
    turn(
        a,
        b,
        131_072.0,
        &[
            -1.666_666_664_152_686e-1,
            8.333_329_374_122_562e-3,
            -1.983_933_099_729_497_5e-4,
            2.718_274_475_855_059e-6,
        ],
        &[4.166_664_680_72e-2, -1.388_736_448_601_501_7e-3, 2.443_809_102_416_124_2e-5],
    )
}

#[inline(always)]
pub fn turn_f64<S: Isa>(a: &QuarterTurns<f64, S>, b: Lanes<f64, S>) -> Turn<f64, S> {
    turn(
        a,
        b,
        70_368_744_177_664.0,
        &[
            -1.666_666_666_666_663_2e-1,
            8.333_333_333_322_37e-3,
            -1.984_126_982_977_117_8e-4,
            2.755_731_367_866_979_5e-6,
            -2.505_075_596_203_747_3e-8,
            1.589_666_654_307_986e-10,
        ],
        &[
            4.166_666_666_666_66e-2,
            -1.388_888_888_887_406_5e-3,
            2.480_158_728_944_348e-5,
            -2.755_731_434_066_152_3e-7,
            2.087_572_162_416_066_4e-9,
            -1.135_955_935_941_301_9e-11,
        ],
    )
}

#[cfg(test)]
mod tests {
    use std::f64::consts::LN_2;

    use super::super::InstructionSet;
    use super::super::vector::with_isa;
    use super::*;

    /// A function of one register, over every instruction set of this machine.
    trait Function<R: Real> {
        fn call<S: Isa>(x: Lanes<R, S>) -> Lanes<R, S>;
    }

    fn apply<R: Real, F: Function<R>>(x: &[R]) -> Vec<(&'static str, Vec<R>)> {
        struct Run<'a, R, S, F>(S, &'a [R], &'a mut [R], std::marker::PhantomData<F>);

        impl<R: Real, S: Isa, F: Function<R>> pulp::NullaryFnOnce for Run<'_, R, S, F> {
            type Output = ();

            #[inline(always)]
            fn call(self) {
                let Self(isa, x, y, _) = self;
                let count = Lanes::<R, S>::COUNT;
                for (x, y) in x.chunks(count).zip(y.chunks_mut(count)) {
                    F::call(Lanes::load_first(isa, x)).store_first(y);
                }
            }
        }

        fn on<R: Real, S: Isa, F: Function<R>>(isa: S, x: &[R]) -> Vec<R> {
            let mut y = vec![R::default(); x.len()];
            isa.vectorize(Run::<R, S, F>(isa, x, &mut y, std::marker::PhantomData));
            y
        }

        let sets = InstructionSet::all().into_iter();
        sets.map(|set| (set.name(), with_isa!(set.0, isa => on::<R, _, F>(isa, x)))).collect()
    }

    /// The worst error over a grid; `absolute` or relative to a normal result.
    fn worst<R: Real, F: Function<R>>(from: f64, to: f64, absolute: bool, truth: fn(f64) -> f64) -> f64 {
        let [fused, plain] = worst_of_each::<R, F>(from, to, absolute, |x| [truth(x), 0.0]);
        fused.max(plain)
    }

    /// The worst with fused multiply-adds, and without. The truth is a sum.
    fn worst_of_each<R: Real, F: Function<R>>(
        from: f64,
        to: f64,
        absolute: bool,
        truth: impl Fn(f64) -> [f64; 2],
    ) -> [f64; 2] {
        let count = 400_001;
        let x: Vec<R> =
            (0..count).map(|i| R::from_f64(from + (to - from) * i as f64 / (count - 1) as f64)).collect();
        let tiny = if size_of::<R>() == 4 { f64::from(f32::MIN_POSITIVE) } else { f64::MIN_POSITIVE };
        let mut worst = [0.0f64; 2];
        for (set, y) in apply::<R, F>(&x) {
            let worst = &mut worst[usize::from(set == "plain")];
            for (x, y) in x.iter().zip(y) {
                let [truth, more] = truth(x.to_f64());
                let scale = if absolute { 1.0 } else { truth.abs().max(16.0 * tiny) };
                *worst = worst.max((y.to_f64() - truth - more).abs() / scale);
            }
        }
        worst
    }

    macro_rules! function {
        ($name:ident, $x:ident => $value:expr) => {
            struct $name;

            impl<R: Real> Function<R> for $name {
                #[inline(always)]
                fn call<S: Isa>($x: Lanes<R, S>) -> Lanes<R, S> {
                    $value
                }
            }
        };
    }

    function!(Exp2, x => R::exp2_product(x, x.constant(1.0)));
    function!(Exp2OfProduct, x => R::exp2_product(x, x.constant(3.0)));
    function!(Exp, x => R::exp(x));
    function!(Ln1p, x => R::ln_1p(x));
    function!(ExpM1, x => exp_m1(x));
    function!(Softplus, x => x.softplus());
    function!(Sin, x => R::turn(&QuarterTurns::new(x), x.constant(1.0)).sin);
    function!(Cos, x => R::turn(&QuarterTurns::new(x), x.constant(1.0)).cos);
    function!(SinOfProduct, x => R::turn(&QuarterTurns::new(x), x.constant(3.0)).sin);
    function!(CosOfProduct, x => R::turn(&QuarterTurns::new(x), x.constant(3.0)).cos);

    /// 3x, and what rounding it has lost.
    fn product(x: f64) -> [f64; 2] {
        let rounded = 3.0 * x;
        [rounded, x.mul_add(3.0, -rounded)]
    }

    #[test]
    fn errors_are_as_stated() {
        let mut wrong = Vec::new();
        let mut check = |name, error: f64, allowed: f64| {
            if error.is_nan() || error > allowed {
                wrong.push(format!("{name}: {error:e}, allowed {allowed:e}"));
            }
        };
        check("exp2 f32", worst::<f32, Exp2>(-124.0, 127.9, false, f64::exp2), 2e-7);
        check("exp2 f64", worst::<f64, Exp2>(-1020.0, 1023.9, false, f64::exp2), 3e-16);
        check("exp f32", worst::<f32, Exp>(-85.9, 88.7, false, f64::exp), 1.3e-7);
        check("exp f64", worst::<f64, Exp>(-707.0, 709.7, false, f64::exp), 4e-16);
        check("ln_1p f32", worst::<f32, Ln1p>(0.0, 1.0, false, f64::ln_1p), 2e-7);
        check("ln_1p f64", worst::<f64, Ln1p>(0.0, 1.0, false, f64::ln_1p), 5e-16);
        check("exp_m1 f32", worst::<f32, ExpM1>(-20.0, 20.0, false, f64::exp_m1), 3e-7);
        check("exp_m1 f64", worst::<f64, ExpM1>(-20.0, 20.0, false, f64::exp_m1), 6e-16);
        // Of f32, the longest is beyond what the nearest whole number of quarter turns can be had of.
        for range in [30.0, 1e6, 1e7] {
            check("sin f32", worst::<f32, Sin>(-range, range, true, f64::sin), 1e-7);
            check("sin f64", worst::<f64, Sin>(-range, range, true, f64::sin), 2.5e-16);
            check("cos f32", worst::<f32, Cos>(-range, range, true, f64::cos), 1e-7);
            check("cos f64", worst::<f64, Cos>(-range, range, true, f64::cos), 2.5e-16);
        }
        // To the first order of what was lost.
        let exp2 = |x: f64| {
            let [x, lost] = product(x);
            [x.exp2(), lost * LN_2 * x.exp2()]
        };
        let sin = |x: f64| {
            let [x, lost] = product(x);
            [x.sin(), lost * x.cos()]
        };
        let cos = |x: f64| {
            let [x, lost] = product(x);
            [x.cos(), -lost * x.sin()]
        };
        let mut check_product = |name, [fused, plain]: [f64; 2], allowed: f64, rounded: f64| {
            check(name, fused, allowed);
            check(name, plain, allowed + rounded);
        };
        let third = 1.0 / 3.0;
        let of_f32 = worst_of_each::<f32, Exp2OfProduct>(-124.0 * third, 127.9 * third, false, exp2);
        check_product("exp2 of products f32", of_f32, 2e-7, 128.0 * LN_2 * 2f64.powi(-24));
        let of_f64 = worst_of_each::<f64, Exp2OfProduct>(-1020.0 * third, 1023.9 * third, false, exp2);
        check_product("exp2 of products f64", of_f64, 3.1e-16, 1024.0 * LN_2 * 2f64.powi(-53));
        for range in [10.0, 3e5] {
            for (of_f32, of_f64) in [
                (
                    worst_of_each::<f32, SinOfProduct>(-range, range, true, sin),
                    worst_of_each::<f64, SinOfProduct>(-range, range, true, sin),
                ),
                (
                    worst_of_each::<f32, CosOfProduct>(-range, range, true, cos),
                    worst_of_each::<f64, CosOfProduct>(-range, range, true, cos),
                ),
            ] {
                check_product("turn of products f32", of_f32, 1e-7, 3.0 * range * 2f64.powi(-24));
                check_product("turn of products f64", of_f64, 2.5e-16, 3.0 * range * 2f64.powi(-53));
            }
        }
        let softplus = |x: f64| if x > 20.0 { x } else { x.exp().ln_1p() };
        check("softplus f32", worst::<f32, Softplus>(-80.0, 40.0, false, softplus), 3e-7);
        check("softplus f64", worst::<f64, Softplus>(-80.0, 40.0, false, softplus), 8e-16);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn edges_are_as_ieee_says() {
        let x = [f32::NEG_INFINITY, -1e30, -200.0, 0.0, -0.0, 200.0, 1e30, f32::INFINITY];
        let quiet = [f32::NAN, -f32::NAN, f32::from_bits(0x7fc0_0001), f32::from_bits(0xffff_ffff)];
        for (isa, y) in apply::<f32, Exp2>(&x) {
            assert_eq!(y, [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY], "{isa}");
        }
        for (isa, y) in apply::<f32, Exp>(&x) {
            assert_eq!(y, [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY], "{isa}");
        }
        for (isa, y) in apply::<f64, Exp>(&x.map(f64::from)) {
            assert_eq!((y[0], y[3], y[7]), (0.0, 1.0, f64::INFINITY), "{isa}");
        }
        for (isa, y) in apply::<f32, Exp2>(&quiet).into_iter().chain(apply::<f32, Softplus>(&quiet)) {
            assert!(y.iter().all(|y| y.is_nan()), "{isa}: {y:?}");
        }
        for (isa, y) in apply::<f32, Softplus>(&x) {
            assert_eq!((y[0], y[6], y[7]), (0.0, 1e30, f32::INFINITY), "{isa}");
        }
    }
}

//! Vectors of real and complex numbers over the instruction set that the machine has, on top of `pulp`.
//!
//! [`Lanes`] is a register of real numbers, [`ComplexLanes`] a pair of registers. Both are a [`Field`], so the
//! discretizations and the kernels are written once. Everything is `inline(always)`: the code must end up inside
//! the function that `pulp` compiles for the instruction set.

use std::ops::{Add, Div, Mul, Neg, Sub};

use pulp::Simd;

use super::exponential::{self, QuarterTurns, Turn};
use crate::discretize::Field;

/// An instruction set, with the operations that `pulp` has no common name for.
pub trait Isa: Simd {
    /// As users see it.
    const NAME: &'static str;
    /// Whether products that are added to something are not rounded before.
    const FUSED: bool = true;

    /// `fraction · 2^exponent`, with an integral exponent of any size: 0 below the normal range, ∞ above it.
    #[inline(always)]
    fn scale_f32(self, fraction: Self::f32s, exponent: Self::f32s) -> Self::f32s {
        exponential::scale_f32(self, fraction, exponent)
    }

    /// `fraction · 2^exponent`, likewise.
    #[inline(always)]
    fn scale_f64(self, fraction: Self::f64s, exponent: Self::f64s) -> Self::f64s {
        exponential::scale_f64(self, fraction, exponent)
    }

    /// What is left of an exponent once its integer is gone, kept within ±½ where `scale` needs a fraction in range
    /// to get ∞ and 0 right.
    #[inline(always)]
    fn remainder_f32(self, remainder: Self::f32s) -> Self::f32s {
        remainder
    }

    /// The same for f64.
    #[inline(always)]
    fn remainder_f64(self, remainder: Self::f64s) -> Self::f64s {
        remainder
    }
}

impl Isa for pulp::Scalar {
    const NAME: &'static str = "plain";
    const FUSED: bool = false;
}

#[cfg(target_arch = "x86_64")]
impl Isa for pulp::x86::V3 {
    const NAME: &'static str = "avx2";
}

#[cfg(target_arch = "x86_64")]
impl Isa for pulp::x86::V4 {
    const NAME: &'static str = "avx512";

    #[inline(always)]
    fn scale_f32(self, fraction: Self::f32s, exponent: Self::f32s) -> Self::f32s {
        pulp::cast(self.avx512f._mm512_scalef_ps(pulp::cast(fraction), pulp::cast(exponent)))
    }

    #[inline(always)]
    fn scale_f64(self, fraction: Self::f64s, exponent: Self::f64s) -> Self::f64s {
        pulp::cast(self.avx512f._mm512_scalef_pd(pulp::cast(fraction), pulp::cast(exponent)))
    }

    #[inline(always)]
    fn remainder_f32(self, remainder: Self::f32s) -> Self::f32s {
        let half = pulp::cast(self.splat_f32s(0.5));
        pulp::cast(self.avx512dq._mm512_range_ps::<LEAST_MAGNITUDE>(pulp::cast(remainder), half))
    }

    #[inline(always)]
    fn remainder_f64(self, remainder: Self::f64s) -> Self::f64s {
        let half = pulp::cast(self.splat_f64s(0.5));
        pulp::cast(self.avx512dq._mm512_range_pd::<LEAST_MAGNITUDE>(pulp::cast(remainder), half))
    }
}

/// VRANGE: the operand of least magnitude, with the sign of the first; the other operand where one is NaN.
#[cfg(target_arch = "x86_64")]
const LEAST_MAGNITUDE: i32 = 0b0010;

#[cfg(target_arch = "aarch64")]
impl Isa for pulp::aarch64::Neon {
    const NAME: &'static str = "neon";
}

/// Calls a generic expression with one of the instruction sets that this machine has.
macro_rules! with_isa {
    ($arch:expr, $isa:ident => $call:expr) => {{
        match $arch {
            #[cfg(target_arch = "x86_64")]
            pulp::Arch::V4($isa) => $call,
            #[cfg(target_arch = "x86_64")]
            pulp::Arch::V3($isa) => $call,
            #[cfg(target_arch = "aarch64")]
            pulp::Arch::Neon($isa) => $call,
            _ => {
                let $isa = pulp::Scalar;
                $call
            }
        }
    }};
}
pub(crate) use with_isa;

/// f32 or f64, and its vectors.
pub trait Real: bytemuck::Pod + Default + Send + Sync + 'static {
    /// A register.
    type Vector<S: Isa>: bytemuck::Pod + Send + Sync;
    /// The outcome of a comparison.
    type Mask<S: Isa>: Copy;

    /// Terms of the series of φ₄ (see [`Field::PHI_TERMS`]).
    const PHI_TERMS: usize;

    /// Rounded from float64.
    fn from_f64(value: f64) -> Self;
    /// Widened to float64.
    fn to_f64(self) -> f64;
    /// The sum of two numbers.
    fn plus(self, other: Self) -> Self;

    #[doc(hidden)]
    fn splat<S: Isa>(isa: S, value: Self) -> Self::Vector<S>;
    #[doc(hidden)]
    fn add<S: Isa>(isa: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    #[doc(hidden)]
    fn sub<S: Isa>(isa: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    #[doc(hidden)]
    fn mul<S: Isa>(isa: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    #[doc(hidden)]
    fn div<S: Isa>(isa: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    #[doc(hidden)]
    fn mul_add<S: Isa>(isa: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>)
    -> Self::Vector<S>;
    #[doc(hidden)]
    fn abs<S: Isa>(isa: S, a: Self::Vector<S>) -> Self::Vector<S>;
    #[doc(hidden)]
    fn less<S: Isa>(isa: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Mask<S>;
    #[doc(hidden)]
    fn select<S: Isa>(isa: S, mask: Self::Mask<S>, a: Self::Vector<S>, b: Self::Vector<S>)
    -> Self::Vector<S>;
    #[doc(hidden)]
    fn sum<S: Isa>(isa: S, a: Self::Vector<S>) -> Self;
    #[doc(hidden)]
    fn rotate_right<S: Isa>(isa: S, a: Self::Vector<S>, lanes: usize) -> Self::Vector<S>;
    #[doc(hidden)]
    fn load_first<S: Isa>(isa: S, values: &[Self]) -> Self::Vector<S>;
    #[doc(hidden)]
    fn store_first<S: Isa>(isa: S, values: &mut [Self], a: Self::Vector<S>);
    /// 2^(ab), see `exponential.rs`.
    #[doc(hidden)]
    fn exp2_product<S: Isa>(a: Lanes<Self, S>, b: Lanes<Self, S>) -> Lanes<Self, S>;
    /// See [`Isa::scale_f32`].
    #[doc(hidden)]
    fn scale<S: Isa>(fraction: Lanes<Self, S>, exponent: Lanes<Self, S>) -> Lanes<Self, S>;
    /// See [`Isa::remainder_f32`].
    #[doc(hidden)]
    fn remainder<S: Isa>(remainder: Lanes<Self, S>) -> Lanes<Self, S>;
    /// eˣ, see `exponential.rs`.
    #[doc(hidden)]
    fn exp<S: Isa>(x: Lanes<Self, S>) -> Lanes<Self, S>;
    /// log(1+t) for t in [0, 1], see `exponential.rs`.
    #[doc(hidden)]
    fn ln_1p<S: Isa>(t: Lanes<Self, S>) -> Lanes<Self, S>;
    /// e^(iab), see `exponential.rs`.
    #[doc(hidden)]
    fn turn<S: Isa>(a: &QuarterTurns<Self, S>, b: Lanes<Self, S>) -> Turn<Self, S>;
}

macro_rules! impl_real {
    ($real:ident, $vector:ident, $mask:ident, $terms:literal, $splat:ident, $add:ident, $sub:ident, $mul:ident,
     $div:ident, $mul_add:ident, $abs:ident, $less:ident, $select:ident, $sum:ident, $rotate:ident, $load:ident, $store:ident,
     $scale:ident, $remainder:ident, $exp2:ident, $exp:ident, $ln_1p:ident, $turn:ident) => {
        impl Real for $real {
            type Vector<S: Isa> = S::$vector;
            type Mask<S: Isa> = S::$mask;
            const PHI_TERMS: usize = $terms;

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $real
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self.into()
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn splat<S: Isa>(isa: S, value: Self) -> S::$vector {
                isa.$splat(value)
            }
            #[inline(always)]
            fn add<S: Isa>(isa: S, a: S::$vector, b: S::$vector) -> S::$vector {
                isa.$add(a, b)
            }
            #[inline(always)]
            fn sub<S: Isa>(isa: S, a: S::$vector, b: S::$vector) -> S::$vector {
                isa.$sub(a, b)
            }
            #[inline(always)]
            fn mul<S: Isa>(isa: S, a: S::$vector, b: S::$vector) -> S::$vector {
                isa.$mul(a, b)
            }
            #[inline(always)]
            fn div<S: Isa>(isa: S, a: S::$vector, b: S::$vector) -> S::$vector {
                isa.$div(a, b)
            }
            #[inline(always)]
            fn mul_add<S: Isa>(isa: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                isa.$mul_add(a, b, c)
            }
            #[inline(always)]
            fn abs<S: Isa>(isa: S, a: S::$vector) -> S::$vector {
                isa.$abs(a)
            }
            #[inline(always)]
            fn less<S: Isa>(isa: S, a: S::$vector, b: S::$vector) -> S::$mask {
                isa.$less(a, b)
            }
            #[inline(always)]
            fn select<S: Isa>(isa: S, mask: S::$mask, a: S::$vector, b: S::$vector) -> S::$vector {
                isa.$select(mask, a, b)
            }
            #[inline(always)]
            fn sum<S: Isa>(isa: S, a: S::$vector) -> Self {
                isa.$sum(a)
            }
            #[inline(always)]
            fn rotate_right<S: Isa>(isa: S, a: S::$vector, lanes: usize) -> S::$vector {
                isa.$rotate(a, lanes)
            }
            #[inline(always)]
            fn load_first<S: Isa>(isa: S, values: &[Self]) -> S::$vector {
                isa.$load(values)
            }
            #[inline(always)]
            fn store_first<S: Isa>(isa: S, values: &mut [Self], a: S::$vector) {
                isa.$store(values, a)
            }
            #[inline(always)]
            fn exp2_product<S: Isa>(a: Lanes<Self, S>, b: Lanes<Self, S>) -> Lanes<Self, S> {
                exponential::$exp2(a, b)
            }
            #[inline(always)]
            fn scale<S: Isa>(fraction: Lanes<Self, S>, exponent: Lanes<Self, S>) -> Lanes<Self, S> {
                Lanes::new(fraction.isa, fraction.isa.$scale(fraction.vector, exponent.vector))
            }
            #[inline(always)]
            fn remainder<S: Isa>(remainder: Lanes<Self, S>) -> Lanes<Self, S> {
                Lanes::new(remainder.isa, remainder.isa.$remainder(remainder.vector))
            }
            #[inline(always)]
            fn exp<S: Isa>(x: Lanes<Self, S>) -> Lanes<Self, S> {
                exponential::$exp(x)
            }
            #[inline(always)]
            fn ln_1p<S: Isa>(t: Lanes<Self, S>) -> Lanes<Self, S> {
                exponential::$ln_1p(t)
            }
            #[inline(always)]
            fn turn<S: Isa>(a: &QuarterTurns<Self, S>, b: Lanes<Self, S>) -> Turn<Self, S> {
                exponential::$turn(a, b)
            }
        }
    };
}

impl_real! { f32, f32s, m32s, 13, splat_f32s, add_f32s, sub_f32s, mul_f32s, div_f32s, mul_add_e_f32s, abs_f32s, less_than_f32s,
select_f32s, reduce_sum_f32s, rotate_right_f32s, partial_load_f32s, partial_store_f32s, scale_f32, remainder_f32, exp2_f32,
exp_f32, ln_1p_f32, turn_f32 }
impl_real! { f64, f64s, m64s, 23, splat_f64s, add_f64s, sub_f64s, mul_f64s, div_f64s, mul_add_e_f64s, abs_f64s, less_than_f64s,
select_f64s, reduce_sum_f64s, rotate_right_f64s, partial_load_f64s, partial_store_f64s, scale_f64, remainder_f64, exp2_f64,
exp_f64, ln_1p_f64, turn_f64 }

/// A register of real numbers.
#[derive(Clone, Copy)]
pub struct Lanes<R: Real, S: Isa> {
    pub isa: S,
    pub vector: R::Vector<S>,
}

impl<R: Real, S: Isa> Lanes<R, S> {
    /// How many numbers a register holds.
    pub const COUNT: usize = size_of::<R::Vector<S>>() / size_of::<R>();

    #[inline(always)]
    pub fn new(isa: S, vector: R::Vector<S>) -> Self {
        Self { isa, vector }
    }

    #[inline(always)]
    pub fn splat(isa: S, value: R) -> Self {
        Self::new(isa, R::splat(isa, value))
    }

    /// The first numbers of a slice, zeros in the lanes that it does not fill.
    #[inline(always)]
    pub fn load_first(isa: S, values: &[R]) -> Self {
        // A whole register needs no mask.
        if values.len() == Self::COUNT {
            return Self::new(isa, bytemuck::pod_read_unaligned(bytemuck::cast_slice(values)));
        }
        Self::new(isa, R::load_first(isa, values))
    }

    /// As many lanes as the slice holds.
    #[inline(always)]
    pub fn store_first(self, values: &mut [R]) {
        if values.len() == Self::COUNT {
            bytemuck::cast_slice_mut(values).copy_from_slice(bytemuck::bytes_of(&self.vector));
            return;
        }
        R::store_first(self.isa, values, self.vector);
    }

    #[inline(always)]
    pub fn constant(self, value: f64) -> Self {
        Self::splat(self.isa, R::from_f64(value))
    }

    #[inline(always)]
    pub fn abs(self) -> Self {
        Self::new(self.isa, R::abs(self.isa, self.vector))
    }

    #[inline(always)]
    pub fn less(self, other: Self) -> R::Mask<S> {
        R::less(self.isa, self.vector, other.vector)
    }

    /// `yes` where the mask is set, else `no`.
    #[inline(always)]
    pub fn select(mask: R::Mask<S>, yes: Self, no: Self) -> Self {
        Self::new(yes.isa, R::select(yes.isa, mask, yes.vector, no.vector))
    }

    /// The sum of the lanes, always in the same order.
    #[inline(always)]
    pub fn sum(self) -> R {
        R::sum(self.isa, self.vector)
    }

    /// Every lane's number in the lane that is so many higher, the last ones' in the first lanes.
    #[inline(always)]
    fn rotated(self, lanes: usize) -> Self {
        Self::new(self.isa, R::rotate_right(self.isa, self.vector, lanes))
    }

    /// 1/(1+e⁻ˣ).
    #[inline(always)]
    pub fn sigmoid(self) -> Self {
        let one = self.constant(1.0);
        one / (one + R::exp(-self))
    }

    /// log(1+eˣ), and x itself above 20: max(x, 0) + log(1+e^−|x|), which cancels nowhere.
    #[inline(always)]
    pub fn softplus(self) -> Self {
        let zero = self.constant(0.0);
        let positive = Self::select(zero.less(self), self, zero);
        let soft = positive + R::ln_1p(R::exp(-self.abs()));
        Self::select(self.constant(20.0).less(self), self, soft)
    }

    /// At least `min` and at most `max`; NaN stays.
    #[inline(always)]
    pub fn clamp(self, min: Self, max: Self) -> Self {
        let low = Self::select(self.less(min), min, self);
        Self::select(max.less(low), max, low)
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl<R: Real, S: Isa> $trait for Lanes<R, S> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self::new(self.isa, R::$method(self.isa, self.vector, other.vector))
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl<R: Real, S: Isa> Neg for Lanes<R, S> {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        self.constant(-0.0) - self
    }
}

/// A real A, in the forms that its exponential wants.
#[derive(Clone, Copy)]
pub struct RealRate<R: Real, S: Isa> {
    a: Lanes<R, S>,
    /// In base 2, which spares operations in every frame.
    binary: Lanes<R, S>,
}

impl<R: Real, S: Isa> Field for Lanes<R, S> {
    type Real = Self;
    type Rate = RealRate<R, S>;
    const PHI_TERMS: usize = R::PHI_TERMS;

    #[inline(always)]
    fn from_real(real: Self) -> Self {
        real
    }
    #[inline(always)]
    fn literal(self, value: f64) -> Self {
        self.constant(value)
    }
    #[inline(always)]
    fn times(self, real: Self) -> Self {
        self * real
    }
    #[inline(always)]
    fn times_add(self, real: Self, term: Self) -> Self {
        self.mul_add(real, term)
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        Self::new(self.isa, R::mul_add(self.isa, self.vector, factor.vector, term.vector))
    }
    #[inline(always)]
    fn inverse(self) -> Self {
        self.constant(1.0) / self
    }
    #[inline(always)]
    fn precise_inverse(self) -> Self {
        self.inverse()
    }
    #[inline(always)]
    fn rate(self) -> RealRate<R, S> {
        RealRate { a: self, binary: self.scale(std::f64::consts::LOG2_E) }
    }
    #[inline(always)]
    fn decay(rate: &RealRate<R, S>, delta: Self) -> Self {
        R::exp2_product(rate.binary, delta)
    }
    #[inline(always)]
    fn fine_decay(rate: &RealRate<R, S>, delta: Self) -> Self {
        R::exp(rate.a * delta)
    }
    #[inline(always)]
    fn less_one(decay: Self, _: &RealRate<R, S>, _: Self) -> Self {
        decay.plus(-1.0)
    }
    #[inline(always)]
    fn within(self, radius: f64, inside: Self, outside: Self) -> Self {
        Self::select(self.abs().less(self.constant(radius)), inside, outside)
    }
}

/// A pair of registers: real and imaginary parts.
#[derive(Clone, Copy)]
pub struct ComplexLanes<R: Real, S: Isa> {
    pub re: Lanes<R, S>,
    pub im: Lanes<R, S>,
}

impl<R: Real, S: Isa> ComplexLanes<R, S> {
    #[inline(always)]
    fn norm_squared(self) -> Lanes<R, S> {
        self.re.mul_add(self.re, self.im * self.im)
    }
}

/// ab + cd and what its rounding lost (with fused hardware): the exact products, added without error (Knuth).
#[inline(always)]
fn sum_of_products<R: Real, S: Isa>(
    a: Lanes<R, S>,
    b: Lanes<R, S>,
    c: Lanes<R, S>,
    d: Lanes<R, S>,
) -> [Lanes<R, S>; 2] {
    let (ab, cd) = (a * b, c * d);
    let lost = a.mul_add(b, -ab) + c.mul_add(d, -cd);
    let sum = ab + cd;
    let of_cd = sum - ab;
    [sum, lost + ((ab - (sum - of_cd)) + (cd - of_cd))]
}

/// A complex A, in the forms that its exponential wants.
#[derive(Clone, Copy)]
pub struct ComplexRate<R: Real, S: Isa> {
    re: Lanes<R, S>,
    im: QuarterTurns<R, S>,
}

impl<R: Real, S: Isa> Add for ComplexLanes<R, S> {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }
}

impl<R: Real, S: Isa> Sub for ComplexLanes<R, S> {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self { re: self.re - other.re, im: self.im - other.im }
    }
}

impl<R: Real, S: Isa> Mul for ComplexLanes<R, S> {
    type Output = Self;

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self {
            re: self.re.mul_add(other.re, -(self.im * other.im)),
            im: self.re.mul_add(other.im, self.im * other.re),
        }
    }
}

impl<R: Real, S: Isa> Neg for ComplexLanes<R, S> {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        Self { re: -self.re, im: -self.im }
    }
}

impl<R: Real, S: Isa> Field for ComplexLanes<R, S> {
    type Real = Lanes<R, S>;
    type Rate = ComplexRate<R, S>;
    const PHI_TERMS: usize = R::PHI_TERMS;

    #[inline(always)]
    fn from_real(real: Lanes<R, S>) -> Self {
        Self { re: real, im: real.constant(0.0) }
    }
    #[inline(always)]
    fn literal(self, value: f64) -> Self {
        Self::from_real(self.re.constant(value))
    }
    #[inline(always)]
    fn times(self, real: Lanes<R, S>) -> Self {
        Self { re: self.re * real, im: self.im * real }
    }
    #[inline(always)]
    fn scale(self, factor: f64) -> Self {
        self.times(self.re.constant(factor))
    }
    #[inline(always)]
    fn times_add(self, real: Lanes<R, S>, term: Self) -> Self {
        Self { re: self.re.mul_add(real, term.re), im: self.im.mul_add(real, term.im) }
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        Self {
            re: self.re.mul_add(factor.re, (-self.im).mul_add(factor.im, term.re)),
            im: self.re.mul_add(factor.im, self.im.mul_add(factor.re, term.im)),
        }
    }
    #[inline(always)]
    fn inverse(self) -> Self {
        let scale = self.re.constant(1.0) / self.norm_squared();
        Self { re: self.re * scale, im: -(self.im * scale) }
    }
    #[inline(always)]
    fn precise_inverse(self) -> Self {
        // By a power of two, so that nothing that is squared becomes infinite or zero.
        let one = self.re.constant(1.0);
        let (re, im) = (self.re.abs(), self.im.abs());
        let most = Lanes::select(re.less(im), im, re);
        let small = Lanes::select(most.less(one.scale(1e-18)), one.scale(2f64.powi(64)), one);
        let scale = Lanes::select(one.scale(1e18).less(most), one.scale(2f64.powi(-64)), small);
        let scaled = self.times(scale);
        let [square, rest] = sum_of_products(scaled.re, scaled.re, scaled.im, scaled.im);
        let quotient = |number: Lanes<R, S>| {
            let quotient = number / square;
            let left = (-quotient).mul_add(square, number) - quotient * rest;
            left.mul_add(one / square, quotient)
        };
        Self { re: quotient(scaled.re), im: quotient(-scaled.im) }.times(scale)
    }
    #[inline(always)]
    fn rate(self) -> ComplexRate<R, S> {
        ComplexRate { re: self.re, im: QuarterTurns::new(self.im) }
    }
    #[inline(always)]
    fn decay(rate: &ComplexRate<R, S>, delta: Lanes<R, S>) -> Self {
        // e^x cos y by what it is less than e^x: near 1 a product of two roundings would be as wrong in every frame, the same way.
        let Turn { sin, cos, cos_less_one } = R::turn(&rate.im, delta);
        let scale = R::exp(rate.re * delta);
        let near = scale.mul_add(cos_less_one, scale);
        Self { re: Lanes::select(cos.less(cos.constant(0.5)), scale * cos, near), im: scale * sin }
    }
    #[inline(always)]
    fn fine_decay(rate: &ComplexRate<R, S>, delta: Lanes<R, S>) -> Self {
        Self::decay(rate, delta)
    }
    /// Where e^x cos y is near 1 it would cancel: there it is (e^x − 1) cos y + (cos y − 1).
    #[inline(always)]
    fn less_one(decay: Self, rate: &ComplexRate<R, S>, delta: Lanes<R, S>) -> Self {
        let Turn { cos, cos_less_one, .. } = R::turn(&rate.im, delta);
        let far = decay.re.plus(-1.0);
        let near = exponential::exp_m1(rate.re * delta).mul_add(cos, cos_less_one);
        Self { re: Lanes::select(far.less(far.constant(-0.5)), far, near), im: decay.im }
    }
    /// By a recurrence that takes two operations a coefficient, not four (Knuth, "The Art of Computer Programming" 2, 4.6.4, (3)).
    #[inline(always)]
    fn polynomial(self, coefficients: &[f64]) -> Self {
        let &[lowest, ref between @ .., last, highest] = coefficients else {
            unreachable!("polynomials have more coefficients");
        };
        let (twice, square) = (self.re + self.re, self.norm_squared());
        let mut before = self.re.constant(highest);
        let mut sum = before.mul_add(twice, self.re.constant(last));
        for &coefficient in between.iter().rev() {
            let next = sum.mul_add(twice, (-before).mul_add(square, sum.constant(coefficient)));
            (before, sum) = (sum, next);
        }
        let re = sum.mul_add(self.re, (-before).mul_add(square, sum.constant(lowest)));
        Self { re, im: sum * self.im }
    }
    #[inline(always)]
    fn within(self, radius: f64, inside: Self, outside: Self) -> Self {
        let mask = self.norm_squared().less(self.re.constant(radius * radius));
        Self {
            re: Lanes::select(mask, inside.re, outside.re),
            im: Lanes::select(mask, inside.im, outside.im),
        }
    }
}

/// A [`Field`] of vectors: what it takes to move one between memory and registers.
pub trait VectorField: Field<Real = Lanes<Self::Element, Self::Isa>> + Send + Sync {
    /// The components' type.
    type Element: Real;
    /// The instruction set.
    type Isa: Isa;
    /// Registers that one number takes.
    const COMPONENTS: usize;

    /// From `COMPONENTS` registers in memory.
    fn load(isa: Self::Isa, memory: &[Vector<Self>]) -> Self;
    /// To `COMPONENTS` registers in memory.
    fn store(self, memory: &mut [Vector<Self>]);
    /// One number, given by its `COMPONENTS` components, in every lane.
    fn broadcast(isa: Self::Isa, components: &[Self::Element]) -> Self;
    /// The complex conjugate.
    fn conj(self) -> Self;
    /// The real part.
    fn re(self) -> Self::Real;
    /// `sum + Re(self · other)`.
    fn real_product(self, other: Self, sum: Self::Real) -> Self::Real;
    /// The real part, the imaginary part.
    fn component(self, index: usize) -> Self::Real;

    /// Zero in every lane.
    #[inline(always)]
    fn zero(isa: Self::Isa) -> Self {
        Self::from_real(Lanes::splat(isa, Self::Element::from_f64(0.0)))
    }
}

/// A register of a field's components.
pub type Vector<F> = <<F as VectorField>::Element as Real>::Vector<<F as VectorField>::Isa>;

impl<R: Real, S: Isa> VectorField for Lanes<R, S> {
    type Element = R;
    type Isa = S;
    const COMPONENTS: usize = 1;

    #[inline(always)]
    fn load(isa: S, memory: &[R::Vector<S>]) -> Self {
        Self::new(isa, memory[0])
    }
    #[inline(always)]
    fn store(self, memory: &mut [R::Vector<S>]) {
        memory[0] = self.vector;
    }
    #[inline(always)]
    fn broadcast(isa: S, components: &[R]) -> Self {
        Self::splat(isa, components[0])
    }
    #[inline(always)]
    fn conj(self) -> Self {
        self
    }
    #[inline(always)]
    fn re(self) -> Self {
        self
    }
    #[inline(always)]
    fn real_product(self, other: Self, sum: Self) -> Self {
        self.mul_add(other, sum)
    }
    #[inline(always)]
    fn component(self, _: usize) -> Self {
        self
    }
}

impl<R: Real, S: Isa> VectorField for ComplexLanes<R, S> {
    type Element = R;
    type Isa = S;
    const COMPONENTS: usize = 2;

    #[inline(always)]
    fn load(isa: S, memory: &[R::Vector<S>]) -> Self {
        Self { re: Lanes::new(isa, memory[0]), im: Lanes::new(isa, memory[1]) }
    }
    #[inline(always)]
    fn store(self, memory: &mut [R::Vector<S>]) {
        memory[0] = self.re.vector;
        memory[1] = self.im.vector;
    }
    #[inline(always)]
    fn broadcast(isa: S, components: &[R]) -> Self {
        Self { re: Lanes::splat(isa, components[0]), im: Lanes::splat(isa, components[1]) }
    }
    #[inline(always)]
    fn conj(self) -> Self {
        Self { re: self.re, im: -self.im }
    }
    #[inline(always)]
    fn re(self) -> Lanes<R, S> {
        self.re
    }
    #[inline(always)]
    fn real_product(self, other: Self, sum: Lanes<R, S>) -> Lanes<R, S> {
        self.re.mul_add(other.re, (-self.im).mul_add(other.im, sum))
    }
    #[inline(always)]
    fn component(self, index: usize) -> Lanes<R, S> {
        if index == 0 { self.re } else { self.im }
    }
}

/// Registers whose lanes are summed at once, at most.
const MOST_SUMS: usize = 4;

/// Sums over lanes, of some registers at once: two registers become one, whose even lanes hold what the first has come to and
/// whose odd lanes what the second has, with a single addition; and so on, by distances of two lanes and more. One register
/// after the other takes three times as many operations.
pub struct LaneSums<F: VectorField> {
    /// Lanes whose number has bit i.
    lanes_of_bit: [<F::Element as Real>::Mask<F::Isa>; MOST_SUMS.ilog2() as usize],
}

impl<F: VectorField> LaneSums<F> {
    #[inline(always)]
    pub fn new(isa: F::Isa) -> Self {
        let half = Lanes::<F::Element, F::Isa>::splat(isa, F::Element::from_f64(0.5));
        let mut lanes_of_bit = [half.less(half); MOST_SUMS.ilog2() as usize];
        for (bit, mask) in lanes_of_bit.iter_mut().enumerate() {
            let mut register = [half.vector];
            let lanes: &mut [F::Element] = bytemuck::cast_slice_mut(&mut register);
            for (lane, value) in lanes.iter_mut().enumerate() {
                *value = F::Element::from_f64((lane >> bit & 1) as f64);
            }
            *mask = half.less(Lanes::new(isa, register[0]));
        }
        Self { lanes_of_bit }
    }

    /// Adds the sums over the lanes of N numbers to `N · COMPONENTS` components, always in the same order.
    #[inline(always)]
    pub fn add<const N: usize>(&self, numbers: [F; N], components: &mut [F::Element]) {
        let lanes = Lanes::<F::Element, F::Isa>::COUNT;
        let mut registers = [numbers[0].component(0); MOST_SUMS];
        let mut count = N * F::COMPONENTS;
        assert!(count <= MOST_SUMS && count.is_power_of_two() && components.len() == count);
        for i in 0..count {
            registers[i] = numbers[i / F::COMPONENTS].component(i % F::COMPONENTS);
        }
        let mut distance = 1;
        for mask in self.lanes_of_bit {
            if distance < lanes && count > 1 {
                count /= 2;
                for i in 0..count {
                    let [even, odd] = [registers[2 * i], registers[2 * i + 1]];
                    registers[i] =
                        Lanes::select(mask, odd, even) + Lanes::select(mask, even, odd).rotated(distance);
                }
                distance *= 2;
            }
        }
        let sums = distance;
        if sums == 1 {
            for (component, register) in components.iter_mut().zip(registers) {
                *component = component.plus(register.sum());
            }
            return;
        }
        while distance < lanes {
            for register in &mut registers[..count] {
                *register = *register + register.rotated(distance);
            }
            distance *= 2;
        }
        for (register, components) in registers.iter().zip(components.chunks_exact_mut(sums)) {
            let register = [register.vector];
            let lanes: &[F::Element] = bytemuck::cast_slice(&register);
            for (component, &sum) in components.iter_mut().zip(lanes) {
                *component = component.plus(sum);
            }
        }
    }
}

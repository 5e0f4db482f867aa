//! f32 and f64, by the operations on their registers.

use super::{Isa, Lanes};
use crate::cpu::exponential::{self, QuarterTurns, Turn};

/// f32 or f64, and its vectors.
pub trait Real: bytemuck::Pod + Default + Send + Sync + 'static {
    /// A register.
    type Vector<S: Isa>: bytemuck::Pod + Send + Sync;
    /// The outcome of a comparison.
    type Mask<S: Isa>: Copy;

    /// Terms of the series of φ₄ (see `Field::PHI_TERMS`).
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

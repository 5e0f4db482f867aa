//! Real numbers, one in each lane of a register.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{Isa, Real, VectorField};
use crate::discretize::Field;

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
    pub fn rotated(self, lanes: usize) -> Self {
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

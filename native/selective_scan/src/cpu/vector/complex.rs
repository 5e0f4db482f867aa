//! Complex numbers, one in each lane of a pair of registers.

use std::ops::{Add, Mul, Neg, Sub};

use super::{Isa, Lanes, Real, VectorField};
use crate::cpu::exponential::{self, QuarterTurns, Turn};
use crate::discretize::Field;

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

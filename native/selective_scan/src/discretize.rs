//! The discretizations: decay a and gain g of one frame, and their partial derivatives, for every method.
//!
//! One frame is hᵢ = a hᵢ₋₁ + g v with v = B x. With z = AΔ and φ₁ = (eᶻ−1)/z, φ₂ = (φ₁−1)/z, φ₃ = (φ₂−½)/z:
//!
//! | method | a | g | ∂g/∂Δ | ∂g/∂A |
//! |---|---|---|---|---|
//! | zoh | eᶻ | Δ | 1 | 0 |
//! | zoh_exact | eᶻ | Δφ₁ | eᶻ | Δ²φ₁′ |
//! | foh | eᶻ | Δ²φ₂ | Δφ₁ | Δ³φ₂′ |
//! | bilinear, q = 1/(1−z/2) | (1+z/2)q | Δq | q² | ½Δ²q² |
//! | poly | eᶻ | Δφ₁ + ½Δ²φ₂ | eᶻ + ½Δφ₁ | Δ²φ₁′ + ½Δ³φ₂′ |
//! | highorder | eᶻ | Δφ₁ + Δ²φ₂ + ½Δ³φ₃ | eᶻ + Δφ₁ + ½Δ²φ₂ | Δ²φ₁′ + Δ³φ₂′ + ½Δ⁴φ₃′ |
//! | rk4 | eᶻ | Δ(1 + z/2 + z²/6 + z³/24) | 1 + z + z²/2 + z³/6 | Δ²(½ + z/3 + z²/8) |
//!
//! (∂a/∂Δ, ∂a/∂A) is (Aeᶻ, Δeᶻ), and (Aq², Δq²) for bilinear. zoh is Mamba's (Gu and Dao, "Mamba", 2023, which
//! simplifies B̄ to ΔB); the φ functions are those of exponential integrators (Hochbruck and Ostermann,
//! "Exponential integrators", Acta Numerica 2010); the cut series are those of the VisionMamba implementation.
//!
//! The table is written once, over [`Field`]: vectors of the CPU backend, real or complex, and the plain complex
//! numbers of the naive twin compute from the same lines. `kernels/discretize.cuh` mirrors it name by name.

use std::ops::{Add, Mul, Neg, Sub};

/// The numbers that states, A, B and C are made of: real or complex, one or many in a vector.
pub trait Field:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// The numbers that Δ and x are made of.
    type Real: Copy;

    /// Terms beyond the first of the series of φ₄ that |z| < 3 needs: 3ᵏ/(k+4)! is then below the precision.
    const PHI_TERMS: usize;

    /// A real number as one of these.
    fn from_real(real: Self::Real) -> Self;
    /// A constant, in as many lanes as `self` has.
    fn literal(self, value: f64) -> Self;
    /// The product with a real number.
    fn times(self, real: Self::Real) -> Self;
    /// `self * factor + term`, rounded once where the hardware can.
    fn mul_add(self, factor: Self, term: Self) -> Self;
    /// 1/z.
    fn inverse(self) -> Self;
    /// The quotient.
    fn over(self, divisor: Self) -> Self;
    /// eᶻ to within a few units in the last place.
    fn exp(self) -> Self;
    /// eᶻ − 1, without cancellation near zero.
    fn exp_m1(self) -> Self;
    /// A, in the form that [`Field::decay`] wants.
    fn rate(self) -> Self;
    /// e^(AΔ), from rate(A). Real vectors keep rates in base 2, which spares operations in every frame.
    fn decay(self, delta: Self::Real) -> Self;
    /// `inside` where |z| < radius, else `outside`.
    fn within(self, radius: f64, inside: Self, outside: Self) -> Self;

    /// The product with a constant.
    #[inline(always)]
    fn scale(self, factor: f64) -> Self {
        self * self.literal(factor)
    }

    /// The sum with a constant.
    #[inline(always)]
    fn plus(self, term: f64) -> Self {
        self + self.literal(term)
    }
}

/// Decay and gain of a frame, with their partial derivatives.
#[derive(Debug, Clone, Copy)]
pub struct Partials<F> {
    /// The decay a.
    pub a: F,
    /// The gain g.
    pub g: F,
    /// ∂a/∂Δ.
    pub a_delta: F,
    /// ∂a/∂A.
    pub a_a: F,
    /// ∂g/∂Δ.
    pub g_delta: F,
    /// ∂g/∂A.
    pub g_a: F,
}

/// A method with its kind of coefficients.
pub trait Discretization: Copy + Default + Send + Sync + 'static {
    /// Whether coefficients cost little more than an exponential.
    const CHEAP: bool = false;

    /// A in the form that [`Discretization::coefficients`] wants.
    #[inline(always)]
    fn prepare<F: Field>(a: F) -> F {
        a
    }

    /// Decay and gain, from Δ and a prepared A.
    fn coefficients<F: Field>(delta: F::Real, prepared_a: F) -> (F, F);

    /// Decay, gain and derivatives, from Δ and A.
    fn partials<F: Field>(delta: F::Real, a: F) -> Partials<F>;
}

/// eᶻ, φ₁..φ₃ and φ₁′..φ₃′. What a caller leaves unused costs nothing: all is inlined.
pub(crate) struct Phi<F> {
    pub(crate) exp: F,
    pub(crate) phi: [F; 3],
    pub(crate) derivative: [F; 3],
}

/// 1/n!
const fn inverse_factorial(n: usize) -> f64 {
    let (mut product, mut i) = (1.0, 2);
    while i <= n {
        product *= i as f64;
        i += 1;
    }
    1.0 / product
}

/// Near zero the definitions cancel. There φ₄ = Σ zᵏ/(k+4)! and φ₄′ by Horner, and upwards φₖ = 1/k! + zφₖ₊₁ and
/// φₖ′ = φₖ₊₁ + zφₖ₊₁′. Elsewhere the definitions, and φₖ′ = (φₖ₋₁′ − φₖ)/z with φ₀ = eᶻ. They meet where they lose
/// equally much, sooner for φ₁ than for φ₃.
#[inline(always)]
pub(crate) fn phi<F: Field>(z: F) -> Phi<F> {
    let mut s4 = z.literal(inverse_factorial(F::PHI_TERMS + 4));
    let mut t4 = z.literal(0.0);
    for k in (0..F::PHI_TERMS).rev() {
        t4 = t4.mul_add(z, s4);
        s4 = s4.mul_add(z, z.literal(inverse_factorial(k + 4)));
    }
    let s3 = z.mul_add(s4, z.literal(1.0 / 6.0));
    let s2 = z.mul_add(s3, z.literal(0.5));
    let s1 = z.mul_add(s2, z.literal(1.0));
    let t3 = z.mul_add(t4, s4);
    let t2 = z.mul_add(t3, s3);
    let t1 = z.mul_add(t2, s2);

    let exp = z.exp();
    let l1 = z.exp_m1().over(z);
    let l2 = l1.plus(-1.0).over(z);
    let l3 = l2.plus(-0.5).over(z);
    let m1 = (exp - l1).over(z);
    let m2 = (m1 - l2).over(z);
    let m3 = (m2 - l3).over(z);
    Phi {
        exp,
        phi: [z.within(1.0, s1, l1), z.within(3.0, s2, l2), z.within(3.0, s3, l3)],
        derivative: [z.within(2.0, t1, m1), z.within(2.5, t2, m2), z.within(3.0, t3, m3)],
    }
}

/// The partial derivatives of a = eᶻ beside a gain.
#[inline(always)]
fn exponential<F: Field>(delta: F::Real, a: F, exp: F, [g, g_delta, g_a]: [F; 3]) -> Partials<F> {
    Partials { a: exp, g, a_delta: a * exp, a_a: exp.times(delta), g_delta, g_a }
}

/// Mamba's zero-order hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct Zoh;

impl Discretization for Zoh {
    const CHEAP: bool = true;

    #[inline(always)]
    fn prepare<F: Field>(a: F) -> F {
        a.rate()
    }

    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, prepared_a: F) -> (F, F) {
        (prepared_a.decay(delta), F::from_real(delta))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: F) -> Partials<F> {
        let exp = a.times(delta).exp();
        exponential(delta, a, exp, [F::from_real(delta), a.literal(1.0), a.literal(0.0)])
    }
}

/// Zero-order hold, exactly.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZohExact;

impl Discretization for ZohExact {
    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: F) -> (F, F) {
        let Phi { exp, phi: [p1, ..], .. } = phi(a.times(delta));
        (exp, p1.times(delta))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: F) -> Partials<F> {
        let Phi { exp, phi: [p1, ..], derivative: [d1, ..] } = phi(a.times(delta));
        exponential(delta, a, exp, [p1.times(delta), exp, d1.times(delta).times(delta)])
    }
}

/// First-order hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct Foh;

impl Discretization for Foh {
    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: F) -> (F, F) {
        let Phi { exp, phi: [_, p2, _], .. } = phi(a.times(delta));
        (exp, p2.times(delta).times(delta))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: F) -> Partials<F> {
        let Phi { exp, phi: [p1, p2, _], derivative: [_, d2, _] } = phi(a.times(delta));
        let g = p2.times(delta).times(delta);
        exponential(delta, a, exp, [g, p1.times(delta), d2.times(delta).times(delta).times(delta)])
    }
}

/// Polynomial interpolation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Poly;

impl Discretization for Poly {
    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: F) -> (F, F) {
        let Phi { exp, phi: [p1, p2, _], .. } = phi(a.times(delta));
        (exp, (p1 + p2.scale(0.5).times(delta)).times(delta))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: F) -> Partials<F> {
        let Phi { exp, phi: [p1, p2, _], derivative: [d1, d2, _] } = phi(a.times(delta));
        let g = (p1 + p2.scale(0.5).times(delta)).times(delta);
        let g_delta = exp + p1.scale(0.5).times(delta);
        let g_a = (d1 + d2.scale(0.5).times(delta)).times(delta).times(delta);
        exponential(delta, a, exp, [g, g_delta, g_a])
    }
}

/// Higher-order hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct Highorder;

impl Discretization for Highorder {
    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: F) -> (F, F) {
        let Phi { exp, phi: [p1, p2, p3], .. } = phi(a.times(delta));
        (exp, (p1 + (p2 + p3.scale(0.5).times(delta)).times(delta)).times(delta))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: F) -> Partials<F> {
        let Phi { exp, phi: [p1, p2, p3], derivative: [d1, d2, d3] } = phi(a.times(delta));
        let g = (p1 + (p2 + p3.scale(0.5).times(delta)).times(delta)).times(delta);
        let g_delta = exp + (p1 + p2.scale(0.5).times(delta)).times(delta);
        let g_a = (d1 + (d2 + d3.scale(0.5).times(delta)).times(delta)).times(delta).times(delta);
        exponential(delta, a, exp, [g, g_delta, g_a])
    }
}

/// The bilinear (Tustin) transform.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bilinear;

impl Discretization for Bilinear {
    const CHEAP: bool = true;

    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: F) -> (F, F) {
        let half = a.times(delta).scale(0.5);
        let q = (half.literal(1.0) - half).inverse();
        (half.plus(1.0) * q, q.times(delta))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: F) -> Partials<F> {
        let half = a.times(delta).scale(0.5);
        let q = (half.literal(1.0) - half).inverse();
        let q2 = q * q;
        let a_a = q2.times(delta);
        Partials {
            a: half.plus(1.0) * q,
            g: q.times(delta),
            a_delta: a * q2,
            a_a,
            g_delta: q2,
            g_a: a_a.times(delta).scale(0.5),
        }
    }
}

/// The gain of the classical Runge–Kutta method.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rk4;

impl Discretization for Rk4 {
    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: F) -> (F, F) {
        let z = a.times(delta);
        (z.exp(), polynomial(z, [1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0]).times(delta))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: F) -> Partials<F> {
        let z = a.times(delta);
        let g = polynomial(z, [1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0]).times(delta);
        let g_delta = polynomial(z, [1.0, 1.0, 1.0 / 2.0, 1.0 / 6.0]);
        let g_a = polynomial(z, [1.0 / 2.0, 1.0 / 3.0, 1.0 / 8.0]).times(delta).times(delta);
        exponential(delta, a, z.exp(), [g, g_delta, g_a])
    }
}

/// Σ cₖ zᵏ by Horner.
#[inline(always)]
fn polynomial<F: Field, const N: usize>(z: F, coefficients: [f64; N]) -> F {
    let mut sum = z.literal(coefficients[N - 1]);
    for k in (0..N - 1).rev() {
        sum = sum.mul_add(z, z.literal(coefficients[k]));
    }
    sum
}

/// A truncated series g = Δᵐ Σₖ pₖ(A) Δᵏ; row k of the table holds the polynomial pₖ in A, lowest power first.
#[derive(Debug, Clone, Copy, Default)]
struct Series<const TERMS: usize, const POWER: usize>;

type Table<const TERMS: usize> = [[f64; 4]; TERMS];

impl<const TERMS: usize, const POWER: usize> Series<TERMS, POWER> {
    /// Δᵐ⁻¹, where m is `POWER`: 1 or 2.
    #[inline(always)]
    fn lead<F: Field>(delta: F::Real, sum: F) -> F {
        if POWER == 2 { sum.times(delta) } else { sum }
    }

    /// [g, ∂g/∂Δ, ∂g/∂A], Horner in Δ over Horner in A.
    #[inline(always)]
    fn evaluate<F: Field>(delta: F::Real, a: F, table: &Table<TERMS>) -> [F; 3] {
        let zero = a.literal(0.0);
        let (mut g, mut g_delta, mut g_a) = (zero, zero, zero);
        for k in (0..TERMS).rev() {
            let [c0, c1, c2, c3] = table[k];
            let p = polynomial(a, [c0, c1, c2, c3]);
            let p_a = polynomial(a, [c1, 2.0 * c2, 3.0 * c3]);
            g = g.times(delta) + p;
            g_delta = g_delta.times(delta) + p.scale((k + POWER) as f64);
            g_a = g_a.times(delta) + p_a;
        }
        [Self::lead(delta, g).times(delta), Self::lead(delta, g_delta), Self::lead(delta, g_a).times(delta)]
    }
}

/// Declares a method whose gain is a truncated series.
macro_rules! truncated {
    ($(#[$doc:meta])* $name:ident, power $power:literal, $table:ident = $rows:expr) => {
        const $table: Table<4> = $rows;

        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $name;

        impl Discretization for $name {
            #[inline(always)]
            fn coefficients<F: Field>(delta: F::Real, a: F) -> (F, F) {
                let [g, ..] = Series::<4, $power>::evaluate(delta, a, &$table);
                (a.times(delta).exp(), g)
            }

            #[inline(always)]
            fn partials<F: Field>(delta: F::Real, a: F) -> Partials<F> {
                let series = Series::<4, $power>::evaluate(delta, a, &$table);
                exponential(delta, a, a.times(delta).exp(), series)
            }
        }
    };
}

truncated! {
    /// First-order hold, cut: Δ²/2 + AΔ³/6 + A²Δ⁴/24 + A³Δ⁵/120.
    FohTaylor, power 2, FOH_SERIES = [
        [1.0 / 2.0, 0.0, 0.0, 0.0],
        [0.0, 1.0 / 6.0, 0.0, 0.0],
        [0.0, 0.0, 1.0 / 24.0, 0.0],
        [0.0, 0.0, 0.0, 1.0 / 120.0],
    ]
}

truncated! {
    /// Polynomial interpolation, cut: Δ + (A/2+¼)Δ² + (A²/6+A/12)Δ³ + (A³/24+A²/48)Δ⁴.
    PolyTaylor, power 1, POLY_SERIES = [
        [1.0, 0.0, 0.0, 0.0],
        [1.0 / 4.0, 1.0 / 2.0, 0.0, 0.0],
        [0.0, 1.0 / 12.0, 1.0 / 6.0, 0.0],
        [0.0, 0.0, 1.0 / 48.0, 1.0 / 24.0],
    ]
}

truncated! {
    /// Higher-order hold, cut: Δ + (A/2+½)Δ² + (A²/6+A/6+1/12)Δ³ + (A³/24+A²/24+A/48)Δ⁴.
    HighorderTaylor, power 1, HIGHORDER_SERIES = [
        [1.0, 0.0, 0.0, 0.0],
        [1.0 / 2.0, 1.0 / 2.0, 0.0, 0.0],
        [1.0 / 12.0, 1.0 / 6.0, 1.0 / 6.0, 0.0],
        [0.0, 1.0 / 48.0, 1.0 / 24.0, 1.0 / 24.0],
    ]
}

/// Calls a generic function with the discretization that a method and its coefficients name.
macro_rules! with_discretization {
    ($method:expr, $coefficients:expr, $D:ident => $call:expr) => {{
        use $crate::discretize as d;
        use $crate::{Coefficients as C, Method as M};
        macro_rules! call {
            ($name:ident) => {{
                type $D = d::$name;
                $call
            }};
        }
        match ($method, $coefficients) {
            (M::Zoh, _) => call!(Zoh),
            (M::ZohExact, _) => call!(ZohExact),
            (M::Foh, C::Exact) => call!(Foh),
            (M::Foh, C::Taylor) => call!(FohTaylor),
            (M::Bilinear, _) => call!(Bilinear),
            (M::Poly, C::Exact) => call!(Poly),
            (M::Poly, C::Taylor) => call!(PolyTaylor),
            (M::Highorder, C::Exact) => call!(Highorder),
            (M::Highorder, C::Taylor) => call!(HighorderTaylor),
            (M::Rk4, _) => call!(Rk4),
        }
    }};
}
pub(crate) use with_discretization;

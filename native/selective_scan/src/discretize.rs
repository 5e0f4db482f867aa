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
//! (∂a/∂Δ, ∂a/∂A) is (A, Δ) times a slope: eᶻ, and q² for bilinear. zoh is Mamba's (Gu and Dao, "Mamba", 2023, which
//! simplifies B̄ to ΔB); the φ functions are those of exponential integrators (Hochbruck and Ostermann,
//! "Exponential integrators", Acta Numerica 2010); the cut series are those of the VisionMamba implementation.
//!
//! The table is written once, over [`Field`]: vectors of the CPU backend, real or complex, and the plain complex
//! numbers of the naive twin compute from the same lines. `kernels/discretize.cuh` has the same table.

use std::ops::{Add, Mul, Neg, Sub};

/// The numbers that states, A, B and C are made of: real or complex, one or many in a vector.
pub trait Field:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// The numbers that Δ and x are made of.
    type Real: Copy + Mul<Output = Self::Real>;
    /// What [`Field::decay`] makes of A: it does not change along a sequence.
    type Rate: Copy;

    /// Terms beyond the first of the series of φ₄ that |z| < 3 needs: 3ᵏ/(k+4)! is then below the precision.
    const PHI_TERMS: usize;

    /// A real number as one of these.
    fn from_real(real: Self::Real) -> Self;
    /// A constant, in as many lanes as `self` has.
    fn literal(self, value: f64) -> Self;
    /// The product with a real number.
    fn times(self, real: Self::Real) -> Self;
    /// `self * real + term`, rounded once where the hardware can.
    fn times_add(self, real: Self::Real, term: Self) -> Self;
    /// `self * factor + term`, rounded once where the hardware can.
    fn mul_add(self, factor: Self, term: Self) -> Self;
    /// 1/z.
    fn inverse(self) -> Self;
    /// 1/z, rounded nearly as well as can be.
    fn precise_inverse(self) -> Self;
    /// A, in the form that [`Field::decay`] wants.
    fn rate(self) -> Self::Rate;
    /// e^(AΔ), from the rate of A: what costs least.
    fn decay(rate: &Self::Rate, delta: Self::Real) -> Self;
    /// e^(AΔ), of which φ functions can be made.
    fn fine_decay(rate: &Self::Rate, delta: Self::Real) -> Self;
    /// e^(AΔ) − 1, from e^(AΔ); only asked for where |AΔ| ≥ 1.
    fn less_one(decay: Self, rate: &Self::Rate, delta: Self::Real) -> Self;
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

    /// Σ cₖ zᵏ, the coefficient of the lowest power first.
    #[inline(always)]
    fn polynomial(self, coefficients: &[f64]) -> Self {
        let (&highest, lower) = coefficients.split_last().expect("a coefficient");
        let mut sum = self.literal(highest);
        for &coefficient in lower.iter().rev() {
            sum = sum.mul_add(self, self.literal(coefficient));
        }
        sum
    }
}

/// A, with what is made of A alone. What a method leaves unused costs nothing: all is inlined.
#[derive(Debug, Clone, Copy)]
pub struct Prepared<F: Field> {
    /// A itself.
    pub a: F,
    rate: F::Rate,
    inverse: F,
}

impl<F: Field> Prepared<F> {
    /// Of A.
    #[inline(always)]
    pub fn new(a: F) -> Self {
        Self { a, rate: a.rate(), inverse: a.precise_inverse() }
    }

    #[inline(always)]
    fn decay(&self, delta: F::Real) -> F {
        F::fine_decay(&self.rate, delta)
    }
}

/// Decay and gain of a frame, with their partial derivatives.
#[derive(Debug, Clone, Copy)]
pub struct Partials<F> {
    /// The decay a.
    pub a: F,
    /// What its derivatives have in common: ∂a/∂Δ is A times, ∂a/∂A is Δ times this.
    pub slope: F,
    /// The gain g.
    pub g: F,
    /// ∂g/∂Δ.
    pub g_delta: F,
    /// ∂g/∂A.
    pub g_a: F,
}

/// A method with its kind of coefficients.
pub trait Discretization: Copy + Default + Send + Sync + 'static {
    /// Whether coefficients cost little more than an exponential.
    const CHEAP: bool = false;
    /// Whether the gain is Δ.
    const GAIN_IS_DELTA: bool = false;

    /// Decay and gain.
    fn coefficients<F: Field>(delta: F::Real, a: &Prepared<F>) -> (F, F);

    /// Decay, gain and derivatives, of which the decay is known.
    fn partials<F: Field>(delta: F::Real, a: &Prepared<F>, decay: F) -> Partials<F>;
}

/// Mamba's zero-order hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct Zoh;

impl Discretization for Zoh {
    const CHEAP: bool = true;
    const GAIN_IS_DELTA: bool = true;

    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: &Prepared<F>) -> (F, F) {
        (F::decay(&a.rate, delta), F::from_real(delta))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: &Prepared<F>, decay: F) -> Partials<F> {
        let (g_delta, g_a) = (a.a.literal(1.0), a.a.literal(0.0));
        Partials { a: decay, slope: decay, g: F::from_real(delta), g_delta, g_a }
    }
}

/// 1/(k+4)!, and what becomes of the series in its derivative: (k+1)/(k+5)!.
const PHI4: [[f64; 24]; 2] = {
    let (mut series, mut k, mut inverse) = ([[0.0; 24]; 2], 0, 1.0 / 24.0);
    while k < 24 {
        series[0][k] = inverse;
        inverse /= (k + 5) as f64;
        series[1][k] = (k + 1) as f64 * inverse;
        k += 1;
    }
    series
};

// What the φ methods are made of: Eₖ = Δᵏφₖ(z), so that E₀ = eᶻ and, from the recurrence of the φ functions,
//
//   A Eₖ = Eₖ₋₁ − Δᵏ⁻¹/(k−1)!
//   ∂Eₖ/∂Δ = Eₖ₋₁
//   ∂Eₖ/∂A = Eₖ₊₁ + A ∂Eₖ₊₁/∂A = (ΔEₖ₋₁ − kEₖ)/A
//
// Near z = 0 they are had from the φ functions, far from it from the decay up. They meet where they lose equally much.

/// E₁ to E₃ near z = 0, from φ₁ to φ₃.
#[inline(always)]
fn integrals_near<F: Field>(delta: F::Real, [p1, p2, p3]: [F; 3]) -> [F; 3] {
    let square = delta * delta;
    [p1.times(delta), p2.times(square), p3.times(square * delta)]
}

/// E₁ to E₃ far from z = 0, from E₀. 1/A, which does not change along a sequence, is the only quotient.
#[inline(always)]
fn integrals_far<F: Field>(delta: F::Real, a: &Prepared<F>, decay: F) -> [F; 3] {
    let f1 = F::less_one(decay, &a.rate, delta) * a.inverse;
    let f2 = (f1 - F::from_real(delta)) * a.inverse;
    let f3 = (f2 - F::from_real(delta * delta).scale(1.0 / 2.0)) * a.inverse;
    [f1, f2, f3]
}

/// φ₁ to φ₃ near z = 0, and φ₄: its series, from which φₖ = 1/k! + zφₖ₊₁ leads down.
///
/// Of z, not of A and powers of Δ: Δ⁴ soon is more than f32 holds, or less, where the gain is not.
#[inline(always)]
fn phi<F: Field>(z: F) -> ([F; 3], F) {
    let p4 = z.polynomial(&PHI4[0][..=F::PHI_TERMS]);
    let p3 = z.mul_add(p4, z.literal(1.0 / 6.0));
    let p2 = z.mul_add(p3, z.literal(1.0 / 2.0));
    ([z.mul_add(p2, z.literal(1.0)), p2, p3], p4)
}

/// Their derivatives, φ₁′ to φ₃′, by the same recurrence: φₖ′ = φₖ₊₁ + zφₖ₊₁′.
#[inline(always)]
fn phi_slopes<F: Field>(z: F, [_, p2, p3]: [F; 3], p4: F) -> [F; 3] {
    let s4 = z.polynomial(&PHI4[1][..F::PHI_TERMS]);
    let s3 = z.mul_add(s4, p4);
    let s2 = z.mul_add(s3, p3);
    [z.mul_add(s2, p2), s2, s3]
}

/// A method whose gain is made of E₁ to E₃.
trait OfIntegrals: Copy + Default + Send + Sync + 'static {
    /// Where |z| is below these, g, ∂g/∂Δ and ∂g/∂A come from what is near zero.
    const NEAR: [f64; 3];

    /// The gain; of derivatives of the integrals, the derivative of the gain.
    fn gain<F: Field>(integrals: [F; 3]) -> F;
}

impl<M: OfIntegrals> Discretization for M {
    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: &Prepared<F>) -> (F, F) {
        let (z, decay) = (a.a.times(delta), a.decay(delta));
        let near = M::gain(integrals_near(delta, phi(z).0));
        (decay, z.within(M::NEAR[0], near, M::gain(integrals_far(delta, a, decay))))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: &Prepared<F>, decay: F) -> Partials<F> {
        let z = a.a.times(delta);
        let (phi, p4) = phi(z);
        let [n1, n2, n3] = integrals_near(delta, phi);
        let [f1, f2, f3] = integrals_far(delta, a, decay);
        // ∂Eₖ/∂A = Δᵏ⁺¹φₖ′
        let slopes = integrals_near(delta, phi_slopes(z, phi, p4));
        let near_a = M::gain(slopes).times(delta);
        let far_delta = M::gain([decay, f1, f2]);
        let far_a = (far_delta.times(delta) - M::gain([f1, f2.scale(2.0), f3.scale(3.0)])) * a.inverse;
        let [of_g, of_g_delta, of_g_a] = M::NEAR;
        Partials {
            a: decay,
            slope: decay,
            g: z.within(of_g, M::gain([n1, n2, n3]), M::gain([f1, f2, f3])),
            g_delta: z.within(of_g_delta, M::gain([decay, n1, n2]), far_delta),
            g_a: z.within(of_g_a, near_a, far_a),
        }
    }
}

/// Declares a method whose gain is made of integrals.
macro_rules! of_integrals {
    ($(#[$doc:meta])* $name:ident, $near:expr, $integrals:pat => $gain:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $name;

        impl OfIntegrals for $name {
            const NEAR: [f64; 3] = $near;

            #[inline(always)]
            fn gain<F: Field>($integrals: [F; 3]) -> F {
                $gain
            }
        }
    };
}

of_integrals! {
    /// Zero-order hold, exactly.
    ZohExact, [1.0, 1.0, 2.0], [e1, ..] => e1
}

of_integrals! {
    /// First-order hold.
    Foh, [2.5, 1.0, 2.5], [_, e2, _] => e2
}

of_integrals! {
    /// Polynomial interpolation.
    Poly, [2.0, 1.0, 2.5], [e1, e2, _] => e1 + e2.scale(0.5)
}

of_integrals! {
    /// Higher-order hold.
    Highorder, [3.0, 3.0, 3.0], [e1, e2, e3] => e1 + e2 + e3.scale(0.5)
}

/// The bilinear (Tustin) transform.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bilinear;

impl Bilinear {
    /// z, and q.
    #[inline(always)]
    fn z_and_q<F: Field>(delta: F::Real, a: &Prepared<F>) -> [F; 2] {
        let z = a.a.times(delta);
        [z, (z.literal(1.0) - z.scale(0.5)).inverse()]
    }
}

impl Discretization for Bilinear {
    const CHEAP: bool = true;

    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: &Prepared<F>) -> (F, F) {
        // (1 + z/2) q = 1 + z q: near 1 a product of two roundings would be as wrong in every frame, the same way.
        let [z, q] = Self::z_and_q(delta, a);
        (z.mul_add(q, z.literal(1.0)), q.times(delta))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: &Prepared<F>, decay: F) -> Partials<F> {
        let [_, q] = Self::z_and_q(delta, a);
        let slope = q * q;
        Partials {
            a: decay,
            slope,
            g: q.times(delta),
            g_delta: slope,
            g_a: slope.times(delta).times(delta).scale(0.5),
        }
    }
}

/// The gain of the classical Runge–Kutta method.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rk4;

impl Rk4 {
    #[inline(always)]
    fn gain<F: Field>(delta: F::Real, z: F) -> F {
        z.polynomial(&[1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0]).times(delta)
    }
}

impl Discretization for Rk4 {
    const CHEAP: bool = true;

    #[inline(always)]
    fn coefficients<F: Field>(delta: F::Real, a: &Prepared<F>) -> (F, F) {
        (a.decay(delta), Self::gain(delta, a.a.times(delta)))
    }

    #[inline(always)]
    fn partials<F: Field>(delta: F::Real, a: &Prepared<F>, decay: F) -> Partials<F> {
        let z = a.a.times(delta);
        Partials {
            a: decay,
            slope: decay,
            g: Self::gain(delta, z),
            g_delta: z.polynomial(&[1.0, 1.0, 1.0 / 2.0, 1.0 / 6.0]),
            g_a: z.polynomial(&[1.0 / 2.0, 1.0 / 3.0, 1.0 / 8.0]).times(delta).times(delta),
        }
    }
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
            let p = a.polynomial(&[c0, c1, c2, c3]);
            let p_a = a.polynomial(&[c1, 2.0 * c2, 3.0 * c3]);
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
            fn coefficients<F: Field>(delta: F::Real, a: &Prepared<F>) -> (F, F) {
                let [g, ..] = Series::<4, $power>::evaluate(delta, a.a, &$table);
                (a.decay(delta), g)
            }

            #[inline(always)]
            fn partials<F: Field>(delta: F::Real, a: &Prepared<F>, decay: F) -> Partials<F> {
                let [g, g_delta, g_a] = Series::<4, $power>::evaluate(delta, a.a, &$table);
                Partials { a: decay, slope: decay, g, g_delta, g_a }
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

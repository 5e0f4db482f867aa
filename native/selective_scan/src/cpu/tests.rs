//! What only the inside of the backend can show: the coefficients alone. Passes are tested from outside (tests/instruction_sets.rs): here
//! all that a test calls would be compiled once more.

use std::marker::PhantomData;

use num_complex::Complex64;
use pulp::NullaryFnOnce;

use super::InstructionSet;
use super::vector::{ComplexLanes, Isa, Lanes, Real, Vector, VectorField, with_isa};
use crate::discretize::{Discretization, Foh, Highorder, Partials, Poly, Prepared, ZohExact};

/// g, ∂g/∂Δ and ∂g/∂A of one of the methods that are made of φ functions, for every A, given by its components, and one Δ.
struct PartialsOf<'a, F: VectorField, D>(
    F::Isa,
    F::Element,
    &'a [F::Element],
    &'a mut Vec<[Complex64; 3]>,
    PhantomData<D>,
);

impl<F: VectorField, D: Discretization> NullaryFnOnce for PartialsOf<'_, F, D> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(isa, delta, a, out, _) = self;
        let delta = Lanes::splat(isa, delta);
        for a in a.chunks_exact(F::COMPONENTS) {
            let a = Prepared::new(F::broadcast(isa, a));
            let (decay, gain) = D::coefficients::<F>(delta, &a);
            let partials = D::partials::<F>(delta, &a, decay);
            let [g, again, g_delta, g_a] = [gain, partials.g, partials.g_delta, partials.g_a].map(|number| {
                let mut registers = vec![F::zero(isa).re().vector; F::COMPONENTS];
                number.store(&mut registers);
                let first =
                    |register: &Vector<F>| bytemuck::bytes_of(register)[..size_of::<F::Element>()].to_vec();
                let component = |i: usize| match registers.get(i) {
                    Some(register) => bytemuck::pod_read_unaligned::<F::Element>(&first(register)).to_f64(),
                    None => 0.0,
                };
                Complex64::new(component(0), component(1))
            });
            assert_eq!(g, again);
            out.push([g, g_delta, g_a]);
        }
    }
}

/// Worst relative errors of f32, in units of 2⁻²³, over z given by their components: of Δ = 1, where a gain is made of all its φ
/// functions, and of 64, where the highest of them is nearly all of it.
fn worst<S: Isa, F: VectorField<Element = f32, Isa = S>, D: Discretization>(isa: S, z: &[f32]) -> [f64; 3] {
    let mut worst = [0.0f64; 3];
    for delta in [1.0, 64.0] {
        let a: Vec<f32> = z.iter().map(|z| z / delta).collect();
        let mut got = Vec::new();
        isa.vectorize(PartialsOf::<F, D>(isa, delta, &a, &mut got, PhantomData));
        for (a, got) in a.chunks_exact(F::COMPONENTS).zip(got) {
            let a = Complex64::new(a[0].into(), a.get(1).map_or(0.0, |&im| im.into()));
            let (a, delta) = (Prepared::new(a), f64::from(delta));
            let (decay, _) = D::coefficients(delta, &a);
            let Partials { g, g_delta, g_a, .. } = D::partials(delta, &a, decay);
            for ((worst, got), truth) in worst.iter_mut().zip(got).zip([g, g_delta, g_a]) {
                if truth.norm() > 1e-30 {
                    *worst = worst.max((got - truth).norm() / truth.norm() * f64::from(1u32 << 23));
                }
            }
        }
    }
    worst
}

fn assert_worst<S: Isa, F: VectorField<Element = f32, Isa = S>>(isa: S, z: &[f32]) {
    let methods = [
        ("zoh_exact", worst::<S, F, ZohExact>(isa, z), [1.8, 1.4, 6.5]),
        ("foh", worst::<S, F, Foh>(isa, z), [2.1, 1.8, 6.5]),
        ("poly", worst::<S, F, Poly>(isa, z), [2.4, 9.0, 6.5]),
        ("highorder", worst::<S, F, Highorder>(isa, z), [2.8, 16.0, 12.7]),
    ];
    for (method, worst, allowed) in methods {
        let within = worst.iter().zip(allowed).all(|(worst, allowed)| *worst <= allowed);
        assert!(within, "{method} by {}: {worst:.2?} units, allowed {allowed:?}", S::NAME);
    }
}

/// Zero, and both signs of 10⁻²⁰ to 300, densest near zero and at |z| = 2, among the places where the formulas change.
fn magnitudes(count: usize) -> impl Iterator<Item = f64> {
    let near_two = (0..count).map(move |i| 2.0 + 1e-3 * (i as f64 / count as f64 - 0.5));
    (0..count)
        .map(move |i| 10f64.powf(-20.0 + 22.4771 * i as f64 / count as f64))
        .chain(near_two)
        .chain([0.0])
}

#[test]
fn gains_are_accurate_on_the_real_line() {
    let linear = (0..200_001).map(|i| -300.0 + 310.0 * f64::from(i) / 200_000.0);
    let signed = magnitudes(20_000).flat_map(|z| [-z, z]).filter(|&z| z <= 10.0);
    let z: Vec<f32> = linear.chain(signed).map(|z| z as f32).collect();
    for set in InstructionSet::all() {
        with_isa!(set.0, isa => assert_worst::<_, Lanes<f32, _>>(isa, &z));
    }
}

/// 1/A is had before Δ is known: neither may be so large or small that the other cannot make up for it.
#[test]
fn gains_are_right_of_rates_that_are_infinite_when_squared() {
    struct Gain<F: VectorField>(F::Isa, [F::Element; 2], F::Element);

    impl<F: VectorField> NullaryFnOnce for Gain<F> {
        type Output = Vector<F>;

        #[inline(always)]
        fn call(self) -> Vector<F> {
            let a = Prepared::new(F::broadcast(self.0, &self.1));
            ZohExact::coefficients::<F>(Lanes::splat(self.0, self.2), &a).1.re().vector
        }
    }

    fn check<S: Isa>(isa: S) {
        for (re, delta) in [(-1e22f32, 3e-22f32), (-1e-22, 3e22), (-1e30, 3e-30), (-1e-30, 3e30)] {
            let gain = isa.vectorize(Gain::<ComplexLanes<f32, S>>(isa, [re, 0.0], delta));
            let gain = bytemuck::cast_slice::<_, f32>(&[gain])[0];
            let expected = (re * delta).exp_m1() / re;
            assert!((gain / expected - 1.0).abs() < 1e-6, "{}: {gain} for {expected}", S::NAME);
        }
    }

    for set in InstructionSet::all() {
        with_isa!(set.0, isa => check(isa));
    }
}

#[test]
fn gains_are_accurate_in_the_left_half_plane() {
    let z: Vec<f32> = magnitudes(400)
        .flat_map(|radius| {
            (0..=180).map(move |i| {
                let angle = std::f64::consts::PI * (0.5 + f64::from(i) / 180.0);
                [(radius * angle.cos()).min(0.0) as f32, (radius * angle.sin()) as f32]
            })
        })
        .flatten()
        .collect();
    for set in InstructionSet::all() {
        with_isa!(set.0, isa => assert_worst::<_, ComplexLanes<f32, _>>(isa, &z));
    }
}

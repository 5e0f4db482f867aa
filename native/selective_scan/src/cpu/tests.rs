//! What only the inside of the backend can show: every instruction set of this machine, and the coefficients alone.

use num_complex::Complex64;
use pulp::NullaryFnOnce;

use super::vector::{ComplexLanes, Isa, Lanes, Real, Vector, VectorField};
use super::{Backward, Forward, dispatch_on};
use crate::discretize::{Phi, phi};
use crate::{ElementType, Gradients, Inputs, OutputGradients, Outputs, Problem};

#[path = "../../tests/support/mod.rs"]
mod support;

use support::{assert_close, golden};

/// Runs something with every instruction set that this machine has.
macro_rules! on_every_isa {
    ($isa:ident => $run:expr) => {
        let $isa = pulp::Scalar;
        $run;
        #[cfg(target_arch = "x86_64")]
        if let Some($isa) = pulp::x86::V3::try_new() {
            $run;
        }
        #[cfg(target_arch = "x86_64")]
        if let Some($isa) = pulp::x86::V4::try_new() {
            $run;
        }
        #[cfg(target_arch = "aarch64")]
        if let Some($isa) = pulp::aarch64::Neon::try_new() {
            $run;
        }
    };
}

#[test]
fn golden_cases_on_every_instruction_set() {
    fn check<S: Isa>(isa: S, case: &support::Case, golden: &golden::Golden, within: [f64; 2]) {
        let outputs =
            case.forward_with(|problem: &Problem, inputs: Inputs<&[u8]>, outputs: Outputs<&mut [u8]>| {
                dispatch_on(isa, problem, inputs, Forward { outputs, boundary_states: None })
            });
        let name = format!("{} {}", S::NAME, case.name);
        assert_close(&name, outputs.iter(), golden.outputs.iter(), within[0]);
        let gradients = case.backward_with(
            |problem: &Problem,
             inputs: Inputs<&[u8]>,
             upstream: OutputGradients<&[u8]>,
             gradients: Gradients<&mut [u8]>| {
                dispatch_on(isa, problem, inputs, Backward { boundary_states: None, upstream, gradients })
            },
        );
        assert_close(&name, gradients.iter(), golden.gradients.iter(), within[1]);
    }

    for golden in golden::load() {
        for (element, within) in [(ElementType::F32, [2e-6, 1e-5]), (ElementType::F64, [1e-12, 1e-10])] {
            let case = golden.case(element);
            on_every_isa!(isa => check(isa, &case, &golden, within));
        }
    }
}

/// eᶻ, φ₁..φ₃ and φ₁′..φ₃′ of numbers given by their components.
struct PhiOf<'a, F: VectorField>(F::Isa, &'a [F::Element], &'a mut Vec<[Complex64; 7]>);

impl<F: VectorField> NullaryFnOnce for PhiOf<'_, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(isa, z, out) = self;
        for z in z.chunks_exact(F::COMPONENTS) {
            let Phi { exp, phi: [p1, p2, p3], derivative: [d1, d2, d3] } = phi(F::broadcast(isa, z));
            out.push([exp, p1, p2, p3, d1, d2, d3].map(|number| {
                let mut registers = vec![F::zero(isa).re().vector; F::COMPONENTS];
                number.store(&mut registers);
                let first =
                    |register: &Vector<F>| bytemuck::bytes_of(register)[..size_of::<F::Element>()].to_vec();
                let component = |i: usize| match registers.get(i) {
                    Some(register) => bytemuck::pod_read_unaligned::<F::Element>(&first(register)).to_f64(),
                    None => 0.0,
                };
                Complex64::new(component(0), component(1))
            }));
        }
    }
}

/// Worst relative errors of f32, in units of 2⁻²³, over numbers given by their components.
fn worst<S: Isa, F: VectorField<Element = f32, Isa = S>>(isa: S, z: &[f32]) -> [f64; 7] {
    let mut got = Vec::new();
    isa.vectorize(PhiOf::<F>(isa, z, &mut got));
    let mut worst = [0.0f64; 7];
    for (z, got) in z.chunks_exact(F::COMPONENTS).zip(got) {
        let z = Complex64::new(z[0].into(), z.get(1).map_or(0.0, |&im| im.into()));
        let Phi { exp, phi: [p1, p2, p3], derivative: [d1, d2, d3] } = phi(z);
        for ((worst, got), truth) in worst.iter_mut().zip(got).zip([exp, p1, p2, p3, d1, d2, d3]) {
            if truth.norm() > 1e-30 {
                *worst = worst.max((got - truth).norm() / truth.norm() * f64::from(1u32 << 23));
            }
        }
    }
    worst
}

fn assert_worst(what: &str, worst: [f64; 7], allowed: [f64; 7]) {
    let within = worst.iter().zip(allowed).all(|(worst, allowed)| *worst <= allowed);
    assert!(within, "{what}: {worst:.2?} units, allowed {allowed:?}");
}

/// Zero, and both signs of 10⁻²⁰ to 300, densest near zero and at |z| = 2, where the formulas change.
fn magnitudes(count: usize) -> impl Iterator<Item = f64> {
    let near_two = (0..count).map(move |i| 2.0 + 1e-3 * (i as f64 / count as f64 - 0.5));
    (0..count)
        .map(move |i| 10f64.powf(-20.0 + 22.4771 * i as f64 / count as f64))
        .chain(near_two)
        .chain([0.0])
}

#[test]
fn phi_functions_are_accurate_on_the_real_line() {
    let linear = (0..200_001).map(|i| -300.0 + 310.0 * f64::from(i) / 200_000.0);
    let signed = magnitudes(20_000).flat_map(|z| [-z, z]).filter(|&z| z <= 10.0);
    let z: Vec<f32> = linear.chain(signed).map(|z| z as f32).collect();
    on_every_isa!(isa => {
        let worst = worst::<_, Lanes<f32, _>>(isa, &z);
        assert_worst(name(isa), worst, [1.2, 1.8, 2.0, 3.2, 7.3, 7.1, 15.5]);
    });
}

#[test]
fn phi_functions_are_accurate_in_the_left_half_plane() {
    let z: Vec<f32> = magnitudes(400)
        .flat_map(|radius| {
            (0..=180).map(move |i| {
                let angle = std::f64::consts::PI * (0.5 + f64::from(i) / 180.0);
                [(radius * angle.cos()).min(0.0) as f32, (radius * angle.sin()) as f32]
            })
        })
        .flatten()
        .collect();
    on_every_isa!(isa => {
        let worst = worst::<_, ComplexLanes<f32, _>>(isa, &z);
        assert_worst(name(isa), worst, [1.8, 1.8, 2.0, 3.2, 7.3, 7.1, 15.5]);
    });
}

fn name<S: Isa>(_: S) -> &'static str {
    S::NAME
}

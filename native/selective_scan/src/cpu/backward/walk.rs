//! The walk of a few states through a chunk of a block, and back.

use std::marker::PhantomData;

use pulp::{NullaryFnOnce, Simd};

use super::sums::{Sum, add_registers};
use crate::cpu::frames::SKIP;
use crate::cpu::tile::Rows;
use crate::cpu::vector::{LaneSums, Lanes, Vector, VectorField};
use crate::discretize::{Discretization, Field, Prepared};

/// A chunk of a block, ready to be walked through and back.
pub struct WalkFrames<'a, F: VectorField> {
    pub isa: F::Isa,
    pub delta: &'a [Vector<F>],
    pub x: &'a [Vector<F>],
    pub dy: &'a [Vector<F>],
    pub marks: Option<&'a [u8]>,
    pub b: Rows<'a, F>,
    pub c: Rows<'a, F>,
    pub a: &'a [Vector<F>],
    pub before: &'a [Vector<F>],
    pub reverse: bool,
    /// The mark before which the state is reset, in this direction.
    pub reset: u8,
    pub lambda: &'a mut [Vector<F>],
    pub together: usize,
    pub h: &'a mut [Vector<F>],
    pub decay: &'a mut [Vector<F>],
    pub y: Option<&'a mut [Vector<F>]>,
    pub dx: &'a mut [Vector<F>],
    pub ddelta: &'a mut [Vector<F>],
    pub da: &'a mut [Vector<F>],
    pub db: Sum<'a, F>,
    pub dc: Sum<'a, F>,
}

/// The walk, compiled for a discretization.
pub type WalkChunk<F> = fn(WalkFrames<'_, F>);

pub fn walk_chunk<F: VectorField, D: Discretization>(walk: WalkFrames<'_, F>) {
    struct Run<'a, F: VectorField, D>(WalkFrames<'a, F>, PhantomData<D>);

    impl<F: VectorField, D: Discretization> NullaryFnOnce for Run<'_, F, D> {
        type Output = ();

        #[inline(always)]
        fn call(mut self) {
            let states = self.0.before.len() / F::COMPONENTS;
            let mut n = 0;
            let together = self.0.together / F::COMPONENTS;
            if D::CHEAP && together >= 4 {
                n = self.0.run::<D, 4>(n, states);
            }
            if D::CHEAP && together >= 2 {
                n = self.0.run::<D, 2>(n, states);
            }
            self.0.run::<D, 1>(n, states);
        }
    }

    walk.isa.vectorize(Run::<F, D>(walk, PhantomData));
}

impl<F: VectorField> WalkFrames<'_, F> {
    /// N states together, from n on, while there are as many; the first one that is left.
    #[inline(always)]
    fn run<D: Discretization, const N: usize>(&mut self, mut n: usize, states: usize) -> usize {
        while n + N <= states {
            self.forth::<D, N>(n);
            self.back::<D, N>(n);
            n += N;
        }
        n
    }

    /// N states of the chunk, from n on: h = a h + g x B, and, where it is asked for, y += Re(C h).
    #[inline(always)]
    fn forth<D: Discretization, const N: usize>(&mut self, n: usize) {
        let WalkFrames { isa, delta, x, marks, b, c, reverse, reset, .. } = *self;
        let (len, width) = (delta.len(), N * F::COMPONENTS);
        let x = &x[..len];
        let marks = marks.map(|marks| &marks[..len]);
        let mut y = self.y.as_deref_mut().map(|y| &mut y[..len]);
        let (first, after) = self.h.split_at_mut(width);

        let (mut h, mut a) = ([F::zero(isa); N], [Prepared::new(F::zero(isa)); N]);
        for j in 0..N {
            h[j] = F::load(isa, &self.before[(n + j) * F::COMPONENTS..]);
            a[j] = Prepared::new(F::load(isa, &self.a[(n + j) * F::COMPONENTS..]));
            h[j].store(&mut first[j * F::COMPONENTS..]);
        }
        let rows = after.chunks_exact_mut(width).zip(self.decay.chunks_exact_mut(width));
        for (i, (row, decays)) in rows.take(len).enumerate() {
            let t = if reverse { len - 1 - i } else { i };
            let mark = marks.map_or(0, |marks| marks[t]);
            if mark & SKIP == 0 {
                if mark & reset != 0 {
                    h = [F::zero(isa); N];
                }
                let (delta, x) = (Lanes::new(isa, delta[t]), Lanes::new(isa, x[t]));
                let b = b.get::<N>(isa, t, n);
                for j in 0..N {
                    let (decay, gain) = D::coefficients::<F>(delta, &a[j]);
                    h[j] = decay.mul_add(h[j], gain.times(x) * b[j]);
                    decay.store(&mut decays[j * F::COMPONENTS..]);
                }
                if let Some(y) = &mut y {
                    let c = c.get::<N>(isa, t, n);
                    let mut sum = Lanes::new(isa, y[t]);
                    for j in 0..N {
                        sum = c[j].real_product(h[j], sum);
                    }
                    y[t] = sum.vector;
                }
            }
            for j in 0..N {
                h[j].store(&mut row[j * F::COMPONENTS..]);
            }
        }
    }

    /// λ of N states through the chunk, and all that comes of it.
    #[inline(always)]
    fn back<D: Discretization, const N: usize>(&mut self, n: usize) {
        let WalkFrames { isa, delta, x, dy, marks, b, c, reverse, reset, .. } = *self;
        let (len, width) = (delta.len(), N * F::COMPONENTS);
        let (x, dy) = (&x[..len], &dy[..len]);
        let marks = marks.map(|marks| &marks[..len]);
        let (dx, ddelta) = (&mut self.dx[..len], &mut self.ddelta[..len]);
        let (h, decay) = (&self.h[..(len + 1) * width], &self.decay[..len * width]);
        let states = self.before.len() / F::COMPONENTS;
        let lane_sums = LaneSums::<F>::new(isa);

        let zero = [F::zero(isa); N];
        let (mut a, mut lambda) = ([Prepared::new(zero[0]); N], zero);
        let (mut sum_a, mut sum_b, mut sum_c) = (zero, zero, zero);
        for j in 0..N {
            a[j] = Prepared::new(F::load(isa, &self.a[(n + j) * F::COMPONENTS..]));
            lambda[j] = F::load(isa, &self.lambda[(n + j) * F::COMPONENTS..]);
        }
        for i in (0..len).rev() {
            let t = if reverse { len - 1 - i } else { i };
            let mark = marks.map_or(0, |marks| marks[t]);
            if mark & SKIP != 0 {
                continue;
            }
            let is_reset = mark & reset != 0;
            let (before, after) = (&h[i * width..][..width], &h[(i + 1) * width..][..width]);
            let decays = &decay[i * width..][..width];
            let (b, c) = (b.get::<N>(isa, t, n), c.get::<N>(isa, t, n));
            let (delta, x, dy) = (Lanes::new(isa, delta[t]), Lanes::new(isa, x[t]), Lanes::new(isa, dy[t]));
            let scaled = delta * x;
            let mut sum_x = Lanes::new(isa, dx[t]);
            let mut sum_delta = Lanes::new(isa, ddelta[t]);
            // Σ Re(λ conj(B)) of all states, where Δ and x are factors of each.
            let mut of_inputs = F::zero(isa).re();
            let (mut db, mut dc) = (zero, zero);
            for j in 0..N {
                let at = j * F::COMPONENTS;
                let h = F::load(isa, &after[at..]);
                let before = if is_reset { zero[j] } else { F::load(isa, &before[at..]) };
                let partials = D::partials::<F>(delta, &a[j], F::load(isa, &decays[at..]));

                lambda[j] = c[j].conj().times_add(dy, lambda[j]);
                dc[j] = h.conj().times(dy);
                let of_slope = partials.slope.conj() * lambda[j] * before.conj();
                sum_a[j] = of_slope.times_add(delta, sum_a[j]);
                sum_delta = of_slope.real_product(a[j].a.conj(), sum_delta);
                if D::GAIN_IS_DELTA {
                    db[j] = lambda[j].times(scaled);
                    of_inputs = lambda[j].real_product(b[j].conj(), of_inputs);
                } else {
                    let dv = lambda[j] * partials.g.conj();
                    let of_g = lambda[j] * b[j].conj();
                    db[j] = dv.times(x);
                    sum_x = dv.real_product(b[j].conj(), sum_x);
                    sum_a[j] = (of_g * partials.g_a.conj()).times_add(x, sum_a[j]);
                    of_inputs = of_g.real_product(partials.g_delta.conj(), of_inputs);
                }
                lambda[j] = if is_reset { zero[j] } else { partials.a.conj() * lambda[j] };
            }
            if D::GAIN_IS_DELTA {
                sum_x = of_inputs.mul_add(delta, sum_x);
            }
            dx[t] = sum_x.vector;
            ddelta[t] = of_inputs.mul_add(x, sum_delta).vector;
            self.db.add(&lane_sums, states, t, n, db, &mut sum_b);
            self.dc.add(&lane_sums, states, t, n, dc, &mut sum_c);
        }
        let registers = self.lambda[n * F::COMPONENTS..].chunks_exact_mut(F::COMPONENTS);
        lambda.into_iter().zip(registers).for_each(|(lambda, registers)| lambda.store(registers));
        add_registers(isa, &mut self.da[n * F::COMPONENTS..][..width], sum_a);
        self.db.end(isa, n, sum_b);
        self.dc.end(isa, n, sum_c);
    }
}

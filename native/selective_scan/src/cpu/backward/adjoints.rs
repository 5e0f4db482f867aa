//! λ of the second direction, carried over the chunks before any of them is walked back: it comes from the other end of time.

use std::marker::PhantomData;

use pulp::{NullaryFnOnce, Simd};

use super::Call;
use super::chunk::{Scratch, Task};
use crate::cpu::blocks::store_states;
use crate::cpu::boundary::{boundary_interval, boundary_place, chunks};
use crate::cpu::frames::{LAST, SKIP};
use crate::cpu::tile::Rows;
use crate::cpu::vector::{Lanes, Vector, VectorField};
use crate::cpu::views::{Output, Storage};
use crate::discretize::{Discretization, Prepared};

/// Carries λ of the second direction over all chunks, and leaves it where it comes into each.
pub struct CarryAdjoints<'a, T: Storage, F: VectorField<Element = T::Real>> {
    pub task: Task<'a, T, F>,
    pub adjoints: &'a Output<'a, T::Real>,
}

impl<T: Storage, F: VectorField<Element = T::Real>> NullaryFnOnce for CarryAdjoints<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { mut task, adjoints } = self;
        let Call { isa, problem, views, .. } = *task.call;
        let chunks = chunks(problem);
        for &block in task.blocks() {
            task.scratch.lambda.fill(F::zero(isa).re().vector);
            for i in 0..chunks {
                // The second scan runs against the first, and its λ against it.
                let chunk = if problem.reverse { chunks - 1 - i } else { i };
                task.start = chunk * boundary_interval(problem);
                task.len = boundary_interval(problem).min(problem.seq - task.start);
                task.load(block);
                let per_channel = task.scratch.lambda.len();
                let place = (boundary_place(problem, false, task.batch, chunk) + block.start) * per_channel;
                // SAFETY: the states of this block of this row are this task's alone.
                let states = unsafe { adjoints.write(place, block.len * per_channel) };
                store_states::<F>(&task.scratch.lambda, states, block.len);
                let a = task.registers(task.call.a, block);
                let constants = task.registers(task.call.c, block);
                let (tile, len) = (task.tile(block), task.len);
                let Scratch { delta, dy, lambda, c, .. } = &mut *task.scratch;
                (task.call.adjoints_of_chunk)(AdjointFrames {
                    isa,
                    delta: &delta[..len],
                    dy: &dy[..len],
                    marks: tile.marks(problem, task.call.marks),
                    c: tile.rows::<T, F>(problem, problem.c, &views.c, c, constants),
                    a,
                    reverse: problem.reverse,
                    lambda,
                });
            }
        }
    }
}

/// A chunk of a block, ready for λ of the second direction to be carried through.
pub struct AdjointFrames<'a, F: VectorField> {
    pub isa: F::Isa,
    pub delta: &'a [Vector<F>],
    pub dy: &'a [Vector<F>],
    pub marks: Option<&'a [u8]>,
    pub c: Rows<'a, F>,
    pub a: &'a [Vector<F>],
    /// Whether λ runs from the last frame to the first.
    pub reverse: bool,
    pub lambda: &'a mut [Vector<F>],
}

/// What carries them, compiled for a discretization.
pub type AdjointsOfChunk<F> = fn(AdjointFrames<'_, F>);

pub fn adjoints_of_chunk<F: VectorField, D: Discretization>(frames: AdjointFrames<'_, F>) {
    struct Run<'a, F: VectorField, D>(AdjointFrames<'a, F>, PhantomData<D>);

    impl<F: VectorField, D: Discretization> NullaryFnOnce for Run<'_, F, D> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let AdjointFrames { isa, delta, dy, marks, c, a, reverse, lambda } = self.0;
            for n in 0..lambda.len() / F::COMPONENTS {
                let registers = &mut lambda[n * F::COMPONENTS..][..F::COMPONENTS];
                let prepared = Prepared::new(F::load(isa, &a[n * F::COMPONENTS..]));
                let mut lambda = F::load(isa, registers);
                for i in 0..delta.len() {
                    let t = if reverse { delta.len() - 1 - i } else { i };
                    let mark = marks.map_or(0, |marks| marks[t]);
                    if mark & SKIP != 0 {
                        continue;
                    }
                    let [c] = c.get::<1>(isa, t, n);
                    lambda = lambda + c.conj().times(Lanes::new(isa, dy[t]));
                    let (decay, _) = D::coefficients(Lanes::new(isa, delta[t]), &prepared);
                    lambda = if mark & LAST != 0 { F::zero(isa) } else { decay.conj() * lambda };
                }
                lambda.store(registers);
            }
        }
    }

    frames.isa.vectorize(Run::<F, D>(frames, PhantomData));
}

//! A run of frames of a block of channels, in registers' layout: what comes before the recurrence (conversion, and
//! dt's bias, softplus and limit) and what comes after it (skip connection, gate, rounding).

use std::ops::Range;

use super::blocks::Block;
use super::vector::{Isa, Lanes, Real, Vector, VectorField};
use super::views::{Storage, Views};
use crate::discretize::Field;
use crate::{Problem, Projection};

/// A run of frames of a block of channels of one row.
#[derive(Clone, Copy)]
pub struct Tile {
    pub batch: usize,
    pub block: Block,
    /// The first frame; others count from it.
    pub start: usize,
    pub len: usize,
}

impl Tile {
    /// Place of a frame in {batch, seq}.
    #[inline(always)]
    fn place(self, problem: &Problem, t: usize) -> usize {
        self.batch * problem.seq + self.start + t
    }

    /// A frame in {batch, seq, dim}.
    #[inline(always)]
    pub fn frame(self, problem: &Problem, t: usize) -> Range<usize> {
        let start = self.place(problem, t) * problem.dim + self.block.start;
        start..start + self.block.len
    }

    /// Marks of the frames, among all of a call.
    #[inline(always)]
    pub fn marks<'a>(self, problem: &Problem, marks: Option<&'a [u8]>) -> Option<&'a [u8]> {
        marks.map(|marks| &marks[self.place(problem, 0)..][..self.len])
    }

    /// Δ and x.
    #[inline(always)]
    pub fn load<T: Storage, F: VectorField<Element = T::Real>>(
        self,
        isa: F::Isa,
        problem: &Problem,
        views: &Views<'_, T>,
        delta: &mut [Vector<F>],
        x: &mut [Vector<F>],
    ) {
        let step_size = StepSize::new(isa, problem, views.dt_bias.as_deref(), self.block);
        for t in 0..self.len {
            let frame = self.frame(problem, t);
            let [step, _] = step_size.delta_and_derivative(load_frame(isa, &views.dt[frame.clone()]));
            delta[t] = step.vector;
            x[t] = load_frame(isa, &views.x[frame]).vector;
        }
    }

    /// Widens rows of b or c, unless they can be read as they are.
    #[inline(always)]
    pub fn widen_rows<T: Storage>(
        self,
        problem: &Problem,
        projection: Projection,
        values: &[T],
        rows: &mut [T::Real],
    ) {
        let Projection::PerFrame { groups } = projection else { return };
        if as_reals::<T>(values).is_some() {
            return;
        }
        let width = problem.state * problem.components();
        for (t, row) in rows.chunks_exact_mut(width).take(self.len).enumerate() {
            let frame = self.place(problem, t) * groups + group(problem, groups, self.block);
            for (wide, value) in row.iter_mut().zip(&values[frame * width..][..width]) {
                *wide = value.to_real();
            }
        }
    }

    /// The rows of b or c that the frames read.
    #[inline(always)]
    pub fn rows<'a, T: Storage, F: VectorField<Element = T::Real>>(
        self,
        problem: &Problem,
        projection: Projection,
        values: &'a [T],
        widened: &'a [T::Real],
        constants: &'a [Vector<F>],
    ) -> Rows<'a, F> {
        let width = problem.state * F::COMPONENTS;
        match projection {
            Projection::Constant => Rows::Constant(constants),
            Projection::PerFrame { groups } => match as_reals::<T>(values) {
                Some(values) => {
                    let first = self.place(problem, 0) * groups + group(problem, groups, self.block);
                    Rows::PerFrame { values: &values[first * width..], stride: groups * width }
                }
                None => Rows::PerFrame { values: widened, stride: width },
            },
        }
    }
}

/// Which group of b or c a block reads, among how many.
#[inline(always)]
pub fn group(problem: &Problem, groups: usize, block: Block) -> usize {
    block.start / (problem.dim / groups)
}

/// One frame of a block, widened; lanes without a channel hold zeros.
#[inline(always)]
pub fn load_frame<T: Storage, S: Isa>(isa: S, frame: &[T]) -> Lanes<T::Real, S> {
    if let Some(frame) = as_reals::<T>(frame) {
        return Lanes::load_first(isa, frame);
    }
    let mut register = [T::Real::splat(isa, T::Real::default())];
    let lanes: &mut [T::Real] = bytemuck::cast_slice_mut(&mut register);
    for (lane, value) in lanes.iter_mut().zip(frame) {
        *lane = value.to_real();
    }
    Lanes::new(isa, register[0])
}

/// One frame of a block, rounded.
#[inline(always)]
pub fn store_frame<T: Storage, S: Isa>(lanes: Lanes<T::Real, S>, frame: &mut [T]) {
    if let Some(frame) = as_reals_mut::<T>(frame) {
        return lanes.store_first(frame);
    }
    let register = [lanes.vector];
    let lanes: &[T::Real] = bytemuck::cast_slice(&register);
    for (value, &lane) in frame.iter_mut().zip(lanes) {
        *value = T::from_real(lane);
    }
}

/// The same numbers, where they are stored as they are computed with.
#[inline(always)]
pub fn as_reals<T: Storage>(values: &[T]) -> Option<&[T::Real]> {
    (size_of::<T>() == size_of::<T::Real>()).then(|| bytemuck::cast_slice(values))
}

#[inline(always)]
fn as_reals_mut<T: Storage>(values: &mut [T]) -> Option<&mut [T::Real]> {
    (size_of::<T>() == size_of::<T::Real>()).then(|| bytemuck::cast_slice_mut(values))
}

/// What becomes of dt before it is a step size.
#[derive(Clone, Copy)]
pub struct StepSize<R: Real, S: Isa> {
    bias: Lanes<R, S>,
    dt_softplus: bool,
    dt_limit: Option<[Lanes<R, S>; 2]>,
}

impl<R: Real, S: Isa> StepSize<R, S> {
    #[inline(always)]
    pub fn new(isa: S, problem: &Problem, dt_bias: Option<&[R]>, block: Block) -> Self {
        Self {
            bias: channels(isa, dt_bias, block),
            dt_softplus: problem.dt_softplus,
            dt_limit: problem.dt_limit.map(|limit| limit.map(|limit| Lanes::splat(isa, R::from_f64(limit)))),
        }
    }

    /// Δ (bias, softplus, limit) and dΔ/ddt. Who drops one of the two does not compute it: all of this is inlined.
    #[inline(always)]
    pub fn delta_and_derivative(&self, dt: Lanes<R, S>) -> [Lanes<R, S>; 2] {
        let raw = dt + self.bias;
        let (mut delta, mut derivative) = (raw, raw.constant(1.0));
        if self.dt_softplus {
            delta = raw.softplus();
            let linear = raw.constant(20.0).less(raw);
            derivative = Lanes::select(linear, derivative, raw.sigmoid());
        }
        if let Some([min, max]) = self.dt_limit {
            let zero = raw.constant(0.0);
            derivative = Lanes::select(delta.less(min), zero, derivative);
            derivative = Lanes::select(max.less(delta), zero, derivative);
            delta = delta.clamp(min, max);
        }
        [delta, derivative]
    }
}

/// A {dim} tensor's channels of a block, zeros where it is absent.
#[inline(always)]
pub fn channels<R: Real, S: Isa>(isa: S, values: Option<&[R]>, block: Block) -> Lanes<R, S> {
    match values {
        Some(values) => Lanes::load_first(isa, &values[block.start..block.start + block.len]),
        None => Lanes::splat(isa, R::default()),
    }
}

/// z·sigmoid(z).
#[inline(always)]
pub fn silu<R: Real, S: Isa>(z: Lanes<R, S>) -> Lanes<R, S> {
    z * z.sigmoid()
}

/// b or c for a block: numbers to broadcast, a row a frame; or registers of the block's own channels.
#[derive(Clone, Copy)]
pub enum Rows<'a, F: VectorField> {
    /// The row of frame t begins at `t · stride`.
    PerFrame {
        /// The numbers.
        values: &'a [F::Element],
        /// From one frame's row to the next.
        stride: usize,
    },
    /// `COMPONENTS` registers a state.
    Constant(&'a [Vector<F>]),
}

impl<F: VectorField> Rows<'_, F> {
    /// The numbers of N states from n on, in frame t.
    #[inline(always)]
    pub fn get<const N: usize>(&self, isa: F::Isa, t: usize, n: usize) -> [F; N] {
        let mut numbers = [F::zero(isa); N];
        let (start, len) = (n * F::COMPONENTS, N * F::COMPONENTS);
        match *self {
            Rows::PerFrame { values, stride } => {
                let row = &values[t * stride + start..][..len];
                for (number, components) in numbers.iter_mut().zip(row.chunks_exact(F::COMPONENTS)) {
                    *number = F::broadcast(isa, components);
                }
            }
            Rows::Constant(registers) => {
                let row = &registers[start..][..len];
                for (number, components) in numbers.iter_mut().zip(row.chunks_exact(F::COMPONENTS)) {
                    *number = F::load(isa, components);
                }
            }
        }
        numbers
    }
}

/// What comes after the recurrence: `weight`·Σ Re(C h) + D x, times silu(z). An absent D adds nothing, where zero
/// times an infinite x would add what is not a number.
#[inline(always)]
pub fn finish<R: Real, S: Isa>(
    sum: Lanes<R, S>,
    weight: f64,
    d: Option<Lanes<R, S>>,
    x: Lanes<R, S>,
    z: Option<Lanes<R, S>>,
) -> Lanes<R, S> {
    let sum = sum.scale(weight);
    let y = match d {
        Some(d) => d.mul_add(x, sum),
        None => sum,
    };
    match z {
        Some(z) => y * silu(z),
        None => y,
    }
}

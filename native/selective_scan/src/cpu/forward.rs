//! The forward scan.
//!
//! A task is a block of channels of one row of the batch; it walks time with the states of the block in registers,
//! a few states at once, one tile of frames after another:
//!
//! ```text
//! for each tile:   Δ, x       ← load, convert, bias, softplus, limit
//!                  for each group of states:  h ← scratch;  for each frame: h = a h + g x B;  y += C h;  scratch ← h
//!                  y          ← + D x, × silu(z), round, store
//! ```
//!
//! Each task's arithmetic is the same whoever runs it, so results do not depend on the number of threads.

use std::borrow::Cow;
use std::marker::PhantomData;

use pulp::{NullaryFnOnce, Simd};

use super::blocks::{Block, blocks, load_states, store_states};
use super::boundary::{boundary_interval, boundary_place, check_boundary_length};
use super::frames::{LAST, RESET, SKIP, is_skipped, marks};
use super::memory::zeros;
use super::step::{ChannelRows, Step, StepChannels, step_channels};
use super::tile::{Rows, Tile, as_reals, channels, finish, group, load_frame, store_frame};
use super::vector::{Lanes, Vector, VectorField};
use super::views::{Output, Storage, Views, aligned_mut};
use super::{TOGETHER, for_each_task};
use crate::discretize::{Discretization, Prepared, with_discretization};
use crate::{Error, Outputs, Problem, Projection};

/// Frames of a tile: Δ, x and y of a block then fit the first-level cache beside its states.
pub const TILE: usize = 64;

/// Everything that the tasks of a call share.
struct Call<'a, T: Storage, F: VectorField<Element = T::Real>> {
    isa: F::Isa,
    problem: &'a Problem,
    views: &'a Views<'a, T>,
    marks: Option<&'a [u8]>,
    /// A, {blocks, state} in lanes.
    a: &'a [Vector<F>],
    /// Constant b and c, likewise; empty where they vary with the frame.
    b: &'a [Vector<F>],
    c: &'a [Vector<F>],
    /// Absent where only boundary states are wanted.
    y: Option<Output<'a, T>>,
    final_state: Option<Output<'a, T::Real>>,
    boundary_states: Option<Output<'a, T::Real>>,
    scan_tile: ScanTile<F>,
    /// Where a single frame of real states is asked for.
    step: Option<StepChannels<T::Real, F::Isa>>,
}

/// The recurrence over a tile, compiled for a discretization. Everything else is the same for all of them.
type ScanTile<F> = fn(&Frames<'_, F>, &[Vector<F>], &mut [Vector<F>], &mut [Vector<F>]);

/// What depends on the discretization.
type Compiled<F> = (ScanTile<F>, StepChannels<<F as VectorField>::Element, <F as VectorField>::Isa>);

/// Memory of a task, used again by the next.
struct Scratch<F: VectorField> {
    delta: Vec<Vector<F>>,
    x: Vec<Vector<F>>,
    /// A tile's, or the whole row's where two sweeps add to it.
    y: Vec<Vector<F>>,
    h: Vec<Vector<F>>,
    b: Vec<F::Element>,
    c: Vec<F::Element>,
}

/// Scans with one instruction set, storage and field.
pub fn forward<T: Storage, F: VectorField<Element = T::Real>>(
    isa: F::Isa,
    problem: &Problem,
    views: &Views<'_, T>,
    outputs: Outputs<&mut [u8]>,
    boundary_states: Option<&mut [u8]>,
) -> Result<(), Error> {
    let y = Some(Output::new(problem, "y", outputs.y)?);
    let final_state = outputs.final_state.map(|bytes| Output::new(problem, "final_state", bytes));
    let boundary_states = boundary_states.map(|bytes| {
        check_boundary_length(problem, bytes.len())?;
        Ok(Output::over(aligned_mut("boundary_states", bytes)?))
    });
    scan::<T, F>(isa, problem, views, y, final_state.transpose()?, boundary_states.transpose()?)
}

/// Scans for the boundary states alone.
pub fn boundary_states<T: Storage, F: VectorField<Element = T::Real>>(
    isa: F::Isa,
    problem: &Problem,
    views: &Views<'_, T>,
    boundary_states: &mut [T::Real],
) -> Result<(), Error> {
    scan::<T, F>(isa, problem, views, None, None, Some(Output::over(boundary_states)))
}

fn scan<T: Storage, F: VectorField<Element = T::Real>>(
    isa: F::Isa,
    problem: &Problem,
    views: &Views<'_, T>,
    y: Option<Output<'_, T>>,
    final_state: Option<Output<'_, T::Real>>,
    boundary_states: Option<Output<'_, T::Real>>,
) -> Result<(), Error> {
    let (scan_tile, step): Compiled<F> = with_discretization!(problem.method, problem.coefficients, D =>
            (scan_tile::<F, D>, step_channels::<T::Real, F::Isa, D>));
    let step = (problem.seq == 1 && !problem.bidirectional && !problem.complex && views.seq_idx.is_none())
        .then_some(step)
        .filter(|_| boundary_states.is_none());
    let blocks = blocks(problem, Lanes::<T::Real, F::Isa>::COUNT)?;
    let marks = views.seq_idx.as_deref().map(|seq_idx| marks(problem, seq_idx)).transpose()?;
    let in_lanes = |values: &[T::Real]| in_lanes::<F>(problem, &blocks, values);
    let constant = |projection, values: &[T]| match projection {
        Projection::Constant if step.is_none() => in_lanes(&widened(values)?),
        _ => Ok(Vec::new()),
    };
    let call = Call::<T, F> {
        isa,
        problem,
        views,
        marks: marks.as_deref(),
        a: &if step.is_none() { in_lanes(&views.a)? } else { Vec::new() },
        b: &constant(problem.b, &views.b)?,
        c: &constant(problem.c, &views.c)?,
        y,
        final_state,
        boundary_states,
        scan_tile,
        step,
    };
    let task = |scratch: &mut Scratch<F>, index: usize| {
        let (batch, block) = (index / blocks.len(), blocks[index % blocks.len()]);
        let task = Task { call: &call, batch, block, scratch };
        isa.vectorize(task);
    };
    for_each_task(problem, problem.batch * blocks.len(), || Scratch::new(problem), task)
}

/// Numbers of a storage type as those that are computed with.
pub fn widened<T: Storage>(values: &[T]) -> Result<Cow<'_, [T::Real]>, Error> {
    if let Some(values) = as_reals::<T>(values) {
        return Ok(values.into());
    }
    let mut wide = zeros::<T::Real>(values.len())?;
    for (wide, value) in wide.iter_mut().zip(values) {
        *wide = value.to_real();
    }
    Ok(wide.into())
}

/// A {dim, state} tensor, block by block in lanes.
pub fn in_lanes<F: VectorField>(
    problem: &Problem,
    blocks: &[Block],
    values: &[F::Element],
) -> Result<Vec<Vector<F>>, Error> {
    let per_block = problem.state * F::COMPONENTS;
    let mut lanes = zeros::<Vector<F>>(blocks.len() * per_block)?;
    for (block, registers) in blocks.iter().zip(lanes.chunks_exact_mut(per_block)) {
        load_states::<F>(registers, &values[block.start * per_block..], block.len);
    }
    Ok(lanes)
}

impl<F: VectorField> Scratch<F> {
    fn new(problem: &Problem) -> Result<Self, Error> {
        let tile = problem.seq.min(TILE);
        let row = problem.state * F::COMPONENTS;
        // A row a frame; in a single step of constant b or c, a row a channel.
        let rows = row * tile.max(Lanes::<F::Element, F::Isa>::COUNT);
        Ok(Self {
            delta: zeros(tile)?,
            x: zeros(tile)?,
            y: zeros(if problem.bidirectional { problem.seq } else { tile })?,
            h: zeros(row)?,
            b: zeros(rows)?,
            c: zeros(rows)?,
        })
    }
}

/// One block of channels of one row.
struct Task<'a, T: Storage, F: VectorField<Element = T::Real>> {
    call: &'a Call<'a, T, F>,
    batch: usize,
    block: Block,
    scratch: &'a mut Scratch<F>,
}

impl<T: Storage, F: VectorField<Element = T::Real>> NullaryFnOnce for Task<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let problem = self.call.problem;
        if let Some(step) = self.call.step {
            return self.step(step);
        }
        self.load_initial_state();
        self.sweep(problem.reverse, !problem.bidirectional);
        self.store_final_state();
        if problem.bidirectional {
            self.scratch.h.fill(F::zero(self.call.isa).re().vector);
            self.sweep(!problem.reverse, true);
        }
    }
}

impl<T: Storage, F: VectorField<Element = T::Real>> Task<'_, T, F> {
    /// The only frame, with lanes over states.
    #[inline(always)]
    fn step(&mut self, step: StepChannels<T::Real, F::Isa>) {
        let Call { isa, problem, views, .. } = *self.call;
        let (batch, block) = (self.batch, self.block);
        let (start, len) = self.states();
        let tile = self.tile(0, 1);
        self.load(tile);
        let Scratch { delta, x, y, b, c, .. } = &mut *self.scratch;
        let y: &mut [T::Real] = bytemuck::cast_slice_mut(&mut y[..1]);
        step(
            isa,
            Step {
                delta: bytemuck::cast_slice(&delta[..1]),
                x: bytemuck::cast_slice(&x[..1]),
                a: &views.a[block.start * problem.state..][..len],
                before: views.initial_state.as_deref().map(|states| &states[start..start + len]),
                // SAFETY: the states of this block of this row are this task's alone.
                after: self.call.final_state.as_ref().map(|states| unsafe { states.write(start, len) }),
                b: channel_rows(problem, problem.b, &views.b, batch, block, b),
                c: channel_rows(problem, problem.c, &views.c, batch, block, c),
                state: problem.state,
                y: &mut y[..block.len],
            },
        );
        self.store(tile, 0);
    }

    /// Place of the block's states in {batch, dim, state}, and how many numbers they are.
    #[inline(always)]
    fn states(&self) -> (usize, usize) {
        let per_channel = self.scratch.h.len();
        ((self.batch * self.call.problem.dim + self.block.start) * per_channel, self.block.len * per_channel)
    }

    #[inline(always)]
    fn load_initial_state(&mut self) {
        let (start, len) = self.states();
        match &self.call.views.initial_state {
            Some(states) => {
                load_states::<F>(&mut self.scratch.h, &states[start..start + len], self.block.len)
            }
            None => self.scratch.h.fill(F::zero(self.call.isa).re().vector),
        }
    }

    #[inline(always)]
    fn store_final_state(&self) {
        if let Some(final_state) = &self.call.final_state {
            let (start, len) = self.states();
            // SAFETY: the states of this block of this row are this task's alone.
            let states = unsafe { final_state.write(start, len) };
            store_states::<F>(&self.scratch.h, states, self.block.len);
        }
    }

    /// All tiles in one direction; the last sweep finishes y.
    #[inline(always)]
    fn sweep(&mut self, reverse: bool, last: bool) {
        let problem = self.call.problem;
        let tiles = problem.seq.div_ceil(TILE);
        for i in 0..tiles {
            let start = TILE * if reverse { tiles - 1 - i } else { i };
            let tile = self.tile(start, TILE.min(problem.seq - start));
            let first = !problem.bidirectional || !last;
            self.store_boundary_states(tile, reverse);
            self.load(tile);
            // With two sweeps, y is the whole row's and keeps what the first has added.
            let at = if problem.bidirectional { start } else { 0 };
            if first {
                self.scratch.y[at..at + tile.len].fill(F::zero(self.call.isa).re().vector);
            }
            self.scan(tile, at, reverse);
            if last {
                self.store(tile, at);
            }
        }
    }

    /// The states before a tile, where a chunk begins with it.
    #[inline(always)]
    fn store_boundary_states(&self, tile: Tile, reverse: bool) {
        let Call { problem, boundary_states: Some(boundary_states), .. } = self.call else { return };
        let Tile { start, len, .. } = tile;
        let chunk = boundary_interval(problem);
        let begins = if reverse {
            start + len == problem.seq || (start + len).is_multiple_of(chunk)
        } else {
            start.is_multiple_of(chunk)
        };
        if begins {
            let place = boundary_place(problem, reverse != problem.reverse, self.batch, start / chunk);
            let per_channel = self.scratch.h.len();
            // SAFETY: the states of this block of this row are this task's alone.
            let states = unsafe {
                boundary_states.write((place + self.block.start) * per_channel, self.block.len * per_channel)
            };
            store_states::<F>(&self.scratch.h, states, self.block.len);
        }
    }

    /// Frames of the block.
    #[inline(always)]
    fn tile(&self, start: usize, len: usize) -> Tile {
        Tile { batch: self.batch, block: self.block, start, len }
    }

    /// Δ and x of a tile, and its rows of b and c where they must be widened.
    #[inline(always)]
    fn load(&mut self, tile: Tile) {
        let Call { isa, problem, views, .. } = *self.call;
        let Scratch { delta, x, b, c, .. } = &mut *self.scratch;
        tile.load::<T, F>(isa, problem, views, delta, x);
        tile.widen_rows(problem, problem.b, &views.b, b);
        tile.widen_rows(problem, problem.c, &views.c, c);
    }

    /// The recurrence over a tile, for all states.
    #[inline(always)]
    fn scan(&mut self, tile: Tile, at: usize, reverse: bool) {
        let Call { problem, views, .. } = *self.call;
        let len = tile.len;
        let Scratch { delta, x, y, h, b, c } = &mut *self.scratch;
        let own = |all| self.block.registers(all, problem.state * F::COMPONENTS);
        let [a, b_constants, c_constants] = [self.call.a, self.call.b, self.call.c].map(own);
        let frames = Frames {
            isa: self.call.isa,
            delta: &delta[..len],
            x: &x[..len],
            marks: tile.marks(problem, self.call.marks),
            b: tile.rows::<T, F>(problem, problem.b, &views.b, b, b_constants),
            c: tile.rows::<T, F>(problem, problem.c, &views.c, c, c_constants),
            reverse,
            reset: if reverse == problem.reverse { RESET } else { LAST },
        };
        (self.call.scan_tile)(&frames, a, h, &mut y[at..at + len]);
    }

    /// y of a tile.
    #[inline(always)]
    fn store(&mut self, tile: Tile, at: usize) {
        let Call { isa, problem, views, y: Some(output), .. } = self.call else { return };
        let isa = *isa;
        let d = views.d.as_deref().map(|d| channels(isa, Some(d), self.block));
        let weight = problem.weight();
        let marks = tile.marks(problem, self.call.marks);
        for t in 0..tile.len {
            let frame = tile.frame(problem, t);
            let sum = Lanes::new(isa, self.scratch.y[at + t]);
            let x = Lanes::new(isa, self.scratch.x[t]);
            let z = views.z.as_deref().map(|z| load_frame(isa, &z[frame.clone()]));
            let mut y = finish(sum, weight, d, x, z);
            if is_skipped(marks, t) {
                y = y.constant(0.0);
            }
            // SAFETY: this frame of this block is this task's alone.
            store_frame(y, unsafe { output.write(frame.start, frame.len()) });
        }
    }
}

/// The rows of b or c that the channels of a block read in the only frame.
#[inline(always)]
fn channel_rows<'a, T: Storage>(
    problem: &Problem,
    projection: Projection,
    values: &'a [T],
    batch: usize,
    block: Block,
    widened: &'a mut [T::Real],
) -> ChannelRows<'a, T::Real> {
    let state = problem.state;
    match projection {
        Projection::PerFrame { groups } => {
            let start = (batch * groups + group(problem, groups, block)) * state;
            // What must be widened was when the frame was loaded.
            let values =
                as_reals::<T>(values).map_or(&widened[..state], |values| &values[start..start + state]);
            ChannelRows { values, stride: 0 }
        }
        Projection::Constant => {
            let values = &values[block.start * state..][..block.len * state];
            let values = as_reals::<T>(values).unwrap_or_else(|| {
                for (wide, value) in widened.iter_mut().zip(values) {
                    *wide = value.to_real();
                }
                widened
            });
            ChannelRows { values, stride: state }
        }
    }
}

/// A tile, ready to be scanned.
struct Frames<'a, F: VectorField> {
    isa: F::Isa,
    delta: &'a [Vector<F>],
    x: &'a [Vector<F>],
    marks: Option<&'a [u8]>,
    b: Rows<'a, F>,
    c: Rows<'a, F>,
    reverse: bool,
    /// The mark before which the state is reset, in this direction.
    reset: u8,
}

/// All states of a block through all frames of a tile.
fn scan_tile<F: VectorField, D: Discretization>(
    frames: &Frames<'_, F>,
    a: &[Vector<F>],
    h: &mut [Vector<F>],
    y: &mut [Vector<F>],
) {
    struct Scan<'a, F: VectorField, D> {
        frames: &'a Frames<'a, F>,
        a: &'a [Vector<F>],
        h: &'a mut [Vector<F>],
        y: &'a mut [Vector<F>],
        discretization: PhantomData<D>,
    }

    impl<F: VectorField, D: Discretization> NullaryFnOnce for Scan<'_, F, D> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let states = self.h.len() / F::COMPONENTS;
            let mut n = 0;
            // Complex ones gain by it whatever their method: their coefficients are chains that wait.
            if D::CHEAP || F::COMPONENTS > 1 {
                while n + TOGETHER <= states {
                    self.frames.scan::<D, TOGETHER>(n, self.a, self.h, self.y);
                    n += TOGETHER;
                }
            }
            while n < states {
                self.frames.scan::<D, 1>(n, self.a, self.h, self.y);
                n += 1;
            }
        }
    }

    frames.isa.vectorize(Scan::<F, D> { frames, a, h, y, discretization: PhantomData });
}

impl<F: VectorField> Frames<'_, F> {
    /// N states, from n on, through all frames: h = a h + g x B, y += Re(C h).
    #[inline(always)]
    fn scan<D: Discretization, const N: usize>(
        &self,
        n: usize,
        a: &[Vector<F>],
        h: &mut [Vector<F>],
        y: &mut [Vector<F>],
    ) {
        let isa = self.isa;
        let mut states = [F::zero(isa); N];
        let mut prepared = [Prepared::new(F::zero(isa)); N];
        for i in 0..N {
            states[i] = F::load(isa, &h[(n + i) * F::COMPONENTS..]);
            prepared[i] = Prepared::new(F::load(isa, &a[(n + i) * F::COMPONENTS..]));
        }
        let len = self.delta.len();
        assert!(self.x.len() == len && y.len() == len);
        for i in 0..len {
            let t = if self.reverse { len - 1 - i } else { i };
            if let Some(marks) = self.marks {
                if marks[t] & SKIP != 0 {
                    continue;
                }
                if marks[t] & self.reset != 0 {
                    states = [F::zero(isa); N];
                }
            }
            let (delta, x) = (Lanes::new(isa, self.delta[t]), Lanes::new(isa, self.x[t]));
            let (b, c) = (self.b.get::<N>(isa, t, n), self.c.get::<N>(isa, t, n));
            let mut sum = Lanes::new(isa, y[t]);
            for i in 0..N {
                let (decay, gain) = D::coefficients(delta, &prepared[i]);
                states[i] = decay.mul_add(states[i], gain.times(x) * b[i]);
                sum = c[i].real_product(states[i], sum);
            }
            y[t] = sum.vector;
        }
        for (i, state) in states.into_iter().enumerate() {
            state.store(&mut h[(n + i) * F::COMPONENTS..]);
        }
    }
}

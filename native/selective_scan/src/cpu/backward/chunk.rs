//! A chunk of frames of a span of channels: what a task loads, has walked through and back, and stores.

use pulp::NullaryFnOnce;

use super::sums::{Places, Sum, add_to};
use super::walk::WalkFrames;
use super::{Call, Outputs};
use crate::cpu::blocks::{Block, load_states};
use crate::cpu::boundary::{boundary_interval, boundary_place};
use crate::cpu::frames::{LAST, RESET, is_skipped};
use crate::cpu::memory::zeros;
use crate::cpu::tile::{StepSize, Tile, channels, group, load_frame, silu, store_frame};
use crate::cpu::vector::{Lanes, Vector, VectorField};
use crate::cpu::views::{Output, Storage};
use crate::{Error, Problem, Projection};

/// Memory of a task, used again by the next. Frames count from the chunk's first.
pub struct Scratch<F: VectorField> {
    pub delta: Vec<Vector<F>>,
    pub x: Vec<Vector<F>>,
    /// w·∂L/∂(C h).
    pub dy: Vec<Vector<F>>,
    /// Σ Re(C h), which the gate alone asks for.
    pub y: Vec<Vector<F>>,
    pub dx: Vec<Vector<F>>,
    pub ddelta: Vec<Vector<F>>,
    /// The states before a chunk.
    pub before: Vec<Vector<F>>,
    /// λ of the second direction.
    pub lambda: Vec<Vector<F>>,
    /// States that walk together, after every frame, from those before the chunk on.
    pub h: Vec<Vector<F>>,
    /// Their decays in every frame.
    pub decay: Vec<Vector<F>>,
    /// Sums over the channels of a group, {frames, state}.
    pub db: Vec<F::Element>,
    pub dc: Vec<F::Element>,
    pub b: Vec<F::Element>,
    pub c: Vec<F::Element>,
}

impl<F: VectorField> Scratch<F> {
    pub fn new(problem: &Problem, together: usize) -> Result<Self, Error> {
        let (row, chunk) = (problem.state * F::COMPONENTS, boundary_interval(problem).min(problem.seq));
        let rows = |projection: Projection| zeros(projection.groups().map_or(0, |_| row * chunk));
        Ok(Self {
            delta: zeros(chunk)?,
            x: zeros(chunk)?,
            dy: zeros(chunk)?,
            y: zeros(if problem.z { chunk } else { 0 })?,
            dx: zeros(chunk)?,
            ddelta: zeros(chunk)?,
            before: zeros(row)?,
            lambda: zeros(row)?,
            h: zeros((chunk + 1) * together)?,
            decay: zeros(chunk * together)?,
            db: rows(problem.b)?,
            dc: rows(problem.c)?,
            b: rows(problem.b)?,
            c: rows(problem.c)?,
        })
    }
}

/// A run of frames of a span of channels of one row.
pub struct Task<'a, T: Storage, F: VectorField<Element = T::Real>> {
    pub call: &'a Call<'a, T, F>,
    pub batch: usize,
    pub span: usize,
    pub start: usize,
    pub len: usize,
    pub scratch: &'a mut Scratch<F>,
}

impl<'a, T: Storage, F: VectorField<Element = T::Real>> Task<'a, T, F> {
    #[inline(always)]
    pub fn blocks(&self) -> &'a [Block] {
        &self.call.blocks[self.call.spans[self.span].clone()]
    }

    /// The frames of a block.
    #[inline(always)]
    pub fn tile(&self, block: Block) -> Tile {
        Tile { batch: self.batch, block, start: self.start, len: self.len }
    }

    /// Place of a block among the {batch, blocks} of the sums.
    #[inline(always)]
    fn place(&self, block: Block) -> usize {
        self.batch * self.call.blocks.len() + block.index
    }

    /// The registers of a block's states among those of all; none where there are none at all.
    #[inline(always)]
    pub fn registers(&self, all: &'a [Vector<F>], block: Block) -> &'a [Vector<F>] {
        block.registers(all, self.scratch.before.len())
    }

    /// Δ, x, and dy behind the gate; the rows of b and c.
    #[inline(always)]
    pub fn load(&mut self, block: Block) {
        let Call { isa, problem, views, .. } = *self.call;
        let tile = self.tile(block);
        let Scratch { delta, x, dy, b, c, .. } = &mut *self.scratch;
        tile.load::<T, F>(isa, problem, views, delta, x);
        let weight = problem.weight();
        for (t, weighted) in dy[..tile.len].iter_mut().enumerate() {
            let frame = tile.frame(problem, t);
            let mut dy = load_frame(isa, &self.call.dy[frame.clone()]);
            if let Some(z) = &views.z {
                dy = dy * silu(load_frame(isa, &z[frame]));
            }
            *weighted = (dy * dy.constant(weight)).vector;
        }
        tile.widen_rows(problem, problem.b, &views.b, b);
        tile.widen_rows(problem, problem.c, &views.c, c);
    }
}

/// A chunk of frames, all gradients of it.
pub struct Chunk<'a, T: Storage, F: VectorField<Element = T::Real>> {
    pub task: Task<'a, T, F>,
    pub adjoints: &'a [T::Real],
    pub places: &'a Places<'a, F>,
    pub outputs: &'a Outputs<'a, T>,
}

impl<T: Storage, F: VectorField<Element = T::Real>> NullaryFnOnce for Chunk<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let problem = self.task.call.problem;
        let blocks = self.task.blocks();
        for (i, &block) in blocks.iter().enumerate() {
            self.task.load(block);
            self.begin(block);
            self.walk(block, false);
            if problem.bidirectional {
                self.walk(block, true);
            }
            self.store(block);
            let last_of = |projection: Projection| {
                projection.groups().filter(|&groups| {
                    let next = blocks.get(i + 1).map(|next| group(problem, groups, *next));
                    next != Some(group(problem, groups, block))
                })
            };
            if let Some(groups) = last_of(problem.b) {
                self.flush(
                    groups,
                    block,
                    problem.b,
                    |scratch| &mut scratch.db,
                    &self.outputs.b,
                    &self.places.span_b,
                );
            }
            if let Some(groups) = last_of(problem.c) {
                self.flush(
                    groups,
                    block,
                    problem.c,
                    |scratch| &mut scratch.dc,
                    &self.outputs.c,
                    &self.places.span_c,
                );
            }
        }
    }
}

impl<'a, T: Storage, F: VectorField<Element = T::Real>> Chunk<'a, T, F> {
    /// What the skip connection passes on; sums at zero.
    #[inline(always)]
    fn begin(&mut self, block: Block) {
        let Call { isa, problem, views, .. } = *self.task.call;
        let d = channels(isa, views.d.as_deref(), block);
        let zero = d.constant(0.0);
        let unweighted = d.constant(1.0 / problem.weight());
        let mut sum = zero;
        let marks = self.task.tile(block).marks(problem, self.task.call.marks);
        self.task.scratch.y.fill(zero.vector);
        for t in 0..self.task.len {
            let skipped = is_skipped(marks, t);
            let Scratch { x, dy, dx, ddelta, .. } = &mut *self.task.scratch;
            let dy = Lanes::new(isa, dy[t]) * unweighted;
            (dx[t], ddelta[t]) = (zero.vector, zero.vector);
            if views.d.is_some() && !skipped {
                dx[t] = (dy * d).vector;
                sum = sum + dy * Lanes::new(isa, x[t]);
            }
        }
        if views.d.is_some() {
            add_to::<F>(isa, &self.places.d, self.task.place(block), sum);
        }
    }

    /// The walk through the chunk and back, in one direction.
    #[inline(always)]
    fn walk(&mut self, block: Block, second: bool) {
        let Call { isa, problem, views, boundary, walk, .. } = *self.task.call;
        let per_block = self.task.scratch.before.len();
        let chunk = self.task.start / boundary_interval(problem);
        let states =
            |second| (boundary_place(problem, second, self.task.batch, chunk) + block.start) * per_block;
        load_states::<F>(&mut self.task.scratch.before, &boundary[states(second)..], block.len);
        if second {
            load_states::<F>(&mut self.task.scratch.lambda, &self.adjoints[states(false)..], block.len);
        }
        let place = self.task.place(block) * per_block;
        let tile = self.task.tile(block);
        let [a, b_constants, c_constants] =
            [self.task.call.a, self.task.call.b, self.task.call.c].map(|all| self.task.registers(all, block));
        let len = tile.len;
        let Scratch { delta, x, dy, y, dx, ddelta, before, lambda, h, decay, db, dc, b, c } =
            &mut *self.task.scratch;
        let sum = |projection, constants: &'a Output<'a, Vector<F>>, rows| match projection {
            // SAFETY: the sums of this block of this row are this task's alone.
            Projection::Constant => Sum::<F>::OverTime(unsafe { constants.write(place, per_block) }),
            Projection::PerFrame { .. } => Sum::OverChannels(rows),
        };
        walk(WalkFrames {
            isa,
            delta: &delta[..len],
            x: &x[..len],
            dy: &dy[..len],
            marks: tile.marks(problem, self.task.call.marks),
            b: tile.rows::<T, F>(problem, problem.b, &views.b, b, b_constants),
            c: tile.rows::<T, F>(problem, problem.c, &views.c, c, c_constants),
            a,
            before,
            reverse: problem.reverse != second,
            reset: if second { LAST } else { RESET },
            lambda: match second {
                true => lambda,
                // SAFETY: λ of this block of this row is this task's alone.
                false => unsafe { self.places.lambda.write(place, per_block) },
            },
            together: self.task.call.together,
            h,
            decay,
            y: y.get_mut(..len),
            dx: &mut dx[..len],
            ddelta: &mut ddelta[..len],
            // SAFETY: the sums of this block of this row are this task's alone.
            da: unsafe { self.places.a.write(place, per_block) },
            db: sum(problem.b, &self.places.b, &mut db[..]),
            dc: sum(problem.c, &self.places.c, &mut dc[..]),
        });
    }

    /// dx, ddt and dz of the chunk.
    #[inline(always)]
    fn store(&mut self, block: Block) {
        let Call { isa, problem, views, dy, .. } = *self.task.call;
        let step = StepSize::new(isa, problem, views.dt_bias.as_deref(), block);
        let d = channels(isa, views.d.as_deref(), block);
        let (zero, one, weight) = (d.constant(0.0), d.constant(1.0), d.constant(problem.weight()));
        let tile = self.task.tile(block);
        let marks = tile.marks(problem, self.task.call.marks);
        let mut sum = zero;
        for t in 0..tile.len {
            let frame = tile.frame(problem, t);
            let skipped = is_skipped(marks, t);
            let Scratch { x, y, dx, ddelta, .. } = &*self.task.scratch;
            let [_, derivative] = step.delta_and_derivative(load_frame(isa, &views.dt[frame.clone()]));
            let write = |output: &Output<'_, T>, lanes: Lanes<T::Real, F::Isa>| {
                // SAFETY: this frame of this block is this task's alone.
                let values = unsafe { output.write(frame.start, frame.len()) };
                store_frame(if skipped { zero } else { lanes }, values);
            };
            let ddt = Lanes::new(isa, ddelta[t]) * derivative;
            write(&self.outputs.x, Lanes::new(isa, dx[t]));
            write(&self.outputs.dt, ddt);
            if !skipped {
                sum = sum + ddt;
            }
            if let (Some(z), Some(output)) = (&views.z, &self.outputs.z) {
                let (z, dy) = (load_frame(isa, &z[frame.clone()]), load_frame(isa, &dy[frame.clone()]));
                let mut y = Lanes::new(isa, y[t]) * weight;
                if views.d.is_some() {
                    y = y + d * Lanes::new(isa, x[t]);
                }
                let s = z.sigmoid();
                write(output, dy * y * s * (one + z * (one - s)));
            }
        }
        if views.dt_bias.is_some() {
            add_to::<F>(isa, &self.places.dt_bias, self.task.place(block), sum);
        }
    }

    /// Hands the rows of a group on, and clears them.
    #[inline(always)]
    fn flush(
        &mut self,
        groups: usize,
        block: Block,
        projection: Projection,
        rows: impl FnOnce(&mut Scratch<F>) -> &mut Vec<T::Real>,
        output: &Option<Output<'_, T>>,
        spans: &Output<'_, T::Real>,
    ) {
        let Call { problem, .. } = *self.task.call;
        let (batch, span, start, len) = (self.task.batch, self.task.span, self.task.start, self.task.len);
        let width = self.task.scratch.before.len();
        let shared = self.task.call.shared(projection);
        let rows = rows(self.task.scratch);
        if shared {
            let place = (batch * self.task.call.spans.len() + span) * rows.len();
            // SAFETY: the sums of this span of this row are this task's alone.
            unsafe { spans.write(place, len * width) }.copy_from_slice(&rows[..len * width]);
        } else if let Some(output) = output {
            for (t, row) in rows.chunks_exact(width).take(len).enumerate() {
                let place = (batch * problem.seq + start + t) * groups + group(problem, groups, block);
                // SAFETY: no other span has channels of this group.
                let values = unsafe { output.write(place * width, width) };
                for (value, &sum) in values.iter_mut().zip(row) {
                    *value = T::from_real(sum);
                }
            }
        }
        rows.fill(T::Real::default());
    }
}

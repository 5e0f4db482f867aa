//! The backward scan.
//!
//! The states are not kept from the forward pass: they are computed again, a chunk of frames at a time, from the
//! states before the chunk. Chunks are taken from the end of the scan to its beginning; within a chunk and for a few
//! states of a block of channels at once, one walk forward writes the chunk's states into scratch, and one walk back
//! carries λ = ∂L/∂h through it:
//!
//! ```text
//! λ += w dy conj(C)          dC += w dy conj(h)
//! da = λ conj(h before)      dA += da conj(∂a/∂A) + dg conj(∂g/∂A)
//! dg = λ conj(B x)           dΔ += Re(da conj(∂a/∂Δ) + dg conj(∂g/∂Δ))
//! dv = λ conj(g)             dB += dv x;   dx += Re(dv conj(B))
//! λ ← conj(a) λ
//! ```
//!
//! w is 2 for complex states, halved where two directions are averaged: everything above is linear in λ, so the second
//! direction is walked just the same and adds to the same sums. Its λ comes from the other end of time; a sweep over
//! the chunks in that order has left it at their edges.
//!
//! A task is a span of channels of one row. Sums over channels (dB, dC) run over lanes, blocks and spans in their
//! order; sums over rows (dA, dD, ddt_bias, constant B and C) as a tree. How the problem is cut depends on the problem
//! alone: the same call gives the same bits on any number of threads.

use std::marker::PhantomData;
use std::ops::Range;

use pulp::{NullaryFnOnce, Simd};

use super::blocks::{Block, blocks, load_states, store_states};
use super::boundary::{boundary_interval, boundary_place, boundary_shape, check_boundary_length, chunks};
use super::forward::{boundary_states, group, in_lanes, rows, widen_rows, widened};
use super::frames::{FRESH, LAST, SKIP, marks};
use super::memory::zeros;
use super::tile::{Rows, StepSize, channels, load_frame, silu, store_frame};
use super::vector::{LaneSums, Lanes, Real, Vector, VectorField};
use super::views::{Output, Storage, Views, numbers, numbers_mut};
use super::{TOGETHER, for_each_task};
use crate::discretize::{Discretization, Field, Prepared, with_discretization};
use crate::{Error, Gradients, OutputGradients, Problem, Projection};

/// Tasks that a chunk of frames is cut into where the batch alone has fewer rows.
const TASKS: usize = 8;

/// Registers that a task keeps of the states of a chunk, and as many of their decays.
const KEPT: usize = 512;

/// Frames of sequences whose sums of db and dc are bounded by the inputs; shorter ones have little of them in any case.
const BOUNDED_FROM: usize = 2048;

/// Writes the gradients, with one instruction set, storage and field.
pub fn backward<T: Storage, F: VectorField<Element = T::Real>>(
    isa: F::Isa,
    problem: &Problem,
    views: &Views<'_, T>,
    boundary: Option<&[u8]>,
    output_gradients: OutputGradients<&[u8]>,
    gradients: Gradients<&mut [u8]>,
) -> Result<(), Error> {
    problem.check_lengths(output_gradients.iter())?;
    // Before anything is written: sums over rows come to their gradients last.
    let gradients = gradients.try_map(|name, bytes| {
        match name {
            "x" | "dt" | "z" | "b" | "c" => numbers_mut::<T>(problem, name, &mut *bytes).map(|_| ())?,
            _ => numbers_mut::<T::Real>(problem, name, &mut *bytes).map(|_| ())?,
        }
        Ok(bytes)
    })?;
    let boundary = match boundary {
        Some(bytes) => {
            check_boundary_length(problem, bytes.len())?;
            numbers::<T::Real>(bytes)?
        }
        None => {
            let mut states = zeros::<T::Real>(boundary_shape(problem).iter().product())?;
            boundary_states::<T, F>(isa, problem, views, &mut states)?;
            states.into()
        }
    };
    let blocks = blocks(problem, Lanes::<T::Real, F::Isa>::COUNT)?;
    let constants = |projection, values: &[T]| match projection {
        Projection::Constant => in_lanes::<F>(problem, &blocks, &widened(values)?),
        Projection::PerFrame { .. } => Ok(Vec::new()),
    };
    let marks = views.seq_idx.as_deref().map(|seq_idx| marks(problem, seq_idx)).transpose()?;
    let (cheap, walk, sweep): Compiled<F> = with_discretization!(problem.method, problem.coefficients, D =>
        (D::CHEAP, walk_chunk::<F, D>, sweep_chunk::<F, D>));
    let call = Call {
        isa,
        problem,
        views,
        dy: &numbers::<T>(output_gradients.dy)?,
        boundary: &boundary,
        marks: marks.as_deref(),
        a: &in_lanes::<F>(problem, &blocks, &views.a)?,
        b: &constants(problem.b, &views.b)?,
        c: &constants(problem.c, &views.c)?,
        blocks: &blocks,
        spans: &spans(problem, &blocks),
        together: together::<F>(problem, cheap),
        walk,
        sweep,
    };

    let mut sums = Sums::<F>::new(problem, blocks.len())?;
    if let Some(dfinal_state) = output_gradients.dfinal_state {
        sums.load_lambda(problem, &blocks, &numbers(dfinal_state)?);
    }
    let adjoints = call.adjoints()?;
    let Gradients { x, dt, a, b, c, d, z, dt_bias, initial_state } = gradients;
    let outputs = Outputs {
        x: Output::new(problem, "x", x)?,
        dt: Output::new(problem, "dt", dt)?,
        z: z.map(|bytes| Output::new(problem, "z", bytes)).transpose()?,
        b: problem.b.groups().map(|_| Output::new(problem, "b", &mut *b)).transpose()?,
        c: problem.c.groups().map(|_| Output::new(problem, "c", &mut *c)).transpose()?,
    };
    call.run(&mut sums, &adjoints, &outputs)?;

    if let Some(bytes) = initial_state {
        sums.store_lambda(problem, &blocks, numbers_mut(problem, "initial_state", bytes)?);
    }
    let total = |lanes: &mut Vec<Vector<F>>| sum_rows::<F>(isa, problem, &blocks, lanes);
    numbers_mut(problem, "a", a)?.copy_from_slice(&total(&mut sums.a)?);
    for (name, projection, bytes, lanes) in
        [("b", problem.b, b, &mut sums.b), ("c", problem.c, c, &mut sums.c)]
    {
        if projection == Projection::Constant {
            for (value, sum) in numbers_mut::<T>(problem, name, bytes)?.iter_mut().zip(total(lanes)?) {
                *value = T::from_real(sum);
            }
        }
    }
    for (name, bytes, lanes) in [("d", d, &mut sums.d), ("dt_bias", dt_bias, &mut sums.dt_bias)] {
        if let Some(bytes) = bytes {
            numbers_mut(problem, name, bytes)?.copy_from_slice(&total(lanes)?);
        }
    }
    Ok(())
}

/// Registers of states that walk a chunk together, half as many states where they are complex: fewer through a long chunk.
fn together<F: VectorField>(problem: &Problem, cheap: bool) -> usize {
    let chunk = boundary_interval(problem).min(problem.seq);
    let mut registers = if cheap { TOGETHER } else { 1 };
    while registers * chunk > KEPT {
        registers /= 2;
    }
    registers.max(F::COMPONENTS)
}

/// Runs of blocks that a task takes; a group of b or of c is never cut, unless all channels share it.
fn spans(problem: &Problem, blocks: &[Block]) -> Vec<Range<usize>> {
    let mut wanted = TASKS.div_ceil(problem.batch).min(blocks.len());
    if problem.seq >= BOUNDED_FROM {
        // Sums of db and dc in every span take at most a seventieth of x, dt and dy.
        let inputs = 3 * problem.seq * problem.dim * problem.element.size();
        let sums = 2
            * boundary_interval(problem)
            * problem.state
            * problem.components()
            * problem.element.state_type().size();
        wanted = wanted.min(inputs / 70 / sums).max(1);
    }
    let target = blocks.len().div_ceil(wanted);
    let whole_groups = |start: usize| {
        [problem.b, problem.c]
            .into_iter()
            .filter_map(Projection::groups)
            .all(|groups| groups == 1 || start.is_multiple_of(problem.dim / groups))
    };
    let mut spans = Vec::new();
    let mut first = 0;
    for end in 1..=blocks.len() {
        let cut = blocks.get(end).is_none_or(|block| end - first >= target && whole_groups(block.start));
        if cut {
            spans.push(first..end);
            first = end;
        }
    }
    spans
}

/// What is summed over time within a row: {batch, blocks} of registers, added up over the batch in the end; and λ, on
/// its way from chunk to chunk.
struct Sums<F: VectorField> {
    lambda: Vec<Vector<F>>,
    a: Vec<Vector<F>>,
    /// Empty where b varies with the frame.
    b: Vec<Vector<F>>,
    c: Vec<Vector<F>>,
    d: Vec<Vector<F>>,
    dt_bias: Vec<Vector<F>>,
}

impl<F: VectorField> Sums<F> {
    fn new(problem: &Problem, blocks: usize) -> Result<Self, Error> {
        let states = problem.state * F::COMPONENTS;
        let zeros = |wanted: bool, len: usize| zeros(if wanted { problem.batch * blocks * len } else { 0 });
        Ok(Self {
            lambda: zeros(true, states)?,
            a: zeros(true, states)?,
            b: zeros(problem.b == Projection::Constant, states)?,
            c: zeros(problem.c == Projection::Constant, states)?,
            d: zeros(problem.d, 1)?,
            dt_bias: zeros(problem.dt_bias, 1)?,
        })
    }

    fn load_lambda(&mut self, problem: &Problem, blocks: &[Block], states: &[F::Element]) {
        let per_channel = problem.state * F::COMPONENTS;
        for (i, lambda) in self.lambda.chunks_exact_mut(per_channel).enumerate() {
            let block = blocks[i % blocks.len()];
            let start = (i / blocks.len() * problem.dim + block.start) * per_channel;
            load_states::<F>(lambda, &states[start..], block.len);
        }
    }

    fn store_lambda(&self, problem: &Problem, blocks: &[Block], states: &mut [F::Element]) {
        let per_channel = problem.state * F::COMPONENTS;
        for (i, lambda) in self.lambda.chunks_exact(per_channel).enumerate() {
            let block = blocks[i % blocks.len()];
            let start = (i / blocks.len() * problem.dim + block.start) * per_channel;
            store_states::<F>(lambda, &mut states[start..], block.len);
        }
    }
}

/// Adds {batch, blocks, …} registers over the batch, as a tree, into {dim, …} numbers.
fn sum_rows<F: VectorField>(
    isa: F::Isa,
    problem: &Problem,
    blocks: &[Block],
    lanes: &mut [Vector<F>],
) -> Result<Vec<F::Element>, Error> {
    let row = lanes.len() / problem.batch;
    let mut distance = 1;
    while distance < problem.batch {
        for first in (0..problem.batch - distance).step_by(2 * distance) {
            let (left, right) = lanes.split_at_mut((first + distance) * row);
            for (sum, term) in left[first * row..][..row].iter_mut().zip(&right[..row]) {
                *sum = (Lanes::<F::Element, F::Isa>::new(isa, *sum) + Lanes::new(isa, *term)).vector;
            }
        }
        distance *= 2;
    }
    let per_channel = row / blocks.len();
    let mut numbers = zeros::<F::Element>(problem.dim * per_channel)?;
    for (block, registers) in blocks.iter().zip(lanes[..row].chunks_exact(per_channel)) {
        store_states::<F>(registers, &mut numbers[block.start * per_channel..], block.len);
    }
    Ok(numbers)
}

/// Everything that the tasks of a call read.
struct Call<'a, T: Storage, F: VectorField<Element = T::Real>> {
    isa: F::Isa,
    problem: &'a Problem,
    views: &'a Views<'a, T>,
    dy: &'a [T],
    boundary: &'a [T::Real],
    marks: Option<&'a [u8]>,
    /// A, and constant b and c, {blocks, state} in lanes.
    a: &'a [Vector<F>],
    b: &'a [Vector<F>],
    c: &'a [Vector<F>],
    blocks: &'a [Block],
    spans: &'a [Range<usize>],
    /// Registers of states that walk a chunk together.
    together: usize,
    walk: WalkChunk<F>,
    sweep: SweepChunk<F>,
}

/// Where gradients that have an axis of time go.
struct Outputs<'a, T: Storage> {
    x: Output<'a, T>,
    dt: Output<'a, T>,
    z: Option<Output<'a, T>>,
    b: Option<Output<'a, T>>,
    c: Option<Output<'a, T>>,
}

/// Where the tasks of a chunk add up.
struct Places<'a, F: VectorField> {
    lambda: Output<'a, Vector<F>>,
    a: Output<'a, Vector<F>>,
    b: Output<'a, Vector<F>>,
    c: Output<'a, Vector<F>>,
    d: Output<'a, Vector<F>>,
    dt_bias: Output<'a, Vector<F>>,
    /// Sums over the channels of a span, {batch, spans, chunk, state}, where all channels share b or c.
    span_b: Output<'a, F::Element>,
    span_c: Output<'a, F::Element>,
}

impl<T: Storage, F: VectorField<Element = T::Real>> Call<'_, T, F> {
    /// Runs a task for every span of every row.
    fn for_each_span(&self, run: impl Fn(Task<'_, T, F>) + Sync) -> Result<(), Error> {
        let (problem, spans) = (self.problem, self.spans.len());
        let task = |scratch: &mut Scratch<F>, index: usize| {
            run(Task { call: self, batch: index / spans, span: index % spans, start: 0, len: 0, scratch });
        };
        for_each_task(problem, problem.batch * spans, || Scratch::new(problem, self.together), task)
    }

    /// λ of the second direction as it comes into every chunk, {batch, chunks, dim, state}; empty with one direction.
    fn adjoints(&self) -> Result<Vec<T::Real>, Error> {
        let problem = self.problem;
        if !problem.bidirectional {
            return Ok(Vec::new());
        }
        let states = boundary_shape(problem).iter().product::<usize>() / 2;
        let mut adjoints = zeros::<T::Real>(states)?;
        let places = Output::over(&mut adjoints);
        self.for_each_span(|task| self.isa.vectorize(Sweep { task, adjoints: &places }))?;
        Ok(adjoints)
    }

    /// All chunks, from the end of the scan to its beginning.
    fn run(&self, sums: &mut Sums<F>, adjoints: &[T::Real], outputs: &Outputs<'_, T>) -> Result<(), Error> {
        let problem = self.problem;
        let chunk = boundary_interval(problem).min(problem.seq);
        let shared = |projection| {
            let rows = if self.shared(projection) { problem.batch * self.spans.len() * chunk } else { 0 };
            zeros::<T::Real>(rows * problem.state * F::COMPONENTS)
        };
        let (mut span_b, mut span_c) = (shared(problem.b)?, shared(problem.c)?);
        let chunks = chunks(problem);
        for i in 0..chunks {
            let start = boundary_interval(problem) * if problem.reverse { i } else { chunks - 1 - i };
            let len = chunk.min(problem.seq - start);
            let places = Places {
                lambda: Output::over(&mut sums.lambda),
                a: Output::over(&mut sums.a),
                b: Output::over(&mut sums.b),
                c: Output::over(&mut sums.c),
                d: Output::over(&mut sums.d),
                dt_bias: Output::over(&mut sums.dt_bias),
                span_b: Output::over(&mut span_b),
                span_c: Output::over(&mut span_c),
            };
            self.for_each_span(|task| {
                let task = Task { start, len, ..task };
                self.isa.vectorize(Chunk { task, adjoints, places: &places, outputs });
            })?;
            for (output, sums) in [(&outputs.b, &span_b), (&outputs.c, &span_c)] {
                if let (Some(output), false) = (output, sums.is_empty()) {
                    self.add_spans(output, sums, start, len);
                }
            }
        }
        Ok(())
    }

    /// Whether several spans add to the same rows of the gradient of b or c.
    fn shared(&self, projection: Projection) -> bool {
        self.spans.len() > 1 && projection.groups() == Some(1)
    }

    /// Rows of a chunk, from the sums of its spans.
    fn add_spans(&self, output: &Output<'_, T>, sums: &[T::Real], start: usize, len: usize) {
        let (problem, spans) = (self.problem, self.spans.len());
        let width = problem.state * F::COMPONENTS;
        let span = sums.len() / (problem.batch * spans);
        for (batch, sums) in sums.chunks_exact(span * spans).enumerate() {
            // SAFETY: all tasks of the chunk are done: nobody else writes.
            let rows = unsafe { output.write((batch * problem.seq + start) * width, len * width) };
            for (i, value) in rows.iter_mut().enumerate() {
                let mut sum = sums[i];
                for other in 1..spans {
                    sum = sum.plus(sums[other * span + i]);
                }
                *value = T::from_real(sum);
            }
        }
    }
}

/// Memory of a task, used again by the next. Frames count from the chunk's first.
struct Scratch<F: VectorField> {
    delta: Vec<Vector<F>>,
    x: Vec<Vector<F>>,
    /// w·∂L/∂(C h).
    dy: Vec<Vector<F>>,
    /// Σ Re(C h), which the gate alone asks for.
    y: Vec<Vector<F>>,
    dx: Vec<Vector<F>>,
    ddelta: Vec<Vector<F>>,
    /// The states before a chunk.
    before: Vec<Vector<F>>,
    /// λ of the second direction.
    lambda: Vec<Vector<F>>,
    /// States that walk together, after every frame, from those before the chunk on.
    h: Vec<Vector<F>>,
    /// Their decays in every frame.
    decay: Vec<Vector<F>>,
    /// Sums over the channels of a group, {frames, state}.
    db: Vec<F::Element>,
    dc: Vec<F::Element>,
    b: Vec<F::Element>,
    c: Vec<F::Element>,
}

impl<F: VectorField> Scratch<F> {
    fn new(problem: &Problem, together: usize) -> Result<Self, Error> {
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
struct Task<'a, T: Storage, F: VectorField<Element = T::Real>> {
    call: &'a Call<'a, T, F>,
    batch: usize,
    span: usize,
    start: usize,
    len: usize,
    scratch: &'a mut Scratch<F>,
}

impl<'a, T: Storage, F: VectorField<Element = T::Real>> Task<'a, T, F> {
    #[inline(always)]
    fn blocks(&self) -> &'a [Block] {
        &self.call.blocks[self.call.spans[self.span].clone()]
    }

    /// Place of a frame of a block in {batch, seq, dim}.
    #[inline(always)]
    fn frame(&self, block: Block, t: usize) -> Range<usize> {
        let problem = self.call.problem;
        let place = (self.batch * problem.seq + self.start + t) * problem.dim + block.start;
        place..place + block.len
    }

    /// Marks of the frames.
    #[inline(always)]
    fn marks(&self) -> Option<&'a [u8]> {
        self.call.marks.map(|marks| &marks[self.batch * self.call.problem.seq + self.start..][..self.len])
    }

    #[inline(always)]
    fn skipped(&self, t: usize) -> bool {
        self.marks().is_some_and(|marks| marks[t] & SKIP != 0)
    }

    /// Place of a block among the {batch, blocks} of the sums.
    #[inline(always)]
    fn place(&self, block: Block) -> usize {
        self.batch * self.call.blocks.len() + block.index
    }

    /// The registers of a block's states among those of all; none where there are none at all.
    #[inline(always)]
    fn registers(&self, all: &'a [Vector<F>], block: Block) -> &'a [Vector<F>] {
        block.registers(all, self.scratch.before.len())
    }

    /// Δ, x, and dy behind the gate; the rows of b and c.
    #[inline(always)]
    fn load(&mut self, block: Block) {
        let Call { isa, problem, views, dy, .. } = *self.call;
        let step = StepSize::new(isa, problem, views.dt_bias.as_deref(), block);
        let weight = problem.weight();
        for t in 0..self.len {
            let frame = self.frame(block, t);
            let mut dy = load_frame(isa, &dy[frame.clone()]);
            if let Some(z) = &views.z {
                dy = dy * silu(load_frame(isa, &z[frame.clone()]));
            }
            self.scratch.dy[t] = (dy * dy.constant(weight)).vector;
            self.scratch.x[t] = load_frame(isa, &views.x[frame.clone()]).vector;
            self.scratch.delta[t] = step.delta(load_frame(isa, &views.dt[frame])).vector;
        }
        let (batch, start, len) = (self.batch, self.start, self.len);
        widen_rows(problem, problem.b, &views.b, batch, block, start, len, &mut self.scratch.b);
        widen_rows(problem, problem.c, &views.c, batch, block, start, len, &mut self.scratch.c);
    }
}

/// Carries λ of the second direction over all chunks, and leaves it where it comes into each.
struct Sweep<'a, T: Storage, F: VectorField<Element = T::Real>> {
    task: Task<'a, T, F>,
    adjoints: &'a Output<'a, T::Real>,
}

impl<T: Storage, F: VectorField<Element = T::Real>> NullaryFnOnce for Sweep<'_, T, F> {
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
                let marks = task.marks();
                let a = task.registers(task.call.a, block);
                let constants = task.registers(task.call.c, block);
                let (batch, start, len) = (task.batch, task.start, task.len);
                let Scratch { delta, dy, lambda, c, .. } = &mut *task.scratch;
                (task.call.sweep)(SweepFrames {
                    isa,
                    delta: &delta[..len],
                    dy: &dy[..len],
                    marks,
                    c: rows::<T, F>(problem, problem.c, &views.c, batch, block, start, c, constants),
                    a,
                    backward: problem.reverse,
                    lambda,
                });
            }
        }
    }
}

/// A chunk of frames, all gradients of it.
struct Chunk<'a, T: Storage, F: VectorField<Element = T::Real>> {
    task: Task<'a, T, F>,
    adjoints: &'a [T::Real],
    places: &'a Places<'a, F>,
    outputs: &'a Outputs<'a, T>,
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
        self.task.scratch.y.fill(zero.vector);
        for t in 0..self.task.len {
            let skipped = self.task.skipped(t);
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
        let marks = self.task.marks();
        let [a, b_constants, c_constants] =
            [self.task.call.a, self.task.call.b, self.task.call.c].map(|all| self.task.registers(all, block));
        let (batch, start, len) = (self.task.batch, self.task.start, self.task.len);
        let Scratch { delta, x, dy, y, dx, ddelta, before, lambda, h, decay, db, dc, b, c } =
            &mut *self.task.scratch;
        let sum = |projection, constants: &'a Output<'a, Vector<F>>, rows| match projection {
            // SAFETY: the sums of this block of this row are this task's alone.
            Projection::Constant => Sum::<F>::OverTime(unsafe { constants.write(place, per_block) }),
            Projection::PerFrame { .. } => Sum::OverChannels(rows),
        };
        walk(Walk {
            isa,
            delta: &delta[..len],
            x: &x[..len],
            dy: &dy[..len],
            marks,
            b: rows::<T, F>(problem, problem.b, &views.b, batch, block, start, b, b_constants),
            c: rows::<T, F>(problem, problem.c, &views.c, batch, block, start, c, c_constants),
            a,
            before,
            backward: problem.reverse != second,
            fresh: if second { LAST } else { FRESH },
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
        let mut sum = zero;
        for t in 0..self.task.len {
            let frame = self.task.frame(block, t);
            let skipped = self.task.skipped(t);
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

/// Adds to a register of a block's own.
#[inline(always)]
fn add_to<F: VectorField>(isa: F::Isa, sums: &Output<'_, Vector<F>>, place: usize, term: F::Real) {
    // SAFETY: the sums of a block of a row are its task's alone.
    let sum = unsafe { sums.write(place, 1) };
    sum[0] = (Lanes::<F::Element, F::Isa>::new(isa, sum[0]) + term).vector;
}

/// Adds the terms of N states to sums in registers.
#[inline(always)]
fn add_registers<F: VectorField, const N: usize>(isa: F::Isa, sums: &mut [Vector<F>], terms: [F; N]) {
    for (sum, term) in sums.chunks_exact_mut(F::COMPONENTS).zip(terms) {
        (F::load(isa, sum) + term).store(sum);
    }
}

/// The gradient of b or c.
enum Sum<'a, F: VectorField> {
    /// Of constant ones, for every state in lanes.
    OverTime(&'a mut [Vector<F>]),
    /// Of those that vary with the frame, {frames, state}.
    OverChannels(&'a mut [F::Element]),
}

impl<F: VectorField> Sum<'_, F> {
    /// Takes the terms of N states in a frame, from n on; `gathered` are sums of the chunk.
    #[inline(always)]
    fn add<const N: usize>(
        &mut self,
        lane_sums: &LaneSums<F>,
        states: usize,
        t: usize,
        n: usize,
        terms: [F; N],
        gathered: &mut [F; N],
    ) {
        match self {
            Sum::OverTime(_) => {
                for (sum, term) in gathered.iter_mut().zip(terms) {
                    *sum = *sum + term;
                }
            }
            Sum::OverChannels(rows) => {
                lane_sums.add(terms, &mut rows[(t * states + n) * F::COMPONENTS..][..N * F::COMPONENTS]);
            }
        }
    }

    /// Takes up what a chunk has gathered of N states, from n on: of frames one by one, a long row would lose digits.
    #[inline(always)]
    fn end<const N: usize>(&mut self, isa: F::Isa, n: usize, gathered: [F; N]) {
        let Sum::OverTime(registers) = self else { return };
        add_registers(isa, &mut registers[n * F::COMPONENTS..][..N * F::COMPONENTS], gathered);
    }
}

/// A chunk of a block, ready for λ of the second direction to be carried through.
struct SweepFrames<'a, F: VectorField> {
    isa: F::Isa,
    delta: &'a [Vector<F>],
    dy: &'a [Vector<F>],
    marks: Option<&'a [u8]>,
    c: Rows<'a, F>,
    a: &'a [Vector<F>],
    /// Whether λ runs from the last frame to the first.
    backward: bool,
    lambda: &'a mut [Vector<F>],
}

/// The sweep, compiled for a discretization.
type SweepChunk<F> = fn(SweepFrames<'_, F>);

/// What depends on the discretization: whether it is cheap, and what is compiled for it.
type Compiled<F> = (bool, WalkChunk<F>, SweepChunk<F>);

fn sweep_chunk<F: VectorField, D: Discretization>(frames: SweepFrames<'_, F>) {
    struct Run<'a, F: VectorField, D>(SweepFrames<'a, F>, PhantomData<D>);

    impl<F: VectorField, D: Discretization> NullaryFnOnce for Run<'_, F, D> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let SweepFrames { isa, delta, dy, marks, c, a, backward, lambda } = self.0;
            for n in 0..lambda.len() / F::COMPONENTS {
                let registers = &mut lambda[n * F::COMPONENTS..][..F::COMPONENTS];
                let prepared = Prepared::new(F::load(isa, &a[n * F::COMPONENTS..]));
                let mut lambda = F::load(isa, registers);
                for i in 0..delta.len() {
                    let t = if backward { delta.len() - 1 - i } else { i };
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

/// A chunk of a block, ready to be walked through and back.
struct Walk<'a, F: VectorField> {
    isa: F::Isa,
    delta: &'a [Vector<F>],
    x: &'a [Vector<F>],
    dy: &'a [Vector<F>],
    marks: Option<&'a [u8]>,
    b: Rows<'a, F>,
    c: Rows<'a, F>,
    a: &'a [Vector<F>],
    before: &'a [Vector<F>],
    backward: bool,
    /// The mark before which the state is reset, in this direction.
    fresh: u8,
    lambda: &'a mut [Vector<F>],
    together: usize,
    h: &'a mut [Vector<F>],
    decay: &'a mut [Vector<F>],
    y: Option<&'a mut [Vector<F>]>,
    dx: &'a mut [Vector<F>],
    ddelta: &'a mut [Vector<F>],
    da: &'a mut [Vector<F>],
    db: Sum<'a, F>,
    dc: Sum<'a, F>,
}

/// The walk, compiled for a discretization.
type WalkChunk<F> = fn(Walk<'_, F>);

fn walk_chunk<F: VectorField, D: Discretization>(walk: Walk<'_, F>) {
    struct Run<'a, F: VectorField, D>(Walk<'a, F>, PhantomData<D>);

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

impl<F: VectorField> Walk<'_, F> {
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
        let Walk { isa, delta, x, marks, b, c, backward, fresh, .. } = *self;
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
            let t = if backward { len - 1 - i } else { i };
            let mark = marks.map_or(0, |marks| marks[t]);
            if mark & SKIP == 0 {
                if mark & fresh != 0 {
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
        let Walk { isa, delta, x, dy, marks, b, c, backward, fresh, .. } = *self;
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
            let t = if backward { len - 1 - i } else { i };
            let mark = marks.map_or(0, |marks| marks[t]);
            if mark & SKIP != 0 {
                continue;
            }
            let is_fresh = mark & fresh != 0;
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
                let before = if is_fresh { zero[j] } else { F::load(isa, &before[at..]) };
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
                lambda[j] = if is_fresh { zero[j] } else { partials.a.conj() * lambda[j] };
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

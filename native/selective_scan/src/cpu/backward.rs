//! The backward scan.
//!
//! The states are not kept from the forward pass: they are computed again, a chunk of frames at a time, from the
//! states before the chunk. Chunks are taken from the end of the scan to its beginning; within a chunk and for each
//! state of a block of channels, one walk forward writes the chunk's states into scratch, and one walk back carries
//! λ = ∂L/∂h through it:
//!
//! ```text
//! λ += w dy conj(C)          dC += w dy conj(h)
//! da = λ conj(h before)      dA += da conj(∂a/∂A) + dg conj(∂g/∂A)
//! dg = λ conj(B x)           dΔ += Re(da conj(∂a/∂Δ) + dg conj(∂g/∂Δ))
//! dv = λ conj(g)             dB += dv x;   dx += Re(dv conj(B))
//! λ ← conj(a) λ
//! ```
//!
//! w is 2 for complex states, halved where two directions are averaged: the gradient is then the sum of two passes,
//! one for each direction, since everything above is linear in λ.
//!
//! A task is a span of channels of one row. Sums over channels (dB, dC) are kept in lanes and added up when a span is
//! done, then over spans in their order; sums over rows (dA, dD, ddt_bias, constant B and C) as a tree. How the
//! problem is cut depends on the problem alone: the same call gives the same bits on any number of threads.

use std::marker::PhantomData;
use std::ops::Range;

use pulp::{NullaryFnOnce, Simd};
use rayon::prelude::*;

use super::blocks::{Block, blocks, load_states, store_states};
use super::forward::{boundary_place, boundary_states, group, in_lanes, rows, widen_rows, widened};
use super::frames::{FRESH, LAST, SKIP, marks};
use super::sink::{Sink, Writer};
use super::tile::{Rows, StepSize, channels, load_frame, weight};
use super::vector::{Lanes, Real, Vector, VectorField};
use super::views::{Output, Storage, Views, numbers, numbers_mut};
use super::{SERIAL_WORK, work};
use crate::discretize::{Discretization, with_discretization};
use crate::{Error, Gradients, OutputGradients, Problem, Projection};

/// Tasks that a chunk of frames is cut into where the batch alone has fewer rows.
const TASKS: usize = 8;

/// Writes the gradients, with one instruction set, storage and field.
pub fn backward<T: Storage, F: VectorField<Element = T::Real>>(
    isa: F::Isa,
    problem: &Problem,
    views: &Views<'_, T>,
    boundary: Option<&[u8]>,
    upstream: OutputGradients<&[u8]>,
    gradients: Gradients<&mut [u8]>,
) -> Result<(), Error> {
    let upstream = upstream.try_map(|name, bytes| {
        problem.check_length(name, bytes.len())?;
        Ok(bytes)
    })?;
    let boundary = match boundary {
        Some(bytes) => {
            problem.check_length("boundary_states", bytes.len())?;
            numbers::<T::Real>(bytes)
        }
        None => {
            let mut states = vec![T::Real::default(); problem.boundary_shape().iter().product()];
            boundary_states::<T, F>(isa, problem, views, &mut states);
            states.into()
        }
    };
    let blocks = blocks(problem, Lanes::<T::Real, F::Isa>::COUNT);
    let spans = spans(problem, &blocks);
    let constants = |projection, values: &[T]| match projection {
        Projection::Constant => in_lanes::<F>(isa, problem, &blocks, &widened(values)),
        Projection::PerFrame { .. } => Vec::new(),
    };
    let marks = views.seq_idx.as_deref().map(|seq_idx| marks(problem, seq_idx));
    let pass = Pass {
        isa,
        problem,
        views,
        dy: &numbers::<T>(upstream.dy),
        boundary: &boundary,
        marks: marks.as_deref(),
        a: &in_lanes::<F>(isa, problem, &blocks, &views.a),
        b: &constants(problem.b, &views.b),
        c: &constants(problem.c, &views.c),
        blocks: &blocks,
        spans: &spans,
        walk: with_discretization!(problem.method, problem.coefficients, D => walk_chunk::<F, D>),
        second: false,
    };

    let mut sums = Sums::new(isa, problem, blocks.len());
    if let Some(dfinal_state) = upstream.dfinal_state {
        sums.load_lambda(problem, &blocks, &numbers(dfinal_state));
    }
    let mut sinks = Sinks {
        x: Sink::new(problem, "x", gradients.x)?,
        dt: Sink::new(problem, "dt", gradients.dt)?,
        z: gradients.z.map(|bytes| Sink::new(problem, "z", bytes)).transpose()?,
        b: per_frame(problem.b).map(|_| Sink::new(problem, "b", &mut *gradients.b)).transpose()?,
        c: per_frame(problem.c).map(|_| Sink::new(problem, "c", &mut *gradients.c)).transpose()?,
    };
    pass.run(&mut sums, &mut sinks);
    if let Some(bytes) = gradients.initial_state {
        sums.store_lambda(problem, &blocks, numbers_mut(problem, "initial_state", bytes)?);
    }
    if problem.bidirectional {
        sums.lambda.fill(F::zero(isa).re().vector);
        Pass { second: true, ..pass }.run(&mut sums, &mut sinks);
    }
    sinks.finish();

    let total = |lanes: &mut Vec<Vector<F>>| sum_rows::<F>(isa, problem, &blocks, lanes);
    numbers_mut(problem, "a", gradients.a)?.copy_from_slice(&total(&mut sums.a));
    for (name, projection, bytes, lanes) in
        [("b", problem.b, gradients.b, &mut sums.b), ("c", problem.c, gradients.c, &mut sums.c)]
    {
        if projection == Projection::Constant {
            for (value, sum) in numbers_mut::<T>(problem, name, bytes)?.iter_mut().zip(total(lanes)) {
                *value = T::from_real(sum);
            }
        }
    }
    for (name, bytes, lanes) in
        [("d", gradients.d, &mut sums.d), ("dt_bias", gradients.dt_bias, &mut sums.dt_bias)]
    {
        if let Some(bytes) = bytes {
            numbers_mut(problem, name, bytes)?.copy_from_slice(&total(lanes));
        }
    }
    Ok(())
}

fn per_frame(projection: Projection) -> Option<usize> {
    match projection {
        Projection::PerFrame { groups } => Some(groups),
        Projection::Constant => None,
    }
}

/// Runs of blocks that a task takes; a group of b or of c is never cut, unless all channels share it.
fn spans(problem: &Problem, blocks: &[Block]) -> Vec<Range<usize>> {
    let wanted = TASKS.div_ceil(problem.batch).min(blocks.len());
    let target = blocks.len().div_ceil(wanted);
    let whole_groups = |start: usize| {
        [problem.b, problem.c]
            .into_iter()
            .filter_map(per_frame)
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
    fn new(isa: F::Isa, problem: &Problem, blocks: usize) -> Self {
        let states = problem.state * F::COMPONENTS;
        let zeros = |wanted: bool, len: usize| {
            vec![F::zero(isa).re().vector; if wanted { problem.batch * blocks * len } else { 0 }]
        };
        Self {
            lambda: zeros(true, states),
            a: zeros(true, states),
            b: zeros(problem.b == Projection::Constant, states),
            c: zeros(problem.c == Projection::Constant, states),
            d: zeros(problem.d, 1),
            dt_bias: zeros(problem.dt_bias, 1),
        }
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
) -> Vec<F::Element> {
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
    let mut numbers = vec![F::Element::default(); problem.dim * per_channel];
    for (block, registers) in blocks.iter().zip(lanes[..row].chunks_exact(per_channel)) {
        store_states::<F>(registers, &mut numbers[block.start * per_channel..], block.len);
    }
    numbers
}

/// Where gradients that have an axis of time go.
struct Sinks<'a, T: Storage> {
    x: Sink<'a, T>,
    dt: Sink<'a, T>,
    z: Option<Sink<'a, T>>,
    b: Option<Sink<'a, T>>,
    c: Option<Sink<'a, T>>,
}

impl<T: Storage> Sinks<'_, T> {
    fn finish(&mut self) {
        let Self { x, dt, z, b, c } = self;
        for sink in [Some(x), Some(dt), z.as_mut(), b.as_mut(), c.as_mut()].into_iter().flatten() {
            sink.finish();
        }
    }
}

/// One direction of a call.
struct Pass<'a, T: Storage, F: VectorField<Element = T::Real>> {
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
    walk: WalkChunk<F>,
    /// Whether this is the scan from the other end.
    second: bool,
}

/// The places that the tasks of a chunk write to.
struct Places<'a, T: Storage, F: VectorField> {
    lambda: Output<'a, Vector<F>>,
    sum_a: Output<'a, Vector<F>>,
    sum_b: Output<'a, Vector<F>>,
    sum_c: Output<'a, Vector<F>>,
    sum_d: Output<'a, Vector<F>>,
    sum_dt_bias: Output<'a, Vector<F>>,
    x: Writer<'a, T>,
    dt: Writer<'a, T>,
    z: Option<Writer<'a, T>>,
    b: Option<Writer<'a, T>>,
    c: Option<Writer<'a, T>>,
    /// Sums over the channels of a span, {batch, spans, chunk, state}, where all channels share b or c.
    span_b: Output<'a, T::Real>,
    span_c: Output<'a, T::Real>,
}

impl<T: Storage, F: VectorField<Element = T::Real>> Pass<'_, T, F> {
    fn run(&self, sums: &mut Sums<F>, sinks: &mut Sinks<'_, T>) {
        let (problem, spans) = (self.problem, self.spans.len());
        let chunk = problem.chunk().min(problem.seq);
        let shared = |projection| match self.shared(projection) {
            true => vec![T::Real::default(); problem.batch * spans * chunk * problem.state * F::COMPONENTS],
            false => Vec::new(),
        };
        let (mut span_b, mut span_c) = (shared(problem.b), shared(problem.c));
        let chunks = problem.seq.div_ceil(problem.chunk());
        for i in 0..chunks {
            let start = problem.chunk() * if self.backward() { i } else { chunks - 1 - i };
            let len = chunk.min(problem.seq - start);
            let places = Places {
                lambda: Output::over(&mut sums.lambda),
                sum_a: Output::over(&mut sums.a),
                sum_b: Output::over(&mut sums.b),
                sum_c: Output::over(&mut sums.c),
                sum_d: Output::over(&mut sums.d),
                sum_dt_bias: Output::over(&mut sums.dt_bias),
                x: sinks.x.writer(self.second),
                dt: sinks.dt.writer(self.second),
                z: sinks.z.as_mut().map(|sink| sink.writer(self.second)),
                b: sinks.b.as_mut().map(|sink| sink.writer(self.second)),
                c: sinks.c.as_mut().map(|sink| sink.writer(self.second)),
                span_b: Output::over(&mut span_b),
                span_c: Output::over(&mut span_c),
            };
            let task = |scratch: &mut Scratch<F>, index: usize| {
                let (batch, span) = (index / spans, index % spans);
                self.isa.vectorize(Task { pass: self, places: &places, batch, span, start, len, scratch });
            };
            let scratch = || Scratch::new(self.isa, problem, chunk);
            let tasks = problem.batch * spans;
            if work(problem) <= SERIAL_WORK {
                let mut scratch = scratch();
                (0..tasks).for_each(|index| task(&mut scratch, index));
            } else {
                (0..tasks).into_par_iter().for_each_init(scratch, task);
            }
            for (sink, sums) in [(&mut sinks.b, &span_b), (&mut sinks.c, &span_c)] {
                if let (Some(sink), false) = (sink, sums.is_empty()) {
                    self.add_spans(&sink.writer(self.second), sums, start, len);
                }
            }
        }
    }

    fn backward(&self) -> bool {
        self.problem.reverse != self.second
    }

    /// Whether several spans add to the same rows of the gradient of b or c.
    fn shared(&self, projection: Projection) -> bool {
        self.spans.len() > 1 && per_frame(projection) == Some(1)
    }

    /// Rows of a chunk, from the sums of its spans.
    fn add_spans(&self, sink: &Writer<'_, T>, sums: &[T::Real], start: usize, len: usize) {
        let (problem, spans) = (self.problem, self.spans.len());
        let width = problem.state * F::COMPONENTS;
        let span = sums.len() / (problem.batch * spans);
        let mut row = vec![T::Real::default(); width];
        for (batch, sums) in sums.chunks_exact(span * spans).enumerate() {
            for t in 0..len {
                row.copy_from_slice(&sums[t * width..][..width]);
                for sums in sums.chunks_exact(span).skip(1) {
                    for (sum, &term) in row.iter_mut().zip(&sums[t * width..][..width]) {
                        *sum = T::Real::from_f64(sum.to_f64() + term.to_f64());
                    }
                }
                // SAFETY: all tasks of the chunk are done: nobody else writes.
                unsafe { sink.row((batch * problem.seq + start + t) * width, &row) };
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
    /// Σ Re(C h).
    y: Vec<Vector<F>>,
    dx: Vec<Vector<F>>,
    ddelta: Vec<Vector<F>>,
    /// The states before a chunk.
    before: Vec<Vector<F>>,
    /// One state after every frame, from the one before the chunk on.
    h: Vec<Vector<F>>,
    /// Sums over the blocks of a group, {state, frames}.
    db: Vec<Vector<F>>,
    dc: Vec<Vector<F>>,
    b: Vec<F::Element>,
    c: Vec<F::Element>,
    row: Vec<F::Element>,
}

impl<F: VectorField> Scratch<F> {
    fn new(isa: F::Isa, problem: &Problem, chunk: usize) -> Self {
        let row = problem.state * F::COMPONENTS;
        let zeros = |len| vec![F::zero(isa).re().vector; len];
        let rows = |projection| per_frame(projection).map_or(0, |_| row * chunk);
        Self {
            delta: zeros(chunk),
            x: zeros(chunk),
            dy: zeros(chunk),
            y: zeros(chunk),
            dx: zeros(chunk),
            ddelta: zeros(chunk),
            before: zeros(row),
            h: zeros((chunk + 1) * F::COMPONENTS),
            db: zeros(rows(problem.b)),
            dc: zeros(rows(problem.c)),
            b: vec![F::Element::default(); rows(problem.b)],
            c: vec![F::Element::default(); rows(problem.c)],
            row: vec![F::Element::default(); row],
        }
    }
}

/// A chunk of frames of a span of channels of one row.
struct Task<'a, T: Storage, F: VectorField<Element = T::Real>> {
    pass: &'a Pass<'a, T, F>,
    places: &'a Places<'a, T, F>,
    batch: usize,
    span: usize,
    start: usize,
    len: usize,
    scratch: &'a mut Scratch<F>,
}

impl<T: Storage, F: VectorField<Element = T::Real>> NullaryFnOnce for Task<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let Pass { problem, blocks, spans, .. } = *self.pass;
        let blocks = &blocks[spans[self.span].clone()];
        for (i, &block) in blocks.iter().enumerate() {
            self.load(block);
            self.walk(block);
            self.store(block);
            let last_of_group = |groups| {
                blocks
                    .get(i + 1)
                    .is_none_or(|next| group(problem, groups, *next) != group(problem, groups, block))
            };
            if let Some(groups) = per_frame(problem.b).filter(|&groups| last_of_group(groups)) {
                let Scratch { db, row, .. } = &mut *self.scratch;
                let places = (&self.places.b, &self.places.span_b, self.pass.shared(problem.b));
                flush::<T, F>(
                    self.pass,
                    self.batch,
                    self.span,
                    self.start..self.start + self.len,
                    groups,
                    block,
                    db,
                    row,
                    places,
                );
            }
            if let Some(groups) = per_frame(problem.c).filter(|&groups| last_of_group(groups)) {
                let Scratch { dc, row, .. } = &mut *self.scratch;
                let places = (&self.places.c, &self.places.span_c, self.pass.shared(problem.c));
                flush::<T, F>(
                    self.pass,
                    self.batch,
                    self.span,
                    self.start..self.start + self.len,
                    groups,
                    block,
                    dc,
                    row,
                    places,
                );
            }
        }
    }
}

/// Adds up the lanes of a group's sums, hands the rows on, and clears the sums.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the same for b and for c")]
fn flush<T: Storage, F: VectorField<Element = T::Real>>(
    pass: &Pass<'_, T, F>,
    batch: usize,
    span: usize,
    frames: Range<usize>,
    groups: usize,
    block: Block,
    sums: &mut [Vector<F>],
    row: &mut [T::Real],
    (sink, spans, shared): (&Option<Writer<'_, T>>, &Output<'_, T::Real>, bool),
) {
    let problem = pass.problem;
    let (width, chunk) = (row.len(), problem.chunk().min(problem.seq));
    for (i, t) in frames.enumerate() {
        for n in 0..problem.state {
            let components = &mut row[n * F::COMPONENTS..][..F::COMPONENTS];
            F::load(pass.isa, &sums[(n * chunk + i) * F::COMPONENTS..]).sum(components);
        }
        if shared {
            let place = ((batch * pass.spans.len() + span) * chunk + i) * width;
            // SAFETY: the sums of this span of this row are this task's alone.
            unsafe { spans.write(place, width) }.copy_from_slice(row);
        } else if let Some(sink) = sink {
            let place = (batch * problem.seq + t) * groups + group(problem, groups, block);
            // SAFETY: no other span has channels of this group.
            unsafe { sink.row(place * width, row) };
        }
    }
    sums.fill(F::zero(pass.isa).re().vector);
}

impl<T: Storage, F: VectorField<Element = T::Real>> Task<'_, T, F> {
    /// Place of a frame of a block in {batch, seq, dim}; frames count from the chunk's first.
    #[inline(always)]
    fn frame(&self, block: Block, t: usize) -> Range<usize> {
        let problem = self.pass.problem;
        let place = (self.batch * problem.seq + self.start + t) * problem.dim + block.start;
        place..place + block.len
    }

    /// Marks of the chunk's frames.
    #[inline(always)]
    fn marks(&self) -> Option<&[u8]> {
        self.pass.marks.map(|marks| &marks[self.batch * self.pass.problem.seq + self.start..][..self.len])
    }

    #[inline(always)]
    fn skipped(&self, t: usize) -> bool {
        self.marks().is_some_and(|marks| marks[t] & SKIP != 0)
    }

    /// Place of a block among the {batch, blocks} of the sums.
    #[inline(always)]
    fn place(&self, block: Block) -> usize {
        self.batch * self.pass.blocks.len() + block.index
    }

    /// Δ, x, and dy behind the gate; what the skip connection passes on.
    #[inline(always)]
    fn load(&mut self, block: Block) {
        let Pass { isa, problem, views, dy, second, .. } = *self.pass;
        let step = StepSize::new(isa, problem, views.dt_bias.as_deref(), block);
        let d = channels(isa, views.d.as_deref(), block);
        let zero = d.constant(0.0);
        let weight = weight(problem);
        let mut sum_d = zero;
        for t in 0..self.len {
            let frame = self.frame(block, t);
            let x = load_frame(isa, &views.x[frame.clone()]);
            let mut dy = load_frame(isa, &dy[frame.clone()]);
            if let Some(z) = &views.z {
                dy = dy * super::tile::silu(load_frame(isa, &z[frame.clone()]));
            }
            if self.skipped(t) {
                dy = zero;
            }
            self.scratch.delta[t] = step.delta(load_frame(isa, &views.dt[frame])).vector;
            self.scratch.x[t] = x.vector;
            self.scratch.dy[t] = (dy * d.constant(weight)).vector;
            self.scratch.dx[t] = if second { zero.vector } else { (dy * d).vector };
            self.scratch.y[t] = zero.vector;
            self.scratch.ddelta[t] = zero.vector;
            if !self.skipped(t) {
                sum_d = sum_d + dy * x;
            }
        }
        if views.d.is_some() && !second {
            // SAFETY: the sums of this block of this row are this task's alone.
            let sum = unsafe { self.places.sum_d.write(self.place(block), 1) };
            sum[0] = (Lanes::new(isa, sum[0]) + sum_d).vector;
        }
        let (batch, start, len) = (self.batch, self.start, self.len);
        widen_rows(problem, problem.b, &views.b, batch, block, start, len, &mut self.scratch.b);
        widen_rows(problem, problem.c, &views.c, batch, block, start, len, &mut self.scratch.c);
    }

    /// The walk through the chunk and back.
    #[inline(always)]
    fn walk(&mut self, block: Block) {
        let Pass { isa, problem, views, second, .. } = *self.pass;
        let per_block = problem.state * F::COMPONENTS;
        let chunk = self.start / problem.chunk();
        let before = (boundary_place(problem, second, self.batch, chunk) + block.start) * per_block;
        load_states::<F>(&mut self.scratch.before, &self.pass.boundary[before..], block.len);

        let place = self.place(block) * per_block;
        let registers = block.index * per_block;
        let constants =
            |lanes: &'_ [Vector<F>]| if lanes.is_empty() { 0..0 } else { registers..registers + per_block };
        let (batch, start, len) = (self.batch, self.start, self.len);
        let stride = problem.chunk().min(problem.seq) * F::COMPONENTS;
        let marks = self.pass.marks.map(|marks| &marks[batch * problem.seq + start..][..len]);
        let Scratch { delta, x, dy, y, dx, ddelta, before, h, db, dc, b, c, .. } = &mut *self.scratch;
        // SAFETY: λ and the sums of this block of this row are this task's alone.
        let (lambda, sum_a, sum_b, sum_c) = unsafe {
            let of_constant = |projection| if projection == Projection::Constant { per_block } else { 0 };
            let start_of = |len| if len == 0 { 0 } else { place };
            let (len_b, len_c) = (of_constant(problem.b), of_constant(problem.c));
            (
                self.places.lambda.write(place, per_block),
                self.places.sum_a.write(place, per_block),
                self.places.sum_b.write(start_of(len_b), len_b),
                self.places.sum_c.write(start_of(len_c), len_c),
            )
        };
        let sum = |projection, constant, frames| match projection {
            Projection::Constant => Sum::<F> { registers: constant, of_state: F::COMPONENTS, of_frame: 0 },
            Projection::PerFrame { .. } => {
                Sum { registers: frames, of_state: stride, of_frame: F::COMPONENTS }
            }
        };
        let walk = Walk {
            isa,
            delta: &delta[..len],
            x: &x[..len],
            dy: &dy[..len],
            marks,
            b: rows::<T, F>(
                problem,
                problem.b,
                &views.b,
                batch,
                block,
                start,
                b,
                &self.pass.b[constants(self.pass.b)],
            ),
            c: rows::<T, F>(
                problem,
                problem.c,
                &views.c,
                batch,
                block,
                start,
                c,
                &self.pass.c[constants(self.pass.c)],
            ),
            a: &self.pass.a[registers..registers + per_block],
            before,
            backward: self.pass.backward(),
            fresh: if second { LAST } else { FRESH },
            lambda,
            h,
            y: &mut y[..len],
            dx: &mut dx[..len],
            ddelta: &mut ddelta[..len],
            da: sum_a,
            db: sum(problem.b, sum_b, &mut db[..]),
            dc: sum(problem.c, sum_c, &mut dc[..]),
        };
        (self.pass.walk)(walk);
    }

    /// dx, ddt and dz of the chunk.
    #[inline(always)]
    fn store(&mut self, block: Block) {
        let Pass { isa, problem, views, dy, second, .. } = *self.pass;
        let step = StepSize::new(isa, problem, views.dt_bias.as_deref(), block);
        let d = channels(isa, views.d.as_deref(), block);
        let zero = d.constant(0.0);
        let weight = weight(problem);
        let mut sum_dt = zero;
        for t in 0..self.len {
            let frame = self.frame(block, t);
            let skipped = self.skipped(t);
            let kept = |lanes: Lanes<T::Real, F::Isa>| if skipped { zero } else { lanes };
            let [_, derivative] = step.delta_and_derivative(load_frame(isa, &views.dt[frame.clone()]));
            let ddt = kept(Lanes::new(isa, self.scratch.ddelta[t]) * derivative);
            sum_dt = sum_dt + ddt;
            // SAFETY: this frame of this block is this task's alone.
            unsafe {
                self.places.x.frame(isa, frame.clone(), kept(Lanes::new(isa, self.scratch.dx[t])));
                self.places.dt.frame(isa, frame.clone(), ddt);
            }
            if let (Some(z), Some(sink)) = (&views.z, &self.places.z) {
                let (z, dy) = (load_frame(isa, &z[frame.clone()]), load_frame(isa, &dy[frame.clone()]));
                let mut y = Lanes::new(isa, self.scratch.y[t]) * d.constant(weight);
                if !second {
                    y = y + d * Lanes::new(isa, self.scratch.x[t]);
                }
                let s = z.sigmoid();
                let one = d.constant(1.0);
                // SAFETY: as above.
                unsafe { sink.frame(isa, frame, kept(dy * y * s * (one + z * (one - s)))) };
            }
        }
        if views.dt_bias.is_some() {
            // SAFETY: the sums of this block of this row are this task's alone.
            let sum = unsafe { self.places.sum_dt_bias.write(self.place(block), 1) };
            sum[0] = (Lanes::new(isa, sum[0]) + sum_dt).vector;
        }
    }
}

/// A sum in registers for every state, and for every frame or for all of them.
struct Sum<'a, F: VectorField> {
    registers: &'a mut [Vector<F>],
    of_state: usize,
    of_frame: usize,
}

impl<F: VectorField> Sum<'_, F> {
    #[inline(always)]
    fn add(&mut self, isa: F::Isa, n: usize, t: usize, term: F) {
        let registers = &mut self.registers[n * self.of_state + t * self.of_frame..][..F::COMPONENTS];
        (F::load(isa, registers) + term).store(registers);
    }
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
    h: &'a mut [Vector<F>],
    y: &'a mut [Vector<F>],
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
            for n in 0..self.0.before.len() / F::COMPONENTS {
                self.0.forth::<D>(n);
                self.0.back::<D>(n);
            }
        }
    }

    walk.isa.vectorize(Run::<F, D>(walk, PhantomData));
}

impl<F: VectorField> Walk<'_, F> {
    /// The frame at a place in the scan's order, and its mark.
    #[inline(always)]
    fn frame(&self, i: usize) -> (usize, u8) {
        let t = if self.backward { self.delta.len() - 1 - i } else { i };
        (t, self.marks.map_or(0, |marks| marks[t]))
    }

    /// The states of the chunk: h = a h + g x B, and y += Re(C h).
    #[inline(always)]
    fn forth<D: Discretization>(&mut self, n: usize) {
        let isa = self.isa;
        let prepared = D::prepare(F::load(isa, &self.a[n * F::COMPONENTS..]));
        let mut h = F::load(isa, &self.before[n * F::COMPONENTS..]);
        h.store(self.h);
        for i in 0..self.delta.len() {
            let (t, mark) = self.frame(i);
            if mark & SKIP == 0 {
                if mark & self.fresh != 0 {
                    h = F::zero(isa);
                }
                let (delta, x) = (Lanes::new(isa, self.delta[t]), Lanes::new(isa, self.x[t]));
                let ([b], [c]) = (self.b.get::<1>(isa, t, n), self.c.get::<1>(isa, t, n));
                let (decay, gain) = D::coefficients::<F>(delta, prepared);
                h = decay.mul_add(h, gain.times(x) * b);
                self.y[t] = c.real_product(h, Lanes::new(isa, self.y[t])).vector;
            }
            h.store(&mut self.h[(i + 1) * F::COMPONENTS..]);
        }
    }

    /// λ through the chunk, and all that comes of it.
    #[inline(always)]
    fn back<D: Discretization>(&mut self, n: usize) {
        let isa = self.isa;
        let state = n * F::COMPONENTS;
        let a = F::load(isa, &self.a[state..]);
        let mut lambda = F::load(isa, &self.lambda[state..]);
        let mut sum_a = F::zero(isa);
        for i in (0..self.delta.len()).rev() {
            let (t, mark) = self.frame(i);
            if mark & SKIP != 0 {
                continue;
            }
            let fresh = mark & self.fresh != 0;
            let (delta, x) = (Lanes::new(isa, self.delta[t]), Lanes::new(isa, self.x[t]));
            let dy = Lanes::new(isa, self.dy[t]);
            let ([b], [c]) = (self.b.get::<1>(isa, t, n), self.c.get::<1>(isa, t, n));
            let h = F::load(isa, &self.h[(i + 1) * F::COMPONENTS..]);
            let before = if fresh { F::zero(isa) } else { F::load(isa, &self.h[i * F::COMPONENTS..]) };
            let partials = D::partials::<F>(delta, a);

            lambda = lambda + c.conj().times(dy);
            let da = lambda * before.conj();
            let dg = lambda * b.conj().times(x);
            let dv = lambda * partials.g.conj();
            sum_a = da.mul_add(partials.a_a.conj(), dg.mul_add(partials.g_a.conj(), sum_a));
            let ddelta = da.real_product(partials.a_delta.conj(), Lanes::new(isa, self.ddelta[t]));
            self.ddelta[t] = dg.real_product(partials.g_delta.conj(), ddelta).vector;
            self.dx[t] = dv.real_product(b.conj(), Lanes::new(isa, self.dx[t])).vector;
            self.db.add(isa, n, t, dv.times(x));
            self.dc.add(isa, n, t, h.conj().times(dy));
            lambda = if fresh { F::zero(isa) } else { partials.a.conj() * lambda };
        }
        lambda.store(&mut self.lambda[state..]);
        (F::load(isa, &self.da[state..]) + sum_a).store(&mut self.da[state..]);
    }
}

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
//! direction is walked just the same and adds to the same sums. Its λ comes from the other end of time: before all else
//! it is carried over the chunks in that order, and left at their edges.
//!
//! A task is a span of channels of one row. Sums over channels (dB, dC) run over lanes, blocks and spans in their
//! order; sums over rows (dA, dD, ddt_bias, constant B and C) as a tree. How the problem is cut depends on the problem
//! alone: the same call gives the same bits on any number of threads.

mod adjoints;
mod chunk;
mod sums;
mod walk;

use std::ops::Range;

use pulp::Simd;

use super::blocks::{Block, blocks};
use super::boundary::{boundary_interval, boundary_shape, check_boundary_length, chunks};
use super::forward::{boundary_states, in_lanes, widened};
use super::frames::marks;
use super::memory::zeros;
use super::vector::{Lanes, Real, Vector, VectorField};
use super::views::{Output, Storage, Views, numbers, numbers_mut};
use super::{TOGETHER, for_each_task};
use crate::discretize::{Discretization, with_discretization};
use crate::{Error, Gradients, OutputGradients, Problem, Projection};
use adjoints::{AdjointsOfChunk, CarryAdjoints, adjoints_of_chunk};
use chunk::{Chunk, Scratch, Task};
use sums::{Places, Sums, sum_rows};
use walk::{WalkChunk, walk_chunk};

/// Tasks that a chunk of frames is cut into where the batch alone has fewer rows.
const TASKS: usize = 8;

/// Registers that a task keeps of the states of a chunk, and as many of their decays: four of each frame in chunks of 256, of
/// bf16, took a call beyond a tenth of its inputs (bench/NOTES.md).
const KEPT: usize = 512;

/// Frames of sequences whose sums of db and dc are bounded by the inputs, so that a call takes a tenth of these at most
/// (tests/memory.rs); shorter ones have little of them in any case.
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
    let (cheap, walk, adjoints_of_chunk): Compiled<F> = with_discretization!(problem.method, problem.coefficients, D =>
        (D::CHEAP, walk_chunk::<F, D>, adjoints_of_chunk::<F, D>));
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
        adjoints_of_chunk,
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
        // Sums of db and dc in every span take at most a seventieth of x, dt and dy: with a twenty-fourth (boundary.rs), and
        // what threads have of their own, still less than a tenth.
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

/// What depends on the discretization: whether it is cheap, and what is compiled for it.
type Compiled<F> = (bool, WalkChunk<F>, AdjointsOfChunk<F>);

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
    adjoints_of_chunk: AdjointsOfChunk<F>,
}

/// Where gradients that have an axis of time go.
struct Outputs<'a, T: Storage> {
    x: Output<'a, T>,
    dt: Output<'a, T>,
    z: Option<Output<'a, T>>,
    b: Option<Output<'a, T>>,
    c: Option<Output<'a, T>>,
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
        self.for_each_span(|task| self.isa.vectorize(CarryAdjoints { task, adjoints: &places }))?;
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

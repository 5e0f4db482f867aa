//! Where gradients without an axis of time, and sums over channels, add up.

use crate::cpu::blocks::{Block, load_states, store_states};
use crate::cpu::memory::zeros;
use crate::cpu::vector::{LaneSums, Lanes, Vector, VectorField};
use crate::cpu::views::Output;
use crate::{Error, Problem, Projection};

/// What is summed over time within a row: {batch, blocks} of registers, added up over the batch in the end; and λ, on
/// its way from chunk to chunk.
pub struct Sums<F: VectorField> {
    pub lambda: Vec<Vector<F>>,
    pub a: Vec<Vector<F>>,
    /// Empty where b varies with the frame.
    pub b: Vec<Vector<F>>,
    pub c: Vec<Vector<F>>,
    pub d: Vec<Vector<F>>,
    pub dt_bias: Vec<Vector<F>>,
}

impl<F: VectorField> Sums<F> {
    pub fn new(problem: &Problem, blocks: usize) -> Result<Self, Error> {
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

    pub fn load_lambda(&mut self, problem: &Problem, blocks: &[Block], states: &[F::Element]) {
        let per_channel = problem.state * F::COMPONENTS;
        for (i, lambda) in self.lambda.chunks_exact_mut(per_channel).enumerate() {
            let block = blocks[i % blocks.len()];
            let start = (i / blocks.len() * problem.dim + block.start) * per_channel;
            load_states::<F>(lambda, &states[start..], block.len);
        }
    }

    pub fn store_lambda(&self, problem: &Problem, blocks: &[Block], states: &mut [F::Element]) {
        let per_channel = problem.state * F::COMPONENTS;
        for (i, lambda) in self.lambda.chunks_exact(per_channel).enumerate() {
            let block = blocks[i % blocks.len()];
            let start = (i / blocks.len() * problem.dim + block.start) * per_channel;
            store_states::<F>(lambda, &mut states[start..], block.len);
        }
    }
}

/// Adds {batch, blocks, …} registers over the batch, as a tree, into {dim, …} numbers.
pub fn sum_rows<F: VectorField>(
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

/// Where the tasks of a chunk add up.
pub struct Places<'a, F: VectorField> {
    pub lambda: Output<'a, Vector<F>>,
    pub a: Output<'a, Vector<F>>,
    pub b: Output<'a, Vector<F>>,
    pub c: Output<'a, Vector<F>>,
    pub d: Output<'a, Vector<F>>,
    pub dt_bias: Output<'a, Vector<F>>,
    /// Sums over the channels of a span, {batch, spans, chunk, state}, where all channels share b or c.
    pub span_b: Output<'a, F::Element>,
    pub span_c: Output<'a, F::Element>,
}

/// Adds to a register of a block's own.
#[inline(always)]
pub fn add_to<F: VectorField>(isa: F::Isa, sums: &Output<'_, Vector<F>>, place: usize, term: F::Real) {
    // SAFETY: the sums of a block of a row are its task's alone.
    let sum = unsafe { sums.write(place, 1) };
    sum[0] = (Lanes::<F::Element, F::Isa>::new(isa, sum[0]) + term).vector;
}

/// Adds the terms of N states to sums in registers.
#[inline(always)]
pub fn add_registers<F: VectorField, const N: usize>(isa: F::Isa, sums: &mut [Vector<F>], terms: [F; N]) {
    for (sum, term) in sums.chunks_exact_mut(F::COMPONENTS).zip(terms) {
        (F::load(isa, sum) + term).store(sum);
    }
}

/// The gradient of b or c.
pub enum Sum<'a, F: VectorField> {
    /// Of constant ones, for every state in lanes.
    OverTime(&'a mut [Vector<F>]),
    /// Of those that vary with the frame, {frames, state}.
    OverChannels(&'a mut [F::Element]),
}

impl<F: VectorField> Sum<'_, F> {
    /// Takes the terms of N states in a frame, from n on; `gathered` are sums of the chunk.
    #[inline(always)]
    pub fn add<const N: usize>(
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
    pub fn end<const N: usize>(&mut self, isa: F::Isa, n: usize, gathered: [F; N]) {
        let Sum::OverTime(registers) = self else { return };
        add_registers(isa, &mut registers[n * F::COMPONENTS..][..N * F::COMPONENTS], gathered);
    }
}

//! How channels are laid into the lanes of registers.
//!
//! A block is a run of neighbouring channels, one in each lane. In {batch, seq, dim} they are neighbours in memory,
//! so a frame of a block is one load. The channels of a block share their group of b and of c, whose numbers are
//! then broadcasts.

use std::iter::successors;

use super::memory::room;
use super::vector::{Vector, VectorField};
use crate::{Error, Problem};

/// A run of channels, at most as many as a register has lanes.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// Place among all blocks.
    pub index: usize,
    /// First channel.
    pub start: usize,
    /// How many channels.
    pub len: usize,
}

impl Block {
    /// The block's of {blocks, `each`} registers; none where there are none at all.
    #[inline(always)]
    pub fn registers<T>(self, all: &[T], each: usize) -> &[T] {
        if all.is_empty() { all } else { &all[self.index * each..][..each] }
    }
}

/// All blocks of a problem, for registers of `lanes`.
pub fn blocks(problem: &Problem, lanes: usize) -> Result<Vec<Block>, Error> {
    let (b, c) = (problem.channels_per_group(problem.b), problem.channels_per_group(problem.c));
    let end = |start: usize| problem.dim.min(start + lanes).min((start / b + 1) * b).min((start / c + 1) * c);
    let starts = successors(Some(0), |&start| Some(end(start))).take_while(|&start| start < problem.dim);
    let mut blocks = room(starts.clone().count())?;
    blocks.extend(starts.enumerate().map(|(index, start)| Block { index, start, len: end(start) - start }));
    Ok(blocks)
}

/// Puts {channels, state} numbers of a block, `COMPONENTS` components each, into lanes: one register for every
/// state and component. Lanes without a channel hold zeros.
#[inline(always)]
pub fn load_states<F: VectorField>(registers: &mut [Vector<F>], values: &[F::Element], channels: usize) {
    let per_channel = registers.len();
    let lanes = size_of::<Vector<F>>() / size_of::<F::Element>();
    let flat: &mut [F::Element] = bytemuck::cast_slice_mut(registers);
    flat.fill(F::Element::default());
    for (lane, channel) in values.chunks_exact(per_channel).take(channels).enumerate() {
        for (i, &value) in channel.iter().enumerate() {
            flat[i * lanes + lane] = value;
        }
    }
}

/// The way back.
#[inline(always)]
pub fn store_states<F: VectorField>(registers: &[Vector<F>], values: &mut [F::Element], channels: usize) {
    let per_channel = registers.len();
    let lanes = size_of::<Vector<F>>() / size_of::<F::Element>();
    let flat: &[F::Element] = bytemuck::cast_slice(registers);
    for (lane, channel) in values.chunks_exact_mut(per_channel).take(channels).enumerate() {
        for (i, value) in channel.iter_mut().enumerate() {
            *value = flat[i * lanes + lane];
        }
    }
}

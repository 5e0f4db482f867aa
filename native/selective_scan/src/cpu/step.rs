//! One frame of real states: the layout of memory, {dim, state}, is already that of registers.
//!
//! The scan keeps channels in lanes, which takes a transposition of A and of the states at either end. Over many
//! frames that is nothing; over one it would be most of the work. Here lanes hold the states of one channel.

use std::marker::PhantomData;

use pulp::NullaryFnOnce;

use super::vector::{Isa, Lanes, Real};
use crate::discretize::{Discretization, Field, Prepared};

/// Lanes of a register at most.
const MOST_LANES: usize = 16;

/// A block of channels of one row, and everything it takes to move them by one frame.
pub struct Step<'a, R: Real> {
    /// Δ and x of each channel.
    pub delta: &'a [R],
    pub x: &'a [R],
    /// A, and the states before and after, {channels, state}.
    pub a: &'a [R],
    pub before: Option<&'a [R]>,
    pub after: Option<&'a mut [R]>,
    /// b and c: the row of every channel, or one row for all.
    pub b: ChannelRows<'a, R>,
    pub c: ChannelRows<'a, R>,
    pub state: usize,
    /// Σ C h of each channel.
    pub y: &'a mut [R],
}

/// Rows of b or c.
#[derive(Clone, Copy)]
pub struct ChannelRows<'a, R> {
    pub values: &'a [R],
    /// From one channel's row to the next: 0 where they share one.
    pub stride: usize,
}

/// A step compiled for a discretization.
pub type StepChannels<R, S> = fn(S, Step<'_, R>);

/// Moves every channel: h = a h + g x B, y = Σ C h, where the sum is over lanes first and then over registers.
pub fn step_channels<R: Real, S: Isa, D: Discretization>(isa: S, step: Step<'_, R>) {
    struct Channels<'a, R: Real, S, D>(S, Step<'a, R>, PhantomData<D>);

    impl<R: Real, S: Isa, D: Discretization> NullaryFnOnce for Channels<'_, R, S, D> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Self(isa, step, _) = self;
            let Step { delta, x, a, before, mut after, b, c, state, y } = step;
            let lanes = Lanes::<R, S>::COUNT;
            for (channel, y) in y.iter_mut().enumerate() {
                let delta = Lanes::splat(isa, delta[channel]);
                let x = Lanes::splat(isa, x[channel]);
                let rows = channel * state..(channel + 1) * state;
                let a = &a[rows.clone()];
                let b = &b.values[channel * b.stride..][..state];
                let c = &c.values[channel * c.stride..][..state];
                let before = before.map(|before| &before[rows.clone()]);
                let mut after = after.as_mut().map(|after| &mut after[rows]);
                let mut sum = Lanes::splat(isa, R::default());
                for start in (0..state).step_by(lanes) {
                    let end = state.min(start + lanes);
                    let prepared = Prepared::new(Lanes::load_first(isa, &a[start..end]));
                    let (decay, gain) = D::coefficients(delta, &prepared);
                    let before = match before {
                        Some(before) => Lanes::load_first(isa, &before[start..end]),
                        None => Lanes::splat(isa, R::default()),
                    };
                    // With no state before it, too: of zero a decay that is no number makes none.
                    let h = decay.mul_add(before, gain.times(x) * Lanes::load_first(isa, &b[start..end]));
                    if let Some(after) = &mut after {
                        h.store_first(&mut after[start..end]);
                    }
                    let with_these = Lanes::load_first(isa, &c[start..end]).mul_add(h, sum);
                    // Of the zeros beyond the last state an infinite x or Δ makes NaN.
                    sum = match end - start {
                        count if count < lanes => {
                            let ones = Lanes::load_first(isa, &[R::from_f64(1.0); MOST_LANES][..count]);
                            Lanes::select(Lanes::splat(isa, R::default()).less(ones), with_these, sum)
                        }
                        _ => with_these,
                    };
                }
                *y = sum.sum();
            }
        }
    }

    isa.vectorize(Channels::<R, S, D>(isa, step, PhantomData));
}

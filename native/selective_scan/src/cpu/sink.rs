//! Where gradients of sequences go. Two passes add to the same numbers where a scan runs in both directions: 16-bit
//! types then keep their sums in f32 until both are done.

use std::ops::Range;

use super::tile::{load_frame, store_frame};
use super::vector::{Isa, Lanes, Real};
use super::views::{Output, Storage, numbers_mut};
use crate::{Error, Problem};

/// A gradient of a sequence type.
pub struct Sink<'a, T: Storage> {
    values: &'a mut [T],
    /// The sums of both passes, where `values` would round them in between.
    wide: Option<Vec<T::Real>>,
}

impl<'a, T: Storage> Sink<'a, T> {
    pub fn new(problem: &Problem, name: &'static str, bytes: &'a mut [u8]) -> Result<Self, Error> {
        let values = numbers_mut::<T>(problem, name, bytes)?;
        let wide = problem.bidirectional && size_of::<T>() < size_of::<T::Real>();
        let wide = wide.then(|| vec![T::Real::default(); values.len()]);
        Ok(Self { values, wide })
    }

    /// For the tasks of a pass: the second one adds to what is there.
    pub fn writer(&mut self, add: bool) -> Writer<'_, T> {
        let wide = self.wide.as_mut().map(|wide| Output::over(&mut wide[..]));
        Writer { values: Output::over(self.values), wide, add }
    }

    /// Rounds what has been summed up.
    pub fn finish(&mut self) {
        for (value, &wide) in self.values.iter_mut().zip(self.wide.iter().flatten()) {
            *value = T::from_real(wide);
        }
    }
}

/// A gradient, shared by the tasks of a pass.
pub struct Writer<'a, T: Storage> {
    values: Output<'a, T>,
    wide: Option<Output<'a, T::Real>>,
    add: bool,
}

impl<T: Storage> Writer<'_, T> {
    /// A frame of a block.
    ///
    /// # Safety
    /// Nobody else may write the same frame of the block at the same time.
    #[inline(always)]
    pub unsafe fn frame<S: Isa>(&self, isa: S, frame: Range<usize>, mut lanes: Lanes<T::Real, S>) {
        // SAFETY: exclusive by the caller's promise.
        let values = unsafe { self.values.write(frame.start, frame.len()) };
        let Some(wide) = &self.wide else {
            if self.add {
                lanes = lanes + load_frame(isa, values);
            }
            return store_frame(lanes, values);
        };
        // SAFETY: as above.
        let values = unsafe { wide.write(frame.start, frame.len()) };
        if self.add {
            lanes = lanes + Lanes::load_first(isa, values);
        }
        lanes.store_first(values);
    }

    /// A row of b or c.
    ///
    /// # Safety
    /// Nobody else may write the same row at the same time.
    #[inline(always)]
    pub unsafe fn row(&self, start: usize, row: &[T::Real]) {
        let sum = |old: T::Real, new: T::Real| match self.add {
            true => T::Real::from_f64(old.to_f64() + new.to_f64()),
            false => new,
        };
        if let Some(wide) = &self.wide {
            // SAFETY: exclusive by the caller's promise.
            for (value, &term) in unsafe { wide.write(start, row.len()) }.iter_mut().zip(row) {
                *value = sum(*value, term);
            }
            return;
        }
        // SAFETY: as above.
        for (value, &term) in unsafe { self.values.write(start, row.len()) }.iter_mut().zip(row) {
            *value = T::from_real(sum(value.to_real(), term));
        }
    }
}

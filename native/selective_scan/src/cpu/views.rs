//! Bytes as numbers: typed views of the tensors of a call.

use std::borrow::Cow;

use half::{bf16, f16};

use super::memory::zeros;
use super::vector::Real;
use crate::{Error, Inputs, Problem};

/// A type that sequences are stored in, and the one that they are computed in.
pub trait Storage: bytemuck::Pod + Send + Sync {
    /// f32, or f64 for f64.
    type Real: Real;

    /// Widened.
    fn to_real(self) -> Self::Real;
    /// Rounded to nearest.
    fn from_real(real: Self::Real) -> Self;
}

macro_rules! storage {
    ($storage:ty, $real:ty, $to:expr, $from:expr) => {
        impl Storage for $storage {
            type Real = $real;

            #[inline(always)]
            fn to_real(self) -> $real {
                $to(self)
            }
            #[inline(always)]
            fn from_real(real: $real) -> Self {
                $from(real)
            }
        }
    };
}

storage!(f32, f32, std::convert::identity, std::convert::identity);
storage!(f64, f64, std::convert::identity, std::convert::identity);
storage!(bf16, f32, bf16::to_f32, bf16::from_f32);
storage!(f16, f32, f16::to_f32, f16::from_f32);

/// The inputs of a call, typed. A tensor that does not lie on a multiple of its element's size is copied.
pub struct Views<'a, T: Storage> {
    pub x: Cow<'a, [T]>,
    pub dt: Cow<'a, [T]>,
    pub a: Cow<'a, [T::Real]>,
    pub b: Cow<'a, [T]>,
    pub c: Cow<'a, [T]>,
    pub d: Option<Cow<'a, [T::Real]>>,
    pub z: Option<Cow<'a, [T]>>,
    pub dt_bias: Option<Cow<'a, [T::Real]>>,
    pub initial_state: Option<Cow<'a, [T::Real]>>,
    pub seq_idx: Option<Cow<'a, [i32]>>,
}

impl<'a, T: Storage> Views<'a, T> {
    /// Checks the lengths; the types follow from the problem.
    pub fn new(problem: &Problem, inputs: Inputs<&'a [u8]>) -> Result<Self, Error> {
        problem.check_lengths(inputs.iter())?;
        Ok(Self {
            x: numbers(inputs.x)?,
            dt: numbers(inputs.dt)?,
            a: numbers(inputs.a)?,
            b: numbers(inputs.b)?,
            c: numbers(inputs.c)?,
            d: inputs.d.map(numbers).transpose()?,
            z: inputs.z.map(numbers).transpose()?,
            dt_bias: inputs.dt_bias.map(numbers).transpose()?,
            initial_state: inputs.initial_state.map(numbers).transpose()?,
            seq_idx: inputs.seq_idx.map(numbers).transpose()?,
        })
    }
}

/// Bytes as numbers, copied only where they are misaligned.
pub fn numbers<T: bytemuck::Pod>(bytes: &[u8]) -> Result<Cow<'_, [T]>, Error> {
    if let Ok(numbers) = bytemuck::try_cast_slice(bytes) {
        return Ok(Cow::Borrowed(numbers));
    }
    let mut copy = zeros::<T>(bytes.len().div_ceil(size_of::<T>()))?;
    bytemuck::cast_slice_mut::<T, u8>(&mut copy)[..bytes.len()].copy_from_slice(bytes);
    Ok(Cow::Owned(copy))
}

/// Memory that tasks write to at places that never overlap.
pub struct Output<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: only `write`, whose callers promise not to overlap, reaches the memory.
unsafe impl<T: Send> Sync for Output<'_, T> {}
// SAFETY: it stands for a `&mut [T]`.
unsafe impl<T: Send> Send for Output<'_, T> {}

/// The numbers of an output. Outputs are allocated by a shell and must be aligned: nothing here copies them.
pub fn numbers_mut<'a, T: bytemuck::Pod>(
    problem: &Problem,
    name: &'static str,
    bytes: &'a mut [u8],
) -> Result<&'a mut [T], Error> {
    problem.check_length(name, bytes.len())?;
    aligned_mut(name, bytes)
}

/// Bytes as numbers to be written, where they lie as such.
pub fn aligned_mut<'a, T: bytemuck::Pod>(
    name: &'static str,
    bytes: &'a mut [u8],
) -> Result<&'a mut [T], Error> {
    let address = bytes.as_ptr() as usize;
    bytemuck::try_cast_slice_mut(bytes).map_err(|_| {
        let expected = format!("lie on a multiple of {} bytes", align_of::<T>());
        Error::invalid(name, expected, format!("address {address:#x}"))
    })
}

impl<'a, T: bytemuck::Pod> Output<'a, T> {
    /// Over the bytes of an output.
    pub fn new(problem: &Problem, name: &'static str, bytes: &'a mut [u8]) -> Result<Self, Error> {
        Ok(Self::over(numbers_mut(problem, name, bytes)?))
    }

    /// Over numbers that are there already.
    pub fn over(numbers: &'a mut [T]) -> Self {
        Self { start: numbers.as_mut_ptr(), len: numbers.len(), lifetime: std::marker::PhantomData }
    }

    /// The numbers from `start` on, for writing.
    ///
    /// # Safety
    /// Nobody else may hold numbers of the same places at the same time.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "that places do not overlap is the caller's promise")]
    pub unsafe fn write(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.len, "an output is written beyond its end");
        // SAFETY: in bounds by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

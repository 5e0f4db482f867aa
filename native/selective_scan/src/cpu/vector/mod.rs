//! Vectors of real and complex numbers over the instruction set that the machine has, on top of `pulp`.
//!
//! [`Lanes`] is a register of real numbers, [`ComplexLanes`] a pair of registers. Both are a [`Field`], so the
//! discretizations and the kernels are written once. Everything is `inline(always)`: the code must end up inside
//! the function that `pulp` compiles for the instruction set.

mod complex;
mod isa;
mod lane_sums;
mod lanes;
mod real;

use crate::discretize::Field;

pub use complex::ComplexLanes;
pub use isa::Isa;
pub(crate) use isa::with_isa;
pub use lane_sums::LaneSums;
pub use lanes::Lanes;
pub use real::Real;

/// A [`Field`] of vectors: what it takes to move one between memory and registers.
pub trait VectorField: Field<Real = Lanes<Self::Element, Self::Isa>> + Send + Sync {
    /// The components' type.
    type Element: Real;
    /// The instruction set.
    type Isa: Isa;
    /// Registers that one number takes.
    const COMPONENTS: usize;

    /// From `COMPONENTS` registers in memory.
    fn load(isa: Self::Isa, memory: &[Vector<Self>]) -> Self;
    /// To `COMPONENTS` registers in memory.
    fn store(self, memory: &mut [Vector<Self>]);
    /// One number, given by its `COMPONENTS` components, in every lane.
    fn broadcast(isa: Self::Isa, components: &[Self::Element]) -> Self;
    /// The complex conjugate.
    fn conj(self) -> Self;
    /// The real part.
    fn re(self) -> Self::Real;
    /// `sum + Re(self · other)`.
    fn real_product(self, other: Self, sum: Self::Real) -> Self::Real;
    /// The real part, the imaginary part.
    fn component(self, index: usize) -> Self::Real;

    /// Zero in every lane.
    #[inline(always)]
    fn zero(isa: Self::Isa) -> Self {
        Self::from_real(Lanes::splat(isa, Self::Element::from_f64(0.0)))
    }
}

/// A register of a field's components.
pub type Vector<F> = <<F as VectorField>::Element as Real>::Vector<<F as VectorField>::Isa>;

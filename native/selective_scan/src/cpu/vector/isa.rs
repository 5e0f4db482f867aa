//! Instruction sets.

use pulp::Simd;

use crate::cpu::exponential;

/// An instruction set, with the operations that `pulp` has no common name for.
pub trait Isa: Simd {
    /// As users see it.
    const NAME: &'static str;
    /// Whether products that are added to something are not rounded before.
    const FUSED: bool = true;

    /// `fraction · 2^exponent`, with an integral exponent of any size: 0 below the normal range, ∞ above it.
    #[inline(always)]
    fn scale_f32(self, fraction: Self::f32s, exponent: Self::f32s) -> Self::f32s {
        exponential::scale_f32(self, fraction, exponent)
    }

    /// `fraction · 2^exponent`, likewise.
    #[inline(always)]
    fn scale_f64(self, fraction: Self::f64s, exponent: Self::f64s) -> Self::f64s {
        exponential::scale_f64(self, fraction, exponent)
    }

    /// What is left of an exponent once its integer is gone, kept within ±½ where `scale` needs a fraction in range
    /// to get ∞ and 0 right.
    #[inline(always)]
    fn remainder_f32(self, remainder: Self::f32s) -> Self::f32s {
        remainder
    }

    /// The same for f64.
    #[inline(always)]
    fn remainder_f64(self, remainder: Self::f64s) -> Self::f64s {
        remainder
    }
}

impl Isa for pulp::Scalar {
    const NAME: &'static str = "plain";
    const FUSED: bool = false;
}

#[cfg(target_arch = "x86_64")]
impl Isa for pulp::x86::V3 {
    const NAME: &'static str = "avx2";
}

#[cfg(target_arch = "x86_64")]
impl Isa for pulp::x86::V4 {
    const NAME: &'static str = "avx512";

    #[inline(always)]
    fn scale_f32(self, fraction: Self::f32s, exponent: Self::f32s) -> Self::f32s {
        pulp::cast(self.avx512f._mm512_scalef_ps(pulp::cast(fraction), pulp::cast(exponent)))
    }

    #[inline(always)]
    fn scale_f64(self, fraction: Self::f64s, exponent: Self::f64s) -> Self::f64s {
        pulp::cast(self.avx512f._mm512_scalef_pd(pulp::cast(fraction), pulp::cast(exponent)))
    }

    #[inline(always)]
    fn remainder_f32(self, remainder: Self::f32s) -> Self::f32s {
        let half = pulp::cast(self.splat_f32s(0.5));
        pulp::cast(self.avx512dq._mm512_range_ps::<LEAST_MAGNITUDE>(pulp::cast(remainder), half))
    }

    #[inline(always)]
    fn remainder_f64(self, remainder: Self::f64s) -> Self::f64s {
        let half = pulp::cast(self.splat_f64s(0.5));
        pulp::cast(self.avx512dq._mm512_range_pd::<LEAST_MAGNITUDE>(pulp::cast(remainder), half))
    }
}

/// VRANGE: the operand of least magnitude, with the sign of the first; the other operand where one is NaN.
#[cfg(target_arch = "x86_64")]
const LEAST_MAGNITUDE: i32 = 0b0010;

#[cfg(target_arch = "aarch64")]
impl Isa for pulp::aarch64::Neon {
    const NAME: &'static str = "neon";
}

/// Calls a generic expression with one of the instruction sets that this machine has.
macro_rules! with_isa {
    ($arch:expr, $isa:ident => $call:expr) => {{
        match $arch {
            #[cfg(target_arch = "x86_64")]
            pulp::Arch::V4($isa) => $call,
            #[cfg(target_arch = "x86_64")]
            pulp::Arch::V3($isa) => $call,
            #[cfg(target_arch = "aarch64")]
            pulp::Arch::Neon($isa) => $call,
            _ => {
                let $isa = pulp::Scalar;
                $call
            }
        }
    }};
}
pub(crate) use with_isa;

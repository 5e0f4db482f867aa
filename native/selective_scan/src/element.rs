//! Element types of tensors.

use std::fmt;

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// The upper half of an IEEE single.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Signed 32-bit integer, for `seq_idx` alone.
    S32,
}

impl ElementType {
    /// Size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::S32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// The type that states, sums, `a`, `d` and `dt_bias` have beside sequences of this type.
    pub const fn state_type(self) -> Self {
        match self {
            Self::F64 => Self::F64,
            _ => Self::F32,
        }
    }

    /// The type of a tensor, by its name, of a scan of sequences of this type.
    pub fn of(self, name: &str) -> Self {
        match name {
            "x" | "dt" | "b" | "c" | "z" | "y" | "dy" => self,
            "seq_idx" => Self::S32,
            _ => self.state_type(),
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::S32 => "s32",
        })
    }
}

//! The options of a call, with the names that they have in every language.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// Declares an option with a closed set of values: the enum, its names, and the way back from a name.
macro_rules! choice {
    (
        $(#[$doc:meta])* $name:ident as $option:literal {
            $($(#[$vdoc:meta])* $variant:ident = $value:literal),* $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All the values, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name of the value, as users write it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $value,)* }
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(name: &str) -> Result<Self, Error> {
                Self::ALL.iter().copied().find(|value| value.name() == name).ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|value| format!(":{}", value.name())).collect();
                    Error::invalid($option, format!("be one of {}", names.join(", ")), format!(":{name}"))
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, ":{}", self.name())
            }
        }
    };
}

choice! {
    /// How the continuous system is discretized; `discretize.rs` has the formulas.
    Method as "method" {
        /// Zero-order hold with Mamba's simplified B: a = e^z, g = Δ.
        #[default]
        Zoh = "zoh",
        /// Zero-order hold: g = Δφ₁.
        ZohExact = "zoh_exact",
        /// First-order hold: g = Δ²φ₂.
        Foh = "foh",
        /// The bilinear (Tustin) transform.
        Bilinear = "bilinear",
        /// Polynomial interpolation, g = Δφ₁ + ½Δ²φ₂; bidirectional unless told otherwise.
        Poly = "poly",
        /// Higher-order hold: g = Δφ₁ + Δ²φ₂ + ½Δ³φ₃.
        Highorder = "highorder",
        /// The gain of the classical Runge–Kutta method beside a = e^z.
        Rk4 = "rk4",
    }
}

impl Method {
    /// Whether the method is defined over both directions of time unless told otherwise.
    pub(crate) const fn bidirectional_by_default(self) -> bool {
        matches!(self, Self::Poly)
    }

    /// Whether the method has a truncated series beside its closed form.
    pub const fn has_taylor(self) -> bool {
        matches!(self, Self::Foh | Self::Poly | Self::Highorder)
    }
}

choice! {
    /// How the gain g of a method is computed.
    Coefficients as "coefficients" {
        /// The closed form.
        #[default]
        Exact = "exact",
        /// The series cut after four terms, as in the VisionMamba implementation.
        Taylor = "taylor",
    }
}

/// The options of a call, as far as they are not tensors.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// The discretization.
    pub method: Method,
    /// Closed forms or truncated series.
    pub coefficients: Coefficients,
    /// Average of a scan from each end; `None`: as the method has it.
    pub bidirectional: Option<bool>,
    /// Scan from the last frame to the first.
    pub reverse: bool,
    /// Whether `dt` passes through softplus, after its bias.
    pub dt_softplus: bool,
    /// Least and greatest step size, after softplus.
    pub dt_limit: Option<[f64; 2]>,
}

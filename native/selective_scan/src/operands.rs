//! The named tensors of the operation. `T` is what stands for a tensor: its description while a request is
//! checked, bytes for the CPU, a device address for CUDA. The names are the same from the Elixir option to the
//! kernel parameter.

use crate::Error;

/// Declares a struct of required and optional tensors with `map` and `iter` over their names.
macro_rules! named_tensors {
    (
        $(#[$doc:meta])* $name:ident {
            required { $($(#[$rdoc:meta])* $required:ident),* $(,)? }
            optional { $($(#[$odoc:meta])* $optional:ident),* $(,)? }
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name<T> {
            $($(#[$rdoc])* pub $required: T,)*
            $($(#[$odoc])* pub $optional: Option<T>,)*
        }

        impl<T> $name<T> {
            /// The tensors that are found by their names; the error of the first that is `missing` where it is required.
            pub fn by_name(
                mut find: impl FnMut(&'static str) -> Result<Option<T>, Error>,
                missing: impl Fn(&'static str) -> Error,
            ) -> Result<Self, Error> {
                Ok(Self {
                    $($required: find(stringify!($required))?.ok_or_else(|| missing(stringify!($required)))?,)*
                    $($optional: find(stringify!($optional))?,)*
                })
            }

            /// The same tensors as something else; the first error ends it.
            pub fn try_map<U>(
                self,
                mut f: impl FnMut(&'static str, T) -> Result<U, Error>,
            ) -> Result<$name<U>, Error> {
                Ok($name {
                    $($required: f(stringify!($required), self.$required)?,)*
                    $($optional: match self.$optional {
                        Some(tensor) => Some(f(stringify!($optional), tensor)?),
                        None => None,
                    },)*
                })
            }

            /// The same tensors as something else.
            pub fn map<U>(self, mut f: impl FnMut(&'static str, T) -> U) -> $name<U> {
                $name {
                    $($required: f(stringify!($required), self.$required),)*
                    $($optional: self.$optional.map(|tensor| f(stringify!($optional), tensor)),)*
                }
            }

            /// The same tensors, borrowed.
            pub fn as_ref(&self) -> $name<&T> {
                $name {
                    $($required: &self.$required,)*
                    $($optional: self.$optional.as_ref(),)*
                }
            }

            /// The same tensors, borrowed for writing.
            pub fn as_mut(&mut self) -> $name<&mut T> {
                $name {
                    $($required: &mut self.$required,)*
                    $($optional: self.$optional.as_mut(),)*
                }
            }

            /// Name and tensor of all that are present, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &T)> {
                [$((stringify!($required), Some(&self.$required)),)*
                 $((stringify!($optional), self.$optional.as_ref()),)*]
                .into_iter()
                .filter_map(|(name, tensor)| tensor.map(|tensor| (name, tensor)))
            }
        }
    };
}

named_tensors! {
    /// What the scan reads. For a step, the shapes lack `seq`.
    Inputs {
        required {
            /// The input sequence, {batch, seq, dim}.
            x,
            /// The step sizes Δ, {batch, seq, dim}, before bias, softplus and limit.
            dt,
            /// The diagonal of A, {dim, state}; {dim, state, 2} where complex.
            a,
            /// B, {batch, seq, state}, {batch, seq, groups, state} or constant {dim, state}.
            b,
            /// C, like `b`.
            c,
        }
        optional {
            /// The skip connection D, {dim}.
            d,
            /// The gate, {batch, seq, dim}: y is multiplied by silu(z).
            z,
            /// Added to `dt`, {dim}.
            dt_bias,
            /// The state before the first frame, {batch, dim, state}; zero where absent.
            initial_state,
            /// Which packed sequence a frame belongs to, s32 {batch, seq}.
            seq_idx,
        }
    }
}

named_tensors! {
    /// What the scan writes.
    Outputs {
        required {
            /// {batch, seq, dim}.
            y,
        }
        optional {
            /// The state after the last frame, {batch, dim, state}.
            final_state,
        }
    }
}

named_tensors! {
    /// What flows into the backward pass, beside the [`Inputs`].
    OutputGradients {
        required {
            /// ∂L/∂y, {batch, seq, dim}.
            dy,
        }
        optional {
            /// ∂L/∂final_state, {batch, dim, state}; zero where absent.
            dfinal_state,
        }
    }
}

named_tensors! {
    /// The gradients: each has the shape and the type of the input that it belongs to.
    Gradients {
        required {
            /// ∂L/∂x.
            x,
            /// ∂L/∂dt, with respect to `dt` as it was given.
            dt,
            /// ∂L/∂a.
            a,
            /// ∂L/∂b.
            b,
            /// ∂L/∂c.
            c,
        }
        optional {
            /// ∂L/∂d.
            d,
            /// ∂L/∂z.
            z,
            /// ∂L/∂dt_bias.
            dt_bias,
            /// ∂L/∂initial_state.
            initial_state,
        }
    }
}

impl<T> Inputs<T> {
    /// Those that have gradients: all but `seq_idx`.
    pub fn differentiable(self) -> Gradients<T> {
        let Self { x, dt, a, b, c, d, z, dt_bias, initial_state, seq_idx: _ } = self;
        Gradients { x, dt, a, b, c, d, z, dt_bias, initial_state }
    }
}

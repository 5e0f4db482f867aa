//! What can go wrong, in words for whoever has to mend it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A request that was not carried out. Nothing was written to the outputs unless the variant says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request itself is wrong; found before anything is computed.
    #[error("expected {argument} to {expected}, got: {got}")]
    InvalidArgument {
        /// The argument or option, by the name it has in every language: `x`, `dt_limit`, `method`, …
        argument: &'static str,
        /// Completes "expected x to …".
        expected: String,
        /// What came instead.
        got: String,
    },
    /// The backend asked for cannot run here.
    #[error("the {backend} backend cannot run: {reason}; {remedy}")]
    Unavailable {
        /// `cuda` or `cpu`.
        backend: &'static str,
        /// Why, in the words of the driver or the loader where they are known.
        reason: String,
        /// What the caller can do about it.
        remedy: String,
    },
    /// The backend started and failed; the contents of the outputs are undefined. The next call works, but on a device whose
    /// context the driver has given up: the remedy says so.
    #[error("{operation} failed: {reason}; {remedy}")]
    Failed {
        /// The step that failed: `allocating 12 MiB on cuda:0`, `compiling the scan kernel`, …
        operation: String,
        /// The driver's or the compiler's own words.
        reason: String,
        /// What the caller can do about it.
        remedy: String,
    },
}

impl Error {
    /// An [`Error::InvalidArgument`] that reads "expected `argument` to `expected`, got: `got`".
    pub fn invalid(argument: &'static str, expected: impl Into<String>, got: impl ToString) -> Self {
        Self::InvalidArgument { argument, expected: expected.into(), got: got.to_string() }
    }

    /// An [`Error::InvalidArgument`] for a tensor of a type that none of this name can have.
    pub fn wrong_type(tensor: &'static str, got: impl ToString) -> Self {
        let expected = if tensor == "seq_idx" { "have type s32" } else { "have type f32, bf16, f16 or f64" };
        Self::invalid(tensor, expected, got)
    }

    /// Memory of the host that there is not.
    pub fn out_of_memory(operation: String) -> Self {
        Self::Failed { operation, reason: "out of memory".into(), remedy: "use smaller batches".into() }
    }

    /// What a panic comes to at a border that none may cross.
    pub fn of_panic(panic: &(dyn Any + Send)) -> Self {
        Self::Failed {
            operation: "the native call".into(),
            reason: words_of_panic(panic).unwrap_or("it panicked without a word").into(),
            remedy: "this is a fault of the library: please report it with the call that led to it".into(),
        }
    }
}

/// Runs a call at a border that no panic may cross: one, which would be a fault of ours, becomes an error. What the call touches is
/// either its own or, like a result half written, of no use after an error.
pub fn caught<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(Error::of_panic(&*panic)))
}

/// The text of a panic.
pub fn words_of_panic(panic: &(dyn Any + Send)) -> Option<&str> {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    words.or_else(|| panic.downcast_ref::<&str>().copied())
}

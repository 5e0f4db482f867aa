//! The driver: whether it is there, and what it says when something fails.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

use crate::Error;
use crate::error::words_of_panic;

/// The backend cannot run here.
pub(super) fn unavailable(reason: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::Unavailable { backend: "cuda", reason: reason.into(), remedy: remedy.into() }
}

/// What the bindings panic with where a library, or a function in it, is not there.
const NOT_THERE: [&str; 2] = ["Unable to dynamically load", "Missing symbol"];

/// Runs `f` where a library may lack what it calls: the bindings panic then, which is no fault of ours. A panic that is goes on, to
/// the border of the shell.
pub(super) fn guarded<T>(f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let words = words_of_panic(&*panic).unwrap_or_default();
        if !NOT_THERE.iter().any(|beginning| words.starts_with(beginning)) {
            resume_unwind(panic);
        }
        let lacks = if words.to_lowercase().contains("nvrtc") {
            "an NVRTC of CUDA 12 or 13"
        } else {
            "a current NVIDIA driver"
        };
        Err(unavailable(words, format!("install {lacks}, or use the cpu backend")))
    })
}

/// Whether libcuda is there and answers. Once it has, it is not looked for again, which would open it anew.
pub(super) fn initialize() -> Result<(), Error> {
    static ANSWERS: OnceLock<()> = OnceLock::new();
    if ANSWERS.get().is_some() {
        return Ok(());
    }
    // SAFETY: only opens the library.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(unavailable(
            "libcuda.so was not found: there is no NVIDIA driver",
            "install the driver (in a container, start it with the GPU), or use the cpu backend",
        ));
    }
    cudarc::driver::result::init().map_err(|error| {
        unavailable(words(error), "check that nvidia-smi lists a GPU, or use the cpu backend")
    })?;
    ANSWERS.get_or_init(|| ());
    Ok(())
}

/// The driver's name and text of an error.
pub(super) fn words(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy());
    let text = error.error_string().map(|text| text.to_string_lossy());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name}: {text}"),
        _ => format!("{:?}", error.0),
    }
}

/// What a caller can do about an error of the driver.
fn remedy(error: DriverError) -> &'static str {
    use CUresult::*;
    match error.0 {
        CUDA_ERROR_OUT_OF_MEMORY => {
            "free device memory, split the batch, or use the cpu backend for this call"
        }
        CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUDA_ERROR_ECC_UNCORRECTABLE
        | CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUDA_ERROR_ASSERT
        | CUDA_ERROR_MISALIGNED_ADDRESS
        | CUDA_ERROR_LAUNCH_TIMEOUT
        | CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUDA_ERROR_INVALID_PC => "the driver gives this context up: restart the operating system process",
        CUDA_ERROR_NO_BINARY_FOR_GPU | CUDA_ERROR_INVALID_PTX | CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "update the NVIDIA driver, or install an NVRTC that is no newer than it"
        }
        _ => "try again, or use the cpu backend",
    }
}

/// Names the step that the driver refused.
pub(super) trait During<T> {
    /// The result, with an [`Error::Failed`] that names `operation`.
    fn during(self, operation: impl FnOnce() -> String) -> Result<T, Error>;

    /// The same of what asks for memory of the host.
    fn during_on_host(self, operation: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> During<T> for Result<T, DriverError> {
    fn during(self, operation: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| failed(operation(), error, remedy(error)))
    }

    fn during_on_host(self, operation: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| {
            let remedy = match error.0 {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    "free memory of the host, raise the limit on what may be locked, or split the batch"
                }
                _ => remedy(error),
            };
            failed(operation(), error, remedy)
        })
    }
}

fn failed(operation: String, error: DriverError, remedy: &str) -> Error {
    Error::Failed { operation, reason: words(error), remedy: remedy.to_owned() }
}

/// A number of bytes as people read it.
pub(super) fn readable(bytes: usize) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} bytes"),
        10_000..=999_999 => format!("{} KiB", bytes >> 10),
        1_000_000..=9_999_999 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_unavailable_and_a_fault_of_ours_goes_on() {
        let lacking = guarded::<()>(|| panic!("Missing symbol cuLaunchKernelEx: not found"));
        let words = lacking.unwrap_err().to_string();
        assert!(words.starts_with("the cuda backend cannot run: Missing symbol cuLaunchKernelEx"), "{words}");
        let fault = catch_unwind(|| guarded::<()>(|| panic!("chunk size must be non-zero")));
        let words = Error::of_panic(&*fault.unwrap_err()).to_string();
        assert!(words.contains("chunk size must be non-zero; this is a fault of the library"), "{words}");
    }
}

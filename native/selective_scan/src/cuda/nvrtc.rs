//! NVRTC, which compiles kernels.

use std::ffi::{CStr, CString, c_char, c_int};

use cudarc::nvrtc::sys::{self as nvrtc, nvrtcProgram, nvrtcResult};

use super::compile::{Configuration, HEADERS, Target};
use super::driver::unavailable;
use crate::Error;

/// With this value of the environment variable, NVRTC is left alone.
const HIDDEN: (&str, &str) = ("EXPHIL_NVRTC", "none");

/// NVRTC, as it was found.
#[derive(Debug)]
pub struct Compiler {
    version: (c_int, c_int),
    architectures: Vec<c_int>,
}

impl Compiler {
    /// Looks for NVRTC.
    pub fn find() -> Result<Self, Error> {
        let (variable, value) = HIDDEN;
        if std::env::var_os(variable).is_some_and(|is| is == value) {
            let remedy = format!("unset {variable}");
            return Err(unavailable(format!("kernels are not compiled where {variable}={value}"), remedy));
        }
        // SAFETY: only opens the library.
        if !unsafe { nvrtc::is_culib_present() } {
            return Err(unavailable(
                "libnvrtc.so (CUDA 12 or 13) was not found, and kernels are compiled by it",
                "install NVRTC (CUDA's toolkit or `pip install nvidia-cuda-nvrtc`) and put its folder on LD_LIBRARY_PATH",
            ));
        }
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the pointers are to live variables.
        let found = unsafe {
            check(nvrtc::nvrtcVersion(&mut major, &mut minor))
                .and_then(|()| check(nvrtc::nvrtcGetNumSupportedArchs(&mut count)))
        };
        found.map_err(|reason| failed("asking NVRTC for its version", reason))?;
        let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: there is room for as many as NVRTC announced.
        unsafe { check(nvrtc::nvrtcGetSupportedArchs(architectures.as_mut_ptr())) }
            .map_err(|reason| failed("asking NVRTC for its architectures", reason))?;
        Ok(Self { version: (major, minor), architectures })
    }

    /// Major and minor.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The best target for a device of this compute capability.
    pub fn target(&self, architecture: i32) -> Target {
        if self.architectures.contains(&architecture) {
            Target::Machine(architecture)
        } else {
            self.ptx(architecture)
        }
    }

    /// The target that the driver translates by itself.
    pub fn ptx(&self, architecture: i32) -> Target {
        let older = self.architectures.iter().filter(|&&a| a <= architecture);
        Target::Ptx(older.max().copied().unwrap_or(architecture))
    }

    /// A kernel's image, ready to be loaded.
    pub fn compile(&self, configuration: &Configuration, target: Target) -> Result<Vec<u8>, Error> {
        let (name, source) = configuration.program.source();
        let options = configuration.options(target);
        let doing = format!("compiling {} by NVRTC", name.to_string_lossy());
        let terminated = |text: &str| CString::new(text).map_err(|error| failed(&doing, error.to_string()));
        let source = terminated(source)?;
        let headers = HEADERS.iter().map(|(_, text)| terminated(text)).collect::<Result<Vec<_>, _>>()?;
        let options = options.iter().map(|option| terminated(option)).collect::<Result<Vec<_>, _>>()?;
        let header_texts: Vec<_> = headers.iter().map(|text| text.as_ptr()).collect();
        let header_names: Vec<_> = HEADERS.iter().map(|(name, _)| name.as_ptr()).collect();
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();

        let mut handle = std::ptr::null_mut();
        // SAFETY: all strings are terminated and outlive the program; the counts are those of the arrays.
        unsafe {
            check(nvrtc::nvrtcCreateProgram(
                &mut handle,
                source.as_ptr(),
                name.as_ptr(),
                header_texts.len() as c_int,
                header_texts.as_ptr(),
                header_names.as_ptr(),
            ))
        }
        .map_err(|reason| failed(&doing, reason))?;
        let handle = Source(handle);
        // SAFETY: the program is alive, the options are terminated strings.
        let compiled =
            unsafe { check(nvrtc::nvrtcCompileProgram(handle.0, options.len() as c_int, options.as_ptr())) };
        if let Err(reason) = compiled {
            let log =
                handle.get(nvrtc::nvrtcGetProgramLogSize, nvrtc::nvrtcGetProgramLog).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let log = log.trim_end_matches(['\0', '\n']);
            return Err(failed(&doing, format!("{reason}\n{log}")));
        }
        match target {
            Target::Machine(_) => handle.get(nvrtc::nvrtcGetCUBINSize, nvrtc::nvrtcGetCUBIN),
            Target::Ptx(_) => handle.get(nvrtc::nvrtcGetPTXSize, nvrtc::nvrtcGetPTX),
        }
        .map_err(|reason| failed(&doing, reason))
    }
}

fn check(result: nvrtcResult) -> Result<(), String> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: NVRTC answers with a static string for every result.
    let text = unsafe { CStr::from_ptr(nvrtc::nvrtcGetErrorString(result)) };
    Err(text.to_string_lossy().into_owned())
}

fn failed(operation: &str, reason: String) -> Error {
    Error::Failed {
        operation: operation.to_owned(),
        reason,
        remedy: "check that NVRTC belongs to CUDA 12 or 13, or use the cpu backend".to_owned(),
    }
}

/// A program of NVRTC's, destroyed when dropped.
struct Source(nvrtcProgram);

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: the program was created by nvrtcCreateProgram and is destroyed once.
        unsafe { nvrtc::nvrtcDestroyProgram(&mut self.0) };
    }
}

impl Source {
    /// What a pair of NVRTC's functions, for the size and for the bytes, gives.
    fn get(
        &self,
        size: unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult,
        bytes: unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, String> {
        let mut length = 0;
        // SAFETY: the program is alive.
        unsafe { check(size(self.0, &mut length))? };
        let mut out = vec![0u8; length];
        // SAFETY: there is room for as many bytes as NVRTC announced.
        unsafe { check(bytes(self.0, out.as_mut_ptr().cast()))? };
        Ok(out)
    }
}

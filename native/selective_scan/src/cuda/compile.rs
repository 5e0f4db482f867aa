//! Kernels: what a problem asks for becomes macros, NVRTC compiles it, and the result is kept on disk.
//!
//! A kernel on disk is named by the hash of everything it depends on: source, options, NVRTC's version and the
//! architecture. It begins with the hash of the rest, so that a torn or foreign file is seen and compiled anew; it
//! is written beside its place and renamed, so that nobody reads half of it. A cache that cannot be read or
//! written costs time and nothing else.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use cudarc::nvrtc::sys::{self as nvrtc, nvrtcProgram, nvrtcResult};
use sha2::{Digest, Sha256};

use super::driver::unavailable;
use crate::{Coefficients, ElementType, Error, Method};

/// The kernels, one to a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// Resets and padding of packed rows.
    Marks,
    /// What each chunk does to a state.
    Summary,
    /// The states at the boundaries of the chunks.
    Prefix,
    /// The forward scan.
    Forward,
    /// The backward pass.
    Backward,
    /// The second stage of its sums.
    Reduce,
}

impl Program {
    const fn source(self) -> (&'static CStr, &'static str) {
        match self {
            Self::Marks => (c"marks.cu", include_str!("../../kernels/marks.cu")),
            Self::Summary => (c"summary.cu", include_str!("../../kernels/summary.cu")),
            Self::Prefix => (c"prefix.cu", include_str!("../../kernels/prefix.cu")),
            Self::Forward => (c"forward.cu", include_str!("../../kernels/forward.cu")),
            Self::Backward => (c"backward.cu", include_str!("../../kernels/backward.cu")),
            Self::Reduce => (c"reduce.cu", include_str!("../../kernels/reduce.cu")),
        }
    }
}

const HEADERS: [(&CStr, &str); 6] = [
    (c"number.cuh", include_str!("../../kernels/number.cuh")),
    (c"discretize.cuh", include_str!("../../kernels/discretize.cuh")),
    (c"arguments.cuh", include_str!("../../kernels/arguments.cuh")),
    (c"block.cuh", include_str!("../../kernels/block.cuh")),
    (c"rows.cuh", include_str!("../../kernels/rows.cuh")),
    (c"tiles.cuh", include_str!("../../kernels/tiles.cuh")),
];

/// What a kernel is compiled for; the macros of the same names in the sources say what each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the kernels' sources document the macros")]
pub struct Configuration {
    pub program: Program,
    pub element: ElementType,
    pub complex: bool,
    pub method: Method,
    pub coefficients: Coefficients,
    pub b_constant: bool,
    pub c_constant: bool,
    pub has_d: bool,
    pub has_z: bool,
    pub has_dt_bias: bool,
    pub softplus: bool,
    pub limit: bool,
    pub seq_idx: bool,
    pub with_states: bool,
    pub with_adjoints: bool,
    pub lanes: usize,
    pub states: usize,
    pub channels: usize,
    pub tile: usize,
    pub tiles: usize,
    pub vector: usize,
    pub vector_b: usize,
    pub vector_c: usize,
    pub summary: bool,
    pub pipelined: bool,
    pub several_passes: bool,
    pub unroll: usize,
    pub unroll_back: usize,
    pub min_blocks: usize,
    pub shared_bytes: usize,
}

impl Configuration {
    /// Threads of a block of the kernels that walk over frames.
    pub const fn threads(&self) -> usize {
        self.lanes * self.channels
    }

    fn macros(&self) -> Vec<String> {
        let element = match self.element {
            ElementType::F32 | ElementType::S32 => 0,
            ElementType::F64 => 1,
            ElementType::Bf16 => 2,
            ElementType::F16 => 3,
        };
        let method = Method::ALL.iter().position(|&method| method == self.method);
        let taylor = self.coefficients == Coefficients::Taylor;
        [
            ("ELEMENT", element),
            ("COMPLEX", usize::from(self.complex)),
            ("METHOD", method.unwrap_or_default()),
            ("TAYLOR", usize::from(taylor)),
            ("B_CONSTANT", usize::from(self.b_constant)),
            ("C_CONSTANT", usize::from(self.c_constant)),
            ("HAS_D", usize::from(self.has_d)),
            ("HAS_Z", usize::from(self.has_z)),
            ("HAS_DT_BIAS", usize::from(self.has_dt_bias)),
            ("SOFTPLUS", usize::from(self.softplus)),
            ("LIMIT", usize::from(self.limit)),
            ("SEQ_IDX", usize::from(self.seq_idx)),
            ("WITH_STATES", usize::from(self.with_states)),
            ("WITH_ADJOINTS", usize::from(self.with_adjoints)),
            ("LANES", self.lanes),
            ("STATES", self.states),
            ("CHANNELS", self.channels),
            ("TILE", self.tile),
            ("TILES", self.tiles),
            ("VECTOR", self.vector),
            ("VECTOR_B", self.vector_b),
            ("VECTOR_C", self.vector_c),
            ("SUMMARY", usize::from(self.summary)),
            ("PIPELINED", usize::from(self.pipelined)),
            ("SEVERAL_PASSES", usize::from(self.several_passes)),
            ("UNROLL", self.unroll),
            ("UNROLL_BACK", self.unroll_back),
            ("MIN_BLOCKS", self.min_blocks),
            ("SHARED_BYTES", self.shared_bytes),
        ]
        .iter()
        .map(|(name, value)| format!("-D{name}={value}"))
        .collect()
    }

    /// The options that NVRTC gets.
    fn options(&self, target: Target) -> Vec<String> {
        let mut options = self.macros();
        options.push("--std=c++17".to_owned());
        options.push(match target {
            Target::Machine(architecture) => format!("--gpu-architecture=sm_{architecture}"),
            Target::Ptx(architecture) => format!("--gpu-architecture=compute_{architecture}"),
        });
        options
    }
}

/// What NVRTC makes of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Machine code for this very architecture, 90 for 9.0.
    Machine(i32),
    /// PTX, which the driver translates: for a device newer than NVRTC knows, or a driver older than NVRTC.
    Ptx(i32),
}

/// NVRTC, as it was found.
#[derive(Debug)]
pub struct Compiler {
    version: (c_int, c_int),
    architectures: Vec<c_int>,
    cache: Option<PathBuf>,
}

impl Compiler {
    /// Looks for NVRTC.
    pub fn find() -> Result<Self, Error> {
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
        Ok(Self { version: (major, minor), architectures, cache: cache_directory() })
    }

    /// The same with images kept in this folder, or nowhere.
    pub fn with_cache(self, cache: Option<PathBuf>) -> Self {
        Self { cache, ..self }
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

    /// A kernel's image, ready to be loaded: from the disk, or compiled.
    pub fn image(&self, configuration: &Configuration, target: Target) -> Result<Vec<u8>, Error> {
        let options = configuration.options(target);
        let file = self.file(configuration.program, &options);
        if let Some(image) = file.as_ref().and_then(read) {
            return Ok(image);
        }
        let image = compile(configuration.program, &options, target)?;
        if let Some(file) = &file {
            // A cache that cannot be written is none.
            let _ = write(file, &image);
        }
        Ok(image)
    }

    /// Where the image of a kernel is kept.
    fn file(&self, program: Program, options: &[String]) -> Option<PathBuf> {
        let mut hash = Sha256::new();
        let (name, source) = program.source();
        let sources = HEADERS.into_iter().chain([(name, source)]);
        for part in sources.flat_map(|(name, text)| [name.to_bytes(), text.as_bytes()]) {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        hash.update(format!("{:?} {options:?}", self.version));
        let name: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.cache.as_ref()?.join(name))
    }
}

/// XDG_CACHE_HOME/exphil_native, or ~/.cache/exphil_native.
fn cache_directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    Some(base.join("exphil_native"))
}

const DIGEST: usize = 32;

fn read(file: &PathBuf) -> Option<Vec<u8>> {
    let mut bytes = fs::read(file).ok()?;
    if bytes.len() <= DIGEST {
        return None;
    }
    let image = bytes.split_off(DIGEST);
    (Sha256::digest(&image)[..] == bytes[..]).then_some(image)
}

fn write(file: &PathBuf, image: &[u8]) -> std::io::Result<()> {
    static WRITES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let count = WRITES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let beside = file.with_extension(format!("{}.{count}", std::process::id()));
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    let written = fs::File::create(&beside).and_then(|mut out| {
        out.write_all(&Sha256::digest(image))?;
        out.write_all(image)
    });
    let renamed = written.and_then(|()| fs::rename(&beside, file));
    if renamed.is_err() {
        let _ = fs::remove_file(&beside);
    }
    renamed
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

fn compile(program: Program, options: &[String], target: Target) -> Result<Vec<u8>, Error> {
    let (name, source) = program.source();
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
        let log = handle.get(nvrtc::nvrtcGetProgramLogSize, nvrtc::nvrtcGetProgramLog).unwrap_or_default();
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

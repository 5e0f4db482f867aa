//! Where a kernel's image comes from: the disk, else the pack, else NVRTC; the pack last where NVRTC's are faster.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::OnceLock;

use super::cache::Cache;
use super::compile::{Configuration, Target};
use super::nvrtc::Compiler;
use super::packed;
use crate::Error;

/// The places where images are found, for devices of one architecture.
#[derive(Debug)]
pub struct Images {
    architecture: i32,
    /// The driver's version, 13000 for CUDA 13.0.
    driver: c_int,
    cache: Cache,
    pack: Option<PathBuf>,
    /// Loaded where the disk lacks a kernel, and not before: loading it takes longer than reading many of them.
    compiler: OnceLock<Compiler>,
}

impl Images {
    /// The places of this user and process.
    pub fn new(architecture: i32, driver: c_int) -> Self {
        let (cache, pack) = (Cache::of_the_user(), packed::told_of());
        Self { architecture, driver, cache, pack, compiler: OnceLock::new() }
    }

    /// Other places on disk than the user's, or none.
    pub fn at(architecture: i32, driver: c_int, cache: Option<PathBuf>, pack: Option<PathBuf>) -> Self {
        Self { architecture, driver, cache: Cache::new(cache), pack, compiler: OnceLock::new() }
    }

    /// What `load` makes of a kernel's image. An image that it refuses is as good as none. One that it takes is kept on disk,
    /// a packed one, too, because others are unpacked with it, but not one that is packed for want of better. What the
    /// driver makes of PTX it keeps itself.
    pub fn load<M>(
        &self,
        configuration: &Configuration,
        load: impl Fn(&[u8]) -> Result<M, Error>,
    ) -> Result<M, Error> {
        let key = configuration.key(Target::Machine(self.architecture));
        if let Some(image) = self.cache.read(&key)
            && let Ok(loaded) = load(&image)
        {
            return Ok(loaded);
        }
        let keep = |image: Vec<u8>| load(&image).inspect(|_| self.cache.write(&key, &image));
        let packed = || packed::unpack(self.pack.as_ref()?, configuration, self.architecture);
        if packed::is_as_fast(self.architecture, self.driver)
            && let Some(Ok(loaded)) = packed().map(keep)
        {
            return Ok(loaded);
        }
        self.compile(configuration, keep).or_else(|reason| match packed() {
            Some(image) => load(&image),
            None => Err(self.not_packed(reason)),
        })
    }

    /// What `load` makes of NVRTC's machine code, or of its PTX: a driver may be older than the NVRTC whose machine code it
    /// gets, and still translate PTX.
    fn compile<M>(
        &self,
        configuration: &Configuration,
        load: impl Fn(Vec<u8>) -> Result<M, Error>,
    ) -> Result<M, Error> {
        let compiler = self.compiler()?;
        let compile = |target| compiler.compile(configuration, target).and_then(&load);
        let target = compiler.target(self.architecture);
        let portable = compiler.ptx(self.architecture);
        compile(target).or_else(|refused| match target == portable {
            true => Err(refused),
            false => compile(portable).map_err(|_| refused),
        })
    }

    fn compiler(&self) -> Result<&Compiler, Error> {
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let compiler = Compiler::find()?;
        Ok(self.compiler.get_or_init(|| compiler))
    }

    /// Says of a kernel that could not be compiled that there was none to take instead.
    fn not_packed(&self, reason: Error) -> Error {
        match reason {
            Error::Unavailable { backend, reason, remedy } => {
                let packed = match &self.pack {
                    Some(file) if file.is_file() => {
                        format!("and {} has no kernel for this problem", file.display())
                    }
                    Some(file) => format!("and there are no packed kernels at {}", file.display()),
                    None => "and no packed kernels are there".to_owned(),
                };
                Error::Unavailable { backend, reason: format!("{reason}; {packed}"), remedy }
            }
            other => other,
        }
    }
}

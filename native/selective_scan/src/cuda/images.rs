//! Where a kernel's image comes from: the disk, else NVRTC, else the pack.

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
    cache: Cache,
    pack: Option<PathBuf>,
    /// Loaded where the disk lacks a kernel, and not before: loading it takes longer than reading many of them.
    compiler: OnceLock<Compiler>,
}

impl Images {
    /// The places of this user and process.
    pub fn new(architecture: i32) -> Self {
        Self { architecture, cache: Cache::of_the_user(), pack: packed::told_of(), compiler: OnceLock::new() }
    }

    /// Other places on disk than the user's, or none.
    pub fn at(architecture: i32, cache: Option<PathBuf>, pack: Option<PathBuf>) -> Self {
        Self { architecture, cache: Cache::new(cache), pack, compiler: OnceLock::new() }
    }

    /// What `load` makes of a kernel's image. An image that it refuses is as good as none: a driver may be older than the
    /// NVRTC whose machine code it gets, and still translate PTX. What NVRTC made and `load` took is kept on disk.
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
        let compiled = self.compiler().and_then(|compiler| {
            let target = compiler.target(self.architecture);
            let portable = compiler.ptx(self.architecture);
            compiler.compile(configuration, target).and_then(keep).or_else(|refused| {
                match target == portable {
                    true => Err(refused),
                    false => compiler.compile(configuration, portable).and_then(keep).map_err(|_| refused),
                }
            })
        });
        compiled.or_else(|reason| {
            match self.pack.as_ref().and_then(|file| packed::unpack(file, configuration)) {
                Some(image) => load(&image),
                None => Err(self.not_packed(reason)),
            }
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
                    Some(file) => format!("and {} has no kernel for this problem", file.display()),
                    None => "and no packed kernels are there".to_owned(),
                };
                Error::Unavailable { backend, reason: format!("{reason}; {packed}"), remedy }
            }
            other => other,
        }
    }
}

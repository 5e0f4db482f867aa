//! Kernels that were compiled are kept on disk.
//!
//! A file is named by what its kernel depends on. It begins with the hash of its name and the rest, so that a torn or foreign
//! file, or one that had another name, is seen and compiled anew; it is written beside its place and renamed, so that nobody
//! reads half of it. A cache that cannot be read or written costs time and nothing else.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::compile::Key;

/// A folder of kernels, or none.
#[derive(Debug)]
pub(super) struct Cache(Option<PathBuf>);

impl Cache {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self(folder)
    }

    /// The user's: XDG_CACHE_HOME/exphil_native, or ~/.cache/exphil_native.
    pub(super) fn of_the_user() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = || Some(PathBuf::from(set("HOME")?).join(".cache"));
        let base = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
        Self(base.map(|base| base.join("exphil_native")))
    }

    fn file(&self, key: &Key) -> Option<PathBuf> {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.0.as_ref()?.join(name))
    }

    pub(super) fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.file(key)?).ok()?;
        if bytes.len() <= DIGEST {
            return None;
        }
        let image = bytes.split_off(DIGEST);
        (digest(key, &image)[..] == bytes[..]).then_some(image)
    }

    pub(super) fn write(&self, key: &Key, image: &[u8]) {
        if let Some(file) = self.file(key) {
            // A cache that cannot be written is none.
            let _ = write(&file, &digest(key, image), image);
        }
    }
}

const DIGEST: usize = 32;

fn digest(key: &Key, image: &[u8]) -> [u8; DIGEST] {
    Sha256::new().chain_update(key).chain_update(image).finalize().into()
}

fn write(file: &Path, digest: &[u8], image: &[u8]) -> std::io::Result<()> {
    static WRITES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let count = WRITES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let beside = file.with_extension(format!("{}.{count}", std::process::id()));
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    let written = fs::File::create(&beside).and_then(|mut out| {
        out.write_all(digest)?;
        out.write_all(image)
    });
    let renamed = written.and_then(|()| fs::rename(&beside, file));
    if renamed.is_err() {
        let _ = fs::remove_file(&beside);
    }
    renamed
}

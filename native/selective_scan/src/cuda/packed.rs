//! The kernels that are packed: PTX of the common ones, for machines that have a driver and no NVRTC.
//!
//! `make ptx` writes the pack into priv/ (examples/pack_kernels.rs has the list of what is common). The driver translates
//! PTX for the device that it finds, so a few texts serve all devices ([`target`]).
//!
//! Neighbouring texts are alike, so [`RUN`] of them are compressed together, as a frame of Zstandard with its checksum: a
//! third of what each takes alone, and a call has its handful of hundreds in milliseconds. They are unpacked by ruzstd,
//! which has no unsafe dependency and no C; they are compressed by zstd itself, when the pack is made.
//!
//! The file: [`MAGIC`], the number of kernels, then for each its key, where its run begins, the length of that compressed,
//! where its text begins in the run and the length of the text, all in eight little-endian bytes; then the runs.

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ruzstd::decoding::StreamingDecoder;

use super::compile::{Configuration, Key, Target};

const MAGIC: &[u8; 8] = b"exphil02";
const KEY: usize = size_of::<Key>();
const ENTRY: usize = KEY + 4 * 8;
/// Texts that are compressed together.
const RUN: usize = 32;

/// What a kernel of a pack is compiled for, for devices of this architecture: PTX of the oldest that NVRTC 12 and 13 both
/// compile for; from 9.0 on PTX that knows of kernels which begin while others end, and of tiles that the device copies.
pub const fn target(architecture: i32) -> Target {
    Target::Ptx(if architecture >= 90 { 90 } else { 75 })
}

/// Whether what a driver of this version, 13000 for CUDA 13.0, makes of packed PTX is as fast as what NVRTC makes of the
/// sources. It is there in a third of the time (H200, driver of CUDA 13.0 beside NVRTC 13.0; bench/NOTES.md). Of older
/// drivers it is not known: ptxas of CUDA 12.0 takes a walk up to a tenth longer. Nor of older devices, whose PTX here is
/// for the oldest.
pub(super) const fn is_as_fast(architecture: i32, driver: c_int) -> bool {
    architecture >= 90 && driver >= 13000
}

static PACK: OnceLock<PathBuf> = OnceLock::new();

/// Names the pack. The first name counts; the environment variable EXPHIL_KERNELS goes before it.
pub fn use_packed_kernels(file: &Path) {
    PACK.get_or_init(|| file.to_owned());
}

/// The pack that this process was told of.
pub(super) fn told_of() -> Option<PathBuf> {
    let named = std::env::var_os("EXPHIL_KERNELS").filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| PACK.get().cloned())
}

/// A kernel's image in a pack, for devices of this architecture; none where the file is not there, is not whole, or lacks
/// the kernel.
pub fn unpack(file: &Path, configuration: &Configuration, architecture: i32) -> Option<Vec<u8>> {
    let mut file = File::open(file).ok()?;
    let mut head = [0; 16];
    file.read_exact(&mut head).ok()?;
    let (magic, count) = head.split_at(8);
    if magic != MAGIC {
        return None;
    }
    let entries = file.metadata().ok()?.len() / ENTRY as u64;
    let count = number(count)?;
    if count > entries {
        return None;
    }
    let mut index = vec![0; count as usize * ENTRY];
    file.read_exact(&mut index).ok()?;
    let key = configuration.key(target(architecture));
    let entry = index.chunks_exact(ENTRY).find(|entry| entry[..KEY] == key)?;
    let [at, compressed, begin, length] = [0, 1, 2, 3].map(|k| number(&entry[KEY + 8 * k..][..8]));
    file.seek(SeekFrom::Start(at?)).ok()?;
    let texts = decompress(file.take(compressed?))?;
    let begin = begin? as usize;
    let text = texts.get(begin..begin.checked_add(length? as usize)?)?;
    // A driver reads to there.
    text.ends_with(b"\0").then(|| text.to_vec())
}

/// A whole run; none where it is not what its checksum is of.
fn decompress(run: impl Read) -> Option<Vec<u8>> {
    let mut decoder = StreamingDecoder::new(run).ok()?;
    let mut texts = Vec::new();
    decoder.read_to_end(&mut texts).ok()?;
    let frame = decoder.into_frame_decoder();
    let is_whole = frame.get_checksum_from_data()? == frame.get_calculated_checksum()?;
    is_whole.then_some(texts)
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Writes a pack of kernels, each with what it was compiled for; `compress` makes a frame of Zstandard, with a checksum.
pub fn pack(
    file: &Path,
    kernels: &[(Configuration, Target, Vec<u8>)],
    compress: impl Fn(&[u8]) -> io::Result<Vec<u8>>,
) -> io::Result<()> {
    let first = MAGIC.len() + 8 + kernels.len() * ENTRY;
    let (mut index, mut runs) = (Vec::new(), Vec::new());
    for run in kernels.chunks(RUN) {
        let texts: Vec<&[u8]> = run.iter().map(|(.., text)| &text[..]).collect();
        let compressed = compress(&texts.concat())?;
        let mut begin = 0;
        for (configuration, target, text) in run {
            index.extend(configuration.key(*target));
            for number in [first + runs.len(), compressed.len(), begin, text.len()] {
                index.extend((number as u64).to_le_bytes());
            }
            begin += text.len();
        }
        runs.extend(compressed);
    }
    let mut out = File::create(file)?;
    out.write_all(MAGIC)?;
    out.write_all(&(kernels.len() as u64).to_le_bytes())?;
    out.write_all(&index)?;
    out.write_all(&runs)
}

//! How packs of kernels are compressed.

use std::io::{self, Write};

use zstd::Encoder;

/// The best that is not slow; what it is worth is in the distance between texts that are alike.
const LEVEL: i32 = 19;
const LOG2_WINDOW: u32 = 24;

/// A frame of Zstandard with a checksum.
pub fn compress(texts: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = Encoder::new(Vec::new(), LEVEL)?;
    encoder.include_checksum(true)?;
    encoder.long_distance_matching(true)?;
    encoder.window_log(LOG2_WINDOW)?;
    encoder.write_all(texts)?;
    encoder.finish()
}

//! Shared memory of a block, and who was where in it.

use std::num::NonZeroU64;
use std::ops::Range;

/// A thread at a moment: between barriers of its block, and of its warp. In one number, because every word has four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who(NonZeroU64);

impl Who {
    /// A thread by its number in the block, when it has passed so many barriers of the block and of the warp.
    pub fn new(thread: u32, block_moment: u32, warp_moment: u32) -> Self {
        let moments = u64::from(block_moment & 0xff_ffff) << 24 | u64::from(warp_moment & 0xff_ffff);
        Self(NonZeroU64::new(u64::from(thread + 1) << 48 | moments).expect("threads are counted from 1 here"))
    }

    fn thread(self) -> u64 {
        (self.0.get() >> 48) - 1
    }

    fn warp(self) -> u64 {
        self.thread() / 32
    }

    fn block_moment(self) -> u64 {
        self.0.get() >> 24 & 0xff_ffff
    }

    fn warp_moment(self) -> u64 {
        self.0.get() & 0xff_ffff
    }

    /// Whether nothing orders what the other did and what this one does now.
    fn races(self, other: Self) -> bool {
        self.thread() != other.thread()
            && self.block_moment() == other.block_moment()
            && (self.warp() != other.warp() || self.warp_moment() == other.warp_moment())
    }
}

/// What happened last to a word of four bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    writer: Option<Who>,
    /// Who did both at once.
    updater: Option<Who>,
    reader: Option<Who>,
    /// Who read before the last reader, at the same moment of the block, if that was another warp.
    reader_of_another_warp: Option<Who>,
}

/// Bytes of a word.
const WORD: usize = 4;

/// Shared memory. Who accesses less than a word at a time is not watched.
#[derive(Debug)]
pub struct Shared {
    bytes: Vec<u8>,
    seen: Vec<Seen>,
}

impl Shared {
    /// So many bytes, as the next block finds them.
    pub fn new(bytes: usize) -> Self {
        // What nobody wrote is no number.
        Self { bytes: vec![0xff; bytes], seen: vec![Seen::default(); bytes.div_ceil(WORD)] }
    }

    fn range(&self, address: u64, bytes: usize) -> Result<Range<usize>, String> {
        let at = address as usize;
        let all = self.bytes.len();
        if !at.is_multiple_of(bytes) {
            return Err(format!("{bytes} bytes of shared memory at {at}, which is no multiple of them"));
        }
        match at.checked_add(bytes).filter(|&end| end <= all) {
            Some(end) => Ok(at..end),
            None => Err(format!("{bytes} bytes of shared memory at {at}, of {all} that there are")),
        }
    }

    /// Reads for a thread.
    pub fn read(&mut self, who: Who, address: u64, bytes: usize) -> Result<&[u8], String> {
        let range = self.range(address, bytes)?;
        for (at, seen) in watched(&mut self.seen, &range) {
            check(who, "reads", at, [(seen.writer, "wrote"), (seen.updater, "updated")])?;
            match seen.reader {
                Some(before)
                    if before.block_moment() == who.block_moment() && before.warp() != who.warp() =>
                {
                    seen.reader_of_another_warp = Some(before);
                }
                _ => {}
            }
            seen.reader = Some(who);
        }
        Ok(&self.bytes[range])
    }

    /// Writes for a thread. Several may write the same.
    pub fn write(&mut self, who: Who, address: u64, values: &[u8]) -> Result<(), String> {
        let range = self.range(address, values.len())?;
        for ((at, seen), word) in watched(&mut self.seen, &range).zip(values.chunks(WORD)) {
            if &self.bytes[at..at + WORD] != word {
                check(who, "writes", at, [(seen.writer, "wrote"), (seen.updater, "updated")])?;
                check(who, "writes", at, [(seen.reader, "read"), (seen.reader_of_another_warp, "read")])?;
            }
            seen.writer = Some(who);
        }
        self.bytes[range].copy_from_slice(values);
        Ok(())
    }

    /// Reads and writes at once, as several threads may.
    pub fn update(
        &mut self,
        who: Who,
        address: u64,
        bytes: usize,
        update: impl FnOnce(&[u8]) -> [u8; 8],
    ) -> Result<(), String> {
        let range = self.range(address, bytes)?;
        for (at, seen) in watched(&mut self.seen, &range) {
            check(who, "updates", at, [(seen.writer, "wrote"), (seen.reader, "read")])?;
            check(who, "updates", at, [(seen.reader_of_another_warp, "read")])?;
            seen.updater = Some(who);
        }
        let after = update(&self.bytes[range.clone()]);
        self.bytes[range].copy_from_slice(&after[..bytes]);
        Ok(())
    }
}

/// What happened to the words of a range, with where they lie.
fn watched<'a>(seen: &'a mut [Seen], range: &Range<usize>) -> impl Iterator<Item = (usize, &'a mut Seen)> {
    let first = range.start.div_ceil(WORD);
    let words = first..first.max(range.end / WORD);
    words.clone().map(|word| word * WORD).zip(&mut seen[words])
}

/// Whether what a thread does to a word may come before or after what others did, as it happens.
fn check<const N: usize>(
    who: Who,
    does: &str,
    at: usize,
    others: [(Option<Who>, &str); N],
) -> Result<(), String> {
    for (other, did) in others {
        if let Some(other) = other.filter(|other| who.races(*other)) {
            let (thread, before) = (who.thread(), other.thread());
            return Err(format!(
                "thread {thread} {does} word {at} of shared memory, which thread {before} {did} with no barrier between them"
            ));
        }
    }
    Ok(())
}

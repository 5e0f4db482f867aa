//! Shared memory of a block, and who was where in it.

use std::num::NonZeroU64;
use std::ops::Range;

/// A thread at a moment, between barriers of its block and of its warp, and whether others did the same since these: threads of
/// its warp, other warps. In one number, because every word has four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who(NonZeroU64);

const OF_THIS_WARP: u64 = 1 << 62;
const OF_OTHER_WARPS: u64 = 1 << 63;

impl Who {
    /// A thread by its number in the block, when it has passed so many barriers of the block and of the warp.
    pub fn new(thread: u32, block_moment: u32, warp_moment: u32) -> Self {
        let moments = u64::from(block_moment & 0xff_ffff) << 24 | u64::from(warp_moment & 0xff_ffff);
        Self(NonZeroU64::new(u64::from(thread + 1) << 48 | moments).expect("threads are counted from 1 here"))
    }

    fn thread(self) -> u64 {
        (self.0.get() >> 48 & 0xfff) - 1
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

    fn has(self, others: u64) -> bool {
        self.0.get() & others != 0
    }

    /// Whether nothing orders what the other did, or others with it, and what this one does now, not even barriers in shared
    /// memory.
    fn races(self, other: Self, order: &Order) -> bool {
        let is_other = self.thread() != other.thread() || other.has(OF_THIS_WARP);
        let is_unordered = match self.warp() == other.warp() {
            true => self.warp_moment() == other.warp_moment() && is_other,
            false => !order.is_before(other),
        };
        self.block_moment() == other.block_moment() && (is_unordered || other.has(OF_OTHER_WARPS))
    }

    /// This one, with those who did the same before it.
    fn after(self, before: Option<Self>, order: &Order) -> Self {
        let Some(before) = before.filter(|before| self.races(*before, order)) else { return self };
        let others = match self.warp() == before.warp() {
            true => OF_THIS_WARP | before.0.get() & OF_OTHER_WARPS,
            false => OF_OTHER_WARPS,
        };
        Self(self.0 | others)
    }
}

/// Of every warp of a block, the moments (of the warp) that lie before what another does now, as barriers in shared memory say:
/// those below a number.
#[derive(Debug, Clone, Default)]
pub struct Order(Vec<u32>);

impl Order {
    /// Those of a warp below this one are, too.
    pub fn add(&mut self, warp: usize, moment: u32) {
        self.0.resize(self.0.len().max(warp + 1), 0);
        self.0[warp] = self.0[warp].max(moment);
    }

    /// What is before another is, too.
    pub fn add_all(&mut self, other: &Self) {
        other.0.iter().enumerate().for_each(|(warp, &moment)| self.add(warp, moment));
    }

    fn is_before(&self, who: Who) -> bool {
        self.0.get(who.warp() as usize).is_some_and(|&moment| who.warp_moment() < u64::from(moment))
    }
}

/// Who last did what to a word of four bytes, beside who read it.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    writer: Option<Who>,
    /// Wrote some of its bytes: who writes others at the same time does not disturb.
    part_writer: Option<Who>,
    /// Read and wrote at once, as no other can come between.
    updater: Option<Who>,
}

/// Bytes of a word.
const WORD: usize = 4;

/// Shared memory.
#[derive(Debug)]
pub struct Shared {
    bytes: Vec<u8>,
    seen: Vec<Seen>,
    /// Of each word, of each warp, who last read it: many warps may have, and a barrier in shared memory may order each of them
    /// before who writes it next.
    readers: Vec<Option<Who>>,
    warps: usize,
}

impl Shared {
    /// So many bytes, as the next block, of so many warps, finds them.
    pub fn new(bytes: usize, warps: usize) -> Self {
        let words = bytes.div_ceil(WORD);
        // What nobody wrote is no number.
        let bytes = vec![0xff; bytes];
        Self { bytes, seen: vec![Seen::default(); words], readers: vec![None; words * warps], warps }
    }

    /// Where the readers of a word lie among those of all.
    fn readers_of(&self, at: usize) -> Range<usize> {
        let first = at / WORD * self.warps;
        first..first + self.warps
    }

    /// Whether a thread may write a word, as far as who read it is concerned.
    fn check_readers(&self, who: Who, order: &Order, does: &str, range: &Range<usize>) -> Result<(), String> {
        words(range).try_for_each(|at| {
            let mut readers = self.readers[self.readers_of(at)].iter();
            readers.try_for_each(|&reader| check(who, order, does, at, [(reader, "read")]))
        })
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

    /// Bytes that are copied for no thread, and forgets who was there.
    pub fn copied(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], String> {
        let range = self.range(address, bytes)?;
        for at in words(&range) {
            self.seen[at / WORD] = Seen::default();
            let readers = self.readers_of(at);
            self.readers[readers].fill(None);
        }
        Ok(&mut self.bytes[range])
    }

    /// Reads for a thread.
    pub fn read(&mut self, who: Who, order: &Order, address: u64, bytes: usize) -> Result<&[u8], String> {
        let range = self.range(address, bytes)?;
        for at in words(&range) {
            let seen = self.seen[at / WORD];
            let before = [(seen.writer, "wrote"), (seen.part_writer, "wrote"), (seen.updater, "updated")];
            check(who, order, "reads", at, before)?;
            let reader = self.readers_of(at).start + who.warp() as usize;
            self.readers[reader] = Some(who.after(self.readers[reader], order));
        }
        Ok(&self.bytes[range])
    }

    /// Writes for a thread. Several may write the same.
    pub fn write(&mut self, who: Who, order: &Order, address: u64, values: &[u8]) -> Result<(), String> {
        let range = self.range(address, values.len())?;
        let is_part = values.len() < WORD;
        for (at, word) in words(&range).zip(values.chunks(WORD)) {
            let start = at.max(range.start);
            let seen = self.seen[at / WORD];
            let parts = if is_part { None } else { seen.part_writer };
            if &self.bytes[start..start + word.len()] != word {
                let before = [(seen.writer, "wrote"), (parts, "wrote"), (seen.updater, "updated")];
                check(who, order, "writes", at, before)?;
                self.check_readers(who, order, "writes", &(at..at + WORD))?;
            }
            let seen = &mut self.seen[at / WORD];
            let writer = if is_part { &mut seen.part_writer } else { &mut seen.writer };
            *writer = Some(who.after(*writer, order));
        }
        self.bytes[range].copy_from_slice(values);
        Ok(())
    }

    /// Reads and writes at once, as several threads may.
    pub fn update(
        &mut self,
        who: Who,
        order: &Order,
        address: u64,
        bytes: usize,
        update: impl FnOnce(&[u8]) -> [u8; 8],
    ) -> Result<(), String> {
        let range = self.range(address, bytes)?;
        self.check_readers(who, order, "updates", &range)?;
        for at in words(&range) {
            let seen = &mut self.seen[at / WORD];
            check(who, order, "updates", at, [(seen.writer, "wrote"), (seen.part_writer, "wrote")])?;
            seen.updater = Some(who.after(seen.updater, order));
        }
        let after = update(&self.bytes[range.clone()]);
        self.bytes[range].copy_from_slice(&after[..bytes]);
        Ok(())
    }
}

/// Where the words of a range lie, or that which it lies in.
fn words(range: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    (range.start / WORD..range.end.div_ceil(WORD)).map(|word| word * WORD)
}

/// Whether what a thread does to a word may come before or after what others did, as it happens.
fn check<const N: usize>(
    who: Who,
    order: &Order,
    does: &str,
    at: usize,
    others: [(Option<Who>, &str); N],
) -> Result<(), String> {
    for (other, did) in others {
        if let Some(other) = other.filter(|other| who.races(*other, order)) {
            let (thread, before) = (who.thread(), other.thread());
            return Err(format!(
                "thread {thread} {does} word {at} of shared memory, which thread {before} (or others too) {did} with no barrier \
                 between them"
            ));
        }
    }
    Ok(())
}

//! What `seq_idx` says of every frame.

use super::memory::zeros;
use crate::{Error, Problem};

/// The frame belongs to no sequence: it yields zero and leaves the state.
pub const SKIP: u8 = 1;
/// The frame begins another sequence than the one before it, in the order of the scan.
pub const RESET: u8 = 2;
/// The frame ends a sequence: RESET for a scan from the other end.
pub const LAST: u8 = 4;

/// Whether a frame belongs to no sequence; each belongs to one where there are no marks.
#[inline(always)]
pub fn is_skipped(marks: Option<&[u8]>, t: usize) -> bool {
    marks.is_some_and(|marks| marks[t] & SKIP != 0)
}

/// Marks of all frames, {batch, seq}.
pub fn marks(problem: &Problem, seq_idx: &[i32]) -> Result<Vec<u8>, Error> {
    let mut marks = zeros(seq_idx.len())?;
    for (row, marks) in seq_idx.chunks_exact(problem.seq).zip(marks.chunks_exact_mut(problem.seq)) {
        let mut before: Option<usize> = None;
        for i in 0..problem.seq {
            let t = if problem.reverse { problem.seq - 1 - i } else { i };
            if row[t] < 0 {
                marks[t] = SKIP;
                continue;
            }
            if let Some(before) = before.filter(|&before| row[before] != row[t]) {
                marks[before] |= LAST;
                marks[t] |= RESET;
            }
            before = Some(t);
        }
    }
    Ok(marks)
}

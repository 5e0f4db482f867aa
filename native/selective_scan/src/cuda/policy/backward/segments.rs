//! Segments, which are scanned side by side: of how many frames they may be.

use std::collections::BTreeSet;
use std::iter::successors;

use super::layout::SPAN;
use crate::Problem;
use crate::cuda::policy::{Layout, blocks};

/// Segments beyond which a device, which has so many blocks at a time, is full.
pub(super) fn most_segments(problem: &Problem, layout: &Layout, chunk: usize, full: usize) -> usize {
    let blocks = problem.batch * blocks(problem, layout);
    (2 * full).div_ceil(blocks).min(problem.seq.div_ceil(chunk))
}

/// Frames that a segment may have, of up to `most` segments that are alike but for the last: whole chunks; or, where that is less,
/// whole tiles, or, where chunks are tiles, whole spans, more than a tile. Then segments begin within a chunk, whose states before that
/// are walked once more by every launch.
pub(super) fn segments(seq: usize, chunk: usize, tile: usize, most: usize) -> impl Iterator<Item = usize> {
    let (unit, least) = if chunk > tile { (chunk, tile) } else { (SPAN, SPAN) };
    segment_counts(seq.div_ceil(unit), most).flat_map(move |count| {
        let whole = seq.div_ceil(chunk).div_ceil(count) * chunk;
        let even = seq.div_ceil(count).next_multiple_of(least);
        let is_of_so_many = seq.div_ceil(whole) == count;
        let is_other = count > 1 && (tile + 1..whole).contains(&even);
        [is_of_so_many.then_some(whole), is_other.then_some(even)].into_iter().flatten()
    })
}

/// Whether a last segment of so many frames is short beside the others.
pub(super) const fn is_short(last: usize, segment: usize) -> bool {
    2 * last <= segment
}

/// Numbers of segments up to `most` that so many chunks can be dealt to, all but the last alike.
fn segment_counts(chunks: usize, most: usize) -> impl Iterator<Item = usize> {
    // The fewest whose share is smaller than that of so many.
    let next = move |&segments: &usize| match chunks.div_ceil(segments) {
        1 => None,
        each => Some(chunks.div_ceil(each - 1)),
    };
    successors(Some(1), next).take_while(move |&segments| segments <= most)
}

/// Frames that segments may have before a short one, whole tiles or chunks: as many as fill the device but for some places, in which
/// the short ones take turns, and end with the others. Adjoints are walked alone for fewer frames so, and no wave of blocks is nearly
/// empty.
pub(super) fn segments_before_short(
    problem: &Problem,
    layout: &Layout,
    chunk: usize,
    full: usize,
) -> BTreeSet<usize> {
    let (seq, tile, of_each) = (problem.seq, layout.tile, problem.batch * blocks(problem, layout));
    let (long, places) = (full / of_each, full % of_each);
    // No more segments than chunks, as where all are alike: a row of one chunk has no marks for several.
    let may = (1..seq.div_ceil(chunk)).contains(&long);
    // Where long segments fill the device, there are no places to take turns in.
    if !may || places == 0 {
        return BTreeSet::new();
    }
    // Short ones that a place walks in turn: between the mean and the most.
    let share = of_each as f64 / places as f64;
    let of_turns = |turns: f64| (seq as f64 / (long as f64 + turns.recip())).ceil() as usize;
    let of_step = |step: f64| of_turns(share + (share.ceil() - share) * step / 3.0);
    let frames = [0.0, 1.0, 2.0, 3.0].map(of_step);
    let fits = |segment: &usize| {
        let last = seq.saturating_sub(long * segment);
        last > 0 && is_short(last, *segment)
    };
    let whole = |frames: usize| [tile, chunk].map(|unit| frames.next_multiple_of(unit));
    frames.into_iter().flat_map(whole).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_chunks_or_fewer_tiles() {
        let tile = 32;
        for (seq, chunk) in [(2048_usize, 96_usize), (2050, 192), (65_536, 96), (60, 64)] {
            for most in 1..=seq.div_ceil(chunk) {
                let mut whole = seq.next_multiple_of(chunk);
                for segment in segments(seq, chunk, tile, most) {
                    let is_whole = segment.is_multiple_of(chunk);
                    assert!(
                        segment.is_multiple_of(tile) && seq.div_ceil(segment) <= most,
                        "{seq}, {chunk}: {segment}"
                    );
                    assert!(
                        is_whole || segment < whole && segment > whole - chunk,
                        "{seq}, {chunk}: {segment}"
                    );
                    whole = if is_whole { segment } else { whole };
                }
            }
        }
    }

    #[test]
    fn where_chunks_are_tiles_segments_are_whole_chunks_or_fewer_spans() {
        let chunk = 32;
        for seq in [70_usize, 197, 1000, 2047] {
            let most = seq.div_ceil(chunk);
            let all: Vec<_> = segments(seq, chunk, chunk, most).collect();
            for &segment in &all {
                let is_whole = segment.is_multiple_of(chunk);
                assert!(is_whole || segment.is_multiple_of(SPAN) && segment > chunk, "{seq}: {segment}");
                assert!(seq.div_ceil(segment) <= most, "{seq}: {segment}");
            }
            assert!(all.iter().any(|segment| !segment.is_multiple_of(chunk)), "{seq}: {all:?}");
        }
    }

    #[test]
    fn segments_are_counted_once_and_none_is_left_out() {
        for chunks in 1..80_usize {
            for most in 1..=chunks {
                let mut dealt: Vec<_> =
                    (1..=most).map(|count| chunks.div_ceil(chunks.div_ceil(count))).collect();
                dealt.dedup();
                let counts: Vec<_> = segment_counts(chunks, most).collect();
                assert_eq!(counts, dealt, "{chunks} chunks in {most} segments at most");
            }
        }
    }
}

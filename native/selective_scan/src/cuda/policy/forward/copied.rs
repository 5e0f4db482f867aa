//! Tiles that the device copies by itself, for bulk.cu, chunks.cu and relay.cu: what may be walked in them, and how they lie.

use super::bulk::BULK_SLOTS;
use crate::cuda::arguments::sweep_count;
use crate::cuda::policy::{Layout, Properties, changes_elements, real_bytes, unit, varying};
use crate::{ElementType, Problem};

/// What the engine that copies tiles wants the rows of a tensor to be a multiple of, in bytes, and a tensor to be aligned to.
pub(in crate::cuda::policy) const BULK_ALIGNMENT: usize = 16;

/// Places along an axis that the engine can be asked for, in 32 bits with a sign, tiles beyond the end included.
const MOST_PLACES: usize = 1 << 30;

/// Whether a walk finds sequences swizzled that it reads: bulk.cu wants those that one lane alone reads an element of, relay.cu none.
pub(in crate::cuda) fn swizzles_inputs(problem: &Problem, layout: &Layout) -> bool {
    changes_elements(problem) && layout.parts == 1
}

/// Whether the engine that takes its outputs away finds them so: it can do that to frames of up to 128 bytes.
pub(in crate::cuda) fn swizzles_outputs(problem: &Problem, layout: &Layout) -> bool {
    swizzles_inputs(problem, layout) || layout.channels * problem.element.size() == 128
}

/// Whether walks in copied tiles may be of several sweeps, if they are: y gathers in its elements, which 16 bits would round each time,
/// and which nobody finishes after the last.
pub(super) fn may_gather(problem: &Problem) -> bool {
    let gathers = problem.element == ElementType::F32 && !changes_elements(problem);
    gathers || sweep_count(problem, BULK_SLOTS) == 1
}

/// Whether blocks of one group of channels do not share their last box with the next.
pub(super) fn unit_fits(problem: &Problem, layout: &Layout) -> bool {
    unit(problem) == problem.dim || unit(problem).is_multiple_of(layout.channels)
}

impl Properties {
    /// Whether the device can copy a problem's operands by itself, in tiles of this layout.
    pub(super) fn copies_operands(&self, problem: &Problem, layout: &Layout) -> bool {
        let rows_fit = |elements: usize| (elements * problem.element.size()).is_multiple_of(BULK_ALIGNMENT);
        self.tensor_maps
            && real_bytes(problem) == 4
            && !problem.complex
            && varying(problem) == 2
            && rows_fit(problem.state)
            && rows_fit(problem.dim)
            && [problem.batch, problem.seq, problem.dim].iter().all(|&count| count <= MOST_PLACES)
            && unit_fits(problem, layout)
    }
}

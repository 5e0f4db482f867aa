//! Runs the blocks of a grid, one after the other.

use crate::engine::Barriers;
use crate::module::{Kernel, LANES, Module, Reduction};
use crate::shared::Shared;
use crate::warp::{Around, Stop, Warp};

/// Rounds of a block's warps in which all wait and nobody arrives at a barrier, after which nobody will. One is not enough: who looks twice
/// for what others write is taken to wait, and what is written there is not counted.
const PATIENCE: usize = 100;

/// What is to run.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Whose kernel it is.
    pub module: &'a Module,
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: usize,
    /// Shared memory that the launch asks for beside the module's own.
    pub shared_bytes: usize,
    /// The kernel's parameters, as they lie in memory.
    pub parameters: &'a [u8],
}

impl Launch<'_> {
    /// Runs it to its end, or says what went wrong and where.
    pub fn run(&self) -> Result<(), String> {
        let mut warps: Vec<Warp> =
            (0..self.threads.div_ceil(LANES)).map(|number| Warp::new(number, self)).collect();
        let [x, y, z] = self.grid;
        for block in (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z]))) {
            self.run_block(block, &mut warps)?;
        }
        Ok(())
    }

    fn run_block(&self, block: [u32; 3], warps: &mut [Warp]) -> Result<(), String> {
        let mut shared = Shared::new(self.module.shared_bytes + self.shared_bytes, warps.len());
        for warp in warps.iter_mut() {
            warp.restart(self);
        }
        let mut barriers = Barriers::default();
        loop {
            let mut waiting = Vec::new();
            let mut running = Vec::from_iter(0..warps.len());
            let mut rounds_in_vain = 0;
            while !running.is_empty() {
                let (before, count) = (barriers.changes, running.len());
                let mut unpassed = Vec::new();
                for number in running {
                    let mut around =
                        Around { launch: self, block, shared: &mut shared, barriers: &mut barriers };
                    let place = || format!("{}, block {block:?}, warp {number}", self.kernel.name);
                    let stop = warps[number].run(&mut around);
                    match stop.map_err(|reason| format!("{}, {reason}", place()))? {
                        Stop::Barrier => waiting.push(number),
                        Stop::Unpassed => unpassed.push(number),
                        Stop::End => {}
                    }
                }
                let in_vain = unpassed.len() == count && barriers.changes == before;
                rounds_in_vain = if in_vain { rounds_in_vain + 1 } else { 0 };
                if rounds_in_vain == PATIENCE {
                    return Err(format!(
                        "{}, block {block:?}: warps {unpassed:?} wait at barriers where nobody arrives, or for what nobody writes",
                        self.kernel.name
                    ));
                }
                running = unpassed;
            }
            if waiting.is_empty() {
                return Ok(());
            }
            let brought: Vec<_> = waiting.iter().map(|&number| warps[number].brings(self)).collect();
            let (reduction, ..) = brought[0];
            if brought.iter().any(|(other, ..)| *other != reduction) {
                return Err(format!(
                    "{}, block {block:?}: warps meet at barriers that differ",
                    self.kernel.name
                ));
            }
            let reduced = match reduction {
                Some(Reduction::All) => brought.iter().all(|(_, lanes, holds)| lanes == holds),
                _ => brought.iter().any(|(.., holds)| *holds != 0),
            };
            for number in waiting {
                warps[number].pass(self, reduced);
            }
        }
    }
}

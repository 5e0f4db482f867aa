//! Threads that are kept from call to call.

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The pool in `held`, which the first call makes, of so many threads (0: of one a core). None where the system has no threads for it:
/// the caller works alone then, and the next call tries again, as it could not with rayon's own pool.
pub fn pool(held: &'static OnceLock<ThreadPool>, threads: usize) -> Option<&'static ThreadPool> {
    if held.get().is_none() {
        let made = ThreadPoolBuilder::new().num_threads(threads).build().ok()?;
        held.get_or_init(|| made);
    }
    held.get()
}

//! Threads that are kept from call to call.

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The pool that is held there, made of so many threads (0: of one a core) if it is not yet. None where the system has no threads for
/// it: who asks works alone then, and the next call asks again. rayon's own pool would be lost for good.
pub fn pool(held: &'static OnceLock<ThreadPool>, threads: usize) -> Option<&'static ThreadPool> {
    if held.get().is_none() {
        let made = ThreadPoolBuilder::new().num_threads(threads).build().ok()?;
        held.get_or_init(|| made);
    }
    held.get()
}

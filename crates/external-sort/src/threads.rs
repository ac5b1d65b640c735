//! Work that several threads share.

use std::sync::{Mutex, PoisonError};

/// Calls `work` with each item on up to `threads` threads, one of which is the caller's. Where the system starts fewer
/// threads, these do all of the work.
pub fn for_each_on_threads<T: Send>(items: Vec<T>, threads: usize, work: impl Fn(T) + Sync) {
    let threads = threads.clamp(1, items.len().max(1));
    let queue = Mutex::new(items.into_iter());
    let one = || {
        loop {
            // A panic elsewhere leaves the queue whole: only `next` runs under the lock.
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(item) = next else { break };
            work(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            if std::thread::Builder::new().spawn_scoped(scope, one).is_err() {
                break;
            }
        }
        one();
    });
}

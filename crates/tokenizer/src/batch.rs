//! Many texts on several threads.
//!
//! Texts are cut at safe places into parts of at most about [`PART`] bytes and gathered into groups of about as many,
//! which the workers take in turn; so one huge document and a million tiny ones both keep all threads busy.
//! Threads are those the caller asks for, live for the call, and do not influence the result.

use crate::pretokenize::safe_parts;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a part and of a group.
const PART: usize = 256 << 10;

/// A piece of work: some bytes of one text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    /// Index of the text.
    pub(crate) text: usize,
    /// Bytes of it.
    pub(crate) bytes: &'a [u8],
}

/// Cuts texts into parts; `divisible` is false where a text must stay whole.
pub(crate) fn parts<'a, T: AsRef<[u8]>>(texts: &'a [T], divisible: bool) -> Vec<Part<'a>> {
    let mut parts = Vec::with_capacity(texts.len());
    for (text, bytes) in texts.iter().enumerate() {
        let bytes = bytes.as_ref();
        if divisible && bytes.len() > PART {
            parts.extend(safe_parts(bytes, PART).into_iter().map(|bytes| Part { text, bytes }));
        } else {
            parts.push(Part { text, bytes });
        }
    }
    parts
}

/// Runs `work` over groups of consecutive parts, each worker on its own thread (the first on the caller's).
pub(crate) fn share_out<W: Send>(
    parts: &[Part],
    workers: &mut [W],
    work: impl Fn(&mut W, Range<usize>) + Sync,
) {
    let mut groups = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, part) in parts.iter().enumerate() {
        bytes += part.bytes.len();
        if bytes >= PART || i + 1 == parts.len() {
            groups.push(start..i + 1);
            (start, bytes) = (i + 1, 0);
        }
    }
    let next = AtomicUsize::new(0);
    let run = |worker: &mut W| {
        while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(worker, group.clone());
        }
    };
    let useful = workers.len().min(groups.len());
    let Some((first, others)) = workers[..useful].split_first_mut() else { return };
    std::thread::scope(|scope| {
        for worker in others {
            scope.spawn(|| run(worker));
        }
        run(first);
    });
}

//! Winnowing (Schleimer, Wilkerson, Aiken 2003): few positions that stand for all windows.
//!
//! A window of T bytes holds w = T - k + 1 substrings of k bytes. The one with the lowest hash is its anchor. Equal
//! windows have equal lowest hashes, so a window whose lowest hash occurs at no other anchor repeats nowhere: of text
//! without repeats, one number for about w / 2 bytes is all that has to be compared. Neighbouring windows mostly
//! share their anchor; they make a *run*.
//!
//! Which of several equal lowest hashes is the anchor may depend on the text before the window; the hash does not,
//! and the hash alone is compared. Two equal windows within one run show themselves by that hash entering the run
//! a second time: the run is *tied* and counts as repeated by itself.

/// Windows of a run at most: 15 bits in a record. Longer runs are cut.
pub(super) const MOST_WINDOWS: usize = 1 << 14;
/// Base of the rolling hash: odd, bits spread.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;

/// Neighbouring windows with a common anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// Hash of the anchor's k bytes.
    pub(super) hash: u64,
    /// Start of the first window.
    pub(super) start: usize,
    /// How many windows.
    pub(super) windows: usize,
    /// The anchor's hash occurs twice in the run.
    pub(super) tied: bool,
}

/// Finds runs; holds the hashes of one chunk.
pub(super) struct Anchors {
    length: usize,
    piece: usize,
    /// BASE to the power of `piece`.
    leaving: u64,
    hashes: Vec<u64>,
}

/// Spreads the bits: the low bits of a polynomial modulo 2^64 know only the low bits of its bytes.
fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash ^ (hash >> 32)
}

impl Anchors {
    /// For windows of `length` bytes.
    pub(super) fn new(length: usize) -> Anchors {
        let piece = length.div_ceil(2);
        let leaving = (0..piece).fold(1u64, |power, _| power.wrapping_mul(BASE));
        Anchors { length, piece, leaving, hashes: Vec::new() }
    }

    /// Hands the runs of `text` to `take`, in order.
    pub(super) fn runs(&mut self, text: &[u8], mut take: impl FnMut(Run)) {
        let windows = (text.len() + 1).saturating_sub(self.length);
        for start in (0..windows).step_by(MOST_WINDOWS) {
            let count = MOST_WINDOWS.min(windows - start);
            let chunk = &text[start..start + count + self.length - 1];
            self.hash(chunk);
            self.chunk(count, |run| take(Run { start: run.start + start, ..run }));
        }
    }

    /// Hashes of all pieces of `chunk`.
    fn hash(&mut self, chunk: &[u8]) {
        self.hashes.clear();
        let (head, tail) = chunk.split_at(self.piece);
        let mut hash = 0u64;
        for &byte in head {
            hash = hash.wrapping_mul(BASE).wrapping_add(u64::from(byte) + 1);
        }
        self.hashes.push(mix(hash));
        let leaving = self.leaving;
        self.hashes.extend(chunk.iter().zip(tail).map(|(&old, &new)| {
            let change = (u64::from(new) + 1).wrapping_sub((u64::from(old) + 1).wrapping_mul(leaving));
            hash = hash.wrapping_mul(BASE).wrapping_add(change);
            mix(hash)
        }));
    }

    /// Runs of one chunk of `windows` windows.
    fn chunk(&self, windows: usize, mut take: impl FnMut(Run)) {
        let width = self.length - self.piece + 1;
        let hashes = &self.hashes[..windows + width - 1];
        let (mut anchor, mut run) = (0, Run { hash: 0, start: 0, windows: 0, tied: false });
        for window in 0..windows {
            let entering = hashes[window + width - 1];
            if window == 0 || anchor < window {
                if window > 0 {
                    take(Run { windows: window - run.start, ..run });
                }
                // The last of the lowest: it lives longest.
                let (mut lowest, mut at) = (u64::MAX, 0);
                for (index, &hash) in hashes[window..window + width].iter().enumerate() {
                    if hash <= lowest {
                        (lowest, at) = (hash, index);
                    }
                }
                anchor = window + at;
                run = Run { hash: lowest, start: window, windows: 0, tied: false };
            } else if entering < run.hash {
                take(Run { windows: window - run.start, ..run });
                anchor = window + width - 1;
                run = Run { hash: entering, start: window, windows: 0, tied: false };
            } else if entering == run.hash {
                run.tied = true;
            }
        }
        take(Run { windows: windows - run.start, ..run });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn runs(text: &[u8], length: usize) -> Vec<Run> {
        let mut found = Vec::new();
        Anchors::new(length).runs(text, |run| found.push(run));
        found
    }

    #[test]
    fn a_text_shorter_than_a_window_has_no_run() {
        assert_eq!(runs(b"abc", 4), []);
        assert_eq!(runs(b"abcd", 4).len(), 1);
    }

    #[test]
    fn constant_text_has_few_runs_and_they_are_tied() {
        let found = runs(&[7; 40_000], 100);
        assert!(found.len() < 40_000 / 40, "{}", found.len());
        assert!(runs(&[7; 101], 100).iter().all(|run| run.tied));
    }

    proptest! {
        /// Runs cover each window once, and windows that are equal are found again: by an equal hash of another
        /// run, or by a tie.
        #[test]
        fn equal_windows_have_equal_hashes_of_two_runs_or_a_tie(text in proptest::collection::vec(0u8..3, 0..300), length in 2usize..12) {
            let found = runs(&text, length);
            let mut next = 0;
            let mut groups: HashMap<&[u8], Vec<usize>> = HashMap::new();
            for (index, run) in found.iter().enumerate() {
                prop_assert_eq!(run.start, next);
                prop_assert!(run.windows > 0);
                next += run.windows;
                for start in run.start..next {
                    groups.entry(&text[start..start + length]).or_default().push(index);
                }
            }
            prop_assert_eq!(next, (text.len() + 1).saturating_sub(length));
            for group in groups.values().filter(|group| group.len() > 1) {
                for &run in group {
                    prop_assert_eq!(found[run].hash, found[group[0]].hash);
                }
                if group.iter().all(|run| run == &group[0]) {
                    prop_assert!(found[group[0]].tied);
                }
            }
        }
    }
}

//! The merge of sorted runs.

use crate::record::RecordUnit;
use std::cmp::Ordering;

/// A sorted sequence of records of which one is reached at a time.
pub trait SortedRun {
    /// Unit of the keys.
    type Unit: RecordUnit;
    /// Error of reading the run.
    type Error;

    /// Key of the record that was reached; `None` after the last one.
    fn key(&self) -> Option<&[Self::Unit]>;

    /// Goes on to the next record.
    ///
    /// # Errors
    /// The owner's.
    fn advance(&mut self) -> Result<(), Self::Error>;
}

/// A run with records left, in the heap.
#[derive(Clone, Copy)]
struct Candidate {
    prefix: u64,
    run: usize,
}

/// Merges runs: the records come in the order of their keys, those of equal key in the order of the runs.
pub struct Merge<R> {
    runs: Vec<R>,
    /// Binary heap; the smallest record is first.
    heap: Vec<Candidate>,
}

impl<R: SortedRun> Merge<R> {
    /// A merge of runs that have reached their first records.
    pub fn new(runs: Vec<R>) -> Self {
        let candidates = runs.iter().enumerate().filter_map(|(run, of)| {
            let key = of.key()?;
            Some(Candidate { prefix: R::Unit::prefix(key), run })
        });
        let heap: Vec<Candidate> = candidates.collect();
        let mut merge = Merge { runs, heap };
        (0..merge.heap.len() / 2).rev().for_each(|at| merge.sift_down(at));
        merge
    }

    /// Number of runs.
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Index of the run that has the smallest record.
    pub fn smallest(&self) -> Option<usize> {
        self.heap.first().map(|candidate| candidate.run)
    }

    /// The run of this index.
    pub fn run(&self, index: usize) -> &R {
        &self.runs[index]
    }

    /// Passes the smallest record.
    ///
    /// # Errors
    /// The run's.
    pub fn advance(&mut self) -> Result<(), R::Error> {
        let Some(first) = self.heap.first_mut() else { return Ok(()) };
        let run = &mut self.runs[first.run];
        run.advance()?;
        match run.key() {
            Some(key) => first.prefix = R::Unit::prefix(key),
            None => {
                self.heap.swap_remove(0);
            }
        }
        self.sift_down(0);
        Ok(())
    }

    fn less(&self, a: Candidate, b: Candidate) -> bool {
        let order = a.prefix.cmp(&b.prefix);
        let order = order.then_with(|| self.runs[a.run].key().cmp(&self.runs[b.run].key()));
        order.then(a.run.cmp(&b.run)) == Ordering::Less
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let mut child = 2 * at + 1;
            if child >= self.heap.len() {
                return;
            }
            if child + 1 < self.heap.len() && self.less(self.heap[child + 1], self.heap[child]) {
                child += 1;
            }
            if !self.less(self.heap[child], self.heap[at]) {
                return;
            }
            self.heap.swap(at, child);
            at = child;
        }
    }
}

/// Merges neighbouring runs until those that are left can be merged at once: `fits` says how many leading runs of a
/// list can, and two always may. The order of the runs is kept.
///
/// # Errors
/// Those of `merge`, which makes one run of several.
pub fn merge_in_groups<R, E>(
    mut runs: Vec<R>,
    fits: impl Fn(&[R]) -> usize,
    mut merge: impl FnMut(Vec<R>) -> Result<R, E>,
) -> Result<Vec<R>, E> {
    while runs.len() > 2 && fits(&runs) < runs.len() {
        let mut merged = Vec::new();
        while !runs.is_empty() {
            let rest = runs.split_off(fits(&runs).max(2).min(runs.len()));
            let mut group = std::mem::replace(&mut runs, rest);
            merged.push(if group.len() == 1 { group.remove(0) } else { merge(group)? });
        }
        runs = merged;
    }
    Ok(runs)
}

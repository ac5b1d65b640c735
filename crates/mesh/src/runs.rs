//! Runs of elements: where the shard of a rank lies in the whole tensor, element by element.

use crate::dim::DimRange;
use std::ops::Range;

/// Elements that are consecutive in the whole tensor as well as in a rank's shard of it (both row-major).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementRun {
    /// First element in the whole.
    pub whole: usize,
    /// First element in the shard.
    pub local: usize,
    /// Elements.
    pub len: usize,
}

impl ElementRun {
    /// Elements of the shard.
    pub fn locals(self) -> Range<usize> {
        self.local..self.local + self.len
    }

    /// Elements of the whole.
    pub fn wholes(self) -> Range<usize> {
        self.whole..self.whole + self.len
    }

    /// What of the run lies in `elements` of the whole tensor; `None` if nothing does.
    pub fn of_whole(self, elements: &Range<usize>) -> Option<ElementRun> {
        let start = self.whole.max(elements.start);
        let end = self.wholes().end.min(elements.end);
        (start < end).then(|| ElementRun {
            whole: start,
            local: self.local + start - self.whole,
            len: end - start,
        })
    }

    /// What of the run lies in `window`, a stretch of the shard that is looked at by itself: `local` then counts from its
    /// start. `None` if nothing does.
    pub fn within(self, window: &Range<usize>) -> Option<ElementRun> {
        let start = self.local.max(window.start);
        let end = self.locals().end.min(window.end);
        (start < end).then(|| ElementRun {
            whole: self.whole + start - self.local,
            local: start - window.start,
            len: end - start,
        })
    }
}

/// Elements of the shard that runs cover, with runs that touch there as one.
pub fn local_ranges(runs: &[ElementRun]) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for run in runs {
        match out.last_mut() {
            Some(last) if last.end == run.local => last.end += run.len,
            _ => out.push(run.locals()),
        }
    }
    out
}

/// The runs of a box of a tensor of this shape; the box has some ranges of every dim.
pub fn runs_of(shape: &[usize], ranges: &[Vec<DimRange>]) -> Vec<ElementRun> {
    let local_shape: Vec<usize> = ranges.iter().map(|r| crate::dim::total(r)).collect();
    let ranges: Vec<Vec<LocalRange>> = ranges.iter().map(|r| local(r)).collect();
    element_runs(shape, &local_shape, &ranges)
}

/// A range of a dim and where it begins in the shard's dim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalRange {
    pub(crate) whole: DimRange,
    pub(crate) local: usize,
}

impl LocalRange {
    /// Returns the part of the run that lies in `other`.
    pub(crate) fn within(self, other: DimRange) -> LocalRange {
        let whole = self.whole.common(other);
        LocalRange { whole, local: self.local + whole.start - self.whole.start }
    }
}

/// Ranges that lie one behind the other in the shard.
pub(crate) fn local(ranges: &[DimRange]) -> Vec<LocalRange> {
    let next = |next: &mut usize, whole: &DimRange| {
        *next += whole.len;
        Some(LocalRange { whole: *whole, local: *next - whole.len })
    };
    ranges.iter().scan(0, next).collect()
}

/// Contiguous runs, in row-major order, of the elements whose index lies in one of the given ranges in every dimension.
pub(crate) fn element_runs(
    whole_shape: &[usize],
    local_shape: &[usize],
    ranges: &[Vec<LocalRange>],
) -> Vec<ElementRun> {
    // Trailing dims of which the shard has all, and `ranges` too, only make the elements of the dim before them longer.
    let full = |d: &usize| {
        let all = |r: &LocalRange| r.whole.len == whole_shape[*d] && r.whole.len == local_shape[*d];
        matches!(&ranges[*d][..], [r] if all(r))
    };
    let inner = (1..whole_shape.len()).rev().take_while(full).count();
    let outer = whole_shape.len() - inner;
    let row: usize = whole_shape[outer..].iter().product();
    let mut runs = vec![ElementRun { whole: 0, local: 0, len: row }];
    for d in 0..outer {
        let last = d + 1 == outer;
        let mut next = Vec::new();
        for run in runs {
            for r in &ranges[d] {
                // Of all dims but the last each index begins runs of its own.
                let (step, count) = if last { (r.whole.len, 1) } else { (1, r.whole.len) };
                next.extend((0..count).map(|i| ElementRun {
                    whole: run.whole * whole_shape[d] + r.whole.start + i,
                    local: run.local * local_shape[d] + r.local + i,
                    len: step * row,
                }));
            }
        }
        runs = next;
    }
    for run in &mut runs {
        (run.whole, run.local) = (run.whole * row, run.local * row);
    }
    runs
}

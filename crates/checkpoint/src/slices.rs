//! Boxes of a tensor in global coordinates: do they cover it, and which of their elements are wanted.

use crate::format::checked_bytes;
use crate::manifest::{FileRecord, TensorRecord};
use bessemer_mesh::{BoxRange, box_runs, cover_once};

/// The name in a file of a box of a tensor: the tensor's if it is all of it, else with the ranges of the dims as Python writes
/// them, `w[0:4,8:16]`.
pub fn entry_name(tensor: &str, shape: &[usize], part: &BoxRange) -> String {
    if part.shape == shape {
        return tensor.into();
    }
    let range = |(start, len): (&usize, &usize)| format!("{start}:{}", start + len);
    let ranges: Vec<_> = part.start.iter().zip(&part.shape).map(range).collect();
    format!("{tensor}[{}]", ranges.join(","))
}

/// Checks that the slices of a tensor lie within their files and cover the tensor exactly once.
pub(crate) fn check(t: &TensorRecord, files: &[FileRecord]) -> Result<(), String> {
    let element = t.dtype.size() as u64;
    let total = checked_bytes(&t.shape, element)
        .ok_or_else(|| format!("the size of shape {:?} overflows", t.shape))?;
    let mut covered = 0u64;
    for (i, s) in t.slices.iter().enumerate() {
        let file = files
            .get(s.file)
            .ok_or_else(|| format!("slice {i} names file {}, there are {}", s.file, files.len()))?;
        if s.start.len() != t.shape.len() || s.shape.len() != t.shape.len() {
            return Err(format!(
                "slice {i} has start {:?} and shape {:?}, the tensor {:?}",
                s.start, s.shape, t.shape
            ));
        }
        let inside = (0..t.shape.len())
            .all(|d| s.start[d].checked_add(s.shape[d]).is_some_and(|end| end <= t.shape[d]));
        if !inside {
            return Err(format!("slice {i} at {:?} of {:?} reaches outside {:?}", s.start, s.shape, t.shape));
        }
        // Inside the tensor, whose size does not overflow unless another dim is 0.
        let bytes = checked_bytes(&s.shape, element);
        if bytes != Some(s.bytes) {
            return Err(format!("slice {i} of shape {:?} states {} bytes", s.shape, s.bytes));
        }
        if s.offset.checked_add(s.bytes).is_none_or(|end| end > file.bytes) {
            return Err(format!(
                "slice {i}: {} bytes at {} reach past the end of {:?}",
                s.bytes, s.offset, file.name
            ));
        }
        covered = covered.checked_add(s.bytes).ok_or("the sizes of the slices overflow")?;
    }
    if covered != total {
        return Err(format!("the slices cover {covered} of {total} bytes"));
    }
    cover_once(&t.shape, t.slices.iter().map(|s| (&s.start[..], &s.shape[..])))
}

/// Elements of a whole tensor that somebody wants, in the order in which they are wanted.
#[derive(Debug)]
pub struct Wanted {
    /// (first, how many, where they go), by the first.
    runs: Vec<(usize, usize, usize)>,
}

/// Elements that a slice has: where in the slice, where they go, how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// First, in the order of the box.
    pub local: usize,
    /// Position among the wanted elements.
    pub to: usize,
    /// How many.
    pub len: usize,
}

impl Wanted {
    /// `runs`: (first, how many) of a tensor of `elements`; they are `values` elements together.
    ///
    /// # Errors
    /// Elements that are wanted twice, are outside the tensor, or are not as many as `values`.
    pub fn new(runs: &[(usize, usize)], elements: usize, values: usize) -> Result<Wanted, String> {
        let mut to = 0;
        let mut wanted: Vec<_> = Vec::with_capacity(runs.len());
        for &(first, len) in runs {
            if first.checked_add(len).is_none_or(|end| end > elements) {
                return Err(format!("elements from {first} on, {len} of them, wanted of {elements}"));
            }
            wanted.push((first, len, to));
            to += len;
        }
        wanted.sort_unstable();
        if wanted.windows(2).any(|two| two[0].0 + two[0].1 > two[1].0) {
            return Err("elements wanted twice".into());
        }
        if to != values {
            return Err(format!("{to} elements, wanted {values} values"));
        }
        Ok(Wanted { runs: wanted })
    }

    /// What of it lies in a box of a tensor of this shape, in the order of the box.
    pub fn within(&self, shape: &[usize], part: &BoxRange) -> Vec<Copied> {
        let flat = |at: &dyn Fn(usize) -> usize| (0..shape.len()).fold(0, |n, d| n * shape[d] + at(d));
        if part.elements() == 0 {
            return Vec::new();
        }
        let first = flat(&|d| part.start[d]);
        let last = flat(&|d| part.start[d] + part.shape[d] - 1);
        let mut from = self.runs.partition_point(|r| r.0 + r.1 <= first);
        if self.runs.get(from).is_none_or(|r| r.0 > last) {
            return Vec::new();
        }
        let mut out: Vec<Copied> = Vec::new();
        for run in box_runs(shape, part) {
            let end = run.whole + run.len;
            while self.runs.get(from).is_some_and(|r| r.0 + r.1 <= run.whole) {
                from += 1;
            }
            for (first, len, to) in self.runs[from..].iter().take_while(|r| r.0 < end) {
                let start = run.whole.max(*first);
                let next = Copied {
                    local: run.local + start - run.whole,
                    to: to + start - first,
                    len: end.min(first + len) - start,
                };
                match out.last_mut() {
                    Some(last) if last.local + last.len == next.local && last.to + last.len == next.to => {
                        last.len += next.len;
                    }
                    _ => out.push(next),
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::SliceRecord;
    use bessemer_units::DType;

    /// Every way to cut a 3-dim tensor in two along each dim comes back whole, and so does every stretch of it.
    #[test]
    fn boxes_are_put_where_they_belong() {
        let global = [3usize, 4, 5];
        let mut stretches = vec![vec![(0, 60)], vec![(30, 20), (0, 7)], vec![(59, 1)]];
        stretches.push((0..12).map(|row| (row * 5 + 1, 3)).collect());
        for wanted in &stretches {
            let count = wanted.iter().map(|r| r.1).sum();
            let expected: Vec<usize> = wanted.iter().flat_map(|r| r.0..r.0 + r.1).collect();
            let wanted = Wanted::new(wanted, 60, count).unwrap();
            for dim in 0..3 {
                for cut in 0..=global[dim] {
                    let mut out = vec![usize::MAX; count];
                    for (first, count) in [(0, cut), (cut, global[dim] - cut)] {
                        let mut part = BoxRange::whole(&global);
                        (part.start[dim], part.shape[dim]) = (first, count);
                        let flat: Vec<usize> =
                            box_runs(&global, &part).into_iter().flat_map(|r| r.wholes()).collect();
                        for c in wanted.within(&global, &part) {
                            out[c.to..c.to + c.len].copy_from_slice(&flat[c.local..c.local + c.len]);
                        }
                    }
                    assert_eq!(out, expected, "dim {dim} cut {cut}");
                }
            }
        }
        let scalar = Wanted::new(&[(0, 1)], 1, 1).unwrap().within(&[], &BoxRange::whole(&[]));
        assert_eq!(scalar, [Copied { local: 0, to: 0, len: 1 }]);
        assert!(Wanted::new(&[(0, 2), (1, 2)], 4, 4).is_err());
        assert!(Wanted::new(&[(3, 2)], 4, 2).is_err());
        assert!(Wanted::new(&[(0, 2)], 4, 3).is_err());
    }

    #[test]
    fn slices_that_leave_a_gap_or_overlap_are_refused() {
        let file = |name: &str| FileRecord::whole(name.into(), 1000, String::new());
        let files = [file("a"), file("b")];
        let slice = |file, start: [usize; 2], shape: [usize; 2]| SliceRecord {
            file,
            offset: 0,
            bytes: (shape[0] * shape[1] * 4) as u64,
            start: start.to_vec(),
            shape: shape.to_vec(),
        };
        let check = |slices| {
            check(&TensorRecord { name: "t".into(), dtype: DType::F32, shape: vec![4, 4], slices }, &files)
        };
        check(vec![slice(0, [0, 0], [2, 4]), slice(1, [2, 0], [2, 4])]).unwrap();
        check(vec![slice(0, [0, 0], [2, 4]), slice(0, [2, 0], [2, 4])]).unwrap();
        let bad = [
            (vec![slice(0, [0, 0], [2, 4])], "cover"),
            (vec![slice(0, [0, 0], [3, 4]), slice(1, [2, 0], [2, 4])], "cover 80 of 64"),
            (vec![slice(0, [0, 0], [2, 4]), slice(1, [1, 0], [2, 4])], "overlap at [1, 0]"),
            (vec![slice(0, [0, 0], [2, 4]), slice(1, [3, 0], [2, 4])], "outside"),
            (vec![slice(2, [0, 0], [4, 4])], "there are 2"),
            (vec![slice(0, [usize::MAX, 0], [4, 4])], "outside"),
            (vec![SliceRecord { offset: u64::MAX, ..slice(0, [0, 0], [4, 4]) }], "past the end"),
            (vec![SliceRecord { bytes: 65, ..slice(0, [0, 0], [4, 4]) }], "states 65"),
        ];
        for (slices, word) in bad {
            let e = check(slices).unwrap_err();
            assert!(e.contains(word), "{e}");
        }
    }
}

//! Boxes of a tensor in global coordinates: do they cover it, and copying one into its place.

use crate::format::checked_bytes;
use crate::manifest::{FileRecord, SliceRecord, TensorRecord};
use bessemer_mesh::{DimRange, runs_of};

/// Most slices of one tensor; bounds the pairwise test for overlap.
const MAX_SLICES: usize = 512;

/// Checks that the slices of a tensor lie within their files and cover the tensor exactly once.
pub(crate) fn check(t: &TensorRecord, files: &[FileRecord]) -> Result<(), String> {
    let element = t.dtype.size() as u64;
    let total = checked_bytes(&t.shape, element)
        .ok_or_else(|| format!("the size of shape {:?} overflows", t.shape))?;
    if t.slices.len() > MAX_SLICES {
        return Err(format!("{} slices, at most {MAX_SLICES}", t.slices.len()));
    }
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
        for (j, other) in t.slices[..i].iter().enumerate() {
            if s.file == other.file {
                return Err(format!("slices {j} and {i} are in the same file"));
            }
            if overlap(s, other) {
                return Err(format!("slices {j} and {i} overlap"));
            }
        }
    }
    if covered != total {
        return Err(format!("the slices cover {covered} of {total} bytes"));
    }
    Ok(())
}

/// The elements of each dim that a slice has.
fn ranges<'a>(start: &'a [usize], shape: &'a [usize]) -> impl Iterator<Item = DimRange> + 'a {
    start.iter().zip(shape).map(|(start, len)| DimRange { start: *start, len: *len })
}

fn overlap(a: &SliceRecord, b: &SliceRecord) -> bool {
    let mut dims = ranges(&a.start, &a.shape).zip(ranges(&b.start, &b.shape));
    dims.all(|(a, b)| a.common(b).len > 0)
}

/// Copies `part`, a box of `shape` that begins at `start`, into `whole` of shape `global`, both row-major. The box lies
/// inside, as [`check`] has found.
pub(crate) fn place(part: &[f32], start: &[usize], shape: &[usize], global: &[usize], whole: &mut [f32]) {
    let ranges: Vec<Vec<DimRange>> = ranges(start, shape).map(|range| vec![range]).collect();
    for run in runs_of(global, &ranges) {
        whole[run.wholes()].copy_from_slice(&part[run.locals()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_units::DType;

    /// Every way to cut a 3-dim tensor in two along each dim comes back whole.
    #[test]
    fn boxes_are_put_where_they_belong() {
        let global = [3usize, 4, 5];
        let whole: Vec<f32> = (0..60).map(|i| i as f32).collect();
        for dim in 0..3 {
            for cut in 0..=global[dim] {
                let mut out = vec![-1.0; 60];
                for (first, count) in [(0, cut), (cut, global[dim] - cut)] {
                    let (mut start, mut shape) = ([0; 3], global);
                    (start[dim], shape[dim]) = (first, count);
                    let mut part = Vec::new();
                    for i in 0..shape[0] {
                        for j in 0..shape[1] {
                            for k in 0..shape[2] {
                                part.push(whole[((start[0] + i) * 4 + start[1] + j) * 5 + start[2] + k]);
                            }
                        }
                    }
                    place(&part, &start, &shape, &global, &mut out);
                }
                assert_eq!(out, whole, "dim {dim} cut {cut}");
            }
        }
        let mut scalar = [0.0];
        place(&[7.0], &[], &[], &[], &mut scalar);
        assert_eq!(scalar, [7.0]);
    }

    #[test]
    fn slices_that_leave_a_gap_or_overlap_are_refused() {
        let file = |name: &str| FileRecord { name: name.into(), bytes: 1000, blake3: String::new() };
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
        let bad = [
            (vec![slice(0, [0, 0], [2, 4])], "cover"),
            (vec![slice(0, [0, 0], [3, 4]), slice(1, [2, 0], [2, 4])], "overlap"),
            (vec![slice(0, [0, 0], [2, 4]), slice(1, [3, 0], [2, 4])], "outside"),
            (vec![slice(0, [0, 0], [2, 4]), slice(0, [2, 0], [2, 4])], "same file"),
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

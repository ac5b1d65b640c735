//! Boxes of a tensor in global coordinates: what a stretch of a shard is in the whole tensor, and whether boxes cover it once.

use crate::dim::DimRange;
use crate::runs::{ElementRun, runs_of};

/// Most corners that [`cover_once`] compares: 16 bytes each.
const MOST_CORNERS: usize = 1 << 22;

/// A box of a tensor: its elements, row-major, are consecutive wherever the box is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxRange {
    /// First element in each dim.
    pub start: Vec<usize>,
    /// Elements in each dim.
    pub shape: Vec<usize>,
}

impl BoxRange {
    /// All of a tensor.
    pub fn whole(shape: &[usize]) -> BoxRange {
        BoxRange { start: vec![0; shape.len()], shape: shape.to_vec() }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether `next`, stored right behind this box, makes one box with it, which then takes its place.
    fn extend(&mut self, next: &BoxRange) -> bool {
        let differs = |d: &usize| self.start[*d] != next.start[*d] || self.shape[*d] != next.shape[*d];
        let mut dims = (0..self.shape.len()).filter(differs);
        let (Some(dim), None) = (dims.next(), dims.next()) else { return false };
        // In the dims before it the boxes have one index, so that the elements of the second follow those of the first.
        let outer = self.shape[..dim].iter().all(|n| *n == 1);
        let touches = self.start[dim] + self.shape[dim] == next.start[dim];
        if outer && touches {
            self.shape[dim] += next.shape[dim];
        }
        outer && touches
    }
}

/// The boxes whose elements, one box after the other, are those of `runs` (first element of the whole tensor, how many). There
/// are few of them where runs are rows of a box, and at most 2n - 1 for one run of a tensor of n dims.
pub fn boxes_of(shape: &[usize], runs: &[(usize, usize)]) -> Vec<BoxRange> {
    let mut boxes: Vec<BoxRange> = Vec::new();
    let mut push = |mut next: BoxRange| {
        while let Some(mut last) = boxes.pop() {
            if !last.extend(&next) {
                boxes.push(last);
                break;
            }
            next = last;
        }
        boxes.push(next);
    };
    for &(first, len) in runs {
        let (mut at, end) = (first, first + len);
        while at < end {
            let next = largest_box(shape, at, end - at);
            at += next.elements();
            push(next);
        }
    }
    boxes
}

/// The largest box that consists of the first of `len` elements from flat position `at` on.
fn largest_box(shape: &[usize], at: usize, len: usize) -> BoxRange {
    let mut found = BoxRange { start: vec![0; shape.len()], shape: vec![1; shape.len()] };
    let mut rest = at;
    for d in (0..shape.len()).rev() {
        (found.start[d], rest) = (rest % shape[d], rest / shape[d]);
    }
    let mut row = 1;
    for d in (0..shape.len()).rev() {
        found.shape[d] = (shape[d] - found.start[d]).min(len / row);
        if found.shape[d] < shape[d] {
            break;
        }
        row *= shape[d];
        if len / row == 0 {
            break;
        }
    }
    found
}

/// The runs of a box in the whole tensor.
pub fn box_runs(shape: &[usize], part: &BoxRange) -> Vec<ElementRun> {
    let range = |(start, len): (&usize, &usize)| vec![DimRange { start: *start, len: *len }];
    let ranges: Vec<_> = part.start.iter().zip(&part.shape).map(range).collect();
    runs_of(shape, &ranges)
}

/// Checks that boxes, which lie within a tensor of this shape, cover each of its elements exactly once.
///
/// A sum of boxes is known by its corners: each box adds 1 at a corner with an even number of upper bounds and takes 1 away at
/// the others (its mixed difference), and two sums are the same function exactly if they are the same at every corner. So the
/// corners of all boxes are sorted and summed, and only those of the whole tensor may be left: time n log n of n corners,
/// where comparing boxes with each other would take the square.
///
/// # Errors
/// An element that is covered never or more than once, or more corners than are compared.
pub fn cover_once<'a>(
    shape: &[usize],
    boxes: impl Iterator<Item = (&'a [usize], &'a [usize])>,
) -> Result<(), String> {
    if shape.contains(&0) {
        return Ok(());
    }
    let whole = BoxRange::whole(shape);
    let mut all: Vec<(&[usize], &[usize])> = boxes.collect();
    // A dim of which every box has all tells nothing apart.
    let is_cut = |d: &usize| all.iter().any(|(_, len)| len[*d] != shape[*d]);
    let cut: Vec<usize> = (0..shape.len()).filter(is_cut).collect();
    all.push((&whole.start, &whole.shape));
    let corners = 1usize << cut.len();
    let count = all.len().saturating_mul(corners);
    if count > MOST_CORNERS {
        return Err(format!("{count} corners of slices, at most {MOST_CORNERS} are compared"));
    }
    let mut sums: Vec<(u64, i32)> = Vec::with_capacity(count);
    for (number, (start, len)) in all.iter().enumerate() {
        for corner in 0..corners {
            let (mut key, mut sign) = (0u64, 1);
            for (bit, d) in cut.iter().enumerate() {
                let upper = corner >> bit & 1 == 1;
                let place = start[*d] + if upper { len[*d] } else { 0 };
                let next = key.checked_mul(shape[*d] as u64 + 1).and_then(|k| k.checked_add(place as u64));
                key = next.ok_or_else(|| format!("the positions in shape {shape:?} overflow"))?;
                if upper {
                    sign = -sign;
                }
            }
            // The whole tensor's are taken away.
            let of_whole = number + 1 == all.len();
            sums.push((key, if of_whole { -sign } else { sign }));
        }
    }
    sums.sort_unstable_by_key(|s| s.0);
    let balanced = |same: &[(u64, i32)]| same.iter().map(|s| i64::from(s.1)).sum::<i64>() == 0;
    match sums.chunk_by(|a, b| a.0 == b.0).find(|same| !balanced(same)) {
        None => Ok(()),
        Some(same) => {
            let mut rest = same[0].0;
            let mut place = vec![0; shape.len()];
            for d in cut.iter().rev() {
                place[*d] = (rest % (shape[*d] as u64 + 1)) as usize;
                rest /= shape[*d] as u64 + 1;
            }
            Err(format!("the slices leave a gap or overlap at {place:?} of shape {shape:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flat elements of boxes, one after the other.
    fn elements(shape: &[usize], boxes: &[BoxRange]) -> Vec<usize> {
        let runs = boxes.iter().flat_map(|b| {
            let runs = box_runs(shape, b);
            assert_eq!(runs.iter().map(|r| r.len).sum::<usize>(), b.elements());
            runs
        });
        runs.flat_map(ElementRun::wholes).collect()
    }

    fn covers(shape: &[usize], boxes: &[BoxRange]) -> Result<(), String> {
        cover_once(shape, boxes.iter().map(|b| (&b.start[..], &b.shape[..])))
    }

    #[test]
    fn every_stretch_of_a_tensor_is_a_few_boxes() {
        for shape in [vec![7], vec![4, 5], vec![3, 1, 4], vec![2, 3, 4], vec![2, 2, 2, 2]] {
            let total: usize = shape.iter().product();
            for first in 0..total {
                for len in 1..=total - first {
                    let boxes = boxes_of(&shape, &[(first, len)]);
                    let wanted: Vec<usize> = (first..first + len).collect();
                    assert_eq!(elements(&shape, &boxes), wanted, "{shape:?} {first} {len}");
                    assert!(boxes.len() < 2 * shape.len(), "{shape:?} {first} {len}: {boxes:?}");
                }
            }
        }
        assert_eq!(boxes_of(&[], &[(0, 1)]), [BoxRange::whole(&[])]);
    }

    #[test]
    fn rows_of_a_column_shard_are_one_box() {
        let rows: Vec<_> = (0..6).map(|row| (row * 10 + 3, 4)).collect();
        assert_eq!(boxes_of(&[6, 10], &rows), [BoxRange { start: vec![0, 3], shape: vec![6, 4] }]);
        // Planes of a box of three dims.
        let runs: Vec<_> = (0..2).flat_map(|e| (1..3).map(move |r| (e * 20 + r * 5 + 1, 2))).collect();
        assert_eq!(boxes_of(&[2, 4, 5], &runs), [BoxRange { start: vec![0, 1, 1], shape: vec![2, 2, 2] }]);
        // Blocks that do not touch stay apart, in their order.
        let blocks = boxes_of(&[12, 4], &[(32, 8), (0, 8)]);
        assert_eq!(blocks.iter().map(|b| b.start[0]).collect::<Vec<_>>(), [8, 0]);
    }

    /// Partitions into random stretches pass; with any one box left out, given twice, or moved, they do not. Overlaps that have
    /// the right number of elements are found too.
    #[test]
    fn covering_once_is_told_from_everything_else() {
        let mut seed = 7u64;
        let mut draw = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % n
        };
        for shape in [vec![12], vec![5, 6], vec![3, 4, 5]] {
            let total: usize = shape.iter().product();
            for _ in 0..40 {
                let (mut boxes, mut at) = (Vec::new(), 0);
                while at < total {
                    let len = (1 + draw(total / 2)).min(total - at);
                    boxes.extend(boxes_of(&shape, &[(at, len)]));
                    at += len;
                }
                covers(&shape, &boxes).unwrap();
                let one = draw(boxes.len());
                let mut less = boxes.clone();
                let taken = less.remove(one);
                covers(&shape, &less).unwrap_err();
                let mut more = boxes.clone();
                more.push(taken);
                covers(&shape, &more).unwrap_err();
                let mut moved = boxes.clone();
                let d = draw(shape.len());
                if moved[one].shape[d] < shape[d] {
                    let room = shape[d] - moved[one].shape[d];
                    let other = (moved[one].start[d] + 1) % (room + 1);
                    if other != moved[one].start[d] {
                        moved[one].start[d] = other;
                        covers(&shape, &moved).unwrap_err();
                    }
                }
            }
        }
        let half = |row: usize| BoxRange { start: vec![row, 0], shape: vec![2, 4] };
        let e = covers(&[4, 4], &[half(0), half(1)]).unwrap_err();
        assert!(e.contains("[1, 0]"), "{e}");
        covers(&[4, 4], &[half(0), half(2)]).unwrap();
        covers(&[], &[BoxRange::whole(&[])]).unwrap();
        covers(&[], &[]).unwrap_err();
        covers(&[3, 0], &[]).unwrap();
    }

    /// 100,000 slices of one tensor take a moment: comparing each with each would take 5 billion comparisons.
    #[test]
    fn many_slices_are_checked_without_comparing_each_with_each() {
        let n = 100_000;
        let boxes: Vec<_> = (0..n).map(|i| BoxRange { start: vec![i, 0], shape: vec![1, 3] }).collect();
        covers(&[n, 3], &boxes).unwrap();
        covers(&[n, 3], &boxes[1..]).unwrap_err();
    }
}

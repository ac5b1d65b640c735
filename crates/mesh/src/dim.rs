//! How a dim of a tensor is sharded: evenly block by block, or in parts whose lengths are given.

use crate::axis::Axis;

/// Elements `start .. start + len` of a dim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DimRange {
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl DimRange {
    /// One behind the last element.
    pub fn end(self) -> usize {
        self.start + self.len
    }

    /// Returns the elements as a standard range.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start..self.end()
    }

    /// Elements of both; empty if there are none.
    pub fn common(self, other: DimRange) -> DimRange {
        let start = self.start.max(other.start);
        DimRange { start, len: self.end().min(other.end()).saturating_sub(start) }
    }
}

/// Part `index` of `len` elements over `parts` parts, the first `len % parts` of which have one more.
///
/// # Panics
/// If `index` is no part.
pub fn even(len: usize, parts: usize, index: usize) -> DimRange {
    assert!(index < parts, "part {index} of {parts}");
    let (each, more) = (len / parts, len % parts);
    DimRange { start: index * each + index.min(more), len: each + usize::from(index < more) }
}

/// Consecutive elements of a dim that are sharded by themselves, between units that stay whole: one head of several rows,
/// or one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// Number of units.
    pub units: usize,
    /// Elements of a unit.
    pub unit: usize,
    /// What happens where there are more parts than units. If true, the axis splits into two sub-axes: the major one shards
    /// the units, the minor one replicates them (key and value heads). If false, parts beyond the units are empty.
    pub replicated: bool,
}

impl Block {
    /// Elements that may be sharded anywhere.
    pub fn plain(len: usize) -> Block {
        Block { units: len, unit: 1, replicated: false }
    }

    /// Heads that stay whole, and are replicated where there are fewer than parts.
    pub fn heads(heads: usize, head_dim: usize) -> Block {
        Block { units: heads, unit: head_dim, replicated: true }
    }

    /// Elements.
    pub fn len(self) -> usize {
        self.units * self.unit
    }

    /// True if there is no element.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Elements of part `index`, counted from the block's first.
    pub fn part(self, parts: usize, index: usize) -> DimRange {
        let units = if self.is_replicated(parts) {
            DimRange { start: index * self.units / parts, len: 1 }
        } else {
            even(self.units, parts, index)
        };
        DimRange { start: units.start * self.unit, len: units.len * self.unit }
    }

    /// Length of the minor sub-axis over `parts` (a multiple of the units): consecutive parts that hold the same unit; 1 if
    /// no two do.
    pub fn replicas(self, parts: usize) -> usize {
        if self.is_replicated(parts) { parts / self.units } else { 1 }
    }

    fn is_replicated(self, parts: usize) -> bool {
        self.replicated && parts > self.units && self.units > 0
    }

    /// True if no part before `index` has the same elements.
    fn is_first(self, parts: usize, index: usize) -> bool {
        !self.is_replicated(parts) || index == 0 || self.part(parts, index) != self.part(parts, index - 1)
    }
}

/// Consecutive elements of a dim with explicit ownership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnedChunk {
    /// Position of the owner on the axis.
    pub owner: usize,
    /// Elements.
    pub len: usize,
}

/// A dim of a tensor: blocks one behind the other. A fused tensor has several (queries, keys, values; gate, up), each of
/// which is sharded by itself, so a part of the dim is a list of ranges. Instead of even parts a dim may have owners.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The blocks, in order.
    pub blocks: Vec<Block>,
    /// The one axis that may shard the dim, and who owns which elements there; `None`: any axis, evenly.
    owners: Option<(Axis, Vec<OwnedChunk>)>,
}

impl Dim {
    /// One block that may be sharded anywhere.
    pub fn plain(len: usize) -> Dim {
        Dim::of([Block::plain(len)])
    }

    /// Several blocks.
    pub fn of(blocks: impl IntoIterator<Item = Block>) -> Dim {
        Dim { blocks: blocks.into_iter().collect(), owners: None }
    }

    /// A dim that only `axis` may shard, in chunks that are owned by ranks of it: ZeRO's flat unit whose parts end where
    /// matrices end, or the zig-zag order of context parallelism.
    pub fn owned(axis: Axis, chunks: impl IntoIterator<Item = OwnedChunk>) -> Dim {
        let chunks: Vec<OwnedChunk> = chunks.into_iter().collect();
        let len = chunks.iter().map(|c| c.len).sum();
        Dim { owners: Some((axis, chunks)), ..Dim::plain(len) }
    }

    /// A dim of which the rank at position i of `axis` owns the next `lengths[i]` elements.
    pub fn owned_lengths(axis: Axis, lengths: impl IntoIterator<Item = usize>) -> Dim {
        let chunk = |(owner, len)| OwnedChunk { owner, len };
        Dim::owned(axis, lengths.into_iter().enumerate().map(chunk))
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.blocks.iter().map(|b| b.len()).sum()
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole dim as ranges.
    pub fn whole(&self) -> Vec<DimRange> {
        joined([DimRange { start: 0, len: self.len() }])
    }

    /// Elements of part `index`: ascending, no range empty, no two that touch.
    pub fn part(&self, parts: usize, index: usize) -> Vec<DimRange> {
        self.part_where(parts, index, |_| true)
    }

    /// The elements of part `index` that no part before it has.
    pub(crate) fn first_part(&self, parts: usize, index: usize) -> Vec<DimRange> {
        self.part_where(parts, index, |block| block.is_first(parts, index))
    }

    /// Returns part `index` as a dim of its own: the blocks, each with the units that are there.
    pub fn of_part(&self, parts: usize, index: usize) -> Dim {
        let of = |block: &Block| Block { units: block.part(parts, index).len / block.unit.max(1), ..*block };
        if self.owners.is_some() {
            Dim::plain(total(&self.part(parts, index)))
        } else {
            Dim::of(self.blocks.iter().map(of))
        }
    }

    /// Returns consecutive elements as a dim of its own. A block of which some elements are outside stays one of its kind if whole
    /// units are left.
    pub fn of_range(&self, range: DimRange) -> Dim {
        let mut start = 0;
        let within = self.blocks.iter().filter_map(|block| {
            start += block.len();
            let len = range.common(DimRange { start: start - block.len(), len: block.len() }).len;
            let kept = match len.is_multiple_of(block.unit.max(1)) {
                true => Block { units: len / block.unit.max(1), ..*block },
                false => Block::plain(len),
            };
            (len > 0).then_some(kept)
        });
        Dim::of(within.collect::<Vec<_>>())
    }

    fn part_where(&self, parts: usize, index: usize, keep: impl Fn(Block) -> bool) -> Vec<DimRange> {
        let mut first = 0;
        let mut next = |len: usize| {
            first += len;
            first - len
        };
        if let Some((_, chunks)) = &self.owners {
            let all = chunks.iter().map(|c| (c.owner, DimRange { start: next(c.len), len: c.len }));
            return joined(all.filter(|c| c.0 == index).map(|c| c.1));
        }
        joined(self.blocks.iter().filter_map(|block| {
            let (start, part) = (next(block.len()), block.part(parts, index));
            keep(*block).then(|| DimRange { start: start + part.start, len: part.len })
        }))
    }

    /// Why `axes`, of these degrees and in this order, cannot shard the dim.
    pub(crate) fn problem(&self, axes: &[(Axis, usize)]) -> Option<String> {
        let (&(first, parts), (only, chunks)) = (axes.first()?, self.owners.as_ref()?);
        if let Some((other, _)) = axes.iter().find(|a| a.0 != *only) {
            return Some(format!("has owners along {only}, but is sharded over {other}"));
        }
        let last = chunks.iter().map(|c| c.owner).max()?;
        (last >= parts).then(|| format!("has an owner {last} along {first}, which has {parts} ranks"))
    }
}

/// Elements of these ranges together.
pub fn total(ranges: &[DimRange]) -> usize {
    ranges.iter().map(|s| s.len).sum()
}

/// Part `index` of the elements of `ranges`, divided evenly as if they were consecutive.
pub(crate) fn even_of(ranges: &[DimRange], parts: usize, index: usize) -> Vec<DimRange> {
    let wanted = even(total(ranges), parts, index);
    let mut passed = 0;
    joined(ranges.iter().map(|range| {
        let here = wanted.common(DimRange { start: passed, len: range.len });
        let start = range.start + here.start.saturating_sub(passed);
        passed += range.len;
        DimRange { start, len: here.len }
    }))
}

/// Without empty ranges, and those that touch as one.
pub(crate) fn joined(ranges: impl IntoIterator<Item = DimRange>) -> Vec<DimRange> {
    let mut out: Vec<DimRange> = Vec::new();
    for range in ranges.into_iter().filter(|s| s.len > 0) {
        match out.last_mut() {
            Some(last) if last.end() == range.start => last.len += range.len,
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ranges: &[DimRange]) -> Vec<(usize, usize)> {
        ranges.iter().map(|s| (s.start, s.len)).collect()
    }

    #[test]
    fn uneven_parts_are_longer_at_the_front() {
        let lens: Vec<_> = (0..4).map(|i| even(10, 4, i)).map(|s| (s.start, s.len)).collect();
        assert_eq!(lens, [(0, 3), (3, 3), (6, 2), (8, 2)]);
        assert_eq!(even(2, 4, 3), DimRange { start: 2, len: 0 });
    }

    /// 4 query heads and 2 key and value heads of 3 rows.
    #[test]
    fn a_fused_dim_is_sharded_block_by_block() {
        let qkv = Dim::of([Block::heads(4, 3), Block::heads(2, 3), Block::heads(2, 3)]);
        assert_eq!(pairs(&qkv.part(2, 0)), [(0, 6), (12, 3), (18, 3)]);
        assert_eq!(pairs(&qkv.part(2, 1)), [(6, 6), (15, 3), (21, 3)]);
        // More parts than key heads: parts 2 and 3 hold replicas of head 1, and part 2 is the first.
        assert_eq!(pairs(&qkv.part(4, 2)), [(6, 3), (15, 3), (21, 3)]);
        assert_eq!(pairs(&qkv.part(4, 3)), [(9, 3), (15, 3), (21, 3)]);
        assert_eq!(pairs(&qkv.first_part(4, 2)), [(6, 3), (15, 3), (21, 3)]);
        assert_eq!(pairs(&qkv.first_part(4, 3)), [(9, 3)]);
        assert_eq!(qkv.blocks[1].replicas(4), 2);
        assert_eq!(pairs(&qkv.part(1, 0)), [(0, 24)]);
    }

    #[test]
    fn a_second_axis_divides_what_the_first_left_as_consecutive_elements() {
        let first = [DimRange { start: 0, len: 4 }, DimRange { start: 10, len: 3 }];
        assert_eq!(pairs(&even_of(&first, 2, 0)), [(0, 4)]);
        assert_eq!(pairs(&even_of(&first, 2, 1)), [(10, 3)]);
        assert_eq!(pairs(&even_of(&first, 3, 1)), [(3, 1), (10, 1)]);
    }

    #[test]
    fn owners_have_what_they_were_given() {
        let flat = Dim::owned_lengths(Axis::Shard, [5, 0, 3]);
        assert_eq!(
            (0..3).map(|i| pairs(&flat.part(3, i))).collect::<Vec<_>>(),
            [vec![(0, 5)], vec![], vec![(5, 3)]]
        );
        // Zig-zag: rank i of c has chunks i and 2c - 1 - i.
        let chunks = (0..4).map(|i: usize| OwnedChunk { owner: i.min(3 - i), len: 2 });
        let zigzag = Dim::owned(Axis::Context, chunks);
        assert_eq!(pairs(&zigzag.part(2, 0)), [(0, 2), (6, 2)]);
        assert_eq!(pairs(&zigzag.part(2, 1)), [(2, 4)]);
        let wrong = flat.problem(&[(Axis::Shard, 2)]).unwrap();
        assert!(wrong.contains("owner 2 along shard, which has 2"), "{wrong}");
        let wrong = flat.problem(&[(Axis::Tensor, 3)]).unwrap();
        assert!(wrong.contains("owners along shard, but is sharded over tensor"), "{wrong}");
        assert!(flat.problem(&[(Axis::Shard, 3)]).is_none() && flat.problem(&[]).is_none());
    }
}

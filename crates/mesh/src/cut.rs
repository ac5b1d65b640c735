//! How a dim of a tensor is cut into parts.

/// Elements `start .. start + len` of a dim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Span {
    /// One behind the last element.
    pub fn end(self) -> usize {
        self.start + self.len
    }

    /// As a range.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start..self.end()
    }
}

/// Part `index` of `len` elements over `parts` parts, the first `len % parts` of which have one more.
///
/// # Panics
/// If `index` is no part.
pub fn even(len: usize, parts: usize, index: usize) -> Span {
    assert!(index < parts, "part {index} of {parts}");
    let (each, more) = (len / parts, len % parts);
    Span { start: index * each + index.min(more), len: each + usize::from(index < more) }
}

/// A stretch of a dim that is cut by itself, between units that stay whole: one head of several rows, or one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// Number of units.
    pub units: usize,
    /// Elements of a unit.
    pub unit: usize,
    /// What happens where there are more parts than units: part i has a copy of unit `i units / parts` (key and value
    /// heads), or else parts beyond the units are empty.
    pub copied: bool,
}

impl Block {
    /// Elements that may be cut anywhere.
    pub fn plain(len: usize) -> Block {
        Block { units: len, unit: 1, copied: false }
    }

    /// Heads that stay whole, and are copied where there are fewer than parts.
    pub fn heads(heads: usize, head_dim: usize) -> Block {
        Block { units: heads, unit: head_dim, copied: true }
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
    pub fn cut(self, parts: usize, index: usize) -> Span {
        let units = if self.copied && parts > self.units && self.units > 0 {
            Span { start: index * self.units / parts, len: 1 }
        } else {
            even(self.units, parts, index)
        };
        Span { start: units.start * self.unit, len: units.len * self.unit }
    }

    /// Parts that hold the same unit when it is copied over `parts` (a multiple of the units); 1 if it is not.
    pub fn copies(self, parts: usize) -> usize {
        if self.copied && parts > self.units && self.units > 0 { parts / self.units } else { 1 }
    }
}

/// A dim of a tensor: blocks one behind the other. A fused tensor has several (queries, keys, values; gate, up), each
/// of which is cut by itself, so a part of the dim is a list of spans.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The blocks, in order.
    pub blocks: Vec<Block>,
}

impl Dim {
    /// One block that may be cut anywhere.
    pub fn plain(len: usize) -> Dim {
        Dim { blocks: vec![Block::plain(len)] }
    }

    /// Several blocks.
    pub fn of(blocks: impl IntoIterator<Item = Block>) -> Dim {
        Dim { blocks: blocks.into_iter().collect() }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.blocks.iter().map(|b| b.len()).sum()
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole dim as spans.
    pub fn whole(&self) -> Vec<Span> {
        joined([Span { start: 0, len: self.len() }])
    }

    /// Elements of part `index`: ascending, no span empty, no two that touch.
    pub fn cut(&self, parts: usize, index: usize) -> Vec<Span> {
        let mut first = 0;
        joined(self.blocks.iter().map(|block| {
            let span = block.cut(parts, index);
            let start = first + span.start;
            first += block.len();
            Span { start, len: span.len }
        }))
    }
}

/// Elements of these spans together.
pub fn total(spans: &[Span]) -> usize {
    spans.iter().map(|s| s.len).sum()
}

/// Part `index` of the elements of `spans`, cut evenly as if they were one stretch.
pub(crate) fn even_of(spans: &[Span], parts: usize, index: usize) -> Vec<Span> {
    let wanted = even(total(spans), parts, index);
    let mut passed = 0;
    joined(spans.iter().map(|span| {
        let from = wanted.start.clamp(passed, passed + span.len);
        let to = wanted.end().clamp(passed, passed + span.len);
        let cut = Span { start: span.start + from - passed, len: to - from };
        passed += span.len;
        cut
    }))
}

/// Without empty spans, and those that touch as one.
fn joined(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut out: Vec<Span> = Vec::new();
    for span in spans.into_iter().filter(|s| s.len > 0) {
        match out.last_mut() {
            Some(last) if last.end() == span.start => last.len += span.len,
            _ => out.push(span),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(spans: &[Span]) -> Vec<(usize, usize)> {
        spans.iter().map(|s| (s.start, s.len)).collect()
    }

    #[test]
    fn uneven_parts_are_longer_at_the_front() {
        let lens: Vec<_> = (0..4).map(|i| even(10, 4, i)).map(|s| (s.start, s.len)).collect();
        assert_eq!(lens, [(0, 3), (3, 3), (6, 2), (8, 2)]);
        assert_eq!(even(2, 4, 3), Span { start: 2, len: 0 });
    }

    /// 4 query heads and 2 key and value heads of 3 rows.
    #[test]
    fn a_fused_dim_is_cut_block_by_block() {
        let qkv = Dim::of([Block::heads(4, 3), Block::heads(2, 3), Block::heads(2, 3)]);
        assert_eq!(pairs(&qkv.cut(2, 0)), [(0, 6), (12, 3), (18, 3)]);
        assert_eq!(pairs(&qkv.cut(2, 1)), [(6, 6), (15, 3), (21, 3)]);
        // More parts than key heads: parts 2 and 3 hold copies of head 1.
        assert_eq!(pairs(&qkv.cut(4, 2)), [(6, 3), (15, 3), (21, 3)]);
        assert_eq!(pairs(&qkv.cut(4, 3)), [(9, 3), (15, 3), (21, 3)]);
        assert_eq!(qkv.blocks[1].copies(4), 2);
        assert_eq!(pairs(&qkv.cut(1, 0)), [(0, 24)]);
    }

    #[test]
    fn a_second_cut_takes_what_the_first_left_as_one_stretch() {
        let first = [Span { start: 0, len: 4 }, Span { start: 10, len: 3 }];
        assert_eq!(pairs(&even_of(&first, 2, 0)), [(0, 4)]);
        assert_eq!(pairs(&even_of(&first, 2, 1)), [(10, 3)]);
        assert_eq!(pairs(&even_of(&first, 3, 1)), [(3, 1), (10, 1)]);
    }
}

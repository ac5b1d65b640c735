//! Partition of element-wise operators: blocks of about 16 thousand elements, by shape alone.

use crate::ctx::Ctx;
use std::ops::Range;

/// Elements of a block, about: 64 KiB of f32, enough to outweigh the hand-over and small enough to share evenly.
const ELEMENTS: usize = 16 << 10;

/// Rows and columns of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Below [`block_count`].
    pub(crate) number: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) cols: Range<usize>,
}

/// Rows and columns of a block, and blocks side by side.
fn cut(rows: usize, cols: usize) -> (usize, usize, usize) {
    let wide = cols.clamp(1, ELEMENTS);
    ((ELEMENTS / wide).clamp(1, rows.max(1)), wide, cols.div_ceil(wide))
}

/// Blocks of a `rows` x `cols` matrix.
pub(crate) fn block_count(rows: usize, cols: usize) -> usize {
    let (high, _, across) = cut(rows, cols);
    rows.div_ceil(high) * across
}

/// Calls `work` for every block of a `rows` x `cols` matrix, on the pool.
pub(crate) fn blocks(ctx: &Ctx<'_>, rows: usize, cols: usize, work: &(dyn Fn(Block) + Sync)) {
    let (high, wide, across) = cut(rows, cols);
    ctx.pool.run(block_count(rows, cols), &|number, _| {
        let (r, c) = (number / across * high, number % across * wide);
        work(Block { number, rows: r..(r + high).min(rows), cols: c..(c + wide).min(cols) });
    });
}

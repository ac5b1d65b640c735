//! Decoding of several sequences at once: each row is the next position of a sequence of its own.

use super::{
    Alibi, AttentionMask, AttentionShape, Describe, Rule, Visit, expect_indices, expect_shape, read, update,
    write,
};
use crate::{TensorError, View};

/// Appends row r of `k` and `v` to the cache of slot `s_r` at position `p_r`, and attends from `q[r]` to cache rows
/// `s_r*capacity + f_r ..= s_r*capacity + p_r`, or the last `window` of them (continuous batching: Yu et al. 2022, Orca).
///
/// Slots, first visible positions and positions are read from `places`, so one program serves every mixture of
/// sequences. No two rows may have the same slot and position. The bits of a row depend on its own slot alone.
///
/// Sharding: q, k, v, out (b, t g r e) with t of size 1, caches (s, g e), places (p); all whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSlots {
    /// Sizes; `batch` is the number R of rows, `seq` is 1.
    pub shape: AttentionShape,
    /// Rows of the cache for each slot.
    pub capacity: usize,
    /// As in [`AttentionMask`].
    pub window: Option<usize>,
    /// As in [`AttentionMask`].
    pub alibi: Option<Alibi>,
    /// u32 `[1, 3R]`: slot, first visible position and position of each row.
    pub places: View,
    /// `[R, H*E]`.
    pub q: View,
    /// New keys, `[R, G*E]`.
    pub k: View,
    /// New values, `[R, G*E]`.
    pub v: View,
    /// `[S*capacity, G*E]`.
    pub k_cache: View,
    /// `[S*capacity, G*E]`.
    pub v_cache: View,
    /// `[R, H*E]`.
    pub out: View,
}

impl AttentionSlots {
    /// Numbers of each row in `places`.
    pub const PLACE: usize = 3;

    /// Slots of the cache.
    pub fn slots(&self) -> usize {
        self.k_cache.rows.checked_div(self.capacity).unwrap_or(0)
    }
}

impl Describe for AttentionSlots {
    const NAME: &'static str = "attention_slots";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "places", &mut self.places);
        read(see, "q", &mut self.q);
        read(see, "k", &mut self.k);
        read(see, "v", &mut self.v);
        update(see, "k_cache", &mut self.k_cache);
        update(see, "v_cache", &mut self.v_cache);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let s = &self.shape;
        let (b, p) = (rule.whole("b", s.batch), rule.whole("p", self.places.cols));
        let all = rule.whole("s", self.k_cache.rows);
        let (h, g) = (rule.whole("h", s.heads * s.head_dim), rule.whole("g", s.kv_heads * s.head_dim));
        rule.dims("places", &[], &[p]);
        for (name, rows, cols) in
            [("q", b, h), ("out", b, h), ("k", b, g), ("v", b, g), ("k_cache", all, g), ("v_cache", all, g)]
        {
            rule.dims(name, &[rows], &[cols]);
        }
        rule
    }
    /// Those of full caches: the positions are known to the device only.
    fn flops(&self) -> f64 {
        let past = self.capacity.saturating_sub(1);
        let mask = AttentionMask { queries: past.into(), window: self.window, ..AttentionMask::default() };
        2.0 * self.shape.product(&mask, self.capacity)
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let s = &self.shape;
        expect_indices(Self::NAME, "places", &self.places, s.batch * Self::PLACE)?;
        let wrong = |operand, wanted: &str, found: String| TensorError::Shape {
            op: Self::NAME,
            operand,
            wanted: wanted.into(),
            found,
        };
        if s.seq != 1 {
            return Err(wrong("q", "one position in each row", s.seq.to_string()));
        }
        if self.capacity == 0 || !self.k_cache.rows.is_multiple_of(self.capacity) {
            let found = format!("{} rows and a capacity of {}", self.k_cache.rows, self.capacity);
            return Err(wrong("k_cache", "whole slots of at least one position", found));
        }
        let (queries, keys) = ([("q", &self.q), ("out", &self.out)], [("k", &self.k), ("v", &self.v)]);
        s.check_operands(Self::NAME, queries, keys, s.batch)?;
        for (name, cache) in [("k_cache", &self.k_cache), ("v_cache", &self.v_cache)] {
            expect_shape(Self::NAME, name, cache, self.k_cache.rows, s.kv_heads * s.head_dim)?;
        }
        super::attention::check_window(Self::NAME, self.window)?;
        super::attention::check_alibi(Self::NAME, self.alibi, s)
    }
}

//! Scaled dot-product attention: whole sequences, their backward pass, and decoding with a cache.

mod positions;

pub use positions::{Positions, SomeKeys};

use super::rule;
use super::{Describe, DropoutMask, FactorKind, Rule, Visit, expect_indices, expect_shape, read, write};
use crate::{TensorError, View};

/// Sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// B, sequences.
    pub batch: usize,
    /// T, query positions of each sequence.
    pub seq: usize,
    /// H, query heads.
    pub heads: usize,
    /// G, key/value heads; divides H. Query head h reads key/value head h / (H/G).
    pub kv_heads: usize,
    /// E, width of a head.
    pub head_dim: usize,
    /// Factor on the scores, usually 1/sqrt(E).
    pub scale: f32,
}

impl AttentionShape {
    fn check(&self, op: &'static str) -> Result<(), TensorError> {
        if self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads) && self.heads > 0 {
            return Ok(());
        }
        Err(TensorError::Shape {
            op,
            operand: "kv_heads",
            wanted: format!("a divisor of {} query heads", self.heads),
            found: self.kv_heads.to_string(),
        })
    }

    /// Errors unless the matrices of queries are `[B*T, H*E]` and those of keys and values `[rows, G*E]`.
    pub(super) fn check_operands<const Q: usize, const K: usize>(
        &self,
        op: &'static str,
        queries: [(&'static str, &View); Q],
        keys: [(&'static str, &View); K],
        rows: usize,
    ) -> Result<(), TensorError> {
        self.check(op)?;
        for (name, view) in queries {
            expect_shape(op, name, view, self.batch * self.seq, self.heads * self.head_dim)?;
        }
        for (name, view) in keys {
            expect_shape(op, name, view, rows, self.kv_heads * self.head_dim)?;
        }
        Ok(())
    }

    /// S, keys of each sequence, where the matrix of all keys has `rows` rows.
    pub fn keys(&self, rows: usize) -> usize {
        rows.checked_div(self.batch).unwrap_or(0)
    }

    /// Errors unless `rows` keys are S for each sequence, and each of the T queries is one of them, or where the launch has some keys
    /// only, one of the sequence.
    fn check_keys(&self, op: &'static str, rows: usize, mask: &AttentionMask) -> Result<(), TensorError> {
        let (keys, end) = (self.keys(rows), mask.queries.end(self.seq));
        let (all, has) = match mask.keys {
            None => (keys, true),
            Some(some) => (some.seq, some.positions.end(keys).is_some_and(|end| end <= some.seq)),
        };
        if keys * self.batch == rows && has && end.is_some_and(|end| end <= all) {
            return Ok(());
        }
        let wanted = match (mask.keys, end) {
            (Some(some), _) => format!("keys and queries at positions of a sequence of {}", some.seq),
            (None, end) => format!(
                "at least {} rows for each of {} sequences (the positions up to its last query)",
                end.unwrap_or(usize::MAX),
                self.batch
            ),
        };
        Err(TensorError::Shape { op, operand: "k", wanted, found: format!("{rows} rows") })
    }

    /// Multiply-adds counted twice of one product over the visible pairs of query and key. `keys`: those of a sequence at hand.
    pub(super) fn product(&self, mask: &AttentionMask, keys: usize) -> f64 {
        let keys = match mask.keys {
            None => Positions::from(0).stretches(mask.queries.end(self.seq).unwrap_or_default()),
            Some(some) => some.positions.stretches(keys),
        };
        let queries = mask.queries.stretches(self.seq);
        let both = queries.iter().flat_map(|queries| keys.map(|keys| (queries, keys)));
        let pairs = both.map(|(queries, keys)| {
            let outside = mask.window.map_or(0, |window| queries.pairs(keys, window as i64));
            queries.pairs(keys, 0) - outside
        });
        let pairs = pairs.sum::<i64>();
        2.0 * self.batch as f64 * self.heads as f64 * pairs as f64 * self.head_dim as f64
    }
}

/// Linear biases instead of positions (Press et al. 2022): the score of query i and key j in head h is lowered by
/// `slope_h (i - j)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alibi {
    /// Heads of the whole layer, which decide the slopes.
    pub heads: usize,
    /// Which of them the first head of the operator is.
    pub first: usize,
}

impl Alibi {
    /// For an operator that has all heads of its layer.
    pub fn of(heads: usize) -> Alibi {
        Alibi { heads, first: 0 }
    }

    /// Slope of head `head` of the operator. For p heads, p a power of two: the geometric sequence from 2^(-8/p) with that
    /// ratio. For other numbers: the slopes for the power of two p below, then the 1st, 3rd, 5th ... slope for 2p.
    pub fn slope(&self, head: usize) -> f32 {
        let (h, p) = (self.first + head, 1 << self.heads.max(1).ilog2());
        let exponent = if h < p {
            8.0 * (h + 1) as f64 / f64::from(p as u32)
        } else {
            4.0 * (2 * (h - p) + 1) as f64 / f64::from(p as u32)
        };
        (-exponent).exp2() as f32
    }
}

/// Which keys a query sees besides "none after itself", and what is added to its scores. All of them may be set at once;
/// by default there is nothing but causality.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AttentionMask {
    /// Positions of the queries of each sequence.
    pub queries: Positions,
    /// The keys of each sequence that are here, if these are not all from position 0 on. A query that sees none of them has 0 as its
    /// result, and -infinity as its log-sum-exp.
    pub keys: Option<SomeKeys>,
    /// Sliding window w >= 1: query i sees keys i-w+1 ..= i (Mistral's convention).
    pub window: Option<usize>,
    /// Linear biases.
    pub alibi: Option<Alibi>,
    /// u32 `[1, B*T]`, for sequences packed from several documents: the first position, within its sequence, of the document
    /// that each query belongs to. Queries see keys of their own document only. Every entry is its query's position or
    /// repeats the entry before it.
    pub documents: Option<View>,
}

impl AttentionMask {
    fn check(&self, op: &'static str, s: &AttentionShape) -> Result<(), TensorError> {
        check_window(op, self.window)?;
        if let Some(wanted) = self.queries.problem(s.seq) {
            let found = format!("{:?}", self.queries);
            return Err(TensorError::Shape { op, operand: "q", wanted, found });
        }
        check_alibi(op, self.alibi, s)?;
        match &self.documents {
            Some(view) => expect_indices(op, "documents", view, s.batch * s.seq),
            None => Ok(()),
        }
    }
}

/// Dropout of attention weights. Element number ((b*heads + first + h)*S + p)*S + s, h a head of the operator, p a query's position,
/// s a key's, S the positions of a whole sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionDropout {
    /// The mask of the weights of the whole layer.
    pub mask: DropoutMask,
    /// Heads of the whole layer.
    pub heads: usize,
    /// Which of them the first head of the operator is.
    pub first: usize,
}

impl AttentionDropout {
    /// For an operator that has all heads of its layer.
    pub fn of(heads: usize, mask: DropoutMask) -> AttentionDropout {
        AttentionDropout { mask, heads, first: 0 }
    }
}

/// Loops of an attention: B sequences, T queries, S keys, key/value heads G, query heads R of each of them, width E.
struct AttentionFactors {
    b: usize,
    t: usize,
    s: usize,
    g: usize,
    r: usize,
    e: usize,
}

impl AttentionFactors {
    /// Attention over whole sequences, where `of_query` is what sharding queries means, be it those of a sequence or the
    /// heads of a key/value head. Masks of dropout are numbered by sequence and head, slopes by head.
    fn of_sequences(
        rule: &mut Rule,
        shape: &AttentionShape,
        (mask, keys): (&AttentionMask, usize),
        dropout: bool,
        of_query: FactorKind,
    ) -> AttentionFactors {
        let t = match of_query {
            FactorKind::Sum => rule.sum("t", shape.seq),
            _ => rule.free("t", shape.seq),
        };
        rule.needs_offset(t);
        let s = rule.whole("s", keys);
        let factors =
            AttentionFactors::of_heads(rule, shape, mask.alibi.is_some() || dropout, of_query, t, s);
        if dropout {
            rule.needs_offset(factors.b);
        }
        factors
    }

    /// Attention to a cache: the first of the positions at hand is stated by [`AttentionCached::past`].
    fn of_cache(
        rule: &mut Rule,
        shape: &AttentionShape,
        capacity: usize,
        alibi: Option<Alibi>,
    ) -> AttentionFactors {
        let t = rule.free("t", shape.seq);
        rule.needs_offset(t);
        let s = rule.whole("s", capacity);
        AttentionFactors::of_heads(rule, shape, alibi.is_some(), FactorKind::Free, t, s)
    }

    fn of_heads(
        rule: &mut Rule,
        shape: &AttentionShape,
        numbered: bool,
        of_group: FactorKind,
        t: usize,
        s: usize,
    ) -> AttentionFactors {
        let group = shape.heads.checked_div(shape.kv_heads).unwrap_or(0);
        let (b, g) = (rule.free("b", shape.batch), rule.free("g", shape.kv_heads));
        let r = if of_group == FactorKind::Sum { rule.sum("r", group) } else { rule.free("r", group) };
        let e = rule.whole("e", shape.head_dim);
        if numbered {
            rule.needs_offset(g);
            rule.needs_offset(r);
        }
        AttentionFactors { b, t, s, g, r, e }
    }
}

pub(super) fn check_window(op: &'static str, window: Option<usize>) -> Result<(), TensorError> {
    if window != Some(0) {
        return Ok(());
    }
    let (wanted, found) = ("at least 1, the query itself".to_owned(), "0".to_owned());
    Err(TensorError::Shape { op, operand: "window", wanted, found })
}

pub(super) fn check_alibi(
    op: &'static str,
    alibi: Option<Alibi>,
    s: &AttentionShape,
) -> Result<(), TensorError> {
    alibi.map_or(Ok(()), |a| check_heads(op, "alibi", (a.heads, a.first), s))
}

fn check_dropout(
    op: &'static str,
    dropout: Option<AttentionDropout>,
    s: &AttentionShape,
) -> Result<(), TensorError> {
    let Some(d) = dropout else { return Ok(()) };
    d.mask.check(op)?;
    check_heads(op, "dropout", (d.heads, d.first), s)
}

/// Errors unless the operator's heads are heads `first` and following of a layer of `heads`.
fn check_heads(
    op: &'static str,
    operand: &'static str,
    (heads, first): (usize, usize),
    s: &AttentionShape,
) -> Result<(), TensorError> {
    if first.checked_add(s.heads).is_some_and(|end| end <= heads) {
        return Ok(());
    }
    let wanted = format!("that of {} heads from {first} on", s.heads);
    Err(TensorError::Shape { op, operand, wanted, found: format!("a layer of {heads} heads") })
}

/// Causal attention over B sequences of T queries and S keys, query row n = b*T + t, key row b*S + s (Vaswani et al. 2017;
/// computed in tiles with running maxima as in Dao et al. 2022, so that no T x S matrix is ever stored). On one device T = S;
/// with some of the queries on each rank (context parallelism) query t stands at position p of `mask.queries`. A launch may have some of
/// the keys only (`mask.keys`): its result is then one of several partial results, which [`AttentionMerge`](super::AttentionMerge) merges.
///
/// `out[b,t,h] = sum_s softmax_s(scale q[b,t,h] . k[b,s,g] - slope_h (p - s)) v[b,s,g]` over the s <= p that the mask lets
/// through. q, k, v and out are of one type; out may be f32 in any case, as partial results are.
///
/// Sharding: q, out (b t, g r e); k, v (b s, g e); lse (b g r, t); b, t, g, r free, s, e whole. Offsets: t (`queries`), b for
/// dropout, g and r for dropout and ALiBi. As heads are numbered from `first` on, r can be sharded with offsets only where one
/// g is left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Sizes.
    pub shape: AttentionShape,
    /// `[B*T, H*E]`.
    pub q: View,
    /// `[B*S, G*E]`.
    pub k: View,
    /// `[B*S, G*E]`.
    pub v: View,
    /// `[B*T, H*E]`.
    pub out: View,
    /// f32 `[B*H, T]`: logarithm of the sum of exponentials of each row of scores, for the backward pass.
    pub lse: View,
    /// Keys that a query attends to.
    pub mask: AttentionMask,
    /// Dropout of the attention weights.
    pub dropout: Option<AttentionDropout>,
}

impl Describe for Attention {
    const NAME: &'static str = "attention";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "q", &mut self.q);
        read(see, "k", &mut self.k);
        read(see, "v", &mut self.v);
        write(see, "out", &mut self.out);
        write(see, "lse", &mut self.lse);
        if let Some(view) = &mut self.mask.documents {
            read(see, "documents", view);
        }
        if let Some(dropout) = &mut self.dropout {
            read(see, Rule::COUNTERS, &mut dropout.mask.counters);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let f = AttentionFactors::of_sequences(
            &mut rule,
            &self.shape,
            (&self.mask, self.shape.keys(self.k.rows)),
            self.dropout.is_some(),
            FactorKind::Free,
        );
        for name in ["q", "out"] {
            rule.dims(name, &[f.b, f.t], &[f.g, f.r, f.e]);
        }
        for name in ["k", "v"] {
            rule.dims(name, &[f.b, f.s], &[f.g, f.e]);
        }
        rule.dims("lse", &[f.b, f.g, f.r], &[f.t]);
        rule.dims("documents", &[], &[f.b, f.t]);
        rule.with_host_numbers(&self.operands())
    }
    /// Where documents end is not known here: they are not taken off.
    fn flops(&self) -> f64 {
        2.0 * self.shape.product(&self.mask, self.shape.keys(self.k.rows))
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let s = &self.shape;
        let (queries, keys) = ([("q", &self.q), ("out", &self.out)], [("k", &self.k), ("v", &self.v)]);
        s.check_operands(Self::NAME, queries, keys, self.k.rows)?;
        s.check_keys(Self::NAME, self.k.rows, &self.mask)?;
        expect_shape(Self::NAME, "lse", &self.lse, s.batch * s.heads, s.seq)?;
        check_dropout(Self::NAME, self.dropout, s)?;
        self.mask.check(Self::NAME, s)
    }
}

/// Gradients of [`Attention`]; scores are computed again from q, k and `lse`. A launch with some of the keys has `out` and `lse` of all
/// of them, and gives its terms of dq, and of dk and dv those of its queries. dq, dk and dv are of the type of q, or all three f32.
///
/// Sharding: as [`Attention`], dq like q, dk and dv like k; t and r are summed for dk and dv; linear in dout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionBackward {
    /// Sizes.
    pub shape: AttentionShape,
    /// `[B*T, H*E]`.
    pub q: View,
    /// `[B*S, G*E]`.
    pub k: View,
    /// `[B*S, G*E]`.
    pub v: View,
    /// `[B*T, H*E]`, the forward result.
    pub out: View,
    /// f32 `[B*H, T]`, the forward result.
    pub lse: View,
    /// `[B*T, H*E]`.
    pub dout: View,
    /// `[B*T, H*E]`, replaced.
    pub dq: View,
    /// `[B*S, G*E]`, replaced.
    pub dk: View,
    /// `[B*S, G*E]`, replaced.
    pub dv: View,
    /// As in the forward pass.
    pub mask: AttentionMask,
    /// As in the forward pass.
    pub dropout: Option<AttentionDropout>,
}

impl Describe for AttentionBackward {
    const NAME: &'static str = "attention_backward";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "q", &mut self.q);
        read(see, "k", &mut self.k);
        read(see, "v", &mut self.v);
        read(see, "out", &mut self.out);
        read(see, "lse", &mut self.lse);
        read(see, "dout", &mut self.dout);
        write(see, "dq", &mut self.dq);
        write(see, "dk", &mut self.dk);
        write(see, "dv", &mut self.dv);
        if let Some(view) = &mut self.mask.documents {
            read(see, "documents", view);
        }
        if let Some(dropout) = &mut self.dropout {
            read(see, Rule::COUNTERS, &mut dropout.mask.counters);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let f = AttentionFactors::of_sequences(
            &mut rule,
            &self.shape,
            (&self.mask, self.shape.keys(self.k.rows)),
            self.dropout.is_some(),
            FactorKind::Sum,
        );
        for name in ["q", "out", "dout", "dq"] {
            rule.dims(name, &[f.b, f.t], &[f.g, f.r, f.e]);
        }
        for name in ["k", "v", "dk", "dv"] {
            rule.dims(name, &[f.b, f.s], &[f.g, f.e]);
        }
        rule.dims("lse", &[f.b, f.g, f.r], &[f.t]);
        rule.dims("documents", &[], &[f.b, f.t]);
        rule.linear("dout", rule::Linear::Alone);
        rule.with_host_numbers(&self.operands())
    }
    fn flops(&self) -> f64 {
        // Five products: scores again, dP, dQ, dK, dV.
        5.0 * self.shape.product(&self.mask, self.shape.keys(self.k.rows))
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let s = &self.shape;
        let queries = [("q", &self.q), ("out", &self.out), ("dout", &self.dout), ("dq", &self.dq)];
        let keys = [("k", &self.k), ("v", &self.v), ("dk", &self.dk), ("dv", &self.dv)];
        s.check_operands(Self::NAME, queries, keys, self.k.rows)?;
        s.check_keys(Self::NAME, self.k.rows, &self.mask)?;
        expect_shape(Self::NAME, "lse", &self.lse, s.batch * s.heads, s.seq)?;
        check_dropout(Self::NAME, self.dropout, s)?;
        self.mask.check(Self::NAME, s)
    }
}

/// Attention of `shape.seq` new positions to a cache that already holds them: the query at new position i of sequence b
/// reads cache rows `b*capacity .. b*capacity + past + i + 1`, or the last `window` of them.
///
/// Sharding: q, out (b t, g r e), caches (b s, g e); b, g, r free, t free with an offset (`past`), s, e whole.
/// Offsets of g and r for ALiBi.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionCached {
    /// Sizes; `seq` is the number of new positions.
    pub shape: AttentionShape,
    /// Positions that were in the cache before the new ones.
    pub past: usize,
    /// Rows of the cache for each sequence.
    pub capacity: usize,
    /// As in [`AttentionMask`].
    pub window: Option<usize>,
    /// As in [`AttentionMask`].
    pub alibi: Option<Alibi>,
    /// `[B*new, H*E]`.
    pub q: View,
    /// `[B*capacity, G*E]`.
    pub k_cache: View,
    /// `[B*capacity, G*E]`.
    pub v_cache: View,
    /// `[B*new, H*E]`.
    pub out: View,
}

impl Describe for AttentionCached {
    const NAME: &'static str = "attention_cached";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "q", &mut self.q);
        read(see, "k_cache", &mut self.k_cache);
        read(see, "v_cache", &mut self.v_cache);
        write(see, "out", &mut self.out);
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let f = AttentionFactors::of_cache(&mut rule, &self.shape, self.capacity, self.alibi);
        for name in ["q", "out"] {
            rule.dims(name, &[f.b, f.t], &[f.g, f.r, f.e]);
        }
        for name in ["k_cache", "v_cache"] {
            rule.dims(name, &[f.b, f.s], &[f.g, f.e]);
        }
        rule
    }
    fn flops(&self) -> f64 {
        let mask =
            AttentionMask { queries: self.past.into(), window: self.window, ..AttentionMask::default() };
        2.0 * self.shape.product(&mask, self.past + self.shape.seq)
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let s = &self.shape;
        if self.past + s.seq > self.capacity {
            return Err(TensorError::Shape {
                op: Self::NAME,
                operand: "capacity",
                wanted: format!("room for {} positions", self.past + s.seq),
                found: self.capacity.to_string(),
            });
        }
        let queries = [("q", &self.q), ("out", &self.out)];
        let keys = [("k_cache", &self.k_cache), ("v_cache", &self.v_cache)];
        s.check_operands(Self::NAME, queries, keys, s.batch * self.capacity)?;
        check_window(Self::NAME, self.window)?;
        check_alibi(Self::NAME, self.alibi, s)
    }
}

#[cfg(test)]
mod tests;

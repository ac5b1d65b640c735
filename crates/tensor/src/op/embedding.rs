//! Token and position embeddings.

use super::rule;
use super::{Describe, Rule, Visit, expect_indices, expect_shape, read, update, write};
use crate::{TensorError, View};

/// Rows `first ..` of a table of `of` rows that is cut over several devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VocabularyShard {
    /// Number in the whole table of the first row that is here.
    pub first: usize,
    /// Rows of the whole table.
    pub of: usize,
}

impl VocabularyShard {
    /// All rows of a table.
    pub fn whole(table: &View) -> VocabularyShard {
        VocabularyShard { first: 0, of: table.rows }
    }

    /// Errors unless the whole table has the rows of `table`.
    pub(super) fn check(&self, op: &'static str, table: &View) -> Result<(), TensorError> {
        if self.first.checked_add(table.rows).is_some_and(|end| end <= self.of) {
            return Ok(());
        }
        let wanted = format!("{} rows from {} on, of {}", table.rows, self.first, self.of);
        Err(TensorError::Shape {
            op,
            operand: "tensor shard",
            wanted,
            found: "fewer rows in the whole".into(),
        })
    }
}

/// A learned position table beside the token table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionTable {
    /// `[T, D]`: the table in the forward pass, its gradient in the backward pass.
    pub table: View,
    /// u32 `[1, N]`, each below T.
    pub positions: View,
}

/// `out[n] = table[ids[n]] (+ positions.table[positions[n]])`, where a row of the table that is not here counts as zeros.
///
/// Sharding: table (v, d), ids (n), out (n, d); n, d free, v summed, with an offset (`tensor_shard`); linear in the table,
/// positions once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embedding {
    /// `[V, D]`.
    pub table: View,
    /// Which rows of the whole table these are; `None`: all.
    pub tensor_shard: Option<VocabularyShard>,
    /// u32 `[1, N]`, each a row of the whole table.
    pub ids: View,
    /// Learned positions, if the model has them.
    pub positions: Option<PositionTable>,
    /// `[N, D]`.
    pub out: View,
}

impl Describe for Embedding {
    const NAME: &'static str = "embedding";
    // Only the rows that are looked up are touched, but any row may be: the table counts as a whole for overlaps.
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "table", &mut self.table);
        read(see, "ids", &mut self.ids);
        write(see, "out", &mut self.out);
        if let Some(p) = &mut self.positions {
            read(see, "positions.table", &mut p.table);
            read(see, "positions", &mut p.positions);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.free("n", self.ids.cols), rule.free("d", self.table.cols));
        let v = rule.sum("v", self.table.rows);
        rule.needs_offset(v);
        rule.dims("table", &[v], &[d]);
        rule.dims("ids", &[], &[n]);
        rule.dims("out", &[n], &[d]);
        rule.linear("table", rule::Linear::Alone);
        if let Some(p) = &self.positions {
            let p = rule.whole("p", p.table.rows);
            rule.dims("positions.table", &[p], &[d]);
            rule.dims("positions", &[], &[n]);
            rule.once("positions.table");
            rule.once("positions");
        }
        rule
    }
    fn flops(&self) -> f64 {
        if self.positions.is_some() { self.out.len() as f64 } else { 0.0 }
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d) = (self.ids.cols, self.table.cols);
        expect_indices(Self::NAME, "ids", &self.ids, n)?;
        expect_shape(Self::NAME, "out", &self.out, n, d)?;
        if let Some(p) = self.positions {
            expect_indices(Self::NAME, "positions", &p.positions, n)?;
            expect_shape(Self::NAME, "positions.table", &p.table, p.table.rows, d)?;
        }
        self.tensor_shard.map_or(Ok(()), |p| p.check(Self::NAME, &self.table))
    }
}

/// `dtable[ids[n]] += dout[n]` (and the same for positions), rows added in the order of n for every table row that is here.
///
/// Sharding: ids (n), dout (n, d), dtable (v, d); n summed, d free, v free with an offset (`tensor_shard`); linear in
/// dout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbeddingBackward {
    /// u32 `[1, N]`.
    pub ids: View,
    /// `[N, D]`.
    pub dout: View,
    /// `[V, D]`, accumulated.
    pub dtable: View,
    /// As in [`Embedding`].
    pub tensor_shard: Option<VocabularyShard>,
    /// Gradient of learned positions, accumulated.
    pub positions: Option<PositionTable>,
}

impl Describe for EmbeddingBackward {
    const NAME: &'static str = "embedding_backward";
    fn visit(&mut self, see: &mut Visit<'_>) {
        read(see, "ids", &mut self.ids);
        read(see, "dout", &mut self.dout);
        update(see, "dtable", &mut self.dtable);
        if let Some(p) = &mut self.positions {
            update(see, "positions.table", &mut p.table);
            read(see, "positions", &mut p.positions);
        }
    }
    fn rule(&self) -> Rule {
        let mut rule = Rule::new(&self.operands());
        let (n, d) = (rule.sum("n", self.ids.cols), rule.free("d", self.dtable.cols));
        let v = rule.free("v", self.dtable.rows);
        rule.needs_offset(v);
        rule.dims("ids", &[], &[n]);
        rule.dims("dout", &[n], &[d]);
        rule.dims("dtable", &[v], &[d]);
        rule.linear("dout", rule::Linear::Alone);
        rule.accumulated("dtable");
        if let Some(p) = &self.positions {
            let p = rule.whole("p", p.table.rows);
            rule.dims("positions.table", &[p], &[d]);
            rule.dims("positions", &[], &[n]);
            rule.accumulated("positions.table");
        }
        rule
    }
    fn flops(&self) -> f64 {
        self.dout.len() as f64
    }
    fn shapes(&self) -> Result<(), TensorError> {
        let (n, d) = (self.ids.cols, self.dtable.cols);
        expect_indices(Self::NAME, "ids", &self.ids, n)?;
        expect_shape(Self::NAME, "dout", &self.dout, n, d)?;
        if let Some(p) = self.positions {
            expect_indices(Self::NAME, "positions", &p.positions, n)?;
            expect_shape(Self::NAME, "positions.table", &p.table, p.table.rows, d)?;
        }
        self.tensor_shard.map_or(Ok(()), |p| p.check(Self::NAME, &self.dtable))
    }
}

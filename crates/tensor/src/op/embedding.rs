//! Token and position embeddings.

use super::{Describe, Operands, expect_indices, expect_shape, read, update, write};
use crate::{TensorError, View};

/// A learned position table beside the token table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionTable {
    /// `[T, D]`: the table in the forward pass, its gradient in the backward pass.
    pub table: View,
    /// u32 `[1, N]`, each below T.
    pub positions: View,
}

/// `out[n] = table[ids[n]] (+ positions.table[positions[n]])`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embedding {
    /// `[V, D]`.
    pub table: View,
    /// u32 `[1, N]`, each below V.
    pub ids: View,
    /// Learned positions, if the model has them.
    pub positions: Option<PositionTable>,
    /// `[N, D]`.
    pub out: View,
}

impl Describe for Embedding {
    const NAME: &'static str = "embedding";
    fn operands(&self) -> Operands {
        // Only the rows that are looked up are touched, but any row may be: the table counts as a whole for overlaps.
        let mut v = Operands::of([read("table", self.table), read("ids", self.ids), write("out", self.out)]);
        if let Some(p) = self.positions {
            v.extend([read("positions.table", p.table), read("positions", p.positions)]);
        }
        v
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
        Ok(())
    }
}

/// `dtable[ids[n]] += dout[n]` (and the same for positions), rows added in the order of n for every table row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbeddingBackward {
    /// u32 `[1, N]`.
    pub ids: View,
    /// `[N, D]`.
    pub dout: View,
    /// `[V, D]`, accumulated.
    pub dtable: View,
    /// Gradient of learned positions, accumulated.
    pub positions: Option<PositionTable>,
}

impl Describe for EmbeddingBackward {
    const NAME: &'static str = "embedding_backward";
    fn operands(&self) -> Operands {
        let mut v =
            Operands::of([read("ids", self.ids), read("dout", self.dout), update("dtable", self.dtable)]);
        if let Some(p) = self.positions {
            v.extend([update("positions.table", p.table), read("positions", p.positions)]);
        }
        v
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
        Ok(())
    }
}

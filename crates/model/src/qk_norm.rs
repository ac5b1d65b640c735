//! QK-norm: RMSNorm over every head of queries and keys, before rotary positions (as in Qwen3; Henry et al. 2020).
//!
//! All query heads share one weight, all key heads another. The rows of a head lie apart, so each head is a launch of its
//! own. Raw queries and keys stay in the fused projection for the backward pass; attention reads the normalised ones.

use crate::norm::{NormStats, NormWeights};
use crate::params::{ParamTable, Weight};
use crate::pass::Pass;
use bessemer_arch::Model;
use bessemer_tensor::{TensorError, View};

/// Weights and sizes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QkNorm {
    query: NormWeights,
    key: NormWeights,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// Normalised queries and keys, `[n, (H + G) E]`, and the statistics of each head's rows, `[H + G, n]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QkRows {
    pub(crate) rows_nk: View,
    pub(crate) rstd_hn: View,
}

impl QkRows {
    /// The same for the first `n` rows.
    pub(crate) fn rows(&self, n: usize) -> QkRows {
        QkRows { rows_nk: self.rows_nk.rows(0, n), rstd_hn: self.rstd_hn.columns(0, n) }
    }

    fn stats(&self, head: usize) -> Option<NormStats> {
        Some(NormStats { mean: None, rstd: self.rstd_hn.rows(head, 1) })
    }
}

impl QkNorm {
    /// If the model has it.
    pub(crate) fn new(model: &Model, table: &ParamTable, layer: usize) -> Option<QkNorm> {
        let weights =
            |which| NormWeights::rms(model, table, &format!("layers.{layer}.attention.{which}_norm"));
        model.qk_norm.then(|| QkNorm {
            query: weights("q"),
            key: weights("k"),
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
        })
    }

    pub(crate) fn each(&mut self, visit: &mut dyn FnMut(&mut Weight)) {
        self.query.each(visit);
        self.key.each(visit);
    }

    /// Columns of head number `head`, keys after queries.
    fn head(&self, all: View, head: usize) -> View {
        all.columns(head * self.head_dim, self.head_dim)
    }

    pub(crate) fn forward(&self, pass: &mut Pass<'_>, qkv_nj: View, out: &QkRows) -> Result<(), TensorError> {
        for head in 0..self.heads + self.kv_heads {
            let norm = if head < self.heads { &self.query } else { &self.key };
            norm.forward(pass, self.head(qkv_nj, head), out.stats(head), self.head(out.rows_nk, head))?;
        }
        Ok(())
    }

    /// Gradients of the raw queries and keys into `dqkv_nj`, from those of the normalised ones.
    pub(crate) fn backward(
        &self,
        pass: &mut Pass<'_>,
        qkv_nj: View,
        kept: &QkRows,
        dout_nk: View,
        dqkv_nj: View,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        for (norm, heads) in
            [(&self.query, 0..self.heads), (&self.key, self.heads..self.heads + self.kv_heads)]
        {
            for head in heads.clone() {
                let (x, dout, dx) =
                    (self.head(qkv_nj, head), self.head(dout_nk, head), self.head(dqkv_nj, head));
                let add = accumulate || head != heads.start;
                norm.gradients(pass, x, kept.stats(head), dout, dx, false, add)?;
            }
            norm.ready(pass)?;
        }
        Ok(())
    }
}

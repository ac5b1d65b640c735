//! The beginning: `x = dropout(tokens[ids] + positions[position])`.
//!
//! With tied embeddings the token table's gradient has two terms, added in this order: the output projection's (which
//! replaces what was there in the first micro-batch), then the rows looked up, in the order of the tokens.

use crate::params::{ParamTable, Weight};
use crate::pass::Pass;
use bessemer_tensor::op::{Dropout, DropoutMask, Embedding, EmbeddingBackward, Fill, PositionTable};
use bessemer_tensor::{TensorError, View};

/// The tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddingTables {
    tokens: Weight,
    positions: Option<Weight>,
    /// The output projection writes to the token table's gradient first.
    tied: bool,
}

impl EmbeddingTables {
    pub(crate) fn new(table: &ParamTable, tied: bool) -> EmbeddingTables {
        EmbeddingTables { tokens: table.get("embed.tokens"), positions: table.find("embed.positions"), tied }
    }

    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        ids: View,
        positions: View,
        x_nd: View,
        dropout: Option<DropoutMask>,
    ) -> Result<(), TensorError> {
        pass.launch(Embedding {
            table: self.tokens.value,
            ids,
            positions: self.positions.map(|w| PositionTable { table: w.value, positions }),
            out: x_nd,
        })?;
        match dropout {
            Some(mask) => pass.launch(Dropout { x: x_nd, out: x_nd, mask }),
            None => Ok(()),
        }
    }

    pub(crate) fn backward(
        &self,
        pass: &mut Pass<'_>,
        ids: View,
        positions: View,
        dx_nd: View,
        dropout: Option<DropoutMask>,
        accumulate: bool,
    ) -> Result<(), TensorError> {
        if let Some(mask) = dropout {
            pass.launch(Dropout { x: dx_nd, out: dx_nd, mask })?;
        }
        if !accumulate {
            // The operator only adds.
            let fresh = if self.tied { None } else { Some(self.tokens) };
            for w in fresh.into_iter().chain(self.positions) {
                pass.launch(Fill { dst: w.grad(), value: 0.0 })?;
            }
        }
        pass.launch(EmbeddingBackward {
            ids,
            dout: dx_nd,
            dtable: self.tokens.grad(),
            positions: self.positions.map(|w| PositionTable { table: w.grad(), positions }),
        })?;
        pass.gradient_ready(&self.tokens)?;
        self.positions.map_or(Ok(()), |w| pass.gradient_ready(&w))
    }
}

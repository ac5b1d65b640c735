//! The shape of a decoder's batches, and its purpose.

use crate::error::ModelError;
use bessemer_arch::Model;

/// Purpose of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Forward and backward: gradients, and activations of every layer.
    Train,
    /// Forward only: no gradients, activations of one layer.
    Score,
}

/// The shape of every batch that a decoder sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// B, sequences of a micro-batch.
    pub sequences: usize,
    /// T, tokens of a sequence; at most the model's context.
    pub seq: usize,
    /// Train or score.
    pub purpose: Purpose,
}

impl Shape {
    /// Tokens of a micro-batch.
    pub fn tokens(&self) -> usize {
        self.sequences * self.seq
    }

    pub(crate) fn check(&self, model: &Model) -> Result<(), ModelError> {
        if self.seq == 0 || self.seq > model.context {
            return Err(ModelError::Shape {
                what: "sequence length",
                wanted: format!("1 to the model's context of {}", model.context),
                found: self.seq.to_string(),
            });
        }
        // Row counts times the widest row must stay a number of bytes.
        let widest =
            model.vocab_size.max(model.mlp_in_width()).max(model.qkv_width() + model.attention_width());
        let most = isize::MAX as usize / 4 / widest / self.seq;
        if self.sequences == 0 || self.sequences > most {
            return Err(ModelError::Shape {
                what: "sequences",
                wanted: format!("1 to {most}"),
                found: self.sequences.to_string(),
            });
        }
        Ok(())
    }
}

//! The operators: one a file, reference and faster rungs together.

mod activation;
mod adamw;
mod add;
mod attention;
mod attention_cached;
pub(crate) mod copy;
mod dropout;
mod embedding;
mod fill;
mod gated;
mod linear;
mod loss;
mod norm;
mod rope;
mod sum_squares;

use crate::arena::Arena;
use bessemer_tensor::TensorError;
use bessemer_tensor::op::Op;

/// Computes one checked operator.
pub(crate) fn run(arena: &Arena, op: &Op) -> Result<(), TensorError> {
    match op {
        Op::Activation(o) => activation::forward_reference(arena, o),
        Op::ActivationBackward(o) => activation::backward_reference(arena, o),
        Op::AdamW(o) => adamw::reference(arena, o),
        Op::Add(o) => add::reference(arena, o),
        Op::Attention(o) => attention::forward_reference(arena, o),
        Op::AttentionBackward(o) => attention::backward_reference(arena, o),
        Op::AttentionCached(o) => attention_cached::reference(arena, o),
        Op::Copy(o) => copy::reference(arena, o),
        Op::Dropout(o) => dropout::reference(arena, o),
        Op::Embedding(o) => return embedding::forward_reference(arena, o),
        Op::EmbeddingBackward(o) => return embedding::backward_reference(arena, o),
        Op::Fill(o) => fill::reference(arena, o),
        Op::Gated(o) => gated::forward_reference(arena, o),
        Op::GatedBackward(o) => gated::backward_reference(arena, o),
        Op::Linear(o) => linear::forward_reference(arena, o),
        Op::LinearBackwardInput(o) => linear::backward_input_reference(arena, o),
        Op::LinearBackwardWeight(o) => linear::backward_weight_reference(arena, o),
        Op::LinearCrossEntropy(o) => return loss::reference(arena, o),
        Op::Norm(o) => norm::forward_reference(arena, o),
        Op::NormBackward(o) => norm::backward_reference(arena, o),
        Op::Rope(o) => rope::reference(arena, o),
        Op::SumSquares(o) => sum_squares::reference(arena, o),
    }
    Ok(())
}

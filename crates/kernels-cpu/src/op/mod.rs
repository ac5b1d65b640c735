//! The operators: one a file, the reference and its faster variants together.

pub(crate) mod activation;
mod adafactor;
mod adamw;
mod adamw_int8;
mod add;
mod attention;
mod attention_merge;
mod capacity;
mod cholesky;
mod column_sums;
mod combine;
pub(crate) mod copy;
mod dot;
mod dropout;
mod dynamic_code;
mod embedding;
mod expert_rows;
mod fill;
mod gated;
mod gated_rows;
mod gradient;
mod grouped;
mod linear;
mod lion;
mod log_sums;
mod loss;
mod loss_shard;
mod magnitude;
mod nodes;
mod norm;
mod norm_sums;
mod quantise;
mod rope;
mod route;
mod scale;
mod sgd;
mod shadows;
mod skinny;
mod sum_squares;
mod teacher;
mod tiles;

use crate::Rung;
use crate::ctx::{Ctx, Machine};
use bessemer_tensor::TensorError;
use bessemer_tensor::op::Op;

/// Scratch floats that one checked operator needs.
pub(crate) fn workspace(machine: Machine, op: &Op) -> usize {
    if machine.rung == Rung::Reference {
        return 0;
    }
    match op {
        Op::Attention(o) => attention::forward_workspace(machine, o),
        Op::AttentionBackward(o) => attention::backward_workspace(machine, o),
        Op::AttentionCached(o) => attention::cached::workspace(machine, o),
        Op::AttentionSlots(o) => attention::cached::slots_workspace(machine, o),
        Op::Dot(o) => dot::workspace(o),
        Op::EmbeddingBackward(o) => embedding::backward_workspace(o),
        Op::GroupedLinear(o) => grouped::forward_workspace(machine, o),
        Op::GroupedLinearBackwardInput(o) => grouped::backward_input_workspace(machine, o),
        Op::GroupedLinearBackwardWeight(o) => grouped::backward_weight_workspace(machine, o),
        Op::Linear(o) => linear::forward_workspace(machine, o),
        Op::LinearBackwardInput(o) => linear::backward_input_workspace(machine, o),
        Op::LinearBackwardWeight(o) => linear::backward_weight_workspace(machine, o),
        Op::LinearCrossEntropy(o) => loss::workspace(machine, o),
        Op::LinearCrossEntropyShard(o) => loss_shard::loss_workspace(machine, o),
        Op::LogitSums(o) => loss_shard::sums_workspace(machine, o),
        Op::MagnitudesBackward(o) => magnitude::backward_workspace(o),
        Op::NormBackward(o) => norm::backward_workspace(&(&o.head(0)).into()),
        Op::NormBackwardOfSums(o) => norm::backward_workspace(&o.into()),
        Op::Rope(o) => rope::workspace(machine, o),
        Op::KeepChoices(o) => capacity::workspace(machine.threads, o),
        Op::KeepInNode(o) => nodes::workspace(machine.threads, o),
        Op::RouteBackward(o) => route::backward_workspace(machine.threads, o),
        Op::SumSquares(o) => sum_squares::workspace(o),
        Op::Activation(_)
        | Op::ActivationBackward(_)
        | Op::AdafactorUpdate(_)
        | Op::AdamW(_)
        | Op::AdamWInt8(_)
        | Op::AdaptedSquares(_)
        | Op::Add(_)
        | Op::AddGatedRows(_)
        | Op::AddGatedRowsBackward(_)
        | Op::AddShadowGradients(_)
        | Op::AssignRows(_)
        | Op::AttentionMerge(_)
        | Op::BalanceLoss(_)
        | Op::Cholesky(_)
        | Op::ChooseShadows(_)
        | Op::Combine(_)
        | Op::CombineLogSums(_)
        | Op::CombineRows(_)
        | Op::CombineRowsBackward(_)
        | Op::Copy(_)
        | Op::CountChoices(_)
        | Op::Dequantise(_)
        | Op::Dispatch(_)
        | Op::DispatchBackward(_)
        | Op::DivideByNorm(_)
        | Op::Dropout(_)
        | Op::Embedding(_)
        | Op::FactoredDirection(_)
        | Op::FactoredMoments(_)
        | Op::Fill(_)
        | Op::Gated(_)
        | Op::GatedBackward(_)
        | Op::Lion(_)
        | Op::Magnitudes(_)
        | Op::MomentDirection(_)
        | Op::Norm(_)
        | Op::NormGradientSums(_)
        | Op::NormOfSums(_)
        | Op::Quantise(_)
        | Op::RandomNumbers(_)
        | Op::ReceivedGroups(_)
        | Op::Route(_)
        | Op::RowSums(_)
        | Op::Scale(_)
        | Op::Sgd(_)
        | Op::TriangularInverse(_) => 0,
    }
}

/// Computes one checked operator.
pub(crate) fn run(ctx: &Ctx<'_>, op: &Op) -> Result<(), TensorError> {
    if ctx.rung == Rung::Reference {
        return reference(ctx, op);
    }
    match op {
        Op::Activation(o) => activation::forward(ctx, o),
        Op::ActivationBackward(o) => activation::backward(ctx, o),
        Op::AdafactorUpdate(o) => adafactor::update(ctx, o),
        Op::AdamW(o) => adamw::run(ctx, o),
        Op::AdamWInt8(o) => adamw_int8::run(ctx, o),
        Op::AdaptedSquares(o) => magnitude::squares(ctx, o),
        Op::Add(o) => add::run(ctx, o),
        Op::AddGatedRows(o) => gated_rows::forward(ctx, o),
        Op::AddGatedRowsBackward(o) => gated_rows::backward(ctx, o),
        Op::AddShadowGradients(o) => return shadows::add(ctx, o),
        Op::AssignRows(o) => return expert_rows::assign(ctx.arena, o),
        Op::Attention(o) => return attention::forward(ctx, o),
        Op::AttentionBackward(o) => return attention::backward(ctx, o),
        Op::AttentionCached(o) => attention::cached::run(ctx, o),
        Op::AttentionSlots(o) => return attention::cached::run_slots(ctx, o),
        Op::AttentionMerge(o) => attention_merge::run(ctx, o),
        Op::BalanceLoss(o) => route::balance(ctx, o),
        Op::Cholesky(o) => cholesky::factor(ctx, o),
        Op::ChooseShadows(o) => return shadows::choose(ctx.arena, o),
        Op::Combine(o) => combine::run(ctx, o),
        Op::CombineLogSums(o) => log_sums::run(ctx, o),
        Op::CombineRows(o) => return expert_rows::combine(ctx, o),
        Op::CombineRowsBackward(o) => return expert_rows::combine_backward(ctx, o),
        Op::Copy(o) => copy::run(ctx, o),
        Op::CountChoices(o) => return route::count_choices(ctx, o),
        Op::Dispatch(o) => return expert_rows::dispatch_rows(ctx, o),
        Op::DispatchBackward(o) => return expert_rows::dispatch_backward(ctx, o),
        Op::Dequantise(o) => quantise::dequantise(ctx, o),
        Op::DivideByNorm(o) => combine::divide_by_norm(ctx, o),
        Op::Dot(o) => dot::run(ctx, o),
        Op::Dropout(o) => dropout::run(ctx, o),
        Op::Embedding(o) => return embedding::forward(ctx, o),
        Op::EmbeddingBackward(o) => return embedding::backward(ctx, o),
        Op::FactoredDirection(o) => adafactor::factored(ctx, o),
        Op::FactoredMoments(o) => adafactor::moments(ctx, o),
        Op::Fill(o) => fill::run(ctx, o),
        Op::Gated(o) => return gated::forward(ctx, o),
        Op::GatedBackward(o) => return gated::backward(ctx, o),
        Op::GroupedLinear(o) => return grouped::forward(ctx, o),
        Op::GroupedLinearBackwardInput(o) => return grouped::backward_input(ctx, o),
        Op::GroupedLinearBackwardWeight(o) => return grouped::backward_weight(ctx, o),
        Op::KeepChoices(o) => return capacity::keep(ctx, o),
        Op::KeepInNode(o) => nodes::keep(ctx, o),
        Op::Linear(o) => linear::forward(ctx, o),
        Op::LinearBackwardInput(o) => linear::backward_input(ctx, o),
        Op::LinearBackwardWeight(o) => linear::backward_weight(ctx, o),
        Op::LinearCrossEntropy(o) => return loss::run(ctx, o),
        Op::LinearCrossEntropyShard(o) => return loss_shard::loss(ctx, o),
        Op::LogitSums(o) => return loss_shard::sums(ctx, o),
        Op::Lion(o) => lion::run(ctx, o),
        Op::Magnitudes(o) => magnitude::forward(ctx, o),
        Op::MagnitudesBackward(o) => magnitude::backward(ctx, o),
        Op::MomentDirection(o) => adafactor::moment(ctx, o),
        Op::Norm(o) => (0..o.heads()).for_each(|head| norm::forward(ctx, &(&o.head(head)).into())),
        Op::NormBackward(o) => (0..o.heads()).for_each(|head| norm::backward(ctx, &(&o.head(head)).into())),
        Op::Quantise(o) => quantise::quantise(ctx, o),
        Op::NormBackwardOfSums(o) => norm::backward(ctx, &o.into()),
        Op::NormGradientSums(o) => norm_sums::gradient_sums(ctx, o),
        Op::NormOfSums(o) => norm::forward(ctx, &o.into()),
        Op::RandomNumbers(o) => capacity::random(ctx, o),
        Op::ReceivedGroups(o) => return expert_rows::received(ctx.arena, o),
        Op::Rope(o) => rope::run(ctx, o),
        Op::Route(o) => route::run(ctx, o),
        Op::RouteBackward(o) => return route::backward(ctx, o),
        Op::RowSums(o) => norm_sums::row_sums(ctx, o),
        Op::Scale(o) => scale::run(ctx, o),
        Op::Sgd(o) => sgd::run(ctx, o),
        Op::SumSquares(o) => sum_squares::run(ctx, o),
        Op::TriangularInverse(o) => cholesky::inverse(ctx, o),
    }
    Ok(())
}

/// Computes one checked operator by its reference loop.
fn reference(ctx: &Ctx<'_>, op: &Op) -> Result<(), TensorError> {
    let arena = ctx.arena;
    match op {
        Op::Activation(o) => activation::forward_reference(arena, o),
        Op::ActivationBackward(o) => activation::backward_reference(arena, o),
        Op::AdafactorUpdate(o) => adafactor::update_reference(arena, o),
        Op::AdamW(o) => adamw::reference(arena, o),
        Op::AdamWInt8(o) => adamw_int8::reference(arena, o),
        Op::AdaptedSquares(o) => magnitude::squares_reference(arena, o),
        Op::Add(o) => add::reference(arena, o),
        Op::AddGatedRows(o) => gated_rows::forward_reference(arena, o),
        Op::AddGatedRowsBackward(o) => gated_rows::backward_reference(arena, o),
        Op::AddShadowGradients(o) => return shadows::add_reference(arena, o),
        Op::AssignRows(o) => return expert_rows::assign(arena, o),
        Op::Attention(o) => return attention::reference::forward(arena, o),
        Op::AttentionBackward(o) => return attention::reference::backward(arena, o),
        Op::AttentionCached(o) => attention::reference::cached(arena, o),
        Op::AttentionSlots(o) => return attention::reference::slots(arena, o),
        Op::AttentionMerge(o) => attention_merge::reference(arena, o),
        Op::BalanceLoss(o) => route::balance_reference(arena, o),
        Op::Cholesky(o) => cholesky::factor_reference(arena, o),
        Op::ChooseShadows(o) => return shadows::choose(arena, o),
        Op::Combine(o) => combine::reference(arena, o),
        Op::CombineLogSums(o) => log_sums::reference(arena, o),
        Op::CombineRows(o) => return expert_rows::combine_reference(arena, o),
        Op::CombineRowsBackward(o) => return expert_rows::combine_backward_reference(arena, o),
        Op::Copy(o) => copy::reference(arena, o),
        Op::CountChoices(o) => return route::count_choices_reference(arena, o),
        Op::Dispatch(o) => return expert_rows::dispatch_reference(arena, o),
        Op::DispatchBackward(o) => return expert_rows::dispatch_backward_reference(arena, o),
        Op::Dequantise(o) => quantise::dequantise_reference(arena, o),
        Op::DivideByNorm(o) => combine::divide_by_norm_reference(arena, o),
        Op::Dot(o) => dot::reference(arena, o),
        Op::Dropout(o) => dropout::reference(arena, o),
        Op::Embedding(o) => return embedding::forward_reference(arena, o),
        Op::EmbeddingBackward(o) => return embedding::backward_reference(arena, o),
        Op::FactoredDirection(o) => adafactor::factored_reference(arena, o),
        Op::FactoredMoments(o) => adafactor::moments_reference(arena, o),
        Op::Fill(o) => fill::reference(arena, o),
        Op::Gated(o) => return gated::forward_reference(arena, o),
        Op::GatedBackward(o) => return gated::backward_reference(arena, o),
        Op::GroupedLinear(o) => return grouped::forward_reference(arena, o),
        Op::GroupedLinearBackwardInput(o) => return grouped::backward_input_reference(arena, o),
        Op::GroupedLinearBackwardWeight(o) => return grouped::backward_weight_reference(arena, o),
        Op::KeepChoices(o) => return capacity::keep_reference(arena, o),
        Op::KeepInNode(o) => nodes::reference(arena, o),
        Op::Linear(o) => linear::forward_reference(arena, o),
        Op::LinearBackwardInput(o) => linear::backward_input_reference(arena, o),
        Op::LinearBackwardWeight(o) => linear::backward_weight_reference(arena, o),
        Op::LinearCrossEntropy(o) => return loss::reference(arena, o),
        Op::LinearCrossEntropyShard(o) => return loss_shard::loss_reference(arena, o),
        Op::LogitSums(o) => return loss_shard::sums_reference(arena, o),
        Op::Lion(o) => lion::reference(arena, o),
        Op::Magnitudes(o) => magnitude::forward_reference(arena, o),
        Op::MagnitudesBackward(o) => magnitude::backward_reference(arena, o),
        Op::MomentDirection(o) => adafactor::moment_reference(arena, o),
        Op::Norm(o) => {
            (0..o.heads()).for_each(|head| norm::forward_reference(arena, &(&o.head(head)).into()))
        }
        Op::NormBackward(o) => {
            (0..o.heads()).for_each(|head| norm::backward_reference(arena, &(&o.head(head)).into()))
        }
        Op::Quantise(o) => quantise::quantise_reference(arena, o),
        Op::NormBackwardOfSums(o) => norm::backward_reference(arena, &o.into()),
        Op::NormGradientSums(o) => norm_sums::gradient_sums_reference(arena, o),
        Op::NormOfSums(o) => norm::forward_reference(arena, &o.into()),
        Op::RandomNumbers(o) => capacity::random_reference(arena, o),
        Op::ReceivedGroups(o) => return expert_rows::received(arena, o),
        Op::Rope(o) => rope::reference(arena, o),
        Op::Route(o) => route::reference(arena, o),
        Op::RouteBackward(o) => return route::backward_reference(arena, o),
        Op::RowSums(o) => norm_sums::row_sums_reference(arena, o),
        Op::Scale(o) => scale::reference(arena, o),
        Op::Sgd(o) => sgd::reference(arena, o),
        Op::SumSquares(o) => sum_squares::reference(arena, o),
        Op::TriangularInverse(o) => cholesky::inverse_reference(arena, o),
    }
    Ok(())
}

//! Every view of an operator, to be changed: how a program that was recorded on virtual buffers is bound to memory.

use super::Op;
use crate::View;

/// Calls `f` with each of the listed views.
macro_rules! each {
    ($f:ident, $($view:expr),* $(,)?) => {{ $($f(&mut $view);)* }};
}

impl Op {
    /// Calls `f` once with each operand's view, in no particular order.
    pub fn for_each_view(&mut self, f: &mut dyn FnMut(&mut View)) {
        match self {
            Op::Activation(o) => each!(f, o.x, o.out),
            Op::ActivationBackward(o) => each!(f, o.x, o.dout, o.dx),
            Op::AdafactorUpdate(o) => {
                each!(f, o.param, o.direction, o.direction_squares);
                o.param_squares.iter_mut().chain(&mut o.m).for_each(f);
            }
            Op::AdamW(o) => {
                each!(f, o.param, o.grad, o.m, o.v);
                o.master.iter_mut().for_each(f);
            }
            Op::Add(o) => each!(f, o.a, o.b, o.out),
            Op::Attention(o) => {
                each!(f, o.q, o.k, o.v, o.out, o.lse);
                o.mask.documents.iter_mut().for_each(f);
            }
            Op::AttentionBackward(o) => {
                each!(f, o.q, o.k, o.v, o.out, o.lse, o.dout, o.dq, o.dk, o.dv);
                o.mask.documents.iter_mut().for_each(f);
            }
            Op::AttentionCached(o) => each!(f, o.q, o.k_cache, o.v_cache, o.out),
            Op::Cholesky(o) => each!(f, o.a, o.l),
            Op::Combine(o) => each!(f, o.a, o.b, o.out),
            Op::Copy(o) => each!(f, o.src, o.dst),
            Op::DivideByNorm(o) => each!(f, o.x, o.squares, o.out),
            Op::Dot(o) => each!(f, o.a, o.b, o.out),
            Op::Dropout(o) => each!(f, o.x, o.out),
            Op::Embedding(o) => {
                each!(f, o.table, o.ids, o.out);
                o.positions.iter_mut().for_each(|p| each!(f, p.table, p.positions));
            }
            Op::EmbeddingBackward(o) => {
                each!(f, o.ids, o.dout, o.dtable);
                o.positions.iter_mut().for_each(|p| each!(f, p.table, p.positions));
            }
            Op::FactoredDirection(o) => each!(f, o.grad, o.row, o.col, o.out),
            Op::FactoredMoments(o) => each!(f, o.grad, o.row, o.col),
            Op::Fill(o) => f(&mut o.dst),
            Op::Gated(o) => each!(f, o.gate, o.up, o.out),
            Op::GatedBackward(o) => each!(f, o.gate, o.up, o.dout, o.dgate, o.dup),
            Op::Linear(o) => {
                each!(f, o.x, o.weight, o.out);
                let pre = o.activation.iter_mut().map(|(_, pre)| pre);
                o.bias.iter_mut().chain(pre).chain(&mut o.residual).for_each(f);
            }
            Op::LinearBackwardInput(o) => {
                each!(f, o.dy, o.weight, o.dx);
                o.activation.iter_mut().map(|(_, pre)| pre).for_each(f);
            }
            Op::LinearBackwardWeight(o) => {
                each!(f, o.x, o.dy, o.dweight);
                o.dbias.iter_mut().for_each(f);
            }
            Op::LinearCrossEntropy(o) => {
                each!(f, o.x, o.weight, o.targets, o.loss);
                o.backward.iter_mut().for_each(|b| each!(f, b.dx, b.dweight));
            }
            Op::LinearCrossEntropyPortion(o) => {
                each!(f, o.x, o.weight, o.targets, o.lse, o.target_logit, o.loss);
                o.backward.iter_mut().for_each(|b| each!(f, b.dx, b.dweight));
            }
            Op::Lion(o) => each!(f, o.param, o.grad, o.m),
            Op::LogitSums(o) => each!(f, o.x, o.weight, o.targets, o.lse, o.target_logit),
            Op::MomentDirection(o) => each!(f, o.grad, o.v, o.out),
            Op::Norm(o) => {
                each!(f, o.x, o.weight, o.out, o.rstd);
                o.bias.iter_mut().chain(&mut o.mean).for_each(f);
            }
            Op::NormBackward(o) => {
                each!(f, o.x, o.weight, o.rstd, o.dout, o.dx, o.dweight);
                o.mean.iter_mut().chain(&mut o.dbias).for_each(f);
            }
            Op::Rope(o) => each!(f, o.x, o.positions),
            Op::Scale(o) => each!(f, o.x, o.out),
            Op::Sgd(o) => {
                each!(f, o.param, o.grad);
                o.m.iter_mut().for_each(f);
            }
            Op::SumSquares(o) => each!(f, o.x, o.out),
            Op::TriangularInverse(o) => each!(f, o.l, o.out),
        }
    }
}

//! An operator on the shapes that a rank has of it: enough to price it, not to run it.

use bessemer_tensor::op::{CombineLogSums, LinearCrossEntropy, LogitSums, Op, Rule, VocabularyShard};
use bessemer_tensor::{Buffer, View};
use bessemer_units::DType;

/// The operator with the loops of `parts` divided into so many parts each.
pub(super) fn local(op: &Op, rule: &Rule, parts: &[(&str, usize)]) -> Op {
    let divisor = |dim: &[usize]| -> usize {
        let of = |(label, ranks): &(&str, usize)| {
            if dim.iter().any(|f| rule.factors[*f].name == *label) { *ranks } else { 1 }
        };
        parts.iter().map(of).product()
    };
    let mut here = op.clone();
    let mut operands = rule.operands.iter();
    here.for_each_view(&mut |view| {
        if let Some(by) = operands.next() {
            (view.rows, view.cols) =
                (view.rows.div_ceil(divisor(&by.rows)), view.cols.div_ceil(divisor(&by.cols)));
        }
    });
    let shape = match &mut here {
        Op::Attention(attention) => Some(&mut attention.shape),
        Op::AttentionBackward(attention) => Some(&mut attention.shape),
        _ => None,
    };
    if let Some(shape) = shape {
        let ranks = |label: &str| -> usize { parts.iter().filter(|p| p.0 == label).map(|p| p.1).product() };
        shape.batch = shape.batch.div_ceil(ranks("b"));
        (shape.heads, shape.kv_heads) =
            (shape.heads.div_ceil(ranks("g")), shape.kv_heads.div_ceil(ranks("g")));
    }
    here
}

/// What `ranks` ranks compute before the losses of a loss over rows of the vocabulary, of `vocabulary` in all: log-sum-exps of their
/// rows, and of all.
pub(super) fn logit_sums(loss: &LinearCrossEntropy, vocabulary: usize, ranks: usize) -> [Op; 2] {
    let n = loss.x.rows;
    let numbers =
        |rows: usize| -> View { Buffer { id: u32::MAX, len: rows * n, dtype: DType::F32 }.matrix(rows, n) };
    let (lse, target_logit) = (numbers(2).rows(0, 1), numbers(2).rows(1, 1));
    let tensor_shard = VocabularyShard { first: 0, of: vocabulary };
    let LinearCrossEntropy { x, weight, targets, .. } = *loss;
    [
        LogitSums { x, weight, tensor_shard, targets, lse, target_logit }.into(),
        CombineLogSums { parts: numbers(2 * ranks), lse, target_logit }.into(),
    ]
}

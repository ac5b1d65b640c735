//! Element types of operands.
//!
//! An operator has one type for its activations and their gradients, f32 or bf16: that of the first of them. Parameters
//! and their gradients may each be of any float type; a sum that a product adds to a gradient is formed in f32 and
//! rounded when it is stored. Indices and the counters of random numbers are u32, codes of block-quantised values u8. Everything else
//! (optimizer state, statistics, losses) is f32. A copy converts between any two float types, a fill writes any; attention writes its
//! results as f32 where they are terms that are summed or merged later; a sum of two matrices, and what is encoded or decoded, has one float
//! type, as gradients of parameters are summed and encoded too.

use super::{Op, Operand};
use crate::{TensorError, View};
use bessemer_units::DType;

/// Names of the operands that hold indices, counts or counters.
const INDICES: [&str; 18] = [
    "counters",
    "counts",
    "documents",
    "experts",
    "groups",
    "ids",
    "kept",
    "live",
    "offsets",
    "places",
    "positions",
    "preferred",
    "routed",
    "rows",
    "shadow_offsets",
    "slots",
    "sources",
    "targets",
];

/// Names of the operands that hold codes of block-quantised values.
const CODES: [&str; 3] = ["codes", "m_codes", "v_codes"];

/// Whether these are all f32 beside activations that are not: partial results, and terms of gradients.
fn is_wider(views: &[View], activation: &View) -> bool {
    activation.dtype() != DType::F32 && views.iter().all(|view| view.dtype() == DType::F32)
}

/// Names of the operands that hold activations or gradients of activations.
fn activations(op: &Op) -> &'static [&'static str] {
    match op {
        Op::Activation(_)
        | Op::Dropout(_)
        | Op::Norm(_)
        | Op::NormOfSums(_)
        | Op::Scale(_)
        | Op::Magnitudes(_) => &["x", "out"],
        Op::ActivationBackward(_)
        | Op::NormBackward(_)
        | Op::NormBackwardOfSums(_)
        | Op::MagnitudesBackward(_) => &["x", "dout", "dx"],
        Op::NormGradientSums(_) => &["x", "dout"],
        Op::Add(_) => &["a", "b", "out"],
        Op::AddGatedRows(_) => &["x", "y", "out"],
        Op::AddGatedRowsBackward(_) => &["dout", "x", "y", "dx", "dy"],
        Op::Attention(o) if is_wider(&[o.out], &o.q) => &["q", "k", "v"],
        Op::Attention(_) => &["q", "k", "v", "out"],
        Op::AttentionBackward(o) if is_wider(&[o.dq, o.dk, o.dv], &o.q) => &["q", "k", "v", "out", "dout"],
        Op::AttentionBackward(_) => &["q", "k", "v", "out", "dout", "dq", "dk", "dv"],
        Op::CombineRows(_) | Op::Dispatch(_) => &["x", "out"],
        Op::CombineRowsBackward(_) => &["dout", "x", "dx"],
        Op::Dequantise(_) => &["dst"],
        Op::DispatchBackward(_) => &["dout", "dx"],
        Op::Embedding(_) => &["out"],
        Op::EmbeddingBackward(_) => &["dout"],
        Op::Gated(_) => &["gate", "up", "out"],
        Op::GroupedLinear(_) => &["x", "out"],
        Op::GroupedLinearBackwardInput(_) => &["dy", "dx"],
        Op::GroupedLinearBackwardWeight(_) => &["x", "dy"],
        Op::GatedBackward(_) => &["gate", "up", "dout", "dgate", "dup"],
        Op::Linear(_) => &["x", "pre", "residual", "out"],
        Op::LinearBackwardInput(_) => &["dy", "pre", "dx"],
        Op::LinearBackwardWeight(_) => &["x", "dy"],
        Op::LinearCrossEntropy(_) | Op::LinearCrossEntropyShard(_) => &["x", "dx"],
        Op::LogitSums(_) | Op::Rope(_) | Op::RowSums(_) => &["x"],
        Op::Quantise(_) => &["src"],
        _ => &[],
    }
}

/// Names of the operands that hold parameters or gradients of parameters.
fn parameters(op: &Op) -> &'static [&'static str] {
    match op {
        Op::AdamW(_) | Op::AdamWInt8(_) => &["param", "grad"],
        Op::AdaptedSquares(_) => &["weight", "a", "b"],
        Op::AddShadowGradients(_) => &["dweight"],
        Op::Magnitudes(_) => &["bias", "magnitude"],
        Op::MagnitudesBackward(_) => &["bias", "magnitude", "dmagnitude"],
        Op::Embedding(_) => &["table", "positions.table"],
        Op::EmbeddingBackward(_) => &["dtable", "positions.table"],
        Op::Linear(_) | Op::Norm(_) | Op::NormOfSums(_) => &["weight", "bias"],
        Op::GroupedLinear(_) | Op::GroupedLinearBackwardInput(_) => &["weight"],
        Op::GroupedLinearBackwardWeight(_) => &["dweight"],
        Op::LinearBackwardInput(_) | Op::LogitSums(_) | Op::NormGradientSums(_) => &["weight"],
        Op::LinearBackwardWeight(_) => &["dweight", "dbias"],
        Op::LinearCrossEntropy(_) => &["weight", "dweight", "teacher.weight"],
        Op::LinearCrossEntropyShard(_) => &["weight", "dweight"],
        Op::Lion(_) | Op::Sgd(_) => &["grad"],
        Op::NormBackward(_) | Op::NormBackwardOfSums(_) => &["weight", "dweight", "dbias"],
        Op::SumSquares(_) => &["x"],
        _ => &[],
    }
}

/// Checks the element type of an operand.
fn wanted(op: &Op, o: &Operand, activation: Option<DType>) -> Result<(), &'static str> {
    let found = o.view.dtype();
    let when = |fine: bool, wanted| if fine { Ok(()) } else { Err(wanted) };
    if INDICES.contains(&o.name) {
        return when(found == DType::U32, "u32");
    }
    if CODES.contains(&o.name) {
        return when(found == DType::U8, "u8");
    }
    if matches!(op, Op::Copy(_) | Op::Fill(_)) || parameters(op).contains(&o.name) {
        return when(found.is_float(), "f32, bf16 or f16");
    }
    if !activations(op).contains(&o.name) {
        return when(found == DType::F32, "f32");
    }
    match activation {
        Some(DType::Bf16) => when(found == DType::Bf16, "bf16 as the operator's other activations"),
        Some(DType::F32) => when(found == DType::F32, "f32 as the operator's other activations"),
        Some(DType::F16) if matches!(op, Op::Add(_) | Op::Dequantise(_) | Op::Quantise(_)) => {
            when(found == DType::F16, "f16 as the other operands")
        }
        _ => when(false, "f32 or bf16"),
    }
}

impl Op {
    /// Type of the operator's activations, if it has any.
    pub fn activation_dtype(&self) -> Option<DType> {
        let names = activations(self);
        self.operands().iter().find(|o| names.contains(&o.name)).map(|o| o.view.dtype())
    }

    /// Whether the operand of this name holds activations or gradients of activations.
    pub fn is_activation(&self, operand: &str) -> bool {
        activations(self).contains(&operand)
    }

    /// Errors, naming the operand, unless every operand has the type that the operator needs.
    pub(super) fn check_dtypes(&self) -> Result<(), TensorError> {
        let activation = self.activation_dtype();
        for o in self.operands().iter() {
            wanted(self, o, activation).map_err(|wanted| TensorError::DType {
                op: self.name(),
                operand: o.name,
                wanted,
                found: o.view.dtype(),
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;
    use crate::op::{Add, AttentionBackward, AttentionMask, AttentionShape, Copy, Linear, Norm, NormKind};

    fn matrix(id: u32, dtype: DType) -> View {
        Buffer { id, len: 16, dtype }.matrix(4, 4)
    }

    fn row(id: u32, dtype: DType) -> View {
        Buffer { id, len: 4, dtype }.vector()
    }

    fn error(op: impl Into<Op>) -> String {
        op.into().check().map_or_else(|e| e.to_string(), |()| "fine".into())
    }

    #[test]
    fn activations_share_one_type_and_weights_are_of_any_float_type() {
        let linear = |x, weight, out| Linear {
            x: matrix(0, x),
            weight: matrix(1, weight),
            bias: None,
            activation: None,
            residual: None,
            rowwise: false,
            out: matrix(2, out),
        };
        use DType::{Bf16, F16, F32, U32};
        assert_eq!(error(linear(Bf16, F32, Bf16)), "fine");
        assert_eq!(
            error(linear(Bf16, F32, F32)),
            "linear: out should be bf16 as the operator's other activations, found f32"
        );
        assert_eq!(
            error(linear(F32, F32, Bf16)),
            "linear: out should be f32 as the operator's other activations, found bf16"
        );
        assert_eq!(error(linear(Bf16, Bf16, Bf16)), "fine");
        assert_eq!(error(linear(F32, F16, F32)), "fine");
        assert_eq!(error(linear(F32, U32, F32)), "linear: weight should be f32, bf16 or f16, found u32");
        assert_eq!(error(linear(F16, F32, F16)), "linear: x should be f32 or bf16, found f16");
        assert_eq!(error(linear(U32, F32, F32)), "linear: x should be f32 or bf16, found u32");
        assert_eq!(error(Copy { src: matrix(0, F16), dst: matrix(1, Bf16) }), "fine");
        let add = |a, b| error(Add { a: matrix(0, a), b: matrix(1, b), out: matrix(2, a) });
        assert_eq!((add(F16, F16).as_str(), add(Bf16, Bf16).as_str()), ("fine", "fine"));
        assert_eq!(add(F16, F32), "add: b should be f16 as the other operands, found f32");
    }

    #[test]
    fn statistics_stay_f32_and_every_activation_is_looked_at() {
        use DType::{Bf16, F32};
        let norm = |rstd| Norm {
            kind: NormKind::Rms,
            x: matrix(0, Bf16),
            weight: row(1, F32),
            bias: None,
            out: matrix(2, Bf16),
            mean: None,
            rstd: row(3, rstd),
            eps: 1e-5,
        };
        assert_eq!(error(norm(F32)), "fine");
        assert_eq!(error(norm(Bf16)), "norm: rstd should be f32, found bf16");
        let mixed = Add { a: matrix(0, Bf16), b: matrix(1, F32), out: matrix(2, Bf16) };
        assert!(error(mixed).starts_with("add: b should be bf16"), "{}", error(mixed));
        let shape = AttentionShape { batch: 2, seq: 2, heads: 1, kv_heads: 1, head_dim: 4, scale: 1.0 };
        let m = |id| matrix(id, Bf16);
        let op = AttentionBackward {
            shape,
            q: m(0),
            k: m(1),
            v: m(2),
            out: m(3),
            lse: Buffer { id: 4, len: 4, dtype: F32 }.matrix(2, 2),
            dout: m(5),
            dq: m(6),
            dk: m(7),
            dv: m(8),
            mask: AttentionMask::default(),
            dropout: None,
        };
        assert_eq!(error(op), "fine");
        let odd = AttentionBackward { dk: matrix(7, F32), ..op };
        assert!(error(odd).starts_with("attention_backward: dk should be bf16"), "{}", error(odd));
        let f = |id| matrix(id, F32);
        assert_eq!(error(AttentionBackward { dq: f(6), dk: f(7), dv: f(8), ..op }), "fine");
    }
}

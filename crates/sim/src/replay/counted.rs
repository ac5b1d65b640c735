//! Operators that touch as many rows as counts of the step give them: those of experts.

use bessemer_tensor::View;
use bessemer_tensor::op::Op;

/// Rows that the operator has room for; none for an operator that touches all of its rows.
pub fn counted_rows(op: &Op) -> Option<usize> {
    match op {
        Op::GroupedLinear(o) => Some(o.x.rows),
        Op::GroupedLinearBackwardInput(o) => Some(o.dy.rows),
        Op::GroupedLinearBackwardWeight(o) => Some(o.x.rows),
        Op::Gated(o) if o.live.is_some() => Some(o.gate.rows),
        Op::GatedBackward(o) if o.live.is_some() => Some(o.gate.rows),
        _ => None,
    }
}

/// Counts of the rows that the operator touches: their offsets, or their number. None for an operator that touches all of its rows.
pub fn counted_by(op: &Op) -> Option<View> {
    match op {
        Op::GroupedLinear(o) => Some(o.offsets),
        Op::GroupedLinearBackwardInput(o) => Some(o.offsets),
        Op::GroupedLinearBackwardWeight(o) => Some(o.offsets),
        Op::Gated(o) => o.live,
        Op::GatedBackward(o) => o.live,
        _ => None,
    }
}

/// The operator on so many rows; none for an operator that touches all of its rows.
pub fn on_rows(op: &Op, rows: usize) -> Option<Op> {
    let cut = |view: View| View { rows, ..view };
    let mut op = op.clone();
    match &mut op {
        Op::GroupedLinear(o) => (o.x, o.out) = (cut(o.x), cut(o.out)),
        Op::GroupedLinearBackwardInput(o) => (o.dy, o.dx) = (cut(o.dy), cut(o.dx)),
        Op::GroupedLinearBackwardWeight(o) => (o.x, o.dy) = (cut(o.x), cut(o.dy)),
        Op::Gated(o) if o.live.is_some() => (o.gate, o.up, o.out) = (cut(o.gate), cut(o.up), cut(o.out)),
        Op::GatedBackward(o) if o.live.is_some() => {
            (o.gate, o.up, o.dout) = (cut(o.gate), cut(o.up), cut(o.dout));
            (o.dgate, o.dup) = (cut(o.dgate), cut(o.dup));
        }
        _ => return None,
    }
    Some(op)
}

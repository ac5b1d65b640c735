//! The pass `fuse`: merges nodes that one launch can compute, where there is no communication in between.
//!
//! | nodes | one launch |
//! |---|---|
//! | `y = linear(x)`, `out = a + y` | `linear` with `a` as its residual |
//! | token rows, position rows, their sum | `embedding` with learned positions |
//! | gradients of position table and token table from one gradient | `embedding_backward` with positions |
//!
//! A value between the two that another node reads stays, and with it both nodes.

use crate::node::{Launch, Node};
use crate::unit::{Phase, UnitProgram};
use crate::value::Class;
use bessemer_tensor::View;
use bessemer_tensor::op::{Add, Embedding, EmbeddingBackward, Linear, Op, PositionTable};

/// Fuses every list.
pub fn fuse(unit: &mut UnitProgram) {
    for phase in Phase::ALL {
        let mut at = 0;
        while at < unit.list(phase).len() {
            let list = unit.list(phase);
            let fused = match list[at].op() {
                Some(Op::Add(add)) => sum(unit, phase, at, *add),
                Some(Op::EmbeddingBackward(op)) => tables(list, at, *op),
                _ => None,
            };
            if let Some(Fused { op, gone }) = fused {
                let list = &mut unit.lists[phase.index()];
                list[at] = Node::launch(op);
                for index in gone.iter().rev() {
                    list.remove(*index);
                }
                at -= gone.len();
            }
            at += 1;
        }
    }
}

/// An operator in place of one, and the nodes before it that it makes unnecessary, ascending.
struct Fused {
    op: Op,
    gone: Vec<usize>,
}

/// The only node that writes `view`, before `end`, if nothing but the node at `end` reads it.
fn only_maker(unit: &UnitProgram, phase: Phase, view: View, end: usize) -> Option<usize> {
    let id = view.buffer.id;
    if unit.values[id as usize].class != Class::Local || unit.reads_first(Phase::Backward, id as usize) {
        return None;
    }
    let touching = |node: &Node| node.touches().iter().any(|t| t.view.buffer.id == id);
    let touches: Vec<usize> =
        (0..unit.list(phase).len()).filter(|i| touching(&unit.list(phase)[*i])).collect();
    match touches[..] {
        [maker, reader] if reader == end => Some(maker),
        _ => None,
    }
}

fn sum(unit: &UnitProgram, phase: Phase, at: usize, add: Add) -> Option<Fused> {
    let list = unit.list(phase);
    let maker = only_maker(unit, phase, add.b, at)?;
    match list[maker] {
        Node::Launch(Launch { op: Op::Linear(linear), .. })
            if linear.residual.is_none() && linear.activation.is_none() =>
        {
            // Operands of the product must still be valid at the sum.
            let op = Linear { residual: Some(add.a), out: add.out, ..linear };
            Some(Fused { op: op.into(), gone: vec![maker] })
        }
        Node::Launch(Launch { op: Op::Embedding(positions), .. }) => {
            let tokens_at = only_maker(unit, phase, add.a, at)?;
            let Some(Op::Embedding(tokens)) = list[tokens_at].op() else { return None };
            if tokens.tensor_shard.is_some() || tokens.positions.is_some() || positions.tensor_shard.is_some()
            {
                return None;
            }
            let table = PositionTable { table: positions.table, positions: positions.ids };
            let op = Embedding { positions: Some(table), out: add.out, ..*tokens };
            let mut gone = vec![tokens_at, maker];
            gone.sort_unstable();
            Some(Fused { op: op.into(), gone })
        }
        _ => None,
    }
}

/// The tokens' gradient at `at`, and the positions' right before it.
fn tables(list: &[Node], at: usize, tokens: EmbeddingBackward) -> Option<Fused> {
    let before = at.checked_sub(1)?;
    let Some(Op::EmbeddingBackward(positions)) = list[before].op() else { return None };
    if tokens.tensor_shard.is_some() || positions.tensor_shard.is_some() || tokens.positions.is_some() {
        return None;
    }
    (tokens.dout == positions.dout && positions.positions.is_none()).then(|| {
        let table = PositionTable { table: positions.dtable, positions: positions.ids };
        let op = EmbeddingBackward { positions: Some(table), ..tokens };
        Fused { op: op.into(), gone: vec![before] }
    })
}

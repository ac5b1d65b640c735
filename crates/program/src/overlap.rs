//! The pass `overlap`: collectives concurrent with products.
//!
//! Rows of a product do not depend on each other, so a product is made in pieces of rows:
//! - after an all-gather of the forward pass, each piece as soon as its rows have arrived, while the next ones arrive;
//! - before an all-reduce or a reduce-scatter, each piece is sent while the next is made; where all rows stay here, the gradient
//!   of a linear map's input is made before those of its parameters, which then run concurrently with the sum.
//!
//! A started collective is waited for before the first node that touches its result. All-gathers of the backward pass wait as a
//! whole. Bits are unchanged: kernels choose how to make a product by its rows only below [`LEAST_ROWS`].

use crate::node::{Collective, CollectiveKind, Launch, Node};
use crate::unit::{Phase, UnitProgram};
use bessemer_tensor::View;
use bessemer_tensor::op::Op;
use std::ops::Range;

/// Pieces of a product, and most of an exchange of rows.
pub(crate) const PIECES: usize = 4;
/// Least rows of a piece.
pub const LEAST_ROWS: usize = 32;

/// The pieces of so many rows.
fn pieces(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..PIECES).map(move |i| rows * i / PIECES..rows * (i + 1) / PIECES)
}

/// Rewrites every list that has collectives next to products.
pub fn overlap(unit: &mut UnitProgram) {
    for phase in Phase::ALL {
        let list = std::mem::take(&mut unit.lists[phase as usize]);
        let list = arriving(list, matches!(phase, Phase::Forward | Phase::Score));
        unit.lists[phase as usize] = leaving(list);
    }
}

/// A product for some of its rows.
fn of_rows(op: &Op, rows: &Range<usize>) -> Op {
    let part = |view: View| view.rows(rows.start, rows.len());
    match op {
        Op::Linear(o) => Op::Linear(bessemer_tensor::op::Linear {
            x: part(o.x),
            out: part(o.out),
            activation: o.activation.map(|(kind, pre)| (kind, part(pre))),
            residual: o.residual.map(part),
            ..*o
        }),
        Op::LinearBackwardInput(o) => Op::LinearBackwardInput(bessemer_tensor::op::LinearBackwardInput {
            dy: part(o.dy),
            dx: part(o.dx),
            activation: o.activation.map(|(kind, pre)| (kind, part(pre))),
            ..*o
        }),
        other => other.clone(),
    }
}

/// The rows of a product whose pieces may be made one by one: of a product that reads (or writes) all of `view`.
fn product(node: &Node, reads: Option<View>, makes: Option<View>) -> Option<usize> {
    let Node::Launch(Launch { op, first_only: false, .. }) = node else { return None };
    let (x, out) = match op {
        Op::Linear(o) => (o.x, o.out),
        Op::LinearBackwardInput(o) if !o.accumulate => (o.dy, o.dx),
        _ => return None,
    };
    let fits = reads.is_none_or(|view| view == x) && makes.is_none_or(|view| view == out);
    (fits && out.rows >= PIECES * LEAST_ROWS).then_some(out.rows)
}

/// Numbers for `count` new collectives of a list.
pub(crate) fn numbers(list: &[Node], count: usize) -> Range<usize> {
    let id = |node: &Node| match node {
        Node::Collective(c) | Node::Start(c) => c.id + 1,
        Node::Launch(_) | Node::Wait { .. } | Node::Offload(_) | Node::Reload(_) => 0,
    };
    let first = list.iter().map(id).max().unwrap_or(0);
    first..first + count
}

/// The part of a collective that is about some rows.
fn some_rows(whole: &Collective, id: usize, rows: Range<usize>) -> Collective {
    Collective { id, rows, name: format!("{}, some rows", whole.name), ..whole.clone() }
}

pub(crate) fn wait(c: &Collective) -> Node {
    Node::Wait { id: c.id, src: c.src, dst: c.dst, versions: Vec::new() }
}

/// Makes pieces of products right after an all-gather.
fn arriving(mut list: Vec<Node>, wanted: bool) -> Vec<Node> {
    let mut at = 0;
    while wanted && at + 1 < list.len() {
        let found = match &list[at] {
            Node::Collective(c) if c.kind == CollectiveKind::AllGather => {
                product(&list[at + 1], Some(c.dst), None).map(|rows| (c.clone(), rows))
            }
            _ => None,
        };
        if let Some((gather, rows)) = found {
            let ids = numbers(&list, PIECES);
            let parts: Vec<Collective> =
                pieces(rows).zip(ids).map(|(rows, id)| some_rows(&gather, id, rows)).collect();
            let op = list[at + 1].op().cloned();
            let mut nodes: Vec<Node> = parts.iter().cloned().map(Node::Start).collect();
            for part in &parts {
                nodes.push(wait(part));
                nodes.extend(op.as_ref().map(|op| Node::launch(of_rows(op, &part.rows))));
            }
            let count = nodes.len();
            list.splice(at..at + 2, nodes);
            at += count - 1;
        }
        at += 1;
    }
    list
}

/// Products right before a sum.
fn leaving(mut list: Vec<Node>) -> Vec<Node> {
    let mut at = 1;
    while at < list.len() {
        let found = match &list[at] {
            Node::Collective(c)
                if matches!(c.kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) =>
            {
                product(&list[at - 1], None, Some(c.src)).map(|rows| (c.clone(), rows))
            }
            _ => None,
        };
        let Some((sum, rows)) = found else {
            at += 1;
            continue;
        };
        let ids = numbers(&list, PIECES);
        let parts: Vec<Collective> =
            pieces(rows).zip(ids).map(|(rows, id)| some_rows(&sum, id, rows)).collect();
        let op = list[at - 1].op().cloned();
        let mut nodes = Vec::with_capacity(2 * PIECES);
        for part in &parts {
            nodes.extend(op.as_ref().map(|op| Node::launch(of_rows(op, &part.rows))));
            nodes.push(Node::Start(part.clone()));
        }
        // The gradients of the same map's parameters run concurrently with the sum.
        let gradients = sum.kind == CollectiveKind::AllReduce
            && at >= 2
            && matches!(
                (list[at - 2].op(), &op),
                (Some(Op::LinearBackwardWeight(w)), Some(Op::LinearBackwardInput(i))) if w.dy == i.dy
            );
        let begin = if gradients { at - 2 } else { at - 1 };
        let mut rest = list.split_off(at + 1);
        let beside = if gradients { Some(list.remove(at - 2)) } else { None };
        list.truncate(begin);
        list.extend(nodes);
        list.extend(beside);
        let touches = |node: &Node| {
            let mine = |id: u32| id == sum.src.buffer.id || id == sum.dst.buffer.id;
            node.touches().iter().any(|t| mine(t.view.buffer.id))
        };
        let first = rest.iter().position(touches).unwrap_or(rest.len());
        let later = rest.split_off(first);
        list.extend(rest);
        list.extend(parts.iter().map(wait));
        at = list.len();
        list.extend(later);
    }
    list
}

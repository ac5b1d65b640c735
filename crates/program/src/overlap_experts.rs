//! The pass `overlap_experts`: exchanges of rows concurrent with products of experts (He et al. 2022, FasterMoE, smart schedule).
//!
//! An exchange of tokens' rows for experts goes in pieces by blocks of ranks ([`ExchangePiece`]). Rows that arrive are in the order of the ranks
//! they come from, so a piece is some groups of the received rows, and operators on it read these groups' offsets:
//!
//! ```text
//! network   S1 S2 S3 ......... R1 R2 R3
//! device    S0 C0 shadows R0 C1 .. C2 .. C3  weight gradients, operators that need no results
//! ```
//! S sends rows to their experts, C is the operators of experts on received rows, R sends results back; number 0 are the own rows. Gradients
//! of the experts' matrices follow, each of all rows. Operators on rows for shadows run before the first wait for rows; later ones that need no
//! results run before the wait for results.
//!
//! Bits are unchanged: a row's values do not depend on the other rows, and sums over rows are not cut. Exchanges whose groups have fewer
//! than [`LEAST_ROWS`] rows, if all experts have as many, stay whole: the matrices of all experts are read once for each piece.

use crate::node::{ByCounts, Collective, ExchangePiece, Launch, Node};
use crate::overlap::{LEAST_ROWS, PIECES, numbers, wait};
use crate::rank::Rank;
use crate::unit::{Phase, UnitProgram};
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, Op};
use std::collections::BTreeSet;
use std::ops::Range;

/// Rewrites every list of a unit whose experts are sharded over the ranks of an axis.
pub fn overlap_experts(unit: &mut UnitProgram, rank: Rank) {
    let groups = unit.lists.iter().flatten().find_map(|node| match node.op() {
        Some(Op::ReceivedGroups(op)) => Some(op.groups),
        _ => None,
    });
    let Some(groups) = groups else { return };
    for phase in Phase::ALL {
        let list = std::mem::take(&mut unit.lists[phase.index()]);
        unit.lists[phase.index()] = in_pieces(list, &Groups { rank, offsets: groups });
    }
}

/// Groups of the rows that a rank's experts receive.
struct Groups {
    rank: Rank,
    offsets: View,
}

impl Groups {
    /// Offsets of the groups of a piece.
    fn of(&self, piece: ExchangePiece) -> View {
        let Rank { degree, index, .. } = self.rank;
        let (sources, here) = (piece.sources(degree, index), (self.offsets.cols - 1) / degree);
        self.offsets.columns(sources.start * here, sources.len() * here + 1)
    }

    /// The operator for the rows of some groups; none if it cannot be made in pieces.
    fn cut(&self, node: &Node, offsets: View) -> Option<Node> {
        let Node::Launch(launch @ Launch { first_only: false, .. }) = node else { return None };
        let mut op = launch.op.clone();
        let of = match &mut op {
            Op::GroupedLinear(o) => &mut o.offsets,
            Op::GroupedLinearBackwardInput(o) => &mut o.offsets,
            Op::Gated(o) => o.live.as_mut()?,
            Op::GatedBackward(o) => o.live.as_mut()?,
            _ => return None,
        };
        if of.buffer.id != self.offsets.buffer.id {
            return None;
        }
        *of = offsets;
        Some(Node::Launch(Launch { op, ..launch.clone() }))
    }
}

/// Rows of a piece that an operator touches, as a range of the offsets of their groups, with the buffer of these; none for an operator that
/// touches all rows.
pub(crate) fn rows_of_piece(node: &Node) -> Option<(u32, Range<usize>)> {
    let offsets = match node.op()? {
        Op::Gated(o) => o.live?,
        Op::GatedBackward(o) => o.live?,
        _ => return None,
    };
    (offsets.cols > 1).then(|| (offsets.buffer.id, offsets.offset..offsets.offset + offsets.cols - 1))
}

/// Values that nodes read or write.
#[derive(Default)]
struct Touched {
    all: BTreeSet<usize>,
    written: BTreeSet<usize>,
}

impl Touched {
    fn of<'n>(nodes: impl IntoIterator<Item = &'n Node>) -> Touched {
        let mut touched = Touched::default();
        nodes.into_iter().for_each(|node| touched.add(node));
        touched
    }

    fn add(&mut self, node: &Node) {
        for touch in node.touches() {
            self.all.insert(touch.value());
            if touch.access != Access::Read {
                self.written.insert(touch.value());
            }
        }
    }

    /// Whether these nodes and this one do not commute.
    fn conflicts(&self, node: &Node) -> bool {
        node.touches().iter().any(|touch| match touch.access {
            Access::Read => self.written.contains(&touch.value()),
            _ => self.all.contains(&touch.value()),
        })
    }
}

fn rows_of(node: &Node, to_experts: bool) -> Option<&Collective> {
    match node {
        Node::Collective(c) => match c.by_counts? {
            ByCounts::Rows { to_experts: found, piece: ExchangePiece::WHOLE, .. } if found == to_experts => {
                Some(c)
            }
            _ => None,
        },
        _ => None,
    }
}

/// Whether rows for experts are many enough.
fn is_large(c: &Collective) -> bool {
    let experts = c.by_counts.map_or(1, |by| by.view().cols.max(2) - 1);
    c.src.rows >= LEAST_ROWS * experts
}

fn in_pieces(mut list: Vec<Node>, groups: &Groups) -> Vec<Node> {
    let mut at = 0;
    while let Some(first) = (at..list.len()).find(|at| rows_of(&list[*at], true).is_some_and(is_large)) {
        at = first + 1;
        let is_exchange = |node: &Node| rows_of(node, true).is_some() || rows_of(node, false).is_some();
        let Some(last) = (at..list.len()).find(|at| is_exchange(&list[*at])) else { break };
        let ids = numbers(&list, 2 * PIECES);
        let layer = Layer { list: &list, first, last, groups };
        if let Some(nodes) = layer.in_pieces(ids.start) {
            let rest = list.len() - last;
            list = nodes;
            at = list.len() - rest;
        }
    }
    list
}

/// The operators between an exchange and that of their results.
struct Layer<'a> {
    list: &'a [Node],
    first: usize,
    last: usize,
    groups: &'a Groups,
}

/// Operators that are not made in pieces, by the time at which they run.
#[derive(Default)]
struct Others {
    /// Before the first piece.
    before: Vec<Node>,
    /// Between the first and the second piece.
    beside: Vec<Node>,
    /// After the last one.
    after: Vec<Node>,
}

impl Layer<'_> {
    /// The list with this layer in pieces; none if its order forbids it. `id`: the first free number of a collective.
    fn in_pieces(&self, id: usize) -> Option<Vec<Node>> {
        let (to, back) = (rows_of(&self.list[self.first], true)?, rows_of(&self.list[self.last], false)?);
        let ranks = self.groups.rank.degree;
        let of = ranks.min(PIECES);
        let products: Vec<&Node> = self.between().filter(|node| self.is_product(node)).collect();
        let others = self.others(back)?;
        let exchange = |whole: &Collective, number: usize, id: usize| {
            let piece = ExchangePiece { number, of };
            let by_counts = whole.by_counts.map(|by| by.of_piece(piece));
            let name = format!("{}, piece {number} of {of}", whole.name);
            let c = Collective { id, name, by_counts, ..whole.clone() };
            if piece.is_local(ranks) { Node::Collective(c) } else { Node::Start(c) }
        };
        let until = |node: &Node| match node {
            Node::Start(c) => Some(wait(c)),
            _ => None,
        };
        let sent: Vec<Node> = (0..of).map(|number| exchange(to, number, id + number)).collect();
        let returned: Vec<Node> = (0..of).map(|number| exchange(back, number, id + of + number)).collect();
        let mut nodes = self.list[..self.first].to_vec();
        nodes.extend(sent.iter().cloned());
        nodes.extend(others.before);
        let mut beside = others.beside;
        for number in 0..of {
            nodes.extend(until(&sent[number]));
            let offsets = self.groups.of(ExchangePiece { number, of });
            nodes.extend(products.iter().filter_map(|node| self.groups.cut(node, offsets)));
            nodes.append(&mut beside);
            nodes.push(returned[number].clone());
        }
        let waits: Vec<Node> = returned.iter().filter_map(until).collect();
        let rest = &self.list[self.last + 1..];
        let launches = rest.iter().position(|node| node.op().is_none()).unwrap_or(rest.len());
        // Later operators run before the wait for results, unless they depend on it or on operators that stay after it.
        let (mut held, mut stay) = (Touched::of(&waits), Vec::new());
        for node in others.after.iter().chain(&rest[..launches]) {
            if node.op().is_none() || held.conflicts(node) {
                held.add(node);
                stay.push(node.clone());
            } else {
                nodes.push(node.clone());
            }
        }
        nodes.extend(waits);
        nodes.append(&mut stay);
        nodes.extend_from_slice(&rest[launches..]);
        Some(nodes)
    }

    fn between(&self) -> impl DoubleEndedIterator<Item = &Node> {
        self.list[self.first + 1..self.last].iter()
    }

    fn is_product(&self, node: &Node) -> bool {
        self.groups.cut(node, self.groups.offsets).is_some()
    }

    /// Sorts the other operators of the layer; none if one of them must run between two products of a piece.
    fn others(&self, back: &Collective) -> Option<Others> {
        let products = Touched::of(self.between().filter(|node| self.is_product(node)));
        // Values received or computed so far, and operators that run after the last piece.
        let (mut made, mut after) = (Touched::of([&self.list[self.first]]), Touched::default());
        let (mut others, mut early) = (Others::default(), Vec::new());
        for node in self.between() {
            if self.is_product(node) {
                // It would run before an operator that it depends on.
                if after.conflicts(node) {
                    return None;
                }
                made.add(node);
            } else if made.conflicts(node) || after.conflicts(node) || node.op().is_none() {
                if node.touches().iter().any(|touch| touch.view.buffer.id == back.dst.buffer.id) {
                    return None;
                }
                after.add(node);
                others.after.push(node.clone());
            } else {
                early.push(node);
            }
        }
        // Operators that a product depends on, directly or not, run before the first one.
        let mut needed = products;
        for node in early.into_iter().rev() {
            if needed.conflicts(node) {
                needed.add(node);
                others.before.push(node.clone());
            } else {
                others.beside.push(node.clone());
            }
        }
        others.before.reverse();
        others.beside.reverse();
        Some(others)
    }
}

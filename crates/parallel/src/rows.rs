//! Pieces of rows that travel over the tensor axis, and messages over the context axis, while others are computed.

use bessemer_collectives::Started;
use bessemer_program::{ByCounts, Collective, CollectiveKind, Node, Phase, UnitProgram};
use std::collections::HashMap;

/// A collective of some rows, or a rank's messages of a permutation, in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    /// Its number in the program.
    pub(crate) id: usize,
    /// The collective; of a permutation the messages that this rank sends and receives.
    pub(crate) started: [Option<Started>; 2],
}

/// Host memory of a piece of an exchange of rows, sent and received rows, if each rank has all choices of its tokens that one
/// rank's experts can have; none for other collectives.
fn piece_bytes(c: &Collective) -> Option<u64> {
    let ByCounts::Rows { offsets, to_experts, piece } = c.by_counts? else { return None };
    let (of_tokens, received) = if to_experts { (c.src, c.dst) } else { (c.dst, c.src) };
    let rows = received.rows / offsets.rows * offsets.rows.div_ceil(piece.of);
    Some(((of_tokens.rows.min(rows) + rows) * c.src.cols * c.src.dtype().size()) as u64)
}

/// Host memory of a collective that is in flight. A message is stored at its receiver until it is read.
fn host_bytes(c: &Collective) -> u64 {
    match c.kind {
        _ if c.by_counts.is_some() => piece_bytes(c).unwrap_or(0),
        CollectiveKind::Permute => c.src.bytes() + 2 * c.dst.bytes(),
        _ => (c.rows.len() * c.src.cols * c.src.dtype().size()) as u64,
    }
}

/// The largest sum over collectives in flight at once in a list of one of the programs.
fn most<'p>(programs: impl Iterator<Item = &'p UnitProgram>, of: impl Fn(&Collective) -> u64) -> u64 {
    let of_list = |list: &[Node]| {
        let (mut held, mut sum, mut most) = (HashMap::new(), 0, 0);
        for node in list {
            match node {
                Node::Start(c) => {
                    held.insert(c.id, of(c));
                    sum += of(c);
                }
                Node::Wait { id, .. } => sum -= held.remove(id).unwrap_or(0),
                Node::Launch(_) | Node::Collective(_) | Node::Offload(_) | Node::Reload(_) => {}
            }
            most = most.max(sum);
        }
        most
    };
    lists(programs).map(of_list).max().unwrap_or(0)
}

fn lists<'p>(programs: impl Iterator<Item = &'p UnitProgram>) -> impl Iterator<Item = &'p [Node]> {
    programs.flat_map(|program| Phase::ALL.map(|phase| program.list(phase)))
}

/// The most host memory that collectives in flight take in a list of one of the programs.
pub(crate) fn most_in_flight<'p>(programs: impl Iterator<Item = &'p UnitProgram>) -> u64 {
    most(programs, host_bytes)
}

/// The most pieces of exchanges that are in flight at once, and the bytes of the largest.
pub(crate) fn exchanges_in_flight(programs: &[&UnitProgram]) -> (usize, usize) {
    let programs = || programs.iter().copied();
    let bytes = lists(programs()).flatten().filter_map(|node| match node {
        Node::Start(c) => piece_bytes(c),
        _ => None,
    });
    let most_bytes = bytes.max().unwrap_or(0);
    (most(programs(), |c| u64::from(piece_bytes(c).is_some())) as usize, most_bytes as usize)
}

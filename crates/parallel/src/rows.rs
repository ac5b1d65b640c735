//! Pieces of rows that travel over the tensor axis, and messages over the context axis, while others are computed.

use bessemer_collectives::Started;
use bessemer_program::{Collective, CollectiveKind, Node, Phase, UnitProgram};
use std::collections::HashMap;

/// A collective of some rows, or what a rank does in a permutation, that is in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    /// Its number in the program.
    pub(crate) id: usize,
    /// The collective; of a permutation the messages that this rank sends and receives.
    pub(crate) started: [Option<Started>; 2],
}

/// Host memory of a collective that is in flight. A message lies at its receiver until it is read.
fn host_bytes(c: &Collective) -> u64 {
    match c.kind {
        CollectiveKind::Permute => c.src.bytes() + 2 * c.dst.bytes(),
        _ => (c.rows.len() * c.src.cols * c.src.dtype().size()) as u64,
    }
}

/// The most host memory that collectives in flight take in a list of one of the programs.
pub(crate) fn most_in_flight<'p>(programs: impl Iterator<Item = &'p UnitProgram>) -> u64 {
    let of_list = |list: &[Node]| {
        let (mut held, mut sum, mut most) = (HashMap::new(), 0, 0);
        for node in list {
            match node {
                Node::Start(c) => {
                    held.insert(c.id, host_bytes(c));
                    sum += host_bytes(c);
                }
                Node::Wait { id, .. } => sum -= held.remove(id).unwrap_or(0),
                Node::Launch(_) | Node::Collective(_) | Node::Offload(_) | Node::Reload(_) => {}
            }
            most = most.max(sum);
        }
        most
    };
    let lists = programs.flat_map(|program| Phase::ALL.map(|phase| program.list(phase)));
    lists.map(of_list).max().unwrap_or(0)
}

//! One file a schedule: each gives the passes of every rank in order, and nothing else.
//! [`communicate`](crate::communicate) adds messages and updates.

mod gpipe;
mod interleaved;
mod one_f_one_b;
#[cfg(test)]
mod table;
mod zb_h1;

pub(crate) use gpipe::gpipe;
pub(crate) use interleaved::interleaved;
pub(crate) use one_f_one_b::one_f_one_b;
pub(crate) use zb_h1::zb_h1;

use crate::{Place, Program};

/// Stage s on rank s.
fn straight(ranks: usize) -> Vec<Place> {
    (0..ranks).map(|rank| Place { rank, chunk: 0 }).collect()
}

/// A synchronous program whose lists are empty, every micro-batch on the first route.
fn synchronous(name: &str, ranks: usize, micro_batches: usize, routes: Vec<Vec<Place>>) -> Program {
    Program {
        name: name.to_owned(),
        stages: routes[0].len(),
        updates: 1,
        routes,
        route_of: vec![0; micro_batches],
        update_of: vec![0; micro_batches],
        lists: vec![Vec::new(); ranks],
    }
}

//! One file a schedule: each gives the passes of every rank in order, and nothing else.
//! [`communicate`](crate::communicate) adds messages and updates.

mod breadth_first;
mod chimera;
mod dualpipe;
mod dualpipev;
mod gpipe;
mod interleaved;
mod one_f_one_b;
mod pipedream;
mod pipedream_2bw;
mod v_memory;
mod zb_auto;
mod zb_h1;
mod zb_h2;
mod zb_v;

#[cfg(test)]
mod table;

pub(crate) use breadth_first::breadth_first;
pub(crate) use chimera::chimera;
pub(crate) use dualpipe::dualpipe;
pub(crate) use dualpipev::dualpipev;
pub(crate) use gpipe::gpipe;
pub(crate) use interleaved::interleaved;
pub(crate) use one_f_one_b::one_f_one_b;
pub(crate) use pipedream::pipedream;
pub(crate) use pipedream_2bw::pipedream_2bw;
pub(crate) use v_memory::{v_half, v_min};
pub(crate) use zb_auto::zb_auto;
pub(crate) use zb_h1::zb_h1;
pub(crate) use zb_h2::zb_h2;
pub(crate) use zb_v::zb_v;

use crate::{Place, Program};

/// Stage s on rank s.
fn straight(ranks: usize) -> Vec<Place> {
    (0..ranks).map(|rank| Place { rank, chunk: 0 }).collect()
}

/// There and back: stages r and 2p-1-r on rank r.
fn vee(ranks: usize) -> Vec<Place> {
    let there = (0..ranks).map(|rank| Place { rank, chunk: 0 });
    there.chain((0..ranks).rev().map(|rank| Place { rank, chunk: 1 })).collect()
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

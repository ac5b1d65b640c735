//! Breadth-first pipeline (Lamy-Poirier 2023, "Breadth-First Pipeline Parallelism", arXiv 2211.05953, section 4): rank r holds
//! stages r, p+r, 2p+r, ..., its v chunks; all micro-batches pass a chunk before any passes the next one.
//!
//! Bubble `(p-1)(T_F+T_B+T_W)/v` for m >= p and v times the messages, as interleaved 1F1B has, with any number of
//! micro-batches; every rank holds the activations of all m. The gradients of a chunk are complete as soon as the last
//! micro-batch has passed it, while the chunks before it still compute.

use super::synchronous;
use crate::{Instruction, Place, Program, Shape};

pub(crate) fn breadth_first(shape: &Shape) -> Program {
    let (p, m, v) = (shape.ranks, shape.micro_batches, shape.chunks.unwrap_or(2));
    let route = (0..p * v).map(|stage| Place { rank: stage % p, chunk: stage / p }).collect();
    let mut program = synchronous("breadth-first", p, m, vec![route]);
    let passes = |chunk: usize| (0..m).map(move |micro| (micro, chunk));
    for list in &mut program.lists {
        list.extend((0..v).flat_map(passes).map(|(micro, chunk)| Instruction::forward(micro, chunk)));
        list.extend((0..v).rev().flat_map(passes).map(|(micro, chunk)| Instruction::backward(micro, chunk)));
    }
    program
}

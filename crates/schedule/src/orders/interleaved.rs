//! Interleaved 1F1B (Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", section
//! 2.2.2): rank r holds stages r, p+r, 2p+r, ..., its v chunks.
//!
//! Bubble `(p-1)(T_F+T_B+T_W)/v` for v times the messages and `p(1+(p-1)/(pv))` micro-batches held on rank 0. Needs m to
//! be a multiple of p. For many ranks and few micro-batches on fast links.

use super::{one_f_one_b::alternate, synchronous};
use crate::{Instruction, Place, Program, ScheduleError, Shape};

pub(crate) fn interleaved(shape: &Shape) -> Result<Program, ScheduleError> {
    let (p, m, v) = (shape.ranks, shape.micro_batches, shape.chunks.unwrap_or(2));
    if !m.is_multiple_of(p) {
        let advice = format!("take {} micro-batches or 1f1b, which takes any number", m.next_multiple_of(p));
        let wanted = format!("micro-batches that are a multiple of the {p} ranks");
        return Err(ScheduleError::shape("interleaved", wanted, m.to_string(), advice));
    }
    let route = (0..p * v).map(|stage| Place { rank: stage % p, chunk: stage / p }).collect();
    let mut program = synchronous("interleaved", p, m, vec![route]);
    // Groups of p micro-batches pass chunk after chunk.
    let at = |i: usize| ((i / (p * v)) * p + i % p, (i % (p * v)) / p);
    let forward = |i: usize| {
        let (micro, chunk) = at(i);
        Instruction::forward(micro, chunk)
    };
    let backward = |i: usize| {
        let (micro, chunk) = at(i);
        Instruction::backward(micro, v - 1 - chunk)
    };
    for (r, list) in program.lists.iter_mut().enumerate() {
        let warm = (2 * (p - r - 1) + (v - 1) * p).min(m * v);
        alternate(list, warm, m * v, forward, backward);
    }
    Ok(program)
}

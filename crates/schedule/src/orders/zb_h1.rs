//! ZB-H1 (Qi et al. 2024, "Zero bubble pipeline parallelism", arXiv 2401.10241): the order of 1F1B, the backward split,
//! weight parts put off until they fill what would be a bubble.
//!
//! Bubble `(p-1)(T_F+T_B-T_W)`; rank r holds `(p-r) M_B + r M_W`, at most what rank 0 of 1F1B holds. For whoever has the
//! memory of 1F1B and operators that split.

use super::{straight, synchronous};
use crate::{Instruction, Program, Shape};

pub(crate) fn zb_h1(shape: &Shape) -> Program {
    let (p, m) = (shape.ranks, shape.micro_batches);
    let mut program = synchronous("zb-h1", p, m, vec![straight(p)]);
    for (r, list) in program.lists.iter_mut().enumerate() {
        split(list, (p - 1 - r).min(m), r, m);
    }
    program
}

/// `warm` forwards, then forward and input part in turn, a weight part as soon as more than `pending` are due.
pub(super) fn split(list: &mut Vec<Instruction>, warm: usize, pending: usize, count: usize) {
    list.extend((0..warm).map(|micro| Instruction::forward(micro, 0)));
    let mut weights = 0;
    for micro in 0..count {
        if warm + micro < count {
            list.push(Instruction::forward(warm + micro, 0));
        }
        list.push(Instruction::backward_input(micro, 0));
        if micro + 1 - weights > pending {
            list.push(Instruction::backward_weight(weights, 0));
            weights += 1;
        }
    }
    list.extend((weights..count).map(|micro| Instruction::backward_weight(micro, 0)));
}

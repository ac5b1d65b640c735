//! GPipe (Huang et al. 2019, arXiv 1811.06965), also called AFAB: all forwards, then all backwards.
//!
//! Bubble `(p-1)(T_F+T_B+T_W)`; every rank holds the activations of all m micro-batches. For few micro-batches, or with
//! full recomputation, where what is held is small. Backwards run in the order of the forwards, so that gradients are
//! summed in the order of one rank without a pipeline (the paper's picture runs them in reverse, at the same cost).

use super::{straight, synchronous};
use crate::{Instruction, Program, Shape};

pub(crate) fn gpipe(shape: &Shape) -> Program {
    let (p, m) = (shape.ranks, shape.micro_batches);
    let mut program = synchronous("gpipe", p, m, vec![straight(p)]);
    for list in &mut program.lists {
        list.extend((0..m).map(|micro| Instruction::forward(micro, 0)));
        list.extend((0..m).map(|micro| Instruction::backward(micro, 0)));
    }
    program
}

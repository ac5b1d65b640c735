//! 1F1B with a flush: PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503), DAPPLE (Fan et al. 2021).
//!
//! Bubble `(p-1)(T_F+T_B+T_W)`, that of GPipe; rank r holds at most `p-r` micro-batches, however many there are. The
//! schedule to take unless there is a reason for another.

use super::{straight, synchronous};
use crate::{Instruction, Program, Shape};

pub(crate) fn one_f_one_b(shape: &Shape) -> Program {
    let (p, m) = (shape.ranks, shape.micro_batches);
    let mut program = synchronous("1f1b", p, m, vec![straight(p)]);
    for (r, list) in program.lists.iter_mut().enumerate() {
        let forward = |micro| Instruction::forward(micro, 0);
        alternate(list, (p - 1 - r).min(m), m, forward, |micro| Instruction::backward(micro, 0));
    }
    program
}

/// `warm` forwards, then forward and backward in turn, then the backwards that are left, of `count` each.
pub(super) fn alternate<T>(
    list: &mut Vec<T>,
    warm: usize,
    count: usize,
    forward: impl Fn(usize) -> T,
    backward: impl Fn(usize) -> T,
) {
    list.extend((0..warm).map(&forward));
    for i in warm..count {
        list.push(forward(i));
        list.push(backward(i - warm));
    }
    list.extend((count - warm..count).map(backward));
}

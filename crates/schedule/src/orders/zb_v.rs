//! ZB-V (Qi et al. 2024, arXiv 2401.10241, section 6): two chunks a rank, stages r and 2p-1-r, so that a micro-batch
//! comes back to where it began and its loss is computed on rank 0.
//!
//! Bubble 0 as a span for T_F = T_B = T_W; every rank holds p micro-batches (2p chunks), what rank 0 of 1F1B holds. Twice
//! the messages; full only from m = 2p-1 on. For equal parts of the backward, and embedding and loss on one rank.

use super::{synchronous, vee};
use crate::{Instruction, Program, Shape};

pub(crate) fn zb_v(shape: &Shape) -> Program {
    let (p, m) = (shape.ranks, shape.micro_batches);
    let mut program = synchronous("zb-v", p, m, vec![vee(p)]);
    for (r, list) in program.lists.iter_mut().enumerate() {
        let mut rank = Rank { list, m, forward: [0; 2], input: [0; 2], weight: [0; 2] };
        rank.fill(p, r);
    }
    program
}

/// A rank's list and how many passes of each sort, by chunk, are in it.
struct Rank<'a> {
    list: &'a mut Vec<Instruction>,
    m: usize,
    forward: [usize; 2],
    input: [usize; 2],
    weight: [usize; 2],
}

impl Rank<'_> {
    fn fill(&mut self, p: usize, r: usize) {
        (0..2 * (p - r) - 1).for_each(|_| self.f(0));
        for _ in 0..r {
            self.f(1);
            self.f(0);
        }
        for _ in 0..p - r {
            self.f(1);
            self.i(1);
            self.w(1);
        }
        while self.forward[1] < self.m {
            self.f(0);
            self.i(0);
            self.w(0);
            self.f(1);
            self.i(1);
            self.w(1);
        }
        for _ in 0..r {
            self.i(0);
            self.i(1);
        }
        for _ in 0..p - r {
            self.i(0);
            self.w(0);
        }
        while self.weight[1] < self.input[1] {
            self.w(1);
        }
        while self.weight[0] < self.input[0] {
            self.w(0);
        }
    }

    fn f(&mut self, chunk: usize) {
        if self.forward[chunk] < self.m {
            self.list.push(Instruction::forward(self.forward[chunk], chunk));
            self.forward[chunk] += 1;
        }
    }

    fn i(&mut self, chunk: usize) {
        if self.input[chunk] < self.forward[chunk] {
            self.list.push(Instruction::backward_input(self.input[chunk], chunk));
            self.input[chunk] += 1;
        }
    }

    fn w(&mut self, chunk: usize) {
        if self.weight[chunk] < self.input[chunk] {
            self.list.push(Instruction::backward_weight(self.weight[chunk], chunk));
            self.weight[chunk] += 1;
        }
    }
}

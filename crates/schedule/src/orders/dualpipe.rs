//! DualPipe (DeepSeek-V3 technical report, arXiv 2412.19437, section 3.2.1, and the code published with it): micro-batches
//! enter at both ends, and a forward of one direction runs together with a backward of the other, the messages of each
//! behind the computation of the other.
//!
//! Bubble `(R/2-1)(F&B+T_F-2T_W)` while T_W <= T_B, R ranks, F&B the time of a pair; `R+1` micro-batches held on every
//! rank; two copies of the weights, each rank holding stages r and R-1-r. Needs R even and m >= 2R, even. For expert
//! parallelism, where a layer's messages take as long as its computation.

use std::collections::VecDeque;

use super::synchronous;
use crate::{Instruction, Pass, Place, Program, ScheduleError, Shape};

pub(crate) fn dualpipe(shape: &Shape) -> Result<Program, ScheduleError> {
    let (ranks, m) = (shape.ranks, shape.micro_batches);
    if !ranks.is_multiple_of(2) {
        let advice = format!("take {} ranks, or dualpipev, which takes any number", ranks + 1);
        return Err(ScheduleError::shape("dualpipe", "an even number of ranks", ranks.to_string(), advice));
    }
    if !m.is_multiple_of(2) || m < 2 * ranks {
        let wanted = format!("an even number of micro-batches, at least twice the {ranks} ranks");
        let advice = format!("take {} micro-batches, or chimera", (2 * ranks).max(m + m % 2));
        return Err(ScheduleError::shape("dualpipe", wanted, m.to_string(), advice));
    }
    let half = m / 2;
    let down = (0..ranks).map(|rank| Place { rank, chunk: 0 }).collect();
    let up = (0..ranks).rev().map(|rank| Place { rank, chunk: 1 }).collect();
    let mut program = synchronous("dualpipe", ranks, m, vec![down, up]);
    program.route_of[half..].fill(1);
    for (r, list) in program.lists.iter_mut().enumerate() {
        let mirrored = r.min(ranks - 1 - r);
        // A rank's own direction is the one that begins nearer to it.
        let own = usize::from(r >= ranks / 2);
        Rank::new([own, 1 - own], [own * half, (1 - own) * half]).fill(list, ranks / 2, mirrored, half);
    }
    Ok(program)
}

/// Writes the list of a rank. Phase 0 is the rank's own direction (or the way there of a V), phase 1 the other.
pub(super) struct Rank {
    /// Chunk of each phase.
    chunk: [usize; 2],
    /// Number of each phase's first micro-batch.
    first: [usize; 2],
    forward: [usize; 2],
    backward: [usize; 2],
    /// Weight parts that are due, in the order of their input parts.
    due: VecDeque<Instruction>,
}

impl Rank {
    pub(super) fn new(chunk: [usize; 2], first: [usize; 2]) -> Self {
        Self { chunk, first, forward: [0; 2], backward: [0; 2], due: VecDeque::new() }
    }

    /// The eight steps of the published code: `half` ranks before the turn, this one the `at`-th of them, `count`
    /// micro-batches in each phase.
    pub(super) fn fill(mut self, list: &mut Vec<Instruction>, half: usize, at: usize, count: usize) {
        let after = half - at - 1;
        for _ in 0..2 * after {
            list.push(self.f(0));
        }
        for _ in 0..at + 1 {
            list.push(self.f(0));
            list.push(self.f(1));
        }
        for _ in 0..after {
            list.push(self.i(1));
            list.extend(self.due.pop_front());
            list.push(self.f(1));
        }
        for i in 0..count + at + 1 - 2 * half {
            if i == 0 && after == 0 {
                // Run after each other on the middle ranks: their neighbours wait for the forward.
                list.push(self.f(0));
                list.push(self.b(1));
            } else {
                list.push(self.together(0, 1));
            }
            list.push(self.together(1, 0));
        }
        for _ in 0..after {
            list.push(self.b(1));
            list.push(self.together(1, 0));
        }
        // In the second half of these the weight parts are put off to the gaps that follow.
        let middle = at.div_ceil(2);
        for i in 0..at + 1 {
            let put_off = if at % 2 == 1 { i >= middle } else { i > middle };
            list.push(if put_off { self.i(1) } else { self.b(1) });
            list.push(if i >= middle { self.i(0) } else { self.b(0) });
        }
        for _ in 0..after {
            list.extend(self.due.pop_front());
            list.push(self.i(0));
        }
        list.extend(self.due.drain(..));
    }

    fn next(&self, done: usize, phase: usize) -> Pass {
        Pass { micro: self.first[phase] + done, chunk: self.chunk[phase], version: 0 }
    }

    fn next_forward(&mut self, phase: usize) -> Pass {
        self.forward[phase] += 1;
        self.next(self.forward[phase] - 1, phase)
    }

    fn next_backward(&mut self, phase: usize) -> Pass {
        self.backward[phase] += 1;
        self.next(self.backward[phase] - 1, phase)
    }

    fn f(&mut self, phase: usize) -> Instruction {
        Instruction::Forward(self.next_forward(phase))
    }

    fn b(&mut self, phase: usize) -> Instruction {
        Instruction::Backward(self.next_backward(phase))
    }

    fn i(&mut self, phase: usize) -> Instruction {
        let pass = self.next_backward(phase);
        self.due.push_back(Instruction::BackwardWeight(pass));
        Instruction::BackwardInput(pass)
    }

    fn together(&mut self, forward: usize, backward: usize) -> Instruction {
        Instruction::Together { forward: self.next_forward(forward), backward: self.next_backward(backward) }
    }
}

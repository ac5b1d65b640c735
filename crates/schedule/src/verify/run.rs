//! The program executed, without times: does every rank come to its end, and in which order do messages arrive?

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use super::OutOfOrder;
use crate::communicate::Map;
use crate::{Flow, Instruction, Place, Program, ScheduleError};

/// State of one message.
#[derive(Clone, Copy, PartialEq)]
enum Message {
    NotYet,
    /// The rank that waits for it.
    Awaited(u32),
    /// The how-manyth from its sender to its receiver.
    Sent(u32),
}

struct Run<'a> {
    program: &'a Program,
    map: &'a Map,
    /// By flow, micro-batch and stage of the receiver.
    messages: Vec<Message>,
    /// Messages sent and received between two ranks, by sender, then receiver.
    counts: Vec<BTreeMap<usize, (u32, u32)>>,
    /// Ranks that wait in a reduction, by stage and update.
    meetings: HashMap<(usize, usize), Vec<usize>>,
    next: Vec<usize>,
    ready: Vec<usize>,
    sent: usize,
    out_of_order: Option<OutOfOrder>,
}

/// Number of messages and the first that overtakes another, for a program whose lists have been checked one by one.
pub(super) fn run(program: &Program, map: &Map) -> Result<(usize, Option<OutOfOrder>), ScheduleError> {
    let mut run = Run {
        program,
        map,
        messages: vec![Message::NotYet; 2 * program.micro_batches() * program.stages],
        counts: vec![BTreeMap::new(); program.ranks()],
        meetings: HashMap::new(),
        next: vec![0; program.ranks()],
        ready: (0..program.ranks()).rev().collect(),
        sent: 0,
        out_of_order: None,
    };
    while let Some(rank) = run.ready.pop() {
        while let Some(&instruction) = program.lists[rank].get(run.next[rank]) {
            if !run.instruction(rank, instruction) {
                break;
            }
            run.next[rank] += 1;
        }
    }
    if run.next.iter().zip(&program.lists).any(|(&next, list)| next < list.len()) {
        return Err(run.deadlock());
    }
    Ok((run.sent, run.out_of_order))
}

impl Run<'_> {
    /// Whether the rank goes on; else it will be woken.
    fn instruction(&mut self, rank: usize, instruction: Instruction) -> bool {
        match instruction {
            Instruction::Send { flow, micro, to, .. } => {
                let index = self.message(flow, micro, to);
                let count = &mut self.counts[rank].entry(to.rank).or_default().0;
                let before = std::mem::replace(&mut self.messages[index], Message::Sent(*count));
                *count += 1;
                self.sent += 1;
                if let Message::Awaited(waiting) = before {
                    self.ready.push(waiting as usize);
                }
            }
            Instruction::Receive { flow, micro, chunk, from } => {
                let index = self.message(flow, micro, Place { rank, chunk });
                let Message::Sent(number) = self.messages[index] else {
                    self.messages[index] = Message::Awaited(rank as u32);
                    return false;
                };
                let count = &mut self.counts[from.rank].entry(rank).or_default().1;
                if *count != number && self.out_of_order.is_none() {
                    let position = self.next[rank];
                    self.out_of_order = Some(OutOfOrder { from: from.rank, to: rank, position, flow, micro });
                }
                *count += 1;
            }
            Instruction::Reduce { chunk, update } => {
                let Some(stage) = self.map.stage(Place { rank, chunk }) else { return true };
                let holders = self.map.holders[stage].len();
                if holders == 1 {
                    return true;
                }
                let waiting = self.meetings.entry((stage, update)).or_default();
                if waiting.len() == holders {
                    return true;
                }
                waiting.push(rank);
                if waiting.len() < holders {
                    return false;
                }
                let others = waiting.iter().copied().filter(|&other| other != rank);
                self.ready.extend(others);
            }
            _ => {}
        }
        true
    }

    fn message(&self, flow: Flow, micro: usize, receiver: Place) -> usize {
        let stage = self.map.stage(receiver).unwrap_or(0);
        let flow = usize::from(flow == Flow::Gradient);
        (flow * self.program.micro_batches() + micro) * self.program.stages + stage
    }

    /// For which rank each rank waits, if it waits.
    fn waits(&self) -> Vec<Option<usize>> {
        let mut missing = HashMap::new();
        let mut waits_for = |rank: usize| match *self.program.lists[rank].get(self.next[rank])? {
            Instruction::Receive { from, .. } => Some(from.rank),
            Instruction::Reduce { chunk, update } => {
                let stage = self.map.stage(Place { rank, chunk })?;
                // All who wait in a meeting wait for the same rank.
                let first = missing.entry((stage, update)).or_insert_with(|| {
                    let there: HashSet<usize> =
                        self.meetings.get(&(stage, update))?.iter().copied().collect();
                    self.map.holders[stage].iter().copied().find(|holder| !there.contains(holder))
                });
                *first
            }
            _ => None,
        };
        (0..self.program.ranks()).map(&mut waits_for).collect()
    }

    /// A circle of ranks that wait for each other.
    fn deadlock(&self) -> ScheduleError {
        // Whoever stands waits for a rank that stands too: after as many steps as there are ranks one is in the circle.
        let waits_for = self.waits();
        let mut rank = waits_for.iter().position(Option::is_some).unwrap_or(0);
        for _ in 0..self.program.ranks() {
            rank = waits_for[rank].unwrap_or(rank);
        }
        let (first, mut waits, mut listed) = (rank, String::new(), 0);
        while let Some(other) = waits_for[rank] {
            let position = self.next[rank];
            let separator = if listed > 0 { "; " } else { "" };
            let instruction = self.program.lists[rank][position];
            // Writing to a string cannot fail.
            let _ = write!(
                waits,
                "{separator}rank {rank} stands at instruction {position} ({instruction}) and waits for rank {other}"
            );
            listed += 1;
            rank = other;
            if rank == first {
                break;
            }
            if listed == 16 {
                waits.push_str("; and so on");
                break;
            }
        }
        ScheduleError::Deadlock { waits }
    }
}

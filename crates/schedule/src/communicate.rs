//! Messages and updates put into a program that has only passes.
//!
//! - Receive right before the first pass that needs what another rank made, Send right after the pass that made it, and
//!   neither where both stages are on one rank.
//! - Reduce as soon as a chunk's gradients of an update are complete. Where a stage has several holders (two directions),
//!   their sum needs them all: those reductions stand behind the rank's last pass, in the order of the stages. Every rank
//!   that takes part meets them in one order, so none waits in a circle, and no rank stands still for a mirror that is later.
//! - In a program with one update Step and Gather stand at the end of the rank's list: the optimizer is the rank's own
//!   business, there is no barrier. With several updates they follow the Reduce.

use crate::{Flow, Instruction, Pass, Place, Program, ScheduleError};

/// Adds Send, Receive, Reduce, Step and Gather to a program that holds passes (and fillers) only.
///
/// # Errors
/// [`ScheduleError::Malformed`] where routes and lists do not fit together, [`ScheduleError::Instruction`] for a pass where
/// the micro-batch's route does not go, and for communication that is already there.
pub fn communicate(mut program: Program) -> Result<Program, ScheduleError> {
    let map = Map::of(&program)?;
    for rank in 0..program.ranks() {
        // One rank's passes at a time, so that the longest programs are not held twice.
        let passes = std::mem::take(&mut program.lists[rank]);
        let list = Writer::new(&program, &map, rank, &passes)?.write(&passes)?;
        program.lists[rank] = list;
    }
    Ok(program)
}

/// Stages by rank and chunk, and the routes through them.
#[derive(Debug)]
pub(crate) struct Map {
    /// Stage by rank and chunk.
    stage: Vec<Vec<usize>>,
    /// By rank: the routes that come there, and on how many chunks.
    visits: Vec<Vec<(usize, usize)>>,
    /// The ranks that hold each stage, in ascending order.
    pub(crate) holders: Vec<Vec<usize>>,
}

impl Map {
    /// Reads the routes and checks that they and the numbers of a program fit together.
    pub(crate) fn of(program: &Program) -> Result<Self, ScheduleError> {
        let malformed = |what: String| Err(ScheduleError::Malformed { what });
        let (ranks, stages) = (program.ranks(), program.stages);
        if ranks == 0 || stages == 0 || program.updates == 0 || program.routes.is_empty() {
            return malformed("at least one rank, stage, update and route are needed".to_owned());
        }
        let mut held = vec![Vec::<(usize, usize)>::new(); ranks];
        let mut visits = vec![Vec::<(usize, usize)>::new(); ranks];
        for (r, route) in program.routes.iter().enumerate() {
            if route.len() != stages {
                return malformed(format!("route {r} has {} places for {stages} stages", route.len()));
            }
            for (stage, place) in route.iter().enumerate() {
                if place.rank >= ranks {
                    return malformed(format!(
                        "route {r} passes stage {stage} on rank {}, and the ranks are 0 to {}",
                        place.rank,
                        ranks - 1
                    ));
                }
                held[place.rank].push((place.chunk, stage));
                match visits[place.rank].last_mut() {
                    Some((route, count)) if *route == r => *count += 1,
                    _ => visits[place.rank].push((r, 1)),
                }
            }
        }
        let mut holders = vec![Vec::new(); stages];
        let mut stage_at = Vec::with_capacity(ranks);
        for (rank, mut chunks) in held.into_iter().enumerate() {
            chunks.sort_unstable();
            chunks.dedup();
            for (expected, &(chunk, stage)) in chunks.iter().enumerate() {
                if chunk != expected {
                    return malformed(format!(
                        "chunks of rank {rank} are to be numbered from 0 and hold one stage each, found chunk \
                         {chunk} with stage {stage} where chunk {expected} was expected"
                    ));
                }
                holders[stage].push(rank);
            }
            let stages: Vec<usize> = chunks.into_iter().map(|(_, stage)| stage).collect();
            let mut sorted = stages.clone();
            sorted.sort_unstable();
            if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return malformed(format!("rank {rank} holds stage {} in two chunks", twice[0]));
            }
            stage_at.push(stages);
        }
        let micro_batches = program.route_of.len();
        if program.update_of.len() != micro_batches {
            let updates = program.update_of.len();
            return malformed(format!("{micro_batches} micro-batches have a route and {updates} an update"));
        }
        if micro_batches == 0 {
            return malformed("at least one micro-batch is needed".to_owned());
        }
        if program.updates > micro_batches {
            return malformed(format!("{} updates for {micro_batches} micro-batches", program.updates));
        }
        if let Some(micro) = program.route_of.iter().position(|&route| route >= program.routes.len()) {
            return malformed(format!(
                "micro-batch {micro} takes route {}, not there",
                program.route_of[micro]
            ));
        }
        if let Some(micro) = program.update_of.iter().position(|&update| update >= program.updates) {
            return malformed(format!(
                "micro-batch {micro} is part of update {}, and there are {}",
                program.update_of[micro], program.updates
            ));
        }
        Ok(Self { stage: stage_at, visits, holders })
    }

    /// The routes that come to a rank, in ascending order, each with the number of chunks that it passes there.
    pub(crate) fn visits(&self, rank: usize) -> &[(usize, usize)] {
        &self.visits[rank]
    }

    /// Chunks that a rank holds.
    pub(crate) fn chunks(&self, rank: usize) -> usize {
        self.stage[rank].len()
    }

    /// The stage of a chunk of a rank.
    pub(crate) fn stage(&self, place: Place) -> Option<usize> {
        self.stage.get(place.rank)?.get(place.chunk).copied()
    }

    /// The stage of a pass, or why there is no such pass on this rank.
    pub(crate) fn stage_of_pass(&self, program: &Program, rank: usize, pass: Pass) -> Result<usize, String> {
        if pass.micro >= program.micro_batches() {
            return Err(format!("micro-batches are 0 to {}", program.micro_batches().saturating_sub(1)));
        }
        let place = Place { rank, chunk: pass.chunk };
        let stage = self
            .stage(place)
            .ok_or_else(|| format!("the number of chunks on the rank is {}", self.chunks(rank)))?;
        let at = program.place(pass.micro, stage);
        if at != place {
            return Err(format!(
                "route {} passes stage {stage} on rank {}, chunk {}",
                program.route_of[pass.micro], at.rank, at.chunk
            ));
        }
        Ok(stage)
    }
}

/// Writes one rank's list.
struct Writer<'a> {
    program: &'a Program,
    map: &'a Map,
    rank: usize,
    /// Gradient parts still to come, by chunk and update.
    left: Vec<Vec<usize>>,
    list: Vec<Instruction>,
}

impl<'a> Writer<'a> {
    fn new(
        program: &'a Program,
        map: &'a Map,
        rank: usize,
        passes: &[Instruction],
    ) -> Result<Self, ScheduleError> {
        let mut left = vec![vec![0; program.updates]; map.chunks(rank)];
        for (position, instruction) in passes.iter().enumerate() {
            let wrong = |what| instruction.error(rank, position, what);
            for pass in instruction.passes() {
                map.stage_of_pass(program, rank, pass).map_err(wrong)?;
            }
            if let Some(pass) = instruction.gradient_part() {
                left[pass.chunk][program.update_of[pass.micro]] += 1;
            }
        }
        // A pass has at most two messages, and in the middle of a pipeline it has both.
        let list = Vec::with_capacity(passes.len().saturating_mul(3).saturating_add(4));
        Ok(Self { program, map, rank, left, list })
    }

    fn write(mut self, passes: &[Instruction]) -> Result<Vec<Instruction>, ScheduleError> {
        for (position, &instruction) in passes.iter().enumerate() {
            match instruction {
                Instruction::Fill(_) => self.list.push(instruction),
                Instruction::Forward(pass) => {
                    self.receive(pass, Flow::Activation);
                    self.list.push(instruction);
                    self.send(pass, Flow::Activation);
                }
                Instruction::Backward(pass) | Instruction::BackwardInput(pass) => {
                    self.receive(pass, Flow::Gradient);
                    self.list.push(instruction);
                    self.send(pass, Flow::Gradient);
                }
                Instruction::BackwardWeight(_) => self.list.push(instruction),
                Instruction::Together { forward, backward } => {
                    self.receive(forward, Flow::Activation);
                    self.receive(backward, Flow::Gradient);
                    self.list.push(instruction);
                    self.send(forward, Flow::Activation);
                    self.send(backward, Flow::Gradient);
                }
                _ => {
                    let what = "communication is inserted into lists of passes and fillers only";
                    return Err(instruction.error(self.rank, position, what.to_owned()));
                }
            }
            if let Some(pass) = instruction.gradient_part() {
                self.complete(pass.chunk, self.program.update_of[pass.micro]);
            }
        }
        self.finish();
        Ok(self.list)
    }

    /// The place that a pass's input comes from, unless that is this rank or nowhere.
    fn beside(&self, pass: Pass, earlier: bool) -> Option<Place> {
        let stage = self.map.stage(Place { rank: self.rank, chunk: pass.chunk })?;
        let other = if earlier { stage.checked_sub(1)? } else { stage + 1 };
        let place = *self.program.routes[self.program.route_of[pass.micro]].get(other)?;
        (place.rank != self.rank).then_some(place)
    }

    fn receive(&mut self, pass: Pass, flow: Flow) {
        if let Some(from) = self.beside(pass, flow == Flow::Activation) {
            self.list.push(Instruction::Receive { flow, micro: pass.micro, chunk: pass.chunk, from });
        }
    }

    fn send(&mut self, pass: Pass, flow: Flow) {
        if let Some(to) = self.beside(pass, flow == Flow::Gradient) {
            self.list.push(Instruction::Send { flow, micro: pass.micro, chunk: pass.chunk, to });
        }
    }

    fn shared(&self, chunk: usize) -> bool {
        self.map.holders[self.map.stage[self.rank][chunk]].len() > 1
    }

    /// One gradient part of a chunk and update is there.
    fn complete(&mut self, chunk: usize, update: usize) {
        self.left[chunk][update] -= 1;
        if self.left[chunk][update] > 0 || (self.program.updates == 1 && self.shared(chunk)) {
            return;
        }
        self.list.push(Instruction::Reduce { chunk, update });
        // Zero is also what an update without any pass here has: `finish` tells them apart.
        self.left[chunk][update] = DONE;
        if self.program.updates > 1 {
            self.list.push(Instruction::Step { chunk, update });
            self.list.push(Instruction::Gather { chunk, update });
        }
    }

    /// What has not been reduced yet, and in a synchronous program the steps.
    fn finish(&mut self) {
        let mut chunks: Vec<usize> = (0..self.map.chunks(self.rank)).collect();
        chunks.sort_by_key(|&chunk| self.map.stage[self.rank][chunk]);
        for update in 0..self.program.updates {
            for &chunk in &chunks {
                if self.left[chunk][update] != DONE {
                    self.list.push(Instruction::Reduce { chunk, update });
                    if self.program.updates > 1 {
                        self.list.push(Instruction::Step { chunk, update });
                        self.list.push(Instruction::Gather { chunk, update });
                    }
                }
            }
        }
        if self.program.updates == 1 {
            self.list.extend(chunks.iter().map(|&chunk| Instruction::Step { chunk, update: 0 }));
            self.list.extend(chunks.iter().map(|&chunk| Instruction::Gather { chunk, update: 0 }));
        }
    }
}

/// In [`Writer::left`]: reduced.
const DONE: usize = usize::MAX;

//! Places the instructions of one rank's schedule in memory: slots of activations, versions of weights, the first and last
//! pass that writes a gradient, tags of messages. [`crate::steps`] expands them to the list that runs.
//!
//! The order is the schedule's. An [`Instruction::Together`] becomes its two passes, with the forward pass's message between them.

use crate::error::ParallelError;
use bessemer_runtime::Accumulate;
use bessemer_schedule::{Fill, Filler, Flow, Instruction, Pass, Place, Program};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Memory of a chunk that is reused: the largest number of each at a time.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Micro-batches between forward and backward at a time.
    pub(crate) slots: usize,
    /// Micro-batches between the two parts of a split backward pass at a time.
    pub(crate) pending: usize,
    /// Older versions of the weights that are kept at a time.
    pub(crate) stashes: usize,
}

impl Needs {
    /// Grows to cover the needs of `other` too.
    pub(crate) fn cover(&mut self, other: &Needs) {
        self.slots = self.slots.max(other.slots);
        self.pending = self.pending.max(other.pending);
        self.stashes = self.stashes.max(other.stashes);
    }

    /// Whether memory that was allocated for `made` is enough.
    pub(crate) fn fit(&self, made: &Needs) -> bool {
        self.slots <= made.slots.max(1) && self.pending <= made.pending && self.stashes <= made.stashes
    }
}

/// A pass with its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) micro: usize,
    pub(crate) chunk: usize,
    pub(crate) slot: usize,
    /// Memory of the version of the weights that the pass reads; none: the weights.
    pub(crate) stash: Option<usize>,
    pub(crate) update: usize,
    /// Number of the version.
    pub(crate) version: usize,
}

/// A slot of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) chunk: usize,
    pub(crate) slot: usize,
}

/// Effect of a pass on existing gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writes {
    /// Whether those of each part of a backward pass are added to the existing ones.
    pub(crate) add: Accumulate,
    /// The chunk's gradients of the update are complete after this one.
    pub(crate) last: bool,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamMessage {
    pub(crate) flow: Flow,
    pub(crate) micro: usize,
    /// Message tag, the same at both ends.
    pub(crate) tag: u64,
    /// Pipeline rank at the other end.
    pub(crate) peer: usize,
    /// Memory on this rank.
    pub(crate) at: Slot,
}

/// An instruction of a schedule with its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlacedInstruction {
    /// Forward; `from`: the stage before, on this rank.
    Forward {
        run: Run,
        from: Option<Slot>,
    },
    /// Backward, whole or (`split`) its input part; `to`: the stage before, on this rank, takes the gradient.
    Backward {
        run: Run,
        split: bool,
        writes: Writes,
        to: Option<Slot>,
    },
    /// Weight part.
    Weight {
        run: Run,
        writes: Writes,
    },
    Send(StreamMessage),
    Receive(StreamMessage),
    Reduce {
        chunk: usize,
        update: usize,
    },
    /// Makes a version of the weights; `stash`: where the preceding one is kept, if a pass will read it.
    Step {
        chunk: usize,
        update: usize,
        stash: Option<usize>,
    },
    Gather {
        chunk: usize,
        update: usize,
    },
    Fill(Fill),
    Evaluate(EvaluationPass),
}

/// A pass of an evaluated batch through a stage. The batch holds its slot only until the pass ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvaluationPass {
    /// Number of the batch.
    pub(crate) unit: usize,
    /// The chunk and its slot.
    pub(crate) at: Slot,
    /// The message to wait for; without one the batch comes from tokens or from a stage of this rank.
    pub(crate) from: Option<StreamMessage>,
    /// Destination of the batch; none from the head.
    pub(crate) to: Option<Onward>,
}

/// Destination of an evaluated batch after a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Onward {
    /// Message to another rank.
    Message(StreamMessage),
    /// The next stage, which this rank holds.
    Chunk(Slot),
}

/// One rank's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) instructions: Vec<PlacedInstruction>,
    /// Indexed by chunk.
    pub(crate) needs: Vec<Needs>,
}

/// Slots that some chunks share while the list is read.
#[derive(Debug, Default)]
struct SlotPool {
    /// The first is taken: slots that keep everything come first.
    free: BTreeSet<usize>,
    size: usize,
    /// Indexed by chunk and micro-batch.
    taken: HashMap<(usize, usize), usize>,
}

/// Pending sets of one chunk while the list is read.
#[derive(Debug, Default)]
struct PendingSets {
    most: usize,
    now: usize,
}

impl SlotPool {
    fn take(&mut self, of: (usize, usize)) -> usize {
        if let Some(slot) = self.taken.get(&of) {
            return *slot;
        }
        let slot = self.free.pop_first().unwrap_or_else(|| {
            self.size += 1;
            self.size - 1
        });
        self.taken.insert(of, slot);
        slot
    }

    fn give_back(&mut self, of: (usize, usize)) {
        if let Some(slot) = self.taken.remove(&of) {
            self.free.insert(slot);
        }
    }
}

struct Preparing<'a> {
    program: &'a Program,
    rank: usize,
    /// Chunks of any rank, for tags.
    most_chunks: usize,
    /// Indexed by chunk: number of its pool.
    pool_of: &'a [usize],
    pools: Vec<SlotPool>,
    /// Indexed by chunk.
    pending: Vec<PendingSets>,
    /// (micro-batch, chunk) whose input's gradient goes to another rank.
    sent: HashSet<(usize, usize)>,
    instructions: Vec<PlacedInstruction>,
}

/// Prepares the list of pipeline rank `rank` of a program that the verifier has passed. Chunks of one pool share their slots;
/// `pool_of` has the pool of each chunk.
///
/// # Errors
/// A list that no verified program has.
pub(crate) fn prepare(program: &Program, rank: usize, pool_of: &[usize]) -> Result<Prepared, ParallelError> {
    crate::evaluations::check(program)?;
    let list = &program.lists[rank];
    let gradient = |i: &Instruction| match *i {
        Instruction::Send { flow: Flow::Gradient, micro, chunk, .. } => Some((micro, chunk)),
        _ => None,
    };
    let gradients = list.iter().filter_map(gradient).collect();
    let mut p = Preparing::new(program, (rank, pool_of), gradients);
    let mut sent = vec![false; list.len()];
    for (at, instruction) in list.iter().enumerate() {
        if std::mem::take(&mut sent[at]) {
            continue;
        }
        match *instruction {
            Instruction::Together { forward, backward } => {
                p.forward(forward)?;
                // The message of the forward pass leaves before the backward pass begins.
                let mine = |i: &Instruction| {
                    matches!(i, Instruction::Send { flow: Flow::Activation, micro, chunk, .. }
                        if (*micro, *chunk) == (forward.micro, forward.chunk))
                };
                let sends = list[at + 1..].iter().take_while(|i| matches!(i, Instruction::Send { .. }));
                if let Some(next) = sends.clone().position(mine) {
                    p.single(list[at + 1 + next])?;
                    sent[at + 1 + next] = true;
                }
                p.backward(backward, false)?;
            }
            other => p.single(other)?,
        }
    }
    let needs = pool_of.iter().zip(&p.pending).map(|(pool, pending)| Needs {
        slots: p.pools[*pool].size,
        pending: pending.most,
        stashes: 0,
    });
    let needs = needs.collect();
    let mut prepared = Prepared { instructions: p.instructions, needs };
    prepared.settle_gradients();
    prepared.settle_versions();
    Ok(prepared)
}

/// The list of pipeline rank `rank` that passes one evaluated batch through its stages, while no other batch is in flight.
///
/// # Errors
/// Same errors as [`prepare`].
pub(crate) fn prepare_evaluation(
    program: &Program,
    rank: usize,
    pool_of: &[usize],
) -> Result<Vec<PlacedInstruction>, ParallelError> {
    let mut p = Preparing::new(program, (rank, pool_of), HashSet::new());
    for place in program.routes[0].iter().filter(|place| place.rank == rank) {
        p.evaluate(place.chunk, 0)?;
    }
    Ok(p.instructions)
}

impl<'a> Preparing<'a> {
    fn new(
        program: &'a Program,
        (rank, pool_of): (usize, &'a [usize]),
        sent: HashSet<(usize, usize)>,
    ) -> Preparing<'a> {
        let most_chunks = (0..program.ranks()).map(|r| program.chunks(r)).max().unwrap_or(1);
        let pools = (0..pool_of.len()).map(|_| SlotPool::default()).collect();
        let pending = (0..pool_of.len()).map(|_| PendingSets::default()).collect();
        Preparing { program, rank, most_chunks, pool_of, pools, pending, sent, instructions: Vec::new() }
    }

    fn take(&mut self, chunk: usize, micro: usize) -> Slot {
        let slot = self.pools[self.pool_of[chunk]].take((chunk, micro));
        Slot { chunk, slot }
    }

    fn held(&self, chunk: usize, micro: usize) -> Option<Slot> {
        let slot = self.pools[self.pool_of[chunk]].taken.get(&(chunk, micro));
        slot.map(|slot| Slot { chunk, slot: *slot })
    }

    fn give_back(&mut self, chunk: usize, micro: usize) {
        self.pools[self.pool_of[chunk]].give_back((chunk, micro));
    }

    fn wrong(&self, what: impl std::fmt::Display) -> ParallelError {
        ParallelError::Layout(format!(
            "schedule {:?}, pipeline rank {}: {what}",
            self.program.name, self.rank
        ))
    }

    fn stage(&self, chunk: usize) -> Result<usize, ParallelError> {
        let stage = self.program.stage_at(Place { rank: self.rank, chunk });
        stage.ok_or_else(|| self.wrong(format!("chunk {chunk} holds no stage")))
    }

    /// The chunk of the neighbouring stage of a pass, if this rank holds that too.
    fn beside(&self, pass: Pass, before: bool) -> Result<Option<usize>, ParallelError> {
        let stage = self.stage(pass.chunk)?;
        let other = if before { stage.checked_sub(1) } else { Some(stage + 1) };
        let other = other.filter(|s| *s < self.program.stages);
        let place = other.map(|s| self.program.place(pass.micro, s));
        Ok(place.filter(|p| p.rank == self.rank).map(|p| p.chunk))
    }

    fn run(&mut self, pass: Pass) -> Run {
        let Slot { slot, .. } = self.take(pass.chunk, pass.micro);
        let update = self.program.update_of[pass.micro];
        Run { micro: pass.micro, chunk: pass.chunk, slot, stash: None, update, version: pass.version }
    }

    fn forward(&mut self, pass: Pass) -> Result<(), ParallelError> {
        let from = match self.beside(pass, true)? {
            Some(chunk) => {
                let slot = self.held(chunk, pass.micro);
                Some(slot.ok_or_else(|| self.wrong(format!("F{} comes before its input", pass.micro)))?)
            }
            None => None,
        };
        let run = self.run(pass);
        self.instructions.push(PlacedInstruction::Forward { run, from });
        Ok(())
    }

    fn backward(&mut self, pass: Pass, split: bool) -> Result<(), ParallelError> {
        if self.held(pass.chunk, pass.micro).is_none() {
            return Err(
                self.wrong(format!("the backward pass of {} comes before its forward pass", pass.micro))
            );
        }
        let to = self.beside(pass, true)?.map(|chunk| (chunk, self.held(chunk, pass.micro)));
        let to = match to {
            Some((_, Some(slot))) => Some(slot),
            Some((chunk, None)) => {
                return Err(self.wrong(format!("chunk {chunk} no longer holds micro-batch {}", pass.micro)));
            }
            None => None,
        };
        let run = self.run(pass);
        let writes = Writes { add: Accumulate::from(true), last: false };
        self.instructions.push(PlacedInstruction::Backward { run, split, writes, to });
        if split {
            let pending = &mut self.pending[pass.chunk];
            pending.now += 1;
            pending.most = pending.most.max(pending.now);
        }
        // A gradient remains in its slot until it is sent.
        if !self.sent.contains(&(pass.micro, pass.chunk)) {
            self.give_back(pass.chunk, pass.micro);
        }
        Ok(())
    }

    /// Evaluated batches take the first route and are numbered after the program's micro-batches.
    fn evaluate(&mut self, chunk: usize, unit: usize) -> Result<(), ParallelError> {
        let (route, here) = (&self.program.routes[0], Place { rank: self.rank, chunk });
        let Some(stage) = route.iter().position(|place| *place == here) else {
            return Err(
                self.wrong(format!("chunk {chunk} is not on the first route, which evaluated batches take"))
            );
        };
        let (before, next) = (stage.checked_sub(1).map(|s| route[s]), route.get(stage + 1).copied());
        let micro = self.program.micro_batches() + unit;
        let handed = before.is_some_and(|place| place.rank == self.rank);
        if handed && self.held(chunk, micro).is_none() {
            return Err(self.wrong(format!("evaluated batch {unit} comes before its input")));
        }
        let at = self.take(chunk, micro);
        let here = next.filter(|place| place.rank == self.rank);
        let onward = here.map(|place| Onward::Chunk(self.take(place.chunk, micro)));
        self.give_back(chunk, micro);
        let message = |chunk: usize, peer: usize| {
            let (flow, tag) = (Flow::Activation, self.tag(micro, chunk, Flow::Activation));
            StreamMessage { flow, micro, tag, peer, at }
        };
        let from = before.filter(|_| !handed).map(|place| message(chunk, place.rank));
        let to = onward.or(next.map(|place| Onward::Message(message(place.chunk, place.rank))));
        self.instructions.push(PlacedInstruction::Evaluate(EvaluationPass { unit, at, from, to }));
        Ok(())
    }

    fn tag(&self, micro: usize, receiving_chunk: usize, flow: Flow) -> u64 {
        let way = u64::from(flow == Flow::Gradient);
        ((micro * self.most_chunks + receiving_chunk) as u64) << 1 | way
    }

    fn single(&mut self, instruction: Instruction) -> Result<(), ParallelError> {
        match instruction {
            Instruction::Forward(pass) => self.forward(pass)?,
            Instruction::Backward(pass) => self.backward(pass, false)?,
            Instruction::BackwardInput(pass) => self.backward(pass, true)?,
            Instruction::BackwardWeight(pass) => {
                let pending = &mut self.pending[pass.chunk];
                pending.now = pending.now.saturating_sub(1);
                let update = self.program.update_of[pass.micro];
                let (micro, chunk, version) = (pass.micro, pass.chunk, pass.version);
                let run = Run { micro, chunk, slot: 0, stash: None, update, version };
                let writes = Writes { add: Accumulate::from(true), last: false };
                self.instructions.push(PlacedInstruction::Weight { run, writes });
            }
            Instruction::Send { flow, micro, chunk, to } => {
                let at = self.held(chunk, micro);
                let at = at.ok_or_else(|| self.wrong(format!("micro-batch {micro} is sent and not here")))?;
                let tag = self.tag(micro, to.chunk, flow);
                self.instructions.push(PlacedInstruction::Send(StreamMessage {
                    flow,
                    micro,
                    tag,
                    peer: to.rank,
                    at,
                }));
                if flow == Flow::Gradient {
                    self.give_back(chunk, micro);
                }
            }
            Instruction::Receive { flow, micro, chunk, from } => {
                let at = self.take(chunk, micro);
                let tag = self.tag(micro, chunk, flow);
                self.instructions.push(PlacedInstruction::Receive(StreamMessage {
                    flow,
                    micro,
                    tag,
                    peer: from.rank,
                    at,
                }));
            }
            Instruction::Reduce { chunk, update } => {
                self.instructions.push(PlacedInstruction::Reduce { chunk, update })
            }
            Instruction::Step { chunk, update } => {
                self.instructions.push(PlacedInstruction::Step { chunk, update, stash: None })
            }
            Instruction::Gather { chunk, update } => {
                self.instructions.push(PlacedInstruction::Gather { chunk, update })
            }
            Instruction::Fill(Fill { filler: Filler::Evaluate, chunk, unit }) => {
                self.evaluate(chunk, unit)?
            }
            Instruction::Fill(fill) => self.instructions.push(PlacedInstruction::Fill(fill)),
            Instruction::Together { .. } => return Err(self.wrong("two passes in one")),
        }
        Ok(())
    }
}

impl Prepared {
    /// Marks for every pass whether it is the first or the last to write its chunk's gradients of an update.
    fn settle_gradients(&mut self) {
        let none = Accumulate::from(false);
        let mut there: HashMap<(usize, usize), Accumulate> = HashMap::new();
        for order in &mut self.instructions {
            if let PlacedInstruction::Backward { run, writes, .. }
            | PlacedInstruction::Weight { run, writes } = order
            {
                writes.add = *there.get(&(run.chunk, run.update)).unwrap_or(&none);
            }
            match order {
                PlacedInstruction::Backward { run, split, .. } => {
                    let there = there.entry((run.chunk, run.update)).or_insert(none);
                    there.input = true;
                    there.weight |= !*split;
                }
                PlacedInstruction::Weight { run, .. } => {
                    there.entry((run.chunk, run.update)).or_insert(none).weight = true;
                }
                _ => {}
            }
        }
        for order in self.instructions.iter_mut().rev() {
            if let PlacedInstruction::Backward { run, writes, .. }
            | PlacedInstruction::Weight { run, writes } = order
            {
                writes.last = there.remove(&(run.chunk, run.update)).is_some();
            }
        }
    }
}

impl PlacedInstruction {
    /// "F 3.0", "step 0": for a trace.
    pub(crate) fn name(&self) -> String {
        match self {
            PlacedInstruction::Forward { run, .. } => format!("F {}.{}", run.micro, run.chunk),
            PlacedInstruction::Backward { run, split: false, .. } => format!("B {}.{}", run.micro, run.chunk),
            PlacedInstruction::Backward { run, .. } => format!("I {}.{}", run.micro, run.chunk),
            PlacedInstruction::Weight { run, .. } => format!("W {}.{}", run.micro, run.chunk),
            PlacedInstruction::Send(message) => format!("S {}.{}", message.micro, message.at.chunk),
            PlacedInstruction::Receive(message) => format!("R {}.{}", message.micro, message.at.chunk),
            PlacedInstruction::Reduce { chunk, .. } => format!("reduce {chunk}"),
            PlacedInstruction::Step { chunk, .. } => format!("step {chunk}"),
            PlacedInstruction::Gather { chunk, .. } => format!("gather {chunk}"),
            PlacedInstruction::Evaluate(pass) => format!("Evaluate {}.{}", pass.unit, pass.at.chunk),
            PlacedInstruction::Fill(fill) => format!("{:?} {}.{}", fill.filler, fill.unit, fill.chunk),
        }
    }
}

impl Prepared {
    /// Finds a place for every version of the weights that is read after the next one is made.
    fn settle_versions(&mut self) {
        for (chunk, needs) in self.needs.iter_mut().enumerate() {
            // Last order that reads each version. The weight part of a backward pass reads none.
            let mut last: HashMap<usize, usize> = HashMap::new();
            for (at, order) in self.instructions.iter().enumerate() {
                if let PlacedInstruction::Forward { run, .. } | PlacedInstruction::Backward { run, .. } =
                    order
                    && run.chunk == chunk
                {
                    last.insert(run.version, at);
                }
            }
            let (mut made, mut free, mut kept) = (0, Vec::new(), HashMap::new());
            for at in 0..self.instructions.len() {
                match &mut self.instructions[at] {
                    PlacedInstruction::Forward { run, .. } | PlacedInstruction::Backward { run, .. }
                        if run.chunk == chunk =>
                    {
                        run.stash = kept.get(&run.version).copied();
                        if last.get(&run.version) == Some(&at)
                            && let Some(stash) = kept.remove(&run.version)
                        {
                            free.push(stash);
                        }
                    }
                    PlacedInstruction::Step { chunk: of, stash, .. } if *of == chunk => {
                        if last.get(&made).is_some_and(|last| *last > at) {
                            let place = free.pop().unwrap_or_else(|| {
                                needs.stashes += 1;
                                needs.stashes - 1
                            });
                            *stash = Some(place);
                            kept.insert(made, place);
                        }
                        made += 1;
                    }
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "prepare_tests.rs"]
mod tests;

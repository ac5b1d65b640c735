//! The verifier of a step: refuses a list in which a unit reads memory that is not written yet, or an update takes gradients that are
//! not complete.
//!
//! | refused | because |
//! |---|---|
//! | a gather that is missing or waited for too late | a unit reads values that are elsewhere, in flight or from before the update |
//! | a gather into memory that others still use | the unit that reads them reads other values there |
//! | a reduction that is missing, doubled, early, over another axis, or in another type | an update reads terms, or there is nothing to reduce |
//! | a term that is written after the reduction | it would be lost, or added to a sum |
//! | an addition that is missing, doubled, or of another term | an update reads sums of some passes only |
//! | units or messages that are missing, doubled or exchanged | the next one of the micro-batch has no input |
//! | a pass in another slot | it reads another micro-batch's activations, or overwrites them |
//! | a pass with another version of the weights | forward and backward pass would read different weights |
//! | a pass that adds to gradients that it must replace, or the reverse | an update reads gradients of the preceding update, or loses terms |
//! | a term of the norm, the losses or the size of the update that is missing or doubled | ranks would decide on different numbers |

use crate::node::CollectiveKind;
use crate::progress::Progress;
use crate::step::{Action, GradientAdds, Hand, Message, NormGroup, Pass, StepChunk, StepNode, Stream};
use crate::unit::Phase;
use crate::zero::{DataProgram, Transfer};
use bessemer_units::ReduceDType;
use std::collections::{BTreeMap, BTreeSet};

/// A step that must not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("step, node {node}, chunk {chunk}: {subject} {problem}")]
pub struct StepViolation {
    /// Number of the node in the list.
    pub node: usize,
    /// Number of the chunk.
    pub chunk: usize,
    /// The flat parameter, unit or message.
    pub subject: String,
    /// Description of the fault.
    pub problem: String,
}

/// State of one flat parameter's gradients.
#[derive(Debug, Default, Clone)]
struct Gradient {
    /// Units and micro-batches whose terms are in memory and not yet reduced.
    local: usize,
    /// Units and micro-batches whose terms have been reduced.
    reduced: usize,
    /// Units and micro-batches whose reduced terms have not been added to the sum of others yet.
    arrived: usize,
    /// The terms are complete over the tensor axis.
    complete: bool,
    /// The reduction in flight.
    moving: Option<Transfer>,
    first: bool,
    second: bool,
}

impl Gradient {
    /// The sum of the passes so far is there.
    fn settled(&self, data: &DataProgram, flat: usize) -> bool {
        data.settles(flat) && self.local == 0 && self.arrived == 0 && self.reduced > 0
    }
}

struct ChunkState<'a> {
    chunk: &'a StepChunk,
    passes: BTreeMap<usize, Progress>,
    /// The pass between its begin and its end.
    running: Option<Pass>,
    /// Gradients that passes of the current update have made.
    made: GradientAdds,
    gradients: Vec<Gradient>,
    /// Keyed by memory: the flat parameter whose values are there.
    values: BTreeMap<usize, usize>,
    /// Gathers in flight.
    gathering: Vec<Transfer>,
    /// Values that rest whole and of which only this rank's part is up to date.
    stale: Vec<bool>,
    /// Keyed by memory: the flat parameter whose terms are there.
    terms: BTreeMap<usize, usize>,
    tied: bool,
    /// The norm or a tied table has been made of the gradients.
    used: bool,
    /// The squares of the gradients have been summed.
    squared: bool,
    /// Groups over which the sum of this chunk's squares was summed, where each chunk has its own norm.
    groups: BTreeSet<NormGroup>,
    /// The optimizer has prepared the update.
    prepared: bool,
    /// Updates so far.
    updates: usize,
    /// Keyed by memory of kept weights: the version there.
    kept: BTreeMap<usize, usize>,
}

struct Checking<'a> {
    chunks: Vec<ChunkState<'a>>,
    node: usize,
    /// One norm for all chunks.
    norm: bool,
    /// Keyed by pool and slot: the chunk and the micro-batch that hold it.
    slots: BTreeMap<(usize, usize), (usize, usize)>,
    losses: bool,
    /// Groups over which the sum of all chunks' squares was summed.
    groups: BTreeSet<NormGroup>,
    sized: bool,
}

type Checked = Result<(), Box<StepViolation>>;

/// Checks a rank's step. `norm`: updates wait for the losses and the norm of all chunks and ranks; else each chunk has its own.
///
/// # Errors
/// The first node that is wrong.
pub fn verify_step(chunks: &[StepChunk], nodes: &[StepNode], norm: bool) -> Result<(), Box<StepViolation>> {
    let state = |chunk| {
        let flats = StepChunk::flats(chunk);
        ChunkState {
            chunk,
            passes: BTreeMap::new(),
            running: None,
            made: GradientAdds::default(),
            gradients: vec![Gradient::default(); flats],
            values: BTreeMap::new(),
            gathering: Vec::new(),
            stale: vec![false; flats],
            terms: BTreeMap::new(),
            tied: false,
            used: false,
            squared: false,
            groups: BTreeSet::new(),
            prepared: false,
            updates: 0,
            kept: BTreeMap::new(),
        }
    };
    let mut check = Checking {
        chunks: chunks.iter().map(state).collect(),
        node: 0,
        norm,
        slots: BTreeMap::new(),
        losses: false,
        groups: BTreeSet::new(),
        sized: false,
    };
    for node in nodes {
        check.visit(node)?;
        check.node += 1;
    }
    check.end()
}

impl Checking<'_> {
    fn wrong(
        &self,
        chunk: usize,
        subject: impl Into<String>,
        problem: impl Into<String>,
    ) -> Box<StepViolation> {
        Box::new(StepViolation { node: self.node, chunk, subject: subject.into(), problem: problem.into() })
    }

    fn flat(&self, chunk: usize, flat: usize, problem: impl Into<String>) -> Box<StepViolation> {
        let flats = &self.chunks[chunk].chunk.data.flats;
        self.wrong(chunk, flats.get(flat).map_or("?", |f| &f.name), problem)
    }

    fn visit(&mut self, node: &StepNode) -> Checked {
        let chunk = node.chunk;
        if chunk >= self.chunks.len() {
            return Err(self.wrong(chunk, "the chunk", "is not on this rank"));
        }
        match &node.action {
            Action::Begin(pass) => self.begin(chunk, pass),
            Action::Unit { unit, pass } => self.unit(chunk, *unit, pass),
            Action::End(pass) => self.end_pass(chunk, pass),
            Action::Complete(flats) => flats.iter().try_for_each(|flat| self.complete(chunk, *flat)),
            Action::Start(transfer) if transfer.kind == CollectiveKind::AllGather => {
                self.gather(chunk, transfer)
            }
            Action::Start(transfer) => self.reduce(chunk, transfer),
            Action::Wait(transfer) => self.wait(chunk, transfer),
            Action::Add(flat) => self.add(chunk, *flat),
            Action::Send(Message { stream, micro, slot, .. }) => self.leaves(chunk, *stream, *micro, *slot),
            Action::Receive(Message { stream, micro, slot, .. }) => self.comes(chunk, *stream, *micro, *slot),
            Action::Hand(Hand { stream, micro, slot, to, to_slot }) => {
                self.comes(*to, *stream, *micro, *to_slot)?;
                self.leaves(chunk, *stream, *micro, *slot)
            }
            Action::Tie => {
                for chunk in 0..self.chunks.len() {
                    if self.chunks[chunk].chunk.tied {
                        self.reduced(chunk)?;
                        self.chunks[chunk].used = true;
                        if std::mem::replace(&mut self.chunks[chunk].tied, true) {
                            return Err(self.wrong(chunk, "the tied table", "has both terms already"));
                        }
                    }
                }
                Ok(())
            }
            Action::Losses => match std::mem::replace(&mut self.losses, true) || !self.norm {
                true => Err(self.wrong(chunk, "the losses", "are summed already, or once a window")),
                false => Ok(()),
            },
            Action::Squares => {
                self.ready(chunk)?;
                self.chunks[chunk].used = true;
                match std::mem::replace(&mut self.chunks[chunk].squared, true) {
                    true => Err(self.wrong(chunk, "the norm", "has the squares of the chunk already")),
                    false => Ok(()),
                }
            }
            Action::SumSquares(group) => self.sum_squares(chunk, *group),
            Action::Prepare => {
                self.normed(chunk)?;
                match std::mem::replace(&mut self.chunks[chunk].prepared, true) || !self.norm {
                    true => {
                        Err(self.wrong(chunk, "the update", "is prepared already, or not to be prepared"))
                    }
                    false => Ok(()),
                }
            }
            Action::SumSize => {
                if let Some(chunk) = self.chunks.iter().position(|chunk| !chunk.prepared) {
                    return Err(self.wrong(
                        chunk,
                        "the size of the update",
                        "is summed before it is prepared",
                    ));
                }
                match std::mem::replace(&mut self.sized, true) {
                    true => Err(self.wrong(chunk, "the size of the update", "is summed already")),
                    false => Ok(()),
                }
            }
            Action::Update { micro_batches, update, keep } => {
                self.update(chunk, *micro_batches, *update, *keep)
            }
            Action::Filler(_) => Ok(()),
        }
    }

    /// A slot gets a micro-batch of a chunk.
    fn take(&mut self, at: usize, slot: usize, micro: usize, name: &str) -> Checked {
        let chunk = self.chunks[at].chunk;
        if slot >= chunk.slots {
            return Err(self.wrong(at, name, format!("is put into slot {slot} of {}", chunk.slots)));
        }
        match self.slots.insert((chunk.pool, slot), (at, micro)) {
            Some((other, found)) => {
                let problem =
                    format!("is put into slot {slot}, which holds micro-batch {found} of chunk {other}");
                Err(self.wrong(at, name, problem))
            }
            None => Ok(()),
        }
    }

    /// A slot must hold a micro-batch of a chunk.
    fn holds(&self, at: usize, slot: usize, micro: usize, name: &str) -> Checked {
        match self.slots.get(&(self.chunks[at].chunk.pool, slot)) {
            Some(found) if *found == (at, micro) => Ok(()),
            Some((other, found)) => {
                let problem =
                    format!("is used in slot {slot}, which holds micro-batch {found} of chunk {other}");
                Err(self.wrong(at, name, problem))
            }
            None => Err(self.wrong(at, name, format!("is used in slot {slot}, which is free"))),
        }
    }

    fn free(&mut self, at: usize, slot: usize) {
        self.slots.remove(&(self.chunks[at].chunk.pool, slot));
    }

    fn begin(&mut self, at: usize, pass: &Pass) -> Checked {
        let name = format!("{} of micro-batch {}", pass.phase.name(), pass.micro);
        if self.chunks[at].running.is_some() {
            return Err(self.wrong(at, name, "begins inside another pass"));
        }
        let first = matches!(pass.phase, Phase::Forward | Phase::Score);
        match pass.slot {
            Some(slot) if first && self.chunks[at].chunk.embedding => {
                self.take(at, slot, pass.micro, &name)?
            }
            Some(slot) if pass.phase != Phase::BackwardWeight => self.holds(at, slot, pass.micro, &name)?,
            None if pass.phase == Phase::BackwardWeight => {}
            found => return Err(self.wrong(at, name, format!("runs in slot {found:?}"))),
        }
        let state = &mut self.chunks[at];
        if pass.phase != Phase::BackwardWeight {
            let found = pass.kept.map_or(Some(state.updates), |kept| state.kept.get(&kept).copied());
            if found != Some(pass.version) {
                let problem = match found {
                    Some(found) => format!("reads version {found} of the weights, wanted {}", pass.version),
                    None => format!("reads version {} of the weights, which was not kept", pass.version),
                };
                return Err(self.wrong(at, name, problem));
            }
        }
        if !first {
            let (settles, made) = (state.chunk.settles(), state.made);
            let wanted = GradientAdds { input: made.input && !settles, weight: made.weight && !settles };
            let begins = !made.weight && pass.phase != Phase::BackwardInput;
            if (pass.adds, pass.begins, pass.update) != (wanted, begins, state.updates) {
                let problem = format!(
                    "makes gradients of update {} with {:?}, begins: {}; wanted update {} with {wanted:?}, begins: {begins}",
                    pass.update, pass.adds, pass.begins, state.updates
                );
                return Err(self.wrong(at, name, problem));
            }
            state.made.input |= pass.phase != Phase::BackwardWeight;
            state.made.weight |= pass.phase != Phase::BackwardInput;
        }
        self.chunks[at].running = Some(*pass);
        Ok(())
    }

    fn end_pass(&mut self, at: usize, pass: &Pass) -> Checked {
        let name = format!("{} of micro-batch {}", pass.phase.name(), pass.micro);
        let state = &mut self.chunks[at];
        let ended = state.passes.get(&pass.micro).is_some_and(|p| p.ended(state.chunk, pass.phase));
        if state.running.take() != Some(*pass) || !ended {
            return Err(self.wrong(at, name, "ends, but its units have not run"));
        }
        // A stream or gradient that leaves the chunk is read after the pass.
        let last = match pass.phase {
            Phase::Score => state.chunk.head,
            Phase::Backward | Phase::BackwardInput => state.chunk.embedding,
            Phase::Forward | Phase::BackwardWeight => false,
        };
        if let Some(slot) = pass.slot.filter(|_| last) {
            self.free(at, slot);
        }
        Ok(())
    }

    fn unit(&mut self, at: usize, unit: usize, pass: &Pass) -> Checked {
        let Pass { phase, micro, .. } = *pass;
        let name = format!("unit {unit}, {} of micro-batch {micro},", phase.name());
        let state = &mut self.chunks[at];
        if state.running != Some(*pass) {
            return Err(self.wrong(at, name, "runs outside of its pass"));
        }
        let progress = state.passes.entry(micro).or_default();
        if let Err(problem) = progress.advance(state.chunk, unit, phase) {
            return Err(self.wrong(at, name, problem));
        }
        let uses = &state.chunk.uses[phase as usize][unit];
        if pass.kept.is_none() {
            for flat in uses.reads.clone() {
                self.readable(at, flat, &name)?;
            }
        }
        for flat in uses.writes.clone() {
            self.write(at, flat)?;
        }
        // The gradients of both parts are complete after the second.
        if matches!(phase, Phase::Backward | Phase::BackwardWeight) {
            let state = &mut self.chunks[at];
            for flat in &state.chunk.uses[Phase::Backward as usize][unit].writes {
                state.gradients[*flat].local += 1;
            }
        }
        Ok(())
    }

    /// The groups over which squares must be summed.
    fn norm_groups(&self, at: usize) -> BTreeSet<NormGroup> {
        let chunk = self.chunks[at].chunk;
        let shards = chunk.data.groups.iter().enumerate();
        let shards = shards.filter(|(group, _)| chunk.trains(*group));
        let shards = shards.map(|(group, rank)| (NormGroup::Shard(group), rank.shard.0));
        let trained = chunk.expert_ranks.iter().enumerate().filter(|(group, _)| chunk.trains(*group));
        let experts = trained.map(|(group, ranks)| (NormGroup::Experts(group), *ranks));
        let others = [
            (NormGroup::Layers, chunk.layer_ranks),
            (NormGroup::Pipeline, if self.norm { chunk.pipeline_ranks } else { 1 }),
        ];
        shards.chain(experts).chain(others).filter(|(_, ranks)| *ranks > 1).map(|(group, _)| group).collect()
    }

    fn sum_squares(&mut self, at: usize, group: NormGroup) -> Checked {
        let missing = |chunk: &ChunkState<'_>| !chunk.squared;
        let missing = match self.norm {
            true => self.chunks.iter().position(missing),
            false => missing(&self.chunks[at]).then_some(at),
        };
        if let Some(chunk) = missing {
            return Err(self.wrong(chunk, "the norm", "is summed before the squares of the chunk"));
        }
        let wanted = self.norm_groups(at).contains(&group);
        let groups = if self.norm { &mut self.groups } else { &mut self.chunks[at].groups };
        // Sums are formed in one order on all ranks.
        let in_order = groups.last().is_none_or(|last| *last < group);
        groups.insert(group);
        match in_order && wanted {
            true => Ok(()),
            false => {
                let problem = format!("is summed over {group} twice, out of order or in vain");
                Err(self.wrong(at, "the norm", problem))
            }
        }
    }

    /// The norm for the update of a chunk is complete.
    fn normed(&self, at: usize) -> Checked {
        let groups = if self.norm { &self.groups } else { &self.chunks[at].groups };
        match *groups == self.norm_groups(at) && self.chunks[at].squared {
            true => Ok(()),
            false => Err(self.wrong(at, "the update", "begins before the norm is complete")),
        }
    }

    fn readable(&self, at: usize, flat: usize, by: &str) -> Checked {
        let state = &self.chunks[at];
        if state.stale[flat] {
            return Err(self.flat(
                at,
                flat,
                format!("is read by {by} before the updated parts are gathered"),
            ));
        }
        let place = state.chunk.data.flats[flat].values.place;
        if state.chunk.data.gathered(flat) && state.values.get(&place) != Some(&flat) {
            return Err(self.flat(at, flat, format!("is read by {by} but has not been gathered")));
        }
        Ok(())
    }

    /// A unit's list adds terms.
    fn write(&mut self, at: usize, flat: usize) -> Checked {
        let state = &self.chunks[at];
        let gradient = &state.gradients[flat];
        let Some(residence) = &state.chunk.data.flats[flat].gradients else {
            return Err(self.flat(at, flat, "is frozen, and a unit writes a gradient of it"));
        };
        if state.used {
            return Err(self.flat(at, flat, "gets another term after the norm or the sum of the tied table"));
        }
        if gradient.complete {
            return Err(self.flat(at, flat, "is a sum over the tensor axis, and a term is added to it"));
        }
        if gradient.moving.is_some() || gradient.first || gradient.second {
            return Err(self.flat(at, flat, "gets another term after its reduction"));
        }
        if let Some(other) = state.terms.get(&residence.place).filter(|other| **other != flat) {
            return Err(self.flat(
                at,
                *other,
                "has terms that were not reduced where others are written now",
            ));
        }
        self.chunks[at].terms.insert(residence.place, flat);
        Ok(())
    }

    fn writers(&self, at: usize, flat: usize) -> usize {
        let uses = &self.chunks[at].chunk.uses[Phase::Backward as usize];
        uses.iter().filter(|of| of.writes.contains(&flat)).count()
    }

    fn complete(&mut self, at: usize, flat: usize) -> Checked {
        let whole = self.whole_terms(at, flat);
        let gradient = &mut self.chunks[at].gradients[flat];
        if gradient.complete || !whole {
            return Err(self.flat(at, flat, "has no terms of a sum over the tensor axis to complete"));
        }
        gradient.complete = true;
        Ok(())
    }

    /// Whether terms are there, and those of every unit that computes them.
    fn whole_terms(&self, at: usize, flat: usize) -> bool {
        let (local, writers) = (self.chunks[at].gradients[flat].local, self.writers(at, flat));
        local > 0 && writers > 0 && local.is_multiple_of(writers)
    }

    fn gather(&mut self, at: usize, transfer: &Transfer) -> Checked {
        let state = &self.chunks[at];
        let known = state.chunk.data.flats.get(transfer.flat);
        let wanted = state.stale.get(transfer.flat) == Some(&true)
            || known.is_some() && state.chunk.data.gathered(transfer.flat);
        if !wanted || transfer.axis != bessemer_mesh::Axis::Shard {
            return Err(self.flat(
                at,
                transfer.flat,
                format!("is gathered over {}, where nothing is sharded", transfer.axis),
            ));
        }
        if transfer.dtype != ReduceDType::Stored {
            return Err(self.flat(at, transfer.flat, format!("is gathered in {}", transfer.dtype)));
        }
        if state.gathering.contains(transfer) {
            return Err(self.flat(at, transfer.flat, "is being gathered already"));
        }
        let place = state.chunk.data.flats[transfer.flat].values.place;
        let state = &mut self.chunks[at];
        if state.chunk.data.gathered(transfer.flat) {
            state.values.remove(&place);
        }
        state.gathering.push(*transfer);
        Ok(())
    }

    fn reduce(&mut self, at: usize, transfer: &Transfer) -> Checked {
        let flat = transfer.flat;
        let state = &self.chunks[at];
        if flat >= state.gradients.len() {
            return Err(self.flat(at, flat, "is not a flat parameter"));
        }
        let gradient = &state.gradients[flat];
        let (first, second) =
            (state.chunk.data.first_reduction(flat), state.chunk.data.second_reduction(flat));
        if gradient.moving.is_some() {
            return Err(self.flat(at, flat, "is being reduced already"));
        }
        let wanted = match (first, second) {
            (Some(first), _) if first.axis == transfer.axis => first.dtype,
            (_, Some(second)) if second.axis == transfer.axis => second.dtype,
            _ => state.chunk.data.reduce_dtype,
        };
        if transfer.dtype != wanted {
            let problem =
                format!("is reduced in {}, the other ranks' terms come in {wanted}", transfer.dtype);
            return Err(self.flat(at, flat, problem));
        }
        if first == Some(Transfer { term: false, ..*transfer }) && !gradient.first {
            if !self.whole_terms(at, flat) {
                return Err(self.flat(at, flat, "is reduced before all units of the pass have written it"));
            }
            if state.chunk.data.flats[flat].partial > 0 && !gradient.complete {
                return Err(self.flat(at, flat, "is reduced before it is complete over the tensor axis"));
            }
            self.settling(at, transfer)?;
        } else if second == Some(*transfer) && !gradient.second {
            if !gradient.first && !gradient.settled(&state.chunk.data, flat) {
                return Err(self.flat(at, flat, "is reduced over the replicas before its parts are sums"));
            }
        } else {
            let problem = format!("has no terms for {} over {}", transfer.kind.name(), transfer.axis);
            return Err(self.flat(at, flat, problem));
        }
        let state = &mut self.chunks[at];
        let place = state.chunk.data.flats[flat].gradients.as_ref().map(|gradients| gradients.place);
        state.gradients[flat].moving = Some(*transfer);
        state.terms.retain(|at, of| Some(*at) != place || *of != flat);
        Ok(())
    }

    /// The reduction of a pass may begin: none is in flight that passes complete, and a later pass adds to the earlier ones.
    fn settling(&self, at: usize, transfer: &Transfer) -> Checked {
        let state = &self.chunks[at];
        let settles = state.chunk.data.settles(transfer.flat);
        if settles && state.gradients.iter().any(|gradient| gradient.moving.is_some()) {
            return Err(self.flat(at, transfer.flat, "is reduced while another reduction is in flight"));
        }
        let earlier = settles && state.gradients[transfer.flat].reduced > 0;
        match (earlier, transfer.term) {
            (true, false) => Err(self.flat(at, transfer.flat, "replaces the sum of the passes before")),
            (false, true) => {
                Err(self.flat(at, transfer.flat, "is reduced as a term, but no pass before has left a sum"))
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, at: usize, flat: usize) -> Checked {
        match self.chunks[at].gradients.get_mut(flat) {
            Some(gradient) if gradient.arrived > 0 => {
                gradient.reduced += std::mem::take(&mut gradient.arrived);
                Ok(())
            }
            Some(_) => Err(self.flat(at, flat, "is added to earlier sums, but no term of it has come")),
            None => Err(self.flat(at, flat, "is not a flat parameter")),
        }
    }

    fn wait(&mut self, at: usize, transfer: &Transfer) -> Checked {
        let state = &mut self.chunks[at];
        if transfer.kind == CollectiveKind::AllGather {
            let Some(found) = state.gathering.iter().position(|of| of == transfer) else {
                return Err(self.flat(at, transfer.flat, "is waited for and not being gathered"));
            };
            state.gathering.remove(found);
            let gathered = state.chunk.data.gathered(transfer.flat);
            let place = state.chunk.data.flats[transfer.flat].values.place;
            if gathered {
                state.values.insert(place, transfer.flat);
            }
            state.stale[transfer.flat] = false;
            return Ok(());
        }
        let under_way = state.gradients.get(transfer.flat).and_then(|g| g.moving) == Some(*transfer);
        if !under_way {
            return Err(self.flat(at, transfer.flat, "is waited for and not being reduced"));
        }
        if let Some(other) = state.gradients.iter().position(|g| transfer.term && g.arrived > 0) {
            return Err(self.flat(at, other, "receives a second term before the first is added"));
        }
        let settles = state.chunk.data.settles(transfer.flat);
        let second = state.chunk.data.second_reduction(transfer.flat) == Some(*transfer);
        let gradient = &mut state.gradients[transfer.flat];
        gradient.moving = None;
        if second {
            gradient.second = true;
            return Ok(());
        }
        let terms = std::mem::take(&mut gradient.local);
        *(if transfer.term { &mut gradient.arrived } else { &mut gradient.reduced }) += terms;
        // The next pass may write new terms of gradients that are reduced in every pass.
        (gradient.first, gradient.complete) = (!settles, gradient.complete && !settles);
        Ok(())
    }

    fn comes(&mut self, at: usize, stream: Stream, micro: usize, slot: usize) -> Checked {
        let name = format!("the stream of micro-batch {micro}");
        if at >= self.chunks.len() {
            return Err(self.wrong(at, name, "is copied to a chunk that is not on this rank"));
        }
        self.outside_of_passes(at, micro, &name)?;
        let progress = self.chunks[at].passes.entry(micro).or_default();
        progress.comes(stream).map_err(|problem| self.wrong(at, name.as_str(), problem))?;
        match stream {
            Stream::Values => self.take(at, slot, micro, &name),
            Stream::Gradient => self.holds(at, slot, micro, &name),
        }
    }

    /// No pass of a micro-batch runs in a chunk.
    fn outside_of_passes(&self, at: usize, micro: usize, name: &str) -> Checked {
        match self.chunks[at].running.is_some_and(|pass| pass.micro == micro) {
            true => Err(self.wrong(at, name, "enters or leaves the chunk inside a pass")),
            false => Ok(()),
        }
    }

    fn leaves(&mut self, at: usize, stream: Stream, micro: usize, slot: usize) -> Checked {
        let name = format!("the stream of micro-batch {micro}");
        self.outside_of_passes(at, micro, &name)?;
        let state = &mut self.chunks[at];
        let progress = state.passes.entry(micro).or_default();
        let scores = progress.scores();
        let left = progress.leaves(state.chunk, stream);
        left.map_err(|problem| self.wrong(at, name.as_str(), problem))?;
        self.holds(at, slot, micro, &name)?;
        if stream == Stream::Gradient || scores {
            self.free(at, slot);
        }
        Ok(())
    }

    /// All gradients of the chunk are sums over the data-parallel axes.
    fn reduced(&self, at: usize) -> Checked {
        let state = &self.chunks[at];
        for (flat, gradient) in state.gradients.iter().enumerate() {
            let data = &state.chunk.data;
            if self.writers(at, flat) == 0 {
                continue;
            }
            if gradient.moving.is_some() {
                return Err(self.flat(at, flat, "is used while its reduction is in flight"));
            }
            if gradient.arrived > 0 {
                return Err(self.flat(at, flat, "is used without a term that has come and was not added"));
            }
            let settled = gradient.settled(data, flat);
            if data.first_reduction(flat).is_some() && !gradient.first && !settled {
                return Err(self.flat(at, flat, "is used as the sum, but is this rank's term of it"));
            }
            if data.second_reduction(flat).is_some() && !gradient.second {
                return Err(self.flat(at, flat, "is used before the replicas have added theirs"));
            }
            if data.flats[flat].partial > 0 && !gradient.complete && !settled {
                return Err(self.flat(at, flat, "is used before it is complete over the tensor axis"));
            }
        }
        Ok(())
    }

    fn ready(&self, at: usize) -> Checked {
        self.reduced(at)?;
        if self.chunks[at].chunk.tied && !self.chunks[at].tied {
            return Err(self.wrong(at, "the tied table", "is used with the term of one end only"));
        }
        Ok(())
    }

    fn update(&mut self, at: usize, micro_batches: usize, update: usize, keep: Option<usize>) -> Checked {
        self.ready(at)?;
        self.normed(at)?;
        let state = &self.chunks[at];
        let prepared = self.chunks.iter().all(|other| other.prepared || other.updates > state.updates);
        if self.norm && (!self.losses || !prepared || self.sized != state.chunk.sums_size) {
            return Err(self.wrong(
                at,
                "the update",
                "comes before the losses are summed and it is prepared",
            ));
        }
        if update != state.updates {
            return Err(self.wrong(
                at,
                "the update",
                format!("is number {update}, wanted {}", state.updates),
            ));
        }
        if keep.is_some_and(|keep| keep >= state.chunk.kept) {
            let problem = format!("keeps the weights in memory {keep:?} of {}", state.chunk.kept);
            return Err(self.wrong(at, "the update", problem));
        }
        for flat in 0..self.chunks[at].gradients.len() {
            let gradient = &self.chunks[at].gradients[flat];
            let (found, wanted) = (gradient.local + gradient.reduced, self.writers(at, flat) * micro_batches);
            if found != wanted {
                let problem =
                    format!("has {found} terms of units and micro-batches at the update, wanted {wanted}");
                return Err(self.flat(at, flat, problem));
            }
            if self.chunks[at].gathering.iter().any(|of| of.flat == flat) {
                return Err(self.flat(at, flat, "is being gathered while it is updated"));
            }
        }
        let state = &mut self.chunks[at];
        state.gradients.iter_mut().for_each(|gradient| *gradient = Gradient::default());
        state.values.clear();
        for flat in 0..state.stale.len() {
            state.stale[flat] = state.chunk.data.spreads(flat);
        }
        state.kept.extend(keep.map(|keep| (keep, state.updates)));
        state.updates += 1;
        (state.tied, state.used, state.squared, state.prepared) = (false, false, false, false);
        (state.made, state.groups) = (GradientAdds::default(), BTreeSet::new());
        Ok(())
    }

    fn end(&self) -> Checked {
        for (at, state) in self.chunks.iter().enumerate() {
            if let Some(pass) = &state.running {
                return Err(self.wrong(at, format!("micro-batch {}", pass.micro), "is left inside a pass"));
            }
            if state.updates == 0 {
                return Err(self.wrong(at, "the chunk", "is left without an update"));
            }
            if let Some(flat) = state.stale.iter().position(|stale| *stale) {
                return Err(self.flat(at, flat, "is left with updated parts that were not gathered"));
            }
            if let Some(transfer) = state.gathering.first() {
                return Err(self.flat(at, transfer.flat, "is still being gathered at the end"));
            }
            if let Some(flat) =
                state.gradients.iter().position(|g| g.moving.is_some() || g.local + g.reduced + g.arrived > 0)
            {
                return Err(self.flat(at, flat, "is left with gradients that no update has taken"));
            }
            for (micro, progress) in &state.passes {
                if let Some(problem) = progress.unfinished(state.chunk) {
                    return Err(self.wrong(at, format!("micro-batch {micro}"), problem));
                }
            }
        }
        Ok(())
    }
}

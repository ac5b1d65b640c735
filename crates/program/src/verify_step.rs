//! The verifier of a step: refuses a list in which a unit reads what is not there, or an update takes gradients that are not
//! complete.
//!
//! | refused | because |
//! |---|---|
//! | a gather that is missing or waited for too late | a unit reads values that are elsewhere, on their way or of before the update |
//! | a gather into memory that others still use | the unit that reads them finds other values there |
//! | a reduction that is missing, doubled, early, over another axis, or in another type | an update finds terms, or there is nothing to reduce |
//! | a term that is written behind the reduction | it would be lost, or added to a sum |
//! | an addition that is missing, doubled, or of another term | an update finds sums of some passes only |
//! | units or messages that are missing, doubled or exchanged | the next in the micro-batch's way finds no input |

use crate::node::CollectiveKind;
use crate::progress::Progress;
use crate::step::{Action, Message, StepChunk, StepNode, Stream};
use crate::unit::Phase;
use crate::zero::{DataProgram, Transfer};
use bessemer_units::ReduceDType;
use std::collections::BTreeMap;

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
    /// Of units and micro-batches whose reduced terms have not been added to the sum of others yet.
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
    gradients: Vec<Gradient>,
    /// By place: the flat parameter whose values lie there.
    values: BTreeMap<usize, usize>,
    /// Gathers in flight.
    gathering: Vec<Transfer>,
    /// Values that rest whole and of which only this rank's part is up to date.
    stale: Vec<bool>,
    /// By place: the flat parameter whose terms lie there.
    terms: BTreeMap<usize, usize>,
    tied: bool,
    /// The norm or a tied table has been made of the gradients.
    used: bool,
    updated: bool,
}

struct Checking<'a> {
    chunks: Vec<ChunkState<'a>>,
    node: usize,
    normed: bool,
}

type Checked = Result<(), Box<StepViolation>>;

/// Checks a rank's step. `norm`: updates wait for the global norm.
///
/// # Errors
/// The first node that is wrong.
pub fn verify_step(
    chunks: &[StepChunk],
    nodes: impl IntoIterator<Item = StepNode>,
    norm: bool,
) -> Result<(), Box<StepViolation>> {
    let state = |chunk| {
        let flats = StepChunk::flats(chunk);
        ChunkState {
            chunk,
            passes: BTreeMap::new(),
            gradients: vec![Gradient::default(); flats],
            values: BTreeMap::new(),
            gathering: Vec::new(),
            stale: vec![false; flats],
            terms: BTreeMap::new(),
            tied: false,
            used: false,
            updated: false,
        }
    };
    let chunks = chunks.iter().map(state).collect();
    let mut check = Checking { chunks, node: 0, normed: !norm };
    for node in nodes {
        check.visit(&node)?;
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
            Action::Unit { unit, phase, micro, older } => self.unit(chunk, *unit, *phase, (*micro, *older)),
            Action::Complete(flats) => flats.iter().try_for_each(|flat| self.complete(chunk, *flat)),
            Action::Start(transfer) if transfer.kind == CollectiveKind::AllGather => {
                self.gather(chunk, transfer)
            }
            Action::Start(transfer) => self.reduce(chunk, transfer),
            Action::Wait(transfer) => self.wait(chunk, transfer),
            Action::Add(flat) => self.add(chunk, *flat),
            Action::Send(message) => self.leaves(chunk, message.stream, message.micro),
            Action::Receive(message) => self.comes(chunk, message),
            Action::Hand { stream, micro, to } => {
                self.leaves(chunk, *stream, *micro)?;
                let message = Message { stream: *stream, micro: *micro, peer: 0, tag: 0, bytes: 0 };
                self.comes(*to, &message)
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
            Action::Norm => {
                (0..self.chunks.len()).try_for_each(|chunk| self.ready(chunk))?;
                self.chunks.iter_mut().for_each(|chunk| chunk.used = true);
                if std::mem::replace(&mut self.normed, true) {
                    return Err(self.wrong(chunk, "the norm", "is in the step already"));
                }
                Ok(())
            }
            Action::Update { micro_batches } => self.update(chunk, *micro_batches),
            Action::Filler(_) => Ok(()),
        }
    }

    fn unit(&mut self, at: usize, unit: usize, phase: Phase, (micro, older): (usize, bool)) -> Checked {
        let name = format!("unit {unit}, {} of micro-batch {micro},", phase.name());
        let state = &mut self.chunks[at];
        let progress = state.passes.entry(micro).or_default();
        if let Err(problem) = progress.advance(state.chunk, unit, phase) {
            return Err(self.wrong(at, name, problem));
        }
        let uses = &state.chunk.uses[phase as usize][unit];
        if !older {
            for flat in uses.reads.clone() {
                self.readable(at, flat, &name)?;
            }
        }
        for flat in uses.writes.clone() {
            self.write(at, flat)?;
        }
        // The gradients of both parts are there behind the second.
        if matches!(phase, Phase::Backward | Phase::BackwardWeight) {
            let state = &mut self.chunks[at];
            for flat in &state.chunk.uses[Phase::Backward as usize][unit].writes {
                state.gradients[*flat].local += 1;
            }
        }
        Ok(())
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
        let residence = &state.chunk.data.flats[flat].gradients;
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

    /// Whether terms lie there, and those of every unit that makes them.
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
        let wanted = state.chunk.data.reduce_dtype;
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
        let place = state.chunk.data.flats[flat].gradients.place;
        state.gradients[flat].moving = Some(*transfer);
        state.terms.retain(|at, of| *at != place || *of != flat);
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
        // Of gradients that are reduced in every pass the next pass may write new terms.
        (gradient.first, gradient.complete) = (!settles, gradient.complete && !settles);
        Ok(())
    }

    fn comes(&mut self, at: usize, message: &Message) -> Checked {
        let name = format!("the stream of micro-batch {}", message.micro);
        if at >= self.chunks.len() {
            return Err(self.wrong(at, name, "goes to a chunk that is not on this rank"));
        }
        let progress = self.chunks[at].passes.entry(message.micro).or_default();
        progress.comes(message.stream).map_err(|problem| self.wrong(at, name, problem))
    }

    fn leaves(&mut self, at: usize, stream: Stream, micro: usize) -> Checked {
        let state = &mut self.chunks[at];
        let progress = state.passes.entry(micro).or_default();
        let left = progress.leaves(state.chunk, stream);
        left.map_err(|problem| self.wrong(at, format!("the stream of micro-batch {micro}"), problem))
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

    fn update(&mut self, at: usize, micro_batches: usize) -> Checked {
        self.ready(at)?;
        if !self.normed {
            return Err(self.wrong(at, "the update", "comes before the global norm"));
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
        (state.tied, state.used, state.updated) = (false, false, true);
        Ok(())
    }

    fn end(&self) -> Checked {
        for (at, state) in self.chunks.iter().enumerate() {
            if !state.updated {
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

//! Choices of experts: recorded on one rank, compared with those of a layout, and replayed into it.
//!
//! A choice is a comparison of scores. Sums in another order change scores in their last bits, and a choice whose scores are that close. From there
//! on two runs compute different functions, so losses and gradients are comparable before the first such choice, or where the choices of one
//! run are replayed into the other.
//!
//! A backend around the rank's own reads and replaces the results of [`Route`], [`KeepInNode`] and [`KeepChoices`]; programs, passes and ranks stay
//! as they are. Which tokens and which layer an operator of a layout has, it finds by the router's logits, before experts are closed: those of one
//! token and layer are equal in both runs but for rounding. Tokens with equal logits, those of sequences that begin alike, are told apart by the row behind, which is of the same
//! sequence. Where that does not decide, a token is counted as unknown and keeps its own choices.

use crate::nodes::NodeRoutes;
use bessemer_tensor::op::{DropRule, DropoutMask, KeepChoices, KeepInNode, Op, Route};
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::{Bytes, DType};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Logits may be so many times closer to those of the right token than to those of one with other choices.
const CLEAR: f64 = 4.0;
/// Second choices that are sent at random: a draw so close to the probability may go the other way.
const RANDOM: f64 = 1e-4;
/// Experts open or close by logits that are so close; of other tokens of the group they may do so in consequence.
const OPENED: f64 = 1e-4;
/// Difference of equal logits by rounding, relative to the largest logit of the row.
const ROUNDING: f64 = 1e-5;
/// Largest difference of a logit by which a layer is recognised, relative to the largest logit of the row.
const FAR: f64 = 0.05;

/// What one rank has chosen for the tokens of a layer in a step.
#[derive(Debug, Clone, Default, PartialEq)]
struct LayerRoutes {
    /// E.
    experts: usize,
    /// K, with candidates of experts that choose.
    choices: usize,
    /// `[N, E]`; all of them, if some experts are closed.
    logits: Vec<f32>,
    /// If experts may be closed.
    nodes: Option<NodeRoutes>,
    /// `[N, E]`: scores, or scores and biases, by which a token chooses.
    keys: Vec<f32>,
    /// Groups of experts, and how many of them a token keeps.
    groups: (usize, usize),
    /// `[N, K]`.
    chosen: Vec<u32>,
    /// `[N, K]`, if asked: choices by scores alone.
    preferred: Option<Vec<u32>>,
    /// If choices may be dropped.
    kept: Option<KeptRoutes>,
}

/// Choices that a capacity has kept.
#[derive(Debug, Clone, PartialEq)]
struct KeptRoutes {
    /// `[N, K]`: 0 or 1.
    kept: Vec<u32>,
    /// Tokens of a group.
    group: usize,
    rule: DropRule,
    /// `[N]`: by how much a token's second choice was sent or not, if that is random.
    second: Option<Vec<f32>>,
}

impl LayerRoutes {
    fn row<'a, T>(&self, values: &'a [T], token: usize) -> &'a [T] {
        let cols = values.len() / self.tokens().max(1);
        &values[token * cols..][..cols]
    }

    fn tokens(&self) -> usize {
        self.logits.len() / self.experts.max(1)
    }

    /// Experts that are closed to a token.
    fn closed(&self, token: usize) -> &[bool] {
        self.nodes.as_ref().map_or(&[], |nodes| self.row(&nodes.closed, token))
    }

    /// Experts that compute a token.
    fn set(&self, token: usize) -> BTreeSet<u32> {
        let kept = self.kept.as_ref().map(|kept| self.row(&kept.kept, token));
        set(self.row(&self.chosen, token), kept)
    }

    /// Tokens whose logits are as close to these as those of the closest one.
    fn near(&self, logits: &[f32]) -> Vec<usize> {
        let scale = logits.iter().fold(0.0f64, |most, logit| most.max(f64::from(logit.abs())));
        let distances: Vec<f64> = (0..self.tokens()).map(|token| self.distance(token, logits)).collect();
        let least = distances.iter().copied().fold(f64::INFINITY, f64::min);
        let known = least <= FAR * scale;
        let near = |token: &usize| known && distances[*token] <= (CLEAR * least).max(ROUNDING * scale);
        (0..self.tokens()).filter(near).collect()
    }

    fn distance(&self, token: usize, logits: &[f32]) -> f64 {
        let apart = self.row(&self.logits, token).iter().zip(logits).map(|(a, b)| f64::from((a - b).abs()));
        // Logits that are not numbers are as far as can be.
        apart.fold(0.0, |most, apart| if apart.is_nan() { f64::INFINITY } else { most.max(apart) })
    }

    /// How close the choices of a token were to the ones that `found` has instead, among experts of which those of `closed` are closed: the largest
    /// difference of scores that must have been compared otherwise. None where they follow from the choices of another token.
    fn margin(&self, token: usize, found: &BTreeSet<u32>, closed: &[bool]) -> Option<f64> {
        if let Some(nodes) = self.nodes.as_ref().filter(|_| self.closed(token) != closed) {
            return Some(nodes.margins[token]).filter(|margin| *margin < OPENED);
        }
        let recorded = self.set(token);
        let mut other = recorded.symmetric_difference(found);
        if let Some(kept) = self.kept.as_ref().filter(|kept| kept.rule == DropRule::Score) {
            let margins = other.by_ref().filter_map(|expert| self.edge(kept, token, *expert));
            if let Some(margin) = margins.map(f64::abs).reduce(f64::max) {
                return Some(margin);
            }
        }
        let (keys, chosen) = (self.row(&self.keys, token), set(self.row(&self.chosen, token), None));
        // A choice that a capacity has dropped is one nevertheless.
        let lost = chosen.iter().filter(|expert| !found.contains(expert));
        let won: Vec<u32> = found.difference(&chosen).copied().collect();
        let apart = |a: &u32, b: &u32| self.apart(keys, *a as usize, *b as usize).abs();
        let furthest = |a: &u32| won.iter().map(|b| apart(a, b)).fold(0.0, f64::max);
        let mut displaced: Vec<f64> = lost.map(furthest).collect();
        // As many as have come; of those that may have been lost the closest.
        displaced.sort_by(f64::total_cmp);
        displaced.truncate(won.len());
        if let Some(margin) = displaced.last() {
            return Some(*margin);
        }
        let sent = self.kept.as_ref().and_then(|kept| kept.second.as_ref()).map(|second| second[token]);
        sent.map(|sent| f64::from(sent.abs())).filter(|sent| *sent < RANDOM)
    }

    /// The difference of keys of expert `a`, which was chosen, and `b`; of their groups' where those decided.
    fn apart(&self, keys: &[f32], a: usize, b: usize) -> f64 {
        let (groups, kept) = self.groups;
        let size = self.experts / groups.max(1);
        let group = |number: usize| {
            let mut keys: Vec<f32> = keys[number * size..][..size].to_vec();
            keys.sort_by(|a, b| b.total_cmp(a));
            keys.iter().take(2).map(|key| f64::from(*key)).sum::<f64>()
        };
        if groups == kept || a / size == b / size {
            return f64::from(keys[a]) - f64::from(keys[b]);
        }
        let sums: Vec<f64> = (0..groups).map(group).collect();
        let better = |number: usize| sums.iter().filter(|sum| **sum > sums[number]).count();
        match better(b / size) < kept {
            true => f64::from(keys[a]) - f64::from(keys[b]),
            false => sums[a / size] - sums[b / size],
        }
    }

    /// How far a token's score for an expert is from the edge of the expert's capacity.
    fn edge(&self, kept: &KeptRoutes, token: usize, expert: u32) -> Option<f64> {
        let first = token / kept.group * kept.group;
        let group = first..first + kept.group;
        let score = |token: usize| f64::from(self.row(&self.keys, token)[expert as usize]);
        let chose = |token: &usize| self.row(&self.chosen, *token).contains(&expert);
        let (inside, outside): (Vec<usize>, Vec<usize>) =
            group.filter(chose).partition(|token| self.set(*token).contains(&expert));
        match inside.contains(&token) {
            true => outside.into_iter().map(score).reduce(f64::max).map(|best| score(token) - best),
            false if outside.contains(&token) => {
                inside.into_iter().map(score).reduce(f64::min).map(|least| least - score(token))
            }
            false => None,
        }
    }
}

/// Tokens of rows, and whether each is the only one or the one before that of the next row.
#[derive(Debug, PartialEq)]
struct ToldApart {
    rows: Vec<Option<usize>>,
    sure: bool,
}

/// The tokens of rows of which those with equal logits are near in common. The next row is of the same sequence, or the sequence ends.
fn told_apart(near: &[Vec<usize>], layer: &LayerRoutes, seq: usize) -> ToldApart {
    let mut told = ToldApart { rows: vec![None; near.len()], sure: true };
    let mut after: Option<usize> = None;
    for (at, near) in near.iter().enumerate().rev() {
        let before =
            |token: &&usize| after.is_some_and(|after| **token < after && after / seq == **token / seq);
        told.rows[at] = match (&near[..], near.iter().rev().find(before)) {
            ([one], _) | (_, Some(one)) => Some(*one),
            ([any, ..], None) if near.iter().all(|token| layer.set(*token) == layer.set(*any)) => Some(*any),
            _ => None,
        };
        let next = told.rows[at].is_some_and(|token| Some(token + 1) == after);
        told.sure &= near.len() == 1 || next;
        after = told.rows[at];
    }
    told
}

/// First tokens of the sequences with which rows begin whose places from there on are known. The likeliest one alone where rows tell: other
/// sequences have other tokens. Else all sequences that are alike throughout.
fn starts(near: &[Vec<usize>], places: &[usize], seq: usize) -> Vec<usize> {
    let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
    for (near, place) in near.iter().zip(places) {
        let Some(first) = near.first().filter(|first| near.iter().all(|token| token / seq == *first / seq))
        else {
            continue;
        };
        if let Some(sequence) = (first / seq).checked_sub(place / seq) {
            *votes.entry(sequence * seq).or_default() += 1;
        }
    }
    if let Some((start, _)) = votes.into_iter().max_by_key(|(_, votes)| *votes) {
        return vec![start];
    }
    let fits = |start: &usize| near.iter().zip(places).all(|(near, place)| near.contains(&(start + place)));
    let of_first = near.first().into_iter().flatten().map(|token| token / seq * seq);
    of_first.collect::<BTreeSet<usize>>().into_iter().filter(fits).collect()
}

fn set(chosen: &[u32], kept: Option<&[u32]>) -> BTreeSet<u32> {
    let is_kept = |slot: usize| kept.is_none_or(|kept| kept[slot] != 0);
    chosen.iter().enumerate().filter(|(slot, _)| is_kept(*slot)).map(|(_, expert)| *expert).collect()
}

/// Choices of every step of a run on one rank, by layer with experts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Routes {
    steps: Vec<Vec<LayerRoutes>>,
    /// Tokens of a sequence.
    seq: usize,
}

impl Routes {
    /// Choices of a run of one rank with sequences of `seq` tokens, to be recorded.
    pub(crate) fn of(seq: usize) -> Routes {
        Routes { steps: Vec::new(), seq }
    }

    /// Choices of tokens: a token in a layer and step.
    pub fn choices(&self) -> usize {
        self.steps.iter().flatten().map(LayerRoutes::tokens).sum()
    }
}

/// A token whose choices in a layout are not those on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OtherChoice {
    /// Step, from 1.
    pub step: u64,
    /// Number among the layers with experts, from 0.
    pub layer: usize,
    /// Number in the step's batch.
    pub token: usize,
    /// Difference of the scores that were compared, on one rank.
    pub margin: f64,
}

/// Choices of a layout beside those of one rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoutesFound {
    /// (step, layer, token) with other choices, steps from 0.
    differing: BTreeSet<(usize, usize, usize)>,
    /// The first one that follows from no other token's.
    pub first: Option<OtherChoice>,
    /// Rows whose token is unknown.
    pub unknown: usize,
}

impl RoutesFound {
    /// Choices of tokens that differ.
    pub fn differing(&self) -> usize {
        self.differing.len()
    }

    /// The first step (from 1) with other choices.
    pub fn first_step(&self) -> Option<u64> {
        self.differing.first().map(|(step, ..)| *step as u64 + 1)
    }
}

/// Use of the choices of a run.
#[derive(Debug, Clone)]
pub(crate) enum RouteUse {
    /// Writes them down; of one rank with one micro-batch a step.
    Record(Arc<Mutex<Routes>>),
    /// Compares them, and with `replay` puts recorded ones in their place.
    Compare { recorded: Arc<Routes>, found: Arc<Mutex<RoutesFound>>, replay: bool },
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rank's backend whose choices of experts are recorded, compared or replayed.
pub(crate) struct RoutedBackend {
    inner: Box<dyn Backend>,
    route_use: RouteUse,
    /// Steps that have ended, counted from 0.
    step: usize,
    /// A gradient norm or an update has been computed since the last choice: the next one is of another step.
    updated: bool,
    /// Layer and tokens of the rows of the last choice.
    layer: usize,
    rows: Vec<Option<usize>>,
    /// Logits of these rows, where some experts have been closed since.
    open: Option<Vec<f32>>,
    /// `[N, E]` of these rows: closed experts; empty where none can be.
    closed: Vec<bool>,
    /// On one rank: the closed experts of the rows.
    nodes: Option<NodeRoutes>,
    /// Experts of these rows.
    chosen: Vec<u32>,
    /// Tokens of rows, counted from the first token of the first row's sequence; empty until they are known.
    places: Vec<usize>,
    /// First and last start of rows so far.
    sequences: Option<(usize, usize)>,
    /// (step, layer, start) of rows so far.
    taken: BTreeSet<(usize, usize, usize)>,
    /// Keys of one row that choose recorded experts.
    bias: Option<Buffer>,
}

impl RoutedBackend {
    pub(crate) fn around(inner: Box<dyn Backend>, route_use: RouteUse) -> RoutedBackend {
        let (rows, chosen, places) = (Vec::new(), Vec::new(), Vec::new());
        let (sequences, taken) = (None, BTreeSet::new());
        RoutedBackend {
            inner,
            route_use,
            step: 0,
            updated: false,
            layer: 0,
            rows,
            open: None,
            closed: Vec::new(),
            nodes: None,
            chosen,
            places,
            sequences,
            taken,
            bias: None,
        }
    }

    fn words(&mut self, stream: Stream, view: View) -> Result<Vec<u32>, TensorError> {
        let mut bytes = vec![0; view.len() * size_of::<u32>()];
        self.inner.read_bytes(stream, view, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn floats(&mut self, stream: Stream, view: View) -> Result<Vec<f32>, TensorError> {
        Ok(self.words(stream, view)?.into_iter().map(f32::from_bits).collect())
    }

    /// Closes the experts of known rows that are closed on one rank.
    fn keep_in_node(&mut self, stream: Stream, op: &KeepInNode) -> Result<(), TensorError> {
        self.begin();
        let (experts, all) = (op.logits.cols, self.floats(stream, op.logits)?);
        let mut open = vec![0.0; op.out.rows * experts];
        for (token, logits) in all.chunks(experts).enumerate() {
            if let Some(row) = op.here.row_of(token, op.out.rows) {
                open[row * experts..][..experts].copy_from_slice(logits);
            }
        }
        match self.route_use.clone() {
            RouteUse::Record(_) => {
                let counters = self.words(stream, op.counters)?;
                let first = DropoutMask::stream(std::array::from_fn(|at| counters[at])).1;
                let out = self.floats(stream, op.out)?;
                self.nodes = Some(NodeRoutes::of(op, first, &all, &out));
            }
            RouteUse::Compare { recorded, replay, .. } => {
                self.find(&recorded, &open, experts);
                let layer = recorded.steps.get(self.step).and_then(|step| step.get(self.layer));
                for (at, token) in self.rows.iter().enumerate().filter(|_| replay) {
                    let (Some(token), Some(layer)) = (*token, layer) else { continue };
                    let logits = open[at * experts..][..experts].iter().zip(layer.closed(token));
                    let closing =
                        |(logit, closed): (&f32, &bool)| if *closed { KeepInNode::CLOSED } else { *logit };
                    let logits: Vec<f32> = logits.map(closing).collect();
                    self.inner.write_f32(op.out.rows(at, 1), &logits)?;
                }
                let out = self.floats(stream, op.out)?;
                self.closed = out.iter().map(|logit| *logit == KeepInNode::CLOSED).collect();
            }
        }
        self.open = Some(open);
        Ok(())
    }

    /// Begins a step, if the last one has ended.
    fn begin(&mut self) {
        self.step += usize::from(std::mem::take(&mut self.updated));
    }

    fn route(&mut self, stream: Stream, op: &Route) -> Result<(), TensorError> {
        self.begin();
        let open = self.open.take();
        let (known, logits) = (open.is_some(), open.map_or_else(|| self.floats(stream, op.logits), Ok)?);
        match self.route_use.clone() {
            RouteUse::Record(routes) => {
                let mut layer = LayerRoutes {
                    experts: op.logits.cols,
                    choices: op.experts.cols,
                    logits,
                    nodes: self.nodes.take(),
                    keys: self.floats(stream, op.probabilities)?,
                    groups: (op.gate.groups, op.gate.kept),
                    chosen: self.words(stream, op.experts)?,
                    preferred: op.preferred.map(|view| self.words(stream, view)).transpose()?,
                    kept: None,
                };
                if let Some(bias) = op.bias {
                    let bias = self.floats(stream, bias)?;
                    for row in layer.keys.chunks_mut(bias.len()) {
                        row.iter_mut().zip(&bias).for_each(|(key, bias)| *key += bias);
                    }
                }
                let mut routes = lock(&routes);
                routes.steps.resize_with(self.step + 1, Vec::new);
                routes.steps[self.step].push(layer);
            }
            RouteUse::Compare { recorded, found, replay } => {
                if !known {
                    self.closed.clear();
                    self.find(&recorded, &logits, op.logits.cols);
                }
                if replay {
                    self.replay(stream, &recorded, op)?;
                }
                self.chosen = self.words(stream, op.experts)?;
                let unknown = self.rows.iter().filter(|row| row.is_none()).count();
                lock(&found).unknown += unknown;
                let layer = recorded.steps.get(self.step).and_then(|step| step.get(self.layer));
                if layer.is_some_and(|layer| layer.kept.is_none()) {
                    self.compare(&recorded, &found, None);
                }
            }
        }
        Ok(())
    }

    /// Finds the layer and the tokens of rows of logits.
    fn find(&mut self, recorded: &Routes, logits: &[f32], experts: usize) {
        let n = logits.len() / experts;
        self.rows = vec![None; n];
        let Some(step) = recorded.steps.get(self.step) else { return };
        let row = |at: usize| &logits[at * experts..][..experts];
        let fits = |layer: &&(usize, &LayerRoutes)| layer.1.experts == experts;
        // A layer is the one to which some rows are closest.
        let closeness = |layer: &LayerRoutes| -> f64 {
            let nearest = |at: usize| {
                (0..layer.tokens()).map(|token| layer.distance(token, row(at))).fold(f64::INFINITY, f64::min)
            };
            (0..n).step_by((n / 4).max(1)).map(nearest).sum()
        };
        let nearest = step.iter().enumerate().filter(|layer| fits(&layer));
        let nearest = nearest.map(|(number, layer)| (closeness(layer), number, layer));
        let Some((_, number, layer)) = nearest.min_by(|a, b| a.0.total_cmp(&b.0)) else { return };
        self.layer = number;
        let near: Vec<Vec<usize>> = (0..n).map(|at| layer.near(row(at))).collect();
        if self.places.len() == n {
            let starts = starts(&near, &self.places, recorded.seq);
            let start = self.start(&starts);
            let row = |(near, place): (&Vec<usize>, &usize)| {
                start.map(|start| start + place).filter(|token| near.contains(token))
            };
            self.rows = near.iter().zip(&self.places).map(row).collect();
            return;
        }
        let told = told_apart(&near, layer, recorded.seq);
        self.rows = told.rows;
        // All operators of a rank have rows of the same places.
        if let (Some(Some(first)), true) = (self.rows.first(), told.sure) {
            let start = first / recorded.seq * recorded.seq;
            self.places = self.rows.iter().flatten().map(|token| token - start).collect();
        }
    }

    /// The start of rows, of which there are several where sequences are alike: then one of this rank's consecutive sequences that it has not had.
    fn start(&mut self, starts: &[usize]) -> Option<usize> {
        let (step, layer) = (self.step, self.layer);
        if let [start] = starts {
            let (first, last) = self.sequences.unwrap_or((*start, *start));
            self.sequences = Some((first.min(*start), last.max(*start)));
        }
        let here =
            |start: &&usize| self.sequences.is_some_and(|(first, last)| (first..=last).contains(*start));
        let is_new = |start: &&usize| !self.taken.contains(&(step, layer, **start));
        let of_rank = || starts.iter().filter(here);
        let start = of_rank().find(is_new).or_else(|| of_rank().next()).or(starts.first()).copied()?;
        self.taken.insert((step, layer, start));
        Some(start)
    }

    /// Chooses again, row by row, with keys that choose the recorded experts.
    fn replay(&mut self, stream: Stream, recorded: &Routes, op: &Route) -> Result<(), TensorError> {
        let experts = op.logits.cols;
        let bias = match self.bias {
            Some(bias) => bias,
            None => {
                let spec = BufferSpec { class: "routes", name: "keys", dtype: DType::F32, len: experts };
                *self.bias.insert(self.inner.alloc(spec)?)
            }
        };
        let bias = bias.matrix(1, experts);
        let layer = &recorded.steps[self.step][self.layer];
        for (at, token) in self.rows.iter().enumerate() {
            let Some(token) = *token else { continue };
            let chosen = layer.row(&layer.chosen, token);
            let mut keys = vec![0.0; experts];
            for (rank, expert) in chosen.iter().rev().enumerate() {
                keys[*expert as usize] = 1000.0 * (rank + 1) as f32;
            }
            self.inner.write_f32(bias, &keys)?;
            let row = |view: View| view.rows(at, 1);
            let again = Route {
                logits: row(op.logits),
                bias: Some(bias),
                probabilities: row(op.probabilities),
                experts: row(op.experts),
                preferred: op.preferred.map(row),
                weights: row(op.weights),
                lse: op.lse.map(|lse| lse.columns(at, 1)),
                gate: op.gate,
            };
            self.inner.launch(stream, &again.into())?;
            if let (Some(view), Some(preferred)) = (op.preferred, &layer.preferred) {
                self.inner.write_u32(row(view), layer.row(preferred, token))?;
            }
        }
        Ok(())
    }

    fn keep(&mut self, stream: Stream, op: &KeepChoices) -> Result<(), TensorError> {
        match self.route_use.clone() {
            RouteUse::Record(routes) => {
                let kept = self.words(stream, op.kept)?;
                let second = match &op.second {
                    Some(second) => {
                        let weights = self.floats(stream, second.weights)?;
                        let random = self.floats(stream, second.random)?;
                        let weights = weights.chunks(second.weights.cols);
                        Some(weights.zip(random).map(|(weights, r)| 2.0 * weights[1] - r).collect())
                    }
                    None => None,
                };
                let of = KeptRoutes { kept, group: op.group, rule: op.drop, second };
                if let Some(layer) = lock(&routes).steps.last_mut().and_then(|step| step.last_mut()) {
                    layer.kept = Some(of);
                }
            }
            RouteUse::Compare { recorded, found, replay } => {
                let layer = recorded.steps.get(self.step).and_then(|step| step.get(self.layer));
                if let Some(kept) = layer.and_then(|layer| layer.kept.as_ref()).filter(|_| replay) {
                    for (at, token) in self.rows.iter().enumerate() {
                        let Some(token) = *token else { continue };
                        let of_token = &kept.kept[token * op.kept.cols..][..op.kept.cols];
                        self.inner.write_u32(op.kept.rows(at, 1), of_token)?;
                    }
                }
                let kept = self.words(stream, op.kept)?;
                self.compare(&recorded, &found, Some(&kept));
            }
        }
        Ok(())
    }

    /// Notes the tokens of the last rows whose choices are not the recorded ones.
    fn compare(&self, recorded: &Routes, found: &Mutex<RoutesFound>, kept: Option<&[u32]>) {
        let Some(layer) = recorded.steps.get(self.step).and_then(|step| step.get(self.layer)) else { return };
        let cols = layer.choices;
        for (at, token) in self.rows.iter().enumerate() {
            let Some(token) = *token else { continue };
            let part = |values: &'_ [u32]| -> Vec<u32> { values[at * cols..][..cols].to_vec() };
            let here = set(&part(&self.chosen), kept.map(part).as_deref());
            let closed = match self.closed.is_empty() {
                true => &[],
                false => &self.closed[at * layer.experts..][..layer.experts],
            };
            if here == layer.set(token) && closed == layer.closed(token) {
                continue;
            }
            let mut found = lock(found);
            found.differing.insert((self.step, self.layer, token));
            let Some(margin) = layer.margin(token, &here, closed) else { continue };
            let other = OtherChoice { step: self.step as u64 + 1, layer: self.layer, token, margin };
            let order = |other: &OtherChoice| (other.step, other.layer, other.token);
            if found.first.is_none_or(|first| order(&other) < order(&first)) {
                found.first = Some(other);
            }
        }
    }
}

impl Backend for RoutedBackend {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        self.inner.alloc(spec)
    }

    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError> {
        self.inner.workspace(op)
    }

    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.inner.reserve_workspace(bytes)
    }

    fn launch(&mut self, stream: Stream, op: &Op) -> Result<(), TensorError> {
        self.inner.launch(stream, op)?;
        match op {
            Op::Route(route) => self.route(stream, route),
            Op::KeepInNode(keep) => self.keep_in_node(stream, keep),
            Op::KeepChoices(keep) => self.keep(stream, keep),
            Op::SumSquares(_)
            | Op::AdamW(_)
            | Op::AdamWInt8(_)
            | Op::AdafactorUpdate(_)
            | Op::Sgd(_)
            | Op::Lion(_) => {
                self.updated = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn record(&mut self, stream: Stream) -> Result<Event, TensorError> {
        self.inner.record(stream)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), TensorError> {
        self.inner.wait(stream, event)
    }

    fn sync(&mut self) -> Result<(), TensorError> {
        self.inner.sync()
    }

    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.inner.write_f32(dst, values)
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.inner.write_u32(dst, values)
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.inner.read_f32(src, values)
    }

    fn read_bytes(&mut self, stream: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        self.inner.read_bytes(stream, src, bytes)
    }

    fn write_bytes(&mut self, stream: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        self.inner.write_bytes(stream, dst, bytes)
    }

    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of two experts each, by falling keys.
    fn layer(keys: &[[f32; 4]], groups: (usize, usize), kept: Option<KeptRoutes>) -> LayerRoutes {
        let choose = |keys: &[f32; 4]| {
            let mut order = [0u32, 1, 2, 3];
            order.sort_by(|a, b| keys[*b as usize].total_cmp(&keys[*a as usize]));
            [order[0], order[1]]
        };
        LayerRoutes {
            experts: 4,
            choices: 2,
            logits: keys.concat(),
            nodes: None,
            keys: keys.concat(),
            groups,
            chosen: keys.iter().flat_map(choose).collect(),
            preferred: None,
            kept,
        }
    }

    fn margin(layer: &LayerRoutes, token: usize, found: &[u32]) -> Option<f64> {
        layer.margin(token, &found.iter().copied().collect(), layer.closed(token))
    }

    fn near(found: Option<f64>, wanted: f64) {
        assert!(found.is_some_and(|found| (found - wanted).abs() < 1e-6), "{found:?}, wanted {wanted}");
    }

    #[test]
    fn a_margin_is_the_difference_of_the_scores_that_were_compared() {
        let tokens = layer(&[[0.4, 0.3, 0.2, 0.1]], (1, 1), None);
        near(margin(&tokens, 0, &[0, 2]), 0.1);
        near(margin(&tokens, 0, &[1, 3]), 0.3);
        // Both choices are others: the one that is further from its place counts.
        near(margin(&tokens, 0, &[2, 3]), 0.3);
        // Groups of two by the sums of their keys: .7 and .3.
        let grouped = layer(&[[0.4, 0.3, 0.2, 0.1]], (2, 1), None);
        near(margin(&grouped, 0, &[2, 3]), 0.4);
    }

    #[test]
    fn a_margin_of_a_capacity_is_the_distance_from_its_edge() {
        let keys = [[0.4, 0.3, 0.2, 0.1], [0.5, 0.3, 0.1, 0.1], [0.6, 0.35, 0.0, 0.0]];
        let kept =
            |kept: &[u32], rule, second| Some(KeptRoutes { kept: kept.to_vec(), group: 3, rule, second });
        // Expert 0 takes two of three tokens, expert 1 all.
        let by_score = layer(&keys, (1, 1), kept(&[0, 1, 1, 1, 1, 1], DropRule::Score, None));
        near(margin(&by_score, 0, &[0, 1]), 0.1);
        near(margin(&by_score, 1, &[1]), 0.1);
        near(margin(&by_score, 2, &[1]), 0.2);
        // By position a drop follows from other tokens' choices; one at random from its draw.
        let by_position = layer(&keys, (1, 1), kept(&[1, 1, 1, 1, 0, 1], DropRule::Position, None));
        assert_eq!(margin(&by_position, 2, &[0, 1]), None);
        let random = kept(&[1, 1, 1, 0, 1, 1], DropRule::Choice, Some(vec![0.5, -3e-5, 0.5]));
        let random = layer(&keys, (1, 1), random);
        near(margin(&random, 1, &[0, 1]), 3e-5);
        assert_eq!(margin(&random, 0, &[0]), None);
    }

    /// Sequences of three tokens; the first two of each are alike.
    #[test]
    fn tokens_that_are_alike_are_told_apart_by_the_rows_behind() {
        let kept = KeptRoutes { kept: [[1, 0]; 6].concat(), group: 6, rule: DropRule::Score, second: None };
        let mut keys = [[0.4, 0.3, 0.2, 0.1]; 6];
        (keys[2], keys[5]) = ([0.5, 0.3, 0.1, 0.1], [0.6, 0.35, 0.0, 0.0]);
        let mut layer = layer(&keys, (1, 1), Some(kept));
        if let Some(kept) = &mut layer.kept {
            kept.kept[2] = 0;
        }
        let rows: Vec<Vec<usize>> = keys.iter().map(|keys| layer.near(keys)).collect();
        assert_eq!(rows[3], [0, 1, 3, 4]);
        let all: Vec<Option<usize>> = (0..6).map(Some).collect();
        assert_eq!(told_apart(&rows, &layer, 3), ToldApart { rows: all, sure: true });
        assert_eq!(told_apart(&rows[..2], &layer, 3), ToldApart { rows: vec![None, None], sure: false });
        assert_eq!(starts(&rows[1..3], &[1, 2], 3), [0]);
        assert_eq!(starts(&rows[3..], &[0, 1, 2], 3), [3]);
        // Without their last tokens the sequences are alike.
        assert_eq!(starts(&rows[3..5], &[0, 1], 3), [0, 3]);
        assert!(layer.near(&[f32::NAN; 4]).is_empty());
    }
}

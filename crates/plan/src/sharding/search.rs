//! Plans that run: every mesh of stages, data-parallel and tensor-parallel ranks, with the best layouts of parameters in each unit and the best
//! cut into stages.
//!
//! A mesh has the same data-parallel and tensor-parallel ranks in every stage, so all submeshes are alike; what the operators of a stage do is
//! solved once for each number of layers. Meshes that cannot be better than plans at hand, even without a limit of memory and with stages of equal
//! length, are left out, which loses nothing.

use super::eliminate::minimum;
use super::exchange::{Devices, Place, ShardAxis};
use super::graph::{Entangled, Weights};
use super::pareto::{Front, Point, Traces, fronts, link};
use super::training::{BoundBy, Prices, Seconds, Training};
use super::unit::{Layouts, LoopLabel, UnitGraph};
use crate::{
    Efficiency, Machine, ParameterBytes, Spread, Stage, StageCosts, StageQuestion, ZeroStage,
    collective_seconds, stages,
};
use bessemer_mesh::{Axis, Mesh, MeshConfig};
use bessemer_program::{CollectiveKind, UnitProgram};
use bessemer_units::Recompute;
use std::collections::HashMap;
use std::ops::Range;

/// Recorded units of a model, for one device.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitPrograms {
    /// The embedding.
    pub embedding: UnitProgram,
    /// Any layer: they are alike.
    pub layer: UnitProgram,
    /// The output projection and the loss.
    pub head: UnitProgram,
}

/// A training to be planned.
#[derive(Debug, Clone)]
pub struct ShardingQuestion<'a> {
    /// Layers of the model.
    pub layers: usize,
    /// The parameter that embedding and head share, if they do.
    pub tied: Option<&'a str>,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of a step.
    pub sequences: usize,
    /// Devices, all of which are used.
    pub devices: usize,
    /// Degrees of tensor parallelism that the model allows.
    pub tensor: Vec<usize>,
    /// Sequences of a micro-batch that may be taken.
    pub micro_batches: Vec<usize>,
    /// Policies of recomputation that may be taken.
    pub recompute: Vec<Recompute>,
    /// Their kind.
    pub machine: &'a Machine,
    /// The software on them.
    pub efficiency: &'a Efficiency,
    /// Bytes of a parameter, its gradient and its state.
    pub bytes: ParameterBytes,
    /// Bytes that states and saved activations may take.
    pub memory: f64,
    /// Plans that are wanted.
    pub plans: usize,
}

/// A mesh of devices, and what goes for all layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShardingLayout {
    /// Tensor-parallel ranks.
    pub tensor: usize,
    /// Whether they share the rows of the residual stream.
    pub sequence: bool,
    /// Data-parallel ranks.
    pub data: usize,
    /// Tensors that these keep a part of.
    pub zero: ZeroStage,
    /// Pipeline stages.
    pub pipeline: usize,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// Policy of recomputation of all layers.
    pub recompute: Recompute,
}

/// Options of a unit's decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitChoice {
    /// By decision: its name and the loop that tensor-parallel ranks share.
    pub loops: Vec<(String, LoopLabel)>,
    /// By parameter, under its name within the unit: its layout over tensor-parallel ranks.
    pub parameters: Vec<(String, Place)>,
}

/// A plan.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardingPlan {
    /// The mesh.
    pub layout: ShardingLayout,
    /// Layers of each stage.
    pub stages: Vec<usize>,
    /// Embedding, layers, head.
    pub units: Vec<UnitChoice>,
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes that the stage which holds most takes for states and saved activations.
    pub memory: f64,
    /// Bytes that a tensor-parallel rank sends in a micro-batch, stage by stage.
    pub sent: Vec<f64>,
}

/// Answer to a question.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardingPlans {
    /// The fastest first.
    pub plans: Vec<ShardingPlan>,
    /// Seconds that no plan of the searched meshes takes less than.
    pub bound: f64,
    /// Meshes that were solved.
    pub solved: usize,
    /// Meshes that could not be better.
    pub bounded: usize,
    /// Meshes in which nothing fits.
    pub too_large: usize,
}

/// Why nothing was planned.
#[derive(Debug, thiserror::Error)]
pub enum ShardingError<E> {
    /// The graph cannot be solved.
    #[error(transparent)]
    Entangled(#[from] Entangled),
    /// The units cannot be recorded.
    #[error(transparent)]
    Programs(E),
}

/// Part of the time of a plan by which it may be above a bound for rounding.
const SLACK: f64 = 1e-9;

/// Graphs of the units of one layout.
pub(super) struct Units {
    embedding: UnitGraph,
    pub(super) layer: UnitGraph,
    head: UnitGraph,
}

impl Units {
    pub(super) fn new(programs: &UnitPrograms, devices: Devices<'_>, layouts: Layouts) -> Units {
        Units {
            embedding: UnitGraph::new(&programs.embedding, devices, layouts),
            layer: UnitGraph::new(&programs.layer, devices, layouts),
            head: UnitGraph::new(&programs.head, devices, layouts),
        }
    }

    /// One for each layout of a parameter that embedding and head share.
    fn tied(&self, name: Option<&str>) -> Vec<Units> {
        let layouts = name.map_or(Vec::new(), |name| self.head.layouts_of(name));
        let of = |places: &Vec<Place>| Units {
            embedding: self.embedding.with_parameter(name.unwrap_or_default(), places),
            layer: self.layer.clone(),
            head: self.head.with_parameter(name.unwrap_or_default(), places),
        };
        match layouts.is_empty() {
            true => vec![Units {
                embedding: self.embedding.clone(),
                layer: self.layer.clone(),
                head: self.head.clone(),
            }],
            false => layouts.iter().map(of).collect(),
        }
    }
}

/// Returns the fastest plans. `programs` records the units for micro-batches of so many sequences.
///
/// # Errors
/// Errors of `programs`; graphs too entangled to be solved.
pub fn sharding_plans<E>(
    question: &ShardingQuestion<'_>,
    mut programs: impl FnMut(usize, Recompute) -> Result<UnitPrograms, E>,
) -> Result<ShardingPlans, ShardingError<E>> {
    let mut found =
        ShardingPlans { plans: Vec::new(), bound: f64::INFINITY, solved: 0, bounded: 0, too_large: 0 };
    for &recompute in &question.recompute {
        for &micro_batch in &question.micro_batches {
            let meshes = question.meshes(micro_batch);
            if meshes.is_empty() {
                continue;
            }
            let programs = programs(micro_batch, recompute).map_err(ShardingError::Programs)?;
            let mut graphs: HashMap<(bool, Spread), Vec<Units>> = HashMap::new();
            for [tensor, pipeline, data] in meshes {
                for sequence in [false, true] {
                    if sequence && (tensor == 1 || !(micro_batch * question.seq).is_multiple_of(tensor)) {
                        continue;
                    }
                    let spreads = question.spreads(tensor, pipeline, data);
                    let axes = [ShardAxis::tensor(spreads.tensor)];
                    let devices =
                        Devices { machine: question.machine, efficiency: question.efficiency, axes: &axes };
                    let units = graphs.entry((sequence, spreads.tensor)).or_insert_with(|| {
                        Units::new(&programs, devices, Layouts::Partition { sequence }).tied(question.tied)
                    });
                    for zero in zeros(data) {
                        let layout = ShardingLayout {
                            tensor,
                            sequence,
                            data,
                            zero: *zero,
                            pipeline,
                            micro_batch,
                            recompute,
                        };
                        for units in &*units {
                            found.add(&MeshCase { question, layout, spreads, devices, units })?;
                        }
                    }
                }
            }
        }
    }
    Ok(found)
}

fn zeros(data: usize) -> &'static [ZeroStage] {
    if data == 1 { &ZeroStage::ALL[..1] } else { &ZeroStage::ALL }
}

/// How the groups of each axis lie on the nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spreads {
    pub(super) tensor: Spread,
    replicate: Spread,
    shard: Spread,
    pipeline: Spread,
}

impl ShardingQuestion<'_> {
    /// Tensor-parallel ranks, stages and data-parallel ranks that use all devices and divide the batch.
    fn meshes(&self, micro_batch: usize) -> Vec<[usize; 3]> {
        let stages = |tensor: usize| {
            let rest = self.devices / tensor;
            (1..=rest.min(self.layers)).filter(move |stages| rest.is_multiple_of(*stages))
        };
        let tensor = self.tensor.iter().copied().filter(|t| *t > 0 && self.devices.is_multiple_of(*t));
        tensor
            .flat_map(|tensor| stages(tensor).map(move |stages| [tensor, stages]))
            .map(|[tensor, stages]| [tensor, stages, self.devices / tensor / stages])
            .filter(|[.., data]| self.sequences.is_multiple_of(data * micro_batch))
            .collect()
    }

    /// How the ranks lie: tensor-parallel ones beside each other, as [`Mesh`] orders the axes.
    pub(super) fn spreads(&self, tensor: usize, pipeline: usize, data: usize) -> Spreads {
        let of = |data_axis: Axis, axis: Axis| {
            let degrees = [(Axis::Tensor, tensor), (Axis::Pipeline, pipeline), (data_axis, data)];
            let config = degrees.iter().fold(MeshConfig::new(), |config, (axis, n)| config.with(*axis, *n));
            match Mesh::new(&config, self.devices) {
                Ok(mesh) => Spread::of(&mesh, axis, self.machine.node),
                Err(_) => Spread::consecutive(1, self.machine.node),
            }
        };
        Spreads {
            tensor: of(Axis::Shard, Axis::Tensor),
            replicate: of(Axis::Replicate, Axis::Replicate),
            shard: of(Axis::Shard, Axis::Shard),
            pipeline: of(Axis::Shard, Axis::Pipeline),
        }
    }
}

/// One mesh of a question.
pub(super) struct MeshCase<'a> {
    pub(super) question: &'a ShardingQuestion<'a>,
    pub(super) layout: ShardingLayout,
    pub(super) spreads: Spreads,
    pub(super) devices: Devices<'a>,
    pub(super) units: &'a Units,
}

/// A micro-batch of a stage.
pub(super) struct PricedStage {
    /// Seconds, with all that is hidden.
    pub(super) seconds: f64,
    /// Bytes that a tensor-parallel rank sends.
    sent: f64,
    units: Vec<UnitChoice>,
}

impl MeshCase<'_> {
    fn micro_batches(&self) -> usize {
        self.question.sequences / (self.layout.data * self.layout.micro_batch)
    }

    fn most_in_flight(&self) -> usize {
        self.layout.pipeline.min(self.micro_batches())
    }

    fn prices(&self, in_flight: usize) -> Prices<'_> {
        let ddp = self.layout.zero == ZeroStage::Ddp;
        let training = Training {
            zero: self.layout.zero,
            data: if ddp { self.spreads.replicate } else { self.spreads.shard },
            micro_batches: self.micro_batches(),
            in_flight,
            bytes: self.question.bytes,
        };
        Prices::new(training, self.devices)
    }

    /// Seconds of a micro-batch between two stages, both ways.
    fn transfer(&self) -> f64 {
        let parts = if self.layout.sequence { self.layout.tensor } else { 1 };
        let bytes = self.units.layer.stream_bytes / parts as f64;
        let Devices { machine, efficiency, .. } = self.devices;
        let spread = self.spreads.pipeline;
        2.0 * collective_seconds(CollectiveKind::Permute, bytes, Axis::Pipeline, spread, machine, efficiency)
    }

    /// Least seconds of a step with whatever memory, and which of two bounds that is.
    pub(super) fn least(&self) -> Result<Option<(BoundBy, f64)>, Entangled> {
        let prices = self.prices(1);
        let mut least: Option<(BoundBy, f64)> = None;
        for by in [BoundBy::Compute, BoundBy::Traffic] {
            let Units { embedding, layer, head } = self.units;
            let mut seconds = 0.0;
            for (unit, count) in [(embedding, 1), (layer, self.question.layers), (head, 1)] {
                let Some(solution) = minimum(&prices.graph(unit, by), Weights::SECONDS)? else {
                    return Ok(None);
                };
                seconds += count as f64 * solution.price.seconds;
            }
            if least.is_none_or(|least| seconds > least.1) {
                least = Some((by, seconds));
            }
        }
        let (stages, others) = (self.layout.pipeline as f64, self.micro_batches() as f64 - 1.0);
        Ok(least.map(|(by, seconds)| (by, seconds + others * seconds / stages)))
    }

    /// A stage with these options, which begins with unit number `first` and holds so many micro-batches at a time.
    pub(super) fn priced(
        &self,
        traces: &Traces,
        point: &Point,
        first: usize,
        in_flight: usize,
    ) -> PricedStage {
        let prices = self.prices(in_flight);
        let (mut seconds, mut sent, mut units) = (Seconds::default(), 0.0, Vec::new());
        for options in traces.units(point) {
            let options: Vec<usize> = options.into_iter().map(|(_, option)| option).collect();
            let graph = match first + units.len() {
                0 => &self.units.embedding,
                unit if unit > self.question.layers => &self.units.head,
                _ => &self.units.layer,
            };
            seconds += prices.unit(graph, &options);
            sent += graph.micro_batch(&options).sent;
            units.push(UnitChoice::of(graph, &options));
        }
        PricedStage { seconds: prices.together(seconds), sent, units }
    }

    /// The best plan as one of the two bounds has it, with that bound.
    fn solve(&self, by: BoundBy) -> Result<Option<(ShardingPlan, f64)>, Entangled> {
        let mut traces = Traces::default();
        let fronts = StageFronts::new(self, by, &mut traces)?;
        let cut = StageQuestion {
            layers: self.question.layers + 2,
            devices: self.layout.pipeline,
            submeshes: vec![1],
            micro_batches: self.micro_batches(),
        };
        let Some(cut) = stages(&cut, &fronts) else { return Ok(None) };
        let (mut units, mut sent, mut memory, mut times) = (Vec::new(), Vec::new(), 0.0f64, Vec::new());
        let count = cut.stages.len();
        for (number, stage) in cut.stages.iter().enumerate() {
            let in_flight = (count - number).min(self.micro_batches());
            let Some(point) = fronts.point(stage.layers.clone(), in_flight) else { continue };
            memory = memory.max(point.price.memory);
            let of_stage = self.priced(&traces, point, units.len(), in_flight);
            units.extend(of_stage.units);
            let sends = if number + 1 < count { fronts.transfer } else { 0.0 };
            times.push(of_stage.seconds + sends);
            sent.push(of_stage.sent);
        }
        let slowest = times.iter().copied().fold(0.0, f64::max);
        let seconds = times.iter().sum::<f64>() + (self.micro_batches() as f64 - 1.0) * slowest;
        let of_stage = |stage: &Stage| {
            let Range { start, end } = stage.layers;
            end.min(self.question.layers + 1) - start.max(1)
        };
        let stages = cut.stages.iter().map(of_stage).collect();
        let plan = ShardingPlan { layout: self.layout, stages, units, seconds, memory, sent };
        Ok(Some((plan, cut.seconds / fronts.factor())))
    }
}

/// Fronts of the stages of a mesh.
pub(super) struct StageFronts {
    layers: usize,
    transfer: f64,
    memory: f64,
    most_in_flight: usize,
    /// By micro-batches in flight less one and number of layers less one: layers alone.
    inner: Vec<Vec<Front>>,
    /// By number of layers: with the embedding, on the first stage.
    first: Vec<Front>,
    /// By number of layers: with the head, on the last stage.
    last: Vec<Front>,
    /// All of the model.
    whole: Option<Front>,
}

impl StageFronts {
    pub(super) fn new(
        mesh: &MeshCase<'_>,
        by: BoundBy,
        traces: &mut Traces,
    ) -> Result<StageFronts, Entangled> {
        let (layers, limit) = (mesh.question.layers, mesh.question.memory);
        let (stages, most_in_flight) = (mesh.layout.pipeline, mesh.most_in_flight());
        // Every stage but those of the embedding and of the head alone has a layer.
        let most = layers - stages.saturating_sub(2);
        let one = |front: Vec<Front>| front.into_iter().next();
        let append = |before: &Front, unit: &Front, traces: &mut Traces| {
            let (before, unit) = (std::slice::from_ref(before), std::slice::from_ref(unit));
            let linked = link(before, unit, &[0.0], limit, |_, _| true, traces);
            one(linked).unwrap_or_else(|| Front { points: Vec::new(), factor: 1.0 })
        };
        let mut found = StageFronts {
            layers,
            transfer: mesh.transfer(),
            memory: limit,
            most_in_flight,
            inner: Vec::new(),
            first: Vec::new(),
            last: Vec::new(),
            whole: None,
        };
        for in_flight in 1..=most_in_flight {
            let prices = mesh.prices(in_flight);
            let of = |unit: &UnitGraph, traces: &mut Traces| {
                Ok::<_, Entangled>(one(fronts(&prices.graph(unit, by), 0, limit, traces)?))
            };
            let Some(layer) = of(&mesh.units.layer, traces)? else { return Ok(found) };
            let chain = |begin: Front, count: usize, traces: &mut Traces| {
                let mut all = vec![begin];
                for at in 1..count {
                    let next = append(&all[at - 1], &layer, traces);
                    all.push(next);
                }
                all
            };
            let inner = chain(layer.clone(), most, traces);
            if in_flight == most_in_flight {
                let Some(embedding) = of(&mesh.units.embedding, traces)? else { return Ok(found) };
                found.first = chain(embedding, most + 1, traces);
            }
            if in_flight == 1 {
                let Some(head) = of(&mesh.units.head, traces)? else { return Ok(found) };
                let with_head = inner.iter().map(|layers| append(layers, &head, traces)).collect::<Vec<_>>();
                found.last = std::iter::once(head.clone()).chain(with_head).collect();
                if stages == 1 {
                    found.whole = found.first.last().map(|layers| append(layers, &head, traces));
                }
            }
            found.inner.push(inner);
        }
        Ok(found)
    }

    /// The fastest options of a stage of some units: 0 is the embedding, the last one the head.
    pub(super) fn point(&self, units: Range<usize>, in_flight: usize) -> Option<&Point> {
        let (first, last) = (units.start == 0, units.end == self.layers + 2);
        let layers = units.len() - usize::from(first) - usize::from(last);
        let front = match (first, last) {
            (true, true) => self.whole.as_ref(),
            (true, false) => self.first.get(layers).filter(|_| in_flight == self.most_in_flight),
            (false, true) => self.last.get(layers),
            (false, false) => self.inner.get(in_flight - 1)?.get(layers - 1),
        };
        front?.within(self.memory)
    }

    /// By how much the least seconds may be too large.
    fn factor(&self) -> f64 {
        let all = self.inner.iter().flatten().chain(&self.first).chain(&self.last).chain(&self.whole);
        all.map(|front| front.factor).fold(1.0, f64::max)
    }
}

impl StageCosts for StageFronts {
    fn stage(&self, units: Range<usize>, _: usize, in_flight: usize) -> f64 {
        self.point(units, in_flight).map_or(f64::INFINITY, |point| point.price.seconds)
    }

    fn transfer(&self, _: usize, _: usize) -> f64 {
        self.transfer
    }
}

impl ShardingPlans {
    fn add(&mut self, mesh: &MeshCase<'_>) -> Result<(), Entangled> {
        let wanted = mesh.question.plans.max(1);
        let Some((by, least)) = mesh.least()? else {
            self.too_large += 1;
            return Ok(());
        };
        if self.plans.get(wanted - 1).is_some_and(|worst| least >= worst.seconds) {
            self.bounded += 1;
            return Ok(());
        }
        let Some((mut plan, mut bound)) = mesh.solve(by)? else {
            self.too_large += 1;
            return Ok(());
        };
        if plan.seconds > bound * (1.0 + SLACK) {
            // Memory has led to where the other bound is the larger one.
            let other = if by == BoundBy::Compute { BoundBy::Traffic } else { BoundBy::Compute };
            if let Some((other, least)) = mesh.solve(other)? {
                bound = bound.max(least);
                plan = if other.seconds < plan.seconds { other } else { plan };
            }
        }
        self.solved += 1;
        self.bound = self.bound.min(bound);
        let at = self.plans.partition_point(|other| other.seconds <= plan.seconds);
        self.plans.insert(at, plan);
        self.plans.truncate(wanted);
        Ok(())
    }
}

impl UnitChoice {
    /// What these options of a unit's decisions mean.
    pub fn of(graph: &UnitGraph, options: &[usize]) -> UnitChoice {
        let mut choice = UnitChoice { loops: Vec::new(), parameters: Vec::new() };
        for (decision, option) in graph.decisions.iter().zip(options) {
            let option = &decision.options[*option];
            choice.loops.push((decision.name.clone(), option.loops.first().copied().flatten()));
            for (name, places) in decision.parameters.iter().zip(&option.places) {
                choice.parameters.push((name.clone(), places.first().copied().unwrap_or(Place::Replicate)));
            }
        }
        choice
    }
}

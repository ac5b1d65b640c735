//! The graph of a unit's operators: for each heavy operator the loops along which it may be sharded, and what every choice costs.
//!
//! A decision is a heavy operator with its backward operators: a linear map, attention, an embedding, the loss. An option names for each axis
//! the loop of the operator's sharding rule ([`bessemer_tensor::op::Op::rule`]) that the axis shards, or none: rows, a loop of the parameter, or a
//! contracted one. The residual stream is a decision too: which of its dims each axis shards. All other operators are cheap: they
//! follow their first operand and compute where it lies (Zheng et al. 2022, Alpa, section 4).
//!
//! The price of an option is the time of the operators on the shapes that it leaves a rank, and of the collectives that it needs by itself; a pair of
//! options costs what brings the values that one makes to the layouts in which the other reads them, forward and backward. A sum of which each
//! rank has a term is reduced at once: to the layout of the residual stream if it belongs to it, else to all ranks. A value that a decision reads twice in a
//! pass is brought there once.
//!
//! With [`Layouts::Partition`] only that is left which [`bessemer_program::partition()`] makes of layouts of parameters: loops of the parameters' declared
//! dims or no loop, and no exchange but gathers of rows and reductions.

use super::exchange::{Devices, Place, ShardAxis, Traffic};
use super::localize::{local, logit_sums};
use super::passages::{Home, Reading, Way};
use super::unit::{Decision, Layouts, LoopLabel, Passage, STREAM, ShardOption, UnitGraph, stream_place};
use crate::op_seconds;
use bessemer_mesh::{Axis, Placement};
use bessemer_program::{Class, CollectiveKind, Launch, Node, Phase, UnitProgram, Value};
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, Factor, FactorKind, Op, OperandRule, Rule, TermReduction};
use std::collections::HashMap;

/// A unit's graph while its operators are listed.
pub(super) struct Builder<'a> {
    pub(super) unit: &'a UnitProgram,
    pub(super) devices: Devices<'a>,
    pub(super) layouts: Layouts,
    pub(super) decisions: Vec<Decision>,
    /// By parameter of the unit.
    pub(super) owners: HashMap<usize, usize>,
    pub(super) attention: Option<usize>,
    pub(super) homes: Vec<Option<Home>>,
    pub(super) versions: Vec<usize>,
    pub(super) readings: Vec<Reading>,
    pub(super) passages: HashMap<[usize; 2], Vec<Traffic>>,
}

impl UnitGraph {
    /// Lists what may be chosen for a recorded unit, and what it costs.
    pub fn new(unit: &UnitProgram, devices: Devices<'_>, layouts: Layouts) -> UnitGraph {
        let count = unit.values.len();
        let mut builder = Builder {
            unit,
            devices,
            layouts,
            decisions: Vec::new(),
            owners: HashMap::new(),
            attention: None,
            homes: vec![None; count],
            versions: vec![0; count],
            readings: Vec::new(),
            passages: HashMap::new(),
        };
        builder.stream();
        builder.heavy();
        let saved = saved_values(unit);
        for phase in [Phase::Forward, Phase::Backward] {
            for launch in unit.list(phase).iter().filter_map(launched) {
                builder.launch(launch, phase);
            }
            if phase == Phase::Forward {
                saved.iter().for_each(|value| builder.keep(*value));
            }
        }
        builder.price_readings();
        let stream = unit.values.iter().find(|value| is_stream(value.class));
        let stream_bytes = stream.map_or(0.0, |value| value.bytes() as f64);
        let mut passages: Vec<Passage> =
            builder.passages.into_iter().map(|(nodes, traffic)| Passage { nodes, traffic }).collect();
        passages.sort_by_key(|passage| passage.nodes);
        UnitGraph { decisions: builder.decisions, passages, stream_bytes }
    }
}

/// The launch of a node that runs for every micro-batch.
fn launched(node: &Node) -> Option<&Launch> {
    match node {
        Node::Launch(launch) if !launch.first_only => Some(launch),
        _ => None,
    }
}

fn is_stream(class: Class) -> bool {
    matches!(class, Class::StreamIn | Class::StreamOut | Class::StreamGradient)
}

/// Whether a value has the layout of the residual stream.
fn in_stream(value: &Value) -> bool {
    value.residual || is_stream(value.class)
}

/// Values that the forward list leaves to the backward list.
fn saved_values(unit: &UnitProgram) -> Vec<usize> {
    let touches = |phase: Phase| unit.list(phase).iter().flat_map(Node::touches);
    let made = |id: usize| {
        unit.values[id].class == Class::StreamIn
            || touches(Phase::Forward).any(|t| t.value() == id && t.access != Access::Read)
    };
    let read = |id: usize| {
        touches(Phase::Backward).find(|t| t.value() == id).is_some_and(|t| t.access != Access::Write)
    };
    let local = |id: usize| matches!(unit.values[id].class, Class::Local | Class::StreamIn);
    (0..unit.values.len()).filter(|id| local(*id) && made(*id) && read(*id)).collect()
}

/// The parameter whose loops an operator has, and the labels of those loops, if it is a heavy one.
fn heavy_loops(op: &Op) -> Option<(View, &'static [&'static str])> {
    Some(match op {
        Op::Linear(o) => (o.weight, &["n", "o", "i"]),
        Op::LinearBackwardInput(o) => (o.weight, &["n", "o", "i"]),
        Op::LinearBackwardWeight(o) => (o.dweight, &["n", "o", "i"]),
        Op::Embedding(o) => (o.table, &["n", "v", "d"]),
        Op::EmbeddingBackward(o) => (o.dtable, &["n", "v", "d"]),
        Op::LinearCrossEntropy(o) => (o.weight, &["n", "v"]),
        _ => return None,
    })
}

/// Whether an operator attends.
fn attends(op: &Op) -> bool {
    matches!(op, Op::Attention(_) | Op::AttentionBackward(_))
}

/// Loops of attention: whole sequences, and heads.
const ATTENTION_LOOPS: [&str; 2] = ["b", "g"];

impl Builder<'_> {
    fn axes(&self) -> usize {
        self.devices.axes.len()
    }

    /// Every combination of loops over the axes.
    fn combinations(&self, labels: &[LoopLabel]) -> Vec<Vec<LoopLabel>> {
        (0..self.axes()).fold(vec![Vec::new()], |all: Vec<Vec<LoopLabel>>, _| {
            let longer = |of: &Vec<LoopLabel>| {
                labels.iter().map(|label| [&of[..], &[*label]].concat()).collect::<Vec<_>>()
            };
            all.iter().flat_map(longer).collect()
        })
    }

    fn add(&mut self, name: &str, loops: Vec<Vec<LoopLabel>>) -> usize {
        let option = |loops| ShardOption {
            loops,
            seconds: 0.0,
            sent: 0.0,
            elements: 0.0,
            partial: vec![0.0; self.devices.axes.len()],
            saved: 0.0,
            places: Vec::new(),
        };
        let options = loops.into_iter().map(option).collect();
        self.decisions.push(Decision { name: name.into(), parameters: Vec::new(), options });
        self.decisions.len() - 1
    }

    /// The residual stream, and what lies as it does.
    fn stream(&mut self) {
        let Some(value) = self.unit.values.iter().find(|value| is_stream(value.class)) else { return };
        let (rows, columns) = (value.rows, value.cols);
        let labels: Vec<LoopLabel> = match self.layouts {
            Layouts::Any => vec![None, Some("rows"), Some("columns")],
            Layouts::Partition { sequence: true } => vec![Some("rows")],
            Layouts::Partition { sequence: false } => vec![None],
        };
        let mut loops = self.combinations(&labels);
        let parts = |loops: &[LoopLabel], label: &str| -> usize {
            let along = loops.iter().enumerate().filter(|(_, l)| **l == Some(label));
            along.map(|(axis, _)| self.devices.degree(axis)).product()
        };
        loops.retain(|loops| {
            rows.is_multiple_of(parts(loops, "rows")) && columns.is_multiple_of(parts(loops, "columns"))
        });
        let places: Vec<Vec<Place>> =
            loops.iter().map(|loops| loops.iter().map(stream_place).collect()).collect();
        self.add("residual stream", loops);
        for (id, value) in self.unit.values.iter().enumerate() {
            if in_stream(value) {
                self.homes[id] = Some(Home { decision: STREAM, places: places.clone() });
            }
        }
    }

    /// Decisions about all heavy operators, and what may be chosen.
    fn heavy(&mut self) {
        let unit = self.unit;
        let lists = || [Phase::Forward, Phase::Backward].into_iter().flat_map(|phase| unit.list(phase));
        let mut of_decision: Vec<Vec<&Op>> = vec![Vec::new()];
        for launch in lists().filter_map(launched) {
            let op = &launch.op;
            let decision = match heavy_loops(op) {
                Some((parameter, _)) => {
                    let Some(number) = unit.values[parameter.buffer.id as usize].parameter else { continue };
                    let next = of_decision.len();
                    *self.owners.entry(number).or_insert(next)
                }
                None if attends(op) => *self.attention.get_or_insert(of_decision.len()),
                None => continue,
            };
            if decision == of_decision.len() {
                of_decision.push(Vec::new());
            }
            of_decision[decision].push(op);
        }
        for (decision, ops) in of_decision.iter().enumerate().skip(1) {
            let parameter = self.owners.iter().find(|(_, owner)| **owner == decision).map(|(p, _)| *p);
            let labels = ops.first().and_then(|op| heavy_loops(op)).map_or(&ATTENTION_LOOPS[..], |of| of.1);
            let mut labels: Vec<LoopLabel> =
                std::iter::once(None).chain(labels.iter().map(|l| Some(*l))).collect();
            if let Layouts::Partition { sequence } = self.layouts {
                let sharded = self.declared(parameter, ops);
                labels.retain(|label| match label {
                    None => !sequence,
                    Some("n") => sequence,
                    Some("b") => false,
                    label => *label == sharded,
                });
                if sequence && ops.iter().any(|op| attends(op) || matches!(op, Op::LinearCrossEntropy(_))) {
                    labels.retain(|label| *label == sharded);
                }
            }
            let mut loops = self.combinations(&labels);
            loops.retain(|loops| ops.iter().all(|op| self.divides(op, loops)));
            let name = match parameter {
                Some(number) => unit.parameters[number].trim_end_matches(".weight").to_owned(),
                None => "attention".to_owned(),
            };
            self.add(&name, loops);
        }
    }

    /// The loop by which the declared layout of a decision's parameter shards its operators; heads of attention.
    fn declared(&self, parameter: Option<usize>, ops: &[&Op]) -> LoopLabel {
        let Some(parameter) = parameter else { return Some("g") };
        let value = self.unit.values.iter().find(|v| v.class == Class::Parameter(parameter))?;
        let Placement::Shard { dim } = value.placement(Axis::Tensor) else { return None };
        Some(match (ops.first()?, dim) {
            (Op::Embedding(_) | Op::EmbeddingBackward(_), 0) | (Op::LinearCrossEntropy(_), _) => "v",
            (Op::Embedding(_) | Op::EmbeddingBackward(_), _) => "d",
            (_, 0) => "o",
            _ => "i",
        })
    }

    /// Whether axes can shard an operator so.
    fn divides(&self, op: &Op, loops: &[LoopLabel]) -> bool {
        let rule = op.rule();
        loops.iter().flatten().all(|label| {
            let along = loops.iter().enumerate().filter(|(_, l)| **l == Some(label));
            let parts: usize = along.map(|(axis, _)| self.devices.degree(axis)).product();
            let vocabulary = *label == "v";
            rule.factors.iter().find(|f| f.name == *label).is_some_and(|f| {
                (f.kind != FactorKind::Whole || vocabulary)
                    && (f.size.is_multiple_of(parts) || (vocabulary && f.size >= parts))
            })
        })
    }

    /// The decision that an operator belongs to, and by option the loops along which it is sharded.
    fn loops(&self, op: &Op, rule: &Rule) -> Option<(usize, Vec<Vec<LoopLabel>>)> {
        let owned = match heavy_loops(op) {
            Some((parameter, _)) => {
                let number = self.unit.values[parameter.buffer.id as usize].parameter?;
                self.owners.get(&number).copied()
            }
            None => self.attention.filter(|_| attends(op)),
        };
        if let Some(decision) = owned {
            return Some((
                decision,
                self.decisions[decision].options.iter().map(|o| o.loops.clone()).collect(),
            ));
        }
        // Where its first operand lies.
        let operands: Vec<_> = op.operands().iter().copied().collect();
        let followed = operands.iter().zip(&rule.operands).find_map(|(operand, by)| {
            let id = operand.view.buffer.id as usize;
            let activation = self.unit.values[id].parameter.is_none() && operand.access != Access::Write;
            let home = self.homes[id].as_ref().filter(|_| activation)?;
            Some((home, by))
        });
        let (home, by) = followed?;
        let along = |(axis, place): (usize, &Place)| self.loop_at(rule, by, *place, axis);
        let of = |places: &Vec<Place>| places.iter().enumerate().map(along).collect();
        Some((home.decision, home.places.iter().map(of).collect()))
    }

    /// The loop of an operator that shards an operand so; none if it cannot be sharded there.
    fn loop_at(&self, rule: &Rule, by: &OperandRule, place: Place, axis: usize) -> LoopLabel {
        let factors = match place {
            Place::Rows => &by.rows,
            Place::Columns => &by.cols,
            Place::Replicate | Place::Partial => return None,
        };
        let factor = rule.factors[*factors.iter().find(|f| rule.factors[**f].size > 1)?];
        let divides =
            factor.kind != FactorKind::Whole && factor.size.is_multiple_of(self.devices.degree(axis));
        divides.then_some(factor.name)
    }

    /// Adds what an operator costs, reads and makes.
    fn launch(&mut self, launch: &Launch, phase: Phase) {
        let (op, rule) = (&launch.op, launch.op.rule());
        let Some((decision, loops)) = self.loops(op, &rule) else { return };
        let mut seconds: HashMap<&[LoopLabel], Traffic> = HashMap::new();
        for (option, loops) in loops.iter().enumerate() {
            let of = *seconds.entry(loops).or_insert_with(|| self.compute(op, &rule, loops));
            let option = &mut self.decisions[decision].options[option];
            option.seconds += of.seconds;
            option.sent += of.sent;
        }
        let operands: Vec<_> = op.operands().iter().copied().collect();
        let place = |by: &OperandRule, loops: &[LoopLabel]| -> Vec<Place> {
            loops.iter().map(|label| place_of(&rule, by, *label)).collect()
        };
        for (operand, by) in operands.iter().zip(&rule.operands).filter(|(o, _)| o.access != Access::Write) {
            let id = operand.view.buffer.id as usize;
            let value = &self.unit.values[id];
            let wanted: Vec<Vec<Place>> = loops.iter().map(|loops| place(by, loops)).collect();
            match (value.class, &self.homes[id]) {
                (Class::Parameter(number), _) => self.hold(number, decision, &wanted, value.len()),
                (Class::Gradient(_) | Class::Input(_) | Class::Random(_) | Class::Constant, _) => {}
                (_, Some(home)) => self.readings.push(Reading {
                    phase,
                    version: self.versions[id],
                    view: operand.view,
                    from: home.clone(),
                    reader: decision,
                    wanted,
                }),
                (_, None) => {}
            }
        }
        for (operand, by) in operands.iter().zip(&rule.operands).filter(|(o, _)| o.access != Access::Read) {
            let made = |loops: &Vec<LoopLabel>| -> Vec<Place> {
                let of = |label: &LoopLabel| match place_of(&rule, by, *label) {
                    Place::Replicate if contracts(op, &rule, by, *label) => Place::Partial,
                    place => place,
                };
                loops.iter().map(of).collect()
            };
            self.write(decision, operand.view, loops.iter().map(made).collect());
        }
    }

    /// Seconds of an operator on the shapes of a rank, and of collectives in the midst of it.
    fn compute(&self, op: &Op, rule: &Rule, loops: &[LoopLabel]) -> Traffic {
        let parts: Vec<(&str, usize)> = loops
            .iter()
            .enumerate()
            .filter_map(|(axis, label)| label.map(|label| (label, self.devices.degree(axis))))
            .collect();
        let Devices { machine, efficiency, .. } = self.devices;
        let mut all =
            Traffic { seconds: op_seconds(&local(op, rule, &parts), machine, efficiency), sent: 0.0 };
        if let (Op::LinearCrossEntropy(loss), Some(axis)) =
            (op, loops.iter().position(|label| *label == Some("v")))
        {
            // Log-sum-exps and target logits of all ranks are combined before the losses.
            let Op::LinearCrossEntropy(here) = local(op, rule, &parts) else { return all };
            let ranks = self.devices.degree(axis);
            for op in logit_sums(&here, loss.weight.rows, ranks) {
                all.seconds += op_seconds(&op, machine, efficiency);
            }
            let bytes = 8.0 * (here.x.rows * ranks) as f64;
            all += self.devices.collective(CollectiveKind::AllGather, axis, bytes);
        }
        all
    }

    /// A decision has a parameter, by option in these places.
    fn hold(&mut self, number: usize, decision: usize, places: &[Vec<Place>], elements: usize) {
        let name = &self.unit.parameters[number];
        let Decision { parameters, options, .. } = &mut self.decisions[decision];
        if parameters.contains(name) {
            return;
        }
        parameters.push(name.clone());
        for (option, places) in options.iter_mut().zip(places) {
            let parts: usize = places
                .iter()
                .enumerate()
                .filter(|(_, place)| place.shards())
                .map(|(axis, _)| self.devices.degree(axis))
                .product();
            option.elements += elements as f64 / parts as f64;
            option.places.push(places.clone());
        }
    }

    /// A value that an operator of a decision writes, by option made so.
    fn write(&mut self, decision: usize, view: View, made: Vec<Vec<Place>>) {
        let id = view.buffer.id as usize;
        let value = &self.unit.values[id];
        self.versions[id] += 1;
        let bytes = view.bytes() as f64;
        match value.class {
            Class::Gradient(_) => self.gradient(decision, value.len(), &made),
            _ if in_stream(value) => {
                let Some(home) = self.homes[id].clone() else { return };
                self.carry(decision, bytes, &made, &home, Way::Made);
            }
            class => {
                // Losses are read by the host, those of other micro-batches only by other hosts.
                let settle = |(place, axis): (&Place, &ShardAxis)| match place {
                    Place::Partial => Place::Replicate,
                    _ if class == Class::Losses && !axis.shares_states => Place::Replicate,
                    place => *place,
                };
                let axes = self.devices.axes;
                let settled = |of: &Vec<Place>| of.iter().zip(axes).map(settle).collect();
                let places: Vec<Vec<Place>> = made.iter().map(settled).collect();
                let home = Home { decision, places };
                self.carry(decision, bytes, &made, &home, Way::Made);
                self.homes[id] = Some(home);
            }
        }
    }

    /// Gradients of parameters stay terms of a sum, which is formed once a step.
    fn gradient(&mut self, decision: usize, elements: usize, made: &[Vec<Place>]) {
        for (option, places) in self.decisions[decision].options.iter_mut().zip(made) {
            let sharded: usize = (places.iter().enumerate())
                .filter(|(_, place)| place.shards())
                .map(|(axis, _)| self.devices.degree(axis))
                .product();
            for (axis, _) in places.iter().enumerate().filter(|(_, place)| **place == Place::Partial) {
                option.partial[axis] += elements as f64 / sharded as f64;
            }
        }
    }

    /// Bytes of a saved value, to the decision where it lies.
    fn keep(&mut self, id: usize) {
        let Some(home) = self.homes[id].clone() else { return };
        let bytes = self.unit.values[id].bytes() as f64;
        for (option, places) in self.decisions[home.decision].options.iter_mut().zip(&home.places) {
            let parts: usize = (places.iter().enumerate())
                .filter(|(_, place)| place.shards())
                .map(|(axis, _)| self.devices.degree(axis))
                .product();
            option.saved += bytes / parts as f64;
        }
    }
}

/// The place of an operand in which the loop puts it.
fn place_of(rule: &Rule, by: &OperandRule, label: LoopLabel) -> Place {
    let has = |dim: &[usize]| label.is_some_and(|label| dim.iter().any(|f| rule.factors[*f].name == label));
    match (has(&by.rows), has(&by.cols)) {
        (true, _) => Place::Rows,
        (_, true) => Place::Columns,
        _ => Place::Replicate,
    }
}

/// Whether an output without the loop is a term of a sum.
fn contracts(op: &Op, rule: &Rule, by: &OperandRule, label: LoopLabel) -> bool {
    let Some(label) = label else { return false };
    match op {
        // Losses are made of the log-sum-exps of all of the vocabulary.
        Op::LinearCrossEntropy(_) if label == "v" => by.name == "dx",
        _ => {
            let sum = |f: &Factor| f.name == label && f.kind == FactorKind::Sum;
            rule.factors.iter().any(sum) && by.reduce != TermReduction::Equal
        }
    }
}

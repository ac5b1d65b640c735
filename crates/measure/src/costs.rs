//! What the operators, copies, collectives and messages of a layout cost on ranks of this process.
//!
//! All ranks measure at the same time, as in a step all of them compute, with the threads that they have there. Every launch of a
//! step is repeated in the order of the step, without anything between them, so that operands are as warm as in a step.
//!
//! Ranks on paced devices sleep in a step, and there may be many more of them than cores. If all of them copied and sent at once, each would
//! wait for the cores most of the time, which in a step it does not. So a pair of them measures copies and messages, and the others wait.

use crate::{Launched, MeasureError, RandomText, Setup, Timed};
use bessemer_collectives::{
    Collective, CollectiveError, CollectiveQueue, Communicator, ElementType, HostBuffer, Memory, Message,
    Parts, Pattern, Reduce,
};
use bessemer_parallel::ParallelError;
use bessemer_program::CollectiveKind;
use bessemer_sim::replay::{CostTable, LinearSeconds, RowSeconds, counted_by, counted_rows, on_rows, op_key};
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError};
use bessemer_train::{Runner, TrainError, on_threads};
use bessemer_units::DType;
use bessemer_units::stats::upper_median;
use std::collections::BTreeMap;
use std::time::Instant;

/// Elements of short and long values of f32 that travel or are copied.
const ELEMENTS: [usize; 2] = [1 << 10, 2 << 20];
/// Times that a copy, collective or message is measured.
const TRANSPORT_REPEATS: usize = 15;
/// Parts of the rows that experts have room for, on which their operators are measured.
const ROW_PARTS: [f64; 2] = [0.25, 1.0];

/// The launches of a step.
struct StepLaunches {
    passes: Vec<Launched>,
    /// Of the gradient's norm.
    norm: Vec<Launched>,
    update: Vec<Launched>,
}

/// Launches of one rank, as measured.
#[derive(Default)]
struct RankOps {
    /// Launches of each repeat of a step, in the order of the step.
    repeats: Vec<Vec<(Op, f64)>>,
    /// From the end of a launch to the beginning of the next one.
    between: Vec<f64>,
}

/// Transport between ranks of this process.
#[derive(Default)]
pub struct Transport {
    /// A copy from the device or to it.
    pub copy: LinearSeconds,
    /// Collectives between all ranks of a group.
    pub collectives: Vec<(CollectiveKind, LinearSeconds)>,
    /// Seconds to hand a collective to a progress thread.
    pub handoff: f64,
    /// A message, on the side that sends it.
    pub send: LinearSeconds,
    /// A message, on the side that receives it.
    pub receive: LinearSeconds,
    /// Whether a progress thread has a core for itself.
    pub spare_cores: bool,
}

/// Runs a step and keeps its launches.
fn step(runner: &mut Runner, text: &mut RandomText, backend: &mut Timed) -> Result<StepLaunches, TrainError> {
    backend.keep_launches();
    let worker = &mut runner.worker;
    let sum = worker.gradients(backend, text)?;
    let passes = backend.take_launches();
    worker.sum_over_data(sum)?;
    worker.grad_norm(backend)?;
    let norm = backend.take_launches();
    // Of a null device the norm is no number.
    worker.apply(backend, 1, 0.0, 1.0)?;
    Ok(StepLaunches { passes, norm, update: backend.take_launches() })
}

/// Measures the costs of layouts of one job, without their links. What several of them launch or transport costs in all of them what it costs in
/// the median: a busy moment of this machine is not that of one layout.
///
/// # Errors
/// A step or a collective that fails.
pub fn layout_costs(setups: &[&Setup<'_>], repeats: usize) -> Result<CostTable, MeasureError> {
    let mut ops: BTreeMap<String, (Op, Vec<f64>)> = BTreeMap::new();
    let mut transports = Vec::new();
    for setup in setups {
        for (key, (op, seconds)) in launches(setup, repeats)? {
            ops.entry(key).or_insert_with(|| (op, Vec::new())).1.push(seconds);
        }
        transports.push(transport_of(setup, setup.plan.ranks(), TRANSPORT_REPEATS)?);
    }
    let middle = |seconds: &dyn Fn(&Transport) -> f64| -> f64 {
        upper_median(&mut transports.iter().map(seconds).collect::<Vec<f64>>())
    };
    let line = |of: &dyn Fn(&Transport) -> LinearSeconds| {
        let bytes = ELEMENTS.map(|len| 4 * len as u64);
        LinearSeconds::through(bytes, bytes.map(|bytes| middle(&|transport| of(transport).of(bytes))))
    };
    let kinds = transports.first().map_or(0, |transport| transport.collectives.len());
    let collectives =
        (0..kinds).map(|at| (transports[0].collectives[at].0, line(&|of| of.collectives[at].1)));
    // Of operators whose rows are counted: seconds by rows.
    let mut points: BTreeMap<String, BTreeMap<usize, f64>> = BTreeMap::new();
    let mut of_all_rows = BTreeMap::new();
    for (key, (op, mut seconds)) in ops {
        let seconds = upper_median(&mut seconds);
        match (counted_rows(&op), on_rows(&op, 0)) {
            (Some(rows), Some(without)) => {
                points.entry(op_key(&without)).or_default().insert(rows, seconds);
            }
            _ => {
                of_all_rows.insert(key, seconds);
            }
        }
    }
    let line_of = |points: &BTreeMap<usize, f64>| {
        let ends = points.first_key_value().zip(points.last_key_value())?;
        Some(RowSeconds { rows: [*ends.0.0, *ends.1.0], seconds: [*ends.0.1, *ends.1.1] })
    };
    let counted = points.into_iter().filter_map(|(key, points)| Some((key, line_of(&points)?)));
    Ok(CostTable {
        ops: of_all_rows,
        counted: counted.collect(),
        copy: line(&|of| of.copy),
        collectives: collectives.collect(),
        handoff: middle(&|of| of.handoff),
        send: line(&|of| of.send),
        receive: line(&|of| of.receive),
        spare_cores: transports.iter().all(|transport| transport.spare_cores),
        link: None,
    })
}

/// Measures the operators of a layout's step, on all ranks at once: of those that cost the same, one with its median seconds. These
/// have the time to the next launch in them, and are longer where other programs took the cores now and then.
///
/// # Errors
/// A step that fails.
pub fn launches(setup: &Setup<'_>, repeats: usize) -> Result<BTreeMap<String, (Op, f64)>, MeasureError> {
    let ranks = on_threads(setup.worlds(), |world| rank(setup, repeats, world))?;
    let mut ops: BTreeMap<String, (Op, Vec<f64>)> = BTreeMap::new();
    let mut between = Vec::new();
    for rank in &ranks {
        for (op, seconds) in rank.repeats.iter().flatten() {
            let of_key = ops.entry(op_key(op)).or_insert_with(|| (op.clone(), Vec::new()));
            of_key.1.push(*seconds);
        }
        between.extend_from_slice(&rank.between);
    }
    let between = upper_median(&mut between);
    let mut medians: BTreeMap<String, (Op, f64)> = BTreeMap::new();
    for (key, (op, times)) in &mut ops {
        medians.insert(key.clone(), (op.clone(), upper_median(times)));
    }
    // Where other programs take the cores now and then, a step's launches together take longer than their medians.
    let mut lengthened: Vec<f64> = (ranks.iter())
        .flat_map(|rank| &rank.repeats)
        .map(|ops| {
            let expected: f64 = ops.iter().map(|(op, _)| medians[&op_key(op)].1).sum();
            ops.iter().map(|(_, seconds)| seconds).sum::<f64>() / expected
        })
        .collect();
    let lengthened = upper_median(&mut lengthened);
    for (_, seconds) in medians.values_mut() {
        *seconds = between + lengthened * *seconds;
    }
    Ok(medians)
}

fn rank(setup: &Setup<'_>, repeats: usize, mut world: Box<dyn Communicator>) -> Result<RankOps, TrainError> {
    let all: Vec<usize> = (0..world.size()).collect();
    let mut group = world.group("costs", &all).map_err(ParallelError::from)?;
    let mut backend = Timed::new(setup.backend()?, false);
    let (mut runner, mut text) = setup.rank(&mut backend, world)?;
    setup.init(&mut runner, &mut backend)?;
    // Nothing is measured in the first step.
    step(&mut runner, &mut text, &mut backend)?;
    let StepLaunches { passes, norm, update } = step(&mut runner, &mut text, &mut backend)?;
    let gaps = passes.windows(2).map(|pair| (pair[1].begin - pair[0].end).as_secs_f64());
    let mut costs = RankOps { between: gaps.collect(), ..RankOps::default() };
    let all: Vec<Launched> = passes.into_iter().chain(norm).chain(update).collect();
    let counted = all.iter().any(|launched| counted_rows(&launched.op).is_some());
    let parts = if counted { &ROW_PARTS[..] } else { &[1.0] };
    for part in (0..repeats).flat_map(|_| parts) {
        group.barrier("repeat").map_err(ParallelError::from)?;
        let mut ops = Vec::new();
        for Launched { op, .. } in &all {
            let op = on_part(&mut backend, op, *part)?;
            let begun = Instant::now();
            backend.launch(Stream::Compute, &op)?;
            let seconds = begun.elapsed().as_secs_f64();
            ops.push((op, seconds));
        }
        costs.repeats.push(ops);
        backend.take_launches();
    }
    Ok(costs)
}

/// The operator on a part of the rows that it has room for, with as many in each of its groups; one that touches all of its rows as it is.
fn on_part(backend: &mut dyn Backend, op: &Op, part: f64) -> Result<Op, TensorError> {
    // Counts of other ranks, which a list without exchanges lacks.
    let counts_of_others = match op {
        Op::ReceivedGroups(o) => Some(o.offsets),
        Op::ChooseShadows(o) => Some(o.offsets),
        _ => None,
    };
    if let Some(offsets) = counts_of_others {
        backend.write_u32(offsets, &vec![0; offsets.len()])?;
    }
    let (Some(counts), Some(room)) = (counted_by(op), counted_rows(op)) else { return Ok(op.clone()) };
    let rows = (part * room as f64) as usize;
    let groups = counts.cols.saturating_sub(1).max(1);
    let ends = (0..counts.cols).map(|at| (rows * (at + groups + 1 - counts.cols) / groups) as u32);
    backend.write_u32(counts, &ends.collect::<Vec<u32>>())?;
    Ok(on_rows(op, rows).unwrap_or_else(|| op.clone()))
}

/// Measures transport in groups of `size` consecutive ranks, all groups at once.
///
/// # Errors
/// A copy, a collective or a message that fails.
pub fn transport_of(setup: &Setup<'_>, size: usize, repeats: usize) -> Result<Transport, MeasureError> {
    let ranks = on_threads(setup.worlds(), |mut world| {
        let first = world.rank() / size * size;
        let block: Vec<usize> = (first..first + size).collect();
        let mut group = world.group("costs", &block).map_err(ParallelError::from)?;
        let queued = world.group("queued", &block).map_err(ParallelError::from)?;
        let mut costs = Transport { spare_cores: setup.spare_cores(), ..Transport::default() };
        let timing = Timing { part: Part::of(setup, group.rank(), group.size()), repeats };
        costs.copy = copies(&mut *setup.backend()?, &mut *group, timing)?;
        transport(&mut costs, group, queued, timing).map_err(ParallelError::from)?;
        Ok(costs)
    })?;
    Ok(ranks.into_iter().next().unwrap_or_default())
}

/// What a rank does while copies and messages are measured.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// Copies, sends to `next` and receives from `previous`.
    Measures { next: usize, previous: usize },
    /// Waits for the others.
    Waits,
}

impl Part {
    fn of(setup: &Setup<'_>, rank: usize, ranks: usize) -> Part {
        match (setup.bench.paced, rank) {
            (None, _) => Part::Measures { next: (rank + 1) % ranks, previous: (rank + ranks - 1) % ranks },
            (Some(_), 0 | 1) => {
                let other = (1 - rank).min(ranks - 1);
                Part::Measures { next: other, previous: other }
            }
            (Some(_), _) => Part::Waits,
        }
    }
}

/// Part of a rank in the timing of transport, and how often it repeats.
#[derive(Debug, Clone, Copy)]
struct Timing {
    part: Part,
    /// Times of each copy, collective or message.
    repeats: usize,
}

/// Median seconds of short and long values, as a line.
fn line<E>(repeats: usize, mut seconds: impl FnMut(usize) -> Result<f64, E>) -> Result<LinearSeconds, E> {
    let mut medians = [0.0; 2];
    for (found, len) in medians.iter_mut().zip(ELEMENTS) {
        let mut times = (0..repeats).map(|_| seconds(len)).collect::<Result<Vec<f64>, E>>()?;
        *found = upper_median(&mut times);
    }
    Ok(LinearSeconds::through(ELEMENTS.map(|len| 4 * len as u64), medians))
}

/// Copies from the device and back to it; the mean of both.
fn copies(
    backend: &mut dyn Backend,
    group: &mut dyn Communicator,
    Timing { part, repeats }: Timing,
) -> Result<LinearSeconds, TrainError> {
    let len = ELEMENTS[1];
    let spec = BufferSpec { class: "bench", name: "copies", dtype: DType::F32, len };
    let view = backend.alloc(spec)?.vector();
    let mut host = vec![0.0; len];
    line(repeats, |len| {
        group.barrier("copies").map_err(ParallelError::from)?;
        let begun = Instant::now();
        if matches!(part, Part::Waits) {
            return Ok(0.0);
        }
        backend.read_f32(view.columns(0, len), &mut host[..len])?;
        backend.write_f32(view.columns(0, len), &host[..len])?;
        Ok(begun.elapsed().as_secs_f64() / 2.0)
    })
}

/// Collectives and messages between all ranks, and what it costs to hand a collective to a progress thread.
fn transport(
    costs: &mut Transport,
    mut group: Box<dyn Communicator>,
    queued: Box<dyn Communicator>,
    Timing { part, repeats }: Timing,
) -> Result<(), CollectiveError> {
    let (rank, size) = (group.rank(), group.size());
    let mut values = HostBuffer::with_capacity(ElementType::F32, ELEMENTS[1]);
    let mut received = HostBuffer::with_capacity(ElementType::F32, ELEMENTS[1]);
    for kind in [
        CollectiveKind::AllReduce,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllGather,
        CollectiveKind::AllToAll,
    ] {
        let seconds = line(repeats, |len| {
            let parts = Parts::even(len, size);
            let own = Parts::of(std::iter::repeat_n(parts.range(rank).len(), size));
            let pattern = match kind {
                CollectiveKind::AllReduce => Pattern::AllReduce(Reduce::Sum),
                CollectiveKind::ReduceScatter => Pattern::ReduceScatter(&parts, Reduce::Sum),
                CollectiveKind::AllGather => Pattern::AllGather(&parts),
                // Permutations are messages, and cost what these do.
                CollectiveKind::AllToAll | CollectiveKind::Permute => {
                    Pattern::AllToAll { send: &parts, receive: &own }
                }
            };
            values.reset(ElementType::F32, len);
            received.reset(ElementType::F32, own.len());
            group.barrier("collectives")?;
            let begun = Instant::now();
            let memory = match kind {
                CollectiveKind::AllToAll => {
                    Memory::Exchange { send: values.lend().into_slice(), receive: received.lend() }
                }
                _ => Memory::InPlace(values.lend()),
            };
            group.run(&Collective::new("values", pattern), memory)?;
            Ok(begun.elapsed().as_secs_f64())
        })?;
        costs.collectives.push((kind, seconds));
    }

    let mut sent = vec![0.0f32; ELEMENTS[1]];
    costs.send = line(repeats, |len| {
        group.barrier("messages")?;
        let begun = Instant::now();
        if let Part::Measures { next, .. } = part {
            group.send(Message::new("values", len as u64, next), &sent[..len])?;
        }
        Ok(begun.elapsed().as_secs_f64())
    })?;
    costs.receive = line(repeats, |len| {
        group.barrier("messages")?;
        let begun = Instant::now();
        if let Part::Measures { previous, .. } = part {
            group.receive(Message::new("values", len as u64, previous), &mut sent[..len])?;
        }
        Ok(begun.elapsed().as_secs_f64())
    })?;

    let mut queue = CollectiveQueue::with_progress_thread(queued)?;
    let sum = Collective::new("values", Pattern::AllReduce(Reduce::Sum));
    values.reset(ElementType::F32, ELEMENTS[0]);
    let mut times = Vec::new();
    for _ in 0..repeats {
        group.barrier("queue")?;
        let begun = Instant::now();
        let ticket = queue.start(&sum, values)?;
        values = queue.finish(ticket)?;
        times.push(begun.elapsed().as_secs_f64());
    }
    let alone = costs.collectives[0].1.of(4 * ELEMENTS[0] as u64);
    costs.handoff = (upper_median(&mut times) - alone).max(0.0);
    Ok(())
}

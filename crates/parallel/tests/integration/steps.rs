//! Steps as lists: those of many layouts pass the verifier and list the messages that are sent; every wrong one is refused.

#![allow(clippy::print_stdout, reason = "the tests print how many mutants there are")]

use bessemer_arch::{Experts, Model, ModelConfig};
use bessemer_collectives::{Ledger, NullCommunicator};
use bessemer_filling::FillPlan;
use bessemer_fixture::Repeated;
use bessemer_mesh::Axis;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{
    ContextMethod, ExpertsOver, FillChoice, FillConfig, FillSupplier, Job, ParallelConfig, ParamGroups, Plan,
    Stage, Worker,
};
use bessemer_program::{
    Action, CollectiveKind, GradientAdds, Hand, Message, NormGroup, Pass, Phase, StepChunk, StepNode, Stream,
    Transfer, print_step, verify_step,
};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_tensor::null::NullBackend;
use bessemer_units::{ParamStorage, ReduceDType};
use std::collections::BTreeMap;

pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) config: ParallelConfig,
    pub(crate) ranks: usize,
    pub(crate) micro_batches: usize,
    pub(crate) updates: usize,
    pub(crate) tied: bool,
    /// Groups of the model's parameters.
    pub(crate) groups: fn(&Model) -> ParamGroups,
}

pub(crate) fn layouts() -> Vec<Layout> {
    let data = |name, stage, shard, ranks| Layout {
        name,
        config: ParallelConfig { stage, shard, ..ParallelConfig::default() },
        ranks,
        micro_batches: 2,
        updates: 1,
        tied: true,
        groups: |_| ParamGroups::default(),
    };
    let tensor = |name, stage, sequence| {
        let mut layout = data(name, stage, 0, 4);
        (layout.config.tensor, layout.config.sequence) = (2.into(), sequence);
        layout
    };
    let shared = |name, stage, method| {
        let mut layout = data(name, stage, 0, 4);
        (layout.config.context, layout.config.context_method) = (2, method);
        layout
    };
    let lines = |name, stage, method, sequence| {
        let mut layout = shared(name, stage, method);
        (layout.config.tensor, layout.config.sequence) = (2.into(), sequence);
        layout.ranks = if stage == Stage::Ddp { 4 } else { 8 };
        layout
    };
    let pipeline = |name, schedule: &str, data_ranks: usize, micro_batches| {
        let mut layout =
            data(name, if data_ranks > 1 { Stage::Zero1 } else { Stage::Ddp }, 0, 2 * data_ranks);
        (layout.config.pipeline, layout.config.schedule) = (2, schedule.to_owned());
        layout.micro_batches = micro_batches;
        layout
    };
    let sharded = |mut layout: Layout, stage| {
        layout.config.stage = stage;
        layout
    };
    let int8 = |name, mut layout: Layout| {
        layout.config.reduce_dtype = ReduceDType::Int8;
        Layout { name, ..layout }
    };
    let asynchronous = |mut layout: Layout| {
        (layout.updates, layout.tied) = (3, false);
        layout
    };
    let grouped = |name, layout: Layout| Layout { name, groups: crate::groups::groups, ..layout };
    let spread = |name, mut layout: Layout| {
        (layout.config.experts, layout.tied) = (2, false);
        Layout { name, ..layout }
    };
    let folded = |name, layout: Layout| {
        let mut layout = spread(name, layout);
        (layout.config.experts, layout.config.experts_over) = (4, ExpertsOver::Tensor);
        layout
    };
    vec![
        spread("experts, ddp", data("", Stage::Ddp, 0, 4)),
        spread("experts, zero1", data("", Stage::Zero1, 0, 4)),
        spread("experts, zero2, one copy", data("", Stage::Zero2, 0, 2)),
        spread("experts, zero3 in copies", data("", Stage::Zero3, 2, 4)),
        spread("experts, tensor, sequence, zero2", tensor("", Stage::Zero2, true)),
        folded("whole experts over tensor, zero2", tensor("", Stage::Zero2, true)),
        spread("experts, 1f1b, zero1", pipeline("", "1f1b", 2, 4)),
        spread("experts, zb-h1, zero1", pipeline("", "zb-h1", 2, 4)),
        spread("experts, zero3 in int8", int8("", data("", Stage::Zero3, 0, 2))),
        grouped("groups, ddp", data("", Stage::Ddp, 0, 4)),
        grouped("groups, zero1", data("", Stage::Zero1, 2, 6)),
        grouped("groups, zero2", data("", Stage::Zero2, 2, 4)),
        grouped("groups, zero3 in int8", int8("", data("", Stage::Zero3, 2, 4))),
        grouped("groups, 1f1b, zero1", pipeline("", "1f1b", 2, 4)),
        data("ddp", Stage::Ddp, 0, 3),
        data("zero1", Stage::Zero1, 0, 2),
        data("zero2", Stage::Zero2, 0, 3),
        data("zero3", Stage::Zero3, 0, 2),
        data("zero1 in copies", Stage::Zero1, 2, 4),
        data("zero2 in copies", Stage::Zero2, 2, 4),
        data("zero3 in copies", Stage::Zero3, 2, 6),
        tensor("tensor, ddp", Stage::Ddp, false),
        tensor("tensor, sequence, zero2", Stage::Zero2, true),
        tensor("tensor, sequence, zero3", Stage::Zero3, true),
        shared("context by all-gather, ddp", Stage::Ddp, ContextMethod::AllGather),
        shared("context by ulysses, zero2", Stage::Zero2, ContextMethod::Ulysses),
        shared("context by ring, zero1", Stage::Zero1, ContextMethod::Ring),
        shared("context by lightseq, zero3", Stage::Zero3, ContextMethod::LightSeq),
        lines("tensor, context by all-gather, ddp", Stage::Ddp, ContextMethod::AllGather, true),
        lines("tensor, context by ulysses, zero1", Stage::Zero1, ContextMethod::Ulysses, false),
        lines("tensor, context by ring, zero3", Stage::Zero3, ContextMethod::Ring, true),
        pipeline("gpipe", "gpipe", 1, 3),
        pipeline("1f1b, zero1", "1f1b", 2, 4),
        pipeline("interleaved", "interleaved", 2, 4),
        sharded(pipeline("1f1b, zero2", "1f1b", 2, 4), Stage::Zero2),
        sharded(pipeline("interleaved, zero3", "interleaved", 2, 4), Stage::Zero3),
        sharded(pipeline("chimera, zero3", "chimera", 2, 4), Stage::Zero3),
        pipeline("chimera", "chimera", 1, 4),
        pipeline("zb-h1", "zb-h1", 2, 4),
        pipeline("zb-v", "zb-v", 1, 4),
        pipeline("dualpipe", "dualpipe", 1, 4),
        asynchronous(pipeline("pipedream-2bw", "pipedream-2bw", 2, 4)),
        int8("ddp in int8", data("", Stage::Ddp, 0, 3)),
        int8("zero1 in copies in int8", data("", Stage::Zero1, 2, 6)),
        int8("zero2 in int8", data("", Stage::Zero2, 0, 3)),
        int8("zero3 in copies in int8", data("", Stage::Zero3, 2, 4)),
        int8("tensor, sequence, zero3 in int8", tensor("", Stage::Zero3, true)),
        int8("context by ring, ddp in int8", shared("", Stage::Ddp, ContextMethod::Ring)),
        int8("1f1b, zero1 in int8", pipeline("", "1f1b", 2, 4)),
        int8("chimera, zero3 in int8", sharded(pipeline("", "chimera", 2, 4), Stage::Zero3)),
        int8("dualpipe in int8", pipeline("", "dualpipe", 1, 4)),
        int8("pipedream-2bw in int8", asynchronous(pipeline("", "pipedream-2bw", 2, 4))),
    ]
}

fn model(tied: bool) -> Model {
    let config = ModelConfig {
        architecture: "gpt2".into(),
        vocab_size: 64,
        layers: Some(4),
        width: Some(32),
        heads: Some(4),
        context: Some(16),
        tied_embeddings: Some(tied),
        ..ModelConfig::default()
    };
    config.resolve(None).unwrap()
}

fn model_of(layout: &Layout) -> Model {
    if layout.config.experts > 1 { mixture() } else { model(layout.tied) }
}

fn mixture() -> Model {
    let experts = Experts::top_k([4, 2, 8], true);
    let config = ModelConfig {
        architecture: "llama".into(),
        vocab_size: 64,
        layers: Some(4),
        width: Some(32),
        heads: Some(4),
        context: Some(16),
        ..ModelConfig::default()
    };
    Model { experts: Some(experts), ..config.resolve(None).unwrap() }
}

/// One rank of a layout, whose peers do not exist; its messages are counted.
pub(crate) fn rank(layout: &Layout, rank: usize, ledger: &Ledger, null: &mut NullBackend) -> Worker {
    let kfac = layout.config.fill.has(FillChoice::Kfac);
    let optimizer = if kfac { OptimizerChoice::Kfac } else { OptimizerChoice::AdamW };
    let optim = OptimConfig { clip: 0.0, optimizer, ..OptimConfig::default() };
    let model = model_of(layout);
    let mut plan = Plan::new(&layout.config, layout.ranks, &model, optim.optimizer).unwrap();
    let groups = (layout.groups)(&model);
    if !groups.is_single() {
        plan.groups = groups;
    }
    let world = ledger.wrap(Box::new(NullCommunicator::new("world", rank, layout.ranks)));
    let job = Job {
        model: &model,
        shape: Shape { sequences: 1, seq: 16, purpose: Purpose::Train },
        activations: ActivationConfig::default(),
        types: ParamStorage::default(),
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &plan.program(layout.micro_batches, layout.updates, None).unwrap(),
    };
    let fill = FillPlan::new(&job, &layout.config.fill, 2).unwrap();
    let supplier = fill.as_ref().map(|fill| fill as &dyn FillSupplier);
    Worker::filled(null, &job, supplier, world).unwrap()
}

/// Memory that a node changes (`true`), adds to or reads: determines which nodes depend on each other.
fn touches(chunks: &[StepChunk], node: &StepNode) -> Vec<(String, Touch)> {
    let chunk = node.chunk;
    let data = &chunks[chunk].data;
    let values = |flat: usize| format!("values {chunk}.{flat}");
    let gradient = |flat: usize| format!("gradient {chunk}.{flat}");
    let stream = |chunk: usize, stream: Stream, micro: usize| format!("stream {stream:?} {chunk}.{micro}");
    let term = |chunk: usize| format!("term {chunk}");
    let slot_of = |chunk: usize, slot: usize| format!("slot {}.{slot}", chunks[chunk].pool);
    let mut all = Vec::new();
    match &node.action {
        Action::Begin(pass) | Action::End(pass) => {
            all.push((format!("pass {chunk}.{}", pass.micro), Touch::Write));
            all.push((format!("running {chunk}"), Touch::Write));
            all.extend(pass.slot.map(|slot| (slot_of(chunk, slot), Touch::Write)));
            if pass.phase != Phase::Forward && pass.phase != Phase::Score {
                all.push((format!("adds {chunk}"), Touch::Write));
            }
        }
        Action::Unit { unit, pass } => {
            let (phase, micro) = (&pass.phase, &pass.micro);
            all.push((format!("pass {chunk}.{micro}"), Touch::Write));
            let uses = &chunks[chunk].uses[*phase as usize][*unit];
            all.extend(uses.reads.iter().map(|flat| (values(*flat), Touch::Read)));
            all.extend(uses.writes.iter().map(|flat| (gradient(*flat), Touch::Add)));
            let pending = (format!("pending {chunk}.{micro}"), Touch::Write);
            let (values, gradient) =
                (stream(chunk, Stream::Values, *micro), stream(chunk, Stream::Gradient, *micro));
            match phase {
                Phase::Forward | Phase::Score => all.push((values, Touch::Write)),
                Phase::BackwardWeight => all.push(pending),
                _ => all.extend([(values, Touch::Read), (gradient, Touch::Write), pending]),
            }
        }
        Action::Complete(flats) => all.extend(flats.iter().map(|flat| (gradient(*flat), Touch::Write))),
        Action::Start(t) | Action::Wait(t) => {
            let gathers = t.kind == CollectiveKind::AllGather;
            let place = |flat: &usize| match gathers {
                true => Some(data.flats[*flat].values.place),
                false => data.flats[*flat].gradients.as_ref().map(|gradients| gradients.place),
            };
            // Vectors with the same memory alternate.
            let shared = (0..data.flats.len()).filter(|flat| place(flat) == place(&t.flat));
            let name = |flat| if gathers { values(flat) } else { gradient(flat) };
            // The output of a reduction, and the input of the replicas' sum, has memory of its own.
            let settled = !gathers
                && (matches!(node.action, Action::Wait(_)) || data.second_reduction(t.flat) == Some(*t));
            all.extend(
                shared.filter(|flat| !settled || *flat == t.flat).map(|flat| (name(flat), Touch::Write)),
            );
            if t.term && matches!(node.action, Action::Wait(_)) {
                all.push((term(chunk), Touch::Write));
            }
            if !gathers && data.second_reduction(t.flat) == Some(*t) {
                all.push((format!("sum {chunk}.{}", t.flat), Touch::Write));
            }
        }
        Action::Add(flat) => {
            all.extend([(format!("sum {chunk}.{flat}"), Touch::Write), (term(chunk), Touch::Write)]);
        }
        Action::Send(m) | Action::Receive(m) => {
            all.extend([
                (stream(chunk, m.stream, m.micro), Touch::Write),
                (slot_of(chunk, m.slot), Touch::Write),
            ]);
        }
        Action::Hand(Hand { stream: of, micro, slot, to, to_slot }) => {
            all.extend([chunk, *to].map(|chunk| (stream(chunk, *of, *micro), Touch::Write)));
            all.extend([(slot_of(chunk, *slot), Touch::Write), (slot_of(*to, *to_slot), Touch::Write)]);
        }
        Action::Losses => all.push(("losses".into(), Touch::Write)),
        Action::SumSquares(_) => all.push(("norm".into(), Touch::Write)),
        Action::Prepare => {
            all.extend([("norm".into(), Touch::Read), (format!("prepared {chunk}"), Touch::Write)]);
            all.push(("size".into(), Touch::Add));
        }
        Action::SumSize => all.push(("size".into(), Touch::Write)),
        Action::Tie | Action::Squares | Action::Update { .. } => {
            for (chunk, of) in chunks.iter().enumerate() {
                let concerned = if node.action == Action::Tie { of.tied } else { chunk == node.chunk };
                if !concerned {
                    continue;
                }
                let flats = 0..of.data.flats.len();
                all.extend(flats.clone().map(|flat| (format!("gradient {chunk}.{flat}"), Touch::Write)));
                all.extend(flats.clone().map(|flat| (format!("sum {chunk}.{flat}"), Touch::Write)));
                all.extend(flats.map(|flat| (format!("values {chunk}.{flat}"), Touch::Write)));
            }
            if let Action::Update { .. } = node.action {
                all.extend([("norm".into(), Touch::Read), ("losses".into(), Touch::Read)]);
                all.extend([(format!("prepared {chunk}"), Touch::Write), ("size".into(), Touch::Read)]);
                all.push((format!("adds {chunk}"), Touch::Write));
            } else if node.action == Action::Squares {
                all.push(("norm".into(), Touch::Add));
            }
        }
        Action::Filler(_) => {}
    }
    all
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Touch {
    Read,
    Add,
    Write,
}

fn depend(chunks: &[StepChunk], a: &StepNode, b: &StepNode) -> bool {
    let (a, b) = (touches(chunks, a), touches(chunks, b));
    let clash = |x: Touch, y: Touch| x == Touch::Write || y == Touch::Write || x != y;
    a.iter().any(|(name, x)| b.iter().any(|(other, y)| name == other && clash(*x, *y)))
}

/// The same pass of another micro-batch, in another slot, with other weights, for another update, or with gradients that are added
/// where they must be replaced. Equivalent by name: the update and the adds of a forward pass and of a score, which make no
/// gradients; the version of a weight part, which reads no weights.
fn other_passes(chunks: &[StepChunk], chunk: usize, pass: &Pass) -> impl Iterator<Item = Pass> {
    let mut all = vec![Pass { micro: pass.micro + 1000, ..*pass }];
    all.push(Pass { slot: pass.slot.map_or(Some(0), |slot| Some(slot + 1)), ..*pass });
    all.push(Pass { slot: pass.slot.map_or(Some(1), |_| None), ..*pass });
    if pass.phase != Phase::BackwardWeight {
        all.push(Pass { version: pass.version + 1, ..*pass });
        let kept = if pass.kept.is_some() { None } else { Some(chunks[chunk].kept) };
        all.push(Pass { kept, ..*pass });
    }
    if !matches!(pass.phase, Phase::Forward | Phase::Score) {
        let GradientAdds { input, weight } = pass.adds;
        all.push(Pass { update: pass.update + 1, ..*pass });
        all.push(Pass { begins: !pass.begins, ..*pass });
        all.push(Pass { adds: GradientAdds { input: !input, weight }, ..*pass });
        all.push(Pass { adds: GradientAdds { input, weight: !weight }, ..*pass });
    }
    all.into_iter()
}

/// Returns the node with another target of the same kind.
fn retargeted(chunks: &[StepChunk], node: &StepNode) -> Vec<StepNode> {
    let with = |action| StepNode { action, ..node.clone() };
    let flats = chunks[node.chunk].data.flats.len();
    let other = |t: &Transfer| {
        let mut all = Vec::new();
        if flats > 1 {
            all.push(Transfer { flat: (t.flat + 1) % flats, ..*t });
        }
        let axis = if t.axis == Axis::Shard { Axis::Replicate } else { Axis::Shard };
        let dtype = if t.dtype == ReduceDType::Int8 { ReduceDType::Stored } else { ReduceDType::Int8 };
        all.extend([Transfer { axis, ..*t }, Transfer { term: !t.term, ..*t }, Transfer { dtype, ..*t }]);
        let kinds = [CollectiveKind::AllGather, CollectiveKind::AllReduce, CollectiveKind::ReduceScatter];
        all.extend(kinds.into_iter().filter(|kind| *kind != t.kind).map(|kind| Transfer { kind, ..*t }));
        all
    };
    match &node.action {
        Action::Start(t) => other(t).into_iter().map(|t| with(Action::Start(t))).collect(),
        Action::Wait(t) => other(t).into_iter().map(|t| with(Action::Wait(t))).collect(),
        Action::Add(flat) if flats > 1 => vec![with(Action::Add((flat + 1) % flats))],
        Action::Complete(of) if flats > 1 => {
            vec![with(Action::Complete(of.iter().map(|flat| (flat + 1) % flats).collect()))]
        }
        Action::Begin(pass) => {
            other_passes(chunks, node.chunk, pass).map(|p| with(Action::Begin(p))).collect()
        }
        Action::End(pass) => other_passes(chunks, node.chunk, pass).map(|p| with(Action::End(p))).collect(),
        Action::Unit { unit, pass } => {
            let of = |unit, pass| with(Action::Unit { unit, pass });
            let another = of((unit + 1) % chunks[node.chunk].units(), *pass);
            let passes = other_passes(chunks, node.chunk, pass).map(|pass| of(*unit, pass));
            std::iter::once(another).chain(passes).collect()
        }
        Action::Send(m) => vec![
            with(Action::Send(Message { micro: m.micro + 1000, ..*m })),
            with(Action::Send(Message { slot: m.slot + 1, ..*m })),
        ],
        Action::Receive(m) => vec![
            with(Action::Receive(Message { micro: m.micro + 1000, ..*m })),
            with(Action::Receive(Message { slot: m.slot + 1, ..*m })),
        ],
        Action::Hand(hand) => vec![
            with(Action::Hand(Hand { micro: hand.micro + 1000, ..*hand })),
            with(Action::Hand(Hand { slot: hand.slot + 1, ..*hand })),
            with(Action::Hand(Hand { to_slot: hand.to_slot + 1, ..*hand })),
            with(Action::Hand(Hand { to: node.chunk, ..*hand })),
        ],
        Action::SumSquares(group) => {
            let all = [
                NormGroup::Shard(0),
                NormGroup::Shard(1),
                NormGroup::Experts(0),
                NormGroup::Experts(1),
                NormGroup::Layers,
                NormGroup::Pipeline,
            ];
            all.into_iter().filter(|other| other != group).map(|g| with(Action::SumSquares(g))).collect()
        }
        Action::Squares | Action::Prepare if chunks.len() > 1 => {
            vec![StepNode { chunk: (node.chunk + 1) % chunks.len(), ..node.clone() }]
        }
        Action::Update { micro_batches, update, keep } => {
            let (micro_batches, update, keep) = (*micro_batches, *update, *keep);
            let mut all = vec![
                Action::Update { micro_batches: micro_batches + 1, update, keep },
                Action::Update { micro_batches, update: update + 1, keep },
            ];
            if let Some(at) = keep {
                all.push(Action::Update { micro_batches, update, keep: None });
                all.push(Action::Update { micro_batches, update, keep: Some(at + 1) });
            }
            all.into_iter().map(with).collect()
        }
        _ => Vec::new(),
    }
}

/// A reduction in each pass of the outputs of several of its units, begun after the first of them: that unit's position in `before`,
/// and the nodes that reduce its terms alone.
fn reduced_early(
    chunks: &[StepChunk],
    before: &[StepNode],
    node: &StepNode,
) -> Option<(usize, [StepNode; 3])> {
    let Action::Start(t @ Transfer { term: true, .. }) = node.action else { return None };
    let with = |action| StepNode { action, ..node.clone() };
    let [start, wait, add] = [Action::Start(t), Action::Wait(t), Action::Add(t.flat)].map(with);
    let uses = &chunks[node.chunk].uses[Phase::Backward as usize];
    let writes = |other: &StepNode| match other.action {
        Action::Unit { unit, pass } if matches!(pass.phase, Phase::Backward | Phase::BackwardWeight) => {
            other.chunk == node.chunk && uses[unit].writes.contains(&t.flat)
        }
        _ => false,
    };
    let reduced = |other: &StepNode| match other.action {
        Action::Wait(of) => (other.chunk, of.flat) == (node.chunk, t.flat),
        _ => false,
    };
    let pass = before.iter().rposition(reduced).map_or(0, |wait| wait + 1);
    let mut writers = (pass..before.len()).filter(|at| writes(&before[*at]));
    let first = writers.next()?;
    writers.next().map(|_| (first, [start, wait, add]))
}

/// Refuses every wrong form of a right list of a rank; counts them by kind.
fn mutate(name: &str, worker: &Worker, nodes: &[StepNode], norm: bool, mutants: &mut BTreeMap<&str, usize>) {
    let (chunks, at) = (worker.step_chunks(), worker.rank());
    let check = |nodes: Vec<StepNode>| verify_step(&chunks, &nodes, norm);
    check(nodes.to_vec()).unwrap_or_else(|e| panic!("{name}, rank {at}: {e}"));
    let mut refused = |what: &'static str, i: usize, mutant: Vec<StepNode>| {
        *mutants.entry(what).or_default() += 1;
        let node = &nodes[i];
        match check(mutant) {
            Ok(()) => panic!("{name}, rank {at}: {what} node {i} ({node:?}) is not refused"),
            Err(e) => assert!(!e.subject.is_empty() && e.subject != "?", "{e}"),
        }
    };
    for (i, node) in nodes.iter().enumerate() {
        // The supplier of the work verifies its position.
        if matches!(node.action, Action::Filler(_)) {
            continue;
        }
        let (before, after) = (&nodes[..i], &nodes[i + 1..]);
        refused("removed", i, [before, after].concat());
        refused("doubled", i, [before, &[node.clone(), node.clone()], after].concat());
        for other in retargeted(&chunks, node).into_iter().filter(|other| other != node) {
            refused("re-targeted", i, [before, &[other], after].concat());
        }
        if let Some((first, parts)) = reduced_early(&chunks, before, node) {
            refused("early", i, [&nodes[..=first], &parts, &nodes[first + 1..]].concat());
        }
        if let Some(next) = after.first().filter(|next| depend(&chunks, node, next)) {
            refused("exchanged", i, [before, &[next.clone(), node.clone()], &after[1..]].concat());
        }
    }
}

#[test]
fn every_wrong_step_is_refused() {
    let mut mutants: BTreeMap<&str, usize> = BTreeMap::new();
    for layout in layouts() {
        let pipeline = layout.config.pipeline.max(1) as usize;
        // One rank of each stage, and the last one.
        for at in (0..pipeline).map(|stage| stage * layout.ranks / pipeline).chain([layout.ranks - 1]) {
            let worker = rank(&layout, at, &Ledger::new(), &mut NullBackend::new());
            mutate(layout.name, &worker, worker.step_nodes(), layout.updates == 1, &mut mutants);
        }
    }
    let all: usize = mutants.values().sum();
    println!("{all} wrong steps of {} layouts are refused: {mutants:?}", layouts().len());
    assert!(all > 20_000 && mutants.len() == 5, "{mutants:?}");
}

/// The same property for steps whose bubbles contain K-FAC's work, evaluations and copies at once.
#[test]
fn every_wrong_step_with_filled_bubbles_is_refused() {
    let mut mutants: BTreeMap<&str, usize> = BTreeMap::new();
    for name in ["gpipe", "interleaved", "chimera"] {
        let mut layout = layouts().into_iter().find(|layout| layout.name == name).unwrap();
        layout.config.fill =
            FillConfig::Several(vec![FillChoice::Kfac, FillChoice::Evaluation, FillChoice::Checkpoint]);
        let worker = rank(&layout, layout.ranks - 1, &Ledger::new(), &mut NullBackend::new());
        let steps: Vec<&[StepNode]> = worker.filled_step_nodes().collect();
        // Outside of a refresh, its first step, and one of the others at least.
        assert!(steps.len() >= 4 + 4 + 2, "{name}: {} programs", steps.len());
        // The fullest programs of each kind of step.
        for nodes in [steps[3], steps[7], steps[9]] {
            let fillers = nodes.iter().filter(|node| matches!(node.action, Action::Filler(_))).count();
            assert!(fillers > 0, "{name}");
            mutate(name, &worker, nodes, true, &mut mutants);
        }
    }
    let all: usize = mutants.values().sum();
    println!("{all} wrong steps with filled bubbles are refused: {mutants:?}");
    assert!(all > 3_000 && mutants.len() == 4, "{mutants:?}");
}

/// The collectives of a step send the bytes of its list.
#[test]
fn a_step_sends_what_its_list_says() {
    for layout in layouts().into_iter().filter(|layout| layout.updates == 1) {
        for at in 0..layout.ranks {
            let (ledger, mut null) = (Ledger::new(), NullBackend::new());
            let mut worker = rank(&layout, at, &ledger, &mut null);
            ledger.clear();
            worker.gradients(&mut null, &mut Repeated::zeros(16)).unwrap();
            let sent = || {
                let of = |label: &str| ledger.of(label).volume.sent;
                let [r, s, e] = Axis::DATA;
                let groups: [&[Axis]; 6] = [&[r], &[s], &[r, s], &[r, e], &[s, e], &[r, s, e]];
                groups.into_iter().map(|axes| of(&bessemer_mesh::label(axes))).sum::<u64>()
            };
            let before = sent();
            worker.apply(&mut null, 1, 1e-3, 1.0).unwrap();
            let sent = sent();
            assert!(sent >= before);
            let chunks = worker.step_chunks();
            let listed: u64 = (worker.step_nodes().iter())
                .map(|node| match &node.action {
                    Action::Start(transfer) => {
                        let data = &chunks[node.chunk].data;
                        transfer.bytes_sent(&data.flats[transfer.flat], data.rank(transfer.flat))
                    }
                    _ => 0,
                })
                .sum();
            assert_eq!(sent, listed, "{}, rank {at}", layout.name);
            let messages: u64 = (worker.step_nodes().iter())
                .map(|node| if let Action::Send(m) = &node.action { m.bytes } else { 0 })
                .sum();
            assert_eq!(ledger.of("pipeline").volume.sent, messages, "{}, rank {at}", layout.name);
        }
    }
}

/// A warm step launches the same operators in the same order: nothing is patched between steps.
#[test]
fn every_step_launches_the_same_operators() {
    let mut launches = 0;
    for layout in layouts().into_iter().filter(|layout| layout.updates == 1) {
        let mut null = NullBackend::new();
        let mut worker = rank(&layout, layout.ranks - 1, &Ledger::new(), &mut null);
        null.keep_launches();
        let mut step = |t: u64, lr: f64| {
            worker.gradients(&mut null, &mut Repeated::zeros(16)).unwrap();
            worker.grad_norm(&mut null).unwrap();
            worker.apply(&mut null, t, lr, 1.0).unwrap();
            null.take_launches()
        };
        (1..3).for_each(|t| drop(step(t, 1e-3)));
        let (third, fourth) = (step(3, 2e-3), step(4, 3e-3));
        assert!(third == fourth, "{}: launches of steps 3 and 4 differ", layout.name);
        launches += third.len();
    }
    assert!(launches > 5_000, "{launches}");
}

/// Flat parameters of several pieces, among ranks that do not divide them.
#[test]
fn pieces_in_int8_send_what_the_list_says() {
    let model = bessemer_arch::named("gpt2-124m").unwrap();
    let optim = OptimConfig { clip: 0.0, ..OptimConfig::default() };
    for (stage, shard, ranks) in [(Stage::Ddp, 0, 3), (Stage::Zero1, 3, 6)] {
        let (reduce_dtype, overlap) = (ReduceDType::Int8, false);
        let config = ParallelConfig { stage, shard, reduce_dtype, overlap, ..ParallelConfig::default() };
        let plan = Plan::new(&config, ranks, &model, optim.optimizer).unwrap();
        let job = Job {
            model: &model,
            shape: Shape { sequences: 1, seq: 16, purpose: Purpose::Train },
            activations: ActivationConfig::default(),
            types: ParamStorage::default(),
            optim: &optim,
            losses: &[],
            plan: &plan,
            program: &plan.program(1, 1, None).unwrap(),
        };
        for at in 0..ranks {
            let (ledger, mut null) = (Ledger::new(), NullBackend::new());
            let world = ledger.wrap(Box::new(NullCommunicator::new("world", at, ranks)));
            let mut worker = Worker::new(&mut null, &job, world).unwrap();
            ledger.clear();
            worker.gradients(&mut null, &mut Repeated::zeros(16)).unwrap();
            let (chunks, mut listed) =
                (worker.step_chunks(), BTreeMap::from([("shard", 0), ("replicate", 0)]));
            for node in worker.step_nodes() {
                if let Action::Start(transfer) = &node.action
                    && transfer.kind != CollectiveKind::AllGather
                {
                    let data = &chunks[node.chunk].data;
                    let bytes = transfer.bytes_sent(&data.flats[transfer.flat], data.rank(transfer.flat));
                    *listed.entry(transfer.axis.name()).or_default() += bytes;
                }
            }
            for (axis, listed) in listed {
                assert_eq!(ledger.of(axis).volume.sent, listed, "{stage:?}, rank {at}, {axis}");
            }
        }
    }
}

/// Ranks that differ on the data axes only run the same list, and every message that is sent is received.
#[test]
fn lists_of_different_ranks_fit_each_other() {
    for layout in layouts() {
        let optimizer = OptimConfig::default().optimizer;
        let plan = Plan::new(&layout.config, layout.ranks, &model_of(&layout), optimizer).unwrap();
        let ranks: Vec<_> =
            (0..layout.ranks).map(|at| rank(&layout, at, &Ledger::new(), &mut NullBackend::new())).collect();
        let lists: Vec<&[StepNode]> = ranks.iter().map(Worker::step_nodes).collect();
        let mut messages: BTreeMap<(usize, usize, u64), [Vec<u64>; 2]> = BTreeMap::new();
        for (at, list) in lists.iter().enumerate() {
            let coord = plan.coord(at);
            let same = (0..at).find(|other| plan.coord(*other).pipeline == coord.pipeline);
            if let Some(same) = same {
                assert_eq!(*list, lists[same], "{}: ranks {same} and {at}", layout.name);
            }
            if same.is_some() {
                continue;
            }
            for node in *list {
                match &node.action {
                    Action::Send(m) => {
                        messages.entry((coord.pipeline, m.peer, m.tag)).or_default()[0].push(m.bytes)
                    }
                    Action::Receive(m) => {
                        messages.entry((m.peer, coord.pipeline, m.tag)).or_default()[1].push(m.bytes);
                    }
                    _ => {}
                }
            }
        }
        for (message, [sent, received]) in messages {
            assert_eq!(sent, received, "{}: message {message:?}", layout.name);
        }
    }
}

/// Steps that a reviewer can read as a diff; written with `BESSEMER_GOLDEN=write`.
#[test]
fn printed_steps_are_the_golden_files() {
    let golden =
        [("zero3", 0), ("tensor, sequence, zero2", 1), ("1f1b, zero1", 3), ("zero1 in copies in int8", 4)];
    for (name, at) in golden {
        let layout = layouts().into_iter().find(|layout| layout.name == name).unwrap();
        let worker = rank(&layout, at, &Ledger::new(), &mut NullBackend::new());
        let text = print_step(&worker.step_chunks(), worker.step_nodes());
        let file = format!(
            "{}/tests/golden/{}.txt",
            env!("CARGO_MANIFEST_DIR"),
            name.replace(", ", "-").replace(' ', "-")
        );
        if std::env::var_os("BESSEMER_GOLDEN").is_some_and(|v| v == "write") {
            std::fs::write(&file, &text).unwrap();
        }
        let wanted = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(text == wanted, "{file} differs:\n{text}");
    }
}

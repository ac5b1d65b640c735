//! The bytes that a step sends, axis by axis, in every layout of the parity matrix: the closed forms.
//!
//! Every rank of a job is run on a backend that only counts, and the bytes of all ranks are added: a ring collective of N
//! elements over n ranks then sends N (n-1), or twice that for an all-reduce, however its parts are shared out.

use bessemer_arch::{MlpKind, Model, NormChoice, ParamId, Placement, PositionChoice, Span};
use bessemer_collectives::{Ledger, NullCommunicator};
use bessemer_fixture::Repeated;
use bessemer_mesh::formulas::{
    Exchange, Passes, context_parallel_layer, lightseq_layer, pipeline_micro_batch, quantised_ring, ring,
    ring_layer, tensor_parallel_layer, ulysses_layer,
};
use bessemer_mesh::{Axis, ContextMethod, PositionOrder, label};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{Coord, Job, Plan, Stage, Worker};
use bessemer_parity::{Layout, Style, asynchronous, contexts, in_int8, matrix, pairwise, pipelines};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_schedule::{Place, Program};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::GRADIENT_BLOCK;
use bessemer_test_tier::part;
use bessemer_units::{ParamDType, Recompute, RecomputePlan, ReduceDType};
use std::collections::BTreeMap;

/// Bytes by label of the group.
pub(crate) type Traffic = BTreeMap<String, u64>;

/// Updates of a program of an asynchronous schedule.
const WINDOW: usize = 2;

/// What all ranks of a layout send in the steps of `program`, of micro-batches of this shape.
pub(crate) fn counted(
    model: &Model,
    layout: &Layout,
    (plan, program): (&Plan, &Program),
    activations: ActivationConfig,
    shape: Shape,
) -> Traffic {
    let (optim, ledger) = (layout.optim(&OptimConfig::default()), Ledger::new());
    let job =
        Job { model, shape, activations, types: layout.types, optim: &optim, losses: &[], plan, program };
    let zeros = &mut Repeated::zeros(shape.tokens());
    for rank in 0..layout.ranks {
        let mut null = NullBackend::new();
        let world = ledger.wrap(Box::new(NullCommunicator::new("world", rank, layout.ranks)));
        let mut worker = Worker::new(&mut null, &job, world).expect("a layout that fits");
        if layout.asynchronous() {
            worker.window(&mut null, zeros, 1, &|_| 1e-3).expect("steps");
            continue;
        }
        let sum = worker.gradients(&mut null, zeros).expect("passes");
        worker.sum_over_data(sum).expect("the losses");
        worker.grad_norm(&mut null).expect("the norm");
        worker.apply(&mut null, 1, 1e-3, 1.0).expect("the update");
    }
    let mut sent = Traffic::new();
    for (label, _, traffic) in ledger.rows() {
        *sent.entry(label).or_default() += traffic.volume.sent;
    }
    sent.retain(|_, bytes| *bytes > 0);
    sent
}

/// Elements of a model's parameters on all ranks of the tensor axis together: what is sharded counts once, what is
/// replicated once for each rank.
struct Elements {
    layer: usize,
    table: usize,
    positions: usize,
    /// One normalisation of the residual stream.
    norm: usize,
    /// The one before the output projection, if there is one.
    final_norm: usize,
    /// Normalisations of queries and keys, of one layer.
    qk_norm: usize,
    /// Key and value rows of one layer, as often as ranks hold them.
    keys_and_values: usize,
}

impl Elements {
    fn of(model: &Model, tensor: usize) -> Elements {
        let (m, width, bias) = (model, model.width, usize::from(model.bias));
        let norm = tensor * width * if m.norm == NormChoice::LayerNorm { 1 + bias } else { 1 };
        // Where there are fewer key/value heads than ranks, each rank holds one.
        let kv_heads = m.kv_heads.max(tensor);
        let keys_and_values = 2 * kv_heads * m.head_dim * (width + bias);
        let queries = m.heads * m.head_dim * (width + bias);
        let qk_norm = if m.qk_norm { tensor * 2 * m.head_dim } else { 0 };
        let attention = queries + keys_and_values + qk_norm + m.heads * m.head_dim * width;
        let inner = m.ffn_width * if m.mlp() == MlpKind::Gated { 2 } else { 1 };
        let mlp = inner * (width + bias) + m.ffn_width * width;
        let learned = m.positions == PositionChoice::Learned;
        Elements {
            layer: attention + mlp + 2 * tensor * width * bias + 2 * norm,
            table: m.vocab_size * width,
            positions: if learned { tensor * m.context * width } else { 0 },
            norm,
            final_norm: if m.placement == Placement::Pre { norm } else { 0 },
            qk_norm,
            keys_and_values,
        }
    }

    /// Parameters of a stage.
    fn stage(&self, span: &Span, tied: bool) -> usize {
        let first = if span.embedding { self.table + self.positions } else { 0 };
        let table = if tied && span.embedding { 0 } else { self.table };
        let last = if span.head { self.final_norm + table } else { 0 };
        span.layers.len() * self.layer + first + last
    }
}

/// Bytes that all ranks send for the gradients of a stage in 8 bits.
pub(crate) fn in_8_bits(
    model: &Model,
    (plan, program): (&Plan, &Program),
    span: &Span,
    (holders, reduce_scatters): (usize, f64),
) -> [(&'static str, f64); 2] {
    let (copies, shard) = (plan.replicate() * holders, plan.shard());
    let bytes = |elements, ranks| quantised_ring(elements, ranks, GRADIENT_BLOCK) as f64;
    let (mut scattered, mut reduced) = (0.0, 0.0);
    for unit in units(model, (plan, program), span) {
        scattered += copies as f64 * reduce_scatters * bytes(unit, shard);
        let parts = (0..shard).map(|rank| bessemer_mesh::even(unit, shard, rank).len);
        reduced += parts.map(|part| 2.0 * bytes(part, copies)).sum::<f64>();
    }
    [("shard", scattered), ("replicate", reduced)]
}

/// Elements of each flat unit of a stage on each of the ranks that share its layers.
fn units(model: &Model, (plan, program): (&Plan, &Program), span: &Span) -> Vec<usize> {
    let apart = model.tied_embeddings && program.stages > 1;
    let of_rank = |rank: usize| {
        let specs = plan
            .tensor_shard(model, Coord { tensor: rank, ..plan.coord(0) })
            .expect("a part of the model")
            .specs(span);
        let mut units: BTreeMap<Option<usize>, usize> = BTreeMap::new();
        let mut table = 0;
        for spec in specs {
            match apart && spec.id == ParamId::TOKEN_TABLE {
                true => table = spec.len(),
                false => *units.entry(spec.id.unit().layer()).or_default() += spec.len(),
            }
        }
        units.into_values().chain([table]).collect::<Vec<_>>()
    };
    (0..plan.tensor()).flat_map(of_rank).collect()
}

/// Bytes that all ranks send in the steps of `program`, by the closed forms.
fn expected(
    model: &Model,
    layout: &Layout,
    (plan, program): (&Plan, &Program),
    recompute: &RecomputePlan,
    shape: Shape,
) -> Traffic {
    let spans = plan.spans(model, program.stages).expect("stages");
    let (tensor, context) = (plan.mesh.degree(Axis::Tensor), plan.context_ranks());
    // Ranks of a group that exchange heads, and groups.
    let (within, groups) = (plan.mesh.degree(Axis::ContextHeads), plan.mesh.degree(Axis::Context));
    let (pipeline, micro) = (plan.pipeline(), layout.accumulation);
    let (replicas, shard, data) = (plan.replicate(), plan.shard(), plan.data_ranks());
    let size = |of: ParamDType| of.dtype().size() as f64;
    let (value, gradient, activation) = (size(layout.types.weights), size(layout.types.gradients), 4.0);
    let all = Elements::of(model, tensor);
    let layer_label = label(&plan.layer_axes().collect::<Vec<_>>());
    let mut sent = BTreeMap::from(
        [
            "replicate",
            "shard",
            "tensor",
            "tensor copies",
            "context",
            "context-heads",
            "pipeline",
            "tied table",
            "world",
        ]
        .map(|l| (l, 0.0)),
    );
    let mut send =
        |label, of_a_step: f64| *sent.entry(label).or_default() += program.updates as f64 * of_a_step;

    // What all ranks of a ring send: a reduce-scatter or an all-gather once, an all-reduce twice.
    let whole_ring = |elements: usize, ranks: usize| ranks as f64 * ring(elements as f64, ranks);
    let stage = plan.stage;
    let Passes { reduce_scatters, all_gathers } = stage.passes(micro, Exchange::EachMicroBatch);
    for (number, span) in spans.iter().enumerate() {
        let holders = program.holders(number).len();
        let elements = all.stage(span, model.tied_embeddings);
        let int8 = plan.reduce_dtype == ReduceDType::Int8;
        if shard > 1 {
            let bytes = if int8 { 0.0 } else { reduce_scatters * gradient } + all_gathers * value;
            send("shard", (context * replicas * holders) as f64 * bytes * whole_ring(elements, shard));
        }
        // Replicas and mirrored holders of a stage add up the shard that they all have.
        if !int8 {
            send("replicate", context as f64 * 2.0 * gradient * whole_ring(elements, replicas * holders));
        }
        if int8 {
            for (label, bytes) in in_8_bits(model, (plan, program), span, (holders, reduce_scatters)) {
                send(label, bytes);
            }
        }

        // Gradients that are terms of a sum over the tensor axis are added up before they leave.
        let times = (data * holders) as f64 * if plan.stage >= Stage::Zero2 { reduce_scatters } else { 1.0 };
        send("context", within as f64 * times * 2.0 * gradient * whole_ring(elements, groups));
        send("context-heads", groups as f64 * times * 2.0 * gradient * whole_ring(elements, within));
        let mut partial = span.layers.len() * all.qk_norm;
        if plan.sequence {
            partial += span.layers.len() * 2 * all.norm;
            partial +=
                if span.embedding { all.positions } else { 0 } + if span.head { all.final_norm } else { 0 };
        }
        let lines = context as f64 * times;
        send("tensor", lines * 2.0 * gradient * whole_ring(partial / tensor, tensor));
        let sharers = (tensor / model.kv_heads).max(1);
        let shared = span.layers.len() * all.keys_and_values / sharers;
        send("tensor copies", lines * 2.0 * gradient * whole_ring(shared, sharers));
    }
    if model.tied_embeddings {
        let apart = program.routes.iter().filter(|r| r[0].rank != r[r.len() - 1].rank).count();
        send("tied table", (apart * replicas * context) as f64 * 2.0 * gradient * whole_ring(all.table, 2));
    }

    let (tokens, micro_batches) = (shape.tokens(), (data * micro) as f64);
    let rows = tokens * model.width;
    let layers = (model.layers * tensor) as f64
        * tensor_parallel_layer(shape.sequences, shape.seq, model.width, tensor, false);
    // Beside the layers: the rows of the token table, the gradient of the head's input, the sums of the loss; with sequence
    // parallelism the inputs of each layer's two blocks once more. A layer whose products are computed again repeats its sums, but
    // where it normalises before its blocks the last is read by nothing; the inputs are then gathered already. An input of which
    // each rank keeps a part is gathered once.
    let products = [Recompute::Full, Recompute::AttentionOutput].map(RecomputePlan::from).contains(recompute);
    let sums = match (products, model.placement) {
        (false, _) => 0,
        (true, Placement::Pre) => 1,
        (true, _) => 2,
    };
    let parts = usize::from(plan.partition_activations);
    let again = model.layers * (parts + if plan.sequence { 2 + sums } else { 2 * sums });
    let beside = (4 + again) as f64 * whole_ring(rows, tensor) + whole_ring(2 * tensor * tokens, tensor);
    send("tensor", micro_batches * activation * (layers + beside));

    // Besides, the losses of tokens are gathered.
    let width = |heads: usize| heads * model.head_dim;
    let again = |modes: &[Recompute]| modes.iter().any(|mode| *recompute == RecomputePlan::from(*mode));
    // Those of a tensor-parallel rank.
    let (heads, kv_heads) = (model.heads / tensor, model.kv_heads.max(tensor) / tensor);
    let queries = width(heads);
    // What is computed again is exchanged again: all of it, all but the result, or the result alone.
    let exchanged = |ranks: usize| {
        // Where there are fewer key/value heads than ranks, each rank has one.
        let keys = width(kv_heads.max(ranks));
        let of = |queries, keys| activation * ulysses_layer(tokens, queries, keys, ranks);
        let more = if again(&[Recompute::Full]) {
            of(queries, keys) / 2.0
        } else if again(&[Recompute::AttentionOutput]) {
            of(queries, 0) / 4.0 + of(0, keys) / 2.0
        } else if again(&[Recompute::Attention]) {
            of(queries, 0) / 4.0
        } else {
            0.0
        };
        of(queries, keys) + more
    };
    let exchange = if within > 1 { (model.layers * within) as f64 * exchanged(within) } else { 0.0 };
    let losses = 4.0 * whole_ring(tokens, within);
    send("context-heads", tensor as f64 * micro_batches * (exchange + losses));
    // Those of a rank of a group.
    let (queries, keys) = (queries / within, width(kv_heads.max(within) / within));
    let context = groups;
    let layer = match plan.context.method {
        // What is gathered for a pass that is made again serves the gradients too.
        ContextMethod::AllGather => activation * context_parallel_layer(tokens, keys, context),
        ContextMethod::Ulysses => exchanged(context),
        method => {
            let order = plan.context.positions(tokens, context);
            // Of one position a rank, none sees what is behind it.
            let all = order == PositionOrder::ZigZag || (order == PositionOrder::Striped && tokens > context);
            let traffic = match method {
                ContextMethod::LightSeq => lightseq_layer(tokens, queries, heads / within, keys, context),
                _ => ring_layer(tokens, keys, context, all),
            };
            let passes = if again(&[Recompute::Full, Recompute::Attention]) { 2.0 } else { 1.0 };
            passes * traffic.forward.bytes(activation) + traffic.backward.bytes(activation)
        }
    };
    let (layers, lines) = ((model.layers * context) as f64 * layer, (tensor * within) as f64);
    send("context", lines * micro_batches * (layers + 4.0 * whole_ring(tokens, context)));

    let crossings = |route: &Vec<Place>| route.windows(2).filter(|pair| pair[0].rank != pair[1].rank).count();
    let lines = if plan.sequence { 1 } else { tensor };
    for route in program.route_of[..micro].iter().map(|route| &program.routes[*route]) {
        let elements = pipeline_micro_batch(shape.sequences, shape.seq, model.width, crossings(route));
        send("pipeline", (data * lines) as f64 * activation * elements);
    }

    // Control messages of 64-bit numbers: two of the losses, one of the norm along the axes of data and stages, and among ranks that share layers.
    let ranks = layout.ranks;
    let numbers = |count: usize, size: usize| 8.0 * (ranks / size) as f64 * whole_ring(count * size, size);
    send("world", numbers(2, ranks));
    for (label, size) in [("shard", shard), (&*layer_label, plan.tensor()), ("pipeline", pipeline)] {
        send(label, numbers(1, size));
    }
    // Averages over an odd number of blocks are no whole numbers.
    sent.into_iter()
        .filter(|(_, b)| *b > 0.0)
        .map(|(label, b)| (label.to_owned(), b.round() as u64))
        .collect()
}

fn check(what: &str, model: &Model, layout: &Layout, activations: ActivationConfig, seq: usize) {
    let optimizer = OptimConfig::default().optimizer;
    let plan = Plan::new(&layout.parallel, layout.ranks, model, optimizer).expect("a layout that fits");
    let updates = if layout.asynchronous() { WINDOW } else { 1 };
    let program = plan.program(layout.accumulation, updates, None).expect("a schedule that fits");
    let sequences = if layout.parallel.context > 1 { 1 } else { 2 };
    let shape = Shape { sequences, seq, purpose: Purpose::Train };
    let wanted = expected(model, layout, (&plan, &program), &activations.recompute, shape);
    let found = counted(model, layout, (&plan, &program), activations, shape);
    assert_eq!(found, wanted, "{what}");
}

/// Each layout with one of the models in turn, in a soak with all of them.
fn check_all(layouts: impl Iterator<Item = Layout>) {
    const SEQ: usize = 16;
    for (number, layout) in layouts.enumerate() {
        for style in part(Style::ALL, number % Style::ALL.len(), Style::ALL.len()) {
            let model = layout.model(style, SEQ).expect("a model that fits together");
            let what = format!("{} {}", style.name(), layout.name);
            check(&what, &model, &layout, ActivationConfig::default(), SEQ);
        }
    }
}

#[test]
fn every_layout_of_the_matrix_sends_the_bytes_of_the_closed_forms() {
    // Every pair of choices is in `every_pair_of_choices_sends_the_bytes_of_the_closed_forms`.
    check_all(part(matrix(16), 0, 2).into_iter());
}

#[test]
fn ranks_that_share_sequences_send_the_bytes_of_the_closed_forms() {
    // Models in turns: each choice of a layout is in many layouts.
    let layouts = contexts(16, 16).into_iter().zip(Style::ALL.into_iter().cycle());
    for (layout, style) in part(layouts, 0, 5) {
        let model = layout.model(style, 16).expect("a model that fits together");
        check(&format!("{} {}", style.name(), layout.name), &model, &layout, ActivationConfig::default(), 16);
    }
}

#[test]
fn ranks_that_share_sequences_and_compute_again_send_the_bytes_of_the_closed_forms() {
    for layout in contexts(4, 4).into_iter().filter(|l| l.ranks == l.parallel.context as usize) {
        for style in Style::ALL {
            let model = layout.model(style, 16).expect("a model that fits together");
            for mode in [Recompute::None, Recompute::Attention, Recompute::AttentionOutput, Recompute::Full] {
                let activations = ActivationConfig { recompute: mode.into(), ..ActivationConfig::default() };
                check(&format!("{} {}, {mode}", style.name(), layout.name), &model, &layout, activations, 16);
            }
        }
    }
}

#[test]
fn every_pipeline_sends_the_bytes_of_the_closed_forms() {
    check_all(part(pipelines(16).into_iter().chain(asynchronous(16)), 0, 2).into_iter());
}

#[test]
fn gradients_in_8_bits_send_the_bytes_of_the_closed_forms() {
    // Those of grids: traffic_grids.
    check_all(in_int8(16, 16).into_iter().filter(|layout| layout.parallel.tensor.grid().is_none()));
}

#[test]
fn every_pair_of_choices_sends_the_bytes_of_the_closed_forms() {
    for case in pairwise(16) {
        let job = case.job(1, 0).expect("a model that fits together");
        check(&case.name(), &job.model, &case.layout, job.activations, case.seq);
    }
}

//! A model in t tensor shards, each a decoder of its own on a thread of its own, against the whole model: the
//! losses and every gradient, with the stream whole and cut by rows; and on ranks that each have some positions of every sequence.

use crate::group;
use crate::tiny;

use bessemer_arch::{ActivationChoice, Distribution, InitChoice, Model, TensorShard};
use bessemer_mesh::{Axis, ContextMethod, ContextOrder, ContextSharing, Mesh, MeshConfig, exchange_problem};
use bessemer_program::Node;
use bessemer_runtime::{
    ActivationConfig, Cache, CacheShape, Decoder, LineStream, ModelError, OneDevice, Phase, Purpose, Shape,
    StageRanks, StepContext, Stream, TokenBatch, WeighedLoss,
};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_test_tier::{Sample, either};
use bessemer_units::{Recompute, Storage};
use group::{Groups, part_of, sum};
use tiny::{SEQ, context, cpu, dense_kinds, gradients, models, relative, scored, tokens};

/// Results of a run: losses of a forward pass, of two micro-batches, and the gradients.
#[derive(PartialEq)]
pub(crate) struct Outcome {
    pub(crate) losses: Vec<f64>,
    pub(crate) per_token: Vec<f32>,
    /// The rank's term.
    pub(crate) lse_squared: f64,
    pub(crate) gradients: Vec<Vec<f32>>,
}

/// The axes of the ranks that share layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Along {
    Tensor,
    Context,
    /// Lines of so many ranks that share heads, each for some positions.
    Both(usize),
    /// Lines of so many ranks, of which groups of so many exchange heads for the positions that they share.
    Groups(usize, usize),
}

/// Layouts in which ranks share layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sharing {
    pub(crate) along: Along,
    pub(crate) stream: Stream,
}

pub(crate) const WHOLE: Sharing = Sharing { along: Along::Tensor, stream: Stream::WHOLE };
pub(crate) const ROWS: Sharing = Sharing { along: Along::Tensor, stream: Stream::ROWS };
pub(crate) const PARTITIONED: Sharing = Sharing { along: Along::Tensor, stream: Stream::PARTITIONED };
pub(crate) const GATHERED: Sharing = by(ContextMethod::AllGather, ContextOrder::Auto);
pub(crate) const EXCHANGED: Sharing = by(ContextMethod::Ulysses, ContextOrder::Auto);
pub(crate) const HELPED: Sharing = by(ContextMethod::LightSeq, ContextOrder::Auto);
/// Attention in blocks, by each method and order; and keys that are gathered in orders that are not their own.
pub(crate) const BLOCKS: [Sharing; 4] =
    [ring(ContextOrder::ZigZag), ring(ContextOrder::Striped), ring(ContextOrder::Consecutive), HELPED];

pub(crate) const fn ring(order: ContextOrder) -> Sharing {
    by(ContextMethod::Ring, order)
}

const fn by(method: ContextMethod, order: ContextOrder) -> Sharing {
    Sharing { along: Along::Context, stream: Stream::shared(ContextSharing { method, order }) }
}

impl Sharing {
    /// Adds lines of so many ranks.
    pub(crate) const fn with_line(self, tensor: usize, line: LineStream) -> Sharing {
        Sharing { along: Along::Both(tensor), stream: Stream { line, ..self.stream } }
    }

    /// Adds groups of so many ranks that exchange heads.
    pub(crate) const fn with_heads(self, heads: usize) -> Sharing {
        let line = match self.along {
            Along::Both(line) => line,
            _ => 1,
        };
        Sharing { along: Along::Groups(line, heads), ..self }
    }

    pub(crate) fn mesh(self, degree: usize) -> Mesh {
        let config = match self.along {
            Along::Tensor => MeshConfig::new().with(Axis::Tensor, degree),
            Along::Context => MeshConfig::new().with(Axis::Context, degree),
            Along::Both(line) => {
                MeshConfig::new().with(Axis::Tensor, line).with(Axis::Context, degree / line)
            }
            Along::Groups(line, heads) => MeshConfig::new()
                .with(Axis::Tensor, line)
                .with(Axis::ContextHeads, heads)
                .with(Axis::Context, degree / line / heads),
        };
        Mesh::new(&config, degree).unwrap()
    }

    /// The method by which positions are shared, if they are.
    pub(crate) fn context(self) -> Option<ContextSharing> {
        (self.along != Along::Tensor).then_some(self.stream.context)
    }
}

/// Whether a micro-batch is one sequence.
pub(crate) fn one_sequence(sharing: Sharing) -> bool {
    sharing.context().is_some_and(|context| context.method.one_sequence())
}

const SHAPE: Shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };

/// The batches on ranks that share layers so.
fn shape(sharing: Sharing) -> Shape {
    Shape { sequences: if one_sequence(sharing) { 1 } else { SHAPE.sequences }, ..SHAPE }
}

/// The part of a model on a rank that shares layers so, if there is one.
pub(crate) fn part(model: &Model, degree: usize, index: usize, sharing: Sharing) -> Option<TensorShard> {
    let mesh = sharing.mesh(degree);
    let part = model.layer_shard(&mesh, &[Axis::Expert], model.shardings(), index).ok()?;
    let ranks = mesh.degree(Axis::Context);
    let exchange = exchange_problem(mesh.degree(Axis::ContextHeads), part.model.heads, part.model.kv_heads);
    let problem = sharing.context().filter(|_| exchange.is_none()).and_then(|context| {
        let problem = context.problem(ranks, part.model.heads, part.model.kv_heads);
        problem.or_else(|| context.length_problem(SEQ, ranks))
    });
    Some(part).filter(|_| problem.is_none() && exchange.is_none())
}

pub(crate) fn outcome(b: &mut dyn Backend, d: &mut Decoder, ranks: &mut dyn StageRanks) -> Outcome {
    d.weigh_losses(&[WeighedLoss::z_loss(0.01)]).unwrap();
    let (ids, targets) = tokens(5, 4);
    let (n, sequences) = (d.shape().tokens(), d.shape().sequences as u64);
    let batch =
        |i: usize| TokenBatch { ids: &ids[i * n..][..n], targets: &targets[i * n..][..n], positions: None };
    let mut per_token = vec![0.0; n];
    let mut losses = vec![d.loss_through(b, ranks, &batch(0), Some(&mut per_token)).unwrap().nats];
    let mut lse_squared = 0.0;
    for i in 0..ids.len() / n {
        let first_sequence = sequences * i as u64;
        let ctx = StepContext { accumulate: i > 0, first_sequence, ..context(3, scored(&targets)) };
        let loss = d.forward_backward_through(b, ranks, &batch(i), &ctx).unwrap();
        losses.push(loss.nats);
        lse_squared += loss.auxiliary[0];
    }
    Outcome { losses, per_token, lse_squared, gradients: gradients(b, d) }
}

/// A gradient with the sums over ranks that it still lacks.
pub(crate) fn completed(part: &TensorShard, i: usize, rows: bool, all: &[Outcome]) -> Vec<f32> {
    let (param, mesh) = (&part.params()[i], part.mesh());
    let over_axes = |rank: usize| {
        let group = mesh.group(rank, &param.sharding.sums);
        sum(&group.iter().map(|r| all[*r].gradients[i].clone()).collect::<Vec<_>>())
    };
    let mut mine = over_axes(part.index);
    if let Some((positions, span)) = part.gradient_sum(param, rows) {
        let coord = mesh.coord(part.index);
        let terms: Vec<_> = positions.map(|at| over_axes(mesh.rank(&coord.with(part.line(), at)))).collect();
        let width = param.len() / param.shape[0];
        let range = span.start * width..span.end() * width;
        mine[range.clone()].copy_from_slice(&sum(&terms)[range]);
    }
    mine
}

fn of_portions(model: &Model, degree: usize, sharing: Sharing, config: ActivationConfig) -> Vec<Outcome> {
    let groups = Groups::new(&sharing.mesh(degree));
    std::thread::scope(|s| {
        let run = |index: usize| {
            let tensor_shard = part(model, degree, index, sharing).unwrap();
            let (groups, config) = (&groups, config.clone());
            s.spawn(move || {
                let mut b = cpu(1);
                let (shape, stream) = (shape(sharing), sharing.stream);
                let mut d =
                    Decoder::of_tensor_shard(&mut b, &tensor_shard, stream, shape, config, None).unwrap();
                d.verify().unwrap_or_else(|e| panic!("rank {index} of {degree}, {sharing:?}: {e}"));
                for (i, (param, spec)) in tensor_shard.params().iter().zip(model.params()).enumerate() {
                    let values = part_of(param, &tiny::values(i, &spec));
                    d.write_param(&mut b, &spec.name, &values).unwrap();
                }
                outcome(&mut b, &mut d, &mut groups.member(index))
            })
        };
        let threads: Vec<_> = (0..degree).map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

pub(crate) fn of_whole(model: &Model, shape: Shape, config: ActivationConfig) -> Outcome {
    let mut b = cpu(1);
    let mut d = Decoder::with_activations(&mut b, model, shape, config).unwrap();
    for (i, spec) in model.params().iter().enumerate() {
        d.write_param(&mut b, &spec.name, &tiny::values(i, spec)).unwrap();
    }
    outcome(&mut b, &mut d, &mut OneDevice)
}

fn hold(
    what: &str,
    model: &Model,
    degree: usize,
    sharing: Sharing,
    config: ActivationConfig,
    tolerance: f64,
) {
    let whole = of_whole(model, shape(sharing), config.clone());
    let all = of_portions(model, degree, sharing, config.clone());
    let lse_squared: f64 = all.iter().map(|found| found.lse_squared).sum();
    assert!((lse_squared / whole.lse_squared - 1.0).abs() < tolerance, "{what}, {sharing:?}");
    for (index, found) in all.iter().enumerate() {
        let what = format!("{what}, rank {index} of {degree}, {sharing:?}");
        for (found, wanted) in found.losses.iter().zip(&whole.losses) {
            assert!((found / wanted - 1.0).abs() < tolerance, "{what}: loss {found}, wanted {wanted}");
        }
        assert!(relative(&found.per_token, &whole.per_token) < tolerance, "{what}");
        let tensor_shard = part(model, degree, index, sharing).unwrap();
        let rows = sharing.stream.line == LineStream::Rows;
        for (i, param) in tensor_shard.params().iter().enumerate() {
            let wanted = part_of(param, &whole.gradients[i]);
            let difference = relative(&completed(&tensor_shard, i, rows, &all), &wanted);
            assert!(difference < tolerance, "{what}: {} differs by {difference}", param.name());
        }
    }
}

#[test]
fn portions_together_have_the_losses_and_gradients_of_the_whole() {
    let (mut held, mut sample) = (0, Sample::one_in(3));
    for (label, model) in dense_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..model.clone() };
            for degree in [1, 2, 4] {
                if model.tensor_shard(degree, 0).is_err() {
                    continue;
                }
                for sharing in [WHOLE, ROWS] {
                    if !sample.takes() {
                        continue;
                    }
                    let what = format!("{label}, dropout {dropout}");
                    // A single tensor shard has no peers: its products are terms of sums of one.
                    hold(&what, &model, degree, sharing, ActivationConfig::default(), 2e-5);
                    held += 1;
                }
            }
        }
    }
    assert!(held > either(60, 200), "{held}");
}

/// Whether the model of a number is tried in the layout of a number: every third pair of them, and each with every third of the others.
fn is_tried(kind: usize, layout: usize) -> bool {
    (kind + layout).is_multiple_of(3)
}

/// Every method in lines of ranks, with the rows of a rank's positions whole in a line, sharded over it, and kept in parts.
pub(crate) fn lines() -> impl Iterator<Item = (usize, Sharing)> {
    let methods = [GATHERED, EXCHANGED].into_iter().chain(BLOCKS);
    let of_line = |method: Sharing| {
        [(2, LineStream::Whole), (2, LineStream::Rows), (2, LineStream::Partitioned), (4, LineStream::Rows)]
            .map(|(tensor, line)| (2 * tensor, method.with_line(tensor, line)))
    };
    let more = |method: Sharing| {
        [(8, method.with_line(2, LineStream::Whole)), (8, method.with_line(2, LineStream::Rows))]
    };
    methods.clone().flat_map(of_line).chain(methods.flat_map(more))
}

/// Heads over the ranks of a line, positions over the lines.
#[test]
fn lines_with_some_positions_have_the_losses_and_gradients_of_the_whole() {
    let (mut held, mut sample) = (0, Sample::one_in(3));
    for (kind, (label, model)) in dense_kinds().into_iter().enumerate() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..model.clone() };
            let all = lines().filter(|(degree, _)| (*degree == 4) == (dropout > 0.0));
            for (number, (degree, sharing)) in all.enumerate() {
                if !is_tried(kind, number) || part(&model, degree, 0, sharing).is_none() || !sample.takes() {
                    continue;
                }
                let what = format!("{label}, dropout {dropout}");
                hold(&what, &model, degree, sharing, ActivationConfig::default(), 2e-5);
                held += 1;
            }
        }
    }
    assert!(held > either(20, 60), "{held}");
}

/// Heads over the ranks of a group, positions in blocks over the groups; more ranks than heads, an odd number of groups, and lines.
#[test]
fn groups_that_exchange_heads_have_the_losses_and_gradients_of_the_whole() {
    let (mut held, mut sample) = (0, Sample::one_in(3));
    let methods = || [GATHERED].into_iter().chain(BLOCKS).map(|method| method.with_heads(2));
    let lines =
        [ring(ContextOrder::ZigZag).with_line(2, LineStream::Rows), HELPED.with_line(2, LineStream::Whole)];
    for (kind, (label, model)) in dense_kinds().into_iter().enumerate() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..model.clone() };
            let (degree, more) =
                if dropout > 0.0 { (4, None) } else { (8, Some(ring(ContextOrder::ZigZag))) };
            let all =
                methods().map(|sharing| (degree, sharing)).chain(lines.map(|line| (8, line.with_heads(2))));
            let wide = more.into_iter().map(|sharing| (8, sharing.with_heads(4)));
            for (number, (degree, sharing)) in all.chain(wide).enumerate() {
                if !is_tried(kind, number) || part(&model, degree, 0, sharing).is_none() || !sample.takes() {
                    continue;
                }
                let what = format!("{label}, dropout {dropout}");
                hold(&what, &model, degree, sharing, ActivationConfig::default(), 2e-5);
                held += 1;
            }
        }
    }
    assert!(held > either(20, 60), "{held}");
}

/// Operations of attention of one micro-batch, forward and backward, on each of the ranks that share its sequence.
#[test]
fn ranks_with_some_positions_have_equally_much_to_compute() {
    let (_, model) = models().swap_remove(1);
    let work = |degree: usize, index: usize| -> f64 {
        let part = part(&model, degree, index, GATHERED).unwrap();
        let (shape, config) = (shape(GATHERED), ActivationConfig::default());
        let null = &mut NullBackend::new();
        let d = Decoder::of_tensor_shard(null, &part, GATHERED.stream, shape, config, None).unwrap();
        let lists = d.programs().flat_map(|(_, unit, _)| {
            [Phase::Forward, Phase::Backward].into_iter().flat_map(|phase| unit.list(phase))
        });
        lists
            .filter_map(Node::op)
            .filter(|op| op.name().starts_with("attention"))
            .map(|op| op.flops().0)
            .sum()
    };
    let whole = work(1, 0);
    for degree in [2, 4, 8] {
        for index in 0..degree {
            assert_eq!(work(degree, index), whole / degree as f64, "rank {index} of {degree}");
        }
    }
    // One position for each rank: the last sees all of them.
    assert!(work(16, 15) == 16.0 * work(16, 0));
}

/// More ranks than heads, too.
#[test]
fn ranks_with_some_positions_have_the_losses_and_gradients_of_the_whole() {
    let mut sample = Sample::one_in(3);
    for (label, model) in dense_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..model.clone() };
            for degree in [2, 4, 16] {
                if !sample.takes() {
                    continue;
                }
                let what = format!("{label}, dropout {dropout}");
                hold(&what, &model, degree, GATHERED, ActivationConfig::default(), 2e-5);
            }
        }
    }
}

/// More ranks than heads, too, and an odd number of them.
#[test]
fn ranks_that_compute_blocks_have_the_losses_and_gradients_of_the_whole() {
    let (mut held, mut sample) = (0, Sample::one_in(5));
    for (label, model) in dense_kinds() {
        for (dropout, degrees) in [(0.0, &[2, 4, 8, 16][..]), (0.2, &[2, 4])] {
            let model = Model { dropout, ..model.clone() };
            for (degree, stream) in degrees.iter().flat_map(|degree| BLOCKS.map(|stream| (*degree, stream))) {
                if part(&model, degree, 0, stream).is_none() || !sample.takes() {
                    continue;
                }
                let what = format!("{label}, dropout {dropout}");
                hold(&what, &model, degree, stream, ActivationConfig::default(), 2e-5);
                held += 1;
            }
        }
    }
    assert!(held > either(60, 200), "{held}");
}

/// Keys are gathered whatever positions a rank has.
#[test]
fn gathered_keys_go_with_every_order() {
    for (label, model) in dense_kinds() {
        for order in [ContextOrder::Consecutive, ContextOrder::Striped] {
            let stream = by(ContextMethod::AllGather, order);
            let model = Model { dropout: 0.2, ..model.clone() };
            hold(label, &model, 4, stream, ActivationConfig::default(), 2e-5);
        }
    }
}

/// Fewer key/value heads than ranks, too, and several sequences in a micro-batch.
#[test]
fn ranks_with_some_heads_have_the_losses_and_gradients_of_the_whole() {
    let mut held = 0;
    for (label, model) in dense_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..model.clone() };
            for degree in [2, 4] {
                if part(&model, degree, 0, EXCHANGED).is_none() {
                    continue;
                }
                hold(
                    &format!("{label}, dropout {dropout}"),
                    &model,
                    degree,
                    EXCHANGED,
                    ActivationConfig::default(),
                    2e-5,
                );
                held += 1;
            }
        }
    }
    assert!(held > 80, "{held}");
}

#[test]
fn recomputed_and_rounded_activations_may_be_cut_too() {
    let mut sample = Sample::one_in(4);
    for (label, model) in models() {
        for stream in [WHOLE, ROWS, GATHERED, EXCHANGED].into_iter().chain(BLOCKS) {
            for recompute in
                [Recompute::None, Recompute::Attention, Recompute::AttentionOutput, Recompute::Full]
            {
                let kept = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
                if sample.takes() {
                    hold(&format!("{label}, {recompute:?}"), &model, 2, stream, kept, 2e-5);
                }
            }
            // Rounding takes values near zero to the other side of ReLU's kink.
            if model.activation != ActivationChoice::Relu && sample.takes() {
                let config = ActivationConfig { storage: Storage::Bf16, ..ActivationConfig::default() };
                hold(label, &model, 2, stream, config, 0.05);
            }
        }
    }
}

/// Gathered values of a rank are the ones that it would have kept.
#[test]
fn partitioned_activations_have_the_bits_of_whole_ones() {
    let mut sample = Sample::one_in(3);
    for (label, model) in dense_kinds() {
        let model = Model { dropout: 0.2, ..model };
        for degree in [2, 4] {
            if model.tensor_shard(degree, 0).is_err() {
                continue;
            }
            for recompute in [Recompute::None, Recompute::AttentionOutput, Recompute::Full] {
                if !sample.takes() {
                    continue;
                }
                let config = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
                let whole = of_portions(&model, degree, WHOLE, config.clone());
                let found = of_portions(&model, degree, PARTITIONED, config);
                assert!(found == whole, "{label}, {degree} tensor shards, {recompute}");
            }
        }
    }
}

#[test]
fn a_portion_starts_from_the_elements_of_the_whole() {
    for (label, model) in dense_kinds() {
        for init in [None, Some(InitChoice::TFixup)] {
            let model = Model {
                init: init.unwrap_or(model.init),
                init_distribution: init.map(|_| Distribution::Uniform),
                ..model.clone()
            };
            let mut b = cpu(1);
            let whole = Decoder::new(&mut b, &model, SHAPE).unwrap();
            whole.init(&mut b, 7).unwrap();
            let whole = whole.read_params(&mut b).unwrap();
            for degree in [1, 2, 4] {
                for index in 0..degree {
                    let Ok(tensor_shard) = model.tensor_shard(degree, index) else { continue };
                    let config = ActivationConfig::default();
                    let mut b = cpu(1);
                    let d = Decoder::of_tensor_shard(
                        &mut b,
                        &tensor_shard,
                        Stream::WHOLE,
                        SHAPE,
                        config.clone(),
                        None,
                    )
                    .unwrap();
                    d.init(&mut b, 7).unwrap();
                    let mine = d.read_params(&mut b).unwrap();
                    for ((param, whole), mine) in tensor_shard.params().iter().zip(&whole).zip(&mine) {
                        assert!(mine.values == part_of(param, &whole.values), "{label} {}", mine.name);
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_portion_cannot_do_is_refused() {
    let (_, model) = models().swap_remove(0);
    let tensor_shard = model.tensor_shard(2, 1).unwrap();
    let config = ActivationConfig::default();
    let mut b = cpu(1);
    let mut d =
        Decoder::of_tensor_shard(&mut b, &tensor_shard, Stream::WHOLE, SHAPE, config.clone(), None).unwrap();
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let message = |r: Result<(), ModelError>| match r {
        Err(e @ ModelError::TensorShard(_)) => e.to_string(),
        other => panic!("{other:?}"),
    };
    let alone = d.forward_backward(&mut b, &batch, &context(0, 1)).unwrap_err().to_string();
    assert_eq!(alone, "all_reduce of embed.rows: there are no other ranks");
    assert!(
        message(d.logits(&mut b, &batch, |_, _| {}))
            .contains("needs the whole model, found tensor shard 1 of 2")
    );
    let cache = Cache::new(&mut b, &d, CacheShape::one(4)).map(drop);
    assert!(message(cache).contains("decoding with a cache needs the whole model"));
    let odd = Shape { sequences: 1, seq: 15, ..SHAPE };
    let cut =
        Decoder::of_tensor_shard(&mut b, &tensor_shard, Stream::ROWS, odd, config.clone(), None).map(drop);
    assert!(message(cut).contains("2 divides, found 1 sequences of 15 tokens, 15 positions"));
    let cut = Decoder::of_tensor_shard(&mut b, &tensor_shard, Stream::PARTITIONED, odd, config.clone(), None);
    assert!(
        message(cut.map(drop))
            .contains("parallel.partition_activations = true with parallel.tensor = 2: wanted")
    );
    let all = part(&model, 2, 1, GATHERED).unwrap();
    for shape in [odd, SHAPE] {
        let cut = Decoder::of_tensor_shard(&mut b, &all, GATHERED.stream, shape, config.clone(), None);
        let found = format!("found {} of {}; set train.micro_batch = 1", shape.sequences, shape.seq);
        assert!(message(cut.map(drop)).contains(&found));
    }
    let three = model.layer_shard(&EXCHANGED.mesh(3), &[Axis::Expert], model.shardings(), 0).unwrap();
    let shape = Shape { seq: 15, ..SHAPE };
    let cut = Decoder::of_tensor_shard(&mut b, &three, EXCHANGED.stream, shape, config.clone(), None);
    let refused = message(cut.map(drop));
    assert!(
        refused.contains("a number of query heads that it divides, found 4; take another parallel.context"),
        "{refused}"
    );
    let whole = model.tensor_shard(1, 0).unwrap();
    let mut d = Decoder::of_tensor_shard(&mut b, &whole, Stream::ROWS, odd, config.clone(), None).unwrap();
    d.logits(&mut b, &TokenBatch { ids: &ids[..15], targets: &targets[..15], positions: None }, |_, _| {})
        .unwrap();
}

/// Bytes of a hand-made plan, for pre-normalised f32 models without QK-norm and documents.
#[test]
fn activations_of_a_stream_sharded_by_rows_take_no_more_than_a_plan_by_hand() {
    for (label, model) in &models()[..2] {
        for (degree, recompute) in
            [(2, Recompute::Selective), (4, Recompute::Selective), (2, Recompute::None)]
        {
            let Ok(tensor_shard) = model.tensor_shard(degree, degree - 1) else { continue };
            let config = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
            let mut b = NullBackend::new();
            Decoder::of_tensor_shard(&mut b, &tensor_shard, Stream::ROWS, SHAPE, config.clone(), None)
                .unwrap();
            let m = &tensor_shard.model;
            let (n, r, l, d) = (SHAPE.tokens(), SHAPE.tokens() / degree, m.layers, m.width);
            let (j, a, p, f) = (m.qkv_width(), m.attention_width(), m.mlp_in_width(), m.ffn_width);
            let (normed, hidden) = if recompute == Recompute::None { (2 * l * d, l * f) } else { (d, f) };
            let stats = if *label == "gpt2" { 2 } else { 1 };
            let by_rows = r * ((2 * l + 1) * d + normed + 2 * d + (2 * l + 1) * stats);
            let whole = n * (l * (j + a + p) + hidden + d + f.max(j + a).max(d) + 7);
            let wanted = 4 * (by_rows + whole + l * SHAPE.sequences * m.heads * SHAPE.seq) as u64;
            let found = b.memory().classes.iter().find(|c| c.0 == "activations").unwrap().1;
            // Every scratch value begins at a multiple of 256 bytes.
            assert!(
                found.0 <= wanted + 256 * 40,
                "{label} {degree} {recompute:?}: {} above {wanted}",
                found.0
            );
        }
    }
}

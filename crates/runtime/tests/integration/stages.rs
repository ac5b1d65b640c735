//! Stages of a pipeline, handed their values by hand, against the whole model: the same bits.

use crate::group;
use crate::tiny;

use bessemer_arch::{Model, Span, TensorShard};
use bessemer_mesh::{Axis, Mesh};
use bessemer_runtime::{
    Accumulate, ActivationConfig, Decoder, LossSum, ModelError, OneDevice, Pending, Purpose, Shape,
    SlotMemory, StageConfig, StageRanks, StepContext, Stream, TokenBatch, WeighedLoss,
};
use bessemer_tensor::{Backend, View};
use bessemer_test_tier::Sample;
use bessemer_units::{Recompute, RecomputePlan, Storage};
use group::{Groups, part_of};
use tiny::{SEQ, all_kinds, context, cpu, models, relative, scored, tokens, values};

const SHAPE: Shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
const MICRO: usize = 3;

/// Stages that split their backward passes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Split {
    None,
    All,
    /// The stages with odd numbers.
    Odd,
    /// Every stage, but not of the second micro-batch, whose whole backward pass comes before the first weight part.
    NotSecond,
}

/// Results of a run: losses of each micro-batch, and gradients by name.
#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<LossSum>,
    gradients: Vec<(String, Vec<f32>)>,
}

fn read(b: &mut dyn Backend, view: View) -> Vec<f32> {
    let mut values = vec![0.0; view.len()];
    b.read_f32(view, &mut values).unwrap();
    values
}

fn hand_over(b: &mut dyn Backend, from: View, to: View) {
    let values = read(b, from);
    b.write_f32(to, &values).unwrap();
}

fn weights(b: &mut dyn Backend, d: &Decoder, tensor_shard: &TensorShard) {
    for (i, (part, spec)) in tensor_shard.params().iter().zip(tensor_shard.whole.params()).enumerate() {
        if d.params().iter().any(|p| p.spec.name == spec.name) {
            d.write_param(b, &spec.name, &part_of(part, &values(i, &spec))).unwrap();
        }
    }
}

fn gradients(b: &mut dyn Backend, d: &Decoder) -> Vec<(String, Vec<f32>)> {
    let trained = d.params().iter().filter_map(|p| Some((p.spec.name.clone(), p.grad?)));
    trained.map(|(name, grad)| (name, read(b, grad))).collect()
}

/// Ids and targets of all micro-batches.
fn data() -> (Vec<u32>, Vec<u32>) {
    tokens(5, 2 * MICRO)
}

fn batch<'a>((ids, targets): &'a (Vec<u32>, Vec<u32>), m: usize) -> TokenBatch<'a> {
    let n = SHAPE.tokens();
    TokenBatch { ids: &ids[m * n..][..n], targets: &targets[m * n..][..n], positions: None }
}

fn ctx(targets: &[u32], m: usize) -> StepContext {
    StepContext { accumulate: m > 0, first_sequence: 2 * m as u64, ..context(3, scored(targets)) }
}

/// The whole tensor shard in one decoder, one micro-batch after the other.
fn whole(
    b: &mut dyn Backend,
    ranks: &mut dyn StageRanks,
    tensor_shard: &TensorShard,
    stream: Stream,
    config: ActivationConfig,
) -> Outcome {
    let mut d = Decoder::of_tensor_shard(b, tensor_shard, stream, SHAPE, config.clone(), None).unwrap();
    d.weigh_losses(&[WeighedLoss::z_loss(0.01)]).unwrap();
    weights(b, &d, tensor_shard);
    let data = data();
    let losses = (0..MICRO)
        .map(|m| d.forward_backward_through(b, ranks, &batch(&data, m), &ctx(&data.1, m)).unwrap())
        .collect();
    Outcome { losses, gradients: gradients(b, &d) }
}

/// A chain of stages with two micro-batches in flight.
struct Chain {
    stages: Vec<Decoder>,
    split: Split,
    losses: Vec<LossSum>,
    pending: Vec<Vec<Option<Pending>>>,
}

impl Chain {
    fn forward(&mut self, b: &mut dyn Backend, ranks: &mut dyn StageRanks, m: usize) {
        let data = data();
        // The context's `accumulate` is ignored.
        let ctx = StepContext { accumulate: m.is_multiple_of(2), ..ctx(&data.1, m) };
        for s in 0..self.stages.len() {
            if s > 0 {
                let from = self.stages[s - 1].stage_output(m % 2).unwrap();
                hand_over(b, from, self.stages[s].stage_input(m % 2).unwrap());
            }
            self.stages[s].stage_forward(b, ranks, m % 2, &batch(&data, m), Some(&ctx)).unwrap();
        }
    }

    fn backward(&mut self, b: &mut dyn Backend, ranks: &mut dyn StageRanks, m: usize) {
        for s in (0..self.stages.len()).rev() {
            if s + 1 < self.stages.len() {
                let from = self.stages[s + 1].stage_input_gradient(m % 2).unwrap();
                hand_over(b, from, self.stages[s].stage_output_gradient(m % 2).unwrap());
            }
            let split = match self.split {
                Split::None => false,
                Split::All => true,
                Split::Odd => s % 2 == 1,
                Split::NotSecond => m != 1,
            };
            let stage = &mut self.stages[s];
            let loss = if split {
                let (loss, pending) = stage.stage_backward_input(b, ranks, m % 2, m > 0).unwrap();
                self.pending[s][m] = Some(pending);
                loss
            } else {
                let weight = m > 0 && self.split != Split::NotSecond;
                stage.stage_backward(b, ranks, m % 2, Accumulate { input: m > 0, weight }).unwrap()
            };
            assert_eq!(loss.is_some(), stage.stage().span.head);
            self.losses.extend(loss);
        }
    }

    fn weight(&mut self, b: &mut dyn Backend, ranks: &mut dyn StageRanks, m: usize) {
        for (stage, pending) in self.stages.iter_mut().zip(&mut self.pending) {
            if let Some(pending) = pending[m].take() {
                let accumulate = m > 0 || self.split == Split::NotSecond;
                stage.stage_backward_weight(b, ranks, pending, accumulate).unwrap();
            }
        }
    }
}

fn chain(
    b: &mut dyn Backend,
    ranks: &mut dyn StageRanks,
    (tensor_shard, stream): (&TensorShard, Stream),
    config: ActivationConfig,
    spans: &[Span],
    split: Split,
) -> Outcome {
    let mut stages: Vec<Decoder> = Vec::new();
    for span in spans {
        let pending = if config.recompute.stored_micro_batches > 0 { 0 } else { 2 };
        let stage = StageConfig { span: span.clone(), slots: 2, pending, overlap: false, shadowing: None };
        // Every second stage is on the first one's device.
        let mut d = match stages.first().filter(|_| stages.len() % 2 == 1) {
            Some(first) => first.of_stage_beside(b, &stage, None, SlotMemory::Own).unwrap(),
            None => Decoder::of_stage(b, tensor_shard, stream, SHAPE, config.clone(), &stage, None).unwrap(),
        };
        d.weigh_losses(&[WeighedLoss::z_loss(0.01)]).unwrap();
        weights(b, &d, tensor_shard);
        // Values that a first micro-batch replaces.
        for grad in d.params().iter().filter_map(|p| p.grad) {
            b.write_f32(grad, &vec![f32::NAN; grad.len()]).unwrap();
        }
        stages.push(d);
    }
    let pending = vec![vec![None; MICRO]; stages.len()];
    let mut c = Chain { stages, split, losses: Vec::new(), pending };
    // Forward passes of others run between a micro-batch's own, and input parts of others before its weight part.
    c.forward(b, ranks, 0);
    c.forward(b, ranks, 1);
    c.backward(b, ranks, 0);
    c.forward(b, ranks, 2);
    c.backward(b, ranks, 1);
    c.weight(b, ranks, 0);
    c.backward(b, ranks, 2);
    c.weight(b, ranks, 1);
    c.weight(b, ranks, 2);
    Outcome { losses: c.losses, gradients: c.stages.iter().flat_map(|d| gradients(b, d)).collect() }
}

/// The chain's outcome is the whole model's, bit by bit. The two terms of a tied table's gradient are added here, in another
/// order than within one decoder.
fn hold(what: &str, found: &Outcome, wanted: &Outcome) {
    assert_eq!(found.losses, wanted.losses, "{what}: losses");
    for (name, wanted) in &wanted.gradients {
        let terms: Vec<_> = found.gradients.iter().filter(|(n, _)| n == name).map(|(_, g)| g).collect();
        match terms[..] {
            [term] => assert!(term == wanted, "{what}: {name} differs by {}", relative(term, wanted)),
            [first, last] => {
                assert_eq!(name, "embed.tokens");
                let sum: Vec<f32> = first.iter().zip(last).map(|(a, b)| a + b).collect();
                assert!(
                    relative(&sum, wanted) < 1e-6,
                    "{what}: {name} differs by {}",
                    relative(&sum, wanted)
                );
            }
            _ => panic!("{what}: {} spans have {name}", terms.len()),
        }
    }
}

#[test]
fn whole_and_split_passes_mix_in_any_order() {
    for (label, plain) in models() {
        let model = Model { layers: 4, ..plain };
        let (mut b, config) = (cpu(1), ActivationConfig::default());
        let tensor_shard = model.tensor_shard(1, 0).unwrap();
        let wanted = whole(&mut b, &mut OneDevice, &tensor_shard, Stream::WHOLE, config.clone());
        let spans = model.split_layers(&[2, 2]).unwrap();
        let from = (&tensor_shard, Stream::WHOLE);
        let found = chain(&mut b, &mut OneDevice, from, config.clone(), &spans, Split::NotSecond);
        assert_eq!(found.losses, wanted.losses, "{label}");
        // The matrices' terms are added in another order: that of the weight parts.
        for (name, wanted) in wanted.gradients.iter().filter(|(name, _)| name != "embed.tokens") {
            let found = &found.gradients.iter().find(|(n, _)| n == name).unwrap().1;
            assert!(relative(found, wanted) < 1e-5, "{label}: {name} differs by {}", relative(found, wanted));
        }
    }
}

/// Layers of the stages of chains, for four layers.
const CHAINS: [&[usize]; 5] = [&[4], &[3, 1], &[1, 1, 1, 1], &[0, 2, 2, 0], &[0, 4]];

fn hold_chains(label: &str, model: &Model, config: ActivationConfig, splits: &[Split], sample: &mut Sample) {
    let mut b = cpu(1);
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let wanted = whole(&mut b, &mut OneDevice, &tensor_shard, Stream::WHOLE, config.clone());
    for counts in CHAINS {
        let spans = model.split_layers(counts).unwrap();
        for &split in splits {
            if !sample.takes() {
                continue;
            }
            let from = (&tensor_shard, Stream::WHOLE);
            let found = chain(&mut b, &mut OneDevice, from, config.clone(), &spans, split);
            hold(&format!("{label}, dropout {}, {counts:?}, {split:?}", model.dropout), &found, &wanted);
        }
    }
}

#[test]
fn chains_of_stages_have_the_bits_of_the_whole() {
    let mut sample = Sample::one_in(3);
    for (label, plain) in all_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { layers: 4, dropout, ..plain.clone() };
            let other = if dropout == 0.0 { Split::Odd } else { Split::None };
            hold_chains(label, &model, ActivationConfig::default(), &[Split::All, other], &mut sample);
        }
    }
}

#[test]
fn stored_and_rounded_activations_go_through_stages_too() {
    let mut sample = Sample::one_in(4);
    for (label, plain) in all_kinds() {
        let model = Model { layers: 4, dropout: 0.1, ..plain };
        for (storage, recompute) in [
            (Storage::F32, Recompute::None),
            (Storage::F32, Recompute::Full),
            (Storage::Bf16, Recompute::Full),
            (Storage::Bf16, Recompute::Selective),
            (Storage::Bf16, Recompute::None),
        ] {
            hold_chains(
                label,
                &model,
                ActivationConfig { storage, recompute: recompute.into(), ..ActivationConfig::default() },
                &[Split::All],
                &mut sample,
            );
        }
    }
}

/// One of two micro-batches in flight keeps everything, and the other follows the policy.
#[test]
fn micro_batches_that_keep_everything_have_the_bits_of_others() {
    let mut sample = Sample::one_in(3);
    for (label, plain) in all_kinds() {
        let model = Model { layers: 4, dropout: 0.2, ..plain };
        for policy in [Recompute::Selective, Recompute::Full] {
            let recompute = RecomputePlan { stored_micro_batches: 1, ..policy.into() };
            let config = ActivationConfig { recompute, ..ActivationConfig::default() };
            hold_chains(label, &model, config, &[Split::None], &mut sample);
        }
    }
}

/// Outcome of one layout on each member of a group, whole or in stages.
fn members(
    model: &Model,
    degree: usize,
    run: impl Fn(&mut dyn Backend, &mut dyn StageRanks, &TensorShard) -> Outcome + Sync,
) -> Vec<Outcome> {
    let groups = Groups::new(&Mesh::along(Axis::Tensor, degree));
    std::thread::scope(|s| {
        let (groups, run) = (&groups, &run);
        let member = |index: usize| {
            let tensor_shard = model.tensor_shard(degree, index).unwrap();
            s.spawn(move || run(&mut cpu(1), &mut groups.member(index), &tensor_shard))
        };
        let threads: Vec<_> = (0..degree).map(member).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn portions_may_be_cut_into_stages() {
    let mut sample = Sample::one_in(8);
    for (label, plain) in all_kinds() {
        let model = Model { layers: 4, dropout: 0.2, ..plain };
        if model.tensor_shard(2, 0).is_err() {
            continue;
        }
        for stream in [Stream::WHOLE, Stream::PARTITIONED, Stream::ROWS] {
            for recompute in [Recompute::Selective, Recompute::None, Recompute::Full] {
                let config = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
                let wanted = members(&model, 2, |b, ranks, p| whole(b, ranks, p, stream, config.clone()));
                for counts in &CHAINS[..4] {
                    let spans = model.split_layers(counts).unwrap();
                    for split in [Split::None, Split::All] {
                        if !sample.takes() {
                            continue;
                        }
                        let run = |b: &mut dyn Backend, ranks: &mut dyn StageRanks, p: &TensorShard| {
                            chain(b, ranks, (p, stream), config.clone(), &spans, split)
                        };
                        let found = members(&model, 2, run);
                        for (found, wanted) in found.iter().zip(&wanted) {
                            let what = format!("{label}, {stream:?}, {recompute:?}, {counts:?}, {split:?}");
                            hold(&what, found, wanted);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_loss_alone_goes_through_stages_of_trainers_and_of_scorers() {
    for (label, plain) in models() {
        let model = Model { layers: 4, dropout: 0.2, ..plain };
        let mut b = cpu(1);
        let tensor_shard = model.tensor_shard(1, 0).unwrap();
        let data = data();
        for purpose in [Purpose::Train, Purpose::Score] {
            let shape = Shape { purpose, ..SHAPE };
            let config = ActivationConfig::default();
            let mut d = Decoder::with_activations(&mut b, &model, shape, config.clone()).unwrap();
            weights(&mut b, &d, &tensor_shard);
            let mut per_token = vec![0.0; SHAPE.tokens()];
            let mut stages = Vec::new();
            for span in model.split_layers(&[1, 2, 1]).unwrap() {
                let stage = StageConfig { span, slots: 2, pending: 0, overlap: false, shadowing: None };
                let d = Decoder::of_stage(
                    &mut b,
                    &tensor_shard,
                    Stream::WHOLE,
                    shape,
                    config.clone(),
                    &stage,
                    None,
                )
                .unwrap();
                weights(&mut b, &d, &tensor_shard);
                stages.push(d);
            }
            // Both micro-batches are in flight before the first loss is read.
            for s in 0..3 {
                for slot in [1, 0] {
                    if s > 0 {
                        let from = stages[s - 1].stage_output(slot).unwrap();
                        hand_over(&mut b, from, stages[s].stage_input(slot).unwrap());
                    }
                    stages[s].stage_forward(&mut b, &mut OneDevice, slot, &batch(&data, slot), None).unwrap();
                }
            }
            for slot in [0, 1] {
                let wanted = d.loss(&mut b, &batch(&data, slot), Some(&mut per_token)).unwrap();
                let mut found = vec![0.0; SHAPE.tokens()];
                let sum = stages[2].stage_loss(&mut b, &mut OneDevice, slot, Some(&mut found)).unwrap();
                assert!(sum == wanted && found == per_token, "{label} {purpose:?} {slot}");
            }
        }
    }
}

#[test]
fn passes_read_the_version_of_the_weights_that_they_are_told() {
    for (label, plain) in all_kinds() {
        let model = Model { dropout: 0.2, ..plain };
        let (mut b, config) = (cpu(1), ActivationConfig::default());
        let tensor_shard = model.tensor_shard(1, 0).unwrap();
        let mut d = Decoder::with_activations(&mut b, &model, SHAPE, config.clone()).unwrap();
        let mut versions = Vec::new();
        let mut outcomes = Vec::new();
        let data = data();
        for seed in [1, 2] {
            d.init(&mut b, seed).unwrap();
            let loss = d.forward_backward(&mut b, &batch(&data, 0), &ctx(&data.1, 0)).unwrap();
            outcomes.push((loss, gradients(&mut b, &d)));
            let other = Decoder::with_activations(&mut b, &model, SHAPE, config.clone()).unwrap();
            other.init(&mut b, seed).unwrap();
            versions.push(other.params().iter().map(|p| p.value).collect::<Vec<_>>());
        }
        weights(&mut b, &d, &tensor_shard);
        for (version, (loss, wanted)) in versions.iter().zip(&outcomes) {
            d.stage_values(Some(version)).unwrap();
            let found = d.forward_backward(&mut b, &batch(&data, 0), &ctx(&data.1, 0)).unwrap();
            assert!(found == *loss && gradients(&mut b, &d) == *wanted, "{label}");
        }
        d.stage_values(None).unwrap();
        let own = d.forward_backward(&mut b, &batch(&data, 0), &ctx(&data.1, 0)).unwrap();
        assert!(own != outcomes[1].0, "{label}");
        assert!(message(d.stage_values(Some(&versions[0][1..]))).contains("wanted values of"));
        let mut wrong = versions[0].clone();
        wrong[1].rows += 1;
        let found = message(d.stage_values(Some(&wrong)));
        assert!(found.contains(&d.params()[1].spec.name) && found.contains("wanted values ["), "{found}");
        let again = d.forward_backward(&mut b, &batch(&data, 0), &ctx(&data.1, 0)).unwrap();
        assert_eq!(again, own, "{label}");
    }
}

#[test]
fn stages_start_from_the_bits_of_the_whole() {
    for (label, plain) in all_kinds() {
        let model = Model { layers: 4, ..plain };
        for degree in [1, 2] {
            let Ok(tensor_shard) = model.tensor_shard(degree, degree - 1) else { continue };
            let (mut b, config) = (cpu(1), ActivationConfig::default());
            let whole =
                Decoder::of_tensor_shard(&mut b, &tensor_shard, Stream::WHOLE, SHAPE, config.clone(), None)
                    .unwrap();
            whole.init(&mut b, 7).unwrap();
            let wanted = whole.read_params(&mut b).unwrap();
            let mut seen = 0;
            for span in model.split(3).unwrap() {
                let stage = StageConfig { span, slots: 1, pending: 0, overlap: false, shadowing: None };
                let d = Decoder::of_stage(
                    &mut b,
                    &tensor_shard,
                    Stream::WHOLE,
                    SHAPE,
                    config.clone(),
                    &stage,
                    None,
                )
                .unwrap();
                d.init(&mut b, 7).unwrap();
                for found in d.read_params(&mut b).unwrap() {
                    let wanted = wanted.iter().find(|w| w.name == found.name).unwrap();
                    assert!(found.values == wanted.values, "{label}: {}", found.name);
                    seen += 1;
                }
            }
            assert_eq!(seen, wanted.len() + usize::from(model.tied_embeddings), "{label}");
        }
    }
}

fn message<T>(result: Result<T, ModelError>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn calls_that_the_state_does_not_allow_are_refused_with_a_reason() {
    let model = &models()[0].1;
    let (mut b, config) = (cpu(1), ActivationConfig::default());
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let [first, last] = model.split_layers(&[1, 1]).unwrap().try_into().unwrap();
    let mut make = |span: &Span, slots, pending, purpose| {
        let stage = StageConfig { span: span.clone(), slots, pending, overlap: false, shadowing: None };
        let shape = Shape { purpose, ..SHAPE };
        Decoder::of_stage(&mut b, &tensor_shard, Stream::WHOLE, shape, config.clone(), &stage, None)
    };
    assert!(message(make(&first, 0, 0, Purpose::Train)).contains("at least one slot"));
    assert!(message(make(&first, 1, 1, Purpose::Score)).contains("no backward pass to split"));
    let far = Span { embedding: false, layers: 1..3, head: false };
    assert!(message(make(&far, 1, 0, Purpose::Train)).contains("wanted layers within 0..2, found 1..3"));
    let mut scorer = make(&last, 1, 0, Purpose::Score).unwrap();
    let (mut first, mut last) =
        (make(&first, 2, 1, Purpose::Train).unwrap(), make(&last, 1, 0, Purpose::Train).unwrap());

    assert!(message(first.stage_input(0)).contains("takes no stream"));
    assert!(message(first.stage_input_gradient(0)).contains("no gradient leaves"));
    assert!(message(last.stage_output(0)).contains("gives no stream"));
    assert!(message(last.stage_output_gradient(0)).contains("that of the loss"));
    assert!(message(last.stage_input(1)).contains("one of the 1 slots, found slot 1"));
    assert!(matches!(scorer.stage_input_gradient(0), Err(ModelError::NotForTraining)));

    let data = data();
    let (batch, ctx, ranks) = (batch(&data, 0), ctx(&data.1, 0), &mut OneDevice);
    assert!(
        message(first.forward_backward(&mut b, &batch, &ctx))
            .contains("found layers 0..1 of 2 with embedding")
    );
    assert!(message(last.loss(&mut b, &batch, None)).contains("without embedding and with head"));
    assert!(
        message(last.logits(&mut b, &batch, |_, _| {})).contains("a row of logits needs the whole model")
    );
    assert!(matches!(
        scorer.stage_forward(&mut b, ranks, 0, &batch, Some(&ctx)),
        Err(ModelError::NotForTraining)
    ));
    assert!(message(first.stage_forward(&mut b, ranks, 2, &batch, None)).contains("found slot 2"));
    assert!(message(first.stage_backward(&mut b, ranks, 0, false)).contains("in slot 0, found none"));
    assert!(message(last.stage_loss(&mut b, ranks, 0, None)).contains("wanted a forward pass in slot 0"));
    first.stage_forward(&mut b, ranks, 0, &batch, None).unwrap();
    assert!(message(first.stage_backward(&mut b, ranks, 0, false)).contains("a forward pass with a context"));
    assert!(message(first.stage_loss(&mut b, ranks, 0, None)).contains("the span with the head"));
    first.stage_forward(&mut b, ranks, 0, &batch, Some(&ctx)).unwrap();
    assert!(message(first.stage_forward(&mut b, ranks, 0, &batch, None)).contains("release the slot"));
    first.stage_forward(&mut b, ranks, 1, &batch, Some(&ctx)).unwrap();
    let pending = first.stage_backward_input(&mut b, ranks, 0, false).unwrap().1;
    assert!(message(first.stage_backward_input(&mut b, ranks, 1, true)).contains("found all 1 in use"));
    first.stage_backward_weight(&mut b, ranks, pending, false).unwrap();
    assert!(message(first.stage_backward_weight(&mut b, ranks, pending, true)).contains("found set 0 free"));
    // Slot 1 still holds its micro-batch.
    let pending = first.stage_backward_input(&mut b, ranks, 1, true).unwrap().1;
    first.stage_release_pending(pending).unwrap();
    assert!(first.stage_release_pending(pending).is_err());
    first.stage_forward(&mut b, ranks, 0, &batch, Some(&ctx)).unwrap();
    first.stage_release(0).unwrap();
    assert!(first.stage_backward(&mut b, ranks, 0, true).is_err());
    assert!(first.stage_release(2).is_err());
}

//! Micro-batches of several lengths in one decoder: the numbers of a decoder of each length, those of padded batches, memory of the
//! longest, and plans of recomputation under a budget.

use crate::tiny;

use bessemer_arch::{Model, Span, named};
use bessemer_runtime::{
    ActivationConfig, Decoder, ModelError, OneDevice, Purpose, Shape, StageConfig, StepContext, Stream,
    TokenBatch, WeighedLoss,
};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::IGNORED;
use bessemer_tensor::{Backend, View};
use bessemer_units::{Bytes, Recompute, RecomputePlan};
use tiny::{SEQ, all_kinds, context, cpu, gradients, models, relative, scored, tokens, values};

const SHAPE: Shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
const LENGTHS: [usize; 2] = [5, 12];

/// Ids and targets of a micro-batch.
struct Micro {
    ids: Vec<u32>,
    targets: Vec<u32>,
}

impl Micro {
    /// The first tokens of two sequences.
    fn of(stream: u64, seq: usize) -> Micro {
        let (ids, targets) = tokens(stream, 2);
        let cut = |all: &[u32]| all.chunks(SEQ).flat_map(|row| &row[..seq]).copied().collect();
        Micro { ids: cut(&ids), targets: cut(&targets) }
    }

    /// Pads to the longest length.
    fn padded(&self) -> Micro {
        let pad = |all: &[u32], with: u32| {
            let rows = all.chunks(all.len() / 2);
            rows.flat_map(|row| row.iter().copied().chain(std::iter::repeat(with)).take(SEQ)).collect()
        };
        Micro { ids: pad(&self.ids, 0), targets: pad(&self.targets, IGNORED) }
    }

    fn batch(&self) -> TokenBatch<'_> {
        TokenBatch { ids: &self.ids, targets: &self.targets, positions: None }
    }
}

/// A step of micro-batches of these lengths.
fn step() -> Vec<Micro> {
    [12, SEQ, 5, 5, SEQ, 12].iter().enumerate().map(|(m, seq)| Micro::of(m as u64, *seq)).collect()
}

fn contexts(step: &[Micro]) -> Vec<StepContext> {
    let all = step.iter().map(|m| scored(&m.targets)).sum();
    let of = |m: usize| StepContext { accumulate: m > 0, first_sequence: 2 * m as u64, ..context(3, all) };
    (0..step.len()).map(of).collect()
}

fn made(
    b: &mut dyn Backend,
    model: &Model,
    shape: Shape,
    lengths: &[usize],
    recompute: RecomputePlan,
) -> Decoder {
    let config = ActivationConfig { recompute, lengths: lengths.to_vec(), ..ActivationConfig::default() };
    let mut d = Decoder::with_activations(b, model, shape, config).unwrap();
    d.verify().unwrap();
    d.weigh_losses(&[WeighedLoss::z_loss(0.01)]).unwrap();
    for (i, p) in d.params().iter().enumerate() {
        d.write_param(b, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    d
}

/// Losses of the micro-batches, squared log-sum-exps, and gradients.
type Numbers = (Vec<(f64, u64, f64)>, Vec<Vec<f32>>);

fn run(b: &mut dyn Backend, d: &mut Decoder, step: &[Micro]) -> Numbers {
    let mut losses = Vec::new();
    for (micro, ctx) in step.iter().zip(contexts(step)) {
        let sum = d.forward_backward(b, &micro.batch(), &ctx).unwrap();
        losses.push((sum.nats, sum.scored, sum.auxiliary[0]));
    }
    (losses, gradients(b, d))
}

/// Padding carries no loss and no gradient, and real tokens see nothing of it.
#[test]
fn micro_batches_of_several_lengths_have_the_numbers_of_padded_ones() {
    // A capacity is one of the tokens of a micro-batch, padding among them.
    for (label, model) in all_kinds().into_iter().filter(|(_, model)| !tiny::has_capacity(model)) {
        let mut b = cpu(2);
        let step = step();
        let mut of_lengths = made(&mut b, &model, SHAPE, &LENGTHS, RecomputePlan::default());
        let (losses, gradients) = run(&mut b, &mut of_lengths, &step);
        let padded: Vec<Micro> = step.iter().map(Micro::padded).collect();
        let mut of_one = made(&mut b, &model, SHAPE, &[], RecomputePlan::default());
        let (wanted, wanted_gradients) = run(&mut b, &mut of_one, &padded);
        for (found, wanted) in losses.iter().zip(&wanted) {
            assert_eq!(found.1, wanted.1, "{label}");
            assert!((found.0 / wanted.0 - 1.0).abs() < 1e-6, "{label}: {found:?} {wanted:?}");
            assert!((found.2 / wanted.2 - 1.0).abs() < 1e-6, "{label}: {found:?} {wanted:?}");
        }
        for (found, wanted) in gradients.iter().zip(&wanted_gradients) {
            let off = relative(found, wanted);
            assert!(off < 1e-5, "{label}: {off}");
        }
    }
}

/// Earlier contents of the memory of longer micro-batches do not matter.
#[test]
fn a_length_has_the_bits_of_a_decoder_made_for_it() {
    for (label, model) in models() {
        let mut b = cpu(2);
        let mut of_lengths = made(&mut b, &model, SHAPE, &LENGTHS, RecomputePlan::default());
        run(&mut b, &mut of_lengths, &step());
        for seq in [5, 12, SEQ] {
            let step = [Micro::of(7, seq), Micro::of(8, seq)];
            let shape = Shape { seq, ..SHAPE };
            let mut alone = made(&mut b, &model, shape, &[], RecomputePlan::default());
            let (found, wanted) = (run(&mut b, &mut of_lengths, &step), run(&mut b, &mut alone, &step));
            assert!(found == wanted, "{label}, {seq} tokens");
        }
        assert_eq!(of_lengths.lengths().collect::<Vec<_>>(), [SEQ, 12, 5]);
        // The loss alone, token by token.
        let mut found = vec![0.0; 10];
        let micro = Micro::of(9, 5);
        of_lengths.loss(&mut b, &micro.batch(), Some(&mut found)).unwrap();
        let mut alone = made(&mut b, &model, Shape { seq: 5, ..SHAPE }, &[], RecomputePlan::default());
        let mut wanted = vec![0.0; 10];
        alone.loss(&mut b, &micro.batch(), Some(&mut wanted)).unwrap();
        assert_eq!(found, wanted, "{label}");
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let model = Model { dropout: 0.1, ..models()[1].1.clone() };
    let of = |threads: usize| {
        let mut b = cpu(threads);
        let mut d = made(&mut b, &model, SHAPE, &LENGTHS, RecomputePlan::default());
        run(&mut b, &mut d, &step())
    };
    let one = of(1);
    assert!(one == of(2) && one == of(3));
}

/// Sequences of one step draw from stretches of random numbers of their own, whatever their lengths.
#[test]
fn dropout_draws_other_numbers_for_each_sequence_of_a_step() {
    let model = Model { dropout: 0.5, ..models()[0].1.clone() };
    let mut b = cpu(1);
    let mut d = made(&mut b, &model, SHAPE, &[8], RecomputePlan::default());
    let micro = Micro::of(1, 8);
    let mut of = |first_sequence: u64| {
        let ctx = StepContext { first_sequence, ..context(3, scored(&micro.targets)) };
        d.forward_backward(&mut b, &micro.batch(), &ctx).unwrap().nats
    };
    // At half of the length sequences 4 and 2 would begin at one counter if it followed the length.
    assert!(of(2) != of(4) && of(2) == of(2));
    let (mut long, wide) = (Micro::of(1, 16), of(4));
    long.ids.truncate(32);
    let ctx = StepContext { first_sequence: 2, ..context(3, scored(&long.targets)) };
    assert!(d.forward_backward(&mut b, &long.batch(), &ctx).unwrap().nats != wide);
}

fn hand_over(b: &mut dyn Backend, from: View, to: View) {
    let mut values = vec![0.0; from.len()];
    b.read_f32(from, &mut values).unwrap();
    b.write_f32(to, &values).unwrap();
}

/// Two stages with two micro-batches in flight, of which each has a length of its own.
#[test]
fn stages_have_the_bits_of_the_whole_model() {
    for (label, model) in models() {
        for recompute in [Recompute::Selective, Recompute::Full] {
            let mut b = cpu(2);
            let step = step();
            let mut whole = made(&mut b, &model, SHAPE, &LENGTHS, recompute.into());
            let (wanted, wanted_gradients) = run(&mut b, &mut whole, &step);
            let tensor_shard = model.tensor_shard(1, 0).unwrap();
            let config = ActivationConfig {
                recompute: recompute.into(),
                lengths: LENGTHS.to_vec(),
                ..ActivationConfig::default()
            };
            let mut stages: Vec<Decoder> = Vec::new();
            for span in model.split(2).unwrap() {
                let stage = StageConfig { span, slots: 2, pending: 0, overlap: false, shadowing: None };
                let mut d = Decoder::of_stage(
                    &mut b,
                    &tensor_shard,
                    Stream::WHOLE,
                    SHAPE,
                    config.clone(),
                    &stage,
                    None,
                )
                .unwrap();
                d.weigh_losses(&[WeighedLoss::z_loss(0.01)]).unwrap();
                for (i, spec) in model.params().iter().enumerate() {
                    if d.params().iter().any(|p| p.spec.name == spec.name) {
                        d.write_param(&mut b, &spec.name, &values(i, spec)).unwrap();
                    }
                }
                stages.push(d);
            }
            let [first, last] = &mut stages[..] else { panic!("two stages") };
            let contexts = contexts(&step);
            let ranks = &mut OneDevice;
            let mut losses = Vec::new();
            let forward = |b: &mut dyn Backend, first: &mut Decoder, last: &mut Decoder, m: usize| {
                let (slot, batch) = (m % 2, step[m].batch());
                first.stage_forward(b, &mut OneDevice, slot, &batch, Some(&contexts[m])).unwrap();
                last.stage_length(slot, step[m].ids.len() / 2).unwrap();
                hand_over(b, first.stage_output(slot).unwrap(), last.stage_input(slot).unwrap());
                last.stage_forward(b, &mut OneDevice, slot, &batch, Some(&contexts[m])).unwrap();
            };
            forward(&mut b, first, last, 0);
            for m in 0..step.len() {
                if m + 1 < step.len() {
                    forward(&mut b, first, last, m + 1);
                }
                let sum = last.stage_backward(&mut b, ranks, m % 2, m > 0).unwrap().unwrap();
                losses.push((sum.nats, sum.scored, sum.auxiliary[0]));
                let (from, to) = (last.stage_input_gradient(m % 2), first.stage_output_gradient(m % 2));
                hand_over(&mut b, from.unwrap(), to.unwrap());
                first.stage_backward(&mut b, ranks, m % 2, m > 0).unwrap();
            }
            assert!(losses == wanted, "{label}, {recompute}");
            for (p, wanted) in whole.params().iter().zip(&wanted_gradients) {
                let holders: Vec<View> = stages
                    .iter()
                    .flat_map(|d| {
                        d.params().iter().filter(|q| q.spec.name == p.spec.name).filter_map(|q| q.grad)
                    })
                    .collect();
                // A tied table has a term of its gradient in each stage.
                if let [gradient] = holders[..] {
                    let mut found = vec![0.0; gradient.len()];
                    b.read_f32(gradient, &mut found).unwrap();
                    assert!(found == *wanted, "{label}, {recompute}, {}", p.spec.name);
                }
            }
        }
    }
}

fn activations(b: &NullBackend) -> u64 {
    b.memory().classes.iter().filter(|c| c.0 == "activations").map(|c| c.1.0).sum()
}

fn counted(model: &Model, shape: Shape, recompute: RecomputePlan, lengths: &[usize]) -> (u64, Decoder) {
    let mut b = NullBackend::new();
    let config = ActivationConfig { recompute, lengths: lengths.to_vec(), ..ActivationConfig::default() };
    let d = Decoder::with_activations(&mut b, model, shape, config).unwrap();
    d.verify().unwrap();
    (activations(&b), d)
}

fn input_aware(budget: u64) -> RecomputePlan {
    RecomputePlan { activation_memory: Some(Bytes(budget)), ..Recompute::InputAware.into() }
}

/// Activations of a decoder of several lengths are those of its longest one, but for the alignment of a few matrices.
#[test]
fn shorter_lengths_take_no_memory_of_their_own() {
    let model = named("gpt2-124m").unwrap();
    let shape = Shape { sequences: 2, seq: 512, purpose: Purpose::Train };
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        let alone = counted(&model, shape, recompute.into(), &[]).0;
        let several = counted(&model, shape, recompute.into(), &[64, 128, 256, 384]).0;
        assert!(several.abs_diff(alone) < alone / 1000, "{recompute}: {several} {alone}");
    }
}

/// Layers of a plan grow with the length, and the bytes stay under the budget.
#[test]
fn input_aware_plans_stay_under_the_budget_at_every_length() {
    let model = named("gpt2-124m").unwrap();
    let shape = Shape { sequences: 2, seq: 512, purpose: Purpose::Train };
    let lengths = [64, 128, 192, 256, 320, 384, 448];
    let none = counted(&model, shape, Recompute::None.into(), &lengths).0;
    let full = counted(&model, shape, Recompute::Full.into(), &lengths).0;
    assert!(full < none / 2);
    let mut before = 0;
    for tenths in [1, 3, 5, 7, 9] {
        let budget = full + (none - full) * tenths / 10;
        let (bytes, d) = counted(&model, shape, input_aware(budget), &lengths);
        assert!(bytes <= budget, "{bytes} {budget}");
        assert!(bytes > before, "more memory is used where there is more");
        before = bytes;
        let plans = d.plans_by_length();
        assert_eq!(plans.len(), 8);
        let counts: Vec<usize> = plans.iter().map(|plan| plan.recomputed.len()).collect();
        assert!(counts.is_sorted_by(|longer, shorter| longer >= shorter), "{counts:?}");
        assert!(counts[0] > 0 && counts[0] < 12 && counts[7] == 0, "{counts:?}");
        // One layer less at the longest length would be too much.
        let layers: Vec<usize> = plans[0].recomputed[1..].to_vec();
        let less = counted(&model, shape, RecomputePlan::full_in(&layers), &[]).0;
        assert!(less > budget, "{less} {budget}");
    }
    // Enough for everything, and less than recomputing every layer needs.
    let (bytes, d) = counted(&model, shape, input_aware(none), &lengths);
    assert!(bytes <= none && d.plans_by_length().iter().all(|plan| plan.recomputed.is_empty()));
    let (bytes, d) = counted(&model, shape, input_aware(full), &lengths);
    assert!(bytes <= full && d.plans_by_length()[0].recomputed.len() == 12);
    let config = ActivationConfig {
        recompute: input_aware(full - 1),
        lengths: lengths.to_vec(),
        ..ActivationConfig::default()
    };
    let refused = Decoder::with_activations(&mut NullBackend::new(), &model, shape, config).unwrap_err();
    let text = refused.to_string();
    let ModelError::ActivationMemory { least, .. } = refused else { panic!("{text}") };
    assert_eq!(least, Bytes(full));
    for part in ["train.activation_memory", "2 x 512 tokens", &Bytes(full).to_string()] {
        assert!(text.contains(part), "{text}");
    }
}

/// Recomputation changes no bit in f32 storage, whichever layers it takes at which length.
#[test]
fn input_aware_recomputation_changes_no_bit() {
    for (label, plain) in models() {
        let model = Model { dropout: 0.2, ..plain };
        let mut b = cpu(2);
        let of = |recompute: RecomputePlan| counted(&model, SHAPE, recompute, &LENGTHS).0;
        let (none, full) = (of(Recompute::None.into()), of(Recompute::Full.into()));
        let one = of(RecomputePlan::full_in(&[1]));
        let mut d = made(&mut b, &model, SHAPE, &LENGTHS, input_aware(one));
        assert!(full < one && one < none && d.plans_by_length()[0].recomputed.len() == 1, "{label}");
        let found = run(&mut b, &mut d, &step());
        let mut wanted = made(&mut b, &model, SHAPE, &LENGTHS, Recompute::None.into());
        assert!(found == run(&mut b, &mut wanted, &step()), "{label}");
    }
}

#[test]
fn what_does_not_go_with_several_lengths_is_refused() {
    let (model, mut b) = (&models()[0].1, NullBackend::new());
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let mut made = |lengths: &[usize], pending: usize, stored_micro_batches: usize| {
        let recompute = RecomputePlan { stored_micro_batches, ..RecomputePlan::default() };
        let config = ActivationConfig { lengths: lengths.to_vec(), recompute, ..ActivationConfig::default() };
        let stage =
            StageConfig { span: Span::whole(model), slots: 1, pending, overlap: false, shadowing: None };
        Decoder::of_stage(&mut b, &tensor_shard, Stream::WHOLE, SHAPE, config, &stage, None).map(drop)
    };
    made(&[SEQ, 5, 5], 0, 0).unwrap();
    for (lengths, pending, stored, named) in [
        (&[0][..], 0, 0, "wanted 1 to 16"),
        (&[17], 0, 0, "found 17"),
        (&[5], 1, 0, "parallel.schedule"),
        (&[5], 0, 1, "train.stored_micro_batches"),
    ] {
        let e = made(lengths, pending, stored).unwrap_err().to_string();
        assert!(e.contains(named), "{e}");
    }
    let mut b = cpu(1);
    let mut d = super::lengths::made(&mut b, model, SHAPE, &LENGTHS, RecomputePlan::default());
    let micro = Micro::of(1, 7);
    let e = d.forward_backward(&mut b, &micro.batch(), &context(0, 1)).unwrap_err().to_string();
    assert!(e.contains("wanted 16, 12, 5") && e.contains("found 7"), "{e}");
}

//! Activations in a second memory: losses and gradients keep their bits, and the moved and remaining bytes are as stated.

use crate::tiny;

use bessemer_arch::{Model, Span, named};
use bessemer_runtime::{
    ActivationConfig, Decoder, ModelError, OneDevice, Phase, Purpose, Ranks, Shape, StageConfig, StageRanks,
    Stream, TokenBatch,
};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::{Backend, Stream as DeviceStream, TensorError, View};
use bessemer_units::{Bytes, Compression, Offload, OffloadPlan, Recompute, RecomputePlan, Storage};
use std::collections::BTreeMap;
use tiny::{SEQ, all_kinds, context, cpu, gradients, scored, tokens, values};

/// A second memory: values by first byte. A read removes the value, so that no stale value is read.
#[derive(Default)]
struct Second {
    held: BTreeMap<u64, Vec<u8>>,
    written: u64,
    read: u64,
    end: u64,
}

impl Ranks for Second {
    fn offload(&mut self, backend: &mut dyn Backend, at: u64, src: View) -> Result<(), TensorError> {
        let mut bytes = vec![0; src.len() * src.dtype().size()];
        backend.read_bytes(DeviceStream::Compute, src, &mut bytes)?;
        self.written += bytes.len() as u64;
        self.end = self.end.max(at + bytes.len() as u64);
        let before = self.held.range(..=at).next_back().map_or(0, |(from, bytes)| from + bytes.len() as u64);
        assert!(
            before <= at && self.held.range(at..at + bytes.len() as u64).next().is_none(),
            "overlap at {at}"
        );
        self.held.insert(at, bytes);
        Ok(())
    }

    fn reload(&mut self, backend: &mut dyn Backend, at: u64, dst: View) -> Result<(), TensorError> {
        let bytes = self.held.remove(&at).unwrap();
        self.read += bytes.len() as u64;
        backend.write_bytes(DeviceStream::Compute, dst, &bytes)
    }
}

impl StageRanks for Second {}

/// Losses of micro-batches of two sequences of these lengths, and the gradients of the last.
fn run(model: &Model, config: ActivationConfig, lengths: &[usize]) -> (Vec<u64>, Vec<Vec<f32>>) {
    let (mut b, mut second) = (cpu(2), Second::default());
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let offloads = config.offload.is_on();
    let mut d = Decoder::with_activations(&mut b, model, shape, config).unwrap();
    d.verify().unwrap();
    for (i, p) in d.params().iter().enumerate() {
        d.write_param(&mut b, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    let mut losses = Vec::new();
    for (step, seq) in lengths.iter().enumerate() {
        let (ids, targets) = tokens(5 + step as u64, 2);
        let (ids, targets) = (&ids[..2 * seq], &targets[..2 * seq]);
        let batch = TokenBatch { ids, targets, positions: None };
        let ctx = context(step as u64, scored(targets));
        losses.push(d.forward_backward_through(&mut b, &mut second, &batch, &ctx).unwrap().nats.to_bits());
        assert!(second.held.is_empty(), "what has been written has been read");
    }
    let all = lengths.len() as u64;
    let [written, read] = [Phase::Forward, Phase::Backward].map(|phase| d.offload_traffic(phase));
    if lengths.iter().all(|seq| *seq == SEQ) {
        assert_eq!((second.written, second.read), (all * written, all * read));
    }
    assert_eq!((written, written > 0), (read, offloads));
    assert!(second.end <= d.offload_layout().bytes());
    (losses, gradients(&mut b, &d))
}

#[test]
fn losses_and_gradients_keep_their_bits() {
    for (label, plain) in all_kinds() {
        let model = Model { dropout: 0.2, ..plain };
        for (storage, form) in [
            (Storage::F32, Compression::None),
            (Storage::Bf16, Compression::None),
            (Storage::F32, Compression::Int8),
        ] {
            for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
                let config = |offload: OffloadPlan| ActivationConfig {
                    storage,
                    recompute: recompute.into(),
                    compression: form.into(),
                    offload,
                    ..ActivationConfig::default()
                };
                let here = run(&model, config(OffloadPlan::default()), &[SEQ; 2]);
                for layers in [0, 1] {
                    let away = run(&model, config(OffloadPlan { to: Offload::Disk, layers }), &[SEQ; 2]);
                    assert!(here == away, "{label} {storage} {form} {recompute} {layers}");
                }
            }
        }
    }
}

#[test]
fn micro_batches_of_several_lengths_keep_their_bits() {
    for (label, model) in all_kinds() {
        let config = |offload: Offload| ActivationConfig {
            lengths: vec![SEQ / 2],
            offload: offload.into(),
            ..ActivationConfig::default()
        };
        let lengths = [SEQ, SEQ / 2, SEQ, SEQ / 2];
        let [here, away] = [Offload::None, Offload::Disk].map(|to| run(&model, config(to), &lengths));
        assert!(here == away, "{label}");
    }
}

/// Bytes of one more micro-batch in flight in four layers of GPT-2 124M at 1 x 1024 tokens: indices, and the stream at both ends of
/// the stage. In the second memory: the values that `recompute` leaves stored, in whole pages.
#[test]
fn a_micro_batch_keeps_the_ends_of_the_stream_and_the_rest_is_away() {
    let model = named("gpt2-124m").unwrap();
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let (sbh, lse, statistics) = (1024 * 768u64, 4 * 12 * 1024, 2 * 2 * 4 * 1024);
    for (storage, size) in [(Storage::F32, 4), (Storage::Bf16, 2)] {
        for (recompute, layer) in [
            (Recompute::None, 16 * sbh * size + lse + statistics),
            (Recompute::Selective, 10 * sbh * size + lse),
            (Recompute::Attention, 9 * sbh * size),
            (Recompute::AttentionOutput, 2 * sbh * size + lse),
            (Recompute::Full, sbh * size),
        ] {
            let of = |slots: usize| {
                let span = Span { embedding: false, layers: 4..8, head: false };
                let stage = StageConfig { span, slots, pending: 0, overlap: false, shadowing: None };
                let (recompute, offload) = (recompute.into(), Offload::Disk.into());
                let config = ActivationConfig { storage, recompute, offload, ..ActivationConfig::default() };
                let mut b = NullBackend::new();
                let shape = Shape { sequences: 1, seq: 1024, purpose: Purpose::Train };
                let d = Decoder::of_stage(&mut b, &tensor_shard, Stream::WHOLE, shape, config, &stage, None)
                    .unwrap();
                let held = b.memory().classes.iter().find(|c| c.0 == "activations").unwrap().1;
                (
                    held,
                    d.offload_layout().bytes(),
                    [Phase::Forward, Phase::Backward].map(|phase| d.offload_traffic(phase)),
                )
            };
            let ((two, away, traffic), (one, ..)) = (of(2), of(1));
            assert_eq!(two - one, Bytes(3 * 4 * 1024 + 2 * size * sbh), "{storage} {recompute}");
            assert_eq!(traffic, [4 * layer; 2], "{storage} {recompute}");
            assert!((8 * layer..8 * (layer + 16 * 4096)).contains(&away), "{storage} {recompute}: {away}");
        }
    }
}

#[test]
fn a_pass_without_a_second_memory_is_an_error() {
    let (_, model) = all_kinds().into_iter().next().unwrap();
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let config = ActivationConfig { offload: Offload::Disk.into(), ..ActivationConfig::default() };
    let mut b = cpu(1);
    let mut d = Decoder::with_activations(&mut b, &model, shape, config).unwrap();
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let e = d
        .forward_backward_through(&mut b, &mut OneDevice, &batch, &context(3, scored(&targets)))
        .unwrap_err();
    assert!(e.to_string().contains("there is no second memory"), "{e}");
}

/// Bytes of activations, and the decoder.
fn planned(model: &Model, shape: Shape, config: ActivationConfig) -> Result<(u64, Decoder), ModelError> {
    let mut b = NullBackend::new();
    let d = Decoder::with_activations(&mut b, model, shape, config)?;
    d.verify().unwrap();
    let classes = b.memory().classes;
    Ok((classes.iter().find(|class| class.0 == "activations").unwrap().1.0, d))
}

fn under(budget: u64, layers: usize, lengths: &[usize]) -> ActivationConfig {
    ActivationConfig {
        recompute: RecomputePlan { activation_memory: Some(Bytes(budget)), ..Recompute::InputAware.into() },
        offload: OffloadPlan { to: Offload::Disk, layers },
        lengths: lengths.to_vec(),
        ..ActivationConfig::default()
    }
}

/// The fewest layers, from the first one on, whose offload fits the budget; layers that may not be offloaded recompute after them.
#[test]
fn a_budget_offloads_the_fewest_layers_and_then_recomputes() {
    let model = named("gpt2-124m").unwrap();
    let shape = Shape { sequences: 2, seq: 512, purpose: Purpose::Train };
    let lengths = [64, 128, 256, 384];
    // Layers that offload whatever the budget is, in one arena as under a budget.
    let fixed = |layers: usize, again: &[usize]| {
        let offload = match layers {
            0 => OffloadPlan::default(),
            layers => OffloadPlan { to: Offload::Disk, layers },
        };
        let recompute = RecomputePlan::full_in(again);
        let config =
            ActivationConfig { recompute, offload, lengths: vec![64], ..ActivationConfig::default() };
        planned(&model, shape, config).unwrap().0
    };
    let (none, all) = (fixed(0, &[]), fixed(12, &[]));
    assert!(all < none / 3, "{all} {none}");
    for tenths in [1, 3, 6, 9] {
        let budget = all + (none - all) * tenths / 10;
        let (bytes, d) = planned(&model, shape, under(budget, 0, &lengths)).unwrap();
        assert!(bytes <= budget, "{bytes} {budget}");
        let plans = d.plans_by_length();
        let counts: Vec<usize> = plans.iter().map(|plan| plan.offloaded.len()).collect();
        assert!(plans.iter().all(|plan| plan.recomputed.is_empty()), "{plans:?}");
        assert!(plans.iter().all(|plan| plan.offloaded.iter().enumerate().all(|(at, layer)| at == *layer)));
        assert!(
            counts.is_sorted_by(|longer, shorter| longer >= shorter) && counts[4] < counts[0],
            "{counts:?}"
        );
        assert!((1..12).contains(&counts[0]) && fixed(counts[0] - 1, &[]) > budget, "{counts:?} {budget}");
    }
    // Three layers may be offloaded: the others recompute, as few as suffice.
    let budget = all + (none - all) / 2;
    let (bytes, d) = planned(&model, shape, under(budget, 3, &lengths)).unwrap();
    let plan = &d.plans_by_length()[0];
    assert!(bytes <= budget && plan.offloaded == [0, 1, 2], "{bytes} {budget} {plan:?}");
    assert!(!plan.recomputed.is_empty() && plan.recomputed.iter().all(|layer| *layer > 2), "{plan:?}");
    assert!(fixed(3, &plan.recomputed[1..]) > budget, "{plan:?}");
    // Too little, with every layer offloaded, and with three of them.
    let with = |layers: usize, budget: u64| match planned(&model, shape, under(budget, layers, &lengths)) {
        Err(ModelError::ActivationMemory { least, with, .. }) => (least, with),
        other => panic!("{other:?}"),
    };
    assert_eq!(with(0, all - 1), (Bytes(all), "every layer offloaded".into()));
    let (least, text) = with(3, all - 1);
    assert_eq!(
        (least.0, text.as_str()),
        (fixed(3, &[3, 4, 5, 6, 7, 8, 9, 10, 11]), "3 layers offloaded and the others recomputed")
    );
}

/// Every length, with every number of layers that may be offloaded.
#[test]
fn a_budget_that_offloads_changes_no_bit() {
    let (_, plain) = all_kinds().into_iter().next().unwrap();
    let model = Model { layers: 4, dropout: 0.2, ..plain };
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let lengths = vec![SEQ / 2];
    let keeps = ActivationConfig { lengths: lengths.clone(), ..ActivationConfig::default() };
    let steps = [SEQ, SEQ / 2, SEQ];
    let wanted = run(&model, keeps.clone(), &steps);
    let none = planned(&model, shape, keeps).unwrap().0;
    let mut seen = Vec::new();
    for may in [0, 1, 2] {
        let least = match planned(&model, shape, under(1, may, &lengths)) {
            Err(ModelError::ActivationMemory { least, .. }) => least.0,
            other => panic!("{other:?}"),
        };
        for budget in [least, (least + none) / 2] {
            let config = under(budget, may, &lengths);
            let plan = planned(&model, shape, config.clone()).unwrap().1.plans_by_length()[0].clone();
            seen.push((plan.offloaded.len(), plan.recomputed.len()));
            assert!(run(&model, config, &steps) == wanted, "{budget} {plan:?}");
        }
    }
    assert!(seen.contains(&(4, 0)) && seen.contains(&(1, 3)) && seen.contains(&(2, 2)), "{seen:?}");
}

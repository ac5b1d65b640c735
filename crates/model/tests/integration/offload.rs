//! Activations in a second memory: losses and gradients keep their bits, and what moves and stays is what is stated.

use crate::tiny;

use bessemer_arch::{Model, Span, named};
use bessemer_model::{
    ActivationConfig, Decoder, OneDevice, Phase, Purpose, Ranks, Shape, StageConfig, StageRanks, Stream,
    TokenBatch,
};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::{Bytes, Compression, Offload, OffloadPlan, Recompute, RecomputePlan, Storage};
use std::collections::BTreeMap;
use tiny::{SEQ, all_kinds, context, cpu, gradients, scored, tokens, values};

/// A second memory: what lies at each first byte. What is read is gone, so that nothing stale is read.
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
        backend.read_bytes(src, &mut bytes)?;
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
        backend.write_bytes(dst, &bytes)
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

/// What one more micro-batch in flight takes in four layers of GPT-2 124M at 1 x 1024 tokens: indices, and the stream at both ends of
/// the stage. In the second memory: what `recompute` leaves stored, in whole pages.
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
                let stage = StageConfig { span, slots, pending: 0, overlap: false };
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
    let mut d = Decoder::with_activations(&mut b, &model, shape, config.clone()).unwrap();
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let e = d
        .forward_backward_through(&mut b, &mut OneDevice, &batch, &context(3, scored(&targets)))
        .unwrap_err();
    assert!(e.to_string().contains("there is no second memory"), "{e}");
    // A budget plans what is kept on the device.
    let recompute = RecomputePlan { activation_memory: Some(Bytes(1 << 20)), ..Recompute::InputAware.into() };
    let config = ActivationConfig { recompute, ..config };
    let e = Decoder::with_activations(&mut b, &model, shape, config).unwrap_err().to_string();
    assert!(e.contains("input-aware") && e.contains("train.offload"), "{e}");
}

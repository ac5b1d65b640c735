//! Activations in the memory of gradients: losses and gradients keep their bits, memory is as stated, and configurations that would lose
//! gradients are refused.

use crate::tiny;

use bessemer_arch::{Model, Span, named};
use bessemer_runtime::{
    ActivationConfig, Decoder, OneDevice, Param, Purpose, Shape, SlotMemory, StageConfig, StepContext,
    Stream, TokenBatch, Unit,
};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::{DType, Offload, Recompute, Storage};
use tiny::{SEQ, all_kinds, context, cpu, gradients, scored, tokens, values};

const SHAPE: Shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };

fn bytes(backend: &NullBackend, class: &str) -> u64 {
    backend.memory().classes.iter().find(|c| c.0 == class).map_or(0, |c| c.1.0)
}

/// Losses and gradients of every one of several passes, a loss without gradients before each.
fn run(model: &Model, config: ActivationConfig) -> Vec<(u64, Vec<Vec<f32>>)> {
    let mut b = cpu(2);
    let mut d = Decoder::with_activations(&mut b, model, SHAPE, config).unwrap();
    d.verify().unwrap();
    for (i, p) in d.params().iter().enumerate() {
        d.write_param(&mut b, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    let pass = |step: u64| {
        let (ids, targets) = tokens(5 + step, SHAPE.sequences);
        let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
        d.loss(&mut b, &batch, None).unwrap();
        let sum = d.forward_backward(&mut b, &batch, &context(step, scored(&targets))).unwrap();
        (sum.nats.to_bits(), gradients(&mut b, &d))
    };
    (0..3).map(pass).collect()
}

#[test]
fn losses_and_gradients_keep_their_bits() {
    for (label, plain) in all_kinds() {
        // Learned positions beyond the sequences have gradients too: zeros, whatever has lain there.
        let model = Model { layers: 4, dropout: 0.1, context: 2 * SEQ, ..plain };
        for storage in [Storage::F32, Storage::Bf16] {
            for recompute in [Recompute::None, Recompute::Selective, Recompute::Attention, Recompute::Full] {
                let own =
                    ActivationConfig { storage, recompute: recompute.into(), ..ActivationConfig::default() };
                let shared = ActivationConfig { in_gradients: true, ..own.clone() };
                let bytes = |config: &ActivationConfig| {
                    let mut null = NullBackend::new();
                    Decoder::with_activations(&mut null, &model, SHAPE, config.clone()).unwrap();
                    [bytes(&null, "activations"), bytes(&null, "gradients"), bytes(&null, "weights")]
                };
                let (before, after) = (bytes(&own), bytes(&shared));
                assert!(after[0] < before[0], "{label} {storage} {recompute}: {after:?}");
                assert_eq!(after[1..], before[1..]);
                assert!(run(&model, own) == run(&model, shared), "{label} {storage} {recompute}");
            }
        }
    }
}

/// Parameters, with the gradients of a layer in one buffer: of its own, or one in which all layers alternate.
fn placed(backend: &mut dyn Backend, model: &Model, by_turns: bool) -> Vec<Param> {
    let shape = Shape { sequences: 1, seq: 1, purpose: Purpose::Train };
    let mut params = Decoder::new(&mut NullBackend::new(), model, shape).unwrap().params().to_vec();
    let mut place = None;
    for unit in params.chunk_by_mut(|a, b| a.spec.id.unit() == b.spec.id.unit()) {
        let len = unit.iter().map(|p| p.spec.len()).sum();
        let layer = matches!(unit[0].spec.id.unit(), Unit::Layer(_));
        let mut buffer = |class| {
            let spec = BufferSpec { class, name: "of a unit", dtype: DType::F32, len };
            backend.alloc(spec).unwrap().vector()
        };
        let (values, gradients) = (
            buffer("weights"),
            match by_turns && layer {
                true => *place.get_or_insert_with(|| buffer("gradients")),
                false => buffer("gradients"),
            },
        );
        let mut offset = 0;
        for p in unit {
            let (rows, cols) = p.spec.matrix();
            let within = |whole| View { offset, rows, cols, stride: cols, ..whole };
            (p.value, p.grad) = (within(values), p.grad.map(|_| within(gradients)));
            offset += p.spec.len();
        }
    }
    params
}

/// Bytes of activations of GPT-2 with so many layers and sequences of 256 tokens.
fn of_layers(layers: usize, sequences: usize, in_gradients: bool) -> u64 {
    let model = Model { layers, ..named("gpt2-124m").unwrap() };
    let shape = Shape { sequences, seq: 256, purpose: Purpose::Train };
    let mut null = NullBackend::new();
    let params = placed(&mut null, &model, false);
    let config = ActivationConfig { in_gradients, ..ActivationConfig::default() };
    Decoder::with_params(&mut null, &model, shape, config, params).unwrap();
    bytes(&null, "activations")
}

/// A layer of width D has 12 D^2 + 13 D gradients. For T tokens it keeps its input, queries, keys and values, the output of
/// attention, the stream after it and 4 D before the activation function: 10 T D numbers and T for each head.
#[test]
fn layers_that_keep_less_than_their_gradients_take_no_memory_for_it() {
    let own = |sequences| of_layers(9, sequences, false) - of_layers(8, sequences, false);
    let shared = |sequences| of_layers(9, sequences, true) - of_layers(8, sequences, true);
    let numbers = |sequences: u64| 4 * sequences * 256 * (10 * 768 + 12);
    for sequences in 1..=3 {
        assert_eq!((own(sequences), shared(sequences)), (numbers(sequences as u64), 0));
    }
    // 10 x 1,024 x 768 numbers are more than 12 x 768 x 768: one matrix has no room, nor have 12 numbers for each token.
    assert_eq!((own(4), shared(4)), (numbers(4), 4 * 1024 * (768 + 12)));
}

#[test]
fn gradients_that_share_their_memory_by_turns_hold_nothing() {
    let model = Model { layers: 4, ..named("gpt2").unwrap() };
    for by_turns in [false, true] {
        let mut b = NullBackend::new();
        let params = placed(&mut b, &model, by_turns);
        let layers = params.iter().filter(|p| matches!(p.spec.id.unit(), Unit::Layer(_)));
        let buffers: Vec<u32> = layers.filter_map(|p| Some(p.grad?.buffer.id)).collect();
        let config = ActivationConfig { in_gradients: true, ..ActivationConfig::default() };
        let d = Decoder::with_params(&mut b, &model, SHAPE, config, params).unwrap();
        let held = d.traces().into_iter().flat_map(|t| [t.stream, t.queries]);
        let held = held.filter(|view| buffers.contains(&view.buffer.id)).count();
        // Streams and queries of all layers but the first.
        assert_eq!(held, if by_turns { 0 } else { 6 });
    }
}

#[test]
fn what_would_lose_gradients_is_refused() {
    let model = Model { layers: 4, ..named("gpt2").unwrap() };
    let config = ActivationConfig { in_gradients: true, ..ActivationConfig::default() };
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let refused = |config: &ActivationConfig, slots: usize, pending: usize| {
        let stage = StageConfig { slots, pending, ..StageConfig::whole(&model) };
        let mut b = NullBackend::new();
        let made =
            Decoder::of_stage(&mut b, &tensor_shard, Stream::WHOLE, SHAPE, config.clone(), &stage, None);
        made.unwrap_err().to_string()
    };
    assert!(refused(&config, 2, 0).contains("found 2 micro-batches at a time"));
    assert!(refused(&config, 1, 1).contains("found backward passes in two parts"));
    let lengths = ActivationConfig { lengths: vec![SEQ / 2], ..config.clone() };
    assert!(refused(&lengths, 1, 0).contains("found micro-batches of several lengths"));
    let offload = ActivationConfig { offload: Offload::Disk.into(), ..config.clone() };
    assert!(refused(&offload, 1, 0).contains("found offloaded activations"));

    let mut b = cpu(1);
    let of = |layers, embedding, head| StageConfig {
        span: Span { embedding, layers, head },
        ..StageConfig::whole(&model)
    };
    let (first, second) = (of(0..2, true, false), of(2..4, false, true));
    let stage =
        Decoder::of_stage(&mut b, &tensor_shard, Stream::WHOLE, SHAPE, config.clone(), &first, None).unwrap();
    let beside = stage.of_stage_beside(&mut b, &second, None, SlotMemory::Shared);
    assert!(beside.unwrap_err().to_string().contains("found slots that two stages share"));

    let mut d = Decoder::with_activations(&mut b, &model, SHAPE, config).unwrap();
    d.init(&mut b, 1).unwrap();
    let (ids, targets) = tokens(5, SHAPE.sequences);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let adds = StepContext { accumulate: true, ..context(0, scored(&targets)) };
    let error = d.forward_backward(&mut b, &batch, &adds).unwrap_err().to_string();
    assert!(error.contains("wanted a pass that replaces the gradients"), "{error}");
    d.stage_release(0).unwrap();
    d.stage_forward(&mut b, &mut OneDevice, 0, &batch, Some(&adds)).unwrap();
    assert!(d.stage_backward(&mut b, &mut OneDevice, 0, true).is_err());
    d.stage_backward(&mut b, &mut OneDevice, 0, false).unwrap();
}

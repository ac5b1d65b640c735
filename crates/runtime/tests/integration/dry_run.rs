//! The model on the null backend: memory and FLOPs against written formulas, at sizes that no test machine holds.

use crate::tiny;

use bessemer_arch::{MlpKind, Model, NormChoice, Placement, named};
use bessemer_runtime::{
    ActivationConfig, Cache, CacheShape, Decoder, ModelError, Purpose, Shape, StepContext, TokenBatch,
};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::{DropoutMask, Op};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::{Bytes, Recompute, Storage};
use std::collections::HashMap;

fn class(backend: &NullBackend, name: &str) -> u64 {
    backend.memory().classes.iter().find(|c| c.0 == name).map_or(0, |c| c.1.0)
}

/// Numbers that a normalisation keeps for each row.
fn stats(m: &Model) -> usize {
    match m.norm {
        NormChoice::LayerNorm => 2,
        NormChoice::RmsNorm => 1,
        NormChoice::None => 0,
    }
}

/// Outputs of maps with magnitudes, whose products are kept for the gradients of the magnitudes.
fn magnitudes(m: &Model) -> usize {
    let adapters = m.adapters.iter().filter(|adapters| adapters.magnitude);
    adapters.flat_map(|adapters| &adapters.targets).map(|target| target.outputs(m).len()).sum()
}

/// Bytes of activations planned by hand: letters as in the crate's documentation.
fn activation_bytes(m: &Model, shape: Shape, config: &ActivationConfig) -> u64 {
    let n = shape.tokens();
    let (l, d, f, v) = (m.layers, m.width, m.ffn_width, m.vocab_size);
    let (j, a) = ((m.heads + 2 * m.kv_heads) * m.head_dim, m.heads * m.head_dim);
    let p = if m.mlp() == MlpKind::Gated { 2 * f } else { f };
    let (stats, o) = (stats(m), magnitudes(m));
    let heads = m.heads + m.kv_heads;
    let (k, rstd) = if m.qk_norm { (heads * m.head_dim, heads) } else { (0, 0) };
    let indices = 4 + usize::from(m.document_end.is_some());
    let last = if m.placement == Placement::Pre { stats } else { 0 };
    let bht = shape.sequences * m.heads * shape.seq;
    let logits = n.min(16) * v;
    let again = config.recompute == Recompute::Selective.into();
    let sides = match (m.norm, m.placement) {
        (NormChoice::None, _) => 0,
        (_, Placement::Pre) if again => 1,
        _ => 2 * l,
    };
    let bytes = match shape.purpose {
        Purpose::Train => {
            let hidden = if again { f } else { l * f };
            let s = if config.storage == Storage::Bf16 { 2 } else { 4 };
            let stored =
                (2 * l + 1) * d + l * (j + a + p + k + o) + sides * d + hidden + 2 * d + f.max(j + a + k);
            let squares = l * o;
            s * (n * stored + logits)
                + 4 * (squares + n * (2 * l * stats + l * rstd + last + indices + 1) + l * bht)
        }
        Purpose::Score => {
            let row =
                2 * d + j + a + p + k + o + sides.min(1) * d + f + 2 * d + stats + rstd + last + indices;
            4 * (n * row + o + bht + logits)
        }
    };
    bytes as u64
}

#[test]
fn bytes_of_each_class_are_no_more_than_a_plan_by_hand() {
    let published = ["gpt2", "gpt2-124m", "llama", "llama-8b", "llama2-70b", "mistral-7b"];
    let published = published.map(|name| (name, named(name).unwrap()));
    for (name, m) in published.into_iter().chain(tiny::dense_kinds()) {
        for (purpose, storage, recompute) in [
            (Purpose::Train, Storage::F32, Recompute::None),
            (Purpose::Train, Storage::F32, Recompute::Selective),
            (Purpose::Train, Storage::Bf16, Recompute::None),
            (Purpose::Train, Storage::Bf16, Recompute::Selective),
            (Purpose::Score, Storage::Bf16, Recompute::None),
            (Purpose::Score, Storage::F32, Recompute::Selective),
        ] {
            let mut b = NullBackend::new();
            let shape = Shape { sequences: 3, seq: m.context / 2, purpose };
            let config =
                ActivationConfig { storage, recompute: recompute.into(), ..ActivationConfig::default() };
            Decoder::with_activations(&mut b, &m, shape, config.clone()).unwrap();
            let weights = 4 * m.parameters() as u64;
            assert_eq!(class(&b, "weights"), weights, "{name}");
            let gradients = if purpose == Purpose::Train { weights } else { 0 };
            assert_eq!(class(&b, "gradients"), gradients, "{name}");
            let wanted = activation_bytes(&m, shape, &config);
            let found = class(&b, "activations");
            // Every scratch value begins at a multiple of 256 bytes.
            assert!(found <= wanted + 256 * 40, "{name} {purpose:?} {config:?}: {found} above {wanted}");
        }
    }
}

#[test]
fn bytes_of_the_cache_are_no_more_than_a_plan_by_hand() {
    for (name, sequences, capacity) in
        [("gpt2-124m", 1, 1024), ("llama-8b", 5, 100), ("llama", 300, 7), ("gpt2", 2, 3)]
    {
        let m = named(name).unwrap();
        let mut b = NullBackend::new();
        let d = Decoder::new(&mut b, &m, Shape { sequences: 1, seq: 1, purpose: Purpose::Score }).unwrap();
        Cache::new(&mut b, &d, CacheShape::slots(sequences, capacity)).unwrap();
        let r = sequences.max(capacity.min(128));
        let (d, f, v) = (m.width, m.ffn_width, m.vocab_size);
        let (j, a, g) = (m.qkv_width(), m.attention_width(), m.kv_heads * m.head_dim);
        let p = m.mlp_in_width();
        let stats = stats(&m);
        let elements = 2 * m.layers * sequences * capacity * g
            + r * (4 * d + j + a + p + f + stats + 2 + 3)
            + sequences * (v + d);
        let (found, wanted) = (class(&b, "cache"), 4 * elements as u64);
        assert!(found <= wanted + 256 * 40, "{name}: {found} above {wanted}");
    }
}

#[test]
fn products_of_a_step_cost_six_flops_a_parameter_and_token() {
    for name in ["gpt2-124m", "llama-8b", "llama-1b"] {
        let m = named(name).unwrap();
        let mut b = NullBackend::new();
        let shape = Shape { sequences: 2, seq: 256, purpose: Purpose::Train };
        let mut d = Decoder::new(&mut b, &m, shape).unwrap();
        let tokens = vec![1; shape.tokens()];
        let batch = TokenBatch { ids: &tokens, targets: &tokens, positions: None };
        let ctx = StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
        b.reset_counts();
        d.forward_backward(&mut b, &batch, &ctx).unwrap();
        let of = |names: &[&str]| names.iter().map(|n| b.counts()[n].flops.0).sum::<f64>();
        let products =
            of(&["linear", "linear_backward_input", "linear_backward_weight", "linear_cross_entropy"]);
        assert_eq!(products, 6.0 * m.product_parameters() as f64 * shape.tokens() as f64, "{name}");
        // Two products forward and five backward over the causal half, against PaLM's 3 * 2 over the full square.
        let attention = of(&["attention", "attention_backward"]);
        let full = m.train_flops_per_token(256).0 - 6.0 * m.product_parameters() as f64;
        let half = full * shape.tokens() as f64 * (7.0 / 6.0) / 2.0 * (257.0 / 256.0);
        assert!((attention / half - 1.0).abs() < 1e-12, "{name}: {attention} {half}");
    }
}

#[test]
fn impossible_shapes_batches_and_names_are_refused_with_a_reason() {
    let m = named("gpt2").unwrap();
    let mut b = NullBackend::new();
    let mut make = |sequences, seq| {
        Decoder::new(&mut b, &m, Shape { sequences, seq, purpose: Purpose::Score }).unwrap_err().to_string()
    };
    assert!(make(1, 257).contains("1 to the model's context of 256, found 257"));
    assert!(make(1, 0).contains("found 0"));
    assert!(make(0, 8).starts_with("sequences"));
    assert!(make(usize::MAX / 2, 8).starts_with("sequences"));

    let mut d = Decoder::new(&mut b, &m, Shape { sequences: 2, seq: 4, purpose: Purpose::Score }).unwrap();
    let ok = [3u32; 8];
    let batch = TokenBatch { ids: &ok, targets: &ok, positions: None };
    let ctx = StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
    assert!(matches!(d.forward_backward(&mut b, &batch, &ctx), Err(ModelError::NotForTraining)));
    let mut loss = |batch: TokenBatch<'_>| d.loss(&mut b, &batch, None).map_err(|e| e.to_string());
    loss(batch).unwrap();
    loss(TokenBatch { targets: &[bessemer_tensor::op::IGNORED; 8], ..batch }).unwrap();
    assert!(loss(TokenBatch { ids: &ok[..7], ..batch }).unwrap_err().contains("2 sequences of 4 tokens = 8"));
    let far = [0, 0, 0, 0, 0, 50257, 0, 0];
    assert!(loss(TokenBatch { ids: &far, ..batch }).unwrap_err().contains("ids[5] = 50257"));
    assert!(loss(TokenBatch { targets: &far, ..batch }).unwrap_err().contains("targets[5]"));
    let late = [0, 0, 256, 0, 0, 0, 0, 0];
    assert!(loss(TokenBatch { positions: Some(&late), ..batch }).unwrap_err().contains("positions[2] = 256"));
    let e = d.loss(&mut b, &batch, Some(&mut [0.0; 7])).unwrap_err().to_string();
    assert!(e.contains("per_token") && e.contains('7'), "{e}");

    let e = d.write_param(&mut b, "layers.1.attention.qvk.weight", &[]).unwrap_err().to_string();
    assert!(e.contains("nearest: layers.1.attention.qkv.weight"), "{e}");
    let e = d.write_param(&mut b, "final_norm.bias", &[0.0; 3]).unwrap_err().to_string();
    assert!(e.contains("final_norm.bias: wanted 256 values for shape [256], found 3"), "{e}");

    let e = Cache::new(&mut b, &d, CacheShape::one(257)).unwrap_err().to_string();
    assert!(e.contains("context of 256"), "{e}");
    let mut cache = Cache::new(&mut b, &d, CacheShape::slots(2, 5)).unwrap();
    assert!(d.decode(&mut b, &mut cache, 0, &[]).is_err());
    assert!(d.decode(&mut b, &mut cache, 0, &[50257, 0]).is_err());
    assert_eq!(cache.len(0), 0);
    d.decode(&mut b, &mut cache, 0, &[1; 4]).unwrap();
    assert_eq!((cache.len(0), cache.len(1)), (4, 0));
    let e = d.decode(&mut b, &mut cache, 0, &[1; 2]).unwrap_err().to_string();
    assert!(e.contains("holds 4 of 5 positions, 2 more"), "{e}");
    cache.truncate(0, 3);
    d.decode(&mut b, &mut cache, 0, &[1; 2]).unwrap();
}

/// A mask with the values of its counters at the launch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Drawn {
    p: f32,
    key: RngKey,
    first: u64,
}

/// The null backend, with a list of the dropout masks launched.
#[derive(Default)]
struct Masks {
    null: NullBackend,
    /// Indexed by buffer: u32 words that were written last.
    words: HashMap<u32, Vec<u32>>,
    forward: Vec<Drawn>,
    backward: Vec<Drawn>,
    loss_seen: bool,
}

impl Backend for Masks {
    fn name(&self) -> &str {
        "masks"
    }
    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        self.null.alloc(spec)
    }
    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError> {
        self.null.workspace(op)
    }
    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.null.reserve_workspace(bytes)
    }
    fn launch(&mut self, stream: Stream, op: &Op) -> Result<(), TensorError> {
        self.loss_seen |= matches!(op, Op::LinearCrossEntropy(_));
        let mask = match op {
            Op::Dropout(o) => Some(o.mask),
            Op::Attention(o) => o.dropout.map(|d| d.mask),
            Op::AttentionBackward(o) => o.dropout.map(|d| d.mask),
            _ => None,
        };
        let mask = mask.map(|mask| {
            let words = &self.words[&mask.counters.buffer.id][mask.counters.offset..][..DropoutMask::WORDS];
            let (key, element) = DropoutMask::stream(words.try_into().unwrap());
            Drawn { p: mask.p, key, first: element + mask.first }
        });
        if self.loss_seen {
            self.backward.extend(mask)
        } else {
            self.forward.extend(mask)
        }
        self.null.launch(stream, op)
    }
    fn record(&mut self, stream: Stream) -> Result<Event, TensorError> {
        self.null.record(stream)
    }
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), TensorError> {
        self.null.wait(stream, event)
    }
    fn sync(&mut self) -> Result<(), TensorError> {
        self.null.sync()
    }
    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.null.write_f32(dst, values)
    }
    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.words.insert(dst.buffer.id, values.to_vec());
        self.null.write_u32(dst, values)
    }
    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.null.read_f32(src, values)
    }
    fn read_bytes(&mut self, stream: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        self.null.read_bytes(stream, src, bytes)
    }
    fn write_bytes(&mut self, stream: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        self.null.write_bytes(stream, dst, bytes)
    }
    fn memory(&self) -> MemoryUse {
        self.null.memory()
    }
}

#[test]
fn every_place_of_dropout_has_a_stream_of_its_own_and_the_backward_pass_uses_the_same() {
    let m = Model { dropout: 0.1, ..named("gpt2").unwrap() };
    let mut b = Masks::default();
    let shape = Shape { sequences: 2, seq: 8, purpose: Purpose::Train };
    let mut d = Decoder::new(&mut b, &m, shape).unwrap();
    let tokens = vec![1; shape.tokens()];
    let batch = TokenBatch { ids: &tokens, targets: &tokens, positions: None };
    let ctx = StepContext { seed: 5, step: 6, first_sequence: 7, loss_scale: 1.0, accumulate: false };
    d.forward_backward(&mut b, &batch, &ctx).unwrap();
    // The embedding, and three places of each layer.
    assert_eq!(b.forward.len(), 1 + 3 * m.layers);
    let keys: std::collections::HashSet<_> = b.forward.iter().map(|mask| mask.key).collect();
    assert_eq!(keys.len(), b.forward.len(), "no two places share a stream");
    assert!(b.forward.iter().all(|mask| mask.p == 0.1 && mask.key.step == 6));
    for mask in &b.backward {
        assert!(b.forward.contains(mask), "{mask:?} is a mask of the forward pass");
    }
    assert_eq!(b.backward.len(), b.forward.len());
    // Elements of a sequence: T D of activations, H T T of attention weights.
    let (td, htt) = ((8 * m.width) as u64, (m.heads * 8 * 8) as u64);
    assert_eq!(b.forward[0].first, 7 * td);
    assert_eq!(b.forward[1].first, 7 * htt);
}

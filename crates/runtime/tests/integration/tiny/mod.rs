//! The tiny models of `golden/model/make.py`: the same shapes, weights and tokens by the same integer formula.
#![allow(dead_code, reason = "every test file uses another part")]

use bessemer_arch::{
    ActivationChoice, AdapterTarget, Adapters, BalanceOver, BalanceRule, Capacity, DropChoice, ExpertLayers,
    Experts, Gate, GroupChoice, InitChoice, LayerRule, Model, NormChoice, ParamSpec, Placement,
    PositionChoice, QkNormSpan, RopeScaling, RopeScalingKind, ScoreChoice, SharedExpert, named,
};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::{OptimConfig, OptimParam, Optimizer};
use bessemer_runtime::{Decoder, Purpose, Shape, StepContext};
use bessemer_tensor::Backend;
use bessemer_tensor::op::IGNORED;

/// Sizes of the golden batches.
pub(crate) const SEQUENCES: usize = 2;
/// Sizes of the golden batches.
pub(crate) const SEQ: usize = 16;
const VOCAB: usize = 97;

/// The golden models and their labels.
pub(crate) fn models() -> Vec<(&'static str, Model)> {
    let gpt2 = Model {
        vocab_size: VOCAB,
        layers: 2,
        width: 32,
        heads: 4,
        kv_heads: 4,
        head_dim: 8,
        ffn_width: 128,
        context: SEQ,
        ..named("gpt2").unwrap()
    };
    let llama = Model {
        vocab_size: VOCAB,
        layers: 2,
        width: 32,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        ffn_width: 64,
        context: SEQ,
        tied_embeddings: false,
        ..named("llama").unwrap()
    };
    let tied = Model { tied_embeddings: true, ..llama.clone() };
    let llama3 = RopeScaling {
        kind: RopeScalingKind::Llama3,
        factor: 4.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8,
    };
    let scaled = Model { rope_scaling: Some(llama3), ..tied.clone() };
    let mistral = Model { window: Some(5), ..tied.clone() };
    let qwen2 = Model { qkv_bias: true, ..tied.clone() };
    let qwen3 = Model { qk_norm: true, ..tied.clone() };
    let relu2 = Model { activation: ActivationChoice::ReluSquared, ..gpt2.clone() };
    let opt = Model { activation: ActivationChoice::Relu, ..gpt2.clone() };
    let bloom = Model { positions: PositionChoice::Alibi, ..gpt2.clone() };
    vec![
        ("gpt2", gpt2),
        ("llama", llama),
        ("llama-tied", tied),
        ("llama3-scaling", scaled),
        ("mistral-window", mistral),
        ("qwen2", qwen2),
        ("qwen3", qwen3),
        ("gpt2-relu2", relu2),
        ("opt", opt),
        ("bloom-alibi", bloom),
    ]
}

/// The golden models with mixtures of experts: Mixtral, Qwen2-MoE, and Llama with the mixtures of DeepSeek-V3.
pub(crate) fn golden_mixtures() -> Vec<(&'static str, Model)> {
    let find = |wanted: &str| models().into_iter().find(|model| model.0 == wanted).unwrap().1;
    let (tied, qwen2) = (find("llama-tied"), find("qwen2"));
    let beside = |width, gate| Some(SharedExpert { width, gate, mixed: false });
    let gate = Gate {
        score: ScoreChoice::Sigmoid,
        bias: true,
        groups: Some(GroupChoice { count: 4, kept: 2 }),
        scale: Some(2.5),
        ..Gate::default()
    };
    let top_k = |renormalise| Experts::top_k([8, 2, 24], renormalise);
    let deepseek = Some(Experts { gate, ..top_k(true) });
    vec![
        ("mixtral", Model { experts: Some(top_k(true)), ..tied.clone() }),
        ("qwen2-moe", Model { experts: Some(top_k(false)), shared_expert: beside(20, true), ..qwen2 }),
        ("deepseek-v3-experts", Model { experts: deepseek, shared_expert: beside(24, false), ..tied }),
    ]
}

/// The kinds without experts.
pub(crate) fn dense_kinds() -> Vec<(&'static str, Model)> {
    all_kinds().into_iter().filter(|kind| kind.1.experts.is_none()).collect()
}

fn adapters(targets: &[AdapterTarget]) -> Option<Adapters> {
    Some(Adapters { rank: 3, alpha: 4.0, targets: targets.to_vec(), ..Adapters::default() })
}

/// GPT-2 with adapters that drop elements of their inputs.
pub(crate) fn with_adapter_dropout() -> (&'static str, Model) {
    use AdapterTarget::{Down, Out, Qkv, Up};
    let adapters = adapters(&[Qkv, Out, Up, Down]);
    let adapters = adapters.map(|of| Adapters { dropout: 0.2, alphas: [(Up, 9.0)].into(), ..of });
    ("adapters with dropout", Model { adapters, ..models()[0].1.clone() })
}

/// The golden models, and others that mix the choices in ways no published model does.
pub(crate) fn all_kinds() -> Vec<(&'static str, Model)> {
    use AdapterTarget::{Down, Gate as GateMap, Key, Out, Qkv, Query, Up, Value};
    let mut list = models();
    let (base, llama) = (list[0].1.clone(), list[1].1.clone());
    let post = Model { placement: Placement::Post, ..base.clone() };
    let bare = Model { norm: NormChoice::None, ..base.clone() };
    list.extend([
        (
            "relu without biases, untied, grouped",
            Model {
                bias: false,
                tied_embeddings: false,
                activation: ActivationChoice::Relu,
                kv_heads: 1,
                ..base.clone()
            },
        ),
        (
            "GeGLU with biases, rotary, LayerNorm",
            Model { activation: ActivationChoice::Geglu, positions: PositionChoice::Rope, ..base.clone() },
        ),
        (
            "RMSNorm with biases, wide heads",
            Model {
                norm: NormChoice::RmsNorm,
                activation: ActivationChoice::GeluErf,
                head_dim: 12,
                ..base.clone()
            },
        ),
        ("post-normalised, scaled embeddings", Model { embedding_scale: 2.5, ..post.clone() }),
        (
            "post-normalised RMSNorm, sinusoidal, untied, gated",
            Model { placement: Placement::Post, positions: PositionChoice::Sinusoidal, ..llama.clone() },
        ),
        (
            "DeepNorm, sinusoidal and scaled embeddings",
            Model {
                placement: Placement::DeepNorm,
                positions: PositionChoice::Sinusoidal,
                embedding_scale: 1.7,
                ..base.clone()
            },
        ),
        (
            "adapters of separate maps",
            Model {
                adapters: adapters(&[Query, Key, Value, Out, GateMap, Up, Down]),
                tied_embeddings: false,
                ..llama.clone()
            },
        ),
        ("adapters of GPT-2's maps", Model { adapters: adapters(&[Qkv, Out, Up, Down]), ..base.clone() }),
        (
            "adapters with magnitudes",
            Model {
                adapters: adapters(&[Query, Value, Out, Up, Down]).map(|of| Adapters {
                    magnitude: true,
                    ranks: [(Down, 5)].into(),
                    ..of
                }),
                bias: true,
                tied_embeddings: false,
                ..llama.clone()
            },
        ),
        ("experts, renormalised", Model { experts: Some(Experts::top_k([4, 2, 24], true)), ..llama.clone() }),
        (
            "experts, raw weights, post-normalised, GeGLU",
            Model {
                experts: Some(Experts::top_k([5, 3, 16], false)),
                placement: Placement::Post,
                activation: ActivationChoice::Geglu,
                ..llama.clone()
            },
        ),
        (
            "experts with a gated block beside them, QK-norm of all heads",
            Model {
                experts: Some(Experts::top_k([4, 2, 16], false)),
                shared_expert: Some(SharedExpert { width: 20, gate: true, mixed: false }),
                qk_norm: true,
                qk_norm_span: QkNormSpan::Width,
                ..llama.clone()
            },
        ),
        (
            "experts in every second layer, a block beside them, post-normalised",
            Model {
                placement: Placement::Post,
                shared_expert: Some(SharedExpert { width: 20, gate: false, mixed: false }),
                experts: Some(Experts::top_k([3, 2, 16], true)),
                expert_layers: ExpertLayers::Rule(LayerRule::Alternate),
                ..llama.clone()
            },
        ),
        (
            "experts by sigmoids in groups, with corrections, balance over a batch",
            Model {
                experts: Some(Experts {
                    gate: Gate {
                        score: ScoreChoice::Sigmoid,
                        bias: true,
                        groups: Some(GroupChoice { count: 2, kept: 1 }),
                        scale: Some(2.5),
                        balance_over: BalanceOver::Rule(BalanceRule::Batch),
                        ..Gate::default()
                    },
                    ..Experts::top_k([4, 2, 16], true)
                }),
                ..llama.clone()
            },
        ),
        (
            "experts with a capacity, a noisy router and a residual block",
            Model {
                shared_expert: Some(SharedExpert { width: 20, gate: false, mixed: true }),
                experts: Some(Experts {
                    gate: Gate {
                        capacity: Some(Capacity {
                            millionths: 750_000,
                            sequences: 1,
                            drop: DropChoice::Choice,
                            random_second: true,
                        }),
                        jitter: 0.05,
                        ..Gate::default()
                    },
                    ..Experts::top_k([4, 2, 16], true)
                }),
                ..llama.clone()
            },
        ),
        (
            "a pyramid of experts with a residual block",
            Model {
                shared_expert: Some(SharedExpert { width: 20, gate: false, mixed: true }),
                experts: Some(Experts {
                    gate: Gate { balance_over: BalanceOver::Rule(BalanceRule::Batch), ..Gate::default() },
                    ..Experts::top_k([5, 2, 16], false)
                }),
                expert_counts: vec![3, 5],
                ..llama.clone()
            },
        ),
        ("no normalisation", bare.clone()),
        (
            "no normalisation, no positions, muP, gated, untied",
            Model {
                init: InitChoice::MuP,
                mup_base_width: Some(20),
                norm: NormChoice::None,
                positions: PositionChoice::None,
                ..llama.clone()
            },
        ),
        (
            "QK-norm, sliding window, stretched angles",
            Model {
                qk_norm: true,
                window: Some(5),
                rope_scaling: Some(RopeScaling { factor: 2.5, ..RopeScaling::default() }),
                ..llama.clone()
            },
        ),
        (
            "QK-norm without rotation, post-normalised, ALiBi",
            Model { qk_norm: true, positions: PositionChoice::Alibi, ..post },
        ),
        (
            "Llama 3's angles, documents, window",
            Model {
                rope_scaling: Some(RopeScaling {
                    kind: RopeScalingKind::Llama3,
                    factor: 4.0,
                    original_context: 8,
                    ..RopeScaling::default()
                }),
                document_end: Some(tokens(5, 1).0[5]),
                window: Some(4),
                ..llama.clone()
            },
        ),
        (
            "ALiBi for three heads, documents, DeepNorm",
            Model {
                heads: 3,
                kv_heads: 3,
                positions: PositionChoice::Alibi,
                placement: Placement::DeepNorm,
                document_end: Some(tokens(5, 1).0[2]),
                ..base.clone()
            },
        ),
        (
            "documents, learned positions, no normalisation",
            Model { document_end: Some(tokens(5, 1).0[9]), ..bare.clone() },
        ),
        ("muP", Model { init: InitChoice::MuP, mup_base_width: Some(8), mup_base_head_dim: Some(2), ..base }),
    ]);
    list
}

/// MurmurHash3's finaliser over a counter.
fn mix(stream: u64, element: usize) -> u32 {
    let mut x = (element as u64).wrapping_add(0x9E37_79B9 * (stream + 1)) as u32;
    x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B);
    x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
    x ^ (x >> 16)
}

/// Values of parameter number `index`.
pub(crate) fn values(index: usize, spec: &ParamSpec) -> Vec<f32> {
    let centre = if spec.name.contains("norm.weight") { 1.0 } else { 0.0 };
    let value = |e| (f64::from(mix(index as u64, e) >> 8) / f64::from(1 << 24) - 0.5) / 2.0 + centre;
    (0..spec.len()).map(|e| value(e) as f32).collect()
}

/// Ids and targets of step `step`; every seventh target is not scored.
pub(crate) fn batch(step: u64) -> (Vec<u32>, Vec<u32>) {
    tokens(1000 + step % 2, SEQUENCES)
}

/// Ids and targets of `sequences` rows.
pub(crate) fn tokens(stream: u64, sequences: usize) -> (Vec<u32>, Vec<u32>) {
    let row = SEQ + 1;
    let all: Vec<u32> = (0..sequences * row).map(|n| mix(stream, n) % VOCAB as u32).collect();
    let ids = all.chunks(row).flat_map(|r| &r[..SEQ]).copied().collect();
    let mut targets: Vec<u32> = all.chunks(row).flat_map(|r| &r[1..]).copied().collect();
    for t in targets.iter_mut().skip(3).step_by(7) {
        *t = IGNORED;
    }
    (ids, targets)
}

/// Whether training passes drop choices that scoring passes keep.
pub(crate) fn has_capacity(model: &Model) -> bool {
    model.experts.is_some_and(|experts| experts.gate.capacity.is_some())
}

/// Targets that are scored.
pub(crate) fn scored(targets: &[u32]) -> usize {
    targets.iter().filter(|&&t| t != IGNORED).count()
}

/// A CPU backend of so many threads.
pub(crate) fn cpu(threads: usize) -> CpuBackend {
    crate::instruction_set::cpu(threads)
}

/// A decoder with the formula's weights.
pub(crate) fn decoder(
    backend: &mut dyn Backend,
    model: &Model,
    sequences: usize,
    purpose: Purpose,
) -> Decoder {
    let d = Decoder::new(backend, model, Shape { sequences, seq: SEQ, purpose }).unwrap();
    for (i, p) in d.params().iter().enumerate() {
        d.write_param(backend, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    d
}

/// A step's context.
pub(crate) fn context(step: u64, scored: usize) -> StepContext {
    StepContext { seed: 1, step, first_sequence: 0, loss_scale: 1.0 / scored as f32, accumulate: false }
}

/// Every gradient, in the order of the parameters; zeros of one that is not trained.
pub(crate) fn gradients(backend: &mut dyn Backend, decoder: &Decoder) -> Vec<Vec<f32>> {
    let read = |p: &bessemer_runtime::Param| {
        let mut g = vec![0.0; p.spec.len()];
        if let Some(grad) = p.grad {
            backend.read_f32(grad, &mut g).unwrap();
        }
        g
    };
    decoder.params().iter().map(read).collect()
}

/// An optimizer over a decoder's parameters.
pub(crate) fn adamw(backend: &mut dyn Backend, decoder: &Decoder, config: &OptimConfig) -> Optimizer {
    let list: Vec<_> = decoder
        .params()
        .iter()
        .filter_map(|p| Some(OptimParam::of(decoder.model(), &p.spec, p.value, p.grad?)))
        .collect();
    Optimizer::new(backend, &list, config).unwrap()
}

/// |a - b| / |b| over all elements.
pub(crate) fn relative(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |it: &mut dyn Iterator<Item = f64>| it.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / norm(&mut b.iter().map(|b| f64::from(*b))).max(1e-30)
}

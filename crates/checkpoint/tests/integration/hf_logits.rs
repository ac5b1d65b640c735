//! Exports compute in transformers what they compute here, and an imported OPT here what it computes there.
//!
//! Needs BESSEMER_PYTHON: a Python with torch, transformers and safetensors.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed unwrap in a test's own plumbing is a failed test"
)]

use bessemer_arch::{
    ActivationChoice, AdapterTarget, Adapters, ExpertLayers, Experts, LayerRule, Model, QkNormSpan,
    RopeScaling, RopeScalingKind, SharedExpert, named,
};
use bessemer_checkpoint::hf::{HfExport, export_hf, import_hf};
use bessemer_checkpoint::{HostTensors, MergedAdapters, TensorSource};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_runtime::{Decoder, Purpose, Shape, TokenBatch};
use bessemer_tensor::host::HostTensor;
use bessemer_tensor::rng::RngKey;
use bessemer_units::DType;
use std::fs;
use std::path::Path;
use std::process::Command;

const SHAPE: Shape = Shape { sequences: 2, seq: 24, purpose: Purpose::Score };

fn sized(name: &str) -> Model {
    let base = named(name).unwrap();
    let kv_heads = if base.kv_heads == base.heads { 4 } else { 2 };
    Model {
        vocab_size: 97,
        layers: 2,
        width: 32,
        heads: 4,
        kv_heads,
        head_dim: 8,
        ffn_width: 56,
        context: SHAPE.seq,
        ..base
    }
}

/// Every choice that an architecture of transformers can express and that the parameters alone do not show.
fn cases() -> Vec<(&'static str, &'static str, Model)> {
    let (gpt2, llama) = (sized("gpt2"), sized("llama"));
    let scaled = |kind| RopeScaling { kind, factor: 4.0, original_context: 8, ..RopeScaling::default() };
    let with_rope = |kind| Model { rope_scaling: Some(scaled(kind)), ..llama.clone() };
    let experts = |count, choices, renormalise| Some(Experts::top_k([count, choices, 24], renormalise));
    let qwen3 = Model { qk_norm: true, head_dim: 12, ..llama.clone() };
    let relu2 = Model { activation: ActivationChoice::ReluSquared, ..gpt2.clone() };
    vec![
        ("gpt2", "GPT2LMHeadModel", gpt2),
        ("gpt2-relu2", "GPT2LMHeadModel", relu2),
        ("llama", "LlamaForCausalLM", llama.clone()),
        ("llama-linear", "LlamaForCausalLM", with_rope(RopeScalingKind::Linear)),
        ("llama-llama3", "LlamaForCausalLM", with_rope(RopeScalingKind::Llama3)),
        ("mistral-window", "MistralForCausalLM", Model { window: Some(5), ..llama.clone() }),
        ("qwen2", "Qwen2ForCausalLM", Model { qkv_bias: true, ..llama.clone() }),
        ("qwen3", "Qwen3ForCausalLM", qwen3.clone()),
        (
            "qwen3-llama3",
            "Qwen3ForCausalLM",
            Model { qk_norm: true, tied_embeddings: true, ..with_rope(RopeScalingKind::Llama3) },
        ),
        (
            "mixtral",
            "MixtralForCausalLM",
            Model { experts: experts(4, 2, true), ffn_width: 24, ..llama.clone() },
        ),
        (
            "mixtral-window",
            "MixtralForCausalLM",
            Model { experts: experts(4, 2, true), ffn_width: 24, window: Some(5), ..llama.clone() },
        ),
        ("qwen3-moe", "Qwen3MoeForCausalLM", Model { experts: experts(6, 3, true), ..qwen3.clone() }),
        (
            "qwen3-moe-alternate",
            "Qwen3MoeForCausalLM",
            Model {
                experts: experts(6, 3, true),
                expert_layers: ExpertLayers::Rule(LayerRule::Alternate),
                ..qwen3.clone()
            },
        ),
        (
            "qwen2-moe",
            "Qwen2MoeForCausalLM",
            Model {
                experts: experts(6, 3, false),
                shared_expert: Some(SharedExpert { width: 40, gate: true, mixed: false }),
                qkv_bias: true,
                ..llama.clone()
            },
        ),
        (
            "olmoe",
            "OlmoeForCausalLM",
            Model {
                experts: experts(6, 3, false),
                qk_norm: true,
                qk_norm_span: QkNormSpan::Width,
                ffn_width: 24,
                ..llama.clone()
            },
        ),
        ("qwen3-moe-raw", "Qwen3MoeForCausalLM", Model { experts: experts(6, 3, false), ..qwen3.clone() }),
    ]
}

/// Large enough that attention is far from even and every position matters.
fn weights(model: &Model) -> Vec<HostTensor> {
    let tensor = |p: bessemer_arch::ParamSpec| {
        let mut values = vec![0.0; p.len()];
        RngKey::new(1, 0, &p.name).fill_normal(0, 0.3, &mut values);
        if p.name.ends_with("norm.weight") {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        HostTensor { values, name: p.name, shape: p.shape, dtype: DType::F32 }
    };
    model.params().into_iter().map(tensor).collect()
}

fn ids(model: &Model) -> Vec<u32> {
    (0..SHAPE.tokens() as u64).map(|i| (i * i * 31 + i * 7 + 5) as u32 % model.vocab_size as u32).collect()
}

fn logits(model: &Model, tensors: &[HostTensor]) -> Vec<f32> {
    let mut backend = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let mut decoder = Decoder::new(&mut backend, model, SHAPE).unwrap();
    for t in tensors {
        decoder.write_param(&mut backend, &t.name, &t.values).unwrap();
    }
    let ids = ids(model);
    let mut found = Vec::new();
    let batch = TokenBatch { ids: &ids, targets: &ids, positions: None };
    decoder.logits(&mut backend, &batch, |_, row| found.extend_from_slice(row)).unwrap();
    found
}

fn python(python: &std::ffi::OsStr, verb: &str, dir: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hf_logits.py");
    let out = Command::new(python).arg(&script).arg(verb).arg(dir).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// What transformers computes for `ids`, as (class, logits).
fn theirs(interpreter: &std::ffi::OsStr, dir: &Path, model: &Model) -> (String, Vec<f32>) {
    let rows: Vec<Vec<u32>> = ids(model).chunks(SHAPE.seq).map(<[u32]>::to_vec).collect();
    fs::write(dir.join("ids.json"), serde_json::to_string(&rows).unwrap()).unwrap();
    let class = python(interpreter, "logits", dir).trim().to_owned();
    let found = fs::read_to_string(dir.join("logits.json")).unwrap();
    (class, serde_json::from_str(&found).unwrap())
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_logits_of_exports_and_of_an_imported_opt_are_those_of_transformers() {
    let interpreter = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let tmp = tempfile::tempdir().unwrap();
    let mut seen: Vec<(&str, Vec<f32>)> = Vec::new();
    for (label, class, model) in cases() {
        let list = weights(&model);
        let dir = tmp.path().join(label);
        let (mut source, mut quiet) = (HostTensors::new(&list), |_, _| {});
        export_hf(
            &dir,
            HfExport {
                model: &model,
                model_type: None,
                balance: None,
                tensors: &mut source,
                dtype: DType::F32,
                vocab_size: None,
                bos_token_id: None,
                eos_token_id: Some(2),
                extra_files: Vec::new(),
                max_file_bytes: 1 << 30,
                overwrite: false,
                progress: &mut quiet,
            },
        )
        .unwrap();
        let ours = logits(&model, &list);
        let (found, wanted) = theirs(&interpreter, &dir, &model);
        let difference = worst(&ours, &wanted);
        println!("{label}: {found}, logits differ by at most {difference:e}");
        assert_eq!(found, class, "{label}");
        let most = if model.experts.is_some() { 1e-4 } else { 1e-3 };
        assert!(difference < most, "{label}: {difference}");
        // Same weights, other choice: the comparison above can tell them apart.
        for (other, values) in seen.iter().filter(|s| s.1.len() == ours.len()) {
            assert!(worst(&ours, values) > 0.1, "{label} computes what {other} does");
        }
        seen.push((label, ours));
    }

    let dir = tmp.path().join("opt");
    fs::create_dir(&dir).unwrap();
    python(&interpreter, "opt", &dir);
    let import = import_hf(&dir).unwrap();
    let model = import.model().clone();
    assert_eq!(model.activation, ActivationChoice::Relu);
    let list: Vec<HostTensor> = model.params().iter().map(|p| import.read_tensor(&p.name).unwrap()).collect();
    let (found, wanted) = theirs(&interpreter, &dir, &model);
    let difference = worst(&logits(&model, &list), &wanted);
    println!("opt: {found}, logits differ by at most {difference:e}");
    assert!(difference < 1e-3, "opt: {difference}");
}

/// Matrices with their adapters merged give the logits of the adapters, and a format without adapters takes no model with some.
#[test]
fn merged_adapters_give_the_same_logits() {
    use AdapterTarget::{Down, Gate, Key, Out, Qkv, Query, Up, Value};
    let (gpt2, llama) = (sized("gpt2"), sized("llama"));
    for (base, targets) in [
        (llama.clone(), vec![Query, Value]),
        (llama, vec![Down, Up, Gate, Out, Key, Value, Query]),
        (gpt2.clone(), vec![Qkv, Out, Up, Down]),
        (gpt2, vec![Key]),
    ] {
        let adapters = Adapters { rank: 3, alpha: 2.0, targets, ..Adapters::default() };
        let model = Model { adapters: Some(adapters), ..base.clone() };
        model.check().unwrap();
        let list = weights(&model);
        let wanted = logits(&model, &list);
        let mut source = HostTensors::new(&list);
        let mut merged = MergedAdapters::new(&model, &mut source).unwrap();
        assert_eq!(merged.model(), &base);
        let tensors: Vec<HostTensor> = (merged.specs().to_vec().into_iter().enumerate())
            .map(|(number, spec)| {
                let mut values = vec![0.0; spec.checked_len().unwrap()];
                merged.fill(number, &mut values).unwrap();
                HostTensor { values, name: spec.name, shape: spec.shape, dtype: spec.dtype }
            })
            .collect();
        let found = logits(&base, &tensors);
        let largest = wanted.iter().fold(0f32, |most, x| most.max(x.abs()));
        assert!(worst(&found, &wanted) < 1e-5 * largest, "{} of {largest}", worst(&found, &wanted));
        // The adapters matter.
        let plain: Vec<HostTensor> = list.iter().filter(|t| !t.name.contains(".lora_")).cloned().collect();
        assert!(worst(&logits(&base, &plain), &wanted) > 1e-2 * largest);
        let (dir, mut quiet) = (tempfile::tempdir().unwrap(), |_, _| {});
        let request = HfExport {
            model: &model,
            model_type: None,
            balance: None,
            tensors: &mut HostTensors::new(&list),
            dtype: DType::F32,
            vocab_size: None,
            bos_token_id: None,
            eos_token_id: None,
            extra_files: Vec::new(),
            max_file_bytes: 1 << 30,
            overwrite: false,
            progress: &mut quiet,
        };
        let e = export_hf(&dir.path().join("out"), request).unwrap_err().to_string();
        assert!(e.contains("the model has adapters"), "{e}");
        assert!(!dir.path().join("out").exists());
    }
}

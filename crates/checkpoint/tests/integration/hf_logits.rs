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
use bessemer_checkpoint::hf::{HfExport, PeftExport, PeftReport, export_hf, export_peft, import_hf};
use bessemer_checkpoint::{CheckpointError, HostTensors, MergedAdapters, TensorSource};
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

fn write_ids(dir: &Path, model: &Model) {
    let rows: Vec<Vec<u32>> = ids(model).chunks(SHAPE.seq).map(<[u32]>::to_vec).collect();
    fs::write(dir.join("ids.json"), serde_json::to_string(&rows).unwrap()).unwrap();
}

fn written_logits(dir: &Path) -> Vec<f32> {
    serde_json::from_str(&fs::read_to_string(dir.join("logits.json")).unwrap()).unwrap()
}

/// What transformers computes for `ids`, as (class, logits).
fn theirs(interpreter: &std::ffi::OsStr, dir: &Path, model: &Model) -> (String, Vec<f32>) {
    write_ids(dir, model);
    let class = python(interpreter, "logits", dir).trim().to_owned();
    (class, written_logits(dir))
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
        write_base(&dir, &model, &list);
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

/// A directory of adapters for PEFT.
fn write_peft(dir: &Path, model: &Model, list: &[HostTensor]) -> Result<PeftReport, CheckpointError> {
    let (mut tensors, mut quiet) = (HostTensors::new(list), |_, _| {});
    export_peft(
        dir,
        PeftExport {
            model,
            tensors: &mut tensors,
            dtype: DType::F32,
            base: "base",
            overwrite: false,
            progress: &mut quiet,
        },
    )
}

fn adapted(base: Model, rank_stabilised: bool, targets: &[AdapterTarget]) -> Model {
    let adapters =
        Adapters { rank: 3, alpha: 2.0, rank_stabilised, targets: targets.to_vec(), ..Adapters::default() };
    let model = Model { adapters: Some(adapters), ..base };
    model.check().unwrap();
    model
}

/// Another form of its adapters.
fn with(model: Model, of: impl Fn(Adapters) -> Adapters) -> Model {
    let model = Model { adapters: model.adapters.clone().map(of), ..model };
    model.check().unwrap();
    model
}

fn magnitudes(of: Adapters) -> Adapters {
    Adapters { magnitude: true, ..of }
}

/// Ranks and alphas of their own for the first target and the last one.
fn by_target(of: Adapters) -> Adapters {
    let (first, last) = (of.targets[0], of.targets[of.targets.len() - 1]);
    Adapters { ranks: [(first, 5), (last, 2)].into(), alphas: [(last, 7.5)].into(), ..of }
}

fn is_adapter(name: &str) -> bool {
    bessemer_arch::ParamId::parse(name).is_some_and(|id| id.role().is_adapter())
}

/// Files of adapters have the matrices bit for bit under PEFT's names; adapters that modules of transformers do not have are refused.
#[test]
fn adapters_are_written_as_peft_has_them() {
    use AdapterTarget::{Down, Key, Out, Qkv, Query, Up};
    let tmp = tempfile::tempdir().unwrap();
    for (label, model, modules, first, of) in [
        (
            "llama",
            adapted(sized("llama"), true, &[Query, Down]),
            &["self_attn.q_proj", "mlp.down_proj"][..],
            "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight",
            "layers.1.mlp.down.lora_a",
        ),
        (
            "gpt2",
            adapted(sized("gpt2"), false, &[Qkv, Out, Up, Down]),
            &["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"],
            "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight",
            "layers.0.attention.qkv.lora_b",
        ),
    ] {
        let (dir, list) = (tmp.path().join(label), weights(&model));
        let report = write_peft(&dir, &model, &list).unwrap();
        assert_eq!(report.modules, modules);
        assert_eq!(
            report.files,
            ["adapter_model.safetensors", "adapter_config.json", "bessemer-export.json"]
        );
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.join("adapter_config.json")).unwrap()).unwrap();
        let told = |key: &str| config[key].clone();
        assert_eq!((told("peft_type"), told("r"), told("lora_alpha")), ("LORA".into(), 3.into(), 2.0.into()));
        assert_eq!(
            (told("use_rslora"), told("fan_in_fan_out")),
            ((label == "llama").into(), (label == "gpt2").into())
        );
        let bytes = fs::read(dir.join("adapter_model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.len(), 2 * model.layers * modules.len());
        let wanted = list.iter().find(|tensor| tensor.name == of).unwrap();
        let found = file.tensor(first).unwrap();
        let values: Vec<f32> =
            found.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert!(found.shape() == wanted.shape && values == wanted.values, "{label}");
        // Nothing is written over.
        assert!(write_peft(&dir, &model, &list).is_err());
    }
    for (model, words) in [
        (adapted(sized("gpt2"), false, &[Key]), "wanted \"qkv\""),
        (adapted(sized("llama"), false, &[Qkv]), "wanted \"query\""),
        (sized("llama"), "found one without"),
    ] {
        let e = write_peft(&tmp.path().join("refused"), &model, &weights(&model)).unwrap_err().to_string();
        assert!(e.contains(words), "{e}");
        assert!(!tmp.path().join("refused").exists());
    }
}

/// A directory for transformers, without adapters.
fn write_base(dir: &Path, model: &Model, list: &[HostTensor]) {
    let base = Model { adapters: None, ..model.clone() };
    let plain: Vec<HostTensor> = list.iter().filter(|t| !is_adapter(&t.name)).cloned().collect();
    let (mut source, mut quiet) = (HostTensors::new(&plain), |_, _| {});
    export_hf(
        dir,
        HfExport {
            model: &base,
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
}

/// What was written for PEFT is read back bit for bit; configurations and matrices of other kinds are refused by name.
#[test]
fn adapters_of_peft_are_read_bit_for_bit() {
    use AdapterTarget::{Down, Key, Out, Qkv, Query, Up};
    let tmp = tempfile::tempdir().unwrap();
    for (label, model) in [
        ("llama", adapted(sized("llama"), true, &[Query, Key, Down])),
        ("gpt2", adapted(sized("gpt2"), false, &[Qkv, Out, Up, Down])),
        ("magnitudes", with(adapted(sized("gpt2"), false, &[Qkv, Down]), magnitudes)),
        ("ranks", with(adapted(sized("llama"), false, &[Query, Key, Down]), by_target)),
        (
            "dropout",
            with(adapted(sized("gpt2"), false, &[Out, Up, Down]), |of| {
                by_target(Adapters { dropout: 0.25, ..of })
            }),
        ),
    ] {
        let (dir, list) = (tmp.path().join(label), weights(&model));
        write_base(&dir, &model, &list);
        write_peft(&dir.join("adapters"), &model, &list).unwrap();
        let mut import = import_hf(&dir).unwrap();
        import.add_adapters(&dir.join("adapters")).unwrap();
        assert_eq!(import.model().adapters, model.adapters);
        for tensor in &list {
            assert!(import.read_tensor(&tensor.name).unwrap().values == tensor.values, "{}", tensor.name);
        }
    }
    let changed = |label: &str, from: &str, to: &str| {
        let (dir, other) = (tmp.path().join(label), tempfile::tempdir().unwrap());
        let config = fs::read_to_string(dir.join("adapters/adapter_config.json")).unwrap();
        assert!(config.contains(from), "{config}");
        fs::write(other.path().join("adapter_config.json"), config.replace(from, to)).unwrap();
        let weights = "adapter_model.safetensors";
        fs::copy(dir.join("adapters").join(weights), other.path().join(weights)).unwrap();
        let mut import = import_hf(&dir).unwrap();
        import.add_adapters(other.path()).unwrap();
        (import.model().adapters.clone().unwrap(), import.notes().join("; "))
    };
    let (found, notes) = changed("magnitudes", "\"lora_dropout\": 0.0", "\"lora_dropout\": 0.1");
    assert!(found.magnitude && found.dropout == 0.0 && notes.contains("lora_dropout = 0.1"), "{notes}");
    // Patterns by the end of a path, or by whole paths of all layers.
    for pattern in [
        "{\"self_attn.q_proj\": 3}",
        "{\"^model.layers.0.self_attn.q_proj\": 3, \"model.layers.1.self_attn.q_proj\": 3}",
    ] {
        let (found, _) = changed("llama", "\"rank_pattern\": {}", &format!("\"rank_pattern\": {pattern}"));
        assert_eq!(found.ranks, [(Query, 3)].into(), "{pattern}");
    }
    let (found, _) = changed("llama", "\"alpha_pattern\": {}", "\"alpha_pattern\": {\"^q_proj\": 3}");
    assert_eq!(found.alphas, [].into(), "a whole path is not an end");
    let dir = tmp.path().join("llama");
    let config = fs::read_to_string(dir.join("adapters/adapter_config.json")).unwrap();
    let refused = |change: &dyn Fn(&Path)| {
        let other = tempfile::tempdir().unwrap();
        for name in ["adapter_config.json", "adapter_model.safetensors"] {
            fs::copy(dir.join("adapters").join(name), other.path().join(name)).unwrap();
        }
        change(other.path());
        import_hf(&dir).unwrap().add_adapters(other.path()).unwrap_err().to_string()
    };
    for (from, to, words) in [
        ("\"LORA\"", "\"LOHA\"", "wanted \"LORA\""),
        ("\"use_dora\": false", "\"use_dora\": true", "lora_magnitude_vector"),
        ("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 4}", "shape"),
        ("\"rank_pattern\": {}", "\"rank_pattern\": {\"layers.1.self_attn.q_proj\": 4}", "in layer 1"),
        ("\"rank_pattern\": {}", "\"rank_pattern\": {\".*proj\": 4}", "the pattern \".*proj\""),
        ("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 4, \"self_attn.q_proj\": 5}", "both name"),
        ("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": -4}", "wanted a whole number above 0"),
        ("\"alpha_pattern\": {}", "\"alpha_pattern\": {\"q_proj\": 0.0}", "alphas"),
        ("\"alpha_pattern\": {}", "\"alpha_pattern\": [4]", "wanted an object"),
        ("\"r\": 3", "\"r\": 4", "shape"),
        ("\"r\": 3", "\"r\": 0", "rank"),
        ("\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true", "fan_in_fan_out"),
    ] {
        let e = refused(&|other| {
            let changed = config.replace(from, to);
            assert_ne!(changed, config);
            fs::write(other.join("adapter_config.json"), changed).unwrap();
        });
        assert!(e.contains(words), "{e}");
    }
    let e = refused(&|other| {
        fs::rename(other.join("adapter_model.safetensors"), other.join("adapter_model.bin")).unwrap();
    });
    assert!(e.contains("pickle"), "{e}");
    let e = refused(&|other| {
        let mut bytes = fs::read(other.join("adapter_model.safetensors")).unwrap();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        fs::write(other.join("adapter_model.safetensors"), bytes).unwrap();
    });
    assert!(e.contains("NaN"), "{e}");
    // Matrices of another model.
    let gpt2 = tmp.path().join("gpt2/adapters");
    let e = refused(&|other| {
        fs::copy(gpt2.join("adapter_model.safetensors"), other.join("adapter_model.safetensors"))
            .map(drop)
            .unwrap();
    });
    assert!(e.contains("transformer.h") && e.contains("model.layers.N"), "{e}");
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_logits_of_exported_adapters_are_those_of_peft() {
    use AdapterTarget::{Down, Gate, Key, Out, Qkv, Query, Up, Value};
    let interpreter = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let tmp = tempfile::tempdir().unwrap();
    let cases = [
        ("llama", adapted(sized("llama"), false, &[Query, Key, Value, Out, Gate, Up, Down])),
        ("llama-rs", adapted(sized("llama"), true, &[Query, Value])),
        ("gpt2", adapted(sized("gpt2"), false, &[Qkv, Out, Up, Down])),
        ("gpt2-out", adapted(sized("gpt2"), false, &[Out])),
        (
            "llama-dora",
            with(adapted(sized("llama"), false, &[Query, Key, Value, Out, Gate, Up, Down]), magnitudes),
        ),
        ("gpt2-dora", with(adapted(sized("gpt2"), false, &[Qkv, Out, Up, Down]), magnitudes)),
        ("llama-ranks", with(adapted(sized("llama"), false, &[Query, Value, Down]), by_target)),
        ("gpt2-ranks", with(adapted(sized("gpt2"), true, &[Qkv, Out, Down]), by_target)),
    ];
    for (label, model) in &cases {
        let (dir, list) = (tmp.path().join(label), weights(model));
        write_base(&dir, model, &list);
        write_peft(&dir.join("adapters"), model, &list).unwrap();
        write_ids(&dir, model);
    }
    python(&interpreter, "peft", tmp.path());
    for (label, model) in &cases {
        let difference = worst(&logits(model, &weights(model)), &written_logits(&tmp.path().join(label)));
        println!("{label}: logits differ from PEFT's by at most {difference:e}");
        assert!(difference < 1e-3, "{label}: {difference}");
    }
}

/// Matrices with their adapters merged give the logits of the adapters, and a format without adapters takes no model with some.
#[test]
fn merged_adapters_give_the_same_logits() {
    use AdapterTarget::{Down, Gate, Key, Out, Qkv, Query, Up, Value};
    let (gpt2, llama) = (sized("gpt2"), sized("llama"));
    let plain: fn(Adapters) -> Adapters = |of| of;
    for (base, targets, of) in [
        (llama.clone(), vec![Query, Value], plain),
        (llama.clone(), vec![Down, Up, Gate, Out, Key, Value, Query], plain),
        (gpt2.clone(), vec![Qkv, Out, Up, Down], plain),
        (gpt2.clone(), vec![Key], plain),
        (llama, vec![Down, Up, Gate, Out, Key, Value, Query], |of| by_target(magnitudes(of))),
        (gpt2.clone(), vec![Qkv, Out, Up, Down], magnitudes),
        (gpt2, vec![Key, Up], by_target),
    ] {
        let model = with(adapted(base.clone(), false, &targets), of);
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
        let square =
            |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let differences = square(&mut found.iter().zip(&wanted).map(|(x, y)| x - y));
        let relative = (differences / square(&mut wanted.iter().copied())).sqrt();
        // Some 30 roundings of f32 on the way to a logit, of which the signs differ: sqrt(30) 2^-24 = 3e-7 where they are independent.
        assert!(relative < 2e-6, "{relative:e}");
        assert!(worst(&found, &wanted) < 1e-5 * largest, "{} of {largest}", worst(&found, &wanted));
        // The adapters matter.
        let plain: Vec<HostTensor> = list.iter().filter(|t| !is_adapter(&t.name)).cloned().collect();
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

//! Hugging Face in and out: against itself always, against transformers when a Python that has it is given.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed unwrap in a test's own plumbing is a failed test"
)]

use bessemer_arch::{
    ActivationChoice, ExpertLayers, Experts, Gate, InitChoice, LayerRule, Model, NormChoice, Placement,
    PositionChoice, QkNormSpan, RopeScaling, RopeScalingKind, SharedExpert, named,
};
use bessemer_checkpoint::format::SafetensorsFile;
use bessemer_checkpoint::fs::{Links, OsFileSystem};
use bessemer_checkpoint::hf::{HfExport, HfImport, export_hf, import_hf};
use bessemer_checkpoint::{CheckpointError, HostTensors, TensorSource};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use std::fs;
use std::path::Path;
use std::process::Command;

fn gpt2() -> Model {
    let m = named("gpt2").unwrap();
    Model {
        vocab_size: 33,
        layers: 2,
        width: 16,
        heads: 4,
        kv_heads: 4,
        head_dim: 4,
        ffn_width: 24,
        context: 10,
        ..m
    }
}

fn llama() -> Model {
    let m = named("llama").unwrap();
    Model {
        vocab_size: 33,
        layers: 2,
        width: 16,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        ffn_width: 20,
        context: 10,
        ..m
    }
}

fn mixtral() -> Model {
    Model { experts: Some(Experts::top_k([3, 2, 5], true)), ffn_width: 5, ..llama() }
}

fn qwen3_moe() -> Model {
    let experts = Experts::top_k([4, 3, 7], false);
    Model { experts: Some(experts), qk_norm: true, ..llama() }
}

fn qwen2_moe() -> Model {
    let experts = Experts::top_k([4, 3, 7], false);
    let shared_expert = Some(SharedExpert { width: 9, gate: true, mixed: false });
    Model { experts: Some(experts), shared_expert, qkv_bias: true, ..llama() }
}

fn olmoe() -> Model {
    Model { qk_norm_span: QkNormSpan::Width, head_dim: 4, ffn_width: 7, ..qwen3_moe() }
}

/// Distinct values everywhere, exact in bf16 only where `coarse`.
fn weights(model: &Model, coarse: bool) -> Vec<HostTensor> {
    let mut k = 0u32;
    let mut next = || {
        k += 1;
        if coarse { (k % 251) as f32 - 125.0 } else { k as f32 / 3.0 }
    };
    model
        .params()
        .into_iter()
        .map(|p| HostTensor {
            values: (0..p.len()).map(|_| next()).collect(),
            name: p.name,
            shape: p.shape,
            dtype: DType::F32,
        })
        .collect()
}

fn request<'a>(
    model: &'a Model,
    tensors: &'a mut dyn TensorSource,
    dtype: DType,
    progress: &'a mut dyn FnMut(u64, u64),
) -> HfExport<'a> {
    HfExport {
        model,
        model_type: None,
        balance: None,
        tensors,
        dtype,
        vocab_size: None,
        bos_token_id: None,
        eos_token_id: Some(2),
        extra_files: vec![("tokenizer.json".into(), b"{}".to_vec())],
        max_file_bytes: 1 << 30,
        overwrite: false,
        progress,
    }
}

fn export(
    dir: &Path,
    model: &Model,
    list: &[HostTensor],
    dtype: DType,
) -> Result<Vec<String>, CheckpointError> {
    let mut source = HostTensors::new(list);
    let mut quiet = |_, _| {};
    export_hf(dir, request(model, &mut source, dtype, &mut quiet)).map(|r| r.notes)
}

#[test]
fn every_expressible_model_comes_back_as_it_was() {
    let tmp = tempfile::tempdir().unwrap();
    let mut n = 0;
    for base in [gpt2(), llama()] {
        let activations: &[ActivationChoice] = if base.norm == NormChoice::LayerNorm {
            &[
                ActivationChoice::GeluTanh,
                ActivationChoice::GeluErf,
                ActivationChoice::Relu,
                ActivationChoice::ReluSquared,
            ]
        } else {
            &[ActivationChoice::Swiglu, ActivationChoice::Geglu]
        };
        for activation in activations {
            for tied in [false, true] {
                for (bias, qkv_bias) in [(false, false), (false, true), (true, false)] {
                    for (dtype, limit) in
                        [(DType::F32, 1 << 30), (DType::F32, 700), (DType::Bf16, 1 << 30), (DType::F16, 700)]
                    {
                        let (activation, tied_embeddings) = (*activation, tied);
                        let model = Model { activation, tied_embeddings, bias, qkv_bias, ..base.clone() };
                        let list = weights(&model, true);
                        n += 1;
                        let dir = tmp.path().join(n.to_string());
                        let (mut source, mut quiet) = (HostTensors::new(&list), |_, _| {});
                        let r = request(&model, &mut source, dtype, &mut quiet);
                        let report = export_hf(&dir, HfExport { max_file_bytes: limit, ..r }).unwrap();
                        assert_eq!(report.files.iter().any(|f| f.ends_with("index.json")), limit == 700);
                        assert_eq!(fs::read(dir.join("tokenizer.json")).unwrap(), b"{}");
                        let back = import_hf(&dir).unwrap();
                        // GPT-2 has biases everywhere: a model without comes back with zeros.
                        let zeros = base.norm == NormChoice::LayerNorm && !bias;
                        assert_eq!(report.notes.len(), zeros as usize, "{:?}", report.notes);
                        assert_eq!(
                            *back.model(),
                            Model {
                                bias: bias || zeros,
                                qkv_bias: qkv_bias && !zeros,
                                rope_theta: back.model().rope_theta,
                                ..model.clone()
                            }
                        );
                        if model.positions == PositionChoice::Rope {
                            assert_eq!(back.model().rope_theta, model.rope_theta);
                        }
                        assert_eq!((back.bos_token_ids(), back.eos_token_ids()), (&[][..], &[2][..]));
                        for spec in back.specs() {
                            let t = back.read_tensor(&spec.name).unwrap();
                            assert_eq!(t.dtype, dtype);
                            match list.iter().find(|w| w.name == spec.name) {
                                Some(w) => {
                                    assert_eq!((&t.shape, &t.values), (&w.shape, &w.values), "{}", w.name)
                                }
                                None => assert!(zeros && t.values.iter().all(|v| *v == 0.0), "{}", t.name),
                            }
                        }
                        assert!(list.iter().all(|w| back.specs().iter().any(|s| s.name == w.name)));
                    }
                }
            }
        }
    }
}

/// Llama's relatives: each under its own class, with its own keys.
#[test]
fn scaled_angles_windows_qkv_biases_and_qk_norm_come_back_as_they_were() {
    let tmp = tempfile::tempdir().unwrap();
    let llama3 = RopeScaling {
        kind: RopeScalingKind::Llama3,
        factor: 8.0,
        low_freq_factor: 1.5,
        high_freq_factor: 3.0,
        original_context: 5,
    };
    let linear = RopeScaling { factor: 2.5, ..RopeScaling::default() };
    let cases = [
        (Model { rope_scaling: Some(llama3), ..llama() }, "LlamaForCausalLM"),
        (Model { rope_scaling: Some(linear), ..llama() }, "LlamaForCausalLM"),
        (Model { window: Some(4), ..llama() }, "MistralForCausalLM"),
        (Model { qkv_bias: true, rope_scaling: Some(llama3), ..llama() }, "Qwen2ForCausalLM"),
        (Model { qk_norm: true, rope_scaling: Some(linear), ..llama() }, "Qwen3ForCausalLM"),
        (mixtral(), "MixtralForCausalLM"),
        (
            Model { window: Some(4), rope_theta: 1e6, tied_embeddings: false, ..mixtral() },
            "MixtralForCausalLM",
        ),
        (qwen3_moe(), "Qwen3MoeForCausalLM"),
        (qwen2_moe(), "Qwen2MoeForCausalLM"),
        (olmoe(), "OlmoeForCausalLM"),
        (
            Model { qkv_bias: false, expert_layers: ExpertLayers::Numbers(vec![0]), ..qwen2_moe() },
            "Qwen2MoeForCausalLM",
        ),
        (
            Model { experts: qwen3_moe().experts.map(|e| Experts { renormalise: true, ..e }), ..qwen3_moe() },
            "Qwen3MoeForCausalLM",
        ),
        (
            Model { layers: 5, expert_layers: ExpertLayers::Rule(LayerRule::Alternate), ..qwen3_moe() },
            "Qwen3MoeForCausalLM",
        ),
        (
            Model { layers: 4, expert_layers: ExpertLayers::Numbers(vec![0, 1, 3]), ..qwen3_moe() },
            "Qwen3MoeForCausalLM",
        ),
    ];
    for (n, (model, class)) in cases.into_iter().enumerate() {
        let list = weights(&model, true);
        let dir = tmp.path().join(n.to_string());
        export(&dir, &model, &list, DType::F32).unwrap();
        let config = fs::read_to_string(dir.join("config.json")).unwrap();
        assert!(config.contains(&format!("\"{class}\"")), "{config}");
        let back = import_hf(&dir).unwrap();
        // What is expected to differ would be named: a linear scaling reads no original context.
        assert_eq!(*back.model(), model);
        for w in &list {
            assert_eq!(back.read_tensor(&w.name).unwrap().values, w.values, "{}", w.name);
        }
    }
}

#[test]
fn what_no_architecture_expresses_is_refused_by_name_and_writes_nothing() {
    let tmp = tempfile::tempdir().unwrap();
    let cases = [
        (
            Model { positions: PositionChoice::Rope, ..gpt2() },
            "positions = rope (GPT-2 has learned positions)",
        ),
        (Model { norm: NormChoice::RmsNorm, ..gpt2() }, "norm = rmsnorm (GPT-2"),
        (Model { norm: NormChoice::None, ..gpt2() }, "norm = none (GPT-2"),
        (Model { placement: Placement::DeepNorm, ..gpt2() }, "placement = deepnorm (only pre)"),
        (Model { embedding_scale: 4.0, ..gpt2() }, "embedding_scale = 4 (only 1"),
        (Model { qk_norm: true, ..gpt2() }, "qk_norm (GPT-2 has none)"),
        (Model { qk_norm: true, window: Some(4), ..llama() }, "qk_norm with a window"),
        (Model { window: Some(4), bias: true, ..llama() }, "biases with qk_norm or a window"),
        (Model { qk_norm: true, qkv_bias: true, ..llama() }, "biases with qk_norm or a window"),
        (Model { head_dim: 6, ..olmoe() }, "heads x head_dim other than width"),
        (Model { experts: None, ..olmoe() }, "qk_norm_span = width without experts"),
        (
            Model { expert_layers: ExpertLayers::Numbers(vec![1]), ..olmoe() },
            "experts.layers other than all with qk_norm_span = width",
        ),
        (Model { window: Some(4), qkv_bias: false, ..qwen2_moe() }, "a window with a shared block"),
        (
            Model {
                shared_expert: Some(SharedExpert { width: 9, gate: false, mixed: false }),
                ..qwen2_moe()
            },
            "a shared block without experts.shared_gate",
        ),
        (
            Model { shared_expert: Some(SharedExpert { width: 9, gate: false, mixed: true }), ..qwen2_moe() },
            "experts.residual = true",
        ),
        (
            Model {
                experts: mixtral()
                    .experts
                    .map(|of| Experts { gate: Gate { scale: Some(2.5), ..Gate::default() }, ..of }),
                ..mixtral()
            },
            "experts.scale (classes",
        ),
        (Model { expert_counts: vec![2, 4], ..mixtral() }, "experts.count that differs by layer"),
        (Model { qk_norm: true, qkv_bias: false, ..qwen2_moe() }, "a shared block with qk_norm"),
        (Model { qkv_bias: true, ..mixtral() }, "qkv_bias without a shared block"),
        (
            Model { expert_layers: ExpertLayers::Numbers(vec![1]), ..mixtral() },
            "experts.layers other than all with neither qk_norm nor a shared block",
        ),
        (
            Model { qk_norm: false, ..qwen3_moe() },
            "experts.renormalise = false with neither qk_norm nor a shared block",
        ),
        (Model { document_end: Some(1), ..llama() }, "document_mask"),
        (Model { positions: PositionChoice::Alibi, ..llama() }, "positions = alibi (Llama has rope)"),
        (Model { positions: PositionChoice::Sinusoidal, ..gpt2() }, "positions = sinusoidal (GPT-2"),
        (
            Model { init: InitChoice::MuP, mup_base_width: Some(8), ..gpt2() },
            "muP's factor 0.5 on the logits",
        ),
        (Model { kv_heads: 2, ..gpt2() }, "kv_heads = 2 of 4 heads"),
        (Model { head_dim: 6, ..gpt2() }, "head_dim = 6 (GPT-2 has width / heads = 16 / 4)"),
        (Model { activation: ActivationChoice::Swiglu, ..gpt2() }, "a gated activation (GPT-2"),
        (Model { positions: PositionChoice::Learned, ..llama() }, "positions = learned (Llama has rope)"),
        (Model { activation: ActivationChoice::GeluTanh, ..llama() }, "an activation without gate (Llama"),
    ];
    for (model, word) in cases {
        let dir = tmp.path().join("out");
        let e = export(&dir, &model, &weights(&model, true), DType::F32).unwrap_err().to_string();
        assert!(e.contains(word), "{e}");
    }
    let (model, list) = (gpt2(), weights(&gpt2(), true));
    let dir = tmp.path().join("out");
    let e = export(&dir, &model, &list[1..], DType::F32).unwrap_err().to_string();
    assert!(e.contains("missing: \"embed.tokens\""), "{e}");
    assert!(export(&dir, &model, &list, DType::U32).unwrap_err().to_string().contains("f32, bf16 or f16"));
    let (mut source, mut quiet) = (HostTensors::new(&list), |_, _| {});
    let r = request(&model, &mut source, DType::F32, &mut quiet);
    let e = export_hf(&dir, HfExport { extra_files: vec![("../x".into(), vec![])], ..r }).unwrap_err();
    assert!(e.to_string().contains("file name"), "{e}");
    let (mut source, mut quiet) = (HostTensors::new(&list), |_, _| {});
    let r = request(&model, &mut source, DType::F32, &mut quiet);
    let e = export_hf(&dir, HfExport { eos_token_id: Some(33), ..r }).unwrap_err();
    assert!(e.to_string().contains("eos token 33 is outside"), "{e}");
    assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
}

#[test]
fn a_padded_vocabulary_is_cut() {
    let tmp = tempfile::tempdir().unwrap();
    for base in [gpt2(), llama()] {
        let model = Model { tied_embeddings: false, ..base };
        let list = weights(&model, true);
        let dir = tmp.path().join(format!("{:?}", model.norm));
        let (mut source, mut quiet) = (HostTensors::new(&list), |_, _| {});
        let r = request(&model, &mut source, DType::F32, &mut quiet);
        export_hf(&dir, HfExport { vocab_size: Some(30), ..r }).unwrap();
        let back = import_hf(&dir).unwrap();
        assert_eq!(back.model().vocab_size, 30);
        for name in ["embed.tokens", "head.weight"] {
            let whole = &list.iter().find(|t| t.name == name).unwrap().values;
            assert_eq!(back.read_tensor(name).unwrap().values, whole[..30 * 16]);
        }
    }
}

#[test]
fn only_an_earlier_export_is_overwritten() {
    let tmp = tempfile::tempdir().unwrap();
    let (model, list) = (gpt2(), weights(&gpt2(), true));
    let again = |dir: &Path| {
        let (mut source, mut quiet) = (HostTensors::new(&list), |_, _| {});
        let r = request(&model, &mut source, DType::Bf16, &mut quiet);
        export_hf(dir, HfExport { overwrite: true, ..r }).map(|_| ())
    };
    let dir = tmp.path().join("a");
    fs::create_dir(&dir).unwrap();
    export(&dir, &model, &list, DType::F32).unwrap();
    assert!(export(&dir, &model, &list, DType::F32).unwrap_err().to_string().contains("not empty"));
    again(&dir).unwrap();
    assert_eq!(import_hf(&dir).unwrap().specs()[0].dtype, DType::Bf16);
    assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 1, "the old one is gone");
    fs::create_dir(dir.join("notes")).unwrap();
    assert!(again(&dir).unwrap_err().to_string().contains("overwritten"));
    let home = tmp.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("thesis.tex"), "x").unwrap();
    assert!(again(&home).unwrap_err().to_string().contains("overwritten"));
    assert!(home.join("thesis.tex").exists());
}

/// Exports, lets `change` edit config.json, and imports.
fn import_with(
    dir: &Path,
    model: &Model,
    change: impl Fn(&mut serde_json::Map<String, serde_json::Value>),
) -> Result<HfImport, CheckpointError> {
    let _ = fs::remove_dir_all(dir);
    export(dir, model, &weights(model, true), DType::F32).unwrap();
    let path = dir.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(config.as_object_mut().unwrap());
    fs::write(&path, config.to_string()).unwrap();
    import_hf(dir)
}

#[test]
fn features_of_a_config_that_would_change_results_are_refused_by_name() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("m");
    let j = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let cases: Vec<(Model, &str, &str, &str)> = vec![
        (llama(), "rope_scaling", r#"{"rope_type":"llama3","factor":8.0,"beta":1}"#, "rope_scaling.beta"),
        (llama(), "rope_scaling", r#"{"type":"dynamic","factor":2.0}"#, "rope_scaling.type"),
        (llama(), "rope_scaling", r#"{"type":"linear","factor":0.5}"#, "model.rope_scaling: factor"),
        (llama(), "rope_scaling", r#"{"factor":2.0}"#, "rope_scaling.factor"),
        (
            llama(),
            "rope_parameters",
            r#"{"rope_type":"yarn","rope_theta":10000.0}"#,
            "rope_parameters.rope_type",
        ),
        (llama(), "rope_parameters", r#"{"rope_type":"default","rope_theta":7.0}"#, "differ"),
        (llama(), "rope_scaling", "5", "wanted an object"),
        (llama(), "partial_rotary_factor", "0.5", "partial_rotary_factor: 0.5"),
        (llama(), "hidden_act", r#""gelu""#, "hidden_act: \"gelu\""),
        (llama(), "quantization_config", r#"{"bits":4}"#, "quantization_config"),
        (llama(), "model_type", r#""deepseek_v3""#, "model_type: \"deepseek_v3\""),
        (llama(), "model_type", "null", "model_type: missing"),
        (llama(), "architectures", r#"["LlamaForSequenceClassification"]"#, "LlamaForSequenceClassification"),
        (llama(), "hidden_size", "-5", "hidden_size: wanted a whole number"),
        (llama(), "hidden_size", "\"16\"", "hidden_size: wanted a whole number"),
        (llama(), "hidden_size", "18446744073709551615", "width"),
        (llama(), "num_hidden_layers", "1000000000000", "layers"),
        (llama(), "vocab_size", "9000000000000000000", "vocab_size"),
        (llama(), "vocab_size", "0", "vocab_size"),
        (llama(), "num_key_value_heads", "3", "kv_heads"),
        (llama(), "num_attention_heads", "null", "num_attention_heads: missing"),
        (llama(), "rms_norm_eps", "-1.0", "norm_eps"),
        (llama(), "eos_token_id", "\"x\"", "eos_token_id"),
        (llama(), "num_hidden_layers", "3", "layers.2"),
        (llama(), "num_hidden_layers", "1", "unexpected"),
        (llama(), "intermediate_size", "21", "another shape"),
        (Model { qkv_bias: true, ..llama() }, "use_sliding_window", "true", "use_sliding_window"),
        (Model { qkv_bias: true, ..llama() }, "model_type", r#""llama""#, "architectures"),
        (qwen2_moe(), "shared_expert_intermediate_size", "null", "shared_expert_intermediate_size: missing"),
        (qwen2_moe(), "shared_expert_intermediate_size", "10", "another shape"),
        (qwen2_moe(), "use_sliding_window", "true", "use_sliding_window"),
        (qwen2_moe(), "qkv_bias", "false", "unexpected"),
        (olmoe(), "clip_qkv", "8.0", "clip_qkv: 8.0"),
        (olmoe(), "attention_bias", "true", "attention_bias: true"),
        (olmoe(), "num_key_value_heads", "4", "another shape"),
        (mixtral(), "num_local_experts", "null", "num_local_experts: missing"),
        (mixtral(), "num_local_experts", "4", "block_sparse_moe.experts.3.w1"),
        (mixtral(), "num_local_experts", "2", "unexpected"),
        (mixtral(), "num_experts_per_tok", "4", "experts.choices"),
        (mixtral(), "intermediate_size", "6", "another shape"),
        (mixtral(), "router_aux_loss_coef", "-1.0", "experts.balance"),
        (qwen3_moe(), "num_experts", "5", "mlp.experts.4.gate_proj"),
        (qwen3_moe(), "decoder_sparse_step", "2", "layers.0.mlp.gate_proj"),
        (qwen3_moe(), "decoder_sparse_step", "3", "model.experts.layers"),
        (qwen3_moe(), "mlp_only_layers", "[1]", "layers.1.mlp.gate_proj"),
        (qwen3_moe(), "mlp_only_layers", "[-1]", "mlp_only_layers: wanted a list of whole numbers"),
        (qwen3_moe(), "moe_intermediate_size", "null", "moe_intermediate_size: missing"),
        (gpt2(), "scale_attn_weights", "false", "scale_attn_weights"),
        (gpt2(), "scale_attn_by_inverse_layer_idx", "true", "scale_attn_by_inverse_layer_idx"),
        (gpt2(), "add_cross_attention", "true", "add_cross_attention"),
        (gpt2(), "activation_function", r#""silu""#, "activation_function: \"silu\""),
        (gpt2(), "n_head", "3", "heads"),
        (gpt2(), "tie_word_embeddings", "false", "lm_head.weight"),
    ];
    for (model, key, value, word) in cases {
        let e = import_with(&dir, &model, |c| {
            c.insert(key.into(), j(value));
        })
        .unwrap_err()
        .to_string();
        assert!(e.contains(word), "{key} = {value}: {e}");
    }
    // Mistral without a window is Llama; one as long as the context hides nothing.
    let mistral = |window: Option<&str>| {
        import_with(&dir, &llama(), |c| {
            c.insert("model_type".into(), "mistral".into());
            c.insert("architectures".into(), j(r#"["MistralForCausalLM"]"#));
            if let Some(w) = window {
                c.insert("sliding_window".into(), j(w));
            }
        })
    };
    for (text, window) in [(Some("4"), Some(4)), (Some("null"), None), (Some("10"), None), (None, None)] {
        assert_eq!(mistral(text).unwrap().model().window, window, "{text:?}");
    }
    // Its name is kept where its class expresses the model.
    let imported = mistral(Some("null")).unwrap();
    assert_eq!(imported.model_type(), "mistral");
    let windowless = imported.model().clone();
    for (n, (model_type, class)) in [
        (Some("mistral"), "MistralForCausalLM"),
        (Some("qwen2"), "LlamaForCausalLM"),
        (None, "LlamaForCausalLM"),
    ]
    .into_iter()
    .enumerate()
    {
        let list = weights(&windowless, true);
        let (mut source, mut quiet) = (HostTensors::new(&list), |_, _| {});
        let there = tmp.path().join(format!("again-{n}"));
        let request = request(&windowless, &mut source, DType::F32, &mut quiet);
        let report = export_hf(&there, HfExport { model_type, ..request }).unwrap();
        assert_eq!(report.architecture, class, "{model_type:?}");
        let back = import_hf(&there).unwrap();
        assert_eq!(
            (back.model(), back.model_type() == "mistral"),
            (&windowless, model_type == Some("mistral"))
        );
    }
    // Extra keys without effect on results are no obstacle.
    import_with(&dir, &llama(), |c| {
        c.insert("pretraining_tp".into(), j("1"));
        c.insert("transformers_version".into(), "5.0".into());
    })
    .unwrap();
}

/// Half of the weight of transformers is that of here: 2 choices, one mean of 2 layers for a sum.
#[test]
fn the_weight_of_the_balance_loss_goes_both_ways() {
    let tmp = tempfile::tempdir().unwrap();
    let (model, list) = (qwen3_moe(), weights(&qwen3_moe(), true));
    let (mut source, mut quiet) = (HostTensors::new(&list), |_, _| {});
    let r = request(&model, &mut source, DType::F32, &mut quiet);
    let dir = tmp.path().join("m");
    export_hf(&dir, HfExport { balance: Some(0.03), ..r }).unwrap();
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["router_aux_loss_coef"], 0.02);
    let back = import_hf(&dir).unwrap().config();
    let losses = back.expert_training();
    assert_eq!((back.resolve(None).unwrap(), losses.balance, losses.z_loss), (model, 0.03, 0.0));
}

/// Experts of a layer in one tensor are refused by name, whichever way they lie; so is a layer without one of them.
#[test]
fn stacked_transposed_and_missing_experts_are_refused_by_name() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("m");
    let square = Experts::top_k([2, 1, 16], false);
    let of_two = Experts::top_k([2, 1, 8], false);
    for (experts, name, shape, word) in [
        (qwen3_moe().experts.unwrap(), "gate_up_proj", [4, 14, 16], "one tensor, [experts, outputs, inputs]"),
        (qwen3_moe().experts.unwrap(), "gate_up_proj", [4, 16, 14], "transposed: [experts, inputs, outputs]"),
        (qwen3_moe().experts.unwrap(), "down_proj", [4, 7, 16], "transposed: [experts, inputs, outputs]"),
        (qwen3_moe().experts.unwrap(), "down_proj", [4, 7, 15], "one tensor (shape [4, 7, 15])"),
        (square, "down_proj", [2, 16, 16], "does not tell apart"),
        (of_two, "gate_up_proj", [2, 16, 16], "does not tell apart"),
    ] {
        let model = Model { experts: Some(experts), ..qwen3_moe() };
        let _ = fs::remove_dir_all(&dir);
        export(&dir, &model, &weights(&model, true), DType::F32).unwrap();
        let there = format!("model.layers.1.mlp.experts.{name}");
        rewrite(&dir.join("model.safetensors"), |mut list| {
            list.retain(|t| !t.0.starts_with("model.layers.1.mlp.experts."));
            list.push((there.clone(), shape.to_vec(), vec![0; 4 * shape.iter().product::<usize>()]));
            list
        });
        let e = import_hf(&dir).unwrap_err().to_string();
        assert!(e.contains(&there) && e.contains(word) && e.contains("save_pretrained"), "{e}");
    }
    let model = mixtral();
    let change = |change: &dyn Fn(&mut Tensors)| {
        let _ = fs::remove_dir_all(&dir);
        export(&dir, &model, &weights(&model, true), DType::F32).unwrap();
        rewrite(&dir.join("model.safetensors"), |mut list| {
            change(&mut list);
            list
        });
        import_hf(&dir).unwrap_err().to_string()
    };
    let one = "model.layers.1.block_sparse_moe.experts.2.w2.weight";
    let e = change(&|list| list.retain(|t| t.0 != one));
    assert!(e.contains(&format!("1 missing: \"{one}\"")), "{e}");
    let e = change(&|list| list.iter_mut().filter(|t| t.0 == one).for_each(|t| t.1.reverse()));
    assert!(e.contains(&format!("\"{one}\" wanted [16, 5], found [5, 16]")), "{e}");
}

#[test]
fn pickles_are_never_opened_and_the_way_out_is_named() {
    let tmp = tempfile::tempdir().unwrap();
    let (model, list) = (gpt2(), weights(&gpt2(), true));
    export(&tmp.path().join("m"), &model, &list, DType::F32).unwrap();
    let dir = tmp.path().join("m");
    fs::rename(dir.join("model.safetensors"), dir.join("pytorch_model.bin")).unwrap();
    let e = import_hf(&dir).unwrap_err().to_string();
    assert!(e.contains("pytorch_model.bin") && e.contains("safe_serialization=True"), "{e}");
    fs::remove_file(dir.join("pytorch_model.bin")).unwrap();
    assert!(import_hf(&dir).unwrap_err().to_string().contains("model.safetensors.index.json"));
}

/// Name, shape and bytes of each tensor of a file.
type Tensors = Vec<(String, Vec<usize>, Vec<u8>)>;

/// Rewrites the tensor file with names and tensors changed, through the reference implementation.
fn rewrite(path: &Path, change: impl Fn(Tensors) -> Tensors) {
    let bytes = fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let list = file.tensors().into_iter().map(|(n, v)| (n, v.shape().to_vec(), v.data().to_vec())).collect();
    let list = change(list);
    let views: Vec<_> = list
        .iter()
        .map(|(n, s, d)| {
            (n.as_str(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, s.clone(), d).unwrap())
        })
        .collect();
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn prefixes_buffers_and_written_out_tied_heads_are_understood_and_strangers_are_not() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("m");
    for (model, prefix, buffers) in [
        (gpt2(), "transformer.", vec!["h.0.attn.bias", "h.1.attn.masked_bias"]),
        (llama(), "model.", vec!["layers.0.self_attn.rotary_emb.inv_freq"]),
    ] {
        let list = weights(&model, true);
        let fresh = || {
            let _ = fs::remove_dir_all(&dir);
            export(&dir, &model, &list, DType::F32).unwrap();
        };
        let path = dir.join("model.safetensors");
        let embedding = if prefix == "model." { "embed_tokens.weight" } else { "wte.weight" };
        let head = |l: &[(String, Vec<usize>, Vec<u8>)]| {
            let t = l.iter().find(|t| t.0.ends_with(embedding)).unwrap();
            ("lm_head.weight".to_string(), t.1.clone(), t.2.clone())
        };
        let equal = || {
            let back = import_hf(&dir).unwrap();
            for t in &list {
                assert_eq!(back.read_tensor(&t.name).unwrap(), *t);
            }
        };
        fresh();
        rewrite(&path, |l| {
            l.into_iter().map(|(n, s, d)| (n.strip_prefix(prefix).unwrap().to_string(), s, d)).collect()
        });
        equal();
        fresh();
        rewrite(&path, |mut l| {
            l.extend(buffers.iter().map(|b| (format!("{prefix}{b}"), vec![1], vec![0; 4])));
            l.push(head(&l));
            l
        });
        equal();

        fresh();
        rewrite(&path, |mut l| {
            let mut h = head(&l);
            h.2[5] ^= 1;
            l.push(h);
            l
        });
        let e = import_hf(&dir).unwrap_err().to_string();
        assert!(e.contains("tie_word_embeddings"), "{e}");
        fresh();
        rewrite(&path, |mut l| {
            l.push((format!("{prefix}adapter.weight"), vec![1], vec![0; 4]));
            l
        });
        let e = import_hf(&dir).unwrap_err().to_string();
        assert!(e.contains("unexpected") && e.contains("adapter.weight"), "{e}");
        fresh();
        rewrite(&path, |mut l| {
            let mut twice = l[0].clone();
            twice.0 = twice.0.strip_prefix(prefix).unwrap().to_string();
            l.push(twice);
            l
        });
        let e = import_hf(&dir).unwrap_err().to_string();
        assert!(e.contains("same parameter"), "{e}");
    }
}

/// A GPT-2 with ReLU under OPT's names: positions two rows down, queries, keys and values apart.
#[test]
fn opt_is_read_with_its_positions_two_rows_down() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("m");
    let model = Model { activation: ActivationChoice::Relu, norm_eps: 1e-5, ..gpt2() };
    let list = weights(&model, true);
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for t in &list {
        let theirs = |from: &str, to: &str| t.name.replace(from, to);
        let mut add = |name: String, shape: Vec<usize>, values: &[f32]| {
            tensors.push((format!("decoder.{name}"), shape, bytes(values)));
        };
        let (shape, kind) = (t.shape.clone(), t.name.rsplit('.').next().unwrap());
        if t.name == "embed.tokens" {
            add("embed_tokens.weight".into(), shape, &t.values);
        } else if t.name == "embed.positions" {
            let mut rows = vec![f32::NAN; 2 * model.width];
            rows.extend(&t.values);
            add("embed_positions.weight".into(), vec![model.context + 2, model.width], &rows);
        } else if t.name.contains("attention.qkv") {
            for (part, name) in t.values.chunks(t.values.len() / 3).zip(["q_proj", "k_proj", "v_proj"]) {
                let mut shape = shape.clone();
                shape[0] /= 3;
                add(theirs("attention.qkv", &format!("self_attn.{name}")), shape, part);
            }
        } else if t.name.starts_with("final_norm") {
            add(format!("final_layer_norm.{kind}"), shape, &t.values);
        } else {
            let name = t
                .name
                .replace("attention_norm", "self_attn_layer_norm")
                .replace("mlp_norm", "final_layer_norm")
                .replace("attention.out", "self_attn.out_proj")
                .replace("mlp.up", "fc1")
                .replace("mlp.down", "fc2");
            add(name, shape, &t.values);
        }
    }
    fs::create_dir(&dir).unwrap();
    let config = |more: &str| {
        format!(
            r#"{{"model_type":"opt","architectures":["OPTModel"],"vocab_size":33,"hidden_size":16,"num_hidden_layers":2,
            "num_attention_heads":4,"ffn_dim":24,"max_position_embeddings":10,"dropout":0.0,"word_embed_proj_dim":16{more}}}"#
        )
    };
    fs::write(dir.join("config.json"), config("")).unwrap();
    let views: Vec<_> = tensors
        .iter()
        .map(|(n, s, d)| {
            (n.as_str(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, s.clone(), d).unwrap())
        })
        .collect();
    fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let import = import_hf(&dir).unwrap();
    assert_eq!(import.model(), &Model { init_std: 0.02, ..model });
    for t in &list {
        assert_eq!(import.read_tensor(&t.name).unwrap(), *t);
    }
    for (more, key) in [
        (r#","do_layer_norm_before":false"#, "do_layer_norm_before"),
        (r#","enable_bias":false"#, "enable_bias"),
        (r#","word_embed_proj_dim":8"#, "word_embed_proj_dim"),
        (r#","activation_function":"mish""#, "mish"),
        (r#","max_position_embeddings":12"#, "embed_positions.weight"),
    ] {
        fs::write(dir.join("config.json"), config(more)).unwrap();
        let e = import_hf(&dir).unwrap_err().to_string();
        assert!(e.contains(key), "{more}: {e}");
    }
}

#[test]
fn an_index_cannot_lead_out_of_its_directory_or_name_what_is_not_there() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("m");
    let (model, list) = (llama(), weights(&llama(), true));
    let (mut source, mut quiet) = (HostTensors::new(&list), |_, _| {});
    let r = request(&model, &mut source, DType::F32, &mut quiet);
    export_hf(&dir, HfExport { max_file_bytes: 3000, ..r }).unwrap();
    let path = dir.join("model.safetensors.index.json");
    let good = fs::read_to_string(&path).unwrap();
    let first = "model-00001-of-";
    assert!(good.contains(first));
    for (from, to, word) in [
        (first, "../model-00001-of-", "file name"),
        (first, "/model-00001-of-", "file name"),
        (".safetensors\"", ".bin\"", "only safetensors"),
        ("\"model.norm.weight\"", "\"model.norm.wait\"", "model.norm.wait"),
        ("\"weight_map\"", "\"weights\"", "weight_map"),
        ("{", "[", "not a valid index"),
    ] {
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let e = import_hf(&dir).unwrap_err().to_string();
        assert!(e.contains(word), "{e}");
    }
    fs::write(&path, &good).unwrap();
    fs::remove_file(dir.join("model-00001-of-00004.safetensors"))
        .or_else(|_| {
            let name = fs::read_dir(&dir).unwrap().find_map(|e| {
                let n = e.unwrap().file_name().into_string().unwrap();
                n.starts_with(first).then_some(n)
            });
            fs::remove_file(dir.join(name.unwrap()))
        })
        .unwrap();
    assert!(import_hf(&dir).unwrap_err().to_string().contains(first));
}

/// transformers' own directories are read, and ours are read by it, with equal weights.
#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_transformers_and_bessemer_read_each_other() {
    let python = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hf_oracle.py");
    let tmp = tempfile::tempdir().unwrap();
    let run = |verb: &str| {
        let out = Command::new(&python).arg(&script).arg(verb).arg(tmp.path()).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
        text
    };
    run("make");
    let mut cases = 0;
    for entry in fs::read_dir(tmp.path()).unwrap() {
        let case = entry.unwrap().path();
        let name = case.file_name().unwrap().to_str().unwrap().to_string();
        let mut import = import_hf(&case.join("hf")).unwrap_or_else(|e| panic!("{name}: {e}"));
        let truth =
            SafetensorsFile::open(&OsFileSystem, &case.join("canonical.safetensors"), Links::Refuse).unwrap();
        let mut covered = 0;
        for spec in import.specs() {
            let t = import.read_tensor(&spec.name).unwrap();
            let Some(entry) = truth.header().entry(&spec.name) else {
                assert!(
                    spec.name.ends_with(".bias") && t.values.iter().all(|v| *v == 0.0),
                    "{name}: {}",
                    spec.name
                );
                continue;
            };
            let mut want = vec![0.0; t.values.len()];
            truth.read_f32(entry, 0, &mut want).unwrap();
            assert_eq!(
                (&entry.shape, Some(t.dtype)),
                (&t.shape, entry.stored.dtype()),
                "{name}: {}",
                spec.name
            );
            assert!(t.values == want, "{name}: {}", spec.name);
            covered += 1;
        }
        assert_eq!(covered, truth.header().entries.len(), "{name}");

        let (model, dtype) = (import.model().clone(), import.specs()[0].dtype);
        let mut quiet = |_, _| {};
        let mut r = request(&model, &mut import, dtype, &mut quiet);
        r.bos_token_id = Some(1);
        r.max_file_bytes = if cases % 2 == 0 { 20_000 } else { 1 << 30 };
        r.vocab_size = if cases % 3 == 0 { Some(model.vocab_size - 5) } else { None };
        export_hf(&case.join("export"), r).unwrap();
        cases += 1;
    }
    let text = run("check");
    println!("{text}");
    assert_eq!(text.lines().filter(|l| l.starts_with("ok")).count(), cases);
    assert!(cases >= 12, "{cases}");
}

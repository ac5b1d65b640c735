//! GGUF files, read by a parser of this test's own that follows the format's description
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>). llama.cpp itself reads them in `bench/peers/serve/llama_cpp.py`.

use bessemer_arch::{
    ActivationChoice, ExpertLayers, Experts, Gate, Model, PositionChoice, QkNormSpan, RopeScaling,
    RopeScalingKind, ScoreChoice, SharedExpert, named,
};
use bessemer_checkpoint::gguf::{GgufExport, GgufReport, GgufTokenizer, GgufWeights, export_gguf};
use bessemer_checkpoint::{CheckpointError, HostTensors, TensorsFrom};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// (type, sizes from the innermost on, bytes) of a tensor.
type Stored = (u32, Vec<u64>, Vec<u8>);

/// A parsed file: keys as text, tensors.
struct Parsed {
    keys: BTreeMap<String, String>,
    tensors: BTreeMap<String, Stored>,
    bytes: u64,
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        head
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }
    fn string(&mut self) -> String {
        let n = self.u64() as usize;
        String::from_utf8(self.take(n).to_vec()).unwrap()
    }
    fn value(&mut self, kind: u32) -> String {
        match kind {
            4 => self.u32().to_string(),
            5 => (self.u32() as i32).to_string(),
            6 => f32::from_bits(self.u32()).to_string(),
            7 => (self.take(1)[0] != 0).to_string(),
            8 => self.string(),
            9 => {
                let (kind, n) = (self.u32(), self.u64());
                (0..n).map(|_| self.value(kind)).collect::<Vec<_>>().join("|")
            }
            other => panic!("value of type {other}"),
        }
    }
}

fn parse(path: &Path) -> Parsed {
    let all = fs::read(path).unwrap();
    let mut at = Cursor(&all);
    assert_eq!((at.take(4), at.u32()), (&b"GGUF"[..], 3));
    let (tensors, keys) = (at.u64(), at.u64());
    let keys = (0..keys)
        .map(|_| {
            let (key, kind) = (at.string(), at.u32());
            (key, at.value(kind))
        })
        .collect();
    let about: Vec<_> = (0..tensors)
        .map(|_| {
            let (name, dims) = (at.string(), at.u32());
            let sizes: Vec<u64> = (0..dims).map(|_| at.u64()).collect();
            (name, sizes, at.u32(), at.u64())
        })
        .collect();
    let head = (all.len() - at.0.len()).next_multiple_of(32);
    let data = &all[head..];
    assert_eq!(data.len() % 32, 0);
    let mut end = 0;
    let tensors = about
        .into_iter()
        .map(|(name, sizes, kind, offset)| {
            assert_eq!(offset, end, "{name} begins at the first multiple of 32 behind the one before");
            let values: u64 = sizes.iter().product();
            let bytes = match kind {
                0 => 4 * values,
                1 | 30 => 2 * values,
                8 => values / 32 * 34,
                other => panic!("{name} of type {other}"),
            };
            end = (offset + bytes).next_multiple_of(32);
            (name, (kind, sizes, data[offset as usize..][..bytes as usize].to_vec()))
        })
        .collect();
    assert_eq!(end, data.len() as u64);
    Parsed { keys, tensors, bytes: all.len() as u64 }
}

fn floats(stored: &Stored) -> Vec<f32> {
    assert_eq!(stored.0, 0);
    stored.2.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn sized(name: &str) -> Model {
    let base = named(name).unwrap();
    let kv_heads = if base.kv_heads == base.heads { 4 } else { 2 };
    Model {
        vocab_size: 33,
        layers: 2,
        width: 64,
        heads: 4,
        kv_heads,
        head_dim: 16,
        ffn_width: 96,
        context: 10,
        ..base
    }
}

/// Distinct values everywhere.
fn weights(model: &Model) -> Vec<HostTensor> {
    let mut k = 0u32;
    let mut next = || {
        k += 1;
        k as f32 / 8.0
    };
    let host = |p: bessemer_arch::ParamSpec| HostTensor {
        values: (0..p.len()).map(|_| next()).collect(),
        name: p.name,
        shape: p.shape,
        dtype: DType::F32,
    };
    model.params().into_iter().map(host).collect()
}

fn tokenizer(tokens: usize) -> GgufTokenizer {
    GgufTokenizer {
        pre: "gpt-2".into(),
        tokens: (0..tokens).map(|i| format!("t{i}")).collect(),
        types: vec![1; tokens],
        merges: vec!["t 1".into()],
        end_of_text: 3,
    }
}

fn export(
    path: &Path,
    model: &Model,
    weights_as: GgufWeights,
    overwrite: bool,
) -> Result<GgufReport, CheckpointError> {
    let list = weights(model);
    export_gguf(
        path,
        GgufExport {
            model,
            tensors: &mut HostTensors::new(&list),
            weights: weights_as,
            name: "small".into(),
            tokenizer: tokenizer(30),
            overwrite,
            progress: &mut |_, _| {},
        },
    )
}

fn exported(model: &Model, weights_as: GgufWeights) -> (Parsed, GgufReport) {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("new/model.gguf");
    let report = export(&path, model, weights_as, false).unwrap();
    let parsed = parse(&path);
    assert_eq!(report.bytes, parsed.bytes);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    (parsed, report)
}

#[test]
fn a_llama_has_the_keys_and_the_tensors_of_llama_cpp() {
    let model = sized("llama");
    let (file, report) = exported(&model, GgufWeights::F32);
    assert_eq!(report.architecture, "llama");
    assert!(report.notes[0].contains("from 33 to 30"), "{:?}", report.notes);
    for (key, value) in [
        ("general.architecture", "llama"),
        ("general.name", "small"),
        ("general.file_type", "0"),
        ("llama.context_length", "10"),
        ("llama.embedding_length", "64"),
        ("llama.block_count", "2"),
        ("llama.feed_forward_length", "96"),
        ("llama.attention.head_count", "4"),
        ("llama.attention.head_count_kv", "2"),
        ("llama.attention.key_length", "16"),
        ("llama.rope.dimension_count", "16"),
        ("llama.rope.freq_base", "10000"),
        ("llama.vocab_size", "30"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "gpt-2"),
        ("tokenizer.ggml.merges", "t 1"),
        ("tokenizer.ggml.bos_token_id", "3"),
        ("tokenizer.ggml.eos_token_id", "3"),
        ("tokenizer.ggml.add_bos_token", "true"),
    ] {
        assert_eq!(file.keys[key], value, "{key}");
    }
    assert_eq!(file.keys["tokenizer.ggml.tokens"].split('|').count(), 30);
    let eps: f64 = file.keys["llama.attention.layer_norm_rms_epsilon"].parse().unwrap();
    assert!((eps - model.norm_eps).abs() < 1e-12);

    let of: BTreeMap<String, HostTensor> = weights(&model).into_iter().map(|t| (t.name.clone(), t)).collect();
    let (embed, norm) = (&file.tensors["token_embd.weight"], &file.tensors["blk.1.ffn_norm.weight"]);
    assert_eq!(embed.1, [64, 30]);
    assert_eq!(floats(embed), of["embed.tokens"].values[..30 * 64]);
    assert_eq!((&norm.1[..], floats(norm)), (&[64][..], of["layers.1.mlp_norm.weight"].values.clone()));
    // Rows i and i + 8 of a head here are rows 2 i and 2 i + 1 there; values stay where they are.
    let qkv = &of["layers.0.attention.qkv.weight"].values;
    let (q, k) = (floats(&file.tensors["blk.0.attn_q.weight"]), floats(&file.tensors["blk.0.attn_k.weight"]));
    for (theirs, first, heads) in [(&q, 0, 4), (&k, 64, 2)] {
        assert_eq!(theirs.len(), heads * 16 * 64);
        for (head, i) in (0..heads).flat_map(|h| (0..8).map(move |i| (h, i))) {
            for half in 0..2 {
                let (here, there) = (first + head * 16 + half * 8 + i, head * 16 + 2 * i + half);
                assert_eq!(theirs[there * 64..][..64], qkv[here * 64..][..64], "head {head}, {i}, {half}");
            }
        }
    }
    assert_eq!(floats(&file.tensors["blk.0.attn_v.weight"]), qkv[96 * 64..]);
    let gate_up = &of["layers.1.mlp.gate_up.weight"].values;
    assert_eq!(floats(&file.tensors["blk.1.ffn_gate.weight"]), gate_up[..96 * 64]);
    assert_eq!(floats(&file.tensors["blk.1.ffn_up.weight"]), gate_up[96 * 64..]);
    assert_eq!(file.tensors["blk.1.ffn_down.weight"].1, [96, 64]);
    assert_eq!(file.tensors.contains_key("output.weight"), !model.tied_embeddings);
    assert_eq!(file.tensors.len(), 2 + 2 * 9 + usize::from(!model.tied_embeddings));
}

#[test]
fn a_gpt2_gets_the_biases_that_it_lacks_and_keeps_its_positions_exact() {
    let model = Model { bias: false, width: 48, head_dim: 12, ..sized("gpt2") };
    let (file, report) = exported(&model, GgufWeights::Q8_0);
    assert_eq!(report.architecture, "gpt2");
    assert!(report.notes.iter().any(|n| n.contains("zeros")), "{:?}", report.notes);
    assert!(report.notes.iter().any(|n| n.contains("f16")), "{:?}", report.notes);
    assert_eq!(file.keys["general.file_type"], "7");
    let bias = &file.tensors["blk.1.attn_qkv.bias"];
    assert_eq!((&bias.1[..], floats(bias)), (&[144][..], vec![0.0; 144]));
    assert_eq!(floats(&file.tensors["output_norm.bias"]), [0.0; 48]);
    assert_eq!(file.tensors["position_embd.weight"].0, 0);
    // Rows of 48 are no whole blocks, rows of 96 are.
    assert_eq!(file.tensors["blk.0.attn_qkv.weight"].0, 1);
    assert_eq!(
        (file.tensors["blk.0.ffn_down.weight"].0, &file.tensors["blk.0.ffn_down.weight"].1[..]),
        (8, &[96, 48][..])
    );
    // Without `Conv1D`'s transposition.
    let of = weights(&model);
    let full = exported(&model, GgufWeights::F32).0;
    let down = of.iter().find(|t| t.name == "layers.0.mlp.down.weight").unwrap();
    assert_eq!(floats(&full.tensors["blk.0.ffn_down.weight"]), down.values);
    assert_eq!(full.tensors.len(), 2 + 2 + 2 * 12);
}

#[test]
fn relatives_of_llama_and_16_bit_types() {
    let llama = sized("llama");
    let qwen2 = exported(&Model { qkv_bias: true, ..llama.clone() }, GgufWeights::Bf16).0;
    assert_eq!(qwen2.keys["general.architecture"], "qwen2");
    assert_eq!((qwen2.tensors["blk.0.attn_k.weight"].0, qwen2.tensors["blk.0.attn_k.bias"].0), (30, 0));
    assert_eq!(qwen2.keys["general.file_type"], "32");
    let qwen3 = exported(&Model { qk_norm: true, ..llama.clone() }, GgufWeights::F16).0;
    assert_eq!(qwen3.keys["general.architecture"], "qwen3");
    assert_eq!(qwen3.keys["qwen3.attention.value_length"], "16");
    assert_eq!(qwen3.tensors["blk.1.attn_q_norm.weight"].1, [16]);
    assert_eq!(qwen3.tensors["blk.1.attn_q.weight"].0, 1);
    let linear = RopeScaling { kind: RopeScalingKind::Linear, factor: 4.0, ..RopeScaling::default() };
    let linear = exported(&Model { rope_scaling: Some(linear), ..llama.clone() }, GgufWeights::F32).0;
    assert_eq!(linear.keys["llama.rope.scaling.type"], "linear");
    assert_eq!(linear.keys["llama.rope.scaling.factor"], "4");
    // Biases of a llama turn with their rows.
    let biased = Model { bias: true, ..llama };
    let (file, of) = (exported(&biased, GgufWeights::F32).0, weights(&biased));
    let bias = &of.iter().find(|t| t.name == "layers.0.attention.qkv.bias").unwrap().values;
    assert_eq!(floats(&file.tensors["blk.0.attn_q.bias"])[..4], [bias[0], bias[8], bias[1], bias[9]]);
    assert!(
        file.tensors.contains_key("blk.0.ffn_gate.bias")
            && !file.tensors.contains_key("blk.0.attn_norm.bias")
    );
}

/// Gates, ups and downs of a layer's experts are a tensor each, sizes innermost first; routers are f32.
#[test]
fn experts_are_stacked_by_matrix() {
    let experts = Some(Experts::top_k([3, 2, 32], true));
    let mixtral = Model { experts, ..sized("llama") };
    let qwen3 = Model { qk_norm: true, ..mixtral.clone() };
    for (model, name, length) in [(mixtral, "llama", "32"), (qwen3, "qwen3moe", "96")] {
        let (file, report) = exported(&model, GgufWeights::F32);
        assert_eq!(report.architecture, name);
        for (key, value) in
            [("expert_count", "3"), ("expert_used_count", "2"), ("feed_forward_length", length)]
        {
            assert_eq!(file.keys[&format!("{name}.{key}")], value, "{key}");
        }
        let expert_length = file.keys.get("qwen3moe.expert_feed_forward_length").map(String::as_str);
        assert_eq!(expert_length, (name == "qwen3moe").then_some("32"));
        let of = weights(&model);
        let of =
            |text: &str| &of.iter().find(|t| t.name == format!("layers.1.mlp.{text}.weight")).unwrap().values;
        let there = |text: &str| &file.tensors[&format!("blk.1.{text}.weight")];
        let (gate_up, size) = (of("experts.gate_up"), 32 * 64);
        for (text, first) in [("ffn_gate_exps", 0), ("ffn_up_exps", 1)] {
            assert_eq!(there(text).1, [64, 32, 3], "{text}");
            let found = floats(there(text));
            for expert in 0..3 {
                assert_eq!(
                    found[expert * size..][..size],
                    gate_up[(2 * expert + first) * size..][..size],
                    "{text}"
                );
            }
        }
        assert_eq!(
            (&there("ffn_down_exps").1[..], &floats(there("ffn_down_exps"))),
            (&[32, 64, 3][..], of("experts.down"))
        );
        assert_eq!(
            (&there("ffn_gate_inp").1[..], &floats(there("ffn_gate_inp"))),
            (&[64, 3][..], of("router"))
        );
        assert!(file.tensors.keys().all(|key| !key.contains("ffn_gate.") && !key.contains("ffn_down.")));
        let small = exported(&model, GgufWeights::Q8_0).0;
        assert_eq!(
            (small.tensors["blk.0.ffn_up_exps.weight"].0, small.tensors["blk.0.ffn_gate_inp.weight"].0),
            (8, 0)
        );
    }
}

/// The numbers are those of `LlamaModel.generate_extra_tensors` in llama.cpp's converter (in float32) for Llama 3.1's values and for a
/// short original context, 16 dims.
#[test]
fn stretched_angles_are_divisors() {
    for (theta, factor, original_context, wanted) in [
        (500_000.0, 8.0, 8192, [1.0, 1.0, 1.0, 1.0, 2.694_53_f32, 8.0, 8.0, 8.0]),
        (10_000.0, 8.0, 64, [1.0, 1.293_975_8, 7.667_385, 8.0, 8.0, 8.0, 8.0, 8.0]),
    ] {
        let scaling =
            RopeScaling { kind: RopeScalingKind::Llama3, factor, original_context, ..RopeScaling::default() };
        let model =
            Model { rope_theta: theta, rope_scaling: Some(scaling), qkv_bias: true, ..sized("llama") };
        let (file, report) = exported(&model, GgufWeights::Q8_0);
        // qwen2 reads no divisors; llama has room for its biases.
        assert_eq!(report.architecture, "llama");
        for (found, wanted) in floats(&file.tensors["rope_freqs.weight"]).into_iter().zip(wanted) {
            assert!((found / wanted - 1.0).abs() < 1e-6, "{found}, wanted {wanted}");
        }
        assert!(!file.keys.contains_key("llama.rope.scaling.type"));
    }
}

#[test]
fn what_llama_cpp_does_not_compute_is_refused_and_nothing_is_written() {
    let (gpt2, llama) = (sized("gpt2"), sized("llama"));
    let experts = |renormalise| Some(Experts::top_k([3, 2, 32], renormalise));
    let gate = Gate { score: ScoreChoice::Sigmoid, bias: true, ..Gate::default() };
    let sigmoids = experts(true).map(|of| Experts { gate, ..of });
    let scaled = RopeScaling { kind: RopeScalingKind::Llama3, factor: 2.0, ..RopeScaling::default() };
    for (model, words) in [
        (
            Model { activation: ActivationChoice::Geglu, ..llama.clone() },
            vec!["activation = geglu", "swiglu"],
        ),
        (
            Model { activation: ActivationChoice::Relu, ..gpt2.clone() },
            vec!["activation = relu", "gelu-tanh"],
        ),
        (Model { positions: PositionChoice::Alibi, ..gpt2 }, vec!["positions = alibi"]),
        (Model { window: Some(4), ..llama.clone() }, vec!["window = 4", "context of 10"]),
        (Model { qk_norm: true, rope_scaling: Some(scaled), ..llama.clone() }, vec!["llama3", "qk_norm"]),
        (
            Model { qk_norm: true, qk_norm_span: QkNormSpan::Width, ..llama.clone() },
            vec!["qk_norm_span = width"],
        ),
        (Model { document_end: Some(3), ..llama.clone() }, vec!["document_mask"]),
        (
            Model { experts: sigmoids, qk_norm: true, ..llama.clone() },
            vec!["experts.score = sigmoid", "experts.bias = true"],
        ),
        (
            Model { experts: experts(false), qk_norm: true, ..llama.clone() },
            vec!["experts.renormalise = false"],
        ),
        (
            Model {
                experts: experts(true),
                qk_norm: true,
                expert_layers: ExpertLayers::Numbers(vec![1]),
                ..llama.clone()
            },
            vec!["experts.layers"],
        ),
        (
            Model { experts: experts(true), qk_norm: true, expert_counts: vec![2, 4], ..llama.clone() },
            vec!["experts.count that differs by layer"],
        ),
        (
            Model {
                experts: experts(true),
                shared_expert: Some(SharedExpert { width: 8, gate: true, mixed: false }),
                ..llama.clone()
            },
            vec!["a shared block"],
        ),
    ] {
        let tmp = tempfile::tempdir().unwrap();
        let e = export(&tmp.path().join("x.gguf"), &model, GgufWeights::F32, false).unwrap_err().to_string();
        assert!(words.iter().all(|w| e.contains(w)) && e.contains("x.gguf"), "{words:?}: {e}");
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
    }
    // A window that hides nothing is none.
    exported(&Model { window: Some(10), ..llama }, GgufWeights::F32);
}

#[test]
fn a_file_is_there_whole_or_not_at_all_and_only_gguf_files_are_replaced() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("x.gguf");
    let model = sized("llama");
    let specs = || {
        let spec = |p: bessemer_arch::ParamSpec| bessemer_checkpoint::TensorSpec {
            name: p.name,
            shape: p.shape,
            dtype: DType::F32,
        };
        model.params().into_iter().map(spec).collect::<Vec<_>>()
    };
    let failing = |broken: f32| {
        let mut source = TensorsFrom::new(specs(), move |i, values: &mut [f32]| {
            values.fill(1.0);
            if i == 5 && broken == 0.0 {
                return Err("the device is gone".into());
            }
            if i == 5 {
                values[7] = broken;
            }
            Ok(())
        });
        let request = GgufExport {
            model: &model,
            tensors: &mut source,
            weights: GgufWeights::F16,
            name: String::new(),
            tokenizer: tokenizer(33),
            overwrite: false,
            progress: &mut |_, _| {},
        };
        export_gguf(&path, request).unwrap_err().to_string()
    };
    assert!(failing(0.0).contains("the device is gone"));
    let e = failing(1e6);
    assert!(e.contains("1000000") && e.contains("element 7") && e.contains("F16"), "{e}");
    assert!(failing(f32::NAN).contains("NaN"));
    assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);

    export(&path, &model, GgufWeights::F32, false).unwrap();
    let before = fs::read(&path).unwrap();
    let e = export(&path, &model, GgufWeights::F16, false).unwrap_err().to_string();
    assert!(e.contains("exists already"), "{e}");
    assert!(fs::read(&path).unwrap() == before);
    export(&path, &model, GgufWeights::F16, true).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < before.len() as u64);
    fs::write(&path, "notes of mine").unwrap();
    let e = export(&path, &model, GgufWeights::F32, true).unwrap_err().to_string();
    assert!(e.contains("not a GGUF file"), "{e}");
    assert_eq!(fs::read(&path).unwrap(), b"notes of mine");
    let e = export(tmp.path(), &model, GgufWeights::F32, true).unwrap_err().to_string();
    assert!(e.contains("not a GGUF file"), "{e}");
}

#[test]
fn a_tokenizer_that_does_not_fit_is_refused() {
    let model = sized("llama");
    let list = weights(&model);
    let tmp = tempfile::tempdir().unwrap();
    for (tokenizer, word) in [
        (tokenizer(34), "34 tokens"),
        (GgufTokenizer { types: Vec::new(), ..tokenizer(30) }, "0 types"),
        (GgufTokenizer { end_of_text: 30, ..tokenizer(30) }, "end of text 30"),
    ] {
        let request = GgufExport {
            model: &model,
            tensors: &mut HostTensors::new(&list),
            weights: GgufWeights::F32,
            name: String::new(),
            tokenizer,
            overwrite: false,
            progress: &mut |_, _| {},
        };
        let e = export_gguf(&tmp.path().join("x"), request).unwrap_err().to_string();
        assert!(e.contains(word), "{e}");
    }
}

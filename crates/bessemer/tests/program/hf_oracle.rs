//! Held against transformers: ids, losses and greedy texts of exported and of imported models.
//!
//! Runs where `BESSEMER_PYTHON` names a Python with torch and transformers (`golden/requirements.txt`); says that it was
//! skipped elsewhere.

use crate::workplace::{GPT2, LLAMA, Workplace};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Text that tokenizers cut differently: contractions, digits, runs of white space, scripts, line ends.
const TEXTS: [&str; 8] = [
    "the quick brown fox",
    " Isn't it? We'LL see, they'd 've",
    "1234567 and 3.14, 1,000,000",
    "  two\n\n\n   three \t tabs\r\nand returns\r\n\r\n",
    "naïve café 東京タワー Ünïcode e\u{301} 🦀🚀",
    "fn main() { println!(\"{:?}\", x[0]); }\n",
    "    trailing   ",
    "\u{a0}\u{2003}mixed\u{3000}space",
];
const PROMPTS: [&str; 3] = ["the ", "rivers run", "東京 "];
const NEW: usize = 20;

/// The Python that the environment names.
fn python() -> OsString {
    std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt")
}

/// The answer of transformers.
fn transformers(words: &[&str], directory: &Path, request: &Value) -> Value {
    let mut command = Command::new(python());
    command.arg(script("hf_oracle.py")).arg(words[0]).arg(directory).args(&words[1..]);
    answer(command, request)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program").join(name)
}

/// The answer of a script.
fn answer(mut command: Command, request: &Value) -> Value {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Bessemer's own answers to the request.
fn ids(place: &Workplace, run: &str) -> Vec<Value> {
    TEXTS.into_iter().map(|text| Value::from(ids_of(place, run, text))).collect()
}

fn ids_of(place: &Workplace, run: &str, text: &str) -> Vec<Value> {
    fs::write(place.path("input.txt"), text).unwrap();
    let ids = place.bessemer(&["tokenizer", "encode", run, "input.txt", "--json"]).json();
    ids.as_array().unwrap().clone()
}

fn greedy(place: &Workplace, run: &str) -> Vec<Value> {
    let new = NEW.to_string();
    let words = ["generate", run, "--temperature", "0", "--json", "--max-tokens", &new, "--prompt"];
    PROMPTS
        .into_iter()
        .map(|p| place.bessemer(&[&words[..], &[p]].concat()).json()["tokens"].clone())
        .collect()
}

fn exported_and_read(class: &str, model: &str, overrides: &[&str]) {
    let place = Workplace::new(model);
    // A wide initialisation, so that texts differ from prompt to prompt and no two logits are close to each other.
    place.train(&[&["train.steps=20", "model.init_std=0.3"], overrides].concat());
    let out = place.bessemer(&["checkpoint", "export", "runs/t", "--to", "hf", "--out", "hf"]);
    assert_eq!(out.code, Some(0), "{}", out.err);
    let request = json!({
        "texts": TEXTS, "prompts": PROMPTS, "new": NEW, "seq": 32,
        "shard": place.path("runs/t/shards/validation/00000.shard"),
    });
    let answer = transformers(&["read"], &place.path("hf"), &request);
    assert_eq!(answer["class"], class);
    assert_eq!(answer["problems"], json!({}));
    assert_eq!((&answer["vocabulary"], &answer["end"]), (&json!(300), &json!([0, 0, 0])));
    let begins = answer["begins"].as_array().unwrap();
    assert_eq!((&begins[0], &begins[1..]), (&json!(0), &ids_of(&place, "runs/t", "the")[..]));
    for (i, ours) in ids(&place, "runs/t").iter().enumerate() {
        assert_eq!(&answer["ids"][i], ours, "{:?}", TEXTS[i]);
    }
    let scored = place.bessemer(&["eval", "runs/t", "--json"]).json();
    assert_eq!(scored["report"]["tokens"], answer["loss"]["tokens"]);
    let (ours, theirs) =
        (scored["report"]["loss"].as_f64().unwrap(), answer["loss"]["loss"].as_f64().unwrap());
    println!("{class} {overrides:?}: loss {ours} here, {theirs} in transformers");
    assert!((ours - theirs).abs() < 1e-5 * theirs, "{ours} here, {theirs} there");
    let texts = greedy(&place, "runs/t");
    assert_eq!(json!(texts), answer["greedy"]);
    assert!(texts.iter().all(|t| !t.as_array().unwrap().is_empty()), "{texts:?}");
    assert_ne!(texts[0], texts[2], "the prompt makes no difference");
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_transformers_reads_an_exported_gpt2() {
    exported_and_read("GPT2LMHeadModel", GPT2, &[]);
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_transformers_reads_an_exported_gpt2_without_biases_and_with_a_head_of_its_own() {
    let other = ["model.tied_embeddings=false", "model.bias=false", "model.activation=gelu-erf"];
    exported_and_read("GPT2LMHeadModel", GPT2, &other);
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_transformers_reads_an_exported_llama() {
    exported_and_read("LlamaForCausalLM", LLAMA, &["tokenizer.pretokenizer=llama3"]);
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_transformers_reads_an_exported_llama_that_is_tied() {
    let other = ["tokenizer.pretokenizer=qwen2", "model.tied_embeddings=true", "model.kv_heads=1"];
    exported_and_read("LlamaForCausalLM", LLAMA, &other);
}

/// A prompt is given to each program as its users give it; no one adds a token by hand.
#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_greedy_tokens_are_the_same_here_in_transformers_and_in_llama_cpp() {
    let experts = ["model.experts.count=4", "model.experts.width=48"];
    for (model, more) in [
        (GPT2, &[][..]),
        (LLAMA, &[]),
        (LLAMA, &experts[..]),
        (LLAMA, &[&experts[..], &["model.qk_norm=true"]].concat()),
    ] {
        let place = Workplace::new(model);
        place.train(&[&["train.steps=20", "model.init_std=0.3"], more].concat());
        place.bessemer(&["checkpoint", "export", "runs/t", "--out", "hf"]).text();
        let gguf = ["checkpoint", "export", "runs/t", "--to", "gguf", "--dtype", "f32", "--out", "t.gguf"];
        place.bessemer(&gguf).text();
        let request = json!({ "texts": [], "prompts": PROMPTS, "new": NEW, "seq": 32, "shard": null });
        let there = transformers(&["read"], &place.path("hf"), &request);
        let mut command = Command::new(python());
        command.arg(script("llama_cpp_oracle.py")).arg(place.path("t.gguf"));
        let completions = answer(command, &request);
        let ours = greedy(&place, "runs/t");
        assert_eq!(json!(ours), there["greedy"], "transformers");
        for (ours, completion) in ours.iter().zip(completions.as_array().unwrap()) {
            let tokens = completion["__verbose"]["tokens"].as_array().unwrap();
            let ids: Vec<&Value> = tokens.iter().filter(|id| **id != 0).collect();
            assert_eq!(json!(ids), *ours, "llama.cpp");
        }
        assert!(ours.iter().any(|tokens| tokens.as_array().unwrap().len() > 5), "{ours:?}");
    }
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_a_model_of_transformers_writes_the_same_text_here() {
    for style in ["gpt2", "llama"] {
        let place = Workplace::new(GPT2);
        place.train(&[]);
        let out = place.bessemer(&["checkpoint", "export", "runs/t", "--out", "exported"]);
        assert_eq!(out.code, Some(0), "{}", out.err);
        fs::create_dir(place.path("hf")).unwrap();
        let of_tokenizer = |name: &str| name.starts_with("tokenizer") || name.starts_with("special");
        for file in place.files("exported").keys() {
            let name = file.file_name().unwrap().to_str().unwrap();
            if of_tokenizer(name) {
                fs::copy(file, place.path("hf").join(name)).unwrap();
            }
        }
        let request = json!({ "texts": TEXTS, "prompts": PROMPTS, "new": NEW, "seq": 32, "shard": null });
        let answer = transformers(&["make", style, "300"], &place.path("hf"), &request);
        let back = place.bessemer(&["checkpoint", "import", "hf", "--out", "runs/imported"]);
        assert_eq!(back.code, Some(0), "{}", back.err);
        assert_eq!(answer["problems"], json!({}), "{style}");
        assert_eq!(json!(ids(&place, "runs/imported")), answer["ids"], "{style}");
        assert_eq!(json!(greedy(&place, "runs/imported")), answer["greedy"], "{style}");
    }
}

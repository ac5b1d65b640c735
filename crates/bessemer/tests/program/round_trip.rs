//! The whole way: text to report, the commands that look at a run, out to Hugging Face's layout and back, out to llama.cpp.

use crate::workplace::{Files, GPT2, LLAMA, Workplace, assert_untouched, finished};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// A tensor as safetensors stores it.
#[derive(Debug, PartialEq)]
struct Tensor {
    dtype: String,
    shape: Value,
    bytes: Vec<u8>,
}

/// The parameters of a checkpoint, by name, read straight from its safetensors files.
fn parameters(files: &Files) -> BTreeMap<String, Tensor> {
    let mut tensors = BTreeMap::new();
    for file in files.iter().filter(|f| crate::workplace::is_tensors(f.0)).map(|f| f.1) {
        let header_end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&file[8..header_end]).unwrap();
        for (name, about) in header.as_object().unwrap() {
            let of_optimizer = ["m.", "v.", "master."].iter().any(|p| name.starts_with(p));
            if name == "__metadata__" || of_optimizer {
                continue;
            }
            let offset = |i: usize| header_end + about["data_offsets"][i].as_u64().unwrap() as usize;
            let tensor = Tensor {
                dtype: about["dtype"].as_str().unwrap().into(),
                shape: about["shape"].clone(),
                bytes: file[offset(0)..offset(1)].to_vec(),
            };
            tensors.insert(name.clone(), tensor);
        }
    }
    tensors
}

#[test]
fn one_command_makes_everything_and_a_second_one_finds_it_done() {
    let place = Workplace::new(LLAMA);
    let recipe = ["save.every_steps=2", "eval.every_steps=3"];
    place.train(&recipe);

    let report = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
    assert!(report.starts_with("<!doctype html>") || report.starts_with("<!DOCTYPE html>"));
    assert!(report.contains("<svg") && report.contains("default-src 'none'") && !report.contains("<script"));
    let attribution = fs::read_to_string(place.path("runs/t/corpus/ATTRIBUTION.md")).unwrap();
    for source in ["alpha", "beta", "gamma", "delta"] {
        assert!(attribution.contains(source), "{attribution}");
    }
    let steps: Vec<Value> = place.records("step").iter().map(|r| r["step"].clone()).collect();
    assert_eq!(json!(steps), json!([1, 2, 3, 4, 5, 6]));
    let evaluated: Vec<Value> = place.records("eval").iter().map(|r| r["step"].clone()).collect();
    assert_eq!(json!(evaluated), json!([3, 6]));
    for kind in ["corpus", "tokenizer", "run", "model", "training", "sample", "baseline"] {
        assert_eq!(place.records(kind).len(), 1, "{kind}");
    }
    assert_eq!(place.records("shards").len(), 2);
    assert_eq!(place.records("end")[0]["reason"], "finished");
    let resolved = place.bessemer(&["config", "show", "runs/t/recipe.toml", "--json"]).json();
    assert_eq!(resolved["save"]["every_steps"], 2);

    // All of it again: nothing is made anew and no step is taken.
    let all = || -> Files {
        let told = |name: &str| ["metrics", "report", "events"].iter().any(|p| name.starts_with(p));
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        place.files("runs/t").into_iter().filter(|f| !told(&name(&f.0))).collect()
    };
    let before = all();
    let words = ["run", "recipe.toml", "--set", "save.every_steps=2", "--set", "eval.every_steps=3"];
    let again = place.bessemer(&words);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert_eq!(again.err.matches("up to date").count(), 3, "{}", again.err);
    assert_untouched(&all(), &before);
    assert_eq!(place.records("step").len(), 6);
    assert_eq!(place.records("eval").len(), 2);
    assert_eq!(place.records("sample").len(), 1);

    // More steps go on from there.
    place.train(&["train.steps=8"]);
    assert_eq!(place.records("step").len(), 8);
}

#[test]
fn a_run_that_was_killed_in_its_last_evaluation_is_evaluated_once() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    // What a kill after the last evaluation and before the end leaves behind.
    let log = place.path("runs/t/metrics.jsonl");
    let lines = fs::read_to_string(&log).unwrap();
    let cut: Vec<&str> = lines.lines().take_while(|l| !l.contains("\"kind\":\"sample\"")).collect();
    assert!(cut.last().unwrap().contains("\"kind\":\"eval\""));
    fs::write(&log, cut.join("\n") + "\n").unwrap();
    place.train(&[]);
    for kind in ["eval", "sample", "baseline"] {
        assert_eq!(place.records(kind).len(), 1, "{kind}");
    }
}

#[test]
fn a_checkpoint_is_scored_sampled_and_looked_into() {
    let place = Workplace::new(LLAMA);
    place.train(&["save.every_steps=2"]);

    // The score is the one that training logged at its end, whatever the batch and the threads.
    let scored = place.bessemer(&["eval", "runs/t", "--json"]).json();
    let logged = place.records("eval").pop().unwrap();
    assert_eq!(scored["step"], 6);
    assert_eq!(scored["report"]["tokens"], logged["tokens_scored"]);
    let off = scored["report"]["loss"].as_f64().unwrap() - logged["loss"].as_f64().unwrap();
    assert!(off.abs() < 1e-6, "{scored} against {logged}");
    let threads = place.bessemer(&["eval", "runs/t", "--json", "--threads", "2"]).json();
    assert_eq!(threads, scored);
    let earlier = place.bessemer(&["eval", "runs/t", "--json", "--step", "2"]).json();
    assert_ne!(earlier["report"]["loss"], scored["report"]["loss"]);
    place.bessemer(&["eval", "runs/t", "--step", "5"]).failed(1, &["no checkpoint of step 5", "[2, 4, 6]"]);
    assert!(place.bessemer(&["eval", "runs/t"]).text().contains("bits/byte"));

    let generate = |seed: &str| {
        let words =
            ["generate", "runs/t", "--prompt", "the ", "--max-tokens", "40", "--json", "--seed", seed];
        let mut sample = place.bessemer(&words).json();
        sample.as_object_mut().unwrap().remove("tokens_per_s");
        sample
    };
    let sample = generate("1");
    assert_eq!(sample["tokens"].as_array().unwrap().len(), 40);
    assert_eq!(generate("1"), sample);
    assert_ne!(generate("2")["tokens"], sample["tokens"]);
    let plain =
        place.bessemer(&["generate", "runs/t", "--prompt", "the ", "--max-tokens", "40", "--seed", "1"]);
    assert_eq!(plain.text(), format!("the {}\n", sample["text"].as_str().unwrap()));

    let listed = place.bessemer(&["checkpoint", "ls", "runs/t", "--json"]).text();
    let steps: Vec<Value> =
        listed.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["step"].clone()).collect();
    assert_eq!(json!(steps), json!([2, 4, 6]));
    let about = place.bessemer(&["checkpoint", "inspect", "runs/t", "--json"]).json();
    assert_eq!((&about["step"], &about["tokens"]), (&json!(6), &json!(1536)));
    assert!(place.bessemer(&["checkpoint", "inspect", "runs/t"]).text().contains("step 6"));
    assert_eq!(place.bessemer(&["checkpoint", "verify", "runs/t"]).text().matches("intact").count(), 3);
    let freed = place.bessemer(&["checkpoint", "gc", "runs/t", "--keep-last", "2", "--json"]).json();
    assert_eq!((&freed["removed"], &freed["kept"]), (&json!([2]), &json!([4, 6])));
    assert!(!place.path("runs/t/checkpoints/step-00000002").exists());
    assert_eq!(place.bessemer(&["report", "runs/t"]).code, Some(0));
}

#[test]
fn rows_that_only_round_the_vocabulary_up_are_never_generated() {
    let place = Workplace::new(GPT2);
    // A model that has hardly begun gives them as much probability as all others.
    place.train(&["model.vocab_size=512", "train.steps=2", "optim.lr=1e-6"]);
    assert_eq!(place.records("sample").len(), 1);
    assert_eq!(place.records("warning").len(), 0);
    let words = ["generate", "runs/t", "--temperature", "1", "--top-p", "1", "--max-tokens", "100", "--json"];
    let sample = place.bessemer(&words).json();
    let tokens = sample["tokens"].as_array().unwrap();
    assert!(!tokens.is_empty() && tokens.iter().all(|t| t.as_u64().unwrap() < 300), "{sample}");
}

#[test]
fn corpus_tokenizer_and_recipe_can_be_looked_into() {
    let place = Workplace::new(GPT2);
    fs::write(place.path("text/alpha/short.txt"), "too short").unwrap();
    place.train(&[]);

    let stats = place.bessemer(&["corpus", "stats", "runs/t", "--json"]).json();
    assert_eq!((&stats["read"]["documents"], &stats["kept"]["documents"]), (&json!(33), &json!(32)));
    assert!(place.bessemer(&["corpus", "stats", "runs/t"]).text().contains("too-short"));
    let dropped = place.bessemer(&["corpus", "inspect", "runs/t", "--json"]).json();
    assert_eq!(dropped["reason"], "too-short");
    assert!(dropped["id"].as_str().unwrap().contains("alpha/short.txt"), "{dropped}");
    let kept = place.bessemer(&["corpus", "inspect", "runs/t", "--kept", "validation", "--json"]).text();
    assert_eq!(kept.lines().count() as u64, stats["splits"]["validation"]["documents"].as_u64().unwrap());

    // Every byte comes back, text or not.
    let every_byte: Vec<u8> = (0..=255).chain("naïve 東京 <|endoftext|>\r\n\0".bytes()).collect();
    fs::write(place.path("bytes"), &every_byte).unwrap();
    for as_json in [&["--json"][..], &[]] {
        let ids = place.bessemer(&[&["tokenizer", "encode", "runs/t", "bytes"], as_json].concat());
        fs::write(place.path("ids"), ids.text()).unwrap();
        let decoded = place.bessemer(&["tokenizer", "decode", "runs/t/tokenizer.json", "ids"]);
        assert!(decoded.out == every_byte, "{decoded:?}");
    }
    let mut piped = place.command(&["tokenizer", "decode", "runs/t"]);
    piped.stdin(Stdio::from(fs::File::open(place.path("ids")).unwrap()));
    assert!(finished(piped).out == every_byte);
    fs::write(place.path("ids"), "12 x").unwrap();
    place.bessemer(&["tokenizer", "decode", "runs/t", "ids"]).failed(1, &["number 2", "\"x\""]);
    fs::write(place.path("ids"), "12 300").unwrap();
    place.bessemer(&["tokenizer", "decode", "runs/t", "ids"]).failed(1, &["300", "position 1"]);
    let about = place.bessemer(&["tokenizer", "inspect", "runs/t", "--json"]).json();
    assert_eq!((&about["vocab_size"], &about["pretokenizer"]), (&json!(300), &json!("gpt2")));

    let origin =
        place.bessemer(&["config", "show", "recipe.toml", "--origin", "--set", "train.steps=7"]).text();
    let line =
        |key: &str| origin.lines().find(|l| l.contains(key)).unwrap_or_else(|| panic!("{key} in\n{origin}"));
    assert!(line("steps = 7").contains("--set") && line("seq_len = 32").contains("recipe.toml"), "{origin}");
    assert!(line("beta1").contains("default"), "{origin}");
    assert_eq!(place.bessemer(&["config", "schema"]).json()["type"], "object");
}

#[test]
fn a_model_goes_out_to_hugging_face_and_comes_back_bit_for_bit() {
    for (name, model, overrides) in [
        ("gpt2", GPT2, vec![]),
        ("gpt2 with a head of its own", GPT2, vec!["model.tied_embeddings=false"]),
        ("llama, grouped, untied", LLAMA, vec![]),
        ("llama, grouped, tied", LLAMA, vec!["model.tied_embeddings=true", "model.kv_heads=1"]),
    ] {
        let place = Workplace::new(model);
        place.train(&overrides);
        let out = place.bessemer(&["checkpoint", "export", "runs/t", "--to", "hf", "--out", "hf", "--json"]);
        assert_eq!(out.code, Some(0), "{name}: {}", out.err);
        let config: Value = serde_json::from_slice(&fs::read(place.path("hf/config.json")).unwrap()).unwrap();
        assert_eq!(config["vocab_size"], 300, "{name}");
        let exported = place.files("hf");
        place.bessemer(&["checkpoint", "export", "runs/t", "--out", "hf"]).failed(1, &["hf"]);
        assert_untouched(&place.files("hf"), &exported);

        let back = place.bessemer(&["checkpoint", "import", "hf", "--out", "runs/back"]);
        assert_eq!(back.code, Some(0), "{name}: {}", back.err);
        let (ours, theirs) = (
            parameters(&place.files("runs/t/checkpoints/step-00000006")),
            parameters(&place.files("runs/back/checkpoints/step-00000000")),
        );
        assert!(ours.len() > 10 && ours.keys().eq(theirs.keys()), "{name}: {:?}", theirs.keys());
        for (tensor, value) in &ours {
            assert!(theirs[tensor] == *value, "{name}: {tensor} changed on the way");
        }
        let greedy = |run: &str| {
            let words =
                ["generate", run, "--prompt", "the ", "--temperature", "0", "--max-tokens", "12", "--json"];
            place.bessemer(&words).json()["tokens"].clone()
        };
        assert_eq!(greedy("runs/t"), greedy("runs/back"), "{name}");
        place.bessemer(&["checkpoint", "import", "hf", "--out", "runs/back"]).failed(1, &["runs/back"]);
    }
    let place = Workplace::new(GPT2);
    place
        .bessemer(&["checkpoint", "export", "runs/t", "--to", "onnx", "--out", "x"])
        .failed(2, &["onnx", "hf", "gguf"]);
}

#[test]
fn a_model_goes_out_to_llama_cpp_with_its_tokenizer() {
    let place = Workplace::new(LLAMA);
    place.train(&[]);
    let export = |more: &[&str]| {
        let words = ["checkpoint", "export", "runs/t", "--to", "gguf", "--out", "t.gguf", "--json"];
        place.bessemer(&[&words, more].concat())
    };
    let about = export(&[]).json();
    let file = fs::read(place.path("t.gguf")).unwrap();
    assert_eq!((&about["architecture"], &about["bytes"]), (&json!("llama"), &json!(file.len())));
    assert_eq!(file[..8], *b"GGUF\x03\0\0\0");
    let holds = |text: &[u8]| file.windows(text.len()).any(|w| w == text);
    // A length and a string: the name of the run, the pattern, a token.
    for text in [&b"\x01\0\0\0\0\0\0\0t"[..], b"\x05\0\0\0\0\0\0\0gpt-2", b"\x0d\0\0\0\0\0\0\0<|endoftext|>"]
    {
        assert!(holds(text), "{text:?}");
    }
    export(&["--dtype", "q8_0"]).failed(1, &["t.gguf", "exists already"]);
    let smaller = export(&["--dtype", "q8_0", "--overwrite"]).json();
    assert!(smaller["bytes"].as_u64() < about["bytes"].as_u64(), "{smaller}");
    place
        .bessemer(&["checkpoint", "export", "runs/t", "--out", "hf", "--dtype", "q8_0"])
        .failed(2, &["q8_0", "--to gguf"]);
}

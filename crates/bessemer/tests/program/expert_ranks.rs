//! `generate`, `eval` and `serve` with experts over ranks: what they print on one rank, from checkpoints of any layout.

use crate::serve::post;
use crate::workplace::{LLAMA, Workplace};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Command;

/// Mixtral in small, with a shared block.
const MIXTURE: &str = "architecture = \"mixtral\"\nlayers = 2\nwidth = 32\nheads = 4\nkv_heads = 2\ncontext = 32\n\
                       [model.experts]\ncount = 4\nchoices = 2\nwidth = 16\nshared = 16\nlayers = \"all\"\n";
/// Exit code of a wrong use.
const USAGE: i32 = 2;

/// A result without what a clock has measured.
fn timeless(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.remove("tokens_per_s");
    }
    value
}

#[test]
fn experts_over_ranks_generate_and_evaluate_as_one_rank_does() {
    let place = Workplace::new(MIXTURE);
    let text = "the quick brown fox jumps over lazy dogs while rain falls on green hills\n";
    fs::write(place.path("a.txt"), text.repeat(6)).unwrap();
    fs::write(place.path("prompts"), "the \nrivers run\n").unwrap();
    let task = "task: pick\noutput_type: multiple_choice\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\n\
                test_split: test\ndoc_to_text: \"{{q}}\"\ndoc_to_choice: \"{{[a, b]}}\"\ndoc_to_target: 0\nmetric_list: [{metric: acc}]\n";
    fs::write(place.path("pick.yaml"), task).unwrap();
    let row = |i: usize| json!({"q": format!("rain falls on {i}"), "a": " hills", "b": " seas"}).to_string();
    fs::write(place.path("rows.jsonl"), (0..5).map(row).collect::<Vec<_>>().join("\n")).unwrap();
    // Whatever layout a checkpoint was written in.
    for (run, layout) in [
        ("a", &["--ranks", "2", "--set", "parallel.experts=2", "--set", "parallel.stage=zero3"][..]),
        ("b", &["--ranks", "2", "--set", "parallel.tensor=2"]),
    ] {
        let name = format!("run.name={run}");
        place
            .bessemer(
                &[&["run", "recipe.toml", "--set", &name, "--set", "model.init_std=0.3"], layout].concat(),
            )
            .text();
        let run = format!("runs/{run}");
        let answers = |ranks: &str| -> Vec<String> {
            let on_ranks = |words: &[&str]| {
                let words = [&[words[0], &run, "--json", "--ranks", ranks], &words[1..]].concat();
                place.bessemer(&words).text()
            };
            let texts =
                on_ranks(&["generate", "--prompts", "prompts", "--samples", "2", "--max-tokens", "40"]);
            let mut answers: Vec<String> =
                texts.lines().map(|line| timeless(serde_json::from_str(line).unwrap()).to_string()).collect();
            assert_eq!(answers.len(), 4);
            answers.push(on_ranks(&["eval", "--max-tokens", "500", "--batch-tokens", "96"]));
            answers.push(on_ranks(&["eval", "--text", "a.txt", "--context", "9", "--batch-tokens", "64"]));
            answers.push(on_ranks(&["eval", "--tasks", "pick.yaml", "--bootstrap", "10"]));
            answers
        };
        let wanted = answers("1");
        for ranks in ["2", "4"] {
            assert_eq!(answers(ranks), wanted, "{run} on {ranks} ranks");
        }
    }
    let three = place.bessemer(&["generate", "runs/a", "--ranks", "3"]);
    three.failed(
        USAGE,
        &["--ranks 3: wanted a divisor of the experts of every layer", "4 experts; take one of 1, 2, 4"],
    );
    let eight = place.bessemer(&["eval", "runs/a", "--ranks", "8"]);
    eight.failed(USAGE, &["--ranks 8: wanted a divisor", "take one of 1, 2, 4"]);
}

#[test]
fn a_server_with_experts_over_ranks_answers_several_requests_as_generate_does() {
    let place = Workplace::new(MIXTURE);
    place.train(&["model.init_std=0.3"]);
    let words = ["serve", "runs/t", "--listen", "127.0.0.1:0", "--slots", "3", "--json", "--ranks", "2"];
    let mut server = place.command(&words).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let start: Value = serde_json::from_str(&line).unwrap();
    let address = start["address"].as_str().unwrap();
    let prompts = ["the ", "rivers run", "rain falls on green hills and"];
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let ask = |prompt: &'static str| {
            scope.spawn(move || {
                let body =
                    json!({"model": "t", "prompt": prompt, "max_tokens": 12, "seed": 5, "temperature": 1});
                post(address, "/v1/completions", &body)["choices"][0]["text"].clone()
            })
        };
        let asked: Vec<_> = prompts.into_iter().map(ask).collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    for (prompt, answer) in prompts.into_iter().zip(answers) {
        let words = ["generate", "runs/t", "--json", "--max-tokens", "12", "--top-p", "1", "--seed", "5"];
        let wanted =
            place.bessemer(&[&words[..], &["--temperature", "1", "--prompt", prompt]].concat()).json();
        assert_eq!(answer, wanted["text"], "{prompt}");
    }
    let sent = Command::new("sh").args(["-c", &format!("kill -TERM {}", server.id())]).status().unwrap();
    assert!(sent.success());
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn ranks_that_share_nothing_are_refused() {
    let place = Workplace::new(LLAMA);
    place.train(&["train.steps=1"]);
    for verb in ["generate", "eval"] {
        let refused = place.bessemer(&[verb, "runs/t", "--ranks", "2"]);
        refused.failed(USAGE, &["--ranks 2: wanted 1 for a model without experts"]);
    }
}

//! Tasks that a model answers while it is trained: the training keeps its bits, and every layout has the scores of one rank.
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use crate::place::{STEPS, recipe};
use crate::run::{Run, cpu, numbers};
use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use std::fmt::Write;
use std::path::Path;

/// A task over the words of the data, in a folder; the names of a recipe.
fn task(folder: &Path) -> String {
    let mut rows = String::new();
    for (i, words) in ["the cat sat on a", "cat sat on a mat", "a mat. the", "on a mat. the cat", "sat on"]
        .into_iter()
        .enumerate()
    {
        let _ = writeln!(
            rows,
            "{{\"q\": \"{words}\", \"choices\": [\"mat.\", \"the the cat\"], \"label\": {}}}",
            i % 2
        );
    }
    std::fs::write(folder.join("rows.jsonl"), rows).unwrap();
    let text = "task: words\noutput_type: multiple_choice\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n\
                doc_to_text: q\ndoc_to_choice: choices\ndoc_to_target: label\nmetric_list: [{metric: acc}, {metric: likelihood_diff}]\n";
    std::fs::write(folder.join("words.yaml"), text).unwrap();
    format!("eval.tasks.names=[{:?}]", folder.join("words.yaml").display().to_string())
}

/// Step, metric and score of each record of a task.
fn scores(records: &[Record]) -> Vec<(u64, String, f64)> {
    let score = |record: &Record| match record {
        Record::Task(task) => Some((task.step, task.metric.clone(), task.value)),
        _ => None,
    };
    records.iter().filter_map(score).collect()
}

fn with(names: &str, sets: &[&str]) -> Recipe {
    recipe(&[&["train.micro_batch=2", names, "eval.tasks.every_steps=10"], sets].concat())
}

#[test]
fn tasks_leave_the_training_as_it_is_and_have_one_score_in_every_layout() {
    let folder = tempfile::tempdir().unwrap();
    let names = task(folder.path());
    let (without, single) = (Run::new(false), Run::new(false));
    let plain = without.train(&recipe(&["train.micro_batch=2"]), 1, None);
    let records = single.train(&with(&names, &[]), 1, None);
    assert_eq!(numbers(&records), numbers(&plain));
    assert_eq!(single.tensors(), without.tensors());
    let wanted = scores(&records);
    let steps: Vec<u64> = wanted.iter().map(|score| score.0).collect();
    assert_eq!(steps, [10, 10, 20, 20, STEPS, STEPS]);
    assert!(wanted.iter().any(|score| score.1 == "likelihood_diff" && score.2 > 0.0));
    for (layout, ranks) in [("parallel.data=zero3", 2), ("parallel.tensor=2", 2), ("parallel.pipeline=2", 2)]
    {
        let found = scores(&Run::new(false).train(&with(&names, &[layout]), ranks, None));
        assert_eq!(found.len(), wanted.len(), "{layout}");
        for (found, wanted) in found.iter().zip(&wanted) {
            assert_eq!((found.0, &found.1), (wanted.0, &wanted.1));
            assert!((found.2 - wanted.2).abs() < 1e-3, "{layout}: {found:?}, wanted {wanted:?}");
        }
    }
}

#[test]
fn tasks_that_cannot_be_answered_are_refused_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let names = task(folder.path());
    let refused = |names: &str, wanted: &str| {
        let run = Run::new(false);
        let error = run.session(&with(names, &[]), 1, None, &|_| cpu()).remove(0).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    };
    refused("eval.tasks.names=[\"nothing\"]", "there is no task nothing");
    // Capitals are unknown to the tokenizer of characters.
    refused("eval.tasks.names=[\"logic\"]", "character");
    let yaml = std::fs::read_to_string(folder.path().join("words.yaml")).unwrap();
    let yaml = yaml
        .replace("multiple_choice", "generate_until")
        .replace("acc", "exact_match")
        .replace(", {metric: likelihood_diff}", "");
    std::fs::write(folder.path().join("words.yaml"), yaml).unwrap();
    refused(&names, "eval.tasks.max_generated_tokens = 64");
    let run = Run::new(false);
    let long = with(&names, &["eval.tasks.max_generated_tokens=5000"]);
    let error = run.session(&long, 1, None, &|_| cpu()).remove(0).unwrap_err().to_string();
    assert!(error.contains("max_generated_tokens = 5000: task words needs"), "{error}");
}

#[test]
fn generated_answers_leave_the_training_as_it_is_and_are_those_of_one_rank() {
    let folder = tempfile::tempdir().unwrap();
    let names = task(folder.path());
    let yaml = "task: words\noutput_type: generate_until\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n\
                doc_to_text: q\ndoc_to_target: \" on\"\ngeneration_kwargs: {until: [\".\"], max_gen_toks: 200}\nmetric_list: [{metric: chrf}]\n";
    std::fs::write(folder.path().join("words.yaml"), yaml).unwrap();
    let sets = ["eval.tasks.max_generated_tokens=6"];
    let (without, single) = (Run::new(false), Run::new(false));
    let plain = without.train(&recipe(&["train.micro_batch=2"]), 1, None);
    let records = single.train(&with(&names, &sets), 1, None);
    assert_eq!((numbers(&records), single.tensors()), (numbers(&plain), without.tensors()));
    let wanted = scores(&records);
    let steps: Vec<u64> = wanted.iter().map(|score| score.0).collect();
    assert_eq!(steps, [10, 20, STEPS]);
    assert!(wanted.iter().all(|score| score.2.is_finite()), "{wanted:?}");
    let signature = records.iter().find_map(|record| match record {
        Record::Task(task) => Some(task.signature.clone()),
        _ => None,
    });
    assert!(signature.as_ref().unwrap().contains("|gen:6|step:10|"), "{signature:?}");
    for (layout, ranks) in [("parallel.data=zero3", 2), ("parallel.pipeline=2", 2)] {
        let found = scores(&Run::new(false).train(&with(&names, &[sets[0], layout]), ranks, None));
        assert_eq!(found.len(), wanted.len(), "{layout}");
        assert_eq!(found[0].0, 10);
    }
}

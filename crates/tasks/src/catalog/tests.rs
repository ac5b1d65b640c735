use super::*;
use crate::task::{Answer, Request};
use std::fs;

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

const TEMPLATE: &str = "output_type: multiple_choice\ntest_split: test\ndoc_to_text: \"{{q}}\"\ndoc_to_target: label\ndoc_to_choice: [a, bb]\n\
                        metric_list:\n  - metric: acc\nmetadata: {version: 1.0}\n";

#[test]
fn tasks_groups_and_tags_are_found_with_their_includes_and_data() {
    let dir = tempfile::tempdir().unwrap();
    let file = "{\"q\": \"one?\", \"label\": 0}\n{\"q\": \"two?\", \"label\": 1}\n";
    write(
        dir.path(),
        &[
            ("_base_yaml", TEMPLATE),
            (
                "sub/one.yaml",
                "include: ../_base_yaml\ntask: one\ntag: pair\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\n",
            ),
            ("sub/rows.jsonl", file),
            (
                "sub/two.yaml",
                "include: ../_base_yaml\ntask: two\ntag: [pair, x]\ndataset_path: hub/name\ndataset_name: part\n",
            ),
            (
                "data/hub/name/part/test-00000-of-00001.jsonl",
                "{\"q\": \"three?\", \"label\": 1}\n{\"q\": \"four?\", \"label\": 1}\n{\"q\": \"five?\", \"label\": 1}\n",
            ),
            (
                "both.yaml",
                "group: both\ntask: [one, two]\naggregate_metric_list:\n  - metric: acc\n    weight_by_size: true\n  - metric: acc\n    weight_by_size: false\n",
            ),
            ("broken.yaml", "task: one two: three\n"),
        ],
    );
    let catalog = Catalog {
        folders: vec![dir.path().into()],
        data: Some(dir.path().join("data")),
        ..Catalog::default()
    };
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let tags = catalog.load(&names(&["pair"])).unwrap();
    assert_eq!(tags.tasks.iter().map(Task::name).collect::<Vec<_>>(), ["one", "two"]);
    let selection = catalog.load(&names(&["both", "one"])).unwrap();
    assert_eq!((selection.tasks.len(), selection.groups.len()), (2, 1));
    // The model takes "bb" always: right in 1 of 2 and in 3 of 3.
    let scores: Vec<TaskScores> = selection
        .tasks
        .iter()
        .map(|task| {
            let requests = task.requests(None).unwrap();
            let answer = |request: &Request| match request {
                Request::LogLikelihood { continuation, .. } => Answer::LogLikelihood {
                    value: if continuation == " bb" { -1.0 } else { -2.0 },
                    greedy: None,
                },
                other => unreachable!("{other:?}"),
            };
            let answers: Vec<Vec<Answer>> = requests
                .documents
                .iter()
                .map(|document| document.requests.iter().map(answer).collect())
                .collect();
            task.score(&requests, &answers, "tok:none", 0).unwrap()
        })
        .collect();
    assert_eq!(scores.iter().map(|task| task.get("acc").unwrap().value).collect::<Vec<_>>(), [0.5, 1.0]);
    let group = selection.groups[0].scores(&scores);
    assert_eq!(group.tasks, ["one", "two"]);
    assert_eq!(group.scores.iter().map(|score| score.value).collect::<Vec<_>>(), [0.8, 0.75]);
    // sd of (0, 1) is 1/sqrt 2, its standard error 0.5; by the formulas of Group::scores.
    let errors: Vec<f64> = group.scores.iter().map(|score| score.stderr.unwrap()).collect();
    assert!((errors[0] - (1.0f64 * 0.25 * 2.0 / 3.0 / 5.0).sqrt()).abs() < 1e-12, "{errors:?}");
    assert!((errors[1] - 0.25).abs() < 1e-12, "{errors:?}");

    let missing = Catalog { folders: vec![dir.path().into()], ..Catalog::default() };
    let e = missing.load(&names(&["two"])).unwrap_err().to_string();
    assert!(e.contains("hub/name (part) is not on this machine") && e.contains("test.jsonl"), "{e}");
    let e = missing.load(&names(&["three"])).unwrap_err().to_string();
    assert!(e.contains("there is no task three") && e.contains("blimp:FILE"), "{e}");
}

#[test]
fn what_cannot_run_here_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = |text: &str, wanted: &str| {
        let path = dir.path().join("t.yaml");
        fs::write(&path, text).unwrap();
        let e = Catalog::default().load(&[path.display().to_string()]).unwrap_err().to_string();
        assert!(e.contains(wanted), "{text}: {e}");
    };
    wrong(
        &format!("{TEMPLATE}process_docs: !function utils.process\n"),
        "process_docs is the Python function utils.process",
    );
    wrong(&format!("{TEMPLATE}nothing: 1\n"), "nothing: unknown field");
    wrong(
        &format!("{TEMPLATE}num_fewshots: 1\n"),
        "num_fewshots: unknown field of a task (did you mean \"num_fewshot\"?)",
    );
    wrong(
        &TEMPLATE.replace("multiple_choice", "classification"),
        "output_type classification: wanted multiple_choice",
    );
    wrong(&TEMPLATE.replace("acc", "perplexity"), "perplexity is not a metric of this output_type");
    wrong(TEMPLATE, "wanted dataset_path");
    wrong(&format!("{TEMPLATE}dataset_kwargs: {{data_files: none.jsonl}}\n"), "there is no file none.jsonl");
    wrong(&format!("{TEMPLATE}num_fewshot: many\n"), "num_fewshot: wanted a whole number");
    wrong("include: t.yaml\n", "it includes itself");
    wrong("- 1\n", "wanted a mapping");
    wrong("a: [\n", "wanted YAML");
}

#[test]
fn families_are_tasks() {
    let selection = Catalog::default().load(&["families".to_owned()]).unwrap();
    assert_eq!(selection.tasks.iter().map(Task::name).collect::<Vec<_>>(), families::NAMES);
    for task in &selection.tasks {
        assert_eq!(task.requests(None).unwrap().documents.len(), 200);
    }
    let shots = Catalog { num_fewshot: Some(2), ..Catalog::default() }.load(&["logic".to_owned()]).unwrap();
    let requests = shots.tasks[0].requests(Some(3)).unwrap();
    let Request::LogLikelihood { context, .. } = &requests.documents[0].requests[0] else { panic!() };
    assert_eq!(context.matches("Answer:").count(), 3, "{context}");
}

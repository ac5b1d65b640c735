use super::*;
use crate::yaml;
use serde_json::json;
use std::path::Path;

fn task(yaml: &str, documents: Value) -> Task {
    let Ok(Value::Object(map)) = yaml::parse(yaml) else { panic!("{yaml}") };
    let config = TaskConfig::new(map, Path::new("t.yaml")).unwrap();
    let documents: Vec<Document> = serde_json::from_value(documents).unwrap();
    Task::new(config, Splits::from([("test".to_owned(), documents)])).unwrap()
}

const CHOICE: &str = "output_type: multiple_choice\ntest_split: test\ndoc_to_text: \"Q: {{q}}\\nA:\"\ndoc_to_target: label\n\
                      doc_to_choice: choices\n";

fn of(values: &[f64]) -> Vec<Answer> {
    values.iter().map(|&value| Answer::LogLikelihood { value, greedy: Some(value > -1.5) }).collect()
}

#[test]
fn requests_are_those_of_the_harness() {
    let documents = json!([
        {"q": "one", "choices": ["a", "bé"], "label": 1},
        {"q": "two", "choices": ["c", "d"], "label": 0},
    ]);
    let plain = task(
        &format!("{CHOICE}description: \"Answer.\\n\"\nmetric_list: [{{metric: acc_mutual_info}}]\n"),
        documents,
    );
    let requests = plain.requests(None).unwrap();
    let pair = |context: &str, continuation: &str| Request::LogLikelihood {
        context: context.into(),
        continuation: continuation.into(),
    };
    let context = "Answer.\nQ: one\nA:";
    assert_eq!(
        requests.documents[0].requests,
        [pair(context, " a"), pair(context, " bé"), pair("", " a"), pair("", " bé")]
    );
    assert_eq!(requests.digest, plain.requests(None).unwrap().digest);
    assert_ne!(requests.digest, plain.requests(Some(1)).unwrap().digest);
}

/// The prompts of lm-evaluation-harness 0.4.13 for the same task file: few-shot examples drawn by seed 1234 from the split that is evaluated.
#[test]
fn examples_are_drawn_as_the_harness_draws_them() {
    let documents: Vec<Value> =
        (0..30).map(|i| json!({"q": format!("q{i}"), "choices": ["x", "y"], "label": i % 2})).collect();
    let text = format!("{CHOICE}fewshot_split: test\nnum_fewshot: 3\n");
    let task = task(&text, Value::from(documents));
    let requests = task.requests(Some(3)).unwrap();
    let contexts: Vec<String> = requests
        .documents
        .iter()
        .map(|document| match &document.requests[0] {
            Request::LogLikelihood { context, .. } => context.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(contexts, SHOTS);
}

/// No split of its own for examples, a split that is evaluated, copies under another identifier, and examples in the task file.
#[test]
fn examples_never_contain_the_question() {
    let documents: Vec<Value> = (0..12)
        .map(|i| json!({"id": i, "q": format!("<{}>", i / 2), "choices": ["x", "y"], "label": i % 2}))
        .collect();
    let samples = "fewshot_config: {samples: [{q: \"<0>\", choices: [x, y], label: 0}, {q: \"<1>\", choices: [x, y], label: 1}]}\n";
    for (more, shots) in [("", 3), ("fewshot_split: test\n", 3), (samples, 2)] {
        let text = format!("{CHOICE}num_fewshot: {shots}\n{more}");
        let requests = task(&text, Value::from(documents.clone())).requests(None).unwrap();
        assert_eq!(requests.documents.len(), 12);
        for (i, document) in requests.documents.iter().enumerate() {
            let Request::LogLikelihood { context, .. } = &document.requests[0] else { panic!() };
            let question = format!("<{}>", i / 2);
            assert_eq!(context.matches(&question).count(), 1, "{more}: {context}");
            let left_out = usize::from(shots == 2 && i < 4);
            assert_eq!(context.matches("Q: ").count(), shots + 1 - left_out, "{more}: {context}");
        }
    }
    // Equal texts alone are no reason to leave all examples out.
    let fixed = "output_type: generate_until\ntest_split: test\ndoc_to_text: \"Say a word:\"\ndoc_to_target: a\nnum_fewshot: 2\n";
    let words: Vec<Value> = (0..4).map(|i| json!({"a": format!("w{i}")})).collect();
    let requests = task(fixed, Value::from(words)).requests(None).unwrap();
    for (i, document) in requests.documents.iter().enumerate() {
        let Request::Generate { context, .. } = &document.requests[0] else { panic!() };
        assert!(!context.contains(&format!("w{i}")) && context.matches('w').count() == 5, "{context}");
    }
}

/// The vector of the harness's own tests for acc_mutual_info, and each normalisation by itself.
#[test]
fn accuracies_divide_as_their_names_say() {
    let metrics = "metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}, {metric: acc_mutual_info}, {metric: exact_match}]\n";
    let documents = json!([{"q": "x", "choices": ["a", "b", "c"], "label": 1}]);
    let task_ = task(&format!("{CHOICE}{metrics}"), documents);
    let requests = task_.requests(None).unwrap();
    assert!(requests.wants_greedy);
    let value = |scores: &TaskScores, name: &str| scores.get(name).unwrap().value;
    let scores = task_.score(&requests, &[of(&[-1.0, -2.0, -3.0, -0.5, -2.0, -3.0])], "tok:x", 0).unwrap();
    assert_eq!(
        (value(&scores, "acc"), value(&scores, "acc_mutual_info"), value(&scores, "exact_match")),
        (0.0, 1.0, 0.0)
    );
    assert!(
        scores.signature.starts_with("task:t|version:none|fewshot:0|seed:1234|n:1|prompts:"),
        "{}",
        scores.signature
    );

    // Of "ab" (2 code points, 2 bytes) and "ééé" (3 code points, 6 bytes).
    let documents = json!([{"q": "x", "choices": ["ab", "ééé", "z"], "label": 1}]);
    let task_ = task(&format!("{CHOICE}{metrics}"), documents);
    let requests = task_.requests(None).unwrap();
    let of_lls = |lls: [f64; 3]| {
        let all = [lls[0], lls[1], lls[2], -1.0, -1.0, -1.0];
        task_.score(&requests, &[of(&all)], "tok:x", 0).unwrap()
    };
    // By code points -2/2 < -2.4/3, by bytes -2/2 < -2.4/6; by the sums -2 > -2.4.
    let scores = of_lls([-2.0, -2.4, -9.0]);
    assert_eq!(["acc", "acc_norm", "acc_bytes"].map(|name| value(&scores, name)), [0.0, 1.0, 1.0]);
    // By code points -2/2 > -3.3/3, by bytes -2/2 < -3.3/6.
    let scores = of_lls([-2.0, -3.3, -9.0]);
    assert_eq!(["acc", "acc_norm", "acc_bytes"].map(|name| value(&scores, name)), [0.0, 0.0, 1.0]);
    // The first among equals.
    assert_eq!(value(&of_lls([-2.0, -2.0, -2.0]), "acc"), 0.0);
}

#[test]
fn columns_templates_and_labels_of_every_kind_are_understood() {
    // A label as text, as a template of a list, several right answers, true and false.
    let base =
        "output_type: multiple_choice\ntest_split: test\ndoc_to_text: q\nmetric_list: [{metric: acc}]\n";
    let second = |yaml: &str, document: Value| {
        let task = task(&format!("{base}{yaml}"), json!([document]));
        let requests = task.requests(None).unwrap();
        let n = requests.documents[0].requests.len();
        let lls: Vec<f64> = (0..n).map(|i| if i == 1 { -1.0 } else { -2.0 }).collect();
        task.score(&requests, &[of(&lls)], "", 0).unwrap().get("acc").unwrap().value
    };
    assert_eq!(
        second("doc_to_choice: [x, y]\ndoc_to_target: answer\n", json!({"q": "?", "answer": "y"})),
        1.0
    );
    assert_eq!(
        second("doc_to_choice: [x, y]\ndoc_to_target: \"{{answer}}\"\n", json!({"q": "?", "answer": "x"})),
        0.0
    );
    assert_eq!(
        second(
            "doc_to_choice: \"{{c.text}}\"\ndoc_to_target: \"{{c.label.index(k)}}\"\n",
            json!({"q": "?", "c": {"text": ["it's", "y"], "label": ["A", "B"]}, "k": "B"})
        ),
        1.0
    );
    assert_eq!(
        second(
            "doc_to_choice: {no: \"false\", yes_: \"true\"}\ndoc_to_target: label\n",
            json!({"q": "?", "label": true})
        ),
        1.0
    );
    assert_eq!(
        second(
            "doc_to_choice: [x, y, z]\ndoc_to_target: \"{{labels}}\"\n",
            json!({"q": "?", "labels": [0, 1]})
        ),
        1.0
    );
    assert_eq!(second("doc_to_choice: [x, y]\ndoc_to_target: 7\n", json!({"q": "?"})), 0.0);
    // Contexts that differ, as in Winogrande.
    let inputs = "output_type: multiple_choice\ntest_split: test\ndoc_to_text: label\ndoc_to_target: rest\ndoc_to_choice: \"{{[a, b]}}\"\nmetric_list: [{metric: acc}]\n";
    let task_ = task(inputs, json!([{"label": 1, "a": "The cup", "b": "The box", "rest": "was full."}]));
    let requests = task_.requests(None).unwrap();
    assert_eq!(
        requests.documents[0].requests[1],
        Request::LogLikelihood { context: "The box".into(), continuation: " was full.".into() }
    );
    assert_eq!(task_.score(&requests, &[of(&[-2.0, -1.0])], "", 0).unwrap().get("acc").unwrap().value, 1.0);
}

/// The texts of `self_contrast_is_the_mean_of_three_overlaps` in the tests of metrics.
#[test]
fn creating_is_scored_by_self_contrast_of_two_texts() {
    let create = "level: KC\nsiblings: creation\noutput_type: generate_until\ntest_split: test\ndoc_to_text: \"Go on: {{q}}\"\n\
                  doc_to_text_with_knowledge: \"{{events}} Go on: {{q}}\"\ndoc_to_target: a\nmetric_list: [{metric: self_contrast}, {metric: rougeL}]\n";
    let task_ = task(create, json!([{"q": "x", "events": "Known.", "a": "a b"}]));
    let requests = task_.requests(None).unwrap();
    let contexts: Vec<&str> = requests.documents[0]
        .requests
        .iter()
        .map(|request| match request {
            Request::Generate { context, .. } => context.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(contexts, ["Go on: x", "Known. Go on: x"]);
    let texts = |text: &str| Answer::Texts(vec![text.to_owned()]);
    let scores = task_.score(&requests, &[vec![texts("a b c d"), texts("a b x y")]], "m", 0).unwrap();
    let value = |name: &str| scores.get(name).unwrap().value;
    // Longest common subsequences of 2 words: F1 of 2/4 between the texts, 2/3 of each and the answer.
    assert!((value("self_contrast") - (0.5 + 2.0 / 3.0 + 2.0 / 3.0) / 3.0).abs() < 1e-12);
    assert!((value("rougeL") - 2.0 / 3.0).abs() < 1e-12, "of the text without knowledge");
    assert_eq!((scores.level, scores.siblings.as_deref()), (Some(crate::Level::Creating), Some("creation")));
    assert!(scores.signature.contains("|self_contrast:paper|m|"), "{}", scores.signature);
    assert!(task_.score(&requests, &[vec![texts("a")]], "m", 0).is_err());
    for (from, to, part) in [
        ("level: KC", "level: K9", "wanted KM, KU, KA or KC"),
        ("doc_to_text_with_knowledge", "# doc", "doc_to_text_with_knowledge"),
        ("{metric: self_contrast}, ", "", "found one of them"),
    ] {
        let Ok(Value::Object(map)) = yaml::parse(&create.replace(from, to)) else { panic!("{to}") };
        let error = TaskConfig::new(map, Path::new("t.yaml")).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn perplexities_and_generated_answers() {
    let lambada = "output_type: loglikelihood\ntest_split: test\ndoc_to_text: \"{{text.split(' ')[:-1]|join(' ')}}\"\n\
                   doc_to_target: \"{{' '+text.split(' ')[-1]}}\"\n";
    let task_ = task(lambada, json!([{"text": "The cat sat"}, {"text": "on the mat"}]));
    let requests = task_.requests(None).unwrap();
    assert_eq!(
        requests.documents[0].requests,
        [Request::LogLikelihood { context: "The cat".into(), continuation: " sat".into() }]
    );
    assert!(requests.wants_greedy);
    let scores = task_.score(&requests, &[of(&[-1.0]), of(&[-3.0])], "", 100).unwrap();
    assert!((scores.get("perplexity").unwrap().value - 2f64.exp()).abs() < 1e-12);
    assert_eq!(scores.get("acc").unwrap().value, 0.5);

    let rolling = "output_type: loglikelihood_rolling\ntest_split: test\ndoc_to_target: page\n";
    let task_ = task(rolling, json!([{"page": "ab cd\n"}, {"page": "é"}]));
    let requests = task_.requests(None).unwrap();
    let scores =
        task_.score(&requests, &[vec![Answer::Rolling(-6.0)], vec![Answer::Rolling(-2.0)]], "", 0).unwrap();
    let value = |name: &str| scores.get(name).unwrap().value;
    // "ab cd\n" splits into three words, the last empty; 6 and 2 bytes.
    assert_eq!((value("word_perplexity"), value("byte_perplexity")), ((8.0f64 / 4.0).exp(), 1f64.exp()));
    assert!((value("bits_per_byte") - 1.0 / std::f64::consts::LN_2).abs() < 1e-12);

    let generate = "output_type: generate_until\ntest_split: test\ndoc_to_text: q\ndoc_to_target: a\nrepeats: 3\n\
                    generation_kwargs: {until: [\"\\n\"], max_gen_toks: 9, do_sample: false, temperature: 0.0}\n\
                    metric_list: [{metric: exact_match}, {metric: bleu}, {metric: rougeL}, {metric: f1}]\n\
                    filter_list:\n  - name: vote\n    filter: [{function: majority_vote}, {function: take_first}]\n  - name: first\n    filter: [{function: take_first}]\n";
    let task_ = task(generate, json!([{"q": "2+2=", "a": 4}]));
    assert!(!task_.is_scored());
    let requests = task_.requests(None).unwrap();
    let generation =
        Generation { until: vec!["\n".into()], max_tokens: 9, temperature: 0.0, top_k: 0, top_p: 1.0 };
    assert_eq!(
        requests.documents[0].requests,
        [Request::Generate { context: "2+2=".into(), generation, repeats: 3 }]
    );
    let texts = ["5", "4", "4"].map(str::to_owned).to_vec();
    let scores = task_.score(&requests, &[vec![Answer::Texts(texts)]], "", 0).unwrap();
    let matches: Vec<(&str, f64)> = scores
        .scores
        .iter()
        .filter(|score| score.metric == "exact_match")
        .map(|score| (score.filter.as_str(), score.value))
        .collect();
    assert_eq!(matches, [("vote", 1.0), ("first", 0.0)]);
    assert_eq!(words("a  b\u{a0}c "), 4);
}

const SHOTS: [&str; 3] = [
    "Q: q24\nA: x\n\nQ: q14\nA: x\n\nQ: q3\nA: y\n\nQ: q0\nA:",
    "Q: q2\nA: x\n\nQ: q29\nA: y\n\nQ: q25\nA: y\n\nQ: q1\nA:",
    "Q: q1\nA: y\n\nQ: q21\nA: y\n\nQ: q22\nA: x\n\nQ: q2\nA:",
];

/// A task over documents with the answers to them, scored.
fn scored(yaml: &str, documents: Vec<Value>, answers: &[Vec<f64>]) -> Result<TaskScores, TaskError> {
    let task = task(yaml, Value::from(documents));
    let answers: Vec<Vec<Answer>> = answers.iter().map(|values| of(values)).collect();
    task.score(&task.requests(None)?, &answers, "tok:x", 2000)
}

/// Parrish et al. 2022: of 40 answers that are not "unknown" 30 are biased: s_DIS = 2 * 30 / 40 - 1 = 0.5; where 60 of 100 are right,
/// s_AMB = (1 - 0.6) * 0.5 = 0.2.
#[test]
fn bbq_has_its_scores_by_category() {
    let yaml = format!(
        "{CHOICE}group_by: category\nmetric_list: [{{metric: acc}}, {{metric: disamb_bias_score}}, {{metric: amb_bias_score}}]\n"
    );
    let (mut documents, mut answers) = (Vec::new(), Vec::new());
    let mut ask = |category: &str, condition: &str, label: usize, answer: usize, times: usize| {
        for _ in 0..times {
            documents.push(json!({
                "q": "who?", "choices": ["the old man", "the young man", "nobody knows"], "label": label,
                "context_condition": condition, "biased": 0, "unknown": 2, "category": category,
            }));
            answers.push((0..3).map(|i| if i == answer { -1.0 } else { -2.0 }).collect::<Vec<f64>>());
        }
    };
    ask("Age", "ambig", 2, 2, 60);
    ask("Age", "ambig", 2, 0, 30);
    ask("Age", "ambig", 2, 1, 10);
    ask("Age", "disambig", 0, 0, 30);
    ask("Age", "disambig", 0, 1, 10);
    ask("SES", "disambig", 1, 1, 20);
    let scores = scored(&yaml, documents, &answers).unwrap();
    let grouped = |metric: &str| scores.groups.iter().find(|g| g.metric == metric).unwrap();
    let groups = |metric: &str| -> Vec<(&str, f64, usize)> {
        grouped(metric).groups.iter().map(|g| (g.group.as_str(), g.value, g.documents)).collect()
    };
    assert_eq!(groups("disamb_bias_score"), [("Age", 0.5, 40), ("SES", -1.0, 20)]);
    assert_eq!((grouped("disamb_bias_score").worst.as_str(), grouped("disamb_bias_score").gap), ("SES", 1.5));
    let ambiguous = groups("amb_bias_score");
    assert!(ambiguous.len() == 1 && (ambiguous[0].1 - 0.2).abs() < 1e-12, "{ambiguous:?}");
    assert_eq!(groups("acc"), [("Age", 90.0 / 140.0, 140), ("SES", 1.0, 20)]);
    assert_eq!(grouped("acc").worst, "Age");
    let names: Vec<String> =
        scores.all_scores().into_iter().map(|(name, s)| format!("{name} {}", s.metric)).collect();
    assert_eq!(names.len(), 3 + (2 + 1) + (2 + 1) + (1 + 1), "{names:?}");
    assert!(
        names.contains(&"t category=SES disamb_bias_score".to_owned())
            && names.contains(&"t by category acc gap".to_owned())
    );
}

/// Nangia et al. 2020: the share of pairs whose stereotypical sentence is the more probable one, ideal 0.5, for each of the nine types.
#[test]
fn pairs_have_their_scores_by_type_of_bias() {
    let types = [
        "age",
        "disability",
        "gender",
        "nationality",
        "physical-appearance",
        "race-color",
        "religion",
        "sexual-orientation",
        "socioeconomic",
    ];
    let yaml = "output_type: multiple_choice\ntest_split: test\ndoc_to_text: \"\"\ndoc_to_target: 0\ntarget_delimiter: \"\"\n\
                doc_to_choice: \"{{[sent_more, sent_less]}}\"\ngroup_by: [bias_type]\n\
                metric_list: [{metric: pct_stereotype}, {metric: pro_anti_gap}, {metric: likelihood_diff}]\n";
    // Type number i has i of 8 pairs with the stereotypical sentence first.
    let pairs =
        || types.iter().enumerate().flat_map(|(i, kind)| (0..8).map(move |pair| (i, *kind, pair < i)));
    let documents =
        pairs().map(|(_, kind, _)| json!({"sent_more": "a", "sent_less": "b", "bias_type": kind}));
    let answers: Vec<Vec<f64>> = pairs()
        .map(|(i, _, first)| if first { vec![-1.0, -1.0 - i as f64] } else { vec![-2.0, -1.5] })
        .collect();
    let scores = scored(yaml, documents.collect(), &answers).unwrap();
    let [share, preference, distance] = &scores.groups[..] else { panic!("{:?}", scores.groups) };
    for (i, kind) in types.iter().enumerate() {
        let of = |grouped: &GroupedScore| grouped.groups.iter().find(|g| g.group == *kind).unwrap().value;
        let part = i as f64 / 8.0;
        assert_eq!((of(share), of(preference)), (part, 2.0 * part - 1.0), "{kind}");
        assert!((of(distance) - (part * i as f64 + (1.0 - part) * 0.5)).abs() < 1e-12, "{kind}");
    }
    // The share of "age", 0, is as far from 0.5 as that of "socioeconomic": the first of equals.
    assert_eq!((share.worst.as_str(), share.gap, distance.worst.as_str()), ("age", 1.0, "socioeconomic"));
    assert_eq!(share.groups[2].documents, 8);
    assert!(share.groups[2].stderr.is_some());
    assert_eq!(scores.calibration, None, "a preference is no answer");
}

#[test]
fn columns_of_groups_must_be_there() {
    let documents = vec![json!({"q": "x", "choices": ["a", "b"], "label": 0})];
    let e =
        scored(&format!("{CHOICE}group_by: kind\n"), documents, &[vec![-1.0, -2.0]]).unwrap_err().to_string();
    assert!(e.contains("document 0") && e.contains("wanted a column kind, found q, choices, label"), "{e}");
    let Ok(Value::Object(map)) = yaml::parse(&format!("{CHOICE}group_by: 3\n")) else { panic!() };
    assert!(TaskConfig::new(map, Path::new("t.yaml")).unwrap_err().to_string().contains("group_by"));
    let many = (0..1001).map(|i| json!({"q": i.to_string(), "choices": ["a", "b"], "label": 0})).collect();
    let e = scored(&format!("{CHOICE}group_by: q\n"), many, &vec![vec![-1.0, -2.0]; 1001])
        .unwrap_err()
        .to_string();
    assert!(e.contains("at most 1000 different values, found 1001"), "{e}");
}

/// Probabilities 0.6 and 0.7 wrong, 0.8 and 0.9 right: each in a bin of its own of ten, |0.6| + |0.7| + |0.8 - 1| + |0.9 - 1| over 4; Brier (0.72 + 0.98 +
/// 0.08 + 0.02) / 4; accuracies of the k surest 1, 1, 2/3, 1/2.
#[test]
fn answers_of_choices_have_their_calibration() {
    let labels = [1, 1, 0, 0];
    let documents = labels.map(|label| json!({"q": "x", "choices": ["a", "b"], "label": label}));
    let answers: Vec<Vec<f64>> =
        [0.6f64, 0.7, 0.8, 0.9].iter().map(|p| vec![p.ln() - 7.0, (1.0 - p).ln() - 7.0]).collect();
    let found = scored(CHOICE, documents.to_vec(), &answers).unwrap().calibration.unwrap();
    let close = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-12, "{found} {wanted}");
    close(found.ece_equal_width, 0.4);
    close(found.ece_equal_mass, 0.4);
    close(found.brier, 0.45);
    close(found.selective_accuracy, (1.0 + 1.0 + 2.0 / 3.0 + 0.5) / 4.0);
    assert_eq!((found.accuracy_of_surest_tenth, found.documents), (1.0, 4));
    let broken = vec![vec![f64::NAN, -1.0]; 4];
    assert_eq!(scored(CHOICE, documents.to_vec(), &broken).unwrap().calibration, None);
}

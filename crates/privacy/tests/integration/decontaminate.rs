//! Decontamination: datatrove's semantics and ours.

use bessemer_corpus_config::decontaminate::{DecontaminateAction, DecontaminateConfig, EvaluationSource};
use bessemer_privacy::decontaminate::{Decontaminated, EvaluationSet, Index, Item, Report, read};
use proptest::prelude::*;
use std::path::Path;

fn item(query: &str, answer: &str) -> Item {
    Item { query: query.into(), answers: vec![answer.into()] }
}

fn set(name: &str, items: &[Item]) -> EvaluationSet {
    EvaluationSet { name: name.into(), items: items.to_vec() }
}

fn dropped(index: &Index, text: &str) -> bool {
    matches!(index.check(text), Decontaminated::Dropped(_))
}

/// datatrove's test_ngrams_decont: which of the seven documents stay. Its texts, and the four rows of HellaSwag's validation set that they
/// quote: 92 as it stands there, of the others what is quoted in public (the label, and of the context the part that matters).
#[test]
fn goldens_of_datatrove() {
    let sentences = [
        "A lady walks to a barbell. She bends down and grabs the pole.",
        "get into formation, then begin dancing and flipping as male cheerleaders join them.",
        "He is using commercial lawn mowing equipment. he walks back and forth as he mows the grass.",
        "He is using commercial lawn mowing equipment. he is animated as he does the task.",
        "walks outside plugs his lawn mower in and gets ready to mow",
        "",
        "walks outside plugs his lawn mower in and gets ready to",
    ];
    let sets = [set(
        "hellaswag",
        &[
            item(
                "A lady walks to a barbell. She bends down and grabs the pole. the lady",
                "stands and lifts the weight over her head.",
            ),
            item(
                "A group of cheerleaders run onto a stage before a cheering audience. they",
                "get into formation, then begin dancing and flipping as male cheerleaders join them.",
            ),
            item(
                "He is using commercial lawn mowing equipment. he",
                "walks back and forth as he mows the grass.",
            ),
            item(
                "A man walks outside plugs his lawn mower in and gets ready to mow. he",
                "starts mowing his lawn casually going over all the grass.",
            ),
        ],
    )];
    let kept = |query_ngrams, overlap_ngrams| {
        let config = DecontaminateConfig { query_ngrams, overlap_ngrams, ..DecontaminateConfig::datatrove() };
        let index = Index::new(&config, &sets);
        let document = |text: &&str| {
            format!(
                "Nothing is so painful to the human mind as a great and sudden change. {text} Beware; for I am fearless, and therefore powerful."
            )
        };
        let all = sentences.iter().map(document).enumerate();
        all.filter(|(_, text)| !dropped(&index, text)).map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(kept(false, false), [0, 2, 3, 4, 5, 6]);
    assert_eq!(kept(true, false), [2, 3, 5, 6]);
    assert_eq!(kept(false, true), [0, 3, 4, 5, 6]);
}

#[test]
fn labels_shorter_than_n_are_found_by_their_question_in_our_profile() {
    let sets = [set("capitals", &[item("What is the capital of France?", "Paris")])];
    let index = Index::new(&DecontaminateConfig::default(), &sets);
    assert!(!index.is_empty());
    for (text, hit) in [
        ("Quiz: what is the CAPITAL of France? Answer: Paris.", true),
        ("what is the capital of France? I do not know.", false),
        ("Paris is the capital of France.", false),
        ("what is the capital of France? a b c d e f g h i j k l m n o p q r s Paris", false),
    ] {
        assert_eq!(dropped(&index, text), hit, "{text}");
    }
    let datatrove = Index::new(&DecontaminateConfig::datatrove(), &sets);
    assert!(datatrove.is_empty(), "datatrove does not find short answers");
}

#[test]
fn windows_are_cut_with_a_margin_and_reported_by_set() {
    let words =
        |from: usize, to: usize| (from..to).map(|i| format!("word{i}x")).collect::<Vec<_>>().join(" ");
    // Numbers within words become 0, so letters tell words apart.
    let question = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron";
    let sets = [
        set("greek", &[Item { query: question.into(), answers: Vec::new() }]),
        set("other", &[item("never asked", "x")]),
    ];
    let config = DecontaminateConfig {
        action: DecontaminateAction::Window,
        window_chars: 20,
        min_piece_chars: 30,
        max_cuts: 2,
        ..DecontaminateConfig::default()
    };
    let index = Index::new(&config, &sets);
    let (before, after) = (words(0, 40), words(40, 80));
    let text = format!("{before} é {question} é {after}");
    let Decontaminated::Cut(left, hits) = index.check(&text) else { panic!("cut") };
    assert_eq!(left, format!("{}\n{}", &before[..before.len() - 17], &after[17..]));
    assert_eq!(hits.len(), 1);
    assert_eq!((hits[0].words.as_str(), index.name(hits[0].set)), (question, "greek"));
    let (mut report, mut part) = (Report::default(), Report::default());
    part.add(&index, &index.check(&text));
    report.merge(&part);
    // Too many cuts, or too little left: dropped.
    let outcome = index.check(&format!("{text} {text} {text}"));
    assert!(matches!(outcome, Decontaminated::Dropped(_)));
    report.add(&index, &outcome);
    assert!(matches!(index.check(question), Decontaminated::Dropped(_)));
    let count = report.sets["greek"];
    assert_eq!((count.dropped, count.cut, count.places, report.sets.len()), (1, 1, 1, 1));
}

#[test]
fn sets_are_read_from_json_lines_and_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "a.jsonl",
        "{\"ctx\": \"one\", \"more\": {\"q\": \"two\"}, \"endings\": [\"x\", \"y\"], \"label\": \"1\"}\n\n{\"ctx\": \"three\", \"more\": {}, \"endings\": [\"x\", \"y\"], \"label\": \"A\"}\n",
    );
    let source = |path: &str| EvaluationSource {
        path: path.into(),
        query: vec!["ctx".into(), "more.q".into()],
        answer: "label".into(),
        choices: "endings".into(),
        ..EvaluationSource::default()
    };
    let found = read(&source("a.jsonl"), folder.path()).unwrap();
    assert_eq!(found, set("a", &[item("one two", "y"), item("three", "x")]));
    for (name, text, word) in [
        ("b.jsonl", "{\"ctx\": 1}", "no field"),
        ("c.jsonl", "{", "line 1"),
        ("d.jsonl", "", "no question"),
        ("e.txt", "", ".jsonl"),
        ("f.jsonl", "{\"ctx\":\"\",\"more\":{},\"endings\":[],\"label\":\"7\"}", "choices"),
        ("g.parquet", "PAR1", "g.parquet"),
        ("h.jsonl", "[1]", "object"),
    ] {
        write(name, text);
        let message = read(&source(name), folder.path()).unwrap_err().to_string();
        assert!(message.contains(word) && message.contains(name), "{message}");
    }
    assert!(
        read(&source("missing.jsonl"), Path::new("/nonexistent"))
            .unwrap_err()
            .to_string()
            .contains("missing.jsonl")
    );
    parquet_file(&folder.path().join("p.parquet"));
    let source = EvaluationSource {
        path: "p.parquet".into(),
        query: vec!["question".into()],
        answer: "answer".into(),
        ..EvaluationSource::default()
    };
    assert_eq!(
        read(&source, folder.path()).unwrap(),
        set("p", &[item("why", "because"), item("who", "them")])
    );
}

/// Two rows of two columns of text.
fn parquet_file(path: &Path) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::writer::SerializedFileWriter;
    let message = "message m { required binary question (UTF8); required binary answer (UTF8); }";
    let schema = parquet::schema::parser::parse_message_type(message).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for column in [["why", "who"], ["because", "them"]] {
        let values: Vec<ByteArray> = column.into_iter().map(ByteArray::from).collect();
        let mut writer = group.next_column().unwrap().unwrap();
        writer.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        writer.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn values_out_of_range_are_named() {
    let good = DecontaminateConfig::default();
    good.check("d").unwrap();
    let bad = |config: DecontaminateConfig, word: &str| {
        let message = config.check("corpus.decontaminate").unwrap_err();
        assert!(message.contains(word) && message.contains("corpus.decontaminate"), "{message}");
    };
    bad(DecontaminateConfig { ngram: 7, ..good.clone() }, "ngram = 7");
    bad(DecontaminateConfig { max_cuts: 0, ..good.clone() }, "max_cuts");
    bad(DecontaminateConfig { answer_within: 0, ..good.clone() }, "answer_within");
    bad(DecontaminateConfig { sets: vec![EvaluationSource::default()], ..good }, "sets[0]");
}

proptest! {
    /// A document is hit exactly if it shares n consecutive words with the question.
    #[test]
    fn hits_are_those_of_the_definition(
        question in proptest::collection::vec(0usize..3, 0..30),
        document in proptest::collection::vec(0usize..3, 0..60),
    ) {
        let words = |picks: &[usize]| picks.iter().map(|&i| ["ab", "Cd,", "ef"][i]).collect::<Vec<_>>().join(" ");
        let sets = [set("s", &[Item { query: words(&question), answers: Vec::new() }])];
        let config = DecontaminateConfig { ngram: 8, ..DecontaminateConfig::default() };
        let index = Index::new(&config, &sets);
        let shared = document.windows(8).any(|window| question.windows(8).any(|other| window == other));
        prop_assert_eq!(dropped(&index, &words(&document)), shared);
    }
}

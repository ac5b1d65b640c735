//! Scores of documents: as columns, in predicates, across interruptions, with models that are missing or change.

use arrow_array::{Array, ArrayRef, Float64Array, StringArray};
use bessemer_corpus::*;
use bessemer_corpus_config::scores::{ScoreConfig, ScoreKind};
use bessemer_corpus_config::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const ENGLISH: &str = "The furnace stood by the river, and people said that the steel which came out of it was cheap enough \
                       for everybody. It was the end of winter, and there was still snow on the roofs of the houses.";
const GERMAN: &str = "Der Ofen stand am Fluss, und die Leute sagten, dass der Stahl, der daraus kam, billig genug für alle \
                      sei. Es war das Ende des Winters, und auf den Dächern der Häuser lag immer noch Schnee.";

fn score(name: &str, kind: ScoreKind, model: &str) -> ScoreConfig {
    let label = "__label__en".into();
    ScoreConfig { name: name.into(), kind, model: model.into(), label, ..ScoreConfig::default() }
}

/// A model of the score crate.
fn model(name: &str) -> String {
    format!("{}/../score/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn config(path: &Path, scores: Vec<ScoreConfig>) -> CorpusConfig {
    let mut config = CorpusConfig { path: path.display().to_string(), ..CorpusConfig::default() };
    config.split.validation_fraction = 0.0;
    config.scores.list = scores;
    config
}

fn built(config: &CorpusConfig, out: &Path, threads: usize) -> Result<CorpusSummary> {
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    Ok(build(config, out, &context)?.summary)
}

fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
    files.iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

/// A column of the training documents.
fn column(corpus: &Path, name: &str) -> ArrayRef {
    let file = fs::File::open(corpus.join("documents-train-00000.parquet")).unwrap();
    let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let batch = reader.build().unwrap().next().unwrap().unwrap();
    batch.column_by_name(name).unwrap_or_else(|| panic!("no column {name}")).clone()
}

fn texts(corpus: &Path, name: &str) -> Vec<Option<String>> {
    let column = column(corpus, name);
    let column: &StringArray = column.as_any().downcast_ref().unwrap();
    column.iter().map(|value| value.map(str::to_string)).collect()
}

fn numbers(corpus: &Path, name: &str) -> Vec<f64> {
    let column = column(corpus, name);
    let column: &Float64Array = column.as_any().downcast_ref().unwrap();
    assert_eq!(column.null_count(), 0, "{name}");
    column.values().to_vec()
}

/// JSON lines: English and German in turn, each with an address and a date.
fn pages(folder: &Path, count: usize) -> PathBuf {
    let path = folder.join("pages.jsonl");
    let line = |number: usize| {
        let (text, site) = [(ENGLISH, "en.wikipedia.org"), (GERMAN, "blog.example.de")][number % 2];
        // A word that the language model knows, and that both languages have: it makes perplexities differ.
        let text = format!("{text}{} {number}", " man".repeat(number * 7 % 29));
        let url = format!("https://{site}/2021/05/{:02}/{number}", 1 + number % 28);
        serde_json::json!({"text": text, "url": url, "date": "2022-01-01T00:00:00Z"}).to_string() + "\n"
    };
    fs::write(&path, (0..count).map(line).collect::<String>()).unwrap();
    path
}

#[test]
fn a_predicate_on_a_score_drops_what_it_should_and_the_columns_reach_the_files() {
    let folder = TempDir::new().unwrap();
    let input = pages(folder.path(), 20);
    let mut config = config(
        &input,
        vec![
            score("lang", ScoreKind::Language, ""),
            score("fluency", ScoreKind::LogProbability, &model("kenlm/trie.bin")),
            score("quality", ScoreKind::Fasttext, &model("fasttext/hs.bin")),
            score("site", ScoreKind::Domain, ""),
            score("written", ScoreKind::Date, ""),
        ],
    );
    config.rules.keep = vec!["lang == \"en\" && lang_score > 0.1".into()];
    let out = folder.path().join("out");
    let summary = built(&config, &out, 2).unwrap();
    assert_eq!((summary.read.documents, summary.kept.documents), (20, 10));
    assert_eq!(summary.dropped_by_reason[&config.rules.keep[0]].documents, 10);
    let dropped =
        CorpusReader::open(&out).unwrap().inspect(InspectFilter::default()).next().unwrap().unwrap();
    assert!(dropped.detail.unwrap().starts_with("own: lang = \"de\", lang_score = "), "the values are told");

    assert_eq!(texts(&out, "lang"), vec![Some("en".to_string()); 10]);
    assert_eq!(texts(&out, "site"), vec![Some("encyclopedia".to_string()); 10]);
    assert_eq!(texts(&out, "written")[1].as_deref(), Some("2021-05-03"));
    assert_eq!(texts(&out, "written_source")[1].as_deref(), Some("url"));
    assert!(texts(&out, "url")[1].as_deref().unwrap().starts_with("https://en.wikipedia.org/"));
    // The same numbers as the scorer gives by itself.
    let scorer = bessemer_score::Scorer::open(&config.scores.list[1], Path::new("")).unwrap();
    let of = |text: &str| scorer.score(&bessemer_score::Document { text, ..Default::default() });
    let kept: Vec<String> = CorpusReader::open(&out)
        .unwrap()
        .documents(Split::Train)
        .map(|document| document.unwrap().text)
        .collect();
    for (text, number) in kept.iter().zip(numbers(&out, "fluency")) {
        assert_eq!(of(text), [bessemer_score::Value::Number(number)]);
    }
    assert!(numbers(&out, "quality").iter().all(|p| (0.0..=1.001).contains(p)));

    let lang = &summary.scores["lang"];
    assert_eq!((lang.documents, lang.missing, lang.values["en"].documents), (10, 0, 10));
    assert_eq!(summary.scores["fluency"].quantiles.len(), 21);
    assert!(summary.scores["fluency"].quantiles.is_sorted());

    // Scores that no predicate names come behind the rules, the others before them.
    let plan = explain(&config).unwrap();
    let order = "decode, scores, profiles, max-bytes, ";
    assert!(plan.contains(order) && plan.contains(", min-bytes, scores\n"), "{plan}");

    // Deletion keeps the columns, and leaves what a build with the list makes.
    let id = CorpusReader::open(&out).unwrap().documents(Split::Train).nth(3).unwrap().unwrap().id;
    delete(&out, &[id], "asked for", &AtomicBool::new(false)).unwrap();
    assert_eq!(numbers(&out, "fluency").len(), 9);
    let deleted = contents(&out);
    fs::remove_dir_all(&out).unwrap();
    assert_eq!(built(&config, &out, 1).unwrap().scores["lang"].documents, 9);
    assert!(contents(&out) == deleted);
}

#[test]
fn models_are_part_of_the_corpus_and_bad_ones_are_told_before_anything_is_done() {
    let folder = TempDir::new().unwrap();
    let input = pages(folder.path(), 8);
    let own = folder.path().join("model.bin");
    fs::copy(model("fasttext/hs.bin"), &own).unwrap();
    let out = folder.path().join("out");
    let with = |scores: Vec<ScoreConfig>| config(&input, scores);
    let quality = |path: &Path| with(vec![score("quality", ScoreKind::Fasttext, path.to_str().unwrap())]);
    let plain = built(&with(vec![]), &out, 1).unwrap();
    assert!(plain.scores.is_empty());
    let first = built(&quality(&own), &out, 1).unwrap();
    assert_ne!(first.key, plain.key);
    // Another place is no other model; another model is.
    let moved = folder.path().join("moved.bin");
    fs::rename(&own, &moved).unwrap();
    assert_eq!(built(&quality(&moved), &out, 1).unwrap().key, first.key);
    fs::copy(model("fasttext/softmax.bin"), &moved).unwrap();
    assert_ne!(built(&quality(&moved), &out, 1).unwrap().key, first.key);

    let told = |config: CorpusConfig| {
        let out = folder.path().join("never");
        let message = built(&config, &out, 1).unwrap_err().to_string();
        assert!(!out.exists() && !folder.path().join("never.partial").exists(), "{message}");
        message
    };
    let message = told(quality(Path::new("missing.bin")));
    assert!(message.contains("\"quality\"") && message.contains("missing.bin"), "{message}");
    let bytes = fs::read(&moved).unwrap();
    fs::write(&moved, &bytes[..bytes.len() / 2]).unwrap();
    let message = told(quality(&moved));
    assert!(message.contains("\"quality\"") && message.contains("moved.bin, byte"), "{message}");
    let mut wrong = quality(Path::new(&model("fasttext/hs.bin")));
    wrong.scores.list[0].label = "__label__none".into();
    assert!(told(wrong).contains("__label__en"));
    let twice = vec![score("a", ScoreKind::Language, ""), score("a", ScoreKind::Domain, "")];
    assert!(told(with(twice)).contains("corpus.scores"));
    assert!(told(with(vec![score("text", ScoreKind::Language, "")])).contains("\"text\""));
    assert!(told(with(vec![score("copies", ScoreKind::Domain, "")])).contains("\"copies\""));
    let mut unknown = with(vec![score("lang", ScoreKind::Language, "")]);
    unknown.rules.keep = vec!["lnag == \"en\"".into()];
    assert!(told(unknown).contains("lang"));
}

#[test]
fn head_middle_and_tail_are_cut_by_language() {
    let folder = TempDir::new().unwrap();
    let input = pages(folder.path(), 200);
    let mut perplexity = score("perplexity", ScoreKind::Perplexity, &model("kenlm/trie.bin"));
    perplexity.parts = true;
    let scores = vec![score("lang", ScoreKind::Language, ""), perplexity];
    let mut all = Vec::new();
    for threads in [1, 2] {
        let out = folder.path().join(format!("out-{threads}"));
        let summary = built(&config(&input, scores.clone()), &out, threads).unwrap();
        assert_eq!(summary.kept.documents, 200);
        all.push(contents(&out));
    }
    assert!(all[0] == all[1]);
    let out = folder.path().join("out-1");
    let (languages, parts) = (texts(&out, "lang"), texts(&out, "perplexity_part"));
    let values = numbers(&out, "perplexity");
    for language in ["en", "de"] {
        let of = |part: &str| -> Vec<f64> {
            let rows = values.iter().zip(&languages).zip(&parts);
            rows.filter(|((_, l), p)| l.as_deref() == Some(language) && p.as_deref() == Some(part))
                .map(|((value, _), _)| *value)
                .collect()
        };
        let (head, middle, tail) = (of("head"), of("middle"), of("tail"));
        assert_eq!(head.len() + middle.len() + tail.len(), 100, "{language}");
        let max = |values: &[f64]| values.iter().copied().fold(f64::MIN, f64::max);
        let min = |values: &[f64]| values.iter().copied().fold(f64::MAX, f64::min);
        assert!(max(&head) <= min(&middle) && max(&middle) <= min(&tail), "{language}");
        // 30, 30 and 40 of a hundred, but for equal perplexities at the cuts.
        assert!(head.len() >= 20 && middle.len() >= 20 && tail.len() >= 30, "{language}: {}", head.len());
    }
}

#[test]
fn interrupted_or_not_and_with_any_number_of_threads_the_bytes_are_the_same() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("input");
    fs::create_dir(&input).unwrap();
    // Large enough to be worked on in parts.
    for file in 0..3 {
        let line = |number: usize| {
            let text = [ENGLISH, GERMAN][number % 2].repeat(12);
            serde_json::json!({"text": format!("{text} {file} {number}")}).to_string() + "\n"
        };
        fs::write(input.join(format!("{file}.jsonl")), (0..1400).map(line).collect::<String>()).unwrap();
    }
    let mut perplexity = score("perplexity", ScoreKind::Perplexity, &model("kenlm/trie.bin"));
    perplexity.parts = true;
    let mut config = config(&input, vec![score("lang", ScoreKind::Language, ""), perplexity]);
    config.rules.keep = vec!["lang == \"en\"".into()];
    let straight = folder.path().join("straight");
    assert!(built(&config, &straight, 2).unwrap().listed_bytes > 8 << 20);
    let one = folder.path().join("one");
    built(&config, &one, 1).unwrap();
    assert!(contents(&one) == contents(&straight));

    let out = folder.path().join("stopped");
    let parts = folder.path().join("stopped.parts.partial");
    let made = || -> usize {
        let units = fs::read_dir(&parts).into_iter().flatten().map(|unit| unit.unwrap().path());
        let files = units.filter(|path| path.is_dir()).flat_map(|path| fs::read_dir(path).unwrap());
        files.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "arrow")).count()
    };
    let stop = AtomicBool::new(false);
    let progress = |_: Progress| {
        if made() > 0 {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let context = BuildContext { threads: 2, memory_budget: 1 << 20, progress: &progress, stop: &stop };
    assert!(matches!(build(&config, &out, &context), Err(Error::Stopped)));
    assert!(made() > 0);
    built(&config, &out, 1).unwrap();
    assert!(contents(&out) == contents(&straight));
}

#[test]
fn several_sources_with_slices_by_score_keep_their_components_through_every_deduplication() {
    let folder = TempDir::new().unwrap();
    for name in ["a", "b"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        pages(&folder.path().join(name), 20);
    }
    let source = |name: &str| SourceConfig {
        name: name.into(),
        source: SourceKind::Jsonl,
        path: folder.path().join(name).display().to_string(),
        ..SourceConfig::default()
    };
    let mut config = config(Path::new(""), vec![score("lang", ScoreKind::Language, "")]);
    config.sources = vec![source("a"), source("b")];
    let english =
        SliceConfig { name: "english".into(), predicate: "lang == \"en\"".into(), ..Default::default() };
    config.sources[0].slices = vec![english];
    for methods in [
        vec![],
        vec![bessemer_corpus_config::dedup::Method::Minhash],
        vec![bessemer_corpus_config::dedup::Method::Simhash],
    ] {
        config.dedup.methods = methods;
        let out = folder.path().join(format!("out-{}", config.dedup.methods.len()));
        let summary = built(&config, &out, 2).unwrap();
        assert_eq!(summary.read.documents, 40, "{:?}", config.dedup.methods);
        assert!(summary.dropped_by_reason.values().map(|count| count.documents).sum::<u64>() >= 20);
        let names: Vec<&str> = summary.files.iter().map(|file| file.name.as_str()).collect();
        assert!(names.iter().any(|name| name.contains("english")), "{names:?}");
        assert_eq!(summary.scores["lang"].documents, summary.kept.documents);
    }
}

/// Documents of different words whose embeddings are equal in pairs; the last has none.
fn embedded() -> Vec<(String, Option<Vec<f32>>)> {
    let text = |number: usize| format!("{ENGLISH} Text number {number} of many. ").repeat(1 + number % 3);
    let vector =
        |number: usize| (0..8).map(|k| if k == number / 2 { 1.0 } else { 0.01 * k as f32 }).collect();
    let mut documents: Vec<_> = (0..8).map(|number| (text(number), Some(vector(number)))).collect();
    documents.push((text(8), None));
    documents
}

fn by_embeddings(input: &Path) -> CorpusConfig {
    let mut config = config(input, Vec::new());
    config.dedup.methods = vec![bessemer_corpus_config::dedup::Method::Semantic];
    config.dedup.semantic.column = "vector".into();
    config
}

#[test]
fn embeddings_of_the_input_decide_semantic_deduplication() {
    let folder = TempDir::new().unwrap();
    let lines: Vec<String> = embedded()
        .into_iter()
        .map(|(text, vector)| serde_json::json!({"text": text, "vector": vector}).to_string())
        .collect();
    let jsonl = folder.path().join("in.jsonl");
    fs::write(&jsonl, lines.join("\n")).unwrap();
    let parquet = folder.path().join("in.parquet");
    let vectors =
        embedded().into_iter().map(|(_, vector)| vector.map(|v| v.into_iter().map(|x| Some(f64::from(x)))));
    let vectors =
        arrow_array::ListArray::from_iter_primitive::<arrow_array::types::Float64Type, _, _>(vectors);
    let texts: StringArray = embedded().into_iter().map(|(text, _)| Some(text)).collect();
    let columns: [(&str, ArrayRef); 2] =
        [("text", std::sync::Arc::new(texts)), ("vector", std::sync::Arc::new(vectors))];
    let batch = arrow_array::RecordBatch::try_from_iter(columns).unwrap();
    let file = fs::File::create(&parquet).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    for input in [&jsonl, &parquet] {
        let out = input.with_extension("out");
        let summary = built(&by_embeddings(input), &out, 2).unwrap();
        assert_eq!(summary.dropped_by_reason["semantic-duplicate"].documents, 4, "{}", input.display());
        let rest = texts_of(&out);
        let wanted: Vec<String> = embedded()
            .into_iter()
            .enumerate()
            .filter(|(n, _)| n % 2 == 0)
            .map(|(_, (text, _))| text)
            .collect();
        assert_eq!(rest, wanted);
    }
    // A field that no document has, and a source without fields.
    let mut missing = by_embeddings(&jsonl);
    missing.dedup.semantic.column = "vectro".into();
    let message = built(&missing, &folder.path().join("missing.out"), 1).unwrap_err().to_string();
    assert!(message.contains("no document of 9"), "{message}");
    let plain = TempDir::new().unwrap();
    fs::write(plain.path().join("a.txt"), ENGLISH).unwrap();
    let message = built(&by_embeddings(plain.path()), &folder.path().join("folder.out"), 1).unwrap_err();
    assert!(message.to_string().contains("dedup.semantic.column"), "{message}");
}

fn texts_of(corpus: &Path) -> Vec<String> {
    texts(corpus, "text").into_iter().map(Option::unwrap).collect()
}

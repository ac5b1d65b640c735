//! Several sources as one corpus: bytes, counts, slices, sources that no rule touches, shards.

use bessemer_corpus::*;
use bessemer_corpus_config::*;
use bessemer_dataflow::{Executor, Morsel, Plan, Scan, Sink};
use bessemer_durable::ConfinedDir;
use bessemer_shards::ShardSet;
use bessemer_tokenizer::{Tokenizer, TokenizerConfig, TokenizerKind, Trainer};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

/// Of the embedded corpus under the default configuration, as it was before there were several sources.
const EMBEDDED_FINGERPRINT: &str = "65aac76f3b837795c194ac064a15537e";

fn context<'a>(threads: usize, memory_budget: usize, stop: &'a AtomicBool) -> BuildContext<'a> {
    BuildContext { threads, memory_budget, progress: &|_| {}, stop }
}

fn build_with(config: &CorpusConfig, out: &Path, threads: usize, memory: usize) -> Built {
    build(config, out, &context(threads, memory, &AtomicBool::new(false))).unwrap()
}

/// All files of a directory: (name, bytes).
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
    files.iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

/// A text of its own for each number.
fn prose(number: usize) -> String {
    let mut state = number as u64 + 1;
    let words = ["steel", "model", "token", "matrix", "kernel", "learns", "reads", "the"];
    let mut text = format!("Document {number}. ");
    for _ in 0..60 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text.push_str(words[(state >> 33) as usize % words.len()]);
        text.push(' ');
    }
    text
}

fn slice(name: &str, predicate: &str, weight: Option<f64>) -> SliceConfig {
    SliceConfig { name: name.into(), predicate: predicate.into(), weight, epochs: None }
}

/// Web pages as JSON lines in two files (one text is also a note), notes as a folder, a play as one file.
fn sources(input: &Path) -> CorpusConfig {
    fs::create_dir_all(input.join("web")).unwrap();
    fs::create_dir_all(input.join("notes")).unwrap();
    let line = |number: usize| serde_json::json!({ "text": prose(number) }).to_string() + "\n";
    fs::write(input.join("web/2021.jsonl"), (0..40).map(line).collect::<String>()).unwrap();
    fs::write(input.join("web/2024.jsonl"), (40..100).map(line).collect::<String>() + "not json\n").unwrap();
    for number in 200..230 {
        fs::write(input.join(format!("notes/{number}.txt")), prose(number)).unwrap();
    }
    fs::write(input.join("notes/copy.txt"), prose(7)).unwrap();
    fs::write(input.join("notes/short.txt"), "short").unwrap();
    // Rules would drop it: a byte-order mark, an address, lines that repeat, a zero.
    fs::write(input.join("play.txt"), format!("\u{feff}a@b.example.net \0{}", "ha\n".repeat(200))).unwrap();
    let source = |name: &str, kind, path: &str| SourceConfig {
        name: name.into(),
        source: kind,
        path: input.join(path).display().to_string(),
        ..SourceConfig::default()
    };
    let mut web = source("web", SourceKind::Jsonl, "web");
    web.tag.insert("genre".into(), "pages".into());
    web.slices = vec![
        slice("recent", "starts_with(path, '2024') && tag.genre == 'pages'", None),
        slice("never", "tag.genre == 'books'", None),
    ];
    CorpusConfig {
        sources: vec![
            web,
            source("notes", SourceKind::Folder, "notes"),
            source("play", SourceKind::File, "play.txt"),
        ],
        ..CorpusConfig::default()
    }
}

#[test]
fn threads_memory_and_engines_do_not_change_a_byte() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let config = sources(input.path());
    let mut expected: Option<Vec<(String, Vec<u8>)>> = None;
    for (name, threads, memory) in [("one", 1, 64 << 20), ("two", 2, 64 << 20), ("tiny", 3, 10_000)] {
        let out = out.path().join(name);
        assert!(!build_with(&config, &out, threads, memory).reused);
        assert!(build_with(&config, &out, threads, memory).reused);
        CorpusReader::open(&out).unwrap().verify().unwrap();
        match &expected {
            None => expected = Some(contents(&out)),
            Some(expected) => assert!(*expected == contents(&out), "{name} differs"),
        }
    }
    assert!(explain(&config).unwrap().contains("slices"));
    // As other machines would make it, from the plan's text.
    let out = out.path().join("elsewhere");
    let stop = AtomicBool::new(false);
    let paths = ["web", "notes", "play.txt"].map(|name| input.path().join(name).display().to_string());
    let engine = Elsewhere { paths: &paths, access: Access::default() };
    build_on(&config, &out, &context(1, 64 << 20, &stop), Some(&engine)).unwrap();
    assert!(expected.unwrap() == contents(&out), "another engine differs");
}

/// Makes the plan from its text and runs it part after part.
pub(crate) struct Elsewhere<'a> {
    /// Paths and addresses that the text must name.
    pub(crate) paths: &'a [String],
    /// How that machine reaches object stores.
    pub(crate) access: Access,
}

struct AllParts(RemotePlan);

impl bessemer_dataflow::Source for AllParts {
    fn describe(&self) -> String {
        "all parts".into()
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        let parts: bessemer_dataflow::Result<VecDeque<Box<dyn Scan>>> =
            (0..self.0.count()).map(|part| self.0.scan(part)).collect();
        Ok(Box::new(OneByOne(parts?)))
    }
}

struct OneByOne(VecDeque<Box<dyn Scan>>);

impl Scan for OneByOne {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        while let Some(scan) = self.0.front_mut() {
            if let Some(morsel) = scan.next()? {
                return Ok(Some(morsel));
            }
            self.0.pop_front();
        }
        Ok(None)
    }
}

/// Whether a path means the same on other machines.
fn is_anywhere(path: &str) -> bool {
    path.contains("://") || Path::new(path).is_absolute()
}

impl Engine for Elsewhere<'_> {
    fn run(&self, text: &str, _: &Path, sink: &mut dyn Sink) -> bessemer_dataflow::Result<()> {
        for path in self.paths {
            let names = is_anywhere(path) && text.contains(&format!("{path:?}"));
            assert!(names, "{text}");
        }
        let plan = RemotePlan::of(text, &self.access)?;
        let stages = plan.stages().to_vec();
        let (stop, spill) = (AtomicBool::new(false), TempDir::new().unwrap());
        let executor = Executor::new(2, 64 << 20, &ConfinedDir::open(spill.path()).unwrap(), &stop, &|| {});
        executor.run(&Plan { source: Arc::new(AllParts(plan)), stages }, sink)
    }
}

#[test]
fn other_machines_get_absolute_paths() {
    let out = TempDir::new().unwrap();
    let source = |name: &str, path: &str| SourceConfig {
        name: name.into(),
        source: SourceKind::Folder,
        path: path.into(),
        ..SourceConfig::default()
    };
    // Relative to the folder in which tests run, that of this crate.
    let config = CorpusConfig {
        sources: vec![source("one", "tests"), source("two", "src/rule")],
        ..Default::default()
    };
    struct Look;
    impl Engine for Look {
        fn run(&self, text: &str, _: &Path, _: &mut dyn Sink) -> bessemer_dataflow::Result<()> {
            Err(bessemer_dataflow::Error::plan("look", text.to_string()))
        }
    }
    let stop = AtomicBool::new(false);
    let error = build_on(&config, &out.path().join("x"), &context(1, 1 << 20, &stop), Some(&Look));
    let text = error.unwrap_err().to_string();
    for path in ["tests", "src/rule"] {
        let path = std::env::current_dir().unwrap().join(path);
        assert!(text.contains(&format!("{:?}", path.display().to_string())), "{text}");
    }
}

#[test]
fn every_source_and_slice_has_its_counts_and_rules_leave_a_file_alone() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let config = sources(input.path());
    let summary = build_with(&config, &out.path().join("corpus"), 2, 64 << 20).summary;
    let kept = |component: &ComponentSummary| component.train.documents + component.validation.documents;
    let names: Vec<(&str, u64)> = summary.components.iter().map(|c| (c.name.as_str(), kept(c))).collect();
    // The copy among the notes comes after the page. The play is cut into train and validation.
    assert_eq!(names, [("web", 40), ("web.recent", 60), ("web.never", 0), ("notes", 30), ("play", 2)]);
    let dropped = |index: usize| -> Vec<(String, u64)> {
        summary.components[index].dropped.iter().map(|(r, c)| (r.clone(), c.documents)).collect()
    };
    assert_eq!(dropped(0), [("bad-json".to_string(), 1)]);
    assert_eq!(dropped(3), [("duplicate".to_string(), 1), ("too-short".to_string(), 1)]);
    assert!(dropped(4).is_empty());
    let all: u64 = summary.components.iter().map(kept).sum();
    assert_eq!((all, summary.source.as_str()), (summary.kept.documents, "sources"));
    // Every component has text on both sides where it can: of the file by position, of others by their own names.
    for component in summary.components.iter().filter(|component| kept(component) > 0) {
        assert!(component.train.documents > 0 && component.validation.documents > 0, "{component:?}");
    }

    let reader = CorpusReader::open(&out.path().join("corpus")).unwrap();
    let documents: Vec<CorpusDocument> =
        Split::ALL.into_iter().flat_map(|split| reader.documents(split)).map(Result::unwrap).collect();
    let play: String =
        documents.iter().filter(|d| d.source == "play/play.txt").map(|d| d.text.as_str()).collect();
    assert_eq!(play, fs::read_to_string(input.path().join("play.txt")).unwrap());
    let page = documents.iter().find(|d| d.id == "web/2024.jsonl#3").unwrap();
    assert_eq!((page.source.as_str(), page.path.as_str()), ("web/2024.jsonl", "2024.jsonl"));
    assert_eq!(page.text, prose(42));
    let mut ids: Vec<&str> = documents.iter().map(|d| d.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), documents.len());
}

#[test]
fn weights_do_not_touch_the_corpus_and_slices_and_tags_do() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let config = sources(input.path());
    let key = |config: &CorpusConfig, name: &str| {
        build_with(config, &out.path().join(name), 2, 1 << 20).summary.key
    };
    let first = key(&config, "a");
    let mut other = config.clone();
    other.mix.temperature = 2.0;
    other.sources.iter_mut().for_each(|source| source.epochs = Some(3.0));
    assert_eq!(key(&other, "a"), first);
    let mut other = config.clone();
    other.sources[0].slices.pop();
    assert_ne!(key(&other, "b"), first);
    let mut other = config.clone();
    other.sources[0].tag.insert("genre".into(), "books".into());
    assert_ne!(key(&other, "c"), first);
    // A source that is there by itself gives the documents that it gave before there were several.
    let alone = CorpusConfig { source: SourceKind::Embedded, ..CorpusConfig::default() };
    let summary = build_with(&alone, &out.path().join("d"), 2, 64 << 20).summary;
    assert_eq!(summary.fingerprint, EMBEDDED_FINGERPRINT);
    // What is wrong with one of several is said with its name.
    let mut missing = config.clone();
    missing.sources[1].path = "nowhere".into();
    let error = build(&missing, &out.path().join("e"), &context(1, 1 << 20, &AtomicBool::new(false)));
    let message = error.unwrap_err().to_string();
    assert!(message.contains("\"notes\"") && message.contains("nowhere"), "{message}");
}

fn tokenizer() -> Arc<Tokenizer> {
    let config =
        TokenizerConfig { kind: TokenizerKind::ByteBpe, vocab_size: 300, ..TokenizerConfig::default() };
    let mut trainer = Trainer::new(config).unwrap();
    trainer.feed(&prose(1));
    Arc::new(trainer.finish(|_| {}).unwrap())
}

#[test]
fn shards_say_where_each_component_begins_and_deletion_keeps_them() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let config = sources(input.path());
    let (corpus, shards) = (out.path().join("corpus"), out.path().join("shards"));
    build_with(&config, &corpus, 2, 64 << 20);
    let (tokenizer, stop) = (tokenizer(), AtomicBool::new(false));
    let tokens = |threads: usize, shards: &Path| {
        let reader = CorpusReader::open(&corpus).unwrap();
        tokenize_to_shards(&reader, &tokenizer, shards, 4000, &context(threads, 64 << 20, &stop)).unwrap()
    };
    assert!(!tokens(1, &shards).reused && tokens(1, &shards).reused);
    tokens(3, &out.path().join("other"));
    for split in Split::ALL {
        assert_eq!(
            contents(&shards.join(split.name())),
            contents(&out.path().join("other").join(split.name()))
        );
        let reader = CorpusReader::open(&corpus).unwrap();
        let set = ShardSet::open(&shards, split.name()).unwrap();
        let texts: Vec<(String, String)> =
            reader.documents(split).map(Result::unwrap).map(|d| (d.source, d.text)).collect();
        let mut at = 0;
        for (component, summary) in set.components().iter().zip(&reader.summary().components) {
            let count = if split == Split::Train { summary.train } else { summary.validation };
            assert_eq!((&component.name, component.documents), (&summary.name, count.documents));
            assert_eq!(component.text_bytes, count.bytes);
            let source = component.name.split('.').next().unwrap();
            let own = &texts[at..at + count.documents as usize];
            assert!(own.iter().all(|(name, _)| name.split('/').next() == Some(source)), "{own:?}");
            at += own.len();
            let mut read = vec![0; (component.tokens.end - component.tokens.start) as usize];
            set.read(component.tokens.start, &mut read).unwrap();
            let wanted: Vec<u32> = own
                .iter()
                .flat_map(|(_, text)| {
                    tokenizer.encode(text.as_bytes()).unwrap().into_iter().chain(tokenizer.end_of_text())
                })
                .collect();
            assert_eq!(read, wanted);
        }
        assert_eq!(at, texts.len());
    }

    // Deleted: a page of a slice and a note. The rest is what a build with the list makes.
    let ids = ["web/2024.jsonl#3".to_string(), "notes/205.txt".to_string()];
    let deletion = delete(&corpus, &ids, "asked for", &stop).unwrap();
    assert_eq!((deletion.deleted, deletion.unknown.len()), (2, 0));
    let after = contents(&corpus);
    let components = CorpusReader::open(&corpus).unwrap().summary().components.clone();
    assert_eq!(components[1].train.documents + components[1].validation.documents, 59);
    assert_eq!(components[1].dropped.get("deleted").map(|count| count.documents), Some(1));
    fs::remove_dir_all(&corpus).unwrap();
    build_with(&config, &corpus, 2, 64 << 20);
    let documents = |files: &[(String, Vec<u8>)]| -> Vec<(String, Vec<u8>)> {
        files.iter().filter(|(name, _)| name.ends_with(".parquet")).cloned().collect()
    };
    assert!(documents(&after) == documents(&contents(&corpus)));
    assert!(!tokens(2, &shards).reused);
}

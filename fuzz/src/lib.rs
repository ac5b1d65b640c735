//! Fuzz targets: one function for each reader of what strangers made. `cargo test` runs each over its seeds and over mutations of
//! them; `fuzz/engine` runs them under libFuzzer.

mod mutate;
pub mod targets;

pub use mutate::mutated;

use bessemer_corpus::{BuildContext, build};
use bessemer_corpus_config::{CorpusConfig, SourceKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

/// A reader of input from outside.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, which is that of its file and of its folder in `seeds`.
    pub name: &'static str,
    /// Folders of golden files that are seeds too, from the root of the repository.
    pub golden: &'static [&'static str],
    /// Runs it on one input. A panic is a finding.
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident: [$($golden:literal),*],)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[
            $(Target { name: stringify!($name), golden: &[$($golden),*], run: targets::$name::run },)*
        ];
    };
}

targets! {
    audio: ["crates/media/tests/golden"],
    chat_rows: [],
    corpus_files: [],
    corpus_sources: [],
    evaluation_set: [],
    fasttext: ["crates/score/tests/data/fasttext"],
    html: [],
    http: [],
    hugging_face: [],
    image: ["crates/media/tests/golden"],
    jats: [],
    jsonl: [],
    judge_study: ["fixtures/judge-2"],
    judge_texts: [],
    kenlm_arpa: ["crates/score/tests/data/kenlm"],
    kenlm_binary: ["crates/score/tests/data/kenlm"],
    latex: [],
    media_shard: [],
    network: ["crates/cluster/networks"],
    parquet: [],
    perturbed_text: [],
    predicate: [],
    profile: ["crates/rules/profiles"],
    recipe: ["recipes"],
    rules_text: [],
    run_files: [],
    safetensors: [],
    schedule: [],
    score_files: [],
    sentencepiece: ["crates/score/tests/data/sentencepiece"],
    serve_request: [],
    shards: [],
    switch: [],
    tar: [],
    task_file: [],
    template: [],
    tokenizer_json: [],
    tokenizer_text: [],
    url: [],
    warc: [],
    warc_build: [],
    wikitext: [],
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The inputs that a target begins with, with their paths, in order; files above `max_bytes` are left out.
///
/// # Errors
/// The system's.
pub fn seeds(target: &Target, max_bytes: u64) -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let own = root().join("fuzz/seeds").join(target.name);
    let golden = target.golden.iter().map(|folder| root().join(folder));
    let mut seeds = Vec::new();
    for folder in std::iter::once(own).filter(|folder| folder.exists()).chain(golden) {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let metadata = path.metadata()?;
            if metadata.is_file() && metadata.len() <= max_bytes {
                let bytes = std::fs::read(&path)?;
                seeds.push((path, bytes));
            }
        }
    }
    seeds.sort();
    Ok(seeds)
}

thread_local! {
    static FOLDER: TempDir = new_folder().expect("a folder for files of this thread");
}

/// A folder in memory, where there is one and TMPDIR names no other: targets write and sync thousands of files.
fn new_folder() -> std::io::Result<TempDir> {
    const PREFIX: &str = "bessemer-fuzz-";
    let memory = Path::new("/dev/shm");
    match std::env::var_os("TMPDIR").is_none() && memory.is_dir() {
        true => TempDir::with_prefix_in(PREFIX, memory),
        false => TempDir::with_prefix(PREFIX),
    }
}

/// A folder of this thread.
pub fn folder() -> PathBuf {
    FOLDER.with(|folder| folder.path().to_path_buf())
}

/// Writes a file into the folder of this thread.
pub fn file(name: &str, data: &[u8]) -> PathBuf {
    let path = folder().join(name);
    std::fs::write(&path, data).expect("the folder can be written");
    path
}

/// `data` itself or, where it begins with zero, the valid `whole` with bytes that `data` names (offset, value) changed: what a
/// checksum or a length of a file would otherwise keep away from the reader.
pub fn damaged(whole: &[u8], data: &[u8]) -> Vec<u8> {
    let Some((0, changes)) = data.split_first() else { return data.to_vec() };
    let mut bytes = whole.to_vec();
    for change in changes.as_chunks::<3>().0 {
        let offset = usize::from(u16::from_le_bytes([change[0], change[1]]));
        match bytes.get_mut(offset) {
            Some(byte) => *byte = change[2],
            // Beyond the end: the file is cut.
            None => bytes.truncate(whole.len() * usize::from(change[2]) / 256),
        }
    }
    bytes
}

/// Builds a corpus of one file. Faults of its documents are no errors of the build, so only a build without any document may fail.
pub fn build_corpus(source: SourceKind, name: &str, data: &[u8]) {
    let mut config =
        CorpusConfig { source, path: file(name, data).display().to_string(), ..CorpusConfig::default() };
    config.clean.min_bytes = 0;
    config.memory = "144MiB".into();
    let out = folder().join("out");
    let _ = std::fs::remove_dir_all(&out);
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 1, memory_budget: 4 << 20, progress: &|_| {}, stop: &stop };
    if let Ok(built) = build(&config, &out, &context) {
        let summary = built.summary;
        // A long text becomes several documents, and the held-out end of one is a document of its own.
        assert!(summary.read.documents <= summary.kept.documents + summary.dropped.documents);
    }
}

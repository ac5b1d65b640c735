//! Deletion by id: from the corpus, from the shards, and from every later build.

use bessemer_corpus::*;
use bessemer_corpus_config::*;
use bessemer_tokenizer::{Tokenizer, TokenizerConfig, Trainer};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Words that stand in one document only, and as its beginning in what a duplicate of it leaves behind.
const CANARY: &str = "canary-7f3a91 sings of a secret garden";

fn no_stop() -> AtomicBool {
    AtomicBool::new(false)
}

fn built(config: &CorpusConfig, out: &Path) -> Result<Built> {
    build(
        config,
        out,
        &BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &no_stop() },
    )
}

/// Forty documents in four sources: one with the canary, one that repeats another.
fn input(folder: &Path) -> CorpusConfig {
    for number in 0..40 {
        let words: Vec<String> = (0..40).map(|i| format!("w{}", (number * 31 + i * 7) % 97)).collect();
        let canary = if number == 17 { CANARY } else { "nothing to hide" };
        let path = folder.join(format!("source-{}", number % 4));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(format!("{number:02}.txt")), format!("{canary}\n{}\n{number}", words.join(" ")))
            .unwrap();
    }
    fs::copy(folder.join("source-1/01.txt"), folder.join("source-3/99.txt")).unwrap();
    CorpusConfig { source: SourceKind::Folder, path: folder.display().to_string(), ..CorpusConfig::default() }
}

fn ids(corpus: &Path) -> Vec<String> {
    let reader = CorpusReader::open(corpus).unwrap();
    Split::ALL
        .into_iter()
        .flat_map(|split| reader.documents(split))
        .map(|document| document.unwrap().id)
        .collect()
}

fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.push((path.strip_prefix(folder).unwrap().to_path_buf(), fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

/// The texts of all rows, kept and dropped: Parquet pages are compressed, so bytes are searched after reading.
fn all_text(corpus: &Path) -> String {
    let reader = CorpusReader::open(corpus).unwrap();
    let kept = Split::ALL
        .into_iter()
        .flat_map(|split| reader.documents(split))
        .map(|document| document.unwrap().text);
    let heads = reader.inspect(InspectFilter::default()).map(|row| row.unwrap().head);
    kept.chain(heads).collect::<Vec<_>>().join("\n")
}

fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn a_deleted_document_leaves_corpus_and_shards_and_stays_away() {
    let folder = tempfile::tempdir().unwrap();
    let (source, corpus, shards) =
        (folder.path().join("in"), folder.path().join("corpus"), folder.path().join("shards"));
    let config = input(&source);
    let before = built(&config, &corpus).unwrap().summary;
    let reader = CorpusReader::open(&corpus).unwrap();
    let find = |part: &str| ids(&corpus).into_iter().find(|id| id.contains(part)).unwrap();
    let (canary, other) = (find("17.txt"), find("20.txt"));

    let mut trainer =
        Trainer::new(TokenizerConfig { vocab_size: 300, ..TokenizerConfig::default() }).unwrap();
    trainer.feed_batch(&["a plain text about nothing", "and nothing else"], 1);
    let tokenizer: Arc<Tokenizer> = Arc::new(trainer.finish(|_| {}).unwrap());
    let stop = no_stop();
    let context = BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    tokenize_to_shards(&reader, &tokenizer, &shards, 100_000, &context).unwrap();
    let needle: Vec<u8> = tokenizer.encode(b"canary-7f3a91").unwrap()[1..]
        .iter()
        .flat_map(|t| (*t as u16).to_le_bytes())
        .collect();
    assert!(all_text(&corpus).contains("canary-7f3a91"));
    assert!(
        contents(&shards).iter().any(|(_, bytes)| holds(bytes, &needle)),
        "the search finds what is there"
    );

    let gone = [canary.clone(), other.clone(), "no such document".to_string()];
    let deletion = delete(&corpus, &gone, "asked for", &stop).unwrap();
    assert_eq!((deletion.listed, deletion.deleted, deletion.rewritten), (3, 2, true));
    assert_eq!(deletion.unknown, ["no such document"]);
    assert!(!all_text(&corpus).contains("canary"));
    assert!(!ids(&corpus).iter().any(|id| gone.contains(id)));
    let reader = CorpusReader::open(&corpus).unwrap();
    reader.verify().unwrap();
    let after = reader.summary().clone();
    assert_eq!(after.kept.documents, before.kept.documents - 2);
    assert_eq!(after.dropped.documents, before.dropped.documents + 2);
    assert_eq!(after.read, before.read);
    assert_ne!(after.fingerprint, before.fingerprint);
    let filter = InspectFilter { reason: Some("deleted".into()), ..InspectFilter::default() };
    let rows: Vec<Inspected> = reader.inspect(filter).map(|row| row.unwrap()).collect();
    assert!(
        rows.len() == 2
            && rows.iter().all(|row| row.head.is_empty() && row.detail.as_deref() == Some("asked for"))
    );

    // The shards follow the corpus, and no byte of the document is left in them.
    assert!(!tokenize_to_shards(&reader, &tokenizer, &shards, 100_000, &context).unwrap().reused);
    assert!(!contents(&shards).iter().any(|(_, bytes)| holds(bytes, &needle)));

    // Once more changes nothing; a build reuses the corpus; a build from nothing makes the same bytes.
    let again = delete(&corpus, &gone, "", &stop).unwrap();
    assert_eq!((again.listed, again.rewritten, again.deleted), (0, false, 2));
    let rewritten = contents(&corpus);
    assert!(built(&config, &corpus).unwrap().reused);
    fs::remove_dir_all(&corpus).unwrap();
    assert!(!built(&config, &corpus).unwrap().reused);
    assert_eq!(contents(&corpus), rewritten);
    let changed =
        CorpusConfig { clean: CleanConfig { min_bytes: 1, ..CleanConfig::default() }, ..config.clone() };
    built(&changed, &corpus).unwrap();
    assert!(!all_text(&corpus).contains("canary"));
}

#[test]
fn a_deletion_that_was_cut_off_is_finished_by_the_next_build() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = folder.path().join("corpus");
    let config = input(&folder.path().join("in"));
    built(&config, &corpus).unwrap();
    let id = ids(&corpus).into_iter().find(|id| id.contains("17.txt")).unwrap();
    // The list is written, the corpus not: as if the power failed in between.
    let stopped = AtomicBool::new(true);
    assert!(matches!(delete(&corpus, &[id], "", &stopped), Err(Error::Stopped)));
    assert!(all_text(&corpus).contains("canary"));
    assert!(!built(&config, &corpus).unwrap().reused);
    assert!(!all_text(&corpus).contains("canary"));
}

#[test]
fn deleting_a_document_keeps_its_duplicates_out() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = folder.path().join("corpus");
    let config = input(&folder.path().join("in"));
    let summary = built(&config, &corpus).unwrap().summary;
    assert_eq!(summary.dropped_by_reason["duplicate"].documents, 1);
    let kept = |name: &str| ids(&corpus).into_iter().find(|id| id.contains(name));
    let id = kept("01.txt").or_else(|| kept("99.txt")).unwrap();
    delete(&corpus, &[id], "", &no_stop()).unwrap();
    let rewritten = contents(&corpus);
    fs::remove_dir_all(&corpus).unwrap();
    built(&config, &corpus).unwrap();
    assert_eq!(contents(&corpus), rewritten);
    assert!(kept("01.txt").is_none() && kept("99.txt").is_none());
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = folder.path().join("corpus");
    let stop = no_stop();
    assert!(
        delete(&corpus, &["x".into()], "", &stop).unwrap_err().to_string().contains("build the corpus first")
    );
    let config = input(&folder.path().join("in"));
    built(&config, &corpus).unwrap();
    assert!(delete(&corpus, &[], "", &stop).unwrap_err().to_string().contains("at least one id"));
    let all = ids(&corpus);
    let message = delete(&corpus, &all[..all.len()], "", &stop).unwrap_err().to_string();
    assert!(message.contains("no document would be left"), "{message}");
    // The list is kept; without it the corpus must not come back silently.
    fs::remove_file(tombstones_path(&corpus)).unwrap();
    assert!(built(&config, &corpus).unwrap().reused, "nothing was deleted from this corpus");
    delete(&corpus, &all[..1], "", &stop).unwrap();
    fs::remove_file(tombstones_path(&corpus)).unwrap();
    let message = built(&config, &corpus).unwrap_err().to_string();
    assert!(message.contains("tombstones.json") && message.contains("restore the list"), "{message}");
}

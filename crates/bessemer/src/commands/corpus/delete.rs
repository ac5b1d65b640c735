//! `bessemer corpus delete`: documents leave the corpus, the shards and every later build.

use crate::commands::run::take;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use crate::run_dir::{RunDir, SHARDS, STAGES};
use bessemer_corpus::{BuildContext, CorpusReader, Deletion, TOKENS_FILE, Tokenized};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Rows that the rewriting of shards may hold in memory.
const MEMORY: usize = 512 << 20;

/// The ids of the command line and of the file.
pub(super) fn wanted(ids: &[String], file: Option<&Path>) -> Result<Vec<String>, Failure> {
    let mut wanted = ids.to_vec();
    if let Some(file) = file {
        let text = bessemer_durable::read_input_to_string(file)
            .map_err(|cause| Failure::usage(format!("cannot read {}: {cause}", file.display())))?;
        wanted.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
    }
    if wanted.is_empty() {
        return Err(Failure::usage("no document named: add --id ID or --ids FILE".to_string()));
    }
    Ok(wanted)
}

/// The run directory that holds the corpus, if one does.
fn run_of(corpus: &Path) -> Option<RunDir> {
    let run = RunDir::new(bessemer_durable::parent(corpus));
    let is_named_so = run.corpus().file_name() == corpus.file_name();
    let parts = [run.recipe(), run.shards(), run.root().join(bessemer_runlog::FILE)];
    (is_named_so && parts.iter().any(|part| part.exists())).then_some(run)
}

/// Deletes from the corpus, then makes the shards of a run directory anew.
pub(super) fn run(
    path: &Path,
    corpus: &Path,
    ids: &[String],
    reason: &str,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let stop = crate::signals::stop_flag()?;
    // A run that reads the corpus or its shards meanwhile would train on a mixture of both states.
    let run = run_of(corpus);
    let _lock = run.as_ref().map(take).transpose()?;
    let dir = run.unwrap_or_else(|| RunDir::new(path));
    let deletion = bessemer_corpus::delete(corpus, ids, reason, &stop)?;
    let shards = if dir.shards().join(TOKENS_FILE).is_file() || dir.shards().is_dir() {
        keep_tokenizer(&dir, &deletion)?;
        Some(shards(&dir, corpus, &stop)?)
    } else {
        None
    };
    for id in &deletion.unknown {
        console.say(&format!("{id}: not in this corpus; later builds will exclude it"));
    }
    if as_json {
        let tokens = shards.map(|made| made.splits.values().map(|split| split.tokens).sum::<u64>());
        let value = json!({
            "listed": deletion.listed, "deleted": deletion.deleted, "unknown": deletion.unknown,
            "rewritten": deletion.rewritten, "tokens": tokens,
        });
        return Ok(print(&serde_json::to_string(&value)?)?);
    }
    let list = bessemer_corpus::tombstones_path(corpus);
    print(&format!(
        "deleted documents {} (new on the list {}): {}",
        deletion.deleted,
        deletion.listed,
        list.display()
    ))?;
    match shards {
        Some(made) => {
            let tokens: u64 = made.splits.values().map(|split| split.tokens).sum();
            let how = if made.reused { "contain none of them" } else { "were rebuilt" };
            Ok(print(&format!("shards {how}: {tokens} tokens"))?)
        }
        None => Ok(()),
    }
}

/// The tokenizer stays what it is although the corpus changed: checkpoints and shards speak its language.
fn keep_tokenizer(dir: &RunDir, deletion: &Deletion) -> Result<(), Failure> {
    let marker = Path::new(STAGES).join("tokenizer.json");
    let Ok(text) = dir.text(&marker) else { return Ok(()) };
    let mut value: Value = serde_json::from_str(&text)?;
    value["made_from"]["corpus"] = json!(deletion.summary.fingerprint);
    Ok(dir.handle()?.write(marker, serde_json::to_string_pretty(&value)?.as_bytes())?)
}

/// Encodes the corpus again, into files of the size that they had.
fn shards(dir: &RunDir, corpus: &Path, stop: &AtomicBool) -> Result<Tokenized, Failure> {
    dir.dir(SHARDS)?;
    let text = dir.text(Path::new(SHARDS).join(TOKENS_FILE)).unwrap_or_default();
    let before: Option<Tokenized> = serde_json::from_str(&text).ok();
    let shard_bytes = before.map_or(bessemer_shards::DEFAULT_FILE_BYTES, |before| before.shard_bytes);
    let tokenizer = Arc::new(dir.load_tokenizer()?);
    let context =
        BuildContext { threads: machine::threads(0), memory_budget: MEMORY, progress: &|_| {}, stop };
    let reader = CorpusReader::open(corpus)?;
    Ok(bessemer_corpus::tokenize_to_shards(&reader, &tokenizer, &dir.shards(), shard_bytes, &context)?)
}

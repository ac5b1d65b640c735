//! The stages of a run before training: corpus, tokenizer, shards. Each is skipped when its result is there already.
//!
//! Corpus and shards know by themselves what they were made from. The tokenizer leaves a marker `stages/tokenizer.json` that
//! holds everything it was made from and its fingerprint, written after the result; it is trained when the marker is
//! missing or made from something else.

use crate::chat_stage::ChatDocuments;
use crate::commands::saved_model::load_tokenizer;
use crate::console::Console;
use crate::escape::shell_word;
use crate::failure::Failure;
use crate::run_dir::{CORPUS, RunDir, SHARDS, STAGES, TOKENIZER};
use bessemer_corpus::{
    Access, BuildContext, CorpusReader, CorpusSummary, DocumentEncoder, Engine, Split, encode_to_shards,
    tokenize_to_shards,
};
use bessemer_corpus_cluster::ClusterEngine;
use bessemer_corpus_config::CorpusConfig;
use bessemer_recipe::Recipe;
use bessemer_runlog as runlog;
use bessemer_runlog::RunLog;
use bessemer_shards::{DEFAULT_FILE_BYTES, ShardSet, repeated_blocks};
use bessemer_tokenizer::{Tokenizer, TokenizerKind, Trainer as TokenizerTrainer};
use bessemer_train::Observer;
use bessemer_units::{Bytes, Seconds, Tokens, counted};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Text taken from the corpus before it is handed to the tokenizer's threads.
const TEXT_BATCH: usize = 8 << 20;
/// Largest share of the validation split that may occur in the training split without a warning: licences and headers do.
const MOST_REPEATED: f64 = 0.1;
/// Fewest blocks of a validation split whose share means something.
const FEWEST_BLOCKS: u64 = 8;

/// Reads the tokenizer that the recipe names instead of training one; `None` if it names none.
pub(crate) fn given_tokenizer(recipe: &Recipe) -> Result<Option<Tokenizer>, Failure> {
    let file = &recipe.tokenizer.file;
    if file.is_empty() {
        return Ok(None);
    }
    let loaded = load_tokenizer(Path::new(file));
    loaded.map(Some).map_err(|e| Failure::new(format!("tokenizer.file: {}", e.message)))
}

/// State that the stages of one run share.
pub(crate) struct Stages<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) dir: &'a RunDir,
    pub(crate) threads: usize,
    pub(crate) stop: &'a AtomicBool,
}

fn log_stage(log: &mut RunLog, name: &str, seconds: f64) -> Result<(), Failure> {
    let record = runlog::Stage { name: name.into(), seconds, skipped: false, counters: BTreeMap::new() };
    Ok(log.append(&record.into())?)
}

fn how_long(reused: bool, seconds: f64) -> String {
    if reused { "up to date".into() } else { format!("took {}", Seconds(seconds)) }
}

impl Stages<'_> {
    /// All of them.
    pub(crate) fn run(&self, console: &mut Console, log: &mut RunLog) -> Result<(), Failure> {
        // Before anything is replaced.
        [CORPUS, STAGES, SHARDS].into_iter().try_for_each(|directory| self.is_own(directory))?;
        let corpus = self.corpus(console, log, None)?;
        let tokenizer = self.tokenizer(&corpus, console, log)?;
        self.shards(&corpus, &tokenizer, console, log)
    }

    /// Collects, cleans and splits the documents, on the cluster of a scheduler if one is named.
    pub(crate) fn corpus(
        &self,
        console: &mut Console,
        log: &mut RunLog,
        cluster: Option<&str>,
    ) -> Result<CorpusReader, Failure> {
        let begun = Instant::now();
        self.is_own(CORPUS)?;
        let built = self.with_context(console, "corpus", |context| {
            let engine = cluster.map(|scheduler| ClusterEngine {
                scheduler,
                access: access(),
                memory: context.memory_budget / context.threads.max(1),
                stop: context.stop,
            });
            let engine = engine.as_ref().map(|engine| engine as &dyn Engine);
            let config =
                CorpusConfig { access: access(), cargo_home: cargo_home(), ..self.recipe.corpus.clone() };
            bessemer_corpus::build_on(&config, &self.dir.corpus(), context, engine)
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let s = &built.summary;
        let fallback = s.fallback.as_deref().map(fallback_warning);
        if let Some(warning) = &fallback {
            console.say(&format!("warning: {warning}"));
        }
        console.say(&format!(
            "corpus ({}): kept {}, {} of {} read; {}",
            s.source,
            counted(s.kept.documents, "document"),
            Bytes(s.kept.bytes),
            Bytes(s.read.bytes),
            how_long(built.reused, seconds)
        ));
        for component in &s.components {
            console.say(&format!(
                "  {}: {}, {} for training, {} for validation",
                component.name,
                counted(component.train.documents + component.validation.documents, "document"),
                Bytes(component.train.bytes),
                Bytes(component.validation.bytes)
            ));
        }
        if let Some(wrong) = self.wrong_chats(s) {
            console.say(&format!("warning: {wrong}"));
        }
        // The fallback was said before all else.
        let said = |remark: &&String| s.fallback.as_ref().is_some_and(|why| remark.ends_with(why.as_str()));
        for remark in s.remarks.iter().filter(|remark| !said(remark)) {
            console.say(&format!("  {remark}"));
        }
        if !built.reused {
            log.append(&corpus_record(s).into())?;
            if let Some(message) = fallback {
                log.append(&runlog::Warning { step: None, topic: "corpus".into(), message }.into())?;
            }
            log_stage(log, "corpus", seconds)?;
        }
        Ok(CorpusReader::open(&self.dir.corpus())?)
    }

    /// A sentence on rows that are no chats, if there are any.
    fn wrong_chats(&self, summary: &CorpusSummary) -> Option<String> {
        let counts = summary.sources.iter().filter_map(|source| source.dropped.get("bad-chat"));
        let rows: u64 = counts.map(|count| count.documents).sum();
        let template = &self.recipe.corpus.chats.as_ref()?.template;
        let template = if template.is_empty() { &self.recipe.train.init.from } else { template };
        let words = [&self.recipe.corpus.path, template, &self.recipe.tokenizer.file];
        let [path, template, tokenizer] = words.map(|word| shell_word(word));
        (rows > 0).then(|| {
            format!(
                "{} left out (bad-chat), wanted chats with an answer; `bessemer chat show {path} --template {template} \
                 --tokenizer {tokenizer} --chats 0 --count` names them",
                counted(rows, "row")
            )
        })
    }

    /// Trains the tokenizer on the training split.
    pub(crate) fn tokenizer(
        &self,
        corpus: &CorpusReader,
        console: &mut Console,
        log: &mut RunLog,
    ) -> Result<Arc<Tokenizer>, Failure> {
        let begun = Instant::now();
        self.is_own(STAGES)?;
        let given = given_tokenizer(self.recipe)?;
        let made_from = match &given {
            Some(given) => json!({ "fingerprint": given.fingerprint() }),
            None => {
                let mut config = serde_json::to_value(&self.recipe.tokenizer)?;
                // Markers from before there was this key hold.
                config.as_object_mut().map(|config| config.remove("file"));
                json!({ "corpus": corpus.summary().fingerprint, "tokenizer": config })
            }
        };
        if self.is_done("tokenizer", &made_from) && self.dir.has(TOKENIZER) {
            let tokenizer = self.dir.load_tokenizer()?;
            self.require_made_here(&tokenizer)?;
            console.say(&format!("tokenizer: {} tokens; up to date", tokenizer.vocab_size()));
            if let Some(warning) = self.smaller_than_asked(&tokenizer) {
                console.say(&format!("warning: {warning}"));
            }
            return Ok(Arc::new(tokenizer));
        }
        if let Some(tokenizer) = given {
            tokenizer.save_in(self.dir.handle()?, TOKENIZER)?;
            self.mark("tokenizer", &made_from, &tokenizer.fingerprint())?;
            console.say(&format!(
                "tokenizer: {} tokens of {}",
                tokenizer.vocab_size(),
                self.recipe.tokenizer.file
            ));
            let seconds = begun.elapsed().as_secs_f64();
            log.append(&tokenizer_record(&tokenizer, 0, seconds).into())?;
            log_stage(log, "tokenizer", seconds)?;
            return Ok(Arc::new(tokenizer));
        }
        let mut trainer = TokenizerTrainer::new(self.recipe.tokenizer.clone())?;
        let total = corpus.summary().split(Split::Train).bytes;
        let mut batch = Vec::new();
        let mut held = 0;
        for document in corpus.documents(Split::Train) {
            self.interrupted()?;
            let text = document?.text;
            held += text.len();
            batch.push(text);
            if held >= TEXT_BATCH {
                trainer.feed_batch(&batch, self.threads);
                batch.clear();
                held = 0;
                console.progress("tokenizer: counting words", trainer.bytes_seen(), total);
            }
        }
        trainer.feed_batch(&batch, self.threads);
        let bytes = trainer.bytes_seen();
        let tokenizer = trainer
            .finish(|p| console.progress("tokenizer: merging", p.vocabulary as u64, p.wanted as u64))?;
        tokenizer.save_in(self.dir.handle()?, TOKENIZER)?;
        self.mark("tokenizer", &made_from, &tokenizer.fingerprint())?;
        let seconds = begun.elapsed().as_secs_f64();
        console.say(&format!(
            "tokenizer: {} tokens trained on {} in {}",
            tokenizer.vocab_size(),
            Bytes(bytes),
            Seconds(seconds)
        ));
        log.append(&tokenizer_record(&tokenizer, bytes, seconds).into())?;
        if let Some(message) = self.smaller_than_asked(&tokenizer) {
            console.say(&format!("warning: {message}"));
            log.append(&runlog::Warning { step: None, topic: "tokenizer".into(), message }.into())?;
        }
        log_stage(log, "tokenizer", seconds)?;
        Ok(Arc::new(tokenizer))
    }

    /// A sentence if the text has fewer tokens than the recipe asks for. The size of an alphabet is a limit, not a wish.
    fn smaller_than_asked(&self, tokenizer: &Tokenizer) -> Option<String> {
        let (config, found) = (&self.recipe.tokenizer, tokenizer.vocab_size());
        let trained = config.kind == TokenizerKind::ByteBpe && config.file.is_empty();
        (trained && (found as u64) < config.vocab_size).then(|| {
            format!(
                "tokenizer.vocab_size = {}: the text gives {found} tokens, because no further pair of tokens \
                 occurs {} times (tokenizer.min_frequency); the model gets {found} token embeddings unless \
                 model.vocab_size is larger; set tokenizer.vocab_size = {found}, or train on more text",
                config.vocab_size, config.min_frequency
            )
        })
    }

    /// Encodes both splits into token shards.
    pub(crate) fn shards(
        &self,
        corpus: &CorpusReader,
        tokenizer: &Arc<Tokenizer>,
        console: &mut Console,
        log: &mut RunLog,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        self.is_own(SHARDS)?;
        let chats = ChatDocuments::of(self.recipe, tokenizer)?;
        if let Some(chats) = &chats {
            chats.store(self.dir.handle()?)?;
        }
        let made = self.with_context(console, "shards", |context| {
            let shards = self.dir.shards();
            match &chats {
                Some(chats) => {
                    let encoder: Arc<dyn DocumentEncoder> = Arc::<ChatDocuments>::clone(chats);
                    encode_to_shards(corpus, tokenizer, &encoder, &shards, DEFAULT_FILE_BYTES, context)
                }
                None => tokenize_to_shards(corpus, tokenizer, &shards, DEFAULT_FILE_BYTES, context),
            }
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let sizes: Vec<String> = made
            .splits
            .iter()
            .map(|(split, s)| {
                let scored =
                    s.scored.map_or_else(String::new, |scored| format!(" ({} scored)", Tokens(scored)));
                format!("{} {} tokens{scored}", split.name(), Tokens(s.tokens))
            })
            .collect();
        console.say(&format!("shards: {}; {}", sizes.join(", "), how_long(made.reused, seconds)));
        if made.reused {
            return Ok(());
        }
        if let Some([shortened, left_out]) = chats.map(|chats| chats.shortened_and_left_out()) {
            let longest = self.recipe.train.seq_len;
            if shortened > 0 {
                let chats = counted(shortened, "chat");
                console.say(&format!("  {chats} of more than {longest} tokens without their oldest turns"));
            }
            if left_out > 0 {
                let chats = counted(left_out, "chat");
                console.say(&format!("warning: {chats} left out: the last question with its answer has more than {longest} tokens (train.seq_len)"));
            }
        }
        for (split, s) in &made.splits {
            let record = runlog::Shards {
                split: split.name().into(),
                files: s.files,
                tokens: s.tokens,
                scored: s.scored,
                documents: s.documents,
                text_bytes: s.text_bytes,
                file_bytes: s.file_bytes,
                seconds,
            };
            log.append(&record.into())?;
        }
        if let Some(message) = self.validation_repeats_training()? {
            console.say(&format!("warning: {message}"));
            log.append(&runlog::Warning { step: None, topic: "validation".into(), message }.into())?;
        }
        log_stage(log, "shards", seconds)
    }

    /// A sentence if much of the validation split occurs in the training split as well.
    fn validation_repeats_training(&self) -> Result<Option<String>, Failure> {
        if !self.dir.shards().join("validation").is_dir() {
            return Ok(None);
        }
        let open = |split: Split| ShardSet::open(self.dir.shards(), split.name());
        let found = repeated_blocks(&open(Split::Train)?, &open(Split::Validation)?)?;
        let share = found.repeated as f64 / found.blocks.max(1) as f64;
        Ok((found.blocks >= FEWEST_BLOCKS && share > MOST_REPEATED).then(|| {
            format!(
                "validation repeats training: {} of {} of {} tokens of the validation split ({:.0} %) occur in the training split \
                 as well, so the validation loss measures memory; drop duplicates (corpus.clean.exact_dedup = true, or a method \
                 of corpus.dedup), or name other sources in corpus.split.validation",
                found.repeated,
                counted(found.blocks, "block"),
                found.block_tokens,
                100.0 * share
            )
        }))
    }

    /// Runs a stage of the corpus pipeline, which tells its progress through a shared closure on this thread.
    fn with_context<T>(
        &self,
        console: &mut Console,
        what: &str,
        stage: impl FnOnce(&BuildContext<'_>) -> bessemer_corpus::Result<T>,
    ) -> Result<T, Failure> {
        let budget = self.recipe.corpus.budget(self.threads).map_err(Failure::usage)?;
        if budget.threads < self.threads {
            console.say(&format!(
                "{what}: {} of {} threads work, because corpus.memory = {:?} has room for no more",
                budget.threads, self.threads, self.recipe.corpus.memory
            ));
        }
        let shared = RefCell::new(console);
        let result = stage(&BuildContext {
            threads: budget.threads,
            memory_budget: budget.row_bytes,
            progress: &|p| {
                shared.borrow_mut().progress(&format!("{what}: {}", p.stage), p.bytes, p.total_bytes)
            },
            stop: self.stop,
        });
        if result.is_err() {
            self.interrupted()?;
        }
        Ok(result?)
    }

    fn interrupted(&self) -> Result<(), Failure> {
        match self.stop.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(crate::commands::ranks::interrupted(true)),
        }
    }

    /// Returns an error if a symbolic link or a file takes the place of a stage's directory, so that nothing outside is replaced.
    fn is_own(&self, directory: &str) -> Result<(), Failure> {
        let run = self.dir.handle()?;
        match run.kind(directory)? {
            None => Ok(()),
            Some(_) => Ok(run.dir(directory).map(|_| ())?),
        }
    }

    /// Marker of a stage, below the run directory.
    fn marker(stage: &str) -> PathBuf {
        Path::new(STAGES).join(format!("{stage}.json"))
    }

    fn is_done(&self, stage: &str, made_from: &Value) -> bool {
        let text = self.dir.text(Stages::marker(stage)).unwrap_or_default();
        serde_json::from_str::<Value>(&text).is_ok_and(|v| &v["made_from"] == made_from)
    }

    fn mark(&self, stage: &str, made_from: &Value, result: &str) -> Result<(), Failure> {
        let run = self.dir.handle()?;
        run.create_dir(STAGES)?;
        let marker = json!({ "made_from": made_from, "result": result });
        Ok(run.write(Stages::marker(stage), serde_json::to_string_pretty(&marker)?.as_bytes())?)
    }

    /// Errors if the tokenizer is another one than this stage made: shards and checkpoints belong to that one.
    fn require_made_here(&self, tokenizer: &Tokenizer) -> Result<(), Failure> {
        let marker = Stages::marker("tokenizer");
        let made: Value = serde_json::from_str(&self.dir.text(&marker)?)?;
        let (wanted, found) = (made["result"].as_str().unwrap_or_default(), tokenizer.fingerprint());
        if wanted == found {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{} is not the tokenizer that this run made: wanted fingerprint {wanted}, found {found}; restore \
             the original file, or remove it and {} to train it again",
            self.dir.tokenizer().display(),
            self.dir.root().join(marker).display()
        )))
    }
}

fn tokenizer_record(tokenizer: &Tokenizer, bytes: u64, seconds: f64) -> runlog::Tokenizer {
    runlog::Tokenizer {
        vocab_size: tokenizer.vocab_size() as u64,
        fingerprint: tokenizer.fingerprint(),
        pretokenizer: tokenizer.pretokenizer().map_or("", |p| p.name()).into(),
        trained_on_bytes: bytes,
        seconds,
    }
}

/// Returns the settings of object stores in the environment.
pub(crate) fn access() -> Access {
    let text = |name: OsString| name.into_string().ok();
    Access::of(std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))))
}

/// Cargo's home folder, as cargo itself finds it.
fn cargo_home() -> PathBuf {
    let home = || Some(std::env::home_dir()?.join(".cargo"));
    let set = std::env::var_os("CARGO_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    set.or_else(home).unwrap_or_default()
}

/// The warning for a corpus that is another than the recipe asks for.
fn fallback_warning(why: &str) -> String {
    format!("{why}; to train on your own text, set corpus.source and corpus.path")
}

/// The corpus as the log of the run records it.
fn corpus_record(s: &CorpusSummary) -> runlog::Corpus {
    let dropped = |list: &BTreeMap<String, bessemer_corpus::Count>| {
        list.iter()
            .map(|(reason, c)| runlog::Dropped {
                reason: reason.clone(),
                documents: c.documents,
                bytes: c.bytes,
            })
            .collect()
    };
    let split = |value: fn(&bessemer_corpus::SplitSummary) -> u64| {
        s.splits.iter().map(|(split, v)| (split.name().to_owned(), value(v))).collect()
    };
    runlog::Corpus {
        source: s.source.clone(),
        fallback: s.fallback.clone(),
        documents_in: s.read.documents,
        bytes_in: s.read.bytes,
        documents_kept: s.kept.documents,
        bytes_kept: s.kept.bytes,
        dropped: dropped(&s.dropped_by_reason),
        sources: s
            .sources
            .iter()
            .map(|x| runlog::CorpusSource {
                name: match &x.version {
                    Some(v) => format!("{} {v}", x.name),
                    None => x.name.clone(),
                },
                documents_in: x.read.documents,
                bytes_in: x.read.bytes,
                documents_kept: x.kept.documents,
                bytes_kept: x.kept.bytes,
                dropped: dropped(&x.dropped),
            })
            .collect(),
        split_documents: split(|v| v.documents),
        split_bytes: split(|v| v.bytes),
    }
}

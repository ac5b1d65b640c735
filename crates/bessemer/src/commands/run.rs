//! `bessemer run` and `bessemer train`: a recipe's stages, each only if its result is not there yet.

use crate::cli::{RecipeArgs, TrainArgs};
use crate::commands::ranks::{Crew, Ranks};
use crate::commands::report;
use crate::commands::saved_model::load_tokenizer;
use crate::console::{Console, print};
use crate::failure::{Failure, code};
use crate::machine;
use crate::run_dir::RunDir;
use crate::stages::Stages;
use bessemer_recipe::{Recipe, load_recipe, to_toml};
use bessemer_runlog::{self as runlog, EndReason, Record, RunLog};
use bessemer_shards::ShardSet;
use bessemer_tokenizer::Tokenizer;
use bessemer_train::{Observer, Outcome, Peak, TrainerInput};
use bessemer_units::Bytes;
use serde_json::json;
use std::fs::{self, File, TryLockError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// One process at work on one run directory.
pub(crate) struct Session {
    recipe: Recipe,
    recipe_text: String,
    dir: RunDir,
    threads: usize,
    stop: Arc<AtomicBool>,
    begun: Instant,
    /// Held while the session lives; the system drops it with the process, however that ends.
    _lock: File,
}

impl Session {
    /// Loads the recipe and takes the run directory for this process.
    pub(crate) fn open(args: &RecipeArgs) -> Result<Session, Failure> {
        let recipe = load_recipe(&args.recipe, &args.sets)?.value;
        let dir = RunDir::new(recipe.run.directory());
        fs::create_dir_all(dir.root()).map_err(|e| {
            Failure::new(format!("cannot create run directory {}: {e}", dir.root().display()))
        })?;
        let lock = File::create(dir.root().join(".lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(format!(
                    "another process is at work on {}; wait for it, stop it, or choose another run.name",
                    dir.root().display()
                )));
            }
            Err(TryLockError::Error(e)) => return Err(e.into()),
        }
        let recipe_text = to_toml(&recipe)?;
        let threads = machine::threads(recipe.run.threads);
        Ok(Session {
            recipe,
            recipe_text,
            dir,
            threads,
            stop: crate::signals::stop_flag()?,
            begun: Instant::now(),
            _lock: lock,
        })
    }

    /// Runs `work` with the stages before training and the log of the run.
    pub(crate) fn with_stages(
        &mut self,
        work: impl FnOnce(&Stages<'_>, &mut RunLog) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let stages = Stages { recipe: &self.recipe, dir: &self.dir, threads: self.threads, stop: &self.stop };
        let mut log = RunLog::open(self.dir.root())?;
        work(&stages, &mut log)
    }

    /// Trains to the end or to a stop, evaluates, and writes the report.
    fn train(&mut self, ranks: Ranks, console: &mut Console) -> Result<(), Failure> {
        let (tokenizer, train, validation) = self.data(console)?;
        console.log_every(self.recipe.train.log_every);
        let measured = bessemer_kernels_cpu::peak::measure(ranks.all_threads())?;
        let peak = Peak { flops_per_second: measured.flops_per_s };
        let mut log = RunLog::open(self.dir.root())?;
        self.announce(&mut log, ranks, peak, console)?;
        drop(log);
        let memory = Bytes(machine::available_memory().0 / ranks.count as u64);
        let input = || TrainerInput {
            recipe: self.recipe.clone(),
            recipe_text: self.recipe_text.clone(),
            tokenizer: Arc::clone(&tokenizer),
            train: Arc::clone(&train),
            validation: validation.clone(),
            directory: self.dir.root().to_path_buf(),
            memory_available: memory,
            peak: Some(peak),
        };
        let crew = Crew { ranks, input: &input, stop: &self.stop };
        let trained = crew.train(console, &|| {
            Ok(bessemer_durable::write(&self.dir.recipe(), self.recipe_text.as_bytes())?)
        })?;
        let outcome = trained.outcome;
        let Some(((done, all), closed)) = trained.closed else { return outcome.map(|_| ()) };
        let (reason, message) = match &outcome {
            Ok(Outcome::Finished) => (EndReason::Finished, None),
            Ok(Outcome::Stopped) => (EndReason::Interrupted, None),
            Err(e) => (EndReason::Failed, Some(e.message.clone())),
        };
        // On a full disk this fails too; the error that ended the run is the one to tell.
        let ended = closed.end(reason, message, self.begun.elapsed().as_secs_f64());
        let outcome = outcome?;
        ended?;
        if outcome == Outcome::Stopped {
            return Err(Failure {
                code: code::CONTINUE,
                message: format!("stopped after step {done} of {all}; run the same command to go on"),
            });
        }
        Ok(())
    }

    /// Tokenizer and shards of the run directory.
    fn data(&self, console: &mut Console) -> Result<Data, Failure> {
        let missing = |what: &str, e: &dyn std::fmt::Display| {
            Failure::new(format!("{what}: {e}; `bessemer run RECIPE` makes corpus, tokenizer and shards"))
        };
        let tokenizer = load_tokenizer(&self.dir.tokenizer())
            .map_err(|e| missing("the run has no usable tokenizer", &e.message))?;
        let train = ShardSet::open(self.dir.shards(), "train")
            .map_err(|e| missing("the run has no usable shards", &e))?;
        let validation = match self.dir.shards().join("validation").is_dir() {
            true => Some(ShardSet::open(self.dir.shards(), "validation")?),
            false => None,
        };
        // One token is nothing to predict; a run without validation trains all the same.
        let validation = validation.filter(|set| set.token_count() > 1).map(Arc::new);
        if validation.is_none() {
            console.say(
                "warning: the validation split is empty, so nothing will be validated; raise \
                 corpus.split.validation_fraction or name sources in corpus.split.validation",
            );
        }
        Ok((Arc::new(tokenizer), Arc::new(train), validation))
    }

    fn announce(
        &self,
        log: &mut RunLog,
        ranks: Ranks,
        peak: Peak,
        console: &mut Console,
    ) -> Result<(), Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let record = Record::from(runlog::Run {
            name: self.recipe.run.name.clone(),
            program: format!("bessemer {}", env!("CARGO_PKG_VERSION")),
            command: std::env::args().collect(),
            seed: self.recipe.run.seed,
            started_unix_s: now,
            device: machine::processor(),
            threads: ranks.all_threads() as u64,
            peak_flops_per_s: Some(peak.flops_per_second),
            mfu_convention: Some(
                "model FLOPs, 6 P + 12 L H E T a token (PaLM, appendix B), over the FMA peak measured at the start".into(),
            ),
        });
        log.append(&record)?;
        console.record(&record);
        if ranks.count > 1 {
            let (count, threads) = (ranks.count, ranks.threads);
            let plural = if threads == 1 { "" } else { "s" };
            console.say(&format!("{count} ranks in this process (--ranks), {threads} thread{plural} each"));
        }
        Ok(())
    }
}

/// Tokenizer, training split, validation split.
type Data = (Arc<Tokenizer>, Arc<ShardSet>, Option<Arc<ShardSet>>);

/// Every stage of a recipe.
pub(crate) fn run(args: &TrainArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let mut session = Session::open(&args.recipe)?;
    let ranks = Ranks::new(args.ranks, session.recipe.run.threads)?;
    console.say(&format!("run directory {}", session.dir.root().display()));
    session.with_stages(|stages, log| stages.run(console, log))?;
    finish(session, ranks, as_json, console)
}

/// Training only.
pub(crate) fn train(args: &TrainArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let session = Session::open(&args.recipe)?;
    let ranks = Ranks::new(args.ranks, session.recipe.run.threads)?;
    finish(session, ranks, as_json, console)
}

fn finish(mut session: Session, ranks: Ranks, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if session.stop.load(Ordering::Relaxed) {
        return Err(Failure {
            code: code::CONTINUE,
            message: "stopped; run the same command to go on".into(),
        });
    }
    let trained = session.train(ranks, console);
    // A stopped run has a report too; a report that cannot be written must not hide why training failed.
    let report = report::write(&session.dir);
    trained?;
    let records = report?;
    print(&match as_json {
        true => summary_json(&session.dir, &records)?,
        false => bessemer_report::terminal::summary(&records),
    })?;
    console.say(&format!("report: {}", session.dir.report().display()));
    Ok(())
}

/// How a run ended, for programs: the last record of each kind that says so.
fn summary_json(dir: &RunDir, records: &[Record]) -> Result<String, Failure> {
    let mut summary = json!({ "run": dir.root(), "report": dir.report() });
    for record in records {
        let (kind, value) = match record {
            Record::Model(r) => ("model", serde_json::to_value(r)?),
            Record::Step(r) => ("step", serde_json::to_value(r)?),
            Record::Eval(r) => ("eval", serde_json::to_value(r)?),
            Record::Baseline(r) => ("baseline", serde_json::to_value(r)?),
            Record::End(r) => ("end", serde_json::to_value(r)?),
            _ => continue,
        };
        summary[kind] = value;
    }
    Ok(serde_json::to_string_pretty(&summary)?)
}

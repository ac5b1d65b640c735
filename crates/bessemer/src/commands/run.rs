//! `bessemer run` and `bessemer train`: a recipe's stages, each only if its result is not there yet.

use crate::cli::{RecipeArgs, TrainArgs};
use crate::commands::ranks::{Crew, Job};
use crate::commands::report;
use crate::commands::saved_model::load_tokenizer;
use crate::console::{Console, print};
use crate::failure::{Failure, code};
use crate::machine;
use crate::run_dir::RunDir;
use crate::stages::Stages;
use crate::working_tree;
use bessemer_recipe::{Recipe, load_recipe, to_toml};
use bessemer_runlog::{self as runlog, EndReason, Record, RunLog};
use bessemer_shards::ShardSet;
use bessemer_tokenizer::Tokenizer;
use bessemer_train::{Observer, Outcome, Peak, TrainerInput};
use bessemer_units::Bytes;
use bessemer_web::redact::redact;
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
    /// Held by the first process while the session lives; the system drops it with the process, however that ends.
    _lock: Option<File>,
}

impl Session {
    /// Loads the recipe and takes the run directory for this process.
    pub(crate) fn open(args: &RecipeArgs) -> Result<Session, Failure> {
        Session::open_as(args, true)
    }

    /// As [`Session::open`]; of several processes only the first one makes and holds the directory.
    fn open_as(args: &RecipeArgs, first: bool) -> Result<Session, Failure> {
        let recipe = load_recipe(&args.recipe, &args.overrides())?.value;
        let dir = RunDir::new(recipe.run.directory());
        let lock = if first { Some(take(&dir)?) } else { None };
        // Records, checkpoints and the directory hold no credentials of the sources.
        let recipe_text = redact(&to_toml(&recipe)?).into_owned();
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

    /// The ranks of this process train to the end or to a stop, and evaluate.
    fn train(&mut self, job: &mut Job, console: &mut Console) -> Result<(), Failure> {
        job.meet("data")?;
        let (tokenizer, train, validation) = self.data(console)?;
        console.log_every(self.recipe.train.log_every);
        let threads = job.threads_of_a_rank(self.recipe.run.threads);
        let peak = match job.is_first() {
            true => Some(self.announce(job, threads, console)?),
            false => None,
        };
        let memory = Bytes(machine::available_memory().0 / job.local() as u64);
        let input = || TrainerInput {
            recipe: self.recipe.clone(),
            recipe_text: self.recipe_text.clone(),
            tokenizer: Arc::clone(&tokenizer),
            train: Arc::clone(&train),
            validation: validation.clone(),
            directory: self.dir.root().to_path_buf(),
            memory_available: memory,
            peak,
        };
        let crew = Crew {
            threads,
            threads_alone: threads * job.here,
            // Ranks of one machine would all take the same cores.
            pin: self.recipe.run.pin_threads && job.local() == 1,
            input: &input,
            stop: &self.stop,
        };
        if !job.is_first() {
            return crew.assist(job);
        }
        let trained = crew.train(job, console, &|| {
            Ok(bessemer_durable::write(&self.dir.recipe(), self.recipe_text.as_bytes())?)
        })?;
        let outcome = trained.outcome;
        let Some(((done, all), closed)) = trained.closed else { return outcome.map(|_| ()) };
        let (reason, message) = match &outcome {
            Ok(Outcome::Finished) => (EndReason::Finished, None),
            Ok(Outcome::Stopped) => (EndReason::Interrupted, None),
            Err(e) => (EndReason::Failed, Some(redact(&e.message).into_owned())),
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

    /// Records and tells what this session works with; the peak of all ranks' threads.
    fn announce(&self, job: &Job, threads: usize, console: &mut Console) -> Result<Peak, Failure> {
        let measured = bessemer_kernels_cpu::peak::measure(threads * job.here)?;
        // Other processes are taken to be like this one.
        let flops_per_second = measured.flops_per_s * (job.ranks / job.here) as f64;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let cwd = std::env::current_dir().unwrap_or_default();
        let record = Record::from(runlog::Run {
            name: self.recipe.run.name.clone(),
            program: format!("bessemer {}", env!("CARGO_PKG_VERSION")),
            command: std::env::args().map(|word| redact(&word).into_owned()).collect(),
            seed: self.recipe.run.seed,
            started_unix_s: now,
            started_at: runlog::rfc3339(now),
            host: machine::hostname(),
            commit: working_tree::commit(&cwd),
            cwd: redact(&cwd.display().to_string()).into_owned(),
            device: machine::processor(),
            threads: (threads * job.ranks) as u64,
            peak_flops_per_s: Some(flops_per_second),
            mfu_convention: Some(
                "model FLOPs, 6 P + 12 L H E T a token (PaLM, appendix B), over the FMA peak measured at the start".into(),
            ),
        });
        RunLog::open(self.dir.root())?.append(&record)?;
        console.record(&record);
        if job.ranks > 1 {
            let plural = if threads == 1 { "" } else { "s" };
            console.say(&format!("{} ranks, {}; {threads} thread{plural} each", job.ranks, job.source));
        }
        Ok(Peak { flops_per_second })
    }
}

/// Makes the run directory and takes it for this process.
fn take(dir: &RunDir) -> Result<File, Failure> {
    fs::create_dir_all(dir.root())
        .map_err(|e| Failure::new(format!("cannot create run directory {}: {e}", dir.root().display())))?;
    let lock = File::create(dir.lock())?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Failure::new(format!(
            "another process is at work on {}; wait for it, stop it, or choose another run.name",
            dir.root().display()
        ))),
        Err(TryLockError::Error(e)) => Err(e.into()),
    }
}

/// Tokenizer, training split, validation split.
type Data = (Arc<Tokenizer>, Arc<ShardSet>, Option<Arc<ShardSet>>);

/// Every stage of a recipe.
pub(crate) fn run(args: &TrainArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    work(args, true, as_json, console)
}

/// Training only.
pub(crate) fn train(args: &TrainArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    work(args, false, as_json, console)
}

/// The part of this process in a job.
fn work(args: &TrainArgs, stages: bool, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let mut job = Job::start(args.ranks, args.waiting)?;
    let result = match job.is_first() {
        true => lead(args, stages, as_json, &mut job, console),
        false => Session::open_as(&args.recipe, false)
            .and_then(|mut session| session.train(&mut job, &mut Console::new(true))),
    };
    job.end(result)
}

fn lead(
    args: &TrainArgs,
    stages: bool,
    as_json: bool,
    job: &mut Job,
    console: &mut Console,
) -> Result<(), Failure> {
    let mut session = Session::open(&args.recipe)?;
    if stages {
        console.say(&format!("run directory {}", session.dir.root().display()));
        session.with_stages(|stages, log| stages.run(console, log))?;
    }
    if session.stop.load(Ordering::Relaxed) {
        return Err(Failure {
            code: code::CONTINUE,
            message: "stopped; run the same command to go on".into(),
        });
    }
    let trained = session.train(job, console);
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
            // Not the whole record: it lists every source.
            Record::Corpus(r) => {
                let splits = (&r.split_documents, &r.split_bytes);
                let value = json!({ "source": r.source, "fallback": r.fallback, "documents_kept": r.documents_kept,
                    "bytes_kept": r.bytes_kept, "split_documents": splits.0, "split_bytes": splits.1 });
                ("corpus", value)
            }
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

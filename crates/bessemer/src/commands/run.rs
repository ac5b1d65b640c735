//! `bessemer run` and `bessemer train`: a recipe's stages, each only if its result is not there yet.

use crate::chat_stage::ChatDocuments;
use crate::cli::{RecipeArgs, TrainArgs, Verbosity};
use crate::commands::checkpoint::{Place, remote};
use crate::commands::plan::auto::LaidOut;
use crate::commands::ranks::{Job, RankThreads, interrupted, launch_number};
use crate::commands::report;
use crate::console::{Console, print};
use crate::escape::{LONGEST_ERROR, shell_word};
use crate::failure::{Failure, code};
use crate::machine;
use crate::recipes::load_recipe_for;
use crate::run_dir::{LOCK, RECIPE, RunDir, SHARDS};
use crate::signals::{Deadline, stop_flag};
use crate::stages::{Stages, given_tokenizer};
use crate::task_data::parquet_rows;
use crate::uploads::Uploads;
use crate::working_tree;
use bessemer_durable::FileLock;
use bessemer_eval::score::prepared::Catalog;
use bessemer_kernels_cpu::Rung;
use bessemer_kernels_cpu::memory::{self, Available, Bound};
use bessemer_recipe::{Loaded, Recipe, RecipeUse, to_toml};
use bessemer_runlog::{self as runlog, EndReason, Record, RunLog};
use bessemer_shards::ShardSet;
use bessemer_tokenizer::Tokenizer;
use bessemer_train::{Observer, Outcome, Peak, TrainError, TrainerInput};
use bessemer_units::{Bytes, bounded, counted};
use bessemer_web::redact::redact;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Least memory of the stages before training and of the loader, in bytes.
const BESIDE: u64 = 48 << 20;

/// One process at work on one run directory.
pub(crate) struct Session {
    recipe: Recipe,
    /// Remarks on keys under old names, until they are printed.
    renamed: Vec<String>,
    recipe_text: String,
    dir: RunDir,
    threads: usize,
    stop: Arc<AtomicBool>,
    deadline: Deadline,
    begun: Instant,
    /// Number of the launch, if a supervisor launched this process.
    launch: Option<u64>,
    /// Record of the plan that was made for this session.
    plan: Option<runlog::Plan>,
    /// Held by the first process while the session lives; the system drops it with the process, however that ends.
    #[allow(dead_code, reason = "held, never read")]
    lock: Option<FileLock>,
}

impl Session {
    /// Loads the recipe and takes the run directory for this process, to build from the corpus on.
    pub(crate) fn open(args: &RecipeArgs, recipe_use: RecipeUse) -> Result<Session, Failure> {
        let mut session = Session::of(load_recipe_for(&args.recipe, &args.overrides(), recipe_use)?)?;
        session.hold(Begins::WithCorpus(recipe_use))?;
        Ok(session)
    }

    /// Loads the recipe of a job, with its layout; nothing is made. Of several processes only the first one makes and holds the directory.
    fn load(args: &RecipeArgs, job: &mut Job, console: &mut Console) -> Result<Session, Failure> {
        let LaidOut { loaded, record } = job.lay_out(args, RecipeUse::Training, console)?;
        let session = Session::of(loaded)?;
        Ok(Session { plan: record, ..session })
    }

    fn of(loaded: Loaded<Recipe>) -> Result<Session, Failure> {
        let Loaded { value: recipe, renamed, .. } = loaded;
        // Records, checkpoints and the directory hold no credentials of the sources.
        let recipe_text = redact(&to_toml(&recipe)?).into_owned();
        let stop = stop_flag()?;
        Ok(Session {
            deadline: Deadline::start(Arc::clone(&stop))?,
            dir: RunDir::new(recipe.run.directory()),
            threads: machine::threads(recipe.run.threads),
            recipe,
            renamed,
            recipe_text,
            stop,
            begun: Instant::now(),
            launch: None,
            plan: None,
            lock: None,
        })
    }

    /// Takes the run directory for this process, if what the session begins with is there.
    fn hold(&mut self, begins: Begins) -> Result<(), Failure> {
        match begins {
            Begins::WithCorpus(recipe_use) => check_inputs(&self.recipe, recipe_use)?,
            Begins::WithTraining if self.dir.root().is_dir() => {}
            Begins::WithTraining => {
                return Err(Failure::new(format!(
                    "no run directory {}; `bessemer run RECIPE` creates it and builds corpus, tokenizer and \
                     shards in it",
                    self.dir.root().display()
                )));
            }
        }
        self.lock = Some(take(&self.dir)?);
        self.launch = launch_number()?;
        bessemer_launch::claim(self.dir.handle()?, self.launch)?;
        // Memory that removed runs have left; a start is the moment at which it is needed.
        bessemer_train::sweep_copies_in_memory(&self.recipe.save.memory);
        Ok(())
    }

    /// Runs `work` with the stages before training and the log of the run.
    pub(crate) fn with_stages(
        &mut self,
        console: &mut Console,
        work: impl FnOnce(&Stages<'_>, &mut RunLog, &mut Console) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.tell_renamed(console);
        let stages = Stages { recipe: &self.recipe, dir: &self.dir, threads: self.threads, stop: &self.stop };
        let mut log = open_log(&self.dir, console)?;
        work(&stages, &mut log, console)
    }

    /// Warns of keys under old names, once.
    fn tell_renamed(&mut self, console: &mut Console) {
        for remark in std::mem::take(&mut self.renamed) {
            console.say(&format!("warning: {remark}"));
        }
    }

    /// Address space that the process takes besides the buffers of the training: it counts where that is limited, although
    /// most of it is never touched.
    fn beside(&self, bound: &Bound) -> Vec<(&'static str, Bytes)> {
        if !matches!(bound, Bound::AddressSpace | Bound::DataSegment) {
            return Vec::new();
        }
        // Those of the device, and those that prepare batches.
        let threads = self.threads + self.recipe.loader.prefetch_config().threads;
        // glibc gives up to eight threads a core an arena of 64 MiB; Rust gives a thread a stack of 2 MiB.
        let arenas = threads.min(8 * machine::threads(0)) as u64;
        vec![
            (
                "arenas of the allocator and stacks of threads",
                Bytes((64 * arenas + 2 * threads as u64) << 20),
            ),
            ("corpus and loader", Bytes(BESIDE)),
        ]
    }

    /// Refuses, before anything is read, a recipe that the ranks cannot run, or whose model is beyond the memory.
    fn refuse_what_cannot_fit(&self, job: &Job, console: &mut Console) -> Result<(), Failure> {
        let wanted = self.recipe.run.threads;
        if wanted > self.threads as u64 {
            console.say(&format!(
                "warning: run.threads = {wanted}: this process may use {0} cores; {0} threads are started",
                self.threads
            ));
        }
        bessemer_train::refuse_what_cannot_run(&self.recipe, job.ranks)?;
        let train = &self.recipe.train;
        let begins = !self.dir.checkpoints().is_dir();
        // Not after the corpus is made.
        for (key, from, is_read) in
            [("init", &train.init.from, begins), ("teacher", &train.teacher.from, true)]
        {
            if is_read && !from.is_empty() {
                Place::open_initial(Path::new(from))
                    .map_err(|e| Failure { message: format!("train.{key}.from: {}", e.message), ..e })?;
            }
        }
        self.former()?;
        if !self.recipe.save.upload.is_empty() {
            remote(&self.recipe.save.upload)?;
        }
        let Available { bytes, bound } = memory::available();
        console.detail(&format!("memory: {} may be taken, bounded by {bound}", Bytes(bytes)));
        let here = Bytes(bytes / job.local() as u64 * job.here as u64);
        Ok(bessemer_train::refuse_what_cannot_fit(&self.recipe, job.ranks, &self.beside(&bound), here)?)
    }

    /// The validation split of the run that `eval.forgetting` names.
    fn former(&self) -> Result<Option<(String, Arc<ShardSet>)>, Failure> {
        let name = &self.recipe.eval.forgetting;
        if name.is_empty() {
            return Ok(None);
        }
        let set = ShardSet::open(RunDir::new(name).shards(), "validation").map_err(|e| {
            Failure::new(format!(
                "eval.forgetting = {name:?}: wanted a run directory with the shards of a validation split: {e}"
            ))
        })?;
        Ok(Some((name.clone(), Arc::new(set))))
    }

    /// The ranks of this process train to the end or to a stop, and evaluate.
    fn train(&mut self, job: &mut Job, console: &mut Console) -> Result<(), Failure> {
        job.meet(&self.stop, &self.dir)?;
        let directory = self.dir.handle()?;
        let (tokenizer, train, validation) = self.data(console)?;
        console.log_every(self.recipe.train.log_every);
        let threads = job.threads_of_a_rank(self.recipe.run.threads);
        let peak = match job.is_first() {
            true => Some(self.announce(job, threads, console)?),
            false => None,
        };
        let memory = Bytes(machine::available_memory().0 / job.local() as u64);
        let former = self.former()?;
        let input = || TrainerInput {
            recipe: self.recipe.clone(),
            recipe_text: self.recipe_text.clone(),
            tokenizer: Arc::clone(&tokenizer),
            train: Arc::clone(&train),
            validation: validation.clone(),
            former: former.clone(),
            tasks: Catalog { parquet: Some(parquet_rows), ..Catalog::default() },
            directory: directory.clone(),
            memory_available: memory,
            peak,
        };
        let upload = self.recipe.save.upload.as_str();
        let elsewhere = || match upload.is_empty() {
            true => Ok(None),
            false => Ok::<_, Failure>(Some(remote(upload)?.reader())),
        };
        let open = |key: &str, from: &str| {
            let opened = Place::open_initial(Path::new(from)).and_then(|place| place.load_lazily(None));
            opened.map_err(|e| TrainError::Recipe(format!("train.{key}.from: {}", e.message)))
        };
        let initial = || open("init", &self.recipe.train.init.from);
        let teacher = || open("teacher", &self.recipe.train.teacher.from);
        if !upload.is_empty() && job.is_first() {
            // Whoever goes on from the store's checkpoints is the one who uploads there from now on.
            let begins = self.dir.store()?.named_steps()?.is_empty();
            let takes_over = begins && !remote(upload)?.reader().list()?.is_empty();
            console.upload(Uploads::new(self.dir.root(), takes_over));
        }
        let rank_threads = RankThreads {
            threads,
            threads_alone: threads * job.here,
            // Ranks of one machine would all take the same cores.
            pin: self.recipe.run.pin_threads && job.local() == 1,
            input: &input,
            elsewhere: &elsewhere,
            initial: &initial,
            teacher: &teacher,
            stop: &self.stop,
            deadline: &self.deadline,
        };
        if !job.is_first() {
            return rank_threads.assist(job);
        }
        let trained = rank_threads
            .train(job, console, &|| Ok(directory.write(RECIPE, self.recipe_text.as_bytes())?))?;
        let outcome = trained.outcome;
        let Some(((done, all), closed)) = trained.closed else { return outcome.map(|_| ()) };
        let (reason, message) = match &outcome {
            Ok(Outcome::Finished) => (EndReason::Finished, None),
            Ok(Outcome::Stopped) => (EndReason::Interrupted, None),
            Err(e) => (EndReason::Failed, Some(redact(&bounded(&e.message, LONGEST_ERROR)).into_owned())),
        };
        // On a full disk this fails too; the error that ended the run is the one to tell.
        let ended = closed.end(reason, message, self.begun.elapsed().as_secs_f64());
        let outcome = outcome?;
        ended?;
        if outcome == Outcome::Stopped {
            return Err(Failure {
                code: code::CONTINUE,
                message: format!("stopped after step {done} of {all}; run the same command to continue"),
            });
        }
        Ok(())
    }

    /// Tokenizer and shards of the run directory.
    fn data(&self, console: &mut Console) -> Result<Data, Failure> {
        let missing = |what: &str, e: &dyn std::fmt::Display| {
            Failure::new(format!("{what}: {e}; `bessemer run RECIPE` builds corpus, tokenizer and shards"))
        };
        let tokenizer =
            self.dir.load_tokenizer().map_err(|e| missing("the run has no usable tokenizer", &e.message))?;
        let shards = self.dir.dir(SHARDS).map_err(|e| missing("the run has no usable shards", &e))?;
        let train =
            ShardSet::open(&shards, "train").map_err(|e| missing("the run has no usable shards", &e))?;
        let validation = match shards.exists("validation") {
            true => Some(ShardSet::open(&shards, "validation")?),
            false => None,
        };
        // One token is nothing to predict; a run without validation trains all the same.
        let validation = validation.filter(|set| set.token_count() > 1).map(Arc::new);
        if validation.is_none() {
            console.say(
                "warning: the validation split is empty: no validation loss will be computed; raise \
                 corpus.split.validation_fraction or name sources in corpus.split.validation",
            );
        }
        Ok((Arc::new(tokenizer), Arc::new(train), validation))
    }

    /// Records and reports what this session works with; the peak of all ranks' threads.
    fn announce(&self, job: &Job, threads: usize, console: &mut Console) -> Result<Peak, Failure> {
        // More threads than cores have the peak of the cores.
        let busy = (threads * job.here).min(machine::threads(0));
        let measured = bessemer_kernels_cpu::peak::flops_per_s(Rung::detect(), busy)?;
        // Other processes are taken to be like this one.
        let flops_per_second = measured * (job.ranks / job.here) as f64;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let cwd = std::env::current_dir().unwrap_or_default();
        let record = Record::from(runlog::Run {
            name: self.recipe.run.name.clone(),
            program: format!("bessemer {}", env!("CARGO_PKG_VERSION")),
            command: std::env::args_os().map(|word| redact(&word.to_string_lossy()).into_owned()).collect(),
            seed: self.recipe.run.seed,
            started_unix_s: now,
            started_at: runlog::rfc3339(now),
            host: machine::hostname(),
            commit: working_tree::commit(&cwd),
            cwd: redact(&cwd.display().to_string()).into_owned(),
            device: machine::processor(),
            threads: (threads * job.ranks) as u64,
            peak_flops_per_s: Some(flops_per_second),
            mfu_convention: Some(format!(
                "model FLOPs, 6 P + 12 L H E T a token (PaLM, appendix B){}, over the FMA peak measured at the start",
                match self.recipe.model.adapters {
                    Some(_) => ", 4 P of frozen matrices",
                    None => "",
                }
            )),
        });
        open_log(&self.dir, console)?.append(&record)?;
        console.record(&record);
        if let Some(plan) = &self.plan {
            let record = Record::from(plan.clone());
            open_log(&self.dir, console)?.append(&record)?;
        }
        if job.ranks > 1 {
            console.say(&format!("{} ranks, {}; {} each", job.ranks, job.source, counted(threads, "thread")));
        }
        Ok(Peak { flops_per_second })
    }
}

/// First stage of a session, which decides which files must exist.
#[derive(Clone, Copy)]
enum Begins {
    /// It reads the sources, and makes the run directory.
    WithCorpus(RecipeUse),
    /// Training, on the corpus, tokenizer and shards of the run directory.
    WithTraining,
}

/// Returns an error if an input of the recipe cannot be read: a mistyped path must not leave a run directory behind, nor be found
/// after hours of work on the corpus.
fn check_inputs(recipe: &Recipe, recipe_use: RecipeUse) -> Result<(), Failure> {
    bessemer_corpus::check_inputs(&recipe.corpus)?;
    if recipe_use != RecipeUse::Corpus
        && let Some(tokenizer) = given_tokenizer(recipe)?
    {
        ChatDocuments::of(recipe, &Arc::new(tokenizer))?;
    }
    Ok(())
}

/// Opens the log of the run; damaged lines of it are set aside, and said.
fn open_log(dir: &RunDir, console: &mut Console) -> Result<RunLog, Failure> {
    let log = RunLog::open(dir.handle()?)?;
    warn_of_damage(log.path(), log.damaged(), console);
    if !log.damaged().is_empty() {
        console.say(&format!(
            "the damaged lines are kept in {}",
            dir.root().join(runlog::DAMAGED_FILE).display()
        ));
    }
    Ok(log)
}

/// Warns of lines of a log that are not records.
pub(crate) fn warn_of_damage(log: &Path, damaged: &[runlog::DamagedLine], console: &mut Console) {
    const MOST: usize = 5;
    for line in damaged.iter().take(MOST) {
        console.say(&format!(
            "warning: {}:{}: damaged line ignored: {}",
            log.display(),
            line.line,
            line.what
        ));
    }
    if damaged.len() > MOST {
        console.say(&format!(
            "warning: {} of {} ignored",
            counted(damaged.len() - MOST, "more line"),
            log.display()
        ));
    }
}

/// Makes the run directory and takes it for this process.
pub(crate) fn take(dir: &RunDir) -> Result<FileLock, Failure> {
    make(dir)?;
    dir.handle()?.try_lock(LOCK)?.ok_or_else(|| {
        Failure::new(format!(
            "another process is using the run directory {}; wait until it ends, stop it, or set another \
             run.name",
            dir.root().display()
        ))
    })
}

/// Makes the run directory.
pub(crate) fn make(dir: &RunDir) -> Result<(), Failure> {
    let failed = |e| Failure::new(format!("cannot create run directory {}: {e}", dir.root().display()));
    // Only the folder of runs and the run's own are made: more than that missing is a mistyped path.
    let folder = bessemer_durable::parent(dir.root());
    if let Err(e) = bessemer_durable::create_dir(folder)
        && e.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(match e.kind() {
            std::io::ErrorKind::NotFound => Failure::new(format!(
                "cannot create run directory {}: the parent folder of {} does not exist; create it, or check \
                 run.dir",
                dir.root().display(),
                folder.display()
            )),
            _ => failed(e),
        });
    }
    dir.create().map(|_| ()).map_err(failed)
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

/// Corpus, tokenizer and shards of a recipe, in its run directory.
pub(crate) fn prepare(args: &RecipeArgs, console: &mut Console) -> Result<(), Failure> {
    Session::open(args, RecipeUse::Training)?
        .with_stages(console, |stages, log, console| stages.run(console, log))
}

/// Training by one rank of this process on what is in the run directory, and its report. Nothing goes to standard output.
pub(crate) fn train_alone(args: &RecipeArgs, console: &mut Console) -> Result<(), Failure> {
    // One rank waits for nobody.
    let mut job = Job::threads(1, Duration::MAX)?;
    let mut session = Session::load(args, &mut job, console)?;
    session.refuse_what_cannot_fit(&job, console)?;
    session.hold(Begins::WithTraining)?;
    session.train(&mut job, console)?;
    report::write(&session.dir, console).map(|_| ())
}

/// The part of this process in a job.
fn work(args: &TrainArgs, stages: bool, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let mut job = Job::start(args.ranks, args.waiting)?;
    let result = match job.is_first() {
        true => lead(args, stages, as_json, &mut job, console),
        false => {
            let quiet = &mut Console::new(Verbosity::Quiet);
            Session::load(&args.recipe, &mut job, quiet).and_then(|mut session| {
                // What the first process finds in the recipe, all find: then it is told once.
                bessemer_train::refuse_what_cannot_run(&session.recipe, job.ranks)?;
                let _held = session.deadline.hold();
                session.train(&mut job, quiet)
            })
        }
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
    let mut session = Session::load(&args.recipe, job, console)?;
    session.tell_renamed(console);
    match (&session.plan, session.recipe.parallel.planned.ranks) {
        (Some(plan), _) => console.record(&Record::from(plan.clone())),
        (None, 1..) => {
            console.say("using the layout of the plan in the run directory");
            // Without its record nothing is compared.
            let records = session
                .dir
                .handle()
                .map_err(Failure::from)
                .and_then(|dir| Ok(runlog::read(dir)?))
                .map(|log| log.records)
                .unwrap_or_default();
            let plans = records.into_iter().rev();
            plans
                .filter_map(|record| if let Record::Plan(plan) = record { Some(plan) } else { None })
                .take(1)
                .for_each(|plan| console.hold_against(plan));
        }
        (None, 0) => {}
    }
    session.refuse_what_cannot_fit(job, console)?;
    session.hold(if stages { Begins::WithCorpus(RecipeUse::Training) } else { Begins::WithTraining })?;
    job.launched(session.launch, &session.dir)?;
    // A process that left alone would end the others with an error; they agree to stop instead.
    let _held = job.is_of_processes().then(|| session.deadline.hold());
    if stages {
        console.say(&format!("run directory {}", session.dir.root().display()));
        let stop = Arc::clone(&session.stop);
        job.prepare(&stop, || session.with_stages(console, |stages, log, console| stages.run(console, log)))?;
    }
    if session.stop.load(Ordering::Relaxed) {
        return Err(interrupted(true));
    }
    let trained = session.train(job, console);
    // A stopped run has a report too; a report that cannot be written must not hide why training failed.
    let held = session.deadline.hold();
    let report = report::write(&session.dir, console);
    drop(held);
    trained?;
    let records = report?;
    print(&match as_json {
        true => report::summary_json(&session.dir, &records)?,
        false => bessemer_report::terminal::summary(&records),
    })?;
    let run = shell_word(&session.dir.root().display().to_string());
    let vocabulary = session.recipe.tokenizer.vocab_size as usize;
    let causal = session.recipe.model.resolve(Some(vocabulary)).is_ok_and(|model| model.is_causal());
    console.say(&format!("report: {}\n{}", session.dir.report().display(), next_commands(&run, causal)));
    Ok(())
}

/// Commands for a trained model. One whose tokens depend on later ones generates no text.
fn next_commands(run: &str, causal: bool) -> String {
    let used = match causal {
        true => format!("bessemer generate {run} --prompt TEXT\n        bessemer serve {run}"),
        false => format!("bessemer eval {run}"),
    };
    format!("next:   {used}\n        bessemer compare {run} OTHER_RUN")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_generates_no_text_is_not_asked_for_some() {
        assert_eq!(
            next_commands("runs/a", true),
            "next:   bessemer generate runs/a --prompt TEXT\n        bessemer serve runs/a\n        bessemer compare runs/a OTHER_RUN"
        );
        assert_eq!(
            next_commands("runs/a", false),
            "next:   bessemer eval runs/a\n        bessemer compare runs/a OTHER_RUN"
        );
    }
}

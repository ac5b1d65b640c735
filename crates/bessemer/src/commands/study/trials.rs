//! Many runs of one recipe on the same data.
//!
//! ```text
//! OUT/trials.json     what the runs share, the resolved recipe and the data: a study that is gone on with must have the same
//! OUT/data/           a run directory with corpus, tokenizer and shards, made once
//! OUT/runs/NAME/      a run directory for each trial: records and tokenizer copied from data/, shards linked
//! ```
//! Each trial is a run like any other: `bessemer report`, `eval`, `generate` and `scaling fit` read it. A trial that has ended is kept, one
//! that was interrupted goes on from its checkpoint.

use crate::cli::{RecipeArgs, Size};
use crate::commands::run;
use crate::commands::scaling::directory;
use crate::console::Console;
use crate::failure::{Failure, code};
use crate::recipes::load_recipe;
use crate::run_dir::{RunDir, SHARDS, TOKENIZER};
use bessemer_arch::Model;
use bessemer_corpus::CorpusReader;
use bessemer_durable::{ConfinedDir, EntryKind, FileLock};
use bessemer_recipe::{Recipe, to_toml};
use bessemer_runlog::{EndReason, Record};
use bessemer_shards::ShardSet;
use bessemer_tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Keys that every trial sets: only the loss after the last step is needed, on the whole validation split.
const BARE: [&str; 7] = [
    "eval.at_end=true",
    "eval.every_steps=0",
    "eval.samples.at_end=false",
    "eval.samples.every_steps=0",
    "eval.ngram.enabled=false",
    "save.keep_last=1",
    "save.upload=\"\"",
];

/// A run to be made: the keys in which it differs from the recipe.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trial {
    pub(super) name: String,
    pub(super) sets: Vec<String>,
    pub(super) tokens: u64,
    pub(super) parameters: u64,
}

impl Trial {
    /// Operations of the training, `6 N D`.
    pub(super) fn flops(&self) -> f64 {
        6.0 * self.parameters as f64 * self.tokens as f64
    }
}

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Ended {
    /// With this validation loss, nats for each token.
    Loss(f64),
    /// The loss or a gradient was not finite at this step.
    Diverged(u64),
}

/// Writes what all runs of a study have in common, or compares it with what an earlier session of the study wrote. The fingerprint of the corpus
/// is among it: that of `corpus.source = "auto"` changes with the crates on the machine.
fn claim(path: &Path, shared: &Value) -> Result<(), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::new(format!("{}: {e}", path.display()));
    let before: Value = match bessemer_durable::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| failed(&e))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let text = serde_json::to_vec_pretty(shared)?;
            return bessemer_durable::write(path, &text).map_err(|e| failed(&e));
        }
        Err(e) => return Err(failed(&e)),
    };
    match SHARED.iter().find(|key| before[**key] != shared[**key]) {
        None => Ok(()),
        Some(what) => Err(Failure::usage(format!(
            "{} belongs to a study with another {what}, whose losses do not compare with new ones; choose another directory with --out",
            path.display()
        ))),
    }
}

/// Keys of what all runs of a study have in common.
const SHARED: [&str; 3] = ["recipe", "corpus", "tokenizer"];

/// The runs of a study.
pub(super) struct Trials<'a> {
    args: &'a RecipeArgs,
    out: PathBuf,
    recipe: Recipe,
    tokenizer: Tokenizer,
    /// Tokens of the training split.
    pub(super) fresh: u64,
    /// Held while the study lives.
    #[allow(dead_code, reason = "held, never read")]
    lock: FileLock,
}

impl<'a> Trials<'a> {
    /// Takes the directory for this process and makes the data, if it is not there.
    pub(super) fn open(
        args: &'a RecipeArgs,
        out: &Path,
        console: &mut Console,
    ) -> Result<Trials<'a>, Failure> {
        let recipe = load_recipe(&args.recipe, &sets(args, &place(out, "data")))?.value;
        let lock = super::lock(out)?;
        run::prepare(&RecipeArgs { sets: sets(args, &place(out, "data")), ..args.clone() }, console)?;
        let data = RunDir::new(out.join("data"));
        let tokenizer = data.load_tokenizer()?;
        let corpus = CorpusReader::open(&data.corpus())?.summary().fingerprint.clone();
        let shared =
            json!({ "recipe": to_toml(&recipe)?, "corpus": corpus, "tokenizer": tokenizer.fingerprint() });
        claim(&out.join("trials.json"), &shared)?;
        let shards = data.dir(SHARDS)?;
        let fresh = ShardSet::open(&shards, "train")?.token_count();
        if !shards.exists("validation") {
            return Err(Failure::new(
                "the validation split is empty, and a study compares validation losses; raise corpus.split.validation_fraction",
            ));
        }
        let runs = out.join("runs");
        bessemer_durable::create_dir_all(&runs)?;
        Ok(Trials { args, out: out.to_owned(), recipe, tokenizer, fresh, lock })
    }

    /// The recipe that the runs share.
    pub(super) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The model of a recipe.
    pub(super) fn model(&self, recipe: &Recipe) -> Result<Model, Failure> {
        Ok(recipe.model.resolve_for(self.tokenizer.vocab_size(), self.tokenizer.end_of_text())?)
    }

    /// Keys of a model of another size with heads as wide as those of the recipe's and the same number of query heads for each key
    /// head. A feed-forward width that the recipe gives keeps its ratio to the width.
    pub(super) fn size(&self, size: Size) -> Result<Vec<String>, Failure> {
        let base = self.model(&self.recipe)?;
        let (width, head_dim) = (size.width as usize, base.head_dim);
        if !width.is_multiple_of(head_dim) {
            return Err(Failure::usage(format!(
                "--sizes {}x{}: wanted a width that is a multiple of {head_dim}, the width of a head of the recipe's model; change \
                 the width or model.heads",
                size.width, size.layers
            )));
        }
        let heads = width / head_dim;
        let kv_heads = match base.kv_heads == base.heads {
            true => heads,
            false => (heads / (base.heads / base.kv_heads)).max(1),
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(Failure::usage(format!(
                "--sizes {}x{}: {heads} query heads cannot share {kv_heads} key heads; wanted {} query heads for each, as in the recipe",
                size.width,
                size.layers,
                base.heads / base.kv_heads
            )));
        }
        let mut keys = vec![
            format!("model.width={width}"),
            format!("model.layers={}", size.layers),
            format!("model.heads={heads}"),
            format!("model.kv_heads={kv_heads}"),
        ];
        if self.recipe.model.ffn_width.is_some() {
            let ffn = (width * base.ffn_width).div_ceil(base.width).next_multiple_of(8);
            keys.push(format!("model.ffn_width={ffn}"));
        }
        Ok(keys)
    }

    /// A trial with these keys on about `tokens(N)` tokens for N parameters, in whole steps.
    pub(super) fn trial(
        &self,
        name: String,
        mut sets: Vec<String>,
        tokens: impl Fn(u64) -> f64,
    ) -> Result<Trial, Failure> {
        let recipe = load_recipe(&self.args.recipe, &self.sets(&name, &sets))?.value;
        let parameters = self.model(&recipe)?.parameters() as u64;
        let batch = recipe.train.batch_tokens;
        let steps = ((tokens(parameters) / batch as f64).round() as u64).max(1);
        sets.push(format!("train.steps={steps}"));
        // Again, with all keys: what is wrong with a run is found before the first one begins.
        load_recipe(&self.args.recipe, &self.sets(&name, &sets))?;
        Ok(Trial { name, sets, tokens: steps * batch, parameters })
    }

    fn sets(&self, name: &str, of_trial: &[String]) -> Vec<String> {
        let mut sets = sets(self.args, &place(&self.out.join("runs"), name));
        sets.extend(BARE.iter().map(|key| (*key).to_owned()));
        sets.extend_from_slice(of_trial);
        sets
    }

    /// Directory of a trial's run.
    pub(super) fn directory(&self, trial: &Trial) -> PathBuf {
        self.out.join("runs").join(&trial.name)
    }

    /// Warns, once, of trials that read a text more than once: a law of fresh text does not hold for them.
    pub(super) fn warn_of_repetition(&self, trials: &[Trial], console: &mut Console) {
        let longest = trials.iter().map(|trial| trial.tokens).max().unwrap_or_default();
        if longest > self.fresh {
            console.say(&format!(
                "warning: the longest run reads its text {:.1} times ({longest} of {} tokens); repeated text \
                 lowers the loss less than new text, which the fitted law ignores",
                longest as f64 / self.fresh as f64,
                self.fresh
            ));
        }
    }

    /// Trains all trials that have not ended, one after the other, and returns the outcome of each.
    pub(super) fn train(&self, trials: &[Trial], console: &mut Console) -> Result<Vec<Ended>, Failure> {
        let mut ended = Vec::new();
        for (number, trial) in trials.iter().enumerate() {
            let begun = Instant::now();
            let (before, done) = match self.ended(trial)? {
                Some(done) => (true, done),
                None => (false, self.train_one(trial, number + 1, trials.len(), console)?),
            };
            let how = match done {
                Ended::Loss(loss) => format!("loss {loss:.4}"),
                Ended::Diverged(step) => format!("not finite at step {step}"),
            };
            let time = match before {
                true => "up to date".to_owned(),
                false => format!("{:.1} s", begun.elapsed().as_secs_f64()),
            };
            console.say(&format!(
                "{} of {}: {}: {} parameters, {} tokens: {how}; {time}",
                number + 1,
                trials.len(),
                trial.name,
                bessemer_report::grouped(trial.parameters),
                bessemer_report::grouped(trial.tokens),
            ));
            ended.push(done);
        }
        Ok(ended)
    }

    fn train_one(
        &self,
        trial: &Trial,
        number: usize,
        of: usize,
        console: &mut Console,
    ) -> Result<Ended, Failure> {
        self.place_data(trial)?;
        let args = RecipeArgs { sets: self.sets(&trial.name, &trial.sets), ..self.args.clone() };
        console.trial(Some(format!("run {number} of {of}, {}", trial.name)));
        let trained = run::train_alone(&args, console);
        console.trial(None);
        let failed = |e: Failure| Failure { message: format!("{}: {}", trial.name, e.message), ..e };
        match (trained, self.ended(trial)?) {
            (_, Some(ended)) => Ok(ended),
            (Err(e), None) if e.code == code::CONTINUE => {
                Err(Failure { message: "stopped; run the same command to continue".into(), ..e })
            }
            (Err(e), None) => Err(failed(e)),
            (Ok(()), None) => Err(failed(Failure::new("the run has ended without an evaluation"))),
        }
    }

    /// How a trial ended, if it has, by its records.
    fn ended(&self, trial: &Trial) -> Result<Option<Ended>, Failure> {
        let path = self.directory(trial);
        if !path.join(bessemer_runlog::FILE).is_file() {
            return Ok(None);
        }
        if let Ok((found, _)) = directory(&path)? {
            return Ok(Some(Ended::Loss(found.run.loss)));
        }
        let log = bessemer_runlog::read(&path)?;
        let (mut step, mut finite, mut failed) = (0, true, false);
        for record in log.records {
            match record {
                Record::Step(s) => {
                    (step, finite, failed) = (s.step, s.loss.is_finite() && s.grad_norm.is_finite(), false);
                }
                Record::End(end) => failed = end.reason == EndReason::Failed,
                _ => {}
            }
        }
        Ok((failed && !finite).then_some(Ended::Diverged(step)))
    }

    /// The run directory of a trial with the data of the study. The records come last: where they are, all is there.
    fn place_data(&self, trial: &Trial) -> Result<(), Failure> {
        let (data, to) = (RunDir::new(self.out.join("data")), RunDir::new(self.directory(trial)));
        if to.has(bessemer_runlog::FILE) {
            return Ok(());
        }
        let place = || {
            let (from, to) = (data.handle()?, to.create()?);
            link_tree(&from.dir(SHARDS)?, &to.create_dir(SHARDS)?)?;
            to.write(TOKENIZER, &from.read(TOKENIZER)?)?;
            to.write(bessemer_runlog::FILE, &from.read(bessemer_runlog::FILE)?)
        };
        place()
            .map_err(|e| Failure::new(format!("cannot make the run directory {}: {e}", to.root().display())))
    }
}

/// A tree of folders whose files are those of another, by hard links; copies where the file system has none.
fn link_tree(from: &ConfinedDir, to: &ConfinedDir) -> io::Result<()> {
    for (name, kind) in from.list("")? {
        if kind == EntryKind::Directory {
            link_tree(&from.dir(&name)?, &to.create_dir(&name)?)?;
            continue;
        }
        match to.link_file(from, &name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => to.write(&name, &from.read(&name)?)?,
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Keys that place a run.
fn place(folder: &Path, name: &str) -> [String; 2] {
    [format!("run.dir={:?}", folder.display().to_string()), format!("run.name={name:?}")]
}

/// The overrides of the command line, then these.
fn sets(args: &RecipeArgs, more: &[String]) -> Vec<String> {
    args.sets.iter().chain(more).cloned().collect()
}

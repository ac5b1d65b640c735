//! Sessions of several ranks of a run, as threads.

use crate::place::{STEPS, data};
use bessemer_collectives::{ThreadCommunicator, ThreadSettings};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use bessemer_shards::ShardSet;
use bessemer_tensor::Backend;
use bessemer_tokenizer::Tokenizer;
use bessemer_train::{Observer, Outcome, TrainError, Trainer, TrainerInput};
use bessemer_units::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A run directory with its data.
pub(crate) struct Run {
    pub(crate) dir: PathBuf,
    /// Removed with it.
    pub(crate) _temporary: Option<TempDir>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) train: Arc<ShardSet>,
    pub(crate) validation: Arc<ShardSet>,
}

/// Collects the records of a run; requests one rank, or all, to stop after a step.
pub(crate) struct Watch<'a> {
    pub(crate) records: Vec<Record>,
    pub(crate) stop_after: Option<u64>,
    /// Stop flags of the ranks.
    pub(crate) stop: &'a [AtomicBool],
    /// Called with every step that is over.
    pub(crate) after: &'a (dyn Fn(u64) + Sync),
}

impl Observer for Watch<'_> {
    fn record(&mut self, record: &Record) {
        if let Record::Step(step) = record {
            let now = self.stop_after == Some(step.step);
            for flag in self.stop {
                flag.fetch_or(now, Ordering::Relaxed);
            }
            (self.after)(step.step);
        }
        self.records.push(record.clone());
    }
    fn message(&mut self, _: &str) {}
    fn progress(&mut self, _: &str, _: u64, _: u64) {}
}

pub(crate) fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::new(CpuConfig { threads: 1, pin: false, ..CpuConfig::default() }).unwrap())
}

impl Run {
    pub(crate) fn new(noisy: bool) -> Run {
        let dir = tempfile::tempdir().unwrap();
        let (tokenizer, train) = data(&dir.path().join("shards"), "train", noisy);
        let (_, validation) = data(&dir.path().join("shards"), "validation", true);
        Run { dir: dir.path().to_owned(), _temporary: Some(dir), tokenizer, train, validation }
    }

    pub(crate) fn input(&self, recipe: &Recipe) -> TrainerInput {
        TrainerInput {
            recipe: recipe.clone(),
            recipe_text: String::new(),
            tokenizer: Arc::clone(&self.tokenizer),
            train: Arc::clone(&self.train),
            validation: Some(Arc::clone(&self.validation)),
            former: None,
            tasks: Default::default(),
            directory: bessemer_durable::ConfinedDir::create_named(&self.dir).unwrap(),
            memory_available: Bytes(1 << 30),
            peak: None,
        }
    }

    /// One session on some ranks, each with the backend that `backend` makes; the records of each rank, or its error.
    pub(crate) fn session(
        &self,
        recipe: &Recipe,
        ranks: usize,
        stop_after: Option<u64>,
        backend: &(dyn Fn(usize) -> Box<dyn Backend> + Sync),
    ) -> Vec<Result<Vec<Record>, TrainError>> {
        self.watched(recipe, ranks, (stop_after, &|_| ()), backend)
    }

    /// [`Run::session`], with `after` called with every step.
    pub(crate) fn watched(
        &self,
        recipe: &Recipe,
        ranks: usize,
        (stop_after, after): (Option<u64>, &(dyn Fn(u64) + Sync)),
        backend: &(dyn Fn(usize) -> Box<dyn Backend> + Sync),
    ) -> Vec<Result<Vec<Record>, TrainError>> {
        let flag = [AtomicBool::new(false)];
        self.on_ranks(ranks, &|rank, world| {
            let mut watch = Watch { records: Vec::new(), stop_after, stop: &flag, after };
            let mut trainer = Trainer::on_rank(self.input(recipe), backend(rank), Box::new(world))?;
            trainer.run(&mut watch, &flag[0])?;
            trainer.final_evaluation(1, &mut watch, &AtomicBool::new(false))?;
            Ok(watch.records)
        })
    }

    /// [`Run::session`] on ranks that may each take the memory that `available` states.
    pub(crate) fn with_memory(
        &self,
        recipe: &Recipe,
        ranks: usize,
        available: impl Fn(usize) -> u64 + Sync,
    ) -> Vec<Result<Vec<Record>, TrainError>> {
        self.on_ranks(ranks, &|rank, world| {
            let mut watch = Watch { records: Vec::new(), stop_after: None, stop: &[], after: &|_| () };
            let input = TrainerInput { memory_available: Bytes(available(rank)), ..self.input(recipe) };
            let mut trainer = Trainer::on_rank(input, cpu(), Box::new(world))?;
            trainer.run(&mut watch, &AtomicBool::new(false))?;
            Ok(watch.records)
        })
    }

    /// One session whose ranks have stop flags of their own, as processes do: after step `stop_after` that of rank `asked`
    /// is set. Returns how each rank's call ended.
    pub(crate) fn stopped_by(
        &self,
        recipe: &Recipe,
        ranks: usize,
        (stop_after, asked): (u64, usize),
    ) -> Vec<Outcome> {
        let flags: Vec<AtomicBool> = (0..ranks).map(|_| AtomicBool::new(false)).collect();
        let ended = self.on_ranks(ranks, &|rank, world| {
            let stop = &flags[asked..=asked];
            let mut watch = Watch { records: Vec::new(), stop_after: Some(stop_after), stop, after: &|_| () };
            let mut trainer = Trainer::on_rank(self.input(recipe), cpu(), Box::new(world))?;
            trainer.run(&mut watch, &flags[rank])
        });
        ended.into_iter().map(|rank| rank.unwrap()).collect()
    }

    /// Results of each rank, a thread of its own, of a function of its communicator.
    pub(crate) fn on_ranks<T: Send>(
        &self,
        ranks: usize,
        rank: &(dyn Fn(usize, ThreadCommunicator) -> Result<T, TrainError> + Sync),
    ) -> Vec<Result<T, TrainError>> {
        let settings = ThreadSettings { patience: Duration::from_secs(60), ..ThreadSettings::default() };
        let worlds = ThreadCommunicator::world("world", ranks, &settings);
        std::thread::scope(|scope| {
            let start = |(index, world)| scope.spawn(move || rank(index, world));
            let ranks: Vec<_> = worlds.into_iter().enumerate().map(start).collect();
            ranks.into_iter().map(|r| r.join().unwrap()).collect()
        })
    }

    /// [`Run::session`] where nothing fails; returns the records of the first rank.
    pub(crate) fn train(&self, recipe: &Recipe, ranks: usize, stop_after: Option<u64>) -> Vec<Record> {
        let mut records: Vec<_> =
            self.session(recipe, ranks, stop_after, &|_| cpu()).into_iter().map(|r| r.unwrap()).collect();
        assert!(records[1..].iter().all(Vec::is_empty), "only the first rank records");
        records.swap_remove(0)
    }

    pub(crate) fn tensors(&self) -> Vec<u8> {
        let last = self.dir.join(format!("checkpoints/step-{STEPS:08}"));
        tensor_bytes(&last)
    }
}

pub(crate) fn tensor_bytes(checkpoint: &Path) -> Vec<u8> {
    let mut files: Vec<_> = std::fs::read_dir(checkpoint)
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    files.sort();
    files.iter().flat_map(|f| std::fs::read(f).unwrap()).collect()
}

/// (step, loss, norm) of every step and (step, loss) of every evaluation.
pub(crate) fn numbers(records: &[Record]) -> Vec<(u64, f64)> {
    let number = |r: &Record| match r {
        Record::Step(s) => vec![
            (s.step, s.loss),
            (s.step, s.grad_norm),
            (s.step, s.losses.get("z_loss").copied().unwrap_or(0.0)),
        ],
        Record::Eval(e) => vec![(e.step, e.loss), (e.step, e.bits_per_byte)],
        _ => Vec::new(),
    };
    records.iter().flat_map(number).collect()
}

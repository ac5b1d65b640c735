//! Held-out chats, each scored by itself: as in training, nothing of another chat is before it.

use crate::TrainError;
use crate::runner::{RankLosses, Runner};
use bessemer_eval::EvalError;
use bessemer_loader::{Batch, DocumentConfig, IGNORED, Loader};
use bessemer_recipe::Recipe;
use bessemer_runtime::TokenBatch;
use bessemer_shards::ShardSet;
use bessemer_tensor::Backend;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Scores documents, all ranks together.
pub(crate) struct DocumentScorer {
    micro_batch: usize,
    /// Losses of the tokens of a micro-batch of every data-parallel rank.
    pub(crate) losses: Vec<f32>,
    batch: Batch,
}

impl DocumentScorer {
    pub(crate) fn new(runner: &Runner) -> DocumentScorer {
        let shape = runner.worker.decoder().shape();
        let losses = vec![0.0; shape.tokens() * runner.worker.plan().data_ranks()];
        DocumentScorer { micro_batch: shape.sequences, losses, batch: Batch::new() }
    }

    /// Documents of a split in reading order, each a sample.
    pub(crate) fn loader(
        recipe: &Recipe,
        set: &Arc<ShardSet>,
        micro_batch: usize,
    ) -> Result<Loader, TrainError> {
        let config = DocumentConfig {
            seq_len: recipe.train.seq_len as usize,
            shorter: recipe.train.shorter_lengths().into_iter().map(|length| length as usize).collect(),
            micro_batch,
            bucketed: false,
            separated: false,
            pairs: recipe.train.preferences.is_on(),
        };
        Ok(Loader::of_documents(Arc::clone(set), config, 0, false)?)
    }

    /// Scores a micro-batch of every data-parallel rank, this rank's being `batch`, and passes nll of each sequence, by the rank and its
    /// place in the rank's micro-batch. `length`: tokens of a sequence of a rank's micro-batch. All ranks call this.
    pub(crate) fn score(
        losses: &mut [f32],
        runner: &mut Runner,
        backend: &mut dyn Backend,
        batch: &Batch,
        length: &dyn Fn(usize) -> Result<usize, TrainError>,
        take: &mut dyn FnMut(usize, usize, f64),
    ) -> Result<(), TrainError> {
        let (plan, shape) = (runner.worker.plan(), runner.worker.decoder().shape());
        let (ranks, mine) = (plan.data_ranks(), plan.data_index(runner.worker.coord()));
        let here = mine * shape.tokens()..mine * shape.tokens() + batch.inputs.len();
        let tokens = TokenBatch { ids: &batch.inputs, targets: &batch.targets, positions: None };
        runner.evaluate(&mut *backend, &tokens, Some(&mut losses[here]))?;
        RankLosses::new(runner, backend, None).gather(losses)?;
        for (rank, of_rank) in losses.chunks(shape.tokens()).enumerate().take(ranks) {
            // Targets that are not scored have the loss 0.
            for (place, sequence) in of_rank.chunks(length(rank)?).take(shape.sequences).enumerate() {
                take(rank, place, sequence.iter().map(|loss| f64::from(*loss)).sum());
            }
        }
        Ok(())
    }

    /// nll of every document of a split, which `loader` reads in order. All ranks call this and have the same bits.
    pub(crate) fn split(
        &mut self,
        runner: &mut Runner,
        backend: &mut dyn Backend,
        loader: &Loader,
        documents: u64,
        step: &mut dyn FnMut(&mut Runner, u64) -> Result<(), TrainError>,
    ) -> Result<Vec<f64>, TrainError> {
        let (ranks, mine) =
            (runner.worker.plan().data_ranks(), runner.worker.plan().data_index(runner.worker.coord()));
        let n = self.micro_batch;
        let mut nll = Vec::with_capacity(documents as usize);
        for first in (0..documents).step_by(n * ranks) {
            step(runner, first)?;
            // Behind the last document the order begins again: those scores are passed over.
            let begin = |rank: usize| first + (rank * n) as u64;
            loader.batch(begin(mine), n, &mut self.batch)?;
            let length = |rank: usize| Ok(loader.padded_length(begin(rank), n)?);
            let mut take = |rank: usize, place: usize, sum: f64| {
                if begin(rank) + (place as u64) < documents {
                    nll.push(sum);
                }
            };
            DocumentScorer::score(&mut self.losses, runner, backend, &self.batch, &length, &mut take)?;
        }
        Ok(nll)
    }
}

/// Chats of the validation split.
pub(crate) struct HeldOut {
    loader: Loader,
    /// Of each chat the scored tokens, and their bytes.
    pub(crate) sizes: Vec<[u64; 2]>,
}

impl HeldOut {
    /// The chats of a split; `None` where the run's documents are no chats.
    pub(crate) fn of(
        recipe: &Recipe,
        set: &Arc<ShardSet>,
        byte_lengths: &[u32],
    ) -> Result<Option<HeldOut>, TrainError> {
        if recipe.corpus.chats.is_none() {
            return Ok(None);
        }
        // Two at a time, whatever the micro-batches: pairs stay together.
        let loader = DocumentScorer::loader(recipe, set, 2)?;
        let mut batch = Batch::new();
        let size = |number: u64| {
            loader.batch(number, 1, &mut batch)?;
            let scored = batch.targets.iter().filter(|target| **target != IGNORED);
            let bytes =
                |target: &u32| byte_lengths.get(*target as usize).map_or(0, |bytes| u64::from(*bytes));
            Ok(scored.fold([0, 0], |[tokens, all], target| [tokens + 1, all + bytes(target)]))
        };
        let sizes = (0..loader.samples_per_epoch()).map(size).collect::<Result<_, TrainError>>()?;
        Ok(Some(HeldOut { loader, sizes }))
    }

    /// nll of the first chats, all of them or about as many as have `limit` tokens. All ranks call this; `stop` on any ends it with
    /// [`EvalError::Stopped`].
    pub(crate) fn score(
        &self,
        scorer: &mut DocumentScorer,
        (runner, backend): (&mut Runner, &mut dyn Backend),
        limit: Option<u64>,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<f64>, TrainError> {
        let all = self.sizes.len() as u64;
        let few = |tokens: u64| (tokens as f64 / self.loader.mean_tokens()).ceil() as u64;
        let chats = limit.map_or(all, |tokens| few(tokens).max(1).next_multiple_of(2).min(all));
        scorer.split(runner, backend, &self.loader, chats, &mut |runner, done| {
            progress(done, chats);
            stopped(runner, stop)
        })
    }
}

/// [`EvalError::Stopped`] on all ranks if one of them was requested to stop. All ranks call this.
pub(crate) fn stopped(runner: &mut Runner, stop: &AtomicBool) -> Result<(), TrainError> {
    match runner.worker.or_over_ranks("stop evaluating", u64::from(stop.load(Ordering::Relaxed)))? {
        0 => Ok(()),
        _ => Err(EvalError::Stopped.into()),
    }
}

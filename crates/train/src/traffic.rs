//! Bytes that a step sends, counted by a dry run before the first one.

use crate::TrainError;
use crate::memory::with_job;
use crate::trainer::norms_differ;
use bessemer_arch::Model;
use bessemer_collectives::{Ledger, NullCommunicator};
use bessemer_parallel::{BatchSource, ParallelError, Worker};
use bessemer_recipe::Recipe;
use bessemer_runtime::{StepContext, TokenBatch};
use bessemer_tensor::null::NullBackend;
use bessemer_units::Bytes;
use std::collections::BTreeMap;

/// A micro-batch of the same token again and again.
struct Zeros(Vec<u32>);

impl BatchSource for Zeros {
    fn micro_batch(&mut self, _: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let ctx = StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
        Ok((TokenBatch { ids: &self.0, targets: &self.0, positions: None }, ctx))
    }
}

/// Counts the bytes that the first rank of a job sends in a step, by label of the group: a step on a device that holds nothing, with
/// ranks that do not exist. Nothing for schedules whose programs have several steps.
///
/// # Errors
/// A layout that does not fit the ranks, the model or the batch.
pub fn planned_traffic(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
) -> Result<BTreeMap<String, Bytes>, TrainError> {
    let ledger = Ledger::new();
    with_job(recipe, ranks, model, |job| {
        if job.plan.pipe.asynchronous() {
            return Ok(());
        }
        let mut null = NullBackend::new();
        let world = ledger.wrap(Box::new(NullCommunicator::new("world", 0, ranks)));
        let mut worker = Worker::new(&mut null, job, world)?;
        // Traffic of the start is not part of a step.
        ledger.clear();
        let sum = worker.gradients(&mut null, &mut Zeros(vec![0; job.shape.tokens()]))?;
        worker.sum_over_data(sum)?;
        let norm = worker.grad_norm(&mut null)?;
        norms_differ(&mut worker, &recipe.train.integrity, norm)?;
        worker.apply(&mut null, 1, 1e-3, 1.0)?;
        Ok(())
    })?;
    let mut sent = BTreeMap::new();
    for (label, _, traffic) in ledger.rows() {
        let sum: &mut Bytes = sent.entry(label).or_insert(Bytes(0));
        *sum = Bytes(sum.0 + traffic.volume.sent);
    }
    sent.retain(|_, bytes| bytes.0 > 0);
    Ok(sent)
}

//! The slices of a run's state that each rank of a layout saves, without a run: the slices that offline resharding writes.

use crate::TrainError;
use crate::memory::with_job;
use bessemer_arch::Model;
use bessemer_collectives::NullCommunicator;
use bessemer_filling::FillPlan;
use bessemer_parallel::{FillSupplier, OwnSlice, StateTensor, Worker};
use bessemer_recipe::Recipe;
use bessemer_tensor::null::NullBackend;

/// Returns the tensors of a recipe's state, and for each of `ranks` ranks the boxes of them that it would save: dry runs of each rank,
/// on a device that holds nothing.
///
/// # Errors
/// A layout that does not fit the ranks, the model or the batch.
pub fn layout_slices(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
) -> Result<(Vec<StateTensor>, Vec<Vec<OwnSlice>>), TrainError> {
    let (mut tensors, mut slices) = (Vec::new(), Vec::new());
    on_each_rank(recipe, ranks, model, &mut |worker, all| {
        slices.push(worker.own_slices(&all)?.slices().to_vec());
        tensors = all;
        Ok(())
    })?;
    Ok((tensors, slices))
}

/// Bytes of tensors that a rank writes of a checkpoint, and that it needs of one to resume from it, in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct RankBytes {
    /// Written.
    pub written: u64,
    /// Needed; chunks of files that it shares with other elements are read and verified whole.
    pub read: u64,
    /// Boxes of tensors that are written.
    pub slices: u64,
}

/// Returns the bytes of each of `ranks` ranks by dry runs, as [`layout_slices`], and those of the whole state.
///
/// # Errors
/// Same errors as [`layout_slices`].
pub fn checkpoint_bytes(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
) -> Result<(u64, Vec<RankBytes>), TrainError> {
    let (mut total, mut bytes) = (0, Vec::new());
    on_each_rank(recipe, ranks, model, &mut |worker, tensors| {
        let own = worker.own_slices(&tensors)?;
        total = 4 * tensors.iter().map(|t| t.len() as u64).sum::<u64>();
        bytes.push(RankBytes {
            written: 4 * own.elements() as u64,
            read: 4 * worker.wanted_elements(&tensors) as u64,
            slices: own.slices().len() as u64,
        });
        Ok(())
    })?;
    Ok((total, bytes))
}

/// Looks at a rank and the tensors of its state.
type Visit<'a> = dyn FnMut(&Worker, Vec<StateTensor>) -> Result<(), TrainError> + 'a;

/// Hands every rank of a layout to `visit`, on a device that holds nothing, with the tensors of the state.
fn on_each_rank(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
    visit: &mut Visit<'_>,
) -> Result<(), TrainError> {
    with_job(recipe, ranks, model, |job| {
        let fill = FillPlan::new(job, &recipe.parallel.fill, 0)?;
        for rank in 0..ranks {
            let world = Box::new(NullCommunicator::new("world", rank, ranks));
            let supplier = fill.as_ref().map(|fill| fill as &dyn FillSupplier);
            let worker = Worker::filled(&mut NullBackend::new(), job, supplier, world)?;
            let tensors = worker.tensors(&recipe.optim)?;
            visit(&worker, tensors)?;
        }
        Ok(())
    })
}

//! Saves that training does not wait for (`parallel.fill = "checkpoint"`).
//!
//! ```text
//! step s is over, a save is due ─► what belongs to step s besides tensors is written down; the next step is asked to copy
//! step s + 1: passes, with pieces of the state copied in their bubbles (the worker has the program for it) ─► a thread on every rank begins with the copy; the update
//! step s + 2, s + 3 ..  beside them the first rank's thread writes the checkpoint of step s, and the others' tell it their parts
//! ```
//! One save is in progress at a time: the next one, going back, and the end of the run wait for it. What is written has the bits of
//! a save between the steps. A run that dies meanwhile has the checkpoint before it: one becomes visible when it is whole.

use super::Trainer;
use super::saving::{Identity, specs, write_checkpoint};
use crate::TrainError;
use crate::observer::Observer;
use bessemer_checkpoint::{SaveReport, Store, TensorSpec};
use bessemer_collectives::Communicator;
use bessemer_filling::{FillPlan, StateCopy, give_back_snapshot, plan_snapshot, take_snapshot};
use bessemer_parallel::{ParallelError, Worker};
use bessemer_recipe::Recipe;
use std::thread::JoinHandle;

/// What saves in bubbles need, and where the one in progress stands.
pub(super) struct Copying {
    /// All ranks, for the threads; while none of them has it.
    group: Option<Box<dyn Communicator>>,
    /// The next step's passes copy: what is saved besides, on the first rank.
    planned: Option<Option<Identity>>,
    saving: Option<JoinHandle<Done>>,
}

/// Result of a rank's thread.
struct Done {
    /// On the first rank the step and what was written.
    result: Result<Option<(u64, SaveReport)>, TrainError>,
    copy: StateCopy,
    group: Box<dyn Communicator>,
}

impl Copying {
    /// Makes memory for copies and a group of their own, if the recipe asks for such saves.
    pub(super) fn set_up(
        worker: &mut Worker,
        recipe: &Recipe,
        fill: Option<&FillPlan>,
    ) -> Result<Option<Copying>, TrainError> {
        let Some(program) = fill.and_then(FillPlan::copying_program) else { return Ok(None) };
        plan_snapshot(worker, &recipe.optim, program)?;
        let all: Vec<usize> = (0..worker.plan().ranks()).collect();
        let group = worker.world().group("checkpoint", &all).map_err(ParallelError::from)?;
        Ok(Some(Copying { group: Some(group), planned: None, saving: None }))
    }

    /// Whether the next step is asked to copy.
    pub(super) fn is_planned(&self) -> bool {
        self.planned.is_some()
    }
}

/// What the first rank's thread does: it writes what the copies hold.
fn write(
    store: &Store,
    specs: Vec<TensorSpec>,
    identity: Identity,
    (copy, group): (&mut StateCopy, &mut dyn Communicator),
) -> Result<SaveReport, TrainError> {
    let read = |index: usize, values: &mut [f32]| copy.read(&mut *group, index, values);
    let report = write_checkpoint(store, specs, identity, read, &mut |_, _| ());
    // The others leave, whatever came of it.
    let end = copy.end(group);
    let report = report?;
    end?;
    Ok(report)
}

impl Trainer {
    /// A save is due after the step that is over: at once, or from copies that the next step makes.
    pub(super) fn save_when_due(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if self.copying.is_none() {
            return self.save(observer);
        }
        self.end_saving(true, observer)?;
        self.note_checkpoint();
        let identity = match &self.records {
            Some(records) => {
                records.sync()?;
                Some(self.identity()?)
            }
            None => None,
        };
        if let Some(copying) = &mut self.copying {
            copying.planned = Some(identity);
        }
        Ok(())
    }

    /// The passes of a step are over, nothing is updated yet: a copy that they have made goes to a thread.
    pub(super) fn begin_saving(&mut self) -> Result<(), TrainError> {
        let Some(copying) = &mut self.copying else { return Ok(()) };
        let Some(identity) = copying.planned.take() else { return Ok(()) };
        let mut copy = take_snapshot(&mut self.runner.worker)?;
        let Some(mut group) = copying.group.take() else {
            return Err(TrainError::Recipe("a save began while another was in progress".into()));
        };
        let (store, specs) =
            (self.store.clone(), specs(&self.runner.worker.tensors(&self.input.recipe.optim)?));
        let run = move || {
            let result = match identity {
                Some(identity) => {
                    let step = identity.step;
                    write(&store, specs, identity, (&mut copy, &mut *group))
                        .map(|report| Some((step, report)))
                }
                None => copy.serve(&mut *group).map(|()| None).map_err(TrainError::from),
            };
            Done { result, copy, group }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(run);
        let thread = thread.map_err(|e| {
            TrainError::Parallel(ParallelError::Layout(format!("no thread could be started for a save: {e}")))
        })?;
        copying.saving = Some(thread);
        Ok(())
    }

    /// Takes note of the save in progress if it is over; `wait`: when it is.
    pub(super) fn end_saving(&mut self, wait: bool, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(copying) = &mut self.copying else { return Ok(()) };
        let Some(saving) = copying.saving.take_if(|thread| wait || thread.is_finished()) else {
            return Ok(());
        };
        let Ok(Done { result, copy, group }) = saving.join() else {
            let text = "the thread that writes checkpoints panicked".into();
            return Err(TrainError::Parallel(ParallelError::Layout(text)));
        };
        copying.group = Some(group);
        give_back_snapshot(&mut self.runner.worker, copy);
        match result? {
            Some((step, report)) => self.saved(step, &report, observer),
            None => Ok(()),
        }
    }

    /// Before the run returns: the save in progress is waited for, and what the next step was to copy is saved now.
    pub(super) fn end_copying(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.end_saving(true, observer)?;
        let planned = self.copying.as_mut().and_then(|c| c.planned.take());
        planned.map_or(Ok(()), |_| self.save(observer))
    }
}

//! When and from what a rank writes checkpoints: from the device between two steps, or from a copy that the bubbles of a step make
//! (`parallel.fill = "checkpoint"`).
//!
//! ```text
//! step s is over, a save is due ─► what belongs to step s besides tensors is written down; the next step is asked to copy
//! step s + 1: passes, with parts of the state copied in their bubbles (the worker has the program for it) ─► a thread on every rank begins with the copy; the update
//! step s + 2, s + 3 ..  beside them the threads write the checkpoint of step s
//! ```
//! One save is in progress at a time: the next one, going back, and the end of the run wait for it. What is written has the bits of
//! a save between the steps. A run that dies meanwhile has the checkpoint before it: one becomes visible when it is whole.

use super::Trainer;
use super::writing::{Destination, Identity, Written, write_slices};
use crate::TrainError;
use crate::observer::Observer;
use bessemer_checkpoint::{Store, TensorSpec};
use bessemer_collectives::Communicator;
use bessemer_filling::{FillPlan, give_snapshot_memory, plan_snapshot, take_snapshot};
use bessemer_parallel::{OwnSlices, ParallelError, StateCopy, StateTensor, Worker};
use bessemer_recipe::Recipe;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A rank's part of saving, and where the save in progress stands.
pub(super) struct Saver {
    to: Destination,
    /// Slices that this rank writes.
    slices: Arc<OwnSlices>,
    /// All ranks; while no thread has it.
    group: Option<Box<dyn Communicator>>,
    /// Copies are made in bubbles.
    in_bubbles: bool,
    /// The next step's passes copy: what is saved besides, on the first rank.
    planned: Option<Option<Identity>>,
    saving: Option<JoinHandle<Done>>,
}

/// Result of a rank's thread.
struct Done {
    step: u64,
    result: Result<Written, TrainError>,
    copy: StateCopy,
    group: Box<dyn Communicator>,
}

impl Saver {
    /// Plans what this rank saves, makes a group for the ranks' messages, and memory for copies if the recipe asks for some in bubbles.
    pub(super) fn set_up(
        worker: &mut Worker,
        recipe: &Recipe,
        store: Store,
        fill: Option<&FillPlan>,
    ) -> Result<Saver, TrainError> {
        let tensors = worker.tensors(&recipe.optim)?;
        let slices = Arc::new(worker.own_slices(&tensors)?);
        let program = fill.and_then(FillPlan::copying_program);
        if let Some(program) = program {
            plan_snapshot(worker, Arc::clone(&slices), program)?;
            give_snapshot_memory(worker, vec![0.0; slices.elements()]);
        }
        let all: Vec<usize> = (0..worker.plan().ranks()).collect();
        let group = worker.world().group("checkpoint", &all).map_err(ParallelError::from)?;
        let spec =
            |t: &StateTensor| TensorSpec { name: t.name.clone(), shape: t.shape.clone(), dtype: t.dtype };
        let tensors = tensors.iter().map(spec).collect();
        let to = Destination { store, tensors, max_file_bytes: recipe.save.max_file_bytes() };
        let (group, in_bubbles) = (Some(group), program.is_some());
        Ok(Saver { to, slices, group, in_bubbles, planned: None, saving: None })
    }

    /// Whether copies are made in bubbles.
    pub(super) fn in_bubbles(&self) -> bool {
        self.in_bubbles
    }

    /// Whether the next step is asked to copy.
    pub(super) fn is_planned(&self) -> bool {
        self.planned.is_some()
    }

    fn take_group(&mut self) -> Result<Box<dyn Communicator>, TrainError> {
        let busy = || TrainError::Recipe("a save began while another was in progress".into());
        self.group.take().ok_or_else(busy)
    }
}

impl Trainer {
    /// A save is due after the step that is over: at once, or from copies that the next step makes.
    pub(super) fn save_when_due(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if !self.saver.in_bubbles {
            return self.save(observer);
        }
        self.end_saving(true, observer)?;
        self.note_checkpoint();
        self.saver.planned = Some(self.identity_on_root()?);
        Ok(())
    }

    /// What a checkpoint of the step that is over holds besides tensors, on the first rank, whose records are then durable.
    fn identity_on_root(&mut self) -> Result<Option<Identity>, TrainError> {
        match &self.records {
            Some(records) => {
                records.sync()?;
                self.identity().map(Some)
            }
            None => Ok(None),
        }
    }

    /// Writes the state as it is now.
    pub(super) fn write_now(&mut self, observer: &mut dyn Observer) -> Result<Written, TrainError> {
        let identity = self.identity_on_root()?;
        let mut group = self.saver.take_group()?;
        let (slices, backend) = (Arc::clone(&self.saver.slices), &mut *self.backend);
        let written = write_slices(
            &self.saver.to,
            identity,
            slices.slices(),
            &mut |slice, values| slices.read(backend, slice.at.clone(), values),
            &mut *group,
            &mut |done, total| observer.progress("saving", done, total),
        );
        self.saver.group = Some(group);
        written
    }

    /// The passes of a step are over, nothing is updated yet: a copy that they have made goes to a thread.
    pub(super) fn begin_saving(&mut self) -> Result<(), TrainError> {
        let Some(identity) = self.saver.planned.take() else { return Ok(()) };
        let copy = take_snapshot(&mut self.runner.worker)?;
        let mut group = self.saver.take_group()?;
        let (to, step) = (self.saver.to.clone(), self.state.step);
        let run = move || {
            let mut read = |slice: &_, values: &mut [f32]| {
                values.copy_from_slice(copy.values(slice));
                Ok(())
            };
            let result = write_slices(&to, identity, copy.slices(), &mut read, &mut *group, &mut |_, _| ());
            Done { step, result, copy, group }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(run);
        let thread = thread.map_err(|e| {
            TrainError::Parallel(ParallelError::Layout(format!("no thread could be started for a save: {e}")))
        })?;
        self.saver.saving = Some(thread);
        Ok(())
    }

    /// Takes note of the save in progress if it is over; `wait`: when it is.
    pub(super) fn end_saving(&mut self, wait: bool, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(saving) = self.saver.saving.take_if(|thread| wait || thread.is_finished()) else {
            return Ok(());
        };
        let Ok(Done { step, result, copy, group }) = saving.join() else {
            let text = "the thread that writes checkpoints panicked".into();
            return Err(TrainError::Parallel(ParallelError::Layout(text)));
        };
        self.saver.group = Some(group);
        give_snapshot_memory(&mut self.runner.worker, copy.into_memory());
        self.written(step, result?, observer)
    }

    /// Before the run returns: the save in progress is waited for, and what the next step was to copy is saved now.
    pub(super) fn end_copying(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.end_saving(true, observer)?;
        self.saver.planned.take().map_or(Ok(()), |_| self.save(observer))
    }
}

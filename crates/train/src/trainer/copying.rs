//! Checkpoint writing of a rank (CheckFreq: Mohan et al. 2021, section 4.1): from the device while training waits,
//! or from a copy in host memory, which a thread writes while training continues.
//!
//! ```text
//! beside steps (save.async):   step s is over, a save is due ─► what belongs to it besides tensors is written down; a thread copies
//!                              what the rank saves while the passes of step s + 1 are computed
//!                              ─► before the update the rank waits for the copy; all agree that it is finite
//!                              ─► a thread of every rank writes the checkpoint of step s beside step s + 1, s + 2 ..
//! in bubbles (parallel.fill):  step s is over, a save is due ─► what belongs to it besides tensors is written down; the passes of
//!                              step s + 1 copy parts of the state in their bubbles, before the update
//!                              ─► a thread of every rank writes the checkpoint of step s beside step s + 1, s + 2 ..
//! ```
//! Only updates change the saved state. If another operator writes it, the device delays that operator until the copy is made
//! ([`bessemer_tensor::Backend::begin_read`]).
//!
//! There are two copies for saves during steps: one is made while the other is written, and waits until that is done. The threads
//! write one checkpoint after the other, in the same order on every rank, and communicate in a group of their own, so that their messages do
//! not mix with those of training. Going back and the end of the run wait for them. The checkpoint has the bits of a save
//! while training waits. A run that dies during a save still has the previous checkpoint: one becomes visible when it is whole.
//!
//! Ranks detect a failed save at different moments. They end together, before the next step ([`Trainer::agree_to_stop`]).

use super::Trainer;
use super::interval::StepTimes;
use super::writing::{Destination, Identity, SliceValues, Written, write_slices};
use crate::TrainError;
use crate::memory::COPIES;
use crate::observer::Observer;
use bessemer_checkpoint::{
    AsyncChoice, CheckpointError, Retention, SaveConfig, Store, TensorSpec, entry_name,
};
use bessemer_collectives::{Breaker, Communicator};
use bessemer_filling::{FillPlan, give_snapshot_memory, plan_snapshot, take_snapshot};
use bessemer_parallel::{MemoryPlan, OwnSlices, ParallelError, PendingCopy, StateCopy, StateTensor, Worker};
use bessemer_recipe::Recipe;
use bessemer_units::Bytes;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Values in the smallest page of any system.
const VALUES_OF_A_PAGE: usize = 1024;

/// Message: whether a copy holds values that are not finite.
const NOT_FINITE: &str = "copy with values that are not finite";

/// Time that a rank whose training failed waits for a checkpoint that is being written.
const PATIENCE_AFTER_ERROR: Duration = Duration::from_secs(2);

/// Reasons of a rank to stop before the next step, as bits of a word.
const ASKED: u64 = 1;
const SAVE_FAILED: u64 = 2;

/// Copies that a rank has memory for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyPlan {
    /// No copy is wanted.
    None,
    /// No copy, because they do not fit.
    DoNotFit,
    /// Two copies, made during the passes of steps.
    BesideSteps,
    /// One, made in bubbles.
    InBubbles,
}

impl CopyPlan {
    /// Counts the copies that the recipe requests into `memory`.
    pub(super) fn new(
        save: &SaveConfig,
        fill: Option<&FillPlan>,
        memory: &mut MemoryPlan,
        available: Bytes,
    ) -> CopyPlan {
        if fill.is_some_and(|fill| fill.copying_program().is_some()) {
            memory.add(COPIES, memory.copy);
            return CopyPlan::InBubbles;
        }
        if save.asynchronous == AsyncChoice::Off || !save.is_on_the_way() {
            return CopyPlan::None;
        }
        let mut with = memory.clone();
        with.add(COPIES, Bytes(2 * memory.copy.0));
        if save.asynchronous == AsyncChoice::Auto && with.fits(1, available).is_err() {
            return CopyPlan::DoNotFit;
        }
        *memory = with;
        CopyPlan::BesideSteps
    }
}

/// Seconds that a save cost training.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SaveCost {
    /// Seconds that training waited.
    pub(super) stalled: f64,
    /// Seconds of the stall for the copy of the state: for its begin, and until it was made; nothing of a save without such a copy.
    pub(super) copied: Option<f64>,
    /// Whether the checkpoint was written concurrently with training.
    pub(super) beside: bool,
}

/// A copy that is being made.
struct CopyInProgress {
    step: u64,
    /// Contents besides tensors, on the first rank.
    identity: Option<Identity>,
    copy: Result<PendingCopy, ParallelError>,
    cost: SaveCost,
}

/// A copy that a thread is to write.
struct CopiedState {
    step: u64,
    /// Contents besides tensors, on the first rank.
    identity: Option<Identity>,
    copy: StateCopy,
    cost: SaveCost,
}

/// A rank's part of saving, and the state of the save in progress.
pub(super) struct Saver {
    to: Destination,
    /// Slices that this rank writes.
    slices: Arc<OwnSlices>,
    /// All ranks; while no thread has it.
    group: Option<Box<dyn Communicator>>,
    /// Interrupts a thread's calls in the group.
    breaker: Breaker,
    copies: CopyPlan,
    /// Memory for copies that are made during steps.
    free: Vec<Vec<f32>>,
    /// Touches the pages of that memory.
    preparing: Option<JoinHandle<Vec<Vec<f32>>>>,
    /// A copy that is made during the passes of a step.
    copying: Option<CopyInProgress>,
    /// A copy that waits until the save in progress is over.
    waiting: Option<CopiedState>,
    /// Set if the next step's passes copy: contents besides tensors, on the first rank, and the time that training waited for the previous save.
    planned: Option<(Option<Identity>, SaveCost)>,
    saving: Option<JoinHandle<Done>>,
    /// Removes checkpoints that are no longer kept; the next save waits for it.
    removing: Option<Removal>,
    /// Error of a failed save that is not reported yet.
    failed: Option<TrainError>,
    /// Seconds of steps during saves and without.
    pub(super) times: StepTimes,
}

/// A thread that removes checkpoints.
type Removal = JoinHandle<Result<(), TrainError>>;

/// Result of a rank's thread.
struct Done {
    step: u64,
    result: Result<Written, TrainError>,
    copy: StateCopy,
    cost: SaveCost,
    group: Box<dyn Communicator>,
}

impl Saver {
    /// Bytes of a checkpoint's tensors, those of all ranks together.
    pub(super) fn checkpoint_bytes(&self) -> u64 {
        self.to.bytes()
    }

    /// Plans the slices that this rank saves, makes a group for the ranks' messages, and memory for copies.
    pub(super) fn set_up(
        worker: &mut Worker,
        recipe: &Recipe,
        store: Store,
        fill: Option<&FillPlan>,
        copies: CopyPlan,
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
        // All ranks write in the same way.
        let copies = match worker.any("copies that do not fit", copies == CopyPlan::DoNotFit)? {
            true => CopyPlan::DoNotFit,
            false => copies,
        };
        let preparing = match copies {
            CopyPlan::BesideSteps => Some(prepare_memory(slices.elements())?),
            _ => None,
        };
        Ok(Saver {
            to,
            slices,
            breaker: group.breaker(),
            group: Some(group),
            copies,
            free: Vec::new(),
            preparing,
            copying: None,
            waiting: None,
            planned: None,
            saving: None,
            removing: None,
            failed: None,
            times: StepTimes::default(),
        })
    }

    /// Whether copies are made in bubbles.
    pub(super) fn in_bubbles(&self) -> bool {
        self.copies == CopyPlan::InBubbles
    }

    /// Bytes of memory for copies.
    pub(super) fn copy_bytes(&self) -> u64 {
        let count = match self.copies {
            CopyPlan::BesideSteps => 2,
            CopyPlan::InBubbles => 1,
            CopyPlan::None | CopyPlan::DoNotFit => 0,
        };
        4 * count * self.slices.elements() as u64
    }

    /// Whether copies were requested and do not fit on some rank.
    pub(super) fn lacks_memory(&self) -> bool {
        self.copies == CopyPlan::DoNotFit
    }

    /// Whether a checkpoint is being copied or written.
    pub(super) fn is_writing(&self) -> bool {
        self.saving.is_some() || self.copying.is_some()
    }

    /// Memory for a copy, if there is any.
    fn take_memory(&mut self) -> Option<Vec<f32>> {
        if let Some(preparing) = self.preparing.take() {
            // Memory that is lost with its thread costs copies, and no more.
            self.free = preparing.join().unwrap_or_default();
        }
        self.free.pop()
    }

    /// Whether the next step is to copy.
    pub(super) fn is_planned(&self) -> bool {
        self.planned.is_some()
    }

    /// Begins to remove the checkpoints of `store` that `retention` does not keep: large files take a while.
    pub(super) fn begin_removal(&mut self, store: Store, retention: Retention) -> Result<(), TrainError> {
        self.end_removal()?;
        let run = move || Ok(store.gc(&retention).map(|_| ())?);
        let thread = std::thread::Builder::new().name("checkpoint-gc".into()).spawn(run);
        self.removing = Some(thread.map_err(no_thread)?);
        Ok(())
    }

    /// Names the first value of a copy that is not finite; empty if there is none.
    fn not_finite(&self, copy: &StateCopy) -> String {
        for slice in copy.slices() {
            let values = copy.values(slice);
            if let Some(index) = values.iter().position(|v| !v.is_finite()) {
                let whole = &self.to.tensors[slice.tensor];
                let name = entry_name(&whole.name, &whole.shape, &slice.part);
                return CheckpointError::NotFinite { name, index, value: values[index] }.to_string();
            }
        }
        String::new()
    }

    fn end_removal(&mut self) -> Result<(), TrainError> {
        self.removing.take().map_or(Ok(()), removal_result)
    }

    fn take_group(&mut self) -> Result<Box<dyn Communicator>, TrainError> {
        let busy = || TrainError::Recipe("a save began while another was in progress".into());
        self.group.take().ok_or_else(busy)
    }
}

impl Trainer {
    /// Whether any rank was requested to stop, here `asked`. All ranks detect here if a save has failed that they wrote during the last
    /// steps, and end with its error.
    pub(super) fn agree_to_stop(
        &mut self,
        asked: bool,
        observer: &mut dyn Observer,
    ) -> Result<bool, TrainError> {
        let failed = if self.saver.failed.is_some() { SAVE_FAILED } else { 0 };
        let word = self.runner.worker.or_over_ranks("stop", failed | if asked { ASKED } else { 0 })?;
        if word & SAVE_FAILED != 0
            && let Err(e) = self.end_saving(true, observer)
        {
            self.recover(e, observer)?;
        }
        Ok(word & ASKED != 0)
    }

    /// A save is due after the step that is over: at once, or from a copy.
    pub(super) fn save_when_due(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if let Some(interval) = &mut self.interval {
            interval.begin(self.state.step);
        }
        match self.saver.copies {
            CopyPlan::InBubbles => {
                let begun = Instant::now();
                self.end_saving(true, observer)?;
                self.note_checkpoint();
                let identity = self.identity_on_root()?;
                let cost = SaveCost { stalled: begun.elapsed().as_secs_f64(), copied: None, beside: true };
                self.saver.planned = Some((identity, cost));
                Ok(())
            }
            CopyPlan::BesideSteps => self.begin_copy(observer),
            CopyPlan::None | CopyPlan::DoNotFit => self.save(observer),
        }
    }

    /// Begins to copy the state that this rank saves, as of the last step.
    fn begin_copy(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let (begun, step) = (Instant::now(), self.state.step);
        // The step between may have been gone back from.
        self.end_copy()?;
        let memory = match self.saver.take_memory() {
            None => {
                self.end_first_save(observer)?;
                self.saver.take_memory()
            }
            memory => memory,
        };
        let Some(memory) = memory else { return self.save(observer) };
        self.note_checkpoint();
        let identity = self.identity_on_root()?;
        let copying = Instant::now();
        let copy = self.saver.slices.begin_copy(&mut *self.backend, memory);
        let copied = Some(copying.elapsed().as_secs_f64());
        self.tracing.event("save", begun, step);
        let cost = SaveCost { stalled: begun.elapsed().as_secs_f64(), copied, beside: true };
        self.saver.copying = Some(CopyInProgress { step, identity, copy, cost });
        Ok(())
    }

    /// Waits for the copy that is being made, if there is one, and hands it to a thread. All ranks call this at the same
    /// place, at the latest before the next save.
    ///
    /// # Errors
    /// [`TrainError::Diverged`] if a rank's state is not finite; an error of the device.
    pub(super) fn end_copy(&mut self) -> Result<(), TrainError> {
        let Some(CopyInProgress { step, identity, copy, mut cost }) = self.saver.copying.take() else {
            return Ok(());
        };
        let begun = Instant::now();
        let made = copy.and_then(PendingCopy::wait);
        let finite = made.as_ref().is_ok_and(|made| made.finite);
        if let Ok(made) = &made {
            let waited = (begun.elapsed() + made.held_up).as_secs_f64();
            cost.stalled += waited;
            cost.copied = cost.copied.map(|copied| copied + waited);
        }
        self.tracing.event("copy", begun, step);
        // A device that failed ends the run below; the others must not write a checkpoint without this rank.
        let refused = self.runner.worker.any(NOT_FINITE, !finite);
        let copy = match (refused, made) {
            (Ok(false), Ok(made)) => made.copy,
            (refused, made) => {
                let made = made?;
                let text = self.saver.not_finite(&made.copy);
                self.saver.free.push(made.copy.into_memory());
                refused?;
                let texts = self.runner.worker.gather_bytes(NOT_FINITE, text.as_bytes())?;
                let text = texts.iter().find(|text| !text.is_empty());
                let text = text.map(|t| String::from_utf8_lossy(t).into_owned());
                return Err(self.divergence(text.unwrap_or_default()));
            }
        };
        let copied = CopiedState { step, identity, copy, cost };
        match (&self.saver.saving, &self.saver.failed) {
            (Some(_), _) => self.saver.waiting = Some(copied),
            // A save after a failed one is not begun, on no rank.
            (None, Some(_)) => self.saver.free.push(copied.copy.into_memory()),
            (None, None) => self.start_thread(copied)?,
        }
        Ok(())
    }

    /// Contents of a checkpoint of the last step besides tensors, on the first rank.
    fn identity_on_root(&mut self) -> Result<Option<Identity>, TrainError> {
        match &self.records {
            Some(records) => self.identity(records.syncer()?).map(Some),
            None => Ok(None),
        }
    }

    /// Writes the state as it is now.
    pub(super) fn write_now(&mut self, observer: &mut dyn Observer) -> Result<Written, TrainError> {
        let identity = self.identity_on_root()?;
        self.saver.end_removal()?;
        let mut group = self.saver.take_group()?;
        let (slices, backend) = (Arc::clone(&self.saver.slices), &mut *self.backend);
        let written = write_slices(
            &self.saver.to,
            identity,
            slices.slices(),
            SliceValues::Read(&mut |range, values| slices.read(backend, range, values)),
            &mut *group,
            &mut |done, total| observer.progress("saving", done, total),
        );
        self.saver.group = Some(group);
        written
    }

    /// Called when the passes of a step are done and no parameter is updated yet: passes a copy that they have made to a thread.
    pub(super) fn begin_saving(&mut self) -> Result<(), TrainError> {
        let Some((identity, cost)) = self.saver.planned.take() else { return Ok(()) };
        let copy = take_snapshot(&mut self.runner.worker)?;
        self.start_thread(CopiedState { step: self.state.step, identity, copy, cost })
    }

    /// A thread begins to write a copy.
    fn start_thread(&mut self, copied: CopiedState) -> Result<(), TrainError> {
        let mut group = self.saver.take_group()?;
        let (to, removing) = (self.saver.to.clone(), self.saver.removing.take());
        let run = move || {
            // Both need the store's lock.
            let removed = removing.map_or(Ok(()), removal_result);
            let CopiedState { step, identity, copy, cost } = copied;
            let values = SliceValues::Copied(&copy);
            let result = write_slices(&to, identity, copy.slices(), values, &mut *group, &mut |_, _| ());
            let result = removed.and(result);
            Done { step, result, copy, cost, group }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(run);
        self.saver.saving = Some(thread.map_err(no_thread)?);
        Ok(())
    }

    /// Takes note of the save in progress if it is over, and begins with a copy that waits; `wait`: when it is, and one that waits
    /// after it.
    ///
    /// # Errors
    /// With `wait`, the error of a save that failed, now or before.
    pub(super) fn end_saving(&mut self, wait: bool, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if wait {
            self.end_copy()?;
        }
        while self.saver.saving.as_ref().is_some_and(|thread| wait || thread.is_finished()) {
            self.end_first_save(observer)?;
        }
        if !wait {
            return Ok(());
        }
        self.saver.end_removal()?;
        self.saver.failed.take().map_or(Ok(()), Err)
    }

    /// The run ends with an error on this rank. A checkpoint that is being written is still whole, if all ranks have begun with it; a
    /// rank that waits for this one in a collective never will, so they are given a moment and not more.
    pub(super) fn end_saving_after_error(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        (self.saver.waiting, self.saver.copying) = (None, None);
        let begun = Instant::now();
        while self.saver.saving.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if begun.elapsed() > PATIENCE_AFTER_ERROR {
                self.saver.breaker.break_off("training ended with an error");
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.end_saving(true, observer)
    }

    /// Waits for the save in progress. If it failed, that is kept for [`Trainer::end_saving`], and a copy that waits is dropped.
    fn end_first_save(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(saving) = self.saver.saving.take() else { return Ok(()) };
        let Ok(Done { step, result, copy, cost, group }) = saving.join() else {
            let text = "the thread that writes checkpoints panicked".into();
            return Err(TrainError::Parallel(ParallelError::Layout(text)));
        };
        self.saver.group = Some(group);
        match self.saver.copies {
            CopyPlan::InBubbles => give_snapshot_memory(&mut self.runner.worker, copy.into_memory()),
            _ => self.saver.free.push(copy.into_memory()),
        }
        // Before the next one begins, which holds the store's lock.
        let written = result.and_then(|written| self.written(step, written, cost, observer));
        let waiting = self.saver.waiting.take();
        match (written, waiting) {
            (Err(e), waiting) => {
                self.saver.free.extend(waiting.map(|copied| copied.copy.into_memory()));
                self.saver.failed = self.saver.failed.take().or(Some(e));
                Ok(())
            }
            (Ok(()), Some(copied)) => self.start_thread(copied),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Called before the run returns: waits for the save in progress, and saves now the state that the next step was to copy.
    pub(super) fn end_copying(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if let Err(e) = self.end_copy() {
            self.recover(e, observer)?;
        }
        self.end_saving(true, observer)?;
        self.saver.planned.take().map_or(Ok(()), |_| self.save(observer))
    }
}

fn no_thread(e: std::io::Error) -> TrainError {
    TrainError::Parallel(ParallelError::Layout(format!("no thread could be started for a save: {e}")))
}

fn removal_result(removal: Removal) -> Result<(), TrainError> {
    removal.join().unwrap_or_else(|_| {
        let text = "the thread that removes old checkpoints panicked".into();
        Err(TrainError::Parallel(ParallelError::Layout(text)))
    })
}

/// Allocates memory for two copies. Its pages are touched during the first steps: at the first copy they would cost more than the
/// copy itself.
fn prepare_memory(elements: usize) -> Result<JoinHandle<Vec<Vec<f32>>>, TrainError> {
    let run = move || {
        let mut memory = vec![vec![0.0; elements], vec![0.0; elements]];
        for value in memory.iter_mut().flat_map(|copy| copy.iter_mut().step_by(VALUES_OF_A_PAGE)) {
            *std::hint::black_box(value) = 0.0;
        }
        memory
    };
    std::thread::Builder::new().name("checkpoint-memory".into()).spawn(run).map_err(no_thread)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_tensor::MemoryUse;

    #[test]
    fn two_copies_are_counted_or_left_out_where_they_do_not_fit() {
        let plan = |asynchronous, available, every_seconds| {
            let save = SaveConfig { asynchronous, every_seconds, ..SaveConfig::default() };
            let buffers = MemoryUse { classes: vec![("weights", Bytes(100))], ..MemoryUse::default() };
            let mut memory = MemoryPlan { buffers, copy: Bytes(10) };
            let plan = CopyPlan::new(&save, None, &mut memory, Bytes(available));
            (plan, memory.buffers.total().0)
        };
        assert_eq!(plan(AsyncChoice::Auto, 120, 600), (CopyPlan::BesideSteps, 120));
        assert_eq!(plan(AsyncChoice::Auto, 119, 600), (CopyPlan::DoNotFit, 100));
        // Refused later, with the largest consumers.
        assert_eq!(plan(AsyncChoice::On, 119, 600), (CopyPlan::BesideSteps, 120));
        assert_eq!(plan(AsyncChoice::Off, 1000, 600), (CopyPlan::None, 100));
        assert_eq!(plan(AsyncChoice::Auto, 1000, 0), (CopyPlan::None, 100), "saved at the end only");
    }
}

//! Disk space for the checkpoints of a run, checked before its first step.

use super::Trainer;
use crate::TrainError;
use bessemer_checkpoint::{CheckpointError, Store};
use bessemer_units::{Bytes, counted};

impl Trainer {
    /// Refuses a run whose first checkpoint does not fit on the disk, and warns if the disk has no space for all that it will
    /// keep at a time. Compressed checkpoints are counted uncompressed; a file system that reports no free space is not checked.
    pub(super) fn check_disk(&mut self) -> Result<(), TrainError> {
        let save = &self.input.recipe.save;
        let most = save.most_kept(self.state.step, self.plan.steps);
        if self.records.is_none() || most == 0 {
            return Ok(());
        }
        let Some(free) = self.store.free_bytes() else { return Ok(()) };
        let each = self.saver.checkpoint_bytes();
        if free < Store::space_for(each) {
            let (dir, needed) = (self.store.dir().to_owned(), Store::space_for(each));
            return Err(CheckpointError::NoSpace { dir, needed, free }.into());
        }
        // The rule counts checkpoints of earlier sessions too, and removes them as it goes.
        let there = self.store.named_steps()?.len() as u64;
        let needed = most.saturating_sub(there).saturating_mul(each);
        if free < needed {
            self.warnings.push(format!(
                "{} has {} free, and the run keeps up to {} of {} at a time, the one being written included: it will stop at a full \
                 disk; lower save.keep_last or save.keep_best, raise save.keep_every, or free {}",
                self.store.dir().display(),
                Bytes(free),
                counted(most, "checkpoint"),
                Bytes(each),
                Bytes(needed - free)
            ));
        }
        Ok(())
    }
}

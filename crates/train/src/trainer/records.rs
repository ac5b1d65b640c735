//! What the first rank writes down: metrics.jsonl and TensorBoard's file.

use crate::TrainError;
use bessemer_runlog::{self as runlog, EndReason, Record, RunLog, TensorBoard};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The files of one session, open for appending.
pub(super) struct Records {
    log: RunLog,
    /// Made with the first record, so that a run that cannot start leaves no file.
    board: Option<TensorBoard>,
    directory: PathBuf,
    name: String,
    /// The step that the session or its current part went on from.
    resumed: Option<u64>,
    /// The step at which an earlier session finished and evaluated the run, if one did.
    finished: Option<u64>,
}

impl Records {
    pub(super) fn open(directory: &Path, name: &str) -> Result<Records, TrainError> {
        let log = RunLog::open(directory)?;
        let finished = runlog::read(directory)?.records.iter().rev().find_map(|r| match r {
            Record::End(end) if end.reason == EndReason::Finished => Some(end.step),
            _ => None,
        });
        Ok(Records {
            log,
            board: None,
            directory: directory.to_owned(),
            name: name.to_owned(),
            resumed: None,
            finished,
        })
    }

    pub(super) fn append(&mut self, record: &Record) -> Result<(), TrainError> {
        self.log.append(record)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let mut board = match self.board.take() {
            Some(board) => board,
            None => TensorBoard::create(&self.directory, &self.name, now, self.resumed)?,
        };
        board.record(now, record)?;
        self.board = Some(board);
        Ok(())
    }

    /// What the session leaves at its end, which TensorBoard does not show.
    pub(super) fn append_last(&mut self, record: &Record) -> Result<(), TrainError> {
        self.log.append(record)?;
        self.sync()
    }

    pub(super) fn sync(&self) -> Result<(), TrainError> {
        Ok(self.log.sync()?)
    }

    /// Takes out what later steps left, because the run goes on from `step`: after a checkpoint (a new file of scalars
    /// begins there) or from the beginning. Returns how many records were taken out.
    pub(super) fn go_on_from(&mut self, step: u64, resumed: bool) -> Result<u64, TrainError> {
        let dropped = self.log.truncate_after(step)?;
        self.board = None;
        self.resumed = resumed.then_some(step);
        Ok(dropped)
    }

    /// Which parts of the final evaluation of a run of `steps` steps an earlier session has not got to.
    pub(super) fn missing_at_end(&self, steps: u64) -> Result<Missing, TrainError> {
        if self.finished == Some(steps) {
            return Ok(Missing::default());
        }
        let log = runlog::read(&self.directory)?.records;
        // Evaluation on the way leaves out the last step, so what stands after that step is of the final evaluation.
        let last_step = log.iter().rposition(|r| matches!(r, Record::Step(_))).unwrap_or(0);
        let lacks = |of_kind: fn(&Record) -> bool| !log[last_step..].iter().any(of_kind);
        Ok(Missing {
            evaluation: lacks(|r| matches!(r, Record::Eval(_))),
            samples: lacks(|r| matches!(r, Record::Sample(_))),
            baseline: lacks(|r| matches!(r, Record::Baseline(_))),
        })
    }
}

/// Parts of the final evaluation.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) evaluation: bool,
    pub(super) samples: bool,
    pub(super) baseline: bool,
}

impl Missing {
    /// For other ranks.
    pub(super) fn word(self) -> u64 {
        u64::from(self.evaluation) | u64::from(self.samples) << 1 | u64::from(self.baseline) << 2
    }

    pub(super) fn of_word(word: u64) -> Missing {
        Missing { evaluation: word & 1 != 0, samples: word & 2 != 0, baseline: word & 4 != 0 }
    }
}

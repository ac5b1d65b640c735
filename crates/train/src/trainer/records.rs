//! What the first rank writes down: metrics.jsonl, TensorBoard's file and the text file for Prometheus.

use crate::TrainError;
use bessemer_recipe::Recipe;
use bessemer_runlog::{
    self as runlog, EndReason, HyperParameter, Prometheus, Record, RunLog, TensorBoard, Warning,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The files of one session, open for appending.
pub(super) struct Records {
    log: RunLog,
    /// Made with the first record, so that a run that cannot start leaves no file.
    board: Option<TensorBoard>,
    prometheus: Option<Prometheus>,
    directory: PathBuf,
    name: String,
    /// The resolved recipe, shown as text by TensorBoard.
    recipe_text: String,
    hyperparameters: Vec<(String, HyperParameter)>,
    /// The step that the session or its current part went on from.
    resumed: Option<u64>,
    /// The step at which an earlier session finished and evaluated the run, if one did.
    finished: Option<u64>,
}

impl Records {
    pub(super) fn open(directory: &Path, recipe: &Recipe, recipe_text: &str) -> Result<Records, TrainError> {
        let log = RunLog::open(directory)?;
        let finished = runlog::read(directory)?.records.iter().rev().find_map(|r| match r {
            Record::End(end) if end.reason == EndReason::Finished => Some(end.step),
            _ => None,
        });
        let name = &recipe.run.name;
        let config = &recipe.run.prometheus;
        let path = directory.join(&config.path);
        Ok(Records {
            log,
            board: None,
            prometheus: (config.every_steps > 0).then(|| Prometheus::new(path, name, config.every_steps)),
            directory: directory.to_owned(),
            name: name.clone(),
            recipe_text: recipe_text.to_owned(),
            hyperparameters: hyperparameters(recipe),
            resumed: None,
            finished,
        })
    }

    /// Writes a record to every file. Returns the warning that became due with it, which is in the log already.
    pub(super) fn append(&mut self, record: &Record) -> Result<Option<Record>, TrainError> {
        self.log.append(record)?;
        let mut board = match self.board.take() {
            Some(board) => board,
            None => self.new_board()?,
        };
        board.record(now(), record)?;
        self.board = Some(board);
        self.expose(record)
    }

    /// Records the end of the session.
    pub(super) fn append_last(&mut self, record: &Record) -> Result<(), TrainError> {
        self.log.append(record)?;
        self.sync()?;
        if let Some(board) = &mut self.board {
            board.record(now(), record)?;
        }
        self.expose(record)?;
        Ok(())
    }

    /// A new file for TensorBoard, which begins with the recipe.
    fn new_board(&self) -> Result<TensorBoard, TrainError> {
        let now = now();
        let mut board = TensorBoard::create(&self.directory, &self.name, now, self.resumed)?;
        board.text(now, 0, "recipe", &format!("```toml\n{}\n```\n", self.recipe_text))?;
        board.hyperparameters(now, &self.name, &self.hyperparameters)?;
        Ok(board)
    }

    /// Shows a record to Prometheus. A file that cannot be written is given up with a warning: it must not end the run.
    fn expose(&mut self, record: &Record) -> Result<Option<Record>, TrainError> {
        let Some(Err(e)) = self.prometheus.as_mut().map(|file| file.record(now(), record)) else {
            return Ok(None);
        };
        self.prometheus = None;
        let message = format!("run.prometheus: {e}; this session writes no more values for Prometheus");
        let warning = Warning { step: record.step(), topic: "prometheus".into(), message };
        let warning = Record::from(warning);
        self.log.append(&warning)?;
        Ok(Some(warning))
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

/// Seconds since 1970-01-01 UTC.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// The keys of the recipe that TensorBoard lists and compares: those that decide how a model learns.
fn hyperparameters(recipe: &Recipe) -> Vec<(String, HyperParameter)> {
    let mut all = Vec::new();
    let json = serde_json::to_value(recipe).unwrap_or_default();
    for section in ["tokenizer", "model", "train", "optim", "parallel"] {
        flatten(section, &json[section], &mut all);
    }
    flatten("run.seed", &json["run"]["seed"], &mut all);
    all
}

/// Lists the numbers, switches and texts of a table by their dotted keys; lists and keys that are not set are left out.
fn flatten(key: &str, value: &Value, all: &mut Vec<(String, HyperParameter)>) {
    let one = match value {
        Value::Object(table) => {
            return table.iter().for_each(|(name, value)| flatten(&format!("{key}.{name}"), value, all));
        }
        Value::Number(n) => HyperParameter::Number(n.as_f64().unwrap_or(f64::NAN)),
        Value::Bool(on) => HyperParameter::Switch(*on),
        Value::String(text) if !text.is_empty() => HyperParameter::Text(text.clone()),
        _ => return,
    };
    all.push((key.to_owned(), one));
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

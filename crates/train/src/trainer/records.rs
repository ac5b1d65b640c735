//! Files that the first rank writes: metrics.jsonl, TensorBoard's file and the text file for Prometheus.

use crate::TrainError;
use bessemer_arch::Model;
use bessemer_durable::ConfinedDir;
use bessemer_eval::EvalConfig;
use bessemer_recipe::Recipe;
use bessemer_runlog::{
    self as runlog, EndReason, Fault, HyperParameter, LoadLog, LogSync, Prometheus, Record, RunId, RunLog,
    TensorBoard, Warning,
};
use serde_json::Value;
use std::path::{Component, Path};
use std::time::{SystemTime, UNIX_EPOCH};

/// The files of one session, open for appending.
pub(super) struct Records {
    log: RunLog,
    loads: Option<ExpertLoads>,
    /// Made with the first record, so that a run that cannot start leaves no file.
    board: Option<TensorBoard>,
    prometheus: Option<Prometheus>,
    directory: ConfinedDir,
    name: String,
    /// The resolved recipe, shown as text by TensorBoard.
    recipe_text: String,
    hyperparameters: Vec<(String, HyperParameter)>,
    /// The step that the session or its current part went on from.
    resumed: Option<u64>,
    /// The step at which an earlier session finished and evaluated the run, if one did.
    finished: Option<u64>,
    failed_sessions: u64,
    /// All faults of the run.
    faults: Vec<Fault>,
    /// Run that the log belongs to; logs of older versions name none.
    run: Option<String>,
    /// Last step in the log, 0 before the first.
    last_step: u64,
}

/// Choices of the experts of a model that has some.
struct ExpertLoads {
    log: LoadLog,
    /// Experts of each layer, 0 of a layer without.
    experts: Vec<u32>,
    /// Choices in the step whose record is next; empty: none.
    counts: Vec<u32>,
}

impl ExpertLoads {
    /// The file of a run of this model; nothing without experts.
    fn open(directory: &ConfinedDir, model: &Model) -> Result<Option<ExpertLoads>, TrainError> {
        let of_layer = |layer| model.experts_of(layer).map_or(0, |experts| experts.count as u32);
        let experts: Vec<u32> = (0..model.layers).map(of_layer).collect();
        if experts.iter().all(|count| *count == 0) {
            return Ok(None);
        }
        let log = LoadLog::open(directory, &experts)?;
        Ok(Some(ExpertLoads { log, experts, counts: Vec::new() }))
    }
}

impl Records {
    pub(super) fn open(
        directory: &ConfinedDir,
        recipe: &Recipe,
        recipe_text: &str,
        model: &Model,
    ) -> Result<Records, TrainError> {
        let log = RunLog::open(directory)?;
        let earlier = runlog::read(directory)?.records;
        let finished = earlier.iter().rev().find_map(|r| match r {
            Record::End(end) if end.reason == EndReason::Finished => Some(end.step),
            _ => None,
        });
        let name = &recipe.run.name;
        let config = &recipe.run.prometheus;
        let path = directory.path().join(&config.path);
        let inside = Path::new(&config.path).components().all(|c| matches!(c, Component::Normal(_)));
        Ok(Records {
            log,
            loads: ExpertLoads::open(directory, model)?,
            board: None,
            prometheus: (config.every_steps > 0).then(|| match inside {
                true => Prometheus::new_in(directory, &config.path, name, config.every_steps),
                // The folder of a collector, which the user names.
                false => Prometheus::new(path, name, config.every_steps),
            }),
            directory: directory.clone(),
            name: name.clone(),
            recipe_text: recipe_text.to_owned(),
            hyperparameters: hyperparameters(recipe),
            resumed: None,
            finished,
            failed_sessions: failed_sessions(&earlier),
            run: earlier
                .iter()
                .rev()
                .find_map(|r| if let Record::RunId(run) = r { Some(run.id.clone()) } else { None }),
            last_step: earlier
                .iter()
                .filter_map(|r| if let Record::Step(s) = r { Some(s.step) } else { None })
                .max()
                .unwrap_or(0),
            faults: earlier
                .into_iter()
                .filter_map(|r| if let Record::Fault(f) = r { Some(f) } else { None })
                .collect(),
        })
    }

    /// Writes a record to every file. Returns the warning that became due with it, which is in the log already.
    pub(super) fn append(&mut self, record: &Record) -> Result<Option<Record>, TrainError> {
        self.log.append(record)?;
        match (record, &mut self.loads) {
            (Record::Fault(fault), _) => self.faults.push(fault.clone()),
            (Record::Step(step), Some(loads)) if !loads.counts.is_empty() => {
                loads.log.append(step.step, &loads.counts)?;
                loads.counts.clear();
            }
            _ => {}
        }
        let mut board = match self.board.take() {
            Some(board) => board,
            None => self.new_board()?,
        };
        board.record(now(), record)?;
        self.board = Some(board);
        self.expose(record)
    }

    /// Keeps the choices of a step for its record: as many numbers for each layer, of a layer without experts too.
    pub(super) fn note_loads(&mut self, counts: &[u32]) {
        let Some(ExpertLoads { experts, counts: next, .. }) = &mut self.loads else { return };
        next.clear();
        let layers = counts.chunks((counts.len() / experts.len()).max(1)).zip(experts);
        layers.for_each(|(counts, experts)| next.extend(&counts[..*experts as usize]));
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
        let message = format!(
            "run.prometheus: {e}; metrics for Prometheus are no longer written in this \
                               session"
        );
        let warning = Warning { step: record.step(), topic: "prometheus".into(), message };
        let warning = Record::from(warning);
        self.log.append(&warning)?;
        Ok(Some(warning))
    }

    pub(super) fn sync(&self) -> Result<(), TrainError> {
        if let Some(loads) = &self.loads {
            loads.log.sync()?;
        }
        Ok(self.log.sync()?)
    }

    /// Makes the records up to now durable, from another thread.
    pub(super) fn syncer(&self) -> Result<LogSync, TrainError> {
        let mut sync = self.log.syncer()?;
        if let Some(loads) = &self.loads {
            loads.log.synced_by(&mut sync)?;
        }
        Ok(sync)
    }

    /// Faults that were found so far, those of earlier sessions included.
    pub(super) fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Earlier sessions of the run that ended without a request to stop.
    pub(super) fn failed_sessions(&self) -> u64 {
        self.failed_sessions
    }

    /// Removes the records of later steps, because the run resumes from `step`: after a checkpoint (a new file of scalars
    /// begins there) or from the beginning. Returns how many records were removed.
    pub(super) fn go_on_from(&mut self, step: u64, resumed: bool) -> Result<u64, TrainError> {
        let dropped = self.log.truncate_after(step)?;
        if let Some(loads) = &mut self.loads {
            loads.log.truncate_after(step)?;
        }
        self.board = None;
        self.resumed = resumed.then_some(step);
        Ok(dropped)
    }

    /// Makes the log that of the run `saved`, which a checkpoint of step `step` names, or of a run of its own if none does. Returns the run, and
    /// a warning if the log was that of another run, which is moved aside, or ends before the checkpoint.
    pub(super) fn identify(
        &mut self,
        saved: Option<&str>,
        step: u64,
    ) -> Result<(String, Option<String>), TrainError> {
        let run = match (saved, &self.run) {
            (Some(saved), _) => saved.to_owned(),
            (None, Some(own)) => own.clone(),
            // 122 random bits of the system.
            (None, None) => {
                let uuid = bessemer_durable::read_to_string(Path::new("/proc/sys/kernel/random/uuid"));
                uuid.map_err(|e| TrainError::State {
                    place: "name of the run".into(),
                    problem: e.to_string(),
                })?
                .trim()
                .to_owned()
            }
        };
        let place = self.log.path().display().to_string();
        let warning = match self.run.clone() {
            Some(own) if own != run => {
                let aside = self.set_aside()?;
                Some(format!(
                    "{place} is the log of another run ({own}) than the checkpoint of step {step} ({run}): \
                     the log was moved to {aside}, and a new log starts after step {step}"
                ))
            }
            _ if step > self.last_step => Some(format!(
                "{place} ends at step {}, before the checkpoint of step {step} that the run continues from: \
                 the records in between are missing",
                self.last_step
            )),
            _ => None,
        };
        if self.run.as_ref() != Some(&run) {
            self.log.append(&RunId { id: run.clone() }.into())?;
            self.run = Some(run.clone());
        }
        self.last_step = self.last_step.max(step);
        Ok((run, warning))
    }

    /// Moves the log aside and begins another one with the records of this session. Returns the name of the file.
    fn set_aside(&mut self) -> Result<String, TrainError> {
        let dir = &self.directory;
        let earlier = runlog::read(&self.directory)?.records;
        let session = earlier.iter().rposition(|r| matches!(r, Record::Run(_))).unwrap_or(earlier.len());
        let aside = (1..)
            .map(|n| format!("metrics.other-{n}.jsonl"))
            .find(|name| !dir.exists(name))
            .unwrap_or_default();
        dir.rename(runlog::FILE, &aside).and_then(|()| dir.sync()).map_err(|e| self.moved(e))?;
        if let Some(loads) = &mut self.loads {
            runlog::set_loads_aside(dir)?;
            loads.log = LoadLog::open(dir, &loads.experts)?;
        }
        self.log = RunLog::open(&self.directory)?;
        earlier[session..].iter().try_for_each(|record| self.log.append(record))?;
        (self.run, self.last_step, self.finished, self.failed_sessions) = (None, 0, None, 0);
        self.faults.clear();
        Ok(aside)
    }

    fn moved(&self, e: std::io::Error) -> TrainError {
        let place = self.log.path().display().to_string();
        TrainError::State { place, problem: format!("the log of another run cannot be moved aside: {e}") }
    }

    /// Which parts of the final evaluation of a run of `steps` steps an earlier session has not got to.
    pub(super) fn missing_at_end(&self, steps: u64) -> Result<Missing, TrainError> {
        if self.finished == Some(steps) {
            return Ok(Missing::default());
        }
        let log = runlog::read(&self.directory)?.records;
        // Evaluation during training leaves out the last step, so records after that step are of the final evaluation. A run that ends early
        // ends with an evaluation.
        let is_end = |r: &Record| matches!(r, Record::Step(_) | Record::EarlyStop(_));
        let last_step = log.iter().rposition(is_end).unwrap_or(0);
        let lacks = |of_kind: fn(&Record) -> bool| !log[last_step..].iter().any(of_kind);
        Ok(Missing {
            evaluation: lacks(|r| matches!(r, Record::Eval(_))),
            samples: lacks(|r| matches!(r, Record::Sample(_))),
            baseline: lacks(|r| matches!(r, Record::Baseline(_))),
            tasks: lacks(|r| matches!(r, Record::Task(_))),
        })
    }

    /// Evaluations among those `due` after `step` that the session which made the step was requested to stop.
    pub(super) fn missing_after(&self, step: u64, due: Missing) -> Result<Missing, TrainError> {
        let log = runlog::read(&self.directory)?.records;
        if !log.iter().any(|record| matches!(record, Record::Step(made) if made.step == step)) {
            return Ok(Missing::default());
        }
        let lacks = |of_kind: fn(&Record) -> Option<u64>| !log.iter().any(|r| of_kind(r) == Some(step));
        Ok(Missing {
            evaluation: due.evaluation
                && lacks(|r| if let Record::Eval(eval) = r { Some(eval.step) } else { None }),
            samples: due.samples
                && lacks(|r| if let Record::Sample(sample) = r { Some(sample.step) } else { None }),
            tasks: due.tasks && lacks(|r| if let Record::Task(task) = r { Some(task.step) } else { None }),
            baseline: false,
        })
    }
}

/// Sessions that trained and then ended without a request to stop: with an error, or, as after a crash, without a record of it.
fn failed_sessions(records: &[Record]) -> u64 {
    let (mut failed, mut trains) = (0, false);
    for record in records {
        match record {
            Record::Training(_) => failed += u64::from(std::mem::replace(&mut trains, true)),
            Record::End(end) => {
                failed += u64::from(trains && end.reason == EndReason::Failed);
                trains = false;
            }
            _ => {}
        }
    }
    failed + u64::from(trains)
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
    pub(super) tasks: bool,
}

impl Missing {
    /// Evaluations that a recipe requires after a step that is not the last.
    pub(super) fn due(config: &EvalConfig, step: u64) -> Missing {
        Missing {
            evaluation: config.is_due(step),
            samples: config.samples.is_due(step),
            tasks: config.tasks.is_due(step),
            baseline: false,
        }
    }

    /// Encodes the value for messages to other ranks.
    pub(super) fn word(self) -> u64 {
        let flags = [self.evaluation, self.samples, self.baseline, self.tasks];
        flags.iter().zip(0..).map(|(flag, at)| u64::from(*flag) << at).sum()
    }

    pub(super) fn of_word(word: u64) -> Missing {
        let has = |at: u64| word >> at & 1 == 1;
        Missing { evaluation: has(0), samples: has(1), baseline: has(2), tasks: has(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_runlog::{End, Training};

    #[test]
    fn sessions_that_were_not_asked_to_end_have_failed() {
        let (begin, end) =
            (Record::from(Training::default()), |reason| Record::from(End { reason, ..End::default() }));
        let failed =
            |records: &[&Record]| failed_sessions(&records.iter().map(|r| (*r).clone()).collect::<Vec<_>>());
        let (asked, error) = (end(EndReason::Interrupted), end(EndReason::Failed));
        assert_eq!(failed(&[]), 0);
        assert_eq!(failed(&[&begin, &asked, &begin, &end(EndReason::Finished)]), 0);
        assert_eq!(failed(&[&begin]), 1, "a crash");
        assert_eq!(failed(&[&begin, &begin, &error, &begin, &asked]), 2);
        assert_eq!(failed(&[&error, &begin, &asked]), 0, "an error before training");
    }
}

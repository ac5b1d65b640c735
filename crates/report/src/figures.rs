//! Key figures of a run, for lists and comparisons of runs.

use crate::facts::{Facts, smoothed};
use crate::section::curves::span;
use bessemer_runlog::{EndReason, Eval, Record, Task, rfc3339};
use serde::Serialize;
use std::collections::BTreeMap;

/// Key figures of one run. What the records do not tell is `None` or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunFigures {
    /// Name of the run.
    pub name: String,
    /// How the run stands, in words.
    pub status: String,
    /// Error that ended the run, if it failed.
    pub error: Option<String>,
    /// Whether a process recorded the end of its work; if not, it still works or crashed.
    pub ended: bool,
    /// Training steps finished.
    pub steps: u64,
    /// Training steps planned.
    pub steps_planned: Option<u64>,
    /// Tokens trained on.
    pub tokens: u64,
    /// Parameters of the model.
    pub parameters: Option<u64>,
    /// Size of the vocabulary.
    pub vocab_size: Option<u64>,
    /// Fingerprint of the tokenizer.
    pub tokenizer: Option<String>,
    /// Training loss at the last step, smoothed, nats a token.
    pub training_loss: Option<f64>,
    /// The last evaluation on held-out text.
    pub last_eval: Option<EvalFigures>,
    /// The evaluation on the same split with the lowest loss.
    pub best_eval: Option<EvalFigures>,
    /// Scores of tasks, and losses of components of evaluations, by name.
    pub scores: BTreeMap<String, ScoreFigures>,
    /// Mean tokens a second over all steps.
    pub tokens_per_s: Option<f64>,
    /// Mean model FLOPs utilisation over all steps, 0 to 1.
    pub mfu: Option<f64>,
    /// Seconds that processes worked on the run.
    pub wall_seconds: f64,
    /// Whether a process ended without telling, so that `wall_seconds` is the least that has passed.
    pub wall_is_least: bool,
    /// Largest memory of the process.
    pub memory_bytes: Option<u64>,
    /// Start of the first process, RFC 3339 in UTC.
    pub started_at: String,
    /// End of the last process, RFC 3339 in UTC.
    pub ended_at: String,
    /// Machine of the last process.
    pub host: String,
    /// Processor, by name.
    pub device: String,
    /// Commit that the working directory had checked out.
    pub commit: Option<String>,
}

/// A score in the first and in the last evaluation that has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ScoreFigures {
    /// Step and value of the first one; `None` if there is one alone.
    pub first: Option<(u64, f64)>,
    /// Step of the last one.
    pub step: u64,
    /// Its value.
    pub value: f64,
    /// The interval that holds 95 % of what other documents of the kind would give.
    pub interval: Option<[f64; 2]>,
}

impl ScoreFigures {
    fn add(&mut self, step: u64, value: f64, interval: Option<[f64; 2]>) {
        *self = ScoreFigures { first: self.first.or(Some((self.step, self.value))), step, value, interval };
    }
}

/// Scores of tasks ("task metric") and losses of components of evaluations ("loss on name").
fn scores(facts: &Facts<'_>) -> BTreeMap<String, ScoreFigures> {
    let mut scores: BTreeMap<String, ScoreFigures> = BTreeMap::new();
    let mut add = |name: String, step, value, interval| {
        let new = ScoreFigures { first: None, step, value, interval };
        scores.entry(name).and_modify(|score| score.add(step, value, interval)).or_insert(new);
    };
    for eval in &facts.evals {
        for component in &eval.components {
            add(format!("loss on {}", component.name), eval.step, component.loss, None);
        }
    }
    let mut tasks: Vec<&Task> = facts.tasks.clone();
    tasks.sort_by_key(|task| task.step);
    for task in tasks {
        let error = |error: f64| [task.value - 1.96 * error, task.value + 1.96 * error];
        let interval = task.interval.or(task.stderr.map(error));
        add(format!("{} {}", task.task, task.metric), task.step, task.value, interval);
    }
    scores
}

/// Key figures of one evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EvalFigures {
    /// Training steps finished.
    pub step: u64,
    /// Name of the split.
    pub split: String,
    /// Mean loss, nats a token.
    pub loss: f64,
    /// Bits per byte of text.
    pub bits_per_byte: f64,
    /// Bytes of text scored.
    pub bytes_scored: u64,
}

impl EvalFigures {
    fn new(e: &Eval) -> EvalFigures {
        EvalFigures {
            step: e.step,
            split: e.split.clone(),
            loss: e.loss,
            bits_per_byte: e.bits_per_byte,
            bytes_scored: e.bytes_scored,
        }
    }
}

impl RunFigures {
    /// The key figures of a run's records.
    pub fn new(records: &[Record]) -> RunFigures {
        RunFigures::of(&Facts::new(records))
    }

    pub(crate) fn of(facts: &Facts<'_>) -> RunFigures {
        let losses: Vec<f64> = facts.steps.iter().map(|s| s.loss).collect();
        let (steps, steps_planned) = facts.progress();
        let (first, last) = (facts.runs.first(), facts.runs.last());
        let of_last =
            |text: fn(&bessemer_runlog::Run) -> &String| last.map(|r| text(r).clone()).unwrap_or_default();
        RunFigures {
            name: of_last(|r| &r.name),
            status: facts.status().into(),
            error: facts.end.filter(|end| end.reason == EndReason::Failed).map(|end| {
                end.message
                    .clone()
                    .filter(|text| !text.is_empty())
                    .unwrap_or_else(|| "no error was recorded".into())
            }),
            ended: facts.end.is_some(),
            steps,
            steps_planned,
            tokens: facts.tokens(),
            parameters: facts.model.map(|m| m.parameters),
            vocab_size: facts.model.map(|m| m.vocab_size),
            tokenizer: facts.tokenizer.map(|t| t.fingerprint.clone()),
            training_loss: smoothed(&losses, span(losses.len())).last().copied(),
            last_eval: facts.final_eval().map(EvalFigures::new),
            best_eval: facts.best_eval().map(EvalFigures::new),
            scores: scores(facts),
            tokens_per_s: facts.mean_tokens_per_s(),
            mfu: facts.mean_mfu(),
            wall_seconds: facts.wall_seconds,
            wall_is_least: facts.wall_is_least,
            memory_bytes: facts.peak_memory(),
            started_at: first.map(|r| rfc3339(r.started_unix_s)).unwrap_or_default(),
            ended_at: facts.end.map(|e| e.ended_at.clone()).unwrap_or_default(),
            host: of_last(|r| &r.host),
            device: of_last(|r| &r.device),
            commit: last.and_then(|r| r.commit.clone()),
        }
    }
}

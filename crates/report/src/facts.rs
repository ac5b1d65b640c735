//! What the records of a run amount to: the latest of each, steps without repetitions, totals.

use bessemer_runlog::{
    Baseline, Change, Corpus, EarlyStop, End, EndReason, Eval, Fault, Measured, Model, Plan, Record, Run,
    Sample, Save, Shards, Stage, Step, Task, Tokenizer, Training, Warning,
};
use std::collections::BTreeMap;

/// The split that training reads; evaluations on another one are the ones that count.
pub(crate) const TRAIN_SPLIT: &str = "train";

/// A run as its records tell it.
#[derive(Debug, Default)]
pub(crate) struct Facts<'a> {
    /// Every start and continuation.
    pub(crate) runs: Vec<&'a Run>,
    pub(crate) model: Option<&'a Model>,
    pub(crate) training: Option<&'a Training>,
    /// The latest plan of the layout.
    pub(crate) plan: Option<&'a Plan>,
    /// Latest measurements.
    pub(crate) measured: Option<&'a Measured>,
    pub(crate) corpus: Option<&'a Corpus>,
    pub(crate) tokenizer: Option<&'a Tokenizer>,
    /// The latest per split.
    pub(crate) shards: Vec<&'a Shards>,
    /// Stages that did work, in order.
    pub(crate) stages: Vec<&'a Stage>,
    /// The latest record of each step: a resumed run repeats those after its checkpoint.
    pub(crate) steps: Vec<&'a Step>,
    /// Evaluations in order of steps, the latest of each step and split.
    pub(crate) evals: Vec<&'a Eval>,
    pub(crate) baselines: Vec<&'a Baseline>,
    pub(crate) early_stop: Option<&'a EarlyStop>,
    pub(crate) samples: Vec<&'a Sample>,
    /// Scores of tasks, the latest of each step, task and metric.
    pub(crate) tasks: Vec<&'a Task>,
    pub(crate) warnings: Vec<&'a Warning>,
    pub(crate) faults: Vec<&'a Fault>,
    /// The last record of an end, if nothing began after it.
    pub(crate) end: Option<&'a End>,
    pub(crate) resumed: u64,
    pub(crate) saves: Vec<&'a Save>,
    /// Changes of the recipe in order of steps, the latest of each step.
    pub(crate) changes: Vec<&'a Change>,
    /// Seconds by activity, of all processes, repeated steps included.
    pub(crate) spent: Spent,
    /// Seconds that processes worked on the run.
    pub(crate) wall_seconds: f64,
    /// Whether a process ended without telling, so that `wall_seconds` is what is known to have passed.
    pub(crate) wall_is_least: bool,
}

/// Seconds that the records of a run name, by activity.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) struct Spent {
    pub(crate) steps: f64,
    pub(crate) evaluations: f64,
    pub(crate) saves: f64,
    pub(crate) baselines: f64,
}

impl Spent {
    fn add(&mut self, record: &Record) {
        let (sum, seconds) = match record {
            Record::Step(r) => (&mut self.steps, r.seconds),
            Record::Eval(r) => (&mut self.evaluations, r.seconds.unwrap_or(0.0)),
            // Writing beside training takes none of its time.
            Record::Save(r) => (&mut self.saves, r.stall_seconds.unwrap_or(r.seconds)),
            Record::Baseline(r) => (&mut self.baselines, r.seconds.unwrap_or(0.0)),
            _ => return,
        };
        if seconds.is_finite() {
            *sum += seconds;
        }
    }
}

impl<'a> Facts<'a> {
    pub(crate) fn new(records: &'a [Record]) -> Facts<'a> {
        let mut facts = Facts::default();
        let mut steps = BTreeMap::new();
        let mut evals = BTreeMap::new();
        let mut clock = Clock::default();
        for record in records {
            facts.spent.add(record);
            match record {
                Record::Run(r) => {
                    clock.begin();
                    facts.runs.push(r);
                    facts.end = None;
                }
                Record::Model(r) => facts.model = Some(r),
                Record::Training(r) => facts.training = Some(r),
                Record::Plan(r) => (facts.plan, facts.measured) = (Some(r), None),
                Record::Measured(r) => facts.measured = Some(r),
                Record::Corpus(r) => facts.corpus = Some(r),
                Record::Tokenizer(r) => facts.tokenizer = Some(r),
                Record::Shards(r) => replace_or_push(&mut facts.shards, r, |a, b| a.split == b.split),
                Record::Baseline(r) => {
                    replace_or_push(&mut facts.baselines, r, |a, b| a.name == b.name && a.split == b.split);
                }
                Record::Stage(r) => {
                    clock.add(r.seconds);
                    if !r.skipped {
                        facts.stages.push(r);
                    }
                }
                Record::EarlyStop(r) => facts.early_stop = Some(r),
                Record::Step(r) => {
                    clock.add(r.seconds);
                    // A run with more patience continues.
                    facts.early_stop = facts.early_stop.filter(|stop| stop.step >= r.step);
                    steps.insert(r.step, r);
                }
                Record::Eval(r) => {
                    clock.add(r.seconds.unwrap_or(0.0));
                    evals.insert((r.step, r.split.as_str()), r);
                }
                Record::Sample(r) => {
                    replace_or_push(&mut facts.samples, r, |a, b| a.step == b.step && a.prompt == b.prompt);
                }
                Record::Task(r) => {
                    let same =
                        |a: &Task, b: &Task| (a.step, &a.task, &a.metric) == (b.step, &b.task, &b.metric);
                    replace_or_push(&mut facts.tasks, r, same);
                }
                Record::Warning(r) => facts.warnings.push(r),
                Record::Fault(r) => facts.faults.push(r),
                Record::End(r) => {
                    clock.end(r.seconds);
                    facts.end = Some(r);
                }
                Record::Resume(_) => facts.resumed += 1,
                Record::Save(r) => facts.saves.push(r),
                Record::Change(r) => replace_or_push(&mut facts.changes, r, |a, b| a.step == b.step),
                Record::SaveInterval(_) | Record::RunId(_) | Record::Other(_) => {}
            }
        }
        facts.steps = steps.into_values().collect();
        facts.evals = evals.into_values().collect();
        (facts.wall_seconds, facts.wall_is_least) = clock.finish();
        facts
    }

    /// The last evaluation on held-out text.
    pub(crate) fn final_eval(&self) -> Option<&'a Eval> {
        let held_out = self.evals.iter().rev().find(|e| e.split != TRAIN_SPLIT);
        held_out.or(self.evals.last()).copied()
    }

    /// The evaluation on held-out text with the lowest loss.
    pub(crate) fn best_eval(&self) -> Option<&'a Eval> {
        let split = &self.final_eval()?.split;
        let same = self.evals.iter().filter(|e| e.split == *split && e.loss.is_finite());
        same.min_by(|a, b| a.loss.total_cmp(&b.loss)).copied()
    }

    /// The strongest baseline on the split of the last evaluation.
    pub(crate) fn best_baseline(&self) -> Option<&'a Baseline> {
        let split = &self.final_eval()?.split;
        let same = self.baselines.iter().filter(|b| b.split == *split && b.bits_per_byte.is_finite());
        same.min_by(|a, b| a.bits_per_byte.total_cmp(&b.bits_per_byte)).copied()
    }

    /// Tokens trained on.
    pub(crate) fn tokens(&self) -> u64 {
        self.steps.last().map_or(0, |s| s.tokens)
    }

    /// Steps done and, if known, planned.
    pub(crate) fn progress(&self) -> (u64, Option<u64>) {
        (self.steps.last().map_or(0, |s| s.step), self.training.map(|t| t.steps).filter(|s| *s > 0))
    }

    /// Tokens a second over all steps, each weighted by its time.
    pub(crate) fn mean_tokens_per_s(&self) -> Option<f64> {
        let timed = || self.steps.iter().filter(|s| s.seconds > 0.0 && s.tokens_per_s.is_finite());
        let seconds: f64 = timed().map(|s| s.seconds).sum();
        let tokens: f64 = timed().map(|s| s.tokens_per_s * s.seconds).sum();
        (seconds > 0.0).then(|| tokens / seconds)
    }

    /// MFU over all steps that have one, each weighted by its time.
    pub(crate) fn mean_mfu(&self) -> Option<f64> {
        let timed = || {
            self.steps
                .iter()
                .filter_map(|s| Some((s.mfu.filter(|m| m.is_finite())?, s.seconds)))
                .filter(|(_, t)| *t > 0.0)
        };
        let seconds: f64 = timed().map(|(_, t)| t).sum();
        (seconds > 0.0).then(|| timed().map(|(m, t)| m * t).sum::<f64>() / seconds)
    }

    /// Largest memory of a step.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        self.steps.iter().filter_map(|s| s.memory_bytes).max()
    }

    /// The convention of MFU, if the run states one.
    pub(crate) fn mfu_convention(&self) -> Option<&'a str> {
        self.runs.last().and_then(|r| r.mfu_convention.as_deref())
    }

    /// How the run stands, in words.
    pub(crate) fn status(&self) -> &'static str {
        match self.end.map(|e| e.reason) {
            Some(EndReason::Finished) if self.early_stop.is_some() => {
                "finished early: the validation loss no longer fell"
            }
            Some(EndReason::Finished) => "finished",
            Some(EndReason::Interrupted) => "interrupted, can be continued",
            Some(EndReason::Failed) => "failed",
            Some(EndReason::Other) => "ended",
            None if self.runs.is_empty() => "nothing recorded",
            None => "no end recorded: still running, or crashed",
        }
    }
}

/// Keeps the latest of what is the same thing, at the place of the first.
fn replace_or_push<'a, T>(list: &mut Vec<&'a T>, new: &'a T, same: impl Fn(&T, &T) -> bool) {
    match list.iter_mut().find(|old| same(old, new)) {
        Some(old) => *old = new,
        None => list.push(new),
    }
}

/// Sums the time of processes. One that reported its end counts as what it reported; one that crashed, what its records
/// sum to.
#[derive(Debug, Default)]
struct Clock {
    total: f64,
    of_process: f64,
    running: bool,
    least: bool,
}

impl Clock {
    fn begin(&mut self) {
        if self.running {
            self.total += self.of_process;
            self.least = true;
        }
        self.of_process = 0.0;
        self.running = true;
    }

    fn add(&mut self, seconds: f64) {
        if seconds.is_finite() {
            self.of_process += seconds;
        }
    }

    fn end(&mut self, seconds: f64) {
        self.total += if seconds.is_finite() { seconds } else { self.of_process };
        self.of_process = 0.0;
        self.running = false;
    }

    fn finish(mut self) -> (f64, bool) {
        if self.running {
            self.begin();
        }
        (self.total + if self.running { 0.0 } else { self.of_process }, self.least)
    }
}

/// Smooths a series by an exponential moving average over about `span` points, and over a sixteenth of the points so
/// far where that is less, so that the steep beginning of a loss curve is not smeared. Values that are not finite stay
/// as they are, so that a divergence is seen, and do not enter the average.
pub(crate) fn smoothed(values: &[f64], span: f64) -> Vec<f64> {
    let (mut average, mut seen) = (0.0, 0.0);
    let each = values.iter().map(|v| {
        if !v.is_finite() {
            return *v;
        }
        // The first value weighs 1, so that the average starts there and not at 0.
        average += (v - average) / span.max(1.0).min(1.0 + seen / 16.0);
        seen += 1.0;
        average
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f64) -> Record {
        Step { step, tokens: step * 10, loss, seconds: 2.0, tokens_per_s: 5.0, ..Default::default() }.into()
    }

    fn end(seconds: f64) -> Record {
        End { seconds, ..Default::default() }.into()
    }

    #[test]
    fn a_resumed_run_counts_each_step_once_and_each_process_in_full() {
        let run = || Record::from(Run::default());
        let records = [run(), step(1, 4.0), step(2, 3.0), run(), step(2, 2.5), step(3, 2.0), end(9.0)];
        let f = Facts::new(&records);
        assert_eq!(f.steps.iter().map(|s| s.loss).collect::<Vec<_>>(), [4.0, 2.5, 2.0]);
        assert_eq!((f.wall_seconds, f.wall_is_least), (4.0 + 9.0, true));
        assert_eq!((f.tokens(), f.mean_tokens_per_s()), (30, Some(5.0)));
        assert_eq!(f.status(), "finished");
        assert_eq!(Facts::new(&records[..6]).status(), "no end recorded: still running, or crashed");
        assert_eq!(Facts::new(&records[..6]).wall_seconds, 8.0);
        let told = [run(), step(1, 1.0), end(5.0)];
        let f = Facts::new(&told);
        assert_eq!((f.wall_seconds, f.wall_is_least), (5.0, false));
    }

    #[test]
    fn a_run_that_ended_early_is_so_until_it_continues() {
        let stop = EarlyStop { step: 2, best_step: 1, best_loss: 2.0, evaluations: 1 }.into();
        let records = [step(1, 4.0), step(2, 3.0), stop, end(4.0), step(3, 2.0), end(2.0)];
        assert_eq!(Facts::new(&records[..4]).status(), "finished early: the validation loss no longer fell");
        assert_eq!(Facts::new(&records).status(), "finished");
    }

    #[test]
    fn the_evaluation_that_counts_is_the_last_on_held_out_text() {
        let eval = |step, split: &str, bits_per_byte| {
            Record::from(Eval { step, split: split.into(), bits_per_byte, ..Default::default() })
        };
        let base = |split: &str, bits_per_byte| {
            Record::from(Baseline {
                name: format!("{bits_per_byte}"),
                split: split.into(),
                bits_per_byte,
                ..Default::default()
            })
        };
        let records = [
            eval(1, "validation", 3.0),
            eval(2, "validation", 2.0),
            eval(2, "train", 1.0),
            base("validation", 2.5),
            base("validation", 2.25),
            base("train", 0.5),
            base("validation", f64::NAN),
        ];
        let f = Facts::new(&records);
        assert_eq!(f.final_eval().unwrap().bits_per_byte, 2.0);
        assert_eq!(f.best_baseline().unwrap().bits_per_byte, 2.25);
        assert!(Facts::new(&[]).final_eval().is_none() && Facts::new(&[]).best_baseline().is_none());
    }

    #[test]
    fn smoothing_keeps_constants_and_shows_divergence() {
        assert!(smoothed(&[2.0; 50], 10.0).iter().all(|v| (v - 2.0).abs() < 1e-12));
        assert_eq!(smoothed(&[3.0, 1.0], 1.0), [3.0, 1.0]);
        let s = smoothed(&[1.0, f64::NAN, 1.0, f64::INFINITY], 5.0);
        assert!(s[1].is_nan() && s[3].is_infinite() && (s[2] - 1.0).abs() < 1e-12);
        let noisy: Vec<f64> = (0..200).map(|i| f64::from(i % 2)).collect();
        assert!(smoothed(&noisy, 40.0)[100..].iter().all(|v| (v - 0.5).abs() < 0.05));
    }
}

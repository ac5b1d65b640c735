//! Requests to stop while a run evaluates: the evaluation ends without a record, and the next session makes it.

use crate::place::recipe;
use crate::run::{Run, cpu, numbers};
use bessemer_recipe::Recipe;
use bessemer_runlog::{EndReason, Record};
use bessemer_train::{Activity, Observer, Outcome, Trainer};
use std::sync::atomic::{AtomicBool, Ordering};

/// Moment of a request.
#[derive(Clone, Copy, PartialEq)]
enum Request {
    /// When evaluations of a step begin.
    Begin,
    /// At the first progress of this work.
    Progress(&'static str),
}

/// Collects the records of a rank, and requests a stop.
struct Stopper<'a> {
    records: Vec<Record>,
    request: Option<Request>,
    stop: &'a AtomicBool,
}

impl Observer for Stopper<'_> {
    fn record(&mut self, record: &Record) {
        self.records.push(record.clone());
    }
    fn message(&mut self, _: &str) {}
    fn progress(&mut self, what: &str, _: u64, _: u64) {
        let requested = matches!(self.request, Some(Request::Progress(work)) if work == what);
        self.stop.fetch_or(requested, Ordering::Relaxed);
    }
    fn begins(&mut self, activity: Activity, _: u64) {
        let requested = activity == Activity::Evaluating && self.request == Some(Request::Begin);
        self.stop.fetch_or(requested, Ordering::Relaxed);
    }
}

/// A session of ranks with stop flags of their own, as processes have; the request is sent to rank `asked`.
fn session(
    run: &Run,
    recipe: &Recipe,
    ranks: usize,
    (asked, request): (usize, Option<Request>),
) -> (Outcome, Vec<Record>) {
    let flags: Vec<AtomicBool> = (0..ranks).map(|_| AtomicBool::new(false)).collect();
    let mut ended = run.on_ranks(ranks, &|rank, world| {
        let stop = &flags[rank];
        let mut watch = Stopper { records: Vec::new(), request: request.filter(|_| rank == asked), stop };
        let mut trainer = Trainer::on_rank(run.input(recipe), cpu(), Box::new(world))?;
        trainer.run(&mut watch, stop)?;
        let outcome = trainer.final_evaluation(1, &mut watch, stop)?;
        let finished = outcome == Outcome::Finished;
        let reason = if finished { EndReason::Finished } else { EndReason::Interrupted };
        trainer.close().end(reason, None, 0.0)?;
        Ok((outcome, watch.records))
    });
    ended.swap_remove(0).unwrap()
}

#[test]
fn an_evaluation_that_a_request_has_ended_is_made_by_the_next_session() {
    let recipe = recipe(&["train.steps=6", "eval.every_steps=3", "eval.at_end=true"]);
    for ranks in [1, 2] {
        let (outcome, whole) = session(&Run::new(false), &recipe, ranks, (0, None));
        assert_eq!(outcome, Outcome::Finished);
        let run = Run::new(false);
        let request = (ranks - 1, Some(Request::Progress("validation")));
        let (outcome, mut stopped) = session(&run, &recipe, ranks, request);
        assert_eq!(outcome, Outcome::Stopped);
        assert_eq!(numbers(&stopped).last().unwrap().0, 3, "{stopped:?}");
        // The evaluation that the next session begins with is ended as well.
        let (outcome, none) = session(&run, &recipe, ranks, request);
        assert_eq!((outcome, numbers(&none)), (Outcome::Stopped, Vec::new()));
        let (outcome, rest) = session(&run, &recipe, ranks, (0, None));
        assert_eq!(outcome, Outcome::Finished);
        stopped.extend(rest);
        assert_eq!(numbers(&stopped), numbers(&whole), "{ranks} ranks");
    }
}

#[test]
fn texts_and_the_baseline_end_on_request_too() {
    let sets = [
        "train.steps=4",
        "eval.samples.every_steps=2",
        "eval.samples.prompts=[\"the \"]",
        "eval.samples.generate.max_tokens=4",
        "eval.ngram.enabled=true",
    ];
    let recipe = recipe(&sets);
    let count = |records: &[Record]| {
        let samples = records.iter().filter(|r| matches!(r, Record::Sample(_))).count();
        (samples, records.iter().filter(|r| matches!(r, Record::Baseline(_))).count())
    };
    for ranks in [1, 2] {
        let run = Run::new(false);
        let begin = session(&run, &recipe, ranks, (0, Some(Request::Begin)));
        assert_eq!((begin.0, count(&begin.1)), (Outcome::Stopped, (0, 0)));
        let baseline = session(&run, &recipe, ranks, (0, Some(Request::Progress("n-gram baseline"))));
        assert_eq!((baseline.0, count(&baseline.1)), (Outcome::Stopped, (1, 0)));
        let rest = session(&run, &recipe, ranks, (0, None));
        assert_eq!((rest.0, count(&rest.1)), (Outcome::Finished, (0, 1)));
    }
}

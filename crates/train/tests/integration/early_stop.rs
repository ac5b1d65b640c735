//! Runs that end when their validation loss no longer falls.

use crate::place::recipe;
use crate::run::{Run, cpu, numbers};
use bessemer_recipe::Recipe;
use bessemer_runlog::{EarlyStop, Record};
use bessemer_train::{Trainer, TrainerInput, checkpoints};

fn session(run: &Run, recipe: &Recipe, ranks: usize, stop_after: Option<u64>) -> Vec<Record> {
    run.session(recipe, ranks, stop_after, &|_| cpu()).swap_remove(0).unwrap()
}

fn early(records: &[Record]) -> Vec<EarlyStop> {
    let of = |record: &Record| if let Record::EarlyStop(stop) = record { Some(stop.clone()) } else { None };
    records.iter().filter_map(of).collect()
}

/// Steps, and evaluations as (step, tokens that were scored).
fn counts(records: &[Record]) -> (usize, Vec<(u64, u64)>) {
    let evaluation = |record: &Record| match record {
        Record::Eval(eval) => Some((eval.step, eval.tokens_scored)),
        _ => None,
    };
    let steps = records.iter().filter(|record| matches!(record, Record::Step(_))).count();
    (steps, records.iter().filter_map(evaluation).collect())
}

#[test]
fn a_run_ends_when_its_validation_loss_no_longer_falls_however_often_it_is_stopped() {
    // No loss is lower by so much: the first one stays the lowest.
    let sets = [
        "train.steps=20",
        "eval.every_steps=2",
        "eval.max_tokens=64",
        "eval.at_end=true",
        "train.early_stop.patience=3",
        "train.early_stop.min_delta=100",
    ];
    let recipe = recipe(&sets);
    let mut reference: Option<Vec<Record>> = None;
    for ranks in [1, 2] {
        let run = Run::new(false);
        let whole = session(&run, &recipe, ranks, None);
        let (steps, evaluations) = counts(&whole);
        let at: Vec<u64> = evaluations.iter().map(|e| e.0).collect();
        assert_eq!((steps, &at[..]), (8, &[2, 4, 6, 8, 8][..]));
        // The whole split is evaluated at the end, as of a run that makes all steps.
        assert!(evaluations[4].1 > evaluations[3].1, "{evaluations:?}");
        let [EarlyStop { step: 8, best_step: 2, evaluations: 3, best_loss }] = early(&whole)[..] else {
            panic!("{:?}", early(&whole))
        };
        assert!(whole.iter().any(|r| matches!(r, Record::Eval(e) if e.step == 2 && e.loss == best_loss)));
        let saved = |run: &Run| {
            let loaded = checkpoints(&run.dir).latest_valid().unwrap().unwrap().loaded;
            let names: Vec<String> = loaded.manifest().tensors.iter().map(|t| t.name.clone()).collect();
            let tensors: Vec<_> = names.iter().map(|name| loaded.read_tensor(name).unwrap()).collect();
            (loaded.manifest().step, tensors)
        };
        assert_eq!(saved(&run).0, 8);
        // Nothing follows.
        assert_eq!(counts(&session(&run, &recipe, ranks, None)), (0, Vec::new()));

        // Stopped between and at evaluations, and when it would have ended.
        let stopped = Run::new(false);
        let mut parts = Vec::new();
        for stop in [Some(3), Some(4), Some(8), None] {
            parts.extend(session(&stopped, &recipe, ranks, stop));
        }
        assert_eq!(numbers(&parts), numbers(&whole), "{ranks} ranks");
        assert_eq!(early(&parts), early(&whole));
        assert_eq!(saved(&stopped), saved(&run));
        if let Some(reference) = &reference {
            assert_eq!(early(reference)[0].step, early(&whole)[0].step);
        }
        reference.get_or_insert(whole);

        // With more patience the run continues.
        let mut patient = recipe.clone();
        patient.train.early_stop.patience = 4;
        let more = session(&run, &patient, ranks, None);
        assert_eq!((counts(&more).0, early(&more)[0].step), (2, 10));
    }
}

#[test]
fn a_run_whose_loss_falls_makes_all_steps() {
    let recipe = recipe(&["train.steps=12", "eval.every_steps=2", "train.early_stop.patience=6"]);
    let records = session(&Run::new(false), &recipe, 1, None);
    assert_eq!((counts(&records).0, early(&records)), (12, Vec::new()));
    let run = Run::new(false);
    let input = TrainerInput { validation: None, ..run.input(&recipe) };
    let refused = Trainer::new(input, cpu()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("train.early_stop.patience = 6: wanted a validation split"), "{refused}");
}

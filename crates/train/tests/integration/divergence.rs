//! A device that computes values that are not finite: the checkpoints that stay, the error message, and the way back.

use crate::device::{Device, Launch};
use crate::place::recipe;
use crate::run::{Run, cpu};
use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use bessemer_tensor::Backend;
use bessemer_tensor::op::Op;
use bessemer_train::{TrainState, checkpoints};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Faults of the device, shared with the test that watches the run.
#[derive(Debug, Default)]
struct Fault {
    /// Number of norms of gradients to come that are not a number.
    norms: AtomicU64,
    /// Number of updates of parameters to come that are not a number.
    updates: AtomicU64,
}

/// Takes one from a counter; false at 0.
fn take(counter: &AtomicU64) -> bool {
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
}

/// A device with a fault.
fn faulty(fault: Arc<Fault>) -> Box<dyn Backend> {
    let launch: Launch = Box::new(move |inner, stream, op| {
        inner.launch(stream, op)?;
        match op {
            Op::SumSquares(op) if take(&fault.norms) => inner.write_f32(op.out, &[f32::NAN]),
            Op::AdamW(op) if take(&fault.updates) => {
                inner.write_f32(op.param, &vec![f32::INFINITY; op.param.len()])
            }
            _ => Ok(()),
        }
    });
    Box::new(Device { inner: cpu(), launch })
}

/// Trains on so many ranks. After each step `begin` sets the faults of each device from there on.
fn train(run: &Run, recipe: &Recipe, ranks: usize, begin: &(dyn Fn(u64, &Fault) + Sync)) -> Ended {
    let faults: Vec<Arc<Fault>> = (0..ranks).map(|_| Arc::default()).collect();
    let after = |step: u64| faults.iter().for_each(|fault| begin(step, fault));
    let backend = |rank: usize| faulty(Arc::clone(&faults[rank]));
    let mut ended = Ended { warnings: Vec::new(), steps: Vec::new(), error: None };
    for result in run.watched(recipe, ranks, (None, &after), &backend) {
        match result {
            Ok(records) => {
                for record in records {
                    match record {
                        Record::Warning(w) => ended.warnings.push(w.message),
                        Record::Step(s) => ended.steps.push(s.step),
                        _ => {}
                    }
                }
            }
            // Keeps the error of the first rank, which has the paths of files.
            Err(e) => drop(ended.error.get_or_insert(e.to_string())),
        }
    }
    ended
}

#[derive(Debug)]
struct Ended {
    warnings: Vec<String>,
    steps: Vec<u64>,
    error: Option<String>,
}

fn steps(run: &Run) -> Vec<u64> {
    checkpoints(&run.dir).list().unwrap().iter().map(|c| c.step).collect()
}

const SETS: [&str; 4] = ["train.steps=48", "save.every_steps=4", "save.keep_last=1", "train.spike_window=8"];

fn with(more: &[&str]) -> Recipe {
    recipe(&[&SETS[..], more].concat())
}

#[test]
fn healthy_checkpoints_stay_while_steps_are_broken_and_the_error_names_the_last_of_them() {
    let run = Run::new(false);
    let ended = train(&run, &with(&[]), 1, &|step, fault| {
        if step == 14 {
            fault.norms.store(u64::MAX, Ordering::Relaxed);
        }
    });
    let error = ended.error.unwrap();
    for part in ["step 34", "20 steps in a row", "last healthy checkpoint", "step-00000012", "rollback"] {
        assert!(error.contains(part), "wanted {part:?} in {error}");
    }
    // No checkpoint was removed since step 12, and one from before the look-back exists as well.
    let left = steps(&run);
    assert!([4, 8, 12].iter().any(|old| left.contains(old) && old + 8 <= 14), "{left:?}");
    assert!([12, 16, 20, 24, 28, 32].iter().all(|s| left.contains(s)), "{left:?}");
    checkpoints(&run.dir).load(12).unwrap();
}

#[test]
fn a_rollback_goes_on_behind_what_broke_the_run_and_ends_it_whole() {
    for ranks in [1, 2] {
        let run = Run::new(false);
        let recipe = with(&["train.on_divergence=rollback", "parallel.data=zero1"]);
        let begun = AtomicU64::new(0);
        let ended = train(&run, &recipe, ranks, &|step, fault| {
            // Once only: when the run repeats the step, the device is sound.
            if step == 14 && begun.fetch_add(1, Ordering::Relaxed) < ranks as u64 {
                fault.norms.store(u64::MAX, Ordering::Relaxed);
            }
            if step == 33 {
                fault.norms.store(0, Ordering::Relaxed);
            }
        });
        // The last of the 20 steps is well again on this device, so the streak ends by itself.
        assert_eq!(ended.error, None, "{ended:?}");
        assert!(!ended.warnings.iter().any(|w| w.contains("rolled back")), "{:?}", ended.warnings);

        let run = Run::new(false);
        let begun = AtomicU64::new(0);
        let ended = train(&run, &recipe, ranks, &|step, fault| {
            if step == 14 && begun.fetch_add(1, Ordering::Relaxed) < ranks as u64 {
                fault.norms.store(u64::MAX, Ordering::Relaxed);
            }
            // After the rollback to step 12.
            if step == 13 {
                fault.norms.store(0, Ordering::Relaxed);
            }
        });
        let back: Vec<_> = ended.warnings.iter().filter(|w| w.contains("rolled back to step 12")).collect();
        assert_eq!(back.len(), 1, "{ended:?}");
        assert!(back[0].contains("step 34") && back[0].contains("rollback 1 of 3"), "{back:?}");
        // The step after the rollback was still broken; the run ends all the same, with every step in its log.
        assert_eq!(ended.error, None);
        assert_eq!(ended.steps.last(), Some(&48));
        let last = checkpoints(&run.dir).load(48).unwrap();
        let state = TrainState::of(last.manifest()).unwrap();
        assert_eq!(state.spikes.passed_over, Some(22 * 8), "22 steps of 8 sequences");
        assert_eq!(state.spikes.rollback.unwrap().to, 12);
    }
}

/// Flips a byte of the tensors in a checkpoint.
fn damage(run: &Run, step: u64) {
    let files = std::fs::read_dir(checkpoints(&run.dir).path(step)).unwrap().map(|f| f.unwrap().path());
    let path = files.into_iter().find(|f| f.extension().is_some_and(|e| e == "safetensors")).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_rollback_names_a_damaged_checkpoint_and_takes_the_next_older_one() {
    let begun = AtomicU64::new(0);
    let run = Run::new(false);
    let ended = train(
        &run,
        &with(&["train.on_divergence=rollback", "save.keep_last=3", "save.async=off"]),
        1,
        &|step, fault| {
            if step == 14 && begun.fetch_add(1, Ordering::Relaxed) == 0 {
                fault.norms.store(u64::MAX, Ordering::Relaxed);
                damage(&run, 12);
            }
            if step == 9 {
                fault.norms.store(0, Ordering::Relaxed);
            }
        },
    );
    assert_eq!(ended.error, None, "{ended:?}");
    let said = |part: &str| ended.warnings.iter().filter(|w| w.contains(part)).count();
    assert_eq!(said("rolled back to step 8"), 1, "{ended:?}");
    assert_eq!(said("step-00000012 was skipped"), 1, "{ended:?}");

    let run = Run::new(false);
    let ended = train(
        &run,
        &with(&["train.on_divergence=rollback", "save.keep_last=3", "save.async=off"]),
        1,
        &|step, fault| {
            if step == 14 {
                fault.norms.store(u64::MAX, Ordering::Relaxed);
                steps(&run).into_iter().for_each(|step| damage(&run, step));
            }
        },
    );
    let error = ended.error.unwrap();
    assert!(error.contains("no usable checkpoint") && error.contains("step-00000012"), "{error}");
}

#[test]
fn a_rewind_names_a_damaged_checkpoint_and_takes_the_next_older_one_or_ends_the_run() {
    // Damage comes right after a step.
    let recipe = recipe(&[
        "save.async=off",
        "save.every_steps=2",
        "save.keep_last=3",
        "train.spike_action=rewind",
        "train.spike_sigma=1.5",
        "train.spike_window=8",
    ]);
    let backs = |ended: &Ended| -> Vec<String> {
        ended.warnings.iter().filter(|w| w.contains("rolled back to step")).cloned().collect()
    };
    let number = |text: &str, before: &str| -> u64 {
        let rest = text.split(before).nth(1).unwrap();
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let run = Run::new(true);
    let whole = train(&run, &recipe, 1, &|_, _| ());
    let first = backs(&whole).first().expect("a spike").clone();
    let (spike, to) = (number(&first, "step "), number(&first, "rolled back to step "));
    let damaging = |all: bool| {
        let (run, begun) = (Run::new(true), AtomicU64::new(0));
        let ended = train(&run, &recipe, 1, &|step, _| {
            if step + 1 == spike && begun.fetch_add(1, Ordering::Relaxed) == 0 {
                let wrong = steps(&run).into_iter().filter(|step| all || *step == to);
                wrong.for_each(|step| damage(&run, step));
            }
        });
        (run, ended)
    };
    let (_, ended) = damaging(false);
    let back = backs(&ended).first().cloned().unwrap_or_default();
    assert_eq!((number(&back, "step "), number(&back, "rolled back to step ")), (spike, to - 2), "{ended:?}");
    let remark = format!("step-{to:08} was skipped");
    assert!(ended.warnings.iter().any(|w| w.contains(&remark)), "{ended:?}");
    let (_, ended) = damaging(true);
    let error = ended.error.unwrap();
    assert!(error.contains("no usable checkpoint") && error.contains(&format!("step-{to:08}")), "{error}");
}

#[test]
fn a_run_that_diverges_again_and_again_goes_back_further_and_gives_up_in_the_end() {
    let run = Run::new(false);
    let ended = train(&run, &with(&["train.on_divergence=rollback"]), 1, &|step, fault| {
        if step == 14 {
            fault.norms.store(u64::MAX, Ordering::Relaxed);
        }
        if step < 14 {
            fault.norms.store(0, Ordering::Relaxed);
        }
    });
    let error = ended.error.unwrap();
    assert!(error.contains("last healthy checkpoint"), "{error}");
    // The warnings that the log kept are after the last rollback.
    let log = bessemer_runlog::read(&run.dir).unwrap();
    let text = format!("{:?}", log.records);
    assert!(text.contains("rollback 3 of 3"), "{text}");
    checkpoints(&run.dir).latest_valid().unwrap().unwrap();
}

#[test]
fn a_save_of_broken_parameters_is_refused_by_name_and_may_roll_back() {
    for ranks in [1, 2] {
        let layout = "parallel.data=zero2";
        let broken = |begun: &AtomicU64, step: u64, fault: &Fault| {
            if step == 15 && begun.fetch_add(1, Ordering::Relaxed) < ranks as u64 {
                fault.updates.store(1, Ordering::Relaxed);
            }
        };
        let (run, begun) = (Run::new(false), AtomicU64::new(0));
        let ended = train(&run, &with(&[layout]), ranks, &|step, fault| broken(&begun, step, fault));
        let error = ended.error.unwrap();
        for part in ["step 16", "holds inf at element", "last healthy checkpoint", "step-00000012"] {
            assert!(error.contains(part), "{ranks} ranks: wanted {part:?} in {error}");
        }
        assert_eq!(steps(&run).last(), Some(&12), "no checkpoint of step 16");

        let (run, begun) = (Run::new(false), AtomicU64::new(0));
        let recipe = with(&[layout, "train.on_divergence=rollback"]);
        let ended = train(&run, &recipe, ranks, &|step, fault| broken(&begun, step, fault));
        assert_eq!(ended.error, None);
        let back: Vec<_> = ended.warnings.iter().filter(|w| w.contains("rolled back to step 12")).collect();
        assert_eq!(back.len(), 1, "{ended:?}");
        assert_eq!(steps(&run).last(), Some(&48));
    }
}

#[test]
fn the_best_by_validation_loss_are_saved_and_kept() {
    let run = Run::new(true);
    let recipe = recipe(&[
        "train.steps=48",
        "save.every_steps=0",
        "save.every_seconds=0",
        "save.keep_last=1",
        "save.keep_best=2",
        "train.spike_window=8",
        "eval.every_steps=5",
    ]);
    let records = run.session(&recipe, 1, None, &|_| cpu()).remove(0).unwrap();
    let mut losses: Vec<(f64, u64)> = records
        .iter()
        .filter_map(|r| match r {
            Record::Eval(e) if e.step < 48 => Some((e.loss, e.step)),
            _ => None,
        })
        .collect();
    losses.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(losses.len(), 9);
    let left = steps(&run);
    for (loss, step) in &losses[..2] {
        assert!(left.contains(step), "step {step} with loss {loss} is gone: {left:?}");
    }
    let state = TrainState::of(checkpoints(&run.dir).load(48).unwrap().manifest()).unwrap();
    assert_eq!(state.best.iter().map(|b| b.1).collect::<Vec<_>>(), [losses[0].0, losses[1].0]);
}

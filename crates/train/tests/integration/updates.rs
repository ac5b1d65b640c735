//! Steps whose update is skipped: counters of updates do not count them, whether or not the run was stopped.

use crate::device::{Device, Launch};
use crate::place::{STEPS, recipe};
use crate::run::{Run, cpu};
use bessemer_recipe::{Recipe, Rerun};
use bessemer_tensor::op::{AdamW, Op};
use bessemer_tensor::{Backend, View};
use bessemer_train::{TrainState, checkpoints};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Steps whose gradient norm is not a number.
const SKIPPED: [u64; 2] = [7, 10];

/// One parameter of the AdamW of PyTorch, in f64: its state advances only where an update is applied.
#[derive(Debug, Default)]
struct Reference {
    p: Vec<f64>,
    m: Vec<f64>,
    v: Vec<f64>,
    step: i32,
}

impl Reference {
    /// `torch.optim.AdamW` without amsgrad, at rate `lr`.
    fn update(&mut self, gradient: &[f32], op: &AdamW, lr: f64) {
        self.step += 1;
        let (b1, b2) = (f64::from(op.beta1), f64::from(op.beta2));
        let (c1, c2) = (1.0 - b1.powi(self.step), 1.0 - b2.powi(self.step));
        let moments = self.m.iter_mut().zip(&mut self.v);
        for ((p, (m, v)), g) in self.p.iter_mut().zip(moments).zip(gradient) {
            let g = f64::from(*g);
            *p *= 1.0 - lr * f64::from(op.weight_decay);
            *m = b1 * *m + (1.0 - b1) * g;
            *v = b2 * *v + (1.0 - b2) * g * g;
            *p -= lr / c1 * *m / ((*v / c2).sqrt() + f64::from(op.eps));
        }
    }
}

/// References of a rank by the place of their parameter in memory.
type References = Mutex<HashMap<(u32, usize), Reference>>;

fn read(backend: &mut dyn Backend, view: View) -> Vec<f32> {
    let mut values = vec![0.0; view.len()];
    backend.read_f32(view, &mut values).unwrap();
    values
}

/// Holds a parameter against its reference, and updates the reference. The first update adopts the parameter's value.
fn follow(references: &References, backend: &mut dyn Backend, op: &AdamW) {
    let (param, gradient) = (read(backend, op.param), read(backend, op.grad));
    let mut references = references.lock().unwrap();
    let reference = references.entry((op.param.buffer.id, op.param.offset)).or_insert_with(|| Reference {
        p: param.iter().map(|p| f64::from(*p)).collect(),
        m: vec![0.0; param.len()],
        v: vec![0.0; param.len()],
        step: 0,
    });
    for (found, wanted) in param.iter().zip(&reference.p) {
        let apart = (f64::from(*found) - wanted).abs();
        assert!(apart < 1e-5, "after {} updates {found}, wanted {wanted}", reference.step);
    }
    reference.update(&gradient, op, LR);
}

/// Sessions of one run that end after the steps in `stops`, and at its end. In the steps of [`SKIPPED`] the gradient norm of
/// rank 0 is not a number. `references` has one map a rank where AdamW is to be followed.
fn train(run: &Run, recipe: &Recipe, ranks: usize, stops: &[u64], references: &[Arc<References>]) {
    // Computed again, the step would be right.
    let mut recipe = recipe.clone();
    recipe.train.integrity.rerun = Rerun::Off;
    let broken = Arc::new(AtomicBool::new(false));
    for stop in stops.iter().map(|s| Some(*s)).chain([None]) {
        let after = |step: u64| {
            broken.fetch_or(SKIPPED.contains(&(step + 1)), Ordering::Relaxed);
        };
        let results = run.watched(&recipe, ranks, (stop, &after), &|rank| {
            let (broken, references) = (Arc::clone(&broken), references.get(rank).cloned());
            let launch: Launch = Box::new(move |inner, stream, op| {
                if let (Op::AdamW(op), Some(references)) = (op, &references) {
                    follow(references, inner, op);
                }
                inner.launch(stream, op)?;
                match op {
                    Op::SumSquares(op) if rank == 0 && broken.swap(false, Ordering::Relaxed) => {
                        inner.write_f32(op.out, &[f32::NAN])
                    }
                    _ => Ok(()),
                }
            });
            Box::new(Device { inner: cpu(), launch })
        });
        results.into_iter().for_each(|rank| drop(rank.unwrap()));
    }
    let last = checkpoints(&run.dir).load(STEPS).unwrap();
    let state = TrainState::of(last.manifest()).unwrap();
    assert_eq!((state.step, state.updates()), (STEPS, STEPS - SKIPPED.len() as u64));
}

const PLAIN: [&str; 3] = ["optim.schedule=constant", "optim.warmup_fraction=0", "optim.clip=0"];

/// Rate of the recipe.
const LR: f64 = 1e-2;

#[test]
fn bias_corrections_of_adamw_are_those_of_pytorch_over_skipped_steps() {
    for (ranks, sets) in [(1, &PLAIN[..]), (2, &[&PLAIN[..], &["parallel.data=zero1"]].concat())] {
        let references: Vec<Arc<References>> = (0..ranks).map(|_| Arc::default()).collect();
        train(&Run::new(false), &recipe(sets), ranks, &[], &references);
        for of_rank in references {
            let of_rank = of_rank.lock().unwrap();
            let updates = STEPS as i32 - SKIPPED.len() as i32;
            assert!(!of_rank.is_empty() && of_rank.values().all(|r| r.step == updates));
        }
    }
}

/// Stopped after a skipped step, between the two, and before the second.
#[test]
fn a_run_that_is_stopped_around_skipped_steps_ends_with_the_bits_of_one_that_is_not() {
    for sets in [
        &["optim.optimizer=adamw"][..],
        &["optim.optimizer=adafactor", "optim.adafactor.relative_step=true"],
        &["optim.optimizer=kfac", "optim.kfac.curvature_every=3", "optim.kfac.inverse_every=3"],
    ] {
        let (whole, parts) = (Run::new(false), Run::new(false));
        train(&whole, &recipe(sets), 1, &[], &[]);
        train(&parts, &recipe(sets), 1, &[7, 8, 9], &[]);
        assert!(whole.tensors() == parts.tensors(), "{sets:?}");
    }
}

/// Launches of each step of a run on one rank, after its first steps.
fn launches(sets: &[&str]) -> Vec<Vec<Op>> {
    let (now, steps) = (Arc::new(Mutex::new(Vec::new())), Mutex::new(Vec::new()));
    let after = |_: u64| steps.lock().unwrap().push(std::mem::take(&mut *now.lock().unwrap()));
    let results = Run::new(false).watched(&recipe(sets), 1, (None, &after), &|_| {
        let now = Arc::clone(&now);
        let launch: Launch = Box::new(move |inner, stream, op| {
            now.lock().unwrap().push(op.clone());
            inner.launch(stream, op)
        });
        Box::new(Device { inner: cpu(), launch })
    });
    results.into_iter().for_each(|rank| drop(rank.unwrap()));
    steps.into_inner().unwrap().split_off(1)
}

/// Rate, clip factor, bias corrections, decays, loss scale and dropout change from step to step; the lists do not.
#[test]
fn every_step_launches_the_same_operators() {
    for optimizer in ["adamw", "sgd", "lion", "adafactor", "muon"] {
        let optimizer = format!("optim.optimizer={optimizer}");
        let sets =
            [optimizer.as_str(), "model.dropout=0.1", "train.steps=6", "train.loss_scale.mode=dynamic"];
        let steps = launches(&sets);
        assert_eq!(steps.len(), 5, "{optimizer}");
        assert!(steps[0].iter().any(|op| matches!(op, Op::Dropout(_))), "{optimizer}");
        for (step, ops) in steps.iter().enumerate() {
            let differs = ops.iter().zip(&steps[0]).find(|(a, b)| a != b);
            assert!(differs.is_none() && ops.len() == steps[0].len(), "{optimizer}, {step}: {differs:?}");
        }
    }
}

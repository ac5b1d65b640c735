//! Runs that begin with the parameters of a checkpoint (`train.init`).

use crate::place::{STEPS, recipe};
use crate::run::{Run, Watch, cpu};
use bessemer_checkpoint::{Latest, TensorSource, TensorSpec};
use bessemer_recipe::Recipe;
use bessemer_runlog::{Record, Step};
use bessemer_shards::{ShardSet, ShardSetWriter, SplitMeta};
use bessemer_train::{OtherCheckpoints, TrainError, TrainState, Trainer, checkpoints};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One long document in its order: sample n is tokens 16 n to 16 n + 16.
const IN_ORDER: &[&str] = &["loader.shuffle=false", "optim.warmup_steps=3"];

fn with(sets: &[&str]) -> Recipe {
    recipe(&[IN_ORDER, sets].concat())
}

/// A run on the data of `run` after its first `samples` samples.
fn behind(run: &Run, samples: u64) -> Run {
    let (mut new, first) = (Run::new(false), 16 * samples);
    let mut tokens = vec![0; (run.train.token_count() - first) as usize];
    run.train.read(first, &mut tokens).unwrap();
    let meta = SplitMeta {
        split: "train".into(),
        vocab_size: run.tokenizer.vocab_size() as u32,
        tokenizer: run.tokenizer.fingerprint().parse().unwrap(),
    };
    let dir = new.dir.join("behind");
    let mut writer = ShardSetWriter::create(&dir, meta, 1 << 20).unwrap();
    writer.push_document([7; 16], tokens.len() as u64, &tokens).unwrap();
    writer.finish().unwrap();
    new.train = Arc::new(ShardSet::open(&dir, "train").unwrap());
    new
}

/// The checkpoint of a step of the run in a directory.
fn saved(run: &std::path::Path, step: u64) -> Result<Latest, TrainError> {
    Ok(Latest { loaded: checkpoints(run).load_lazily(step)?, skipped: Vec::new() })
}

fn session(
    run: &Run,
    recipe: &Recipe,
    ranks: usize,
    stop_after: Option<u64>,
    open: &(dyn Fn() -> Result<Latest, TrainError> + Sync),
) -> Vec<Result<Vec<Record>, TrainError>> {
    let flag = [AtomicBool::new(false)];
    run.on_ranks(ranks, &|_, world| {
        let mut watch = Watch { records: Vec::new(), stop_after, stop: &flag, after: &|_| () };
        let others = OtherCheckpoints { initial: Some(open), ..Default::default() };
        let mut trainer = Trainer::on_rank_from(run.input(recipe), cpu(), Box::new(world), others)?;
        trainer.run(&mut watch, &flag[0])?;
        Ok(watch.records)
    })
}

fn first(results: Vec<Result<Vec<Record>, TrainError>>) -> Vec<Record> {
    results.into_iter().map(|rank| rank.unwrap()).next().unwrap()
}

fn steps(records: &[Record]) -> Vec<Step> {
    records.iter().filter_map(|r| if let Record::Step(s) = r { Some(s.clone()) } else { None }).collect()
}

/// Everything is kept, and the data are those after the checkpoint: the second half of one run, to the bit.
#[test]
fn with_everything_kept_and_the_next_data_a_run_has_the_bits_of_one_that_went_on() {
    // K-FAC refreshes its curvature by the count of updates.
    let kfac = ["optim.optimizer=kfac", "optim.kfac.curvature_every=5", "optim.kfac.inverse_every=7"];
    goes_on_with_the_bits_of_the_checkpoints_run(&kfac);
    goes_on_with_the_bits_of_the_checkpoints_run(&[]);
}

fn goes_on_with_the_bits_of_the_checkpoints_run(sets: &[&str]) {
    let whole = Run::new(false);
    let with = |more: &[&str]| with(&[sets, more].concat());
    let wanted = steps(&whole.train(&with(&["save.every_steps=12"]), 1, None));
    let new = behind(&whole, 12 * 8);
    let kept = with(&[
        "train.init.from=there",
        "train.init.optimizer=keep",
        "train.init.schedule=continue",
        "train.steps=12",
    ]);
    let opened = || saved(&whole.dir, 12);
    let mut records = first(session(&new, &kept, 1, Some(5), &opened));
    let begun = records.iter().find_map(|r| if let Record::Model(m) = r { m.initial.clone() } else { None });
    let begun = begun.unwrap();
    assert!(begun.contains("step 12; optimizer kept, learning-rate schedule continued"), "{begun}");
    // The checkpoint is not opened again.
    let gone = || Err(TrainError::Recipe("gone".into()));
    records.extend(first(session(&new, &kept, 1, None, &gone)));
    let found = steps(&records);
    assert_eq!(found.len() as u64, STEPS - 12);
    for (found, wanted) in found.iter().zip(&wanted[12..]) {
        assert_eq!(found.step + 12, wanted.step);
        let bits = |s: &Step| (s.loss.to_bits(), s.grad_norm.to_bits(), s.lr.to_bits());
        assert_eq!(bits(found), bits(wanted), "step {}", found.step);
    }
    let state =
        |run: &Run, step| TrainState::of(checkpoints(&run.dir).load(step).unwrap().manifest()).unwrap();
    let (new_state, old) = (state(&new, 12), state(&whole, 24));
    assert_eq!((new_state.step, new_state.updates(), new_state.tokens), (12, 12, 1536));
    assert_eq!(new_state.initial.unwrap().updates + new_state.updates(), old.updates());
    // A third run that begins with this one counts all updates.
    let third = behind(&whole, 0);
    let opened = || saved(&new.dir, 12);
    first(session(&third, &kept, 1, Some(1), &opened));
    assert_eq!(state(&third, 1).initial.unwrap().updates, 24);
    assert_eq!(state(&third, 1).initial.unwrap().batch_tokens, 24 * 128);
}

/// The first loss is that of the checkpoint's parameters; the optimizer and the rates begin anew, on any number of ranks.
#[test]
fn fresh_runs_begin_with_the_parameters_alone_in_every_layout() {
    let whole = Run::new(false);
    let straight = steps(&whole.train(&with(&["save.every_steps=12"]), 1, None));
    let opened = || saved(&whole.dir, 12);
    let fresh = |sets: &[&str]| with(&[&["train.init.from=there", "train.micro_batch=2"], sets].concat());
    let mut losses = Vec::new();
    for (sets, ranks) in [
        (&[][..], 1),
        (&["parallel.data=zero3"], 4),
        (&["parallel.tensor=2"], 2),
        (&["parallel.pipeline=2"], 2),
    ] {
        let new = behind(&whole, 12 * 8);
        let found = steps(&first(session(&new, &fresh(sets), ranks, Some(4), &opened)));
        assert!((found[0].loss - straight[12].loss).abs() < 1e-5, "{sets:?}");
        assert_eq!((found[0].step, found[0].tokens, found[0].lr), (1, 128, straight[0].lr));
        losses.push(found.iter().map(|s| s.loss).collect::<Vec<_>>());
        assert!(new.dir.join("checkpoints/step-00000004").is_dir());
    }
    // The optimizer began anew.
    assert!((losses[0][3] - straight[15].loss).abs() > 1e-6);
    for other in &losses[1..] {
        assert!(other.iter().zip(&losses[0]).all(|(a, b)| (a - b).abs() < 2e-4 * b), "{losses:?}");
    }
    // Other optimizers take parameters as well.
    let lion = fresh(&["optim.optimizer=lion", "optim.lr=1e-3", "train.weights=bf16"]);
    let new = behind(&whole, 12 * 8);
    let found = steps(&first(session(&new, &lion, 1, Some(1), &opened)));
    assert!((found[0].loss - straight[12].loss).abs() < 0.02, "rounded weights");
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_step() {
    let whole = Run::new(false);
    whole.train(&with(&["train.steps=2"]), 1, None);
    let opened = || saved(&whole.dir, 2);
    let new = Run::new(false);
    for (sets, parts) in [
        (&["model.width=32"][..], &["train.init.from", "model", "2 layers", "base"][..]),
        (&["model.vocab_size=64"], &["vocabulary of the model", "64 rows"]),
        (
            &["optim.optimizer=adafactor", "train.init.optimizer=keep"],
            &["adafactor", "another (it has", "\"fresh\""],
        ),
    ] {
        let sets = [&["train.init.from=there"], sets].concat();
        let e = session(&new, &with(&sets), 1, None, &opened).remove(0).unwrap_err().to_string();
        parts.iter().for_each(|part| assert!(e.contains(part), "{sets:?}: {e}"));
    }
    let other = bessemer_checkpoint::CheckpointError::Request { step: 2, problem: "none".into() };
    let failing = || Err(TrainError::Recipe(other.to_string()));
    assert!(session(&new, &with(&["train.init.from=there"]), 1, None, &failing)[0].is_err());
    assert_eq!(checkpoints(&new.dir).named_steps().unwrap(), Vec::<u64>::new());
}

/// Name and values of every parameter of a checkpoint.
fn values(run: &std::path::Path, step: u64) -> Vec<(String, Vec<f32>)> {
    let loaded = checkpoints(run).load(step).unwrap();
    let mut tensors = loaded.tensors(|name| bessemer_arch::ParamId::parse(name).is_some());
    let specs = tensors.specs().to_vec();
    let value = |(number, spec): (usize, &TensorSpec)| {
        let mut values = vec![0.0; spec.checked_len().unwrap()];
        tensors.fill(number, &mut values).unwrap();
        (spec.name.clone(), values)
    };
    specs.iter().enumerate().map(value).collect()
}

fn is_adapter(name: &str) -> bool {
    bessemer_arch::ParamId::parse(name).is_some_and(|id| id.role().is_adapter())
}

/// Adapters learn beside parameters that keep their bits, in every layout and after a stop.
#[test]
fn adapters_begin_beside_the_parameters_of_a_model_without_any() {
    adapters_begin(&[], 8);
}

/// So do adapters with magnitudes, which begin as the norms of the rows of the model's matrices.
#[test]
fn magnitudes_begin_as_norms_of_a_model_without_any() {
    adapters_begin(&["model.adapters.magnitude=true"], 12);
}

/// Adapters with so many parameters in a layer.
fn adapters_begin(of_adapters: &[&str], matrices: usize) {
    let whole = Run::new(false);
    let straight = steps(&whole.train(&with(&["save.every_steps=12"]), 1, None));
    let opened = || saved(&whole.dir, 12);
    let adapted = |sets: &[&str]| {
        let adapters = [
            "train.init.from=there",
            "train.micro_batch=2",
            "train.steps=6",
            "optim.lr=1e-2",
            "model.adapters.rank=4",
            "model.adapters.targets=[\"qkv\",\"out\",\"up\",\"down\"]",
        ];
        with(&[&adapters[..], of_adapters, sets].concat())
    };
    let mut losses: Vec<Vec<f64>> = Vec::new();
    for (sets, ranks) in [
        (&[][..], 1),
        (&["parallel.data=zero3"], 4),
        (&["parallel.tensor=2", "parallel.sequence=true"], 2),
        (&["parallel.pipeline=2"], 2),
    ] {
        let new = behind(&whole, 12 * 8);
        let mut found = steps(&first(session(&new, &adapted(sets), ranks, Some(3), &opened)));
        let gone = || Err(TrainError::Recipe("gone".into()));
        found.extend(steps(&first(session(&new, &adapted(sets), ranks, None, &gone))));
        // B begins at zero.
        assert!((found[0].loss - straight[12].loss).abs() < 1e-5, "{sets:?}");
        losses.push(found.iter().map(|s| s.loss).collect());
        let (base, tuned) = (values(&whole.dir, 12), values(&new.dir, 6));
        let (adapters, frozen): (Vec<_>, Vec<_>) = tuned.into_iter().partition(|of| is_adapter(&of.0));
        assert!(frozen == base, "{sets:?}: a frozen parameter has changed");
        assert_eq!(adapters.len(), 2 * matrices);
        assert!(adapters.iter().all(|(_, values)| values.iter().any(|x| *x != 0.0)), "{sets:?}");
    }
    for other in &losses[1..] {
        assert!(other.iter().zip(&losses[0]).all(|(a, b)| (a - b).abs() < 2e-5 * b), "{losses:?}");
    }
    // A stop changes no bit.
    let new = behind(&whole, 12 * 8);
    let whole_way = steps(&first(session(&new, &adapted(&[]), 1, None, &opened)));
    let whole_way: Vec<f64> = whole_way.iter().map(|s| s.loss).collect();
    assert_eq!(whole_way, losses[0]);
    assert!(whole_way.len() == 6 && whole_way[5] < straight[12].loss, "{whole_way:?}");
    // What else does not go together.
    let refused = |recipe: &Recipe, open: &(dyn Fn() -> Result<Latest, TrainError> + Sync)| {
        session(&Run::new(false), recipe, 1, None, open).remove(0).unwrap_err().to_string()
    };
    let e = refused(&adapted(&["train.init.optimizer=keep"]), &opened);
    assert!(e.contains("model.adapters") && e.contains("take \"fresh\""), "{e}");
    let tuned = || saved(&new.dir, 6);
    let e = refused(&with(&["train.init.from=there"]), &tuned);
    assert!(e.contains("adapters of rank 4") && e.contains("for qkv, out, up, down"), "{e}");
}

/// Only named parameters are trained; the others keep their bits and have no state of the optimizer, in every layout.
#[test]
fn named_parameters_alone_are_trained() {
    let whole = Run::new(false);
    whole.train(&with(&["save.every_steps=12", "train.steps=12"]), 1, None);
    let opened = || saved(&whole.dir, 12);
    let base = values(&whole.dir, 12);
    let named = |sets: &[&str]| {
        let some = [
            "train.init.from=there",
            "train.micro_batch=2",
            "train.steps=4",
            "train.trained=[\"layers.1.mlp.*\",\"final_norm.*\"]",
        ];
        with(&[&some[..], sets].concat())
    };
    let mut losses: Vec<Vec<f64>> = Vec::new();
    for (sets, ranks) in [(&[][..], 1), (&["parallel.data=zero3"], 4), (&["parallel.tensor=2"], 2)] {
        let new = behind(&whole, 12 * 8);
        let found = steps(&first(session(&new, &named(sets), ranks, None, &opened)));
        losses.push(found.iter().map(|s| s.loss).collect());
        let changed = values(&new.dir, 4).into_iter().zip(&base).filter(|(a, b)| a != *b);
        let changed: Vec<String> = changed.map(|(of, _)| of.0).collect();
        let trains = |name: &str| name == "final_norm.weight" || name.starts_with("layers.1.mlp.");
        let wanted: Vec<String> = base.iter().map(|of| of.0.clone()).filter(|name| trains(name)).collect();
        assert_eq!(changed, wanted, "{sets:?}");
        let loaded = checkpoints(&new.dir).load(4).unwrap();
        let state = loaded.tensors(bessemer_optim::is_state_name).specs().len();
        assert_eq!(state, 2 * wanted.len(), "{sets:?}");
    }
    for other in &losses[1..] {
        assert!(other.iter().zip(&losses[0]).all(|(a, b)| (a - b).abs() < 2e-5 * b), "{losses:?}");
    }
    for unknown in ["layers.2.*", "head", "mlp.up.weight"] {
        let recipe = named(&[&format!("train.trained=[{unknown:?}]")]);
        let e = session(&Run::new(false), &recipe, 1, None, &opened).remove(0).unwrap_err().to_string();
        assert!(e.contains("train.trained") && e.contains(unknown) && e.contains("embed.tokens"), "{e}");
    }
}

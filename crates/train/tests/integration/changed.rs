//! Runs that continue under a changed recipe: the numbers of a run that was planned so, samples, counts, rates and records.

use crate::place::{STEPS, recipe};
use crate::run::{Run, cpu, numbers};
use bessemer_collectives::{ThreadCommunicator, ThreadSettings};
use bessemer_loader::{Batch, Loader};
use bessemer_parallel::{BatchSource, Job, ParallelError, Plan};
use bessemer_recipe::Recipe;
use bessemer_runlog::{Change, Record, Step};
use bessemer_runtime::Purpose;
use bessemer_runtime::{ActivationConfig, Shape, StepContext, TokenBatch};
use bessemer_train::{Runner, TrainState, TrainerInput, checkpoints};
use bessemer_units::ParamStorage;
use std::f64::consts::PI;
use std::sync::Arc;

const SEQ: usize = 16;
const MICRO: usize = 4;
const LR: f64 = 1e-2;

/// 8 sequences a step, then 16 from step 11 on.
const PLAIN: &[&str] = &["optim.warmup_steps=0", "optim.min_lr_ratio=0.1", "model.dropout=0.1"];
const LARGER: &str = "train.batch_tokens=256";

fn with(sets: &[&str]) -> Recipe {
    recipe(&[PLAIN, sets].concat())
}

fn steps(records: &[Record]) -> Vec<&Step> {
    records.iter().filter_map(|r| if let Record::Step(s) = r { Some(s) } else { None }).collect()
}

fn changes(records: &[Record]) -> Vec<&Change> {
    records.iter().filter_map(|r| if let Record::Change(c) = r { Some(c) } else { None }).collect()
}

/// One session with recipes in full, so that changed keys are known.
fn session(run: &Run, recipe: &Recipe, ranks: usize, stop_after: Option<u64>) -> Vec<Record> {
    let text = bessemer_recipe::to_toml(recipe).unwrap();
    let flag = [std::sync::atomic::AtomicBool::new(false)];
    let mut all: Vec<_> = run
        .on_ranks(ranks, &|_, world| {
            let mut watch =
                crate::run::Watch { records: Vec::new(), stop_after, stop: &flag, after: &|_| () };
            let input = TrainerInput { recipe_text: text.clone(), ..run.input(recipe) };
            let mut trainer = bessemer_train::Trainer::on_rank(input, cpu(), Box::new(world))?;
            trainer.run(&mut watch, &flag[0])?;
            Ok(watch.records)
        })
        .into_iter()
        .map(|rank| rank.unwrap())
        .collect();
    all.swap_remove(0)
}

/// The micro-batches of a step, read off the order by hand.
struct ByHand<'a> {
    loader: &'a Loader,
    batch: Batch,
    seed: u64,
    step: u64,
    consumed: u64,
    sequences: usize,
}

impl BatchSource for ByHand<'_> {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let first_sequence = (micro * MICRO) as u64;
        self.loader.batch(self.consumed + first_sequence, MICRO, &mut self.batch).unwrap();
        let batch = TokenBatch { ids: &self.batch.inputs, targets: &self.batch.targets, positions: None };
        let loss_scale = 1.0 / (self.sequences * SEQ) as f32;
        Ok((
            batch,
            StepContext { seed: self.seed, step: self.step, first_sequence, loss_scale, accumulate: false },
        ))
    }
}

/// Losses and rates of a run of one rank that was planned with 8 sequences for 10 steps and 16 after that: the loop written out.
fn planned_by_hand(run: &Run, recipe: &Recipe) -> Vec<(u64, u64)> {
    let model = recipe.model.resolve_for(run.tokenizer.vocab_size(), None).unwrap();
    let shape = Shape { sequences: MICRO, seq: SEQ, purpose: Purpose::Train };
    let mut backend = cpu();
    let plan = Plan::single();
    let programs = [2, 4].map(|micro_batches| plan.program(micro_batches, 1, None).unwrap());
    let job = Job {
        model: &model,
        shape,
        activations: ActivationConfig::default(),
        types: ParamStorage::default(),
        optim: &recipe.optim,
        losses: &[],
        plan: &plan,
        program: &programs[0],
    };
    let world = ThreadCommunicator::world("world", 1, &ThreadSettings::default()).swap_remove(0);
    let mut runner = Runner::new(&mut *backend, &job, Box::new(world)).unwrap();
    runner.worker.init(&mut *backend, recipe.run.seed).unwrap();
    let loader = Loader::new(Arc::clone(&run.train), SEQ, recipe.run.seed, true).unwrap();
    let (mut consumed, mut found) = (0, Vec::new());
    for step in 0..STEPS {
        let sequences = if step < 10 { 8 } else { 16 };
        if step == 10 {
            runner.worker.set_program(&programs[1]).unwrap();
        }
        // The first recipe ends after 24 steps of 128 tokens, the second after 10 of those and 14 of 256.
        let total = if step < 10 { 24 * 128 } else { 10 * 128 + 14 * 256 };
        let x = (consumed * SEQ as u64) as f64 / total as f64;
        let lr = 0.1 * LR + (LR - 0.1 * LR) * (0.5 * (1.0 + (PI * x).cos()));
        let mut source = ByHand {
            loader: &loader,
            seed: recipe.run.seed,
            batch: Batch::new(),
            step,
            consumed,
            sequences: sequences as usize,
        };
        let result = runner.step(&mut *backend, &mut source, step + 1, lr).unwrap();
        found.push((result.loss.mean().to_bits(), lr.to_bits()));
        consumed += sequences;
    }
    found
}

#[test]
fn a_run_whose_batch_changes_has_the_bits_of_one_that_was_planned_so() {
    let (before, after) = (with(&[]), with(&[LARGER]));
    let run = Run::new(false);
    let mut records = session(&run, &before, 1, Some(10));
    records.extend(session(&run, &after, 1, None));
    let found: Vec<_> = steps(&records).iter().map(|s| (s.loss.to_bits(), s.lr.to_bits())).collect();
    assert_eq!(found, planned_by_hand(&run, &after));
    let change = changes(&records);
    assert_eq!(change.len(), 1);
    assert_eq!((change[0].step, change[0].tokens), (10, 1280));
    assert_eq!(change[0].keys_line(), "train.batch_tokens 128 -> 256");
    assert_eq!(
        change[0].effects,
        ["from step 11 on a step has 16 sequences of 16 tokens, before it had 8 sequences of 16 tokens"]
    );
    let last = steps(&records)[23];
    assert_eq!((last.step, last.tokens), (24, 4864));
    let saved = checkpoints(&run.dir).load(24).unwrap();
    let state = TrainState::of(saved.manifest()).unwrap();
    assert_eq!((state.loader.samples, state.tokens), (80 + 14 * 16, 4864));

    // Stopped again, and killed right after the change: the session then begins at the checkpoint from before.
    let stopped = Run::new(false);
    let mut parts = session(&stopped, &before, 1, Some(10));
    parts.extend(session(&stopped, &after, 1, Some(15)));
    std::fs::remove_dir_all(stopped.dir.join("checkpoints/step-00000015")).unwrap();
    parts.retain(|r| !matches!(r, Record::Step(s) if s.step > 10));
    parts.extend(session(&stopped, &after, 1, Some(17)));
    let rest = session(&stopped, &after, 1, None);
    assert!(changes(&rest).is_empty(), "nothing has changed since");
    parts.extend(rest);
    assert_eq!(numbers(&parts), numbers(&records));
    assert!(stopped.tensors() == run.tensors(), "other bits after stops");
}

/// Resumes on ranks of other numbers and layouts, back to one, with an evaluation and other saves in between.
#[test]
fn batch_and_layout_change_together_and_the_samples_stay() {
    let run = Run::new(false);
    let whole = {
        let alone = Run::new(false);
        let mut records = session(&alone, &with(&[]), 1, Some(10));
        records.extend(session(&alone, &with(&[LARGER]), 1, None));
        records
    };
    let mut records = session(&run, &with(&["parallel.data=zero1", "train.micro_batch=2"]), 4, Some(10));
    let more = [LARGER, "parallel.tensor=2", "save.every_steps=3", "eval.every_steps=5"];
    records.extend(session(&run, &with(&more), 4, Some(17)));
    records.extend(session(&run, &with(&[LARGER, "parallel.pipeline=2"]), 2, None));
    let (found, wanted) = (steps(&records), steps(&whole));
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert_eq!(
            (found.step, found.tokens, found.lr.to_bits()),
            (wanted.step, wanted.tokens, wanted.lr.to_bits())
        );
        assert!((found.loss - wanted.loss).abs() < 2e-4 * wanted.loss, "{found:?} {wanted:?}");
    }
    assert!(records.iter().any(|r| matches!(r, Record::Eval(e) if e.step == 15)));
    let keys: Vec<_> = changes(&records).iter().map(|c| c.keys_line()).collect();
    assert!(keys.len() == 2 && keys[0].contains("parallel.tensor 1 -> 2"), "{keys:?}");
    let state = |step| TrainState::of(checkpoints(&run.dir).load(step).unwrap().manifest()).unwrap();
    assert_eq!((state(12).loader.samples, state(24).loader.samples), (80 + 2 * 16, 80 + 14 * 16));
}

/// The whole run has `train.tokens`, whatever the batches; the rate ends where the tokens do.
#[test]
fn a_length_in_tokens_stays_that_of_the_whole_run() {
    let tokens = ["train.steps=0", "train.tokens=2560"];
    let run = Run::new(false);
    session(&run, &with(&tokens), 1, Some(10));
    let rest = session(&run, &with(&[&tokens[..], &[LARGER]].concat()), 1, None);
    let steps = steps(&rest);
    assert_eq!(
        steps.iter().map(|s| (s.step, s.tokens)).collect::<Vec<_>>(),
        [(11, 1536), (12, 1792), (13, 2048), (14, 2304), (15, 2560)]
    );
    let half = 0.1 * LR + (LR - 0.1 * LR) * (0.5 * (1.0 + (PI * 0.5).cos()));
    assert_eq!(steps[0].lr.to_bits(), half.to_bits(), "half of the tokens are trained on");
    // A run of which less is wanted than it has done is over.
    let over = session(&run, &with(&["train.steps=12", LARGER]), 1, None);
    assert!(steps_of(&over).is_empty());
}

fn steps_of(records: &[Record]) -> Vec<u64> {
    steps(records).iter().map(|s| s.step).collect()
}

/// Sequences of another length and another seed are another order, which begins anew; documents of several lengths continue where they are.
#[test]
fn another_order_begins_anew_and_documents_go_on() {
    let run = Run::new(false);
    let first = session(&run, &with(&["train.lengths=padded", "train.length_buckets=[8]"]), 1, Some(5));
    let padded = with(&["train.lengths=padded", "train.length_buckets=[8]", LARGER]);
    let second = session(&run, &padded, 1, Some(8));
    assert!(changes(&second)[0].effects.len() == 1, "{:?}", changes(&second));
    let state = |step| TrainState::of(checkpoints(&run.dir).load(step).unwrap().manifest()).unwrap();
    let (five, eight) = (state(5), state(8));
    assert_eq!(eight.loader.samples, five.loader.samples + 3 * eight.identity.sequences_per_step);
    assert_eq!(eight.loader.origin, None);
    let sets = ["train.seq_len=8", "run.seed=3"];
    let third = session(&run, &with(&sets), 1, None);
    let told = changes(&third)[0].effects.join("; ");
    for part in ["16 sequences of 8 tokens", "sequence length: 8, before 16", "seed", "packed", "starts over"]
    {
        assert!(told.contains(part), "{told}");
    }
    let origin = state(24).loader.origin.unwrap();
    assert_eq!((origin.samples, origin.given), (eight.loader.samples, vec![0]));
    let tokens: Vec<u64> =
        [first, second, third].iter().flat_map(|r| steps(r).into_iter().map(|s| s.tokens)).collect();
    assert!(tokens.len() as u64 == STEPS && tokens.is_sorted());
    assert_eq!(tokens[23] - tokens[8], 15 * 128);
}

#[test]
fn what_cannot_change_is_refused_by_name_and_nothing_is_written() {
    let run = Run::new(false);
    session(&run, &with(&[]), 1, Some(3));
    for (sets, parts) in [
        (["model.width=32"], ["belongs to another run", "model", "train.init.from"]),
        (["model.vocab_size=64"], ["vocabulary of the model", "64 rows", "train.init.from"]),
        (["optim.optimizer=adafactor"], ["holds another (it has", "adafactor", "train.init.optimizer"]),
    ] {
        let errors = run.session(&with(&sets), 1, None, &|_| cpu());
        let e = errors.into_iter().next().unwrap().unwrap_err().to_string();
        for part in parts {
            assert!(e.contains(part), "{sets:?}: {e}");
        }
    }
    assert_eq!(checkpoints(&run.dir).named_steps().unwrap(), [3]);
}

//! Runs on pairs of answers (`train.preferences`): layouts, resuming, the stored reference, evaluation of held-out pairs, refusals.

use crate::place::recipe;
use crate::run::{Run, Watch, cpu};
use bessemer_checkpoint::Latest;
use bessemer_collectives::{ThreadCommunicator, ThreadSettings};
use bessemer_recipe::Recipe;
use bessemer_runlog::{Eval, Record, Step, Task};
use bessemer_shards::{ShardSet, ShardSetWriter, SplitMeta};
use bessemer_train::{OtherCheckpoints, TrainError, Trainer, TrainerInput, checkpoints};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const REFERENCE: &str = "reference.nll";

const BASE: [&str; 12] = [
    "corpus.source=jsonl",
    "corpus.path=pairs.jsonl",
    "tokenizer.file=tokenizer.json",
    "train.init.from=there",
    "train.preferences.beta=0.3",
    "corpus.chats.pairs=true",
    "train.lengths=padded",
    "train.micro_batch=2",
    "train.steps=8",
    "optim.lr=3e-3",
    "eval.every_steps=4",
    "save.every_steps=4",
];

fn with(sets: &[&str]) -> Recipe {
    recipe(&[&BASE[..], sets].concat())
}

/// Pairs of answers to short questions: the chosen one names a place, the rejected one another.
fn split(run: &Run, name: &str, pairs: u128) -> Arc<ShardSet> {
    let meta = SplitMeta {
        split: name.into(),
        vocab_size: run.tokenizer.vocab_size() as u32,
        tokenizer: run.tokenizer.fingerprint().parse().unwrap(),
    };
    let shards = run.dir.join("pairs");
    let mut writer = ShardSetWriter::create(&shards, meta, 1 << 20).unwrap();
    for i in 0..pairs {
        let question = ["cat ", "the dog ", "a "][i as usize % 3];
        let rejected = &"on the moon"[..3 + i as usize * 5 % 6];
        for answer in ["mat.", rejected] {
            let tokens = run.tokenizer.encode(format!("{question}{answer}").as_bytes()).unwrap();
            let scored = question.len()..tokens.len();
            let scored = std::slice::from_ref(&scored);
            writer.push_scored(i.to_le_bytes(), tokens.len() as u64, &tokens, scored).unwrap();
        }
    }
    writer.finish().unwrap();
    Arc::new(ShardSet::open(&shards, name).unwrap())
}

/// A run directory with pairs.
fn run() -> Run {
    let mut run = Run::new(false);
    run.train = split(&run, "train", 51);
    run.validation = split(&run, "validation", 7);
    run
}

/// A trained model to begin with.
fn base() -> Run {
    let base = Run::new(false);
    base.train(&recipe(&["train.steps=12", "save.every_steps=12"]), 1, None);
    base
}

/// One session on some ranks, as the first rank records it.
fn session(
    run: &Run,
    recipe: &Recipe,
    ranks: usize,
    stop_after: Option<u64>,
    base: Option<&Run>,
) -> Result<Vec<Record>, TrainError> {
    let open = || match base {
        Some(base) => Ok(Latest { loaded: checkpoints(&base.dir).load_lazily(12)?, skipped: Vec::new() }),
        None => Err(TrainError::Recipe("the base is opened again".into())),
    };
    let flag = [AtomicBool::new(false)];
    let mut all = run.on_ranks(ranks, &|_, world| {
        let mut watch = Watch { records: Vec::new(), stop_after, stop: &flag, after: &|_| () };
        let others = OtherCheckpoints { initial: Some(&open), ..Default::default() };
        let mut trainer = Trainer::on_rank_from(run.input(recipe), cpu(), Box::new(world), others)?;
        trainer.run(&mut watch, &flag[0])?;
        Ok(watch.records)
    });
    all.swap_remove(0)
}

fn one_rank() -> ThreadCommunicator {
    ThreadCommunicator::world("world", 1, &ThreadSettings::default()).swap_remove(0)
}

fn steps(records: &[Record]) -> Vec<&Step> {
    records.iter().filter_map(|r| if let Record::Step(s) = r { Some(s) } else { None }).collect()
}

fn evals(records: &[Record]) -> Vec<(&Eval, &Task)> {
    let evals = records.iter().filter_map(|r| if let Record::Eval(e) = r { Some(e) } else { None });
    evals.zip(records.iter().filter_map(|r| if let Record::Task(t) = r { Some(t) } else { None })).collect()
}

/// Loss, gradient norm and means over pairs of every step, and of every evaluation loss, accuracy and size.
fn numbers(records: &[Record]) -> Vec<f64> {
    let of_step = |s: &&Step| {
        [&[s.loss, s.grad_norm][..], &s.preferences.values().copied().collect::<Vec<_>>()].concat()
    };
    let of_eval = |(e, t): &(&Eval, &Task)| {
        vec![e.loss, e.perplexity, e.bits_per_byte, e.tokens_scored as f64, t.value, t.documents as f64]
    };
    steps(records).iter().flat_map(of_step).chain(evals(records).iter().flat_map(of_eval)).collect()
}

#[test]
fn a_model_learns_what_is_preferred() {
    let (base, run) = (base(), run());
    let records = session(&run, &with(&[]), 1, None, Some(&base)).unwrap();
    let steps = steps(&records);
    let (first, last) = (&steps[0].preferences, &steps[7].preferences);
    assert!((steps[0].loss - std::f64::consts::LN_2).abs() < 1e-12, "{}", steps[0].loss);
    assert_eq!((first["accuracy"], first["margin"], first["chosen"]), (0.0, 0.0, 0.0));
    assert!(last["accuracy"] > 0.9 && last["margin"] > 0.2 && steps[7].loss < 0.6, "{last:?}");
    assert!((last["margin"] - (last["chosen"] - last["rejected"])).abs() < 1e-9);
    let evals = evals(&records);
    let (eval, task) = evals[0];
    assert_eq!((eval.step, task.step, &*task.task, task.documents), (4, 4, "preferences", 7));
    assert!(
        eval.loss < std::f64::consts::LN_2 && task.value > 0.5 && eval.tokens_scored == 7 * 4,
        "{eval:?}"
    );
}

/// Weights are made of the losses of all ranks, by the same rule wherever a pair is.
#[test]
fn every_layout_has_the_losses_of_one_rank() {
    let base = base();
    let one = numbers(&session(&run(), &with(&[]), 1, None, Some(&base)).unwrap());
    for (sets, ranks) in [
        (&["train.micro_batch=4"][..], 1),
        (&["parallel.data=ddp"], 2),
        (&["parallel.data=zero3"], 2),
        (&["parallel.tensor=2", "parallel.sequence=true"], 2),
        (&["parallel.tensor=2", "parallel.data=zero1"], 4),
        (&["parallel.pipeline=2", "parallel.schedule=1f1b"], 2),
        (&["parallel.pipeline=2", "parallel.schedule=interleaved"], 2),
        (&["parallel.pipeline=2", "parallel.schedule=1f1b", "parallel.data=ddp"], 4),
        (&["train.recompute=full", "train.length_buckets=[4, 8, 12]"], 1),
    ] {
        let found = numbers(&session(&run(), &with(sets), ranks, None, Some(&base)).unwrap());
        assert_eq!(found.len(), one.len(), "{sets:?}");
        for (at, (found, one)) in found.iter().zip(&one).enumerate() {
            assert!((found - one).abs() < 2e-5 * one.abs().max(0.1), "{sets:?}: number {at}: {found} {one}");
        }
    }
}

/// The reference is made once: a session that goes on reads it, and the base is not opened again.
#[test]
fn a_stopped_run_has_the_bits_of_one_that_was_not() {
    let base = base();
    let whole = numbers(&session(&run(), &with(&["train.steps=8"]), 1, None, Some(&base)).unwrap());
    let stopped = run();
    let mut records = session(&stopped, &with(&[]), 1, Some(3), Some(&base)).unwrap();
    let stored = std::fs::read(stopped.dir.join(REFERENCE)).unwrap();
    records.extend(session(&stopped, &with(&[]), 1, None, None).unwrap());
    let bits = |numbers: Vec<f64>| numbers.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(numbers(&records)), bits(whole));
    assert!(std::fs::read(stopped.dir.join(REFERENCE)).unwrap() == stored);
}

/// Each held-out chat is scored by itself: its loss is that of a run whose validation split has no other chat.
#[test]
fn held_out_chats_are_scored_alone() {
    let base = base();
    let chats =
        ["train.preferences.beta=0", "corpus.chats.pairs=false", "train.steps=5", "eval.max_tokens=0"];
    let eval = |validation: &dyn Fn(&Run) -> Arc<ShardSet>, sets: &[&str], ranks| {
        let mut run = run();
        run.validation = validation(&run);
        let records = session(&run, &with(&[&chats[..], sets].concat()), ranks, None, Some(&base)).unwrap();
        let found = records.iter().find_map(|r| if let Record::Eval(e) = r { Some(e.clone()) } else { None });
        found.unwrap()
    };
    // Of the seven pairs one document alone, and all.
    let one = |run: &Run, number: u64| -> Arc<ShardSet> {
        let range = run.validation.document_tokens(number).unwrap().unwrap();
        let mut tokens = vec![0; (range.end - range.start) as usize];
        run.validation.read(range.start, &mut tokens).unwrap();
        let mut masked = tokens.clone();
        run.validation.replace_unscored(range.start, &mut masked, u32::MAX).unwrap();
        let begin = masked.iter().take_while(|token| **token == u32::MAX).count();
        let meta = SplitMeta {
            split: "validation".into(),
            vocab_size: run.tokenizer.vocab_size() as u32,
            tokenizer: run.tokenizer.fingerprint().parse().unwrap(),
        };
        let dir = run.dir.join(format!("one-{number}"));
        let mut writer = ShardSetWriter::create(&dir, meta, 1 << 20).unwrap();
        let scored = begin..tokens.len();
        writer.push_scored([1; 16], 4, &tokens, std::slice::from_ref(&scored)).unwrap();
        writer.finish().unwrap();
        Arc::new(ShardSet::open(&dir, "validation").unwrap())
    };
    let all = eval(&|run| Arc::clone(&run.validation), &[], 1);
    let alone: Vec<Eval> = (0..14).map(|number| eval(&|run| one(run, number), &[], 1)).collect();
    let nats: f64 = alone.iter().map(|e| e.loss * e.tokens_scored as f64).sum();
    let (tokens, bytes) =
        alone.iter().fold((0, 0), |(tokens, bytes), e| (tokens + e.tokens_scored, bytes + e.bytes_scored));
    assert_eq!((all.tokens_scored, all.bytes_scored), (tokens, bytes));
    assert!((all.loss - nats / tokens as f64).abs() < 1e-6, "{} {}", all.loss, nats / tokens as f64);
    assert!((all.perplexity - all.loss.exp()).abs() < 1e-9);
    let over_ranks = eval(&|run| Arc::clone(&run.validation), &["parallel.data=zero2"], 2);
    assert!((all.loss - over_ranks.loss).abs() < 1e-5 && over_ranks.tokens_scored == tokens);
}

/// What the model was trained on before is scored before the first step and with every evaluation.
#[test]
fn a_run_records_what_it_forgets() {
    let base = base();
    let records = |sets: &[&str], stop_after: Option<u64>, new: &Run, base: Option<&Run>| {
        let open =
            || Ok(Latest { loaded: checkpoints(&base.unwrap().dir).load_lazily(12)?, skipped: Vec::new() });
        let flag = [AtomicBool::new(false)];
        let mut watch = Watch { records: Vec::new(), stop_after, stop: &flag, after: &|_| () };
        let recipe = with(&[&["optim.lr=3e-2"], sets].concat());
        let former = base.map(|base| ("runs/base".to_owned(), Arc::clone(&base.validation)));
        let input = TrainerInput { former, ..new.input(&recipe) };
        let others = OtherCheckpoints { initial: Some(&open), ..Default::default() };
        let mut trainer = Trainer::on_rank_from(input, cpu(), Box::new(one_rank()), others).unwrap();
        trainer.run(&mut watch, &flag[0]).unwrap();
        let evals =
            watch.records.into_iter().filter_map(|r| if let Record::Eval(e) = r { Some(e) } else { None });
        evals.map(|e| (e.step, e.components)).collect::<Vec<_>>()
    };
    for sets in [&[][..], &["train.preferences.beta=0", "corpus.chats.pairs=false"]] {
        let run = run();
        let mut found = records(sets, Some(4), &run, Some(&base));
        found.extend(records(sets, None, &run, Some(&base)));
        let losses: Vec<(u64, f64)> = found.iter().map(|(step, of)| (*step, of[0].loss)).collect();
        let steps: Vec<u64> = losses.iter().map(|at| at.0).collect();
        assert!(steps == [0, 4] || steps == [0, 4, 4], "{steps:?}");
        assert!(found.iter().all(|(_, of)| of.len() == 1 && of[0].name == "runs/base"), "{found:?}");
        // The text that the base was trained on: few answers about other things make it less likely.
        assert!(losses[0].1 < losses[losses.len() - 1].1 && losses[0].1 > 0.1, "{losses:?}");
    }
}

#[test]
fn a_reference_that_is_not_that_of_the_run_is_refused() {
    let base = base();
    let run = run();
    session(&run, &with(&[]), 1, Some(4), Some(&base)).unwrap();
    let path = run.dir.join(REFERENCE);
    let good = std::fs::read(&path).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let header = String::from_utf8_lossy(&good).lines().next().unwrap().replacen('1', "2", 1);
    let other = [header.as_bytes(), &good[header.len()..]].concat();
    for (bytes, found) in [
        (Some(flipped), "a damaged file"),
        (Some(good[..good.len() - 8].to_vec()), "a damaged file"),
        (Some(b"{}\n".to_vec()), "another header"),
        (Some(Vec::new()), "without a header"),
        (Some(other), "for other shards"),
        (None, "found "),
    ] {
        match bytes {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let e = session(&run, &with(&[]), 1, None, None).unwrap_err().to_string();
        assert!(
            e.contains(REFERENCE) && e.contains(found) && e.contains("begin the run again"),
            "{found}: {e}"
        );
    }
    std::fs::write(&path, good).unwrap();
    session(&run, &with(&[]), 1, None, None).unwrap();
}

#[test]
fn what_does_not_fit_pairs_is_refused_before_the_first_step() {
    let (base, run) = (base(), run());
    let asynchronous =
        ["parallel.pipeline=2", "parallel.schedule=pipedream", "parallel.window=2", "eval.every_steps=0"];
    let e = session(&run, &with(&asynchronous), 2, None, Some(&base)).unwrap_err().to_string();
    assert!(e.contains("train.preferences") && e.contains("asynchronous"), "{e}");
    // Shards that were made without pairs.
    let mut text = Run::new(false);
    text.validation = Arc::clone(&run.validation);
    let e = session(&text, &with(&[]), 1, None, Some(&base)).unwrap_err().to_string();
    assert!(e.contains("wanted pairs of documents") && e.contains("corpus.chats.pairs"), "{e}");
}

//! Runs that distil a checkpoint (`train.teacher`): a mixture of students in small.

use crate::place::{STEPS, recipe};
use crate::run::{Run, Watch, cpu};
use bessemer_checkpoint::Latest;
use bessemer_recipe::Recipe;
use bessemer_runlog::{Record, Step};
use bessemer_train::{OtherCheckpoints, TrainError, TrainState, Trainer, TrainerInput, checkpoints};
use bessemer_units::Bytes;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// Steps with the teacher.
const TAUGHT: u64 = 8;

/// Four layers; the last ones have more experts, besides a residual block.
fn teacher_recipe() -> Recipe {
    recipe(&[
        "model.layers=4",
        "model.experts.gate=switch",
        "model.experts.layers=alternate",
        "model.experts.count=[2,4]",
        "model.experts.width=16",
        "model.experts.shared=16",
        "model.experts.residual=true",
        "save.every_steps=12",
    ])
}

/// A student with three layers, of which the first has no experts.
fn student(sets: &[&str]) -> Recipe {
    let base = [
        "model.layers=3",
        "model.experts.gate=switch",
        "model.experts.layers=[1,2]",
        "model.experts.count=[2,4]",
        "model.experts.width=16",
        "model.experts.shared=16",
        "model.experts.residual=true",
        "save.every_steps=4",
    ];
    recipe(&[&base[..], sets].concat())
}

fn taught(sets: &[&str]) -> Recipe {
    let base = ["train.teacher.from=there", "train.teacher.weight=0.7", "train.teacher.temperature=2"];
    let steps = format!("train.teacher.steps={TAUGHT}");
    student(&[&base[..], &[&*steps], sets].concat())
}

/// A trained teacher, once for all tests.
fn teacher() -> &'static Run {
    static TEACHER: OnceLock<Run> = OnceLock::new();
    TEACHER.get_or_init(|| {
        let run = Run::new(false);
        run.train(&teacher_recipe(), 1, None);
        run
    })
}

fn opened(step: u64) -> Result<Latest, TrainError> {
    Ok(Latest { loaded: checkpoints(&teacher().dir).load_lazily(step)?, skipped: Vec::new() })
}

/// A session on some ranks with the memory that each may take; the records of each rank.
fn session(
    run: &Run,
    recipe: &Recipe,
    ranks: usize,
    stop_after: Option<u64>,
    (step, available): (u64, u64),
) -> Vec<Result<Vec<Record>, TrainError>> {
    let flag = [AtomicBool::new(false)];
    run.on_ranks(ranks, &|_, world| {
        let mut watch = Watch { records: Vec::new(), stop_after, stop: &flag, after: &|_| () };
        let open = || opened(step);
        let others = OtherCheckpoints { teacher: Some(&open), ..OtherCheckpoints::default() };
        let input = TrainerInput { memory_available: Bytes(available), ..run.input(recipe) };
        let mut trainer = Trainer::on_rank_from(input, cpu(), Box::new(world), others)?;
        trainer.run(&mut watch, &flag[0])?;
        Ok(watch.records)
    })
}

fn train(run: &Run, recipe: &Recipe, ranks: usize, stop_after: Option<u64>) -> Vec<Record> {
    session(run, recipe, ranks, stop_after, (STEPS, 1 << 30)).into_iter().map(Result::unwrap).next().unwrap()
}

fn steps(records: &[Record]) -> Vec<Step> {
    records.iter().filter_map(|r| if let Record::Step(s) = r { Some(s.clone()) } else { None }).collect()
}

fn divergence(step: &Step) -> Option<f64> {
    step.losses.get("distillation").copied()
}

fn bits(step: &Step) -> (u64, u64, Option<u64>) {
    (step.loss.to_bits(), step.grad_norm.to_bits(), divergence(step).map(f64::to_bits))
}

/// Losses, divergences and norms do not depend on how data-parallel ranks and micro-batches divide the batch.
#[test]
fn students_have_the_losses_of_one_rank() {
    let alone = steps(&train(&Run::new(false), &taught(&["train.micro_batch=8"]), 1, None));
    assert_eq!(alone.len() as u64, STEPS);
    let values: Vec<f64> = alone.iter().filter_map(divergence).collect();
    assert_eq!(values.len() as u64, TAUGHT, "each step with the teacher records it, and no other");
    assert!(values.iter().all(|value| *value > 0.0), "{values:?}");
    assert!(values[TAUGHT as usize - 1] < values[0], "the student comes no nearer: {values:?}");
    for (sets, ranks) in [
        (&["train.micro_batch=2"][..], 1),
        (&["parallel.data=ddp"], 2),
        (&["parallel.data=zero1"], 2),
        (&["parallel.data=zero2", "train.micro_batch=1"], 4),
        (&["parallel.data=zero3", "train.micro_batch=1"], 2),
        (&["parallel.data=zero1", "parallel.experts=2"], 2),
    ] {
        let found = steps(&train(&Run::new(false), &taught(sets), ranks, None));
        for (found, wanted) in found.iter().zip(&alone) {
            let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-5;
            assert!(
                close(found.loss, wanted.loss),
                "{sets:?}, step {}: {} {}",
                found.step,
                found.loss,
                wanted.loss
            );
            match (divergence(found), divergence(wanted)) {
                (Some(a), Some(b)) => assert!(close(a, b), "{sets:?}, step {}: {a} {b}", found.step),
                (a, b) => assert_eq!(a, b, "{sets:?}, step {}", found.step),
            }
        }
    }
}

/// A run that was stopped, with and without the teacher at hand, has the bits of one that was not; and from the last step of the teacher
/// on it is the run of the cross-entropy alone.
#[test]
fn a_stopped_student_goes_on_with_equal_bits_and_ends_with_the_cross_entropy_alone() {
    for sets in [&["parallel.data=ddp"][..], &["parallel.data=zero3", "train.micro_batch=2"]] {
        let (whole, parts, without) = (Run::new(false), Run::new(false), Run::new(false));
        let wanted = steps(&train(&whole, &taught(sets), 2, None));
        let mut found = train(&parts, &taught(sets), 2, Some(5));
        found.extend(train(&parts, &taught(sets), 2, Some(TAUGHT + 3)));
        found.extend(train(&parts, &taught(sets), 2, None));
        let warned = found.iter().any(|r| matches!(r, Record::Warning(w) if w.message.contains("teacher")));
        assert!(!warned, "the teacher is the same");
        let mut ended = train(&without, &taught(sets), 2, Some(TAUGHT));
        // No teacher is opened here.
        ended.extend(without.train(&student(sets), 2, None));
        for steps in [steps(&found), steps(&ended)] {
            assert_eq!(
                steps.iter().map(bits).collect::<Vec<_>>(),
                wanted.iter().map(bits).collect::<Vec<_>>()
            );
        }
        assert!(parts.tensors() == whole.tensors() && without.tensors() == whole.tensors(), "{sets:?}");
        let plain = steps(&Run::new(false).train(&student(sets), 2, None));
        assert_eq!(bits(&plain[0]).0, bits(&wanted[0]).0, "the loss is the cross-entropy");
        assert!(bits(&plain[1]).0 != bits(&wanted[1]).0, "the teacher changes the update");
    }
}

/// Another checkpoint in the middle of the steps with the teacher is no longer the same run, and the warning has its name.
#[test]
fn another_teacher_is_a_warning() {
    let run = Run::new(false);
    let at = |step, stop| session(&run, &taught(&[]), 1, stop, (step, 1 << 30)).remove(0).unwrap();
    at(12, Some(4));
    let state = TrainState::of(checkpoints(&run.dir).load(4).unwrap().manifest()).unwrap();
    assert_eq!(state.teacher.unwrap().step, 12);
    let warning = |records: &[Record]| {
        let found = |r: &Record| match r {
            Record::Warning(w) if w.message.starts_with("the teacher is") => Some(w.message.clone()),
            _ => None,
        };
        records.iter().find_map(found)
    };
    let text = warning(&at(24, Some(5))).unwrap();
    assert!(
        text.contains("step 24") && text.contains("a teacher of step 12") && text.contains("step-00000024"),
        "{text}"
    );
    assert_eq!(warning(&at(24, Some(6))), None);
}

#[test]
fn teachers_that_cannot_teach_are_refused_before_the_first_step() {
    let run = Run::new(false);
    let refused = |recipe: &Recipe, ranks, available| {
        let results = session(&run, recipe, ranks, None, (STEPS, available));
        results.into_iter().find_map(Result::err).unwrap().to_string()
    };
    let e = refused(&taught(&["model.context=32", "train.seq_len=32", "train.micro_batch=1"]), 1, 1 << 30);
    assert!(e.contains("has a context of 16 tokens, wanted at least train.seq_len = 32"), "{e}");
    let e = refused(&taught(&[]), 1, 100_000);
    assert!(e.contains("training needs") && e.contains(", teacher "), "{e}");
    let layouts: [(&[&str], usize, &str); 4] = [
        (&["parallel.tensor=2"], 2, "parallel.tensor over 2 ranks"),
        (&["parallel.context=2"], 2, "parallel.context over 2 ranks"),
        (&["parallel.pipeline=2"], 2, "parallel.pipeline over 2 ranks"),
        (&["train.lengths=padded"], 1, "micro-batches of several lengths (train.lengths)"),
    ];
    for (sets, ranks, words) in layouts {
        let sets = [sets, &["model.kv_heads=2", "train.micro_batch=1"][..]].concat();
        let e = refused(&taught(&sets), ranks, 1 << 30);
        assert!(e.contains(words) && e.contains("wanted one rank or data parallelism alone"), "{e}");
        let early = bessemer_train::refuse_what_cannot_run(&taught(&sets), ranks).unwrap_err().to_string();
        assert!(early.contains(words), "{early}");
    }
    let e = run.session(&taught(&[]), 1, None, &|_| cpu()).remove(0).unwrap_err().to_string();
    assert!(e.contains("train.teacher.from = \"there\": this call cannot open checkpoints"), "{e}");
}

#[test]
fn a_teacher_of_another_vocabulary_is_refused() {
    use bessemer_tokenizer::{TokenizerConfig, TokenizerKind, Trainer as TokenizerTrainer};
    let config = TokenizerConfig { kind: TokenizerKind::Char, ..TokenizerConfig::default() };
    let mut trainer = TokenizerTrainer::new(config).unwrap();
    trainer.feed("abcdefghijklmnopqrstuvwxyz .\nXYZ");
    let tokenizer = std::sync::Arc::new(trainer.finish(|_| {}).unwrap());
    let run = Run::new(false);
    let dir = run.dir.join("other");
    let meta = bessemer_shards::SplitMeta {
        split: "train".into(),
        vocab_size: tokenizer.vocab_size() as u32,
        tokenizer: tokenizer.fingerprint().parse().unwrap(),
    };
    let mut writer = bessemer_shards::ShardSetWriter::create(&dir, meta, 1 << 20).unwrap();
    let tokens = tokenizer.encode("the cat sat on a mat. ".repeat(200).as_bytes()).unwrap();
    writer.push_document([7; 16], tokens.len() as u64, &tokens).unwrap();
    writer.finish().unwrap();
    let train = std::sync::Arc::new(bessemer_shards::ShardSet::open(&dir, "train").unwrap());
    let run = Run { tokenizer, validation: std::sync::Arc::clone(&train), train, ..run };
    let e = session(&run, &taught(&[]), 1, None, (STEPS, 1 << 30)).remove(0).unwrap_err().to_string();
    let wanted = "was trained with tokenizer";
    assert!(e.contains(wanted) && e.contains("wanted one vocabulary, token by token"), "{e}");
    assert!(e.contains("train.teacher.from") && e.contains("tokenizer.file"), "{e}");
}

//! Runs on documents, in micro-batches of several lengths: the losses of one rank in every layout and of padded batches, exact resuming,
//! and recomputation under a budget.
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use crate::place;
use crate::run;

use bessemer_recipe::Recipe;
use bessemer_runlog::{Record, Step, Training};
use bessemer_shards::{ShardSet, ShardSetWriter, SplitMeta};
use place::{STEPS, recipe};
use run::{Run, cpu, numbers};
use std::sync::Arc;

const BASE: [&str; 7] = [
    "train.micro_batch=2",
    "train.z_loss=1e-4",
    "optim.lr=3e-3",
    "eval.every_steps=10",
    "eval.max_tokens=500",
    "eval.samples.at_end=true",
    "eval.samples.generate.max_tokens=4",
];

/// A run directory with documents of 3 to 60 characters.
fn run() -> Run {
    let mut run = Run::new(false);
    let meta = SplitMeta {
        split: "train".into(),
        vocab_size: run.tokenizer.vocab_size() as u32,
        tokenizer: run.tokenizer.fingerprint().parse().unwrap(),
    };
    let shards = run.dir.join("documents");
    let mut writer = ShardSetWriter::create(&shards, meta, 1 << 20).unwrap();
    let words = ["the ", "cat ", "sat ", "on ", "a ", "mat. "];
    for i in 0..300_u128 {
        let text: String = (0..=i * 7 % 16).map(|w| words[((i / 3 + w) % 6) as usize]).collect();
        let tokens = run.tokenizer.encode(text.as_bytes()).unwrap();
        writer.push_document(i.to_le_bytes(), text.len() as u64, &tokens).unwrap();
    }
    writer.finish().unwrap();
    run.train = Arc::new(ShardSet::open(&shards, "train").unwrap());
    run
}

fn with(sets: &[&str]) -> Recipe {
    recipe(&[&BASE[..], sets].concat())
}

fn steps(records: &[Record]) -> Vec<Step> {
    let step = |record: &Record| match record {
        Record::Step(step) => Some(step.clone()),
        _ => None,
    };
    records.iter().filter_map(step).collect()
}

fn training(records: &[Record]) -> &Training {
    let mut all = records.iter().filter_map(|record| match record {
        Record::Training(training) => Some(training),
        _ => None,
    });
    all.next().unwrap()
}

/// The error of the first rank of a run that cannot begin.
fn refused(run: &Run, recipe: &Recipe, ranks: usize) -> String {
    let mut of_ranks = run.session(recipe, ranks, None, &|_| cpu()).into_iter();
    of_ranks.find_map(Result::err).map(|e| e.to_string()).unwrap()
}

#[track_caller]
fn assert_near(found: &[Record], wanted: &[Record], what: &str) {
    let (found, wanted) = (numbers(found), numbers(wanted));
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(&wanted) {
        let off = (found.1 - wanted.1).abs() / wanted.1.abs().max(1e-9);
        assert!(found.0 == wanted.0 && off < 1e-5, "{what}: {found:?} {wanted:?}");
    }
}

/// Padding to other lengths changes no loss and no gradient norm, step after step: the same documents are in each step.
#[test]
fn documents_padded_to_their_lengths_train_as_documents_padded_to_the_longest() {
    let padded = run().train(&with(&["train.lengths=padded"]), 1, None);
    let longest = run().train(&with(&["train.lengths=padded", "train.length_buckets=[1]"]), 1, None);
    assert_near(&padded, &longest, "padded to the longest");
    let packed = run().train(&with(&[]), 1, None);
    assert!(numbers(&packed) != numbers(&padded));
    // The batch in tokens is reached in the mean, and the reported tokens are those that were scored.
    for lengths in ["padded", "bucketed"] {
        let sets = [&format!("train.lengths={lengths}"), "train.batch_tokens=512"];
        let records = run().train(&with(&sets), 1, None);
        let tokens = steps(&records).last().unwrap().tokens;
        let wanted = STEPS * 512;
        assert!(tokens.abs_diff(wanted) < wanted / 20 && tokens != wanted, "{lengths}: {tokens}");
        assert!(
            training(&records).sequences.contains("documents a step"),
            "{}",
            training(&records).sequences
        );
    }
}

#[test]
fn every_layout_trains_on_documents_as_one_rank() {
    for lengths in ["padded", "bucketed"] {
        let lengths = format!("train.lengths={lengths}");
        let batch = "train.batch_tokens=160";
        let layers = "model.layers=4";
        let single = run().train(&with(&[&lengths, batch, layers]), 1, None);
        for (sets, ranks) in [
            (&["parallel.data=ddp"][..], 2),
            (&["parallel.data=zero3"], 2),
            (&["parallel.tensor=2", "parallel.sequence=true", "parallel.data=zero1"], 4),
            (&["parallel.pipeline=2", "parallel.schedule=1f1b"], 2),
            (&["parallel.pipeline=2", "parallel.schedule=gpipe", "train.recompute=full"], 4),
            (&["parallel.pipeline=2", "parallel.schedule=chimera"], 2),
            (&["parallel.pipeline=2", "parallel.schedule=interleaved"], 2),
        ] {
            let records =
                run().train(&with(&[&[&lengths[..], batch, layers][..], sets].concat()), ranks, None);
            assert_near(&records, &single, &format!("{lengths}, {sets:?} x {ranks}"));
        }
    }
}

#[test]
fn a_stopped_run_on_documents_ends_with_the_same_bits() {
    for lengths in ["padded", "bucketed"] {
        let recipe = with(&[&format!("train.lengths={lengths}"), "model.dropout=0.1"]);
        let (whole, parts) = (run(), run());
        let wanted = whole.train(&recipe, 1, None);
        let mut records = parts.train(&recipe, 1, Some(7));
        records.extend(parts.train(&recipe, 1, Some(8)));
        records.extend(parts.train(&recipe, 1, None));
        assert_eq!(numbers(&records), numbers(&wanted), "{lengths}");
        assert!(parts.tensors() == whole.tensors(), "{lengths}: other bits after a stop");
        assert_eq!(steps(&records).last().unwrap().tokens, steps(&wanted).last().unwrap().tokens);
    }
}

/// The memory that a step holds is that of its longest micro-batch under the budget, and bits do not change.
#[test]
fn a_run_under_a_budget_has_the_bits_of_one_that_keeps_everything() {
    let sets = ["train.lengths=padded", "model.layers=6", "model.width=32", "train.micro_batch=4"];
    let keeps = with(&[&sets[..], &["train.recompute=none"]].concat());
    let wanted = run().train(&keeps, 1, None);
    let aware = |budget: &str| {
        let budget = format!("train.activation_memory={budget}");
        with(&[&sets[..], &["train.recompute=input-aware", &budget]].concat())
    };
    let found = run().train(&aware("500KiB"), 1, None);
    assert_eq!(numbers(&found), numbers(&wanted));
    let plans = &training(&found).sequences;
    let layers = |seq: &str| -> usize {
        let end = plans.find(&format!(" at {seq} tokens")).unwrap();
        plans[..end].rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(layers("16") > layers("12") && layers("12") > 0 && layers("2") == 0, "{plans}");
    // Refused before the first step, with both numbers.
    let run = run();
    let error = refused(&run, &aware("9KiB"), 1);
    assert!(
        error.contains("train.activation_memory = 9.00 KiB") && error.contains("4 x 16 tokens"),
        "{error}"
    );
    assert!(!run.dir.join("metrics.jsonl").exists());
}

#[test]
fn what_does_not_go_with_documents_is_refused_before_the_first_step() {
    for (sets, ranks, named) in [
        (&["parallel.pipeline=2", "parallel.schedule=zb-h1"][..], 2, "the schedule splits"),
        (
            &[
                "parallel.pipeline=2",
                "parallel.schedule=pipedream",
                "optim.clip=0",
                "model.tied_embeddings=false",
            ],
            2,
            "pipedream",
        ),
        (&["train.batch_tokens=128"], 3, "3 data-parallel ranks"),
        (
            &[
                "parallel.pipeline=2",
                "parallel.schedule=interleaved",
                "model.layers=4",
                "train.batch_tokens=160",
                "train.recompute=input-aware",
                "train.activation_memory=1GiB",
            ],
            2,
            "input-aware",
        ),
    ] {
        let error = refused(&run(), &with(&[&["train.lengths=padded"], sets].concat()), ranks);
        assert!(error.contains(named), "{error}");
    }
}

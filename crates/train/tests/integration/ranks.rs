//! Several ranks train one run: the losses of one rank in every layout, and from one layout to the other.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed unwrap here is a failed test")]

use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use bessemer_tensor::{Backend, TensorError};
use bessemer_train::Outcome;

use crate::device::{Device, Launch};
use crate::place;
use crate::run;

use place::{STEPS, recipe};
use run::{Run, cpu, numbers};

#[track_caller]
fn assert_near(found: &[Record], wanted: &[Record], what: &str) {
    let (found, wanted) = (numbers(found), numbers(wanted));
    assert_eq!(found.len(), wanted.len(), "{what}");
    let distance = |(a, b): (&(u64, f64), &(u64, f64))| {
        assert_eq!(a.0, b.0, "{what}");
        (a.1 - b.1).abs() / b.1.abs().max(1e-9)
    };
    let worst = found.iter().zip(&wanted).map(distance).fold(0.0, f64::max);
    println!("{what}: {worst:.1e}");
    assert!(worst < 1e-5, "{what}: {worst}");
}

fn layout(stage: &str, shard: u64) -> Vec<String> {
    vec![format!("parallel.data={stage}"), format!("parallel.shard={shard}")]
}

/// A recipe with evaluations and samples on the way and at the end.
fn with(sets: &[String]) -> Recipe {
    let mut all = vec![
        "train.z_loss=1e-4",
        "train.micro_batch=2",
        "optim.lr=3e-3",
        "eval.every_steps=10",
        "eval.max_tokens=500",
        "eval.at_end=true",
        "eval.samples.every_steps=12",
        "eval.samples.at_end=true",
        "eval.samples.generate.max_tokens=8",
    ];
    all.extend(sets.iter().map(String::as_str));
    recipe(&all)
}

#[test]
fn every_layout_trains_as_one_rank() {
    let single = Run::new(false).train(&with(&[]), 1, None);
    let samples = |records: &[Record]| records.iter().filter(|r| matches!(r, Record::Sample(_))).count();
    assert_eq!((numbers(&single).len() as u64, samples(&single)), (3 * STEPS + 2 * 3, 2));
    for (stage, shard, tensor, ranks) in [
        ("ddp", 0, 1, 2),
        ("zero1", 0, 1, 2),
        ("zero2", 0, 1, 4),
        ("zero3", 0, 1, 2),
        ("zero3", 2, 1, 4),
        ("ddp", 0, 2, 2),
        ("zero3", 2, 2, 4),
    ] {
        let mut sets = layout(stage, shard);
        sets.extend([
            format!("parallel.tensor={tensor}"),
            format!("parallel.sequence={}", ranks == 4 && tensor == 2),
        ]);
        let records = Run::new(false).train(&with(&sets), ranks, None);
        assert_near(&records, &single, &format!("{stage} {shard}, tensor {tensor} x {ranks}"));
        assert_eq!(samples(&records), 2);
        let Some(Record::Training(training)) = records.iter().find(|r| matches!(r, Record::Training(_)))
        else {
            panic!("no training record");
        };
        assert_eq!(training.ranks, ranks as u64);
        assert!(training.layout.contains("copies"), "{}", training.layout);
    }
}

#[test]
fn a_run_goes_on_in_another_layout() {
    let single = Run::new(false).train(&with(&[]), 1, None);
    let zero3 = with(&layout("zero3", 0));
    let run = Run::new(false);
    let mut records = run.train(&with(&[]), 1, Some(5));
    records.extend(run.train(&zero3, 2, Some(13)));
    records.extend(run.train(&with(&layout("zero1", 2)), 4, Some(14)));
    let groups = ["context=4", "context_heads=2", "context_method=\"ring\"", "data=\"zero3\""];
    let mut groups: Vec<String> = groups.iter().map(|set| format!("parallel.{set}")).collect();
    groups.push("train.micro_batch=1".into());
    records.extend(run.train(&with(&groups), 8, Some(15)));
    let annotated =
        ["parallel.annotate.\"*.mlp.*\"=replicate", "parallel.annotate.\"embed.tokens\"=replicate"];
    let annotated: Vec<String> =
        ["parallel.tensor=2"].iter().chain(&annotated).map(|s| (*s).into()).collect();
    records.extend(run.train(&with(&annotated), 4, Some(17)));
    records.extend(run.train(&with(&["parallel.tensor=2".into()]), 4, Some(18)));
    let lines = ["tensor=2", "sequence=true", "context=2", "context_method=\"ring\""];
    let mut lines: Vec<String> = lines.iter().map(|set| format!("parallel.{set}")).collect();
    lines.push("train.micro_batch=1".into());
    records.extend(run.train(&with(&lines), 4, Some(19)));
    records.extend(run.train(&with(&[]), 1, None));
    let layouts = "1, zero3 x 2, zero1 2 x 2, zero3 2 x context 4 in groups of 2, tensor 2 x 2 annotated, tensor 2 x 2, tensor 2 x context 2, 1";
    assert_near(&records, &single, layouts);
    // In one layout, stops do not change a bit. Gradients in 8 bits train as well.
    let int8 = |sets: Vec<String>| with(&[sets, vec!["parallel.reduce_dtype=int8".into()]].concat());
    let copies = (int8(layout("zero1", 2)), 4);
    for (recipe, ranks) in [(zero3, 2), (int8(layout("ddp", 0)), 2), copies, (int8(layout("zero3", 0)), 2)] {
        let (whole, parts) = (Run::new(false), Run::new(false));
        let wanted = whole.train(&recipe, ranks, None);
        let mut records = parts.train(&recipe, ranks, Some(7));
        records.extend(parts.train(&recipe, ranks, None));
        assert_eq!(numbers(&records), numbers(&wanted));
        assert!(parts.tensors() == whole.tensors(), "other bits after a stop");
        let last = |records: &[Record]| numbers(records).last().map(|last| last.1).unwrap_or_default();
        let apart = (last(&wanted) / last(&single) - 1.0).abs();
        assert!(apart < 2e-2, "{apart}");
    }
}

/// A process is requested to stop by a signal that the others do not get, whichever rank it is.
#[test]
fn a_stop_that_reaches_one_rank_stops_all_with_a_save() {
    for asked in 0..3 {
        let run = Run::new(false);
        let ended = run.stopped_by(
            &with(&["train.batch_tokens=192".into(), "save.every_steps=0".into()]),
            3,
            (5, asked),
        );
        assert_eq!(ended, [Outcome::Stopped; 3], "asked rank {asked}");
        // Another thread may see the flag one step later.
        let saved = |step: u64| run.dir.join(format!("checkpoints/step-{step:08}/manifest.json")).is_file();
        assert!(saved(5) || saved(6), "asked rank {asked}");
    }
}

fn pipeline(schedule: &str, ranks: usize) -> Vec<String> {
    vec![format!("parallel.schedule={schedule}"), format!("parallel.pipeline={ranks}")]
}

#[test]
fn every_pipeline_trains_as_one_rank() {
    let single = Run::new(false).train(&with(&[]), 1, None);
    let samples = |records: &[Record]| records.iter().filter(|r| matches!(r, Record::Sample(_))).count();
    for (schedule, more, ranks) in
        [("1f1b", "ddp", 2), ("zb-v", "ddp", 4), ("chimera", "zero1", 4), ("interleaved", "tensor", 4)]
    {
        let mut sets = pipeline(schedule, 2);
        match more {
            "tensor" => sets.extend(["parallel.tensor=2".into(), "parallel.sequence=true".into()]),
            stage => sets.extend(layout(stage, 0)),
        }
        let records = Run::new(false).train(&with(&sets), ranks, None);
        assert_near(&records, &single, &format!("{schedule} x 2, {more}"));
        assert_eq!(samples(&records), 2);
        let Some(Record::Training(training)) = records.iter().find(|r| matches!(r, Record::Training(_)))
        else {
            panic!("no training record");
        };
        assert!(training.layout.contains(&format!("pipeline 2 ({schedule})")), "{}", training.layout);
    }
}

#[test]
fn a_run_goes_on_in_and_out_of_pipelines() {
    let single = Run::new(false).train(&with(&[]), 1, None);
    let run = Run::new(false);
    let mut records = run.train(&with(&pipeline("1f1b", 2)), 2, Some(5));
    records.extend(run.train(&with(&layout("zero3", 0)), 2, Some(9)));
    let mut cut = pipeline("chimera", 2);
    cut.extend(layout("zero1", 0));
    records.extend(run.train(&with(&cut), 4, Some(14)));
    let mut uneven = pipeline("zb-h1", 4);
    uneven.push("parallel.stages=[0,1,1,0]".into());
    records.extend(run.train(&with(&uneven), 4, Some(19)));
    records.extend(run.train(&with(&[]), 1, None));
    assert_near(&records, &single, "1f1b x 2, zero3 x 2, chimera x 2 zero1 x 2, zb-h1 x 4 uneven, 1");
    let (whole, parts) = (Run::new(false), Run::new(false));
    let wanted = whole.train(&with(&cut), 4, None);
    let mut records = parts.train(&with(&cut), 4, Some(7));
    records.extend(parts.train(&with(&cut), 4, None));
    assert_eq!(numbers(&records), numbers(&wanted));
    assert!(parts.tensors() == whole.tensors(), "other bits after a stop");
}

/// A stop is between two windows, and windows end where the recipe sets it.
#[test]
fn asynchronous_runs_have_the_same_bits_after_a_stop() {
    for schedule in ["pipedream", "pipedream-2bw"] {
        let mut sets = pipeline(schedule, 2);
        for set in ["optim.clip=0", "model.tied_embeddings=false", "parallel.window=3"] {
            sets.push(set.into());
        }
        let (whole, parts) = (Run::new(false), Run::new(false));
        let wanted = whole.train(&with(&sets), 2, None);
        let steps: Vec<_> =
            wanted.iter().filter_map(|r| if let Record::Step(s) = r { Some(s) } else { None }).collect();
        assert!(steps.len() as u64 == STEPS && steps.windows(2).all(|w| w[1].step == w[0].step + 1));
        assert!(steps[STEPS as usize - 1].loss < 0.8 * steps[0].loss, "{schedule} does not learn");
        let mut records = parts.train(&with(&sets), 2, Some(7));
        records.extend(parts.train(&with(&sets), 2, None));
        assert_eq!(numbers(&records), numbers(&wanted), "{schedule}");
        assert!(parts.tensors() == whole.tensors(), "{schedule}: other bits after a stop");
    }
}

/// State of the owners of whole matrices, or of parts of them, is saved and restored whole.
#[test]
fn a_run_of_whole_matrices_goes_on_in_another_layout() {
    for optimizer in ["muon", "adafactor", "kfac"] {
        let chosen = |sets: &[String]| {
            let mut sets = sets.to_vec();
            sets.push(format!("optim.optimizer={optimizer}"));
            sets.push("optim.adafactor.momentum=0.9".into());
            sets.extend(["optim.kfac.lr=0.03".into(), "optim.kfac.inverse_every=3".into()]);
            with(&sets)
        };
        let single = Run::new(false).train(&chosen(&[]), 1, None);
        let zero3 = chosen(&layout("zero3", 0));
        let run = Run::new(false);
        let mut records = run.train(&chosen(&[]), 1, Some(5));
        records.extend(run.train(&zero3, 2, Some(10)));
        records.extend(run.train(&chosen(&layout("zero1", 2)), 4, Some(13)));
        records.extend(run.train(&chosen(&["parallel.tensor=2".into()]), 4, Some(18)));
        records.extend(run.train(&chosen(&[]), 1, None));
        assert_near(&records, &single, &format!("{optimizer}: 1, zero3 x 2, zero1 2 x 2, tensor 2 x 2, 1"));
        let (whole, parts) = (Run::new(false), Run::new(false));
        let wanted = whole.train(&zero3, 2, None);
        let mut records = parts.train(&zero3, 2, Some(7));
        records.extend(parts.train(&zero3, 2, None));
        assert_eq!(numbers(&records), numbers(&wanted), "{optimizer}");
        assert!(parts.tensors() == whole.tensors(), "{optimizer}: other bits after a stop");
    }
}

#[test]
fn ranks_go_back_together() {
    let sets = ["train.spike_action=rewind", "train.spike_sigma=1.5", "train.spike_window=8"];
    let mut sets: Vec<_> = sets.into_iter().map(str::to_owned).collect();
    sets.extend(layout("zero2", 0));
    sets.push("save.every_seconds=1".into());
    let sets: Vec<_> = sets.iter().map(String::as_str).collect();
    let recipe = recipe(&sets);
    let went_back = |records: &[Record]| {
        records
            .iter()
            .filter(|r| matches!(r, Record::Warning(w) if w.message.contains("rolled back")))
            .count()
    };
    let (whole, parts) = (Run::new(true), Run::new(true));
    let wanted = whole.train(&recipe, 2, None);
    assert!(went_back(&wanted) > 0);
    let mut records = parts.train(&recipe, 2, Some(12));
    records.extend(parts.train(&recipe, 2, None));
    assert_eq!(numbers(&records), numbers(&wanted));
    assert_eq!(went_back(&records), went_back(&wanted));
    assert!(parts.tensors() == whole.tensors(), "other bits after a stop");
}

/// A device that breaks after so many launches.
fn breaking(mut left: u64) -> Box<dyn Backend> {
    let launch: Launch = Box::new(move |device, stream, op| {
        left = left
            .checked_sub(1)
            .ok_or(TensorError::Device { during: "launch", problem: "the device broke".into() })?;
        device.launch(stream, op)
    });
    Box::new(Device { inner: cpu(), launch })
}

#[test]
fn a_rank_that_breaks_ends_all_of_them() {
    for (stage, broken) in [("ddp", 0), ("zero2", 1), ("zero3", 2)] {
        for left in [50, 700, 1500] {
            let run = Run::new(false);
            let backend =
                |rank: usize| -> Box<dyn Backend> { if rank == broken { breaking(left) } else { cpu() } };
            let results = run.session(&with(&layout(stage, 0)), 4, None, &backend);
            for (rank, result) in results.iter().enumerate() {
                let error = result.as_ref().unwrap_err();
                assert_eq!(error.is_secondary(), rank != broken, "{stage} {left}, rank {rank}: {error}");
                assert!(rank != broken || error.to_string().contains("the device broke"), "{error}");
            }
        }
    }
}

#[test]
fn what_ranks_cannot_share_is_refused_on_all_of_them() {
    let refused = |sets: &[&str], ranks: usize, words: &str| {
        let run = Run::new(false);
        for result in run.session(&recipe(sets), ranks, None, &|_| cpu()) {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(!run.dir.join("metrics.jsonl").exists());
    };
    refused(&[], 3, "3 data-parallel ranks cannot share equally");
    refused(&["parallel.data=zero1", "parallel.shard=3"], 4, "does not divide the 4 data-parallel ranks");
}

/// Evaluations in the bubbles of the next step report the same values as evaluations between the steps, and change nothing,
/// also where a run is stopped in between.
#[test]
fn evaluation_in_bubbles_changes_no_number() {
    for (ranks, more) in [(2, "parallel.data=ddp"), (4, "parallel.data=zero1")] {
        let sets = [
            more,
            "parallel.pipeline=2",
            "parallel.schedule=1f1b",
            "train.micro_batch=1",
            "eval.every_steps=3",
            "eval.max_tokens=400",
        ];
        let plain = Run::new(false);
        let wanted = plain.train(&recipe(&sets), ranks, None);
        let filled = recipe(&[&sets[..], &["parallel.fill=evaluation"]].concat());
        let (whole, parts) = (Run::new(false), Run::new(false));
        let records = whole.train(&filled, ranks, None);
        let layout = records.iter().find_map(|r| match r {
            Record::Training(t) => Some(t.layout.clone()),
            _ => None,
        });
        let layout = layout.unwrap();
        assert!(layout.contains("bubbles evaluate ") && !layout.contains("evaluate 0 of"), "{layout}");
        assert_eq!(numbers(&records), numbers(&wanted));
        assert!(numbers(&records).len() > 2 * STEPS as usize + 7);
        assert!(whole.tensors() == plain.tensors(), "other bits with evaluation in bubbles");
        // Step 6 is evaluated and not saved but for the stop.
        let mut records = parts.train(&filled, ranks, Some(6));
        records.extend(parts.train(&filled, ranks, None));
        assert_eq!(numbers(&records), numbers(&wanted));
        assert!(parts.tensors() == plain.tensors(), "other bits after a stop");
    }
    let refused = |sets: &[&str], ranks: usize, words: &str| {
        let run = Run::new(false);
        let sets =
            [&["parallel.fill=evaluation", "eval.every_steps=3", "train.micro_batch=1"], sets].concat();
        for result in run.session(&recipe(&sets), ranks, None, &|_| cpu()) {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("parallel.fill") && error.contains(words), "{error}");
        }
    };
    refused(&[], 1, "without a pipeline");
    let alone =
        ["parallel.pipeline=2", "parallel.schedule=pipedream", "parallel.window=1", "train.spike_action=off"];
    refused(&alone, 2, "different steps");
}

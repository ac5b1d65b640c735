//! Samples that no step trains on: from the beginning, after a rollback, after checkpoints were taken away.

use crate::place::recipe;
use crate::run::{Run, cpu, tensor_bytes};
use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use bessemer_train::{SkippedSamples, TrainState, checkpoints};

/// Sequences of a step.
const BATCH: u64 = 8;

/// A session up to its last step, or until step `stop_after`; losses by step, and warnings.
fn train(
    run: &Run,
    recipe: &Recipe,
    ranks: usize,
    stop_after: Option<u64>,
) -> (Vec<(u64, u64)>, Vec<String>) {
    let records = run.session(recipe, ranks, stop_after, &|_| cpu()).remove(0).unwrap();
    let (mut losses, mut warnings) = (Vec::new(), Vec::new());
    for record in records {
        match record {
            Record::Step(step) => losses.push((step.step, step.loss.to_bits())),
            Record::Warning(warning) => warnings.push(warning.message),
            _ => {}
        }
    }
    (losses, warnings)
}

fn state(run: &Run, step: u64) -> TrainState {
    TrainState::of(checkpoints(&run.dir).load(step).unwrap().manifest()).unwrap()
}

/// Tensors of the last checkpoint.
fn tensors(run: &Run) -> Vec<u8> {
    tensor_bytes(&checkpoints(&run.dir).path(48))
}

const SETS: [&str; 3] = ["train.steps=48", "save.every_steps=4", "save.keep_last=20"];

fn with(more: &[&str]) -> Recipe {
    recipe(&[&SETS[..], more].concat())
}

/// The newest checkpoints are moved away and the data of their steps and of two more are skipped: the run has the bits of one
/// that has left them out from its beginning, also when it stops and resumes afterwards.
#[test]
fn a_run_that_goes_back_and_skips_is_the_run_that_always_skipped() {
    for (ranks, more) in [(1, "parallel.data=ddp"), (2, "parallel.data=zero1"), (4, "parallel.pipeline=2")] {
        let always = Run::new(false);
        let (wanted, warnings) = train(&always, &with(&[more, "train.skip_samples=[[96,160]]"]), ranks, None);
        let said = "step 13: begins with sample 160; samples from 96 on are skipped";
        assert_eq!(warnings.iter().filter(|warning| *warning == said).count(), 1, "{warnings:?}");

        let recipe = with(&[more]);
        let run = Run::new(false);
        let (before, _) = train(&run, &recipe, ranks, Some(18));
        assert_eq!(before[..12], wanted[..12]);
        assert_ne!(before[12], wanted[12], "other data");
        let store = checkpoints(&run.dir);
        assert_eq!(SkippedSamples::default().after_steps(&state(&run, 16), 4), 160);
        for newer in [16, 18] {
            std::fs::rename(store.path(newer), run.dir.join(format!("given-up-{newer}"))).unwrap();
        }
        SkippedSamples::add(&run.dir, [96, 160]).unwrap();
        let (mut losses, warnings) = train(&run, &recipe, ranks, Some(22));
        assert_eq!(warnings.iter().filter(|warning| *warning == said).count(), 1, "{warnings:?}");
        let (after, warnings) = train(&run, &recipe, ranks, None);
        assert!(
            !warnings.iter().any(|warning| warning.contains("skipped")),
            "it has passed them: {warnings:?}"
        );
        losses.extend(after);
        assert_eq!(losses, wanted[12..], "{ranks} ranks");
        assert!(tensors(&run) == tensors(&always), "{ranks} ranks");
        let (state, wanted) = (state(&run, 48), state(&always, 48));
        assert_eq!(state.spikes.passed_over, Some(8 * BATCH));
        assert_eq!((state.loader, state.spikes), (wanted.loader, wanted.spikes));
    }
}

/// A spike of the loss is detected, the run goes back to a checkpoint and passes over the data since then: as if they had never been there.
#[test]
fn a_spike_that_was_rewound_leaves_the_bits_of_a_run_without_its_data() {
    let spiky =
        ["save.every_steps=2", "train.spike_action=rewind", "train.spike_sigma=1.5", "train.spike_window=8"];
    let number = |text: &str, before: &str| -> u64 {
        let rest = text.split(before).nth(1).unwrap();
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    for (ranks, more) in [(1, "parallel.data=ddp"), (2, "parallel.data=zero1")] {
        let run = Run::new(true);
        let (losses, warnings) = train(&run, &with(&[&spiky[..], &[more]].concat()), ranks, None);
        let back = warnings.iter().find(|warning| warning.contains("rolled back to step")).expect("a spike");
        let (spike, to) = (number(back, "step "), number(back, "rolled back to step "));
        let skip = format!("train.skip_samples=[[{},{}]]", to * BATCH, spike * BATCH);
        let always = Run::new(true);
        let (wanted, _) = train(&always, &with(&[&spiky[..], &[more, &skip]].concat()), ranks, None);
        // The first time to the spike, and again from the checkpoint on.
        let first = losses.iter().position(|(step, _)| *step == spike - 1).unwrap();
        assert_eq!(losses[..to as usize], wanted[..to as usize]);
        assert_eq!(losses[first + 1..], wanted[to as usize..], "{ranks} ranks");
        assert!(tensors(&run) == tensors(&always), "{ranks} ranks");
        assert_eq!(state(&run, 48).loader, state(&always, 48).loader);
    }
}

/// Windows of asynchronous schedules end before samples that are skipped.
#[test]
fn windows_of_several_steps_end_before_samples_that_are_skipped() {
    let sets = [
        "parallel.pipeline=2",
        "parallel.schedule=pipedream",
        "parallel.window=5",
        "optim.clip=0",
        "model.tied_embeddings=false",
        "train.skip_samples=[[56,64],[100,101]]",
        "save.every_steps=0",
        "train.steps=24",
    ];
    let run = Run::new(false);
    let (losses, warnings) = train(&run, &with(&sets), 2, None);
    assert_eq!(losses.len(), 24);
    // Seven steps, four more after the span, and the twelfth would have begun with sample 96.
    for said in ["step 8: begins with sample 64", "step 12: begins with sample 101"] {
        assert!(warnings.iter().any(|warning| warning.starts_with(said)), "{said}: {warnings:?}");
    }
    let state = state(&run, 24);
    assert_eq!((state.loader.samples, state.spikes.passed_over), (24 * BATCH + 13, Some(13)));
}

#[test]
fn a_file_of_spans_that_cannot_be_read_is_named_on_every_rank() {
    let run = Run::new(false);
    std::fs::write(run.dir.join("skipped-samples.json"), "[]").unwrap();
    for result in run.session(&with(&[]), 2, None, &|_| cpu()) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("skipped-samples.json: invalid"), "{error}");
    }
}

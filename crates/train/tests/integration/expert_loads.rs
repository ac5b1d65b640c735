//! The choices of experts that a run writes down: all steps once, whatever stops it, and the same on any number of ranks.

use crate::place::{STEPS, recipe};
use crate::run::Run;
use bessemer_recipe::Recipe;
use bessemer_runlog::{LOADS_FILE, Loads, Record};

const EXPERTS: usize = 4;

fn mixture(sets: &[&str]) -> Recipe {
    let experts = [
        "model.experts.count=4",
        "model.experts.choices=2",
        "model.experts.width=8",
        "model.experts.layers=[0]",
        "train.micro_batch=2",
    ];
    recipe(&[&experts[..], sets].concat())
}

fn bytes(run: &Run) -> Vec<u8> {
    std::fs::read(run.dir.join(LOADS_FILE)).unwrap()
}

#[test]
fn every_step_has_the_choices_of_its_batch() {
    let run = Run::new(false);
    let records = run.train(&mixture(&[]), 1, None);
    let mut loads = Loads::open(run.dir.as_path()).unwrap().unwrap();
    assert_eq!((loads.experts(), loads.records()), (&[EXPERTS as u32, 0][..], STEPS));
    let steps = records.iter().filter_map(|r| if let Record::Step(step) = r { Some(step) } else { None });
    for (number, step) in (0..STEPS).zip(steps) {
        let found = loads.read(number).unwrap().unwrap();
        assert_eq!((found.step, found.counts.iter().sum::<u32>()), (step.step, 2 * 128));
        let most = *found.counts.iter().max().unwrap() as f64 * EXPERTS as f64 / 256.0;
        assert!((step.experts["load_max"] - most).abs() < 1e-12);
    }
    let dense = Run::new(false);
    dense.train(&recipe(&["train.steps=2"]), 1, None);
    assert!(Loads::open(dense.dir.as_path()).unwrap().is_none());
}

/// Layers of a pyramid have as many loads as experts, and write the bytes of one rank.
#[test]
fn layers_with_different_numbers_of_experts_have_loads_of_their_own() {
    let run = |sets: &[&str], ranks| {
        let pyramid =
            ["model.experts.layers=all", "model.experts.count=[2,4]", "optim.lr=0", "train.steps=3"];
        let run = Run::new(false);
        let records = run.train(&mixture(&[&pyramid, sets].concat()), ranks, None);
        (run, records)
    };
    let (alone, records) = run(&[], 1);
    let mut loads = Loads::open(alone.dir.as_path()).unwrap().unwrap();
    assert_eq!((loads.experts(), loads.records()), (&[2, 4][..], 3));
    let steps = records.iter().filter_map(|r| if let Record::Step(step) = r { Some(step) } else { None });
    for (number, step) in (0..3).zip(steps) {
        let counts = loads.read(number).unwrap().unwrap().counts;
        // Two choices of two experts are both.
        assert_eq!(counts[..2], [128, 128]);
        assert_eq!(counts[2..].iter().sum::<u32>(), 2 * 128);
        let most = f64::from(*counts[2..].iter().max().unwrap()) * 4.0 / 256.0;
        assert!((step.experts["load_max"] - (1.0 + most) / 2.0).abs() < 1e-12);
        assert!((step.experts["load_worst"] - most).abs() < 1e-12);
    }
    let pipeline = ["parallel.pipeline=2", "parallel.schedule=1f1b"];
    for (sets, ranks) in [(&["parallel.experts=2"][..], 2), (&pipeline, 2)] {
        assert!(bytes(&run(sets, ranks).0) == bytes(&alone), "{sets:?}");
    }
}

#[test]
fn a_run_that_stops_or_is_killed_has_each_step_once() {
    let recipe = mixture(&[]);
    let whole = Run::new(false);
    whole.train(&recipe, 1, None);
    let parts = Run::new(false);
    parts.train(&recipe, 1, Some(5));
    parts.train(&recipe, 1, Some(13));
    // A process that was killed after step 13 has no checkpoint of it.
    std::fs::remove_dir_all(parts.dir.join("checkpoints/step-00000013")).unwrap();
    let killed = bytes(&parts);
    std::fs::write(parts.dir.join(LOADS_FILE), &killed[..killed.len() - 7]).unwrap();
    parts.train(&recipe, 1, None);
    assert!(bytes(&parts) == bytes(&whole));
    // A run from the beginning.
    let again = Run::new(false);
    again.train(&recipe, 1, Some(5));
    std::fs::remove_dir_all(again.dir.join("checkpoints")).unwrap();
    again.train(&recipe, 1, None);
    assert!(bytes(&again) == bytes(&whole));
}

/// Parameters stay as they are, so that rounding changes no route.
#[test]
fn ranks_write_the_bytes_of_one_rank() {
    let frozen = |sets: &[&str], ranks| {
        let run = Run::new(false);
        run.train(&mixture(&[&["optim.lr=0", "train.steps=3"], sets].concat()), ranks, None);
        bytes(&run)
    };
    let alone = frozen(&[], 1);
    for (sets, ranks) in [
        (&["parallel.data=zero1"][..], 2),
        (&["parallel.experts=2"], 2),
        (&["parallel.experts=4", "parallel.data=zero3"], 4),
        (&["parallel.tensor=2", "parallel.sequence=true"], 2),
        (&["parallel.pipeline=2", "parallel.schedule=1f1b"], 2),
    ] {
        assert!(frozen(sets, ranks) == alone, "{sets:?}");
    }
}

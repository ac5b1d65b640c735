//! Runs in the grouped order.

use crate::place::{STEPS, recipe};
use crate::run::{Run, cpu, numbers};
use bessemer_runlog::Record;
use bessemer_train::{TrainState, checkpoints};

/// Blocks of 3 windows of 16 tokens, groups of 4 blocks: about 40 groups.
const GROUPED: [&str; 3] = ["loader.order=grouped", "loader.block=100B", "loader.group=400B"];

fn samples(run: &Run) -> bessemer_loader::LoaderState {
    TrainState::of(checkpoints(&run.dir).load(STEPS).unwrap().manifest()).unwrap().loader
}

#[test]
fn a_run_stopped_twice_has_the_bits_of_one_that_was_not() {
    for (ranks, more) in [(1, "parallel.data=ddp"), (2, "parallel.data=zero1"), (4, "parallel.pipeline=2")] {
        let recipe = recipe(&[&GROUPED[..], &[more, "train.micro_batch=2"]].concat());
        let whole = Run::new(false);
        let wanted = whole.train(&recipe, ranks, None);
        let run = Run::new(false);
        let mut records = run.train(&recipe, ranks, Some(7));
        records.extend(run.train(&recipe, ranks, Some(13)));
        records.extend(run.train(&recipe, ranks, None));
        assert_eq!(numbers(&records), numbers(&wanted), "{ranks} ranks");
        assert!(run.tensors() == whole.tensors(), "{ranks} ranks");
        assert_eq!(samples(&run), samples(&whole));
        assert_eq!(samples(&run).grouping.map(|g| (g.block, g.group)), Some((3, 4)));
    }
}

#[test]
fn one_group_is_the_uniform_order() {
    let runs = [&[][..], &["loader.order=grouped"]].map(|sets| {
        let run = Run::new(false);
        let records = run.train(&recipe(sets), 1, None);
        (numbers(&records), run.tensors(), samples(&run))
    });
    assert!(runs[0] == runs[1]);
    let run = Run::new(false);
    assert_ne!(
        numbers(&run.train(&recipe(&GROUPED), 1, None)),
        runs[0].0,
        "several groups are another order"
    );
}

#[test]
fn another_order_is_recorded_and_begins_at_its_beginning() {
    let run = Run::new(false);
    run.train(&recipe(&[]), 1, Some(8));
    let records = run.session(&recipe(&GROUPED), 1, None, &|_| cpu()).remove(0).unwrap();
    let change = records.iter().find_map(|r| if let Record::Change(c) = r { Some(c) } else { None }).unwrap();
    let said = "loader.order, block and group: grouped, 3 windows a block, 4 blocks a group, before uniform";
    assert!(change.effects.iter().any(|effect| effect == said), "{:?}", change.effects);
    assert_eq!(samples(&run).origin.map(|origin| (origin.samples, origin.given)), Some((64, vec![0])));
}

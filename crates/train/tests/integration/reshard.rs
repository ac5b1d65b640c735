//! States go from every layout into every other one without losing a bit, and the next step has the same samples and, up to the order of sums, the
//! same loss.

#![allow(clippy::print_stdout, reason = "the matrix prints its result")]

use crate::place::recipe;
use crate::run::{Run, Watch, cpu};
use bessemer_checkpoint::CheckpointDifference;
use bessemer_recipe::Recipe;
use bessemer_runlog::{Record, Step};
use bessemer_train::{OtherCheckpoints, TrainState, Trainer, checkpoints};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// A layout by its keys, and its ranks.
type Layout = (&'static [&'static str], usize);

/// Every kind of layout: data parallelism and ZeRO, hybrid, tensor and sequence parallelism, grids, context parallelism by each method, pipelines
/// in schedules with and without even stages, and combinations, on up to 16 ranks.
const LAYOUTS: &[Layout] = &[
    (&[], 1),
    (&["parallel.data=ddp"], 4),
    (&["parallel.data=zero1"], 4),
    (&["parallel.data=zero2"], 4),
    (&["parallel.data=zero3"], 4),
    (&["parallel.data=zero3", "parallel.shard=2"], 8),
    (&["parallel.data=zero1", "parallel.shard=4"], 16),
    (&["parallel.tensor=2"], 2),
    (&["parallel.tensor=4", "parallel.sequence=true", "parallel.data=zero2"], 8),
    (&["parallel.tensor={grid=[2,2]}", "train.micro_batch=4"], 4),
    (&["parallel.tensor={grid=[2,1],depth=2}", "train.micro_batch=4", "parallel.data=zero1"], 8),
    (&["parallel.tensor={cube=2}", "train.micro_batch=4"], 8),
    (&["parallel.context=2", "parallel.context_method=ring", "parallel.data=zero1"], 4),
    (&["parallel.context=4", "parallel.context_method=all-gather"], 4),
    (&["parallel.context=2", "parallel.context_method=ulysses", "parallel.tensor=2"], 8),
    (&["parallel.context=4", "parallel.context_method=lightseq", "parallel.data=zero3"], 8),
    (&["parallel.pipeline=2", "parallel.schedule=1f1b", "parallel.stages=[1,3]"], 2),
    (
        &["parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2", "parallel.data=zero1"],
        4,
    ),
    (&["parallel.pipeline=4", "parallel.schedule=zb-h1"], 4),
    (&["parallel.pipeline=2", "parallel.schedule=zb-v", "parallel.tensor=2"], 4),
    (&["parallel.pipeline=2", "parallel.schedule=dualpipe", "parallel.data=ddp"], 4),
    (&["parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true", "parallel.data=zero1"], 16),
    (&["parallel.pipeline=2", "parallel.tensor=2", "parallel.context=2", "parallel.context_method=ring"], 16),
    (&["train.weights=bf16", "train.gradients=bf16", "parallel.data=zero3"], 4),
];

fn with(layout: Layout, steps: u64) -> Recipe {
    let base = [
        "model.layers=4",
        "model.heads=4",
        "model.kv_heads=4",
        "train.batch_tokens=256",
        "train.micro_batch=1",
        "optim.warmup_steps=0",
        "model.dropout=0.1",
        "save.every_steps=0",
    ];
    let mut sets = base.to_vec();
    sets.extend(layout.0);
    let mut recipe = recipe(&sets);
    recipe.train.steps = steps;
    recipe
}

/// Runs a session in a directory, which resumes from the checkpoints of `from` if it has none; returns its steps.
fn session(run: &Run, dir: &Path, layout: Layout, steps: u64, from: &Path) -> Vec<Step> {
    let recipe = with(layout, steps);
    let stop = AtomicBool::new(false);
    let ranks = run.on_ranks(layout.1, &|_, world| {
        let mut watch = Watch { records: Vec::new(), stop_after: None, stop: &[], after: &|_| () };
        let mut input = run.input(&recipe);
        input.directory = bessemer_durable::ConfinedDir::create_named(dir).unwrap();
        let others = OtherCheckpoints { elsewhere: Some(checkpoints(from)), ..Default::default() };
        let mut trainer = Trainer::on_rank_from(input, cpu(), Box::new(world), others)?;
        trainer.run(&mut watch, &stop)?;
        Ok(watch.records)
    });
    let records =
        ranks.into_iter().map(|rank| rank.unwrap_or_else(|e| panic!("{layout:?}: {e}"))).next().unwrap();
    let step = |r| if let Record::Step(s) = r { Some(s) } else { None };
    records.into_iter().filter_map(step).collect()
}

/// The checkpoints of a step in two directories have the same tensors to the bit, and the same place in the data.
fn same_state(a: &Path, b: &Path, step: u64, what: &dyn std::fmt::Debug) {
    let load = |dir: &Path| checkpoints(dir).load(step).unwrap();
    let (a, b) = (load(a), load(b));
    let found = CheckpointDifference::between(&a, &b, &mut |_, _| {}).unwrap();
    assert!(found.same_tensors(), "{what:?}: {:?} {:?} {:?}", found.tensors, found.only_a, found.only_b);
    let state = |l: &bessemer_checkpoint::Loaded| TrainState::of(l.manifest()).unwrap();
    let (a, b) = (state(&a), state(&b));
    assert_eq!(
        (a.step, a.updates(), a.tokens, a.loader),
        (b.step, b.updates(), b.tokens, b.loader),
        "{what:?}"
    );
}

/// Loads the state of `from` after `step` steps in a layout and saves it again, in the new directory that is returned.
fn passed_on(run: &Run, from: &Path, layout: Layout, step: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    assert!(session(run, dir.path(), layout, step, from).is_empty());
    same_state(from, dir.path(), step, &layout);
    dir
}

/// Resumes from each layout of a list in the next one, and back in one rank, whose next step is the one that it would have made.
fn passed_round(layouts: &[Layout]) {
    let run = Run::new(false);
    session(&run, &run.dir, LAYOUTS[0], 2, &run.dir);
    let mut dirs = Vec::new();
    let mut from = run.dir.clone();
    for layout in layouts.iter().chain(&LAYOUTS[..1]) {
        let dir = passed_on(&run, &from, *layout, 2);
        from = dir.path().to_owned();
        dirs.push(dir);
    }
    same_state(&run.dir, &from, 2, &"all of them");
    let wanted = session(&run, &run.dir, LAYOUTS[0], 3, &run.dir);
    let found = session(&run, &from, LAYOUTS[0], 3, &from);
    assert_eq!(found[0].loss.to_bits(), wanted[0].loss.to_bits());
    same_state(&run.dir, &from, 3, &"the next step");
}

#[test]
fn a_state_goes_round_layouts_without_losing_a_bit() {
    // Every third one; the others in the matrix.
    passed_round(&LAYOUTS.iter().copied().skip(1).step_by(3).collect::<Vec<_>>());
}

/// Every layout to every other one: 600 pairs.
#[test]
#[ignore = "many minutes: cargo test -p bessemer-train --test integration reshard:: -- --ignored --nocapture"]
fn every_layout_goes_into_every_other_one() {
    passed_round(&LAYOUTS[1..]);
    let run = Run::new(false);
    session(&run, &run.dir, LAYOUTS[0], 2, &run.dir);
    let mut furthest = 0.0_f64;
    for a in LAYOUTS {
        let here = tempfile::tempdir().unwrap();
        session(&run, here.path(), *a, 3, &run.dir);
        // The next step of one rank.
        let reference = passed_on(&run, here.path(), LAYOUTS[0], 3);
        let wanted = session(&run, reference.path(), LAYOUTS[0], 4, here.path())[0].loss;
        for b in LAYOUTS {
            let there = passed_on(&run, here.path(), *b, 3);
            let found = session(&run, there.path(), *b, 4, here.path());
            assert_eq!((found.len(), found[0].step, found[0].tokens), (1, 4, 4 * 256));
            let apart = (found[0].loss - wanted).abs() / wanted;
            // Weights in bf16 are rounded anew.
            let rounded = b.0.contains(&"train.weights=bf16");
            assert!(apart < if rounded { 5e-3 } else { 1e-6 }, "{a:?} to {b:?}: {apart:.1e}");
            furthest = furthest.max(if rounded { 0.0 } else { apart });
            let states = [there.path(), reference.path()];
            if states.iter().all(|dir| checkpoints(dir).named_steps().unwrap().contains(&4)) {
                let state =
                    |dir| TrainState::of(checkpoints(dir).load(4).unwrap().manifest()).unwrap().loader;
                assert_eq!(state(states[0]), state(states[1]));
            }
        }
    }
    println!("{} layouts: losses at most {furthest:.1e} apart", LAYOUTS.len());
}

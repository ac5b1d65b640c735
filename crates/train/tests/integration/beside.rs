//! Checkpoints that are written during training from a copy made during the passes of a step (`save.async`): they have the bytes of those
//! that training waits for, in all cases.

use crate::bubbles::{CHILD, contents, of_another, saves, spoil_after_step_9, step};
use crate::place::recipe;
use crate::run::{Run, cpu, numbers, tensor_bytes};
use bessemer_checkpoint::Store;
use bessemer_recipe::Recipe;
use bessemer_runlog::{Record, Save, SaveInterval};
use bessemer_train::TrainError;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A run that saves after every step, so that sometimes the next save is due before the previous one is done.
fn saving(choice: &str, sets: &[&str]) -> Recipe {
    let choice = format!("save.async={choice}");
    recipe(&[&["train.micro_batch=2", "save.every_steps=1", "save.keep_last=99", &choice][..], sets].concat())
}

fn save_records(records: &[Record]) -> Vec<&Save> {
    records.iter().filter_map(|r| if let Record::Save(s) = r { Some(s) } else { None }).collect()
}

fn warnings(records: &[Record]) -> Vec<&str> {
    records
        .iter()
        .filter_map(|r| if let Record::Warning(w) = r { Some(w.message.as_str()) } else { None })
        .collect()
}

#[test]
fn a_checkpoint_written_beside_training_has_the_bytes_of_one_that_training_waits_for() {
    let cases: [(usize, &[&str]); 3] = [
        (1, &[]),
        (4, &["parallel.data=zero3", "parallel.tensor=2"]),
        (2, &["parallel.pipeline=2", "train.weights=bf16"]),
    ];
    // Every save is synced several times.
    let last = 10;
    for (ranks, sets) in cases {
        let with = |choice| saving(choice, &[sets, &["train.steps=10"]].concat());
        let (waiting, beside) = (Run::new(false), Run::new(false));
        let wanted = waiting.train(&with("off"), ranks, None);
        // A stop waits for the save in progress, and loses nothing.
        let stop = (ranks == 4).then_some(4);
        let mut found = beside.train(&with("on"), ranks, stop);
        if stop.is_some() {
            assert_eq!(saves(&found), [1, 2, 3, 4]);
            found.extend(beside.train(&with("on"), ranks, None));
        }
        assert_eq!(numbers(&found), numbers(&wanted), "{sets:?}");
        let steps: Vec<u64> = (1..=last).collect();
        assert_eq!((saves(&found), saves(&wanted)), (steps.clone(), steps), "{sets:?}");
        for step in 1..=last {
            let (found, wanted) = (contents(&beside.dir, step), contents(&waiting.dir, step));
            assert_eq!(found.0, wanted.0, "{sets:?}, step {step}");
            assert!(found.1 == wanted.1, "{sets:?}, step {step}: other bytes");
        }
        for (save, waited) in save_records(&found).into_iter().zip(save_records(&wanted)) {
            assert!(waited.stall_seconds.unwrap() >= waited.seconds && waited.copy_seconds.is_none());
            // The last one is waited for.
            let copied = save.copy_seconds.unwrap_or(0.0);
            assert_eq!(save.copy_seconds.is_some(), save.step < last);
            assert!(save.stall_seconds.unwrap() >= copied && copied >= 0.0);
        }
    }
}

#[test]
fn a_rank_without_memory_for_copies_makes_all_ranks_wait() {
    let run = Run::new(false);
    let sets = ["parallel.data=zero1"];
    let needed = |choice: &str| {
        let errors = run.with_memory(&saving(choice, &sets), 2, |_| 0);
        let error = errors.into_iter().next().unwrap().unwrap_err();
        let TrainError::Memory(shortage) = error else { panic!("{error}") };
        assert_eq!(shortage.largest.contains("copies for checkpoints"), choice == "on", "{shortage}");
        shortage.needed.0
    };
    let (copying, waiting) = (needed("on"), needed("off"));
    assert_eq!(needed("auto"), waiting);
    // Rank 1 has no memory for copies.
    let results =
        run.with_memory(&saving("auto", &sets), 2, |rank| if rank == 0 { copying } else { waiting });
    let records = results.into_iter().next().unwrap().unwrap();
    let said =
        warnings(&records).into_iter().filter(|w| w.contains("training waits while checkpoints")).count();
    assert_eq!(said, 1, "{:?}", warnings(&records));
    assert!(save_records(&records).iter().all(|save| save.copy_seconds.is_none()));
    let refused = run.with_memory(&saving("on", &["parallel.data=zero1", "train.steps=30"]), 2, |_| waiting);
    for result in refused {
        assert!(result.unwrap_err().to_string().contains("copies for checkpoints"));
    }
}

#[test]
fn a_save_that_fails_beside_training_ends_all_ranks_with_its_error() {
    let sets = ["parallel.data=zero1", "save.every_steps=5"];
    let (whole, broken) = (Run::new(false), Run::new(false));
    whole.train(&saving("on", &sets), 2, None);
    let (dir, aside) = (broken.dir.join("checkpoints"), broken.dir.join("aside"));
    let after = |step| spoil_after_step_9(step, &dir, &aside);
    let errors = broken.watched(&saving("on", &sets), 2, (None, &after), &|_| cpu());
    let errors: Vec<String> = errors.into_iter().map(|r| r.unwrap_err().to_string()).collect();
    assert!(errors[0].contains("checkpoints"), "{errors:?}");
    // The error is not that rank 0 has left.
    assert!(errors[1].contains("could not begin a checkpoint"), "{errors:?}");
    std::fs::remove_file(&dir).unwrap();
    std::fs::rename(&aside, &dir).unwrap();
    let scan = Store::open(&dir).scan().unwrap();
    assert!(scan.damaged.is_empty() && scan.complete.last().unwrap().step == 5);
    broken.train(&saving("on", &sets), 2, None);
    assert!(broken.tensors() == whole.tensors(), "other bits");
}

#[test]
fn ranks_go_back_to_a_checkpoint_that_was_being_written() {
    let sets = [
        "parallel.data=zero1",
        "train.spike_action=rewind",
        "train.spike_sigma=1.5",
        "train.spike_window=8",
        "eval.every_steps=4",
    ];
    let (plain, copied) = (Run::new(true), Run::new(true));
    let wanted = plain.train(&saving("off", &sets), 2, None);
    let records = copied.train(&saving("on", &sets), 2, None);
    assert!(warnings(&records).iter().any(|w| w.contains("rolled back")));
    assert_eq!(numbers(&records), numbers(&wanted));
    assert!(copied.tensors() == plain.tensors(), "other bits");
}

#[test]
fn a_run_chooses_how_often_it_saves() {
    let auto = |more: &[&str]| {
        let sets = ["save.every=auto", "save.every_steps=0", "train.steps=120", "parallel.data=zero1"];
        saving("auto", &[&sets[..], more].concat())
    };
    let choices = |records: &[Record]| -> Vec<SaveInterval> {
        records
            .iter()
            .filter_map(|r| if let Record::SaveInterval(i) = r { Some(i.clone()) } else { None })
            .collect()
    };
    // Saves may cost all of the time and failures are frequent: saved as often as they can be written.
    let run = Run::new(false);
    let records = run.train(&auto(&["save.overhead=1", "save.mtbf_hours=0.001"]), 2, None);
    let first = choices(&records).swap_remove(0);
    assert_eq!((saves(&records)[0], first.step, first.before), (10, 10, None));
    let most = first
        .budget_steps
        .max(first.writing_steps)
        .max(first.failures_steps.min(first.recovery_steps.unwrap()));
    assert_eq!(first.every_steps, most.max(1));
    // The second save is due so many steps after the first, at the earliest when the cost of the first is known.
    let beside = save_records(&records)[0].steps_beside.unwrap();
    // A save that ends during a step may be noticed after the next one.
    let second = saves(&records)[1];
    let due = [beside, beside + 1].map(|known| (10 + first.every_steps.max(known)).min(120));
    assert!(due.contains(&second), "{second}, {first:?}, {beside}");
    // Saves may cost next to nothing: one save is enough to see that there is no time for another.
    let run = Run::new(false);
    let records = run.train(&auto(&["save.overhead=1e-6"]), 2, None);
    assert_eq!(saves(&records), [10, 120]);
    assert!(choices(&records)[0].budget_steps > 110);
}

#[test]
#[ignore = "started by the test that kills it"]
fn trains_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    of_another(dir.into()).train(&soaking(), SOAK_RANKS, None);
}

/// Ranks of a run that is disturbed.
pub(crate) const SOAK_RANKS: usize = 2;

/// The recipe of a run that is disturbed, with so many checkpoints kept.
pub(crate) fn soak(choice: &str, kept: usize) -> Recipe {
    let kept = format!("save.keep_last={kept}");
    saving(choice, &["parallel.data=zero1", "eval.every_steps=7", "train.steps=24", &kept])
}

pub(crate) fn soaking() -> Recipe {
    soak("on", 3)
}

/// `BESSEMER_KILLS=N` kills (500 without it), as long runs need; one takes some 0.2 s.
#[test]
#[ignore = "takes minutes"]
fn kills_at_random_moments_lose_nothing_behind_the_last_checkpoint() {
    let kills: u32 = std::env::var("BESSEMER_KILLS").map_or(500, |n| n.parse().unwrap());
    let whole = Run::new(false);
    let wanted = whole.train(&soak("off", 99), SOAK_RANKS, None);
    let mut random = 2026u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let (mut killed, mut finished, mut beside, mut before) = (0, 0, 0, 0);
    while killed < kills {
        let run = Run::new(false);
        let checkpoints = run.dir.join("checkpoints");
        let mut newest = 0;
        // Sessions of one run, each killed somewhere after the last, until one reaches the end.
        loop {
            let begun = Instant::now();
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "beside::trains_until_it_is_killed"])
                .env(CHILD, &run.dir)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // Now and then anywhere, else where training is under way.
            let until = match below(4) {
                0 => 0,
                _ => newest + below(3),
            };
            while until > 0 && !step(&run.dir, until).exists() && child.try_wait().unwrap().is_none() {
                assert!(begun.elapsed() < Duration::from_secs(120), "no checkpoint of step {until}");
                std::thread::sleep(Duration::from_micros(200));
                if newest >= until {
                    break;
                }
            }
            std::thread::sleep(Duration::from_micros(below(30_000)));
            let ended = child.try_wait().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            if ended.is_some_and(|code| code.success()) {
                break;
            }
            assert!(ended.is_none(), "the child has failed by itself: {ended:?}");
            killed += 1;
            let partial = |e: std::io::Result<std::fs::DirEntry>| {
                e.unwrap().file_name().to_string_lossy().contains(".partial-")
            };
            let entries = std::fs::read_dir(&checkpoints).into_iter().flatten();
            beside += u32::from(entries.into_iter().any(partial));
            let scan = Store::open(&checkpoints).scan().unwrap();
            assert!(scan.damaged.is_empty(), "{:?}", scan.damaged);
            let last = scan.complete.last().map_or(0, |c| c.step);
            assert!(last >= newest, "checkpoint {newest} was there before, now {last} is the newest");
            before += u32::from(last == 0);
            newest = last;
            for checkpoint in scan.complete {
                let wanted = step(&whole.dir, checkpoint.step);
                assert!(tensor_bytes(&checkpoint.path) == tensor_bytes(&wanted), "step {}", checkpoint.step);
            }
        }
        finished += 1;
        assert!(run.tensors() == whole.tensors(), "other bits after kills");
        let found = bessemer_runlog::read(&run.dir).unwrap().records;
        assert_eq!(numbers(&found), numbers(&wanted));
    }
    println!(
        "{killed} kills of {finished} runs: {beside} beside a save in progress, {before} before the first checkpoint"
    );
    assert!(beside > kills / 10, "{beside} kills landed in a save");
}

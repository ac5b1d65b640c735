//! Checkpoints from copies that are made in bubbles: the bytes of those that are saved between steps, whatever happens meanwhile.

use bessemer_checkpoint::Store;
use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use bessemer_shards::ShardSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::place;
use crate::run;

use place::{STEPS, recipe, tokenizer};
use run::{Run, cpu, numbers, tensor_bytes};

/// A pipeline that saves every `every` steps, from copies or not.
fn saving(every: u64, copies: bool, sets: &[&str]) -> Recipe {
    let (every, fill) = (
        format!("save.every_steps={every}"),
        format!("parallel.fill={}", if copies { "checkpoint" } else { "none" }),
    );
    let mut all = vec![
        "model.layers=4",
        "model.width=32",
        "train.micro_batch=1",
        "save.every_seconds=0",
        "parallel.pipeline=2",
        "parallel.schedule=1f1b",
        &every,
        &fill,
    ];
    all.extend(sets);
    recipe(&all)
}

fn step(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("checkpoints/step-{step:08}"))
}

/// A checkpoint's manifest without the time that the run has taken, and the bytes of its tensors.
fn contents(dir: &Path, number: u64) -> (serde_json::Value, Vec<u8>) {
    let place = step(dir, number);
    let text = std::fs::read(place.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let seconds = manifest.pointer_mut("/state/seconds").unwrap();
    assert!(seconds.as_f64().unwrap() > 0.0);
    *seconds = serde_json::Value::Null;
    if let Some(object) = manifest.as_object_mut() {
        // Of the manifest itself.
        object.remove("checksum");
    }
    (manifest, tensor_bytes(&place))
}

fn saves(records: &[Record]) -> Vec<u64> {
    records.iter().filter_map(|r| if let Record::Save(s) = r { Some(s.step) } else { None }).collect()
}

#[test]
fn a_checkpoint_from_copies_has_the_bytes_of_one_between_steps() {
    let cases: [(usize, &[&str]); 5] = [
        (2, &[]),
        (4, &["parallel.pipeline=4", "parallel.schedule=gpipe"]),
        (4, &["parallel.pipeline=4", "parallel.stages=[0,2,2,0]", "train.weights=bf16"]),
        (4, &["parallel.schedule=zb-v", "parallel.data=zero1"]),
        (4, &["parallel.schedule=chimera", "parallel.tensor=2", "optim.optimizer=muon"]),
    ];
    for (ranks, sets) in cases {
        let (plain, copied) = (Run::new(false), Run::new(false));
        let wanted = plain.train(&saving(5, false, sets), ranks, None);
        let records = copied.train(&saving(5, true, sets), ranks, None);
        assert_eq!(numbers(&records), numbers(&wanted), "{sets:?}");
        assert_eq!(
            (saves(&records), saves(&wanted)),
            (vec![5, 10, 15, 20, STEPS], vec![5, 10, 15, 20, STEPS])
        );
        for number in saves(&records) {
            let (found, wanted) = (contents(&copied.dir, number), contents(&plain.dir, number));
            assert_eq!(found.0, wanted.0, "{sets:?}, step {number}");
            assert!(found.1 == wanted.1, "{sets:?}, step {number}: other bytes");
        }
        let says =
            |r: &Record| matches!(r, Record::Training(t) if t.layout.contains("bubbles copy checkpoints"));
        assert!(records.iter().any(says) && !wanted.iter().any(says));
    }
}

/// A stop right after a save was due finds nothing copied yet; one later finds a checkpoint that is being written.
#[test]
fn stops_wait_for_what_is_copied() {
    let recipe = saving(5, true, &[]);
    let (whole, parts) = (Run::new(false), Run::new(false));
    let wanted = whole.train(&recipe, 2, None);
    let mut records = Vec::new();
    for stop in [Some(5), Some(11), Some(16), None] {
        let session = parts.train(&recipe, 2, stop);
        assert_eq!(saves(&session).last(), Some(&stop.unwrap_or(STEPS)));
        records.extend(session);
    }
    assert_eq!(numbers(&records), numbers(&wanted));
    assert!(parts.tensors() == whole.tensors(), "other bits after stops");
}

#[test]
fn ranks_go_back_to_a_checkpoint_that_was_being_written() {
    let sets =
        ["train.spike_action=rewind", "train.spike_sigma=1.5", "train.spike_window=8", "eval.every_steps=4"];
    let (plain, copied) = (Run::new(true), Run::new(true));
    let wanted = plain.train(&saving(1, false, &sets), 2, None);
    let records = copied.train(&saving(1, true, &sets), 2, None);
    let back = |r: &&Record| matches!(r, Record::Warning(w) if w.message.contains("went back"));
    assert!(records.iter().filter(back).count() > 0);
    assert_eq!(numbers(&records), numbers(&wanted));
    assert!(copied.tensors() == plain.tensors(), "other bits");
}

/// What cannot be written ends the run, on every rank, and leaves what was there.
#[test]
fn a_save_that_fails_ends_the_run_and_keeps_the_one_before() {
    let recipe = saving(5, true, &[]);
    let (whole, broken) = (Run::new(false), Run::new(false));
    whole.train(&recipe, 2, None);
    let (dir, aside) = (broken.dir.join("checkpoints"), broken.dir.join("aside"));
    let after = |step: u64| {
        if step == 9 {
            // The thread that writes the one before may not be there yet.
            let begun = Instant::now();
            while !dir.join("step-00000005").exists() {
                assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint of step 5");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::rename(&dir, &aside).unwrap();
            std::fs::write(&dir, "not a directory").unwrap();
        }
    };
    let errors = broken.watched(&recipe, 2, (None, &after), &|_| cpu());
    let errors: Vec<String> = errors.into_iter().map(|r| r.unwrap_err().to_string()).collect();
    assert!(errors[0].contains("checkpoints"), "{errors:?}");
    std::fs::remove_file(&dir).unwrap();
    std::fs::rename(&aside, &dir).unwrap();
    let scan = Store::open(&dir).scan().unwrap();
    assert!(scan.damaged.is_empty() && scan.complete.last().unwrap().step == 5);
    broken.train(&recipe, 2, None);
    assert!(broken.tensors() == whole.tensors(), "other bits");
}

/// A run directory that another process has made.
fn of_another(dir: PathBuf) -> Run {
    let open = |split| Arc::new(ShardSet::open(dir.join("shards"), split).unwrap());
    let (train, validation) = (open("train"), open("validation"));
    Run { dir, _temporary: None, tokenizer: Arc::new(tokenizer()), train, validation }
}

const CHILD: &str = "BESSEMER_TEST_RUN";

#[test]
#[ignore = "started by the test that kills it"]
fn trains_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    of_another(dir.into()).train(&saving(1, true, &["parallel.pipeline=4"]), 4, None);
}

/// Every step saves, so that a checkpoint is being copied or written whenever the process dies.
#[test]
fn a_kill_leaves_the_last_whole_checkpoint() {
    let recipe = saving(1, true, &["parallel.pipeline=4"]);
    let (whole, killed) = (Run::new(false), Run::new(false));
    let wanted = whole.train(&recipe, 4, None);
    let checkpoints = killed.dir.join("checkpoints");
    for (at, delay) in [(3, 0), (8, 3), (13, 7)] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "bubbles::trains_until_it_is_killed"])
            .env(CHILD, &killed.dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !step(&killed.dir, at).exists() {
            assert!(child.try_wait().unwrap().is_none(), "the child has ended by itself");
            assert!(begun.elapsed() < Duration::from_secs(120), "no checkpoint of step {at}");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        child.wait().unwrap();
        let scan = Store::open(&checkpoints).scan().unwrap();
        assert!(scan.damaged.is_empty(), "{:?}", scan.damaged);
        let last = scan.complete.last().unwrap().step;
        assert!(last >= at && last < STEPS, "{last}");
        for checkpoint in scan.complete {
            let wanted = step(&whole.dir, checkpoint.step);
            assert!(tensor_bytes(&checkpoint.path) == tensor_bytes(&wanted), "step {}", checkpoint.step);
        }
    }
    let records = killed.train(&recipe, 4, None);
    let Some(Record::Resume(resume)) = records.iter().find(|r| matches!(r, Record::Resume(_))) else {
        panic!("the run began anew");
    };
    assert!(resume.step >= 13);
    let late: Vec<_> = numbers(&wanted).into_iter().filter(|(step, _)| *step > resume.step).collect();
    assert_eq!(numbers(&records), late);
    assert!(killed.tensors() == whole.tensors(), "other bits after kills");
}

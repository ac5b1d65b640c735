//! Checkpoints from copies that are made in bubbles: they have the bytes of those that are saved between steps, in all cases.

use bessemer_checkpoint::Store;
use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use bessemer_shards::ShardSet;
use bessemer_test_tier::part;
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
        "save.async=off",
        "parallel.pipeline=2",
        "parallel.schedule=1f1b",
        &every,
        &fill,
    ];
    all.extend(sets);
    recipe(&all)
}

pub(crate) fn step(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("checkpoints/step-{step:08}"))
}

/// A checkpoint's manifest without the time that the run has taken and its name, and the bytes of its tensors.
pub(crate) fn contents(dir: &Path, number: u64) -> (serde_json::Value, Vec<u8>) {
    let place = step(dir, number);
    let text = std::fs::read(place.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let seconds = manifest.pointer_mut("/state/seconds").unwrap();
    assert!(seconds.as_f64().unwrap() > 0.0);
    *seconds = serde_json::Value::Null;
    *manifest.pointer_mut("/state/run").unwrap() = serde_json::Value::Null;
    if let Some(object) = manifest.as_object_mut() {
        // The checksum of the manifest itself, and that of the preceding one, which states other seconds.
        object.remove("checksum");
        object.remove("previous");
    }
    (manifest, tensor_bytes(&place))
}

pub(crate) fn saves(records: &[Record]) -> Vec<u64> {
    records.iter().filter_map(|r| if let Record::Save(s) = r { Some(s.step) } else { None }).collect()
}

#[test]
fn a_checkpoint_from_copies_has_the_bytes_of_one_between_steps() {
    let cases: [(usize, &[&str]); 6] = [
        (2, &[]),
        (4, &["parallel.pipeline=4", "parallel.schedule=gpipe"]),
        (4, &["parallel.pipeline=4", "parallel.stages=[0,2,2,0]", "train.weights=bf16"]),
        (4, &["parallel.schedule=zb-v", "parallel.data=zero1"]),
        (4, &["parallel.data=zero1", "optim.state=int8-embeddings", "model.width=64"]),
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

/// K-FAC's settings of the tests below.
const KFAC: [&str; 6] = [
    "optim.optimizer=kfac",
    "optim.kfac.lr=0.03",
    "eval.max_tokens=600",
    // Bubbles in which a refresh takes few steps.
    "model.width=16",
    "train.batch_tokens=512",
    "train.micro_batch=4",
];

/// A run whose bubbles are filled with `fill`, which saves every 3 and evaluates every 4 steps.
fn filling(fill: &str, sets: &[&str]) -> Recipe {
    let fill = format!("parallel.fill={fill}");
    saving(3, false, &[&[fill.as_str(), "eval.every_steps=4"], sets].concat())
}

/// Evaluations of step s may come after the record of step s, or after that of a save.
fn sorted(records: &[Record]) -> Vec<(u64, f64)> {
    let mut numbers = numbers(records);
    numbers.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    numbers
}

#[test]
fn several_kinds_of_work_share_bubbles_and_change_no_bit() {
    let cases: [(usize, &[&str]); 4] = [
        (2, &[]),
        (4, &["parallel.tensor=2"]),
        (4, &["parallel.schedule=interleaved", "parallel.data=zero1"]),
        (4, &["parallel.pipeline=4", "parallel.schedule=gpipe"]),
    ];
    for (number, (ranks, sets)) in cases.into_iter().enumerate() {
        let sets = [&KFAC[..], &["train.steps=64", "train.micro_batch=8"], sets].concat();
        let plain = Run::new(false);
        let wanted = plain.train(&filling("kfac", &sets), ranks, None);
        // Saves wait for the end of a refresh.
        assert!(saves(&wanted).len() > 2, "{sets:?}: {:?}", saves(&wanted));
        let fills = ["[\"kfac\", \"checkpoint\"]", "[\"checkpoint\", \"evaluation\", \"kfac\"]"];
        for fill in part(fills, number % 2, 2) {
            let filled = Run::new(false);
            let records = filled.train(&filling(fill, &sets), ranks, None);
            assert_eq!(sorted(&records), sorted(&wanted), "{sets:?}, {fill}");
            assert_eq!(saves(&records), saves(&wanted), "{sets:?}, {fill}");
            for number in saves(&records) {
                let (found, wanted) = (contents(&filled.dir, number), contents(&plain.dir, number));
                assert_eq!(found.0, wanted.0, "{sets:?}, {fill}, step {number}");
                assert!(found.1 == wanted.1, "{sets:?}, {fill}, step {number}: other bytes");
            }
            let layout = records.iter().find_map(|r| match r {
                Record::Training(t) => Some(t.layout.clone()),
                _ => None,
            });
            let layout = layout.unwrap();
            assert!(
                layout.contains("refresh K-FAC every") && layout.contains("copy checkpoints"),
                "{layout}"
            );
            assert_eq!(layout.contains("bubbles evaluate"), fill.contains("evaluation"), "{layout}");
        }
    }
}

/// Copies the files of a run but for its checkpoints after `last`.
fn up_to(run: &Run, last: u64) -> Run {
    let other = Run::new(false);
    for entry in std::fs::read_dir(&run.dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, other.dir.join(path.file_name().unwrap())).unwrap();
        }
    }
    std::fs::create_dir_all(other.dir.join("checkpoints")).unwrap();
    for entry in std::fs::read_dir(run.dir.join("checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.strip_prefix("step-").is_some_and(|number| number.parse::<u64>().unwrap() <= last) {
            std::fs::create_dir(other.dir.join("checkpoints").join(&name)).unwrap();
            for file in std::fs::read_dir(&path).unwrap() {
                let file = file.unwrap().path();
                std::fs::copy(
                    &file,
                    other.dir.join("checkpoints").join(&name).join(file.file_name().unwrap()),
                )
                .unwrap();
            }
        }
    }
    other
}

/// A run that dies in the middle of a refresh resumes from the checkpoint before that refresh; a stop waits for its end; and a
/// run that ended in the middle begins a refresh when it is given more steps.
#[test]
fn a_run_goes_on_after_it_ended_amid_a_refresh() {
    let recipe = filling("[\"kfac\", \"checkpoint\"]", &KFAC);
    let whole = Run::new(false);
    let wanted = whole.train(&recipe, 2, None);
    let saved = saves(&wanted);
    // Saves are due every 3 steps, and some had to wait.
    assert!(saved.iter().any(|step| *step % 3 > 0 && *step < STEPS), "{saved:?}");
    let killed = up_to(&whole, saved[1]);
    let records = killed.train(&recipe, 2, None);
    assert!(records.iter().any(|r| matches!(r, Record::Resume(r) if r.step == saved[1])));
    assert!(killed.tensors() == whole.tensors(), "other bits after a kill");

    let amid = (saved[0] + 1..STEPS).find(|step| !saved.contains(step)).unwrap();
    let stopped = Run::new(false);
    let first = stopped.train(&recipe, 2, Some(amid));
    assert!(*saves(&first).last().unwrap() >= amid);
    let mut all = first;
    all.extend(stopped.train(&recipe, 2, None));
    assert_eq!(sorted(&all), sorted(&wanted));
    assert!(stopped.tensors() == whole.tensors(), "other bits after a stop");

    // The same result with and without copies.
    let plain = Run::new(false);
    plain.train(&filling("kfac", &KFAC), 2, None);
    let longer = ["train.steps=31"];
    let mut last = Vec::new();
    for (run, fill) in [(&whole, "[\"kfac\", \"checkpoint\"]"), (&plain, "kfac")] {
        let records = run.train(&filling(fill, &[&KFAC[..], &longer].concat()), 2, None);
        assert!(records.iter().any(|r| matches!(r, Record::Resume(r) if r.step == STEPS)));
        last.push((numbers(&records), tensor_bytes(&step(&run.dir, 31))));
    }
    assert!(last[0] == last[1], "other bits after more steps");
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
    let back = |r: &&Record| matches!(r, Record::Warning(w) if w.message.contains("rolled back"));
    assert!(records.iter().filter(back).count() > 0);
    assert_eq!(numbers(&records), numbers(&wanted));
    assert!(copied.tensors() == plain.tensors(), "other bits");
}

/// After step 9, when the checkpoint of step 5 is there: puts a file in the place of the checkpoints, which go `aside`.
pub(crate) fn spoil_after_step_9(step: u64, dir: &Path, aside: &Path) {
    if step == 9 {
        // The thread that writes the preceding one may not be done yet.
        let begun = Instant::now();
        while !dir.join("step-00000005").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint of step 5");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::rename(dir, aside).unwrap();
        std::fs::write(dir, "not a directory").unwrap();
    }
}

/// A failed write ends the run, on every rank, and leaves the existing checkpoints.
#[test]
fn a_save_that_fails_ends_the_run_and_keeps_the_one_before() {
    let recipe = saving(5, true, &[]);
    let (whole, broken) = (Run::new(false), Run::new(false));
    whole.train(&recipe, 2, None);
    let (dir, aside) = (broken.dir.join("checkpoints"), broken.dir.join("aside"));
    let after = |step| spoil_after_step_9(step, &dir, &aside);
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
pub(crate) fn of_another(dir: PathBuf) -> Run {
    let open = |split| Arc::new(ShardSet::open(dir.join("shards"), split).unwrap());
    let (train, validation) = (open("train"), open("validation"));
    Run { dir, _temporary: None, tokenizer: Arc::new(tokenizer()), train, validation }
}

pub(crate) const CHILD: &str = "BESSEMER_TEST_RUN";

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

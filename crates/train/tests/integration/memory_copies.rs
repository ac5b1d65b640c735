//! Runs that die and resume from copies of the state in memory, with the bits of a run that nothing disturbs.

use crate::device::{Device, Launch};
use crate::place::recipe;
use crate::run::{Run, Watch, cpu};
use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use bessemer_tensor::{Backend, TensorError};
use bessemer_train::{TrainError, Trainer};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A run, and the memory of its hosts: of all ranks together, or of each rank.
struct Case {
    run: Run,
    memory: TempDir,
    ranks: usize,
    apart: bool,
    sets: Vec<String>,
    /// Indexed by rank, if any: MiB for copies, and the destination of the rest.
    limits: Vec<u64>,
    overflow: &'static str,
}

impl Case {
    fn new(ranks: usize, apart: bool, sets: &[&str]) -> Case {
        let sets = sets.iter().map(|s| (*s).to_owned()).collect();
        let (run, memory) = (Run::new(false), tempfile::tempdir().unwrap());
        Case { run, memory, ranks, apart, sets, limits: Vec::new(), overflow: "none" }
    }

    /// Memory for copies of each rank, in MiB.
    fn with_limits(self, limits: &[u64], overflow: &'static str) -> Case {
        Case { limits: limits.into(), overflow, ..self }
    }

    fn host(&self, rank: usize) -> PathBuf {
        let host = self.memory.path().join(if self.apart { format!("host-{rank}") } else { "host".into() });
        std::fs::create_dir_all(&host).unwrap();
        host
    }

    fn recipe(&self, rank: usize, keep: &str) -> Recipe {
        let mut sets = vec![
            "save.every_steps=0".to_owned(),
            "save.every_seconds=0".into(),
            format!("save.memory.keep={keep}"),
            "save.memory.ranks_per_domain=1".into(),
            format!("save.memory.directory={}", self.host(rank).display()),
        ];
        sets.extend(self.sets.iter().cloned());
        if let Some(limit) = self.limits.get(rank).filter(|_| keep == "own") {
            sets.push(format!("save.memory.limit_mib={limit}"));
            sets.push(format!("save.memory.overflow={}", self.overflow));
        }
        recipe(&sets.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Runs a session; after step `dies`, and when the copies have reached the peers, the device of rank `victim` breaks. Returns the first rank's
    /// records.
    fn session(&self, keep: &str, dies: Option<(u64, usize)>) -> Vec<Record> {
        let broken = Arc::new(AtomicBool::new(false));
        let after = |step: u64| {
            if dies.is_some_and(|(at, _)| step >= at) && !broken.load(Ordering::SeqCst) {
                if self.apart && keep == "peers" {
                    self.wait_for_peers();
                }
                broken.store(true, Ordering::SeqCst);
            }
        };
        let flag = [AtomicBool::new(false)];
        let ends = self.run.on_ranks(self.ranks, &|rank, world| {
            let mut watch = Watch { records: Vec::new(), stop_after: None, stop: &flag, after: &after };
            let recipe = self.recipe(rank, keep);
            let broken = Arc::clone(&broken);
            let launch: Launch = Box::new(move |device, stream, op| {
                match dies.is_some_and(|(_, victim)| victim == rank) && broken.load(Ordering::SeqCst) {
                    true => Err(TensorError::Device { during: "launch", problem: "the device broke".into() }),
                    false => device.launch(stream, op),
                }
            });
            let device: Box<dyn Backend> = Box::new(Device { inner: cpu(), launch });
            let mut trainer = Trainer::on_rank(self.run.input(&recipe), device, Box::new(world))?;
            let result = trainer.run(&mut watch, &flag[0]);
            Ok::<_, TrainError>((watch.records, result.is_ok()))
        });
        let mut ends: Vec<_> = ends.into_iter().map(|end| end.unwrap()).collect();
        assert!(ends.iter().all(|end| end.1 == dies.is_none()));
        ends.swap_remove(0).0
    }

    /// Waits until the newest copy of each rank's state is also in the memory of another host. The duration depends on the load: a
    /// busy machine must not change the result of a test.
    fn wait_for_peers(&self) {
        let newest = |holder: usize, of: usize| {
            let slots = self.slots(holder, of).into_iter().map(|path| slot(&path));
            slots.filter(|slot| slot.0).max()
        };
        let elsewhere = |of: usize| {
            let own = newest(of, of);
            own.is_some() && (0..self.ranks).any(|holder| holder != of && newest(holder, of) == own)
        };
        let begun = Instant::now();
        while !(0..self.ranks).all(elsewhere) {
            assert!(begun.elapsed() < Duration::from_secs(300), "copies do not reach the peers");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Files of the slots in which a rank keeps its own state or another's.
    fn slots(&self, holder: usize, of: usize) -> Vec<PathBuf> {
        let list =
            |dir: &Path| std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
        let of_run = list(&self.host(holder)).pop().unwrap();
        let name = format!("rank-{holder:05}-of-{of:05}-");
        let mut slots = list(&of_run);
        slots.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with(&name));
        slots.sort();
        slots
    }
}

/// Flips a bit of the data of a slot.
fn flip(path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 4096 + 777).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 4096 + 777).unwrap();
}

/// Whether the copy in a slot is complete, and its step.
fn slot(path: &Path) -> (bool, u64) {
    let mut header = [0; 72];
    File::open(path).unwrap().read_exact_at(&mut header, 0).unwrap();
    (header[12..16] == 2u32.to_le_bytes(), u64::from_le_bytes(header[64..].try_into().unwrap()))
}

/// Step of the copy in a slot.
fn step_of(path: &Path) -> u64 {
    slot(path).1
}

/// The step and the place from which a session went on.
fn resumed(records: &[Record]) -> Option<(u64, String)> {
    records.iter().find_map(|r| match r {
        Record::Resume(r) => Some((r.step, r.path.clone())),
        _ => None,
    })
}

fn warnings(records: &[Record]) -> String {
    let text = |r: &Record| match r {
        Record::Warning(w) => Some(w.message.clone()),
        _ => None,
    };
    records.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_run_that_dies_goes_on_from_memory_in_every_layout() {
    for (ranks, sets) in [
        (1, &[][..]),
        (2, &["parallel.data=ddp"]),
        (2, &["parallel.data=zero3", "optim.optimizer=muon"]),
        (4, &["parallel.data=zero1", "parallel.tensor=2", "train.micro_batch=2"]),
        (2, &["parallel.pipeline=2", "train.micro_batch=2"]),
    ] {
        let wanted = Case::new(ranks, false, sets);
        wanted.session("none", None);
        let case = Case::new(ranks, false, sets);
        case.session("own", Some((5, ranks - 1)));
        let (step, path) = resumed(&case.session("own", Some((13, 0)))).unwrap();
        assert!((4..=5).contains(&step) && path.starts_with("own memory"), "{sets:?}: step {step}, {path}");
        let (step, _) = resumed(&case.session("own", None)).unwrap();
        assert!((12..=13).contains(&step), "{sets:?}: step {step}");
        assert!(case.run.tensors() == wanted.run.tensors(), "{sets:?}: other bits");
        assert_eq!(std::fs::read_dir(case.host(0)).unwrap().count(), 0, "the run has ended");
    }
}

/// Each rank is a host of its own. Host 1 loses its memory: its state comes from host 0, which holds it, and the run ends with the same bits.
#[test]
fn a_lost_hosts_state_comes_from_its_peer() {
    for (ranks, sets) in [
        (4, &["parallel.data=zero3", "train.micro_batch=2"][..]),
        (3, &["train.micro_batch=1", "train.batch_tokens=96"]),
    ] {
        let wanted = Case::new(ranks, true, sets);
        wanted.session("none", None);
        let case = Case::new(ranks, true, sets);
        case.session("peers", Some((12, 0)));
        std::fs::remove_dir_all(case.host(1)).unwrap();
        let records = case.session("peers", Some((18, 2)));
        let (step, path) = resumed(&records).unwrap();
        assert!(
            (1..=12).contains(&step) && path.contains("1 of"),
            "step {step}, {path}: {}",
            warnings(&records)
        );
        // Two hosts of one group are lost: there is no copy of their state, and no checkpoint.
        if ranks == 4 {
            std::fs::remove_dir_all(case.host(0)).unwrap();
            std::fs::remove_dir_all(case.host(1)).unwrap();
            let records = case.session("peers", None);
            assert_eq!(resumed(&records), None);
            assert!(
                warnings(&records).contains("no host has a copy of the state of rank 0 in memory"),
                "{}",
                warnings(&records)
            );
        } else {
            case.session("peers", None);
        }
        assert!(case.run.tensors() == wanted.run.tensors(), "{sets:?}: other bits");
    }
}

/// A flipped bit in the newest copy costs one step; in both, the run resumes from disk.
#[test]
fn a_flipped_bit_is_found_and_the_next_copy_is_used() {
    let sets = ["parallel.data=zero3", "save.every_steps=6"];
    let wanted = Case::new(2, false, &sets);
    wanted.session("none", None);
    let case = Case::new(2, false, &sets);
    case.session("own", Some((10, 0)));
    let newest = case.slots(1, 1).into_iter().max_by_key(|path| step_of(path)).unwrap();
    let step = step_of(&newest);
    flip(&newest);
    let records = case.session("own", Some((16, 0)));
    let (found, _) = resumed(&records).unwrap();
    assert!(found < step && found >= 8, "step {found}, damaged was {step}");
    assert!(warnings(&records).contains("damaged") || found + 1 < step, "{}", warnings(&records));
    case.slots(1, 1).iter().for_each(|path| flip(path));
    let records = case.session("own", None);
    let (found, path) = resumed(&records).unwrap();
    assert!(found == 12 && path.contains("step-00000012"), "step {found}, {path}");
    assert!(warnings(&records).contains("damaged"), "{}", warnings(&records));
    assert!(case.run.tensors() == wanted.run.tensors(), "other bits");
}

/// Ranks are hosts of their own, and some have less memory than their copies take: other hosts' memory, or the disk, holds the rest. The run ends
/// with the bits of one that nothing disturbs.
#[test]
fn what_a_ranks_memory_has_no_space_for_lies_in_other_memory_or_on_disk() {
    const ZERO: &[&str] = &["parallel.data=zero3", "train.micro_batch=1", "train.batch_tokens=96"];
    const PIPELINE: &[&str] = &["parallel.pipeline=2", "train.micro_batch=2"];
    // Indexed by rank: (holder, part) of each part in memory, and whether any is on disk.
    let split: &[(usize, usize)] = &[(0, 0), (1, 1), (1, 2)];
    for (sets, limits, overflow, in_memory, on_disk) in [
        (PIPELINE, &[3, 64][..], "ranks", split, false),
        (ZERO, &[3, 64, 3], "ranks", &[(0, 0), (1, 1), (1, 3), (1, 4), (2, 2)], false),
        (ZERO, &[3, 3, 3], "disk", &[(0, 0), (1, 1), (2, 2)], true),
        (&[], &[3], "disk", &[(0, 0)], true),
    ] {
        let sets: Vec<&str> = sets.iter().copied().chain(["model.width=96"]).collect();
        let ranks = limits.len();
        let wanted = Case::new(ranks, true, &sets);
        wanted.session("none", None);
        let case = Case::new(ranks, true, &sets).with_limits(limits, overflow);
        let records = case.session("own", Some((5, ranks - 1)));
        assert_eq!(warnings(&records), "", "{sets:?}");
        let pairs = (0..ranks).flat_map(|holder| (0..ranks + 3).map(move |part| (holder, part)));
        let found: Vec<_> = pairs.filter(|(holder, part)| case.slots(*holder, *part).len() == 2).collect();
        assert_eq!(found, in_memory, "{sets:?}");
        assert_eq!(case.run.dir.join("checkpoints/.memory").exists(), on_disk);
        let records = case.session("own", Some((13, 0)));
        let (step, path) = resumed(&records).unwrap();
        assert!((4..=5).contains(&step) && path.starts_with("own memory"), "{sets:?}: step {step}, {path}");
        let (step, _) = resumed(&case.session("own", None)).unwrap();
        assert!((12..=13).contains(&step), "{sets:?}: step {step}");
        assert!(case.run.tensors() == wanted.run.tensors(), "{sets:?}: other bits");
        assert_eq!(std::fs::read_dir(case.host(0)).unwrap().count(), 0, "the run has ended");
        assert!(!case.run.dir.join("checkpoints/.memory").exists(), "the run has ended");
    }
}

/// A bit that is flipped in memory that holds another rank's state is found; without `save.memory.overflow` there are no copies at all.
#[test]
fn parts_in_other_memory_are_verified() {
    let sets = ["parallel.pipeline=2", "train.micro_batch=2", "model.width=96"];
    let case = Case::new(2, true, &sets).with_limits(&[3, 64], "ranks");
    case.session("own", Some((10, 0)));
    let newest = case.slots(1, 2).into_iter().max_by_key(|path| step_of(path)).unwrap();
    flip(&newest);
    let records = case.session("own", Some((16, 0)));
    let (step, _) = resumed(&records).unwrap();
    assert!((8..10).contains(&step), "step {step}");
    assert!(warnings(&records).contains("damaged"), "{}", warnings(&records));
    let none = Case::new(2, true, &sets).with_limits(&[3, 64], "none");
    let text = warnings(&none.session("own", None));
    assert!(text.contains("rank 0: ") && text.contains("save.memory.overflow"), "{text}");
}

/// One host is lost, and after the restart, before another copy is made, the other one: the copy that the run resumed from is in both memories again.
#[test]
fn a_restarted_run_is_in_its_peers_memory_before_the_next_copy() {
    let case = Case::new(2, true, &["save.memory.every_steps=5"]);
    case.session("peers", Some((14, 0)));
    std::fs::remove_dir_all(case.host(1)).unwrap();
    let (first, _) = resumed(&case.session("peers", Some((14, 0)))).unwrap();
    std::fs::remove_dir_all(case.host(0)).unwrap();
    let records = case.session("peers", None);
    let (step, path) = resumed(&records).unwrap_or_else(|| panic!("from {first}: {}", warnings(&records)));
    assert!(
        step >= first && path.contains("1 of 2 ranks from a peer's"),
        "from {first}: step {step}, {path}"
    );
}

/// A lost host's newest copy is damaged in its peer's memory: all resume from the preceding one.
#[test]
fn a_flipped_bit_in_a_peers_memory_is_found() {
    let case = Case::new(2, true, &["save.memory.every_steps=5"]);
    case.session("peers", Some((14, 0)));
    std::fs::remove_dir_all(case.host(1)).unwrap();
    let newest = case.slots(0, 1).into_iter().max_by_key(|path| step_of(path)).unwrap();
    // The copy of step 10, unless it was still in flight.
    let was_there = step_of(&newest) == 10;
    if was_there {
        flip(&newest);
    }
    let records = case.session("peers", None);
    let (step, path) = resumed(&records).unwrap();
    assert!(step == 5 && path.contains("1 of 2 ranks from a peer's"), "step {step}, {path}");
    assert_eq!(warnings(&records).contains("damaged"), was_there, "{}", warnings(&records));
}

/// Hosts that were cut off return with copies of steps that the run has taken back since. They are intact, and not the run's.
#[test]
fn copies_of_a_past_that_the_run_has_left_are_refused() {
    let wanted = Case::new(2, true, &[]);
    wanted.session("none", None);
    let case = Case::new(2, true, &[]);
    case.session("peers", Some((12, 0)));
    let aside = |rank: usize| case.memory.path().join(format!("aside-{rank}"));
    (0..2).for_each(|rank| std::fs::rename(case.host(rank), aside(rank)).unwrap());
    let records = case.session("peers", Some((5, 0)));
    assert_eq!(resumed(&records), None, "there is neither a copy nor a checkpoint");
    for rank in 0..2 {
        std::fs::remove_dir_all(case.host(rank)).unwrap();
        std::fs::rename(aside(rank), case.host(rank)).unwrap();
    }
    let records = case.session("peers", None);
    assert_eq!(resumed(&records), None);
    let text = warnings(&records);
    assert!(text.contains("launch 1") && text.contains("has since continued from an older step"), "{text}");
    assert!(case.run.tensors() == wanted.run.tensors(), "other bits");
}

#[test]
fn two_runs_on_one_host_keep_their_copies_apart() {
    let first = Case::new(2, false, &[]);
    let there = format!("save.memory.directory={}", first.host(0).display());
    let second = Case::new(1, false, &[&there]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| first.session("own", Some((6, 0))));
        second.session("own", Some((9, 0)));
        first.join().unwrap();
    });
    let (step, _) = resumed(&second.session("own", None)).unwrap();
    assert!((8..=9).contains(&step), "step {step}");
    assert_eq!(
        std::fs::read_dir(first.host(0)).unwrap().count(),
        1,
        "the second run has ended, not the first"
    );
    let (step, _) = resumed(&first.session("own", None)).unwrap();
    assert!((5..=6).contains(&step), "step {step}");
    assert_eq!(std::fs::read_dir(first.host(0)).unwrap().count(), 0);
}

/// Copies that may cost nothing are made once; those that may cost all of the time, after every step.
#[test]
fn copies_come_as_often_as_their_cost_allows() {
    let chosen = "save.memory.every_steps=0";
    for (overhead, steps) in [("save.overhead=1e-6", 1..=1), ("save.overhead=1.0", 6..=10)] {
        let case = Case::new(2, false, &[chosen, overhead]);
        case.session("own", Some((10, 1)));
        let (step, _) = resumed(&case.session("own", Some((12, 0)))).unwrap();
        assert!(steps.contains(&step), "{overhead}: step {step}");
    }
}

#[test]
fn other_layouts_and_newer_checkpoints_are_read_from_disk() {
    let case = Case::new(2, false, &["save.async=off", "save.every_steps=8", "save.memory.every_steps=3"]);
    // The copy of step 15 or 12 is older than the checkpoint of step 16.
    case.session("own", Some((17, 0)));
    let records = case.session("own", Some((20, 0)));
    let (step, path) = resumed(&records).unwrap();
    assert!(step == 16 && path.contains("step-00000016"), "step {step}, {path}");
    assert!(
        warnings(&records).contains("the newest checkpoint on disk of step 16"),
        "{}",
        warnings(&records)
    );
    let other = Case { sets: vec!["parallel.data=zero3".into()], ..case };
    let (step, path) = resumed(&other.session("own", None)).unwrap();
    assert!(step == 16 && path.contains("step-00000016"), "step {step}, {path}");
}

#[test]
fn without_memory_for_copies_a_run_says_so_once_and_trains() {
    let case = Case::new(2, false, &["save.memory.directory=/nonexistent"]);
    let records = case.session("own", None);
    let text = warnings(&records);
    assert!(
        text.contains("no copies of the state are kept in memory") && text.contains("/nonexistent"),
        "{text}"
    );
    assert!(!case.run.tensors().is_empty());
}

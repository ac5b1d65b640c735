//! Every fuzz target over its seeds and a fixed number of mutations (20 a seed, 200 in all at most), the same in every run.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

use bessemer_fuzz::{TARGETS, Target, mutated, seeds};
use bessemer_test_tier::either;
use bessemer_units::splitmix::SplitMix64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Larger seeds are left to the fuzzing engine.
const MAX_SEED: u64 = 64 << 10;
/// A case that takes longer hangs, for any purpose; the fuzzing engine has the same limit.
const MAX_TIME: Duration = Duration::from_secs(10);

/// Runs one input; says what it found.
fn fault(target: &Target, input: &[u8]) -> Option<String> {
    let begun = Instant::now();
    let panicked = catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err();
    let took = begun.elapsed();
    let shown = || input.escape_ascii().to_string().chars().take(2000).collect::<String>();
    if panicked {
        return Some(format!("{}: a panic at b\"{}\"", target.name, shown()));
    }
    (took > MAX_TIME).then(|| format!("{}: {took:?} for b\"{}\"", target.name, shown()))
}

fn faults(target: &Target) -> Vec<String> {
    let seeds = seeds(target, MAX_SEED).unwrap();
    let none = (std::path::PathBuf::new(), Vec::new());
    let mut found: Vec<String> =
        seeds.iter().chain([&none]).filter_map(|(_, seed)| fault(target, seed)).collect();
    let mut random = SplitMix64(
        target.name.bytes().fold(1_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte))),
    );
    // A soak tries 200 mutations a seed.
    let mutations = either(200.min(20 * seeds.len().max(1)), 200 * seeds.len().max(1));
    for _ in 0..mutations {
        let pick =
            |random: &mut SplitMix64| seeds.get(random.index(seeds.len())).map_or(&b""[..], |seed| &seed.1);
        let (input, other) = (pick(&mut random), pick(&mut random));
        found.extend(fault(target, &mutated(input, other, &mut random)));
    }
    found
}

#[test]
fn no_target_panics_or_hangs() {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(target) = TARGETS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let faults = faults(target);
                    found.lock().unwrap().extend(faults);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

/// Inputs that a target once failed at: `known/TARGET-…`.
#[test]
fn inputs_that_failed_once_are_read() {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(bessemer_fuzz::root().join("fuzz/known")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let target = TARGETS.iter().find(|target| name.split('-').next() == Some(target.name));
        let target = target.unwrap_or_else(|| panic!("{name} names no target"));
        found.extend(fault(target, &std::fs::read(&path).unwrap()));
    }
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_target_has_a_file_and_every_folder_of_seeds_a_target() {
    let names = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(bessemer_fuzz::root().join("fuzz").join(folder)).unwrap();
        let name = |entry: std::fs::DirEntry| entry.path().file_stem().unwrap().to_str().unwrap().to_string();
        let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    };
    let files: Vec<String> = names("src/targets").into_iter().filter(|name| name != "mod").collect();
    assert_eq!(files, TARGETS.iter().map(|target| target.name).collect::<Vec<&str>>());
    assert!(names("seeds").iter().all(|name| files.contains(name)));
}

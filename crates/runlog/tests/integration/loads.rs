//! experts.loads: what is appended is read, crashes and resumes included.

use bessemer_runlog::*;
use std::fs;
use std::path::Path;

const EXPERTS: [u32; 3] = [2, 0, 4];

fn counts(step: u64) -> [u32; 6] {
    std::array::from_fn(|i| (step * 100) as u32 + i as u32)
}

fn log(dir: &Path) -> LoadLog {
    LoadLog::open(dir, &EXPERTS).unwrap()
}

fn write(dir: &Path, steps: std::ops::RangeInclusive<u64>) {
    let mut log = log(dir);
    steps.for_each(|step| log.append(step, &counts(step)).unwrap());
    log.sync().unwrap();
}

fn steps(dir: &Path) -> Vec<u64> {
    let mut loads = Loads::open(dir).unwrap().unwrap();
    assert_eq!(loads.experts(), EXPERTS);
    let read = (0..loads.records()).filter_map(|number| loads.read(number).unwrap());
    read.map(|of| {
        assert_eq!(of.counts, counts(of.step));
        of.step
    })
    .collect()
}

fn bytes(dir: &Path) -> Vec<u8> {
    fs::read(dir.join(LOADS_FILE)).unwrap()
}

#[test]
fn the_file_is_as_specified() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Loads::open(dir.path()).unwrap().is_none());
    write(dir.path(), 1..=2);
    let found = bytes(dir.path());
    // 8 + 4 + 4 + 3 x 4 + 4 bytes, then 8 + 6 x 4 + 4 for each step.
    assert_eq!(found.len(), 32 + 2 * 36);
    assert_eq!(&found[..28], b"BSMRLOAD\x01\0\0\0\x03\0\0\0\x02\0\0\0\0\0\0\0\x04\0\0\0");
    assert_eq!(found[32..40], 1u64.to_le_bytes());
    assert_eq!(found[40 + 36..44 + 36], 200u32.to_le_bytes());
    assert_eq!(steps(dir.path()), [1, 2]);
}

/// At every length a killed process may leave, whole records stay and the next session goes on behind them.
#[test]
fn a_cut_file_loses_the_cut_record_only() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1..=3);
    let whole = bytes(dir.path());
    for length in 0..=whole.len() {
        fs::write(dir.path().join(LOADS_FILE), &whole[..length]).unwrap();
        let left = length.saturating_sub(32) as u64 / 36;
        write(dir.path(), left + 1..=3);
        assert_eq!(bytes(dir.path()), whole, "{length} bytes");
    }
    // Zeros of a power cut.
    fs::write(dir.path().join(LOADS_FILE), [&whole[..32 + 36], &[0; 36][..]].concat()).unwrap();
    assert_eq!(steps(dir.path()), [1]);
    write(dir.path(), 2..=3);
    assert_eq!(bytes(dir.path()), whole);
}

#[test]
fn steps_that_are_run_again_are_neither_doubled_nor_missing() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1..=20);
    let whole = bytes(dir.path());
    for step in 0..=20 {
        let mut log = log(dir.path());
        log.truncate_after(step).unwrap();
        assert_eq!(steps(dir.path()), (1..=step).collect::<Vec<u64>>());
        (step + 1..=20).for_each(|step| log.append(step, &counts(step)).unwrap());
        assert_eq!(bytes(dir.path()), whole);
    }
    // Also where the caller has not cut the file.
    write(dir.path(), 15..=20);
    assert_eq!(bytes(dir.path()), whole);
    // Steps that another session left out.
    let mut log = log(dir.path());
    log.truncate_after(5).unwrap();
    log.append(9, &counts(9)).unwrap();
    log.append(12, &counts(12)).unwrap();
    log.truncate_after(10).unwrap();
    assert_eq!(steps(dir.path()), [1, 2, 3, 4, 5, 9]);
}

#[test]
fn a_damaged_record_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1..=6);
    let mut damaged = bytes(dir.path());
    damaged[32 + 3 * 36 + 10] ^= 1;
    fs::write(dir.path().join(LOADS_FILE), &damaged).unwrap();
    assert_eq!(steps(dir.path()), [1, 2, 3, 5, 6]);
    for (last, left) in [(5, vec![1, 2, 3, 5]), (4, vec![1, 2, 3]), (2, vec![1, 2])] {
        log(dir.path()).truncate_after(last).unwrap();
        assert_eq!(steps(dir.path()), left, "after {last}");
    }
}

#[test]
fn spans_cover_the_run_and_sum_steps() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1..=40);
    let mut loads = Loads::open(dir.path()).unwrap().unwrap();
    let summed = |steps: &[u64]| -> Vec<u64> {
        (0..6).map(|i| steps.iter().map(|step| u64::from(counts(*step)[i])).sum()).collect()
    };
    let spans = loads.spans(100).unwrap();
    assert_eq!(spans.len(), 40);
    assert_eq!(spans[7], LoadSpan { steps: [8, 8], counts: summed(&[8]) });
    let spans = loads.spans(2).unwrap();
    assert_eq!(spans.len(), 2);
    let every = |first: u64| -> Vec<u64> { (0..8).map(|i| first + i * 20 / 8).collect() };
    assert_eq!(spans[1], LoadSpan { steps: [21, 40], counts: summed(&every(21)) });
    assert_eq!(loads.sum([3, 5]).unwrap(), Some(LoadSpan { steps: [3, 5], counts: summed(&[3, 4, 5]) }));
    assert_eq!(loads.sum([39, 99]).unwrap(), Some(LoadSpan { steps: [39, 40], counts: summed(&[39, 40]) }));
    assert_eq!(loads.sum([41, 99]).unwrap(), None);
    assert_eq!(loads.sum([0, 1]).unwrap(), Some(LoadSpan { steps: [1, 1], counts: summed(&[1]) }));
}

#[test]
fn other_files_are_refused_and_those_of_other_models_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1..=2);
    let whole = bytes(dir.path());
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(dir.path().join(LOADS_FILE), bytes).unwrap();
        [Loads::open(dir.path()).err(), LoadLog::open(dir.path(), &EXPERTS).err()]
            .map(|e| e.expect("refused").to_string())
    };
    for found in with(&|bytes| bytes[0] = b'X') {
        assert!(found.contains("BSMRLOAD"), "{found}");
    }
    for found in with(&|bytes| bytes[8] = 2) {
        assert!(found.contains("version 2, this program reads version 1"), "{found}");
    }
    for found in with(&|bytes| bytes[16] ^= 1) {
        assert!(found.contains("checksum"), "{found}");
    }
    fs::write(dir.path().join(LOADS_FILE), &whole).unwrap();
    let mut log = log(dir.path());
    assert!(log.append(3, &[1]).unwrap_err().to_string().contains("wanted 6 counts, found 1"));
    for name in ["experts.other-1.loads", "experts.other-2.loads"] {
        let other = if name.contains('1') { &EXPERTS[..2] } else { &EXPERTS[..] };
        let before = bytes(dir.path());
        LoadLog::open(dir.path(), other).unwrap();
        assert_eq!(fs::read(dir.path().join(name)).unwrap(), before);
    }
    assert_eq!(steps(dir.path()), [] as [u64; 0]);
    // All of a file of one layer is shorter than the header of a deep model.
    let dir = tempfile::tempdir().unwrap();
    LoadLog::open(dir.path(), &[1]).unwrap().append(1, &[5]).unwrap();
    let before = bytes(dir.path());
    LoadLog::open(dir.path(), &[1; 50]).unwrap();
    assert_eq!(fs::read(dir.path().join("experts.other-1.loads")).unwrap(), before);
}

//! The file of a study: cut and damaged lines, several programs, foreign objects, a full disk.

use crate::pairs;
use bessemer_judge::{Judgement, ModelJudge, Store, Task, TaskKey, Verdict};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64_with_seed;

fn key(item: usize) -> TaskKey {
    TaskKey { item, first: 0, second: Some(1) }
}

fn judgement(judge: &str, item: usize) -> Judgement {
    let task = Task { key: key(item), turned: item % 2 == 1, repeated: false };
    let seconds = (item > 0).then_some(0.1 * item as f64);
    Judgement { judge: judge.into(), task, choice: 0.5, seconds, at: -1 - item as i64 }
}

/// A study of 4 items, with judgements of Ann on the first 3 in records of their own. The lines of the file.
fn judged(path: &Path) -> Vec<Vec<u8>> {
    let mut store = Store::create(path, pairs(4)).unwrap();
    (0..3).for_each(|item| store.add(&[judgement("Ann", item)]).unwrap());
    let lines: Vec<Vec<u8>> =
        fs::read(path).unwrap().split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    assert_eq!(lines.len(), 1 + 4 + 3);
    lines
}

fn opened(path: &Path) -> (Store, Vec<Judgement>) {
    let store = Store::open(path).unwrap();
    let judgements = store.judgements().unwrap();
    (store, judgements)
}

/// A line with its checksum, as the README specifies it.
fn sealed(body: &str, lines: &[Vec<u8>]) -> Vec<u8> {
    let header: serde_json::Value = serde_json::from_slice(&lines[0]).unwrap();
    let id = u64::from_str_radix(header["id"].as_str().unwrap(), 16).unwrap();
    let sum = xxh3_64_with_seed(body.as_bytes(), id);
    format!("{body},\"xxh3\":\"{sum:016x}\"}}\n").into_bytes()
}

#[test]
fn records_come_back_as_they_were() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("s.jsonl");
    let mut store = Store::create(&path, pairs(4)).unwrap();
    let all: Vec<Judgement> = (0..4).map(|item| judgement("Ann \"é\"", item)).collect();
    store.add(&all).unwrap();
    store.add(&[]).unwrap();
    let judge =
        ModelJudge { name: "m".into(), model: "x".into(), method: "generate".into(), template: "t\n".into() };
    let verdict = |turned, scores: Option<Vec<f64>>| Verdict {
        judge: "m".into(),
        key: key(2),
        turned,
        choice: scores.as_ref().map(|_| 1.0),
        scores,
        answer: turned.then(|| "\u{0}\r\n".into()),
        at: 7,
    };
    let nobody = store.add_verdicts(&[verdict(false, None)]).unwrap_err().to_string();
    assert!(nobody.contains("no model judge has the name \"m\""), "{nobody}");
    store.add_model_judge(&judge).unwrap();
    store.add_model_judge(&judge).unwrap();
    store.add_verdicts(&[verdict(false, Some(vec![-0.1, f64::MIN_POSITIVE])), verdict(true, None)]).unwrap();
    let again = store.add_verdicts(&[verdict(true, None)]).unwrap_err().to_string();
    assert!(again.contains("a verdict on this already: item 3"), "{again}");
    // JSON has no such number.
    let endless = Verdict { key: key(3), ..verdict(false, Some(vec![f64::NEG_INFINITY])) };
    store.add_verdicts(std::slice::from_ref(&endless)).unwrap();
    let verdicts = vec![
        verdict(false, Some(vec![-0.1, f64::MIN_POSITIVE])),
        verdict(true, None),
        Verdict { scores: None, ..endless },
    ];
    for store in [store, Store::open(&path).unwrap()] {
        assert_eq!(store.judgements().unwrap(), all);
        assert_eq!(store.model_judges().unwrap(), std::slice::from_ref(&judge));
        assert_eq!(store.verdicts().unwrap(), verdicts);
        assert!(store.warnings().is_empty());
    }
    // All or none, and only what the study has.
    let mut store = Store::open(&path).unwrap();
    let twice = [judgement("Bob", 0), judgement("Bob", 1), judgement("Bob", 0)];
    assert!(store.add(&twice).unwrap_err().to_string().contains("Bob has already judged this: item 1"));
    let unknown = store.add(&[judgement("Bob", 4)]).unwrap_err().to_string();
    assert!(unknown.contains("a text that the study does not have"), "{unknown}");
    assert_eq!(store.judgements().unwrap().len(), 4);
}

#[test]
fn a_last_line_cut_at_any_byte_costs_itself_alone() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("s.jsonl");
    let lines = judged(&path);
    let (last, before) = lines.split_last().unwrap();
    let before = before.concat();
    for cut in 0..last.len() {
        // A power cut may leave the length and zeros.
        for zeros in [&b""[..], &vec![0; last.len() - 1 - cut], b"\0\n"] {
            let tail = [&last[..cut], zeros].concat();
            fs::write(&path, [&before[..], &tail].concat()).unwrap();
            let (store, judgements) = opened(&path);
            assert_eq!(judgements, [judgement("Ann", 0), judgement("Ann", 1)], "{cut}");
            match store.warnings() {
                [] => assert!(tail.is_empty()),
                [cut] => {
                    assert!(cut.contains(&format!(
                        "line 8 was cut by a crash and is left out ({} bytes)",
                        tail.len()
                    )))
                }
                more => panic!("{more:?}"),
            }
        }
    }
    // Reading changes nothing; the next judgement takes its place.
    let (mut store, _) = opened(&path);
    store.add(&[judgement("Ann", 2)]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), lines.concat());
}

#[test]
fn a_damaged_line_is_named_with_its_remedy_and_nothing_is_changed() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("s.jsonl");
    let lines = judged(&path);
    let whole = lines.concat();
    // Before its identity the first line names the format and its version.
    let named = whole.windows(4).position(|bytes| bytes == b"\"id\"").unwrap();
    let mut line = 1;
    for (at, byte) in whole.iter().enumerate() {
        let end = usize::from(*byte == b'\n');
        if at % 5 > 0 && end == 0 {
            continue;
        }
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let found = Store::open(&path);
        if at == whole.len() - 1 {
            // Without its line feed the last line was never whole.
            assert_eq!(found.unwrap().judgements().unwrap().len(), 2);
        } else {
            let error = found.unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
            if at >= named {
                assert!(error.contains(&format!("line {line}: wanted a record")), "byte {at}: {error}");
                assert!(error.contains("restore the file from a copy"), "{error}");
                assert_eq!(error.contains(&format!("sed -i {line}d")), line > 5, "{error}");
            }
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        line += end;
    }
    // The remedy costs one line, and is reported.
    fs::write(&path, [&lines[..6], &lines[7..]].concat().concat()).unwrap();
    let (mut store, judgements) = opened(&path);
    assert_eq!(judgements, [judgement("Ann", 0), judgement("Ann", 2)]);
    assert!(
        matches!(store.warnings(), [one] if one.contains("1 records are missing")),
        "{:?}",
        store.warnings()
    );
    store.add(&[judgement("Ann", 1)]).unwrap();
    assert_eq!(opened(&path).1.len(), 3);
    // Lines out of order, twice, of another study, without their texts.
    let other = place.path().join("other.jsonl");
    let mut study = pairs(4);
    study.seed += 1;
    Store::create(&other, study).unwrap().add(&[judgement("Bob", 0)]).unwrap();
    let foreign =
        fs::read(&other).unwrap().split_inclusive(|byte| *byte == b'\n').next_back().unwrap().to_vec();
    for (mixed, line) in [
        ([&lines[..6], &lines[7..], &lines[6..7]].concat(), 8),
        ([&lines[..], &lines[7..]].concat(), 9),
        ([&lines[..], &[foreign]].concat(), 9),
        ([&lines[..3], &lines[4..]].concat(), 5),
        (lines[..4].to_vec(), 5),
    ] {
        fs::write(&path, mixed.concat()).unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("line {line}: wanted")), "{error}");
    }
}

#[test]
fn later_kinds_are_passed_over_and_later_versions_refused() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("s.jsonl");
    let mut lines = judged(&path);
    lines.push(sealed("{\"kind\":\"note\",\"seq\":8,\"text\":\"hello\"", &lines));
    fs::write(&path, lines.concat()).unwrap();
    let (mut store, judgements) = opened(&path);
    assert_eq!((judgements.len(), store.warnings().len()), (3, 0));
    store.add(&[judgement("Ann", 3)]).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("hello") && text.contains("\"kind\":\"judgements\",\"seq\":9,"), "{text}");
    for (old, new, part) in [
        ("\"version\":2", "\"version\":3", "wanted a study of judgements of version 2, found version 3"),
        ("bessemer-judge", "bessemer-other", "found the format \"bessemer-other\""),
    ] {
        fs::write(&path, text.replacen(old, new, 1)).unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn several_programs_may_have_a_study_open() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("s.jsonl");
    let mut one = Store::create(&path, pairs(20)).unwrap();
    let mut other = Store::open(&path).unwrap();
    one.add(&[judgement("Ann", 0)]).unwrap();
    assert_eq!(other.judgements().unwrap().len(), 1, "each sees what the other added");
    assert_eq!(other.next("Ann").unwrap().1, 1);
    let twice = other.add(&[judgement("Ann", 0)]).unwrap_err().to_string();
    assert!(twice.contains("Ann has already judged this: item 1"), "{twice}");
    other.add(&[judgement("Ann", 1)]).unwrap();
    assert_eq!(one.judgements().unwrap(), other.judgements().unwrap());
    let writers: Vec<_> = ["Bob", "Cem", "Dan", "Eve"]
        .into_iter()
        .map(|judge| {
            let mut store = Store::open(&path).unwrap();
            thread::spawn(move || (0..20).for_each(|item| store.add(&[judgement(judge, item)]).unwrap()))
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(one.judgements().unwrap().len(), 82);
    assert_eq!(opened(&path).1, other.judgements().unwrap());
}

#[test]
fn foreign_objects_are_refused_and_a_study_that_was_replaced_takes_nothing() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("s.jsonl");
    judged(&path);
    let (link, hard, fifo) =
        (place.path().join("link"), place.path().join("hard"), place.path().join("fifo"));
    symlink(&path, &link).unwrap();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (refused, part) in
        [(link.as_path(), "a symbolic link"), (&fifo, "a FIFO"), (place.path(), "a directory")]
    {
        let error = Store::open(refused).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(refused.to_str().unwrap()), "{error}");
    }
    // A file with two names is read and not written to.
    fs::hard_link(&path, &hard).unwrap();
    let (mut store, judgements) = opened(&hard);
    assert_eq!(judgements.len(), 3);
    let error = store.add(&[judgement("Ann", 3)]).unwrap_err().to_string();
    assert!(error.contains("hard links"), "{error}");
    fs::remove_file(&hard).unwrap();
    let error = store.add(&[judgement("Ann", 3)]).unwrap_err().to_string();
    assert!(error.contains("removed") && !hard.exists(), "{error}");
    let (mut store, _) = opened(&path);
    let copy = place.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    fs::rename(&copy, &path).unwrap();
    let error = store.add(&[judgement("Ann", 3)]).unwrap_err().to_string();
    assert!(error.contains("replaced"), "{error}");
    // A study that may only be read is read.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    assert_eq!(opened(&path).1.len(), 3);
}

/// Runs in a child process whose files may not grow past a limit: the only portable full disk.
#[test]
fn child_that_meets_a_full_disk() {
    let Ok(path) = std::env::var("JUDGE_TEST_FULL_DISK") else { return };
    let mut store = Store::open(Path::new(&path)).unwrap();
    let mut written = 0;
    let error = loop {
        match store.add(&[judgement(&format!("judge {written}"), 0)]) {
            Ok(()) => written += 1,
            Err(error) => break error.to_string(),
        }
        assert!(written < 10_000, "the limit of the file size was not met");
    };
    assert!(error.contains("RLIMIT_FSIZE") && error.contains(&path), "{error}");
    for store in [store, Store::open(Path::new(&path)).unwrap()] {
        assert_eq!((store.judgements().unwrap().len(), store.warnings().len()), (written, 0));
    }
}

#[test]
fn a_full_disk_is_an_error_and_leaves_whole_lines() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("s.jsonl");
    Store::create(&path, pairs(4)).unwrap();
    // An ignored SIGXFSZ is inherited, so that a write past the limit fails with EFBIG instead of killing.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" --exact journal::child_that_meets_a_full_disk"])
        .arg(std::env::current_exe().unwrap())
        .env("JUDGE_TEST_FULL_DISK", &path)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    // With room again the study goes on.
    let (mut store, judgements) = opened(&path);
    store.add(&[judgement("Ann", 1)]).unwrap();
    assert_eq!(opened(&path).1.len(), judgements.len() + 1);
}

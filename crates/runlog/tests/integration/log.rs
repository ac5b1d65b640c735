//! metrics.jsonl: what is appended is read, crashes and resumes included.

use bessemer_runlog::*;
use std::fs;
use std::path::Path;

fn step(step: u64) -> Step {
    Step {
        step,
        tokens: step * 4096,
        loss: 10.0 / step as f64,
        losses: step.is_multiple_of(2).then(|| ("z_loss".to_string(), 2e-3)).into_iter().collect(),
        experts: Default::default(),
        loss_scale: step.is_multiple_of(4).then_some(65536.0),
        lr: 1e-3,
        grad_norm: 0.1 + step as f64,
        tokens_per_s: 12345.678,
        mfu: Some(0.25),
        memory_bytes: Some(1 << 30),
        seconds: 0.3,
        data_seconds: None,
        data_bytes: step.is_multiple_of(2).then_some(step << 20),
        data_hit_share: step.is_multiple_of(2).then_some(0.5),
        scored: step.is_multiple_of(2).then_some(step),
        preferences: Default::default(),
        unscored_samples: step.is_multiple_of(2).then_some(3),
        eta_s: Some(60.0),
    }
}

fn eval(step: u64) -> Eval {
    Eval {
        step,
        tokens: step * 4096,
        split: "valid".into(),
        loss: 2.0,
        perplexity: 2f64.exp(),
        bits_per_byte: 1.1,
        tokens_scored: 1000,
        bytes_scored: 3000,
        seconds: Some(1.5),
        components: vec![EvalComponent {
            name: "web".into(),
            loss: 2.0,
            bits_per_byte: 1.1,
            tokens_scored: 1000,
        }],
    }
}

fn costs() -> StepCosts {
    let item = |name: &str, value| vec![CostItem::new(name, value)];
    StepCosts {
        seconds: 0.25,
        time: item(StepCosts::COMPUTE, 0.125),
        memory: item("weights", 1e9),
        traffic: item("shard", 12.0),
    }
}

/// One record of every kind.
fn every_kind() -> Vec<Record> {
    let dropped = vec![Dropped { reason: "too-short".into(), documents: 3, bytes: 50 }];
    let source = CorpusSource {
        name: "serde".into(),
        documents_in: 9,
        dropped: dropped.clone(),
        ..Default::default()
    };
    vec![
        RunId { id: "3f2c".into() }.into(),
        Run {
            name: "quick \"start\"\n".into(),
            command: vec!["bessemer".into(), "run".into()],
            seed: u64::MAX,
            started_unix_s: 1.7e9 + 0.125,
            peak_flops_per_s: Some(1e11),
            ..Run::default()
        }
        .into(),
        Model { name: "gpt2".into(), parameters: 124_000_000, ..Model::default() }.into(),
        Training { steps: 500, batch_tokens: 8192, ..Training::default() }.into(),
        Stage {
            name: "corpus".into(),
            seconds: 1.25,
            skipped: true,
            counters: [("documents".to_string(), 7)].into(),
        }
        .into(),
        Corpus { documents_in: 9, dropped, sources: vec![source], ..Corpus::default() }.into(),
        Tokenizer { vocab_size: 8192, ..Tokenizer::default() }.into(),
        Shards { split: "train".into(), tokens: 5, ..Shards::default() }.into(),
        Plan { ranks: 4, keys: vec!["parallel.tensor=2".into()], predicted: costs(), ..Plan::default() }
            .into(),
        step(1).into(),
        Measured { step: 1, steps: 1, watched: 0, costs: costs() }.into(),
        eval(1).into(),
        Save {
            step: 1,
            bytes: 10,
            seconds: 0.5,
            stall_seconds: Some(0.1),
            copy_seconds: Some(0.05),
            steps_beside: Some(3),
            slowdown: Some(0.02),
            path: "checkpoints/step-1".into(),
        }
        .into(),
        SaveInterval { step: 1, every_steps: 20, before: Some(30), ..SaveInterval::default() }.into(),
        Resume { step: 1, path: "checkpoints/step-1".into(), records_dropped: 2 }.into(),
        Sample {
            step: 1,
            prompt: "fn main".into(),
            text: "() {\r\n\u{2028}\0}".into(),
            temperature: Some(0.8),
        }
        .into(),
        Task {
            step: 1,
            tokens: 64,
            task: "logic".into(),
            metric: "acc".into(),
            value: 0.525,
            stderr: Some(0.035),
            interval: Some([0.456, 0.593]),
            larger_is_better: true,
            documents: 200,
            signature: "task:logic|version:1".into(),
            worst: None,
        }
        .into(),
        Baseline {
            name: "byte 5-gram".into(),
            split: "valid".into(),
            bits_per_byte: 2.2,
            ..Baseline::default()
        }
        .into(),
        Warning { step: None, topic: "loss".into(), message: "spike".into() }.into(),
        End {
            step: 1,
            tokens: 4096,
            reason: EndReason::Interrupted,
            message: None,
            seconds: 3.0,
            ended_at: String::new(),
        }
        .into(),
    ]
}

fn write(dir: &Path, records: &[Record]) {
    let mut log = RunLog::open(dir).unwrap();
    for record in records {
        log.append(record).unwrap();
    }
}

fn steps(dir: &Path) -> Vec<u64> {
    read(dir).unwrap().records.iter().filter_map(Record::step).collect()
}

#[test]
fn every_kind_survives_the_round_trip_and_a_reopened_log_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let records = every_kind();
    write(dir.path(), &records[..5]);
    write(dir.path(), &records[5..]);
    let log = read(dir.path()).unwrap();
    assert_eq!(log.records, records);
    assert_eq!(log.torn, None);
    let kinds: std::collections::HashSet<&str> = records.iter().map(Record::kind).collect();
    assert_eq!(kinds.len(), records.len());
    let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert_eq!(text.lines().count(), records.len() + 1);
    assert!(text.starts_with(
        "{\"kind\":\"log\",\"format\":\"bessemer-runlog\",\"version\":1}\n{\"kind\":\"run_id\","
    ));
}

#[test]
fn the_keys_of_a_step_are_the_documented_ones() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[step(3).into()]);
    let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
    let object: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let wanted = "kind step tokens loss lr grad_norm tokens_per_s mfu memory_bytes seconds eta_s";
    assert_eq!(keys, wanted.split(' ').collect::<Vec<_>>());
}

#[test]
fn numbers_survive_bit_for_bit_and_so_do_those_that_json_lacks() {
    let dir = tempfile::tempdir().unwrap();
    // Bit patterns all over the range: a multiplicative walk through all 64-bit words.
    let mut values: Vec<f64> =
        (0..2000u64).map(|i| f64::from_bits(i.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
    values.extend([f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, f64::MIN_POSITIVE, 5e-324, f64::MAX, 0.1]);
    values.extend([f64::NAN, -f64::NAN]);
    let records: Vec<Record> =
        values.iter().map(|&loss| Step { loss, mfu: Some(loss), ..step(1) }.into()).collect();
    write(dir.path(), &records);
    let log = read(dir.path()).unwrap();
    assert_eq!(log.records.len(), values.len());
    for (value, record) in values.iter().zip(&log.records) {
        let Record::Step(found) = record else { panic!("{record:?}") };
        for found in [found.loss, found.mfu.unwrap()] {
            let same = value.to_bits() == found.to_bits() || value.is_nan() && found.is_nan();
            assert!(same, "{value:e} became {found:e}");
        }
    }
    let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    for name in ["NaN", "Infinity", "-Infinity"] {
        assert!(text.contains(&format!("\"loss\":\"{name}\"")), "{name}");
    }
}

#[test]
fn a_log_cut_at_any_byte_is_read_up_to_the_cut_and_can_be_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let records = every_kind();
    write(dir.path(), &records);
    let whole = fs::read(&path).unwrap();
    let line_ends: Vec<usize> =
        whole.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i).collect();
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        // A record is whole when all of its line but the line feed is there.
        let lines = line_ends.iter().filter(|&&end| cut >= end).count();
        let begin = if lines == 0 { 0 } else { line_ends[lines - 1] + 1 };
        let log = read(dir.path()).unwrap();
        assert_eq!(log.records, records[..lines.saturating_sub(1)], "cut at {cut}");
        let torn = (cut > begin).then(|| TornLine {
            line: lines as u64 + 1,
            offset: begin as u64,
            bytes: (cut - begin) as u64,
        });
        assert_eq!(log.torn, torn, "cut at {cut}");

        let mut opened = RunLog::open(dir.path()).unwrap();
        assert_eq!(opened.repaired(), torn);
        opened.append(&step(99).into()).unwrap();
        let continued = read(dir.path()).unwrap();
        assert_eq!(continued.torn, None);
        assert_eq!(continued.records.len(), lines.saturating_sub(1) + 1);
        assert_eq!(continued.records.last().unwrap().step(), Some(99));
    }
}

#[test]
fn zeros_after_a_power_cut_count_as_a_cut_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    write(dir.path(), &[step(1).into(), step(2).into()]);
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([0; 5000]);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read(dir.path()).unwrap().torn.unwrap().bytes, 5000);
    write(dir.path(), &[step(3).into()]);
    assert_eq!(steps(dir.path()), [1, 2, 3]);
}

/// Reads a log whose line `number` is damaged, once as it is and once through [`RunLog::open`], which moves the line aside.
/// Returns what is wrong with the line.
fn with_damaged_line(dir: &Path, damaged: &str, number: u64) -> String {
    let path = dir.join(FILE);
    fs::write(&path, damaged).unwrap();
    let found = read(dir).unwrap();
    assert_eq!(found.damaged.iter().map(|d| d.line).collect::<Vec<_>>(), [number]);
    assert_eq!(found.torn, None);
    let opened = RunLog::open(dir).unwrap();
    assert_eq!(opened.damaged(), found.damaged);
    drop(opened);
    let clean = read(dir).unwrap();
    assert_eq!((clean.records, clean.damaged.len()), (found.records, 0));
    let lines: Vec<&str> = damaged.split_inclusive('\n').collect();
    let aside = fs::read_to_string(dir.join(DAMAGED_FILE)).unwrap();
    assert!(aside.ends_with(lines[number as usize - 1]), "the line was lost");
    found.damaged[0].what.clone()
}

#[test]
fn a_damaged_line_before_the_last_is_reported_with_its_number_and_kept_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    write(dir.path(), &[step(1).into(), step(2).into(), step(3).into()]);
    let text = fs::read_to_string(&path).unwrap();
    for (from, to, told) in [
        ("\"step\":2,", "\"step\":2;", "expected"),
        ("\"step\":2,", "\"step\":-2,", "step"),
        ("\"step\":2,", "", "step"),
        ("\"kind\":\"step\",\"step\":2", "\"step\":2", "kind"),
        ("\"kind\":\"step\",\"step\":2", "\"kind\":7,\"step\":2", "kind"),
    ] {
        let damaged = text.replace(from, to);
        assert_ne!(damaged, text);
        let what = with_damaged_line(dir.path(), &damaged, 3);
        assert!(what.contains(told), "{what}");
        assert_eq!(steps(dir.path()), [1, 3]);
    }
    for line in ["[1,2]", "3", "", "\"text\"", &"[".repeat(100_000), &"{\"a\":".repeat(100_000)] {
        with_damaged_line(dir.path(), &text.replacen('\n', &format!("\n{line}\n"), 1), 2);
        assert_eq!(steps(dir.path()), [1, 2, 3]);
    }
    // Longer than a record may be: it is read in stretches of bounded length.
    let long = format!("\n{{\"kind\":\"x\",\"text\":\"{}\"}}\n", "a".repeat(17 << 20));
    fs::write(&path, text.replacen('\n', &long, 1)).unwrap();
    assert_eq!(read(dir.path()).unwrap().damaged.len(), 2);
    // Taking steps back leaves a damaged line alone, and a log goes on after one was moved.
    let mut log = RunLog::open(dir.path()).unwrap();
    assert_eq!(log.truncate_after(2).unwrap(), 1);
    log.append(&step(4).into()).unwrap();
    assert_eq!(steps(dir.path()), [1, 2, 4]);
}

#[test]
fn what_is_not_a_regular_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    for error in [read(dir.path()).unwrap_err(), RunLog::open(dir.path()).unwrap_err()] {
        assert!(error.to_string().contains("wanted a regular file"), "{error}");
    }
}

#[test]
fn foreign_files_and_other_versions_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let first = "{\"kind\":\"log\",\"format\":\"bessemer-runlog\",\"version\":";
    for (text, version) in [
        ("{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"loss\":2.0}\n".to_string(), false),
        ("{\"kind\":\"step\"}\n".into(), false),
        ("no JSON".into(), false),
        ("\n".into(), false),
        ("\0\0\0\0".into(), false),
        (format!("{first}2}}\n"), true),
        (format!("{first}\"1\"}}\n"), true),
        ("{\"kind\":\"log\",\"format\":\"bessemer-runlog\"}\n".into(), true),
    ] {
        fs::write(&path, &text).unwrap();
        for error in [read(dir.path()).unwrap_err(), RunLog::open(dir.path()).unwrap_err()] {
            assert_eq!(matches!(error, RunLogError::Version { .. }), version, "{error}");
            assert_eq!(matches!(error, RunLogError::Foreign { .. }), !version, "{error}");
            assert!(error.to_string().contains("metrics.jsonl"), "{error}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    let missing = dir.path().join("missing");
    for error in [read(&missing).unwrap_err(), RunLog::open(&missing).map(drop).unwrap_err()] {
        let text = error.to_string();
        assert!(
            matches!(error, RunLogError::Folder(_)) && text.starts_with("cannot open the directory"),
            "{text}"
        );
        assert_eq!(text.matches(&missing.display().to_string()).count(), 1, "{text}");
    }
}

#[test]
fn unknown_kinds_and_fields_of_a_later_program_are_kept_or_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    write(dir.path(), &[step(1).into()]);
    let mut text = fs::read_to_string(&path).unwrap();
    text = text.replace("\"step\":1,", "\"step\":1,\"novel\":{\"a\":[1]},");
    text.push_str("{\"kind\":\"teleport\",\"step\":7,\"to\":\"mars\"}\n");
    text.push_str("{\"kind\":\"end\",\"step\":7,\"tokens\":1,\"reason\":\"abducted\",\"seconds\":1}\n");
    fs::write(&path, &text).unwrap();
    let log = read(dir.path()).unwrap();
    assert_eq!(log.records[0], step(1).into());
    let Record::Other(other) = &log.records[1] else { panic!("{log:?}") };
    assert_eq!((log.records[1].kind(), log.records[1].step()), ("teleport", Some(7)));
    assert_eq!(other.object["to"], "mars");
    assert!(matches!(&log.records[2], Record::End(End { reason: EndReason::Other, .. })));
    // A record of an unknown kind can be written again, and truncation keeps lines byte for byte.
    let mut opened = RunLog::open(dir.path()).unwrap();
    opened.append(&log.records[1]).unwrap();
    assert_eq!(opened.truncate_after(5).unwrap(), 3);
    let kept: Vec<&str> = text.lines().take(2).collect();
    assert_eq!(fs::read_to_string(&path).unwrap(), kept.join("\n") + "\n");
}

#[test]
fn after_a_resume_the_log_reads_as_if_the_run_had_never_stopped() {
    let record = |dir: &Path, range: std::ops::RangeInclusive<u64>| {
        let mut log = RunLog::open(dir).unwrap();
        for i in range {
            log.append(&step(i).into()).unwrap();
            if i.is_multiple_of(5) {
                log.append(&eval(i).into()).unwrap();
                log.append(
                    &Sample { step: i, prompt: "a".into(), text: "b".into(), temperature: None }.into(),
                )
                .unwrap();
            }
        }
    };
    let straight = tempfile::tempdir().unwrap();
    record(straight.path(), 1..=30);
    let wanted = fs::read(straight.path().join(FILE)).unwrap();
    for (killed_at, resumed_at) in [(17, 10), (10, 10), (30, 1), (12, 11), (29, 0)] {
        let dir = tempfile::tempdir().unwrap();
        record(dir.path(), 1..=killed_at);
        // The kill also cut the line that was being written.
        let path = dir.path().join(FILE);
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend(b"{\"kind\":\"step\",\"step\":");
        fs::write(&path, bytes).unwrap();
        let mut log = RunLog::open(dir.path()).unwrap();
        let dropped = log.truncate_after(resumed_at).unwrap();
        assert!(dropped >= killed_at - resumed_at);
        assert_eq!(log.truncate_after(resumed_at).unwrap(), 0);
        drop(log);
        record(dir.path(), resumed_at + 1..=30);
        assert!(fs::read(&path).unwrap() == wanted, "killed at {killed_at}, resumed at {resumed_at}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_log_that_was_truncated_can_be_appended_to_through_the_same_handle() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = RunLog::open(dir.path()).unwrap();
    for i in 1..=10 {
        log.append(&step(i).into()).unwrap();
    }
    assert_eq!(log.truncate_after(4).unwrap(), 6);
    log.append(&step(5).into()).unwrap();
    log.sync().unwrap();
    assert_eq!(steps(dir.path()), [1, 2, 3, 4, 5]);
}

#[test]
fn records_without_a_step_are_never_truncated() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &every_kind());
    RunLog::open(dir.path()).unwrap().truncate_after(0).unwrap();
    let left: Vec<String> = read(dir.path()).unwrap().records.iter().map(|r| r.kind().to_owned()).collect();
    let wanted = "run_id run model training stage corpus tokenizer shards plan baseline warning";
    assert_eq!(left, wanted.split(' ').collect::<Vec<_>>());
}

/// Runs in a child process whose files may not grow past a limit: the only portable full disk.
#[test]
fn child_that_meets_a_full_disk() {
    let Ok(dir) = std::env::var("RUNLOG_TEST_FULL_DISK") else { return };
    let mut log = RunLog::open(&dir).unwrap();
    let mut written = 0;
    let error = loop {
        match log.append(&step(written + 1).into()) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "the limit of the file size was not met");
    };
    assert!(matches!(error, RunLogError::Io { .. }), "{error}");
    assert!(log.append(&step(written + 1).into()).is_err());
    let found = read(&dir).unwrap();
    assert_eq!((found.records.len() as u64, found.torn), (written, None));
    // There is room again once steps are taken back.
    log.truncate_after(written / 2).unwrap();
    log.append(&step(written / 2 + 1).into()).unwrap();
    assert_eq!(read(&dir).unwrap().records.len() as u64, written / 2 + 1);
}

#[test]
fn a_full_disk_is_an_error_and_leaves_whole_lines() {
    let dir = tempfile::tempdir().unwrap();
    // An ignored SIGXFSZ is inherited, so that a write past the limit fails with EFBIG instead of killing.
    let output = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact log::child_that_meets_a_full_disk"])
        .arg(std::env::current_exe().unwrap())
        .env("RUNLOG_TEST_FULL_DISK", dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn the_end_of_a_log_is_read_without_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let records: Vec<Record> = (1..=100).map(|n| step(n).into()).collect();
    write(dir.path(), &records);
    let all = read_tail(dir.path(), 1 << 20).unwrap();
    // The first line names the format.
    assert_eq!(all.iter().filter(|r| matches!(r, Record::Step(_))).count(), 100);
    let line = fs::read_to_string(dir.path().join(FILE)).unwrap().lines().last().unwrap().len() as u64 + 1;
    for (bytes, wanted) in [(0, 0), (line - 1, 0), (line, 1), (2 * line, 2)] {
        let tail = read_tail(dir.path(), bytes).unwrap();
        assert_eq!(tail, records[100 - wanted..], "{bytes}");
    }
    assert!(read_tail(dir.path().join("none"), 10).is_err());
}

/// Links, hard links and foreign objects in the place of a run's files: nothing outside changes, and the answer names the
/// path and what to do.
#[test]
fn what_stands_in_the_place_of_a_file_is_never_written_through() {
    type Obstacle = fn(&Path, &Path);
    let obstacles: [(&str, Obstacle); 4] = [
        ("link", |outside, at| std::os::unix::fs::symlink(outside, at).unwrap()),
        ("hard link", |outside, at| fs::hard_link(outside, at).unwrap()),
        ("FIFO", |_, at| {
            assert!(std::process::Command::new("mkfifo").arg(at).status().unwrap().success());
        }),
        ("directory", |_, at| fs::create_dir(at).unwrap()),
    ];
    for (name, put) in obstacles {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        fs::create_dir(&run).unwrap();
        drop(RunLog::open(&run).unwrap());
        // A log with a damaged line, so that the file beside it is appended to.
        let mut text = fs::read(run.join(FILE)).unwrap();
        text.extend(b"damaged\n{\"kind\":\"x\"}\n");
        let outside = dir.path().join("outside");
        for file in [FILE, DAMAGED_FILE] {
            fs::write(run.join(FILE), &text).unwrap();
            let _ = fs::remove_file(run.join(file));
            fs::write(&outside, &text).unwrap();
            put(&outside, &run.join(file));
            let error = RunLog::open(&run).unwrap_err().to_string();
            assert!(error.contains(&run.join(file).display().to_string()), "{name}: {error}");
            assert!(
                error.contains("put the file itself") || error.contains("file of its own"),
                "{name}: {error}"
            );
            assert_eq!(fs::read(&outside).unwrap(), text, "{name}");
            let _ = fs::remove_dir(run.join(file));
            let _ = fs::remove_file(run.join(file));
        }
    }
}

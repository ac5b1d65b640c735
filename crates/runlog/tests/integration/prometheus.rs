//! The text file for Prometheus: when it is written, what it holds, and that Prometheus' own client reads it.

use bessemer_runlog::{End, EndReason, Eval, Prometheus, Record, Save, Step, Warning};
use std::fs;
use std::process::Command;

fn step(step: u64, loss: f64) -> Record {
    let (data_seconds, data_bytes, data_hit_share) = (Some(0.125), Some(4096), Some(0.75));
    let mfu = Some(0.25);
    Step {
        step,
        tokens: step * 10,
        loss,
        lr: 1e-3,
        tokens_per_s: 5.0,
        mfu,
        data_seconds,
        data_bytes,
        data_hit_share,
        ..Step::default()
    }
    .into()
}

#[test]
fn the_file_is_written_at_the_first_step_every_few_steps_at_evaluations_and_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.prom");
    let mut file = Prometheus::new(&path, "run", 4);
    let shown = || fs::read_to_string(&path).unwrap_or_default();
    let value = |name: &str| {
        let start = format!("bessemer_{name}");
        shown()
            .lines()
            .find(|l| l.starts_with(&start))
            .and_then(|l| l.split(' ').next_back().map(str::to_owned))
    };
    file.record(1.0, &Warning { topic: "x".into(), ..Warning::default() }.into()).unwrap();
    assert!(!path.exists());
    let mut written = Vec::new();
    for i in 1..=9 {
        file.record(f64::from(i), &step(i as u64, 1.0 / f64::from(i))).unwrap();
        written.push(value("step").unwrap());
    }
    assert_eq!(written.join(" "), "1 1 1 4 4 4 4 8 8");
    let eval = |split: &str, loss| Eval { step: 9, split: split.into(), loss, ..Eval::default() }.into();
    file.record(10.0, &Save { step: 8, ..Save::default() }.into()).unwrap();
    file.record(10.0, &eval("validation", 2.5)).unwrap();
    assert_eq!(value("step").unwrap(), "9");
    assert_eq!(value("saved_step").unwrap(), "8");
    assert_eq!(value("data_wait_seconds").as_deref(), Some("0.125"));
    assert_eq!(value("data_bytes").as_deref(), Some("4096"));
    assert_eq!(value("data_hit_ratio").as_deref(), Some("0.75"));
    assert_eq!(value("warnings").unwrap(), "1");
    assert_eq!((value("running").unwrap().as_str(), value("failed")), ("1", None));
    file.record(11.0, &End { reason: EndReason::Failed, ..End::default() }.into()).unwrap();
    assert_eq!((value("running").unwrap().as_str(), value("failed").as_deref()), ("0", Some("1")));
    // Nothing else is left in the directory.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let gone = Prometheus::new(dir.path().join("none/metrics.prom"), "run", 1).record(0.0, &step(1, 1.0));
    assert!(gone.unwrap_err().to_string().contains("metrics.prom"));
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_prometheus_client_reads_the_file() {
    let python = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.prom");
    let mut file = Prometheus::new(&path, "a \"b\" \\ c\nd", 1);
    for (i, loss) in [(1, 1.5), (2, f64::NAN), (3, f64::INFINITY)] {
        file.record(1e9, &step(i, loss)).unwrap();
    }
    for (split, loss) in [("validation", 2.5), ("code", 1.25)] {
        file.record(1e9, &Eval { step: 3, split: split.into(), loss, ..Eval::default() }.into()).unwrap();
    }
    let script = "import sys\n\
        from prometheus_client.parser import text_string_to_metric_families as parse\n\
        for family in parse(open(sys.argv[1]).read()):\n    \
            for s in family.samples:\n        \
                assert s.labels['run'] == 'a \"b\" \\\\ c\\nd' and s.timestamp is None and family.type == 'gauge'\n        \
                print(s.name, s.labels.get('split', '-'), float(s.value))\n";
    let out = Command::new(python).args(["-c", script]).arg(&path).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{errors}");
    for line in [
        "bessemer_updated_timestamp_seconds - 1000000000.0",
        "bessemer_step - 3.0",
        "bessemer_train_loss - inf",
        "bessemer_mfu_ratio - 0.25",
        "bessemer_eval_loss validation 2.5",
        "bessemer_eval_loss code 1.25",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

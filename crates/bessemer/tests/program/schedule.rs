//! `bessemer schedule`: the numbers that schedules are known for, pictures, runs beside their simulation, bad arguments;
//! and docs/pipelines.md, whose pictures and table are what the program says.

use crate::workplace::{Finished, finished};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const USAGE: i32 = 2;

fn command(dir: &Path, words: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    command.arg("schedule").args(words).current_dir(dir).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finished(command)
}

fn show(words: &[&str]) -> Finished {
    command(Path::new("."), &[&["show"], words].concat())
}

/// `show KIND --stages P --micro-batches M`, with more words, as JSON.
fn shown(kind: &str, p: usize, m: usize, more: &[&str]) -> Value {
    let (p, m) = (p.to_string(), m.to_string());
    show(&[&[kind, "--stages", &p, "--micro-batches", &m, "--json"], more].concat()).json()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn known_schedules_have_their_known_numbers() {
    for (kind, p, m, more, makespan, peak) in [
        ("gpipe", 4, 8, &[][..], 33.0, vec![8.0; 4]),
        ("1f1b", 4, 8, &[], 33.0, vec![4.0, 3.0, 2.0, 1.0]),
        ("interleaved", 4, 8, &["--chunks", "2"], 28.5, vec![5.5, 4.5, 3.5, 2.5]),
        ("zb-h1", 4, 8, &[], 27.0, vec![4.0, 3.5, 3.0, 2.5]),
        ("zb-h2", 4, 8, &[], 27.0, vec![7.0, 6.0, 5.0, 4.0]),
        ("zb-v", 4, 12, &[], 37.5, vec![4.0; 4]),
        ("chimera", 4, 4, &["--times", "1,0.5,0.5"], 10.0, vec![3.0, 4.0, 4.0, 3.0]),
        ("chimera", 8, 8, &["--times", "1,1,1"], 36.0, vec![5.0, 6.0, 7.0, 8.0, 8.0, 7.0, 6.0, 5.0]),
        ("dualpipe", 8, 20, &["--together", "3"], 66.0, vec![9.0; 8]),
        ("dualpipe", 8, 20, &["--together", "2"], 52.0, vec![9.0; 8]),
        ("dualpipev", 4, 20, &[], 63.0, vec![4.5; 4]),
    ] {
        let s = shown(kind, p, m, more);
        assert_eq!(s["makespan"].as_f64(), Some(makespan), "{kind} {p} {m} {more:?}");
        assert_eq!(numbers(&s["peak_live"]), peak, "{kind} {p} {m}");
        let (work, bubble) = (numbers(&s["work"]), numbers(&s["bubble"]));
        assert!(work.iter().zip(&bubble).all(|(w, b)| (w + b - makespan).abs() < 1e-6));
    }
    assert_eq!(numbers(&shown("zb-h2", 4, 8, &[])["span"]), [24.0; 4]);
    assert_eq!(numbers(&shown("zb-v", 4, 12, &[])["span"]), [36.0; 4]);
    assert_eq!(shown("pipedream", 4, 8, &[])["weight_versions"], json!([4, 3, 2, 1]));
    assert_eq!(shown("pipedream-2bw", 4, 8, &[])["weight_versions"][0], json!(2));
    // A settable share of what waits for the weight part.
    assert_eq!(numbers(&shown("zb-h1", 4, 8, &["--pending-share", "0"])["peak_live"]), [4.0, 3.0, 2.0, 1.0]);
}

#[test]
fn the_instruction_lists_say_who_does_what_when() {
    let s = shown("1f1b", 2, 2, &["--latency", "0.25"]);
    let lists = s["instructions"].as_array().unwrap();
    assert_eq!(lists.len(), 2);
    assert_eq!(
        lists[0][0],
        json!({ "micro": 0, "chunk": 0, "version": 0, "op": "forward", "start": 0.0, "end": 1.0 })
    );
    let receive = &lists[1][0];
    assert_eq!(
        (&receive["op"], &receive["from"], &receive["end"]),
        (&json!("receive"), &json!([0, 0]), &json!(1.25))
    );
    let passes =
        |op: &str| lists.iter().flat_map(|l| l.as_array().unwrap()).filter(|i| i["op"] == op).count();
    assert_eq!((passes("forward"), passes("backward"), passes("send"), passes("receive")), (4, 4, 4, 4));
}

#[test]
fn a_timeline_is_drawn_in_text_without_colours_where_no_terminal_is() {
    let text = show(&["1f1b", "--stages", "2", "--micro-batches", "2", "--width", "60"]).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "rank 0 │F0──F1──········B0──────····B1──────│ peak 2");
    assert_eq!(lines[1], "rank 1 │····F0──B0──────F1──B1──────········│ peak 1");
    assert!(!text.contains('\u{1b}') && text.contains("makespan 9"), "{text}");
}

#[test]
fn pictures_are_written_whole_and_readable_with_32_stages() {
    let dir = TempDir::new().unwrap();
    let words = ["show", "1f1b", "--stages", "32", "--micro-batches", "64", "--svg", "a.svg"];
    let done = command(dir.path(), &words);
    assert!(done.err.contains("wrote a.svg") && done.code == Some(0), "{done:?}");
    let svg = fs::read_to_string(dir.path().join("a.svg")).unwrap();
    assert!(svg.starts_with("<?xml") && svg.ends_with("</svg>\n"));
    for rank in 0..32 {
        assert!(svg.contains(&format!(">rank {rank}</text>")));
    }
    // Every pass has its label.
    assert!(svg.matches("<text class=\"in\"").count() == 2 * 32 * 64);
}

/// Writes the simulation of a schedule as a run's trace would say it, every time `stretch` milliseconds.
fn trace(path: &Path, shown: &Value, stretch: f64) {
    let letters = [("forward", "F"), ("backward", "B"), ("backward-input", "I"), ("backward-weight", "W")];
    let mut events =
        vec![json!({ "ph": "M", "name": "process_name", "pid": 0, "args": { "name": "rank 0" } })];
    for step in 1..=3 {
        for (rank, list) in shown["instructions"].as_array().unwrap().iter().enumerate() {
            for i in list.as_array().unwrap() {
                let Some((_, letter)) = letters.iter().find(|l| i["op"] == l.0) else { continue };
                let time = |key: &str| i[key].as_f64().unwrap() * 1e3 * stretch;
                events.push(json!({
                    "ph": "X", "name": format!("{letter} {}.{}", i["micro"], i["chunk"]), "cat": "compute",
                    "pid": rank, "tid": 0, "ts": 1e6 * f64::from(step) + time("start"),
                    // The first step warms up.
                    "dur": (time("end") - time("start")) * if step == 1 { 3.0 } else { 1.0 },
                    "args": { "step": step },
                }));
            }
        }
    }
    events.push(json!({ "ph": "X", "name": "all_reduce", "pid": 0, "tid": 1, "ts": 0.0, "dur": 5.0 }));
    fs::write(path, serde_json::to_string(&events).unwrap()).unwrap();
}

#[test]
fn a_measured_run_stands_below_its_simulation() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("run")).unwrap();
    let one = shown("zb-h1", 3, 6, &[]);
    trace(&dir.path().join("run/trace.json"), &one, 2.0);
    let words = ["show", "zb-h1", "--stages", "3", "--micro-batches", "6", "--trace", "run"];
    let with = |more: &[&str]| command(dir.path(), &[&words[..], more].concat());
    let text = with(&["--svg", "both.svg"]).text();
    let makespan = 2.0 * one["makespan"].as_f64().unwrap();
    let line = format!("measured {makespan} ms, simulated with the measured times {makespan} ms: 0.0 %");
    assert!(text.contains(&line) && text.contains("measured, step 3"), "{text}");
    let svg = fs::read_to_string(dir.path().join("both.svg")).unwrap();
    assert_eq!(svg.matches(">rank 2</text>").count(), 2);
    let value = with(&["--json", "--step", "2"]).json();
    assert_eq!(value["measured"], json!({ "step": 2, "makespan": makespan }));
    assert_eq!(value["makespan"].as_f64(), Some(makespan));

    with(&["--step", "9"]).failed(USAGE, &["--step 9", "steps 1 to 3"]);
    let other = ["show", "zb-h1", "--stages", "2", "--micro-batches", "6", "--trace", "run"];
    command(dir.path(), &other).failed(USAGE, &["of rank 2", "2 ranks and 6 micro-batches"]);
    fs::write(
        dir.path().join("run/trace.json"),
        "[{\"ph\":\"X\",\"name\":\"a\",\"pid\":0,\"ts\":0,\"dur\":1}]",
    )
    .unwrap();
    with(&[]).failed(1, &["trace.json", "none of its 1 intervals", "F 3.0"]);
    fs::write(dir.path().join("run/trace.json"), "{").unwrap();
    with(&[]).failed(1, &["trace.json", "not a trace"]);
}

#[test]
fn energy_is_saved_without_a_longer_step() {
    let dir = TempDir::new().unwrap();
    let words = ["energy", "chimera", "--stages", "4", "--micro-batches", "8"];
    let with = |more: &[&str]| command(dir.path(), &[&words[..], more].concat());
    let value = with(&["--json", "--svg", "plan.svg"]).json();
    let number = |v: &Value| v.as_f64().unwrap();
    assert!(number(&value["saving"]) > 0.05, "{}", value["saving"]);
    assert!(number(&value["after"]["makespan"]) <= number(&value["before"]["makespan"]) * 1.000_001);
    assert_eq!(value["work"].as_array().unwrap().len(), 4);
    assert!(fs::read_to_string(dir.path().join("plan.svg")).unwrap().contains("planned clocks"));
    let text = with(&[]).text();
    assert!(text.contains("attainable saving") && text.contains("a model, not a measurement"), "{text}");

    // A profile of one clock can save nothing.
    let one =
        json!({ "idle_watts": 50, "clocks": [{ "mhz": 1000, "forward": { "time": 1, "watts": 100 } }] });
    fs::write(dir.path().join("one.json"), one.to_string()).unwrap();
    let value = with(&["--json", "--profile", "one.json"]).json();
    assert_eq!(value["saving"], json!(0.0));
    assert_eq!(value["before"], value["after"]);
    for (text, part) in [
        ("{", "not JSON"),
        ("{}", "idle_watts"),
        ("{\"idle_watts\":1,\"clocks\":[{\"mhz\":1}]}", "clocks[0]: wanted forward"),
        ("{\"idle_watts\":1,\"clocks\":[{\"mhz\":1,\"forward\":{\"time\":1}}]}", "clocks[0].forward.watts"),
        ("{\"idle_watts\":1,\"clocks\":[]}", "at least one clock"),
    ] {
        fs::write(dir.path().join("bad.json"), text).unwrap();
        with(&["--profile", "bad.json"]).failed(USAGE, &["bad.json", part]);
    }
}

#[test]
fn clocks_that_cannot_be_set_are_an_error_that_says_why() {
    let words = ["energy", "1f1b", "--stages", "2", "--micro-batches", "4", "--apply", "4000000000"];
    let finished = command(Path::new("."), &words);
    // No driver, or one that has fewer devices.
    assert!(matches!(finished.code, Some(1 | USAGE)), "{}", finished.err);
    assert!(finished.err.contains("--apply 4000000000: "), "{}", finished.err);
}

#[test]
fn a_schedule_file_is_shown_like_any_other() {
    let dir = TempDir::new().unwrap();
    let text = "bessemer-schedule 1\nname by hand\nmicro-batches 2\nroute 0 1\n\
                rank 0: F0 F1 B0 B1\nrank 1: F0 F1 B0 B1\n";
    let with = |text: &str, more: &[&str]| {
        fs::write(dir.path().join("a.schedule"), text).unwrap();
        command(dir.path(), &[&["show", "a.schedule"], more].concat())
    };
    let value = with(text, &["--json"]).json();
    assert_eq!((&value["schedule"], &value["ranks"]), (&json!("by hand"), &json!(2)));
    // GPipe: (m + p - 1)(T_F + T_B + T_W).
    assert_eq!((value["makespan"].as_f64(), numbers(&value["peak_live"])), (Some(9.0), vec![2.0, 2.0]));
    with(text, &["--stages", "2"]).failed(USAGE, &["a.schedule", "--stages"]);
    with(
        &text.replace("F1 B0 B1\nrank 1", "B0 F1 B1\nrank 1").replace("rank 1: F0 F1", "rank 1: F1 F0"),
        &[],
    )
    .failed(USAGE, &["a.schedule", "rank 0"]);
    with(&text.replace("B1", "X1"), &[]).failed(USAGE, &["a.schedule", "line 5", "\"X\""]);
    with(&text.replace("schedule 1", "schedule 9"), &[]).failed(USAGE, &["a.schedule", "9"]);
    with("", &[]).failed(USAGE, &["a.schedule"]);
}

#[test]
fn bad_arguments_are_told_with_what_was_wanted() {
    show(&["1f2b", "--stages", "4", "--micro-batches", "8"]).failed(USAGE, &["1f2b", "zb-h1", "no file"]);
    show(&["1f1b", "--stages", "4"]).failed(USAGE, &["--micro-batches"]);
    show(&["1f1b", "--stages", "0", "--micro-batches", "8"]).failed(USAGE, &["at least one rank"]);
    show(&["interleaved", "--stages", "4", "--micro-batches", "7"]).failed(USAGE, &["interleaved", "7"]);
    show(&["chimera", "--stages", "3", "--micro-batches", "4"]).failed(USAGE, &["chimera", "3"]);
    show(&["gpipe", "--stages", "4", "--micro-batches", "8", "--chunks", "0"]).failed(USAGE, &["chunk"]);
    let huge = "18446744073709551615";
    show(&["gpipe", "--stages", huge, "--micro-batches", huge]).failed(USAGE, &["at most"]);
    show(&["gpipe", "--stages", "100000", "--micro-batches", "100000"]).failed(USAGE, &["at most"]);
    let with = |flag: &str, value: &str, parts: &[&str]| {
        let words = ["1f1b", "--stages", "4", "--micro-batches", "8", flag, value];
        show(&words).failed(USAGE, &[&[flag], parts].concat());
    };
    with("--times", "1,2", &["three times"]);
    with("--times", "1,x,1", &["\"x\""]);
    with("--times", "1,-1,1", &["from 0"]);
    with("--times", "1,NaN,1", &["from 0"]);
    with("--times", "0,0,0", &["above 0"]);
    with("--together", "inf", &["from 0"]);
    with("--pending-share", "1.5", &["share"]);
    with("--jitter", "2", &["share"]);
    with("--width", "3", &["20..=1000"]);
    show(&["1f1b", "--stages", "4", "--micro-batches", "8", "--step", "3"]).failed(USAGE, &["--trace"]);
    show(&["1f1b", "--stages", "4", "--micro-batches", "8", "--trace", "none"]).failed(1, &["none"]);
    let svg = ["1f1b", "--stages", "4", "--micro-batches", "8", "--svg", "none/a.svg"];
    show(&svg).failed(1, &["none/a.svg"]);
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The schedules of docs/pipelines.md: kind, and what is added to four stages and eight micro-batches.
const PAGE: [(&str, &[&str]); 15] = [
    ("gpipe", &[]),
    ("1f1b", &[]),
    ("interleaved", &["--chunks", "2"]),
    ("breadth-first", &["--chunks", "2"]),
    ("pipedream", &[]),
    ("pipedream-2bw", &[]),
    ("chimera", &[]),
    ("zb-h1", &[]),
    ("zb-h2", &[]),
    ("zb-v", &[]),
    ("v-half", &[]),
    ("v-min", &[]),
    ("dualpipe", &[]),
    ("dualpipev", &[]),
    ("zb-auto", &[]),
];

/// Holds text against a file of docs; with `BESSEMER_GOLDEN=write` writes it.
fn hold(path: &Path, text: &str) {
    if std::env::var("BESSEMER_GOLDEN").as_deref() == Ok("write") {
        fs::write(path, text).unwrap();
    }
    let there = fs::read_to_string(path).unwrap_or_default();
    let how = "if that is meant: BESSEMER_GOLDEN=write cargo test -p bessemer --test program schedule";
    assert!(there == text, "{} is not what the program says; {how}", path.display());
}

/// One test, so that the page is not read while it is written.
#[test]
fn the_page_shows_what_the_program_says() {
    table_of_the_page();
    pictures_of_the_page();
}

fn pictures_of_the_page() {
    let dir = TempDir::new().unwrap();
    for (kind, more) in PAGE {
        let words = ["show", kind, "--stages", "4", "--micro-batches", "8", "--svg", "a.svg", "--quiet"];
        assert_eq!(command(dir.path(), &[&words[..], more].concat()).code, Some(0));
        let svg = fs::read_to_string(dir.path().join("a.svg")).unwrap();
        hold(&docs().join(format!("pictures/pipeline-{kind}.svg")), &svg);
        let page = fs::read_to_string(docs().join("pipelines.md")).unwrap();
        assert!(
            page.contains(&format!("(pictures/pipeline-{kind}.svg)")),
            "the page lacks the picture of {kind}"
        );
    }
}

fn table_of_the_page() {
    let mut table = String::from(
        "| schedule | makespan | bubble, rank 0..3 | of it within the rank's span | idle | peak activations, rank 0..3 | weights: copies x versions |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let list = |value: &Value| {
        let all = numbers(value);
        let text = all.iter().map(f64::to_string).collect::<Vec<_>>();
        if all.windows(2).all(|w| w[0] == w[1]) { format!("{} each", text[0]) } else { text.join(", ") }
    };
    for (kind, more) in PAGE {
        let s = shown(kind, 4, 8, more);
        let (copies, versions) = (numbers(&s["weight_copies"]), numbers(&s["weight_versions"]));
        let most = versions.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(
            table,
            "| {kind} | {} | {} | {} | {:.1} % | {} | {} x {most} |",
            s["makespan"].as_f64().unwrap(),
            list(&s["bubble"]),
            list(&s["bubble_in_span"]),
            100.0 * s["bubble_rate"].as_f64().unwrap(),
            list(&s["peak_live"]),
            copies[0]
        );
    }
    let path = docs().join("pipelines.md");
    let page = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- table: written by a test -->\n", "<!-- end of the table -->");
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    hold(&path, &format!("{before}{begin}{table}{end}{after}"));
}

//! The command line itself: arguments that are no text, streams that are full, files that are none, values that are huge,
//! and what helps at the terminal.

use crate::workplace::{GPT2, LLAMA, Workplace, finished};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const RECIPE: i32 = 78;

/// Bytes that are no UTF-8, as a word of the command line.
fn no_text(ending: &str) -> OsString {
    let mut word = OsString::from(OsStr::from_bytes(b"caf\xe9"));
    word.push(ending);
    word
}

#[test]
fn words_that_are_no_utf_8_are_paths_or_errors_and_never_panics() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    let run = |words: &[&OsStr]| {
        let mut command = place.command(&[]);
        command.args(words);
        finished(command)
    };
    let bad = no_text("");
    let verbs: &[&[&str]] = &[
        &[],
        &["run"],
        &["train"],
        &["init"],
        &["eval"],
        &["generate"],
        &["generate", "runs/t", "--prompt"],
        &["generate", "runs/t", "--stop"],
        &["generate", "runs/t", "--prompt-file"],
        &["report"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["corpus", "build"],
        &["corpus", "stats"],
        &["corpus", "inspect"],
        &["corpus", "card"],
        &["corpus", "explain", "--profile", "c4"],
        &["corpus", "extract"],
        &["corpus", "profiles"],
        &["corpus", "score", "--kind", "language"],
        &["corpus", "delete", "runs/t", "--ids"],
        &["corpus", "media", "inspect"],
        &["tokenizer", "train"],
        &["tokenizer", "encode"],
        &["tokenizer", "decode", "runs/t"],
        &["tokenizer", "inspect"],
        &["checkpoint", "ls"],
        &["checkpoint", "verify"],
        &["checkpoint", "inspect"],
        &["checkpoint", "gc"],
        &["checkpoint", "import"],
        &["checkpoint", "plan"],
        &["config", "show"],
        &["config", "diff", "recipe.toml"],
        &["run", "recipe.toml", "--set"],
        &["schedule", "show"],
        &["network", "show"],
        &["network", "show", "node-8", "--job"],
        &["study", "init", "--text"],
        &["completions"],
    ];
    for verb in verbs {
        for json in [false, true] {
            let mut words: Vec<&OsStr> = verb.iter().map(OsStr::new).chain([bad.as_os_str()]).collect();
            words.extend(json.then_some(OsStr::new("--json")));
            let done = run(&words);
            assert!([FAILED, USAGE, RECIPE].contains(&done.code.unwrap_or(-1)), "{words:?}: {done:?}");
            assert!(!done.err.contains("panicked") && !done.err.is_empty(), "{words:?}: {done:?}");
        }
    }
    // Such a path works where it exists: as a recipe, and as the directory of a run.
    let recipe = no_text(".toml");
    fs::copy(place.path("recipe.toml"), place.path("").join(&recipe)).unwrap();
    let more = ["--set", "train.steps=8"].map(OsStr::new);
    let done = run(&[&[OsStr::new("run"), recipe.as_os_str()], &more[..]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    let runs = no_text("");
    fs::rename(place.path("runs"), place.path("").join(&runs)).unwrap();
    let path = place.path("").join(&runs).join("t");
    for verb in
        [&["report"][..], &["eval"], &["checkpoint", "ls"], &["checkpoint", "verify"], &["corpus", "stats"]]
    {
        let words: Vec<&OsStr> =
            verb.iter().map(OsStr::new).chain([path.as_os_str(), OsStr::new("--json")]).collect();
        let done = run(&words);
        assert_eq!(done.code, Some(0), "{words:?}: {done:?}");
        assert!(
            !done.out.is_empty() && done.out.iter().all(u8::is_ascii)
                || std::str::from_utf8(&done.out).is_ok()
        );
    }
}

#[test]
fn a_full_standard_output_is_an_error_and_a_full_standard_error_is_none() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    if File::options().write(true).open("/dev/full").is_err() {
        println!("skipped: no /dev/full here");
        return;
    }
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    fs::write(place.path("ids.txt"), "1 2 3").unwrap();
    let printing: &[&[&str]] = &[
        &["--help"],
        &["--version"],
        &["generate", "runs/t", "--prompt", "the "],
        &["generate", "runs/t", "--prompt", "the ", "--json"],
        &["eval", "runs/t"],
        &["report", "runs/t"],
        &["corpus", "stats", "runs/t"],
        &["corpus", "inspect", "runs/t", "--kept", "train"],
        &["corpus", "profiles"],
        &["tokenizer", "inspect", "runs/t"],
        &["tokenizer", "decode", "runs/t", "ids.txt"],
        &["checkpoint", "ls", "runs/t"],
        &["checkpoint", "verify", "runs/t"],
        &["config", "show", "recipe.toml"],
        &["config", "schema"],
        &["schedule", "show", "1f1b", "--stages", "2", "--micro-batches", "2"],
        &["completions", "bash"],
        &["run", "recipe.toml"],
    ];
    for words in printing {
        let mut command = place.command(words);
        command.stdout(full());
        finished(command).failed(FAILED, &["error: cannot write to standard output", "No space left"]);
        let mut command = place.command(words);
        command.stderr(full());
        let done = finished(command);
        assert_eq!(done.code, Some(0), "{words:?}");
        assert!(!done.out.is_empty(), "{words:?}");
    }
    // A reader that leaves is no failure; an error that nobody can read keeps its code.
    for (words, code) in
        [(&["frobnicate"][..], USAGE), (&["run", "absent.toml"], RECIPE), (&["report", "absent"], FAILED)]
    {
        let mut command = place.command(words);
        command.stdout(full()).stderr(full());
        assert_eq!(finished(command).code, Some(code), "{words:?}");
    }
    let mut command = place.command(&["config", "schema"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer);
    let done = finished(command);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
}

#[test]
fn a_fifo_device_or_socket_in_place_of_a_file_is_refused_at_once() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    let fifo = place.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let socket = place.path("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let fixed: &[&[&str]] = &[
        &["run", "FILE"],
        &["train", "FILE"],
        &["config", "show", "FILE"],
        &["config", "diff", "recipe.toml", "FILE"],
        &["corpus", "build", "FILE"],
        &["init", "FILE"],
        &["generate", "runs/t", "--prompt-file", "FILE"],
        &["tokenizer", "encode", "FILE", "recipe.toml"],
        &["tokenizer", "encode", "runs/t", "FILE"],
        &["tokenizer", "decode", "runs/t", "FILE"],
        &["tokenizer", "inspect", "FILE"],
        &["corpus", "explain", "FILE", "--profile", "c4"],
        &["corpus", "explain", "recipe.toml", "--profile", "FILE"],
        &["corpus", "extract", "FILE"],
        &["corpus", "score", "FILE", "--kind", "language"],
        &["corpus", "score", "recipe.toml", "--kind", "unigram", "--model", "FILE"],
        &["corpus", "train-lm", "FILE", "--order", "2", "--out", "lm.bin"],
        &["corpus", "media", "inspect", "FILE"],
        &["corpus", "delete", "runs/t", "--ids", "FILE"],
        &["plan", "validate", "FILE"],
        &["schedule", "show", "FILE"],
        &["schedule", "show", "1f1b", "--stages", "2", "--micro-batches", "2", "--trace", "FILE"],
        &["schedule", "energy", "1f1b", "--stages", "2", "--micro-batches", "2", "--profile", "FILE"],
        &["study", "init", "--text", "FILE", "--out", "study"],
        &[
            "run",
            "recipe.toml",
            "--set",
            "run.name=u",
            "--set",
            "corpus.source=jsonl",
            "--set",
            "corpus.path=FILE",
        ],
        &[
            "run",
            "recipe.toml",
            "--set",
            "run.name=u",
            "--set",
            "corpus.source=file",
            "--set",
            "corpus.path=FILE",
        ],
    ];
    for (number, words) in fixed.iter().enumerate() {
        // Opening a FIFO is what hangs: every command has one. The others are refused by the same look at the type.
        for file in ["fifo", ["socket", "/dev/zero"][number % 2]] {
            let words: Vec<String> = words.iter().map(|word| word.replace("FILE", file)).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let begun = Instant::now();
            let mut child = place.command(&words).spawn().unwrap();
            let code = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status.code();
                }
                if begun.elapsed() > Duration::from_secs(20) {
                    child.kill().unwrap();
                    panic!("{words:?} hangs");
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!([Some(FAILED), Some(USAGE), Some(RECIPE)].contains(&code), "{words:?}: {code:?} {said}");
            assert!(
                said.contains(file.trim_start_matches('/')) && !said.contains("panicked"),
                "{words:?}: {said}"
            );
        }
    }
    // In a run directory too.
    for file in ["runs/t/tokenizer.json", "runs/t/metrics.jsonl", "runs/t/recipe.toml"] {
        fs::rename(place.path(file), place.path("kept")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(place.path(file)).status().unwrap().success());
        let words = match file {
            "runs/t/recipe.toml" => ["checkpoint", "gc", "runs/t"],
            "runs/t/metrics.jsonl" => ["report", "runs/t", "-q"],
            _ => ["generate", "runs/t", "-q"],
        };
        let done = place.bessemer(&words);
        assert!(done.code == Some(FAILED) || done.code == Some(RECIPE), "{file}: {done:?}");
        assert!(done.err.contains("FIFO"), "{file}: {done:?}");
        fs::rename(place.path("kept"), place.path(file)).unwrap();
    }
}

#[test]
fn errors_name_the_flag_that_is_wrong() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    for (words, code, parts) in [
        (
            &["eval", "runs/t", "--split", "nothere"][..],
            FAILED,
            &["--split nothere", "train or validation"][..],
        ),
        (&["eval", "runs/t", "--step", "99"], FAILED, &["--step 99", "no checkpoint"]),
        (&["eval", "runs/t", "--threads", "99999"], USAGE, &["--threads", "from 0 to 1024"]),
        (&["run", "recipe.toml", "--memory", "lots"], USAGE, &["--memory", "144MiB"]),
        (&["corpus", "explain", "recipe.toml", "--profile", "nothere"], USAGE, &["--profile", "nothere"]),
        (&["bench", "step"], USAGE, &["bench", "bessemer-bench"]),
    ] {
        let done = place.bessemer(words);
        done.failed(code, parts);
        assert!(done.out.is_empty(), "{words:?}: {done:?}");
    }
}

#[test]
fn mistyped_names_are_followed_by_the_nearest() {
    let place = Workplace::new(GPT2);
    fs::create_dir_all(place.path("runs/quickstart")).unwrap();
    let shape = ["--stages", "2", "--micro-batches", "2"];
    place.bessemer(&["rnu", "recipe.toml"]).failed(USAGE, &["tip: a similar subcommand exists: 'run'"]);
    place.bessemer(&["run", "quikstart"]).failed(78, &["did you mean the built-in recipe `quickstart`?"]);
    for (words, code, meant) in [
        (&["generate", "runs/quickstrat"][..], FAILED, "runs/quickstart?"),
        (&["eval", "quickstart"], FAILED, "runs/quickstart?"),
        (&["checkpoint", "ls", "rnus/quickstart"], FAILED, "runs/quickstart?"),
        (&["corpus", "stats", "runs/quickstar"], FAILED, "runs/quickstart?"),
        (&["compare", "runs/quikstart", "runs/quickstart"], FAILED, "runs/quickstart?"),
        (&["schedule", "show", "1fb1", shape[0], shape[1], shape[2], shape[3]], USAGE, "\"1f1b\"?"),
        (&["network", "show", "fattree-1024"], USAGE, "\"fat-tree-1024\"?"),
        (&["network", "show", "node-8", "--axis", "tnsor=8"], USAGE, "\"tensor\"?"),
        (&["network", "show", "node-8", "--axis", "tensor=8:all-reduc:1MiB"], USAGE, "\"all-reduce\"?"),
        (&["plan", "recipe.toml", "--devices", "4", "--machine", "h100-80g"], USAGE, "\"h100-80gb\"?"),
        (&["parity", "--models", "lama"], USAGE, "\"llama\"?"),
        (&["parity", "--optimizer", "adam"], USAGE, "\"adamw\"?"),
        (&["study", "init", "--methods", "preln"], USAGE, "\"pre-ln\"?"),
        (&["corpus", "score", "docs.jsonl", "--kind", "languag"], USAGE, "\"language\"?"),
        (&["eval", "runs/t", "--tasks", "translatoin"], USAGE, "\"translation\"?"),
        (&["eval", "runs/t", "--tasks", "logic", "--perturb", "mispelling"], USAGE, "\"misspelling\"?"),
        (&["config", "show", "recipe.toml", "--set", "model.architecture=lama"], RECIPE, "\"llama\"?"),
        (&["config", "show", "recipe.toml", "--set", "parallel.schedule=1fb1"], RECIPE, "\"1f1b\"?"),
        (&["config", "show", "recipe.toml", "--set", "tokenizer.pretokenizer=gtp2"], RECIPE, "\"gpt2\"?"),
    ] {
        place.bessemer(words).failed(code, &["did you mean", meant]);
    }
}

/// The bound leaves a margin for a busy machine: each of these took half a minute or more, or did not end.
#[test]
fn huge_values_are_answered_at_once() {
    let place = Workplace::new(LLAMA);
    let answered = |more: &[&str], sets: &[&str]| {
        let words = [&["run", "recipe.toml"], more].concat();
        let words: Vec<&str> = words.into_iter().chain(sets.iter().flat_map(|set| ["--set", set])).collect();
        let begun = Instant::now();
        let done = place.bessemer(&words);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(20), "{words:?} took {took:?}");
        done
    };
    let wide = ["model.width=4096", "model.heads=32", "model.kv_heads=8"];
    let classes = ["parameters", "gradients", "optimizer state", "activations", "are available"];
    let deep = [&wide[..], &["model.layers=10000", "run.name=refused"]].concat();
    answered(&[], &deep).failed(RECIPE, &classes);
    let long = ["model.context=16777216", "train.seq_len=16777216", "train.batch_tokens=16777216"];
    answered(&[], &[&wide[..], &long, &["run.name=refused"]].concat()).failed(RECIPE, &classes);
    answered(&["--ranks", "64"], &["run.name=refused"])
        .failed(RECIPE, &["train.batch_tokens = 256", "64 data-parallel ranks"]);
    assert!(!place.path("runs").exists(), "a refusal leaves nothing");
    let cores = std::thread::available_parallelism().unwrap().get();
    let threads = answered(&[], &["run.threads=4096", "run.name=threads"]);
    assert_eq!(threads.code, Some(0), "{threads:?}");
    assert!(4 * cores >= 4096 || threads.err.contains("warning: run.threads = 4096"), "{threads:?}");
    let no_samples = "eval.samples.prompts=[]";
    let context = answered(&[], &["model.context=16777216", "run.name=context", no_samples]);
    assert_eq!(context.code, Some(0), "{context:?}");
}

#[test]
fn memory_that_a_limit_refuses_is_named_by_class_before_anything_is_made() {
    let place = Workplace::new(GPT2);
    let under = |kib: u64, sets: &[&str]| {
        let mut command = std::process::Command::new("sh");
        let script = format!("ulimit -v {kib} && exec \"$0\" \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_bessemer"), "run", "recipe.toml"]);
        command.args(sets.iter().flat_map(|set| ["--set", set])).current_dir(place.path(""));
        command.stdin(Stdio::null());
        finished(command)
    };
    let large = ["model.width=1024", "model.layers=8", "model.heads=16"];
    let done = under(1 << 20, &large);
    done.failed(RECIPE, &["are available", "ulimit -v", "parameters", "gradients", "optimizer state"]);
    assert!(!place.path("runs").exists());
    // So is one that leaves too little for the program itself, which would end in the middle.
    done_with_arenas(&under(120_000, &[]));
    assert!(!place.path("runs").exists());
    // The limit is no obstacle to a model that fits into it.
    let done = under(4 << 20, &[]);
    assert_eq!(done.code, Some(0), "{done:?}");
}

fn done_with_arenas(done: &crate::workplace::Finished) {
    done.failed(RECIPE, &["ulimit -v", "arenas of the allocator", "corpus and loader"]);
}

/// A group of its own below the root of the hierarchy, if this machine lets the test make one; gone at the end.
struct ControlGroup(PathBuf);

impl ControlGroup {
    fn new(bytes: u64) -> Option<ControlGroup> {
        let name = format!("bessemer-test-{}", std::process::id());
        for (root, limit) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let group = Path::new(root).join(&name);
            if fs::create_dir(&group).is_err() {
                continue;
            }
            let made = ControlGroup(group);
            if made.0.join(limit).exists() && fs::write(made.0.join(limit), bytes.to_string()).is_ok() {
                // Not the group itself has the limit, but one above it.
                return fs::create_dir(made.0.join("job")).is_ok().then_some(made);
            }
        }
        None
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for group in [self.0.join("job"), self.0.clone()] {
            let _ = fs::remove_dir(group);
        }
    }
}

#[test]
fn the_limit_of_a_nested_control_group_is_seen() {
    let Some(group) = ControlGroup::new(200 << 20) else {
        println!("skipped: no control group can be made here");
        return;
    };
    let place = Workplace::new(GPT2);
    let mut command = std::process::Command::new("sh");
    let script = format!("echo $$ > {}/job/cgroup.procs || exit 99; exec \"$0\" \"$@\"", group.0.display());
    command.args(["-c", &script, env!("CARGO_BIN_EXE_bessemer"), "-v", "run", "recipe.toml"]);
    command.args(["--set", "model.width=1024", "--set", "model.layers=8", "--set", "model.heads=16"]);
    command.current_dir(place.path("")).stdin(Stdio::null());
    let done = finished(command);
    if done.code == Some(99) {
        println!("skipped: the control group takes no processes");
        return;
    }
    let limit = format!("(the limit is that of control group {})", group.0.display());
    done.failed(RECIPE, &["optimizer state", "parameters", "gradients", "activations", &limit]);
    assert!(!place.path("runs").exists());
}

#[test]
fn mistyped_paths_make_no_directories() {
    let place = Workplace::new(GPT2);
    let cases: &[(&[&str], i32)] = &[
        (&["run", "nothere.toml"], RECIPE),
        (&["run", "recipe.toml", "--set", "corpus.path=nothere"], FAILED),
        (&["corpus", "build", "recipe.toml", "--set", "corpus.path=nothere"], FAILED),
        (&["tokenizer", "train", "recipe.toml", "--set", "corpus.path=nothere"], FAILED),
        (&["run", "recipe.toml", "--set", "run.dir=nothere/runs"], FAILED),
        (&["train", "recipe.toml"], FAILED),
        (&["train", "recipe.toml", "--set", "run.dir=nothere"], FAILED),
        (&["init", "nothere"], FAILED),
        (&["generate", "nothere"], FAILED),
        (&["eval", "nothere"], FAILED),
        (&["report", "nothere"], FAILED),
        (&["checkpoint", "gc", "nothere"], FAILED),
    ];
    for (words, code) in cases {
        let done = place.bessemer(words);
        assert_eq!(done.code, Some(*code), "{words:?}: {done:?}");
        let named = if words[1] == "recipe.toml" && words.len() == 2 { "runs/t" } else { "nothere" };
        assert!(done.err.contains(named), "{words:?}: {done:?}");
        assert!(!place.path("nothere").exists() && !place.path("runs").exists(), "{words:?}");
    }
    // The folder of runs itself is made.
    let words = ["corpus", "build", "recipe.toml", "--set", "run.dir=elsewhere"];
    assert_eq!(place.bessemer(&words).code, Some(0));
    assert!(place.path("elsewhere/t/corpus/corpus.json").exists());
}

#[test]
fn a_smaller_vocabulary_than_asked_for_is_said_and_recorded() {
    let place = Workplace::new(GPT2);
    let words = ["run", "recipe.toml", "--set", "tokenizer.vocab_size=4000"];
    for _ in 0..2 {
        let done = place.bessemer(&words);
        assert_eq!(done.code, Some(0), "{done:?}");
        let line = done.err.lines().find(|l| l.starts_with("warning: tokenizer.vocab_size = 4000")).unwrap();
        let found: u64 =
            line.split("the text gives ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let inspected = place.bessemer(&["tokenizer", "inspect", "runs/t", "--json"]).json();
        assert_eq!(inspected["vocab_size"], found);
    }
    let warnings = place.records("warning");
    assert_eq!(warnings.iter().filter(|w| w["topic"] == "tokenizer").count(), 1, "{warnings:?}");
}

#[test]
fn a_run_is_cut_short_by_one_setting_and_a_longer_warm_up_is_said() {
    let place = Workplace::new(GPT2);
    let done =
        place.bessemer(&["run", "recipe.toml", "--set", "optim.warmup_steps=2000", "--set", "train.steps=2"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.err.contains("warning: optim.warmup_steps = 2000 is longer than the run of 2 steps"),
        "{done:?}"
    );
    assert_eq!(place.records("step").len(), 2);
    // A recipe that states tokens is cut by steps too.
    let recipe =
        fs::read_to_string(place.path("recipe.toml")).unwrap().replace("steps = 6", "tokens = 100_000");
    fs::write(place.path("tokens.toml"), recipe).unwrap();
    let done = place.bessemer(&["run", "tokens.toml", "--set", "train.steps=3", "--set", "run.name=u"]);
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[test]
fn json_of_report_and_decode() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    let report = place.bessemer(&["report", "runs/t", "--json"]).json();
    assert_eq!(
        (&report["step"]["step"], &report["end"]["reason"]),
        (&6.into(), &"finished".into()),
        "{report}"
    );
    assert_eq!(report["run"], "runs/t");
    fs::write(place.path("text.txt"), "the café").unwrap();
    let ids = place.bessemer(&["tokenizer", "encode", "runs/t", "text.txt", "--json"]).text();
    fs::write(place.path("ids.txt"), &ids).unwrap();
    let decoded = place.bessemer(&["tokenizer", "decode", "runs/t", "ids.txt", "--json"]).json();
    assert_eq!(
        (decoded["text"].as_str(), decoded["utf8"].as_bool()),
        (Some("the café"), Some(true)),
        "{decoded}"
    );
    assert_eq!(
        (decoded["bytes"].as_u64(), decoded["tokens"].as_u64().is_some()),
        (Some(9), true),
        "{decoded}"
    );
}

#[test]
fn generate_prints_nothing_before_it_can_write() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    let refused = |words: &[&str], code: i32, parts: &[&str]| {
        let done = place.bessemer(&[&["generate", "runs/t", "--prompt", "the "], words].concat());
        done.failed(code, parts);
        assert!(done.out.is_empty(), "{words:?}: {done:?}");
    };
    refused(&["--top-p", "0"], USAGE, &["--top-p", "above 0 and at most 1"]);
    refused(&["--temperature", "-1"], USAGE, &["--temperature", "-1", "from 0 to 100"]);
    refused(&["--max-tokens", "99999999999"], USAGE, &["--max-tokens"]);
    refused(&["--stop", ""], USAGE, &["--stop"]);
    refused(&["--samples", "0"], USAGE, &["--samples"]);
    refused(&["--threads", "9999"], USAGE, &["--threads"]);
    refused(&["--step", "77"], FAILED, &["step 77"]);
    refused(&["--prompt-file", "recipe.toml"], USAGE, &["--prompt-file", "--prompt"]);
    fs::write(place.path("latin1.txt"), b"caf\xe9").unwrap();
    let words = ["generate", "runs/t", "--prompt-file", "latin1.txt"];
    place.bessemer(&words).failed(FAILED, &["--prompt-file", "latin1.txt", "UTF-8", "offset 3"]);
}

#[test]
fn prompts_come_from_files_and_standard_input_and_texts_end_at_stop_strings() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    let generate = |words: &[&str]| {
        place.bessemer(&[&["generate", "runs/t", "--max-tokens", "30"], words].concat()).text()
    };
    let plain = generate(&["--prompt", "the quick"]);
    fs::write(place.path("prompt.txt"), "the quick").unwrap();
    assert_eq!(generate(&["--prompt-file", "prompt.txt"]), plain);
    for words in [&["--prompt", "-"][..], &["--prompt-file", "-"]] {
        let mut command = place.command(&[&["generate", "runs/t", "--max-tokens", "30"], words].concat());
        command.stdin(File::open(place.path("prompt.txt")).unwrap());
        assert_eq!(finished(command).text(), plain);
    }
    let lines = |words: &[&str]| -> Vec<Value> {
        let text = generate(&[words, &["--prompt", "the quick", "--json"]].concat());
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let whole = lines(&[]).remove(0);
    let text = whole["text"].as_str().unwrap();
    assert_eq!(whole["finish"], "max-tokens");
    // A piece of the text that was written without stop strings.
    let stop: String = text.chars().skip(5).take(2).collect();
    let before = &text[..text.find(&stop).unwrap()];
    let stopped = lines(&["--stop", "not in the text", "--stop", &stop]).remove(0);
    assert_eq!((stopped["text"].as_str(), stopped["finish"].as_str()), (Some(before), Some("stop-string")));
    let samples = lines(&["-n", "3"]);
    assert_eq!(samples.iter().map(|s| s["sample"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(samples[0]["text"], whole["text"]);
    let several = generate(&["--prompt", "the quick", "-n", "3"]);
    for (number, sample) in (1..).zip(&samples) {
        let shown = format!("--- sample {number} of 3 ---\nthe quick");
        assert!(several.contains(&shown), "{several}");
        assert!(sample["text"].as_str().is_some());
    }
}

#[test]
fn init_writes_a_recipe_that_runs_and_replaces_nothing() {
    let place = Workplace::new(GPT2);
    let made = place.bessemer(&["init", "text", "--out", "mine.toml", "--hours", "0.01", "--json"]).json();
    assert_eq!((made["source"].as_str(), made["files"].as_u64()), (Some("folder"), Some(32)), "{made}");
    assert_eq!(made["next"], "bessemer run mine.toml");
    let before = fs::read(place.path("mine.toml")).unwrap();
    let words = ["init", "text", "--out", "mine.toml"];
    place.bessemer(&words).failed(FAILED, &["--out mine.toml", "exists", "not replaced"]);
    assert_eq!(fs::read(place.path("mine.toml")).unwrap(), before);
    let run = ["run", "mine.toml", "--set", "train.steps=3", "--set", "eval.samples.generate.max_tokens=4"];
    let done = place.bessemer(&run);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(place.path("runs/mine/report.html").exists());

    // JSON lines with the text in a field of another name, one file of text, and nothing that is text.
    fs::write(place.path("docs.jsonl"), "{\"id\": \"1\", \"story\": \"once upon a time\"}\n").unwrap();
    assert_eq!(
        place.bessemer(&["init", "docs.jsonl", "--out", "j.toml", "--json"]).json()["source"],
        "jsonl"
    );
    let show = place.bessemer(&["config", "show", "j.toml", "--json"]).json();
    assert_eq!((&show["corpus"]["text"], &show["corpus"]["path"]), (&"story".into(), &"docs.jsonl".into()));
    let one = place.bessemer(&["init", "text/alpha/0.txt", "--out", "one.toml"]).text();
    assert!(one.contains("next:  bessemer run one.toml"), "{one}");
    assert_eq!(place.bessemer(&["config", "show", "one.toml", "--json"]).json()["corpus"]["source"], "file");
    fs::write(place.path("image.bin"), [0u8, 1, 2, 255]).unwrap();
    place
        .bessemer(&["init", "image.bin", "--out", "b.toml"])
        .failed(FAILED, &["image.bin", "not UTF-8 text"]);
    place.bessemer(&["init", "runs/mine/checkpoints", "--out", "b.toml"]).failed(FAILED, &["wanted text"]);
    place.bessemer(&["init", "text", "--hours", "0", "--out", "b.toml"]).failed(USAGE, &["--hours"]);
    place.bessemer(&["init", "text", "--out", "b.txt"]).failed(USAGE, &["--out b.txt", ".toml"]);
    assert!(!place.path("b.toml").exists() && !place.path("b.txt").exists());
}

#[test]
fn texts_with_byte_order_marks_and_in_utf16_are_read_everywhere() {
    let place = Workplace::new(GPT2);
    let recipe = fs::read_to_string(place.path("recipe.toml")).unwrap();
    let task =
        "{\"text\": \"The quick brown fox jumps over the lazy dog, and nobody has seen it do so twice.\"}\n"
            .repeat(3);
    let judged = "{\"prompt\": \"p\", \"texts\": {\"a\": \"x\", \"b\": \"y\"}}\n";
    let table = "parameters,tokens,loss\n1e6,1e8,4.1\n2e6,2e8,3.8\n4e6,4e8,3.5\n8e6,8e8,3.3\n16e6,16e8,3.1\n32e6,1e8,3.4\n";
    let files = [
        ("r.toml", recipe.as_str()),
        ("docs.jsonl", &task),
        ("texts.jsonl", judged),
        ("runs.csv", table),
        ("system", "one two three four\n"),
        ("reference", "one two three five\n"),
    ];
    let units = |text: &str| -> Vec<u16> { "\u{feff}".encode_utf16().chain(text.encode_utf16()).collect() };
    type Form = fn(&[u16]) -> Vec<u8>;
    let forms: [Form; 4] = [
        |units| String::from_utf16_lossy(&units[1..]).into_bytes(),
        |units| String::from_utf16_lossy(units).into_bytes(),
        |units| units.iter().flat_map(|unit| unit.to_le_bytes()).collect(),
        |units| units.iter().flat_map(|unit| unit.to_be_bytes()).collect(),
    ];
    let commands: [&[&str]; 5] = [
        &["config", "show", "r.toml", "--json"],
        &["corpus", "explain", "docs.jsonl", "--profile", "gopher-quality", "--json"],
        &["judge", "create", "s.jsonl", "--texts", "texts.jsonl", "--json"],
        &["scaling", "fit", "runs.csv", "--samples", "5", "--json"],
        &["metric", "bleu", "system", "reference", "--json"],
    ];
    let mut wanted = Vec::new();
    for (number, form) in forms.into_iter().enumerate() {
        for (name, text) in files {
            fs::write(place.path(name), form(&units(text))).unwrap();
        }
        for (at, words) in commands.into_iter().enumerate() {
            let _ = fs::remove_file(place.path("s.jsonl"));
            let found = place.bessemer(words).text();
            match number {
                0 => wanted.push(found),
                _ => assert_eq!(found, wanted[at], "{words:?}, form {number}"),
            }
        }
    }
}

#[test]
fn a_tilde_is_the_home_directory_in_recipes_and_arguments() {
    let place = Workplace::new(GPT2);
    fs::create_dir(place.path("home")).unwrap();
    fs::rename(place.path("text"), place.path("home/text")).unwrap();
    fs::rename(place.path("recipe.toml"), place.path("home/recipe.toml")).unwrap();
    let mut command =
        place.command(&["config", "show", "~/recipe.toml", "--set", "corpus.path=~/text", "--json"]);
    command.env("HOME", place.path("home"));
    let shown = finished(command).json();
    assert_eq!(shown["corpus"]["path"], place.path("home/text").display().to_string().as_str());
}

#[test]
fn init_reads_tables_mixed_folders_and_instructions_and_says_what_it_leaves_out() {
    let place = Workplace::new(GPT2);
    let prose = |n: usize| {
        format!("Sentence {n} of a text that is long enough to be kept by the rules of a recipe. ").repeat(3)
    };
    fs::create_dir(place.path("mixed")).unwrap();
    for n in 0..5 {
        fs::write(place.path(&format!("mixed/{n}.txt")), prose(n)).unwrap();
    }
    fs::write(place.path("mixed/README"), prose(9)).unwrap();
    fs::write(place.path("mixed/stray.jsonl"), format!("{{\"text\": {:?}}}\n", prose(7).repeat(50))).unwrap();
    fs::write(place.path("mixed/short.txt"), "short").unwrap();
    // Three lines, and a recipe that runs to the end.
    let init = |what: &str, out: &str| {
        let done = place.bessemer(&["init", what, "--out", out]);
        let answer = String::from_utf8(done.out.clone()).unwrap();
        let begins: Vec<&str> = answer.lines().map(|line| &line[..line.len().min(6)]).collect();
        assert_eq!(begins, ["found:", "chose:", "next: "], "{done:?}");
        let run =
            place.bessemer(&["run", out, "--set", "train.steps=2", "--set", "eval.samples.every_steps=0"]);
        assert_eq!(run.code, Some(0), "{what}: {run:?}");
        (answer, done.err)
    };
    let (answer, mixed) = init("mixed", "m.toml");
    assert!(mixed.contains("\"folder\" and leaves out 1"), "{mixed}");
    assert!(answer.contains("keep 6 of 7 documents") && answer.contains("too-short 1"), "{answer}");
    let shown = place.bessemer(&["config", "show", "m.toml", "--json"]).json();
    assert_eq!(shown["corpus"]["source"], "folder");

    let alpaca = |n: usize| {
        serde_json::json!({ "instruction": "Write.", "input": "", "output": prose(n) }).to_string() + "\n"
    };
    fs::write(place.path("alpaca.jsonl"), (0..9).map(alpaca).collect::<String>()).unwrap();
    let told = init("alpaca.jsonl", "a.toml");
    assert!(told.1.contains("\"output\" becomes text; left out: instruction, input"), "{}", told.1);
    let table: String = (0..9).map(|n| format!("{n},\"{}\"\n", prose(n))).collect();
    fs::write(place.path("rows.csv"), format!("id,story\n{table}")).unwrap();
    assert!(init("rows.csv", "c.toml").0.contains("found: rows of text"));
    let nested = |n: usize| serde_json::json!({ "doc": { "body": prose(n) }, "id": n }).to_string() + "\n";
    fs::write(place.path("nested.jsonl"), (0..9).map(nested).collect::<String>()).unwrap();
    init("nested.jsonl", "n.toml");
    let shown = place.bessemer(&["config", "show", "n.toml", "--json"]).json();
    assert_eq!(shown["corpus"]["text"], "doc.body");
}

#[test]
fn completions_and_manual_pages_cover_every_verb() {
    let place = Workplace::new(GPT2);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.bessemer(&["completions", shell]).text();
        for word in ["generate", "checkpoint", "prompt-file", "stop"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    let script = place.bessemer(&["completions", "bash"]).text();
    fs::write(place.path("c.bash"), script).unwrap();
    let line = "source c.bash && COMP_WORDS=(bessemer gen) COMP_CWORD=1 && _bessemer bessemer gen bessemer && echo \"${COMPREPLY[@]}\"";
    let done =
        std::process::Command::new("bash").args(["-c", line]).current_dir(place.path("")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "generate", "{done:?}");
    assert_eq!(place.bessemer(&["man", "--out", "man"]).code, Some(0));
    for page in
        ["bessemer.1", "bessemer-generate.1", "bessemer-corpus-build.1", "bessemer-checkpoint-export.1"]
    {
        let text = fs::read_to_string(place.path("man").join(page)).unwrap();
        assert!(text.contains(".TH") && text.contains("bessemer"), "{page}: {text}");
    }
    assert!(fs::read_to_string(place.path("man/bessemer-generate.1")).unwrap().contains("prompt"));
}

#[test]
fn errors_are_coloured_as_those_of_the_command_line_are() {
    let place = Workplace::new(GPT2);
    let errors = |variables: &[(&str, &str)]| {
        [&["frobnicate"][..], &["report", "absent"]].map(|words| {
            let mut command = place.command(words);
            for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
                command.env_remove(name);
            }
            command.envs(variables.iter().copied());
            finished(command).err
        })
    };
    // Standard error is no terminal here.
    for plain in [&[][..], &[("CLICOLOR", "1")], &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]] {
        for error in errors(plain) {
            assert!(error.starts_with("error:") && !error.contains('\u{1b}'), "{plain:?}: {error:?}");
        }
    }
    let [clap, own] = errors(&[("CLICOLOR_FORCE", "1")]);
    let paint = &clap[..clap.find("error:").unwrap()];
    assert!(paint.starts_with('\u{1b}') && own.starts_with(&format!("{paint}error:")), "{clap:?} {own:?}");
}

#[test]
fn quiet_says_nothing_and_verbose_says_every_step() {
    let place = Workplace::new(GPT2);
    let steps = |words: &[&str]| {
        let done = place.bessemer(&[&["run", "recipe.toml", "--set", "train.log_every=5"], words].concat());
        assert_eq!(done.code, Some(0), "{done:?}");
        (done.err.lines().filter(|l| l.starts_with("step ")).count(), done.err)
    };
    assert_eq!(steps(&["--set", "run.name=a"]).0, 3);
    let (lines, said) = steps(&["--set", "run.name=b", "-v"]);
    assert_eq!(lines, 6);
    assert!(said.contains("memory: ") && said.contains("bounded by"), "{said}");
    assert_eq!(steps(&["--set", "run.name=c", "-q"]).1, "");
    place.bessemer(&["run", "recipe.toml", "-q", "-v"]).failed(USAGE, &["--quiet", "--verbose"]);
}

/// `corpus build` needs `[run]` and `[corpus]`; `plan`, `program show` and `config show` need no duration; a training needs all.
#[test]
fn commands_need_only_the_sections_that_they_use() {
    let place = Workplace::new(GPT2);
    let text = "[run]\nname = \"t\"\n[corpus]\nsource = \"folder\"\npath = \"text\"\n";
    fs::write(place.path("corpus.toml"), text).unwrap();
    // What other commands would refuse is not this one's.
    let other = format!("{text}[model]\nvocab_size = 10\n[train]\nseq_len = 5000\n");
    fs::write(place.path("other.toml"), &other).unwrap();
    for recipe in ["corpus.toml", "other.toml"] {
        let done = place.bessemer(&["corpus", "build", recipe]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        place
            .bessemer(&["run", recipe])
            .failed(78, &["exactly one of train.steps, train.tokens and train.epochs, found none"]);
    }
    place.bessemer(&["tokenizer", "train", "corpus.toml"]).text();
    for words in [
        &["config", "show", "corpus.toml"][..],
        &["config", "show", "corpus.toml", "--ranks", "2"],
        &["program", "show", "corpus.toml"],
        &["plan", "corpus.toml", "--devices", "2", "--machine", "h100-80gb"],
        &["config", "diff", "corpus.toml", "corpus.toml"],
    ] {
        let done = place.bessemer(words);
        assert_eq!(done.code, Some(0), "{words:?}: {}", done.err);
    }
    // Mistakes in sections that are used, and unknown keys anywhere, are still found.
    fs::write(place.path("wrong.toml"), format!("{text}[model]\nlayerz = 2\n")).unwrap();
    place.bessemer(&["corpus", "build", "wrong.toml"]).failed(78, &["layerz"]);
    place.bessemer(&["config", "show", "other.toml"]).failed(78, &["seq_len"]);
}

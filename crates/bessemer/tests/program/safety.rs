//! Files outside the run directory are not touched, none inside is lost, damage is reported: links, copied
//! checkpoints, damaged logs, files of other kinds, typing errors, the end of the terminal.

use crate::workplace::{GPT2, Workplace, assert_untouched, finished, with_overrides};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

const FAILED: i32 = 1;
const CONTINUE: i32 = 75;
const RECIPE: i32 = 78;
const SAVES: [&str; 4] =
    ["save.every_steps=2", "save.keep_last=1", "optim.schedule=constant", "eval.ngram.enabled=false"];

/// A run of four steps whose newest checkpoint was moved to `elsewhere/` and linked.
fn linked() -> Workplace {
    let place = Workplace::new(GPT2);
    place.train(&[&SAVES[..], &["train.steps=4"]].concat());
    fs::create_dir(place.path("elsewhere")).unwrap();
    let (there, here) =
        (place.path("elsewhere/step-00000004"), place.path("runs/t/checkpoints/step-00000004"));
    fs::rename(&here, &there).unwrap();
    symlink(&there, &here).unwrap();
    place
}

#[test]
fn a_linked_checkpoint_is_gone_on_from_and_never_emptied() {
    let place = linked();
    let before = place.files("elsewhere");
    let list = place.bessemer(&["checkpoint", "ls", "runs/t"]).text();
    assert!(list.contains("step        4") && list.contains("(linked)"), "{list}");
    let verified = place.bessemer(&["checkpoint", "verify", "runs/t"]).text();
    assert!(verified.contains("intact") && verified.contains("step-00000004"), "{verified}");

    place.train(&[&SAVES[..], &["train.steps=8"]].concat());
    assert_eq!(place.records("resume").pop().unwrap()["step"], 4);
    assert_untouched(&place.files("elsewhere"), &before);
    assert!(place.path("runs/t/checkpoints/step-00000008/manifest.json").exists());
    assert_eq!(place.bessemer(&["checkpoint", "gc", "runs/t", "--keep-last", "1"]).code, Some(0));
    assert_untouched(&place.files("elsewhere"), &before);

    // A link to a damaged checkpoint is no silent new beginning.
    let place = linked();
    fs::remove_dir_all(place.path("runs/t/checkpoints/step-00000002")).unwrap();
    fs::rename(place.path("elsewhere/step-00000004/manifest.json"), place.path("elsewhere/step-00000004/m"))
        .unwrap();
    let before = place.files("elsewhere");
    let run = ["run", "recipe.toml", "--set", "train.steps=4", "--set", "save.every_steps=4"];
    place.bessemer(&run).failed(FAILED, &["no usable checkpoint", "step-00000004"]);
    assert_untouched(&place.files("elsewhere"), &before);
}

#[test]
fn linked_directories_are_read_and_written_only_where_the_whole_run_is_linked() {
    let place = Workplace::new(GPT2);
    place.train(&[&SAVES[..], &["train.steps=4"]].concat());
    let more = ["train", "recipe.toml", "--set", "train.steps=8", "--set", "save.every_steps=2"];
    for name in ["checkpoints", "shards/train"] {
        let moved = place.path("moved");
        fs::rename(place.path("runs/t").join(name), &moved).unwrap();
        symlink(&moved, place.path("runs/t").join(name)).unwrap();
        let before = place.files("moved");
        assert!(place.bessemer(&["checkpoint", "ls", "runs/t"]).text().contains("step        4"));
        assert_eq!(place.bessemer(&["checkpoint", "verify", "runs/t"]).code, Some(0));
        if name == "checkpoints" {
            place.bessemer(&more).failed(FAILED, &["runs/t/checkpoints", "symbolic link"]);
            let gc = place.bessemer(&["checkpoint", "gc", "runs/t", "--keep-last", "1"]);
            gc.failed(FAILED, &["runs/t/checkpoints", "symbolic link"]);
        } else {
            // Another tokenizer means other shards: those behind the link are not replaced.
            let other = ["run", "recipe.toml", "--set", "tokenizer.vocab_size=280"];
            place.bessemer(&other).failed(FAILED, &["shards/train", "symbolic link"]);
        }
        assert_untouched(&place.files("moved"), &before);
        fs::remove_file(place.path("runs/t").join(name)).unwrap();
        fs::rename(&moved, place.path("runs/t").join(name)).unwrap();
    }

    let place = Workplace::new(GPT2);
    place.train(&[&SAVES[..], &["train.steps=4"]].concat());
    fs::rename(place.path("runs/t"), place.path("big")).unwrap();
    symlink(place.path("big"), place.path("runs/t")).unwrap();
    place.train(&[&SAVES[..], &["train.steps=8"]].concat());
    assert_eq!(place.records("resume").pop().unwrap()["step"], 4);
    assert!(place.path("big/checkpoints/step-00000008/manifest.json").exists());
}

#[test]
fn verify_and_train_agree_on_what_is_intact() {
    let place = Workplace::new(GPT2);
    place.train(&["train.steps=4", "optim.schedule=constant"]);
    let checkpoints = place.path("runs/t/checkpoints");
    let copy = |to: &str| {
        let words = [checkpoints.join("step-00000004"), checkpoints.join(to)];
        assert!(Command::new("cp").arg("-r").args(words).status().unwrap().success());
    };
    copy("step-00000009");
    let verified = place.bessemer(&["checkpoint", "verify", "runs/t"]);
    verified.failed(FAILED, &["1 of 2 checkpoints are damaged"]);
    let text = String::from_utf8(verified.out).unwrap();
    assert!(text.contains("holds step 4, but its directory is named step-00000009"), "{text}");
    let done =
        place.bessemer(&["run", "recipe.toml", "--set", "train.steps=6", "--set", "optim.schedule=constant"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("holds step 4") && done.err.contains("resuming after step 4"), "{}", done.err);
}

#[test]
fn a_damaged_line_of_the_log_costs_that_line() {
    let place = Workplace::new(GPT2);
    place.train(&["train.steps=4", "optim.schedule=constant"]);
    let path = place.path("runs/t/metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let number = 1 + text.lines().position(|l| l.contains("\"kind\":\"step\"")).unwrap();
    let lines: Vec<String> = text
        .lines()
        .enumerate()
        .map(|(i, l)| if i + 1 == number { l.replace("\"step\":", "\"st\u{1}p\":") } else { l.into() })
        .collect();
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    assert_eq!(place.bessemer(&["report", "runs/t"]).code, Some(0));
    let more = ["train", "recipe.toml", "--set", "train.steps=6", "--set", "optim.schedule=constant"];
    let done = place.bessemer(&more);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains(&format!("metrics.jsonl:{number}: damaged line ignored")), "{}", done.err);
    let aside = fs::read_to_string(place.path("runs/t/metrics.damaged")).unwrap();
    assert_eq!(aside.trim_end(), lines[number - 1]);
    assert_eq!(place.records("step").len(), 5);

    // A FIFO in its place is refused at once.
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let begun = Instant::now();
    for words in [&more[..], &["report", "runs/t"]] {
        place.bessemer(words).failed(FAILED, &["metrics.jsonl", "regular file"]);
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn an_input_that_cannot_be_read_is_refused_before_the_run_directory_is_made() {
    let place = Workplace::new(GPT2);
    fs::create_dir(place.path("folder")).unwrap();
    fs::write(place.path("folder/text.txt"), "A line of text.\n").unwrap();
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let socket = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
    fs::write(place.path("secret.txt"), "text").unwrap();
    fs::set_permissions(place.path("secret.txt"), fs::Permissions::from_mode(0o0)).unwrap();
    let is_refused = fs::File::open(place.path("secret.txt")).is_err();
    let source = |name: &str, kind: &str| {
        vec![format!("corpus.path={name}"), format!("corpus.source={kind}"), "run.name=new".into()]
    };
    let set = |key_and_value: &str| vec![key_and_value.to_owned(), "run.name=new".into()];
    let score = |path: &str| {
        let list =
            format!("corpus.scores.list=[{{name = \"lang\", kind = \"language\", model = \"{path}\"}}]");
        vec![list, "run.name=new".into()]
    };
    let mut cases = vec![
        (source("pipe", "auto"), FAILED, ["pipe", "save its content to a file"]),
        (source("pipe", "file"), FAILED, ["pipe", "save its content to a file"]),
        (source("pipe", "jsonl"), FAILED, ["pipe", "save its content to a file"]),
        (source("socket", "folder"), FAILED, ["socket", "save its content to a file"]),
        (source("none", "auto"), FAILED, ["none", "check corpus.path"]),
        (source("folder", "file"), FAILED, ["folder", "corpus.source = \"folder\""]),
        (source("recipe.toml", "folder"), FAILED, ["recipe.toml", "corpus.source = \"file\""]),
        (set("tokenizer.file=none.json"), FAILED, ["tokenizer.file", "none.json"]),
        (set("tokenizer.file=folder"), FAILED, ["tokenizer.file", "folder"]),
        (set("tokenizer.file=pipe"), FAILED, ["tokenizer.file", "pipe"]),
        (set("tokenizer.file=recipe.toml"), FAILED, ["tokenizer.file", "recipe.toml"]),
        (set("corpus.urls.domain_files=[\"pipe\"]"), RECIPE, ["corpus.urls.domain_files", "pipe"]),
        (set("corpus.urls.domain_files=[\"none\"]"), RECIPE, ["corpus.urls.domain_files", "none"]),
        (score("none"), RECIPE, ["\"lang\": model", "none"]),
        (score("folder"), RECIPE, ["\"lang\": model", "folder"]),
    ];
    if is_refused {
        cases.push((source("secret.txt", "file"), FAILED, ["secret.txt", "ermission denied"]));
    }
    for (sets, code, parts) in cases {
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let done = place.bessemer(&with_overrides(&["run", "recipe.toml"], &sets));
        done.failed(code, &parts);
        assert!(!place.path("runs").exists(), "{sets:?} leaves a run directory");
    }
    // A corpus needs no tokenizer.
    let sets = ["tokenizer.file=none.json"];
    let done = place.bessemer(&with_overrides(&["corpus", "build", "recipe.toml"], &sets));
    assert_eq!(done.code, Some(0), "{done:?}");
    drop(socket);
}

#[test]
fn commands_that_only_read_create_nothing() {
    let place = Workplace::new(GPT2);
    let before = place.files("");
    for words in [
        &["eval", "nothere"][..],
        &["generate", "nothere"],
        &["report", "nothere"],
        &["checkpoint", "ls", "nothere"],
        &["checkpoint", "inspect", "nothere"],
        &["checkpoint", "verify", "nothere"],
        &["checkpoint", "gc", "nothere"],
        &["checkpoint", "export", "nothere", "--out", "exported"],
        &["checkpoint", "import", "nothere", "--out", "imported"],
        &["corpus", "stats", "nothere"],
        &["corpus", "inspect", "nothere"],
        &["tokenizer", "inspect", "nothere"],
        &["train", "recipe.toml", "--set", "run.name=nothere"],
    ] {
        let done = place.bessemer(words);
        assert_eq!(done.code, Some(FAILED), "{words:?}: {done:?}");
        assert!(done.err.contains("nothere"), "{words:?}: {}", done.err);
        assert_untouched(&place.files(""), &before);
        for name in ["nothere", "runs", "exported", "imported"] {
            assert!(!place.path(name).exists(), "{words:?} made {name}");
        }
    }
}

/// Starts a long run under a shell that may ignore SIGHUP, sends SIGHUP after some steps, and returns the exit code, or
/// none if the run was still at work a while later.
fn hang_up(place: &Workplace, shell: &str) -> Option<i32> {
    // The tests themselves may run under nohup, and an ignored signal is inherited.
    let mut command = Command::new("env");
    let script =
        format!("{shell} exec \"$0\" run recipe.toml --set train.steps=100000 --set save.every_seconds=0");
    command.args(["--default-signal=HUP", "bash", "-c", &script, env!("CARGO_BIN_EXE_bessemer")]);
    command.current_dir(place.path(""));
    let mut child = command.stderr(fs::File::create(place.path("stderr.txt")).unwrap()).spawn().unwrap();
    let log = || fs::read_to_string(place.path("runs/t/metrics.jsonl")).unwrap_or_default();
    let begun = Instant::now();
    while !log().contains("\"kind\":\"step\"") {
        assert!(begun.elapsed() < Duration::from_secs(60), "no step");
        std::thread::sleep(Duration::from_millis(5));
    }
    // A closing terminal sends it more than once.
    for _ in 0..2 {
        assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(if shell.is_empty() { 60 } else { 2 }) {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status.code().unwrap_or(-1));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

#[test]
fn the_end_of_the_terminal_saves_and_leaves_unless_it_is_ignored() {
    let place = Workplace::new(GPT2);
    assert_eq!(hang_up(&place, ""), Some(CONTINUE), "{:?}", fs::read_to_string(place.path("stderr.txt")));
    let list = place.bessemer(&["checkpoint", "ls", "runs/t"]).text();
    assert!(list.contains("step"), "{list}");
    assert_eq!(place.records("end").pop().unwrap()["reason"], "interrupted");
    // Under nohup the run goes on.
    let place = Workplace::new(GPT2);
    assert_eq!(hang_up(&place, "trap '' HUP;"), None);
}

#[test]
fn a_manifest_of_an_impossible_model_is_refused_at_once() {
    let place = Workplace::new(GPT2);
    place.train(&["train.steps=2"]);
    let path = place.path("runs/t/checkpoints/step-00000002/manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let body = &text[..text.len() - 92];
    let huge = body.replacen("\"layers\":2", "\"layers\":1000000000000000", 1);
    assert_ne!(huge, body);
    let sum = blake3::hash(huge.as_bytes()).to_hex();
    fs::write(&path, format!("{huge},\n  \"checksum\": \"blake3:{sum}\"\n}}\n")).unwrap();
    let begun = Instant::now();
    for words in [&["generate", "runs/t"][..], &["eval", "runs/t"], &["checkpoint", "verify", "runs/t"]] {
        let mut command = Command::new("bash");
        let script = "ulimit -v 4000000; exec \"$0\" \"$@\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_bessemer")]).args(words).current_dir(place.path(""));
        let done = finished(command);
        let text = done.err.clone() + &String::from_utf8_lossy(&done.out);
        assert_eq!(done.code, Some(FAILED), "{text}");
        assert!(text.contains("model.layers: wanted 1 to 10000"), "{text}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_run_below_its_source_does_not_read_itself() {
    let place = Workplace::new(GPT2);
    // The folder of the recipe, text and runs.
    place.train(&["corpus.path=."]);
    let read = |name: &str| fs::read(place.path(&format!("runs/t/{name}"))).unwrap();
    let (documents, tokenizer) = (read("corpus/documents-train-00000.parquet"), read("tokenizer.json"));
    fs::remove_dir_all(place.path("runs/t/corpus")).unwrap();
    let again = place.bessemer(&["run", "recipe.toml", "--set", "corpus.path=.", "--set", "train.steps=8"]);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.err.contains("run directory 1 (runs/t)"), "{}", again.err);
    assert!(documents == read("corpus/documents-train-00000.parquet") && tokenizer == read("tokenizer.json"));
}

/// Entries of a run directory are replaced by links and FIFOs, one after the other: files outside stay as they are, each
/// answer names the path, and the program does not wait.
#[test]
fn links_and_fifos_within_a_run_directory_lead_nowhere() {
    let place = Workplace::new(GPT2);
    place.train(&[&SAVES[..], &["train.steps=4"]].concat());
    assert_eq!(place.bessemer(&["supervise", "--run-dir", "runs/t", "--", "true"]).code, Some(0));
    fs::create_dir(place.path("memory")).unwrap();
    let memory = format!("save.memory.directory={}", place.path("memory").display());
    let more = with_overrides(&["train", "recipe.toml"], &["train.steps=8", "save.every_steps=2"]);
    let in_memory = [&more[..], &["--set", "save.memory.keep=own", "--set", &memory]].concat();
    let other = with_overrides(&["run", "recipe.toml"], &["tokenizer.vocab_size=280"]);
    let supervise = vec!["supervise", "--run-dir", "runs/t", "--", "true"];
    type Link = fn(&std::path::Path, &std::path::Path);
    let symbolic: Link = |outside, at| symlink(outside, at).unwrap();
    let hard: Link = |outside, at| fs::hard_link(outside, at).unwrap();
    for (name, link, words) in [
        ("shards", symbolic, &other),
        ("stages", symbolic, &other),
        ("checkpoints", symbolic, &in_memory),
        ("supervise", symbolic, &supervise),
        ("metrics.jsonl", symbolic, &more),
        ("metrics.jsonl", hard, &more),
        ("supervise/launches.jsonl", hard, &supervise),
        ("supervise/epoch", symbolic, &supervise),
    ] {
        let (at, aside, outside) =
            (place.path("runs/t").join(name), place.path("aside"), place.path("outside"));
        fs::create_dir(&outside).unwrap();
        let copied = Command::new("cp").arg("-r").args([&at, &outside.join("x")]).status();
        assert!(copied.unwrap().success());
        fs::rename(&at, &aside).unwrap();
        link(&outside.join("x"), &at);
        let before = place.files("outside");
        place.bessemer(words).failed(FAILED, &[&format!("runs/t/{name}"), "link"]);
        assert_untouched(&place.files("outside"), &before);
        fs::remove_file(&at).unwrap();
        fs::rename(&aside, &at).unwrap();
        fs::remove_dir_all(&outside).unwrap();
    }
    // Files that are read are refused or left out, and never waited for.
    let begun = Instant::now();
    let fifo = |name: &str| {
        let path = place.path("runs/t").join(name);
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    };
    fifo("stages/tokenizer.json");
    assert_eq!(place.bessemer(&with_overrides(&["run", "recipe.toml"], &SAVES)).code, Some(0));
    fifo("recipe.toml");
    assert_eq!(place.bessemer(&["report", "runs/t"]).code, Some(0));
    place.bessemer(&["checkpoint", "gc", "runs/t"]).failed(FAILED, &["recipe.toml", "FIFO"]);
    fifo("tokenizer.json");
    place.bessemer(&["generate", "runs/t"]).failed(FAILED, &["tokenizer.json", "FIFO"]);
    fifo("shards/train/shards.json");
    place.bessemer(&more).failed(FAILED, &["tokenizer.json"]);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn an_import_that_was_killed_can_be_repeated() {
    let place = Workplace::new(GPT2);
    place.train(&["train.steps=1"]);
    place.bessemer(&["checkpoint", "export", "runs/t", "--out", "hf"]).text();
    let import = ["checkpoint", "import", "hf", "--out", "imports/x"];
    let entries = || {
        let names = fs::read_dir(place.path("imports")).unwrap().map(|e| e.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
    };
    let begun = Instant::now();
    place.bessemer(&import).text();
    let whole = begun.elapsed();
    assert_eq!(entries(), ["x"]);
    place.bessemer(&import).failed(FAILED, &["imports/x", "import into a new directory"]);
    for kill in 0..12 {
        fs::remove_dir_all(place.path("imports")).unwrap();
        let mut child = place.command(&import).spawn().unwrap();
        std::thread::sleep(whole * kill / 12);
        child.kill().unwrap();
        child.wait().unwrap();
        if !place.path("imports/x").exists() {
            place.bessemer(&import).text();
        }
        assert_eq!(entries(), ["x"], "killed at {kill} of 12");
        assert!(place.path("imports/x/recipe.toml").exists(), "killed at {kill} of 12");
        assert_eq!(place.bessemer(&["checkpoint", "verify", "imports/x"]).code, Some(0));
    }
    // One that was killed within the save.
    fs::remove_dir_all(place.path("imports/x")).unwrap();
    let left = place.path("imports/.x.partial-1/checkpoints/.step-00000000.partial-1");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("shard-00000-of-00001.safetensors"), "cut").unwrap();
    fs::write(place.path("imports/.x.partial-1/tokenizer.json"), "{").unwrap();
    place.bessemer(&import).text();
    assert_eq!(entries(), ["x"]);
}

#[test]
fn memory_of_a_run_that_was_removed_is_given_back() {
    let place = Workplace::new(GPT2);
    fs::create_dir(place.path("memory")).unwrap();
    let directory = format!("save.memory.directory={}", place.path("memory").display());
    let sets =
        ["train.steps=400", "save.memory.keep=own", "save.every_steps=0", "save.every_seconds=0", &directory];
    let copies = || fs::read_dir(place.path("memory")).unwrap().count();
    let reserved = || {
        let mut runs = fs::read_dir(place.path("memory")).unwrap().map(|run| run.unwrap().path());
        runs.any(|run| run.join("rank-00000-of-00000-1").exists())
    };
    let mut child = place.start(&sets);
    let begun = Instant::now();
    while !reserved() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(copies(), 1);
    // With all of its folders, and then a run of the same name takes its place.
    fs::remove_dir_all(place.path("runs")).unwrap();
    let done = place.bessemer(&with_overrides(&["run", "recipe.toml"], &["train.steps=1", &directory]));
    assert_eq!((done.code, copies()), (Some(0), 0), "{}", done.err);
}

//! Bad input: an error that names the thing, the right exit code, and nothing damaged.

use crate::workplace::{Finished, GPT2, LLAMA, Workplace, assert_untouched, finished, is_tensors};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Exit codes as docs/commands.md lists them.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const RECIPE: i32 = 78;

/// Runs the recipe with an override that must be refused as a mistake in the recipe, before anything is made.
#[track_caller]
fn refused(place: &Workplace, overrides: &[&str], parts: &[&str]) {
    let mut words = vec!["run", "recipe.toml"];
    words.extend(overrides.iter().flat_map(|o| ["--set", o]));
    place.bessemer(&words).failed(RECIPE, parts);
    assert!(!place.path("runs").exists(), "{overrides:?} left something");
}

/// Turns one bit in the middle of a file.
fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// The tensor file of a checkpoint.
fn tensor_file(place: &Workplace, step: u64) -> PathBuf {
    let files = place.files(&format!("runs/t/checkpoints/step-{step:08}"));
    files.into_keys().find(|p| is_tensors(p)).unwrap()
}

#[test]
fn mistakes_in_a_recipe_are_shown_where_they_stand_and_make_nothing() {
    let place = Workplace::new(GPT2);
    let original = fs::read_to_string(place.path("recipe.toml")).unwrap();
    let written = |text: &str, parts: &[&str]| {
        fs::write(place.path("recipe.toml"), text).unwrap();
        refused(&place, &[], parts);
    };
    written("[run\nname = \"t\"\n", &["recipe.toml:1:5", "malformed TOML"]);
    written("[run]\nname = \u{1}\n", &["recipe.toml:2:"]);
    let line = 1 + original.lines().position(|l| l.starts_with("batch_tokens")).unwrap();
    let unknown = original.replace("batch_tokens", "batch_tokns");
    written(&unknown, &[&format!("recipe.toml:{line}:1"), "`batch_tokns`", "did you mean `batch_tokens`?"]);
    written(&original.replace("[train]", "[trian]"), &["`trian`", "did you mean `train`?"]);
    written(&original.replace("steps = 6", "steps = \"six\""), &["train.steps", "integer", "six"]);
    fs::write(place.path("recipe.toml"), [b"[run]\nname = \"".as_slice(), b"\xff\xfe\"\n"].concat()).unwrap();
    refused(&place, &[], &["recipe.toml", "UTF-8"]);
    fs::write(place.path("recipe.toml"), &original).unwrap();

    refused(&place, &["train.batch_tokens=250"], &["train.batch_tokens = 250", "224 or 256"]);
    refused(&place, &["train.seq_len=64"], &["train.seq_len = 64", "context of 32"]);
    refused(&place, &["optim.lr=-1.0"], &["optim.lr", "-1"]);
    refused(&place, &["model.heads=3"], &["model.heads", "width 32"]);
    refused(&place, &["model.vocab_size=100"], &["model.vocab_size = 100", "tokenizer.vocab_size = 300"]);
    refused(
        &place,
        &["train={steps=6,tokens=512}"],
        &["exactly one of train.steps, train.tokens and train.epochs"],
    );
    refused(&place, &["corpus.path=\"\""], &["corpus.path is missing"]);
    refused(&place, &["corpus.path="], &["--set", "corpus.path="]);
    refused(&place, &["run.name=../t"], &["run.name"]);
    refused(&place, &["train.stepz=1"], &["--set", "did you mean `steps`?"]);
    place
        .bessemer(&["run", "absent.toml"])
        .failed(RECIPE, &["there is no recipe absent.toml", "bessemer recipes"]);
    place.bessemer(&["config", "show", "absent.toml"]).failed(RECIPE, &["absent.toml"]);
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    let place = Workplace::new(GPT2);
    place.bessemer(&["rnu"]).failed(USAGE, &["rnu"]);
    place.bessemer(&["run"]).failed(USAGE, &["<RECIPE>"]);
    place.bessemer(&["generate", "runs/t", "--temperature", "warm"]).failed(USAGE, &["warm"]);
    assert!(!place.path("runs").exists());
}

#[test]
fn a_corpus_that_is_missing_empty_or_no_text_is_named_with_the_reasons() {
    let place = Workplace::new(GPT2);
    let run = |overrides: &[&str]| -> Finished {
        let mut words = vec!["run", "recipe.toml"];
        words.extend(overrides.iter().flat_map(|o| ["--set", o]));
        place.bessemer(&words)
    };
    run(&["corpus.path=absent"]).failed(FAILED, &["absent", "No such file", "corpus.path"]);

    fs::create_dir(place.path("short")).unwrap();
    run(&["corpus.path=short"]).failed(FAILED, &["the corpus is empty", "short"]);
    fs::write(place.path("short/a.txt"), "too short").unwrap();
    run(&["corpus.path=short"]).failed(FAILED, &["the corpus is empty", "short", "too-short 1"]);

    fs::create_dir(place.path("binary")).unwrap();
    let binary: Vec<u8> = (0..4000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(place.path("binary/a.txt"), binary).unwrap();
    // UTF-8 but for one byte: damaged, not in another encoding.
    let broken = [" café au lait,".repeat(20).as_bytes(), b"\xff"].concat();
    fs::write(place.path("binary/broken.txt"), broken).unwrap();
    run(&["corpus.path=binary"]).failed(FAILED, &["the corpus is empty", "binary 1", "invalid-utf8 1"]);

    fs::write(place.path("rows.jsonl"), "{\"body\": \"no such field\"}\n").unwrap();
    run(&["corpus.source=jsonl", "corpus.path=rows.jsonl"]).failed(FAILED, &["rows.jsonl", "text", "body"]);
    assert!(!place.path("runs/t/tokenizer.json").exists());

    // The same files among good ones are dropped by reason, and the run goes on.
    for file in ["a.txt", "broken.txt"] {
        fs::copy(place.path("binary").join(file), place.path("text/alpha").join(file)).unwrap();
    }
    place.train(&[]);
    let stats = place.bessemer(&["corpus", "stats", "runs/t", "--json"]).json();
    assert_eq!(stats["dropped"]["documents"], 2, "{stats}");
    let dropped = place.bessemer(&["corpus", "inspect", "runs/t", "--reason", "invalid-utf8"]).text();
    assert!(dropped.contains("broken.txt"), "{dropped}");
}

#[test]
fn too_few_tokens_for_a_sequence_is_an_error_with_both_numbers() {
    let place = Workplace::new(GPT2);
    let long = ["model.context=65536", "train.seq_len=65536", "train.batch_tokens=65536", "model.layers=1"];
    let mut words = vec!["run", "recipe.toml"];
    words.extend(long.iter().flat_map(|o| ["--set", o]));
    place.bessemer(&words).failed(FAILED, &["one sample needs 65537", "lower train.seq_len"]);
    assert!(!place.path("runs/t/checkpoints").exists());
}

#[test]
fn a_model_that_does_not_fit_into_memory_is_refused_with_its_largest_consumers() {
    let place = Workplace::new(GPT2);
    let begun = std::time::Instant::now();
    let done = place.bessemer(&["run", "recipe.toml", "--set", "model.width=1048576"]);
    done.failed(RECIPE, &["TiB of memory", "are available", "optimizer state", "gradients", "parameters"]);
    // Trying would take hours; a busy machine may take a minute.
    assert!(begun.elapsed().as_secs() < 180, "it tried");
    assert!(!place.path("runs/t/checkpoints").exists());
}

#[test]
fn damaged_shards_are_refused_by_name() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    let before = place.files("runs/t/checkpoints");
    let shard = place.path("runs/t/shards/train/00000.shard");
    let good = fs::read(&shard).unwrap();
    let more = ["train", "recipe.toml", "--set", "train.steps=9"];

    fs::write(&shard, &good[..good.len() / 2]).unwrap();
    place.bessemer(&more).failed(FAILED, &["train/00000.shard", "truncated"]);
    fs::write(&shard, &good).unwrap();
    flip_a_bit(&shard);
    place.bessemer(&more).failed(FAILED, &["train/00000.shard", "checksum"]);
    fs::write(&shard, b"something else entirely").unwrap();
    place.bessemer(&more).failed(FAILED, &["train/00000.shard", "not a shard file"]);
    fs::remove_file(&shard).unwrap();
    place.bessemer(&more).failed(FAILED, &["train/00000.shard"]);
    assert_untouched(&place.files("runs/t/checkpoints"), &before);

    // The whole recipe makes shards anew only where they are gone, and never trains on damaged ones.
    let run = ["run", "recipe.toml", "--set", "train.steps=9"];
    fs::write(&shard, &good).unwrap();
    flip_a_bit(&shard);
    place.bessemer(&run).failed(FAILED, &["train/00000.shard", "checksum"]);
    assert_untouched(&place.files("runs/t/checkpoints"), &before);
    fs::write(&shard, &good).unwrap();
    assert_eq!(place.bessemer(&more).code, Some(0));
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_no_intact_one_means_no_silent_beginning() {
    let straight = Workplace::new(LLAMA);
    let place = Workplace::new(LLAMA);
    place.train(&["save.every_steps=2", "train.steps=6", "optim.schedule=constant"]);
    let recipe = ["save.every_steps=2", "train.steps=10", "optim.schedule=constant"];
    straight.train(&["run.name=u", recipe[0], recipe[1], recipe[2]]);

    // All of them: refused, and what is left is not touched.
    let good = place.files("runs/t/checkpoints");
    for step in [2, 4, 6] {
        flip_a_bit(&tensor_file(&place, step));
    }
    let damaged = place.files("runs/t/checkpoints");
    let mut words = vec!["run", "recipe.toml"];
    words.extend(recipe.iter().flat_map(|o| ["--set", o]));
    let steps = place.records("step").len();
    for _ in 0..2 {
        place
            .bessemer(&words)
            .failed(FAILED, &["no usable checkpoint", "step-00000006", "step-00000002", "checksum"]);
    }
    assert_untouched(&place.files("runs/t/checkpoints"), &damaged);
    assert_eq!(place.records("step").len(), steps);
    place.bessemer(&["checkpoint", "verify", "runs/t"]).failed(FAILED, &["3 of 3 checkpoints are damaged"]);
    place.bessemer(&["generate", "runs/t"]).failed(FAILED, &["no usable checkpoint"]);
    place.bessemer(&["eval", "runs/t", "--step", "4"]).failed(FAILED, &["step-00000004", "checksum"]);

    // The newest: the run goes on from the one before, says so, and ends with the same bits.
    for (path, bytes) in &good {
        fs::write(path, bytes).unwrap();
    }
    flip_a_bit(&tensor_file(&place, 6));
    let done = place.bessemer(&words);
    assert_eq!(done.code, Some(0), "{}", done.err);
    for part in ["warning: checkpoint", "step-00000006", "was skipped", "resuming after step 4"] {
        assert!(done.err.contains(part), "wanted {part:?} in:\n{}", done.err);
    }
    assert_eq!(place.records("step").len(), 10);
    assert_eq!(place.bessemer(&["checkpoint", "verify", "runs/t"]).code, Some(0));
    let wanted = straight.files("runs/u/checkpoints/step-00000010");
    let wanted: Vec<u8> = wanted.into_iter().filter(|(p, _)| is_tensors(p)).flat_map(|f| f.1).collect();
    assert!(place.tensors(10) == wanted, "other bits after falling back");
}

#[test]
fn another_tokenizer_in_the_run_directory_is_refused_everywhere_and_changes_nothing() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    place.train(&["run.name=other", "tokenizer.vocab_size=280"]);
    let right = fs::read(place.path("runs/t/tokenizer.json")).unwrap();
    fs::copy(place.path("runs/other/tokenizer.json"), place.path("runs/t/tokenizer.json")).unwrap();
    let (checkpoints, shards) = (place.files("runs/t/checkpoints"), place.files("runs/t/shards"));
    for words in [
        vec!["generate", "runs/t"],
        vec!["eval", "runs/t"],
        vec!["checkpoint", "export", "runs/t", "--out", "exported"],
        vec!["train", "recipe.toml", "--set", "train.steps=9"],
        vec!["run", "recipe.toml", "--set", "train.steps=9"],
    ] {
        place.bessemer(&words).failed(FAILED, &["tokenizer", "wanted"]);
    }
    assert!(!place.path("exported").exists());
    assert_untouched(&place.files("runs/t/checkpoints"), &checkpoints);
    assert_untouched(&place.files("runs/t/shards"), &shards);
    fs::write(place.path("runs/t/tokenizer.json"), "{\"model\": 3}").unwrap();
    place.bessemer(&["generate", "runs/t"]).failed(FAILED, &["runs/t/tokenizer.json"]);
    fs::write(place.path("runs/t/tokenizer.json"), right).unwrap();
    place.train(&["train.steps=9"]);
}

#[test]
fn a_run_directory_of_another_recipe_is_not_continued() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    let before = place.files("runs/t/checkpoints");
    for (other, named) in [
        ("model.width=64", "model"),
        ("model.vocab_size=320", "vocabulary of the model is 300 rows there and 320 rows"),
        ("model.context=64", "model"),
    ] {
        let done = place.bessemer(&["run", "recipe.toml", "--set", "train.steps=9", "--set", other]);
        done.failed(FAILED, &["belongs to another run", named, "run.name", "train.init.from"]);
    }
    assert_untouched(&place.files("runs/t/checkpoints"), &before);
}

#[test]
fn a_file_that_cannot_grow_during_a_save_leaves_the_checkpoints_before_it() {
    let place = Workplace::new(LLAMA);
    place.train(&["train.steps=4"]);
    let before = place.files("runs/t/checkpoints");
    // The limit lies between the log and a checkpoint's tensors.
    assert!(tensor_file(&place, 4).metadata().unwrap().len() > 300_000);
    let mut command = Command::new("bash");
    let script = "ulimit -f 200 && exec \"$0\" run recipe.toml --set train.steps=8";
    command.args(["-c", script, env!("CARGO_BIN_EXE_bessemer")]).current_dir(place.path(""));
    command.stdin(Stdio::null());
    finished(command).failed(FAILED, &["step-00000008", ".safetensors", "File too large", "RLIMIT_FSIZE"]);
    assert_untouched(&place.files("runs/t/checkpoints"), &before);
    let end = place.records("end").pop().unwrap();
    assert_eq!(end["reason"], "failed", "{end}");
    place.train(&["train.steps=8"]);
    assert_eq!(place.records("step").len(), 8);
}

#[test]
fn limits_of_the_process_are_named() {
    let place = Workplace::new(GPT2);
    let limited = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script, env!("CARGO_BIN_EXE_bessemer")]).current_dir(place.path(""));
        command.stdin(Stdio::null());
        finished(command)
    };
    let open_files = limited("ulimit -n 10 && exec \"$0\" run recipe.toml");
    open_files.failed(FAILED, &["Too many open files", "RLIMIT_NOFILE", "ulimit -n"]);
    // The limit of threads does not hold for root: another user without any process, who may read the program.
    let other = "setpriv --reuid=54321 --regid=54321 --clear-groups";
    let as_other = limited(&format!("chmod -R a+rwX . && {other} test -x \"$0\" -a -w runs"));
    if as_other.code != Some(0) {
        println!("skipped: this user cannot become another one");
        return;
    }
    let script = format!("ulimit -u 2 && exec {other} \"$0\" run recipe.toml --set run.threads=4");
    limited(&script).failed(FAILED, &["cannot start a thread", "RLIMIT_NPROC", "ulimit -u"]);
}

#[test]
fn a_full_disk_during_a_run_leaves_the_checkpoints_before_it() {
    let place = Workplace::new(LLAMA);
    // A small file system in a name space of its own: it goes with the last process in it.
    let script = "mount -t tmpfs -o size=3m tmpfs runs || exit 99
        \"$0\" -q run recipe.toml --set train.steps=4 || exit 98
        head -c 100000000 /dev/zero > runs/filler 2>/dev/null
        \"$0\" -q run recipe.toml --set train.steps=8; code=$?
        \"$0\" checkpoint verify runs/t
        rm runs/filler
        \"$0\" -q run recipe.toml --set train.steps=8 || exit 97
        exit $code";
    fs::create_dir(place.path("runs")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_bessemer")]).current_dir(place.path(""));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(output) = command.output() else {
        println!("skipped: no unshare here");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(99) || said.contains("unshare") {
        println!("skipped: cannot mount a small file system here: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(FAILED), "{output:?}");
    assert!(
        said.contains("runs/t/checkpoints") && said.contains("0 are free; nothing was written"),
        "{said}"
    );
    let verified = String::from_utf8_lossy(&output.stdout);
    assert!(verified.contains("intact   runs/t/checkpoints/step-00000004"), "{verified}");
    assert!(!verified.contains("damaged"), "{verified}");
}

#[test]
fn a_directory_that_is_no_run_is_named_and_stays_as_it_is() {
    let place = Workplace::new(GPT2);
    fs::create_dir(place.path("empty")).unwrap();
    for directory in ["empty", "absent"] {
        for verb in [
            &["report"][..],
            &["generate"],
            &["eval"],
            &["checkpoint", "ls"],
            &["checkpoint", "verify"],
            &["checkpoint", "inspect"],
            &["checkpoint", "gc"],
            &["corpus", "stats"],
            &["corpus", "inspect"],
            &["tokenizer", "inspect"],
        ] {
            let words = [verb, &[directory]].concat();
            let done = place.bessemer(&words);
            assert_eq!(done.code, Some(FAILED), "{words:?}: {done:?}");
            done.failed(FAILED, &[directory]);
            assert!(done.out.is_empty(), "{done:?}");
        }
        let absent = place.bessemer(&["checkpoint", "import", directory, "--out", "new"]);
        absent.failed(FAILED, &[directory]);
    }
    assert!(!place.path("absent").exists() && !place.path("new").exists());
    assert_eq!(place.files("empty").len(), 0);
}

/// A run whose figures will mislead, or that will stop at a full disk, is warned of before its first step.
#[test]
fn warnings_come_before_the_first_step() {
    let place = Workplace::new(GPT2);
    let text = fs::read_to_string(place.path("text/alpha/0.txt")).unwrap();
    for number in 0..40 {
        fs::write(place.path(&format!("text/alpha/copy-{number}.txt")), &text).unwrap();
    }
    let by_document = [
        "corpus.clean.exact_dedup=false",
        "corpus.split.by=document",
        "corpus.split.validation_fraction=0.3",
    ];
    place.train(&[&by_document[..], &["optim.lr=0", "train.epochs=5", "train.steps=0"]].concat());
    let warnings = place.records("warning");
    let said = |part: &str| warnings.iter().any(|w| w["message"].as_str().unwrap().contains(part));
    for part in ["validation repeats training: ", "optim.lr = 0: no step", "passes over", "Muennighoff"] {
        assert!(said(part), "{part}: {warnings:?}");
    }
    // Duplicates are dropped unless the recipe keeps them.
    place.train(&["run.name=clean"]);
    let log = fs::read_to_string(place.path("runs/clean/metrics.jsonl")).unwrap();
    assert!(!log.contains("repeats training") && !log.contains("optim.lr = 0"), "{log}");
}

#[test]
fn a_disk_too_small_for_the_checkpoints_is_found_before_the_first_step() {
    let place = Workplace::new(LLAMA);
    let script = "mount -t tmpfs -o size=$1 tmpfs runs || exit 99
        exec \"$0\" run recipe.toml --set save.every_steps=1 --set save.keep_last=1000 --set train.steps=$2";
    fs::create_dir(place.path("runs")).unwrap();
    let run = |size: &str, steps: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_bessemer"), size, steps]);
        command.current_dir(place.path("")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.output().map(|o| (o.status.code(), String::from_utf8_lossy(&o.stderr).into_owned()))
    };
    let Ok((code, said)) = run("3m", "200") else {
        println!("skipped: no unshare here");
        return;
    };
    if code == Some(99) || said.contains("unshare") {
        println!("skipped: cannot mount a small file system here: {said}");
        return;
    }
    // The warning comes before the first line of a step, and the disk is full later.
    let warned = said.find("keeps up to 200 checkpoints of").unwrap_or_else(|| panic!("{said}"));
    let full = ["No space left", "are free; nothing was written"];
    assert!(code == Some(FAILED) && full.iter().any(|text| said[warned..].contains(text)), "{said}");
    let (code, said) = run("700k", "2").unwrap();
    assert_eq!(code, Some(FAILED), "{said}");
    assert!(said.contains("are free; nothing was written") && !said.contains("loss"), "{said}");
}

/// Messages quote a part of the file: they have place and remedy, and are no longer than two screens.
#[test]
fn errors_are_of_bounded_length() {
    let place = Workplace::new(GPT2);
    fs::write(place.path("big.yaml"), format!("task: big\noutput_type: {}\n", "x".repeat(200_000))).unwrap();
    let done = place.bessemer(&["eval", "runs/none", "--tasks", "big.yaml"]);
    done.failed(FAILED, &["big.yaml", "characters left out", "generate_until"]);
    assert!(done.err.len() < 6000, "{}", done.err.len());
    let recipe = fs::read_to_string(place.path("recipe.toml")).unwrap();
    fs::write(place.path("key.toml"), format!("{}_{} = 1\n{recipe}", "a".repeat(100), "k".repeat(100_000)))
        .unwrap();
    let done = place.bessemer(&["run", "key.toml"]);
    done.failed(RECIPE, &["key.toml"]);
    assert!(done.err.len() < 6000, "{}", done.err.len());
}

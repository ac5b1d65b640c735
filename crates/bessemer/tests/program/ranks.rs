//! Several ranks in one process: the losses of one rank, through kills and interruptions, and mistakes that are reported.

use crate::workplace::{LLAMA, Workplace};
use std::process::Stdio;
use std::time::{Duration, Instant};

const RECIPE: [&str; 4] =
    ["train.steps=60", "save.every_steps=3", "eval.every_steps=20", "eval.ngram.enabled=false"];

fn words<'a>(verb: &'a str, ranks: &'a str, sets: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec![verb, "recipe.toml", "--ranks", ranks];
    words.extend(RECIPE.iter().chain(sets).flat_map(|s| ["--set", s]));
    words
}

/// (step, loss) of every step and evaluation.
fn losses(place: &Workplace) -> Vec<(u64, f64)> {
    let all = place.records("step").into_iter().chain(place.records("eval"));
    all.map(|r| (r["step"].as_u64().unwrap(), r["loss"].as_f64().unwrap())).collect()
}

/// Returns when the run has recorded a step.
#[track_caller]
fn trains(child: &mut std::process::Child, place: &Workplace) {
    let begun = Instant::now();
    let log = place.path("runs/t/metrics.jsonl");
    while !std::fs::read_to_string(&log).is_ok_and(|t| t.contains("\"kind\":\"step\"")) {
        assert!(child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal such as "TERM".
#[track_caller]
fn signal(name: &str, process: impl std::fmt::Display) {
    let sent = std::process::Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status();
    assert!(sent.unwrap().success());
}

#[track_caller]
fn assert_near(found: &[(u64, f64)], wanted: &[(u64, f64)]) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert_eq!(found.0, wanted.0);
        assert!((found.1 - wanted.1).abs() < 1e-4 * wanted.1, "{found:?} {wanted:?}");
    }
}

#[test]
fn two_ranks_train_as_one_also_when_they_are_killed_on_the_way() {
    let single = Workplace::new(LLAMA);
    single.train(&RECIPE);
    let wanted = losses(&single);
    let place = Workplace::new(LLAMA);
    let killed = words("run", "2", &["parallel.data=zero3"]);
    let mut command = place.command(&killed);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !place.path("runs/t/checkpoints/step-00000009/manifest.json").exists() {
        assert!(child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let done = place.bessemer(&words("train", "2", &["parallel.data=zero1"]));
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("2 ranks, threads of this process (--ranks); 1 thread each"), "{}", done.err);
    assert!(done.err.contains("2 ranks: 1 copies x 2 shards (zero1)"), "{}", done.err);
    assert!(done.err.contains("resuming after step"), "{}", done.err);
    assert_near(&losses(&place), &wanted);
    assert_eq!(place.records("sample").len(), single.records("sample").len());
    assert_eq!(place.records("training").last().unwrap()["ranks"], 2);
}

/// The bytes of every checkpoint's tensors, by its name.
fn checkpoints(place: &Workplace) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = std::fs::read_dir(place.path("runs/t/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("manifest.json").exists())
        .map(|path| {
            let mut files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|f| f.unwrap().path()).collect();
            files.retain(|f| f.extension().is_some_and(|e| e == "safetensors"));
            files.sort();
            let bytes = files.iter().flat_map(|f| std::fs::read(f).unwrap()).collect();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), bytes)
        })
        .collect();
    all.sort();
    all
}

/// K-FAC's work and copies of the state in the same bubbles have the losses and the checkpoints of K-FAC's work alone.
#[test]
fn bubbles_take_a_list_of_work() {
    let pipeline = [
        "parallel.pipeline=2",
        "optim.optimizer=kfac",
        "optim.kfac.lr=0.02",
        "parallel.schedule=gpipe",
        "train.micro_batch=8",
        "train.batch_tokens=1024",
        "train.steps=60",
        "eval.every_steps=5",
        "save.keep_last=20",
    ];
    for (ranks, more) in [("2", "parallel.tensor=1"), ("4", "parallel.tensor=2")] {
        let mut runs = Vec::new();
        for fill in ["parallel.fill=kfac", "parallel.fill=[\"kfac\", \"checkpoint\"]"] {
            let place = Workplace::new(LLAMA);
            let sets = [&pipeline[..], &[more, fill]].concat();
            let done = place.bessemer(&words("run", ranks, &sets));
            assert_eq!(done.code, Some(0), "{}", done.err);
            assert!(done.err.contains("bubbles refresh K-FAC every"), "{}", done.err);
            assert_eq!(done.err.contains("bubbles copy checkpoints"), fill.contains("checkpoint"));
            runs.push((losses(&place), checkpoints(&place)));
        }
        assert!(runs[0].1.len() > 2 && runs[0].0.len() > 60, "{} checkpoints", runs[0].1.len());
        assert_eq!(runs[0].0, runs[1].0, "{ranks} ranks: other losses");
        assert!(runs[0].1 == runs[1].1, "{ranks} ranks: other bytes in a checkpoint");
    }
}

#[test]
fn an_interrupted_job_saves_and_goes_on() {
    let place = Workplace::new(LLAMA);
    let all = words("run", "2", &["train.steps=5000", "save.every_steps=0"]);
    let mut child = place.command(&all).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    trains(&mut child, &place);
    signal("INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert_eq!(place.records("end").last().unwrap()["reason"], "interrupted");
    let steps = place.records("step").len();
    let more = format!("train.steps={}", steps + 2);
    place.bessemer(&["train", "recipe.toml", "--set", &more, "--set", "eval.ngram.enabled=false"]).text();
    assert_eq!(place.records("step").len(), steps + 2);
}

#[test]
fn what_ranks_cannot_do_is_refused_with_the_reason() {
    let place = Workplace::new(LLAMA);
    place.train(&["train.steps=2", "eval.ngram.enabled=false"]);
    let train = |ranks, sets: &[&str]| place.bessemer(&words("train", ranks, sets));
    train("3", &[]).failed(78, &["3 data-parallel ranks cannot share equally"]);
    train("3", &["parallel.tensor=2"]).failed(78, &["parallel.tensor = 2 does not divide 3 ranks"]);
    train("3", &["parallel.tensor=3"])
        .failed(78, &["parallel.tensor=3", "wanted a number of heads that it divides"]);
    train("2", &["parallel.shard=2"]).failed(78, &["parallel.shard = 2", "shards nothing"]);
    train("0", &[]).failed(2, &["--ranks"]);
    train("9999", &[]).failed(2, &["expected 1 to 1024"]);
    let launched = |words: &[&str]| {
        let mut command = place.command(words);
        command.envs([("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")]);
        crate::workplace::finished(command)
    };
    launched(&words("train", "2", &[])).failed(2, &["--ranks 2", "rank 1 of 4", "Open MPI"]);
    if cfg!(not(feature = "mpi")) {
        launched(&["train", "recipe.toml"])
            .failed(2, &["rank 1 of 4", "built without MPI", "--features mpi"]);
    }
}

#[test]
fn parity_holds_every_pair_of_choices_against_one_rank() {
    let place = Workplace::new(LLAMA);
    let parity = |more: &[&str]| place.bessemer(&[&["parity", "--pairwise", "--ranks", "4"], more].concat());
    let done = parity(&["--steps", "2", "--only", "zero3 2, tensor 2", "--json"]).json();
    let layouts = done["layouts"].as_array().unwrap();
    assert!(layouts.len() > 1);
    for layout in layouts {
        assert!(
            layout["problem"].is_null() && layout["model"].as_str().unwrap().contains(" kv heads"),
            "{layout}"
        );
    }
    parity(&["--models", "llama"]).failed(2, &["--pairwise", "--models"]);
    parity(&["--only", "zero7"]).failed(2, &["no layout of at most 4 ranks"]);
}

/// mpirun, with nothing to start yet.
#[cfg(feature = "mpi")]
fn launcher(place: &Workplace, processes: &str) -> std::process::Command {
    let mut mpirun = std::process::Command::new(std::env::var("BESSEMER_MPIRUN").unwrap_or("mpirun".into()));
    // Open MPI refuses root and more ranks than cores unless told; MPICH does not read these.
    mpirun.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    mpirun.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    mpirun.args(["-n", processes]);
    mpirun.current_dir(place.path("")).stdin(Stdio::null());
    mpirun
}

/// `bessemer VERB recipe.toml` with these sets as processes of mpirun.
#[cfg(feature = "mpi")]
fn mpirun(place: &Workplace, processes: &str, words: &[&str]) -> std::process::Command {
    let mut mpirun = launcher(place, processes);
    mpirun.arg(place.command(&[]).get_program()).args(words);
    mpirun
}

/// The words of a command without its ranks.
#[cfg(feature = "mpi")]
fn processes<'a>(verb: &'a str, sets: &[&'a str]) -> Vec<&'a str> {
    let all = words(verb, "2", sets);
    all[..2].iter().chain(&all[4..]).copied().collect()
}

/// Two processes that mpirun starts have the bits of two ranks of one process.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_train_as_threads_do() {
    let threads = Workplace::new(LLAMA);
    let sets = ["parallel.data=zero2"];
    let done = threads.bessemer(&words("run", "2", &sets));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let place = Workplace::new(LLAMA);
    let done = crate::workplace::finished(mpirun(&place, "2", &processes("run", &sets)));
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("2 ranks, processes of "), "{}", done.err);
    assert_eq!(done.err.matches("training 60 steps").count(), 1, "only the first rank tells: {}", done.err);
    assert_eq!(losses(&place), losses(&threads));
    assert!(place.tensors(60) == threads.tensors(60), "the tensors of the last checkpoint differ");
}

/// Processes have the bits of threads in layouts of every kind: losses, gradients and parameters.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_have_the_bits_of_threads_in_layouts_of_every_kind() {
    let place = Workplace::new(LLAMA);
    let mut parallel = Vec::new();
    for (processes, only) in [("4", "zero3"), ("8", "+ sequence")] {
        let words = ["parity", "--pairwise", "--steps", "2", "--only", only, "--json"];
        let done = crate::workplace::finished(mpirun(&place, processes, &words)).json();
        for layout in done["layouts"].as_array().unwrap() {
            assert_eq!(layout["ranks"].to_string(), processes);
            assert_eq!(layout["same_bits_as_threads"], true, "{layout}");
            assert_eq!(layout["problem"], serde_json::Value::Null, "{layout}");
            parallel.push((layout["parallel"].clone(), layout["ranks"].as_u64().unwrap()));
        }
    }
    let degree = |p: &serde_json::Value, axis: &str| p[axis].as_u64().unwrap();
    let all_three = |(p, ranks): &(serde_json::Value, u64)| {
        let (tensor, pipeline) = (degree(p, "tensor"), degree(p, "pipeline"));
        tensor > 1 && p["sequence"] == true && pipeline > 1 && *ranks == 8 && tensor * pipeline < 8
    };
    let sharded = |tensor: bool| {
        let kind =
            |(p, _): &&(serde_json::Value, u64)| p["data"] == "zero3" && (degree(p, "tensor") > 1) == tensor;
        parallel.iter().filter(kind).count()
    };
    assert!(parallel.iter().filter(|p| all_three(p)).count() > 2);
    assert!(sharded(false) > 0 && sharded(true) > 1);
}

/// Grids of tensor-parallel ranks, ranks that share sequences by messages of which some send more than they receive, groups of ranks that
/// exchange heads, and gradients that travel in 8 bits.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_have_the_bits_of_threads_on_grids_in_long_sequences_and_in_int8() {
    let place = Workplace::new(LLAMA);
    for (processes, only) in [
        ("4", "tensor { grid = [2, 2] }"),
        ("8", "tensor { cube = 2 }"),
        ("4", "context 4 (lightseq)"),
        ("4", "of groups of 2 by heads"),
        ("4", ", int8"),
    ] {
        let words = ["parity", "--models", "llama", "--steps", "2", "--only", only, "--json"];
        let done = crate::workplace::finished(mpirun(&place, processes, &words)).json();
        let layouts = done["layouts"].as_array().unwrap();
        assert!(!layouts.is_empty(), "{only}: {done}");
        for layout in layouts {
            assert_eq!(layout["ranks"].to_string(), processes);
            assert_eq!(layout["same_bits_as_threads"], true, "{layout}");
            assert_eq!(layout["problem"], serde_json::Value::Null, "{layout}");
        }
    }
}

/// An error found by every process is reported by the first one, with the number of the others.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_tell_a_mistake_once() {
    let place = Workplace::new(LLAMA);
    place.train(&["train.steps=2", "eval.ngram.enabled=false"]);
    let wrong = |words: &[&str], says: &str| {
        let done = crate::workplace::finished(mpirun(&place, "3", words));
        assert_ne!(done.code, Some(0), "{says}");
        assert_eq!(done.err.matches(says).count(), 1, "wanted {says:?} once in {}", done.err);
        done.err
    };
    // The layout, the recipe, the command line.
    let said =
        wrong(&processes("train", &["parallel.tensor=2"]), "parallel.tensor = 2 does not divide 3 ranks");
    assert!(said.contains("(2 other processes report the same)"), "{said}");
    let said = wrong(&processes("train", &["model.widht=32"]), "unknown key `widht`");
    assert!(said.contains("(2 other processes report the same)"), "{said}");
    wrong(&["train", "recipe.toml", "--rnaks", "2"], "unexpected argument '--rnaks'");
}

/// The first process measures the machine and plans, the others obey. The machine is measured with threads, so times of processes are
/// not those of the plan; bytes of traffic are.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_obey_the_plan_of_the_first_one() {
    let alone = Workplace::new(LLAMA);
    let done = alone.bessemer(&words("run", "1", &["train.steps=25"]));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let place = Workplace::new(LLAMA);
    let sets = ["parallel.layout=auto", "train.steps=25"];
    let done = crate::workplace::finished(mpirun(&place, "2", &processes("run", &sets)));
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(done.err.matches("plan for 2 x this machine (").count(), 1, "{}", done.err);
    assert!(done.err.contains("2 ranks, processes of "), "{}", done.err);
    let (found, wanted) = (losses(&place), losses(&alone));
    assert_eq!(found.len(), wanted.len());
    for ((step, found), (_, wanted)) in found.iter().zip(&wanted) {
        assert!((found / wanted - 1.0).abs() < 1e-4, "step {step}: {found} {wanted}");
    }
    let (plans, measured) = (place.records("plan"), place.records("measured"));
    assert_eq!((plans.len(), measured.len()), (1, 1));
    let sorted = |items: &serde_json::Value| {
        let mut items = items.as_array().unwrap().clone();
        // Checkpoints are written beside steps, and are no part of them.
        items.retain(|item| item["name"] != "checkpoint");
        items.sort_by_key(|item| item["name"].to_string());
        items
    };
    assert_eq!(sorted(&plans[0]["predicted"]["traffic"]), sorted(&measured[0]["costs"]["traffic"]));
}

/// Launchers pass SIGUSR1 on to all processes and wait for them.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_save_and_leave_on_a_signal_to_the_launcher() {
    let place = Workplace::new(LLAMA);
    let sets = ["train.steps=100000", "save.every_steps=0"];
    let mut command = mpirun(&place, "2", &processes("run", &sets));
    let said = place.path("stderr.txt");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&said).unwrap());
    let mut child = command.spawn().unwrap();
    trains(&mut child, &place);
    signal("USR1", child.id());
    let code = child.wait().unwrap().code();
    let said = std::fs::read_to_string(said).unwrap();
    assert_eq!(code, Some(75), "{said}");
    assert_eq!(said.matches("run the same command to continue").count(), 1, "{said}");
    assert_eq!(place.records("end").last().unwrap()["reason"], "interrupted");
    let steps = place.records("step").len();
    let more = format!("train.steps={}", steps + 2);
    place.bessemer(&["train", "recipe.toml", "--set", &more, "--set", "eval.ngram.enabled=false"]).text();
    assert_eq!(place.records("step").len(), steps + 2, "a step was lost");
}

/// The process of a rank that mpirun started in this place.
#[cfg(feature = "mpi")]
fn process_of(place: &Workplace, rank: usize) -> Option<String> {
    let own = std::fs::canonicalize(place.path("")).unwrap();
    let variables = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].map(|v| format!("{v}={rank}"));
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
        // Processes end while they are looked at.
        let here = std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&own));
        let said = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let ours = said.split(|b| *b == 0).any(|v| variables.iter().any(|w| w.as_bytes() == v));
        (here && ours).then(|| process.file_name().to_string_lossy().into_owned())
    })
}

/// The exit code of a job that must end, and what it said.
#[cfg(feature = "mpi")]
fn ended(mut child: std::process::Child, said: &std::path::Path) -> (Option<i32>, String) {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (status.code(), std::fs::read_to_string(said).unwrap());
        }
        if begun.elapsed() > Duration::from_secs(180) {
            child.kill().unwrap();
            panic!("the job hangs: {}", std::fs::read_to_string(said).unwrap());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process that is terminated by itself takes the others with it, all after the same step and with a save.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_save_and_leave_when_one_of_them_is_terminated() {
    for rank in 0..3 {
        let place = Workplace::new(LLAMA);
        let sets = ["train.steps=100000", "save.every_steps=0", "train.batch_tokens=384"];
        let mut command = mpirun(&place, "3", &processes("run", &sets));
        let said = place.path("stderr.txt");
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&said).unwrap());
        let mut child = command.spawn().unwrap();
        trains(&mut child, &place);
        signal("TERM", process_of(&place, rank).expect("the rank runs"));
        let (code, said) = ended(child, &said);
        assert_eq!(code, Some(75), "rank {rank}: {said}");
        assert_eq!(said.matches("run the same command to continue").count(), 1, "rank {rank}: {said}");
        assert_eq!(place.records("end").last().unwrap()["reason"], "interrupted");
        let steps = place.records("step").len();
        let saved = place.path(&format!("runs/t/checkpoints/step-{steps:08}/manifest.json"));
        assert!(saved.is_file(), "rank {rank}: no checkpoint of step {steps}: {said}");
    }
}

/// How long a silent process is borne is a choice, and by default shorter than a person's patience.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_give_up_a_silent_one_after_the_time_that_was_asked_for() {
    let place = Workplace::new(LLAMA);
    let mut words = processes("run", &["train.steps=100000", "save.every_steps=0"]);
    words.extend(["--rank-timeout", "2"]);
    let mut command = mpirun(&place, "2", &words);
    let said = place.path("stderr.txt");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&said).unwrap());
    let mut child = command.spawn().unwrap();
    trains(&mut child, &place);
    signal("STOP", process_of(&place, 1).expect("rank 1 runs"));
    let (code, said) = ended(child, &said);
    assert_ne!(code, Some(0), "{said}");
    let silence = said.split_once("no message from it for ").and_then(|(_, rest)| rest.split_once(' '));
    let silence: f64 = silence.expect(&said).0.parse().unwrap();
    assert!((2.0..9.0).contains(&silence), "{said}");
}

/// A process that hangs ends the job after the time-out, and one of the others reports what all did last.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_tell_who_waits_for_one_that_is_stopped() {
    let place = Workplace::new(LLAMA);
    let sets = ["train.steps=100000", "save.every_steps=0"];
    let mut words = processes("run", &sets);
    words.extend(["--collective-timeout", "5"]);
    let mut command = mpirun(&place, "4", &words);
    let said = place.path("stderr.txt");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&said).unwrap());
    let mut child = command.spawn().unwrap();
    trains(&mut child, &place);
    let process = process_of(&place, 3).expect("rank 3 runs");
    signal("STOP", process);
    let (code, said) = ended(child, &said);
    assert_ne!(code, Some(0), "{said}");
    assert_eq!(said.matches("Last collectives of each rank:").count(), 1, "{said}");
    for rank in 0..3 {
        assert!(said.contains(&format!("\n  rank {rank}: ")), "{said}");
    }
    assert!(said.contains("without rank 3") && said.contains("\n  rank 3: does not answer"), "{said}");
}

/// Under a supervisor a job that loses a process goes on by itself, with the bits of one that lost none.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_are_launched_again_when_one_of_them_is_killed_or_stopped() {
    let threads = Workplace::new(LLAMA);
    let sets = ["parallel.data=zero2"];
    let done = threads.bessemer(&words("run", "2", &sets));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let place = Workplace::new(LLAMA);
    let mut words = processes("run", &sets);
    words.extend(["--rank-timeout", "2"]);
    let launcher = mpirun(&place, "2", &words);
    let mut command = place.command(&["supervise", "--restart-delay", "0.05", "--"]);
    command.arg(launcher.get_program()).args(launcher.get_args());
    command.envs(launcher.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = place.path("stderr.txt");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&said).unwrap());
    let mut child = command.spawn().unwrap();
    let mut before = None;
    for (name, target) in [("KILL", 12), ("STOP", 30)] {
        let begun = Instant::now();
        let process = loop {
            let process = process_of(&place, 1).filter(|process| before.as_ref() != Some(process));
            if let (Some(process), true) = (process, crate::kill_resume::logged_step(&place) >= target) {
                break process;
            }
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none() && begun.elapsed() < Duration::from_secs(120), "{ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        signal(name, &process);
        before = Some(process);
    }
    let (code, said) = ended(child, &said);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("; saved: step ").count(), 2, "{said}");
    assert!(place.tensors(60) == threads.tensors(60), "the tensors of the last checkpoint differ");
    assert_eq!((process_of(&place, 0), process_of(&place, 1)), (None, None), "left behind");
}

/// A job whose ranks are hosts with memory of their own, and copies in the memory of peers after every step.
struct Hosts {
    place: Workplace,
    ranks: usize,
    /// Processes of mpirun instead of threads of one process.
    processes: bool,
}

/// Copies in memory alone: there is no checkpoint to fall back to.
const IN_MEMORY: [&str; 5] = [
    "save.every_steps=0",
    "save.every_seconds=0",
    "save.memory.keep=peers",
    "save.memory.ranks_per_domain=1",
    "train.batch_tokens=256",
];

impl Hosts {
    fn new(ranks: usize, processes: bool) -> Hosts {
        let place = Workplace::new(LLAMA);
        std::fs::create_dir(place.path("runs")).unwrap();
        for rank in 0..ranks {
            let host = place.path(&format!("host-{rank}"));
            std::fs::create_dir_all(host.join("memory")).unwrap();
            for name in ["recipe.toml", "text", "runs"] {
                std::os::unix::fs::symlink(place.path(name), host.join(name)).unwrap();
            }
        }
        Hosts { place, ranks, processes }
    }

    fn memory(&self, rank: usize) -> std::path::PathBuf {
        // Threads have one host.
        self.place.path(&format!("host-{}/memory", if self.processes { rank } else { 0 }))
    }

    fn start(&self, sets: &[&str]) -> std::process::Child {
        // Of the process, so that processes with the same recipe have directories of their own.
        let directory = "save.memory.directory=/proc/self/cwd/memory";
        let sets = [&IN_MEMORY[..], &[directory], sets].concat();
        let ranks = self.ranks.to_string();
        let mut command = self.place.command(&words("run", &ranks, &sets));
        command.current_dir(self.place.path("host-0"));
        #[cfg(feature = "mpi")]
        if self.processes {
            let program = command;
            command = launcher(&self.place, &ranks);
            let go = "cd host-${OMPI_COMM_WORLD_RANK:-$PMI_RANK} && exec \"$0\" \"$@\"";
            command.args(["sh", "-c", go]).arg(program.get_program()).args(processes("run", &sets));
        }
        let said = std::fs::File::create(self.place.path("stderr.txt")).unwrap();
        command.stdout(Stdio::null()).stderr(said).spawn().unwrap()
    }

    /// Kills a rank's process, or the process of all, and waits for the end of the job.
    fn kill(&self, mut child: std::process::Child, rank: usize) {
        #[cfg(feature = "mpi")]
        if self.processes {
            signal("KILL", process_of(&self.place, rank).expect("the rank runs"));
        }
        if !self.processes {
            child.kill().unwrap_or_else(|e| panic!("rank {rank}: {e}"));
        }
        assert_ne!(child.wait().unwrap().code(), Some(0), "it ended before the kill");
    }

    /// Runs to the end of the recipe.
    fn finish(&self, sets: &[&str]) {
        let status = self.start(sets).wait().unwrap();
        let said = std::fs::read_to_string(self.place.path("stderr.txt")).unwrap();
        assert_eq!(status.code(), Some(0), "{said}");
        for rank in 0..self.ranks {
            assert_eq!(std::fs::read_dir(self.memory(rank)).unwrap().count(), 0, "the run has ended");
        }
    }

    /// Steps and places from which the job went on so far. Its last line may be half written.
    fn resumes(&self) -> Vec<(u64, String)> {
        let log = std::fs::read_to_string(self.place.path("runs/t/metrics.jsonl")).unwrap_or_default();
        let records = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let resumed = records.filter(|r| r["kind"] == "resume");
        resumed.map(|r| (r["step"].as_u64().unwrap(), r["path"].as_str().unwrap().to_owned())).collect()
    }

    /// Kills the job at random moments and starts it again, `kills` times; every third time a host's memory is lost with it. Returns
    /// the steps that each kill has cost.
    fn soak(&self, kills: u64, sets: &[&str], random: &mut bessemer_units::splitmix::SplitMix64) -> Vec<u64> {
        let mut lost = Vec::new();
        for kill in 0..kills {
            let (before, sessions) = (crate::kill_resume::logged_step(&self.place), self.resumes().len());
            // The first launch makes copies before it is killed.
            let target = before + random.below(3) + if kill == 0 { 4 } else { 0 };
            let mut child = self.start(sets);
            crate::kill_resume::wait(&self.place, &mut child, || {
                let resumed = kill == 0 || self.resumes().len() > sessions;
                resumed && crate::kill_resume::logged_step(&self.place) > target
            });
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
            if kill > 0 {
                let (step, path) = self.resumes().pop().unwrap();
                assert!(path.contains("memory"), "kill {kill}: step {step}, {path}");
                lost.push(before - step.min(before));
            }
            let victim = random.index(self.ranks);
            self.kill(child, victim);
            if self.processes && kill % 3 == 2 {
                std::fs::remove_dir_all(self.memory(victim)).unwrap();
                std::fs::create_dir(self.memory(victim)).unwrap();
            }
        }
        self.finish(sets);
        lost
    }
}

/// Kills of a job with copies at peers, from `BESSEMER_KILLS` or 100.
fn soaked(processes: bool) {
    let kills = std::env::var("BESSEMER_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    // More than it takes: the last kill must come before the end.
    let total = 150 * kills;
    let steps = format!("train.steps={total}");
    let sets = ["parallel.data=zero2", "eval.every_steps=0", &steps];
    let straight = Workplace::new(LLAMA);
    let done = straight.bessemer(&words("run", "4", &[&sets[..], &["save.every_steps=0"]].concat()));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let hosts = Hosts::new(4, processes);
    let mut lost = hosts.soak(kills, &sets, &mut bessemer_units::splitmix::SplitMix64(2028));
    assert!(hosts.place.tensors(total) == straight.tensors(total), "other bits");
    lost.sort_unstable();
    let mean = lost.iter().sum::<u64>() as f64 / lost.len() as f64;
    println!("{kills} kills: {mean:.2} steps lost in the mean, {:?} at most", lost.last());
}

#[test]
#[ignore = "a soak of minutes"]
fn threads_with_copies_at_peers_survive_any_number_of_kills() {
    soaked(false);
}

#[cfg(feature = "mpi")]
#[test]
#[ignore = "a soak of minutes"]
fn processes_of_mpirun_survive_any_number_of_kills_and_lost_hosts() {
    soaked(true);
}

/// A process dies with the memory of its host: the job that is started again goes on from its peer's.
#[cfg(feature = "mpi")]
#[test]
fn processes_of_mpirun_go_on_from_a_peers_memory_when_a_host_is_lost() {
    let threads = Workplace::new(LLAMA);
    let sets = ["parallel.data=zero2"];
    let done = threads.bessemer(&words("run", "4", &sets));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let hosts = Hosts::new(4, true);
    let mut child = hosts.start(&sets);
    let target = || crate::kill_resume::logged_step(&hosts.place) >= 20;
    crate::kill_resume::wait(&hosts.place, &mut child, target);
    hosts.kill(child, 2);
    std::fs::remove_dir_all(hosts.memory(2)).unwrap();
    std::fs::create_dir(hosts.memory(2)).unwrap();
    hosts.finish(&sets);
    let resumes = hosts.resumes();
    let [(step, path)] = &resumes[..] else { panic!("{resumes:?}") };
    assert!(*step > 0 && path.starts_with("memory, 1 of 4 ranks from a peer's"), "step {step}: {path}");
    assert!(hosts.place.tensors(60) == threads.tensors(60), "the tensors of the last checkpoint differ");
}

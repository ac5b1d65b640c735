//! Runs under `bessemer supervise`: killed, stopped, wrong, crashing, asked to stop; and the scripts of deploy/ that use it.

use crate::kill_resume::{logged_step, signal};
use crate::workplace::{LLAMA, Workplace, finished};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_bessemer");
const RECIPE: [&str; 4] =
    ["train.steps=60", "save.every_steps=3", "eval.every_steps=0", "eval.ngram.enabled=false"];

/// `bessemer supervise OPTIONS -- bessemer run recipe.toml`, with these and other overrides.
fn supervise(place: &Workplace, options: &[&str], sets: &[&str]) -> Command {
    let mut words = vec!["supervise", "--restart-delay", "0.05"];
    words.extend(options);
    words.extend(["--", PROGRAM, "run", "recipe.toml"]);
    words.extend(RECIPE.iter().chain(sets).flat_map(|set| ["--set", set]));
    place.command(&words)
}

/// Starts a command whose words go to `stderr.txt`.
fn start(place: &Workplace, command: &mut Command) -> Child {
    let said = fs::File::create(place.path("stderr.txt")).unwrap();
    command.stdout(Stdio::null()).stderr(said).spawn().unwrap()
}

fn said(place: &Workplace) -> String {
    fs::read_to_string(place.path("stderr.txt")).unwrap_or_default()
}

/// The newest heartbeat of the first process.
fn heartbeat(place: &Workplace) -> Option<Value> {
    let text = fs::read_to_string(place.path("runs/t/supervise/process-00000.json")).ok()?;
    serde_json::from_str(text.lines().nth(1)?).ok()
}

/// Number of the process that trains in this launch.
fn worker(place: &Workplace, epoch: u64) -> Option<u32> {
    let beat = heartbeat(place).filter(|beat| beat["epoch"] == epoch)?;
    beat["identity"].as_str()?.lines().nth(2)?.parse().ok()
}

fn launches(place: &Workplace) -> Vec<Value> {
    let text = fs::read_to_string(place.path("runs/t/supervise/launches.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits for something that a running command must bring about.
#[track_caller]
fn wait<T>(place: &Workplace, child: &mut Child, mut until: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = until() {
            return found;
        }
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "ended too early: {ended:?}\n{}", said(place));
        if begun.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("waited for too long\n{}", said(place));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn kill(name: &str, process: u32) {
    assert!(Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status().unwrap().success());
}

fn lives(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

/// Processes whose command line has this word.
fn processes_with(word: &str) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|b| *b == 0).any(|w| w == word.as_bytes())).count()
}

/// Killed, stopped and killed again, the run ends by itself with the bits of one that nothing disturbed.
#[test]
fn a_supervised_run_survives_kills_and_a_stop_with_the_same_bits() {
    let straight = Workplace::new(LLAMA);
    straight.train(&RECIPE);
    let place = Workplace::new(LLAMA);
    let mut command = supervise(&place, &["--hang-after", "1.5", "--kill-grace", "0.05"], &[]);
    let mut child = start(&place, &mut command);
    let mut epoch = 0;
    for (name, target) in [("KILL", 10), ("STOP", 25), ("KILL", 40)] {
        // A launch that was taken for one that hangs, on a machine that is busy, is one more.
        let process = wait(&place, &mut child, || {
            let newest = heartbeat(&place)?["epoch"].as_u64()?;
            (newest > epoch && logged_step(&place) >= target).then_some(newest)
        });
        epoch = process;
        kill(name, worker(&place, epoch).unwrap());
    }
    let done = child.wait().unwrap();
    assert_eq!(done.code(), Some(0), "{}", said(&place));
    assert!(place.tensors(60) == straight.tensors(60), "the tensors of the last checkpoint differ");
    let launches = launches(&place);
    println!("{}", said(&place));
    assert!(launches.len() >= 4, "{launches:#?}");
    let killed = launches.iter().filter(|launch| launch["signal"] == 9).count();
    assert!(killed >= 3, "{launches:#?}");
    let stopped = launches.iter().any(|launch| launch["why"].to_string().contains("it is stopped"));
    assert!(stopped, "{launches:#?}");
    assert_eq!(launches.last().unwrap()["code"], 0);
}

#[test]
fn what_no_restart_would_change_is_not_restarted() {
    let place = Workplace::new(LLAMA);
    // Found before anything is launched, and by the launcher.
    finished(supervise(&place, &[], &["model.widht=3"])).failed(78, &["unknown key `widht`"]);
    assert!(!place.path("runs").exists());
    for (script, code, says) in [
        ("exit 78", 78, "exit code 78 (the recipe is wrong"),
        ("exit 2", 2, "exit code 2 (the command line is wrong)"),
        ("exec no-such-program", 1, "no such program"),
    ] {
        let done = place.bessemer(&["supervise", "--run-dir", "runs/t", "--", "sh", "-c", script]);
        done.failed(code, &[says, "a restart would fail in the same way"]);
    }
    let done = place.bessemer(&["supervise", "--run-dir", "runs/t", "--", "no-such-program"]);
    done.failed(1, &["cannot run no-such-program", "no such program"]);
    assert_eq!(launches(&place).len(), 4);
    let done = place.bessemer(&["supervise", "--", "true"]);
    done.failed(2, &["--run-dir DIR"]);
}

/// Restarts without progress end with a report, and with them every process that the launches left behind.
#[test]
fn a_crash_loop_ends_with_a_report_and_leaves_nothing_behind() {
    let place = Workplace::new(LLAMA);
    let word = format!("600.{}", std::process::id());
    let script = format!("sleep {word} & setsid sleep {word} & (setsid sleep {word} &) ; kill -9 $$");
    let words = [
        "supervise",
        "--json",
        "--run-dir",
        "runs/t",
        "--restarts",
        "1",
        "--restart-delay",
        "0.05",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let done = place.bessemer(&words);
    done.failed(
        1,
        &[
            "gave up after 1 restarts in a row",
            "launch 1 was ended by SIGKILL",
            "launch 2 was ended by SIGKILL",
        ],
    );
    assert_eq!(processes_with(&word), 0, "left behind");
    let list: Value = serde_json::from_slice(&done.out).unwrap();
    assert_eq!(list["launches"].as_array().unwrap().len(), 2);
}

/// SIGTERM to the supervisor saves and stops; its death by SIGKILL stops the run as well; the next one goes on.
#[test]
fn a_supervisor_that_is_stopped_or_killed_takes_the_run_with_it() {
    let place = Workplace::new(LLAMA);
    let sets = ["train.steps=100000", "save.every_steps=0"];
    for (name, epoch) in [("TERM", 1), ("KILL", 2)] {
        let mut child = start(&place, &mut supervise(&place, &[], &sets));
        wait(&place, &mut child, || {
            heartbeat(&place).filter(|beat| beat["epoch"] == epoch && beat["ranks"][0]["phase"] == "training")
        });
        let process = worker(&place, epoch).unwrap();
        if name == "TERM" {
            let second = finished(supervise(&place, &[], &sets));
            second.failed(1, &["another supervisor is using runs/t"]);
        }
        signal(&child, name);
        let code = child.wait().unwrap().code();
        assert_eq!(code, (name == "TERM").then_some(75), "{}", said(&place));
        let begun = Instant::now();
        while lives(process) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the run outlives its supervisor");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(place.records("end").last().unwrap()["reason"], "interrupted", "{}", said(&place));
        assert!(!place.tensors(logged_step(&place)).is_empty());
    }
    let steps = format!("train.steps={}", logged_step(&place) + 2);
    assert_eq!(finished(supervise(&place, &[], &[&steps])).code, Some(0));
}

/// A process of an older launch neither begins nor goes on.
#[test]
fn an_older_launch_gives_way() {
    let place = Workplace::new(LLAMA);
    let words = ["run", "recipe.toml", "--set", "train.steps=100000", "--set", "save.every_steps=0"];
    let mut command = place.command(&words);
    let mut child = start(&place, command.env("BESSEMER_LAUNCH_EPOCH", "4"));
    wait(&place, &mut child, || heartbeat(&place).filter(|beat| beat["ranks"][0]["phase"] == "training"));
    fs::write(place.path("runs/t/supervise/epoch"), "5\n").unwrap();
    let begun = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(said(&place).contains("launch 5 has taken over"), "{}", said(&place));
    let mut command = place.command(&words);
    command.env("BESSEMER_LAUNCH_EPOCH", "4");
    finished(command).failed(1, &["launch 4 of runs/t is not the newest"]);
    let mut command = place.command(&words);
    command.env("BESSEMER_LAUNCH_EPOCH", "four");
    finished(command).failed(2, &["wanted a number from 1"]);
}

#[test]
fn systemd_and_probes_hear_of_the_run() {
    let place = Workplace::new(LLAMA);
    let socket = place.path("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let script = "test -z \"$NOTIFY_SOCKET\" && until [ -e go ]; do sleep 0.02; done";
    let words =
        ["supervise", "--run-dir", "runs/t", "--health-address", "127.0.0.1:0", "--", "sh", "-c", script];
    let mut command = place.command(&words);
    let mut child = start(&place, command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "200000"));
    let page = wait(&place, &mut child, || {
        let said = said(&place);
        let (address, _) = said.split_once("http://")?.1.split_once("/healthz")?;
        let mut client = TcpStream::connect(address).ok()?;
        client.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let mut page = String::new();
        client.read_to_string(&mut page).ok()?;
        page.contains(" 200 OK").then_some(page)
    });
    assert!(page.contains("launch 1"), "{page}");
    let hear = || {
        let mut bytes = [0; 512];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let mut heard = Vec::new();
    while !heard.contains(&"WATCHDOG=1".to_owned()) {
        heard.push(hear());
    }
    assert!(
        heard.contains(&"READY=1".into()) && heard.iter().any(|h| h.starts_with("STATUS=launch 1")),
        "{heard:?}"
    );
    fs::write(place.path("go"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    while heard.last().unwrap() != "STOPPING=1" {
        heard.push(hear());
    }
}

/// A lost host is replaced by a spare, then the job shrinks to what the recipe allows. `sh` stands for the launcher.
#[test]
fn lost_hosts_are_replaced_and_then_done_without() {
    let place = Workplace::new(LLAMA);
    fs::write(place.path("up"), "a b c d").unwrap();
    // Each launch but the last loses a host: 76 would name it by a heartbeat, here the probe finds it.
    let script = "echo {ranks} {host-slots} >> calls; case $(wc -l < calls) in \
                  1) echo a c d > up; exit 1;; 2) echo a > up; exit 1;; *) exit 0;; esac";
    let words = [
        "supervise",
        "--hosts",
        "a,b,c",
        "--spares",
        "d",
        "--ranks-per-host",
        "2",
        "--min-ranks",
        "1",
        "--restart-delay",
        "0.05",
        "--probe",
        "grep -qw {host} up",
        "--run-dir",
        "runs/t",
        "--",
        "sh",
        "-c",
        script,
    ];
    let done = place.bessemer(&words);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let calls = fs::read_to_string(place.path("calls")).unwrap();
    assert_eq!(calls, "6 a:2,b:2,c:2\n6 a:2,d:2,c:2\n2 a:2\n", "{}", done.err);
    assert!(done.err.contains("host b is lost, spare d takes its place"), "{}", done.err);
    assert!(done.err.contains("host c is lost, no spare is left"), "{}", done.err);
    // The recipe's layout decides how many ranks are left: 2 of 3 with two tensor-parallel ranks.
    fs::write(place.path("up"), "a c").unwrap();
    let script = "echo {ranks} >> ranks; [ $(wc -l < ranks) = 2 ] # \"$@\"";
    let mut words = vec![
        "supervise",
        "--hosts",
        "a,b,c",
        "--min-ranks",
        "2",
        "--restart-delay",
        "0.05",
        "--probe",
        "grep -qw {host} up",
        "--",
    ];
    words.extend(["sh", "-c", script, PROGRAM, "run", "recipe.toml", "--set", "parallel.tensor=2"]);
    let done = place.bessemer(&words);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(fs::read_to_string(place.path("ranks")).unwrap(), "2\n2\n");
}

fn deployed(name: &str) -> String {
    fs::read_to_string(format!("{}/../../deploy/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The Slurm script, with stand-ins for srun and scontrol: asked to stop before its time is over it saves and is queued again.
#[test]
fn the_slurm_script_is_queued_again_after_its_time() {
    let place = Workplace::new(LLAMA);
    fs::create_dir(place.path("slurm")).unwrap();
    for (name, script) in [
        ("srun", "while [ \"${1#-}\" != \"$1\" ]; do shift; done; exec \"$@\""),
        ("scontrol", "echo \"$*\" >> calls"),
    ] {
        let path = place.path(&format!("slurm/{name}"));
        fs::write(&path, format!("#!/usr/bin/env bash\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(place.path("job.sh"), deployed("bessemer.sbatch")).unwrap();
    let path = format!("{}:{}", place.path("slurm").display(), std::env::var("PATH").unwrap());
    let job = |sets: &[&str]| {
        let mut command = Command::new("bash");
        command.args(["job.sh", "recipe.toml"]).args(sets.iter().flat_map(|set| ["--set", set]));
        command
            .current_dir(place.path(""))
            .env("PATH", &path)
            .env("BESSEMER", PROGRAM)
            .env("SLURM_JOB_ID", "42");
        command
    };
    let sets = ["train.steps=100000", "save.every_steps=0"];
    let mut child = start(&place, &mut job(&sets));
    wait(&place, &mut child, || (logged_step(&place) >= 3).then_some(()));
    signal(&child, "USR1");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", said(&place));
    assert_eq!(fs::read_to_string(place.path("calls")).unwrap(), "requeue 42\n", "{}", said(&place));
    assert!(!place.tensors(logged_step(&place)).is_empty());
    // The end, and a mistake, are handed on.
    let steps = format!("train.steps={}", logged_step(&place) + 1);
    assert_eq!(finished(job(&[&steps, "eval.ngram.enabled=false"])).code, Some(0));
    assert_eq!(finished(job(&["train.stesp=1"])).code, Some(78));
    assert_eq!(fs::read_to_string(place.path("calls")).unwrap(), "requeue 42\n");
}

/// The keys of the Kubernetes Job and of the systemd unit that make a run go on.
#[test]
fn the_kubernetes_job_and_the_systemd_unit_say_what_a_run_needs() {
    let yaml = deployed("kubernetes-job.yaml");
    let keys: Vec<&str> = yaml
        .lines()
        .filter(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            let line = line.trim_start().trim_start_matches("- ");
            let (key, _) = line.split_once(':').unwrap_or_else(|| panic!("no key: {line}"));
            assert!(
                line.starts_with("- ") || key.chars().all(|c| c.is_ascii_alphanumeric() || "{ ".contains(c)),
                "{line}"
            );
            key
        })
        .collect();
    for line in yaml.lines() {
        let indent = line.len() - line.trim_start().len();
        assert!(indent % 2 == 0 && !line.contains('\t'), "{line:?}");
    }
    for key in [
        "podFailurePolicy",
        "backoffLimit",
        "terminationGracePeriodSeconds",
        "livenessProbe",
        "httpGet",
        "restartPolicy",
    ] {
        assert_eq!(keys.iter().filter(|k| **k == key).count(), 1, "{key}");
    }
    for text in
        ["values: [2, 78]", "values: [75, 76, 77]", "path: /healthz", "restartPolicy: Never", "\"supervise\""]
    {
        assert!(yaml.contains(text), "{text}");
    }
    let grace =
        yaml.lines().find_map(|line| line.trim().strip_prefix("terminationGracePeriodSeconds: ")).unwrap();
    let stop = yaml.split("\"--stop-grace\", \"").nth(1).unwrap().split('"').next().unwrap();
    assert!(stop.parse::<u64>().unwrap() < grace.parse().unwrap(), "the run must save before it is killed");
    let unit = deployed("bessemer.service");
    for line in ["Type=notify", "Restart=on-failure", "RestartPreventExitStatus=2 78", "KillMode=mixed"] {
        assert!(unit.lines().any(|l| l == line), "{line}");
    }
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        assert!(line.starts_with('[') && line.ends_with(']') || line.contains('='), "{line}");
    }
}

/// A run that dies again and again goes back by one checkpoint if it is asked to, once, and ends with the same bits.
#[test]
fn a_crash_loop_goes_back_by_one_checkpoint() {
    let place = Workplace::new(LLAMA);
    place.train(&RECIPE);
    let wanted = place.tensors(60);
    let words =
        ["supervise", "--run-dir", "runs/t", "--restarts", "1", "--restart-delay", "0.05", "--roll-back"];
    let done = place.bessemer(&[&words[..], &["--", "sh", "-c", "kill -9 $$"]].concat());
    done.failed(1, &["after step 60: rolled back to step 57", "gave up after 1 restarts in a row"]);
    let saved: Vec<_> = launches(&place).iter().map(|launch| launch["saved"].as_u64()).collect();
    assert_eq!(saved, [Some(60), Some(60), Some(57)]);
    assert!(place.path("runs/t/checkpoints/step-00000060.given-up-2").is_dir());
    place.train(&RECIPE);
    assert!(place.tensors(60) == wanted, "the tensors of the last checkpoint differ");
}

/// With `--skip-data` such a run goes on behind the data on which it died: with the bits of one that has always left them out.
#[test]
fn a_crash_loop_goes_back_and_behind_the_data() {
    let place = Workplace::new(LLAMA);
    place.train(&RECIPE);
    let words = ["supervise", "--run-dir", "runs/t", "--restarts", "1", "--restart-delay", "0.05"];
    let dying = ["--", "sh", "-c", "kill -9 $$"];
    place.bessemer(&[&words[..], &["--skip-data", "2"], &dying].concat()).failed(2, &["--roll-back"]);
    let done = place.bessemer(&[&words[..], &["--roll-back", "--skip-data", "2"], &dying].concat());
    done.failed(1, &["rolled back to step 57, skipping samples ", "gave up after 1 restarts in a row"]);
    let text = fs::read_to_string(place.path("runs/t/skipped-samples.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let [first, end] = [0, 1].map(|at| file["spans"][0][at].as_u64().unwrap());
    // Three steps since step 57, and two more.
    assert_eq!((first % 57, end - first), (0, first / 57 * 5), "{text}");
    place.train(&RECIPE);
    let always = Workplace::new(LLAMA);
    let skip = format!("train.skip_samples=[[{first},{end}]]");
    always.train(&[&RECIPE[..], &[&skip]].concat());
    let losses = |place: &Workplace| -> Vec<Value> {
        let steps = place.records("step");
        steps
            .iter()
            .filter(|step| step["step"].as_u64() > Some(57))
            .map(|step| step["loss"].clone())
            .collect()
    };
    assert_eq!(losses(&always).len(), 3);
    assert_eq!(losses(&place).split_off(losses(&place).len() - 3), losses(&always));
    assert!(place.tensors(60) == always.tensors(60), "the tensors of the last checkpoint differ");
    let warned = |place: &Workplace| {
        let said = format!("step 58: begins with sample {end}; samples from {first} on are skipped");
        place.records("warning").iter().filter(|warning| warning["message"] == said.as_str()).count()
    };
    assert_eq!([warned(&place), warned(&always)], [1, 1]);
}

/// After code 77 every rank moves to another host.
#[test]
fn numbers_that_are_to_be_confirmed_move_the_ranks() {
    let place = Workplace::new(LLAMA);
    let words =
        ["supervise", "--run-dir", "runs/t", "--restart-delay", "0.05", "--hosts", "a,b", "--spares", "c"];
    let script = "echo {hosts} >> hosts.txt; [ $(wc -l < hosts.txt) -ge 3 ] || exit 77";
    let done = place.bessemer(&[&words[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(done.code, Some(0), "{}", done.text());
    assert_eq!(fs::read_to_string(place.path("hosts.txt")).unwrap(), "a,b\nc,a\nb,c\n");
    assert_eq!(launches(&place)[0]["end"], "exit code 77 (results must be confirmed on other hosts)");
}

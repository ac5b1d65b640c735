//! A corpus built on a cluster of processes has the bytes of one built in one process, also when an executor is killed.

use crate::workplace::Workplace;

#[test]
fn a_program_without_the_cluster_says_how_to_get_it() {
    if cfg!(not(feature = "cluster")) {
        let place = Workplace::new(crate::workplace::GPT2);
        let words = ["corpus", "build", "recipe.toml", "--cluster", "127.0.0.1:1"];
        place.bessemer(&words).failed(2, &["built without cluster support", "--features cluster"]);
        assert!(!place.path("runs").exists());
    }
}

#[cfg(feature = "cluster")]
mod processes {
    use crate::workplace::{Files, GPT2, Workplace};
    use bessemer_units::splitmix::SplitMix64;
    use std::collections::BTreeMap;
    use std::fmt::Write;
    use std::net::{TcpListener, TcpStream};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Stdio};
    use std::time::{Duration, Instant};

    /// Files of the input: each is a part, because a part holds 2 MiB or more.
    const FILES: u64 = 12;

    /// Documents with duplicates: within a file and across files, equal and with a few words changed.
    fn write_documents(place: &Workplace) {
        let folder = place.path("documents");
        std::fs::create_dir(&folder).unwrap();
        let mut random = SplitMix64(5);
        let words: Vec<String> = (0..4000)
            .map(|_| (0..2 + random.below(8)).map(|_| (b'a' + random.below(26) as u8) as char).collect())
            .collect();
        for file in 0..FILES {
            let mut lines = String::new();
            while lines.len() < 2_300_000 {
                // One in eight is one of 100 texts; half of those have a word of their own.
                let fixed = random.below(8) == 0;
                let seed = if fixed { random.below(100) } else { 1000 + random.below(u64::MAX - 1000) };
                let mut own = SplitMix64(seed);
                let mut text = format!("mail{}@firm.example said: the and that have with", own.below(1000));
                for _ in 0..120 + own.below(400) {
                    text.push(' ');
                    text += &words[own.index(4000)];
                }
                if fixed && random.below(2) == 0 {
                    text += " another";
                }
                writeln!(lines, "{{\"text\": \"{text}.\"}}").unwrap();
            }
            std::fs::write(folder.join(format!("{file:02}.jsonl")), lines).unwrap();
        }
        std::fs::write(
            place.path("recipe.toml"),
            "[run]\nname = \"t\"\n[corpus]\nsource = \"jsonl\"\npath = \"documents\"\n[corpus.split]\nby = \"document\"\n\
             [corpus.dedup]\nmethods = [\"exact\", \"minhash\"]\n[corpus.rules]\nprofiles = [\"gopher-repetition\"]\n[train]\nsteps = 1\n",
        )
        .unwrap();
    }

    /// A process that is killed with its owner.
    struct Process(Child);

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn start(place: &Workplace, words: &[&str]) -> Process {
        let mut command = place.command(words);
        Process(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap())
    }

    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    fn wait_for(port: u16) {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody listens at port {port}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A scheduler's address, and the processes: the scheduler, then two executors.
    fn cluster(place: &Workplace) -> (String, Vec<Process>) {
        let port = free_port();
        let scheduler = format!("127.0.0.1:{port}");
        let mut processes = vec![start(place, &["corpus", "cluster", "scheduler", "--listen", &scheduler])];
        wait_for(port);
        processes.extend((0..2).map(|number| executor(place, &scheduler, number)));
        (scheduler, processes)
    }

    fn executor(place: &Workplace, scheduler: &str, number: usize) -> Process {
        let port = free_port();
        let (listen, work) = (format!("127.0.0.1:{port}"), format!("work-{number}"));
        let words = ["corpus", "cluster", "executor", "--scheduler", scheduler, "--listen", &listen];
        let process = start(place, &[&words[..], &["--slots", "1", "--work-dir", &work]].concat());
        wait_for(port);
        process
    }

    /// Builds the corpus in `runs/NAME` and gives its files; an executor is killed when a file of this name lies there, if there
    /// is one to be killed.
    fn built(place: &Workplace, name: &str, cluster: Option<&str>, victim: Option<(Process, &str)>) -> Files {
        let set = format!("run.name=\"{name}\"");
        let mut words = vec!["corpus", "build", "recipe.toml", "--set", &set];
        words.extend(cluster.iter().flat_map(|scheduler| ["--cluster", scheduler]));
        let child = place.command(&words).spawn().unwrap();
        if let Some((victim, file)) = victim {
            let begun = Instant::now();
            while !lies(&place.path("runs").join(name), file) {
                assert!(begun.elapsed() < Duration::from_secs(120), "no {file} in two minutes");
                std::thread::sleep(Duration::from_millis(10));
            }
            drop(victim);
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let below = PathBuf::from("runs").join(name).join("corpus");
        let root = place.path(below.to_str().unwrap());
        let relative =
            |(path, bytes): (PathBuf, Vec<u8>)| (path.strip_prefix(&root).unwrap().to_path_buf(), bytes);
        place.files(below.to_str().unwrap()).into_iter().map(relative).collect()
    }

    /// Whether a path below a folder ends in `file`.
    fn lies(folder: &Path, file: &str) -> bool {
        let Ok(entries) = std::fs::read_dir(folder) else { return false };
        entries.flatten().map(|entry| entry.path()).any(|path| path.ends_with(file) || lies(&path, file))
    }

    #[track_caller]
    fn assert_same(found: &Files, wanted: &Files) {
        let digests = |files: &Files| -> BTreeMap<PathBuf, usize> {
            files.iter().map(|(path, bytes)| (path.clone(), bytes.len())).collect()
        };
        assert_eq!(digests(found), digests(wanted));
        for (path, bytes) in wanted {
            assert!(found[path] == *bytes, "{} differs", path.display());
        }
    }

    #[test]
    fn two_executors_one_of_them_killed_give_the_bytes_of_one_process() {
        let place = Workplace::new(GPT2);
        write_documents(&place);
        let alone = built(&place, "alone", None, None);
        let dropped =
            place.bessemer(&["corpus", "stats", "runs/alone", "--json"]).json()["dropped_by_reason"].clone();
        for reason in ["duplicate", "near-duplicate"] {
            assert!(dropped[reason]["documents"].as_u64() > Some(10), "{dropped}");
        }
        let (scheduler, mut processes) = cluster(&place);
        assert_same(&built(&place, "both", Some(&scheduler), None), &alone);
        // In the job of the first rows, in that of the bands, in that of the verification: each file is written when its job begins.
        for (number, file) in
            ["rows-0/part-000000.json", "ranges-2.json", "ranges-3.json"].into_iter().enumerate()
        {
            let victim = processes.pop().map(|process| (process, file));
            let name = format!("killed-{number}");
            assert_same(&built(&place, &name, Some(&scheduler), victim), &alone);
            processes.push(executor(&place, &scheduler, 2 + number));
        }
        // What is left of the cluster still works, and its rows are gone.
        assert_same(&built(&place, "one", Some(&scheduler), None), &alone);
        let left = place.path("runs/killed-2").read_dir().unwrap().flatten();
        let left: Vec<_> = left
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().contains("cluster"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

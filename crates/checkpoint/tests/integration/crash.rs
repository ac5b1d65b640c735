//! Real processes killed with SIGKILL, and a real file system whose power is cut, in the middle of saving.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed unwrap in a test's own plumbing is a failed test"
)]

use bessemer_checkpoint::{HostTensors, Retention, SaveRequest, Store};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const CHILD_DIR: &str = "BESSEMER_TEST_SAVE_INTO";
const CHILD_ACK: &str = "BESSEMER_TEST_ACKNOWLEDGE_TO";

fn tensors(step: u64) -> Vec<HostTensor> {
    (0..4)
        .map(|k| HostTensor {
            name: format!("layers.{k}"),
            shape: vec![64, 1000],
            dtype: DType::F32,
            values: (0..64_000).map(|i| ((step * 31 + k * 7 + i) % 1_000_003) as f32).collect(),
        })
        .collect()
}

/// Not a test of its own: what the other tests start as a process. Saves until it is killed, and writes down each step
/// when its save has returned.
#[test]
fn child_that_saves() {
    let (Some(dir), Some(ack)) = (std::env::var_os(CHILD_DIR), std::env::var_os(CHILD_ACK)) else { return };
    let store = Store::open(dir);
    let first = store.latest_valid().unwrap().map_or(1, |l| l.loaded.manifest().step + 1);
    let mut ack = fs::OpenOptions::new().append(true).create(true).open(ack).unwrap();
    for step in first.. {
        let list = tensors(step);
        store
            .save(SaveRequest {
                step,
                tokens: step,
                state: serde_json::json!({"step": step}),
                recipe: String::new(),
                tokenizer: None,
                tensors: &mut HostTensors::new(&list),
                max_file_bytes: 400_000,
                progress: &mut |_, _| {},
            })
            .unwrap();
        writeln!(ack, "{step}").unwrap();
        store.gc(&Retention { keep_last: 2, ..Retention::default() }).unwrap();
    }
}

/// A child that does not outlive the test, even a stopped one and even when the test fails.
struct Saver(Child);

impl Drop for Saver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path, ack: &Path) -> Saver {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["crash::child_that_saves", "--exact", "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(CHILD_ACK, ack)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    Saver(child)
}

/// The last step whose save has returned, 0 if none.
fn acknowledged(ack: &Path) -> u64 {
    fs::read_to_string(ack).unwrap_or_default().lines().last().map_or(0, |l| l.parse().unwrap())
}

/// Checks that everything listed is whole and that the newest save is `last`, which is known to be there, or the next one. Returns its
/// step.
fn check(dir: &Path, last: u64) -> u64 {
    let store = Store::open(dir);
    let scan = store.scan().unwrap();
    assert!(scan.damaged.is_empty(), "{:?}", scan.damaged);
    for c in &scan.complete {
        let loaded = store.load(c.step).unwrap();
        for t in tensors(c.step) {
            assert_eq!(loaded.read_tensor(&t.name).unwrap(), t);
        }
    }
    let newest = scan.complete.last().map_or(0, |c| c.step);
    assert!(newest == last || newest == last + 1, "acknowledged {last}, found {newest}");
    newest
}

/// Pseudo-random milliseconds.
fn jitter(i: u64, most: u64) -> Duration {
    Duration::from_micros((i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % (most * 1000))
}

#[test]
fn a_process_killed_at_any_moment_leaves_its_last_save_and_the_next_process_goes_on() {
    let tmp = tempfile::tempdir().unwrap();
    let (dir, ack) = (tmp.path().join("c"), tmp.path().join("ack"));
    let mut last = 0;
    for i in 0..25 {
        let child = start(&dir, &ack);
        sleep(Duration::from_millis(10) + jitter(i, 180));
        // SIGKILL.
        drop(child);
        // The process before may have been killed between a save and its acknowledgement.
        last = check(&dir, acknowledged(&ack).max(last));
    }
    assert!(last >= 5, "the processes got something done: {last}");
}

/// The image as it is at one instant: copied until two copies in a row are equal, so that nothing changed between.
fn still_copy(image: &Path) -> Vec<u8> {
    let mut before = fs::read(image).unwrap();
    loop {
        sleep(Duration::from_millis(20));
        let now = fs::read(image).unwrap();
        if now == before {
            return now;
        }
        before = now;
    }
}

fn run(command: &str, args: &[&str]) -> bool {
    Command::new(command)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Mounted file systems, unmounted in reverse even when the test fails.
struct Mounts(Vec<String>);

impl Drop for Mounts {
    fn drop(&mut self) {
        while let Some(m) = self.0.pop() {
            run("umount", &[&m]);
        }
    }
}

/// ext4 on a loop device: the image file is the disk, and a copy of it is what a power cut leaves. The process is
/// stopped in the middle of its work, the copy is mounted (which replays the journal), and read. Not modelled: torn
/// sectors and reordering inside a device's cache.
#[test]
#[ignore = "needs root, loop devices and mkfs.ext4; takes a minute"]
fn a_power_cut_at_any_moment_loses_no_acknowledged_save() {
    let tmp = tempfile::tempdir().unwrap();
    let p = |name: &str| tmp.path().join(name).to_str().unwrap().to_string();
    let (disk, image, live, snap) = (p("disk"), p("disk/image"), p("live"), p("snap"));
    for d in [&disk, &live, &snap] {
        fs::create_dir(d).unwrap();
    }
    let mut mounts = Mounts(Vec::new());
    let made = run("mount", &["-t", "tmpfs", "-o", "size=200m", "tmpfs", &disk]) && {
        mounts.0.push(disk.clone());
        fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-F", &image]) && run("mount", &["-o", "loop", &image, &live])
    };
    if !made {
        println!("skipped: needs root, loop devices and mkfs.ext4");
        return;
    }
    mounts.0.push(live.clone());
    let (dir, ack) = (Path::new(&live).join("c"), tmp.path().join("ack"));
    let (mut cuts, mut last) = (0, 0);
    for i in 0..40 {
        let child = start(&dir, &ack);
        sleep(Duration::from_millis(30) + jitter(i, 200));
        kill_process(Pid::from_raw(child.0.id() as i32).unwrap(), Signal::STOP).unwrap();
        // ext4 commits its journal every 5 s: sometimes look before, sometimes after.
        sleep(Duration::from_millis([0, 0, 0, 300, 5500][i as usize % 5]));
        fs::write(p("disk/copy"), still_copy(Path::new(&image))).unwrap();
        let acknowledged = acknowledged(&ack);
        assert!(run("mount", &["-o", "loop", &p("disk/copy"), &snap]));
        mounts.0.push(snap.clone());
        let newest = check(&Path::new(&snap).join("c"), acknowledged);
        assert!(run("umount", &[&snap]));
        mounts.0.pop();
        drop(child);
        assert!(newest >= last);
        (cuts, last) = (cuts + 1, acknowledged);
    }
    println!("{cuts} power cuts, {last} saves acknowledged, none lost, none damaged");
    assert!(last > 40);
}

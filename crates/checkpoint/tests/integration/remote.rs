//! Checkpoints in an object store that misbehaves by plan, and in one that somebody else wrote.

#![allow(clippy::print_stdout, reason = "says what was left out")]

use crate::damage::{files_of, save};
use crate::moto::Moto;
use crate::store::{Act, Store as ObjectServer};
use bessemer_checkpoint::{CheckpointDifference, CheckpointError, Owner, RemoteStore, Retention, Store};
use bessemer_object_store::{Access, RemoteOptions};
use std::time::Duration;

const URL: &str = "s3://bucket/run";

fn options(settings: Vec<(String, String)>) -> RemoteOptions {
    RemoteOptions {
        attempts: 3,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
        timeout: Duration::from_secs(10),
        ..Access::of(settings).options()
    }
}

fn remote(settings: Vec<(String, String)>) -> RemoteStore {
    RemoteStore::open(URL, options(settings), |_| Ok(())).unwrap()
}

fn owner(id: &str) -> Owner {
    Owner { id: id.into() }
}

fn keep(keep_last: u64) -> Retention {
    Retention { keep_last, ..Retention::default() }
}

fn steps(store: &Store) -> Vec<u64> {
    store.list().unwrap().into_iter().map(|c| c.step).collect()
}

/// Uploads, thins out, goes back, is verified, read in part and copied back: everything but faults.
fn life(settings: Vec<(String, String)>) {
    let place = tempfile::tempdir().unwrap();
    let local = Store::open(place.path().join("local"));
    let remote = remote(settings);
    let me = owner("me");
    assert!(steps(&remote.reader()).is_empty() && remote.reader().latest_valid().unwrap().is_none());
    for step in [10, 20, 30, 40] {
        save(&local.clone().compressing(step % 20 == 0), step, 40);
        let (mut last, mut total) = (0, 0);
        let mut progress = |done, all| {
            assert!(last <= done && done <= all);
            (last, total) = (done, all);
        };
        let done = remote.synchronise(&local, &me, &keep(2), &mut progress).unwrap();
        assert_eq!(done.uploaded, [step]);
        assert_eq!(last, total);
    }
    let reader = remote.reader();
    assert_eq!(steps(&reader), [30, 40]);
    let latest = reader.latest_valid().unwrap().unwrap();
    let same =
        CheckpointDifference::between(&local.load(40).unwrap(), &latest.loaded, &mut |_, _| ()).unwrap();
    assert!(same.is_empty(), "{same:?}");
    // Nothing is left to do, and nothing is left of the two that went.
    let done = remote.synchronise(&local, &me, &keep(2), &mut |_, _| ()).unwrap();
    assert!(done.uploaded.is_empty() && done.retracted.is_empty() && done.removed.objects == 0, "{done:?}");
    // The run goes back and comes to a step again, with other contents.
    local.abandon_after(20).unwrap();
    save(&local, 40, 41);
    let done = remote.synchronise(&local, &me, &keep(2), &mut |_, _| ()).unwrap();
    assert_eq!((done.uploaded, done.bytes > 0), (vec![40], true));
    local.abandon_after(20).unwrap();
    save(&local, 25, 42);
    let done = remote.synchronise(&local, &me, &keep(5), &mut |_, _| ()).unwrap();
    assert_eq!((done.uploaded, done.retracted), (vec![25], vec![30, 40]));
    assert_eq!(steps(&remote.reader()), [25]);
    // Two runs do not share an address; a job that was replaced stops.
    let error = remote.synchronise(&local, &owner("other"), &keep(2), &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, CheckpointError::OtherOwner { .. }), "{error}");
    remote.take_over(&owner("other")).unwrap();
    let error = remote.synchronise(&local, &me, &keep(2), &mut |_, _| ()).unwrap_err();
    assert!(error.to_string().contains("save.upload"), "{error}");
    // Back to a disk, byte for byte.
    let back = Store::open(place.path().join("back"));
    assert!(back.copy_from(&remote.reader(), 25, &mut |_, _| ()).unwrap().is_some());
    assert_eq!(files_of(&back.path(25)), files_of(&local.path(25)));
    for name in files_of(&back.path(25)) {
        let read = |s: &Store| std::fs::read(s.path(25).join(&name)).unwrap();
        assert!(read(&back) == read(&local), "{name}");
    }
    assert_eq!(remote.upload_step(&back, 25, &mut |_, _| ()).unwrap(), None);
    save(&back, 26, 3);
    assert!(remote.upload_step(&back, 26, &mut |_, _| ()).unwrap().is_some());
    assert_eq!(steps(&remote.reader()), [25, 26]);
}

#[test]
fn checkpoints_live_in_a_store() {
    let server = ObjectServer::start([], &[]);
    life(server.settings());
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test --features remote oracle -- --ignored (golden/requirements.txt)"]
fn oracle_moto_keeps_checkpoints() {
    let Some(moto) = Moto::start(None) else { return };
    moto.make_bucket("bucket");
    life(moto.settings());
}

/// The upload is cut off after each number of requests, as by a kill: nothing of it is seen, and the next one goes on.
#[test]
fn an_upload_that_ends_anywhere_is_not_read_and_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let local = Store::open(place.path().join("local"));
    save(&local, 1, 40);
    let files = local.load(1).unwrap().manifest().files.len();
    let server = ObjectServer::start([], &[]);
    let remote = remote(server.settings());
    remote.synchronise(&local, &owner("me"), &keep(9), &mut |_, _| ()).unwrap();
    save(&local, 2, 40);
    let (mut cuts, mut sent) = (0, Vec::new());
    for cut in 0.. {
        let acts: Vec<Act> = [vec![Act::Serve; cut], vec![Act::Status(403); 1]].concat();
        server.state.lock().unwrap().acts = acts.into();
        let before = server.state.lock().unwrap().objects.len();
        let result = remote.synchronise(&local, &owner("me"), &keep(9), &mut |_, _| ());
        let unused = server.state.lock().unwrap().acts.len();
        server.state.lock().unwrap().acts.clear();
        let there = steps(&remote.reader());
        if unused > 0 {
            result.unwrap();
            assert_eq!(there, [1, 2]);
            break;
        }
        let error = result.unwrap_err().to_string();
        assert!(error.contains("check the credentials"), "{error}");
        // The commit may have been followed by the request that failed.
        assert!(there == [1] || (there == [1, 2] && cuts > files), "{cut}: {there:?}");
        if there == [1] {
            assert_eq!(remote.reader().latest_valid().unwrap().unwrap().loaded.manifest().step, 1);
        }
        sent.push(server.state.lock().unwrap().objects.len() - before);
        cuts += 1;
    }
    // Each file was sent once over all the attempts.
    assert!(cuts > files && sent.iter().sum::<usize>() <= files + 1, "{cuts}: {sent:?}");
    assert!(remote.reader().load(2).is_ok());
    // What an abandoned upload has left goes with the next retention.
    let leftover = "bucket/run/step-00000001/0123456789abcdef/shard-00001-of-00001.safetensors".to_string();
    let foreign = "bucket/run/step-00000001/notes.txt".to_string();
    for key in [&leftover, &foreign] {
        server.state.lock().unwrap().objects.insert(key.clone(), b"x".to_vec());
    }
    remote.gc(&keep(1)).unwrap();
    let state = server.state.lock().unwrap();
    assert!(!state.objects.contains_key(&leftover) && state.objects.contains_key(&foreign));
    drop(state);
    assert_eq!(steps(&remote.reader()), [2]);
}

#[test]
fn a_commit_whose_answer_was_lost_is_compared() {
    let place = tempfile::tempdir().unwrap();
    let (local, other) = (Store::open(place.path().join("local")), Store::open(place.path().join("other")));
    save(&local, 1, 4);
    save(&other, 1, 5);
    let server = ObjectServer::start([], &[]);
    let remote = remote(server.settings());
    remote.synchronise(&local, &owner("me"), &keep(9), &mut |_, _| ()).unwrap();
    let commit =
        server.asked().iter().position(|h| h.starts_with("PUT") && h.contains("manifest.json")).unwrap();
    server.state.lock().unwrap().objects.clear();
    server.state.lock().unwrap().asked.clear();
    server.state.lock().unwrap().acts = [vec![Act::Serve; commit], vec![Act::Lost]].concat().into();
    let done = remote.synchronise(&local, &owner("me"), &keep(9), &mut |_, _| ()).unwrap();
    assert_eq!(done.uploaded, [1]);
    let commits =
        server.asked().iter().filter(|h| h.starts_with("PUT") && h.contains("manifest.json")).count();
    assert_eq!(commits, 2, "the request was made again");
    let error = remote.upload_step(&other, 1, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("another checkpoint of this step"), "{error}");
}

#[test]
fn what_is_damaged_or_cut_off_in_the_store_is_an_error_by_name() {
    let place = tempfile::tempdir().unwrap();
    let local = Store::open(place.path().join("local"));
    save(&local, 1, 40);
    save(&local, 2, 40);
    let server = ObjectServer::start([], &[]);
    let remote = remote(server.settings());
    for step in [1, 2] {
        remote.upload_step(&local, step, &mut |_, _| ()).unwrap();
    }
    let data = |step: &str| {
        let state = server.state.lock().unwrap();
        state.objects.keys().find(|k| k.contains(step) && k.contains("shard-00001")).unwrap().clone()
    };
    let key = data("step-00000002");
    let good = server.state.lock().unwrap().objects[&key].clone();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 4;
    server.state.lock().unwrap().objects.insert(key.clone(), bad);
    let latest = remote.reader().latest_valid().unwrap().unwrap();
    assert_eq!(latest.loaded.manifest().step, 1);
    assert!(
        latest.skipped[0].to_string().contains("s3://bucket/run/step-00000002/shard-00001"),
        "{}",
        latest.skipped[0]
    );
    server.state.lock().unwrap().objects.insert(key.clone(), good[..good.len() - 1].to_vec());
    assert_eq!(steps(&remote.reader()), [1]);
    server.state.lock().unwrap().objects.insert(key, good);
    // A network that fails is no damage: an older checkpoint is not taken for the newest.
    server.state.lock().unwrap().acts = [vec![Act::Serve; 2], vec![Act::Status(503); 9]].concat().into();
    let error = remote.reader().latest_valid().unwrap_err();
    assert!(matches!(error, CheckpointError::Remote(_)), "{error}");
    server.state.lock().unwrap().acts.clear();
    // A file that was damaged on the disk does not leave it.
    save(&local, 3, 40);
    let name = local.load(3).unwrap().manifest().files[0].name.clone();
    let mut bytes = std::fs::read(local.path(3).join(&name)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(local.path(3).join(&name), bytes).unwrap();
    let error = remote.upload_step(&local, 3, &mut |_, _| ()).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains(&name), "{error}");
    assert_eq!(steps(&remote.reader()), [1, 2]);
}

/// A rank of several reads the chunks of its part and nothing else.
#[test]
fn a_part_of_a_checkpoint_is_read_by_ranges() {
    let place = tempfile::tempdir().unwrap();
    let local = Store::open(place.path().join("local"));
    // Two files of 3 and 2.5 MB: some chunks each.
    let list = save(&local, 1, 250_000);
    let server = ObjectServer::start([], &[]);
    let remote = remote(server.settings());
    remote.upload_step(&local, 1, &mut |_, _| ()).unwrap();
    server.state.lock().unwrap().asked.clear();
    let lazy = remote.reader().load_lazily(1).unwrap();
    let mut values = vec![0.0; 100];
    lazy.read_runs("a.weight", &[(600_000, 100)], &mut values).unwrap();
    assert_eq!(values, &list[0].values[600_000..600_100]);
    assert!(lazy.bytes_read() < 3 << 20, "{}", lazy.bytes_read());
    let asked = server.asked();
    let ranges = asked.iter().filter(|h| h.to_ascii_lowercase().contains("range: bytes=")).count();
    assert!(ranges <= 5, "{asked:?}");
}

//! Remote files against a store on 127.0.0.1 that serves ranges and lists, and misbehaves by plan.

use crate::store;

use bessemer_object_store::{RemoteError, RemoteFile, RemoteOptions, Stores};
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;
use store::{Act, Store};

fn options(block_bytes: usize, store: &Store) -> RemoteOptions {
    RemoteOptions {
        block_bytes,
        attempts: 3,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
        timeout: Duration::from_secs(10),
        settings: store.settings(),
        ..RemoteOptions::default()
    }
}

fn data(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 % 251) as u8).collect()
}

/// A store with one file, for signed requests and for plain ones.
fn serve(data: Vec<u8>, acts: &[Act], signed: bool) -> (Store, String) {
    let store = Store::start([("bucket/file".to_string(), data)], acts);
    store.state.lock().unwrap().signed = signed;
    let url = if signed { "s3://bucket/file".to_string() } else { format!("{}/bucket/file", store.address) };
    (store, url)
}

#[test]
fn reads_in_ranges_through_busy_servers_broken_connections_and_short_bodies() {
    for signed in [true, false] {
        let acts = [
            Act::Status(503),
            Act::Serve,
            Act::Close,
            Act::HalfBody,
            Act::Serve,
            Act::Status(429),
            Act::Serve,
            Act::Serve,
        ];
        let (store, url) = serve(data(1000), &acts, signed);
        let mut file = RemoteFile::open(&url, options(300, &store)).unwrap();
        assert_eq!(file.length(), 1000);
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, data(1000));
        let asked = store.asked();
        // After half a body only the rest is asked for, of the same version.
        let rest = asked.iter().find(|head| head.to_ascii_lowercase().contains("range: bytes=150-299"));
        assert!(rest.unwrap().to_ascii_lowercase().contains("if-match: \""), "{rest:?}");
        assert!(asked.iter().all(|head| head.contains("AWS4-HMAC-SHA256") == signed));
    }
}

#[test]
fn an_object_that_changes_is_never_mixed() {
    for act in [Act::NewVersion, Act::Status(412)] {
        let (store, url) = serve(data(1000), &[Act::Serve, Act::Serve, act], true);
        let mut file = RemoteFile::open(&url, options(600, &store)).unwrap();
        let mut read = Vec::new();
        let message = file.read_to_end(&mut read).unwrap_err().to_string();
        assert!(message.contains("changed while it was read"), "{message}");
        assert_eq!(read.len(), 600);
    }
}

#[test]
fn what_cannot_be_read_says_why() {
    let open = |acts: &[Act], signed| {
        let (store, url) = serve(data(100), acts, signed);
        let opened = RemoteFile::open(&url, options(50, &store));
        opened.and_then(|mut file| {
            let mut read = Vec::new();
            file.read_to_end(&mut read)
                .map_err(|e| *e.into_inner().unwrap().downcast::<RemoteError>().unwrap())
        })
    };
    for signed in [true, false] {
        let failed = |acts: &[Act]| open(acts, signed).unwrap_err();
        assert!(matches!(failed(&[Act::Status(404)]), RemoteError::NotFound { .. }));
        assert!(matches!(failed(&[Act::Status(403)]), RemoteError::Refused { .. }));
        assert!(matches!(failed(&[Act::Serve, Act::Whole]), RemoteError::NoRanges { .. }));
        let gave_up = failed(&[Act::Serve, Act::Close, Act::Status(500), Act::Status(503)]);
        assert!(matches!(&gave_up, RemoteError::GaveUp { last, .. } if last.contains("503")), "{gave_up}");
        let short = failed(&[
            Act::Serve,
            Act::HalfBody,
            Act::Close,
            Act::HalfBody,
            Act::Close,
            Act::Close,
            Act::Close,
        ]);
        assert!(matches!(&short, RemoteError::GaveUp { .. }), "{short}");
    }
    let (store, url) = serve(Vec::new(), &[], true);
    assert_eq!(RemoteFile::open(&url, options(9, &store)).unwrap().length(), 0);
    let (store, url) = serve(Vec::new(), &[], false);
    assert_eq!(RemoteFile::open(&url, options(9, &store)).unwrap().length(), 0);
    let zero = RemoteOptions { block_bytes: 0, ..RemoteOptions::default() };
    assert!(matches!(RemoteFile::open("http://127.0.0.1:9/", zero), Err(RemoteError::Options(_))));
    let (store, url) = serve(data(9), &[Act::Sleep; 3], true);
    let hasty = RemoteOptions { timeout: Duration::from_millis(50), ..options(9, &store) };
    let late = RemoteFile::open(&url, hasty).unwrap_err();
    assert!(matches!(&late, RemoteError::GaveUp { last, .. } if last.contains("timed out")), "{late}");
}

#[test]
fn a_prefix_is_listed_in_the_order_of_a_folder() {
    let keys = [
        "p/b.jsonl",
        "p/a/2.jsonl",
        "p/a.jsonl",
        "p/a/1.jsonl",
        "p/a-b/x.jsonl",
        "p/a/10.jsonl",
        "other/z",
        "pq/z",
    ];
    let objects = keys.map(|key| (format!("bucket/{key}"), key.as_bytes().to_vec()));
    // The second page breaks off.
    let store = Store::start(objects, &[Act::Status(503), Act::Serve, Act::HalfBody]);
    let stores = Arc::new(Stores::open("s3://bucket", options(64, &store)).unwrap());
    let found = stores.list("s3://bucket/p/").unwrap();
    let names: Vec<&str> = found.iter().map(|object| object.relative.as_str()).collect();
    assert_eq!(names, ["a/1.jsonl", "a/10.jsonl", "a/2.jsonl", "a-b/x.jsonl", "a.jsonl", "b.jsonl"]);
    for object in found {
        assert!(object.version.as_ref().unwrap().starts_with('"'));
        let (mut text, wanted) =
            (String::new(), object.url.strip_prefix("s3://bucket/").unwrap().to_string());
        RemoteFile::new(stores.clone(), object).read_to_string(&mut text).unwrap();
        assert_eq!(text, wanted);
    }
    assert_eq!(stores.list("s3://bucket").unwrap().len(), 8);
    assert!(stores.list("s3://bucket/none").unwrap().is_empty());
    let no_list = stores.list(&format!("{}/bucket/", store.address)).unwrap_err().to_string();
    assert!(no_list.contains("does not list"), "{no_list}");
}

#[test]
fn a_file_is_read_from_any_position() {
    let (store, url) = serve(data(100), &[], true);
    let mut file = RemoteFile::open(&url, options(7, &store)).unwrap();
    let mut tail = Vec::new();
    file.seek(SeekFrom::End(-3)).unwrap();
    file.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, &data(100)[97..]);
    assert!(file.seek(SeekFrom::Current(-101)).is_err());
}

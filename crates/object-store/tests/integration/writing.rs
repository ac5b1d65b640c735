//! Uploads into a store that misbehaves by plan, and into one that somebody else wrote.

use crate::moto::Moto;
use crate::store::{Act, Store};
use bessemer_object_store::{Put, RemoteError, RemoteOptions, Stores};
use std::time::Duration;

fn options(settings: Vec<(String, String)>) -> RemoteOptions {
    RemoteOptions {
        attempts: 3,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
        timeout: Duration::from_secs(10),
        part_bytes: 5 << 20,
        settings,
        ..RemoteOptions::default()
    }
}

fn data(n: usize) -> Vec<u8> {
    (0..n).map(|i| ((i * 2_654_435_761) >> 11) as u8).collect()
}

fn put(stores: &Stores, url: &str, data: &[u8]) -> Result<u64, RemoteError> {
    let mut done = 0;
    let mut read = |from: u64, out: &mut [u8]| {
        out.copy_from_slice(&data[from as usize..][..out.len()]);
        Ok(())
    };
    stores.put(url, data.len() as u64, &mut read, &mut |n| done += n).map(|()| done)
}

fn read(stores: &Stores, url: &str) -> Vec<u8> {
    stores.read_small(url, 1 << 30).unwrap().1
}

#[test]
fn files_arrive_whole_through_a_store_that_misbehaves() {
    let store = Store::start([], &[Act::Status(503), Act::Close]);
    let stores = Stores::open("s3://bucket", options(store.settings())).unwrap();
    for (bytes, parts) in [(0, 0), (1000, 0), ((5 << 20) + 1, 2), (16 << 20, 4)] {
        let url = format!("s3://bucket/of/{bytes}");
        // The third request of an upload in parts: one part is sent twice.
        if parts > 0 {
            store.state.lock().unwrap().acts = [Act::Serve, Act::Serve, Act::Status(500)].into();
        }
        assert_eq!(put(&stores, &url, &data(bytes)).unwrap(), bytes as u64);
        assert!(read(&stores, &url) == data(bytes), "{bytes}");
        let sent = store.asked().iter().filter(|head| head.contains(&format!("/{bytes}?partNumber"))).count();
        assert_eq!(sent, if parts > 0 { parts + 1 } else { 0 });
    }
    // The store is told the checksum of what it gets.
    let put_head = store.asked().into_iter().find(|head| head.starts_with("PUT")).unwrap();
    assert!(put_head.to_ascii_lowercase().contains("x-amz-checksum-sha256: "), "{put_head}");
    stores.delete("s3://bucket/of/1000").unwrap();
    stores.delete("s3://bucket/of/1000").unwrap();
    assert!(matches!(stores.stat("s3://bucket/of/1000"), Err(RemoteError::NotFound { .. })));
}

#[test]
fn what_does_not_arrive_is_an_error_that_says_what_to_do_and_is_not_visible() {
    let store = Store::start([], &[]);
    let stores = Stores::open("s3://bucket", options(store.settings())).unwrap();
    let fails = |bytes: usize, acts: &[Act]| {
        store.state.lock().unwrap().acts = acts.iter().copied().collect();
        let error = put(&stores, "s3://bucket/k", &data(bytes)).unwrap_err();
        store.state.lock().unwrap().acts.clear();
        error
    };
    let large = (5 << 20) + 1;
    for (bytes, acts, words) in [
        (10, vec![Act::Status(403)], "check the credentials"),
        (10, vec![Act::Status(404)], "check bucket, key, region"),
        (10, vec![Act::Status(507); 3], "the store is full"),
        (10, vec![Act::Status(503); 3], "gave up after 3 attempts"),
        // Two parts, three times each.
        (large, [vec![Act::Serve], vec![Act::Status(507); 6]].concat(), "the store is full"),
        (large, vec![Act::Serve, Act::Status(403), Act::Status(403)], "check the credentials"),
    ] {
        let error = fails(bytes, &acts).to_string();
        assert!(error.contains(words), "{acts:?}: {error}");
        let state = store.state.lock().unwrap();
        assert!(state.objects.is_empty() && state.parts.is_empty(), "{acts:?}: {:?}", state.parts.keys());
    }
    // A store that loses bytes without a word.
    let error = fails(10, &[Act::Shortens]).to_string();
    assert!(error.contains("10 bytes were sent, the store has 5"), "{error}");
    let mut failing = |_: u64, _: &mut [u8]| Err(std::io::Error::other("the disk is gone"));
    let error = stores.put("s3://bucket/k", 10, &mut failing, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("s3://bucket/k") && error.contains("the disk is gone"), "{error}");
    let error = stores.put_if_absent("https://host/k", b"x").unwrap_err().to_string();
    assert!(error.contains("read but not written"), "{error}");
}

#[test]
fn an_object_is_created_once() {
    let store = Store::start([], &[]);
    let stores = Stores::open("s3://bucket", options(store.settings())).unwrap();
    assert_eq!(stores.put_if_absent("s3://bucket/m", b"first").unwrap(), Put::Created);
    assert_eq!(stores.put_if_absent("s3://bucket/m", b"other").unwrap(), Put::Exists);
    assert_eq!(read(&stores, "s3://bucket/m"), b"first");
    // It was made, and nobody heard of it: the caller has to compare.
    store.state.lock().unwrap().acts = [Act::Lost].into();
    assert_eq!(stores.put_if_absent("s3://bucket/n", b"mine").unwrap(), Put::Exists);
    assert_eq!(read(&stores, "s3://bucket/n"), b"mine");
    store.state.lock().unwrap().acts = [Act::Status(503); 9].into();
    let error = stores.put_if_absent("s3://bucket/o", b"x").unwrap_err();
    assert!(matches!(error, RemoteError::GaveUp { .. }), "{error}");
    assert!(stores.read_small("s3://bucket/m", 4).is_err());
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test --features remote oracle -- --ignored (golden/requirements.txt)"]
fn oracle_moto_takes_uploads_and_creates_once() {
    let Some(moto) = Moto::start(None) else { return };
    moto.make_bucket("bucket");
    let stores = Stores::open("s3://bucket", options(moto.settings())).unwrap();
    for bytes in [0, 1000, (5 << 20) + 1, 16 << 20] {
        let url = format!("s3://bucket/of/{bytes}");
        assert_eq!(put(&stores, &url, &data(bytes)).unwrap(), bytes as u64);
        assert!(read(&stores, &url) == data(bytes), "{bytes}");
    }
    let names: Vec<String> = stores.list("s3://bucket/of").unwrap().into_iter().map(|o| o.relative).collect();
    assert_eq!(names, ["0", "1000", "16777216", "5242881"]);
    assert_eq!(stores.put_if_absent("s3://bucket/m", b"first").unwrap(), Put::Created);
    assert_eq!(stores.put_if_absent("s3://bucket/m", b"other").unwrap(), Put::Exists);
    assert_eq!(read(&stores, "s3://bucket/m"), b"first");
    stores.delete("s3://bucket/m").unwrap();
    assert_eq!(stores.put_if_absent("s3://bucket/m", b"other").unwrap(), Put::Created);
    let error = put(&stores, "s3://nowhere/k", b"x").unwrap_err();
    assert!(matches!(error, RemoteError::NotFound { .. }), "{error}");
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test --features remote oracle -- --ignored (golden/requirements.txt)"]
fn oracle_moto_refuses_unknown_credentials() {
    // The bucket is made before credentials are looked at.
    let Some(moto) = Moto::start(Some(1)) else { return };
    moto.make_bucket("bucket");
    let stores = Stores::open("s3://bucket", options(moto.settings())).unwrap();
    let error = put(&stores, "s3://bucket/k", b"x").unwrap_err();
    assert!(matches!(error, RemoteError::Refused { .. }), "{error}");
    assert!(
        error.to_string().contains("InvalidAccessKeyId")
            && error.to_string().contains("check the credentials"),
        "{error}"
    );
}

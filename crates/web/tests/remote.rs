//! Remote files against a server on 127.0.0.1 that serves ranges and misbehaves by plan.

#![cfg(feature = "remote")]
#![allow(clippy::unwrap_used)] // a failed unwrap in a test is a failed test

use bessemer_web::remote::{RemoteError, RemoteFile, RemoteOptions};
use bessemer_web::warc::{Compression, WarcLimits, WarcReader, WarcWriter, cut};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

/// What the server does with one request.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    /// The part asked for.
    Serve,
    /// The head of the part and only its first half.
    HalfBody,
    /// A status without a body.
    Status(u16),
    /// Closes without an answer.
    Close,
    /// The part, of another version.
    NewVersion,
    /// The whole file, ranges ignored.
    Whole,
}

/// Serves `data` for as many requests as there are acts, one connection each, then ends.
fn serve(data: Vec<u8>, acts: Vec<Act>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/file", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for act in acts {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap() == 0 {
                    break;
                }
            }
            let lower = head.to_ascii_lowercase();
            let range = lower.split("range: bytes=").nth(1).unwrap().split("\r\n").next().unwrap();
            let (a, b) = range.split_once('-').unwrap();
            let (a, b): (usize, usize) =
                (a.parse().unwrap(), b.parse::<usize>().unwrap().min(data.len().max(1) - 1));
            asked.push(head);
            let tag = if act == Act::NewVersion { "\"v2\"" } else { "\"v1\"" };
            let answer = match act {
                Act::Close => continue,
                Act::Status(s) => {
                    format!("HTTP/1.1 {s} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
                }
                Act::Whole => {
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                        data.len()
                    );
                    [head.as_bytes(), &data].concat()
                }
                _ if a >= data.len() => {
                    let head = format!("HTTP/1.1 416 X\r\nContent-Range: bytes */{}\r\n", data.len());
                    (head + "Content-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
                }
                _ => {
                    let part = &data[a..=b];
                    let sent = if act == Act::HalfBody { &part[..part.len() / 2] } else { part };
                    let head = format!(
                        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {a}-{b}/{}\r\nETag: {tag}\r\n\
                         Content-Length: {}\r\nConnection: close\r\n\r\n",
                        data.len(),
                        part.len()
                    );
                    [head.as_bytes(), sent].concat()
                }
            };
            // The client may leave early.
            let _ = stream.write_all(&answer);
        }
        asked
    });
    (url, server)
}

fn options(block_bytes: usize) -> RemoteOptions {
    RemoteOptions {
        block_bytes,
        attempts: 3,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
        timeout: Duration::from_secs(10),
        ..RemoteOptions::default()
    }
}

fn data(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 % 251) as u8).collect()
}

#[test]
fn reads_in_ranges_through_broken_connections_and_short_bodies() {
    let all = data(1000);
    let acts = vec![
        Act::Status(503),
        Act::Serve,
        Act::Close,
        Act::HalfBody,
        Act::Serve,
        Act::Status(429),
        Act::Serve,
        Act::Serve,
    ];
    let (url, server) = serve(all.clone(), acts);
    let mut file = RemoteFile::open(&url, options(300)).unwrap();
    assert_eq!(file.length(), 1000);
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert_eq!(read, all);
    let counts = file.counts();
    assert_eq!((counts.requests, counts.retries, counts.bytes), (8, 4, 1000));
    let asked = server.join().unwrap();
    // After half a body only the rest is asked for, of the same version.
    assert!(asked[4].to_ascii_lowercase().contains("range: bytes=450-599"), "{}", asked[4]);
    assert!(asked[4].to_ascii_lowercase().contains("if-match: \"v1\""));
}

#[test]
fn a_file_that_changes_is_never_mixed() {
    for (act, status) in [(Act::NewVersion, "v2"), (Act::Status(412), "another version")] {
        let (url, server) = serve(data(1000), vec![Act::Serve, act]);
        let mut file = RemoteFile::open(&url, options(600)).unwrap();
        let mut read = Vec::new();
        let message = file.read_to_end(&mut read).unwrap_err().to_string();
        assert!(message.contains("changed while it was read") && message.contains(status), "{message}");
        assert_eq!(read.len(), 600);
        server.join().unwrap();
    }
}

#[test]
fn what_cannot_be_read_says_why() {
    let open = |acts: Vec<Act>| {
        let (url, server) = serve(data(100), acts);
        let result = RemoteFile::open(&url, options(50)).map(|_| ());
        server.join().unwrap();
        result.unwrap_err()
    };
    assert!(matches!(open(vec![Act::Status(404)]), RemoteError::Status { status: 404, .. }));
    assert!(matches!(open(vec![Act::Whole]), RemoteError::NoRanges { .. }));
    let gave_up = open(vec![Act::Close, Act::Status(500), Act::Status(503)]);
    assert!(
        matches!(&gave_up, RemoteError::GaveUp { attempts: 3, last, .. } if last.contains("503")),
        "{gave_up}"
    );
    let zero = RemoteOptions { block_bytes: 0, ..RemoteOptions::default() };
    assert!(matches!(RemoteFile::open("http://127.0.0.1:9/", zero), Err(RemoteError::Options(_))));
    assert!(matches!(
        RemoteFile::open("no url", options(9)),
        Err(RemoteError::Options(_) | RemoteError::GaveUp { .. })
    ));
    let (url, server) = serve(Vec::new(), vec![Act::Serve]);
    assert_eq!(RemoteFile::open(&url, options(9)).unwrap().length(), 0);
    server.join().unwrap();
}

#[test]
fn an_archive_is_read_in_ranges_from_a_server() {
    let mut writer = WarcWriter::new(Vec::new(), Compression::Gzip);
    for i in 0..20 {
        writer.response(&format!("http://example.com/{i}"), &data(300 + i * 10)).unwrap();
    }
    let bytes = writer.into_inner();
    let (url, server) = serve(bytes.clone(), vec![Act::Serve; 200]);
    let mut uris = Vec::new();
    for range in cut(bytes.len() as u64, 3) {
        let file = RemoteFile::open(&url, options(1 << 10)).unwrap();
        let mut reader = WarcReader::new(file, WarcLimits::default()).unwrap();
        reader.restrict(range).unwrap();
        while let Some(record) = reader.next().unwrap() {
            uris.push(record.target_uri().unwrap().to_string());
        }
    }
    let wanted: Vec<String> = (0..20).map(|i| format!("http://example.com/{i}")).collect();
    assert_eq!(uris, wanted);
    let mut file = RemoteFile::open(&url, options(100)).unwrap();
    file.seek(SeekFrom::End(-3)).unwrap();
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, bytes[bytes.len() - 3..]);
    // The server waits for the rest of its requests: give it them.
    while !server.is_finished() {
        if RemoteFile::open(&url, RemoteOptions { attempts: 1, ..options(1) }).is_err() {
            break;
        }
    }
    server.join().unwrap();
}

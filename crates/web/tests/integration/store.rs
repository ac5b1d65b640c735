//! A store on 127.0.0.1 that speaks enough of S3: ListObjectsV2 in pages, GET with ranges, HEAD; and misbehaves by plan.

#![allow(dead_code)] // Each test program uses its part.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Answer of the store to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Act {
    /// The requested object.
    Serve,
    /// The head of the answer and only the first half of its body.
    HalfBody,
    /// A status without a body.
    Status(u16),
    /// Closes without an answer.
    Close,
    /// The requested object in another version.
    NewVersion,
    /// The whole file, ranges ignored.
    Whole,
    /// No answer for longer than a client waits.
    Sleep,
}

pub(crate) struct State {
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    /// What happens to the next requests; later ones are served.
    pub(crate) acts: VecDeque<Act>,
    /// Heads of requests.
    pub(crate) asked: Vec<String>,
    /// Objects of one page of a listing.
    pub(crate) page: usize,
    /// Requests without a signature of version 4 are refused.
    pub(crate) signed: bool,
}

/// The store; its thread ends with the process.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) address: String,
}

impl Store {
    /// Serves objects by `bucket/key`.
    pub(crate) fn start(objects: impl IntoIterator<Item = (String, Vec<u8>)>, acts: &[Act]) -> Store {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State {
            objects: objects.into_iter().collect(),
            acts: acts.iter().copied().collect(),
            asked: Vec::new(),
            page: 2,
            signed: true,
        }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                // A client may leave early: its answer is lost.
                std::thread::spawn(move || drop(answer(stream, &state)));
            }
        });
        Store { state, address }
    }

    /// Settings of a client of this store.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            ("AWS_ENDPOINT_URL", self.address.as_str()),
            ("AWS_REGION", "us-east-1"),
        ]
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .to_vec()
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }
}

fn tag(data: &[u8]) -> String {
    let hash =
        data.iter().fold(0xcbf29ce484222325_u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100000001b3));
    format!("\"{hash:016x}\"")
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[..2]).unwrap(), 16).unwrap());
            rest = &tail[2..];
        } else {
            bytes.push(if first == b'+' { b' ' } else { first });
            rest = tail;
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// A page of ListObjectsV2.
fn listing(state: &State, bucket: &str, query: &str) -> String {
    let pairs: BTreeMap<String, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (decode(k), decode(v)))
        .collect();
    let prefix = format!("{bucket}/{}", pairs.get("prefix").map_or("", String::as_str));
    let after = pairs.get("continuation-token").cloned().unwrap_or_default();
    let found: Vec<_> =
        state.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after).collect();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult>");
    for (key, data) in found.iter().take(state.page) {
        let key = key.split_once('/').unwrap().1;
        xml += &format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>{}</ETag>\
             <Size>{}</Size></Contents>",
            tag(data).replace('"', "&quot;"),
            data.len()
        );
    }
    let more = found.len() > state.page;
    if more {
        xml += &format!("<NextContinuationToken>{}</NextContinuationToken>", found[state.page - 1].0);
    }
    xml + &format!("<IsTruncated>{more}</IsTruncated></ListBucketResult>")
}

fn answer(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let mut stream = stream;
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = decode(path.trim_start_matches('/'));
    let mut send = |status: u16, fields: &str, body: &[u8], sent: usize| {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status} X\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(if method == "HEAD" { &[] } else { &body[..sent] })
    };
    let mut state = state.lock().unwrap();
    state.asked.push(head.clone());
    let act = state.acts.pop_front().unwrap_or(Act::Serve);
    let signature = field(&head, "authorization").unwrap_or_default();
    let signed = signature.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
        && signature.contains("/us-east-1/s3/aws4_request")
        && signature.split("Signature=").nth(1).is_some_and(|hash| hash.len() == 64)
        && field(&head, "x-amz-date").is_some();
    if state.signed && !signed {
        let body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
        return send(403, "", body, body.len());
    }
    match act {
        Act::Status(status) => return send(status, "", b"", 0),
        Act::Close => return Ok(()),
        Act::Sleep => {
            drop(state);
            std::thread::sleep(std::time::Duration::from_secs(60));
            return Ok(());
        }
        _ => {}
    }
    if query.contains("list-type=2") {
        let xml = listing(&state, path.trim_end_matches('/'), query);
        let sent = if act == Act::HalfBody { xml.len() / 2 } else { xml.len() };
        return send(200, "Content-Type: application/xml\r\n", xml.as_bytes(), sent);
    }
    let Some(data) = state.objects.get(&path) else {
        let body = b"<Error><Code>NoSuchKey</Code></Error>";
        return send(404, "", body, body.len());
    };
    let tag = if act == Act::NewVersion { "\"another\"".to_string() } else { tag(data) };
    let fields = format!("ETag: {tag}\r\nLast-Modified: Fri, 02 Jan 2026 03:04:05 GMT\r\n");
    if field(&head, "if-match").is_some_and(|wanted| wanted != tag) && act != Act::NewVersion {
        return send(412, "", b"", 0);
    }
    let range = field(&head, "range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let (Some((first, last)), true) = (range, act != Act::Whole) else {
        return send(200, &fields, data, data.len());
    };
    let first: usize = first.parse().unwrap();
    if first >= data.len() {
        return send(416, &format!("Content-Range: bytes */{}\r\n", data.len()), b"", 0);
    }
    let last = last.parse().unwrap_or(usize::MAX).min(data.len() - 1);
    let part = &data[first..=last];
    let sent = if act == Act::HalfBody { part.len() / 2 } else { part.len() };
    send(206, &format!("{fields}Content-Range: bytes {first}-{last}/{}\r\n", data.len()), part, sent)
}

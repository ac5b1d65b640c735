//! A store on 127.0.0.1 that speaks enough of S3: ListObjectsV2 in pages, GET with ranges, HEAD, PUT (also conditional and in
//! parts), DELETE; and misbehaves by plan.

#![allow(dead_code)] // Each test program uses its part.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
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
    /// Does what is asked and closes without an answer.
    Lost,
    /// Keeps only the first half of what it is sent.
    Shortens,
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
    /// Parts of unfinished uploads, by upload and number.
    pub(crate) parts: BTreeMap<(String, u32), Vec<u8>>,
    /// Uploads begun so far.
    uploads: u32,
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
            parts: BTreeMap::new(),
            uploads: 0,
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

/// Status, fields and body of the answer to a request that changes something.
fn change(
    state: &mut State,
    method: &str,
    path: &str,
    query: &str,
    body: Vec<u8>,
    absent: bool,
) -> (u16, String, String) {
    let value = |name: &str| {
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(k, _)| *k == name)
            .map(|(_, v)| decode(v))
    };
    let upload = value("uploadId");
    match (method, upload) {
        ("POST", None) if query.starts_with("delete") => {
            let text = String::from_utf8(body).unwrap();
            let mut xml = String::from("<DeleteResult>");
            for key in text.split("<Key>").skip(1) {
                let key = key.split("</Key>").next().unwrap();
                state.objects.remove(&format!("{}/{key}", path.trim_end_matches('/')));
                xml += &format!("<Deleted><Key>{key}</Key></Deleted>");
            }
            (200, String::new(), xml + "</DeleteResult>")
        }
        ("POST", None) => {
            state.uploads += 1;
            let id = state.uploads;
            let xml = format!(
                "<InitiateMultipartUploadResult><UploadId>u{id}</UploadId></InitiateMultipartUploadResult>"
            );
            (200, String::new(), xml)
        }
        ("PUT", Some(upload)) => {
            let fields = format!("ETag: {}\r\n", tag(&body));
            state.parts.insert((upload, value("partNumber").unwrap().parse().unwrap()), body);
            (200, fields, String::new())
        }
        ("POST", Some(upload)) => {
            let mut whole = Vec::new();
            state.parts.retain(|(of, _), part| {
                if *of == upload {
                    whole.append(part);
                }
                *of != upload
            });
            let xml = format!(
                "<CompleteMultipartUploadResult><ETag>{}</ETag></CompleteMultipartUploadResult>",
                tag(&whole)
            );
            state.objects.insert(path.into(), whole);
            (200, String::new(), xml.replace('"', "&quot;"))
        }
        ("DELETE", Some(upload)) => {
            state.parts.retain(|(of, _), _| *of != upload);
            (204, String::new(), String::new())
        }
        ("DELETE", None) => {
            state.objects.remove(path);
            (204, String::new(), String::new())
        }
        _ if absent && state.objects.contains_key(path) => (412, String::new(), String::new()),
        _ => {
            let fields = format!("ETag: {}\r\n", tag(&body));
            state.objects.insert(path.into(), body);
            (200, fields, String::new())
        }
    }
}

fn answer(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let mut body = vec![0; field(&head, "content-length").map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body)?;
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
    if method != "GET" && method != "HEAD" {
        if act == Act::Shortens {
            body.truncate(body.len() / 2);
        }
        let absent = field(&head, "if-none-match") == Some("*");
        let (status, fields, answer) = change(&mut state, method, &path, query, body, absent);
        return if act == Act::Lost {
            Ok(())
        } else {
            send(status, &fields, answer.as_bytes(), answer.len())
        };
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

//! A plain HTTP client: one connection a request.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    /// The body came to its end.
    pub(crate) whole: bool,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The objects of a body of events.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut data: Vec<&str> = self.body.split("\n\n").filter(|e| !e.is_empty()).collect();
        assert_eq!(data.pop(), Some("data: [DONE]"), "{}", self.body);
        data.into_iter().map(|e| serde_json::from_str(e.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }
}

/// Sends a request and returns the connection.
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    send_with(address, method, path, "", body)
}

/// As [`send`], with further headers, each with its line end.
pub(crate) fn send_with(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n",
        body.len()
    );
    // The server may refuse a large body before it is out.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    stream
}

/// Reads an answer to its end.
pub(crate) fn receive(stream: TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "the connection ended in the head: {head}");
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = Vec::new();
    let mut whole = true;
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                whole = false;
                break;
            }
            let len = usize::from_str_radix(line.trim(), 16).unwrap();
            let mut chunk = vec![0; len + 2];
            reader.read_exact(&mut chunk).unwrap();
            body.extend_from_slice(&chunk[..len]);
            if len == 0 {
                break;
            }
        }
    } else {
        let _ = reader.read_to_end(&mut body);
    }
    Reply { status, head, body: String::from_utf8(body).unwrap(), whole }
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    receive(send(address, "POST", path, &body.to_string()))
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    receive(send(address, "GET", path, ""))
}

//! Moto, an S3 server that somebody else wrote (golden/requirements.txt), started for a test.

#![allow(dead_code, clippy::print_stdout)] // Each test program uses its part, and says what it leaves out.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server; it ends with the value.
pub(crate) struct Moto {
    child: Child,
    pub(crate) address: String,
}

impl Moto {
    /// Starts the server of the Python that `BESSEMER_PYTHON` names; `None`, with a word, where there is none. `allowed`: the
    /// requests that are answered before credentials are looked at.
    pub(crate) fn start(allowed: Option<u32>) -> Option<Moto> {
        let Some(python) = std::env::var_os("BESSEMER_PYTHON") else {
            println!("left out: BESSEMER_PYTHON names no Python with moto (golden/requirements.txt)");
            return None;
        };
        let known = Command::new(&python).args(["-c", "import moto.server, flask"]).output();
        if !known.is_ok_and(|output| output.status.success()) {
            println!("left out: no moto in {}", python.display());
            return None;
        }
        // Another process may take the port in between; then the test fails and is run again.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(&python);
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()]);
        command.env("INITIAL_NO_AUTH_ACTION_COUNT", allowed.map_or("inf".into(), |n| n.to_string()));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let moto = Moto { child, address: format!("http://127.0.0.1:{port}") };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "moto does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(moto)
    }

    /// Settings of a client with the credentials that moto takes from anybody.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", "testing"),
            ("AWS_SECRET_ACCESS_KEY", "testing"),
            ("AWS_ENDPOINT_URL", self.address.as_str()),
            ("AWS_REGION", "us-east-1"),
        ]
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .to_vec()
    }

    /// Makes a bucket, as its administrator does, without a signature.
    pub(crate) fn make_bucket(&self, name: &str) {
        use std::io::{Read, Write};
        let mut stream = TcpStream::connect(self.address.trim_start_matches("http://")).unwrap();
        let host = self.address.trim_start_matches("http://");
        let head =
            format!("PUT /{name} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // The server may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

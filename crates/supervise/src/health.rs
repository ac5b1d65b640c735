//! Two pages over HTTP for probes and scrapers: `/healthz` and `/metrics`.

use bessemer_http::{
    Bytes, Limits, Method, Request, Responder, Response, Server, StatusCode, header, response,
};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Time that a client has for its request, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Probes and scrapers at once.
const CLIENTS: usize = 16;

/// Content of the pages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HealthStatus {
    /// Nothing is wrong, or it is being mended: a probe must not interfere.
    pub healthy: bool,
    /// A sentence.
    pub text: String,
    /// Whether the processes of the run train.
    pub training: bool,
    /// Number of the launch.
    pub launches: u64,
    /// Steps done.
    pub step: Option<u64>,
    /// Newest step that was saved when a launch last ended.
    pub saved: Option<u64>,
    /// Restarts in a row without a newer saved step.
    pub restarts_in_a_row: u32,
}

/// A server of these pages. It serves until the process ends.
#[derive(Debug, Clone)]
pub struct HealthServer {
    status: Arc<Mutex<HealthStatus>>,
    address: SocketAddr,
}

impl HealthServer {
    /// Listens on `address` (`127.0.0.1:9400`; port 0 takes a free one), on a thread of its own.
    ///
    /// # Errors
    /// An address that is none or is taken.
    pub fn start(address: &str) -> io::Result<HealthServer> {
        let limits = Limits {
            body_bytes: 0,
            bodies_bytes: 0,
            connections: CLIENTS,
            arrival: PATIENCE,
            stall: PATIENCE,
            drain: PATIENCE,
        };
        let listening = Server::bind(address, limits)?;
        let server = HealthServer { status: Arc::default(), address: listening.address() };
        let status = Arc::clone(&server.status);
        let answer = move |request: Request<Bytes>, responder: Responder| {
            let status = status.lock().unwrap_or_else(PoisonError::into_inner).clone();
            // A probe that left needs no answer.
            let _ = responder.whole(page(request.method(), request.uri().path(), &status));
        };
        Builder::new().name("health".into()).spawn(move || {
            // Without an event queue of the system the pages are missing, and the run goes on.
            let _ = listening.serve(Arc::new(answer), &AtomicBool::new(false));
        })?;
        Ok(server)
    }

    /// Address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what the pages show.
    pub fn show(&self, status: HealthStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

fn page(method: &Method, path: &str, status: &HealthStatus) -> Response<Bytes> {
    let plain = |code, text: String| response(code, "text/plain; charset=utf-8", text);
    if method != Method::GET && method != Method::HEAD {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "wanted GET\n".into());
        refusal.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match path {
        "/healthz" if status.healthy => plain(StatusCode::OK, format!("{}\n", status.text)),
        "/healthz" => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", status.text)),
        "/metrics" => response(StatusCode::OK, "text/plain; version=0.0.4", metrics(status)),
        _ => plain(StatusCode::NOT_FOUND, "wanted /healthz or /metrics\n".into()),
    }
}

fn metrics(status: &HealthStatus) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: u64| {
        text += &format!(
            "# HELP bessemer_{name} {help}\n# TYPE bessemer_{name} gauge\nbessemer_{name} {value}\n"
        );
    };
    gauge("supervisor_healthy", "1 unless the run hangs or is given up.", u64::from(status.healthy));
    gauge("supervisor_training", "1 while the processes of the run train.", u64::from(status.training));
    gauge("supervisor_launches", "Launches since the supervisor began.", status.launches);
    let in_a_row = u64::from(status.restarts_in_a_row);
    gauge("supervisor_restarts_in_a_row", "Restarts since the newest saved step grew.", in_a_row);
    if let Some(step) = status.step {
        gauge("supervisor_step", "Optimizer steps done.", step);
    }
    if let Some(step) = status.saved {
        gauge("supervisor_saved_step", "Newest step that was saved when a launch last ended.", step);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn get(server: &HealthServer, request: &str) -> String {
        let mut client = TcpStream::connect(server.address()).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn pages_are_served_and_nothing_else() {
        let server = HealthServer::start("127.0.0.1:0").unwrap();
        let status = HealthStatus {
            healthy: true,
            text: "step 41".into(),
            training: true,
            launches: 2,
            step: Some(41),
            saved: Some(40),
            restarts_in_a_row: 1,
        };
        server.show(status.clone());
        let page = get(&server, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\nstep 41\n"), "{page}");
        let page = get(&server, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(page.contains("\nbessemer_supervisor_step 41\n"), "{page}");
        assert!(page.contains("\nbessemer_supervisor_launches 2\n"), "{page}");
        server.show(HealthStatus { healthy: false, ..status });
        assert!(get(&server, "HEAD /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 503 "));
        assert!(
            get(&server, "GET /etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .starts_with("HTTP/1.1 404 ")
        );
        assert!(
            get(&server, "POST /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .starts_with("HTTP/1.1 405 ")
        );
        // A page of another site whose name resolves to this machine.
        assert!(
            get(&server, "GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
                .starts_with("HTTP/1.1 421 ")
        );
        // A client that leaves in the middle and one that sends garbage cost nothing.
        drop(TcpStream::connect(server.address()).unwrap());
        assert!(get(&server, "\0\0\n\n").starts_with("HTTP/1.1 400 "));
    }
}

//! A client that blocks: one request and its whole answer over a connection of its own.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, Response, Uri, header};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// Port of `http` addresses without one.
const PORT: u16 = 80;

/// Bounds on what servers take.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientLimits {
    /// Time to connect.
    pub connect: Duration,
    /// Time from the request to the end of its answer.
    pub answer: Duration,
    /// Largest body of an answer, bytes.
    pub body_bytes: usize,
}

impl Default for ClientLimits {
    /// 10 s to connect, 10 minutes for the answer, 64 MiB.
    fn default() -> ClientLimits {
        ClientLimits {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(600),
            body_bytes: 64 << 20,
        }
    }
}

/// Sends requests. Several threads may do so at a time.
#[derive(Debug)]
pub struct Client {
    limits: ClientLimits,
    runtime: Runtime,
}

impl Client {
    /// A client.
    ///
    /// # Errors
    /// No event queue to be had from the system.
    pub fn new(limits: ClientLimits) -> io::Result<Client> {
        Ok(Client { limits, runtime: Builder::new_current_thread().enable_all().build()? })
    }

    /// Sends a request to its address, `http://HOST[:PORT]/PATH`, and returns the answer, whatever its status.
    ///
    /// # Errors
    /// Names the address: another scheme, nobody who answers there, an answer that is no HTTP, too large or too late.
    pub fn send(&self, request: Request<Bytes>) -> io::Result<Response<Bytes>> {
        let uri = request.uri().clone();
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{uri}: {e}"));
        let (host, port) = target(&uri).map_err(named)?;
        self.runtime.block_on(self.exchange(request, &host, port)).map_err(named)
    }

    async fn exchange(
        &self,
        mut request: Request<Bytes>,
        host: &str,
        port: u16,
    ) -> io::Result<Response<Bytes>> {
        let late = |what: &str, after: Duration| {
            io::Error::new(ErrorKind::TimedOut, format!("{what} within {} s", after.as_secs_f64()))
        };
        let stream = timeout(self.limits.connect, TcpStream::connect((host, port)))
            .await
            .map_err(|_| late("no connection", self.limits.connect))??;
        // A server reads a target without scheme and host.
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        *request.uri_mut() = path.parse().map_err(|_| unanswerable("wanted a path"))?;
        let authority = authority.parse().map_err(|_| unanswerable("wanted a host"))?;
        request.headers_mut().insert(header::HOST, authority);
        request.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        let answered = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
            let connection = tokio::spawn(connection);
            let answer = sender.send_request(request.map(Full::new)).await.map_err(broken)?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, self.limits.body_bytes).collect().await;
            let body = body.map_err(|e| match e.is::<http_body_util::LengthLimitError>() {
                true => {
                    unanswerable(&format!("wanted an answer of at most {} bytes", self.limits.body_bytes))
                }
                false => io::Error::new(ErrorKind::UnexpectedEof, format!("the answer broke off: {e}")),
            })?;
            connection.abort();
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        timeout(self.limits.answer, answered).await.map_err(|_| late("no answer", self.limits.answer))?
    }
}

fn unanswerable(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

/// An error of hyper with its cause, which its own words leave out.
fn broken(e: hyper::Error) -> io::Error {
    let cause = e.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    io::Error::new(ErrorKind::InvalidData, format!("no HTTP answer: {e}{cause}"))
}

/// Host and port of an address.
fn target(uri: &Uri) -> io::Result<(String, u16)> {
    let wrong = |found: &str| {
        io::Error::new(
            ErrorKind::InvalidInput,
            format!("wanted an address such as http://127.0.0.1:8080/v1, found {found}"),
        )
    };
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err(wrong(
                "https, which is not supported; run a TLS proxy on this machine and use its \
                              http:// address",
            ));
        }
        _ => return Err(wrong("an address that does not begin with http://")),
    }
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("no host"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_owned(), uri.port_u16().unwrap_or(PORT)))
}

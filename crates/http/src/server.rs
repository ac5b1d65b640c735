//! The server.

use crate::access::{Access, is_loopback};
use crate::answer::{AnswerBody, Responder};
use crate::body::{BodyPool, NoBody};
use crate::patient::{Lingering, PatientStream};
use crate::response;
use crate::waiting::{Answering, Connection, Connections, HeldBody};
use hyper::body::{Body, Bytes, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Time between two looks at the word to stop.
const STOP_POLL: Duration = Duration::from_millis(50);
/// Wait after an error of the listener, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for which a connection may wait for its client while others wait to be accepted.
const MAKES_WAY_AFTER: Duration = Duration::from_millis(500);
/// Largest head of a request, bytes.
const HEAD_BYTES: usize = 32 << 10;

/// Bounds on what clients take.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Largest body of a request, bytes. A larger one is answered with status 413.
    pub body_bytes: usize,
    /// Bytes that the bodies of all requests hold together, those that arrive and those in handlers, beyond 16 KiB of each. Further
    /// ones are answered with status 503.
    pub bodies_bytes: usize,
    /// Open connections, and with them threads of handlers. A further client takes the place of the connection that has waited longest
    /// for a request or the rest of one, from half a second on; where all are being answered it waits.
    pub connections: usize,
    /// Time for a request to arrive, its head and then its body, and for which an idle connection stays open.
    pub arrival: Duration,
    /// Time for which a client may read nothing while an answer waits for it.
    pub stall: Duration,
    /// Time for unfinished answers once the server was asked to stop.
    pub drain: Duration,
}

impl Default for Limits {
    /// Bodies of 16 MiB, 64 MiB together, 256 connections, 30 s to arrive, 30 s of stall, 1 s to drain.
    fn default() -> Limits {
        Limits {
            body_bytes: 16 << 20,
            bodies_bytes: 64 << 20,
            connections: 256,
            arrival: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            drain: Duration::from_secs(1),
        }
    }
}

/// Answers requests. Each call is on a thread of its own and may block.
pub trait Handler: Send + Sync {
    /// Answers through `responder`. A panic is answered with status 500.
    fn handle(&self, request: Request<Bytes>, responder: Responder);

    /// Refuses a request by its head, before anything of its body is read. None by default.
    fn refuse_head(&self, head: &Parts) -> Option<Response<Bytes>> {
        let _ = head;
        None
    }

    /// Answer of the server's own to a request at `path`: its host or origin is foreign, its body is too large, does not arrive, or its handler failed. `what` is a sentence without a line
    /// break. Plain text by default.
    fn refusal(&self, path: &str, status: StatusCode, what: &str) -> Response<Bytes> {
        let _ = path;
        response(status, "text/plain; charset=utf-8", format!("{what}\n"))
    }
}

impl<F: Fn(Request<Bytes>, Responder) + Send + Sync> Handler for F {
    fn handle(&self, request: Request<Bytes>, responder: Responder) {
        self(request, responder);
    }
}

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    limits: Limits,
    access: Access,
}

impl Server {
    /// Listens on `address` (`127.0.0.1:8080`; port 0 takes a free one).
    ///
    /// # Errors
    /// An address that is none or is taken.
    pub fn bind(address: &str, limits: Limits) -> io::Result<Server> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}"));
        let listener = TcpListener::bind(address).map_err(named)?;
        listener.set_nonblocking(true).map_err(named)?;
        let address = listener.local_addr().map_err(named)?;
        Ok(Server { listener, address, limits, access: Access::default() })
    }

    /// Takes requests for hosts and from origins beyond the server's own.
    #[must_use]
    pub fn with_access(self, access: Access) -> Server {
        Server { access, ..self }
    }

    /// Address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is true and unfinished answers are complete, or [`Limits::drain`] is over.
    ///
    /// # Errors
    /// No event queue or thread to be had from the system.
    pub fn serve(self, handler: Arc<dyn Handler>, stop: &AtomicBool) -> io::Result<()> {
        let runtime = runtime(&self.limits)?;
        runtime.block_on(self.accept(handler, stop))?;
        // A handler that is still at work sees that its client is gone; nobody waits for it.
        runtime.shutdown_background();
        Ok(())
    }

    async fn accept(self, handler: Arc<dyn Handler>, stop: &AtomicBool) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let front = Arc::new(Front {
            handler,
            access: self.access,
            loopback: is_loopback(self.address.ip()),
            bodies: BodyPool::new(self.limits.bodies_bytes),
            limits: self.limits.clone(),
        });
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let (connections, mut number) = (Arc::new(Connections::default()), 0);
        let graceful = GracefulShutdown::new();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.limits.arrival).max_buf_size(HEAD_BYTES);
        while !stop.load(Ordering::Relaxed) {
            let stream = match timeout(STOP_POLL, listener.accept()).await {
                Ok(Ok((stream, _))) => stream,
                Ok(Err(_)) => {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
                Err(_) => continue,
            };
            let Some(place) = place(&places, &connections, stop).await else { break };
            // Tokens of a streamed answer are small and must not wait for each other.
            let _ = stream.set_nodelay(true);
            let front = Arc::clone(&front);
            let unread = Arc::new(AtomicBool::new(false));
            let lingering = Lingering { unread: Arc::clone(&unread), time: self.limits.arrival };
            let io = TokioIo::new(PatientStream::new(stream, self.limits.stall, lingering));
            number += 1;
            let opened = Arc::new(connections.open(number));
            let service = service_fn(move |request| {
                let (front, unread, opened) = (Arc::clone(&front), Arc::clone(&unread), Arc::clone(&opened));
                async move { front.answer(request, &unread, &opened).await }
            });
            let connection = graceful.watch(http.serve_connection(io, service));
            let task = tokio::spawn(async move {
                // What a client does wrong is not ours to report.
                let _ = connection.await;
                drop(place);
            });
            connections.serve_by(number, task.abort_handle());
        }
        drop(listener);
        let _ = timeout(self.limits.drain, graceful.shutdown()).await;
        Ok(())
    }
}

/// A place for a client that was accepted; `None` once the server is asked to stop.
async fn place(
    places: &Arc<Semaphore>,
    connections: &Connections,
    stop: &AtomicBool,
) -> Option<OwnedSemaphorePermit> {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return Some(place);
        }
        connections.close_longest_waiting(MAKES_WAY_AFTER);
        if let Ok(Ok(place)) = timeout(STOP_POLL, Arc::clone(places).acquire_owned()).await {
            return Some(place);
        }
    }
    None
}

fn runtime(limits: &Limits) -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .thread_name("http")
        .max_blocking_threads(limits.connections)
        .build()
}

/// A handler with what stands before it.
struct Front {
    handler: Arc<dyn Handler>,
    access: Access,
    /// Whether only this machine reaches the server.
    loopback: bool,
    bodies: BodyPool,
    limits: Limits,
}

impl Front {
    /// The answer to one request: that of its handler, or the reason why it has none. `unread`: whether part of its body is left.
    async fn answer(
        &self,
        request: Request<Incoming>,
        unread: &AtomicBool,
        connection: &Arc<Connection>,
    ) -> Result<Response<HeldBody>, Infallible> {
        let (head, body) = request.into_parts();
        unread.store(!body.is_end_stream(), Ordering::Relaxed);
        let mut cors = self.access.cors(&head);
        let path = head.uri.path().to_owned();
        let mut answering: Option<Answering> = None;
        let mut answer = match self.refuse_head(&head, &body) {
            Some(refusal) => closing(refusal),
            None => match self.access.preflight(&head) {
                Some(headers) => {
                    cors = Some(headers);
                    closing(response(StatusCode::NO_CONTENT, "text/plain", Bytes::new()))
                }
                None => match self.bodies.read(body, &self.limits).await {
                    Err(cause) => closing(self.no_body(&path, cause)),
                    Ok(body) => {
                        unread.store(false, Ordering::Relaxed);
                        answering = Some(connection.answering());
                        self.handled(&path, Request::from_parts(head, body)).await
                    }
                },
            },
        };
        answer.headers_mut().extend(cors.unwrap_or_default());
        Ok(answer.map(|body| HeldBody { body, _answering: answering }))
    }

    /// The answer to a request that is refused by its head.
    fn refuse_head(&self, head: &Parts, body: &Incoming) -> Option<Response<Bytes>> {
        let has_body = !body.is_end_stream();
        if let Err(refused) = self.access.check(head, self.loopback, has_body) {
            return Some(self.handler.refusal(head.uri.path(), refused.status, &refused.what));
        }
        // A preflight carries no key.
        let preflight = self.access.preflight(head).is_some();
        self.handler.refuse_head(head).filter(|_| !preflight)
    }

    fn no_body(&self, path: &str, cause: NoBody) -> Response<Bytes> {
        let (status, what) = match cause {
            NoBody::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("wanted a body of at most {} bytes", self.limits.body_bytes),
            ),
            NoBody::NoRoom => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "the requests in progress take all of the {} bytes for bodies; try again in a moment",
                    self.limits.bodies_bytes
                ),
            ),
            NoBody::Late => (
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not arrive within {} s", self.limits.arrival.as_secs()),
            ),
            NoBody::Broken => (StatusCode::BAD_REQUEST, "the body did not arrive whole".to_owned()),
        };
        let mut refusal = self.handler.refusal(path, status, &what);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            refusal.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        refusal
    }

    async fn handled(&self, path: &str, request: Request<Bytes>) -> Response<AnswerBody> {
        let (sender, receiver) = oneshot::channel();
        let handler = Arc::clone(&self.handler);
        // Hyper drops this future when the client closes its connection, and with it the receiver: the handler sees it.
        spawn_blocking(move || handler.handle(request, Responder::new(sender)));
        receiver.await.unwrap_or_else(|_| {
            let what = "the handler failed before it answered";
            closing(self.handler.refusal(path, StatusCode::INTERNAL_SERVER_ERROR, what))
        })
    }
}

/// An answer of the server's own, after which the connection is closed: the rest of the request is not read.
fn closing(mut refusal: Response<Bytes>) -> Response<AnswerBody> {
    refusal.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    refusal.map(|bytes| AnswerBody::Whole(Some(bytes)))
}

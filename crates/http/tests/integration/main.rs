//! The server over real sockets.
#![allow(clippy::unwrap_used)]

use bessemer_http::{
    Access, Bytes, Client, ClientLimits, Limits, Request, Responder, Response, Server, StatusCode, response,
};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

struct Running {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(limits: Limits, handler: impl Fn(Request<Bytes>, Responder) + Send + Sync + 'static) -> Running {
        Running::with_access(limits, Access::default(), handler)
    }

    fn with_access(
        limits: Limits,
        access: Access,
        handler: impl Fn(Request<Bytes>, Responder) + Send + Sync + 'static,
    ) -> Running {
        let server = Server::bind("127.0.0.1:0", limits).unwrap().with_access(access);
        let (address, stop) = (server.address(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || server.serve(Arc::new(handler), &told).unwrap());
        Running { address, stop, thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        client
    }

    /// Sends `request` and reads until the server closes.
    fn ask(&self, request: &[u8]) -> String {
        let mut client = self.connect();
        client.write_all(request).unwrap();
        let mut answer = Vec::new();
        // A server that refuses a head before it has read it whole may reset the connection after its answer.
        let _ = client.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn finish(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Waits until `done`, and says what did not come.
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Answers with method, path and body.
fn echo(request: Request<Bytes>, responder: Responder) {
    let text = format!("{} {} {}", request.method(), request.uri(), request.body().len());
    let _ = responder.whole(response(StatusCode::OK, "text/plain; charset=utf-8", text));
}

#[test]
fn a_request_reaches_its_handler_and_connections_are_kept() {
    let server = Running::start(Limits::default(), echo);
    let mut client = server.connect();
    client.write_all(b"POST /a?b=c HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\nabc").unwrap();
    let mut first = String::new();
    while !first.ends_with("\r\n\r\nPOST /a?b=c 3") {
        let mut bytes = [0; 4096];
        let n = client.read(&mut bytes).unwrap();
        assert!(n > 0, "{first}");
        first += std::str::from_utf8(&bytes[..n]).unwrap();
    }
    assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
    assert!(first.to_lowercase().contains("content-type: text/plain; charset=utf-8\r\n"), "{first}");
    client.write_all(b"GET /again HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut rest = String::new();
    client.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("\r\n\r\nGET /again 0"), "{rest}");
    let head = server.ask(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n"), "no body: {head}");
}

#[test]
fn what_a_client_does_wrong_has_an_answer_and_costs_nobody_else_theirs() {
    let limits = Limits { body_bytes: 10, arrival: Duration::from_secs(2), ..Limits::default() };
    let server = Running::start(limits, |request, responder| {
        assert_ne!(request.uri().path(), "/panic", "asked for");
        if request.uri().path() != "/silent" {
            echo(request, responder);
        }
    });
    let large = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\nabcdefghijk";
    let answer = server.ask(large);
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("at most 10 bytes"), "{answer}");
    let chunked =
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nabcdefghijk\r\n0\r\n\r\n";
    assert!(server.ask(chunked).starts_with("HTTP/1.1 413 "));
    // Far more than the buffers of a connection hold: a client that writes all of it before it reads has its answer all the same.
    let mut larger = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 16777216\r\n\r\n".to_vec();
    larger.resize(larger.len() + (16 << 20), b'a');
    assert!(server.ask(&larger).starts_with("HTTP/1.1 413 "));
    let slow = server.ask(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nab");
    assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
    // Garbage, half a head, and a head without end.
    assert!(server.ask(b"\0\0\n\n").starts_with("HTTP/1.1 400 "));
    assert_eq!(server.ask(b"GET / HT"), "", "closed once its time is over");
    let mut endless = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
    // As much as the server reads: what it leaves unread would reset the connection, perhaps before its answer is read.
    endless.resize(32 << 10, b'a');
    assert!(server.ask(&endless).starts_with("HTTP/1.1 431 "));
    for path in ["panic", "silent"] {
        let answer = server
            .ask(format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 500 "), "{path}: {answer}");
    }
    let fine = server.ask(b"GET /fine HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(fine.ends_with("GET /fine 0"), "{fine}");
}

#[test]
fn a_body_in_pieces_arrives_as_it_is_made_and_one_broken_off_is_seen_as_such() {
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(waits);
    let server = Running::start(Limits::default(), move |request, responder| {
        let body = responder.stream(Response::new(())).unwrap();
        body.send("first ").unwrap();
        waits.lock().unwrap().recv().unwrap();
        if request.uri().path() == "/whole" {
            body.send("second").unwrap();
            body.finish().unwrap();
        }
    });
    for (path, rest) in [("whole", "6\r\nsecond\r\n0\r\n\r\n"), ("broken", "")] {
        let mut client = server.connect();
        let request = format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).unwrap();
        let mut had = Vec::new();
        let mut bytes = [0; 1024];
        while !had.ends_with(b"6\r\nfirst \r\n") {
            let n = client.read(&mut bytes).unwrap();
            assert!(n > 0, "{}", String::from_utf8_lossy(&had));
            had.extend_from_slice(&bytes[..n]);
        }
        go_on.send(()).unwrap();
        had.clear();
        client.read_to_end(&mut had).unwrap();
        assert_eq!(String::from_utf8_lossy(&had), rest, "a body that is {path}");
    }
}

#[test]
fn a_handler_learns_that_its_client_left_or_does_not_read() {
    let (left, unread) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (seen_left, seen_unread) = (Arc::clone(&left), Arc::clone(&unread));
    let begun = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&begun);
    let limits = Limits { stall: Duration::from_millis(200), ..Limits::default() };
    let server = Running::start(limits, move |request, responder| {
        if request.uri().path() == "/left" {
            inside.wait();
            wait_for("the client leaves", || responder.client_gone());
            seen_left.store(true, Ordering::Relaxed);
            return;
        }
        // More than the buffers of both sides hold: an endless body ends by the stall alone.
        let body = responder.stream(Response::new(())).unwrap();
        while body.send(vec![b'x'; 1 << 16]).is_ok() {}
        seen_unread.store(true, Ordering::Relaxed);
    });
    let mut leaves = server.connect();
    leaves.write_all(b"GET /left HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    // Who leaves before its handler runs may never get one.
    begun.wait();
    leaves.shutdown(Shutdown::Both).unwrap();
    drop(leaves);
    wait_for("the handler sees that the client left", || left.load(Ordering::Relaxed));
    let mut reads_nothing = server.connect();
    reads_nothing.write_all(b"GET /unread HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    wait_for("the handler sees that nobody reads", || unread.load(Ordering::Relaxed));
}

#[test]
fn connections_past_the_limit_wait_their_turn() {
    let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, top) = (Arc::clone(&at_once), Arc::clone(&most));
    let limits = Limits { connections: 3, ..Limits::default() };
    let server = Running::start(limits, move |request, responder| {
        top.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(10));
        now.fetch_sub(1, Ordering::SeqCst);
        echo(request, responder);
    });
    thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let answer = server.ask(b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                assert!(answer.ends_with("GET /x 0"), "{answer}");
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 3, "{most:?} at once");
}

/// Clients that send nothing, part of a head or part of a body take no places from others, and no answer is lost over that.
#[test]
fn slow_clients_make_way_for_others() {
    let limits = Limits { connections: 4, ..Limits::default() };
    let server = Running::start(limits, |request: Request<Bytes>, responder| {
        if request.uri().path() == "/slow" {
            thread::sleep(Duration::from_secs(3));
        }
        echo(request, responder);
    });
    let begun = Instant::now();
    let mut answered = server.connect();
    answered.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let beginnings: [&[u8]; 3] =
        [b"", b"GET / HTT", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf"];
    let slow: Vec<TcpStream> = (0..9)
        .map(|index| {
            let mut client = server.connect();
            client.write_all(beginnings[index % beginnings.len()]).unwrap();
            client
        })
        .collect();
    for _ in 0..6 {
        let answer = server.ask(b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(answer.ends_with("GET /x 0"), "{answer}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let mut answer = String::new();
    answered.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("GET /slow 0"), "{answer}");
    drop(slow);
}

#[test]
fn a_stop_lets_answers_finish_and_waits_for_nobody_for_ever() {
    let met = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&met);
    let limits = Limits { drain: Duration::from_secs(2), ..Limits::default() };
    let mut server = Running::start(limits, move |request, responder| {
        inside.wait();
        match request.uri().path() {
            "/short" => {
                thread::sleep(Duration::from_millis(100));
                echo(request, responder);
            }
            _ => wait_for("the server gives up", || responder.client_gone()),
        }
    });
    let mut short = server.connect();
    short.write_all(b"GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    met.wait();
    let mut endless = server.connect();
    endless.write_all(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    met.wait();
    server.finish();
    let mut answer = String::new();
    short.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("GET /short 0"), "{answer}");
    answer.clear();
    let _ = endless.read_to_string(&mut answer);
    assert_eq!(answer, "");
    assert!(TcpStream::connect(server.address).is_err(), "the port is free");
}

#[test]
fn a_stop_takes_less_than_two_seconds_whatever_clients_do() {
    let begun = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&begun);
    let mut server = Running::start(Limits::default(), move |_, responder| {
        let body = responder.stream(Response::new(())).unwrap();
        inside.wait();
        while body.send(vec![b'x'; 1 << 16]).is_ok() {}
    });
    let mut clients = [server.connect(), server.connect(), server.connect(), server.connect()];
    // Connected only; in the head; in the body; does not read.
    clients[1].write_all(b"GET / HT").unwrap();
    clients[2]
        .write_all(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nab")
        .unwrap();
    clients[3].write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    begun.wait();
    let asked = Instant::now();
    server.finish();
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

#[test]
fn foreign_pages_are_kept_out_and_allowed_origins_get_their_headers() {
    let access = Access { hosts: vec!["models.example".into()], origins: vec!["https://app.example".into()] };
    let server = Running::with_access(Limits::default(), access, echo);
    let send = |method: &str, headers: &str| {
        let body = if method == "POST" { "Content-Length: 2\r\n\r\n{}" } else { "\r\n" };
        server.ask(format!("{method} /x HTTP/1.1\r\nConnection: close\r\n{headers}{body}").as_bytes())
    };
    let json = "Content-Type: application/json\r\n";
    for (method, headers, status) in [
        ("GET", "Host: 127.0.0.1:9\r\n".to_owned(), 200),
        ("GET", "Host: models.example\r\n".into(), 200),
        ("GET", "Host: evil.example\r\n".into(), 421),
        ("GET", String::new(), 400),
        ("POST", format!("Host: localhost\r\n{json}"), 200),
        ("POST", format!("Host: evil.example\r\nOrigin: http://evil.example\r\n{json}"), 421),
        ("POST", format!("Host: localhost\r\nOrigin: http://evil.example\r\n{json}"), 403),
        ("POST", "Host: localhost\r\nContent-Type: text/plain\r\n".into(), 415),
        (
            "OPTIONS",
            "Host: localhost\r\nOrigin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n"
                .into(),
            200,
        ),
    ] {
        let answer = send(method, &headers);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {answer}");
        assert!(!answer.to_lowercase().contains("access-control"), "{answer}");
    }
    let allowed = "Host: localhost\r\nOrigin: https://app.example\r\n";
    let answer = send("POST", &format!("{allowed}{json}"));
    assert!(
        answer.starts_with("HTTP/1.1 200 ")
            && answer.contains("access-control-allow-origin: https://app.example"),
        "{answer}"
    );
    // Also a refusal, so that the page can show why.
    assert!(
        send("POST", &format!("{allowed}Content-Type: text/plain\r\n"))
            .contains("access-control-allow-origin")
    );
    let asks = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,content-type\r\n";
    let granted = send("OPTIONS", &format!("{allowed}{asks}"));
    assert!(granted.starts_with("HTTP/1.1 204 "), "{granted}");
    for header in [
        "allow-origin: https://app.example",
        "allow-headers: authorization,content-type",
        "allow-methods: GET, HEAD, POST",
    ] {
        assert!(granted.contains(&format!("access-control-{header}\r\n")), "{granted}");
    }
}

#[test]
fn bodies_in_progress_share_a_bound_and_slow_ones_leave_room_for_small_ones() {
    let limits = Limits { body_bytes: 1 << 20, bodies_bytes: 1 << 20, ..Limits::default() };
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(waits);
    let (begun, begins) = mpsc::channel::<()>();
    let server = Running::start(limits, move |request, responder| {
        if request.uri().path() == "/held" {
            begun.send(()).unwrap();
            waits.lock().unwrap().recv().unwrap();
        }
        echo(request, responder);
    });
    let request = |path: &str, len: usize| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        );
        [format!("{head}Content-Length: {len}\r\n\r\n").as_bytes(), &vec![b'a'; len]].concat()
    };
    let whole = |len: usize| server.ask(&request("/x", len));
    // Most of the bound is held by a request whose handler is at work.
    let mut held = server.connect();
    held.write_all(&request("/held", 900_000)).unwrap();
    begins.recv().unwrap();
    let refused = whole(200_000);
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("1048576 bytes"), "{refused}");
    assert!(refused.to_lowercase().contains("retry-after: 1\r\n"), "{refused}");
    // Small requests have room of their own.
    assert!(whole(16 << 10).ends_with("POST /x 16384"));
    go_on.send(()).unwrap();
    let mut answer = String::new();
    held.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("POST /held 900000"), "{answer}");
    wait_for("its bytes are free", || whole(1 << 20).ends_with("POST /x 1048576"));
    // The same of a client that stops before the end of its body. One that comes too late beside the other request is refused itself, and another tries.
    let mut slow = None;
    wait_for("a slow client holds its bytes", || {
        let client = slow.insert(server.connect());
        client.write_all(&request("/slow", 900_000)[..800_000]).unwrap();
        whole(600_000).starts_with("HTTP/1.1 503 ")
    });
    assert!(whole(16 << 10).ends_with("POST /x 16384"));
    drop(slow);
    wait_for("its bytes are free", || whole(1 << 20).ends_with("POST /x 1048576"));
}

#[test]
fn an_address_that_is_taken_or_none_is_an_error_that_names_it() {
    let taken = Server::bind("127.0.0.1:0", Limits::default()).unwrap();
    let address = taken.address().to_string();
    let error = Server::bind(&address, Limits::default()).unwrap_err().to_string();
    assert!(error.contains(&format!("cannot listen on {address}: ")), "{error}");
    assert!(Server::bind("nowhere", Limits::default()).is_err());
}

fn to(url: &str, body: &'static str) -> Request<Bytes> {
    Request::post(url)
        .header("X-Word", "kept")
        .header("Content-Type", "application/json")
        .body(Bytes::from_static(body.as_bytes()))
        .unwrap()
}

#[test]
fn the_client_gets_whole_answers_and_says_what_is_wrong_with_others() {
    let served = Running::start(Limits::default(), |request, responder| {
        let answer = match request.uri().path() {
            "/echo" => {
                let words = [request.headers()["x-word"].as_bytes(), b" ", request.body()].concat();
                response(StatusCode::OK, "text/plain", words)
            }
            "/large" => response(StatusCode::OK, "text/plain", vec![b'x'; 5000]),
            _ => response(StatusCode::TOO_MANY_REQUESTS, "text/plain", "later"),
        };
        let _ = responder.whole(answer);
    });
    let base = format!("http://{}", served.address);
    let limits = ClientLimits { body_bytes: 4999, ..ClientLimits::default() };
    let client = Client::new(limits).unwrap();
    let answer = client.send(to(&format!("{base}/echo?x=1"), "hello")).unwrap();
    assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::OK, &b"kept hello"[..]));
    let answer = client.send(to(&format!("{base}/other"), "")).unwrap();
    assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::TOO_MANY_REQUESTS, &b"later"[..]));
    let large = client.send(to(&format!("{base}/large"), "")).unwrap_err().to_string();
    assert!(large.contains("/large") && large.contains("at most 4999 bytes"), "{large}");
    // Threads share it.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert_eq!(client.send(to(&format!("{base}/echo"), "x")).unwrap().status(), StatusCode::OK);
            });
        }
    });
    for (url, part) in [
        ("https://127.0.0.1/v1", "run a TLS proxy"),
        ("/v1", "wanted an address such as http://"),
        ("ftp://x/", "wanted an address such as http://"),
    ] {
        let error = client.send(to(url, "")).unwrap_err().to_string();
        assert!(error.contains(url) && error.contains(part), "{error}");
    }
}

#[test]
fn the_client_gives_up_on_a_server_that_is_silent_or_breaks_off() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let limits = ClientLimits { answer: Duration::from_millis(200), ..ClientLimits::default() };
    let silent = Client::new(limits).unwrap().send(to(&url, "")).unwrap_err();
    assert!(silent.to_string().contains("no answer within 0.2 s"), "{silent}");
    for (sent, part) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "broke off"),
        ("no HTTP at all\r\n\r\n", "no HTTP answer"),
        ("", "no HTTP answer"),
    ] {
        let (listener, url) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), url.clone());
        let url =
            url.replace(&url["http://".len()..url.len() - 3], &listener.local_addr().unwrap().to_string());
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let _ = client.read(&mut head).unwrap();
            client.write_all(sent.as_bytes()).unwrap();
        });
        let error = Client::new(ClientLimits::default()).unwrap().send(to(&url, "")).unwrap_err().to_string();
        server.join().unwrap();
        assert!(error.contains(part), "{error}");
    }
}

//! HTTP/1.1 server for handlers that block, and a [`Client`] that blocks.
//!
//! Connections are tasks of one thread; each request that has arrived whole goes to a [`Handler`] on a thread of its own,
//! of which there are at most [`Limits::connections`]. A handler answers once ([`Responder::whole`]) or piece by piece
//! ([`Responder::stream`]), and learns from the [`Responder`] or from a failed write that its client is gone. What a
//! client can take from the server is bounded by [`Limits`]: bytes, connections and time. Pages of other sites that a
//! browser of this machine shows are kept out by [`Access`].
//!
//! No TLS and no HTTP/2: a server that is reached from outside stands behind a proxy that has both.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod access;
mod answer;
mod body;
mod client;
mod patient;
mod server;
mod waiting;

pub use access::Access;
pub use answer::{Gone, Responder, StreamedBody};
pub use client::{Client, ClientLimits};
pub use hyper::body::Bytes;
pub use hyper::http::request;
pub use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
pub use server::{Handler, Limits, Server};

/// An answer with a body of a content type.
pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

/// A page of HTML that holds its own styles and scripts: it loads nothing and reaches this server only, whatever stands in texts that it shows.
/// No other page can show it in a frame.
pub fn page(html: &'static str) -> Response<Bytes> {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                  frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    let mut page = response(StatusCode::OK, "text/html; charset=utf-8", html);
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy),
        // For browsers that do not know `frame-ancestors`.
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        page.headers_mut().insert(name, header::HeaderValue::from_static(value));
    }
    page
}

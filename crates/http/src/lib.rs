//! HTTP/1.1 server for handlers that block, and a [`Client`] that blocks.
//!
//! Connections are tasks of one thread; each request that has arrived whole goes to a [`Handler`] on a thread of its own,
//! of which there are at most [`Limits::connections`]. A handler answers once ([`Responder::whole`]) or piece by piece
//! ([`Responder::stream`]), and learns from the [`Responder`] or from a failed write that its client is gone. What a
//! client can take from the server is bounded by [`Limits`]: bytes, connections and time.
//!
//! No TLS and no HTTP/2: a server that is reached from outside stands behind a proxy that has both.

mod answer;
mod client;
mod patient;
mod server;

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
pub fn page(html: &'static str) -> Response<Bytes> {
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
    let mut page = response(StatusCode::OK, "text/html; charset=utf-8", html);
    page.headers_mut().insert(header::CONTENT_SECURITY_POLICY, header::HeaderValue::from_static(policy));
    page
}

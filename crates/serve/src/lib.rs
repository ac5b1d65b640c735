//! A model behind an interface that OpenAI's clients speak.
//!
//! - [`scheduler`]: continuous batching, without clock, thread or socket.
//! - [`engine`]: what it asks of a model, and a [`bessemer_runtime::Decoder`] that does it.
//! - [`request`]: requests read and checked, for one of the models that share the engine; [`chat`]: conversations as prompts, without their oldest turns if they are longer than the context.
//! - [`service`]: the bounded queue between connections and the scheduler.
//! - [`handler`]: paths; `/` is a chat page.
//!
//! The text of a request is a function of the request, its seed and the model: not of the other requests, the slots or the
//! threads.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod access_key;
mod answer;
mod body;
pub mod chat;
mod conversation;
pub mod engine;
pub mod error;
pub mod handler;
pub mod metrics;
mod prefixes;
pub mod request;
pub mod scheduler;
pub mod score;
pub mod service;

pub use access_key::AccessKey;
pub use engine::{Engine, ModelEngine};
pub use handler::ServeHandler;
pub use request::Model;
pub use service::Service;

use bessemer_http::{Limits, Server};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Answers requests at `server` until `stop` is true, then finishes the running requests within `drain`. The model runs on the
/// calling thread.
///
/// # Errors
/// No event queue or thread to be had from the system.
pub fn serve(
    server: Server,
    service: &Arc<Service>,
    engine: &mut dyn Engine,
    stop: &AtomicBool,
    drain: Duration,
) -> io::Result<()> {
    let handler = Arc::new(ServeHandler(Arc::clone(service)));
    thread::scope(|scope| {
        let connections = thread::Builder::new().name("connections".into()).spawn_scoped(scope, || {
            let served = server.serve(handler, stop);
            // Without connections there is nothing to run for.
            if served.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            served
        })?;
        service.run(engine, stop, drain);
        connections.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the connections failed")))
    })
}

/// Bounds of clients of a server with so many connections: bodies of 4 MiB, 16 MiB together, and `drain` once it stops.
pub fn limits(connections: usize, drain: Duration) -> Limits {
    // What the model gives up at the end of `drain` is reported to its clients.
    let drain = drain + Duration::from_millis(250);
    Limits { body_bytes: 4 << 20, bodies_bytes: 16 << 20, connections, drain, ..Limits::default() }
}

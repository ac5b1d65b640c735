//! A connection that fails when its client does not read for too long, and that is not reset under a client that still writes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// How a connection ends on which part of a request is not wanted. The system answers bytes that arrive after the end, or lie unread at it,
/// with a reset, at which the client loses the answer that it has not read: the rest is read and thrown away.
#[derive(Debug, Clone)]
pub(crate) struct Lingering {
    /// Whether part of a request is unread.
    pub(crate) unread: Arc<AtomicBool>,
    /// Longest time of reading it.
    pub(crate) time: Duration,
}

/// A TCP connection whose writes may wait for `patience` at most. Reads wait as long as hyper lets them.
pub(crate) struct PatientStream {
    stream: TcpStream,
    patience: Duration,
    /// End of the wait of a write that does not get on.
    until: Option<Pin<Box<Sleep>>>,
    lingering: Lingering,
    /// End of lingering, once it has begun.
    lingers_until: Option<Pin<Box<Sleep>>>,
}

impl PatientStream {
    pub(crate) fn new(stream: TcpStream, patience: Duration, lingering: Lingering) -> PatientStream {
        PatientStream { stream, patience, until: None, lingering, lingers_until: None }
    }

    /// Reads until the client has closed its side, the connection fails or the time is over.
    fn linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let time = self.lingering.time;
        let until = self.lingers_until.get_or_insert_with(|| Box::pin(sleep(time)));
        if until.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut thrown_away = [0; 16 << 10];
        loop {
            let mut buffer = ReadBuf::new(&mut thrown_away);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// What a write gave, or the error that the client does not read.
    fn bounded<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.until = None;
            return polled;
        }
        let patience = self.patience;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(patience)));
        match until.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for PatientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for PatientStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.bounded(context, polled)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(context);
        this.bounded(context, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.lingers_until.is_none() {
            let polled = Pin::new(&mut this.stream).poll_shutdown(context);
            match this.bounded(context, polled) {
                Poll::Ready(Ok(())) if this.lingering.unread.load(Ordering::Relaxed) => {}
                ended => return ended,
            }
        }
        this.linger(context).map(Ok)
    }
}

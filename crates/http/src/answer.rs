//! Answers of a handler.

use hyper::Response;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};

/// Pieces of a streamed body that wait for the connection; a handler that is ahead by more waits.
const PIECES_AHEAD: usize = 16;

/// The client closed its connection, did not read for too long, or the server shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client has disconnected")
    }
}

impl std::error::Error for Gone {}

/// Body of an answer: known whole, or received in pieces.
pub(crate) enum AnswerBody {
    Whole(Option<Bytes>),
    Pieces(mpsc::Receiver<Bytes>),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            AnswerBody::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            AnswerBody::Pieces(pieces) => match pieces.poll_recv(context) {
                Poll::Pending => Poll::Pending,
                // An empty piece is the word that the body is complete; without it the handler has failed, and the
                // client must not take what it has for the whole.
                Poll::Ready(Some(piece)) if piece.is_empty() => Poll::Ready(None),
                Poll::Ready(Some(piece)) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                Poll::Ready(None) => Poll::Ready(Some(Err(io::Error::other("the answer was broken off")))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AnswerBody::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            AnswerBody::Pieces(_) => SizeHint::default(),
        }
    }
}

/// The place of one answer. Dropped without an answer, the client gets status 500.
pub struct Responder {
    place: oneshot::Sender<Response<AnswerBody>>,
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("client_gone", &self.client_gone()).finish()
    }
}

impl Responder {
    pub(crate) fn new(place: oneshot::Sender<Response<AnswerBody>>) -> Responder {
        Responder { place }
    }

    /// True once nobody waits for the answer any more.
    pub fn client_gone(&self) -> bool {
        self.place.is_closed()
    }

    /// Answers at once, with `Content-Length`.
    ///
    /// # Errors
    /// The client is gone.
    pub fn whole(self, response: Response<Bytes>) -> Result<(), Gone> {
        self.place.send(response.map(|bytes| AnswerBody::Whole(Some(bytes)))).map_err(|_| Gone)
    }

    /// Answers with a head now and a body in pieces (`Transfer-Encoding: chunked`).
    ///
    /// # Errors
    /// The client is gone.
    pub fn stream(self, head: Response<()>) -> Result<StreamedBody, Gone> {
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        self.place.send(head.map(|()| AnswerBody::Pieces(receiver))).map_err(|_| Gone)?;
        Ok(StreamedBody { pieces: sender })
    }
}

/// A body that is sent piece by piece. Dropped before [`StreamedBody::finish`], the connection is broken off, so that the
/// client sees that something is missing.
#[derive(Debug)]
pub struct StreamedBody {
    pieces: mpsc::Sender<Bytes>,
}

impl StreamedBody {
    /// Sends a piece; waits while the client is slower than the handler. An empty piece sends nothing.
    ///
    /// # Errors
    /// The client is gone.
    pub fn send(&self, piece: impl Into<Bytes>) -> Result<(), Gone> {
        let piece = piece.into();
        match piece.is_empty() {
            true => Ok(()),
            false => self.pieces.blocking_send(piece).map_err(|_| Gone),
        }
    }

    /// True once nobody reads any more.
    pub fn client_gone(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Ends the body.
    ///
    /// # Errors
    /// The client is gone.
    pub fn finish(self) -> Result<(), Gone> {
        self.pieces.blocking_send(Bytes::new()).map_err(|_| Gone)
    }
}

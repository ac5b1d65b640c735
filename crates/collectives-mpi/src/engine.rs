//! The part of MPI that the progress thread uses, as a trait, so that everything above it is tested without MPI.

/// Lane of messages between a pair of ranks. Messages of one lane stay in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Lane of headers, short messages with their header, and heartbeats.
    Control,
    /// Lane of the contents of long messages, which a header announces.
    Payload,
}

/// A call that did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call}: {text}")]
pub(crate) struct Fault {
    /// Name of the call.
    pub(crate) call: &'static str,
    /// Message of the call.
    pub(crate) text: String,
}

/// Progress of an incoming message.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Nothing more has arrived.
    Nothing,
    /// A piece of the message has arrived.
    Piece,
    /// The whole message has arrived.
    Whole(Vec<u8>),
}

/// Point-to-point messages. Nothing blocks except `finalize`.
pub(crate) trait Engine {
    /// An outgoing message, with its memory.
    type Outgoing;
    /// An incoming message, with its memory.
    type Incoming;

    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    fn host(&self) -> String;
    fn library(&self) -> String;

    /// Starts to send a message. On the payload lane the message before it to the same rank must have been handed over.
    fn send(&mut self, to: usize, lane: Lane, message: Vec<u8>) -> Result<Self::Outgoing, Fault>;

    /// Returns the message's memory once the engine no longer needs it.
    fn poll_send(&mut self, out: &mut Self::Outgoing) -> Result<Option<Vec<u8>>, Fault>;

    /// True once the engine has the whole message, so that the next one cannot overtake it.
    fn handed_over(out: &Self::Outgoing) -> bool;

    /// Returns sender and length of the next control message that is not being received yet.
    fn probe(&mut self) -> Result<Option<(usize, usize)>, Fault>;

    /// Starts to receive a message of the buffer's length.
    fn receive(&mut self, from: usize, lane: Lane, buffer: Vec<u8>) -> Result<Self::Incoming, Fault>;

    fn poll_receive(&mut self, into: &mut Self::Incoming) -> Result<Arrival, Fault>;

    /// Ends the engine. Every rank calls this; it may block for ever if one does not.
    fn finalize(self) -> Result<(), Fault>;
}

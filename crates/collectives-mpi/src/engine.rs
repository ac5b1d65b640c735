//! What the courier needs of MPI. A trait, so that everything above it is tested without MPI.

/// Two streams of messages between each pair of ranks, each in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Small ones: headers, short messages with their header, signs of life.
    Control,
    /// Contents of long messages, announced by their header.
    Payload,
}

/// A call that did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call}: {text}")]
pub(crate) struct Fault {
    /// Which.
    pub(crate) call: &'static str,
    /// What it said.
    pub(crate) text: String,
}

/// State of a message on its way in.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Nothing new.
    Nothing,
    /// Some of it came.
    Piece,
    /// All of it.
    Whole(Vec<u8>),
}

/// Point-to-point messages. Nothing blocks except `finalize`.
pub(crate) trait Engine {
    /// A message on its way out; owns its memory.
    type Outgoing;
    /// A message on its way in; owns its memory.
    type Incoming;

    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    fn host(&self) -> String;
    fn library(&self) -> String;

    /// Starts a message. On the payload lane the one before to the same rank must have been handed over.
    fn send(&mut self, to: usize, lane: Lane, message: Vec<u8>) -> Result<Self::Outgoing, Fault>;

    /// Gives the memory back when the engine no longer needs it.
    fn poll_send(&mut self, out: &mut Self::Outgoing) -> Result<Option<Vec<u8>>, Fault>;

    /// True once the engine has all of it, so that the next one can follow without overtaking it.
    fn handed_over(out: &Self::Outgoing) -> bool;

    /// Sender and length of the next control message that is not being received yet.
    fn probe(&mut self) -> Result<Option<(usize, usize)>, Fault>;

    /// Starts to receive a message of the buffer's length.
    fn receive(&mut self, from: usize, lane: Lane, buffer: Vec<u8>) -> Result<Self::Incoming, Fault>;

    fn poll_receive(&mut self, into: &mut Self::Incoming) -> Result<Arrival, Fault>;

    /// Ends the engine; every rank does. May block for ever if one does not.
    fn finalize(self) -> Result<(), Fault>;
}

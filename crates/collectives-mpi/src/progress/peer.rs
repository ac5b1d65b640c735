//! State of the connection to another rank.

use crate::engine::Engine;
use bessemer_supervise::ProcessIdentity;
use std::collections::VecDeque;
use std::time::Instant;

/// A message that another rank has announced.
pub(super) struct Due<E: Engine> {
    pub(super) channel: u32,
    pub(super) number: u64,
    /// Contents, once `incoming` is empty.
    pub(super) body: Vec<u8>,
    /// Long message that is still arriving.
    pub(super) incoming: Option<E::Incoming>,
}

pub(super) struct Peer<E: Engine> {
    /// ProcessIdentity of the rank, once it has said hello.
    pub(super) who: Option<ProcessIdentity>,
    /// Time of its last message.
    pub(super) heard: Instant,
    /// Time of the last heartbeat to it.
    pub(super) beaten: Instant,
    /// Long messages that wait for earlier ones.
    pub(super) payloads: VecDeque<Vec<u8>>,
    /// Long messages that the engine sends.
    pub(super) sending: VecDeque<E::Outgoing>,
    pub(super) small: VecDeque<E::Outgoing>,
    /// Number of the next message to it; `received`: of the next one from it.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) control: VecDeque<E::Incoming>,
    /// Announced messages, in the order in which they were sent.
    pub(super) due: VecDeque<Due<E>>,
    /// The rank sends nothing more.
    pub(super) done: bool,
    /// Threads that wait for its messages know that it sends nothing more.
    pub(super) reported: bool,
    /// The rank has sent its last message; its end is no error.
    pub(super) left: bool,
    /// The process of the rank did not exist at the last look.
    pub(super) gone: bool,
    /// The rank has been given up.
    pub(super) lost: bool,
}

impl<E: Engine> Peer<E> {
    pub(super) fn new(now: Instant) -> Peer<E> {
        Peer {
            who: None,
            heard: now,
            beaten: now,
            payloads: VecDeque::new(),
            sending: VecDeque::new(),
            small: VecDeque::new(),
            sent: 0,
            received: 0,
            control: VecDeque::new(),
            due: VecDeque::new(),
            done: false,
            reported: false,
            left: false,
            gone: false,
            lost: false,
        }
    }

    /// Name for messages: "rank 2 (host a, pid 17)".
    pub(super) fn name(&self, rank: usize) -> String {
        match &self.who {
            Some(who) => format!("rank {rank} ({who})"),
            None => format!("rank {rank}"),
        }
    }
}

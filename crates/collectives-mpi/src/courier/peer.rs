//! What the courier knows of another rank.

use crate::engine::Engine;
use crate::life::Identity;
use std::collections::VecDeque;
use std::time::Instant;

/// A message that another rank has announced.
pub(super) struct Due<E: Engine> {
    pub(super) channel: u32,
    pub(super) number: u64,
    /// Its contents, once `incoming` is empty.
    pub(super) body: Vec<u8>,
    /// A long message that is still on its way.
    pub(super) incoming: Option<E::Incoming>,
}

pub(super) struct Peer<E: Engine> {
    /// Who it is, once it has said so.
    pub(super) who: Option<Identity>,
    /// Last sign of life.
    pub(super) heard: Instant,
    /// When it was last sent one.
    pub(super) beaten: Instant,
    /// Long messages that wait for those before them.
    pub(super) payloads: VecDeque<Vec<u8>>,
    /// Long messages on their way.
    pub(super) sending: VecDeque<E::Outgoing>,
    pub(super) small: VecDeque<E::Outgoing>,
    /// Numbers of the next messages.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) control: VecDeque<E::Incoming>,
    /// Messages in the order in which they were sent.
    pub(super) due: VecDeque<Due<E>>,
    /// It has nothing more to say.
    pub(super) done: bool,
    /// That is known to who waits for its messages.
    pub(super) told: bool,
    /// It has said its last word; what happens to it is no news.
    pub(super) left: bool,
    /// Its process was not there when last looked for.
    pub(super) gone: bool,
    /// It has been given up.
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
            told: false,
            left: false,
            gone: false,
            lost: false,
        }
    }

    /// "rank 2 (host a, pid 17)".
    pub(super) fn name(&self, rank: usize) -> String {
        match &self.who {
            Some(who) => format!("rank {rank} ({who})"),
            None => format!("rank {rank}"),
        }
    }
}

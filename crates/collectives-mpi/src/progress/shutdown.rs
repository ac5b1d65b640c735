//! Shutdown: every rank announces that it sends nothing more, then that it has heard so from all others.

use super::ProgressThread;
use super::peer::Peer;
use crate::engine::Engine;
use crate::wire::ControlKind;
use std::time::{Duration, Instant};

/// Time for the last messages when the world is given up.
const FLUSH: Duration = Duration::from_secs(1);

/// Progress of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// The world is in use.
    No,
    /// Shutdown was asked for; messages are still being sent.
    Asked,
    /// `Done` was sent to all.
    Done,
    /// `Leave` was sent to all.
    Leave,
    /// All others were notified that this rank gives up.
    GivenUp(Instant),
}

impl<E: Engine> ProgressThread<E> {
    /// Advances the shutdown. Returns `Ok` if MPI is to be finalised, `Err` if it is to be left as it is.
    pub(super) fn step_out(&mut self, now: Instant) -> Option<Result<(), ()>> {
        let sent = |p: &Peer<E>| p.payloads.is_empty() && p.sending.is_empty() && p.small.is_empty();
        let others = self.others();
        match self.exit {
            Exit::No => None,
            Exit::GivenUp(since) => {
                let said = others.map(|r| &self.peers[r]).all(|p| p.lost || p.left || p.small.is_empty());
                (said || now.duration_since(since) > FLUSH).then_some(Err(()))
            }
            Exit::Asked | Exit::Done | Exit::Leave if self.broken => None,
            Exit::Asked => {
                if others.map(|r| &self.peers[r]).all(sent) {
                    self.exit = Exit::Done;
                    self.exchange.lock().done[self.engine.rank()] = true;
                    self.exchange.announce();
                    for rank in self.others() {
                        self.notify(rank, ControlKind::Done, &[]);
                    }
                }
                None
            }
            Exit::Done => {
                if others.map(|r| &self.peers[r]).all(|p| p.done && sent(p)) {
                    self.exit = Exit::Leave;
                    for rank in self.others() {
                        self.notify(rank, ControlKind::Leave, &[]);
                    }
                }
                None
            }
            Exit::Leave => {
                let over = |p: &Peer<E>| p.left && sent(p) && p.due.is_empty() && p.control.is_empty();
                others.map(|r| &self.peers[r]).all(over).then_some(Ok(()))
            }
        }
    }
}

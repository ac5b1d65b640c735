//! Heartbeats: sending them, and giving up ranks without one.

use super::ProgressThread;
use crate::engine::Engine;
use crate::wire::ControlKind;
use bessemer_supervise::ProcessState;
use std::time::{Duration, Instant};

/// Longest time between heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// Time between two looks at the processes on this host.
const LOOK: Duration = Duration::from_millis(200);
/// Pause of this thread after which the silence of the others means nothing.
const PAUSE: Duration = Duration::from_secs(1);

impl<E: Engine> ProgressThread<E> {
    /// Sends heartbeats, and gives up ranks that send none.
    pub(super) fn watch(&mut self, now: Instant) {
        let pause = now.duration_since(std::mem::replace(&mut self.looked, now));
        if pause > PAUSE {
            // This process was stopped, or got no processor: what the others sent meanwhile has not been looked at.
            for peer in &mut self.peers {
                peer.heard += pause;
            }
        }
        let every = BEAT.min(self.silence / 4);
        for rank in self.others() {
            let peer = &self.peers[rank];
            if !peer.lost && !peer.left && now.saturating_duration_since(peer.beaten) >= every {
                self.peers[rank].beaten = now;
                // Those before it have not left: another would only queue up behind them.
                if self.peers[rank].small.len() < 2 && self.exit != super::Exit::Leave {
                    self.notify(rank, ControlKind::Beat, &[]);
                }
            }
        }
        if !self.broken && now.duration_since(self.checked) >= LOOK.min(self.silence / 8) {
            self.checked = now;
            self.check_peers(now);
        }
    }

    fn check_peers(&mut self, now: Instant) {
        let alive: Vec<usize> = self
            .others()
            .filter(|r| !self.peers[*r].lost && !self.peers[*r].left && self.peers[*r].who.is_some())
            .collect();
        let silent = |s: &Self, rank: usize| now.saturating_duration_since(s.peers[rank].heard);
        for &rank in &alive {
            let process = self.process(rank);
            if process == ProcessState::Gone {
                // Its last message may still be in flight, and would say more.
                if std::mem::replace(&mut self.peers[rank].gone, true) {
                    return self.lose(rank, "its process has ended");
                }
                continue;
            }
            if silent(self, rank) <= self.silence {
                continue;
            }
            let mut problem = format!("no message from it for {:.1} s", silent(self, rank).as_secs_f64());
            if process == ProcessState::Stopped {
                problem += "; its process is stopped (by SIGSTOP, a terminal or a debugger)";
            }
            let also: Vec<usize> =
                alive.iter().copied().filter(|r| *r != rank && silent(self, *r) > self.silence / 2).collect();
            if !also.is_empty() {
                let names: Vec<String> = also.iter().map(|r| self.peers[*r].name(*r)).collect();
                problem += &format!("; nor lately from {}", names.join(", "));
                if also.len() + 2 == self.peers.len() {
                    problem += &format!(
                        ". It may be this rank that is cut off: rank {} ({})",
                        self.engine.rank(),
                        self.own
                    );
                }
            }
            return self.lose(rank, &problem);
        }
    }

    fn process(&self, rank: usize) -> ProcessState {
        self.peers[rank].who.as_ref().map_or(ProcessState::Unknown, |who| who.state(&self.own))
    }
}

//! Transfers that share the ports of ranks, as fluids: each goes on at one over the number of transfers on its busiest port.

use super::events::Medium;
use std::collections::{BTreeMap, HashMap};

/// A direction of a rank's port to a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Port {
    pub(super) rank: usize,
    pub(super) medium: Medium,
    /// Into the rank, or out of it.
    pub(super) inward: bool,
}

/// A transfer in flight.
#[derive(Debug)]
struct Active {
    ports: Vec<Port>,
    /// Seconds that it would still take alone, at `since`.
    remaining: f64,
    since: f64,
    /// Seconds of work in a second.
    rate: f64,
}

impl Active {
    fn end(&self) -> f64 {
        self.since + self.remaining / self.rate
    }
}

/// Transfers in flight, by the channel that carries them one at a time.
#[derive(Debug, Default)]
pub(super) struct SharedPorts {
    active: BTreeMap<usize, Active>,
    loads: HashMap<Port, usize>,
    next: Option<(f64, usize)>,
}

impl SharedPorts {
    /// When the next transfer ends, and on which channel.
    pub(super) fn next(&self) -> Option<(f64, usize)> {
        self.next
    }

    /// Whether a channel is busy.
    pub(super) fn busy(&self, channel: usize) -> bool {
        self.active.contains_key(&channel)
    }

    /// Begins a transfer that takes `seconds` where nothing else uses its ports.
    pub(super) fn begin(&mut self, channel: usize, now: f64, seconds: f64, ports: Vec<Port>) {
        for port in &ports {
            *self.loads.entry(*port).or_default() += 1;
        }
        self.active.insert(channel, Active { ports, remaining: seconds, since: now, rate: 1.0 });
        self.settle(now);
    }

    /// Ends the transfer of a channel.
    pub(super) fn end(&mut self, channel: usize, now: f64) {
        for port in self.active.remove(&channel).into_iter().flat_map(|done| done.ports) {
            if let Some(load) = self.loads.get_mut(&port) {
                *load -= 1;
            }
        }
        self.settle(now);
    }

    /// Gives every transfer its rate from now on. One whose rate stays keeps its end to the bit.
    fn settle(&mut self, now: f64) {
        self.next = None;
        for (channel, active) in &mut self.active {
            let load = active.ports.iter().filter_map(|port| self.loads.get(port)).max();
            let rate = 1.0 / load.copied().unwrap_or(1).max(1) as f64;
            if rate != active.rate {
                active.remaining = (active.remaining - (now - active.since) * active.rate).max(0.0);
                (active.since, active.rate) = (now, rate);
            }
            let end = active.end();
            if self.next.is_none_or(|(first, _)| end < first) {
                self.next = Some((end, *channel));
            }
        }
    }
}

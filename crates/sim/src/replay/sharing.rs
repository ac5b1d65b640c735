//! Transfers that share the ports of ranks, as fluids: each goes on at one over the number of transfers on its busiest port.

use super::events::Medium;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// A direction of a rank's port to a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Port {
    pub(super) rank: usize,
    pub(super) medium: Medium,
    /// Into the rank, or out of it.
    pub(super) inward: bool,
}

impl Port {
    /// Position in a list of all ports.
    fn index(self) -> usize {
        6 * self.rank + 2 * self.medium as usize + usize::from(self.inward)
    }
}

/// A transfer in flight.
#[derive(Debug)]
struct Active {
    ports: Rc<[usize]>,
    /// Seconds that it would still take alone, at `since`.
    remaining: f64,
    since: f64,
    /// Seconds of work in a second.
    rate: f64,
    /// Number of its entry among the ends; earlier entries are void.
    entry: u64,
}

/// When a transfer ends, as long as its rate stays.
#[derive(Debug, PartialEq)]
struct End {
    at: f64,
    channel: usize,
    entry: u64,
}

impl Eq for End {}

impl Ord for End {
    /// The greatest of a heap is the earliest, of several the first channel.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.channel.cmp(&self.channel)).then(other.entry.cmp(&self.entry))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Transfers in flight, by the channel that carries them one at a time.
#[derive(Debug, Default)]
pub(super) struct SharedPorts {
    active: Vec<Option<Active>>,
    /// Channels of the transfers, by port.
    on_port: Vec<Vec<usize>>,
    ends: BinaryHeap<End>,
    entries: u64,
}

impl SharedPorts {
    /// The ports as positions in the list of all.
    pub(super) fn ports(&mut self, of: impl Iterator<Item = Port>) -> Rc<[usize]> {
        let ports: Rc<[usize]> = of.map(Port::index).collect();
        let all = ports.iter().map(|port| port + 1).max().unwrap_or(0);
        self.on_port.resize(self.on_port.len().max(all), Vec::new());
        ports
    }

    /// When the next transfer ends, and on which channel.
    pub(super) fn next(&self) -> Option<(f64, usize)> {
        self.ends.peek().map(|end| (end.at, end.channel))
    }

    /// Whether a channel is busy.
    pub(super) fn busy(&self, channel: usize) -> bool {
        self.active.get(channel).is_some_and(Option::is_some)
    }

    /// Begins a transfer that takes `seconds` where nothing else uses its ports.
    pub(super) fn begin(&mut self, channel: usize, now: f64, seconds: f64, ports: Rc<[usize]>) {
        ports.iter().for_each(|port| self.on_port[*port].push(channel));
        self.active.resize_with(self.active.len().max(channel + 1), || None);
        // No rate is 0: its end is found below.
        let active = Active { ports: Rc::clone(&ports), remaining: seconds, since: now, rate: 0.0, entry: 0 };
        self.active[channel] = Some(active);
        self.settle(channel, now);
        self.settle_beside(&ports, now);
    }

    /// Ends the transfer of a channel.
    pub(super) fn end(&mut self, channel: usize, now: f64) {
        let Some(done) = self.active.get_mut(channel).and_then(Option::take) else { return };
        for port in &*done.ports {
            let channels = &mut self.on_port[*port];
            if let Some(at) = channels.iter().position(|other| *other == channel) {
                channels.swap_remove(at);
            }
        }
        self.settle_beside(&done.ports, now);
    }

    /// Gives every transfer on these ports its rate from now on.
    fn settle_beside(&mut self, ports: &[usize], now: f64) {
        for port in ports {
            for at in 0..self.on_port[*port].len() {
                self.settle(self.on_port[*port][at], now);
            }
        }
        // The first of the ends holds.
        while self.ends.peek().is_some_and(|end| !self.holds(end)) {
            self.ends.pop();
        }
    }

    fn holds(&self, end: &End) -> bool {
        self.active[end.channel].as_ref().is_some_and(|active| active.entry == end.entry)
    }

    /// Gives a transfer its rate from now on. One whose rate stays keeps its end to the bit.
    fn settle(&mut self, channel: usize, now: f64) {
        let Some(active) = &mut self.active[channel] else { return };
        let load = active.ports.iter().map(|port| self.on_port[*port].len()).max();
        let rate = 1.0 / load.unwrap_or(1).max(1) as f64;
        if rate != active.rate {
            active.remaining = (active.remaining - (now - active.since) * active.rate).max(0.0);
            (active.since, active.rate) = (now, rate);
            self.entries += 1;
            active.entry = self.entries;
            let at = active.since + active.remaining / active.rate;
            self.ends.push(End { at, channel, entry: active.entry });
        }
    }
}

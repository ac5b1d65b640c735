//! Rail-only networks (Wang et al. 2023, arXiv 2307.12169): the devices with the same local rank, one of each fast domain, have
//! a Clos network of their own, and nothing else joins domains.
//!
//! K separate networks of N/K hosts need fewer levels than one of N. From one rail to another a message passes through a
//! fast domain, at the sender or at the receiver.

use super::{Clos, End};

/// A separate Clos network for each local rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RailOnly {
    rails: u32,
    rail: Clos,
}

impl RailOnly {
    /// `rails` copies of a network that has a host for each node.
    pub fn new(rails: u32, rail: Clos) -> RailOnly {
        RailOnly { rails, rail }
    }

    /// Number of rails, K.
    pub fn rails(&self) -> u32 {
        self.rails
    }

    /// The network of one rail.
    pub fn rail(&self) -> &Clos {
        &self.rail
    }

    /// Switches of all rails.
    pub fn switches(&self) -> u32 {
        self.rails * self.rail.switches()
    }

    /// Cables of all rails.
    pub fn cables(&self) -> u64 {
        u64::from(self.rails) * self.rail.cables()
    }

    /// Links of the longest minimal path: that of a rail, and two through a fast domain.
    pub fn diameter(&self) -> u32 {
        match (self.rail.diameter(), self.rails) {
            (0, 1) => 0,
            (rail, 1) => rail,
            (rail, _) => rail + 2,
        }
    }

    /// Cables between halves of the nodes: those of every rail.
    pub fn bisection(&self) -> u64 {
        u64::from(self.rails) * self.rail.bisection()
    }

    /// Leaf of a host.
    pub fn leaf(&self, host: u32) -> u32 {
        host % self.rails * self.rail.switches() + self.rail.leaf(host / self.rails)
    }

    /// Rail of a switch.
    pub fn rail_of(&self, switch: u32) -> u32 {
        switch / self.rail.switches()
    }

    /// Links from a switch to a host of the same rail.
    pub fn distance(&self, switch: u32, host: u32) -> Option<u32> {
        (self.rail_of(switch) == host % self.rails)
            .then(|| self.rail.distance(switch % self.rail.switches(), host / self.rails))
    }

    pub(crate) fn in_first_half(&self, end: End) -> bool {
        self.rail.in_first_half(match end {
            End::Host(host) => End::Host(host / self.rails),
            End::Switch(switch) => End::Switch(switch % self.rail.switches()),
        })
    }

    pub(crate) fn emit_cables(&self, emit: &mut dyn FnMut(End, End)) {
        for rail in 0..self.rails {
            let own = |end| match end {
                End::Host(node) => End::Host(node * self.rails + rail),
                End::Switch(switch) => End::Switch(rail * self.rail.switches() + switch),
            };
            self.rail.emit_cables(&mut |a, b| emit(own(a), own(b)));
        }
    }
}

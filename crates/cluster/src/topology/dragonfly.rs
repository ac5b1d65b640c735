//! Dragonfly (Kim, Dally, Scott and Abts, ISCA 2008).
//!
//! A router has p hosts, a - 1 cables to the other routers of its group and h global cables. There are g = a h + 1 groups, one
//! global cable between any two: N = a p (a h + 1) hosts, a h (a h + 1)/2 global cables, radix p + a - 1 + h. Balanced:
//! a = 2p = 2h, then N = 4h^4 + 2h^2. The global port q of group i leads to group i + q + 1 (mod g). A minimal path has one
//! global cable, with at most one local cable before and one after.

use super::{End, MOST_HOSTS};
use crate::ClusterError;

/// A dragonfly network.
#[derive(Debug, Clone, PartialEq)]
pub struct Dragonfly {
    hosts_per_router: u32,
    routers_per_group: u32,
    globals_per_router: u32,
}

impl Dragonfly {
    /// The network with p hosts, a routers a group and h global cables a router.
    ///
    /// # Errors
    /// A value of 0, or more hosts than can be numbered.
    pub fn new(p: u32, a: u32, h: u32) -> Result<Dragonfly, ClusterError> {
        let (p64, a64, h64) = (u64::from(p), u64::from(a), u64::from(h));
        let hosts = a64.checked_mul(h64).and_then(|n| a64.checked_mul(p64)?.checked_mul(n + 1));
        match hosts {
            Some(1..=MOST_HOSTS) if p > 0 && h > 0 => {
                Ok(Dragonfly { hosts_per_router: p, routers_per_group: a, globals_per_router: h })
            }
            _ => Err(ClusterError::value(
                "network.p, a, h",
                format!("each 1 or more, and at most {MOST_HOSTS} hosts a p (a h + 1)"),
                format!("p = {p}, a = {a}, h = {h}"),
                "balanced is a = 2p = 2h: p = 4, a = 8, h = 4 has 1056 hosts",
            )),
        }
    }

    /// Groups, a h + 1.
    pub fn groups(&self) -> u32 {
        self.routers_per_group * self.globals_per_router + 1
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u32 {
        self.routers() * self.hosts_per_router
    }

    /// Number of routers.
    pub fn routers(&self) -> u32 {
        self.routers_per_group * self.groups()
    }

    /// Ports of a router.
    pub fn radix(&self) -> u32 {
        self.hosts_per_router + self.routers_per_group - 1 + self.globals_per_router
    }

    /// Cables between groups.
    pub fn global_cables(&self) -> u64 {
        u64::from(self.groups()) * u64::from(self.groups() - 1) / 2
    }

    /// All cables: of hosts, inside groups, between groups.
    pub fn cables(&self) -> u64 {
        let a = u64::from(self.routers_per_group);
        u64::from(self.hosts()) + u64::from(self.groups()) * a * (a - 1) / 2 + self.global_cables()
    }

    /// Links of the longest minimal path: host, local, global, local, host.
    pub fn diameter(&self) -> u32 {
        if self.routers_per_group > 1 { 5 } else { 3 }
    }

    /// Global cables between two halves of the groups.
    pub fn bisection(&self) -> u64 {
        let g = u64::from(self.groups());
        (g / 2) * (g - g / 2)
    }

    /// Router of a host.
    pub fn router(&self, host: u32) -> u32 {
        host / self.hosts_per_router
    }

    /// Group of a router.
    pub fn group(&self, router: u32) -> u32 {
        router / self.routers_per_group
    }

    /// Routers at the two ends of the global cable from one group to another.
    fn gateway(&self, from: u32, to: u32) -> [u32; 2] {
        let g = self.groups();
        let port = (to + g - from - 1) % g;
        let back = g - 2 - port;
        [
            from * self.routers_per_group + port / self.globals_per_router,
            to * self.routers_per_group + back / self.globals_per_router,
        ]
    }

    /// Router of a group at which the cable from another group ends.
    pub(crate) fn entry(&self, from: u32, to: u32) -> u32 {
        self.gateway(from, to)[1]
    }

    /// First host of a router.
    pub(crate) fn first_host(&self, router: u32) -> u32 {
        router * self.hosts_per_router
    }

    /// Links from a router to a host over one global cable at most.
    pub fn distance(&self, router: u32, host: u32) -> u32 {
        let to = self.router(host);
        let (here, there) = (self.group(router), self.group(to));
        if here == there {
            return 1 + u32::from(router != to);
        }
        let [exit, entry] = self.gateway(here, there);
        2 + u32::from(router != exit) + u32::from(entry != to)
    }

    /// Whether a minimal path to `host` may go from one router to another: into no third group.
    pub(crate) fn permits(&self, from: u32, to: u32, host: u32) -> bool {
        self.group(from) == self.group(to) || self.group(to) == self.group(self.router(host))
    }

    pub(crate) fn block_sizes(&self) -> Vec<u32> {
        vec![self.hosts_per_router, self.hosts_per_router * self.routers_per_group]
    }

    /// The first half of the groups.
    pub(crate) fn in_first_half(&self, end: End) -> bool {
        let router = match end {
            End::Host(host) => self.router(host),
            End::Switch(router) => router,
        };
        self.group(router) < self.groups() / 2
    }

    pub(crate) fn emit_cables(&self, emit: &mut dyn FnMut(End, End)) {
        let a = self.routers_per_group;
        for host in 0..self.hosts() {
            emit(End::Host(host), End::Switch(self.router(host)));
        }
        for group in 0..self.groups() {
            for first in 0..a {
                for second in first + 1..a {
                    emit(End::Switch(group * a + first), End::Switch(group * a + second));
                }
            }
        }
        for from in 0..self.groups() {
            for to in from + 1..self.groups() {
                let [exit, entry] = self.gateway(from, to);
                emit(End::Switch(exit), End::Switch(entry));
            }
        }
    }
}

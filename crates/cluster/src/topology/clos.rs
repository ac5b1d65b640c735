//! Folded Clos networks: single switch, leaf and spine, fat-trees of any number of levels.
//!
//! Switches have k ports, h = k/2 of them down. A leaf has D ports to hosts and U upward, D/U being the oversubscription and
//! D + U = k. A subtree of level l < L holds D h^(l-1) hosts and has as many links upward as its switches have ports there:
//! U h^(l-1). The P subtrees of level L - 1 meet in ceil(U h^(L-2) / floor(k/P)) top switches. Without oversubscription
//! and with P a divisor of k these are the published counts: (2L-1) N/k switches, L N cables, 2 h^L hosts at most, and
//! for L = 3 k^3/4 hosts, 5k^2/4 switches (Al-Fares, Loukissas and Vahdat 2008).

use super::{End, MOST_HOSTS};
use crate::ClusterError;

/// A folded Clos network.
#[derive(Debug, Clone, PartialEq)]
pub struct Clos {
    hosts: u32,
    ports: u32,
    levels: u32,
    /// D and U; U is 0 where there is one level.
    down: u32,
    up: u32,
    /// P, subtrees below the top switches.
    subtrees: u32,
    /// Ports of a top switch that lead to the same subtree.
    multiplicity: u32,
    /// Index of the first switch of each level, one more at the end.
    first: Vec<u32>,
}

impl Clos {
    /// One switch with a port for each host.
    ///
    /// # Errors
    /// No hosts.
    pub fn single_switch(hosts: u32) -> Result<Clos, ClusterError> {
        Clos::new(hosts, hosts, Some(1), 1)
    }

    /// A network of switches with `ports` ports for `hosts` hosts, whose leaves have `oversubscription` times as many ports
    /// down as up. `levels` is the smallest number that is enough if left out.
    ///
    /// # Errors
    /// Ports that cannot be shared between down and up, too few levels, hosts that do not fill whole subtrees.
    pub fn new(
        hosts: u32,
        ports: u32,
        levels: Option<u32>,
        oversubscription: u32,
    ) -> Result<Clos, ClusterError> {
        if hosts == 0 || u64::from(hosts) > MOST_HOSTS {
            return Err(ClusterError::value(
                "hosts of the network",
                format!("1 to {MOST_HOSTS}"),
                hosts,
                "add nodes",
            ));
        }
        if levels != Some(1) && (ports < 4 || !ports.is_multiple_of(2)) {
            return Err(ClusterError::value(
                "network.ports",
                "an even number, 4 or more",
                ports,
                "a common switch has 64",
            ));
        }
        let parts = oversubscription.saturating_add(1);
        if oversubscription == 0 || (levels != Some(1) && !ports.is_multiple_of(parts)) {
            return Err(ClusterError::value(
                "network.oversubscription",
                format!("a whole number o so that o + 1 divides the {ports} ports"),
                oversubscription,
                "1 has as many ports up as down",
            ));
        }
        let (half, up) = (ports / 2, ports / parts);
        let down = ports - up;
        // Hosts below one top port; hosts that `levels` levels can join at most.
        let subtree =
            |l: u32| (1..l.saturating_sub(1)).try_fold(u64::from(down), |n, _| n.checked_mul(half.into()));
        let most = |l: u32| match l {
            0 => Some(0),
            1 => Some(u64::from(ports)),
            l => subtree(l).and_then(|n| n.checked_mul(ports.into())),
        };
        let enough = |l: &u32| most(*l).is_none_or(|most| most >= hosts.into());
        let least = (1..32).find(enough).unwrap_or(32);
        let levels = levels.unwrap_or(least);
        if !(1..=31).contains(&levels) || !enough(&levels) {
            return Err(ClusterError::value(
                "network.levels",
                format!("{least} or more for {hosts} hosts on switches with {ports} ports"),
                levels,
                "leave levels out, or take switches with more ports",
            ));
        }
        if levels == 1 {
            return Ok(Clos {
                hosts,
                ports,
                levels,
                down: hosts,
                up: 0,
                subtrees: hosts,
                multiplicity: 1,
                first: vec![0, 1],
            });
        }
        let size = subtree(levels).unwrap_or(u64::MAX);
        if !u64::from(hosts).is_multiple_of(size) || u64::from(hosts) / size < 2 {
            let wanted =
                format!("two or more whole subtrees of {size} hosts below the top of {levels} levels");
            let hint = match u64::from(hosts).next_multiple_of(size).max(size.saturating_mul(2)) {
                more if u64::from(hosts) < size => {
                    format!("take {least} levels, switches with fewer ports, or {more} hosts")
                }
                more => format!("take {more} hosts, or switches with another number of ports"),
            };
            return Err(ClusterError::value("hosts of the network", wanted, hosts, hint));
        }
        let subtrees = (u64::from(hosts) / size) as u32;
        let mut clos =
            Clos { hosts, ports, levels, down, up, subtrees, multiplicity: ports / subtrees, first: vec![0] };
        for l in 1..=levels {
            let count = if l == levels { clos.tops() } else { clos.hosts / clos.block(l) * clos.width(l) };
            clos.first.push(clos.first[clos.first.len() - 1] + count);
        }
        Ok(clos)
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Ports of a switch, k.
    pub fn ports(&self) -> u32 {
        self.ports
    }

    /// Levels of switches, L.
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// Hosts of a leaf, D.
    pub(crate) fn hosts_of_leaf(&self) -> u32 {
        self.down
    }

    /// Ports of a leaf upward, U.
    pub(crate) fn uplinks_of_leaf(&self) -> u32 {
        self.up
    }

    /// Number of leaves.
    pub(crate) fn leaves(&self) -> u32 {
        self.hosts / self.down
    }

    /// Hosts below a subtree of a level l < L.
    fn block(&self, level: u32) -> u32 {
        self.down * (self.ports / 2).pow(level - 1)
    }

    /// Switches of level l < L in a subtree of that level.
    fn width(&self, level: u32) -> u32 {
        if level == 1 { 1 } else { self.up * (self.ports / 2).pow(level - 2) }
    }

    /// Links upward of a switch of level l < L.
    fn uplinks(&self, level: u32) -> u32 {
        if level == 1 { self.up } else { self.ports / 2 }
    }

    /// Switches of the top level.
    fn tops(&self) -> u32 {
        (self.width(self.levels - 1) * self.uplinks(self.levels - 1)).div_ceil(self.multiplicity)
    }

    /// Number of switches: for each level below the top its subtrees times the switches in one.
    pub fn switches(&self) -> u32 {
        self.first[self.levels as usize]
    }

    /// Number of cables: each level below the top has N/D U links upward, and each host one.
    pub fn cables(&self) -> u64 {
        u64::from(self.hosts) + u64::from(self.levels - 1) * u64::from(self.leaves()) * u64::from(self.up)
    }

    /// Links of the longest path between hosts: L up and L down.
    pub fn diameter(&self) -> u32 {
        if self.hosts == 1 { 0 } else { 2 * self.levels }
    }

    /// Cables between two halves: the uplinks of half the leaves, N/2 divided by the oversubscription. One switch is halved by
    /// its hosts.
    pub fn bisection(&self) -> u64 {
        match self.levels {
            1 => u64::from(self.hosts / 2),
            _ => u64::from(self.leaves() / 2) * u64::from(self.up),
        }
    }

    /// The first half of the leaves with their hosts; upper switches belong to the other half.
    pub(crate) fn in_first_half(&self, end: End) -> bool {
        let leaf = match end {
            End::Host(host) if self.levels == 1 => return host < self.hosts / 2,
            End::Host(host) => self.leaf(host),
            End::Switch(_) if self.levels == 1 => return false,
            End::Switch(switch) => switch,
        };
        leaf < self.leaves() / 2
    }

    /// Leaf of a host.
    pub fn leaf(&self, host: u32) -> u32 {
        host / self.down
    }

    /// Level of a switch, from 1.
    pub fn level(&self, switch: u32) -> u32 {
        (1..=self.levels).find(|l| switch < self.first[*l as usize]).unwrap_or(self.levels)
    }

    /// Switches of a level, from 1.
    pub(crate) fn level_range(&self, level: u32) -> std::ops::Range<u32> {
        self.first[level as usize - 1]..self.first[level as usize]
    }

    /// Links upward of a switch of a level.
    pub(crate) fn links_up(&self, level: u32) -> u32 {
        if level == self.levels { 0 } else { self.uplinks(level) }
    }

    /// Subtree of its level to which a switch below the top belongs.
    pub(crate) fn subtree(&self, switch: u32) -> u32 {
        let level = self.level(switch);
        (switch - self.first[level as usize - 1]) / self.width(level)
    }

    /// Subtree below switches of a level, or host below a leaf, that leads to a host.
    pub(crate) fn child(&self, level: u32, host: u32) -> u32 {
        if level == 1 { host } else { host / self.block(level - 1) }
    }

    /// Whether a switch is above a host.
    pub(crate) fn covers(&self, switch: u32, host: u32) -> bool {
        let level = self.level(switch);
        if level == self.levels {
            return true;
        }
        self.subtree(switch) == host / self.block(level)
    }

    /// Links from a switch down to a host, or up to the lowest level that the two share and down.
    pub fn distance(&self, switch: u32, host: u32) -> u32 {
        let level = self.level(switch);
        if level == self.levels {
            return level;
        }
        // Hosts of the subtree begin here.
        let start = self.subtree(switch) * self.block(level);
        let meet = (level..self.levels).find(|l| start / self.block(*l) == host / self.block(*l));
        let meet = meet.unwrap_or(self.levels);
        (meet - level) + meet
    }

    pub(crate) fn block_sizes(&self) -> Vec<u32> {
        (1..self.levels).map(|l| self.block(l)).collect()
    }

    pub(crate) fn emit_cables(&self, emit: &mut dyn FnMut(End, End)) {
        for host in 0..self.hosts {
            emit(End::Host(host), End::Switch(self.leaf(host)));
        }
        for level in 1..self.levels {
            let (width, uplinks) = (self.width(level), self.uplinks(level));
            let from = self.first[level as usize - 1];
            let above = self.first[level as usize];
            for subtree in 0..self.hosts / self.block(level) {
                for at in 0..width {
                    for port in 0..uplinks {
                        // The port above, before top switches with free ports are merged.
                        let upper = at * uplinks + port;
                        let upper = if level + 1 == self.levels {
                            upper / self.multiplicity
                        } else {
                            subtree / (self.ports / 2) * self.width(level + 1) + upper
                        };
                        emit(End::Switch(from + subtree * width + at), End::Switch(above + upper));
                    }
                }
            }
        }
    }
}

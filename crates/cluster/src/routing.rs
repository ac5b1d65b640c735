//! Routes of messages: minimal paths, which of several is taken, paths through another group of a dragonfly, and ways round what is dead.

use crate::topology::Topology;
use crate::{ClusterError, Network, UNREACHABLE, Vertex};
use bessemer_units::splitmix;
use std::collections::BTreeSet;

/// How one of several minimal paths is chosen, at each vertex that has a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Routing {
    /// By the destination's number, digit by digit (D-mod-K, Zahavi 2010); dim by dim in a torus. Spreads destinations evenly.
    #[default]
    Static,
    /// By a hash of sender, receiver and place (equal-cost multi-path). Two flows may get the same link while another is free.
    Ecmp {
        /// Seed of the hash.
        seed: u64,
    },
    /// The link that fewest flows of the same phase have taken so far.
    Adaptive,
    /// In a dragonfly through a group that a hash chooses, whatever the load (Valiant 1982); elsewhere as [`Routing::Static`].
    Valiant {
        /// Seed of the hash.
        seed: u64,
    },
    /// In a dragonfly the minimal path or one through another group: of a few the one with the least product of links and flows on its
    /// fullest link (UGAL: Singh 2005; Kim et al. 2008). Elsewhere as [`Routing::Adaptive`].
    Ugal {
        /// Seed of the hash that proposes groups.
        seed: u64,
    },
}

/// Groups that UGAL compares with the minimal path.
const UGAL_GROUPS: u64 = 4;

impl Routing {
    /// Whether it looks at the flows that links have.
    fn is_adaptive(self) -> bool {
        matches!(self, Routing::Adaptive | Routing::Ugal { .. })
    }
}

/// Cables and vertices that do not work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failures {
    /// Dead cables, in both directions.
    pub cables: BTreeSet<u32>,
    /// Dead switches, by their number in the graph.
    pub vertices: BTreeSet<u32>,
}

impl Failures {
    /// Reads dead parts: "switch:N", "node-switch:N", or "device:N/switch:N" for the first cable between two parts.
    ///
    /// # Errors
    /// Text of another form, parts that the network does not have.
    pub fn parse(network: &Network, parts: &[String]) -> Result<Failures, ClusterError> {
        let mut failures = Failures::default();
        for part in parts {
            let refuse = |found: String| {
                let wanted = "switch:N, node-switch:N, or a cable such as device:N/switch:N";
                ClusterError::value("dead part", wanted, found, "show lists a part of each class")
            };
            let vertex = |text: &str| {
                let (kind, number) = text.split_once(':').ok_or_else(|| refuse(format!("{part:?}")))?;
                let number: u32 = number.parse().map_err(|_| refuse(format!("{part:?}")))?;
                let several = network.node().devices > 1;
                let (of, vertex) = match kind {
                    "device" => (network.devices(), Vertex::Device(number)),
                    "node-switch" => (if several { network.nodes() } else { 0 }, Vertex::NodeSwitch(number)),
                    "switch" => (network.topology().switches(), Vertex::Switch(number)),
                    _ => return Err(refuse(format!("{part:?}"))),
                };
                if number >= of {
                    return Err(refuse(format!("{text}, but there are {of} such parts")));
                }
                Ok(network.vertex(vertex))
            };
            match part.split_once('/') {
                Some((a, b)) => {
                    let (a, b) = (vertex(a)?, vertex(b)?);
                    let cable = network.graph().leaving(a).iter().find(|l| network.graph().head(**l) == b);
                    let cable = cable
                        .ok_or_else(|| refuse(format!("{part:?}, two parts without a cable between them")))?;
                    failures.cables.insert(cable / 2);
                }
                None => {
                    failures.vertices.insert(vertex(part)?);
                }
            }
        }
        Ok(failures)
    }

    /// Whether nothing is dead.
    pub fn is_empty(&self) -> bool {
        self.cables.is_empty() && self.vertices.is_empty()
    }

    fn alive(&self, cable: u32, vertex: u32) -> bool {
        !self.cables.contains(&cable) && !self.vertices.contains(&vertex)
    }

    /// Devices that cannot reach the largest group of devices that reach each other.
    pub fn cut_off(&self, network: &Network) -> Vec<u32> {
        let graph = network.graph();
        let mut group = vec![UNREACHABLE; graph.vertices()];
        let mut sizes = Vec::new();
        for start in 0..network.devices() {
            if group[start as usize] != UNREACHABLE {
                continue;
            }
            let name = sizes.len() as u32;
            sizes.push(0u32);
            group[start as usize] = name;
            let mut stack = vec![start];
            while let Some(v) = stack.pop() {
                if v < network.devices() {
                    sizes[name as usize] += 1;
                }
                for &link in graph.leaving(v) {
                    let w = graph.head(link);
                    if group[w as usize] == UNREACHABLE && self.alive(link / 2, w) {
                        group[w as usize] = name;
                        stack.push(w);
                    }
                }
            }
        }
        // The first of the largest, so that the answer does not depend on the order of a sort.
        let largest = (0..sizes.len()).max_by_key(|g| (sizes[*g], std::cmp::Reverse(*g))).unwrap_or(0) as u32;
        (0..network.devices()).filter(|d| group[*d as usize] != largest).collect()
    }
}

/// Finds paths.
#[derive(Debug)]
pub struct Router<'a> {
    network: &'a Network,
    routing: Routing,
    failures: &'a Failures,
    /// Flows on each link, for adaptive routing only.
    load: Vec<u32>,
}

/// Digits of a destination that static routing has yet to use, and the last that it used.
struct Digits {
    rest: u32,
    last: Option<u32>,
}

/// A vertex of a path with the links that may follow, best first.
struct Junction {
    links: Vec<u32>,
    next: usize,
}

impl<'a> Router<'a> {
    /// A router in which no link carries anything.
    pub fn new(network: &'a Network, routing: Routing, failures: &'a Failures) -> Router<'a> {
        let load = if routing.is_adaptive() { vec![0; 2 * network.graph().cables()] } else { Vec::new() };
        Router { network, routing, failures, load }
    }

    /// The network.
    pub fn network(&self) -> &'a Network {
        self.network
    }

    /// Forgets which links have been taken.
    pub fn reset(&mut self) {
        self.load.fill(0);
    }

    /// Appends the links of a path between devices to `path`: a minimal one, or where all of those are dead a shortest of the
    /// others.
    ///
    /// # Errors
    /// [`ClusterError::CutOff`].
    pub fn route(&mut self, from: u32, to: u32, path: &mut Vec<u32>) -> Result<(), ClusterError> {
        let begin = path.len();
        let found = match self.routing {
            Routing::Valiant { seed } => {
                self.through_group(from, to, seed, path) || {
                    path.truncate(begin);
                    self.minimal(from, to, path)
                }
            }
            Routing::Ugal { seed } => self.least_loaded(from, to, seed, path),
            _ => self.minimal(from, to, path),
        };
        if !found {
            path.truncate(begin);
            self.detour(from, to, path)?;
        }
        if self.routing.is_adaptive() {
            path[begin..].iter().for_each(|link| self.load[*link as usize] += 1);
        }
        Ok(())
    }

    /// A path over two global cables of a dragonfly: to the group that a hash chooses, then to the destination. `false` within a
    /// group, where there is no third group, and where the way is dead.
    fn through_group(&self, from: u32, to: u32, hash: u64, path: &mut Vec<u32>) -> bool {
        let network = self.network;
        let Topology::Dragonfly(dragonfly) = network.topology() else { return false };
        let [here, there] = [from, to].map(|device| dragonfly.group(dragonfly.router(network.host(device))));
        if here == there || dragonfly.groups() < 3 {
            return false;
        }
        let pair = u64::from(from) << 32 | u64::from(to);
        let mut group = (mix(mix(hash) ^ pair) % u64::from(dragonfly.groups() - 2)) as u32;
        // Skip both ends.
        group += u32::from(group >= here.min(there));
        group += u32::from(group >= here.max(there));
        let entry = dragonfly.entry(here, group);
        let begin = path.len();
        if !self.minimal(from, network.device_of_host(dragonfly.first_host(entry)), path) {
            return false;
        }
        // The rest of that path leads to a device of the router at which it came into the group.
        let router = network.vertex(Vertex::Switch(entry));
        match path[begin..].iter().position(|link| network.graph().head(*link) == router) {
            Some(last) => path.truncate(begin + last + 1),
            None => return false,
        }
        self.minimal(router, to, path)
    }

    /// The minimal path or one through another group, by the flows on their links.
    fn least_loaded(&self, from: u32, to: u32, seed: u64, path: &mut Vec<u32>) -> bool {
        let begin = path.len();
        let cost = |links: &[u32]| {
            let fullest = links.iter().map(|link| self.load[*link as usize]).max().unwrap_or(0);
            u64::from(fullest + 1) * links.len() as u64
        };
        let mut found = self.minimal(from, to, path);
        if !found {
            path.truncate(begin);
        }
        for proposal in 0..UGAL_GROUPS {
            let mut other = Vec::new();
            let hash = mix(seed).wrapping_add(proposal);
            if self.through_group(from, to, hash, &mut other)
                && (!found || cost(&other) < cost(&path[begin..]))
            {
                path.truncate(begin);
                path.extend(other);
                found = true;
            }
        }
        found
    }

    /// Depth-first search over the links of minimal paths from a vertex to a device; `false` if each of these paths is dead. Without failures the first
    /// link of every vertex is taken.
    fn minimal(&self, from: u32, to: u32, path: &mut Vec<u32>) -> bool {
        let begin = path.len();
        let mut candidates = Vec::new();
        let (mut at, mut digits) = (from, Digits { rest: to, last: None });
        if self.failures.is_empty() {
            while at != to {
                self.network.next_links(at, to, &mut candidates);
                let link = candidates[self.first(at, from, to, &mut digits, &candidates)];
                path.push(link);
                at = self.network.graph().head(link);
            }
            return true;
        }
        let mut junctions: Vec<Junction> = Vec::new();
        let mut dead_ends = BTreeSet::new();
        while at != to {
            if junctions.len() == path.len() - begin {
                self.network.next_links(at, to, &mut candidates);
                candidates.retain(|l| self.failures.alive(l / 2, self.network.graph().head(*l)));
                let links = self.ordered(at, from, to, &mut digits, &candidates);
                junctions.push(Junction { links, next: 0 });
            }
            let Some(junction) = junctions.last_mut() else { return false };
            let link = junction.links.get(junction.next).copied();
            junction.next += 1;
            match link {
                Some(link) => {
                    let head = self.network.graph().head(link);
                    if !dead_ends.contains(&head) {
                        path.push(link);
                        at = head;
                    }
                }
                None => {
                    dead_ends.insert(at);
                    junctions.pop();
                    if path.len() == begin {
                        return false;
                    }
                    at = path.pop().map_or(from, |link| self.network.graph().tail(link));
                }
            }
        }
        true
    }

    /// A shortest path over what is alive.
    fn detour(&self, from: u32, to: u32, path: &mut Vec<u32>) -> Result<(), ClusterError> {
        let graph = self.network.graph();
        let distance = graph.distances(to, Some(from), |cable, vertex| self.failures.alive(cable, vertex));
        if distance[from as usize] == UNREACHABLE {
            return Err(ClusterError::CutOff { from, to });
        }
        let (mut at, mut digits) = (from, Digits { rest: to, last: None });
        while at != to {
            let nearer = |l: &u32| {
                distance[graph.head(*l) as usize].checked_add(1) == Some(distance[at as usize])
                    && self.failures.alive(l / 2, graph.head(*l))
            };
            let candidates: Vec<u32> = graph.leaving(at).iter().copied().filter(nearer).collect();
            let link = self.ordered(at, from, to, &mut digits, &candidates)[0];
            path.push(link);
            at = graph.head(link);
        }
        Ok(())
    }

    /// Links in the order in which they are tried.
    fn ordered(&self, at: u32, from: u32, to: u32, digits: &mut Digits, links: &[u32]) -> Vec<u32> {
        if self.routing.is_adaptive() {
            let mut sorted = links.to_vec();
            sorted.sort_by_key(|link| self.load[*link as usize]);
            return sorted;
        }
        let start = self.first(at, from, to, digits, links);
        (0..links.len()).map(|i| links[(start + i) % links.len()]).collect()
    }

    /// Place of the link that is tried first.
    fn first(&self, at: u32, from: u32, to: u32, digits: &mut Digits, links: &[u32]) -> usize {
        let n = links.len();
        if n < 2 {
            return 0;
        }
        match self.routing {
            Routing::Adaptive | Routing::Ugal { .. } => {
                (0..n).min_by_key(|i| self.load[links[*i] as usize]).unwrap_or(0)
            }
            Routing::Static | Routing::Valiant { .. }
                if matches!(self.network.topology(), Topology::Torus(_)) =>
            {
                0
            }
            Routing::Static | Routing::Valiant { .. } => {
                let head = |link: &u32| self.network.graph().head(*link);
                // Parallel cables downward are taken as the ones upward were.
                let parallel = links.iter().all(|l| head(l) == head(&links[0]));
                match digits.last.filter(|_| parallel) {
                    Some(last) => last as usize % n,
                    None => {
                        let digit = digits.rest % n as u32;
                        digits.rest /= n as u32;
                        digits.last = Some(digit);
                        digit as usize
                    }
                }
            }
            Routing::Ecmp { seed } => {
                let pair = u64::from(from) << 32 | u64::from(to);
                (mix(mix(seed ^ pair) ^ u64::from(at)) % n as u64) as usize
            }
        }
    }
}

/// The first number that SplitMix64 makes from `seed`.
fn mix(seed: u64) -> u64 {
    splitmix::nth(seed, 0)
}

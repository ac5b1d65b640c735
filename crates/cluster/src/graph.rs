//! Devices, switches and the cables between them, as a graph that can be counted and searched.
//!
//! A cable has two directions, each a link of its own: link `2c` leads from the first end of cable `c` to the second, link
//! `2c + 1` back.

use std::collections::VecDeque;

/// Class of a cable: inside a node, or between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CableKind {
    /// From a device to the switch inside its node.
    Node,
    /// From a device or node to the network.
    Host,
    /// Between two switches, or two devices of a torus.
    Fabric,
}

/// Vertices and cables. 17 bytes a cable and 4 a vertex.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkGraph {
    ends: Vec<[u32; 2]>,
    kinds: Vec<CableKind>,
    /// For each vertex, where its links begin in `near`; one more at the end.
    first: Vec<u32>,
    /// Links that leave each vertex, in the order of their cables.
    near: Vec<u32>,
}

/// Distance of a vertex that nothing leads from.
pub const UNREACHABLE: u32 = u32::MAX;

impl NetworkGraph {
    /// A graph of `vertices` vertices.
    pub fn new(vertices: usize, cables: Vec<([u32; 2], CableKind)>) -> NetworkGraph {
        let mut first = vec![0u32; vertices + 1];
        for (ends, _) in &cables {
            for end in ends {
                first[*end as usize + 1] += 1;
            }
        }
        for v in 0..vertices {
            first[v + 1] += first[v];
        }
        let mut next = first.clone();
        let mut near = vec![0u32; 2 * cables.len()];
        for (cable, (ends, _)) in cables.iter().enumerate() {
            for (direction, end) in ends.iter().enumerate() {
                near[next[*end as usize] as usize] = 2 * cable as u32 + direction as u32;
                next[*end as usize] += 1;
            }
        }
        let (ends, kinds) = cables.into_iter().unzip();
        NetworkGraph { ends, kinds, first, near }
    }

    /// Number of vertices.
    pub fn vertices(&self) -> usize {
        self.first.len() - 1
    }

    /// Number of cables; there are twice as many links.
    pub fn cables(&self) -> usize {
        self.ends.len()
    }

    /// The two vertices of a cable.
    pub fn ends(&self, cable: u32) -> [u32; 2] {
        self.ends[cable as usize]
    }

    /// Class of a cable.
    pub fn kind(&self, cable: u32) -> CableKind {
        self.kinds[cable as usize]
    }

    /// Links that leave a vertex.
    pub fn leaving(&self, vertex: u32) -> &[u32] {
        let v = vertex as usize;
        &self.near[self.first[v] as usize..self.first[v + 1] as usize]
    }

    /// Vertex to which a link leads.
    pub fn head(&self, link: u32) -> u32 {
        self.ends[(link / 2) as usize][1 - (link % 2) as usize]
    }

    /// Vertex from which a link leads.
    pub fn tail(&self, link: u32) -> u32 {
        self.ends[(link / 2) as usize][(link % 2) as usize]
    }

    /// Links from every vertex to `to`, by breadth-first search over cables and vertices that `alive` accepts.
    /// Stops early once the distance of `until` is known.
    pub fn distances(
        &self,
        to: u32,
        until: Option<u32>,
        alive: impl Fn(u32 /* cable */, u32 /* vertex */) -> bool,
    ) -> Vec<u32> {
        let mut distance = vec![UNREACHABLE; self.vertices()];
        distance[to as usize] = 0;
        let mut queue = VecDeque::from([to]);
        while let Some(v) = queue.pop_front() {
            if Some(v) == until {
                break;
            }
            for &link in self.leaving(v) {
                let w = self.head(link);
                if distance[w as usize] == UNREACHABLE && alive(link / 2, w) {
                    distance[w as usize] = distance[v as usize] + 1;
                    queue.push_back(w);
                }
            }
        }
        distance
    }

    /// Cables whose ends `side` puts on different sides.
    pub fn crossing(&self, side: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
        (0..self.cables() as u32).filter(move |c| {
            let [a, b] = self.ends(*c);
            side(a) != side(b)
        })
    }

    /// Memory that the graph takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.ends.len() * (size_of::<[u32; 2]>() + size_of::<CableKind>())
            + (self.first.len() + self.near.len()) * size_of::<u32>()
    }
}

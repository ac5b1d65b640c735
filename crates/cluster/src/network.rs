//! A machine: nodes of devices, joined by a topology.

use crate::topology::{End, MOST_CABLES, MOST_HOSTS, Topology};
use crate::{CableKind, ClusterError, NetworkGraph, UNREACHABLE};
use bessemer_units::Link;

/// A kind of cable, with the cost of one of its directions in seconds and bytes a second.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkClass {
    /// Name in descriptions: "ndr", "nvlink4".
    pub name: String,
    /// Latency and bandwidth of one direction.
    pub link: Link,
}

/// How a node is built.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeShape {
    /// Devices of a node, G. Several of them are joined by a switch inside the node (NVSwitch, PCIe, CXL).
    pub devices: u32,
    /// Ports of a node onto the network. As many as devices: each device has its own. Fewer: devices share those of their
    /// node and reach them through the switch inside it.
    pub nics: u32,
    /// Cables from a device to the switch inside its node.
    pub link: Option<LinkClass>,
}

/// Parts of a network by which vertices are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vertex {
    /// A device, by its number.
    Device(u32),
    /// The switch inside a node.
    NodeSwitch(u32),
    /// A switch of the network.
    Switch(u32),
}

/// Devices, switches and cables, with closed-form distances. Holds no table of routes: memory is linear in the cables.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    name: String,
    node: NodeShape,
    nodes: u32,
    topology: Topology,
    host_link: LinkClass,
    fabric_link: LinkClass,
    reduction_trees: Option<u32>,
    graph: NetworkGraph,
}

/// Distance of a vertex through which no minimal path leads.
const FAR: u32 = UNREACHABLE / 2;

impl Network {
    /// Joins `nodes` nodes by a topology whose hosts are the ports of all nodes, node by node. Without a topology there is one node.
    ///
    /// # Errors
    /// Nodes that are not aligned with the topology's groups of hosts, a torus of nodes with several devices, a number of
    /// ports that does not divide the devices.
    pub fn new(
        name: &str,
        node: NodeShape,
        nodes: u32,
        topology: Topology,
        [host_link, fabric_link]: [LinkClass; 2],
    ) -> Result<Network, ClusterError> {
        if node.devices == 0 || nodes == 0 {
            let found = format!("{nodes} nodes of {} devices", node.devices);
            return Err(ClusterError::value(
                "node.devices and nodes",
                "1 or more",
                found,
                "a single device is a node too",
            ));
        }
        let devices = u64::from(nodes) * u64::from(node.devices);
        if devices > MOST_HOSTS || topology.cables() + devices > MOST_CABLES {
            let found = format!("{devices} devices and {} cables", topology.cables());
            let wanted = format!("at most {MOST_HOSTS} devices and {MOST_CABLES} cables");
            return Err(ClusterError::value(
                "network",
                wanted,
                found,
                "take fewer nodes, or switches with more ports",
            ));
        }
        if node.devices > 1 && node.link.is_none() {
            return Err(ClusterError::value(
                "node.link",
                "a link class, because a node has several devices",
                "none",
                "name one, e.g. link = \"nvlink4\"",
            ));
        }
        if node.nics == 0 || !node.devices.is_multiple_of(node.nics) {
            return Err(ClusterError::value(
                "node.nics",
                format!("a divisor of the {} devices of a node", node.devices),
                node.nics,
                "leave it out: then each device has a port",
            ));
        }
        if matches!(topology, Topology::Torus(_)) && node.devices > 1 {
            return Err(ClusterError::value(
                "node.devices",
                "1: the devices of a torus are joined to each other",
                node.devices,
                "leave [node] out",
            ));
        }
        if matches!(topology, Topology::RailOnly(_) | Topology::RailOptimised(_)) && node.nics != node.devices
        {
            return Err(ClusterError::value(
                "node.nics",
                format!("{}, a port for each local rank", node.devices),
                node.nics,
                "leave it out, or take another topology",
            ));
        }
        if matches!(topology, Topology::None) && nodes > 1 {
            return Err(ClusterError::value(
                "nodes",
                "1 without a [network]",
                nodes,
                "describe the network that joins the nodes",
            ));
        }
        for block in topology.block_sizes() {
            if !block.is_multiple_of(node.nics) && !node.nics.is_multiple_of(block) {
                return Err(ClusterError::value(
                    "node.nics",
                    format!("a divisor or a multiple of {block}, so that nodes fill whole groups of hosts"),
                    node.nics,
                    "take nodes with a power of two of ports, or switches with another number of ports",
                ));
            }
        }
        let mut network = Network {
            name: name.into(),
            node,
            nodes,
            topology,
            host_link,
            fabric_link,
            reduction_trees: None,
            graph: NetworkGraph::new(0, Vec::new()),
        };
        network.graph = network.build();
        Ok(network)
    }

    fn build(&self) -> NetworkGraph {
        let mut cables = Vec::new();
        if self.node.devices > 1 {
            for device in 0..self.devices() {
                cables
                    .push(([device, self.vertex(Vertex::NodeSwitch(self.node_of(device)))], CableKind::Node));
            }
        }
        let vertex = |end| match end {
            End::Host(host) => self.attachment(host),
            End::Switch(switch) => self.vertex(Vertex::Switch(switch)),
        };
        let torus = matches!(self.topology, Topology::Torus(_));
        self.topology.emit_cables(&mut |a, b| {
            let host = !torus && (matches!(a, End::Host(_)) || matches!(b, End::Host(_)));
            let kind = if host { CableKind::Host } else { CableKind::Fabric };
            cables.push(([vertex(a), vertex(b)], kind));
        });
        NetworkGraph::new(self.vertex(Vertex::Switch(self.topology.switches())) as usize, cables)
    }

    /// The same network with switches that sum, each for so many trees at once.
    pub fn with_reduction_trees(self, trees: u32) -> Network {
        Network { reduction_trees: Some(trees), ..self }
    }

    /// Trees that a switch can sum at once; `None` if switches only forward.
    pub fn reduction_trees(&self) -> Option<u32> {
        self.reduction_trees
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How a node is built.
    pub fn node(&self) -> &NodeShape {
        &self.node
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Number of devices.
    pub fn devices(&self) -> u32 {
        self.nodes * self.node.devices
    }

    /// How the nodes are joined.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Vertices and cables.
    pub fn graph(&self) -> &NetworkGraph {
        &self.graph
    }

    /// NodeShape of a device.
    pub fn node_of(&self, device: u32) -> u32 {
        device / self.node.devices
    }

    /// Class of a kind of cable; that of the network where nodes have no cables inside.
    pub fn class(&self, kind: CableKind) -> &LinkClass {
        match kind {
            CableKind::Node => self.node.link.as_ref().unwrap_or(&self.fabric_link),
            CableKind::Host => &self.host_link,
            CableKind::Fabric => &self.fabric_link,
        }
    }

    /// Cost of a link.
    pub fn link(&self, link: u32) -> Link {
        self.class(self.graph.kind(link / 2)).link
    }

    /// Number of a vertex in the graph.
    pub fn vertex(&self, vertex: Vertex) -> u32 {
        let node_switches = if self.node.devices > 1 { self.nodes } else { 0 };
        match vertex {
            Vertex::Device(device) => device,
            Vertex::NodeSwitch(node) => self.devices() + node,
            Vertex::Switch(switch) => self.devices() + node_switches + switch,
        }
    }

    /// Vertex of a number in the graph.
    pub fn at(&self, vertex: u32) -> Vertex {
        let switches = self.vertex(Vertex::Switch(0));
        if vertex < self.devices() {
            Vertex::Device(vertex)
        } else if vertex < switches {
            Vertex::NodeSwitch(vertex - self.devices())
        } else {
            Vertex::Switch(vertex - switches)
        }
    }

    /// "device 3", "node switch 0", "switch 5".
    pub fn label(&self, vertex: u32) -> String {
        match self.at(vertex) {
            Vertex::Device(device) => format!("device {device}"),
            Vertex::NodeSwitch(node) => format!("node switch {node}"),
            Vertex::Switch(switch) => format!("switch {switch}"),
        }
    }

    /// Whether every device has its own port onto the network.
    fn own_ports(&self) -> bool {
        self.node.nics == self.node.devices
    }

    /// First port of the network that a device can use.
    pub(crate) fn host(&self, device: u32) -> u32 {
        if self.own_ports() { device } else { self.node_of(device) * self.node.nics }
    }

    /// A device that uses a port of the network.
    pub(crate) fn device_of_host(&self, host: u32) -> u32 {
        if self.own_ports() { host } else { host / self.node.nics * self.node.devices }
    }

    /// Vertex that a host port is attached to: a device, or the node's switch if its devices share ports.
    fn attachment(&self, host: u32) -> u32 {
        if self.own_ports() { host } else { self.vertex(Vertex::NodeSwitch(host / self.node.nics)) }
    }

    /// Links of a minimal path from a vertex to a device.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        if let Topology::Torus(torus) = &self.topology {
            return torus.distance(from, to);
        }
        match self.at(from) {
            Vertex::Device(device) if device == to => 0,
            Vertex::Device(device) if self.node_of(device) == self.node_of(to) => 2,
            Vertex::Device(device) if !self.own_ports() => {
                1 + self.node_switch_distance(self.node_of(device), to)
            }
            Vertex::Device(device) => {
                let direct = 1 + self.leaf_distance(device, to);
                // Only where devices are plugged by local rank is the way through the node as short.
                let through_node = 1 + self.node_switch_distance(self.node_of(device), to);
                direct.min(through_node)
            }
            Vertex::NodeSwitch(node) => self.node_switch_distance(node, to),
            Vertex::Switch(switch) => self.switch_distance(switch, to),
        }
    }

    /// From the leaf of a host port.
    fn leaf_distance(&self, host: u32, to: u32) -> u32 {
        self.topology.leaf(host).map_or(FAR, |leaf| self.switch_distance(leaf, to))
    }

    fn node_switch_distance(&self, node: u32, to: u32) -> u32 {
        if node == self.node_of(to) {
            return 1;
        }
        match &self.topology {
            Topology::RailOnly(_) | Topology::RailOptimised(_) => {
                let same_rank = node * self.node.devices + to % self.node.devices;
                2 + self.leaf_distance(same_rank, to)
            }
            _ if self.own_ports() => FAR,
            _ => self.ports(node).map(|port| 1 + self.leaf_distance(port, to)).min().unwrap_or(FAR),
        }
    }

    fn ports(&self, node: u32) -> std::ops::Range<u32> {
        node * self.node.nics..(node + 1) * self.node.nics
    }

    fn switch_distance(&self, switch: u32, to: u32) -> u32 {
        let within = |host| self.topology.distance(switch, host).unwrap_or(FAR);
        let node = self.node_of(to);
        if !self.own_ports() {
            return 1 + self.ports(node).map(within).min().unwrap_or(FAR);
        }
        let relay = match &self.topology {
            Topology::RailOnly(rails) => Some(node * self.node.devices + rails.rail_of(switch)),
            Topology::RailOptimised(rails) => rails.host_on_leaf(node, switch),
            _ => None,
        };
        let through_node = relay.filter(|host| *host != to).map_or(FAR, |host| within(host) + 2);
        within(to).min(through_node)
    }

    /// Passes the links of all minimal paths that leave a vertex for a device to `found`, in the order of cables.
    pub fn next_links(&self, at: u32, to: u32, found: &mut Vec<u32>) {
        found.clear();
        if let (Topology::Clos(clos), Vertex::Switch(switch), true) =
            (&self.topology, self.at(at), self.own_ports())
        {
            // The same links as below without their distances. Links down come first, by the subtrees that they lead to.
            let near = self.graph.leaving(at);
            let level = clos.level(switch);
            let (down, up) = near.split_at(near.len() - clos.links_up(level) as usize);
            let below = |link: &u32| match self.at(self.graph.head(*link)) {
                Vertex::Switch(next) => clos.subtree(next),
                Vertex::Device(device) | Vertex::NodeSwitch(device) => device,
            };
            let wanted = clos.child(level, to);
            if clos.covers(switch, to) {
                let first = down.partition_point(|link| below(link) < wanted);
                found.extend(down[first..].iter().copied().take_while(|link| below(link) == wanted));
            } else {
                found.extend(up);
            }
            return;
        }
        let here = self.distance(at, to);
        for &link in self.graph.leaving(at) {
            let next = self.graph.head(link);
            if self.distance(next, to) + 1 == here && self.permits(at, next, to) {
                found.push(link);
            }
        }
    }

    /// Paths that are as short as others and still not taken: through the network within a node, and over two global cables of
    /// a dragonfly.
    fn permits(&self, at: u32, next: u32, to: u32) -> bool {
        match (&self.topology, self.at(at), self.at(next)) {
            (Topology::Torus(_), ..) => true,
            (_, Vertex::Device(device), Vertex::Switch(_)) => self.node_of(device) != self.node_of(to),
            (Topology::Dragonfly(dragonfly), Vertex::Switch(a), Vertex::Switch(b)) => {
                let host = if self.own_ports() { to } else { self.node_of(to) * self.node.nics };
                dragonfly.permits(a, b, host)
            }
            _ => true,
        }
    }
}

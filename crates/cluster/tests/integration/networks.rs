//! Networks that the tests share.

use bessemer_cluster::topology::{Clos, Dragonfly, RailOnly, RailOptimised, Topology, Torus};
use bessemer_cluster::{LinkClass, Network, NodeShape};
use bessemer_units::Link;

pub(crate) fn class(latency: f64, bandwidth: f64) -> LinkClass {
    LinkClass { name: "test".into(), link: Link { latency, bandwidth } }
}

/// 2.5 us and 200 GB/s a link: two links make the 5 us of the golden values.
pub(crate) fn half_hop() -> LinkClass {
    class(2.5e-6, 200e9)
}

pub(crate) fn network(devices: u32, nics: u32, nodes: u32, topology: Topology) -> Network {
    let node = NodeShape { devices, nics, link: Some(half_hop()) };
    let network = Network::new("test", node, nodes, topology, [half_hop(), half_hop()]).unwrap();
    network.with_reduction_trees(64)
}

/// Nodes of one device.
pub(crate) fn flat(topology: Topology) -> Network {
    let hosts = match &topology {
        Topology::Clos(t) => t.hosts(),
        Topology::Dragonfly(t) => t.hosts(),
        Topology::Torus(t) => t.hosts(),
        other => panic!("{other:?} needs nodes"),
    };
    network(1, 1, hosts, topology)
}

pub(crate) fn clos(hosts: u32, ports: u32, levels: u32, oversubscription: u32) -> Topology {
    Topology::Clos(Clos::new(hosts, ports, Some(levels), oversubscription).unwrap())
}

pub(crate) fn single_switch(hosts: u32) -> Topology {
    Topology::Clos(Clos::single_switch(hosts).unwrap())
}

pub(crate) fn dragonfly(p: u32, a: u32, h: u32) -> Topology {
    Topology::Dragonfly(Dragonfly::new(p, a, h).unwrap())
}

pub(crate) fn torus(dims: &[u32]) -> Topology {
    Topology::Torus(Torus::new(dims).unwrap())
}

pub(crate) fn rail_only(nodes: u32, rails: u32, ports: u32) -> Topology {
    Topology::RailOnly(RailOnly::new(rails, Clos::new(nodes, ports, None, 1).unwrap()))
}

pub(crate) fn rail_optimised(nodes: u32, rails: u32, ports: u32, levels: u32) -> Topology {
    let clos = Clos::new(nodes * rails, ports, Some(levels), 1).unwrap();
    Topology::RailOptimised(RailOptimised::new(clos, nodes, rails).unwrap())
}

/// A network of every kind, small enough to search.
pub(crate) fn all() -> Vec<Network> {
    vec![
        network(8, 8, 1, Topology::None),
        flat(single_switch(9)),
        flat(clos(16, 4, 3, 1)),
        flat(clos(16, 8, 2, 1)),
        flat(clos(24, 8, 2, 1)),
        flat(clos(96, 12, 2, 2)),
        flat(clos(64, 8, 3, 1)),
        flat(clos(48, 8, 3, 1)),
        flat(clos(108, 6, 4, 1)),
        network(4, 4, 16, clos(64, 8, 3, 1)),
        network(8, 8, 4, clos(32, 8, 2, 1)),
        network(4, 1, 16, clos(16, 8, 2, 1)),
        network(8, 2, 8, clos(16, 8, 2, 1)),
        network(8, 4, 8, clos(32, 4, 4, 1)),
        flat(dragonfly(2, 4, 2)),
        flat(dragonfly(1, 2, 1)),
        flat(dragonfly(3, 4, 1)),
        flat(dragonfly(1, 1, 5)),
        network(2, 2, 36, dragonfly(2, 4, 2)),
        network(4, 4, 18, dragonfly(2, 4, 2)),
        network(4, 1, 72, dragonfly(2, 4, 2)),
        flat(torus(&[5])),
        flat(torus(&[4, 4])),
        flat(torus(&[3, 5])),
        flat(torus(&[4, 3, 2])),
        flat(torus(&[2, 2, 2])),
        network(4, 4, 8, rail_only(8, 4, 4)),
        network(8, 8, 4, rail_only(4, 8, 4)),
        network(2, 2, 6, rail_only(6, 2, 8)),
        network(4, 4, 8, rail_optimised(8, 4, 8, 2)),
        network(8, 8, 4, rail_optimised(4, 8, 8, 2)),
        network(8, 8, 2, rail_optimised(2, 8, 8, 2)),
        network(4, 4, 12, rail_optimised(12, 4, 8, 3)),
        network(4, 4, 6, rail_optimised(6, 4, 24, 1)),
    ]
}

//! Closed forms of every topology: published sizes, and what is counted on the graph.

use crate::networks::{all, clos, dragonfly, flat, network, rail_only, torus};
use bessemer_cluster::topology::{Clos, Dragonfly, End, Topology, Torus};
use bessemer_cluster::{CableKind, Failures, Network, Routing, TrafficJob, UNREACHABLE, Vertex, run_job};

/// Cables of the network between the two halves, counted.
fn crossing(network: &Network) -> u64 {
    let topology = network.topology();
    // Cables of hosts end at a device or at the switch of a node; ask for the host whose cable it is.
    let graph = network.graph();
    let side = |vertex: u32| match network.at(vertex) {
        Vertex::Device(device) => topology.in_first_half(End::Host(device)),
        Vertex::NodeSwitch(node) => topology.in_first_half(End::Host(node * network.node().nics)),
        Vertex::Switch(switch) => topology.in_first_half(End::Switch(switch)),
    };
    graph.crossing(side).filter(|c| graph.kind(*c) != CableKind::Node).count() as u64
}

fn name(network: &Network) -> String {
    format!("{:?} of {} x {}", network.topology(), network.nodes(), network.node().devices)
}

#[test]
fn sizes_are_those_that_are_counted_on_the_graph() {
    for n in all() {
        let (graph, topology) = (n.graph(), n.topology());
        let cables = (0..graph.cables() as u32).filter(|c| graph.kind(*c) != CableKind::Node).count();
        assert_eq!(topology.cables(), cables as u64, "{}", name(&n));
        let inside = if n.node().devices > 1 { n.devices() } else { 0 };
        assert_eq!(graph.cables() - cables, inside as usize);
        let ports = |v: u32| graph.leaving(v).len() as u32;
        let most = match topology {
            Topology::Torus(_) => (0..n.devices()).map(ports).max().unwrap(),
            Topology::None => 0,
            _ => (n.vertex(Vertex::Switch(0))..graph.vertices() as u32).map(ports).max().unwrap(),
        };
        assert!(most <= topology.radix(), "{}: {most} ports", name(&n));
        assert_eq!(topology.bisection(), crossing(&n), "{}", name(&n));
    }
}

#[test]
fn halves_are_halves() {
    for n in all().iter().filter(|n| !matches!(n.topology(), Topology::None)) {
        let hosts = n.topology_hosts();
        let first = (0..hosts).filter(|h| n.topology().in_first_half(End::Host(*h))).count() as u32;
        // Odd numbers of leaves, groups, units or planes leave one of them to the second half.
        assert!(3 * first >= hosts - hosts / 4 && 2 * first <= hosts, "{}: {first} of {hosts}", name(n));
    }
}

/// Most paths from the first half to the second that share no cable in a direction: Ford and Fulkerson's maximum flow.
fn disjoint_paths(n: &Network) -> u64 {
    let graph = n.graph();
    let first = |v: u32| v < n.devices() && n.topology().in_first_half(End::Host(v));
    let mut used = vec![false; 2 * graph.cables()];
    let mut paths = 0;
    loop {
        let mut came = vec![u32::MAX; graph.vertices()];
        let mut queue: Vec<u32> = (0..n.devices()).filter(|d| first(*d)).collect();
        let starts = queue.len();
        let mut at = 0;
        let mut end = None;
        while at < queue.len() && end.is_none() {
            for &link in graph.leaving(queue[at]) {
                let head = graph.head(link);

                if !used[link as usize] && came[head as usize] == u32::MAX && !first(head) {
                    came[head as usize] = link;
                    queue.push(head);
                    if head < n.devices() {
                        end = Some(head);
                        break;
                    }
                }
            }
            at += 1;
        }
        assert!(starts > 0);
        let Some(mut v) = end else { return paths };
        while !first(v) {
            let link = came[v as usize];
            match used[(link ^ 1) as usize] {
                true => used[(link ^ 1) as usize] = false,
                false => used[link as usize] = true,
            }
            v = graph.tail(link);
        }
        paths += 1;
    }
}

/// No cut between the two halves of the hosts is smaller, wherever the switches are counted.
#[test]
fn bisections_are_minimum_cuts() {
    let cut = |n: &&Network| {
        n.node().devices == 1 && matches!(n.topology(), Topology::Clos(_) | Topology::Torus(_))
    };
    let networks = all();
    for n in networks.iter().filter(cut) {
        assert_eq!(disjoint_paths(n), n.topology().bisection(), "{}", name(n));
    }
}

trait Hosts {
    fn topology_hosts(&self) -> u32;
}

impl Hosts for Network {
    fn topology_hosts(&self) -> u32 {
        self.nodes() * self.node().nics
    }
}

/// Distances in closed form are those of a breadth-first search, from every vertex that a path may pass; in a dragonfly they
/// are those with one global cable, which are never shorter.
#[test]
fn distances_are_those_of_a_search() {
    for n in all() {
        let mut longest = 0;
        for to in 0..n.devices() {
            let found = n.graph().distances(to, None, |_, _| true);
            for from in 0..n.graph().vertices() as u32 {
                let closed = n.distance(from, to);
                if matches!(n.at(from), Vertex::NodeSwitch(_)) && closed > 1_000_000 {
                    // Declared to be on no minimal path.
                    let passes = (0..n.devices()).any(|d| {
                        let d_from = n.graph().distances(from, None, |_, _| true)[d as usize];
                        n.node_of(d) != n.node_of(to) && d_from + found[from as usize] == found[d as usize]
                    });
                    assert!(!passes, "{}: {from} to {to}", name(&n));
                    continue;
                }
                if matches!(n.topology(), Topology::Dragonfly(_)) {
                    assert!(closed >= found[from as usize], "{}: {from} to {to}", name(&n));
                } else {
                    assert_eq!(closed, found[from as usize], "{}: {} to {to}", name(&n), n.label(from));
                }
                if from < n.devices() {
                    longest = longest.max(closed);
                }
                assert_ne!(found[from as usize], UNREACHABLE);
            }
        }
        let through_nodes = if n.node().nics < n.node().devices { 2 } else { 0 };
        let wanted = n.topology().diameter() + through_nodes;
        let wanted = if matches!(n.topology(), Topology::None) { 2 } else { wanted };
        assert_eq!(longest, wanted, "{}", name(&n));
    }
}

#[test]
fn fat_trees_have_their_published_sizes() {
    // k^3/4 hosts and 5k^2/4 switches, (k/2)^2 of them core (Al-Fares, Loukissas and Vahdat 2008).
    for (k, hosts, switches) in
        [(4, 16, 20), (16, 1024, 320), (32, 8192, 1280), (48, 27_648, 2880), (64, 65_536, 5120)]
    {
        let clos = Clos::new(hosts, k, Some(3), 1).unwrap();
        assert_eq!((hosts, clos.switches()), (k * k * k / 4, switches));
        let core = (0..switches).filter(|s| clos.level(*s) == 3).count() as u32;
        assert_eq!(core, k * k / 4);
        assert_eq!(clos.cables(), 3 * u64::from(hosts));
        assert_eq!(clos.bisection(), u64::from(hosts) / 2);
        assert_eq!(Clos::new(hosts, k, None, 1).unwrap(), clos, "three levels are the fewest");
        assert!(Clos::new(hosts + 1, k, Some(3), 1).is_err());
    }
    // An L-level Clos network has (2L-1) N/k switches and L N cables.
    for (levels, k) in [(2, 8), (2, 64), (3, 8), (4, 8), (5, 6), (6, 4)] {
        let hosts = 2 * (k / 2u32).pow(levels);
        let clos = Clos::new(hosts, k, Some(levels), 1).unwrap();
        assert_eq!(clos.switches(), (2 * levels - 1) * hosts / k, "{levels} levels, {k} ports");
        assert_eq!(clos.cables(), u64::from(levels * hosts));
    }
    // Three ports down for each one up: a third of the bisection.
    let clos = Clos::new(768, 32, Some(2), 3).unwrap();
    assert_eq!((clos.bisection(), clos.switches()), (768 / 2 / 3, 32 + 8));
}

#[test]
fn dragonflies_have_their_published_sizes() {
    for (h, radix, hosts, cables) in [(4, 15, 1056, 528), (8, 31, 16_512, 8256), (16, 63, 262_656, 131_328)] {
        let d = Dragonfly::new(h, 2 * h, h).unwrap();
        assert_eq!((d.radix(), d.hosts(), d.global_cables()), (radix, hosts, cables));
        assert_eq!(d.hosts(), 4 * h.pow(4) + 2 * h * h);
        // Three links between routers, one of them global.
        assert_eq!(d.diameter(), 2 + 3);
    }
}

#[test]
fn tori_have_their_published_sizes() {
    for (k, bisection, cables) in [(4, 32, 192), (8, 128, 1536), (16, 512, 12_288)] {
        let t = Torus::new(&[k, k, k]).unwrap();
        assert_eq!((t.bisection(), t.cables(), t.diameter()), (bisection, cables, 3 * k / 2));
        // Mean hops d k/4 over all pairs, a device with itself included.
        let sum: u64 = (0..t.hosts()).map(|to| u64::from(t.distance(0, to))).sum();
        assert_eq!(sum * 4, u64::from(t.hosts()) * 3 * u64::from(k));
    }
}

/// Wang et al. 2023, N = 32,768 devices in fast domains of K = 256: switches and transceivers against a full fat-tree.
#[test]
fn rail_only_saves_what_the_paper_says() {
    for (ports, full, rails) in
        [(64, (2560, 196_608), (1536, 131_072)), (128, (1280, 196_608), (256, 65_536))]
    {
        let transceivers = |t: &Topology| 2 * t.cables();
        let fat_tree = Topology::Clos(Clos::new(32_768, ports, None, 1).unwrap());
        assert_eq!((fat_tree.switches(), transceivers(&fat_tree)), full);
        let rail = rail_only(32_768 / 256, 256, ports);
        assert_eq!((rail.switches(), transceivers(&rail)), rails);
        let saved = |a: u64, b: u64| (100.0 * (1.0 - b as f64 / a as f64)).round();
        let wanted = if ports == 64 { (40.0, 33.0) } else { (80.0, 67.0) };
        assert_eq!((saved(full.0.into(), rails.0.into()), saved(full.1, rails.1)), wanted);
        // Between halves of the domains nothing is lost.
        assert_eq!(rail.bisection(), fat_tree.bisection());
    }
}

#[test]
fn a_hundred_thousand_devices_are_built_and_routed() {
    for n in [
        network(8, 8, 12_800, clos(102_400, 128, 3, 1)),
        flat(dragonfly(13, 26, 13)),
        flat(torus(&[48, 48, 48])),
        network(256, 256, 400, rail_only(400, 256, 400)),
    ] {
        assert!(n.devices() > 100_000);
        assert_eq!(n.topology().bisection(), crossing(&n), "{}", name(&n));
        let ranks = n.devices();
        let job = TrafficJob::from_specs(&[format!("data={ranks}:all-reduce:64MiB:ring")]).unwrap();
        assert!(run_job(&n, &job, Routing::Static, &Failures::default()).unwrap().total > 0.0);
        // 17 bytes a cable and 4 a vertex: megabytes.
        assert!(n.graph().bytes() < 10_000_000, "{} bytes", n.graph().bytes());
    }
}

#[test]
fn what_cannot_be_built_is_refused_with_what_could_be() {
    let text = |e: bessemer_cluster::ClusterError| e.to_string();
    let few = text(Clos::new(1000, 64, Some(3), 1).unwrap_err());
    assert!(
        few.contains("found 1000") && few.contains("1024 hosts") && few.contains("take 2 levels"),
        "{few}"
    );
    let odd = text(Clos::new(1000, 63, None, 1).unwrap_err());
    assert!(odd.contains("network.ports") && odd.contains("even") && odd.contains("63"), "{odd}");
    let share = text(Clos::new(96, 64, None, 2).unwrap_err());
    assert!(share.contains("oversubscription") && share.contains("64 ports"), "{share}");
    let deep = text(Clos::new(65_537, 64, Some(3), 1).unwrap_err());
    assert!(deep.contains("network.levels: wanted 4 or more for 65537 hosts"), "{deep}");
    assert!(text(Dragonfly::new(0, 1, 1).unwrap_err()).contains("p = 0"));
    assert!(text(Dragonfly::new(1000, 1000, 1000).unwrap_err()).contains("at most"));
    assert!(text(Torus::new(&[4, 1]).unwrap_err()).contains("[4, 1]"));
    assert!(text(Torus::new(&[5000, 5000, 5000]).unwrap_err()).contains("1048576"));
}

//! Routes: minimal, spread as the policy says, and round what is dead.

use crate::networks::{all, clos, flat, network, rail_only, torus};
use bessemer_cluster::topology::Topology;
use bessemer_cluster::{CableKind, ClusterError, Failures, Network, Router, Routing, Vertex};
use std::collections::BTreeMap;

const POLICIES: [Routing; 3] = [Routing::Static, Routing::Ecmp { seed: 7 }, Routing::Adaptive];

/// The path between two devices, checked to be one.
fn path(
    network: &Network,
    routing: Routing,
    failures: &Failures,
    from: u32,
    to: u32,
) -> Result<Vec<u32>, ClusterError> {
    let mut links = Vec::new();
    Router::new(network, routing, failures).route(from, to, &mut links)?;
    let mut at = from;
    for link in &links {
        assert_eq!(network.graph().tail(*link), at);
        at = network.graph().head(*link);
        assert!(!failures.cables.contains(&(link / 2)) && !failures.vertices.contains(&at));
    }
    assert_eq!(at, to);
    Ok(links)
}

#[test]
fn paths_are_minimal_under_every_policy() {
    for n in all() {
        for routing in POLICIES {
            for from in 0..n.devices() {
                for to in (0..n.devices()).step_by(3) {
                    let links = path(&n, routing, &Failures::default(), from, to).unwrap();
                    assert_eq!(links.len() as u32, n.distance(from, to), "{:?}", n.topology());
                }
            }
        }
    }
}

/// The links that are offered are those that lead one step nearer, whichever way they are found.
#[test]
fn next_links_lead_one_step_nearer() {
    for n in all().iter().filter(|n| matches!(n.topology(), Topology::Clos(_))) {
        let mut found = Vec::new();
        for at in n.vertex(Vertex::Switch(0))..n.graph().vertices() as u32 {
            for to in (0..n.devices()).step_by(5) {
                n.next_links(at, to, &mut found);
                // Another device of the same node is as near to a leaf where a node has several, but no path leads there.
                let nearer = |l: &&u32| {
                    let head = n.graph().head(**l);
                    let relay = n.node().nics == n.node().devices && head < n.devices() && head != to;
                    n.distance(head, to) + 1 == n.distance(at, to) && !relay
                };
                let wanted: Vec<u32> = n.graph().leaving(at).iter().filter(nearer).copied().collect();
                assert_eq!(found, wanted, "{:?}: {at} to {to}", n.topology());
            }
        }
    }
}

#[test]
fn static_and_adaptive_routes_of_a_shift_share_no_uplink_and_hashes_do() {
    let n = flat(clos(128, 16, 2, 1));
    let none = Failures::default();
    let most = |routing| {
        let mut router = Router::new(&n, routing, &none);
        let mut load = BTreeMap::new();
        for from in 0..128 {
            let mut links = Vec::new();
            router.route(from, (from + 8) % 128, &mut links).unwrap();
            for link in links.iter().filter(|l| n.graph().kind(*l / 2) == CableKind::Fabric) {
                *load.entry(*link).or_insert(0) += 1;
            }
        }
        load.values().copied().max().unwrap()
    };
    assert_eq!(most(Routing::Static), 1);
    assert_eq!(most(Routing::Adaptive), 1);
    assert!(
        (0..10).all(|seed| most(Routing::Ecmp { seed }) > 1),
        "64 flows hashed onto 8 links each collide"
    );
}

#[test]
fn a_torus_goes_the_long_way_round_a_dead_cable() {
    let n = flat(torus(&[8]));
    let cable = path(&n, Routing::Static, &Failures::default(), 2, 3).unwrap()[0] / 2;
    let failures = Failures { cables: [cable].into(), ..Failures::default() };
    assert_eq!(path(&n, Routing::Static, &failures, 2, 3).unwrap().len(), 7);
    assert_eq!(path(&n, Routing::Static, &failures, 3, 4).unwrap().len(), 1);
    assert!(failures.cut_off(&n).is_empty());
}

#[test]
fn a_fat_tree_takes_the_other_paths_of_equal_length() {
    let n = flat(clos(64, 8, 3, 1));
    // One core switch after another dies, until the pods of half the devices are apart.
    let cores: Vec<u32> = (0..n.topology().switches())
        .filter(|s| n.topology().level(*s) == 2)
        .map(|s| n.vertex(Vertex::Switch(s)))
        .collect();
    let mut failures = Failures::default();
    for (dead, core) in cores.iter().enumerate() {
        for routing in POLICIES {
            let links = path(&n, routing, &failures, 0, 63).unwrap();
            assert_eq!(links.len(), 6, "{dead} of {} dead", cores.len());
        }
        failures.vertices.insert(*core);
    }
    let error = path(&n, Routing::Static, &failures, 0, 63).unwrap_err();
    assert_eq!(error, ClusterError::CutOff { from: 0, to: 63 });
    assert_eq!(path(&n, Routing::Static, &failures, 0, 15).unwrap().len(), 4, "a pod has its own switches");
    // Four pods of 16: the largest group that is left is one of them.
    assert_eq!(failures.cut_off(&n).len(), 48);
}

#[test]
fn a_rail_that_is_dead_is_passed_through_the_fast_domain() {
    let n = network(4, 4, 8, rail_only(8, 4, 8));
    let none = Failures::default();
    // Device 1 of node 0 to device 1 of node 5 over rail 1.
    let links = path(&n, Routing::Static, &none, 1, 21).unwrap();
    assert_eq!(links.len(), 2);
    let failures = Failures { vertices: [n.graph().head(links[0])].into(), ..Failures::default() };
    let around = path(&n, Routing::Static, &failures, 1, 21).unwrap();
    assert_eq!(around.len(), 2 + 2 + 2, "into the domain, over another rail, out of the domain");
    assert!(failures.cut_off(&n).is_empty());
    // Between rails one domain is passed, at either end.
    assert_eq!(path(&n, Routing::Static, &none, 0, 21).unwrap().len(), 4);
}

#[test]
fn a_dead_leaf_cuts_off_its_hosts() {
    let n = flat(clos(128, 16, 2, 1));
    let leaf = n.vertex(Vertex::Switch(3));
    let failures = Failures { vertices: [leaf].into(), ..Failures::default() };
    assert_eq!(failures.cut_off(&n), (24..32).collect::<Vec<_>>());
    let error = path(&n, Routing::Adaptive, &failures, 0, 24).unwrap_err().to_string();
    assert!(error.contains("device 0 to device 24"), "{error}");
}

/// The traffic for which minimal routes are worst (Kim et al. 2008, section 4): every host of group i sends to group i + 1.
fn to_the_next_group(n: &Network, hosts: u32) -> Vec<(u32, u32)> {
    (0..n.devices()).map(|from| (from, (from + hosts) % n.devices())).collect()
}

/// Flows on the fullest link between routers, and links of all paths.
fn loads(n: &Network, routing: Routing, pairs: &[(u32, u32)]) -> (u32, usize) {
    let none = Failures::default();
    let mut router = Router::new(n, routing, &none);
    let (mut load, mut links) = (BTreeMap::new(), 0);
    for (from, to) in pairs {
        let mut path = Vec::new();
        router.route(*from, *to, &mut path).unwrap();
        let mut at = *from;
        for link in &path {
            assert_eq!(n.graph().tail(*link), at);
            at = n.graph().head(*link);
        }
        assert_eq!(at, *to);
        links += path.len();
        for link in path.into_iter().filter(|l| n.graph().kind(l / 2) == CableKind::Fabric) {
            *load.entry(link).or_insert(0) += 1;
        }
    }
    (load.values().copied().max().unwrap_or(0), links)
}

#[test]
fn paths_through_other_groups_beat_minimal_ones_where_a_group_sends_to_one_other() {
    for (p, a, h) in [(4, 8, 4), (8, 16, 8)] {
        let n = flat(Topology::Dragonfly(bessemer_cluster::topology::Dragonfly::new(p, a, h).unwrap()));
        let worst = to_the_next_group(&n, p * a);
        let (minimal, short) = loads(&n, Routing::Static, &worst);
        // All hosts of a group share one cable.
        assert_eq!(minimal, p * a);
        for seed in 0..2 {
            let (valiant, long) = loads(&n, Routing::Valiant { seed }, &worst);
            let (ugal, between) = loads(&n, Routing::Ugal { seed }, &worst);
            // Spread over all global cables a host uses two of them: 2p/h flows on each in the mean, 2 where the network is balanced.
            // The fullest of some thousand links with a Poisson distribution of mean 2 has fewer than 16 but once in 10^5 seeds.
            assert!((2..16).contains(&valiant) && valiant <= minimal / 2, "{valiant} of {minimal}");
            assert!(ugal >= 2 && ugal < valiant, "{ugal}, {valiant} of {minimal}");
            assert!(short < between && between <= long, "{short} {between} {long}");
        }
        // Where minimal routes do not collide UGAL keeps them.
        let near: Vec<(u32, u32)> =
            (0..n.devices()).map(|d| (d, d / (p * a) * p * a + (d + p) % (p * a))).collect();
        assert_eq!(loads(&n, Routing::Ugal { seed: 1 }, &near), loads(&n, Routing::Static, &near));
    }
}

#[test]
fn paths_through_other_groups_avoid_what_is_dead() {
    let n = flat(Topology::Dragonfly(bessemer_cluster::topology::Dragonfly::new(2, 4, 2).unwrap()));
    for dead in n.vertex(Vertex::Switch(0))..n.graph().vertices() as u32 {
        let failures = Failures { vertices: [dead].into(), ..Failures::default() };
        for routing in [Routing::Valiant { seed: 3 }, Routing::Ugal { seed: 3 }] {
            for (from, to) in to_the_next_group(&n, 8) {
                match path(&n, routing, &failures, from, to) {
                    Ok(links) => assert!(links.len() <= 8, "{links:?}"),
                    Err(e) => assert!(matches!(e, ClusterError::CutOff { .. }), "{e}"),
                }
            }
        }
    }
    // Other topologies know no groups.
    for n in all().iter().filter(|n| !matches!(n.topology(), Topology::Dragonfly(_))).take(6) {
        let same = |routing, like| {
            path(n, routing, &Failures::default(), 0, n.devices() - 1)
                == path(n, like, &Failures::default(), 0, n.devices() - 1)
        };
        assert!(
            same(Routing::Valiant { seed: 1 }, Routing::Static)
                && same(Routing::Ugal { seed: 1 }, Routing::Adaptive)
        );
    }
}

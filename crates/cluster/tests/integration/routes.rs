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

//! Collectives: golden values of the closed forms, simulations against the closed forms, sums in switches.

use crate::networks::{
    class, clos, dragonfly, flat, network, rail_only, rail_optimised, single_switch, torus,
};
use bessemer_cluster::collective::{
    CollectiveAlgorithm as A, SlotSwitch, SwitchTrees, TrafficKind as K, expand, formulas,
};
use bessemer_cluster::{Failures, Network, NodeShape, Router, Routing, TransferJob, simulate};
use bessemer_units::Link;

const S: f64 = 64.0 * 1024.0 * 1024.0;
const LINK: Link = Link { latency: 5e-6, bandwidth: 200e9 };

/// Seconds of a simulated collective over groups.
fn time(n: &Network, kind: K, algorithm: A, groups: &[Vec<u32>], bytes: f64) -> f64 {
    let phases = expand(n, kind, algorithm, groups, bytes).unwrap();
    let job = TransferJob { name: String::new(), phases };
    let none = Failures::default();
    simulate(&mut Router::new(n, Routing::Static, &none), &[job], 0.0).unwrap().ends[0] as f64 / 1e12
}

fn all(n: &Network) -> Vec<Vec<u32>> {
    vec![(0..n.devices()).collect()]
}

/// Equal but for the picosecond to which each event is rounded up.
fn assert_same(simulated: f64, closed: f64, what: &str) {
    assert!(
        (simulated - closed).abs() < 1e-9 * closed + 4e-9,
        "{what}: simulated {simulated}, closed form {closed}"
    );
}

#[test]
fn closed_forms_have_their_golden_values() {
    let us = |seconds: f64| (seconds * 1e7).round() / 10.0;
    assert_eq!(us(formulas::ring_all_reduce(8, S, LINK)), 657.2);
    assert_eq!(us(formulas::ring_pass(8, S, LINK)), 328.6);
    assert_eq!(us(formulas::halving_doubling(8, S, LINK)), 617.2);
    assert_eq!(us(formulas::double_tree(8, S, LINK)), 701.1);
    assert_eq!(us(formulas::recursive_doubling(8, S, LINK)), 1021.6);
    assert_eq!(us(formulas::switch_tree(1, S, LINK)), 345.5);
    assert_eq!(us(formulas::switch_tree(3, S, LINK)), 365.5);
    let slow = Link { bandwidth: 50e9, ..LINK };
    assert_eq!(us(formulas::torus(4, 3, S, slow)), 530.4);
    assert_eq!(us(formulas::two_level(8, 8, S, LINK, slow)), 1020.8);
    assert_eq!(us(formulas::ring_all_reduce(64, S, slow)), 3272.4);
}

#[test]
fn simulation_is_the_closed_form_where_nothing_contends() {
    for n in [2, 4, 8, 32, 64] {
        let net = flat(single_switch(n));
        let run = |kind, algorithm| time(&net, kind, algorithm, &all(&net), S);
        assert_same(run(K::AllReduce, A::Ring), formulas::ring_all_reduce(n, S, LINK), "ring");
        assert_same(run(K::AllGather, A::Ring), formulas::ring_pass(n, S, LINK), "ring all-gather");
        assert_same(
            run(K::ReduceScatter, A::HalvingDoubling) + run(K::AllGather, A::HalvingDoubling),
            formulas::halving_doubling(n, S, LINK),
            "its halves",
        );
        assert_same(run(K::AllReduce, A::HalvingDoubling), formulas::halving_doubling(n, S, LINK), "halving");
        assert_same(
            run(K::AllReduce, A::RecursiveDoubling),
            formulas::recursive_doubling(n, S, LINK),
            "doubling",
        );
        assert_same(run(K::AllToAll, A::Pairwise), formulas::pairwise(n, S, LINK), "pairwise");
        assert_same(run(K::Neighbours, A::Direct), formulas::point_to_point(S, LINK), "neighbours");
        // One level of switches: a switch on the way up and down, of half the latency of a hop from device to device.
        let half = Link { latency: 2.5e-6, ..LINK };
        assert_same(run(K::AllReduce, A::SwitchTree), formulas::switch_tree(1, S, half), "switch");
        if n >= 8 {
            assert_same(run(K::AllReduce, A::DoubleTree), formulas::double_tree(n, S, LINK), "tree");
        }
    }
}

#[test]
fn a_torus_uses_all_its_links() {
    let node = NodeShape { devices: 1, nics: 1, link: None };
    let link = Link { latency: 5e-6, bandwidth: 50e9 };
    for (k, d) in [(4u32, 3u32), (4, 2), (5, 2), (3, 1), (8, 3)] {
        let build = torus(&vec![k; d as usize]);
        let net =
            Network::new("t", node.clone(), k.pow(d), build, [class(5e-6, 50e9), class(5e-6, 50e9)]).unwrap();
        assert_same(
            time(&net, K::AllReduce, A::Torus, &all(&net), S),
            formulas::torus(k, d, S, link),
            "torus",
        );
    }
}

#[test]
fn two_levels_are_faster_than_a_flat_ring() {
    let node = NodeShape { devices: 8, nics: 8, link: Some(class(2.5e-6, 200e9)) };
    let slow = || class(2.5e-6, 50e9);
    let net = Network::new("t", node, 8, single_switch(64), [slow(), slow()]).unwrap();
    let between = Link { bandwidth: 50e9, ..LINK };
    let two = time(&net, K::AllReduce, A::TwoLevel, &all(&net), S);
    assert_same(two, formulas::two_level(8, 8, S, LINK, between), "two levels");
    let flat = time(&net, K::AllReduce, A::Ring, &all(&net), S);
    assert_same(flat, formulas::ring_all_reduce(64, S, between), "flat ring");
    assert!(3.0 * two < flat);
}

#[test]
fn contention_makes_what_needs_bisection_slower() {
    // Halving-doubling needs the full bisection, a ring does not.
    let (full, third) = (flat(clos(64, 16, 2, 1)), flat(clos(96, 16, 2, 3)));
    let group = vec![(0..64).collect::<Vec<u32>>()];
    let ratio = |algorithm| {
        time(&third, K::AllReduce, algorithm, &group, S) / time(&full, K::AllReduce, algorithm, &group, S)
    };
    assert!(ratio(A::HalvingDoubling) > 1.8, "{}", ratio(A::HalvingDoubling));
    assert!(ratio(A::Ring) < 1.01);
    // An all-to-all is never faster than its bisection allows.
    for t in [clos(64, 16, 2, 1), clos(96, 16, 2, 3), torus(&[8, 8]), torus(&[4, 4, 4]), dragonfly(2, 4, 2)] {
        let n = flat(t);
        let bound = formulas::all_to_all_bound(n.devices(), S, n.topology().bisection() as f64 * 200e9);
        let simulated = time(&n, K::AllToAll, A::Pairwise, &all(&n), S);
        // Halves of odd sizes move n^2/4 - 1/4 pairs at least.
        assert!(simulated >= 0.97 * bound, "{:?}: {simulated} below {bound}", n.topology());
    }
}

#[test]
fn groups_that_share_links_share_bandwidth() {
    let net = flat(clos(64, 16, 2, 1));
    // Rings of two ranks in distant leaves, four of them; neighbours in one leaf.
    let one = time(&net, K::AllReduce, A::Ring, &[vec![0, 8]], S);
    let four: Vec<Vec<u32>> = (0..4).map(|i| vec![i, 8 + i]).collect();
    assert_same(time(&net, K::AllReduce, A::Ring, &four, S), one, "static routes are apart");
    let jobs: Vec<TransferJob> = (0..3)
        .map(|_| TransferJob {
            name: String::new(),
            phases: expand(&net, K::AllReduce, A::Ring, &[vec![0, 8]], S).unwrap(),
        })
        .collect();
    let none = Failures::default();
    let ends = simulate(&mut Router::new(&net, Routing::Static, &none), &jobs, 0.0).unwrap().ends;
    let bytes = S / 200e9;
    for end in ends {
        assert!(
            (end as f64 / 1e12 - (one + 2.0 * bytes)).abs() < 1e-8,
            "three at once move three times the bytes"
        );
    }
}

#[test]
fn sums_in_switches_take_few_latencies_and_half_the_bytes() {
    let net = flat(clos(64, 8, 3, 1));
    let half = Link { latency: 2.5e-6, ..LINK };
    let tree = time(&net, K::AllReduce, A::SwitchTree, &all(&net), S);
    assert_same(tree, formulas::switch_tree(3, S, half), "three levels");
    // The gain tends to 2(n-1)/n for long buffers, and is that of the latencies for short ones.
    let ring = |bytes| formulas::ring_all_reduce(64, bytes, LINK);
    let sharp = |bytes| formulas::switch_tree(3, bytes, half);
    let limit = 2.0 * 63.0 / 64.0;
    assert!((ring(1e13) / sharp(1e13) - limit).abs() < 1e-3 && ring(1e13) / sharp(1e13) < 2.0);
    assert!(ring(8.0) / sharp(8.0) > 40.0);
    // Groups of several rails meet in no switch.
    let rails = network(4, 4, 8, rail_only(8, 4, 8));
    let equal: Vec<Vec<u32>> = (0..4).map(|r| (0..8).map(|n| 4 * n + r).collect()).collect();
    assert_same(
        time(&rails, K::AllReduce, A::SwitchTree, &equal, S),
        formulas::switch_tree(1, S, half),
        "a rail",
    );
    let error = expand(&rails, K::AllReduce, A::SwitchTree, &all(&rails), S).unwrap_err().to_string();
    assert!(error.contains("one switch above every rank") && error.contains("two-level"), "{error}");
    let optimised = network(4, 4, 8, rail_optimised(8, 4, 8, 2));
    assert!(time(&optimised, K::AllReduce, A::SwitchTree, &equal, S) > 0.0);
}

/// Five groups under one switch that serves two trees at once: three waves, as the closed form says.
#[test]
fn groups_wait_for_a_tree() {
    let link = Link { latency: 2.5e-6, bandwidth: 200e9 };
    for (trees, waves) in [(1, 5.0), (2, 3.0), (5, 1.0)] {
        let net = flat(single_switch(20)).with_reduction_trees(trees);
        let groups: Vec<Vec<u32>> = (0..5).map(|g| (4 * g..4 * g + 4).collect()).collect();
        let simulated = time(&net, K::AllReduce, A::SwitchTree, &groups, S);
        let closed = SwitchTrees { levels: 1, link, trees, buffer: f64::INFINITY }.all_reduce(S, 5).unwrap();
        assert_same(simulated, closed, "waves");
        assert_same(closed, waves * formulas::switch_tree(1, S, link), "waves");
    }
    let plain = flat(single_switch(4));
    let node = NodeShape { devices: 1, nics: 1, link: None };
    let class = || plain.class(bessemer_cluster::CableKind::Host).clone();
    let forwards = Network::new("f", node, 4, single_switch(4), [class(), class()]).unwrap();
    let error = expand(&forwards, K::AllReduce, A::SwitchTree, &all(&forwards), S).unwrap_err().to_string();
    assert!(error.contains("only forward") && error.contains("network.reduction_trees"), "{error}");
}

#[test]
fn concurrent_trees_wait_and_small_buffers_throttle() {
    let trees = |trees, buffer| SwitchTrees { levels: 2, link: LINK, trees, buffer };
    let one = formulas::switch_tree(2, S, LINK);
    assert_eq!(trees(4, f64::INFINITY).all_reduce(S, 4).unwrap(), one);
    assert_eq!(trees(2, f64::INFINITY).all_reduce(S, 4).unwrap(), 2.0 * one);
    assert_eq!(trees(2, f64::INFINITY).all_reduce(S, 5).unwrap(), 3.0 * one);
    // 20 us round trip at 200 GB/s is 4 MB on the way; half the buffer is half the rate.
    assert!((trees(1, 4e6).all_reduce(S, 1).unwrap() - one).abs() < 1e-12);
    let throttled = trees(1, 2e6).all_reduce(S, 1).unwrap();
    assert!((throttled - (20e-6 + S / 100e9)).abs() < 1e-12);
    assert!(trees(0, 1.0).all_reduce(S, 1).is_err());
}

#[test]
fn slots_bound_the_rate_until_they_cover_the_delay() {
    let switch = |slots| SlotSwitch { slots, packet: 256, link: Link { latency: 5e-6, bandwidth: 12.5e9 } };
    // 125 kB in 10 us, and the packet itself.
    assert_eq!(switch(1).slots_of_full_rate(), 490);
    assert_eq!(switch(490).throughput(), 12.5e9);
    let half = switch(245).throughput() / 12.5e9;
    assert!((half - 0.5).abs() < 0.002, "{half}");
    assert!((switch(128).throughput() - 128.0 * 256.0 / switch(128).round_trip()).abs() < 1.0);
    let full = switch(512).all_reduce(S).unwrap();
    assert!((full - (10e-6 + S / 12.5e9)).abs() < 1e-12);
    assert!(switch(64).all_reduce(S).unwrap() > 7.0 * full);
    assert!(switch(0).all_reduce(S).unwrap_err().to_string().contains("0 slots"));
}

#[test]
fn what_an_algorithm_cannot_do_is_refused() {
    let net = flat(single_switch(6));
    let text = |kind, algorithm| expand(&net, kind, algorithm, &all(&net), S).unwrap_err().to_string();
    let power = text(K::AllReduce, A::HalvingDoubling);
    assert!(power.contains("power of two") && power.contains("found 6"), "{power}");
    assert!(text(K::AllToAll, A::Ring).contains("wanted one of pairwise"));
    assert!(text(K::AllReduce, A::Torus).contains("wanted a torus, found switch"));
    assert!(text(K::AllReduce, A::TwoLevel).contains("several nodes"));
    let uneven = expand(&net, K::AllReduce, A::Ring, &[vec![0, 1], vec![2]], S).unwrap_err().to_string();
    assert!(uneven.contains("[2, 1]"), "{uneven}");
    assert_eq!(expand(&net, K::AllReduce, A::Ring, &[vec![0], vec![2]], S).unwrap(), []);
    let oblong = flat(torus(&[4, 3]));
    let error = expand(&oblong, K::AllReduce, A::Torus, &[vec![0, 1, 4]], S).unwrap_err().to_string();
    assert!(error.contains("[4, 3]"), "{error}");
}

//! Rates and times of flows.

use crate::networks::{class, clos, flat, network, single_switch, torus};
use bessemer_cluster::topology::Topology;
use bessemer_cluster::{
    Failures, FairShares, FlowOutcome, Network, NodeShape, Route, Router, Routing, Transfer, TransferJob,
    TransferPhase, simulate,
};
use proptest::prelude::*;

fn job(flows: &[(u32, u32, f64)], rounds: u64) -> TransferJob {
    let flow = |(from, to, bytes): &(u32, u32, f64)| Transfer {
        route: Route::Between { from: *from, to: *to },
        bytes: *bytes,
        messages: 1,
    };
    let phase = TransferPhase { flows: flows.iter().map(flow).collect(), rounds, depth: 1 };
    TransferJob { name: "job".into(), phases: vec![phase] }
}

fn run(network: &Network, routing: Routing, jobs: &[TransferJob]) -> FlowOutcome {
    simulate(&mut Router::new(network, routing, &Failures::default()), jobs, 0.0).unwrap()
}

#[test]
fn one_message_takes_its_latency_and_its_bytes() {
    let n = flat(single_switch(4));
    // 2 x 2.5 us, 1 MB at 200 GB/s.
    assert_eq!(run(&n, Routing::Static, &[job(&[(0, 1, 1e6)], 1)]).ends, [5_000_000 + 5_000_000]);
    assert_eq!(run(&n, Routing::Static, &[job(&[(0, 1, 1e6)], 7)]).ends, [70_000_000]);
    assert_eq!(run(&n, Routing::Static, &[job(&[], 3), job(&[(2, 2, 5.0)], 2)]).ends, [0, 0]);
}

#[test]
fn two_jobs_on_one_link_take_twice_as_long() {
    let node = || NodeShape { devices: 1, nics: 1, link: None };
    let quiet = || class(0.0, 200e9);
    let n = Network::new("test", node(), 4, single_switch(4), [quiet(), quiet()]).unwrap();
    let (a, b) = (job(&[(0, 1, 1e6)], 5), job(&[(0, 2, 1e6)], 5));
    let alone = run(&n, Routing::Static, std::slice::from_ref(&a)).ends[0];
    assert_eq!(run(&n, Routing::Static, &[a.clone(), b]).ends, [2 * alone; 2]);
    // In opposite directions, or on other links, they do not meet.
    assert_eq!(run(&n, Routing::Static, &[a.clone(), job(&[(1, 0, 1e6)], 5)]).ends, [alone; 2]);
    assert_eq!(run(&n, Routing::Static, &[a, job(&[(2, 3, 1e6)], 5)]).ends, [alone; 2]);
}

#[test]
fn a_short_flow_leaves_its_share_to_the_long_one() {
    let node = NodeShape { devices: 1, nics: 1, link: None };
    let n = Network::new("test", node, 3, single_switch(3), [class(0.0, 1e9), class(0.0, 1e9)]).unwrap();
    // Together until 1 MB of each has gone at half the rate, 2 ms; then 2 MB alone, 2 ms.
    let outcome = run(&n, Routing::Static, &[job(&[(0, 2, 1e6)], 1), job(&[(1, 2, 3e6)], 1)]);
    assert_eq!(outcome.ends, [2_000_000_000, 4_000_000_000]);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let n = flat(clos(64, 8, 3, 1));
    let flows: Vec<_> = (0..64).map(|i| (i, (i * 29 + 5) % 64, 1e6 + f64::from(i * 977))).collect();
    for routing in [Routing::Static, Routing::Ecmp { seed: 1 }, Routing::Adaptive] {
        let once = run(&n, routing, &[job(&flows, 2), job(&flows, 1)]);
        assert_eq!(once, run(&n, routing, &[job(&flows, 2), job(&flows, 1)]));
        // Rounds that are multiplied are as long as rounds that are simulated one by one.
        let (one, many) = (run(&n, routing, &[job(&flows, 1)]), run(&n, routing, &[job(&flows, 9)]));
        assert_eq!(many.ends[0], 9 * one.ends[0]);
    }
}

#[test]
fn times_that_64_bits_do_not_hold_are_refused() {
    let node = NodeShape { devices: 1, nics: 1, link: None };
    let slow = || class(1.0, 1e3);
    let n = Network::new("test", node, 4, single_switch(4), [slow(), slow()]).unwrap();
    let none = Failures::default();
    for (bytes, rounds, jobs) in [(1e18, 1, 1), (1e6, u64::MAX, 1), (1e18, 3, 2)] {
        let jobs = vec![job(&[(0, 1, bytes)], rounds); jobs];
        let error =
            simulate(&mut Router::new(&n, Routing::Static, &none), &jobs, 0.0).unwrap_err().to_string();
        assert!(error.contains("213 days"), "{error}");
    }
}

#[test]
fn hash_collisions_are_counted_and_cost_time() {
    let n = flat(clos(128, 16, 2, 1));
    let flows: Vec<_> = (0..128).map(|i| (i, (i + 8) % 128, 1e6)).collect();
    let fair = run(&n, Routing::Static, &[job(&flows, 1)]);
    assert_eq!((fair.most_flows, fair.shared_links), (1, 0));
    let hashed = run(&n, Routing::Ecmp { seed: 3 }, &[job(&flows, 1)]);
    assert!(hashed.most_flows > 1 && hashed.shared_links > 0);
    // The slowest flow has a share of the link with most flows.
    let bytes = |o: &FlowOutcome| o.ends[0] as f64 - 4.0 * 2.5e6;
    assert!((bytes(&hashed) / bytes(&fair) - f64::from(hashed.most_flows)).abs() < 1e-6);
    assert_eq!(run(&n, Routing::Adaptive, &[job(&flows, 1)]).ends, fair.ends);
}

#[test]
fn devices_that_share_a_port_share_its_bandwidth() {
    let flows: Vec<_> = (0..4).map(|i| (i, 4 + i, 1e6)).collect();
    let own = run(&network(4, 4, 2, single_switch(8)), Routing::Static, &[job(&flows, 1)]).ends[0];
    let one = run(&network(4, 1, 2, single_switch(2)), Routing::Static, &[job(&flows, 1)]).ends[0];
    let bytes = 5_000_000;
    assert_eq!((own, one), (5_000_000 + bytes, 10_000_000 + 4 * bytes));
}

#[test]
fn another_topology_gives_another_time() {
    let flows: Vec<_> = (0..64).map(|i| (i, (i + 32) % 64, 1e6)).collect();
    let time = |t: Topology| run(&flat(t), Routing::Static, &[job(&flows, 1)]).ends[0];
    let times = [time(single_switch(64)), time(clos(64, 8, 3, 1)), time(torus(&[8, 8])), time(torus(&[64]))];
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
}

/// Max-min fairness, from its definition: every flow has a link that is full and on which no flow has more.
fn is_fair(paths: &[Vec<u32>], capacity: &[f64], rates: &[f64]) -> bool {
    let used = |link: u32| -> f64 {
        paths.iter().zip(rates).filter(|(p, _)| p.contains(&link)).map(|(_, r)| r).sum()
    };
    let within = (0..capacity.len()).all(|l| used(l as u32) <= capacity[l] * (1.0 + 1e-9));
    within
        && paths.iter().zip(rates).all(|(path, rate)| {
            path.iter().any(|link| {
                let full = used(*link) >= capacity[*link as usize] * (1.0 - 1e-9);
                let largest = paths
                    .iter()
                    .zip(rates)
                    .filter(|(p, _)| p.contains(link))
                    .all(|(_, r)| *r <= rate * (1.0 + 1e-9));
                full && largest
            })
        })
}

proptest! {
    #[test]
    fn rates_are_max_min_fair(
        sets in prop::collection::vec(prop::collection::btree_set(0u32..12, 1..5), 1..40),
        capacity in prop::collection::vec(1.0f64..100.0, 12),
    ) {
        let paths: Vec<Vec<u32>> = sets.into_iter().map(|s| s.into_iter().collect()).collect();
        let slices: Vec<&[u32]> = paths.iter().map(Vec::as_slice).collect();
        let mut shares = FairShares::new(12);
        let rates = shares.rates(&slices, |l| capacity[l as usize]);
        prop_assert!(is_fair(&paths, &capacity, &rates), "{rates:?}");
        prop_assert_eq!(&rates, &shares.rates(&slices, |l| capacity[l as usize]));
    }

    #[test]
    fn more_bandwidth_is_never_slower(
        pairs in prop::collection::vec((0u32..16, 0u32..16, 1u32..1000), 1..60),
        factor in 1.0f64..8.0,
    ) {
        let flows: Vec<_> = pairs.iter().map(|(a, b, kb)| (*a, *b, f64::from(*kb) * 1e3)).collect();
        let time = |bandwidth: f64| {
            let node = NodeShape { devices: 1, nics: 1, link: None };
            let link = || class(1e-6, bandwidth);
            let n = Network::new("test", node, 16, clos(16, 4, 3, 1), [link(), link()]).unwrap();
            run(&n, Routing::Static, &[job(&flows, 2)]).ends[0]
        };
        // Each event rounds up to a picosecond.
        prop_assert!(time(1e9 * factor) <= time(1e9) + 200);
    }

    #[test]
    fn jobs_never_end_before_they_would_alone(
        a in prop::collection::vec((0u32..16, 0u32..16, 1u32..1000), 1..20),
        b in prop::collection::vec((0u32..16, 0u32..16, 1u32..1000), 1..20),
    ) {
        let n = flat(clos(16, 4, 3, 1));
        let jobs: Vec<_> = [a, b].iter().map(|pairs| {
            let flows: Vec<_> = pairs.iter().map(|(a, b, kb)| (*a, *b, f64::from(*kb) * 1e3)).collect();
            job(&flows, 1)
        }).collect();
        let both = run(&n, Routing::Static, &jobs).ends;
        let bytes: Vec<f64> = jobs.iter().map(|j| j.phases[0].flows.iter().map(|f| f.bytes).sum()).collect();
        for (job, together) in jobs.iter().zip(&both) {
            // No flow is faster than its own bytes on an idle path.
            let alone = job.phases[0].flows.iter().map(|f| match f.route {
                Route::Between { from, to } if from != to => {
                    n.distance(from, to) as f64 * 2.5e-6 + f.bytes / 200e9
                }
                _ => 0.0,
            }).fold(0.0, f64::max);
            prop_assert!(*together as f64 + 2.0 >= alone * 1e12);
        }
        // All bytes went over one link each at their sender at most one after another.
        let longest = both.iter().max().unwrap();
        prop_assert!(*longest as f64 <= (bytes.iter().sum::<f64>() / 200e9 + 6.0 * 2.5e-6) * 1e12 + 200.0);
    }
}

//! Placement of axes: times kept by stride are those of the simulation, and the order found is the best of all.

use crate::networks::{all, clos, flat, network, rail_only};
use bessemer_cluster::collective::{CollectiveAlgorithm, TrafficKind, expand};
use bessemer_cluster::topology::Topology;
use bessemer_cluster::{
    AxisDemand, AxisExchange, Description, EXAMPLES, Failures, Network, PICOSECONDS, Placement, Router,
    Routing, TransferJob, simulate,
};

/// Groups of the axis among the first `world` devices.
fn groups(stride: u32, ranks: u32, world: u32) -> Vec<Vec<u32>> {
    let first = (0..world).filter(|d| (d / stride).is_multiple_of(ranks));
    first.map(|d| (0..ranks).map(|i| d + i * stride).collect()).collect()
}

/// The fastest algorithm by the simulation of all groups.
fn simulated(
    n: &Network,
    routing: Routing,
    kind: TrafficKind,
    groups: &[Vec<u32>],
    bytes: f64,
) -> Option<(f64, usize)> {
    let none = Failures::default();
    let mut best: Option<(f64, usize)> = None;
    for algorithm in CollectiveAlgorithm::ALL.into_iter().filter(|a| a.serves(kind)) {
        let Ok(phases) = expand(n, kind, algorithm, groups, bytes) else { continue };
        let rounds = phases.iter().map(|p| p.rounds as usize).sum::<usize>();
        let job = TransferJob { name: String::new(), phases };
        let mut router = Router::new(n, routing, &none);
        let ends = simulate(&mut router, &[job], 1e-6).unwrap().ends;
        let seconds = ends[0] as f64 / PICOSECONDS;
        if best.is_none_or(|b| seconds < b.0) {
            best = Some((seconds, rounds));
        }
    }
    best
}

#[test]
fn times_are_those_of_all_groups_simulated_at_once() {
    let mut compared = 0;
    for n in all().iter().filter(|n| n.devices() <= 64) {
        for routing in
            [Routing::Static, Routing::Adaptive, Routing::Ecmp { seed: 3 }, Routing::Ugal { seed: 3 }]
        {
            let mut placement = Placement::new(n, routing, 1e-6);
            let world = n.devices();
            for ranks in [2, 4, 8] {
                for stride in [1, 2, 3, 4, 8].into_iter().filter(|s| world.is_multiple_of(s * ranks)) {
                    for kind in [
                        TrafficKind::AllReduce,
                        TrafficKind::AllGather,
                        TrafficKind::AllToAll,
                        TrafficKind::Neighbours,
                    ] {
                        for bytes in [8.0, 1e5, 64e6] {
                            let found =
                                placement.axis_cost(kind, stride, ranks, world).unwrap().seconds(bytes);
                            let groups = groups(stride, ranks, world);
                            let (wanted, rounds) = simulated(n, routing, kind, &groups, bytes).unwrap();
                            // Each round ends on a whole picosecond.
                            let slack = (rounds + 8) as f64 * 2e-12 + 1e-8 * wanted;
                            assert!(
                                (found - wanted).abs() < slack,
                                "{:?} {routing:?} {kind:?} {ranks} ranks at {stride}, {bytes} bytes: {found} for {wanted}",
                                n.topology()
                            );
                            compared += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(compared > 3000, "{compared}");
}

fn demand(name: &str, ranks: u32, exchanges: &[(TrafficKind, f64, f64)]) -> AxisDemand {
    let exchanges = exchanges.iter().map(|(kind, bytes, count)| AxisExchange {
        kind: *kind,
        bytes: *bytes,
        count: *count,
    });
    AxisDemand { name: name.into(), ranks, exchanges: exchanges.collect() }
}

fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(n - 1);
    let insert = |order: &Vec<usize>, at: usize| [&order[..at], &[n - 1], &order[at..]].concat();
    shorter.iter().flat_map(|order| (0..n).map(move |at| insert(order, at))).collect()
}

#[test]
fn the_best_order_is_the_best_of_all() {
    let networks = [
        network(4, 4, 16, clos(64, 8, 3, 1)),
        network(4, 4, 16, rail_only(16, 4, 8)),
        flat(Topology::Torus(bessemer_cluster::topology::Torus::new(&[4, 4, 4]).unwrap())),
    ];
    for (i, n) in networks.iter().enumerate() {
        for (j, sizes) in
            [[1e6, 1e8, 1e5, 1e7], [1e8, 1e6, 1e7, 1e3], [1e3, 1e3, 1e9, 1e8]].into_iter().enumerate()
        {
            let axes = [
                demand("data", 4, &[(TrafficKind::AllReduce, sizes[0], 1.0)]),
                demand(
                    "tensor",
                    4,
                    &[(TrafficKind::AllGather, sizes[1], 8.0), (TrafficKind::ReduceScatter, sizes[1], 8.0)],
                ),
                demand("expert", 2, &[(TrafficKind::AllToAll, sizes[2], 3.0)]),
                demand("pipeline", 2, &[(TrafficKind::Neighbours, sizes[3], 16.0)]),
            ];
            let mut placement = Placement::new(n, Routing::Static, 0.0);
            let found = placement.best_order(&axes, 0).unwrap();
            let computed = placement.computed();
            let all: Vec<f64> =
                orders(4).iter().map(|order| placement.place(&axes, order).unwrap().seconds).collect();
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            assert_eq!(all.len(), 24);
            assert!(
                (found.seconds - least).abs() <= 1e-12 * least,
                "network {i}, sizes {j}: {found:?} for {least}"
            );
            let again = placement.place(&axes, &found.order).unwrap();
            assert_eq!(again, found);
            assert!(all.iter().copied().fold(0.0, f64::max) > 1.01 * least, "orders differ");
            assert!(computed <= placement.computed());
            // An axis that stays outermost.
            let kept = placement.best_order(&axes, 1).unwrap();
            assert_eq!(kept.order[3], 3);
            let mut least = f64::INFINITY;
            for order in orders(3) {
                least = least.min(placement.place(&axes, &[&order[..], &[3]].concat()).unwrap().seconds);
            }
            assert!((kept.seconds - least).abs() <= 1e-12 * least);
        }
    }
}

/// Tensor parallelism belongs in the node and data parallelism outside, as everybody places them.
#[test]
fn many_devices_are_placed_from_few_simulations() {
    let text = EXAMPLES.iter().find(|e| e.0 == "fat-tree-16384").unwrap().1;
    let n = Description::parse("fat-tree-16384", text).unwrap().network;
    let axes = [
        demand("data", 128, &[(TrafficKind::ReduceScatter, 1e9, 1.0), (TrafficKind::AllGather, 1e9, 1.0)]),
        demand("pipeline", 16, &[(TrafficKind::Neighbours, 5e7, 32.0)]),
        demand(
            "tensor",
            8,
            &[(TrafficKind::AllGather, 1e8, 200.0), (TrafficKind::ReduceScatter, 1e8, 200.0)],
        ),
    ];
    let mut placement = Placement::new(&n, Routing::Static, 0.0);
    let found = placement.best_order(&axes, 0).unwrap();
    assert_eq!(found.order[0], 2, "{found:?}");
    // Of 3 orders x 3 places and 5 exchanges.
    assert!(placement.computed() <= 20, "{}", placement.computed());
}

#[test]
fn what_cannot_be_placed_is_refused() {
    let n = network(4, 4, 4, clos(16, 8, 2, 1));
    let mut placement = Placement::new(&n, Routing::Static, 0.0);
    let axes = [demand("data", 5, &[]), demand("tensor", 4, &[])];
    let error = placement.best_order(&axes, 0).unwrap_err().to_string();
    assert!(error.contains("1 to 16 ranks") && error.contains("data 5 x tensor 4"), "{error}");
    let error = placement.axis_cost(TrafficKind::AllReduce, 2, 4, 12).unwrap_err().to_string();
    assert!(error.contains("multiple of the 8 ranks") && error.contains("found 12"), "{error}");
    let alone = placement.axis_cost(TrafficKind::AllReduce, 4, 1, 16).unwrap();
    assert_eq!((alone.seconds(1e9), alone.best(1.0)), (0.0, None));
}

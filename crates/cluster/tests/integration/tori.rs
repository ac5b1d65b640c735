//! Collectives along several dims of tori and of parts of them: golden values, closed forms, and a simulation of each message.

use crate::networks::{class, torus};
use bessemer_cluster::collective::{CollectiveAlgorithm as A, TrafficKind as K, expand, formulas};
use bessemer_cluster::{Failures, Network, NodeShape, Router, Routing, TransferJob, simulate};
use bessemer_units::{Link, splitmix::SplitMix64};

const S: f64 = 64.0 * 1024.0 * 1024.0;
const LINK: Link = Link { latency: 5e-6, bandwidth: 50e9 };

fn network(dims: &[u32]) -> Network {
    let node = NodeShape { devices: 1, nics: 1, link: None };
    let link = || class(LINK.latency, LINK.bandwidth);
    Network::new("torus", node, dims.iter().product(), torus(dims), [link(), link()]).unwrap()
}

/// Seconds of a collective of groups that run at once.
fn seconds(network: &Network, kind: K, groups: &[Vec<u32>]) -> f64 {
    let phases = expand(network, kind, A::Torus, groups, S).unwrap();
    let job = TransferJob { name: String::new(), phases };
    let none = Failures::default();
    simulate(&mut Router::new(network, Routing::Static, &none), &[job], 0.0).unwrap().ends[0] as f64 / 1e12
}

fn whole(network: &Network) -> Vec<Vec<u32>> {
    vec![(0..network.devices()).collect()]
}

fn coordinates(device: u32, dims: &[u32]) -> Vec<u32> {
    let mut rest = device;
    dims.iter()
        .map(|k| {
            let at = rest % k;
            rest /= k;
            at
        })
        .collect()
}

/// Groups of the devices that differ in some dims only.
fn along(dims: &[u32], spanned: &[usize]) -> Vec<Vec<u32>> {
    let devices: u32 = dims.iter().product();
    let mut groups: std::collections::BTreeMap<Vec<u32>, Vec<u32>> = std::collections::BTreeMap::new();
    for device in 0..devices {
        let at = coordinates(device, dims);
        let rest = (0..dims.len()).filter(|dim| !spanned.contains(dim)).map(|dim| at[dim]).collect();
        groups.entry(rest).or_default().push(device);
    }
    groups.into_values().collect()
}

fn assert_same(found: f64, wanted: f64, what: &str) {
    assert!((found - wanted).abs() < 1e-9 * wanted + 4e-9, "{what}: {found}, wanted {wanted}");
}

#[test]
fn golden_values_of_unequal_sides() {
    let us = |sides: &[u32]| (2e7 * formulas::torus_pass(sides, S, LINK)).round() / 10.0;
    assert_eq!(us(&[4, 4, 4]), 530.4);
    assert_same(2.0 * formulas::torus_pass(&[8; 3], S, LINK), formulas::torus(8, 3, S, LINK), "equal sides");
    assert_eq!(us(&[2, 8]), 1040.4);
    assert_eq!(us(&[8, 8, 16]), 910.7);
    assert_eq!(us(&[2, 4, 8]), 751.0);
    assert_eq!(us(&[3, 5]), 763.3);
    assert_eq!(us(&[16]), 1408.3);
    // Two devices have one cable: a ring of two.
    assert_eq!(us(&[2]), 1352.2);
    assert_eq!(us(&[2, 2, 2]), 812.9);
}

#[test]
fn the_order_of_dims_makes_no_difference() {
    for sides in
        [vec![2, 8], vec![8, 2], vec![2, 4, 8], vec![8, 4, 2], vec![4, 8, 2], vec![16], vec![5, 3, 2]]
    {
        let mut sorted = sides.clone();
        sorted.sort_unstable();
        for kind in [K::AllReduce, K::ReduceScatter, K::AllGather] {
            let [one, other] = [&sides, &sorted].map(|dims| {
                let network = network(dims);
                seconds(&network, kind, &whole(&network))
            });
            assert_eq!(one, other, "{sides:?}");
        }
    }
}

/// A message of a ring: it leaves when its chunk is there and the link is free.
struct MessageRing<'a> {
    devices: &'a [u32],
    bytes: f64,
}

/// Simulates a reduce-scatter of one group message by message: contributions are bits, links serve one message after the other. Returns
/// the seconds after which the last stage ends. Panics where a contribution is added twice or missing at the end.
fn messages(dims: &[u32], group: &[u32], spanned: &[usize]) -> f64 {
    let mut order = spanned.to_vec();
    order.sort_by_key(|dim| (dims[*dim], *dim));
    let directions = |dim: usize| if dims[dim] > 2 { 2 } else { 1 };
    let weight = |dim: usize| {
        let k = f64::from(dims[dim]);
        f64::from(directions(dim)) * k / (k - 1.0)
    };
    let weights: f64 = order.iter().map(|dim| weight(*dim)).sum();
    let index = |device: u32| group.iter().position(|other| *other == device).unwrap();
    let stride = |dim: usize| dims[..dim].iter().product::<u32>();
    // By slice and direction and device: who contributed to the part that it holds.
    let mut held: Vec<Vec<Vec<u64>>> =
        order.iter().map(|_| vec![(0..group.len()).map(|i| 1 << i).collect(); 2]).collect();
    let mut parts: Vec<f64> = order.iter().map(|dim| S * weight(*dim) / weights).collect();
    let mut now = 0.0;
    for stage in 0..order.len() {
        let mut end: f64 = now;
        for first in 0..order.len() {
            let dim = order[(first + stage) % order.len()];
            let k = dims[dim] as usize;
            for direction in 0..directions(dim) as usize {
                // Slices of a dim of two devices travel in one direction, whole.
                let ways = if directions(dim) == 2 { vec![direction] } else { vec![0, 1] };
                let bytes = parts[first] / k as f64 / f64::from(directions(dim));
                for origin in group.iter().filter(|device| coordinates(**device, dims)[dim] == 0) {
                    let devices: Vec<u32> = (0..k)
                        .map(|p| origin + if direction == 0 { p } else { (k - p) % k } as u32 * stride(dim))
                        .collect();
                    let ring = MessageRing { devices: &devices, bytes };
                    let (chunks, finished) = reduce(&ring, now, &|device| {
                        ways.iter().map(|way| held[first][*way][index(device)]).collect()
                    });
                    end = end.max(finished);
                    for (device, masks) in devices.iter().zip(chunks) {
                        for (way, mask) in ways.iter().zip(masks) {
                            held[first][*way][index(*device)] = mask;
                        }
                    }
                }
            }
            parts[first] /= k as f64;
        }
        now = end;
    }
    let all = if group.len() == 64 { u64::MAX } else { (1 << group.len()) - 1 };
    assert!(held.iter().flatten().flatten().all(|mask| *mask == all), "a contribution is missing");
    now
}

/// Reduce-scatter round one ring that begins at `now`: the contributions to the chunk that each device keeps, and when the last arrived.
fn reduce(ring: &MessageRing<'_>, now: f64, held: &dyn Fn(u32) -> Vec<u64>) -> (Vec<Vec<u64>>, f64) {
    let k = ring.devices.len();
    let mut chunks: Vec<Vec<Vec<u64>>> = ring.devices.iter().map(|device| vec![held(*device); k]).collect();
    let mut ready = vec![now; k];
    let mut free = vec![now; k];
    for round in 0..k - 1 {
        let mut arrivals = Vec::new();
        for p in 0..k {
            let chunk = (p + k - round) % k;
            let begin = ready[p].max(free[p]);
            free[p] = begin + ring.bytes / LINK.bandwidth;
            arrivals.push(((p + 1) % k, chunk, chunks[p][chunk].clone(), free[p] + LINK.latency));
        }
        for (p, chunk, masks, at) in arrivals {
            for (own, other) in chunks[p][chunk].iter_mut().zip(masks) {
                assert_eq!(*own & other, 0, "a contribution is added twice");
                *own |= other;
            }
            ready[p] = at;
        }
    }
    let kept = (0..k).map(|p| chunks[p][(p + 1) % k].clone()).collect();
    (kept, ready.iter().copied().fold(now, f64::max))
}

/// Random tori and random dims of them, all groups at once: the flows, the closed form and the messages take equally long.
#[test]
fn two_hundred_parts_of_tori_take_the_closed_form() {
    let mut random = SplitMix64(48);
    let mut cases = 0;
    while cases < 200 {
        let dims: Vec<u32> = (0..1 + random.index(4)).map(|_| 2 + random.index(6) as u32).collect();
        let spanned: Vec<usize> = (0..dims.len()).filter(|_| random.index(3) > 0).collect();
        let sides: Vec<u32> = spanned.iter().map(|dim| dims[*dim]).collect();
        let (devices, n) = (dims.iter().product::<u32>(), sides.iter().product::<u32>());
        if spanned.is_empty() || n > 64 || devices > 600 {
            continue;
        }
        cases += 1;
        let (network, groups) = (network(&dims), along(&dims, &spanned));
        let closed = formulas::torus_pass(&sides, S, LINK);
        let what = format!("{dims:?} along {spanned:?}");
        let reduced = seconds(&network, K::ReduceScatter, &groups);
        assert_same(reduced, closed, &what);
        assert_same(seconds(&network, K::AllGather, &groups), closed, &what);
        assert_same(seconds(&network, K::AllReduce, &groups), 2.0 * closed, &what);
        assert_same(messages(&dims, &groups[random.index(groups.len())], &spanned), reduced, &what);
        // Never below what leaves a device over all its links, and within a third of that besides latencies.
        let links: f64 = sides.iter().map(|k| f64::from((*k).min(3) - 1)).sum();
        let least = (1.0 - 1.0 / f64::from(n)) * S / links / LINK.bandwidth;
        let latencies = f64::from(sides.iter().max().unwrap() - 1) * LINK.latency * sides.len() as f64;
        assert!(
            reduced >= least && reduced <= 4.0 / 3.0 * least + latencies,
            "{what}: {reduced}, least {least}"
        );
    }
}

/// Blocks that are no whole rings: the closing message of each ring goes back over the others' links, which both directions then share.
#[test]
fn blocks_of_a_torus_pay_for_what_does_not_close() {
    let network = network(&[8, 8]);
    let block = |rows: std::ops::Range<u32>, columns: std::ops::Range<u32>| -> Vec<u32> {
        rows.flat_map(|row| columns.clone().map(move |column| 8 * row + column)).collect()
    };
    let time = |groups: &[Vec<u32>]| seconds(&network, K::AllReduce, groups);
    let quarter = time(&[block(0..4, 0..4)]);
    let closed = 2.0 * formulas::torus_pass(&[4, 4], S, LINK);
    let twice = 2.0 * formulas::torus_pass(&[4, 4], 2.0 * S, Link { latency: 4.0 * LINK.latency, ..LINK });
    assert!(closed < quarter && quarter <= twice, "{closed} {quarter} {twice}");
    // The four quarters at once share no link.
    let quarters: Vec<Vec<u32>> = [0, 4]
        .into_iter()
        .flat_map(|row| [0, 4].map(|column| block(row..row + 4, column..column + 4)))
        .collect();
    assert_same(time(&quarters), quarter, "quarters");
    // Alternate devices along both dims: whole rings of four, whose messages take two hops that another group's share.
    let alternate: Vec<u32> = (0..64).filter(|device| device % 2 == 0 && device / 8 % 2 == 0).collect();
    let hops = 2.0 * formulas::torus_pass(&[4, 4], S, Link { latency: 2.0 * LINK.latency, ..LINK });
    assert_same(time(std::slice::from_ref(&alternate)), hops, "alternate devices");
    let others: Vec<Vec<u32>> =
        [0, 1, 8, 9].map(|by| alternate.iter().map(|device| device + by).collect()).into();
    let shared = time(&others);
    assert!(shared > 1.8 * (hops - 12.0 * 2.0 * LINK.latency), "{shared} {hops}");
    // Against a ring of the same sixteen devices.
    let group = vec![block(0..4, 0..4)];
    let ring = expand(&network, K::AllReduce, A::Ring, &group, S).unwrap();
    let ring = TransferJob { name: String::new(), phases: ring };
    let none = Failures::default();
    let ring = simulate(&mut Router::new(&network, Routing::Static, &none), &[ring], 0.0).unwrap().ends[0];
    assert!(quarter < ring as f64 / 1e12, "{quarter} {ring}");
    let refused =
        |groups: &[Vec<u32>]| expand(&network, K::AllReduce, A::Torus, groups, S).unwrap_err().to_string();
    assert!(refused(&[vec![0, 1, 8]]).contains("groups that are blocks of the torus"));
    assert!(refused(&[block(0..2, 0..4), block(0..4, 0..2)]).contains("groups that are blocks of the torus"));
}

/// 524,288 devices in seconds: messages that share no link need no events.
#[test]
fn half_a_million_devices_take_seconds() {
    let dims = [64, 128, 64];
    let network = network(&dims);
    let begun = std::time::Instant::now();
    let found = seconds(&network, K::AllGather, &whole(&network));
    assert_same(found, formulas::torus_pass(&dims, S, LINK), "524,288 devices");
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

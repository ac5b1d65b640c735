//! The ledger against the formulas of ring algorithms.

use crate::world::{ENGINES, LONG, each, world};
use bessemer_collectives::{
    CollectiveKind, Communicator, ElementType, HostBuffer, Ledger, Message, NullCommunicator, Parts, Reduce,
    Traffic, Volume,
};
use half::bf16;

fn traffic(calls: u64, sent: usize, received: usize) -> Traffic {
    Traffic { calls, volume: Volume { sent: sent as u64, received: received as u64 } }
}

#[test]
fn even_parts_cost_what_the_formulas_say() {
    for engine in ENGINES {
        for n in 1..=8 {
            let len = 840 * n;
            let ledgers = each(world(engine, n, LONG), |c| {
                let ledger = Ledger::new();
                let mut c = ledger.wrap(c);
                let parts = Parts::even(len, n);
                let mut v = vec![1.0f32; len];
                for _ in 0..3 {
                    c.all_reduce("a", &mut v, Reduce::Sum).unwrap();
                }
                c.reduce_scatter("b", &mut v, &parts, Reduce::Sum).unwrap();
                c.all_gather("c", &mut vec![bf16::ONE; len], &parts).unwrap();
                let mut out = vec![0.0; len];
                c.all_to_all("d", (&v, &parts), (&mut out, &parts)).unwrap();
                c.barrier("e").unwrap();
                ledger
            });
            for ledger in ledgers {
                let share = len * (n - 1) / n;
                let want = [
                    (CollectiveKind::AllReduce, traffic(3, 3 * 2 * 4 * share, 3 * 2 * 4 * share)),
                    (CollectiveKind::ReduceScatter, traffic(1, 4 * share, 4 * share)),
                    (CollectiveKind::AllGather, traffic(1, 2 * share, 2 * share)),
                    (CollectiveKind::AllToAll, traffic(1, 4 * share, 4 * share)),
                    (CollectiveKind::Barrier, traffic(1, 0, 0)),
                ];
                assert_eq!(ledger.rows(), want.map(|(k, t)| ("world".to_string(), k, t)), "{engine:?} {n}");
            }
        }
    }
}

/// Elements of every type cost their own size, of which 16-bit floats and bytes save some.
#[test]
fn every_type_costs_its_own_size() {
    for n in [1, 2, 4] {
        for element in ElementType::ALL {
            let len = 24 * n;
            let mut worlds: Vec<Vec<Box<dyn Communicator>>> =
                ENGINES.iter().map(|engine| world(*engine, n, LONG)).collect();
            worlds.push(
                (0..n)
                    .map(|r| Box::new(NullCommunicator::new("world", r, n)) as Box<dyn Communicator>)
                    .collect(),
            );
            for ranks in worlds {
                each(ranks, |c| {
                    let ledger = Ledger::new();
                    let mut c = ledger.wrap(c);
                    let (parts, rank) = (Parts::even(len, n), c.rank());
                    let mut v = HostBuffer::with_capacity(element, len);
                    v.reset(element, len);
                    let mut received = v.clone();
                    let mut want = Vec::new();
                    let (bytes, share) = (len * element.size(), len * element.size() * (n - 1) / n);
                    if element != ElementType::U8 {
                        c.all_reduce("a", v.lend(), Reduce::Sum).unwrap();
                        c.reduce_scatter("b", v.lend(), &parts, Reduce::Max).unwrap();
                        want.push((CollectiveKind::AllReduce, traffic(1, 2 * share, 2 * share)));
                        want.push((CollectiveKind::ReduceScatter, traffic(1, share, share)));
                    }
                    c.all_gather("c", v.lend(), &parts).unwrap();
                    want.push((CollectiveKind::AllGather, traffic(1, share, share)));
                    let send = (v.lend().into_slice(), &parts);
                    c.all_to_all("d", send, (received.lend(), &parts)).unwrap();
                    want.push((CollectiveKind::AllToAll, traffic(1, share, share)));
                    c.broadcast("e", 0, v.lend()).unwrap();
                    let (first, last) = (rank == 0, rank + 1 == n);
                    let spread = traffic(1, if last { 0 } else { bytes }, if first { 0 } else { bytes });
                    want.push((CollectiveKind::Broadcast, spread));
                    if n > 1 {
                        c.send(Message::new("f", 0, (rank + 1) % n), v.lend().into_slice()).unwrap();
                        c.receive(Message::new("f", 0, (rank + n - 1) % n), v.lend()).unwrap();
                        want.push((CollectiveKind::Send, traffic(1, bytes, 0)));
                        want.push((CollectiveKind::Receive, traffic(1, 0, bytes)));
                    }
                    let rows: Vec<_> = ledger.rows().into_iter().map(|(_, kind, t)| (kind, t)).collect();
                    assert_eq!(rows, want, "{n} ranks, {}", element.name());
                });
            }
        }
    }
}

/// A ring walked step by step: part `p` goes from `first` on to `last`, one rank at a time.
fn walk(lengths: &[usize], first: impl Fn(usize) -> usize, last: impl Fn(usize) -> usize) -> Vec<Volume> {
    let n = lengths.len();
    let mut volumes = vec![Volume::default(); n];
    for (part, len) in lengths.iter().enumerate() {
        let mut at = first(part) % n;
        while at != last(part) % n {
            volumes[at].sent += 4 * *len as u64;
            at = (at + 1) % n;
            volumes[at].received += 4 * *len as u64;
        }
    }
    volumes
}

#[test]
fn uneven_parts_cost_what_a_ring_walked_step_by_step_costs() {
    for engine in ENGINES {
        for lengths in [vec![7, 0, 1000, 3], vec![5, 9], vec![1, 2, 3, 4, 5, 6, 7], vec![11]] {
            let n = lengths.len();
            let parts = Parts::of(lengths.iter().copied());
            let reduce = walk(&lengths, |p| p + 1, |p| p);
            let gather = walk(&lengths, |p| p, |p| p + n - 1);
            let even: Vec<usize> = (0..n).map(|r| Parts::even(parts.len(), n).range(r).len()).collect();
            let (down, up) = (walk(&even, |p| p + 1, |p| p), walk(&even, |p| p, |p| p + n - 1));
            // One whole, from the last rank on around to the rank before it.
            let mut whole = vec![0; n];
            whole[n - 1] = parts.len();
            let spread = walk(&whole, |p| p, |p| p + n - 1);
            each(world(engine, n, LONG), |c| {
                let ledger = Ledger::new();
                let mut c = ledger.wrap(c);
                let rank = c.rank();
                let mut v = vec![0.0f32; parts.len()];
                let check = |want: Volume| {
                    assert_eq!(ledger.of("world").volume, want, "{engine:?} {lengths:?} rank {rank}");
                    ledger.clear();
                };
                c.reduce_scatter("a", &mut v, &parts, Reduce::Max).unwrap();
                check(reduce[rank]);
                c.all_gather("b", &mut v, &parts).unwrap();
                check(gather[rank]);
                c.all_reduce("c", &mut v, Reduce::Sum).unwrap();
                check(Volume {
                    sent: down[rank].sent + up[rank].sent,
                    received: down[rank].received + up[rank].received,
                });
                c.broadcast("d", n - 1, &mut v).unwrap();
                check(spread[rank]);
            });
        }
    }
}

#[test]
fn groups_are_counted_under_their_own_labels_and_messages_at_both_ends() {
    for engine in ENGINES {
        let ledgers = each(world(engine, 4, LONG), |c| {
            let ledger = Ledger::new();
            let mut c = ledger.wrap(c);
            let half = c.rank() / 2 * 2;
            let mut pair = c.group("tensor", &[half, half + 1]).unwrap();
            let mut v = [0.0f32; 10];
            pair.all_reduce("x", &mut v, Reduce::Sum).unwrap();
            if pair.rank() == 0 {
                pair.send(Message::new("y", 7, 1), &v[..7]).unwrap();
            } else {
                pair.receive(Message::new("y", 7, 0), &mut v[..7]).unwrap();
            }
            ledger
        });
        for (rank, ledger) in ledgers.iter().enumerate() {
            let reduce = ("tensor".to_string(), CollectiveKind::AllReduce, traffic(1, 40, 40));
            let message = match rank % 2 {
                0 => ("tensor".to_string(), CollectiveKind::Send, traffic(1, 28, 0)),
                _ => ("tensor".to_string(), CollectiveKind::Receive, traffic(1, 0, 28)),
            };
            assert_eq!(ledger.rows(), [reduce, message], "{engine:?}");
            assert_eq!(ledger.of("world"), Traffic::default());
        }
    }
}

/// A call that failed moved nothing that anybody may count on.
#[test]
fn failed_calls_are_not_counted() {
    for engine in ENGINES {
        let ledger = Ledger::new();
        let mut c = ledger.wrap(world(engine, 1, LONG).remove(0));
        c.broadcast("x", 5, &mut [0.0]).unwrap_err();
        assert_eq!(ledger.rows(), []);
    }
}

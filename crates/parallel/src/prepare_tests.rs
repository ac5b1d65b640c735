use super::*;
use bessemer_schedule::{Kind, Shape, generate};

fn prepared(kind: Kind, ranks: usize, micro_batches: usize) -> Vec<Prepared> {
    let program = generate(kind, &Shape::new(ranks, micro_batches)).unwrap();
    let own: Vec<usize> = (0..program.ranks()).collect();
    (0..ranks).map(|rank| prepare(&program, rank, &own[..program.chunks(rank)]).unwrap()).collect()
}

fn slots(kind: Kind, ranks: usize, micro_batches: usize) -> Vec<Vec<usize>> {
    prepared(kind, ranks, micro_batches).iter().map(|p| p.needs.iter().map(|n| n.slots).collect()).collect()
}

#[test]
fn slots_are_the_micro_batches_in_flight() {
    assert_eq!(slots(Kind::GPipe, 4, 8), vec![vec![8]; 4]);
    assert_eq!(slots(Kind::OneFOneB, 4, 8), [[4], [3], [2], [1]]);
    assert_eq!(slots(Kind::OneFOneB, 1, 8), [[1]]);
    let h1 = prepared(Kind::ZbH1, 4, 8);
    assert!(h1[3].needs[0].pending >= 3, "{:?}", h1[3].needs);
    assert_eq!(h1[0].needs[0].slots, 4);
}

#[test]
fn a_slot_is_never_given_to_two_micro_batches_at_a_time() {
    for kind in Kind::ALL.into_iter().filter(|k| *k != Kind::ZbAuto) {
        for p in prepared(kind, 4, 8) {
            let mut held: HashMap<(usize, usize), usize> = HashMap::new();
            for order in &p.instructions {
                match order {
                    PlacedInstruction::Forward { run, .. } => {
                        let before = held.insert((run.chunk, run.slot), run.micro);
                        assert!(before.is_none(), "{kind}: {order:?} over {before:?}");
                        assert!(run.slot < p.needs[run.chunk].slots);
                    }
                    PlacedInstruction::Backward { run, .. } => {
                        assert_eq!(held.remove(&(run.chunk, run.slot)), Some(run.micro), "{kind}: {order:?}");
                    }
                    _ => {}
                }
            }
            assert!(held.is_empty());
        }
    }
}

#[test]
fn gradients_are_replaced_once_and_leave_once() {
    for kind in Kind::ALL.into_iter().filter(|k| *k != Kind::ZbAuto) {
        for p in prepared(kind, 4, 8) {
            // (input parts that replace, weight parts that replace, last ones) by chunk and update.
            let mut found: HashMap<(usize, usize), [usize; 3]> = HashMap::new();
            for order in &p.instructions {
                let (run, writes, [input, weight]) = match order {
                    PlacedInstruction::Backward { run, writes, split, .. } => (run, writes, [true, !split]),
                    PlacedInstruction::Weight { run, writes } => (run, writes, [false, true]),
                    _ => continue,
                };
                let of = found.entry((run.chunk, run.update)).or_default();
                of[0] += usize::from(input && !writes.add.input);
                of[1] += usize::from(weight && !writes.add.weight);
                of[2] += usize::from(writes.last);
            }
            assert!(found.values().all(|f| *f == [1, 1, 1]), "{kind}: {found:?}");
        }
    }
}

#[test]
fn tags_agree_at_both_ends() {
    for kind in Kind::ALL.into_iter().filter(|k| *k != Kind::ZbAuto) {
        let all = prepared(kind, 4, 8);
        let mut sent: Vec<(usize, usize, u64)> = Vec::new();
        let mut received = Vec::new();
        for (rank, p) in all.iter().enumerate() {
            for order in &p.instructions {
                match order {
                    PlacedInstruction::Send(l) => sent.push((rank, l.peer, l.tag)),
                    PlacedInstruction::Receive(l) => received.push((l.peer, rank, l.tag)),
                    _ => {}
                }
            }
        }
        sent.sort_unstable();
        received.sort_unstable();
        assert_eq!(sent, received, "{kind}");
        sent.dedup();
        assert_eq!(sent.len(), received.len(), "{kind}: a tag of a pair twice");
    }
}

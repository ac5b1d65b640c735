//! Collectives on a thread of their own.

use crate::world::{ENGINES, Engine, LONG, bits, each, narrow, on_each, values, world};
use bessemer_collectives::{
    Collective, CollectiveError, CollectiveQueue, HostBuffer, Parts, Pattern, Reduce,
};
use std::time::{Duration, Instant};

fn overlapped(engine: Engine, ranks: usize, work: impl Fn(CollectiveQueue) + Sync) {
    each(world(engine, ranks, LONG), |c| work(CollectiveQueue::with_progress_thread(c).unwrap()));
}

#[test]
fn what_is_started_gives_what_the_blocking_calls_give_in_whatever_order_it_is_finished() {
    for engine in ENGINES {
        let (n, len) = (3, 5000);
        let parts = Parts::of([100, 3900, 1000]);
        let blocking = each(world(engine, n, LONG), |mut c| {
            let mut a = values(1, c.rank(), len);
            let mut b = narrow(&values(2, c.rank(), len));
            let mut d = values(3, c.rank(), len);
            c.all_reduce("a", &mut a, Reduce::Sum).unwrap();
            c.reduce_scatter("b", &mut b, &parts, Reduce::Max).unwrap();
            c.all_gather("d", &mut d, &parts).unwrap();
            (bits(&a), bits(&b[parts.range(c.rank())]), bits(&d))
        });
        overlapped(engine, n, |mut o| {
            let rank = o.rank();
            assert_eq!((o.size(), o.label()), (n, "world"));
            let a = HostBuffer::of(&values(1, rank, len));
            let a = o.start(&Collective::new("a", Pattern::AllReduce(Reduce::Sum)), a).unwrap();
            let b = HostBuffer::of(&narrow(&values(2, rank, len)));
            let b = o.start(&Collective::new("b", Pattern::ReduceScatter(&parts, Reduce::Max)), b).unwrap();
            let d = HostBuffer::of(&values(3, rank, len));
            let d = o.start(&Collective::new("d", Pattern::AllGather(&parts)), d).unwrap();
            let d = o.finish(d).unwrap();
            let a = o.finish(a).unwrap();
            let b = o.finish(b).unwrap();
            assert_eq!(
                (
                    bits(a.as_slice::<f32>()),
                    bits(&b.as_slice::<half::bf16>()[parts.range(rank)]),
                    bits(d.as_slice::<f32>())
                ),
                blocking[rank]
            );
        });
    }
}

/// An all-to-all has what it sends and what it receives in one buffer, one behind the other. Rank r sends rank q `1 + r + 2 q` bytes.
#[test]
fn an_all_to_all_receives_behind_what_it_sends() {
    let len = |from: usize, to: usize| 1 + from + 2 * to;
    let byte = |from: usize, to: usize, i: usize| (100 * from + 10 * to + i) as u8;
    for engine in ENGINES {
        let n = 3;
        let check = |mut o: CollectiveQueue| {
            let me = o.rank();
            let send = Parts::of((0..n).map(|to| len(me, to)));
            let receive = Parts::of((0..n).map(|from| len(from, me)));
            let exchange = Collective::new("x", Pattern::AllToAll { send: &send, receive: &receive });
            let mut values = vec![0; send.len() + receive.len()];
            for (to, i) in (0..n).flat_map(|to| send.range(to).enumerate().map(move |(i, at)| (to, (i, at))))
            {
                values[i.1] = byte(me, to, i.0);
            }
            // Twice, so that parts of an earlier one are no others' parts.
            for _ in 0..2 {
                let ticket = o.start(&exchange, HostBuffer::of(&values)).unwrap();
                let found = o.finish(ticket).unwrap();
                let received = &found.as_slice::<u8>()[send.len()..];
                for from in 0..n {
                    let wanted: Vec<u8> = (0..len(from, me)).map(|i| byte(from, me, i)).collect();
                    assert_eq!(received[receive.range(from)], wanted);
                }
                let ticket = o.start(
                    &Collective::new("y", Pattern::AllGather(&Parts::even(n, n))),
                    HostBuffer::of(&[7u8; 3]),
                );
                o.finish(ticket.unwrap()).unwrap();
            }
            let short = o.start(&exchange, HostBuffer::of(&values[1..])).map(|_| ()).unwrap_err().to_string();
            assert!(short.contains("all-to-all"), "{short}");
        };
        overlapped(engine, n, check);
        each(world(engine, n, LONG), |c| check(CollectiveQueue::blocking(c)));
    }
}

#[test]
fn starting_does_not_wait_for_the_others() {
    for engine in ENGINES {
        overlapped(engine, 2, |mut o| {
            let late = Duration::from_secs(1);
            if o.rank() == 1 {
                std::thread::sleep(late);
            }
            let start = Instant::now();
            let ticket = o
                .start(&Collective::new("x", Pattern::AllReduce(Reduce::Sum)), HostBuffer::of(&[1.0; 9]))
                .unwrap();
            if o.rank() == 0 {
                assert!(start.elapsed() < late / 2, "{:?}", start.elapsed());
            }
            assert_eq!(o.finish(ticket).unwrap(), HostBuffer::of(&[2.0; 9]));
        });
    }
}

#[test]
fn the_communicator_itself_is_there_when_nothing_is_under_way() {
    for engine in ENGINES {
        overlapped(engine, 2, |mut o| {
            let ticket = o
                .start(&Collective::new("x", Pattern::AllReduce(Reduce::Sum)), HostBuffer::of(&[1.0]))
                .unwrap();
            let mut v = [3.0];
            o.idle().unwrap().all_reduce("norm", &mut v, Reduce::Sum).unwrap();
            assert_eq!(v, [6.0]);
            assert_eq!(o.finish(ticket).unwrap(), HostBuffer::of(&[2.0]));
        });
    }
}

#[test]
fn an_error_reaches_every_later_call() {
    for engine in ENGINES {
        each(world(engine, 2, LONG), |c| {
            let rank = c.rank();
            let mut o = CollectiveQueue::with_progress_thread(c).unwrap();
            let name = if rank == 0 { "a" } else { "b" };
            let one = || HostBuffer::of(&[1.0; 3]);
            let first = o.start(&Collective::new(name, Pattern::AllReduce(Reduce::Sum)), one()).unwrap();
            let error = o.finish(first).unwrap_err();
            assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
            let again = o.start(&Collective::new("c", Pattern::AllReduce(Reduce::Sum)), one()).unwrap_err();
            assert!(matches!(again, CollectiveError::Mismatch { .. }), "{again}");
            assert!(matches!(o.idle().unwrap_err(), CollectiveError::Mismatch { .. }));
        });
    }
}

/// A rank that fails elsewhere drops what it started; neither it nor the others wait for the ten minutes of patience.
#[test]
fn dropping_what_is_under_way_breaks_the_group_off() {
    for engine in ENGINES {
        let start = Instant::now();
        let errors = on_each(world(engine, 3, LONG), |mut c| {
            if c.rank() == 0 {
                let mut o = CollectiveQueue::with_progress_thread(c).unwrap();
                let _ = o
                    .start(&Collective::new("x", Pattern::AllReduce(Reduce::Sum)), HostBuffer::of(&[1.0; 5]))
                    .unwrap();
                std::thread::sleep(Duration::from_millis(50));
                return None;
            }
            // Another collective than rank 0's would be a mismatch; these two never come to one.
            if c.rank() == 1 {
                std::thread::sleep(Duration::from_millis(150));
            }
            // Over messages rank 0's values may be there; the call after that errs.
            (0..2).find_map(|_| c.all_reduce("x", &mut [1.0; 5], Reduce::Sum).err())
        });
        assert!(start.elapsed() < LONG / 4);
        for error in errors.into_iter().map(|e| e.expect("no panic")).skip(1) {
            let error = error.expect("an error");
            let text = error.to_string();
            assert!(
                text.ends_with("rank 0 is gone: it dropped collectives that it had started")
                    || text.contains("rank 0 is gone: it stopped after"),
                "{engine:?}: {text}"
            );
        }
    }
}

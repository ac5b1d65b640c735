//! Collectives on a thread of their own.

use crate::world::{ENGINES, Engine, LONG, bits, each, narrow, on_each, values, world};
use bessemer_collectives::{Buffer, Collective, CollectiveError, Overlap, Parts, Reduce, Values};
use std::time::{Duration, Instant};

fn overlapped(engine: Engine, ranks: usize, work: impl Fn(Overlap) + Sync) {
    each(world(engine, ranks, LONG), |c| work(Overlap::new(c).unwrap()));
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
            c.all_reduce("a", Values::F32(&mut a), Reduce::Sum).unwrap();
            c.reduce_scatter("b", Values::Bf16(&mut b), &parts, Reduce::Max).unwrap();
            c.all_gather("d", Values::F32(&mut d), &parts).unwrap();
            (bits(&a), bits(&b[parts.range(c.rank())]), bits(&d))
        });
        overlapped(engine, n, |mut o| {
            let rank = o.rank();
            assert_eq!((o.size(), o.label()), (n, "world"));
            o.keep_spans();
            let a = Buffer::F32(values(1, rank, len));
            let a = o.start("a", Collective::AllReduce(Reduce::Sum), a).unwrap();
            let b = Buffer::Bf16(narrow(&values(2, rank, len)));
            let b = o.start("b", Collective::ReduceScatter(&parts, Reduce::Max), b).unwrap();
            let d = Buffer::F32(values(3, rank, len));
            let d = o.start("d", Collective::AllGather(&parts), d).unwrap();
            let d = o.finish(d).unwrap().into_f32().unwrap();
            let a = o.finish(a).unwrap().into_f32().unwrap();
            let b = o.finish(b).unwrap().into_bf16().unwrap();
            assert_eq!((bits(&a), bits(&b[parts.range(rank)]), bits(&d)), blocking[rank]);
            let mut spans = Vec::new();
            o.take_spans(&mut spans);
            assert_eq!(spans.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a", "b", "d"]);
            assert!(spans.windows(2).all(|w| w[0].end <= w[1].start && w[0].start <= w[0].end));
        });
    }
}

#[test]
fn starting_does_not_wait_for_the_others() {
    for engine in ENGINES {
        overlapped(engine, 2, |mut o| {
            let late = Duration::from_millis(200);
            if o.rank() == 1 {
                std::thread::sleep(late);
            }
            let start = Instant::now();
            let ticket = o.start("x", Collective::AllReduce(Reduce::Sum), Buffer::F32(vec![1.0; 9])).unwrap();
            if o.rank() == 0 {
                assert!(start.elapsed() < late / 2, "{:?}", start.elapsed());
                assert!(!o.is_done(&ticket));
            }
            assert_eq!(o.finish(ticket).unwrap(), Buffer::F32(vec![2.0; 9]));
        });
    }
}

#[test]
fn the_communicator_itself_is_there_when_nothing_is_under_way() {
    for engine in ENGINES {
        overlapped(engine, 2, |mut o| {
            let ticket = o.start("x", Collective::AllReduce(Reduce::Sum), Buffer::F32(vec![1.0])).unwrap();
            let mut v = [3.0];
            o.idle().unwrap().all_reduce("norm", Values::F32(&mut v), Reduce::Sum).unwrap();
            assert_eq!((v, o.is_done(&ticket)), ([6.0], true));
            assert_eq!(o.finish(ticket).unwrap(), Buffer::F32(vec![2.0]));
        });
    }
}

#[test]
fn an_error_reaches_every_later_call() {
    for engine in ENGINES {
        each(world(engine, 2, LONG), |c| {
            let rank = c.rank();
            let mut o = Overlap::new(c).unwrap();
            let name = if rank == 0 { "a" } else { "b" };
            let one = || Buffer::F32(vec![1.0; 3]);
            let first = o.start(name, Collective::AllReduce(Reduce::Sum), one()).unwrap();
            let error = o.finish(first).unwrap_err();
            assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
            let again = o.start("c", Collective::AllReduce(Reduce::Sum), one()).unwrap_err();
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
                let mut o = Overlap::new(c).unwrap();
                let _ = o.start("x", Collective::AllReduce(Reduce::Sum), Buffer::F32(vec![1.0; 5])).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                return None;
            }
            // Another collective than rank 0's would be a mismatch; these two never come to one.
            if c.rank() == 1 {
                std::thread::sleep(Duration::from_millis(150));
            }
            // Over messages rank 0's values may be there; the call after that errs.
            (0..2).find_map(|_| c.all_reduce("x", Values::F32(&mut [1.0; 5]), Reduce::Sum).err())
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

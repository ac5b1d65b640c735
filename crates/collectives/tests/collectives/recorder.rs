//! The flight recorder, slow links and faults.

use crate::world::{ENGINES, LONG, each, world};
use bessemer_collectives::{
    Collective, CollectiveError, CollectiveKind, CollectiveQueue, Communicator, Delayed, Fault, Faulty,
    FlightRecorder, HostBuffer, Pattern, Progress, Reduce,
};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(400);

fn sum(c: &mut dyn Communicator, name: &str) -> Result<(), CollectiveError> {
    c.all_reduce(name, &mut [1.0; 4], Reduce::Sum)
}

#[test]
fn a_timeout_says_who_waits_where_for_whom() {
    for engine in ENGINES {
        let recorder = FlightRecorder::new(3, 8);
        let errors = each(world(engine, 3, SOON), |c| {
            let rank = c.rank();
            let mut c = recorder.wrap(rank, c);
            sum(c.as_mut(), "gradients 0").unwrap();
            let mut pair = (rank > 0).then(|| c.group("tensor", &[1, 2]).unwrap());
            let result = match (rank, &mut pair) {
                // Rank 2 computes for ever; rank 1 waits for it in the pair, rank 0 for both in the world.
                (2, _) => {
                    std::thread::sleep(3 * SOON);
                    return None;
                }
                (1, Some(pair)) => sum(pair.as_mut(), "layers.3.attention.out"),
                _ => {
                    // Still waiting when rank 1 gives up.
                    std::thread::sleep(SOON / 2);
                    sum(c.as_mut(), "gradients 1")
                }
            };
            // Nobody leaves before the others have looked.
            std::thread::sleep(SOON);
            Some(result.unwrap_err())
        });
        let timeout = |e: &CollectiveError| match e {
            CollectiveError::Timeout { missing, report, .. } => (missing.clone(), report.to_string()),
            other => panic!("{engine:?}: {other}"),
        };
        let (missing, report) = timeout(errors[1].as_ref().expect("an error"));
        assert_eq!(missing, [1], "rank 2 of the world is rank 1 of the pair");
        let waits = |rank: usize, what: &str| {
            let lines: Vec<&str> =
                report.lines().filter(|l| l.contains(&format!("  rank {rank}: "))).collect();
            assert!(lines.iter().any(|l| l.contains(what)), "{engine:?}: {what} in\n{report}");
        };
        waits(0, "all-reduce 1 of \"gradients 1\" in world (0 of 3), 16 bytes, waits for 0.");
        waits(1, "all-reduce 0 of \"layers.3.attention.out\" in tensor (0 of 2), 16 bytes, waits for 0.");
        waits(2, "all-reduce 0 of \"gradients 0\" in world (2 of 3), 16 bytes, done 0.");
        let (missing, _) = timeout(errors[0].as_ref().expect("an error"));
        assert!(missing.contains(&1) || missing.contains(&2), "{missing:?}");
        // Afterwards the record shows the failure.
        let last = recorder.entries(1).pop().expect("an entry");
        assert_eq!(
            (last.progress, last.kind, last.name.as_str()),
            (Progress::Failed, CollectiveKind::AllReduce, "layers.3.attention.out")
        );
    }
}

#[test]
fn the_last_collectives_are_kept_with_their_times() {
    for engine in ENGINES {
        let recorder = FlightRecorder::new(2, 3);
        each(world(engine, 2, LONG), |c| {
            let rank = c.rank();
            let mut c = recorder.wrap(rank, c);
            (0..10).for_each(|k| sum(c.as_mut(), &format!("bucket {k}")).unwrap());
        });
        for rank in 0..2 {
            let entries = recorder.entries(rank);
            let seen: Vec<_> = entries.iter().map(|e| (e.sequence, e.name.as_str(), e.progress)).collect();
            let done = Progress::Done;
            assert_eq!(seen, [(7, "bucket 7", done), (8, "bucket 8", done), (9, "bucket 9", done)]);
            assert!(entries.iter().all(|e| e.started <= e.ended));
            assert!(entries.windows(2).all(|w| w[0].ended <= w[1].started));
        }
    }
}

#[test]
fn a_slow_link_takes_as_long_as_its_formula() {
    for engine in ENGINES {
        each(world(engine, 2, LONG), |c| {
            let link = Delayed { latency: Duration::from_millis(5), bandwidth: 1e6 };
            let mut c = link.wrap(c);
            let start = Instant::now();
            // 2 (n - 1) steps of 5 ms, 2 N (n - 1)/n = 20 kB at 1 MB/s.
            c.all_reduce("x", &mut [0.0; 5000], Reduce::Sum).unwrap();
            assert!(start.elapsed() >= Duration::from_millis(30), "{:?}", start.elapsed());
            // Nothing travels before the last rank has come.
            c.barrier("again").unwrap();
            let start = Instant::now();
            if c.rank() == 1 {
                std::thread::sleep(Duration::from_millis(40));
            }
            c.all_reduce("y", &mut [0.0; 5000], Reduce::Sum).unwrap();
            assert!(start.elapsed() >= Duration::from_millis(65), "{:?}", start.elapsed());
        });
    }
}

#[test]
fn computing_hides_a_slow_link() {
    for engine in ENGINES {
        each(world(engine, 2, LONG), |c| {
            let link = Delayed { latency: Duration::from_millis(300), bandwidth: 1e12 };
            let mut o = CollectiveQueue::with_progress_thread(link.wrap(c)).unwrap();
            let start = Instant::now();
            let ticket = o
                .start(&Collective::new("x", Pattern::AllReduce(Reduce::Sum)), HostBuffer::of(&[0.0; 9]))
                .unwrap();
            std::thread::sleep(Duration::from_millis(600));
            let computed = start.elapsed();
            o.finish(ticket).unwrap();
            // Two steps of 300 ms; without overlap all of them would come now.
            assert!(start.elapsed() - computed < Duration::from_millis(450), "{:?}", start.elapsed());
        });
    }
}

#[test]
fn faults_happen_at_their_collective_and_nobody_hangs() {
    for engine in ENGINES {
        for (fault, at) in [(Fault::Error, 3), (Fault::Drop, 2), (Fault::Hang(3 * SOON), 1)] {
            let steps = each(world(engine, 3, SOON), |c| {
                let faulty = Faulty::new(fault, at);
                let mut c = if c.rank() == 1 { faulty.wrap(c) } else { c };
                let failed = (0..6).find_map(|k| Some((k, sum(c.as_mut(), &format!("step {k}")).err()?)));
                let (step, error) = failed.expect("an error");
                (step, error)
            });
            for (rank, (step, error)) in steps.iter().enumerate() {
                // Over messages a rank that comes late to a small collective finds all it needs, and errs at the next.
                let late = rank == 1 && matches!(fault, Fault::Hang(_));
                assert!(
                    *step == at || late && *step == at + 1,
                    "{engine:?} {fault:?} rank {rank}: {step} {error}"
                );
                match (fault, error) {
                    (Fault::Hang(_), CollectiveError::Timeout { missing, .. }) => assert_eq!(missing, &[1]),
                    (_, CollectiveError::PeerLost { peer, .. }) => assert!(*peer == 1 || late, "{error}"),
                    (_, CollectiveError::Engine { .. }) if rank == 1 => {}
                    other => panic!("{engine:?} rank {rank}: {other:?}"),
                }
            }
        }
    }
}

/// Who waits and for how long can be read while a rank waits, and the time in collectives counts on one thread of a rank.
#[test]
fn waits_are_seen_and_added_up() {
    let recorder = FlightRecorder::new(2, 8);
    let ended = each(world(ENGINES[0], 2, LONG), |c| {
        let rank = c.rank();
        let mut c = recorder.wrap(rank, c);
        // Before anybody counts.
        sum(c.as_mut(), "gradients 0").unwrap();
        recorder.count_this_thread(rank);
        if rank == 1 {
            std::thread::sleep(SOON);
            let (waiting, since) = recorder.in_progress(0).expect("rank 0 waits");
            assert_eq!((waiting.sequence, waiting.name.as_str()), (1, "gradients 1"));
            assert!(since >= SOON / 2, "{since:?}");
        }
        sum(c.as_mut(), "gradients 1").unwrap();
        let counted = recorder.calls(rank).1;
        // Another thread's time is not that of this one.
        std::thread::scope(|scope| {
            let c = &mut c;
            scope.spawn(move || {
                std::thread::sleep(if rank == 1 { SOON } else { Duration::ZERO });
                sum(c.as_mut(), "gradients 2").unwrap();
            });
        });
        assert_eq!(recorder.calls(rank), (3, counted));
        assert!(recorder.in_progress(rank).is_none());
        Some(counted)
    });
    let waited: Vec<Duration> = ended.into_iter().flatten().collect();
    assert!(waited[0] >= SOON / 2 && waited[1] < waited[0], "{waited:?}");
}

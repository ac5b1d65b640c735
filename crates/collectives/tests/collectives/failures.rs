//! Whatever goes wrong is an error on every rank, in time, that names who and where.

use crate::world::{ENGINES, Engine, LONG, each, on_each, world};
use bessemer_collectives::{
    CollectiveError, Communicator, Message, MessageCommunicator, MessageSettings, Parts, Reduce, Transport,
    TransportError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(300);

fn reduce(c: &mut dyn Communicator, name: &str, len: usize) -> Result<(), CollectiveError> {
    c.all_reduce(name, &mut vec![1.0; len], Reduce::Sum)
}

/// Ranks of which one makes another call.
fn mismatch(
    engine: Engine,
    ranks: usize,
    odd: impl Fn(&mut dyn Communicator) -> Result<(), CollectiveError> + Sync,
    others: impl Fn(&mut dyn Communicator) -> Result<(), CollectiveError> + Sync,
) -> Vec<CollectiveError> {
    each(world(engine, ranks, LONG), |mut c| {
        c.barrier("before").unwrap();
        let result = if c.rank() == 1 { odd(c.as_mut()) } else { others(c.as_mut()) };
        let error = result.unwrap_err();
        // And every later call errs as well.
        let again = c.barrier("after").unwrap_err();
        assert_eq!(again.site().name, "after");
        error
    })
}

#[test]
fn other_names_kinds_lengths_types_and_parts_are_errors_on_all_ranks() {
    let f32s = |name: &'static str, len: usize| move |c: &mut dyn Communicator| reduce(c, name, len);
    for engine in ENGINES {
        for len in [4, 50_000] {
            let errors = mismatch(engine, 3, f32s("b", len), f32s("a", len));
            for (rank, error) in errors.iter().enumerate() {
                assert!(matches!(error, CollectiveError::Mismatch { .. }), "{engine:?} {rank}: {error}");
            }
            let text = format!(
                "group world, rank 2, all-reduce of \"a\", but rank 1 is in all-reduce of \"b\" (sum of {len} f32)"
            );
            assert_eq!(errors[2].to_string(), text, "{engine:?}");
            for errors in [
                mismatch(engine, 2, f32s("a", len + 1), f32s("a", len)),
                mismatch(engine, 4, |c| c.barrier("a"), f32s("a", len)),
                mismatch(engine, 2, |c| c.all_reduce("a", &mut vec![1.0; len], Reduce::Max), f32s("a", len)),
                mismatch(
                    engine,
                    2,
                    |c| c.all_reduce("a", &mut vec![half::bf16::ONE; len], Reduce::Sum),
                    f32s("a", len),
                ),
                mismatch(
                    engine,
                    2,
                    |c| c.all_gather("a", &mut vec![1.0; len], &Parts::of([1, len - 1])),
                    |c| c.all_gather("a", &mut vec![1.0; len], &Parts::of([2, len - 2])),
                ),
                mismatch(
                    engine,
                    3,
                    |c| c.broadcast("a", 1, &mut vec![1.0; len]),
                    |c| c.broadcast("a", 0, &mut vec![1.0; len]),
                ),
            ] {
                for error in errors {
                    assert!(matches!(error, CollectiveError::Mismatch { .. }), "{engine:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn ranks_that_disagree_about_what_a_pair_exchanges_err_on_all_ranks() {
    for engine in ENGINES {
        let errors = each(world(engine, 3, LONG), |mut c| {
            // Rank 1 expects five elements of rank 0, which sends four.
            let receive = Parts::of([if c.rank() == 1 { 5 } else { 4 }, 4, 4]);
            let mut out = vec![0.0; receive.len()];
            let send = (&[1.0; 12], &Parts::even(12, 3));
            c.all_to_all("pairs", send, (&mut out, &receive)).unwrap_err()
        });
        for error in &errors {
            assert!(
                matches!(error, CollectiveError::Mismatch { .. } | CollectiveError::PeerLost { .. }),
                "{engine:?}: {error}"
            );
        }
        let text = errors[1].to_string();
        assert!(text.contains("rank 0 sends 4 elements to rank 1, which expects 5"), "{engine:?}: {text}");
    }
}

#[test]
fn calls_that_cannot_be_right_are_refused_and_the_others_do_not_wait() {
    for engine in ENGINES {
        let errors = each(world(engine, 2, LONG), |mut c| {
            let parts = Parts::of(if c.rank() == 0 { vec![1, 2, 3] } else { vec![3, 3] });
            c.all_gather("w", &mut [0.0; 6], &parts).unwrap_err()
        });
        assert_eq!(
            errors[0].to_string(),
            "group world, rank 0, all-gather of \"w\": values: 3 parts for 2 ranks"
        );
        assert!(matches!(&errors[1], CollectiveError::PeerLost { peer: 0, .. }), "{engine:?}: {}", errors[1]);
        assert!(errors[1].to_string().contains("3 parts for 2 ranks"), "{engine:?}: {}", errors[1]);
    }
    let refused = |work: fn(&mut dyn Communicator) -> Result<(), CollectiveError>, says: &str| {
        for engine in ENGINES {
            let mut ranks = world(engine, 2, LONG);
            let error = work(ranks[0].as_mut()).unwrap_err().to_string();
            assert!(error.ends_with(says), "{engine:?}: {error}");
        }
    };
    refused(|c| c.broadcast("x", 2, &mut [0.0]), "there is no rank 2 in a group of 2");
    refused(|c| c.send(Message::new("x", 0, 0), &[0.0]), "a rank does not send to itself");
    refused(
        |c| c.all_gather("x", &mut [0.0; 3], &Parts::even(4, 2)),
        "values: the parts are of 4 elements, the values of 3",
    );
    refused(
        |c| {
            let half = Parts::even(2, 2);
            c.all_to_all("x", (&[0.0; 2], &half), (&mut [half::bf16::ZERO; 2], &half))
        },
        "the values to send and those to receive have different types",
    );
}

#[test]
fn a_rank_that_does_not_come_is_named_by_all_who_wait() {
    for engine in ENGINES {
        let errors = each(world(engine, 4, SOON), |mut c| {
            if c.rank() == 2 {
                std::thread::sleep(3 * SOON);
            }
            let start = Instant::now();
            let error = reduce(c.as_mut(), "gradients 7", 5000).unwrap_err();
            (error, start.elapsed())
        });
        for (rank, (error, waited)) in errors.iter().enumerate() {
            assert!(*waited < 10 * SOON, "{engine:?}: {waited:?}");
            match error {
                CollectiveError::Timeout { site, missing, .. } if rank != 2 => {
                    assert_eq!((missing.as_slice(), site.rank), (&[2][..], rank));
                    let text = format!(
                        "group world, rank {rank}, all-reduce of \"gradients 7\": no message from rank 2 "
                    );
                    assert!(error.to_string().starts_with(&text), "{error}");
                }
                CollectiveError::PeerLost { .. } if rank == 2 => {}
                other => panic!("{engine:?} {rank}: {other:?}"),
            }
        }
    }
}

/// A wire on which nothing comes, and whose rank is stopped in its first look.
#[derive(Debug)]
struct Stopped {
    looks: Arc<AtomicUsize>,
    pause: Duration,
}

impl Transport for Stopped {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        2
    }
    fn send(&self, _: usize, _: u32, _: Vec<u8>) -> Result<(), TransportError> {
        Ok(())
    }
    fn receive(&self, from: usize, _: u32, patience: Duration) -> Result<Vec<u8>, TransportError> {
        let first = self.looks.fetch_add(1, Ordering::Relaxed) == 0;
        std::thread::sleep(if first { self.pause } else { patience });
        Err(TransportError::Timeout { from, waited: patience })
    }
}

#[test]
fn a_rank_that_was_stopped_itself_goes_on_waiting() {
    let (looks, patience) = (Arc::new(AtomicUsize::new(0)), Duration::from_millis(400));
    let wire = Stopped { looks: Arc::clone(&looks), pause: 3 * patience };
    let settings = MessageSettings { patience, ..MessageSettings::default() };
    let mut rank: Box<dyn Communicator> =
        Box::new(MessageCommunicator::world("world", Arc::new(wire), &settings));
    let error = rank.receive(Message::new("x", 0, 1), &mut [0.0]).unwrap_err();
    assert!(matches!(error, CollectiveError::Timeout { .. }), "{error}");
    // A look is 50 ms at most; the stop counts as two of them.
    let looks = looks.load(Ordering::Relaxed);
    assert!(looks >= 4, "{looks} looks");
}

#[test]
fn a_message_that_does_not_come_is_a_timeout() {
    for engine in ENGINES {
        let mut ranks = world(engine, 3, SOON);
        let error = ranks[1].receive(Message::new("activation", 0, 2), &mut [0.0]).unwrap_err();
        assert!(matches!(&error, CollectiveError::Timeout { missing, .. } if missing == &[2]), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_is_lost_to_the_others_at_once() {
    for engine in ENGINES {
        for len in [3, 50_000] {
            let start = Instant::now();
            let errors = each(world(engine, 4, LONG), |mut c| {
                reduce(c.as_mut(), "first", len).unwrap();
                if c.rank() == 1 {
                    return None;
                }
                Some(reduce(c.as_mut(), "second", len).unwrap_err())
            });
            assert!(start.elapsed() < LONG / 4);
            for error in errors.into_iter().flatten() {
                assert!(matches!(&error, CollectiveError::PeerLost { peer: 1, .. }), "{engine:?}: {error:?}");
                assert!(error.to_string().ends_with("rank 1 is gone: it left"), "{engine:?}: {error}");
            }
        }
    }
}

#[test]
fn a_rank_that_panics_is_lost_to_those_who_wait_for_values_and_messages() {
    for engine in ENGINES {
        let results = on_each(world(engine, 3, LONG), |mut c| {
            let c = &mut c;
            match c.rank() {
                0 => reduce(c.as_mut(), "loss", 1).unwrap_err(),
                1 => {
                    std::thread::sleep(SOON / 6);
                    std::panic::resume_unwind(Box::new("a rank of a test that has to panic"))
                }
                _ => c.receive(Message::new("activation", 0, 1), &mut [0.0]).unwrap_err(),
            }
        });
        assert!(results[1].is_none());
        for error in results.into_iter().flatten() {
            let lost = matches!(&error, CollectiveError::PeerLost { peer: 1, problem, .. } if &**problem == "it panicked");
            assert!(lost, "{engine:?}: {error}");
        }
    }
}

/// Rank 0 finishes and leaves while others are still on their way out of the last call.
#[test]
fn leaving_after_the_last_call_harms_nobody() {
    for engine in ENGINES {
        for _ in 0..200 {
            each(world(engine, 4, LONG), |mut c| {
                reduce(c.as_mut(), "a", 3).unwrap();
                c.barrier("end").unwrap();
            });
        }
    }
}

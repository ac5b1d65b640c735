//! Tagged messages: in any order, without waiting for the receiver, and never the wrong one.

use crate::world::{ENGINES, LONG, bits, each, narrow, values, world};
use bessemer_collectives::{
    CollectiveError, CollectiveKind, Communicator, Delayed, Fault, Faulty, FlightRecorder, Ledger, Message,
    Progress, Reduce, Traffic, Volume,
};
use half::bf16;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(300);

fn send(c: &mut dyn Communicator, tag: u64, to: usize, v: &[f32]) -> Result<(), CollectiveError> {
    c.send(Message::new("activation", tag, to), v)
}

fn receive(c: &mut dyn Communicator, tag: u64, from: usize, len: usize) -> Result<Vec<f32>, CollectiveError> {
    let mut v = vec![f32::NAN; len];
    c.receive(Message::new("activation", tag, from), &mut v).map(|()| v)
}

/// Long ones take several frames. Collectives lie between the two ends.
#[test]
fn messages_are_taken_by_tag_in_any_order_and_cross_collectives() {
    for engine in ENGINES {
        for len in [0, 3, 5000] {
            each(world(engine, 3, LONG), |mut c| {
                let rank = c.rank();
                let order: Vec<u64> = (0..10).map(|k| k * 7 % 10).collect();
                if rank < 2 {
                    for tag in 0..10 {
                        send(c.as_mut(), tag, 2, &values(tag, rank, len)).unwrap();
                    }
                }
                c.all_reduce("between", &mut [1.0; 9], Reduce::Sum).unwrap();
                for tag in order.iter().filter(|_| rank == 2) {
                    for from in [1, 0] {
                        let v = receive(c.as_mut(), *tag, from, len).unwrap();
                        assert_eq!(bits(&v), bits(&values(*tag, from, len)), "{engine:?} {tag} of {from}");
                    }
                }
            });
        }
    }
}

#[test]
fn messages_with_one_tag_keep_their_order_and_both_types_arrive() {
    for engine in ENGINES {
        each(world(engine, 2, LONG), |mut c| {
            let other = 1 - c.rank();
            let message = |tag| Message::new("activation", tag, other);
            let halves = |k: u64, rank: usize| narrow(&values(k, rank, 3000));
            for k in 0..5 {
                c.send(message(3), &halves(k, c.rank())).unwrap();
                c.send(message(4), &[k as f32]).unwrap();
            }
            for k in 0..5 {
                let mut v = vec![bf16::ZERO; 3000];
                c.receive(message(3), &mut v).unwrap();
                assert_eq!(bits(&v), bits(&halves(k, other)), "{engine:?} {k}");
            }
            for k in 0..5 {
                let mut v = [0.0];
                c.receive(message(4), &mut v).unwrap();
                assert_eq!(v, [k as f32]);
            }
        });
    }
}

/// Two ranks that both send much before they take anything: whoever waited for the receiver would wait for ever.
#[test]
fn sending_never_waits_for_the_receiver_and_a_look_tells_what_has_come() {
    for engine in ENGINES {
        each(world(engine, 2, LONG), |mut c| {
            let other = 1 - c.rank();
            let missing = Message::new("activation", 99, other);
            assert!(!c.arrived(missing).unwrap());
            for tag in 0..32 {
                send(c.as_mut(), tag, other, &vec![tag as f32; 20_000]).unwrap();
            }
            c.barrier("all are under way").unwrap();
            for tag in (0..32).rev() {
                let message = Message::new("activation", tag, other);
                while !c.arrived(message).unwrap() {
                    std::thread::yield_now();
                }
                assert_eq!(receive(c.as_mut(), tag, other, 20_000).unwrap(), vec![tag as f32; 20_000]);
                assert!(!c.arrived(message).unwrap(), "{engine:?}: taken, and still there");
            }
            assert!(!c.arrived(missing).unwrap());
            // Looking for what a rank that left did not send is an error.
            c.barrier("all have looked").unwrap();
        });
    }
}

#[test]
fn a_message_of_another_name_length_or_type_names_both_ranks_and_the_tag() {
    for engine in ENGINES {
        for (name, len, half, there) in [
            ("gradient", 2, false, "send of \"gradient, tag 7\" (2 f32)"),
            ("activation", 3000, false, "send of \"activation, tag 7\" (3000 f32)"),
            ("activation", 2, true, "send of \"activation, tag 7\" (2 bf16)"),
        ] {
            let errors = each(world(engine, 2, LONG), |mut c| {
                let message = Message::new(name, 7, 1);
                if c.rank() == 0 {
                    // The receiver may have given up before the last frame of a long message is sent.
                    let sent = match half {
                        true => c.send(message, &vec![bf16::ONE; len]),
                        false => c.send(message, &vec![0.0; len]),
                    };
                    return sent.and_then(|()| c.barrier("after")).unwrap_err().to_string();
                }
                receive(c.as_mut(), 7, 0, 2).unwrap_err().to_string()
            });
            let want = format!(
                "group world, rank 1, receive of \"activation, tag 7\", but rank 0 is in {there} to rank 1, which \
                 wanted receive of \"activation\" (2 f32)"
            );
            assert_eq!(errors[1], want, "{engine:?}");
        }
    }
}

#[test]
fn a_message_that_does_not_come_is_a_timeout_that_lists_what_did() {
    for engine in ENGINES {
        let recorder = FlightRecorder::new(2, 8);
        let errors = each(world(engine, 2, SOON), |c| {
            let mut c = recorder.wrap(c.rank(), c);
            if c.rank() == 0 {
                send(c.as_mut(), 4, 1, &[1.0]).unwrap();
                send(c.as_mut(), 6, 1, &[1.0]).unwrap();
                std::thread::sleep(3 * SOON);
                return None;
            }
            Some(receive(c.as_mut(), 5, 0, 1).unwrap_err().to_string())
        });
        let text = errors[1].as_ref().expect("an error");
        let place = "group world, rank 1, receive of \"activation, tag 5\": no message from rank 0 for 0.";
        assert!(text.starts_with(place), "{engine:?}: {text}");
        let unread = "Unexpected from rank 0: activation, tag 4; activation, tag 6.";
        assert!(text.contains(unread), "{engine:?}: {text}");
        let waits = "rank 1: receive 0 of \"activation\" tag 5 from rank 0 in world (1 of 2), 4 bytes, waits";
        assert!(text.contains(waits), "{engine:?}: {text}");
        let sent = recorder.entries(0).pop().expect("an entry");
        assert_eq!(
            (sent.kind, sent.message, sent.progress),
            (CollectiveKind::Send, Some((1, 6)), Progress::Done)
        );
    }
}

/// What a rank sent before it went still arrives; what it did not is an error at once.
#[test]
fn a_sender_that_is_gone_is_an_error_for_what_it_did_not_send() {
    for engine in ENGINES {
        let errors = each(world(engine, 2, LONG), |mut c| {
            if c.rank() == 0 {
                send(c.as_mut(), 1, 1, &[2.0]).unwrap();
                send(c.as_mut(), 2, 1, &[3.0]).unwrap();
                return None;
            }
            let start = Instant::now();
            assert_eq!(receive(c.as_mut(), 2, 0, 1).unwrap(), [3.0]);
            let error = receive(c.as_mut(), 3, 0, 1).unwrap_err();
            assert!(start.elapsed() < LONG / 4);
            Some(error.to_string())
        });
        let want = "group world, rank 1, receive of \"activation, tag 3\": rank 0 is gone: it left";
        assert_eq!(errors[1].as_deref(), Some(want), "{engine:?}");
    }
}

#[test]
fn looking_for_a_message_of_a_rank_that_is_gone_is_an_error() {
    for engine in ENGINES {
        let mut ranks = world(engine, 2, LONG);
        drop(ranks.remove(0));
        let error = ranks[0].arrived(Message::new("activation", 1, 0)).unwrap_err();
        assert!(matches!(&error, CollectiveError::PeerLost { peer: 0, .. }), "{engine:?}: {error}");
    }
}

#[test]
fn faults_at_a_message_are_met_by_both_ends() {
    for engine in ENGINES {
        for fault in [Fault::Error, Fault::Drop] {
            let errors = each(world(engine, 2, LONG), |c| {
                let mut c = if c.rank() == 0 { Faulty::new(fault, 1).wrap(c) } else { c };
                let other = 1 - c.rank();
                let step = |c: &mut dyn Communicator, tag| match c.rank() {
                    0 => send(c, tag, other, &[1.0]),
                    _ => receive(c, tag, other, 1).map(drop),
                };
                step(c.as_mut(), 0).unwrap();
                step(c.as_mut(), 1).unwrap_err()
            });
            assert!(matches!(errors[0], CollectiveError::Engine { .. }), "{engine:?}: {}", errors[0]);
            assert!(
                matches!(errors[1], CollectiveError::PeerLost { peer: 0, .. }),
                "{engine:?}: {}",
                errors[1]
            );
        }
    }
}

/// Who computes while a message is in flight does not wait for it afterwards; messages share the link.
#[test]
fn a_slow_link_delays_the_receiver_and_not_the_sender() {
    for engine in ENGINES {
        each(world(engine, 2, LONG), |c| {
            // 100 ms of latency, 200 ms a message: much beside what a busy machine adds.
            let link = Delayed { latency: Duration::from_millis(100), bandwidth: 2e4 };
            let ledger = Ledger::new();
            let mut c = ledger.wrap(link.wrap(c));
            c.barrier("start").unwrap();
            let start = Instant::now();
            if c.rank() == 0 {
                send(c.as_mut(), 0, 1, &[0.0; 1000]).unwrap();
                send(c.as_mut(), 1, 1, &[0.0; 1000]).unwrap();
                assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
                let volume = Volume { sent: 8000, received: 0 };
                assert_eq!(
                    ledger.rows()[0],
                    ("world".into(), CollectiveKind::Send, Traffic { calls: 2, volume })
                );
            } else {
                receive(c.as_mut(), 1, 0, 1000).unwrap();
                // Both went through the link, one after the other.
                assert!(start.elapsed() > Duration::from_millis(300), "{:?}", start.elapsed());
                let waited = Instant::now();
                receive(c.as_mut(), 0, 0, 1000).unwrap();
                assert!(waited.elapsed() < Duration::from_millis(100), "{:?}", waited.elapsed());
            }
            c.barrier("end").unwrap();
        });
    }
}

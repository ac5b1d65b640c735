//! Sums in a switch against integers added directly, over networks that lose, double and reorder packets, and over UDP.

use crate::world::{Engine, LONG, bits, each, on_each, values, world};
use bessemer_collectives::switch::fixed_point::{NOT_FINITE, PacketScale, error_bound, exponent};
use bessemer_collectives::switch::{
    Aggregator, Injected, Packet, SlotUse, SlotWorker, SwitchClient, SwitchError, SwitchMemory, SwitchReduce,
    SwitchServer, SwitchSettings, WorkerId, WorkerSettings,
};
use bessemer_collectives::{CollectiveError, HostBuffer, Reduce};
use proptest::prelude::*;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A reproducible random source (xorshift64*).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn percent(&mut self, n: usize) -> bool {
        self.below(100) < n
    }
}

/// A rank of a job with the all-reduces that it has yet to run, the last one first.
struct Actor {
    worker: SlotWorker,
    address: usize,
    to_come: Vec<HostBuffer>,
    current: Option<HostBuffer>,
    done: Vec<HostBuffer>,
}

/// Packets on their way: from a worker's address, or to it.
enum Flying {
    Up(usize, Vec<u8>),
    Down(usize, Vec<u8>),
}

/// Percentages of a network.
#[derive(Debug, Clone, Copy)]
struct Weather {
    lost: usize,
    doubled: usize,
}

/// Runs actors to their end. Any packet on its way may be the next to arrive, and a doubled one stays on its way.
fn run(switch: &mut Aggregator<usize>, actors: &mut [Actor], weather: Weather, dice: &mut Dice) {
    let (mut flying, mut now, mut answers) = (Vec::new(), Duration::ZERO, Vec::new());
    loop {
        for actor in actors.iter_mut() {
            let Actor { worker, address, to_come, current, done } = actor;
            while worker.in_flight() == 0 {
                done.extend(current.take());
                let Some(mut next) = to_come.pop() else { break };
                let number = 1000 + to_come.len() as u32;
                worker
                    .begin(&next.lend(), number, now, &mut |p| flying.push(Flying::Up(*address, p.to_vec())));
                *current = Some(next);
            }
        }
        if actors.iter().all(|a| a.current.is_none()) {
            return;
        }
        if flying.is_empty() {
            now += Duration::from_millis(20);
            for actor in actors.iter_mut() {
                let (address, Some(values)) = (actor.address, &mut actor.current) else { continue };
                let mut up = |p: &[u8]| flying.push(Flying::Up(address, p.to_vec()));
                actor.worker.resend(&values.lend(), now, &mut up);
            }
            continue;
        }
        let at = dice.below(flying.len());
        let packet = if dice.percent(weather.doubled) {
            match &flying[at] {
                Flying::Up(from, bytes) => Flying::Up(*from, bytes.clone()),
                Flying::Down(to, bytes) => Flying::Down(*to, bytes.clone()),
            }
        } else {
            flying.swap_remove(at)
        };
        if dice.percent(weather.lost) {
            continue;
        }
        match packet {
            Flying::Up(from, bytes) => {
                switch.receive(from, &bytes, now, &mut answers);
                flying.extend(answers.drain(..).map(|(to, bytes)| Flying::Down(to, bytes)));
            }
            Flying::Down(to, bytes) => {
                let Some(actor) = actors.iter_mut().find(|a| a.address == to) else { continue };
                let Some(values) = &mut actor.current else { continue };
                let mut up = |p: &[u8]| flying.push(Flying::Up(to, p.to_vec()));
                actor.worker.receive(&mut values.lend(), &bytes, now, &mut up).unwrap();
            }
        }
    }
}

/// Joins a job over a perfect network.
fn join(
    switch: &mut Aggregator<usize>,
    id: WorkerId,
    settings: WorkerSettings,
    slots: u32,
) -> Result<SlotWorker, String> {
    let (mut bytes, mut answers) = (Vec::new(), Vec::new());
    Packet::Join { workers: settings.workers, slots, values: settings.values }.encode(id, &mut bytes);
    switch.receive(address(id), &bytes, Duration::ZERO, &mut answers);
    match Packet::decode(&answers[0].1) {
        Some((_, Packet::Granted { slots })) => Ok(SlotWorker::new(id, settings, slots)),
        Some((_, Packet::Refused { reason, .. })) => Err(reason.to_string()),
        other => panic!("{other:?}"),
    }
}

fn leave(switch: &mut Aggregator<usize>, id: WorkerId) {
    let mut bytes = Vec::new();
    Packet::Leave.encode(id, &mut bytes);
    switch.receive(address(id), &bytes, Duration::ZERO, &mut Vec::new());
}

fn address(id: WorkerId) -> usize {
    id.job as usize * 100 + usize::from(id.worker)
}

fn settings(workers: u32, values: u32) -> WorkerSettings {
    WorkerSettings { workers, values, resend_after: Duration::from_millis(5) }
}

/// What the switch must give: for each packet the largest exponent, integers of that scale, their sum, one rounding.
fn reference(terms: &[Vec<f32>], packet: usize) -> Vec<f32> {
    let mut sum = vec![0.0; terms[0].len()];
    for (i, out) in sum.chunks_mut(packet).enumerate() {
        let range = i * packet..i * packet + out.len();
        let m = terms.iter().map(|t| exponent(t[range.clone()].iter().copied())).max().unwrap();
        let scale = PacketScale::new(m, terms.len() as u32);
        for (j, value) in out.iter_mut().enumerate() {
            *value = scale.float(terms.iter().map(|t| scale.fixed(t[range.start + j])).sum());
        }
    }
    sum
}

#[test]
fn sums_are_those_of_integers_whatever_the_network_does() {
    for (seed, weather) in [
        (1, Weather { lost: 0, doubled: 0 }),
        (2, Weather { lost: 20, doubled: 0 }),
        (3, Weather { lost: 0, doubled: 30 }),
        (4, Weather { lost: 15, doubled: 25 }),
    ] {
        let mut dice = Dice(seed);
        // Three jobs at once share 12 slots; each runs all-reduces of different lengths, floats and integers in turns.
        let mut switch = Aggregator::new(SwitchMemory { slots: 12, values: 16 });
        let lengths = [1usize, 40, 0, 333, 16, 97];
        let jobs = [(3u32, 5u32, 16u32), (2, 4, 7), (5, 64, 16)];
        let float = |job: usize, worker: u32, i: usize| {
            values(10 * job as u64 + i as u64, worker as usize, lengths[i])
        };
        let integer = |job: usize, worker: u32, i: usize| -> Vec<u32> {
            float(job, worker, i).iter().map(|x| x.to_bits()).collect()
        };
        let mut actors = Vec::new();
        for (job, (workers, slots, packet)) in jobs.into_iter().enumerate() {
            for worker in 0..workers {
                let id = WorkerId { job: job as u64, worker: worker as u16 };
                let worker_end = join(&mut switch, id, settings(workers, packet), slots).unwrap();
                let to_come = (0..lengths.len()).rev().map(|i| match i % 2 {
                    1 => HostBuffer::of(&integer(job, worker, i)),
                    _ => HostBuffer::of(&float(job, worker, i)),
                });
                actors.push(Actor {
                    worker: worker_end,
                    address: address(id),
                    to_come: to_come.collect(),
                    current: None,
                    done: Vec::new(),
                });
            }
        }
        assert_eq!((switch.granted(), switch.jobs()), (12, 3), "the third job has what is left of its 64");
        run(&mut switch, &mut actors, weather, &mut dice);
        let mut ends = actors.iter();
        for (job, (workers, _, packet)) in jobs.into_iter().enumerate() {
            for worker in 0..workers {
                let actor = ends.next().unwrap();
                for (i, length) in lengths.into_iter().enumerate() {
                    if i % 2 == 1 {
                        let all: Vec<Vec<u32>> = (0..workers).map(|w| integer(job, w, i)).collect();
                        let sum = |j: usize| all.iter().fold(0u32, |s, v| s.wrapping_add(v[j]));
                        let wanted: Vec<u32> = (0..length).map(sum).collect();
                        assert_eq!(actor.done[i].as_slice::<u32>(), wanted, "job {job} worker {worker}");
                    } else {
                        let all: Vec<Vec<f32>> = (0..workers).map(|w| float(job, w, i)).collect();
                        let wanted = reference(&all, packet as usize);
                        assert_eq!(
                            bits(actor.done[i].as_slice::<f32>()),
                            bits(&wanted),
                            "job {job} worker {worker}"
                        );
                    }
                }
            }
        }
        let counts = switch.counts();
        let packets: u64 = actors.iter().map(|a| a.worker.counts().sent).sum();
        assert_eq!(counts.added, packets, "each packet counts once: {counts:?}");
        assert_eq!((counts.held, counts.foreign), (0, 0));
        if weather.lost > 0 {
            assert!(actors.iter().map(|a| a.worker.counts().resent).sum::<u64>() > 0 && counts.repeated > 0);
        }
        if weather.doubled > 0 {
            assert!(counts.repeated > 0 && counts.stale > 0, "{counts:?}");
        }
    }
}

#[test]
fn jobs_wait_for_slots_and_slots_come_back() {
    let mut switch = Aggregator::new(SwitchMemory { slots: 10, values: 8 });
    let id = |job, worker| WorkerId { job, worker };
    let mut granted = |job, slots| join(&mut switch, id(job, 0), settings(1, 8), slots).map(|w| w.slots());
    assert_eq!([granted(1, 4), granted(2, 4)], [Ok(4), Ok(4)]);
    assert_eq!(granted(1, 9), Ok(4), "a worker that asks again has what its job has");
    assert_eq!(granted(3, 4), Ok(2));
    let full = granted(4, 1).unwrap_err();
    assert!(full.contains("all 10 belong to 3 jobs"), "{full}");
    leave(&mut switch, id(1, 0));
    assert_eq!(switch.granted(), 6);
    assert_eq!(join(&mut switch, id(4, 0), settings(1, 8), 9).unwrap().slots(), 4, "the longest free range");
    // Jobs of which nothing was heard lose theirs.
    switch.expire(Duration::from_secs(1));
    assert_eq!((switch.granted(), switch.jobs()), (0, 0));
    for (wrong, part) in [
        (join(&mut switch, id(1, 0), settings(2, 9), 1), "1 to 8 integers"),
        (join(&mut switch, id(1, 2), settings(2, 8), 1), "worker 2 of 2"),
        (join(&mut switch, id(1, 0), settings(2, 8), 0), "at least one slot"),
    ] {
        let error = wrong.map(|w| w.slots()).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

/// One worker that has not come yet keeps every slot of the others, and nothing more is sent meanwhile.
#[test]
fn slots_are_held_while_a_contribution_is_missing() {
    for slots in [1u32, 3, 8] {
        let mut switch = Aggregator::new(SwitchMemory { slots: 8, values: 4 });
        let mut ends: Vec<SlotWorker> = (0..3)
            .map(|w| join(&mut switch, WorkerId { job: 0, worker: w }, settings(3, 4), slots).unwrap())
            .collect();
        let mut buffers = vec![vec![1u32; 4 * 5]; 3];
        let (mut answers, mut sent) = (Vec::new(), 0u32);
        for worker in 0..3 {
            let mut packets = Vec::new();
            let lent = (&mut buffers[worker]).into();
            ends[worker].begin(&lent, 7, Duration::ZERO, &mut |p| packets.push(p.to_vec()));
            // Five packets in at most so many slots.
            assert_eq!((packets.len(), ends[worker].in_flight()), (slots.min(5) as usize, slots.min(5)));
            for packet in packets {
                sent += 1;
                switch.receive(worker, &packet, Duration::ZERO, &mut answers);
                let complete = sent.saturating_sub(2 * slots.min(5));
                let held = if worker < 2 { slots.min(5).min(sent) } else { slots.min(5) - complete };
                assert_eq!(
                    (switch.counts().held, answers.len() as u32),
                    (held, 3 * complete),
                    "{slots} slots"
                );
            }
        }
        assert_eq!(switch.counts().most_held, slots.min(5));
    }
}

proptest! {
    #[test]
    fn fixed_point_sums_are_as_near_as_stated(
        terms in (1usize..9, 1usize..20).prop_flat_map(|(workers, len)| {
            prop::collection::vec(prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL | prop::num::f32::ZERO, len), workers)
        }),
    ) {
        let n = terms.len() as u32;
        let m = terms.iter().map(|t| exponent(t.iter().copied())).max().unwrap();
        for (j, sum) in reference(&terms, terms[0].len()).into_iter().enumerate() {
            // Terms from 2^-149 to 2^128 have no exact f64 sum; its own error is far below the bound.
            let exact: f64 = terms.iter().map(|t| f64::from(t[j])).sum();
            if exact.abs() < f64::from(f32::MAX) {
                let rounding = exact.abs().max(f64::from(sum).abs()) * 2f64.powi(-24) + 2f64.powi(-150);
                let bound = error_bound(m, n) * (1.0 + 1e-9) + rounding;
                prop_assert!((f64::from(sum) - exact).abs() <= bound, "{sum} for {exact}, bound {bound}");
            }
        }
    }

    /// Whatever arrives, the switch answers or drops it, and a job beside it has its sums.
    #[test]
    fn strange_packets_harm_nobody(
        packets in prop::collection::vec((0u64..3, any::<u16>(), 0u8..8, any::<[u32; 4]>(), prop::collection::vec(any::<u8>(), 0..40)), 0..60),
    ) {
        let mut switch = Aggregator::new(SwitchMemory { slots: 4, values: 8 });
        let id = |worker| WorkerId { job: 9, worker };
        let mut ends: Vec<SlotWorker> = (0..2).map(|w| join(&mut switch, id(w), settings(2, 8), 2).unwrap()).collect();
        let mut answers = Vec::new();
        let mut bytes = Vec::new();
        for (job, worker, kind, [a, b, c, d], body) in packets {
            let at = SlotUse { slot: a % 6, phase: b, collective: c, exponent: d as i32 };
            let text = String::from_utf8_lossy(&body).into_owned();
            let packet = match kind {
                0 => Packet::Join { workers: a % 9, slots: b % 9, values: c % 12 },
                1 => Packet::Granted { slots: a },
                2 | 3 => Packet::Values(at, &body),
                4 => Packet::Sum(at, &body),
                5 => Packet::Leave,
                6 => Packet::Left,
                _ => Packet::Refused { retry: a % 2 == 0, reason: &text },
            };
            packet.encode(WorkerId { job, worker: worker % 9 }, &mut bytes);
            switch.receive(usize::from(worker % 5), &bytes, Duration::ZERO, &mut answers);
            switch.receive(7, &body, Duration::ZERO, &mut answers);
            // The same from a stranger, in the name of a worker of the other job.
            packet.encode(id(worker % 2), &mut bytes);
            switch.receive(7, &bytes, Duration::ZERO, &mut answers);
        }
        let to_come = |worker: u32| vec![HostBuffer::of(&[worker + 1; 50])];
        let mut actors: Vec<Actor> = ends.drain(..).enumerate().map(|(w, worker)| Actor {
            worker, address: address(id(w as u16)), to_come: to_come(w as u32), current: None, done: Vec::new(),
        }).collect();
        run(&mut switch, &mut actors, Weather { lost: 5, doubled: 5 }, &mut Dice(1));
        prop_assert!(actors.iter().all(|a| a.done[0].as_slice::<u32>() == [3; 50]));
    }
}

/// Runs `work` while a switch serves on loopback.
fn serving<R>(memory: SwitchMemory, injected: Injected, work: impl FnOnce(SwitchSettings) -> R) -> R {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let settings = SwitchSettings {
        address: socket.local_addr().unwrap(),
        slots: 8,
        values: memory.values,
        resend_after: Duration::from_millis(20),
        patience: LONG,
    };
    let mut server = SwitchServer::new(socket, memory, injected, LONG);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            server.run(&stop).unwrap();
            (server.counts(), server.jobs())
        });
        let result = work(settings);
        stop.store(true, Ordering::Relaxed);
        let (counts, jobs) = thread.join().unwrap();
        assert_eq!((counts.held, jobs), (0, 0), "{counts:?}");
        result
    })
}

/// Communicators over UDP: groups are jobs of their own at the same time, and what a switch does not sum goes below.
#[test]
fn a_communicator_sums_through_a_switch_over_udp() {
    let memory = SwitchMemory { slots: 64, values: 32 };
    let injected = Injected { loss: 0.02, doubled: 0.05, seed: 3, ..Injected::default() };
    let all = |seed, len| (0..4).map(|r| values(seed, r, len)).collect::<Vec<_>>();
    serving(memory, injected, |settings| {
        each(world(Engine::Threads, 4, LONG), |inner| {
            let mut world = SwitchReduce::new(settings, 77).wrap(inner);
            let rank = world.rank();
            let half: Vec<usize> = (0..4).filter(|r| r % 2 == rank % 2).collect();
            let mut group = world.group("half", &half).unwrap();
            for (step, len) in [1000usize, 5, 257].into_iter().enumerate() {
                let terms = all(step as u64, len);
                let mut own = terms[rank].clone();
                world.all_reduce("gradients", &mut own, Reduce::Sum).unwrap();
                assert_eq!(bits(&own), bits(&reference(&terms, 32)));
                let halves: Vec<Vec<f32>> = half.iter().map(|r| terms[*r].clone()).collect();
                let mut own = terms[rank].clone();
                group.all_reduce("activations", &mut own, Reduce::Sum).unwrap();
                assert_eq!(bits(&own), bits(&reference(&halves, 32)));
                let mut largest = terms[rank].clone();
                world.all_reduce("largest", &mut largest, Reduce::Max).unwrap();
                assert!((0..len).all(|i| largest[i] == terms.iter().map(|t| t[i]).fold(f32::MIN, f32::max)));
                let mut count = [rank as u32, u32::MAX];
                world.all_reduce("tokens", &mut count, Reduce::Sum).unwrap();
                assert_eq!(count, [6, 4u32.wrapping_neg()]);
                world.barrier("end").unwrap();
            }
            let mut broken = [1.0, if rank == 2 { f32::INFINITY } else { 0.0 }];
            world.all_reduce("not finite", &mut broken, Reduce::Sum).unwrap();
            assert!(broken.iter().all(|x| x.is_nan()));
            assert_eq!(exponent([f32::INFINITY].into_iter()), NOT_FINITE);
        });
    });
}

#[test]
fn ranks_in_different_collectives_are_refused_and_all_hear_of_it() {
    let errors = serving(SwitchMemory { slots: 8, values: 32 }, Injected::default(), |settings| {
        on_each(world(Engine::Threads, 3, LONG), |inner| {
            let mut world = SwitchReduce::new(settings, 1).wrap(inner);
            let name = if world.rank() == 1 { "other" } else { "loss" };
            let first = world.all_reduce(name, &mut [1.0f32], Reduce::Sum).unwrap_err();
            let later = world.barrier("end").unwrap_err();
            (first.to_string(), later.to_string())
        })
    });
    for error in errors {
        let (first, later) = error.unwrap();
        assert!(first.contains("different collectives") || first.contains("gone"), "{first}");
        assert!(later.contains("barrier"), "{later}");
    }
}

#[test]
fn a_switch_that_is_silent_and_a_wait_that_is_ended_are_errors() {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = SwitchSettings {
        address: free,
        slots: 4,
        values: 8,
        resend_after: Duration::from_millis(5),
        patience: Duration::from_millis(200),
    };
    let id = |worker| WorkerId { job: 5, worker };
    let error = SwitchClient::join(id(0), 2, &settings).map(drop).unwrap_err();
    assert!(matches!(error, SwitchError::Silent { .. }), "{error}");
    assert!(error.to_string().contains(&free.to_string()), "{error}");
    serving(SwitchMemory { slots: 8, values: 8 }, Injected::default(), |served| {
        let settings = SwitchSettings { patience: Duration::from_secs(1), ..served };
        let error =
            SwitchClient::join(id(0), 2, &SwitchSettings { values: 9, ..settings }).map(drop).unwrap_err();
        assert!(error.to_string().contains("1 to 8 integers"), "{error}");
        // Worker 1 has joined and does not come.
        let mut first = SwitchClient::join(id(0), 2, &settings).unwrap();
        let second = SwitchClient::join(id(1), 2, &settings).unwrap();
        let error = first.all_reduce(&mut [1.0f32; 20], 1, &|| false).unwrap_err();
        assert!(error.to_string().contains("does not send: 3"), "{error}");
        drop((first, second));
        // Another thread ends a wait.
        let inner = world(Engine::Threads, 2, LONG);
        let patient = SwitchReduce::new(served, 6);
        each(inner, |inner| {
            let mut world = patient.wrap(inner);
            if world.rank() == 1 {
                return;
            }
            let breaker = world.breaker();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(50));
                    breaker.break_off("enough");
                });
                let error = world.all_reduce("loss", &mut [1.0f32], Reduce::Sum).unwrap_err();
                assert!(matches!(error, CollectiveError::BrokenOff { .. }), "{error}");
                assert!(error.to_string().contains("enough"), "{error}");
            });
        });
        // Worker 1 of that job never came: leave in its name, so that the switch is empty.
        drop(SwitchClient::join(WorkerId { job: 6, worker: 1 }, 2, &served).unwrap());
    });
}

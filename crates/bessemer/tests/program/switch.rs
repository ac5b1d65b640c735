//! `bessemer network switch` among processes, and its state machines in simulated time against the model of `cluster`.

use crate::workplace::{Finished, finished};
use bessemer_cluster::collective::SlotSwitch;
use bessemer_collectives::HostBuffer;
use bessemer_collectives::switch::{Aggregator, Packet, SlotWorker, SwitchMemory, WorkerId, WorkerSettings};
use bessemer_units::Link;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

fn run(words: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    command.args(["network", "switch"]).args(words).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finished(command)
}

#[test]
fn processes_sum_through_a_switch_that_loses_packets() {
    let shape = ["--workers", "3", "--jobs", "2", "--bytes", "20KiB", "--slots", "1,4", "--repeats", "2"];
    let weather = ["--round-trip-ms", "1", "--loss", "0.02", "--json"];
    let result = run(&[&shape[..], &weather[..]].concat()).json();
    let rows = result["rows"].as_array().unwrap();
    for (row, slots) in rows.iter().zip([1u64, 4]) {
        assert_eq!((row["wrong"].as_u64(), row["granted"].as_u64()), (Some(0), Some(slots)), "{row}");
        assert_eq!(row["most_in_flight"].as_u64(), Some(slots), "{row}");
        // Of each of six workers twice one integer and 20 packets of integers, then 20 of floats with as many exponents first as
        // there are slots.
        assert_eq!(row["sent"].as_u64(), Some(6 * (2 * (1 + 20) + 20 + slots)), "{row}");
        assert!(row["most_held"].as_u64().unwrap() <= 2 * slots, "{row}");
    }
    assert!(rows.iter().map(|r| r["resent"].as_u64().unwrap()).sum::<u64>() > 0, "{result}");
    run(&["--slot-bytes", "6"]).failed(2, &["multiple of 4"]);
    run(&["--loss", "0.9"]).failed(2, &["0 to 0.5"]);
    run(&["--join", "127.0.0.1:9", "--worker", "4", "--workers", "4", "--slots", "0"]).failed(2, &["0"]);
}

/// Picoseconds that a packet takes on a line, and from a worker to the switch.
const PACKET: u64 = 1_000_000;
const LATENCY: u64 = 5_000_000;
/// Bytes of a packet.
const BYTES: u32 = 1024;

/// Findings of a simulation.
struct Simulated {
    end: u64,
    most_held: u32,
    in_flight: u32,
    /// Packets of one worker between the beginning of their sending and the arrival of their sum, at most.
    on_the_way: u32,
}

/// Three workers sum `blocks` packets each through `slots` slots in simulated time; packets of the last worker are `late` later.
fn simulate(slots: u32, blocks: u32, late: u64) -> Simulated {
    let settings = WorkerSettings { workers: 3, values: BYTES / 4, resend_after: Duration::from_secs(1000) };
    let mut switch = Aggregator::new(SwitchMemory { slots, values: BYTES / 4 });
    let mut events: BTreeMap<(u64, u64), (bool, usize, Vec<u8>)> = BTreeMap::new();
    let mut count = 0;
    let mut free = [0u64; 3];
    let mut begun: Vec<u64> = Vec::new();
    let mut ended: Vec<u64> = Vec::new();
    let mut answers = Vec::new();
    let mut buffers = vec![HostBuffer::of(&vec![1u32; (blocks * BYTES / 4) as usize]); 3];
    let mut up =
        |worker: usize, now: u64, bytes: &[u8], events: &mut BTreeMap<_, _>, begun: &mut Vec<u64>| {
            let begin = free[worker].max(now);
            free[worker] = begin + PACKET;
            if worker == 0 {
                begun.push(begin);
            }
            count += 1;
            let arrival = free[worker] + LATENCY + if worker == 2 { late } else { 0 };
            events.insert((arrival, count), (true, worker, bytes.to_vec()));
        };
    let mut workers: Vec<SlotWorker> = (0..3u16)
        .map(|worker| {
            let id = WorkerId { job: 1, worker };
            let mut bytes = Vec::new();
            Packet::Join { workers: 3, slots, values: BYTES / 4 }.encode(id, &mut bytes);
            switch.receive(usize::from(worker), &bytes, Duration::ZERO, &mut answers);
            SlotWorker::new(id, settings, slots)
        })
        .collect();
    answers.clear();
    for (i, worker) in workers.iter_mut().enumerate() {
        let lent = buffers[i].lend();
        worker.begin(&lent, 1, Duration::ZERO, &mut |p| up(i, 0, p, &mut events, &mut begun));
    }
    let in_flight = workers[0].in_flight();
    let (mut end, mut next) = (0, u64::MAX / 2);
    while let Some(((now, _), (upward, worker, bytes))) = events.pop_first() {
        if upward {
            switch.receive(worker, &bytes, Duration::ZERO, &mut answers);
            for (to, bytes) in answers.drain(..) {
                next += 1;
                events.insert((now + LATENCY, next), (false, to, bytes));
            }
            continue;
        }
        if worker == 0 {
            ended.push(now);
        }
        let mut values = buffers[worker].lend();
        let mut send = |p: &[u8]| up(worker, now, p, &mut events, &mut begun);
        workers[worker].receive(&mut values, &bytes, Duration::ZERO, &mut send).unwrap();
        end = now;
    }
    assert!(workers.iter().all(|w| w.in_flight() == 0 && w.counts().sent == u64::from(blocks)));
    assert!(buffers.iter().all(|b| b.as_slice::<u32>().iter().all(|x| *x == 3)));
    // Sums arrive in the order of sending; one that arrives when another packet begins is not on its way beside it.
    let overlap =
        |b: &u64| begun.iter().filter(|x| *x <= b).count() - ended.iter().filter(|x| *x <= b).count();
    let on_the_way = begun.iter().map(overlap).max().unwrap_or(0) as u32;
    Simulated { end, most_held: switch.counts().most_held, in_flight, on_the_way }
}

#[test]
fn slots_bound_the_rate_as_modelled() {
    let link =
        Link { latency: LATENCY as f64 * 1e-12, bandwidth: f64::from(BYTES) / (PACKET as f64 * 1e-12) };
    for slots in 1..=24u32 {
        let rounds = 50u64;
        let blocks = slots * rounds as u32;
        let found = simulate(slots, blocks, 0);
        // A slot's next packet leaves when its sum is there and the packets before it have left.
        let round_trip = 2 * LATENCY + PACKET;
        let line = u64::from(slots) * PACKET;
        let exact = (rounds - 1) * round_trip.max(line) + line + 2 * LATENCY;
        assert_eq!(found.end, exact, "{slots} slots");
        let model = SlotSwitch { slots, packet: BYTES, link };
        let seconds = found.end as f64 * 1e-12;
        let modelled = model.all_reduce(f64::from(blocks * BYTES)).unwrap();
        // The model's last round ends with the whole latency once more; where the line is full both are the same.
        let more = modelled - seconds;
        assert!(more > -1e-12 && more < 2.0 * link.latency + 1e-12, "{slots} slots: {seconds} {modelled}");
        if slots >= model.slots_of_full_rate() {
            assert!(more.abs() < 1e-12);
        }
        assert_eq!(found.in_flight, slots);
        assert_eq!(found.on_the_way, slots.min(model.slots_of_full_rate()), "{slots} slots");
        assert_eq!(found.most_held, 1, "all contributions come together");
    }
}

/// A slot is held from its first contribution to its last: so many packets as the others send meanwhile.
#[test]
fn a_late_worker_holds_slots() {
    for slots in [1u32, 2, 4, 8, 16] {
        for late in [1, 7, 10, 35, 70, 200] {
            let found = simulate(slots, 4 * slots, late * PACKET / 10);
            assert_eq!(
                found.most_held,
                slots.min(late.div_ceil(10) as u32 + u32::from(late % 10 == 0)),
                "{slots} slots, {late}"
            );
        }
    }
}

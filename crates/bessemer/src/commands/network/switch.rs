//! `bessemer network switch`: a switch that sums, among processes, beside the model of one.

use super::table::{rate, time};
use crate::cli::NetworkSwitchArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::signals;
use bessemer_cluster::collective::SlotSwitch;
use bessemer_collectives::switch::fixed_point::{PacketScale, exponent};
use bessemer_collectives::switch::{
    Injected, SwitchClient, SwitchCounts, SwitchMemory, SwitchServer, SwitchSettings, WorkerId,
};
use bessemer_report::terminal;
use bessemer_units::Link;
use bessemer_units::stats::upper_median;
use serde_json::{Value, json};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Silence after which a job loses its slots.
const IDLE: Duration = Duration::from_secs(120);
/// Time without progress after which a worker gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Report of one worker.
struct WorkerReport {
    /// Slots that its job was granted.
    slots: u32,
    /// Seconds of each all-reduce of integers.
    seconds: Vec<f64>,
    /// Elements that differ from sums that were formed directly.
    wrong: usize,
    most_in_flight: u32,
    sent: u64,
    resent: u64,
}

impl WorkerReport {
    fn json(&self) -> Value {
        json!({
            "slots": self.slots, "seconds": self.seconds, "wrong": self.wrong, "most_in_flight": self.most_in_flight,
            "sent": self.sent, "resent": self.resent,
        })
    }

    fn read(text: &[u8]) -> Option<WorkerReport> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let number = |key: &str| value[key].as_u64();
        Some(WorkerReport {
            slots: number("slots")? as u32,
            seconds: value["seconds"].as_array()?.iter().filter_map(Value::as_f64).collect(),
            wrong: number("wrong")? as usize,
            most_in_flight: number("most_in_flight")? as u32,
            sent: number("sent")?,
            resent: number("resent")?,
        })
    }
}

/// One number of slots: what was measured and what the model says.
struct SwitchRow {
    /// Slots that each job asked for.
    slots: u32,
    /// Fewest slots that a job was granted.
    granted: u32,
    /// Median over repetitions of the slowest worker.
    seconds: f64,
    bytes_per_second: f64,
    model_seconds: f64,
    model_bytes_per_second: f64,
    wrong: usize,
    most_in_flight: u32,
    most_held: u32,
    sent: u64,
    resent: u64,
}

pub(super) fn run(args: &NetworkSwitchArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match (args.serve, args.join) {
        (Some(address), _) => serve(args, address, console),
        (None, Some(address)) => Ok(print(&work(args, address)?.json().to_string())?),
        (None, None) => sweep(args, as_json, console),
    }
}

fn memory(args: &NetworkSwitchArgs, slots: u32) -> SwitchMemory {
    SwitchMemory { slots, values: values(args) }
}

/// Integers of a packet.
fn values(args: &NetworkSwitchArgs) -> u32 {
    args.slot_bytes / 4
}

fn injected(args: &NetworkSwitchArgs) -> Injected {
    Injected {
        round_trip: Duration::from_secs_f64(args.round_trip_ms * 1e-3),
        loss: args.loss,
        doubled: args.loss,
        seed: args.seed,
    }
}

/// Serves until the process is asked to stop.
fn serve(args: &NetworkSwitchArgs, address: SocketAddr, console: &mut Console) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let socket = UdpSocket::bind(address).map_err(|e| Failure::new(format!("--serve {address}: {e}")))?;
    let slots = args.slots.iter().copied().max().unwrap_or(1);
    console.say(&format!("{} sums in {slots} slots of {} bytes", socket.local_addr()?, args.slot_bytes));
    let mut server = SwitchServer::new(socket, memory(args, slots), injected(args), IDLE);
    server.run(&stop)?;
    let SwitchCounts { added, repeated, stale, foreign, sums, most_held, .. } = server.counts();
    console.say(&format!(
        "{sums} sums of {added} packets; dropped: {repeated} repeated, {stale} late, {foreign} of strangers; at most {most_held} slots held"
    ));
    Ok(())
}

/// Element i of a worker's integers.
fn integer(worker: u32, i: usize) -> u32 {
    (worker + 1).wrapping_mul(0x9e37_79b9).wrapping_add((i as u32).wrapping_mul(0x85eb_ca6b))
}

/// Element i of a worker's floats, of magnitudes over six decades.
fn float(worker: u32, i: usize) -> f32 {
    let bits = integer(worker, i);
    (bits as i32 as f32) / 2f32.powi(31) * 10f32.powi((bits % 7) as i32 - 3)
}

/// One worker: sums, compares every element with a sum that it forms itself, and reports.
fn work(args: &NetworkSwitchArgs, address: SocketAddr) -> Result<WorkerReport, Failure> {
    let settings = SwitchSettings {
        address,
        slots: args.slots.iter().copied().max().unwrap_or(1),
        values: values(args),
        // Twice the round trip of a link that is not disturbed, and time for a process to be scheduled.
        resend_after: Duration::from_secs_f64(2.0 * args.round_trip_ms * 1e-3) + Duration::from_millis(50),
        patience: PATIENCE,
    };
    let id = WorkerId { job: args.job, worker: args.worker };
    let mut client = SwitchClient::join(id, args.workers, &settings).map_err(Failure::new)?;
    let n = (args.bytes.0 / 4).max(1) as usize;
    let (own, workers) = (u32::from(args.worker), args.workers);
    let mut seconds = Vec::new();
    let mut wrong = 0;
    let sums: Vec<u32> =
        (0..n).map(|i| (0..workers).fold(0u32, |s, w| s.wrapping_add(integer(w, i)))).collect();
    for _ in 0..args.repeats {
        let mut ready = [0u32];
        client.all_reduce(&mut ready, 1, &|| false).map_err(Failure::new)?;
        let mut integers: Vec<u32> = (0..n).map(|i| integer(own, i)).collect();
        let begin = Instant::now();
        client.all_reduce(&mut integers, 2, &|| false).map_err(Failure::new)?;
        seconds.push(begin.elapsed().as_secs_f64());
        wrong += integers.iter().zip(&sums).filter(|(a, b)| a != b).count();
    }
    let mut floats: Vec<f32> = (0..n).map(|i| float(own, i)).collect();
    client.all_reduce(&mut floats, 3, &|| false).map_err(Failure::new)?;
    for (block, sums) in floats.chunks(settings.values as usize).enumerate() {
        let first = block * settings.values as usize;
        let of = |worker: u32| (first..first + sums.len()).map(move |i| float(worker, i));
        let scale = PacketScale::new((0..workers).map(|w| exponent(of(w))).max().unwrap_or(0), workers);
        for (j, sum) in sums.iter().enumerate() {
            let whole: i32 = (0..workers).map(|w| scale.fixed(float(w, first + j))).sum();
            wrong += usize::from(scale.float(whole).to_bits() != sum.to_bits());
        }
    }
    let counts = client.counts();
    Ok(WorkerReport {
        slots: client.slots(),
        seconds,
        wrong,
        most_in_flight: counts.most_in_flight,
        sent: counts.sent,
        resent: counts.resent,
    })
}

/// Measures each number of slots, and prints it beside the model.
fn sweep(args: &NetworkSwitchArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let most = args.slots.iter().copied().max().unwrap_or(1);
    let at_once = Injected { round_trip: Duration::ZERO, ..injected(args) };
    let mut undelayed = Vec::new();
    // More slots than the buffers of sockets hold lose packets, so the most slots need not be fastest.
    for slots in [1, 4, 16].into_iter().filter(|slots| *slots == 1 || *slots <= most) {
        console.say(&format!("the line itself: {slots} slots a job, no delay"));
        undelayed.push(measure(args, slots, at_once)?.seconds);
    }
    let (alone, line) = (undelayed[0], undelayed.iter().copied().fold(f64::INFINITY, f64::min));
    let packets = (args.bytes.0 as f64 / f64::from(args.slot_bytes)).ceil();
    // One slot has one packet in flight, so each packet takes a round trip.
    let round_trip = args.round_trip_ms * 1e-3 + alone / packets;
    let bandwidth = args.bytes.0 as f64 / line;
    let latency = (round_trip - f64::from(args.slot_bytes) / bandwidth).max(0.0) / 2.0;
    let mut rows = Vec::new();
    for &slots in &args.slots {
        console.say(&format!("{slots} slots a job"));
        let SwitchMeasurement { reports, seconds, counts } = measure(args, slots, injected(args))?;
        let model = SlotSwitch { slots, packet: args.slot_bytes, link: Link { latency, bandwidth } };
        rows.push(SwitchRow {
            slots,
            granted: reports.iter().map(|r| r.slots).min().unwrap_or(0),
            seconds,
            bytes_per_second: args.bytes.0 as f64 / seconds,
            model_seconds: model.all_reduce(args.bytes.0 as f64)?,
            model_bytes_per_second: model.throughput(),
            wrong: reports.iter().map(|r| r.wrong).sum(),
            most_in_flight: reports.iter().map(|r| r.most_in_flight).max().unwrap_or(0),
            most_held: counts.most_held,
            sent: reports.iter().map(|r| r.sent).sum(),
            resent: reports.iter().map(|r| r.resent).sum(),
        });
    }
    match as_json {
        true => print(&serde_json::to_string(&document(args, round_trip, bandwidth, &rows))?)?,
        false => print(text(args, round_trip, bandwidth, &rows).trim_end())?,
    }
    match rows.iter().map(|row| row.wrong).sum::<usize>() {
        0 => Ok(()),
        wrong => Err(Failure::new(format!("{wrong} elements differ from sums that were formed directly"))),
    }
}

fn document(args: &NetworkSwitchArgs, round_trip: f64, bandwidth: f64, rows: &[SwitchRow]) -> Value {
    let row = |r: &SwitchRow| {
        json!({
            "slots": r.slots, "granted": r.granted, "seconds": r.seconds, "bytes_per_second": r.bytes_per_second,
            "model_seconds": r.model_seconds, "model_bytes_per_second": r.model_bytes_per_second, "wrong": r.wrong,
            "most_in_flight": r.most_in_flight, "most_held": r.most_held, "sent": r.sent, "resent": r.resent,
        })
    };
    json!({
        "workers": args.workers, "jobs": args.jobs, "bytes": args.bytes.0, "slot_bytes": args.slot_bytes,
        "round_trip": round_trip, "line_bytes_per_second": bandwidth, "loss": args.loss,
        "rows": rows.iter().map(row).collect::<Vec<Value>>(),
    })
}

fn text(args: &NetworkSwitchArgs, round_trip: f64, bandwidth: f64, rows: &[SwitchRow]) -> String {
    let head = [
        "slots",
        "time",
        "a worker",
        "model",
        "measured / model",
        "in flight",
        "held",
        "packets",
        "again",
        "wrong",
    ];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|r| {
            vec![
                r.slots.to_string(),
                time(r.seconds),
                rate(r.bytes_per_second),
                rate(args.bytes.0 as f64 / r.model_seconds),
                format!("{:.2}", r.model_seconds / r.seconds),
                r.most_in_flight.to_string(),
                r.most_held.to_string(),
                r.sent.to_string(),
                r.resent.to_string(),
                r.wrong.to_string(),
            ]
        })
        .collect();
    format!(
        "jobs: {}, workers of each: {}, every one a process; {} a worker in packets of {} bytes; round trip {}, line {} a worker\n{}",
        args.jobs,
        args.workers,
        args.bytes,
        args.slot_bytes,
        time(round_trip),
        rate(bandwidth),
        terminal::listing(&head.map(str::to_string), &cells)
    )
}

/// All workers with one number of slots.
struct SwitchMeasurement {
    reports: Vec<WorkerReport>,
    /// Median over repetitions of the slowest worker.
    seconds: f64,
    counts: SwitchCounts,
}

/// Runs all workers of all jobs as processes.
fn measure(args: &NetworkSwitchArgs, slots: u32, injected: Injected) -> Result<SwitchMeasurement, Failure> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?;
    let mut server = SwitchServer::new(socket, memory(args, slots * args.jobs), injected, IDLE);
    let stop = AtomicBool::new(false);
    let (reports, counts) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| server.run(&stop).map(|()| server.counts()));
        let reports = workers(args, slots, address);
        stop.store(true, Ordering::Relaxed);
        let counts = thread.join().map_err(|_| Failure::new("the thread of the switch panicked"))?;
        Ok::<_, Failure>((reports?, counts?))
    })?;
    let slowest = |i: usize| reports.iter().map(|r| r.seconds[i]).fold(0.0, f64::max);
    let mut times: Vec<f64> = (0..args.repeats as usize).map(slowest).collect();
    Ok(SwitchMeasurement { seconds: upper_median(&mut times), reports, counts })
}

/// Processes that are ended when they are dropped.
struct Workers(Vec<Child>);

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A process that has ended is no error.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn workers(args: &NetworkSwitchArgs, slots: u32, address: SocketAddr) -> Result<Vec<WorkerReport>, Failure> {
    let program = std::env::current_exe()?;
    let mut running = Workers(Vec::new());
    for job in 0..args.jobs {
        for worker in 0..args.workers {
            let mut command = Command::new(&program);
            command.args(["network", "switch", "--join", &address.to_string()]);
            command.args(["--job", &job.to_string(), "--worker", &worker.to_string()]);
            command.args(["--workers", &args.workers.to_string(), "--bytes", &args.bytes.0.to_string()]);
            command.args(["--slots", &slots.to_string(), "--slot-bytes", &args.slot_bytes.to_string()]);
            command.args(["--repeats", &args.repeats.to_string()]);
            command.args(["--round-trip-ms", &args.round_trip_ms.to_string()]);
            running
                .0
                .push(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
        }
    }
    let mut reports = Vec::new();
    while let Some(child) = running.0.pop() {
        let done = child.wait_with_output()?;
        if !done.status.success() {
            let text = String::from_utf8_lossy(&done.stderr);
            return Err(Failure::new(format!("a worker failed: {}", text.trim_end())));
        }
        let report = WorkerReport::read(&done.stdout).filter(|r| r.seconds.len() == args.repeats as usize);
        reports.push(report.ok_or_else(|| Failure::new("a worker ended without a report"))?);
    }
    Ok(reports)
}

//! How fast the simulator is: `cargo run --release -p bessemer-sim --example speed`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use bessemer_schedule::{Kind, Shape, generate};
use bessemer_sim::replay::{Medium, Progress, RankEvent, ReplayGroup, StepEvents, replay};
use bessemer_sim::{Costs, PassTimes, Summary, simulate};
use std::time::Instant;

fn main() {
    for (kind, ranks, micro_batches) in
        [(Kind::OneFOneB, 64, 2600), (Kind::ZbH1, 64, 2400), (Kind::Interleaved, 32, 2048)]
    {
        let program = generate(kind, &Shape::new(ranks, micro_batches)).unwrap();
        let instructions: usize = program.lists.iter().map(Vec::len).sum();
        let costs = Costs::per_rank(&program, &PassTimes::new(1.0, 1.0, 1.0));
        let begun = Instant::now();
        let timeline = simulate(&program, &costs).unwrap();
        let simulated = begun.elapsed().as_secs_f64();
        let summary = Summary::new(&program, &costs, &timeline, 0.5);
        println!(
            "{kind} of {ranks} ranks and {micro_batches} micro-batches: {instructions} instructions in {simulated:.3} s \
             ({:.1} million a second), with the summary {:.3} s; makespan {}",
            instructions as f64 / simulated / 1e6,
            begun.elapsed().as_secs_f64(),
            summary.makespan
        );
    }
    replays();
}

/// Ranks that start a collective beside each computation, and tell their neighbours.
fn replays() {
    let (ranks, rounds) = (64, 8000);
    let mut step = StepEvents::new(ranks);
    let all = (0..ranks).collect();
    let (label, progress) = ("all".into(), Progress::Thread);
    step.group(ReplayGroup { label, number: 0, ranks: all, progress, medium: Medium::Own });
    let name = step.name("values");
    for (rank, list) in step.lists.iter_mut().enumerate() {
        for round in 0..rounds {
            let tag = round as u64;
            list.push(RankEvent::Start { group: 0, seconds: 0.5, name });
            list.push(RankEvent::Send {
                to: (rank + 1) % ranks,
                tag,
                busy: 0.25,
                latency: 0.1,
                medium: Medium::Own,
            });
            list.push(RankEvent::Compute { seconds: 1.0 });
            list.push(RankEvent::Receive { from: (rank + ranks - 1) % ranks, tag });
            list.push(RankEvent::Wait { group: 0, number: round });
        }
    }
    let events: usize = step.lists.iter().map(Vec::len).sum();
    let begun = Instant::now();
    let seconds = replay(&step).unwrap().seconds();
    let took = begun.elapsed().as_secs_f64();
    println!(
        "replay of {ranks} ranks: {events} events in {took:.3} s ({:.1} million a second); {seconds} s",
        events as f64 / took / 1e6
    );
}

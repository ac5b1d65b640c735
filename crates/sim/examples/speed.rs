//! How fast the simulator is: `cargo run --release -p bessemer-sim --example speed`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use bessemer_schedule::{Kind, Shape, generate};
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
}

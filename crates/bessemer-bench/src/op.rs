//! `bessemer-bench op`: operators alone, at the shapes of a training step; steps of optimizers.

use crate::cases::{self, Case, Work};
use crate::cli::BenchOpArgs;
use crate::timing::{Stopwatch, Timing};
use bessemer::{Console, Failure, print};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung};
use bessemer_measure::{engine, machine};
use bessemer_units::Storage;
use serde_json::{Value, json};

pub(crate) fn run(args: &BenchOpArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let list = cases::chosen(cases::all(), &args.name, &args.shapes)?;
    let threads = machine::threads(args.threads as u64);
    let rung = match &args.kernels {
        None => Rung::detect(),
        Some(name) => rung(name)?,
    };
    let config = CpuConfig { threads, matmul: args.matmul.into(), ..CpuConfig::default() };
    let engine = match &args.engine {
        None => Engine::fastest(rung, config.matmul),
        Some(name) => engine(name)?,
    };
    let mut stopwatch = Stopwatch::new(threads)?;
    if !as_json {
        print(&format!(
            "{rung} kernels, products by {engine}, {threads} threads, f32 multiply-adds {:.0} GFLOP/s\n{:<24} {:<20} {:>10} {:>9} {:>7} {:>7} {:>7}  \
             kept",
            stopwatch.peak() / 1e9,
            "operator",
            "shape",
            "ms",
            "GFLOP/s",
            "% peak",
            "best %",
            "GB/s"
        ))?;
    }
    let mut rows = Vec::new();
    for (i, case) in list.iter().enumerate() {
        let mut backend = CpuBackend::with_engine(config.clone(), rung, engine)?;
        let mut work = case.on(&mut backend, Storage::from(args.dtype).dtype())?;
        let timing = stopwatch.time(&mut backend, &mut work)?;
        let row = Row { case, work: &work, timing, peak: stopwatch.peak() };
        if as_json {
            console.say(&format!("{}/{}: {} {}", i + 1, list.len(), case.name, case.shape));
            rows.push(row.json());
        } else {
            print(&row.text())?;
        }
    }
    if as_json {
        print(&serde_json::to_string(&json!({
            "kernels": rung.to_string(),
            "engine": engine.name(),
            "threads": threads,
            "peak_gflops": stopwatch.peak() / 1e9,
            "operators": rows,
        }))?)?;
    }
    Ok(())
}

/// The rung of that name, if this processor has it.
fn rung(name: &str) -> Result<Rung, Failure> {
    let known: Vec<_> = Rung::ALL.into_iter().filter(|r| r.available()).map(Rung::name).collect();
    Rung::ALL
        .into_iter()
        .find(|r| r.available() && r.name() == name)
        .ok_or_else(|| Failure::usage(format!("--kernels {name}: this processor has {}", known.join(", "))))
}

/// What one line says.
struct Row<'a> {
    case: &'a Case,
    work: &'a Work,
    timing: Timing,
    peak: f64,
}

impl Row<'_> {
    fn rate(&self, seconds: f64) -> f64 {
        self.work.flops() / seconds
    }

    fn text(&self) -> String {
        let t = &self.timing;
        format!(
            "{:<24} {:<20} {:>10.3} {:>9.1} {:>7.0} {:>7.0} {:>7.1}  {}/{}",
            self.case.name,
            self.case.shape,
            1e3 * t.median,
            self.rate(t.median) / 1e9,
            100.0 * self.rate(t.median) / self.peak,
            100.0 * self.rate(t.best) / self.peak,
            self.work.bytes() / t.median / 1e9,
            t.kept,
            t.tried
        )
    }

    fn json(&self) -> Value {
        let t = &self.timing;
        json!({
            "op": self.case.name,
            "shape": self.case.shape,
            "ms": 1e3 * t.median,
            "ms_best": 1e3 * t.best,
            "gflops": self.rate(t.median) / 1e9,
            "gb_per_s": self.work.bytes() / t.median / 1e9,
            "share_of_peak": self.rate(t.median) / self.peak,
            "launches_kept": t.kept,
            "launches": t.tried,
        })
    }
}

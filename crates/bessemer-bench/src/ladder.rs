//! `bessemer-bench ladder`: every rung of the kernels under the roofline.

use crate::cases;
use crate::cli::BenchOpArgs;
use crate::timing::Stopwatch;
use bessemer::{Console, Failure, print};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung, peak};
use bessemer_measure::machine;
use bessemer_units::Storage;
use serde_json::json;

/// Rungs with f32 multiply-adds, slowest first, then the fastest one with each other engine of products that it has.
fn steps() -> Vec<(Rung, Engine)> {
    let best = Rung::detect();
    let rungs = Rung::ALL.into_iter().filter(|r| r.available()).map(|r| (r, Engine::Fma));
    let engines = Engine::ALL.into_iter().filter(|&e| e != Engine::Fma && e.available(best));
    rungs.chain(engines.map(|e| (best, e))).collect()
}

/// The reference loops run at less than 1 GFLOP/s: what has more operations than this is not worth the wait.
const REFERENCE_FLOPS: f64 = 2e9;

pub(crate) fn run(args: &BenchOpArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if args.engine.is_some() || args.kernels.is_some() {
        return Err(Failure::usage(
            "bessemer-bench ladder shows all kernels and engines: --engine and --kernels are for bessemer-bench op",
        ));
    }
    let list = cases::chosen(cases::few(), &args.name, &args.shapes)?;
    let threads = machine::threads(args.threads as u64);
    let dtype = Storage::from(args.dtype).dtype();
    let limits = peak::measure(threads)?;
    let mut stopwatch = Stopwatch::new(threads)?;
    let peak = stopwatch.peak().max(limits.flops_per_s);
    let bandwidth = limits.read_bytes_per_s;
    if !as_json {
        print(&format!(
            "{threads} threads: f32 multiply-adds {:.0} GFLOP/s, memory read {:.1} GB/s",
            peak / 1e9,
            bandwidth / 1e9
        ))?;
    }
    let mut result = Vec::new();
    for case in &list {
        let (mut rows, mut roof) = (Vec::new(), (0.0, 0.0));
        for (rung, engine) in steps() {
            let config = CpuConfig { threads, ..CpuConfig::default() };
            let mut backend = CpuBackend::with_engine(config, rung, engine)?;
            let mut work = case.on(&mut backend, dtype)?;
            let too_slow = rung == Rung::Reference && work.flops() > REFERENCE_FLOPS;
            if too_slow || (engine != Engine::Fma && !work.has_products()) {
                continue;
            }
            let timing = stopwatch.time(&mut backend, &mut work)?;
            console.say(&format!("{} {}: {rung}, {engine}", case.name, case.shape));
            let (flops, bytes) = (work.flops(), work.bytes());
            rows.push((rung, engine, flops / timing.median / 1e9, bytes / timing.median / 1e9));
            let attainable = peak.min(flops / bytes * bandwidth);
            roof = (attainable / 1e9, attainable * bytes / flops / 1e9);
        }
        if as_json {
            let rows: Vec<_> = rows
                .iter()
                .map(|(rung, engine, gflops, gb)| {
                    json!({
                        "kernels": rung.to_string(), "engine": engine.name(), "gflops": gflops, "gb_per_s": gb,
                    })
                })
                .collect();
            result.push(json!({
                "op": case.name, "shape": case.shape, "rungs": rows,
                "roofline_gflops": roof.0, "roofline_gb_per_s": roof.1,
            }));
            continue;
        }
        print(&format!(
            "\n{} {}\n{:<28} {:>9} {:>8} {:>11}",
            case.name, case.shape, "", "GFLOP/s", "GB/s", "% roofline"
        ))?;
        for (rung, engine, gflops, gb) in rows {
            let name = format!("{rung}, {engine}");
            print(&format!("{name:<28} {gflops:>9.1} {gb:>8.1} {:>11.0}", 100.0 * gflops / roof.0))?;
        }
        print(&format!("{:<28} {:>9.1} {:>8.1} {:>11}", "roofline (f32, from memory)", roof.0, roof.1, 100))?;
    }
    if as_json {
        print(&serde_json::to_string(&json!({
            "threads": threads, "peak_gflops": peak / 1e9, "read_gb_per_s": bandwidth / 1e9, "operators": result,
        }))?)?;
    }
    Ok(())
}

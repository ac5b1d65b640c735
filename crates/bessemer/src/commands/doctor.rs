//! `bessemer doctor`: what this machine can do.

mod machine_file;

use crate::cli::DoctorArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_kernels_cpu::{Engine, Rung, peak};
use bessemer_measure::many_cores::{Model, profile, shown, this_machine};
use bessemer_measure::{Steps, small_job};
use bessemer_units::MatmulPrecision;
use serde_json::json;
use std::collections::BTreeMap;

pub(crate) fn run(args: &DoctorArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if let Some(file) = &args.machine {
        let ranks = args.ranks.map_or_else(|| machine::threads(0), |ranks| ranks as usize);
        let written = machine_file::write(file, ranks, args.matmul.into(), console)?;
        return Ok(print(&match as_json {
            true => serde_json::to_string(&written)?,
            false => format!(
                "{}: {ranks} ranks of {:.1} GFLOP/s and {:.1} GB/s each",
                file.display(),
                written.matrix_flops / 1e9,
                written.memory_bandwidth / 1e9
            ),
        })?);
    }
    if !args.host.hosts.is_empty() {
        return many_cores(args, as_json, console);
    }
    let threads = machine::threads(0);
    let one = peak::measure(1)?;
    let all = peak::measure(threads)?;
    let handoff = peak::handoff_seconds(threads)?;
    let memory = machine::available_memory();
    let rung = Rung::detect();
    let engines = MatmulPrecision::ALL.map(|p| (p, Engine::fastest(rung, p)));
    let text = match as_json {
        true => serde_json::to_string(&json!({
            "processor": machine::processor(),
            "features": machine::features(),
            "threads": threads,
            "cores": machine::cores().to_string(),
            "handoff_s": handoff,
            "kernels": rung.to_string(),
            "engines": engines.iter().map(|(p, e)| (p.to_string(), e.name())).collect::<BTreeMap<_, _>>(),
            "memory_available_bytes": memory.0,
            "peak_flops_1_thread": one.flops_per_s,
            "peak_flops": all.flops_per_s,
            "read_bytes_per_s": all.read_bytes_per_s,
            "copy_bytes_per_s": all.copy_bytes_per_s,
        }))?,
        false => format!(
            "processor          {}\nfeatures           {}\ncores              {} (sockets x memory nodes x cores)\nthreads            {threads}\nkernels            {rung}\nproducts           {}\nmemory available   {memory}\n\
             f32 FMA peak       {:.0} GFLOP/s with 1 thread, {:.0} with {threads}\nmemory bandwidth   read {:.1} GB/s, copy \
             (read + write) {:.1} GB/s\nhandoff            {:.1} us to give {threads} threads a job without work and have them back",
            machine::processor(),
            machine::features().join(" "),
            machine::cores(),
            engines.map(|(p, e)| format!("{p}: {e}")).join(", "),
            one.flops_per_s / 1e9,
            all.flops_per_s / 1e9,
            all.read_bytes_per_s / 1e9,
            all.copy_bytes_per_s / 1e9,
            1e6 * handoff
        ),
    };
    Ok(print(&text)?)
}

/// A small model's step on this machine, measured, and on machines that were described, modelled.
fn many_cores(args: &DoctorArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let mut job = small_job([384, 6, 256, 8192], "gpt2", args.matmul.into())?;
    job.shape.sequences = 4;
    let steps = Steps { warmup: 1, timed: 3, dump: None };
    let here = this_machine()?;
    let mut report = |line: &str| console.say(line);
    let (alone, work) = profile(&job, &steps, 1, None, &mut report)?;
    let mut measured = vec![(1, alone)];
    let threads = machine::threads(0);
    if threads > 1 {
        measured.push((threads, profile(&job, &steps, threads, None, &mut report)?.0));
    }
    let hosts = args.host.machines(&here);
    let model = Model { work, here, measured, hosts };
    Ok(print(&shown(&job, &model, as_json))?)
}

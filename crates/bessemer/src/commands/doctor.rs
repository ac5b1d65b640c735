//! `bessemer doctor`: what this machine can do.

mod machine_file;
pub(in crate::commands) mod measure;
mod operators;
mod products;

use crate::cli::DoctorArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_kernels_cpu::{Engine, Rung, peak};
use bessemer_units::MatmulPrecision;
use serde_json::json;
use std::collections::BTreeMap;

pub(crate) fn run(args: &DoctorArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if let Some(file) = &args.machine {
        let ranks = args.ranks.map_or_else(|| machine::threads(0), |ranks| ranks as usize);
        let written = machine_file::write(file, ranks, args.matmul.into(), console)?;
        return Ok(print(&match as_json {
            true => serde_json::to_string_pretty(&written)?,
            false => format!(
                "{}: {ranks} ranks of {:.1} GFLOP/s and {:.1} GB/s each",
                file.display(),
                written.matrix_flops / 1e9,
                written.memory_bandwidth / 1e9
            ),
        })?);
    }
    let threads = machine::threads(0);
    let one = peak::measure(1)?;
    let all = peak::measure(threads)?;
    let memory = machine::available_memory();
    let rung = Rung::detect();
    let engines = MatmulPrecision::ALL.map(|p| (p, Engine::fastest(rung, p)));
    let text = match as_json {
        true => serde_json::to_string_pretty(&json!({
            "processor": machine::processor(),
            "features": machine::features(),
            "threads": threads,
            "kernels": rung.to_string(),
            "engines": engines.iter().map(|(p, e)| (p.to_string(), e.name())).collect::<BTreeMap<_, _>>(),
            "memory_available_bytes": memory.0,
            "peak_flops_1_thread": one.flops_per_s,
            "peak_flops": all.flops_per_s,
            "read_bytes_per_s": all.read_bytes_per_s,
            "copy_bytes_per_s": all.copy_bytes_per_s,
        }))?,
        false => format!(
            "processor          {}\nfeatures           {}\nthreads            {threads}\nkernels            {rung}\nproducts           {}\nmemory available   {memory}\n\
             f32 FMA peak       {:.0} GFLOP/s with 1 thread, {:.0} with {threads}\nmemory bandwidth   read {:.1} GB/s, copy \
             (read + write) {:.1} GB/s",
            machine::processor(),
            machine::features().join(" "),
            engines.map(|(p, e)| format!("{p}: {e}")).join(", "),
            one.flops_per_s / 1e9,
            all.flops_per_s / 1e9,
            all.read_bytes_per_s / 1e9,
            all.copy_bytes_per_s / 1e9
        ),
    };
    Ok(print(&text)?)
}

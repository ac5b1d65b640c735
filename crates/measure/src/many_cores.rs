//! A step on one core, on more, and beside both the model of many cores.

use crate::{Job, MeasureError, Steps, Timed, engine, machine, measure_steps};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Rung, peak};
use bessemer_parallel::MemoryPlan;
use bessemer_plan::{ManyCores, OperatorWork, Placement, StepWork};
use bessemer_units::stats::upper_median;
use serde_json::{Value, json};
use std::fmt::Write;

/// A step with its measurements, and the machines that it is modelled on.
pub struct Model {
    /// Work of a step, measured on one core.
    pub work: StepWork,
    /// This machine.
    pub here: ManyCores,
    /// Threads and seconds of a step.
    pub measured: Vec<(usize, f64)>,
    /// Machines to model.
    pub hosts: Vec<ManyCores>,
}

/// 1, 2, 4, ... and `most` itself.
pub fn counts(most: usize) -> Vec<usize> {
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1usize), |n| n.checked_mul(2)).take_while(|n| *n < most).collect();
    counts.push(most);
    counts
}

/// The cores of this machine, with its measured bandwidths and the measured time of a job without work.
///
/// # Errors
/// Too little memory to measure bandwidths.
pub fn this_machine() -> Result<ManyCores, MeasureError> {
    let threads = machine::threads(0);
    let (one, all) = (peak::measure(1)?, peak::measure(threads)?);
    let cores = machine::cores();
    let node_bandwidth = (all.copy_bytes_per_s / cores.all_nodes() as f64).max(one.copy_bytes_per_s);
    Ok(ManyCores {
        cores,
        core_bandwidth: one.copy_bytes_per_s,
        node_bandwidth,
        link_bandwidth: node_bandwidth / 2.0,
        handoff: peak::handoff_seconds(2)?,
        fan_in: peak::FAN_IN,
    })
}

/// Seconds of a step with so many threads, and where they go. `report` gets a line for each step.
///
/// # Errors
/// An engine that does not exist, a step that fails or does not fit into memory.
pub fn profile(
    job: &Job,
    steps: &Steps<'_>,
    threads: usize,
    named: Option<&str>,
    report: &mut dyn FnMut(&str),
) -> Result<(f64, StepWork), MeasureError> {
    let config = CpuConfig { threads, matmul: job.matmul, ..CpuConfig::default() };
    let mut cpu = match named {
        Some(name) => CpuBackend::with_engine(config, Rung::detect(), engine(name)?)?,
        None => CpuBackend::new(config)?,
    };
    MemoryPlan::alone(&job.model, job.shape, job.activations.clone(), &job.optim, Some(&mut cpu))?
        .fits(1, machine::available_memory())?;
    let mut backend = Timed::new(Box::new(cpu), true);
    let (_, mut times) = measure_steps(job, steps, &mut backend, report)?;
    // Times of operators are sums over the steps, the step's is their median: a disturbed step lengthens both alike.
    let count = times.step.len() as f64;
    let mean = times.step.iter().sum::<f64>() / count;
    let seconds = upper_median(&mut times.step);
    let share = seconds / mean / count;
    let operators: Vec<OperatorWork> = (times.operators.values())
        .map(|spent| OperatorWork {
            seconds: share * spent.time.as_secs_f64(),
            bytes: spent.bytes / count,
            launches: spent.launches as f64 / count,
        })
        .collect();
    let inside: f64 = operators.iter().map(|op| op.seconds).sum();
    Ok((seconds, StepWork { operators, serial: (seconds - inside).max(0.0) }))
}

/// The model beside the measurements, then on the described machines: a table, or JSON.
pub fn shown(job: &Job, model: &Model, as_json: bool) -> String {
    if as_json { as_value(job, model).to_string() } else { table(job, model) }
}

fn table(job: &Job, model: &Model) -> String {
    let mut text = format!(
        "{}, {} x {} tokens\non one core {:.1} ms a step, {:.1} of it outside operators, {:.0} launches\n",
        job.model.summary(),
        job.shape.sequences,
        job.shape.seq,
        1e3 * model.measured.first().map_or(f64::NAN, |m| m.1),
        1e3 * model.work.serial,
        model.work.operators.iter().map(|op| op.launches).sum::<f64>()
    );
    text += &format!(
        "\nthis machine, {}\n{:>5} {:>12} {:>12} {:>8}\n",
        facts(&model.here),
        "cores",
        "measured ms",
        "modelled ms",
        "off by"
    );
    for (threads, seconds) in &model.measured {
        let modelled = today(model, &model.here, *threads).total();
        let off = 100.0 * (modelled / seconds - 1.0);
        let _ = writeln!(text, "{threads:>5} {:>12.1} {:>12.1} {off:>7.1}%", 1e3 * seconds, 1e3 * modelled);
    }
    for host in &model.hosts {
        text += &host_table(model, host);
    }
    text.truncate(text.trim_end().len());
    text
}

/// As the program works, and rather too much: pages lie where they are touched first, and a tile goes first to the group of
/// threads that has had this part of other operators, but matrix products read what others have written.
fn today(model: &Model, machine: &ManyCores, cores: usize) -> bessemer_plan::CoresTime {
    model.work.on(machine, cores, Placement::Spread)
}

fn facts(m: &ManyCores) -> String {
    format!(
        "{}: {:.1} GB/s a core, {:.1} a memory node, {:.1} between nodes; {:.1} us to hand a job to two threads",
        m.cores,
        m.core_bandwidth / 1e9,
        m.node_bandwidth / 1e9,
        m.link_bandwidth / 1e9,
        1e6 * m.handoff
    )
}

fn host_table(model: &Model, host: &ManyCores) -> String {
    let mut text = format!(
        "\nmodelled on {}\n{:>5} {:>9} {:>7} {:>10} {:>9} {:>9} {:>8} {:>12} {:>11}\n",
        facts(host),
        "cores",
        "ms",
        "faster",
        "arithmetic",
        "memory",
        "handoffs",
        "serial",
        "pages local",
        "on one node"
    );
    let one = today(model, host, 1).total();
    for cores in counts(host.cores.all()) {
        let t = today(model, host, cores);
        let other = |placement| 1e3 * model.work.on(host, cores, placement).total();
        let _ = writeln!(
            text,
            "{cores:>5} {:>9.1} {:>6.1}x {:>10.1} {:>9.1} {:>9.1} {:>8.1} {:>12.1} {:>11.1}",
            1e3 * t.total(),
            one / t.total(),
            1e3 * (t.operators - t.waiting_for_memory),
            1e3 * t.waiting_for_memory,
            1e3 * t.handoffs,
            1e3 * t.serial,
            other(Placement::Local),
            other(Placement::OneNode)
        );
    }
    text
}

fn as_value(job: &Job, model: &Model) -> Value {
    let machine = |m: &ManyCores| {
        json!({
            "cores": m.cores.to_string(),
            "core_bytes_per_s": m.core_bandwidth,
            "node_bytes_per_s": m.node_bandwidth,
            "link_bytes_per_s": m.link_bandwidth,
            "handoff_s": m.handoff,
        })
    };
    let modelled = |host: &ManyCores, cores: usize| {
        let t = today(model, host, cores);
        json!({
            "cores": cores,
            "seconds": t.total(),
            "waiting_for_memory": t.waiting_for_memory,
            "handoffs": t.handoffs,
            "serial": t.serial,
            "seconds_pages_local": model.work.on(host, cores, Placement::Local).total(),
            "seconds_pages_on_one_node": model.work.on(host, cores, Placement::OneNode).total(),
        })
    };
    let measured = model.measured.iter().map(|(threads, seconds)| {
        json!({ "cores": threads, "seconds": seconds, "modelled": today(model, &model.here, *threads).total() })
    });
    let hosts = model.hosts.iter().map(|host| {
        let rows: Vec<Value> =
            counts(host.cores.all()).into_iter().map(|cores| modelled(host, cores)).collect();
        json!({ "machine": machine(host), "steps": rows })
    });
    json!({
        "job": job.facts(),
        "this_machine": machine(&model.here),
        "serial": model.work.serial,
        "launches": model.work.operators.iter().map(|op| op.launches).sum::<f64>(),
        "measured": measured.collect::<Vec<_>>(),
        "hosts": hosts.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn counts_end_with_the_most() {
        assert_eq!(super::counts(1), [1]);
        assert_eq!(super::counts(2), [1, 2]);
        assert_eq!(super::counts(6), [1, 2, 4, 6]);
        assert_eq!(super::counts(128), [1, 2, 4, 8, 16, 32, 64, 128]);
    }
}

//! This machine as a machine of the planner, measured in about a second.
//!
//! A rank is a device. The ranks of the machine compute at the same time, so each has its part of the arithmetic, of the bandwidth and of
//! the memory; sums over ranks are timed between as many threads.

use super::auto::Host;
use crate::failure::Failure;
use crate::machine;
use bessemer_collectives::{CollectiveError, Communicator, Reduce, ThreadCommunicator, ThreadSettings};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, peak};
use bessemer_plan::{AllReduce, Efficiency, Machine, Measured};
use bessemer_tensor::op::{Linear, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream};
use bessemer_units::{DType, MatmulPrecision};
use std::time::Instant;

/// Elements of f32 whose sum is timed.
const ELEMENTS: [usize; 4] = [1 << 10, 1 << 14, 1 << 18, 1 << 20];
/// Rows, columns and terms of the product that is timed.
const PRODUCT: [usize; 3] = [512, 512, 512];
/// Times that a sum is timed.
const REPEATS: usize = 5;

/// The name of this machine for a host's ranks. It says what a plan depends on that can differ between two sessions.
pub(super) fn name(host: &Host) -> String {
    let plural = if host.threads == 1 { "" } else { "s" };
    format!("this machine ({}, {} thread{plural} a rank)", machine::processor(), host.threads)
}

/// Measures this machine.
///
/// # Errors
/// Ranks on several machines, whose network nothing here measures; a measurement that fails.
pub(super) fn measure(host: &Host, matmul: MatmulPrecision) -> Result<Machine, Failure> {
    if host.local < host.ranks {
        return Err(Failure::usage(format!(
            "parallel.layout = \"auto\" for {} ranks, of which {} are on this machine: wanted parallel.machine, because the network between \
             machines is not measured; `bessemer doctor` measures one of them",
            host.ranks, host.local
        )));
    }
    let busy = (host.threads * host.local).min(machine::threads(0));
    let peak = peak::measure(busy)?;
    let share = 1.0 / host.local as f64;
    Ok(Machine {
        name: name(host),
        matrix_flops: product_rate(busy, matmul)? * share / efficiency().product_share,
        memory_bandwidth: peak.copy_bytes_per_s * share,
        memory: host.memory.0 as f64,
        multiprocessors: host.threads,
        node: host.ranks,
        // Nothing leaves the machine.
        network_bandwidth: peak.copy_bytes_per_s,
        sources: vec![format!("measured with {busy} busy threads before the first step")],
        all_reduce: all_reduce(host.local)?,
        measured: None,
        cost: None,
    })
}

/// Floating-point operations a second of a matrix product with so many threads: the best of a few.
fn product_rate(threads: usize, matmul: MatmulPrecision) -> Result<f64, Failure> {
    let [m, n, k] = PRODUCT;
    let mut backend = CpuBackend::new(CpuConfig { threads, pin: false, matmul })?;
    let mut matrix = |name, rows: usize, cols: usize| {
        let spec = BufferSpec { class: "machine", name, dtype: DType::F32, len: rows * cols };
        backend.alloc(spec).map(|buffer| buffer.matrix(rows, cols))
    };
    let (x, weight, out) = (matrix("x", m, k)?, matrix("weight", n, k)?, matrix("out", m, n)?);
    let op = Op::from(Linear { x, weight, bias: None, activation: None, residual: None, out });
    let workspace = backend.workspace(&op)?;
    backend.reserve_workspace(workspace)?;
    let mut best = 0.0f64;
    for _ in 0..=REPEATS {
        let begun = Instant::now();
        backend.launch(Stream(0), &op)?;
        backend.sync()?;
        best = best.max(op.flops().0 / begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Constants of the cost model for the CPU engine: no host launches kernels, values are f32, attention computes in blocks. They are
/// rounded, and fitted to nothing.
pub(super) fn efficiency() -> Efficiency {
    Efficiency {
        kernel_seconds: 2e-6,
        attention_share: 0.25,
        stream_bytes: 48.0,
        inner_bytes: 16.0,
        forward_seconds: 2e-5,
        backward_seconds: 4e-5,
        all_reduce_factor: 1.0,
        optimizer_bytes: 32.0,
        logit_bytes: 16.0,
        step_seconds: 1e-4,
        ..Efficiency::default()
    }
}

/// Times sums over groups of threads.
fn all_reduce(ranks: usize) -> Result<AllReduce, Failure> {
    let mut groups: Vec<usize> =
        [2, ranks].into_iter().filter(|group| *group <= ranks && *group > 1).collect();
    groups.dedup();
    let bytes = ELEMENTS.map(|elements| 4.0 * elements as f64).to_vec();
    let mut microseconds = Vec::new();
    for group in groups {
        microseconds.push(Measured { ranks: group, times: times(group)? });
    }
    if microseconds.is_empty() {
        // One rank sums nothing.
        return Ok(AllReduce::Ring { bus_bandwidth: 1e9, base_microseconds: 1.0, hop_microseconds: 1.0 });
    }
    Ok(AllReduce::Measured { bytes, microseconds })
}

/// Microseconds of a sum of each size, the median of a few.
fn times(ranks: usize) -> Result<Vec<f64>, Failure> {
    let worlds = ThreadCommunicator::world("machine", ranks, &ThreadSettings::default());
    let rank = |world: ThreadCommunicator| -> Result<Vec<f64>, CollectiveError> {
        let mut world: Box<dyn Communicator> = Box::new(world);
        let mut values = vec![0.0f32; ELEMENTS[ELEMENTS.len() - 1]];
        let mut medians = Vec::new();
        for elements in ELEMENTS {
            let mut taken = Vec::new();
            for repeat in 0..=REPEATS {
                world.barrier("machine")?;
                let begun = Instant::now();
                world.all_reduce("machine", &mut values[..elements], Reduce::Sum)?;
                if repeat > 0 {
                    taken.push(1e6 * begun.elapsed().as_secs_f64());
                }
            }
            taken.sort_by(f64::total_cmp);
            medians.push(taken[REPEATS / 2].max(0.1));
        }
        Ok(medians)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            worlds.into_iter().map(|world| scope.spawn(move || rank(world).map_err(Failure::new))).collect();
        let mut all = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked"))));
        // The first rank's times, and any rank's error.
        let first = all.next().unwrap_or(Ok(Vec::new()));
        all.try_for_each(|rank| rank.map(drop))?;
        first
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_units::Bytes;

    #[test]
    fn ranks_share_the_machine_and_their_sums_take_time() {
        let host = |ranks, local| Host { ranks, local, threads: 1, memory: Bytes(1 << 30) };
        let machine = measure(&host(2, 2), MatmulPrecision::Highest).expect("a measurement");
        assert!(machine.matrix_flops > 1e8 && machine.memory_bandwidth > 1e7);
        assert_eq!((machine.memory, machine.node, machine.name), ((1u64 << 30) as f64, 2, name(&host(2, 2))));
        let sum = |bytes| machine.all_reduce.seconds(2, bytes);
        assert!(sum(4096.0) > 0.0 && sum(4096.0 * 1024.0) > 0.0);
        let refused = measure(&host(4, 2), MatmulPrecision::Highest)
            .expect_err("a network that is not measured")
            .message;
        assert!(refused.contains("parallel.machine"), "{refused}");
        assert_eq!(
            measure(&host(1, 1), MatmulPrecision::Highest).expect("a measurement").all_reduce.seconds(1, 1e9),
            0.0
        );
    }
}

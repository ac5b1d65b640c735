//! `bessemer doctor --machine FILE`: this machine as a machine of the planner, whose devices are ranks of one process.
//!
//! All ranks measure at the same time, with the threads that each has in a job of so many ranks: what they share (cores, caches,
//! memory) is shared in the figures. Operators are those of steps of small models; a product's rate is measured on a grid of shapes.

use crate::commands::bench::job::Job;
use crate::commands::bench::layouts::cases::LayoutCase;
use crate::commands::bench::layouts::costs::{Transport, launches, transport_of};
use crate::commands::bench::layouts::setup::{Bench, Setup, StepSize};
use crate::commands::bench::median;
use crate::console::Console;
use crate::failure::Failure;
use crate::machine;
use bessemer_arch::ModelConfig;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung, peak};
use bessemer_model::{ActivationConfig, Purpose, Shape};
use bessemer_optim::OptimConfig;
use bessemer_plan::{
    AllReduce, InProcess, Machine, Measured, MeasuredCollective, MeasuredOperator, Measurements, ProductGrid,
    ProductKind, kind_name,
};
use bessemer_tensor::op::{Linear, LinearBackwardInput, LinearBackwardWeight, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::{DType, MatmulPrecision, ParamStorage};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Sizes of products in the grid.
const ROWS: [usize; 3] = [32, 128, 512];
const WIDTHS: [usize; 3] = [64, 256, 1024];
/// Times that each product of the grid and each operator is measured.
const REPEATS: usize = 4;
/// Seconds that ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(120);
/// Width, heads, tokens of a sequence and vocabulary of the models whose operators are measured.
const MODELS: [[u64; 4]; 3] = [[64, 4, 64, 512], [256, 4, 128, 2048], [512, 8, 256, 4096]];
/// Bytes at which all-reduces stand in the file: those at which they are measured.
const ALL_REDUCE_BYTES: [u64; 2] = [4 << 10, 8 << 20];

/// Measures this machine as `ranks` devices and writes it.
pub(super) fn write(
    file: &Path,
    ranks: usize,
    matmul: MatmulPrecision,
    console: &mut Console,
) -> Result<Machine, Failure> {
    let threads = machine::threads(0);
    let each = (threads / ranks).max(1);
    let top = peak::measure(threads)?;
    console.say("operators");
    let operators = operators(ranks, threads, matmul, console)?;
    console.say("matrix products");
    let mut products = Vec::new();
    for dtype in [DType::F32, DType::Bf16] {
        for kind in [ProductKind::Forward, ProductKind::Input, ProductKind::Weight] {
            products.push(grid(kind, dtype, ranks, each, matmul)?);
        }
    }
    console.say("copies, collectives and messages");
    let mut groups = Vec::new();
    for size in (2..=ranks).filter(|size| ranks.is_multiple_of(*size)) {
        groups.push((size, transport(ranks, size, threads, matmul)?));
    }
    let measured = format!(
        "measured on {} by bessemer doctor --machine with {ranks} ranks of {each} threads at once, {} kernels, products by {}",
        machine::today(),
        Rung::detect(),
        Engine::fastest(Rung::detect(), matmul)
    );
    let machine = Machine {
        name: "this-machine".into(),
        matrix_flops: top.flops_per_s / ranks as f64,
        memory_bandwidth: top.copy_bytes_per_s / ranks as f64,
        memory: machine::available_memory().0 as f64 / ranks as f64,
        multiprocessors: each,
        node: ranks,
        network_bandwidth: top.copy_bytes_per_s,
        sources: vec![
            format!("processor: {}, {threads} cores that this process may use", machine::processor()),
            format!("matrix_flops: f32 multiply-adds of all cores over the ranks, {measured}"),
            format!("memory_bandwidth: a copy by all cores over the ranks, read and written bytes, {measured}"),
            format!("memory: available to a process over the ranks, {measured}"),
            format!("multiprocessors: threads of a rank; node: ranks; {measured}"),
            "network_bandwidth: that of memory, because there is no network: ranks of one process reach each other through \
             memory, and jobs of more ranks need a file of their own"
                .into(),
            format!("all_reduce, measured.*: medians of {REPEATS} or more, {measured}"),
        ],
        all_reduce: all_reduce(&groups, ranks),
        measured: Some(Measurements { products, operators, in_process: in_process(&groups) }),
        cost: None,
    };
    let text = machine.to_toml().map_err(Failure::new)?;
    bessemer_durable::write(file, text.as_bytes())
        .map_err(|cause| Failure::new(format!("--machine {}: {cause}", file.display())))?;
    Ok(machine)
}

/// A small model whose step is measured.
fn job(
    [width, heads, seq, vocab]: [u64; 4],
    architecture: &str,
    matmul: MatmulPrecision,
) -> Result<Job, Failure> {
    let config = ModelConfig {
        architecture: architecture.into(),
        layers: Some(2),
        width: Some(width),
        heads: Some(heads),
        context: Some(seq),
        vocab_size: vocab,
        ..ModelConfig::default()
    };
    Ok(Job {
        model: config.resolve(None)?,
        shape: Shape { sequences: 1, seq: seq as usize, purpose: Purpose::Train },
        optim: OptimConfig { clip: 0.0, ..OptimConfig::default() },
        activations: ActivationConfig::default(),
        offload_dir: String::new(),
        matmul,
    })
}

fn bench(job: &Job, ranks: usize, threads: usize) -> Bench<'_> {
    let (types, size) = (ParamStorage::default(), StepSize::MicroBatches(2));
    Bench { job, types, ranks, threads, size, timeout: PATIENCE, paced: None }
}

/// Lines of all operators but the products of linear maps, over the steps of small models in a few layouts.
fn operators(
    ranks: usize,
    threads: usize,
    matmul: MatmulPrecision,
    console: &mut Console,
) -> Result<Vec<MeasuredOperator>, Failure> {
    let mut found: BTreeMap<&'static str, Vec<Sample>> = BTreeMap::new();
    for architecture in ["gpt2", "llama"] {
        for size in MODELS {
            let job = job(size, architecture, matmul)?;
            let bench = bench(&job, ranks, threads);
            // Tensor- and context-parallel ranks have operators of their own.
            let layouts: &[&str] =
                if ranks > 1 && size == MODELS[1] { &["ddp", "tensor", "ring"] } else { &["ddp"] };
            for layout in layouts {
                let case = LayoutCase::named(layout, ranks as u64)?;
                // Ranks that a small model's heads or positions do not divide over.
                let Ok(setup) = Setup::new(&bench, &case) else { continue };
                for (op, seconds) in launches(&setup, REPEATS)?.into_values() {
                    let sample = Sample { flops: op.flops().0, bytes: op.bytes().0 as f64, seconds };
                    found.entry(op.name()).or_default().push(sample);
                }
            }
            console.say(&format!("{architecture} of width {}", size[0]));
        }
    }
    Ok(found.into_iter().map(|(name, samples)| line(name, &samples)).collect())
}

/// A measured operator.
#[derive(Debug, Clone, Copy)]
struct Sample {
    flops: f64,
    bytes: f64,
    seconds: f64,
}

/// The line in bytes or in operations, whichever is nearer to the samples: least squares of relative errors, nothing negative.
fn line(name: &str, samples: &[Sample]) -> MeasuredOperator {
    let fitted = |size: fn(&Sample) -> f64| {
        let sum = |term: &dyn Fn(&Sample) -> f64| samples.iter().map(term).sum::<f64>();
        // Of (fixed + slope size) / seconds - 1.
        let (aa, ab, bb) = (
            sum(&|s| (1.0 / s.seconds).powi(2)),
            sum(&|s| size(s) / s.seconds.powi(2)),
            sum(&|s| (size(s) / s.seconds).powi(2)),
        );
        let (a, b) = (sum(&|s| 1.0 / s.seconds), sum(&|s| size(s) / s.seconds));
        let determinant = aa * bb - ab * ab;
        let both = [(a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant];
        let of_size = if bb > 0.0 { [0.0, b / bb] } else { [a / aa, 0.0] };
        let usable = both.iter().all(|value| value.is_finite() && *value >= 0.0);
        let [fixed, slope] = match (usable, both[1] < 0.0) {
            (true, _) => both,
            (false, true) => [a / aa, 0.0],
            (false, false) => of_size,
        };
        let error = sum(&|s| ((fixed + slope * size(s)) / s.seconds - 1.0).powi(2));
        (error, fixed, slope)
    };
    let (in_bytes, in_flops) = (fitted(|s| s.bytes), fitted(|s| s.flops));
    let name = name.to_owned();
    match in_bytes.0 <= in_flops.0 {
        true => MeasuredOperator { name, fixed: in_bytes.1, per_flop: 0.0, per_byte: in_bytes.2 },
        false => MeasuredOperator { name, fixed: in_flops.1, per_flop: in_flops.2, per_byte: 0.0 },
    }
}

/// A product of the grid on a backend: (M, K) by (K, N), in the form of its kind.
fn product(
    backend: &mut dyn Backend,
    kind: ProductKind,
    dtype: DType,
    [m, n, k]: [usize; 3],
) -> Result<Op, TensorError> {
    let mut matrix = |dtype: DType, rows: usize, cols: usize| -> Result<View, TensorError> {
        let spec = BufferSpec { class: "bench", name: "operand", dtype, len: rows * cols };
        let view = backend.alloc(spec)?.matrix(rows, cols);
        let values: Vec<f32> = (0..rows * cols).map(|at| 0.01 * (at % 17) as f32 - 0.08).collect();
        backend.write_f32(view, &values)?;
        Ok(view)
    };
    Ok(match kind {
        ProductKind::Forward => Linear {
            x: matrix(dtype, m, k)?,
            weight: matrix(DType::F32, n, k)?,
            bias: None,
            activation: None,
            residual: None,
            out: matrix(dtype, m, n)?,
        }
        .into(),
        ProductKind::Input => LinearBackwardInput {
            dy: matrix(dtype, m, k)?,
            weight: matrix(DType::F32, k, n)?,
            activation: None,
            dx: matrix(dtype, m, n)?,
            accumulate: false,
        }
        .into(),
        ProductKind::Weight => LinearBackwardWeight {
            dy: matrix(dtype, k, m)?,
            x: matrix(dtype, k, n)?,
            dweight: matrix(DType::F32, m, n)?,
            dbias: None,
            accumulate: true,
        }
        .into(),
    })
}

/// Rates of products of a kind, each measured on all ranks at once; the median over ranks and repeats.
fn grid(
    kind: ProductKind,
    dtype: DType,
    ranks: usize,
    threads: usize,
    matmul: MatmulPrecision,
) -> Result<ProductGrid, Failure> {
    // The sums of a weight's gradient go over tokens, its rows and columns over widths.
    let [m_axis, n_axis, k_axis] = match kind {
        ProductKind::Weight => [WIDTHS, WIDTHS, ROWS],
        ProductKind::Forward | ProductKind::Input => [ROWS, WIDTHS, WIDTHS],
    };
    let mut shapes = Vec::new();
    for m in m_axis {
        for n in n_axis {
            shapes.extend(k_axis.map(|k| [m, n, k]));
        }
    }
    let barrier = Barrier::new(ranks);
    let rank = || -> Result<Vec<Vec<f64>>, Failure> {
        let mut all = Vec::new();
        for shape in &shapes {
            // All ranks come to the barriers, or none does: what one cannot make, none can.
            let mut backend = CpuBackend::new(CpuConfig { threads, matmul, ..CpuConfig::default() })?;
            let op = product(&mut backend, kind, dtype, *shape).map_err(Failure::new)?;
            backend.reserve_workspace(backend.workspace(&op).map_err(Failure::new)?).map_err(Failure::new)?;
            backend.launch(Stream(0), &op).map_err(Failure::new)?;
            barrier.wait();
            let mut times = Vec::new();
            for _ in 0..REPEATS {
                let begun = Instant::now();
                backend.launch(Stream(0), &op).map_err(Failure::new)?;
                times.push(begun.elapsed().as_secs_f64());
            }
            all.push(times);
        }
        Ok(all)
    };
    let joined: Vec<Result<Vec<Vec<f64>>, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|_| scope.spawn(rank)).collect();
        let panicked = |_| Err(Failure::new("a rank panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let times = joined.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    let rate = |(at, [m, n, k]): (usize, &[usize; 3])| {
        let mut of_all: Vec<f64> = times.iter().flat_map(|rank| rank[at].iter().copied()).collect();
        2.0 * (m * n * k) as f64 / median(&mut of_all).max(1e-9)
    };
    let flops_per_second = shapes.iter().enumerate().map(rate).collect();
    let axis = |sizes: [usize; 3]| sizes.map(|size| size as f64).to_vec();
    let (m, n, k) = (axis(m_axis), axis(n_axis), axis(k_axis));
    Ok(ProductGrid { kind, element_bytes: dtype.size(), m, n, k, flops_per_second })
}

/// Copies, collectives and messages in groups of `size` ranks, all groups at once.
fn transport(
    ranks: usize,
    size: usize,
    threads: usize,
    matmul: MatmulPrecision,
) -> Result<Transport, Failure> {
    let job = job(MODELS[0], "gpt2", matmul)?;
    let setup = Setup::new(&bench(&job, ranks, threads), &LayoutCase::named("ddp", ranks as u64)?)?;
    transport_of(&setup, size)
}

fn in_process(groups: &[(usize, Transport)]) -> Option<InProcess> {
    let (_, all) = groups.last()?;
    let collectives = groups.iter().flat_map(|(ranks, transport)| {
        transport.collectives.iter().map(|(kind, line)| MeasuredCollective {
            kind: kind_name(*kind).into(),
            ranks: *ranks,
            fixed: line.fixed,
            per_byte: line.per_byte,
        })
    });
    Some(InProcess {
        spare_cores: all.spare_cores,
        handoff: all.handoff,
        copy: all.copy.into(),
        send: all.send.into(),
        receive: all.receive.into(),
        collectives: collectives.collect(),
    })
}

/// All-reduces for the closed form, at the sizes at which they were measured. One rank sums nothing: a copy stands in its place.
fn all_reduce(groups: &[(usize, Transport)], ranks: usize) -> AllReduce {
    let times = |transport: &Transport| -> Vec<f64> {
        let line = transport.collectives.first().map_or(transport.copy, |(_, line)| *line);
        ALL_REDUCE_BYTES.iter().map(|bytes| (1e6 * line.of(*bytes)).max(1e-3)).collect()
    };
    let mut microseconds: Vec<Measured> =
        groups.iter().map(|(ranks, transport)| Measured { ranks: *ranks, times: times(transport) }).collect();
    if microseconds.is_empty() {
        microseconds.push(Measured { ranks, times: vec![1e-3; ALL_REDUCE_BYTES.len()] });
    }
    AllReduce::Measured { bytes: ALL_REDUCE_BYTES.map(|bytes| bytes as f64).to_vec(), microseconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines are found where there are such, in what they are lines of.
    #[test]
    fn lines_in_bytes_and_in_operations_are_told_apart() {
        let sample = |flops: f64, bytes: f64, seconds: f64| Sample { flops, bytes, seconds };
        let in_bytes = [(1e3, 1e6), (7e4, 1e5), (3e2, 1e7)].map(|(f, b)| sample(f, b, 1e-6 + 1e-10 * b));
        let found = line("copy", &in_bytes);
        assert!((found.fixed / 1e-6 - 1.0).abs() < 1e-6 && (found.per_byte / 1e-10 - 1.0).abs() < 1e-6);
        assert_eq!(found.per_flop, 0.0);
        let in_flops = [(1e6, 10.0), (5e8, 12.0), (2e7, 11.0)].map(|(f, b)| sample(f, b, 2e-6 + 1e-11 * f));
        let found = line("attention", &in_flops);
        assert!((found.per_flop / 1e-11 - 1.0).abs() < 1e-6 && found.per_byte == 0.0);
        // One sample, and samples that get faster: no negative time.
        for samples in [&in_bytes[..1], &[sample(1.0, 1.0, 5.0), sample(2.0, 2.0, 1.0)]] {
            let MeasuredOperator { fixed, per_flop, per_byte, .. } = line("x", samples);
            assert!([fixed, per_flop, per_byte].iter().all(|value| value.is_finite() && *value >= 0.0));
        }
    }
}

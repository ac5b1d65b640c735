//! Measures this machine as one of the planner, whose devices are ranks of one process.
//!
//! All ranks measure at the same time, with the threads that each has in a job of so many ranks: what they share (cores, caches,
//! memory) is shared in the figures. Operators are those of steps of small models; a product's rate is measured on a grid of shapes.

use crate::operators::operators;
use crate::products::grid;
use crate::{Bench, Job, LayoutCase, MeasureError, Setup, StepSize, Transport, machine, transport_of};
use bessemer_arch::ModelConfig;
use bessemer_kernels_cpu::{Engine, Rung, peak};
use bessemer_optim::OptimConfig;
use bessemer_plan::{
    AllReduce, InProcess, Machine, Measured, MeasuredCollective, Measurements, ProductKind, kind_name,
};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_units::{DType, MatmulPrecision, ParamStorage};
use std::time::Duration;

/// Seconds that ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes at which all-reduces stand in the file: those at which they are measured.
const ALL_REDUCE_BYTES: [u64; 2] = [4 << 10, 8 << 20];

/// Models, shapes and repeats of a measurement.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Architectures of the models whose operators are measured.
    pub architectures: Vec<&'static str>,
    /// Width, heads, tokens of a sequence and vocabulary of these models.
    pub(crate) models: &'static [[u64; 4]],
    /// Their layouts. The first one is that of ranks alone.
    pub(crate) layouts: &'static [&'static str],
    /// Types of activations of products.
    pub types: Vec<DType>,
    /// Tokens of a product.
    pub(crate) rows: &'static [usize],
    /// Rows and columns of a weight.
    pub(crate) widths: &'static [usize],
    /// Times that each operator and each product is measured at least.
    pub(crate) repeats: usize,
    /// Seconds that each product is measured at least.
    pub(crate) seconds_of_product: f64,
    /// Times that a copy, collective or message is measured.
    transport: usize,
}

impl Effort {
    /// For a file that is kept.
    pub fn thorough() -> Effort {
        Effort {
            architectures: vec!["gpt2", "llama"],
            models: &[[64, 4, 64, 512], [256, 4, 128, 2048], [512, 8, 256, 4096]],
            layouts: &["ddp", "tensor", "ring"],
            types: vec![DType::F32, DType::Bf16],
            rows: &[32, 128, 512],
            widths: &[64, 256, 1024],
            repeats: 4,
            seconds_of_product: 0.01,
            transport: 15,
        }
    }

    /// For a run that plans itself and has not begun.
    pub fn quick(architecture: &'static str, activations: DType) -> Effort {
        Effort {
            architectures: vec![architecture],
            models: &[[64, 4, 32, 512], [128, 4, 32, 1024]],
            layouts: &["ddp", "tensor"],
            types: vec![activations],
            rows: &[32, 256],
            widths: &[64, 384],
            repeats: 2,
            seconds_of_product: 0.0,
            transport: 3,
        }
    }
}

/// Measures this machine as `ranks` devices with so many threads each; `report` gets the name of each part before it.
///
/// # Errors
/// A measurement that fails.
pub fn measure_machine(
    ranks: usize,
    each: usize,
    matmul: MatmulPrecision,
    effort: &Effort,
    report: &mut dyn FnMut(&str),
) -> Result<Machine, MeasureError> {
    let threads = ranks * each;
    let top = peak::measure(threads.min(machine::threads(0)))?;
    report("operators");
    let operators = operators(ranks, threads, matmul, effort, report)?;
    report("matrix products");
    let mut products = Vec::new();
    for dtype in &effort.types {
        for kind in [ProductKind::Forward, ProductKind::Input, ProductKind::Weight] {
            products.push(grid(kind, *dtype, ranks, each, matmul, effort)?);
        }
    }
    report("copies, collectives and messages");
    let mut groups = Vec::new();
    for size in (2..=ranks).filter(|size| ranks.is_multiple_of(*size)) {
        groups.push((size, transport(ranks, size, threads, matmul, effort.transport)?));
    }
    let measured = format!(
        "measured on {} by bessemer with {ranks} ranks of {each} threads at once, {} kernels, products by {}",
        machine::today(),
        Rung::detect(),
        Engine::fastest(Rung::detect(), matmul)
    );
    Ok(Machine {
        name: "this-machine".into(),
        matrix_flops: top.flops_per_s / ranks as f64,
        memory_bandwidth: top.copy_bytes_per_s / ranks as f64,
        memory: machine::available_memory().0 as f64 / ranks as f64,
        multiprocessors: each,
        node: ranks,
        network_bandwidth: top.copy_bytes_per_s,
        sources: vec![
            format!("processor: {}, {} cores that this process may use", machine::processor(), machine::threads(0)),
            format!("matrix_flops: f32 multiply-adds of all cores over the ranks, {measured}"),
            format!("memory_bandwidth: a copy by all cores over the ranks, read and written bytes, {measured}"),
            format!("memory: available to a process over the ranks, {measured}"),
            format!("multiprocessors: threads of a rank; node: ranks; {measured}"),
            "network_bandwidth: that of memory, because there is no network: ranks of one process reach each other through \
             memory, and jobs of more ranks need a file of their own"
                .into(),
            format!("all_reduce, measured.*: medians of {} or more, {measured}", effort.repeats),
        ],
        all_reduce: all_reduce(&groups, ranks),
        measured: Some(Measurements { products, operators, in_process: in_process(&groups) }),
        cost: None,
        offload_bandwidth: None,
        switches: Default::default(),
    })
}

/// A small model of two layers whose step is measured.
///
/// # Errors
/// Sizes that no model has.
pub fn small_job(
    [width, heads, seq, vocab]: [u64; 4],
    architecture: &str,
    matmul: MatmulPrecision,
) -> Result<Job, MeasureError> {
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

pub(crate) fn bench(job: &Job, ranks: usize, threads: usize) -> Bench<'_> {
    let (types, size) = (ParamStorage::default(), StepSize::MicroBatches(2));
    Bench { job, types, ranks, threads, size, timeout: PATIENCE, paced: None, router_skew: 0.0 }
}

/// Copies, collectives and messages in groups of `size` ranks, all groups at once.
fn transport(
    ranks: usize,
    size: usize,
    threads: usize,
    matmul: MatmulPrecision,
    repeats: usize,
) -> Result<Transport, MeasureError> {
    let job = small_job([64, 4, 64, 512], "gpt2", matmul)?;
    let setup = Setup::new(&bench(&job, ranks, threads), &LayoutCase::named("ddp", ranks as u64)?)?;
    transport_of(&setup, size, repeats)
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

//! Every layout of a job on so many devices, the fastest first.
//!
//! Degrees are all divisors: tensor-parallel ranks divide heads, key heads and the feed-forward block, stages times chunks the layers,
//! data-parallel ranks times micro-batch the batch. A layout that would hold more than a device has is left out. What it holds is counted
//! from below: parameters, gradients and optimizer states by ZeRO's stage, the inputs of layers that wait for their backward pass, and where
//! nothing is recomputed the inputs of their products; on the first of p stages min(m, p) micro-batches wait (1F1B). A plan by a dry run
//! decides about the rest.

use crate::{
    Calibration, DataParallel, Job, Layout, Machine, ParameterBytes, PlanError, Recompute, StepTime,
    Transformer,
};
use serde::Serialize;

/// Bytes that each element takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ElementBytes {
    /// A parameter, its gradient and its state, a master copy among the last.
    pub parameters: ParameterBytes,
    /// An activation.
    pub activation: f64,
}

/// What layouts are wanted for.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The model.
    pub model: Transformer,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of a step.
    pub global_batch: usize,
    /// Devices.
    pub devices: usize,
    /// Their kind.
    pub machine: &'a Machine,
    /// The software that runs on them.
    pub calibration: &'a Calibration,
    /// What elements take.
    pub bytes: ElementBytes,
}

/// A layout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Candidate {
    /// The job in this layout.
    pub job: Job,
    /// Time of a step.
    pub time: StepTime,
    /// Bytes that the device which holds most will hold, at least.
    pub least_memory: f64,
}

/// Layouts of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidates {
    /// Those that may fit, the fastest first.
    pub layouts: Vec<Candidate>,
    /// Layouts whose time was computed.
    pub evaluated: usize,
    /// Layouts that cannot fit.
    pub too_large: usize,
    /// The layout that holds least.
    pub smallest: Option<Candidate>,
}

/// Sequences of the largest micro-batch.
const MOST_MICRO_BATCH: usize = 64;
/// Most chunks of a pipeline stage.
const MOST_CHUNKS: usize = 8;

/// Returns every layout. None where nothing divides.
///
/// # Errors
/// A number that is 0.
pub fn candidates(question: &Question<'_>) -> Result<Candidates, PlanError> {
    let Question { model, seq, global_batch, devices, .. } = *question;
    for (what, number) in
        [("seq", seq), ("global batch", global_batch), ("devices", devices), ("layers", model.layers)]
    {
        if number == 0 {
            return Err(PlanError::Rows { problem: format!("{what} is 0; wanted at least 1") });
        }
    }
    let mut found = Candidates { layouts: Vec::new(), evaluated: 0, too_large: 0, smallest: None };
    let splits = |rank: &usize| {
        [model.heads, model.kv_heads, model.ffn_width].iter().all(|number| number.is_multiple_of(*rank))
    };
    for tensor in divisors(devices).filter(splits) {
        for pipeline in divisors(devices / tensor).filter(|stages| model.layers.is_multiple_of(*stages)) {
            let data = devices / tensor / pipeline;
            if !global_batch.is_multiple_of(data) {
                continue;
            }
            let own = global_batch / data;
            for micro_batch in divisors(own).take_while(|&sequences| sequences <= MOST_MICRO_BATCH) {
                let layout = Layout {
                    tensor,
                    data,
                    pipeline,
                    chunks: 1,
                    micro_batch,
                    zero: DataParallel::Ddp,
                    recompute: Recompute::None,
                    sequence: false,
                };
                for layout in forms(layout, model.layers, own / micro_batch, seq) {
                    found.add(question, layout);
                }
            }
        }
    }
    found.layouts.sort_by(|a, b| {
        a.time.total.total_cmp(&b.time.total).then(a.least_memory.total_cmp(&b.least_memory))
    });
    Ok(found)
}

/// A layout with all that does not change its degrees.
fn forms(layout: Layout, layers: usize, micro_batches: usize, seq: usize) -> impl Iterator<Item = Layout> {
    let interleaves = layout.pipeline > 1 && micro_batches.is_multiple_of(layout.pipeline);
    let most = if interleaves { MOST_CHUNKS } else { 1 };
    let chunks = (1..=most).filter(move |chunks| layers.is_multiple_of(layout.pipeline * chunks));
    let zeros: &[DataParallel] = if layout.data > 1 {
        &[DataParallel::Ddp, DataParallel::Zero1, DataParallel::Zero2, DataParallel::Zero3]
    } else {
        &[DataParallel::Ddp]
    };
    let shares = layout.tensor > 1 && seq.is_multiple_of(layout.tensor);
    let sequences: &[bool] = if shares { &[true, false] } else { &[false] };
    chunks.flat_map(move |chunks| {
        zeros.iter().flat_map(move |&zero| {
            sequences.iter().flat_map(move |&sequence| {
                [Recompute::None, Recompute::Attention, Recompute::Full].map(|recompute| Layout {
                    chunks,
                    zero,
                    sequence,
                    recompute,
                    ..layout
                })
            })
        })
    })
}

impl Candidates {
    fn add(&mut self, question: &Question<'_>, layout: Layout) {
        let job = Job {
            model: question.model,
            seq: question.seq,
            global_batch: question.global_batch,
            fused_attention: true,
            layout,
        };
        self.evaluated += 1;
        let time = question.calibration.predict(&job, question.machine);
        let candidate = Candidate { job, time, least_memory: least_memory(&job, &question.bytes) };
        if self.smallest.is_none_or(|smallest| candidate.least_memory < smallest.least_memory) {
            self.smallest = Some(candidate);
        }
        match candidate.least_memory <= question.machine.memory {
            true => self.layouts.push(candidate),
            false => self.too_large += 1,
        }
    }
}

/// Bytes that the device which holds most will hold at least.
pub fn least_memory(job: &Job, bytes: &ElementBytes) -> f64 {
    let (model, layout) = (&job.model, &job.layout);
    let (ranks, stages) = (layout.tensor as f64, layout.pipeline as f64);
    let layers = model.layers as f64 / stages;
    let parameters = (model.layer_parameters() * layers + model.table_parameters()) / ranks;
    let states = layout.zero.bytes(bytes.parameters, parameters, layout.data);

    let tokens = (layout.micro_batch * job.seq) as f64;
    let width = model.width as f64;
    let stream = if layout.sequence { width / ranks } else { width };
    let opening = model.ffn_width as f64 * if model.gated { 2.0 } else { 1.0 };
    let inside = match layout.recompute {
        Recompute::Full => 0.0,
        Recompute::None | Recompute::Attention => (model.qkv_width() as f64 + opening) / ranks,
    };
    let waiting = job.micro_batches().min(layout.pipeline) as f64;
    states + waiting * layers * tokens * (stream + inside) * bytes.activation
}

/// Divisors, ascending.
fn divisors(number: usize) -> impl Iterator<Item = usize> {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}

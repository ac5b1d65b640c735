//! Every layout of a job on so many devices, the fastest first.
//!
//! Degrees are all divisors: tensor-parallel ranks of a line, or along the line of a grid, divide heads, key heads and the feed-forward block, ranks that
//! share sequences half of their length,
//! data-parallel ranks times micro-batch the batch; stages may differ by a layer, chunks may not. Layers of a stage are computed again all, none or any number of them.
//! ZeRO's groups are all data-parallel ranks, or those of a node. A layout that would hold more than a device has is left out. What it holds is counted
//! from below ([`least_memory`]). A plan by a dry run decides about the rest.

use crate::grid;
use crate::least::{ElementBytes, StageSplit, least_memory};
use crate::{
    Calibration, Job, Layout, Machine, PipelineSchedule, PlanError, Recompute, StepTime, Transformer,
    ZeroStage,
};
use bessemer_mesh::{ContextMethod, TensorGrid, exchange_problem};
use serde::Serialize;

/// Purpose of the layouts.
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
    /// Bytes of elements.
    pub bytes: ElementBytes,
    /// Grids that tensor-parallel ranks may be beside lines; those that divide neither devices nor model are left out.
    pub grids: &'a [TensorGrid],
    /// By number of stages: which have how many layers. Where there is none, all have the mean.
    pub splits: &'a [StageSplit],
    /// Bytes that a rank which has only a part of the model holds besides: a whole model for samples of text.
    pub samples: f64,
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
    /// The fastest that may fit, the fastest first: at most [`MOST_KEPT`].
    pub layouts: Vec<Candidate>,
    /// Layouts whose time was computed.
    pub evaluated: usize,
    /// Layouts that cannot fit.
    pub too_large: usize,
    /// The layout that holds least.
    pub smallest: Option<Candidate>,
}

/// Layouts that are kept.
pub const MOST_KEPT: usize = 1 << 16;
/// Sequences of the largest micro-batch.
const MOST_MICRO_BATCH: usize = 64;
/// Most chunks of a pipeline stage.
const MOST_CHUNKS: usize = 8;

/// Returns every layout that is wanted. None where nothing divides.
///
/// # Errors
/// A number that is 0.
pub fn candidates(
    question: &Question<'_>,
    wanted: impl Fn(&Layout) -> bool,
) -> Result<Candidates, PlanError> {
    let Question { model, seq, global_batch, devices, .. } = *question;
    for (what, number) in
        [("seq", seq), ("global batch", global_batch), ("devices", devices), ("layers", model.layers)]
    {
        if number == 0 {
            return Err(PlanError::Rows { problem: format!("{what} is 0; wanted at least 1") });
        }
    }
    let mut found = Candidates { layouts: Vec::new(), evaluated: 0, too_large: 0, smallest: None };
    for layout in degrees(question) {
        for layout in schedules(layout, question) {
            for layout in copies(layout, question) {
                for layout in recomputations(layout, model.layers) {
                    for layout in offloads(layout, question).filter(&wanted) {
                        found.add(question, layout);
                    }
                }
            }
        }
    }
    found.keep();
    Ok(found)
}

/// All degrees and micro-batches.
fn degrees<'a>(question: &'a Question<'_>) -> impl Iterator<Item = Layout> + 'a {
    let Question { model, seq, global_batch, devices, .. } = *question;
    let splits = move |rank: &usize| {
        [model.heads, model.kv_heads, model.ffn_width].iter().all(|number| number.is_multiple_of(*rank))
    };
    let tensors = divisors(devices).filter(splits);
    let contexts = tensors.flat_map(move |tensor| {
        divisors(devices / tensor).filter(move |ranks| seq.is_multiple_of(2 * ranks) || *ranks == 1).flat_map(
            move |context| {
                methods(model, tensor, context).map(move |context_method| Layout {
                    tensor,
                    context,
                    context_method,
                    ..Layout::default()
                })
            },
        )
    });
    let grids = question.grids.iter().filter(move |grid| grid::divides(**grid, &model));
    let grids = grids.filter(move |grid| devices.is_multiple_of(grid.ranks())).map(|grid| Layout {
        tensor: grid.ranks(),
        grid: Some(*grid),
        ..Layout::default()
    });
    let stages = contexts.chain(grids).flat_map(move |layout| {
        let rest = devices / layout.tensor / layout.context;
        let fits =
            move |stages: &usize| *stages <= model.layers && global_batch.is_multiple_of(rest / stages);
        divisors(rest).filter(fits).map(move |pipeline| Layout { pipeline, data: rest / pipeline, ..layout })
    });
    stages.flat_map(move |layout| {
        let alone = layout.context > 1 && layout.context_method.one_sequence();
        let most = if alone { 1 } else { MOST_MICRO_BATCH };
        let parts = layout.grid.map_or(1, TensorGrid::sequence_parts);
        let own = divisors(global_batch / layout.data).take_while(move |&sequences| sequences <= most);
        own.filter(move |sequences| sequences.is_multiple_of(parts))
            .map(move |micro_batch| Layout { micro_batch, ..layout })
    })
}

/// What so many ranks may exchange that share sequences.
fn methods(model: Transformer, tensor: usize, context: usize) -> impl Iterator<Item = ContextMethod> {
    let heads = exchange_problem(context, model.heads / tensor, model.kv_heads / tensor).is_none();
    let all = [ContextMethod::AllGather, ContextMethod::Ring, ContextMethod::Ulysses];
    let some: &[ContextMethod] = match (context, heads) {
        (1, _) => &[],
        (_, true) => &all,
        (_, false) => &all[..2],
    };
    let one = (context == 1).then(ContextMethod::default);
    one.into_iter().chain(some.to_vec())
}

/// A layout with its pipeline's schedules.
fn schedules(layout: Layout, question: &Question<'_>) -> impl Iterator<Item = Layout> {
    let layers = question.model.layers;
    let (stages, pipes) = (layout.pipeline, layout.pipeline > 1);
    let micro_batches = question.global_batch / layout.data / layout.micro_batch;
    let interleaves = pipes && micro_batches.is_multiple_of(stages);
    let most = if interleaves { MOST_CHUNKS } else { 1 };
    let chunks = (1..=most).filter(move |chunks| *chunks == 1 || layers.is_multiple_of(stages * chunks));
    let one = chunks.map(move |chunks| Layout { chunks, ..layout });
    // Gradients of a grid are summed within their pass, which is not split.
    let splits = pipes && layout.grid.is_none();
    let zero_bubble = splits.then_some(Layout { schedule: PipelineSchedule::ZbH1, ..layout });
    let both_ways = splits && layers.is_multiple_of(2 * stages) && micro_batches >= 2 * stages;
    let zero_bubble_v = both_ways.then_some(Layout { schedule: PipelineSchedule::ZbV, chunks: 2, ..layout });
    one.chain(zero_bubble).chain(zero_bubble_v)
}

/// A layout with what data-parallel ranks keep a part of, and whether tensor-parallel ranks share positions.
fn copies(layout: Layout, question: &Question<'_>) -> impl Iterator<Item = Layout> {
    let Question { seq, machine, .. } = *question;
    let zeros: &[ZeroStage] = match (layout.data, layout.schedule) {
        (1, _) => &[ZeroStage::Ddp],
        // Gradients whose weights' part comes later are kept whole in between.
        (_, PipelineSchedule::ZbH1 | PipelineSchedule::ZbV) => &[ZeroStage::Ddp, ZeroStage::Zero1],
        _ => &ZeroStage::ALL,
    };
    // A group of the data-parallel ranks of one node.
    let within = machine.node / (layout.tensor * layout.context).min(machine.node);
    let hybrid = within > 1 && within < layout.data && layout.data.is_multiple_of(within);
    let groups = move |zero: ZeroStage| {
        let some = (hybrid && zero != ZeroStage::Ddp).then_some(within);
        std::iter::once(0).chain(some)
    };
    let shares =
        layout.tensor > 1 && layout.grid.is_none() && (seq / layout.context).is_multiple_of(layout.tensor);
    let sequences: &[bool] = if shares { &[true, false] } else { &[false] };
    zeros.iter().flat_map(move |&zero| {
        groups(zero).flat_map(move |shard| {
            sequences.iter().map(move |&sequence| Layout { zero, shard, sequence, ..layout })
        })
    })
}

/// A layout with what the backward pass computes again, for each number of layers of a stage.
fn recomputations(layout: Layout, layers: usize) -> impl Iterator<Item = Layout> {
    let most = if layout.chunks == 1 { layout.stage_layers(layers) } else { 1 };
    let some = move |recompute| {
        // All are 0.
        (0..most).map(move |recomputed| Layout { recompute, recomputed, ..layout })
    };
    std::iter::once(layout).chain(Recompute::ALL.into_iter().skip(1).flat_map(some))
}

/// A layout with what waits in a second memory, where the machine says how fast that is: nothing, or what some layers store that compute
/// no product again, or the inputs of all layers that are computed again.
fn offloads(layout: Layout, question: &Question<'_>) -> impl Iterator<Item = Layout> {
    let layers = layout.stage_layers(question.model.layers);
    let known = question.machine.offload_bandwidth.is_some() && layout.chunks == 1 && layout.recomputed == 0;
    let some = match (known, layout.recompute) {
        (true, Recompute::None | Recompute::Selective) => 1..layers + 1,
        (true, Recompute::Full) => layers..layers + 1,
        _ => 1..1,
    };
    std::iter::once(layout).chain(some.map(move |offload| Layout { offload, ..layout }))
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
        let split = question.splits.get(layout.pipeline);
        let mut least_memory = least_memory(&job, &question.bytes, split);
        if !layout.keeps_model() {
            least_memory += question.samples;
        }
        let fits = least_memory <= question.machine.memory;
        self.too_large += usize::from(!fits);
        let smaller = self.smallest.is_none_or(|smallest| least_memory < smallest.least_memory);
        if !fits && !smaller {
            return;
        }
        let time = question.calibration.predict(&job, question.machine);
        let candidate = Candidate { job, time, least_memory };
        if smaller {
            self.smallest = Some(candidate);
        }
        if fits {
            self.layouts.push(candidate);
            if self.layouts.len() == 4 * MOST_KEPT {
                self.keep();
            }
        }
    }

    /// Keeps the fastest, the fastest first.
    fn keep(&mut self) {
        self.layouts.sort_by(|a, b| {
            a.time.total.total_cmp(&b.time.total).then(a.least_memory.total_cmp(&b.least_memory))
        });
        self.layouts.truncate(MOST_KEPT);
    }
}

/// Divisors, ascending.
pub(crate) fn divisors(number: usize) -> impl Iterator<Item = usize> + Clone {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}

//! Memory planning before work: a dry run on the null backend counts the memory that a rank of a job will hold.

use crate::chunk::{ChunkPlace, places, slot_pools};
use crate::error::ParallelError;
use crate::fill::FillSupplier;
use crate::int8::IN_FLIGHT;
use crate::plan::Plan;
use crate::prepare::{Needs, prepare};
use crate::state::StateTensor;
use crate::tensor::Staged;
use crate::worker::{Job, Worker};
use bessemer_arch::{Model, TensorShard};
use bessemer_collectives::{NullCommunicator, ThreadSettings};
use bessemer_mesh::Axis;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_program::UnitProgram;
use bessemer_runtime::{
    ActivationConfig, Cache, CacheShape, Decoder, ExpertRows, ModelError, Purpose, Shape,
    Stream as ResidualStream, Teacher, TeacherOperands,
};
use bessemer_schedule::Place;
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::{Bytes, Compression, ParamStorage, RecomputePolicy, Storage};

/// Class of keys and values that decoding keeps.
const CACHE: &str = "cache";
/// Class of the slots through which ranks of one process exchange values.
const SLOTS: &str = "slots of collectives";

/// Memory that a rank will hold, by class: parameters, gradients, optimizer state, activations, in-flight buffers of
/// collectives, the slots through which ranks of one process exchange values, copies for checkpoints, the cache of keys and values, and the workspace of operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Memory per class. Without a device to query, the workspace is 0.
    pub buffers: MemoryUse,
    /// A copy of the state that the rank saves ([`Worker::own_slices`]), on the host. Not among the buffers.
    pub copy: Bytes,
}

/// More memory is needed than there is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "training needs {needed} of memory, {available} are available ({largest}); use a smaller train.micro_batch, \
     train.seq_len or model, or train.recompute = \"full\"{remark}"
)]
pub struct MemoryShortage {
    /// Bytes that the plan holds.
    pub needed: Bytes,
    /// Bytes that there are.
    pub available: Bytes,
    /// The plan by class, the largest first.
    pub largest: String,
    /// Other uses of memory, after "; ". Empty if there are none.
    pub remark: String,
}

impl MemoryPlan {
    /// Plans the rank of a job that holds most; its peers do not exist. Of pipeline ranks with equal stages one is planned, the one with most
    /// micro-batches in flight. Ranks of the shard axis differ by a few elements, so there the first is planned;
    /// optimizers that need whole matrices, and moments in 8 bits, give ranks unequal parts, and there all are planned. `fill` supplies
    /// work in bubbles, if there is any. `device` reports the workspace of operators. Nothing of the rank's size is allocated.
    ///
    /// # Errors
    /// A job that is not possible.
    pub fn of_rank(
        job: &Job<'_>,
        fill: Option<&dyn FillSupplier>,
        mut device: Option<&mut dyn Backend>,
    ) -> Result<MemoryPlan, ParallelError> {
        let shards = match job.plan.groups.is_single() {
            _ if MemoryPlan::alike(job) => 1,
            true => job.plan.shard(),
            false => job.plan.data_ranks(),
        };
        let at = |pipeline: usize, data: usize| job.plan.rank(job.plan.data_coord(data, pipeline));
        let pipeline_ranks = if fill.is_some() { (0..job.plan.pipeline()).collect() } else { fullest(job)? };
        let ranks = pipeline_ranks.into_iter().flat_map(|p| (0..shards).map(move |s| at(p, s)));
        let (mut most, mut copy): (Option<MemoryPlan>, _) = (None, Bytes(0));
        let mut tensors = None;
        for rank in ranks {
            let device = device.as_mut().map(|device| &mut **device as _);
            let other = MemoryPlan::of(job, fill, rank, device, &mut tensors)?;
            copy = copy.max(other.copy);
            if most.as_ref().is_none_or(|most| other.buffers.total() > most.buffers.total()) {
                most = Some(other);
            }
        }
        let most = most.map(|most| MemoryPlan { copy, ..most });
        most.ok_or_else(|| ParallelError::Layout("a plan has at least one rank".into()))
    }

    /// Whether all ranks of the shard axis have equal parts but for a few elements: no optimizer needs whole matrices or blocks.
    pub fn alike(job: &Job<'_>) -> bool {
        let elementwise = matches!(
            job.optim.optimizer,
            OptimizerChoice::AdamW | OptimizerChoice::Sgd | OptimizerChoice::Lion
        );
        elementwise && job.optim.indivisible() == 1
    }

    /// Plans a job of one rank that keeps parameters and gradients in f32.
    ///
    /// # Errors
    /// A job that cannot be.
    pub fn alone(
        model: &Model,
        shape: Shape,
        activations: ActivationConfig,
        optim: &OptimConfig,
        device: Option<&mut dyn Backend>,
    ) -> Result<MemoryPlan, ParallelError> {
        let (plan, types) = (&Plan::single(), ParamStorage::default());
        let program = &plan.program(1, 1, None)?;
        MemoryPlan::of_rank(
            &Job { model, shape, activations, types, optim, losses: &[], plan, program },
            None,
            device,
        )
    }

    /// Plans a decoder that scores batches of `shape`, with a cache if it generates text.
    ///
    /// # Errors
    /// Sizes that cannot be.
    pub fn of_decoder(
        model: &Model,
        shape: Shape,
        activations: ActivationConfig,
        cached: Option<CacheShape>,
        device: Option<&mut dyn Backend>,
    ) -> Result<MemoryPlan, ParallelError> {
        let shape = Shape { purpose: Purpose::Score, ..shape };
        let make =
            |backend: &mut dyn Backend| Decoder::with_activations(backend, model, shape, activations.clone());
        MemoryPlan::of_cached(&make, cached, device)
    }

    /// Plans the decoder, as [`MemoryPlan::of_decoder`], of the rank that has all tokens and some experts of each layer.
    ///
    /// # Errors
    /// Same errors as [`MemoryPlan::of_decoder`].
    pub fn of_part(
        part: &TensorShard,
        shape: Shape,
        cached: Option<CacheShape>,
        device: Option<&mut dyn Backend>,
    ) -> Result<MemoryPlan, ParallelError> {
        let make = |backend: &mut dyn Backend| {
            Decoder::of_tensor_shard(backend, part, ResidualStream::WHOLE, shape, Default::default(), None)
        };
        MemoryPlan::of_cached(&make, cached, device)
    }

    /// Plans a rank that has some experts of each layer and computes rows of at most `tokens` tokens of another rank in a pass.
    ///
    /// # Errors
    /// Same errors as [`ExpertRows::new`].
    pub fn of_expert_rows(
        part: &TensorShard,
        tokens: usize,
        device: Option<&mut dyn Backend>,
    ) -> Result<MemoryPlan, ParallelError> {
        let mut planning = Planning { null: NullBackend::new(), device };
        let rows = ExpertRows::new(&mut planning, part, tokens)?;
        let mut planned = MemoryPlan { buffers: planning.memory(), copy: Bytes(0) };
        planned.add_exchanges(rows.programs());
        Ok(planned)
    }

    /// Counts the memory of an exchange of rows of these lists besides the buffers.
    fn add_exchanges<'p>(&mut self, programs: impl Iterator<Item = &'p UnitProgram>) {
        self.add(IN_FLIGHT, Bytes(2 * Staged::of(programs).bytes as u64));
        self.add(SLOTS, Bytes(ThreadSettings::default().piece_bytes as u64));
    }

    fn of_cached(
        make: &dyn Fn(&mut dyn Backend) -> Result<Decoder, ModelError>,
        cached: Option<CacheShape>,
        device: Option<&mut dyn Backend>,
    ) -> Result<MemoryPlan, ParallelError> {
        let mut planning = Planning { null: NullBackend::new(), device };
        let decoder = make(&mut planning)?;
        if let Some(cache) = cached {
            Cache::new(&mut planning, &decoder, cache)?;
        }
        let mut planned = MemoryPlan { buffers: planning.memory(), copy: Bytes(0) };
        if decoder.expert_rank().is_some() {
            planned.add_exchanges(decoder.programs().map(|(_, program, _)| program));
        }
        Ok(planned)
    }

    /// Plans a teacher for micro-batches of `shape`, and the operands of its student's loss.
    ///
    /// # Errors
    /// Sizes that cannot be.
    pub fn of_teacher(
        model: &Model,
        shape: Shape,
        temperature: f32,
        device: Option<&mut dyn Backend>,
    ) -> Result<(MemoryPlan, TeacherOperands), ParallelError> {
        let mut planning = Planning { null: NullBackend::new(), device };
        let teacher = Teacher::new(&mut planning, model, shape, temperature)?;
        Ok((MemoryPlan { buffers: planning.memory(), copy: Bytes(0) }, teacher.operands()))
    }

    fn of(
        job: &Job<'_>,
        fill: Option<&dyn FillSupplier>,
        rank: usize,
        device: Option<&mut dyn Backend>,
        tensors: &mut Option<Vec<StateTensor>>,
    ) -> Result<MemoryPlan, ParallelError> {
        let mut planning = Planning { null: NullBackend::new(), device };
        let world = Box::new(NullCommunicator::new("world", rank, job.plan.ranks()));
        let worker = Worker::dry(&mut planning, job, fill, world)?;
        // The same list on every rank.
        let tensors = match tensors {
            Some(tensors) => tensors,
            None => tensors.insert(worker.tensors(job.optim)?),
        };
        let copied = worker.own_elements(tensors)?;
        let mut planned = MemoryPlan { buffers: planning.memory(), copy: Bytes(4 * copied as u64) };
        planned.add(IN_FLIGHT, Bytes(worker.staging_bytes()));
        planned.add(SLOTS, Bytes(slot_bytes(job, rank)));
        Ok(planned)
    }

    /// Counts the samples of text that a rank writes: the cache of `decoder` ([`MemoryPlan::of_decoder`]), its workspace, and,
    /// where the rank has only a part of the model (`whole`), the model itself.
    pub fn add_samples(&mut self, decoder: &MemoryPlan, whole: bool) {
        let cache = decoder.class(CACHE);
        self.add(CACHE, cache);
        if whole {
            let classes = decoder.buffers.classes.iter().map(|c| c.1).sum::<Bytes>();
            self.add("model for samples", Bytes(classes.0 - cache.0));
        }
        self.buffers.workspace = Bytes(self.buffers.workspace.0.max(decoder.buffers.workspace.0));
    }

    /// Counts a teacher ([`MemoryPlan::of_teacher`]), parameters and activations together.
    pub fn add_teacher(&mut self, teacher: &MemoryPlan) {
        self.add("teacher", teacher.buffers.classes.iter().map(|class| class.1).sum());
        self.buffers.workspace = Bytes(self.buffers.workspace.0.max(teacher.buffers.workspace.0));
    }

    /// Counts memory that the null backend does not see.
    pub fn add(&mut self, class: &'static str, bytes: Bytes) {
        if bytes > Bytes(0) {
            match self.buffers.classes.iter_mut().find(|c| c.0 == class) {
                Some(counted) => counted.1 = Bytes(counted.1.0 + bytes.0),
                None => self.buffers.classes.push((class, bytes)),
            }
            self.buffers.classes.sort_by_key(|c| std::cmp::Reverse(c.1));
        }
    }

    /// Excludes the slots of this program's collectives, for a device whose collectives do not use them.
    #[must_use]
    pub fn of_device(mut self) -> MemoryPlan {
        self.buffers.classes.retain(|(class, _)| *class != SLOTS);
        self
    }

    /// Bytes of a class.
    pub fn class(&self, name: &str) -> Bytes {
        self.buffers.classes.iter().filter(|c| c.0 == name).map(|c| c.1).sum()
    }

    /// Refuses a plan of which `copies` do not fit into `available` together.
    ///
    /// # Errors
    /// The shortage, with the largest consumers.
    pub fn fits(&self, copies: usize, available: Bytes) -> Result<(), MemoryShortage> {
        let needed = Bytes(self.buffers.total().0.saturating_mul(copies as u64));
        if needed <= available {
            return Ok(());
        }
        let mut classes = self.buffers.classes.clone();
        classes.push(("workspace", self.buffers.workspace));
        classes.retain(|c| c.1 > Bytes(0));
        Err(MemoryShortage::new(needed, available, &classes))
    }
}

impl MemoryShortage {
    /// `classes`: the consumers, in any order.
    pub fn new(needed: Bytes, available: Bytes, classes: &[(&str, Bytes)]) -> MemoryShortage {
        let mut classes = classes.to_vec();
        classes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let name = |class| match class {
            "weights" => "parameters",
            "optimizer" => "optimizer state",
            CACHE => "cache of keys and values",
            other => other,
        };
        let largest: Vec<String> =
            classes.iter().map(|(class, bytes)| format!("{} {bytes}", name(class))).collect();
        MemoryShortage { needed, available, largest: largest.join(", "), remark: String::new() }
    }

    /// Adds the memory for rows of experts, if the model has some: all rows of a layer that may arrive at one rank.
    #[must_use]
    pub fn of_experts(self, model: &Model, plan: &Plan, shape: Shape, storage: Storage) -> MemoryShortage {
        let Some(experts) = model.experts else { return self };
        let ranks = plan.experts();
        let (rows_over, width_over) = match plan.expert_axes.contains(&Axis::Tensor) {
            true => (plan.stream_parts(), 1),
            false => (plan.context_ranks(), plan.mesh.degree(Axis::Tensor)),
        };
        let tokens = shape.sequences.saturating_mul(shape.seq) / rows_over;
        let rows = tokens.saturating_mul(ranks * experts.candidates().min(experts.count / ranks));
        // Inputs and results, and both sides of the gate with their product.
        let columns = 2 * model.width + 3 * experts.width.div_ceil(width_over);
        let bytes = Bytes(rows.saturating_mul(columns * storage.dtype().size()) as u64);
        let worst = match ranks {
            1 => String::new(),
            _ => format!(" in the worst case, where all tokens of {ranks} ranks choose the experts of one"),
        };
        let remark = format!(
            "; {bytes} of them are {rows} rows of experts of a layer{worst}: fewer with a smaller train.micro_batch, fewer \
             model.experts.choices or another parallel.experts"
        );
        MemoryShortage { remark, ..self }
    }
}

/// Properties that determine the memory of a pipeline rank, besides the micro-batches that are in flight on it.
#[derive(Debug, PartialEq)]
struct RankShape<'a> {
    chunks: Vec<ChunkShape<'a>>,
    /// Indexed by chunk: the first chunk that has the same slots.
    pools: Vec<usize>,
}

#[derive(Debug, PartialEq)]
struct ChunkShape<'a> {
    /// Policy of each layer.
    recompute: Vec<&'a RecomputePolicy>,
    embedding: bool,
    head: bool,
    first_holder: bool,
    holders: usize,
}

/// Pipeline ranks among which the one is that holds most: any other has stages equal to those of one of them, and no more micro-batches in
/// flight. All, where layers of one policy may differ.
fn fullest(job: &Job<'_>) -> Result<Vec<usize>, ParallelError> {
    let Job { plan, program, activations, .. } = job;
    let layers_are_alike = MemoryPlan::alike(job)
        && job.model.layer_kinds().len() == 1
        && plan.annotations.0.is_empty()
        && activations.lengths.is_empty()
        && activations.recompute.budget().is_none()
        && activations.compression.form == Compression::None
        && !activations.offload.is_on();
    if !layers_are_alike {
        return Ok((0..plan.pipeline()).collect());
    }
    let spans = plan.spans(job.model, program.stages)?;
    let mut found: Vec<(usize, RankShape<'_>, Vec<Needs>)> = Vec::new();
    for rank in 0..plan.pipeline() {
        let places = places(job, &spans, rank)?;
        let pools = slot_pools(job, &places, rank);
        let needs = prepare(program, rank, &pools)?.needs;
        let chunk = |place: &ChunkPlace| ChunkShape {
            recompute: {
                let layers = &spans[place.stage].layers;
                layers.clone().map(|layer| activations.recompute.of(layer, layers)).collect()
            },
            embedding: place.span.embedding,
            head: place.span.head,
            first_holder: place.first_holder,
            holders: program.holders(place.stage).len(),
        };
        let shape = RankShape { chunks: places.iter().map(chunk).collect(), pools };
        let fit = |small: &[Needs], large: &[Needs]| small.iter().zip(large).all(|(s, l)| s.fit(l));
        if found.iter().any(|(_, other, large)| *other == shape && fit(&needs, large)) {
            continue;
        }
        found.retain(|(_, other, small)| *other != shape || !fit(small, &needs));
        found.push((rank, shape, needs));
    }
    Ok(found.into_iter().map(|(rank, ..)| rank).collect())
}

/// Bytes of the slots through which a rank sends to the others of its groups: two slots a group, as the engine of threads keeps them.
fn slot_bytes(job: &Job<'_>, rank: usize) -> u64 {
    let plan = job.plan;
    let several = |ranks: usize| u64::from(ranks > 1);
    let pipeline = plan.coord(rank).pipeline;
    let layer_axes: Vec<Axis> = plan.layer_axes().collect();
    let of_stage = |stage: usize| {
        let holders = job.program.holders(stage);
        if holders.iter().all(|place| place.rank != pipeline) {
            return 0;
        }
        let axes: u64 = layer_axes.iter().map(|axis| several(plan.mesh.degree(*axis))).sum();
        let data = |group: usize| several(plan.shards(group)) + several(plan.replicas(group) * holders.len());
        let groups = (0..plan.groups.list().len()).map(data).sum::<u64>();
        axes + several(layer_axes.len()) + groups
    };
    let stages: u64 = (0..job.program.stages).map(of_stage).sum();
    // The ends of a route sum the gradients of a tied table.
    let ends = |route: &&Vec<Place>| {
        let ends = [route.first(), route.last()].map(|place| place.map(|place| place.rank));
        job.model.tied_embeddings && ends[0] != ends[1] && ends.contains(&Some(pipeline))
    };
    let ends = job.program.routes.iter().filter(ends).count() as u64;
    let groups = several(plan.ranks()) + several(plan.pipeline()) + stages + ends;
    2 * groups * ThreadSettings::default().piece_bytes as u64
}

/// The null backend, with the workspace of operators that the device reports.
struct Planning<'a> {
    null: NullBackend,
    device: Option<&'a mut dyn Backend>,
}

impl Backend for Planning<'_> {
    fn name(&self) -> &str {
        self.null.name()
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        self.null.alloc(spec)
    }

    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError> {
        match &self.device {
            Some(device) => device.workspace(op),
            None => self.null.workspace(op),
        }
    }

    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.null.reserve_workspace(bytes)
    }

    fn launch(&mut self, stream: Stream, op: &Op) -> Result<(), TensorError> {
        self.null.launch(stream, op)
    }

    fn record(&mut self, stream: Stream) -> Result<Event, TensorError> {
        self.null.record(stream)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), TensorError> {
        self.null.wait(stream, event)
    }

    fn sync(&mut self) -> Result<(), TensorError> {
        self.null.sync()
    }

    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.null.write_f32(dst, values)
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.null.write_u32(dst, values)
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.null.read_f32(src, values)
    }

    fn read_bytes(&mut self, stream: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        self.null.read_bytes(stream, src, bytes)
    }

    fn write_bytes(&mut self, stream: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        self.null.write_bytes(stream, dst, bytes)
    }

    fn memory(&self) -> MemoryUse {
        self.null.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ParallelConfig, Stage};

    /// Ranks of a plan of every pipeline rank hold no more than those that are planned, in every shape of pipeline.
    #[test]
    fn few_pipeline_ranks_stand_for_all() {
        let of = |schedule: &str, chunks: u64| ParallelConfig {
            schedule: schedule.into(),
            chunks,
            pipeline: 4,
            tensor: 2.into(),
            stage: Stage::Zero1,
            ..ParallelConfig::default()
        };
        let mut few = 0;
        for (schedule, chunks, layers, tied) in [
            ("1f1b", 0, 8, false),
            ("1f1b", 0, 13, true),
            ("1f1b", 0, 14, false),
            ("interleaved", 2, 16, true),
            ("zb-h1", 0, 13, false),
            ("zb-v", 0, 16, false),
            ("chimera", 0, 10, false),
        ] {
            let mut model = bessemer_arch::named("gpt2-124m").expect("a named model");
            (model.layers, model.width, model.heads, model.kv_heads) = (layers, 64, 4, 4);
            (model.ffn_width, model.vocab_size, model.tied_embeddings) = (256, 512, tied);
            let optim = OptimConfig { clip: 0.0, ..OptimConfig::default() };
            let plan = Plan::new(&of(schedule, chunks), 16, &model, optim.optimizer).expect("a plan");
            let program = plan.program(8, 1, None).expect("a program");
            let job = Job {
                model: &model,
                shape: Shape { sequences: 1, seq: 32, purpose: Purpose::Train },
                activations: ActivationConfig::default(),
                types: ParamStorage::default(),
                optim: &optim,
                losses: &[],
                plan: &plan,
                program: &program,
            };
            few += usize::from(fullest(&job).expect("ranks").len() < 4);
            let planned = MemoryPlan::of_rank(&job, None, None).expect("a plan of a rank");
            let of_rank = |pipeline: usize| {
                let rank = plan.rank(plan.data_coord(0, pipeline));
                MemoryPlan::of(&job, None, rank, None, &mut None).expect("a plan of a rank")
            };
            let all: Vec<MemoryPlan> = (0..4).map(of_rank).collect();
            let most = all.iter().map(|rank| rank.buffers.total()).max();
            assert_eq!(Some(planned.buffers.total()), most, "{schedule} of {layers} layers");
            assert_eq!(
                Some(planned.copy),
                all.iter().map(|rank| rank.copy).max(),
                "{schedule} of {layers} layers"
            );
        }
        assert!(few > 0, "every rank was planned each time");
    }
}

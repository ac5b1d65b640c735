//! A stage of the model on a rank: its parameters and their optimizer, and the ranks that hold the same stage.

use crate::config::Stage;
use crate::error::ParallelError;
use crate::exchange::{DataGroups, Exchange};
use crate::flat::{GroupShards, Units};
use crate::groups::ChunkGroups;
use crate::memory::ParamMemory;
use crate::norm::{LocalSquares, counted};
use crate::operands::Operands;
use crate::owner::{Owners, with_others};
use crate::peers::{OptimizerCommunication, RankPeers, share};
use crate::plan::Coord;
use crate::prepare::Needs;
use crate::rows::most_in_flight;
use crate::stash::WeightVersions;
use crate::tensor::TensorGroup;
use crate::transfers::PassTransfers;
use crate::worker::Job;
use bessemer_arch::{Span, TensorShard, TensorShardParam};
use bessemer_collectives::{DeviceCommunicator, HostStaging};
use bessemer_mesh::Axis;
use bessemer_optim::{OptimError, Optimizer, Peers, Ranks, StateView, StepStats};
use bessemer_runtime::{ActivationConfig, Decoder, Pending, SlotMemory, StageConfig, StagePass};
use bessemer_schedule::Instruction;
use bessemer_tensor::{Backend, View};
use bessemer_units::ParamStorage;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Position of a chunk in the pipeline.
#[derive(Debug, Clone)]
pub(crate) struct ChunkPlace {
    pub(crate) stage: usize,
    pub(crate) span: Span,
    /// Whether this is the first of the ranks that hold the stage; it contributes the stage to sums and files.
    pub(crate) first_holder: bool,
    /// Other pipeline ranks hold the stage too.
    pub(crate) mirrored: bool,
    /// First and last stage hold one token table and are not the same.
    pub(crate) table_apart: bool,
}

/// One stage of the model on a rank: its parameters, and the optimizer that steps them.
#[derive(Debug)]
pub struct Chunk {
    pub(crate) place: ChunkPlace,
    pub(crate) tensor: TensorGroup,
    pub(crate) exchange: Exchange,
    pub(crate) transfers: PassTransfers,
    /// Gradients are reduced in every pass.
    pub(crate) settles: bool,
    pub(crate) units: Units,
    pub(crate) memory: ParamMemory,
    /// This rank's tensor shard of every parameter of the stage.
    pub(crate) tensor_shard: Vec<TensorShardParam>,
    pub(crate) decoder: Decoder,
    pub(crate) optimizer: Optimizer,
    pub(crate) sharing: OptimizerCommunication,
    pub(crate) operands: Operands,
    pub(crate) stash: WeightVersions,
    /// The optimizer's state tensors on this rank, by name.
    pub(crate) states: BTreeMap<String, StateView>,
    pub(crate) squares: LocalSquares,
    /// Types of parameters and gradients.
    pub(crate) types: ParamStorage,
    /// The pass between its begin and its end.
    pub(crate) running: Option<StagePass>,
    /// Weight parts that are left to do, by micro-batch.
    pub(crate) pending: HashMap<usize, Pending>,
    /// Ranks that have the same part of a tied token table, and the route of which they are the ends.
    pub(crate) ends: Option<(usize, Box<dyn DeviceCommunicator>)>,
}

impl Chunk {
    /// Makes the buffers of a stage for a rank at `coord`. `waited`: host memory of collectives that computation waits for. `beside`:
    /// another chunk of the rank, with which it alternates, and whether both use the same slots.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        coord: Coord,
        place: ChunkPlace,
        needs: &Needs,
        (groups, waited): (ChunkGroups, &HostStaging),
        beside: Option<(&Decoder, SlotMemory)>,
    ) -> Result<Chunk, ParallelError> {
        let plan = job.plan;
        let part = plan.tensor_shard(job.model, coord)?;
        let specs = part.specs(&place.span);
        let (numbers, tensor_shard): (Vec<usize>, Vec<TensorShardParam>) = part
            .params()
            .into_iter()
            .enumerate()
            .filter(|(_, p)| place.span.uses(&part.model, p.id()))
            .unzip();
        let shards = plan.group_shards();
        let groups_of_params = GroupShards { groups: &plan.groups, shards: &shards };
        let owners = Owners::new(job.model, job.optim, &groups_of_params).of_params(&numbers);
        let units = Units::new(&specs, place.table_apart, &owners, &groups_of_params);
        let memory = ParamMemory::alloc(backend, job, specs, &units.list, coord)?;
        let names: Vec<String> = units.list.iter().map(|u| u.name.clone()).collect();
        let stash = WeightVersions::alloc(backend, &memory, &names, needs.stashes)?;
        let mut decoder = decoder(backend, job, (&part, &place.span), needs, &memory, beside)?;
        decoder.weigh_losses(job.losses)?;
        let list = memory.optim_params(&part, &units.list, (plan, coord));
        let list = with_others(list, job, &part, &memory.params, &numbers);
        let params: Vec<_> = list.iter().map(|p| p.2.clone()).collect();
        // Mirrored holders process other micro-batches. They reach their copies of a stage at different times, so only sums
        // are shared between them.
        let data = plan.data_ranks() * job.program.holders(place.stage).len();
        let ranks = match place.mirrored {
            true => Ranks { data, ..Ranks::ONE },
            false => {
                Ranks { data, copies: plan.replicas(0), copy: plan.index_along(&plan.reduce_axes(0), coord) }
            }
        };
        let mut optimizer = Optimizer::of_rank(backend, &params, job.optim, ranks)?;
        optimizer.plan_capture(backend, job.shape.tokens(), job.activations.storage.dtype())?;
        let gradients = match place.first_holder {
            true => unique_gradients(&list, &tensor_shard, &place.span, &units),
            false => Vec::new(),
        };
        let squares = LocalSquares::new(backend, &gradients)?;
        let group_of = |param: usize| units.list[units.place(param).unit].group;
        let (sharing, operands) = share(backend, job, (&owners, &group_of), &list, &tensor_shard, waited)?;
        let numbered = tensor_shard.iter().cloned().zip(&memory.params).enumerate();
        let gradients: Vec<_> = numbered
            .filter_map(|(number, (tensor_shard, p))| Some((tensor_shard, p.grad?, units.place(number).unit)))
            .collect();
        let ChunkGroups { layers, data, staging, ends } = groups;
        let mut tensor = TensorGroup::new(layers, &part, (plan.sequence, plan.overlap), &gradients, waited)?;
        decoder.verify()?;
        expect_complete(&decoder, &tensor)?;
        let ranks = data.iter().map(DataGroups::rank).collect();
        let transfers = PassTransfers::new(&decoder, &memory, &units, &tensor, ranks, plan.reduce_dtype);
        let programs = decoder.programs().map(|(_, program, _)| program);
        tensor.plan_staging(programs, &transfers.completed(), job.types.gradients.dtype());
        let exchange =
            Exchange::new(backend, (data, staging), &units.list, &memory, plan.reduce_dtype, plan.in_flight)?;
        Ok(Chunk {
            settles: (0..transfers.data.flats.len()).any(|flat| transfers.data.settles(flat)),
            transfers,
            tensor,
            exchange,
            units,
            memory,
            tensor_shard,
            decoder,
            states: optimizer.states().into_iter().collect(),
            optimizer,
            sharing,
            operands,
            stash,
            squares,
            types: job.types,
            running: None,
            pending: HashMap::new(),
            ends,
            place,
        })
    }

    /// The stage.
    pub fn stage(&self) -> usize {
        self.place.stage
    }

    /// The optimizer of this rank's part of the stage.
    pub fn optimizer(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// Allocates the host memory that is planned.
    pub(crate) fn allocate_staging(&mut self) {
        self.exchange.staging().allocate();
        self.tensor.allocate_pieces();
    }

    /// Bytes of host memory of collectives that are in flight while the chunk computes.
    pub(crate) fn staging_bytes(&self) -> u64 {
        let in_flight = most_in_flight(self.decoder.programs().map(|(_, program, _)| program));
        self.exchange.staging().capacity_bytes() + in_flight
    }

    /// Lets the optimizer act together with the ranks that share the chunk's parameters. They all call this.
    ///
    /// # Errors
    /// An error of the optimizer or of another rank.
    pub fn with_peers<T>(
        &mut self,
        act: impl FnOnce(&mut Optimizer, &mut dyn Peers) -> Result<T, OptimError>,
    ) -> Result<T, ParallelError> {
        let mut peers = RankPeers {
            exchange: &mut self.exchange,
            tensor: &mut self.tensor,
            sharing: &mut self.sharing,
            failed: None,
        };
        match (act(&mut self.optimizer, &mut peers), peers.failed) {
            (Err(_), Some(failed)) => Err(failed.into()),
            (result, _) => Ok(result?),
        }
    }

    /// The optimizer's step `t` at rate `lr`; `size` as in [`Optimizer::apply_with`].
    pub(crate) fn step(
        &mut self,
        backend: &mut dyn Backend,
        (t, lr): (u64, f64),
        grad_norm: f64,
        size: f64,
    ) -> Result<StepStats, ParallelError> {
        self.with_peers(|optimizer, peers| optimizer.apply_with(backend, peers, (t, lr), grad_norm, size))
    }

    /// This rank's part of the gradient of a token table that two stages hold.
    pub(crate) fn table_gradient(&self) -> Option<View> {
        self.units.table.and_then(|unit| Some(self.memory.gradients[unit].as_ref()?.own))
    }
}

/// The decoder of a span, on parameters that are in `memory`.
fn decoder(
    backend: &mut dyn Backend,
    job: &Job<'_>,
    (part, span): (&TensorShard, &Span),
    needs: &Needs,
    memory: &ParamMemory,
    beside: Option<(&Decoder, SlotMemory)>,
) -> Result<Decoder, ParallelError> {
    let stream = job.plan.stream();
    let placed = Some(memory.params.clone());
    let overlap = job.plan.overlap && part.degree > 1;
    // A chunk that no micro-batch visits holds its parameters all the same.
    let stage = StageConfig {
        span: span.clone(),
        slots: needs.slots.max(1),
        pending: needs.pending,
        overlap,
        shadowing: job.plan.shadowing,
    };
    if let Some((beside, slots)) = beside {
        return Ok(beside.of_stage_beside(backend, &stage, placed, slots)?);
    }
    let activations = ActivationConfig {
        in_gradients: in_gradients(job, needs),
        params: job.types,
        ..job.activations.clone()
    };
    Ok(Decoder::of_stage(backend, part, stream, job.shape, activations, &stage, placed)?)
}

/// Whether activations may use the memory of gradients: a step replaces them once, and they stay where the backward pass writes
/// them until the update.
fn in_gradients(job: &Job<'_>, needs: &Needs) -> bool {
    let (program, activations) = (job.program, &job.activations);
    activations.in_gradients
        && program.stages == 1
        && program.micro_batches() == 1
        && job.plan.stage < Stage::Zero2
        && job.plan.groups.is_single()
        && needs.slots <= 1
        && needs.pending == 0
        && activations.lengths.is_empty()
        && activations.recompute.budget().is_none()
        && !activations.offload.is_on()
}

/// Refuses a gradient that the programs leave partial over the tensor axis and that no collective completes, or one that is
/// completed twice: replicas would drift apart without an error.
fn expect_complete(decoder: &Decoder, tensor: &TensorGroup) -> Result<(), ParallelError> {
    for (param, partial) in decoder.params().iter().zip(decoder.partial_gradients()) {
        let mut completed = tensor.completes(param.spec.id);
        completed.sort_unstable();
        let mut partial: Vec<Axis> = partial;
        partial.sort_unstable();
        if param.grad.is_some() && partial != completed {
            return Err(ParallelError::Layout(format!(
                "the gradient of {} is a term of a sum over {partial:?}, but it is completed over {completed:?}",
                param.spec.name
            )));
        }
    }
    Ok(())
}

/// The gradients whose squares this rank sums, with the groups of their parameters. A token table that the last stage holds too is
/// the first stage's.
fn unique_gradients(
    list: &[(usize, Range<usize>, bessemer_optim::OptimParam)],
    tensor_shard: &[TensorShardParam],
    span: &Span,
    units: &Units,
) -> Vec<(usize, View)> {
    let cut = |grad: View, range: &Range<usize>, r: Range<usize>| match r == *range {
        true => grad,
        false => View {
            offset: grad.offset + r.start - range.start,
            rows: 1,
            cols: r.len(),
            stride: r.len(),
            ..grad
        },
    };
    list.iter()
        .filter(|(index, ..)| span.owns(tensor_shard[*index].id()))
        .flat_map(|(index, range, param)| {
            let counted = counted(&tensor_shard[*index], range);
            let group = units.list[units.place(*index).unit].group;
            counted.into_iter().map(move |r| (group, cut(param.grad, range, r)))
        })
        .collect()
}

/// Per chunk, the first chunk whose slots it may use, perhaps itself. A slot is one micro-batch in one chunk. Chunks with equally
/// many layers, of the same kinds and recomputed alike, keep the same tensors: a rank then needs as many slots as it has in flight in all of them.
pub(crate) fn slot_pools(job: &Job<'_>, places: &[ChunkPlace], rank: usize) -> Vec<usize> {
    let recompute = &job.activations.recompute;
    // Split backward passes keep other values.
    let splits = |chunk: usize| {
        let list = &job.program.lists[rank];
        list.iter().any(|i| matches!(i, Instruction::BackwardInput(pass) if pass.chunk == chunk))
    };
    let alike = |a: &Span, b: &Span| {
        let policies = |span: &Span| {
            let layers = span.layers.clone();
            layers
                .map(|layer| (recompute.of(layer, &span.layers), job.model.experts_of(layer)))
                .collect::<Vec<_>>()
        };
        policies(a) == policies(b)
            && job.plan.annotations.0.is_empty()
            // Between the embedding and a layer the residual stream may alternate between buffers.
            && (!(job.plan.partition_activations || job.activations.offload.is_on()) || a.embedding == b.embedding)
    };
    let shares = |chunk: usize, other: usize| {
        splits(other) == splits(chunk) && alike(&places[other].span, &places[chunk].span)
    };
    (0..places.len()).map(|chunk| (0..chunk).find(|other| shares(chunk, *other)).unwrap_or(chunk)).collect()
}

/// The chunks of pipeline rank `rank`, by number.
pub(crate) fn places(job: &Job<'_>, spans: &[Span], rank: usize) -> Result<Vec<ChunkPlace>, ParallelError> {
    let program = job.program;
    let place = |chunk: usize| {
        let here = bessemer_schedule::Place { rank, chunk };
        let stage = program.stage_at(here).ok_or_else(|| {
            ParallelError::Layout(format!("chunk {chunk} of pipeline rank {rank} holds no stage"))
        })?;
        Ok(ChunkPlace {
            stage,
            span: spans[stage].clone(),
            first_holder: program.holders(stage).first() == Some(&here),
            mirrored: program.holders(stage).len() > 1,
            table_apart: job.model.tied_embeddings && program.stages > 1,
        })
    };
    (0..program.chunks(rank)).map(place).collect()
}

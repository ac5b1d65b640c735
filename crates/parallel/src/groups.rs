//! The communicators of one rank.
//!
//! Groups are made in one order on every rank: the pipeline, then stage by stage those of the ranks that hold it. Ranks that
//! share several groups therefore reach them in the same order.

use crate::exchange::DataGroups;
use crate::plan::{Coord, Plan};
use bessemer_collectives::{
    CollectiveError, CollectiveQueue, Communicator, DeviceCommunicator, HostStaging, StagedCommunicator,
};
use bessemer_mesh::Axis;
use bessemer_schedule::{Place, Program};

/// Label of the data-parallel ranks among those that share experts.
pub(crate) const DATA_EXPERTS: &str = "expert data";

/// The ranks that share layers.
#[derive(Debug)]
pub(crate) struct LayerGroups {
    /// All ranks, if they differ on several axes.
    pub(crate) all: Option<Box<dyn Communicator>>,
    /// The ranks that differ on one axis only, for each axis; at least one.
    pub(crate) axes: Vec<(Axis, Box<dyn Communicator>)>,
    /// The ranks that share their experts, if there are others.
    pub(crate) experts: Option<Box<dyn Communicator>>,
    /// Those of them that are data-parallel, where experts are divided over ranks of a layer too.
    pub(crate) data_experts: Option<Box<dyn Communicator>>,
}

/// The groups of one stage on a rank that holds it.
#[derive(Debug)]
pub(crate) struct ChunkGroups {
    /// Ranks that share its layers.
    pub(crate) layers: LayerGroups,
    /// Data-parallel ranks, by group of parameters.
    pub(crate) data: Vec<DataGroups>,
    /// Host memory of pieces that travel among them.
    pub(crate) staging: HostStaging,
    /// Ranks that have the same part of a token table that the first and the last stage both hold, and the route of which
    /// they are the ends.
    pub(crate) ends: Option<(usize, Box<dyn DeviceCommunicator>)>,
}

/// Process groups of a rank, one per mesh axis: the ranks whose coordinates differ on that axis only.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) coord: Coord,
    pub(crate) world: Box<dyn Communicator>,
    /// Ranks of all stages that see the same data.
    pub(crate) pipeline: Box<dyn DeviceCommunicator>,
    /// Host memory of collectives that computation waits for.
    pub(crate) staging: HostStaging,
    /// Indexed by chunk of this rank.
    pub(crate) chunks: Vec<ChunkGroups>,
}

/// Makes the end of a group for values of the device. With `overlap` its collectives run on a progress thread, if the group has other
/// ranks.
pub(crate) fn on_device(
    group: Box<dyn Communicator>,
    overlap: bool,
    waited: &HostStaging,
    in_flight: &HostStaging,
) -> Result<Box<dyn DeviceCommunicator>, CollectiveError> {
    let queue = match overlap && group.size() > 1 {
        true => CollectiveQueue::with_progress_thread(group)?,
        false => CollectiveQueue::blocking(group),
    };
    Ok(Box::new(StagedCommunicator::new(queue, waited, in_flight)))
}

impl Groups {
    /// `tied`: first and last stage hold one token table.
    pub(crate) fn new(
        mut world: Box<dyn Communicator>,
        plan: &Plan,
        program: &Program,
        tied: bool,
    ) -> Result<Groups, CollectiveError> {
        let at = plan.coord(world.rank());
        let ranks = |coords: Vec<Coord>| -> Vec<usize> { coords.into_iter().map(|c| plan.rank(c)).collect() };
        let me = world.rank();
        let along = |axis: Axis| (axis.name(), plan.mesh.group(me, &[axis]));
        let (label, line) = along(Axis::Pipeline);
        let waited = HostStaging::default();
        let pipeline = on_device(world.group(label, &line)?, false, &waited, &waited)?;
        let mut chunks: Vec<Option<ChunkGroups>> = (0..program.chunks(at.pipeline)).map(|_| None).collect();
        for stage in 0..program.stages {
            let holders = program.holders(stage);
            for place in holders.iter().filter(|p| p.rank == at.pipeline) {
                let axes: Vec<Axis> = plan.layer_axes().collect();
                let mut all = None;
                if axes.len() > 1 {
                    let ranks = plan.mesh.group(me, &axes);
                    all = Some(world.group(&bessemer_mesh::label(&axes), &ranks)?);
                }
                let axes = axes.into_iter().map(|axis| {
                    let (label, line) = along(axis);
                    Ok((axis, world.group(label, &line)?))
                });
                let axes = axes.collect::<Result<_, CollectiveError>>()?;
                let (mut experts, mut data_experts) = (None, None);
                if plan.experts() > 1 {
                    let all = plan.mesh.group(me, plan.expert_axes);
                    experts = Some(world.group(Axis::Expert.name(), &all)?);
                }
                if plan.folds_experts() && plan.mesh.degree(Axis::Expert) > 1 {
                    data_experts = Some(world.group(DATA_EXPERTS, &along(Axis::Expert).1)?);
                }
                let staging = HostStaging::default();
                let mut data = Vec::with_capacity(plan.groups.list().len());
                for group in 0..plan.groups.list().len() {
                    let (shard_axes, reduce_axes) = (plan.shard_axes(group), plan.reduce_axes(group));
                    let label = |axes: &[Axis], usual: Axis| match axes {
                        [] => usual.name().to_owned(),
                        axes => bessemer_mesh::label(axes),
                    };
                    let line = ranks(plan.along_data(shard_axes, at));
                    let shard = world.group(&label(shard_axes, Axis::Shard), &line)?;
                    let replicas =
                        |p: &Place| plan.along_data(&reduce_axes, Coord { pipeline: p.rank, ..at });
                    let line = ranks(holders.iter().flat_map(replicas).collect());
                    let replicate = world.group(&label(&reduce_axes, Axis::Replicate), &line)?;
                    let device = |group| on_device(group, plan.overlap, &waited, &staging);
                    data.push(DataGroups { shard: device(shard)?, replicate: device(replicate)? });
                }
                chunks[place.chunk] = Some(ChunkGroups {
                    layers: LayerGroups { all, axes, experts, data_experts },
                    data,
                    staging,
                    ends: None,
                });
            }
        }
        if tied && program.stages > 1 {
            for (number, route) in program.routes.iter().enumerate() {
                let (first, last) = (route[0], route[program.stages - 1]);
                if first.rank == last.rank || ![first.rank, last.rank].contains(&at.pipeline) {
                    continue;
                }
                let line = [first, last].map(|p| Coord { pipeline: p.rank, ..at }).to_vec();
                let ends = world.group("tied table", &ranks(line))?;
                let mine = if first.rank == at.pipeline { first } else { last };
                if let Some(groups) = &mut chunks[mine.chunk] {
                    groups.ends = Some((number, on_device(ends, false, &waited, &waited)?));
                }
            }
        }
        let chunks = chunks.into_iter().flatten().collect();
        Ok(Groups { coord: at, world, pipeline, staging: waited, chunks })
    }
}

//! Groups of parameters that are reduced and sharded alike.
//!
//! The ranks that see different data differ on the data axes. A group says over which of them its parameters' state is sharded and
//! over which it is replicated; gradients are summed over both. Flat units, ZeRO, the norm, the optimizer's state and checkpoints
//! follow the group of a parameter.

use crate::config::Stage;
use crate::error::ParallelError;
use crate::plan::{Coord, Plan};
use bessemer_arch::ParamId;
use bessemer_mesh::Axis;
use std::collections::BTreeMap;

/// The axes on which data-parallel ranks differ.
const DATA_AXES: [Axis; 2] = [Axis::Replicate, Axis::Shard];

/// Parameters that are reduced and sharded alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamGroup {
    /// Name, for messages and reports; unique.
    pub name: String,
    /// Data axes over which values, gradients and optimizer state are sharded, as far as the ZeRO stage shards them.
    pub shard_axes: Vec<Axis>,
    /// Data axes over which they are replicated, and gradients are reduced after the shard axes.
    pub reduce_axes: Vec<Axis>,
    /// Whether the parameters are trained. Frozen ones have no gradients, no optimizer state and no traffic but gathers of values.
    pub trainable: bool,
}

impl ParamGroup {
    /// Trained parameters that are sharded over the shard axis and replicated over the replicate axis.
    pub fn dense() -> ParamGroup {
        ParamGroup {
            name: "dense".into(),
            shard_axes: vec![Axis::Shard],
            reduce_axes: vec![Axis::Replicate],
            trainable: true,
        }
    }
}

/// The groups of a model's parameters. Parameters that no other group has are in the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamGroups {
    list: Vec<ParamGroup>,
    members: BTreeMap<ParamId, usize>,
}

impl Default for ParamGroups {
    fn default() -> ParamGroups {
        ParamGroups { list: vec![ParamGroup::dense()], members: BTreeMap::new() }
    }
}

impl ParamGroups {
    /// Adds a group of these parameters, which leave the group that they were in.
    pub fn add(&mut self, group: ParamGroup, members: impl IntoIterator<Item = ParamId>) {
        let number = self.list.len();
        self.list.push(group);
        self.members.extend(members.into_iter().map(|id| (id, number)));
    }

    /// The groups, by number.
    pub fn list(&self) -> &[ParamGroup] {
        &self.list
    }

    /// Number of a parameter's group.
    pub fn of(&self, id: ParamId) -> usize {
        self.members.get(&id).copied().unwrap_or(0)
    }

    /// Whether a parameter is trained.
    pub fn trains(&self, id: ParamId) -> bool {
        self.list[self.of(id)].trainable
    }

    /// Whether all parameters are in one group.
    pub fn is_single(&self) -> bool {
        self.members.is_empty()
    }

    /// Refuses a group that does not cover each data axis once or has the name of another, and trained groups of which a stage would
    /// reduce some in every pass and others after the last one.
    ///
    /// # Errors
    /// The group, with what was found.
    pub fn check(&self, plan: &Plan) -> Result<(), ParallelError> {
        let trained = (0..self.list.len()).filter(|group| self.list[*group].trainable);
        let (cut, whole): (Vec<usize>, Vec<usize>) = trained.partition(|group| plan.shards(*group) > 1);
        if let ([cut, ..], [whole, ..], true) = (&cut[..], &whole[..], plan.stage >= Stage::Zero2) {
            return Err(ParallelError::Layout(format!(
                "stage {:?} shards the gradients of parameter group {:?} and not those of group {:?}: wanted both over several \
                 ranks; take stage \"zero1\", or other degrees",
                plan.stage, self.list[*cut].name, self.list[*whole].name
            )));
        }
        for (number, group) in self.list.iter().enumerate() {
            let mut axes: Vec<Axis> = group.shard_axes.iter().chain(&group.reduce_axes).copied().collect();
            axes.sort_unstable();
            let mut wanted = DATA_AXES.to_vec();
            wanted.sort_unstable();
            if axes != wanted {
                return Err(ParallelError::Layout(format!(
                    "parameter group {:?}: wanted the axes {} among its shard and reduce axes, each once, found {}",
                    group.name,
                    bessemer_mesh::label(&wanted),
                    bessemer_mesh::label(&axes)
                )));
            }
            if self.list[..number].iter().any(|other| other.name == group.name) {
                return Err(ParallelError::Layout(format!(
                    "two parameter groups are named {:?}",
                    group.name
                )));
            }
        }
        Ok(())
    }
}

impl Plan {
    /// By group: [`Plan::shards`].
    pub(crate) fn group_shards(&self) -> Vec<usize> {
        (0..self.groups.list().len()).map(|group| self.shards(group)).collect()
    }

    /// Data axes over which the state of a group is sharded: none under DDP.
    pub fn shard_axes(&self, group: usize) -> &[Axis] {
        if self.stage == Stage::Ddp { &[] } else { &self.groups.list()[group].shard_axes }
    }

    /// Data axes over which it is replicated.
    pub fn reduce_axes(&self, group: usize) -> &[Axis] {
        let ParamGroup { shard_axes, reduce_axes, .. } = &self.groups.list()[group];
        if self.stage == Stage::Ddp && self.mesh.size(shard_axes) > 1 { &DATA_AXES } else { reduce_axes }
    }

    /// Ranks over which the state of a group is sharded.
    pub fn shards(&self, group: usize) -> usize {
        self.mesh.size(self.shard_axes(group))
    }

    /// Ranks that have replicas of it, for other data.
    pub fn replicas(&self, group: usize) -> usize {
        self.mesh.size(self.reduce_axes(group))
    }

    /// Position of a rank among those over which the state of a group is sharded, the first axis counted slowest.
    pub(crate) fn shard_index(&self, group: usize, at: Coord) -> usize {
        self.shard_axes(group).iter().fold(0, |index, axis| {
            let position = if *axis == Axis::Shard { at.shard } else { at.replicate };
            index * self.mesh.degree(*axis) + position
        })
    }

    /// The positions of ranks that differ from `at` along some data axes, in the order of [`Plan::shard_index`].
    pub(crate) fn along_data(&self, axes: &[Axis], at: Coord) -> Vec<Coord> {
        axes.iter().fold(vec![at], |all, axis| {
            let moved = |at: Coord| {
                (0..self.mesh.degree(*axis)).map(move |index| match axis {
                    Axis::Shard => Coord { shard: index, ..at },
                    _ => Coord { replicate: index, ..at },
                })
            };
            all.into_iter().flat_map(moved).collect()
        })
    }

    /// Whether every rank has the values of a group whole between steps.
    pub fn keeps_values_of(&self, group: usize) -> bool {
        self.stage != Stage::Zero3 || self.shards(group) == 1
    }
}

//! Groups of parameters that are reduced and sharded alike.
//!
//! The ranks that process different data differ on the data axes. A group names the axes over which its parameters' state is sharded
//! and the axes over which it is replicated; gradients are summed over both. Flat units, ZeRO, the norm, the optimizer's state and checkpoints
//! follow the group of a parameter.

use crate::config::Stage;
use crate::error::ParallelError;
use crate::plan::{Coord, Plan};
use bessemer_arch::{Model, ParamId, ParamRole, ParamSpec, Unit, name_matches};
use bessemer_mesh::Axis;
use bessemer_units::DType;
use std::collections::BTreeMap;

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
    /// Type of the values, if it is not that of the run's weights.
    pub values: Option<DType>,
}

impl ParamGroup {
    /// Trained parameters that are sharded over the shard axis and replicated over the replicate axis.
    pub fn dense() -> ParamGroup {
        ParamGroup {
            name: "dense".into(),
            shard_axes: vec![Axis::Shard],
            reduce_axes: vec![Axis::Replicate],
            trainable: true,
            values: None,
        }
    }

    /// Group of the routing state, which is computed from the loads of experts: f32, whole on every rank, not trained.
    fn routing_state() -> ParamGroup {
        ParamGroup {
            name: "routing".into(),
            shard_axes: Vec::new(),
            reduce_axes: vec![Axis::Replicate, Axis::Shard],
            trainable: false,
            values: Some(DType::F32),
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

    /// The groups of a model. `spread`: its experts are spread over data-parallel ranks, which reduce and shard the gradients of other
    /// parameters, and have experts of their own. `sharded`: state is sharded over them too.
    pub(crate) fn of_model(model: &Model, spread: bool, sharded: bool) -> ParamGroups {
        let mut groups = ParamGroups::default();
        let mut routing = ParamGroup::routing_state();
        let of = |has: fn(ParamRole) -> bool| {
            model.params().into_iter().map(|spec| spec.id).filter(move |id| has(id.role()))
        };
        if spread {
            let experts = ParamGroup { name: EXPERTS.into(), ..ParamGroup::dense() };
            let dense = &mut groups.list[0];
            if sharded { &mut dense.shard_axes } else { &mut dense.reduce_axes }.push(Axis::Expert);
            groups.add(experts, of(ParamRole::stacks_experts));
            routing.reduce_axes.push(Axis::Expert);
        }
        if of(ParamRole::is_routing_state).next().is_some() {
            groups.add(routing, of(ParamRole::is_routing_state));
        }
        groups
    }

    /// Moves the parameters of each group that are not trained to a frozen group like it.
    fn freeze(&mut self, model: &Model, trains: impl Fn(&ParamSpec) -> bool) {
        let frozen: Vec<ParamSpec> = model.params().into_iter().filter(|spec| !trains(spec)).collect();
        for number in (0..self.list.len()).filter(|number| self.list[*number].trainable).collect::<Vec<_>>() {
            let of_group = frozen.iter().map(|spec| spec.id).filter(|id| self.of(*id) == number);
            let members: Vec<ParamId> = of_group.collect();
            if !members.is_empty() {
                let group = &self.list[number];
                let name = format!("frozen {}", group.name);
                self.add(ParamGroup { name, trainable: false, ..group.clone() }, members);
            }
        }
    }

    /// Refuses a group that does not cover each data axis once or has the name of another. The axis of experts has a rank's other
    /// experts on other ranks: a group of them leaves it out, all others cover it.
    ///
    /// # Errors
    /// The group, with the finding.
    pub fn check(&self, plan: &Plan, model: &Model) -> Result<(), ParallelError> {
        let ids = || model.params().into_iter().map(|spec| spec.id);
        for (number, group) in self.list.iter().enumerate() {
            let mut axes: Vec<Axis> = group.shard_axes.iter().chain(&group.reduce_axes).copied().collect();
            axes.sort_unstable();
            let spread = plan.experts() > 1;
            let of_experts = |id: ParamId| spread && id.role().stacks_experts();
            let experts = ids().any(|id| self.of(id) == number && of_experts(id));
            if experts && ids().any(|id| self.of(id) == number && !of_experts(id)) {
                return Err(ParallelError::Layout(format!(
                    "parameter group {:?} has experts, which differ over the {} axis, and other parameters: wanted a group of their own",
                    group.name,
                    Axis::Expert
                )));
            }
            let mut wanted = vec![Axis::Replicate, Axis::Shard];
            wanted.extend((spread && !experts).then_some(Axis::Expert));
            if axes != wanted {
                return Err(ParallelError::Layout(format!(
                    "parameter group {:?}: wanted the axes {} among its shard and reduce axes, each once, found {}",
                    group.name,
                    bessemer_mesh::label(&wanted),
                    bessemer_mesh::label(&axes)
                )));
            }
            if group.trainable && ids().any(|id| self.of(id) == number && id.role().is_routing_state()) {
                return Err(ParallelError::Layout(format!(
                    "parameter group {:?} is trained and has numbers that follow from the loads of experts: wanted a frozen group of theirs",
                    group.name
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

/// Name of the group of experts that are spread over ranks.
const EXPERTS: &str = "experts";

impl Plan {
    /// Trains adapters, and the parameters with one of these names, in which `*` stands for any characters; without a name all parameters, or
    /// the adapters alone if the model has some.
    ///
    /// # Errors
    /// A name that no parameter has which could be trained.
    pub fn train_only(&mut self, model: &Model, names: &[String]) -> Result<(), ParallelError> {
        let params = model.params();
        let named = |pattern: &str, spec: &ParamSpec| {
            !spec.id.role().is_routing_state() && name_matches(pattern, &spec.name)
        };
        if let Some(unknown) = names.iter().find(|name| !params.iter().any(|spec| named(name, spec))) {
            let first =
                |unit: Unit| params.iter().find(|spec| spec.id.unit() == unit).map(|spec| &spec.name[..]);
            let known: Vec<&str> =
                [Unit::Embedding, Unit::Layer(0), Unit::Head].into_iter().filter_map(first).collect();
            return Err(ParallelError::Layout(format!(
                "train.trained: the model has no parameter {unknown:?}; `bessemer program show` lists them, such as {}; `*` is for \
                 any characters",
                known.join(", ")
            )));
        }
        if let Some(spec) = params
            .iter()
            .find(|spec| model.sets_norms_of(spec.id.role()) && names.iter().any(|name| named(name, spec)))
        {
            return Err(ParallelError::Layout(format!(
                "train.trained names {}, whose norms of rows model.adapters.magnitude trains: wanted other parameters, or magnitude = false",
                spec.name
            )));
        }
        self.groups = ParamGroups::of_model(model, self.experts() > 1, self.shard() > 1);
        if model.adapters.is_some() || !names.is_empty() {
            let trains =
                |spec: &ParamSpec| spec.id.role().is_adapter() || names.iter().any(|name| named(name, spec));
            self.groups.freeze(model, trains);
        }
        Ok(())
    }

    /// Indexed by group: [`Plan::shards`].
    pub(crate) fn group_shards(&self) -> Vec<usize> {
        (0..self.groups.list().len()).map(|group| self.shards(group)).collect()
    }

    /// Data axes over which the state of a group is sharded: none under DDP.
    pub fn shard_axes(&self, group: usize) -> &[Axis] {
        if self.stage == Stage::Ddp { &[] } else { &self.groups.list()[group].shard_axes }
    }

    /// Data axes over which it is replicated.
    pub fn reduce_axes(&self, group: usize) -> Vec<Axis> {
        let ParamGroup { shard_axes, reduce_axes, .. } = &self.groups.list()[group];
        if self.stage == Stage::Ddp && self.mesh.size(shard_axes) > 1 {
            let covers = |axis: &Axis| shard_axes.contains(axis) || reduce_axes.contains(axis);
            return Axis::DATA.into_iter().filter(covers).collect();
        }
        reduce_axes.clone()
    }

    /// Whether passes leave terms of gradients, which are added to the sums of earlier passes within the pass.
    pub fn settles(&self) -> bool {
        let cut = |(number, group): (usize, &ParamGroup)| group.trainable && self.shards(number) > 1;
        self.stage >= Stage::Zero2 && self.groups.list().iter().enumerate().any(cut)
    }

    /// Data-parallel ranks that have other experts of a group: 1 if all have the same parameters.
    pub fn expert_ranks(&self, group: usize) -> usize {
        let ParamGroup { shard_axes, reduce_axes, .. } = &self.groups.list()[group];
        let covers = shard_axes.iter().chain(reduce_axes).any(|axis| *axis == Axis::Expert);
        if covers { 1 } else { self.mesh.degree(Axis::Expert) }
    }

    /// Ranks over which the state of a group is sharded.
    pub fn shards(&self, group: usize) -> usize {
        self.mesh.size(self.shard_axes(group))
    }

    /// Ranks that have replicas of it, for other data.
    pub fn replicas(&self, group: usize) -> usize {
        self.mesh.size(&self.reduce_axes(group))
    }

    /// Position of a rank among those over which the state of a group is sharded, the first axis counted slowest.
    pub(crate) fn shard_index(&self, group: usize, at: Coord) -> usize {
        self.index_along(self.shard_axes(group), at)
    }

    /// Position of a rank along some data axes, the first counted slowest.
    pub(crate) fn index_along(&self, axes: &[Axis], at: Coord) -> usize {
        axes.iter().fold(0, |index, axis| index * self.mesh.degree(*axis) + at.on_data(*axis))
    }

    /// The positions of ranks that differ from `at` along some data axes, in the order of [`Plan::index_along`].
    pub(crate) fn along_data(&self, axes: &[Axis], at: Coord) -> Vec<Coord> {
        axes.iter().fold(vec![at], |all, axis| {
            let moved = |at: Coord| {
                (0..self.mesh.degree(*axis)).map(move |index| match axis {
                    Axis::Shard => Coord { shard: index, ..at },
                    Axis::Expert => Coord { expert: index, ..at },
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

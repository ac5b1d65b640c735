//! Location of a stage's tensors on a rank, and the assembly of their pieces to whole tensors.

use super::*;
use bessemer_arch::TensorShardParam;
use bessemer_mesh::Axis;
use bessemer_tensor::View;

impl Chunk {
    /// Number in this chunk of the parameter that a tensor belongs to.
    pub(super) fn param_of(&self, tensor: &StateTensor) -> Option<usize> {
        self.units.number(tensor.param()?)
    }

    /// Returns the location of a tensor of this chunk on the ranks of the chunk.
    pub(super) fn reading(
        &self,
        plan: &Plan,
        coord: Coord,
        tensor: &StateTensor,
    ) -> Result<Reading, ParallelError> {
        let group = self.param_of(tensor).map_or(0, |number| self.group_of(number));
        let shards = plan.shards(group);
        let on_shards = |lengths: Vec<usize>| (shards > 1).then(|| Parts::of(lengths));
        let master = format!("{MASTER}{}", tensor.name);
        let trains = plan.groups.list()[group].trainable;
        let of = match &tensor.place {
            Place::Whole { name, owner, .. } => {
                let len = tensor.len();
                let mine = owner.is_none_or(|owner| owner == plan.shard_index(group, coord));
                let view = mine.then(|| self.state_view(name, len)).transpose()?;
                let owned = |owner: usize| (0..shards).map(move |r| if r == owner { len } else { 0 });
                let parts = owner.and_then(|owner| on_shards(owned(owner).collect()));
                return Ok(Reading { param: None, len, group, parts, view });
            }
            Place::Param(_) if self.types.has_masters() && trains => Of::State(&master),
            Place::Param(_) => Of::Value,
            Place::Gradient(_) => Of::Gradient,
            Place::Moment(_, name) => Of::State(name),
        };
        let number = self.param_of(tensor).ok_or_else(|| not_here(&tensor.name))?;
        self.reading_of(plan, coord, number, &of)
    }

    /// Returns the location of a parameter, or of a tensor of its shape, on the ranks of the chunk.
    pub(super) fn reading_of(
        &self,
        plan: &Plan,
        coord: Coord,
        number: usize,
        of: &Of<'_>,
    ) -> Result<Reading, ParallelError> {
        let len = self.tensor_shard[number].len();
        let param = Some(number).filter(|_| self.tensor_shard[number].sharding.is_sharded());
        let group = self.group_of(number);
        if matches!(of, Of::Value) && plan.keeps_values_of(group) {
            let view = Some(self.memory.params[number].value.into());
            return Ok(Reading { param, len, group, parts: None, view });
        }
        let place = self.units.place(number);
        let lengths = (0..plan.shards(group)).map(|r| self.run(place, r).len);
        let parts = (plan.shards(group) > 1).then(|| Parts::of(lengths));
        Ok(Reading { param, len, group, parts, view: self.own_view(plan, coord, place, of)? })
    }

    /// Whole tensors of this chunk, one after the other: tensor shards from the ranks of the shard axis, then tensors from those of
    /// the tensor axis.
    pub(super) fn read_tensors(
        &mut self,
        backend: &mut dyn Backend,
        plan: &Plan,
        coord: Coord,
        tensors: &[StateTensor],
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        let readings: Vec<Reading> =
            tensors.iter().map(|t| self.reading(plan, coord, t)).collect::<Result<_, _>>()?;
        let name = tensors.first().map_or("", |t| &t.name);
        let mut tensor_shards = vec![0.0; readings.iter().map(|r| r.len).sum()];
        let mut at = 0;
        for reading in &readings {
            if let (Some(view), None) = (reading.view, &reading.parts) {
                view.read(backend, 0, &mut tensor_shards[at..at + view.len()])?;
            }
            at += reading.len;
        }
        for group in 0..plan.groups.list().len() {
            self.gather_shards(backend, (plan, coord), (name, group), &readings, &mut tensor_shards)?;
        }
        self.assemble(plan, coord, &readings, tensors, &tensor_shards, values)
    }

    /// Gathers the readings of a group of parameters that are cut over its shard ranks.
    fn gather_shards(
        &mut self,
        backend: &mut dyn Backend,
        (plan, coord): (&Plan, Coord),
        (name, group): (&str, usize),
        readings: &[Reading],
        tensor_shards: &mut [f32],
    ) -> Result<(), ParallelError> {
        let mut at = 0;
        let placed = readings.iter().map(|reading| {
            at += reading.len;
            (at - reading.len, reading)
        });
        let cut: Vec<(usize, &Parts, Option<StateView>)> = placed
            .filter(|(_, reading)| reading.group == group)
            .filter_map(|(at, reading)| Some((at, reading.parts.as_ref()?, reading.view)))
            .collect();
        let of_shard = |rank: usize| cut.iter().map(|(_, parts, _)| parts.range(rank).len()).sum();
        let on_shards = Parts::of((0..plan.shards(group)).map(of_shard));
        if on_shards.is_empty() {
            return Ok(());
        }
        let mut gathered = vec![0.0; on_shards.len()];
        let mut mine = on_shards.range(plan.shard_index(group, coord)).start;
        for view in cut.iter().filter_map(|(.., view)| *view) {
            view.read(backend, 0, &mut gathered[mine..mine + view.len()])?;
            mine += view.len();
        }
        self.exchange.group(group).shard.host()?.all_gather(name, &mut gathered, &on_shards)?;
        for rank in 0..plan.shards(group) {
            let mut from = on_shards.range(rank).start;
            for (at, parts, _) in &cut {
                let here = parts.range(rank);
                tensor_shards[at + here.start..at + here.end]
                    .copy_from_slice(&gathered[from..from + here.len()]);
                from += here.len();
            }
        }
        Ok(())
    }

    /// Group of a parameter of the chunk.
    pub(super) fn group_of(&self, number: usize) -> usize {
        self.units.list[self.units.place(number).unit].group
    }

    /// Whole tensors from the tensor shards of the ranks that share experts and then layers. What every rank of them has is taken from this
    /// one's.
    fn assemble(
        &mut self,
        plan: &Plan,
        coord: Coord,
        readings: &[Reading],
        tensors: &[StateTensor],
        tensor_shards: &[f32],
        values: &mut [f32],
    ) -> Result<(), ParallelError> {
        let name = tensors.first().map_or("", |t| &t.name);
        let of_experts: Vec<f32> = self.all_experts(plan, coord, name, readings, tensor_shards)?;
        // The parts that all ranks together hold of what this rank and those with other experts hold.
        let parts_on = |param: usize, rank: usize| -> Vec<TensorShardParam> {
            let on = self.tensor_shard[param].on_layer_rank(rank);
            let ranks = if on.stacks_experts() { plan.mesh.degree(Axis::Expert) } else { 1 };
            match ranks {
                1 => vec![on],
                _ => (0..ranks).map(|at| on.along(Axis::Expert, at)).collect(),
            }
        };
        let len_on = |param, rank| parts_on(param, rank).iter().map(TensorShardParam::len).sum::<usize>();
        let whole_here = |reading: &Reading| {
            reading.param.filter(|param| plan.tensor() > 1 || self.tensor_shard[*param].stacks_experts())
        };
        let sharded: Vec<usize> = readings.iter().filter_map(whole_here).collect();
        let of_rank = |rank: usize| sharded.iter().map(|param| len_on(*param, rank)).sum();
        let parts = Parts::of((0..plan.tensor()).map(of_rank));
        let mut gathered = vec![0.0; parts.len()];
        let (mut from, mut mine, mut to) = (0, parts.range(coord.tensor).start, 0);
        for (reading, tensor) in readings.iter().zip(tensors) {
            let len = reading.param.map_or(reading.len, |param| len_on(param, coord.tensor));
            let part = &of_experts[from..from + len];
            if whole_here(reading).is_some() {
                gathered[mine..mine + len].copy_from_slice(part);
                mine += len;
            } else {
                values[to..to + tensor.len()].copy_from_slice(part);
            }
            from += len;
            to += tensor.len();
        }
        if gathered.is_empty() {
            return Ok(());
        }
        let placed: Vec<(Vec<Vec<TensorShardParam>>, usize)> = {
            let mut to = 0;
            let mut list = Vec::new();
            for (reading, tensor) in readings.iter().zip(tensors) {
                if let Some(param) = whole_here(reading) {
                    list.push(((0..plan.tensor()).map(|rank| parts_on(param, rank)).collect(), to));
                }
                to += tensor.len();
            }
            list
        };
        if plan.tensor() > 1 {
            self.tensor.idle()?.all_gather(name, &mut gathered, &parts)?;
        }
        for rank in 0..plan.tensor() {
            let mut from = parts.range(rank).start;
            for (by_rank, to) in &placed {
                for shard in &by_rank[rank] {
                    let part = &gathered[from..from + shard.len()];
                    for run in shard.runs() {
                        let whole = run.wholes();
                        values[to + whole.start..to + whole.end].copy_from_slice(&part[run.locals()]);
                    }
                    from += shard.len();
                }
            }
        }
        Ok(())
    }

    /// The readings one after the other, where those of experts are followed by those of the ranks that have other experts.
    fn all_experts(
        &mut self,
        plan: &Plan,
        coord: Coord,
        name: &str,
        readings: &[Reading],
        tensor_shards: &[f32],
    ) -> Result<Vec<f32>, ParallelError> {
        let stacks =
            |reading: &Reading| reading.param.is_some_and(|param| self.tensor_shard[param].stacks_experts());
        let here: usize = readings.iter().filter(|reading| stacks(reading)).map(|reading| reading.len).sum();
        if here == 0 {
            return Ok(tensor_shards.to_vec());
        }
        // Every rank has equally many experts.
        let ranks = plan.mesh.degree(Axis::Expert);
        let parts = Parts::of(vec![here; ranks]);
        let mut gathered = vec![0.0; parts.len()];
        let stacked: Vec<bool> = readings.iter().map(stacks).collect();
        let (mut from, mut mine) = (0, coord.expert * here);
        for (reading, stacked) in readings.iter().zip(&stacked) {
            if *stacked {
                gathered[mine..mine + reading.len].copy_from_slice(&tensor_shards[from..from + reading.len]);
                mine += reading.len;
            }
            from += reading.len;
        }
        if let Some(mut experts) = self.tensor.expert_ranks()? {
            experts.all_gather(name, &mut gathered, &parts)?;
        }
        let (mut all, mut from, mut at) = (Vec::with_capacity(tensor_shards.len() + gathered.len()), 0, 0);
        for (reading, stacked) in readings.iter().zip(&stacked) {
            if *stacked {
                for rank in 0..ranks {
                    let start = rank * here + at;
                    all.extend_from_slice(&gathered[start..start + reading.len]);
                }
                at += reading.len;
            } else {
                all.extend_from_slice(&tensor_shards[from..from + reading.len]);
            }
            from += reading.len;
        }
        Ok(all)
    }

    /// Elements of a parameter that shard rank `rank` keeps: `whole` counts elements of this tensor rank's tensor shard of it.
    pub(super) fn run(&self, place: UnitPlace, rank: usize) -> ElementRun {
        self.units.list[place.unit].run(place.at, rank)
    }

    /// This rank's stretch of a parameter's value or state, if it has one.
    fn own_view(
        &self,
        plan: &Plan,
        coord: Coord,
        place: UnitPlace,
        of: &Of<'_>,
    ) -> Result<Option<StateView>, ParallelError> {
        let here = self.run(place, plan.shard_index(self.units.list[place.unit].group, coord));
        if here.len == 0 {
            return Ok(None);
        }
        let cut = |stretch: View| Ok(Some(stretch.columns(here.local, here.len).into()));
        let name = match of {
            Of::Value => return cut(self.memory.values[place.unit].own),
            Of::Gradient => {
                let gradients = self.memory.gradients[place.unit].as_ref();
                return gradients.map_or(Ok(None), |gradients| cut(gradients.own));
            }
            Of::State(name) => *name,
        };
        Ok(Some(self.state_view(name, here.len)?))
    }

    /// The optimizer's state of this name and length on this rank.
    pub(super) fn state_view(&self, name: &str, len: usize) -> Result<StateView, ParallelError> {
        let view = self.states.get(name).copied();
        view.filter(|v| v.len() == len).ok_or_else(|| no_state(name, len))
    }

    /// Overwrites this shard rank's part of the elements `first .. first + values.len()` of its tensor rank's shard of a parameter.
    pub(super) fn write_tensor_shard(
        &self,
        backend: &mut dyn Backend,
        (plan, coord): (&Plan, Coord),
        param: usize,
        of: &Of<'_>,
        first: usize,
        values: &[f32],
    ) -> Result<(), ParallelError> {
        let group = self.group_of(param);
        if matches!(of, Of::Value) && self.types.has_masters() && plan.groups.list()[group].trainable {
            let master = format!("{MASTER}{}", self.tensor_shard[param].name());
            self.write_tensor_shard(backend, (plan, coord), param, &Of::State(&master), first, values)?;
        }
        if matches!(of, Of::Value) && plan.keeps_values_of(group) {
            return Ok(StateView::from(self.memory.params[param].value).write(backend, first, values)?);
        }
        let place = self.units.place(param);
        if let Some(view) = self.own_view(plan, coord, place, of)? {
            let kept = self.run(place, plan.shard_index(group, coord)).wholes();
            let here = kept.start.max(first)..kept.end.min(first + values.len());
            if !here.is_empty() {
                view.write(backend, here.start - kept.start, &values[here.start - first..here.end - first])?;
            }
        }
        Ok(())
    }
}

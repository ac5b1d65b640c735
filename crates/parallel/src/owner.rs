//! Owners of whole matrices among the shard ranks.
//!
//! Muon, Adafactor and K-FAC make an update from a whole matrix, so a shard over the shard axis must not begin or end within
//! one. Each matrix has one owner: only the owner has its state, receives its reduced gradient, and sends its new value. That is a
//! property of the layout alone: within a unit the matrices of one owner are contiguous and a rank's part
//! ends where its matrices end, so that collectives and stages are those of parts of any other length.
//!
//! Owners are chosen by cost over the whole model, the most expensive matrix first, each to the rank that has least to do
//! (Graham 1969, longest processing time: at most 4/3 of the best division), so no rank's work exceeds another's by more
//! than one matrix. Parameters that may be cut anywhere are still cut evenly where a unit has nothing else; in a unit with matrices
//! they (norms, biases) are owned too.
//!
//! Moments in 8 bits have a scale for each block of consecutive elements of a parameter. There parts end between blocks, so
//! a rank's part has the same codes whatever the number of ranks.
//!
//! With P elements of which rank r owns `P_r`, a reduce-scatter over the ring sends `P - P_r`, an all-gather
//! `P - P_next` ([`bessemer_mesh::formulas::ZeroStage::volume_of_parts`]); a rank's optimizer state is that of the
//! `P_r` elements of whole matrices. With equal parts both are the usual (N-1)/N and 1/N.

use crate::flat::{FlatUnit, GroupShards, Units};
use crate::worker::Job;
use bessemer_arch::{Model, TensorShard};
use bessemer_mesh::even;
use bessemer_optim::{OptimConfig, OptimParam, OptimizerChoice};
use bessemer_runtime::Param;
use bessemer_tensor::Buffer;
use bessemer_units::DType;
use std::ops::Range;

/// Parameters that must be whole on one shard rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owners {
    /// Indexed by parameter: the shard rank that owns it, or nothing if it may be cut.
    of: Vec<Option<usize>>,
    /// Elements of a parameter, counted from its first one, between which it is not cut.
    indivisible: usize,
}

impl Owners {
    /// Assigns the parameters of `model` to the shard ranks of their groups. The whole model counts, so tensor-parallel ranks
    /// agree about their parts.
    pub(crate) fn new(model: &Model, optim: &OptimConfig, groups: &GroupShards<'_>) -> Owners {
        let specs = model.params();
        let mut owners = Owners { indivisible: optim.indivisible(), ..Owners::none(specs.len()) };
        for (group, ranks) in groups.shards.iter().enumerate().filter(|(_, ranks)| **ranks > 1) {
            if groups.groups.list()[group].trainable {
                owners.assign(model, optim, groups, (group, *ranks));
            }
        }
        owners
    }

    /// Assigns the parameters of one group.
    fn assign(
        &mut self,
        model: &Model,
        optim: &OptimConfig,
        groups: &GroupShards<'_>,
        (group, ranks): (usize, usize),
    ) {
        let specs = model.params();
        let cost = |spec: &bessemer_arch::ParamSpec| {
            let (rows, cols) = spec.matrix();
            // Costs depend on shapes alone.
            let view = Buffer { id: 0, len: rows * cols, dtype: DType::F32 }.matrix(rows, cols);
            optim.update_cost(&OptimParam::of(model, spec, view, view))
        };
        let costs: Vec<_> = specs.iter().map(cost).collect();
        let units = Units::new(&specs, false, &Owners::none(specs.len()), groups).list;
        let mut owned: Vec<usize> = Vec::new();
        for unit in units.iter().filter(|unit| unit.group == group) {
            if unit.params.iter().any(|(i, _)| costs[*i].whole) {
                owned.extend(unit.params.iter().map(|p| p.0));
            }
        }
        // The sort is stable: parameters of equal cost stay in the order of the model.
        owned.sort_by(|a, b| costs[*b].flops.total_cmp(&costs[*a].flops));
        let mut load = vec![(0.0f64, 0usize); ranks];
        for index in owned {
            let least = (0..ranks).min_by(|a, b| {
                let by_cost = load[*a].0.total_cmp(&load[*b].0);
                by_cost.then(load[*a].1.cmp(&load[*b].1))
            });
            let rank = least.unwrap_or(0);
            self.of[index] = Some(rank);
            load[rank].0 += costs[index].flops;
            load[rank].1 += specs[index].len();
        }
    }

    /// Parameters without owners, `count` of them.
    pub(crate) fn none(params: usize) -> Owners {
        Owners { of: vec![None; params], indivisible: 1 }
    }

    /// The owners of some of the parameters, which are numbered anew.
    pub(crate) fn of_params(&self, numbers: &[usize]) -> Owners {
        Owners { of: numbers.iter().map(|&number| self.of[number]).collect(), ..*self }
    }

    /// The owner of a parameter, if it has one.
    pub(crate) fn of(&self, param: usize) -> Option<usize> {
        self.of[param]
    }

    /// A unit of parameters (number, elements) of a group, over its shard ranks: the parameters of an owner are contiguous, in the
    /// order of the ranks, and are that rank's part. A unit without owners has even parts, except where a parameter must not be cut.
    pub(crate) fn unit(
        &self,
        name: String,
        layer: Option<usize>,
        (group, ranks): (usize, usize),
        params: &[(usize, usize)],
    ) -> FlatUnit {
        if params.iter().all(|(number, _)| self.of[*number].is_none()) {
            let lengths = (self.indivisible > 1).then(|| self.nearly_even(params, ranks));
            return FlatUnit::new(name, layer, (group, ranks), params, lengths);
        }
        let owner = |number: usize| self.of[number].unwrap_or(0);
        let mut params = params.to_vec();
        params.sort_by_key(|(number, _)| owner(*number));
        let mut lengths = vec![0; ranks];
        params.iter().for_each(|(number, len)| lengths[owner(*number)] += len);
        FlatUnit::new(name, layer, (group, ranks), &params, Some(lengths))
    }

    /// Elements of each rank's part of a unit: even parts, whose ends within a parameter move to the nearest multiple of
    /// `indivisible` elements of it.
    fn nearly_even(&self, params: &[(usize, usize)], ranks: usize) -> Vec<usize> {
        let all: usize = params.iter().map(|(_, len)| len).sum();
        let end = |rank: usize| {
            let (even, mut start) = (even(all, ranks, rank).end(), 0);
            for (_, len) in params {
                if even < start + len {
                    let blocks = (even - start + self.indivisible / 2) / self.indivisible;
                    return start + (blocks * self.indivisible).min(*len);
                }
                start += len;
            }
            all
        };
        let mut last = 0;
        let length = |rank| {
            let len = end(rank) - last;
            last += len;
            len
        };
        (0..ranks).map(length).collect()
    }
}

/// A stretch of a parameter (its number, the elements) as the optimizer sees it.
type Seen = (usize, Range<usize>, OptimParam);

/// Adds the properties that an optimizer of whole matrices needs besides the stretches that this rank steps: the matrix, cut over the
/// tensor axis, that a parameter is a part of, and, for curvature, the matrices of other owners. `numbers`: of the parameters in the
/// whole model.
pub(crate) fn with_others(
    mut list: Vec<Seen>,
    job: &Job<'_>,
    tensor_shard: &TensorShard,
    params: &[Param],
    numbers: &[usize],
) -> Vec<Seen> {
    if job.optim.optimizer == OptimizerChoice::Kfac {
        for (index, param) in params.iter().enumerate() {
            let here = OptimParam::of(
                tensor_shard.model_of(param.spec.id),
                &param.spec,
                param.value,
                param.grad.unwrap_or(param.value),
            );
            if !here.blocks.is_empty() && !list.iter().any(|l| l.0 == index) {
                list.push((index, 0..0, OptimParam { elsewhere: true, ..here }));
            }
        }
        list.sort_by_key(|l| l.0);
    }
    if job.plan.tensor() > 1 {
        let shardings = &tensor_shard.shardings;
        list = (list.into_iter())
            .map(|(index, range, param)| {
                let sharding = &shardings[numbers[index]];
                let cut = sharding.dim().is_some() && job.optim.update_cost(&param).whole;
                let param = if cut { param.part_of(job.model, &sharding.spec) } else { param };
                (index, range, param)
            })
            .collect();
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param_groups::ParamGroups;
    use bessemer_collectives::Parts;
    use bessemer_optim::StateChoice;

    fn optim(optimizer: OptimizerChoice) -> OptimConfig {
        OptimConfig { optimizer, ..OptimConfig::default() }
    }

    #[test]
    fn element_wise_optimizers_own_nothing_and_their_parts_are_even() {
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let groups = GroupShards { groups: &ParamGroups::default(), shards: &[8] };
        let owners = Owners::new(&model, &optim(OptimizerChoice::AdamW), &groups);
        assert!(owners.of.iter().all(Option::is_none));
        let specs = model.params();
        let units = Units::new(&specs, false, &owners, &groups).list;
        assert_eq!(units, Units::new(&specs, false, &Owners::none(specs.len()), &groups).list);
        assert!(units.iter().all(|u| u.parts() == Parts::even(u.len(), 8)));
    }

    /// Moments in 8 bits: no block is split over two ranks, and a part differs from an even one by at most a block at either end.
    #[test]
    fn blocks_are_never_cut_and_parts_are_nearly_even() {
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let specs = model.params();
        let config = OptimConfig { state: StateChoice::Int8, ..OptimConfig::default() };
        for ranks in [1, 2, 3, 7, 64] {
            let groups = GroupShards { groups: &ParamGroups::default(), shards: &[ranks] };
            let owners = Owners::new(&model, &config, &groups);
            for unit in Units::new(&specs, false, &owners, &groups).list {
                let (parts, even) = (unit.parts(), Parts::even(unit.len(), ranks));
                assert_eq!(parts.len(), unit.len());
                for rank in 0..ranks {
                    let (end, wanted) = (parts.range(rank).end, even.range(rank).end);
                    assert!(end.abs_diff(wanted) <= 128, "{ranks}: {end}, evenly {wanted}");
                    let within = unit.params.iter().find(|(_, range)| range.start < end && end < range.end);
                    assert!(within.is_none_or(|(_, range)| (end - range.start).is_multiple_of(256)));
                }
            }
        }
    }

    #[test]
    fn matrices_are_never_cut_and_the_work_is_even() {
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let specs = model.params();
        for choice in [OptimizerChoice::Muon, OptimizerChoice::Kfac, OptimizerChoice::Adafactor] {
            for ranks in [2, 3, 8] {
                let groups = GroupShards { groups: &ParamGroups::default(), shards: &[ranks] };
                let owners = Owners::new(&model, &optim(choice), &groups);
                let units = Units::new(&specs, false, &owners, &groups).list;
                let mut elements = vec![0; ranks];
                for unit in &units {
                    let parts = unit.parts();
                    assert_eq!(parts.len(), unit.len());
                    let mut next = 0;
                    for (index, range) in &unit.params {
                        assert_eq!((range.start, range.len()), (next, specs[*index].len()));
                        next = range.end;
                        if let Some(owner) = owners.of(*index) {
                            let part = parts.range(owner);
                            assert!(part.start <= range.start && range.end <= part.end);
                        }
                    }
                    assert_eq!(next, unit.len());
                    (0..ranks).for_each(|r| elements[r] += parts.range(r).len());
                }
                let most = elements.iter().max().copied().unwrap_or(0) as f64;
                let mean = model.parameters() as f64 / ranks as f64;
                // Adafactor owns the token table, which is three tenths of this model; hidden matrices are small.
                let bound = if choice == OptimizerChoice::Adafactor { 2.6 } else { 1.25 };
                assert!(most < bound * mean, "{choice:?} {ranks}: {elements:?}");
            }
        }
    }
}

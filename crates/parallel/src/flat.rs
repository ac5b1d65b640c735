//! Flat units: the parameters of a layer, or of embedding and head, as one value with one dim, sharded over the shard axis.
//!
//! Tensors that are gathered and reduced together are contiguous: the parameters of a layer one after the other, and those of
//! embedding, last normalisation and head. Parameters are views of their unit. A rank's part of a unit is the one that
//! [`bessemer_mesh::Layout`] assigns of the unit's one dim: even, or according to the owners ([`crate::owner`]), and always without
//! gaps. So a part may begin and end within a parameter, which does not count as sharded for that.

use crate::owner::Owners;
use crate::param_groups::ParamGroups;
use bessemer_arch::{ParamId, ParamSpec, Unit};
use bessemer_collectives::Parts;
use bessemer_mesh::{Axis, Dim, ElementRun, Form, Layout, Mesh, Placement};
use std::ops::Range;

/// Layout of every unit's values and gradients where ranks keep their parts of them.
fn layout() -> Layout {
    Layout::replicated().with(Axis::Shard, Placement::Shard { dim: 0 })
}

/// One unit's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlatUnit {
    /// "root", "layers.3": for messages and the flight recorder.
    pub(crate) name: String,
    /// The layer, or none for embedding, last normalisation and head.
    pub(crate) layer: Option<usize>,
    /// Number of the group of its parameters.
    pub(crate) group: usize,
    /// Ranks over which the group is sharded.
    pub(crate) ranks: usize,
    /// (number in the list of parameters, elements of the unit).
    pub(crate) params: Vec<(usize, Range<usize>)>,
    /// Its one dim.
    form: Form,
}

impl FlatUnit {
    /// A unit of these parameters (number, elements), one after the other, of a group that is sharded over `ranks` ranks;
    /// `lengths`: elements of each rank's part, or nothing if parts are even.
    pub(crate) fn new(
        name: String,
        layer: Option<usize>,
        (group, ranks): (usize, usize),
        params: &[(usize, usize)],
        lengths: Option<Vec<usize>>,
    ) -> FlatUnit {
        let mut end = 0;
        let place = |&(number, len): &(usize, usize)| {
            end += len;
            (number, end - len..end)
        };
        let placed = params.iter().map(place).collect();
        let dim = match lengths {
            None => Dim::plain(end),
            Some(lengths) => Dim::owned_lengths(Axis::Shard, lengths),
        };
        FlatUnit { name, layer, group, ranks, params: placed, form: Form { dims: vec![dim] } }
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.form.dims[0].len()
    }

    /// Elements that each shard rank keeps.
    pub(crate) fn parts(&self) -> Parts {
        let mesh = Mesh::along(Axis::Shard, self.ranks);
        Parts::of((0..self.ranks).map(|rank| layout().shape(&self.form, &mesh, &mesh.coord(rank))[0]))
    }

    /// Elements that shard rank `rank` keeps of the unit's parameter number `at`: `whole` counts elements of the parameter,
    /// `local` those of the rank's part of the unit. An empty run where it keeps nothing.
    pub(crate) fn run(&self, at: usize, rank: usize) -> ElementRun {
        let mesh = Mesh::along(Axis::Shard, self.ranks);
        let range = &self.params[at].1;
        let runs = layout().runs(&self.form, &mesh, &mesh.coord(rank));
        let here = runs.first().and_then(|run| run.of_whole(range));
        let none = ElementRun { whole: range.start, local: 0, len: 0 };
        let run = here.unwrap_or(none);
        ElementRun { whole: run.whole - range.start, ..run }
    }
}

/// A parameter's place among the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnitPlace {
    /// Number of the unit.
    pub(crate) unit: usize,
    /// Number of the parameter in it.
    pub(crate) at: usize,
}

/// The groups of a model's parameters, and over how many ranks each is sharded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupShards<'a> {
    pub(crate) groups: &'a ParamGroups,
    /// Indexed by group.
    pub(crate) shards: &'a [usize],
}

/// A stage's units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Units {
    /// The units, in the order in which they are kept.
    pub(crate) list: Vec<FlatUnit>,
    /// A token table that two stages hold: a unit of its own, so that the same ranks of both have the same part of it.
    pub(crate) table: Option<usize>,
    /// Indexed by parameter.
    places: Vec<UnitPlace>,
    /// Identity and number of each parameter, ascending.
    numbers: Vec<(ParamId, usize)>,
}

impl Units {
    /// The units of a stage's parameters: those of embedding and head, the layers in order, and the token table if it
    /// is stored `apart`; each of one group of parameters. `owners`: of the parameters, over the shard ranks of their groups.
    pub(crate) fn new(specs: &[ParamSpec], apart: bool, owners: &Owners, groups: &GroupShards<'_>) -> Units {
        let of_table = |spec: &ParamSpec| apart && spec.id == ParamId::TOKEN_TABLE;
        let layers: Vec<usize> = specs.iter().filter_map(|s| s.id.unit().layer()).collect();
        let first = layers.iter().min().copied().unwrap_or(0);
        let end = layers.iter().max().map_or(first, |last| last + 1);
        let mut members: Vec<Vec<(usize, usize)>> = vec![Vec::new(); end - first + 2];
        let (of_root, of_apart) = (0, end - first + 1);
        for (number, spec) in specs.iter().enumerate() {
            let unit = match spec.id.unit() {
                Unit::Layer(layer) => 1 + layer - first,
                Unit::Embedding | Unit::Head if of_table(spec) => of_apart,
                Unit::Embedding | Unit::Head => of_root,
            };
            members[unit].push((number, spec.len()));
        }
        let names = (0..members.len()).map(|unit| match unit {
            _ if unit == of_root => ("root".to_owned(), None),
            _ if unit == of_apart => (TABLE.to_owned(), None),
            _ => (format!("layers.{}", first + unit - 1), Some(first + unit - 1)),
        });
        let mut list: Vec<FlatUnit> = Vec::with_capacity(members.len());
        let mut table = None;
        for (unit, ((name, layer), params)) in names.zip(&members).enumerate() {
            for (group, shards) in groups.shards.iter().enumerate() {
                let of = |(number, _): &&(usize, usize)| groups.groups.of(specs[*number].id) == group;
                let params: Vec<(usize, usize)> = params.iter().filter(of).copied().collect();
                if params.is_empty() {
                    continue;
                }
                let name = match group {
                    0 => name.clone(),
                    _ => format!("{name}.{}", groups.groups.list()[group].name),
                };
                if unit == of_apart {
                    table = Some(list.len());
                }
                list.push(owners.unit(name, layer, (group, *shards), &params));
            }
        }
        let mut places = vec![UnitPlace { unit: 0, at: 0 }; specs.len()];
        for (unit, members) in list.iter().enumerate() {
            for (at, (number, _)) in members.params.iter().enumerate() {
                places[*number] = UnitPlace { unit, at };
            }
        }
        let mut numbers: Vec<_> = specs.iter().enumerate().map(|(number, spec)| (spec.id, number)).collect();
        numbers.sort_unstable();
        Units { list, table, places, numbers }
    }

    /// Place of a parameter among the units.
    pub(crate) fn place(&self, param: usize) -> UnitPlace {
        self.places[param]
    }

    /// Number of a parameter, if it is here.
    pub(crate) fn number(&self, id: ParamId) -> Option<usize> {
        let at = self.numbers.binary_search_by_key(&id, |n| n.0).ok()?;
        Some(self.numbers[at].1)
    }
}

/// The token table's name in messages.
pub(crate) const TABLE: &str = "embed.tokens";

/// Intersection of two ranges; empty if they are disjoint.
pub(crate) fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_in_one_unit_without_gaps() {
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let specs = model.params();
        let groups = ParamGroups::default();
        let units = Units::new(
            &specs,
            false,
            &Owners::none(specs.len()),
            &GroupShards { groups: &groups, shards: &[3] },
        );
        assert_eq!((units.list[0].layer, units.list[1].layer, units.table), (None, Some(0), None));
        let units = units.list;
        assert_eq!(units.len(), 1 + model.layers);
        let mut seen = vec![false; specs.len()];
        for unit in &units {
            let mut next = 0;
            for (index, range) in &unit.params {
                assert_eq!((range.start, range.len()), (next, specs[*index].len()));
                assert!(!std::mem::replace(&mut seen[*index], true));
                next = range.end;
            }
            assert_eq!(next, unit.len());
            // The ranks' parts of each parameter, one after the other, are the parameter.
            let parts = unit.parts();
            for (at, (_, range)) in unit.params.iter().enumerate() {
                let mut next = 0;
                for rank in 0..3 {
                    let run = unit.run(at, rank);
                    assert!(
                        run.len == 0
                            || (run.whole, range.start + run.whole)
                                == (next, parts.range(rank).start + run.local)
                    );
                    next += run.len;
                }
                assert_eq!(next, range.len());
            }
        }
        assert!(seen.iter().all(|&s| s));
        let names: Vec<_> = units[0].params.iter().map(|p| specs[p.0].name.as_str()).collect();
        assert_eq!(names, ["embed.tokens", "embed.positions", "final_norm.weight", "final_norm.bias"]);
    }

    #[test]
    fn a_stage_has_its_own_units_and_a_shared_table_apart() {
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let spans = model.split_layers(&[1, 5, 6]).expect("twelve layers");
        let names = |i: usize| {
            let specs = spans[i].params(&model);
            let groups = GroupShards { groups: &ParamGroups::default(), shards: &[2] };
            let units = Units::new(&specs, true, &Owners::none(specs.len()), &groups);
            let names: Vec<String> = units.list.iter().map(|u| u.name.clone()).collect();
            (names, units.table)
        };
        assert_eq!(names(0), (vec!["root".into(), "layers.0".into(), TABLE.into()], Some(2)));
        let (middle, table) = names(1);
        assert_eq!((middle.len(), middle[0].as_str(), table), (5, "layers.1", None));
        let (last, table) = names(2);
        assert_eq!((last.len(), last[0].as_str(), last[1].as_str(), table), (8, "root", "layers.6", Some(7)));
        let specs = spans[2].params(&model);
        let groups = GroupShards { groups: &ParamGroups::default(), shards: &[1] };
        let units = Units::new(&specs, true, &Owners::none(specs.len()), &groups);
        for (number, spec) in specs.iter().enumerate() {
            assert_eq!(units.number(spec.id), Some(number));
            let UnitPlace { unit, at } = units.place(number);
            assert_eq!(units.list[unit].params[at].0, number);
        }
        assert_eq!((units.list[1].layer, units.list[6].layer), (Some(6), Some(11)));
    }

    #[test]
    fn stretches_that_do_not_meet_have_nothing_in_common() {
        assert_eq!(common(&(3..7), &(5..9)), 5..7);
        assert!(common(&(3..5), &(5..9)).is_empty());
        assert!(common(&(7..9), &(0..2)).is_empty());
    }
}

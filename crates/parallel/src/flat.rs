//! Units of parameters, each one stretch of memory.
//!
//! What is gathered and reduced together lies together: the parameters of a layer one after the other, and those of
//! embedding, last normalisation and head. A rank's part of a unit is a contiguous stretch of it, so it may begin and end
//! within a parameter.

use bessemer_arch::{ParamId, ParamSpec};
use std::ops::Range;

/// One unit's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlatUnit {
    /// "root", "layers.3": for messages and the flight recorder.
    pub(crate) name: String,
    /// The layer, or none for embedding, last normalisation and head.
    pub(crate) layer: Option<usize>,
    /// (number in the list of parameters, elements of the unit).
    pub(crate) params: Vec<(usize, Range<usize>)>,
    /// Elements.
    pub(crate) len: usize,
}

/// A stage's units, and which is which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Units {
    /// In the order in which they are kept.
    pub(crate) list: Vec<FlatUnit>,
    /// The one of embedding, last normalisation and head, if any of those are here.
    pub(crate) root: Option<usize>,
    /// A token table that two stages hold: a unit of its own, so that the same ranks of both have the same part of it.
    pub(crate) table: Option<usize>,
    /// First layer that is here, and its unit.
    layers: (usize, usize),
}

impl Units {
    /// The units of a stage's parameters: that of embedding and head, the layers in order, and the token table if it
    /// lies `apart`.
    pub(crate) fn new(specs: &[ParamSpec], apart: bool) -> Units {
        let empty = |name: String, layer| FlatUnit { name, layer, params: Vec::new(), len: 0 };
        let of_table = |spec: &ParamSpec| apart && spec.id == ParamId::TOKEN_TABLE;
        let of_root = |spec: &ParamSpec| spec.id.unit().layer().is_none() && !of_table(spec);
        let layers: Vec<usize> = specs.iter().filter_map(|s| s.id.unit().layer()).collect();
        let first = layers.iter().min().copied().unwrap_or(0);
        let end = layers.iter().max().map_or(first, |last| last + 1);
        let mut list = Vec::new();
        let root = specs.iter().any(of_root).then(|| {
            list.push(empty("root".into(), None));
            0
        });
        let start = list.len();
        list.extend((first..end).map(|i| empty(format!("layers.{i}"), Some(i))));
        let table = specs.iter().any(of_table).then(|| {
            list.push(empty(TABLE.into(), None));
            list.len() - 1
        });
        let mut units = Units { list, root, table, layers: (first, start) };
        for (index, spec) in specs.iter().enumerate() {
            let at = match spec.id.unit().layer() {
                Some(layer) => units.layer(layer),
                None if of_table(spec) => table.expect("made for it"),
                None => root.expect("made for it"),
            };
            let unit = &mut units.list[at];
            let end = unit.len + spec.len();
            unit.params.push((index, unit.len..end));
            unit.len = end;
        }
        units
    }

    /// The unit of a layer that is here, by its number in the model.
    pub(crate) fn layer(&self, layer: usize) -> usize {
        self.layers.1 + layer - self.layers.0
    }
}

/// The token table's name in messages.
pub(crate) const TABLE: &str = "embed.tokens";

/// What two stretches have in common; empty if nothing.
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
        let units = Units::new(&specs, false);
        assert_eq!((units.root, units.layer(0), units.table), (Some(0), 1, None));
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
            assert_eq!(next, unit.len);
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
            let units = Units::new(&spans[i].params(&model), true);
            let names: Vec<String> = units.list.iter().map(|u| u.name.clone()).collect();
            (names, units.root, units.table)
        };
        let (first, root, table) = names(0);
        assert_eq!(
            (first, root, table),
            (vec!["root".into(), "layers.0".into(), TABLE.into()], Some(0), Some(2))
        );
        let (middle, root, table) = names(1);
        assert_eq!((middle.len(), middle[0].as_str(), root, table), (5, "layers.1", None, None));
        let (last, root, table) = names(2);
        assert_eq!((last.len(), last[1].as_str(), root, table), (8, "layers.6", Some(0), Some(7)));
        let units = Units::new(&spans[2].params(&model), true);
        assert_eq!((units.layer(6), units.layer(11)), (1, 6));
    }

    #[test]
    fn stretches_that_do_not_meet_have_nothing_in_common() {
        assert_eq!(common(&(3..7), &(5..9)), 5..7);
        assert!(common(&(3..5), &(5..9)).is_empty());
        assert!(common(&(7..9), &(0..2)).is_empty());
    }
}

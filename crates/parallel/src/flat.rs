//! Units of parameters, each one stretch of memory.
//!
//! What is gathered and reduced together lies together: the parameters of a layer one after the other, and those of
//! embedding, last normalisation and head. A rank's part of a unit is a contiguous stretch of it, so it may begin and end
//! within a parameter.

use bessemer_arch::ParamSpec;
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

/// The layer that a parameter belongs to.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("layers.")?.split('.').next()?.parse().ok()
}

/// The units of a list of parameters: first that of embedding and head, then the layers in order.
pub(crate) fn units(specs: &[ParamSpec]) -> Vec<FlatUnit> {
    let layers = specs.iter().filter_map(|s| layer_of(&s.name)).max().map_or(0, |last| last + 1);
    let empty = |name: String, layer| FlatUnit { name, layer, params: Vec::new(), len: 0 };
    let mut units = vec![empty("root".into(), None)];
    units.extend((0..layers).map(|i| empty(format!("layers.{i}"), Some(i))));
    for (index, spec) in specs.iter().enumerate() {
        let unit = &mut units[layer_of(&spec.name).map_or(0, |layer| layer + 1)];
        let end = unit.len + spec.len();
        unit.params.push((index, unit.len..end));
        unit.len = end;
    }
    units
}

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
        let units = units(&specs);
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
    fn stretches_that_do_not_meet_have_nothing_in_common() {
        assert_eq!(common(&(3..7), &(5..9)), 5..7);
        assert!(common(&(3..5), &(5..9)).is_empty());
        assert!(common(&(7..9), &(0..2)).is_empty());
    }
}

//! Compares the tensors of a checkpoint with those that a model needs.

use std::collections::HashMap;
use std::fmt;

/// A tensor that both sides have, with different shapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// Name.
    pub name: String,
    /// Shape that the model wants.
    pub wanted: Vec<usize>,
    /// Shape in the checkpoint.
    pub found: Vec<usize>,
}

/// Result of holding the tensors of a checkpoint against those of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MatchReport {
    /// In both, same shape; in the model's order.
    pub matched: Vec<String>,
    /// Wanted by the model, absent from the checkpoint.
    pub missing: Vec<String>,
    /// In the checkpoint, unknown to the model.
    pub unexpected: Vec<String>,
    /// In both, with different shapes.
    pub shape_mismatch: Vec<ShapeMismatch>,
}

impl MatchReport {
    /// Holds `found` (a checkpoint) against `wanted` (a model); both give (name, shape).
    pub fn compare<'a>(
        wanted: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        found: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    ) -> MatchReport {
        let mut order = Vec::new();
        let mut left = HashMap::new();
        for (name, shape) in found {
            order.push(name);
            left.insert(name, shape);
        }
        let mut report = MatchReport::default();
        for (name, shape) in wanted {
            match left.remove(name) {
                None => report.missing.push(name.into()),
                Some(f) if f == shape => report.matched.push(name.into()),
                Some(f) => report.shape_mismatch.push(ShapeMismatch {
                    name: name.into(),
                    wanted: shape.into(),
                    found: f.into(),
                }),
            }
        }
        report.unexpected = order.into_iter().filter(|n| left.contains_key(n)).map(str::to_string).collect();
        report
    }

    /// True if both sides have the same tensors with the same shapes.
    pub fn is_exact(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.shape_mismatch.is_empty()
    }
}

impl fmt::Display for MatchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} match", self.matched.len())?;
        for (what, names) in [("missing", &self.missing), ("unexpected", &self.unexpected)] {
            if !names.is_empty() {
                write!(f, "; {} {what}: ", names.len())?;
                few(f, names.iter().map(|n| format!("{n:?}")))?;
            }
        }
        if !self.shape_mismatch.is_empty() {
            write!(f, "; {} of another shape: ", self.shape_mismatch.len())?;
            few(
                f,
                self.shape_mismatch
                    .iter()
                    .map(|m| format!("{:?} wanted {:?}, found {:?}", m.name, m.wanted, m.found)),
            )?;
        }
        Ok(())
    }
}

/// The first eight items, then how many more there are: an error must stay readable for a model of 10,000 tensors.
fn few(f: &mut fmt::Formatter<'_>, items: impl ExactSizeIterator<Item = String>) -> fmt::Result {
    let count = items.len();
    for (i, item) in items.take(8).enumerate() {
        write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
    }
    if count > 8 { write!(f, " and {} more", count - 8) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_difference_is_named() {
        let report = MatchReport::compare(
            [("a", &[1usize, 2][..]), ("b", &[3]), ("c", &[4])],
            [("d", &[9usize][..]), ("a", &[1, 2]), ("b", &[5])],
        );
        assert_eq!(report.matched, ["a"]);
        assert_eq!(report.missing, ["c"]);
        assert_eq!(report.unexpected, ["d"]);
        assert_eq!(report.shape_mismatch[0].found, [5]);
        assert!(!report.is_exact());
        let text = report.to_string();
        for part in ["1 match", "1 missing: \"c\"", "1 unexpected: \"d\"", "\"b\" wanted [3], found [5]"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

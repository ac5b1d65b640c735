//! Layouts of parameters over the tensor axis that a user asks for (annotations, as in GShard: Lepikhin et al. 2020).
//!
//! A parameter is sharded along a loop of the model: hidden units, heads or rows of the vocabulary. All parameters of a
//! layer that have the loop are sharded along it, or none of them: a product along a sharded loop wants both operands
//! sharded alike. So an annotation of one of them holds for all, and two annotations that disagree are refused. The values
//! between operators that have the loop may be annotated in the place of a parameter. What layouts values have follows from the
//! parameters' when programs are partitioned.

use crate::model::Model;
use crate::param_id::{ParamId, Unit};
use crate::roles::ShardedLoop;
use crate::sharding::{GradientSum, Sharding};
use bessemer_mesh::{Axis, Placement};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Layout of a parameter over the tensor axis, as PyTorch's DTensor writes it. Matrices are `[outputs, inputs]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ParamLayout {
    /// Every rank has the whole parameter.
    #[serde(rename = "replicate")]
    Replicate,
    /// Each rank has some rows: outputs of a matrix, as in Megatron-LM's ColumnParallelLinear (torchtitan's
    /// ColwiseParallel), or rows of a table.
    #[serde(rename = "shard(0)")]
    Rows,
    /// Each rank has some columns: inputs of a matrix, as in Megatron-LM's RowParallelLinear (torchtitan's RowwiseParallel).
    #[serde(rename = "shard(1)")]
    Columns,
}

impl ParamLayout {
    fn placement(self) -> Placement {
        match self {
            ParamLayout::Replicate => Placement::Replicate,
            ParamLayout::Rows => Placement::Shard { dim: 0 },
            ParamLayout::Columns => Placement::Shard { dim: 1 },
        }
    }
}

impl fmt::Display for ParamLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParamLayout::Replicate => "replicate",
            ParamLayout::Rows => "shard(0)",
            ParamLayout::Columns => "shard(1)",
        })
    }
}

/// Layouts by names of parameters, in which `*` stands for any characters: `"layers.*.mlp.up.weight"`.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Annotations(pub BTreeMap<String, ParamLayout>);

/// Annotations that no program can follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// A pattern that is the name of no parameter and of no activation.
    #[error(
        "parallel.annotate.\"{pattern}\": the model has no such parameter or activation of a layer; {hint}"
    )]
    Unknown {
        /// The pattern.
        pattern: String,
        /// Names that exist.
        hint: String,
    },
    /// Two annotations of one parameter.
    #[error(
        "parallel.annotate: {name} is {first} over the tensor axis by \"{by_first}\" and {second} by \"{by_second}\"; remove \
         one of the two, or make their patterns narrower"
    )]
    Twice {
        /// The parameter.
        name: String,
        /// A layout.
        first: ParamLayout,
        /// The pattern that asks for it.
        by_first: String,
        /// Another layout.
        second: ParamLayout,
        /// The pattern that asks for it.
        by_second: String,
    },
    /// A dim that no program shards.
    #[error(
        "parallel.annotate.\"{pattern}\" = \"{layout}\": {name} cannot be sharded so over the tensor axis: {reason}; expected \
         {expected}"
    )]
    Impossible {
        /// The pattern.
        pattern: String,
        /// The layout.
        layout: ParamLayout,
        /// The parameter.
        name: String,
        /// Why.
        reason: String,
        /// The layouts that it may have.
        expected: String,
    },
    /// Two parameters of one loop, of which one is sharded and the other replicated.
    #[error(
        "parallel.annotate: {name} is {layout} over the tensor axis by \"{pattern}\", but its {along} are \
         those of {other}, which is {other_layout} by \"{other_pattern}\"; a product along them needs both \
         sharded or both replicated: annotate them alike, or only one of them"
    )]
    Conflict {
        /// A parameter.
        name: String,
        /// Its layout.
        layout: ParamLayout,
        /// The pattern that asks for it.
        pattern: String,
        /// Loop along which both are sharded.
        along: &'static str,
        /// The other parameter.
        other: String,
        /// Its layout.
        other_layout: ParamLayout,
        /// The pattern that asks for it.
        other_pattern: String,
    },
    /// A replicated parameter whose operator needs all rows of the residual stream.
    #[error(
        "parallel.annotate.\"{pattern}\" = \"replicate\" with parallel.sequence = true: {name} is read by \
         {reader}, which needs all rows of the residual stream, and each rank of the tensor axis has only \
         some of them; expected parallel.sequence = false, or {along} sharded"
    )]
    Sequence {
        /// The pattern.
        pattern: String,
        /// The parameter.
        name: String,
        /// The operator.
        reader: &'static str,
        /// Loop that is replicated.
        along: &'static str,
    },
}

/// Values of a layer between its products, as its recorded program names them, and the loop that their columns have.
const ACTIVATIONS: [(&str, ShardedLoop); 5] = [
    ("attention.qkv.out", ShardedLoop::Heads),
    ("attention.qk.out", ShardedLoop::Heads),
    ("attention.mixed", ShardedLoop::Heads),
    ("mlp.pre", ShardedLoop::HiddenUnits),
    ("mlp.hidden", ShardedLoop::HiddenUnits),
];

/// A parameter, or an activation of a layer, that an annotation names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotatedValue<'a> {
    /// Its name: "layers.3.mlp.up.weight", "layers.3.mlp.hidden".
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// The pattern that names it.
    pub pattern: &'a str,
    /// The layout that it shall have.
    pub layout: ParamLayout,
    /// The loop that it is sharded along, if any layout shards it.
    along: Option<ShardedLoop>,
}

impl AnnotatedValue<'_> {
    /// Refuses a layout that the parameter cannot have.
    fn check(&self, sharding: &Sharding) -> Result<(), AnnotationError> {
        let wanted = self.layout.placement();
        if wanted == Placement::Replicate || wanted == sharding.layout.at(Axis::Tensor) {
            return Ok(());
        }
        let (reason, expected) = match sharding.dim() {
            Some(dim) => {
                let other = if sharding.spec.shape.len() == 1 {
                    "it has one dim".to_owned()
                } else {
                    "its other dim is the width of the residual stream, which no rank has parts of".to_owned()
                };
                (other, format!("\"shard({dim})\" or \"replicate\""))
            }
            None => {
                let reason = "its readers need it whole: its elements belong to the width of the residual \
                              stream, to positions or to one head";
                (reason.to_owned(), "\"replicate\"".to_owned())
            }
        };
        Err(self.impossible(reason, expected))
    }

    /// Refuses a layout that an activation cannot have.
    fn check_activation(&self) -> Result<(), AnnotationError> {
        if self.layout != ParamLayout::Rows {
            return Ok(());
        }
        let reason = "its rows are positions, which parallel.sequence and parallel.context shard";
        Err(self.impossible(reason.to_owned(), "\"shard(1)\" or \"replicate\"".to_owned()))
    }

    fn impossible(&self, reason: String, expected: String) -> AnnotationError {
        let (pattern, layout, name) = (self.pattern.into(), self.layout, self.name.clone());
        AnnotationError::Impossible { pattern, layout, name, reason, expected }
    }
}

impl Model {
    /// The parameters that annotations name, in the order of [`Model::params`]; of a pattern that names none, the activations of layers.
    ///
    /// # Errors
    /// A pattern that names nothing, two layouts of one value, a layout that a value cannot have.
    pub fn annotated_values<'a>(
        &self,
        annotations: &'a Annotations,
    ) -> Result<Vec<AnnotatedValue<'a>>, AnnotationError> {
        let shardings = self.shardings();
        let mut values = Vec::new();
        for sharding in &shardings {
            let id = sharding.spec.id;
            let along = sharding.dim().and_then(|_| id.role().row().sharded_loop);
            let Some(value) = annotation_of(&sharding.spec.name, id.unit(), along, annotations)? else {
                continue;
            };
            value.check(sharding)?;
            values.push(value);
        }
        let names_parameters =
            |pattern: &String| shardings.iter().any(|s| name_matches(pattern, &s.spec.name));
        let others = annotations.0.iter().filter(|(pattern, _)| !names_parameters(pattern));
        let others = Annotations(others.map(|(pattern, layout)| (pattern.clone(), *layout)).collect());
        if others.0.is_empty() {
            return Ok(values);
        }
        let mut used = std::collections::BTreeSet::new();
        for layer in 0..self.layers {
            for (name, along) in ACTIVATIONS {
                let name = format!("layers.{layer}.{name}");
                let Some(value) = annotation_of(&name, Unit::Layer(layer), Some(along), &others)? else {
                    continue;
                };
                value.check_activation()?;
                used.extend(others.0.keys().filter(|pattern| name_matches(pattern, &name)).cloned());
                // The pattern as it stands in the caller's table.
                let pattern = annotations.0.get_key_value(value.pattern).map_or("", |(pattern, _)| pattern);
                values.push(AnnotatedValue { pattern, ..value });
            }
        }
        match others.0.keys().find(|pattern| !used.contains(*pattern)) {
            None => Ok(values),
            Some(pattern) => {
                let hint = hint(pattern, &shardings);
                Err(AnnotationError::Unknown { pattern: pattern.clone(), hint })
            }
        }
    }

    /// How each parameter is sharded over any number of ranks of the tensor axis, as [`Model::shardings`] but where the user
    /// asks for another layout. `sequence`: the rows of the residual stream are sharded.
    ///
    /// # Errors
    /// Annotations that name no parameter, that no program can follow, or that contradict each other.
    pub fn annotated_shardings(
        &self,
        annotations: &Annotations,
        sequence: bool,
    ) -> Result<Vec<Sharding>, AnnotationError> {
        let mut shardings = self.shardings();
        let mut loops: BTreeMap<(Unit, ShardedLoop), AnnotatedValue<'_>> = BTreeMap::new();
        for annotated in self.annotated_values(annotations)? {
            let Some(along) = annotated.along else { continue };
            match loops.get(&(annotated.unit, along)) {
                Some(other)
                    if (other.layout == ParamLayout::Replicate)
                        != (annotated.layout == ParamLayout::Replicate) =>
                {
                    return Err(AnnotationError::Conflict {
                        name: annotated.name,
                        layout: annotated.layout,
                        pattern: annotated.pattern.into(),
                        along: along.name(),
                        other: other.name.clone(),
                        other_layout: other.layout,
                        other_pattern: other.pattern.into(),
                    });
                }
                Some(_) => {}
                None => drop(loops.insert((annotated.unit, along), annotated)),
            }
        }
        loops.retain(|_, annotated| annotated.layout == ParamLayout::Replicate);
        for ((unit, along), annotated) in loops.iter().filter(|_| sequence) {
            let reader = match (unit, along) {
                (_, ShardedLoop::Heads) => "attention",
                (Unit::Head, ShardedLoop::Vocabulary) => "the loss",
                (Unit::Embedding, ShardedLoop::Vocabulary) if self.tied_embeddings => "the loss",
                _ => continue,
            };
            let (pattern, name, along) = (annotated.pattern.into(), annotated.name.clone(), along.name());
            return Err(AnnotationError::Sequence { pattern, name, reader, along });
        }
        for sharding in &mut shardings {
            let id = sharding.spec.id;
            let along = id.role().row().sharded_loop;
            if along.is_some_and(|along| loops.contains_key(&(id.unit(), along))) {
                sharding.layout = sharding.layout.with(Axis::Tensor, Placement::Replicate);
                // Each rank works on all of the loop, and on the rows of the residual stream that it has.
                sharding.gradient = GradientSum::IfSequenceParallel;
            }
        }
        Ok(shardings)
    }
}

/// The annotation of a value, if there is one.
fn annotation_of<'a>(
    name: &str,
    unit: Unit,
    along: Option<ShardedLoop>,
    annotations: &'a Annotations,
) -> Result<Option<AnnotatedValue<'a>>, AnnotationError> {
    let mut found: Option<AnnotatedValue<'a>> = None;
    for (pattern, layout) in annotations.0.iter().filter(|(pattern, _)| name_matches(pattern, name)) {
        match &found {
            Some(other) if other.layout != *layout => {
                return Err(AnnotationError::Twice {
                    name: name.to_owned(),
                    first: other.layout,
                    by_first: other.pattern.into(),
                    second: *layout,
                    by_second: pattern.clone(),
                });
            }
            Some(_) => {}
            None => {
                found = Some(AnnotatedValue { name: name.to_owned(), unit, pattern, layout: *layout, along });
            }
        }
    }
    Ok(found)
}

/// Whether a name of a parameter is the pattern, in which `*` stands for any characters.
pub fn name_matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(before) else { return false };
    let (middle, last) = after.rsplit_once('*').unwrap_or(("", after));
    // The first place of each part leaves most for the others.
    for part in middle.split('*') {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Names of parameters of the first layer and outside of layers, the nearest first.
fn hint(pattern: &str, shardings: &[Sharding]) -> String {
    let first = |id: ParamId| id.unit().layer().is_none_or(|layer| layer == 0);
    let names = shardings.iter().filter(|s| first(s.spec.id)).map(|s| s.spec.name.as_str());
    let activations = ACTIVATIONS.iter().map(|(name, _)| format!("layers.0.{name}"));
    format!(
        "parameters outside of layers and of layer 0, beside {pattern:?}: {}; activations: {}",
        names.collect::<Vec<_>>().join(", "),
        activations.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, wanted) in [
            ("head.weight", "head.weight", true),
            ("head", "head.weight", false),
            ("*", "", true),
            ("layers.1.*", "layers.1.mlp.up.weight", true),
            ("layers.1.*", "layers.11.mlp.up.weight", false),
            ("layers.*.weight", "layers.1.mlp.up.weight", true),
            ("*.up.*weight", "layers.1.mlp.up.weight", true),
            ("*aba*aba", "ababa", false),
            ("*ab*b", "aab", false),
            ("*ab*b", "aabb", true),
        ] {
            assert_eq!(name_matches(pattern, name), wanted, "{pattern} {name}");
        }
        // No number of stars takes long.
        assert!(!name_matches(&"*a".repeat(64), &format!("{}b", "a".repeat(200))));
    }
}

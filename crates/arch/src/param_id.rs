//! Identity of a parameter: its unit and its role there. Text names are written and read here only; they stand in files,
//! in messages and in the keys of random numbers.

use crate::model::Model;
use crate::roles::ParamRole;

/// A part of the model whose parameters are needed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Token and position tables.
    Embedding,
    /// A layer, from 0.
    Layer(usize),
    /// Last normalisation and output projection.
    Head,
}

impl Unit {
    /// All units of a model in the order of the forward pass.
    pub fn all(model: &Model) -> impl DoubleEndedIterator<Item = Unit> {
        std::iter::once(Unit::Embedding).chain((0..model.layers).map(Unit::Layer)).chain([Unit::Head])
    }

    /// True if launches of the unit use the parameter: it is the unit's own, or the token table that the head shares with
    /// the embedding (`tied`).
    pub fn uses(self, id: ParamId, tied: bool) -> bool {
        id.unit == self || (tied && self == Unit::Head && id == ParamId::TOKEN_TABLE)
    }

    /// Number of the layer, if the unit is one.
    pub fn layer(self) -> Option<usize> {
        match self {
            Unit::Layer(layer) => Some(layer),
            Unit::Embedding | Unit::Head => None,
        }
    }
}

/// Kind of a parameter, for optimizers and layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParamClass {
    /// Token or position table, or an untied output projection.
    Embedding,
    /// Matrix of a linear layer, `[outputs, inputs]`.
    Matrix,
    /// Bias of a linear layer.
    Bias,
    /// Weight or bias of a normalisation.
    Norm,
}

/// Identity of a parameter of a model. Its text ([`std::fmt::Display`], [`ParamId::parse`]) is the canonical name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId {
    unit: Unit,
    role: ParamRole,
}

impl ParamId {
    /// The token table, which a tied output projection reads too.
    pub const TOKEN_TABLE: ParamId = ParamId { unit: Unit::Embedding, role: ParamRole::TokenTable };

    pub(crate) fn new(unit: Unit, role: ParamRole) -> ParamId {
        ParamId { unit, role }
    }

    /// The unit that the parameter belongs to.
    pub fn unit(self) -> Unit {
        self.unit
    }

    /// The parameter's role in its unit.
    pub fn role(self) -> ParamRole {
        self.role
    }

    /// The parameter of this canonical name ("layers.3.attention.qkv.weight"), if it is one.
    pub fn parse(name: &str) -> Option<ParamId> {
        let (layer, text) = match name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
            Some((layer, text)) => (layer.parse().ok()?, text),
            None => (0, name),
        };
        let role = ParamRole::all().find(|role| role.row().name == text)?;
        Some(role.in_layer(layer)).filter(|id| id.to_string() == name)
    }
}

impl std::fmt::Display for ParamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.unit {
            Unit::Layer(layer) => write!(f, "layers.{layer}.{}", self.role.row().name),
            Unit::Embedding | Unit::Head => f.write_str(self.role.row().name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named;

    #[test]
    fn names_are_read_as_they_are_written_and_nothing_else_is() {
        for role in ParamRole::all() {
            let id = role.in_layer(11);
            assert_eq!(ParamId::parse(&id.to_string()), Some(id));
        }
        let id = ParamId::parse("layers.11.mlp.down.bias").unwrap();
        assert_eq!((id.unit(), id.role()), (Unit::Layer(11), ParamRole::DownBias));
        let wrong = [
            "",
            "layers.1",
            "layers.+1.mlp.up.bias",
            "layers.01.mlp.up.bias",
            "mlp.up.bias",
            "layers.1.head.weight",
        ];
        assert!(wrong.iter().all(|name| ParamId::parse(name).is_none()));
    }

    #[test]
    fn every_parameter_belongs_to_one_unit_and_a_tied_table_is_used_by_two() {
        let model = named("gpt2").unwrap();
        assert!(model.tied_embeddings);
        for p in model.params() {
            assert_eq!(ParamId::parse(&p.name), Some(p.id));
            let mut users: Vec<_> = Unit::all(&model).filter(|u| u.uses(p.id, true)).collect();
            if p.id == ParamId::TOKEN_TABLE {
                assert_eq!(users.pop(), Some(Unit::Head));
            }
            assert_eq!(users, [p.id.unit()], "{}", p.name);
        }
        let positions = ParamRole::PositionTable.in_layer(0);
        assert!(!Unit::Head.uses(ParamId::TOKEN_TABLE, false) && !Unit::Head.uses(positions, true));
    }
}

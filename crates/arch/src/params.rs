//! The list of a model's parameters, made from the table of roles ([`crate::ParamRole`]): the model, the optimizer, checkpoints and
//! shardings are made from it.

use crate::init::Init;
use crate::model::Model;
use crate::param_id::{ParamClass, ParamId};
use crate::roles::{ParamRole, RoleUnit};

/// One parameter tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Unit and role.
    pub id: ParamId,
    /// Canonical name, the text of `id`: "layers.3.attention.qkv.weight". For files, messages and random numbers.
    pub name: String,
    /// One or two dims; matrices are `[outputs, inputs]`, tables `[rows, width]`.
    pub shape: Vec<usize>,
    /// How it starts.
    pub init: Init,
    /// Factor on the learning rate; 1 except for hidden matrices under muP.
    pub lr_scale: f64,
}

impl ParamSpec {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if there is no value (never for a resolved model).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Kind of the parameter.
    pub fn class(&self) -> ParamClass {
        self.id.role().class()
    }

    /// (rows, cols) of the tensor as a matrix; a vector is one row.
    pub fn matrix(&self) -> (usize, usize) {
        match self.shape[..] {
            [r, c] => (r, c),
            _ => (1, self.len()),
        }
    }

    /// Weight decay applies to tensors with two dims only (GPT-2 practice).
    pub fn decays(&self) -> bool {
        self.shape.len() >= 2
    }
}

/// The parameters of a unit, in the order of the forward pass.
fn add_unit(model: &Model, unit: RoleUnit, layer: usize, params: &mut Vec<ParamSpec>) {
    for role in ParamRole::all() {
        let row = role.row();
        if row.unit != unit || !row.is_in(model, layer) {
            continue;
        }
        let id = role.in_layer(layer);
        // Hidden matrices: Adam's steps must shrink as their inputs grow (Yang et al. 2022, table 8).
        let lr_scale = if row.class == ParamClass::Matrix { 1.0 / model.mup_ratio() } else { 1.0 };
        let (shape, init) = (row.shape(model, layer), row.init(model, layer));
        params.push(ParamSpec { id, name: id.to_string(), shape, init, lr_scale });
    }
}

impl Model {
    /// Every parameter, in the order of the forward pass of a pre-normalised model. Names:
    /// `embed.tokens`, `embed.positions`, `layers.{i}.attention_norm.*`, `layers.{i}.attention.qkv.*` (rows: all
    /// queries, all keys, all values), `layers.{i}.attention.q_norm.weight` and `k_norm.weight` (one head wide, or all heads),
    /// `layers.{i}.attention.out.*`, `layers.{i}.mlp_norm.*`, `layers.{i}.mlp.up.*` or
    /// `layers.{i}.mlp.gate_up.*` (rows: gate, then up), `layers.{i}.mlp.down.*`, `final_norm.*` (pre-normalised
    /// models only), `head.weight`.
    ///
    /// Biases start at 0, norm weights at 1, all others as `init` says.
    pub fn params(&self) -> Vec<ParamSpec> {
        let mut params = Vec::new();
        add_unit(self, RoleUnit::Embedding, 0, &mut params);
        (0..self.layers).for_each(|layer| add_unit(self, RoleUnit::Layer, layer, &mut params));
        add_unit(self, RoleUnit::Head, 0, &mut params);
        params
    }

    /// Sum of `count` over every parameter, without listing them: layers of a kind are alike in names, shapes and roles.
    pub(crate) fn sum_params(&self, count: impl Fn(&ParamSpec) -> usize) -> usize {
        let sum = |params: &[ParamSpec]| params.iter().map(&count).fold(0, usize::saturating_add);
        let of_kind = |first: usize| {
            let mut layer = Vec::new();
            add_unit(self, RoleUnit::Layer, first, &mut layer);
            sum(&layer).saturating_mul(self.layers_like(first))
        };
        let layers = self.layer_kinds().into_iter().map(of_kind).fold(0, usize::saturating_add);
        let others = Model { layers: 0, ..self.clone() }.params();
        layers.saturating_add(sum(&others))
    }

    /// Number of parameters, tied ones counted once.
    pub fn parameters(&self) -> usize {
        self.sum_params(ParamSpec::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::NormChoice;
    use crate::{NAMED, named};

    #[test]
    fn what_is_counted_without_a_list_is_what_the_list_has() {
        for name in NAMED {
            let named = named(name).unwrap();
            let bare = Model { norm: NormChoice::None, bias: !named.bias, ..named.clone() };
            let normed = Model { qk_norm: true, tied_embeddings: !named.tied_embeddings, ..named.clone() };
            for model in [named, bare, normed] {
                let listed: usize = model.params().iter().map(ParamSpec::len).sum();
                assert_eq!(model.parameters(), listed, "{name}");
            }
        }
    }

    /// A model that nobody checked (from a hostile file) costs no more than any other.
    #[test]
    fn counting_does_not_take_as_long_as_the_model_is_deep() {
        let deep = Model { layers: 1_000_000_000_000_000, ..named("llama").unwrap() };
        assert!(deep.parameters() > 1_000_000_000_000_000);
        assert!(deep.summary().contains("1000000000000000 layers"));
        assert!(deep.check().unwrap_err().to_string().contains("model.layers"));
    }
}

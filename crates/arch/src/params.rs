//! The table of a model's parameters: names, shapes, initialisation, decay. The one list that the model, the
//! optimizer, checkpoints and (later) the sharding table are made from.

use crate::choices::{NormChoice, Placement, PositionChoice};
use crate::init::{Init, Part, Slice, TablePart};
use crate::model::{MlpKind, Model};
use crate::param_id::{ParamClass, ParamId, ParamRole};

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

/// The list while it is written.
struct List<'a> {
    model: &'a Model,
    params: Vec<ParamSpec>,
}

impl List<'_> {
    fn add(&mut self, id: ParamId, shape: Vec<usize>, init: Init) {
        // Hidden matrices: Adam's steps must shrink as their inputs grow (Yang et al. 2022, table 8).
        let hidden = id.role().class() == ParamClass::Matrix;
        let lr_scale = if hidden { 1.0 / self.model.mup_ratio() } else { 1.0 };
        self.params.push(ParamSpec { id, name: id.to_string(), shape, init, lr_scale });
    }

    fn table(&mut self, role: ParamRole, part: TablePart, rows: usize) {
        let init = self.model.table_init(part, rows);
        self.add(role.in_layer(0), vec![rows, self.model.width], init);
    }

    fn norm(&mut self, layer: usize, weight: ParamRole, bias: ParamRole) {
        let width = self.model.width;
        if self.model.norm == NormChoice::None {
            return;
        }
        self.add(weight.in_layer(layer), vec![width], Init::Constant(1.0));
        if self.model.bias && self.model.norm == NormChoice::LayerNorm {
            self.add(bias.in_layer(layer), vec![width], Init::Constant(0.0));
        }
    }

    /// A linear map that consists of these slices, one below the other.
    fn linear(&mut self, layer: usize, weight: ParamRole, bias: ParamRole, slices: &[Slice]) {
        let (inputs, outputs) = (slices[0].1, slices.iter().map(|s| s.2).sum());
        let init = self.model.matrix_init(layer, slices);
        self.add(weight.in_layer(layer), vec![outputs, inputs], init);
        if self.model.bias || (self.model.qkv_bias && bias == ParamRole::QkvBias) {
            self.add(bias.in_layer(layer), vec![outputs], Init::Constant(0.0));
        }
    }

    /// All parameters of one layer.
    fn layer(&mut self, i: usize) {
        use ParamRole as R;
        let model = self.model;
        let (d, f) = (model.width, model.ffn_width);
        let (queries, keys) = (model.attention_width(), model.kv_heads * model.head_dim);
        self.norm(i, R::AttentionNormWeight, R::AttentionNormBias);
        let qkv = [(Part::QueryOrKey, d, queries), (Part::QueryOrKey, d, keys), (Part::Value, d, keys)];
        self.linear(i, R::QkvWeight, R::QkvBias, &qkv);
        if model.qk_norm {
            for role in [R::QueryNormWeight, R::KeyNormWeight] {
                self.add(role.in_layer(i), vec![model.head_dim], Init::Constant(1.0));
            }
        }
        self.linear(i, R::AttentionOutWeight, R::AttentionOutBias, &[(Part::AttentionOut, queries, d)]);
        self.norm(i, R::MlpNormWeight, R::MlpNormBias);
        match model.mlp() {
            MlpKind::Plain => self.linear(i, R::UpWeight, R::UpBias, &[(Part::Up, d, f)]),
            MlpKind::Gated => {
                self.linear(i, R::GateUpWeight, R::GateUpBias, &[(Part::Gate, d, f), (Part::Up, d, f)])
            }
        }
        self.linear(i, R::DownWeight, R::DownBias, &[(Part::Down, f, d)]);
    }
}

impl Model {
    /// Every parameter, in the order of the forward pass of a pre-normalised model. Names:
    /// `embed.tokens`, `embed.positions`, `layers.{i}.attention_norm.*`, `layers.{i}.attention.qkv.*` (rows: all
    /// queries, all keys, all values), `layers.{i}.attention.q_norm.weight` and `k_norm.weight` (one head wide),
    /// `layers.{i}.attention.out.*`, `layers.{i}.mlp_norm.*`, `layers.{i}.mlp.up.*` or
    /// `layers.{i}.mlp.gate_up.*` (rows: gate, then up), `layers.{i}.mlp.down.*`, `final_norm.*` (pre-normalised
    /// models only), `head.weight`.
    ///
    /// Biases start at 0, norm weights at 1, all others as `init` says.
    pub fn params(&self) -> Vec<ParamSpec> {
        let mut list = List { model: self, params: Vec::new() };
        list.table(ParamRole::TokenTable, TablePart::Embedding, self.vocab_size);
        if self.positions == PositionChoice::Learned {
            list.table(ParamRole::PositionTable, TablePart::Embedding, self.context);
        }
        for i in 0..self.layers {
            list.layer(i);
        }
        if self.placement == Placement::Pre {
            list.norm(0, ParamRole::FinalNormWeight, ParamRole::FinalNormBias);
        }
        if !self.tied_embeddings {
            list.table(ParamRole::HeadWeight, TablePart::Head, self.vocab_size);
        }
        list.params
    }

    /// Sum of `count` over every parameter, without listing them: layers are alike in names, shapes and roles.
    pub(crate) fn sum_params(&self, count: impl Fn(&ParamSpec) -> usize) -> usize {
        let sum = |params: &[ParamSpec]| params.iter().map(&count).fold(0, usize::saturating_add);
        let mut layer = List { model: self, params: Vec::new() };
        layer.layer(0);
        let others = Model { layers: 0, ..self.clone() }.params();
        sum(&layer.params).saturating_mul(self.layers).saturating_add(sum(&others))
    }

    /// Number of parameters, tied ones counted once.
    pub fn parameters(&self) -> usize {
        self.sum_params(ParamSpec::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

//! The table of a model's parameters: names, shapes, initialisation, decay. The one list that the model, the
//! optimizer, checkpoints and (later) the sharding table are made from.

use crate::config::{MlpKind, Model, NormChoice, PositionChoice};

/// What a parameter is, for optimizers and layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Token or position table, or an untied output projection.
    Embedding,
    /// Matrix of a linear layer, `[outputs, inputs]`.
    Matrix,
    /// Bias of a linear layer.
    Bias,
    /// Weight or bias of a normalisation.
    Norm,
}

/// How a parameter starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Independent normal values with this standard deviation.
    Normal(f64),
    /// One value everywhere.
    Constant(f64),
}

/// One parameter tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Canonical name, e.g. "layers.3.attention.qkv.weight".
    pub name: String,
    /// One or two dims; matrices are `[outputs, inputs]`, tables `[rows, width]`.
    pub shape: Vec<usize>,
    /// What it is.
    pub role: Role,
    /// How it starts.
    pub init: Init,
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

impl Model {
    /// Every parameter, in the order of the forward pass. Names:
    /// `embed.tokens`, `embed.positions`, `layers.{i}.attention_norm.*`, `layers.{i}.attention.qkv.*` (rows: all
    /// queries, all keys, all values), `layers.{i}.attention.out.*`, `layers.{i}.mlp_norm.*`, `layers.{i}.mlp.up.*` or
    /// `layers.{i}.mlp.gate_up.*` (rows: gate, then up), `layers.{i}.mlp.down.*`, `final_norm.*`, `head.weight`.
    ///
    /// Initialisation is GPT-2's (Radford et al. 2019): normal with `init_std`, the two residual outputs of a layer
    /// with `init_std / sqrt(2 layers)`, biases 0, norm weights 1.
    pub fn params(&self) -> Vec<ParamSpec> {
        let (d, f) = (self.width, self.ffn_width);
        let std = Init::Normal(self.init_std);
        let residual = Init::Normal(self.init_std / (2.0 * self.layers as f64).sqrt());
        let mut list = Vec::new();
        let mut add =
            |name: String, shape: Vec<usize>, role, init| list.push(ParamSpec { name, shape, role, init });

        add("embed.tokens".into(), vec![self.vocab_size, d], Role::Embedding, std);
        if self.positions == PositionChoice::Learned {
            add("embed.positions".into(), vec![self.context, d], Role::Embedding, std);
        }
        let norm_bias = self.bias && self.norm == NormChoice::LayerNorm;
        for i in 0..self.layers {
            let norm = |add: &mut dyn FnMut(String, Vec<usize>, Role, Init), which: &str| {
                add(format!("layers.{i}.{which}.weight"), vec![d], Role::Norm, Init::Constant(1.0));
                if norm_bias {
                    add(format!("layers.{i}.{which}.bias"), vec![d], Role::Norm, Init::Constant(0.0));
                }
            };
            let linear = |add: &mut dyn FnMut(String, Vec<usize>, Role, Init),
                          which: &str,
                          out: usize,
                          inp: usize,
                          init| {
                add(format!("layers.{i}.{which}.weight"), vec![out, inp], Role::Matrix, init);
                if self.bias {
                    add(format!("layers.{i}.{which}.bias"), vec![out], Role::Bias, Init::Constant(0.0));
                }
            };
            norm(&mut add, "attention_norm");
            linear(&mut add, "attention.qkv", self.qkv_width(), d, std);
            linear(&mut add, "attention.out", d, self.attention_width(), residual);
            norm(&mut add, "mlp_norm");
            let first = if self.mlp() == MlpKind::Gated { "mlp.gate_up" } else { "mlp.up" };
            linear(&mut add, first, self.mlp_in_width(), d, std);
            linear(&mut add, "mlp.down", d, f, residual);
        }
        add("final_norm.weight".into(), vec![d], Role::Norm, Init::Constant(1.0));
        if norm_bias {
            add("final_norm.bias".into(), vec![d], Role::Norm, Init::Constant(0.0));
        }
        if !self.tied_embeddings {
            add("head.weight".into(), vec![self.vocab_size, d], Role::Embedding, std);
        }
        list
    }

    /// Number of parameters, tied ones counted once.
    pub fn parameters(&self) -> usize {
        self.params().iter().map(ParamSpec::len).sum()
    }
}

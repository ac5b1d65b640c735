//! Distributions of the initial weights, by initialisation and place.
//!
//! L layers, D width, a matrix with `inputs` and `outputs`; a layer's depth l counts from 1. Variances, with
//! xavier = 2 / (inputs + outputs):
//!
//! | init | matrices of a layer | token and position tables, output projection |
//! |---|---|---|
//! | gpt2 | `init_std^2`; residual outputs `/ (2L)` | `init_std^2` |
//! | xavier | `gain^2 xavier` | 1/D |
//! | lri | 1 / (3 inputs) | 2 / (3 (D + rows)); output projection 1 / (3D) |
//! | ds-init | `gain^2 xavier / l` (paper) or `gain^2 xavier / sqrt(l)` (code) | 1/D |
//! | t-fixup | xavier; value, attention output, feed-forward times `.67^2 / sqrt(L)` | `1/D / sqrt(9L)`; output projection 1/D |
//! | deepnorm | xavier; value, attention output, feed-forward times `1 / sqrt(8L)` | 1/D |
//! | mup | as gpt2, times `base_width / width` | `init_std^2` |
//!
//! A uniform distribution within ±b has variance b²/3. Queries, keys and values are separate matrices of one fused
//! tensor, and so are gate and up: each slice has its own number of outputs and its own factor (scaling all of a fused
//! query-key-value tensor where only the value is meant is a known mistake). The gate of a gated block is left
//! unscaled, as in the authors' gated layers: scaling gate and up would square the factor.

use crate::choices::{Distribution, DsInitForm, InitChoice};
use crate::model::Model;
use crate::param_id::ParamId;

/// How a parameter starts.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// Independent normal values with this standard deviation.
    Normal(f64),
    /// Independent uniform values between minus and plus this bound.
    Uniform(f64),
    /// One value everywhere.
    Constant(f64),
    /// Euclidean norms of rows of another parameter as it starts.
    RowNorms(RowNorms),
    /// Ranges of rows, each with its own distribution; together they are all rows.
    Rows(Vec<(usize, Init)>),
}

impl Init {
    /// Distribution of one row: never [`Init::Rows`].
    pub fn of_row(&self, row: usize) -> &Init {
        let Init::Rows(list) = self else { return self };
        let mut end = 0;
        let of_row = |(rows, _): &&(usize, Init)| {
            end += rows;
            row < end
        };
        list.iter().find(of_row).map_or(self, |(_, init)| init)
    }
}

/// Rows of a matrix, whose norms are initial values.
#[derive(Debug, Clone, PartialEq)]
pub struct RowNorms {
    /// The matrix.
    pub of: ParamId,
    /// Its columns.
    pub columns: usize,
    /// The first of the rows.
    pub first: usize,
    /// Distribution of the matrix.
    pub init: Box<Init>,
}

/// What a matrix does, as far as initialisation cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    QueryOrKey,
    Value,
    AttentionOut,
    Up,
    Gate,
    Down,
    Router,
}

/// A slice of a layer's tensor: what it is, inputs, outputs.
pub(crate) type Slice = (Part, usize, usize);

/// Table outside the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TablePart {
    Embedding,
    Head,
}

impl Model {
    /// Distribution of layer `layer`'s tensor (from 0) that consists of these slices, one below the other.
    pub(crate) fn matrix_init(&self, layer: usize, slices: &[Slice]) -> Init {
        let mut rows: Vec<(usize, Init)> =
            slices.iter().map(|s| (s.2, self.drawn(self.matrix_std(layer, *s)))).collect();
        if rows.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            return rows.swap_remove(0).1;
        }
        Init::Rows(rows)
    }

    /// Distribution of a table with `rows` rows of the model's width.
    pub(crate) fn table_init(&self, part: TablePart, rows: usize) -> Init {
        let (d, layers) = (self.width as f64, self.layers as f64);
        match (self.init, part) {
            (InitChoice::Gpt2 | InitChoice::MuP, _) => Init::Normal(self.init_std),
            (InitChoice::Lri, TablePart::Embedding) => self.drawn((2.0 / (3.0 * (d + rows as f64))).sqrt()),
            (InitChoice::Lri, TablePart::Head) => self.drawn((1.0 / (3.0 * d)).sqrt()),
            (InitChoice::TFixup, TablePart::Embedding) => {
                Init::Normal(d.powf(-0.5) * (9.0 * layers).powf(-0.25))
            }
            _ => Init::Normal(d.powf(-0.5)),
        }
    }

    fn matrix_std(&self, layer: usize, (part, inputs, outputs): Slice) -> f64 {
        let (layers, depth) = (self.layers as f64, (layer + 1) as f64);
        let xavier = (2.0 / (inputs + outputs) as f64).sqrt();
        let residual_output = matches!(part, Part::AttentionOut | Part::Down);
        let scaled = matches!(part, Part::Value | Part::AttentionOut | Part::Up | Part::Down);
        match self.init {
            InitChoice::Gpt2 | InitChoice::MuP => {
                let std = self.init_std / self.mup_ratio().sqrt();
                if residual_output { std / (2.0 * layers).sqrt() } else { std }
            }
            InitChoice::Xavier => self.init_gain * xavier,
            InitChoice::Lri => (1.0 / (3.0 * inputs as f64)).sqrt(),
            InitChoice::DsInit => {
                let power = match self.ds_init {
                    DsInitForm::Paper => -0.5,
                    DsInitForm::Code => -0.25,
                };
                self.init_gain * xavier * depth.powf(power)
            }
            InitChoice::TFixup if scaled => xavier * 0.67 * layers.powf(-0.25),
            InitChoice::DeepNorm if scaled => xavier * self.deepnorm_beta(),
            InitChoice::TFixup | InitChoice::DeepNorm => xavier,
        }
    }

    /// A distribution with this standard deviation, of the shape that was asked for.
    fn drawn(&self, std: f64) -> Init {
        let usual = match self.init {
            InitChoice::Gpt2 | InitChoice::MuP | InitChoice::DeepNorm => Distribution::Normal,
            InitChoice::Xavier | InitChoice::Lri | InitChoice::DsInit | InitChoice::TFixup => {
                Distribution::Uniform
            }
        };
        match self.init_distribution.unwrap_or(usual) {
            Distribution::Normal => Init::Normal(std),
            Distribution::Uniform => Init::Uniform(3f64.sqrt() * std),
        }
    }

    /// DeepNorm's factor on the residual stream, `(2L)^(1/4)` for a decoder alone.
    pub fn deepnorm_alpha(&self) -> f64 {
        (2.0 * self.layers as f64).powf(0.25)
    }

    /// DeepNorm's factor on initial weights, `(8L)^(-1/4)` for a decoder alone.
    pub fn deepnorm_beta(&self) -> f64 {
        (8.0 * self.layers as f64).powf(-0.25)
    }

    /// Width over base width under muP, 1 otherwise.
    pub fn mup_ratio(&self) -> f64 {
        match (self.init, self.mup_base_width) {
            (InitChoice::MuP, Some(base)) => self.width as f64 / base as f64,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named;

    fn small(init: InitChoice) -> Model {
        Model {
            layers: 6,
            width: 64,
            heads: 4,
            kv_heads: 4,
            head_dim: 16,
            ffn_width: 256,
            vocab_size: 65,
            context: 32,
            init,
            ..named("gpt2").unwrap()
        }
    }

    fn of(model: &Model, name: &str) -> Init {
        model.params().into_iter().find(|p| p.name == name).unwrap().init
    }

    fn bound(init: &Init) -> f64 {
        match init {
            Init::Uniform(b) => *b,
            other => panic!("wanted a uniform distribution, found {other:?}"),
        }
    }

    fn close(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-6, "{found}, wanted {wanted}");
    }

    /// Values that the papers' formulas give.
    #[test]
    fn golden_values() {
        let deep = Model { layers: 24, ..small(InitChoice::DeepNorm) };
        close(deep.deepnorm_alpha(), 2.632148);
        close(deep.deepnorm_beta(), 0.268642);

        let lri = small(InitChoice::Lri);
        close(bound(&of(&lri, "layers.0.attention.out.weight")), 0.125);
        close(bound(&of(&lri, "embed.tokens")), 0.124515);

        let ds = small(InitChoice::DsInit);
        close(bound(&of(&ds, "layers.3.attention.out.weight")), 0.108253);
        let code = Model { ds_init: DsInitForm::Code, ..ds };
        close(bound(&of(&code, "layers.3.attention.out.weight")), 0.108253 * 4f64.powf(0.25));

        let fixup = small(InitChoice::TFixup);
        let xavier = small(InitChoice::Xavier);
        let out = "layers.5.attention.out.weight";
        close(bound(&of(&fixup, out)) / bound(&of(&xavier, out)), 0.428092);
        let tables = (of(&fixup, "embed.tokens"), of(&xavier, "embed.tokens"));
        let (Init::Normal(a), Init::Normal(b)) = tables else { panic!("{tables:?}") };
        close(a / b, 0.368894);
        close(b, 0.125);
    }

    /// The trap of a fused tensor: queries and keys keep Xavier's bound, and each slice counts its own outputs.
    #[test]
    fn only_the_value_slice_is_scaled() {
        for (init, factor) in [(InitChoice::TFixup, 0.428092), (InitChoice::DeepNorm, 48f64.powf(-0.25))] {
            let model = Model { kv_heads: 2, init_distribution: Some(Distribution::Uniform), ..small(init) };
            let Init::Rows(rows) = of(&model, "layers.1.attention.qkv.weight") else {
                panic!("one distribution")
            };
            let sizes: Vec<usize> = rows.iter().map(|r| r.0).collect();
            assert_eq!(sizes, [64, 32, 32]);
            let wanted = [128f64, 96.0, 96.0].map(|fans| (6.0 / fans).sqrt());
            close(bound(&rows[0].1), wanted[0]);
            close(bound(&rows[1].1), wanted[1]);
            assert!((bound(&rows[2].1) / wanted[2] - factor).abs() < 1e-6);
        }
    }

    #[test]
    fn the_gate_is_not_scaled_and_up_is() {
        let model = Model { activation: crate::ActivationChoice::Swiglu, ..small(InitChoice::DeepNorm) };
        let Init::Rows(rows) = of(&model, "layers.1.mlp.gate_up.weight") else { panic!("one distribution") };
        let (Init::Normal(gate), Init::Normal(up)) = (&rows[0].1, &rows[1].1) else { panic!("{rows:?}") };
        close(up / gate, model.deepnorm_beta());
        assert_eq!([rows[0].0, rows[1].0], [256, 256]);
    }

    /// Yang et al. 2022, table 8, relative to the base width.
    #[test]
    fn mup_scales_variances_and_learning_rates_of_hidden_matrices_only() {
        let base = Model { mup_base_width: Some(64), ..small(InitChoice::MuP) };
        let wide = Model { width: 256, heads: 16, kv_heads: 16, ffn_width: 1024, ..base.clone() };
        assert_eq!((base.logit_scale(), wide.logit_scale()), (1.0, 0.25));
        for (a, b) in base.params().iter().zip(wide.params()) {
            let hidden = a.class() == crate::ParamClass::Matrix;
            assert_eq!((a.lr_scale, b.lr_scale), (1.0, if hidden { 0.25 } else { 1.0 }), "{}", a.name);
            if let (Init::Normal(a), Init::Normal(b)) = (&a.init, &b.init) {
                close(b / a, if hidden { 0.5 } else { 1.0 });
            }
        }
        let gpt2 = small(InitChoice::Gpt2);
        assert!(gpt2.params().iter().zip(base.params()).all(|(a, b)| *a == b), "muP at its base width");
        // Growing heads: scores stay of order one with 1/E instead of 1/sqrt(E).
        let grown = Model { head_dim: 64, mup_base_head_dim: Some(16), ..base };
        close(grown.attention_scale(), 4.0 / 64.0);
    }
}

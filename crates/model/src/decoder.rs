//! A decoder: what it holds, how it is made, and the passes of a whole model.

use crate::activations::{ActivationConfig, Activations, Scratch};
use crate::attention::AttentionBlock;
use crate::embedding::EmbeddingTables;
use crate::error::ModelError;
use crate::head::Head;
use crate::mlp::MlpBlock;
use crate::params::{self, Param, ParamTable, Weight};
use crate::pass::Pass;
use crate::portion::Cut;
use crate::seams::{OneDevice, Phase, Seams};
use crate::slots::Held;
use crate::stage::StageConfig;
use crate::step::{LossSum, StepContext, TokenBatch};
use bessemer_arch::{Model, ParamClass, Portion, Span, Unit};
use bessemer_tensor::Backend;

/// What a decoder is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Forward and backward: gradients, and activations of every layer.
    Train,
    /// Forward only: no gradients, activations of one layer.
    Score,
}

/// The shape of every batch that a decoder sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// B, sequences of a micro-batch.
    pub sequences: usize,
    /// T, tokens of a sequence; at most the model's context.
    pub seq: usize,
    /// Train or score.
    pub purpose: Purpose,
}

impl Shape {
    /// Tokens of a micro-batch.
    pub fn tokens(&self) -> usize {
        self.sequences * self.seq
    }

    pub(crate) fn check(&self, model: &Model) -> Result<(), ModelError> {
        if self.seq == 0 || self.seq > model.context {
            return Err(ModelError::Shape {
                what: "sequence length",
                wanted: format!("1 to the model's context of {}", model.context),
                found: self.seq.to_string(),
            });
        }
        // Row counts times the widest row must stay a number of bytes.
        let widest =
            model.vocab_size.max(model.mlp_in_width()).max(model.qkv_width() + model.attention_width());
        let most = isize::MAX as usize / 4 / widest / self.seq;
        if self.sequences == 0 || self.sequences > most {
            return Err(ModelError::Shape {
                what: "sequences",
                wanted: format!("1 to {most}"),
                found: self.sequences.to_string(),
            });
        }
        Ok(())
    }
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Number in the whole model.
    pub(crate) index: usize,
    pub(crate) attention: AttentionBlock,
    pub(crate) mlp: MlpBlock,
    pub(crate) dropout: LayerPlaces,
}

/// Names of a layer's dropout places.
#[derive(Debug)]
pub(crate) struct LayerPlaces {
    pub(crate) attention: String,
    pub(crate) attention_out: String,
    pub(crate) mlp_out: String,
}

/// A decoder whose memory is allocated: parameters, and activations for batches of one [`Shape`]. It is a whole model, or
/// one stage of it ([`Decoder::of_stage`]) or a tensor-parallel portion, or both.
#[derive(Debug)]
pub struct Decoder {
    /// What is here of the model; of a stage the model that it is a stage of.
    pub(crate) model: Model,
    /// Which layers are here, and memory for how many micro-batches.
    pub(crate) stage: StageConfig,
    pub(crate) portion: Option<Box<Portion>>,
    pub(crate) cut: Cut,
    pub(crate) shape: Shape,
    pub(crate) config: ActivationConfig,
    pub(crate) params: Vec<Param>,
    pub(crate) embedding: Option<EmbeddingTables>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) head: Option<Head>,
    /// Parameters besides the layers' matrices and their biases, with the units whose passes complete their gradients.
    pub(crate) others: Vec<(Unit, Weight)>,
    pub(crate) act: Activations,
    /// What each slot and each pending set is in use for.
    pub(crate) held: Held,
    /// 0, 1, ... in every row, or in every document of the last batch.
    pub(crate) default_positions: Vec<u32>,
    /// First position of each token's document in the last batch, if attention stays within documents.
    pub(crate) documents: Vec<u32>,
    /// Host copy of the token losses, and of the log-sum-exps where there are such.
    pub(crate) losses: Vec<f32>,
}

impl Decoder {
    /// Allocates parameters (zero until [`Decoder::init`] or [`Decoder::write_param`]), gradients and activations, and
    /// reserves the workspace that the passes need. Nothing is allocated after that.
    ///
    /// Bytes by class, n = B T, stats = 2 for LayerNorm, 1 for RMSNorm, 0 without; s = 4 bytes of an activation (2 if stored
    /// in bf16):
    /// - "weights" and, to train, "gradients": 4 bytes a parameter;
    /// - "constants": 4 context D for a fixed table of positions;
    /// - "activations" to train: `s (n ((2L + 1) D + L (J + A + P) + R + 2 D + max(F, J + A)) + min(n, 16) V) +
    ///   4 (n ((2L + last) stats + 5) + L B H T)`, with J = (H + 2G) E, A = H E, P = F or 2F, last = 1 with a last
    ///   normalisation (placement "pre"), and R = D + F for normalised rows and hidden values that are computed again,
    ///   L (2 D + F) for those that are stored ([`Recompute`](bessemer_units::Recompute)). What post-normalised blocks
    ///   keep in place of normalised rows is always stored (R = L 2 D + F), and without normalisation there is nothing
    ///   of the kind (2 D and D in R become 0). QK-norm adds K = (H + G) E to J + A + P and to max(F, J + A), and
    ///   (H + G) statistics to each row of each layer; documents add an index to each row;
    /// - to score: `4 (n (2 D + J + A + P + D + F + 2 D + (1 + last) stats + 4) + B H T + min(n, 16) V)`, without
    ///   normalisation one D less.
    ///
    /// # Errors
    /// A sequence longer than the model's context, or what the backend answers (out of memory).
    pub fn new(backend: &mut dyn Backend, model: &Model, shape: Shape) -> Result<Decoder, ModelError> {
        Decoder::with_activations(backend, model, shape, ActivationConfig::default())
    }

    /// As [`Decoder::new`], with a say in how activations are kept; a scorer keeps none.
    pub fn with_activations(
        backend: &mut dyn Backend,
        model: &Model,
        shape: Shape,
        config: ActivationConfig,
    ) -> Result<Decoder, ModelError> {
        shape.check(model)?;
        let params = params::alloc(backend, model.params(), shape.purpose == Purpose::Train)?;
        Decoder::with_params(backend, model, shape, config, params)
    }

    /// As [`Decoder::with_activations`], with parameters that the caller has placed: views of whatever buffers it likes,
    /// which parameters of different [`Unit`]s may share if [`Seams::unit_begins`] brings the right values and
    /// [`Seams::gradient_ready`] takes the gradients away ([`Decoder::init`], [`Decoder::read_params`] and
    /// [`Decoder::write_param`] then say nothing about the model). A tied token table belongs to two units.
    ///
    /// # Errors
    /// As [`Decoder::new`]; parameters that are not those of [`Model::params`] in their order and shapes, of a float type, with
    /// gradients if the decoder is to train (the first that is not is named).
    pub fn with_params(
        backend: &mut dyn Backend,
        model: &Model,
        shape: Shape,
        config: ActivationConfig,
        params: Vec<Param>,
    ) -> Result<Decoder, ModelError> {
        shape.check(model)?;
        let stage = StageConfig::whole(model);
        Decoder::build(backend, model, Cut::whole(model), &stage, shape, config, params, None)
    }

    /// Puts a decoder together from checked parts.
    pub(crate) fn build(
        backend: &mut dyn Backend,
        model: &Model,
        cut: Cut,
        stage: &StageConfig,
        shape: Shape,
        config: ActivationConfig,
        params: Vec<Param>,
        beside: Option<Scratch>,
    ) -> Result<Decoder, ModelError> {
        let (span, train) = (&stage.span, shape.purpose == Purpose::Train);
        let table = ParamTable::new(params, &span.params(model), train)?;
        let layer = |i: usize| Layer {
            index: i,
            attention: AttentionBlock::new(model, &cut, &table, i),
            mlp: MlpBlock::new(model, &table, i),
            dropout: LayerPlaces {
                attention: format!("layers.{i}.attention.dropout"),
                attention_out: format!("layers.{i}.attention.out.dropout"),
                mlp_out: format!("layers.{i}.mlp.down.dropout"),
            },
        };
        let embedding = match span.embedding {
            true => Some(EmbeddingTables::new(backend, model, &cut, &table, span.head)?),
            false => None,
        };
        let decoder = Decoder {
            model: model.clone(),
            stage: stage.clone(),
            portion: None,
            cut,
            shape,
            config,
            embedding,
            layers: span.layers.clone().map(layer).collect(),
            head: span.head.then(|| Head::new(model, &cut, &table, span.embedding)),
            others: others(&table, span),
            params: table.params,
            act: Activations::alloc(backend, model, &cut, shape, config, stage, beside)?,
            held: Held::new(stage),
            default_positions: (0..shape.tokens()).map(|n| (n % shape.seq) as u32).collect(),
            documents: if model.document_end.is_some() { vec![0; shape.tokens()] } else { Vec::new() },
            losses: vec![0.0; if train { 2 } else { 1 } * if span.head { shape.tokens() } else { 0 }],
        };
        decoder.plan(backend)?;
        Ok(decoder)
    }

    /// The model; of a portion, what is here of it as a model. Of a stage all of it: [`Decoder::stage`] says what is here.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Adds `weight * lse^2` of every scored token to what gradients are taken of, lse the log-sum-exp of its logits
    /// (z-loss; Chowdhery et al. 2022, PaLM: 1e-4). Reported losses stay the cross-entropy, [`LossSum::lse_squared`] tells
    /// the other part. 0, the default, is none. A stage without the head has no use for it.
    pub fn set_z_loss(&mut self, weight: f32) {
        if let Some(head) = &mut self.head {
            head.z_loss = weight;
        }
    }

    /// The shape of a batch.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Loss and gradients of one micro-batch, on one device. See [`Decoder::forward_backward_through`].
    pub fn forward_backward(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        ctx: &StepContext,
    ) -> Result<LossSum, ModelError> {
        self.forward_backward_through(backend, &mut OneDevice, batch, ctx)
    }

    /// Loss and gradients of one micro-batch: gradients of `loss_scale * sum of token losses` replace or are added to
    /// the parameters' gradients. `seams` is called at the named places.
    ///
    /// # Errors
    /// A batch of another shape or with foreign indices (nothing is launched then), a decoder made to score, or what
    /// the backend answers.
    pub fn forward_backward_through(
        &mut self,
        backend: &mut dyn Backend,
        seams: &mut dyn Seams,
        batch: &TokenBatch<'_>,
        ctx: &StepContext,
    ) -> Result<LossSum, ModelError> {
        self.expect_training()?;
        self.expect_all_layers("a pass from tokens to the loss")?;
        self.check_seams(seams)?;
        self.check_batch(batch)?;
        self.fill(backend, seams, 0, batch, Some(ctx))?;
        let loss = self.backward_of(backend, seams, 0, ctx, ctx.accumulate.into(), None)?;
        Ok(loss.unwrap_or_default())
    }

    /// Loss of one batch, without dropout. `per_token`, if given, receives the loss of every token in nats (0 where
    /// the target is ignored) and must have room for exactly the batch.
    pub fn loss(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ModelError> {
        self.loss_through(backend, &mut OneDevice, batch, per_token)
    }

    /// As [`Decoder::loss`], with seams.
    pub fn loss_through(
        &mut self,
        backend: &mut dyn Backend,
        seams: &mut dyn Seams,
        batch: &TokenBatch<'_>,
        per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ModelError> {
        self.expect_all_layers("a pass from tokens to the loss")?;
        self.check_seams(seams)?;
        self.check_batch(batch)?;
        expect_room("per_token", per_token.as_deref(), self.shape.tokens())?;
        self.fill(backend, seams, 0, batch, None)?;
        self.loss_of(backend, seams, 0, per_token)
    }

    /// Logits of every token of a batch, without dropout; `visit(n, logits)` is called for n = 0, 1, ... with row n
    /// (sequence n / T, position n % T). Targets are not looked at beyond the checks.
    pub fn logits(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.logits_through(backend, &mut OneDevice, batch, visit)
    }

    /// As [`Decoder::logits`], with seams.
    pub fn logits_through(
        &mut self,
        backend: &mut dyn Backend,
        seams: &mut dyn Seams,
        batch: &TokenBatch<'_>,
        mut visit: impl FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.expect_whole("a row of logits")?;
        self.check_batch(batch)?;
        self.fill(backend, seams, 0, batch, None)?;
        let mut pass = Pass::run(backend, seams);
        let (n, most) = (self.shape.tokens(), self.act.logits_nv);
        let mut host = vec![0.0; most.len()];
        pass.unit(Unit::Head, Phase::Forward, |pass| {
            for first in (0..n).step_by(most.rows) {
                let rows = most.rows.min(n - first);
                self.logits_rows(pass, first, rows)?;
                let host = &mut host[..rows * most.cols];
                pass.read(most.rows(0, rows), host)?;
                for (i, row) in host.chunks_exact(most.cols).enumerate() {
                    visit(first + i, row);
                }
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Parameters besides the layers' matrices and their biases. A tied token table whose embedding is elsewhere is completed
/// by the head.
fn others(table: &ParamTable, span: &Span) -> Vec<(Unit, Weight)> {
    let unit = |p: &Param| match p.spec.id.unit() {
        Unit::Embedding if !span.embedding => Unit::Head,
        unit => unit,
    };
    let other = |p: &&Param| !matches!(p.spec.class(), ParamClass::Matrix | ParamClass::Bias);
    table.params.iter().filter(other).map(|p| (unit(p), table.get(&p.spec.name))).collect()
}

/// Errors unless a host slice, if given, has room for exactly `wanted` values.
pub(crate) fn expect_room(
    what: &'static str,
    slice: Option<&[f32]>,
    wanted: usize,
) -> Result<(), ModelError> {
    match slice {
        Some(s) if s.len() != wanted => Err(ModelError::Shape {
            what,
            wanted: format!("room for {wanted} values"),
            found: s.len().to_string(),
        }),
        _ => Ok(()),
    }
}

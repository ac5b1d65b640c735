//! The whole model on one device: what it holds, and its passes.

use crate::activations::{ActivationConfig, Activations, BackwardScratch};
use crate::attention::{AttentionBlock, AttentionMasks};
use crate::dropout::Masks;
use crate::embedding::EmbeddingTables;
use crate::error::ModelError;
use crate::head::Head;
use crate::mlp::MlpBlock;
use crate::params::{self, Param, ParamTable};
use crate::pass::Pass;
use crate::portion::Cut;
use crate::seams::{OneDevice, Phase, Seams, Unit};
use crate::step::{LossSum, StepContext, TokenBatch};
use bessemer_arch::{Model, Portion};
use bessemer_tensor::op::{DropoutMask, IGNORED};
use bessemer_tensor::{Backend, TensorError};

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
    pub(crate) attention: AttentionBlock,
    pub(crate) mlp: MlpBlock,
    dropout: LayerPlaces,
}

/// Names of a layer's dropout places.
#[derive(Debug)]
struct LayerPlaces {
    attention: String,
    attention_out: String,
    mlp_out: String,
}

/// A decoder whose memory is allocated: parameters, and activations for batches of one [`Shape`].
#[derive(Debug)]
pub struct Decoder {
    /// What is here of the model.
    pub(crate) model: Model,
    pub(crate) portion: Option<Box<Portion>>,
    pub(crate) cut: Cut,
    pub(crate) shape: Shape,
    pub(crate) params: Vec<Param>,
    pub(crate) embedding: EmbeddingTables,
    pub(crate) layers: Vec<Layer>,
    pub(crate) head: Head,
    pub(crate) act: Activations,
    /// 0, 1, ... in every row, or in every document of the last batch.
    default_positions: Vec<u32>,
    /// First position of each token's document in the last batch, if attention stays within documents.
    documents: Vec<u32>,
    /// Host copy of the token losses, and of the log-sum-exps where there are such.
    losses: Vec<f32>,
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
    /// As [`Decoder::new`]; parameters that are not those of [`Model::params`] in their order and shapes, f32, with
    /// gradients if the decoder is to train (the first that is not is named).
    pub fn with_params(
        backend: &mut dyn Backend,
        model: &Model,
        shape: Shape,
        config: ActivationConfig,
        params: Vec<Param>,
    ) -> Result<Decoder, ModelError> {
        shape.check(model)?;
        Decoder::build(backend, model, Cut::whole(model), shape, config, params)
    }

    /// Puts a decoder together from checked parts.
    pub(crate) fn build(
        backend: &mut dyn Backend,
        model: &Model,
        cut: Cut,
        shape: Shape,
        config: ActivationConfig,
        params: Vec<Param>,
    ) -> Result<Decoder, ModelError> {
        let table = ParamTable::new(params, &model.params(), shape.purpose == Purpose::Train)?;
        let layers = (0..model.layers)
            .map(|i| Layer {
                attention: AttentionBlock::new(model, &cut, &table, i),
                mlp: MlpBlock::new(model, &table, i),
                dropout: LayerPlaces {
                    attention: format!("layers.{i}.attention.dropout"),
                    attention_out: format!("layers.{i}.attention.out.dropout"),
                    mlp_out: format!("layers.{i}.mlp.down.dropout"),
                },
            })
            .collect();
        let decoder = Decoder {
            model: model.clone(),
            portion: None,
            cut,
            shape,
            embedding: EmbeddingTables::new(backend, model, &cut, &table)?,
            layers,
            head: Head::new(model, &cut, &table),
            params: table.params,
            act: Activations::alloc(backend, model, &cut, shape, config)?,
            default_positions: (0..shape.tokens()).map(|n| (n % shape.seq) as u32).collect(),
            documents: if model.document_end.is_some() { vec![0; shape.tokens()] } else { Vec::new() },
            losses: vec![0.0; if shape.purpose == Purpose::Train { 2 } else { 1 } * shape.tokens()],
        };
        decoder.plan(backend)?;
        Ok(decoder)
    }

    /// The model; of a portion, what is here of it as a model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Adds `weight * lse^2` of every scored token to what gradients are taken of, lse the log-sum-exp of its logits
    /// (z-loss; Chowdhery et al. 2022, PaLM: 1e-4). Reported losses stay the cross-entropy, [`LossSum::lse_squared`] tells
    /// the other part. 0, the default, is none.
    pub fn set_z_loss(&mut self, weight: f32) {
        self.head.z_loss = weight;
    }

    /// The shape of a batch.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Reserves the workspace of every pass.
    fn plan(&self, backend: &mut dyn Backend) -> Result<(), TensorError> {
        Pass::plan(backend, |pass| {
            self.forward(pass, None)?;
            self.head.loss(pass, &self.act.head, self.act.targets, self.act.dx_nd)?;
            for rows in 1..=self.act.logits_nv.rows {
                self.logits_rows(pass, 0, rows)?;
            }
            if let Some(scratch) = &self.act.backward {
                let ctx =
                    StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
                self.forward(pass, self.masks(&ctx))?;
                self.backward(pass, scratch, &ctx)?;
            }
            Ok(())
        })
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
        let scratch = self.act.backward.ok_or(ModelError::NotForTraining)?;
        self.check_seams(seams)?;
        self.check_batch(batch)?;
        self.upload(backend, batch)?;
        let mut pass = Pass::run(backend, seams);
        self.forward(&mut pass, self.masks(ctx))?;
        self.backward(&mut pass, &scratch, ctx)?;
        let with_lse = self.head.z_loss != 0.0;
        self.read_losses(backend, batch.targets, with_lse)
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
        self.check_seams(seams)?;
        self.check_batch(batch)?;
        expect_room("per_token", per_token.as_deref(), self.shape.tokens())?;
        self.upload(backend, batch)?;
        let mut pass = Pass::run(backend, seams);
        self.forward(&mut pass, None)?;
        pass.unit(Unit::Head, Phase::Forward, |pass| {
            self.head.loss(pass, &self.act.head, self.act.targets, self.act.dx_nd)
        })?;
        let sum = self.read_losses(backend, batch.targets, false)?;
        if let Some(out) = per_token {
            out.copy_from_slice(&self.losses[..out.len()]);
        }
        Ok(sum)
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
        self.upload(backend, batch)?;
        let mut pass = Pass::run(backend, seams);
        self.forward(&mut pass, None)?;
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

    fn logits_rows(&self, pass: &mut Pass<'_>, first: usize, rows: usize) -> Result<(), TensorError> {
        let a = &self.act;
        let x_nd = a.head.x_nd.rows(first, rows);
        self.head.logits(
            pass,
            x_nd,
            a.head.stats.map(|s| s.rows(rows)),
            a.dx_nd.rows(0, rows),
            a.logits_nv.rows(0, rows),
        )
    }

    fn upload(&mut self, backend: &mut dyn Backend, batch: &TokenBatch<'_>) -> Result<(), TensorError> {
        if let (Some(end), Some(view)) = (self.model.document_end, self.act.places.documents) {
            self.find_documents(batch.ids, end);
            backend.write_u32(view, &self.documents)?;
        }
        backend.write_u32(self.act.ids, batch.ids)?;
        backend.write_u32(self.act.targets, batch.targets)?;
        backend.write_u32(self.act.places.positions, batch.positions.unwrap_or(&self.default_positions))
    }

    /// Where documents start within their sequences, and with that the positions: a document ends with its `end` token.
    fn find_documents(&mut self, ids: &[u32], end: u32) {
        let mut start = 0;
        for (n, document) in self.documents.iter_mut().enumerate() {
            let t = n % self.shape.seq;
            if t == 0 || ids[n - 1] == end {
                start = t;
            }
            *document = start as u32;
            self.default_positions[n] = (t - start) as u32;
        }
    }

    fn read_losses(
        &mut self,
        backend: &mut dyn Backend,
        targets: &[u32],
        with_lse: bool,
    ) -> Result<LossSum, ModelError> {
        let n = targets.len();
        let read = &mut self.losses[..if with_lse { 2 * n } else { n }];
        backend.read_f32(self.act.head.loss.rows(0, read.len() / n), read)?;
        let (losses, lse) = read.split_at(n);
        Ok(LossSum {
            nats: losses.iter().map(|&l| f64::from(l)).sum(),
            scored: targets.iter().filter(|&&t| t != IGNORED).count() as u64,
            lse_squared: lse.iter().map(|&l| f64::from(l).powi(2)).sum(),
        })
    }

    fn masks(&self, ctx: &StepContext) -> Option<Masks> {
        (self.model.dropout > 0.0).then_some(Masks {
            p: self.model.dropout as f32,
            seed: ctx.seed,
            step: ctx.step,
            first_sequence: ctx.first_sequence,
        })
    }

    /// Dropout after the embedding.
    fn embedding_mask(&self, masks: Option<Masks>) -> Option<DropoutMask> {
        masks.map(|m| self.hidden_mask(m, "embed.dropout"))
    }

    /// Dropout within a layer: attention weights `[B, H, T, T]`, and the two outputs `[n, d]`.
    fn layer_masks(
        &self,
        layer: &Layer,
        masks: Option<Masks>,
    ) -> (Option<AttentionMasks>, Option<DropoutMask>) {
        let attention = masks.map(|m| AttentionMasks {
            weights: self.cut.attention_mask(m, &layer.dropout.attention, self.shape.seq),
            out: self.hidden_mask(m, &layer.dropout.attention_out),
        });
        (attention, masks.map(|m| self.hidden_mask(m, &layer.dropout.mlp_out)))
    }

    /// Dropout of the stream's rows at a place.
    fn hidden_mask(&self, masks: Masks, place: &str) -> DropoutMask {
        let width = self.model.width;
        self.cut.hidden_mask(masks, place, self.shape.seq * width, width)
    }

    /// From ids to the residual stream's end.
    fn forward(&self, pass: &mut Pass<'_>, masks: Option<Masks>) -> Result<(), TensorError> {
        let act = &self.act;
        // The stream starts where the first layer reads it.
        let x_nd = act.layers.first().map_or(act.head.x_nd, |l| l.attention.stream.x_nd);
        let mask = self.embedding_mask(masks);
        pass.unit(Unit::Embedding, Phase::Forward, |pass| {
            let positions = self.cut.local(act.places.positions);
            self.embedding.forward(pass, act.ids, positions, x_nd, (act.branch_nd, act.whole_nd), mask)
        })?;
        for (i, (layer, a)) in self.layers.iter().zip(&act.layers).enumerate() {
            let (attention_masks, mlp_mask) = self.layer_masks(layer, masks);
            let shape = layer.attention.shape(self.shape.sequences, self.shape.seq);
            pass.unit(Unit::Layer(i), Phase::Forward, |pass| {
                let (attention, branch_nd) = (&layer.attention, act.branch_nd);
                attention.forward(pass, &a.attention, shape, act.places, branch_nd, attention_masks)?;
                layer.mlp.forward(pass, &a.mlp, branch_nd, mlp_mask)
            })?;
        }
        Ok(())
    }

    /// From the residual stream's end to the loss, and back to the embedding tables.
    fn backward(
        &self,
        pass: &mut Pass<'_>,
        scratch: &BackwardScratch,
        ctx: &StepContext,
    ) -> Result<(), TensorError> {
        let (act, masks, accumulate) = (&self.act, self.masks(ctx), ctx.accumulate);
        let (branch_nd, dx_nd) = (act.branch_nd, act.dx_nd);
        pass.unit(Unit::Head, Phase::Backward, |pass| {
            let (targets, scale) = (act.targets, ctx.loss_scale);
            self.head.loss_and_backward(pass, &act.head, targets, scale, branch_nd, dx_nd, accumulate)
        })?;
        for (i, (layer, a)) in self.layers.iter().zip(&act.layers).enumerate().rev() {
            let (attention_masks, mlp_mask) = self.layer_masks(layer, masks);
            let shape = layer.attention.shape(self.shape.sequences, self.shape.seq);
            pass.unit(Unit::Layer(i), Phase::Backward, |pass| {
                layer.mlp.backward(
                    pass,
                    &a.mlp,
                    branch_nd,
                    scratch.dhidden_nf,
                    dx_nd,
                    mlp_mask,
                    accumulate,
                )?;
                layer.attention.backward(
                    pass,
                    &a.attention,
                    shape,
                    act.places,
                    &scratch.attention,
                    dx_nd,
                    attention_masks,
                    accumulate,
                )
            })?;
        }
        let mask = self.embedding_mask(masks);
        pass.unit(Unit::Embedding, Phase::Backward, |pass| {
            let positions = self.cut.local(act.places.positions);
            self.embedding.backward(pass, act.ids, positions, (dx_nd, act.whole_nd), mask, accumulate)
        })
    }
}

/// Errors unless a host slice, if given, has room for exactly `wanted` values.
fn expect_room(what: &'static str, slice: Option<&[f32]>, wanted: usize) -> Result<(), ModelError> {
    match slice {
        Some(s) if s.len() != wanted => Err(ModelError::Shape {
            what,
            wanted: format!("room for {wanted} values"),
            found: s.len().to_string(),
        }),
        _ => Ok(()),
    }
}

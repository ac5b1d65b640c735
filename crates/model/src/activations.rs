//! Memory of a pass: what each layer keeps, and the scratch that all share.

use crate::attention::{AttentionActivations, AttentionScratch, Places};
use crate::decoder::{Purpose, Shape};
use crate::error::ModelError;
use crate::head::HeadActivations;
use crate::mlp::MlpActivations;
use crate::norm::NormStats;
use crate::pending::PendingActivations;
use crate::portion::Cut;
use crate::qk_norm::QkRows;
use crate::residual::StreamActivations;
use crate::stage::StageConfig;
use bessemer_arch::{Model, NormChoice, Placement, Span};
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::{DType, Recompute, Storage};

/// How a decoder made to train keeps its activations. One made to score keeps f32, and nothing longer than a layer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ActivationConfig {
    /// Element type of activations and of their gradients.
    pub storage: Storage,
    /// What the backward pass computes again.
    pub recompute: Recompute,
}

/// Rows of logits made at a time by [`crate::Decoder::logits`].
pub(crate) const LOGIT_ROWS: usize = 16;

/// Allocates matrices of one class.
pub(crate) struct Arena<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) class: &'static str,
    /// Element type of activations.
    pub(crate) storage: Storage,
}

impl Arena<'_> {
    /// Activations.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<View, ModelError> {
        let spec = BufferSpec { class: self.class, name, dtype: self.storage.dtype(), len: rows * cols };
        Ok(self.backend.alloc(spec)?.matrix(rows, cols))
    }

    /// Statistics, sums and losses: f32 whatever the storage.
    pub(crate) fn sums(&mut self, name: &str, rows: usize, cols: usize) -> Result<View, ModelError> {
        let spec = BufferSpec { class: self.class, name, dtype: DType::F32, len: rows * cols };
        Ok(self.backend.alloc(spec)?.matrix(rows, cols))
    }

    pub(crate) fn indices(&mut self, name: &str, count: usize) -> Result<View, ModelError> {
        let spec = BufferSpec { class: self.class, name, dtype: DType::U32, len: count };
        Ok(self.backend.alloc(spec)?.vector())
    }

    /// Statistics of n rows, if the model normalises at all.
    pub(crate) fn stats(
        &mut self,
        name: &str,
        norm: NormChoice,
        n: usize,
    ) -> Result<Option<NormStats>, ModelError> {
        let mean = match norm {
            NormChoice::LayerNorm => Some(self.sums(&format!("{name}.mean"), 1, n)?),
            NormChoice::RmsNorm => None,
            NormChoice::None => return Ok(None),
        };
        Ok(Some(NormStats { mean, rstd: self.sums(&format!("{name}.rstd"), 1, n)? }))
    }

    /// Normalised queries and keys of n rows, if the model has QK-norm.
    pub(crate) fn qk(&mut self, name: &str, model: &Model, n: usize) -> Result<Option<QkRows>, ModelError> {
        if !model.qk_norm {
            return Ok(None);
        }
        let heads = model.heads + model.kv_heads;
        Ok(Some(QkRows {
            rows_nk: self.matrix(&format!("{name}.out"), n, heads * model.head_dim)?,
            rstd_hn: self.sums(&format!("{name}.rstd"), heads, n)?,
        }))
    }

    /// The matrix beside the stream at a block with input `x_nd`: none of its own without normalisation, one for all
    /// layers (`shared`) where the backward pass makes normalised rows again.
    fn side(
        &mut self,
        name: &str,
        model: &Model,
        x_nd: View,
        shared: Option<Recomputed>,
    ) -> Result<View, ModelError> {
        match (model.norm, model.placement, shared) {
            (NormChoice::None, ..) => Ok(x_nd),
            (_, Placement::Pre, Some(Recomputed { normed_nd: Some(normed_nd), .. })) => Ok(normed_nd),
            _ => self.matrix(name, x_nd.rows, x_nd.cols),
        }
    }
}

/// Views of one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerActivations {
    pub(crate) attention: AttentionActivations,
    pub(crate) mlp: MlpActivations,
}

/// Everything that a pass works on besides parameters.
#[derive(Debug)]
pub(crate) struct Activations {
    /// One for each micro-batch in flight.
    pub(crate) slots: Vec<SlotActivations>,
    /// One for each micro-batch between the parts of a split backward pass.
    pub(crate) pending: Vec<PendingActivations>,
    /// Losses of the last loss; if the head is here.
    pub(crate) loss: Option<View>,
    /// Holds nothing between passes.
    pub(crate) scratch: Scratch,
    /// Parts of the scratch in a backward pass; a scorer has none.
    pub(crate) backward: Option<BackwardScratch>,
    /// `[LOGIT_ROWS, v]` at most; none of a part of a model.
    pub(crate) logits_nv: View,
}

/// What passes use and leave nothing in: decoders whose passes take turns may share it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    /// Scratch beside the stream; the output of a block before dropout, the gradient of a normalised input.
    pub(crate) branch_nd: View,
    /// All rows, where the stream (with the matrices beside it) has those that are here.
    pub(crate) whole_nd: Option<View>,
    /// What the backward pass makes again, in a forward pass of a trainer that does: where it goes.
    recomputed: Option<Recomputed>,
    /// Gradients within a block, to train.
    block_nc: Option<View>,
}

impl Scratch {
    /// For passes over a stretch with `layers` or without; `beside` gives what it has of it.
    fn alloc(
        arena: &mut Arena<'_>,
        model: &Model,
        cut: &Cut,
        shape: Shape,
        (again, layers): (bool, bool),
        beside: Option<Scratch>,
    ) -> Result<Scratch, ModelError> {
        let (n, d) = (shape.tokens(), model.width);
        let rows = cut.stream_rows(n);
        let mut scratch = match beside {
            Some(scratch) => scratch,
            None => Scratch {
                branch_nd: arena.matrix("branch", rows, d)?,
                whole_nd: if cut.by_rows() { Some(arena.matrix("all_rows", n, d)?) } else { None },
                recomputed: None,
                block_nc: None,
            },
        };
        if again && layers && scratch.recomputed.is_none() {
            scratch.recomputed = Some(Recomputed::alloc(arena, model, rows, n)?);
        }
        if shape.purpose == Purpose::Train {
            let (j, a, f) = (model.qkv_width(), model.attention_width(), model.ffn_width);
            let blocks = if layers { f.max(j + a + qk_width(model)) } else { 0 };
            let cols = blocks.max(if cut.by_rows() { d } else { 0 });
            if scratch.block_nc.is_none_or(|block| block.cols < cols) {
                scratch.block_nc = Some(arena.matrix("block_gradient", n, cols)?);
            }
        }
        Ok(scratch)
    }

    /// All rows of the gradient that enters the head, where the stream has those that are here.
    fn dwhole_nd(&self) -> Option<View> {
        self.whole_nd.and_then(|whole_nd| self.block(0, whole_nd.cols))
    }

    /// `cols` columns of the block's scratch, behind `offset` others, as a matrix without gaps.
    fn block(&self, offset: usize, cols: usize) -> Option<View> {
        self.block_nc.map(|all| View { offset: all.rows * offset, cols, stride: cols, ..all })
    }
}

/// Columns of queries and keys that QK-norm keeps normalised.
fn qk_width(model: &Model) -> usize {
    if model.qk_norm { (model.heads + model.kv_heads) * model.head_dim } else { 0 }
}

/// What one micro-batch leaves for its backward pass.
#[derive(Debug)]
pub(crate) struct SlotActivations {
    pub(crate) ids: View,
    pub(crate) targets: View,
    pub(crate) places: Places,
    /// Where the stream enters, and where it leaves.
    pub(crate) x_nd: View,
    pub(crate) end_nd: View,
    pub(crate) layers: Vec<LayerActivations>,
    /// If the head is here.
    pub(crate) head: Option<HeadActivations>,
    /// Gradient of the residual stream; in a forward pass with the head the last normalised rows. Without the head it
    /// takes the place of the stream's end, which only the next stage reads.
    pub(crate) dx_nd: View,
}

/// Gradients within a block. Attention and feed-forward block use the same memory one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackwardScratch {
    pub(crate) attention: AttentionScratch,
    pub(crate) dhidden_nf: View,
}

impl Activations {
    /// A trainer keeps every layer's activations; a scorer has one layer's, and a stream of two buffers that take turns.
    /// With `beside` the scratch is that one's.
    pub(crate) fn alloc(
        backend: &mut dyn Backend,
        model: &Model,
        cut: &Cut,
        shape: Shape,
        config: ActivationConfig,
        stage: &StageConfig,
        beside: Option<Scratch>,
    ) -> Result<Activations, ModelError> {
        let n = shape.tokens();
        let (rows, span) = (cut.stream_rows(n), &stage.span);
        let train = shape.purpose == Purpose::Train;
        let storage = if train { config.storage } else { Storage::F32 };
        let mut arena = Arena { backend, class: "activations", storage };
        let again = train && config.recompute == Recompute::Selective;
        let layers = !span.layers.is_empty();
        let scratch = Scratch::alloc(&mut arena, model, cut, shape, (again, layers), beside)?;
        let whole_nd = scratch.whole_nd;
        let head = match span.head {
            true => Some(HeadActivations {
                x_nd: scratch.branch_nd,
                stats: match model.placement {
                    Placement::Pre => arena.stats("final_norm", model.norm, rows)?,
                    Placement::Post | Placement::DeepNorm => None,
                },
                loss: arena.sums("loss", if train { 2 } else { 1 }, n)?,
                sums: if cut.is_portion() { Some(arena.sums("loss.sums", 2, n)?) } else { None },
                whole_nd,
                dwhole_nd: scratch.dwhole_nd(),
            }),
            false => None,
        };
        let logit_rows = if cut.is_portion() || !span.is_whole(model) { 0 } else { n.min(LOGIT_ROWS) };
        let logits_nv = arena.matrix("logits", logit_rows, model.vocab_size)?;
        let shared = if again { scratch.recomputed } else { None };
        let mut slots = Vec::with_capacity(stage.slots);
        for _ in 0..stage.slots {
            slots.push(SlotActivations::alloc(
                &mut arena,
                model,
                shape,
                rows,
                span,
                (whole_nd, shared),
                head,
            )?);
        }
        let mut pending = Vec::with_capacity(stage.pending);
        for _ in 0..stage.pending {
            pending.push(PendingActivations::alloc(&mut arena, model, n, span)?);
        }
        let (loss, backward) = (head.map(|h| h.loss), BackwardScratch::new(model, &scratch, layers));
        Ok(Activations { slots, pending, loss, scratch, backward, logits_nv })
    }
}

impl BackwardScratch {
    /// None for a scorer. Without layers nothing uses it.
    fn new(model: &Model, scratch: &Scratch, layers: bool) -> Option<BackwardScratch> {
        let (j, a, k) = (model.qkv_width(), model.attention_width(), qk_width(model));
        let part =
            |offset, cols| scratch.block(if layers { offset } else { 0 }, if layers { cols } else { 0 });
        Some(BackwardScratch {
            attention: AttentionScratch {
                branch_nd: scratch.branch_nd,
                dqkv_nj: part(0, j)?,
                dqk_nk: if model.qk_norm { part(j + a, k) } else { None },
                dmixed_na: part(j, a)?,
            },
            dhidden_nf: part(0, model.ffn_width)?,
        })
    }
}

impl SlotActivations {
    /// `shared` by all slots: all rows of a stream that is cut, and what is computed again. `head`, if it is here, but for
    /// its input.
    fn alloc(
        arena: &mut Arena<'_>,
        model: &Model,
        shape: Shape,
        rows: usize,
        span: &Span,
        (whole_nd, shared): (Option<View>, Option<Recomputed>),
        head: Option<HeadActivations>,
    ) -> Result<SlotActivations, ModelError> {
        let n = shape.tokens();
        let ids = arena.indices("ids", n)?;
        let targets = arena.indices("targets", n)?;
        let places = Places {
            positions: arena.indices("positions", n)?,
            documents: match model.document_end {
                Some(_) => Some(arena.indices("documents", n)?),
                None => None,
            },
        };
        let x_nd = arena.matrix(if span.embedding { "embed.out" } else { "stage.in" }, rows, model.width)?;
        let mut end_nd = x_nd;
        let mut layers: Vec<LayerActivations> = Vec::with_capacity(span.layers.len());
        for i in span.layers.clone() {
            let layer = match layers.first() {
                Some(first) if shape.purpose == Purpose::Score => *first,
                _ => layer(arena, model, shape, i, (end_nd, whole_nd), shared)?,
            };
            end_nd = layer.mlp.stream.x_out_nd;
            layers.push(layer);
        }
        let head = head.map(|h| HeadActivations { x_nd: end_nd, ..h });
        let dx_nd = match head {
            Some(_) => arena.matrix("stream_gradient", rows, model.width)?,
            None => end_nd,
        };
        Ok(SlotActivations { ids, targets, places, x_nd, end_nd, layers, head, dx_nd })
    }
}

/// What the backward pass computes again: one place for all layers.
#[derive(Debug, Clone, Copy)]
struct Recomputed {
    /// Normalised rows, in a model that has such: after a sum there is nothing to make again.
    normed_nd: Option<View>,
    hidden_nf: View,
}

impl Recomputed {
    /// For a stream of `rows` rows, of `n`.
    fn alloc(arena: &mut Arena<'_>, model: &Model, rows: usize, n: usize) -> Result<Recomputed, ModelError> {
        let normed = model.norm != NormChoice::None && model.placement == Placement::Pre;
        Ok(Recomputed {
            normed_nd: if normed { Some(arena.matrix("norm.out", rows, model.width)?) } else { None },
            hidden_nf: arena.matrix("mlp.hidden", n, model.ffn_width)?,
        })
    }
}

/// The activations of layer `i`, whose input is `x_nd` (beside a place for all rows, if those are not all).
fn layer(
    arena: &mut Arena<'_>,
    model: &Model,
    shape: Shape,
    i: usize,
    (x_nd, whole_nd): (View, Option<View>),
    shared: Option<Recomputed>,
) -> Result<LayerActivations, ModelError> {
    let (n, rows, d) = (shape.tokens(), x_nd.rows, model.width);
    let name = |part: &str| format!("layers.{i}.{part}");
    let train = shape.purpose == Purpose::Train;
    let attention = AttentionActivations {
        stream: StreamActivations {
            x_nd,
            stats: arena.stats(&name("attention_norm"), model.norm, rows)?,
            side_nd: arena.side(&name("attention_norm.out"), model, x_nd, shared)?,
            recompute: shared.is_some(),
            x_out_nd: arena.matrix(&name("attention.out"), rows, d)?,
            whole_nd,
            kept: None,
        },
        qkv_nj: arena.matrix(&name("attention.qkv.out"), n, model.qkv_width())?,
        qk: arena.qk(&name("attention.qk_norm"), model, n)?,
        mixed_na: arena.matrix(&name("attention.mixed"), n, model.attention_width())?,
        lse: arena.sums(&name("attention.lse"), shape.sequences * model.heads, shape.seq)?,
    };
    let before = attention.stream;
    let mlp = MlpActivations {
        stream: match train {
            true => StreamActivations {
                x_nd: before.x_out_nd,
                stats: arena.stats(&name("mlp_norm"), model.norm, rows)?,
                side_nd: arena.side(&name("mlp_norm.out"), model, before.x_out_nd, shared)?,
                x_out_nd: arena.matrix(&name("mlp.out"), rows, d)?,
                ..before
            },
            false => StreamActivations {
                x_nd: before.x_out_nd,
                side_nd: if model.norm == NormChoice::None { before.x_out_nd } else { before.side_nd },
                x_out_nd: x_nd,
                ..before
            },
        },
        recompute: shared.is_some(),
        pre_np: arena.matrix(&name("mlp.pre"), n, model.mlp_in_width())?,
        hidden_nf: match shared {
            Some(s) => s.hidden_nf,
            None => arena.matrix(&name("mlp.hidden"), n, model.ffn_width)?,
        },
        dpre_np: None,
    };
    Ok(LayerActivations { attention, mlp })
}

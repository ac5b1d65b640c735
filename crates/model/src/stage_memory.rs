//! What a stage of a pipeline holds, in closed form.

use crate::activations::{ActivationConfig, LOGIT_ROWS};
use crate::decoder::{Purpose, Shape};
use crate::error::ModelError;
use crate::portion::{Cut, Stream};
use crate::stage::StageConfig;
use bessemer_arch::{Model, NormChoice, Placement, Portion, PositionChoice, Span};
use bessemer_units::{Bytes, Recompute, Storage};

/// Bytes of a stage by what they depend on, as the backend's ledger counts them: "activations" are
/// `shared + slots * per_slot + pending * per_pending`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageMemory {
    /// Elements of the span's parameters, and of their gradients.
    pub parameters: usize,
    /// Bytes of "constants": a fixed table of positions.
    pub constants: Bytes,
    /// Bytes of activations that all slots share.
    pub shared: Bytes,
    /// The part of `shared` that holds nothing between passes: stages on one device have it once
    /// ([`crate::Decoder::of_stage_beside`]).
    pub scratch: Bytes,
    /// Bytes of one slot (M_B).
    pub per_slot: Bytes,
    /// Bytes of one pending set (M_W).
    pub per_pending: Bytes,
}

impl StageMemory {
    /// Bytes of the class "activations" with so many slots and pending sets.
    pub fn activations(&self, slots: usize, pending: usize) -> Bytes {
        Bytes(self.shared.0 + slots as u64 * self.per_slot.0 + pending as u64 * self.per_pending.0)
    }
}

/// The letters of the formulas.
struct Sizes {
    /// Rows: all, and those of the stream that are here.
    n: usize,
    r: usize,
    l: usize,
    d: usize,
    j: usize,
    a: usize,
    p: usize,
    f: usize,
    /// Columns and statistics of QK-norm.
    k: usize,
    heads: usize,
    /// Numbers that a normalisation keeps for each row.
    stats: usize,
    /// Log-sum-exps of one layer's attention.
    lse: usize,
}

impl Sizes {
    fn new(model: &Model, shape: Shape, cut: &Cut, span: &Span) -> Sizes {
        let heads = model.heads + model.kv_heads;
        Sizes {
            n: shape.tokens(),
            r: cut.stream_rows(shape.tokens()),
            l: span.layers.len(),
            d: model.width,
            j: model.qkv_width(),
            a: model.attention_width(),
            p: model.mlp_in_width(),
            f: model.ffn_width,
            k: if model.qk_norm { heads * model.head_dim } else { 0 },
            heads: if model.qk_norm { heads } else { 0 },
            stats: match model.norm {
                NormChoice::LayerNorm => 2,
                NormChoice::RmsNorm => 1,
                NormChoice::None => 0,
            },
            lse: shape.sequences * model.heads * shape.seq,
        }
    }
}

/// What a stage of such a span will hold, without allocating anything. Letters as in [`crate::Decoder::new`], of the
/// portion's model, with L the layers of the span, r = n rows of the stream (n / t if it is cut by rows) and h = 1 with the
/// head, 0 without. To train:
/// - a slot: `s (r ((2L + 1 + h) D + N) + n L (J + A + P + K + Q)) + 4 (r 2 L stats + n (L K / E + 3) + L B H T)`, with
///   N = 2 L D of normalised rows or sums that are stored and Q = F of hidden values, both 0 where they are computed again
///   ([`Recompute`]; sums of post-normalised blocks are always stored, nothing is without normalisation); documents add an
///   index to each row;
/// - a pending set: `s n L (4 D + J + A + P + F)`: x and dy of four linear maps;
/// - scratch: `s r D`, and with layers `s n max(F, J + A + K)` and, where they are computed again, `s (r D + n F)` (no D
///   where nothing is normalised before a block); for a stream that is cut by rows `s n D`, and the maximum is D at least,
///   with layers or without;
/// - shared: the scratch, and with the head `4 (2 n + r last stats)`, 2 n numbers more for a portion, `s min(n, 16) V` for a
///   whole model.
///
/// To score nothing is kept for a backward pass: L counts as 1 (0 if there is none), a slot has 2 D for the stream and D
/// for normalised rows, and the scratch of the backward pass is not there.
///
/// Slots and pending sets are sums of their own: a schedule whose peaks of both come at different times holds the sum of
/// both peaks. With [`Recompute::Selective`] a pending set is larger than a slot (GPT-2's layer: 16 n D against 10 n D
/// elements), because the weight part wants inputs that a slot does not store; without recomputation they are alike.
///
/// # Errors
/// As [`crate::Decoder::of_stage`].
pub fn stage_memory(
    portion: &Portion,
    stream: Stream,
    shape: Shape,
    config: ActivationConfig,
    span: &Span,
) -> Result<StageMemory, ModelError> {
    shape.check(&portion.whole)?;
    StageConfig { span: span.clone(), slots: 1, pending: 0 }.check(&portion.model, shape.purpose)?;
    let cut = Cut::of(portion, stream, shape)?;
    let model = &portion.model;
    let z = Sizes::new(model, shape, &cut, span);
    let train = shape.purpose == Purpose::Train;
    let s = if train && config.storage == Storage::Bf16 { 2 } else { 4 };
    let again = train && config.recompute == Recompute::Selective;
    let fixed = span.embedding && model.positions == PositionChoice::Sinusoidal;
    let bytes = |stored: usize, numbers: usize| Bytes((s * stored + 4 * numbers) as u64);
    let (stored, numbers) = slot(model, &z, span, train, again);
    let per_slot = bytes(stored, numbers);
    let scratch = scratch(model, &z, &cut, train, again);
    let (stored, numbers) = shared(model, &z, &cut, span, train);
    let pending = z.n * z.l * (4 * z.d + z.j + z.a + z.p + z.f);
    Ok(StageMemory {
        parameters: span.params(model).iter().map(|p| p.len()).sum(),
        constants: Bytes(if fixed { 4 * (model.context * model.width) as u64 } else { 0 }),
        shared: bytes(scratch + stored, numbers),
        scratch: bytes(scratch, 0),
        per_slot,
        per_pending: if train { bytes(pending, 0) } else { Bytes(0) },
    })
}

/// Elements of a slot: activations, and numbers of four bytes.
fn slot(model: &Model, z: &Sizes, span: &Span, train: bool, again: bool) -> (usize, usize) {
    let indices = 3 + usize::from(model.document_end.is_some());
    let head = usize::from(span.head);
    // Layers that have memory of their own.
    let l = if train { z.l } else { z.l.min(1) };
    let sides = match (model.norm, model.placement) {
        (NormChoice::None, _) => 0,
        _ if !train => l,
        (_, Placement::Pre) if again => 0,
        _ => 2 * l,
    };
    let stream = if train { 2 * l } else { l } + 1 + head;
    let hidden = if again { 0 } else { z.f };
    let normalised = if train { 2 * l } else { l };
    let stored = z.r * (stream + sides) * z.d + z.n * l * (z.j + z.a + z.p + z.k + hidden);
    (stored, z.r * normalised * z.stats + z.n * (l * z.heads + indices) + l * z.lse)
}

/// Elements of scratch.
fn scratch(model: &Model, z: &Sizes, cut: &Cut, train: bool, again: bool) -> usize {
    let layers = usize::from(z.l > 0);
    let mut stored = z.r * z.d;
    if cut.by_rows() {
        stored += z.n * z.d;
    }
    if again {
        let normed = model.placement == Placement::Pre && model.norm != NormChoice::None;
        stored += layers * (z.r * if normed { z.d } else { 0 } + z.n * z.f);
    }
    if train {
        let gathered = if cut.by_rows() { z.d } else { 0 };
        stored += z.n * (layers * z.f.max(z.j + z.a + z.k)).max(gathered);
    }
    stored
}

/// Elements besides scratch that all slots share: activations, and numbers of four bytes.
fn shared(model: &Model, z: &Sizes, cut: &Cut, span: &Span, train: bool) -> (usize, usize) {
    if !span.head {
        return (0, 0);
    }
    let logits =
        if span.is_whole(model) && !cut.is_portion() { z.n.min(LOGIT_ROWS) * model.vocab_size } else { 0 };
    let sums = if cut.is_portion() { 2 } else { 0 };
    let losses = z.n * (if train { 2 } else { 1 } + sums);
    (logits, losses + if model.placement == Placement::Pre { z.r * z.stats } else { 0 })
}

//! Memory of decoding: keys and values of every layer, and activations for a few rows.

use crate::activations::Arena;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::norm::NormStats;
use crate::pass::Pass;
use crate::qk_norm::QkRows;
use bessemer_tensor::{Backend, View};
use bessemer_units::Storage;

/// Rows of a decoding pass at most, unless there are more sequences: longer prompts go through in pieces.
const CHUNK_ROWS: usize = 128;

/// Keys and values of `sequences` sequences of up to `capacity` positions, all of the same length at any time.
///
/// Layout of keys and of values of a layer: `[sequences * capacity, G E]`, row b * capacity + position.
/// Class "cache": `4 (2 L B C G E + r (4 D + J + A + P + F + stats + 2) + B (V + D))` bytes, r = rows of a pass
/// (B max(1, min(C, 128 / B))), the letters as in [`Decoder::new`]; QK-norm adds (H + G) (E + 1) to each of the r rows.
#[derive(Debug)]
pub struct Cache {
    pub(crate) sequences: usize,
    pub(crate) capacity: usize,
    /// Positions held.
    pub(crate) len: usize,
    /// Positions of one pass at most.
    pub(crate) chunk: usize,
    /// First position of the document that position `[p]` belongs to, for p up to the one that comes next; all 0
    /// unless attention stays within documents.
    pub(crate) starts: Vec<usize>,
    /// Keys and values of each layer.
    pub(crate) layers: Vec<[View; 2]>,
    pub(crate) rows: RowActivations,
    /// `[B, D]`: the last rows, normalised.
    pub(crate) last_bd: View,
    pub(crate) logits_bv: View,
    pub(crate) host: HostRows,
}

/// Device activations of one pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowActivations {
    pub(crate) ids: View,
    pub(crate) positions: View,
    pub(crate) x_nd: View,
    pub(crate) x_mid_nd: View,
    pub(crate) normed_nd: View,
    pub(crate) branch_nd: View,
    pub(crate) stats: Option<NormStats>,
    pub(crate) qkv_nj: View,
    pub(crate) qk: Option<QkRows>,
    pub(crate) mixed_na: View,
    pub(crate) pre_np: View,
    pub(crate) hidden_nf: View,
}

/// Host side of one pass, kept so that a step allocates nothing.
#[derive(Debug)]
pub(crate) struct HostRows {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) logits: Vec<f32>,
}

impl RowActivations {
    fn alloc(
        arena: &mut Arena<'_>,
        model: &bessemer_arch::Model,
        n: usize,
    ) -> Result<RowActivations, ModelError> {
        let d = model.width;
        Ok(RowActivations {
            ids: arena.indices("ids", n)?,
            positions: arena.indices("positions", n)?,
            x_nd: arena.matrix("stream", n, d)?,
            x_mid_nd: arena.matrix("stream_mid", n, d)?,
            normed_nd: arena.matrix("normed", n, d)?,
            branch_nd: arena.matrix("branch", n, d)?,
            stats: arena.stats("norm", model.norm, n)?,
            qkv_nj: arena.matrix("qkv", n, model.qkv_width())?,
            qk: arena.qk("qk_norm", model, n)?,
            mixed_na: arena.matrix("mixed", n, model.attention_width())?,
            pre_np: arena.matrix("pre", n, model.mlp_in_width())?,
            hidden_nf: arena.matrix("hidden", n, model.ffn_width)?,
        })
    }

    /// The same for the first `n` rows.
    pub(crate) fn first(&self, n: usize) -> RowActivations {
        RowActivations {
            ids: self.ids.columns(0, n),
            positions: self.positions.columns(0, n),
            x_nd: self.x_nd.rows(0, n),
            x_mid_nd: self.x_mid_nd.rows(0, n),
            normed_nd: self.normed_nd.rows(0, n),
            branch_nd: self.branch_nd.rows(0, n),
            stats: self.stats.map(|s| s.rows(n)),
            qkv_nj: self.qkv_nj.rows(0, n),
            qk: self.qk.map(|r| r.rows(n)),
            mixed_na: self.mixed_na.rows(0, n),
            pre_np: self.pre_np.rows(0, n),
            hidden_nf: self.hidden_nf.rows(0, n),
        }
    }
}

impl Cache {
    /// Allocates room for `sequences` sequences of `capacity` positions and reserves the workspace of decoding.
    ///
    /// # Errors
    /// No sequence, a capacity beyond the model's context, or what the backend answers.
    pub fn new(
        backend: &mut dyn Backend,
        decoder: &Decoder,
        sequences: usize,
        capacity: usize,
    ) -> Result<Cache, ModelError> {
        decoder.expect_whole("decoding with a cache")?;
        let model = decoder.model();
        if capacity == 0 || capacity > model.context {
            return Err(ModelError::Shape {
                what: "cache capacity",
                wanted: format!("1 to the model's context of {}", model.context),
                found: capacity.to_string(),
            });
        }
        let kv = model.kv_heads * model.head_dim;
        let widest = model.vocab_size.max(model.mlp_in_width()).max(model.qkv_width()).max(kv);
        let most = isize::MAX as usize / 4 / widest / capacity;
        if sequences == 0 || sequences > most {
            return Err(ModelError::Shape {
                what: "cache sequences",
                wanted: format!("1 to {most}"),
                found: sequences.to_string(),
            });
        }
        let chunk = (CHUNK_ROWS / sequences).clamp(1, capacity);
        let n = sequences * chunk;
        let mut arena = Arena { backend, class: "cache", storage: Storage::F32 };
        let mut layers = Vec::with_capacity(model.layers);
        for i in 0..model.layers {
            let mut part = |what: &str| arena.matrix(&format!("layers.{i}.{what}"), sequences * capacity, kv);
            layers.push([part("keys")?, part("values")?]);
        }
        let cache = Cache {
            sequences,
            capacity,
            len: 0,
            starts: vec![0; capacity + 1],
            chunk,
            layers,
            rows: RowActivations::alloc(&mut arena, model, n)?,
            last_bd: arena.matrix("last", sequences, model.width)?,
            logits_bv: arena.matrix("logits", sequences, model.vocab_size)?,
            host: HostRows {
                ids: vec![0; n],
                positions: vec![0; n],
                logits: vec![0.0; sequences * model.vocab_size],
            },
        };
        Pass::plan(backend, |pass| {
            for new in 1..=chunk {
                for past in [0, capacity - new] {
                    decoder.decode_rows(pass, &cache, 0, past, new)?;
                    decoder.decode_logits(pass, &cache, new)?;
                }
            }
            Ok(())
        })?;
        Ok(cache)
    }

    /// Sequences.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Positions that each sequence has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Positions that each sequence holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if nothing has been decoded since the start or the last reset.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all positions from `len` on (a common beginning is then decoded once). Does nothing if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

//! Decoding with cached keys and values: prompts and single steps go the same way.

use crate::cache::Cache;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::mlp::MlpActivations;
use crate::pass::Pass;
use crate::residual::StreamActivations;
use crate::seams::OneDevice;
use crate::step::check_indices;
use bessemer_tensor::op::{AttentionCached, Copy};
use bessemer_tensor::{Backend, TensorError, View};

impl Decoder {
    /// Appends `ids` `[sequences, new]` (row-major) to the cache and returns the logits `[sequences, V]` that follow the
    /// last of them. A prompt longer than fits one pass goes through in pieces.
    ///
    /// # Errors
    /// A number of ids that the sequences do not divide, ids outside the vocabulary, or no room (nothing has happened
    /// then); what the backend answers (the cache then holds the pieces that went through).
    pub fn decode<'c>(
        &self,
        backend: &mut dyn Backend,
        cache: &'c mut Cache,
        ids: &[u32],
    ) -> Result<&'c [f32], ModelError> {
        self.expect_whole("decoding with a cache")?;
        let b = cache.sequences;
        if ids.is_empty() || !ids.len().is_multiple_of(b) {
            return Err(ModelError::Shape {
                what: "ids",
                wanted: format!("the same number of tokens, at least one, for each of {b} sequences"),
                found: format!("{} tokens", ids.len()),
            });
        }
        let total = ids.len() / b;
        if total > cache.capacity - cache.len {
            return Err(ModelError::CacheFull { len: cache.len, new: total, capacity: cache.capacity });
        }
        check_indices("ids", ids, self.model.vocab_size, false)?;
        if let (Some(end), true) = (self.model.document_end, b > 1)
            && let Some(at) = ids.iter().position(|id| *id == end)
        {
            return Err(ModelError::Shape {
                what: "sequences",
                wanted: "one in the cache of a model whose attention stays within documents".into(),
                found: format!("{b}, and ids[{at}] ends a document"),
            });
        }
        let mut first = 0;
        while first < total {
            let mut new = cache.chunk.min(total - first);
            let past = cache.len;
            let start = cache.starts[past];
            if let Some(end) = self.model.document_end {
                // A pass ends with its document: the next one's rows see other keys.
                let last = ids[first..first + new].iter().position(|id| b == 1 && *id == end);
                new = last.map_or(new, |at| at + 1);
                cache.starts[past + 1..past + new].fill(start);
                cache.starts[past + new] = if last.is_some() { past + new } else { start };
            }
            for sequence in 0..b {
                let to = sequence * new..(sequence + 1) * new;
                let from = sequence * total + first;
                cache.host.ids[to.clone()].copy_from_slice(&ids[from..from + new]);
                for (i, p) in cache.host.positions[to].iter_mut().enumerate() {
                    *p = (past - start + i) as u32;
                }
            }
            let rows = cache.rows.first(b * new);
            backend.write_u32(rows.ids, &cache.host.ids[..b * new])?;
            backend.write_u32(rows.positions, &cache.host.positions[..b * new])?;
            let mut seams = OneDevice;
            let mut pass = Pass::run(backend, &mut seams);
            self.decode_rows(&mut pass, cache, start, past, new)?;
            if first + new == total {
                self.decode_logits(&mut pass, cache, new)?;
            }
            cache.len += new;
            first += new;
        }
        backend.read_f32(cache.logits_bv, &mut cache.host.logits)?;
        Ok(&cache.host.logits)
    }

    /// Runs `new` positions of every sequence through all layers, after `past` positions of which those before `start`
    /// are not seen (0 with more than one sequence).
    pub(crate) fn decode_rows(
        &self,
        pass: &mut Pass<'_>,
        cache: &Cache,
        start: usize,
        past: usize,
        new: usize,
    ) -> Result<(), TensorError> {
        let r = cache.rows.first(cache.sequences * new);
        self.embedding()?.forward(pass, r.ids, r.positions, r.x_nd, (r.branch_nd, None), None)?;
        let stream = |x_nd, x_out_nd| StreamActivations {
            x_nd,
            stats: r.stats,
            // Without normalisation a block reads the stream itself.
            side_nd: if r.stats.is_some() { r.normed_nd } else { x_nd },
            recompute: false,
            x_out_nd,
            whole_nd: None,
            kept: None,
        };
        let (first, second) = (stream(r.x_nd, r.x_mid_nd), stream(r.x_mid_nd, r.x_nd));
        for (layer, [k_cache, v_cache]) in self.layers.iter().zip(&cache.layers) {
            layer.attention.project(pass, &first, r.qkv_nj, r.qk, r.positions)?;
            let [q, k, v] = layer.attention.split(r.qkv_nj, r.qk.map(|q| q.rows_nk));
            append(pass, cache, k, *k_cache, past, new)?;
            append(pass, cache, v, *v_cache, past, new)?;
            let seen = |cache_ng: View| cache_ng.rows(start, cache_ng.rows - start);
            pass.launch(AttentionCached {
                shape: layer.attention.shape(cache.sequences, new),
                past: past - start,
                capacity: cache.capacity - start,
                window: layer.attention.window,
                alibi: layer.attention.alibi,
                q,
                k_cache: seen(*k_cache),
                v_cache: seen(*v_cache),
                out: r.mixed_na,
            })?;
            layer.attention.finish(pass, r.mixed_na, &first, r.branch_nd, None)?;
            let mlp = MlpActivations {
                stream: second,
                recompute: false,
                pre_np: r.pre_np,
                hidden_nf: r.hidden_nf,
                dpre_np: None,
            };
            layer.mlp.forward(pass, &mlp, r.branch_nd, None)?;
        }
        Ok(())
    }

    /// Logits of the last of `new` rows of every sequence.
    pub(crate) fn decode_logits(
        &self,
        pass: &mut Pass<'_>,
        cache: &Cache,
        new: usize,
    ) -> Result<(), TensorError> {
        let x_nd = cache.rows.x_nd;
        let last_bd =
            View { offset: (new - 1) * x_nd.cols, rows: cache.sequences, stride: new * x_nd.cols, ..x_nd };
        let stats = cache.rows.stats.map(|s| s.rows(cache.sequences));
        self.head()?.logits(pass, last_bd, stats, cache.last_bd, cache.logits_bv)
    }
}

/// Copies the new rows of every sequence behind its old ones.
fn append(
    pass: &mut Pass<'_>,
    cache: &Cache,
    new_ng: View,
    cache_ng: View,
    past: usize,
    new: usize,
) -> Result<(), TensorError> {
    if new == 1 {
        // One row a sequence: the destination rows are `capacity` rows apart.
        let stride = cache.capacity * cache_ng.stride;
        let dst = View { offset: past * cache_ng.stride, rows: cache.sequences, stride, ..cache_ng };
        return pass.launch(Copy { src: new_ng, dst });
    }
    for b in 0..cache.sequences {
        pass.launch(Copy {
            src: new_ng.rows(b * new, new),
            dst: cache_ng.rows(b * cache.capacity + past, new),
        })?;
    }
    Ok(())
}

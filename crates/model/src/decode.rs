//! Decoding with cached keys and values: prompts and single steps go the same way.

use crate::cache::Cache;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::step::check_indices;
use crate::units::StageUnit;
use bessemer_program::{OneDevice, Phase, StepValues, run};
use bessemer_tensor::{Backend, TensorError, View};

impl Decoder {
    /// Appends `ids` `[sequences, new]` (row-major) to the cache and returns the logits `[sequences, V]` that follow the
    /// last of them. A prompt longer than fits one pass goes through in pieces.
    ///
    /// # Errors
    /// A number of ids that the sequences do not divide, ids outside the vocabulary, or a full cache (nothing has happened
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
            backend.write_u32(cache.ids.columns(0, b * new), &cache.host.ids[..b * new])?;
            backend.write_u32(cache.positions.columns(0, b * new), &cache.host.positions[..b * new])?;
            self.decode_rows(backend, cache, start, past, new)?;
            if first + new == total {
                let external = [cache.last_rows(new), cache.logits_bv];
                self.decode_unit(backend, cache, |c| &c.head, &external, &StepValues::default())?;
            }
            cache.len += new;
            first += new;
        }
        backend.read_f32(cache.logits_bv, &mut cache.host.logits)?;
        Ok(&cache.host.logits)
    }

    /// Runs `new` positions of every sequence through all layers, after `past` positions of which those before `start`
    /// are not seen (0 with more than one sequence).
    fn decode_rows(
        &self,
        backend: &mut dyn Backend,
        cache: &mut Cache,
        start: usize,
        past: usize,
        new: usize,
    ) -> Result<(), TensorError> {
        let values = cache.step(start, past);
        self.decode_unit(backend, cache, |c| &c.passes[new - 1].embedding, &[], &values)?;
        for layer in 0..cache.layers.len() {
            let external = cache.external(cache.layers[layer], start, past);
            // The parameters of one layer stand behind those of the one before.
            let unit = &mut cache.passes[new - 1].layer;
            unit.parameters.clone_from(&self.units[1 + layer].parameters);
            self.decode_unit(backend, cache, |c| &c.passes[new - 1].layer, &external, &values)?;
            let [x, x_out] = cache.stream;
            if x != x_out {
                cache.stream = [x_out, x];
            }
        }
        Ok(())
    }

    fn decode_unit(
        &self,
        backend: &mut dyn Backend,
        cache: &mut Cache,
        unit: impl Fn(&Cache) -> &StageUnit,
        external: &[View],
        values: &StepValues,
    ) -> Result<(), TensorError> {
        let mut table = std::mem::take(&mut cache.table);
        let unit = unit(cache);
        cache.binding(self, unit, external).fill(&mut table);
        let program = &unit.program;
        let result = run(program, Phase::Score, (&table, &unit.parameters), values, backend, &mut OneDevice);
        cache.table = table;
        result
    }
}

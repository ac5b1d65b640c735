//! What a scheduler asks of a model: sequences in slots, pieces of prompts, one position of many.

use bessemer_runtime::{Cache, Decoder, MIN_PASS_ROWS, ModelError, NextPosition};
use bessemer_tensor::{Backend, MemoryUse};

/// Rows of logits of a prompt that are made in one product where all are asked for.
pub const LOGIT_ROWS: usize = 32;

/// One model or several with sequences in slots, which they share. The logits of a sequence must not depend on the other slots.
pub trait Engine {
    /// Sequences at a time.
    fn slots(&self) -> usize;

    /// Positions of a sequence.
    fn capacity(&self) -> usize;

    /// Positions of a prompt that one call should bring at most; a prompt is cut at multiples of it.
    fn chunk(&self) -> usize;

    /// Tokens of a piece from which on its numbers do not depend on where the prompt before it was cut into pieces; None if they always do, and a prompt
    /// goes through as a whole.
    fn free_piece(&self) -> Option<usize>;

    /// Begins a sequence of a model in a slot, of which the first `len` positions stay: those of the same model.
    fn begin(&mut self, slot: usize, model: usize, len: usize);

    /// Copies the first `len` positions of slot `from` to slot `to`, which begins as it does and has the same model.
    ///
    /// # Errors
    /// The error of the model or its device.
    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<(), ModelError>;

    /// Appends a piece of a prompt to a slot.
    ///
    /// # Errors
    /// The error of the model or its device.
    fn prefill(&mut self, slot: usize, ids: &[u32]) -> Result<(), ModelError>;

    /// As [`Engine::prefill`], and returns the logits that follow the piece.
    ///
    /// # Errors
    /// The error of the model or its device.
    fn decode(&mut self, slot: usize, ids: &[u32]) -> Result<&[f32], ModelError>;

    /// As [`Engine::prefill`]; `visit(i, logits)` is called with the logits that follow `ids[i]`.
    ///
    /// # Errors
    /// The error of the model or its device.
    fn decode_each(
        &mut self,
        slot: usize,
        ids: &[u32],
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError>;

    /// Appends one token to each of several slots and returns the logits that follow, row by row.
    ///
    /// # Errors
    /// The error of the model or its device.
    fn decode_rows(&mut self, rows: &[NextPosition]) -> Result<&[f32], ModelError>;
}

/// A [`Decoder`] with its cache.
pub type CachedModel = (Decoder, Cache);

/// Models on one device: a base, and adapted ones whose decoders share its parameters and whose caches share its memory.
#[derive(Debug)]
pub struct ModelEngine<B> {
    backend: B,
    base: CachedModel,
    /// Models 1, 2, ...
    adapted: Vec<CachedModel>,
    /// Indexed by slot: the model of its sequence.
    model_of: Vec<usize>,
    /// Rows of one model in a pass, and the logits of all.
    rows: Vec<NextPosition>,
    logits: Vec<f32>,
}

/// Model number `number`.
fn model<'a>(
    base: &'a mut CachedModel,
    adapted: &'a mut [CachedModel],
    number: usize,
) -> &'a mut CachedModel {
    number.checked_sub(1).and_then(|at| adapted.get_mut(at)).unwrap_or(base)
}

impl<B: Backend> ModelEngine<B> {
    /// `adapted`: models whose caches are made with [`Cache::sharing`] that of `base`.
    pub fn new(backend: B, base: CachedModel, adapted: Vec<CachedModel>) -> ModelEngine<B> {
        let model_of = vec![0; base.1.slots()];
        ModelEngine { backend, base, adapted, model_of, rows: Vec::new(), logits: Vec::new() }
    }

    /// Memory of the device.
    pub fn memory(&self) -> MemoryUse {
        self.backend.memory()
    }

    /// The device, and the model of a slot.
    fn of_slot(&mut self, slot: usize) -> (&mut B, &mut CachedModel) {
        let number = self.model_of.get(slot).copied().unwrap_or_default();
        (&mut self.backend, model(&mut self.base, &mut self.adapted, number))
    }
}

impl<B: Backend> Engine for ModelEngine<B> {
    fn slots(&self) -> usize {
        self.base.1.slots()
    }

    fn capacity(&self) -> usize {
        self.base.1.capacity()
    }

    fn chunk(&self) -> usize {
        self.base.1.chunk()
    }

    fn free_piece(&self) -> Option<usize> {
        // Where attention stays within documents a piece ends with its document.
        let mut models = std::iter::once(&self.base).chain(&self.adapted).map(|(decoder, _)| decoder.model());
        models.all(|model| model.document_end.is_none()).then_some(MIN_PASS_ROWS)
    }

    fn begin(&mut self, slot: usize, model: usize, len: usize) {
        for (number, (_, cache)) in std::iter::once(&mut self.base).chain(&mut self.adapted).enumerate() {
            cache.truncate(slot, if number == model { len } else { 0 });
        }
        self.model_of[slot] = model;
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<(), ModelError> {
        let (backend, (_, cache)) = self.of_slot(to);
        cache.copy(backend, from, to, len)
    }

    fn prefill(&mut self, slot: usize, ids: &[u32]) -> Result<(), ModelError> {
        let (backend, (decoder, cache)) = self.of_slot(slot);
        decoder.prefill(backend, cache, slot, ids)
    }

    fn decode(&mut self, slot: usize, ids: &[u32]) -> Result<&[f32], ModelError> {
        let (backend, (decoder, cache)) = self.of_slot(slot);
        decoder.decode(backend, cache, slot, ids)
    }

    fn decode_each(
        &mut self,
        slot: usize,
        ids: &[u32],
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        let (backend, (decoder, cache)) = self.of_slot(slot);
        decoder.decode_each(backend, cache, slot, ids, visit)
    }

    fn decode_rows(&mut self, rows: &[NextPosition]) -> Result<&[f32], ModelError> {
        let first = rows.first().map_or(0, |row| row.slot);
        if rows.iter().all(|row| self.model_of[row.slot] == self.model_of[first]) {
            let (backend, (decoder, cache)) = self.of_slot(first);
            return decoder.decode_rows(backend, cache, rows);
        }
        let model_of = |row: &NextPosition| self.model_of[row.slot];
        // A pass for each model; a row has the same bits whatever rows are beside it.
        for number in 0..=self.adapted.len() {
            self.rows.clear();
            self.rows.extend(rows.iter().filter(|row| model_of(row) == number));
            if self.rows.is_empty() {
                continue;
            }
            let (decoder, cache) = model(&mut self.base, &mut self.adapted, number);
            let logits = decoder.decode_rows(&mut self.backend, cache, &self.rows)?;
            let width = logits.len() / self.rows.len();
            self.logits.resize(rows.len() * width, 0.0);
            let places = self.logits.chunks_exact_mut(width).zip(rows);
            let places = places.filter(|(_, row)| model_of(row) == number);
            places
                .zip(logits.chunks_exact(width))
                .for_each(|((place, _), logits)| place.copy_from_slice(logits));
        }
        Ok(&self.logits)
    }
}

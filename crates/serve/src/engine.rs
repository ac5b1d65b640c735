//! What a scheduler asks of a model: sequences in slots, pieces of prompts, one position of many.

use bessemer_runtime::{Cache, Decoder, MIN_PASS_ROWS, ModelError, NextPosition};
use bessemer_tensor::Backend;

/// Rows of logits of a prompt that are made in one product where all are asked for.
pub const LOGIT_ROWS: usize = 32;

/// A model with sequences in slots. The logits of a sequence must not depend on the other slots.
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

    /// Forgets what a slot holds from position `len` on.
    fn truncate(&mut self, slot: usize, len: usize);

    /// Copies the first `len` positions of slot `from` to slot `to`, which begins as it does.
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

/// A [`Decoder`] with its cache on its device.
#[derive(Debug)]
pub struct ModelEngine<B> {
    /// The device.
    pub backend: B,
    /// The model.
    pub decoder: Decoder,
    /// Its cache.
    pub cache: Cache,
}

impl<B: Backend> Engine for ModelEngine<B> {
    fn slots(&self) -> usize {
        self.cache.slots()
    }

    fn capacity(&self) -> usize {
        self.cache.capacity()
    }

    fn chunk(&self) -> usize {
        self.cache.chunk()
    }

    fn free_piece(&self) -> Option<usize> {
        // Where attention stays within documents a piece ends with its document.
        self.decoder.model().document_end.is_none().then_some(MIN_PASS_ROWS)
    }

    fn truncate(&mut self, slot: usize, len: usize) {
        self.cache.truncate(slot, len);
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<(), ModelError> {
        self.cache.copy(&mut self.backend, from, to, len)
    }

    fn prefill(&mut self, slot: usize, ids: &[u32]) -> Result<(), ModelError> {
        self.decoder.prefill(&mut self.backend, &mut self.cache, slot, ids)
    }

    fn decode(&mut self, slot: usize, ids: &[u32]) -> Result<&[f32], ModelError> {
        self.decoder.decode(&mut self.backend, &mut self.cache, slot, ids)
    }

    fn decode_each(
        &mut self,
        slot: usize,
        ids: &[u32],
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.decoder.decode_each(&mut self.backend, &mut self.cache, slot, ids, visit)
    }

    fn decode_rows(&mut self, rows: &[NextPosition]) -> Result<&[f32], ModelError> {
        self.decoder.decode_rows(&mut self.backend, &mut self.cache, rows)
    }
}

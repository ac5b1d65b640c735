//! Decoding with cached keys and values: a piece of one sequence, or one position of each of several.

use crate::cache::{Cache, PassRows};
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::ranks::StageRanks;
use crate::step::check_indices;
use crate::units::StageUnit;
use bessemer_arch::Unit;
use bessemer_program::{Phase, StepValues, run};
use bessemer_tensor::op::AttentionSlots;
use bessemer_tensor::{Backend, TensorError, View};

/// The next token of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextPosition {
    /// Slot of the sequence.
    pub slot: usize,
    /// The token.
    pub id: u32,
}

/// This rank's device and the other ranks of a pass.
struct Devices<'a> {
    backend: &'a mut dyn Backend,
    ranks: &'a mut dyn StageRanks,
}

/// Logits that a piece of a sequence is to give.
enum Wanted<'a> {
    /// No logits.
    Nothing,
    /// Logits that follow the last position.
    Last,
    /// Logits that follow each position.
    Each(&'a mut dyn FnMut(usize, &[f32])),
}

impl Decoder {
    /// Appends `ids` to the sequence in `slot` and returns the logits `[V]` that follow the last of them. A prompt longer than
    /// fits one pass goes through in pieces.
    ///
    /// # Errors
    /// A slot that the cache does not have, no ids, ids outside the vocabulary, or a full slot (nothing has happened then);
    /// an error of the backend (the cache then holds the pieces that went through).
    pub fn decode<'c>(
        &self,
        backend: &mut dyn Backend,
        cache: &'c mut Cache,
        slot: usize,
        ids: &[u32],
    ) -> Result<&'c [f32], ModelError> {
        self.decode_piece(backend, cache, slot, ids, Wanted::Last)?;
        Ok(&cache.host.logits[..self.model.vocab_size])
    }

    /// Appends like [`Decoder::decode`], without logits: for all but the end of a prompt.
    ///
    /// # Errors
    /// Same errors as [`Decoder::decode`].
    pub fn prefill(
        &self,
        backend: &mut dyn Backend,
        cache: &mut Cache,
        slot: usize,
        ids: &[u32],
    ) -> Result<(), ModelError> {
        self.decode_piece(backend, cache, slot, ids, Wanted::Nothing)
    }

    /// Appends like [`Decoder::decode`]; `visit(i, logits)` is called with the logits that follow `ids[i]`, for i = 0, 1, ...
    ///
    /// # Errors
    /// Same errors as [`Decoder::decode`].
    pub fn decode_each(
        &self,
        backend: &mut dyn Backend,
        cache: &mut Cache,
        slot: usize,
        ids: &[u32],
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.decode_piece(backend, cache, slot, ids, Wanted::Each(visit))
    }

    /// Appends one token to each of several sequences and returns the logits `[rows, V]` that follow them. The logits of a
    /// row have the bits that [`Decoder::decode`] gives for its token alone.
    ///
    /// # Errors
    /// Same errors as [`Decoder::decode`], and for two rows with one slot.
    pub fn decode_rows<'c>(
        &self,
        backend: &mut dyn Backend,
        cache: &'c mut Cache,
        rows: &[NextPosition],
    ) -> Result<&'c [f32], ModelError> {
        let (n, v) = (rows.len(), self.model.vocab_size);
        let wrong = |wanted: String, found: String| ModelError::Shape { what: "rows", wanted, found };
        if n == 0 || n > cache.slots() {
            return Err(wrong(format!("1 to {}, the slots of the cache", cache.slots()), n.to_string()));
        }
        for (i, row) in rows.iter().enumerate() {
            cache.expect_room(row.slot, 1)?;
            if let Some(other) = rows[..i].iter().position(|other| other.slot == row.slot) {
                let found = format!("slot {} in rows {other} and {i}", row.slot);
                return Err(wrong("a slot of its own for each".into(), found));
            }
            cache.host.ids[i] = row.id;
        }
        check_indices("ids", &cache.host.ids[..n], v, false)?;
        for (i, row) in rows.iter().enumerate() {
            let sequence = &mut cache.slots[row.slot];
            let (past, start) = (sequence.len, sequence.starts[sequence.len]);
            let ends = self.model.document_end == Some(row.id);
            sequence.starts[past + 1] = if ends { past + 1 } else { start };
            cache.host.positions[i] = (past - start) as u32;
            let place = [row.slot, start, past].map(|x| x as u32);
            cache.host.places[i * AttentionSlots::PLACE..][..AttentionSlots::PLACE].copy_from_slice(&place);
        }
        let places = AttentionSlots::PLACE * n;
        backend.write_u32(cache.places.columns(0, places), &cache.host.places[..places])?;
        cache.write_indices(backend, n)?;
        let pass = PassRows::Slots(n);
        let mut peers = self.peers.lock();
        let on = &mut Devices { backend, ranks: peers.ranks() };
        self.decode_embedding(on, cache, pass, &StepValues::default())?;
        for layer in 0..cache.layers.len() {
            let external = cache.slots_external(cache.layers[layer]);
            self.decode_layer(on, cache, pass, layer, &external, &StepValues::default())?;
        }
        let external = cache.head_external(0, n);
        self.decode_unit(on, cache, |c| &c.row_heads[n - 1], &external, &StepValues::default())?;
        backend.read_f32(external[1], &mut cache.host.logits[..n * v])?;
        rows.iter().for_each(|row| cache.slots[row.slot].len += 1);
        Ok(&cache.host.logits[..n * v])
    }

    fn decode_piece(
        &self,
        backend: &mut dyn Backend,
        cache: &mut Cache,
        slot: usize,
        ids: &[u32],
        mut wanted: Wanted<'_>,
    ) -> Result<(), ModelError> {
        self.expect_whole("decoding with a cache")?;
        if ids.is_empty() {
            let (wanted, found) = ("at least one token".into(), "none".into());
            return Err(ModelError::Shape { what: "ids", wanted, found });
        }
        cache.expect_room(slot, ids.len())?;
        check_indices("ids", ids, self.model.vocab_size, false)?;
        let mut first = 0;
        while first < ids.len() {
            let (past, chunk) = (cache.slots[slot].len, cache.chunk);
            let mut new = (chunk - past % chunk).min(ids.len() - first);
            let starts = &mut cache.slots[slot].starts;
            let start = starts[past];
            if let Some(end) = self.model.document_end {
                // A pass ends with its document: the next one's rows see other keys.
                let last = ids[first..first + new].iter().position(|id| *id == end);
                new = last.map_or(new, |at| at + 1);
                starts[past + 1..past + new].fill(start);
                starts[past + new] = if last.is_some() { past + new } else { start };
            }
            cache.host.ids[..new].copy_from_slice(&ids[first..first + new]);
            for (i, p) in cache.host.positions[..new].iter_mut().enumerate() {
                *p = (past - start + i) as u32;
            }
            cache.write_indices(backend, new)?;
            let (pass, values) = (PassRows::Piece(new), cache.step(start, past));
            let mut peers = self.peers.lock();
            let on = &mut Devices { backend: &mut *backend, ranks: peers.ranks() };
            self.decode_embedding(on, cache, pass, &values)?;
            for layer in 0..cache.layers.len() {
                let external = cache.piece_external(cache.layers[layer], slot, start, past);
                self.decode_layer(on, cache, pass, layer, &external, &values)?;
            }
            match &mut wanted {
                Wanted::Last if first + new == ids.len() => {
                    self.piece_logits(on, cache, new - 1, 1)?;
                }
                Wanted::Nothing | Wanted::Last => {}
                Wanted::Each(visit) => {
                    let most = cache.piece_heads.len();
                    for at in (0..new).step_by(most) {
                        let rows = self.piece_logits(on, cache, at, most.min(new - at))?;
                        let rows = rows.chunks_exact(self.model.vocab_size);
                        rows.enumerate().for_each(|(i, row)| visit(first + at + i, row));
                    }
                }
            }
            cache.slots[slot].len += new;
            first += new;
        }
        Ok(())
    }

    /// Logits of `rows` rows of the pass that ran last, from row `first` on.
    fn piece_logits<'c>(
        &self,
        on: &mut Devices<'_>,
        cache: &'c mut Cache,
        first: usize,
        rows: usize,
    ) -> Result<&'c [f32], TensorError> {
        let external = cache.head_external(first, rows);
        self.decode_unit(on, cache, |c| &c.piece_heads[rows - 1], &external, &StepValues::default())?;
        let host = &mut cache.host.logits[..rows * self.model.vocab_size];
        on.backend.read_f32(external[1], host)?;
        Ok(host)
    }

    fn decode_embedding(
        &self,
        on: &mut Devices<'_>,
        cache: &mut Cache,
        pass: PassRows,
        values: &StepValues,
    ) -> Result<(), TensorError> {
        self.decode_unit(on, cache, |c| &c.pass(pass).embedding, &[], values)
    }

    /// Runs the rows of the residual stream through layer `layer`.
    fn decode_layer(
        &self,
        on: &mut Devices<'_>,
        cache: &mut Cache,
        pass: PassRows,
        layer: usize,
        external: &[View],
        values: &StepValues,
    ) -> Result<(), TensorError> {
        // Parameters of a layer follow each other, in one order for all layers of a kind.
        let first_of = |layer: usize| self.units[1 + layer].parameters.first().copied().unwrap_or_default();
        let kind = cache.kinds[layer];
        let unit = &mut cache.pass_mut(pass).layers[kind];
        let before = first_of(unit.unit.layer().unwrap_or_default());
        unit.parameters.iter_mut().for_each(|at| *at = *at + first_of(layer) - before);
        unit.unit = Unit::Layer(layer);
        on.ranks.unit_begins(on.backend, Unit::Layer(layer), Phase::Score)?;
        self.decode_unit(on, cache, |c| &c.pass(pass).layers[kind], external, values)?;
        on.ranks.unit_ends(on.backend, Unit::Layer(layer), Phase::Score)?;
        let [x, x_out] = cache.stream;
        if x != x_out {
            cache.stream = [x_out, x];
        }
        Ok(())
    }

    fn decode_unit(
        &self,
        on: &mut Devices<'_>,
        cache: &mut Cache,
        unit: impl Fn(&Cache) -> &StageUnit,
        external: &[View],
        values: &StepValues,
    ) -> Result<(), TensorError> {
        let mut table = std::mem::take(&mut cache.table);
        let unit = unit(cache);
        cache.binding(self, unit, external).fill(&mut table);
        let program = &unit.program;
        let result = run(program, Phase::Score, (&table, &unit.parameters), values, on.backend, on.ranks);
        cache.table = table;
        result
    }
}

impl Cache {
    fn pass(&self, rows: PassRows) -> &crate::cache::DecodePass {
        match rows {
            PassRows::Piece(n) => &self.pieces[n - 1],
            PassRows::Slots(n) => &self.rows[n - 1],
        }
    }

    fn pass_mut(&mut self, rows: PassRows) -> &mut crate::cache::DecodePass {
        match rows {
            PassRows::Piece(n) => &mut self.pieces[n - 1],
            PassRows::Slots(n) => &mut self.rows[n - 1],
        }
    }

    /// Errors unless the slot exists and `new` more positions fit.
    fn expect_room(&self, slot: usize, new: usize) -> Result<(), ModelError> {
        let Some(sequence) = self.slots.get(slot) else {
            return Err(ModelError::Shape {
                what: "slot",
                wanted: format!("0 to {}", self.slots.len() - 1),
                found: slot.to_string(),
            });
        };
        if new > self.capacity - sequence.len {
            return Err(ModelError::CacheFull { len: sequence.len, new, capacity: self.capacity });
        }
        Ok(())
    }

    /// Writes the first `n` ids and positions to the device.
    fn write_indices(&self, backend: &mut dyn Backend, n: usize) -> Result<(), TensorError> {
        backend.write_u32(self.ids.columns(0, n), &self.host.ids[..n])?;
        backend.write_u32(self.positions.columns(0, n), &self.host.positions[..n])
    }
}

//! Memory of decoding: keys and values of every layer for several sequences, and activations for a few rows.

use crate::decoder::{Decoder, Purpose, Shape};
use crate::error::ModelError;
use crate::expert_rows::experts_of_one;
use crate::memory::{Binding, ScratchBuffers, larger, stream_in_place};
use crate::units::StageUnit;
use bessemer_arch::{Model, Unit};
use bessemer_model::Recording;
use bessemer_program::{Phase, Scratch, StepValues, UnitProgram, each_op, plan_memory, verify_experts};
use bessemer_tensor::op::{AttentionSlots, Copy, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, View};
use bessemer_units::{Bytes, DType};

/// Positions of one sequence in one pass at most: longer prompts go through in pieces, which end at multiples of this.
const CHUNK_ROWS: usize = 128;

/// Size of a [`Cache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// S, sequences that are decoded independently.
    pub slots: usize,
    /// C, positions of each of them.
    pub capacity: usize,
    /// Rows of logits of one sequence that [`Decoder::decode_each`] makes in one product. There is memory for P = max(S, this).
    pub logit_rows: usize,
}

impl CacheShape {
    /// The size for one sequence of `capacity` positions, to generate a text.
    pub fn one(capacity: usize) -> CacheShape {
        CacheShape::slots(1, capacity)
    }

    /// Rows of a pass at most.
    pub fn pass_rows(self) -> usize {
        self.slots.max(CHUNK_ROWS.min(self.capacity))
    }

    /// The size for several sequences of `capacity` positions.
    pub fn slots(slots: usize, capacity: usize) -> CacheShape {
        CacheShape { slots, capacity, logit_rows: 1 }
    }
}

/// Keys and values of sequences that are decoded independently, each in a slot of up to `capacity` positions.
///
/// Layout of keys and of values of a layer: `[S * capacity, G E]`, row s * capacity + position.
/// Class "cache": `4 (2 L S C G E + P V)` bytes for P rows of logits, and the residual stream, indices and scratch of
/// max(S, min(C, 128)) rows.
///
/// The logits of a sequence have the same bits whatever the other slots hold and are given: prompts go through by
/// themselves, in pieces that end at the same positions, and rows of several sequences through products that treat every
/// row by itself.
#[derive(Debug)]
pub struct Cache {
    pub(crate) capacity: usize,
    pub(crate) slots: Vec<CachedSequence>,
    /// Positions of one pass at most.
    pub(crate) chunk: usize,
    /// Keys and values of each layer.
    pub(crate) layers: Vec<[View; 2]>,
    /// Indexed by layer: its program's number in [`DecodePass::layers`].
    pub(crate) kinds: Vec<usize>,
    /// Programs of a pass with 1, 2, ... new positions of one sequence.
    pub(crate) pieces: Vec<DecodePass>,
    /// Programs of a pass with one new position of each of 1, 2, ... sequences.
    pub(crate) rows: Vec<DecodePass>,
    /// Logits of 1, 2, ... rows of several sequences.
    pub(crate) row_heads: Vec<StageUnit>,
    /// Logits of 1, 2, ... rows of one sequence.
    pub(crate) piece_heads: Vec<StageUnit>,
    pub(crate) ids: View,
    pub(crate) positions: View,
    pub(crate) places: View,
    /// The residual stream as it enters and leaves a layer.
    pub(crate) stream: [View; 2],
    pub(crate) logits: View,
    pub(crate) scratch: ScratchBuffers,
    /// Memory of the values of the unit that runs.
    pub(crate) table: Vec<View>,
    pub(crate) host: HostRows,
}

/// State of one sequence in the key-value cache.
#[derive(Debug)]
pub(crate) struct CachedSequence {
    /// Positions held.
    pub(crate) len: usize,
    /// First position of the document that position `[p]` belongs to, for p up to the one that comes next; all 0
    /// unless attention stays within documents.
    pub(crate) starts: Vec<usize>,
}

/// The programs of a pass with some new rows.
#[derive(Debug)]
pub(crate) struct DecodePass {
    pub(crate) embedding: StageUnit,
    /// Programs of the first layer of each kind: layers of a kind differ in their parameters only.
    pub(crate) layers: Vec<StageUnit>,
}

/// Host side of one pass, kept so that a step allocates nothing.
#[derive(Debug)]
pub(crate) struct HostRows {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) places: Vec<u32>,
    pub(crate) logits: Vec<f32>,
}

/// Kind of a pass, and its number of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PassRows {
    /// Positions of one sequence.
    Piece(usize),
    /// Sequences, one position of each.
    Slots(usize),
}

/// A unit of decoding, with its parameters in the decoder.
fn unit(decoder: &Decoder, unit: Unit, program: UnitProgram) -> StageUnit {
    let memory = plan_memory(&program, &[Phase::Score]);
    let full = |name: &String| match unit.layer() {
        Some(layer) => format!("layers.{layer}.{name}"),
        None => name.clone(),
    };
    let find =
        |name: &String| decoder.params.iter().position(|p| p.spec.name == full(name)).unwrap_or(usize::MAX);
    let parameters = program.parameters.iter().map(find).collect();
    StageUnit { unit, program, memory, distinct: true, parameters }
}

/// Number among `kinds` of the layer that has the kind of layer `layer`.
fn kind_of(model: &Model, kinds: &[usize], layer: usize) -> usize {
    let alike = |kind: &usize| model.experts_of(*kind) == model.experts_of(layer);
    kinds.iter().position(alike).unwrap_or(0)
}

impl Cache {
    /// Allocates a cache and reserves the workspace of decoding.
    ///
    /// # Errors
    /// No slot, a capacity beyond the model's context, or an error of the backend.
    pub fn new(backend: &mut dyn Backend, decoder: &Decoder, shape: CacheShape) -> Result<Cache, ModelError> {
        Cache::build(backend, decoder, shape, None)
    }

    /// A cache of another decoder in the memory of this one: a slot may be used with one of both at a time. Keys and values of both models
    /// have the same sizes, as those of a model with adapters and without.
    ///
    /// # Errors
    /// A model of other sizes, or an error of the backend.
    pub fn sharing(&self, backend: &mut dyn Backend, decoder: &Decoder) -> Result<Cache, ModelError> {
        let (slots, capacity, logit_rows) = (self.slots(), self.capacity, self.piece_heads.len());
        Cache::build(backend, decoder, CacheShape { slots, capacity, logit_rows }, Some(self))
    }

    fn build(
        backend: &mut dyn Backend,
        decoder: &Decoder,
        shape: CacheShape,
        beside: Option<&Cache>,
    ) -> Result<Cache, ModelError> {
        let CacheShape { slots, capacity, logit_rows } = shape;
        decoder.expect_whole("decoding with a cache")?;
        let model = decoder.whole();
        if capacity == 0 || capacity > model.context {
            return Err(ModelError::Shape {
                what: "cache capacity",
                wanted: format!("1 to the model's context of {}", model.context),
                found: capacity.to_string(),
            });
        }
        if !model.is_causal() {
            return Err(ModelError::Shape {
                what: "decoding",
                wanted: "experts.chosen_by = \"tokens\": a token is decoded before later ones are known".into(),
                found: "\"experts\", which choose among all tokens of a sequence; evaluate the model, or train one whose tokens choose"
                    .into(),
            });
        }
        let kv = model.kv_heads * model.head_dim;
        let widest = model.vocab_size.max(model.mlp_in_width()).max(model.qkv_width()).max(kv);
        let most = isize::MAX as usize / 4 / widest / capacity;
        if slots == 0 || slots > most {
            return Err(ModelError::Shape {
                what: "cache slots",
                wanted: format!("1 to {most}"),
                found: slots.to_string(),
            });
        }
        let (chunk, n) = (CHUNK_ROWS.min(capacity), shape.pass_rows());
        let piece_rows = logit_rows.clamp(1, chunk);
        let mut matrix = |name: &str, dtype: DType, rows: usize, cols: usize| -> Result<View, ModelError> {
            let spec = BufferSpec { class: "cache", name, dtype, len: rows * cols };
            Ok(backend.alloc(spec)?.matrix(rows, cols))
        };
        let layers = match beside {
            Some(cache) => {
                let sizes = |[keys, _]: &[View; 2]| (keys.rows, keys.cols);
                let (found, rows) = (cache.layers.iter().map(sizes).collect::<Vec<_>>(), slots * capacity);
                if found != vec![(rows, kv); model.layers]
                    || (cache.stream[0].cols, cache.logits.cols) != (model.width, model.vocab_size)
                {
                    let (width, vocabulary) = (cache.stream[0].cols, cache.logits.cols);
                    return Err(ModelError::Shape {
                        what: "model of a shared cache",
                        wanted: format!(
                            "{} layers of width {width} with keys {:?}, {vocabulary} tokens",
                            found.len(),
                            found.first()
                        ),
                        found: format!(
                            "{} layers of width {} with keys {:?}, {} tokens",
                            model.layers,
                            model.width,
                            (rows, kv),
                            model.vocab_size
                        ),
                    });
                }
                cache.layers.clone()
            }
            None => {
                let mut layers = Vec::with_capacity(model.layers);
                for i in 0..model.layers {
                    let mut part =
                        |what: &str| matrix(&format!("layers.{i}.{what}"), DType::F32, slots * capacity, kv);
                    layers.push([part("keys")?, part("values")?]);
                }
                layers
            }
        };
        let shardings = decoder.shardings();
        let recording = |sequences: usize, seq: usize, rowwise: bool| {
            let shape = Shape { sequences, seq, purpose: Purpose::Score };
            Recording {
                rowwise,
                ..Recording::new(model, &shardings, [shape.sequences, shape.seq], DType::F32)
            }
        };
        let kinds = model.layer_kinds();
        let pass = |recording: &Recording<'_>, layer: &dyn Fn(usize) -> UnitProgram| {
            let layer = |index: usize| {
                let mut layer = layer(index);
                let tokens = recording.sequences * recording.seq;
                decoder.expert_rank().iter().for_each(|rank| experts_of_one(&mut layer, *rank, tokens));
                bessemer_program::fuse(&mut layer);
                unit(decoder, Unit::Layer(index), layer)
            };
            let mut embedding = recording.embedding();
            bessemer_program::fuse(&mut embedding);
            DecodePass {
                embedding: unit(decoder, Unit::Embedding, embedding),
                layers: kinds.iter().map(|index| layer(*index)).collect(),
            }
        };
        let piece = |new: usize| {
            let recording = recording(1, new, false);
            pass(&recording, &|index| recording.decode_layer(index, capacity))
        };
        let row = |rows: usize| {
            let recording = recording(rows, 1, true);
            pass(&recording, &|index| recording.decode_slots_layer(index, slots, capacity))
        };
        let head = |rows: usize, rowwise| unit(decoder, Unit::Head, recording(rows, 1, rowwise).logits(rows));
        let pieces: Vec<DecodePass> = (1..=chunk).map(piece).collect();
        let rows: Vec<DecodePass> = (1..=slots).map(row).collect();
        let row_heads: Vec<StageUnit> = (1..=slots).map(|rows| head(rows, true)).collect();
        let piece_heads: Vec<StageUnit> = (1..=piece_rows).map(|rows| head(rows, false)).collect();
        let layer_units = || pieces.iter().chain(&rows).flat_map(|p| &p.layers);
        if let Some(rank) = decoder.expert_rank() {
            layer_units().try_for_each(|unit| verify_experts(&unit.program, &[Phase::Score], rank))?;
        }
        let in_place = layer_units().all(|layer| stream_in_place(&layer.program, Phase::Score));
        let mut stream = |held: Option<View>| match held {
            Some(view) => Ok(view),
            None => matrix("stream", DType::F32, n, model.width),
        };
        let x = stream(beside.map(|cache| cache.stream[0]))?;
        let other = beside.map(|cache| cache.stream[1]).filter(|other| *other != x);
        let x_out = if in_place { x } else { stream(other)? };
        let [ids, positions, places, logits] = match beside {
            Some(cache) => [cache.ids, cache.positions, cache.places, cache.logits],
            None => [
                matrix("ids", DType::U32, 1, n)?,
                matrix("positions", DType::U32, 1, n)?,
                matrix("places", DType::U32, 1, AttentionSlots::PLACE * slots)?,
                matrix("logits", DType::F32, slots.max(piece_rows), model.vocab_size)?,
            ],
        };
        let mut wanted = Scratch::new();
        let embeddings = pieces.iter().chain(&rows).map(|p| &p.embedding);
        let units = embeddings.chain(layer_units()).chain(&row_heads).chain(&piece_heads);
        units.for_each(|unit| larger(&mut wanted, &unit.memory.scratch));
        let scratch = beside.map_or_else(ScratchBuffers::default, |cache| cache.scratch.clone());
        let scratch = ScratchBuffers::alloc(backend, "cache", &wanted, &scratch)?;
        let host = HostRows {
            ids: vec![0; n],
            positions: vec![0; n],
            places: vec![0; places.cols],
            logits: vec![0.0; logits.len()],
        };
        let sequence = || CachedSequence { len: 0, starts: vec![0; capacity + 1] };
        let cache = Cache {
            capacity,
            slots: (0..slots).map(|_| sequence()).collect(),
            chunk,
            layers,
            kinds: (0..model.layers).map(|layer| kind_of(model, &kinds, layer)).collect(),
            pieces,
            rows,
            row_heads,
            piece_heads,
            ids,
            positions,
            places,
            stream: [x, x_out],
            logits,
            scratch,
            table: Vec::new(),
            host,
        };
        cache.reserve(backend, decoder)?;
        Ok(cache)
    }

    /// Checks every operator of every pass and reserves the largest workspace.
    fn reserve(&self, backend: &mut dyn Backend, decoder: &Decoder) -> Result<(), ModelError> {
        let (mut most, mut table) = (Bytes(0), Vec::new());
        let mut ask = |unit: &StageUnit, external: &[View], values: &StepValues| -> Result<(), ModelError> {
            self.binding(decoder, unit, external).fill(&mut table);
            each_op(&unit.program, Phase::Score, &table, &mut |op: &Op| {
                let op = values.filled(op);
                op.check()?;
                most = most.max(backend.workspace(&op)?);
                Ok(())
            })?;
            Ok(())
        };
        for new in 1..=self.chunk {
            for past in [0, self.capacity - new] {
                let (pass, values) = (&self.pieces[new - 1], self.step(0, past));
                ask(&pass.embedding, &[], &values)?;
                for (layer, unit) in self.layers.iter().zip(&pass.layers) {
                    ask(unit, &self.piece_external(*layer, 0, 0, past), &values)?;
                }
            }
        }
        let values = StepValues::default();
        for pass in &self.rows {
            ask(&pass.embedding, &[], &values)?;
            for (layer, unit) in self.layers.iter().zip(&pass.layers) {
                ask(unit, &self.slots_external(*layer), &values)?;
            }
        }
        for heads in [&self.row_heads, &self.piece_heads] {
            for (i, head) in heads.iter().enumerate() {
                ask(head, &self.head_external(0, i + 1), &values)?;
            }
        }
        Ok(backend.reserve_workspace(most)?)
    }

    /// Values that vary from pass to pass: positions before the new ones, of which those before `start` are not seen.
    pub(crate) fn step(&self, start: usize, past: usize) -> StepValues {
        StepValues { past: past - start, capacity: self.capacity - start, ..StepValues::default() }
    }

    /// Keys and values of a layer for a piece of the sequence in `slot`: from the first new position on, and from the
    /// first that is seen on.
    pub(crate) fn piece_external(
        &self,
        layer: [View; 2],
        slot: usize,
        start: usize,
        past: usize,
    ) -> [View; 4] {
        let from = |view: View, row: usize| View {
            offset: view.offset + (slot * self.capacity + row) * view.stride,
            ..view
        };
        let [keys, values] = layer;
        [from(keys, past), from(values, past), from(keys, start), from(values, start)]
    }

    /// Keys and values of a layer, and the places of the rows.
    pub(crate) fn slots_external(&self, [keys, values]: [View; 2]) -> [View; 3] {
        [keys, values, self.places]
    }

    /// `rows` rows of the residual stream from `first` on, and their logits.
    pub(crate) fn head_external(&self, first: usize, rows: usize) -> [View; 2] {
        [self.stream[0].rows(first, rows), self.logits.rows(0, rows)]
    }

    /// Memory of the values of a decoding unit.
    pub(crate) fn binding<'a>(
        &'a self,
        decoder: &'a Decoder,
        unit: &'a StageUnit,
        external: &'a [View],
    ) -> Binding<'a> {
        Binding {
            unit,
            at: 0,
            phase: Phase::Score,
            values: &decoder.values,
            gradients: &[],
            slot: None,
            stream: (self.stream[0], self.stream[if unit.unit == Unit::Embedding { 0 } else { 1 }]),
            kept: None,
            pending: None,
            losses: None,
            auxiliary: &[],
            counts: None,
            loss_weights: None,
            counters: None,
            constant: decoder.buffers.constant,
            external,
            scratch: &self.scratch,
            indices: Some((self.ids, self.positions)),
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Capacity in positions of each slot.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Positions of a sequence that one pass takes at most; a prompt is cut at multiples of it.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Positions that a slot holds; 0 of a slot that the cache does not have.
    pub fn len(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |s| s.len)
    }

    /// True if a slot holds nothing.
    pub fn is_empty(&self, slot: usize) -> bool {
        self.len(slot) == 0
    }

    /// Copies the first `len` positions of slot `from` to slot `to`, which begins with the same tokens: positions that `to` already holds
    /// are not changed.
    ///
    /// # Errors
    /// Slots that the cache does not have, or that hold fewer positions (`from`) or more (`to`) than `len`; an error of the backend.
    pub fn copy(
        &mut self,
        backend: &mut dyn Backend,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<(), ModelError> {
        let (there, held) = (self.len(from), self.len(to));
        if from == to || from.max(to) >= self.slots.len() || there < len || held > len {
            return Err(ModelError::Shape {
                what: "slots to copy between",
                wanted: format!(
                    "two of the {} slots, the first with at least {len} positions, the second with at most as many",
                    self.slots.len()
                ),
                found: format!("slot {from} with {there} and slot {to} with {held}"),
            });
        }
        let rows = |view: View, slot: usize| view.rows(slot * self.capacity + held, len - held);
        for &view in self.layers.iter().flatten().filter(|_| held < len) {
            let copy = Copy { src: rows(view, from), dst: rows(view, to) };
            backend.launch(Stream::Compute, &copy.into())?;
        }
        let [source, target] = self
            .slots
            .get_disjoint_mut([from, to])
            .map_err(|_| ModelError::CacheFull { len: held, new: len - held, capacity: self.capacity })?;
        target.starts[..=len].copy_from_slice(&source.starts[..=len]);
        target.len = len;
        Ok(())
    }

    /// Forgets all positions of a slot from `len` on (a common beginning is then decoded once). Does nothing if there are
    /// fewer.
    pub fn truncate(&mut self, slot: usize, len: usize) {
        if let Some(s) = self.slots.get_mut(slot) {
            s.len = s.len.min(len);
        }
    }
}

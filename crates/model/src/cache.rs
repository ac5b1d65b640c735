//! Memory of decoding: keys and values of every layer, and activations for a few rows.

use crate::decoder::{Decoder, Purpose, Shape};
use crate::error::ModelError;
use crate::memory::{Binding, ScratchBuffers, larger, stream_in_place};
use crate::record::Recording;
use crate::units::StageUnit;
use bessemer_arch::Unit;
use bessemer_program::{Phase, Scratch, StepValues, UnitProgram, each_op, plan_memory};
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::{Bytes, DType};

/// Rows of a decoding pass at most, unless there are more sequences: longer prompts go through in pieces.
const CHUNK_ROWS: usize = 128;

/// Keys and values of `sequences` sequences of up to `capacity` positions, all of the same length at any time.
///
/// Layout of keys and of values of a layer: `[sequences * capacity, G E]`, row b * capacity + position.
/// Class "cache": `4 (2 L B C G E + B V)` bytes, and the residual stream, indices and scratch of r = B max(1, min(C, 128 / B))
/// rows.
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
    /// Programs of a pass with 1, 2, ... new positions.
    pub(crate) passes: Vec<DecodePass>,
    /// The logits of the last rows.
    pub(crate) head: StageUnit,
    pub(crate) ids: View,
    pub(crate) positions: View,
    /// The residual stream as it enters and leaves a layer.
    pub(crate) stream: [View; 2],
    pub(crate) logits_bv: View,
    pub(crate) scratch: ScratchBuffers,
    /// Memory of the values of the unit that runs.
    pub(crate) table: Vec<View>,
    pub(crate) host: HostRows,
}

/// The programs of a pass with some new positions.
#[derive(Debug)]
pub(crate) struct DecodePass {
    pub(crate) embedding: StageUnit,
    /// That of the first layer: layers differ in their parameters only.
    pub(crate) layer: StageUnit,
}

/// Host side of one pass, kept so that a step allocates nothing.
#[derive(Debug)]
pub(crate) struct HostRows {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) logits: Vec<f32>,
}

/// A unit of decoding, with its parameters in the decoder.
fn unit(decoder: &Decoder, unit: Unit, program: UnitProgram) -> StageUnit {
    let memory = plan_memory(&program, &[Phase::Score]);
    let full = |name: &String| if unit == Unit::Layer(0) { format!("layers.0.{name}") } else { name.clone() };
    let find =
        |name: &String| decoder.params.iter().position(|p| p.spec.name == full(name)).unwrap_or(usize::MAX);
    let parameters = program.parameters.iter().map(find).collect();
    StageUnit { unit, program, memory, distinct: true, parameters }
}

impl Cache {
    /// Allocates a cache for `sequences` sequences of `capacity` positions and reserves the workspace of decoding.
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
        let mut matrix = |name: &str, dtype: DType, rows: usize, cols: usize| -> Result<View, ModelError> {
            let spec = BufferSpec { class: "cache", name, dtype, len: rows * cols };
            Ok(backend.alloc(spec)?.matrix(rows, cols))
        };
        let mut layers = Vec::with_capacity(model.layers);
        for i in 0..model.layers {
            let mut part =
                |what: &str| matrix(&format!("layers.{i}.{what}"), DType::F32, sequences * capacity, kv);
            layers.push([part("keys")?, part("values")?]);
        }
        let shardings = model.shardings();
        let shape = |seq: usize| Shape { sequences, seq, purpose: Purpose::Score };
        let pass = |new: usize| {
            let recording = Recording::new(model, &shardings, shape(new), DType::F32);
            let mut layer = recording.decode_layer(0, capacity);
            bessemer_program::fuse(&mut layer);
            let mut embedding = recording.embedding();
            bessemer_program::fuse(&mut embedding);
            DecodePass {
                embedding: unit(decoder, Unit::Embedding, embedding),
                layer: unit(decoder, Unit::Layer(0), layer),
            }
        };
        let passes: Vec<DecodePass> = (1..=chunk).map(pass).collect();
        let logits = Recording::new(model, &shardings, shape(1), DType::F32).logits(sequences);
        let head = unit(decoder, Unit::Head, logits);
        let in_place = passes.iter().all(|p| stream_in_place(&p.layer.program, Phase::Score));
        let x = matrix("stream", DType::F32, n, model.width)?;
        let x_out = if in_place { x } else { matrix("stream", DType::F32, n, model.width)? };
        let (ids, positions) = (matrix("ids", DType::U32, 1, n)?, matrix("positions", DType::U32, 1, n)?);
        let logits_bv = matrix("logits", DType::F32, sequences, model.vocab_size)?;
        let mut wanted = Scratch::new();
        let units = passes.iter().flat_map(|p| [&p.embedding, &p.layer]).chain([&head]);
        units.for_each(|unit| larger(&mut wanted, &unit.memory.scratch));
        let scratch = ScratchBuffers::alloc(backend, "cache", &wanted, &ScratchBuffers::default())?;
        let host = HostRows {
            ids: vec![0; n],
            positions: vec![0; n],
            logits: vec![0.0; sequences * model.vocab_size],
        };
        let stream = [x, x_out];
        let starts = vec![0; capacity + 1];
        let table = Vec::new();
        let cache = Cache {
            sequences,
            capacity,
            len: 0,
            chunk,
            starts,
            layers,
            passes,
            head,
            ids,
            positions,
            stream,
            logits_bv,
            scratch,
            table,
            host,
        };
        cache.reserve(backend, decoder)?;
        Ok(cache)
    }

    /// Checks every operator of every pass and reserves the largest workspace.
    fn reserve(&self, backend: &mut dyn Backend, decoder: &Decoder) -> Result<(), ModelError> {
        let (mut most, mut table) = (Bytes(0), Vec::new());
        for new in 1..=self.chunk {
            for past in [0, self.capacity - new] {
                let values = self.step(0, past);
                let mut ask = |op: &Op| {
                    let op = values.filled(op);
                    op.check()?;
                    most = most.max(backend.workspace(&op)?);
                    Ok(())
                };
                let pass = &self.passes[new - 1];
                self.binding(decoder, &pass.embedding, &[]).fill(&mut table);
                each_op(&pass.embedding.program, Phase::Score, &table, &mut ask)?;
                if let Some(layer) = self.layers.first() {
                    let external = self.external(*layer, 0, past);
                    self.binding(decoder, &pass.layer, &external).fill(&mut table);
                    each_op(&pass.layer.program, Phase::Score, &table, &mut ask)?;
                }
                let external = [self.last_rows(new), self.logits_bv];
                self.binding(decoder, &self.head, &external).fill(&mut table);
                each_op(&self.head.program, Phase::Score, &table, &mut ask)?;
            }
        }
        Ok(backend.reserve_workspace(most)?)
    }

    /// What varies from pass to pass: positions before the new ones, of which those before `start` are not seen.
    pub(crate) fn step(&self, start: usize, past: usize) -> StepValues {
        StepValues { past: past - start, capacity: self.capacity - start, ..StepValues::default() }
    }

    /// Keys and values of a layer: from the first new position on, and from the first that is seen on.
    pub(crate) fn external(&self, [keys, values]: [View; 2], start: usize, past: usize) -> [View; 4] {
        let from = |view: View, row: usize| View { offset: view.offset + row * view.stride, ..view };
        let (new, seen) = (|view| from(view, past), |view| from(view, start));
        [new(keys), new(values), seen(keys), seen(values)]
    }

    /// The residual stream of the last of `new` positions of every sequence.
    pub(crate) fn last_rows(&self, new: usize) -> View {
        let x = self.stream[0];
        View { offset: (new - 1) * x.cols, rows: self.sequences, stride: new * x.cols, ..x }
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
            loss_factor: None,
            counters: None,
            constant: decoder.buffers.constant,
            external,
            scratch: &self.scratch,
            indices: Some((self.ids, self.positions)),
        }
    }

    /// Sequences.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Capacity in positions of each sequence.
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

//! Batches of sequences whose beginnings a cache holds: continuations of one beginning are then computed without it.
//!
//! Every row of a pass has the bits that it has in a pass over the whole sequence, wherever the sequence is cut, as long as each pass
//! takes [`MIN_PASS_ROWS`] positions or more: keys are in the same blocks, and the bits of a row of a product do not depend on its
//! other rows.

use crate::decoder::{Decoder, Shape};
use crate::error::ModelError;
use crate::expert_rows::experts_of_one;
use crate::memory::{ScratchBuffers, scratch_of, stream_in_place};
use crate::shape::Purpose;
use crate::units::{StageUnit, layer_prefix};
use bessemer_arch::{Model, Unit};
use bessemer_model::Recording;
use bessemer_program::{Phase, plan_memory, seal, verify_experts};
use bessemer_tensor::{Backend, BufferSpec, View};
use bessemer_units::DType;

/// Positions of a pass from which on the bits of its rows do not depend on where the sequence is cut into passes. Shorter passes take
/// kernels for few rows, which round otherwise.
pub const MIN_PASS_ROWS: usize = 8;

/// Keys and values of the beginnings of a batch of sequences. Layout of keys and of values of a layer: `[B capacity, G E]`, row
/// b * capacity + position. Class "cache": `8 L B capacity G E` bytes.
#[derive(Debug, Clone)]
pub struct PrefixCache {
    sequences: usize,
    capacity: usize,
    layers: Vec<[View; 2]>,
}

impl PrefixCache {
    /// Allocates a cache for `sequences` sequences of up to `capacity` positions.
    ///
    /// # Errors
    /// A model whose attention stays within documents; no sequence, or a capacity beyond the model's context; an error of the backend.
    pub fn new(
        backend: &mut dyn Backend,
        model: &Model,
        sequences: usize,
        capacity: usize,
    ) -> Result<PrefixCache, ModelError> {
        if model.document_end.is_some() {
            let what = "a cache of beginnings wants a model whose attention crosses documents; score whole sequences instead";
            return Err(ModelError::Stage(what.into()));
        }
        if sequences == 0 || capacity == 0 || capacity > model.context {
            return Err(ModelError::Shape {
                what: "cache of beginnings",
                wanted: format!("a sequence or more of 1 to {} positions", model.context),
                found: format!("{sequences} of {capacity}"),
            });
        }
        let cols = model.kv_heads * model.head_dim;
        let mut matrix = |layer: usize, what: &str| -> Result<View, ModelError> {
            let (name, rows) = (format!("layers.{layer}.{what}"), sequences * capacity);
            let spec = BufferSpec { class: "cache", name: &name, dtype: DType::F32, len: rows * cols };
            Ok(backend.alloc(spec)?.matrix(rows, cols))
        };
        let layers =
            (0..model.layers).map(|i| Ok::<_, ModelError>([matrix(i, "keys")?, matrix(i, "values")?]));
        Ok(PrefixCache { sequences, capacity, layers: layers.collect::<Result<_, _>>()? })
    }

    /// Positions of each sequence.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

/// The cache before a decoder's batches, and the number of positions that are seen.
#[derive(Debug)]
pub(crate) struct AfterPrefix {
    cache: PrefixCache,
    /// Positions before those of a batch.
    pub(crate) past: usize,
    /// Indexed by layer: keys and values from the first new position on, and from the first on.
    external: Vec<[View; 4]>,
}

impl AfterPrefix {
    fn new(cache: &PrefixCache, past: usize) -> AfterPrefix {
        let from = |view: View| View { offset: view.offset + past * view.stride, ..view };
        let external = cache.layers.iter().map(|&[k, v]| [from(k), from(v), k, v]).collect();
        AfterPrefix { cache: cache.clone(), past, external }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.cache.capacity
    }

    /// External values of a unit.
    pub(crate) fn external(&self, unit: Unit) -> &[View] {
        match unit {
            Unit::Layer(i) => self.external.get(i).map_or(&[], |views| views.as_slice()),
            Unit::Embedding | Unit::Head => &[],
        }
    }
}

impl Decoder {
    /// Returns a decoder that scores continuations of the sequences in `cache`, over this decoder's parameters. A batch follows the
    /// first [`Decoder::set_past`] positions of each sequence, 0 until it is called, and its own keys and values are added there.
    /// Decoders of several lengths may share one cache.
    ///
    /// # Errors
    /// Same errors as [`Decoder::with_params`]; a shape that is not for scoring, has another number of sequences than the cache, fewer than
    /// [`MIN_PASS_ROWS`] positions, or more than it holds.
    pub fn after_prefix(
        &self,
        backend: &mut dyn Backend,
        shape: Shape,
        cache: &PrefixCache,
    ) -> Result<Decoder, ModelError> {
        let fits = (MIN_PASS_ROWS..=cache.capacity).contains(&shape.seq);
        if shape.purpose != Purpose::Score || shape.sequences != cache.sequences || !fits {
            return Err(ModelError::Shape {
                what: "continuations",
                wanted: format!(
                    "{} sequences of {MIN_PASS_ROWS} to {} positions, to score",
                    cache.sequences, cache.capacity
                ),
                found: format!("{} of {}", shape.sequences, shape.seq),
            });
        }
        let mut decoder = self.reshaped(backend, shape)?;
        let units = decoder.cached_units(cache)?;
        let wanted = scratch_of(units.iter().map(|u| &u.memory));
        decoder.buffers.scratch =
            ScratchBuffers::alloc(backend, "activations", &wanted, &decoder.buffers.scratch)?;
        decoder.units = units;
        decoder.prefix = Some(AfterPrefix::new(cache, 0));
        decoder.reserve(backend)?;
        Ok(decoder)
    }

    /// Units of the stage, with attention layers that read the prefix from a cache.
    fn cached_units(&self, cache: &PrefixCache) -> Result<Vec<StageUnit>, ModelError> {
        let shardings = self.shardings();
        let recording =
            Recording::new(self.whole(), &shardings, [self.shape.sequences, self.shape.seq], DType::F32);
        let of_kind = |first: usize| {
            let mut layer = recording.decode_layer(first, cache.capacity);
            let tokens = self.shape.tokens();
            self.expert_rank().iter().for_each(|rank| experts_of_one(&mut layer, *rank, tokens));
            bessemer_program::fuse(&mut layer);
            seal(&mut layer);
            let memory = plan_memory(&layer, &[Phase::Score]);
            match self.expert_rank() {
                Some(rank) => verify_experts(&layer, &[Phase::Score], rank).map(|()| (first, layer, memory)),
                None => Ok((first, layer, memory)),
            }
        };
        let kinds = self.model.layer_kinds().into_iter().map(of_kind).collect::<Result<Vec<_>, _>>()?;
        let in_place = |unit: &StageUnit| stream_in_place(&unit.program, Phase::Score);
        let of = |unit: &StageUnit| {
            let Unit::Layer(number) = unit.unit else { return Ok(unit.clone()) };
            let alike =
                |kind: &&(usize, _, _)| self.model.experts_of(kind.0) == self.model.experts_of(number);
            let Some((first, layer, memory)) = kinds.iter().find(alike) else { return Ok(unit.clone()) };
            let prefix = layer_prefix(number);
            let program = layer.renamed(&layer.name, &prefix);
            let find =
                |name: &String| self.params.iter().position(|p| p.spec.name == format!("{prefix}{name}"));
            let parameters = program.parameters.iter().map(|name| find(name).unwrap_or(usize::MAX)).collect();
            let cached = StageUnit {
                program,
                memory: memory.clone(),
                parameters,
                distinct: number == *first,
                ..*unit
            };
            // The memory of the residual stream was laid out for the layers without a cache.
            match in_place(unit) && !in_place(&cached) {
                true => Err(ModelError::Stage(format!(
                    "layer {number} with a cache needs two matrices of the residual stream"
                ))),
                false => Ok(cached),
            }
        };
        self.units.iter().map(of).collect()
    }

    /// States how many positions of each sequence the cache of [`Decoder::after_prefix`] holds before those of the next batches.
    ///
    /// # Errors
    /// A decoder without such a cache; more positions than leave space for a batch.
    pub fn set_past(&mut self, past: usize) -> Result<(), ModelError> {
        let (seq, tokens) = (self.shape.seq, self.shape.tokens());
        let capacity = self.prefix.as_ref().map_or(0, AfterPrefix::capacity);
        if past + seq > capacity {
            return Err(ModelError::CacheFull { len: past, new: seq, capacity });
        }
        if let Some(prefix) = &mut self.prefix {
            *prefix = AfterPrefix::new(&prefix.cache, past);
        }
        self.default_positions = (0..tokens).map(|n| (past + n % seq) as u32).collect();
        Ok(())
    }
}

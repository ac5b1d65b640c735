//! Prices of a model's units, from the programs that a rank would run. The ranks have null devices.

use crate::Training;
use bessemer_arch::{Annotations, Model, ParamLayout, ParamRole, TensorShard, Unit};
use bessemer_plan::layerwise::{BlockLayout, Degrees, LayerChoice, MachineSeconds, Prices, UnitPrice};
use bessemer_plan::{Efficiency, Machine, Spread};
use bessemer_runtime::{ActivationConfig, Decoder, LineStream, Purpose, Shape, StageConfig, Stream};
use bessemer_tensor::null::NullBackend;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Layouts of the matrices that have a row for each token of the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Vocabulary {
    /// The table of tokens; the output projection too where they are tied.
    pub(crate) table: BlockLayout,
    /// The output projection.
    pub(crate) head: BlockLayout,
}

impl Default for Vocabulary {
    fn default() -> Vocabulary {
        Vocabulary { table: BlockLayout::Sharded, head: BlockLayout::Sharded }
    }
}

/// Degrees and layouts that the programs of a rank depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tensor: usize,
    sequence: bool,
    micro_batch: usize,
    vocabulary: Vocabulary,
}

/// Prices by degrees, each made once.
pub(crate) struct Pricing<'a> {
    training: &'a Training,
    machine: &'a Machine,
    efficiency: &'a Efficiency,
    /// One layer of the model, with its embedding and head.
    model: Model,
    known: BTreeMap<Key, Result<Rc<Prices>, String>>,
}

impl<'a> Pricing<'a> {
    pub(crate) fn new(
        training: &'a Training,
        machine: &'a Machine,
        efficiency: &'a Efficiency,
    ) -> Pricing<'a> {
        let document_end = training.recipe.model.document_mask.then_some(0);
        let model = Model { layers: 1, document_end, ..training.model.clone() };
        Pricing { training, machine, efficiency, model, known: BTreeMap::new() }
    }

    /// Prices on a rank of these degrees.
    pub(crate) fn prices(&mut self, degrees: &Degrees) -> Result<Rc<Prices>, String> {
        self.prices_with(degrees, Vocabulary::default())
    }

    /// Prices on a rank of these degrees, with these layouts of the vocabulary.
    pub(crate) fn prices_with(
        &mut self,
        degrees: &Degrees,
        vocabulary: Vocabulary,
    ) -> Result<Rc<Prices>, String> {
        let Degrees { tensor, sequence, micro_batch, .. } = *degrees;
        let key = Key { tensor, sequence, micro_batch, vocabulary };
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let made = self.make(key).map(Rc::new);
        self.known.insert(key, made.clone());
        made
    }

    fn make(&self, key: Key) -> Result<Prices, String> {
        let choices = LayerChoice::all(key.tensor, key.sequence);
        let mut of_layer = Vec::with_capacity(choices.len());
        let mut ends = None;
        let mut host = None;
        for choice in &choices {
            let decoder = self.decoder(key, *choice)?;
            let layer = decoder.programs().find(|(unit, ..)| matches!(unit, Unit::Layer(_)));
            let (_, program, memory) = layer.ok_or("a model without layers")?;
            let host = *host.get_or_insert_with(|| MachineSeconds::host_of(program, self.efficiency));
            let seconds = MachineSeconds {
                machine: self.machine,
                efficiency: self.efficiency,
                tensor: Spread::consecutive(key.tensor, self.machine.node),
                host,
            };
            of_layer.push(UnitPrice::of(program, memory, &seconds));
            ends.get_or_insert_with(|| {
                let find = |wanted: Unit| {
                    let mut units = decoder.programs().filter(|(unit, ..)| *unit == wanted);
                    units.next().map(|(_, program, memory)| UnitPrice::of(program, memory, &seconds))
                };
                (find(Unit::Embedding), find(Unit::Head), decoder.stream_bytes())
            });
        }
        let (Some(embedding), Some(head), stream) = ends.ok_or("a layer without choices")? else {
            return Err("a model without embedding or head".into());
        };
        let layers = self.training.model.layers;
        Ok(Prices {
            choices,
            kinds: vec![of_layer],
            layers: vec![0; layers],
            embedding,
            head,
            tied: if self.model.tied_embeddings { self.table(key)? as f64 } else { 0.0 },
            stream: stream as f64,
        })
    }

    /// The first tensor shard, with the blocks laid out as the choice says.
    fn shard(&self, key: Key, choice: LayerChoice) -> Result<TensorShard, String> {
        let mut annotations = Annotations::default();
        let mut parts = vec![
            ("layers.0.attention.*", choice.attention),
            ("layers.0.mlp.*", choice.feed_forward),
            ("embed.tokens", key.vocabulary.table),
        ];
        if !self.model.tied_embeddings {
            parts.push(("head.weight", key.vocabulary.head));
        }
        for (pattern, layout) in parts {
            if layout == BlockLayout::Replicated {
                annotations.0.insert(pattern.to_owned(), ParamLayout::Replicate);
            }
        }
        let shardings =
            self.model.annotated_shardings(&annotations, key.sequence).map_err(|e| e.to_string())?;
        self.model.tensor_shard_of(shardings, key.tensor, 0).map_err(|e| e.to_string())
    }

    fn decoder(&self, key: Key, choice: LayerChoice) -> Result<Decoder, String> {
        let recipe = &self.training.recipe;
        let shard = self.shard(key, choice)?;
        let line = if key.sequence { LineStream::Rows } else { LineStream::Whole };
        let config = ActivationConfig {
            recompute: choice.recompute.into(),
            lengths: Vec::new(),
            in_gradients: false,
            ..bessemer_train::activations(&recipe.train)
        };
        let stage = StageConfig {
            overlap: recipe.parallel.overlap && key.tensor > 1,
            ..StageConfig::whole(&self.model)
        };
        let seq = recipe.train.seq_len as usize;
        let shape = Shape { sequences: key.micro_batch, seq, purpose: Purpose::Train };
        let stream = Stream { line, ..Stream::WHOLE };
        Decoder::of_stage(&mut NullBackend::new(), &shard, stream, shape, config, &stage, None)
            .map_err(|e| e.to_string())
    }

    /// Elements of the table of tokens on a rank.
    fn table(&self, key: Key) -> Result<usize, String> {
        let choice = LayerChoice::all(1, false)[0];
        let params = self.shard(key, choice)?.params();
        let tables = params.iter().filter(|param| param.sharding.spec.id.role() == ParamRole::TokenTable);
        Ok(tables.map(|param| param.shape.iter().product::<usize>()).sum())
    }
}

//! The plan that a recipe states: its degrees, its stages and the choice of each layer.

use crate::PlannerError;
use crate::layerwise::Planning;
use crate::pricing::Vocabulary;
use bessemer_arch::{ParamRole, Sharding, Unit};
use bessemer_parallel::ParallelConfig;
use bessemer_plan::layerwise::{BlockLayout, Degrees, LayerChoice, LayerPlan, Prices, SimulatedStep, step};
use bessemer_recipe::Recipe;
use bessemer_units::{Offload, Recompute, RecomputePolicy};
use std::rc::Rc;

/// A plan, before it has prices.
#[derive(Debug, Clone)]
pub(crate) struct Stated {
    pub(crate) degrees: Degrees,
    /// Layers of each stage.
    pub(crate) stages: Vec<usize>,
    pub(crate) choices: Vec<LayerChoice>,
    pub(crate) vocabulary: Vocabulary,
}

/// A plan with its simulated step.
pub(crate) struct Priced {
    pub(crate) plan: LayerPlan,
    pub(crate) prices: Rc<Prices>,
    pub(crate) step: SimulatedStep,
}

impl Planning<'_> {
    /// The plan of a recipe.
    pub(crate) fn stated(&self, recipe: &Recipe) -> Result<Stated, PlannerError> {
        expect_simple(&recipe.parallel, recipe.train.offload)?;
        let model = &self.training.model;
        let (parallel, devices) = (&recipe.parallel, self.wanted.devices);
        let layout = bessemer_train::layout(recipe, devices, model).map_err(PlannerError::request)?;
        let spans = layout.spans(model, layout.pipeline()).map_err(PlannerError::request)?;
        let tokens = recipe.train.batch_tokens.max(recipe.train.seq_len);
        let data = layout.data_ranks();
        let batch = recipe.batch(data as u64, Some(tokens)).map_err(PlannerError::request)?;
        let degrees = Degrees {
            tensor: layout.tensor(),
            sequence: parallel.sequence,
            data,
            pipeline: layout.pipeline(),
            micro_batch: batch.micro_batch as usize,
            zero: layout.stage.number(),
        };
        let shardings = model
            .annotated_shardings(&parallel.annotate, parallel.sequence)
            .map_err(PlannerError::request)?;
        let recompute = recipe.train.recompute_plan();
        let mut choices = Vec::with_capacity(model.layers);
        for span in &spans {
            for layer in span.layers.clone() {
                let recompute = match recompute.of(layer, &span.layers) {
                    RecomputePolicy::Named(policy) if *policy != Recompute::InputAware => *policy,
                    other => return Err(no_price(&format!("train.recompute = {other} (layer {layer})"))),
                };
                choices.push(LayerChoice {
                    attention: block(&shardings, Unit::Layer(layer), ParamRole::AttentionOutWeight),
                    feed_forward: block(&shardings, Unit::Layer(layer), ParamRole::DownWeight),
                    recompute,
                });
            }
        }
        let table = block(&shardings, Unit::Embedding, ParamRole::TokenTable);
        let head =
            if model.tied_embeddings { table } else { block(&shardings, Unit::Head, ParamRole::HeadWeight) };
        let stages = spans.into_iter().map(|span| span.layers.len()).collect();
        Ok(Stated { degrees, stages, choices, vocabulary: Vocabulary { table, head } })
    }

    /// Simulates a plan.
    pub(crate) fn price(&mut self, stated: &Stated) -> Result<Priced, PlannerError> {
        let Stated { degrees, stages, vocabulary, .. } = stated;
        let prices = self.pricing.prices_with(degrees, *vocabulary).map_err(PlannerError::request)?;
        let number = |choice: &LayerChoice| {
            let sharded = BlockLayout::Sharded;
            let alone =
                LayerChoice { attention: sharded, feed_forward: sharded, recompute: choice.recompute };
            // One rank has no layouts.
            let wanted = if degrees.tensor == 1 { alone } else { *choice };
            prices.choices.iter().position(|other| *other == wanted).ok_or_else(|| {
                PlannerError::request(
                    "parallel.sequence = true with attention blocks that nothing shards: attention needs all rows of the residual \
                     stream; annotate attention, such as parallel.annotate.'layers.*.attention.mixed' = \"shard(1)\", or take \
                     parallel.sequence = false",
                )
            })
        };
        let choices = stated.choices.iter().map(number).collect::<Result<Vec<usize>, PlannerError>>()?;
        let plan = LayerPlan { degrees: *degrees, stages: stages.clone(), choices };
        let step = step(&self.setting(), &prices, &plan).map_err(PlannerError::failed)?;
        Ok(Priced { plan, prices, step })
    }
}

fn block(shardings: &[Sharding], unit: Unit, role: ParamRole) -> BlockLayout {
    let is = |sharding: &&Sharding| sharding.spec.id.unit() == unit && sharding.spec.id.role() == role;
    match shardings.iter().find(is).and_then(Sharding::dim) {
        Some(_) => BlockLayout::Sharded,
        None => BlockLayout::Replicated,
    }
}

/// Refuses what the simulation of layers does not know.
pub(crate) fn expect_simple(parallel: &ParallelConfig, offload: Offload) -> Result<(), PlannerError> {
    let plain = ParallelConfig::default();
    let given = [
        ("train.offload", offload != Offload::None),
        ("parallel.context", parallel.context != plain.context),
        ("parallel.shard", parallel.shard != plain.shard),
        ("parallel.tensor as a grid", parallel.tensor.grid().is_some()),
        ("parallel.partition_activations", parallel.partition_activations),
        ("parallel.schedule other than 1f1b", parallel.pipeline > 1 && parallel.schedule != plain.schedule),
        ("parallel.chunks", parallel.pipeline > 1 && parallel.chunks > 1),
        ("parallel.reduce_dtype", parallel.reduce_dtype != plain.reduce_dtype),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((key, _)) => Err(no_price(key)),
        None => Ok(()),
    }
}

fn no_price(what: &str) -> PlannerError {
    PlannerError::request(format!(
        "{what} is not simulated layer by layer; expected none, or --method exhaustive"
    ))
}

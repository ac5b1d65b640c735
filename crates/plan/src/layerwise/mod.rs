//! Plans whose layers may differ: what each layer shards and computes again, and which layers each pipeline stage holds.
//!
//! ```text
//! unit programs of a rank ─► UnitPrice (seconds, bytes)  ─┬─► solve:  dynamic programming over layers with memory (Galvatron)
//!   (partitioned, with their memory)                      ├─► wander: Markov chain over operator groups (FlexFlow), by
//!                                                         └─► step:   a simulation of the whole step, which judges every plan
//! annotations of some values ─► complete ─► layouts of all parameters (GShard)
//! ```
//!
//! - [`UnitPrice::of`] sums the seconds of the program that a rank would run.
//! - [`solve`] finds the fastest plan of given degrees under a memory limit (Miao et al. 2022, Galvatron, section 3.3), with stages of
//!   unequal length; [`uniform`] is the best plan whose layers and stages are alike.
//! - [`search`] does that for all [`degrees`] that may be the fastest.
//! - [`step`] simulates a plan: 1F1B, collectives of data-parallel ranks beside the computation.
//! - [`wander`] proposes changes of a plan and keeps good ones (Jia et al. 2019, FlexFlow, section 6.2).
//! - [`complete`] gives every value of a recorded program a layout that follows from a few (Xu et al. 2021, GSPMD, section 3.5).

mod complete;
mod front;
mod mcmc;
mod price;
mod simulate;
mod solve;
mod space;
mod stage;

pub use bessemer_mesh::Placement;
pub use complete::{Annotation, Completion, Conflict, Origin, complete};
pub use mcmc::{Accepted, Proposals, Walk, wander};
pub use price::{MachineSeconds, NodeSeconds, UnitPrice};
pub use simulate::{SimulatedStep, step};
pub use solve::{Solved, priced, solve, uniform};
pub use space::{Searched, degrees, search};

use crate::{Efficiency, Machine, ParameterBytes, ZeroStage};
use bessemer_program::PiecesInFlight;
use bessemer_units::Recompute;
use serde::Serialize;

/// How the products of a block lie over the tensor axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockLayout {
    /// Heads or hidden units are sharded, as in Megatron-LM: two sums of activations a block.
    Sharded,
    /// Every rank computes all of the block: nothing travels.
    Replicated,
}

/// Configuration of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct LayerChoice {
    /// Layout of the attention block.
    pub attention: BlockLayout,
    /// Layout of the feed-forward block.
    pub feed_forward: BlockLayout,
    /// Values that the backward pass computes again.
    #[serde(serialize_with = "by_name")]
    pub recompute: Recompute,
}

impl LayerChoice {
    /// Every choice of a layer: where several ranks share it, with each block sharded or not.
    pub fn all(tensor: usize, sequence: bool) -> Vec<LayerChoice> {
        let blocks = |replicates: bool| match replicates {
            true => vec![BlockLayout::Sharded, BlockLayout::Replicated],
            false => vec![BlockLayout::Sharded],
        };
        // Attention that is not sharded wants all rows of the residual stream.
        let (attentions, feed_forwards) = (blocks(tensor > 1 && !sequence), blocks(tensor > 1));
        let mut all = Vec::new();
        for &attention in &attentions {
            for &feed_forward in &feed_forwards {
                for recompute in [
                    Recompute::None,
                    Recompute::Selective,
                    Recompute::Attention,
                    Recompute::AttentionOutput,
                    Recompute::Full,
                ] {
                    all.push(LayerChoice { attention, feed_forward, recompute });
                }
            }
        }
        all
    }
}

fn by_name<S: serde::Serializer>(recompute: &Recompute, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(recompute)
}

/// Degrees that all layers of a plan have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Degrees {
    /// Tensor-parallel ranks.
    pub tensor: usize,
    /// Whether they share the rows of the residual stream.
    pub sequence: bool,
    /// Data-parallel ranks.
    pub data: usize,
    /// Pipeline stages.
    pub pipeline: usize,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// Number of ZeRO's stage, 0 to 3.
    pub zero: u8,
}

impl Degrees {
    /// Tensors that data-parallel ranks hold a part of.
    pub fn data_parallel(&self) -> ZeroStage {
        ZeroStage::ALL[usize::from(self.zero.min(3))]
    }
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct LayerPlan {
    /// Degrees of all layers.
    pub degrees: Degrees,
    /// Layers of each pipeline stage.
    pub stages: Vec<usize>,
    /// By layer: number of its choice among those of [`Prices`].
    pub choices: Vec<usize>,
}

/// Prices of the units of a model on a rank of some degrees.
#[derive(Debug, Clone, PartialEq)]
pub struct Prices {
    /// Choices of a layer.
    pub choices: Vec<LayerChoice>,
    /// By kind of layer and choice; infinite seconds where a layer cannot have the choice.
    pub kinds: Vec<Vec<UnitPrice>>,
    /// By layer: its kind.
    pub layers: Vec<usize>,
    /// The embedding.
    pub embedding: UnitPrice,
    /// The head with the loss.
    pub head: UnitPrice,
    /// Parameters that embedding and head count both, though one rank with both holds them once: a tied table.
    pub tied: f64,
    /// Bytes of the residual stream of a micro-batch on a rank.
    pub stream: f64,
}

impl Prices {
    /// The price of a layer.
    pub fn layer(&self, layer: usize, choice: usize) -> &UnitPrice {
        &self.kinds[self.layers[layer]][choice]
    }
}

/// Machine, batch and limit of a plan.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// Devices.
    pub machine: &'a Machine,
    /// The software that runs on them.
    pub efficiency: &'a Efficiency,
    /// Sequences of a step.
    pub global_batch: usize,
    /// Bytes of a parameter, its gradient and its state.
    pub bytes: ParameterBytes,
    /// Whether collectives of data-parallel ranks run beside the computation.
    pub overlap: bool,
    /// Most pieces of parameters and gradients that travel at once.
    pub in_flight: PiecesInFlight,
    /// Bytes that a device may hold.
    pub memory: f64,
}

impl Setting<'_> {
    /// Micro-batches of a step on one rank.
    pub fn micro_batches(&self, degrees: &Degrees) -> usize {
        self.global_batch / (degrees.data * degrees.micro_batch).max(1)
    }
}

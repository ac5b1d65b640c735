//! A training step to measure: a model, a micro-batch, how exactly, and which optimizer.

use crate::MeasureError;
use bessemer_arch::Model;
use bessemer_optim::OptimConfig;
use bessemer_recipe::Recipe;
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_units::MatmulPrecision;
use serde_json::{Value, json};

/// A training step to measure.
#[derive(Debug)]
pub struct Job {
    /// The model.
    pub model: Model,
    /// The micro-batch.
    pub shape: Shape,
    /// The optimizer.
    pub optim: OptimConfig,
    /// Storage and recomputation of activations.
    pub activations: ActivationConfig,
    /// Folder for offloaded activations; empty for the current directory.
    pub offload_dir: String,
    /// How exact matrix products must be.
    pub matmul: MatmulPrecision,
}

impl Job {
    /// The micro-batch of a recipe whose model is this.
    ///
    /// # Errors
    /// A batch that the recipe cannot have.
    pub fn of(recipe: Recipe, model: Model) -> Result<Job, MeasureError> {
        let plan = recipe.train.resolve(1, Some(u64::MAX >> 20)).map_err(MeasureError::request)?;
        Ok(Job {
            model,
            shape: Shape {
                sequences: plan.micro_batch as usize,
                seq: plan.seq_len as usize,
                purpose: Purpose::Train,
            },
            optim: recipe.optim,
            activations: bessemer_train::activations(&recipe.train),
            offload_dir: recipe.train.offload_dir,
            matmul: recipe.train.matmul_precision,
        })
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> usize {
        self.shape.tokens()
    }

    /// Model FLOPs of a step.
    pub fn flops(&self) -> f64 {
        self.model.train_flops_per_token(self.shape.seq).0 * self.tokens() as f64
    }

    /// For the result: what was measured.
    pub fn facts(&self) -> Value {
        json!({
            "model": self.model.summary(),
            "parameters": self.model.parameters(),
            "layers": self.model.layers,
            "width": self.model.width,
            "heads": self.model.heads,
            "vocab": self.model.vocab_size,
            "context": self.model.context,
            "batch": self.shape.sequences,
            "seq": self.shape.seq,
            "dtype": self.activations.storage.to_string(),
            "recompute": self.activations.recompute.to_string(),
            "offload": self.activations.offload.to.to_string(),
            "matmul": self.matmul.to_string(),
            "lr": self.optim.lr,
            "clip": self.optim.clip,
        })
    }
}

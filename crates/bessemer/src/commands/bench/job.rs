//! What `bessemer bench step` runs: a model, a micro-batch, how exactly, and which optimizer.

use crate::cli::BenchStepArgs;
use crate::failure::Failure;
use bessemer_arch::{Model, ModelConfig};
use bessemer_model::{ActivationConfig, Purpose, Shape};
use bessemer_optim::OptimConfig;
use bessemer_recipe::Recipe;
use bessemer_units::MatmulPrecision;
use serde_json::{Value, json};

/// A training step to measure.
#[derive(Debug)]
pub(in crate::commands) struct Job {
    pub(in crate::commands) model: Model,
    pub(in crate::commands) shape: Shape,
    pub(in crate::commands) optim: OptimConfig,
    pub(in crate::commands) activations: ActivationConfig,
    /// Folder for offloaded activations; empty for the current directory.
    pub(in crate::commands) offload_dir: String,
    pub(in crate::commands) matmul: MatmulPrecision,
}

impl Job {
    /// What the command line, and the recipe that it may name, ask for.
    pub(in crate::commands) fn new(args: &BenchStepArgs) -> Result<Job, Failure> {
        let mut job = match &args.recipe {
            Some(path) => Job::of_recipe(path, args)?,
            None => Job::of_name(args)?,
        };
        job.shape.sequences = args.batch.unwrap_or(job.shape.sequences);
        job.shape.seq = args.seq.unwrap_or(job.shape.seq);
        job.activations.storage = args.dtype.map_or(job.activations.storage, Into::into);
        job.matmul = args.matmul.map_or(job.matmul, Into::into);
        Ok(job)
    }

    /// A named architecture. The optimizer is that of the reference job, which clips nothing, so that a peer has
    /// nothing to leave out.
    fn of_name(args: &BenchStepArgs) -> Result<Job, Failure> {
        let named = ModelConfig { architecture: args.model.clone(), ..ModelConfig::default() };
        let own = bessemer_arch::named(&args.model).map_or(0, |m| m.vocab_size);
        Ok(Job {
            model: overridden(named, args).resolve(Some(args.vocab.map_or(own, |v| v as usize)))?,
            shape: Shape { sequences: 4, seq: 256, purpose: Purpose::Train },
            optim: OptimConfig { lr: 3e-4, beta2: 0.95, clip: 0.0, ..OptimConfig::default() },
            activations: ActivationConfig { in_gradients: true, ..ActivationConfig::default() },
            offload_dir: String::new(),
            matmul: MatmulPrecision::Highest,
        })
    }

    /// The micro-batch of a recipe: no data is read, so a vocabulary that the tokenizer decides is taken at its limit.
    fn of_recipe(path: &std::path::Path, args: &BenchStepArgs) -> Result<Job, Failure> {
        let recipe = crate::recipes::load_recipe(path, &args.sets)?.value;
        let vocab = args.vocab.unwrap_or(recipe.tokenizer.vocab_size) as usize;
        let model = overridden(recipe.model.clone(), args).resolve(Some(vocab))?;
        Job::of(recipe, model)
    }

    /// The micro-batch of a recipe whose model is this.
    pub(in crate::commands) fn of(recipe: Recipe, model: Model) -> Result<Job, Failure> {
        let plan = recipe.train.resolve(1, Some(u64::MAX >> 20)).map_err(Failure::usage)?;
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
    pub(in crate::commands) fn tokens(&self) -> usize {
        self.shape.tokens()
    }

    /// Model FLOPs of a step.
    pub(in crate::commands) fn flops(&self) -> f64 {
        self.model.train_flops_per_token(self.shape.seq).0 * self.tokens() as f64
    }

    /// For the result: what was measured.
    pub(in crate::commands) fn facts(&self) -> Value {
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

/// The model table with the sizes that the command line gives.
fn overridden(config: ModelConfig, args: &BenchStepArgs) -> ModelConfig {
    ModelConfig {
        layers: args.layers.or(config.layers),
        width: args.width.or(config.width),
        heads: args.heads.or(config.heads),
        context: args.context.or(config.context),
        vocab_size: args.vocab.unwrap_or(config.vocab_size),
        ..config
    }
}

//! The step that the command line asks for.

use crate::cli::BenchStepArgs;
use bessemer::Failure;
use bessemer_arch::ModelConfig;
use bessemer_measure::Job;
use bessemer_optim::OptimConfig;
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_units::MatmulPrecision;
use std::path::Path;

/// The step of the command line, and of the recipe that it may name.
pub(crate) fn of_args(args: &BenchStepArgs) -> Result<Job, Failure> {
    let mut job = match &args.recipe {
        Some(path) => of_recipe(path, args)?,
        None => of_name(args)?,
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
fn of_recipe(path: &Path, args: &BenchStepArgs) -> Result<Job, Failure> {
    let recipe = bessemer::load_recipe(path, &args.sets)?.value;
    let vocab = args.vocab.unwrap_or(recipe.tokenizer.vocab_size) as usize;
    let model = overridden(recipe.model.clone(), args).resolve(Some(vocab))?;
    Ok(Job::of(recipe, model)?)
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

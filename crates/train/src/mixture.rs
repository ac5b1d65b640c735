//! The mixture of a run: what its recipe asks of the components of its training split.

use crate::TrainError;
use bessemer_loader::{DocumentConfig, Loader, Mixture, Share, Taken, effective_epochs};
use bessemer_recipe::{BatchPlan, Recipe, SequenceLengths};
use bessemer_shards::ShardSet;
use std::sync::Arc;

/// Passes over a text up to which repeating it costs next to nothing (Muennighoff et al. 2023).
const FREE_EPOCHS: f64 = 4.0;

/// Samples of the whole run, whatever the number of ranks.
fn samples(recipe: &Recipe, train: &ShardSet) -> Result<u64, TrainError> {
    let plan = recipe.train.resolve(1, Some(train.token_count())).map_err(TrainError::Recipe)?;
    Ok(plan.steps * plan.sequences_per_step)
}

/// The mixture, if the recipe has several sources.
fn mixture(recipe: &Recipe, train: &ShardSet) -> Result<Option<Mixture>, TrainError> {
    let components = recipe.corpus.components();
    if components.is_empty() {
        return Ok(None);
    }
    let shares: Vec<Share> = components
        .into_iter()
        .map(|component| Share { name: component.name, weight: component.weight, epochs: component.epochs })
        .collect();
    let (seq_len, temperature) = (recipe.train.seq_len as usize, recipe.corpus.mix.temperature);
    Ok(Some(Mixture::new(train, seq_len, &shares, temperature, samples(recipe, train)?)?))
}

/// The training samples of a recipe: of its mixture, or of its one source. `separated`: documents end with a token of their own.
pub(crate) fn loader(
    recipe: &Recipe,
    train: &Arc<ShardSet>,
    plan: &BatchPlan,
    separated: bool,
) -> Result<Loader, TrainError> {
    let (seed, shuffle) = (recipe.loader.seed_or(recipe.run.seed), recipe.loader.shuffle);
    if recipe.train.has_documents() {
        let config = DocumentConfig {
            seq_len: plan.seq_len as usize,
            shorter: recipe.train.shorter_lengths().into_iter().map(|length| length as usize).collect(),
            micro_batch: plan.micro_batch as usize,
            bucketed: recipe.train.lengths == SequenceLengths::Bucketed,
            separated,
        };
        return Ok(Loader::of_documents(Arc::clone(train), config, seed, shuffle)?);
    }
    match mixture(recipe, train)? {
        Some(mixture) => Ok(Loader::mixed(Arc::clone(train), seed, shuffle, mixture)),
        None => Ok(Loader::new(Arc::clone(train), recipe.train.seq_len as usize, seed, shuffle)?),
    }
}

/// What the whole run takes of each component of its training split; nothing for a recipe of one source.
///
/// # Errors
/// Shards of other sources than the recipe's, weights or epochs that they cannot satisfy.
pub fn run_mixture(recipe: &Recipe, train: &ShardSet) -> Result<Vec<Taken>, TrainError> {
    Ok(match mixture(recipe, train)? {
        Some(mixture) => mixture.taken(samples(recipe, train)?),
        None => Vec::new(),
    })
}

/// Warnings for a run that repeats its text too often, a sentence for each component, or for the whole of one source.
pub(crate) fn repetitions(
    recipe: &Recipe,
    train: &ShardSet,
    taken: &[Taken],
) -> Result<Vec<String>, TrainError> {
    let samples_per_epoch = train.token_count() / recipe.train.seq_len.max(1);
    if !taken.is_empty() || samples_per_epoch == 0 {
        return Ok(repeated_too_often(taken));
    }
    let epochs = samples(recipe, train)? as f64 / samples_per_epoch as f64;
    Ok(one_source_too_often(epochs, train.token_count()).into_iter().collect())
}

/// The warning for a run that passes more than four times over the tokens of its one source.
fn one_source_too_often(epochs: f64, tokens: u64) -> Option<String> {
    (epochs > FREE_EPOCHS).then(|| {
        format!(
            "the run takes {epochs:.1} passes over {tokens} tokens, which are worth about {:.1} of new text (Muennighoff et al. \
             2023): beyond {FREE_EPOCHS} passes repeated text soon stops helping; take more text, or fewer steps (train.steps, \
             or train.epochs = {FREE_EPOCHS})",
            effective_epochs(epochs)
        )
    })
}

/// What a user should know about components that are repeated too often, a sentence each.
pub fn repeated_too_often(taken: &[Taken]) -> Vec<String> {
    let often = taken.iter().filter(|taken| taken.epochs > FREE_EPOCHS);
    often
        .map(|taken| {
            format!(
                "the run takes {:.1} passes over {}, which are worth about {:.1} of new text (Muennighoff et al. 2023): beyond \
                 {FREE_EPOCHS} passes repeated text soon stops helping; give it less weight, epochs = {FREE_EPOCHS}, or more text",
                taken.epochs,
                taken.name,
                effective_epochs(taken.epochs)
            )
        })
        .collect()
}

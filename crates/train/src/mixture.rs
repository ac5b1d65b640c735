//! The mixture of a run: samples that its recipe requests of the components of its training split.

use crate::TrainError;
use bessemer_loader::{
    DocumentConfig, Grouping, LoadError, Loader, LoaderState, Mixture, MixtureShare, OrderDifference,
    OrderOrigin, Share, Taken, effective_epochs,
};
use bessemer_recipe::{BatchPlan, Recipe, SequenceLengths};
use bessemer_shards::{ShardSet, token_bytes_for};
use std::sync::Arc;

/// Passes over a text up to which repeating it costs next to nothing (Muennighoff et al. 2023).
const FREE_EPOCHS: f64 = 4.0;

/// Samples of the whole run, whatever the number of ranks.
fn samples(recipe: &Recipe, train: &ShardSet) -> Result<u64, TrainError> {
    let plan = recipe.train.resolve(1, Some(train.token_count())).map_err(TrainError::Recipe)?;
    Ok(plan.steps * plan.sequences_per_step)
}

/// Blocks and groups of the order of the recipe; none of a uniform one.
fn grouping(recipe: &Recipe, train: &ShardSet) -> Option<Grouping> {
    let token_bytes = u64::from(token_bytes_for(train.vocab_size()));
    recipe.loader.grouping(recipe.train.seq_len.saturating_mul(token_bytes))
}

/// The mixture of `samples` samples after `origin`, if the recipe has several sources.
fn mixture(
    recipe: &Recipe,
    train: &ShardSet,
    samples: u64,
    origin: &OrderOrigin,
) -> Result<Option<Mixture>, LoadError> {
    let components = recipe.corpus.components();
    if components.is_empty() {
        return Ok(None);
    }
    let shares: Vec<Share> = components
        .into_iter()
        .map(|component| Share { name: component.name, weight: component.weight, epochs: component.epochs })
        .collect();
    let (seq_len, temperature) = (recipe.train.seq_len as usize, recipe.corpus.mix.temperature);
    Ok(Some(Mixture::after(train, seq_len, &shares, temperature, samples, &origin.given)?))
}

/// The data of a run: its training split, under a recipe.
#[derive(Clone, Copy)]
pub(crate) struct TrainingData<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) train: &'a Arc<ShardSet>,
    /// Documents end with a token of their own.
    pub(crate) separated: bool,
}

/// The training samples of a run that had samples before.
pub(crate) struct ContinuedOrder {
    pub(crate) loader: Loader,
    /// Differences from the saved order; the new order begins after the samples that were consumed.
    pub(crate) differences: Vec<OrderDifference>,
}

impl TrainingData<'_> {
    /// The samples of a run that consumed those of `saved` and ends after sample `end`; `fresh` are those of a run from its beginning. The
    /// order continues unchanged, unless the recipe or the shards require another one: this begins here, and components that stay continue after
    /// the samples that they have provided.
    pub(crate) fn continued(
        &self,
        plan: &BatchPlan,
        saved: &LoaderState,
        end: u64,
        fresh: &Loader,
    ) -> Result<ContinuedOrder, LoadError> {
        // Without a mixture the order does not depend on its origin.
        let mixed = !self.recipe.corpus.components().is_empty();
        let with_origin = |origin: OrderOrigin| match mixed {
            true => self.loader(plan, end, origin),
            false => Ok(fresh.clone().from_origin(origin)),
        };
        let origin = saved.origin.clone().unwrap_or_default();
        if saved.samples == 0 {
            return Ok(ContinuedOrder { loader: with_origin(origin)?, differences: Vec::new() });
        }
        // A mixture whose components have too few samples from there on may be possible from here on.
        let same = with_origin(origin);
        let mut now = match &same {
            Ok(loader) => loader.state(saved.samples),
            Err(_) => self.unweighted(plan, saved)?,
        };
        let differences = saved.differences(&now);
        if let (Ok(loader), true) = (&same, differences.is_empty()) {
            return Ok(ContinuedOrder { loader: loader.clone(), differences });
        }
        now.samples = saved.samples;
        let loader = with_origin(saved.replaced_by(&now)?)?;
        Ok(ContinuedOrder { differences: saved.differences(&loader.state(saved.samples)), loader })
    }

    /// The components of the split under the order of the recipe, without weights.
    fn unweighted(&self, plan: &BatchPlan, saved: &LoaderState) -> Result<LoaderState, LoadError> {
        let (seed, shuffle) = (self.recipe.loader.seed_or(self.recipe.run.seed), self.recipe.loader.shuffle);
        let state = Loader::new(Arc::clone(self.train), plan.seq_len as usize, seed, shuffle)?
            .grouped(grouping(self.recipe, self.train))
            .state(saved.samples);
        let share = |c: &bessemer_shards::Component| MixtureShare {
            name: c.name.clone(),
            tokens: c.tokens.end - c.tokens.start,
            slots: 0,
            period: 0,
        };
        Ok(LoaderState { mixture: self.train.components().iter().map(share).collect(), ..state })
    }

    /// The samples of an order with this origin in a run that ends after sample `end`.
    pub(crate) fn loader(
        &self,
        plan: &BatchPlan,
        end: u64,
        origin: OrderOrigin,
    ) -> Result<Loader, LoadError> {
        let left = end.saturating_sub(origin.samples);
        let loader = loader(self, plan, left, &origin)?;
        Ok(loader.from_origin(origin))
    }
}

/// The training samples of a recipe: of its mixture of `left` samples, or of its one source.
fn loader(
    data: &TrainingData<'_>,
    plan: &BatchPlan,
    left: u64,
    origin: &OrderOrigin,
) -> Result<Loader, LoadError> {
    let TrainingData { recipe, train, separated } = *data;
    let (seed, shuffle) = (recipe.loader.seed_or(recipe.run.seed), recipe.loader.shuffle);
    if recipe.train.has_documents() {
        let config = DocumentConfig {
            seq_len: plan.seq_len as usize,
            shorter: recipe.train.shorter_lengths().into_iter().map(|length| length as usize).collect(),
            micro_batch: plan.micro_batch as usize,
            bucketed: recipe.train.lengths == SequenceLengths::Bucketed,
            separated,
            pairs: recipe.train.preferences.is_on(),
        };
        return Loader::of_documents(Arc::clone(train), config, seed, shuffle);
    }
    let loader = match mixture(recipe, train, left, origin)? {
        Some(mixture) => Loader::mixed(Arc::clone(train), seed, shuffle, mixture),
        None => Loader::new(Arc::clone(train), recipe.train.seq_len as usize, seed, shuffle)?,
    };
    Ok(loader.grouped(grouping(recipe, train)))
}

/// Tokens that the whole run takes of each component of its training split; nothing for a recipe of one source.
///
/// # Errors
/// Shards of other sources than the recipe's, weights or epochs that they cannot satisfy.
pub fn run_mixture(recipe: &Recipe, train: &ShardSet) -> Result<Vec<Taken>, TrainError> {
    let samples = samples(recipe, train)?;
    Ok(match mixture(recipe, train, samples, &OrderOrigin::default())? {
        Some(mixture) => mixture.taken(samples),
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

/// Warnings about components that are repeated too often, a sentence each.
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

//! The recipe: the configs of all crates, composed.

use crate::error::RecipeError;
use crate::load::{self, Loaded, Problem};
use crate::run::RunConfig;
use crate::train::{BatchPlan, SpikeAction, TrainConfig};
use bessemer_arch::ModelConfig;
use bessemer_checkpoint::SaveConfig;
use bessemer_corpus_config::CorpusConfig;
use bessemer_eval::EvalConfig;
use bessemer_loader::{LoaderConfig, OrderKind};
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{FillChoice, FillConfig, ParallelConfig, Plan};
use bessemer_tokenizer::{TokenizerConfig, TokenizerKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Everything that defines a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// What the run is called, where it lives, its seed and threads.
    pub run: RunConfig,
    /// Which text, cleaned how.
    pub corpus: CorpusConfig,
    /// How the tokenizer is trained.
    pub tokenizer: TokenizerConfig,
    /// The model.
    pub model: ModelConfig,
    /// Batch, sequence length, duration.
    pub train: TrainConfig,
    /// How several ranks share the work.
    pub parallel: ParallelConfig,
    /// Order of the training samples.
    pub loader: LoaderConfig,
    /// Optimizer and learning rate.
    pub optim: OptimConfig,
    /// When checkpoints are written and which are kept.
    pub save: SaveConfig,
    /// When and how the run is evaluated.
    pub eval: EvalConfig,
}

/// Use of a recipe by a command, which decides what must be in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecipeUse {
    /// All of it.
    Training,
    /// Shapes and layouts: everything but how long the training is.
    Layout,
    /// The sections `run`, `corpus` and `tokenizer`.
    Tokenizer,
    /// The sections `run` and `corpus`.
    Corpus,
}

/// Check of `[corpus]`: [`CorpusConfig::check`], or that of a program with the crates that know profiles of rules and predicates.
pub type CorpusCheck = fn(&CorpusConfig) -> Result<(), String>;

impl Recipe {
    /// All mistakes that can be found before any data is read: each section's own check, and what must agree
    /// between sections.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems_for(RecipeUse::Training)
    }

    /// [`Recipe::problems`] in the sections that a command uses.
    pub fn problems_for(&self, recipe_use: RecipeUse) -> Vec<Problem> {
        self.problems_with(recipe_use, CorpusConfig::check)
    }

    /// [`Recipe::problems_for`] with a check of `[corpus]`.
    pub(crate) fn problems_with(&self, recipe_use: RecipeUse, check_corpus: CorpusCheck) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut section = |key: &str, checked: Result<(), String>| {
            if let Err(message) = checked {
                problems.push(Problem { key: key.into(), message });
            }
        };
        section("run", self.run.check());
        section("corpus", check_corpus(&self.corpus));
        if recipe_use == RecipeUse::Corpus {
            return problems;
        }
        section("corpus", self.chats_have_tokens());
        section("tokenizer", self.tokenizer.check().map_err(|e| e.to_string()));
        if recipe_use == RecipeUse::Tokenizer {
            return problems;
        }
        section("model", self.model.check().map_err(|e| e.to_string()));
        section("model", self.vocabulary_fits());
        section("train", self.train.check());
        if recipe_use == RecipeUse::Training {
            section("train", self.train.check_duration());
        }
        section("train", self.sequence_fits_model());
        section("train", self.recompute_fits_model());
        section("train", self.lengths_fit());
        section("corpus", self.chats_fit());
        section("train", self.preferences_fit());
        section("train", self.rewind_has_checkpoints());
        section("save", self.best_has_evaluations());
        section("train", self.early_stop_has_evaluations());
        section("parallel", self.parallel.check());
        section("parallel", self.annotations_fit_model());
        if !self.parallel.awaits_plan() {
            section("parallel", self.context_fits_batch());
            section("parallel", self.layout_fits());
        }
        section("loader", self.loader.check());
        section("loader", self.order_fits_lengths());
        section("optim", self.optim.check().map_err(|e| e.to_string()));
        section("optim", self.precision_fits_optimizer());
        section("save", self.save.check().map_err(|e| e.to_string()));
        section("eval", self.eval.check());
        section("eval", self.forgetting_fits());
        problems
    }

    /// The batch and duration on `ranks` data-parallel ranks, as [`TrainConfig::resolve`]. Ranks that share every sequence
    /// take one at a time.
    ///
    /// # Errors
    /// As [`TrainConfig::resolve`].
    pub fn batch(&self, ranks: u64, train_tokens: Option<u64>) -> Result<BatchPlan, String> {
        let plan = self.train.resolve(ranks, train_tokens)?;
        let multiple = self.sequences_multiple();
        if self.train.micro_batch > 0 || (multiple == 1 && self.parallel.context == 1) {
            return Ok(plan);
        }
        let most = if self.parallel.context > 1 { multiple } else { plan.micro_batch };
        // Documents fill whole micro-batches.
        let shared = |m: u64| self.train.has_documents() || plan.sequences_per_rank.is_multiple_of(m);
        let fits = |m: &u64| m.is_multiple_of(multiple) && shared(*m);
        match (1..=most.max(multiple)).rev().find(fits) {
            Some(micro_batch) => {
                TrainConfig { micro_batch, ..self.train.clone() }.resolve(ranks, train_tokens)
            }
            None => {
                let (needs, others) = self.wanting_sequences();
                Err(format!(
                    "{needs} needs micro-batches of a multiple of {multiple} sequences \
                     (train.seq_len = {}), and a rank has {} sequences per step: expected train.batch_tokens of \
                     a multiple of {}, or another {others}",
                    self.train.seq_len,
                    plan.sequences_per_rank,
                    ranks.saturating_mul(multiple).saturating_mul(self.train.seq_len)
                ))
            }
        }
    }

    /// Keys that want several sequences in a micro-batch, with their values, and the keys to change.
    fn wanting_sequences(&self) -> (String, String) {
        let mut keys = Vec::new();
        if self.parallel.sequences_multiple(&self.lengths()) > 1 {
            keys.push(("parallel.tensor", self.parallel.tensor.to_string()));
        }
        let names = ["model.experts.balance_over", "model.experts.capacity_sequences"];
        let of_experts = names.into_iter().zip(self.model.sequences_multiple()).filter(|(_, of)| *of > 1);
        keys.extend(of_experts.map(|(key, of)| (key, of.to_string())));
        if self.train.preferences.is_on() {
            keys.push(("train.preferences.beta", self.train.preferences.beta.to_string()));
        }
        let needs: Vec<String> = keys.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let tensor = keys.iter().any(|(key, _)| *key == "parallel.tensor");
        let others = keys.iter().map(|(key, _)| *key);
        let others: Vec<&str> = tensor.then_some("train.seq_len").into_iter().chain(others).collect();
        (needs.join(" with "), others.join(" or "))
    }

    /// Number of which the sequences of a micro-batch are a multiple ([`ParallelConfig::sequences_multiple`]).
    fn sequences_multiple(&self) -> u64 {
        let of_ranks = self.parallel.sequences_multiple(&self.lengths());
        let of_pair = if self.train.preferences.is_on() { 2 } else { 1 };
        self.model.sequences_multiple().into_iter().chain([of_pair]).fold(of_ranks, |multiple, of| {
            let fits = (1..=of).find(|n| multiple.saturating_mul(*n).is_multiple_of(of));
            multiple.saturating_mul(fits.unwrap_or(of))
        })
    }

    /// All lengths of sequences.
    fn lengths(&self) -> Vec<u64> {
        [self.train.shorter_lengths(), vec![self.train.seq_len]].concat()
    }

    /// Refuses a layout that the model cannot have on any number of ranks, and micro-batches that its ranks cannot share.
    fn layout_fits(&self) -> Result<(), String> {
        // What has no layout at all has been reported by its own check; of a vocabulary that is not known the rows may suffice.
        let (ranks, fewest) = (self.parallel.layer_ranks(), self.parallel.fewest_ranks());
        let vocabulary = if self.model.vocab_size == 0 { Some((ranks as usize).max(2)) } else { None };
        let (Ok(model), Ok(()), Ok(())) =
            (self.model.resolve(vocabulary), self.parallel.check(), self.train.check())
        else {
            return Ok(());
        };
        let plan = Plan::new(&self.parallel, fewest as usize, &model, self.optim.optimizer)
            .map_err(|e| e.to_string())?;
        if let (0, 2.., Some(nodes)) =
            (self.train.micro_batch, self.parallel.experts, model.experts.and_then(|of| of.gate.nodes))
        {
            return Err(format!(
                "model.experts.nodes = {} with parallel.experts = {}: wanted train.micro_batch, because the turns of a node are the sequences \
                 of its ranks; set it to nodes times model.experts.node_sequences over parallel.experts",
                nodes.count, self.parallel.experts
            ));
        }
        let sequences = match self.train.micro_batch {
            // Derived ones are shared, if sequences can be shared at all.
            0 if self.parallel.one_sequence() => 1,
            0 => self.sequences_multiple(),
            given => given,
        };
        let lengths: Vec<usize> = self.lengths().into_iter().map(|len| len as usize).collect();
        plan.check_micro_batch(&model, sequences as usize, &lengths).map_err(|e| e.to_string())
    }

    /// Blocks are of windows.
    fn order_fits_lengths(&self) -> Result<(), String> {
        match self.loader.order {
            OrderKind::Grouped if self.train.has_documents() => Err(
                "loader.order = \"grouped\" orders windows, and samples are documents: wanted train.lengths = \"packed\", or \
                 loader.order = \"uniform\""
                    .into(),
            ),
            _ => Ok(()),
        }
    }

    fn context_fits_batch(&self) -> Result<(), String> {
        let (context, micro, seq) = (self.parallel.context, self.train.micro_batch, self.train.seq_len);
        if self.parallel.one_sequence() && micro > 1 {
            return Err(format!(
                "parallel.context = {context} with parallel.context_method = \"{}\" shards one sequence at a \
                 time, found train.micro_batch = {micro}: expected train.micro_batch = 1, or 0 to derive \
                 that, or parallel.context_method = \"ulysses\"",
                self.parallel.context_method.name()
            ));
        }
        if context > 1 && !seq.is_multiple_of(context) {
            let near = seq / context * context;
            return Err(format!(
                "parallel.context = {context} does not divide train.seq_len = {seq}: expected a length such as {} or a divisor of {seq}",
                if near == 0 { context } else { near }
            ));
        }
        match self
            .parallel
            .context_sharing()
            .length_problem(seq as usize, self.parallel.context_groups() as usize)
        {
            Some(problem) if context > 1 => Err(problem),
            _ => Ok(()),
        }
    }

    fn vocabulary_fits(&self) -> Result<(), String> {
        let (model, tokenizer) = (self.model.vocab_size, self.tokenizer.vocab_size);
        // The size of a character vocabulary is a limit, not a promise.
        let trained = self.tokenizer.kind == TokenizerKind::ByteBpe && self.tokenizer.file.is_empty();
        if trained && model > 0 && model < tokenizer {
            return Err(format!(
                "model.vocab_size = {model} is smaller than tokenizer.vocab_size = {tokenizer}: expected at \
                 least {tokenizer}, or 0 to use the tokenizer's size"
            ));
        }
        Ok(())
    }

    fn precision_fits_optimizer(&self) -> Result<(), String> {
        let (optimizer, types) = (self.optim.optimizer, self.train.types());
        optimizer
            .check_types(types.weights.dtype(), types.gradients.dtype())
            .map_err(|e| format!("optim.{e} (train.weights, train.gradients)"))?;
        if optimizer == OptimizerChoice::Kfac && self.train.loss_scale.is_on(self.train.f16_gradients()) {
            return Err("optim.optimizer = \"kfac\" with train.loss_scale: its curvature would be that of the scaled \
                        loss; expected train.loss_scale.mode = \"off\""
                .into());
        }
        Ok(())
    }

    /// Refuses what needs micro-batches of one length.
    fn lengths_fit(&self) -> Result<(), String> {
        if !self.train.has_documents() {
            return Ok(());
        }
        let refused = |what: String, why: &str| {
            Err(format!(
                "train.lengths = \"padded\" and \"bucketed\" do not work with {what}: {why}; expected \
                 train.lengths = \"packed\", or another value there"
            ))
        };
        if self.parallel.context > 1 {
            let what = format!("parallel.context = {}", self.parallel.context);
            return refused(what, "the ranks shard sequences of equal length");
        }
        if self.optim.optimizer == OptimizerChoice::Kfac {
            let what = "optim.optimizer = \"kfac\"".into();
            return refused(what, "its curvature would count padding as tokens");
        }
        if self.parallel.fill != FillConfig::default() {
            let what = format!("parallel.fill = {}", self.parallel.fill);
            return refused(what, "the bubbles are planned for passes of equal length");
        }
        if !self.corpus.components().is_empty() {
            let what = "several corpus.sources or slices".into();
            return refused(what, "the weights of a mixture count windows of equal length");
        }
        Ok(())
    }

    /// Refuses chats without the tokenizer and the template of a model: a tokenizer that is trained on them would not have the tokens of
    /// the template.
    fn chats_have_tokens(&self) -> Result<(), String> {
        let Some(chats) = &self.corpus.chats else { return Ok(()) };
        if self.tokenizer.file.is_empty() {
            return Err(
                "[corpus.chats] wanted tokenizer.file, the tokenizer of the model that is tuned, found none; \
                 `bessemer init --from MODEL --chats FILE` writes a recipe"
                    .into(),
            );
        }
        if chats.template.is_empty() && self.train.init.from.is_empty() {
            return Err("[corpus.chats] wanted corpus.chats.template, or train.init.from with the template of its model, found neither".into());
        }
        Ok(())
    }

    /// Refuses what would put several chats into a sequence, or cut one.
    fn chats_fit(&self) -> Result<(), String> {
        if self.corpus.chats.is_none() {
            return Ok(());
        }
        if !self.train.has_documents() {
            return Err(
                "[corpus.chats] with train.lengths = \"packed\", in which a chat would read the one before it: wanted \"padded\" or \"bucketed\""
                    .into(),
            );
        }
        if self.model.document_mask {
            return Err(
                "[corpus.chats] with model.document_mask = true, which ends a document at every end-of-text token, as an answer may have: \
                 wanted false; a sequence has one chat"
                    .into(),
            );
        }
        Ok(())
    }

    /// Whether every document of the shards ends with the end-of-text token of a tokenizer that has one. Chats end as their template ends.
    pub fn separates_documents(&self) -> bool {
        self.corpus.chats.is_none()
    }

    /// Refuses another run's split in evaluations that pass the bubbles of steps: those are batches of one split.
    fn forgetting_fits(&self) -> Result<(), String> {
        match !self.eval.forgetting.is_empty() && self.parallel.fill != FillConfig::default() {
            true => Err(format!(
                "eval.forgetting = {:?} with parallel.fill = {}, which evaluates one split in bubbles: wanted one of the two",
                self.eval.forgetting, self.parallel.fill
            )),
            false => Ok(()),
        }
    }

    fn rewind_has_checkpoints(&self) -> Result<(), String> {
        if self.train.spike_action == SpikeAction::Rewind && self.save.every_steps == 0 {
            return Err(
                "train.spike_action = \"rewind\" needs checkpoints, and save.every_steps = 0 saves none: \
                 expected save.every_steps above 0, or train.spike_action = \"skip\""
                    .into(),
            );
        }
        Ok(())
    }

    fn best_has_evaluations(&self) -> Result<(), String> {
        if self.save.keep_best == 0 {
            return Ok(());
        }
        if self.eval.every_steps == 0 {
            return Err(format!(
                "save.keep_best = {} needs validation losses, and eval.every_steps = 0 measures none: \
                 expected eval.every_steps above 0, or save.keep_best = 0",
                self.save.keep_best
            ));
        }
        if self.parallel.fill.has(FillChoice::Evaluation) {
            return Err(format!(
                "save.keep_best = {} with parallel.fill = {}: the validation loss arrives only after a later \
                 step; expected save.keep_best = 0, or parallel.fill without \"evaluation\"",
                self.save.keep_best, self.parallel.fill
            ));
        }
        Ok(())
    }

    fn early_stop_has_evaluations(&self) -> Result<(), String> {
        let patience = self.train.early_stop.patience;
        if patience == 0 {
            return Ok(());
        }
        if self.eval.every_steps == 0 {
            return Err(format!(
                "train.early_stop.patience = {patience} needs validation losses, and eval.every_steps = 0 measures none: \
                 expected eval.every_steps above 0, or patience = 0"
            ));
        }
        if !self.parallel.fill.is_none() {
            return Err(format!(
                "train.early_stop.patience = {patience} with parallel.fill = {}, work of several steps, within which a run cannot end: \
                 expected patience = 0, or parallel.fill = \"none\"",
                self.parallel.fill
            ));
        }
        Ok(())
    }

    fn annotations_fit_model(&self) -> Result<(), String> {
        let vocabulary = if self.model.vocab_size == 0 { Some(1) } else { None };
        let Ok(model) = self.model.resolve(vocabulary) else { return Ok(()) };
        let shardings = model.annotated_shardings(&self.parallel.annotate, self.parallel.sequence);
        shardings.map(drop).map_err(|e| e.to_string())
    }

    fn recompute_fits_model(&self) -> Result<(), String> {
        let vocabulary = if self.model.vocab_size == 0 { Some(1) } else { None };
        let Ok(model) = self.model.resolve(vocabulary) else { return Ok(()) };
        match self.train.recompute_layers.last() {
            Some(last) if last >= model.layers => Err(format!(
                "train.recompute_layers names layer {last} of a model with {} layers: expected 0 to {}",
                model.layers,
                model.layers - 1
            )),
            _ => Ok(()),
        }
    }

    fn sequence_fits_model(&self) -> Result<(), String> {
        // A model that cannot be built has been reported by its own check.
        let vocabulary = if self.model.vocab_size == 0 { Some(1) } else { None };
        let Ok(model) = self.model.resolve(vocabulary) else { return Ok(()) };
        if self.train.seq_len > model.context as u64 {
            return Err(format!(
                "train.seq_len = {} is longer than the model's context of {} tokens: expected at most that, or a \
                 larger model.context",
                self.train.seq_len, model.context
            ));
        }
        Ok(())
    }
}

/// Loads and checks a recipe file with `--set` overrides. Keys that a plan chose, which a resolved recipe lists in `parallel.planned`,
/// have that plan as their origin.
///
/// # Errors
/// As [`load`](crate::load), and [`RecipeError::Invalid`] with the places of everything that
/// [`Recipe::problems`] finds.
pub fn load_recipe(path: &Path, sets: &[String]) -> Result<Loaded<Recipe>, RecipeError> {
    load_recipe_for(path, sets, None, RecipeUse::Training, CorpusConfig::check)
}

/// Like [`load_recipe`] for a command that uses some of its sections: what only others need may be missing, and what only they
/// contradict is not reported. Unknown keys and values of a wrong type always are. `home` is the directory that `~` at the
/// beginning of a path stands for.
///
/// # Errors
/// As [`load_recipe`], and what `check_corpus` finds.
pub fn load_recipe_for(
    path: &Path,
    sets: &[String],
    home: Option<&Path>,
    recipe_use: RecipeUse,
    check_corpus: CorpusCheck,
) -> Result<Loaded<Recipe>, RecipeError> {
    checked(load::load_at::<Recipe>(path, sets, home)?, recipe_use, check_corpus)
}

/// Like [`load_recipe`] for text, for example the recipe stored in a checkpoint.
///
/// # Errors
/// As [`parse`](crate::parse), and what [`Recipe::problems`] finds.
pub fn parse_recipe(name: &str, text: &str, sets: &[String]) -> Result<Loaded<Recipe>, RecipeError> {
    checked(load::parse::<Recipe>(name, text, sets)?, RecipeUse::Training, CorpusConfig::check)
}

fn checked(
    mut loaded: Loaded<Recipe>,
    recipe_use: RecipeUse,
    check_corpus: CorpusCheck,
) -> Result<Loaded<Recipe>, RecipeError> {
    loaded.attribute_to_plan();
    loaded.refuse(loaded.value.problems_with(recipe_use, check_corpus))?;
    Ok(loaded)
}

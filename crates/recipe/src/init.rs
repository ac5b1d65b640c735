//! `[train.init]`: the checkpoint whose parameters a run begins with.

use crate::error::RecipeError;
use crate::write::to_toml;
use bessemer_arch::ModelConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// `[train.init]`: continued training, of another run's checkpoint or an imported model.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InitConfig {
    /// Run directory, directory of checkpoints, one checkpoint (runs/a/checkpoints/step-00000100) or address (s3://bucket/prefix) whose
    /// parameters a new run begins with; a run and an address stand for their newest checkpoint. Empty: parameters are drawn. Read once:
    /// a run that has a checkpoint of its own goes on from that.
    pub from: String,
    /// What the optimizer begins with: "fresh" or "keep" (the moments and the count of updates of that checkpoint).
    pub optimizer: InitOptimizer,
    /// Where the learning-rate schedule begins: "begin" (at its beginning) or "continue" (behind the tokens that the checkpoint was
    /// trained on: a run of N tokens behind M of them has the rates of the last N of a run of M + N).
    pub schedule: InitSchedule,
}

/// State of the optimizer in continued training.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InitOptimizer {
    /// As in a new run.
    #[default]
    Fresh,
    /// Moments and count of updates of the checkpoint.
    Keep,
}

/// Learning-rate schedule in continued training.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InitSchedule {
    /// From its beginning.
    #[default]
    Begin,
    /// Behind the tokens of the checkpoint.
    Continue,
}

/// The layers of a recipe that [`continued_recipe`] writes.
#[derive(Serialize, JsonSchema)]
struct Continued {
    /// Part of `[train]`.
    train: ContinuedTrain,
    /// Part of `[tokenizer]`.
    tokenizer: ContinuedTokenizer,
    /// The model.
    model: ModelConfig,
}

#[derive(Serialize, JsonSchema)]
struct ContinuedTrain {
    /// The checkpoint whose parameters the run begins with.
    init: ContinuedInit,
}

#[derive(Serialize, JsonSchema)]
struct ContinuedInit {
    /// Where the model lies; a relative path is taken from the current directory.
    from: String,
}

#[derive(Serialize, JsonSchema)]
struct ContinuedTokenizer {
    /// The model's tokenizer.
    file: Option<String>,
}

/// A recipe to be the `base` of one that trains a model further: the model's sizes, its parameters in `from` and its tokenizer.
///
/// # Errors
/// As [`to_toml`].
pub fn continued_recipe(
    model: ModelConfig,
    from: &Path,
    tokenizer: Option<&Path>,
) -> Result<String, RecipeError> {
    let text = |path: &Path| path.display().to_string();
    to_toml(&Continued {
        train: ContinuedTrain { init: ContinuedInit { from: text(from) } },
        tokenizer: ContinuedTokenizer { file: tokenizer.map(text) },
        model,
    })
}

impl InitConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.from.is_empty() {
            return Ok(());
        }
        let given = [
            (self.optimizer != InitOptimizer::Fresh, "optimizer = \"keep\""),
            (self.schedule != InitSchedule::Begin, "schedule = \"continue\""),
        ];
        match given.iter().find(|(given, _)| *given) {
            Some((_, text)) => Err(format!(
                "train.init.{text} needs a checkpoint, and train.init.from = \"\" names none: expected \
                 train.init.from = \"runs/NAME\", or no such key"
            )),
            None => Ok(()),
        }
    }
}

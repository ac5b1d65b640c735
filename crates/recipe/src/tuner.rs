//! A recipe that tunes a trained model on chats, as commented TOML.

use crate::load::Problem;
use crate::recipe::Recipe;
use crate::starter::{aligned, quoted};
use crate::write::to_toml;
use bessemer_arch::{AdapterTarget, Adapters, MlpKind, Model, ModelConfig};
use bessemer_units::{Tokens, counted};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Rank of the adapters, where the maps of the model are not smaller.
const RANK: usize = 16;
/// Chats of a step, on average.
const CHATS_OF_A_STEP: u64 = 16;
/// Passes over the chats.
const EPOCHS: u64 = 3;
/// Evaluations of the held-out chats.
const EVALUATIONS: u64 = 10;
/// Evaluations without a lower loss that end it.
const PATIENCE: u64 = 3;
/// Lengths of sequences are multiples of this.
const LENGTH_STEP: u64 = 32;

/// The chats that a recipe is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatFacts {
    /// `corpus.path`.
    pub path: String,
    /// `corpus.chats.template`; empty: that of the model.
    pub template: String,
    /// Chats, without those that equal an earlier one.
    pub chats: u64,
    /// Chats that equal an earlier one, of which a run takes one.
    pub equal: u64,
    /// Their tokens, without turns that are beyond the model's context.
    pub tokens: u64,
    /// Those that are scored.
    pub scored: u64,
    /// Tokens of the longest chat.
    pub longest: u64,
    /// Chats whose last turn is longer than the model's context.
    pub too_long: u64,
    /// Special tokens of the template that the model has not been trained on.
    pub new_tokens: Vec<String>,
    /// The run of the model has held-out text, of which the tuned model may forget some.
    pub former_text: bool,
}

/// A recipe that tunes a model on chats by adapters.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuner {
    /// The model with its adapters.
    pub model: ModelConfig,
    /// Tokens of a sequence at most.
    pub seq_len: u64,
    /// Tokens of a step.
    pub batch_tokens: u64,
    /// Optimizer steps, about.
    pub steps: u64,
    /// Peak learning rate.
    pub lr: f64,
}

/// The part of a recipe that is the model's.
#[derive(Serialize, JsonSchema)]
struct OfModel {
    /// The model, with adapters.
    model: ModelConfig,
}

impl Tuner {
    /// Chooses adapters, batch and duration for a model and chats.
    ///
    /// # Errors
    /// A sentence, if there are no chats, or the model has adapters.
    pub fn new(model: &Model, chats: &ChatFacts) -> Result<Tuner, String> {
        if chats.chats == 0 {
            return Err("wanted at least one chat that fits into the model's context, found none".into());
        }
        if model.adapters.is_some() {
            return Err("wanted a model without adapters, found one with them; `bessemer checkpoint export` merges them, and the result can be imported".into());
        }
        let targets = AdapterTarget::ALL.into_iter().filter(|target| match target {
            AdapterTarget::Qkv => false,
            AdapterTarget::Gate => model.mlp() != MlpKind::Plain && model.experts.is_none(),
            AdapterTarget::Up | AdapterTarget::Down => model.experts.is_none(),
            _ => true,
        });
        let rank = RANK.min(model.width).min(model.kv_heads * model.head_dim).min(model.ffn_width);
        let adapters = Adapters {
            rank: rank as u64,
            alpha: 2.0 * rank as f64,
            targets: targets.collect(),
            ..Adapters::default()
        };
        let longest = chats.longest.next_multiple_of(LENGTH_STEP).min(model.context as u64);
        let of_chats = CHATS_OF_A_STEP * (chats.tokens / chats.chats);
        let batch_tokens = of_chats.next_multiple_of(longest).max(longest);
        Ok(Tuner {
            model: ModelConfig { adapters: Some(adapters), ..ModelConfig::of(model) },
            seq_len: longest,
            batch_tokens,
            steps: (EPOCHS * chats.tokens).div_ceil(batch_tokens),
            lr: match model.width {
                0..=512 => 2e-3,
                513..=1024 => 1e-3,
                _ => 2e-4,
            },
        })
    }

    /// The key by which rows of tokens that are new to the model are trained too, with its line; empty without such tokens.
    fn trained(&self, chats: &ChatFacts) -> String {
        if chats.new_tokens.is_empty() {
            return String::new();
        }
        let tables: &[&str] = if self.model.tied_embeddings == Some(true) {
            &["embed.tokens"]
        } else {
            &["embed.tokens", "head.weight"]
        };
        let (names, tokens) = (format!("{tables:?}"), chats.new_tokens.join(", "));
        let comment = format!("# besides adapters: {tokens} are new to the model");
        format!("trained = {names}  {comment}\n")
    }

    /// The recipe as commented TOML. `name` is that of the run, `from` the run of the model, `tokenizer` its file, `command` the one that trains it.
    ///
    /// # Errors
    /// What is wrong with the name or a path, by key.
    pub fn to_toml(
        &self,
        name: &str,
        chats: &ChatFacts,
        from: &Path,
        tokenizer: &Path,
        command: &str,
    ) -> Result<String, Vec<Problem>> {
        let wrong = |message: String| vec![Problem { key: String::new(), message }];
        let model = to_toml(&OfModel { model: self.model.clone() }).map_err(|e| wrong(e.to_string()))?;
        let text = |path: &Path| quoted(&path.display().to_string());
        let template = match chats.template.is_empty() {
            true => "template = \"\"                  # that of the model".to_owned(),
            false => format!("template = {}", quoted(&chats.template)),
        };
        let long = match chats.too_long {
            0 => "\"refuse\"                  # no answer is cut; \"drop\" leaves such chats out".to_owned(),
            n => format!(
                "\"drop\"                    # {} do not fit into the model's context",
                counted(n, "chat")
            ),
        };
        let every = (self.steps / EVALUATIONS).max(1);
        let mut toml = String::new();
        let _ = write!(
            toml,
            "\
# {count} with {tokens} tokens, {scored} of them in answers. Written by `bessemer init`.
#
#   {command}
#
# docs/finetuning.md explains these keys, docs/recipes.md has all. `--set KEY=VALUE` overrides one for a single command.

[run]
name = {name}                    # the run lives in runs/NAME; the same command continues a stopped run
seed = 1337

[corpus]
source = {source}
path = {path}                    # relative to the directory that you start the program in

[corpus.chats]
{template}
answers = \"all\"                  # or \"last\": the last one of each chat
long = {long}

[corpus.split]
validation_fraction = 0.1        # chats held out

[train]
lengths = \"padded\"               # a chat is a sequence: none reads another
seq_len = {seq_len}
batch_tokens = {batch}           # about {per_step} chats
epochs = {EPOCHS}                       # about {steps} steps
{trained}log_every = {log_every}

[train.early_stop]
patience = {PATIENCE}                     # evaluations without a lower loss on held-out chats that end the run

[train.init]
from = {from}                    # the model

[tokenizer]
file = {tokenizer}               # its tokenizer

[optim]
lr = {lr}                        # adapters bear larger ones than full training
weight_decay = 0.0
warmup_fraction = 0.05           # of the steps

[save]
every_seconds = 300
keep_best = 1                    # the checkpoint with the lowest loss on held-out chats

[eval]
every_steps = {every}
{forgetting}
[eval.samples]
prompts = []

",
            count = counted(chats.chats, "chat"),
            tokens = Tokens(chats.tokens),
            scored = Tokens(chats.scored),
            name = quoted(name),
            source = quoted(if chats.path.to_ascii_lowercase().ends_with(".parquet") { "parquet" } else { "jsonl" }),
            path = quoted(&chats.path),
            from = text(from),
            tokenizer = text(tokenizer),
            seq_len = self.seq_len,
            batch = self.batch_tokens,
            per_step = (self.batch_tokens * chats.chats / chats.tokens.max(1)).max(1),
            steps = self.steps,
            trained = self.trained(chats),
            log_every = (self.steps / 50).max(1),
            forgetting = match chats.former_text {
                true => format!("forgetting = {}  # its held-out text, scored too\n", text(from)),
                false => String::new(),
            },
            lr = self.lr,
        );
        let toml = aligned(&toml) + &model;
        // A recipe that this program does not read would be worse than none.
        let loaded =
            crate::load::parse::<Recipe>("the new recipe", &toml, &[]).map_err(|e| wrong(e.to_string()))?;
        match loaded.value.problems() {
            problems if problems.is_empty() => Ok(toml),
            problems => Err(problems),
        }
    }
}

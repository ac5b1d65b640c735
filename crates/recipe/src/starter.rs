//! A first recipe for a text of the user's own: the source, the sizes of model and run, and the reasons, as commented TOML.
//!
//! The model is the largest of a short ladder that the time and the text can feed. With C the floating-point operations
//! that fit into the time and D the tokens of the text, a model of N parameters trained on 20 N tokens makes the best of
//! C = 6 N (20 N) (Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models"), and text that is read more than
//! about four times stops helping (Muennighoff et al. 2023, "Scaling Data-Constrained Language Models"): so N is at most
//! sqrt(C / 120) and 4 D / 20, and the run ends after 4 D tokens.

use crate::load::Problem;
use crate::recipe::Recipe;
use bessemer_arch::{Model, ModelConfig};
use bessemer_corpus_config::SourceKind;
use bessemer_units::{Bytes, Seconds, Tokens, counted};
use std::fmt::Write;

/// The text that a recipe is for.
#[derive(Debug, Clone, PartialEq)]
pub struct TextFacts {
    /// How it is read.
    pub source: SourceKind,
    /// `corpus.path`.
    pub path: String,
    /// Field or column of the text, where it is not "text".
    pub field: Option<String>,
    /// Files that are read.
    pub files: u64,
    /// Bytes of text; estimated for compressed files.
    pub bytes: u64,
}

/// Limits of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Floating-point operations a second at the peak of all cores.
    pub peak_flops_per_s: f64,
    /// Time of the training.
    pub hours: f64,
    /// Memory that the training may take.
    pub memory: Bytes,
}

/// A first recipe, sized.
#[derive(Debug, Clone, PartialEq)]
pub struct Starter {
    /// The model.
    pub model: Model,
    /// Tokens of the text, estimated.
    pub text_tokens: u64,
    /// Size of the vocabulary.
    pub vocab_size: u64,
    /// Tokens of a step.
    pub batch_tokens: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// Peak learning rate.
    pub lr: f64,
    /// Time that the training takes, estimated.
    pub time: Seconds,
}

/// Share of the measured peak that a training reaches; measured runs of small models reach 0.3 to 0.6 (docs/performance.md).
const UTILISATION: f64 = 0.35;
/// Tokens a parameter of compute-optimal training.
const TOKENS_PER_PARAMETER: f64 = 20.0;
/// Passes over the text that help.
const PASSES: f64 = 4.0;
/// Bytes that a trained parameter takes: f32 weight, gradient and two moments.
const BYTES_PER_PARAMETER: u64 = 16;
/// Share of the memory that weights, gradients and moments may take; activations and the rest need theirs.
const SHARE_OF_MEMORY: f64 = 0.5;

/// A rung of the ladder of models: sizes and the batch and rate that go with them.
struct Rung {
    layers: u64,
    width: u64,
    heads: u64,
    kv_heads: u64,
    context: u64,
    batch_tokens: u64,
    lr: f64,
}

const fn rung(sizes: [u64; 4], context: u64, batch_tokens: u64, lr: f64) -> Rung {
    let [layers, width, heads, kv_heads] = sizes;
    Rung { layers, width, heads, kv_heads, context, batch_tokens, lr }
}

/// From the smallest to the largest.
const LADDER: [Rung; 7] = [
    rung([2, 128, 4, 2], 128, 1024, 3e-3),
    rung([4, 256, 4, 2], 256, 2048, 3e-3),
    rung([6, 384, 6, 2], 256, 4096, 2e-3),
    rung([8, 512, 8, 4], 512, 8192, 1e-3),
    rung([12, 768, 12, 4], 1024, 32_768, 6e-4),
    rung([16, 1024, 16, 8], 1024, 65_536, 5e-4),
    rung([16, 2048, 32, 8], 2048, 262_144, 4e-4),
];

/// Vocabulary and bytes a token for a text of so many bytes: a token must occur often enough to be learned.
fn vocabulary(bytes: u64) -> (u64, f64) {
    match bytes {
        0..1_000_000 => (1024, 2.6),
        1_000_000..30_000_000 => (4096, 3.3),
        30_000_000..300_000_000 => (8192, 3.7),
        300_000_000..3_000_000_000 => (16_384, 4.0),
        _ => (32_768, 4.3),
    }
}

impl Starter {
    /// Chooses model and run for a text and a budget.
    ///
    /// # Errors
    /// A sentence, if there is no text or no time.
    pub fn new(text: &TextFacts, budget: Budget) -> Result<Starter, String> {
        if text.bytes == 0 {
            return Err("there is no text to train on".into());
        }
        let operations = budget.peak_flops_per_s * UTILISATION * budget.hours * 3600.0;
        if !(operations.is_finite() && operations > 0.0) {
            return Err(format!("{} hours: wanted a time above 0", budget.hours));
        }
        let (vocab_size, bytes_per_token) = vocabulary(text.bytes);
        let text_tokens = ((text.bytes as f64 / bytes_per_token) as u64).max(1);
        let most_parameters = (operations / (6.0 * TOKENS_PER_PARAMETER))
            .sqrt()
            .min(PASSES * text_tokens as f64 / TOKENS_PER_PARAMETER);
        let fits = |model: &Model| {
            let bytes = (model.parameters() as u64).saturating_mul(BYTES_PER_PARAMETER);
            bytes as f64 <= SHARE_OF_MEMORY * budget.memory.0 as f64
        };
        let models = LADDER.iter().map(|rung| (rung, rung.model(vocab_size)));
        let chosen = models.enumerate().take_while(|(at, (_, model))| {
            *at == 0 || (model.product_parameters() as f64 <= most_parameters && fits(model))
        });
        let (_, (rung, model)) = chosen.last().expect("the smallest model is always taken");
        let flops_per_step = model.train_flops_per_token(rung.context as usize).0 * rung.batch_tokens as f64;
        let in_time = operations / flops_per_step;
        let in_text = PASSES * text_tokens as f64 / rung.batch_tokens as f64;
        let steps = (in_time.min(in_text) as u64).max(20);
        Ok(Starter {
            text_tokens,
            vocab_size,
            batch_tokens: rung.batch_tokens,
            steps,
            lr: rung.lr,
            time: Seconds(steps as f64 * flops_per_step / (budget.peak_flops_per_s * UTILISATION)),
            model,
        })
    }

    /// Passes over the text.
    pub fn passes(&self) -> f64 {
        (self.steps * self.batch_tokens) as f64 / self.text_tokens as f64
    }

    /// The recipe as commented TOML. `name` is what the run is called, `command` the one that trains it.
    ///
    /// # Errors
    /// What is wrong with the name or the path, by key.
    pub fn to_toml(
        &self,
        name: &str,
        text: &TextFacts,
        hours: f64,
        command: &str,
    ) -> Result<String, Vec<Problem>> {
        let source = serde_json::to_value(text.source).unwrap_or_default();
        let m = &self.model;
        let field = text.field.as_ref().map_or(String::new(), |field| {
            format!("text = {}                   # the field or column that holds the text\n", quoted(field))
        });
        let every = (self.steps / 10).max(1);
        let mut toml = String::new();
        let _ = write!(
            toml,
            "\
# {files} with {bytes} of text, about {text_tokens} tokens. Written by `bessemer init`, for about {hours} h on this machine.
#
#   {command}
#
# Every key that is not written here has a default: `bessemer config show --origin RECIPE` lists them all with their
# documentation, and docs/recipes.md explains them. `--set KEY=VALUE` overrides one for a single command.

[run]
name = {name}                    # the run lives in runs/NAME; the same command goes on with a stopped run
seed = 1337

[corpus]
source = {source}
path = {path}                    # relative to the directory that you start the program in
{field}
[corpus.split]
validation_fraction = 0.02       # held out, so that what is learned can be told from what is known by heart

[tokenizer]
vocab_size = {vocab}             # grows with the text: each token should occur often enough to be learned
pretokenizer = \"gpt2\"

[model]                          # {parameters} parameters
architecture = \"llama\"           # RMSNorm, rotary positions, SwiGLU, grouped-query attention
layers = {layers}
width = {width}
heads = {heads}
kv_heads = {kv_heads}
context = {context}              # tokens that the model sees at once

[train]
batch_tokens = {batch}           # tokens per optimizer step
seq_len = {context}
steps = {steps}                  # {passes:.1} passes over the text, about {time} on this machine
log_every = {log_every}

[optim]
lr = {lr}                        # smaller models bear larger learning rates
beta2 = 0.95
weight_decay = 0.1
warmup_fraction = 0.05           # of the steps
schedule = \"wsd\"                 # warm-up, stable, decay: the run can be prolonged by raising train.steps
decay_fraction = 0.3
min_lr_ratio = 0.0

[save]
every_seconds = 300              # the most work that a crash can cost

[eval]
every_steps = {every}
max_tokens = 16384               # during training; the whole validation split is scored at the end

[eval.samples]
every_steps = {every}            # texts by the model, to read how it gets on
prompts = [\"\"]
",
            files = counted(text.files, "file"),
            bytes = Bytes(text.bytes),
            text_tokens = Tokens(self.text_tokens),
            name = quoted(name),
            path = quoted(&text.path),
            vocab = self.vocab_size,
            parameters = Tokens(m.parameters() as u64),
            layers = m.layers,
            width = m.width,
            heads = m.heads,
            kv_heads = m.kv_heads,
            context = m.context,
            batch = self.batch_tokens,
            steps = self.steps,
            passes = self.passes(),
            time = self.time,
            log_every = (self.steps / 50).max(1),
            lr = self.lr,
        );
        let toml = aligned(&toml);
        // A recipe that this program does not read would be worse than none.
        let loaded = crate::load::parse::<Recipe>("the new recipe", &toml, &[])
            .map_err(|e| vec![Problem { key: String::new(), message: e.to_string() }])?;
        match loaded.value.problems() {
            problems if problems.is_empty() => Ok(toml),
            problems => Err(problems),
        }
    }
}

impl Rung {
    fn model(&self, vocab_size: u64) -> Model {
        let config = ModelConfig {
            architecture: "llama".into(),
            vocab_size,
            layers: Some(self.layers),
            width: Some(self.width),
            heads: Some(self.heads),
            kv_heads: Some(self.kv_heads),
            context: Some(self.context),
            ..ModelConfig::default()
        };
        config.resolve(None).expect("the ladder holds models that can be built")
    }
}

/// A TOML string.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The text with the comments after values in one column.
pub(crate) fn aligned(toml: &str) -> String {
    const COLUMN: usize = 33;
    let line = |line: &str| match line.split_once("  #") {
        Some((value, comment)) if !line.starts_with('#') => {
            format!(
                "{:<width$}#{comment}\n",
                value.trim_end(),
                width = COLUMN.max(value.trim_end().len() + 2)
            )
        }
        _ => format!("{line}\n"),
    };
    toml.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(bytes: u64) -> TextFacts {
        TextFacts { source: SourceKind::Folder, path: "texts".into(), field: None, files: 3, bytes }
    }

    const LAPTOP: Budget = Budget { peak_flops_per_s: 2e11, hours: 1.0, memory: Bytes(8 << 30) };

    #[test]
    fn model_and_run_grow_with_time_and_text_and_stay_within_both() {
        let mut sizes = Vec::new();
        for (bytes, hours) in
            [(100_000, 1.0), (10_000_000, 1.0), (1_000_000_000, 1.0), (1_000_000_000, 100.0)]
        {
            let s = Starter::new(&facts(bytes), Budget { hours, ..LAPTOP }).unwrap();
            assert!(s.passes() <= PASSES + 0.01 || s.steps == 20, "{s:?}");
            assert!(s.time.0 <= hours * 3600.0 * 1.01, "{s:?}");
            sizes.push(s.model.parameters());
        }
        assert!(sizes.is_sorted() && sizes[0] < sizes[3], "{sizes:?}");
        // An hour at 200 GFLOP/s is 2.5e14 operations: 1.4 million parameters are compute-optimal.
        let hour = Starter::new(&facts(1_000_000_000), LAPTOP).unwrap();
        assert!((hour.model.layers, hour.model.width) == (2, 128), "{hour:?}");
        let rich = Budget { hours: 1000.0, ..LAPTOP };
        let poor = Budget { memory: Bytes(256 << 20), ..rich };
        let bytes = |budget| Starter::new(&facts(1 << 33), budget).unwrap().model.parameters() as u64 * 16;
        assert!(bytes(poor) <= 256 << 20 && bytes(rich) > 256 << 20, "{} and {}", bytes(poor), bytes(rich));
    }

    #[test]
    fn nothing_to_train_on_is_refused() {
        assert!(Starter::new(&facts(0), LAPTOP).is_err());
        for hours in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Starter::new(&facts(9), Budget { hours, ..LAPTOP }).is_err(), "{hours}");
        }
    }
}

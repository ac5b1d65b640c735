//! The `[eval]` part of a recipe.

use crate::generate::GenerateConfig;
use crate::kneser_ney;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When and how a run is evaluated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Validation loss every so many optimizer steps; 0: not during training.
    pub every_steps: u64,
    /// Tokens that an evaluation during training scores at most, in windows evenly spread over the validation split and
    /// the same each time; 0: all.
    pub max_tokens: u64,
    /// Score the whole validation split when training ends.
    pub at_end: bool,
    /// Run directory on whose validation split the model is scored too, before the first step and with every evaluation: what a tuned model
    /// forgets of the text that it was trained on before. Its tokenizer must be that of the run. Empty: none.
    pub forgetting: String,
    /// Texts that the model continues, to be read by people.
    pub samples: SamplesConfig,
    /// Tasks that the model answers.
    pub tasks: TasksConfig,
    /// The n-gram model that the neural one is held against.
    pub ngram: NgramConfig,
}

/// Generated samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SamplesConfig {
    /// Generate samples every so many optimizer steps; 0: only when training ends.
    pub every_steps: u64,
    /// Generate samples when training ends.
    pub at_end: bool,
    /// Texts to continue; an empty one begins a document.
    pub prompts: Vec<String>,
    /// Samples of each prompt.
    pub per_prompt: u64,
    /// Length of the samples and how their tokens are chosen.
    pub generate: GenerateConfig,
}

/// Tasks that the model answers while it is trained, and when training ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TasksConfig {
    /// Tasks as `bessemer eval --tasks` takes them: families, FORMAT:FILE, task files. A task that generates text needs `max_generated_tokens`.
    pub names: Vec<String>,
    /// Answer them every so many optimizer steps; 0: only when training ends.
    pub every_steps: u64,
    /// Answer them when training ends.
    pub at_end: bool,
    /// Documents of each task that are asked about, the first ones; 0: all.
    pub limit: u64,
    /// Tokens of a generated answer at most, if its task allows more. 0: tasks that generate text are refused. The first rank generates them alone,
    /// one after another, while the others wait.
    pub max_generated_tokens: u64,
}

/// The n-gram baseline: an interpolated modified Kneser-Ney model over bytes, trained on the bytes that the model saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NgramConfig {
    /// Train and score it when training ends.
    pub enabled: bool,
    /// Bytes of an n-gram, 1 to 7: the last one is predicted from those before it.
    pub order: u64,
    /// Bytes of memory that it may take while it is trained.
    pub max_memory: u64,
}

impl Default for EvalConfig {
    fn default() -> Self {
        EvalConfig {
            every_steps: 250,
            max_tokens: 1 << 17,
            at_end: true,
            forgetting: String::new(),
            samples: SamplesConfig::default(),
            tasks: TasksConfig::default(),
            ngram: NgramConfig::default(),
        }
    }
}

impl Default for SamplesConfig {
    fn default() -> Self {
        SamplesConfig {
            every_steps: 0,
            at_end: true,
            prompts: vec![String::new()],
            per_prompt: 1,
            generate: GenerateConfig::default(),
        }
    }
}

impl Default for TasksConfig {
    fn default() -> Self {
        TasksConfig { names: Vec::new(), every_steps: 0, at_end: true, limit: 0, max_generated_tokens: 0 }
    }
}

impl Default for NgramConfig {
    fn default() -> Self {
        NgramConfig {
            enabled: true,
            order: u64::from(kneser_ney::DEFAULT_ORDER),
            max_memory: kneser_ney::DEFAULT_MEMORY,
        }
    }
}

/// Largest numbers of samples and of prompts: more is a mistake.
const MOST_SAMPLES: u64 = 10_000;

impl EvalConfig {
    /// Says which key has which value outside its allowed range, if any.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self) -> Result<(), String> {
        self.samples.check().map_err(|e| format!("samples.{e}"))?;
        self.tasks.check().map_err(|e| format!("tasks.{e}"))?;
        self.ngram.check().map_err(|e| format!("ngram.{e}"))
    }

    /// Whether text is generated at all, as a sample or as an answer to a task.
    pub fn generates(&self) -> bool {
        self.samples.are_written() || self.tasks.may_generate()
    }

    /// The bound on an evaluation during training.
    pub fn max_tokens(&self) -> Option<u64> {
        (self.max_tokens > 0).then_some(self.max_tokens)
    }

    /// Whether an evaluation is due after `step` optimizer steps.
    pub fn is_due(&self, step: u64) -> bool {
        is_due(self.every_steps, step)
    }
}

impl SamplesConfig {
    /// Says which key has which value outside its allowed range, if any.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self) -> Result<(), String> {
        if self.prompts.len() as u64 > MOST_SAMPLES {
            return Err(format!("prompts = {} texts: wanted 0 to {MOST_SAMPLES}", self.prompts.len()));
        }
        if !(1..=MOST_SAMPLES).contains(&self.per_prompt) {
            return Err(format!("per_prompt = {}: wanted 1 to {MOST_SAMPLES}", self.per_prompt));
        }
        self.generate.check().map_err(|e| format!("generate.{e}"))
    }

    /// Whether there will be any sample at all.
    pub fn are_written(&self) -> bool {
        (self.every_steps > 0 || self.at_end) && !self.prompts.is_empty()
    }

    /// Whether samples are due after `step` optimizer steps.
    pub fn is_due(&self, step: u64) -> bool {
        is_due(self.every_steps, step)
    }
}

/// Most names of tasks.
const MOST_TASKS: usize = 1000;
/// Most tokens of a generated answer.
const MOST_GENERATED: u64 = 65_536;

impl TasksConfig {
    /// Says which key has which value outside its allowed range, if any.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self) -> Result<(), String> {
        if self.max_generated_tokens > MOST_GENERATED {
            let found = self.max_generated_tokens;
            return Err(format!("max_generated_tokens = {found}: wanted 0 to {MOST_GENERATED}"));
        }
        match self.names.len() {
            0..=MOST_TASKS => Ok(()),
            found => Err(format!("names = {found} tasks: wanted 0 to {MOST_TASKS}")),
        }
    }

    /// Whether answers may be generated: memory for that is then planned.
    pub fn may_generate(&self) -> bool {
        self.are_answered() && self.max_generated_tokens > 0
    }

    /// Whether tasks will be answered at all.
    pub fn are_answered(&self) -> bool {
        (self.every_steps > 0 || self.at_end) && !self.names.is_empty()
    }

    /// Whether they are due after `step` optimizer steps.
    pub fn is_due(&self, step: u64) -> bool {
        !self.names.is_empty() && is_due(self.every_steps, step)
    }
}

impl NgramConfig {
    /// Says which key has which value outside its allowed range, if any.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=7).contains(&self.order) {
            return Err(format!("order = {}: wanted 1 to 7", self.order));
        }
        if self.max_memory < 1 << 20 {
            return Err(format!("max_memory = {}: wanted at least {} bytes", self.max_memory, 1 << 20));
        }
        Ok(())
    }
}

fn is_due(every: u64, step: u64) -> bool {
    every > 0 && step > 0 && step.is_multiple_of(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_allowed_and_mistakes_are_named() {
        assert_eq!(EvalConfig::default().check(), Ok(()));
        let wrong = |change: &dyn Fn(&mut EvalConfig)| {
            let mut config = EvalConfig::default();
            change(&mut config);
            config.check().unwrap_err()
        };
        assert!(wrong(&|c| c.ngram.order = 8).starts_with("ngram.order = 8: wanted 1 to 7"));
        assert!(wrong(&|c| c.ngram.order = 0).starts_with("ngram.order = 0"));
        assert!(wrong(&|c| c.ngram.max_memory = 5).starts_with("ngram.max_memory = 5"));
        assert!(wrong(&|c| c.samples.per_prompt = 0).starts_with("samples.per_prompt = 0"));
        assert!(
            wrong(&|c| c.tasks.names = vec![String::new(); 1001])
                .starts_with("tasks.names = 1001 tasks: wanted 0 to 1000")
        );
        let e = wrong(&|c| c.samples.generate.sampling.temperature = -2.0);
        assert!(e.starts_with("samples.generate.sampling.temperature = -2: wanted 0"), "{e}");
        assert!(
            wrong(&|c| c.samples.generate.max_tokens = u64::MAX).starts_with("samples.generate.max_tokens")
        );
    }

    #[test]
    fn evaluations_are_due_at_multiples_but_not_before_the_first_step() {
        let config = EvalConfig { every_steps: 10, ..EvalConfig::default() };
        assert_eq!((0..=30).filter(|&s| config.is_due(s)).collect::<Vec<_>>(), [10, 20, 30]);
        let never = EvalConfig { every_steps: 0, ..EvalConfig::default() };
        assert!((0..100).all(|s| !never.is_due(s)));
        assert_eq!(EvalConfig { max_tokens: 0, ..never }.max_tokens(), None);
    }
}

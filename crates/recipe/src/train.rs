//! `[train]`: how much is trained on, in steps of how many tokens, and what follows from it.
//!
//! The user states the **global batch in tokens**. Sequences per step, micro-batches and gradient
//! accumulation are derived:
//!
//! ```text
//! sequences per step = batch_tokens / seq_len            (must be whole)
//! sequences per rank = sequences per step / ranks        (must be whole)
//! accumulation       = sequences per rank / micro_batch  (must be whole)
//! steps              = steps, or ceil(tokens / batch_tokens), or ceil(epochs x train tokens / batch_tokens)
//! ```

use crate::early_stop::EarlyStopConfig;
use crate::init::InitConfig;
use crate::integrity::IntegrityConfig;
use crate::lengths::SequenceLengths;
use crate::preferences::PreferencesConfig;
use crate::teacher::TeacherConfig;
use bessemer_optim::LossScaleConfig;
use bessemer_units::{
    Compression, CompressionPlan, MatmulPrecision, Offload, OffloadPlan, ParamDType, ParamStorage,
    RecomputeLayers, RecomputePlan, RecomputePolicy, Storage, Tokens,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[train]`: batch, sequence length, duration, logging.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("x-one-of" = ["steps", "tokens", "epochs"]))]
pub struct TrainConfig {
    /// Global batch: tokens per optimizer step, over all ranks and micro-batches. A multiple of `seq_len`.
    pub batch_tokens: u64,
    /// Tokens of one training sequence; at most the model's `context`. With documents (`lengths`), at most.
    pub seq_len: u64,
    /// What a sequence is: "packed" (a window of `seq_len` tokens, in which documents follow each other), "padded" or "bucketed" (a
    /// document, cut at `seq_len`; a micro-batch then has one of a few lengths, and padding has no loss). "padded" takes documents in
    /// their random order, "bucketed" puts documents of about one length together. The batch in tokens is then met in the mean.
    pub lengths: SequenceLengths,
    /// Lengths below `seq_len` that a micro-batch of documents may be padded to, ascending. Empty: the multiples of an eighth of
    /// `seq_len`. Each has programs of its own, made before the first step.
    pub length_buckets: Vec<u64>,
    /// Sequences that go through the model at once; a divisor of the sequences of a rank. 0 derives the largest
    /// divisor that keeps a micro-batch within 8192 tokens. It changes memory and speed, not the step.
    pub micro_batch: u64,
    /// Optimizer steps to train for. Give exactly one of `steps`, `tokens` and `epochs`; 0 means not
    /// given. One that `--set` or a recipe gives replaces those of the layers below, such as a base recipe.
    pub steps: u64,
    /// Tokens to train on, rounded up to whole steps; 0 means not given.
    pub tokens: u64,
    /// Passes over the train split, rounded up to whole steps; 0 means not given.
    pub epochs: f64,
    /// Steps between two progress lines, where standard error is no terminal (a terminal has a status line). Every step is in metrics.jsonl.
    pub log_every: u64,
    /// How exact matrix products must be at least: "highest" (f32), "high" (about 16 bits of every operand) or "medium"
    /// (about the 8 bits of bf16, or 11 bits and short sums in fp16); else sums are f32. A processor takes its fastest way.
    pub matmul_precision: MatmulPrecision,
    /// Type in which activations and their gradients are stored: "f32", or "bf16" for half of their memory. Sums are f32
    /// either way, and so are optimizer state and checkpoints; a run may be continued with the other type.
    pub storage: Storage,
    /// Type in which parameters are kept while training: "f32", "bf16" or "f16". Of the two short ones the optimizer keeps
    /// f32 masters, which it steps and checkpoints carry; a run may be continued with another type.
    pub weights: ParamDType,
    /// Type in which parameters' gradients are kept and travel between ranks: "f32", "bf16" or "f16" (which travels as f32).
    /// In the short ones every micro-batch rounds what it adds; "f32" is the safe choice. Weights in f32 want
    /// gradients in f32.
    pub gradients: ParamDType,
    /// Factor on the loss while gradients are computed, for gradients in f16.
    pub loss_scale: LossScaleConfig,
    /// Parameters that are trained, by names in which `*` stands for any characters: `["layers.11.*", "head.weight"]`. The others keep their
    /// values, without gradients and optimizer state. Empty: all, or the adapters of `model.adapters`, which are trained in any case.
    /// See docs/finetuning.md.
    pub trained: Vec<String>,
    /// What the backward pass of a layer computes again instead of having it stored (activation checkpointing): "none",
    /// "selective", "attention", "attention-output", "full", "input-aware" (as few layers in full as `activation_memory` demands, for
    /// each length of a micro-batch; layers that `offload` may take are offloaded first), or a list of values as `bessemer program show` names them, such as
    /// ["mlp.pre"]; "mlp" stands for all that begin so. In f32 storage the numbers are the same bits.
    pub recompute: RecomputePolicy,
    /// Most bytes of activations on a rank, such as "512 MiB", for `recompute = "input-aware"`: class "activations" of the memory plan,
    /// the scratch of all passes included (Mimose: Liao et al. 2022). Refused before the first step if recomputing or offloading every layer
    /// leaves more.
    pub activation_memory: String,
    /// What some layers compute again instead of what `recompute` says, by their numbers from 0: "0-5" (both included), "3" or
    /// "0-5,8"; "stage 0-5" counts from the first layer of each pipeline stage. `"stage 0-5" = "full"` is Megatron-LM's
    /// `--recompute-method block --recompute-num-layers 6`. A layer that has a number of its own follows that.
    pub recompute_layers: RecomputeLayers,
    /// Micro-batches in flight on a pipeline stage that keep everything whatever `recompute` says, at most: the first that there
    /// is a place for; a micro-batch that begins later takes the place of one that has ended (Korthikanti et al. 2022, appendix C).
    /// Without a pipeline one micro-batch is in flight. Not with schedules that split backward passes.
    pub stored_micro_batches: u64,
    /// Form in which a layer stores activations between its forward and its backward pass: "none" (as they are), "bf16" (of
    /// activations in f32) or "int8" (with a scale for each block of at most 256 columns of a row). Losses keep their bits; gradients are
    /// those of backward passes that read the rounded values.
    pub compress: Compression,
    /// What `compress` is about: values as `bessemer program show` names them, such as ["mlp.pre"], or how they begin; [] for all
    /// that a layer stores.
    pub compress_values: Vec<String>,
    /// Memory in which the activations that a layer stores wait for its backward pass: "none" (that of the device) or "disk" (a file,
    /// written and read beside the computation, a layer ahead). Numbers keep their bits. With `recompute = "input-aware"` as few layers are offloaded
    /// as `activation_memory` demands.
    pub offload: Offload,
    /// Layers that `offload` is about: the first so many of each pipeline stage; 0 for all. With `recompute = "input-aware"`, at most:
    /// the layers that the disk keeps up with; the others are recomputed where that does not suffice.
    pub offload_layers: u64,
    /// Folder on whose disk the file of `offload = "disk"` is, relative to the current directory; empty for the run directory. The
    /// file has no name, and its space is reserved before the first step.
    pub offload_dir: String,
    /// Weight of the z-loss: the mean of lse^2, lse the log-sum-exp of a token's logits, is added to what is minimised
    /// (PaLM: 1e-4). The loss that is reported stays the cross-entropy. 0 leaves it out.
    pub z_loss: f64,
    /// What happens to a step whose loss or gradient norm stands far above those before: "off", "skip" or "rewind".
    pub spike_action: SpikeAction,
    /// How far is far: sigmas above the median of the window.
    pub spike_sigma: f64,
    /// Steps that a step is compared with. One checkpoint that is older than this many steps is always kept.
    pub spike_window: u64,
    /// What happens when 20 steps in a row had a loss or a gradient that is not finite: "stop" or "rollback".
    pub on_divergence: OnDivergence,
    /// Spans of the run's sample counter that no step trains on, ascending: [[first, behind the last], …]. A step whose batch would reach
    /// into one begins after it, so the data that are left keep their order. `bessemer supervise --skip-data` adds spans of its own.
    pub skip_samples: Vec<[u64; 2]>,
    /// The checkpoint whose parameters the run begins with.
    pub init: InitConfig,
    /// A model whose predictions the run learns from.
    pub teacher: TeacherConfig,
    /// Training on pairs of a chosen and a rejected answer.
    pub preferences: PreferencesConfig,
    /// When a run ends before its last step.
    pub early_stop: EarlyStopConfig,
    /// How numbers that a broken machine makes are found.
    pub integrity: IntegrityConfig,
}

/// What happens to a run that has diverged.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDivergence {
    /// The run ends with an error that names the last healthy checkpoint.
    #[default]
    Stop,
    /// Back to the last healthy checkpoint, and on with the data behind what the run stumbled on. A run that diverges again
    /// within `spike_window` steps goes back to an older one; after three times it ends as with "stop".
    Rollback,
}

/// What happens to a loss spike.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SpikeAction {
    /// Nothing is looked for.
    #[default]
    Off,
    /// The update is left out: parameters and moments stay, the data counts as seen.
    Skip,
    /// Back to the newest checkpoint of `save.every_steps`, and on with the data behind the spike (Chowdhery et al.
    /// 2022); after three times, or without that checkpoint, the update is left out.
    Rewind,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            batch_tokens: 8192,
            seq_len: 256,
            lengths: SequenceLengths::Packed,
            length_buckets: Vec::new(),
            micro_batch: 0,
            steps: 0,
            tokens: 0,
            epochs: 0.0,
            log_every: 10,
            matmul_precision: MatmulPrecision::Highest,
            storage: Storage::F32,
            weights: ParamDType::F32,
            gradients: ParamDType::F32,
            loss_scale: LossScaleConfig::default(),
            trained: Vec::new(),
            recompute: RecomputePolicy::default(),
            activation_memory: String::new(),
            recompute_layers: RecomputeLayers::default(),
            stored_micro_batches: 0,
            compress: Compression::None,
            compress_values: Vec::new(),
            offload: Offload::None,
            offload_layers: 0,
            offload_dir: String::new(),
            z_loss: 0.0,
            spike_action: SpikeAction::Off,
            spike_sigma: 6.0,
            spike_window: 128,
            on_divergence: OnDivergence::Stop,
            skip_samples: Vec::new(),
            init: InitConfig::default(),
            teacher: TeacherConfig::default(),
            preferences: PreferencesConfig::default(),
            early_stop: EarlyStopConfig::default(),
            integrity: IntegrityConfig::default(),
        }
    }
}

/// Tokens that a derived micro-batch holds at most: enough rows to keep matrix products efficient, few enough
/// that activations stay small.
const DERIVED_MICRO_TOKENS: u64 = 8192;

/// Largest global batch that a step may have: 2^40 tokens, far above any published run.
const LARGEST_BATCH: u64 = 1 << 40;

/// Longest sequence, as in the model table.
const LONGEST_SEQUENCE: u64 = 1 << 24;

/// Largest sample counter in a span that is skipped.
const MOST_SAMPLES: u64 = 1 << 50;
/// Most micro-batches in flight.
const MOST_STORED: u64 = 1 << 20;

/// Most layers to offload, far above any model.
const MOST_LAYERS: u64 = 1 << 20;

/// Most steps of a run.
pub(crate) const MOST_STEPS: u64 = 1 << 40;

/// What `[train]` means on a given number of ranks: nothing left to derive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlan {
    /// Tokens of a sequence.
    pub seq_len: u64,
    /// Sequences per optimizer step over all ranks.
    pub sequences_per_step: u64,
    /// Sequences per optimizer step of one rank.
    pub sequences_per_rank: u64,
    /// Sequences of one micro-batch.
    pub micro_batch: u64,
    /// Micro-batches per step and rank.
    pub accumulation: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens per optimizer step over all ranks.
    pub tokens_per_step: Tokens,
    /// Tokens of the whole run.
    pub tokens: Tokens,
}

/// What a run has done before its batch became the present one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TrainedSoFar {
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens of their global batches.
    pub tokens: u64,
}

impl TrainConfig {
    /// Checks that the duration of a training is given.
    ///
    /// # Errors
    /// A sentence that names the keys.
    pub fn check_duration(&self) -> Result<(), String> {
        match self.durations().is_empty() {
            true => {
                Err("wanted exactly one of train.steps, train.tokens and train.epochs, found none".into())
            }
            false => Ok(()),
        }
    }

    /// Checks everything that does not need the corpus or the number of ranks.
    ///
    /// # Errors
    /// A sentence that names the key, the value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        self.sequences_per_step()?;
        self.micro_batch_of(self.sequences_per_step()?, 1)?;
        if !self.epochs.is_finite() || self.epochs < 0.0 || self.epochs > 1e6 {
            return Err(format!("train.epochs = {}: expected more than 0 and at most 1000000", self.epochs));
        }
        let given = self.durations();
        if given.len() > 1 {
            return Err(format!(
                "wanted exactly one of train.steps, train.tokens and train.epochs, found {}",
                given.join(" and ")
            ));
        }
        for (key, value) in [("steps", self.steps), ("tokens", self.tokens / self.batch_tokens)] {
            if value > MOST_STEPS {
                return Err(format!("train.{key} gives {value} steps: expected at most {MOST_STEPS}"));
            }
        }
        for (key, value, least, most) in
            [("z_loss", self.z_loss, 0.0, 1.0), ("spike_sigma", self.spike_sigma, 0.1, 1e6)]
        {
            if !(least..=most).contains(&value) {
                return Err(format!("train.{key} = {value}: expected {least} to {most}"));
            }
        }
        if self.stored_micro_batches > MOST_STORED {
            return Err(format!(
                "train.stored_micro_batches = {}: expected 0 to {MOST_STORED}",
                self.stored_micro_batches
            ));
        }
        if self.compress == Compression::None && !self.compress_values.is_empty() {
            return Err(format!(
                "train.compress_values = {:?} with train.compress = \"none\": expected [], or compress = \"bf16\" or \"int8\"",
                self.compress_values
            ));
        }
        self.check_offload()?;
        if self.compress == Compression::Bf16 && self.storage == Storage::Bf16 {
            return Err(
                "train.compress = \"bf16\" with train.storage = \"bf16\": activations are in bf16 already; expected \"none\" or \"int8\""
                    .into(),
            );
        }
        if !(8..=65_536).contains(&self.spike_window) {
            return Err(format!("train.spike_window = {}: expected 8 to 65536", self.spike_window));
        }
        let numbers: Vec<u64> = self.skip_samples.iter().flatten().copied().collect();
        if numbers.windows(2).any(|pair| pair[0] >= pair[1]) || numbers.iter().any(|at| *at > MOST_SAMPLES) {
            return Err(format!(
                "train.skip_samples = {:?}: expected spans such as [[1200, 1400], [5000, 5200]], ascending \
                 and disjoint, up to {MOST_SAMPLES}",
                self.skip_samples
            ));
        }
        if self.weights == ParamDType::F32 && self.gradients != ParamDType::F32 {
            return Err(format!(
                "train.gradients = \"{0}\" with train.weights = \"f32\": expected gradients = \"f32\", or weights = \"{0}\"",
                self.gradients
            ));
        }
        self.check_lengths()?;
        self.loss_scale.check()?;
        self.init.check()?;
        self.teacher.check()?;
        self.preferences.check()?;
        self.early_stop.check()?;
        self.integrity.check()?;
        if self.log_every == 0 {
            return Err("train.log_every = 0: expected at least 1".into());
        }
        Ok(())
    }

    /// What of a layer's stored activations is compressed, and how.
    pub fn compression_plan(&self) -> CompressionPlan {
        CompressionPlan { form: self.compress, values: self.compress_values.clone() }
    }

    /// Which layers offload what they store, and where to.
    pub fn offload_plan(&self) -> OffloadPlan {
        OffloadPlan { to: self.offload, layers: self.offload_layers as usize }
    }

    fn check_offload(&self) -> Result<(), String> {
        if self.offload == Offload::None {
            for (key, found, given) in [
                ("offload_layers", self.offload_layers.to_string(), self.offload_layers > 0),
                ("offload_dir", format!("{:?}", self.offload_dir), !self.offload_dir.is_empty()),
            ] {
                if given {
                    return Err(format!(
                        "train.{key} = {found} with train.offload = \"none\": expected offload = \"disk\", or no {key}"
                    ));
                }
            }
        }
        if self.offload_layers > MOST_LAYERS {
            return Err(format!(
                "train.offload_layers = {}: expected 0 (all) to {MOST_LAYERS}",
                self.offload_layers
            ));
        }
        Ok(())
    }

    /// What each layer computes again.
    pub fn recompute_plan(&self) -> RecomputePlan {
        RecomputePlan {
            default: self.recompute.clone(),
            layers: self.recompute_layers.clone(),
            stored_micro_batches: self.stored_micro_batches as usize,
            // A text that is no size has been refused by the check.
            activation_memory: self.activation_budget().ok().flatten(),
        }
    }

    /// How parameters and their gradients are kept.
    pub fn types(&self) -> ParamStorage {
        ParamStorage { weights: self.weights, gradients: self.gradients }
    }

    /// Whether gradients are in f16, which a loss scale is for.
    pub fn f16_gradients(&self) -> bool {
        self.gradients == ParamDType::F16
    }

    fn durations(&self) -> Vec<String> {
        let given = [
            (self.steps > 0, format!("steps = {}", self.steps)),
            (self.tokens > 0, format!("tokens = {}", self.tokens)),
            (self.epochs > 0.0, format!("epochs = {}", self.epochs)),
        ];
        given.into_iter().filter(|(is, _)| *is).map(|(_, text)| text).collect()
    }

    /// Sequences per optimizer step over all ranks.
    ///
    /// # Errors
    /// If `batch_tokens` is not a whole number of sequences; the sentence names the nearest batches that are.
    pub fn sequences_per_step(&self) -> Result<u64, String> {
        let (batch, seq) = (self.batch_tokens, self.seq_len);
        if seq == 0 || seq > LONGEST_SEQUENCE {
            return Err(format!("train.seq_len = {seq}: expected 1 to {LONGEST_SEQUENCE}"));
        }
        if batch == 0 || batch > LARGEST_BATCH {
            return Err(format!("train.batch_tokens = {batch}: expected 1 to {LARGEST_BATCH}"));
        }
        if !batch.is_multiple_of(seq) {
            let below = batch / seq * seq;
            let near = if below == 0 { format!("{seq}") } else { format!("{below} or {}", below + seq) };
            return Err(format!(
                "train.batch_tokens = {batch} is {:.2} sequences of train.seq_len = {seq}: expected a whole number of \
                 sequences, such as batch_tokens = {near}",
                batch as f64 / seq as f64
            ));
        }
        Ok(batch / seq)
    }

    fn micro_batch_of(&self, per_rank: u64, ranks: u64) -> Result<u64, String> {
        if self.has_documents() {
            return self.micro_batch_of_documents(DERIVED_MICRO_TOKENS);
        }
        let fits = |micro: &u64| per_rank.is_multiple_of(*micro);
        if self.micro_batch == 0 {
            let most = (DERIVED_MICRO_TOKENS / self.seq_len).clamp(1, per_rank);
            return Ok((1..=most).rev().find(fits).unwrap_or(1));
        }
        if self.micro_batch > per_rank || !fits(&self.micro_batch) {
            let below = (1..=self.micro_batch.min(per_rank).min(1 << 20)).rev().find(fits).unwrap_or(1);
            let of = if ranks == 1 { String::new() } else { format!(" on each of {ranks} ranks") };
            return Err(format!(
                "train.micro_batch = {} does not divide the {per_rank} sequences of a step{of} (batch_tokens {} / \
                 seq_len {}): expected 0 (derive) or a divisor such as {below}",
                self.micro_batch, self.batch_tokens, self.seq_len
            ));
        }
        Ok(self.micro_batch)
    }

    /// The batch and duration on `ranks` data-parallel ranks. `train_tokens` is the size of the train split; it is
    /// needed for `epochs` only. Documents are taken to be as long as a sequence, in micro-batches that the ranks can share, until the
    /// split is there ([`BatchPlan::of_documents`]).
    ///
    /// # Errors
    /// A sentence with the numbers that do not fit.
    pub fn resolve(&self, ranks: u64, train_tokens: Option<u64>) -> Result<BatchPlan, String> {
        self.check()?;
        let sequences_per_step = self.sequences_per_step()?;
        if ranks == 0 || !(self.has_documents() || sequences_per_step.is_multiple_of(ranks)) {
            return Err(format!(
                "train.batch_tokens = {} gives {sequences_per_step} sequences per step, which {ranks} data-parallel \
                 ranks cannot share equally: expected a multiple of {}",
                self.batch_tokens,
                ranks.saturating_mul(self.seq_len)
            ));
        }
        let mut sequences_per_rank = sequences_per_step / ranks;
        let micro_batch = self.micro_batch_of(sequences_per_rank, ranks)?;
        if self.has_documents() {
            sequences_per_rank = sequences_per_step.div_ceil(ranks).next_multiple_of(micro_batch);
        }
        let plan = BatchPlan {
            seq_len: self.seq_len,
            sequences_per_step: sequences_per_rank * ranks,
            sequences_per_rank,
            micro_batch,
            accumulation: sequences_per_rank / micro_batch,
            steps: 0,
            tokens_per_step: Tokens(self.batch_tokens),
            tokens: Tokens(0),
        };
        self.lasting(plan, train_tokens, TrainedSoFar::default())
    }

    /// The plan with the steps and tokens of a run that has trained already under another batch. `steps`, `tokens` and `epochs` mean
    /// the whole run: a run of which they want no more than it has done is over.
    ///
    /// # Errors
    /// As [`TrainConfig::resolve`].
    pub fn lasting(
        &self,
        plan: BatchPlan,
        train_tokens: Option<u64>,
        done: TrainedSoFar,
    ) -> Result<BatchPlan, String> {
        let steps = if self.steps > 0 {
            self.steps.max(done.steps)
        } else if self.tokens > 0 {
            done.steps + self.tokens.saturating_sub(done.tokens).div_ceil(self.batch_tokens)
        } else {
            let train_tokens = train_tokens
                .ok_or("train.epochs needs the size of the train split: build the corpus first")?;
            if train_tokens < self.seq_len {
                return Err(format!(
                    "train.epochs = {}: the train split has {train_tokens} tokens, fewer than one sequence of \
                     train.seq_len = {}",
                    self.epochs, self.seq_len
                ));
            }
            let left = self.epochs * train_tokens as f64 - done.tokens as f64;
            let least = if done.steps > 0 { 0.0 } else { 1.0 };
            let steps = (left / self.batch_tokens as f64).ceil().max(least);
            if steps > MOST_STEPS as f64 {
                return Err(format!(
                    "train.epochs = {} gives {steps} steps: expected at most {MOST_STEPS}",
                    self.epochs
                ));
            }
            done.steps.saturating_add(steps as u64)
        };
        let new = (steps - done.steps).checked_mul(self.batch_tokens);
        let tokens = new.and_then(|new| new.checked_add(done.tokens)).ok_or_else(|| {
            format!("{steps} steps of train.batch_tokens = {} do not fit in 64 bits", self.batch_tokens)
        })?;
        Ok(BatchPlan { steps, tokens: Tokens(tokens), ..plan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(batch_tokens: u64, seq_len: u64, micro_batch: u64) -> TrainConfig {
        TrainConfig { batch_tokens, seq_len, micro_batch, steps: 10, ..Default::default() }
    }

    #[test]
    fn a_plan_multiplies_back_to_the_batch() {
        let mut planned = 0;
        for batch_tokens in [64, 768, 8192, 491_520, 524_288, 1 << 22] {
            for seq_len in [1, 64, 256, 1000, 1024, 100_000] {
                for micro in [0, 1, 3, 8] {
                    for ranks in [1, 2, 3, 8] {
                        let Ok(p) = config(batch_tokens, seq_len, micro).resolve(ranks, None) else {
                            continue;
                        };
                        planned += 1;
                        assert_eq!(p.micro_batch * p.accumulation * ranks * seq_len, batch_tokens);
                        assert_eq!(p.tokens.0, 10 * batch_tokens);
                        if micro == 0 && p.micro_batch > 1 {
                            assert!(p.micro_batch * seq_len <= DERIVED_MICRO_TOKENS);
                        }
                    }
                }
            }
        }
        assert!(planned > 100);
    }

    #[test]
    fn what_does_not_divide_is_explained_with_numbers_that_do() {
        let e = config(1000, 256, 0).check().unwrap_err();
        assert!(e.contains("3.91 sequences") && e.contains("768 or 1024"), "{e}");
        let e = config(8192, 256, 7).check().unwrap_err();
        assert!(e.contains("32 sequences") && e.contains("such as 4"), "{e}");
        let e = config(8192, 256, 0).resolve(3, None).unwrap_err();
        assert!(e.contains("3 data-parallel") && e.contains("multiple of 768"), "{e}");
        for (batch, seq) in [(0, 1), (1, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(config(batch, seq, 0).check().is_err());
        }
    }

    #[test]
    fn gradients_shorter_than_weights_are_refused_by_name() {
        use ParamDType::{Bf16, F16, F32};
        let of =
            |weights, gradients| TrainConfig { weights, gradients, steps: 1, ..Default::default() }.check();
        for (weights, gradients) in [(Bf16, F32), (Bf16, Bf16), (F16, F32), (F16, F16), (F32, F32)] {
            of(weights, gradients).unwrap();
        }
        let e = of(F32, Bf16).unwrap_err();
        assert!(e.contains("train.gradients = \"bf16\"") && e.contains("weights = \"bf16\""), "{e}");
    }

    #[test]
    fn exactly_one_duration_is_wanted() {
        let of = |steps, tokens, epochs| TrainConfig { steps, tokens, epochs, ..Default::default() };
        assert!(of(0, 0, 0.0).check_duration().unwrap_err().contains("found none"));
        assert!(of(5, 7, 0.0).check().unwrap_err().contains("steps = 5 and tokens = 7"));
        assert!(of(0, 0, f64::NAN).check().is_err());
        assert!(of(0, 0, -1.0).check().is_err());
        assert_eq!(of(5, 0, 0.0).resolve(1, None).unwrap().steps, 5);
        assert_eq!(of(0, 8193, 0.0).resolve(1, None).unwrap().steps, 2);
        assert_eq!(of(0, 0, 1.5).resolve(1, Some(81_920)).unwrap().steps, 15);
        assert!(of(0, 0, 1.5).resolve(1, None).unwrap_err().contains("corpus first"));
        assert!(of(0, 0, 1.5).resolve(1, Some(3)).unwrap_err().contains("3 tokens"));
    }

    /// 10 steps of 4096 tokens, then steps of 8192.
    #[test]
    fn a_duration_is_that_of_the_whole_run_where_the_batch_has_changed() {
        let done = TrainedSoFar { steps: 10, tokens: 40_960 };
        let of = |steps, tokens, epochs| {
            let config = TrainConfig { steps, tokens, epochs, ..Default::default() };
            let plan = config.resolve(1, Some(81_920)).unwrap();
            let plan = config.lasting(plan, Some(81_920), done).unwrap();
            (plan.steps, plan.tokens.0)
        };
        assert_eq!(of(30, 0, 0.0), (30, 40_960 + 20 * 8192));
        assert_eq!(of(0, 81_920, 0.0), (15, 81_920));
        assert_eq!(of(0, 81_921, 0.0), (16, 81_920 + 8192));
        assert_eq!(of(0, 0, 1.0), (15, 81_920));
        // Nothing more is wanted.
        for (steps, tokens, epochs) in [(9, 0, 0.0), (0, 40_960, 0.0), (0, 0, 0.5)] {
            assert_eq!(of(steps, tokens, epochs), (10, 40_960));
        }
    }
}

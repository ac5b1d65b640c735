//! The records, one struct a kind. Field names are the keys in `metrics.jsonl` and carry their unit.
//!
//! Within a version of the format fields may be added as optional ones; none is removed or changes meaning.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The run that the log belongs to: once, before its first step. Its checkpoints hold the same name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunId {
    /// Random name.
    pub id: String,
}

/// A process began to work on the run: once at its start and once at every continuation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Name of the run.
    pub name: String,
    /// Program and version.
    pub program: String,
    /// The command line; passwords, keys and tokens in addresses are replaced by `REDACTED`.
    pub command: Vec<String>,
    /// Seed of the run.
    pub seed: u64,
    /// Wall time of the beginning, seconds since 1970-01-01 UTC.
    pub started_unix_s: f64,
    /// The same time in UTC as RFC 3339 writes it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub started_at: String,
    /// Name of the machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The working directory of the process.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cwd: String,
    /// Commit that the Git repository around the working directory has checked out, if it lies in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Processor or device, for example the CPU's name.
    pub device: String,
    /// Threads that compute.
    pub threads: u64,
    /// Peak rate that MFU is counted against, floating-point operations a second.
    #[serde(with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub peak_flops_per_s: Option<f64>,
    /// How MFU is counted, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu_convention: Option<String>,
}

/// The model that is trained.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Model {
    /// Name of the architecture.
    pub name: String,
    /// All parameters.
    pub parameters: u64,
    /// Parameters without the token and position embeddings.
    pub parameters_without_embedding: u64,
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub width: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Vocabulary size.
    pub vocab_size: u64,
    /// Longest sequence in tokens.
    pub seq_len: u64,
    /// Floating-point operations of forward and backward for one token.
    #[serde(with = "crate::number")]
    pub flops_per_token: f64,
    /// The checkpoint that the parameters come from, and what of it was kept; without it they were drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial: Option<String>,
}

/// Plan of the training.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Training {
    /// Steps planned.
    pub steps: u64,
    /// Tokens planned.
    pub tokens: u64,
    /// Tokens of a step over all ranks and micro-batches.
    pub batch_tokens: u64,
    /// Sequences in a micro-batch.
    pub micro_batch: u64,
    /// Sequence length in tokens.
    pub seq_len: u64,
    /// Samples in an epoch of the data.
    pub samples_per_epoch: u64,
    /// The optimizer in words.
    pub optimizer: String,
    /// The learning-rate schedule in words.
    pub schedule: String,
    /// Ranks that train; 0 in logs from before there were several.
    pub ranks: u64,
    /// How they share the work, in words.
    pub layout: String,
    /// Sequences of several lengths, and the layers that recompute at each; empty where all have one length and one plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sequences: String,
    /// What the run takes of each component, where it trains on a mixture.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mixture: Vec<MixtureShare>,
}

/// What a run takes of one component of its mixture.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MixtureShare {
    /// Name of the component.
    pub name: String,
    /// Tokens that it holds.
    pub tokens: u64,
    /// Its share of the samples of the run.
    #[serde(with = "crate::number")]
    pub weight: f64,
    /// Passes over it in the whole run.
    #[serde(with = "crate::number")]
    pub epochs: f64,
}

/// A stage of the run (corpus, tokenizer, shards, train, …) ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stage {
    /// Name of the stage.
    pub name: String,
    /// How long it took.
    #[serde(with = "crate::number")]
    pub seconds: f64,
    /// Whether its result was already there.
    pub skipped: bool,
    /// Counts, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
}

/// Counts of the documents of a corpus.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Corpus {
    /// Kind of the source: cargo, folder, jsonl, ...; empty in logs that do not say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The stand-in for the source that the recipe asks for, with the reason; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Documents read.
    pub documents_in: u64,
    /// Bytes of text read.
    pub bytes_in: u64,
    /// Documents kept.
    pub documents_kept: u64,
    /// Bytes of text kept.
    pub bytes_kept: u64,
    /// Dropped documents, by reason.
    pub dropped: Vec<Dropped>,
    /// The same by source.
    pub sources: Vec<CorpusSource>,
    /// Documents kept, by split.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub split_documents: BTreeMap<String, u64>,
    /// Bytes kept, by split.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub split_bytes: BTreeMap<String, u64>,
}

/// Documents dropped for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dropped {
    /// The reason, as the rule is named.
    pub reason: String,
    /// Documents.
    pub documents: u64,
    /// Bytes of text.
    pub bytes: u64,
}

/// Counts of the documents of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CorpusSource {
    /// Name of the source.
    pub name: String,
    /// Documents read.
    pub documents_in: u64,
    /// Bytes of text read.
    pub bytes_in: u64,
    /// Documents kept.
    pub documents_kept: u64,
    /// Bytes of text kept.
    pub bytes_kept: u64,
    /// Dropped documents, by reason.
    pub dropped: Vec<Dropped>,
}

/// The tokenizer that was trained or read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokenizer {
    /// Token ids.
    pub vocab_size: u64,
    /// Hash that identifies it.
    pub fingerprint: String,
    /// Name of the pre-tokenizer.
    pub pretokenizer: String,
    /// Bytes of text that it was trained on; 0 if it was read from a file.
    pub trained_on_bytes: u64,
    /// How long training took.
    #[serde(with = "crate::number")]
    pub seconds: f64,
}

/// A split was tokenised.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shards {
    /// Name of the split.
    pub split: String,
    /// Shard files.
    pub files: u64,
    /// Tokens.
    pub tokens: u64,
    /// Of these those that are scored. Missing if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scored: Option<u64>,
    /// Documents.
    pub documents: u64,
    /// Bytes of the text that the tokens encode.
    pub text_bytes: u64,
    /// Bytes of the shard files.
    pub file_bytes: u64,
    /// How long it took.
    #[serde(with = "crate::number")]
    pub seconds: f64,
}

/// A training step ended. `step` counts finished steps, from 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Steps finished, this one included.
    pub step: u64,
    /// Tokens trained on since the beginning of the run.
    pub tokens: u64,
    /// Mean loss of the step's targets, nats a token; of a run on pairs the mean over pairs.
    #[serde(with = "crate::number")]
    pub loss: f64,
    /// Auxiliary losses that are minimised with it, by name, nats a token: the weight of each times its mean over the targets.
    /// "z_loss" is that of the squared log-sum-exp, "distillation" that of a teacher's divergence.
    #[serde(
        default,
        with = "crate::number::losses",
        alias = "z_loss",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub losses: BTreeMap<String, f64>,
    /// Loads of the experts by the step's tokens, by name: "load_max", the largest load of an expert over the mean load, averaged over
    /// layers; "load_worst", the largest of any layer; "load_entropy", the entropy of the loads over its largest value, averaged over layers;
    /// "idle", experts of all layers that no token has chosen; "dropped", the share of choices that a capacity has dropped; "bias_range", the
    /// largest difference between two biases of a layer; "shadows", experts that every rank has computed, mean over layers and micro-batches,
    /// if there may be some. Empty without experts.
    #[serde(default, with = "crate::number::losses", skip_serializing_if = "BTreeMap::is_empty")]
    pub experts: BTreeMap<String, f64>,
    /// Of a run on pairs, means over the pairs of the step: "accuracy", the share whose chosen answer has become the more probable one,
    /// relative to the reference; "chosen" and "rejected", the rewards of the answers, beta times how much their log-probability has grown;
    /// "margin", the difference of both. Empty without pairs.
    #[serde(default, with = "crate::number::losses", skip_serializing_if = "BTreeMap::is_empty")]
    pub preferences: BTreeMap<String, f64>,
    /// Learning rate of the step.
    #[serde(with = "crate::number")]
    pub lr: f64,
    /// Norm of the gradient before clipping.
    #[serde(with = "crate::number")]
    pub grad_norm: f64,
    /// Factor on the loss while the step's gradients were computed. Missing without loss scaling.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Tokens a second of this step.
    #[serde(with = "crate::number")]
    pub tokens_per_s: f64,
    /// Share of the peak rate that the model's operations used, 0 to 1, by the convention of the `run` record.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Memory of the process in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// How long the step took.
    #[serde(with = "crate::number")]
    pub seconds: f64,
    /// Of these, how long the step waited for data.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub data_seconds: Option<f64>,
    /// Bytes that the process has read from the training split since the step before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// Share of the bytes that batches requested since the step before that was in the cache of blocks, 0 to 1. Missing without a cache.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub data_hit_share: Option<f64>,
    /// Targets that the loss is the mean of, over all ranks. Missing where the training split has no mask of scored tokens: all targets are
    /// scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored: Option<u64>,
    /// Samples of the step without a scored target. Missing without a mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unscored_samples: Option<u64>,
    /// Expected time until the last step.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<f64>,
}

/// The model was evaluated on a split.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Eval {
    /// Steps finished.
    pub step: u64,
    /// Tokens trained on since the beginning of the run.
    pub tokens: u64,
    /// Name of the split.
    pub split: String,
    /// Mean loss, nats a token; of a run on pairs the mean over pairs, while the numbers below are of the chosen answers.
    #[serde(with = "crate::number")]
    pub loss: f64,
    /// exp(nats a token).
    #[serde(with = "crate::number")]
    pub perplexity: f64,
    /// Summed loss in bits over bytes of text scored.
    #[serde(with = "crate::number")]
    pub bits_per_byte: f64,
    /// Tokens scored.
    pub tokens_scored: u64,
    /// Bytes of text that these tokens encode.
    pub bytes_scored: u64,
    /// How long it took.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The same for each component of the mixture, where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<EvalComponent>,
}

/// The part of an evaluation that one component of a mixture is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvalComponent {
    /// Name of the component.
    pub name: String,
    /// Mean loss, nats a token.
    #[serde(with = "crate::number")]
    pub loss: f64,
    /// Summed loss in bits over bytes of text scored.
    #[serde(with = "crate::number")]
    pub bits_per_byte: f64,
    /// Tokens scored.
    pub tokens_scored: u64,
}

/// A checkpoint became durable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Save {
    /// Steps finished.
    pub step: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Seconds from the beginning of writing until the checkpoint was durable.
    #[serde(with = "crate::number")]
    pub seconds: f64,
    /// Seconds that training waited: for a copy of the state to write from, or, without a copy, for all of the save. Absent in older
    /// logs.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub stall_seconds: Option<f64>,
    /// Of these, seconds that the copy of the state took from training. Absent where no copy was made beside a step.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub copy_seconds: Option<f64>,
    /// Steps that ran while the checkpoint was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_beside: Option<u64>,
    /// By which share those steps were longer than steps without a save beside them. Absent where either is unknown.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// The checkpoint, relative to the run folder.
    pub path: String,
}

/// A run with `save.every = "auto"` chose how often it saves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveInterval {
    /// Steps finished when the save was made whose cost led to the choice.
    pub step: u64,
    /// Steps from a save to the next one: the largest of `budget_steps`, `writing_steps` and the smaller one of `failures_steps`
    /// and `recovery_steps`, approached step by step.
    pub every_steps: u64,
    /// What it was before. Absent in the first choice of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Steps by the share of training time that saves may cost.
    pub budget_steps: u64,
    /// Steps that it takes to write a checkpoint.
    pub writing_steps: u64,
    /// Steps with the least expected loss to saves and failures.
    pub failures_steps: u64,
    /// Steps of the most work that a failure may cost. Absent without such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_steps: Option<u64>,
    /// Seconds that a save costs training: waiting, and longer steps beside it.
    #[serde(with = "crate::number")]
    pub save_seconds: f64,
    /// Seconds of a step without a save beside it.
    #[serde(with = "crate::number")]
    pub step_seconds: f64,
    /// Expected seconds between failures of the run.
    #[serde(with = "crate::number")]
    pub mtbf_seconds: f64,
}

/// The run went on from a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Resume {
    /// Steps finished when the checkpoint was made.
    pub step: u64,
    /// The checkpoint, relative to the run folder.
    pub path: String,
    /// Records of later steps that were taken out of this log because the steps are run again.
    #[serde(default)]
    pub records_dropped: u64,
}

/// The run went on under another recipe than the one of its checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Steps finished before the change.
    pub step: u64,
    /// Tokens trained on before the change.
    pub tokens: u64,
    /// Keys whose values differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<ChangedKey>,
    /// Consequences for batch and data order, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<String>,
}

/// A key of the recipe that was changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChangedKey {
    /// The key, with its sections: `train.batch_tokens`.
    pub key: String,
    /// Its value before, as TOML; empty if it had none.
    pub before: String,
    /// Its value now, as TOML; empty if it has none.
    pub now: String,
}

impl Change {
    /// The changed keys in one line.
    pub fn keys_line(&self) -> String {
        let value = |text: &str| if text.is_empty() { "(none)".to_owned() } else { text.to_owned() };
        let one = |k: &ChangedKey| format!("{} {} -> {}", k.key, value(&k.before), value(&k.now));
        self.keys.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// Text that the model wrote.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Steps finished.
    pub step: u64,
    /// Input.
    pub prompt: String,
    /// Output.
    pub text: String,
    /// Sampling temperature; 0 is greedy.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}

/// A score of a task that the model has answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Steps finished.
    pub step: u64,
    /// Tokens trained on.
    #[serde(default)]
    pub tokens: u64,
    /// Name of the task.
    pub task: String,
    /// Name of the metric.
    pub metric: String,
    /// The score.
    #[serde(with = "crate::number")]
    pub value: f64,
    /// Standard error of the score.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub stderr: Option<f64>,
    /// The 95 % interval of the score; logs of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Whether a larger score is better.
    #[serde(default)]
    pub larger_is_better: bool,
    /// Documents that were asked about.
    #[serde(default)]
    pub documents: u64,
    /// What ran: task, version, examples, digest of the requests, tokenizer.
    #[serde(default)]
    pub signature: String,
    /// Of a gap between groups of documents (`task` is then "TASK by COLUMN"): the group with the worst score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<String>,
}

/// Another model, for comparison, on the same text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// What it is, for example "byte 5-gram, modified Kneser-Ney".
    pub name: String,
    /// Name of the split that it was scored on.
    pub split: String,
    /// Bits per byte of text.
    #[serde(with = "crate::number")]
    pub bits_per_byte: f64,
    /// Bytes of text that it was fitted on.
    #[serde(default)]
    pub bytes_fitted: u64,
    /// Bytes of text scored.
    #[serde(default)]
    pub bytes_scored: u64,
    /// How long fitting and scoring took.
    #[serde(default, with = "crate::number::optional", skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// Something that a person should know and that did not stop the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    /// Steps finished, if the training had begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Subject, one word.
    pub topic: String,
    /// A sentence.
    pub message: String,
}

/// Finding about numbers that a sound machine may not have made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultVerdict {
    /// Computed again, the numbers were others: a machine was wrong for a moment.
    Transient,
    /// The same machine was wrong again and again, or always.
    Persistent,
    /// Computed again, the numbers were the same: the model made them.
    Reproduced,
    /// Nobody can tell yet, or a finding of a later program.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A check found numbers that a sound machine may not have made. The record has no `step`, so that it stays in the log when the run goes back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Step that was computed when it was found, counted from 1.
    pub found_at: u64,
    /// The check: "replicas", "sums", "rerun", "state at rest".
    pub check: String,
    /// The finding.
    pub verdict: FaultVerdict,
    /// Ranks that may be wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u64>,
    /// Their hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Step that the run went back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_to: Option<u64>,
    /// A sentence.
    pub message: String,
}

/// The run ends before its last step: its validation loss no longer fell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EarlyStop {
    /// Steps finished.
    pub step: u64,
    /// Step of the lowest validation loss.
    pub best_step: u64,
    /// That loss, nats a token.
    #[serde(with = "crate::number")]
    pub best_loss: f64,
    /// Evaluations since.
    pub evaluations: u64,
}

/// Why a process stopped working on the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// All steps are done.
    #[default]
    Finished,
    /// Somebody stopped it, and it saved.
    Interrupted,
    /// An error stopped it.
    Failed,
    /// A reason of a later program.
    #[serde(other)]
    Other,
}

/// A process stopped working on the run. Missing after a crash.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Steps finished.
    pub step: u64,
    /// Tokens trained on since the beginning of the run.
    pub tokens: u64,
    /// Why.
    pub reason: EndReason,
    /// The error, or a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How long the process worked.
    #[serde(with = "crate::number")]
    pub seconds: f64,
    /// Time of the end in UTC as RFC 3339 writes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ended_at: String,
}

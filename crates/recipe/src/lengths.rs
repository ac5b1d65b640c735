//! `train.lengths`: micro-batches of one length, of windows, or of a few lengths, of documents.
//!
//! Documents are shorter than `seq_len` on average, so a step has more of them. The batch in tokens is met in the mean:
//!
//! ```text
//! micro-batches per step = batch_tokens / (mean tokens of a sample x micro_batch), rounded to a whole number of at least 1
//! ```

use crate::train::{BatchPlan, TrainConfig};
use bessemer_units::{Bytes, Recompute, Tokens};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Content of the sequences of a micro-batch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SequenceLengths {
    /// Windows of `seq_len` tokens of the split, in which documents follow each other. No padding.
    #[default]
    Packed,
    /// Documents, cut at `seq_len`. A micro-batch has documents of one bucket, and the bucket's length.
    Bucketed,
    /// Documents, cut at `seq_len`. A micro-batch has the smallest of the lengths that its longest document fits.
    Padded,
}

/// Lengths besides `seq_len`, at most.
const MOST_LENGTHS: usize = 64;
/// Lengths that are derived are multiples of `seq_len` divided by this.
const DERIVED_LENGTHS: u64 = 8;

impl TrainConfig {
    /// Whether samples are documents, and micro-batches of several lengths.
    pub fn has_documents(&self) -> bool {
        self.lengths != SequenceLengths::Packed
    }

    /// Lengths below `seq_len` that a micro-batch may have, ascending: those of `length_buckets`, or the multiples of an eighth
    /// of `seq_len`. None where all have `seq_len`.
    pub fn shorter_lengths(&self) -> Vec<u64> {
        if !self.has_documents() {
            return Vec::new();
        }
        if !self.length_buckets.is_empty() {
            return self.length_buckets.clone();
        }
        let mut lengths: Vec<u64> =
            (1..DERIVED_LENGTHS).map(|eighths| (self.seq_len * eighths).div_ceil(DERIVED_LENGTHS)).collect();
        lengths.dedup();
        lengths.retain(|length| *length < self.seq_len);
        lengths
    }

    /// Bytes of activations on a rank, where layers are recomputed under a budget.
    ///
    /// # Errors
    /// A text that is no size.
    pub fn activation_budget(&self) -> Result<Option<Bytes>, String> {
        match self.activation_memory.trim() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|e| format!("train.activation_memory: {e}")),
        }
    }

    /// Checks the keys of lengths and of input-aware recomputation.
    pub(crate) fn check_lengths(&self) -> Result<(), String> {
        let buckets = &self.length_buckets;
        if !buckets.is_empty() && !self.has_documents() {
            return Err(
                "train.length_buckets with train.lengths = \"packed\", in which every sequence has train.seq_len tokens: expected \
                 [], or lengths = \"bucketed\" or \"padded\""
                    .into(),
            );
        }
        let ascending = buckets.windows(2).all(|pair| pair[0] < pair[1]);
        let within = buckets.iter().all(|length| (1..self.seq_len).contains(length));
        if !ascending || !within || buckets.len() > MOST_LENGTHS {
            return Err(format!(
                "train.length_buckets = {buckets:?}: expected at most {MOST_LENGTHS} lengths, ascending, from 1 to {} (below \
                 train.seq_len, which is always one)",
                self.seq_len.saturating_sub(1)
            ));
        }
        let (budget, aware) = (self.activation_budget()?, self.recompute == Recompute::InputAware.into());
        match (budget, aware) {
            (None, true) => {
                return Err("train.recompute = \"input-aware\" needs a memory budget: expected \
                            train.activation_memory, such as \"512 MiB\""
                    .into());
            }
            (Some(_), false) => {
                return Err(format!(
                    "train.activation_memory = {:?} is used only by train.recompute = \"input-aware\", found \
                     \"{}\": expected \"input-aware\", or no train.activation_memory",
                    self.activation_memory, self.recompute
                ));
            }
            _ => {}
        }
        if aware && self.recompute_layers.last().is_some() {
            return Err(
                "train.recompute = \"input-aware\" chooses the recomputed layers itself: expected no \
                        train.recompute_layers"
                    .into(),
            );
        }
        if (aware || self.has_documents()) && self.stored_micro_batches > 0 {
            return Err(format!(
                "train.stored_micro_batches = {} works only with train.lengths = \"packed\" and without \
                 train.activation_memory: expected 0",
                self.stored_micro_batches
            ));
        }
        Ok(())
    }

    /// Sequences of a micro-batch of documents.
    pub(crate) fn micro_batch_of_documents(&self, derived_tokens: u64) -> Result<u64, String> {
        let most = self.batch_tokens / self.seq_len;
        match self.micro_batch {
            0 => Ok((derived_tokens / self.seq_len).clamp(1, most)),
            micro if micro > most => Err(format!(
                "train.micro_batch = {micro} sequences of train.seq_len = {} are more than train.batch_tokens = {}: expected 0 \
                 (derive) to {most}",
                self.seq_len, self.batch_tokens
            )),
            micro => Ok(micro),
        }
    }
}

impl BatchPlan {
    /// The plan of a run whose samples are documents of `mean` targets on average, on `ranks` data-parallel ranks: a step has as
    /// many micro-batches as make up the batch in the mean, whatever the ranks.
    ///
    /// # Errors
    /// Micro-batches that the ranks cannot share, with a batch that they can.
    pub fn of_documents(self, ranks: u64, mean: f64) -> Result<BatchPlan, String> {
        let of = |batch_tokens: u64| {
            let micro_batches = batch_tokens as f64 / (mean.max(1.0) * self.micro_batch as f64);
            (micro_batches.round() as u64).max(1)
        };
        let batch = self.tokens_per_step.0;
        let micro_batches = of(batch);
        if ranks == 0 || !micro_batches.is_multiple_of(ranks) {
            let near = (1..4096).flat_map(|i| {
                let by = i * self.seq_len;
                [batch.saturating_add(by), batch.saturating_sub(by)]
            });
            let fits = near.filter(|batch| *batch > 0).find(|batch| of(*batch).is_multiple_of(ranks.max(1)));
            let such = fits.map_or(String::new(), |batch| format!(", such as batch_tokens = {batch}"));
            return Err(format!(
                "train.batch_tokens = {batch} gives {micro_batches} micro-batches ({} documents of {mean:.1} \
                 tokens on average in each), not a multiple of the {ranks} data-parallel ranks: expected a \
                 multiple of {ranks} micro-batches{such}",
                self.micro_batch
            ));
        }
        Ok(BatchPlan {
            sequences_per_step: micro_batches * self.micro_batch,
            sequences_per_rank: micro_batches / ranks * self.micro_batch,
            accumulation: micro_batches / ranks,
            tokens_per_step: Tokens(batch),
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(lengths: SequenceLengths) -> TrainConfig {
        TrainConfig {
            lengths,
            batch_tokens: 8192,
            seq_len: 256,
            micro_batch: 4,
            steps: 3,
            ..TrainConfig::default()
        }
    }

    #[test]
    fn the_batch_is_met_in_the_mean() {
        let plan = config(SequenceLengths::Padded).resolve(1, None).unwrap();
        for mean in [1.0, 17.3, 100.0, 255.9, 256.0] {
            for ranks in [1, 2, 3] {
                let Ok(p) = plan.of_documents(ranks, mean) else { continue };
                let of_all = p.accumulation * ranks * p.micro_batch;
                assert_eq!((p.sequences_per_step, p.sequences_per_rank), (of_all, of_all / ranks));
                let off = (of_all as f64 * mean - 8192.0).abs();
                assert!(off <= mean * 4.0 / 2.0 + 1e-6, "{mean}: {off}");
                assert_eq!((p.tokens_per_step.0, p.steps, p.micro_batch), (8192, 3, 4));
            }
        }
        // 8192 / 400 = 20.48 micro-batches.
        let e = plan.of_documents(3, 100.0).unwrap_err();
        assert!(e.contains("20 micro-batches") && e.contains("such as batch_tokens = 8448"), "{e}");
        assert_eq!(
            BatchPlan { tokens_per_step: Tokens(8448), ..plan }.of_documents(3, 100.0).unwrap().accumulation,
            7
        );
    }

    #[test]
    fn lengths_are_eighths_or_those_that_are_given() {
        let of = |lengths, seq_len, length_buckets: &[u64]| {
            let c = TrainConfig { seq_len, length_buckets: length_buckets.to_vec(), ..config(lengths) };
            c.check().map(|()| c.shorter_lengths())
        };
        let padded = SequenceLengths::Padded;
        assert_eq!(of(padded, 256, &[]).unwrap(), [32, 64, 96, 128, 160, 192, 224]);
        assert_eq!(of(padded, 4, &[]).unwrap(), [1, 2, 3]);
        assert!(of(SequenceLengths::Packed, 256, &[]).unwrap().is_empty());
        assert_eq!(of(SequenceLengths::Bucketed, 256, &[7, 200]).unwrap(), [7, 200]);
        for wrong in [&[0, 5][..], &[5, 5], &[9, 5], &[256]] {
            assert!(of(padded, 256, wrong).unwrap_err().contains("ascending, from 1 to 255"));
        }
        assert!(of(SequenceLengths::Packed, 256, &[5]).unwrap_err().contains("\"packed\""));
    }

    #[test]
    fn a_budget_and_input_aware_recomputation_belong_together() {
        let of = |recompute: Recompute, memory: &str| {
            let c = TrainConfig {
                recompute: recompute.into(),
                activation_memory: memory.into(),
                ..config(Default::default())
            };
            c.check().map(|()| c.recompute_plan().budget())
        };
        assert_eq!(of(Recompute::InputAware, "3 MiB"), Ok(Some(Bytes(3 << 20))));
        assert_eq!(of(Recompute::Full, ""), Ok(None));
        assert!(of(Recompute::InputAware, "").unwrap_err().contains("train.activation_memory"));
        assert!(of(Recompute::Full, "3 MiB").unwrap_err().contains("\"input-aware\""));
        assert!(of(Recompute::InputAware, "3 mib").unwrap_err().contains("such as \"512 MiB\""));
        let stored = TrainConfig { stored_micro_batches: 1, ..config(SequenceLengths::Padded) };
        assert!(stored.check().unwrap_err().contains("expected 0"));
    }
}

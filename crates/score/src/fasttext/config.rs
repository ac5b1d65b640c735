//! Settings of supervised training.

use super::args::{Args, Loss};
use crate::error::{Result, ScoreError};

/// How to train. The defaults are those of `fasttext supervised`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Learning rate at the beginning; it falls linearly to 0.
    pub lr: f64,
    /// Passes over the examples.
    pub epoch: u32,
    /// Size of a vector.
    pub dim: u32,
    /// Words seen less often are left out.
    pub min_count: u32,
    /// Longest word n-gram; 1 is words alone.
    pub word_ngrams: u32,
    /// Shortest piece of a word, in characters.
    pub minn: u32,
    /// Longest piece of a word, in characters; 0 for none.
    pub maxn: u32,
    /// Rows that hashed n-grams share; not used without n-grams.
    pub bucket: u32,
    /// softmax, hs, ns or ova.
    pub loss: Loss,
    /// Labels drawn per example by `ns`.
    pub neg: u32,
    /// Tokens between two steps of the learning rate.
    pub lr_update_rate: u32,
    /// Seed of the first weights and of every draw.
    pub seed: u32,
    /// Examples whose gradients are formed against the same weights; 1 is the order of the original.
    pub block: u32,
    /// Threads; they change the time and nothing else.
    pub threads: u32,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            lr: 0.1,
            epoch: 5,
            dim: 100,
            min_count: 1,
            word_ngrams: 1,
            minn: 0,
            maxn: 0,
            bucket: 2_000_000,
            loss: Loss::Softmax,
            neg: 5,
            lr_update_rate: 100,
            seed: 0,
            block: 16,
            threads: 1,
        }
    }
}

impl TrainConfig {
    /// Checks every value; the error names key, value and allowed range.
    ///
    /// # Errors
    /// A value out of range.
    pub fn check(&self) -> Result<()> {
        if !(self.lr > 0.0 && self.lr <= 100.0) {
            return Err(ScoreError::Config(format!(
                "lr = {} is out of range: wanted above 0, up to 100",
                self.lr
            )));
        }
        for (key, value, low, high) in [
            ("epoch", self.epoch, 1, 10_000),
            ("dim", self.dim, 1, 4096),
            ("min_count", self.min_count, 1, u32::MAX),
            ("word_ngrams", self.word_ngrams, 1, 16),
            ("minn", self.minn, 0, 16),
            ("maxn", self.maxn, 0, 16),
            ("bucket", self.bucket, 1, 1 << 30),
            ("neg", self.neg, 1, 1000),
            ("lr_update_rate", self.lr_update_rate, 1, 1 << 30),
            ("seed", self.seed, 0, u32::MAX),
            ("block", self.block, 1, 4096),
            ("threads", self.threads, 1, 1024),
        ] {
            if !(low..=high).contains(&value) {
                return Err(ScoreError::Config(format!(
                    "{key} = {value} is out of range: wanted {low} to {high}"
                )));
            }
        }
        if self.maxn > 0 && self.minn > self.maxn {
            return Err(ScoreError::Config(format!("minn = {} is above maxn = {}", self.minn, self.maxn)));
        }
        Ok(())
    }

    pub(super) fn args(&self) -> Args {
        let mut args = Args {
            dim: self.dim as usize,
            ws: 5,
            epoch: self.epoch as i32,
            min_count: self.min_count.min(i32::MAX as u32) as i32,
            neg: self.neg as i32,
            word_ngrams: self.word_ngrams as usize,
            loss: self.loss,
            bucket: self.bucket,
            minn: self.minn as usize,
            maxn: self.maxn as usize,
            lr_update_rate: self.lr_update_rate as i32,
            t: 1e-4,
        };
        if !args.hashes() {
            args.bucket = 0;
        }
        args
    }
}

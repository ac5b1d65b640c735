//! The keys of `[corpus.evaluate]`.

use crate::rules::is_profile_path;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[corpus.evaluate]`: evaluation of a sample of the kept documents, reported on the data card.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluateConfig {
    /// Share of the kept documents that is evaluated; 0: none.
    pub sample: f64,
    /// Profiles whose measures over the sample are reported, with what they would drop of it: names or paths as in `corpus.rules.profiles`.
    pub profiles: Vec<String>,
    /// Documents of the sample that are written to `review.jsonl` beside the corpus, for review by people.
    pub review: u64,
    /// Bounds on the measures of the build, predicates such as `` `gopher-quality.passed` >= 0.95 && kept.share > 0.5 ``. A build for which
    /// one is not true fails, and the directory keeps what it held.
    pub require: Vec<String>,
}

impl EvaluateConfig {
    /// Checks every value; the message names the key.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.sample) {
            return Err(format!("corpus.evaluate.sample = {}: expected 0 to 1", self.sample));
        }
        if self.review > 100_000 {
            return Err(format!("corpus.evaluate.review = {}: expected at most 100000", self.review));
        }
        Ok(())
    }

    /// Paths of files that the keys name, each with its key.
    pub(crate) fn paths(&mut self) -> Vec<(String, &mut String)> {
        let paths = self.profiles.iter_mut().filter(|name| is_profile_path(name));
        paths.map(|path| ("evaluate.profiles".into(), path)).collect()
    }
}

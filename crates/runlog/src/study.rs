//! `study.json`: what a study of initialisations and normalisations found.
//!
//! Every number is finite: a run that diverged holds the losses until then and the step at which it ended.

use crate::RunLogError;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the file in a study's directory.
pub const STUDY_FILE: &str = "study.json";

/// Version of `study.json`. It grows only when an older reader could not understand the file.
pub const STUDY_VERSION: u64 = 1;
/// Value of the `format` key.
pub const STUDY_FORMAT: &str = "bessemer-study-init";

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// [`STUDY_FORMAT`].
    pub format: String,
    /// [`STUDY_VERSION`].
    pub version: u64,
    /// Model and settings of the runs.
    pub settings: StudySettings,
    /// Data of the runs.
    pub text: StudyText,
    /// One entry a method, in the order asked for.
    pub methods: Vec<StudyMethod>,
}

impl Study {
    /// Reads `study.json`; `None` if there is no such file.
    ///
    /// # Errors
    /// The system's, [`RunLogError::Study`] for anything else than a study of this version.
    pub fn read(path: &Path) -> Result<Option<Study>, RunLogError> {
        let text = match bessemer_durable::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(RunLogError::io(path, "read", e)),
        };
        let refused =
            |what: String| RunLogError::Study { path: path.to_owned(), wanted: STUDY_VERSION, what };
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| refused(e.to_string()))?;
        if value["format"] != STUDY_FORMAT || value["version"] != STUDY_VERSION {
            return Err(refused(format!("format {}, version {}", value["format"], value["version"])));
        }
        serde_json::from_value(value).map(Some).map_err(|e| refused(e.to_string()))
    }

    /// Writes `study.json`: a reader sees the old file or the new one, never a part.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, path: &Path) -> Result<(), RunLogError> {
        let mut text = serde_json::to_string_pretty(self).map_err(|e| RunLogError::Record {
            path: path.to_owned(),
            kind: "study".into(),
            what: e.to_string(),
        })?;
        text.push('\n');
        bessemer_durable::write(path, text.as_bytes()).map_err(|e| RunLogError::write(path, e))
    }
}

/// Settings that all runs of a study share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudySettings {
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream; the feed-forward block has four times that.
    pub width: u64,
    /// Attention heads.
    pub heads: u64,
    /// Symbols of a sequence.
    pub context: u64,
    /// Sequences of a step.
    pub batch: u64,
    /// Steps.
    pub steps: u64,
    /// Learning rate, constant from the first step.
    pub lr: f64,
    /// Decay of Adam's running mean of gradients.
    pub beta1: f64,
    /// Decay of Adam's running mean of squares.
    pub beta2: f64,
}

/// The text of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyText {
    /// Its origin.
    pub name: String,
    /// Kind of symbol: "character" or "byte".
    pub unit: String,
    /// Distinct symbols.
    pub symbols: u64,
    /// Symbols to train on; the rest, at the end of the text, validates.
    pub train: u64,
    /// Symbols to validate on.
    pub validation: u64,
    /// Nats a symbol of the training part by the frequencies of single symbols: the loss of a model that knows no more.
    pub unigram_nats: f64,
    /// The same given the symbol before.
    pub bigram_nats: f64,
}

impl StudyText {
    /// Nats a symbol of a model that knows nothing: all symbols equally likely.
    pub fn uniform_nats(&self) -> f64 {
        (self.symbols as f64).ln()
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StudyVerdict {
    /// A loss or a gradient was not finite, or the validation loss ended above that of a model that knows nothing.
    Diverged,
    /// The validation loss ended less than [`StudyVerdict::MARGIN`] below the unigram entropy: at most the frequencies of
    /// symbols were learnt.
    Stalled,
    /// Everything else.
    Learnt,
}

impl StudyVerdict {
    /// Nats below the unigram entropy from which on something was learnt.
    pub const MARGIN: f64 = 0.1;

    /// The rule. `loss` is the validation loss after the last step, `None` if the run ended before.
    pub fn of(loss: Option<f64>, text: &StudyText) -> StudyVerdict {
        match loss {
            Some(loss) if loss <= text.unigram_nats - StudyVerdict::MARGIN => StudyVerdict::Learnt,
            Some(loss) if loss <= text.uniform_nats().max(text.unigram_nats) => StudyVerdict::Stalled,
            _ => StudyVerdict::Diverged,
        }
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            StudyVerdict::Diverged => "diverged",
            StudyVerdict::Stalled => "stalled",
            StudyVerdict::Learnt => "learnt",
        }
    }
}

/// One method: a placement of normalisations with an initialisation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyMethod {
    /// Name on the command line.
    pub name: String,
    /// Name for people, with source.
    pub title: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// One run a seed.
    pub runs: Vec<StudyRun>,
}

/// One training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyRun {
    /// Seed of initial values and of the order of the text.
    pub seed: u64,
    /// Training loss of each step in nats a symbol, before its update.
    pub losses: Vec<f64>,
    /// Global norm of the gradient of each step.
    pub gradient_norms: Vec<f64>,
    /// Step, from 1, whose loss or gradient was not finite; the run ended there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged_at: Option<u64>,
    /// Validation loss after the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_loss: Option<f64>,
    /// How it ended.
    pub verdict: StudyVerdict,
    /// The network before the first update.
    pub start: StudyStart,
}

/// A network before its first update, by depth, on the first batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StudyStart {
    /// Standard deviation of the residual stream: entering each layer, and leaving the last.
    pub activation_std: Vec<f64>,
    /// Norm of the loss's gradient with respect to what each layer's feed-forward block adds to the stream.
    pub stream_gradient: Vec<f64>,
    /// Norm of the gradient of each layer's parameters.
    pub parameter_gradient: Vec<f64>,
    /// Factor 1/sigma by which the normalisations of each layer scale a gradient that passes them: the product over the
    /// layer's two, each the mean over positions. Empty without normalisation.
    pub norm_factor: Vec<f64>,
}

impl StudyMethod {
    /// Mean and sample standard deviation of the final validation losses of the runs that have one; `None` if none has,
    /// 0 as the deviation of a single run.
    pub fn final_loss(&self) -> Option<(f64, f64)> {
        let losses: Vec<f64> = self.runs.iter().filter_map(|r| r.final_loss).collect();
        if losses.is_empty() {
            return None;
        }
        let n = losses.len() as f64;
        let mean = losses.iter().sum::<f64>() / n;
        let squares: f64 = losses.iter().map(|l| (l - mean).powi(2)).sum();
        Some((mean, if losses.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 }))
    }

    /// The runs' verdicts in words: "learnt", or "2 learnt, 1 stalled".
    pub fn verdict(&self) -> String {
        let all = [StudyVerdict::Learnt, StudyVerdict::Stalled, StudyVerdict::Diverged];
        let count = |v: StudyVerdict| self.runs.iter().filter(|r| r.verdict == v).count();
        let found: Vec<_> = all.into_iter().filter(|v| count(*v) > 0).collect();
        match found.as_slice() {
            [one] => one.name().into(),
            some => some.iter().map(|v| format!("{} {}", count(*v), v.name())).collect::<Vec<_>>().join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> StudyText {
        StudyText {
            name: "t".into(),
            unit: "character".into(),
            symbols: 65,
            train: 9,
            validation: 1,
            unigram_nats: 3.3091,
            bigram_nats: 2.45,
        }
    }

    #[test]
    fn the_rule_tells_the_three_ends_apart() {
        let verdict = |loss| StudyVerdict::of(loss, &text());
        assert_eq!(verdict(None), StudyVerdict::Diverged);
        assert_eq!(verdict(Some(f64::NAN)), StudyVerdict::Diverged);
        assert_eq!(verdict(Some(4.2)), StudyVerdict::Diverged, "above ln 65 = 4.174");
        assert_eq!(verdict(Some(4.1)), StudyVerdict::Stalled);
        assert_eq!(verdict(Some(3.2092)), StudyVerdict::Stalled);
        assert_eq!(verdict(Some(3.2090)), StudyVerdict::Learnt);
    }

    fn method(losses: &[Option<f64>]) -> StudyMethod {
        let run = |final_loss: Option<f64>| StudyRun {
            seed: 0,
            losses: vec![4.0],
            gradient_norms: vec![1.0],
            diverged_at: final_loss.is_none().then_some(2),
            final_loss,
            verdict: StudyVerdict::of(final_loss, &text()),
            start: StudyStart::default(),
        };
        StudyMethod {
            name: "m".into(),
            title: "M".into(),
            parameters: 1,
            runs: losses.iter().map(|l| run(*l)).collect(),
        }
    }

    #[test]
    fn a_method_sums_up_its_runs() {
        let mixed = method(&[Some(2.0), Some(2.4), None]);
        assert_eq!(mixed.verdict(), "2 learnt, 1 diverged");
        let (mean, spread) = mixed.final_loss().unwrap();
        assert!((mean - 2.2).abs() < 1e-12 && (spread - 0.08f64.sqrt()).abs() < 1e-12);
        assert_eq!(method(&[Some(2.0)]).final_loss(), Some((2.0, 0.0)));
        assert_eq!((method(&[None]).final_loss(), method(&[None]).verdict()), (None, "diverged".into()));
    }

    #[test]
    fn a_study_is_read_back_and_another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(STUDY_FILE);
        assert!(Study::read(&path).unwrap().is_none());
        let settings = StudySettings {
            layers: 2,
            width: 8,
            heads: 2,
            context: 4,
            batch: 1,
            steps: 3,
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.999,
        };
        let mut study = Study {
            format: STUDY_FORMAT.into(),
            version: STUDY_VERSION,
            settings,
            text: text(),
            methods: vec![method(&[Some(2.1), None])],
        };
        study.write(&path).unwrap();
        assert_eq!(Study::read(&path).unwrap(), Some(study.clone()));
        study.version += 1;
        study.write(&path).unwrap();
        assert!(Study::read(&path).unwrap_err().to_string().contains("version 2; use another directory"));
        std::fs::write(&path, "{").unwrap();
        assert!(Study::read(&path).unwrap_err().to_string().contains("study.json"));
    }
}

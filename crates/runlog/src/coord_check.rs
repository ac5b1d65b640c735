//! `coord-check.json`: how the sizes of a network's coordinates depend on its width.
//!
//! Every number is finite: a run that diverged holds what came before and the step at which it ended.

use crate::RunLogError;
use crate::study::StudyText;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the file in the directory of a coordinate check.
pub const COORD_CHECK_FILE: &str = "coord-check.json";
/// Version of `coord-check.json`. It grows only when an older reader could not understand the file.
pub const COORD_CHECK_VERSION: u64 = 1;
/// Value of the `format` key.
pub const COORD_CHECK_FORMAT: &str = "bessemer-study-coord-check";

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoordCheck {
    /// [`COORD_CHECK_FORMAT`].
    pub format: String,
    /// [`COORD_CHECK_VERSION`].
    pub version: u64,
    /// Model and settings of the runs.
    pub settings: CoordSettings,
    /// Data of the runs.
    pub text: StudyText,
    /// One entry a parametrisation.
    pub parametrisations: Vec<CoordParametrisation>,
}

impl CoordCheck {
    /// Reads `coord-check.json`.
    ///
    /// # Errors
    /// The system's, [`RunLogError::Study`] for anything else than a coordinate check of this version.
    pub fn read(path: &Path) -> Result<CoordCheck, RunLogError> {
        let text = bessemer_durable::read_to_string(path).map_err(|e| RunLogError::io(path, "read", e))?;
        let refused =
            |what: String| RunLogError::Study { path: path.to_owned(), wanted: COORD_CHECK_VERSION, what };
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| refused(e.to_string()))?;
        if value["format"] != COORD_CHECK_FORMAT || value["version"] != COORD_CHECK_VERSION {
            return Err(refused(format!("format {}, version {}", value["format"], value["version"])));
        }
        serde_json::from_value(value).map_err(|e| refused(e.to_string()))
    }

    /// Writes `coord-check.json`: a reader sees the old file or the new one, never a part.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, path: &Path) -> Result<(), RunLogError> {
        let mut text = serde_json::to_string_pretty(self).map_err(|e| RunLogError::Record {
            path: path.to_owned(),
            kind: "coord-check".into(),
            what: e.to_string(),
        })?;
        text.push('\n');
        bessemer_durable::write(path, text.as_bytes()).map_err(|e| RunLogError::write(path, e))
    }
}

/// Settings that all runs share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoordSettings {
    /// Widths of the residual stream, growing; the feed-forward block has four times that.
    pub widths: Vec<u64>,
    /// Width at which both parametrisations are the same.
    pub base_width: u64,
    /// Width of a head; wider models have more heads.
    pub head_dim: u64,
    /// Layers.
    pub layers: u64,
    /// Symbols of a sequence.
    pub context: u64,
    /// Sequences of the batch, which is the same in every step of a run.
    pub batch: u64,
    /// Updates.
    pub steps: u64,
    /// Learning rate of Adam, constant.
    pub lr: f64,
    /// Decay of Adam's running mean of gradients.
    pub beta1: f64,
    /// Decay of Adam's running mean of squares.
    pub beta2: f64,
    /// Largest size of a slope that counts as flat.
    pub bound: f64,
}

/// One of the activations that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoordKind {
    /// Token embedding plus positions: what enters the first layer.
    Embedding,
    /// Scaled products of queries and keys that the causal mask lets through, of all layers.
    AttentionLogits,
    /// What attention adds to the stream, of all layers.
    Attention,
    /// What the feed-forward blocks add to the stream, of all layers.
    Mlp,
    /// Output of the last layer.
    Stream,
    /// The logits.
    Logits,
}

impl CoordKind {
    /// All, in the order of the forward pass.
    pub const ALL: [CoordKind; 6] = [
        CoordKind::Embedding,
        CoordKind::AttentionLogits,
        CoordKind::Attention,
        CoordKind::Mlp,
        CoordKind::Stream,
        CoordKind::Logits,
    ];

    /// Name in the file.
    pub fn name(self) -> &'static str {
        match self {
            CoordKind::Embedding => "embedding",
            CoordKind::AttentionLogits => "attention-logits",
            CoordKind::Attention => "attention",
            CoordKind::Mlp => "mlp",
            CoordKind::Stream => "stream",
            CoordKind::Logits => "logits",
        }
    }

    /// Name for people.
    pub fn title(self) -> &'static str {
        match self {
            CoordKind::Embedding => "embedding output",
            CoordKind::AttentionLogits => "attention logits",
            CoordKind::Attention => "attention output",
            CoordKind::Mlp => "MLP output",
            CoordKind::Stream => "residual stream",
            CoordKind::Logits => "logits",
        }
    }
}

/// A parametrisation at all widths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoordParametrisation {
    /// "mup" or "standard".
    pub name: String,
    /// Name for people, with source.
    pub title: String,
    /// One run a width and seed.
    pub runs: Vec<CoordRun>,
    /// What the runs amount to, one entry a kind; derived from them by [`CoordParametrisation::judge`].
    pub findings: Vec<CoordFinding>,
}

/// One training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoordRun {
    /// Width.
    pub width: u64,
    /// Seed of initial values and of the batch.
    pub seed: u64,
    /// Loss in nats a symbol after 0, 1, ... updates.
    pub losses: Vec<f64>,
    /// Update, from 1, after which a value was not finite; the run ended there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged_at: Option<u64>,
    /// One entry a kind.
    pub coordinates: Vec<Coordinates>,
}

/// Sizes of one kind of activation over a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Coordinates {
    /// Which.
    pub kind: CoordKind,
    /// Root mean square of the values after 0, 1, ... updates.
    pub size: Vec<f64>,
    /// Root mean square of their change since the initialisation, after 0, 1, ... updates; the first is 0.
    pub change: Vec<f64>,
}

/// Number of [`Coordinates`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The values themselves.
    Size,
    /// Their change since the initialisation.
    Change,
}

/// A fitted slope of log2 of a size over log2 of the width: 0 is flat, 1 is in proportion to the width.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CoordSlope {
    /// Least squares through the logarithms of the means over seeds.
    pub slope: f64,
    /// Sample standard deviation of the slopes of the single seeds; 0 for one seed.
    pub spread: f64,
}

/// Whether a kind of activation moves alike at all widths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CoordVerdict {
    /// The slope of the change after the last update is within the bound.
    Flat,
    /// It is above.
    Grows,
    /// It is below.
    Shrinks,
    /// There is no slope: a run diverged, nothing moved, or there is one width only.
    Unknown,
}

impl CoordVerdict {
    /// The rule.
    pub fn of(change: Option<CoordSlope>, bound: f64) -> CoordVerdict {
        match change {
            Some(s) if s.slope > bound => CoordVerdict::Grows,
            Some(s) if s.slope < -bound => CoordVerdict::Shrinks,
            Some(_) => CoordVerdict::Flat,
            None => CoordVerdict::Unknown,
        }
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            CoordVerdict::Flat => "flat",
            CoordVerdict::Grows => "grows",
            CoordVerdict::Shrinks => "shrinks",
            CoordVerdict::Unknown => "unknown",
        }
    }
}

/// Result for one kind of activation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoordFinding {
    /// Which.
    pub kind: CoordKind,
    /// Slope of the size at the initialisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_at_start: Option<CoordSlope>,
    /// Slope of the size after the last update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<CoordSlope>,
    /// Slope of the change after the last update: what the verdict is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<CoordSlope>,
    /// The verdict.
    pub verdict: CoordVerdict,
}

impl CoordRun {
    fn value(&self, kind: CoordKind, measure: Measure, step: usize) -> Option<f64> {
        let c = self.coordinates.iter().find(|c| c.kind == kind)?;
        let list = if measure == Measure::Size { &c.size } else { &c.change };
        list.get(step).copied()
    }
}

impl CoordParametrisation {
    /// Mean over seeds after `step` updates; `None` if a run of that width has not come so far, or there is none.
    pub fn mean(&self, kind: CoordKind, measure: Measure, step: usize, width: u64) -> Option<f64> {
        let runs: Vec<&CoordRun> = self.runs.iter().filter(|r| r.width == width).collect();
        let values: Option<Vec<f64>> = runs.iter().map(|r| r.value(kind, measure, step)).collect();
        let values = values.filter(|v| !v.is_empty())?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The slope over the widths; `None` without two widths or with a value that has no logarithm.
    pub fn slope(
        &self,
        kind: CoordKind,
        measure: Measure,
        step: usize,
        widths: &[u64],
    ) -> Option<CoordSlope> {
        let means = |of: &dyn Fn(u64) -> Option<f64>| {
            let points: Option<Vec<(f64, f64)>> =
                widths.iter().map(|w| Some((*w as f64, of(*w).filter(|v| *v > 0.0)?))).collect();
            fit(&points?)
        };
        let slope = means(&|w| self.mean(kind, measure, step, w))?;
        let mut seeds: Vec<u64> = self.runs.iter().map(|r| r.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        let of_seed = |seed: u64| {
            let run = |w: u64| self.runs.iter().find(|r| r.seed == seed && r.width == w);
            means(&|w| run(w)?.value(kind, measure, step))
        };
        let slopes: Vec<f64> = seeds.into_iter().filter_map(of_seed).collect();
        Some(CoordSlope { slope, spread: deviation(&slopes) })
    }

    /// Fills `findings` from the runs.
    pub fn judge(&mut self, settings: &CoordSettings) {
        let last = settings.steps as usize;
        let finding = |kind: CoordKind| {
            let slope = |measure, step| self.slope(kind, measure, step, &settings.widths);
            let change = slope(Measure::Change, last);
            CoordFinding {
                kind,
                size_at_start: slope(Measure::Size, 0),
                size: slope(Measure::Size, last),
                change,
                verdict: CoordVerdict::of(change, settings.bound),
            }
        };
        self.findings = CoordKind::ALL.into_iter().map(finding).collect();
    }

    /// True if every kind is flat.
    pub fn is_flat(&self) -> bool {
        !self.findings.is_empty() && self.findings.iter().all(|f| f.verdict == CoordVerdict::Flat)
    }

    /// The verdicts in words: "flat everywhere", or "logits grow; embedding output shrinks".
    pub fn verdict(&self) -> String {
        if self.is_flat() {
            return "flat everywhere".into();
        }
        let others = self.findings.iter().filter(|f| f.verdict != CoordVerdict::Flat);
        others.map(|f| format!("{}: {}", f.kind.title(), f.verdict.name())).collect::<Vec<_>>().join(", ")
    }
}

/// Least-squares slope of log2 y over log2 x.
fn fit(points: &[(f64, f64)]) -> Option<f64> {
    if points.len() < 2 {
        return None;
    }
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.log2(), y.log2())).collect();
    let n = logs.len() as f64;
    let (mx, my) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    let xy: f64 = logs.iter().map(|(x, y)| (x - mx) * (y - my)).sum();
    let xx: f64 = logs.iter().map(|(x, _)| (x - mx).powi(2)).sum();
    (xx > 0.0).then_some(xy / xx)
}

fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> CoordSettings {
        CoordSettings {
            widths: vec![64, 128, 512],
            base_width: 64,
            head_dim: 16,
            layers: 1,
            context: 4,
            batch: 1,
            steps: 1,
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.999,
            bound: 0.25,
        }
    }

    /// Runs whose sizes are `scale(seed) width^exponent`.
    fn powers(exponent: f64, seeds: u64) -> CoordParametrisation {
        let run = |width: u64, seed: u64| {
            let value = (1.0 + seed as f64) * (width as f64).powf(exponent);
            let coordinates = |kind| Coordinates { kind, size: vec![3.0, value], change: vec![0.0, value] };
            CoordRun {
                width,
                seed,
                losses: vec![4.0, 3.0],
                diverged_at: None,
                coordinates: CoordKind::ALL.map(coordinates).to_vec(),
            }
        };
        let runs = settings().widths.iter().flat_map(|w| (0..seeds).map(move |s| run(*w, s))).collect();
        CoordParametrisation { name: "n".into(), title: "N".into(), runs, findings: Vec::new() }
    }

    #[test]
    fn slopes_are_exponents_and_the_rule_tells_them_apart() {
        for (exponent, verdict) in [
            (0.0, CoordVerdict::Flat),
            (0.2, CoordVerdict::Flat),
            (0.5, CoordVerdict::Grows),
            (1.0, CoordVerdict::Grows),
            (-0.3, CoordVerdict::Shrinks),
        ] {
            let mut p = powers(exponent, 3);
            p.judge(&settings());
            assert_eq!(p.findings.len(), 6);
            for f in &p.findings {
                assert!((f.change.unwrap().slope - exponent).abs() < 1e-12 && f.verdict == verdict);
                assert!(f.change.unwrap().spread < 1e-12 && f.size_at_start.unwrap().slope.abs() < 1e-12);
            }
            assert_eq!(p.is_flat(), verdict == CoordVerdict::Flat);
        }
        let mut p = powers(1.0, 1);
        p.judge(&settings());
        assert!(p.verdict().starts_with("embedding output: grows, attention logits: grows"));
        assert_eq!(p.mean(CoordKind::Mlp, Measure::Change, 1, 128), Some(128.0));
    }

    #[test]
    fn seeds_that_disagree_have_a_spread() {
        let mut p = powers(0.0, 2);
        // The second seed's values: 2, 2, 16 at widths 64, 128, 512.
        for c in &mut p.runs.iter_mut().find(|r| r.seed == 1 && r.width == 512).unwrap().coordinates {
            c.change[1] = 16.0;
        }
        let slope = p.slope(CoordKind::Logits, Measure::Change, 1, &settings().widths).unwrap();
        // log2 y = 1, 1, 4 over log2 x = 6, 7, 9: slope 15/14; the other seed's is 0.
        assert!((slope.spread - 15.0 / 14.0 / 2f64.sqrt()).abs() < 1e-12, "{slope:?}");
    }

    #[test]
    fn a_run_that_ended_early_or_did_not_move_leaves_the_verdict_open() {
        let mut p = powers(0.0, 2);
        p.runs[3].diverged_at = Some(1);
        for c in &mut p.runs[3].coordinates {
            c.change.pop();
        }
        p.judge(&settings());
        assert!(!p.is_flat() && p.findings.iter().all(|f| f.verdict == CoordVerdict::Unknown));
        let mut still = powers(0.0, 1);
        still.runs[0].coordinates[0].change[1] = 0.0;
        still.judge(&settings());
        assert_eq!(still.findings[0].verdict, CoordVerdict::Unknown);
        assert_eq!(still.verdict(), "embedding output: unknown");
        let alone = powers(0.0, 1).slope(CoordKind::Mlp, Measure::Change, 1, &[64]);
        assert_eq!(alone, None);
    }

    #[test]
    fn a_check_is_read_back_and_another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(COORD_CHECK_FILE);
        assert!(CoordCheck::read(&path).unwrap_err().to_string().contains(COORD_CHECK_FILE));
        let mut p = powers(0.5, 2);
        p.judge(&settings());
        let text = StudyText {
            name: "t".into(),
            unit: "character".into(),
            symbols: 65,
            train: 9,
            validation: 1,
            unigram_nats: 3.3,
            bigram_nats: 2.4,
        };
        let mut check = CoordCheck {
            format: COORD_CHECK_FORMAT.into(),
            version: COORD_CHECK_VERSION,
            settings: settings(),
            text,
            parametrisations: vec![p],
        };
        check.write(&path).unwrap();
        assert_eq!(CoordCheck::read(&path).unwrap(), check);
        let kinds: Vec<String> = CoordKind::ALL.iter().map(|k| serde_json::to_string(k).unwrap()).collect();
        assert!(kinds.iter().zip(CoordKind::ALL).all(|(a, b)| *a == format!("{:?}", b.name())));
        check.version += 1;
        check.write(&path).unwrap();
        assert!(CoordCheck::read(&path).unwrap_err().to_string().contains("version 2"));
    }
}

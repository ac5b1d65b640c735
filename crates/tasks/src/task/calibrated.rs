//! How far the probabilities of choices are to be believed.

use super::{Answer, DocumentRequests, Gold};
use crate::metrics::largest;
use bessemer_metrics::calibration::{Bins, brier, calibration_error, selective};
use serde::Serialize;

/// Bins of calibration errors, as HELM has them.
const BINS: usize = 10;

/// Calibration of the answers to multiple-choice questions: the probabilities of the choices of a question are those of their texts, divided by their sum, and
/// the answer is the most probable one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Calibration {
    /// Questions with an expected answer.
    pub documents: usize,
    /// Expected calibration error of the answer's probability, over ten bins of equal width.
    pub ece_equal_width: f64,
    /// The same over ten bins of equally many questions.
    pub ece_equal_mass: f64,
    /// Brier's score over all choices, 0 to 2.
    pub brier: f64,
    /// Mean accuracy of the k most certain answers over all k.
    pub selective_accuracy: f64,
    /// Accuracy of the most certain tenth of the answers.
    pub accuracy_of_surest_tenth: f64,
}

/// Probabilities of choices of these log-likelihoods.
pub(super) fn probabilities(lls: &[f64]) -> Vec<f64> {
    let most = lls.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = lls.iter().map(|ll| (ll - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// The calibration of answers; None without a question that has choices and an expected one, or with log-likelihoods that are no numbers.
pub(super) fn calibration(documents: &[DocumentRequests], answers: &[Vec<Answer>]) -> Option<Calibration> {
    let (mut judged, mut classes) = (Vec::new(), Vec::new());
    for (document, answers) in documents.iter().zip(answers) {
        let Gold::Choices(gold) = &document.gold else { return None };
        let ll = |answer: &Answer| match answer {
            Answer::LogLikelihood { value, .. } => Some(*value),
            Answer::Rolling(_) | Answer::Texts(_) => None,
        };
        let lls: Vec<f64> = answers.iter().take(document.choices.len()).map(ll).collect::<Option<_>>()?;
        let (Some(&expected), false) = (gold.first(), lls.is_empty()) else { continue };
        let answer = largest(&lls);
        let probabilities = probabilities(&lls);
        if probabilities.iter().any(|p| p.is_nan()) {
            return None;
        }
        judged.push((probabilities[answer], gold.contains(&answer)));
        classes.push((probabilities, expected));
    }
    let selective = selective(&judged)?;
    Some(Calibration {
        documents: judged.len(),
        ece_equal_width: calibration_error(&judged, Bins::EqualWidth(BINS)),
        ece_equal_mass: calibration_error(&judged, Bins::EqualMass(BINS)),
        brier: brier(&classes),
        selective_accuracy: selective.area,
        accuracy_of_surest_tenth: selective.top_tenth,
    })
}

//! What a perturbation costs: the same instances before and after it, and the worst of several (Liang et al. 2022, HELM, section 4.5).

/// A difference of means over the same instances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedDrop {
    /// Instances.
    pub instances: usize,
    /// Mean before.
    pub before: f64,
    /// Mean after.
    pub after: f64,
    /// What became worse: before - after of a score of which more is better, else after - before.
    pub drop: f64,
    /// Standard error of the drop, sd of the differences / sqrt n with n - 1; None of one instance.
    pub stderr: Option<f64>,
}

/// The difference between scores of instances before and after, pair by pair. None without pairs.
pub fn paired_drop(pairs: &[(f64, f64)], larger_is_better: bool) -> Option<PairedDrop> {
    if pairs.is_empty() {
        return None;
    }
    let n = pairs.len() as f64;
    let sign = if larger_is_better { 1.0 } else { -1.0 };
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / n;
    let drop = mean(&|pair| sign * (pair.0 - pair.1));
    let squares = pairs.iter().map(|pair| (sign * (pair.0 - pair.1) - drop).powi(2)).sum::<f64>();
    Some(PairedDrop {
        instances: pairs.len(),
        before: mean(&|pair| pair.0),
        after: mean(&|pair| pair.1),
        drop,
        stderr: (pairs.len() > 1).then(|| (squares / (n - 1.0)).sqrt() / n.sqrt()),
    })
}

/// The worst score of one instance among its forms. NaN among them is the worst. None without forms.
pub fn worst_case(scores: impl IntoIterator<Item = f64>, larger_is_better: bool) -> Option<f64> {
    scores.into_iter().reduce(|worst, score| match (worst.is_nan() || score.is_nan(), larger_is_better) {
        (true, _) => f64::NAN,
        (_, true) => worst.min(score),
        (_, false) => worst.max(score),
    })
}

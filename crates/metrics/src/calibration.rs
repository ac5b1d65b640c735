//! How far probabilities are to be believed.

/// A prediction: its probability and whether it was right.
pub type Judged = (f64, bool);

/// How predictions are put into bins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bins {
    /// Intervals of equal width of [0, 1], closed above.
    EqualWidth(usize),
    /// As many predictions in each; equal probabilities stay together, in the bin of the first of them (HELM).
    EqualMass(usize),
}

/// The expected calibration error (Naeini et al. 2015): the mean over predictions of |mean probability - share that was right| of their bin. 0 without
/// predictions.
pub fn calibration_error(predictions: &[Judged], bins: Bins) -> f64 {
    let edges = match bins {
        Bins::EqualWidth(bins) => (1..=bins).map(|i| i as f64 / bins as f64).collect(),
        Bins::EqualMass(bins) => equal_mass_edges(&predictions.iter().map(|p| p.0).collect::<Vec<_>>(), bins),
    };
    let mut low = f64::NEG_INFINITY;
    let mut error = 0.0;
    for edge in edges {
        let within = predictions.iter().filter(|p| low < p.0 && p.0 <= edge);
        let (mut count, mut probabilities, mut right) = (0.0, 0.0, 0.0);
        for (probability, was_right) in within {
            (count, probabilities) = (count + 1.0, probabilities + probability);
            right += f64::from(u8::from(*was_right));
        }
        if count > 0.0 {
            error += (probabilities - right).abs() / predictions.len() as f64;
        }
        low = edge;
    }
    error
}

/// Upper edges of bins that have equally many probabilities, the last of them 1.
pub fn equal_mass_edges(probabilities: &[f64], bins: usize) -> Vec<f64> {
    let mut sorted = probabilities.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut edges: Vec<f64> = Vec::new();
    for i in 1..bins {
        let at = (sorted.len() * i).div_ceil(bins);
        if let Some(edge) = at.checked_sub(1).and_then(|at| sorted.get(at)) {
            edges.push(*edge);
        }
    }
    edges.push(1.0);
    edges.dedup();
    edges
}

/// Brier's score (1950) of predictions over classes: the mean of `sum_c (p_c - y_c)^2`, 0 to 2.
pub fn brier(predictions: &[(Vec<f64>, usize)]) -> f64 {
    let of = |(probabilities, class): &(Vec<f64>, usize)| {
        let one = |(c, p): (usize, &f64)| (p - f64::from(u8::from(c == *class))).powi(2);
        probabilities.iter().enumerate().map(one).sum::<f64>()
    };
    predictions.iter().map(of).sum::<f64>() / predictions.len() as f64
}

/// The area under accuracy by coverage, and the accuracy of the most certain part of the predictions (HELM's selective classification).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Selective {
    /// Mean over k of the accuracy of the k most certain predictions.
    pub area: f64,
    /// Accuracy of the most certain tenth, at least of one.
    pub top_tenth: f64,
}

/// Accuracy of the most certain predictions. None without predictions.
pub fn selective(predictions: &[Judged]) -> Option<Selective> {
    let mut sorted = predictions.to_vec();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut right, mut area) = (0.0, 0.0);
    let tenth = (sorted.len() / 10).max(1);
    let mut top_tenth = 0.0;
    for (i, (_, was_right)) in sorted.iter().enumerate() {
        right += f64::from(u8::from(*was_right));
        let accuracy = right / (i + 1) as f64;
        area += accuracy / sorted.len() as f64;
        if i + 1 == tenth {
            top_tenth = accuracy;
        }
    }
    (!sorted.is_empty()).then_some(Selective { area, top_tenth })
}

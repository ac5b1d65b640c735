//! KoLA (Yu et al. 2023): scores of several models made comparable over tasks, and self-contrast of texts that models wrote.
//!
//! ```text
//! z_ij = (x_ij - mu_j) / sigma_j        over models i, population sigma; tasks of one group of siblings share mu and sigma; 0 where sigma is 0
//! s_ij = 100 (z_ij - min z) / (max z - min z)      over all models and tasks
//! level, overall: mean of z over the tasks of a level, mean over levels
//! self-contrast = mean of d(T, R), d(T, T_k), d(T_k, R), d = F1 of ROUGE-L without stemming
//! ```
//! T is what a model wrote, T_k what it wrote when it was given the knowledge that the reference R has. This is the definition of the paper; the code that was
//! released with it computes twice a mean of ROUGE-L less another one.

use crate::Rouge;

/// A task and the scores of all models in it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskColumn {
    /// Level of the task: knowledge memorisation, understanding, applying, creating.
    pub level: usize,
    /// Tasks with the same number share mean and deviation.
    pub siblings: usize,
    /// The score of each model.
    pub scores: Vec<f64>,
}

/// Standardised scores, by task and model.
#[derive(Debug, Clone, PartialEq)]
pub struct Standardised {
    /// z.
    pub z: Vec<Vec<f64>>,
    /// s, 0 to 100.
    pub scores: Vec<Vec<f64>>,
    /// Mean z of each level, by level and model, with the levels in rising order.
    pub levels: Vec<(usize, Vec<f64>)>,
    /// Mean over levels, by model.
    pub overall: Vec<f64>,
}

/// Standardises scores. None without models or tasks, or if tasks have other numbers of models.
pub fn standardise(tasks: &[TaskColumn]) -> Option<Standardised> {
    let models = tasks.first()?.scores.len();
    if models == 0 || tasks.iter().any(|task| task.scores.len() != models) {
        return None;
    }
    let z: Vec<Vec<f64>> = tasks
        .iter()
        .map(|task| {
            let family = tasks.iter().filter(|other| other.siblings == task.siblings);
            let values: Vec<f64> = family.flat_map(|other| other.scores.iter().copied()).collect();
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let sigma = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
            task.scores.iter().map(|x| if sigma > 0.0 { (x - mean) / sigma } else { 0.0 }).collect()
        })
        .collect();
    let all = || z.iter().flatten().copied();
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
    let range = most - least;
    let scale = |z: &f64| if range > 0.0 { 100.0 * (z - least) / range } else { 0.0 };
    let scores = z.iter().map(|row| row.iter().map(scale).collect()).collect();
    let mut numbers: Vec<usize> = tasks.iter().map(|task| task.level).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mean = |rows: &[&Vec<f64>]| -> Vec<f64> {
        (0..models).map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64).collect()
    };
    let of_level = |level: usize| {
        let rows: Vec<&Vec<f64>> =
            tasks.iter().zip(&z).filter(|(task, _)| task.level == level).map(|(_, row)| row).collect();
        (level, mean(&rows))
    };
    let levels: Vec<(usize, Vec<f64>)> = numbers.into_iter().map(of_level).collect();
    let overall = mean(&levels.iter().map(|(_, row)| row).collect::<Vec<_>>());
    Some(Standardised { z, scores, levels, overall })
}

/// Self-contrast of a text, of one that was written with the reference's knowledge, and of the reference: 0 to 1.
pub fn self_contrast(text: &str, with_knowledge: &str, reference: &str) -> f64 {
    let d = |a: &str, b: &str| Rouge::L.score(a, b, false).f1;
    (d(text, reference) + d(text, with_knowledge) + d(with_knowledge, reference)) / 3.0
}

//! Judgements: agreement of annotators, ratings from comparisons, and HUSE.

use std::collections::{BTreeMap, BTreeSet};

/// Agreement beyond chance of two annotators over categories (Cohen 1960). None if chance alone agrees always, or without items.
pub fn cohen_kappa(pairs: &[(usize, usize)]) -> Option<f64> {
    let n = pairs.len() as f64;
    let observed = pairs.iter().filter(|(a, b)| a == b).count() as f64 / n;
    let categories: BTreeSet<usize> = pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let share = |pick: fn(&(usize, usize)) -> usize, c: usize| {
        pairs.iter().filter(|p| pick(p) == c).count() as f64 / n
    };
    let chance: f64 = categories.iter().map(|c| share(|p| p.0, *c) * share(|p| p.1, *c)).sum();
    (n > 0.0 && chance < 1.0).then(|| (observed - chance) / (1.0 - chance))
}

/// Agreement beyond chance of as many annotators on each item (Fleiss 1971): rows are items, columns how many annotators chose a category. None if rows differ in
/// their sums, have fewer than two, or chance alone agrees always.
pub fn fleiss_kappa(table: &[Vec<usize>]) -> Option<f64> {
    let raters = table.first()?.iter().sum::<usize>();
    if raters < 2 || table.iter().any(|row| row.iter().sum::<usize>() != raters) {
        return None;
    }
    let pairs = (raters * (raters - 1)) as f64;
    let of = |row: &Vec<usize>| row.iter().map(|c| (c * c.saturating_sub(1)) as f64).sum::<f64>() / pairs;
    let observed = table.iter().map(of).sum::<f64>() / table.len() as f64;
    let total = (raters * table.len()) as f64;
    let columns = table.iter().map(Vec::len).max()?;
    let share =
        |c: usize| table.iter().map(|row| row.get(c).copied().unwrap_or(0)).sum::<usize>() as f64 / total;
    let chance: f64 = (0..columns).map(|c| share(c).powi(2)).sum();
    (chance < 1.0).then(|| (observed - chance) / (1.0 - chance))
}

/// The difference that two values make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal or not.
    Nominal,
    /// By how many judgements lie between them.
    Ordinal,
    /// Their squared difference.
    Interval,
}

/// Krippendorff's alpha (2011): one row of values for each item, from any number of annotators; items with fewer than two count nothing. None where fewer
/// than two values can be paired. 1 if all pairs agree.
pub fn krippendorff_alpha(items: &[Vec<f64>], scale: Scale) -> Option<f64> {
    let paired: Vec<&Vec<f64>> = items.iter().filter(|values| values.len() >= 2).collect();
    let mut marginals: BTreeMap<u64, f64> = BTreeMap::new();
    // Order of the bits is that of the numbers once the sign is folded in.
    let key = |x: f64| {
        let bits = (x + 0.0).to_bits();
        if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
    };
    for value in paired.iter().flat_map(|values| values.iter()) {
        *marginals.entry(key(*value)).or_default() += 1.0;
    }
    let n: f64 = marginals.values().sum();
    if n < 2.0 {
        return None;
    }
    let difference = |a: f64, b: f64| match scale {
        Scale::Nominal => f64::from(u8::from(a != b)),
        Scale::Interval => (a - b).powi(2),
        Scale::Ordinal => {
            let (low, high) = (key(a.min(b)), key(a.max(b)));
            let between: f64 = marginals.range(low..=high).map(|(_, count)| count).sum();
            (between - (marginals[&low] + marginals[&high]) / 2.0).powi(2)
        }
    };
    let observed: f64 = paired
        .iter()
        .map(|values| {
            let pairs = values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b)));
            pairs.map(|(a, b)| if a == b { 0.0 } else { difference(a, b) }).sum::<f64>()
                / (values.len() - 1) as f64
        })
        .sum();
    let all: Vec<f64> = paired.iter().flat_map(|values| values.iter().copied()).collect();
    let mut expected = 0.0;
    let mut values: Vec<(f64, f64)> = Vec::new();
    for value in all {
        match values.iter_mut().find(|(v, _)| *v == value) {
            Some((_, count)) => *count += 1.0,
            None => values.push((value, 1.0)),
        }
    }
    for (a, n_a) in &values {
        for (b, n_b) in &values {
            if a != b {
                expected += n_a * n_b * difference(*a, *b);
            }
        }
    }
    Some(if expected == 0.0 { 1.0 } else { 1.0 - (n - 1.0) * observed / expected })
}

/// The result of one comparison of two systems.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Number of the first system.
    pub first: usize,
    /// Number of the second.
    pub second: usize,
    /// 1 if the first won, 0 if the second, 0.5 for a tie.
    pub score: f64,
}

/// Mean of ratings, and points for which odds are ten to one, as in chess.
const MEAN: f64 = 1000.0;
const SCALE: f64 = 400.0;
/// Largest change of a logarithm of a strength at which the ratings are found, and most rounds.
const CONVERGED: f64 = 1e-12;
const ROUNDS: usize = 100_000;

/// Ratings of `systems` systems by the model of Bradley and Terry (1952), a tie being half a win for both, by the iteration of Hunter (2004): `p_i <- W_i / sum
/// n_ij / (p_i + p_j)`. Their mean is 1000, and 400 points are odds of ten to one. None for a system that has won, or lost, all its comparisons with a group
/// that it is not otherwise joined to: then no finite ratings are best.
pub fn bradley_terry(systems: usize, comparisons: &[Comparison]) -> Option<Vec<f64>> {
    let mut wins = vec![vec![0.0; systems]; systems];
    for one in comparisons {
        *wins.get_mut(one.first)?.get_mut(one.second)? += one.score;
        *wins.get_mut(one.second)?.get_mut(one.first)? += 1.0 - one.score;
    }
    if !strongly_connected(&wins) {
        return None;
    }
    let mut strength = vec![1.0f64; systems];
    for _ in 0..ROUNDS {
        let next: Vec<f64> = (0..systems)
            .map(|i| {
                let won: f64 = wins[i].iter().sum();
                let of = |j: usize| (wins[i][j] + wins[j][i]) / (strength[i] + strength[j]);
                won / (0..systems).filter(|j| *j != i).map(of).sum::<f64>()
            })
            .collect();
        let mean = next.iter().map(|p| p.ln()).sum::<f64>() / systems as f64;
        let next: Vec<f64> = next.iter().map(|p| (p.ln() - mean).exp()).collect();
        let moved = next.iter().zip(&strength).map(|(a, b)| (a / b).ln().abs()).fold(0.0, f64::max);
        strength = next;
        if moved < CONVERGED {
            break;
        }
    }
    Some(strength.iter().map(|p| MEAN + SCALE * p.log10()).collect())
}

/// Whether each system has beaten each other one, at least through others (Ford 1957).
fn strongly_connected(wins: &[Vec<f64>]) -> bool {
    let reaches_all = |beats: &dyn Fn(usize, usize) -> bool| {
        let (mut seen, mut open) = (vec![false; wins.len()], vec![0]);
        while let Some(i) = open.pop() {
            if !std::mem::replace(&mut seen[i], true) {
                open.extend((0..wins.len()).filter(|j| beats(i, *j)));
            }
        }
        seen.iter().all(|seen| *seen)
    };
    !wins.is_empty() && reaches_all(&|i, j| wins[i][j] > 0.0) && reaches_all(&|i, j| wins[j][i] > 0.0)
}

/// Ratings by Elo's update (1978) in the order of the comparisons, from 1000, with the step `k` (4 for many comparisons).
pub fn elo(systems: usize, comparisons: &[Comparison], k: f64) -> Vec<f64> {
    let mut ratings = vec![MEAN; systems];
    for one in comparisons {
        if one.first.max(one.second) < systems {
            let expected = 1.0 / (1.0 + 10f64.powf((ratings[one.second] - ratings[one.first]) / SCALE));
            let change = k * (one.score - expected);
            ratings[one.first] += change;
            ratings[one.second] -= change;
        }
    }
    ratings
}

/// A sentence for HUSE.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedSentence {
    /// Mean judgement of annotators.
    pub judgement: f64,
    /// Logarithm of the model's probability for each token.
    pub log_probability: f64,
    /// Whether the model wrote it, and no human.
    pub model: bool,
}

/// Human unified with statistical evaluation (Hashimoto et al. 2019).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Huse {
    /// Twice the error of the best classifier that sees judgement and probability; 1 if it cannot tell model and human.
    pub huse: f64,
    /// Quality: the same of a classifier that sees the judgement alone.
    pub quality: f64,
    /// Diversity: `1 + HUSE - quality`.
    pub diversity: f64,
}

/// Place in the order of the others, from 0, whose distance bounds the neighbours that vote.
const NEIGHBOURS: usize = 15;

/// HUSE by the leave-one-out error of nearest neighbours: of the other sentences all vote that are no farther than the 16th nearest, and a tie counts as
/// human. Both features are divided by their standard deviation over all sentences. None with fewer than 17 sentences, or a feature that is constant.
pub fn huse(sentences: &[JudgedSentence]) -> Option<Huse> {
    let scaled = |of: fn(&JudgedSentence) -> f64| {
        let n = sentences.len() as f64;
        let mean = sentences.iter().map(of).sum::<f64>() / n;
        let deviation = (sentences.iter().map(|s| (of(s) - mean).powi(2)).sum::<f64>() / n).sqrt();
        (deviation > 0.0).then(|| sentences.iter().map(|s| of(s) / deviation).collect::<Vec<f64>>())
    };
    let (judgement, probability) = (scaled(|s| s.judgement)?, scaled(|s| s.log_probability)?);
    let error = |features: &[&[f64]]| {
        let mut wrong = 0;
        for (i, sentence) in sentences.iter().enumerate() {
            let distance = |j: usize| features.iter().map(|f| (f[i] - f[j]).powi(2)).sum::<f64>();
            let others: Vec<(f64, bool)> =
                (0..sentences.len()).filter(|j| *j != i).map(|j| (distance(j), sentences[j].model)).collect();
            let mut sorted: Vec<f64> = others.iter().map(|(d, _)| *d).collect();
            sorted.sort_by(f64::total_cmp);
            let cut = *sorted.get(NEIGHBOURS)?;
            let votes = others.iter().filter(|(d, _)| *d <= cut);
            let (mut model, mut human) = (0, 0);
            for (_, by_model) in votes {
                if *by_model { model += 1 } else { human += 1 }
            }
            wrong += usize::from((model > human) != sentence.model);
        }
        Some(2.0 * wrong as f64 / sentences.len() as f64)
    };
    let (huse, quality) = (error(&[&judgement, &probability])?, error(&[&judgement])?);
    Some(Huse { huse, quality, diversity: 1.0 + huse - quality })
}

//! Log-probabilities of tokens: `ln p(t) = l_t - ln sum_j exp l_j`, over the whole vocabulary of the model, in f64.

/// How probable a token was.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScore {
    /// The token.
    pub id: u32,
    /// Its log-probability in nats; `None` for a first token, which follows nothing.
    pub logprob: Option<f64>,
    /// The most probable tokens in its place with their log-probabilities, the most probable first.
    pub top: Vec<(u32, f64)>,
}

impl TokenScore {
    /// The score of `id` by the logits of its place, with the `top` most probable of the first `known` tokens.
    pub fn of(logits: &[f32], id: u32, top: usize, known: usize) -> TokenScore {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from(l - largest).exp()).sum();
        let log_sum = f64::from(largest) + sum.ln();
        let logprob = |id: u32| f64::from(logits[id as usize]) - log_sum;
        let mut best: Vec<u32> = Vec::with_capacity(top + 1);
        for candidate in 0..known.min(logits.len()) as u32 {
            // Larger logits first, lower tokens first among equals.
            let after = |other: &u32| logits[*other as usize] >= logits[candidate as usize];
            let at = best.iter().rposition(after).map_or(0, |at| at + 1);
            if at < top {
                best.insert(at, candidate);
                best.truncate(top);
            }
        }
        let score = (id as usize) < logits.len();
        TokenScore {
            id,
            logprob: score.then(|| logprob(id)),
            top: best.into_iter().map(|id| (id, logprob(id))).collect(),
        }
    }

    /// The score of a first token.
    pub fn first(id: u32) -> TokenScore {
        TokenScore { id, logprob: None, top: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_the_best_come_first() {
        let logits = [1.0, 3.0, -2.0, 3.0, 0.5];
        let scores: Vec<f64> = (0..5).filter_map(|id| TokenScore::of(&logits, id, 0, 5).logprob).collect();
        assert!((scores.iter().map(|s| s.exp()).sum::<f64>() - 1.0).abs() < 1e-12);
        let score = TokenScore::of(&logits, 4, 3, 5);
        assert_eq!(score.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 0]);
        assert_eq!(score.top[0].1.to_bits(), scores[1].to_bits());
        assert_eq!(score.logprob.map(f64::to_bits), Some(scores[4].to_bits()));
        // Rows that only round the vocabulary up are in the sum and not among the best.
        let score = TokenScore::of(&logits, 0, 9, 2);
        assert_eq!(score.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(score.logprob.map(f64::to_bits), Some(scores[0].to_bits()));
        let far = TokenScore::of(&[1e4, -1e4], 1, 1, 2);
        assert_eq!((far.logprob, far.top[0].1), (Some(-2e4), 0.0));
        assert_eq!(TokenScore::first(3), TokenScore { id: 3, logprob: None, top: vec![] });
    }
}

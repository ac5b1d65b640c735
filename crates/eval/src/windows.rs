//! Which targets are scored with which context: as pure functions.
//!
//! - [`rolling`]: the rolling windows of the EleutherAI lm-evaluation-harness, for one sequence at a time. Each window
//!   after the first keeps `context` tokens of history before its first target, so a small step gives every target a
//!   long context at a higher price. The perplexity of a page as the field reports it. With n tokens and windows of M it
//!   costs about n M / (M - context + 1) inputs.
//! - [`Spread`]: which of the windows of a split are evaluated during training. Those windows are cut by
//!   [`bessemer_loader::EvaluationWindows`], as a model sees them in training: they share no target and cost n inputs.

/// One window over tokens `x` with one prefix token before them: `input` is what the model reads, of which the last
/// `targets.len()` positions are scored.
///
/// Input positions count from the prefix: 0 is the prefix token, i + 1 is `x[i]`. Targets count from `x[0]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollingWindow {
    /// Positions in the sequence with its prefix.
    pub input: std::ops::Range<u64>,
    /// Positions in `x`.
    pub targets: std::ops::Range<u64>,
}

/// The rolling windows over `n` tokens for a model that reads at most `max_len` tokens and is to have at least `context`
/// tokens before each target but those of the first window.
///
/// The first window predicts `x[..min(max_len, n)]` from the prefix; each further one the next
/// `k = min(n - done, max_len - context + 1)` tokens, ending at `e = done + k`, from `x[e - max_len - 1 .. e - 1]`.
///
/// # Errors
/// A sentence naming the value unless `1 <= context <= max_len`.
pub fn rolling(n: u64, max_len: u64, context: u64) -> Result<impl Iterator<Item = RollingWindow>, String> {
    if max_len == 0 || context == 0 || context > max_len {
        return Err(format!(
            "rolling windows: wanted 1 <= context <= window, found context {context} and window {max_len}"
        ));
    }
    let mut done = 0;
    Ok(std::iter::from_fn(move || {
        if done == n {
            return None;
        }
        let step = if done == 0 { max_len } else { max_len - context + 1 };
        let end = done + step.min(n - done);
        // Positions of the input count the prefix, so they are one ahead of those of the targets.
        let window = RollingWindow { input: end.saturating_sub(max_len)..end, targets: done..end };
        done = end;
        Some(window)
    }))
}

/// Which of `all` windows are evaluated when not all are wanted: `taken` of them, evenly spread. The same ones for the
/// same numbers, so that evaluations of one run can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    all: u64,
    taken: u64,
}

impl Spread {
    /// As many of `all` windows of `window` targets as hold at most `max_targets`, at least one; all of them without a
    /// bound.
    pub fn new(all: u64, window: u64, max_targets: Option<u64>) -> Spread {
        let taken = max_targets.map_or(all, |max| (max / window.max(1)).max(1).min(all));
        Spread { all, taken }
    }

    /// Windows taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Windows that there are.
    pub fn all(&self) -> u64 {
        self.all
    }

    /// The `i`-th window taken: floor(i all / taken).
    pub fn get(&self, i: u64) -> Option<u64> {
        (i < self.taken).then(|| (u128::from(i) * u128::from(self.all) / u128::from(self.taken)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: i64 = -100;

    /// (inputs, targets) as lists of tokens, for x = 0, 1, 2, ...
    fn lists(n: u64, max_len: u64, context: u64) -> Vec<(Vec<i64>, Vec<i64>)> {
        let token = |p: u64| if p == 0 { PREFIX } else { p as i64 - 1 };
        rolling(n, max_len, context)
            .unwrap()
            .map(|w| (w.input.map(token).collect(), w.targets.map(|t| t as i64).collect()))
            .collect()
    }

    fn range(first: i64, last: i64) -> Vec<i64> {
        (first..=last).collect()
    }

    fn with_prefix(last: i64) -> Vec<i64> {
        [vec![PREFIX], range(0, last)].concat()
    }

    /// Gold lists of lm-evaluation-harness' tests of `get_rolling_token_windows`.
    #[test]
    fn rolling_windows_are_those_of_the_harness() {
        assert_eq!(
            lists(34, 10, 1),
            [
                (with_prefix(8), range(0, 9)),
                (range(9, 18), range(10, 19)),
                (range(19, 28), range(20, 29)),
                (range(23, 32), range(30, 33)),
            ]
        );
        let mut gold = vec![(with_prefix(8), range(0, 9))];
        gold.extend((0..8).map(|i| (range(2 + 3 * i, 11 + 3 * i), range(10 + 3 * i, 12 + 3 * i))));
        assert_eq!(gold.last().unwrap(), &(range(23, 32), range(31, 33)));
        assert_eq!(lists(34, 10, 8), gold);
        assert_eq!(
            lists(9, 2, 1),
            [
                (with_prefix(0), range(0, 1)),
                (range(1, 2), range(2, 3)),
                (range(3, 4), range(4, 5)),
                (range(5, 6), range(6, 7)),
                (range(6, 7), range(8, 8)),
            ]
        );
        assert_eq!(lists(0, 10, 1), []);
    }

    #[test]
    fn rolling_windows_score_every_target_once_with_its_own_predecessor() {
        for n in 0..40 {
            for max_len in 1..12 {
                for context in 1..=max_len {
                    let mut scored = Vec::new();
                    for (i, w) in rolling(n, max_len, context).unwrap().enumerate() {
                        let (inputs, targets) =
                            (w.input.end - w.input.start, w.targets.end - w.targets.start);
                        assert!(inputs <= max_len && targets <= inputs && targets > 0);
                        // The input ends one token before the last target: at the same number, one ahead.
                        assert_eq!(w.input.end, w.targets.end);
                        assert!(i == 0 || inputs - targets + 1 >= context, "context of the first target");
                        scored.extend(w.targets);
                    }
                    assert_eq!(scored, (0..n).collect::<Vec<_>>());
                }
            }
        }
        assert!(rolling(3, 4, 5).is_err() && rolling(3, 4, 0).is_err() && rolling(3, 0, 0).is_err());
    }

    #[test]
    fn a_bound_takes_evenly_spread_windows_within_it() {
        for all in [0, 1, 2, 50, 101, 1000] {
            assert_eq!(Spread::new(all, 7, None), Spread { all, taken: all });
            for max in [0, 1, 7, 30, 99, 701, 5000, u64::MAX] {
                let spread = Spread::new(all, 7, Some(max));
                assert!(spread.taken() * 7 <= max.max(7) && spread.taken() >= all.min(1));
                let chosen: Vec<u64> = (0..).map_while(|i| spread.get(i)).collect();
                assert_eq!(chosen.len() as u64, spread.taken());
                assert!(chosen.iter().all(|&w| w < all) && chosen.first().is_none_or(|&w| w == 0));
                let gaps: Vec<u64> = chosen.windows(2).map(|p| p[1] - p[0]).collect();
                let (least, most) = (gaps.iter().min().unwrap_or(&1), gaps.iter().max().unwrap_or(&1));
                assert!(*least > 0 && most - least <= 1, "{gaps:?}");
            }
        }
        assert_eq!(Spread::new(u64::MAX, 1, Some(2)).get(1), Some(u64::MAX / 2));
    }
}

//! Which targets are scored with which context: windows over a token sequence, as pure functions.
//!
//! Two cuts, both of which score every target exactly once:
//!
//! - [`rolling`]: the rolling windows of the EleutherAI lm-evaluation-harness, for one sequence at a time. Each window
//!   after the first keeps `context` tokens of history before its first target, so a small step gives every target a
//!   long context at a higher price. The perplexity of a page as the field reports it.
//! - [`consecutive`]: windows that do not overlap, over a stream of documents, as a model sees it in training; the cheap
//!   form for evaluation during training.
//!
//! With n tokens and windows of M, rolling costs about n M / (M - context + 1) inputs, consecutive windows n.

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

/// One of the windows that [`consecutive`] cuts: it reads the tokens `start .. start + len` and predicts, for each, the
/// token after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First input token.
    pub start: u64,
    /// Inputs, and targets, of the window.
    pub len: u64,
}

/// How a stream of `tokens` tokens is cut into windows of at most `window` targets that share no target; and which of
/// them are taken when not all are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consecutive {
    tokens: u64,
    window: u64,
    taken: u64,
}

/// Cuts a stream of `tokens` tokens into windows of `window` targets; the last may be shorter. Every token but the very
/// first is the target of exactly one window. With a bound on the targets, as many whole windows as fit (at least one)
/// are taken, evenly spread over the stream: the same ones for the same arguments.
///
/// A `window` of 0 counts as 1.
pub fn consecutive(tokens: u64, window: u64, max_targets: Option<u64>) -> Consecutive {
    let window = window.max(1);
    let all = tokens.saturating_sub(1).div_ceil(window);
    let taken = match max_targets {
        Some(max) if max < tokens.saturating_sub(1) => (max / window).max(1).min(all),
        _ => all,
    };
    Consecutive { tokens, window, taken }
}

impl Consecutive {
    /// Windows of the whole stream.
    pub fn all(&self) -> u64 {
        self.tokens.saturating_sub(1).div_ceil(self.window)
    }

    /// Windows taken.
    pub fn len(&self) -> u64 {
        self.taken
    }

    /// True when there is nothing to score.
    pub fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// The `i`-th window taken.
    pub fn get(&self, i: u64) -> Option<Window> {
        if i >= self.taken {
            return None;
        }
        // Window floor(i * all / taken): all of them when all are taken, otherwise at even distances.
        let number = (u128::from(i) * u128::from(self.all()) / u128::from(self.taken)) as u64;
        let start = number * self.window;
        Some(Window { start, len: self.window.min(self.tokens - 1 - start) })
    }

    /// The windows taken, in order.
    pub fn iter(&self) -> impl Iterator<Item = Window> + '_ {
        (0..self.taken).filter_map(|i| self.get(i))
    }

    /// Targets in the windows taken.
    pub fn targets(&self) -> u64 {
        let whole = self.taken * self.window;
        match self.taken.checked_sub(1).and_then(|last| self.get(last)) {
            Some(last) => whole - (self.window - last.len),
            None => 0,
        }
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
    fn consecutive_windows_score_every_target_once() {
        for tokens in 0..60 {
            for window in 0..12 {
                let windows = consecutive(tokens, window, None);
                let targets: Vec<u64> =
                    windows.iter().flat_map(|w| (w.start..w.start + w.len).map(|t| t + 1)).collect();
                assert_eq!(targets, (1..tokens.max(1)).collect::<Vec<_>>(), "{tokens} {window}");
                assert_eq!(windows.targets(), targets.len() as u64);
            }
        }
    }

    #[test]
    fn a_bound_takes_evenly_spread_windows_within_it() {
        for tokens in [1, 2, 50, 101, 1000] {
            for max in [0, 1, 7, 30, 99, 100, 999, 5000] {
                let windows = consecutive(tokens, 7, Some(max));
                assert!(windows.targets() <= max.max(7), "{tokens} {max}");
                let starts: Vec<u64> = windows.iter().map(|w| w.start).collect();
                assert!(starts.windows(2).all(|p| p[0] < p[1]));
                let gaps: Vec<u64> = starts.windows(2).map(|p| p[1] - p[0]).collect();
                let (least, most) = (gaps.iter().min().unwrap_or(&7), gaps.iter().max().unwrap_or(&7));
                assert!(most - least <= 7, "{gaps:?}");
                if max + 1 >= tokens {
                    assert_eq!(windows, consecutive(tokens, 7, None));
                }
            }
        }
        assert_eq!(
            consecutive(u64::MAX, 1, Some(2)).iter().map(|w| w.start).collect::<Vec<_>>(),
            [0, u64::MAX / 2]
        );
    }
}

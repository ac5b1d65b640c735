//! Loss, perplexity and bits per byte of a model.
//!
//! ```text
//! nats           = - sum over targets of ln p(target | the tokens before it in its window)
//! loss           = nats / targets               perplexity = e^loss
//! bits per byte  = nats / ln 2 / bytes          bytes = sum of the targets' byte lengths
//! ```
//!
//! Where the split has a mask of scored tokens, targets are those that it scores, and bytes are theirs.
//!
//! Perplexity depends on the tokenizer; bits per byte do not. An end-of-text token is a target like any other and costs
//! nats, but stands for no byte: the same convention as that of the n-gram baseline ([`crate::kneser_ney`]).
//!
//! Losses are summed in f64, in the order of the targets, after the model gave them one by one. So the result does not
//! depend on how many windows go through the model at a time, as long as the model's own numbers do not.

use crate::error::EvalError;
use crate::windows::Spread;
use bessemer_loader::{BatchRequest, EvaluationWindows, IGNORED};
use bessemer_runtime::{Decoder, LossSum, TokenBatch};
use bessemer_shards::Component;
use bessemer_tensor::Backend;
use serde::{Deserialize, Serialize};

pub mod answers;
pub mod prepared;
pub mod rows;
pub mod shared;

use rows::{OneLength, rolling_rows, score_rows};

/// A model that returns the loss of every token of a batch of fixed shape.
pub trait TokenLosses {
    /// (sequences, tokens of a sequence) of a batch.
    fn shape(&self) -> (usize, usize);

    /// The loss in nats of each target `[sequences, tokens]`, 0 where it is [`IGNORED`].
    ///
    /// # Errors
    /// Errors of the model.
    fn token_losses(&mut self, inputs: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), EvalError>;

    /// Writes whether each target is the most probable token, the first among equals; false where it is [`IGNORED`]. Returns
    /// whether this model can tell that at all, by default not.
    ///
    /// # Errors
    /// Errors of the model.
    fn greedy(&mut self, inputs: &[u32], targets: &[u32], greedy: &mut [bool]) -> Result<bool, EvalError> {
        let _ = (inputs, targets, greedy);
        Ok(false)
    }
}

impl<T: TokenLosses + ?Sized> TokenLosses for &mut T {
    fn shape(&self) -> (usize, usize) {
        (**self).shape()
    }

    fn token_losses(&mut self, inputs: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), EvalError> {
        (**self).token_losses(inputs, targets, losses)
    }

    fn greedy(&mut self, inputs: &[u32], targets: &[u32], greedy: &mut [bool]) -> Result<bool, EvalError> {
        (**self).greedy(inputs, targets, greedy)
    }
}

/// A [`Decoder`] on its device. Positions count from 0 in every window.
pub struct DecoderLosses<'a> {
    /// The model.
    pub decoder: &'a mut Decoder,
    /// Its device.
    pub backend: &'a mut dyn Backend,
}

impl TokenLosses for DecoderLosses<'_> {
    fn shape(&self) -> (usize, usize) {
        let shape = self.decoder.shape();
        (shape.sequences, shape.seq)
    }

    fn token_losses(&mut self, inputs: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), EvalError> {
        let batch = TokenBatch { ids: inputs, targets, positions: None };
        self.decoder.loss(&mut *self.backend, &batch, Some(losses))?;
        Ok(())
    }

    fn greedy(&mut self, inputs: &[u32], targets: &[u32], greedy: &mut [bool]) -> Result<bool, EvalError> {
        let batch = TokenBatch { ids: inputs, targets, positions: None };
        self.decoder.logits(&mut *self.backend, &batch, |row, logits| {
            let target = targets[row];
            greedy[row] = target != IGNORED
                && logits.get(target as usize).is_some_and(|wanted| {
                    let at = target as usize;
                    logits[..at].iter().all(|logit| logit < wanted)
                        && logits[at..].iter().all(|logit| logit <= wanted)
                });
        })?;
        Ok(true)
    }
}

/// How well a model predicts a text.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EvalReport {
    /// Targets that were scored; at least one.
    pub tokens: u64,
    /// Bytes of text that they stand for.
    pub bytes: u64,
    /// Sum of their losses. Not finite when the model's numbers are not.
    pub nats: f64,
    /// Nats per target.
    pub loss: f64,
    /// e to the loss: of a token, so it can only be compared between models with one tokenizer.
    pub perplexity: f64,
    /// Bits per byte of text, ends of text included; NaN without a byte.
    pub bits_per_byte: f64,
    /// Windows that were scored.
    pub windows: u64,
    /// Windows of the whole split.
    pub windows_in_split: u64,
}

impl EvalReport {
    /// Whether the whole split was scored.
    pub fn is_complete(&self) -> bool {
        self.windows == self.windows_in_split
    }

    fn close(mut self) -> EvalReport {
        self.loss = self.nats / self.tokens as f64;
        self.perplexity = self.loss.exp();
        self.bits_per_byte = self.nats / std::f64::consts::LN_2 / self.bytes as f64;
        self
    }
}

/// A window that a model scored.
#[derive(Debug, Clone, Copy)]
pub struct ScoredWindow<'a> {
    /// Its number in the split.
    pub window: u64,
    /// The targets, with [`IGNORED`] where a mask does not score one. Those that fill up the last window are left out.
    pub targets: &'a [u32],
    /// The loss of each in nats; 0 where it is [`IGNORED`].
    pub losses: &'a [f32],
}

/// Scores a split, or with `max_tokens` a part of it: as many whole windows as fit, at least one, evenly spread and the
/// same ones each time. `byte_lengths[t]` is the number of bytes that token t stands for (0 for special tokens).
/// `progress` is called with (windows done, windows to do).
///
/// # Errors
/// [`EvalError::SequenceLength`], [`EvalError::ByteLength`], [`EvalError::NothingScored`], and what shards and model answer.
pub fn score(
    model: &mut dyn TokenLosses,
    windows: &EvaluationWindows,
    byte_lengths: &[u32],
    max_tokens: Option<u64>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<EvalReport, EvalError> {
    Ok(score_components(model, windows, byte_lengths, max_tokens, progress)?.0)
}

/// As [`score`], and beside it the same for each component of the split that had a target among those scored, in the order
/// of the split. A component's windows are those of the whole split that hold
/// its targets.
///
/// # Errors
/// As there.
pub fn score_components(
    model: &mut dyn TokenLosses,
    windows: &EvaluationWindows,
    byte_lengths: &[u32],
    max_tokens: Option<u64>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(EvalReport, Vec<(String, EvalReport)>), EvalError> {
    let spread = Spread::new(windows.windows(), windows.seq_len() as u64, max_tokens);
    let mut report =
        EvalReport { windows: spread.taken(), windows_in_split: spread.all(), ..EvalReport::default() };
    let components = windows.shards().components();
    let mut parts = vec![EvalReport::default(); components.len()];
    let mut done = 0;
    score_windows(model, windows, spread, &mut |window| {
        let first = windows.target_of(window.window);
        let mut at = components.partition_point(|component| component.tokens.end <= first);
        let mut counted = usize::MAX;
        for (i, (&target, &loss)) in window.targets.iter().zip(window.losses).enumerate() {
            if target == IGNORED {
                continue;
            }
            let Some(&bytes) = byte_lengths.get(target as usize) else {
                return Err(EvalError::ByteLength { token: target, known: byte_lengths.len() });
            };
            report.bytes += u64::from(bytes);
            report.nats += f64::from(loss);
            report.tokens += 1;
            while components.get(at).is_some_and(|component| component.tokens.end <= first + i as u64) {
                at += 1;
            }
            if let Some(part) = parts.get_mut(at) {
                part.bytes += u64::from(bytes);
                part.nats += f64::from(loss);
                part.tokens += 1;
                part.windows += u64::from(counted != at);
                counted = at;
            }
        }
        done += 1;
        progress(done, spread.taken());
        Ok(())
    })?;
    if report.tokens == 0 {
        return Err(nothing_scored(windows, spread));
    }
    let seq_len = windows.seq_len() as u64;
    let part = |(component, part): (&Component, EvalReport)| {
        let tokens = component.tokens.start.saturating_sub(windows.target_of(0))
            ..component.tokens.end.saturating_sub(windows.target_of(0));
        let all = tokens.end.div_ceil(seq_len) - tokens.start / seq_len;
        (component.name.clone(), EvalReport { windows_in_split: all, ..part }.close())
    };
    let parts = components.iter().zip(parts).filter(|(_, part)| part.tokens > 0).map(part).collect();
    Ok((report.close(), parts))
}

/// Refuses an evaluation of at most `max_tokens` tokens in whose windows no target is scored, before it is made.
///
/// # Errors
/// [`EvalError::NothingScored`], and what shards answer.
pub fn check_scored(windows: &EvaluationWindows, max_tokens: Option<u64>) -> Result<(), EvalError> {
    let spread = Spread::new(windows.windows(), windows.seq_len() as u64, max_tokens);
    for window in (0..spread.taken()).filter_map(|i| spread.get(i)) {
        if windows.count_scored(window)? > 0 {
            return Ok(());
        }
    }
    Err(nothing_scored(windows, spread))
}

fn nothing_scored(windows: &EvaluationWindows, spread: Spread) -> EvalError {
    let split = windows.shards().split().into();
    EvalError::NothingScored { split, windows: spread.taken(), all: spread.all() }
}

/// Scores the windows of `spread` and shows each to `visit`, in order.
///
/// # Errors
/// [`EvalError::SequenceLength`], what shards and model answer, and what `visit` returns.
pub fn score_windows(
    model: &mut dyn TokenLosses,
    windows: &EvaluationWindows,
    spread: Spread,
    visit: &mut dyn FnMut(ScoredWindow<'_>) -> Result<(), EvalError>,
) -> Result<(), EvalError> {
    let (sequences, seq) = model.shape();
    if windows.seq_len() != seq {
        return Err(EvalError::SequenceLength { windows: windows.seq_len(), model: seq });
    }
    let chosen = (0..spread.taken()).filter_map(move |i| spread.get(i));
    let mut rows = windows.prefetcher(chosen.clone())?;
    let mut inputs = vec![0; sequences * seq];
    let mut targets = vec![IGNORED; sequences * seq];
    let mut losses = vec![0.0; sequences * seq];
    let mut chosen = chosen;
    let mut numbers = Vec::with_capacity(sequences);
    loop {
        numbers.clear();
        numbers.extend(chosen.by_ref().take(sequences));
        if numbers.is_empty() {
            return Ok(());
        }
        // Sequences past the last window are not scored.
        targets.fill(IGNORED);
        for (i, &number) in numbers.iter().enumerate() {
            let row = rows.get(BatchRequest { first: number, sequences: 1 })?;
            inputs[i * seq..(i + 1) * seq].copy_from_slice(&row.inputs);
            targets[i * seq..(i + 1) * seq].copy_from_slice(&row.targets);
        }
        model.token_losses(&inputs, &targets, &mut losses)?;
        for (i, &window) in numbers.iter().enumerate() {
            let (targets, losses) = (&targets[i * seq..(i + 1) * seq], &losses[i * seq..(i + 1) * seq]);
            // Ignored targets fill up the last window from behind.
            let left = windows.shards().token_count() - windows.target_of(window);
            let exist = (seq as u64).min(left) as usize;
            visit(ScoredWindow { window, targets: &targets[..exist], losses: &losses[..exist] })?;
        }
    }
}

/// Scores one sequence by itself through rolling windows as long as the model's batches: `prefix` (an end-of-text token)
/// stands before it, and every target after the first window has at least `context` tokens of history.
///
/// # Errors
/// [`EvalError::Windows`] unless 1 <= `context` <= the model's sequence length; what the model answers.
pub fn score_rolling(
    model: &mut dyn TokenLosses,
    prefix: u32,
    tokens: &[u32],
    context: u64,
) -> Result<LossSum, EvalError> {
    let rows: Vec<_> = rolling_rows(prefix, tokens, model.shape().1 as u64, context)?.collect();
    let scores = score_rows(&mut OneLength(model), &rows, false, &mut |_, _| ())?;
    let nats = scores.iter().map(|row| -row.log_likelihood).sum();
    Ok(LossSum { nats, scored: tokens.len() as u64, ..LossSum::default() })
}

#[cfg(test)]
mod tests;

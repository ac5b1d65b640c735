//! Log-likelihoods of parts of texts: rows of tokens of which the last ones are scored, given those before them.
//!
//! Rows go through the model in batches, each row in a sequence by itself, filled up behind. The length of the sequence is a function of the row's own
//! length, and what a sequence gives does not depend on its neighbours, so **a row's bits depend neither on the batch size nor on the order**. Losses are
//! summed in f64, in the order of the targets.

use crate::error::EvalError;
use crate::score::shared::{Grouped, PrefixModel, score_groups};
use crate::score::{DecoderLosses, TokenLosses};
use crate::windows::{RollingWindow, rolling};
use bessemer_loader::IGNORED;
use bessemer_runtime::{Decoder, PrefixCache, Purpose, Shape};
use bessemer_tensor::Backend;
use std::collections::BTreeMap;

/// Tokens of which the last `scored` are predicted, each from those before it in the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The tokens: at least one more than are scored.
    pub tokens: Vec<u32>,
    /// How many of them are scored.
    pub scored: usize,
}

/// The score of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowScore {
    /// Natural logarithm of the probability of the scored tokens.
    pub log_likelihood: f64,
    /// Whether each of them is the most probable one; None if nobody asked, or the model cannot tell.
    pub greedy: Option<bool>,
}

/// Models for sequences of several lengths that share their parameters.
pub trait RowModel {
    /// Tokens of the longest input.
    fn longest(&self) -> usize;

    /// Length of the sequences that inputs of `len` tokens go through in; at least `len`, and a function of it alone.
    fn length_for(&self, len: usize) -> usize;

    /// The model for batches of sequences of such a length.
    ///
    /// # Errors
    /// Errors of the device.
    fn at_length(&mut self, length: usize) -> Result<Box<dyn TokenLosses + '_>, EvalError>;

    /// The model for rows with common beginnings, if it has one that gives them the same bits. None by default.
    fn prefixes(&mut self) -> Option<&mut dyn PrefixModel> {
        None
    }
}

/// A model whose batches have one shape.
pub struct OneLength<'a>(pub &'a mut dyn TokenLosses);

impl RowModel for OneLength<'_> {
    fn longest(&self) -> usize {
        self.0.shape().1
    }

    fn length_for(&self, _: usize) -> usize {
        self.longest()
    }

    fn at_length(&mut self, _: usize) -> Result<Box<dyn TokenLosses + '_>, EvalError> {
        Ok(Box::new(&mut *self.0))
    }
}

/// Shortest sequences that rows are filled up to.
const SHORTEST: usize = 16;

/// Decoders for sequences of 16, 32, 64, ... tokens and of the model's context, over the parameters of one of them. Each is made when the first row needs
/// it, with activations for a batch of about as many tokens as the first has.
///
/// Common beginnings of rows go through once, in caches of 16, 32, 64, ... tokens for each sequence and about as many for all as the first decoder's batch has;
/// not of a model whose attention stays within documents.
pub struct LengthDecoders<'a> {
    backend: &'a mut dyn Backend,
    longest: Decoder,
    others: BTreeMap<usize, Decoder>,
    shares: bool,
    /// By tokens of a sequence.
    caches: BTreeMap<usize, PrefixCache>,
    /// By tokens of a sequence and of a pass.
    behind: BTreeMap<(usize, usize), Decoder>,
}

impl<'a> LengthDecoders<'a> {
    /// Decoders beside one for the longest sequences, which was made to score.
    pub fn new(backend: &'a mut dyn Backend, longest: Decoder) -> LengthDecoders<'a> {
        let shares = longest.model().document_end.is_none();
        let (others, caches, behind) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        LengthDecoders { backend, longest, others, shares, caches, behind }
    }

    /// Every row goes through as a whole, common beginnings too: for measurements, the numbers are the same.
    #[must_use]
    pub fn whole_rows(mut self) -> LengthDecoders<'a> {
        self.shares = false;
        self
    }

    /// The decoder for the longest sequences, whose parameters all have, and the device.
    pub fn parts(&mut self) -> (&Decoder, &mut dyn Backend) {
        (&self.longest, self.backend)
    }
}

impl RowModel for LengthDecoders<'_> {
    fn longest(&self) -> usize {
        self.longest.shape().seq
    }

    fn length_for(&self, len: usize) -> usize {
        len.max(SHORTEST).next_power_of_two().min(self.longest())
    }

    fn at_length(&mut self, length: usize) -> Result<Box<dyn TokenLosses + '_>, EvalError> {
        let Shape { sequences, seq, .. } = self.longest.shape();
        if length != seq && !self.others.contains_key(&length) {
            let shape =
                Shape { sequences: sequences * (seq / length).max(1), seq: length, purpose: Purpose::Score };
            let made = self.longest.reshaped(self.backend, shape)?;
            self.others.insert(length, made);
        }
        let decoder = self.others.get_mut(&length).unwrap_or(&mut self.longest);
        Ok(Box::new(DecoderLosses { decoder, backend: self.backend }))
    }

    fn prefixes(&mut self) -> Option<&mut dyn PrefixModel> {
        if self.shares { Some(self) } else { None }
    }
}

impl PrefixModel for LengthDecoders<'_> {
    fn sequences(&self, capacity: usize) -> usize {
        (self.longest.shape().tokens() / capacity).max(1)
    }

    fn behind(
        &mut self,
        capacity: usize,
        past: usize,
        length: usize,
    ) -> Result<Box<dyn TokenLosses + '_>, EvalError> {
        let key = (capacity, length);
        if !self.behind.contains_key(&key) {
            let (sequences, model) = (self.sequences(capacity), self.longest.model());
            if !self.caches.contains_key(&capacity) {
                let cache = PrefixCache::new(self.backend, model, sequences, capacity)?;
                self.caches.insert(capacity, cache);
            }
            let shape = Shape { sequences, seq: length, purpose: Purpose::Score };
            let made = self.longest.after_prefix(self.backend, shape, &self.caches[&capacity])?;
            self.behind.insert(key, made);
        }
        let decoder = self.behind.get_mut(&key).unwrap_or(&mut self.longest);
        decoder.set_past(past)?;
        Ok(Box::new(DecoderLosses { decoder, backend: self.backend }))
    }
}

/// Scores rows; `greedy` asks for the most probable tokens as well, at the price of a second pass. `progress` is called with (rows done, rows).
///
/// # Errors
/// [`EvalError::Request`] for a row without a token to score, without one before these, or longer than the model's context; what the model answers.
pub fn score_rows(
    model: &mut dyn RowModel,
    rows: &[Row],
    greedy: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<RowScore>, EvalError> {
    for (i, row) in rows.iter().enumerate() {
        let input = row.tokens.len().saturating_sub(1);
        if row.scored == 0 || row.scored > input || input > model.longest() {
            return Err(EvalError::Request(format!(
                "row {i}: wanted a token to score, one before it, and at most {} of input; found {} tokens, {} of them scored",
                model.longest(),
                row.tokens.len(),
                row.scored
            )));
        }
    }
    let mut scores = vec![RowScore { log_likelihood: 0.0, greedy: None }; rows.len()];
    let mut done = 0;
    let single = score_shared(model, rows, greedy, &mut scores, &mut |more| {
        done += more;
        progress(done, rows.len() as u64);
    })?;
    let mut by_length: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for number in single {
        by_length.entry(model.length_for(rows[number].tokens.len() - 1)).or_default().push(number);
    }
    // The longest first: what is left to do is then never more than it seems.
    for (&length, numbers) in by_length.iter().rev() {
        let mut model = model.at_length(length)?;
        let (sequences, seq) = model.shape();
        let (mut inputs, mut targets) = (vec![0; sequences * seq], vec![IGNORED; sequences * seq]);
        let (mut losses, mut first) = (vec![0.0; sequences * seq], vec![false; sequences * seq]);
        for numbers in numbers.chunks(sequences) {
            inputs.fill(0);
            targets.fill(IGNORED);
            for (&number, at) in numbers.iter().zip((0..).step_by(seq)) {
                let Row { tokens, scored } = &rows[number];
                let input = tokens.len() - 1;
                inputs[at..at + input].copy_from_slice(&tokens[..input]);
                targets[at + input - scored..at + input].copy_from_slice(&tokens[tokens.len() - scored..]);
            }
            model.token_losses(&inputs, &targets, &mut losses)?;
            let known = greedy && model.greedy(&inputs, &targets, &mut first)?;
            for (&number, at) in numbers.iter().zip((0..).step_by(seq)) {
                let input = rows[number].tokens.len() - 1;
                let scored = at + input - rows[number].scored..at + input;
                let nats: f64 = losses[scored.clone()].iter().map(|loss| f64::from(*loss)).sum();
                scores[number] = RowScore {
                    log_likelihood: -nats,
                    greedy: known.then(|| first[scored].iter().all(|first| *first)),
                };
            }
            done += numbers.len() as u64;
            progress(done, rows.len() as u64);
        }
    }
    Ok(scores)
}

/// Scores the rows whose beginnings the model can share and that share one; returns the numbers of the others.
fn score_shared(
    model: &mut dyn RowModel,
    rows: &[Row],
    greedy: bool,
    scores: &mut [RowScore],
    done: &mut dyn FnMut(u64),
) -> Result<Vec<usize>, EvalError> {
    let longest = model.longest();
    if model.prefixes().is_none() {
        return Ok((0..rows.len()).collect());
    }
    let grouped = Grouped::new(rows, longest, &|len| model.length_for(len));
    let capacity = grouped.capacity(rows).max(SHORTEST).next_power_of_two().min(longest);
    let sequences = model.prefixes().map_or(1, |prefixes| prefixes.sequences(capacity));
    let grouped = grouped.or_single(rows, sequences, &|len| model.length_for(len));
    if let Some(prefixes) = model.prefixes().filter(|_| !grouped.groups.is_empty()) {
        score_groups(prefixes, (&grouped.groups, capacity), rows, greedy, scores, done)?;
    }
    Ok(grouped.single)
}

/// The rows of one text by itself in rolling windows ([`rolling`]): `prefix` stands before it, and every target after the first window has at least
/// `context` tokens of history.
///
/// # Errors
/// [`EvalError::Windows`] unless 1 <= `context` <= `longest`.
pub fn rolling_rows(
    prefix: u32,
    tokens: &[u32],
    longest: u64,
    context: u64,
) -> Result<impl Iterator<Item = Row> + '_, EvalError> {
    let windows = rolling(tokens.len() as u64, longest, context).map_err(EvalError::Windows)?;
    Ok(windows.map(move |RollingWindow { input, targets }| {
        let before = input.start.checked_sub(1).map_or(prefix, |i| tokens[i as usize]);
        let rest = &tokens[input.start as usize..targets.end as usize];
        Row {
            tokens: std::iter::once(before).chain(rest.iter().copied()).collect(),
            scored: (targets.end - targets.start) as usize,
        }
    }))
}

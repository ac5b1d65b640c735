//! Rows with a common beginning, which goes through the model once: the choices of a question share it, and so do questions behind the
//! same examples.
//!
//! Rows that follow each other form a group as long as that saves tokens. A batch holds the beginnings of many groups; then the rest
//! of one row of each goes through after them, then the next. A row has the bits that it has by itself
//! ([`bessemer_runtime::PrefixCache`]).

use crate::error::EvalError;
use crate::score::TokenLosses;
use crate::score::rows::{Row, RowScore};
use bessemer_loader::IGNORED;
use bessemer_runtime::MIN_PASS_ROWS;

/// Model that scores batches of sequences with a shared prefix, whose keys and values are in a cache.
pub trait PrefixModel {
    /// Sequences of a batch whose caches hold `capacity` tokens each.
    fn sequences(&self, capacity: usize) -> usize;

    /// The model for the `length` tokens behind the first `past` of each sequence. What it is given stays in the caches.
    ///
    /// # Errors
    /// Errors of the device.
    fn behind(
        &mut self,
        capacity: usize,
        past: usize,
        length: usize,
    ) -> Result<Box<dyn TokenLosses + '_>, EvalError>;
}

/// Tokens of a row that go through the model.
fn input(row: &Row) -> usize {
    row.tokens.len() - 1
}

/// Whole passes for so many tokens.
fn filled_up(tokens: usize) -> usize {
    tokens.next_multiple_of(MIN_PASS_ROWS)
}

/// Rows with a common beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Tokens that all rows share and that stand before their scored ones, in whole passes.
    past: usize,
    /// Numbers of the rows.
    rows: Vec<usize>,
}

impl Group {
    /// Tokens that go through the model for the group.
    fn cost(&self, rows: &[Row]) -> usize {
        let rest = |&i: &usize| filled_up(input(&rows[i]) - self.past);
        self.past + self.rows.iter().map(rest).sum::<usize>()
    }

    /// The group with one more row, if they share a beginning.
    fn with(&self, number: usize, rows: &[Row]) -> Option<Group> {
        let (first, row) = (&rows[self.rows[0]], &rows[number]);
        let alike = first.tokens.iter().zip(&row.tokens).take_while(|(a, b)| a == b).count();
        let before_scored = |row: &Row| input(row) - row.scored;
        let past = match self.rows.len() {
            1 => alike.min(before_scored(first)),
            _ => alike.min(self.past),
        };
        let past = past.min(before_scored(row)) / MIN_PASS_ROWS * MIN_PASS_ROWS;
        let rows = self.rows.iter().copied().chain([number]).collect();
        (past > 0).then_some(Group { past, rows })
    }
}

/// Rows in groups, and those that are scored by themselves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Grouped {
    pub(super) groups: Vec<Group>,
    pub(super) single: Vec<usize>,
}

impl Grouped {
    /// Groups of rows where that takes fewer tokens through the model. `alone`: tokens of an input of so many by itself; `longest`: of
    /// the longest input.
    pub(super) fn new(rows: &[Row], longest: usize, alone: &dyn Fn(usize) -> usize) -> Grouped {
        let mut grouped = Grouped::default();
        let mut open: Option<Group> = None;
        for (number, row) in rows.iter().enumerate() {
            // What is filled up must not reach past the positions that the model knows.
            let fits = filled_up(input(row)) <= longest;
            let wider = open.as_ref().filter(|_| fits).and_then(|group| group.with(number, rows));
            let saves = |wider: &Group, group: &Group| {
                let before = match group.rows.len() {
                    1 => alone(input(&rows[group.rows[0]])),
                    _ => group.cost(rows),
                };
                wider.cost(rows) < before + alone(input(row))
            };
            match (wider, &mut open) {
                (Some(wider), Some(group)) if saves(&wider, group) => *group = wider,
                _ => {
                    let next = fits.then(|| Group { past: 0, rows: vec![number] });
                    grouped.close(std::mem::replace(&mut open, next));
                    grouped.single.extend((!fits).then_some(number));
                }
            }
        }
        grouped.close(open);
        // Groups of a batch have beginnings of about one length and about as many rows, and rows of one place rests of about one length.
        grouped
            .groups
            .sort_by_key(|group| std::cmp::Reverse((group.past, group.rows.len(), group.cost(rows))));
        for group in &mut grouped.groups {
            group.rows.sort_by_key(|&i| std::cmp::Reverse(input(&rows[i])));
        }
        grouped
    }

    fn close(&mut self, group: Option<Group>) {
        match group {
            Some(group) if group.rows.len() > 1 => self.groups.push(group),
            Some(group) => self.single.extend(group.rows),
            None => {}
        }
    }

    /// Gives up the groups where batches that they do not fill take more than the rows by themselves.
    pub(super) fn or_single(
        mut self,
        rows: &[Row],
        sequences: usize,
        alone: &dyn Fn(usize) -> usize,
    ) -> Grouped {
        let members = || self.groups.iter().flat_map(|group| &group.rows);
        let single: usize = members().map(|&i| alone(input(&rows[i]))).sum();
        let shared: usize = batches(&self.groups, sequences).iter().map(|b| sequences * b.cost(rows)).sum();
        if shared >= single {
            let members: Vec<usize> = members().copied().collect();
            self.single.extend(members);
            self.groups.clear();
        }
        self
    }

    /// Tokens that a cache holds of a sequence at most.
    pub(super) fn capacity(&self, rows: &[Row]) -> usize {
        self.groups
            .iter()
            .flat_map(|group| &group.rows)
            .map(|&i| filled_up(input(&rows[i])))
            .max()
            .unwrap_or(0)
    }
}

/// Groups that go through the model together.
struct Batch<'a> {
    past: usize,
    groups: &'a [Group],
}

/// Groups in batches, those with long beginnings first.
fn batches(groups: &[Group], sequences: usize) -> Vec<Batch<'_>> {
    let of = |groups: &'_ [Group]| groups.iter().map(|group| group.past).min().unwrap_or(0);
    groups.chunks(sequences).map(|groups| Batch { past: of(groups), groups }).collect()
}

impl Batch<'_> {
    /// The row that each group has at place `at`, if it has one.
    fn rows(&self, at: usize) -> impl Iterator<Item = Option<usize>> + '_ {
        self.groups.iter().map(move |group| group.rows.get(at).copied())
    }

    /// Rows of the largest group.
    fn most_rows(&self) -> usize {
        self.groups.iter().map(|group| group.rows.len()).max().unwrap_or(0)
    }

    /// Tokens behind the beginning at place `at`, in whole passes.
    fn rest(&self, at: usize, rows: &[Row]) -> usize {
        self.rows(at).flatten().map(|i| filled_up(input(&rows[i]) - self.past)).max().unwrap_or(0)
    }

    /// Tokens of each sequence.
    fn cost(&self, rows: &[Row]) -> usize {
        self.past + (0..self.most_rows()).map(|at| self.rest(at, rows)).sum::<usize>()
    }
}

/// Starts and lengths of passes that bring `tokens` tokens behind `past`: powers of two, so that few models serve all.
fn passes(mut past: usize, tokens: usize) -> impl Iterator<Item = (usize, usize)> {
    let bits = (0..usize::BITS).rev().map(|bit| 1 << bit).filter(move |length| tokens & length != 0);
    bits.map(move |length| {
        past += length;
        (past - length, length)
    })
}

/// Scores the rows of groups. `done` is called with the number of rows of each step.
///
/// # Errors
/// Errors of the model.
pub(super) fn score_groups(
    model: &mut dyn PrefixModel,
    (groups, capacity): (&[Group], usize),
    rows: &[Row],
    greedy: bool,
    scores: &mut [RowScore],
    done: &mut dyn FnMut(u64),
) -> Result<(), EvalError> {
    for batch in batches(groups, model.sequences(capacity)) {
        let beginnings: Vec<Option<usize>> = batch.rows(0).collect();
        for (past, length) in passes(0, batch.past) {
            let mut pass = Pass::new(model.behind(capacity, past, length)?, past);
            pass.run(rows, &beginnings)?;
        }
        for at in 0..batch.most_rows() {
            let numbers: Vec<Option<usize>> = batch.rows(at).collect();
            let mut sums = vec![Sum::default(); numbers.len()];
            for (past, length) in passes(batch.past, batch.rest(at, rows)) {
                let mut pass = Pass::new(model.behind(capacity, past, length)?, past);
                pass.run(rows, &numbers)?;
                pass.add(rows, &numbers, greedy, &mut sums)?;
            }
            for (number, sum) in numbers.iter().zip(&sums).filter_map(|(n, sum)| Some(((*n)?, sum))) {
                let greedy = (greedy && sum.known).then_some(sum.greedy);
                scores[number] = RowScore { log_likelihood: -sum.nats, greedy };
            }
            done(numbers.iter().flatten().count() as u64);
        }
    }
    Ok(())
}

/// Sum over the scored tokens of a row.
#[derive(Debug, Clone)]
struct Sum {
    nats: f64,
    greedy: bool,
    /// The model tells which tokens are the most probable ones.
    known: bool,
}

impl Default for Sum {
    fn default() -> Sum {
        Sum { nats: 0.0, greedy: true, known: false }
    }
}

/// One pass: the same positions of a row of each sequence.
struct Pass<'a> {
    model: Box<dyn TokenLosses + 'a>,
    past: usize,
    seq: usize,
    inputs: Vec<u32>,
    targets: Vec<u32>,
    losses: Vec<f32>,
}

impl<'a> Pass<'a> {
    fn new(model: Box<dyn TokenLosses + 'a>, past: usize) -> Pass<'a> {
        let (sequences, seq) = model.shape();
        let n = sequences * seq;
        Pass { model, past, seq, inputs: vec![0; n], targets: vec![IGNORED; n], losses: vec![0.0; n] }
    }

    /// Scored positions of a row in this pass.
    fn scored(&self, row: &Row) -> std::ops::Range<usize> {
        let within = |at: usize| at.clamp(self.past, self.past + self.seq) - self.past;
        within(input(row) - row.scored)..within(input(row))
    }

    fn run(&mut self, rows: &[Row], numbers: &[Option<usize>]) -> Result<(), EvalError> {
        for (number, from) in numbers.iter().zip((0..).step_by(self.seq)) {
            let Some(row) = number.map(|number| &rows[number]) else { continue };
            let here = self.past.min(input(row))..(self.past + self.seq).min(input(row));
            self.inputs[from..from + here.len()].copy_from_slice(&row.tokens[here]);
            for at in self.scored(row) {
                self.targets[from + at] = row.tokens[self.past + at + 1];
            }
        }
        self.model.token_losses(&self.inputs, &self.targets, &mut self.losses)
    }

    fn add(
        &mut self,
        rows: &[Row],
        numbers: &[Option<usize>],
        greedy: bool,
        sums: &mut [Sum],
    ) -> Result<(), EvalError> {
        let mut first = vec![false; self.targets.len()];
        let known = greedy && self.model.greedy(&self.inputs, &self.targets, &mut first)?;
        for ((number, sum), from) in numbers.iter().zip(sums).zip((0..).step_by(self.seq)) {
            let Some(row) = number.map(|number| &rows[number]) else { continue };
            for at in self.scored(row) {
                sum.nats += f64::from(self.losses[from + at]);
                sum.greedy &= first[from + at];
            }
            sum.known = known;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(context: &[u32], rest: &[u32]) -> Row {
        Row { tokens: [context, rest].concat(), scored: rest.len() }
    }

    #[test]
    fn rows_form_groups_where_that_saves_tokens() {
        let context: Vec<u32> = (0..41).collect();
        let alone = |len: usize| len.max(16).next_power_of_two();
        let mut rows: Vec<Row> = (50..54).map(|t| row(&context, &[t, t])).collect();
        rows.push(row(&[7], &[1, 2, 3]));
        rows.push(row(&[8; 9], &[1]));
        rows.push(row(&context[..12], &[2]));
        let grouped = Grouped::new(&rows, 128, &alone);
        // 40 tokens once and 8 of each choice, instead of 64 of each.
        assert_eq!(grouped.groups, [Group { past: 40, rows: vec![0, 1, 2, 3] }]);
        assert_eq!((grouped.single, grouped.groups[0].cost(&rows)), (vec![4, 5, 6], 72));
        // Rows that would be filled up past the longest input stay by themselves.
        assert_eq!(Grouped::new(&rows, 47, &alone).groups, []);
        let grouped = Grouped::new(&rows, 128, &alone);
        assert_eq!((grouped.capacity(&rows), grouped.or_single(&rows, 3, &alone).groups.len()), (48, 1));
        let given_up = Grouped::new(&rows, 128, &alone).or_single(&rows, 4, &alone);
        assert_eq!((given_up.groups.len(), given_up.single), (0, vec![4, 5, 6, 0, 1, 2, 3]));
    }

    #[test]
    fn passes_bring_all_tokens_in_order() {
        assert_eq!(passes(24, 56).collect::<Vec<_>>(), [(24, 32), (56, 16), (72, 8)]);
        assert_eq!(passes(0, 0).count(), 0);
    }
}

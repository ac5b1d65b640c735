//! Supervised training.
//!
//! Stochastic gradient descent as the original does it: per example the loss of one label (of all labels for `ova`),
//! the gradient divided by the number of rows that the text has, a learning rate that falls linearly to 0 over
//! `epoch` passes. What differs is how threads share the work. The original lets them write over each other
//! (Hogwild), so no two runs agree. Here the examples are taken in blocks of `block`: all gradients of a block are
//! formed against the weights before it, by any thread, then each row of the matrices takes its gradients in the
//! order of the examples, by the thread that owns the row. The result depends on the block but not on the threads;
//! with a block of 1 it is the original with one thread.

use super::FastText;
use super::args::{Args, Loss};
use super::config::TrainConfig;
use super::dictionary::{Counter, Dictionary, LABEL_PREFIX, Line, is_separator};
use super::matrix::{Dense, Matrix, dot};
use super::output::{self, Node, Sigmoid, huffman};
use crate::error::{Result, ScoreError};
use crate::random::Uniform;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, RwLock, RwLockReadGuard};

/// A text with what is true of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Example {
    /// Labels with their prefix, for example `__label__good`.
    pub labels: Vec<String>,
    /// The text; line ends count as spaces.
    pub text: String,
}

/// The examples of a training file of fastText: one a line, labels among the words.
pub fn labelled_lines(text: &str) -> impl Iterator<Item = Example> + '_ {
    text.lines().map(|line| {
        let mut example = Example::default();
        for token in line.split(|c: char| c.is_ascii() && is_separator(c as u8)).filter(|t| !t.is_empty()) {
            if token.starts_with(LABEL_PREFIX) {
                example.labels.push(token.to_owned());
            } else {
                example.text.push_str(token);
                example.text.push(' ');
            }
        }
        example
    })
}

/// Trains a model on what `examples` gives, which is called once to count and once a pass, and must give the same
/// examples in the same order each time.
///
/// # Errors
/// Where the configuration is out of range, the examples have no words or labels or give an error, or training
/// diverges.
pub fn train<I>(config: &TrainConfig, examples: impl Fn() -> I) -> Result<FastText>
where
    I: Iterator<Item = Result<Example>>,
{
    train_from(config, examples, 10)
}

/// `filled` tenths of the input matrix start at random numbers and the rest at 0: 10, except that the original fills
/// as many as it has threads, which a test wants to copy.
fn train_from<I>(config: &TrainConfig, examples: impl Fn() -> I, filled: u64) -> Result<FastText>
where
    I: Iterator<Item = Result<Example>>,
{
    config.check()?;
    let args = config.args();
    let mut counter = Counter::default();
    for example in examples() {
        let example = example?;
        if let Some(label) = example.labels.iter().find(|l| !is_label(l)) {
            return Err(ScoreError::Training(format!(
                "label {label:?}: wanted \"{LABEL_PREFIX}\" and then a name without white space"
            )));
        }
        counter.add(&example.labels, &example.text);
    }
    let dictionary = counter.finish(config.min_count as i64, &args)?;
    let counts: Vec<i64> = dictionary.labels().iter().map(|l| l.count).collect();
    let tree = if args.loss == Loss::Hs {
        huffman(&counts).ok_or_else(|| ScoreError::Training("more labels than a tree can count".into()))?
    } else {
        Vec::new()
    };
    let rows = dictionary.words() + args.bucket as usize;
    let shards = config.threads as usize;
    let first = first_weights(rows * args.dim, args.dim, config.seed, filled);
    let state = State {
        input: scatter(&first, args.dim, shards),
        output: scatter(&vec![0.0; counts.len() * args.dim], args.dim, shards),
        slots: (0..config.block).map(|_| RwLock::default()).collect(),
        barrier: Barrier::new(shards),
        next: AtomicUsize::new(0),
        done: AtomicBool::new(false),
        negatives: cumulative_roots(&counts),
        sigmoid: Sigmoid::new(),
        dictionary: &dictionary,
        tree: &tree,
        args: &args,
        config,
        labels: counts.len(),
    };
    drop(first);
    std::thread::scope(|scope| {
        let state = &state;
        // A shard needs its thread: all of them begin, or none does.
        let mut begin = Vec::new();
        for own in 1..shards {
            let (sender, begun) = std::sync::mpsc::channel::<()>();
            let work = move || {
                if begun.recv().is_ok() {
                    while state.block(own) {}
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, work).map_err(|cause| {
                ScoreError::Training(format!(
                    "{} (threads = {shards})",
                    bessemer_durable::thread_error(cause)
                ))
            })?;
            begin.push(sender);
        }
        for sender in begin {
            // Its thread waits for this.
            let _ = sender.send(());
        }
        let result = lead(state, &examples);
        state.done.store(true, Ordering::SeqCst);
        state.block(0);
        result
    })?;
    let input = gather(state.input, rows, args.dim);
    let output = gather(state.output, counts.len(), args.dim);
    if input.iter().chain(&output).any(|v| !v.is_finite()) {
        return Err(ScoreError::Training("the weights became infinite or NaN: lower lr or block".into()));
    }
    let dim = args.dim;
    let (input, output) =
        (Matrix::Dense(Dense { dim, values: input }), Matrix::Dense(Dense { dim, values: output }));
    FastText::assemble(args, dictionary, input, output)
        .ok_or_else(|| ScoreError::Training("more labels than a tree can count".into()))
}

fn is_label(label: &str) -> bool {
    label.len() > LABEL_PREFIX.len() && label.starts_with(LABEL_PREFIX) && !label.bytes().any(is_separator)
}

/// Hands out the blocks until the passes are over.
fn lead<I>(state: &State<'_>, examples: &impl Fn() -> I) -> Result<()>
where
    I: Iterator<Item = Result<Example>>,
{
    let wanted = state.config.epoch as i64 * state.dictionary.tokens();
    let (mut counted, mut local, mut number) = (0i64, 0i64, 0u64);
    let mut source = examples();
    while counted < wanted {
        let lr = (state.config.lr * (1.0 - (counted as f64 / wanted as f64))) as f32;
        let mut restarted = false;
        for slot in &state.slots {
            let example = loop {
                match source.next() {
                    Some(example) => break example?,
                    None if restarted => {
                        return Err(ScoreError::Training("a later pass over the examples gives none".into()));
                    }
                    None => {
                        source = examples();
                        restarted = true;
                    }
                }
            };
            restarted = false;
            let mut slot = slot.write().expect("no thread panics");
            slot.example = example;
            slot.lr = lr;
            slot.number = number;
            number += 1;
        }
        state.next.store(0, Ordering::SeqCst);
        state.block(0);
        for slot in &state.slots {
            local += slot.read().expect("no thread panics").tokens as i64;
            if local > state.config.lr_update_rate as i64 {
                counted += local;
                local = 0;
            }
        }
    }
    Ok(())
}

/// One example with its gradients.
#[derive(Default)]
struct Work {
    example: Example,
    /// Counts the examples of all passes; every draw is a function of it.
    number: u64,
    lr: f32,
    tokens: usize,
    line: Line,
    hidden: Vec<f32>,
    gradient: Vec<f32>,
    scores: Vec<f32>,
    /// Rows of the output matrix that change, and by what multiple of the hidden vector.
    changes: Vec<(usize, f32)>,
}

/// What the threads share. Row `r` of a matrix is row `r / shards` of shard `r % shards`.
struct State<'a> {
    input: Vec<RwLock<Vec<f32>>>,
    output: Vec<RwLock<Vec<f32>>>,
    slots: Vec<RwLock<Work>>,
    barrier: Barrier,
    next: AtomicUsize,
    done: AtomicBool,
    /// Running sums of the square roots of the counts of the labels.
    negatives: Vec<f64>,
    sigmoid: Sigmoid,
    dictionary: &'a Dictionary,
    tree: &'a [Node],
    args: &'a Args,
    config: &'a TrainConfig,
    labels: usize,
}

type Guards<'g> = Vec<RwLockReadGuard<'g, Vec<f32>>>;

impl State<'_> {
    /// One block as thread `own`; false when there are no more.
    fn block(&self, own: usize) -> bool {
        self.barrier.wait();
        if self.done.load(Ordering::SeqCst) {
            return false;
        }
        {
            let (input, output) = (read_all(&self.input), read_all(&self.output));
            while let Some(slot) = self.slots.get(self.next.fetch_add(1, Ordering::SeqCst)) {
                self.gradients(&mut slot.write().expect("no thread panics"), &input, &output);
            }
        }
        self.barrier.wait();
        self.apply(own);
        self.barrier.wait();
        true
    }

    /// Adds the gradients of the block to the rows of shard `own`.
    fn apply(&self, own: usize) {
        let (dim, shards) = (self.args.dim, self.input.len());
        let mut input = self.input[own].write().expect("no thread panics");
        let mut output = self.output[own].write().expect("no thread panics");
        for slot in &self.slots {
            let work = slot.read().expect("no thread panics");
            if work.changes.is_empty() {
                continue;
            }
            for &(row, alpha) in work.changes.iter().filter(|(row, _)| row % shards == own) {
                let at = row / shards * dim;
                add_scaled(&mut output[at..at + dim], alpha, &work.hidden);
            }
            for row in work.line.rows.iter().map(|&r| r as usize).filter(|row| row % shards == own) {
                let at = row / shards * dim;
                add_scaled(&mut input[at..at + dim], 1.0, &work.gradient);
            }
        }
    }

    /// The gradients of one example against the present weights.
    fn gradients(&self, work: &mut Work, input: &Guards<'_>, output: &Guards<'_>) {
        let dim = self.args.dim;
        work.changes.clear();
        work.tokens = self.dictionary.line(&work.example.text, &mut work.line) + work.example.labels.len();
        let targets: Vec<usize> =
            work.example.labels.iter().filter_map(|l| self.dictionary.label(l)).collect();
        if targets.is_empty() || work.line.rows.is_empty() {
            return;
        }
        work.hidden.clear();
        work.hidden.resize(dim, 0.0);
        for &row in &work.line.rows {
            add_scaled(&mut work.hidden, 1.0, row_of(input, row as usize, dim));
        }
        let scale = (1.0 / work.line.rows.len() as f64) as f32;
        work.hidden.iter_mut().for_each(|h| *h *= scale);

        let mut draws = Uniform::new(self.config.seed as u64, work.number);
        let target = targets[draws.below(targets.len() as u64) as usize];
        let lr = work.lr;
        let hidden = &work.hidden;
        let logit = |row: usize| dot(row_of(output, row, dim), hidden);
        let change = |row: usize, positive: bool| {
            (row, lr * (f32::from(u8::from(positive)) - self.sigmoid.at(logit(row))))
        };
        match self.args.loss {
            Loss::Softmax => {
                work.scores.clear();
                work.scores.extend((0..self.labels).map(logit));
                output::softmax(&mut work.scores);
                let alpha = |(row, &p): (usize, &f32)| (row, lr * (f32::from(u8::from(row == target)) - p));
                work.changes.extend(work.scores.iter().enumerate().map(alpha));
            }
            Loss::Ova => work.changes.extend((0..self.labels).map(|row| change(row, targets.contains(&row)))),
            Loss::Ns => {
                work.changes.push(change(target, true));
                // With one label there is nothing else to draw.
                for _ in 0..if self.labels > 1 { self.config.neg } else { 0 } {
                    work.changes.push(change(self.negative(target, &mut draws), false));
                }
            }
            Loss::Hs => {
                let mut node = target;
                while self.tree[node].parent >= 0 {
                    let parent = self.tree[node].parent as usize;
                    work.changes.push(change(parent - self.labels, self.tree[node].binary));
                    node = parent;
                }
            }
        }
        work.gradient.clear();
        work.gradient.resize(dim, 0.0);
        for &(row, alpha) in &work.changes {
            add_scaled(&mut work.gradient, alpha, row_of(output, row, dim));
        }
        work.gradient.iter_mut().for_each(|g| *g *= scale);
    }

    /// A label other than `target`, drawn in proportion to the square root of its count.
    fn negative(&self, target: usize, draws: &mut Uniform) -> usize {
        let total = self.negatives[self.labels - 1];
        // A rare target is met hardly ever, a label with nearly all of the weight often: a fixed number of tries and
        // then its neighbour keeps this finite.
        for _ in 0..64 {
            let drawn = draws.unit() * total;
            let label = self.negatives.partition_point(|&sum| sum <= drawn).min(self.labels - 1);
            if label != target {
                return label;
            }
        }
        (target + 1) % self.labels
    }
}

fn read_all(shards: &[RwLock<Vec<f32>>]) -> Guards<'_> {
    shards.iter().map(|s| s.read().expect("no thread panics")).collect()
}

fn row_of<'g>(shards: &'g Guards<'_>, row: usize, dim: usize) -> &'g [f32] {
    let at = row / shards.len() * dim;
    &shards[row % shards.len()][at..at + dim]
}

fn add_scaled(to: &mut [f32], scale: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += scale * from;
    }
}

fn scatter(values: &[f32], dim: usize, shards: usize) -> Vec<RwLock<Vec<f32>>> {
    let shard = |own: usize| values.chunks_exact(dim).skip(own).step_by(shards).flatten().copied().collect();
    (0..shards).map(|own| RwLock::new(shard(own))).collect()
}

fn gather(shards: Vec<RwLock<Vec<f32>>>, rows: usize, dim: usize) -> Vec<f32> {
    let shards: Vec<Vec<f32>> =
        shards.into_iter().map(|s| s.into_inner().expect("no thread panics")).collect();
    let mut values = Vec::with_capacity(rows * dim);
    for row in 0..rows {
        let at = row / shards.len() * dim;
        values.extend_from_slice(&shards[row % shards.len()][at..at + dim]);
    }
    values
}

fn cumulative_roots(counts: &[i64]) -> Vec<f64> {
    let mut sum = 0.0;
    let next = |&count: &i64| {
        sum += (count as f64).sqrt();
        sum
    };
    counts.iter().map(next).collect()
}

/// Uniform in -1/dim..1/dim, by the generator of the original: the matrix is cut into tenths, tenth `i` from minstd
/// (x <- 48271 x mod 2^31 - 1) with the seed `seed + i`, two draws a number.
fn first_weights(count: usize, dim: usize, seed: u32, filled: u64) -> Vec<f32> {
    const MODULUS: u64 = 2_147_483_647;
    let bound = 1.0 / dim as f64;
    let mut values = vec![0.0; count];
    let tenth = count / 10;
    if tenth == 0 {
        return values;
    }
    for (i, block) in values.chunks_mut(tenth).enumerate().take(filled as usize) {
        let mut x = (seed as u64 + i as u64) % MODULUS;
        if x == 0 {
            x = 1;
        }
        let mut draw = || {
            x = x * 48_271 % MODULUS;
            (x - 1) as f64
        };
        let range = (MODULUS - 1) as f64;
        for value in block {
            let unit = (draw() + draw() * range) / (range * range);
            *value = (unit * (bound + bound) - bound) as f32;
        }
    }
    values
}

#[cfg(test)]
mod tests;

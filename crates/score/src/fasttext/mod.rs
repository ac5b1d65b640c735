//! fastText supervised models: read (`.bin` and quantised `.ftz`), asked, trained, and written.
//!
//! A text is the mean of the vectors of its words, pieces of words and word n-grams; a linear layer over that mean
//! gives the label (Joulin, Grave, Bojanowski, Mikolov 2016, arXiv:1607.01759). What is computed, in what order of
//! words and with which hash is that of the original program, so its models give here the labels and probabilities
//! that they give there.

mod args;
mod config;
mod dictionary;
mod matrix;
mod output;
mod train;

pub use args::Loss;
pub use config::TrainConfig;
pub use train::{Example, labelled_lines, train};

use crate::error::Result;
use crate::source::{ModelFile, Source};
use args::Args;
use dictionary::{Dictionary, Line};
use matrix::Matrix;
use output::{Node, Sigmoid};
use std::io::{Read, Write};
use std::path::Path;

/// A label with its probability, as the original reports it: with 0.00001 added.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The label with its prefix, for example `__label__en`.
    pub label: String,
    /// Probability.
    pub probability: f32,
}

/// A supervised model.
#[derive(Debug, Clone)]
pub struct FastText {
    args: Args,
    dictionary: Dictionary,
    input: Matrix,
    output: Matrix,
    labels: Vec<String>,
    sigmoid: Sigmoid,
    /// For hierarchical softmax.
    tree: Vec<Node>,
}

impl FastText {
    /// Reads a `.bin` or `.ftz` file into memory.
    ///
    /// # Errors
    /// Where the file is not a whole supervised model; the message names the place.
    pub fn open(path: &Path) -> Result<FastText> {
        let file = ModelFile::open(path)?;
        FastText::read(file.reader, file.len, &file.name)
    }

    /// Reads a model from `len` bytes of `reader`; `name` is for errors.
    ///
    /// # Errors
    /// As [`FastText::open`].
    pub fn read(reader: impl Read, len: u64, name: &str) -> Result<FastText> {
        let mut source = Source::new(reader, len, name);
        let args = Args::read(&mut source)?;
        let dictionary = Dictionary::read(&mut source, &args)?;
        let quantised = source.boolean("the flag of the input matrix")?;
        if dictionary.is_pruned() && !quantised {
            return Err(source
                .error("the n-grams are pruned but the matrix is not quantised; download the model again"));
        }
        let input = Matrix::read(&mut source, quantised, args.dim, "the input matrix")?;
        if (input.rows() as u64) < dictionary.rows_needed() {
            return Err(source.error(format!(
                "the input matrix has {} rows, the dictionary needs {}",
                input.rows(),
                dictionary.rows_needed()
            )));
        }
        let quantised_output = source.boolean("the flag of the output matrix")?;
        let output = Matrix::read(&mut source, quantised && quantised_output, args.dim, "the output matrix")?;
        if output.rows() != dictionary.labels().len() {
            return Err(source.error(format!(
                "the output matrix has {} rows for {} labels",
                output.rows(),
                dictionary.labels().len()
            )));
        }
        source.end()?;
        FastText::assemble(args, dictionary, input, output).ok_or_else(|| {
            source.error("the label counts are not in descending order, so the tree of this model is unknown")
        })
    }

    /// `None` where hierarchical softmax has no tree.
    fn assemble(args: Args, dictionary: Dictionary, input: Matrix, output: Matrix) -> Option<FastText> {
        let labels =
            dictionary.labels().iter().map(|l| String::from_utf8_lossy(&l.token).into_owned()).collect();
        let tree = if args.loss == Loss::Hs {
            output::huffman(&dictionary.labels().iter().map(|l| l.count).collect::<Vec<_>>())?
        } else {
            Vec::new()
        };
        Some(FastText { args, dictionary, input, output, labels, sigmoid: Sigmoid::new(), tree })
    }

    /// Writes the model as a `.bin` file that the original program reads.
    ///
    /// # Errors
    /// The writer's; or for a quantised model, which is only read here.
    pub fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let (Matrix::Dense(input), Matrix::Dense(output)) = (&self.input, &self.output) else {
            return Err(std::io::Error::other(
                "a quantised fastText model cannot be written; copy the file that it was read from",
            ));
        };
        self.args.write(to)?;
        self.dictionary.write(to)?;
        to.write_all(&[0])?;
        input.write(to)?;
        to.write_all(&[0])?;
        output.write(to)
    }

    /// All labels, in the order of the file.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The `k` most probable labels of `text` with a probability of at least `threshold`, best first; equal ones in
    /// the order of the file. Line ends in the text count as spaces.
    pub fn predict(&self, text: &str, k: usize, threshold: f32) -> Vec<Prediction> {
        let best = self.best(text, k.min(self.labels.len()), threshold, &mut Scratch::default());
        let named = |(log, label): (f32, usize)| Prediction {
            label: self.labels[label].clone(),
            probability: log.exp(),
        };
        best.into_iter().map(named).collect()
    }

    /// The probability of one label (with its prefix), or `None` where the model does not have it or the text has no
    /// token that the model knows.
    pub fn probability(&self, text: &str, label: &str) -> Option<f32> {
        let label = self.dictionary.label(label)?;
        let mut scratch = Scratch::default();
        if self.args.loss == Loss::Hs {
            let best = self.best(text, self.labels.len(), 0.0, &mut scratch);
            return best.into_iter().find(|b| b.1 == label).map(|(log, _)| log.exp());
        }
        if !self.hidden(text, &mut scratch) {
            return None;
        }
        output::all(self.args.loss, &self.output, &self.sigmoid, &scratch.hidden, &mut scratch.scores);
        // The same offset as in `predict`.
        scratch.scores.get(label).map(|p| p + 1e-5)
    }

    /// Number and probability of the most probable label.
    pub(crate) fn best_label(&self, text: &str) -> Option<(usize, f32)> {
        let best = self.best(text, 1, 0.0, &mut Scratch::default());
        best.first().map(|&(log, label)| (label, log.exp()))
    }

    fn best(&self, text: &str, k: usize, threshold: f32, scratch: &mut Scratch) -> Vec<(f32, usize)> {
        if k == 0 || !self.hidden(text, scratch) {
            return Vec::new();
        }
        if self.args.loss == Loss::Hs {
            return output::best_of_tree(&self.tree, &self.output, &scratch.hidden, k, threshold);
        }
        output::all(self.args.loss, &self.output, &self.sigmoid, &scratch.hidden, &mut scratch.scores);
        output::best_of(&scratch.scores, k, threshold)
    }

    /// The mean of the rows of `text`; false if there are none.
    fn hidden(&self, text: &str, scratch: &mut Scratch) -> bool {
        self.dictionary.line(text, &mut scratch.line);
        let rows = &scratch.line.rows;
        if rows.is_empty() {
            return false;
        }
        scratch.hidden.clear();
        scratch.hidden.resize(self.args.dim, 0.0);
        for &row in rows {
            self.input.add_row(row as usize, &mut scratch.hidden);
        }
        let scale = (1.0 / rows.len() as f64) as f32;
        for value in &mut scratch.hidden {
            *value *= scale;
        }
        true
    }
}

#[derive(Debug, Default)]
struct Scratch {
    line: Line,
    hidden: Vec<f32>,
    scores: Vec<f32>,
}

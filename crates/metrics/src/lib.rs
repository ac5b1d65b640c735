//! Metrics of text.
//!
//! - [`Bleu`], [`ChrF`], [`Ter`]: translations, with the definitions and signatures of sacrebleu.
//! - [`Rouge`]: summaries, as rouge_score has it.
//! - [`Meteor`]: as NLTK has it, with synonyms by a [`wordnet`] that a user has.
//! - [`answers`]: exact match, F1, pass@k. [`calibration`]: what probabilities are worth. [`pyramid`]: content units of summaries.
//! - [`judgement`]: agreement of annotators, ratings from comparisons, HUSE. [`power`]: how many judgements tell systems apart. [`bias`]: groups counted. [`kola`]: models compared over tasks. [`robustness`]: what a
//!   perturbation costs. [`proportion`]: intervals of shares. [`toxicity`]: classifiers' scores over generations.
//!
//! - [`corpus`]: scores of sets of texts, their intervals, and tests of a difference. [`bootstrap`]: intervals of other figures.
//!
//! Each is a function of texts. Numbers are equal to those of the programs named; where a metric has several definitions under one name, its
//! signature says which ran.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod answers;
pub mod bias;
mod bleu;
pub mod bootstrap;
pub mod calibration;
mod chrf;
pub mod corpus;
mod counts;
pub mod judgement;
pub mod kola;
mod meteor;
pub mod porter;
pub mod power;
pub mod proportion;
pub mod pyramid;
pub mod robustness;
mod rouge;
mod ter;
mod tokens;
pub mod toxicity;
pub mod wordnet;

pub use bleu::{Bleu, BleuCounts, Smoothing};
pub use chrf::{ChrF, ChrFCounts};
pub use corpus::{CorpusMetric, MeanMetric, SegmentSums};
pub use meteor::{Meteor, Synonyms};
pub use rouge::{Overlap, Rouge};
pub use ter::{Ter, TerCounts};
pub use tokens::Tokens;

/// The version of sacrebleu whose numbers are given.
const SACREBLEU: &str = "2.6.0";

//! Evaluation of documents by the steps of a profile.

use crate::edit::{C4Lines, Correction, Edited};
use crate::features::Scratch;
use crate::measures::Measure;
use crate::predicate::{Predicate, Row, Value};
use crate::profile::Profile;
use serde::Serialize;
use std::borrow::Cow;

/// A document as rules see it.
#[derive(Clone, Copy)]
pub struct DocumentView<'d> {
    /// Its text.
    pub text: &'d str,
    /// Its other columns, for predicates.
    pub columns: &'d dyn Row,
}

impl<'d> DocumentView<'d> {
    /// A document that is nothing but text.
    pub fn of(text: &'d str) -> DocumentView<'d> {
        DocumentView { text, columns: &NoColumns }
    }
}

struct NoColumns;

impl Row for NoColumns {
    fn value(&self, _: &str) -> Option<Value<'_>> {
        None
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// Outcome of the rules for a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The document is kept unchanged.
    Keep,
    /// The document is kept with this text.
    Edit(String),
    /// The document is dropped; the label is the reason.
    Drop(String),
}

/// Outcome of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleVerdict {
    /// The value is within the limits.
    Pass,
    /// The value is outside of a limit.
    Fail,
    /// There is no value (no words, one line), so that the rule says nothing.
    Undefined,
    /// There are no limits: the value is only reported.
    #[serde(rename = "told")]
    Reported,
}

/// One rule's value, limits and verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleResult {
    /// Title of the measure.
    pub rule: String,
    /// Its value.
    pub value: Option<f64>,
    /// The least that is kept.
    pub min: Option<f64>,
    /// The most that is kept.
    pub max: Option<f64>,
    /// Outcome of the comparison with the limits.
    pub verdict: RuleVerdict,
    /// The reason that a failure has, empty if it cannot fail.
    pub label: String,
}

impl RuleResult {
    pub(crate) fn new(rule: impl Into<String>, value: Option<f64>) -> RuleResult {
        RuleResult {
            rule: rule.into(),
            value,
            min: None,
            max: None,
            verdict: RuleVerdict::Reported,
            label: String::new(),
        }
    }

    pub(crate) fn at_most(self, max: Option<f64>, label: &str) -> RuleResult {
        self.within(None, max, label, label)
    }

    pub(crate) fn at_least(self, min: Option<f64>, label: &str) -> RuleResult {
        self.within(min, None, label, label)
    }

    fn within(mut self, min: Option<f64>, max: Option<f64>, below: &str, above: &str) -> RuleResult {
        (self.min, self.max) = (min, max);
        if min.is_none() && max.is_none() {
            return self;
        }
        let under = self.value.zip(min).is_some_and(|(value, min)| value < min);
        let over = self.value.zip(max).is_some_and(|(value, max)| value > max);
        self.verdict = match self.value {
            None => RuleVerdict::Undefined,
            Some(_) if under || over => RuleVerdict::Fail,
            Some(_) => RuleVerdict::Pass,
        };
        let low = under || (min.is_some() && !over);
        self.label = if low { below } else { above }.to_owned();
        self
    }

    /// Whether this drops the document.
    pub fn failed(&self) -> bool {
        self.verdict == RuleVerdict::Fail
    }
}

/// Verdict and, if asked for, every rule's result.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Outcome for the document.
    pub verdict: Verdict,
    /// Results in the order of the rules; empty unless explained.
    pub rules: Vec<RuleResult>,
    /// Result of the first rule that failed, as [`Profile::explain`] states it.
    pub failed: Option<RuleResult>,
}

/// One compiled step of a profile.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Rule { measure: Measure, min: Option<f64>, max: Option<f64>, below: String, above: String },
    Where { predicate: Predicate, label: String },
    C4(C4Lines),
    Correct(Correction),
}

impl Profile {
    /// Evaluates a document, up to the first rule that drops it.
    pub fn evaluate(&self, document: &DocumentView<'_>) -> Outcome {
        self.evaluate_with(document, &mut Scratch::new())
    }

    /// [`Self::evaluate`] with reused buffers: for many documents.
    pub fn evaluate_with(&self, document: &DocumentView<'_>, scratch: &mut Scratch) -> Outcome {
        self.run(document, scratch, false)
    }

    /// Evaluates a document by every rule, also after one has dropped it. The verdict is that of [`Self::evaluate`]: rules
    /// behind the first failure see the text that this one saw.
    pub fn explain(&self, document: &DocumentView<'_>, scratch: &mut Scratch) -> Outcome {
        self.run(document, scratch, true)
    }

    fn run(&self, document: &DocumentView<'_>, scratch: &mut Scratch, all: bool) -> Outcome {
        scratch.start();
        let mut text: Cow<'_, str> = Cow::Borrowed(document.text);
        let mut rules = Vec::new();
        let mut dropped: Option<String> = None;
        let mut cause = None;
        for step in &self.steps {
            let first = rules.len();
            match step {
                Step::Rule { measure, min, max, below, above } => {
                    let value = measure.value(&text, scratch);
                    let fails = value
                        .is_some_and(|v| min.is_some_and(|min| v < min) || max.is_some_and(|max| v > max));
                    if all || fails {
                        rules.push(RuleResult::new(measure.title(), value).within(*min, *max, below, above));
                    }
                }
                Step::Where { predicate, label } => {
                    // As in SQL, what is not known to be true does not keep a document.
                    let holds = predicate.holds(document.columns).unwrap_or(false);
                    let value = Some(f64::from(u8::from(holds)));
                    let result = RuleResult::new(format!("where {}", predicate.source()), value);
                    let result = result.at_least(Some(1.0), label);
                    if all || result.failed() {
                        rules.push(result);
                    }
                }
                Step::C4(lines) => {
                    let edited = lines.apply(&text, scratch, all);
                    self.take(edited, &mut text, &mut rules, scratch);
                }
                Step::Correct(correction) => {
                    if correction.is_of_lines()
                        && scratch.words_before.is_none()
                        && let Some(segmenter) = self.removed_words
                    {
                        scratch.words_before = Some(scratch.word_count(segmenter, &text));
                    }
                    let edited = correction.apply(&text);
                    self.take(edited, &mut text, &mut rules, scratch);
                }
            }
            let failed = rules[first..].iter().find(|result| result.failed());
            if let (None, Some(failed)) = (&dropped, failed) {
                dropped = Some(failed.label.clone());
                cause = match step {
                    // Stopped at the first lost line: the counts of the whole text are still to come.
                    Step::C4(lines) if !all => {
                        lines.apply(&text, scratch, true).results.into_iter().find(RuleResult::failed)
                    }
                    _ => Some(failed.clone()),
                };
                if !all {
                    break;
                }
            }
        }
        if !all {
            rules.clear();
        }
        let verdict = match (dropped, text) {
            (Some(label), _) => Verdict::Drop(label),
            (None, Cow::Borrowed(_)) => Verdict::Keep,
            (None, Cow::Owned(text)) if text == document.text => Verdict::Keep,
            (None, Cow::Owned(text)) => Verdict::Edit(text),
        };
        Outcome { verdict, rules, failed: cause }
    }

    fn take(
        &self,
        edited: Edited,
        text: &mut Cow<'_, str>,
        rules: &mut Vec<RuleResult>,
        scratch: &mut Scratch,
    ) {
        rules.extend(edited.results);
        let changed = edited.text.is_some();
        if let Some(new) = edited.text {
            *text = Cow::Owned(new);
            scratch.forget();
        }
        if let (true, Some(words)) = (changed, edited.words) {
            scratch.know_words(self.segmenter, words);
        }
    }
}

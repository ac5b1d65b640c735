//! The comparison of several runs: verdict, key figures, overlaid curves and recipe differences, as a page and as text.

use crate::facts::{Facts, smoothed};
use crate::figures::{EvalFigures, RunFigures, ScoreFigures};
use crate::html::{Align, figure, grid, section, table};
use crate::page::page;
use crate::plot::{LineChart, Mark, Scale, Series};
use crate::section::curves::span;
use crate::section::headline::fixed;
use crate::terminal;
use crate::text::{escape, grouped, number, signed_percent};
use bessemer_runlog::Record;
use bessemer_units::{Bytes, Seconds, Tokens};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// Longest name of a run in a legend and at the head of a column, in characters.
const LONGEST_LABEL: usize = 40;

/// Rows of the key figures that are of the model; those after them are of the machine.
const OF_MODEL: usize = 10;

/// Curves of at most so many points show each of them as a dot.
const FEW: usize = 24;

/// One run of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedRun {
    /// Name that tells it from the other runs.
    pub label: String,
    /// Its records.
    pub records: Vec<Record>,
    /// Whether its recipe was recorded and can be read.
    pub recipe: RecordedRecipe,
}

/// Whether the recipe of a run was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedRecipe {
    /// Its keys are among the differences.
    Known,
    /// Its keys are unknown: never recorded, or not readable.
    Unknown,
}

/// A recipe key whose value differs between runs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RecipeDifference {
    /// Dotted key.
    pub key: String,
    /// The value in each run, in TOML syntax; `None` where the run has no such key or its recipe is unknown.
    pub values: Vec<Option<String>>,
}

/// Several runs side by side.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    runs: Vec<ComparedRun>,
    figures: Vec<RunFigures>,
    differences: Vec<RecipeDifference>,
    notes: Vec<String>,
}

impl Comparison {
    /// Compares runs whose recipes differ in `differences`. `notes` are what the caller has to say about them.
    pub fn new(
        runs: Vec<ComparedRun>,
        differences: Vec<RecipeDifference>,
        mut notes: Vec<String>,
    ) -> Comparison {
        let figures: Vec<RunFigures> = runs.iter().map(|r| RunFigures::new(&r.records)).collect();
        let failed = runs.iter().zip(&figures).filter_map(|(r, f)| Some((&r.label, f.error.as_ref()?)));
        notes.extend(failed.map(|(label, error)| format!("{label} failed: {error}")));
        let mut comparison = Comparison { runs, figures, differences, notes: Vec::new() };
        notes.extend(comparison.limits());
        comparison.notes = notes;
        comparison
    }

    /// The runs.
    pub fn runs(&self) -> &[ComparedRun] {
        &self.runs
    }

    /// The key figures of each run.
    pub fn figures(&self) -> &[RunFigures] {
        &self.figures
    }

    /// What to keep in mind when the figures are compared.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The recipe keys that differ.
    pub fn differences(&self) -> &[RecipeDifference] {
        &self.differences
    }

    fn last_evals(&self) -> impl Iterator<Item = (&str, &EvalFigures)> {
        let evals = self.runs.iter().zip(&self.figures);
        evals.filter_map(|(run, f)| Some((run.label.as_str(), f.last_eval.as_ref()?)))
    }

    /// Sentences about what cannot be compared.
    fn limits(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if differ(self.figures.iter().filter_map(|f| f.vocab_size))
            || differ(self.figures.iter().filter_map(|f| f.tokenizer.as_ref()))
        {
            notes.push(
                "The runs have different tokenizers: their losses in nats per token count different tokens and cannot be \
                 compared. Bits per byte can, because they count the bytes of the text."
                    .into(),
            );
        }
        if differ(self.figures.iter().map(|f| f.tokens)) {
            notes.push(
                "The runs have trained on different numbers of tokens, so their last evaluations stand at different points. The \
                 curves over tokens compare them where all have been."
                    .into(),
            );
        }
        if differ(self.last_evals().map(|(_, e)| (&e.split, e.bytes_scored))) {
            notes.push(
                "The runs were evaluated on different text (another split or another number of bytes), so a difference in \
                 loss or bits per byte is partly one of the texts."
                    .into(),
            );
        }
        notes
    }

    /// One sentence: which run needs the fewest bits per byte, and how far behind the others are.
    pub fn verdict(&self) -> Option<String> {
        let mut evals: Vec<(&str, f64)> =
            self.last_evals().map(|(l, e)| (l, e.bits_per_byte)).filter(|(_, b)| b.is_finite()).collect();
        evals.sort_by(|a, b| a.1.total_cmp(&b.1));
        let ((best, least), others) = evals.split_first()?;
        let behind = |(label, bits): &(&str, f64)| format!("{label} {}", signed_percent(bits / least - 1.0));
        let others: Vec<String> = others.iter().map(behind).collect();
        let others = if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
        Some(format!("Fewest bits per byte at the last evaluation: {best} ({}){others}.", fixed(*least)))
    }

    fn labels(&self) -> Vec<String> {
        self.runs.iter().map(|r| cropped(&r.label)).collect()
    }

    /// The table of key figures: a row each, a column per run.
    fn rows(&self) -> Vec<Vec<String>> {
        type Shown = fn(&RunFigures) -> Option<String>;
        let rows: [(&str, Shown); 16] = [
            ("status", |f| Some(f.status.clone())),
            ("steps", |f| {
                Some(match f.steps_planned {
                    Some(planned) => format!("{} of {}", grouped(f.steps), grouped(planned)),
                    None => grouped(f.steps),
                })
            }),
            ("parameters", |f| Some(Tokens(f.parameters?).to_string())),
            ("vocabulary", |f| Some(grouped(f.vocab_size?))),
            ("tokens trained on", |f| Some(Tokens(f.tokens).to_string())),
            ("training loss, smoothed", |f| Some(fixed(f.training_loss?))),
            ("final validation loss", |f| Some(fixed(f.last_eval.as_ref()?.loss))),
            ("best validation loss", |f| {
                let best = f.best_eval.as_ref()?;
                Some(format!("{} (step {})", fixed(best.loss), grouped(best.step)))
            }),
            ("final bits per byte", |f| Some(fixed(f.last_eval.as_ref()?.bits_per_byte))),
            ("best bits per byte", |f| Some(fixed(f.best_eval.as_ref()?.bits_per_byte))),
            ("tokens per second", |f| Some(number(f.tokens_per_s?))),
            ("MFU", |f| Some(format!("{:.1} %", 100.0 * f.mfu?))),
            ("wall time", |f| {
                let least = if f.wall_is_least { "at least " } else { "" };
                Some(format!("{least}{}", Seconds(f.wall_seconds)))
            }),
            ("memory", |f| Some(Bytes(f.memory_bytes?).to_string())),
            ("started", |f| Some(f.started_at.clone())),
            ("host", |f| Some(f.host.clone())),
        ];
        let cell =
            |f: &RunFigures, shown: Shown| shown(f).filter(|t| !t.is_empty()).unwrap_or_else(|| "–".into());
        let row = |(name, shown): (&str, Shown)| {
            let cells = self.figures.iter().map(|f| cell(f, shown));
            std::iter::once(name.to_string()).chain(cells).collect::<Vec<String>>()
        };
        // What no run knows is no row.
        let known = |row: &Vec<String>| row[1..].iter().any(|cell| cell != "–");
        let (figures, machine) = rows.split_at(OF_MODEL);
        let rows = |rows: &[(&str, Shown)]| rows.iter().copied().map(row).filter(known).collect::<Vec<_>>();
        [rows(figures), self.score_rows(), rows(machine)].concat()
    }

    /// A row for each score of a task and each loss of a component: the first and the last value of every run, with the interval.
    fn score_rows(&self) -> Vec<Vec<String>> {
        let names: BTreeSet<&String> = self.figures.iter().flat_map(|f| f.scores.keys()).collect();
        let cell = |score: &ScoreFigures| {
            let first = score.first.map_or(String::new(), |(_, first)| format!("{} → ", fixed(first)));
            let interval = score
                .interval
                .map_or(String::new(), |[low, high]| format!(" ({} to {})", fixed(low), fixed(high)));
            format!("{first}{}{interval}", fixed(score.value))
        };
        let row = |name: &String| {
            let cells = self.figures.iter().map(|f| f.scores.get(name).map_or_else(|| "–".into(), cell));
            std::iter::once(cropped(name)).chain(cells).collect()
        };
        names.into_iter().map(row).collect()
    }

    fn difference_rows(&self) -> Vec<Vec<String>> {
        let cell = |(value, run): (&Option<String>, &ComparedRun)| match (value, run.recipe) {
            (Some(value), _) => value.clone(),
            (None, RecordedRecipe::Known) => "–".into(),
            (None, RecordedRecipe::Unknown) => "unknown".into(),
        };
        let row = |d: &RecipeDifference| {
            std::iter::once(d.key.clone()).chain(d.values.iter().zip(&self.runs).map(cell)).collect()
        };
        self.differences.iter().map(row).collect()
    }

    /// Sentence in place of a table of differences.
    fn no_differences(&self) -> &'static str {
        match self.runs.iter().filter(|r| r.recipe == RecordedRecipe::Unknown).count() {
            0 => "The recipes do not differ.",
            unknown if unknown + 1 < self.runs.len() => "The recipes that are known do not differ.",
            _ => "The recipes cannot be compared: fewer than two are known.",
        }
    }

    /// The comparison as lines for a terminal of `width` columns.
    pub fn text(&self, width: usize) -> String {
        let labels = self.labels();
        let mut text = terminal::columns(&labels, &self.rows(), width);
        if self.differences.is_empty() {
            text += &format!("\n{}\n", self.no_differences());
        } else {
            text += "\nRecipe keys that differ:\n";
            text += &terminal::columns(&labels, &self.difference_rows(), width);
        }
        for line in self.verdict().iter().chain(&self.notes) {
            text += &format!("\n{}\n", terminal::plain(line));
        }
        text
    }

    /// The comparison as one HTML page that needs no network.
    pub fn html(&self) -> String {
        let names = self.labels().join(", ");
        let header = format!(
            "<header>\n<h1>Comparison of {} runs</h1>\n<p>{}</p>\n</header>\n",
            self.runs.len(),
            escape(&names)
        );
        let verdict = self.verdict().map(|v| format!("<p class=\"verdict\">{}</p>\n", escape(&v)));
        let notes: String =
            self.notes.iter().map(|n| format!("<p class=\"verdict worse\">{}</p>\n", escape(n))).collect();
        let body = [
            header,
            section(
                "figures",
                "Key figures",
                &(verdict.unwrap_or_default() + &notes + &self.table(&self.rows())),
            ),
            section("curves", "Curves", &grid(&self.curves())),
            section(
                "recipes",
                "Recipe keys that differ",
                &match self.differences.is_empty() {
                    true => format!("<p>{}</p>\n", self.no_differences()),
                    false => self.table(&self.difference_rows()),
                },
            ),
        ];
        page("Comparison of runs · Bessemer", &body.concat())
    }

    /// Writes the page atomically: a reader sees the old page or the new one, never a part.
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        bessemer_durable::write(path, self.html().as_bytes())
    }

    fn table(&self, rows: &[Vec<String>]) -> String {
        let labels = self.labels();
        let head: Vec<&str> = std::iter::once("").chain(labels.iter().map(String::as_str)).collect();
        table(&head, &vec![Align::Left; head.len()], rows)
    }

    fn curves(&self) -> Vec<String> {
        let facts: Vec<(usize, String, Facts<'_>)> = self
            .runs
            .iter()
            .enumerate()
            .map(|(i, r)| (i, cropped(&r.label), Facts::new(&r.records)))
            .collect();
        CURVES.iter().filter_map(|curve| curve.figure(&facts)).collect()
    }
}

/// A quantity of every run over a common axis.
struct Curve {
    heading: &'static str,
    note: &'static str,
    x_label: &'static str,
    y_label: &'static str,
    y_scale: Scale,
    points: fn(&Facts<'_>) -> Vec<[f64; 2]>,
}

const CURVES: [Curve; 8] = [
    Curve {
        heading: "Training loss over steps",
        note: "Smoothed over two percent of each run.",
        x_label: "step",
        y_label: "nats per token",
        y_scale: Scale::Linear,
        points: |f| losses(f, |s| s.step as f64),
    },
    Curve {
        heading: "Validation loss over steps",
        note: "",
        x_label: "step",
        y_label: "nats per token",
        y_scale: Scale::Linear,
        points: |f| evaluations(f, |e| [e.step as f64, e.loss]),
    },
    Curve {
        heading: "Training loss over tokens",
        note: "Smoothed over two percent of each run. Runs with other batch sizes are comparable here.",
        x_label: "tokens",
        y_label: "nats per token",
        y_scale: Scale::Linear,
        points: |f| losses(f, |s| s.tokens as f64),
    },
    Curve {
        heading: "Bits per byte over tokens",
        note: "Validation. Bits per byte are comparable across tokenizers; lower is better.",
        x_label: "tokens",
        y_label: "bits per byte",
        y_scale: Scale::Linear,
        points: |f| evaluations(f, |e| [e.tokens as f64, e.bits_per_byte]),
    },
    Curve {
        heading: "Training loss over time",
        note: "Time of the training steps alone, without evaluations and checkpoints.",
        x_label: "seconds",
        y_label: "nats per token",
        y_scale: Scale::Linear,
        points: |f| {
            let mut seconds = 0.0;
            losses(f, |s| {
                seconds += if s.seconds.is_finite() { s.seconds } else { 0.0 };
                seconds
            })
        },
    },
    Curve {
        heading: "Tokens per second",
        note: "Smoothed over two percent of each run.",
        x_label: "step",
        y_label: "",
        y_scale: Scale::Linear,
        points: |f| smooth_points(f, |s| s.step as f64, |s| s.tokens_per_s),
    },
    Curve {
        heading: "Learning rate",
        note: "",
        x_label: "step",
        y_label: "",
        y_scale: Scale::Linear,
        points: |f| f.steps.iter().map(|s| [s.step as f64, s.lr]).collect(),
    },
    Curve {
        heading: "Gradient norm before clipping (log scale)",
        note: "Smoothed over two percent of each run.",
        x_label: "step",
        y_label: "",
        y_scale: Scale::Log,
        points: |f| smooth_points(f, |s| s.step as f64, |s| s.grad_norm),
    },
];

impl Curve {
    /// The figure; `None` if no run has a value.
    fn figure(&self, runs: &[(usize, String, Facts<'_>)]) -> Option<String> {
        let series = runs.iter().map(|(i, label, facts)| {
            let series = Series::of_many(label, *i, (self.points)(facts));
            // A few points are measurements that one wants to see.
            let mark = if series.points.len() <= FEW { Mark::Dots } else { series.mark };
            Series { mark, ..series }
        });
        let shown = |s: &Series| s.points.iter().any(|p| self.y_scale.shows(p[1]));
        let series: Vec<Series> = series.filter(shown).collect();
        let chart = LineChart {
            title: self.heading.into(),
            x_label: self.x_label.into(),
            y_label: self.y_label.into(),
            y_scale: self.y_scale,
            ..LineChart::default()
        };
        (!series.is_empty()).then(|| figure(self.heading, &LineChart { series, ..chart }.svg(), self.note))
    }
}

fn losses(facts: &Facts<'_>, x: impl FnMut(&bessemer_runlog::Step) -> f64) -> Vec<[f64; 2]> {
    smooth_points(facts, x, |s| s.loss)
}

fn smooth_points(
    facts: &Facts<'_>,
    mut x: impl FnMut(&bessemer_runlog::Step) -> f64,
    y: impl Fn(&bessemer_runlog::Step) -> f64,
) -> Vec<[f64; 2]> {
    let values: Vec<f64> = facts.steps.iter().map(|s| y(s)).collect();
    let smooth = smoothed(&values, span(values.len()));
    facts.steps.iter().zip(smooth).map(|(s, y)| [x(s), y]).collect()
}

/// Points of the evaluations on the split that counts.
fn evaluations(facts: &Facts<'_>, point: fn(&bessemer_runlog::Eval) -> [f64; 2]) -> Vec<[f64; 2]> {
    let Some(last) = facts.final_eval() else { return Vec::new() };
    facts.evals.iter().filter(|e| e.split == last.split).map(|e| point(e)).collect()
}

/// Whether not all values are equal.
fn differ<T: PartialEq>(mut values: impl Iterator<Item = T>) -> bool {
    values.next().is_some_and(|first| values.any(|v| v != first))
}

fn cropped(label: &str) -> String {
    match label.char_indices().nth(LONGEST_LABEL) {
        // The end of a path tells more than its beginning.
        Some(_) => {
            let kept: Vec<char> = label.chars().rev().take(LONGEST_LABEL - 1).collect();
            std::iter::once('…').chain(kept.into_iter().rev()).collect()
        }
        None => label.to_string(),
    }
}

//! `bessemer metric kola`, `agreement` and `pyramid`: numbers and annotations in a table, without texts.

use super::{lines_of_json, one_file};
use crate::cli::MetricArgs;
use crate::console::print;
use crate::failure::Failure;
use crate::task_data::read_documents;
use bessemer_metrics::judgement::{Scale, cohen_kappa, fleiss_kappa, krippendorff_alpha};
use bessemer_metrics::kola::{TaskColumn, standardise};
use bessemer_metrics::pyramid::{Pyramid, PyramidScore};
use bessemer_tasks::Document;
use bessemer_units::counted;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Columns of a KoLA table that are no models.
const KOLA_COLUMNS: [&str; 3] = ["task", "level", "siblings"];

/// Rows of a file, at least one; all have the columns of the first.
fn rows(path: &Path) -> Result<Vec<Document>, Failure> {
    let rows = read_documents(path).map_err(|e| Failure::new(e.to_string()))?;
    match rows.is_empty() {
        true => Err(Failure::new(format!("{}: wanted a row or more below the names", path.display()))),
        false => Ok(rows),
    }
}

/// An error at a row, counted from 1 below the line of names.
fn at(path: &Path, row: usize, what: &str) -> Failure {
    Failure::new(format!("{}: row {}: {what}", path.display(), row + 1))
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn finish(as_json: bool, value: &Value, text: &str) -> Result<(), Failure> {
    Ok(print(&if as_json { serde_json::to_string(value)? } else { text.to_owned() })?)
}

/// Scores of several models made comparable over tasks.
pub(super) fn kola(args: &MetricArgs, as_json: bool) -> Result<(), Failure> {
    let path =
        one_file(args, "scores: the columns task, level, siblings (may be left out) and one for each model")?;
    let (value, out) = standardised(path, &rows(path)?)?;
    finish(as_json, &value, &out)
}

/// Standardised scores of the rows of a table, as JSON and in words.
pub(crate) fn standardised(path: &Path, rows: &[Document]) -> Result<(Value, String), Failure> {
    let models: Vec<String> =
        rows[0].keys().filter(|name| !KOLA_COLUMNS.contains(&name.as_str())).cloned().collect();
    if models.is_empty() {
        return Err(at(path, 0, "wanted a column for each model beside task, level and siblings"));
    }
    let (mut names, mut levels, mut families) = (Vec::new(), Vec::new(), Vec::new());
    let mut tasks = Vec::with_capacity(rows.len());
    let number = |list: &mut Vec<String>, name: String| match list.iter().position(|one| *one == name) {
        Some(at) => at,
        None => {
            list.push(name);
            list.len() - 1
        }
    };
    for (i, row) in rows.iter().enumerate() {
        let of = |column: &str| match row.get(column).filter(|value| !value.is_null()) {
            Some(value) => Ok(text(value)),
            None => Err(at(path, i, &format!("wanted a value in the column {column}"))),
        };
        let name = of("task")?;
        // A task without siblings is a family of its own.
        let family = of("siblings").unwrap_or_else(|_| format!("\u{0}{i}"));
        let scores = models.iter().map(|model| {
            let found = row.get(model).cloned().unwrap_or_default();
            found
                .as_f64()
                .ok_or_else(|| at(path, i, &format!("wanted a number in the column {model}, found {found}")))
        });
        tasks.push(TaskColumn {
            level: number(&mut levels, of("level")?),
            siblings: number(&mut families, family),
            scores: scores.collect::<Result<_, _>>()?,
        });
        names.push(name);
    }
    let done = standardise(&tasks).ok_or_else(|| at(path, 0, "wanted scores of all models in all tasks"))?;
    let by_model =
        |values: &[f64]| models.iter().cloned().zip(values.iter().map(|v| json!(v))).collect::<Map<_, _>>();
    let value = json!({
        "tasks": names.iter().zip(done.z.iter().zip(&done.scores)).map(|(task, (z, scores))| {
            json!({"task": task, "z": by_model(z), "score": by_model(scores)})
        }).collect::<Vec<_>>(),
        "levels": done.levels.iter().map(|(level, z)| json!({"level": levels[*level], "z": by_model(z)})).collect::<Vec<_>>(),
        "overall": by_model(&done.overall),
    });
    let width = models.iter().map(|model| model.chars().count()).max().unwrap_or(0).max(8);
    let first = names.iter().chain(&levels).map(|name| name.chars().count()).max().unwrap_or(0).max(12);
    let mut out = format!("{:first$}", "score");
    models.iter().for_each(|model| out += &format!("  {model:>width$}"));
    let mut line = |name: &str, values: &[f64]| {
        let _ = write!(out, "\n{name:first$}");
        values.iter().for_each(|value| out += &format!("  {value:>width$.4}"));
    };
    names.iter().zip(&done.scores).for_each(|(name, scores)| line(name, scores));
    line("z of level", &[]);
    done.levels.iter().for_each(|(level, z)| line(&levels[*level], z));
    line("overall z", &done.overall);
    Ok((value, out))
}

/// Ratings of items by annotators.
struct Ratings {
    annotators: Vec<String>,
    /// By item and annotator: the number of a category.
    codes: Vec<Vec<Option<usize>>>,
    /// By item: the ratings as numbers, if all are.
    numbers: Option<Vec<Vec<f64>>>,
    categories: usize,
}

impl Ratings {
    fn read(path: &Path) -> Result<Ratings, Failure> {
        let rows = rows(path)?;
        let annotators: Vec<String> = rows[0].keys().skip(1).cloned().collect();
        if annotators.len() < 2 {
            let found = rows[0].keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(at(
                path,
                0,
                &format!(
                    "wanted the name of an item and a column for each of two annotators or more, found {found}"
                ),
            ));
        }
        let mut known: Vec<String> = Vec::new();
        let given =
            |row: &Document, annotator: &String| row.get(annotator).filter(|value| !value.is_null()).cloned();
        let codes = rows.iter().map(|row| {
            annotators
                .iter()
                .map(|annotator| given(row, annotator).map(|value| text(&value)))
                .map(|rating| {
                    rating.map(|rating| match known.iter().position(|one| *one == rating) {
                        Some(code) => code,
                        None => {
                            known.push(rating);
                            known.len() - 1
                        }
                    })
                })
                .collect()
        });
        let codes = codes.collect();
        let numbers = rows
            .iter()
            .map(|row| {
                annotators
                    .iter()
                    .filter_map(|a| given(row, a))
                    .map(|v| v.as_f64())
                    .collect::<Option<Vec<_>>>()
            })
            .collect();
        Ok(Ratings { annotators, codes, numbers, categories: known.len() })
    }

    /// Share of pairs of ratings of one item that are equal, over all items.
    fn observed(&self) -> Option<f64> {
        let (mut equal, mut pairs) = (0, 0);
        for item in &self.codes {
            let given: Vec<usize> = item.iter().flatten().copied().collect();
            for (i, a) in given.iter().enumerate() {
                pairs += given.len() - i - 1;
                equal += given[i + 1..].iter().filter(|b| *b == a).count();
            }
        }
        (pairs > 0).then(|| equal as f64 / pairs as f64)
    }

    fn alpha(&self, scale: Scale) -> Option<f64> {
        match scale {
            Scale::Nominal => {
                let items =
                    self.codes.iter().map(|item| item.iter().flatten().map(|code| *code as f64).collect());
                krippendorff_alpha(&items.collect::<Vec<_>>(), scale)
            }
            _ => krippendorff_alpha(self.numbers.as_ref()?, scale),
        }
    }

    fn fleiss(&self) -> Option<f64> {
        let count = |item: &Vec<Option<usize>>| {
            let mut row = vec![0; self.categories];
            item.iter().flatten().for_each(|code| row[*code] += 1);
            row
        };
        fleiss_kappa(&self.codes.iter().map(count).collect::<Vec<_>>())
    }

    /// Cohen's kappa of each pair of annotators over the items that both have rated.
    fn cohen(&self) -> Vec<(&str, &str, Option<f64>)> {
        let mut all = Vec::new();
        for (i, a) in self.annotators.iter().enumerate() {
            for (j, b) in self.annotators.iter().enumerate().skip(i + 1) {
                let both = self.codes.iter().filter_map(|item| Some((item[i]?, item[j]?)));
                all.push((a.as_str(), b.as_str(), cohen_kappa(&both.collect::<Vec<_>>())));
            }
        }
        all
    }
}

/// Agreement of annotators.
pub(super) fn agreement(args: &MetricArgs, as_json: bool) -> Result<(), Failure> {
    let path = one_file(args, "ratings: a row for each item, its name and then a column for each annotator")?;
    let ratings = Ratings::read(path)?;
    let [nominal, ordinal, interval] =
        [Scale::Nominal, Scale::Ordinal, Scale::Interval].map(|scale| ratings.alpha(scale));
    let (observed, fleiss, cohen) = (ratings.observed(), ratings.fleiss(), ratings.cohen());
    let given: usize = ratings.codes.iter().flatten().flatten().count();
    let pairs: Vec<Value> =
        cohen.iter().map(|(a, b, kappa)| json!({"annotators": [a, b], "kappa": kappa})).collect();
    let value = json!({
        "items": ratings.codes.len(), "annotators": ratings.annotators, "ratings": given, "categories": ratings.categories,
        "observed_agreement": observed,
        "krippendorff_alpha": {"nominal": nominal, "ordinal": ordinal, "interval": interval},
        "fleiss_kappa": fleiss, "cohen_kappa": pairs,
    });
    let mut out = format!(
        "{} of {} by {}, {} different ones",
        counted(given, "rating"),
        counted(ratings.codes.len(), "item"),
        counted(ratings.annotators.len(), "annotator"),
        ratings.categories
    );
    let mut line = |name: &str, value: Option<f64>, without: &str| {
        let _ = match value {
            Some(value) => write!(out, "\n{name:32} {value:.4}"),
            None => write!(out, "\n{name:32} – ({without})"),
        };
    };
    let two = "wants an item with two ratings";
    line("observed agreement", observed, two);
    line("Krippendorff's alpha, nominal", nominal, two);
    line("Krippendorff's alpha, ordinal", ordinal, "wants numbers");
    line("Krippendorff's alpha, interval", interval, "wants numbers");
    line(
        "Fleiss' kappa",
        fleiss,
        "wants equally many ratings of each item, two or more, and two different ones",
    );
    for (a, b, kappa) in &cohen {
        line(
            &format!("Cohen's kappa, {a} and {b}"),
            *kappa,
            "wants items that both rated, and two different ratings",
        );
    }
    finish(as_json, &value, &out)
}

/// The list of content units at a key.
fn units(value: &Value) -> Option<BTreeSet<String>> {
    value.as_array()?.iter().map(|unit| unit.as_str().map(str::to_owned)).collect()
}

/// Summaries scored by the content units of reference summaries.
pub(super) fn pyramid(args: &MetricArgs, as_json: bool) -> Result<(), Failure> {
    let path = one_file(args, "annotations: a line of JSON for each topic, with references and peers")?;
    let mut all: Vec<Value> = Vec::new();
    let mut sums: BTreeMap<String, Vec<PyramidScore>> = BTreeMap::new();
    let mut out = format!(
        "{:20} {:20} {:>8} {:>8} {:>8} {:>13}",
        "topic", "peer", "sum", "quality", "coverage", "comprehensive"
    );
    let mut line = |topic: &str, peer: &str, score: &PyramidScore| {
        let PyramidScore { sum, quality, coverage, comprehensive } = score;
        let _ = write!(
            out,
            "\n{topic:20} {peer:20} {sum:>8.2} {quality:>8.4} {coverage:>8.4} {comprehensive:>13.4}"
        );
    };
    let to_json = |score: &PyramidScore| json!({"sum": score.sum, "quality": score.quality, "coverage": score.coverage, "comprehensive": score.comprehensive});
    for (i, topic) in lines_of_json(path)?.iter().enumerate() {
        let wrong = |what: &str| Failure::new(format!("{}: line {}: wanted {what}", path.display(), i + 1));
        let name = topic.get("topic").map_or_else(|| (i + 1).to_string(), text);
        let references = topic["references"]
            .as_array()
            .and_then(|list| list.iter().map(units).collect::<Option<Vec<_>>>());
        let references = references
            .filter(|list| !list.is_empty())
            .ok_or_else(|| wrong("references: a list of content units (texts) for each reference summary"))?;
        let peers = topic["peers"]
            .as_object()
            .ok_or_else(|| wrong("peers: an object of names and lists of content units"))?;
        let mut weights: BTreeMap<&String, usize> = BTreeMap::new();
        references.iter().flatten().for_each(|unit| *weights.entry(unit).or_default() += 1);
        let pyramid = Pyramid::of_weights(&weights.values().copied().collect::<Vec<_>>());
        let mean = references.iter().map(BTreeSet::len).sum::<usize>() as f64 / references.len() as f64;
        for (peer, found) in peers {
            let found = units(found)
                .ok_or_else(|| wrong(&format!("peers.{peer}: a list of content units (texts)")))?;
            let of_peer: Vec<usize> =
                found.iter().map(|unit| weights.get(unit).copied().unwrap_or(0)).collect();
            let score = pyramid.score(&of_peer, mean);
            line(&name, peer, &score);
            all.push(json!({"topic": name, "peer": peer, "score": to_json(&score)}));
            sums.entry(peer.clone()).or_default().push(score);
        }
    }
    if all.is_empty() {
        return Err(Failure::new(format!(
            "{}: wanted a topic with a peer or more, found none",
            path.display()
        )));
    }
    let mut means = Map::new();
    for (peer, scores) in &sums {
        let of = |pick: fn(&PyramidScore) -> f64| scores.iter().map(pick).sum::<f64>() / scores.len() as f64;
        let mean = PyramidScore {
            sum: of(|s| s.sum),
            quality: of(|s| s.quality),
            coverage: of(|s| s.coverage),
            comprehensive: of(|s| s.comprehensive),
        };
        line("mean", peer, &mean);
        means.insert(peer.clone(), to_json(&mean));
    }
    finish(as_json, &json!({"scores": all, "mean": means}), &out)
}

//! The data card: what a corpus is made of and what was taken out of it, as one HTML page that needs no network. Every build
//! writes it beside `corpus.json`; it holds no time and no machine's name, so it is the same for the same corpus. What a card
//! should say follows Gebru et al. 2021, "Datasheets for datasets" (composition, collection, cleaning).

mod html;
mod removal;
pub(crate) mod samples;
mod svg;

use super::summary::{CARD_FILE, CorpusSummary, Count, ScoreSummary, most_documents_first};
use crate::error::Result;
use crate::evaluate::{Evaluation, SHARES};
use crate::inspect::InspectFilter;
use crate::read::CorpusReader;
use crate::tokenize::Tokenized;
use html::{bytes, escaped, number, percent, row, share};
use removal::{by_source, removal, totals};
use samples::Samples;
use std::collections::BTreeMap;
use std::fmt::Write;
use svg::Bar;

/// Remarks that are open at the head of the page.
const ALERTS: usize = 6;
/// Names of a score that are drawn.
const NAMES: usize = 20;

const STYLE: &str = ":root{color-scheme:light dark;--fg:#222;--bg:#fff;--dim:#666;--line:#ddd;--box:#f5f3f0;--alert:#fbeee8;--mark:#b4532a}\
@media(prefers-color-scheme:dark){:root{--fg:#dcdcdc;--bg:#16181b;--dim:#9aa0a6;--line:#3a3f45;--box:#22262a;--alert:#3a2620;--mark:#e08a5f}}\
body{font:15px/1.45 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:var(--fg);background:var(--bg)}\
table{border-collapse:collapse;margin:.5rem 0 1.5rem;display:block;overflow-x:auto}td,th{white-space:nowrap;padding:.15rem .7rem;text-align:right;border-bottom:1px solid var(--line)}\
td:first-child,th:first-child{text-align:left}code{overflow-wrap:anywhere}\
svg{max-width:100%;height:auto}svg text{fill:var(--fg)}svg .note{fill:var(--dim)}svg .axis{stroke:var(--dim)}\
pre{background:var(--box);padding:.6rem;white-space:pre-wrap;overflow-wrap:anywhere}\
.alert{border-left:4px solid var(--mark);padding:.2rem .8rem;background:var(--alert);overflow-wrap:anywhere}.small{color:var(--dim)}\
.key{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 .8rem}";

/// Where [`run_card`] puts what is known only after the corpus was built.
const RUN_MARK: &str = "<!-- run -->\n";

fn alerts(html: &mut String, summary: &CorpusSummary) {
    let shown = &summary.remarks[..summary.remarks.len().min(ALERTS)];
    for line in shown {
        let _ = writeln!(html, "<p class=alert>{}</p>", escaped(line));
    }
    if summary.remarks.len() > shown.len() {
        let _ = writeln!(
            html,
            "<details><summary>{} more remarks</summary>",
            summary.remarks.len() - shown.len()
        );
        for line in &summary.remarks[shown.len()..] {
            let _ = writeln!(html, "<p class=alert>{}</p>", escaped(line));
        }
        html.push_str("</details>\n");
    }
}

/// How long the kept documents are.
fn lengths(html: &mut String, summary: &CorpusSummary) {
    let all: Count = summary.lengths.values().sum();
    let (Some(first), Some(last)) = (summary.lengths.keys().next(), summary.lengths.keys().next_back())
    else {
        return;
    };
    let most = summary.lengths.values().map(|count| count.documents).max().unwrap_or(0);
    let bars: Vec<Bar> = (*first..=*last)
        .map(|power| {
            let count = summary.lengths.get(&power).copied().unwrap_or_default();
            Bar {
                label: format!("{} to {}", bytes(1 << power), bytes(2 << power)),
                parts: vec![(share(count.documents, most), 0)],
                note: format!("{} ({})", number(count.documents), percent(count.documents, all.documents)),
            }
        })
        .collect();
    let _ = writeln!(
        html,
        "<h2>Lengths of the kept documents</h2>\n<p>Documents by bytes of text; {} on average.</p>\n{}",
        bytes(all.bytes.checked_div(all.documents).unwrap_or(0)),
        svg::bars(&bars)
    );
}

/// Files that were left out, by kind.
fn skipped(html: &mut String, summary: &CorpusSummary) {
    if summary.skipped.is_empty() {
        return;
    }
    html.push_str("<h2>Files left out</h2>\n<table><tr><th>kind</th><th>files</th><th>bytes</th><th>such as</th></tr>\n");
    let mut kinds: Vec<_> = summary.skipped.iter().collect();
    kinds.sort_by(|a, b| b.1.files.cmp(&a.1.files).then_with(|| a.0.cmp(b.0)));
    for (kind, files) in kinds {
        // Of entries that were not looked at the size is not known.
        let size = if files.bytes > 0 { bytes(files.bytes) } else { "–".into() };
        row(html, &[kind.clone(), number(files.files), size, files.examples.join(", ")]);
    }
    html.push_str("</table>\n");
}

/// Program and configuration that made the corpus.
fn how_built(html: &mut String, summary: &CorpusSummary) {
    let Some(built) = &summary.built_with else { return };
    let _ = writeln!(
        html,
        "<h2>How it was built</h2>\n<p>{}; key of configuration and input <code>{}</code>. Of <code>[corpus]</code>, what differs from \
         the defaults, without paths and memory:</p>\n<pre>{}</pre>",
        escaped(&built.program),
        escaped(&summary.key),
        escaped(&serde_json::to_string_pretty(&built.config).unwrap_or_default())
    );
}

/// Bytes kept by licence, where sources state any.
fn licences(html: &mut String, summary: &CorpusSummary) {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for source in &summary.sources {
        *bytes.entry(source.licence.as_deref().unwrap_or("not stated")).or_default() += source.kept.bytes;
    }
    bytes.retain(|_, bytes| *bytes > 0);
    if bytes.keys().all(|licence| *licence == "not stated") {
        return;
    }
    let mut sorted: Vec<(&str, u64)> = bytes.into_iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let bars: Vec<Bar> = sorted
        .into_iter()
        .take(NAMES)
        .map(|(licence, bytes)| Bar {
            label: licence.to_string(),
            parts: vec![(share(bytes, summary.kept.bytes), 0)],
            note: percent(bytes, summary.kept.bytes),
        })
        .collect();
    let _ = writeln!(
        html,
        "<h2>Licences</h2>\n<p>Bytes kept, by licence of the source</p>\n{}",
        svg::bars(&bars)
    );
}

/// Distributions of the scores over the kept documents.
fn scores(html: &mut String, summary: &CorpusSummary) {
    if summary.scores.is_empty() {
        return;
    }
    html.push_str("<h2>Scores of the kept documents</h2>\n");
    for (name, score) in &summary.scores {
        let _ =
            writeln!(html, "<h3>{}</h3>\n<p class=small>{}</p>", escaped(name), escaped(&score.in_words()));
        if score.quantiles.is_empty() {
            html.push_str(&names_of(score));
        } else {
            html.push_str(&svg::quantile_curve(&score.quantiles));
        }
    }
}

/// Documents by name.
fn names_of(score: &ScoreSummary) -> String {
    let values = most_documents_first(&score.values);
    let bar = |label: &str, count: &Count| Bar {
        label: label.to_string(),
        parts: vec![(share(count.documents, score.documents), 0)],
        note: format!("{} documents", count.documents),
    };
    let mut bars: Vec<Bar> = values.iter().take(NAMES).map(|(name, count)| bar(name, count)).collect();
    let rest: Count = values.iter().skip(NAMES).map(|(_, count)| count).chain(&score.other_values).sum();
    if rest.documents > 0 {
        bars.push(bar("others", &rest));
    }
    svg::bars(&bars)
}

/// What the sample of `[corpus.evaluate]` showed.
fn evaluated(html: &mut String, summary: &CorpusSummary) {
    let Some(Evaluation { sampled, profiles }) = &summary.evaluation else { return };
    let _ = writeln!(
        html,
        "<h2>Evaluation</h2>\n<p>A sample of {} kept documents ({} bytes, {} of what is kept), chosen by a hash of their names, judged once \
         more. Nothing was changed by it.</p>",
        sampled.documents,
        sampled.bytes,
        percent(sampled.documents, summary.kept.documents)
    );
    for (name, found) in profiles {
        let _ = writeln!(
            html,
            "<h3>Profile {}</h3>\n<p>{} of {} documents would pass ({}).</p>",
            escaped(name),
            found.passed,
            sampled.documents,
            percent(found.passed, sampled.documents)
        );
        let bars: Vec<Bar> = found
            .dropped
            .iter()
            .map(|(reason, count)| Bar {
                label: reason.clone(),
                parts: vec![(share(*count, sampled.documents), 1)],
                note: percent(*count, sampled.documents),
            })
            .collect();
        if !bars.is_empty() {
            html.push_str(&svg::bars(&bars));
        }
        let heads: String = SHARES.iter().map(|share| format!("<th>{:.0} %</th>", share * 100.0)).collect();
        let _ = writeln!(
            html,
            "<table><tr><th>measure</th><th>allowed</th><th>outside</th><th>documents</th>{heads}</tr>"
        );
        for measure in &found.measures {
            let limit = |limit: Option<f64>| limit.map_or("–".to_string(), |limit| limit.to_string());
            let allowed = match (measure.min, measure.max) {
                (None, None) => "told only".to_string(),
                (min, max) => format!("{} to {}", limit(min), limit(max)),
            };
            let mut cells = vec![
                measure.name.clone(),
                allowed,
                percent(measure.outside, sampled.documents),
                measure.documents.to_string(),
            ];
            cells.extend(measure.quantiles.iter().map(|value| format!("{value:.4}")));
            row(html, &cells);
        }
        html.push_str("</table>\n");
    }
}

fn shown(html: &mut String, samples: &Samples) {
    html.push_str("<h2>Samples</h2>\n");
    for (title, documents) in samples.groups() {
        let _ = writeln!(html, "<h3>{}</h3>", escaped(&title));
        for document in documents {
            let _ = writeln!(
                html,
                "<details><summary><b>{}</b> <span class=small>{}</span></summary>\n<pre>{}</pre></details>",
                escaped(&document.id),
                escaped(document.detail.as_deref().unwrap_or("")),
                escaped(&document.head)
            );
        }
    }
}

/// The page of a corpus with these samples.
pub(crate) fn render(summary: &CorpusSummary, samples: &Samples) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>Data card</title><style>{STYLE}</style>\n<h1>Data card</h1>\n\
         <p>{} documents, {} of text, from {} ({} files, {} as stored); split by {}. Fingerprint of the text: <code>{}</code></p>\n",
        number(summary.kept.documents),
        bytes(summary.kept.bytes),
        escaped(&summary.source),
        number(summary.listed_files),
        bytes(summary.listed_bytes),
        escaped(&summary.split_by),
        escaped(&summary.fingerprint)
    );
    alerts(&mut html, summary);
    html.push_str(RUN_MARK);
    totals(&mut html, summary);
    lengths(&mut html, summary);
    removal(&mut html, summary);
    by_source(&mut html, summary);
    skipped(&mut html, summary);
    licences(&mut html, summary);
    scores(&mut html, summary);
    evaluated(&mut html, summary);
    shown(&mut html, samples);
    how_built(&mut html, summary);
    html.push_str("</html>\n");
    html
}

/// What a run made of a corpus: known only after the corpus was built.
#[derive(Debug, Clone, Default)]
pub struct RunCard {
    /// Shards of the corpus.
    pub tokens: Option<Tokenized>,
    /// Entries of the tokenizer's vocabulary.
    pub vocab_size: Option<u64>,
    /// The command that began the run.
    pub command: Option<String>,
    /// The resolved recipe.
    pub recipe: Option<String>,
}

/// The data card of a finished corpus with what a run made of it.
///
/// # Errors
/// The errors of [`data_card`].
pub fn run_card(reader: &CorpusReader, run: &RunCard) -> Result<String> {
    let page = data_card(reader)?;
    let mut html = String::new();
    if let Some(tokens) = &run.tokens {
        html.push_str(
            "<h2>Tokens</h2>\n<table><tr><th></th><th>documents</th><th>tokens</th><th>bytes a token</th><th>tokens a document</th></tr>\n",
        );
        for (split, part) in &tokens.splits {
            let each =
                |whole: u64, of: u64| if of == 0 { "–".into() } else { format!("{:.2}", share(whole, of)) };
            let cells = [
                split.name().to_string(),
                number(part.documents),
                number(part.tokens),
                each(part.text_bytes, part.tokens),
                number(part.tokens.checked_div(part.documents).unwrap_or(0)),
            ];
            row(&mut html, &cells);
        }
        let vocabulary = run.vocab_size.map(|size| format!("{} entries, ", number(size))).unwrap_or_default();
        let _ = writeln!(
            html,
            "</table>\n<p class=small>Tokenizer: {vocabulary}fingerprint <code>{}</code>.</p>",
            escaped(&tokens.tokenizer)
        );
    }
    if let Some(command) = &run.command {
        let _ = writeln!(html, "<p>Run with <code>{}</code></p>", escaped(command));
    }
    if let Some(recipe) = &run.recipe {
        let _ = writeln!(
            html,
            "<details><summary>The whole recipe</summary>\n<pre>{}</pre></details>",
            escaped(recipe)
        );
    }
    Ok(page.replacen(RUN_MARK, &html, 1))
}

/// The data card of a finished corpus: the one that its build wrote, or for a corpus of an earlier version one made from all its
/// documents.
///
/// # Errors
/// A damaged corpus, or the disk's refusal.
pub fn data_card(reader: &CorpusReader) -> Result<String> {
    let summary = reader.summary();
    if let Some(page) = reader.text_file(CARD_FILE)? {
        return Ok(page);
    }
    let mut samples = Samples::default();
    for kept in [true, false] {
        for document in reader.inspect(InspectFilter { kept, ..InspectFilter::default() }) {
            let document = document?;
            match (document.split, &document.reason) {
                (Some(split), _) => samples.keep(split, &document.id, &document.head),
                (None, Some(reason)) => {
                    samples.drop(reason, &document.id, document.detail.as_deref(), &document.head);
                }
                (None, None) => {}
            }
        }
    }
    Ok(render(summary, &samples))
}

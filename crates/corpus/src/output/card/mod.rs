//! The data card: what a corpus is made of and what was taken out of it, as one HTML page that needs no network. Every build
//! writes it beside `corpus.json`; it holds no time and no machine's name, so it is the same for the same corpus. What a card
//! should say follows Gebru et al. 2021, "Datasheets for datasets" (composition, collection, cleaning).

pub(crate) mod samples;
mod svg;

use super::summary::{CARD_FILE, CorpusSummary, Count, ScoreSummary, SourceSummary};
use crate::error::Result;
use crate::evaluate::{Evaluation, SHARES};
use crate::inspect::InspectFilter;
use crate::read::CorpusReader;
use crate::tokenize::Tokenized;
use bessemer_documents::Split;
use bessemer_units::Bytes;
use samples::Samples;
use std::collections::BTreeMap;
use std::fmt::Write;
use svg::Bar;

/// Sources whose own row is shown; the rest is one row.
const SOURCES: usize = 200;
/// Sources that are drawn.
const DRAWN: usize = 40;
/// Reasons that have a colour and a column of their own in what is told by source.
const REASONS: usize = 8;
/// Sources up to which those of one document have rows of their own.
const FEW_SOURCES: usize = 8;
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

/// `text` with what HTML would read as its own escaped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Control characters but line ends and tabs are no HTML.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "–".into() } else { format!("{:.2} %", 100.0 * share(part, whole)) }
}

fn sum<'a>(counts: impl IntoIterator<Item = &'a Count>) -> Count {
    counts.into_iter().fold(Count::default(), |all, count| Count {
        documents: all.documents + count.documents,
        bytes: all.bytes + count.bytes,
    })
}

/// Name and version.
fn name(source: &SourceSummary) -> String {
    match &source.version {
        Some(version) => format!("{} {version}", source.name),
        None => source.name.clone(),
    }
}

/// Reasons in the order of the documents that they dropped.
fn reasons(summary: &CorpusSummary) -> Vec<(&str, Count)> {
    let mut all: Vec<(&str, Count)> =
        summary.dropped_by_reason.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
    all.sort_by(|a, b| b.1.documents.cmp(&a.1.documents).then_with(|| a.0.cmp(b.0)));
    all
}

/// Sources that were read, largest first.
fn sources(summary: &CorpusSummary) -> Vec<&SourceSummary> {
    let mut all: Vec<&SourceSummary> = summary.sources.iter().filter(|s| s.read.documents > 0).collect();
    all.sort_by(|a, b| b.read.bytes.cmp(&a.read.bytes).then_with(|| name(a).cmp(&name(b))));
    all
}

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

/// A number of documents with its thousands apart.
fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes in a unit that people read.
fn bytes(value: u64) -> String {
    Bytes(value).to_string()
}

fn row(html: &mut String, cells: &[String]) {
    let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
    let _ = writeln!(html, "<tr>{cells}</tr>");
}

fn totals(html: &mut String, summary: &CorpusSummary) {
    html.push_str(
        "<h2>Documents</h2>\n<table><tr><th></th><th>documents</th><th>bytes</th><th>of the bytes read</th></tr>\n",
    );
    let mut line = |what: &str, count: Count| {
        let part = percent(count.bytes, summary.read.bytes);
        row(html, &[what.into(), number(count.documents), bytes(count.bytes), part]);
    };
    line("read", summary.read);
    line("kept", summary.kept);
    for split in Split::ALL {
        let side = summary.split(split);
        line(&format!("kept for {}", split.name()), Count { documents: side.documents, bytes: side.bytes });
    }
    line("dropped", summary.dropped);
    let _ = writeln!(
        html,
        "</table>\n<p>Replaced in kept documents: {} e-mail addresses, {} IP addresses; removed: {} lines.</p>",
        summary.emails_replaced, summary.ips_replaced, summary.lines_removed
    );
    edits(html, summary);
}

/// Edits that only some corpora make.
fn edits(html: &mut String, summary: &CorpusSummary) {
    if summary.numbers_replaced + summary.secrets_replaced > 0 {
        let _ = writeln!(
            html,
            "<p>Also replaced: {} phone, card and account numbers, {} keys and tokens.</p>",
            summary.numbers_replaced, summary.secrets_replaced
        );
    }
    for (set, count) in &summary.decontaminated {
        let _ = writeln!(
            html,
            "<p>Evaluation set {}: {} documents dropped, {} places cut out of {} documents.</p>",
            escaped(set),
            count.dropped,
            count.places,
            count.cut
        );
    }
}

fn removal(html: &mut String, summary: &CorpusSummary) {
    html.push_str("<h2>Removal by rule</h2>\n");
    let all = reasons(summary);
    if all.is_empty() {
        html.push_str("<p>Nothing was dropped.</p>\n");
        return;
    }
    for (what, documents) in [("Documents", true), ("Bytes", false)] {
        let of = |count: &Count| if documents { count.documents } else { count.bytes };
        let bars: Vec<Bar> = all
            .iter()
            .map(|(reason, count)| Bar {
                label: (*reason).to_string(),
                parts: vec![(share(of(count), of(&summary.read)), 1)],
                note: percent(of(count), of(&summary.read)),
            })
            .collect();
        let _ = writeln!(html, "<p>{what} dropped, of all that were read</p>\n{}", svg::bars(&bars));
    }
    html.push_str(
        "<table><tr><th>reason</th><th>documents</th><th>of all</th><th>bytes</th><th>of all</th></tr>\n",
    );
    for (reason, count) in &all {
        let cells = [
            (*reason).to_string(),
            number(count.documents),
            percent(count.documents, summary.read.documents),
            bytes(count.bytes),
            percent(count.bytes, summary.read.bytes),
        ];
        row(html, &cells);
    }
    html.push_str("</table>\n");
}

/// Dropped documents of each source, by reason.
fn by_source(html: &mut String, summary: &CorpusSummary) {
    let (all, single) = shown_sources(summary);
    let named: Vec<&str> = reasons(summary).into_iter().take(REASONS).map(|(reason, _)| reason).collect();
    let other = named.len() + 1;
    html.push_str("<h2>Removal by source</h2>\n");
    let mut names = vec![("kept", 0)];
    names.extend(named.iter().enumerate().map(|(index, reason)| (*reason, index + 1)));
    if summary.dropped_by_reason.len() > named.len() {
        names.push(("other reasons", other));
    }
    html.push_str(&svg::legend(&names));
    let mut bars: Vec<Bar> = all.iter().take(DRAWN).map(|source| stacked(source, &named)).collect();
    bars.extend(together(&single, "files of one document each").map(|all| stacked(&all, &named)));
    let _ = writeln!(
        html,
        "<p>The {} largest sources: what was read, and what became of its bytes</p>\n{}",
        bars.len(),
        svg::bars(&bars)
    );
    let heads: String = named.iter().map(|reason| format!("<th>{}</th>", escaped(reason))).collect();
    let _ = writeln!(
        html,
        "<table><tr><th>source</th><th>licence</th><th>documents</th><th>bytes</th><th>dropped</th>{heads}</tr>"
    );
    let shown = &all[..all.len().min(SOURCES)];
    for source in shown {
        let licence = source.licence.as_deref().unwrap_or("not stated");
        source_row(html, name(source), licence, source.read, &source.dropped, &named);
    }
    for (words, rest) in [("more sources", &all[shown.len()..]), ("files of one document each", &single)] {
        if let Some(rest) = together(rest, words) {
            source_row(html, rest.name, "", rest.read, &rest.dropped, &named);
        }
    }
    html.push_str(
        "</table>\n<p class=small>Dropped and the columns of reasons: share of the source's bytes.</p>\n",
    );
}

/// Sources with a row of their own, and those of one document, which are told together where there are several.
fn shown_sources(summary: &CorpusSummary) -> (Vec<&SourceSummary>, Vec<&SourceSummary>) {
    let (single, all): (Vec<_>, Vec<_>) =
        sources(summary).into_iter().partition(|source| source.read.documents == 1);
    if single.len() > 1 && single.len() + all.len() > FEW_SOURCES {
        return (all, single);
    }
    (sources(summary), Vec::new())
}

/// Sources as one; none of none.
fn together(sources: &[&SourceSummary], words: &str) -> Option<SourceSummary> {
    let mut all = SourceSummary {
        name: format!("{} {words}", number(sources.len() as u64)),
        ..SourceSummary::default()
    };
    for source in sources {
        all.read = sum([&all.read, &source.read]);
        for (reason, count) in &source.dropped {
            let dropped = all.dropped.entry(reason.clone()).or_default();
            *dropped = sum([&*dropped, count]);
        }
    }
    (!sources.is_empty()).then_some(all)
}

fn stacked(source: &SourceSummary, named: &[&str]) -> Bar {
    let gone = sum(source.dropped.values());
    let of = |reason: &str| source.dropped.get(reason).map_or(0, |count| count.bytes);
    let by_name: u64 = named.iter().map(|reason| of(reason)).sum();
    let whole = source.read.bytes;
    let mut parts = vec![(share(whole.saturating_sub(gone.bytes), whole), 0)];
    parts.extend(named.iter().enumerate().map(|(index, reason)| (share(of(reason), whole), index + 1)));
    parts.push((share(gone.bytes.saturating_sub(by_name), whole), named.len() + 1));
    parts.retain(|(share, _)| *share > 0.0);
    Bar { label: name(source), parts, note: format!("−{}", percent(gone.bytes, whole)) }
}

fn source_row(
    html: &mut String,
    name: String,
    licence: &str,
    read: Count,
    dropped: &BTreeMap<String, Count>,
    named: &[&str],
) {
    let gone = sum(dropped.values());
    let mut cells = vec![
        name,
        licence.to_string(),
        number(read.documents),
        bytes(read.bytes),
        percent(gone.bytes, read.bytes),
    ];
    let of =
        |reason: &&str| dropped.get(*reason).map_or(String::new(), |count| percent(count.bytes, read.bytes));
    cells.extend(named.iter().map(of));
    row(html, &cells);
}

/// How long the kept documents are.
fn lengths(html: &mut String, summary: &CorpusSummary) {
    let all = sum(summary.lengths.values());
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
    let mut values: Vec<(&String, &Count)> = score.values.iter().collect();
    values.sort_by(|a, b| b.1.documents.cmp(&a.1.documents).then_with(|| a.0.cmp(b.0)));
    let bar = |label: &str, count: &Count| Bar {
        label: label.to_string(),
        parts: vec![(share(count.documents, score.documents), 0)],
        note: format!("{} documents", count.documents),
    };
    let mut bars: Vec<Bar> = values.iter().take(NAMES).map(|(name, count)| bar(name, count)).collect();
    let hidden = values.iter().skip(NAMES).map(|(_, count)| *count).chain(&score.other_values);
    let rest = sum(hidden);
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

//! What was read, kept and dropped: in all, by rule, by source.

use super::html::{bytes, escaped, number, percent, row, share};
use super::svg::{self, Bar};
use crate::output::summary::{CorpusSummary, Count, SourceSummary, most_documents_first};
use bessemer_documents::Split;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Sources whose own row is shown; the rest is one row.
const SOURCES: usize = 200;
/// Sources that are drawn.
const DRAWN: usize = 40;
/// Reasons that have a colour and a column of their own in the table of sources.
const REASONS: usize = 8;
/// Sources up to which those of one document have rows of their own.
const FEW_SOURCES: usize = 8;

/// Name and version.
fn name(source: &SourceSummary) -> String {
    match &source.version {
        Some(version) => format!("{} {version}", source.name),
        None => source.name.clone(),
    }
}

/// Sources that were read, largest first.
fn sources(summary: &CorpusSummary) -> Vec<&SourceSummary> {
    let mut all: Vec<&SourceSummary> = summary.sources.iter().filter(|s| s.read.documents > 0).collect();
    all.sort_by(|a, b| b.read.bytes.cmp(&a.read.bytes).then_with(|| name(a).cmp(&name(b))));
    all
}

pub(super) fn totals(html: &mut String, summary: &CorpusSummary) {
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

pub(super) fn removal(html: &mut String, summary: &CorpusSummary) {
    html.push_str("<h2>Removal by rule</h2>\n");
    let all = most_documents_first(&summary.dropped_by_reason);
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
pub(super) fn by_source(html: &mut String, summary: &CorpusSummary) {
    let (all, single) = shown_sources(summary);
    let named: Vec<&str> = most_documents_first(&summary.dropped_by_reason)
        .into_iter()
        .take(REASONS)
        .map(|(reason, _)| reason)
        .collect();
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

/// Sources with a row of their own, and those of one document, which share one row where there are several.
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
        all.read += source.read;
        for (reason, count) in &source.dropped {
            *all.dropped.entry(reason.clone()).or_default() += *count;
        }
    }
    (!sources.is_empty()).then_some(all)
}

fn stacked(source: &SourceSummary, named: &[&str]) -> Bar {
    let gone: Count = source.dropped.values().sum();
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
    let gone: Count = dropped.values().sum();
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

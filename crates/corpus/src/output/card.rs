//! The data card: what a corpus is made of and what was taken out of it, as one HTML page that needs no network.
//!
//! It is made from a finished corpus and belongs to no format: the numbers are those of `corpus.json`, the samples those of the
//! files of documents. Of dropped documents it shows for each reason the few whose names hash lowest, a sample that
//! depends on nothing but the corpus; of kept ones the first of each side.

use super::summary::{CorpusSummary, Count, SourceSummary};
use crate::error::Result;
use crate::read::{CorpusReader, InspectFilter, Inspected};
use crate::row::Split;
use std::collections::BTreeMap;
use std::fmt::Write;
use xxhash_rust::xxh3::xxh3_64;

/// Dropped documents shown for each reason, and kept ones for each side.
const SAMPLES: usize = 3;
/// Sources listed; the rest is one line.
const SOURCES: usize = 200;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{padding:.15rem .7rem;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}.bar{background:#b4532a;height:.7rem}.kept{background:#3a7d5d}\
td.plot{width:16rem;text-align:left}pre{background:#f5f3f0;padding:.6rem;white-space:pre-wrap;overflow-wrap:anywhere}\
.alert{border-left:4px solid #b4532a;padding:.2rem .8rem;background:#fbeee8}.small{color:#666}";

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
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// A row of a table with a bar.
fn row(html: &mut String, name: &str, count: Count, whole: u64, class: &str) {
    let percent = share(count.bytes, whole);
    let _ = writeln!(
        html,
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{percent:.2} %</td><td class=plot><div class=\"bar {class}\" \
         style=\"width:{:.2}%\"></div></td></tr>",
        escaped(name),
        count.documents,
        count.bytes,
        percent.clamp(0.0, 100.0)
    );
}

fn dropped(source: &SourceSummary) -> Count {
    let mut all = Count::default();
    for count in source.dropped.values() {
        all.documents += count.documents;
        all.bytes += count.bytes;
    }
    all
}

fn totals(html: &mut String, summary: &CorpusSummary) {
    html.push_str(
        "<h2>Documents</h2>\n<table><tr><th></th><th>documents</th><th>bytes</th><th>of what was read</th><th></th></tr>\n",
    );
    row(html, "read", summary.read, summary.read.bytes, "kept");
    row(html, "kept", summary.kept, summary.read.bytes, "kept");
    for split in Split::ALL {
        let side = summary.split(split);
        let count = Count { documents: side.documents, bytes: side.bytes };
        row(html, &format!("kept for {}", split.name()), count, summary.read.bytes, "kept");
    }
    row(html, "dropped", summary.dropped, summary.read.bytes, "");
    let _ = writeln!(
        html,
        "</table>\n<p>Replaced in kept documents: {} e-mail addresses, {} IP addresses; removed: {} lines.</p>",
        summary.emails_replaced, summary.ips_replaced, summary.lines_removed
    );
    edits(html, summary);
    html.push_str(
        "<h2>Dropped by reason</h2>\n<table><tr><th>reason</th><th>documents</th><th>bytes</th><th>of what was read</th><th></th></tr>\n",
    );
    for (reason, count) in &summary.dropped_by_reason {
        row(html, reason, *count, summary.read.bytes, "");
    }
    html.push_str("</table>\n");
}

/// What only some corpora replace or cut.
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

/// What each source lost, by reason. (Those that lost nearly everything are among the remarks.)
fn sources(html: &mut String, summary: &CorpusSummary) {
    let mut sources: Vec<&SourceSummary> = summary.sources.iter().filter(|s| s.read.documents > 0).collect();
    sources.sort_by(|a, b| b.read.bytes.cmp(&a.read.bytes).then(a.name.cmp(&b.name)));
    html.push_str(
        "<h2>Sources</h2>\n<table><tr><th>source</th><th>licence</th><th>documents read</th><th>bytes read</th>\
         <th>bytes dropped</th><th></th><th>by reason (documents)</th></tr>\n",
    );
    for source in sources.iter().take(SOURCES) {
        let gone = dropped(source);
        let reasons: Vec<String> = source
            .dropped
            .iter()
            .map(|(reason, count)| format!("{} {}", escaped(reason), count.documents))
            .collect();
        let percent = share(gone.bytes, source.read.bytes);
        let _ = writeln!(
            html,
            "<tr><td>{} {}</td><td>{}</td><td>{}</td><td>{}</td><td>{percent:.1} %</td><td class=plot>\
             <div class=bar style=\"width:{:.1}%\"></div></td><td>{}</td></tr>",
            escaped(&source.name),
            escaped(source.version.as_deref().unwrap_or("")),
            escaped(source.licence.as_deref().unwrap_or("not stated")),
            source.read.documents,
            source.read.bytes,
            percent.clamp(0.0, 100.0),
            reasons.join(", ")
        );
    }
    html.push_str("</table>\n");
    if sources.len() > SOURCES {
        let _ = writeln!(html, "<p class=small>The {SOURCES} largest of {} sources.</p>", sources.len());
    }
}

fn samples(html: &mut String, reader: &CorpusReader) -> Result<()> {
    let mut lowest: BTreeMap<String, BTreeMap<(u64, String), Inspected>> = BTreeMap::new();
    for document in reader.inspect(InspectFilter::default()) {
        let document = document?;
        let of_reason = lowest.entry(document.reason.clone().unwrap_or_default()).or_default();
        of_reason.insert((xxh3_64(document.id.as_bytes()), document.id.clone()), document);
        if of_reason.len() > SAMPLES {
            of_reason.pop_last();
        }
    }
    let mut parts: Vec<(String, Vec<Inspected>)> = Vec::new();
    for split in Split::ALL {
        let kept = reader.inspect(InspectFilter { kept: true, ..InspectFilter::default() });
        let of_side = kept.filter(|row| row.as_ref().map_or(true, |row| row.split == Some(split)));
        let first: Result<Vec<Inspected>> = of_side.take(SAMPLES).collect();
        parts.push((format!("Kept for {}", split.name()), first?));
    }
    for (reason, documents) in lowest {
        parts.push((format!("Dropped: {reason}"), documents.into_values().collect()));
    }
    for (title, documents) in parts {
        let _ = writeln!(html, "<h3>{}</h3>", escaped(&title));
        for document in &documents {
            let _ = writeln!(
                html,
                "<p><b>{}</b> <span class=small>{}</span></p>\n<pre>{}</pre>",
                escaped(&document.id),
                escaped(document.detail.as_deref().unwrap_or("")),
                escaped(&document.head)
            );
        }
    }
    Ok(())
}

/// The data card of a finished corpus. Reads the list of dropped documents once, and the beginning of each side.
///
/// # Errors
/// A damaged corpus, or the disk's refusal.
pub fn data_card(reader: &CorpusReader) -> Result<String> {
    let summary = reader.summary();
    let mut html = format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>Data card</title><style>{STYLE}</style>\n<h1>Data card</h1>\n\
         <p>Source: {} ({} files, {} bytes as stored); split by {}. Fingerprint of the text: <code>{}</code></p>\n",
        escaped(&summary.source),
        summary.listed_files,
        summary.listed_bytes,
        escaped(&summary.split_by),
        escaped(&summary.fingerprint)
    );
    for remark in &summary.remarks {
        let _ = writeln!(html, "<p class=alert>{}</p>", escaped(remark));
    }
    totals(&mut html, summary);
    sources(&mut html, summary);
    html.push_str("<h2>Samples</h2>\n");
    samples(&mut html, reader)?;
    html.push_str("</html>\n");
    Ok(html)
}

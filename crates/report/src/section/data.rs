//! What the model was trained on: documents kept and dropped, sources, splits, licences.

use crate::corpus_file::CorpusFile;
use crate::facts::Facts;
use crate::html::{Align, figure, grid, section, table};
use crate::plot::{Bar, BarChart};
use crate::text::{grouped, number};
use bessemer_runlog::Corpus;
use bessemer_units::{Bytes, Tokens};
use std::collections::BTreeMap;

/// Sources shown; the rest is summed up.
const SHOWN_SOURCES: usize = 12;
/// Licences shown.
const SHOWN_LICENCES: usize = 12;

pub(crate) fn data(facts: &Facts<'_>, corpus: &CorpusFile) -> String {
    let mut figures = Vec::new();
    if let Some(documents) = facts.corpus {
        figures.extend(dropped(documents));
        figures.extend(sources(documents));
    }
    figures.extend(licence_bars(&corpus.licences));
    let body = format!("{}{}{}{}", summary(facts, corpus), remarks(corpus), splits(facts), grid(&figures));
    section("data", "Data", &body)
}

fn summary(facts: &Facts<'_>, corpus: &CorpusFile) -> String {
    let mut sentences = Vec::new();
    if let Some(c) = facts.corpus {
        if let Some(why) = &c.fallback {
            sentences.push(format!("Another text than the recipe names: {why}."));
        }
        sentences.push(format!(
            "{} of {} documents were kept ({} of {}).",
            grouped(c.documents_kept),
            grouped(c.documents_in),
            Bytes(c.bytes_kept),
            Bytes(c.bytes_in)
        ));
    }
    if !corpus.edits.is_empty() {
        let edits: Vec<String> =
            corpus.edits.iter().map(|(what, n)| format!("{} {what}", grouped(*n))).collect();
        sentences.push(format!("In these, {}.", edits.join(", ")));
    }
    if let Some(t) = facts.tokenizer {
        let pattern = if t.pretokenizer.is_empty() {
            String::new()
        } else {
            format!(", pre-tokenizer {}", t.pretokenizer)
        };
        sentences.push(format!("The tokenizer has {} tokens{pattern}.", grouped(t.vocab_size)));
    }
    if sentences.is_empty() {
        return String::new();
    }
    format!("<p>{}</p>\n", crate::text::escape(&sentences.join(" ")))
}

fn remarks(corpus: &CorpusFile) -> String {
    if corpus.remarks.is_empty() {
        return String::new();
    }
    let items: Vec<String> =
        corpus.remarks.iter().map(|r| format!("<li>{}</li>\n", crate::text::escape(r))).collect();
    format!("<ul>\n{}</ul>\n", items.concat())
}

fn splits(facts: &Facts<'_>) -> String {
    let empty = BTreeMap::new();
    let (documents, bytes) = facts.corpus.map_or((&empty, &empty), |c| (&c.split_documents, &c.split_bytes));
    let mut names: Vec<&str> = facts.shards.iter().map(|s| s.split.as_str()).collect();
    for name in documents.keys().chain(bytes.keys()) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let rows: Vec<Vec<String>> = names
        .iter()
        .map(|name| {
            let shards = facts.shards.iter().find(|s| s.split == *name);
            let count = |n: Option<u64>| n.map_or(String::new(), grouped);
            let ratio = shards.filter(|s| s.tokens > 0).map(|s| s.text_bytes as f64 / s.tokens as f64);
            vec![
                (*name).to_string(),
                count(documents.get(*name).copied().or(shards.map(|s| s.documents))),
                bytes
                    .get(*name)
                    .copied()
                    .or(shards.map(|s| s.text_bytes))
                    .map_or(String::new(), |b| Bytes(b).to_string()),
                shards.map_or(String::new(), |s| Tokens(s.tokens).to_string()),
                ratio.map_or(String::new(), number),
                count(shards.map(|s| s.files)),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    use Align::{Left, Right};
    table(
        &["split", "documents", "text", "tokens", "bytes per token", "shard files"],
        &[Left, Right, Right, Right, Right, Right],
        &rows,
    )
}

fn dropped(corpus: &Corpus) -> Option<String> {
    let mut reasons: Vec<_> = corpus.dropped.iter().filter(|d| d.documents > 0).collect();
    if reasons.is_empty() {
        return None;
    }
    reasons.sort_by_key(|d| std::cmp::Reverse(d.documents));
    let bars = reasons.iter().map(|d| Bar {
        label: d.reason.clone(),
        value: d.documents as f64,
        note: format!("{} ({})", grouped(d.documents), Bytes(d.bytes)),
    });
    let chart = BarChart { title: "Documents dropped by reason".into(), color: 1, bars: bars.collect() };
    Some(figure("Documents dropped, by reason", &chart.svg(), ""))
}

fn sources(corpus: &Corpus) -> Option<String> {
    let mut kept: Vec<_> = corpus.sources.iter().filter(|s| s.bytes_kept > 0).collect();
    if kept.is_empty() {
        return None;
    }
    kept.sort_by(|a, b| b.bytes_kept.cmp(&a.bytes_kept).then_with(|| a.name.cmp(&b.name)));
    let total = kept.iter().map(|s| s.bytes_kept as f64).sum::<f64>();
    let note = |bytes: u64| format!("{} ({:.1} %)", Bytes(bytes), 100.0 * bytes as f64 / total);
    let bars = kept.iter().take(SHOWN_SOURCES).map(|s| Bar {
        label: s.name.clone(),
        value: s.bytes_kept as f64,
        note: note(s.bytes_kept),
    });
    let chart = BarChart { title: "Text kept by source".into(), color: 0, bars: bars.collect() };
    let rest = kept.iter().skip(SHOWN_SOURCES).fold(0u64, |sum, s| sum.saturating_add(s.bytes_kept));
    let below = match kept.len().checked_sub(SHOWN_SOURCES) {
        Some(more) if more > 0 => {
            format!("{} more sources have {} together.", grouped(more as u64), note(rest))
        }
        _ => String::new(),
    };
    Some(figure("Text kept, largest sources", &chart.svg(), &below))
}

fn licence_bars(licences: &BTreeMap<String, u64>) -> Option<String> {
    if licences.is_empty() {
        return None;
    }
    let mut sorted: Vec<(&String, u64)> = licences.iter().map(|(name, n)| (name, *n)).collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let total = sorted.iter().map(|(_, n)| *n as f64).sum::<f64>();
    let bars = sorted.iter().take(SHOWN_LICENCES).map(|(name, bytes)| Bar {
        label: (*name).clone(),
        value: *bytes as f64,
        note: format!("{} ({:.1} %)", Bytes(*bytes), 100.0 * *bytes as f64 / total),
    });
    let chart = BarChart { title: "Text kept by licence".into(), color: 2, bars: bars.collect() };
    let more = sorted.len().saturating_sub(SHOWN_LICENCES);
    let note = if more > 0 { format!("{more} more licences.") } else { String::new() };
    Some(figure("Text kept, by licence of the source", &chart.svg(), &note))
}

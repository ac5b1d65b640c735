//! `ATTRIBUTION.md`: whose text it is and under which licence.

use super::summary::{CorpusSummary, SourceSummary};
use std::fmt::Write;

/// A table cell: no pipe and no line end can leave it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

/// The file's text: one line per source with kept documents.
pub(crate) fn text(summary: &CorpusSummary) -> String {
    let mut out = String::from("# Attribution\n\n");
    let used: Vec<&SourceSummary> =
        summary.sources.iter().filter(|source| source.kept.documents > 0).collect();
    let _ = writeln!(
        out,
        "This corpus holds {} documents ({} bytes of text) from the {} sources below. Each stays under the \
         licence of its source, given as an SPDX expression where the source states one. Names, addresses and \
         licence headers may have been removed from the texts; the packages themselves hold them.\n",
        summary.kept.documents,
        summary.kept.bytes,
        used.len()
    );
    out.push_str("| source | version | licence | files | bytes |\n|---|---|---|---:|---:|\n");
    for source in used {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            cell(&source.name),
            cell(source.version.as_deref().unwrap_or("–")),
            cell(source.licence.as_deref().unwrap_or("not stated")),
            source.kept.documents,
            source.kept.bytes
        );
    }
    out
}

//! What the report takes from `corpus.json` beyond the records: licences, edits, remarks.
//!
//! The file belongs to the corpus; it is read loosely, so that a later version of it costs a picture and not the page.

use serde_json::Value;
use std::collections::BTreeMap;

/// Facts of a corpus.
#[derive(Debug, Default)]
pub(crate) struct CorpusFile {
    /// Bytes kept by licence.
    pub(crate) licences: BTreeMap<String, u64>,
    /// Edits of kept documents: what, how often.
    pub(crate) edits: Vec<(String, u64)>,
    /// Remarks for the user.
    pub(crate) remarks: Vec<String>,
}

impl CorpusFile {
    pub(crate) fn new(file: &Value) -> CorpusFile {
        let count = |key: &str| file.get(key).and_then(Value::as_u64).unwrap_or(0);
        let list = |key: &str| file.get(key).and_then(Value::as_array).into_iter().flatten();
        let mut licences = BTreeMap::new();
        for source in list("sources") {
            let kept = source.pointer("/kept/bytes").and_then(Value::as_u64).unwrap_or(0);
            let licence = source.get("licence").and_then(Value::as_str).unwrap_or("not stated");
            if kept > 0 {
                let sum: &mut u64 = licences.entry(licence.to_string()).or_insert(0);
                *sum = sum.saturating_add(kept);
            }
        }
        // Plain files state no licence at all: one bar that says so tells nothing.
        if licences.len() == 1 && licences.contains_key("not stated") {
            licences.clear();
        }
        let named = [
            ("e-mail addresses replaced", count("emails_replaced")),
            ("IP addresses replaced", count("ips_replaced")),
            ("phone, card and account numbers replaced", count("numbers_replaced")),
            ("keys and tokens replaced", count("secrets_replaced")),
            ("lines removed", count("lines_removed")),
        ];
        let mut edits: Vec<(String, u64)> =
            named.into_iter().map(|(what, n)| (what.to_string(), n)).collect();
        for (set, found) in file.get("decontaminated").and_then(Value::as_object).into_iter().flatten() {
            let count = |key: &str| found.get(key).and_then(Value::as_u64).unwrap_or(0);
            edits.push((format!("documents dropped for the evaluation set {set}"), count("dropped")));
            edits.push((format!("places of the evaluation set {set} cut out"), count("places")));
        }
        CorpusFile {
            licences,
            edits: edits.into_iter().filter(|(_, n)| *n > 0).collect(),
            remarks: list("remarks").filter_map(Value::as_str).map(str::to_string).collect(),
        }
    }
}

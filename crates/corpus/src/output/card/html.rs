//! Parts of the page: escaped text, numbers, table rows.

use bessemer_units::Bytes;
pub(super) use bessemer_units::escape_xml as escaped;
use std::fmt::Write;

pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "–".into() } else { format!("{:.2} %", 100.0 * share(part, whole)) }
}

/// A number of documents with its thousands apart.
pub(super) fn number(value: u64) -> String {
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
pub(super) fn bytes(value: u64) -> String {
    Bytes(value).to_string()
}

pub(super) fn row(html: &mut String, cells: &[String]) {
    let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
    let _ = writeln!(html, "<tr>{cells}</tr>");
}

//! Small multiples: charts beside and below each other in one picture.

use super::LineChart;
use super::canvas::{Anchor, Canvas, WIDTH};

/// Charts of a row.
const COLUMNS: usize = 2;
/// Height of a chart's heading.
const HEADING: f64 = 22.0;

/// Charts with a heading each, two to a row. A single one without a heading is its own picture.
pub fn panels(title: &str, charts: &[(String, LineChart)]) -> String {
    if let [(heading, chart)] = charts
        && heading.is_empty()
    {
        return chart.svg();
    }
    let parts: Vec<(&str, f64, String)> = charts
        .iter()
        .map(|(heading, chart)| {
            let svg = chart.svg();
            (heading.as_str(), height(&svg), inside(&svg).to_string())
        })
        .collect();
    let rows: Vec<f64> = parts
        .chunks(COLUMNS)
        .map(|row| row.iter().map(|part| part.1).fold(0.0, f64::max) + HEADING)
        .collect();
    let columns = COLUMNS.min(parts.len()) as f64;
    let names: Vec<&str> = parts.iter().map(|part| part.0).collect();
    let mut canvas = Canvas::sized([columns * WIDTH, rows.iter().sum()], title, &names.join(". "));
    let mut top = 0.0;
    for (row, height) in parts.chunks(COLUMNS).zip(&rows) {
        for (column, (heading, _, inside)) in row.iter().enumerate() {
            let left = column as f64 * WIDTH;
            canvas.words("strong", [left + 8.0, top + 15.0], Anchor::Start, heading);
            canvas.group([left, top + HEADING], inside);
        }
        top += height;
    }
    canvas.finish()
}

/// Drawn elements of a picture, without its frame.
fn inside(svg: &str) -> &str {
    let start = svg.find("</desc>").map_or(0, |at| at + "</desc>".len());
    let end = svg.rfind("</svg>").unwrap_or(svg.len());
    svg[start..end].trim()
}

/// Height of a picture by its view box.
fn height(svg: &str) -> f64 {
    let frame = svg.split_once("viewBox=\"").and_then(|(_, rest)| rest.split_once('"'));
    frame.and_then(|(numbers, _)| numbers.split(' ').nth(3)?.parse().ok()).unwrap_or(0.0)
}

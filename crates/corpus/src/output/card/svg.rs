//! Pictures of the data card: SVG as text, drawn from shares and numbers alone.

use super::escaped;
use std::fmt::Write;

/// Colours of the parts of a bar: what is kept, then reasons in their order, then the rest.
pub(super) const COLOURS: [&str; 10] = [
    "#3a7d5d", "#b4532a", "#d98e3f", "#7a4f8f", "#3f6f9f", "#a9923b", "#8f3f5b", "#5f7f7f", "#6b5844",
    "#b9b4ae",
];
/// Heights and widths in units of the picture.
const ROW: f64 = 20.0;
const LABEL: f64 = 220.0;
const BAR: f64 = 520.0;
const NOTE: f64 = 130.0;

/// One bar: its label, the lengths of its parts as shares of the full width with the index of the colour of each, and what
/// follows it.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) parts: Vec<(f64, usize)>,
    pub(super) note: String,
}

/// At most so many characters.
fn short(label: &str) -> String {
    match label.char_indices().nth(30) {
        Some((end, _)) => format!("{}…", &label[..end]),
        None => label.to_string(),
    }
}

/// Bars below each other.
pub(super) fn bars(bars: &[Bar]) -> String {
    let height = ROW * bars.len() as f64 + 4.0;
    let width = LABEL + BAR + NOTE;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" font-size=\"12\">\n"
    );
    for (index, bar) in bars.iter().enumerate() {
        let top = ROW * index as f64 + 3.0;
        let (middle, end) = (top + 11.0, LABEL - 8.0);
        let _ = writeln!(
            svg,
            "<text x=\"{end}\" y=\"{middle}\" text-anchor=\"end\"><title>{}</title>{}</text>",
            escaped(&bar.label),
            escaped(&short(&bar.label))
        );
        let mut left = LABEL;
        for (share, colour) in &bar.parts {
            let length = BAR * share.clamp(0.0, 1.0);
            let colour = COLOURS[colour % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<rect x=\"{left:.2}\" y=\"{top}\" width=\"{length:.2}\" height=\"14\" fill=\"{colour}\"/>"
            );
            left += length;
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.2}\" y=\"{middle}\" class=\"note\">{}</text>",
            left.min(LABEL + BAR) + 6.0,
            escaped(&bar.note)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Names beside their colours.
pub(super) fn legend(names: &[(&str, usize)]) -> String {
    let one = |(name, colour): &(&str, usize)| {
        format!(
            "<span class=key style=\"background:{}\"></span>{} ",
            COLOURS[colour % COLOURS.len()],
            escaped(name)
        )
    };
    format!("<p class=small>{}</p>\n", names.iter().map(one).collect::<String>())
}

/// The curve of a score: share of documents to the right, value upwards, from the values at evenly spaced shares.
pub(super) fn quantile_curve(values: &[f64]) -> String {
    const WIDTH: f64 = 420.0;
    const HEIGHT: f64 = 160.0;
    const LEFT: f64 = 70.0;
    let (Some(low), Some(high)) = (values.first(), values.last()) else { return String::new() };
    let span = if high > low { high - low } else { 1.0 };
    let last = (values.len() - 1).max(1) as f64;
    let points: Vec<String> = values
        .iter()
        .enumerate()
        .map(|(index, value)| {
            let x = LEFT + WIDTH * index as f64 / last;
            format!("{x:.1},{:.1}", 10.0 + HEIGHT * (1.0 - (value - low) / span))
        })
        .collect();
    let (bottom, right) = (10.0 + HEIGHT, LEFT + WIDTH);
    format!(
        "<svg viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" font-size=\"12\">\n\
         <path d=\"M{LEFT},10 V{bottom} H{right}\" fill=\"none\" class=\"axis\"/>\n\
         <polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n\
         <text x=\"{label}\" y=\"16\" text-anchor=\"end\">{high:.4}</text>\n\
         <text x=\"{label}\" y=\"{bottom}\" text-anchor=\"end\">{low:.4}</text>\n\
         <text x=\"{LEFT}\" y=\"{below}\">0 % of the documents</text>\n\
         <text x=\"{right}\" y=\"{below}\" text-anchor=\"end\">100 %</text>\n</svg>\n",
        points.join(" "),
        COLOURS[0],
        w = right + 20.0,
        h = bottom + 24.0,
        label = LEFT - 6.0,
        below = bottom + 16.0,
    )
}

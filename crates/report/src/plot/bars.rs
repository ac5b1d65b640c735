//! Horizontal bar charts.

use super::COLORS;
use super::canvas::{Anchor, Canvas, WIDTH, cropped, text_width};

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Its meaning.
    pub label: String,
    /// Its length. Values that are not finite or negative get no bar.
    pub value: f64,
    /// The value as text, written behind the bar.
    pub note: String,
}

/// Bars below each other on a common scale from zero.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BarChart {
    /// Title, for screen readers.
    pub title: String,
    /// Index of the bars' colour.
    pub color: usize,
    /// Bars from top to bottom.
    pub bars: Vec<Bar>,
}

const ROW: f64 = 24.0;

impl BarChart {
    /// The chart as inline SVG.
    pub fn svg(&self) -> String {
        let description: Vec<String> =
            self.bars.iter().map(|b| format!("{}: {}.", b.label, b.note)).collect();
        let mut canvas =
            Canvas::new(self.bars.len().max(1) as f64 * ROW + 6.0, &self.title, &description.join(" "));
        let widest =
            |text: &dyn Fn(&Bar) -> f64, most: f64| self.bars.iter().map(text).fold(0.0, f64::max).min(most);
        let label_width = widest(&|b| text_width(&b.label), 175.0);
        let note_width = widest(&|b| text_width(&b.note), 175.0);
        let left = label_width + 12.0;
        let room = WIDTH - left - note_width - 14.0;
        let length = |b: &Bar| if b.value.is_finite() { b.value.max(0.0) } else { 0.0 };
        let largest = self.bars.iter().map(length).fold(0.0, f64::max);
        for (i, bar) in self.bars.iter().enumerate() {
            let y = i as f64 * ROW + 4.0;
            let width = if largest > 0.0 { length(bar) / largest * room } else { 0.0 };
            // A value above zero is never invisible.
            let width = if length(bar) > 0.0 { width.max(1.5) } else { 0.0 };
            canvas.words(
                "strong",
                [left - 8.0, y + 13.0],
                Anchor::End,
                &cropped(&bar.label, label_width + 1.0),
            );
            let class = format!("f{}", self.color % COLORS);
            canvas.rectangle(&class, [left, y], [width, ROW - 7.0], &format!("{}: {}", bar.label, bar.note));
            canvas.words(
                "",
                [left + width + 6.0, y + 13.0],
                Anchor::Start,
                &cropped(&bar.note, note_width + 1.0),
            );
        }
        canvas.finish()
    }
}

//! Timelines: who did what from when to when (stages of a run, ranks of a pipeline).

use super::COLORS;
use super::axis::{Axis, Scale};
use super::canvas::{Anchor, Canvas, WIDTH, cropped, text_width};
use super::line::draw_x_ticks;

/// One piece of work.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Start on the common clock.
    pub start: f64,
    /// End; not before the start.
    pub end: f64,
    /// Index of its colour.
    pub color: usize,
    /// Text inside, left out where it does not fit; also shown when pointed at.
    pub label: String,
}

/// One row: a stage, a rank, a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Name to its left.
    pub label: String,
    /// Its spans, in any order.
    pub spans: Vec<Span>,
    /// Text behind the last span, such as its duration.
    pub note: String,
}

/// Rows over a common clock.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// Title, for screen readers.
    pub title: String,
    /// What the clock counts.
    pub x_label: String,
    /// Rows from top to bottom.
    pub rows: Vec<Row>,
}

const ROW: f64 = 26.0;

impl Timeline {
    /// The timeline as inline SVG.
    pub fn svg(&self) -> String {
        let spans =
            || self.rows.iter().flat_map(|r| &r.spans).filter(|s| s.start.is_finite() && s.end.is_finite());
        let axis = Axis::new(Scale::Linear, spans().flat_map(|s| [s.start, s.end]), 6, false);
        let notes: Vec<String> = self.rows.iter().map(|r| format!("{}: {}.", r.label, r.note)).collect();
        let bottom = self.rows.len().max(1) as f64 * ROW + 4.0;
        let mut canvas = Canvas::new(bottom + 40.0, &self.title, &notes.join(" "));
        let widest = |text: &dyn Fn(&Row) -> f64| self.rows.iter().map(text).fold(0.0, f64::max).min(150.0);
        let label_width = widest(&|r| text_width(&r.label));
        let left = label_width + 14.0;
        let right = WIDTH - 14.0 - widest(&|r| text_width(&r.note));
        for tick in &axis.ticks {
            if let Some(p) = axis.place(*tick) {
                let x = left + p * (right - left);
                canvas.line("grid", [x, 0.0], [x, bottom]);
            }
        }
        canvas.line("frame", [left, bottom], [right, bottom]);
        draw_x_ticks(&mut canvas, &axis, left, right, bottom);
        canvas.words("", [right, bottom + 34.0], Anchor::End, &self.x_label);
        for (i, row) in self.rows.iter().enumerate() {
            let y = i as f64 * ROW + 4.0;
            let label = cropped(&row.label, label_width + 1.0);
            canvas.words("strong", [left - 8.0, y + 14.0], Anchor::End, &label);
            let mut end = left;
            for span in row.spans.iter().filter(|s| s.start.is_finite() && s.end.is_finite()) {
                let (Some(from), Some(to)) = (axis.place(span.start), axis.place(span.end)) else { continue };
                let (from, to) = (left + from * (right - left), left + to.max(from) * (right - left));
                // What happened is never invisible, however short.
                let width = (to - from).max(1.5);
                let class = format!("f{}", span.color % COLORS);
                canvas.rectangle(&class, [from, y], [width, ROW - 8.0], &span.label);
                end = end.max(from + width);
            }
            let note = cropped(&row.note, WIDTH - end - 6.0);
            canvas.words("", [end + 6.0, y + 14.0], Anchor::Start, &note);
        }
        canvas.finish()
    }
}

//! Heat maps: rows of cells over an axis, each cell in the colour of its class.

use super::axis::{Axis, Scale};
use super::canvas::{Anchor, Canvas, WIDTH, text_width};

/// A row of a heat map.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HeatRow {
    /// Name to its left; neighbours with the same name show it once.
    pub label: String,
    /// Number of each cell. Numbers that are not finite leave a gap.
    pub values: Vec<f64>,
}

/// Cells of a class have numbers below its end.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatClass {
    /// End of its numbers, and of the class before the beginning.
    pub below: f64,
    /// Its style.
    pub style: &'static str,
    /// Its meaning.
    pub name: String,
}

/// Rows of cells from left to right.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HeatMap {
    /// Title, for screen readers.
    pub title: String,
    /// Meaning of the horizontal axis.
    pub x_label: String,
    /// Where each column begins on the axis, and where the last one ends.
    pub edges: Vec<f64>,
    /// From top to bottom.
    pub rows: Vec<HeatRow>,
    /// Ascending. Numbers beyond the last end are in the last class.
    pub classes: Vec<HeatClass>,
}

/// Height of all rows, if that makes them neither lower nor higher than these.
const HEIGHT: f64 = 300.0;
const ROW: (f64, f64) = (2.0, 16.0);
/// Height of a line of the key.
const KEY: f64 = 19.0;
/// Distance between names of rows.
const NAMES: f64 = 14.0;

impl HeatMap {
    /// The picture as inline SVG. Neighbours of a class are one piece, and all pieces of a class one path.
    pub fn svg(&self) -> String {
        let widest = self.rows.iter().map(|row| text_width(&row.label)).fold(0.0, f64::max);
        let (left, right, top) = (widest + 12.0, WIDTH - 8.0, 4.0);
        let height = (HEIGHT / self.rows.len().max(1) as f64).clamp(ROW.0, ROW.1);
        let bottom = top + height * self.rows.len() as f64;
        let axis = Axis::new(Scale::Linear, self.edges.iter().copied(), 4, false);
        let at = |x: f64| axis.place(x).map(|place| left + place * (right - left));
        let keys = self.keys(left, right);
        let key_lines = keys.last().map_or(0, |key| key.1 + 1);
        let all = bottom + 40.0 + KEY * key_lines as f64;
        let names: Vec<&str> = self.classes.iter().map(|class| class.name.as_str()).collect();
        let mut canvas = Canvas::new(all, &self.title, &names.join(". "));
        for (number, class) in self.classes.iter().enumerate() {
            let mut pieces = Vec::new();
            for (row, HeatRow { values, .. }) in self.rows.iter().enumerate() {
                let y = top + height * row as f64;
                let mut from = None;
                for column in 0..=values.len() {
                    let inside = values.get(column).is_some_and(|x| self.class_of(*x) == Some(number));
                    match (inside, from) {
                        (true, None) => from = Some(column),
                        (false, Some(first)) => {
                            let ends = [first, column].map(|edge| self.edges.get(edge).and_then(|x| at(*x)));
                            if let [Some(from), Some(to)] = ends {
                                pieces.push([from, y, to - from, height]);
                            }
                            from = None;
                        }
                        _ => {}
                    }
                }
            }
            canvas.blocks(class.style, &pieces);
        }
        let mut named = f64::NEG_INFINITY;
        for (row, HeatRow { label, .. }) in self.rows.iter().enumerate() {
            let first = row == 0 || self.rows[row - 1].label != *label;
            let y = top + height * row as f64;
            if first && y - named >= NAMES {
                canvas.words("", [left - 6.0, y + 10.0], Anchor::End, label);
                named = y;
            }
        }
        canvas.line("frame", [left, bottom], [right, bottom]);
        for (tick, label) in axis.ticks.iter().zip(axis.labels()) {
            if let Some(x) = at(*tick) {
                canvas.line("frame", [x, bottom], [x, bottom + 4.0]);
                canvas.words("", [x, bottom + 17.0], Anchor::Middle, &label);
            }
        }
        canvas.words("", [right, bottom + 33.0], Anchor::End, &self.x_label);
        for (class, (x, line)) in self.classes.iter().zip(keys) {
            let y = bottom + 40.0 + KEY * line as f64;
            canvas.rectangle(class.style, [x, y], [13.0, 13.0], "");
            canvas.words("", [x + 18.0, y + 11.0], Anchor::Start, &class.name);
        }
        canvas.finish()
    }

    fn class_of(&self, value: f64) -> Option<usize> {
        let below = |class: &HeatClass| value < class.below;
        let class = self.classes.iter().position(below);
        value.is_finite().then(|| class.unwrap_or(self.classes.len().saturating_sub(1)))
    }

    /// Left end and line of each class's meaning.
    fn keys(&self, left: f64, right: f64) -> Vec<(f64, usize)> {
        let (mut x, mut line) = (left, 0);
        let place = |class: &HeatClass| {
            let takes = 18.0 + text_width(&class.name);
            if x + takes > right && x > left {
                (x, line) = (left, line + 1);
            }
            let placed = (x, line);
            x += takes + 14.0;
            placed
        };
        self.classes.iter().map(place).collect()
    }
}

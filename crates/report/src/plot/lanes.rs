//! Lanes: who did what from when to when, piece by piece with its label; several panels on one clock (a schedule as it
//! was simulated above the run as it was measured). [`crate::terminal::lanes`] draws the same value in a terminal.

use super::COLORS;
use super::axis::{Axis, Scale};
use super::canvas::{Anchor, Canvas, text_width};

/// How much of a lane's height a piece takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// The upper half: of two things done together, the first.
    Upper,
    /// The lower half: the second.
    Lower,
}

/// One piece of work.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cell {
    /// Start on the common clock.
    pub start: f64,
    /// End; not before the start.
    pub end: f64,
    /// Index of its colour.
    pub color: usize,
    /// 0 for the full colour, higher for paler ones.
    pub tone: usize,
    /// Part of the lane's height.
    pub part: Part,
    /// Text inside, such as `F3`.
    pub label: String,
    /// Text inside where the label does not fit, such as `3`.
    pub short: String,
    /// Text shown when pointed at.
    pub tip: String,
}

/// One lane: a rank, a stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lane {
    /// Name to its left.
    pub label: String,
    /// Its pieces, in any order.
    pub cells: Vec<Cell>,
    /// Text to its right.
    pub note: String,
}

/// Lanes under a heading.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Panel {
    /// Heading; empty for none.
    pub title: String,
    /// From top to bottom.
    pub lanes: Vec<Lane>,
}

/// Meaning of a colour and tone.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// As in [`Cell::color`].
    pub color: usize,
    /// As in [`Cell::tone`].
    pub tone: usize,
    /// As the labels begin with it, such as `F`.
    pub letter: String,
    /// The meaning.
    pub name: String,
}

/// Panels of lanes over a common clock.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lanes {
    /// Title, shown and for screen readers.
    pub title: String,
    /// Unit of the clock.
    pub x_label: String,
    /// From top to bottom.
    pub panels: Vec<Panel>,
    /// Meaning of the colours.
    pub keys: Vec<Key>,
}

/// Tones that differ; paler ones look the same.
pub(crate) const TONES: usize = 3;
const LANE: f64 = 24.0;
const CELL: f64 = 20.0;
const HEADING: f64 = 24.0;
/// Widths of pictures in user units.
const WIDTHS: (f64, f64) = (640.0, 12_000.0);
/// Width that a piece should have so that its short label is readable.
const READABLE: f64 = 20.0;
/// Distance of ticks, about.
const TICK: f64 = 90.0;
/// Widest label of a lane and widest note.
const MARGIN: f64 = 170.0;

impl Cell {
    /// Whether it has a place on the clock.
    pub(crate) fn shown(&self) -> bool {
        Scale::Linear.shows(self.start) && Scale::Linear.shows(self.end) && self.end >= self.start
    }
}

impl Lanes {
    /// Every piece that has a place on the clock.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.panels.iter().flat_map(|p| &p.lanes).flat_map(|l| &l.cells).filter(|c| c.shown())
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.panels.iter().flat_map(|p| &p.lanes).map(|l| l.cells.len()).sum()
    }

    /// First start and last end.
    pub(crate) fn range(&self) -> Option<(f64, f64)> {
        self.cells().map(|c| (c.start, c.end)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// A short piece's length: nine tenths of the time are in pieces at least as long. Counted by time, because a few
    /// pieces that take next to nothing must not stretch the picture.
    pub(crate) fn short_length(&self) -> Option<f64> {
        let mut all: Vec<f64> = self.cells().map(|c| c.end - c.start).filter(|l| *l > 0.0).collect();
        all.sort_by(f64::total_cmp);
        let mut shorter = all.iter().sum::<f64>() / 10.0;
        all.into_iter().find(|length| {
            shorter -= length;
            shorter < 0.0
        })
    }

    /// The picture as inline SVG. It is as wide as its short pieces need to be labelled.
    pub fn svg(&self) -> String {
        self.svg_between(WIDTHS.0, WIDTHS.1)
    }

    /// The picture as inline SVG of this width; pieces too narrow for their label have none.
    pub fn svg_of_width(&self, width: f64) -> String {
        self.svg_between(width, width)
    }

    fn svg_between(&self, least: f64, most: f64) -> String {
        let (low, high) = self.range().unwrap_or((0.0, 1.0));
        let widest = |text: &dyn Fn(&Lane) -> f64| {
            let lanes = self.panels.iter().flat_map(|p| &p.lanes);
            lanes.map(text).fold(0.0, f64::max).min(MARGIN)
        };
        let left = widest(&|l| text_width(&l.label)) + 16.0;
        let note = widest(&|l| text_width(&l.note)) + 14.0;
        let wanted = self.short_length().map_or(0.0, |l| READABLE * (high - low) / l);
        let width = (left + wanted + note).clamp(least, most);
        let right = width - note;
        let ticks = ((right - left) / TICK) as usize;
        let axis = Axis::new(Scale::Linear, [low, high].into_iter(), ticks, false);
        let lanes: usize = self.panels.iter().map(|p| p.lanes.len()).sum();
        let headings = self.panels.iter().filter(|p| !p.title.is_empty()).count();
        let keys = self.place_keys(left, width);
        let top = HEADING * (1 + keys.last().map_or(0, |k| k.line + 1)) as f64 + 2.0;
        let bottom = top + lanes as f64 * LANE + headings as f64 * HEADING + 4.0;
        let notes = self.panels.iter().flat_map(|p| &p.lanes).map(|l| format!("{}: {}.", l.label, l.note));
        let description = notes.collect::<Vec<_>>().join(" ");
        let mut canvas = Canvas::sized([width, bottom + 40.0], &self.title, &description);
        canvas.words("strong", [left, 16.0], Anchor::Start, &self.title);
        for key in &keys {
            let y = HEADING * (1 + key.line) as f64;
            canvas.rectangle(&key.class, [key.x, y + 4.0], [14.0, 14.0], "");
            canvas.words("", [key.x + 20.0, y + 15.0], Anchor::Start, &key.text);
        }
        let at = |x: f64| axis.place(x).map(|p| left + p * (right - left));
        let mut y = top;
        for panel in &self.panels {
            if !panel.title.is_empty() {
                canvas.words("strong", [left, y + 17.0], Anchor::Start, &panel.title);
                y += HEADING;
            }
            for lane in &panel.lanes {
                canvas.rectangle("idle", [left, y + 2.0], [right - left, CELL], "");
                canvas.words("strong", [left - 8.0, y + 16.0], Anchor::End, &lane.label);
                canvas.words("", [right + 8.0, y + 16.0], Anchor::Start, &lane.note);
                for cell in lane.cells.iter().filter(|c| c.shown()) {
                    if let (Some(from), Some(to)) = (at(cell.start), at(cell.end)) {
                        draw_cell(&mut canvas, cell, from, to, y + 2.0);
                    }
                }
                y += LANE;
            }
        }
        canvas.line("frame", [left, bottom], [right, bottom]);
        for (tick, label) in axis.ticks.iter().zip(axis.labels()) {
            if let Some(x) = at(*tick) {
                canvas.line("frame", [x, bottom], [x, bottom + 4.0]);
                canvas.words("", [x, bottom + 17.0], Anchor::Middle, &label);
            }
        }
        canvas.words("", [right, bottom + 34.0], Anchor::End, &self.x_label);
        canvas.finish()
    }

    /// Places the meanings of the colours from left to right, in as many lines as they need.
    fn place_keys(&self, left: f64, width: f64) -> Vec<PlacedKey> {
        let (mut x, mut line) = (left, 0);
        let place = |key: &Key| {
            let text = format!("{} {}", key.letter, key.name).trim().to_string();
            let takes = 20.0 + text_width(&text);
            if x + takes > width && x > left {
                (x, line) = (left, line + 1);
            }
            let placed = PlacedKey { x, line, class: class(key.color, key.tone), text };
            x += takes + 20.0;
            placed
        };
        self.keys.iter().map(place).collect()
    }
}

/// A [`Key`] at its place.
struct PlacedKey {
    x: f64,
    line: usize,
    class: String,
    text: String,
}

fn class(color: usize, tone: usize) -> String {
    let color = color % COLORS;
    match tone.min(TONES - 1) {
        0 => format!("f{color}"),
        tone => format!("f{color} t{tone}"),
    }
}

fn draw_cell(canvas: &mut Canvas, cell: &Cell, from: f64, to: f64, top: f64) {
    // What happened is never invisible, however short; neighbours are kept apart by a hair.
    let width = (to - from - 0.8).max(0.8);
    let half = CELL / 2.0;
    let (y, height, baseline, text_class, scale) = match cell.part {
        Part::Whole => (top, CELL, top + 14.0, "in", 0.9),
        Part::Upper => (top, half - 0.4, top + 8.2, "tiny", 0.75),
        Part::Lower => (top + half + 0.4, half - 0.4, top + half + 8.6, "tiny", 0.75),
    };
    canvas.rectangle(&class(cell.color, cell.tone), [from, y], [width, height], &cell.tip);
    let fits = |text: &&String| !text.is_empty() && text_width(text) * scale + 1.0 <= width;
    if let Some(text) = [&cell.label, &cell.short].into_iter().find(fits) {
        canvas.words(text_class, [from + width / 2.0, baseline], Anchor::Middle, text);
    }
}

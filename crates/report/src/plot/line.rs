//! Line charts.

use super::COLORS;
use super::axis::{Axis, Scale};
use super::canvas::{Anchor, Canvas, WIDTH, text_width};
use crate::text::number;

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A line.
    Line,
    /// A thin pale line: the raw values behind a smoothed line.
    Faint,
    /// Dots joined by a line; each dot tells its values when pointed at.
    Dots,
}

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Index of its colour, modulo [`COLORS`].
    pub color: usize,
    /// How it is drawn.
    pub mark: Mark,
    /// Points `[x, y]` in the order of drawing. A point that has no place (not finite, or not positive on a log
    /// scale) interrupts the line.
    pub points: Vec<[f64; 2]>,
}

/// Dots of a curve that is drawn as dots because the colours have run out.
const DOTS: usize = 24;

impl Series {
    /// Curve `index` of many: the first have the colours, the others come as dots of these colours.
    pub fn of_many(name: &str, index: usize, mut points: Vec<[f64; 2]>) -> Series {
        let mark = if index < COLORS { Mark::Line } else { Mark::Dots };
        if mark == Mark::Dots {
            let every = points.len().div_ceil(DOTS).max(1);
            points = points.into_iter().step_by(every).collect();
        }
        Series { name: name.into(), color: index, mark, points }
    }
}

/// A horizontal line: a baseline or a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Name in the legend.
    pub name: String,
    /// Index of its colour.
    pub color: usize,
    /// Its height.
    pub y: f64,
}

/// A chart of curves over a common x.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LineChart {
    /// Title, for screen readers (the page prints its own heading).
    pub title: String,
    /// Meaning of x, with its unit.
    pub x_label: String,
    /// Meaning of y, with its unit.
    pub y_label: String,
    /// Scale of x.
    pub x_scale: Scale,
    /// Scale of y.
    pub y_scale: Scale,
    /// Let a linear y axis begin at zero.
    pub from_zero: bool,
    /// Curves, the first drawn first.
    pub series: Vec<Series>,
    /// Horizontal lines.
    pub rules: Vec<Rule>,
    /// Places on x from which on a run had a changed recipe: vertical lines. They do not widen the axis.
    pub changes: Vec<f64>,
}

/// Name of the vertical lines in the legend, and the index of their colour.
const CHANGE: (&str, usize) = ("recipe changed", 3);

/// Height of the plotting area.
const PLOT_HEIGHT: f64 = 200.0;
const LEGEND_LINE: f64 = 18.0;

impl LineChart {
    /// The chart as inline SVG. Any values are drawn, none at all included.
    pub fn svg(&self) -> String {
        let shown = |[x, y]: &[f64; 2]| self.x_scale.shows(*x) && self.y_scale.shows(*y);
        let points = || self.series.iter().flat_map(|s| s.points.iter()).filter(|p| shown(p));
        let rules = self.rules.iter().map(|r| r.y);
        let zero = (self.from_zero && self.y_scale == Scale::Linear).then_some(0.0);
        let x_axis = Axis::new(self.x_scale, points().map(|p| p[0]), 6, false);
        let y_axis = Axis::new(self.y_scale, points().map(|p| p[1]).chain(rules).chain(zero), 5, true);
        let y_labels = y_axis.labels();

        let legend = self.legend();
        let left = y_labels.iter().map(|l| text_width(l)).fold(20.0, f64::max) + 12.0;
        let right = WIDTH - 16.0;
        let top = legend.iter().map(|(_, line, _)| line + 1).max().unwrap_or(0) as f64 * LEGEND_LINE + 26.0;
        let bottom = top + PLOT_HEIGHT;
        let mut canvas = Canvas::new(bottom + 40.0, &self.title, &self.description());
        for (x, line, entry) in &legend {
            draw_legend_entry(&mut canvas, *x, *line as f64 * LEGEND_LINE + 12.0, entry);
        }
        canvas.words("", [left - 6.0 - text_width("0"), top - 10.0], Anchor::Start, &self.y_label);

        let at_x = |x: f64| x_axis.place(x).map(|p| left + p * (right - left));
        let at_y = |y: f64| y_axis.place(y).map(|p| bottom - p * PLOT_HEIGHT);
        for (tick, label) in y_axis.ticks.iter().zip(&y_labels) {
            let Some(y) = at_y(*tick) else { continue };
            canvas.line("grid", [left, y], [right, y]);
            canvas.words("", [left - 6.0, y + 4.0], Anchor::End, label);
        }
        canvas.line("frame", [left, bottom], [right, bottom]);
        draw_x_ticks(&mut canvas, &x_axis, left, right, bottom);
        canvas.words("", [right, bottom + 34.0], Anchor::End, &self.x_label);

        for rule in &self.rules {
            if let Some(y) = at_y(rule.y) {
                canvas.path(&format!("rule s{}", rule.color % COLORS), &[vec![[left, y], [right, y]]]);
            }
        }
        for x in self.shown_changes(&x_axis).filter_map(at_x) {
            canvas.path(&format!("rule s{}", CHANGE.1), &[vec![[x, top], [x, bottom]]]);
        }
        let place = |[x, y]: [f64; 2]| if shown(&[x, y]) { Some([at_x(x)?, at_y(y)?]) } else { None };
        for series in &self.series {
            draw_series(&mut canvas, series, place);
        }
        canvas.finish()
    }

    /// The changes that lie within the axis.
    fn shown_changes<'a>(&'a self, axis: &'a Axis) -> impl Iterator<Item = f64> + 'a {
        let within = |x: &f64| axis.place(*x).is_some_and(|p| (0.0..=1.0).contains(&p));
        self.changes.iter().copied().filter(move |x| self.x_scale.shows(*x) && within(x))
    }

    /// Places the legend's entries left to right in lines: (x, line, entry).
    fn legend(&self) -> Vec<(f64, usize, Entry<'_>)> {
        let curves =
            self.series.iter().map(|s| Entry { name: &s.name, color: s.color, kind: Kind::Curve(s.mark) });
        let rules = self.rules.iter().map(|r| Entry { name: &r.name, color: r.color, kind: Kind::Rule });
        let change = Entry { name: CHANGE.0, color: CHANGE.1, kind: Kind::Rule };
        let change = (!self.changes.is_empty()).then_some(change);
        let entries: Vec<Entry<'_>> =
            curves.chain(rules).chain(change).filter(|e| !e.name.is_empty()).collect();
        let (mut x, mut line) = (8.0, 0);
        let mut placed = Vec::new();
        for entry in entries {
            let width = text_width(entry.name) + 42.0;
            if x + width > WIDTH && x > 8.0 {
                (x, line) = (8.0, line + 1);
            }
            placed.push((x, line, entry));
            x += width;
        }
        placed
    }

    /// One sentence per curve for those who cannot see the picture.
    fn description(&self) -> String {
        let mut text = format!("{} over {}.", self.y_label, self.x_label);
        for series in &self.series {
            let finite = || series.points.iter().filter(|p| p[0].is_finite() && p[1].is_finite());
            let missing = series.points.len() - finite().count();
            match (finite().next(), finite().next_back()) {
                (Some(first), Some(last)) => {
                    text += &format!(
                        " {}: {} at {} to {} at {}.",
                        series.name,
                        number(first[1]),
                        number(first[0]),
                        number(last[1]),
                        number(last[0])
                    );
                }
                _ => text += &format!(" {}: no values.", series.name),
            }
            if missing > 0 {
                text += &format!(" {missing} of its values are not finite.");
            }
        }
        for rule in &self.rules {
            text += &format!(" {}: {}.", rule.name, number(rule.y));
        }
        for x in &self.changes {
            text += &format!(" {} at {}.", CHANGE.0, number(*x));
        }
        text
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Curve(Mark),
    Rule,
}

#[derive(Debug)]
struct Entry<'a> {
    name: &'a str,
    color: usize,
    kind: Kind,
}

fn draw_legend_entry(canvas: &mut Canvas, x: f64, y: f64, entry: &Entry<'_>) {
    let color = entry.color % COLORS;
    let sample = [vec![[x, y - 4.0], [x + 18.0, y - 4.0]]];
    match entry.kind {
        Kind::Rule => canvas.path(&format!("rule s{color}"), &sample),
        Kind::Curve(Mark::Faint) => canvas.path(&format!("faint s{color}"), &sample),
        Kind::Curve(_) => canvas.path(&format!("line s{color}"), &sample),
    }
    if matches!(entry.kind, Kind::Curve(Mark::Dots)) {
        canvas.dot(&format!("dot f{color}"), [x + 9.0, y - 4.0], 3.5, entry.name);
    }
    canvas.words("strong", [x + 24.0, y], Anchor::Start, entry.name);
}

/// Ticks of x; a label that would touch the one before is left out.
pub(super) fn draw_x_ticks(canvas: &mut Canvas, axis: &Axis, left: f64, right: f64, bottom: f64) {
    let mut taken = f64::NEG_INFINITY;
    for (tick, label) in axis.ticks.iter().zip(axis.labels()) {
        let Some(x) = axis.place(*tick).map(|p| left + p * (right - left)) else { continue };
        canvas.line("frame", [x, bottom], [x, bottom + 4.0]);
        let half = text_width(&label) / 2.0;
        if x - half < taken + 6.0 {
            continue;
        }
        taken = x + half;
        let (at, anchor) = if x + half > WIDTH { (WIDTH, Anchor::End) } else { (x, Anchor::Middle) };
        canvas.words("", [at, bottom + 17.0], anchor, &label);
    }
}

fn draw_series(canvas: &mut Canvas, series: &Series, place: impl Fn([f64; 2]) -> Option<[f64; 2]>) {
    let color = series.color % COLORS;
    let mut pieces: Vec<Vec<[f64; 2]>> = vec![Vec::new()];
    for point in &series.points {
        match place(*point) {
            Some(at) => pieces.last_mut().expect("there is always a piece").push(at),
            None => pieces.push(Vec::new()),
        }
    }
    let class = if series.mark == Mark::Faint { "faint" } else { "line" };
    let lines: Vec<Vec<[f64; 2]>> = pieces.iter().filter(|p| p.len() > 1).map(|p| thinned(p)).collect();
    canvas.path(&format!("{class} s{color}"), &lines);
    if series.mark == Mark::Dots {
        let radius = if series.points.len() > 60 { 1.8 } else { 3.2 };
        for point in &series.points {
            if let Some(at) = place(*point) {
                let tip = format!("{} at {}: {}", series.name, number(point[0]), number(point[1]));
                canvas.dot(&format!("dot f{color}"), at, radius, &tip);
            }
        }
    } else {
        // A single value between gaps has no line, but it is there.
        for piece in pieces.iter().filter(|p| p.len() == 1) {
            canvas.dot(&format!("dot f{color}"), piece[0], 2.5, &series.name);
        }
    }
}

/// Leaves per column of half a unit the first, lowest, highest and last point: what a screen can show, so that a
/// million steps make the same picture as a thousand.
fn thinned(piece: &[[f64; 2]]) -> Vec<[f64; 2]> {
    const COLUMN: f64 = 0.5;
    if piece.len() as f64 <= 4.0 * WIDTH / COLUMN {
        return piece.to_vec();
    }
    let column = |p: &[f64; 2]| (p[0] / COLUMN).floor() as i64;
    let mut kept = Vec::new();
    for group in piece.chunk_by(|a, b| column(a) == column(b)) {
        let by_height = |a: &&[f64; 2], b: &&[f64; 2]| a[1].total_cmp(&b[1]);
        let (Some(low), Some(high)) = (group.iter().min_by(by_height), group.iter().max_by(by_height)) else {
            continue;
        };
        kept.extend([group[0], *low, *high, group[group.len() - 1]]);
    }
    kept.dedup();
    kept
}

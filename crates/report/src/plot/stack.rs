//! Horizontal bars that are made of parts.

use super::COLORS;
use super::canvas::{Anchor, Canvas, WIDTH, cropped, text_width};

/// One bar, with the parts in the order of the panel's keys.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StackedBar {
    /// Name of the bar, written above it.
    pub label: String,
    /// Lengths of the parts. Values that are not finite or negative get no part.
    pub parts: Vec<f64>,
    /// The sum as text, written behind the bar.
    pub note: String,
}

/// Bars on a common scale from zero.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StackPanel {
    /// Title, written above the bars.
    pub title: String,
    /// Names of the parts.
    pub keys: Vec<String>,
    /// Bars from top to bottom.
    pub bars: Vec<StackedBar>,
    /// A limit that is drawn across the bars, with its name.
    pub limit: Option<(f64, String)>,
}

/// Panels below each other.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StackedBars {
    /// Title, for screen readers.
    pub title: String,
    /// Panels from top to bottom.
    pub panels: Vec<StackPanel>,
}

/// Height of a bar with its label.
const ROW: f64 = 36.0;
const BAR: f64 = 14.0;
const LINE: f64 = 18.0;
/// Tones of a colour: parts beyond the colours take lighter ones.
const TONES: [&str; 3] = ["", " t1", " t2"];
/// Space behind the bars for their notes, at most.
const NOTES: f64 = 120.0;

impl StackPanel {
    fn sum(bar: &StackedBar) -> f64 {
        bar.parts.iter().map(|part| length(*part)).sum()
    }

    /// Places the names of the parts left to right in lines: (x, line, key).
    fn legend(&self) -> Vec<(f64, usize, usize)> {
        let (mut x, mut line) = (0.0, 0);
        let mut places = Vec::new();
        for (key, name) in self.keys.iter().enumerate() {
            let width = 16.0 + text_width(name) + 14.0;
            if x > 0.0 && x + width > WIDTH {
                (x, line) = (0.0, line + 1);
            }
            places.push((x, line, key));
            x += width;
        }
        places
    }

    fn height(&self) -> f64 {
        let lines = self.legend().last().map_or(0, |(_, line, _)| line + 1);
        let limit = if self.limit.is_some() { LINE } else { 0.0 };
        2.0 * LINE + lines as f64 * LINE + self.bars.len() as f64 * ROW + limit
    }

    fn draw(&self, canvas: &mut Canvas, top: f64) {
        canvas.words("strong", [0.0, top + 13.0], Anchor::Start, &cropped(&self.title, WIDTH));
        let legend = self.legend();
        for (x, line, key) in &legend {
            let y = top + LINE + *line as f64 * LINE;
            canvas.rectangle(&class(*key), [*x, y + 3.0], [11.0, 11.0], "");
            canvas.words("", [x + 16.0, y + 13.0], Anchor::Start, &self.keys[*key]);
        }
        let lines = legend.last().map_or(0, |(_, line, _)| line + 1);
        let first = top + LINE + lines as f64 * LINE + 4.0;
        let notes = self.bars.iter().map(|bar| text_width(&bar.note)).fold(0.0, f64::max).min(NOTES);
        let room = WIDTH - notes - 14.0;
        let limit = self.limit.as_ref().map_or(0.0, |(limit, _)| length(*limit));
        let longest = self.bars.iter().map(StackPanel::sum).fold(limit, f64::max);
        let scale = if longest > 0.0 { room / longest } else { 0.0 };
        for (number, bar) in self.bars.iter().enumerate() {
            let y = first + number as f64 * ROW;
            canvas.words("", [0.0, y + 11.0], Anchor::Start, &cropped(&bar.label, WIDTH));
            let mut x = 0.0;
            for (key, part) in bar.parts.iter().enumerate().filter(|(_, part)| length(**part) > 0.0) {
                let width = length(*part) * scale;
                let name = self.keys.get(key).map_or("", String::as_str);
                let share = 100.0 * length(*part) / StackPanel::sum(bar);
                let tip = format!("{}: {name} {share:.1} % of {}", bar.label, bar.note);
                canvas.rectangle(&class(key), [x, y + 15.0], [width, BAR], &tip);
                x += width;
            }
            canvas.words("strong", [x + 6.0, y + 26.0], Anchor::Start, &cropped(&bar.note, notes + 1.0));
        }
        if let Some((limit, name)) = self.limit.as_ref().filter(|(limit, _)| length(*limit) > 0.0) {
            let (x, end) = (length(*limit) * scale, first + self.bars.len() as f64 * ROW);
            canvas.line("rule s5", [x, first + 12.0], [x, end]);
            let anchor = if x > WIDTH / 2.0 { Anchor::End } else { Anchor::Start };
            canvas.words("", [x, end + 13.0], anchor, name);
        }
    }
}

impl StackedBars {
    /// The chart as inline SVG.
    pub fn svg(&self) -> String {
        let bar = |bar: &StackedBar| format!("{}: {}.", bar.label, bar.note);
        let panel = |panel: &StackPanel| {
            let bars: Vec<String> = panel.bars.iter().map(bar).collect();
            format!("{}: {}", panel.title, bars.join(" "))
        };
        let description: Vec<String> = self.panels.iter().map(panel).collect();
        let height = self.panels.iter().map(StackPanel::height).sum::<f64>();
        let mut canvas = Canvas::new(height.max(LINE), &self.title, &description.join(" "));
        let mut top = 0.0;
        for panel in &self.panels {
            panel.draw(&mut canvas, top);
            top += panel.height();
        }
        canvas.finish()
    }
}

fn length(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

fn class(key: usize) -> String {
    format!("f{}{}", key % COLORS, TONES[key / COLORS % TONES.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(svg: &str) -> Vec<f64> {
        let bars = svg.split("<rect").skip(1).filter(|rect| rect.contains("height=\"14\""));
        let width = |rect: &str| rect.split("width=\"").nth(1)?.split('"').next()?.parse().ok();
        bars.map(|rect| width(rect).expect("a width")).collect()
    }

    #[test]
    fn parts_lie_behind_each_other_on_one_scale() {
        let bar = |label: &str, parts: &[f64], note: &str| StackedBar {
            label: label.into(),
            parts: parts.to_vec(),
            note: note.into(),
        };
        let panel = StackPanel {
            title: "time <of a step>".into(),
            keys: vec!["compute".into(), "bubble & messages".into()],
            bars: vec![bar("tensor 2", &[3.0, 1.0], "4 s"), bar("data 2", &[2.0, f64::NAN], "2 s")],
            limit: Some((8.0, "limit 8 s".into())),
        };
        let chart = StackedBars { title: "a plan".into(), panels: vec![panel.clone(), panel] };
        let svg = chart.svg();
        let found = widths(&svg);
        assert_eq!(found.len(), 6, "{svg}");
        for (width, wanted) in found.iter().zip([3.0, 1.0, 2.0, 3.0, 1.0, 2.0]) {
            assert!((width / found[1] - wanted).abs() < 0.01, "{found:?}");
        }
        assert!(svg.contains("compute 75.0 % of 4 s") && svg.contains("bubble &amp; messages"), "{svg}");
        assert!(svg.contains("time &lt;of a step&gt;") && svg.matches("limit 8 s").count() == 2);
        assert!(!svg.contains("NaN"));
        assert!(StackedBars::default().svg().contains("</svg>"));
    }
}

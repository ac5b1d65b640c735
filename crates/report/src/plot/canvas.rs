//! The SVG text that all pictures share.

use crate::text::escape;

/// Width of every picture in user units. Pictures scale to the page; at this width the text has its nominal size,
/// and on a narrow telephone it is still readable.
pub(crate) const WIDTH: f64 = 460.0;

/// Widest picture that is scaled to its page.
const WIDE: f64 = 1200.0;

/// Mean width of a character at the nominal size, and of one in a wide script: an estimate that keeps text apart.
const CHARACTER: f64 = 7.0;

/// Estimated width of text at the nominal size.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars().map(|c| if (c as u32) < 0x1100 { CHARACTER } else { 2.0 * CHARACTER }).sum()
}

/// Text cropped to a width, with an ellipsis.
pub(crate) fn cropped(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_string();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if text_width(&kept) + CHARACTER > width {
            kept.pop();
            break;
        }
    }
    kept + "…"
}

/// Horizontal alignment of text at its point.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// SVG text under construction.
#[derive(Debug)]
pub(crate) struct Canvas {
    text: String,
}

impl Canvas {
    /// Opens a picture. Screen readers get the title and the description.
    pub(crate) fn new(height: f64, title: &str, description: &str) -> Canvas {
        Canvas::sized([WIDTH, height], title, description)
    }

    /// Opens a picture of another width.
    pub(crate) fn sized([width, height]: [f64; 2], title: &str, description: &str) -> Canvas {
        // What is too wide to be read when it is scaled to a page is scrolled.
        let style = match width > WIDE {
            true => format!(" style=\"min-width:{}px\"", coordinate(width)),
            false => String::new(),
        };
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" viewBox=\"0 0 {} {}\"{style} role=\"img\" \
             aria-label=\"{}\"><title>{}</title><desc>{}</desc>\n",
            coordinate(width),
            coordinate(height),
            escape(title),
            escape(title),
            escape(description)
        );
        Canvas { text }
    }

    pub(crate) fn line(&mut self, class: &str, from: [f64; 2], to: [f64; 2]) {
        self.text += &format!(
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n",
            coordinate(from[0]),
            coordinate(from[1]),
            coordinate(to[0]),
            coordinate(to[1])
        );
    }

    pub(crate) fn path(&mut self, class: &str, pieces: &[Vec<[f64; 2]>]) {
        let mut d = String::new();
        for piece in pieces {
            for (i, [x, y]) in piece.iter().enumerate() {
                d.push(if i == 0 { 'M' } else { 'L' });
                d += &format!("{} {}", coordinate(*x), coordinate(*y));
            }
        }
        if !d.is_empty() {
            self.text += &format!("<path class=\"{class}\" d=\"{d}\"/>\n");
        }
    }

    /// Rectangles of one class, each from left, top, width and height.
    pub(crate) fn blocks(&mut self, class: &str, blocks: &[[f64; 4]]) {
        if blocks.is_empty() {
            return;
        }
        self.text += &format!("<path class=\"{class}\" d=\"");
        for block in blocks {
            let [x, y, width, height] = block.map(coordinate);
            self.text += &format!("M{x} {y}h{width}v{height}h-{width}z");
        }
        self.text += "\"/>\n";
    }

    pub(crate) fn dot(&mut self, class: &str, at: [f64; 2], radius: f64, tip: &str) {
        self.text += &format!(
            "<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"{}\"><title>{}</title></circle>\n",
            coordinate(at[0]),
            coordinate(at[1]),
            coordinate(radius),
            escape(tip)
        );
    }

    pub(crate) fn rectangle(&mut self, class: &str, at: [f64; 2], size: [f64; 2], tip: &str) {
        let tip = if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) };
        self.text += &format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\">{tip}</rect>\n",
            coordinate(at[0]),
            coordinate(at[1]),
            coordinate(size[0].max(0.0)),
            coordinate(size[1].max(0.0))
        );
    }

    /// Drawn text of another picture, moved.
    pub(crate) fn group(&mut self, at: [f64; 2], drawn: &str) {
        self.text += &format!(
            "<g transform=\"translate({} {})\">\n{drawn}\n</g>\n",
            coordinate(at[0]),
            coordinate(at[1])
        );
    }

    pub(crate) fn words(&mut self, class: &str, at: [f64; 2], anchor: Anchor, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        self.text += &format!(
            "<text{class} x=\"{}\" y=\"{}\"{anchor}>{}</text>\n",
            coordinate(at[0]),
            coordinate(at[1]),
            escape(words)
        );
    }

    pub(crate) fn finish(mut self) -> String {
        self.text += "</svg>\n";
        self.text
    }
}

/// A coordinate with one digit: a tenth of a unit is below what a screen shows.
fn coordinate(x: f64) -> String {
    let text = format!("{x:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".into(),
        Some(whole) => whole.into(),
        None => text,
    }
}

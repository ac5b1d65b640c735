//! Lanes in a terminal: one line of text per lane.

use super::plain;
use crate::plot::{COLORS, Cell, Lane, Lanes, Part, TONES};
use crate::text::number;

/// Most columns of a short piece: wider ones say no more.
const WIDEST: f64 = 6.0;
/// Least columns of the lanes themselves, however narrow the terminal.
const LEAST: usize = 20;

/// Backgrounds of the colours by tone, from the 256 that terminals have in common, and the colour of text on them (15
/// white, 16 black): those of the pictures in their order.
const BACKGROUNDS: [[(u8, u8); TONES]; COLORS] = [
    [(27, 15), (69, 16), (111, 16)],
    [(172, 16), (215, 16), (222, 16)],
    [(23, 15), (66, 15), (109, 16)],
    [(90, 15), (133, 15), (176, 16)],
    [(58, 15), (100, 15), (143, 16)],
    [(236, 15), (241, 15), (246, 16)],
    [(38, 16), (80, 16), (123, 16)],
    [(131, 15), (174, 16), (217, 16)],
];

/// Draws lanes in `width` columns. A piece is its label and a line to its end; what waits is a dot. With `colour` pieces have
/// their background instead of the line. Pieces narrower than their label show its first letter.
pub fn lanes(picture: &Lanes, width: usize, colour: bool) -> String {
    let all = || picture.panels.iter().flat_map(|p| &p.lanes);
    let widest = |text: &dyn Fn(&Lane) -> String| all().map(|l| text(l).chars().count()).max().unwrap_or(0);
    let label = widest(&|l| plain(&l.label));
    let note = widest(&|l| plain(&l.note));
    let columns = width.saturating_sub(label + note + 4).max(LEAST);
    let (low, high) = picture.range().unwrap_or((0.0, 1.0));
    let whole = if high > low { high - low } else { 1.0 };
    let fitting = columns as f64 / whole;
    // Whole columns for short pieces keep equal pieces equal; with few columns, labels are worth more than that.
    let scale = match picture.short_length() {
        Some(short) if short * fitting >= 2.0 => (short * fitting).floor().min(WIDEST) / short,
        _ => fitting,
    };
    let used = ((whole * scale).ceil() as usize).clamp(1, columns);
    let mut text = String::new();
    for panel in &picture.panels {
        if !panel.title.is_empty() {
            text += &format!("{}\n", plain(&panel.title));
        }
        for lane in &panel.lanes {
            let drawn = draw(lane, low, scale, used, colour);
            let line = format!("{:>label$} │{drawn}│ {}", plain(&lane.label), plain(&lane.note));
            text += line.trim_end();
            text.push('\n');
        }
    }
    let (from, to) = (number(low), format!("{} {}", number(high), plain(&picture.x_label)));
    let gap = (used + 2).saturating_sub(from.chars().count()).max(to.chars().count() + 1);
    text += &format!("{:label$} {from}{:>gap$}\n", "", to.trim_end());
    // Without colours there are no tones to explain.
    let keys = picture.keys.iter().filter(|key| colour || !key.letter.is_empty()).map(|key| {
        let letter = match colour {
            true => format!("{} {} {RESET}", paint(key.color, key.tone), plain(&key.letter)),
            false => plain(&key.letter),
        };
        format!("{letter} {}", plain(&key.name))
    });
    let keys: Vec<String> = keys.collect();
    if !keys.is_empty() {
        text += &format!("{:label$} {}\n", "", keys.join("   "));
    }
    text
}

const RESET: &str = "\u{1b}[0m";

fn paint(color: usize, tone: usize) -> String {
    let (back, front) = BACKGROUNDS[color % COLORS][tone.min(TONES - 1)];
    format!("\u{1b}[48;5;{back};38;5;{front}m")
}

/// A column: its character and what paints it.
type Column = (char, Option<(usize, usize)>);

fn draw(lane: &Lane, low: f64, scale: f64, columns: usize, colour: bool) -> String {
    let mut line: Vec<Column> = vec![('·', None); columns];
    let mut cells: Vec<&Cell> = lane.cells.iter().filter(|c| c.shown()).collect();
    cells.sort_by(|a, b| a.start.total_cmp(&b.start));
    for cell in cells {
        let column = |x: f64| (((x - low) * scale).round().max(0.0) as usize).min(columns);
        let (from, to) = (column(cell.start).min(columns - 1), column(cell.end));
        let to = to.max(from + 1);
        // Two things done together stand one after the other.
        let middle = (from + to).div_ceil(2);
        let (from, to) = match cell.part {
            Part::Whole => (from, to),
            Part::Upper => (from, middle),
            Part::Lower => (middle, to),
        };
        write(&mut line[from..to], cell, colour);
    }
    if !colour {
        return line.into_iter().map(|(c, _)| c).collect();
    }
    let mut text = String::new();
    let mut last = None;
    for (c, paint_of) in line {
        if paint_of != last {
            if last.is_some() {
                text += RESET;
            }
            if let Some((color, tone)) = paint_of {
                text += &paint(color, tone);
            }
            last = paint_of;
        }
        text.push(c);
    }
    if last.is_some() {
        text += RESET;
    }
    text
}

fn write(columns: &mut [Column], cell: &Cell, colour: bool) {
    let (label, short) = (plain(&cell.label), plain(&cell.short));
    let first: String = label.chars().take(1).collect();
    // Without colours the letter says what it is, so the number alone will not do.
    let tries = if colour { [&label, &short, &first] } else { [&label, &first, &first] };
    let text = tries.into_iter().find(|t| t.chars().count() <= columns.len() && !t.is_empty());
    let mut text = text.map_or("", |t| t.as_str()).chars();
    let fill = if colour { ' ' } else { '─' };
    let painted = colour.then_some((cell.color, cell.tone));
    for column in columns {
        *column = (text.next().unwrap_or(fill), painted);
    }
}

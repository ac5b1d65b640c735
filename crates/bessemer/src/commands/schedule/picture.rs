//! Timelines as lanes: what is drawn for which instruction.

use bessemer_report::plot::{Cell, Key, Lane, Part};
use bessemer_schedule::{Filler, Instruction, Program};
use bessemer_sim::{Kind, Timeline};

/// A kind of work: letter, meaning, index of its colour.
const KINDS: [(&str, &str, usize); 7] = [
    ("F", "forward", 0),
    ("B", "backward", 2),
    ("I", "backward, input part", 3),
    ("W", "backward, weight part", 4),
    ("R", "reduce", 1),
    ("S", "step", 6),
    ("G", "gather", 7),
];
/// Label of work other than passes and updates.
const FILLERS: [(Filler, (&str, &str, usize)); 6] = [
    (Filler::Curvature, ("C", "curvature", 4)),
    (Filler::SyncCurvature, ("Y", "curvature added up", 5)),
    (Filler::Invert, ("V", "inversion", 3)),
    (Filler::Precondition, ("P", "preconditioning", 7)),
    (Filler::Evaluate, ("E", "evaluation", 6)),
    (Filler::Copy, ("K", "copy", 1)),
];

fn color(letter: &str) -> usize {
    let mut all = KINDS.iter().chain(FILLERS.iter().map(|f| &f.1));
    all.find(|k| k.0 == letter).map_or(5, |k| k.2)
}

fn letter(filler: Filler) -> &'static str {
    FILLERS.iter().find(|f| f.0 == filler).map_or("X", |f| f.1.0)
}

fn cell(letter: &str, number: usize, chunk: usize, part: Part, span: (f64, f64), name: &str) -> Cell {
    Cell {
        start: span.0,
        end: span.1,
        color: color(letter),
        tone: chunk,
        part,
        label: format!("{letter}{number}"),
        short: number.to_string(),
        tip: format!("{name}: {} to {}", tidy(span.0), tidy(span.1)),
    }
}

/// A number with at most four digits behind the point, without zeros at its end.
pub(crate) fn tidy(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

/// Drawing of an instruction that takes time.
fn cells(instruction: &Instruction, span: (f64, f64)) -> Vec<Cell> {
    let name = instruction.to_string();
    let whole = |letter, number, chunk| vec![cell(letter, number, chunk, Part::Whole, span, &name)];
    match instruction {
        Instruction::Forward(p) => whole("F", p.micro, p.chunk),
        Instruction::Backward(p) => whole("B", p.micro, p.chunk),
        Instruction::BackwardInput(p) => whole("I", p.micro, p.chunk),
        Instruction::BackwardWeight(p) => whole("W", p.micro, p.chunk),
        Instruction::Together { forward, backward } => vec![
            cell("F", forward.micro, forward.chunk, Part::Upper, span, &name),
            cell("B", backward.micro, backward.chunk, Part::Lower, span, &name),
        ],
        Instruction::Reduce { chunk, update } => whole("R", *update, *chunk),
        Instruction::Step { chunk, update } => whole("S", *update, *chunk),
        Instruction::Gather { chunk, update } => whole("G", *update, *chunk),
        Instruction::Fill(fill) => whole(letter(fill.filler), fill.unit, fill.chunk),
        Instruction::Send { .. } | Instruction::Receive { .. } => Vec::new(),
    }
}

/// Drawing of a measured interval; `other` is the micro-batch of the backward pass of a pair.
pub(crate) fn measured_cells(
    kind: Kind,
    (micro, chunk): (usize, usize),
    other: Option<usize>,
    span: (f64, f64),
    name: &str,
) -> Vec<Cell> {
    let whole = |letter| vec![cell(letter, micro, chunk, Part::Whole, span, name)];
    match kind {
        Kind::Forward => whole("F"),
        Kind::Backward => whole("B"),
        Kind::BackwardInput => whole("I"),
        Kind::BackwardWeight => whole("W"),
        Kind::Reduce => whole("R"),
        Kind::Step => whole("S"),
        Kind::Gather => whole("G"),
        Kind::Fill(filler) => whole(letter(filler)),
        Kind::Together { backward } => vec![
            cell("F", micro, chunk, Part::Upper, span, name),
            cell("B", other.unwrap_or(micro), backward, Part::Lower, span, name),
        ],
    }
}

/// A lane for each rank, with `note` to its right.
pub(crate) fn lanes(program: &Program, timeline: &Timeline, note: impl Fn(usize) -> String) -> Vec<Lane> {
    let lane = |rank| Lane {
        label: format!("rank {rank}"),
        cells: timeline.work(program, rank).flat_map(|(_, i, t)| cells(i, (t.start, t.end))).collect(),
        note: note(rank),
    };
    (0..program.ranks()).map(lane).collect()
}

/// The meaning of the colours that are there.
pub(crate) fn keys<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> Vec<Key> {
    let all = KINDS.iter().chain(FILLERS.iter().map(|f| &f.1));
    let there = all.filter(|k| cells.clone().any(|c| c.label.starts_with(k.0)));
    let mut keys: Vec<Key> = there
        .map(|(letter, name, color)| Key {
            color: *color,
            tone: 0,
            letter: (*letter).into(),
            name: (*name).into(),
        })
        .collect();
    if cells.clone().any(|c| c.tone > 0) {
        let name = "paler: later chunks".into();
        keys.push(Key { color: color("F"), tone: 1, letter: String::new(), name });
    }
    keys
}

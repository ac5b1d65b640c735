//! The page of a coordinate check: slopes over the width, their verdicts, and the curves.

use crate::html::{Align, figure, grid, section, table};
use crate::page::page;
use crate::plot::{LineChart, Mark, Scale, Series};
use crate::text::{escape, grouped, number};
use bessemer_runlog::coord_check::{CoordCheck, CoordKind, CoordParametrisation, CoordSlope, Measure};
use std::io;
use std::path::Path;

/// The page.
pub fn render_coord_check(check: &CoordCheck) -> String {
    let s = &check.settings;
    let widths: Vec<String> = s.widths.iter().map(u64::to_string).collect();
    let header = format!(
        "<header><h1>Do updates have the same size at every width?</h1>\n<p>{}</p>\n<p>{}</p></header>\n",
        escape(&format!(
            "Decoders of {} layers and widths {}, heads of {}; {} updates of Adam with a constant rate of {} on one batch of {} × {} \
             {}s of {} ({} different).",
            s.layers,
            widths.join(", "),
            s.head_dim,
            s.steps,
            number(s.lr),
            s.batch,
            s.context,
            check.text.unit,
            check.text.name,
            grouped(check.text.symbols)
        )),
        escape(&format!(
            "Under the maximal update parametrisation (muP, Yang et al. 2022) every activation changes by as much at any width, \
             so that a learning rate found at width {} serves them all. Under the standard parametrisation changes grow with it. At \
             width {} both are the same.",
            s.base_width, s.base_width
        ))
    );
    let changes = curves(check, Measure::Change);
    let sizes = curves(check, Measure::Size);
    let body = [
        header,
        results(check),
        section("change", "Change since the initialisation", &(note(CHANGE) + &grid(&changes))),
        section("size", "Size", &(note(SIZE) + &grid(&sizes))),
    ];
    page("Coordinate check · Bessemer", &body.concat())
}

const CHANGE: &str = "Root mean square of the change after the last update over the width, both axes logarithmic: mean over seeds, \
                      and pale each seed. Dots: after the first update.";
const SIZE: &str = "Root mean square of the values after the last update; dots: at the initialisation. A size that shrinks with the \
                    width at the start is no fault: muP's logits do, and catch up by training.";

/// Writes the page atomically: a reader sees the old page or the new one, never a part.
///
/// # Errors
/// The system's, with the path in the message.
pub fn write_coord_check(path: &Path, check: &CoordCheck) -> io::Result<()> {
    bessemer_durable::write(path, render_coord_check(check).as_bytes())
}

fn note(text: &str) -> String {
    format!("<p class=\"note\">{}</p>\n", escape(text))
}

fn slope(s: Option<CoordSlope>) -> String {
    s.map_or("–".into(), |s| format!("{:.2} ± {:.2}", s.slope, s.spread))
}

fn results(check: &CoordCheck) -> String {
    let mut body = String::new();
    let head = ["activation", "change", "verdict", "size at the start", "size at the end"];
    let align = [Align::Left, Align::Right, Align::Left, Align::Right, Align::Right];
    for p in &check.parametrisations {
        let rows: Vec<Vec<String>> = p
            .findings
            .iter()
            .map(|f| {
                let verdict = f.verdict.name().to_string();
                vec![f.kind.title().into(), slope(f.change), verdict, slope(f.size_at_start), slope(f.size)]
            })
            .collect();
        body += &format!("<h3>{}: {}</h3>\n", escape(&p.title), escape(&p.verdict()));
        body += &table(&head, &align, &rows);
    }
    let rule = format!(
        "Slopes of log2 of the root mean square over log2 of the width, by least squares through the means over seeds, ± the sample \
         standard deviation of the slopes of single seeds. 0 is flat, 1 in proportion to the width. Flat: the slope of the change \
         after the last update lies within ±{}.",
        number(check.settings.bound)
    );
    section("results", "Slopes", &(body + &note(&rule)))
}

/// One picture a kind of activation.
fn curves(check: &CoordCheck, measure: Measure) -> Vec<String> {
    let picture = |kind: CoordKind| {
        let chart = LineChart {
            title: format!("{} over width", kind.title()),
            x_label: "width (log scale)".into(),
            y_label: "root mean square (log scale)".into(),
            x_scale: Scale::Log,
            y_scale: Scale::Log,
            series: check
                .parametrisations
                .iter()
                .enumerate()
                .flat_map(|(color, p)| series(check, p, color, kind, measure))
                .collect(),
            ..Default::default()
        };
        figure(kind.title(), &chart.svg(), "")
    };
    CoordKind::ALL.into_iter().map(picture).collect()
}

/// A parametrisation's curves: each seed and the mean after the last update, and the first step that has a value.
fn series(
    check: &CoordCheck,
    p: &CoordParametrisation,
    color: usize,
    kind: CoordKind,
    measure: Measure,
) -> Vec<Series> {
    let last = check.settings.steps as usize;
    let first = if measure == Measure::Size { 0 } else { 1 };
    let points = |p: &CoordParametrisation, step| {
        let at = |w: &u64| Some([*w as f64, p.mean(kind, measure, step, *w).filter(|v| *v > 0.0)?]);
        check.settings.widths.iter().filter_map(at).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    let mut seeds: Vec<u64> = p.runs.iter().map(|r| r.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    for seed in seeds.iter().filter(|_| seeds.len() > 1) {
        let runs = p.runs.iter().filter(|r| r.seed == *seed).cloned().collect();
        let one = CoordParametrisation { runs, findings: Vec::new(), ..p.clone() };
        all.push(Series { name: String::new(), color, mark: Mark::Faint, points: points(&one, last) });
    }
    all.push(Series { name: p.name.clone(), color, mark: Mark::Line, points: points(p, last) });
    if first < last {
        let what = if measure == Measure::Size { "at the start" } else { "first update" };
        let name = format!("{}, {what}", p.name);
        all.push(Series { name, color, mark: Mark::Dots, points: points(p, first) });
    }
    all.retain(|s| !s.points.is_empty());
    all
}

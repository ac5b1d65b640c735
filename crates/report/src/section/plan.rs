//! The plan of the layout: what it chose, against which others, and what was measured.

use crate::facts::Facts;
use crate::html::{Align, figure, grid, section, table};
use crate::planned::{ComparedItem, compare, measured_bars, plan_bars};
use crate::text::{escape, grouped};

pub(crate) fn plan(facts: &Facts<'_>) -> String {
    let Some(plan) = facts.plan else { return String::new() };
    let sentence = format!(
        "Planned for {} × {}, the fastest of {} layouts that fits: {}.",
        plan.ranks,
        plan.machine,
        grouped(plan.evaluated),
        plan.layout
    );
    let mut body = format!("<p>{}</p>\n", escape(&sentence));
    let mut figures =
        vec![figure("Layouts of the plan", &plan_bars(plan).svg(), "Predicted time and memory.")];
    let mut tables = String::new();
    if let Some(measured) = facts.measured {
        let note = format!(
            "Median of {} steps up to step {}; by item the mean over the ranks in {} of them.",
            measured.steps, measured.step, measured.watched
        );
        figures.push(figure("The plan and what was measured", &measured_bars(plan, measured).svg(), &note));
        let row = |item: ComparedItem| {
            let of = if item.name == item.quantity { "" } else { item.quantity };
            vec![item.name, of.to_owned(), item.predicted, item.measured, item.difference]
        };
        let rows: Vec<Vec<String>> = compare(plan, measured).into_iter().map(row).collect();
        let align = [Align::Left, Align::Left, Align::Right, Align::Right, Align::Right];
        tables += &table(&["", "of", "predicted", "measured", "difference"], &align, &rows);
    }
    body += &grid(&figures);
    body += &tables;
    let others: Vec<Vec<String>> =
        plan.others.iter().map(|other| vec![other.layout.clone(), other.reason.clone()]).collect();
    if !others.is_empty() {
        body += &table(&["other layout", "what rules it out"], &[Align::Left, Align::Left], &others);
    }
    section("plan", "Plan of the layout", &body)
}

//! A plan of the layout and what its steps took: pictures, rows of a comparison, lines of the terminal.

use crate::plot::{StackPanel, StackedBar, StackedBars};
use crate::terminal::plain;
use crate::text::{number, signed_percent};
use bessemer_runlog::{CostItem, Measured, Plan, StepCosts};
use bessemer_units::Bytes;

/// One item of a plan beside what was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedItem {
    /// Whether it is a part of the time, memory or traffic of a step.
    pub quantity: &'static str,
    /// Its name; the quantity's own for the sum.
    pub name: String,
    /// The prediction with its unit; a dash if there is none.
    pub predicted: String,
    /// The measurement with its unit; a dash if there is none.
    pub measured: String,
    /// Measured over predicted, less 1; empty if one of them is missing.
    pub difference: String,
}

/// Seconds in milliseconds or seconds.
pub fn seconds(value: f64) -> String {
    if value.abs() < 1.0 { format!("{} ms", number(1e3 * value)) } else { format!("{} s", number(value)) }
}

/// Bytes with a unit.
fn bytes(value: f64) -> String {
    Bytes(value as u64).to_string()
}

/// Lists the items of a plan beside those that were measured: each quantity with its sum first.
pub fn compare(plan: &Plan, measured: &Measured) -> Vec<ComparedItem> {
    let (predicted, found) = (&plan.predicted, &measured.costs);
    let mut rows = Vec::new();
    let mut quantity =
        |quantity, sums: [f64; 2], of: fn(&StepCosts) -> &[CostItem], text: fn(f64) -> String| {
            let present = |value: f64| (value > 0.0).then_some(value);
            let mut row = |name: &str, predicted: Option<f64>, measured: Option<f64>| {
                let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), text);
                let difference = match (predicted, measured) {
                    (Some(predicted), Some(measured)) => signed_percent(measured / predicted - 1.0),
                    _ => String::new(),
                };
                let (name, predicted, measured) = (name.to_owned(), shown(predicted), shown(measured));
                rows.push(ComparedItem { quantity, name, predicted, measured, difference });
            };
            let (expected, found) = (of(predicted), of(found));
            if expected.is_empty() && found.is_empty() {
                return;
            }
            row(quantity, present(sums[0]), present(sums[1]));
            let value = |items: &[CostItem], name: &str| {
                items.iter().find(|item| item.name == name).and_then(|item| present(item.value))
            };
            let only = found.iter().filter(|item| expected.iter().all(|other| other.name != item.name));
            for item in expected.iter().chain(only) {
                let (predicted, measured) = (value(expected, &item.name), value(found, &item.name));
                if predicted.is_some() || measured.is_some() {
                    row(&item.name, predicted, measured);
                }
            }
        };
    quantity("time", [predicted.seconds, found.seconds], |costs| &costs.time, seconds);
    quantity("memory", [predicted.memory_bytes(), found.memory_bytes()], |costs| &costs.memory, bytes);
    quantity("traffic", [predicted.traffic_bytes(), found.traffic_bytes()], |costs| &costs.traffic, bytes);
    rows
}

/// Bars of the time and of the memory of the planned layout and of the others.
pub fn plan_bars(plan: &Plan) -> StackedBars {
    let layouts: Vec<(&str, &StepCosts)> = std::iter::once((plan.layout.as_str(), &plan.predicted))
        .chain(plan.others.iter().map(|other| (other.layout.as_str(), &other.predicted)))
        .collect();
    let time = panel("time of a step", &layouts, |costs| &costs.time, |costs| seconds(costs.seconds));
    let memory =
        panel("memory of a rank", &layouts, |costs| &costs.memory, |costs| bytes(costs.memory_bytes()));
    let limit = plan.memory_limit as f64;
    let limit = (limit > 0.0).then(|| (limit, format!("limit {}", bytes(limit))));
    // A limit far away would leave no room for the bars.
    let most = layouts.iter().map(|(_, costs)| costs.memory_bytes()).fold(0.0, f64::max);
    let limit = limit.filter(|(limit, _)| *limit <= 4.0 * most);
    let memory = StackPanel { limit, ..memory };
    StackedBars { title: "predicted time and memory".into(), panels: vec![time, memory] }
}

/// Bars of the prediction beside the measurement: time by item and memory by class.
pub fn measured_bars(plan: &Plan, measured: &Measured) -> StackedBars {
    let both = [("predicted", &plan.predicted), ("measured", &measured.costs)];
    let time = panel("time of a step", &both, |costs| &costs.time, |costs| seconds(costs.seconds));
    let memory = panel("memory of a rank", &both, |costs| &costs.memory, |costs| bytes(costs.memory_bytes()));
    let traffic = panel(
        "bytes that the first rank sends in a step",
        &both,
        |costs| &costs.traffic,
        |costs| bytes(costs.traffic_bytes()),
    );
    let panels = [time, memory, traffic].into_iter().filter(|panel| !panel.keys.is_empty()).collect();
    StackedBars { title: "predicted and measured".into(), panels }
}

fn panel(
    title: &str,
    layouts: &[(&str, &StepCosts)],
    of: fn(&StepCosts) -> &[CostItem],
    note: fn(&StepCosts) -> String,
) -> StackPanel {
    let mut keys: Vec<String> = Vec::new();
    for item in layouts.iter().flat_map(|(_, costs)| of(costs)).filter(|item| item.value > 0.0) {
        if !keys.contains(&item.name) {
            keys.push(item.name.clone());
        }
    }
    let part = |costs: &StepCosts, key: &String| {
        of(costs).iter().filter(|item| item.name == *key).map(|item| item.value).sum()
    };
    let bar = |(label, costs): &(&str, &StepCosts)| StackedBar {
        label: (*label).to_owned(),
        parts: keys.iter().map(|key| part(costs, key)).collect(),
        note: note(costs),
    };
    StackPanel { title: title.into(), bars: layouts.iter().map(bar).collect(), keys, limit: None }
}

/// One line for a plan.
pub fn plan_line(plan: &Plan) -> String {
    format!(
        "plan for {} x {}: {}; predicted {} a step, {} a rank",
        plan.ranks,
        plain(&plan.machine),
        plain(&plan.layout),
        seconds(plan.predicted.seconds),
        bytes(plan.predicted.memory_bytes())
    )
}

/// Lines that hold a plan against what was measured.
pub fn measured_lines(plan: &Plan, measured: &Measured) -> String {
    let rows = compare(plan, measured);
    let width = rows.iter().map(|row| row.name.chars().count() + 2).max().unwrap_or(0);
    let mut text = format!(
        "the plan against {} steps (by item: {}):\n  {:<width$} {:>12} {:>12}",
        measured.steps, measured.watched, "", "predicted", "measured"
    );
    for row in rows {
        let indent = if row.name == row.quantity { "" } else { "  " };
        text += &format!(
            "\n  {:<width$} {:>12} {:>12} {:>9}",
            format!("{indent}{}", plain(&row.name)),
            row.predicted,
            row.measured,
            row.difference
        );
    }
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_runlog::OtherLayout;

    fn costs(seconds: f64, weights: f64, sent: f64) -> StepCosts {
        let item = |name: &str, value| CostItem::new(name, value);
        StepCosts {
            seconds,
            time: vec![item(StepCosts::COMPUTE, seconds)],
            memory: vec![item("weights", weights), item("workspace", 0.0)],
            traffic: vec![item("shard", sent)],
        }
    }

    fn plan() -> Plan {
        Plan {
            ranks: 2,
            machine: "box\u{1b}[2J".into(),
            layout: "data 2 (ZeRO-1), micro-batch 4".into(),
            predicted: costs(0.02, 1048576.0, 0.0),
            memory_limit: 2 << 20,
            others: vec![OtherLayout {
                layout: "tensor 2".into(),
                predicted: costs(1.5, 524288.0, 64.0),
                ..OtherLayout::default()
            }],
            ..Plan::default()
        }
    }

    #[test]
    fn a_plan_stands_beside_what_was_measured_item_by_item() {
        let mut found = costs(0.03, 1048576.0, 10.0);
        found.time.push(CostItem::new(StepCosts::OTHER, 0.001));
        let measured = Measured { step: 20, steps: 18, watched: 5, costs: found };
        let lines = measured_lines(&plan(), &measured);
        let words: Vec<Vec<&str>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[2], ["time", "20", "ms", "30", "ms", "+50.0", "%"]);
        assert_eq!(words[3], ["compute", "20", "ms", "30", "ms", "+50.0", "%"]);
        assert_eq!(words[4], ["other", "-", "1", "ms"]);
        assert_eq!(words[5], ["memory", "1.00", "MiB", "1.00", "MiB", "0.0", "%"]);
        assert_eq!(words[7], ["traffic", "-", "10", "B"]);
        assert_eq!(words.len(), 9, "{lines}");
        let line = plan_line(&plan());
        assert!(
            line.ends_with("predicted 20 ms a step, 1.00 MiB a rank") && !line.contains('\u{1b}'),
            "{line}"
        );
        let svg = measured_bars(&plan(), &measured).svg();
        assert!(svg.contains("measured: other") && svg.contains("shard"), "{svg}");
    }

    #[test]
    fn bars_show_every_layout_and_the_limit_where_it_is_near() {
        let svg = plan_bars(&plan()).svg();
        assert!(svg.contains("tensor 2: 1.5 s") && svg.contains("limit 2.00 MiB"), "{svg}");
        let far = Plan { memory_limit: 1 << 40, ..plan() };
        assert!(!plan_bars(&far).svg().contains("limit"));
    }
}

//! How to do it again: recipe, machine, command; and what the run warned of.

use crate::facts::Facts;
use crate::html::{Align, details, section, table};
use crate::text::{escape, grouped, number};
use bessemer_runlog::{Save, rfc3339};
use bessemer_units::stats::upper_median;
use bessemer_units::{Seconds, Tokens};

/// Warnings shown.
const SHOWN_WARNINGS: usize = 50;

pub(crate) fn warnings(facts: &Facts<'_>) -> String {
    let mut items: Vec<String> = Vec::new();
    if let Some(message) = facts.end.and_then(|e| e.message.as_deref()) {
        items.push(format!("<li>{}</li>\n", escape(message)));
    }
    for fault in facts.faults.iter().take(SHOWN_WARNINGS) {
        items.push(format!("<li><b>fault</b> (step {}): {}</li>\n", fault.found_at, escape(&fault.message)));
    }
    for warning in facts.warnings.iter().take(SHOWN_WARNINGS) {
        let at = warning.step.map_or(String::new(), |s| format!(" (step {s})"));
        items.push(format!("<li><b>{}</b>{at}: {}</li>\n", escape(&warning.topic), escape(&warning.message)));
    }
    let more = [facts.warnings.len(), facts.faults.len()]
        .map(|n| n.saturating_sub(SHOWN_WARNINGS))
        .iter()
        .sum::<usize>();
    if more > 0 {
        items.push(format!("<li>{more} more are in metrics.jsonl.</li>\n"));
    }
    if items.is_empty() {
        return String::new();
    }
    section("warnings", "Warnings", &format!("<ul>\n{}</ul>\n", items.concat()))
}

pub(crate) fn again(facts: &Facts<'_>, recipe: &str) -> String {
    let mut body = String::new();
    let rows = rows(facts);
    if !rows.is_empty() {
        body += &table(&[], &[Align::Left, Align::Left], &rows);
    }
    if !recipe.is_empty() {
        body += &details("Resolved recipe", &format!("<pre>{}</pre>\n", escape(recipe)), false);
    }
    section("again", "To do it again", &body)
}

/// How many checkpoints were written, and what they cost training. `step`: seconds of a step; `training`: of all steps.
fn saves(saves: &[&Save], step: Option<f64>, training: f64) -> String {
    let mut text = saves.len().to_string();
    let sum = |of: fn(&Save) -> Option<f64>| -> Option<f64> {
        let known: Vec<f64> = saves.iter().filter_map(|s| of(s)).filter(|v| v.is_finite()).collect();
        (!known.is_empty()).then(|| known.iter().sum())
    };
    let stalled = sum(|s| s.stall_seconds);
    if let Some(stalled) = stalled {
        text += &format!(", training waited {}", Seconds(stalled));
    }
    let share = |longer: f64| {
        let cost = stalled? + longer;
        (training > 0.0)
            .then(|| format!("; in all {:.2} % of the time of the steps", 100.0 * cost.max(0.0) / training))
    };
    let Some(copied) = sum(|s| s.copy_seconds) else { return text + &share(0.0).unwrap_or_default() };
    text += &format!(" ({} of it to copy the state)", Seconds(copied));
    if let Some(written) = sum(|s| s.copy_seconds.map(|_| s.seconds)) {
        text += &format!(", written beside training in {}", Seconds(written));
    }
    let (mut steps, mut longer) = (0, 0.0);
    for save in saves {
        if let (Some(beside), Some(slowdown)) = (save.steps_beside, save.slowdown) {
            (steps, longer) = (steps + beside, longer + beside as f64 * slowdown);
        }
    }
    if steps > 0 {
        let percent = 100.0 * longer / steps as f64;
        text += &format!(
            ": {steps} steps, {:.1} % {}",
            percent.abs(),
            if percent < 0.0 { "shorter" } else { "longer" }
        );
    }
    text + &step.and_then(|step| share(longer * step)).unwrap_or_default()
}

fn rows(facts: &Facts<'_>) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            rows.push(vec![name.to_string(), value]);
        }
    };
    if let Some(run) = facts.runs.first() {
        row("command", run.command.join(" "));
    }
    if let Some(run) = facts.runs.last() {
        row("directory", run.cwd.clone());
        row("commit", run.commit.clone().unwrap_or_default());
        row("program", run.program.clone());
        row("host", run.host.clone());
        row("device", run.device.clone());
        row("threads", if run.threads > 0 { run.threads.to_string() } else { String::new() });
        row(
            "peak of the device",
            run.peak_flops_per_s.map_or(String::new(), |p| format!("{} GFLOP/s", number(p / 1e9))),
        );
        row("MFU counts", run.mfu_convention.clone().unwrap_or_default());
        row("seed", run.seed.to_string());
    }
    if let Some(run) = facts.runs.first().filter(|r| r.started_unix_s > 0.0) {
        row("started", rfc3339(run.started_unix_s));
    }
    if let Some(end) = facts.end {
        row("ended", end.ended_at.clone());
    }
    if facts.runs.len() > 1 || facts.resumed > 0 {
        let resumed =
            if facts.resumed > 0 { format!(", {} from a checkpoint", facts.resumed) } else { String::new() };
        row("continued", format!("{} times{resumed}", facts.runs.len().saturating_sub(1)));
    }
    row("begun with", facts.model.and_then(|m| m.initial.clone()).unwrap_or_default());
    for change in &facts.changes {
        let parts = [vec![change.keys_line()], change.effects.clone()].concat();
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        row(&format!("changed after step {}", grouped(change.step)), parts.join("; "));
    }
    if !facts.saves.is_empty() {
        let mut seconds: Vec<f64> = facts.steps.iter().map(|s| s.seconds).filter(|s| s.is_finite()).collect();
        let median = (!seconds.is_empty()).then(|| upper_median(&mut seconds));
        row("checkpoints written", saves(&facts.saves, median, facts.spent.steps));
    }
    if let Some(t) = facts.training {
        row(
            "batch",
            format!(
                "{} tokens a step: sequences of {}, {} in a micro-batch",
                grouped(t.batch_tokens),
                t.seq_len,
                t.micro_batch
            ),
        );
        row("length", format!("{} steps, {} tokens", grouped(t.steps), Tokens(t.tokens)));
        row("optimizer", t.optimizer.clone());
        row("learning rate", t.schedule.clone());
    }
    if let Some(t) = facts.tokenizer {
        row("tokenizer", t.fingerprint.clone());
    }
    if let Some(m) = facts.model.filter(|m| m.flops_per_token > 0.0) {
        row("work per token", format!("{} FLOP forward and backward", number(m.flops_per_token)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::saves;
    use bessemer_runlog::Save;

    #[test]
    fn saves_say_which_share_of_the_steps_time_they_cost() {
        let waits = Save { seconds: 2.0, stall_seconds: Some(2.0), ..Save::default() };
        assert!(
            saves(&[&waits, &waits], Some(1.0), 100.0)
                .ends_with("training waited 4.0 s; in all 4.00 % of the time of the steps")
        );
        // Beside training: 0.5 s of waiting, and 5 steps of 1 s that were longer by a fifth.
        let beside = Save {
            seconds: 5.0,
            stall_seconds: Some(0.5),
            copy_seconds: Some(0.25),
            steps_beside: Some(5),
            slowdown: Some(0.2),
            ..Save::default()
        };
        let text = saves(&[&beside], Some(1.0), 100.0);
        assert!(text.ends_with(": 5 steps, 20.0 % longer; in all 1.50 % of the time of the steps"), "{text}");
        // Logs that do not say what training waited.
        assert_eq!(saves(&[&Save::default()], Some(1.0), 100.0), "1");
    }
}

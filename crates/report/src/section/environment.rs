//! How to do it again: recipe, machine, command; and what the run warned of.

use crate::facts::Facts;
use crate::html::{Align, details, section, table};
use crate::text::{escape, grouped, number};
use bessemer_units::Tokens;

/// Warnings shown.
const SHOWN_WARNINGS: usize = 50;

pub(crate) fn warnings(facts: &Facts<'_>) -> String {
    let mut items: Vec<String> = Vec::new();
    if let Some(message) = facts.end.and_then(|e| e.message.as_deref()) {
        items.push(format!("<li>{}</li>\n", escape(message)));
    }
    for warning in facts.warnings.iter().take(SHOWN_WARNINGS) {
        let at = warning.step.map_or(String::new(), |s| format!(" (step {s})"));
        items.push(format!("<li><b>{}</b>{at}: {}</li>\n", escape(&warning.topic), escape(&warning.message)));
    }
    let more = facts.warnings.len().saturating_sub(SHOWN_WARNINGS);
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
        row("program", run.program.clone());
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
        row("started", utc(run.started_unix_s));
    }
    if facts.runs.len() > 1 || facts.resumed > 0 {
        let resumed =
            if facts.resumed > 0 { format!(", {} from a checkpoint", facts.resumed) } else { String::new() };
        row("continued", format!("{} times{resumed}", facts.runs.len().saturating_sub(1)));
    }
    if facts.saves > 0 {
        row("checkpoints written", facts.saves.to_string());
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

/// Seconds since 1970 as "2026-11-20 13:05 UTC", by the civil calendar (Howard Hinnant, "chrono-compatible low-level
/// date algorithms").
fn utc(unix_s: f64) -> String {
    if !(0.0..=2.5e11).contains(&unix_s) {
        return String::new();
    }
    let seconds = unix_s as i64;
    let days = seconds.div_euclid(86_400) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let of_day = seconds.rem_euclid(86_400);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // Values of `date -u -d @N`.
        for (unix, text) in [
            (0.0, "1970-01-01 00:00 UTC"),
            (951_782_400.0, "2000-02-29 00:00 UTC"),
            (1_709_251_199.9, "2024-02-29 23:59 UTC"),
            (1_795_179_900.0, "2026-11-20 13:05 UTC"),
            (4_107_542_400.0, "2100-03-01 00:00 UTC"),
            (f64::NAN, ""),
            (-5.0, ""),
            (1e300, ""),
        ] {
            assert_eq!(utc(unix), text);
        }
    }
}

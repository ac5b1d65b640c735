//! Lines for the terminal: pure functions that return text. Nothing here prints.

mod columns;
mod lanes;

pub use columns::{columns, listing};
pub use lanes::lanes;

use crate::facts::Facts;
use crate::section::headline::fixed;
use crate::text::number;
use bessemer_runlog::{
    Change, EarlyStop, Eval, EvalComponent, Record, Run, Sample, Save, SaveInterval, Stage, Step, Task,
};
use bessemer_units::{Bytes, Seconds, Tokens, counted};

/// One line for a training step. Columns keep their places as numbers grow; what the step does not know is a dash. A run
/// with loss scaling has one more column, "scale"; one on pairs "right", the accuracy.
///
/// ```text
/// step  1200/2000 | loss 1.8423 | lr 3.00e-4 | grad  0.92 |  12.3k tok/s | MFU 41.2 % | 1.21 GiB | 4m12s left
/// ```
pub fn step_line(step: &Step, total_steps: u64) -> String {
    let width = total_steps.max(step.step).to_string().len();
    let dash = || "-".to_string();
    let mfu = step.mfu.map_or_else(dash, |m| format!("{:.1} %", 100.0 * m));
    let memory = step.memory_bytes.map_or_else(dash, |b| Bytes(b).to_string());
    let left = step.eta_s.map_or_else(dash, |s| Seconds(s).to_string());
    let scale = step.loss_scale.map_or_else(String::new, |s| format!(" | scale {:>6}", number(s)));
    let right = step.preferences.get("accuracy");
    let right = right.map_or_else(String::new, |share| format!(" | right {:>5.1} %", 100.0 * share));
    format!(
        "step {:>width$}/{} | loss {:>7}{right} | lr {:>8} | grad {:>7}{scale} | {:>6} tok/s | MFU {mfu:>6} | {memory:>8} | {left} left",
        step.step,
        total_steps.max(step.step),
        fixed(step.loss),
        rate(step.lr),
        short(step.grad_norm),
        number(step.tokens_per_s),
    )
}

/// The short form of [`step_line`] for a line that is drawn over and over.
pub fn status_line(step: &Step, total_steps: u64) -> String {
    let left = step.eta_s.map_or_else(|| "-".to_string(), |s| Seconds(s).to_string());
    format!(
        "step {}/{} | loss {} | {} tok/s | {left} left",
        step.step,
        total_steps.max(step.step),
        fixed(step.loss),
        number(step.tokens_per_s)
    )
}

/// The end of a run whose validation loss no longer fell.
pub fn early_stop_line(stop: &EarlyStop) -> String {
    format!(
        "step {}: the validation loss has not fallen for {}; the lowest is {:.4}, at step {}",
        stop.step,
        counted(stop.evaluations, "evaluation"),
        stop.best_loss,
        stop.best_step
    )
}

/// One line for an evaluation.
pub fn eval_line(eval: &Eval) -> String {
    let took = eval.seconds.map_or(String::new(), |s| format!(" in {}", Seconds(s)));
    format!(
        "eval at step {}: {} loss {} | perplexity {} | {} bits per byte | {} tokens{took}{}",
        eval.step,
        plain(&eval.split),
        fixed(eval.loss),
        number(eval.perplexity),
        fixed(eval.bits_per_byte),
        Tokens(eval.tokens_scored),
        components(eval)
    )
}

/// The losses of the components of a mixture.
fn components(eval: &Eval) -> String {
    let one = |c: &EvalComponent| format!("{} {}", plain(&c.name), fixed(c.loss));
    match eval.components.as_slice() {
        [] => String::new(),
        several => format!(" | {}", several.iter().map(one).collect::<Vec<String>>().join(", ")),
    }
}

/// One line for a score of a task, with the interval that holds 95 % of what other documents of the kind would give.
pub fn task_line(task: &Task) -> String {
    format!(
        "task at step {}: {} {} {}, {}",
        task.step,
        plain(&task.task),
        plain(&task.metric),
        task_score(task),
        counted(task.documents, "document")
    )
}

/// A score and its 95 % interval; of a log that has none, half the width of that of its standard error.
pub(crate) fn task_score(task: &Task) -> String {
    match (task.interval, task.stderr) {
        (Some([low, high]), _) => format!("{} ({} to {})", fixed(task.value), fixed(low), fixed(high)),
        (None, Some(error)) => format!("{} ± {}", fixed(task.value), fixed(1.96 * error)),
        (None, None) => fixed(task.value),
    }
}

/// One line for a choice of how often to save.
pub fn save_interval_line(choice: &SaveInterval) -> String {
    let recovery = match choice.recovery_steps {
        Some(steps) => format!(", largest loss of work {steps}"),
        None => String::new(),
    };
    format!(
        "saving every {} from now on (overhead budget {}, writing {}, failures {}{recovery})",
        counted(choice.every_steps, "step"),
        choice.budget_steps,
        choice.writing_steps,
        choice.failures_steps
    )
}

/// Lines for a changed recipe.
pub fn change_lines(change: &Change) -> String {
    let mut lines = vec![format!("recipe changed after step {}: {}", change.step, change.keys_line())];
    lines.extend(change.effects.iter().map(|effect| format!("  {effect}")));
    plain_lines(&lines.join("\n"))
}

/// One line for a save.
pub fn save_line(save: &Save) -> String {
    let stalled = match (save.copy_seconds, save.stall_seconds) {
        (Some(_), Some(stalled)) => format!("; training waited {}", Seconds(stalled)),
        _ => String::new(),
    };
    format!("saved {} ({} in {}{stalled})", plain(&save.path), Bytes(save.bytes), Seconds(save.seconds))
}

/// One line for a stage.
pub fn stage_line(stage: &Stage) -> String {
    let counters: Vec<String> =
        stage.counters.iter().map(|(name, n)| format!("{} {}", plain(name), Tokens(*n))).collect();
    let counters = if counters.is_empty() { String::new() } else { format!(" | {}", counters.join(", ")) };
    let what = if stage.skipped {
        "is there already".to_string()
    } else {
        format!("took {}", Seconds(stage.seconds))
    };
    format!("{} {what}{counters}", plain(&stage.name))
}

/// A sample as a block: a line that says what it is, then the text, indented and without control characters.
pub fn sample_block(sample: &Sample) -> String {
    let text = plain_lines(&format!("{}{}", sample.prompt, sample.text));
    let lines: Vec<String> = text.lines().map(|l| format!("  | {l}").trim_end().to_string()).collect();
    format!("sample at step {}:\n{}", sample.step, lines.join("\n"))
}

/// What the MFU of the step lines means, for the line before the first of them; nothing if the run does not say.
pub fn mfu_legend(run: &Run) -> Option<String> {
    let convention = run.mfu_convention.as_deref()?;
    let peak = run.peak_flops_per_s.map_or(String::new(), |p| format!(" (peak {} GFLOP/s)", number(p / 1e9)));
    Some(format!("MFU: {}{peak}", plain(convention)))
}

/// The table at the end of a run.
pub fn summary(records: &[Record]) -> String {
    let facts = Facts::new(records);
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut row = |name: &str, value: String| rows.push([name.to_string(), value]);
    if let Some(m) = facts.model {
        row("model", format!("{}, {} parameters", plain(&m.name), Tokens(m.parameters)));
    }
    if let Some(why) = facts.corpus.and_then(|corpus| corpus.fallback.as_deref()) {
        row("text", plain(why));
    }
    let (done, planned) = facts.progress();
    let of = planned.map_or(String::new(), |p| format!(" of {p}"));
    row("steps", format!("{done}{of}, {} tokens ({})", Tokens(facts.tokens()), facts.status()));
    if let Some(s) = facts.steps.last() {
        row("training loss", fixed(s.loss));
    }
    if let Some(e) = facts.final_eval() {
        row(
            &format!("{} loss", plain(&e.split)),
            format!("{} (perplexity {})", fixed(e.loss), number(e.perplexity)),
        );
        row("bits per byte", fixed(e.bits_per_byte));
        if let Some(b) = facts.best_baseline() {
            let verdict = if e.bits_per_byte < b.bits_per_byte { "beaten" } else { "not beaten" };
            row("baseline", format!("{} ({}: {verdict})", fixed(b.bits_per_byte), plain(&b.name)));
        }
    }
    if let Some(r) = facts.mean_tokens_per_s() {
        let mfu = facts.mean_mfu().map_or(String::new(), |m| format!(", MFU {:.1} %", 100.0 * m));
        row("speed", format!("{} tokens/s{mfu}", number(r)));
    }
    if let Some(b) = facts.peak_memory() {
        row("memory", Bytes(b).to_string());
    }
    let least = if facts.wall_is_least { "at least " } else { "" };
    row("wall time", format!("{least}{}", Seconds(facts.wall_seconds)));
    table(&rows)
}

/// Rows of two columns, aligned.
pub fn table(rows: &[[String; 2]]) -> String {
    let width = rows.iter().map(|r| r[0].chars().count()).max().unwrap_or(0);
    rows.iter().map(|[name, value]| format!("  {name:<width$}  {value}\n")).collect()
}

fn rate(x: f64) -> String {
    if x.is_finite() { format!("{x:.2e}") } else { number(x) }
}

fn short(x: f64) -> String {
    if x.is_finite() && (0.01..1000.0).contains(&x.abs()) { format!("{x:.2}") } else { number(x) }
}

/// One line of text that cannot command the terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Text that keeps its lines and tabs (as four spaces) and nothing else that a terminal obeys.
fn plain_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push('\n'),
            '\t' => out += "    ",
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> Step {
        Step {
            step: 1200,
            tokens: 1_228_800,
            loss: 1.84231,
            losses: Default::default(),
            experts: Default::default(),
            loss_scale: None,
            lr: 3e-4,
            grad_norm: 0.9177,
            tokens_per_s: 12_345.0,
            mfu: Some(0.4123),
            memory_bytes: Some(1300 << 20),
            seconds: 0.66,
            data_seconds: None,
            data_bytes: None,
            data_hit_share: None,
            scored: None,
            preferences: Default::default(),
            unscored_samples: None,
            eta_s: Some(252.0),
        }
    }

    #[test]
    fn a_step_is_one_line_with_everything_in_its_place() {
        assert_eq!(
            step_line(&step(), 2000),
            "step 1200/2000 | loss  1.8423 | lr  3.00e-4 | grad    0.92 |  12.3k tok/s | MFU 41.2 % | 1.27 GiB | 4m12s left"
        );
        let early = Step { step: 3, loss: 10.8, mfu: None, memory_bytes: None, eta_s: None, ..step() };
        let (a, b) = (step_line(&step(), 2000), step_line(&early, 2000));
        let bars = |s: &str| s.char_indices().filter(|(_, c)| *c == '|').map(|(i, _)| i).collect::<Vec<_>>();
        assert_eq!(bars(&a), bars(&b), "{a}\n{b}");
        assert_eq!(status_line(&step(), 2000), "step 1200/2000 | loss 1.8423 | 12.3k tok/s | 4m12s left");
        let broken = Step { loss: f64::NAN, grad_norm: f64::INFINITY, ..step() };
        let line = step_line(&broken, 2000);
        assert!(line.contains("NaN") && line.contains("inf") && bars(&line) == bars(&a), "{line}");
    }

    #[test]
    fn what_a_model_wrote_cannot_command_the_terminal() {
        let sample = Sample {
            step: 5,
            prompt: "fn ".into(),
            text: "x()\u{1b}[2J\n\tlet\r\u{7}".into(),
            temperature: None,
        };
        assert_eq!(
            sample_block(&sample),
            "sample at step 5:\n  | fn x()\u{fffd}[2J\n  |     let\u{fffd}\u{fffd}"
        );
        let save = Save { path: "a\u{1b}[31m".into(), ..Default::default() };
        assert!(!save_line(&save).contains('\u{1b}'));
    }

    #[test]
    fn a_summary_of_nothing_is_still_a_table() {
        assert!(summary(&[]).contains("nothing recorded"));
    }
}

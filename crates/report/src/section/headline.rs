//! The head of the report: what was trained, how well it does, and against what.

use crate::facts::Facts;
use crate::html::section;
use crate::text::{decimals, escape, number};
use bessemer_units::{Bytes, Seconds, Tokens};

/// Title line, model line, status.
pub(crate) fn header(facts: &Facts<'_>, title: &str) -> String {
    let mut lines = Vec::new();
    if let Some(m) = facts.model {
        let heads = if m.kv_heads > 0 && m.kv_heads != m.heads {
            format!("{} heads ({} key/value)", m.heads, m.kv_heads)
        } else {
            format!("{} heads", m.heads)
        };
        lines.push(format!(
            "{}: {} parameters, {} layers × {}, {heads}, vocabulary {}, sequences of {} tokens",
            m.name,
            Tokens(m.parameters),
            m.layers,
            m.width,
            m.vocab_size,
            m.seq_len
        ));
    }
    let (done, planned) = facts.progress();
    let steps = match planned {
        Some(planned) => format!("{done} of {planned} steps"),
        None => format!("{done} steps"),
    };
    lines.push(format!("{steps} · {}", facts.status()));
    let mut lines: String = lines.iter().map(|l| format!("<p>{}</p>\n", escape(l))).collect();
    if let Some(why) = facts.corpus.and_then(|corpus| corpus.fallback.as_deref()) {
        let warning = format!("Trained on another text than the recipe names: {why}");
        lines += &format!("<p class=\"verdict worse\">{}</p>\n", escape(&warning));
    }
    format!("<header>\n<h1>{}</h1>\n{lines}</header>\n", escape(title))
}

struct Card {
    value: String,
    name: String,
    note: String,
}

/// The numbers that matter, and the comparison with the baseline.
pub(crate) fn results(facts: &Facts<'_>) -> String {
    let mut cards = Vec::new();
    let mut card = |value: String, name: &str, note: String| {
        cards.push(Card { value, name: name.into(), note });
    };
    if let Some(e) = facts.final_eval() {
        let scored = format!("{} tokens of {}", Tokens(e.tokens_scored), e.split);
        card(fixed(e.bits_per_byte), "bits per byte", format!("{}, step {}", e.split, e.step));
        card(fixed(e.loss), "loss (nats per token)", scored);
        card(number(e.perplexity), "perplexity per token", format!("{}, step {}", e.split, e.step));
    } else if let Some(s) = facts.steps.last() {
        card(fixed(s.loss), "training loss (nats per token)", format!("step {}", s.step));
    }
    if let Some(b) = facts.best_baseline() {
        let fitted =
            if b.bytes_fitted > 0 { format!("fitted on {}", Bytes(b.bytes_fitted)) } else { b.split.clone() };
        card(fixed(b.bits_per_byte), &format!("bits per byte of {}", b.name), fitted);
    }
    if let Some(m) = facts.model {
        let without = format!("{} without embeddings", Tokens(m.parameters_without_embedding));
        card(Tokens(m.parameters).to_string(), "parameters", without);
    }
    if facts.tokens() > 0 {
        card(Tokens(facts.tokens()).to_string(), "tokens trained on", epochs(facts));
    }
    if facts.wall_seconds > 0.0 {
        let least =
            if facts.wall_is_least { "at least; a process ended without telling" } else { "all stages" };
        card(Seconds(facts.wall_seconds).to_string(), "wall time", least.into());
    }
    if let Some(rate) = facts.mean_tokens_per_s() {
        card(number(rate), "tokens per second", "mean over the steps".into());
    }
    if let Some(mfu) = facts.mean_mfu() {
        card(format!("{:.1} %", 100.0 * mfu), "MFU", facts.mfu_convention().unwrap_or_default().into());
    }
    if let Some(memory) = facts.peak_memory() {
        card(Bytes(memory).to_string(), "memory", "largest of the process".into());
    }
    let cards: String = cards
        .iter()
        .map(|c| {
            format!(
                "<div class=\"card\"><b>{}</b><span>{}</span><small>{}</small></div>\n",
                escape(&c.value),
                escape(&c.name),
                escape(&c.note)
            )
        })
        .collect();
    if cards.is_empty() {
        return String::new();
    }
    section("results", "Results", &format!("{}<div class=\"cards\">\n{cards}</div>\n", verdict(facts)))
}

/// One sentence: is the model better than the baseline?
fn verdict(facts: &Facts<'_>) -> String {
    let (Some(e), Some(b)) = (facts.final_eval(), facts.best_baseline()) else { return String::new() };
    let (model, baseline) = (e.bits_per_byte, b.bits_per_byte);
    let (class, words) = if !model.is_finite() {
        (
            "worse",
            format!("The model's loss is not finite; {} needs {} bits per byte.", b.name, fixed(baseline)),
        )
    } else {
        let percent = 100.0 * (1.0 - model / baseline).abs();
        let (class, relation) =
            if model < baseline { ("better", "fewer than") } else { ("worse", "more than") };
        let beaten = if model < baseline { "beats the baseline" } else { "does not beat the baseline" };
        (
            class,
            format!(
                "The model {beaten}: on {} text it needs {} bits per byte, {percent:.1} % {relation} {} ({}).",
                e.split,
                fixed(model),
                b.name,
                fixed(baseline)
            ),
        )
    };
    format!("<p class=\"verdict {class}\">{}</p>\n", escape(&words))
}

fn epochs(facts: &Facts<'_>) -> String {
    let train = facts.shards.iter().find(|s| s.split == crate::facts::TRAIN_SPLIT).map_or(0, |s| s.tokens);
    if train == 0 {
        return String::new();
    }
    format!("{} passes over {} tokens", number(facts.tokens() as f64 / train as f64), Tokens(train))
}

/// A loss: four digits behind the point, whatever it is.
pub fn fixed(x: f64) -> String {
    if x.is_finite() && x.abs() < 1e4 { decimals(x, 4) } else { number(x) }
}

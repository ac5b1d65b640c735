//! Curves over the run: loss, learning rate, gradient norm, throughput, MFU, memory; and where time went.

use crate::facts::{Facts, smoothed};
use crate::html::{figure, grid, section};
use crate::plot::{Bar, BarChart, LineChart, Mark, Rule, Scale, Series};
use crate::section::loads::{self, ExpertLoads};
use bessemer_runlog::{Eval, Step};
use bessemer_units::Seconds;
use std::collections::BTreeSet;

const STEP: &str = "step";
const Z_LOSS: &str = "Nats a token that the z-loss adds to the loss in what is minimised: its weight times the mean of the \
                      squared log-sum-exp of the logits. It falls as these lose their common offset.";

const AUXILIARY: &str =
    "Nats a token that it adds to the loss in what is minimised: its weight times its mean over the targets.";

/// Loads of experts: name in the record, heading, note.
const LOADS: [(&str, &str, &str); 5] = [
    (
        "load_max",
        "Largest load of an expert",
        "Tokens of the expert with most of them over the mean of its layer, averaged over layers: 1 where all have equally many.",
    ),
    (
        "load_entropy",
        "Entropy of the loads of experts",
        "Over its largest value, averaged over layers: 1 where all experts have equally many tokens, 0 where one has all.",
    ),
    ("idle", "Idle experts", "Experts of all layers that no token of the step has chosen."),
    (
        "bias_range",
        "Range of the biases of experts",
        "Largest less smallest bias of a layer, of the layer where it is largest: it grows while loads are uneven.",
    ),
    (
        "shadows",
        "Shadows of experts",
        "Experts that every rank has computed for its own tokens, mean over layers and micro-batches.",
    ),
];

/// Pairs of answers: name in the record, heading, note.
const PAIRS: [(&str, &str, &str); 4] = [
    (
        "accuracy",
        "Accuracy on pairs",
        "Share of the pairs of a step whose chosen answer has become the more probable one, relative to the reference.",
    ),
    (
        "margin",
        "Margin of pairs",
        "Reward of the chosen answer less that of the rejected one, mean over the pairs of a step.",
    ),
    (
        "chosen",
        "Reward of chosen answers",
        "beta times the growth of their log-probability since the reference.",
    ),
    (
        "rejected",
        "Reward of rejected answers",
        "beta times the growth of their log-probability since the reference.",
    ),
];

/// Loss and bits per byte.
pub(crate) fn loss(facts: &Facts<'_>, experts: &ExpertLoads) -> String {
    let mut figures = Vec::new();
    if !facts.steps.is_empty() || !facts.evals.is_empty() {
        let changes = facts.changes.iter().map(|c| c.step as f64).collect();
        let chart = loss_chart(facts, STEP, Scale::Linear, |s| s.step as f64, |e| e.step as f64);
        let chart = LineChart { changes, ..chart };
        figures.push(figure("Loss over steps", &chart.svg(), ""));
        let chart =
            loss_chart(facts, "tokens (log scale)", Scale::Log, |s| s.tokens as f64, |e| e.tokens as f64);
        let chart = LineChart { changes: facts.changes.iter().map(|c| c.tokens as f64).collect(), ..chart };
        figures.push(figure("Loss over tokens, logarithmic", &chart.svg(), ""));
    }
    if let Some(chart) = bits_chart(facts) {
        let note = "Bits per byte do not depend on the tokenizer; lower is better.";
        figures.push(figure("Bits per byte of held-out text", &chart.svg(), note));
    }
    let lr = curve(facts, "Learning rate", "", Scale::Linear, true, false, |s| Some(s.lr));
    let norm = curve(facts, "Gradient norm before clipping (log scale)", "", Scale::Log, false, true, |s| {
        Some(s.grad_norm)
    });
    let names: BTreeSet<&str> =
        facts.steps.iter().flat_map(|s| s.losses.keys()).map(String::as_str).collect();
    let losses = names.into_iter().filter_map(|name| {
        let heading = format!("{} (log scale)", name.replace('_', "-"));
        curve(
            facts,
            &heading,
            if name == "z_loss" { Z_LOSS } else { AUXILIARY },
            Scale::Log,
            false,
            true,
            |s| s.losses.get(name).copied(),
        )
    });
    let loads = LOADS.into_iter().filter_map(|(name, heading, note)| {
        curve(facts, heading, note, Scale::Linear, true, true, |s| s.experts.get(name).copied())
    });
    let pairs = PAIRS.into_iter().filter_map(|(name, heading, note)| {
        curve(facts, heading, note, Scale::Linear, false, true, |s| s.preferences.get(name).copied())
    });
    figures.extend(losses.chain(pairs).chain(loads).chain(loads::figure_of(experts)).chain(lr).chain(norm));
    section("curves", "Training", &grid(&figures))
}

/// Note of the wait for data.
const WAIT: &str = "Of the first rank: time in which its passes waited for a micro-batch that was not ready.";
/// Note of the hits of the cache.
const HITS: &str = "By the process of the first rank, with loader.cache.";
/// Note of the bytes of training data.
const READ: &str = "By the process of the first rank, since the step before: samples, blocks that are verified, and the document index.";

/// Throughput, MFU, memory, waits for data, stages.
pub(crate) fn speed(facts: &Facts<'_>) -> String {
    let waited = waited_for_data(facts);
    let note = waited.map(|w| format!("{:.1} % of the step time was spent waiting for data.", 100.0 * w));
    let mut figures = Vec::new();
    let rate = curve(facts, "Tokens per second", &note.unwrap_or_default(), Scale::Linear, true, true, |s| {
        Some(s.tokens_per_s)
    });
    figures.extend(rate);
    let convention = facts.mfu_convention().unwrap_or_default();
    figures.extend(curve(facts, "MFU in percent", convention, Scale::Linear, true, true, |s| {
        s.mfu.map(|m| 100.0 * m)
    }));
    figures.extend(curve(facts, "Memory of the process in MiB", "", Scale::Linear, true, false, |s| {
        s.memory_bytes.map(|b| b as f64 / f64::from(1 << 20))
    }));
    let share = |s: &Step| Some(100.0 * s.data_seconds.filter(|_| s.seconds > 0.0)? / s.seconds);
    figures.extend(curve(
        facts,
        "Wait for data in percent of a step",
        WAIT,
        Scale::Linear,
        true,
        true,
        share,
    ));
    figures.extend(curve(
        facts,
        "Bytes of training data read in KiB",
        READ,
        Scale::Linear,
        true,
        true,
        |s| s.data_bytes.map(|b| b as f64 / 1024.0),
    ));
    figures.extend(curve(
        facts,
        "Cache hits in percent of the bytes of batches",
        HITS,
        Scale::Linear,
        true,
        true,
        |s| s.data_hit_share.map(|share| 100.0 * share),
    ));
    figures.extend(stages(facts));
    section("speed", "Speed", &grid(&figures))
}

fn loss_chart(
    facts: &Facts<'_>,
    x_label: &str,
    x_scale: Scale,
    x_of_step: impl Fn(&Step) -> f64,
    x_of_eval: impl Fn(&Eval) -> f64,
) -> LineChart {
    let losses: Vec<f64> = facts.steps.iter().map(|s| s.loss).collect();
    let smooth = smoothed(&losses, span(losses.len()));
    let over = |values: &[f64]| facts.steps.iter().zip(values).map(|(s, v)| [x_of_step(s), *v]).collect();
    let series = |name: &str, color, mark, points| Series { name: name.into(), color, mark, points };
    let mut all = Vec::new();
    if !losses.is_empty() {
        all.push(series("train", 0, Mark::Faint, over(&losses)));
        all.push(series("train, smoothed", 0, Mark::Line, over(&smooth)));
    }
    for (i, split) in splits(facts).into_iter().enumerate() {
        let points =
            facts.evals.iter().filter(|e| e.split == split).map(|e| [x_of_eval(e), e.loss]).collect();
        all.push(series(split, 1 + i, Mark::Dots, points));
    }
    LineChart {
        title: format!("Loss over {x_label}"),
        x_label: x_label.into(),
        y_label: "nats per token".into(),
        x_scale,
        series: all,
        rules: baseline_in_nats(facts).into_iter().collect(),
        ..Default::default()
    }
}

/// The best baseline on the scale of the loss: its bits per byte, in nats per token of this tokenizer on the text of
/// the last evaluation.
fn baseline_in_nats(facts: &Facts<'_>) -> Option<Rule> {
    let (e, b) = (facts.final_eval()?, facts.best_baseline()?);
    if e.tokens_scored == 0 || e.bytes_scored == 0 {
        return None;
    }
    let y = b.bits_per_byte * std::f64::consts::LN_2 * e.bytes_scored as f64 / e.tokens_scored as f64;
    Some(Rule { name: b.name.clone(), color: 5, y })
}

fn bits_chart(facts: &Facts<'_>) -> Option<LineChart> {
    let splits = splits(facts);
    if splits.is_empty() {
        return None;
    }
    let series = splits.iter().enumerate().map(|(i, split)| Series {
        name: (*split).to_string(),
        color: 1 + i,
        mark: Mark::Dots,
        points: facts
            .evals
            .iter()
            .filter(|e| e.split == *split)
            .map(|e| [e.step as f64, e.bits_per_byte])
            .collect(),
    });
    let same_split = |split: &str| facts.final_eval().is_some_and(|e| e.split == split);
    let rules = facts.baselines.iter().filter(|b| same_split(&b.split)).enumerate();
    let rules = rules.map(|(i, b)| Rule { name: b.name.clone(), color: 5 - i % 3, y: b.bits_per_byte });
    Some(LineChart {
        title: "Bits per byte over steps".into(),
        x_label: STEP.into(),
        y_label: "bits per byte".into(),
        series: series.collect(),
        rules: rules.collect(),
        ..Default::default()
    })
}

/// Names of the evaluated splits in the order of their first evaluation.
fn splits<'a>(facts: &Facts<'a>) -> Vec<&'a str> {
    let mut names = Vec::new();
    for eval in &facts.evals {
        if !names.contains(&eval.split.as_str()) {
            names.push(eval.split.as_str());
        }
    }
    names
}

/// One quantity of every step as a figure; `None` if no step has it.
fn curve(
    facts: &Facts<'_>,
    heading: &str,
    note: &str,
    y_scale: Scale,
    from_zero: bool,
    smooth: bool,
    of: impl Fn(&Step) -> Option<f64>,
) -> Option<String> {
    let points: Vec<[f64; 2]> = facts.steps.iter().filter_map(|s| Some([s.step as f64, of(s)?])).collect();
    if points.is_empty() {
        return None;
    }
    let mut series = Vec::new();
    let mut add =
        |name: &str, mark, points| series.push(Series { name: name.into(), color: 0, mark, points });
    if smooth && points.len() > 20 {
        let values: Vec<f64> = points.iter().map(|p| p[1]).collect();
        let values = smoothed(&values, span(values.len()));
        let smooth = points.iter().zip(values).map(|(p, v)| [p[0], v]).collect();
        add("each step", Mark::Faint, points);
        add("smoothed", Mark::Line, smooth);
    } else {
        add("", Mark::Line, points);
    }
    let chart = LineChart {
        title: format!("{heading} over steps"),
        x_label: STEP.into(),
        y_scale,
        from_zero,
        series,
        changes: facts.changes.iter().map(|c| c.step as f64).collect(),
        ..Default::default()
    };
    Some(figure(heading, &chart.svg(), note))
}

/// Points that smoothing averages over: two percent of the run.
pub(crate) fn span(points: usize) -> f64 {
    (points as f64 / 50.0).max(2.0)
}

/// Share of the step time that was spent waiting for data.
fn waited_for_data(facts: &Facts<'_>) -> Option<f64> {
    let timed = || {
        facts
            .steps
            .iter()
            .filter_map(|s| Some((s.data_seconds?, s.seconds)))
            .filter(|(d, t)| d.is_finite() && *t > 0.0)
    };
    let all: f64 = timed().map(|(_, t)| t).sum();
    (all > 0.0).then(|| timed().map(|(d, _)| d).sum::<f64>() / all)
}

/// Time of the stages before training, and of what training consists of.
fn stages(facts: &Facts<'_>) -> Option<String> {
    let spent = facts.spent;
    let parts = [
        ("training steps", spent.steps),
        ("evaluation", spent.evaluations),
        ("checkpoints", spent.saves),
        ("baselines", spent.baselines),
    ];
    let stages = facts.stages.iter().map(|s| (s.name.as_str(), s.seconds));
    let mut all: Vec<(&str, f64)> = stages.chain(parts).filter(|(_, s)| s.is_finite() && *s > 0.0).collect();
    if all.is_empty() {
        return None;
    }
    // Starting, measuring the machine's peak, sampling: known only where every process told its end.
    let rest = facts.wall_seconds - all.iter().map(|(_, s)| s).sum::<f64>();
    if rest > 0.0 && !facts.wall_is_least {
        all.push(("everything else", rest));
    }
    let whole = all.iter().map(|(_, s)| s).sum::<f64>();
    let bar = |(name, seconds): &(&str, f64)| Bar {
        label: (*name).to_string(),
        value: *seconds,
        note: format!("{} ({:.1} %)", Seconds(*seconds), 100.0 * seconds / whole),
    };
    let chart =
        BarChart { title: "Time of the stages".into(), color: 0, bars: all.iter().map(bar).collect() };
    Some(figure("Time of the stages", &chart.svg(), ""))
}

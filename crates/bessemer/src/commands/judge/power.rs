//! `bessemer judge power`: how many judgements a study needs.

use crate::cli::JudgePowerArgs;
use crate::console::print;
use crate::failure::Failure;
use bessemer_metrics::power::{
    Comparisons, MOST_JUDGEMENTS, Sides, Test, design_effect, detectable_win, proportions_power,
    proportions_size, sign_test_power, sign_test_size,
};
use serde_json::{Value, json};

pub(super) fn run(args: &JudgePowerArgs, as_json: bool) -> Result<(), Failure> {
    let test = Test { alpha: args.alpha, sides: Sides::Two };
    let effect = design_effect(args.per_task, args.correlation);
    let value = match args.against {
        Some(other) => proportions(args, other, test, effect)?,
        None => comparisons(args, test, effect)?,
    };
    Ok(print(&if as_json { value.to_string() } else { shown(args, &value) })?)
}

/// Judgements for a number of independent ones, whole tasks of them.
fn judgements(independent: f64, effect: f64, per_task: u32) -> u64 {
    let tasks = (independent * effect / f64::from(per_task)).ceil();
    (tasks as u64).saturating_mul(u64::from(per_task))
}

fn comparisons(args: &JudgePowerArgs, test: Test, effect: f64) -> Result<Value, Failure> {
    let of = Comparisons { win: args.win, ties: args.ties };
    let size = sign_test_size(of, test, args.power).ok_or_else(|| {
        Failure::usage(format!(
            "--win {} --ties {}: the difference from 0.5 is too small for {MOST_JUDGEMENTS} judgements to \
             detect; use shares further apart",
            args.win, args.ties
        ))
    })?;
    let needed = judgements(size as f64, effect, args.per_task);
    let mut value = json!({
        "test": "exact sign test", "judgements": needed, "tasks": needed / u64::from(args.per_task),
        "with_a_winner": (needed as f64 * (1.0 - args.ties)).round(), "design_effect": effect,
    });
    if let Some(had) = args.judgements {
        let independent = (had as f64 / effect) as u64;
        value["had"] = json!({
            "judgements": had,
            "power": sign_test_power(independent, of, test),
            "detectable": detectable_win(independent, args.ties, test, args.power),
        });
    }
    Ok(value)
}

fn proportions(args: &JudgePowerArgs, other: f64, test: Test, effect: f64) -> Result<Value, Failure> {
    let pair = (args.win, other);
    let size = proportions_size(pair, test, args.power).ok_or_else(|| {
        Failure::usage(format!("--win {} --against {other}: wanted two shares that differ", args.win))
    })?;
    let needed = judgements(size, effect, args.per_task);
    let mut value = json!({
        "test": "two proportions", "judgements": needed, "tasks": needed / u64::from(args.per_task), "design_effect": effect,
    });
    if let Some(had) = args.judgements {
        let power = proportions_power(had as f64 / effect, pair, test);
        value["had"] = json!({ "judgements": had, "power": power });
    }
    Ok(value)
}

fn shown(args: &JudgePowerArgs, value: &Value) -> String {
    let number = |key: &str| value[key].as_f64().unwrap_or(0.0);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut text = format!(
        "{} judgements{} on {} tasks find {} with a power of {} at alpha {}",
        value["judgements"],
        if args.against.is_some() { " of each group" } else { "" },
        value["tasks"],
        match args.against {
            Some(other) => format!("{} against {}", percent(args.win), percent(other)),
            None => format!("a system that wins {} of those with a winner", percent(args.win)),
        },
        percent(args.power),
        args.alpha,
    );
    text += match args.against {
        Some(_) => " (two proportions, normal approximation)",
        None => " (exact sign test, both sides)",
    };
    if args.ties > 0.0 {
        text += &format!("\nabout {} of them have a winner", number("with_a_winner"));
    }
    if number("design_effect") > 1.0 {
        text += &format!(
            "\neach task has {} judgements with a correlation of {}: {:.2} of them are worth one of another task",
            args.per_task,
            args.correlation,
            number("design_effect")
        );
    }
    if let Some(had) = value.get("had") {
        let power = had["power"].as_f64().unwrap_or(0.0);
        text += &format!("\n{} judgements have a power of {}", had["judgements"], percent(power));
        match (had["detectable"].as_f64(), args.against) {
            (Some(win), _) => {
                text += &format!(", and find wins of {} or more with {}", percent(win), percent(args.power));
            }
            (None, None) => text += ", and are too few for any difference",
            (None, Some(_)) => {}
        }
    }
    text
}

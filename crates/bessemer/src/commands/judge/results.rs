//! `bessemer judge results`: what people and models have said.

use super::open;
use crate::cli::JudgeResultsArgs;
use crate::console::print;
use crate::failure::Failure;
use bessemer_judge::model::{ModelFacts, model_facts};
use bessemer_judge::{Likert, Rating, Results};
use bessemer_units::counted;
use serde_json::json;
use std::fmt::Write;

pub(super) fn run(args: &JudgeResultsArgs, as_json: bool) -> Result<(), Failure> {
    let store = open(&args.study)?;
    let (study, samples) = (store.study(), args.samples as usize);
    let judgements = store.judgements().map_err(Failure::new)?;
    let systems = study.systems();
    if let Some(human) = args.human.as_deref().filter(|human| !systems.contains(human)) {
        return Err(Failure::usage(format!("--human: no system {human:?}; known: {}", systems.join(", "))));
    }
    let results = Results::of(study, &judgements, args.human.as_deref(), samples, args.seed);
    let judges = store.model_judges().map_err(Failure::new)?;
    let verdicts = store.verdicts().map_err(Failure::new)?;
    let models = model_facts(study, &judges, &verdicts, &judgements, samples, args.seed);
    if as_json {
        let mut all = serde_json::to_value(&results)?;
        all["models"] = json!(models);
        return Ok(print(&serde_json::to_string(&all)?)?);
    }
    Ok(print(&shown(&results, &models))?)
}

fn interval(band: Option<[f64; 2]>, digits: usize) -> String {
    band.map_or(String::new(), |[low, high]| format!("{low:.digits$} to {high:.digits$}"))
}

fn shown(results: &Results, models: &[ModelFacts]) -> String {
    let mut text = format!(
        "{} of {} on {} by {}\n",
        results.judgements,
        counted(results.wanted, "judgement"),
        counted(results.tasks, "task"),
        counted(results.judges.len(), "judge")
    );
    text += &standings(&results.ratings, &results.scale);
    for (system, h) in &results.huse {
        let _ = writeln!(
            text,
            "{system}: HUSE {:.3}, quality {:.3}, diversity {:.3}",
            h.huse, h.quality, h.diversity
        );
    }
    let agreement =
        results.agreement.map_or("unknown: no task was judged twice".into(), |a| format!("{a:.3}"));
    let _ = writeln!(text, "\nagreement (Krippendorff's alpha) {agreement}");
    for judge in &results.judges {
        let _ = write!(text, "{}: {}", judge.judge, counted(judge.judgements, "judgement"));
        if let Some(constancy) = judge.constancy {
            let _ = write!(text, "; {} of {} that came again judged alike", share(constancy), judge.repeated);
        }
        if let Some(left) = judge.left {
            let _ = write!(text, "; the left one won {}", share(left));
        }
        if let Some(longer) = judge.longer {
            let _ = write!(text, "; the longer one {}", share(longer));
        }
        if let Some(seconds) = judge.seconds {
            let _ = write!(text, "; {seconds:.1} s each");
        }
        text.push('\n');
    }
    for model in models {
        text += &of_model(model);
    }
    text
}

/// Tables of systems, by what one or several judges said.
fn standings(ratings: &[Rating], scale: &[Likert]) -> String {
    let mut text = String::new();
    if !ratings.is_empty() {
        let _ = writeln!(text, "\n{:<24}  comparisons     won  rating  95 %             Elo", "system");
        for one in ratings {
            let rating = one.rating.map_or("–".into(), |r| format!("{r:.0}"));
            let band = interval(one.interval, 0);
            let _ = writeln!(
                text,
                "{:<24}  {:>11}  {:>5.1}%  {rating:>6}  {band:<13}  {:>6.0}",
                one.system,
                one.comparisons,
                100.0 * one.won,
                one.elo
            );
        }
        if ratings.iter().all(|one| one.rating.is_none()) {
            text += "no ratings: a system has won, or lost, all its comparisons with the others, or was never compared\n";
        }
    }
    if !scale.is_empty() {
        let _ = writeln!(text, "\n{:<24}  judgements   mean  95 %          of each point", "system");
        for one in scale {
            let counts: Vec<String> = one.counts.iter().map(ToString::to_string).collect();
            let _ = writeln!(
                text,
                "{:<24}  {:>10}  {:>5.2}  {:<12}  {}",
                one.system,
                one.judgements,
                one.mean,
                interval(one.interval, 2),
                counts.join(" ")
            );
        }
    }
    text
}

fn share(x: f64) -> String {
    format!("{:.0} %", 100.0 * x)
}

fn shares(x: Option<f64>) -> String {
    x.map_or("–".into(), share)
}

/// A judge that is a model, and how far it is to be believed.
fn of_model(facts: &ModelFacts) -> String {
    let ModelFacts { judge, model, method, template, tasks, unparsed, .. } = facts;
    let mut text =
        format!("\n{judge}: {} judged by {model} (template {template}, {method})", counted(*tasks, "task"));
    if *unparsed > 0 {
        let _ = write!(text, "; {unparsed} answers without a verdict");
    }
    text.push('\n');
    if let (Some(consistent), Some(first), Some(second)) =
        (facts.consistent, facts.always_first, facts.always_second)
    {
        let _ = writeln!(
            text,
            "both orders agree: {}; always the first {}, always the second {}; the longer one won {}",
            share(consistent),
            share(first),
            share(second),
            shares(facts.longer)
        );
    }
    if let Some(agreement) = &facts.agreement {
        let _ = write!(
            text,
            "with people, on {}: the same {}",
            counted(agreement.tasks, "task"),
            share(agreement.same)
        );
        if agreement.kappa.is_some() || agreement.same_winner.is_some() {
            let kappa = agreement.kappa.map_or("–".into(), |kappa| format!("{kappa:.3}"));
            let _ = write!(text, ", among winners {}, Cohen's kappa {kappa}", shares(agreement.same_winner));
        }
        if let Some(leaning) = agreement.leaning {
            let _ = write!(text, ", the log-odds of both orders lean the same way {}", share(leaning));
        }
        if let Some(distance) = agreement.distance {
            let alpha = agreement.alpha.map_or("–".into(), |alpha| format!("{alpha:.3}"));
            let _ = write!(text, ", {distance:.2} points apart, Krippendorff's alpha {alpha}");
        }
        text.push('\n');
        if let Some(people) = &agreement.people {
            let _ = write!(
                text,
                "people among each other, on {}: the same {}",
                counted(people.tasks, "task"),
                share(people.same)
            );
            if people.same_winner.is_some() {
                let _ = write!(text, ", among winners {}", shares(people.same_winner));
            }
            text.push('\n');
        }
    }
    text + &standings(&facts.ratings, &facts.scale)
}

//! `bessemer scaling fit`.

use super::runs::{NamedRun, Runs};
use super::{FIGURES, Fitted, SHARE, law_value, scientific};
use crate::cli::{FitArgs, FittedLaw, ScalingFitArgs};
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_report::{ScalingPage, ScalingPoint, grouped};
use bessemer_scaling::approaches::{Frontier, SMOOTHING, envelope, isoflops, smooth};
use bessemer_scaling::{Exponents, ScalingError, TrainedRun};
use serde_json::{Value, json};
use std::fmt::Write;

pub(super) fn run(args: &ScalingFitArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let read = Runs::read(&args.runs)?;
    for note in &read.notes {
        crate::console::warn(note);
    }
    if args.law == FittedLaw::Kaplan {
        return super::kaplan::fit(args, read, as_json);
    }
    let result = Fit::of(&args.fit, read, args.hold_out)?;
    if let Some(out) = &args.out {
        result.page().write(out).map_err(|e| Failure::new(format!("--out {}: {e}", out.display())))?;
        console.say(&format!("wrote {}", out.display()));
    }
    let text = if as_json { serde_json::to_string(&result.value())? } else { result.text() };
    Ok(print(&text)?)
}

/// A law fitted to runs, beside them.
pub(crate) struct Fit {
    pub(crate) read: Runs,
    /// Number of runs fitted, in order of compute; the others are predicted.
    pub(super) kept: usize,
    pub(crate) fitted: Fitted,
    /// The first two approaches, where the runs allow them.
    others: [(&'static str, Result<Frontier, ScalingError>); 2],
}

impl Fit {
    /// Fits all runs but the `hold_out` of most compute.
    pub(crate) fn of(args: &FitArgs, mut read: Runs, hold_out: usize) -> Result<Fit, Failure> {
        read.runs.sort_by(|a, b| a.run.at.flops().total_cmp(&b.run.at.flops()));
        let kept = read.runs.len().saturating_sub(hold_out);
        let points = read.points();
        let fitted = Fitted::of(&points[..kept], args)?;
        let curves = read.runs[..kept].iter().filter_map(|named| {
            let mut curve = named.curve.clone()?;
            curve.points = smooth(&curve.points, SMOOTHING);
            Some(curve)
        });
        let others = [
            ("envelope of the training curves", envelope(&curves.collect::<Vec<_>>())),
            ("parabolas at equal compute", isoflops(&points[..kept])),
        ];
        Ok(Fit { read, kept, fitted, others })
    }

    fn predicted(&self, run: &TrainedRun) -> f64 {
        self.fitted.fit.law.loss(run.at)
    }

    /// Relative error of the prediction, percent.
    pub(crate) fn error(&self, run: &TrainedRun) -> f64 {
        100.0 * (self.predicted(run) / run.loss - 1.0)
    }

    pub(super) fn mean_error(&self) -> f64 {
        let errors = self.read.runs[..self.kept].iter().map(|named| self.error(&named.run).abs());
        errors.sum::<f64>() / self.kept as f64
    }

    pub(crate) fn text(&self) -> String {
        let law = &self.fitted.fit.law;
        let mut text = format!(
            "L(N, D) = E + A / N^alpha + B / D^beta in nats for each token, N with embeddings, fitted to {} runs; mean error {:.2} %\n",
            self.kept,
            self.mean_error()
        );
        for (name, of) in FIGURES {
            let shown = |x: f64| bessemer_report::number(x);
            let _ = write!(text, "  {name:<36}{:>12}", shown(of(law)));
            if let Some([low, high]) = self.fitted.interval(of) {
                let _ = write!(text, "   {:.0} %: {} to {}", 100.0 * SHARE, shown(low), shown(high));
            }
            text.push('\n');
        }
        for (name, frontier) in &self.others {
            let _ = match frontier {
                Ok(found) => writeln!(
                    text,
                    "  by {name}: exponent of parameters {:.3}, of tokens {:.3}, from {} budgets",
                    found.parameters.exponent,
                    found.tokens.exponent,
                    found.points.len()
                ),
                Err(cause) => writeln!(text, "  by {name}: no result: {cause}"),
            };
        }
        text += "\n       parameters         tokens  compute     loss predicted   error\n";
        for (row, named) in self.read.runs.iter().enumerate() {
            let run = &named.run;
            let _ = writeln!(
                text,
                "  {:>15} {:>14}  {} {:>7.4}   {:>7.4} {:>+6.2} %  {}{}",
                grouped(run.at.parameters as u64),
                grouped(run.at.tokens as u64),
                scientific(run.at.flops()),
                run.loss,
                self.predicted(run),
                self.error(run),
                if row < self.kept { "" } else { "held out  " },
                named.name
            );
        }
        text += "\nbest sizes by compute\n";
        for (flops, note) in self.budgets() {
            let best = law.best(flops);
            let _ = write!(
                text,
                "  {}: {} parameters, {} tokens ({} for each parameter), loss {:.3}",
                scientific(flops),
                scientific(best.parameters),
                scientific(best.tokens),
                bessemer_report::number(best.tokens / best.parameters),
                law.loss(best)
            );
            if let Some([low, high]) = self.fitted.loss_interval(best) {
                let _ = write!(text, " ({low:.3} to {high:.3})");
            }
            let _ = writeln!(text, "{note}");
        }
        if self.fitted.exponents == Exponents::Two && self.kept < 10 {
            text += "few runs for five constants: --one-exponent has four\n";
        }
        text
    }

    /// Budgets to show: that of the largest run, ten and a hundred times it.
    pub(super) fn budgets(&self) -> [(f64, &'static str); 3] {
        let largest = self.read.runs.iter().map(|named| named.run.at.flops()).fold(0.0, f64::max);
        [
            (largest, ""),
            (10.0 * largest, "; beyond the runs: 10 times their largest compute"),
            (100.0 * largest, "; beyond the runs: 100 times their largest compute"),
        ]
    }

    pub(crate) fn value(&self) -> Value {
        let law = &self.fitted.fit.law;
        let figures: serde_json::Map<String, Value> = FIGURES
            .iter()
            .map(|(name, of)| {
                let value = json!({ "value": of(law), "interval": self.fitted.interval(of) });
                (name.replace(' ', "_"), value)
            })
            .collect();
        let runs: Vec<Value> =
            self.read.runs.iter().enumerate().map(|(row, named)| self.run_value(row, named)).collect();
        let frontier = |found: &Result<Frontier, ScalingError>| match found {
            Ok(found) => json!({
                "exponent_of_parameters": found.parameters.exponent,
                "exponent_of_tokens": found.tokens.exponent,
                "budgets": found.points.len(),
            }),
            Err(cause) => json!({ "error": cause.to_string() }),
        };
        json!({
            "law": law_value(law),
            "objective": self.fitted.fit.objective,
            "figures": figures,
            "interval_share": SHARE,
            "mean_error_percent": self.mean_error(),
            "envelope": frontier(&self.others[0].1),
            "isoflops": frontier(&self.others[1].1),
            "runs": runs,
            "left_out": self.read.notes,
        })
    }

    fn run_value(&self, row: usize, named: &NamedRun) -> Value {
        json!({
            "name": named.name,
            "parameters": named.run.at.parameters,
            "parameters_without_embedding": named.without_embedding,
            "tokens": named.run.at.tokens,
            "flops": named.run.at.flops(),
            "loss": named.run.loss,
            "predicted": self.predicted(&named.run),
            "held_out": row >= self.kept,
        })
    }

    pub(crate) fn page(&self) -> ScalingPage {
        let law = &self.fitted.fit.law;
        let point = |(row, named): (usize, &NamedRun)| ScalingPoint {
            name: named.name.clone(),
            parameters: named.run.at.parameters,
            tokens: named.run.at.tokens,
            flops: named.run.at.flops(),
            loss: named.run.loss,
            predicted: self.predicted(&named.run),
            held_out: row >= self.kept,
        };
        let constants =
            FIGURES.iter().map(|(name, of)| ((*name).to_string(), of(law), self.fitted.interval(of)));
        let flops = |i: usize| {
            let all = self.read.runs.iter().map(|named| named.run.at.flops());
            let (low, high) = all.fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), x| (l.min(x), h.max(x)));
            let share = i as f64 / 40.0;
            (low.ln() * (1.0 - share) + (100.0 * high).ln() * share).exp()
        };
        let best = |i: usize| {
            let at = flops(i);
            let one = law.best(at);
            let band = self.fitted.interval(|law| law.best(at).parameters);
            [at, one.parameters, band.map_or(f64::NAN, |b| b[0]), band.map_or(f64::NAN, |b| b[1])]
        };
        let frontier = |i: usize| {
            let at = flops(i);
            [at, law.loss(law.best(at))]
        };
        ScalingPage {
            constants: constants.collect(),
            interval_share: SHARE,
            mean_error: self.mean_error(),
            points: self.read.runs.iter().enumerate().map(point).collect(),
            frontier: (0..=40).map(frontier).collect(),
            best: (0..=40).map(best).collect(),
            notes: self.read.notes.clone(),
        }
    }
}

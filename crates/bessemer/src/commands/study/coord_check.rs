//! `bessemer study coord-check`: whether updates have the same size at every width.

use super::{create, lock, require_memory, text};
use crate::cli::StudyCoordCheckArgs;
use crate::console::{Console, print};
use crate::failure::{Failure, code};
use crate::{machine, signals};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_runlog::coord_check::{
    COORD_CHECK_FILE, COORD_CHECK_FORMAT, COORD_CHECK_VERSION, CoordCheck, CoordParametrisation,
    CoordSettings, CoordSlope, Measure,
};
use bessemer_study::{
    PARAMETRISATIONS, Parametrisation, SymbolText, coordinate_run, run_settings, training_shape,
};
use bessemer_train::Observer;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) fn run(args: &StudyCoordCheckArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let settings = settings(args)?;
    let stop = signals::stop_flag()?;
    let text = text(args.text.as_deref(), &args.out, args.threads, console, &stop)?;
    let widest = settings.widths.last().copied().unwrap_or_default();
    text.require(&run_settings(&settings, widest))?;
    for p in &PARAMETRISATIONS {
        let model = p.model(&settings, widest, text.facts().symbols as usize)?;
        let shape = training_shape(&run_settings(&settings, widest));
        require_memory(&model, shape)?;
    }
    create(&args.out)?;
    let _lock = lock(&args.out)?;
    let mut check = CoordCheck {
        format: COORD_CHECK_FORMAT.into(),
        version: COORD_CHECK_VERSION,
        settings,
        text: text.facts().clone(),
        parametrisations: Vec::new(),
    };
    for (i, p) in PARAMETRISATIONS.iter().enumerate() {
        let Some(found) = runs(p, i, &check.settings, args, &text, &stop, console)? else {
            let message = "stopped; nothing was written; run the same command to start over".into();
            return Err(Failure { code: code::CONTINUE, message });
        };
        check.parametrisations.push(found);
    }
    let (path, page) = (args.out.join(COORD_CHECK_FILE), args.out.join("report.html"));
    check.write(&path)?;
    bessemer_report::write_coord_check(&page, &check)?;
    console.say(&format!("wrote {} and {}", path.display(), page.display()));
    if as_json {
        return Ok(print(&serde_json::to_string(&check)?)?);
    }
    Ok(print(&summary(&check))?)
}

/// All runs of a parametrisation; `None` if they were stopped.
fn runs(
    parametrisation: &Parametrisation,
    number: usize,
    settings: &CoordSettings,
    args: &StudyCoordCheckArgs,
    text: &SymbolText,
    stop: &AtomicBool,
    console: &mut Console,
) -> Result<Option<CoordParametrisation>, Failure> {
    let each = settings.steps + 1;
    let of_one = settings.widths.len() as u64 * args.seeds * each;
    let mut done = number as u64 * of_one;
    let mut found = CoordParametrisation {
        name: parametrisation.name.into(),
        title: parametrisation.title.into(),
        runs: Vec::new(),
        findings: Vec::new(),
    };
    for &width in &settings.widths {
        for seed in args.seed..args.seed + args.seeds {
            // A backend frees its memory only as a whole.
            let threads = machine::threads(args.threads as u64);
            let mut backend = CpuBackend::new(CpuConfig { threads, ..CpuConfig::default() })?;
            let mut on_step = |step| {
                console.progress("running", done + step, of_one * PARAMETRISATIONS.len() as u64);
                !stop.load(Ordering::Relaxed)
            };
            let run =
                coordinate_run(&mut backend, parametrisation, settings, text, width, seed, &mut on_step)?;
            let Some(run) = run else { return Ok(None) };
            if let Some(step) = run.diverged_at {
                let name = parametrisation.name;
                console.say(&format!("{name}, width {width}, seed {seed}: not finite at update {step}"));
            }
            done += each;
            found.runs.push(run);
        }
    }
    found.judge(settings);
    Ok(Some(found))
}

fn settings(args: &StudyCoordCheckArgs) -> Result<CoordSettings, Failure> {
    let counts = [
        ("--head-dim", args.head_dim, 1, 4096),
        ("--layers", args.layers, 1, 1000),
        ("--context", args.context, 1, 1 << 16),
        ("--batch", args.batch, 1, 1 << 16),
        ("--steps", args.steps, 1, 1000),
        ("--seeds", args.seeds, 1, 1000),
    ];
    for (key, value, least, most) in counts {
        if !(least..=most).contains(&value) {
            return Err(Failure::usage(format!("{key}: wanted {least} to {most}, found {value}")));
        }
    }
    for (key, value, most) in [("--lr", args.lr, 100.0), ("--bound", args.bound, 10.0)] {
        if !(value > 0.0 && value <= most) {
            return Err(Failure::usage(format!("{key}: wanted above 0, at most {most}, found {value}")));
        }
    }
    let mut widths = args.widths.clone();
    widths.sort_unstable();
    widths.dedup();
    if widths.len() < 2 {
        return Err(Failure::usage(format!(
            "--widths: wanted two or more different widths, found {}",
            widths.len()
        )));
    }
    let base_width = args.base_width.unwrap_or(widths[0]);
    for (key, width) in widths.iter().map(|w| ("--widths", *w)).chain([("--base-width", base_width)]) {
        if !(1..=1 << 14).contains(&width) || !width.is_multiple_of(args.head_dim) {
            return Err(Failure::usage(format!(
                "{key}: wanted multiples of the head width {} up to 16384, found {width}; change --head-dim or {key}",
                args.head_dim
            )));
        }
    }
    Ok(CoordSettings {
        widths,
        base_width,
        head_dim: args.head_dim,
        layers: args.layers,
        context: args.context,
        batch: args.batch,
        steps: args.steps,
        lr: args.lr,
        beta1: 0.9,
        beta2: 0.999,
        bound: args.bound,
    })
}

/// The table for people: changes after the last update by width, their slopes and verdicts.
fn summary(check: &CoordCheck) -> String {
    let s = &check.settings;
    let mut out =
        format!("rms of the change after {} updates, by width; slope of log2 over log2 width\n", s.steps);
    for p in &check.parametrisations {
        let _ = write!(out, "\n{:<17}", p.name);
        s.widths.iter().for_each(|w| {
            let _ = write!(out, " {w:>9}");
        });
        let _ = writeln!(out, "            slope  verdict");
        for f in &p.findings {
            let _ = write!(out, "{:<17}", f.kind.title());
            for width in &s.widths {
                let mean = p.mean(f.kind, Measure::Change, s.steps as usize, *width);
                let _ = write!(out, " {:>9}", mean.map_or("–".into(), |m| format!("{m:.4}")));
            }
            let _ = writeln!(out, " {:>16}  {}", slope(f.change), f.verdict.name());
        }
    }
    for p in &check.parametrisations {
        let _ = write!(out, "\n{}: {}", p.name, p.verdict());
    }
    let _ = write!(
        out,
        "\nflat: a slope within ±{} over widths {} to {}",
        s.bound,
        s.widths[0],
        s.widths[s.widths.len() - 1]
    );
    out
}

fn slope(s: Option<CoordSlope>) -> String {
    s.map_or("–".into(), |s| format!("{:+.2} ± {:.2}", s.slope, s.spread))
}

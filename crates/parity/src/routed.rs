//! A layout of a mixture beside one rank: with its own choices of experts until the first that differs, and with those of one rank replayed.

use crate::compare::{Bounds, Comparison};
use crate::layouts::Layout;
use crate::reference::MakeBackend;
use crate::routes::{RouteUse, RoutedBackend, Routes, RoutesFound};
use crate::run::{ParityJob, Trajectory, in_process};
use bessemer_collectives::ThreadSettings;
use bessemer_tensor::Backend;
use bessemer_train::TrainError;
use std::sync::{Arc, Mutex, PoisonError};

/// Largest margin of a choice that rounding may turn.
const MARGIN: f64 = 1e-4;

/// A layout of a mixture beside one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutedComparison {
    /// With the choices of one rank replayed where some differ, else with the layout's own, which are the same.
    pub comparison: Comparison,
    /// The layout's own choices.
    pub routes: RoutesFound,
    /// Choices of one rank.
    pub choices: usize,
    /// Largest relative difference of a loss before the first other choice, with the layout's own choices.
    pub before: f64,
}

/// Records the choices of a run on one rank.
///
/// # Errors
/// As [`in_process`].
pub(crate) fn recorded(
    job: &ParityJob,
    layout: &Layout,
    settings: &ThreadSettings,
    backend: MakeBackend<'_>,
) -> Result<(Trajectory, Routes), TrainError> {
    let routes = Arc::new(Mutex::new(Routes::of(job.seq)));
    let with = |inner| RoutedBackend::around(inner, RouteUse::Record(Arc::clone(&routes)));
    let trajectory = in_process(job, layout, settings, &|| Ok(Box::new(with(backend()?))))?;
    let routes = std::mem::take(&mut *routes.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((trajectory, routes))
}

fn run(
    (job, layout): (&ParityJob, &Layout),
    settings: &ThreadSettings,
    backend: MakeBackend<'_>,
    recorded: &Arc<Routes>,
    replay: bool,
) -> Result<(Trajectory, RoutesFound), TrainError> {
    let found = Arc::new(Mutex::new(RoutesFound::default()));
    let with = |inner| -> Box<dyn Backend> {
        let (recorded, found) = (Arc::clone(recorded), Arc::clone(&found));
        Box::new(RoutedBackend::around(inner, RouteUse::Compare { recorded, found, replay }))
    };
    let trajectory = in_process(job, layout, settings, &|| Ok(with(backend()?)))?;
    let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((trajectory, found))
}

/// Trains a layout and holds it against one rank. With its own choices of experts losses keep the bounds until the first choice that one rank has not
/// made, which must be as close as rounding; with the choices of one rank all losses and the gradients of the first step keep them.
///
/// # Errors
/// As [`in_process`].
pub fn routed(
    job: &ParityJob,
    layout: &Layout,
    settings: &ThreadSettings,
    backend: MakeBackend<'_>,
    (reference, recorded, bounds): (&Trajectory, &Arc<Routes>, &Bounds),
) -> Result<RoutedComparison, TrainError> {
    let (free, routes) = run((job, layout), settings, backend, recorded, false)?;
    let choices = recorded.choices();
    let whole = Comparison::new(&free, reference, bounds);
    let unknown = |found: &RoutesFound| {
        let rows = found.unknown;
        (rows > 0).then(|| format!("{rows} rows of routers whose tokens are unknown on one rank"))
    };
    let Some(step) = routes.first_step() else {
        let (before, problem) = (whole.any_loss.0, whole.problem.clone().or_else(|| unknown(&routes)));
        let comparison = Comparison { problem, ..whole };
        return Ok(RoutedComparison { comparison, routes, choices, before });
    };
    let until = |trajectory: &Trajectory| Trajectory {
        losses: trajectory.losses[..(step as usize - 1).min(trajectory.losses.len())].to_vec(),
        gradients: if step > 1 { trajectory.gradients.clone() } else { Vec::new() },
        ..Trajectory::default()
    };
    let (replayed, left) = run((job, layout), settings, backend, recorded, true)?;
    let mut comparison = Comparison::new(&replayed, reference, bounds);
    let mut problems: Vec<String> = comparison.problem.take().into_iter().collect();
    let mut before = 0.0;
    if step > 1 {
        let until = Comparison::new(&until(&free), &until(reference), bounds);
        before = until.any_loss.0;
        problems.extend(until.problem.map(|problem| format!("before another choice: {problem}")));
    }
    problems.extend(unknown(&left));
    if left.differing() > 0 {
        problems.push(format!("{} replayed choices differ", left.differing()));
    }
    match routes.first {
        Some(first) if first.margin < MARGIN => {}
        Some(first) => problems.push(format!(
            "the first other choice (step {}, layer with experts {}, token {}) has a margin of {:.1e} (bound {MARGIN:.0e})",
            first.step, first.layer, first.token, first.margin
        )),
        None => problems.push("no other choice has a margin: wanted one from which the others follow".into()),
    }
    comparison.problem = (!problems.is_empty()).then(|| problems.join("; "));
    Ok(RoutedComparison { comparison, routes, choices, before })
}

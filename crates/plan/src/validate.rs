//! Predictions held against measured steps.

use crate::errors::{Errors, best_constant, errors, ranking};
use crate::{Calibration, Job, Measurement, PlanError, StepTime};
use serde::Serialize;

/// Predictions of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Validation {
    /// Rows that were predicted, none of them fitted.
    pub rows: Vec<Prediction>,
    /// Their errors.
    pub errors: Errors,
    /// Errors of the rows that leave at least 5 % of the memory free, where some do not and some do.
    pub roomy: Option<Errors>,
    /// Rows that lie in the band of their prediction.
    pub in_band: usize,
    /// The least mean error of one rate of operations for all of them.
    pub null: f64,
    /// Jobs that the table has several layouts of, fitted rows among them.
    pub groups: Vec<Group>,
}

/// A predicted row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Number of the row.
    pub row: usize,
    /// Job that ran.
    pub job: Job,
    /// Name of the machine.
    pub machine: String,
    /// Seconds that were measured.
    pub measured: f64,
    /// Seconds that are predicted, by part.
    pub predicted: StepTime,
    /// Whether less than 5 % of the memory is expected to stay free.
    pub crowded: bool,
}

/// Layouts of one model, batch and number of devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// Devices.
    pub devices: usize,
    /// Sequences of a step.
    pub global_batch: usize,
    /// Width of the model.
    pub width: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Layouts.
    pub layouts: usize,
    /// Measured time of the layout predicted fastest over the best measured, minus 1.
    pub regret: f64,
    /// Kendall's tau.
    pub tau: f64,
}

/// Predicts a table. Rows that are the same as one of `fitted` count in the ranking only.
///
/// # Errors
/// A table all of whose rows were fitted.
pub fn validate(
    table: &[Measurement],
    fitted: &[Measurement],
    calibration: &Calibration,
) -> Result<Validation, PlanError> {
    let predict = |step: &Measurement| calibration.predict(&step.job, &step.machine);
    let rows: Vec<Prediction> = table
        .iter()
        .filter(|step| !fitted.contains(step))
        .map(|step| Prediction {
            row: step.row,
            job: step.job,
            machine: step.machine.name.clone(),
            measured: step.seconds,
            predicted: predict(step),
            crowded: step.crowded(),
        })
        .collect();
    let ratio = |row: &Prediction| row.predicted.total / row.measured;
    let roomy: Vec<f64> = rows.iter().filter(|row| !row.crowded).map(ratio).collect();
    let roomy = if roomy.len() < rows.len() { errors(&roomy) } else { None };
    let holds = |row: &&Prediction| calibration.band.holds(row.predicted.total, row.measured);
    let in_band = rows.iter().filter(holds).count();
    let errors = errors(&rows.iter().map(ratio).collect::<Vec<_>>()).ok_or_else(|| PlanError::Rows {
        problem: "every row of the table was fitted; wanted rows to predict".into(),
    })?;
    let rates: Vec<f64> = rows.iter().map(|row| row.job.hardware_flops() / row.measured).collect();
    let (null, groups) = (best_constant(&rates), groups(table, &predict));
    Ok(Validation { rows, errors, roomy, in_band, null, groups })
}

/// Ranks the layouts of each job.
fn groups(table: &[Measurement], predict: &dyn Fn(&Measurement) -> StepTime) -> Vec<Group> {
    let same = |a: &Measurement, b: &Measurement| {
        let key =
            |step: &Measurement| (step.job.model, step.job.seq, step.job.global_batch, step.job.devices());
        key(a) == key(b) && a.machine == b.machine
    };
    let mut firsts: Vec<&Measurement> = Vec::new();
    for step in table {
        if !firsts.iter().any(|first| same(first, step)) {
            firsts.push(step);
        }
    }
    let ranked = firsts.into_iter().filter_map(|first| {
        let times: Vec<(f64, f64)> = table
            .iter()
            .filter(|step| same(first, step))
            .map(|step| (predict(step).total, step.seconds))
            .collect();
        let (regret, tau) = ranking(&times)?;
        Some(Group {
            devices: first.job.devices(),
            global_batch: first.job.global_batch,
            width: first.job.model.width,
            layers: first.job.model.layers,
            layouts: times.len(),
            regret,
            tau,
        })
    });
    ranked.collect()
}

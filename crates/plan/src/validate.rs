//! Predictions held against measured steps.

use crate::calibration::choose_at_most;
use crate::errors::{Errors, best_constant, errors, ranking};
use crate::{Calibration, Job, Machine, Measurement, PlanError, Regret, StepTime};
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
    /// What the calibration expects of that.
    pub expected: Regret,
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
    let (null, groups) = (best_constant(&rates), groups(table, calibration));
    Ok(Validation { rows, errors, roomy, in_band, null, groups })
}

/// Rows that were left out together, predicted from others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeftOutGroup {
    /// Property that the rows share and the others do not have.
    pub by: LeftOutBy,
    /// Number of rows.
    pub rows: usize,
    /// Rows that were fitted instead.
    pub fitted: Vec<usize>,
    /// Errors of the rows.
    pub errors: Errors,
    /// Jobs that some of the rows are layouts of, with all their layouts in the table: what a search would have chosen.
    pub jobs: Vec<Group>,
    /// The same among the left-out rows alone.
    pub own: Vec<Group>,
}

/// Property by which rows are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOutBy {
    /// Width and layers of the model.
    Model([usize; 2]),
    /// Tensor-parallel ranks.
    Tensor(usize),
    /// Nodes.
    Nodes(usize),
}

impl std::fmt::Display for LeftOutBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LeftOutBy::Model([width, layers]) => write!(f, "model {width} x {layers}"),
            LeftOutBy::Tensor(ranks) => write!(f, "tensor {ranks}"),
            LeftOutBy::Nodes(1) => write!(f, "1 node"),
            LeftOutBy::Nodes(nodes) => write!(f, "{nodes} nodes"),
        }
    }
}

/// Leaves out the rows of each model, of each tensor degree and of each number of nodes in turn, and predicts them from at most `most` of
/// the others. Nodes that leave out the same rows as models are not repeated; a table that has one value only has no such groups.
pub fn leave_groups_out(table: &[Measurement], most: usize) -> Vec<LeftOutGroup> {
    let kinds: [fn(&Measurement) -> LeftOutBy; 3] = [
        |step| LeftOutBy::Model([step.job.model.width, step.job.model.layers]),
        |step| LeftOutBy::Tensor(step.job.layout.tensor),
        |step| LeftOutBy::Nodes(step.job.devices().div_ceil(step.machine.node)),
    ];
    let mut found: Vec<LeftOutGroup> = Vec::new();
    let mut seen: Vec<Vec<usize>> = Vec::new();
    for kind in kinds {
        let mut values: Vec<LeftOutBy> = table.iter().map(kind).collect();
        values.sort_unstable();
        values.dedup();
        for by in values {
            let members: Vec<usize> = (0..table.len()).filter(|index| kind(&table[*index]) == by).collect();
            let others: Vec<Measurement> = table.iter().filter(|step| kind(step) != by).cloned().collect();
            let fitted = choose_at_most(&others, most);
            if fitted.is_empty() || seen.contains(&members) {
                continue;
            }
            let own: Vec<Measurement> = members.iter().map(|index| table[*index].clone()).collect();
            let calibration = Calibration::without_band(&fitted);
            let ratio =
                |step: &Measurement| calibration.predict(&step.job, &step.machine).total / step.seconds;
            let Some(errors) = errors(&own.iter().map(ratio).collect::<Vec<_>>()) else { continue };
            let touched: Vec<Measurement> =
                table.iter().filter(|step| own.iter().any(|one| same_job(one, step))).cloned().collect();
            found.push(LeftOutGroup {
                by,
                rows: own.len(),
                fitted: calibration.fitted.clone(),
                errors,
                jobs: groups(&touched, &calibration),
                own: groups(&own, &calibration),
            });
            seen.push(members);
        }
    }
    found
}

/// Whether two steps are of one job on the same devices.
fn same_job(a: &Measurement, b: &Measurement) -> bool {
    let key = |step: &Measurement| (step.job.model, step.job.seq, step.job.global_batch, step.job.devices());
    key(a) == key(b) && a.machine == b.machine
}

/// Ranks the layouts of each job.
fn groups(table: &[Measurement], calibration: &Calibration) -> Vec<Group> {
    let mut firsts: Vec<&Measurement> = Vec::new();
    for step in table {
        if !firsts.iter().any(|first| same_job(first, step)) {
            firsts.push(step);
        }
    }
    let ranked = firsts.into_iter().filter_map(|first| {
        let steps: Vec<&Measurement> = table.iter().filter(|step| same_job(first, step)).collect();
        let predict = |step: &Measurement| calibration.predict(&step.job, &step.machine).total;
        let times: Vec<(f64, f64)> = steps.iter().map(|step| (predict(step), step.seconds)).collect();
        let (regret, tau) = ranking(&times)?;
        let layouts: Vec<(&Job, &Machine, f64)> =
            steps.iter().zip(&times).map(|(step, (time, _))| (&step.job, &step.machine, *time)).collect();
        let chosen = (0..times.len()).min_by(|a, b| times[*a].0.total_cmp(&times[*b].0))?;
        Some(Group {
            devices: first.job.devices(),
            global_batch: first.job.global_batch,
            width: first.job.model.width,
            layers: first.job.model.layers,
            layouts: times.len(),
            regret,
            expected: calibration.regret(&layouts, chosen)?,
            tau,
        })
    });
    ranked.collect()
}

//! Finished runs as points of a law: from the records of run directories, and from tables.

use crate::failure::Failure;
use bessemer_runlog::{Record, read};
use bessemer_scaling::approaches::Curve;
use bessemer_scaling::{Allocation, TrainedRun};
use std::path::{Path, PathBuf};

/// A run and where it comes from.
pub(crate) struct NamedRun {
    pub(crate) name: String,
    pub(crate) run: TrainedRun,
    /// Parameters without embeddings, where they are known.
    pub(crate) without_embedding: Option<f64>,
    /// Training loss by tokens, where it is known.
    pub(crate) curve: Option<Curve>,
}

/// Finished runs, and what was left out.
#[derive(Default)]
pub(crate) struct Runs {
    pub(crate) runs: Vec<NamedRun>,
    pub(crate) notes: Vec<String>,
}

impl Runs {
    /// Reads run directories and tables. Losses in nats for each token only compare among runs of one tokenizer, which is checked where
    /// records say it.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Runs, Failure> {
        let mut all = Runs::default();
        let mut tokenizer: Option<(String, PathBuf)> = None;
        for path in paths {
            if path.extension().is_some_and(|extension| extension == "csv") {
                all.runs.extend(table(path)?);
                continue;
            }
            match directory(path)? {
                Ok((run, fingerprint)) => {
                    match &tokenizer {
                        Some((first, other)) if !fingerprint.is_empty() && *first != fingerprint => {
                            return Err(Failure::usage(format!(
                                "{}: wanted the tokenizer of {}, found another one; losses per token compare \
                                 only between runs with the same tokenizer",
                                path.display(),
                                other.display()
                            )));
                        }
                        None if !fingerprint.is_empty() => tokenizer = Some((fingerprint, path.clone())),
                        _ => {}
                    }
                    all.runs.push(run);
                }
                Err(reason) => all.notes.push(format!("{} is left out: {reason}", path.display())),
            }
        }
        Ok(all)
    }

    pub(crate) fn points(&self) -> Vec<TrainedRun> {
        self.runs.iter().map(|named| named.run).collect()
    }
}

/// The end of a run by its records and the fingerprint of its tokenizer, or why it does not count.
pub(crate) fn directory(path: &Path) -> Result<Result<(NamedRun, String), String>, Failure> {
    let log = read(path).map_err(|cause| Failure::new(cause.to_string()))?;
    let (mut name, mut model, mut steps, mut fingerprint, mut last) =
        (String::new(), None, 0, String::new(), None);
    let (mut curve, mut reached) = (Vec::new(), 0);
    for record in log.records {
        match record {
            Record::Run(run) => name = run.name,
            Record::Model(found) => model = Some(found),
            Record::Training(training) => steps = training.steps,
            Record::Tokenizer(tokenizer) => fingerprint = tokenizer.fingerprint,
            Record::Step(step) => {
                reached = step.step;
                curve.push([step.tokens as f64, step.loss]);
            }
            Record::Eval(eval) => last = Some(eval),
            _ => {}
        }
    }
    let Some(model) = model else { return Ok(Err("its log has no record of the model".into())) };
    if steps == 0 || reached < steps {
        return Ok(Err(format!(
            "it has not ended: {reached} of {steps} steps; the loss before the end of the learning-rate \
             decay is too high to compare"
        )));
    }
    let Some(eval) = last.filter(|eval| eval.step == reached) else {
        return Ok(Err("it has no evaluation after its last step".into()));
    };
    if name.is_empty() {
        name = path.display().to_string();
    }
    let parameters = model.parameters as f64;
    let at = Allocation { parameters, tokens: eval.tokens as f64 };
    curve.retain(|point| point[0] > 0.0 && point[1].is_finite());
    let run = NamedRun {
        name,
        run: TrainedRun { at, loss: eval.loss },
        without_embedding: Some(model.parameters_without_embedding as f64),
        curve: Some(Curve { parameters, points: curve }),
    };
    Ok(Ok((run, fingerprint)))
}

/// Largest table that is read.
const MOST_BYTES: u64 = 64 << 20;

/// Column of a table that Kaplan's law needs and the others do not.
pub(super) const WITHOUT_EMBEDDING: &str = "parameters_without_embedding";

/// The rows of a table: a header with the columns `parameters`, `tokens`, `loss` and, if there is one, [`WITHOUT_EMBEDDING`] in any order, others passed
/// over.
fn table(path: &Path) -> Result<Vec<NamedRun>, Failure> {
    let failed = |what: String| Failure::usage(format!("{}: {what}", path.display()));
    let text =
        bessemer_durable::read_small_input(path, MOST_BYTES).map_err(|e| Failure::usage(e.to_string()))?;
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header: Vec<&str> =
        lines.next().map_or_else(Vec::new, |(_, line)| line.split(',').map(str::trim).collect());
    let column = |wanted: &str| {
        header.iter().position(|name| *name == wanted).ok_or_else(|| {
            failed(format!(
                "wanted the columns parameters, tokens and loss, found {:?}; add {wanted}",
                header.join(",")
            ))
        })
    };
    let mut columns = vec![column("parameters")?, column("tokens")?, column("loss")?];
    columns.extend(column(WITHOUT_EMBEDDING).ok());
    lines
        .map(|(number, line)| {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            let mut values = vec![0.0; columns.len()];
            for (value, &column) in values.iter_mut().zip(&columns) {
                let field = fields.get(column).copied().unwrap_or_default();
                *value =
                    field.parse::<f64>().ok().filter(|v| *v > 0.0 && v.is_finite()).ok_or_else(|| {
                        failed(format!(
                            "line {}: {}: wanted a number above 0, found {field:?}",
                            number + 1,
                            header[column]
                        ))
                    })?;
            }
            let at = Allocation { parameters: values[0], tokens: values[1] };
            let name = format!("{} line {}", path.display(), number + 1);
            let run = TrainedRun { at, loss: values[2] };
            Ok(NamedRun { name, run, without_embedding: values.get(3).copied(), curve: None })
        })
        .collect()
}

//! Judges that are models and their verdicts, in records of their own beside the judgements of people.

use crate::JudgeError;
use crate::assign::TaskKey;
use crate::journal::RecordKind;
use crate::store::{Records, Store, VerdictsRecord, check_name, repeated};
use serde::{Deserialize, Serialize};

/// A judge that is a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelJudge {
    /// Name of the judge.
    pub name: String,
    /// The model.
    pub model: String,
    /// How verdicts are obtained, `generate` or `likelihood`.
    pub method: String,
    /// The template's TOML.
    pub template: String,
}

/// A model's answer on a task in one order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the judge.
    pub judge: String,
    /// Subject.
    #[serde(flatten)]
    pub key: TaskKey,
    /// Whether the second text stood first.
    pub turned: bool,
    /// 1 if the first text of the task is better, 0 if the second, 0.5 for neither, whichever stood first; or a point of the scale, which may lie between
    /// whole ones. None if no verdict could be read.
    pub choice: Option<f64>,
    /// Log-likelihoods of the continuations, in the template's order, if these were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<Vec<f64>>,
    /// The text that the model wrote, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Seconds since 1970, UTC.
    pub at: i64,
}

impl Store {
    /// Judges that are models, by name.
    ///
    /// # Errors
    /// Errors of [`Store::judgements`].
    pub fn model_judges(&self) -> Result<Vec<ModelJudge>, JudgeError> {
        Ok(self.records()?.models.values().cloned().collect())
    }

    /// Checks that a judge that is a model can have this name: nobody else has it, or the same model, method and template, so that its verdicts have one meaning.
    ///
    /// # Errors
    /// [`JudgeError::Judgement`] for a name that is none, or that another model, method or template has; errors of [`Store::judgements`].
    pub fn check_model_judge(&self, judge: &ModelJudge) -> Result<(), JudgeError> {
        check_name(&judge.name)?;
        check_same(&*self.records()?, judge)
    }

    /// Adds a judge that is a model, if it is not there.
    ///
    /// # Errors
    /// As [`Store::check_model_judge`] and [`Store::add`].
    pub fn add_model_judge(&mut self, judge: &ModelJudge) -> Result<(), JudgeError> {
        self.check_model_judge(judge)?;
        if self.records()?.models.contains_key(&judge.name) {
            return Ok(());
        }
        self.append(RecordKind::ModelJudge, judge, |_, records| check_same(records, judge))
    }

    /// Verdicts of all models, the oldest first.
    ///
    /// # Errors
    /// Errors of [`Store::judgements`].
    pub fn verdicts(&self) -> Result<Vec<Verdict>, JudgeError> {
        Ok(self.records()?.verdicts.clone())
    }

    /// Adds verdicts of a judge that [`Store::add_model_judge`] knows, all or none.
    ///
    /// # Errors
    /// [`JudgeError::Judgement`] for another judge, a task that the study does not have, or a verdict that is there already; the errors
    /// of the file as in [`Store::add`].
    pub fn add_verdicts(&mut self, verdicts: &[Verdict]) -> Result<(), JudgeError> {
        for one in verdicts {
            self.check_known(&one.judge, &one.key)?;
        }
        if verdicts.is_empty() {
            return Ok(());
        }
        // JSON has no number that is not finite.
        let verdicts: Vec<Verdict> = verdicts.iter().cloned().map(with_finite_scores).collect();
        let record = VerdictsRecord { verdicts: verdicts.as_slice().into() };
        self.append(RecordKind::Verdicts, &record, |study, records| {
            if let Some(one) = verdicts.iter().find(|one| !records.models.contains_key(&one.judge)) {
                return Err(JudgeError::Judgement(format!("no model judge has the name {:?}", one.judge)));
            }
            let new = verdicts.iter().map(|one| (one.judge.as_str(), one.key, one.turned));
            match repeated(&records.answered, new) {
                None => Ok(()),
                Some((judge, key)) => Err(JudgeError::Judgement(format!(
                    "{judge} has a verdict on this already: item {}",
                    study.items[key.item].id
                ))),
            }
        })
    }
}

/// The verdict without its scores where one is not finite.
pub(crate) fn with_finite_scores(mut verdict: Verdict) -> Verdict {
    verdict.scores = verdict.scores.filter(|scores| scores.iter().all(|score| score.is_finite()));
    verdict
}

fn check_same(records: &Records, judge: &ModelJudge) -> Result<(), JudgeError> {
    let Some(known) = records.models.get(&judge.name) else { return Ok(()) };
    let differs = match known {
        known if known.model != judge.model => format!("the model {}", known.model),
        known if known.method != judge.method => format!("the method {}", known.method),
        known if known.template != judge.template => "another template".to_owned(),
        _ => return Ok(()),
    };
    Err(JudgeError::Judgement(format!(
        "the judge {:?} has verdicts by {differs}; give this one another name",
        judge.name
    )))
}

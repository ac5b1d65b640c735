//! Judges that are models and their verdicts, in tables of their own beside the judgements of people.

use crate::JudgeError;
use crate::assign::TaskKey;
use crate::store::{Store, has_table};
use rusqlite::{Connection, params};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS model_judge(
  name TEXT PRIMARY KEY, model TEXT NOT NULL, method TEXT NOT NULL, template TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verdict(
  id INTEGER PRIMARY KEY, judge TEXT NOT NULL REFERENCES model_judge(name), item INTEGER NOT NULL, first INTEGER NOT NULL,
  second INTEGER, turned INTEGER NOT NULL, choice REAL, scores TEXT, answer TEXT, at INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS verdict_once ON verdict(judge, item, first, ifnull(second, -1), turned);
";

/// A judge that is a model.
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Name of the judge.
    pub judge: String,
    /// Subject.
    pub key: TaskKey,
    /// Whether the second text stood first.
    pub turned: bool,
    /// 1 if the first text of the task is better, 0 if the second, 0.5 for neither, whichever stood first; or a point of the scale, which may lie between
    /// whole ones. None if no verdict could be read.
    pub choice: Option<f64>,
    /// Log-likelihoods of the continuations, in the template's order, if these were compared.
    pub scores: Option<Vec<f64>>,
    /// The text that the model wrote, if it did.
    pub answer: Option<String>,
    /// Seconds since 1970, UTC.
    pub at: i64,
}

impl Store {
    /// Judges that are models, by name.
    ///
    /// # Errors
    /// SQLite's message.
    pub fn model_judges(&self) -> Result<Vec<ModelJudge>, JudgeError> {
        let all = || {
            if !has_table(&self.connection, "model_judge")? {
                return Ok(Vec::new());
            }
            let mut rows = self
                .connection
                .prepare("SELECT name, model, method, template FROM model_judge ORDER BY name")?;
            let rows = rows.query_map([], |row| {
                Ok(ModelJudge {
                    name: row.get(0)?,
                    model: row.get(1)?,
                    method: row.get(2)?,
                    template: row.get(3)?,
                })
            })?;
            rows.collect::<rusqlite::Result<_>>()
        };
        all().map_err(|e| self.failed(e))
    }

    /// Checks that a judge that is a model can have this name: nobody else has it, or the same model, method and template, so that its verdicts have one meaning.
    ///
    /// # Errors
    /// [`JudgeError::Judgement`] for a name that is none, or that another model, method or template has; what SQLite says.
    pub fn check_model_judge(&self, judge: &ModelJudge) -> Result<(), JudgeError> {
        crate::store::check_name(&judge.name)?;
        let judges = self.model_judges()?;
        let Some(known) = judges.iter().find(|known| known.name == judge.name) else { return Ok(()) };
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

    /// Adds a judge that is a model, if it is not there.
    ///
    /// # Errors
    /// As [`Store::check_model_judge`].
    pub fn add_model_judge(&mut self, judge: &ModelJudge) -> Result<(), JudgeError> {
        self.check_model_judge(judge)?;
        self.connection.execute_batch(SCHEMA).map_err(|e| self.failed(e))?;
        let insert = "INSERT OR IGNORE INTO model_judge VALUES (?1, ?2, ?3, ?4)";
        let values = params![judge.name, judge.model, judge.method, judge.template];
        self.connection.execute(insert, values).map_err(|e| self.failed(e))?;
        Ok(())
    }

    /// Verdicts of all models, the oldest first.
    ///
    /// # Errors
    /// [`JudgeError::Judgement`] for one about a text that the study does not have; what SQLite says.
    pub fn verdicts(&self) -> Result<Vec<Verdict>, JudgeError> {
        let all = match has_table(&self.connection, "verdict").map_err(|e| self.failed(e))? {
            true => read(&self.connection).map_err(|e| self.failed(e))?,
            false => Vec::new(),
        };
        match all.iter().find(|one| !self.knows(&one.key)) {
            Some(one) => Err(self.about_nothing(&one.judge)),
            None => Ok(all),
        }
    }

    /// Adds verdicts of a judge that [`Store::add_model_judge`] knows, all or none.
    ///
    /// # Errors
    /// What SQLite says, also of one that is there already.
    pub fn add_verdicts(&mut self, verdicts: &[Verdict]) -> Result<(), JudgeError> {
        let path = self.path.clone();
        let failed = |cause| JudgeError::Database { path: path.clone(), cause };
        let all = self.connection.transaction().map_err(failed)?;
        for one in verdicts {
            let scores = one.scores.as_ref().and_then(|scores| serde_json::to_string(scores).ok());
            all.execute(
                "INSERT INTO verdict(judge, item, first, second, turned, choice, scores, answer, at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![
                    one.judge,
                    one.key.item,
                    one.key.first,
                    one.key.second,
                    one.turned,
                    one.choice,
                    scores,
                    one.answer,
                    one.at
                ],
            )
            .map_err(failed)?;
        }
        all.commit().map_err(failed)
    }
}

fn read(connection: &Connection) -> rusqlite::Result<Vec<Verdict>> {
    let mut rows = connection.prepare(
        "SELECT judge, item, first, second, turned, choice, scores, answer, at FROM verdict ORDER BY id",
    )?;
    let rows = rows.query_map([], |row| {
        let scores: Option<String> = row.get(6)?;
        Ok(Verdict {
            judge: row.get(0)?,
            key: TaskKey { item: row.get(1)?, first: row.get(2)?, second: row.get(3)? },
            turned: row.get(4)?,
            choice: row.get(5)?,
            scores: scores.and_then(|scores| serde_json::from_str(&scores).ok()),
            answer: row.get(7)?,
            at: row.get(8)?,
        })
    })?;
    rows.collect()
}

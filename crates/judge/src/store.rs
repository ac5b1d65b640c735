//! A study and its judgements in one file.

use crate::JudgeError;
use crate::assign::{Judged, Task, TaskKey, next_task};
use crate::journal::{Journal, NewJournal, RecordKind, parse};
use crate::study::{Question, Study};
use crate::verdicts::{ModelJudge, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Longest name of a judge, bytes.
const LONGEST_NAME: usize = 100;

/// A judgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Name of the judge.
    pub judge: String,
    /// Subject of the judgement and the order of its texts.
    #[serde(flatten)]
    pub task: Task,
    /// 1 if the first text is better, 0 if the second, 0.5 for neither; or the point of the scale.
    pub choice: f64,
    /// How long the judge looked, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Seconds since 1970, UTC.
    pub at: i64,
}

/// Judgements that were added together.
#[derive(Serialize, Deserialize)]
pub(crate) struct JudgementsRecord<'a> {
    pub(crate) judgements: Cow<'a, [Judgement]>,
}

/// Verdicts that were added together.
#[derive(Serialize, Deserialize)]
pub(crate) struct VerdictsRecord<'a> {
    pub(crate) verdicts: Cow<'a, [Verdict]>,
}

/// What the program that made the study keeps beside its items.
#[derive(Serialize, Deserialize)]
struct ContextRecord<'a> {
    context: Cow<'a, Value>,
}

/// Tasks by judge: subject, and whether it was a repetition (people) or turned round (models).
pub(crate) type Done = BTreeMap<String, BTreeSet<(TaskKey, bool)>>;

/// Judgements of people and verdicts of models.
#[derive(Debug, Default)]
pub(crate) struct Records {
    context: Option<Value>,
    pub(crate) judgements: Vec<Judgement>,
    judged: Done,
    pub(crate) models: BTreeMap<String, ModelJudge>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) answered: Done,
}

impl Records {
    /// Takes the record of a line of the journal.
    fn replay(&mut self, study: &Study, kind: RecordKind, line: &[u8]) -> Result<(), String> {
        match kind {
            RecordKind::Context => {
                self.context = Some(parse::<ContextRecord<'_>>(line)?.context.into_owned())
            }
            RecordKind::Judgements => {
                for one in parse::<JudgementsRecord<'_>>(line)?.judgements.into_owned() {
                    check_known(study, &one.judge, &one.task.key)?;
                    if !insert(&mut self.judged, &one.judge, one.task.key, one.task.repeated) {
                        return Err(format!("a second judgement of {} on a task", one.judge));
                    }
                    self.judgements.push(one);
                }
            }
            RecordKind::ModelJudge => {
                let judge: ModelJudge = parse(line)?;
                let known = self.models.entry(judge.name.clone()).or_insert_with(|| judge.clone());
                if *known != judge {
                    return Err(format!("a second model judge {:?}", judge.name));
                }
            }
            RecordKind::Verdicts => {
                for one in parse::<VerdictsRecord<'_>>(line)?.verdicts.into_owned() {
                    check_known(study, &one.judge, &one.key)?;
                    if !insert(&mut self.answered, &one.judge, one.key, one.turned) {
                        return Err(format!("a second verdict of {} on a task", one.judge));
                    }
                    self.verdicts.push(one);
                }
            }
            RecordKind::Study | RecordKind::Item => return Err("a text after the texts".into()),
            RecordKind::Other => {}
        }
        Ok(())
    }
}

fn insert(done: &mut Done, judge: &str, key: TaskKey, again: bool) -> bool {
    match done.get_mut(judge) {
        Some(tasks) => tasks.insert((key, again)),
        None => done.entry(judge.to_owned()).or_default().insert((key, again)),
    }
}

/// The first of `new` that is done already, or that comes twice.
pub(crate) fn repeated<'a>(
    done: &Done,
    new: impl Iterator<Item = (&'a str, TaskKey, bool)>,
) -> Option<(&'a str, TaskKey)> {
    let mut own = BTreeSet::new();
    let mut taken = new.filter(|(judge, key, again)| {
        done.get(*judge).is_some_and(|tasks| tasks.contains(&(*key, *again)))
            || !own.insert((*judge, *key, *again))
    });
    taken.next().map(|(judge, key, _)| (judge, key))
}

#[derive(Debug)]
struct State {
    journal: Journal,
    records: Records,
}

/// A study on disk. Several programs may have it open: each sees what the others have added.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    study: Study,
    state: RefCell<State>,
    warnings: Vec<String>,
}

impl Store {
    /// Makes the file of a new study.
    ///
    /// # Errors
    /// A study that cannot be asked; a file that is there; the system's.
    pub fn create(path: &Path, study: Study) -> Result<Store, JudgeError> {
        Store::create_with(path, study, None)
    }

    /// [`Store::create`] with facts about the items, which judges do not see and which [`Store::context`] returns.
    ///
    /// # Errors
    /// Those of [`Store::create`].
    pub fn create_with(path: &Path, study: Study, context: Option<&Value>) -> Result<Store, JudgeError> {
        study.check()?;
        let mut journal = NewJournal::create(path, &study)?;
        if let Some(context) = context {
            journal.append(RecordKind::Context, &ContextRecord { context: Cow::Borrowed(context) })?;
        }
        journal.commit()?;
        Store::open(path)
    }

    /// Facts about the items that the study was created with.
    ///
    /// # Errors
    /// Errors of [`Store::judgements`].
    pub fn context(&self) -> Result<Option<Value>, JudgeError> {
        Ok(self.records()?.context.clone())
    }

    /// Opens the file of a study. A last line that a crash cut is left out; see [`Store::warnings`].
    ///
    /// # Errors
    /// [`JudgeError::Foreign`] for a file of something else, [`JudgeError::OldStudy`] for one of an older program,
    /// [`JudgeError::Damaged`]; a link, a FIFO or a directory; the system's.
    pub fn open(path: &Path) -> Result<Store, JudgeError> {
        let (mut journal, mut study) = Journal::open(path)?;
        let mut records = Records::default();
        let items = journal.items();
        let mut replay = |kind, line: &[u8]| match kind {
            RecordKind::Item if study.items.len() < items => {
                study.items.push(parse(line)?);
                Ok(())
            }
            _ if study.items.len() < items => {
                Err(format!("something else than the texts {} of {items}", study.items.len() + 1))
            }
            kind => records.replay(&study, kind, line),
        };
        let mut torn = journal.read(&mut replay)?;
        // Under the lock no program is writing the last line.
        if torn.is_some()
            && let Ok(_lock) = journal.lock()
        {
            torn = journal.read(&mut replay)?;
        }
        if study.items.len() < items {
            return Err(journal.damaged(format!("the end after the texts {} of {items}", study.items.len())));
        }
        let shown = path.display();
        let cut = torn.map(|torn| {
            format!(
                "{shown}: line {} was cut by a crash and is left out ({} bytes); the lines before it are whole",
                torn.line, torn.bytes
            )
        });
        let missing = (journal.missing() > 0).then(|| {
            format!("{shown}: {} records are missing, because lines were removed", journal.missing())
        });
        let warnings = cut.into_iter().chain(missing).collect();
        Ok(Store { path: path.to_owned(), study, state: RefCell::new(State { journal, records }), warnings })
    }

    /// Lines that were left out when the study was opened, a sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The study.
    pub fn study(&self) -> &Study {
        &self.study
    }

    /// All records, also those that other programs have added by now.
    pub(crate) fn records(&self) -> Result<Ref<'_, Records>, JudgeError> {
        {
            let State { journal, records } = &mut *self.state.borrow_mut();
            journal.read(&mut |kind, line| records.replay(&self.study, kind, line))?;
        }
        Ok(Ref::map(self.state.borrow(), |state| &state.records))
    }

    /// Adds a record if `check` permits it after all that was added before.
    pub(crate) fn append<T: Serialize>(
        &mut self,
        kind: RecordKind,
        record: &T,
        check: impl FnOnce(&Study, &Records) -> Result<(), JudgeError>,
    ) -> Result<(), JudgeError> {
        let State { journal, records } = self.state.get_mut();
        let lock = journal.lock()?;
        journal.read(&mut |kind, line| records.replay(&self.study, kind, line))?;
        check(&self.study, records)?;
        journal.append(&lock, kind, record)?;
        // Memory holds what the file holds.
        journal.read(&mut |kind, line| records.replay(&self.study, kind, line))?;
        Ok(())
    }

    /// All judgements, the oldest first.
    ///
    /// # Errors
    /// [`JudgeError::Damaged`] for a line that another program has added; the system's.
    pub fn judgements(&self) -> Result<Vec<Judgement>, JudgeError> {
        Ok(self.records()?.judgements.clone())
    }

    /// Errors if the study does not have the texts of a task.
    pub(crate) fn check_known(&self, judge: &str, key: &TaskKey) -> Result<(), JudgeError> {
        check_known(&self.study, judge, key)
            .map_err(|what| JudgeError::Judgement(format!("{}: {what}", self.path.display())))
    }

    /// The next task of a judge, and how many the judge has done.
    ///
    /// # Errors
    /// A name that is none; errors of [`Store::judgements`].
    pub fn next(&self, judge: &str) -> Result<(Option<Task>, usize), JudgeError> {
        check_name(judge)?;
        let records = self.records()?;
        let judged: Vec<Judged<'_>> = records.judgements.iter().map(Judged::from).collect();
        let done = judged.iter().filter(|one| one.judge == judge).count();
        Ok((next_task(&self.study, judge, &judged), done))
    }

    /// Adds judgements, all or none. They are on the disk when this returns.
    ///
    /// # Errors
    /// [`JudgeError::Judgement`] for a choice that the question does not have, a task that this judge has judged or that is none; a name
    /// that is none; the system's, and another program that has the file locked for 5 s.
    pub fn add(&mut self, judgements: &[Judgement]) -> Result<(), JudgeError> {
        for judgement in judgements {
            check_name(&judgement.judge)?;
            self.check_choice(judgement.choice)?;
            self.check_known(&judgement.judge, &judgement.task.key)?;
        }
        if judgements.is_empty() {
            return Ok(());
        }
        let record = JudgementsRecord { judgements: judgements.into() };
        self.append(RecordKind::Judgements, &record, |study, records| {
            let new = judgements.iter().map(|one| (one.judge.as_str(), one.task.key, one.task.repeated));
            match repeated(&records.judged, new) {
                None => Ok(()),
                Some((judge, key)) => Err(JudgeError::Judgement(format!(
                    "{judge} has already judged this: item {}",
                    study.items[key.item].id
                ))),
            }
        })
    }

    fn check_choice(&self, choice: f64) -> Result<(), JudgeError> {
        let wanted = match &self.study.question {
            Question::Pairs { .. } if ![0.0, 0.5, 1.0].contains(&choice) => "0, 0.5 or 1".to_owned(),
            Question::Scale { labels, .. }
                if choice.fract() != 0.0 || !(1.0..=labels.len() as f64).contains(&choice) =>
            {
                format!("a whole number from 1 to {}", labels.len())
            }
            _ => return Ok(()),
        };
        Err(JudgeError::Judgement(format!("wanted the choice {wanted}, found {choice}")))
    }
}

/// Errors if a study does not have the texts of a task.
pub(crate) fn check_known(study: &Study, judge: &str, key: &TaskKey) -> Result<(), String> {
    let pairs = matches!(study.question, Question::Pairs { .. });
    let texts = study.items.get(key.item).map_or(0, |item| item.texts.len());
    match key.second.is_some() == pairs && key.second.unwrap_or(key.first).max(key.first) < texts {
        true => Ok(()),
        false => Err(format!("a judgement of {judge} is about a text that the study does not have")),
    }
}
pub(crate) fn check_name(judge: &str) -> Result<(), JudgeError> {
    let fine =
        !judge.trim().is_empty() && judge.len() <= LONGEST_NAME && !judge.chars().any(char::is_control);
    match fine {
        true => Ok(()),
        false => Err(JudgeError::Judgement(format!(
            "wanted the name of a judge, 1 to {LONGEST_NAME} bytes on one line, found {judge:?}"
        ))),
    }
}

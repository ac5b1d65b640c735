//! A study and its judgements in one SQLite file.
//!
//! ```text
//! study(key, value)                                             question (JSON), judgements, seed
//! item(place, id, prompt)
//! text(item, place, system, text, log_probability)
//! turn(item, side, text, place, content)                        dialogues: side is user, reference, or system (then text says whose)
//! judgement(id, judge, item, first, second, turned, repeated, choice, seconds, at)
//! model_judge(name, model, method, template)                    judges that are models; template: its TOML
//! verdict(id, judge, item, first, second, turned, choice, scores, answer, at)     choice: null where none could be read
//! ```
//! `judgement` holds what people say and `verdict` what models say: nothing of the one is ever read as the other.
//! `choice` of a comparison: 1 if the first text is better, 0 if the second, 0.5 for neither, whichever stood left; of a rating: the point of the
//! scale, from 1. `seconds`: how long the judge looked at it. `at`: seconds since 1970, UTC. Every judgement is on the disk before its
//! page answers.

use crate::JudgeError;
use crate::assign::{Judged, Task, TaskKey, next_task};
use crate::study::{Item, Question, Study, SystemText};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `PRAGMA application_id` of a study of judgements: "BsmJ".
const APPLICATION: u32 = 0x4273_6d4a;
/// `PRAGMA user_version`. It grows only when an older program could not read the file.
const VERSION: u32 = 1;
/// Longest name of a judge, bytes.
const LONGEST_NAME: usize = 100;
/// Wait for another program that has the file locked.
const BUSY: Duration = Duration::from_secs(5);

const SCHEMA: &str = "
CREATE TABLE study(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE item(place INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, prompt TEXT NOT NULL);
CREATE TABLE text(
  item INTEGER NOT NULL REFERENCES item(place), place INTEGER NOT NULL, system TEXT NOT NULL, text TEXT NOT NULL,
  log_probability REAL, PRIMARY KEY(item, place)) WITHOUT ROWID;
CREATE TABLE turn(
  item INTEGER NOT NULL REFERENCES item(place), side TEXT NOT NULL, text INTEGER NOT NULL, place INTEGER NOT NULL,
  content TEXT NOT NULL, PRIMARY KEY(item, side, text, place)) WITHOUT ROWID;
CREATE TABLE judgement(
  id INTEGER PRIMARY KEY, judge TEXT NOT NULL, item INTEGER NOT NULL, first INTEGER NOT NULL, second INTEGER,
  turned INTEGER NOT NULL, repeated INTEGER NOT NULL, choice REAL NOT NULL, seconds REAL, at INTEGER NOT NULL);
CREATE UNIQUE INDEX once ON judgement(judge, item, first, ifnull(second, -1), repeated);
";

/// A judgement.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Name of the judge.
    pub judge: String,
    /// Subject of the judgement and the order of its texts.
    pub task: Task,
    /// 1 if the first text is better, 0 if the second, 0.5 for neither; or the point of the scale.
    pub choice: f64,
    /// How long the judge looked, where that is known.
    pub seconds: Option<f64>,
    /// Seconds since 1970, UTC.
    pub at: i64,
}

/// A study on disk.
#[derive(Debug)]
pub struct Store {
    pub(crate) path: PathBuf,
    pub(crate) connection: Connection,
    study: Study,
}

impl Store {
    /// Makes the file of a new study.
    ///
    /// # Errors
    /// A study that cannot be asked; a file that is there; what SQLite says.
    pub fn create(path: &Path, study: Study) -> Result<Store, JudgeError> {
        study.check()?;
        let failed = |cause| JudgeError::Database { path: path.to_owned(), cause };
        // Made in memory, so that the file becomes visible whole.
        let mut memory = Connection::open_in_memory().map_err(failed)?;
        fill(&mut memory, &study).map_err(failed)?;
        let mut file = bessemer_durable::NewFile::create(path)?;
        file.write_all(&memory.serialize("main").map_err(failed)?)?;
        file.commit_new()?;
        Store::open(path)
    }

    /// Opens the file of a study.
    ///
    /// # Errors
    /// No such file, a file of something else, what SQLite says.
    pub fn open(path: &Path) -> Result<Store, JudgeError> {
        // SQLite would make one.
        bessemer_durable::open_regular(path)
            .map_err(|e| io::Error::new(e.kind(), format!("cannot open {}: {e}", path.display())))?;
        let failed = |cause| JudgeError::Database { path: path.to_owned(), cause };
        let foreign = |found: String| JudgeError::Foreign { path: path.to_owned(), wanted: VERSION, found };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        connection.busy_timeout(BUSY).map_err(failed)?;
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
        let found = pragma("application_id").and_then(|id| Ok((id, pragma("user_version")?)));
        match found {
            Ok((APPLICATION, VERSION)) => {}
            Ok((APPLICATION, version)) => return Err(foreign(format!("version {version}"))),
            Ok(_) => return Err(foreign("a database of another program".into())),
            Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
                return Err(foreign("no database".into()));
            }
            Err(e) => return Err(failed(e)),
        }
        connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        let study = read(&connection)
            .map_err(failed)?
            .ok_or_else(|| foreign("a study without its question".into()))?;
        Ok(Store { path: path.to_owned(), connection, study })
    }

    /// The study.
    pub fn study(&self) -> &Study {
        &self.study
    }

    pub(crate) fn failed(&self, cause: rusqlite::Error) -> JudgeError {
        JudgeError::Database { path: self.path.clone(), cause }
    }

    /// All judgements, the oldest first.
    ///
    /// # Errors
    /// SQLite's message.
    pub fn judgements(&self) -> Result<Vec<Judgement>, JudgeError> {
        let all = || {
            let mut rows = self.connection.prepare(
                "SELECT judge, item, first, second, turned, repeated, choice, seconds, at FROM judgement ORDER BY id",
            )?;
            let rows = rows.query_map([], |row| {
                let key = TaskKey { item: row.get(1)?, first: row.get(2)?, second: row.get(3)? };
                Ok(Judgement {
                    judge: row.get(0)?,
                    task: Task { key, turned: row.get(4)?, repeated: row.get(5)? },
                    choice: row.get(6)?,
                    seconds: row.get(7)?,
                    at: row.get(8)?,
                })
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        };
        let all = all().map_err(|e| self.failed(e))?;
        match all.iter().find(|one| !self.knows(&one.task.key)) {
            Some(one) => Err(self.about_nothing(&one.judge)),
            None => Ok(all),
        }
    }

    /// Whether the study has the texts of a task. A file that others have edited must not lead beyond them.
    pub(crate) fn knows(&self, key: &TaskKey) -> bool {
        let pairs = matches!(self.study.question, Question::Pairs { .. });
        let texts = self.study.items.get(key.item).map_or(0, |item| item.texts.len());
        key.second.is_some() == pairs && key.second.unwrap_or(key.first).max(key.first) < texts
    }

    pub(crate) fn about_nothing(&self, judge: &str) -> JudgeError {
        JudgeError::Judgement(format!(
            "{}: a judgement of {judge} is about a text that the study does not have",
            self.path.display()
        ))
    }

    /// The next task of a judge, and how many the judge has done.
    ///
    /// # Errors
    /// A name that is none; what SQLite says.
    pub fn next(&self, judge: &str) -> Result<(Option<Task>, usize), JudgeError> {
        check_name(judge)?;
        let all = self.judgements()?;
        let judged: Vec<Judged<'_>> = all.iter().map(Judged::from).collect();
        let done = judged.iter().filter(|one| one.judge == judge).count();
        Ok((next_task(&self.study, judge, &judged), done))
    }

    /// Adds judgements, all or none.
    ///
    /// # Errors
    /// [`JudgeError::Judgement`] for a choice that the question does not have, or a task that this judge has judged; a name that is none;
    /// what SQLite says.
    pub fn add(&mut self, judgements: &[Judgement]) -> Result<(), JudgeError> {
        for judgement in judgements {
            check_name(&judgement.judge)?;
            self.check_choice(judgement.choice)?;
        }
        let failed = |cause| JudgeError::Database { path: self.path.clone(), cause };
        let all = self.connection.transaction().map_err(failed)?;
        for one in judgements {
            match insert(&all, one) {
                Ok(_) => {}
                Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) => {
                    let item = &self.study.items[one.task.key.item].id;
                    return Err(JudgeError::Judgement(format!(
                        "{} has judged this already: item {item}",
                        one.judge
                    )));
                }
                Err(e) => return Err(failed(e)),
            }
        }
        all.commit().map_err(failed)
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

fn insert(connection: &Connection, one: &Judgement) -> rusqlite::Result<usize> {
    let Task { key, turned, repeated } = one.task;
    connection.execute(
        "INSERT INTO judgement(judge, item, first, second, turned, repeated, choice, seconds, at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            one.judge,
            key.item,
            key.first,
            key.second,
            turned,
            repeated,
            one.choice,
            one.seconds,
            one.at
        ],
    )
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

/// Writes a study into an empty database.
fn fill(connection: &mut Connection, study: &Study) -> rusqlite::Result<()> {
    let all = connection.transaction()?;
    all.execute_batch(SCHEMA)?;
    let question = serde_json::to_string(&study.question)
        .map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))?;
    for (key, value) in [
        ("question", question),
        ("judgements", study.judgements.to_string()),
        ("seed", study.seed.to_string()),
    ] {
        all.execute("INSERT INTO study VALUES (?1, ?2)", params![key, value])?;
    }
    for (place, item) in study.items.iter().enumerate() {
        all.execute("INSERT INTO item VALUES (?1, ?2, ?3)", params![place, item.id, item.prompt])?;
        for (number, text) in item.texts.iter().enumerate() {
            all.execute(
                "INSERT INTO text VALUES (?1, ?2, ?3, ?4, ?5)",
                params![place, number, text.system, text.text, text.log_probability],
            )?;
            fill_turns(&all, place, "system", number, &text.turns)?;
        }
        fill_turns(&all, place, "user", 0, &item.turns)?;
        fill_turns(&all, place, "reference", 0, &item.references)?;
    }
    all.pragma_update(None, "application_id", APPLICATION)?;
    all.pragma_update(None, "user_version", VERSION)?;
    all.commit()
}

fn fill_turns(
    connection: &Connection,
    item: usize,
    side: &str,
    text: usize,
    turns: &[String],
) -> rusqlite::Result<()> {
    for (place, content) in turns.iter().enumerate() {
        connection.execute(
            "INSERT INTO turn VALUES (?1, ?2, ?3, ?4, ?5)",
            params![item, side, text, place, content],
        )?;
    }
    Ok(())
}

/// Whether a database has a table: files of older programs lack those that came later.
pub(crate) fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let found = connection.query_row(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1",
        [name],
        |_| Ok(()),
    );
    Ok(found.optional()?.is_some())
}

/// Adds the turns of dialogues to the items. False if one belongs to no text.
fn read_turns(connection: &Connection, items: &mut [Item]) -> rusqlite::Result<bool> {
    if !has_table(connection, "turn")? {
        return Ok(true);
    }
    let mut turns =
        connection.prepare("SELECT item, side, text, content FROM turn ORDER BY item, side, text, place")?;
    let mut rows = turns.query([])?;
    while let Some(row) = rows.next()? {
        let (side, text): (String, usize) = (row.get(1)?, row.get(2)?);
        let Some(item) = items.get_mut(row.get::<_, usize>(0)?) else { return Ok(false) };
        let list = match side.as_str() {
            "user" => Some(&mut item.turns),
            "reference" => Some(&mut item.references),
            _ => item.texts.get_mut(text).map(|text| &mut text.turns),
        };
        match list {
            Some(list) => list.push(row.get(3)?),
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// The study in a database; none if what is asked is not there.
fn read(connection: &Connection) -> rusqlite::Result<Option<Study>> {
    let value = |key: &str| {
        let found = connection
            .query_row("SELECT value FROM study WHERE key = ?1", [key], |row| row.get::<_, String>(0));
        found.optional()
    };
    let question = value("question")?.and_then(|text| serde_json::from_str(&text).ok());
    let numbers =
        (value("judgements")?.and_then(|n| n.parse().ok()), value("seed")?.and_then(|n| n.parse().ok()));
    let (Some(question), (Some(judgements), Some(seed))) = (question, numbers) else { return Ok(None) };
    let mut items: Vec<Item> = connection
        .prepare("SELECT id, prompt FROM item ORDER BY place")?
        .query_map([], |row| Ok(Item { id: row.get(0)?, prompt: row.get(1)?, ..Item::default() }))?
        .collect::<rusqlite::Result<_>>()?;
    let mut texts =
        connection.prepare("SELECT item, system, text, log_probability FROM text ORDER BY item, place")?;
    let texts = texts.query_map([], |row| {
        let text = SystemText {
            system: row.get(1)?,
            text: row.get(2)?,
            log_probability: row.get(3)?,
            turns: Vec::new(),
        };
        Ok((row.get::<_, usize>(0)?, text))
    })?;
    for text in texts {
        let (item, text) = text?;
        match items.get_mut(item) {
            Some(item) => item.texts.push(text),
            None => return Ok(None),
        }
    }
    Ok(read_turns(connection, &mut items)?.then_some(Study { question, judgements, seed, items }))
}

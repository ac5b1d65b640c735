//! Studies of older programs, SQLite databases of version 1, written as version 2.
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
//! The tables `turn`, `model_judge` and `verdict` came later and may be missing.

use crate::JudgeError;
use crate::assign::{Task, TaskKey};
use crate::journal::{APPLICATION, NewJournal, RecordKind};
use crate::store::{Judgement, JudgementsRecord, Store, VerdictsRecord, check_known};
use crate::study::{Item, Study, SystemText};
use crate::verdicts::{ModelJudge, Verdict};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};
use std::io;
use std::path::Path;
use std::time::Duration;

/// `PRAGMA user_version` of such a study.
const VERSION: u32 = 1;
/// Wait for another program that has the file locked.
const BUSY: Duration = Duration::from_secs(5);

/// Writes the study of an older program, a SQLite database, into a new file, with all its judgements and verdicts. The old file stays.
///
/// # Errors
/// A file of something else; a judgement about a text that the study does not have; a new file that is there; SQLite's, the system's.
pub fn migrate(old: &Path, new: &Path) -> Result<Store, JudgeError> {
    // SQLite would make a missing file.
    bessemer_durable::open_regular(old)
        .map_err(|e| io::Error::new(e.kind(), format!("cannot open {}: {e}", old.display())))?;
    let failed = |cause| JudgeError::Database { path: old.to_owned(), cause };
    let foreign = |found: String| JudgeError::Foreign { path: old.to_owned(), wanted: VERSION, found };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(old, flags).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
    match pragma("application_id").and_then(|id| Ok((id, pragma("user_version")?))) {
        Ok((APPLICATION, VERSION)) => {}
        Ok((APPLICATION, version)) => return Err(foreign(format!("version {version}"))),
        Ok(_) => return Err(foreign("a database of another program".into())),
        Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            return Err(foreign("no database".into()));
        }
        Err(e) => return Err(failed(e)),
    }
    let study = read_study(&connection)
        .map_err(failed)?
        .ok_or_else(|| foreign("a study without its question".into()))?;
    let known = |judge: &str, key: &TaskKey| {
        check_known(&study, judge, key)
            .map_err(|what| JudgeError::Judgement(format!("{}: {what}", old.display())))
    };
    let mut journal = NewJournal::create(new, &study)?;
    for judge in read_model_judges(&connection).map_err(failed)? {
        journal.append(RecordKind::ModelJudge, &judge)?;
    }
    for one in read_judgements(&connection).map_err(failed)? {
        known(&one.judge, &one.task.key)?;
        journal.append(RecordKind::Judgements, &JudgementsRecord { judgements: vec![one].into() })?;
    }
    for one in read_verdicts(&connection).map_err(failed)? {
        known(&one.judge, &one.key)?;
        journal.append(RecordKind::Verdicts, &VerdictsRecord { verdicts: vec![one].into() })?;
    }
    journal.commit()?;
    Store::open(new)
}

/// Rows of a query, in order.
fn rows<T>(
    connection: &Connection,
    query: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(query)?.query_map([], read)?.collect()
}

fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let found = connection.query_row(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1",
        [name],
        |_| Ok(()),
    );
    Ok(found.optional()?.is_some())
}

fn read_judgements(connection: &Connection) -> rusqlite::Result<Vec<Judgement>> {
    let query =
        "SELECT judge, item, first, second, turned, repeated, choice, seconds, at FROM judgement ORDER BY id";
    rows(connection, query, |row| {
        let key = TaskKey { item: row.get(1)?, first: row.get(2)?, second: row.get(3)? };
        Ok(Judgement {
            judge: row.get(0)?,
            task: Task { key, turned: row.get(4)?, repeated: row.get(5)? },
            choice: row.get(6)?,
            seconds: row.get(7)?,
            at: row.get(8)?,
        })
    })
}

fn read_model_judges(connection: &Connection) -> rusqlite::Result<Vec<ModelJudge>> {
    if !has_table(connection, "model_judge")? {
        return Ok(Vec::new());
    }
    rows(connection, "SELECT name, model, method, template FROM model_judge ORDER BY name", |row| {
        Ok(ModelJudge { name: row.get(0)?, model: row.get(1)?, method: row.get(2)?, template: row.get(3)? })
    })
}

fn read_verdicts(connection: &Connection) -> rusqlite::Result<Vec<Verdict>> {
    if !has_table(connection, "verdict")? {
        return Ok(Vec::new());
    }
    let query =
        "SELECT judge, item, first, second, turned, choice, scores, answer, at FROM verdict ORDER BY id";
    rows(connection, query, |row| {
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
    })
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
fn read_study(connection: &Connection) -> rusqlite::Result<Option<Study>> {
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

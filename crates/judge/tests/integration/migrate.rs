//! Studies of older programs, SQLite databases, as this program writes them.

use crate::models::{Model, asked, endpoint};
use bessemer_judge::model::Method;
use bessemer_judge::{Judgement, ModelJudge, Question, Store, Task, TaskKey, Verdict, migrate};
use rusqlite::Connection;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// As version 1 was written at first, with a judge on a scale and on both texts.
const FIRST: &str = r#"
CREATE TABLE study(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE item(place INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, prompt TEXT NOT NULL);
CREATE TABLE text(
  item INTEGER NOT NULL REFERENCES item(place), place INTEGER NOT NULL, system TEXT NOT NULL, text TEXT NOT NULL,
  log_probability REAL, PRIMARY KEY(item, place)) WITHOUT ROWID;
CREATE TABLE judgement(
  id INTEGER PRIMARY KEY, judge TEXT NOT NULL, item INTEGER NOT NULL, first INTEGER NOT NULL, second INTEGER,
  turned INTEGER NOT NULL, repeated INTEGER NOT NULL, choice REAL NOT NULL, seconds REAL, at INTEGER NOT NULL);
CREATE UNIQUE INDEX once ON judgement(judge, item, first, ifnull(second, -1), repeated);
INSERT INTO study VALUES ('question', '{"kind":"pairs","text":"Which?"}'), ('judgements', '2'), ('seed', '18446744073709551615');
INSERT INTO item VALUES (0, 'one', 'p'), (1, 'two', '');
INSERT INTO text VALUES (0, 0, 'a', 'The number is 0', -1.5), (0, 1, 'b', 'numba 0', NULL), (1, 0, 'a', 'The number is 1', NULL), (1, 1, 'b', 'numba 1', NULL);
INSERT INTO judgement VALUES (1, 'Ann', 1, 0, 1, 1, 0, 0.5, 2.25, 7), (2, 'Ann', 0, 0, 1, 0, 1, 1.0, NULL, 8);
PRAGMA application_id = 1114860874;
PRAGMA user_version = 1;
"#;

/// Tables that came later.
const LATER: &str = r#"
CREATE TABLE turn(
  item INTEGER NOT NULL REFERENCES item(place), side TEXT NOT NULL, text INTEGER NOT NULL, place INTEGER NOT NULL,
  content TEXT NOT NULL, PRIMARY KEY(item, side, text, place)) WITHOUT ROWID;
CREATE TABLE model_judge(
  name TEXT PRIMARY KEY, model TEXT NOT NULL, method TEXT NOT NULL, template TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE verdict(
  id INTEGER PRIMARY KEY, judge TEXT NOT NULL REFERENCES model_judge(name), item INTEGER NOT NULL, first INTEGER NOT NULL,
  second INTEGER, turned INTEGER NOT NULL, choice REAL, scores TEXT, answer TEXT, at INTEGER NOT NULL);
INSERT INTO turn VALUES (1, 'user', 0, 0, 'p?'), (1, 'user', 0, 1, 'q?'), (1, 'reference', 0, 0, 'r'), (1, 'system', 1, 0, 's'), (1, 'system', 1, 1, 't');
INSERT INTO model_judge VALUES ('m', 'x', 'likelihood', 'template');
INSERT INTO verdict VALUES (1, 'm', 0, 0, 1, 1, NULL, '[-0.1,-2.0]', NULL, 9), (2, 'm', 0, 0, 1, 0, 1.0, NULL, 'A', 9);
"#;

fn database(path: &Path, statements: &[&str]) {
    Connection::open(path).unwrap().execute_batch(&statements.concat()).unwrap();
}

#[test]
fn a_study_of_an_older_program_takes_verdicts() {
    let place = TempDir::new().unwrap();
    let (old, new) = (place.path().join("old.db"), place.path().join("new.jsonl"));
    database(&old, &[FIRST]);
    let before = fs::read(&old).unwrap();
    let refused = Store::open(&old).unwrap_err().to_string();
    assert!(refused.ends_with(&format!(": bessemer judge migrate {} NEW.jsonl", old.display())), "{refused}");
    let mut store = migrate(&old, &new).unwrap();
    assert_eq!(store.study().question, Question::Pairs { text: "Which?".into() });
    assert_eq!((store.study().seed, store.study().judgements), (u64::MAX, 2));
    assert_eq!(store.study().items[0].texts[0].log_probability, Some(-1.5));
    let key = |item| TaskKey { item, first: 0, second: Some(1) };
    let judgement = |item, turned, choice, seconds, at| Judgement {
        judge: "Ann".into(),
        task: Task { key: key(item), turned, repeated: !turned },
        choice,
        seconds,
        at,
    };
    let judgements = [judgement(1, true, 0.5, Some(2.25), 7), judgement(0, false, 1.0, None, 8)];
    assert_eq!(store.judgements().unwrap(), judgements);
    assert!(store.model_judges().unwrap().is_empty() && store.verdicts().unwrap().is_empty());
    let (served, _) = Model::start(false);
    let how = ("pair-brief", Method::Likelihood);
    assert_eq!(asked(&mut store, "m", how, endpoint(&served, false)), (4, 0, 0));
    // The old file stays, and so does a new one that is there.
    assert_eq!(fs::read(&old).unwrap(), before);
    assert!(migrate(&old, &new).unwrap_err().to_string().contains("exists"));
    assert_eq!(Store::open(&new).unwrap().verdicts().unwrap().len(), 4);
}

#[test]
fn dialogues_and_verdicts_of_an_older_program_come_over() {
    let place = TempDir::new().unwrap();
    let (old, new) = (place.path().join("old.db"), place.path().join("new.jsonl"));
    database(&old, &[FIRST, LATER]);
    let store = migrate(&old, &new).unwrap();
    let item = &store.study().items[1];
    assert_eq!((&item.turns[..], &item.references[..]), (&["p?".into(), "q?".into()][..], &["r".into()][..]));
    assert_eq!((item.texts[0].turns.len(), &item.texts[1].turns[..]), (0, &["s".into(), "t".into()][..]));
    let judge = ModelJudge {
        name: "m".into(),
        model: "x".into(),
        method: "likelihood".into(),
        template: "template".into(),
    };
    assert_eq!(store.model_judges().unwrap(), [judge]);
    let key = TaskKey { item: 0, first: 0, second: Some(1) };
    let first = Verdict {
        judge: "m".into(),
        key,
        turned: true,
        choice: None,
        scores: Some(vec![-0.1, -2.0]),
        answer: None,
        at: 9,
    };
    let second =
        Verdict { turned: false, choice: Some(1.0), scores: None, answer: Some("A".into()), ..first.clone() };
    assert_eq!(store.verdicts().unwrap(), [first, second]);
}

#[test]
fn the_study_that_0_1_0_wrote_is_migrated() {
    let place = TempDir::new().unwrap();
    let (old, new) = (place.path().join("study.db"), place.path().join("study.jsonl"));
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/0.1.0/study.db");
    fs::copy(fixture, &old).unwrap();
    let store = migrate(&old, &new).unwrap();
    let judgements = store.judgements().unwrap();
    assert_eq!((store.study().items.len(), judgements.len()), (4, 4));
    // "Well" is better than "badly".
    assert!(judgements.iter().all(|one| one.judge == "Bob" && one.choice == 1.0), "{judgements:?}");
}

#[test]
fn what_is_no_older_study_is_refused_and_leaves_nothing() {
    let place = TempDir::new().unwrap();
    let new = place.path().join("new.jsonl");
    let cases: [(&str, &[&str], &str); 4] = [
        ("other", &["CREATE TABLE x(y);"], "a database of another program"),
        ("later", &[FIRST, "PRAGMA user_version = 2;"], "found version 2"),
        ("empty", &[FIRST, "DELETE FROM study;"], "a study without its question"),
        ("wrong", &[FIRST, "UPDATE judgement SET item = 9;"], "a text that the study does not have"),
    ];
    for (name, statements, part) in cases {
        let old = place.path().join(name);
        database(&old, statements);
        let error = migrate(&old, &new).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(old.to_str().unwrap()), "{error}");
    }
    let text = place.path().join("text");
    fs::write(&text, [b'x'; 200]).unwrap();
    assert!(migrate(&text, &new).unwrap_err().to_string().contains("no database"));
    assert!(!new.exists() && fs::read_dir(place.path()).unwrap().count() == 5);
}

//! Texts of a study of judgements, and sheets that judges have filled in: the first byte says which.

use bessemer_judge::{Question, Store, Study, exchange};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    let question = Question::Pairs { text: "Which is better?".into() };
    if *kind == 0 {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        match Study::read_items("fuzz.jsonl", text) {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(items) => drop(Study { question, judgements: 1, seed: 0, items }.check()),
        }
        return;
    }
    let items = Study::read_items(
        "two.jsonl",
        "{\"texts\": {\"a\": \"x\", \"b\": \"y\"}}\n{\"texts\": {\"a\": \"u\", \"b\": \"v\"}}\n",
    )
    .expect("two items");
    let path = crate::folder().join("judged.jsonl");
    let _ = std::fs::remove_file(&path);
    let study = Study { question, judgements: 1, seed: 0, items };
    let mut store = Store::create(&path, study).expect("a new study");
    match exchange::read_sheet(&mut store, "Ann", 0, bytes) {
        Err(_) => assert!(store.judgements().expect("a whole file").is_empty(), "all rows or none"),
        Ok((added, _)) => assert_eq!(store.judgements().expect("a whole file").len(), added),
    }
}

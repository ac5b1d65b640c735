//! The file of a study of judgements.

use bessemer_judge::Store;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let path = crate::folder().join("study.jsonl");
    std::fs::write(&path, data).expect("a folder of its own");
    match Store::open(&path) {
        Err(error) => assert!(error.to_string().contains("study.jsonl"), "{error}"),
        Ok(store) => {
            let all = (store.judgements(), store.model_judges(), store.verdicts());
            assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok());
        }
    }
}

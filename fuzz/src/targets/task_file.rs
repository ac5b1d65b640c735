//! Task files of the lm-evaluation-harness with templates in them, over two documents.

use bessemer_tasks::Catalog;

const DOCUMENTS: &[u8] =
    b"{\"question\": \"2 + 2\", \"choices\": [\"3\", \"4\"], \"label\": 1, \"answer\": \"4\"}\n\
                           {\"question\": \"\", \"choices\": [], \"label\": \"x\", \"answer\": null}\n";

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    crate::file("documents.jsonl", DOCUMENTS);
    let path = crate::file("task.yaml", text.as_bytes());
    match Catalog::default().load(&[path.display().to_string()]) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(selection) => {
            for task in &selection.tasks {
                if let Err(error) = task.requests(Some(2)) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}

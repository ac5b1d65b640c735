//! Predicates over document columns.

use bessemer_rules::{Predicate, Row, Value};

struct Document;

impl Row for Document {
    fn value(&self, column: &str) -> Option<Value<'_>> {
        match column.len() % 4 {
            0 => Some(Value::Null),
            1 => Some(Value::Bool(true)),
            2 => Some(Value::Number(0.5)),
            _ => Some(Value::Text("en".into())),
        }
    }

    fn names(&self) -> Vec<&str> {
        vec!["a", "bc", "text"]
    }
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(predicate) = Predicate::parse(text) {
        let _ = predicate.check_columns(["a", "bc", "text"]);
        predicate.evaluate(&Document);
        predicate.holds(&Document);
    }
}

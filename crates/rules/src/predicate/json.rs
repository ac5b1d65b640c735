//! Columns of documents that are JSON objects.

use super::Value;
use serde_json::{Map, Value as Json};
use std::borrow::Cow;

/// Prefix of the columns that name metadata of the input.
pub const METADATA_PREFIX: &str = "meta.";

/// The field of an object that a column names: the field of just that name, else the one that the name's dots reach in nested
/// objects. `meta.x` also names the field `x` where the object has no such field in `meta`.
pub fn json_field<'j>(object: &'j Map<String, Json>, column: &str) -> Option<&'j Json> {
    let reached = |name: &str| {
        object.get(name).or_else(|| {
            let mut parts = name.split('.');
            let first = object.get(parts.next()?)?;
            parts.try_fold(first, |inner, part| inner.get(part))
        })
    };
    reached(column).or_else(|| reached(column.strip_prefix(METADATA_PREFIX)?))
}

/// A field as a value: null for lists and objects.
pub fn json_value(field: &Json) -> Value<'_> {
    match field {
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(value) => value.as_f64().map_or(Value::Null, Value::Number),
        Json::String(text) => Value::Text(Cow::Borrowed(text)),
        Json::Null | Json::Array(_) | Json::Object(_) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_names_the_nearest_field() {
        let object = serde_json::json!({
            "lang": "en", "a.b": 1, "a": {"b": 2, "c": {"d": true}}, "meta": {"score": 0.5}, "list": [1],
        });
        let Json::Object(object) = object else { return };
        let value = |column: &str| json_field(&object, column).map(json_value);
        assert_eq!(value("lang"), Some(Value::Text("en".into())));
        assert_eq!(value("a.b"), Some(Value::Number(1.0)));
        assert_eq!(value("a.c.d"), Some(Value::Bool(true)));
        assert_eq!(value("meta.score"), Some(Value::Number(0.5)));
        assert_eq!(value("meta.lang"), Some(Value::Text("en".into())));
        assert_eq!(value("meta.a.c.d"), Some(Value::Bool(true)));
        assert_eq!(value("list"), Some(Value::Null));
        assert_eq!((value("score"), value("meta.no"), value("lang.x")), (None, None, None));
    }
}

//! Fields of a request's JSON object, with errors that name the field, what was wanted and what was found.

use crate::error::ApiError;
use serde_json::{Map, Value};

/// Most characters of a value that an error repeats.
const SHOWN: usize = 60;

/// A JSON object. A field that is null counts as absent, as with OpenAI's interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a Map<String, Value>);

/// A value as an error shows it.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn wrong(name: &str, wanted: &str, found: &Value) -> ApiError {
    ApiError::field(name, format!("wanted {wanted}, found {}", shown(found)))
}

impl<'a> Fields<'a> {
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    /// A number, which its user checks.
    pub(crate) fn number(&self, name: &str, default: f64) -> Result<f64, ApiError> {
        self.get(name).map_or(Ok(default), |v| v.as_f64().ok_or_else(|| wrong(name, "a number", v)))
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn integer(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_u64().filter(|n| (least..=most).contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(wrong(name, &format!("a whole number from {least} to {most}"), value)),
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        self.get(name).map_or(Ok(false), |v| v.as_bool().ok_or_else(|| wrong(name, "true or false", v)))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.get(name).map(|v| v.as_str().ok_or_else(|| wrong(name, "a string", v))).transpose()
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        let object = |v: &'a Value| v.as_object().map(Fields).ok_or_else(|| wrong(name, "an object", v));
        self.get(name).map(object).transpose()
    }

    /// A string, or a list of strings.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, ApiError> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(list)) => {
                let text = |v: &Value| v.as_str().map(str::to_owned).ok_or_else(|| wrong(name, "strings", v));
                list.iter().map(text).collect()
            }
            Some(other) => Err(wrong(name, "a string or a list of strings", other)),
        }
    }

    /// Refuses fields that would change the answer and that this server does not know how to obey, unless they have a
    /// value that changes nothing.
    pub(crate) fn refuse(&self, neutral: &[(&str, Value)]) -> Result<(), ApiError> {
        for (name, harmless) in neutral {
            let harmless =
                |v: &Value| v == harmless || v.as_f64().is_some_and(|v| Some(v) == harmless.as_f64());
            let empty = |v: &Value| v.as_array().is_some_and(Vec::is_empty);
            if let Some(value) = self.get(name).filter(|v| !harmless(v) && !empty(v)) {
                let message =
                    format!("this server does not support it (found {}); leave it out", shown(value));
                return Err(ApiError::field(name, message));
            }
        }
        Ok(())
    }
}

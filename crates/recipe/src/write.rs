//! A resolved config as TOML: complete, in the order of declaration, each key with its documentation.

use crate::check::join;
use crate::error::RecipeError;
use crate::load::{Loaded, to_json};
use crate::schema::{self, View};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use std::path::Path;

/// Writes a config as TOML with its documentation as comments. Reading the text back gives an equal value.
///
/// # Errors
/// [`RecipeError::Unwritable`] if the value has no TOML form (a key that is not a string).
pub fn to_toml<T: Serialize + JsonSchema>(value: &T) -> Result<String, RecipeError> {
    Ok(write(&to_json(value)?, &schema::json_schema::<T>()))
}

impl<T> Loaded<T> {
    /// The resolved recipe as TOML, with documentation.
    pub fn to_toml(&self) -> String {
        write(&self.resolved, &self.schema)
    }

    /// Saves [`Loaded::to_toml`] atomically: a reader sees the old file or the new one, never a part.
    ///
    /// # Errors
    /// [`RecipeError::Write`]; the temporary file is removed then.
    pub fn save(&self, path: &Path) -> Result<(), RecipeError> {
        bessemer_durable::write(path, self.to_toml().as_bytes())
            .map_err(|source| RecipeError::Write { path: path.to_path_buf(), source })
    }
}

fn write(json: &Json, schema: &Json) -> String {
    let mut text = String::new();
    if let Json::Object(map) = json {
        write_table(map, Some(&View::new(schema, schema)), "", &mut text);
    }
    text
}

/// True if the value needs a header of its own: a table, or an array of tables.
fn has_header(value: &Json) -> bool {
    match value {
        Json::Object(_) => true,
        Json::Array(items) => !items.is_empty() && items.iter().all(Json::is_object),
        _ => false,
    }
}

fn write_table(map: &Map<String, Json>, view: Option<&View<'_>>, path: &str, text: &mut String) {
    let view = view.map(|v| variant(v, map));
    let inner = |key: &str| view.as_ref().and_then(|v| v.property(key).or_else(|| v.map_values()));
    // TOML wants plain values before the tables that follow.
    for (key, value) in map.iter().filter(|(_, v)| !has_header(v)) {
        let view = inner(key);
        write_comments(view.as_ref(), text);
        match value {
            Json::Null => *text += &format!("# {} is not set\n", join("", key)),
            value => *text += &format!("{} = {}\n", join("", key), toml_value(value)),
        }
    }
    for (key, value) in map.iter().filter(|(_, v)| has_header(v)) {
        let (view, path) = (inner(key), join(path, key));
        let many = value.as_array().is_some();
        for item in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
            if !text.is_empty() {
                text.push('\n');
            }
            write_comments(view.as_ref(), text);
            *text += &if many { format!("[[{path}]]\n") } else { format!("[{path}]\n") };
            let view = view.as_ref().and_then(|v| if many { v.item(0) } else { Some(v.clone()) });
            if let Json::Object(map) = item {
                write_table(map, view.as_ref(), &path, text);
            }
        }
    }
}

/// The schema of the variant that a table is.
fn variant<'a>(view: &View<'a>, map: &Map<String, Json>) -> View<'a> {
    let fits = |v: &View<'a>| {
        map.iter().all(|(key, value)| {
            let Some(property) = v.property(key).or_else(|| v.map_values()) else { return false };
            property.constants().is_none_or(|allowed| allowed.contains(&value))
        })
    };
    match view.alternatives() {
        Some(all) => all.into_iter().find(fits).unwrap_or_else(|| view.clone()),
        None => view.clone(),
    }
}

fn write_comments(view: Option<&View<'_>>, text: &mut String) {
    let Some(view) = view else { return };
    for line in view.description().unwrap_or_default().lines() {
        *text += format!("# {line}").trim_end();
        text.push('\n');
    }
    if let Some(names) = view.names().filter(|names| names.len() > 1) {
        let names: Vec<String> = names.iter().map(|n| toml_string(n)).collect();
        *text += &format!("# One of: {}.\n", names.join(", "));
    }
}

/// A value in TOML syntax on one line.
pub(crate) fn toml_value(json: &Json) -> String {
    match json {
        // An option inside an array has no TOML form; an empty string would be a lie, so it is left out.
        Json::Null => String::new(),
        Json::Bool(b) => b.to_string(),
        Json::Number(n) => match n.as_f64() {
            Some(x) if n.is_f64() => format!("{x:?}"),
            _ => n.to_string(),
        },
        Json::String(s) => toml_string(s),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().filter(|i| !i.is_null()).map(toml_value).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(map) => {
            let entries = map.iter().filter(|(_, v)| !v.is_null());
            let entries: Vec<String> =
                entries.map(|(k, v)| format!("{} = {}", join("", k), toml_value(v))).collect();
            if entries.is_empty() { "{}".into() } else { format!("{{ {} }}", entries.join(", ")) }
        }
    }
}

fn toml_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted += "\\\"",
            '\\' => quoted += "\\\\",
            '\n' => quoted += "\\n",
            '\t' => quoted += "\\t",
            '\r' => quoted += "\\r",
            c if c.is_control() => quoted += &format!("\\u{:04X}", c as u32),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

//! The filter `tojson` as Transformers defines it for chat templates: `json.dumps(value, ensure_ascii=False)`. minijinja's escapes HTML.

use bessemer_jinja::bounded;
use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind, State};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// Most blanks of a level.
const MOST_INDENT: usize = 64;

/// Separators of Python: a blank behind commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

fn wrong(problem: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {problem}"))
}

/// The filter.
pub(crate) fn to_json(
    state: &State<'_, '_>,
    value: &Value,
    indent: Option<Value>,
    args: Kwargs,
) -> Result<Value, Error> {
    bounded(state, value)?;
    let is_set = |name: &str| args.get::<Option<bool>>(name).map(|set| set == Some(true));
    if is_set("ensure_ascii")? || is_set("sort_keys")? {
        return Err(wrong("wanted ensure_ascii and sort_keys to be false"));
    }
    let compact = match args.get::<Option<Vec<String>>>("separators")? {
        None => false,
        Some(both) if both == [",", ":"] => true,
        Some(both) if both == [", ", ": "] => false,
        Some(_) => return Err(wrong("wanted the separators (\",\", \":\") or (\", \", \": \")")),
    };
    let indent = match indent {
        Some(indent) => Some(indent),
        None => args.get::<Option<Value>>("indent")?,
    };
    args.assert_all_used()?;
    let indent = indent.filter(|indent| !indent.is_none() && !indent.is_undefined());
    let mut out = Vec::new();
    let written = match indent.map(|indent| indent.as_usize().filter(|blanks| *blanks <= MOST_INDENT)) {
        Some(None) => return Err(wrong(format!("wanted an indent of 0 to {MOST_INDENT}"))),
        Some(Some(blanks)) => {
            let blanks = " ".repeat(blanks);
            let formatter = PrettyFormatter::with_indent(blanks.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
        None if compact => value.serialize(&mut Serializer::new(&mut out)),
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
    };
    written.map_err(wrong)?;
    // As the built-in filter: a step pays for 64 bytes.
    state.consume_fuel(out.len() as u64 / 64)?;
    String::from_utf8(out).map(Value::from).map_err(wrong)
}

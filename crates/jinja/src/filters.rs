//! Filters and methods that make a text of a whole value, with bounds.

use crate::size::bounded;
use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{Environment, Error, ErrorKind, State, filters};

/// Most blanks of a level in JSON.
const MOST_INDENT: usize = 64;
/// Name of the filter `join` without a bound.
pub(crate) const JOIN: &str = "__join";
/// Name of the filter `format` without a bound.
pub(crate) const FORMAT: &str = "__format";
/// Most digits of a width or a precision.
const MOST_DIGITS: usize = 4;

/// Puts the filters into an environment.
pub(crate) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("string", |state: &State<'_, '_>, value: &Value| {
        bounded(state, value)?;
        filters::string(state, value)
    });
    environment.add_filter(JOIN, filters::join);
    environment.add_filter("join", |state: &mut State<'_, '_>, args: Rest<Value>| {
        args.first().map_or(Ok(()), |value| bounded(state, value))?;
        state.apply_filter(JOIN, &args)
    });
    environment.add_filter(FORMAT, filters::format);
    environment.add_filter("format", |state: &mut State<'_, '_>, args: Rest<Value>| {
        bounded(state, &Value::from(args.to_vec()))?;
        state.apply_filter(FORMAT, &args)
    });
    environment.add_filter("pprint", |state: &State<'_, '_>, value: &Value| {
        bounded(state, value)?;
        Ok::<_, Error>(filters::pprint(value))
    });
    environment.add_filter(
        "tojson",
        |state: &State<'_, '_>, value: &Value, indent: Option<Value>, args: Kwargs| {
            bounded(state, value)?;
            let given = indent.clone().or(args.peek::<Option<Value>>("indent")?);
            if given.and_then(|indent| indent.as_usize()).is_some_and(|indent| indent > MOST_INDENT) {
                return Err(wrong(format!("tojson: wanted an indent of at most {MOST_INDENT}")));
            }
            filters::tojson(value, indent, args)
        },
    );
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// Methods of Python's values; those of [`minijinja_contrib::pycompat`], with bounds.
///
/// # Errors
/// An unknown method, arguments that do not go with it, a limit.
pub fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == "format" {
        let text = value.as_str().unwrap_or_default();
        // Between braces.
        let fields = text.split('{').filter_map(|part| part.split('}').next());
        let mut numbers = fields.flat_map(|field| field.split(|c: char| !c.is_ascii_digit()));
        if numbers.any(|digits| digits.len() > MOST_DIGITS) {
            return Err(wrong(format!("format: wanted numbers of at most {MOST_DIGITS} digits")));
        }
        args.iter().try_for_each(|value| bounded(state, value))?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

//! Predicates: what a user asks of a document's columns, as in `lang == "en" && quality > 0.3`.
//!
//! ```text
//! or         = and ( ("||" | "or") and )*
//! and        = not ( ("&&" | "and") not )*
//! not        = ("!" | "not") not | comparison
//! comparison = value ( ("==" | "!=" | "<" | "<=" | ">" | ">=") value
//!                    | ["not"] "in" "[" value ("," value)* "]" | "matches" string )?
//! value      = number | string | "true" | "false" | "null" | column | function "(" or ("," or)* ")" | "(" or ")"
//! string     = "..." or '...' with \" \' \\ \n \t
//! column     = letter or "_", then letters, digits, "_", "."; any name between backquotes
//! function   = len (characters) | contains | starts_with | ends_with | lower
//! ```
//! Values are numbers (64-bit floats), strings, booleans and null. A comparison with null, or between kinds, is null, but
//! `== null` and `!= null` ask whether a value is there; `&&`, `||` and `!` follow SQL's three values; a document is kept
//! when the predicate is true. `matches` takes a pattern of the `regex` crate: linear time, limited size.

mod evaluate;
mod json;
mod parse;

pub use json::{METADATA_PREFIX, json_field, json_value};

use crate::error::{Error, Result};
use bessemer_units::did_you_mean;
use regex::Regex;
use std::borrow::Cow;

/// A value of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'v> {
    /// There is none.
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text(Cow<'v, str>),
}

/// A row of columns, wherever they lie.
pub trait Row {
    /// The value of a column; nothing if there is no such column.
    fn value(&self, column: &str) -> Option<Value<'_>>;
    /// The names of its columns.
    fn names(&self) -> Vec<&str>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compare {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Function {
    Len,
    Contains,
    StartsWith,
    EndsWith,
    Lower,
}

impl Function {
    const ALL: [(&'static str, Function, usize); 5] = [
        ("len", Function::Len, 1),
        ("contains", Function::Contains, 2),
        ("starts_with", Function::StartsWith, 2),
        ("ends_with", Function::EndsWith, 2),
        ("lower", Function::Lower, 1),
    ];
}

#[derive(Debug, Clone)]
enum Expression {
    Literal(Value<'static>),
    Column(String),
    Not(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Compare(Compare, Box<Expression>, Box<Expression>),
    In(Box<Expression>, Vec<Expression>),
    Matches(Box<Expression>, Regex),
    Call(Function, Vec<Expression>),
}

/// A predicate over the columns of a row.
#[derive(Debug, Clone)]
pub struct Predicate {
    source: String,
    expression: Expression,
    columns: Vec<(String, usize)>,
}

impl Predicate {
    /// Reads a predicate.
    ///
    /// # Errors
    /// If it is none: the message has the position (in characters, from 1), what was found and what was wanted.
    pub fn parse(source: &str) -> Result<Predicate> {
        let (expression, columns) = parse::parse(source)?;
        Ok(Predicate { source: source.to_owned(), expression, columns })
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The columns that it reads, in order of appearance, repeats included.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Whether every column that it reads is one of these.
    ///
    /// # Errors
    /// If not: the message names the position and the nearest column.
    pub fn check_columns<'n>(&self, names: impl IntoIterator<Item = &'n str> + Clone) -> Result<()> {
        for (column, position) in &self.columns {
            if !names.clone().into_iter().any(|name| name == column) {
                let near = did_you_mean(column, names.clone());
                let all: Vec<&str> = names.into_iter().collect();
                let of_input = match column.starts_with(METADATA_PREFIX) {
                    true => String::new(),
                    false => format!("; a field or column of the input is named {METADATA_PREFIX}{column}"),
                };
                return Err(Error::new(format!(
                    "{:?}, character {position}: no column has the name {column:?}{near}; there are {}{of_input}",
                    self.source,
                    all.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// The value for a row. A column that the row lacks is null.
    pub fn evaluate<'r>(&'r self, row: &'r dyn Row) -> Value<'r> {
        evaluate::evaluate(&self.expression, row)
    }

    /// Whether it is true of a row; nothing if it is null.
    pub fn holds(&self, row: &dyn Row) -> Option<bool> {
        match self.evaluate(row) {
            Value::Bool(holds) => Some(holds),
            _ => None,
        }
    }
}

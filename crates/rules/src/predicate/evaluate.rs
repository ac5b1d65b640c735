//! Predicates at work on a row.

use super::{Compare, Expression, Function, Row, Value};
use std::borrow::Cow;
use std::cmp::Ordering;

pub(super) fn evaluate<'r>(expression: &'r Expression, row: &'r dyn Row) -> Value<'r> {
    match expression {
        Expression::Literal(value) => value.clone(),
        Expression::Column(name) => row.value(name).unwrap_or(Value::Null),
        Expression::Not(inner) => match evaluate(inner, row) {
            Value::Bool(holds) => Value::Bool(!holds),
            _ => Value::Null,
        },
        Expression::And(parts) => junction(parts, row, false),
        Expression::Or(parts) => junction(parts, row, true),
        Expression::Compare(how, left, right) => {
            let (left_value, right_value) = (evaluate(left, row), evaluate(right, row));
            let null = |side: &Expression| matches!(side, Expression::Literal(Value::Null));
            // Asking whether a value is there is the one comparison with null that has an answer.
            match how {
                Compare::Equal if null(right) => Value::Bool(left_value == Value::Null),
                Compare::Equal if null(left) => Value::Bool(right_value == Value::Null),
                Compare::NotEqual if null(right) => Value::Bool(left_value != Value::Null),
                Compare::NotEqual if null(left) => Value::Bool(right_value != Value::Null),
                how => compare(*how, &left_value, &right_value),
            }
        }
        Expression::In(value, list) => {
            let value = evaluate(value, row);
            let mut unknown = false;
            for entry in list {
                match compare(Compare::Equal, &value, &evaluate(entry, row)) {
                    Value::Bool(true) => return Value::Bool(true),
                    Value::Bool(false) => {}
                    _ => unknown = true,
                }
            }
            if unknown { Value::Null } else { Value::Bool(false) }
        }
        Expression::Matches(value, pattern) => match evaluate(value, row) {
            Value::Text(text) => Value::Bool(pattern.is_match(&text)),
            _ => Value::Null,
        },
        Expression::Call(function, arguments) => call(*function, arguments, row),
    }
}

/// `decisive` is the value of a part that settles the matter: false for `&&`, true for `||`.
fn junction<'r>(parts: &'r [Expression], row: &'r dyn Row, decisive: bool) -> Value<'r> {
    let mut unknown = false;
    for part in parts {
        match evaluate(part, row) {
            Value::Bool(holds) if holds == decisive => return Value::Bool(decisive),
            Value::Bool(_) => {}
            _ => unknown = true,
        }
    }
    if unknown { Value::Null } else { Value::Bool(!decisive) }
}

fn compare<'r>(how: Compare, left: &Value<'_>, right: &Value<'_>) -> Value<'r> {
    let order = match (left, right) {
        (Value::Number(a), Value::Number(b)) => a.partial_cmp(b),
        (Value::Text(a), Value::Text(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    };
    let Some(order) = order else { return Value::Null };
    Value::Bool(match how {
        Compare::Equal => order == Ordering::Equal,
        Compare::NotEqual => order != Ordering::Equal,
        Compare::Less => order == Ordering::Less,
        Compare::AtMost => order != Ordering::Greater,
        Compare::Greater => order == Ordering::Greater,
        Compare::AtLeast => order != Ordering::Less,
    })
}

fn call<'r>(function: Function, arguments: &'r [Expression], row: &'r dyn Row) -> Value<'r> {
    let text = |index: usize| match arguments.get(index).map(|argument| evaluate(argument, row)) {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    };
    let Some(first) = text(0) else { return Value::Null };
    match function {
        Function::Len => return Value::Number(first.chars().count() as f64),
        Function::Lower => return Value::Text(Cow::Owned(first.to_lowercase())),
        _ => {}
    }
    let Some(second) = text(1) else { return Value::Null };
    Value::Bool(match function {
        Function::Contains => first.contains(second.as_ref()),
        Function::StartsWith => first.starts_with(second.as_ref()),
        _ => first.ends_with(second.as_ref()),
    })
}

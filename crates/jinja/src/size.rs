//! Size of values. A value may be part of others many times, or of itself: printing, comparing or hashing it then takes a time
//! and a memory that grow exponentially, and the stack of every one that it is part of.

use minijinja::value::{ObjectRepr, Rest, Value};
use minijinja::{Error, ErrorKind, State};

/// Largest depth of a value.
pub const MOST_DEPTH: usize = 256;
/// Most items of a value, those of its items included. Each 64 bytes of a text count as one more.
pub const MOST_ITEMS: u64 = 1 << 18;
/// Items that are counted for one step: 16 million in a rendering take about as long as a million instructions.
pub(crate) const ITEMS_A_STEP: u64 = 16;

/// Refuses a value that is deeper than [`MOST_DEPTH`] or has more than [`MOST_ITEMS`] items, counted as often as they are printed.
///
/// # Errors
/// A limit, and that of the steps.
pub fn bounded(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let mut left = MOST_ITEMS;
    let counted = count(value, MOST_DEPTH, &mut left);
    state.consume_fuel((MOST_ITEMS - left) / ITEMS_A_STEP)?;
    counted.map_err(|what| Error::new(ErrorKind::InvalidOperation, what))
}

fn count(value: &Value, depth: usize, left: &mut u64) -> Result<(), String> {
    let items = 1 + value.as_bytes().map_or(0, |text| text.len() as u64 / 64);
    *left = left.checked_sub(items).ok_or_else(|| {
        *left = 0;
        format!("wanted a value of at most {MOST_ITEMS} items, found more")
    })?;
    let Some(object) = value.as_object() else { return Ok(()) };
    let depth = depth
        .checked_sub(1)
        .ok_or_else(|| format!("wanted a value of at most {MOST_DEPTH} levels, found more"))?;
    if let Some(items) = object.downcast_ref::<Vec<Value>>() {
        return items.iter().try_for_each(|item| count(item, depth, left));
    }
    match object.repr() {
        ObjectRepr::Map => {
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                count(&key, depth, left)?;
                count(&value, depth, left)?;
            }
        }
        ObjectRepr::Seq => {
            for item in object.try_iter().into_iter().flatten() {
                count(&item, depth, left)?;
            }
        }
        // Others may be read only once.
        ObjectRepr::Iterable if object.enumerator_len().is_some() => {
            for item in object.try_iter().into_iter().flatten() {
                count(&item, depth, left)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Function of the checks that are written into templates: refuses a variable whose value has become too large.
pub(crate) fn check_variables(state: &State<'_, '_>, values: Rest<Value>) -> Result<bool, Error> {
    values.iter().try_for_each(|value| bounded(state, value))?;
    Ok(false)
}

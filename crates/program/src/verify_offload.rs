//! The second memory in [`crate::verify()`]: a value is offloaded once, as a whole, and is not written after that; a reload restores the
//! offloaded value, in its state at that time; every offloaded value is read back by a backward list.

use crate::node::OffloadedValue;
use crate::unit::Phase;
use crate::verify::{Checking, State, Violation};
use std::collections::BTreeMap;

/// A value in the second memory.
#[derive(Debug, Clone)]
struct AwayValue {
    value: usize,
    bytes: u64,
    shape: (usize, usize),
    state: State,
    /// Number of the node that offloads it.
    node: usize,
    reloaded: bool,
}

/// Values in the second memory after a forward list, by their first byte.
#[derive(Debug, Default, Clone)]
pub(crate) struct AwayValues(BTreeMap<u64, AwayValue>);

impl AwayValues {
    /// Whether the value has been offloaded.
    pub(crate) fn has(&self, id: usize) -> bool {
        self.0.values().any(|away| away.value == id)
    }

    /// Returns the node and the value that no list has read back.
    pub(crate) fn forgotten(&self) -> Option<(usize, usize)> {
        self.0.values().find(|away| !away.reloaded).map(|away| (away.node, away.value))
    }
}

impl Checking<'_> {
    pub(crate) fn offload(&mut self, at: usize, moved: &OffloadedValue) -> Result<(), Box<Violation>> {
        let id = moved.value();
        let value = &self.unit.values[id];
        self.readable(at, &moved.view)?;
        if self.phase != Phase::Forward {
            return Err(self.wrong(at, id, "is offloaded in a list that no backward pass follows"));
        }
        if moved.view != value.view(id) {
            return Err(self.wrong(at, id, "is offloaded in part"));
        }
        let new = moved.offset..moved.offset + value.bytes();
        let meets = |(from, away): (&u64, &AwayValue)| *from < new.end && new.start < from + away.bytes;
        if self.away.has(id) || self.away.0.iter().any(meets) {
            return Err(self.wrong(at, id, "is offloaded twice, or to where another value is"));
        }
        let state = self.states[id].clone();
        let (bytes, shape) = (value.bytes(), (value.rows, value.cols));
        let away = AwayValue { value: id, bytes, shape, state, node: at, reloaded: false };
        self.away.0.insert(moved.offset, away);
        Ok(())
    }

    pub(crate) fn reload(&mut self, at: usize, moved: &OffloadedValue) -> Result<(), Box<Violation>> {
        let id = moved.value();
        let value = &self.unit.values[id];
        let whole = moved.view == value.view(id);
        let fits = |away: &&mut AwayValue| {
            whole && (away.bytes, away.shape) == (value.bytes(), (value.rows, value.cols))
        };
        let Some(away) = self.away.0.get_mut(&moved.offset).filter(fits) else {
            return Err(self.wrong(at, id, "is reloaded from where nothing of its shape has been offloaded"));
        };
        away.reloaded = true;
        self.states[id] = away.state.clone();
        self.written.all(id, value);
        Ok(())
    }
}

//! What a rank of a tensor-parallel group holds of a matrix, kept for every stretch of memory that was written.

use bessemer_tensor::View;
use std::collections::HashMap;

/// How a matrix lies over the tensor axis: [`bessemer_mesh::Placement`] for matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Held {
    /// Every rank has all of it, the same.
    Same,
    /// Each rank has some rows.
    Rows,
    /// Each rank has some columns (a vector: some elements).
    Columns,
    /// Each rank has one term of a sum.
    Partial,
}

impl Held {
    /// For messages.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Held::Same => "the same on every rank",
            Held::Rows => "cut by rows over the tensor axis",
            Held::Columns => "cut by columns over the tensor axis",
            Held::Partial => "one term of a sum over the tensor axis",
        }
    }

    /// The collective that makes it whole.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Held::Same => "nothing",
            Held::Rows | Held::Columns => "an all-gather",
            Held::Partial => "an all-reduce (or a reduce-scatter)",
        }
    }
}

/// What is known of a device's memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    names: Vec<String>,
    written: HashMap<u32, Vec<(View, Held)>>,
}

impl Memory {
    /// The next buffer has this name.
    pub(crate) fn name_next(&mut self, name: &str) {
        self.names.push(name.to_owned());
    }

    /// The name of a view's buffer.
    pub(crate) fn name(&self, view: &View) -> &str {
        self.names.get(view.buffer.id as usize).map_or("a buffer", String::as_str)
    }

    /// `view` now holds this; nothing: values that fit anything (zeros, indices).
    pub(crate) fn set(&mut self, view: &View, held: Option<Held>) {
        let list = self.written.entry(view.buffer.id).or_default();
        list.retain(|(other, _)| !other.overlaps(view));
        if let Some(held) = held {
            list.push((*view, held));
        }
    }

    /// What `view` holds, if that is known; an error if parts of it differ.
    pub(crate) fn get(&self, view: &View) -> Result<Option<Held>, String> {
        let mut found = None;
        for (other, held) in self.written.get(&view.buffer.id).into_iter().flatten() {
            if !other.overlaps(view) {
                continue;
            }
            if found.is_some_and(|f| f != *held) {
                return Err(format!("{} is cut in different ways within one operand", self.name(view)));
            }
            found = Some(*held);
        }
        Ok(found)
    }
}

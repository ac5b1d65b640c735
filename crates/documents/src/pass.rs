//! The fused pass: a list of functions that each document goes through, one document after the other.
//!
//! A text is in one buffer on its way through the list, is looked at while it is in the cache, and is written to the result
//! once. A document that one function drops is not shown to the next.

use crate::edit::{Document, Verdict, Visited, edit_with};
use arrow_array::RecordBatch;
use arrow_schema::Field;
use bessemer_dataflow::{BatchMap, Result};
use std::any::{Any, TypeId};
use std::collections::BTreeMap;

/// A function of one document, which may edit it, give it values and drop it.
pub trait DocumentPass: Send + Sync {
    /// Name of the function, for errors and plans in words.
    fn name(&self) -> &str;
    /// Columns of which it sets values. A column that rows have already keeps the values that are not set.
    fn columns(&self) -> Vec<Field> {
        Vec::new()
    }
    /// Looks at a document. The result must depend on nothing but the document and the function's own configuration.
    ///
    /// # Errors
    /// A fault of the plan, not of the document: that is a reason to drop it.
    fn visit(&self, document: &mut Document<'_>, scratch: &mut Scratch) -> Result<Verdict>;
}

/// Memory that passes keep from one document of a batch to the next, one value of each type.
#[derive(Default)]
pub struct Scratch(BTreeMap<TypeId, Box<dyn Any>>);

impl Scratch {
    /// The value of a type, made by `Default` when it is first asked for.
    pub fn get<T: Default + 'static>(&mut self) -> &mut T {
        let value = self.0.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(T::default()));
        value.downcast_mut().expect("the key is the type of the value")
    }
}

/// The functions as one map over batches.
pub struct DocumentPasses {
    name: String,
    passes: Vec<Box<dyn DocumentPass>>,
    fields: Vec<Field>,
    /// Columns that nothing reads afterwards.
    spent: &'static [&'static str],
}

impl DocumentPasses {
    /// These functions, in this order; the columns `spent` are removed after them.
    pub fn new(passes: Vec<Box<dyn DocumentPass>>, spent: &'static [&'static str]) -> DocumentPasses {
        let names: Vec<&str> = passes.iter().map(|pass| pass.name()).collect();
        DocumentPasses {
            name: format!("each document: {}", names.join(", ")),
            fields: passes.iter().flat_map(|pass| pass.columns()).collect(),
            passes,
            spent,
        }
    }
}

impl BatchMap for DocumentPasses {
    fn name(&self) -> &str {
        &self.name
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let mut scratch = Scratch::default();
        let mut edited = edit_with(&self.name, &batch, &self.fields, Visited::Kept, |document| {
            for pass in &self.passes {
                match pass.visit(document, &mut scratch)? {
                    Verdict::Keep => {}
                    decided => return Ok(decided),
                }
            }
            Ok(Verdict::Keep)
        })?;
        for name in self.spent {
            if let Ok(column) = edited.schema().index_of(name) {
                edited.remove_column(column);
            }
        }
        Ok(edited)
    }
}

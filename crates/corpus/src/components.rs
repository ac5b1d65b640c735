//! Rows and the components of a mixture: which rows no rule touches, and which slice takes a row.

use crate::mix::SourceConfig;
use crate::rule::BatchRow;
use arrow_array::builder::StringBuilder;
use arrow_array::{Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, Result, column, optional, with_columns};
use bessemer_documents::{COMPONENT, EXEMPT, Rows, TAGS};
use bessemer_rules::{Error, Predicate};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A function for the rows of sources that are kept byte for byte, and one for the others.
///
/// A batch that comes from a source holds rows of that source alone, so one of the functions gets all of it.
pub(crate) struct BySource {
    pub(crate) verbatim: Arc<BTreeSet<String>>,
    pub(crate) kept: Arc<dyn BatchMap>,
    pub(crate) judged: Arc<dyn BatchMap>,
}

impl BatchMap for BySource {
    fn name(&self) -> &str {
        self.judged.name()
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let components: &StringArray = column(self.name(), &batch, COMPONENT)?;
        let verbatim = !components.is_empty() && self.verbatim.contains(components.value(0));
        if verbatim { self.kept.apply(batch) } else { self.judged.apply(batch) }
    }
}

/// Takes rows of sources that are kept byte for byte out of the rules' sight ([`Spare::hide`]), and brings them back before the sink.
pub(crate) struct Spare {
    verbatim: Arc<BTreeSet<String>>,
    hide: bool,
}

impl Spare {
    pub(crate) fn hide(verbatim: Arc<BTreeSet<String>>) -> Spare {
        Spare { verbatim, hide: true }
    }

    pub(crate) fn show(verbatim: Arc<BTreeSet<String>>) -> Spare {
        Spare { verbatim, hide: false }
    }
}

impl BatchMap for Spare {
    fn name(&self) -> &str {
        if self.hide { "spare" } else { "spared" }
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let components: &StringArray = column(self.name(), &batch, COMPONENT)?;
        let old: &StringArray = column(self.name(), &batch, "reason")?;
        if !components.iter().flatten().any(|name| self.verbatim.contains(name)) {
            return Ok(batch);
        }
        let mut reasons = StringBuilder::with_capacity(batch.num_rows(), 0);
        for index in 0..batch.num_rows() {
            let found = optional(old, index);
            let own = self.verbatim.contains(components.value(index));
            reasons.append_option(match (own, self.hide, found) {
                (true, true, None) => Some(EXEMPT),
                (true, false, Some(EXEMPT)) => None,
                (_, _, found) => found,
            });
        }
        with_columns(&batch, vec![(Field::new("reason", DataType::Utf8, true), Arc::new(reasons.finish()))])
    }
}

/// Puts each document into the first slice of its source whose predicate is true of it. Takes the column `tags` away,
/// which nothing reads behind.
pub(crate) struct Slices {
    /// Source, component, predicate; in the order in which they are asked.
    slices: Vec<(String, String, Predicate)>,
}

impl Slices {
    /// The slices of the sources.
    ///
    /// # Errors
    /// A predicate that is none.
    pub(crate) fn of(sources: &[SourceConfig]) -> std::result::Result<Slices, Error> {
        let mut slices = Vec::new();
        for source in sources {
            for slice in &source.slices {
                let component = format!("{}.{}", source.name, slice.name);
                slices.push((source.name.clone(), component, Predicate::parse(&slice.predicate)?));
            }
        }
        Ok(Slices { slices })
    }
}

impl BatchMap for Slices {
    fn name(&self) -> &str {
        "slices"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let rows = Rows::of(self.name(), &batch)?;
        let components: &StringArray = column(self.name(), &batch, COMPONENT)?;
        let mut found = StringBuilder::with_capacity(batch.num_rows(), 0);
        for index in 0..batch.num_rows() {
            let source = components.value(index);
            let mut of_source = self.slices.iter().filter(|(name, ..)| name == source).peekable();
            // A dropped document belongs to its source: what predicates ask of may never have been computed.
            let slice = if rows.reason.is_null(index) && of_source.peek().is_some() {
                let row = BatchRow::new(&batch, index);
                of_source.find(|(.., predicate)| predicate.holds(&row) == Some(true))
            } else {
                None
            };
            found.append_value(slice.map_or(source, |(_, component, _)| component));
        }
        let field = Field::new(COMPONENT, DataType::Utf8, false);
        let mut batch = with_columns(&batch, vec![(field, Arc::new(found.finish()))])?;
        if let Ok(tags) = batch.schema().index_of(TAGS) {
            batch.remove_column(tags);
        }
        Ok(batch)
    }
}

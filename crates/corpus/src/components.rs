//! Documents and the components of a mixture: which documents no rule touches, and which slice takes a document.

use crate::rule::DocumentRow;
use arrow_array::{RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use bessemer_corpus_config::SourceConfig;
use bessemer_dataflow::{BatchMap, Result, column, with_columns};
use bessemer_documents::{COMPONENT, Document, DocumentPass, EXEMPT, Scratch, Value, Verdict};
use bessemer_rules::{Error, Predicate};
use std::sync::Arc;

/// Brings documents that are kept byte for byte back before the sink.
pub(crate) struct KeepExempt;

impl BatchMap for KeepExempt {
    fn name(&self) -> &str {
        "keep-exempt"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let old: &StringArray = column(self.name(), &batch, "reason")?;
        if !old.iter().any(|reason| reason == Some(EXEMPT)) {
            return Ok(batch);
        }
        let reasons: StringArray =
            old.iter().map(|reason| reason.filter(|reason| *reason != EXEMPT)).collect();
        with_columns(&batch, vec![(Field::new("reason", DataType::Utf8, true), Arc::new(reasons))])
    }
}

/// Puts each document into the first slice of its source whose predicate is true of it. A dropped document belongs to its
/// source: what predicates ask of may never have been computed.
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

impl DocumentPass for Slices {
    fn name(&self) -> &str {
        "slices"
    }

    fn columns(&self) -> Vec<Field> {
        vec![Field::new(COMPONENT, DataType::Utf8, false)]
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        let source = document.string(COMPONENT).unwrap_or_default();
        let mut of_source = self.slices.iter().filter(|(name, ..)| name == source);
        let row = DocumentRow(document);
        let slice = of_source.find(|(.., predicate)| predicate.holds(&row) == Some(true));
        if let Some((_, component, _)) = slice {
            document.set(COMPONENT, Value::Text(component.clone()));
        }
        Ok(Verdict::Keep)
    }
}

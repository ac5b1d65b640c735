//! From band keys to connected components.
//!
//! Every (band key, place) is sorted outside of memory by key, then place. Documents that share a key are linked to
//! the first of them: as many links as documents, not pairs, and the same components. Components are found by
//! [`Graph`]. Documents that share no key with another are left out.
//!
//! Memory: what is granted. Disk, where that does not suffice: 24 bytes for each band of each document, and 32 for
//! each link.

use crate::components::Graph;
use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::{Array, FixedSizeBinaryArray, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::{BreakerContext, Error, Input, Output, PipelineBreaker, Result, column};
use bessemer_documents::{DocKey, doc_key_column};
use bessemer_external_sort::{SortMemory, SortedWords, WordSorter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows of a result batch.
const RESULT_ROWS: usize = 4096;
/// Records between two looks at the stop flag.
pub(crate) const STOP_EVERY: u64 = 1 << 16;

/// Columns that [`Candidates`] adds.
pub(crate) fn adds() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("group", DataType::FixedSizeBinary(16), true)]))
}

/// The pipeline breaker. Rows carry `order` and `bands` (band keys as little-endian words, null for no document).
pub(crate) struct Candidates;

impl PipelineBreaker for Candidates {
    fn name(&self) -> &str {
        "lsh-components"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let memory = sort_memory(context);
        let mut entries = WordSorter::<3>::new(&memory);
        while let Some(batch) = input()? {
            let orders = doc_key_column(self.name(), &batch, "order")?;
            let bands: &FixedSizeBinaryArray = column(self.name(), &batch, "bands")?;
            for row in (0..batch.num_rows()).filter(|&row| !bands.is_null(row)) {
                let [high, low] = DocKey::of_bytes(orders.value(row)).words();
                for key in words(bands.value(row)) {
                    entries.push([key, high, low])?;
                }
            }
        }
        let mut graph = Graph::new(&memory);
        link_groups(entries.finish(), &mut graph, context.stop)?;
        give_components(graph, context.stop, output)
    }
}

/// The memory of the sorters of a pipeline breaker: what is granted, less the eighths that they may hold beyond it.
pub(crate) fn sort_memory<'a>(context: &BreakerContext<'a>) -> SortMemory<'a> {
    SortMemory::new(context.memory / 3 * 2, context.spill, context.threads).with_stop(context.stop)
}

/// The words of bytes.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

pub(crate) fn check(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
}

fn link_groups(mut entries: SortedWords<'_, 3>, graph: &mut Graph<'_>, stop: &AtomicBool) -> Result<()> {
    // The key of the group and its first document.
    let mut group: Option<(u64, [u64; 2])> = None;
    let mut seen = 0;
    while let Some([key, high, low]) = entries.next()? {
        seen += 1;
        if seen % STOP_EVERY == 0 {
            check(stop)?;
        }
        let place = [high, low];
        match group {
            Some((same, first)) if same == key => {
                if first != place {
                    graph.link(place, first)?;
                }
            }
            _ => group = Some((key, place)),
        }
    }
    Ok(())
}

/// Gives out (file, row, component) for every document that has a link.
pub(crate) fn give_components(graph: Graph<'_>, stop: &AtomicBool, output: &mut Output<'_>) -> Result<()> {
    let mut found: Vec<([u64; 2], [u64; 2])> = Vec::new();
    graph.components(stop, &mut |node, lowest| {
        found.push((node, lowest));
        if found.len() == RESULT_ROWS { output(component_batch(&mut found)?) } else { Ok(()) }
    })?;
    if found.is_empty() { Ok(()) } else { output(component_batch(&mut found)?) }
}

fn component_batch(found: &mut Vec<([u64; 2], [u64; 2])>) -> Result<RecordBatch> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("file", DataType::UInt32, false),
        Field::new("row", DataType::UInt64, false),
        Field::new("group", DataType::FixedSizeBinary(16), true),
    ]));
    let mut components = FixedSizeBinaryBuilder::with_capacity(found.len(), 16);
    for (_, lowest) in found.iter() {
        components.append_value(DocKey::of_words(*lowest).bytes())?;
    }
    let batch = RecordBatch::try_new(
        schema,
        vec![
            Arc::new(found.iter().map(|(node, _)| DocKey::of_words(*node).file).collect::<UInt32Array>()),
            Arc::new(found.iter().map(|(node, _)| node[1]).collect::<UInt64Array>()),
            Arc::new(components.finish()),
        ],
    )?;
    found.clear();
    Ok(batch)
}

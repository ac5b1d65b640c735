//! From band keys to connected components.
//!
//! ```text
//! flat-map band-entries     a document ─► (band key, place) for each of its bands
//! shuffle by band key       equal keys meet
//! lsh-links                 for each partition: sorted outside of memory by key, then place; documents that share a key are linked
//!                           to the first of them
//! lsh-components            the links of all partitions ─► components, by [`Graph`]
//! ```
//! As many links as documents, not pairs, and the same components. Partitions share no key, so threads and machines work on them
//! apart; only links meet. Documents that share no key with another are left out.
//!
//! Memory: what is granted. Disk, where that does not suffice: 24 bytes for each band of each document, and 32 for
//! each link.

use crate::components::Graph;
use crate::keys::{KeptRows, PARTITIONS, check, names, words};
use arrow_array::builder::{FixedSizeBinaryBuilder, UInt64Builder};
use arrow_array::{Array, ArrayRef, FixedSizeBinaryArray, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::{
    BreakerContext, FlatMap, Input, Output, PipelineBreaker, Result, Stage, column, side_rows,
};
use bessemer_documents::{DocKey, doc_key_column};
use bessemer_external_sort::{SortMemory, WordSorter};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Rows of a result batch.
const RESULT_ROWS: usize = 4096;
/// Records between two looks at the stop flag.
pub(crate) const STOP_EVERY: u64 = 1 << 16;

/// Columns that [`Components`] adds.
pub(crate) fn adds() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("group", DataType::FixedSizeBinary(16), true)]))
}

/// The side plan from bands to components. Rows carry `bands` (band keys as little-endian words, null for no document).
pub(crate) fn stages() -> Vec<Stage> {
    let mut stages = vec![
        Stage::FlatMap(Arc::new(KeptRows { key: Some("bands") })),
        Stage::FlatMap(Arc::new(BandEntries)),
    ];
    stages.extend(linked(&["band"], Arc::new(BandLinks)));
    stages
}

/// The stages behind entries: those of equal `key` meet in a partition, `links` links documents there, and all links make components.
pub(crate) fn linked(key: &[&str], links: Arc<dyn PipelineBreaker>) -> [Stage; 3] {
    [
        Stage::Shuffle { key: names(key), partitions: PARTITIONS },
        Stage::PerPartition(links),
        Stage::PipelineBreaker(Arc::new(Components)),
    ]
}

/// The memory of the sorters of a pipeline breaker: what is granted, less the eighths that they may hold beyond it.
pub(crate) fn sort_memory<'a>(context: &BreakerContext<'a>) -> SortMemory<'a> {
    SortMemory::new(context.memory / 3 * 2, context.spill, context.threads).with_stop(context.stop)
}

/// Makes of a document one row for each of its bands: `band` and `order`.
struct BandEntries;

impl FlatMap for BandEntries {
    fn name(&self) -> &str {
        "band-entries"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let orders = doc_key_column(self.name(), &batch, "order")?;
        let bands: &FixedSizeBinaryArray = column(self.name(), &batch, "bands")?;
        let entries = bands.len() * bands.value_length() as usize / 8;
        let mut keys = UInt64Builder::with_capacity(entries);
        let mut places = FixedSizeBinaryBuilder::with_capacity(entries, 16);
        for row in 0..batch.num_rows() {
            for key in words(bands.value(row)) {
                keys.append_value(key);
                places.append_value(orders.value(row))?;
            }
        }
        let schema = Schema::new(vec![
            Field::new("band", DataType::UInt64, false),
            Field::new("order", DataType::FixedSizeBinary(16), false),
        ]);
        Ok(RecordBatch::try_new(Arc::new(schema), vec![Arc::new(keys.finish()), Arc::new(places.finish())])?)
    }
}

/// Links the documents of each band key to the first of them.
struct BandLinks;

impl PipelineBreaker for BandLinks {
    fn name(&self) -> &str {
        "lsh-links"
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
            let bands: &UInt64Array = column(self.name(), &batch, "band")?;
            for (row, &band) in bands.values().iter().enumerate() {
                let [high, low] = DocKey::of_bytes(orders.value(row)).words();
                entries.push([band, high, low])?;
            }
        }
        let mut entries = entries.finish();
        let mut links = Links::new(output);
        // The key of the group and its first document.
        let mut group: Option<(u64, [u64; 2])> = None;
        let mut seen = 0_u64;
        while let Some([key, high, low]) = entries.next()? {
            if seen.is_multiple_of(STOP_EVERY) {
                check(context.stop)?;
            }
            seen += 1;
            let place = [high, low];
            match group {
                Some((same, first)) if same == key => {
                    if first != place {
                        links.push(place, first)?;
                    }
                }
                _ => group = Some((key, place)),
            }
        }
        links.finish()
    }
}

/// Gives out pairs of documents that belong together as rows of `order` and `first`.
pub(crate) struct Links<'o, 'f> {
    pairs: Vec<([u64; 2], [u64; 2])>,
    output: &'o mut Output<'f>,
}

impl<'o, 'f> Links<'o, 'f> {
    pub(crate) fn new(output: &'o mut Output<'f>) -> Self {
        Links { pairs: Vec::new(), output }
    }

    pub(crate) fn push(&mut self, place: [u64; 2], first: [u64; 2]) -> Result<()> {
        self.pairs.push((place, first));
        if self.pairs.len() == RESULT_ROWS { self.give() } else { Ok(()) }
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        if self.pairs.is_empty() { Ok(()) } else { self.give() }
    }

    fn give(&mut self) -> Result<()> {
        let [mut places, mut firsts] =
            [(); 2].map(|()| FixedSizeBinaryBuilder::with_capacity(self.pairs.len(), 16));
        for (place, first) in self.pairs.drain(..) {
            places.append_value(DocKey::of_words(place).bytes())?;
            firsts.append_value(DocKey::of_words(first).bytes())?;
        }
        let field = |name| Field::new(name, DataType::FixedSizeBinary(16), false);
        let schema = Arc::new(Schema::new(vec![field("order"), field("first")]));
        let columns = vec![Arc::new(places.finish()) as _, Arc::new(firsts.finish()) as _];
        (self.output)(RecordBatch::try_new(schema, columns)?)
    }
}

/// Makes components of links.
struct Components;

impl PipelineBreaker for Components {
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
        let mut graph = Graph::new(&memory);
        while let Some(batch) = input()? {
            let places = doc_key_column(self.name(), &batch, "order")?;
            let firsts = doc_key_column(self.name(), &batch, "first")?;
            for row in 0..batch.num_rows() {
                let node = |key: &FixedSizeBinaryArray| DocKey::of_bytes(key.value(row)).words();
                graph.link(node(places), node(firsts))?;
            }
        }
        give_components(graph, context.stop, output)
    }
}

/// Gives out (file, row, component) for every document that has a link.
fn give_components(graph: Graph<'_>, stop: &AtomicBool, output: &mut Output<'_>) -> Result<()> {
    let mut found: Vec<([u64; 2], [u64; 2])> = Vec::new();
    graph.components(stop, &mut |node, lowest| {
        found.push((node, lowest));
        if found.len() == RESULT_ROWS { output(component_batch(&mut found)?) } else { Ok(()) }
    })?;
    if found.is_empty() { Ok(()) } else { output(component_batch(&mut found)?) }
}

fn component_batch(found: &mut Vec<([u64; 2], [u64; 2])>) -> Result<RecordBatch> {
    let mut components = FixedSizeBinaryBuilder::with_capacity(found.len(), 16);
    for (_, lowest) in found.iter() {
        components.append_value(DocKey::of_words(*lowest).bytes())?;
    }
    let ids = found.drain(..).map(|(node, _)| (DocKey::of_words(node).file, node[1]));
    side_rows(ids, &adds(), [Arc::new(components.finish()) as ArrayRef])
}

//! What happens to rows, as a value: one source and a list of stages over Arrow record batches.
//!
//! | stage | what it does | what it needs |
//! |---|---|---|
//! | [`Stage::Map`] | a pure function of a batch, row by row | one batch |
//! | [`Stage::FlatMap`] | the same, but rows may vanish or multiply within the batch | one batch |
//! | [`Stage::Shuffle`] | sends each row to the partition that its key's hash names | the rows, in memory or on disk |
//! | [`Stage::Sort`] | orders the rows of each partition by key columns | sorted runs, in memory or on disk |
//! | [`Stage::Reduce`] | folds runs of equal key into rows | one batch and the fold's state |
//! | [`Stage::PipelineBreaker`] | a function of the whole stream, in order, once | what it is granted, and its own files |
//! | [`Stage::PerPartition`] | the same for each partition by itself | a share of that for each partition that runs |
//! | [`Stage::SideJoin`] | runs a side plan on some columns and joins its result back by (file, row) | the rows, in memory or on disk |
//! | sink | takes the rows in order | one batch |
//!
//! The result is a pure function of source and stages. It does not depend on the number of threads, the size of
//! batches or the memory budget: maps are row-wise, partitions are counted by the plan, and the order of rows
//! is the source's, (file, row), until a shuffle; where order matters afterwards the plan sorts.
//! "Keep the first" means the lowest (file, row), never the first to arrive.
//!
//! Functions carry names, so that another executor finds the same function on another machine.

use crate::error::Result;
use crate::source::Source;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bessemer_durable::ConfinedDir;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A function from batch to batch, row by row: row *i* of the result depends on row *i* of the argument alone,
/// and no row appears or vanishes (the executor refuses a result with another number of rows).
pub trait BatchMap: Send + Sync {
    /// Name of the function, for errors, plans in words and executors on other machines.
    fn name(&self) -> &str;
    /// Columns that it reads, where it is cheap and leaves all others, `file` and `row` as they are: it may then run several times on
    /// the same rows, and on some of their columns. None: it runs once, on all columns.
    fn reads(&self) -> Option<&[&str]> {
        None
    }
    /// Applies the function.
    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch>;
}

/// A function from batch to batch under which a row becomes none, one or several: each row of the result comes
/// from one row of the argument and depends on that row alone, and the rows of the result stand in the order of
/// the rows that they come from. So the stream of rows does not depend on how it is cut into batches.
///
/// Where a row becomes several, they share (file, row); no [`Stage::SideJoin`] may follow in the same list.
pub trait FlatMap: Send + Sync {
    /// Name of the function.
    fn name(&self) -> &str;
    /// Applies the function. The result may have no rows, but always the same columns.
    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch>;
}

/// Folds each run of rows with equal key, in sorted order, however long the run is.
pub trait Reducer: Send + Sync {
    /// Name of the function.
    fn name(&self) -> &str;
    /// A fold over one partition.
    fn fold(&self) -> Box<dyn Fold>;
}

/// The state of a [`Reducer`] in one partition.
pub trait Fold: Send {
    /// Takes rows `rows` of `batch`, all of one key. `first` says whether they begin that key's run; otherwise
    /// they continue the run of the previous call. Returns rows of the result, if any are known already.
    fn take(&mut self, batch: &RecordBatch, rows: Range<usize>, first: bool) -> Result<Option<RecordBatch>>;
    /// Ends the partition.
    fn finish(&mut self) -> Result<Option<RecordBatch>>;
}

/// Gives a [`PipelineBreaker`] the next batch of its input, or none at the end.
pub type Input<'a> = dyn FnMut() -> Result<Option<RecordBatch>> + 'a;

/// Takes a batch of a [`PipelineBreaker`]'s result.
pub type Output<'a> = dyn FnMut(RecordBatch) -> Result<()> + 'a;

/// Resources that a [`PipelineBreaker`] may use while it runs.
pub struct BreakerContext<'a> {
    /// Bytes that it may hold; what needs more goes to files in `spill`. At least a quarter of the executor's
    /// budget, divided by the partitions that are worked on at once. The rows of the result must not depend on it.
    pub memory: usize,
    /// An empty directory of its own, removed when it returns.
    pub spill: &'a ConfinedDir,
    /// Threads that it may use. The rows of the result must not depend on them.
    pub threads: usize,
    /// Raised when the run is to end soon: long loops look at it and return [`Error::Stopped`](crate::Error::Stopped).
    pub stop: &'a AtomicBool,
}

/// A function of the whole stream, for what is no fold of equal keys: connected components, suffix arrays,
/// clusters. It is called once, on one thread, and pulls its input while earlier stages run on the others. It
/// may answer before the input ends, and may hold state within [`BreakerContext::memory`].
///
/// The partitions of its input come one after the other, each in its order: after a shuffle and a sort the rows are
/// ordered within a partition only. Its result is one partition, in the order in which it was given out.
pub trait PipelineBreaker: Send + Sync {
    /// Name of the function.
    fn name(&self) -> &str;
    /// Reads the input to its end, or as far as it needs, and gives out the result. How the input is cut into
    /// batches must not change the rows of the result. An input without rows may have no batch at all.
    fn run(&self, input: &mut Input<'_>, context: &BreakerContext<'_>, output: &mut Output<'_>)
    -> Result<()>;
}

/// One step of a plan.
#[derive(Clone)]
pub enum Stage {
    /// A row-wise function.
    Map(Arc<dyn BatchMap>),
    /// A function under which rows vanish or multiply.
    FlatMap(Arc<dyn FlatMap>),
    /// Rows go to partition `xxh3(key) mod partitions`; an empty key sends all rows to the first, in order.
    Shuffle {
        /// Key columns.
        key: Vec<String>,
        /// Number of partitions: part of the plan, not of the machine.
        partitions: usize,
    },
    /// Each partition is ordered by these columns, ascending; equal keys keep their order.
    Sort {
        /// Key columns.
        by: Vec<String>,
    },
    /// Runs of equal `key` in sorted partitions are folded.
    Reduce {
        /// Key columns, a prefix of the preceding sort's.
        key: Vec<String>,
        /// The fold.
        reducer: Arc<dyn Reducer>,
    },
    /// A function that sees all rows before it answers.
    PipelineBreaker(Arc<dyn PipelineBreaker>),
    /// The same, once for each partition: it sees the rows of that partition alone, and its result replaces that partition.
    /// Partitions are worked on by different threads, or on different machines.
    PerPartition(Arc<dyn PipelineBreaker>),
    /// The columns `project` of all rows, as far as they have them, run through `side`, whose result has the columns `file` and `row`,
    /// at most one row for each, plus those of `adds`, which are joined to the rows (null where the side plan
    /// said nothing). Wide rows stay where they are while narrow keys travel: rows that the source keeps are read again, with the
    /// columns of the side plan alone, and others are kept once for all side joins in a row. The side plan may hold any stage.
    SideJoin {
        /// Decision of the side plan, as one word.
        name: String,
        /// Columns that the side plan sees; must include `file` and `row`.
        project: Vec<String>,
        /// The side plan's stages.
        side: Vec<Stage>,
        /// Columns that it adds: (name, type) of its result.
        adds: SchemaRef,
    },
}

/// A source and the stages its rows pass.
#[derive(Clone)]
pub struct Plan {
    /// Source of the rows.
    pub source: Arc<dyn Source>,
    /// Stages that the rows pass, in order.
    pub stages: Vec<Stage>,
}

/// Takes the rows at the end of a plan, in order, on one thread.
pub trait Sink {
    /// Takes a batch.
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;
}

impl Plan {
    /// The plan in words, one stage a line, side plans indented.
    pub fn explain(&self) -> String {
        let mut text = format!("source {}\n", self.source.describe());
        explain(&self.stages, 0, &mut text);
        text
    }
}

fn explain(stages: &[Stage], depth: usize, text: &mut String) {
    for stage in stages {
        let line = match stage {
            Stage::Map(map) => format!("map {}", map.name()),
            Stage::FlatMap(map) => format!("flat-map {}", map.name()),
            Stage::Shuffle { key, partitions } => {
                format!("shuffle by ({}) into {partitions}", key.join(", "))
            }
            Stage::Sort { by } => format!("sort by ({})", by.join(", ")),
            Stage::Reduce { key, reducer } => format!("reduce {} by ({})", reducer.name(), key.join(", ")),
            Stage::PipelineBreaker(breaker) => format!("pipeline breaker {}", breaker.name()),
            Stage::PerPartition(breaker) => format!("pipeline breaker {} for each partition", breaker.name()),
            Stage::SideJoin { name, project, .. } => {
                format!("side join {name} from ({})", project.join(", "))
            }
        };
        text.push_str(&"  ".repeat(depth));
        text.push_str(&line);
        text.push('\n');
        if let Stage::SideJoin { side, .. } = stage {
            explain(side, depth + 1, text);
        }
    }
}

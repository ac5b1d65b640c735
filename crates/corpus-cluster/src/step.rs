//! Tasks of an executor: the local executor of `dataflow`, on one unit of one step at a time.
//!
//! The plan itself does not travel. A description holds the configuration as text, from which every process makes the same
//! [`Plan`](bessemer_dataflow::Plan), and selects stages and rows:
//!
//! | work | input | stages | output |
//! |---|---|---|---|
//! | `Rows { G }` | seeds: ordinals of parts | the maps between side joins G and G+1, after joining the rows of side plan G | `rows-G/part-P.arrow`; a summary per part |
//! | `Side { G }` | seeds | side plan G, up to its first shuffle, on the rows of one part | blocks for the partitions of that shuffle |
//! | `Between { G, from }` | blocks of one shuffle | the stages after it, one partition of the plan after the other | blocks for the next shuffle |
//! | `SideRows { G }` | blocks by part | a sort by (file, row) | `side-G/part-P.arrow`; a summary per part |
//!
//! Units keep the order of the local executor: blocks are sorted by (partition, from, seq) before they are decoded.

use crate::contract::{Parts, Planner};
use crate::node::{Pull, Push, TaskRunner, foreign};
use crate::parts::{PartPath, PartRanges, PartSummary, open_folder};
use crate::shuffle_block::{self, ShuffleBlock};
use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use bessemer_dataflow::{
    Error, Executor, Plan, Result, Scan, Sink, Source, Stage, held_bytes, join, partitions_of,
};
use bessemer_durable::ConfinedDir;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Stages and rows of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    Rows { generation: usize },
    Side { generation: usize },
    Between { generation: usize, from: usize },
    SideRows { generation: usize },
}

/// A step, as it travels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Description {
    /// Text of the plan.
    pub(crate) plan: String,
    /// Folder of the parts' files, the same on every machine.
    pub(crate) folder: PathBuf,
    /// Bytes of rows that a step may hold.
    pub(crate) memory: usize,
    pub(crate) work: Work,
}

/// Stages of a plan, split at its side joins.
pub(crate) struct Segments<'a> {
    /// Maps before the first side join, between side joins, after the last.
    pub(crate) maps: Vec<&'a [Stage]>,
    /// The side joins.
    pub(crate) side_joins: Vec<SideJoin<'a>>,
}

/// A side join of a plan; see [`Stage::SideJoin`].
pub(crate) struct SideJoin<'a> {
    pub(crate) name: &'a str,
    pub(crate) project: &'a [String],
    pub(crate) stages: &'a [Stage],
    pub(crate) adds: &'a arrow_schema::SchemaRef,
}

/// Splits a plan at its side joins.
///
/// # Errors
/// A shuffle, sort, fold or pipeline breaker outside of a side join: rows would leave their parts.
pub(crate) fn split(stages: &[Stage]) -> Result<Segments<'_>> {
    let mut segments = Segments { maps: Vec::new(), side_joins: Vec::new() };
    let mut begin = 0;
    for (index, stage) in stages.iter().enumerate() {
        match stage {
            Stage::Map(_) | Stage::FlatMap(_) => {}
            Stage::SideJoin { name, project, side, adds } => {
                segments.maps.push(&stages[begin..index]);
                segments.side_joins.push(SideJoin { name, project, stages: side, adds });
                begin = index + 1;
            }
            _ => {
                return Err(Error::Plan {
                    stage: "cluster".into(),
                    problem: format!(
                        "stage {index} of the plan moves rows outside of a side join; a cluster runs maps and side joins"
                    ),
                });
            }
        }
    }
    segments.maps.push(&stages[begin..]);
    Ok(segments)
}

/// Stages of a side plan, split at its shuffles.
pub(crate) struct SideSegments<'a> {
    /// Stages before the first shuffle.
    pub(crate) before: &'a [Stage],
    /// The shuffles, each with the stages after it.
    pub(crate) shuffles: Vec<ShuffleSegment<'a>>,
}

/// A shuffle of a side plan and the stages after it.
pub(crate) struct ShuffleSegment<'a> {
    pub(crate) key: &'a [String],
    pub(crate) partitions: usize,
    pub(crate) after: &'a [Stage],
}

/// Splits a side plan at its shuffles. A pipeline breaker reads all partitions one after the other; a sort, a fold or the breaker of
/// each partition needs a whole partition. Where such a stage follows rows that still lie in parts (or a pipeline breaker follows partitions), a shuffle to one
/// partition is inserted.
pub(crate) fn split_side(stages: &[Stage]) -> Result<SideSegments<'_>> {
    let mut segments = SideSegments { before: stages, shuffles: Vec::new() };
    let (mut begin, mut partitions) = (0, None);
    for (index, stage) in stages.iter().enumerate() {
        // The shuffle that must stand before this stage, and where the stages after it begin.
        let (shuffle, after) = match stage {
            Stage::Shuffle { key, partitions } => {
                let partitions = if key.is_empty() { 1 } else { (*partitions).max(1) };
                (ShuffleSegment { key, partitions, after: &[] }, index + 1)
            }
            Stage::PipelineBreaker(_) if partitions != Some(1) => {
                (ShuffleSegment { key: &[], partitions: 1, after: &[] }, index)
            }
            Stage::Sort { .. } | Stage::Reduce { .. } | Stage::PerPartition(_) if partitions.is_none() => {
                (ShuffleSegment { key: &[], partitions: 1, after: &[] }, index)
            }
            Stage::SideJoin { name, .. } => {
                return Err(Error::Plan {
                    stage: name.clone(),
                    problem:
                        "a side join inside a side plan; a cluster runs side joins one after the other only"
                            .into(),
                });
            }
            _ => continue,
        };
        match segments.shuffles.last_mut() {
            None => segments.before = &stages[begin..index],
            Some(last) => last.after = &stages[begin..index],
        }
        partitions = Some(shuffle.partitions);
        segments.shuffles.push(shuffle);
        begin = after;
    }
    if let Some(last) = segments.shuffles.last_mut() {
        last.after = &stages[begin..];
    }
    Ok(segments)
}

/// Runs tasks on an executor: makes plans from their texts, and has a folder for rows that do not fit in memory.
pub(crate) struct PlanRunner {
    planner: Arc<dyn Planner>,
    /// Folder for spills, of this process alone.
    spill: PathBuf,
    /// The plan made last. All steps of a job have the same one, and listing the source again for each would read it many times.
    last: Mutex<Option<(String, Arc<dyn Parts>)>>,
    spills: AtomicU64,
}

impl PlanRunner {
    pub(crate) fn new(planner: Arc<dyn Planner>, spill: &Path) -> PlanRunner {
        PlanRunner { planner, spill: spill.to_path_buf(), last: Mutex::new(None), spills: AtomicU64::new(0) }
    }

    fn parts(&self, text: &str) -> Result<Arc<dyn Parts>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, parts)) = &*last
            && known == text
        {
            return Ok(parts.clone());
        }
        let parts = self.planner.plan(text)?;
        *last = Some((text.to_string(), parts.clone()));
        Ok(parts)
    }

    fn spill(&self) -> Result<ConfinedDir> {
        open_folder(&self.spill)
    }

    /// Runs stages on one unit, in a spill folder of its own.
    fn run(
        &self,
        description: &Description,
        unit: Box<dyn Scan>,
        stages: &[Stage],
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let number = self.spills.fetch_add(1, Ordering::Relaxed);
        let name = format!("step-{}-{number}", std::process::id());
        let spill = self.spill()?;
        let folder = spill.create_dir(&name).map_err(Error::System)?;
        let stop = AtomicBool::new(false);
        let plan = Plan { source: Arc::new(Unit(Mutex::new(Some(unit)))), stages: stages.to_vec() };
        // One thread: a cluster distributes units, and every executor runs several tasks at once.
        let result = Executor::new(1, description.memory, &folder, &stop, &|| ()).run(&plan, sink);
        let removed = spill.remove_tree(&name, &|_, _| true).map_err(Error::System);
        result.and(removed)
    }
}

/// A unit as a source that can be read once.
struct Unit(Mutex<Option<Box<dyn Scan>>>);

impl Source for Unit {
    fn describe(&self) -> String {
        "a unit of a step".into()
    }

    fn scan(&self) -> Result<Box<dyn Scan>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .ok_or_else(|| Error::Plan { stage: "cluster".into(), problem: "a unit was read twice".into() })
    }
}

/// Returns the partition of each row of a batch.
type Partitioner = dyn Fn(&RecordBatch) -> Result<Vec<u32>>;

/// Distributes rows over the partitions of a shuffle and encodes them as blocks.
struct Scatter<'a, 'b> {
    to: &'a Partitioner,
    from: u64,
    seq: u64,
    /// Rows that are in no block yet, by partition, with their bytes.
    pending: BTreeMap<u32, (Vec<RecordBatch>, usize)>,
    bytes: usize,
    output: &'a mut Push<'b>,
}

/// Most bytes of rows that are in no block yet, over all partitions.
const PENDING_BYTES: usize = 16 << 20;

impl Scatter<'_, '_> {
    fn emit(&mut self, partition: u32) -> Result<()> {
        let Some((batches, bytes)) = self.pending.remove(&partition) else { return Ok(()) };
        self.bytes -= bytes;
        let Some(first) = batches.first() else { return Ok(()) };
        let rows = arrow_select::concat::concat_batches(&first.schema(), &batches)?;
        (self.output)(shuffle_block::encode(partition, self.from, self.seq, &rows)?)?;
        self.seq += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        while let Some(&partition) = self.pending.keys().next() {
            self.emit(partition)?;
        }
        Ok(())
    }
}

impl Sink for Scatter<'_, '_> {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut rows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        // A batch holds fewer than 2^31 rows, because Arrow's offsets are 32 bits wide.
        for (row, partition) in (self.to)(batch)?.into_iter().enumerate() {
            rows.entry(partition).or_default().push(row as u32);
        }
        for (partition, rows) in rows {
            let part = take_record_batch(batch, &UInt32Array::from(rows))?;
            let bytes = held_bytes(&part);
            let pending = self.pending.entry(partition).or_default();
            pending.0.push(part);
            pending.1 += bytes;
            self.bytes += bytes;
            if pending.1 >= shuffle_block::BLOCK_BYTES {
                self.emit(partition)?;
            }
        }
        while self.bytes > PENDING_BYTES {
            let largest =
                self.pending.iter().max_by_key(|(partition, (_, bytes))| (*bytes, u32::MAX - **partition));
            let Some(partition) = largest.map(|(partition, _)| *partition) else { break };
            self.emit(partition)?;
        }
        Ok(())
    }
}

impl Sink for crate::parts::PartWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        crate::parts::PartWriter::write(self, batch)
    }
}

fn every<T>(batch: &RecordBatch, mut read: impl FnMut(&RecordBatch, usize) -> Result<T>) -> Result<Vec<T>> {
    (0..batch.num_rows()).map(|row| read(batch, row)).collect()
}

/// Reads the ordinals of parts that a step receives as seeds.
fn seeds(input: &mut Pull<'_>) -> Result<Vec<usize>> {
    let mut parts = Vec::new();
    while let Some(batch) = input()? {
        parts
            .extend(every(&batch, |batch, row| ShuffleBlock::at(batch, row).map(|seed| seed.from as usize))?);
    }
    Ok(parts)
}

fn report(summary: &PartSummary, output: &mut Push<'_>) -> Result<()> {
    let text = serde_json::to_vec(summary).map_err(|cause| foreign("write a summary", &cause))?;
    output(shuffle_block::encode_payload(0, summary.part as u64, 0, &text)?)
}

impl TaskRunner for PlanRunner {
    fn run_task(&self, description: &[u8], input: &mut Pull<'_>, output: &mut Push<'_>) -> Result<()> {
        let description: Description = serde_json::from_slice(description)
            .map_err(|cause| foreign("read a step's description", &cause))?;
        let parts = self.parts(&description.plan)?;
        let segments = split(parts.stages())?;
        match description.work {
            Work::Rows { generation } => {
                self.rows(&description, &*parts, &segments, generation, input, output)
            }
            Work::Side { generation } => self.side(&description, &segments, generation, input, output),
            Work::Between { generation, from } => {
                self.between(&description, &segments, generation, from, input, output)
            }
            Work::SideRows { generation } => self.side_rows(&description, generation, input, output),
        }
    }
}

/// Returns the side join between generations `generation - 1` and `generation` of the rows.
fn side_join<'s, 'a>(segments: &'s Segments<'a>, generation: usize) -> Result<&'s SideJoin<'a>> {
    generation.checked_sub(1).and_then(|index| segments.side_joins.get(index)).ok_or_else(|| Error::Plan {
        stage: "cluster".into(),
        problem: format!(
            "side join {generation} was requested, the plan has {}; executors and client must run the same \
             version",
            segments.side_joins.len()
        ),
    })
}

impl PlanRunner {
    fn rows(
        &self,
        description: &Description,
        parts: &dyn Parts,
        segments: &Segments<'_>,
        generation: usize,
        input: &mut Pull<'_>,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let folder = &open_folder(&description.folder)?;
        for part in seeds(input)? {
            let place = PartPath::rows(folder, generation, part);
            let summary = match place.finished()? {
                Some(summary) => summary,
                None => {
                    let unit: Box<dyn Scan> = match generation {
                        0 => parts.scan(part)?,
                        _ => {
                            let SideJoin { name, adds, .. } = side_join(segments, generation)?;
                            let rows = PartPath::rows(folder, generation - 1, part);
                            let side_rows = PartPath::side_rows(folder, generation, part).read(&[])?;
                            let ids = rows.read(&["file".into(), "row".into()])?;
                            join(name, Box::new(ids), Box::new(rows.read(&[])?), Box::new(side_rows), adds)
                        }
                    };
                    let mut writer = place.writer()?;
                    self.run(description, unit, segments.maps[generation], &mut writer)?;
                    writer.finish()?
                }
            };
            report(&summary, output)?;
        }
        Ok(())
    }

    fn side(
        &self,
        description: &Description,
        segments: &Segments<'_>,
        generation: usize,
        input: &mut Pull<'_>,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let SideJoin { project, stages, .. } = side_join(segments, generation)?;
        let side = split_side(stages)?;
        let to = self.target(description, &side, 0, generation)?;
        let folder = open_folder(&description.folder)?;
        for part in seeds(input)? {
            let unit = PartPath::rows(&folder, generation - 1, part).read(project)?;
            self.scatter(description, Box::new(unit), side.before, part as u64, &to, output)?;
        }
        Ok(())
    }

    fn between(
        &self,
        description: &Description,
        segments: &Segments<'_>,
        generation: usize,
        from: usize,
        input: &mut Pull<'_>,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let side = split_side(side_join(segments, generation)?.stages)?;
        let after = side.shuffles.get(from).map(|shuffle| shuffle.after).ok_or_else(|| Error::Plan {
            stage: "cluster".into(),
            problem: format!("side plan {generation} has no shuffle {from}"),
        })?;
        let to = self.target(description, &side, from + 1, generation)?;
        self.units(input, &mut |partition, unit| {
            self.scatter(description, unit, after, u64::from(partition), &to, output)
        })
    }

    fn side_rows(
        &self,
        description: &Description,
        generation: usize,
        input: &mut Pull<'_>,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let sort = [Stage::Sort { by: vec!["file".into(), "row".into()] }];
        let folder = open_folder(&description.folder)?;
        self.units(input, &mut |part, unit| {
            let mut writer = PartPath::side_rows(&folder, generation, part as usize).writer()?;
            self.run(description, unit, &sort, &mut writer)?;
            report(&writer.finish()?, output)
        })
    }

    fn scatter(
        &self,
        description: &Description,
        unit: Box<dyn Scan>,
        stages: &[Stage],
        from: u64,
        to: &Partitioner,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let mut sink = Scatter { to, from, seq: 0, pending: BTreeMap::new(), bytes: 0, output };
        self.run(description, unit, stages, &mut sink)?;
        sink.finish()
    }

    /// Returns the partitioner before shuffle `index` of a side plan. After the last shuffle a row goes to the part of its (file, row).
    fn target(
        &self,
        description: &Description,
        side: &SideSegments<'_>,
        index: usize,
        generation: usize,
    ) -> Result<Box<Partitioner>> {
        if let Some(shuffle) = side.shuffles.get(index) {
            let (key, partitions) = (shuffle.key.to_vec(), shuffle.partitions);
            return Ok(Box::new(move |batch| partitions_of(batch, &key, partitions)));
        }
        let text = open_folder(&description.folder)?
            .read_to_string(ranges_name(generation))
            .map_err(Error::System)?;
        let summaries: Vec<PartSummary> =
            serde_json::from_str(&text).map_err(|cause| foreign("read the ranges of parts", &cause))?;
        let ranges = PartRanges::of(&summaries)?;
        Ok(Box::new(move |batch| {
            every(batch, |batch, row| {
                ranges.part_of(crate::parts::id_of(batch, row)?).map(|part| part as u32)
            })
        }))
    }

    /// Calls `take` with each partition's rows, in the order of the local executor.
    fn units(
        &self,
        input: &mut Pull<'_>,
        take: &mut dyn FnMut(u32, Box<dyn Scan>) -> Result<()>,
    ) -> Result<()> {
        let number = self.spills.fetch_add(1, Ordering::Relaxed);
        let name = format!("units-{}-{number}", std::process::id());
        let mut sorted = crate::block_file::BlockFile::create(self.spill()?, name)?;
        while let Some(batch) = input()? {
            for row in 0..batch.num_rows() {
                sorted.put(ShuffleBlock::at(&batch, row)?)?;
            }
        }
        sorted.each(take)
    }
}

/// Returns the name of the file with the summaries of the parts whose rows side join `generation` reads.
pub(crate) fn ranges_name(generation: usize) -> String {
    format!("ranges-{generation}.json")
}

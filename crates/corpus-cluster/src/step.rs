//! What an executor does: the embedded executor of `dataflow`, on one unit of one step at a time.
//!
//! The plan itself does not travel. A description names it (the configuration as text, from which every process makes the same
//! [`Plan`](bessemer_dataflow::Plan)) and says which of its stages to run on what:
//!
//! | work | takes | runs | gives |
//! |---|---|---|---|
//! | `Rows { G }` | seeds: ordinals of parts | the maps between annotations G and G+1, after joining the notes of annotation G | `rows-G/part-P.arrow`; a summary per part |
//! | `Side { G }` | seeds | side plan G, up to its first shuffle, on the rows of one part | envelopes for the partitions of that shuffle |
//! | `Between { G, from }` | envelopes of one shuffle | the stages after it, one partition of the plan after the other | envelopes for the next shuffle |
//! | `Notes { G }` | envelopes by part | sorts by (file, row) | `notes-G/part-P.arrow`; a summary per part |
//!
//! The units keep the order that the embedded executor has: envelopes are sorted by (partition, from, seq) before they are opened.

use crate::contract::{Parts, Planner};
use crate::envelope;
use crate::node::{Pull, Push, Workshop, foreign};
use crate::parts::{PartSummary, Place, Spans};
use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use bessemer_dataflow::{
    Error, Executor, Plan, Result, Scan, Sink, Source, Stage, held_bytes, join, partitions_of,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Which stages to run on what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    Rows { generation: usize },
    Side { generation: usize },
    Between { generation: usize, from: usize },
    Notes { generation: usize },
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

/// The stages of a plan, cut at its annotations.
pub(crate) struct Cut<'a> {
    /// Maps before the first annotation, between annotations, after the last.
    pub(crate) maps: Vec<&'a [Stage]>,
    /// The annotations, as stages.
    pub(crate) annotations: Vec<&'a Stage>,
}

/// Cuts a plan.
///
/// # Errors
/// A shuffle, sort, fold or pipeline breaker outside of a side join: rows would leave their parts.
pub(crate) fn cut(stages: &[Stage]) -> Result<Cut<'_>> {
    let mut cut = Cut { maps: Vec::new(), annotations: Vec::new() };
    let mut begin = 0;
    for (index, stage) in stages.iter().enumerate() {
        match stage {
            Stage::Map(_) | Stage::FlatMap(_) => {}
            Stage::SideJoin { .. } => {
                cut.maps.push(&stages[begin..index]);
                cut.annotations.push(stage);
                begin = index + 1;
            }
            _ => {
                return Err(Error::Plan {
                    stage: "cluster".into(),
                    problem: format!(
                        "stage {index} of the plan moves rows outside of an annotation; a cluster runs maps and annotations"
                    ),
                });
            }
        }
    }
    cut.maps.push(&stages[begin..]);
    Ok(cut)
}

/// A side plan, cut at its shuffles: the stages before the first, then (key, partitions) of each with the stages after it.
pub(crate) struct Side<'a> {
    pub(crate) before: &'a [Stage],
    pub(crate) shuffles: Vec<Shuffle<'a>>,
}

pub(crate) struct Shuffle<'a> {
    pub(crate) key: &'a [String],
    pub(crate) partitions: usize,
    pub(crate) after: &'a [Stage],
}

/// Cuts a side plan. A pipeline breaker sees all partitions one after the other, and a sort or fold orders or folds a whole partition: where
/// one follows what still lies in parts (or a pipeline breaker follows what lies in partitions), all rows go to one partition first.
pub(crate) fn side(stages: &[Stage]) -> Result<Side<'_>> {
    let mut cut = Side { before: stages, shuffles: Vec::new() };
    let (mut begin, mut partitions) = (0, None);
    for (index, stage) in stages.iter().enumerate() {
        // The shuffle that must stand before this stage, and where the stages after it begin.
        let (shuffle, after) = match stage {
            Stage::Shuffle { key, partitions } => {
                let partitions = if key.is_empty() { 1 } else { (*partitions).max(1) };
                (Shuffle { key, partitions, after: &[] }, index + 1)
            }
            Stage::PipelineBreaker(_) if partitions != Some(1) => {
                (Shuffle { key: &[], partitions: 1, after: &[] }, index)
            }
            Stage::Sort { .. } | Stage::Reduce { .. } if partitions.is_none() => {
                (Shuffle { key: &[], partitions: 1, after: &[] }, index)
            }
            Stage::SideJoin { name, .. } => {
                return Err(Error::Plan {
                    stage: name.clone(),
                    problem: "an annotation inside a side plan; a cluster runs annotations one after the other only".into(),
                });
            }
            _ => continue,
        };
        match cut.shuffles.last_mut() {
            None => cut.before = &stages[begin..index],
            Some(last) => last.after = &stages[begin..index],
        }
        partitions = Some(shuffle.partitions);
        cut.shuffles.push(shuffle);
        begin = after;
    }
    if let Some(last) = cut.shuffles.last_mut() {
        last.after = &stages[begin..];
    }
    Ok(cut)
}

/// The workshop of every executor: plans by their text, and a folder for what does not fit in memory.
pub(crate) struct PlanWorkshop {
    planner: Arc<dyn Planner>,
    /// Folder for spills, of this process alone.
    spill: PathBuf,
    /// The plan made last: a job's steps all name the same, and listing a source anew for each would read it many times over.
    last: Mutex<Option<(String, Arc<dyn Parts>)>>,
    spills: AtomicU64,
}

impl PlanWorkshop {
    pub(crate) fn new(planner: Arc<dyn Planner>, spill: &Path) -> PlanWorkshop {
        PlanWorkshop {
            planner,
            spill: spill.to_path_buf(),
            last: Mutex::new(None),
            spills: AtomicU64::new(0),
        }
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

    /// Runs stages on one unit, in a spill folder of its own.
    fn run(
        &self,
        description: &Description,
        unit: Box<dyn Scan>,
        stages: &[Stage],
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let number = self.spills.fetch_add(1, Ordering::Relaxed);
        let folder = self.spill.join(format!("step-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(Error::io("create folder", &folder))?;
        let stop = AtomicBool::new(false);
        let plan = Plan { source: Arc::new(Unit(Mutex::new(Some(unit)))), stages: stages.to_vec() };
        // One thread: a cluster spreads units, and every executor works on several at once.
        let result = Executor::new(1, description.memory, &folder, &stop, &|| ()).run(&plan, sink);
        let removed = std::fs::remove_dir_all(&folder).map_err(Error::io("remove", &folder));
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

/// Says of each row of a batch which partition it goes to.
type Target = dyn Fn(&RecordBatch) -> Result<Vec<u32>>;

/// Takes rows for the partitions of a shuffle and seals them in envelopes.
struct Scatter<'a, 'b> {
    to: &'a Target,
    from: u64,
    seq: u64,
    /// Rows that wait, by partition, with their bytes.
    waiting: BTreeMap<u32, (Vec<RecordBatch>, usize)>,
    bytes: usize,
    output: &'a mut Push<'b>,
}

/// Bytes of rows that wait for their envelopes in all.
const WAITING_BYTES: usize = 16 << 20;

impl Scatter<'_, '_> {
    fn seal(&mut self, partition: u32) -> Result<()> {
        let Some((batches, bytes)) = self.waiting.remove(&partition) else { return Ok(()) };
        self.bytes -= bytes;
        let Some(first) = batches.first() else { return Ok(()) };
        let rows = arrow_select::concat::concat_batches(&first.schema(), &batches)?;
        (self.output)(envelope::seal(partition, self.from, self.seq, &rows)?)?;
        self.seq += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        while let Some(&partition) = self.waiting.keys().next() {
            self.seal(partition)?;
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
            let waiting = self.waiting.entry(partition).or_default();
            waiting.0.push(part);
            waiting.1 += bytes;
            self.bytes += bytes;
            if waiting.1 >= envelope::ENVELOPE_BYTES {
                self.seal(partition)?;
            }
        }
        while self.bytes > WAITING_BYTES {
            let largest =
                self.waiting.iter().max_by_key(|(partition, (_, bytes))| (*bytes, u32::MAX - **partition));
            let Some(partition) = largest.map(|(partition, _)| *partition) else { break };
            self.seal(partition)?;
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

/// The ordinals of parts that a step is given as seeds.
fn seeds(input: &mut Pull<'_>) -> Result<Vec<usize>> {
    let mut parts = Vec::new();
    while let Some(batch) = input()? {
        parts.extend(every(&batch, |batch, row| envelope::read(batch, row).map(|seed| seed.1 as usize))?);
    }
    Ok(parts)
}

fn say(summary: &PartSummary, output: &mut Push<'_>) -> Result<()> {
    let text = serde_json::to_vec(summary).map_err(|cause| foreign("write a summary", &cause))?;
    output(envelope::stamp(0, summary.part as u64, 0, &text)?)
}

impl Workshop for PlanWorkshop {
    fn work(&self, description: &[u8], input: &mut Pull<'_>, output: &mut Push<'_>) -> Result<()> {
        let description: Description = serde_json::from_slice(description)
            .map_err(|cause| foreign("read a step's description", &cause))?;
        let parts = self.parts(&description.plan)?;
        let cut = cut(parts.stages())?;
        match description.work {
            Work::Rows { generation } => self.rows(&description, &*parts, &cut, generation, input, output),
            Work::Side { generation } => self.side(&description, &cut, generation, input, output),
            Work::Between { generation, from } => {
                self.between(&description, &cut, generation, from, input, output)
            }
            Work::Notes { generation } => self.notes(&description, generation, input, output),
        }
    }
}

/// The name, columns and stages of the annotation that makes generation `generation`'s notes.
fn annotation<'a>(
    cut: &Cut<'a>,
    generation: usize,
) -> Result<(&'a str, &'a [String], &'a [Stage], &'a arrow_schema::SchemaRef)> {
    match generation.checked_sub(1).and_then(|index| cut.annotations.get(index)) {
        Some(Stage::SideJoin { name, project, side, adds }) => Ok((name, project, side, adds)),
        _ => Err(Error::Plan {
            stage: "cluster".into(),
            problem: format!(
                "the plan has {} annotations; annotation {generation} was asked for",
                cut.annotations.len()
            ),
        }),
    }
}

impl PlanWorkshop {
    fn rows(
        &self,
        description: &Description,
        parts: &dyn Parts,
        cut: &Cut<'_>,
        generation: usize,
        input: &mut Pull<'_>,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let folder = &description.folder;
        for part in seeds(input)? {
            let place = Place::rows(folder, generation, part);
            let summary = match place.finished()? {
                Some(summary) => summary,
                None => {
                    let unit: Box<dyn Scan> = match generation {
                        0 => parts.scan(part)?,
                        _ => {
                            let (name, _, _, adds) = annotation(cut, generation)?;
                            let rows = Place::rows(folder, generation - 1, part).read(&[])?;
                            let notes = Place::notes(folder, generation, part).read(&[])?;
                            join(name, Box::new(rows), Box::new(notes), adds)
                        }
                    };
                    let mut writer = place.writer()?;
                    self.run(description, unit, cut.maps[generation], &mut writer)?;
                    writer.finish()?
                }
            };
            say(&summary, output)?;
        }
        Ok(())
    }

    fn side(
        &self,
        description: &Description,
        cut: &Cut<'_>,
        generation: usize,
        input: &mut Pull<'_>,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let (_, project, stages, _) = annotation(cut, generation)?;
        let side = side(stages)?;
        let to = self.target(description, &side, 0, generation)?;
        for part in seeds(input)? {
            let unit = Place::rows(&description.folder, generation - 1, part).read(project)?;
            self.scatter(description, Box::new(unit), side.before, part as u64, &to, output)?;
        }
        Ok(())
    }

    fn between(
        &self,
        description: &Description,
        cut: &Cut<'_>,
        generation: usize,
        from: usize,
        input: &mut Pull<'_>,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let (_, _, stages, _) = annotation(cut, generation)?;
        let side = side(stages)?;
        let after = side.shuffles.get(from).map(|shuffle| shuffle.after).ok_or_else(|| Error::Plan {
            stage: "cluster".into(),
            problem: format!("side plan {generation} has no shuffle {from}"),
        })?;
        let to = self.target(description, &side, from + 1, generation)?;
        self.units(input, &mut |partition, unit| {
            self.scatter(description, unit, after, u64::from(partition), &to, output)
        })
    }

    fn notes(
        &self,
        description: &Description,
        generation: usize,
        input: &mut Pull<'_>,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let sort = [Stage::Sort { by: vec!["file".into(), "row".into()] }];
        self.units(input, &mut |part, unit| {
            let mut writer = Place::notes(&description.folder, generation, part as usize).writer()?;
            self.run(description, unit, &sort, &mut writer)?;
            say(&writer.finish()?, output)
        })
    }

    fn scatter(
        &self,
        description: &Description,
        unit: Box<dyn Scan>,
        stages: &[Stage],
        from: u64,
        to: &Target,
        output: &mut Push<'_>,
    ) -> Result<()> {
        let mut sink = Scatter { to, from, seq: 0, waiting: BTreeMap::new(), bytes: 0, output };
        self.run(description, unit, stages, &mut sink)?;
        sink.finish()
    }

    /// Where the rows before shuffle `index` of a side plan go; after the last one, to the part that holds the row they speak of.
    fn target(
        &self,
        description: &Description,
        side: &Side<'_>,
        index: usize,
        generation: usize,
    ) -> Result<Box<Target>> {
        if let Some(shuffle) = side.shuffles.get(index) {
            let (key, partitions) = (shuffle.key.to_vec(), shuffle.partitions);
            return Ok(Box::new(move |batch| partitions_of(batch, &key, partitions)));
        }
        let path = spans_path(&description.folder, generation);
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let summaries: Vec<PartSummary> =
            serde_json::from_str(&text).map_err(|cause| foreign("read the spans of parts", &cause))?;
        let spans = Spans::of(&summaries)?;
        Ok(Box::new(move |batch| {
            every(batch, |batch, row| spans.part_of(crate::parts::id_of(batch, row)?).map(|part| part as u32))
        }))
    }

    /// Gives each partition's rows to `take`, in the order in which the embedded executor would have them.
    fn units(
        &self,
        input: &mut Pull<'_>,
        take: &mut dyn FnMut(u32, Box<dyn Scan>) -> Result<()>,
    ) -> Result<()> {
        let number = self.spills.fetch_add(1, Ordering::Relaxed);
        let folder = self.spill.join(format!("units-{}-{number}", std::process::id()));
        let mut sorted = crate::units::Units::create(&folder)?;
        while let Some(batch) = input()? {
            for row in 0..batch.num_rows() {
                let (partition, from, seq, rows) = envelope::read(&batch, row)?;
                sorted.put(partition, from, seq, rows)?;
            }
        }
        sorted.each(take)
    }
}

/// The file that holds the summaries of the parts that annotation `generation` speaks of.
pub(crate) fn spans_path(folder: &Path, generation: usize) -> PathBuf {
    folder.join(format!("spans-{generation}.json"))
}

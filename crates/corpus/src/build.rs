//! From a configuration to a finished corpus on disk.

use crate::check;
use crate::compose::{self, Meters};
use crate::delete::ApplyDeletions;
use crate::error::{Error, Result};
use crate::evaluate::Evaluator;
use crate::held_out::{self, HoldOut, Seen};
use crate::identity;
use crate::output::attribution;
use crate::output::built_with::built_with;
use crate::output::card::{self, samples::Samples};
use crate::output::documents::Documents;
use crate::output::durable::{HashingFile, OutputDir, PartialDir};
use crate::output::parquet_file::Encoders;
use crate::output::summary::{
    ATTRIBUTION_FILE, CARD_FILE, CorpusSummary, FORMAT_VERSION, Loss, SUMMARY_FILE,
};
use crate::parts::{self, Parts};
use crate::read::CorpusReader;
use crate::remote::{self, Engine};
use crate::require;
use crate::source::{self, Listing, Source};
use crate::split::Assign;
use crate::tombstone::{Tombstones, tombstones_path};
use crate::verify::{summary_of, with_checksum};
use arrow_array::{RecordBatch, UInt64Array};
use bessemer_corpus_config::CorpusConfig;
use bessemer_dataflow::{BatchMap, Executor, Plan, Sink, Stage, column};
use bessemer_documents::Split;
use bessemer_durable::EntryKind;
use bessemer_web::redact::redact;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far a build has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// "clean" while documents are read and filtered, "write" while they are written.
    pub stage: &'static str,
    /// Documents that have passed this stage.
    pub documents: u64,
    /// Bytes that have passed this stage, in the units of the source's text.
    pub bytes: u64,
    /// Bytes expected; an estimate for compressed sources.
    pub total_bytes: u64,
}

/// Resources of a build, and the function that it reports progress to.
pub struct BuildContext<'a> {
    /// Worker threads.
    pub threads: usize,
    /// Bytes of rows to hold in memory; beyond them rows go to disk.
    pub memory_budget: usize,
    /// Called after each batch, on the calling thread.
    pub progress: &'a dyn Fn(Progress),
    /// Raised by the caller to stop the build.
    pub stop: &'a AtomicBool,
}

/// A finished build.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    /// Summary of the corpus.
    pub summary: CorpusSummary,
    /// The directory held this corpus already and nothing was done.
    pub reused: bool,
    /// Bytes of rows that were written to spill files.
    pub spilled_bytes: u64,
}

/// Documents and bytes that passed a point of the plan.
#[derive(Default)]
pub(crate) struct Meter {
    documents: AtomicU64,
    bytes: AtomicU64,
}

impl BatchMap for Meter {
    fn name(&self) -> &str {
        "meter"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let bytes: &UInt64Array = column(self.name(), &batch, "bytes")?;
        self.documents.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.values().iter().sum(), Ordering::Relaxed);
        Ok(batch)
    }
}

impl Meter {
    /// Begins to count anew.
    fn reset(&self) {
        self.documents.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

pub(crate) fn as_maps(meters: &[Arc<Meter>; 2]) -> Meters {
    meters.clone().map(|meter| meter as Arc<dyn BatchMap>)
}

/// The plan that [`build`] would run, in words.
pub fn explain(config: &CorpusConfig) -> Result<String> {
    check(config).map_err(Error::Config)?;
    let config = &*config.of_documents();
    let source = source::open(config)?;
    let assign = Assign::resolve(&config.split, source.listing())?;
    Ok(compose::plan(config, source, assign, as_maps(&Default::default()))?.explain())
}

/// The corpus at `target`, if it is finished and has this key.
fn finished(target: &OutputDir, key: &str) -> Result<Option<CorpusSummary>> {
    let Some(text) = target.summary_text()? else { return Ok(None) };
    // A summary of another version, or a damaged one, is replaced: it is ours.
    let Ok(summary) = summary_of(&text) else { return Ok(None) };
    let whole = summary.files.iter().all(|file| {
        let found = target.above.facts(Path::new(&target.name).join(&file.name));
        matches!(found, Ok(Some(found)) if found.kind == EntryKind::File && found.bytes == file.bytes)
    });
    Ok((summary.key == key && whole).then_some(summary))
}

/// Drops documents that have a tombstone on their way into a sink: behind every stage, so that no part that outlives the
/// process depends on the list, and on this machine, where the list stays.
struct DeletionSink<'a> {
    deletions: ApplyDeletions,
    sink: &'a mut dyn Sink,
}

impl Sink for DeletionSink<'_> {
    fn write(&mut self, batch: &RecordBatch) -> bessemer_dataflow::Result<()> {
        self.sink.write(&self.deletions.apply(batch.clone())?)
    }
}

/// Errors if the corpus at `target` answers to a list of tombstones that is gone: what was deleted would come back.
fn require_list(target: &OutputDir, tombstones: &Tombstones) -> Result<()> {
    let text = target.summary_text()?.unwrap_or_default();
    let deleted = serde_json::from_str::<CorpusSummary>(&text).is_ok_and(|found| found.tombstones.is_some());
    if !deleted || !tombstones.is_empty() {
        return Ok(());
    }
    Err(Error::Config(format!(
        "{} is missing, and documents were deleted from the corpus in {}: restore the list, or remove the \
         corpus to build it with these documents",
        tombstones_path(&target.path()).display(),
        target.path().display()
    )))
}

/// Writes what says what the directory holds, and puts the directory in its place.
pub(crate) fn publish(
    folder: PartialDir,
    mut summary: CorpusSummary,
    mut samples: Samples,
) -> Result<CorpusSummary> {
    for remark in &mut summary.remarks {
        *remark = redact(remark).into_owned();
    }
    samples.name_duplicates(&CorpusReader::just_written(folder.dir(), &summary))?;
    let mut file = HashingFile::create(folder.dir(), ATTRIBUTION_FILE)?;
    let write = |file: &mut HashingFile, text: &[u8]| {
        file.write_all(text).map_err(Error::io("write", folder.dir().path()))
    };
    write(&mut file, attribution::text(&summary).as_bytes())?;
    summary.files.push(file.finish()?);
    let mut file = HashingFile::create(folder.dir(), CARD_FILE)?;
    write(&mut file, card::render(&summary, &samples).as_bytes())?;
    summary.files.push(file.finish()?);
    let json = serde_json::to_string_pretty(&summary)
        .map_err(|cause| Error::Json { path: folder.dir().path().join(SUMMARY_FILE), cause })?;
    let mut file = HashingFile::create(folder.dir(), SUMMARY_FILE)?;
    write(&mut file, with_checksum(&json).as_bytes())?;
    file.finish()?;
    folder.finish()?;
    Ok(summary)
}

/// Folder of the rows that do not fit in memory, in the directory under construction.
const SPILL: &str = "spill";
/// Suffix of the folder of the parts that another engine makes.
const REMOTE_PARTS: &str = ".cluster.partial";

/// Executor of the plan.
enum Target<'a> {
    /// The threads of this process.
    Local(Plan),
    /// An engine, which makes the plan itself.
    Remote(&'a dyn Engine),
}

/// Builds the corpus that `config` describes into the directory `out_dir`.
///
/// The directory appears whole or not at all. If it holds the corpus of this configuration and input already,
/// nothing is done. The result is a pure function of configuration and input.
///
/// # Errors
/// A value out of range, a source that is missing or lacks the text column, no document left, a bound of
/// `corpus.evaluate.require` that is not met, a directory that holds something else, another process at work there, the stop flag, or the disk's refusal. Faults of
/// single documents are no errors: they are listed with their reasons.
pub fn build(config: &CorpusConfig, out_dir: &Path, context: &BuildContext<'_>) -> Result<Built> {
    build_on(config, out_dir, context, None)
}

/// [`build`] on another engine: the result has the same bytes.
///
/// # Errors
/// Those of [`build`], of a configuration that other machines could not follow, and of the engine.
pub fn build_on(
    config: &CorpusConfig,
    out_dir: &Path,
    context: &BuildContext<'_>,
    engine: Option<&dyn Engine>,
) -> Result<Built> {
    check(config).map_err(Error::Config)?;
    let config = &*config.of_documents();
    let source = source::open(config)?;
    let key = identity::key(config, source.listing())?;
    let out = OutputDir::create(out_dir)?;
    let tombstones = Tombstones::read_of(&out)?;
    require_list(&out, &tombstones)?;
    let found = finished(&out, &key)?;
    if let Some(summary) = found.filter(|summary| summary.tombstones == tombstones.digest()) {
        // A build that was killed between its last two steps leaves its parts; one at work keeps its own.
        if Parts::left(&out)
            && let Ok(_lock) = PartialDir::begin(&out)
        {
            Parts::clear(&out)?;
        }
        require::met(&config.evaluate, &summary, out_dir)?;
        return Ok(Built { summary, reused: true, spilled_bytes: 0 });
    }
    let assign = Assign::resolve(&config.split, source.listing())?;
    let split_by = if source.verbatim() { "position" } else { assign.in_words() };

    let meters: [Arc<Meter>; 2] = Default::default();
    // Lists and models are read before anything is done; with an engine they are other machines' to read.
    let mut target = match engine {
        None => Target::Local(compose::plan(config, source.clone(), assign.clone(), as_maps(&meters))?),
        Some(engine) => Target::Remote(engine),
    };
    Evaluator::new(&config.evaluate)?;
    let mut folder = PartialDir::begin(&out)?;
    let total_bytes = source.listing().bytes;
    let tick = || {
        let writing = meters[1].documents.load(Ordering::Relaxed) > 0;
        let meter = &meters[usize::from(writing)];
        (context.progress)(Progress {
            stage: if writing { "write" } else { "clean" },
            documents: meter.documents.load(Ordering::Relaxed),
            bytes: meter.bytes.load(Ordering::Relaxed),
            total_bytes,
        });
    };
    let extras = compose::extras(config, source.verbatim());
    let encoders = Encoders::new(context.threads);
    let components: Vec<String> = config.components().into_iter().map(|component| component.name).collect();
    if let Target::Local(plan) = target {
        let plan = match parts::worth(source.as_ref()) {
            true => from_parts(&source, plan, &out, &key, context, &meters[0], &tick)?,
            false => plan,
        };
        target = Target::Local(plan);
    }
    // At most two passes: the second holds out what the first found that validation lacks.
    let (mut choice, mut spilled_bytes) = (None, 0);
    let (mut summary, samples, seen) = loop {
        let spill = folder.dir().create_dir(SPILL).map_err(Error::System)?;
        let sources = &source.listing().sources;
        let mut sink = Documents::create(folder.dir(), sources, &components, &extras, &encoders)?;
        sink.evaluate(Evaluator::new(&config.evaluate)?);
        let mut deleting = DeletionSink { deletions: ApplyDeletions(tombstones.clone()), sink: &mut sink };
        let mut held_out = HoldOut::new(&mut deleting, &assign, choice);
        match &target {
            Target::Remote(engine) => {
                let text = remote::text(config, source.listing())?;
                let parts = out.above.create_dir(out.beside(REMOTE_PARTS)).map_err(Error::System)?;
                engine.run(&text, &parts.path().join(parts::folder_name(&key)), &mut held_out)?;
            }
            Target::Local(plan) => {
                let (threads, memory) = (context.threads, context.memory_budget);
                let executor = Executor::new(threads, memory, &spill, context.stop, &tick);
                executor.run(plan, &mut held_out)?;
                spilled_bytes += executor.spilled_bytes();
            }
        }
        let mut seen = held_out.seen;
        if choice.is_none() && !source.verbatim() {
            choice = seen.choose(&config.split);
            if choice.is_some() {
                drop(sink);
                folder.empty()?;
                meters.iter().for_each(|meter| meter.reset());
                continue;
            }
        }
        let (summary, samples) = sink.finish()?;
        break (summary, samples, seen);
    };
    folder.dir().remove_tree(SPILL, &|_, _| true).map_err(Error::System)?;

    complete(&mut summary, config, source.as_ref(), &seen);
    summary.key = key;
    summary.split_by = split_by.into();
    summary.tombstones = tombstones.digest();
    summary.built_with = Some(built_with(config)?);
    summary.remarks.extend(assign.remarks().iter().cloned());
    summary.remarks.extend(choice.map(|choice| choice.in_words().to_string()));
    if summary.kept.documents == 0 {
        // Parts of a result that is known to be empty are of no use; this build holds the lock.
        Parts::clear(&out)?;
        out.remove_beside(REMOTE_PARTS)?;
        return Err(empty(source.as_ref(), &summary, &seen));
    }
    // The parts stay: another bound alone changes no document.
    require::met(&config.evaluate, &summary, out_dir)?;
    let summary = publish(folder, summary, samples)?;
    Parts::clear(&out)?;
    out.remove_beside(REMOTE_PARTS)?;
    Ok(Built { summary, reused: false, spilled_bytes })
}

/// Adds to what the sink counted what the source and the configuration say.
fn complete(summary: &mut CorpusSummary, config: &CorpusConfig, source: &dyn Source, seen: &Seen) {
    let listing = source.listing();
    summary.format_version = FORMAT_VERSION;
    summary.source = listing.kind.into();
    summary.listed_files = listing.files;
    summary.listed_bytes = listing.bytes;
    summary.fallback.clone_from(&listing.fallback);
    summary.skipped_files = listing.skipped.files();
    summary.skipped.clone_from(&listing.skipped.0);
    summary.rehydrate.clone_from(&config.dedup.rehydrate);
    let found = remarks(config, listing, summary, seen);
    summary.remarks.splice(0..0, found);
}

/// Runs the plan up to its first stage that looks across batches, as parts that outlive the process; returns the
/// rest of the plan over these parts.
fn from_parts(
    source: &Arc<dyn Source>,
    mut plan: Plan,
    out: &OutputDir,
    key: &str,
    context: &BuildContext<'_>,
    meter: &Arc<Meter>,
    tick: &dyn Fn(),
) -> Result<Plan> {
    let across = plan.stages.iter().position(|stage| !matches!(stage, Stage::Map(_) | Stage::FlatMap(_)));
    // The last stage counts what is written, which is not what is cleaned.
    let rest = plan.stages.split_off(across.unwrap_or(plan.stages.len() - 1));
    let parts = Parts::open(out, key)?;
    let known = |documents, bytes| {
        meter.documents.fetch_add(documents, Ordering::Relaxed);
        meter.bytes.fetch_add(bytes, Ordering::Relaxed);
    };
    parts.make(source, &plan.stages, context, &known, tick)?;
    Ok(Plan { source: Arc::new(parts.rows(source.as_ref())?), stages: rest })
}

fn remarks(config: &CorpusConfig, listing: &Listing, summary: &CorpusSummary, seen: &Seen) -> Vec<String> {
    let mut remarks = listing.remarks.clone();
    remarks.extend(listing.fallback.clone());
    // Which files a workspace's packages give is no surprise; which ones a folder gives may be.
    if !["cargo", "python"].contains(&listing.kind) {
        remarks.extend(listing.skipped.in_words());
    }
    if seen.faults > 0 {
        let more = seen.faults.saturating_sub(seen.fault_examples.len() as u64);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let plural = if seen.faults == 1 { "input" } else { "inputs" };
        remarks.push(format!(
            "{} {plural} could not be read to the end: {}{more}",
            seen.faults,
            seen.fault_examples.join("; ")
        ));
    }
    let kept = summary.kept.bytes;
    remarks.extend(held_out::far_too_much(&config.split, summary.split(Split::Validation).bytes, kept));
    remarks.extend(summary.losses().iter().map(Loss::in_words));
    for (split, part) in &summary.splits {
        if part.documents == 0 && config.split.validation_fraction > 0.0 && summary.kept.documents > 0 {
            remarks.push(format!(
                "no document fell to {}; change corpus.split.seed, validation_fraction or by",
                split.name()
            ));
        }
    }
    remarks
}

fn empty(source: &dyn Source, summary: &CorpusSummary, seen: &Seen) -> Error {
    let left_out = source.listing().skipped.in_words();
    let (reasons, hint) = if summary.read.documents == 0 {
        let reasons =
            left_out.unwrap_or_else(|| format!("hidden or excluded files: {}", summary.skipped_files));
        (reasons, "check corpus.path, corpus.extensions and corpus.exclude")
    } else {
        let faults: String = seen.fault_examples.iter().map(|fault| format!("; {fault}")).collect();
        let reasons = format!("reasons: {}{faults}", summary.reasons_in_words());
        let are_chats = summary.sources.iter().any(|source| source.dropped.contains_key("bad-chat"));
        let hint = match are_chats {
            true => {
                "`bessemer chat show FILE --chats 0 --count` names rows that are no chats; docs/chat.md has the forms of rows"
            }
            false => "relax the first of these rules in [corpus.clean] or [corpus.rules]",
        };
        (reasons, hint)
    };
    Error::Empty { place: source.describe(), seen: summary.read.documents, reasons, hint }
}

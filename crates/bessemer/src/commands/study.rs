//! `bessemer study`: experiments whose result is a table, curves and a verdict.

mod coord_check;
mod lr;
mod scaling;
mod trials;

use crate::cli::{StudyCommand, StudyInitArgs};
use crate::console::{Console, print};
use crate::failure::{Failure, code};
use crate::{machine, signals};
use bessemer_arch::Model;
use bessemer_corpus::{BuildContext, CorpusReader, Split};
use bessemer_corpus_config::CorpusConfig;
use bessemer_durable::{FileLock, TextReader};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_optim::OptimConfig;
use bessemer_parallel::MemoryPlan;
use bessemer_runlog::study::{
    STUDY_FILE, STUDY_FORMAT, STUDY_VERSION, Study, StudyMethod, StudySettings, StudyVerdict,
};
use bessemer_runtime::{ActivationConfig, Shape};
use bessemer_study::{METHODS, Method, SymbolText, method, train_one, training_shape};
use bessemer_train::Observer;
use bessemer_units::{Bytes, did_you_mean};
use std::cell::RefCell;
use std::fmt::Write;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Text that is taken from the program's own corpus.
const OWN_TEXT_BYTES: usize = 1 << 20;
/// Rows that the corpus may hold in memory while it is built.
const CORPUS_MEMORY: usize = 256 << 20;

pub(crate) fn run(command: &StudyCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        StudyCommand::Init(args) => init(args, as_json, console),
        StudyCommand::CoordCheck(args) => coord_check::run(args, as_json, console),
        StudyCommand::Scaling(args) => scaling::run(args, as_json, console),
        StudyCommand::Lr(args) => lr::run(args, as_json, console),
    }
}

fn init(args: &StudyInitArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let methods = chosen(&args.methods)?;
    let settings = settings(args)?;
    let stop = signals::stop_flag()?;
    let text = text(args.text.as_deref(), &args.out, args.threads, console, &stop)?;
    text.require(&settings)?;
    for m in &methods {
        let model = model(m, &settings, &text)?;
        require_memory(&model, training_shape(&settings))?;
    }
    let _lock = lock(&args.out)?;
    let path = args.out.join(STUDY_FILE);
    let mut study = begin(&path, &settings, &text, &methods, console)?;
    let finished = train_all(&mut study, args, &text, &path, &stop, console)?;
    let page = args.out.join("report.html");
    bessemer_report::write_study(&page, &study)?;
    if !finished {
        return Err(Failure {
            code: code::CONTINUE,
            message: format!(
                "stopped; {} holds the finished runs; run the same command to continue",
                path.display()
            ),
        });
    }
    console.say(&format!("wrote {} and {}", path.display(), page.display()));
    if as_json {
        return Ok(print(&serde_json::to_string(&study)?)?);
    }
    Ok(print(&summary(&study))?)
}

/// Refuses a network that does not fit: the one that is trained, and the one that is looked at.
fn require_memory(model: &Model, shape: Shape) -> Result<(), Failure> {
    let (activations, optim) = (ActivationConfig::default(), OptimConfig::default());
    let mut plan = MemoryPlan::alone(model, shape, activations, &optim, None)?;
    plan.add("network that is looked at", Bytes(plan.buffers.total().0 - plan.class("optimizer").0));
    Ok(plan.fits(1, machine::available_memory())?)
}

/// Trains what is missing; `study.json` is written after every run. False if it was stopped.
fn train_all(
    study: &mut Study,
    args: &StudyInitArgs,
    text: &SymbolText,
    path: &Path,
    stop: &AtomicBool,
    console: &mut Console,
) -> Result<bool, Failure> {
    let steps = study.settings.steps;
    let total = study.methods.len() as u64 * args.seeds * steps;
    let mut done = study.methods.iter().map(|m| m.runs.len() as u64 * steps).sum::<u64>();
    for seed in args.seed..args.seed + args.seeds {
        for i in 0..study.methods.len() {
            if study.methods[i].runs.iter().any(|r| r.seed == seed) {
                continue;
            }
            let name = study.methods[i].name.clone();
            let Some(method) = method(&name) else { continue };
            // A backend frees its memory only as a whole.
            let threads = machine::threads(args.threads as u64);
            let mut backend = CpuBackend::new(CpuConfig { threads, ..CpuConfig::default() })?;
            let mut on_step = |step| {
                console.progress("training", done + step, total);
                !stop.load(Ordering::Relaxed)
            };
            let run = train_one(&mut backend, method, &study.settings, text, seed, &mut on_step)?;
            let Some(run) = run else { return Ok(false) };
            done += steps;
            let end = match (run.final_loss, run.diverged_at) {
                (Some(loss), _) => format!("validation loss {loss:.4}"),
                (None, Some(step)) => format!("not finite at step {step}"),
                (None, None) => "validation loss not finite".into(),
            };
            console.say(&format!("{name}, seed {seed}: {}, {end}", run.verdict.name()));
            let runs = &mut study.methods[i].runs;
            runs.push(run);
            runs.sort_by_key(|r| r.seed);
            study.write(path)?;
        }
    }
    Ok(true)
}

/// An empty study, with the runs of an earlier session that was asked for the same.
fn begin(
    path: &Path,
    settings: &StudySettings,
    text: &SymbolText,
    methods: &[&Method],
    console: &mut Console,
) -> Result<Study, Failure> {
    let mut study = Study {
        format: STUDY_FORMAT.into(),
        version: STUDY_VERSION,
        settings: settings.clone(),
        text: text.facts().clone(),
        methods: Vec::new(),
    };
    let before = Study::read(path)?;
    if let Some(old) = &before
        && (old.settings != study.settings || old.text != study.text)
    {
        return Err(Failure::usage(format!(
            "{} holds a study with other settings or another text; choose another directory with --out",
            path.display()
        )));
    }
    let old = before.map_or_else(Vec::new, |s| s.methods);
    let kept: usize = old.iter().map(|m| m.runs.len()).sum();
    if kept > 0 {
        console.say(&format!("{} holds {kept} finished runs", path.display()));
    }
    for m in methods {
        let model = model(m, settings, text)?;
        study.methods.push(StudyMethod {
            name: m.name.into(),
            title: m.title.into(),
            parameters: model.parameters() as u64,
            runs: Vec::new(),
        });
    }
    // Runs of methods that were not asked for this time stay in the file.
    for m in old {
        match study.methods.iter_mut().find(|new| new.name == m.name) {
            Some(new) => new.runs = m.runs,
            None => study.methods.push(m),
        }
    }
    Ok(study)
}

fn model(method: &Method, settings: &StudySettings, text: &SymbolText) -> Result<Model, Failure> {
    method.model(settings, text.facts().symbols as usize).map_err(Failure::usage)
}

/// Makes the directory and takes it for this process; the system drops the lock with the process, however that ends.
fn lock(out: &Path) -> Result<FileLock, Failure> {
    create(out)?;
    FileLock::try_acquire(&out.join(".lock"))?.ok_or_else(|| {
        Failure::new(format!(
            "another process is using {}; wait until it ends, stop it, or choose another directory with --out",
            out.display()
        ))
    })
}

fn create(folder: &Path) -> Result<(), Failure> {
    Ok(bessemer_durable::create_dir_all(folder)?)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Method>, Failure> {
    if names.is_empty() {
        return Ok(METHODS.iter().collect());
    }
    let known: Vec<&str> = METHODS.iter().map(|m| m.name).collect();
    let mut list: Vec<&Method> = Vec::new();
    for name in names {
        let found = method(name).ok_or_else(|| {
            let near = did_you_mean(name, known.iter().copied());
            Failure::usage(format!("--methods: no method {name:?}{near}; known: {}", known.join(", ")))
        })?;
        if !list.contains(&found) {
            list.push(found);
        }
    }
    Ok(list)
}

fn settings(args: &StudyInitArgs) -> Result<StudySettings, Failure> {
    let counts = [
        ("--layers", args.layers, 1000),
        ("--width", args.width, 1 << 14),
        ("--heads", args.heads, 1 << 10),
        ("--context", args.context, 1 << 16),
        ("--batch", args.batch, 1 << 16),
        ("--steps", args.steps, 1 << 32),
        ("--seeds", args.seeds, 1000),
    ];
    for (key, value, most) in counts {
        if !(1..=most).contains(&value) {
            return Err(Failure::usage(format!("{key}: wanted 1 to {most}, found {value}")));
        }
    }
    if !(args.lr > 0.0 && args.lr <= 100.0) {
        return Err(Failure::usage(format!("--lr: wanted above 0, at most 100, found {}", args.lr)));
    }
    Ok(StudySettings {
        layers: args.layers,
        width: args.width,
        heads: args.heads,
        context: args.context,
        batch: args.batch,
        steps: args.steps,
        lr: args.lr,
        beta1: 0.9,
        beta2: 0.999,
    })
}

/// The file that was named, or the beginning of the corpus of the quickstart.
fn text(
    file: Option<&Path>,
    out: &Path,
    threads: usize,
    console: &mut Console,
    stop: &AtomicBool,
) -> Result<SymbolText, Failure> {
    if let Some(file) = file {
        let mut bytes = Vec::new();
        // Bytes that are no text are symbols too.
        bessemer_durable::open_input(file)
            .and_then(|file| TextReader::buffered(file).read_to_end(&mut bytes))
            .map_err(|e| Failure::new(format!("cannot read --text {}: {e}", file.display())))?;
        let name = file.file_name().map_or_else(|| file.display().to_string(), |n| n.display().to_string());
        return Ok(SymbolText::new(&name, &bytes)?);
    }
    create(out)?;
    let folder = out.join("corpus");
    let shared = RefCell::new(&mut *console);
    let context = BuildContext {
        threads: machine::threads(threads as u64),
        memory_budget: CORPUS_MEMORY,
        progress: &|p| shared.borrow_mut().progress("corpus", p.bytes, p.total_bytes),
        stop,
    };
    bessemer_corpus::build(&CorpusConfig::default(), &folder, &context)?;
    let reader = CorpusReader::open(&folder)?;
    let source = reader.summary().source.clone();
    let mut text = String::new();
    for document in reader.documents(Split::Train) {
        // Plain ASCII: a few foreign characters would only add symbols that are never learnt.
        text.extend(document?.text.chars().filter(char::is_ascii));
        if text.len() >= OWN_TEXT_BYTES {
            break;
        }
    }
    text.truncate(OWN_TEXT_BYTES);
    console.say(&format!("no --text: the first {} bytes of the quickstart's corpus ({source})", text.len()));
    Ok(SymbolText::new(&format!("the quickstart's corpus ({source})"), text.as_bytes())?)
}

/// The table for people.
fn summary(study: &Study) -> String {
    let widest = study.methods.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let mut out =
        format!("{:<widest$}  {:<16}  validation loss, nats a {}\n", "method", "verdict", study.text.unit);
    for m in &study.methods {
        let loss = m.final_loss().map_or("–".into(), |(mean, spread)| format!("{mean:.4} ± {spread:.4}"));
        let _ = writeln!(out, "{:<widest$}  {:<16}  {loss}", m.name, m.verdict());
    }
    let _ = write!(
        out,
        "knows nothing {:.4}, single symbols {:.4} (stalled: less than {} below), pairs {:.4}",
        study.text.uniform_nats(),
        study.text.unigram_nats,
        StudyVerdict::MARGIN,
        study.text.bigram_nats
    );
    out
}

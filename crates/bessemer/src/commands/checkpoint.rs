//! `bessemer checkpoint`: list, check, thin out, export, import.

use crate::cli::{CheckpointCommand, RunArgs};
use crate::commands::saved_model::{SavedModel, exists, is_parameter, no_checkpoint, open_checkpoint};
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_checkpoint::hf::{HfExport, export_hf};
use bessemer_checkpoint::{Retention, Store};
use bessemer_train::{Observer, TrainState, checkpoints};
use bessemer_units::{Bytes, DType, Tokens};
use serde_json::json;
use std::path::Path;

/// Files of an export grow to this size at most.
const EXPORT_FILE_BYTES: u64 = 5 << 30;

pub(crate) fn run(command: &CheckpointCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        CheckpointCommand::Ls { run } => list(&RunDir::new(run), as_json, console),
        CheckpointCommand::Inspect(args) => inspect(args, as_json),
        CheckpointCommand::Verify(args) => verify(args, as_json, console),
        CheckpointCommand::Gc { run, keep_last } => {
            holds_checkpoints(&RunDir::new(run))?;
            let dir = RunDir::new(run);
            let store = checkpoints(dir.root());
            let done = store.gc(&retention(&dir, &store, *keep_last)?)?;
            for (step, file) in &done.spared {
                console.say(&format!(
                    "kept step {step}: {} was not written by this program; move it away to let the checkpoint go",
                    file.display()
                ));
            }
            Ok(print(&match as_json {
                true => json!({ "removed": done.removed, "kept": done.kept, "freed_bytes": done.freed })
                    .to_string(),
                false => format!(
                    "removed {} checkpoints ({}), kept {}",
                    done.removed.len(),
                    Bytes(done.freed),
                    done.kept.len()
                ),
            })?)
        }
        CheckpointCommand::Export { run, to, out, dtype, overwrite } => {
            export(run, (to, (*dtype).into()), (out, *overwrite), as_json, console)
        }
        CheckpointCommand::Import { from, out } => super::import::run(from, out, console),
    }
}

/// Errors if the directory is no run that has saved: "nothing is damaged" must not be said of nothing.
fn holds_checkpoints(dir: &RunDir) -> Result<(), Failure> {
    exists(dir.root())?;
    match dir.checkpoints().is_dir() {
        true => Ok(()),
        false => Err(no_checkpoint(dir)),
    }
}

/// What to keep: what the command line says, else what the run's recipe and its newest checkpoint say.
fn retention(dir: &RunDir, store: &Store, keep_last: Option<u64>) -> Result<Retention, Failure> {
    if let Some(keep_last) = keep_last {
        return Ok(Retention { keep_last, ..Retention::default() });
    }
    let recipe = bessemer_recipe::load_recipe(&dir.recipe(), &[])?.value;
    let Some(newest) = store.latest_valid()? else { return Err(no_checkpoint(dir)) };
    let state = TrainState::of(newest.loaded.manifest()).map_err(Failure::new)?;
    Ok(state.retention(&recipe))
}

fn list(dir: &RunDir, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    holds_checkpoints(dir)?;
    let scan = checkpoints(dir.root()).scan()?;
    for c in &scan.complete {
        let text = match as_json {
            true => json!({ "step": c.step, "tokens": c.tokens, "bytes": c.bytes, "pinned": c.pinned, "linked": c.linked, "path": c.path.display().to_string() })
                .to_string(),
            false => format!(
                "step {:>8}  {:>8} tokens  {:>9}  {}{}{}",
                c.step,
                Tokens(c.tokens),
                Bytes(c.bytes),
                c.path.display(),
                if c.pinned { "  (pinned)" } else { "" },
                if c.linked { "  (linked)" } else { "" }
            ),
        };
        print(&text)?;
    }
    for d in &scan.damaged {
        console.say(&format!("damaged: {}: {}", d.path.display(), d.why));
    }
    Ok(())
}

fn inspect(args: &RunArgs, as_json: bool) -> Result<(), Failure> {
    let checkpoint = open_checkpoint(&RunDir::new(&args.run), args.step)?;
    let m = checkpoint.manifest();
    let shown = |name: &str| as_json || is_parameter(name);
    let tensors = m.tensors.iter().filter(|t| shown(&t.name));
    if as_json {
        let tensors: Vec<_> =
            tensors.map(|t| json!({ "name": t.name, "dtype": t.dtype, "shape": t.shape })).collect();
        return Ok(print(&serde_json::to_string_pretty(&json!({
            "step": m.step, "tokens": m.tokens, "writer": m.writer, "bytes": m.bytes(), "state": m.state,
            "tokenizer": m.tokenizer, "tensors": tensors,
        }))?)?);
    }
    print(&format!(
        "{}\nstep {}, {} tokens, {}, written by {}",
        checkpoint.path().display(),
        m.step,
        Tokens(m.tokens),
        Bytes(m.bytes()),
        m.writer
    ))?;
    for t in tensors {
        print(&format!("  {:<44} {:<5} {:?}", t.name, t.dtype.to_string(), t.shape))?;
    }
    Ok(())
}

fn verify(args: &RunArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let dir = RunDir::new(&args.run);
    holds_checkpoints(&dir)?;
    // What `train` takes for intact, and nothing else: the store holds bytes, names and state against each other.
    let store = checkpoints(dir.root());
    let steps = match args.step {
        Some(step) => vec![step],
        None => store.named_steps()?,
    };
    let mut damaged = 0;
    for step in &steps {
        let path = store.path(*step);
        let progress = &mut |done, total| console.progress("verifying", done, total);
        let loaded = store.load_with(*step, progress);
        let result = loaded.and_then(|loaded| store.check_chain(loaded.manifest()));
        let text = match (&result, as_json) {
            (Ok(_), false) => format!("intact   {}", path.display()),
            (Err(e), false) => format!("damaged  {}: {e}", path.display()),
            (r, true) => json!({ "path": path.display().to_string(), "intact": r.is_ok(), "problem": r.as_ref().err().map(ToString::to_string) }).to_string(),
        };
        damaged += u32::from(result.is_err());
        print(&text)?;
    }
    match damaged {
        0 => Ok(()),
        n => Err(Failure::new(format!("{n} of {} checkpoints are damaged", steps.len()))),
    }
}

fn export(
    args: &RunArgs,
    (to, dtype): (&str, DType),
    (out, overwrite): (&Path, bool),
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    if to != "hf" {
        return Err(Failure::usage(format!("--to {to}: wanted hf")));
    }
    let saved = SavedModel::open(args)?;
    let end = saved.tokenizer.end_of_text();
    let mut tensors = saved.checkpoint.tensors(is_parameter);
    let report = export_hf(
        out,
        HfExport {
            model: saved.model(),
            tensors: &mut tensors,
            dtype,
            // Rows that only round the vocabulary up mean nothing to other tools.
            vocab_size: Some(saved.tokenizer.vocab_size()),
            bos_token_id: end,
            eos_token_id: end,
            extra_files: saved.tokenizer.hf_files(),
            max_file_bytes: EXPORT_FILE_BYTES,
            overwrite,
            progress: &mut |done, total| console.progress("exporting", done, total),
        },
    )?;
    for note in &report.notes {
        console.say(&format!("note: {note}"));
    }
    Ok(print(&match as_json {
        true => json!({ "path": report.path.display().to_string(), "architecture": report.architecture, "bytes": report.bytes, "files": report.files })
            .to_string(),
        false => format!("{} ({}, {})", report.path.display(), report.architecture, Bytes(report.bytes)),
    })?)
}

//! `bessemer checkpoint`: list, check, compare, thin out, copy, plan, reshard, export, import.

mod diff;
mod export;
mod place;
mod plan;
mod reshard;
mod upload;

pub(crate) use place::{Place, remote};

use crate::cli::{CheckpointCommand, PlaceArgs};
use crate::commands::saved_model::{is_parameter, warned};
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_checkpoint::{CheckpointError, RemoteStore, Retention};
use bessemer_recipe::parse_recipe;
use bessemer_train::{Observer, TrainState, sweep_copies_in_memory};
use bessemer_units::{Bytes, Tokens, counted};
use serde_json::json;
use std::path::Path;

/// Advice about damaged checkpoints.
const REMEDY: &str = "restore a damaged one from a copy, or remove its directory; a run continues from the newest that is intact";

pub(crate) fn run(command: &CheckpointCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        CheckpointCommand::Ls { run } => list(run, as_json, console),
        CheckpointCommand::Inspect(args) => inspect(args, as_json, console),
        CheckpointCommand::Verify(args) => verify(args, as_json, console),
        CheckpointCommand::Gc { run, keep_last } => {
            let place = Place::open(run)?;
            let rule = retention(&place, *keep_last, console)?;
            match &place.remote {
                Some(remote) => gc_remote(remote, &rule, as_json),
                None => gc(&place, &rule, as_json, console),
            }
        }
        CheckpointCommand::Diff { a, b, tensors } => diff::run(a, b, *tensors, as_json, console),
        CheckpointCommand::Plan(args) => plan::run(args, as_json),
        CheckpointCommand::Reshard(args) => reshard::run(args, as_json, console),
        CheckpointCommand::Copy { from, to, step } => upload::copy(from, to, *step, as_json, console),
        CheckpointCommand::Upload { run, to, take_over } => {
            upload::upload(run, to.as_deref(), *take_over, as_json, console)
        }
        CheckpointCommand::Export(args) => export::run(args, as_json, console),
        CheckpointCommand::Import { from, adapters, unchecked_base, out } => {
            super::import::run(from, adapters.as_deref().map(|dir| (dir, *unchecked_base)), out, console)
        }
    }
}

/// Rules of retention: those of the command line, else of the run's recipe and its newest checkpoint. Outside of a run the recipe is
/// the one in that checkpoint.
fn retention(place: &Place, keep_last: Option<u64>, console: &mut Console) -> Result<Retention, Failure> {
    if let Some(keep_last) = keep_last {
        return Ok(Retention { keep_last, ..Retention::default() });
    }
    let recipe = place.run.as_ref().map(RunDir::load_recipe).transpose()?;
    let manifest = warned(place.load_newest()?, console).into_manifest();
    let recipe = match recipe {
        Some(recipe) => recipe.value,
        None => parse_recipe("recipe in the newest checkpoint", &manifest.recipe, &[])?.value,
    };
    Ok(TrainState::of(&manifest).map_err(Failure::new)?.retention(&recipe))
}

fn gc(place: &Place, rule: &Retention, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let done = place.store.gc(rule)?;
    let memory = place.run.as_ref().and_then(|run| Some(run.load_recipe().ok()?.value.save.memory));
    for path in sweep_copies_in_memory(&memory.unwrap_or_default()) {
        console.say(&format!("removed copies in memory of a run that no longer exists: {}", path.display()));
    }
    for (step, file) in &done.spared {
        console.say(&format!(
            "kept step {step}: {} was not written by this program; move it elsewhere so that the checkpoint \
             can be removed",
            file.display()
        ));
    }
    Ok(print(&match as_json {
        true => json!({ "removed": done.removed, "kept": done.kept, "freed_bytes": done.freed }).to_string(),
        false => format!(
            "removed {} ({}), kept {}",
            counted(done.removed.len(), "checkpoint"),
            Bytes(done.freed),
            done.kept.len()
        ),
    })?)
}

fn gc_remote(remote: &RemoteStore, rule: &Retention, as_json: bool) -> Result<(), Failure> {
    let done = remote.gc(rule)?;
    Ok(print(&match as_json {
        true => serde_json::to_string(&done)?,
        false => format!(
            "removed {} ({}), kept {}",
            counted(done.removed.len(), "checkpoint"),
            counted(done.objects, "object"),
            done.kept.len()
        ),
    })?)
}

fn list(place: &Path, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let scan = Place::open(place)?.store.scan()?;
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

fn inspect(args: &PlaceArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let place = Place::open(&args.run)?;
    let checkpoint = match args.step {
        Some(step) => place.store.load(step).map_err(|e| Failure::new(format!("--step {step}: {e}")))?,
        None => warned(place.load_newest()?, console),
    };
    let m = checkpoint.manifest();
    let shown = |name: &str| as_json || is_parameter(name);
    let tensors = m.tensors.iter().filter(|t| shown(&t.name));
    if as_json {
        let tensors: Vec<_> =
            tensors.map(|t| json!({ "name": t.name, "dtype": t.dtype, "shape": t.shape })).collect();
        return Ok(print(&serde_json::to_string(&json!({
            "step": m.step, "tokens": m.tokens, "writer": m.writer, "bytes": m.bytes(), "state": m.state,
            "tokenizer": m.tokenizer, "tensors": tensors,
        }))?)?);
    }
    let imported = m.state.get("model_type").and_then(serde_json::Value::as_str);
    let imported = imported.map_or(String::new(), |name| format!(", imported from a model of type {name}"));
    print(&format!(
        "{}\nstep {}, {} tokens, {}, written by {}{imported}",
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

fn verify(args: &PlaceArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    // What `train` takes for intact, and nothing else: the store holds bytes, names and state against each other.
    let place = Place::open(&args.run)?;
    let (store, steps) = (&place.store, place.steps(args.step)?);
    let mut damaged = 0;
    for step in &steps {
        let path = store.path(*step);
        let progress = &mut |done, total| console.progress("verifying", done, total);
        let loaded = store.load_with(*step, progress);
        let result = loaded.and_then(|loaded| store.check_chain(loaded.manifest()));
        if let Err(e @ CheckpointError::Remote(_)) = result {
            // Not reached is not damaged.
            return Err(e.into());
        }
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
        1 if steps.len() == 1 => Err(Failure::new(format!("the checkpoint is damaged; {REMEDY}"))),
        n => {
            Err(Failure::new(format!("{n} of {} are damaged; {REMEDY}", counted(steps.len(), "checkpoint"))))
        }
    }
}

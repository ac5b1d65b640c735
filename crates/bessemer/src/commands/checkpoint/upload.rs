//! `bessemer checkpoint upload` and `copy`: checkpoints to and from object stores.

use super::place::{Place, remote};
use crate::commands::saved_model::{exists, no_checkpoint, warned};
use crate::console::{Console, print};
use crate::failure::{Failure, code};
use crate::run_dir::{RunDir, UPLOAD_LOCK, UPLOAD_OWNER};
use bessemer_checkpoint::{Latest, Owner, Store};
use bessemer_object_store::is_address;
use bessemer_train::{Observer, TrainState};
use bessemer_units::Bytes;
use serde_json::json;
use std::path::Path;

/// Makes the object store of a run hold what its rule keeps.
pub(crate) fn upload(
    run: &Path,
    to: Option<&str>,
    take_over: bool,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    exists(run)?;
    let dir = RunDir::new(run);
    let recipe = dir.load_recipe()?.value;
    let url = to.unwrap_or(&recipe.save.upload);
    if url.is_empty() {
        return Err(Failure::usage(
            "no upload address: save.upload of the run is empty; add --to s3://BUCKET/PREFIX",
        ));
    }
    // One at a time: the first one also uploads what is saved meanwhile, or is asked again.
    let Some(_lock) = dir.handle()?.try_lock(UPLOAD_LOCK)? else {
        let message = format!(
            "another process is uploading the checkpoints of {}; wait until it has ended",
            run.display()
        );
        return Err(Failure { code: code::CONTINUE, message });
    };
    let local = dir.store()?;
    let newest = local.latest_complete_until(u64::MAX)?;
    let Some((newest, skipped)) = newest else { return Err(no_checkpoint(&dir)) };
    let loaded = local.load_lazily(newest)?;
    let manifest = warned(Latest { loaded, skipped }, console).into_manifest();
    let retention = TrainState::of(&manifest).map_err(Failure::new)?.retention(&recipe);
    let owner = Owner::of_file(dir.handle()?, UPLOAD_OWNER)?;
    let remote = remote(url)?;
    if take_over {
        remote.take_over(&owner)?;
    }
    let progress = &mut |done, total| console.progress("uploading", done, total);
    let done = remote.synchronise(&local, &owner, &retention, progress)?;
    Ok(print(&match as_json {
        true => serde_json::to_string(&done)?,
        false => format!(
            "{url}: uploaded {} ({}), removed {}, kept {}",
            done.uploaded.len(),
            Bytes(done.bytes),
            done.retracted.len() + done.removed.removed.len(),
            done.removed.kept.len()
        ),
    })?)
}

/// Copies one checkpoint to a directory of checkpoints or into an object store.
pub(crate) fn copy(
    from: &Path,
    to: &Path,
    step: Option<u64>,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let place = Place::open(from)?;
    let (step, skipped) = place.step(step)?;
    for skipped in &skipped {
        console.say(&format!("warning: {skipped}; step {step} is used instead"));
    }
    let progress = &mut |done, total| console.progress("copying", done, total);
    let (path, bytes) = match to.to_str().filter(|text| is_address(text)) {
        Some(_) if place.remote.is_some() => {
            return Err(Failure::usage(
                "cannot copy from one object store to another; copy to a local directory first",
            ));
        }
        Some(url) => {
            let remote = remote(url)?;
            let bytes = remote.upload_step(&place.store, step, progress)?;
            (remote.reader().path(step), bytes)
        }
        None => {
            let store = Store::open(to);
            (store.path(step), store.copy_from(&place.store, step, progress)?.map(|report| report.bytes))
        }
    };
    let path = path.display();
    Ok(print(&match (as_json, bytes) {
        (true, bytes) => {
            json!({ "path": path.to_string(), "copied": bytes.is_some(), "bytes": bytes }).to_string()
        }
        (false, Some(bytes)) => format!("{path} ({})", Bytes(bytes)),
        (false, None) => format!("{path} already exists"),
    })?)
}

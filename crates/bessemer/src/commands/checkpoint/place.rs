//! Where checkpoints are: in a run directory, in a directory of checkpoints, or in an object store.

use crate::commands::saved_model::{exists, no_checkpoint};
use crate::failure::Failure;
use crate::run_dir::RunDir;
use crate::stages::access;
use bessemer_checkpoint::{Latest, Manifest, RemoteStore, Skipped, Store, parse_step_name};
use bessemer_object_store::{RemoteOptions, is_address};
use bessemer_train::TrainState;
use std::path::Path;
use std::time::Duration;

/// Longest time for a request with its body.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A place of checkpoints, opened for reading.
pub(crate) struct Place {
    /// Its checkpoints; those of an object store can only be read.
    pub(crate) store: Store,
    /// The object store, if it is one.
    pub(crate) remote: Option<RemoteStore>,
    /// The run directory, if it is one.
    pub(crate) run: Option<RunDir>,
    /// Step of the checkpoint that the name leads to, if it leads to one.
    step: Option<u64>,
}

/// Decides as training does whether an intact manifest makes sense.
fn accept(manifest: &Manifest) -> Result<(), String> {
    TrainState::of(manifest).map(|_| ())
}

/// The checkpoints of an object store.
pub(crate) fn remote(url: &str) -> Result<RemoteStore, Failure> {
    // A part still arrives over a line of 30 kB a second.
    let options = RemoteOptions { timeout: TIMEOUT, part_bytes: 8 << 20, ..access().options() };
    Ok(RemoteStore::open(url, options, accept)?)
}

impl Place {
    /// Looks at a name: `runs/x`, `runs/x/checkpoints`, `runs/x/checkpoints/step-00000100`, `s3://bucket/prefix` or
    /// `s3://bucket/prefix/step-00000100`.
    ///
    /// # Errors
    /// There is no such directory, or it holds no checkpoint; an address in a program without object stores.
    pub(crate) fn open(name: &Path) -> Result<Place, Failure> {
        let step = name.file_name().and_then(|n| n.to_str()).and_then(parse_step_name);
        if let Some(url) = name.to_str().filter(|text| is_address(text)) {
            let of_store = url.rsplit_once('/').filter(|_| step.is_some()).map_or(url, |(store, _)| store);
            let remote = remote(of_store)?;
            return Ok(Place { store: remote.reader(), remote: Some(remote), run: None, step });
        }
        exists(name)?;
        if let (Some(step), Some(parent)) = (step, name.parent()) {
            let store = Store::open(parent).accepting(accept);
            return Ok(Place { store, remote: None, run: None, step: Some(step) });
        }
        let store = Store::open(name).accepting(accept);
        if !store.named_steps()?.is_empty() {
            return Ok(Place { store, remote: None, run: None, step: None });
        }
        let run = RunDir::new(name);
        match run.checkpoints().is_dir() {
            true => Ok(Place { store: run.store()?, remote: None, run: Some(run), step: None }),
            // "Nothing is damaged" must not be said of nothing.
            false => Err(no_checkpoint(&run)),
        }
    }

    /// The place of the checkpoint that a run begins with.
    ///
    /// # Errors
    /// Errors of [`Place::open`]; a model directory of Hugging Face is refused.
    pub(crate) fn open_initial(name: &Path) -> Result<Place, Failure> {
        if name.join("config.json").is_file() && !name.join("checkpoints").is_dir() {
            let name = name.display();
            return Err(Failure::new(format!(
                "{name} is a Hugging Face model directory, wanted a run or a checkpoint; import it first: \
                 bessemer checkpoint import {name} --out runs/imported"
            )));
        }
        Place::open(name)
    }

    /// The step that is meant: the one that the name leads to, that of the flag `--step`, or the newest complete one, with
    /// newer checkpoints that are damaged.
    ///
    /// # Errors
    /// Two different steps; no checkpoint.
    pub(crate) fn step(&self, flag: Option<u64>) -> Result<(u64, Vec<Skipped>), Failure> {
        match (self.step, flag) {
            (Some(named), Some(flag)) if named != flag => Err(Failure::usage(format!(
                "--step {flag}: the given directory is the checkpoint of step {named}; leave out --step, or \
                 name the run directory"
            ))),
            (Some(step), _) | (None, Some(step)) => Ok((step, Vec::new())),
            (None, None) => self.store.latest_complete_until(u64::MAX)?.ok_or_else(|| self.empty()),
        }
    }

    /// The checkpoint that the name leads to, or the newest intact one. On a disk every byte of it is verified; in an object store
    /// each chunk when something of it is read first.
    ///
    /// # Errors
    /// No checkpoint, or none that is intact.
    pub(crate) fn load_newest(&self) -> Result<Latest, Failure> {
        if self.remote.is_some() || self.step.is_some() {
            return self.load_lazily(None);
        }
        self.store.latest_valid()?.ok_or_else(|| self.empty())
    }

    fn empty(&self) -> Failure {
        let dir = self.store.dir().display();
        Failure::new(format!("{dir} holds no checkpoint; train first: bessemer run RECIPE"))
    }

    /// The steps that are meant: the one that the name or the flag gives, else all that bear a checkpoint's name.
    ///
    /// # Errors
    /// Errors of [`Place::step`].
    pub(crate) fn steps(&self, flag: Option<u64>) -> Result<Vec<u64>, Failure> {
        match self.step.or(flag) {
            Some(_) => Ok(vec![self.step(flag)?.0]),
            None => Ok(self.store.named_steps()?),
        }
    }

    /// The checkpoint that is meant; each chunk is verified when something of it is read first.
    ///
    /// # Errors
    /// Errors of [`Place::step`]; a damaged manifest.
    pub(crate) fn load_lazily(&self, flag: Option<u64>) -> Result<Latest, Failure> {
        let (step, skipped) = self.step(flag)?;
        let loaded = match self.store.named_steps()?.contains(&step) {
            true => self.store.load_lazily(step)?,
            // Its error lists the steps that there are.
            false => self.store.load(step)?,
        };
        Ok(Latest { loaded, skipped })
    }
}

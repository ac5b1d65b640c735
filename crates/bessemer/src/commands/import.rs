//! `bessemer checkpoint import`: a run directory from a Hugging Face model directory.

use crate::commands::adapters::check_hash;
use crate::commands::chat_template;
use crate::commands::saved_model::load_tokenizer;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::{LOCK, RECIPE, RunDir, TOKENIZER};
use bessemer_checkpoint::hf::import_hf;
use bessemer_checkpoint::{SaveRequest, base_hash};
use bessemer_durable::{ConfinedDir, EntryKind, FileLock};
use bessemer_loader::LoaderState;
use bessemer_recipe::continued_recipe;
use bessemer_tokenizer::Tokenizer;
use bessemer_train::{Observer, RunIdentity, SpikeState, TrainState, checkpoints_in};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Files of the checkpoint grow to this size at most.
const FILE_BYTES: u64 = 4 << 30;

pub(crate) fn run(
    from: &Path,
    adapters: Option<(&Path, bool)>,
    out: &Path,
    console: &mut Console,
) -> Result<(), Failure> {
    let checkpoint = import(from, adapters, out, console)?;
    Ok(print(&checkpoint.display().to_string())?)
}

/// Makes a run directory of a model and, if a directory of some is given, of its adapters, and whether their base is not checked; the path of its
/// checkpoint.
pub(crate) fn import(
    from: &Path,
    adapters: Option<(&Path, bool)>,
    out: &Path,
    console: &mut Console,
) -> Result<PathBuf, Failure> {
    is_free(out)?;
    let mut model = import_hf(from)?;
    let mut base = None;
    if let Some((adapters, unchecked)) = adapters {
        let plain = model.model().clone();
        model.add_adapters(adapters)?;
        let hash = base_hash(&plain, &mut model).map_err(|e| Failure::new(e.to_string()))?;
        check_hash(adapters, model.base_hash(), unchecked, &hash)?;
        base = Some(hash);
    }
    for note in model.notes() {
        console.say(&format!("note: {note}"));
    }
    let tokenizer_file = from.join("tokenizer.json");
    let tokenizer = match tokenizer_file.exists() {
        true => Some(load_tokenizer(&tokenizer_file)?),
        false => {
            console
                .say("note: no tokenizer.json there; put one into the run directory to evaluate or generate");
            None
        }
    };
    let templates = chat_template::files_of(&RunDir::new(from)).unwrap_or_else(|e| {
        console.say(&format!("note: chats will have no template: {}", e.message));
        Vec::new()
    });
    let fingerprint = tokenizer.as_ref().map(Tokenizer::fingerprint).unwrap_or_default();
    let architecture = model.model().clone();
    let state = TrainState {
        step: 0,
        updates: Some(0),
        tokens: 0,
        seconds: 0.0,
        loader: LoaderState { seq_len: architecture.context as u64, ..LoaderState::default() },
        spikes: SpikeState::default(),
        loss_scale: None,
        best: Vec::new(),
        batch_origin: None,
        initial: None,
        teacher: None,
        early_stop: None,
        run: None,
        model_type: Some(model.model_type().to_owned()),
        base,
        identity: RunIdentity {
            model: architecture.clone(),
            tokenizer: fingerprint.clone(),
            seed: 0,
            sequences_per_step: 0,
        },
    };
    let unfinished = Unfinished::begin(out)?;
    let dir = &unfinished.dir;
    if let Some(tokenizer) = &tokenizer {
        tokenizer.save_in(dir, TOKENIZER)?;
        for (name, text) in templates {
            dir.write(name, text.as_bytes())?;
        }
    }
    let saved = checkpoints_in(dir).save(SaveRequest {
        step: 0,
        tokens: 0,
        state: serde_json::to_value(&state)?,
        recipe: String::new(),
        tokenizer: tokenizer.is_some().then_some(fingerprint),
        tensors: &mut model,
        max_file_bytes: FILE_BYTES,
        progress: &mut |done, total| console.progress("importing", done, total),
    })?;
    let run = RunDir::new(out);
    let file = tokenizer.is_some().then(|| run.tokenizer());
    let base = continued_recipe(model.config(), run.root(), file.as_deref())?;
    dir.write(RECIPE, base.as_bytes())?;
    let checkpoint = run.checkpoints().join(saved.path.file_name().unwrap_or_default());
    unfinished.publish()?;
    console.say(&architecture.summary());
    console.say(&format!("{} can be the base of a recipe that trains it further", run.recipe().display()));
    Ok(checkpoint)
}

/// Errors if there is something at `out` already: an import makes a new directory.
fn is_free(out: &Path) -> Result<(), Failure> {
    let taken = |what: &str| Failure::new(format!("{} {what}; import into a new directory", out.display()));
    match out.symlink_metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e.into()),
        Ok(found) if !found.is_dir() => Err(taken("exists and is not a directory")),
        Ok(_) if bessemer_durable::list(out)?.is_empty() => Ok(()),
        Ok(_) => Err(taken("is not empty")),
    }
}

/// A run directory under a hidden name beside the one that it will bear: one that is there is whole, and an import that was
/// killed can be repeated.
struct Unfinished {
    parent: ConfinedDir,
    /// Hidden name.
    partial: OsString,
    name: OsString,
    dir: ConfinedDir,
    lock: Option<FileLock>,
}

impl Unfinished {
    /// Makes the hidden directory, and removes those of imports to the same place that were killed.
    fn begin(out: &Path) -> Result<Unfinished, Failure> {
        let name = out.file_name().ok_or_else(|| {
            Failure::usage(format!("--out {}: wanted the name of a new directory", out.display()))
        })?;
        let parent = ConfinedDir::create_named(bessemer_durable::parent(out))?;
        let mut prefix = OsString::from(".");
        prefix.push(name);
        prefix.push(".partial-");
        for (left, kind) in parent.list("")? {
            if kind == EntryKind::Directory && left.as_bytes().starts_with(prefix.as_bytes()) {
                // Best effort: a hidden directory costs space and nothing else.
                let _ = remove_unfinished(&parent, &left);
            }
        }
        let mut partial = prefix;
        partial.push(std::process::id().to_string());
        parent.make_dir(&partial)?;
        let dir = parent.dir(&partial)?;
        let lock = dir.try_lock(LOCK)?;
        Ok(Unfinished { parent, partial, name: name.to_owned(), dir, lock })
    }

    /// Gives the finished directory its name, durably.
    fn publish(mut self) -> Result<(), Failure> {
        if let Some(lock) = self.lock.take() {
            lock.remove();
        }
        self.dir.sync()?;
        self.parent.rename(&self.partial, &self.name)?;
        Ok(self.parent.sync()?)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.lock = None;
        // After `publish` there is none of that name. Best effort: the next import to the same place removes what stays.
        let _ = remove_unfinished(&self.parent, &self.partial);
    }
}

/// Removes an unfinished run directory on which no process is at work, if it holds only what an import writes.
fn remove_unfinished(parent: &ConfinedDir, name: &OsStr) -> std::io::Result<()> {
    let Some(lock) = parent.dir(name)?.try_lock(LOCK)? else { return Ok(()) };
    let ours = |below: &Path, _: EntryKind| {
        let first = below.components().next().map(|first| first.as_os_str().as_bytes());
        first.is_some_and(|first| {
            let first = first.strip_prefix(b".").unwrap_or(first);
            let first = first.strip_suffix(b".partial").unwrap_or(first);
            [RECIPE, TOKENIZER, "checkpoints", "lock"].iter().any(|name| name.as_bytes() == first)
        })
    };
    let removed = parent.remove_tree(name, &ours);
    drop(lock);
    removed
}

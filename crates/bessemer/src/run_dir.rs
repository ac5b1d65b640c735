//! A run directory: opened once, and the names of its files.

use crate::commands::saved_model::named_tokenizer_error;
use crate::failure::Failure;
use bessemer_checkpoint::Store;
use bessemer_durable::ConfinedDir;
use bessemer_recipe::{Loaded, Recipe, parse_recipe};
use bessemer_tokenizer::Tokenizer;
use bessemer_train::checkpoints_in;
use bessemer_units::nearest;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The resolved recipe.
pub(crate) const RECIPE: &str = "recipe.toml";
/// The tokenizer in the Hugging Face format.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// Token shards.
pub(crate) const SHARDS: &str = "shards";
/// Cleaned documents and their statistics.
pub(crate) const CORPUS: &str = "corpus";
/// Markers of finished stages.
pub(crate) const STAGES: &str = "stages";
/// The report.
pub(crate) const REPORT: &str = "report.html";
/// The file that the process at work on the run holds locked.
pub(crate) const LOCK: &str = ".lock";
/// The file that the process that uploads checkpoints holds locked.
pub(crate) const UPLOAD_LOCK: &str = ".upload.lock";
/// Identity of the run for the object store that its checkpoints go to.
pub(crate) const UPLOAD_OWNER: &str = "upload.json";

/// Longest text file of a run directory that is read.
const LONGEST_TEXT: u64 = 64 << 20;

/// Most entries of a directory among which a similar name is looked for.
const MOST_ENTRIES: usize = 4096;

/// Directory that was probably meant by `path`, which is none: a run of that name below `runs`, or the directory with the nearest
/// name, where the one above it may be mistyped too.
pub(crate) fn similar(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?;
    let run = Path::new("runs").join(path);
    if run.is_dir() {
        return Some(run);
    }
    let above = bessemer_durable::parent(path);
    let above = if above.is_dir() { above.to_owned() } else { similar(above)? };
    let same = above.join(name);
    if same.is_dir() {
        return Some(same);
    }
    let entries = bessemer_durable::read_dir(&above).ok()?.take(MOST_ENTRIES);
    let names: Vec<String> = entries
        .filter_map(|entry| entry.ok().filter(|entry| entry.path().is_dir())?.file_name().into_string().ok())
        .collect();
    let near = nearest(name.to_str()?, names.iter().map(String::as_str))?;
    Some(if above == Path::new(".") { near.into() } else { above.join(near) })
}

/// A run directory. Its files are reached through one open handle, so that a symbolic link within it leads nowhere; the paths
/// are for messages.
#[derive(Debug, Clone)]
pub(crate) struct RunDir {
    root: PathBuf,
    handle: OnceLock<ConfinedDir>,
}

impl RunDir {
    /// The directory at `root`; nothing is created or opened.
    pub(crate) fn new(root: impl Into<PathBuf>) -> RunDir {
        RunDir { root: root.into(), handle: OnceLock::new() }
    }

    /// The directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The open directory. The first call opens it.
    pub(crate) fn handle(&self) -> io::Result<&ConfinedDir> {
        if let Some(open) = self.handle.get() {
            return Ok(open);
        }
        let open = ConfinedDir::open_named(&self.root)?;
        Ok(self.handle.get_or_init(|| open))
    }

    /// Makes the directory, with those above it, and opens it.
    pub(crate) fn create(&self) -> io::Result<&ConfinedDir> {
        bessemer_durable::create_dir_all(&self.root)?;
        self.handle()
    }

    /// Opens a directory within it.
    pub(crate) fn dir(&self, name: &str) -> io::Result<ConfinedDir> {
        self.handle()?.dir(name)
    }

    /// Whether there is an entry of this name within it.
    pub(crate) fn has(&self, below: impl AsRef<Path>) -> bool {
        self.handle().is_ok_and(|dir| dir.exists(below))
    }

    /// Reads a text file within it.
    pub(crate) fn text(&self, below: impl AsRef<Path>) -> io::Result<String> {
        let file = self.handle()?.open_file(&below)?;
        let mut text = String::new();
        if file.take(LONGEST_TEXT + 1).read_to_string(&mut text)? as u64 > LONGEST_TEXT {
            let path = self.root.join(below);
            let what = format!("{} is longer than {LONGEST_TEXT} bytes", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(text)
    }

    /// Its checkpoints.
    pub(crate) fn store(&self) -> io::Result<Store> {
        Ok(checkpoints_in(self.handle()?))
    }

    /// Its recipe.
    pub(crate) fn load_recipe(&self) -> Result<Loaded<Recipe>, Failure> {
        let text = self.text(RECIPE)?;
        Ok(parse_recipe(&self.root.join(RECIPE).display().to_string(), &text, &[])?)
    }

    /// Its tokenizer.
    pub(crate) fn load_tokenizer(&self) -> Result<Tokenizer, Failure> {
        Tokenizer::load_in(self.handle()?, TOKENIZER).map_err(|e| named_tokenizer_error(&self.tokenizer(), e))
    }

    /// Its name without the path, for people.
    pub(crate) fn name(&self) -> String {
        let root = self.root.canonicalize().unwrap_or_else(|_| self.root.clone());
        root.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned())
    }

    /// Path of the resolved recipe.
    pub(crate) fn recipe(&self) -> PathBuf {
        self.root.join(RECIPE)
    }

    /// Path of the corpus.
    pub(crate) fn corpus(&self) -> PathBuf {
        self.root.join(CORPUS)
    }

    /// Path of the tokenizer.
    pub(crate) fn tokenizer(&self) -> PathBuf {
        self.root.join(TOKENIZER)
    }

    /// Path of the token shards.
    pub(crate) fn shards(&self) -> PathBuf {
        self.root.join(SHARDS)
    }

    /// Path of the checkpoints.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Path of the report.
    pub(crate) fn report(&self) -> PathBuf {
        self.root.join(REPORT)
    }
}

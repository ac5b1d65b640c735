//! A folder with a corpus and a recipe in which the program runs, and readers for what it leaves there.

use bessemer_units::splitmix::SplitMix64;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// GPT-2 in small: LayerNorm, learned positions, biases, tied embeddings.
pub(crate) const GPT2: &str = "architecture = \"gpt2\"\nlayers = 2\nwidth = 32\nheads = 2\ncontext = 32\n";
/// Llama in small: grouped-query attention, an output projection of its own.
pub(crate) const LLAMA: &str = "architecture = \"llama\"\nlayers = 2\nwidth = 32\nheads = 4\nkv_heads = 2\n\
                                context = 32\ntied_embeddings = false\n";

/// A finished command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Finished {
    /// Standard output of a command that succeeded.
    pub(crate) fn text(&self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        String::from_utf8(self.out.clone()).unwrap()
    }

    /// Standard output of a command that succeeded, as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    /// Checks that the command failed with this code and that its message has all these parts.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(!self.err.contains("panicked"), "{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "wanted {part:?} in:\n{}", self.err);
        }
    }
}

/// A folder with `text/` (a corpus of four sources) and `recipe.toml` (a run in `runs/t`).
pub(crate) struct Workplace {
    dir: TempDir,
}

impl Workplace {
    /// A workplace with the given `[model]` keys.
    pub(crate) fn new(model: &str) -> Workplace {
        let place = Workplace { dir: TempDir::new().unwrap() };
        let words = "the quick brown fox jumps over lazy dogs while rain falls on green hills and rivers run \
                     toward distant seas under pale stars café 東京 naïve";
        let words: Vec<&str> = words.split_whitespace().collect();
        let mut random = SplitMix64(1);
        for source in ["alpha", "beta", "gamma", "delta"] {
            fs::create_dir_all(place.path("text").join(source)).unwrap();
            for number in 0..8 {
                let mut text = String::new();
                for i in 1..150 {
                    text += words[random.index(words.len())];
                    text.push(if i % 14 == 0 { '\n' } else { ' ' });
                }
                fs::write(place.path(&format!("text/{source}/{number}.txt")), text).unwrap();
            }
        }
        fs::write(
            place.path("recipe.toml"),
            format!(
                "[run]\nname = \"t\"\nseed = 7\nthreads = 1\npin_threads = false\n\
                 [corpus]\nsource = \"folder\"\npath = \"text\"\n\
                 [tokenizer]\nvocab_size = 300\n\
                 [model]\n{model}\
                 [train]\nbatch_tokens = 256\nseq_len = 32\nsteps = 6\n\
                 [optim]\nwarmup_steps = 2\n\
                 [eval.samples]\nprompts = [\"the \"]\n[eval.samples.generate]\nmax_tokens = 8\n"
            ),
        )
        .unwrap();
        place
    }

    /// A path below the folder.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// The program with these words, ready to start in the folder.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(crate::PROGRAM);
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn bessemer(&self, words: &[&str]) -> Finished {
        finished(self.command(words))
    }

    /// Runs the recipe, which must succeed.
    #[track_caller]
    pub(crate) fn train(&self, overrides: &[&str]) {
        let words = with_overrides(&["run", "recipe.toml"], overrides);
        let done = self.bessemer(&words);
        assert_eq!(done.code, Some(0), "{}", done.err);
    }

    /// Starts the program in the background, with its output discarded.
    pub(crate) fn start(&self, overrides: &[&str]) -> Child {
        let mut command = self.command(&with_overrides(&["run", "recipe.toml"], overrides));
        command.stdout(Stdio::null()).stderr(fs::File::create(self.path("stderr.txt")).unwrap());
        command.spawn().unwrap()
    }

    /// Every file below a folder with its content.
    pub(crate) fn files(&self, below: &str) -> Files {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.path(below)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => drop(files.insert(path.clone(), fs::read(&path).unwrap())),
                }
            }
        }
        files
    }

    /// The records of metrics.jsonl of a kind.
    pub(crate) fn records(&self, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path("runs/t/metrics.jsonl")).unwrap();
        let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.filter(|r| r["kind"] == kind).collect()
    }

    /// The tensor files of a checkpoint, joined in the order of their names.
    pub(crate) fn tensors(&self, step: u64) -> Vec<u8> {
        let files = self.files(&format!("runs/t/checkpoints/step-{step:08}"));
        let tensors = files.into_iter().filter(|(path, _)| is_tensors(path));
        tensors.flat_map(|(_, bytes)| bytes).collect()
    }
}

/// Files with their content.
pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Checks that the same files are there with the same content.
#[track_caller]
pub(crate) fn assert_untouched(now: &Files, before: &Files) {
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(now), names(before));
    let changed: Vec<_> = now.iter().filter(|(name, bytes)| before[*name] != **bytes).map(|f| f.0).collect();
    assert!(changed.is_empty(), "changed: {changed:?}");
}

/// Whether a file of a checkpoint holds tensors.
pub(crate) fn is_tensors(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "safetensors")
}

/// `--set` before each override.
pub(crate) fn with_overrides<'a>(words: &[&'a str], overrides: &[&'a str]) -> Vec<&'a str> {
    words.iter().copied().chain(overrides.iter().flat_map(|o| ["--set", o])).collect()
}

/// Runs a command to its end.
pub(crate) fn finished(mut command: Command) -> Finished {
    let output = command.output().unwrap();
    Finished {
        code: output.status.code(),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

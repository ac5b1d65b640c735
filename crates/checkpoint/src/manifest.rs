//! `manifest.json`: what a checkpoint holds. Written last; without it there is no checkpoint.
//!
//! The file is ordinary JSON whose last line states the checksum of every byte before that line, so that it can be
//! verified without agreeing on how JSON is formatted. The README of this crate specifies it byte by byte.

use crate::chunks;
use crate::error::{CheckpointError, Result};
use crate::format::{MAX_NAME_BYTES, MAX_RANK};
use crate::slices;
use bessemer_units::DType;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::path::Path;

/// File name of the manifest.
pub const MANIFEST_NAME: &str = "manifest.json";

/// Version of the format that this crate writes. It reads the versions up to this one.
pub const VERSION: u64 = 2;

/// Longest manifest.
pub const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// Most JSON values in a manifest: bounds the memory that parsing takes.
const MAX_JSON_VALUES: usize = 4_000_000;

const FORMAT: &str = "bessemer-checkpoint";
const SEAL_HEAD: &str = ",\n  \"checksum\": \"blake3:";
const SEAL_TAIL: &str = "\"\n}\n";
const SEAL_BYTES: usize = SEAL_HEAD.len() + 64 + SEAL_TAIL.len();

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Name within the checkpoint's directory.
    pub name: String,
    /// Length.
    pub bytes: u64,
    /// BLAKE3 of its bytes, 64 hexadecimal digits.
    pub blake3: String,
    /// Bytes of a chunk, a power of two; 0 in version 1, which has no chunks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub chunk_bytes: u64,
    /// Chaining value of each chunk in the BLAKE3 tree, 64 hexadecimal digits each; empty if one chunk is the whole file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<String>,
}

impl FileRecord {
    /// A file without chunks, which can only be verified as a whole.
    pub(crate) fn whole(name: String, bytes: u64, blake3: String) -> FileRecord {
        FileRecord { name, bytes, blake3, chunk_bytes: 0, chunks: Vec::new() }
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A box of a tensor and where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceRecord {
    /// Index into [`Manifest::files`].
    pub file: usize,
    /// First byte, from the beginning of the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// First element in each dim of the whole tensor.
    pub start: Vec<usize>,
    /// Elements in each dim.
    pub shape: Vec<usize>,
}

/// One tensor of a checkpoint, in global terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRecord {
    /// Name.
    pub name: String,
    /// Type of the stored elements.
    pub dtype: DType,
    /// Shape of the whole tensor.
    pub shape: Vec<usize>,
    /// Boxes that cover it without overlap.
    pub slices: Vec<SliceRecord>,
}

/// The checkpoint that a save found before it: each manifest names the one before, so that one that was changed, exchanged or
/// put back later is distinguished from the one that the run resumed from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Previous {
    /// Its step.
    pub step: u64,
    /// Checksum in the last line of its manifest, 64 hexadecimal digits.
    pub checksum: String,
}

/// Contents of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Optimizer steps done.
    pub step: u64,
    /// Training tokens consumed.
    pub tokens: u64,
    /// Program that wrote it, e.g. "bessemer 0.1.0".
    pub writer: String,
    /// Fingerprint of the tokenizer that the model's vocabulary belongs to.
    pub tokenizer: Option<String>,
    /// The resolved recipe, as text.
    pub recipe: String,
    /// State of trainer, loader and random number generators: an object whose meaning is its owners'.
    pub state: serde_json::Value,
    /// The newest checkpoint of an earlier step that the store had; `None` for the first one, and in version 1.
    pub previous: Option<Previous>,
    /// The files.
    pub files: Vec<FileRecord>,
    /// The tensors, in the order in which they were given.
    pub tensors: Vec<TensorRecord>,
}

/// The JSON of a manifest, as parsed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(rename = "format")]
    _format: String,
    #[serde(rename = "version")]
    _version: u64,
    writer: String,
    step: u64,
    tokens: u64,
    tokenizer: Option<String>,
    recipe: String,
    state: serde_json::Value,
    #[serde(default)]
    previous: Option<Previous>,
    files: Vec<FileRecord>,
    tensors: Vec<TensorRecord>,
    #[serde(rename = "checksum")]
    _checksum: String,
}

/// Fields that every version of the format has.
#[derive(Deserialize)]
struct Envelope {
    format: String,
    version: u64,
}

impl Manifest {
    /// The bytes of the file. The error says why this manifest cannot be written.
    pub fn to_bytes(&self) -> std::result::Result<Vec<u8>, String> {
        let mut out = String::from("{\n");
        let mut line = |key: &str, value: std::result::Result<String, serde_json::Error>| {
            let value = value.map_err(|e| format!("{key}: {e}"))?;
            out.push_str(&format!("  \"{key}\": {value},\n"));
            Ok::<(), String>(())
        };
        line("format", serde_json::to_string(FORMAT))?;
        line("version", serde_json::to_string(&VERSION))?;
        line("writer", serde_json::to_string(&self.writer))?;
        line("step", serde_json::to_string(&self.step))?;
        line("tokens", serde_json::to_string(&self.tokens))?;
        line("tokenizer", serde_json::to_string(&self.tokenizer))?;
        line("recipe", serde_json::to_string(&self.recipe))?;
        line("state", serde_json::to_string(&self.state))?;
        line("previous", serde_json::to_string(&self.previous))?;
        line("files", lines(&self.files))?;
        line("tensors", lines(&self.tensors))?;
        // The last ",\n" belongs to the seal.
        out.truncate(out.len() - 2);
        let sum = blake3::hash(out.as_bytes()).to_hex();
        out.push_str(SEAL_HEAD);
        out.push_str(&sum);
        out.push_str(SEAL_TAIL);
        let bytes = out.into_bytes();
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(format!(
                "the manifest would have {} bytes, at most {MAX_MANIFEST_BYTES}",
                bytes.len()
            ));
        }
        // What cannot be read back must not be written.
        match Manifest::parse(&bytes, Path::new(MANIFEST_NAME)) {
            Ok(_) => Ok(bytes),
            Err(CheckpointError::Manifest { problem, .. }) => Err(problem),
            Err(other) => Err(other.to_string()),
        }
    }

    /// Parses and checks the bytes of a manifest; `file` is for messages.
    pub fn parse(bytes: &[u8], file: &Path) -> Result<Manifest> {
        let wrong = |problem: String| CheckpointError::Manifest { file: file.into(), problem };
        let body = check_seal(bytes, file)?;
        let values = json_values(body);
        if values > MAX_JSON_VALUES {
            return Err(wrong(format!("up to {values} JSON values, at most {MAX_JSON_VALUES} are read")));
        }
        let envelope: Envelope = serde_json::from_slice(bytes).map_err(|e| wrong(e.to_string()))?;
        if envelope.format != FORMAT {
            return Err(wrong(format!("format {:?}, wanted {FORMAT:?}", envelope.format)));
        }
        if !(1..=VERSION).contains(&envelope.version) {
            return Err(CheckpointError::Version {
                file: file.into(),
                found: envelope.version,
                supported: VERSION,
            });
        }
        let w: Written = serde_json::from_slice(bytes).map_err(|e| wrong(e.to_string()))?;
        let manifest = Manifest {
            step: w.step,
            tokens: w.tokens,
            writer: w.writer,
            tokenizer: w.tokenizer,
            recipe: w.recipe,
            state: w.state,
            previous: w.previous,
            files: w.files,
            tensors: w.tensors,
        };
        manifest.check().map_err(wrong)?;
        let new = manifest.previous.is_some() || manifest.files.iter().any(|f| f.chunk_bytes > 0);
        if envelope.version == 1 && new {
            return Err(wrong("version 1 has no previous checkpoint and no chunks".into()));
        }
        Ok(manifest)
    }

    /// Bytes of the tensor files together.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |n, f| n.saturating_add(f.bytes))
    }

    fn check(&self) -> std::result::Result<(), String> {
        if !self.state.is_object() {
            return Err("state: wanted a JSON object".into());
        }
        let mut names = BTreeSet::new();
        for f in &self.files {
            check_file_name(&f.name)?;
            if f.name == MANIFEST_NAME || !names.insert(f.name.to_ascii_lowercase()) {
                return Err(format!("file {:?} is listed twice (case does not count)", f.name));
            }
            check_chunks(f).map_err(|problem| format!("file {:?}: {problem}", f.name))?;
        }
        if let Some(previous) = &self.previous {
            digits(&previous.checksum).map_err(|e| format!("previous: {e}"))?;
            if previous.step >= self.step {
                return Err(format!(
                    "previous.step is {}, wanted a step before {}",
                    previous.step, self.step
                ));
            }
        }
        let mut names = HashSet::new();
        for t in &self.tensors {
            let wrong = |problem: String| format!("tensor {:?}: {problem}", t.name);
            if t.name.is_empty() || t.name.len() > MAX_NAME_BYTES {
                return Err(format!(
                    "a tensor name has {} bytes, wanted 1 to {MAX_NAME_BYTES}",
                    t.name.len()
                ));
            }
            if !names.insert(t.name.as_str()) {
                return Err(wrong("listed twice".into()));
            }
            if t.shape.len() > MAX_RANK {
                return Err(wrong(format!("{} dims, at most {MAX_RANK}", t.shape.len())));
            }
            slices::check(t, &self.files).map_err(wrong)?;
        }
        Ok(())
    }
}

/// The bytes of a BLAKE3 in hexadecimal.
fn digits(hex: &str) -> std::result::Result<[u8; 32], String> {
    let plain = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let hash = blake3::Hash::from_hex(hex).ok().filter(|_| plain);
    Ok(*hash.ok_or("wanted a BLAKE3 of 64 hexadecimal digits")?.as_bytes())
}

/// Checks that the checksums of a file's chunks merge into that of the file.
fn check_chunks(f: &FileRecord) -> std::result::Result<(), String> {
    let whole = digits(&f.blake3)?;
    if f.chunk_bytes == 0 && f.chunks.is_empty() {
        return Ok(());
    }
    chunks::check_chunk_bytes(f.chunk_bytes)?;
    let wanted = chunks::count(f.bytes, f.chunk_bytes);
    if f.chunks.len() as u64 != wanted {
        return Err(format!(
            "{} checksums of chunks, wanted {wanted} of {} bytes each",
            f.chunks.len(),
            f.chunk_bytes
        ));
    }
    let each: Vec<[u8; 32]> = f.chunks.iter().map(|c| digits(c)).collect::<std::result::Result<_, _>>()?;
    if each.len() > 1 && *chunks::merge(&each, f.chunk_bytes, f.bytes).as_bytes() != whole {
        return Err("the checksums of its chunks are not those of the file's checksum".into());
    }
    Ok(())
}

/// Items one a line, so that a manifest can be searched and compared by line.
fn lines<T: Serialize>(items: &[T]) -> std::result::Result<String, serde_json::Error> {
    if items.is_empty() {
        return Ok("[]".into());
    }
    let items: Vec<String> =
        items.iter().map(serde_json::to_string).collect::<std::result::Result<_, _>>()?;
    Ok(format!("[\n    {}\n  ]", items.join(",\n    ")))
}

/// The checksum that a manifest's last line states, of bytes that [`Manifest::parse`] accepts.
pub(crate) fn stated_checksum(bytes: &[u8]) -> String {
    let end = bytes.len().saturating_sub(SEAL_TAIL.len());
    String::from_utf8_lossy(&bytes[end.saturating_sub(64)..end]).into_owned()
}

/// Verifies the checksum line and returns the bytes that it covers.
fn check_seal<'a>(bytes: &'a [u8], file: &Path) -> Result<&'a [u8]> {
    let cut = bytes.len().saturating_sub(SEAL_BYTES);
    let (body, seal) = bytes.split_at(cut);
    let found = blake3::hash(body).to_hex().to_string();
    let stated = seal
        .strip_prefix(SEAL_HEAD.as_bytes())
        .and_then(|s| s.strip_suffix(SEAL_TAIL.as_bytes()))
        .filter(|s| s.len() == 64)
        .map(|s| String::from_utf8_lossy(s).into_owned());
    match stated {
        Some(s) if s == found => Ok(body),
        Some(expected) => Err(CheckpointError::Checksum { file: file.into(), expected, found }),
        None => Err(CheckpointError::Checksum {
            file: file.into(),
            expected: "(unreadable: the checksum line at the end is damaged or cut off)".into(),
            found,
        }),
    }
}

/// Upper bound on the JSON values in `json`: one more than its commas and opening brackets outside strings.
fn json_values(json: &[u8]) -> usize {
    let (mut count, mut inside, mut escaped) = (1usize, false, false);
    for b in json {
        match b {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            b',' | b'[' | b'{' if !inside => count += 1,
            _ => {}
        }
    }
    count
}

/// A name that cannot lead out of the directory: letters, digits, `.`, `_` and `-`, not beginning with `.`.
pub(crate) fn check_file_name(name: &str) -> std::result::Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > 255 || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(format!(
            "file name {name:?}: wanted 1 to 255 letters, digits, '.', '_', '-', not beginning with '.'"
        ));
    }
    Ok(())
}

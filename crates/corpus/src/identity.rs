//! The identity of a corpus: a hash of everything that decides its documents. A finished corpus is reused while its
//! identity is the same.
//!
//! identity = XXH3-128(versions, configuration, input listing)
//!
//! - Each crate that makes or filters text has a `VERSION`. A test holds the output of a corpus for each of them against a
//!   digest and fails when the output changes under the same version.
//! - Files that the configuration names count with their content, not with their path: every configuration lists its own
//!   (`paths`), and the same list makes paths absolute for other machines.
//! - Keys that change no document are left out: where the input lies, memory, weights of training.

use crate::compose;
use crate::error::{Error, Result};
use crate::evaluate;
use crate::output::durable::hash_of;
use crate::output::summary::FORMAT_VERSION;
use crate::source::Listing;
use bessemer_corpus_config::CorpusConfig;
use bessemer_durable::open_regular;
use bessemer_rules::build_profiles;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3Default;

/// Version of what this crate makes of its input by itself: sources, rules of `[corpus.clean]`, split, order.
const VERSION: u32 = 7;

/// Versions of what decides the documents of a corpus, by crate.
pub const VERSIONS: [(&str, u32); 8] = [
    ("corpus", VERSION),
    ("dedup", bessemer_dedup::VERSION),
    ("markup", bessemer_markup::VERSION),
    ("privacy", bessemer_privacy::VERSION),
    ("rules", bessemer_rules::VERSION),
    ("score", bessemer_score::VERSION),
    ("text", bessemer_text::VERSION),
    ("web", bessemer_web::VERSION),
];

/// What of the configuration decides the documents, as JSON.
///
/// # Errors
/// A file that cannot be read, a profile that is none.
fn identity(config: &CorpusConfig) -> Result<serde_json::Value> {
    let unwritten = |cause| Error::Config(format!("the configuration cannot be written as JSON: {cause}"));
    let mut named = config.clone();
    for (key, path) in named.paths() {
        *path = digest_of_file(&key, path)?;
    }
    let mut json = serde_json::to_value(&named).map_err(unwritten)?;
    let Some(keys) = json.as_object_mut() else { return Ok(json) };
    for name in ["source", "path", "memory", "mix"] {
        keys.shift_remove(name);
    }
    // Templates decide tokens, not documents.
    if let Some(chats) = keys.get_mut("chats") {
        *chats = true.into();
    }
    // Bounds decide whether a build fails, not its documents.
    if let Some(keys) = keys.get_mut("evaluate").and_then(|keys| keys.as_object_mut()) {
        keys.shift_remove("require");
    }
    keys.insert("sources".into(), config.sources_identity());
    // With the method for equal documents, whose finds the column `copies` counts too.
    keys.insert("methods".into(), serde_json::to_value(compose::methods(config)).map_err(unwritten)?);
    // Profiles by what they say, not by their names: those that the program carries may change with it.
    let own = build_profiles(&config.rules).map_err(|error| Error::Config(format!("corpus.{error}")))?;
    let profiles = own
        .iter()
        .chain(&evaluate::profiles(&config.evaluate)?)
        .map(|profile| serde_json::to_value(profile.complete_file()))
        .collect::<serde_json::Result<serde_json::Value>>();
    keys.insert("profiles".into(), profiles.map_err(unwritten)?);
    Ok(json)
}

/// Hash of everything that decides the documents: versions, configuration, input listing.
///
/// # Errors
/// A file that the configuration names and that cannot be read.
pub(crate) fn key(config: &CorpusConfig, listing: &Listing) -> Result<String> {
    let mut hash = Xxh3Default::new();
    hash.update(format!("format {FORMAT_VERSION} {VERSIONS:?} {}\n", listing.kind).as_bytes());
    hash.update(format!("{}\n", identity(config)?).as_bytes());
    for entry in &listing.entries {
        hash.update(entry.as_bytes());
        hash.update(b"\n");
    }
    Ok(format!("{:032x}", hash.digest128()))
}

/// Hash and length of the content of a file; models may be large.
fn digest_of_file(key: &str, path: &str) -> Result<String> {
    let fault = |cause: std::io::Error| Error::Config(format!("{key}: cannot read {path}: {cause}"));
    let mut file = open_regular(Path::new(path)).map_err(fault)?;
    let (hash, bytes) = hash_of(&mut file).map_err(fault)?;
    Ok(format!("{hash}, {bytes} bytes"))
}

//! Reading tokenizer.json. The text is untrusted: every number and reference in it is checked before use.

use super::ANY_CHARACTER;
use crate::added_tokens::AddedToken;
use crate::bpe::{Bpe, WholePieces};
use crate::byte_alphabet::{char_of_byte, unspell};
use crate::char_model::CharModel;
use crate::error::{Result, TokenizerError};
use crate::files::{read_text, read_text_in};
use crate::pretokenize::Pretokenizer;
use crate::tokenizer::{Model, Parts, TokenBytes, Tokenizer};
use bessemer_durable::ConfinedDir;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// First look: which model, so that a foreign one is refused by name and not by its shape.
#[derive(Deserialize)]
struct Probe {
    model: ProbeModel,
}

#[derive(Deserialize)]
struct ProbeModel {
    r#type: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    version: Option<String>,
    #[serde(default, rename = "truncation")]
    _truncation: IgnoredAny,
    #[serde(default, rename = "padding")]
    _padding: IgnoredAny,
    #[serde(default)]
    added_tokens: Vec<AddedIn>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: ModelIn,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddedIn {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelIn {
    #[serde(default, rename = "type")]
    _type: Option<String>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default, rename = "unk_token")]
    _unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default, rename = "fuse_unk")]
    _fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: VocabularyIn,
    #[serde(default)]
    merges: Vec<MergeIn>,
}

/// `{"token": id, ...}`; a token listed twice is an error.
struct VocabularyIn(HashMap<String, u32>);

impl<'de> Deserialize<'de> for VocabularyIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = VocabularyIn;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object of tokens and their ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<VocabularyIn, A::Error> {
                let mut entries = HashMap::new();
                while let Some((token, id)) = map.next_entry::<String, u32>()? {
                    if let Some(before) = entries.insert(token, id) {
                        let message = format!(
                            "two entries of the vocabulary spell the same token (ids {before} and {id})"
                        );
                        return Err(A::Error::custom(message));
                    }
                }
                Ok(VocabularyIn(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// `"a b"` or `["a", "b"]`.
struct MergeIn(String, String);

impl<'de> Deserialize<'de> for MergeIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Two;
        impl<'de> Visitor<'de> for Two {
            type Value = MergeIn;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a merge, \"a b\" or [\"a\", \"b\"]")
            }

            fn visit_str<E: Error>(self, text: &str) -> std::result::Result<MergeIn, E> {
                match text.split_once(' ') {
                    Some((a, b)) if !b.contains(' ') => Ok(MergeIn(a.to_owned(), b.to_owned())),
                    _ => Err(E::custom(format!(
                        "the merge {text:?} is not two tokens with one space between them"
                    ))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<MergeIn, A::Error> {
                let two = (seq.next_element()?, seq.next_element()?, seq.next_element::<IgnoredAny>()?);
                match two {
                    (Some(a), Some(b), None) => Ok(MergeIn(a, b)),
                    _ => Err(A::Error::custom("a merge joins exactly two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Two)
    }
}

fn unsupported<T>(part: &'static str, found: impl Into<String>, hint: &'static str) -> Result<T> {
    Err(TokenizerError::Unsupported { part, found: found.into(), hint })
}

fn inconsistent<T>(message: String) -> Result<T> {
    Err(TokenizerError::Inconsistent(message))
}

/// The `type` of a part, or a short form of whatever stands there.
fn type_of(value: &Value) -> String {
    match value.get("type").and_then(Value::as_str) {
        Some(name) => format!("\"{name}\""),
        None => value.to_string().chars().take(80).collect(),
    }
}

fn is_type(value: &Value, name: &str) -> bool {
    value.get("type").and_then(Value::as_str) == Some(name)
}

impl Tokenizer {
    /// Reads a tokenizer.json.
    ///
    /// # Errors
    /// [`TokenizerError::Io`] and [`TokenizerError::TooLarge`], and all of [`from_json`](Self::from_json).
    pub fn load(path: &Path) -> Result<Self> {
        Self::from_json(&read_text(path)?)
    }

    /// Reads a tokenizer.json, the file `name` of `dir`.
    ///
    /// # Errors
    /// As [`Tokenizer::load`]; a link in its place.
    pub fn load_in(dir: &ConfinedDir, name: &str) -> Result<Self> {
        Self::from_json(&read_text_in(dir, name)?)
    }

    /// A tokenizer from the text of a tokenizer.json.
    ///
    /// # Errors
    /// [`TokenizerError::Json`] for what is no such file, [`TokenizerError::Unsupported`] for a tokenizer of another
    /// kind, [`TokenizerError::Inconsistent`] for parts that contradict each other.
    pub fn from_json(text: &str) -> Result<Self> {
        let model_hint = "byte-level BPE, or WordLevel over single characters as this program writes it";
        let probe: Probe = serde_json::from_str(text)?;
        let character_level = match probe.model.r#type.as_deref() {
            None | Some("BPE") => false,
            Some("WordLevel") => true,
            Some(other) => return unsupported("model", format!("\"{other}\""), model_hint),
        };
        let file: File = serde_json::from_str(text)?;
        if let Some(version) = file.version.as_deref().filter(|version| *version != "1.0") {
            return unsupported("version", format!("{version:?}"), "version \"1.0\" is");
        }
        if !file.normalizer.is_null() {
            let hint = "text must decode to itself: only a normalizer of null is supported";
            return unsupported("normalizer", type_of(&file.normalizer), hint);
        }
        check_post_processor(&file.post_processor)?;
        let vocabulary = file.model.vocab.0.len();
        let (tokens, added) = token_table(&file.model.vocab.0, file.added_tokens, character_level)?;
        let ordinary = Ordinary { ids: &file.model.vocab.0, added: &added };
        let model = if character_level {
            read_characters(&file.pre_tokenizer, &file.decoder, &ordinary)?
        } else {
            check_bpe_options(&file.model)?;
            let pretokenizer = read_pretokenizer(&file.pre_tokenizer)?;
            if !file.decoder.is_null() && !is_type(&file.decoder, "ByteLevel") {
                return unsupported(
                    "decoder",
                    type_of(&file.decoder),
                    "byte-level BPE has a ByteLevel decoder",
                );
            }
            let mut byte_ids = [0; 256];
            for byte in 0..=255u8 {
                byte_ids[usize::from(byte)] = ordinary.id(&char_of_byte(byte).to_string(), || {
                    format!("the single byte 0x{byte:02X}, without which not every text can be encoded,")
                })?;
            }
            let merges = read_merges(&file.model.merges, &ordinary)?;
            let whole_pieces = file.model.ignore_merges.then(|| {
                let mut whole = WholePieces::with_capacity_and_hasher(vocabulary, Default::default());
                whole.extend(ordinary.iter().map(|(_, id)| (tokens[id as usize].clone(), id)));
                whole
            });
            Model::ByteBpe { pretokenizer, bpe: Box::new(Bpe::new(byte_ids, merges, whole_pieces)?) }
        };
        let tokenizer =
            Tokenizer::from_parts(Parts { model, tokens, added, post_processor: file.post_processor })?;
        // That of an export is no part of the tokenizer, and leaves its fingerprint.
        match tokenizer.text_beginning() {
            Some(beginning) if beginning == *tokenizer.post_processor() => {
                Ok(tokenizer.without_post_processor())
            }
            _ => Ok(tokenizer),
        }
    }
}

/// The vocabulary without added tokens.
struct Ordinary<'a> {
    ids: &'a HashMap<String, u32>,
    added: &'a [AddedToken],
}

impl Ordinary<'_> {
    fn is_added(&self, id: u32) -> bool {
        self.added.binary_search_by_key(&id, |token| token.id).is_ok()
    }

    /// Id of a token that must be there; `what` names it in the error.
    fn id(&self, token: &str, what: impl Fn() -> String) -> Result<u32> {
        match self.ids.get(token) {
            Some(&id) if !self.is_added(id) => Ok(id),
            Some(_) => inconsistent(format!("{} is declared as an added token", what())),
            None => inconsistent(format!("{} is missing from the vocabulary", what())),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.ids.iter().map(|(token, id)| (token.as_str(), *id)).filter(|(_, id)| !self.is_added(*id))
    }
}

/// Bytes of every token by id, and the added tokens by id.
fn token_table(
    vocabulary: &HashMap<String, u32>,
    listed: Vec<AddedIn>,
    character_level: bool,
) -> Result<(TokenBytes, Vec<AddedToken>)> {
    let mut added: Vec<AddedToken> = Vec::with_capacity(listed.len());
    for token in listed {
        let AddedIn { id, content, single_word, lstrip, rstrip, normalized, special } = token;
        if content.is_empty() {
            return inconsistent(format!("added token {id} has no text"));
        }
        let known = vocabulary.get(&content).copied();
        if let Some(other) = known.filter(|other| *other != id) {
            return inconsistent(format!(
                "added token {content:?} has id {id}, but {other} in the vocabulary"
            ));
        }
        added.push(AddedToken {
            content,
            id,
            special,
            single_word,
            lstrip,
            rstrip,
            normalized: normalized.unwrap_or(!special),
            in_vocabulary: known.is_some(),
        });
    }
    added.sort_by(|a, b| (a.id, &a.content).cmp(&(b.id, &b.content)));
    if let Some(two) = added.windows(2).find(|two| two[0].id == two[1].id) {
        return inconsistent(format!(
            "added tokens {:?} and {:?} have the same id",
            two[0].content, two[1].content
        ));
    }
    let mut contents: Vec<&str> = added.iter().map(|token| token.content.as_str()).collect();
    contents.sort_unstable();
    if let Some(two) = contents.windows(2).find(|two| two[0] == two[1]) {
        return inconsistent(format!("added token {:?} is listed twice", two[0]));
    }

    let entries = vocabulary.len() + added.len();
    let highest = vocabulary.values().copied().chain(added.iter().map(|token| token.id)).max();
    let Some(highest) = highest else { return inconsistent("the vocabulary is empty".to_owned()) };
    // Holes occur in real files, but a single huge id must not make us allocate a huge table.
    let limit = 2 * entries + 4096;
    if highest as usize >= limit {
        return inconsistent(format!(
            "id {highest} is out of range: {entries} tokens may have ids below {limit}"
        ));
    }
    let mut tokens: TokenBytes = vec![Box::default(); highest as usize + 1];
    for token in &added {
        tokens[token.id as usize] = token.content.as_bytes().into();
    }
    for (spelled, &id) in vocabulary {
        if let Ok(at) = added.binary_search_by_key(&id, |token| token.id) {
            if added[at].content != *spelled {
                let other = &added[at].content;
                return inconsistent(format!(
                    "token {spelled:?} and added token {other:?} have the same id {id}"
                ));
            }
            continue;
        }
        let bytes = if character_level { Some(spelled.as_bytes().to_vec()) } else { unspell(spelled) };
        let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else {
            return inconsistent(format!(
                "token {spelled:?} (id {id}) is not spelled in the byte-level alphabet, so this is no byte-level BPE"
            ));
        };
        if !tokens[id as usize].is_empty() {
            return inconsistent(format!("token {spelled:?} and another one have the same id {id}"));
        }
        tokens[id as usize] = bytes.into();
    }
    Ok((tokens, added))
}

fn check_bpe_options(model: &ModelIn) -> Result<()> {
    let hint = "use a tokenizer of byte-level BPE without it";
    if let Some(dropout) = model.dropout.filter(|dropout| *dropout != 0.0) {
        return unsupported(
            "model dropout",
            dropout.to_string(),
            "encoding is deterministic; only null is read",
        );
    }
    for (name, value) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(text) = value.as_deref().filter(|text| !text.is_empty()) {
            return unsupported(name, format!("{text:?}"), hint);
        }
    }
    if model.byte_fallback {
        return unsupported("model byte_fallback", "true", hint);
    }
    Ok(())
}

fn read_merges(merges: &[MergeIn], ordinary: &Ordinary) -> Result<Vec<((u32, u32), u32)>> {
    let mut whole = String::new();
    let mut read = Vec::with_capacity(merges.len());
    for (rank, MergeIn(left, right)) in merges.iter().enumerate() {
        let part =
            |token: &str| ordinary.id(token, || format!("{token:?} of merge {rank} ({left:?} + {right:?})"));
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        read.push(((part(left)?, part(right)?), part(&whole)?));
    }
    Ok(read)
}

/// `ByteLevel` with its own pattern is GPT-2; `Split` by a known pattern, then `ByteLevel` without one, is that pattern.
fn read_pretokenizer(value: &Value) -> Result<Pretokenizer> {
    let hint = "ByteLevel, or a Split by the GPT-2, Llama-3 or Qwen2 pattern followed by ByteLevel with use_regex \
                false, without add_prefix_space";
    let refuse = |found: String| unsupported("pre_tokenizer", found, hint);
    let byte_level = |part: &Value| -> Option<bool> {
        let prefix = part.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true);
        let use_regex = part.get("use_regex").and_then(Value::as_bool).unwrap_or(true);
        (is_type(part, "ByteLevel") && !prefix).then_some(use_regex)
    };
    if is_type(value, "ByteLevel") {
        return match byte_level(value) {
            Some(true) => Ok(Pretokenizer::Gpt2),
            Some(false) => refuse("\"ByteLevel\" with use_regex = false and no Split before it".to_owned()),
            None => refuse("\"ByteLevel\" with add_prefix_space = true".to_owned()),
        };
    }
    let parts = value.get("pretokenizers").and_then(Value::as_array).filter(|_| is_type(value, "Sequence"));
    let Some([split, last]) = parts.map(Vec::as_slice) else {
        let found = parts.map(|parts| parts.iter().map(type_of).collect::<Vec<_>>().join(", "));
        return refuse(found.map_or_else(|| type_of(value), |list| format!("\"Sequence\" of [{list}]")));
    };
    if !is_type(split, "Split") || byte_level(last) != Some(false) {
        let found: String = value.to_string().chars().take(300).collect();
        return refuse(found);
    }
    match split_pattern(split).and_then(Pretokenizer::from_pattern) {
        Some(known) => Ok(known),
        None => refuse(split.to_string().chars().take(300).collect()),
    }
}

/// The expression of a `Split` that keeps every match as a piece of its own. All our patterns match every character,
/// so "remove what does not match" says the same.
fn split_pattern(split: &Value) -> Option<&str> {
    let behavior = split.get("behavior").and_then(Value::as_str);
    let invert = split.get("invert").and_then(Value::as_bool).unwrap_or(false);
    let keeps = matches!((behavior, invert), (Some("Isolated"), false) | (Some("Removed"), true));
    split.get("pattern")?.get("Regex")?.as_str().filter(|_| keeps)
}

fn read_characters(pre_tokenizer: &Value, decoder: &Value, ordinary: &Ordinary) -> Result<Model> {
    let hint = "WordLevel is read only with a Split into single characters and a Fuse decoder";
    if !is_type(pre_tokenizer, "Split") || split_pattern(pre_tokenizer) != Some(ANY_CHARACTER) {
        return unsupported("pre_tokenizer", type_of(pre_tokenizer), hint);
    }
    if !is_type(decoder, "Fuse") {
        return unsupported("decoder", type_of(decoder), hint);
    }
    let mut alphabet = Vec::with_capacity(ordinary.ids.len());
    for (token, id) in ordinary.iter() {
        let mut chars = token.chars();
        match (chars.next(), chars.next()) {
            (Some(c), None) => alphabet.push((c, id)),
            _ => return unsupported("model \"WordLevel\" with the token", format!("{token:?}"), hint),
        }
    }
    Ok(Model::Char(Box::new(CharModel::new(alphabet))))
}

/// Post-processors wrap a finished sequence at call time; the known ones are kept, not applied.
fn check_post_processor(value: &Value) -> Result<()> {
    let known = |part: &Value| is_type(part, "ByteLevel") || is_type(part, "TemplateProcessing");
    let parts = value.get("processors").and_then(Value::as_array).filter(|_| is_type(value, "Sequence"));
    if value.is_null() || known(value) || parts.is_some_and(|parts| parts.iter().all(known)) {
        return Ok(());
    }
    unsupported(
        "post_processor",
        type_of(value),
        "ByteLevel and TemplateProcessing are kept, and not applied",
    )
}

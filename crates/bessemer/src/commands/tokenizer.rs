//! `bessemer tokenizer`: train one, use one.

use crate::cli::TokenizerCommand;
use crate::commands::run::Session;
use crate::commands::saved_model::load_tokenizer;
use crate::console::{Console, Output, print};
use crate::failure::Failure;
use bessemer_recipe::RecipeUse;
use bessemer_tokenizer::Tokenizer;
use serde_json::json;
use std::borrow::Cow;
use std::io::{IsTerminal, Read};
use std::path::Path;

pub(crate) fn run(command: &TokenizerCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        TokenizerCommand::Train(args) => {
            let mut session = Session::open(args, RecipeUse::Tokenizer)?;
            session.with_stages(console, |stages, log, console| {
                let corpus = stages.corpus(console, log, None)?;
                stages.tokenizer(&corpus, console, log).map(|_| ())
            })
        }
        TokenizerCommand::Encode { tokenizer, file } => {
            let ids = load(tokenizer)?.encode(&input(file.as_deref())?)?;
            let text = match as_json {
                true => serde_json::to_string(&ids)?,
                false => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
            };
            Ok(print(&text)?)
        }
        TokenizerCommand::Decode { tokenizer, file } => {
            let text = bessemer_durable::decode_text(input(file.as_deref())?).map_err(|e| {
                Failure::new(format!(
                    "token ids: wanted decimal numbers, found bytes that are not text ({e})"
                ))
            })?;
            let mut ids = Vec::new();
            for (number, word) in text
                .split(|c: char| c.is_whitespace() || "[],".contains(c))
                .filter(|w| !w.is_empty())
                .enumerate()
            {
                ids.push(word.parse::<u32>().map_err(|_| {
                    Failure::new(format!(
                        "token id number {}: wanted a decimal number, found {word:?}",
                        number + 1
                    ))
                })?);
            }
            let bytes = load(tokenizer)?.decode(&ids)?;
            let text = String::from_utf8_lossy(&bytes);
            if as_json {
                let is_text = matches!(text, Cow::Borrowed(_));
                let object =
                    json!({ "text": text, "tokens": ids.len(), "bytes": bytes.len(), "utf8": is_text });
                return Ok(print(&object.to_string())?);
            }
            // A file or another program gets the bytes; a terminal never gets control characters.
            if std::io::stdout().is_terminal() {
                return Ok(print(&text)?);
            }
            Ok(Output::lock().write_bytes(&bytes)?)
        }
        TokenizerCommand::Inspect { tokenizer } => {
            let t = load(tokenizer)?;
            let special: Vec<String> = t.special_tokens().iter().map(|s| s.content.clone()).collect();
            let mut longest: Vec<u32> = (0..t.vocab_size() as u32).collect();
            longest.sort_by_key(|id| std::cmp::Reverse(t.token_bytes(*id).map_or(0, <[u8]>::len)));
            let longest: Vec<String> = longest
                .iter()
                .take(12)
                .map(|id| String::from_utf8_lossy(t.token_bytes(*id).unwrap_or_default()).into_owned())
                .collect();
            let pretokenizer = t.pretokenizer().map_or("none", |p| p.name());
            let text = match as_json {
                true => serde_json::to_string(&json!({
                    "kind": t.kind().name(),
                    "vocab_size": t.vocab_size(),
                    "pretokenizer": pretokenizer,
                    "special_tokens": special,
                    "end_of_text": t.end_of_text(),
                    "fingerprint": t.fingerprint(),
                    "longest_tokens": longest,
                }))?,
                false => format!(
                    "kind            {}\nvocabulary      {}\npre-tokenizer   {pretokenizer}\nspecial tokens  {}\n\
                     fingerprint     {}\nlongest tokens  {}",
                    t.kind().name(),
                    t.vocab_size(),
                    special.join(" "),
                    t.fingerprint(),
                    longest.iter().map(|l| format!("{l:?}")).collect::<Vec<_>>().join(" ")
                ),
            };
            Ok(print(&text)?)
        }
    }
}

/// A tokenizer.json, or that of a run directory.
pub(crate) fn load(path: &Path) -> Result<Tokenizer, Failure> {
    let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_path_buf() };
    load_tokenizer(&path)
}

/// A file, or standard input.
fn input(file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    match file {
        Some(path) => bessemer_durable::read_input(path)
            .map_err(|e| Failure::new(format!("cannot read {}: {e}", path.display()))),
        None => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes)?;
            Ok(bytes)
        }
    }
}

//! Texts that a model wrote, with the prompts that they follow.

use super::{lines_of_json, text_of};
use crate::failure::Failure;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// A prompt and the texts that follow it. Lines without a prompt are texts by themselves.
#[derive(Debug, Default)]
pub(super) struct Prompted {
    pub(super) prompt: Option<String>,
    pub(super) texts: Vec<String>,
}

/// The texts of a file. Lines of text have no prompts; JSON lines are strings, objects with `text` and maybe `prompt`, as `generate --json` prints them, or
/// objects with `prompt` and a list `generations`, as RealToxicityPrompts has them. Texts of one prompt come together in the order of the first.
pub(super) fn read(path: &Path) -> Result<Vec<Prompted>, Failure> {
    let single = |text: String| Prompted { prompt: None, texts: vec![text] };
    if path.extension().is_none_or(|extension| extension != "jsonl") {
        let text = text_of(path)?;
        return some(path, text.lines().map(|line| single(line.to_owned())).collect());
    }
    let (mut all, mut places): (Vec<Prompted>, HashMap<String, usize>) = (Vec::new(), HashMap::new());
    for (i, value) in lines_of_json(path)?.into_iter().enumerate() {
        let Some((prompt, texts)) = texts_of(&value) else {
            return Err(Failure::new(format!(
                "{}: line {}: wanted a string, or an object with text or generations and optionally prompt; \
                 found {value}",
                path.display(),
                i + 1
            )));
        };
        match prompt {
            None => all.extend(texts.into_iter().map(single)),
            Some(prompt) => {
                let place = *places.entry(prompt.clone()).or_insert_with(|| {
                    all.push(Prompted { prompt: Some(prompt), texts: Vec::new() });
                    all.len() - 1
                });
                all[place].texts.extend(texts);
            }
        }
    }
    some(path, all)
}

fn some(path: &Path, all: Vec<Prompted>) -> Result<Vec<Prompted>, Failure> {
    match all.iter().any(|one| !one.texts.is_empty()) {
        true => Ok(all),
        false => Err(Failure::usage(format!("{}: wanted a text or more, found none", path.display()))),
    }
}

fn texts_of(value: &Value) -> Option<(Option<String>, Vec<String>)> {
    let text = |value: &Value| value.as_str().or_else(|| value.get("text")?.as_str()).map(str::to_owned);
    let prompt = value.get("prompt").and_then(text);
    let texts = match value.get("generations") {
        Some(Value::Array(list)) => list.iter().map(text).collect::<Option<Vec<_>>>()?,
        _ => vec![text(value)?],
    };
    Some((prompt, texts))
}

//! Which program made a corpus of which configuration, for the data card.

use super::summary::BuiltWith;
use crate::error::{Error, Result};
use bessemer_corpus_config::CorpusConfig;
use bessemer_web::redact::redact;
use serde_json::Value;
use std::path::Path;

/// Keys that do not decide the text, or say where on a machine something lies.
const LEFT_OUT: &[&str] = &["path", "memory", "mix", "weight"];

/// The program, and the keys that differ from their defaults.
pub(crate) fn built_with(config: &CorpusConfig) -> Result<BuiltWith> {
    let value = |config: &CorpusConfig| {
        serde_json::to_value(config)
            .map_err(|cause| Error::Config(format!("the configuration cannot be written as JSON: {cause}")))
    };
    let (mut found, defaults) = (value(config)?, value(&CorpusConfig::default())?);
    remove_equal(&mut found, &defaults);
    tidy(&mut found);
    Ok(BuiltWith { program: format!("bessemer {}", env!("CARGO_PKG_VERSION")), config: found })
}

/// Removes from `found` what is the same in `other`.
fn remove_equal(found: &mut Value, other: &Value) {
    let (Value::Object(found), Value::Object(other)) = (found, other) else { return };
    found.retain(|key, value| {
        let Some(other) = other.get(key) else { return true };
        remove_equal(value, other);
        value != other && value.as_object().is_none_or(|inner| !inner.is_empty())
    });
}

/// Takes out keys of machines, folders of files, and credentials.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(keys) => {
            keys.retain(|key, _| !LEFT_OUT.contains(&key.as_str()));
            keys.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        Value::String(text) => {
            let path = Path::new(text.as_str());
            let name = path.file_name().filter(|_| path.is_absolute()).map(|name| name.to_string_lossy());
            *text = redact(name.as_deref().unwrap_or(text)).into_owned();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_told_without_folders_and_credentials() {
        let mut config =
            CorpusConfig { path: "/home/me/text".into(), memory: "1GiB".into(), ..CorpusConfig::default() };
        assert_eq!(built_with(&config).unwrap().config, serde_json::json!({}));
        config.split.seed = 3;
        config.exclude = vec!["https://me:secret@host/x".into()];
        config.rules.bad_words = "/home/me/words.txt".into();
        let found = built_with(&config).unwrap().config;
        let wanted = serde_json::json!({
            "split": {"seed": 3}, "exclude": ["https://REDACTED@host/x"], "rules": {"bad_words": "words.txt"},
        });
        assert_eq!(found, wanted);
    }
}

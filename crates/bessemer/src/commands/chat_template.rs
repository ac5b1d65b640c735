//! Chat templates of models and of files.

use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_chat::{ChatTemplate, SHIPPED, TokenNames};
use bessemer_durable::TextReader;
use bessemer_tokenizer::Tokenizer;
use serde_json::{Map, Value};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Largest file with a template, bytes.
const LARGEST_FILE: u64 = 4 << 20;

/// Files of a directory that hold its template.
const CONFIG: &str = "tokenizer_config.json";
const JINJA: &str = "chat_template.jinja";

/// Texts of the files of a template.
struct TemplateFiles {
    config: Option<String>,
    jinja: Option<String>,
}

impl TemplateFiles {
    /// Reads those of a run, without following links, or of the directory of a model, in which caches of downloads have links.
    fn read(dir: &RunDir) -> Result<TemplateFiles, Failure> {
        let file = |name: &str| {
            let path = dir.root().join(name);
            let opened = match dir.recipe().exists() {
                true => dir.handle()?.open_file(name),
                false => bessemer_durable::open_regular(&path),
            };
            let mut text = String::new();
            let read = opened
                .and_then(|file| TextReader::buffered(file).take(LARGEST_FILE).read_to_string(&mut text));
            match read {
                Ok(_) => Ok(Some(text)),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
                Err(e) => Err(Failure::new(format!("{}: {e}", path.display()))),
            }
        };
        Ok(TemplateFiles { config: file(CONFIG)?, jinja: file(JINJA)? })
    }

    fn template(&self, dir: &RunDir) -> Result<Option<ChatTemplate>, Failure> {
        let file = if self.jinja.is_some() { JINJA } else { CONFIG };
        let name = dir.root().join(file).display().to_string();
        ChatTemplate::of_model(&name, self.config.as_deref(), self.jinja.as_deref()).map_err(Failure::new)
    }

    fn named(self) -> impl Iterator<Item = (&'static str, String)> {
        [(CONFIG, self.config), (JINJA, self.jinja)]
            .into_iter()
            .filter_map(|(name, text)| text.map(|text| (name, text)))
    }
}

/// The template in the directory of a model or a run, if it has one: chat_template.jinja, or else that of tokenizer_config.json.
pub(crate) fn of_directory(dir: &RunDir) -> Result<Option<ChatTemplate>, Failure> {
    TemplateFiles::read(dir)?.template(dir)
}

/// Files with the template of a directory, by name; none if it has no template. They travel with imports and exports.
pub(crate) fn files_of(dir: &RunDir) -> Result<Vec<(&'static str, String)>, Failure> {
    let files = TemplateFiles::read(dir)?;
    Ok(match files.template(dir)? {
        Some(_) => files.named().collect(),
        None => Vec::new(),
    })
}

/// The template in a file: a tokenizer_config.json, or Jinja, for which names of tokens are those of the tokenizer.
pub(crate) fn of_file(path: &Path, tokenizer: &Tokenizer) -> Result<ChatTemplate, Failure> {
    let name = path.display().to_string();
    let wrong = |problem: &str| Failure::new(format!("{name}: {problem}"));
    let mut text = String::new();
    let file = bessemer_durable::open_regular(path).map_err(|e| wrong(&e.to_string()))?;
    TextReader::buffered(file)
        .take(LARGEST_FILE)
        .read_to_string(&mut text)
        .map_err(|e| wrong(&e.to_string()))?;
    if path.extension().is_some_and(|ending| ending == "json") {
        let template = ChatTemplate::of_model(&name, Some(&text), None).map_err(Failure::new)?;
        return template.ok_or_else(|| wrong("wanted the field chat_template, found none"));
    }
    ChatTemplate::new(&name, &text, TokenNames::of_tokenizer(tokenizer)).map_err(Failure::new)
}

/// The template that a user names: a file, the directory of a model or a run, or one of this program.
pub(crate) fn named(path: &Path, tokenizer: &Tokenizer) -> Result<ChatTemplate, Failure> {
    if path.is_file() {
        return of_file(path, tokenizer);
    }
    if !path.exists() {
        return ChatTemplate::shipped(&path.to_string_lossy()).map_err(Failure::usage);
    }
    of_directory(&RunDir::new(path))?.ok_or_else(|| {
        Failure::new(format!(
            "{}: wanted chat_template.jinja, or a tokenizer_config.json with chat_template, found neither; {} come with the program",
            path.display(),
            SHIPPED.map(|one| one.name).join(", ")
        ))
    })
}

/// Files by which a run has a template: its text, and `config`, the tokenizer_config.json of its model, or else one with the names of tokens.
pub(crate) fn files_for_run(template: &ChatTemplate, config: Option<String>) -> [(&'static str, String); 2] {
    let config = config.unwrap_or_else(|| {
        let tokens = template.tokens();
        let names = [
            ("bos_token", &tokens.bos),
            ("eos_token", &tokens.eos),
            ("pad_token", &tokens.pad),
            ("unk_token", &tokens.unk),
        ];
        let named = names.into_iter().filter_map(|(key, name)| Some((key.to_owned(), name.clone()?.into())));
        let mut fields: Map<String, Value> = named.collect();
        fields.insert("add_bos_token".into(), tokens.adds_bos.into());
        fields.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
        format!("{:#}\n", Value::Object(fields))
    });
    [(CONFIG, config), (JINJA, template.source().to_owned())]
}

/// The tokenizer_config.json of a directory, if it has one.
pub(crate) fn config_of(dir: &RunDir) -> Result<Option<String>, Failure> {
    Ok(TemplateFiles::read(dir)?.config)
}

//! Chat templates: Jinja as Transformers has it in `tokenizer_config.json` or `chat_template.jinja`, and our own files.

use crate::error::{ChatError, Result};
use crate::neutral::{Replaced, Replacements, Spare, Specials};
use crate::shipped;
use crate::to_json::to_json;
use bessemer_jinja::{ANSWER_BEGIN, ANSWER_END, BoundedTemplate, WhiteSpace, environment};
use bessemer_tokenizer::Tokenizer;
use minijinja::ErrorKind;
use minijinja::value::{Serde, Value as Jinja};
use serde_json::{Map, Value};
use std::ops::Range;

pub use crate::shipped::SHIPPED;

/// Names of special tokens that templates read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenNames {
    /// Beginning of a text (`bos_token`).
    pub bos: Option<String>,
    /// End of a text (`eos_token`).
    pub eos: Option<String>,
    /// `pad_token`.
    pub pad: Option<String>,
    /// `unk_token`.
    pub unk: Option<String>,
    /// Whether the tokenizer puts the token of the beginning before every text (`add_bos_token`).
    pub adds_bos: bool,
}

impl TokenNames {
    /// The names in a `tokenizer_config.json`.
    fn of_config(config: &Map<String, Value>) -> TokenNames {
        let name = |key: &str| {
            let token = config.get(key)?;
            token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
        };
        TokenNames {
            bos: name("bos_token"),
            eos: name("eos_token"),
            pad: name("pad_token"),
            unk: name("unk_token"),
            adds_bos: config.get("add_bos_token").and_then(Value::as_bool) == Some(true),
        }
    }

    /// The usual names among the special tokens of a tokenizer, for a template without a `tokenizer_config.json`.
    pub fn of_tokenizer(tokenizer: &Tokenizer) -> TokenNames {
        let special = tokenizer.special_tokens().iter().filter(|token| token.special);
        let names: Vec<&str> = special.map(|token| token.content.as_str()).collect();
        let first = ["<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>"];
        let bos = first.into_iter().find(|name| names.contains(name)).map(str::to_owned);
        let eos = tokenizer.end_of_text().and_then(|id| tokenizer.token_bytes(id));
        let eos = eos.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        TokenNames { bos, eos, ..TokenNames::default() }
    }
}

/// A template of chats.
pub struct ChatTemplate {
    name: String,
    template: BoundedTemplate,
    source: String,
    pub(crate) tokens: TokenNames,
    /// Special tokens that the tokenizer must have.
    pub(crate) required: &'static [&'static str],
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A rendered chat.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// Offsets of bytes that are text of users wherever they are part of a special token, ascending.
    pub(crate) typed: Vec<usize>,
    /// Bytes of the bodies of `generation`, in order.
    pub(crate) answers: Vec<Range<usize>>,
}

impl Rendered {
    /// Whether the bytes may be a special token.
    pub(crate) fn may_be_special(&self, range: &Range<usize>) -> bool {
        let from = self.typed.partition_point(|at| *at < range.start);
        self.typed.get(from).is_none_or(|at| *at >= range.end)
    }
}

/// Whether the header of an answer is printed after the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerHeader {
    Printed,
    Omitted,
}

impl ChatTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// The syntax, or a limit of [`bessemer_jinja`].
    pub fn new(name: &str, source: &str, tokens: TokenNames) -> Result<ChatTemplate> {
        let wrong = |problem: String| ChatError::Template { template: name.to_owned(), problem };
        let mut environment = environment(WhiteSpace { trim_statements: true, keep_last_line_break: false });
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<String, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_filter("tojson", to_json);
        let template = BoundedTemplate::with_answer_marks(environment, source)
            .map_err(|e| wrong(format!("cannot parse: {e:#}")))?;
        Ok(ChatTemplate { name: name.to_owned(), template, source: source.to_owned(), tokens, required: &[] })
    }

    /// A template of [`SHIPPED`].
    ///
    /// # Errors
    /// An unknown name.
    pub fn shipped(name: &str) -> Result<ChatTemplate> {
        let Some(known) = shipped::find(name) else {
            let names: Vec<&str> = SHIPPED.iter().map(|one| one.name).collect();
            let near = bessemer_units::nearest(name, names.iter().copied());
            let hint = near.map(|near| format!(" (did you mean \"{near}\"?)")).unwrap_or_default();
            let problem = format!("wanted one of {}{hint}, found {name:?}", names.join(", "));
            return Err(ChatError::Template {
                template: bessemer_units::bounded(name, 40).into_owned(),
                problem,
            });
        };
        let tokens = TokenNames {
            bos: known.bos.map(str::to_owned),
            eos: Some(known.eos.to_owned()),
            ..TokenNames::default()
        };
        Ok(ChatTemplate { required: known.tokens, ..ChatTemplate::new(known.name, known.source, tokens)? })
    }

    /// The template of a model: that of its `chat_template.jinja` if there is one, else of its `tokenizer_config.json`, of whose templates the
    /// one named "default" is taken. `None` if it has none.
    ///
    /// # Errors
    /// A `tokenizer_config.json` that is no JSON object, a template that cannot be read.
    pub fn of_model(name: &str, config: Option<&str>, jinja: Option<&str>) -> Result<Option<ChatTemplate>> {
        let wrong = |problem: String| ChatError::Template { template: name.to_owned(), problem };
        let config: Map<String, Value> = match config {
            Some(text) => serde_json::from_str(text)
                .map_err(|e| wrong(format!("wanted a JSON object in tokenizer_config.json: {e}")))?,
            None => Map::new(),
        };
        let named = |list: &Vec<Value>| {
            let default = list.iter().find(|t| t["name"] == "default").or(list.first());
            default.and_then(|t| t["template"].as_str()).map(str::to_owned)
        };
        let source = match (jinja, config.get("chat_template")) {
            (Some(source), _) => Some(source.to_owned()),
            (None, Some(Value::String(source))) => Some(source.clone()),
            (None, Some(Value::Array(list))) => named(list),
            (None, _) => None,
        };
        source.map(|source| ChatTemplate::new(name, &source, TokenNames::of_config(&config))).transpose()
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its text, which travels with the runs that use it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Names of special tokens that it reads.
    pub fn tokens(&self) -> &TokenNames {
        &self.tokens
    }

    /// True if it marks answers with the tag `generation`.
    pub fn marks_answers(&self) -> bool {
        self.template.has_answer_tag()
    }

    pub(crate) fn wrong(&self, problem: String) -> ChatError {
        ChatError::Template { template: self.name.clone(), problem }
    }

    /// The text of messages as the template prints it, with marks.
    fn text(
        &self,
        messages: &[Value],
        tools: &[Value],
        header: AnswerHeader,
        marks: [char; 2],
    ) -> Result<String> {
        let mut context = Map::new();
        let names = [
            ("bos_token", &self.tokens.bos),
            ("eos_token", &self.tokens.eos),
            ("pad_token", &self.tokens.pad),
            ("unk_token", &self.tokens.unk),
        ];
        for (key, name) in names {
            if let Some(name) = name {
                context.insert(key.into(), name.as_str().into());
            }
        }
        for (key, mark) in [ANSWER_BEGIN, ANSWER_END].into_iter().zip(marks) {
            context.insert(key.into(), mark.to_string().into());
        }
        context.insert("messages".into(), messages.iter().cloned().collect());
        let tools: Value = if tools.is_empty() { Value::Null } else { tools.iter().cloned().collect() };
        context.insert("tools".into(), tools);
        context.insert("add_generation_prompt".into(), (header == AnswerHeader::Printed).into());
        self.template
            .render(Jinja::from(Serde(&context)))
            .map_err(|e| self.wrong(format!("rejects the messages: {e:#}")))
    }

    /// Renders messages.
    ///
    /// # Errors
    /// Errors that the template raises, a limit of [`bessemer_jinja`], a template that changes texts that spell special tokens.
    pub(crate) fn render(
        &self,
        specials: &Specials,
        messages: &[Value],
        tools: &[Value],
        header: AnswerHeader,
    ) -> Result<Rendered> {
        let exhausted =
            || self.wrong("wanted a chat without some private-use characters, found all of them".into());
        let mut spare = Spare::new();
        spare.leave_out(&self.source);
        messages.iter().chain(tools).for_each(|value| spare.leave_out_value(value));
        let marks = [spare.take().ok_or_else(exhausted)?, spare.take().ok_or_else(exhausted)?];
        let none = std::collections::HashMap::new();
        let plain = self.without_marks(&self.text(messages, tools, header, marks)?, marks, &none)?;
        for replaced in [Replaced::Borders, Replaced::Tokens, Replaced::WholeTokens] {
            let mut replacements = Replacements::new(specials, replaced, &mut spare);
            let mut all = |values: &[Value]| values.iter().map(|v| replacements.value(v)).collect::<Vec<_>>();
            let (neutral, neutral_tools) = (all(messages), all(tools));
            if replacements.is_exhausted {
                return Err(exhausted());
            }
            if replacements.originals.is_empty() {
                return Ok(plain);
            }
            // A template may reject what it compares with: the next attempt replaces less.
            let Ok(text) = self.text(&neutral, &neutral_tools, header, marks) else { continue };
            let Ok(found) = self.without_marks(&text, marks, &replacements.originals) else { continue };
            if found.text == plain.text && found.answers == plain.answers {
                return Ok(found);
            }
        }
        Err(self.wrong(
            "changes or compares texts of messages that spell special tokens, which hides who wrote them: wanted messages without special tokens"
                .into(),
        ))
    }

    /// Cuts the marks of answers out, and puts the characters of messages back.
    fn without_marks(
        &self,
        text: &str,
        [begin, end]: [char; 2],
        originals: &std::collections::HashMap<char, char>,
    ) -> Result<Rendered> {
        let mut rendered =
            Rendered { text: String::with_capacity(text.len()), typed: Vec::new(), answers: Vec::new() };
        let mut open = None;
        for c in text.chars() {
            if c == begin {
                if open.replace(rendered.text.len()).is_some() {
                    return Err(
                        self.wrong("wanted tags generation side by side, found one inside of another".into())
                    );
                }
            } else if c == end {
                let begin = open.take();
                let begin = begin
                    .ok_or_else(|| self.wrong("prints the end of an answer without its beginning".into()))?;
                if begin < rendered.text.len() {
                    rendered.answers.push(begin..rendered.text.len());
                }
            } else if let Some(original) = originals.get(&c) {
                rendered.typed.push(rendered.text.len());
                rendered.text.push(*original);
            } else {
                rendered.text.push(c);
            }
        }
        match open {
            None => Ok(rendered),
            Some(_) => Err(self.wrong("prints the beginning of an answer without its end".into())),
        }
    }
}

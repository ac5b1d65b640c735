//! Bodies of requests, read field by field into what the server uses of them: no tree of values, and lists no longer than
//! allowed. A body takes a small multiple of its size while it is read.
//!
//! Every field is one of three kinds: **supported**; **harmless** (ignored, because it cannot change the answer); or
//! **refused** with an error that names it, unless its value is the neutral one.

use crate::answer::Form;
use crate::error::ApiError;
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Most prompts of a request; with `n`, most texts.
pub(crate) const MOST_TEXTS: usize = 1024;
/// Most messages of a conversation.
const MOST_MESSAGES: usize = 4096;
/// Most entries of `logit_bias`.
const MOST_BIASES: usize = 1024;
/// Most stop strings, one more than are allowed: the check of the settings counts them.
const MOST_STOPS: usize = 65;
/// Most stop tokens, one more than are allowed.
const MOST_STOP_TOKENS: usize = 1025;
/// Most characters of a value that an error repeats.
const SHOWN: usize = 60;
/// Most characters of an error about a field.
const LONGEST_MESSAGE: usize = 300;

/// Fields that clients send and that change nothing in the answer.
const HARMLESS: [&str; 16] = [
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    // Without tools, which are refused:
    "parallel_tool_calls",
    "function_call",
    "tool_choice",
    // vLLM's:
    "request_id",
    "priority",
    "cache_salt",
    "spaces_between_special_tokens",
    "include_reasoning",
];

/// Fields that are not supported, with the JSON of their neutral values besides `null`, `[]` and `{}`.
const NEUTRAL: [(&str, &[&str]); 19] = [
    ("suffix", &["\"\""]),
    ("response_format", &["{\"type\":\"text\"}"]),
    ("modalities", &["[\"text\"]"]),
    ("reasoning_effort", &["\"none\""]),
    ("verbosity", &["\"medium\""]),
    ("use_beam_search", &["false"]),
    ("early_stopping", &["false"]),
    ("length_penalty", &["1"]),
    ("typical_p", &["1"]),
    ("include_stop_str_in_output", &["false"]),
    ("skip_special_tokens", &["false"]),
    ("detokenize", &["true"]),
    ("return_tokens_as_token_ids", &["false"]),
    ("return_token_ids", &["false"]),
    ("add_generation_prompt", &["true"]),
    ("continue_final_message", &["false"]),
    // Of the other interface.
    ("echo", &["false"]),
    ("best_of", &["1"]),
    ("truncation", &["\"disabled\""]),
];

/// The used fields of a body. A field that is null counts as absent, as with OpenAI's interface.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Option<Prompts>,
    pub(crate) messages: Option<Vec<Message>>,
    pub(crate) truncation: Option<String>,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) max_completion_tokens: Option<u64>,
    pub(crate) min_tokens: Option<u64>,
    pub(crate) n: Option<u64>,
    pub(crate) best_of: Option<u64>,
    pub(crate) stream: Option<bool>,
    pub(crate) include_usage: bool,
    pub(crate) echo: Option<bool>,
    /// `logprobs` of a completion.
    pub(crate) logprobs: Option<u64>,
    /// `logprobs` of a conversation.
    pub(crate) with_logprobs: Option<bool>,
    pub(crate) top_logprobs: Option<u64>,
    pub(crate) logit_bias: Vec<(u32, f64)>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) seed: Option<u64>,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) content: String,
}

/// A prompt as a client gives it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PromptBody {
    Text(String),
    Ids(Vec<u32>),
}

/// `prompt`: a string, a list of strings, a list of token ids or a list of such lists.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Prompts(pub(crate) Vec<PromptBody>);

impl Body {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// A body that is no JSON object, or its first field that is invalid or not supported.
    pub(crate) fn read(form: Form, bytes: &[u8]) -> Result<Body, ApiError> {
        let mut reading = Reading { form, body: Body::default(), field: None, refusal: None };
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let read = DeserializeSeed::deserialize(&mut reading, &mut json).and_then(|()| json.end());
        match (read, reading.refusal, reading.field) {
            (Ok(()), ..) => Ok(reading.body),
            (Err(_), Some(refusal), _) => Err(refusal),
            (Err(e), _, _) if !e.is_data() => {
                Err(ApiError::request(format!("the body is not valid JSON: {e}")))
            }
            (Err(e), _, Some(field)) => Err(ApiError::field(&field, reworded(&e.to_string()))),
            (Err(e), ..) => Err(ApiError::request(reworded(&e.to_string()))),
        }
    }
}

/// The words of serde in the order of this program's errors, without the place in the line.
fn reworded(message: &str) -> String {
    let message = message.split(" at line ").next().unwrap_or_default();
    let kinds = ["invalid type: ", "invalid value: ", "invalid length: "];
    let found = kinds.iter().find_map(|kind| message.strip_prefix(kind));
    let text = match found.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, wanted)) => {
            let wanted = match wanted {
                "f64" | "f32" => "a number",
                "u64" | "u32" | "i64" => "a whole number",
                "a boolean" => "true or false",
                other => other,
            };
            format!("wanted {wanted}, found {found}")
        }
        None => message.to_owned(),
    };
    match text.char_indices().nth(LONGEST_MESSAGE) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// A body that is being read, with the field that is read now.
struct Reading {
    form: Form,
    body: Body,
    field: Option<String>,
    refusal: Option<ApiError>,
}

impl<'de> DeserializeSeed<'de> for &mut Reading {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // Not `deserialize_map`, whose error for other values does not name them.
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Reading {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let name = &*self.field.insert(name);
            let body = &mut self.body;
            match (name.as_str(), self.form) {
                ("model", _) => body.model = map.next_value()?,
                ("prompt", Form::Completion) => body.prompt = map.next_value()?,
                ("messages", Form::Chat) => {
                    body.messages = map.next_value::<Option<Few<Message, MOST_MESSAGES>>>()?.map(|few| few.0);
                }
                ("truncation", Form::Chat) => body.truncation = map.next_value()?,
                ("max_tokens", _) => body.max_tokens = map.next_value()?,
                ("max_completion_tokens", Form::Chat) => body.max_completion_tokens = map.next_value()?,
                ("min_tokens", _) => body.min_tokens = map.next_value()?,
                ("n", _) => body.n = map.next_value()?,
                ("best_of", Form::Completion) => body.best_of = map.next_value()?,
                ("stream", _) => body.stream = map.next_value()?,
                ("stream_options", _) => {
                    let options: Option<StreamOptions> = map.next_value()?;
                    body.include_usage = options.is_some_and(|options| options.include_usage == Some(true));
                }
                ("echo", Form::Completion) => body.echo = map.next_value()?,
                ("logprobs", Form::Completion) => body.logprobs = map.next_value()?,
                ("logprobs", Form::Chat) => body.with_logprobs = map.next_value()?,
                ("top_logprobs", Form::Chat) => body.top_logprobs = map.next_value()?,
                ("logit_bias", _) => {
                    body.logit_bias =
                        map.next_value::<Option<Biases>>()?.map(|all| all.0).unwrap_or_default();
                }
                ("stop", _) => {
                    body.stop = map.next_value::<Option<Stops>>()?.map(|all| all.0).unwrap_or_default();
                }
                ("stop_token_ids", _) => {
                    let few = map.next_value::<Option<Few<u32, MOST_STOP_TOKENS>>>()?;
                    body.stop_token_ids = few.map(|few| few.0).unwrap_or_default();
                }
                ("ignore_eos", _) => body.ignore_eos = map.next_value()?,
                ("temperature", _) => body.temperature = map.next_value()?,
                ("top_k", _) => body.top_k = map.next_value()?,
                ("top_p", _) => body.top_p = map.next_value()?,
                ("min_p", _) => body.min_p = map.next_value()?,
                ("repetition_penalty", _) => body.repetition_penalty = map.next_value()?,
                ("frequency_penalty", _) => body.frequency_penalty = map.next_value()?,
                ("presence_penalty", _) => body.presence_penalty = map.next_value()?,
                ("seed", _) => body.seed = map.next_value()?,
                // The default of each interface of vLLM, and what this server does.
                ("add_special_tokens", form) => {
                    let wanted = form == Form::Completion;
                    let found: Option<bool> = map.next_value()?;
                    if found.is_some_and(|found| found != wanted) {
                        return Err(de::Error::custom(format!("wanted {wanted}, found {}", !wanted)));
                    }
                }
                (name, _) if HARMLESS.contains(&name) => {
                    map.next_value::<IgnoredAny>()?;
                }
                (name, _) => {
                    let found: Brief = map.next_value()?;
                    if let Some(refusal) = refusal(name, &found.0) {
                        self.refusal = Some(refusal);
                        return Err(de::Error::custom("refused"));
                    }
                }
            }
        }
        self.field = None;
        Ok(())
    }
}

/// The error of a field that this server does not support, unless its value is neutral.
fn refusal(name: &str, found: &str) -> Option<ApiError> {
    let known = NEUTRAL.iter().find(|(one, _)| *one == name);
    let number = found.parse::<f64>().ok();
    let same = |one: &&str| *one == found || (number.is_some() && number == one.parse().ok());
    let neutral = known.is_some_and(|(_, values)| values.iter().any(same));
    if neutral || matches!(found, "null" | "[]" | "{}") {
        return None;
    }
    let name: String = name.chars().take(SHOWN).collect();
    Some(ApiError::field(&name, format!("this server does not support it (found {found}); leave it out")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    include_usage: Option<bool>,
    /// Padding against the observation of lengths; not part of the answer.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

/// A list of at most `MOST` values.
struct Few<T, const MOST: usize>(Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Few<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T, const MOST: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Items<T, MOST> {
            type Value = Few<T, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T, MOST>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == MOST {
                        return Err(de::Error::custom(format!(
                            "wanted a list of at most {MOST}, found more"
                        )));
                    }
                    items.push(item);
                }
                Ok(Few(items))
            }
        }

        deserializer.deserialize_any(Items(PhantomData))
    }
}

/// `stop`: a string, or a list of strings.
struct Stops(Vec<String>);

impl<'de> Deserialize<'de> for Stops {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;

        impl<'de> Visitor<'de> for Strings {
            type Value = Stops;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Stops, E> {
                Ok(Stops(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Stops, A::Error> {
                let few =
                    Few::<String, MOST_STOPS>::deserialize(de::value::SeqAccessDeserializer::new(list))?;
                Ok(Stops(few.0))
            }
        }

        deserializer.deserialize_any(Strings)
    }
}

/// `logit_bias`: token ids, as strings, to numbers.
struct Biases(Vec<(u32, f64)>);

impl<'de> Deserialize<'de> for Biases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Biases;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {MOST_BIASES} token ids with numbers from -100 to 100")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Biases, A::Error> {
                let mut all = Vec::new();
                while let Some(id) = map.next_key::<String>()? {
                    let Ok(id) = id.parse() else {
                        return Err(de::Error::invalid_value(de::Unexpected::Str(&id), &self));
                    };
                    if all.len() == MOST_BIASES {
                        return Err(de::Error::custom(format!(
                            "wanted at most {MOST_BIASES} tokens, found more"
                        )));
                    }
                    all.push((id, map.next_value()?));
                }
                Ok(Biases(all))
            }
        }

        deserializer.deserialize_any(Entries)
    }
}

/// Words for what `prompt` may be.
const PROMPT: &str = "a string, a list of strings, a list of token ids or a list of lists of token ids";

/// An element of the list of `prompt`.
enum PromptElement {
    Id(u32),
    Prompt(PromptBody),
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = PromptElement;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PROMPT)
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<PromptElement, E> {
        let wrong = |_| de::Error::custom(format!("wanted token ids, found {id}"));
        Ok(PromptElement::Id(u32::try_from(id).map_err(wrong)?))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PromptElement, E> {
        Ok(PromptElement::Prompt(PromptBody::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PromptElement, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(PromptElement::Prompt(PromptBody::Ids(ids)))
    }
}

impl<'de> Deserialize<'de> for PromptElement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Prompts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(PROMPT)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![PromptBody::Text(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
                let mixed = || de::Error::custom(format!("wanted {PROMPT}, found a list of several kinds"));
                let (mut ids, mut prompts) = (Vec::new(), Vec::new());
                while let Some(element) = list.next_element()? {
                    match element {
                        PromptElement::Id(id) if prompts.is_empty() => ids.push(id),
                        PromptElement::Prompt(prompt) if ids.is_empty() => {
                            if prompts.len() == MOST_TEXTS {
                                let message =
                                    format!("wanted at most {MOST_TEXTS} texts, found more prompts");
                                return Err(de::Error::custom(message));
                            }
                            prompts.push(prompt);
                        }
                        _ => return Err(mixed()),
                    }
                }
                match (ids.is_empty(), prompts.is_empty()) {
                    (false, _) => Ok(Prompts(vec![PromptBody::Ids(ids)])),
                    (_, false) => Ok(Prompts(prompts)),
                    _ => Err(de::Error::custom(format!("wanted {PROMPT}, found an empty list"))),
                }
            }
        }

        deserializer.deserialize_any(All)
    }
}

/// The text of a message: a string, null, or parts of text.
#[derive(Default)]
struct Content(Option<String>);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Part {
            #[serde(rename = "type")]
            kind: Option<String>,
            text: String,
        }

        impl<'de> Visitor<'de> for Parts {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of parts {\"type\": \"text\", \"text\": …} as content")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Content, E> {
                Ok(Content(None))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content(Some(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let mut whole = String::new();
                while let Some(Part { kind, text }) = list.next_element()? {
                    if kind.as_deref().is_some_and(|kind| kind != "text") {
                        return Err(de::Error::custom("wanted parts of the type \"text\" only"));
                    }
                    whole += &text;
                }
                Ok(Content(Some(whole)))
            }
        }

        deserializer.deserialize_any(Parts)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Message;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("messages {\"role\", \"content\"}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message, A::Error> {
                let (mut role, mut content) = (String::new(), Content::default());
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "role" => role = map.next_value()?,
                        "content" => content = map.next_value()?,
                        // Empty in messages that clients send back as they came.
                        name => {
                            let found: Brief = map.next_value()?;
                            if let Some(refusal) = refusal(name, &found.0) {
                                return Err(de::Error::custom(refusal.message));
                            }
                        }
                    }
                }
                let content = match content.0 {
                    Some(content) => content,
                    // An answer that was a call of a tool, or a refusal.
                    None if role == "assistant" => String::new(),
                    None => return Err(de::Error::custom("wanted a content in every message, found none")),
                };
                match role.is_empty() {
                    true => Err(de::Error::custom("wanted a role in every message, found none")),
                    false => Ok(Message { role, content }),
                }
            }
        }

        deserializer.deserialize_any(Fields)
    }
}

/// The beginning of any value as JSON without spaces.
struct Brief(String);

/// Writes a value's beginning.
struct BriefWriter<'a>(&'a mut String);

impl BriefWriter<'_> {
    fn put<E>(self, text: &str) -> Result<(), E> {
        let room = SHOWN.saturating_sub(self.0.chars().count());
        self.0.extend(text.chars().take(room));
        if text.chars().nth(room).is_some() && !self.0.ends_with('…') {
            self.0.push('…');
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for BriefWriter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BriefWriter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.put("null")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.put(if value { "true" } else { "false" })
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        self.put(&value.to_string())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        self.put(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        self.put(&value.to_string())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        let beginning: String = value.chars().take(SHOWN).collect();
        self.put(&serde_json::Value::String(beginning).to_string())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let text = self.0;
        let mut before = "[";
        loop {
            let comma = text.len();
            BriefWriter(text).put::<A::Error>(before)?;
            if list.next_element_seed(BriefWriter(text))?.is_none() {
                if before == "," {
                    text.truncate(comma);
                }
                return BriefWriter(text).put("]");
            }
            before = ",";
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let text = self.0;
        let mut before = "{";
        loop {
            let comma = text.len();
            BriefWriter(text).put::<A::Error>(before)?;
            if map.next_key_seed(BriefWriter(text))?.is_none() {
                if before == "," {
                    text.truncate(comma);
                }
                return BriefWriter(text).put("}");
            }
            BriefWriter(text).put::<A::Error>(":")?;
            map.next_value_seed(BriefWriter(text))?;
            before = ",";
        }
    }
}

impl<'de> Deserialize<'de> for Brief {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut text = String::new();
        BriefWriter(&mut text).deserialize(deserializer)?;
        Ok(Brief(text))
    }
}

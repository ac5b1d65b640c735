//! A line of JSON as a document: its text or the turns of a chat, URL, date, metadata and embedding.

use super::FieldNames;
use crate::dialogue;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;

/// Content of a line.
pub(super) struct Parsed<'a> {
    pub(super) text: Option<Cow<'a, str>>,
    /// The text of a chat, or why it has none, where the field holds a list or one of [`dialogue::FIELDS`] does.
    pub(super) chat: Option<std::result::Result<String, String>>,
    pub(super) url: Option<Cow<'a, str>>,
    pub(super) date: Option<Cow<'a, str>>,
    /// Fields that may hold metadata that predicates read.
    pub(super) metadata: Map<String, Json>,
    /// Embedding, as little-endian 32-bit floats.
    pub(super) embedding: Option<Vec<u8>>,
    /// Names of the fields, kept only until the text is found.
    pub(super) names: Vec<String>,
}

/// The value at a path of names, such as `doc.body`, in the value of its first name, where that is `name`.
fn below<'j>(path: &str, name: &str, value: &'j Json) -> Option<&'j Json> {
    let rest = path.strip_prefix(name)?.strip_prefix('.')?;
    rest.split('.').try_fold(value, |inner, part| inner.get(part))
}

/// Reads a line.
pub(super) fn parse<'a>(line: &'a [u8], fields: &FieldNames) -> serde_json::Result<Parsed<'a>> {
    // Files with byte order marks that were put together have them before later lines too.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let mut reader = serde_json::Deserializer::from_slice(line);
    let parsed = Object { fields }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(parsed)
}

/// A list of numbers as little-endian 32-bit floats; none for anything else.
fn floats(value: &Json) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for number in value.as_array()? {
        bytes.extend((number.as_f64()? as f32).to_le_bytes());
    }
    Some(bytes)
}

struct Object<'f> {
    fields: &'f FieldNames,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Parsed<'de>;
    fn deserialize<D: serde::Deserializer<'de>>(
        self,
        reader: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Parsed<'de>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "a JSON object with a text field {:?}", self.fields.text)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut parsed = Parsed {
            text: None,
            chat: None,
            url: None,
            date: None,
            metadata: Map::new(),
            embedding: None,
            names: Vec::new(),
        };
        let paths = [&self.fields.text, &self.fields.url, &self.fields.date];
        // Values that a path of names leads to; a field that is named like the whole path counts before them.
        let mut nested: [Option<Json>; 3] = [const { None }; 3];
        while let Some(name) = map.next_key::<Text<'de>>()? {
            let leads_below =
                |path: &&String| path.strip_prefix(name.0.as_ref()).is_some_and(|rest| rest.starts_with('.'));
            if paths.iter().any(leads_below) {
                let value = map.next_value::<Json>()?;
                for (path, found) in paths.iter().zip(&mut nested) {
                    *found = below(path, &name.0, &value).cloned().or(found.take());
                }
                parsed.names.push(name.0.clone().into_owned());
                if self.fields.metadata.reads(&name.0) {
                    parsed.metadata.insert(name.0.into_owned(), value);
                }
                continue;
            }
            if name.0 == self.fields.text {
                match map.next_value::<Option<TextOrTurns<'de>>>()? {
                    Some(TextOrTurns::Text(text)) => parsed.text = Some(text),
                    Some(TextOrTurns::Turns(turns)) => {
                        parsed.chat = Some(dialogue::chat(&self.fields.dialogue, &turns))
                    }
                    None => {}
                }
                continue;
            }
            if dialogue::FIELDS.contains(&name.0.as_ref()) && parsed.text.is_none() && parsed.chat.is_none() {
                let turns = map.next_value::<Json>()?;
                if turns.is_array() {
                    parsed.chat = Some(dialogue::chat(&self.fields.dialogue, &turns));
                }
                if self.fields.metadata.reads(&name.0) {
                    parsed.metadata.insert(name.0.into_owned(), turns);
                } else {
                    parsed.names.push(name.0.into_owned());
                }
                continue;
            }
            if !self.fields.embedding.is_empty() && name.0 == self.fields.embedding {
                parsed.embedding = floats(&map.next_value::<Json>()?);
                continue;
            }
            let held = [(&self.fields.url, &mut parsed.url), (&self.fields.date, &mut parsed.date)];
            let held = held.into_iter().find(|(field, _)| !field.is_empty() && name.0 == **field);
            if self.fields.metadata.reads(&name.0) {
                let value = map.next_value::<Json>()?;
                if let Some((_, text)) = held {
                    *text = value.as_str().map(|text| Cow::Owned(text.to_owned()));
                }
                parsed.metadata.insert(name.0.clone().into_owned(), value);
            } else if let Some((_, text)) = held {
                *text = map.next_value::<Perhaps<'de>>()?.0;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            if parsed.names.len() < 32 {
                parsed.names.push(name.0.into_owned());
            }
        }
        let [text, url, date] = nested;
        let string = |value: Option<Json>| match value {
            Some(Json::String(text)) => Some(Cow::Owned(text)),
            _ => None,
        };
        match text {
            Some(turns @ Json::Array(_)) if parsed.text.is_none() => {
                parsed.chat = Some(dialogue::chat(&self.fields.dialogue, &turns));
            }
            text => parsed.text = parsed.text.or(string(text)),
        }
        parsed.url = parsed.url.or(string(url));
        parsed.date = parsed.date.or(string(date));
        Ok(parsed)
    }
}

/// A string that borrows where it has no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The value of the field of the text: a string, or the turns of a chat.
enum TextOrTurns<'a> {
    Text(Cow<'a, str>),
    Turns(Json),
}

impl<'de> serde::Deserialize<'de> for TextOrTurns<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> std::result::Result<Self, D::Error> {
        reader.deserialize_any(TextOrTurnsVisitor)
    }
}

struct TextOrTurnsVisitor;

impl<'de> Visitor<'de> for TextOrTurnsVisitor {
    type Value = TextOrTurns<'de>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "a string, or a list of turns")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> std::result::Result<Self::Value, E> {
        Ok(TextOrTurns::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Self::Value, E> {
        Ok(TextOrTurns::Text(Cow::Owned(text.to_string())))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(
        self,
        mut list: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut turns = Vec::new();
        while let Some(turn) = list.next_element()? {
            turns.push(turn);
        }
        Ok(TextOrTurns::Turns(Json::Array(turns)))
    }
}

/// A string, or nothing where the value is of another kind.
struct Perhaps<'a>(Option<Cow<'a, str>>);

impl<'de> serde::Deserialize<'de> for Perhaps<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> std::result::Result<Self, D::Error> {
        reader.deserialize_any(PerhapsVisitor)
    }
}

struct PerhapsVisitor;

impl<'de> Visitor<'de> for PerhapsVisitor {
    type Value = Perhaps<'de>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "any value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(Some(Cow::Owned(text.to_string()))))
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_unit<E>(self) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(
        self,
        mut list: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Perhaps(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Perhaps(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MetadataColumns;
    use bessemer_corpus_config::DialogueConfig;

    #[test]
    fn the_text_is_found_and_unescaped_and_other_fields_are_passed_over() {
        let fields = FieldNames {
            text: "text".into(),
            url: "url".into(),
            date: String::new(),
            metadata: MetadataColumns::default(),
            embedding: String::new(),
            dialogue: DialogueConfig::default(),
            chats: None,
        };
        let text =
            |line: &str| parse(line.as_bytes(), &fields).map(|parsed| parsed.text.map(Cow::into_owned));
        let url = |line: &str| parse(line.as_bytes(), &fields).map(|parsed| parsed.url.map(Cow::into_owned));
        assert_eq!(url(r#"{"text": "a", "url": "http:\/\/b"}"#).unwrap(), Some("http://b".into()));
        for other in ["null", "3", "-3", "0.5", "true", "[1, {}]", "{\"a\": []}"] {
            assert_eq!(url(&format!(r#"{{"url": {other}, "text": "a"}}"#)).unwrap(), None, "{other}");
        }
        assert_eq!(text(r#"{"id": [1, {"text": 2}], "text": "a\né"}"#).unwrap(), Some("a\né".into()));
        assert_eq!(text(r#"{"text": null}"#).unwrap(), None);
        assert_eq!(text(r#"{"\u0074ext": "x"}"#).unwrap(), Some("x".into()));
        assert!(text(r#"{"text": 3}"#).is_err());
        let chat = |line: &str| parse(line.as_bytes(), &fields).unwrap().chat;
        let turns = r#"[{"role": "user", "content": "a"}]"#;
        for line in [format!(r#"{{"messages": {turns}}}"#), format!(r#"{{"text": {turns}}}"#)] {
            assert_eq!(chat(&line), Some(Ok("User: a".into())), "{line}");
        }
        let both = format!(r#"{{"conversations": {turns}, "text": "b"}}"#);
        assert_eq!(text(&both).unwrap(), Some("b".into()), "the text counts where there is one");
        assert!(matches!(chat(r#"{"messages": [1]}"#), Some(Err(_))));
        assert_eq!(chat(r#"{"messages": "none"}"#), None);
        let fields = FieldNames { text: "doc.body".into(), url: "doc.at.url".into(), ..fields.clone() };
        let nested = |line: &str| {
            let parsed = parse(line.as_bytes(), &fields).unwrap();
            (parsed.text.map(Cow::into_owned), parsed.url.map(Cow::into_owned))
        };
        let both = (Some("a".to_string()), Some("u".to_string()));
        assert_eq!(nested(r#"{"doc": {"at": {"url": "u"}, "body": "a"}, "docs": 1}"#), both);
        for literal in
            [r#"{"doc.body": "a", "doc": {"body": "b"}}"#, r#"{"doc": {"body": "b"}, "doc.body": "a"}"#]
        {
            assert_eq!(nested(literal), (Some("a".into()), None));
        }
        assert_eq!(nested(r#"{"doc": "a", "body": "b"}"#), (None, None));
        let turns = format!(r#"{{"doc": {{"body": {turns}}}}}"#);
        assert_eq!(parse(turns.as_bytes(), &fields).unwrap().chat, Some(Ok("User: a".into())));
        assert!(text(r#"{"text": "a"} x"#).is_err());
        assert!(text("[1]").is_err());
        assert!(text(&"[".repeat(100_000)).is_err());
        assert!(text(&format!(r#"{{"a": {}"#, "[".repeat(100_000))).is_err());
    }
}

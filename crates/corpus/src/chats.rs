//! Chats as texts of documents, so that rules, scrubbing, deduplication and splits see turns as they see other texts.
//!
//! ```text
//! text     = turn*
//! turn     = U+001E header LF content LF
//! header   = the message as OpenAI has it, a JSON object in one line, without its content; that of the first turn has the chat's tools
//! ```
//!
//! A text is read back as a row of OpenAI's form, with the checks of one. Of a pair of preferences the text is that of the chat with the
//! chosen answer, U+001D, and that of the chat with the rejected one.

use bessemer_chat::rows::{read_object, read_object_of_row, read_pair, read_row};
use bessemer_chat::{Chat, Pair, Role};
use bessemer_corpus_config::CorpusConfig;
use serde_json::{Map, Value, json};

/// Begins a turn (record separator).
const TURN: char = '\u{1e}';
/// Between the chats of a pair (group separator).
const CHAT: char = '\u{1d}';

/// The text of a chat, as documents of a corpus with `[corpus.chats]` have it.
///
/// # Errors
/// A turn that has the character by which turns begin.
pub fn text_of_chat(chat: &Chat) -> Result<String, String> {
    let mut text = String::new();
    for (index, message) in chat.messages.iter().enumerate() {
        if message.content.contains(TURN) {
            return Err(format!("turn {}: wanted a text without U+001E, found one with it", index + 1));
        }
        let mut header = match message.to_json() {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        for field in ["content", "thinking"] {
            header.remove(field);
        }
        // Questions are never scored: those of a prompt are like others, so that equal chats of two forms are equal texts.
        if !message.scored && message.role == Role::Assistant {
            header.insert("weight".into(), 0.into());
        }
        if index == 0 && !chat.tools.is_empty() {
            header.insert("tools".into(), chat.tools.iter().cloned().collect());
        }
        text.push(TURN);
        text.push_str(&Value::Object(header).to_string());
        text.push('\n');
        text.push_str(&message.content);
        text.push('\n');
    }
    Ok(text)
}

/// Rows of `[corpus.chats]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChatRows {
    /// A chat each, in one of the forms that `bessemer chat show` reads.
    Single,
    /// A chosen and a rejected answer each.
    Pairs,
}

impl ChatRows {
    /// Those of a configuration; `None` if its rows are no chats.
    pub(crate) fn of(config: &CorpusConfig) -> Option<ChatRows> {
        let chats = config.chats.as_ref()?;
        Some(if chats.pairs { ChatRows::Pairs } else { ChatRows::Single })
    }

    /// The text of a row.
    ///
    /// # Errors
    /// A row that is none, or a turn with a character that borders have.
    pub(crate) fn text_of_row(self, row: &[u8]) -> Result<String, String> {
        self.text_of_object(&read_object_of_row(row)?)
    }

    /// The text of a row that is an object already.
    ///
    /// # Errors
    /// As [`ChatRows::text_of_row`].
    pub(crate) fn text_of_object(self, row: &Map<String, Value>) -> Result<String, String> {
        match self {
            ChatRows::Single => text_of_chat(&read_object(row)?.1),
            ChatRows::Pairs => text_of_pair(&read_pair(row)?),
        }
    }

    /// Columns of a table of which it has one, and the others that are read.
    pub(crate) fn columns(self) -> [&'static [&'static str]; 2] {
        match self {
            ChatRows::Single => [
                &["messages", "conversations", "output", "completion"],
                &["instruction", "input", "prompt", "system", "history", "tools"],
            ],
            ChatRows::Pairs => {
                [&["chosen"], &["rejected", "prompt", "messages", "conversations", "system", "tools"]]
            }
        }
    }
}

/// The text of a pair.
fn text_of_pair(pair: &Pair) -> Result<String, String> {
    let texts = [text_of_chat(&pair.chosen)?, text_of_chat(&pair.rejected)?];
    match texts.iter().any(|text| text.contains(CHAT)) {
        true => Err("wanted texts without U+001D, found one with it".into()),
        false => Ok(texts.join(CHAT.encode_utf8(&mut [0; 4]))),
    }
}

/// The pair whose document has this text, in a corpus with `corpus.chats.pairs`.
///
/// # Errors
/// As [`chat_of_text`].
pub fn pair_of_text(text: &str) -> Result<Pair, String> {
    let (chosen, rejected) =
        text.split_once(CHAT).ok_or("wanted the texts of two chats, found that of one")?;
    Ok(Pair { chosen: chat_of_text(chosen)?, rejected: chat_of_text(rejected)? })
}

/// The chat whose document has this text, in a corpus with `[corpus.chats]`.
///
/// # Errors
/// A text of another form, for example after an edit that took the border of a turn away; a turn that is wrong.
pub fn chat_of_text(text: &str) -> Result<Chat, String> {
    let wrong = |problem: &str| format!("wanted the text of a chat, found {problem}");
    let turns = text.strip_prefix(TURN).ok_or_else(|| wrong("one that does not begin with a turn"))?;
    let (mut messages, mut tools) = (Vec::new(), Value::Null);
    for turn in turns.split(TURN) {
        let (header, content) =
            turn.split_once('\n').ok_or_else(|| wrong("a turn without a line of its own for its role"))?;
        let mut message: Map<String, Value> =
            serde_json::from_str(header).map_err(|e| wrong(&format!("a turn with another header: {e}")))?;
        if let Some(found) = message.remove("tools") {
            tools = found;
        }
        message.insert("content".into(), content.strip_suffix('\n').unwrap_or(content).into());
        messages.push(Value::Object(message));
    }
    let row = json!({ "messages": messages, "tools": tools });
    read_row(row.to_string().as_bytes()).map(|(_, chat)| chat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_comes_back_from_its_text() {
        let rows = [
            r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a\n\nb\n", "name": "ann"},
               {"role": "assistant", "content": "", "reasoning_content": "hm\n", "weight": 0, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{\"x\": [1]}"}}]},
               {"role": "tool", "content": "7\r\n", "tool_call_id": "1"}, {"role": "assistant", "content": " {\"role\": \"user\"}\n"}],
               "tools": [{"type": "function", "function": {"name": "f"}}]}"#,
            r#"{"conversations": [{"from": "human", "value": "東京"}, {"from": "gpt", "value": "x"}], "system": "s"}"#,
            r#"{"prompt": "p", "completion": "c"}"#,
        ];
        for row in rows {
            let (_, mut chat) = read_row(row.as_bytes()).unwrap();
            chat.messages.iter_mut().for_each(|one| one.scored |= one.role != Role::Assistant);
            let text = ChatRows::Single.text_of_row(row.as_bytes()).unwrap();
            assert_eq!(chat_of_text(&text).unwrap(), chat, "{text:?}");
        }
        let text = ChatRows::Single.text_of_row(rows[2].as_bytes()).unwrap();
        assert_eq!(text, "\u{1e}{\"role\":\"user\"}\np\n\u{1e}{\"role\":\"assistant\"}\nc\n");
    }

    #[test]
    fn a_pair_comes_back_from_its_text() {
        let row = r#"{"prompt": [{"role": "user", "content": "q"}], "chosen": "a\n", "rejected": [{"role": "assistant", "content": "b"}],
                      "tools": [{"type": "function", "function": {"name": "f"}}]}"#;
        let mut pair = read_pair(&read_object_of_row(row.as_bytes()).unwrap()).unwrap();
        for chat in [&mut pair.chosen, &mut pair.rejected] {
            chat.messages.iter_mut().for_each(|one| one.scored |= one.role != Role::Assistant);
        }
        let text = ChatRows::Pairs.text_of_row(row.as_bytes()).unwrap();
        assert_eq!(pair_of_text(&text).unwrap(), pair);
        assert!(
            pair_of_text(&text_of_chat(&pair.chosen).unwrap()).unwrap_err().contains("found that of one")
        );
        let marked = json!({"prompt": "q", "chosen": "a\u{1d}", "rejected": "b"}).to_string();
        assert!(ChatRows::Pairs.text_of_row(marked.as_bytes()).unwrap_err().contains("without U+001D"));
    }

    #[test]
    fn texts_that_are_no_chat_are_refused() {
        let marked = json!({"prompt": "a\u{1e}b", "completion": "c"}).to_string();
        assert!(
            ChatRows::Single
                .text_of_row(marked.as_bytes())
                .unwrap_err()
                .contains("turn 1: wanted a text without U+001E")
        );
        for (text, fault) in [
            ("", "does not begin with a turn"),
            ("a", "does not begin with a turn"),
            ("\u{1e}{\"role\":\"user\"}", "without a line of its own"),
            ("\u{1e}user\na\n", "another header"),
            ("\u{1e}{\"role\":\"user\"}\na\n", "wanted an answer as the last turn"),
        ] {
            assert!(chat_of_text(text).unwrap_err().contains(fault), "{text:?}");
        }
    }
}

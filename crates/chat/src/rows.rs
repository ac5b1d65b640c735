//! Rows of chats: JSON objects in the four forms that data sets have, one a line.
//!
//! | form | fields |
//! |---|---|
//! | OpenAI | `messages`: `role`, `content` (a text, or a list of parts of type `text`), `tool_calls`, `tool_call_id`, `name`, `weight`; `tools` |
//! | ShareGPT | `conversations`: `from` (`human`, `gpt`, `system`, `function_call`, `observation`), `value`; `system`, `tools` |
//! | Alpaca | `instruction`, `input`, `output`; `system`, `history` (pairs of question and answer) |
//! | prompt and completion | `prompt`, `completion`: texts, or lists of messages of which those of the completion are scored |
//!
//! Rows of preferences ([`read_pair`]) have `chosen` and `rejected`: answers to `prompt` (or `messages`, `conversations`), each a text, a
//! message or a list of messages; or, without a prompt, whole chats that begin with the same turns.

use crate::error::{ChatError, Result};
use crate::message::{Chat, MOST_MESSAGES, Message, Role, ToolCall};
use serde_json::{Map, Value};
use std::io::{BufRead, Read};

/// Longest row, in bytes.
pub const MOST_ROW_BYTES: usize = 16 << 20;
/// Most values of a row, which bounds the memory that it takes as JSON.
const MOST_VALUES: usize = 1 << 18;
/// Most fields that an error lists.
const MOST_LISTED: usize = 12;

/// Form of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowForm {
    /// OpenAI's `messages`.
    OpenAi,
    /// ShareGPT's `conversations`.
    ShareGpt,
    /// `instruction`, `input`, `output`.
    Alpaca,
    /// `prompt`, `completion`.
    PromptCompletion,
}

impl RowForm {
    /// The name in documentation and output.
    pub fn name(self) -> &'static str {
        match self {
            RowForm::OpenAi => "openai",
            RowForm::ShareGpt => "sharegpt",
            RowForm::Alpaca => "alpaca",
            RowForm::PromptCompletion => "prompt-completion",
        }
    }

    /// The form of a row by its fields; the first of the table that fits.
    ///
    /// # Errors
    /// The fields that were wanted, and those of the row.
    pub fn of(row: &Map<String, Value>) -> std::result::Result<RowForm, String> {
        // A table with several forms has null in the columns of the others.
        let has = |name: &str| row.get(name).is_some_and(|value| !value.is_null());
        if has("messages") {
            return Ok(RowForm::OpenAi);
        }
        if has("conversations") {
            return Ok(RowForm::ShareGpt);
        }
        if has("instruction") && has("output") {
            return Ok(RowForm::Alpaca);
        }
        if has("prompt") && has("completion") {
            return Ok(RowForm::PromptCompletion);
        }
        Err(format!(
            "wanted messages (OpenAI), conversations (ShareGPT), instruction with output (Alpaca) or prompt with completion, found {}",
            fields(row)
        ))
    }
}

/// An answer that was chosen and one that was rejected, after the same turns, which are not scored.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// The chat with the chosen answer.
    pub chosen: Chat,
    /// The chat with the rejected one.
    pub rejected: Chat,
}

/// Names of the fields of a row, for messages.
fn fields(row: &Map<String, Value>) -> String {
    let mut names: Vec<String> =
        row.keys().take(MOST_LISTED).map(|name| bessemer_units::bounded(name, 40).into_owned()).collect();
    if row.len() > MOST_LISTED {
        names.push("…".into());
    }
    if names.is_empty() { "no fields".into() } else { format!("the fields {}", names.join(", ")) }
}

/// The beginning of a value.
fn shown(value: &Value) -> String {
    bessemer_units::bounded(&value.to_string(), 40).into_owned()
}

/// Kind of a JSON value, for messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn text_field(row: &Map<String, Value>, name: &str) -> std::result::Result<Option<String>, String> {
    match row.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(format!("{name}: wanted a text, found {}", kind(other))),
    }
}

/// The text of a message: a text, nothing, or parts of type `text`, one after the other.
fn content(value: Option<&Value>) -> std::result::Result<String, String> {
    let parts = match value {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(format!("wanted a text or a list of parts, found {}", kind(other))),
    };
    let mut whole = String::new();
    for (index, part) in parts.iter().enumerate() {
        let place = format!("part {}", index + 1);
        let text = match part {
            Value::String(text) => text,
            Value::Object(part) => {
                match part.get("type") {
                    None => {}
                    Some(Value::String(name)) if name == "text" => {}
                    Some(other) => {
                        return Err(format!("{place}: wanted the type \"text\", found {}", shown(other)));
                    }
                }
                match part.get("text") {
                    Some(Value::String(text)) => text,
                    Some(other) => return Err(format!("{place}: wanted a text, found {}", kind(other))),
                    None => return Err(format!("{place}: wanted the field text, found none")),
                }
            }
            other => return Err(format!("{place}: wanted a text or an object, found {}", kind(other))),
        };
        whole.push_str(text);
    }
    Ok(whole)
}

/// Arguments of a call: OpenAI has JSON in a text.
fn arguments(value: Option<&Value>) -> Value {
    match value {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(parsed @ Value::Object(_)) => parsed,
            _ => Value::String(text.clone()),
        },
        Some(other) => other.clone(),
    }
}

fn tool_call(value: &Value) -> std::result::Result<ToolCall, String> {
    let call = value.as_object().ok_or_else(|| format!("wanted an object, found {}", kind(value)))?;
    let function = call.get("function").and_then(Value::as_object).unwrap_or(call);
    let name = text_field(function, "name")?.filter(|name| !name.is_empty());
    let name = name.ok_or("wanted the name of a function, found none")?;
    Ok(ToolCall { id: text_field(call, "id")?, name, arguments: arguments(function.get("arguments")) })
}

fn message(value: &Value) -> std::result::Result<Message, String> {
    let turn = value.as_object().ok_or_else(|| format!("wanted an object, found {}", kind(value)))?;
    let name = match text_field(turn, "role")? {
        Some(name) => name,
        None => text_field(turn, "from")?.ok_or("wanted the field role or from, found neither")?,
    };
    let value = turn.get("content").or_else(|| turn.get("value"));
    if name == "function_call" {
        let text = content(value)?;
        let parsed = serde_json::from_str::<Value>(&text)
            .map_err(|e| format!("function_call: wanted a JSON object as text: {e}"))?;
        let calls = match &parsed {
            Value::Array(calls) => calls.iter().map(tool_call).collect::<std::result::Result<Vec<_>, _>>(),
            call => tool_call(call).map(|call| vec![call]),
        };
        let tool_calls = calls.map_err(|e| format!("function_call: {e}"))?;
        return Ok(Message { tool_calls, ..Message::new(Role::Assistant, "") });
    }
    let role = Role::from_name(&name).ok_or_else(|| {
        let name = bessemer_units::bounded(&name, 40);
        format!("wanted the role system, user, assistant or tool (ShareGPT: human, gpt, function_call, observation), found {name:?}")
    })?;
    let mut message = Message::new(role, content(value)?);
    for field in ["reasoning_content", "thinking", "reasoning"] {
        message.reasoning = match message.reasoning {
            Some(found) => Some(found),
            None => text_field(turn, field)?,
        };
    }
    message.name = text_field(turn, "name")?;
    message.tool_call_id = text_field(turn, "tool_call_id")?;
    match turn.get("tool_calls") {
        None | Some(Value::Null) => {}
        Some(Value::Array(calls)) => {
            for (index, call) in calls.iter().enumerate() {
                let call = tool_call(call).map_err(|e| format!("call {}: {e}", index + 1))?;
                message.tool_calls.push(call);
            }
        }
        Some(other) => return Err(format!("tool_calls: wanted a list, found {}", kind(other))),
    }
    match turn.get("weight") {
        None | Some(Value::Null) => {}
        Some(weight) => match weight.as_f64() {
            Some(0.0) => message.scored = false,
            Some(1.0) => {}
            _ => return Err(format!("weight: wanted 0 or 1, found {}", shown(weight))),
        },
    }
    Ok(message)
}

fn messages(name: &str, value: Option<&Value>) -> std::result::Result<Vec<Message>, String> {
    let turns = match value {
        Some(Value::Array(turns)) => turns,
        Some(other) => return Err(format!("{name}: wanted a list of turns, found {}", kind(other))),
        None => return Err(format!("{name}: wanted a list of turns, found none")),
    };
    if turns.len() > MOST_MESSAGES {
        return Err(format!("{name}: wanted at most {MOST_MESSAGES} turns, found {}", turns.len()));
    }
    let turn = |(index, turn)| message(turn).map_err(|e| format!("turn {}: {e}", index + 1));
    turns.iter().enumerate().map(turn).collect()
}

fn tools(row: &Map<String, Value>) -> std::result::Result<Vec<Value>, String> {
    let parsed;
    let list = match row.get("tools") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(Vec::new()),
        Some(Value::String(text)) => {
            parsed = serde_json::from_str(text).map_err(|e| {
                format!("tools: wanted a list of objects, found a text that is not JSON: {e}")
            })?;
            &parsed
        }
        Some(list) => list,
    };
    let list = list.as_array().ok_or_else(|| format!("tools: wanted a list, found {}", kind(list)))?;
    match list.iter().position(|tool| !tool.is_object()) {
        Some(at) => Err(format!("tools: wanted objects, found {} as number {}", kind(&list[at]), at + 1)),
        None => Ok(list.clone()),
    }
}

fn required(row: &Map<String, Value>, name: &str) -> std::result::Result<String, String> {
    text_field(row, name)?.ok_or_else(|| format!("{name}: wanted a text, found null"))
}

fn alpaca(row: &Map<String, Value>) -> std::result::Result<Vec<Message>, String> {
    let mut messages = Vec::new();
    match row.get("history") {
        None | Some(Value::Null) => {}
        Some(Value::Array(pairs)) => {
            for (index, pair) in pairs.iter().enumerate() {
                let wrong =
                    || format!("history: wanted pairs of texts, found another value as number {}", index + 1);
                let [question, answer] = pair.as_array().map(Vec::as_slice).unwrap_or_default() else {
                    return Err(wrong());
                };
                for (role, text) in [(Role::User, question), (Role::Assistant, answer)] {
                    messages.push(Message::new(role, text.as_str().ok_or_else(wrong)?));
                }
            }
        }
        Some(other) => return Err(format!("history: wanted a list, found {}", kind(other))),
    }
    let mut question = required(row, "instruction")?;
    if let Some(input) = text_field(row, "input")?.filter(|input| !input.trim().is_empty()) {
        question = format!("{question}\n\n{input}");
    }
    messages.push(Message::new(Role::User, question));
    messages.push(Message::new(Role::Assistant, required(row, "output")?));
    Ok(messages)
}

/// The turns of the field `prompt`, which are not scored, and those of the field `completion`.
fn prompt_completion(
    row: &Map<String, Value>,
    prompt: &str,
    completion: &str,
) -> std::result::Result<Vec<Message>, String> {
    let part = |name: &str, role: Role| match row.get(name) {
        Some(list @ Value::Array(_)) => messages(name, Some(list)),
        Some(one @ Value::Object(_)) => message(one).map(|one| vec![one]).map_err(|e| format!("{name}: {e}")),
        _ => Ok(vec![Message::new(role, required(row, name)?)]),
    };
    let mut all = part(prompt, Role::User)?;
    all.iter_mut().for_each(|message| message.scored = false);
    all.extend(part(completion, Role::Assistant)?);
    Ok(all)
}

/// Commas and opening brackets outside of texts: a bound on the number of values.
fn values(row: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (0, false, false);
    for &byte in row {
        if in_text {
            (escaped, in_text) = (!escaped && byte == b'\\', escaped || byte != b'"');
            continue;
        }
        in_text = byte == b'"';
        count += usize::from(matches!(byte, b',' | b'[' | b'{'));
    }
    count
}

/// Reads a row as a JSON object.
///
/// # Errors
/// A sentence: a limit, invalid UTF-8 or JSON.
pub fn read_object_of_row(row: &[u8]) -> std::result::Result<Map<String, Value>, String> {
    let row = row.strip_prefix(b"\xef\xbb\xbf").unwrap_or(row);
    if row.len() > MOST_ROW_BYTES {
        return Err(format!("wanted a row of at most {MOST_ROW_BYTES} bytes, found {}", row.len()));
    }
    if let Err(e) = std::str::from_utf8(row) {
        let at = e.valid_up_to();
        return Err(format!("wanted UTF-8, found the byte 0x{:02x} at byte {}", row[at], at + 1));
    }
    let count = values(row);
    if count > MOST_VALUES {
        return Err(format!(
            "wanted a row of at most {MOST_VALUES} values, found {count}; at most {MOST_MESSAGES} turns are read"
        ));
    }
    let row: Value = serde_json::from_slice(row).map_err(|e| format!("wanted a JSON object: {e}"))?;
    match row {
        Value::Object(row) => Ok(row),
        other => Err(format!("wanted a JSON object, found {}", kind(&other))),
    }
}

/// Reads a row, a JSON object, with its form. The turns are checked ([`Chat::check`]).
///
/// # Errors
/// A sentence: a limit, invalid UTF-8 or JSON, a form that is unknown, a turn that is wrong.
pub fn read_row(row: &[u8]) -> std::result::Result<(RowForm, Chat), String> {
    read_object(&read_object_of_row(row)?)
}

/// Reads a row of preferences that is an object already. The turns of both chats are checked ([`Chat::check`]).
///
/// # Errors
/// A sentence: a row without `chosen` and `rejected`, chats that begin with different turns, equal answers, a turn that is wrong.
pub fn read_pair(row: &Map<String, Value>) -> std::result::Result<Pair, String> {
    let has = |name: &&str| row.get(*name).is_some_and(|value| !value.is_null());
    if !["chosen", "rejected"].iter().all(has) {
        return Err(format!("wanted chosen and rejected, found {}", fields(row)));
    }
    let prompt = ["prompt", "messages", "conversations"].into_iter().find(has);
    let tools = tools(row)?;
    let system = text_field(row, "system")?.filter(|system| !system.trim().is_empty());
    let answer = |name: &str| -> std::result::Result<Chat, String> {
        let mut all = match prompt {
            Some(prompt) => prompt_completion(row, prompt, name)?,
            None => messages(name, row.get(name)).map_err(|e| format!("{e}; texts need the field prompt"))?,
        };
        if let Some(system) = &system {
            all.insert(0, Message { scored: false, ..Message::new(Role::System, system.as_str()) });
        }
        Ok(Chat { messages: all, tools: tools.clone() })
    };
    let (mut chosen, mut rejected) = (answer("chosen")?, answer("rejected")?);
    if prompt.is_none() {
        let both = chosen.messages.iter_mut().zip(&mut rejected.messages);
        let equal = both.take_while(|(one, other)| one == other);
        let questions = equal.map(|(one, other)| (one.scored, other.scored) = (false, false)).count();
        if questions == 0 {
            return Err(
                "wanted chosen and rejected that begin with the same question, found different first turns"
                    .into(),
            );
        }
    }
    if chosen == rejected {
        return Err("wanted different answers, found chosen equal to rejected".into());
    }
    for (name, chat) in [("chosen", &chosen), ("rejected", &rejected)] {
        chat.check().map_err(|e| format!("{name}: {e}"))?;
        if !chat.messages.iter().any(|one| one.scored && one.role == Role::Assistant) {
            return Err(format!("{name}: wanted an answer after the turns of both, found none"));
        }
    }
    Ok(Pair { chosen, rejected })
}

/// Reads a row that is an object already, as those of Parquet files, with its form. The turns are checked ([`Chat::check`]).
///
/// # Errors
/// A sentence: a form that is unknown, a turn that is wrong.
pub fn read_object(row: &Map<String, Value>) -> std::result::Result<(RowForm, Chat), String> {
    let form = RowForm::of(row)?;
    let mut all = match form {
        RowForm::OpenAi => messages("messages", row.get("messages"))?,
        RowForm::ShareGpt => messages("conversations", row.get("conversations"))?,
        RowForm::Alpaca => alpaca(row)?,
        RowForm::PromptCompletion => prompt_completion(row, "prompt", "completion")?,
    };
    if matches!(form, RowForm::ShareGpt | RowForm::Alpaca)
        && let Some(system) = text_field(row, "system")?.filter(|system| !system.trim().is_empty())
    {
        all.insert(0, Message::new(Role::System, system));
    }
    let chat = Chat { messages: all, tools: tools(row)? };
    chat.check()?;
    Ok((form, chat))
}

/// A chat of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRow {
    /// Line, counted from 1; in a JSON array the number of the element, in a Parquet file that of the row.
    pub line: u64,
    /// Form of the row.
    pub form: RowForm,
    /// The chat.
    pub chat: Chat,
}

/// Chats of a file with an object a line; blank lines are passed over. A row that is wrong is an error, and reading continues after it.
///
/// Elements of a JSON array, and rows of tables, are lines where the reader makes them so (`bessemer_corpus::open_json_lines`).
#[derive(Debug)]
pub struct ChatRows<R> {
    reader: R,
    line: u64,
    has_ended: bool,
}

impl<R: BufRead> ChatRows<R> {
    /// The chats of a reader.
    pub fn new(reader: R) -> ChatRows<R> {
        ChatRows { reader, line: 0, has_ended: false }
    }

    /// Passes over the rest of a line.
    fn skip_line(&mut self) -> std::io::Result<()> {
        loop {
            let block = self.reader.fill_buf()?;
            if block.is_empty() {
                return Ok(());
            }
            let end = block.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(block.len(), |end| end + 1);
            self.reader.consume(used);
            if end.is_some() {
                return Ok(());
            }
        }
    }

    fn read(&mut self) -> std::io::Result<Option<std::result::Result<(RowForm, Chat), String>>> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            self.line += 1;
            let limit = MOST_ROW_BYTES as u64 + 1;
            if self.reader.by_ref().take(limit).read_until(b'\n', &mut bytes)? == 0 {
                return Ok(None);
            }
            if bytes.len() as u64 == limit && bytes.last() != Some(&b'\n') {
                self.skip_line()?;
                let problem = format!("wanted a row of at most {MOST_ROW_BYTES} bytes, found a longer line");
                return Ok(Some(Err(problem)));
            }
            if !bytes.trim_ascii().is_empty() {
                return Ok(Some(read_row(&bytes)));
            }
        }
    }
}

impl<R: BufRead> Iterator for ChatRows<R> {
    type Item = Result<ChatRow>;

    fn next(&mut self) -> Option<Result<ChatRow>> {
        if self.has_ended {
            return None;
        }
        match self.read() {
            Ok(None) => {
                self.has_ended = true;
                None
            }
            Ok(Some(Ok((form, chat)))) => Some(Ok(ChatRow { line: self.line, form, chat })),
            Ok(Some(Err(problem))) => Some(Err(ChatError::Row { line: self.line, problem })),
            Err(source) => {
                self.has_ended = true;
                Some(Err(ChatError::Read { line: self.line, source }))
            }
        }
    }
}

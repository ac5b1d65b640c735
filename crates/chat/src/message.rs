//! A chat as a value: messages in order, and the tools that may be called.

use serde_json::{Map, Value, json};

/// Most messages of a chat.
pub const MOST_MESSAGES: usize = 10_000;

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions before the first question.
    System,
    /// Questions.
    User,
    /// Answers: the messages that a model learns.
    Assistant,
    /// Results of calls.
    Tool,
}

impl Role {
    /// The role of a name in OpenAI's messages, ShareGPT's turns and their variants; `None` for an unknown name.
    pub fn from_name(name: &str) -> Option<Role> {
        Some(match name {
            "system" | "developer" => Role::System,
            "user" | "human" | "prompter" => Role::User,
            "assistant" | "gpt" | "chatgpt" | "model" | "bot" => Role::Assistant,
            "tool" | "function" | "observation" => Role::Tool,
            _ => return None,
        })
    }

    /// The name in templates.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Identifier that the result repeats.
    pub id: Option<String>,
    /// Name of the function.
    pub name: String,
    /// Its arguments, an object wherever the row has one.
    pub arguments: Value,
}

/// A message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Author.
    pub role: Role,
    /// Text.
    pub content: String,
    /// Reasoning before the text of an answer (`reasoning_content`).
    pub reasoning: Option<String>,
    /// Name of the author or of the tool.
    pub name: Option<String>,
    /// Calls of an answer.
    pub tool_calls: Vec<ToolCall>,
    /// Call whose result this is.
    pub tool_call_id: Option<String>,
    /// Whether an answer may be scored: false for OpenAI's `weight = 0`, and for answers of a prompt.
    pub scored: bool,
}

impl Message {
    /// A message with a text alone.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message {
            role,
            content: content.into(),
            reasoning: None,
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            scored: true,
        }
    }

    /// The message as templates of Transformers read it.
    pub fn to_json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("role".into(), self.role.name().into());
        fields.insert("content".into(), self.content.as_str().into());
        if let Some(reasoning) = &self.reasoning {
            fields.insert("reasoning_content".into(), reasoning.as_str().into());
            fields.insert("thinking".into(), reasoning.as_str().into());
        }
        if let Some(name) = &self.name {
            fields.insert("name".into(), name.as_str().into());
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter().map(|call| {
                let mut of = json!({
                    "type": "function", "function": {"name": call.name, "arguments": call.arguments},
                });
                if let Some(id) = &call.id {
                    of["id"] = id.as_str().into();
                }
                of
            });
            fields.insert("tool_calls".into(), calls.collect());
        }
        if let Some(id) = &self.tool_call_id {
            fields.insert("tool_call_id".into(), id.as_str().into());
        }
        Value::Object(fields)
    }
}

/// A chat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chat {
    /// Messages in order.
    pub messages: Vec<Message>,
    /// Descriptions of tools as JSON schemas, as templates print them.
    pub tools: Vec<Value>,
}

impl Chat {
    /// Checks the order of the roles: an optional system message, then questions and answers in turn, the last one an answer. Calls of tools
    /// are answers, and their results come between two of them.
    ///
    /// # Errors
    /// The first turn that is wrong, counted from 1.
    pub fn check(&self) -> Result<(), String> {
        if self.messages.len() > MOST_MESSAGES {
            return Err(format!("wanted at most {MOST_MESSAGES} turns, found {}", self.messages.len()));
        }
        let mut before: Option<&Message> = None;
        for (index, message) in self.messages.iter().enumerate() {
            let turn = format!("turn {} ({})", index + 1, message.role.name());
            let wanted = match (before.map(|one| one.role), message.role) {
                (None, Role::System | Role::User)
                | (Some(Role::System | Role::Assistant), Role::User)
                | (Some(Role::User | Role::Tool), Role::Assistant)
                | (Some(Role::Tool), Role::Tool) => None,
                (Some(Role::Assistant), Role::Tool) => {
                    let calls = before.is_some_and(|one| !one.tool_calls.is_empty());
                    (!calls).then_some("a call in the answer before the result of a tool")
                }
                (None, _) => Some("the role system or user first"),
                (Some(Role::System), _) => Some("the role user after the system message"),
                (Some(Role::User), _) => Some("the role assistant after user"),
                (Some(Role::Assistant), _) => Some("the role user, or tool after a call, after assistant"),
                (Some(Role::Tool), _) => Some("the role tool or assistant after tool"),
            };
            if let Some(wanted) = wanted {
                return Err(format!("{turn}: wanted {wanted}, found {}", message.role.name()));
            }
            let is_blank = message.content.trim().is_empty();
            match message.role {
                Role::Assistant if is_blank && message.tool_calls.is_empty() => {
                    return Err(format!("{turn}: wanted a text or calls of tools, found an empty answer"));
                }
                Role::User if is_blank => {
                    return Err(format!("{turn}: wanted a text, found an empty question"));
                }
                _ => {}
            }
            before = Some(message);
        }
        match before.map(|one| one.role) {
            Some(Role::Assistant) => {}
            Some(role) => {
                let turn = self.messages.len();
                return Err(format!("turn {turn}: wanted an answer as the last turn, found {}", role.name()));
            }
            None => return Err("wanted at least a question and an answer, found no turns".into()),
        }
        match self.messages.iter().any(|one| one.role == Role::Assistant && one.scored) {
            true => Ok(()),
            false => Err("wanted an answer that is scored, found weight = 0 in all".into()),
        }
    }
}

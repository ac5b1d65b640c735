//! Dialogue as text: the turns of a chat and the posts of a thread, each behind a mark of its role.
//!
//! Two formats of chats are read, distinguished by the keys of a turn: ShareGPT (`from`, `value`) and OpenAI messages (`role`, `content`,
//! where the content is a string or a list of parts, of which those with text are taken).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// Fields that hold the turns of a chat where a document has no field of the configured name.
pub(crate) const FIELDS: [&str; 2] = ["messages", "conversations"];
/// Most answers of a thread that can be asked for.
const MOST_ANSWERS: u32 = 100;

/// `[corpus.dialogue]`: how chats and threads become text. Each turn is its mark and its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DialogueConfig {
    /// Mark before a turn of the role `system` (also `developer`).
    pub system: String,
    /// Mark before a turn of the role `user` (also `human`, `prompter`).
    pub user: String,
    /// Mark before a turn of the role `assistant` (also `gpt`, `chatgpt`, `model`, `bot`).
    pub assistant: String,
    /// Mark before a turn of the role `tool` (also `function`, `observation`).
    pub tool: String,
    /// Mark before the question of a Stack Exchange thread; its title and its text follow.
    pub question: String,
    /// Mark before each answer of a Stack Exchange thread.
    pub answer: String,
    /// Text between turns.
    pub separator: String,
    /// Text behind the last turn.
    pub end: String,
    /// Most answers of a Stack Exchange thread: the accepted one, then those with the highest scores.
    pub answers: u32,
}

impl Default for DialogueConfig {
    fn default() -> Self {
        DialogueConfig {
            system: "System: ".into(),
            user: "User: ".into(),
            assistant: "Assistant: ".into(),
            tool: "Tool: ".into(),
            question: "Question: ".into(),
            answer: "Answer: ".into(),
            separator: "\n\n".into(),
            end: String::new(),
            answers: 3,
        }
    }
}

impl DialogueConfig {
    /// Checks the number of answers.
    pub(crate) fn check(&self) -> Result<(), String> {
        if (1..=MOST_ANSWERS).contains(&self.answers) {
            return Ok(());
        }
        Err(format!("corpus.dialogue.answers = {}: expected 1 to {MOST_ANSWERS}", self.answers))
    }

    /// Mark of a role; none for an unknown one.
    fn mark(&self, role: &str) -> Option<&str> {
        Some(match role {
            "system" | "developer" => &self.system,
            "user" | "human" | "prompter" => &self.user,
            "assistant" | "gpt" | "chatgpt" | "model" | "bot" => &self.assistant,
            "tool" | "function" | "observation" => &self.tool,
            _ => return None,
        })
    }

    /// The text of the turns of a chat. Turns without text, such as calls of tools, are left out.
    ///
    /// # Errors
    /// A value that is no list of turns, an unknown role, a chat without text: what was found, for people.
    pub(crate) fn chat(&self, value: &Json) -> Result<String, String> {
        let turns = value.as_array().ok_or("the turns of a chat must be a list")?;
        let mut marked = Vec::new();
        for (index, turn) in turns.iter().enumerate() {
            let number = index + 1;
            let field = |names: [&str; 2]| names.into_iter().find_map(|name| turn.get(name));
            let role = field(["role", "from"]).and_then(Json::as_str);
            let role =
                role.ok_or_else(|| format!("turn {number} has neither a role nor a sender (role, from)"))?;
            let mark =
                self.mark(role).ok_or_else(|| format!("turn {number} has the unknown role {role:?}"))?;
            let text = field(["content", "value"]).map(text_of).unwrap_or_default();
            if !text.trim().is_empty() {
                marked.push((mark, text));
            }
        }
        if marked.is_empty() {
            return Err("no turn of the chat has text".into());
        }
        Ok(self.join(marked.iter().map(|(mark, text)| (*mark, text.as_str()))))
    }

    /// The text of a thread: a question with its title, and answers in the order given.
    pub(crate) fn thread(&self, title: &str, question: &str, answers: &[String]) -> String {
        let question =
            [title, question].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n");
        let answers = answers.iter().map(|answer| (self.answer.as_str(), answer.as_str()));
        self.join(std::iter::once((self.question.as_str(), question.as_str())).chain(answers))
    }

    fn join<'a>(&self, turns: impl Iterator<Item = (&'a str, &'a str)>) -> String {
        let turns: Vec<String> = turns.map(|(mark, text)| format!("{mark}{}", text.trim())).collect();
        turns.join(&self.separator) + &self.end
    }
}

/// The text of a turn's content: a string, or the parts of a list that have text.
fn text_of(content: &Json) -> String {
    let text = |part: &Json| part.as_str().or_else(|| part.get("text")?.as_str()).map(String::from);
    match content {
        Json::Array(parts) => parts.iter().filter_map(text).collect::<Vec<_>>().join("\n"),
        part => text(part).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(json: &str) -> Result<String, String> {
        DialogueConfig::default().chat(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn both_formats_give_the_same_text() {
        let wanted = "System: Be brief.\n\nUser: Hi\n\nAssistant: Hello!";
        let sharegpt = r#"[{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hi\n"}, {"from": "gpt", "value": "Hello!"}]"#;
        assert_eq!(chat(sharegpt).unwrap(), wanted);
        let openai = r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"},
            {"type": "image_url", "image_url": {"url": "x"}}]}, {"role": "assistant", "content": null, "tool_calls": []},
            {"role": "assistant", "content": "Hello!"}]"#;
        assert_eq!(chat(openai).unwrap(), wanted);
    }

    #[test]
    fn what_is_no_chat_is_refused_by_its_fault() {
        for (json, fault) in [
            (r#""text""#, "list"),
            (r#"[]"#, "no turn"),
            (r#"["a"]"#, "turn 1 has neither"),
            (
                r#"[{"role": "user", "content": "a"}, {"role": "narrator", "content": "b"}]"#,
                "turn 2 has the unknown role \"narrator\"",
            ),
            (r#"[{"role": "user", "content": [{"type": "image"}]}]"#, "no turn"),
        ] {
            assert!(chat(json).unwrap_err().contains(fault), "{json}");
        }
    }
}

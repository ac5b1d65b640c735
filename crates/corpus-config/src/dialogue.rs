//! The keys of `[corpus.dialogue]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
}

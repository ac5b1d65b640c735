//! Dialogue as text: the turns of a chat and the posts of a thread, each behind a mark of its role.
//!
//! Two formats of chats are read, distinguished by the keys of a turn: ShareGPT (`from`, `value`) and OpenAI messages (`role`, `content`,
//! where the content is a string or a list of parts, of which those with text are taken).

use bessemer_chat::Role;
use bessemer_corpus_config::DialogueConfig;
use serde_json::Value as Json;

/// Fields that hold the turns of a chat where a document has no field of the configured name.
pub(crate) const FIELDS: [&str; 2] = ["messages", "conversations"];

/// Mark of a role; none for an unknown one.
fn mark<'c>(config: &'c DialogueConfig, role: &str) -> Option<&'c str> {
    Some(match Role::from_name(role)? {
        Role::System => &config.system,
        Role::User => &config.user,
        Role::Assistant => &config.assistant,
        Role::Tool => &config.tool,
    })
}

/// The text of the turns of a chat. Turns without text, such as calls of tools, are left out.
///
/// # Errors
/// A value that is no list of turns, an unknown role, a chat without text: what was found, for people.
pub(crate) fn chat(config: &DialogueConfig, value: &Json) -> Result<String, String> {
    let turns = value.as_array().ok_or("the turns of a chat must be a list")?;
    let mut marked = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        let number = index + 1;
        let field = |names: [&str; 2]| names.into_iter().find_map(|name| turn.get(name));
        let role = field(["role", "from"]).and_then(Json::as_str);
        let role =
            role.ok_or_else(|| format!("turn {number} has neither a role nor a sender (role, from)"))?;
        let mark =
            mark(config, role).ok_or_else(|| format!("turn {number} has the unknown role {role:?}"))?;
        let text = field(["content", "value"]).map(text_of).unwrap_or_default();
        if !text.trim().is_empty() {
            marked.push((mark, text));
        }
    }
    if marked.is_empty() {
        return Err("no turn of the chat has text".into());
    }
    Ok(join(config, marked.iter().map(|(mark, text)| (*mark, text.as_str()))))
}

/// The text of a thread: a question with its title, and answers in the order given.
pub(crate) fn thread(config: &DialogueConfig, title: &str, question: &str, answers: &[String]) -> String {
    let question =
        [title, question].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n");
    let answers = answers.iter().map(|answer| (config.answer.as_str(), answer.as_str()));
    join(config, std::iter::once((config.question.as_str(), question.as_str())).chain(answers))
}

fn join<'a>(config: &DialogueConfig, turns: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let turns: Vec<String> = turns.map(|(mark, text)| format!("{mark}{}", text.trim())).collect();
    turns.join(&config.separator) + &config.end
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

    fn chat_of(json: &str) -> Result<String, String> {
        chat(&DialogueConfig::default(), &serde_json::from_str(json).unwrap())
    }

    #[test]
    fn both_formats_give_the_same_text() {
        let wanted = "System: Be brief.\n\nUser: Hi\n\nAssistant: Hello!";
        let sharegpt = r#"[{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hi\n"}, {"from": "gpt", "value": "Hello!"}]"#;
        assert_eq!(chat_of(sharegpt).unwrap(), wanted);
        let openai = r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"},
            {"type": "image_url", "image_url": {"url": "x"}}]}, {"role": "assistant", "content": null, "tool_calls": []},
            {"role": "assistant", "content": "Hello!"}]"#;
        assert_eq!(chat_of(openai).unwrap(), wanted);
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
            assert!(chat_of(json).unwrap_err().contains(fault), "{json}");
        }
    }
}

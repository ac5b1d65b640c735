//! Texts and the question about them.

use crate::JudgeError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Longest text or prompt, bytes.
const LONGEST_TEXT: usize = 1 << 20;
/// Longest name of a system or an item, bytes.
const LONGEST_NAME: usize = 200;
/// Most turns of each side of a dialogue.
const MOST_TURNS: usize = 100;

/// One system's text for an item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SystemText {
    /// Name of the system, which judges do not see.
    pub system: String,
    /// The text.
    pub text: String,
    /// Logarithm of the model's probability for each token of the text, which HUSE needs; for texts of humans too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_probability: Option<f64>,
    /// The system's turns of a dialogue, one for each of the user's; empty for a single text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<String>,
}

/// Texts for one prompt.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Name of the item.
    pub id: String,
    /// What the texts answer or continue; may be empty.
    #[serde(default)]
    pub prompt: String,
    /// The user's turns of a dialogue; empty for a single prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<String>,
    /// Right answers, one for each of the user's turns, which judges that are models may be shown; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<String>,
    /// Texts, one for each system.
    pub texts: Vec<SystemText>,
}

/// Question to the judges.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Question {
    /// Comparison: which of two texts is better, or neither.
    Pairs {
        /// The question.
        text: String,
    },
    /// Rating: how good is a text, from 1 to the number of labels.
    Scale {
        /// The question.
        text: String,
        /// Names of the points, the lowest first.
        labels: Vec<String>,
    },
}

impl Question {
    /// The question's words.
    pub fn text(&self) -> &str {
        match self {
            Question::Pairs { text } | Question::Scale { text, .. } => text,
        }
    }
}

/// A study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Question to the judges.
    pub question: Question,
    /// Judgements of different judges that each task is to have.
    pub judgements: u32,
    /// Seed of the order of tasks and of sides.
    pub seed: u64,
    /// Texts.
    pub items: Vec<Item>,
}

/// A line of the file of texts: those of several systems for a prompt.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: Option<String>,
    #[serde(default)]
    prompt: Turns,
    reference: Option<Turns>,
    texts: BTreeMap<String, LineText>,
}

/// A text, or the turns of one side of a dialogue.
#[derive(Deserialize)]
#[serde(untagged)]
enum Turns {
    One(String),
    Several(Vec<String>),
}

impl Default for Turns {
    fn default() -> Turns {
        Turns::One(String::new())
    }
}

impl Turns {
    fn list(&self) -> &[String] {
        match self {
            Turns::One(text) => std::slice::from_ref(text),
            Turns::Several(texts) => texts,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum LineText {
    Text(Turns),
    Scored { text: Turns, log_probability: f64 },
}

impl Line {
    /// The item of a line.
    ///
    /// # Errors
    /// A sentence.
    fn item(self, number: usize) -> Result<Item, String> {
        let id = self.id.unwrap_or_else(|| number.to_string());
        if id.is_empty() || id.len() > LONGEST_NAME {
            return Err(format!("id: wanted 1 to {LONGEST_NAME} bytes, found {}", id.len()));
        }
        let (prompt, turns) = match self.prompt {
            Turns::One(prompt) => (prompt, Vec::new()),
            Turns::Several(turns) => (String::new(), turns),
        };
        let wanted = turns.len().max(1);
        if turns.len() > MOST_TURNS || turns.iter().any(|turn| turn.trim().is_empty()) {
            return Err(format!("prompt: wanted 1 to {MOST_TURNS} turns that are not blank"));
        }
        if prompt.len().max(turns.iter().map(String::len).sum()) > LONGEST_TEXT {
            return Err(format!("prompt: wanted at most {LONGEST_TEXT} bytes"));
        }
        let references = self.reference.map_or_else(Vec::new, |reference| reference.list().to_vec());
        if !references.is_empty() && references.len() != wanted {
            return Err(format!("reference: wanted {wanted} answers, found {}", references.len()));
        }
        let text = |(system, text): (String, LineText)| system_text(system, text, &turns);
        let texts = self.texts.into_iter().map(text).collect::<Result<_, _>>()?;
        Ok(Item { id, prompt, references, texts, turns })
    }
}

/// A system's text, in a dialogue with the user's turns between its own.
fn system_text(system: String, text: LineText, user: &[String]) -> Result<SystemText, String> {
    if system.is_empty() || system.len() > LONGEST_NAME {
        return Err(format!("a system's name: wanted 1 to {LONGEST_NAME} bytes, found {}", system.len()));
    }
    let (text, log_probability) = match text {
        LineText::Text(text) => (text, None),
        LineText::Scored { text, log_probability } => (text, Some(log_probability)),
    };
    let bytes: usize = text.list().iter().map(String::len).sum();
    if text.list().iter().any(|turn| turn.trim().is_empty()) || bytes > LONGEST_TEXT {
        return Err(format!(
            "the text of {system}: wanted 1 to {LONGEST_TEXT} bytes that are not blank, found {bytes}"
        ));
    }
    let (text, turns) = match text {
        Turns::One(text) if user.is_empty() => (text, Vec::new()),
        Turns::Several(turns) if turns.len() == user.len() && !turns.is_empty() => {
            let said = user.iter().zip(&turns);
            let said = said.map(|(user, system)| format!("User: {user}\n\nAnswer: {system}"));
            (said.collect::<Vec<_>>().join("\n\n"), turns)
        }
        other => {
            let found = other.list().len();
            return Err(match user.len() {
                0 => format!(
                    "the text of {system}: wanted one text after a single prompt, found a list of {found}"
                ),
                wanted => format!(
                    "the text of {system}: wanted a list of {wanted}, an answer to each turn of the prompt, found {found}"
                ),
            });
        }
    };
    Ok(SystemText { system, text, log_probability, turns })
}

impl Study {
    /// Reads texts: a line of JSON for each item, `{"id": …, "prompt": …, "texts": {"system": "text", …}}`, where a text may also be
    /// `{"text": …, "log_probability": …}`. Without an id an item is called by its line.
    ///
    /// In a dialogue the prompt is a list, the user's turns, and so is every text, the system's turns; people see the whole of it. `"reference"`
    /// may hold the right answer, or a list of them.
    ///
    /// # Errors
    /// Names the line: no JSON, an unknown key, an empty or too long text, an id twice; no line at all.
    pub fn read_items(name: &str, text: &str) -> Result<Vec<Item>, JudgeError> {
        let mut items = Vec::new();
        let mut ids = BTreeSet::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let number = number + 1;
            let wrong = |what: String| JudgeError::Item { place: format!("{name}:{number}"), what };
            let line: Line = serde_json::from_str(line).map_err(|e| {
                wrong(format!(
                    "wanted {{\"prompt\": …, \"texts\": {{\"system\": \"text\", …}}}}, found something else: {e}"
                ))
            })?;
            let item = line.item(number).map_err(wrong)?;
            if !ids.insert(item.id.clone()) {
                return Err(wrong(format!("the id {:?} occurs twice", item.id)));
            }
            items.push(item);
        }
        match items.is_empty() {
            true => Err(JudgeError::Item {
                place: name.into(),
                what: "wanted a line for each item, found none".into(),
            }),
            false => Ok(items),
        }
    }

    /// Checks that the question can be asked of the texts.
    ///
    /// # Errors
    /// A sentence: an item with fewer texts than the question needs, a scale of fewer than two points, no judgement wanted.
    pub fn check(&self) -> Result<(), JudgeError> {
        let wrong = |what: String| Err(JudgeError::Setting(what));
        let least = match &self.question {
            Question::Pairs { .. } => 2,
            Question::Scale { labels, .. } if !(2..=100).contains(&labels.len()) => {
                return wrong(format!("the scale: wanted 2 to 100 points, found {}", labels.len()));
            }
            Question::Scale { .. } => 1,
        };
        if self.judgements == 0 {
            return wrong("judgements of each task: wanted 1 or more, found 0".into());
        }
        match self.items.iter().find(|item| item.texts.len() < least) {
            Some(item) => wrong(format!(
                "item {}: wanted the texts of {least} or more systems, found {}",
                item.id,
                item.texts.len()
            )),
            None => Ok(()),
        }
    }

    /// Names of all systems, sorted.
    pub fn systems(&self) -> Vec<&str> {
        let all: BTreeSet<&str> =
            self.items.iter().flat_map(|item| &item.texts).map(|text| text.system.as_str()).collect();
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_and_what_is_wrong_names_its_line() {
        let text = "{\"prompt\":\"p\",\"texts\":{\"b\":\"one\",\"a\":{\"text\":\"two\",\"log_probability\":-1.5}}}\n\n\
                    {\"id\":\"x\",\"texts\":{\"a\":\"three\"}}\n";
        let items = Study::read_items("t.jsonl", text).unwrap();
        assert_eq!((items.len(), items[0].id.as_str(), items[1].id.as_str()), (2, "1", "x"));
        assert_eq!(items[0].texts[0].log_probability, Some(-1.5));
        for (text, parts) in [
            ("", vec!["t.jsonl", "found none"]),
            ("\n{}", vec!["t.jsonl:2", "texts"]),
            ("{\"texts\":{\"a\":\" \"}}", vec!["t.jsonl:1", "of a", "blank"]),
            ("{\"texts\":{\"a\":\"x\"},\"colour\":1}", vec!["colour"]),
            (
                "{\"prompt\":[\"p\",\"q\"],\"texts\":{\"a\":[\"x\"]}}",
                vec!["text of a", "list of 2", "found 1"],
            ),
            ("{\"prompt\":\"p\",\"texts\":{\"a\":[\"x\"]}}", vec!["text of a", "one text"]),
            ("{\"prompt\":[\"p\",\" \"],\"texts\":{\"a\":[\"x\",\"y\"]}}", vec!["turns that are not blank"]),
            (
                "{\"reference\":[\"p\",\"q\"],\"texts\":{\"a\":\"x\"}}",
                vec!["reference", "1 answers, found 2"],
            ),
            ("{\"id\":\"i\",\"texts\":{}}\n{\"id\":\"i\",\"texts\":{}}", vec!["t.jsonl:2", "twice"]),
        ] {
            let error = Study::read_items("t.jsonl", text).unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(error.contains(part), "{error}"));
        }
        let dialogue =
            "{\"prompt\":[\"p\",\"q\"],\"reference\":[\"r\",\"s\"],\"texts\":{\"a\":[\"x\",\"y\"]}}";
        let dialogue = &Study::read_items("t.jsonl", dialogue).unwrap()[0];
        assert_eq!((dialogue.prompt.as_str(), &dialogue.turns[..]), ("", &["p".into(), "q".into()][..]));
        assert_eq!(dialogue.texts[0].text, "User: p\n\nAnswer: x\n\nUser: q\n\nAnswer: y");
        let pairs = Question::Pairs { text: "Which?".into() };
        let mut study = Study { question: pairs, judgements: 1, seed: 0, items };
        assert!(study.check().unwrap_err().to_string().contains("item x: wanted the texts of 2"));
        study.question = Question::Scale { text: "How?".into(), labels: vec!["bad".into()] };
        assert!(study.check().unwrap_err().to_string().contains("found 1"));
    }
}

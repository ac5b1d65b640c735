//! Texts and the question about them.

use crate::JudgeError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Longest text or prompt, bytes.
const LONGEST_TEXT: usize = 1 << 20;
/// Longest name of a system or an item, bytes.
const LONGEST_NAME: usize = 200;

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
}

/// Texts for one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Name of the item.
    pub id: String,
    /// What the texts answer or continue; may be empty.
    #[serde(default)]
    pub prompt: String,
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
    prompt: String,
    texts: BTreeMap<String, LineText>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum LineText {
    Text(String),
    Scored { text: String, log_probability: f64 },
}

impl Study {
    /// Reads texts: a line of JSON for each item, `{"id": …, "prompt": …, "texts": {"system": "text", …}}`, where a text may also be
    /// `{"text": …, "log_probability": …}`. Without an id an item is called by its line.
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
            let id = line.id.unwrap_or_else(|| number.to_string());
            if id.is_empty() || id.len() > LONGEST_NAME {
                return Err(wrong(format!("id: wanted 1 to {LONGEST_NAME} bytes, found {}", id.len())));
            }
            if line.prompt.len() > LONGEST_TEXT {
                return Err(wrong(format!("prompt: wanted at most {LONGEST_TEXT} bytes")));
            }
            let texts = line.texts.into_iter().map(|(system, text)| {
                let (text, log_probability) = match text {
                    LineText::Text(text) => (text, None),
                    LineText::Scored { text, log_probability } => (text, Some(log_probability)),
                };
                if system.is_empty() || system.len() > LONGEST_NAME {
                    return Err(wrong(format!(
                        "a system's name: wanted 1 to {LONGEST_NAME} bytes, found {}",
                        system.len()
                    )));
                }
                if text.trim().is_empty() || text.len() > LONGEST_TEXT {
                    return Err(wrong(format!(
                        "the text of {system}: wanted 1 to {LONGEST_TEXT} bytes that are not blank, found {}",
                        text.len()
                    )));
                }
                Ok(SystemText { system, text, log_probability })
            });
            let item = Item { prompt: line.prompt, texts: texts.collect::<Result<_, _>>()?, id: id.clone() };
            if !ids.insert(id.clone()) {
                return Err(wrong(format!("the id {id:?} stands twice")));
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
            ("{\"id\":\"i\",\"texts\":{}}\n{\"id\":\"i\",\"texts\":{}}", vec!["t.jsonl:2", "twice"]),
        ] {
            let error = Study::read_items("t.jsonl", text).unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(error.contains(part), "{error}"));
        }
        let pairs = Question::Pairs { text: "Which?".into() };
        let mut study = Study { question: pairs, judgements: 1, seed: 0, items };
        assert!(study.check().unwrap_err().to_string().contains("item x: wanted the texts of 2"));
        study.question = Question::Scale { text: "How?".into(), labels: vec!["bad".into()] };
        assert!(study.check().unwrap_err().to_string().contains("found 1"));
    }
}

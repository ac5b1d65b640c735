//! Rows of Stack Exchange's `Posts.xml`: questions and answers, one element a line.

use crate::error::{MarkupError, MarkupLimits};
use crate::xml::{XmlEvent, XmlReader};

/// Kind of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostKind {
    /// A question.
    Question {
        /// The answer that its author accepted.
        accepted: Option<u64>,
    },
    /// An answer to the question of this number.
    Answer {
        /// Number of the question.
        question: u64,
    },
    /// A page of the tag wiki, a moderator's note and other posts that are no part of a thread.
    Other,
}

/// A post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// Its number.
    pub id: u64,
    /// Question, answer or neither.
    pub kind: PostKind,
    /// Votes for less votes against it.
    pub score: i64,
    /// Title of a question.
    pub title: String,
    /// When it was written, in ISO 8601.
    pub created: Option<String>,
    /// Its text as HTML.
    pub body: String,
}

impl Post {
    /// Reads the line of a post; none for lines that hold no row.
    ///
    /// # Errors
    /// The XML is damaged or too large, or the post has no number.
    pub fn parse(line: &str, limits: &MarkupLimits) -> Result<Option<Post>, MarkupError> {
        let line = line.trim();
        if !line.starts_with("<row ") {
            return Ok(None);
        }
        let Some(XmlEvent::Start(row)) = XmlReader::new(line, limits)?.next()? else { return Ok(None) };
        let number = |name: &str| row.attribute(name).and_then(|value| value.parse::<u64>().ok());
        let id =
            number("Id").ok_or_else(|| MarkupError::Malformed("a post without the attribute Id".into()))?;
        let kind = match (number("PostTypeId"), number("ParentId")) {
            (Some(1), _) => PostKind::Question { accepted: number("AcceptedAnswerId") },
            (Some(2), Some(question)) => PostKind::Answer { question },
            _ => PostKind::Other,
        };
        Ok(Some(Post {
            id,
            kind,
            score: row.attribute("Score").and_then(|score| score.parse().ok()).unwrap_or(0),
            title: row.attribute("Title").unwrap_or_default(),
            created: row.attribute("CreationDate"),
            body: row.attribute("Body").unwrap_or_default(),
        }))
    }
}

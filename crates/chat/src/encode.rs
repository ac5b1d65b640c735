//! Chats as tokens, with those that are scored.
//!
//! Text between special tokens is encoded as a whole, as Transformers encodes a rendered chat: pairs merge over the border of a header and an
//! answer where no special token is between them, and a token on such a border is scored. Encodings differ from those of Transformers where a
//! user types a special token: here it is text.

use crate::error::{ChatError, Result};
use crate::message::{Chat, Role};
use crate::neutral::Specials;
use crate::template::{AnswerHeader, ChatTemplate, Rendered};
use bessemer_tokenizer::{PlacedTokens, Tokenizer};
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;

/// Most bytes that are rendered to find the answers of one chat without the tag `generation`, about.
const MOST_PREFIX_BYTES: usize = 64 << 20;
/// Characters of a text that an error shows before and after a place.
const SHOWN: usize = 40;

/// Answers of a chat that are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Answers {
    /// All.
    #[default]
    All,
    /// The last one.
    Last,
}

/// A chat as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatTokens {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Ranges of tokens that are scored: ascending, not empty, not adjacent.
    pub scored: Vec<Range<usize>>,
}

impl ChatTokens {
    /// Number of scored tokens.
    pub fn scored_tokens(&self) -> usize {
        self.scored.iter().map(ExactSizeIterator::len).sum()
    }
}

/// A chat that fits into a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FittedChat {
    /// Its tokens.
    pub tokens: ChatTokens,
    /// Oldest messages that were left out.
    pub dropped: usize,
}

/// Encodes chats by a template.
pub struct ChatEncoder {
    template: ChatTemplate,
    tokenizer: Arc<Tokenizer>,
    specials: Specials,
    /// Ids of special tokens, ascending.
    special_ids: Vec<u32>,
    bos: Option<u32>,
}

impl std::fmt::Debug for ChatEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatEncoder").field("template", &self.template).finish_non_exhaustive()
    }
}

impl ChatEncoder {
    /// An encoder of a template and a tokenizer.
    ///
    /// # Errors
    /// Special tokens of one of our templates that the tokenizer lacks.
    pub fn new(template: ChatTemplate, tokenizer: Arc<Tokenizer>) -> Result<ChatEncoder> {
        let special: Vec<_> = tokenizer.special_tokens().iter().filter(|token| token.special).collect();
        let id_of = |name: &str| special.iter().find(|token| token.content == name).map(|token| token.id);
        let missing: Vec<String> = template
            .required
            .iter()
            .filter(|name| id_of(name).is_none())
            .map(|name| (*name).to_owned())
            .collect();
        if !missing.is_empty() {
            let wanted = template.required.iter().map(|name| (*name).to_owned()).collect();
            return Err(ChatError::Tokens { template: template.name().to_owned(), wanted, missing });
        }
        let bos = template.tokens.bos.as_deref().and_then(id_of);
        let mut special_ids: Vec<u32> = special.iter().map(|token| token.id).collect();
        special_ids.sort_unstable();
        let specials = Specials::new(special.iter().map(|token| token.content.clone()).collect());
        Ok(ChatEncoder { template, tokenizer, specials, special_ids, bos })
    }

    /// The template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Whether a token is a special one.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.binary_search(&id).is_ok()
    }

    fn render(&self, messages: &[Value], tools: &[Value], header: AnswerHeader) -> Result<Rendered> {
        self.template.render(&self.specials, messages, tools, header)
    }

    /// The tokens of a text, with one token of the beginning if the tokenizer puts it before every text.
    fn tokens(&self, rendered: &Rendered) -> Result<PlacedTokens> {
        let allowed = |range: Range<usize>| rendered.may_be_special(&range);
        let mut tokens = self.tokenizer.encode_placed(rendered.text.as_bytes(), &allowed)?;
        let Some(bos) = self.bos else { return Ok(tokens) };
        if self.template.tokens.adds_bos && tokens.ids.first() != Some(&bos) {
            tokens.ids.insert(0, bos);
            tokens.ends.insert(0, 0);
        }
        // Later ones may be the end of a turn: models without chats often have one token for both.
        if tokens.ids.starts_with(&[bos, bos]) {
            return Err(self
                .template
                .wrong("wanted one token of the beginning (bos_token), found two side by side".into()));
        }
        Ok(tokens)
    }

    /// Ids of the prompt for the answer to `messages`, values as OpenAI's interface has them.
    ///
    /// # Errors
    /// A template that rejects the messages ([`ChatError::Template`]), text that the tokenizer cannot encode.
    pub fn prompt(&self, messages: &[Value], tools: &[Value]) -> Result<Vec<u32>> {
        Ok(self.tokens(&self.render(messages, tools, AnswerHeader::Printed)?)?.ids)
    }

    /// Tokens of a chat; the text of its answers, with the token that ends each, is scored.
    ///
    /// # Errors
    /// Turns that are wrong ([`Chat::check`]), a template that rejects them, answers that cannot be found, text that the tokenizer
    /// cannot encode.
    pub fn encode(&self, chat: &Chat, answers: Answers) -> Result<ChatTokens> {
        chat.check().map_err(ChatError::Chat)?;
        let messages: Vec<Value> = chat.messages.iter().map(|message| message.to_json()).collect();
        let whole = self.render(&messages, &chat.tools, AnswerHeader::Omitted)?;
        let of_model = |at: &usize| chat.messages[*at].role == Role::Assistant;
        let all: Vec<usize> = (0..messages.len()).filter(of_model).collect();
        let last = all.last().copied();
        let is_scored = |at: usize| chat.messages[at].scored && (answers == Answers::All || Some(at) == last);
        let tokens = self.tokens(&whole)?;
        let spans = match self.template.marks_answers() {
            true => self.marked_answers(&messages, chat, &whole, &all, &is_scored)?,
            false => self.answers_by_prefixes(&messages, chat, &whole, &all, &is_scored)?,
        };
        let mut scored: Vec<Range<usize>> = Vec::new();
        for span in &spans {
            let Some(range) = self.scored_range(&tokens, &whole.text, span) else { continue };
            match scored.last_mut() {
                Some(before) if before.end >= range.start => before.end = before.end.max(range.end),
                _ => scored.push(range),
            }
        }
        if scored.is_empty() {
            let problem =
                "wanted the text of an answer, found none: the template prints no answer that is scored";
            return Err(self.template.wrong(problem.into()));
        }
        Ok(ChatTokens { ids: tokens.ids, scored })
    }

    /// Tokens with text in the bytes of an answer. A special token that began before it belongs to the header.
    fn scored_range(&self, tokens: &PlacedTokens, text: &str, span: &Range<usize>) -> Option<Range<usize>> {
        let mut first = tokens.ends.partition_point(|end| *end <= span.start);
        let end = tokens.ends.partition_point(|end| *end < span.end) + 1;
        let mut end = end.min(tokens.ids.len());
        let begin_of = |at: usize| if at == 0 { 0 } else { tokens.ends[at - 1] };
        if first < end && self.is_special(tokens.ids[first]) && begin_of(first) < span.start {
            first += 1;
        }
        // A template may print a line break behind the token that ends the answer: a model stops at that token.
        let range = first..end;
        if let Some(last) = range.rev().find(|at| self.is_special(tokens.ids[*at])) {
            let after = text.get(tokens.ends[last].min(span.end)..span.end).unwrap_or_default();
            if after.trim().is_empty() && tokens.ends[last] < span.end {
                end = last + 1;
            }
        }
        (first < end).then_some(first..end)
    }

    /// Bytes of the scored answers of a template with the tag `generation`.
    fn marked_answers(
        &self,
        messages: &[Value],
        chat: &Chat,
        whole: &Rendered,
        all: &[usize],
        is_scored: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<Range<usize>>> {
        if all.iter().all(|at| is_scored(*at)) {
            return Ok(whole.answers.clone());
        }
        if whole.answers.len() == all.len() {
            let scored = all.iter().zip(&whole.answers).filter(|(at, _)| is_scored(**at));
            return Ok(scored.map(|(_, span)| span.clone()).collect());
        }
        // The tags of a message are those that the text has with it and not before it.
        let mut scored = Vec::new();
        for &at in all.iter().filter(|at| is_scored(**at)) {
            let count = |end: usize| -> Result<usize> {
                Ok(self.render(&messages[..end], &chat.tools, AnswerHeader::Omitted)?.answers.len())
            };
            let range = count(at)?..count(at + 1)?;
            let found = whole.answers.get(range).ok_or_else(|| {
                self.template.wrong(format!(
                    "turn {}: wanted as many tags generation as in the whole chat, found more",
                    at + 1
                ))
            })?;
            scored.extend_from_slice(found);
        }
        Ok(scored)
    }

    /// Bytes of the scored answers of a template without the tag: what the text of the chat up to and with an answer has beyond the text up to
    /// its header.
    fn answers_by_prefixes(
        &self,
        messages: &[Value],
        chat: &Chat,
        whole: &Rendered,
        all: &[usize],
        is_scored: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<Range<usize>>> {
        let scored: Vec<usize> = all.iter().copied().filter(|at| is_scored(*at)).collect();
        // Two texts for each answer, half as long as the whole one on average.
        if scored.len().saturating_mul(whole.text.len()) > MOST_PREFIX_BYTES {
            return Err(self.template.wrong(format!(
                "wanted the tag generation around answers; without it {} answers in a text of {} bytes take too many comparisons",
                scored.len(),
                whole.text.len()
            )));
        }
        let mut spans = Vec::new();
        for at in scored {
            let before = self.render(&messages[..at], &chat.tools, AnswerHeader::Printed)?.text;
            let with = match at + 1 == messages.len() {
                true => None,
                false => Some(self.render(&messages[..=at], &chat.tools, AnswerHeader::Omitted)?.text),
            };
            let with = with.as_ref().unwrap_or(&whole.text);
            let advice = "mark the answers of the template with the tags generation and endgeneration";
            if !with.starts_with(&before) {
                return Err(self.template.wrong(format!(
                    "turn {}: wanted the text up to the answer at the beginning of the text with it, found {} in place of {}; {advice}",
                    at + 1,
                    difference(with, &before),
                    difference(&before, with)
                )));
            }
            if !whole.text.starts_with(with.as_str()) {
                return Err(self.template.wrong(format!(
                    "turn {}: wanted the text with the answer at the beginning of the whole chat, found {} in place of {}; {advice}",
                    at + 1,
                    difference(&whole.text, with),
                    difference(with, &whole.text)
                )));
            }
            let answer =
                Rendered { text: with[before.len()..].to_owned(), typed: Vec::new(), answers: Vec::new() };
            let typed =
                whole.typed.iter().filter(|byte| **byte >= before.len()).map(|byte| byte - before.len());
            let first = self.tokens_of(Rendered { typed: typed.collect(), ..answer })?.ids.first().copied();
            if chat.messages[at].tool_calls.is_empty()
                && let Some(id) = first.filter(|id| self.is_special(*id))
            {
                let name =
                    String::from_utf8_lossy(self.tokenizer.token_bytes(id).unwrap_or_default()).into_owned();
                return Err(self.template.wrong(format!(
                    "turn {}: wanted the header of the answer for add_generation_prompt, found it as part of the answer, which begins with {name}; {advice}",
                    at + 1
                )));
            }
            spans.push(before.len()..with.len());
        }
        Ok(spans)
    }

    fn tokens_of(&self, rendered: Rendered) -> Result<PlacedTokens> {
        let allowed = |range: Range<usize>| rendered.may_be_special(&range);
        Ok(self.tokenizer.encode_placed(rendered.text.as_bytes(), &allowed)?)
    }

    /// Tokens of a chat with as many of its newest turns as fit into `context` tokens. A turn is a question with everything up to the next
    /// one. The system message and the last turn stay; no text is cut.
    ///
    /// # Errors
    /// Errors of [`ChatEncoder::encode`]; [`ChatError::TooLong`] if the last turn alone does not fit.
    pub fn encode_within(&self, chat: &Chat, answers: Answers, context: usize) -> Result<FittedChat> {
        let tokens = self.encode(chat, answers)?;
        if tokens.ids.len() <= context {
            return Ok(FittedChat { tokens, dropped: 0 });
        }
        let begin = usize::from(chat.messages.first().is_some_and(|one| one.role == Role::System));
        let questions = chat.messages.iter().enumerate().filter(|(_, one)| one.role == Role::User);
        let later: Vec<usize> = questions.map(|(at, _)| at).filter(|at| *at > begin).collect();
        let from = |at: usize| -> Result<FittedChat> {
            let kept = chat.messages[..begin].iter().chain(&chat.messages[at..]).cloned().collect();
            let kept = Chat { messages: kept, tools: chat.tools.clone() };
            Ok(FittedChat { tokens: self.encode(&kept, answers)?, dropped: at - begin })
        };
        let Some(last) = later.last() else {
            return Err(ChatError::TooLong { tokens: tokens.ids.len(), context });
        };
        let mut found = from(*last)?;
        if found.tokens.ids.len() > context {
            return Err(ChatError::TooLong { tokens: found.tokens.ids.len(), context });
        }
        // The fewer turns, the shorter.
        let (mut too_long, mut at) = (0, later.len() - 1);
        while too_long < at {
            let middle = usize::midpoint(too_long, at);
            let tried = from(later[middle])?;
            match tried.tokens.ids.len() <= context {
                true => (at, found) = (middle, tried),
                false => too_long = middle + 1,
            }
        }
        Ok(found)
    }
}

/// The surroundings of the first byte at which a text differs from another.
fn difference(text: &str, other: &str) -> String {
    let same = text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let at = (0..=same).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let begin = text[..at].char_indices().rev().nth(SHOWN).map_or(0, |(i, _)| i);
    let end = text[at..].char_indices().nth(SHOWN).map_or(text.len(), |(i, _)| at + i);
    format!("{:?} then {:?}", &text[begin..at], &text[at..end])
}

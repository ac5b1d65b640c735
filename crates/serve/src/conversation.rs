//! Conversations that are longer than the model's context: their oldest turns are left out.

use crate::body::Message;
use crate::chat::ChatTemplate;
use crate::error::ApiError;
use bessemer_tokenizer::Tokenizer;

/// Share of the context that stays free for the answer where its length is not limited further.
const ANSWER_SHARE: usize = 8;

/// A conversation as a prompt.
pub(crate) struct FittedPrompt {
    pub(crate) ids: Vec<u32>,
    /// Strings that end the answer.
    pub(crate) stops: Vec<String>,
    /// Messages that were left out.
    pub(crate) dropped: usize,
}

/// Positions of a model, and tokens of an answer at most.
pub(crate) struct Room {
    pub(crate) context: usize,
    pub(crate) max_tokens: u64,
    /// Whether turns may be left out.
    pub(crate) may_drop: bool,
}

fn is_instruction(message: &Message) -> bool {
    matches!(message.role.as_str(), "system" | "developer")
}

/// The prompt of a conversation with as many of its newest turns as fit. A turn is a user's message with everything up to the next one;
/// system messages and the last turn stay.
pub(crate) fn fit(
    chat: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    room: &Room,
) -> Result<FittedPrompt, ApiError> {
    let answer = usize::try_from(room.max_tokens).unwrap_or(usize::MAX).min(room.context / ANSWER_SHARE);
    let from = |begin: usize| -> Result<FittedPrompt, ApiError> {
        let kept = |(at, message): &(usize, &Message)| *at >= begin || is_instruction(message);
        let kept: Vec<&Message> = messages.iter().enumerate().filter(kept).map(|(_, one)| one).collect();
        let (ids, stops) = chat.prompt(tokenizer, &kept)?;
        Ok(FittedPrompt { ids, stops, dropped: messages.len() - kept.len() })
    };
    let fits = |prompt: &FittedPrompt| prompt.ids.len() + answer <= room.context;
    let whole = from(0)?;
    // A conversation may begin with an answer, which is part of no turn.
    let begins = messages.iter().enumerate().filter(|(_, one)| one.role == "user").map(|(at, _)| at);
    let later: Vec<usize> = begins.filter(|&at| !messages[..at].iter().all(is_instruction)).collect();
    if fits(&whole) || !room.may_drop || later.is_empty() {
        return Ok(whole);
    }
    // The fewer turns, the shorter the prompt.
    let (mut too_long, mut at) = (0, later.len() - 1);
    let mut found = from(later[at])?;
    while too_long < at {
        let middle = usize::midpoint(too_long, at);
        let tried = from(later[middle])?;
        match fits(&tried) {
            true => (at, found) = (middle, tried),
            false => too_long = middle + 1,
        }
    }
    Ok(found)
}

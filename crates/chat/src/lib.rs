//! Chats as tokens, with the tokens of answers marked: what fine-tuning trains on and `serve` prompts with.
//!
//! | step | module |
//! |---|---|
//! | rows of data sets become chats, whose turns are checked | [`rows`], [`message`] |
//! | a template of Transformers (`chat_template`), or one of ours, makes a text of a chat | [`template`] |
//! | text of users is kept apart from special tokens of the template | `neutral` |
//! | the text becomes tokens, of which those of answers are scored | [`encode`] |
//!
//! Invariants:
//! - A special token is recognised only where the template printed it: a user who types one has typed text.
//! - Scored are the tokens of answers with the token that ends them, never the header before them.
//! - Answers are found by the tag `generation` of the template; in a template without it by comparing the texts of the chat up to a turn,
//!   which is refused wherever one is no prefix of the other.
//! - Nothing here opens a file or reads a clock: a template that calls `strftime_now` is refused.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod encode;
mod error;
pub mod message;
mod neutral;
pub mod rows;
mod shipped;
pub mod template;
mod to_json;

pub use encode::{Answers, ChatEncoder, ChatTokens, FittedChat};
pub use error::{ChatError, Result};
pub use message::{Chat, Message, Role, ToolCall};
pub use rows::{ChatRow, ChatRows, Pair, RowForm};
pub use template::{ChatTemplate, SHIPPED, TokenNames};

//! Chats: rows, templates, tokens, limits, and comparison with Transformers.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod common;
mod hostile;
mod oracle;
mod rows;
mod templates;
mod tokens;

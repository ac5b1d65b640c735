//! What the web is made of: WARC and WET records, HTTP messages, encodings, HTML and its main text, URLs and lists
//! of them.
//!
//! Everything here takes bytes that strangers made. It answers with a value or an error, in memory and time that are
//! bounded by the limits given, whatever the bytes are.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod encoding;
pub mod extract;
pub mod fields;
pub mod html;
pub mod http;
pub mod page;
pub mod redact;
pub mod url;
pub mod warc;

/// Version of the pages, texts and verdicts on URLs that this crate makes. Raised whenever one of them changes for the same input and configuration:
/// finished corpora are reused under it.
pub const VERSION: u32 = 3;

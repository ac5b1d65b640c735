//! What the web is made of: WARC and WET records, HTTP messages, encodings, HTML and its main text, URLs and lists
//! of them.
//!
//! Everything here takes bytes that strangers made. It answers with a value or an error, in memory and time that are
//! bounded by the limits given, whatever the bytes are.

pub mod encoding;
pub mod extract;
pub mod fields;
pub mod html;
pub mod http;
pub mod page;
pub mod redact;
#[cfg(feature = "remote")]
pub mod remote;
pub mod url;
pub mod warc;

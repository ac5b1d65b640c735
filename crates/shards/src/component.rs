//! Components: runs of documents of a split that a training mixture weighs apart, such as sources and slices of sources.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Longest name of a component in bytes.
const NAME_BYTES: usize = 96;

/// A run of documents within a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// Its name: 1 to 96 of `a-z 0-9 - _ .`.
    pub name: String,
    /// Its tokens, as offsets in the split.
    pub tokens: Range<u64>,
    /// Its documents.
    pub documents: u64,
    /// Bytes of the text that its tokens encode.
    pub text_bytes: u64,
}

/// A component as `shards.json` lists it: its tokens follow those of the components before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListedComponent {
    pub(crate) name: String,
    pub(crate) tokens: u64,
    pub(crate) documents: u64,
    pub(crate) text_bytes: u64,
}

/// Says what is wrong with a name, if anything.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(allowed) {
        return Err(format!("component: wanted 1 to {NAME_BYTES} of a-z 0-9 - _ ., found {name:?}"));
    }
    Ok(())
}

/// The components with their places in the split. The sums were checked against overflow.
pub(crate) fn placed(listed: &[ListedComponent]) -> Vec<Component> {
    let mut start = 0;
    let place = |listed: &ListedComponent| {
        let tokens = start..start + listed.tokens;
        start = tokens.end;
        let (documents, text_bytes) = (listed.documents, listed.text_bytes);
        Component { name: listed.name.clone(), tokens, documents, text_bytes }
    };
    listed.iter().map(place).collect()
}

//! Limits of the parsers, and the errors where a document exceeds them.

use thiserror::Error;

/// Limits of one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkupLimits {
    /// Largest input, and largest text that macros may expand to, in bytes.
    pub max_bytes: usize,
    /// Most elements, groups or environments inside each other.
    pub max_depth: usize,
}

impl Default for MarkupLimits {
    /// 16 MiB and a depth of 256.
    fn default() -> Self {
        MarkupLimits { max_bytes: 16 << 20, max_depth: 256 }
    }
}

/// Why a document gives no text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MarkupError {
    /// The input, or what its macros expand to, exceeds the limit.
    #[error("the document or the expansion of its macros exceeds {limit} bytes")]
    TooLarge {
        /// [`MarkupLimits::max_bytes`].
        limit: usize,
    },
    /// Elements or groups are nested too deep.
    #[error("elements are nested more than {limit} deep")]
    TooDeep {
        /// [`MarkupLimits::max_depth`].
        limit: usize,
    },
    /// The XML is not well-formed, or is cut off.
    #[error("damaged XML: {0}")]
    Malformed(String),
    /// The files hold no document.
    #[error("no document: {0}")]
    NoDocument(&'static str),
}

impl MarkupError {
    /// Reason under which a build drops the document.
    pub fn reason(&self) -> &'static str {
        match self {
            MarkupError::TooLarge { .. } => "markup-too-large",
            MarkupError::TooDeep { .. } => "markup-too-deep",
            MarkupError::Malformed(_) => "bad-xml",
            MarkupError::NoDocument(_) => "no-document",
        }
    }
}

impl MarkupLimits {
    /// Errors if an input or output of `bytes` is too large.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<(), MarkupError> {
        if bytes > self.max_bytes { Err(MarkupError::TooLarge { limit: self.max_bytes }) } else { Ok(()) }
    }

    /// Errors if `depth` elements are too many inside each other.
    pub(crate) fn check_depth(&self, depth: usize) -> Result<(), MarkupError> {
        if depth > self.max_depth { Err(MarkupError::TooDeep { limit: self.max_depth }) } else { Ok(()) }
    }
}

//! HTML as it is found: a tokenizer after the HTML standard (section 13.2.5) and a tree that is built without
//! recursion, in time linear in the bytes, however deep or broken the page is.
//!
//! Scripts do not run but count as supported, as for a visitor: `noscript` is left out. Elements of SVG and MathML have
//! rules of their own (section 13.2.6.5).
//!
//! Where this is simpler than the standard: formatting elements are not opened again after a block closes, nothing
//! is moved out of tables, framesets are read as a body, and of the attributes only those that extraction asks for
//! are kept. The text comes out the same, and its order except for text in a table outside of the cells.

mod named;
mod references;
mod tag;
mod tokenizer;
mod tree;

pub use references::decode_references;
pub use tag::Tag;
pub use tokenizer::{Attributes, StartTag, TagHints, Token, Tokenizer};
pub use tree::{Document, HtmlError, HtmlLimits, Node, NodeKind};

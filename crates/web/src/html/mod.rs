//! HTML as it is found: a tokenizer after the HTML standard (section 13.2.5) and a tree that is built without
//! recursion, in time linear in the bytes, however deep or broken the page is.
//!
//! Where this is simpler than the standard: formatting elements are not opened again after a block closes, nothing
//! is moved out of tables, scripts do not run, and of the attributes only those that extraction asks for are kept.
//! The text and its order come out the same.

mod named;
mod references;
mod tag;
mod tokenizer;
mod tree;

pub use references::decode_references;
pub use tag::Tag;
pub use tokenizer::{Attributes, Token, Tokenizer};
pub use tree::{Document, HtmlError, HtmlLimits, Node, NodeKind};

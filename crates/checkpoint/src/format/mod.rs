//! The safetensors container: a streaming writer and a reader for untrusted files.
//!
//! `u64 little-endian header length · JSON header · tensor bytes`. The header maps each name to
//! `{"dtype", "shape", "data_offsets": [begin, end]}`, offsets relative to the end of the header, and
//! `"__metadata__"` to a map of strings. Format: <https://github.com/huggingface/safetensors#format>.
//!
//! The reader is stricter than the common one where the format leaves two parsers free to see two models: a name given
//! twice is refused, ranges must cover the data without holes or overlap, a shape has at most [`MAX_RANK`] dims.

mod header;
mod reader;
mod writer;

pub(crate) use header::checked_bytes;
pub use header::{Entry, Header, StoredType};
pub use reader::SafetensorsFile;
pub(crate) use writer::{Layout, split, write_file};

/// Largest header that is read or written, the limit of the reference implementation.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Most tensors of a file: bounds the time and memory that a header takes. The largest published models have fewer in all
/// their files together.
pub const MAX_TENSORS: usize = 1 << 18;

/// Most dims of a tensor.
pub const MAX_RANK: usize = 8;

/// Longest tensor name in bytes.
pub const MAX_NAME_BYTES: usize = 1024;

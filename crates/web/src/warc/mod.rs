//! WARC and WET files (ISO 28500): a streaming reader that survives what is broken, and a small writer.
//!
//! ```
//! use bessemer_web::warc::{Compression, WarcLimits, WarcReader, WarcWriter};
//!
//! let mut writer = WarcWriter::new(Vec::new(), Compression::Gzip);
//! writer.response("http://example.com/", b"HTTP/1.1 200 OK\r\n\r\nhello")?;
//! let mut reader = WarcReader::new(std::io::Cursor::new(writer.into_inner()), WarcLimits::default())?;
//! while let Some(record) = reader.next()? {
//!     assert_eq!(record.target_uri(), Some("http://example.com/"));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod limits;
mod member;
mod raw;
mod reader;
mod record;
mod writer;

pub use error::{Counts, FaultKind, WarcError};
pub use limits::WarcLimits;
pub use member::Compression;
pub use reader::{WarcReader, cut};
pub use record::{Position, Record, RecordType};
pub use writer::WarcWriter;

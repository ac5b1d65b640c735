//! One record: its named fields and its block (ISO 28500, WARC 1.0 and 1.1).

use crate::fields::Fields;

/// Where a record lies: enough to begin reading there again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Offset in the file of the member that holds the record, or of the record where the file is plain.
    pub offset: u64,
    /// Number of records before it in the same member: 0 in files with a member for each record.
    pub index: u64,
}

/// `WARC-Type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordType {
    /// About the file.
    Warcinfo,
    /// A whole response, its HTTP header included.
    Response,
    /// A resource without the header of a protocol.
    Resource,
    /// A request.
    Request,
    /// About another record.
    Metadata,
    /// A resource seen before.
    Revisit,
    /// Another form of a resource: in WET files its plain text.
    Conversion,
    /// Part of a record that was cut in pieces.
    Continuation,
    /// Something else, in small letters.
    Other(String),
}

impl RecordType {
    pub(crate) fn of(name: &str) -> RecordType {
        let lower = name.trim().to_ascii_lowercase();
        match lower.as_str() {
            "warcinfo" => RecordType::Warcinfo,
            "response" => RecordType::Response,
            "resource" => RecordType::Resource,
            "request" => RecordType::Request,
            "metadata" => RecordType::Metadata,
            "revisit" => RecordType::Revisit,
            "conversion" => RecordType::Conversion,
            "continuation" => RecordType::Continuation,
            _ => RecordType::Other(lower),
        }
    }
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Position in the file.
    pub position: Position,
    /// `1.0`, `1.1`.
    pub version: String,
    /// `WARC-Type`.
    pub kind: RecordType,
    /// All named fields, in order.
    pub fields: Fields,
    /// The block: for a response the HTTP message, for a conversion the text.
    pub block: Vec<u8>,
    /// Whether `Content-Length` states another length than the compressed member, whose end, or the next record in it, ends the
    /// block then.
    pub wrong_length: bool,
}

impl Record {
    /// `WARC-Target-URI`, without the angle brackets that some writers put around it.
    pub fn target_uri(&self) -> Option<&str> {
        let uri = self.fields.get("WARC-Target-URI")?;
        Some(uri.strip_prefix('<').and_then(|u| u.strip_suffix('>')).unwrap_or(uri))
    }

    /// `WARC-Date`, as written.
    pub fn date(&self) -> Option<&str> {
        self.fields.get("WARC-Date")
    }

    /// `Content-Type` of the record (not of the HTTP message in it).
    pub fn content_type(&self) -> Option<&str> {
        self.fields.get("Content-Type")
    }
}

//! What can be wrong with a WARC file, and how often it was.

use std::collections::BTreeMap;

/// Kinds of faults. All but [`FaultKind::Io`] and [`FaultKind::Lost`] concern one record or member: reading goes on after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The file itself cannot be read.
    Io,
    /// A compressed member is damaged.
    Member,
    /// The file, or a member, ends inside a record.
    Truncated,
    /// What stands where a record should begin is none, or its header cannot be read.
    Header,
    /// A record is longer than the limit.
    TooLarge,
    /// A member expands more than any honest one does.
    Bomb,
    /// A `.zst` member needs a dictionary that the file does not hold, or cannot be used.
    Dictionary,
    /// So many places look like a member and are none that the search was given up.
    Lost,
}

impl FaultKind {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Io => "warc-io",
            FaultKind::Member => "warc-broken-member",
            FaultKind::Truncated => "warc-truncated",
            FaultKind::Header => "warc-bad-header",
            FaultKind::TooLarge => "warc-record-too-large",
            FaultKind::Bomb => "warc-bomb",
            FaultKind::Dictionary => "warc-dictionary",
            FaultKind::Lost => "warc-lost",
        }
    }
}

/// A fault of a WARC file, with the offset of the member or record in which it was found.
#[derive(Debug, thiserror::Error)]
#[error("WARC at byte {offset}: {message}")]
pub struct WarcError {
    /// Offset in the file, compressed as it is, of the member (or plain record) concerned.
    pub offset: u64,
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Description: what was wanted, what was found.
    pub message: String,
    /// The error of the file, for [`FaultKind::Io`].
    #[source]
    pub source: Option<std::io::Error>,
}

impl WarcError {
    pub(crate) fn new(offset: u64, kind: FaultKind, message: impl Into<String>) -> Self {
        WarcError { offset, kind, message: message.into(), source: None }
    }

    /// The file cannot be read at this offset.
    pub fn io(offset: u64, source: std::io::Error) -> Self {
        let message = format!("cannot read: {source}");
        WarcError { offset, kind: FaultKind::Io, message, source: Some(source) }
    }

    /// Whether [`WarcReader::next`](super::WarcReader::next) can go on after this error.
    pub fn is_skippable(&self) -> bool {
        !matches!(self.kind, FaultKind::Io | FaultKind::Lost)
    }
}

/// A fault inside a member, and where reading continues.
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) message: String,
    pub(crate) io: Option<std::io::Error>,
    /// Whether the next member must be searched for; else reading goes on where it stands.
    pub(crate) search: bool,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), io: None, search: true }
    }

    /// The same fault, after which reading goes on where it stands.
    pub(crate) fn without_search(self) -> Fault {
        Fault { search: false, ..self }
    }

    /// The error of the file, with the offset of the member.
    pub(crate) fn at(self, offset: u64) -> WarcError {
        match self.io {
            Some(source) => WarcError::io(offset, source),
            None => WarcError::new(offset, self.kind, self.message),
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(source: std::io::Error) -> Fault {
        Fault { io: Some(source), search: false, ..Fault::new(FaultKind::Io, "") }
    }
}

/// Counts of the records and faults that a reader met so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that were returned.
    pub records: u64,
    /// Records among them whose `Content-Length` is wrong ([`Record::wrong_length`](super::Record::wrong_length)).
    pub wrong_lengths: u64,
    /// Faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Bytes of the file that were passed over while the next member was searched.
    pub skipped_bytes: u64,
}

//! Where every byte of a shard file lies: header, trailer and the arithmetic between them.
//!
//! The specification is the crate's README; this file is its only implementation, used by writer and reader.

use crate::mask::mask_bytes;
use crate::meta::{SPLIT_BYTES, ShardMeta, check_split};
use crate::{Fingerprint, Part, ShardError};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Version of the shard file format that this crate writes. It reads versions 1 and 2.
pub const VERSION: u32 = 2;
/// Bytes of token data under one checksum.
pub const BLOCK_BYTES: u32 = 1 << 20;

/// First bytes of a file. The first is not ASCII and the last is a line feed, so that a transfer in text mode
/// or through a 7-bit channel breaks the magic.
pub(crate) const MAGIC: [u8; 8] = *b"\x89BSHARD\n";
/// Last bytes of a file.
pub(crate) const END_MAGIC: [u8; 8] = *b"\nDRAHSB\x89";
pub(crate) const HEADER_BYTES: usize = 128;
pub(crate) const TRAILER_BYTES: usize = 40;
/// Index bytes of one document: end offset, text bytes, id.
pub(crate) const DOCUMENT_BYTES: u64 = 8 + 8 + 16;
/// Bytes of the document index under one checksum, from version 2 on.
pub(crate) const INDEX_PIECE: usize = 64 << 10;

const SPLIT_AT: usize = 88;
const HEADER_SUM_AT: usize = 120;

/// The fixed header of a shard file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) meta: ShardMeta,
    pub(crate) block_bytes: u32,
    pub(crate) tokens: u64,
    pub(crate) documents: u64,
    pub(crate) text_bytes: u64,
}

/// Byte offsets of the parts of a file, from its header alone. All sums are known not to overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) data_end: usize,
    pub(crate) blocks: usize,
    pub(crate) block_sums: usize,
    pub(crate) ends: usize,
    pub(crate) text_bytes: usize,
    pub(crate) ids: usize,
    /// Checksums of the pieces of the document index; none in version 1.
    pub(crate) index_sums: usize,
    /// End of these sections: of version 1 the trailer, else further sections or the table of sections.
    pub(crate) sections_end: usize,
    /// Length of a file with no further section.
    pub(crate) file_bytes: usize,
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were sliced"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were sliced"))
}

impl Header {
    /// The layout that follows from the counts; `None` when it does not fit into the address space.
    pub(crate) fn layout(&self) -> Option<Layout> {
        let data = self.tokens.checked_mul(u64::from(self.meta.token_bytes()))?;
        let data_end = data.checked_add(HEADER_BYTES as u64)?;
        let blocks = data.div_ceil(u64::from(self.block_bytes));
        let block_sums = data_end.checked_next_multiple_of(8)?;
        let ends = block_sums.checked_add(blocks.checked_mul(8)?)?;
        let columns = self.documents.checked_mul(8)?;
        let text_bytes = ends.checked_add(columns)?;
        let ids = text_bytes.checked_add(columns)?;
        let index_sums = ids.checked_add(columns.checked_mul(2)?)?;
        let (pieces, table) = match self.version {
            1 => (0, 0),
            _ => ((index_sums - ends).div_ceil(INDEX_PIECE as u64), table_bytes(REQUIRED) as u64),
        };
        let sections_end = index_sums.checked_add(8 * pieces)?;
        let file_bytes = sections_end.checked_add(table)?.checked_add(TRAILER_BYTES as u64)?;
        // Every other offset is below the last one.
        usize::try_from(file_bytes).ok().filter(|&b| b <= isize::MAX as usize)?;
        Some(Layout {
            data_end: data_end as usize,
            blocks: blocks as usize,
            block_sums: block_sums as usize,
            ends: ends as usize,
            text_bytes: text_bytes as usize,
            ids: ids as usize,
            index_sums: index_sums as usize,
            sections_end: sections_end as usize,
            file_bytes: file_bytes as usize,
        })
    }

    pub(crate) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        b[..8].copy_from_slice(&MAGIC);
        for (i, v) in [
            self.version,
            HEADER_BYTES as u32,
            self.meta.token_bytes(),
            self.meta.vocab_size,
            self.meta.ordinal,
            self.block_bytes,
        ]
        .into_iter()
        .enumerate()
        {
            b[8 + 4 * i..12 + 4 * i].copy_from_slice(&v.to_le_bytes());
        }
        for (i, v) in [self.tokens, self.documents, self.text_bytes].into_iter().enumerate() {
            b[32 + 8 * i..40 + 8 * i].copy_from_slice(&v.to_le_bytes());
        }
        b[56..SPLIT_AT].copy_from_slice(&self.meta.tokenizer.0);
        b[SPLIT_AT..SPLIT_AT + self.meta.split.len()].copy_from_slice(self.meta.split.as_bytes());
        let sum = xxh3_64(&b[..HEADER_SUM_AT]);
        b[HEADER_SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// Reads a header from the beginning of a file, of which `bytes` may be all or less.
    pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Header, ShardError> {
        let first = &bytes[..bytes.len().min(MAGIC.len())];
        if first != &MAGIC[..first.len()] {
            let found = first.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
            return Err(ShardError::Foreign { path: path.to_owned(), found });
        }
        if bytes.len() >= 12 && !(1..=VERSION).contains(&u32_at(bytes, 8)) {
            let found = u32_at(bytes, 8);
            return Err(ShardError::Version { path: path.to_owned(), wanted: VERSION, found });
        }
        if bytes.len() < HEADER_BYTES {
            return Err(ShardError::Truncated {
                path: path.to_owned(),
                wanted: (HEADER_BYTES + TRAILER_BYTES) as u64,
                found: bytes.len() as u64,
            });
        }
        check_sum(path, Part::Header, u64_at(bytes, HEADER_SUM_AT), &bytes[..HEADER_SUM_AT])?;
        // From here on the bytes are what a writer wrote: a mistake below is a writer's, or malice.
        let wrong = |at: usize, what: String| Err(ShardError::malformed(path, at, what));
        if u32_at(bytes, 12) != HEADER_BYTES as u32 {
            return wrong(
                12,
                format!("wanted a header of {HEADER_BYTES} bytes, found {}", u32_at(bytes, 12)),
            );
        }
        let split_bytes = &bytes[SPLIT_AT..SPLIT_AT + SPLIT_BYTES];
        let length = split_bytes.iter().position(|&b| b == 0).unwrap_or(SPLIT_BYTES);
        let split = String::from_utf8_lossy(&split_bytes[..length]).into_owned();
        if let Err(what) = check_split(&split) {
            return wrong(SPLIT_AT, what);
        }
        if split_bytes[length..].iter().any(|&b| b != 0) {
            return wrong(SPLIT_AT, "wanted zeros after the name of the split".into());
        }
        let meta = ShardMeta {
            vocab_size: u32_at(bytes, 20),
            tokenizer: Fingerprint(bytes[56..SPLIT_AT].try_into().expect("32 bytes were sliced")),
            split,
            ordinal: u32_at(bytes, 24),
        };
        if meta.vocab_size == 0 {
            return wrong(20, "wanted a vocabulary of at least 1 token, found 0".into());
        }
        if u32_at(bytes, 16) != meta.token_bytes() {
            let (w, v) = (meta.token_bytes(), meta.vocab_size);
            let found = u32_at(bytes, 16);
            return wrong(
                16,
                format!("wanted {w} bytes a token for {v} tokens of vocabulary, found {found}"),
            );
        }
        let block_bytes = u32_at(bytes, 28);
        if !block_bytes.is_power_of_two() || !(64..=1 << 30).contains(&block_bytes) {
            return wrong(
                28,
                format!("wanted blocks of 2^6 to 2^30 bytes, a power of two, found {block_bytes}"),
            );
        }
        Ok(Header {
            version: u32_at(bytes, 8),
            meta,
            block_bytes,
            tokens: u64_at(bytes, 32),
            documents: u64_at(bytes, 40),
            text_bytes: u64_at(bytes, 48),
        })
    }
}

/// Kinds of sections that this program reads.
const TOKEN_SUMS: u32 = 1;
const DOCUMENT_INDEX: u32 = 2;
const INDEX_SUMS: u32 = 3;
const MASK: u32 = 4;
/// Sections of each file of version 2.
pub(crate) const REQUIRED: usize = 3;
/// Most sections of a file.
const MOST_SECTIONS: usize = 64;
/// Bytes of an entry of the table of sections.
const ENTRY_BYTES: usize = 32;

/// Bytes of a table of sections with its count.
pub(crate) fn table_bytes(sections: usize) -> usize {
    sections * ENTRY_BYTES + 8
}

/// An entry of the table of sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) kind: u32,
    /// A reader that does not have this kind refuses the file.
    pub(crate) required: bool,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    /// Of the bytes; of the document index, of the checksums of its pieces; of a mask, of its count and the checksums of its pieces.
    pub(crate) sum: u64,
}

impl Layout {
    /// The sections of each file, whose checksums are `token_sums` and `index_sums`.
    pub(crate) fn sections(&self, token_sums: u64, index_sums: u64) -> [Section; REQUIRED] {
        let section =
            |kind, start, end: usize, sum| Section { kind, required: true, start, bytes: end - start, sum };
        [
            section(TOKEN_SUMS, self.block_sums, self.ends, token_sums),
            section(DOCUMENT_INDEX, self.ends, self.index_sums, index_sums),
            section(INDEX_SUMS, self.index_sums, self.sections_end, index_sums),
        ]
    }
}

/// The table of sections.
pub(crate) fn table(sections: &[Section]) -> Vec<u8> {
    let mut out = Vec::with_capacity(table_bytes(sections.len()));
    for section in sections {
        out.extend(section.kind.to_le_bytes());
        out.extend(u32::from(section.required).to_le_bytes());
        for value in [section.start as u64, section.bytes as u64, section.sum] {
            out.extend(value.to_le_bytes());
        }
    }
    out.extend((sections.len() as u64).to_le_bytes());
    out
}

/// Sections that a file of version 2 states to have, from the last eight bytes of its table, which is followed by the trailer at `trailer`; the
/// offset of the table.
pub(crate) fn table_start(
    count: u64,
    trailer: usize,
    layout: &Layout,
    path: &Path,
) -> Result<usize, ShardError> {
    let count = usize::try_from(count).ok().filter(|count| (REQUIRED..=MOST_SECTIONS).contains(count));
    let start = count.and_then(|count| trailer.checked_sub(table_bytes(count)));
    start.filter(|&start| start >= layout.sections_end).ok_or_else(|| {
        ShardError::malformed(
            path,
            trailer - 8,
            format!("wanted {REQUIRED} to {MOST_SECTIONS} sections that fit into the file"),
        )
    })
}

/// What a table of sections states.
pub(crate) struct Sections {
    /// Checksum of the checksums of blocks.
    pub(crate) token_sums: u64,
    /// Checksum of the checksums of the document index.
    pub(crate) index_sums: u64,
    /// Mask of scored tokens; without one, all are scored.
    pub(crate) mask: Option<Section>,
    /// Sections behind those of each file, without the mask.
    pub(crate) further: Vec<Section>,
}

/// The section of a mask from byte `start` on.
pub(crate) fn mask_section(start: usize, bytes: usize, sum: u64) -> Section {
    Section { kind: MASK, required: true, start, bytes, sum }
}

/// Reads the entries of the table of sections at byte `at`, of a file with so many tokens.
pub(crate) fn read_table(
    entries: &[u8],
    at: usize,
    layout: &Layout,
    tokens: u64,
    path: &Path,
) -> Result<Sections, ShardError> {
    let wrong = |entry: usize, what: String| Err(ShardError::malformed(path, at + entry * ENTRY_BYTES, what));
    let mut sections = Vec::new();
    for (number, entry) in entries.chunks_exact(ENTRY_BYTES).enumerate() {
        let flags = u32_at(entry, 4);
        if flags > 1 {
            return wrong(number, format!("wanted the flags 0 or 1 of a section, found {flags}"));
        }
        let (start, bytes) = (u64_at(entry, 8), u64_at(entry, 16));
        let (Ok(start), Ok(bytes)) = (usize::try_from(start), usize::try_from(bytes)) else {
            return wrong(number, format!("section at {start} of {bytes} bytes is outside of the file"));
        };
        sections.push(Section {
            kind: u32_at(entry, 0),
            required: flags == 1,
            start,
            bytes,
            sum: u64_at(entry, 24),
        });
    }
    let sums = [0, 2].map(|number| sections.get(number).map_or(0, |section: &Section| section.sum));
    let mut further = sections.split_off(REQUIRED.min(sections.len()));
    if sections != layout.sections(sums[0], sums[1]) {
        return wrong(0, "wanted checksums of blocks, document index and its checksums as the first sections, as the header places them".into());
    }
    let (mut end, mut mask) = (layout.sections_end, None);
    for (number, section) in further.iter().enumerate() {
        if section.start != end || section.bytes % 8 != 0 || section.bytes > at - end {
            return wrong(
                REQUIRED + number,
                format!("wanted a section from byte {end} on, of a multiple of 8 bytes before the table"),
            );
        }
        if section.kind == MASK {
            let wanted = mask_section(end, mask_bytes(tokens), section.sum);
            if *section != wanted || mask.is_some() {
                let (bytes, found) = (wanted.bytes, section.bytes);
                let what = format!(
                    "wanted one required mask of {bytes} bytes for {tokens} tokens, found {found} bytes"
                );
                return wrong(REQUIRED + number, what);
            }
            mask = Some(wanted);
        } else if section.required {
            return Err(ShardError::Section { path: path.to_owned(), kind: section.kind });
        }
        end += section.bytes;
    }
    if end != at {
        return wrong(0, format!("the sections end at byte {end}, and the table begins at {at}"));
    }
    further.retain(|section| section.kind != MASK);
    Ok(Sections { token_sums: sums[0], index_sums: sums[1], mask, further })
}

/// The trailer of a file whose header has these bytes; `index_sum`: of version 1 that of everything between tokens and trailer, else that of
/// the table of sections.
pub(crate) fn trailer(header: &[u8; HEADER_BYTES], index_sum: u64, file_bytes: u64) -> [u8; TRAILER_BYTES] {
    let mut b = [0; TRAILER_BYTES];
    b[..8].copy_from_slice(&index_sum.to_le_bytes());
    b[8..16].copy_from_slice(&file_bytes.to_le_bytes());
    b[16..24].copy_from_slice(&header[HEADER_SUM_AT..]);
    let sum = xxh3_64(&b[..24]);
    b[24..32].copy_from_slice(&sum.to_le_bytes());
    b[32..].copy_from_slice(&END_MAGIC);
    b
}

/// The checksum of a whole file, a root over all others: stored in its trailer.
pub(crate) fn file_sum(trailer: &[u8]) -> u64 {
    u64_at(trailer, 24)
}

/// Verifies the trailer of a file of `file_bytes` bytes against the header's bytes and returns the checksum that the index, or the table of
/// sections, must have.
pub(crate) fn check_trailer(
    header: &[u8],
    trailer: &[u8; TRAILER_BYTES],
    file_bytes: usize,
    path: &Path,
) -> Result<u64, ShardError> {
    let wrong =
        |at: usize, what: &str| Err(ShardError::malformed(path, file_bytes - TRAILER_BYTES + at, what));
    if trailer[32..] != END_MAGIC {
        return wrong(
            32,
            "wanted the end marker of a shard file: the file was cut, or bytes were appended; restore or rebuild it",
        );
    }
    check_sum(path, Part::Trailer, file_sum(trailer), &trailer[..24])?;
    if u64_at(trailer, 8) != file_bytes as u64 {
        return wrong(8, "the trailer states another length than the file has");
    }
    if trailer[16..24] != header[HEADER_SUM_AT..HEADER_BYTES] {
        return wrong(16, "the trailer belongs to another header");
    }
    Ok(u64_at(trailer, 0))
}

/// Compares the checksum of `bytes` with the stored one.
pub(crate) fn check_sum(path: &Path, part: Part, wanted: u64, bytes: &[u8]) -> Result<(), ShardError> {
    same_sum(path, part, wanted, xxh3_64(bytes))
}

/// Compares the checksum of a part with the stored one.
pub(crate) fn same_sum(path: &Path, part: Part, wanted: u64, found: u64) -> Result<(), ShardError> {
    if found == wanted {
        return Ok(());
    }
    Err(ShardError::Checksum { path: path.to_owned(), part, wanted, found })
}

//! Papers: LaTeX and JATS XML, one by one or in archives.
//!
//! | file | a document is |
//! |---|---|
//! | `.tex` in the root | the file |
//! | `.tex` in folders | all of them below one folder of the root: an unpacked submission |
//! | `.nxml`, `.xml` | the article |
//! | `.tar`, plain or compressed, `.tgz` | all its `.tex` together, each `.nxml` and `.xml`, each `.gz` (arXiv's bulk archives hold one for each submission) |
//! | `.gz` with another name before it | the paper or the archive that it holds |
//!
//! Small files are read and parsed in the morsels; of an archive above 8 MiB the sequential part reads the members. What a paper unpacks
//! to is bounded. A damaged member is one dropped row; a damaged archive ends with one.

use super::files::{FileFormat, FileSource};
use super::folder::FileEntry;
use super::location::SourceLocation;
use super::paper_inputs::{Content, Input, Inputs, TexFiles, pdf};
use super::{MORSEL_BYTES, MetadataColumns, compressed, max_page_bytes};
use crate::error::Result;
use bessemer_dataflow::{Morsel, Scan};
use bessemer_documents::{HEAD_BYTES, Origin, RowBuilder};
use bessemer_markup::{MarkupLimits, Paper, jats, latex};
use bessemer_tar::{Entry, TarReader, is_tar};
use bessemer_web::encoding;
use bessemer_web::page::{PDF_BEGINNING, PageVerdict};
use flate2::bufread::MultiGzDecoder;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

/// Files up to this size are read in the morsels.
const WHOLE_FILE_BYTES: u64 = 8 << 20;
/// Files of one morsel at most.
const MORSEL_FILES: usize = 64;
/// First bytes of gzip.
const GZIP: &[u8] = b"\x1f\x8b";
/// Endings of LaTeX sources.
pub(super) const TEX: &[&str] = &["tex", "ltx", "latex"];
/// Endings of articles in XML.
pub(super) const XML: &[&str] = &["nxml", "xml"];

/// Whether a file name is that of an article in JATS XML, which no other source reads.
pub(crate) fn is_article(name: &str) -> bool {
    extension(compressed::inner_name(name)) == "nxml"
}

/// Whether a file name is that of an archive, which no other source reads.
pub(crate) fn is_archive(name: &str) -> bool {
    matches!(extension(compressed::inner_name(name)).as_str(), "tar" | "tgz")
}

/// Whether a file is read where the configuration says that it holds papers.
pub(super) fn is_paper(name: &str) -> bool {
    let inner = extension(compressed::inner_name(name));
    is_archive(name) || [TEX, XML].concat().contains(&inner.as_str()) || extension(name) == "gz"
}

/// The ending of a name in small letters, without its dot.
pub(super) fn extension(name: &str) -> String {
    name.rsplit_once('.').map_or(String::new(), |(_, extension)| extension.to_ascii_lowercase())
}

pub(super) struct Papers {
    /// Files that are read together, by the first of them.
    units: Arc<Vec<Vec<usize>>>,
    reading: Arc<Reading>,
}

/// How papers become rows.
struct Reading {
    limits: MarkupLimits,
    metadata: MetadataColumns,
}

/// Opens the files.
pub(super) fn open(
    place: &SourceLocation<'_>,
    max_bytes: u64,
    metadata: &MetadataColumns,
) -> Result<FileSource<Papers>> {
    let (files, listing) = place.find("papers", is_paper)?;
    let mut units: Vec<Vec<usize>> = Vec::new();
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        match file.relative.split_once('/') {
            Some((folder, _)) if TEX.contains(&extension(&file.relative).as_str()) => {
                let unit = *folders.entry(folder).or_insert(units.len());
                if unit == units.len() {
                    units.push(Vec::new());
                }
                units[unit].push(index);
            }
            _ => units.push(vec![index]),
        }
    }
    let limits = MarkupLimits { max_bytes: max_page_bytes(max_bytes) as usize, ..MarkupLimits::default() };
    let reading = Arc::new(Reading { limits, metadata: metadata.clone() });
    Ok(FileSource::new(place, files, listing, Papers { units: Arc::new(units), reading }))
}

impl FileFormat for Papers {
    const FILES: &'static str = "files of papers";

    fn scan(&self, files: Arc<Vec<FileEntry>>, run: Range<usize>) -> Box<dyn Scan> {
        Box::new(PapersScan {
            files,
            units: self.units.clone(),
            reading: self.reading.clone(),
            next: self.units.partition_point(|unit| unit[0] < run.start),
            end: run.end,
            archive: None,
        })
    }
}

struct PapersScan {
    files: Arc<Vec<FileEntry>>,
    units: Arc<Vec<Vec<usize>>>,
    reading: Arc<Reading>,
    /// The unit that is read next.
    next: usize,
    /// The file before which reading ends.
    end: usize,
    /// The archive that is being read: its file, its members.
    archive: Option<(usize, Inputs)>,
}

impl PapersScan {
    /// The next unit, if it lies in the run of files.
    fn unit(&self) -> Option<&[usize]> {
        self.units.get(self.next).map(Vec::as_slice).filter(|unit| unit[0] < self.end)
    }

    fn is_large(&self, unit: &[usize]) -> bool {
        unit.len() == 1 && self.files[unit[0]].bytes > WHOLE_FILE_BYTES
    }
}

impl Scan for PapersScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        loop {
            if let Some((ordinal, inputs)) = &mut self.archive {
                let ordinal = *ordinal;
                let (mut found, mut bytes) = (Vec::new(), 0);
                while bytes < MORSEL_BYTES
                    && let Some(input) = inputs.next()
                {
                    bytes += input.bytes();
                    found.push(input);
                }
                if found.is_empty() {
                    self.archive = None;
                    self.files[ordinal].reached()?;
                    continue;
                }
                let first_row = inputs.row - found.len() as u64;
                let (files, reading) = (self.files.clone(), self.reading.clone());
                return Ok(Some(Box::new(move || {
                    let mut rows = RowBuilder::with_capacity(found.len(), MORSEL_BYTES);
                    for (input, row) in found.into_iter().zip(first_row + 1..) {
                        add(&files[ordinal], ordinal, row, true, input, &reading, &mut rows);
                    }
                    rows.finish()
                })));
            }
            let Some(unit) = self.unit() else { return Ok(None) };
            if self.is_large(unit) {
                let ordinal = unit[0];
                self.archive =
                    Some((ordinal, Inputs::open(&self.files[ordinal], self.reading.limits.max_bytes)));
                self.next += 1;
                continue;
            }
            let (start, mut bytes) = (self.next, 0);
            while let Some(unit) = self.unit() {
                if self.is_large(unit) || bytes >= MORSEL_BYTES as u64 || self.next - start >= MORSEL_FILES {
                    break;
                }
                bytes += unit.iter().map(|file| self.files[*file].bytes).sum::<u64>();
                self.next += 1;
            }
            let (files, units, reading, range) =
                (self.files.clone(), self.units.clone(), self.reading.clone(), start..self.next);
            return Ok(Some(Box::new(move || {
                let mut rows = RowBuilder::with_capacity(range.len(), bytes as usize);
                for unit in &units[range] {
                    read_unit(&files, unit, &reading, &mut rows)?;
                }
                rows.finish()
            })));
        }
    }
}

/// Adds the rows of files that are read together.
fn read_unit(
    files: &[FileEntry],
    unit: &[usize],
    reading: &Reading,
    rows: &mut RowBuilder,
) -> bessemer_dataflow::Result<()> {
    let (ordinal, file) = (unit[0], &files[unit[0]]);
    if unit.len() == 1 {
        let mut inputs = Inputs::open(file, reading.limits.max_bytes);
        while let Some(input) = inputs.next() {
            add(file, ordinal, inputs.row, inputs.is_archive(), input, reading, rows);
        }
        return Ok(file.reached()?);
    }
    let mut sources = Vec::new();
    let mut left = reading.limits.max_bytes as u64;
    for &index in unit {
        let mut bytes = Vec::new();
        let opened = compressed::open_io(&files[index]);
        let read = opened.and_then(|reader| reader.take(left + 1).read_to_end(&mut bytes));
        files[index].reached()?;
        if let Err(cause) = read {
            let fault = Input::fault(&files[index].relative, "unreadable", cause.to_string());
            add(file, ordinal, 1, false, fault, reading, rows);
            return Ok(());
        }
        // What is beyond the limit makes the paper too large when it is parsed.
        left = left.saturating_sub(bytes.len() as u64);
        sources.push((files[index].relative.clone(), bytes));
    }
    let input = Input { path: file.relative.clone(), content: Content::Tex(sources) };
    add(file, ordinal, 1, false, input, reading, rows);
    Ok(())
}

/// Adds the row of a paper.
fn add(
    file: &FileEntry,
    ordinal: usize,
    row: u64,
    numbered: bool,
    input: Input,
    reading: &Reading,
    rows: &mut RowBuilder,
) {
    let name = &file.relative;
    let id = if numbered { format!("{name}#{row}") } else { name.clone() };
    let bytes = input.bytes() as u64;
    let mut origin = Origin { path: &input.path, bytes, ..file.origin(ordinal, row, &id) };
    match paper_of(&input.path, input.content, &reading.limits) {
        Ok(paper) => {
            let title = |name: &str| paper.title.clone().filter(|_| name == "title");
            let metadata = reading.metadata.of_names(title);
            origin.metadata = metadata.as_deref();
            rows.push(&origin, paper.text.as_bytes());
        }
        Err((reason, detail, head)) => {
            rows.refuse(&origin, reason, &format!("{}: {detail}", input.path), &head)
        }
    }
}

/// Why a paper is refused: reason, detail, its first bytes.
type Refusal = (&'static str, String, Vec<u8>);

/// The text of a paper.
fn paper_of(path: &str, content: Content, limits: &MarkupLimits) -> std::result::Result<Paper, Refusal> {
    let (mut bytes, mut path) = match content {
        Content::Fault(reason, detail) => return Err((reason, detail, Vec::new())),
        Content::Tex(files) => return tex_of(files, limits),
        Content::File(bytes) => (bytes, path),
    };
    if bytes.starts_with(GZIP) {
        bytes =
            unpacked(&bytes, limits.max_bytes).map_err(|(reason, detail)| (reason, detail, Vec::new()))?;
        path = compressed::inner_name(path);
    }
    if is_tar(&bytes) {
        let (mut tar, mut tex) =
            (TarReader::new(&bytes[..], limits.max_bytes as u64), TexFiles::new(limits.max_bytes));
        let mut figures = Vec::new();
        loop {
            match tar.next_entry() {
                Ok(Some(Entry::File { path, bytes })) => match extension(&path).as_str() {
                    found if TEX.contains(&found) => tex.push(path, bytes),
                    found if XML.contains(&found) => return text_of(&path, bytes, limits),
                    "pdf" => figures.push(path),
                    _ => {}
                },
                Ok(Some(Entry::Refused { .. })) => {}
                Ok(None) => break,
                Err(error) => return Err(("truncated-input", error.to_string(), Vec::new())),
            }
        }
        let found = tex.finish(path).or_else(|| figures.first().map(|path| pdf(path)));
        return match found.map(|input| input.content) {
            Some(Content::Tex(files)) => tex_of(files, limits),
            Some(Content::Fault(reason, detail)) => Err((reason, detail, Vec::new())),
            _ => Err((
                "no-document",
                "the archive holds neither LaTeX nor an article in XML".into(),
                Vec::new(),
            )),
        };
    }
    text_of(path, bytes, limits)
}

/// The text of a file that is neither compressed nor an archive.
fn text_of(path: &str, bytes: Vec<u8>, limits: &MarkupLimits) -> std::result::Result<Paper, Refusal> {
    let head = bytes[..bytes.len().min(HEAD_BYTES)].to_vec();
    if bytes.starts_with(PDF_BEGINNING) {
        return Err((
            PageVerdict::Pdf.name(),
            "PDF is not supported: convert it to text or HTML first".into(),
            Vec::new(),
        ));
    }
    let text = decoded(bytes);
    let paper = if XML.contains(&extension(path).as_str()) || text.trim_start().starts_with("<?xml") {
        match jats::is_article(&text) {
            true => jats::article(&text, limits),
            false => {
                return Err((
                    "no-document",
                    "wanted XML with the root element <article>, found another".into(),
                    head,
                ));
            }
        }
    } else {
        latex::paper(&[(path.to_string(), text)], limits)
    };
    paper.map_err(|error| (error.reason(), error.to_string(), head))
}

/// The text of LaTeX files.
fn tex_of(files: Vec<(String, Vec<u8>)>, limits: &MarkupLimits) -> std::result::Result<Paper, Refusal> {
    let head =
        files.first().map(|(_, bytes)| bytes[..bytes.len().min(HEAD_BYTES)].to_vec()).unwrap_or_default();
    let files: Vec<(String, String)> =
        files.into_iter().map(|(path, bytes)| (path, decoded(bytes))).collect();
    latex::paper(&files, limits).map_err(|error| (error.reason(), error.to_string(), head))
}

/// Bytes as text, from the encoding that they are in.
fn decoded(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| encoding::decode(error.as_bytes(), None, None).text)
}

/// Returns the content of a gzip member, within a limit.
fn unpacked(bytes: &[u8], max_bytes: usize) -> std::result::Result<Vec<u8>, (&'static str, String)> {
    let mut out = Vec::new();
    match MultiGzDecoder::new(bytes).take(max_bytes as u64 + 1).read_to_end(&mut out) {
        Ok(_) if out.len() > max_bytes => {
            Err(("too-large", format!("it unpacks to more than {max_bytes} bytes")))
        }
        Ok(_) => Ok(out),
        Err(cause) => Err(("truncated-input", cause.to_string())),
    }
}

//! Dumps of MediaWiki (`pages-articles.xml`, plain or compressed, multistream or not): a document for each article.
//!
//! The sequential part decompresses and finds pages, which begin at `<page>` and end at `</page>`: `<` stands in no text of a dump.
//! Pages are parsed in the morsels. A redirect, a page of another namespace or of another content model is a dropped row; so is a
//! damaged or too large one, and reading continues after it. The title is the document's first paragraph and its path.

use super::files::{ByFile, FileSource};
use super::folder::FileEntry;
use super::location::SourceLocation;
use super::{MORSEL_BYTES, MetadataColumns, compressed, max_page_bytes};
use crate::error::Result;
use arrow_array::RecordBatch;
use bessemer_documents::{HEAD_BYTES, Origin, RowBuilder};
use bessemer_durable::TextReader;
use bessemer_markup::MarkupLimits;
use bessemer_markup::wikipedia::{Namespaces, WikiPage, plain_text};
use std::io::{self, BufRead};
use std::sync::Arc;

const PAGE_START: &[u8] = b"<page>";
const PAGE_END: &[u8] = b"</page>";

/// Whether a file name is that of a dump of articles.
pub(crate) fn is_dump(name: &str) -> bool {
    let inner = compressed::inner_name(name).to_ascii_lowercase();
    let file = inner.rsplit('/').next().unwrap_or_default();
    // The parts of a large dump end in the numbers of their pages: pages-articles1.xml-p1p41242.
    (file.contains("pages-articles") || file.contains("pages-meta-current"))
        && file.contains(".xml")
        && !file.contains("-index")
}

/// Whether a file is read where the configuration says that it is a dump.
fn is_xml(name: &str) -> bool {
    let inner = compressed::inner_name(name).to_ascii_lowercase();
    is_dump(name) || inner.ends_with(".xml")
}

/// How pages become rows.
#[derive(Clone)]
pub(super) struct Wikipedia {
    limits: MarkupLimits,
    metadata: MetadataColumns,
}

/// Opens the dumps.
pub(super) fn open(
    place: &SourceLocation<'_>,
    max_bytes: u64,
    metadata: &MetadataColumns,
) -> Result<FileSource<Wikipedia>> {
    let (files, listing) = place.find("wikipedia", is_xml)?;
    let limits = MarkupLimits { max_bytes: max_page_bytes(max_bytes) as usize, ..MarkupLimits::default() };
    Ok(FileSource::new(place, files, listing, Wikipedia { limits, metadata: metadata.clone() }))
}

/// A dump that is being read.
pub(super) struct Dump {
    pages: PageReader,
    namespaces: Arc<Namespaces>,
    row: u64,
}

/// A page, or what stands in its place.
pub(super) enum Item {
    Page(Vec<u8>),
    /// Reason and detail.
    Fault(&'static str, String),
}

/// Pages of a dump with their numbers.
pub(super) struct Pages {
    items: Vec<(u64, Item)>,
    namespaces: Arc<Namespaces>,
}

impl ByFile for Wikipedia {
    const FILES: &'static str = "MediaWiki dumps";
    type Reader = Dump;
    type Chunk = Pages;

    fn open(&self, file: &FileEntry) -> std::result::Result<Dump, Pages> {
        Dump::open(file, self.limits.max_bytes).map_err(|cause| {
            let fault = Item::Fault(compressed::fault_reason(&cause), cause.to_string());
            Pages { items: vec![(1, fault)], namespaces: Arc::default() }
        })
    }

    fn next(&self, _: &FileEntry, dump: &mut Dump) -> (Option<Pages>, bool) {
        let (mut items, mut bytes, mut has_ended) = (Vec::new(), 0, false);
        while bytes < MORSEL_BYTES && !has_ended {
            let item = match dump.pages.next() {
                Ok(Some(Ok(page))) => {
                    bytes += page.len();
                    Item::Page(page)
                }
                Ok(Some(Err(length))) => Item::Fault(
                    "too-large",
                    format!("a page of {length} bytes, at most {}", self.limits.max_bytes),
                ),
                Ok(None) => {
                    has_ended = true;
                    break;
                }
                Err(cause) => {
                    has_ended = true;
                    let detail = format!("{cause}; the pages before it are kept");
                    Item::Fault(compressed::fault_reason(&cause), detail)
                }
            };
            dump.row += 1;
            items.push((dump.row, item));
        }
        let pages = Pages { items, namespaces: dump.namespaces.clone() };
        ((!pages.items.is_empty()).then_some(pages), has_ended)
    }

    fn rows(&self, file: &FileEntry, ordinal: usize, pages: Pages) -> bessemer_dataflow::Result<RecordBatch> {
        rows(file, ordinal, &pages.items, &pages.namespaces, self)
    }
}

impl Dump {
    fn open(file: &FileEntry, max_bytes: usize) -> io::Result<Dump> {
        let mut pages = PageReader {
            reader: Box::new(TextReader::new(compressed::open_io(file)?)),
            max_bytes,
            in_page: false,
        };
        let head = pages.head()?;
        let namespaces = Namespaces::of_head(&String::from_utf8_lossy(&head));
        Ok(Dump { pages, namespaces: Arc::new(namespaces), row: 0 })
    }
}

/// Finds the pages of a dump, holding one at a time.
pub(super) struct PageReader {
    reader: Box<dyn BufRead + Send>,
    max_bytes: usize,
    /// The mark of the next page was read with the head.
    in_page: bool,
}

impl PageReader {
    /// The bytes before the first page, as far as they fit.
    fn head(&mut self) -> io::Result<Vec<u8>> {
        let mut head = Vec::new();
        self.in_page = self.seek(PAGE_START, Some(&mut head))?.0;
        Ok(head)
    }

    /// The next page, or the length of one that exceeds the limit; none at the end of the dump.
    fn next(&mut self) -> io::Result<Option<std::result::Result<Vec<u8>, usize>>> {
        if !std::mem::take(&mut self.in_page) && !self.seek(PAGE_START, None)?.0 {
            return Ok(None);
        }
        let mut page = PAGE_START.to_vec();
        match self.seek(PAGE_END, Some(&mut page))? {
            (true, length) if length + PAGE_START.len() > self.max_bytes => Ok(Some(Err(length))),
            (true, _) => Ok(Some(Ok(page))),
            (false, _) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the dump ends inside a page")),
        }
    }

    /// Reads up to and with `mark`, whose first byte occurs in it once. Returns whether it was found and the bytes read; `into` holds
    /// what fits the limit.
    fn seek(&mut self, mark: &[u8], mut into: Option<&mut Vec<u8>>) -> io::Result<(bool, usize)> {
        let (mut matched, mut length) = (0, 0);
        loop {
            let block = match self.reader.fill_buf() {
                Ok(block) => block,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(cause),
            };
            if block.is_empty() {
                return Ok((false, length));
            }
            let mut used = 0;
            while used < block.len() && matched < mark.len() {
                if matched == 0 {
                    match block[used..].iter().position(|byte| *byte == mark[0]) {
                        Some(found) => used += found,
                        None => {
                            used = block.len();
                            break;
                        }
                    }
                }
                if block[used] == mark[matched] {
                    matched += 1;
                    used += 1;
                } else {
                    // No byte of the mark but the first is its first byte, so a mismatch begins anew here.
                    matched = 0;
                    used += usize::from(block[used] != mark[0]);
                }
            }
            if let Some(into) = into.as_deref_mut() {
                let room = self.max_bytes.saturating_sub(into.len());
                into.extend_from_slice(&block[..used.min(room)]);
            }
            length += used;
            self.reader.consume(used);
            if matched == mark.len() {
                return Ok((true, length));
            }
        }
    }
}

fn rows(
    file: &FileEntry,
    ordinal: usize,
    items: &[(u64, Item)],
    namespaces: &Namespaces,
    reading: &Wikipedia,
) -> bessemer_dataflow::Result<RecordBatch> {
    let name = &file.relative;
    let mut rows = RowBuilder::with_capacity(items.len(), MORSEL_BYTES);
    for (row, item) in items {
        let id = format!("{name}#{row}");
        let origin = file.origin(ordinal, *row, &id);
        match item {
            Item::Page(xml) => page(xml, origin, namespaces, reading, &mut rows),
            Item::Fault(reason, detail) => {
                rows.refuse(&origin, reason, &format!("{name}#{row}: {detail}"), &[])
            }
        }
    }
    rows.finish()
}

/// Appends one page of the dump as a row.
fn page(
    xml: &[u8],
    mut origin: Origin<'_>,
    namespaces: &Namespaces,
    reading: &Wikipedia,
    rows: &mut RowBuilder,
) {
    origin.bytes = xml.len() as u64;
    let head = &xml[..xml.len().min(HEAD_BYTES)];
    let Ok(xml) = std::str::from_utf8(xml) else {
        return rows.refuse(&origin, "invalid-utf8", "a page that is not UTF-8", head);
    };
    let page = match WikiPage::parse(xml, &reading.limits) {
        Ok(page) => page,
        Err(error) => return rows.refuse(&origin, error.reason(), &error.to_string(), head),
    };
    let field = |name: &str| match name {
        "title" => Some(page.title.clone()),
        "page_id" => Some(page.id.clone()),
        _ => None,
    };
    let metadata = reading.metadata.of_names(field);
    let origin = Origin {
        path: &page.title,
        fetched: page.timestamp.as_deref(),
        metadata: metadata.as_deref(),
        ..origin
    };
    let refusal = if page.namespace.trim() != "0" {
        Some(("wiki-namespace", format!("{} in namespace {}", page.title, page.namespace)))
    } else if let Some(target) = &page.redirect {
        Some(("wiki-redirect", format!("{} redirects to {target}", page.title)))
    } else if !matches!(page.model.trim(), "" | "wikitext") {
        Some(("wiki-model", format!("{} has the content model {}", page.title, page.model)))
    } else {
        None
    };
    if let Some((reason, detail)) = refusal {
        return rows.refuse(&origin, reason, &detail, page.wikitext.as_bytes());
    }
    match plain_text(&page.wikitext, namespaces, &reading.limits) {
        Ok(text) if text.is_empty() => {
            rows.refuse(&origin, "extract-empty", &page.title, page.wikitext.as_bytes())
        }
        Ok(text) => rows.push(&origin, format!("{}\n\n{text}", page.title).as_bytes()),
        Err(error) => rows.refuse(&origin, error.reason(), &error.to_string(), page.wikitext.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(dump: &str, max_bytes: usize, block: usize) -> Vec<std::result::Result<String, usize>> {
        let reader = io::BufReader::with_capacity(block, io::Cursor::new(dump.as_bytes().to_vec()));
        let mut pages = PageReader { reader: Box::new(reader), max_bytes, in_page: false };
        let mut found = Vec::new();
        while let Some(page) = pages.next().unwrap() {
            found.push(page.map(|page| String::from_utf8(page).unwrap()));
        }
        found
    }

    #[test]
    fn pages_are_found_across_blocks_and_a_large_one_is_passed_over_without_being_held() {
        let large = format!("<page>{}</page>", "x".repeat(100));
        let dump =
            format!("<mediawiki><page><<a></page> <pag <page>b</p</page>{large}<page>c</page></mediawiki>");
        let wanted = [
            Ok("<page><<a></page>".to_string()),
            Ok("<page>b</p</page>".into()),
            Err(107),
            Ok("<page>c</page>".into()),
        ];
        for block in 1..40 {
            assert_eq!(pages(&dump, 40, block), wanted, "blocks of {block} bytes");
        }
    }

    #[test]
    fn dumps_are_recognised_by_name() {
        for (name, is) in [
            ("enwiki-20260101-pages-articles.xml", true),
            ("x/enwiki-latest-pages-articles-multistream.xml.bz2", true),
            ("dewiki-pages-articles1.xml-p1p297012.bz2", true),
            ("enwiki-pages-articles-multistream-index.txt.bz2", false),
            ("articles.xml", false),
        ] {
            assert_eq!(is_dump(name), is, "{name}");
        }
    }
}

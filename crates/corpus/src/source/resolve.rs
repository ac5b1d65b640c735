//! From the configuration to a source.

use super::compressed::inner_name;
use super::folder::{Filter, PROSE, Pages, Reading};
use super::location::{SourceLocation, is_address};
use super::{
    FieldNames, MetadataColumns, Source, cargo, chain, embedded, file, folder, jsonl, max_page_bytes, papers,
    parquet, python, row_lines, stack_exchange, warc, wikipedia,
};
use crate::chats::ChatRows;
use crate::error::{Error, Result};
use crate::rule::{Kind, urls};
use bessemer_corpus_config::dedup::Method;
use bessemer_corpus_config::{CleanConfig, CorpusConfig, InvalidUtf8, SourceKind};
use bessemer_web::page::PDF_BEGINNING;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Opens the source that the configuration asks for. `auto` takes the first of: `path`, cargo's dependencies,
/// Python's standard library, the embedded corpus; the listing has the reason why cargo was passed over. Nothing else falls back: a source that was asked for by
/// kind or path, or by name among several, is read or is an error.
pub(crate) fn open(config: &CorpusConfig) -> Result<Arc<dyn Source>> {
    let metadata = MetadataColumns::of(config);
    if config.sources.is_empty() {
        let source = match config.source {
            SourceKind::Auto if config.path.is_empty() => without_path(config, Path::new(".")),
            _ => open_one(config, &metadata)?,
        };
        check_embeddings(config, &[source.listing().kind])?;
        return Ok(source);
    }
    let mut sources = Vec::with_capacity(config.sources.len());
    for source in &config.sources {
        let opened = open_one(&source.alone(config), &metadata)
            .map_err(|error| Error::OfSource { name: source.name.clone(), error: Box::new(error) })?;
        sources.push((source, opened));
    }
    let kinds: Vec<&str> = sources.iter().map(|(_, source)| source.listing().kind).collect();
    check_embeddings(config, &kinds)?;
    Ok(Arc::new(chain::open(sources)))
}

/// Checks, without reading a text, that every local file and folder that the configuration names exists, is of the kind that its
/// use needs, and may be read. Reading, and a listing of object stores, may find further faults.
///
/// # Errors
/// The first path at fault, with the reason.
pub fn check_inputs(config: &CorpusConfig) -> Result<()> {
    if config.sources.is_empty() {
        check_source_path(config)?;
    }
    for source in &config.sources {
        check_source_path(&source.alone(config))
            .map_err(|error| Error::OfSource { name: source.name.clone(), error: Box::new(error) })?;
    }
    for (key, path) in config.clone().paths() {
        bessemer_durable::open_regular(Path::new(path))
            .map_err(|cause| Error::Config(format!("{key}: cannot read {path}: {cause}")))?;
    }
    Ok(())
}

/// Checks the path of a single source.
fn check_source_path(config: &CorpusConfig) -> Result<()> {
    let path = Path::new(&config.path);
    if config.path.is_empty() || is_address(&config.path) {
        return Ok(());
    }
    match config.source {
        SourceKind::Folder => folder_exists(path)?,
        SourceKind::File => file_exists(path)?,
        _ => exists(path)?,
    }
    let opened = match path.is_dir() {
        true => bessemer_durable::read_dir(path).map(drop),
        false => bessemer_durable::open_regular(path).map(drop),
    };
    opened.map_err(|cause| unreadable(path, &cause))
}

/// Opens one source.
fn open_one(config: &CorpusConfig, metadata: &MetadataColumns) -> Result<Arc<dyn Source>> {
    let path = Path::new(&config.path);
    let place = match config.source {
        SourceKind::Cargo
        | SourceKind::Folder
        | SourceKind::Html
        | SourceKind::File
        | SourceKind::Embedded => None,
        SourceKind::Auto if config.path.is_empty() => None,
        _ => Some(open_place(config)?),
    };
    let kind = match (&place, config.source) {
        (Some(place), SourceKind::Auto) => kind_of(place)?,
        (None, SourceKind::Auto) => SourceKind::Cargo,
        (_, kind) => kind,
    };
    if is_address(&config.path)
        && matches!(kind, SourceKind::Folder | SourceKind::Html | SourceKind::File | SourceKind::Cargo)
    {
        let hint = "name or list .jsonl, .parquet, .warc or .wet files, plain, .gz or .zst, or set corpus.source; copy other files to a disk";
        return Err(wrong(path, "text files are not read from object stores one by one", hint));
    }
    Ok(match (kind, place) {
        (SourceKind::Cargo, _) => {
            let workspace = if config.path.is_empty() { "." } else { &config.path };
            Arc::new(open_cargo(config, Path::new(workspace))?)
        }
        (SourceKind::Folder, _) => {
            folder_exists(path)?;
            let filter = Filter::new(&config.extensions, &[PROSE, Kind::CODE], &config.exclude);
            // Who names extensions gets these.
            let by_content = config.extensions.is_empty();
            let filter = Filter { follow_links: config.follow_links, compressed: true, by_content, ..filter };
            Arc::new(folder::open(path, &filter, reading(config, Pages::Named, metadata))?)
        }
        (SourceKind::Jsonl, Some(place)) => with_files(
            path,
            jsonl::open(&place, fields(config, metadata), max_bytes(config, 0))?,
            ".jsonl, .ndjson, .json, .csv or .tsv, plain, .gz, .zst, .bz2 or .xz",
        )?,
        (SourceKind::Parquet, Some(place)) => {
            with_files(path, parquet::open(&place, fields(config, metadata))?, ".parquet")?
        }
        (SourceKind::Warc, Some(place)) => with_files(
            path,
            warc::open(&place, max_bytes(config, LARGEST_PAGE_TEXT), urls::filter(&config.urls)?, metadata)?,
            ".warc or .wet, plain, .gz or .zst",
        )?,
        (SourceKind::Papers, Some(place)) => with_files(
            path,
            papers::open(&place, max_bytes(config, LARGEST_PAGE_TEXT), metadata)?,
            ".tex, .nxml, .xml, .tar, .tgz or .gz",
        )?,
        (SourceKind::Wikipedia, Some(place)) => with_files(
            path,
            wikipedia::open(&place, max_bytes(config, LARGEST_PAGE_TEXT), metadata)?,
            ".xml, plain, .bz2, .gz, .zst or .xz",
        )?,
        (SourceKind::StackExchange, Some(place)) => {
            not_packed_posts(path)?;
            with_files(
                path,
                stack_exchange::open(&place, max_bytes(config, LARGEST_PAGE_TEXT), &config.dialogue)?,
                "Posts.xml (unpack the .7z of the dump)",
            )?
        }
        (SourceKind::Html, _) => {
            exists(path)?;
            let reading = reading(config, Pages::All, metadata);
            with_files(
                path,
                folder::open_pages(path, &config.exclude, config.follow_links, reading)?,
                ".html, .htm or .xhtml",
            )?
        }
        (SourceKind::File, _) => {
            file_exists(path)?;
            not_compressed(path)?;
            no_other_format(path)?;
            Arc::new(file::open(path, config.split.validation_fraction)?)
        }
        (SourceKind::Embedded, _) => Arc::new(embedded::open()),
        (_, None) | (SourceKind::Auto, _) => {
            return Err(wrong(path, "names no file or folder", "set corpus.path"));
        }
    })
}

/// How the files of a folder become documents.
fn reading(config: &CorpusConfig, pages: Pages, metadata: &MetadataColumns) -> Reading {
    let detect_encoding = config.clean.invalid_utf8 == InvalidUtf8::Detect;
    Reading {
        max_bytes: max_bytes(config, CleanConfig::LARGEST_DOCUMENT),
        max_code_bytes: max_bytes(config, 0),
        max_page_bytes: max_page_bytes(max_bytes(config, LARGEST_PAGE_TEXT)),
        pages,
        detect_encoding,
        metadata: metadata.clone(),
    }
}

/// Names of the fields of a document.
fn fields(config: &CorpusConfig, metadata: &MetadataColumns) -> FieldNames {
    FieldNames {
        text: config.text.clone(),
        url: config.url.clone(),
        date: config.date.clone(),
        metadata: metadata.clone(),
        embedding: embedding_field(config).into(),
        dialogue: config.dialogue.clone(),
        chats: ChatRows::of(config),
    }
}

/// The field that `corpus.dedup.semantic.column` names; empty where no method reads it.
fn embedding_field(config: &CorpusConfig) -> &str {
    if config.dedup.methods.contains(&Method::Semantic) { &config.dedup.semantic.column } else { "" }
}

/// Errors if the configuration names a field of embeddings and no source has fields.
fn check_embeddings(config: &CorpusConfig, kinds: &[&str]) -> Result<()> {
    let field = embedding_field(config);
    if field.is_empty() || kinds.iter().any(|kind| matches!(*kind, "jsonl" | "parquet")) {
        return Ok(());
    }
    Err(Error::Config(format!(
        "corpus.dedup.semantic.column = {field:?}: expected a source jsonl or parquet, whose documents have fields; found {}",
        kinds.join(", ")
    )))
}

/// The files at the configuration's path.
fn open_place(config: &CorpusConfig) -> Result<SourceLocation<'_>> {
    if !is_address(&config.path) {
        exists(Path::new(&config.path))?;
    }
    let is_file = |name: &str| by_name(name).is_some() || row_lines::holds_rows(name);
    SourceLocation::open(&config.path, &config.access, &config.exclude, config.follow_links, is_file)
}

/// Cargo's dependencies, else a stand-in with the reason.
fn without_path(config: &CorpusConfig, workspace: &Path) -> Arc<dyn Source> {
    let why = match open_cargo(config, workspace) {
        Ok(source) if source.listing().files > 0 => return Arc::new(source),
        Ok(_) => "the workspace has no dependency sources".into(),
        Err(Error::Cargo { problem, .. }) => problem,
        Err(error) => error.to_string(),
    };
    stand_in(python::open(max_bytes(config, 0)).ok().flatten(), &why)
}

/// Python's standard library where it holds enough text, else the embedded corpus with more of its tasks: a first run has a
/// validation split of at least 100,000 tokens.
fn stand_in(library: Option<folder::Files>, why: &str) -> Arc<dyn Source> {
    let said =
        |name: &str| Some(format!("{name} is read instead of the crates of a Cargo workspace ({why})"));
    match library.filter(|library| library.listing.bytes >= ENOUGH_BYTES) {
        Some(mut library) => {
            library.listing.fallback = said(&library.description);
            Arc::new(library)
        }
        None => {
            let mut source = embedded::open_enlarged();
            source.stands_in(said("the embedded corpus"));
            Arc::new(source)
        }
    }
}

/// Bytes of text from which a split of 5 %, that of the quickstart, has well over 100,000 tokens of about 3 bytes.
const ENOUGH_BYTES: u64 = 8_000_000;

fn open_cargo(config: &CorpusConfig, workspace: &Path) -> Result<folder::Files> {
    cargo::open(&cargo::Options {
        workspace,
        home: &config.cargo_home,
        members: config.workspace_members,
        target: &config.target,
        extensions: &config.extensions,
        exclude: &config.exclude,
        max_bytes: max_bytes(config, 0),
        follow_links: config.follow_links,
    })
}

/// Text of a page, an article or a thread up to which it is read where long texts are cut; its markup may be 16 times that.
const LARGEST_PAGE_TEXT: u64 = 512 << 10;

/// Bytes up to which a document is read: those that the rules keep, or `cut` where long texts are cut.
fn max_bytes(config: &CorpusConfig, cut: u64) -> u64 {
    let clean = &config.clean;
    if clean.enabled {
        clean.cuts().map_or(clean.max_bytes, |most| most.max(cut))
    } else {
        CleanConfig::LARGEST_DOCUMENT
    }
}

/// What a file of this name holds, if it is not just text.
fn by_name(name: &str) -> Option<SourceKind> {
    type IsOfKind = fn(&str) -> bool;
    let kinds: [(IsOfKind, SourceKind); 6] = [
        (jsonl::is_jsonl, SourceKind::Jsonl),
        (parquet::is_parquet, SourceKind::Parquet),
        (warc::is_warc, SourceKind::Warc),
        (wikipedia::is_dump, SourceKind::Wikipedia),
        (stack_exchange::is_posts, SourceKind::StackExchange),
        (papers::is_article, SourceKind::Papers),
    ];
    kinds.into_iter().find(|(is_it, _)| is_it(name)).map(|(_, kind)| kind)
}

/// What a file of this name is read as below a folder: JSON lines, Parquet, archives or pages by their own sources, text and
/// code by `folder`; `None` for names that no source reads unasked.
pub fn source_kind_of(name: &str) -> Option<SourceKind> {
    let extension =
        Path::new(name).extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let is_one_of = |list: &[&str]| list.contains(&extension.as_str());
    match by_name(name) {
        Some(kind) => Some(kind),
        None if row_lines::holds_rows(name) => Some(SourceKind::Jsonl),
        None if is_one_of(super::folder::PAGES) => Some(SourceKind::Html),
        None if is_one_of(super::folder::PROSE) || is_one_of(crate::rule::Kind::CODE) => {
            Some(SourceKind::Folder)
        }
        None => None,
    }
}

/// Kind of what a place holds, by the name of a file or the files of a folder.
fn kind_of(place: &SourceLocation<'_>) -> Result<SourceKind> {
    let names = place.names()?;
    if names.is_empty() && place.is_remote() {
        let hint = "check corpus.path and corpus.exclude; names are case-sensitive";
        return Err(wrong(place.path, "no objects have this prefix", hint));
    }
    // Archives below a folder are left out unless they are asked for: they may hold anything.
    let otherwise = match place.path.is_dir() {
        true => SourceKind::Folder,
        false if row_lines::holds_rows(&place.path.to_string_lossy()) => SourceKind::Jsonl,
        false if papers::is_archive(&place.path.to_string_lossy()) => SourceKind::Papers,
        false => SourceKind::File,
    };
    Ok(names.iter().find_map(|name| by_name(name)).unwrap_or(otherwise))
}

fn wrong(path: &Path, problem: &str, hint: &str) -> Error {
    Error::Source { path: path.to_path_buf(), problem: problem.into(), hint: hint.into() }
}

fn exists(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() || metadata.is_file() => Ok(()),
        Ok(_) => Err(wrong(
            path,
            "is a pipe, device or socket",
            "save its content to a file first, and set corpus.path to that",
        )),
        Err(cause) => Err(unreadable(path, &cause)),
    }
}

fn unreadable(path: &Path, cause: &std::io::Error) -> Error {
    let hint = "check corpus.path; a relative path is taken from the current directory";
    wrong(path, &format!("cannot be read: {cause}"), hint)
}

fn folder_exists(path: &Path) -> Result<()> {
    exists(path)?;
    if path.is_dir() {
        Ok(())
    } else {
        Err(wrong(path, "is a file, not a folder", "set corpus.source = \"file\", \"jsonl\" or \"parquet\""))
    }
}

fn file_exists(path: &Path) -> Result<()> {
    exists(path)?;
    if path.is_dir() {
        Err(wrong(path, "is a folder, not a file", "set corpus.source = \"folder\""))
    } else {
        Ok(())
    }
}

/// Refuses a single text that would have to be unpacked: it is cut by position, byte for byte.
fn not_compressed(path: &Path) -> Result<()> {
    let name = path.to_string_lossy();
    if inner_name(&name) == name {
        return Ok(());
    }
    let hint = "unpack it, or put it into a folder of its own and set corpus.path to that";
    Err(wrong(path, "is compressed, and a single text file must be plain UTF-8", hint))
}

/// Refuses a file of posts that is packed: answers are read at their places.
fn not_packed_posts(path: &Path) -> Result<()> {
    let name = path.to_string_lossy();
    if path.is_dir() || inner_name(&name) == name {
        return Ok(());
    }
    Err(wrong(
        path,
        "is compressed, and the reader needs random access to join answers with questions",
        "unpack it",
    ))
}

/// Refuses a file whose bytes are no UTF-8 text, by how it begins: PDF and UTF-16.
fn no_other_format(path: &Path) -> Result<()> {
    let mut head = Vec::new();
    let mut file = bessemer_durable::open_regular(path).map_err(Error::io("open", path))?;
    file.by_ref().take(PDF_BEGINNING.len() as u64).read_to_end(&mut head).map_err(Error::io("read", path))?;
    if head == PDF_BEGINNING {
        return Err(wrong(path, "is a PDF file, which is not supported", "convert it to text or HTML first"));
    }
    if head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) {
        let hint = "write it as UTF-8, or put it into a folder of its own and set corpus.path to that";
        return Err(wrong(path, "is in UTF-16, and a single text file must be plain UTF-8", hint));
    }
    Ok(())
}

/// The source, if it has files. `endings` are the names that it looks for.
fn with_files(path: &Path, source: impl Source + 'static, endings: &str) -> Result<Arc<dyn Source>> {
    if source.listing().files == 0 {
        let problem = format!("no file below it ends in {endings}");
        return Err(wrong(path, &problem, "check corpus.source and corpus.path"));
    }
    Ok(Arc::new(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_workspace_auto_takes_a_stand_in_and_reports_why() {
        let folder = tempfile::tempdir().unwrap();
        let source = without_path(&CorpusConfig::default(), folder.path());
        assert!(["python", "embedded"].contains(&source.listing().kind));
        let why = source.listing().fallback.as_deref().unwrap();
        assert!(why.ends_with("(there is no Cargo.toml)"), "{why}");
        let source = stand_in(None, "there is no Cargo.toml");
        assert_eq!(source.listing().kind, "embedded");
        assert!(source.listing().sources.len() > embedded::open().listing().sources.len());
        let why = source.listing().fallback.as_deref().unwrap();
        assert!(why.starts_with("the embedded corpus is read"), "{why}");
    }
}

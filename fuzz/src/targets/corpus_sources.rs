//! Papers, dumps of encyclopedias and forums, and chats through a whole build of a corpus; the first byte says which.

use bessemer_corpus_config::SourceKind;

const SOURCES: [(SourceKind, &str); 9] = [
    (SourceKind::Papers, "a.tex"),
    (SourceKind::Papers, "a.nxml"),
    (SourceKind::Papers, "a.tar"),
    (SourceKind::Papers, "a.tar.gz"),
    (SourceKind::Papers, "2401.00001.gz"),
    (SourceKind::Wikipedia, "pages-articles.xml"),
    (SourceKind::Wikipedia, "pages-articles.xml.bz2"),
    (SourceKind::StackExchange, "Posts.xml"),
    (SourceKind::Jsonl, "chats.jsonl"),
];

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    let (source, name) = SOURCES[usize::from(*kind) % SOURCES.len()];
    crate::build_corpus(source, name, data);
}

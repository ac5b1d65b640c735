//! Papers, encyclopedias, forums and chats through whole builds: what becomes a document, what is dropped and why.

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use bessemer_corpus::*;
use bessemer_corpus_config::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

pub(crate) const LATEX: &str = r"\documentclass{article}
\newcommand{\loss}{\mathcal{L}}
\title{Of Steel}
\begin{document}
\begin{abstract}Cheap steel~\cite{b}.\end{abstract}
\section{Method} % hidden
Air is blown through $\loss = 1$.
\input{parts/more}
\begin{figure}\caption{A converter.}\end{figure}
\bibliography{x}
\end{document}";

pub(crate) const JATS: &str = r#"<?xml version="1.0"?><!DOCTYPE article><article><front><article-meta><title-group>
<article-title>Of iron</article-title></title-group><abstract><p>Iron &amp; coke.</p></abstract></article-meta></front>
<body><sec><title>Method</title><p>It is <italic>smelted</italic>.</p></sec></body><back><ref-list><ref>x</ref></ref-list></back></article>"#;

pub(crate) const WIKIPEDIA: &str = "<mediawiki><siteinfo><namespaces><namespace key=\"6\">Datei</namespace></namespaces></siteinfo>
<page><title>Steel</title><ns>0</ns><id>1</id><revision><timestamp>2026-01-02T03:04:05Z</timestamp><text>{{Box}}'''Steel''' is an [[alloy]].\n[[Datei:a.jpg|x]]\n== See also ==\n* [[Iron]]</text></revision></page>
<page><title>Stahl</title><ns>0</ns><redirect title=\"Steel\" /><revision><text>#REDIRECT [[Steel]]</text></revision></page>
<page><title>Talk:Steel</title><ns>1</ns><revision><text>No.</text></revision></page>
<page><title>Broken</title><ns>0</ns><revision><text>a</revision></page>
<page><title>Iron</title><ns>0</ns><revision><text>'''Iron''' is a metal.</text></revision></page></mediawiki>";

pub(crate) const POSTS: &str = r#"<posts>
<row Id="1" PostTypeId="1" AcceptedAnswerId="3" Title="How hot?" Body="&lt;p&gt;Is it &lt;b&gt;hot&lt;/b&gt;?&lt;/p&gt;" CreationDate="2020-01-01T00:00:00" />
<row Id="2" PostTypeId="2" ParentId="1" Score="9" Body="&lt;p&gt;Very.&lt;/p&gt;" />
<row Id="3" PostTypeId="2" ParentId="1" Score="1" Body="&lt;p&gt;1600.&lt;/p&gt;" />
<row Id="4" PostTypeId="1" Title="Nobody?" Body="x" />
</posts>"#;

/// A tar archive of these files.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, bytes) in files {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        header[156] = b'0';
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend(header);
        out.extend(*bytes);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Documents as (id, text), dropped ones as (id, reason), in order.
type Found = (Vec<(String, String)>, Vec<(String, String)>);

fn build_of(mut config: CorpusConfig, path: &Path) -> Found {
    config.path = path.display().to_string();
    config.split.validation_fraction = 0.0;
    if config.chats.is_none() {
        config.clean.min_bytes = 0;
    }
    let out = TempDir::new().unwrap();
    let corpus = out.path().join("corpus");
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 2, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop };
    build(&config, &corpus, &context).unwrap();
    let reader = CorpusReader::open(&corpus).unwrap();
    let kept = reader.documents(Split::Train).map(|document| document.unwrap());
    let kept = kept.map(|document| (document.id, document.text)).collect();
    let dropped = reader.inspect(InspectFilter::default()).map(|row| row.unwrap());
    let dropped = dropped.map(|row| (row.id, row.reason.unwrap())).collect();
    (kept, dropped)
}

fn found(source: SourceKind, path: &Path) -> Found {
    build_of(CorpusConfig { source, ..CorpusConfig::default() }, path)
}

fn pair(id: &str, text: &str) -> (String, String) {
    (id.to_string(), text.to_string())
}

const LATEX_TEXT: &str = "Of Steel\n\nAbstract\n\nCheap steel.\n\nMethod\n\nAir is blown through $\\mathcal{L}= 1$. Iron burns.\n\nA converter.";
const JATS_TEXT: &str = "Of iron\n\nIron & coke.\n\nMethod\n\nIt is smelted.";

#[test]
fn papers_are_read_from_files_folders_and_archives_within_archives() {
    let submission = tar(&[
        ("main.tex", LATEX.as_bytes()),
        ("parts/more.tex", b"Iron burns."),
        ("figure.pdf", b"%PDF-1.5"),
    ]);
    let one = LATEX.replace(r"\input{parts/more}", "Iron burns.");
    let bulk = tar(&[
        ("2401/2401.00001.gz", &gzip(&submission)),
        ("2401/2401.00002.gz", &gzip(one.as_bytes())),
        ("2401/2401.00003.pdf", b"%PDF-1.5"),
        ("2401/2401.00004.gz", b"\x1f\x8b damaged"),
        ("2401/2401.00005.gz", &gzip(b"no document")),
    ]);
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("unpacked/parts")).unwrap();
    fs::write(root.join("unpacked/main.tex"), LATEX).unwrap();
    fs::write(root.join("unpacked/parts/more.tex"), "Iron burns.").unwrap();
    fs::write(root.join("a.tar.gz"), gzip(&submission)).unwrap();
    fs::write(root.join("arXiv_src_2401_001.tar"), &bulk).unwrap();
    fs::write(root.join("b.nxml"), JATS).unwrap();
    fs::write(root.join("c.xml"), "<html/>").unwrap();
    fs::write(root.join("d.tgz"), &gzip(&submission)[..200]).unwrap();
    let mut config = CorpusConfig { source: SourceKind::Papers, ..CorpusConfig::default() };
    config.clean.exact_dedup = false;
    let (kept, mut dropped) = build_of(config, root);
    assert_eq!(
        kept,
        [
            pair("a.tar.gz#1", LATEX_TEXT),
            pair("arXiv_src_2401_001.tar#1", LATEX_TEXT),
            pair("arXiv_src_2401_001.tar#2", LATEX_TEXT),
            pair("b.nxml", JATS_TEXT),
            pair("unpacked/main.tex", LATEX_TEXT),
        ]
    );
    dropped.sort();
    assert_eq!(
        dropped,
        [
            pair("arXiv_src_2401_001.tar#3", "truncated-input"),
            pair("arXiv_src_2401_001.tar#4", "no-document"),
            pair("arXiv_src_2401_001.tar#5", "pdf"),
            pair("c.xml", "no-document"),
            pair("d.tgz#1", "truncated-input"),
        ]
    );
}

#[test]
fn an_archive_above_the_size_of_a_morsel_gives_the_same_papers() {
    let padding = "% nothing but a comment\n".repeat(400_000);
    let large = format!("{padding}{}", LATEX.replace(r"\input{parts/more}", "Iron burns."));
    let archive = tar(&[
        ("1.gz", &gzip(large.as_bytes())),
        ("note.txt", &vec![b'x'; 9 << 20]),
        ("2.xml", JATS.as_bytes()),
    ]);
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.tar"), archive).unwrap();
    let (kept, _) = found(SourceKind::Papers, folder.path());
    // 10 MB of comments exceed what a paper may have by default.
    assert_eq!(kept, [pair("a.tar#2", JATS_TEXT)]);
    let mut config = CorpusConfig { source: SourceKind::Papers, ..CorpusConfig::default() };
    config.clean.max_bytes = 1 << 20;
    let (kept, dropped) = build_of(config, folder.path());
    assert_eq!((kept, dropped), (vec![pair("a.tar#1", LATEX_TEXT), pair("a.tar#2", JATS_TEXT)], vec![]));
}

#[test]
fn dumps_of_wikipedia_give_articles_and_count_what_is_none() {
    let folder = TempDir::new().unwrap();
    // As in a multistream dump, streams follow each other.
    let mut packed = Vec::new();
    let (first, rest) = WIKIPEDIA.split_at(WIKIPEDIA.find("<page><title>Stahl").unwrap());
    for part in [first, rest] {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(part.as_bytes()).unwrap();
        packed.extend(encoder.finish().unwrap());
    }
    let name = "testwiki-latest-pages-articles-multistream.xml.bz2";
    fs::write(folder.path().join(name), &packed).unwrap();
    let (kept, dropped) = found(SourceKind::Auto, folder.path());
    let id = |row: usize| format!("{name}#{row}");
    assert_eq!(kept, [pair(&id(1), "Steel\n\nSteel is an alloy."), pair(&id(5), "Iron\n\nIron is a metal.")]);
    assert_eq!(
        dropped,
        [pair(&id(2), "wiki-redirect"), pair(&id(3), "wiki-namespace"), pair(&id(4), "bad-xml")]
    );
    fs::write(folder.path().join(name), &packed[..packed.len() - 20]).unwrap();
    let (_, dropped) = found(SourceKind::Wikipedia, folder.path());
    assert_eq!(dropped.last().map(|(_, reason)| reason.as_str()), Some("truncated-input"));
}

#[test]
fn threads_and_chats_have_the_marks_that_the_configuration_names() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("Posts.xml"), POSTS).unwrap();
    let mut config = CorpusConfig::default();
    let (kept, dropped) = build_of(config.clone(), folder.path());
    assert_eq!(
        kept,
        [pair("Posts.xml#2", "Question: How hot?\n\nIs it hot?\n\nAnswer: 1600.\n\nAnswer: Very.")]
    );
    assert_eq!(dropped, [pair("Posts.xml#5", "no-answer")]);
    config.dialogue = DialogueConfig {
        question: "Q: ".into(),
        answer: "A: ".into(),
        user: "<|user|>\n".into(),
        assistant: "<|assistant|>\n".into(),
        separator: "\n".into(),
        end: "<|end|>".into(),
        answers: 1,
        ..DialogueConfig::default()
    };
    let (kept, _) = build_of(config.clone(), folder.path());
    assert_eq!(kept, [pair("Posts.xml#2", "Q: How hot?\n\nIs it hot?\nA: 1600.<|end|>")]);
    let chats = TempDir::new().unwrap();
    let lines = concat!(
        r#"{"conversations": [{"from": "human", "value": "Hot?"}, {"from": "gpt", "value": "Yes."}]}"#,
        "\n",
        r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "Cold?"}]}, {"role": "assistant", "content": "No."}]}"#,
        "\n",
        r#"{"messages": [{"role": "narrator", "content": "x"}]}"#,
        "\n",
        r#"{"text": "a text beside chats"}"#,
        "\n",
    );
    fs::write(chats.path().join("chats.jsonl"), lines).unwrap();
    let (kept, dropped) = build_of(config, chats.path());
    assert_eq!(
        kept,
        [
            pair("chats.jsonl#1", "<|user|>\nHot?\n<|assistant|>\nYes.<|end|>"),
            pair("chats.jsonl#2", "<|user|>\nCold?\n<|assistant|>\nNo.<|end|>"),
            pair("chats.jsonl#4", "a text beside chats"),
        ]
    );
    assert_eq!(dropped, [pair("chats.jsonl#3", "bad-dialogue")]);
}

/// Files that pyarrow has written, with the same rows as JSON lines.
#[test]
fn chats_of_parquet_files_are_those_of_json_lines() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for (name, chats, wrong, equal) in [("chats-messages", 30, 1, 1), ("chats-texts", 12, 0, 0)] {
        let of = |source: SourceKind, ending: &str| {
            let chats = Some(ChatsConfig::default());
            let config = CorpusConfig { source, chats, ..CorpusConfig::default() };
            let (mut kept, mut dropped) = build_of(config, &data.join(format!("{name}.{ending}")));
            // Names of rows have the name of the file.
            let named = kept.iter_mut().chain(&mut dropped);
            named.for_each(|(id, _)| *id = id.replace(&format!(".{ending}"), ""));
            (kept, dropped)
        };
        let (kept, dropped) = of(SourceKind::Parquet, "parquet");
        let count = |reason: &str| dropped.iter().filter(|(_, found)| found == reason).count();
        assert_eq!((kept.len(), count("bad-chat"), dropped.len()), (chats, wrong, wrong + equal), "{name}");
        assert_eq!((kept, dropped), of(SourceKind::Jsonl, "jsonl"), "{name}");
    }
    let folder = TempDir::new().unwrap();
    let batch = RecordBatch::try_from_iter([("text", Arc::new(StringArray::from(vec!["a"])) as ArrayRef)]);
    let (batch, path) = (batch.unwrap(), folder.path().join("a.parquet"));
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let config = CorpusConfig {
        source: SourceKind::Parquet,
        path: path.display().to_string(),
        chats: Some(ChatsConfig::default()),
        ..CorpusConfig::default()
    };
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 1, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop };
    let refused = build(&config, &folder.path().join("corpus"), &context).map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("wanted a column of chats (messages, conversations")
            && refused.contains("text (Utf8)"),
        "{refused}"
    );
}

//! Digests of what corpora hold, by the crate that decides it. A digest that changes under the same versions is a fault:
//! finished corpora of the old output would be reused.
//!
//! After a version was raised: `BESSEMER_GOLDEN=write cargo test -p bessemer-corpus --test integration outputs`.

use crate::golden::rows;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use bessemer_corpus::*;
use bessemer_corpus_config::dedup::Method;
use bessemer_corpus_config::privacy::PhoneRule;
use bessemer_corpus_config::scores::{ScoreConfig, ScoreKind};
use bessemer_corpus_config::*;
use bessemer_web::warc::{Compression, WarcWriter};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_128;

/// Digest of the corpus of a configuration over the files of `input`.
fn digest(mut config: CorpusConfig, input: &Path) -> String {
    config.path = input.display().to_string();
    config.split.validation_fraction = 0.0;
    let out = TempDir::new().unwrap();
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 2, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop };
    build(&config, &out.path().join("corpus"), &context).unwrap();
    rows(&out.path().join("corpus")) + &scores(&out.path().join("corpus"), &config)
}

/// Values of the score columns, to four digits: the last ones may differ between processors.
fn scores(corpus: &Path, config: &CorpusConfig) -> String {
    let mut text = String::new();
    if config.scores.list.is_empty() {
        return text;
    }
    let file = fs::File::open(corpus.join("documents-train-00000.parquet")).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    for batch in reader {
        let batch: RecordBatch = batch.unwrap();
        for score in &config.scores.list {
            let column = batch.column_by_name(&score.name).unwrap();
            match column.as_primitive_opt::<Float64Type>() {
                Some(values) => values
                    .iter()
                    .for_each(|value| write!(text, "{:.3e} ", value.unwrap_or(f64::NAN)).unwrap()),
                None => write!(text, "{column:?} ").unwrap(),
            }
        }
    }
    format!("{:032x}", xxh3_128(text.as_bytes()))
}

/// A model of the tests of `score`.
fn model(name: &str) -> String {
    format!("{}/../score/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

const HEAD: &str =
    "<html><head><title>Of steel</title></head><body><nav><a href='/'>Home</a> <a href='/a'>All</a></nav>";

/// Pages of several kinds: (address, type, body).
fn pages() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let prose =
        |words: &str| format!("The {words} stood by the river, and cheap steel came out of it. ").repeat(6);
    let article = format!(
        "{HEAD}<article><h1>Steel</h1><p>{}</p><p>{}</p><ul><li>ore</li><li>coke</li></ul></article><footer>© 1856</footer>",
        prose("furnace"),
        prose("converter")
    );
    let technical = format!(
        "{HEAD}<main><h2>Usage</h2><p>{}</p><pre><code>fn main() {{\n    pour();\n}}</code></pre>\
         <table><tr><th>key</th><th>value</th></tr><tr><td>heat</td><td>1600</td></tr></table></main>",
        prose("program")
    );
    let latin = article.replace("cheap", "ch\u{e9}ap").chars().map(|c| c as u8).collect();
    let mojibake = article.replace("cheap", "chÃ©ap").into_bytes();
    vec![
        ("http://example.com/article", "text/html; charset=utf-8", article.into_bytes()),
        ("http://example.com/usage", "text/html", technical.into_bytes()),
        ("http://example.com/latin", "text/html; charset=iso-8859-1", latin),
        ("http://example.com/mojibake", "text/html; charset=utf-8", mojibake),
        ("http://example.com/plain", "text/plain", prose("mill").into_bytes()),
        ("http://example.com/picture", "image/png", b"\x89PNG".to_vec()),
        ("http://blocked.com/page", "text/html", HEAD.as_bytes().to_vec()),
    ]
}

fn web(folder: &Path) -> String {
    let mut writer = WarcWriter::new(Vec::new(), Compression::Plain);
    for (url, kind, body) in pages() {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n");
        writer.response(url, &[head.as_bytes(), &body].concat()).unwrap();
    }
    fs::write(folder.join("pages.warc"), writer.into_inner()).unwrap();
    let mut config = CorpusConfig { source: SourceKind::Warc, ..CorpusConfig::default() };
    config.urls.domains = vec!["blocked.com".into()];
    digest(config, folder)
}

/// JSON lines of these texts.
fn lines(folder: &Path, texts: impl IntoIterator<Item = String>) -> CorpusConfig {
    let line = |text: String| {
        serde_json::json!({"text": text, "url": "https://example.com/2021/05/03/x"}).to_string()
    };
    let text: Vec<String> = texts.into_iter().map(line).collect();
    fs::write(folder.join("texts.jsonl"), text.join("\n")).unwrap();
    CorpusConfig { source: SourceKind::Jsonl, ..CorpusConfig::default() }
}

/// Text number `index` of a family: texts of a family share all but a few words.
fn prose(family: u64, index: u64) -> String {
    const WORDS: [&str; 12] =
        ["ore", "coke", "lime", "air", "iron", "steel", "rail", "mill", "river", "bridge", "the", "and"];
    let mut state = family.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::new();
    for number in 0..160 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let own = number % 53 == index * 7;
        text += if own { "ingot" } else { WORDS[(state >> 33) as usize % WORDS.len()] };
        text += if number % 16 == 15 { ".\n" } else { " " };
    }
    text
}

fn dedup(folder: &Path) -> String {
    let texts = (0..60).map(|number| match number % 4 {
        0 => prose(number, 0),
        1 => prose(number - 1, 1),
        2 => prose(number - 2, 0),
        _ => format!("{}{}", prose(number + 100, 0), prose(number - 3, 0)),
    });
    let plain = lines(folder, texts);
    let of = |method| {
        let mut config = plain.clone();
        config.dedup.methods = vec![method];
        config.dedup.bloom.expected = 100_000;
        digest(config, folder)
    };
    let methods = [
        Method::Exact,
        Method::Minhash,
        Method::Simhash,
        Method::Bloom,
        Method::Semantic,
        Method::Substring,
        Method::Lines,
    ];
    methods.into_iter().map(of).collect()
}

fn privacy(folder: &Path) -> String {
    let texts = [
        "Write to jane.doe@mail.de or call +49 30 901820, from 8.8.8.8 or 2600:1f18::1, and not from 10.0.0.1.",
        "Pay with 4111 1111 1111 1111 or from DE89 3704 0044 0532 0130 00; the key is AKIAIOSFODNN7EXAMPLQ.",
        "api_key = \"9aF3kL0pQ7zX2vB8nM4tR6yU1wE5sD3g\" and password = \"hunter2\" stand in a file that nobody should read.",
        "Version 1.2.3.4 of the program, call 555 0100, card 1234 5678 9012 3456: none of these is anybody's.",
    ];
    let mut config = lines(folder, texts.map(|text| text.repeat(2)));
    (config.privacy.ipv6, config.privacy.cards, config.privacy.ibans, config.privacy.secrets) =
        (true, true, true, true);
    config.privacy.phones = PhoneRule::International;
    digest(config, folder)
}

fn rules(_: &Path) -> String {
    let documents = format!("{}/../rules/tests/fineweb_documents.jsonl", env!("CARGO_MANIFEST_DIR"));
    let of = |name: &str| {
        let mut config = CorpusConfig { source: SourceKind::Jsonl, ..CorpusConfig::default() };
        config.rules.profiles = vec![name.into()];
        digest(config, Path::new(&documents))
    };
    ["c4", "dolma", "fineweb", "fineweb-quality", "gopher-quality", "gopher-repetition", "refinedweb", "rpv2"]
        .into_iter()
        .map(of)
        .collect()
}

fn score(folder: &Path) -> String {
    let english =
        "The furnace stood by the river, and people said that the steel which came out of it was cheap. ";
    let german =
        "Der Ofen stand am Fluss, und die Leute sagten, dass der Stahl, der daraus kam, billig war. ";
    let texts = (0..8).map(|number| [english, german][number % 2].repeat(2 + number / 3));
    let mut config = lines(folder, texts);
    let score = |name: &str, kind: ScoreKind, file: &str| ScoreConfig {
        name: name.into(),
        kind,
        model: if file.is_empty() { String::new() } else { model(file) },
        label: "__label__en".into(),
        ..ScoreConfig::default()
    };
    config.scores.list = vec![
        score("lang", ScoreKind::Language, ""),
        score("english", ScoreKind::Fasttext, "fasttext/softmax.bin"),
        score("perplexity", ScoreKind::Perplexity, "kenlm/trie.bin"),
        score("domain", ScoreKind::Domain, ""),
        score("date", ScoreKind::Date, ""),
    ];
    digest(config, folder)
}

fn text(folder: &Path) -> String {
    // Words and sentences in scripts of several kinds, through the measures that count them.
    let texts = [
        "\u{4e00}\u{53ea}\u{732b}\u{5750}\u{5728}\u{5783}\u{573e}\u{4e0a}\u{3002}".repeat(20),
        "Die Straße, der Fluß: naïve café, e\u{301}cole; don't stop. Mr. Smith said \"no\"! ".repeat(4),
        "สวัสดีชาวโลก ".repeat(20),
        "l'été\u{a0}— “quotes” … 1,000.5 % of words_like_this and CamelCase\r\n\r\n\tand tabs ".repeat(4),
    ];
    // What is dropped counts too, with the measured value.
    let mut config = lines(folder, texts.into_iter().chain([prose(1, 0), prose(2, 0)]));
    config.dedup.methods = vec![Method::Exact, Method::Minhash];
    config.rules.profiles = vec!["gopher-quality".into()];
    digest(config, folder)
}

fn markup(folder: &Path) -> String {
    let of = |source, name: &str, text: &str| {
        let own = folder.join(name.replace('.', "-"));
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join(name), text).unwrap();
        let mut config = CorpusConfig { source, ..CorpusConfig::default() };
        config.clean.min_bytes = 0;
        digest(config, &own)
    };
    of(SourceKind::Papers, "a.tex", crate::papers::LATEX)
        + &of(SourceKind::Papers, "a.nxml", crate::papers::JATS)
        + &of(SourceKind::Wikipedia, "pages-articles.xml", crate::papers::WIKIPEDIA)
        + &of(SourceKind::StackExchange, "Posts.xml", crate::papers::POSTS)
}

fn corpus(folder: &Path) -> String {
    for (name, content) in [
        ("a.rs", "// A comment\nfn main() {\n    println!(\"text\");\n}\n".repeat(8).into_bytes()),
        ("b.md", "# Title\r\n\r\nSome words in a file of text.\r\n".repeat(8).into_bytes()),
        ("c.txt", b"caf\xe9 au lait and other words that are long enough to be kept in a corpus of texts, caf\xe9\n".repeat(4)),
        ("d.txt", b"// Code generated by a program. DO NOT EDIT.\n".repeat(9)),
        ("e.txt", b"\0\x01\x02".repeat(99)),
        ("f.py", b"x = [1, 2, 3, 4, 5, 6, 7, 8, 9]\n".repeat(40)),
    ] {
        fs::write(folder.join(name), content).unwrap();
    }
    digest(CorpusConfig { source: SourceKind::Folder, ..CorpusConfig::default() }, folder)
}

/// Decides the documents of a test corpus, named by the crate that it is about.
type Case = (&'static str, fn(&Path) -> String);

#[test]
fn an_output_changes_only_under_another_version() {
    let cases: [Case; 8] = [
        ("corpus", corpus),
        ("dedup", dedup),
        ("markup", markup),
        ("privacy", privacy),
        ("rules", rules),
        ("score", score),
        ("text", text),
        ("web", web),
    ];
    let mut found = String::new();
    for ((name, case), (krate, version)) in cases.into_iter().zip(VERSIONS) {
        assert_eq!(name, krate, "every version has its case");
        let folder = TempDir::new().unwrap();
        let digest = xxh3_128(case(folder.path()).as_bytes());
        writeln!(found, "{krate} {version} {digest:032x}").unwrap();
    }
    let path = format!("{}/tests/data/outputs.txt", env!("CARGO_MANIFEST_DIR"));
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    if wanted == found {
        return;
    }
    // The version of any crate may have been raised: those above build on those below.
    let versions = |text: &str| -> Vec<String> {
        let versions = text.lines().filter_map(|line| line.rsplit_once(' '));
        versions.map(|(version, _)| version.to_string()).collect()
    };
    assert_ne!(
        versions(&wanted),
        versions(&found),
        "documents of corpora changed under the same versions: raise VERSION of the crate that changed them\nwanted:\n{wanted}found:\n{found}"
    );
    assert_eq!(
        std::env::var("BESSEMER_GOLDEN").as_deref(),
        Ok("write"),
        "a version was raised: write the digests anew, as the head of this file says\nwanted:\n{wanted}found:\n{found}"
    );
    fs::write(&path, found).unwrap();
}

#[test]
fn a_list_that_a_profile_names_counts_with_its_content() {
    let folder = TempDir::new().unwrap();
    let (list, profile) = (folder.path().join("words.txt"), folder.path().join("own.toml"));
    fs::write(
        &profile,
        "name = \"own\"\n[[step]]\nrule = \"listed-words\"\nlist-file = \"words.txt\"\nmax = 0\nlabel = \"listed\"\n",
    )
    .unwrap();
    let input = TempDir::new().unwrap();
    let mut config = lines(input.path(), (0..6).map(|number| prose(number, 0)));
    config.path = input.path().display().to_string();
    config.rules.profiles = vec![profile.display().to_string()];
    let out = TempDir::new().unwrap();
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 2, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop };
    let built = |word: &str| {
        fs::write(&list, word).unwrap();
        build(&config, &out.path().join("corpus"), &context)
    };
    let first = built("nowhere\n").unwrap();
    assert_eq!((first.summary.kept.documents, first.reused), (6, false));
    assert!(built("nowhere\n").unwrap().reused);
    let message = built("bridge\n").unwrap_err().to_string();
    assert!(message.contains("listed 6"), "{message}");
}

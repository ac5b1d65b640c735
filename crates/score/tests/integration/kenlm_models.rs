//! Language models: files that KenLM built are scored here as it scores them, and it reads what is written here.
//!
//! small.txt is the text; small.arpa is estimated from it here (`BESSEMER_GOLDEN=write cargo test -p bessemer-score`
//! makes it anew); the binaries and scores.json come from golden/score/kenlm_models.py, which runs KenLM's programs.
//! lmplz.arpa is what KenLM's trainer makes of the text (golden/score/lmplz.py). Two tests run only where something is that stays
//! out of this tree: `BESSEMER_PYTHON` names a Python with the package kenlm, `BESSEMER_KENLM` a folder with KenLM's sources (LGPL),
//! whose own model and test they take.

#![allow(clippy::approx_constant, reason = "numbers of KenLM's test model, no constants of mathematics")]

use bessemer_score::kenlm::{EstimateConfig, LanguageModel, estimate};
use std::path::{Path, PathBuf};
use std::process::Command;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kenlm").join(name)
}

/// One sentence with log10, matched length and unknown flag of each word and of the end.
#[derive(serde::Deserialize)]
struct Scored {
    sentence: String,
    words: Vec<(f64, usize, bool)>,
}

fn same(model: &LanguageModel, scored: &[Scored], name: &str) {
    assert!(!scored.is_empty());
    for Scored { sentence, words } in scored {
        let mut state = model.begin();
        let spoken: Vec<&str> = sentence.split_whitespace().chain(["</s>"]).collect();
        assert_eq!(spoken.len(), words.len(), "{name}: {sentence:?}");
        for (word, wanted) in spoken.iter().zip(words) {
            let found = model.score_word(&mut state, word);
            assert!(
                (found.log10 as f64 - wanted.0).abs() < 1e-6,
                "{name}: {word} of {sentence:?}: {found:?}, {wanted:?}"
            );
            assert_eq!(
                (found.matched, found.unknown),
                (wanted.1, wanted.2),
                "{name}: {word} of {sentence:?}"
            );
        }
        let total: f64 = words.iter().map(|w| w.0).sum();
        let (log10, count) = model.score_sentence(sentence);
        assert_eq!(count, words.len() as u64);
        assert!((log10 - total).abs() < 1e-5, "{name}: {sentence:?}");
        assert!((model.perplexity(sentence) - 10f64.powf(-total / count as f64)).abs() < 1e-3);
    }
}

fn estimated_arpa(folder: &Path) -> Vec<u8> {
    let text = std::fs::read_to_string(data("small.txt")).expect("text");
    let config = EstimateConfig { order: 4, memory: 1 << 20, folder: folder.to_path_buf(), fallback: true };
    let mut model = estimate(&config, text.lines().map(|l| Ok(l.to_owned()))).expect("estimates");
    let mut bytes = Vec::new();
    model.write_arpa(&mut bytes).expect("a vector takes all");
    bytes
}

#[test]
fn the_small_model_is_the_one_in_the_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let bytes = estimated_arpa(folder.path());
    if std::env::var_os("BESSEMER_GOLDEN").is_some_and(|v| v == "write") {
        std::fs::write(data("small.arpa"), &bytes).expect("written");
    }
    assert!(bytes == std::fs::read(data("small.arpa")).expect("golden file"));
}

/// N-grams with log10 probability and back-off weight.
fn ngrams(arpa: &str) -> std::collections::BTreeMap<&str, (f64, f64)> {
    let mut found = std::collections::BTreeMap::new();
    for line in arpa.lines().filter(|line| line.contains('\t')) {
        let mut parts = line.split('\t');
        let number = |text: Option<&str>| text.map_or(0.0, |text| text.parse().expect("a number"));
        let log10 = number(parts.next());
        let ngram = parts.next().expect("an n-gram");
        assert!(found.insert(ngram, (log10, number(parts.next()))).is_none(), "{ngram} twice");
    }
    found
}

#[test]
fn estimates_are_those_of_lmplz() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let text = std::fs::read_to_string(data("small.txt")).expect("text") + "aardvark\n";
    let config =
        EstimateConfig { order: 4, memory: 1 << 20, folder: folder.path().to_path_buf(), fallback: true };
    let mut model = estimate(&config, text.lines().map(|l| Ok(l.to_owned()))).expect("estimates");
    // Unigrams of so small a text give no discounts of their own; the longer n-grams do.
    let fallbacks: Vec<bool> = model.discounts().map(|(_, fallback)| fallback).collect();
    assert_eq!(fallbacks, [true, false, false, false]);
    let mut bytes = Vec::new();
    model.write_arpa(&mut bytes).expect("a vector takes all");
    let ours = String::from_utf8(bytes).expect("text");
    let theirs = std::fs::read_to_string(data("lmplz.arpa")).expect("golden file");
    let (ours, theirs) = (ngrams(&ours), ngrams(&theirs));
    assert_eq!(ours.len(), 834);
    assert!(ours.keys().eq(theirs.keys()), "the same n-grams");
    for (ngram, (log10, backoff)) in &ours {
        let (wanted, wanted_backoff) = theirs[ngram];
        // lmplz computes in f32 and writes eight digits.
        assert!((log10 - wanted).abs() < 1e-6, "{ngram}: {log10}, {wanted}");
        assert!((backoff - wanted_backoff).abs() < 1e-6, "{ngram}: {backoff}, {wanted_backoff}");
    }
}

/// What KenLM's own tests (lm/model_test.cc) say about its lm/test.arpa: word, matched length, log10.
const CONTINUATION: &[(&str, usize, f64)] = &[
    ("looking", 2, -0.484652),
    ("on", 3, -0.348837),
    ("a", 4, -0.0155266),
    ("little", 5, -0.00306122),
    ("the", 1, -4.04005),
    ("biarritz", 1, -1.9889),
    ("not_found", 1, -2.29666),
    ("more", 1, -1.20632 - 20.0),
    (".", 2, -0.51363),
    ("</s>", 3, -0.0191651),
];
const FROM_NOTHING: &[&[(&str, usize, f64)]] = &[
    &[
        ("also", 1, -1.687872),
        ("would", 2, -2.0),
        ("consider", 3, -3.0),
        ("higher", 4, -4.0),
        ("looking", 5, -5.0),
    ],
    &[
        ("also", 1, -1.687872),
        ("would", 2, -2.0),
        ("consider", 3, -3.0),
        ("not_found", 1, -1.995635 - 7.0 - 0.30103),
    ],
    &[("higher", 1, -1.509559), ("looking", 2, -1.285941 - 0.30103), ("not_found", 1, -1.995635 - 0.4771212)],
    &[("higher", 1, -1.509559), ("looking", 2, -1.285941 - 0.30103), ("consider", 1, -1.687872 - 0.4771212)],
    &[
        ("would", 1, -1.687872),
        ("consider", 2, -1.687872 - 0.30103),
        ("higher", 3, -1.509559 - 0.30103),
        ("looking", 4, -1.285941 - 0.30103),
    ],
    &[("not_found", 1, -1.995635), ("not_found2", 2, -15.0), ("not_found3", 2, -15.0 - 2.0)],
    &[("not_found", 1, -1.995635), ("however", 2, -4.0), ("not_found3", 3, -6.0)],
    &[("baz", 1, -6.535897)],
    &[("foo", 1, -3.141592), ("bar", 2, -6.0), ("bar", 1, -2.718281 + 3.0)],
    &[("to", 1, -1.687872), ("look", 2, -0.2922095), ("a", 3, -7.0)],
];

#[test]
fn the_test_model_of_kenlm_scores_as_its_tests_say() {
    let Some(sources) = std::env::var_os("BESSEMER_KENLM") else {
        println!("skipped: set BESSEMER_KENLM to a folder with the sources of KenLM");
        return;
    };
    let model = LanguageModel::open(&Path::new(&sources).join("lm/test.arpa")).expect("reads");
    assert_eq!(model.order(), 5);
    let begin = [(model.begin(), CONTINUATION)];
    for (mut state, words) in begin.into_iter().chain(FROM_NOTHING.iter().map(|words| (model.null(), *words)))
    {
        for &(word, matched, log10) in words {
            let found = model.score_word(&mut state, word);
            assert_eq!(found.matched, matched, "{word} of {words:?}");
            assert!(
                (f64::from(found.log10) - log10).abs() < 1e-5 * log10.abs().max(1.0),
                "{word} of {words:?}: {found:?}"
            );
        }
    }
}

#[test]
fn binaries_of_kenlm_score_as_there() {
    let text = std::fs::read_to_string(data("scores.json")).expect("golden file");
    let expected: std::collections::BTreeMap<String, Vec<Scored>> =
        serde_json::from_str(&text).expect("golden file");
    assert_eq!(expected.len(), 6);
    for (name, scored) in &expected {
        same(&LanguageModel::open(&data(name)).expect("a model of KenLM"), scored, name);
    }
}

#[test]
fn a_probing_binary_is_written_as_kenlm_writes_it() {
    let model = LanguageModel::open(&data("small.arpa")).expect("reads");
    let mut ours = Vec::new();
    model.write_binary(&mut ours).expect("a vector takes all");
    let theirs = std::fs::read(data("probing.bin")).expect("golden file");
    let differ: Vec<usize> = (0..ours.len().min(theirs.len())).filter(|&i| ours[i] != theirs[i]).collect();
    assert!(
        ours.len() == theirs.len() && differ.is_empty(),
        "{} and {} bytes: {differ:?}",
        ours.len(),
        theirs.len()
    );
    // A binary that was read can be written again; a trie cannot.
    let read = LanguageModel::read_binary(&ours[..], ours.len() as u64, "ours").expect("reads");
    let mut again = Vec::new();
    read.write_binary(&mut again).expect("a vector takes all");
    assert!(again == ours);
    assert!(LanguageModel::open(&data("trie.bin")).expect("reads").write_binary(&mut Vec::new()).is_err());
}

#[test]
fn truncated_and_changed_files_are_refused_or_usable() {
    for name in ["probing.bin", "trie.bin", "quantised.bin", "array.bin", "small.arpa"] {
        let bytes = std::fs::read(data(name)).expect("golden file");
        let read = |bytes: &[u8]| {
            if name.ends_with("arpa") {
                LanguageModel::read_arpa(bytes, bytes.len() as u64, name)
            } else {
                LanguageModel::read_binary(bytes, bytes.len() as u64, name)
            }
        };
        let words = b"<unk>\0<s>\0".len();
        for cut in (0..bytes.len() * 9 / 10 - words).step_by(101) {
            assert!(read(&bytes[..cut]).is_err(), "{name} cut to {cut} bytes");
        }
        for at in (0..250).chain((250..bytes.len()).step_by(197)) {
            for value in [0, 0x31, 0x7f, 0x80, 0xff] {
                let mut bad = bytes.clone();
                bad[at] = value;
                if let Ok(model) = read(&bad) {
                    let (log10, _) = model.score_sentence("the cat likes nobody in the city again");
                    assert!(!log10.is_nan(), "{name}, byte {at} = {value}");
                }
            }
        }
    }
}

#[test]
fn arpa_files_that_break_the_format_are_told_where() {
    let head =
        "\\data\\\nngram 1=3\nngram 2=1\n\n\\1-grams:\n-1\t<s>\t-0.5\n-1\t</s>\n-1\ta\t0\n\n\\2-grams:\n";
    let tail = "\n\\end\\\n";
    let read = |text: &str| LanguageModel::read_arpa(text.as_bytes(), text.len() as u64, "m.arpa");
    assert!(read(&format!("{head}-0.3\t<s> a\n{tail}")).is_ok());
    for (bigram, told) in [
        ("-0.3\t<s> b", "not among the unigrams"),
        ("0.3\t<s> a", "above 0"),
        ("x\t<s> a", "finite number"),
        ("NaN\t<s> a", "finite number"),
        ("-0.3\t<s>", "wanted 2 words"),
        ("-0.3\t<s> a 0 0", "more than 2 words"),
        ("-0.3\t<s> a\n-0.3\ta a", "more n-grams"),
    ] {
        let error = read(&format!("{head}{bigram}\n{tail}")).expect_err(bigram).to_string();
        assert!(error.contains(told) && error.contains("m.arpa, line 1"), "{error}");
    }
    assert!(
        read(&head.replace("2=1", "2=99999999999")).expect_err("absurd").to_string().contains("do not fit")
    );
    assert!(read("hello").expect_err("no ARPA").to_string().contains("\\data\\"));
}

#[test]
fn a_missing_end_of_an_ngram_is_filled_in() {
    // A pruned model: "a b c" without "b c", which is then b's weight and c's probability.
    let text = "\\data\\\nngram 1=5\nngram 2=2\nngram 3=1\n\n\\1-grams:\n-1\t<s>\t-0.5\n-1\t</s>\n-1\ta\t-0.2\n-1.5\tb\t-0.3\n-2\tc\t-0.1\n\n\
                \\2-grams:\n-0.4\ta b\t-0.25\n-0.6\t<s> a\t-0.15\n\n\\3-grams:\n-0.1\ta b c\n\n\\end\\\n";
    let model = LanguageModel::read_arpa(text.as_bytes(), text.len() as u64, "pruned").expect("reads");
    let mut state = model.null();
    model.score_word(&mut state, "a");
    model.score_word(&mut state, "b");
    let found = model.score_word(&mut state, "c");
    assert_eq!((found.log10, found.matched), (-0.1, 3));
    let mut state = model.null();
    model.score_word(&mut state, "b");
    let found = model.score_word(&mut state, "c");
    assert!((found.log10 - (-0.3 - 2.0)).abs() < 1e-6, "{found:?}");
}

const PEER: &str = r#"
import json, sys, kenlm
model = kenlm.Model(sys.argv[1])
rows = [{"sentence": s, "words": list(model.full_scores(s))} for s in sys.stdin.read().split("\n")]
print(json.dumps(rows))
"#;

#[test]
fn kenlm_reads_what_is_written_here() {
    let Some(python) = std::env::var_os("BESSEMER_PYTHON") else {
        println!("skipped: set BESSEMER_PYTHON to a Python with kenlm");
        return;
    };
    let folder = tempfile::tempdir().expect("temporary folder");
    let arpa = estimated_arpa(folder.path());
    let model = LanguageModel::read_arpa(&arpa[..], arpa.len() as u64, "ours").expect("reads");
    let mut binary = Vec::new();
    model.write_binary(&mut binary).expect("a vector takes all");
    for (name, bytes) in [("ours.arpa", &arpa), ("ours.bin", &binary)] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        let input = folder.path().join("input");
        std::fs::write(&input, "the cat likes a river\nnobody zzz the city today\n\ndog dog dog the sea")
            .expect("written");
        let stdin = std::fs::File::open(&input).expect("there");
        let output =
            Command::new(&python).args(["-c", PEER]).arg(&path).stdin(stdin).output().expect("python runs");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("No module named 'kenlm'"), "{said}");
            println!("skipped: this Python has no kenlm");
            return;
        }
        let scored: Vec<Scored> = serde_json::from_slice(&output.stdout).expect("JSON");
        same(&model, &scored, name);
    }
}

//! Language models: files that KenLM built are scored here as it scores them, and it reads what is written here.
//!
//! small.txt is the text; small.arpa is estimated from it here (`BESSEMER_GOLDEN=write cargo test -p bessemer-score`
//! makes it anew); the binaries and scores.json come from golden/score/kenlm_models.py, which runs KenLM's programs.
//! lmplz.arpa is what KenLM's trainer makes of the text (golden/score/lmplz.py). The
//! test whose name begins with `oracle` compares with KenLM itself.

use bessemer_score::kenlm::{EstimateConfig, LanguageModel, State, estimate};
use std::path::{Path, PathBuf};
use std::process::Command;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kenlm").join(name)
}

/// One sentence with log10, matched length and unknown flag of each word and of the end.
#[derive(serde::Deserialize)]
struct Scored {
    sentence: String,
    /// As a sentence, with its end.
    words: Vec<(f64, usize, bool)>,
    /// As words without a history before them; empty where this was not asked for.
    #[serde(default)]
    alone: Vec<(f64, usize, bool)>,
}

fn same(model: &LanguageModel, scored: &[Scored], name: &str) {
    assert!(!scored.is_empty());
    for Scored { sentence, words, alone } in scored {
        let spoken: Vec<&str> = sentence.split_whitespace().chain(["</s>"]).collect();
        assert_eq!(spoken.len(), words.len(), "{name}: {sentence:?}");
        let same_words = |state: &mut State, wanted: &[(f64, usize, bool)]| {
            for (word, wanted) in spoken.iter().zip(wanted) {
                let found = model.score_word(state, word);
                assert!(
                    (found.log10 as f64 - wanted.0).abs() < 1e-6 * wanted.0.abs().max(1.0),
                    "{name}: {word} of {sentence:?}: {found:?}, {wanted:?}"
                );
                assert_eq!(
                    (found.matched, found.unknown),
                    (wanted.1, wanted.2),
                    "{name}: {word} of {sentence:?}"
                );
            }
        };
        same_words(&mut model.begin(), words);
        same_words(&mut model.null(), alone);
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
    let model = estimate(&config, text.lines().map(|l| Ok(l.to_owned()))).expect("estimates");
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
    let model = estimate(&config, text.lines().map(|l| Ok(l.to_owned()))).expect("estimates");
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

/// Sentences of words that the text has and of words that it has not, in every order.
fn sentences() -> Vec<String> {
    let text = std::fs::read_to_string(data("small.txt")).expect("text");
    let words: Vec<&str> = text.split_whitespace().chain(["zzz", "nobody"]).collect();
    let mut state = 5u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut sentences: Vec<String> = text.lines().take(50).map(str::to_string).collect();
    for length in 0..150 {
        // Runs of the text with a word of another place between them: long matches, and back-offs of every length.
        let mut sentence: Vec<&str> = Vec::new();
        while sentence.len() < length % 12 {
            let from = next(words.len() - 6);
            sentence.extend(&words[from..from + 1 + next(6)]);
        }
        sentences.push(sentence.join(" "));
    }
    sentences
}

const PEER: &str = r#"
import json, sys, kenlm
model = kenlm.Model(sys.argv[1])
def alone(sentence):
    before, after = kenlm.State(), kenlm.State()
    model.NullContextWrite(before)
    for word in sentence.split():
        found = model.BaseFullScore(before, word, after)
        yield found.log_prob, found.ngram_length, found.oov
        before, after = after, before
rows = [{"sentence": s, "words": list(model.full_scores(s)), "alone": list(alone(s))} for s in sys.stdin.read().split("\n")]
print(json.dumps(rows))
"#;

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_kenlm_reads_what_is_written_here() {
    let python = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let folder = tempfile::tempdir().expect("temporary folder");
    let arpa = estimated_arpa(folder.path());
    let model = LanguageModel::read_arpa(&arpa[..], arpa.len() as u64, "ours").expect("reads");
    let mut binary = Vec::new();
    model.write_binary(&mut binary).expect("a vector takes all");
    for (name, bytes) in [("ours.arpa", &arpa), ("ours.bin", &binary)] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        let input = folder.path().join("input");
        std::fs::write(&input, sentences().join("\n")).expect("written");
        let stdin = std::fs::File::open(&input).expect("there");
        let output =
            Command::new(&python).args(["-c", PEER]).arg(&path).stdin(stdin).output().expect("python runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let scored: Vec<Scored> = serde_json::from_slice(&output.stdout).expect("JSON");
        same(&model, &scored, name);
    }
}
